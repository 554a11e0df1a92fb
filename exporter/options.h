/* exporter/options.h - the options of tollgate-exporter. */
#ifndef TOLLGATE_EXPORTER_OPTIONS_H
#define TOLLGATE_EXPORTER_OPTIONS_H

#include "common/conf/conf.h"
#include "common/http/httpd.h"

enum exporter_source { SOURCE_AUTO, SOURCE_NVML, SOURCE_DCGM };
enum exporter_compat { COMPAT_NONE, COMPAT_DCGM };

struct exporter_options {
	char *node;
	char *listen;
	char *tls_cert;
	char *tls_key;
	char *tls_client_ca;
	bool tls_client_required;
	char *web_config_file;
	int source;         /* enum exporter_source */
	char *nvml_library; /* NULL: the driver's */
	char *dcgm_library; /* NULL: libdcgm.so.4, then .3 */
	char *dcgm_host;    /* NULL: an engine in this process */
	char *record;       /* NULL: nothing is recorded */
	bool enable_accounting;
	char *user; /* NULL: the user that started it */
	int64_t sample_interval_ns;
	int64_t read_deadline_percent;
	int64_t interval_ns;
	int64_t replicas;
	char *proc_root;
	char *pods_root;
	char *kubelet_socket;
	char *kubelet_url; /* NULL: labels are not read */
	char *kubelet_token_file;
	char *kubelet_ca_file;
	char *pod_labels; /* NULL: none */
	char *cgroup_root;
	char *slurm_map_dir;
	int64_t slurm_map_uid;
	char *slurm_pod_namespaces;
	char *hpc_job_mapping_dir; /* NULL: none */
	char *aggregator_url;      /* NULL: batches stay in the spool */
	char *token_file;
	char *join_token_file;
	char *ca_file;
	char *client_cert;
	char *client_key;
	int64_t push_timeout_ns;
	int64_t status_interval_ns;
	char *spool_dir;
	int64_t spool_cap_bytes;
	int64_t spool_segment_bytes;
	int64_t spool_keep_ns;
	bool process_metrics;
	int64_t max_process_series;
	bool workload_metrics;
	int compat;          /* enum exporter_compat */
	int compat_hostname; /* index of its spelling */
	bool compat_pod_uid;
	bool access_log;
	int log_level;
};

extern const struct conf_program exporter_program;

struct httpd_tls_files exporter_tls_files(const struct exporter_options *o);

/* An address that other hosts reach needs authenticated clients: users of the web configuration (NULL: there is none), or
 * certificates that are required. */
struct webconf;
MUST_CHECK bool exporter_listen_check(const struct exporter_options *o, const struct webconf *c, struct err *err);

/* The spelling of dcgm-exporter's label for the host, when its names are wanted; else NULL. */
const char *exporter_dcgm_hostname(const struct exporter_options *o);

/* Fills in defaults that depend on the host, and checks that the table cannot express. */
MUST_CHECK bool exporter_options_check(struct exporter_options *o, struct err *err);

#endif

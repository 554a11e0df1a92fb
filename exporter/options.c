/* exporter/options.c - one row per option; help, sample configuration and checks come from it. */
#include "exporter/options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "common/base/text.h"
#include "common/base/time.h"
#include "common/http/webconf.h"
#include "common/wire/wire.h"
#include "exporter/identity/kubelet/podlabels.h"

static const char *const sources[] = {[SOURCE_AUTO] = "auto", [SOURCE_NVML] = "nvml", [SOURCE_DCGM] = "dcgm", NULL};
static const char *const compats[] = {[COMPAT_NONE] = "none", [COMPAT_DCGM] = "dcgm", NULL};
static const char *const hostname_labels[] = {"Hostname", "hostname", NULL};
static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};

#define FIELD(f) offsetof(struct exporter_options, f)

static const struct conf_option options[] = {
	{.name = "node",
         .type = CONF_STRING,
         .offset = FIELD(node),
         .help = "name of this node in the ledger; the host name when not given"},
	{.name = "listen",
         .type = CONF_STRING,
         .offset = FIELD(listen),
         .preset = "127.0.0.1:9401",
         .help = "address and port of /metrics, /healthz and /readyz. /metrics names pods and users of all tenants: an address that other hosts reach, such as 0.0.0.0:9401, needs a web-config-file with users or required client certificates"},
	{.name = "tls-cert",
         .type = CONF_PATH,
         .offset = FIELD(tls_cert),
         .help = "PEM file with this node's certificate and those between it and its CA: /metrics is then https only; read again on SIGHUP and when it changes"},
	{.name = "tls-key",
         .type = CONF_PATH,
         .offset = FIELD(tls_key),
         .help = "PEM file with the key of tls-cert; nobody but the exporter should be able to read it"},
	{.name = "tls-client-ca",
         .type = CONF_PATH,
         .offset = FIELD(tls_client_ca),
         .help = "PEM file with the CAs of clients: a client that shows another certificate is refused"},
	{.name = "tls-client-required",
         .type = CONF_BOOL,
         .offset = FIELD(tls_client_required),
         .preset = "false",
         .help = "refuse clients that show no certificate; with tls-client-ca"},
	{.name = "web-config-file",
         .type = CONF_PATH,
         .offset = FIELD(web_config_file),
         .help = "file with TLS and users with passwords in the format of Prometheus' exporters, instead of the tls options; read again on SIGHUP"},
	{.name = "source",
         .type = CONF_ENUM,
         .offset = FIELD(source),
         .preset = "auto",
         .choices = sources,
         .help = "where the activity of GPUs and MIG instances comes from: nvml; dcgm, without which the exporter does not start; auto: each value from the one that has it, or has it better. All else comes from NVML"},
	{.name = "nvml-library",
         .type = CONF_PATH,
         .offset = FIELD(nvml_library),
         .help = "NVML library to open instead of the driver's libnvidia-ml.so.1"},
	{.name = "dcgm-library",
         .type = CONF_PATH,
         .offset = FIELD(dcgm_library),
         .help = "DCGM library to open instead of libdcgm.so.4 or libdcgm.so.3"},
	{.name = "dcgm-host",
         .type = CONF_STRING,
         .offset = FIELD(dcgm_host),
         .help = "a running DCGM host engine, such as localhost:5555 or unix:/run/nv-hostengine.sock; without it DCGM runs inside the exporter, which needs root for MIG, and counters that only one can use at a time"},
	{.name = "enable-accounting",
         .type = CONF_BOOL,
         .offset = FIELD(enable_accounting),
         .preset = "false",
         .help = "turn the driver's accounting of processes on where it is off, so that those that come and go between two readings are caught; needs root"},
	{.name = "user",
         .type = CONF_STRING,
         .offset = FIELD(user),
         .help = "become this user once the GPU library is open, for good; everything else is opened as that user"},
	{.name = "record",
         .type = CONF_PATH,
         .offset = FIELD(record),
         .help = "directory in which all readings are written down as scenarios for the NVML simulator, for tests and reports of trouble; they name users, cgroups and processes"},
	{.name = "sample-interval",
         .type = CONF_DURATION,
         .offset = FIELD(sample_interval_ns),
         .preset = "1s",
         .min = 100 * NS_PER_MS,
         .max = NS_PER_MIN,
         .help = "time between two readings of the GPUs"},
	{.name = "read-deadline",
         .type = CONF_INT,
         .offset = FIELD(read_deadline_percent),
         .preset = "50",
         .min = 10,
         .max = 75,
         .unit = "percent",
         .help = "part of the sample interval after which a GPU that has not answered is silent: its time is unknown, the others go on"},
	{.name = "interval",
         .type = CONF_DURATION,
         .offset = FIELD(interval_ns),
         .preset = "1m",
         .min = NS_PER_S,
         .max = NS_PER_QUARTER_HOUR,
         .help = "length of one batch of records; divides 15 minutes"},
	{.name = "replicas",
         .type = CONF_INT,
         .offset = FIELD(replicas),
         .preset = "1",
         .min = 1,
         .max = 5040,
         .help = "each whole GPU is advertised to its scheduler as this many (time-slicing)"},
	{.name = "proc-root",
         .type = CONF_PATH,
         .offset = FIELD(proc_root),
         .preset = "/proc",
         .help = "where the host's /proc is"},
	{.name = "pods-root",
         .type = CONF_PATH,
         .offset = FIELD(pods_root),
         .preset = "/var/log/pods",
         .help = "where the kubelet keeps a directory per pod"},
	{.name = "kubelet-socket",
         .type = CONF_PATH,
         .offset = FIELD(kubelet_socket),
         .preset = "/var/lib/kubelet/pod-resources/kubelet.sock",
         .help = "socket of the kubelet's pod-resources service, which lists the devices of pods; a node without a kubelet has no such file"},
	{.name = "kubelet-url",
         .type = CONF_STRING,
         .offset = FIELD(kubelet_url),
         .help = "this node's own kubelet, such as https://10.0.0.7:10250, which is asked for the labels of its pods; http is spoken with this host only"},
	{.name = "kubelet-token-file",
         .type = CONF_PATH,
         .offset = FIELD(kubelet_token_file),
         .help = "file with the token to show to kubelet-url, which must allow it to see the pods of its node (deploy/kubernetes)"},
	{.name = "kubelet-ca-file",
         .type = CONF_PATH,
         .offset = FIELD(kubelet_ca_file),
         .help = "certificates that the one of kubelet-url is checked with; the system's when not given"},
	{.name = "pod-labels",
         .type = CONF_STRING,
         .offset = FIELD(pod_labels),
         .help = "which labels of pods are read and sent to the ledger, for rules and reports: at most 16 keys, such as team,example.com/project; no others leave the node. Needs kubelet-url"},
	{.name = "cgroup-root",
         .type = CONF_PATH,
         .offset = FIELD(cgroup_root),
         .preset = "/sys/fs/cgroup",
         .help = "where the host's cgroups are: a pod that has none any more holds nothing, and workload-metrics are read there"},
	{.name = "slurm-map-dir",
         .type = CONF_PATH,
         .offset = FIELD(slurm_map_dir),
         .preset = "/run/tollgate-slurm",
         .help = "directory in which Slurm's prolog says which job has which GPUs (hooks/slurm)"},
	{.name = "slurm-map-uid",
         .type = CONF_INT,
         .offset = FIELD(slurm_map_uid),
         .preset = "0",
         .min = 0,
         .max = UINT32_MAX,
         .help = "user that may own the files in slurm-map-dir and hpc-job-mapping-dir, besides root"},
	{.name = "slurm-pod-namespaces",
         .type = CONF_STRING,
         .offset = FIELD(slurm_pod_namespaces),
         .preset = "slurm",
         .help = "namespaces whose pods run slurmd (Slinky), with commas between: processes in Slurm's cgroups below such a pod are the job's, and the devices of its container slurmd are Slurm's to allocate. No tenant may create pods there; - for none"},
	{.name = "hpc-job-mapping-dir",
         .type = CONF_PATH,
         .offset = FIELD(hpc_job_mapping_dir),
         .help = "directory of dcgm-exporter's HPC job mapping, with a file per GPU"},
	{.name = "aggregator-url",
         .type = CONF_STRING,
         .offset = FIELD(aggregator_url),
         .help = "where batches are sent, such as https://tollgate.example:9402; without it they stay in the spool"},
	{.name = "token-file",
         .type = CONF_PATH,
         .offset = FIELD(token_file),
         .help = "file with this node's token for the aggregator"},
	{.name = "join-token-file",
         .type = CONF_PATH,
         .offset = FIELD(join_token_file),
         .help = "file with a one-time join token: while token-file is missing, the node joins with it and writes its token there"},
	{.name = "ca-file",
         .type = CONF_PATH,
         .offset = FIELD(ca_file),
         .help = "certificates that the aggregator's is checked with; the system's when not given"},
	{.name = "client-cert",
         .type = CONF_PATH,
         .offset = FIELD(client_cert),
         .help = "PEM file with the certificate to show to the aggregator"},
	{.name = "client-key",
         .type = CONF_PATH,
         .offset = FIELD(client_key),
         .help = "PEM file with the key of client-cert"},
	{.name = "push-timeout",
         .type = CONF_DURATION,
         .offset = FIELD(push_timeout_ns),
         .preset = "30s",
         .min = NS_PER_S,
         .max = 10 * NS_PER_MIN,
         .help = "longest time for one request to the aggregator"},
	{.name = "status-interval",
         .type = CONF_DURATION,
         .offset = FIELD(status_interval_ns),
         .preset = "5s",
         .min = NS_PER_S,
         .max = 10 * NS_PER_MIN,
         .help = "how often the status is sent to the aggregator: which GPUs work and who holds them now"},
	{.name = "spool-dir",
         .type = CONF_PATH,
         .offset = FIELD(spool_dir),
         .preset = "/var/lib/tollgate/spool",
         .help = "directory that keeps batches until the aggregator has them"},
	{.name = "spool-cap",
         .type = CONF_BYTES,
         .offset = FIELD(spool_cap_bytes),
         .preset = "1GiB",
         .min = 1 << 20,
         .max = INT64_C(1) << 40,
         .unit = "bytes",
         .help = "largest size of the spool; beyond it the oldest batches are given up, and reported to the ledger as lost"},
	{.name = "spool-segment",
         .type = CONF_BYTES,
         .offset = FIELD(spool_segment_bytes),
         .preset = "4MiB",
         .min = 1 << 16,
         .max = 256 << 20,
         .unit = "bytes",
         .help = "size at which the next file of the spool begins"},
	{.name = "spool-keep",
         .type = CONF_DURATION,
         .offset = FIELD(spool_keep_ns),
         .preset = "1d",
         .min = 0,
         .max = 90 * NS_PER_DAY,
         .help = "how long acknowledged batches stay, for an aggregator that lost some"},
	{.name = "process-metrics",
         .type = CONF_BOOL,
         .offset = FIELD(process_metrics),
         .preset = "true",
         .help = "series per process in /metrics, beside those per workload"},
	{.name = "max-process-series",
         .type = CONF_INT,
         .offset = FIELD(max_process_series),
         .preset = "1000",
         .min = 3,
         .max = 1000000,
         .help = "at most so many series per process in /metrics, three for each; the processes that came last are left out, and tollgate_exporter_process_series_dropped counts their series"},
	{.name = "workload-metrics",
         .type = CONF_BOOL,
         .offset = FIELD(workload_metrics),
         .preset = "true",
         .help = "CPU time, memory, I/O and pressure of the workloads on GPUs in /metrics, from their cgroups"},
	{.name = "compat",
         .type = CONF_ENUM,
         .offset = FIELD(compat),
         .preset = "none",
         .choices = compats,
         .help = "dcgm: the same readings also under dcgm-exporter's names and labels, for dashboards made for it"},
	{.name = "compat-hostname",
         .type = CONF_ENUM,
         .offset = FIELD(compat_hostname),
         .preset = "Hostname",
         .choices = hostname_labels,
         .help = "how dcgm-exporter's label for the host is spelled, which has changed in the course of its versions"},
	{.name = "compat-pod-uid",
         .type = CONF_BOOL,
         .offset = FIELD(compat_pod_uid),
         .preset = "false",
         .help = "with compat=dcgm also the label pod_uid, as dcgm-exporter has it by --kubernetes-enable-pod-uid"},
	{.name = "access-log",
         .type = CONF_BOOL,
         .offset = FIELD(access_log),
         .preset = "false",
         .help = "write a line for every HTTP request"},
	{.name = "log-level",
         .type = CONF_ENUM,
         .offset = FIELD(log_level),
         .preset = "info",
         .choices = log_levels,
         .help = "least important messages that are written"},
};

const struct conf_program exporter_program = {
	.name = "tollgate-exporter",
	.summary = "meters the GPUs of this node, and sends what it finds to the aggregator",
	.details =
		"Reads every GPU of this node once a second, finds out whose process holds it, and keeps records of that in a spool on disk until the aggregator has acknowledged them. It needs the driver's libnvidia-ml.so.1 and sight of the host's processes; tollgate doctor says what is missing.",
	.see_also = (const char *const[]){"tollgate(1)", "tollgate-aggregator(8)", NULL},
	.options = options,
	.count = ARRAY_LEN(options),
};

const char *
exporter_dcgm_hostname(const struct exporter_options *o)
{
	return o->compat == COMPAT_DCGM ? hostname_labels[o->compat_hostname] : NULL;
}

struct httpd_tls_files
exporter_tls_files(const struct exporter_options *o)
{
	return (struct httpd_tls_files){.cert = o->tls_cert,
	                                .key = o->tls_key,
	                                .client_ca = o->tls_client_ca,
	                                .client_required = o->tls_client_required};
}

static bool
set_node(struct exporter_options *o, struct err *err)
{
	char host[LIMIT_NODE_NAME + 1] = "";

	if (!o->node) {
		if (gethostname(host, sizeof(host) - 1) != 0 || !host[0])
			return err_errno(err, ERR_FATAL, errno, "the host name cannot be read; set --node");
		o->node = mem_strdup(host);
	}
	if (strlen(o->node) > LIMIT_NODE_NAME || !text_is_clean(o->node))
		return err_set(
			err, ERR_INVALID,
			"node: the name must be UTF-8 text of at most %d bytes without control or direction characters",
			LIMIT_NODE_NAME);
	return true;
}

/* Nobody but this host reaches it. A name that is not an address may come to mean any host, but for localhost. */
static bool
is_loopback(const char *host)
{
	struct in6_addr six;
	struct in_addr four;

	if (inet_pton(AF_INET, host, &four) == 1)
		return ntohl(four.s_addr) >> 24 == 127;
	return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

bool
exporter_listen_check(const struct exporter_options *o, const struct webconf *c, struct err *err)
{
	char host[256];
	uint16_t port;

	if (!addr_parse(o->listen, host, sizeof(host), &port, err))
		return err_prefix(err, "listen");
	if (is_loopback(host) || (c && (c->user_count > 0 || (c->client_ca_file && c->client_required))) ||
	    (o->tls_client_ca && o->tls_client_required))
		return true;
	return err_set(err, ERR_INVALID,
	               "listen: other hosts reach %s, and /metrics names pods and users of all tenants: it needs a "
	               "web-config-file with basic_auth_users or with client_auth_type RequireAndVerifyClientCert",
	               o->listen);
}

static bool
check_web_config(const struct exporter_options *o, struct err *err)
{
	owned(webconf) struct webconf *c = NULL;

	if (o->web_config_file && (o->tls_cert || o->tls_key || o->tls_client_ca || o->tls_client_required))
		return err_set(err, ERR_INVALID,
		               "web-config-file: TLS is said there or with the tls options, not with both");
	if (o->web_config_file && !webconf_read(o->web_config_file, &c, err))
		return err_prefix(err, "web-config-file");
	return exporter_listen_check(o, c, err);
}

/* A token is never sent unencrypted to another host. */
static bool
is_on_this_host(const char *url)
{
	static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
	const char *host = url + strlen("http://");
	size_t len = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");

	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		if (strlen(hosts[i]) == len && strncmp(host, hosts[i], len) == 0)
			return true;
	return false;
}

static bool
check_labels(const struct exporter_options *o, struct err *err)
{
	struct podlabels_keys keys;

	if (o->pod_labels && !o->kubelet_url)
		return err_set(err, ERR_INVALID, "pod-labels: needs kubelet-url, where labels are asked for");
	if (o->kubelet_url && strncmp(o->kubelet_url, "https://", 8) != 0 &&
	    (strncmp(o->kubelet_url, "http://", 7) != 0 || !is_on_this_host(o->kubelet_url)))
		return err_set(err, ERR_INVALID, "kubelet-url: '%s' is neither https:// nor http:// of this host",
		               o->kubelet_url);
	if (!podlabels_keys_parse(o->pod_labels ? o->pod_labels : "", &keys, err))
		return err_prefix(err, "pod-labels");
	podlabels_keys_fini(&keys);
	return true;
}

static bool
check_slurm(const struct exporter_options *o, struct err *err)
{
	const char *list = o->slurm_pod_namespaces;

	if (list[strspn(list, "abcdefghijklmnopqrstuvwxyz0123456789-,")] != '\0')
		return err_set(err, ERR_INVALID,
		               "slurm-pod-namespaces: '%s' are not names of namespaces with commas between", list);
	return true;
}

bool
exporter_options_check(struct exporter_options *o, struct err *err)
{
	struct httpd_tls_files tls = exporter_tls_files(o);
	char given[TIME_TEXT_SIZE], other[TIME_TEXT_SIZE];

	if (!set_node(o, err))
		return false;
	if (!httpd_tls_files_check(&tls, err) || !check_web_config(o, err) || !check_labels(o, err) ||
	    !check_slurm(o, err))
		return false;
	if (o->source == SOURCE_NVML && (o->dcgm_host || o->dcgm_library))
		return err_set(err, ERR_INVALID, "%s: DCGM is not used with source nvml",
		               o->dcgm_host ? "dcgm-host" : "dcgm-library");
	if (!o->client_cert != !o->client_key)
		return err_set(err, ERR_INVALID, "client-cert and client-key are given together or not at all");
	if (NS_PER_QUARTER_HOUR % o->interval_ns != 0)
		return err_set(err, ERR_INVALID, "interval: %s does not divide 15 minutes",
		               duration_format(o->interval_ns, given));
	if (o->interval_ns < o->sample_interval_ns)
		return err_set(err, ERR_INVALID, "interval: %s is shorter than the sample-interval, %s",
		               duration_format(o->interval_ns, given), duration_format(o->sample_interval_ns, other));
	if (o->spool_cap_bytes < 2 * o->spool_segment_bytes)
		return err_set(err, ERR_INVALID,
		               "spool-cap: %" PRId64 " bytes are less than two segments of %" PRId64 " (spool-segment)",
		               o->spool_cap_bytes, o->spool_segment_bytes);
	if (o->join_token_file && (!o->token_file || !o->aggregator_url))
		return err_set(
			err, ERR_INVALID,
			"join-token-file: needs token-file, where the node's token is written, and aggregator-url");
	if (o->aggregator_url && strncmp(o->aggregator_url, "http://", 7) != 0 &&
	    strncmp(o->aggregator_url, "https://", 8) != 0)
		return err_set(err, ERR_INVALID, "aggregator-url: '%s' begins neither with http:// nor with https://",
		               o->aggregator_url);
	return true;
}

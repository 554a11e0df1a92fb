/* aggregator/cli/doctor/doctor.h - what `tollgate doctor` looks at.
 *
 * A check is a probe, which collects facts and judges nothing, and a judgement, which is pure: facts in, one line out.
 * cmd_doctor.c has the table. */
#ifndef TOLLGATE_DOCTOR_H
#define TOLLGATE_DOCTOR_H

#include "aggregator/cli/cli.h"

#define DOCTOR_TEXT 512

/* The findings of a probe; each probe fills the fields it needs. */
struct facts {
	bool absent;             /* there is nothing to look at here: no line */
	char thing[DOCTOR_TEXT]; /* the file, URL or name looked at; "": none was given */
	int errnum;              /* errno of the attempt; 0: no error */
	unsigned mode;           /* of a file */
	int status;              /* of an HTTP reply; 0: none came */
	char text[DOCTOR_TEXT];  /* the other side's message, or names of the things found */
	int64_t difference_ns;   /* of two clocks, or an age; -1 where there is none */
	int64_t count, of;       /* this many, of so many */
	int64_t free_bytes;
	int64_t failures;
};

enum verdict { VERDICT_OK, VERDICT_WARN, VERDICT_FAIL };

struct finding {
	enum verdict verdict;
	char finding[2 * DOCTOR_TEXT];
	char remedy[DOCTOR_TEXT]; /* "": none is needed */
};

typedef void judge_fn(const struct facts *f, struct finding *ret);
judge_fn judge_reachable, judge_database, judge_token_file, judge_token, judge_clock, judge_ntp, judge_nodes,
	judge_held_nodes, judge_quarantine, judge_live, judge_node_clocks, judge_unattributed, judge_prices;
judge_fn judge_user, judge_driver, judge_library, judge_devices, judge_pid_namespace, judge_processes, judge_cgroup,
	judge_pods, judge_kubelet, judge_slurm;
judge_fn judge_exporter, judge_readings, judge_accounting, judge_placements, judge_kubelet_answer, judge_pod_labels,
	judge_allocations, judge_slurm_names, judge_push, judge_spool;

/* State that the probes share; every file is looked up under root. */
struct doctor {
	struct cli *cli;
	const char *url, *token_file, *root, *exporter_url, *spool_dir;
	struct httpc *open;    /* the aggregator, without a token */
	struct httpc *with;    /* with the token; NULL: there is none that can be read */
	int64_t difference_ns; /* of the clocks, seen at the first reply */
	bool clock_seen;
	bool reachable, accepted;
	json_t *live;       /* state of nodes; NULL: not allowed */
	json_t *report;     /* of the month that is open; NULL: not allowed or not there */
	struct buf metrics; /* of the exporter; empty: it does not answer */
	int64_t now_wall_ns;
};

typedef void probe_fn(struct doctor *d, struct facts *ret);
probe_fn probe_reachable, probe_database, probe_token_file, probe_token, probe_clock, probe_ntp, probe_nodes,
	probe_held_nodes, probe_quarantine, probe_live, probe_node_clocks, probe_unattributed, probe_prices;
probe_fn probe_user, probe_driver, probe_library, probe_devices, probe_pid_namespace, probe_processes, probe_cgroup,
	probe_pods, probe_kubelet, probe_slurm;
probe_fn probe_exporter, probe_readings, probe_accounting, probe_placements, probe_kubelet_answer, probe_pod_labels,
	probe_allocations, probe_slurm_names, probe_push, probe_spool;

/* A file of the host, under --root; kept in f->thing. */
const char *doctor_path(const struct doctor *d, const char *path, struct facts *f);

/* Is this machine a GPU node, or meant to be one? */
bool doctor_is_node(const struct doctor *d);
/* The value of the first series of this name and, where given, with this text among its labels, times 1000; false: none. */
bool metric_value(const char *page, const char *name, const char *label, int64_t *ret_thousandths);

#endif

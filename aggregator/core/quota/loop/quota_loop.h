/* aggregator/core/quota/loop/quota_loop.h - the closed loop: telemetry compared with the quota book. Pure.
 *
 * From the book, the reports of nodes and the time it makes events for the book, and anomalies. Rules, in order:
 *  0. clock       the database's clock, which the book goes by, can be set; a process's own runs evenly. Where they differ by seconds between two
 *                 looks, the book gets an event with the time that did not pass, before anything falls due by it. While the clock stands still (it
 *                 was set back, and the log's time does not go back) leases and requests grow older by that event
 *  1. inventory   each node is judged by itself (quota_loop_nodes.c): one that the book would refuse is left out. When a node or GPU is new, gone
 *                 or has another owner, the book gets the whole inventory. A node that is silent or in maintenance is lost, and one that reports
 *                 again is back; likewise a GPU; a GPU that is partitioned anew has another layout
 *  2. seen        a node's report counts for a lease if the node is of the lease's cluster, shared or its tenant's own, and only for GPUs that the
 *                 book has on it. On such nodes a lease is seen by the identity of any of its workloads, nodes of its plan first, unless the attribution
 *                 rules give that workload to another tenant. A lease without identity is seen by devices of its shape that its workspace holds and
 *                 that no other lease is seen on: devices of its plan first, then others of those nodes, then elsewhere. Only reports after the
 *                 last change of the lease count
 *  3. confirm     an admitted lease that is seen is confirmed; with its devices, when all of them are seen and no other lease has them
 *  4. heartbeat   a lease that is seen gets a heartbeat before a third of the silence has passed
 *  5. empty       a lease that was released or is suspect and is not seen, while every node that it might be on reports, is empty. A silent node
 *                 proves nothing: its leases stay counted
 *                 A fenced GPU is unfenced when its node speaks likewise, and shows nobody on it who is without a lease and of the lost lease's
 *                 workspace or of nobody's. Else the work goes on: the fence stays, and rule 8 reports it
 *  6. idle        a lease whose holders are all measured, and were not active for longer than its workspace's idle_timeout, is warned, and drained
 *                 when one grace period more has passed without a change. A holder that cannot be measured counts as active
 *  7. due         a tick, when the clock alone changes something; budgets, when the ledger has newer figures than the book
 *  8. anomalies   unleased: devices held beyond leases, by workspace and node. ungated: the same where no lease was ever requested. unused: a
 *                 confirmed lease that is not seen for the silence. foreign: a holder of another tenant on a node or device that isolation keeps for
 *                 one tenant. excess, reserved, overdue: from the book's own pools and orders. idle: leases that were warned. inventory: a node that
 *                 rule 1 leaves out */
#ifndef TOLLGATE_QUOTA_LOOP_H
#define TOLLGATE_QUOTA_LOOP_H

#include "aggregator/core/quota/book/quota_book.h"

/* ---- telemetry; texts are borrowed, none is NULL --------------------------------------------------------------------- */

struct quota_seen_slot {
	const char *profile; /* of an instance; "": whole, or replicas */
	int32_t of;          /* replicas to a GPU; 0: none */
	int32_t count;
	int64_t units; /* of one */
};

struct quota_seen_gpu {
	const char *uuid, *model; /* uuid "": declared, not seen */
	bool known;               /* its node reports it now, with its partitioning */
	bool lost;
	const struct quota_seen_slot *slots;
	size_t slot_count;
};

struct quota_seen_node {
	const char *name, *cluster, *tenant; /* tenant "": shared */
	bool silent;                         /* nothing was heard for a while, or ever */
	bool maintenance;
	bool partial; /* its report left holders out */
	int64_t heard_ns;
	const struct quota_seen_gpu *gpus;
	size_t gpu_count;
};

struct quota_seen_holder {
	int32_t node;       /* index into the nodes */
	const char *gpu;    /* UUID */
	const char *device; /* UUID of an instance, or of the GPU */
	int32_t replica;
	const char *profile;   /* of the instance, or "" */
	const char *workspace; /* path; "": nobody's */
	const char *ns, *pod, *pod_uid, *slurm_job;
	bool holds; /* it has the device; else it is on somebody else's */
	/* Until when it is measured, and the last of that in which it was active or could not be; 0: not known. */
	int64_t measured_ns, active_ns;
};

/* One of several workloads of a lease: a pod or a Slurm job; "" for the other. */
struct quota_identity {
	const char *pod_uid, *slurm_job;
};

/* The workloads of a lease, and when it last changed or was released. */
struct quota_workload {
	const char *lease;
	const char *ns, *pod, *pod_uid, *slurm_job;
	const struct quota_identity *more;
	size_t more_count;
	int64_t changed_ns;
	int64_t change;   /* which that was */
	int64_t since_ns; /* by the clock of the telemetry, where that is not the book's; 0: as the book says */
};

struct quota_idle {
	const char *lease;
	int64_t since_ns, warned_ns; /* warned_ns 0: not yet */
};

struct quota_idle_rule {
	const char *workspace;
	int64_t timeout_ns;
};

/* A process's own clock at a look, and the time that had passed for the book by then. */
struct quota_pace {
	int64_t boot_ns; /* 0: there was none */
	int64_t lived_ns;
};

struct quota_observed {
	const struct quota_seen_node *nodes; /* by name */
	size_t node_count;
	const struct quota_seen_holder *holders; /* by node, GPU, device, replica */
	size_t holder_count;
	const struct quota_workload *workloads; /* by lease */
	size_t workload_count;
	const struct quota_idle *idle; /* by lease */
	size_t idle_count;
	const struct quota_idle_rule *idle_rules; /* by workspace */
	size_t idle_rule_count;
	int64_t last_tick_ns;
	bool in_service;       /* something was decided before: leases are expected */
	struct quota_pace was; /* at the look before */
	int64_t boot_ns;       /* now */
	const char *budgets;   /* {"budgets":[...]}: from the ledger; NULL: nothing yet */
};

/* ---- events and anomalies ------------------------------------------------------------------------------------------------------------ */

struct quota_anomaly {
	const char *kind, *subject, *tenant; /* tenant "": of nobody */
	const char *detail;                  /* JSON */
};

struct quota_loop_event {
	const char *actor; /* "telemetry", "idle", "clock"; of the service also "policy", "ledger" */
	const char *text;
};

struct quota_loop_out {
	struct quota_loop_event *events; /* in the order in which they are to be applied */
	size_t event_count;
	struct quota_anomaly *anomalies; /* by kind and subject */
	size_t anomaly_count;
	struct quota_idle *idle; /* to be stored, by lease */
	size_t idle_count;
	const char **warned; /* leases that are warned now */
	size_t warned_count;
	bool ticked;
	struct quota_pace pace; /* for the next look */
	void *memory;
};
void quota_loop_out_fini(struct quota_loop_out *out);

/* now_ns: of the database's clock, or of the book where that is later. */
void quota_loop(const struct quota_book *b, const struct quota_observed *seen, int64_t now_ns,
                struct quota_loop_out *ret);

#endif

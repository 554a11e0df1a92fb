/* aggregator/store/ingest/live_store.h - live state: what nodes say of this moment, and what can be said of the whole from it. */
#ifndef TOLLGATE_LIVE_STORE_H
#define TOLLGATE_LIVE_STORE_H

#include "aggregator/core/metering/live.h"
#include "aggregator/store/store.h"

/* When a status arrived. */
struct live_arrival {
	int64_t wall_ns, age_ns; /* by our clock, and how long ago that is */
	int64_t skew_ns;         /* the node's clock less ours */
};
/* Keeps a node's status in the place of its last one. *ret_kept is false when a newer one of the
 * same boot is there already. ERR_DENIED: made by a simulator, and the ledger is not a demo. */
MUST_CHECK bool store_status_keep(struct db *db, const struct live_status *s, const struct live_arrival *came,
                                  bool *ret_kept, struct err *err);

struct live_query {
	const char *tenant;  /* sees its own nodes, elsewhere what it is on; NULL: all */
	const char *node;    /* NULL: any */
	int64_t skew_max_ns; /* beyond it a clock is called skewed */
};
/* A JSON array, one object for each node. */
MUST_CHECK bool store_status_json(struct db *db, const struct live_query *q, struct buf *out, struct err *err);

/* --- for the daemon's gauges: each calls back once per row, whose texts last until it returns --- */

/* GPUs in service by state, which add up: healthy, down, unknown. tenant: of nodes that have an owner, else "". */
struct capacity_row {
	const char *cluster, *tenant, *gpu_model, *state;
	int64_t gpus;
};
MUST_CHECK bool store_capacity(struct db *db, void (*each)(void *arg, const struct capacity_row *c), void *arg,
                               struct err *err);

struct node_row {
	const char *cluster, *node, *tenant; /* tenant: its owner, else "" */
	int64_t lag_ns;                      /* how far its records are behind; -1: it has none */
	bool heard;                          /* it has sent a status */
	int64_t age_ns, skew_ns;             /* of that */
	bool silent;
};
MUST_CHECK bool store_nodes(struct db *db, int64_t now_ns, void (*each)(void *arg, const struct node_row *n), void *arg,
                            struct err *err);

/* What waits for somebody. */
struct backlog {
	int64_t quarantined, quarantine_age_ns;           /* batches without a decision; 0: there is none */
	int64_t held_nodes;                               /* seen, and approved by nobody */
	int64_t open_hours, dirty_hours, unsealed_age_ns; /* node-hours; since the end of the oldest */
};
MUST_CHECK bool store_backlog(struct db *db, int64_t now_ns, struct backlog *ret, struct err *err);

MUST_CHECK bool store_workspaces(struct db *db,
                                 void (*each)(void *arg, int32_t id, const char *tenant, const char *workspace),
                                 void *arg, struct err *err);

#endif

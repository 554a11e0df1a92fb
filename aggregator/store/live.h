/* aggregator/store/live.h - live state: what nodes say of this moment, and what can be said of the whole from it. */
#ifndef TOLLGATE_STORE_LIVE_H
#define TOLLGATE_STORE_LIVE_H

#include "aggregator/core/live.h"
#include "aggregator/store/store.h"

/* Keeps a node's status in the place of its last one. skew_ns: its clock less ours. *ret_kept is false when a newer one of the
 * same boot is there already. ERR_DENIED: made by a simulator, and the ledger is not a demo. */
MUST_CHECK bool store_status_keep(struct db *db, const struct live_status *s, int64_t skew_ns, bool *ret_kept,
                                  struct err *err);

struct live_query {
	const char *tenant;  /* sees its own nodes, elsewhere what it is on; NULL: all */
	const char *node;    /* NULL: any */
	int64_t skew_max_ns; /* beyond it a clock is called skewed */
};
/* A JSON array, one object for each node. */
MUST_CHECK bool store_status_json(struct db *db, const struct live_query *q, struct buf *out, struct err *err);

#endif

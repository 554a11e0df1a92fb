/* aggregator/store/usage/usage.h - queries of usage by group, conservation, and the totals of a period. */
#ifndef TOLLGATE_USAGE_H
#define TOLLGATE_USAGE_H

#include "aggregator/store/store.h"

#define USAGE_PAGE_MAX 100000
struct usage_query {
	int64_t from_ns, to_ns; /* widened to billing hours */
	/* comma list of: cluster tenant workspace user workload label:KEY gpu_model profile node gpu sharing day hour state
	 * method; "" is one group of everything. gpu is the UUID. */
	const char *group_by;
	const char *tenant, *workspace, *cluster, *user, *gpu_model, *node; /* exactly this one; NULL: all */
	const char *cursor; /* next of the page before, with its range; NULL: the first page */
	int64_t limit;      /* groups in one answer, 1 to USAGE_PAGE_MAX */
	bool exact; /* whole numbers of unit-nanoseconds, millijoules, byte-milliseconds, which add up to the last one */
	bool csv;
	int64_t cost_rows; /* with cost: at most so many rows of hours and groups are read */
	bool cost; /* the cost of each group, and costs that no workload caused (usage_internal.h); the range is widened to billing days; no CSV */
};
/* {"from","to","groups":[{...keys, "allocated_gpu_hours", "used_gpu_hours", ...}],"next"}, decimals as text with nine places; or CSV
 * of the groups. Sealed and open hours alike. By state, a group has one number, "gpu_hours". Keys that a row has not are "".
 * ret_next: the cursor of the next page; empty on the last one. */
MUST_CHECK bool store_usage(struct db *db, const struct usage_query *q, struct buf *out, struct buf *ret_next,
                            struct err *err);
/* {"from","to","gpus":[...]}: per GPU and node the time in service, the states, their sum, and the difference of both
 * beside clock_adjust, which must be 0; in GPU-hours, and exactly in unit-nanoseconds. */
MUST_CHECK bool store_conservation_json(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out,
                                        struct err *err);
/* The sum of the absolute differences of all GPUs over a period, in unit-nanoseconds: 0, or the ledger has an error. The cheap check, from
 * the roll-ups; batches are not read. */
MUST_CHECK bool store_conservation_error(struct db *db, const char *period, int128 *ret_unit_ns, struct err *err);
/* The period's totals, for the daemon's gauges: calls back once per row. */
struct usage_total {
	const char *cluster, *tenant, *workspace, *gpu_model, *profile, *state;
	int128 unit_ns;
};
MUST_CHECK bool store_period_totals(struct db *db, const char *period,
                                    void (*each)(void *arg, const struct usage_total *t), void *arg, struct err *err);

#endif

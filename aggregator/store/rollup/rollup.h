/* aggregator/store/rollup/rollup.h - background work: sealing hours, folding days, retention. Safe in any replica at any time: while another replica
 * does the same task, a call does nothing. */
#ifndef TOLLGATE_ROLLUP_H
#define TOLLGATE_ROLLUP_H

#include "aggregator/store/store.h"

struct rollup_result {
	int64_t sealed, resealed; /* node-hours */
	int64_t restored;         /* node-hours whose records were restored from their batches */
};
/* Seals every node-hour that is due and computes the dirty ones again; at most `limit` of them. */
MUST_CHECK bool store_rollup(struct db *db, int64_t now_ns, int64_t grace_ns, int limit, struct rollup_result *ret,
                             struct err *err);
/* Sums the covered part of open hours, in steps of slice_ns, which divides an hour. */
MUST_CHECK bool store_slice(struct db *db, int64_t slice_ns, int64_t *ret_sliced, struct err *err);
/* Folds days that are over and whose node-hours are all sealed; at most `limit`. */
MUST_CHECK bool store_fold(struct db *db, int64_t now_ns, int limit, int64_t *ret_folded, struct err *err);
/* Makes the partitions for the records of the coming days. */
MUST_CHECK bool store_partitions(struct db *db, int64_t now_ns, int64_t *ret_made, struct err *err);
/* Retention times. 0: for ever. */
struct retention {
	int64_t intervals_ns; /* records, by UTC day, once all days of them are folded */
	int64_t batches_ns;   /* batches, after their period was closed */
	int64_t hours_ns;     /* node-hours, once their day is folded */
};
struct retention_result {
	int64_t days; /* of records */
	int64_t busy; /* days of records not deleted because of a writer; the next run tries again */
	int64_t batches;
	int64_t hours;
};
MUST_CHECK bool store_retain(struct db *db, int64_t now_ns, const struct retention *keep, struct retention_result *ret,
                             struct err *err);

#endif

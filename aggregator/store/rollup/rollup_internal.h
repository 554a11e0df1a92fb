/* aggregator/store/rollup/rollup_internal.h - shared by seal.c (slices, hours), fold.c (days), retention.c (deletion) and restore.c (records from
 * batches). */
#ifndef TOLLGATE_ROLLUP_INTERNAL_H
#define TOLLGATE_ROLLUP_INTERNAL_H

#include "aggregator/store/db/db.h"
#include "aggregator/store/rollup/rollup.h"

#define DB_LOCK_FOLD DB_LOCK_CLASS ", 5"
#define DB_LOCK_RETAIN DB_LOCK_CLASS ", 6"
#define DB_LOCK_DAY "1953459309" /* a lock class of its own: one lock per day */

/* Runs a task under a session lock, so that one replica at a time does it; any other finds the lock taken and does
 * nothing. The lock is released however the task ends. */
typedef bool background_work(struct db *db, void *arg, struct err *err);
MUST_CHECK bool background_alone(struct db *db, const char *lock, background_work *work, void *arg, struct err *err);

/* For statements over many records: right after an hour the planner's statistics are stale, so it expects a few rows
 * and would sort a million. Statements over more records than `compile` use JIT. */
MUST_CHECK bool background_settings(struct db *db, int64_t from_ns, int64_t until_ns, int64_t nodes, int64_t compile,
                                    struct err *err);

/* Restores the records of a node-hour in usage_interval from its batches; the hour is then sealed from them. Inside a
 * transaction that has locked the hour. */
MUST_CHECK bool restore_hour(struct db *db, int64_t node_id, int64_t hour_ns, struct err *err);

#endif

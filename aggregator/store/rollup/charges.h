/* aggregator/store/rollup/charges.h - the charges of a billing day: computed for fold.c, which stores them, and for
 * report_store.c, which reads open days. Memory holds one pool-hour and the sums of one pool's day. */
#ifndef TOLLGATE_CHARGES_H
#define TOLLGATE_CHARGES_H

#include "aggregator/core/rating/charge_classes.h"
#include "aggregator/store/db/db.h"
#include "common/base/hash.h"

/* Destination of the rows: charge_day and the others, or temporary tables with the prefix "open_", which are emptied
 * when the transaction ends. */
enum charge_place { CHARGES_STORED, CHARGES_OPEN, CHARGE_PLACES };

/* Computes the charges of a day from its hours, inside a transaction. With CHARGES_STORED the caller has deleted the
 * day's old rows. */
MUST_CHECK bool charges_write(struct db *db, const char *day, int64_t from_ns, int64_t until_ns, enum charge_place to,
                              struct err *err);
/* Makes the temporary tables, once in a session, and one of the same kind for other meters (open_meter_day). */
MUST_CHECK bool charges_tables(struct db *db, struct err *err);
/* Empties them, for a second month in one transaction. */
MUST_CHECK bool charges_tables_clear(struct db *db, struct err *err);
/* Computes into these the charges of every dirty day of the range (with folded: of every day that is not
 * dirty), in a transaction that may write. ret_count: number of days. */
MUST_CHECK bool charges_open(struct db *db, int64_t from_ns, int64_t until_ns, bool folded, int64_t *ret_count,
                             struct err *err);

/* Time that a workspace held of one kind of device in one hour of a pool, by class. Texts are borrowed for the call. */
struct charge_use {
	int64_t hour_ns, book_id, cluster_id, owner_id; /* book 0: none; owner 0: shared */
	const char *gpu_model;
	const struct class_use *use;
	const struct class_amounts *classes; /* CLASS_COUNT of them */
};
typedef bool charge_use_each(void *arg, const struct charge_use *u, struct err *err);
/* Passes the same hours as charges_write() to a callback; writes nothing. Inside a transaction. */
MUST_CHECK bool charges_each_use(struct db *db, int64_t from_ns, int64_t until_ns, charge_use_each *each, void *arg,
                                 struct err *err);

/* --- the sums of a pool's day --- */

/* Unreserved idle time minus stranded time of a row c of pool_day. Days billed before the hourly sum was stored have
 * the day's difference. */
#define IDLE_LESS_STRANDED(c) "coalesce(" c ".idle_less_stranded, greatest(" c ".unreserved_idle - " c ".stranded, 0))"

#endif

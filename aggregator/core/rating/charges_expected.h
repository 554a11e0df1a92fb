/* aggregator/core/rating/charges_expected.h - the charges of a pool's hour, computed a second time for `tollgate verify`. Pure.
 *
 * It shares no code with core/rating/charge_classes.c and store/rollup/charges.c, whose results it is compared with: neither the sorting nor the
 * splitting. Rules, in the order of BILLING 2:
 *  1. C is all held, unallocated and stranded time. H is the time that a workspace held, R the time that it reserved
 *  2. where the sum of R exceeds C, the rest is undelivered, pro rata over R, but no workspace's delivered part falls below its H
 *  3. covered = min(H, R); over = H - covered; spare = C - sum of R
 *  4. on demand: the over up to spare, pro rata; borrowed: the rest of over
 *  5. lent: the borrowed total, pro rata over the unused part of each R, within lend caps first, then over the parts still unused
 *  6. the rest of spare is unreserved idle; shared_idle divides the part of it beyond the hour's stranded time
 *  7. inside a workspace: whole GPUs first, then larger instances, then by profile, then by sharing mode. Used, idle and unmeasured time
 *     go to the classes pro rata, class by class; over and energy pro rata over the classes, on demand where nothing was held
 *  8. borrowers by id and in the order of 7: each takes from all lenders, pro rata of the time they have left
 *  9. a workspace's reservation of several kinds: undelivered pro rata, covered, lent and unused to the kinds in the order of 7
 * Pro rata is by largest remainder, ties to the lower id. */
#ifndef TOLLGATE_CHARGES_EXPECTED_H
#define TOLLGATE_CHARGES_EXPECTED_H

#include "common/base/base.h"

enum charges_expected_table {
	CHARGES_EXPECTED_CHARGE_DAY,
	CHARGES_EXPECTED_RESERVE_DAY,
	CHARGES_EXPECTED_LOAN_DAY,
	CHARGES_EXPECTED_POOL_DAY,
	CHARGES_EXPECTED_TABLES
};
enum { CHARGES_EXPECTED_COVERED, CHARGES_EXPECTED_ON_DEMAND, CHARGES_EXPECTED_BORROWED, CHARGES_EXPECTED_CLASSES };
/* used, idle and unmeasured are held time; over and energy_mj lie beside it. */
enum { CHARGES_EXPECTED_HELD_STATES = 3, CHARGES_EXPECTED_AMOUNTS = 5 };
#define CHARGES_EXPECTED_SUMS 12 /* the most that a table has */

struct charges_expected_use {
	int64_t workspace, units;
	const char *profile;
	int64_t sharing;
	int128 amount[CHARGES_EXPECTED_AMOUNTS];
};
struct charges_expected_right {
	int64_t workspace, units;
	const char *profile;
	int128 reserved;
	int128 lend_cap; /* of the workspace; -1: all of it may be lent */
};
struct charges_expected_pool {
	struct charges_expected_use *uses;
	struct charges_expected_right *rights;
	size_t use_count, right_count;
	int128 unallocated, stranded, down, unknown, energy_mj;
};

/* A row that the day's tables must have, as a part of its day. use: of charges and loans; right: of reserves; lender: of loans. */
struct charges_expected_row {
	enum charges_expected_table table;
	const struct charges_expected_use *use;
	const struct charges_expected_right *right;
	int64_t lender;
	int klass;
	int128 sum[CHARGES_EXPECTED_SUMS];
};
typedef void charges_expected_tell(void *arg, const struct charges_expected_row *row);
/* Sorts uses and rights. Reports no empty part. */
void charges_expected_settle(struct charges_expected_pool *p, charges_expected_tell *tell, void *arg);

/* A total in proportion to the weights, by largest remainder, ties to the first; all 0 where the weights are. */
void charges_expected_share(int128 total, const int128 *weight, size_t n, int128 *out);

#endif

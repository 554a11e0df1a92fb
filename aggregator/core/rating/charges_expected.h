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

enum verify_charge { VERIFY_CHARGE_DAY, VERIFY_RESERVE_DAY, VERIFY_LOAN_DAY, VERIFY_POOL_DAY, VERIFY_CHARGE_TABLES };
enum { VERIFY_COVERED, VERIFY_ON_DEMAND, VERIFY_BORROWED, VERIFY_CLASSES };
/* used, idle and unmeasured are held time; over and energy_mj lie beside it. */
enum { VERIFY_HELD_STATES = 3, VERIFY_AMOUNTS = 5 };
#define VERIFY_CHARGE_SUMS 12 /* the most that a table has */

struct verify_use {
	int64_t workspace, units;
	const char *profile;
	int64_t sharing;
	int128 amount[VERIFY_AMOUNTS];
};
struct verify_right {
	int64_t workspace, units;
	const char *profile;
	int128 reserved;
	int128 lend_cap; /* of the workspace; -1: all of it may be lent */
};
struct verify_pool {
	struct verify_use *uses;
	struct verify_right *rights;
	size_t use_count, right_count;
	int128 unallocated, stranded, down, unknown, energy_mj;
};

/* A row that the day's tables must have, as a part of its day. use: of charges and loans; right: of reserves; lender: of loans. */
struct verify_pool_row {
	enum verify_charge table;
	const struct verify_use *use;
	const struct verify_right *right;
	int64_t lender;
	int klass;
	int128 sum[VERIFY_CHARGE_SUMS];
};
typedef void verify_pool_tell(void *arg, const struct verify_pool_row *row);
/* Sorts uses and rights. Reports no empty part. */
void verify_pool_settle(struct verify_pool *p, verify_pool_tell *tell, void *arg);

/* A total in proportion to the weights, by largest remainder, ties to the first; all 0 where the weights are. */
void verify_share(int128 total, const int128 *weight, size_t n, int128 *out);

#endif

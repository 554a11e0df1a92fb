/* aggregator/core/rating/charge_classes.h - the classes of a pool's hour: covered by reservations, on demand, borrowed, lent, unused. Pure
 * (BILLING 2).
 *
 * A pool is the nodes of one tenant in a cluster, or its shared ones, of one GPU model. Amounts are unit-nanoseconds of one billing
 * hour. Rules, in order:
 *  1. capacity C is the time in service that was neither down nor unknown; it includes all allocated time
 *  2. where the reservations exceed C, the rest is undelivered: pro rata over the reservations, but no workspace's falls below the time that it
 *     held itself. From here on R_i is the delivered part
 *  3. covered_i = min(H_i, R_i); held time beyond it is over_i; spare = C - sum(R_i)
 *  4. on demand: the over_i up to spare, pro rata; borrowed_i is the rest of over_i
 *  5. lent: the borrowed total, pro rata over the unused parts of the reservations, within the lend caps; where the caps leave no room
 *     (GPUs were used without a decision of Tollgate), pro rata over the parts still unused. reserved-unused_j = unused_j - lent_j
 *  6. the rest of spare is unreserved idle. covered + on demand + borrowed + reserved-unused + unreserved idle = C
 *  7. within a workspace a reservation covers whole GPUs first, then larger instances, then by profile's name, then by sharing mode;
 *     on-demand time follows in the same order. Used, idle and unmeasured time of one kind of device are divided among its classes
 *     pro rata, as are over and energy
 *  8. loans: borrowers in the order of their ids and their borrowed time in the order of rule 7, each divided over the time that
 *     each lender has left, so that all lenders have lent to the same borrowers in the same proportions. Both sides add up. Activity
 *     goes with the time
 *
 * All pro rata splits are by largest remainder, ties by id of the workspace. */
#ifndef TOLLGATE_CHARGE_CLASSES_H
#define TOLLGATE_CHARGE_CLASSES_H

#include "common/base/err.h"

enum usage_class { CLASS_COVERED, CLASS_ON_DEMAND, CLASS_BORROWED, CLASS_COUNT };

/* Amounts of one kind of device; not negative. */
struct class_amounts {
	int128 used, idle, unmeasured; /* together: allocated */
	int128 over, energy_mj;        /* beside it */
};

/* Time that a workspace held of one kind of device. At most one row for each workspace, profile, size and sharing. */
struct class_use {
	int64_t workspace;
	int64_t instance_units; /* of one whole device of this kind: 5040, or the MIG instance's */
	const char *profile;    /* "" for whole GPUs; borrowed */
	int sharing;
	struct class_amounts amounts;
};

/* A workspace's reservation in the pool. At most one row for each workspace. */
struct class_right {
	int64_t workspace;
	int128 reserved; /* integrated over the hour */
	int128 lend_cap; /* likewise; at least 0 */
};

struct class_hour {
	int128 capacity;
	const struct class_use *uses;
	size_t use_count;
	const struct class_right *rights;
	size_t right_count;
};

struct class_settled { /* of a class_right: reserved = covered + lent + unused + undelivered */
	int128 covered, lent, unused, undelivered;
};
struct class_loan {
	size_t lender, use;        /* indexes into rights and uses */
	struct class_amounts part; /* of the borrowed time of that use; allocated > 0 */
};

struct classes {
	struct class_amounts (*uses)[CLASS_COUNT]; /* per class_use */
	struct class_settled *rights;              /* per class_right */
	struct class_loan *loans;                  /* by the ids of both */
	size_t loan_count;
	int128 unreserved_idle;
};

/* ERR_INVALID: a negative amount, more allocated than there is capacity, a workspace twice. */
MUST_CHECK bool classes_of_hour(const struct class_hour *in, struct classes **ret, struct err *err);
void classes_free(struct classes *c);
DEFINE_OWNED(classes, struct classes)

#endif

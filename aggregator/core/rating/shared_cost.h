/* aggregator/core/rating/shared_cost.h - idle time of shared nodes, divided among tenants. Pure (BILLING 3.4).
 *
 * Of one pool of shared nodes, one day and one price book. Rules:
 *  1. none: the platform pays, and there are no rows
 *  2. even: the tenants that held GPUs of the pool that day, in equal parts
 *  3. proportional: the same, in proportion to the time they held
 *  4. weights: the tenants that the book names, in proportion to their weights, whether they held GPUs or not
 *  5. the parts add up to the whole, by largest remainder, ties by id of the tenant; none is negative. Where no
 *     tenant has a weight, the platform pays. The ratios of the parts add up to 1 */
#ifndef TOLLGATE_SHARED_COST_H
#define TOLLGATE_SHARED_COST_H

#include "aggregator/core/rating/rating.h"

struct shared_pool {
	int32_t day;
	int64_t price_book; /* index, as in a row */
	const char *cluster, *gpu_model;
	int128 idle_unit_ns; /* neither held nor reserved; without stranded time */
};

/* A tenant that may have to pay: one each, in the order of their ids. */
struct shared_tenant {
	const char *tenant, *cost_center;
	int128 held_unit_ns; /* of the pool that day */
};

/* Writes at most n rows of CHARGE_SHARED, which have no workspace and borrow their texts, and returns how many. */
size_t shared_cost_rows(const struct rating_book *book, const struct shared_pool *pool,
                        const struct shared_tenant *tenants, size_t n, struct usage_day *out);

#endif

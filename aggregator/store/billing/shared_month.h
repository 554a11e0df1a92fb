/* aggregator/store/billing/shared_month.h - what nobody held of shared nodes in a month, divided among tenants (core/rating/shared_cost.h). For the
 * files of store/ only. */
#ifndef TOLLGATE_SHARED_MONTH_H
#define TOLLGATE_SHARED_MONTH_H

#include "aggregator/store/billing/report_rows.h"

struct shared_part {
	int32_t tenant;
	int32_t pool;  /* row of pools */
	int32_t ratio; /* which part of the pool it is, in 10^-9 */
	int128 unit_ns;
};

/* in_place(shared_month) struct shared_month s = {0}; */
struct shared_month {
	PGresult *pools;           /* day, book, cluster, 0, model, idle */
	struct shared_part *parts; /* by tenant, then in the order of the pools */
	size_t count, cap;
};
void shared_month_fini(struct shared_month *s);

/* By what the books of the month say; or, where there is one, by the proposed book for all of it. tenant: whose parts are kept; NULL:
 * those of all. */
MUST_CHECK bool shared_month_load(const struct report_month *m, const struct rating_book *proposed, const char *tenant,
                                  struct shared_month *s, struct err *err);
/* The first part of the tenant; those that follow are its own as long as they say so. */
size_t shared_month_first(const struct shared_month *s, int64_t tenant);

#endif

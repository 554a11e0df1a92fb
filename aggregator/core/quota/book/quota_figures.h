/* aggregator/core/quota/book/quota_figures.h - figures of each workspace from a quota book, by model and pool, as shown to users. Pure.
 *
 * The engine knows how much a workspace owes, not to whom. These rules name the lenders:
 *  1. debts are covered first by live capacity without a reservation, which is used on demand; the rest is lent
 *  2. it is lent by idle reservations, by each in proportion to its lendable units, exact to the unit
 *  3. the units lent in a pool are borrowed there, by each workspace in proportion to its debt: as the bill's classes (charge_classes.h) */
#ifndef TOLLGATE_QUOTA_FIGURES_H
#define TOLLGATE_QUOTA_FIGURES_H

#include "aggregator/core/quota/book/quota_book.h"

struct quota_figure {
	int32_t workspace, cluster, model;
	bool shared; /* in the shared pool, else the tenant's own */
	struct quota_account_figures account;
	int64_t lent;
	int64_t borrowed;  /* of the debt: reserved by others */
	int64_t on_demand; /* the rest of the debt */
	int64_t queued;    /* units that wait, wherever they will be placed: counted with the own pool */
};
/* in_place(quota_figures) struct quota_figures f = {0}; */
struct quota_figures {
	struct quota_figure *at; /* by workspace, cluster, model, pool; those of which there is something to say */
	size_t count;
};
void quota_figures_make(const struct quota_book *b, struct quota_figures *ret);
void quota_figures_fini(struct quota_figures *f);

/* Rule 1. */
int64_t quota_pool_lent(const struct quota_pool_figures *p);

#endif

/* aggregator/core/reports/reconcile_parts.h - what is kept of a month while it is added up: between reconcile.c, which adds, and reconcile_end.c,
 * which makes the equation of it. Pure. */
#ifndef TOLLGATE_RECONCILE_PARTS_H
#define TOLLGATE_RECONCILE_PARTS_H

#include "aggregator/core/reports/reconcile.h"

#define RECONCILE_ADD(sum, v) (!__builtin_add_overflow((sum), (v), &(sum)))
#define RECONCILE_NO_PRICE (-1)

/* A cluster's model under one book. */
struct reconcile_cell {
	size_t group;
	const char *version;          /* of the book, which is the group's; "": none */
	int128 price;                 /* RECONCILE_NO_PRICE: none */
	int128 pool[RECONCILE_HOURS]; /* as the pools say; shared nodes held by nobody are idle */
	/* As was rated; what nobody pays for is not. Covered: also what is lent, and what was not used. */
	int128 rated[RECONCILE_HOURS], lent;
};

struct reconcile_group {
	char *cluster, *gpu_model;
	char currency[8];
	int scale;
	int128 billed[RECONCILE_TERMS];          /* cents: of billed and credits */
	int128 list_cost[RECONCILE_TERMS];       /* of the same, exact */
	int128 own_discount, discount, rounding; /* exact */
};

struct reconcile {
	char period[8], period_status[8], period_start[12], period_end[12];
	struct reconcile_group *groups;
	size_t group_count;
	struct reconcile_cell *cells;
	size_t cell_count;
	struct reconcile_total *totals;
	size_t total_count;
	char **versions;
	size_t version_count;
};

/* Of the currency; made where there is none yet. */
struct reconcile_total *reconcile_total_of(struct reconcile *r, const char *currency, int scale);
bool reconcile_too_much(const char *what, struct err *err);

#endif

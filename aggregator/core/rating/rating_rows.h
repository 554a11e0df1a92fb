/* aggregator/core/rating/rating_rows.h - the rows and cells between rating's input and its lines. Only for rating*.c. Pure. */
#ifndef TOLLGATE_RATING_ROWS_H
#define TOLLGATE_RATING_ROWS_H

#include "aggregator/core/rating/rating.h"

/* What all rows of one kind of charge, device, holder and price book have: a month has few kinds, and each comes once a day. */
struct row_kind {
	const struct usage_day *day; /* the first of them */
	const char *sku;             /* "" : derived */
	const char *price_version;
	const char *currency;
	struct rating_price price; /* zero without a price */
	bool priced;
	size_t line; /* rows of kinds with the same number are one line */
};

/* A row of the input. */
struct row {
	const struct usage_day *day;
	const struct row_kind *kind;
};

enum { USED, IDLE, UNMEASURED, STATE_COUNT };

/* The rows of one line, day and reservation: what is quantised once. */
struct cell {
	const struct row *row; /* the first of them */
	int128 unit_ns[STATE_COUNT], over_unit_ns, energy_mj, meter_quantity;
	int128 total_unit_ns;                /* GPU time of any kind */
	int128 origin_unit_ns, origin_share; /* of what was divided: all of it, and 10^9 x this part of it */
	int128 ngh, state_ngh[STATE_COUNT];
	/* Of a reservation's: in the commitment's unit, rounded together with its other parts; and whether that is an instance. */
	int128 part;
	bool part_per_instance;
	/* Of a reservation that is priced per instance, by the list or by the tenant's own item: in instances of what is reserved, rounded together. */
	int128 instance_part;
};

#define ADD(sum, v) (!__builtin_add_overflow((sum), (v), &(sum)))

/* The kinds that were seen; in_place(row_kinds) struct row_kinds k = {0}; */
struct row_kinds {
	struct row_kind **at;
	size_t count, cap;
	size_t *slots; /* a hash table of positions + 1 */
	size_t slot_count;
};
void row_kinds_fini(struct row_kinds *k);
/* The row's kind, with its price; it stays where it is. */
const struct row_kind *row_kind_of(struct row_kinds *k, const struct rating_input *in, const struct usage_day *d);
/* Gives all kinds the numbers of their lines: when all rows have one. */
void row_kinds_number(struct row_kinds *k);

/* By rule 1: those that compare as 0 are one line. */
int row_kind_compare(const struct row_kind *x, const struct row_kind *y);
/* By line, day and reservation: those that compare as 0 are one cell. */
int rating_compare_rows(const void *a, const void *b);

/* Rows in their order to cells in the same order, as many as there are rows at most; quantised (rule 2). */
MUST_CHECK bool rating_cells(const struct row *rows, size_t n, struct cell *cells, size_t *ret_count, struct err *err);
/* Rules 4 and 5: in that unit; a credit is negative. */
int128 rating_quantity(const struct cell *c, const struct rating_unit *unit);
/* Of covered use that is sold on demand: in the unit of its list price there; else 0. */
int128 rating_on_demand_quantity(const struct cell *c);
/* Of a part of a reservation: in the unit of what the tenant pays for the commitment; else 0. */
int128 rating_reserved_quantity(const struct cell *c);
/* Whether the two price different quantities of what a row has. */
bool rating_units_differ(const struct rating_unit *a, const struct rating_unit *b);
/* The error of a line whose sums do not fit. */
bool rating_too_much(const struct row *r, struct err *err);

#endif

/* aggregator/core/rating_rows.h - the rows and cells between rating's input and its lines. Only for rating*.c. Pure. */
#ifndef TOLLGATE_CORE_RATING_ROWS_H
#define TOLLGATE_CORE_RATING_ROWS_H

#include "aggregator/core/rating.h"

/* A row of the input with what its price decides about the line it belongs to. */
struct row {
	const struct usage_day *day;
	const char *sku; /* "" : derived */
	const char *price_version;
	const char *currency;
	struct rating_price price; /* zero without a price */
	bool priced;
};

enum { USED, IDLE, UNMEASURED, STATE_COUNT };

/* The rows of one line, day and reservation: what is quantised once. */
struct cell {
	const struct row *row; /* the first of them */
	int128 unit_ns[STATE_COUNT], over_unit_ns, energy_mj, meter_quantity;
	int128 total_unit_ns; /* GPU time of any kind */
	int128 ngh, state_ngh[STATE_COUNT];
};

#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))
#define ADD(sum, v) (!__builtin_add_overflow((sum), (v), &(sum)))

/* Prices that were found before: a month has few kinds of rows, and each comes once a day. */
#define PRICE_MEMO_SIZE 256u
struct price_memo {
	struct {
		const struct usage_day *day; /* that asked; NULL: nobody did */
		struct rating_price price;
	} at[PRICE_MEMO_SIZE];
};
/* rating_price_of() by the row's own book, which it has. */
struct rating_price rating_price_again(struct price_memo *m, const struct rating_input *in, const struct usage_day *d);

/* Which rows are one line: those that compare as 0. */
int rating_compare_keys(const struct row *x, const struct row *y);
/* Also by day and reservation: those that compare as 0 are one cell. */
int rating_compare_rows(const void *a, const void *b);

/* Rows in their order to cells in the same order, as many as there are rows at most; quantised (rule 2). */
MUST_CHECK bool rating_cells(const struct row *rows, size_t n, struct cell *cells, size_t *ret_count, struct err *err);
/* Rules 4 and 5: as priced; a credit is negative. */
int128 rating_quantity(const struct cell *c);
/* The error of a line whose sums do not fit. */
bool rating_too_much(const struct row *r, struct err *err);

#endif

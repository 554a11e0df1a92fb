/* aggregator/core/rating/correction.h - corrections of a closed month: its cost now less the amounts billed. Pure, exact.
 *
 * Rules, in order:
 *  1. lines are the same when their line_id is. The billed amounts of a line are those of the invoice and of all its corrections since
 *  2. a correction has the difference of every amount: hours, quantity, list cost, discount, rounding, billed, energy. So
 *     list_cost - discount + rounding = billed holds for it, and invoice + corrections = the month computed again, to the cent
 *  3. a line that was not billed is corrected from 0; a billed line that no longer exists is reversed as a whole
 *  4. where nothing differs there is no correction
 *     A line that cannot be rated now (rule 13 of rating.h) keeps its billed cost: its correction has the difference of its hours and
 *     its quantity, no price and no cost, and its description says why. Once it can be rated, the whole difference is corrected
 *  5. all corrections of a tenant's month that are billed together are one document: the next version of that month's invoice
 *  6. a correction is billed in one month: its line_id is made of that month and of the line it corrects
 *  7. where the days of the billed lines are known, a correction also has the difference of each day, with that of the day's amortised cost (amortise.h).
 *     Amortised cents on lines that are not corrected go to one that is, so that they add up to the additional cost of the reservation */
#ifndef TOLLGATE_CORRECTION_H
#define TOLLGATE_CORRECTION_H

#include "aggregator/core/rating/rating.h"

struct correction_input {
	const char *tenant, *month;            /* the corrected month: "2026-10" */
	const char *period_start, *period_end; /* its dates */
	const char *billed_in;                 /* the month in whose report the corrections are: "2026-11" */
	int32_t version;                       /* of the document: 1 + the number of earlier ones of that month */
	const struct rated *now;               /* the tenant's month, computed again */
	/* The billed amounts of each line, summed (rule 1), each line_id once. */
	const struct rated_line *billed;
	size_t billed_count;
	bool by_day; /* rule 7: each of these lines has its days, summed and in their order */
};

/* Corrections own all their texts. Sorted by tenant, then month, then as the lines of a report. */
struct corrections {
	struct rated_line *lines;
	size_t count, cap;
};
/* Adds the corrections. ERR_INVALID: a difference is beyond its number's range. */
MUST_CHECK bool correction_run(const struct correction_input *in, struct corrections *c, struct err *err);
void corrections_init(struct corrections *c);
void corrections_fini(struct corrections *c);
void corrections_sort(struct corrections *c);
/* A correction that was made before; all its texts but charge_type become the corrections'. */
void corrections_add(struct corrections *c, const struct rated_line *l);
/* Adds a copy of the line without its days. */
void corrections_add_copy(struct corrections *c, const struct rated_line *l);

/* The corrected days of a correction as an archived text, and back. The caller frees *ret. */
void correction_days_write(const struct rated_line *l, struct buf *out);
MUST_CHECK bool correction_days_read(const char *text, struct rated_day **ret, size_t *ret_count, struct err *err);

/* The tenant's corrections, as they are after sorting: count of them from *ret on. */
size_t corrections_of(const struct corrections *c, const char *tenant, const struct rated_line **ret);

/* Lines of a month and corrections as one set for a report: of each tenant its lines, then its corrections. It borrows both: only its
 * array is its own. r may be NULL. in_place(rated_view) struct rated_view v = {0}; */
struct rated_view {
	struct rated rated;
};
void rated_view_make(struct rated_view *v, const struct rated *r, const struct rated_line *corrections, size_t count);
void rated_view_fini(struct rated_view *v);

#endif

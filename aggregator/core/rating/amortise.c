/* aggregator/core/rating/amortise.c - the billed cost of reservations, spread over their hours. The numbers are those of amortise.h. */
#include "aggregator/core/rating/amortise.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/apportion.h"
#include "common/base/text.h"

bool
line_is_of_reservation(const struct rated_line *l)
{
	return l->kind == CHARGE_COMMITMENT || l->kind == CHARGE_COVERED || l->kind == CHARGE_UNUSED ||
	       l->kind == CHARGE_LENT || l->kind == CHARGE_UNDELIVERED;
}

/* The reserved profile, where the reservation is priced per instance; "": GPU-hours. */
static const char *
reserved_profile(const struct rated_line *l)
{
	if (l->commitment_profile != NULL)
		return l->commitment_profile;
	return !l->unit.per_instance ? "" : l->unit.profile != NULL ? l->unit.profile : l->mig_profile;
}

static const char *
reserved_version(const struct rated_line *l)
{
	return l->commitment_version != NULL ? l->commitment_version : l->price_version;
}

static int
compare_reservations(const struct rated_line *a, const struct rated_line *b)
{
	const char *const at[] = {a->tenant,   a->workspace,        a->cluster,         a->gpu_model,
	                          a->currency, reserved_version(a), reserved_profile(a)};
	const char *const bt[] = {b->tenant,   b->workspace,        b->cluster,         b->gpu_model,
	                          b->currency, reserved_version(b), reserved_profile(b)};

	return compare_texts(at, bt, ARRAY_LEN(at));
}

bool
line_is_of_same_reservation(const struct rated_line *a, const struct rated_line *b)
{
	return compare_reservations(a, b) == 0;
}

int128
rated_effective(const struct rated_line *l, const struct rated_day *d)
{
	if (l->kind == CHARGE_COMMITMENT && (l->correction_of == NULL || l->corrected_days != NULL))
		return d->amortised;
	return d->billed + d->amortised;
}

int128
rated_effective_sum(const struct rated_line *l)
{
	size_t n;
	const struct rated_day *days = rated_line_days(l, &n);
	int128 sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += rated_effective(l, &days[i]);
	return sum;
}

const char *
line_cost_reason(const struct rated_line *l)
{
	static const char *const reasons[CHARGE_KINDS] = {
		[CHARGE_COMMITMENT] = "reservation",
		[CHARGE_UNUSED] = "reservation-unused",
		[CHARGE_UNDELIVERED] = "reservation-undelivered",
		[CHARGE_LENT] = "reservation-lent",
		[CHARGE_DEDICATED] = "dedicated-idle",
		[CHARGE_SHARED] = "shared-idle",
		[CHARGE_METER] = "meter",
		[CHARGE_ADJUSTMENT] = "adjustment",
	};

	if (l->correction_of != NULL)
		return "correction";
	if (l->workspace[0] == '\0' && reasons[l->kind] == NULL)
		return "idle-energy";
	return reasons[l->kind];
}

/* A day of a line of a reservation. */
struct part {
	const struct rated_line *line;
	struct rated_day *day;
};

static int
by_reservation_and_day(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	int order = compare_reservations(x->line, y->line);

	if (order == 0)
		order = (x->day->day > y->day->day) - (x->day->day < y->day->day);
	return order != 0 ? order : (x->line > y->line) - (x->line < y->line);
}

/* Adds the cents to the parts; false: they have no hours. */
static bool
spread(int128 cents, const struct part *parts, size_t n)
{
	owned(mem) int128 *weight = mem_array(n, sizeof(*weight));
	owned(mem) int128 *share = mem_array(n, sizeof(*share));

	for (size_t i = 0; i < n; i++)
		weight[i] = parts[i].line->kind == CHARGE_COMMITMENT ? 0 : parts[i].day->ngh;
	if (!apportion(cents, weight, n, share))
		return cents == 0;
	for (size_t i = 0; i < n; i++)
		parts[i].day->amortised += share[i];
	return true;
}

/* The parts are those of one reservation, by day. */
static void
spread_reservation(const struct part *parts, size_t n)
{
	int128 left = 0;

	for (size_t i = 0, end; i < n; i = end) {
		int128 billed = 0;

		for (end = i; end < n && parts[end].day->day == parts[i].day->day; end++)
			if (parts[end].line->kind == CHARGE_COMMITMENT)
				billed += parts[end].day->billed;
		if (!spread(billed, parts + i, end - i)) /* rule 2 */
			left += billed;
	}
	if (spread(left, parts, n)) /* rule 3 */
		return;
	for (size_t i = 0; i < n; i++)
		if (parts[i].line->kind == CHARGE_COMMITMENT)
			parts[i].day->amortised = parts[i].day->billed;
}

void
rated_amortise(struct rated *r)
{
	owned(mem) struct part *parts = NULL;
	size_t n = 0, days = 0;

	for (size_t i = 0; i < r->count; i++)
		days += r->lines[i].day_count;
	parts = mem_array(days, sizeof(*parts));
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		for (size_t d = 0; l->correction_of == NULL && d < l->day_count; d++) {
			l->days[d].amortised = 0;
			if (line_is_of_reservation(l))
				parts[n++] = (struct part){.line = l, .day = &l->days[d]};
		}
	}
	if (n > 1)
		qsort(parts, n, sizeof(*parts), by_reservation_and_day);
	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && line_is_of_same_reservation(parts[i].line, parts[end].line); end++)
			;
		spread_reservation(parts + i, end - i);
	}
}

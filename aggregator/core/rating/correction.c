/* aggregator/core/rating/correction.c - corrections of a closed month. The numbers are those of correction.h. */
#include "aggregator/core/rating/correction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/rating/records.h"
#include "common/base/digest.h"
#include "common/base/text.h"

void
corrections_init(struct corrections *c)
{
	*c = (struct corrections){0};
}

/* The texts of a line that rating borrows from its input; a correction has its own. */
#define BORROWED_TEXTS 21
static void
borrowed_texts(struct rated_line *l, const char **ret[BORROWED_TEXTS])
{
	const char **const all[BORROWED_TEXTS] = {
		&l->cluster,
		&l->tenant,
		&l->cost_center,
		&l->workspace,
		&l->gpu_model,
		&l->mig_profile,
		&l->sharing_mode,
		&l->klass,
		&l->counterparty,
		&l->category,
		&l->unit.base,
		&l->unit.profile,
		&l->own_unit.base,
		&l->own_unit.profile,
		&l->price_version,
		&l->currency,
		&l->correction_of,
		&l->period_start,
		&l->period_end,
		&l->commitment_version,
		&l->commitment_profile,
	};

	memcpy(ret, all, sizeof(all));
}

static void
line_fini(struct rated_line *l)
{
	const char **texts[BORROWED_TEXTS];

	borrowed_texts(l, texts);
	for (size_t i = 0; i < BORROWED_TEXTS; i++) {
		union {
			const char *text;
			void *memory;
		} own = {.text = *texts[i]};

		mem_free(own.memory);
	}
	mem_free(l->invoice_id);
	mem_free(l->sku);
	mem_free(l->description);
	mem_free(l->days);
	mem_free(l->corrected_days);
}

void
corrections_fini(struct corrections *c)
{
	for (size_t i = 0; i < c->count; i++)
		line_fini(&c->lines[i]);
	mem_free(c->lines);
	*c = (struct corrections){0};
}

void
corrections_add(struct corrections *c, const struct rated_line *l)
{
	array_room(c->lines, c->count, c->cap);
	c->lines[c->count++] = *l;
}

void
corrections_add_copy(struct corrections *c, const struct rated_line *l)
{
	struct rated_line copy = *l;
	const char **texts[BORROWED_TEXTS];

	borrowed_texts(&copy, texts);
	for (size_t i = 0; i < BORROWED_TEXTS; i++)
		*texts[i] = *texts[i] != NULL ? mem_strdup(*texts[i]) : NULL;
	copy.sku = mem_strdup(l->sku);
	copy.description = mem_strdup(l->description);
	copy.invoice_id = l->invoice_id != NULL ? mem_strdup(l->invoice_id) : NULL;
	copy.meter = NULL;
	copy.days = copy.corrected_days = NULL;
	copy.day_count = copy.corrected_day_count = 0;
	corrections_add(c, &copy);
}

/* --- the difference --- */

#define SUBTRACT(field) !__builtin_sub_overflow(now->field, billed->field, &l->field)

/* Rules 2 and 4. Either may be NULL: nothing. */
static bool
subtract(const struct rated_line *now, const struct rated_line *billed, struct rated_line *l)
{
	static const struct rated_line nothing;

	now = now != NULL ? now : &nothing;
	billed = billed != NULL ? billed : &nothing;
	if (now->unrated) {
		l->list_cost = l->discount = l->rounding = l->billed = 0;
		return SUBTRACT(allocated_ngh) && SUBTRACT(used_ngh) && SUBTRACT(idle_ngh) &&
		       SUBTRACT(unmeasured_ngh) && SUBTRACT(ngh) && SUBTRACT(quantity) && SUBTRACT(own_quantity) &&
		       SUBTRACT(energy_mj);
	}
	return SUBTRACT(allocated_ngh) && SUBTRACT(used_ngh) && SUBTRACT(idle_ngh) && SUBTRACT(unmeasured_ngh) &&
	       SUBTRACT(ngh) && SUBTRACT(quantity) && SUBTRACT(own_quantity) && SUBTRACT(list_cost) &&
	       SUBTRACT(discount) && SUBTRACT(rounding) && SUBTRACT(billed) && SUBTRACT(energy_mj);
}

/* Rule 4. */
static bool
is_nothing(const struct rated_line *l)
{
	return l->allocated_ngh == 0 && l->used_ngh == 0 && l->idle_ngh == 0 && l->unmeasured_ngh == 0 && l->ngh == 0 &&
	       l->quantity == 0 && l->own_quantity == 0 && l->list_cost == 0 && l->discount == 0 && l->rounding == 0 &&
	       l->billed == 0 && l->energy_mj == 0;
}

/* Rule 6. */
static void
correction_id(const struct correction_input *in, const char *line_id, char ret[33])
{
	char text[256];
	uint8_t digest[SHA256_SIZE];
	int n = snprintf(text, sizeof(text), "correction\n%.40s\n%.40s\n%s", in->billed_in, in->month, line_id);

	sha256(text, (size_t)n, digest);
	hex_encode(digest, 16, ret);
}

/* Names and prices are those of the line now, or as billed where the line no longer exists. */
static void
describe(const struct correction_input *in, const struct rated_line *from, struct rated_line *l)
{
	const char **texts[BORROWED_TEXTS];

	l->kind = from->kind;
	l->priced = from->priced;
	l->currency_scale = from->currency_scale;
	l->unit_price = from->unit_price;
	l->discount_price = from->discount_price;
	l->own_price = from->own_price;
	l->own_differs = from->own_differs;
	l->own_unit = from->own_unit;
	l->unrated = from->unrated;
	l->discount_ratio = from->discount_ratio;
	l->cluster = from->cluster;
	l->tenant = in->tenant;
	l->cost_center = from->cost_center;
	l->workspace = from->workspace;
	l->gpu_model = from->gpu_model;
	l->mig_profile = from->mig_profile;
	l->sharing_mode = from->sharing_mode;
	l->klass = from->klass;
	l->counterparty = from->counterparty;
	l->category = from->category;
	l->unit = from->unit;
	l->price_version = from->price_version;
	l->commitment_version = from->commitment_version;
	l->commitment_profile = from->commitment_profile;
	l->currency = from->currency;
	l->correction_of = from->line_id;
	l->period_start = in->period_start;
	l->period_end = in->period_end;
	borrowed_texts(l, texts);
	for (size_t i = 0; i < BORROWED_TEXTS; i++)
		*texts[i] = *texts[i] != NULL ? mem_strdup(*texts[i]) : NULL;
	l->charge_type = "correction";
	l->sku = mem_strdup(from->sku);
	l->invoice_version = in->version;
	l->invoice_id = mem_printf("%s-%s-%d", in->tenant, in->month, (int)in->version);
	l->description = rating_correction_description(in->month, from->description);
	l->days = mem_alloc(sizeof(*l->days));
	l->day_count = 1;
	*l->days = (struct rated_day){.ngh = l->ngh,
	                              .used_ngh = l->used_ngh,
	                              .idle_ngh = l->idle_ngh,
	                              .unmeasured_ngh = l->unmeasured_ngh,
	                              .quantity = l->quantity,
	                              .own_quantity = l->own_quantity,
	                              .list_cost = l->list_cost,
	                              .discount = l->discount,
	                              .billed = l->billed,
	                              .energy_mj = l->energy_mj};
}

/* ---- rule 7 ---- */

static bool
subtract_day(const struct rated_day *now, const struct rated_day *billed, struct rated_day *l)
{
	return SUBTRACT(ngh) && SUBTRACT(used_ngh) && SUBTRACT(idle_ngh) && SUBTRACT(unmeasured_ngh) &&
	       SUBTRACT(quantity) && SUBTRACT(own_quantity) && SUBTRACT(on_demand_quantity) &&
	       SUBTRACT(reserved_cost) && SUBTRACT(list_cost) && SUBTRACT(discount) && SUBTRACT(billed) &&
	       SUBTRACT(amortised) && SUBTRACT(energy_mj);
}

static bool
day_is_nothing(const struct rated_day *d)
{
	return d->ngh == 0 && d->used_ngh == 0 && d->idle_ngh == 0 && d->unmeasured_ngh == 0 && d->quantity == 0 &&
	       d->own_quantity == 0 && d->on_demand_quantity == 0 && d->reserved_cost == 0 && d->list_cost == 0 &&
	       d->discount == 0 && d->billed == 0 && d->amortised == 0 && d->energy_mj == 0;
}

/* Both lists are in the order of their days. */
static bool
subtract_days(const struct rated_line *now, const struct rated_line *billed, struct rated_line *l)
{
	static const struct rated_day nothing;
	static const struct rated_line none;
	size_t i = 0, j = 0;

	now = now != NULL ? now : &none;
	billed = billed != NULL ? billed : &none;
	l->corrected_days = mem_array(now->day_count + billed->day_count, sizeof(*l->corrected_days));
	while (i < now->day_count || j < billed->day_count) {
		const struct rated_day *a = i < now->day_count ? &now->days[i] : &nothing;
		const struct rated_day *b = j < billed->day_count ? &billed->days[j] : &nothing;
		bool of_now = i < now->day_count && (j == billed->day_count || a->day <= b->day);
		bool of_billed = j < billed->day_count && (i == now->day_count || b->day <= a->day);
		struct rated_day *part = &l->corrected_days[l->corrected_day_count];

		*part = (struct rated_day){.day = of_now ? a->day : b->day};
		if (!subtract_day(of_now ? a : &nothing, of_billed ? b : &nothing, part))
			return false;
		if (now->unrated)
			part->list_cost = part->discount = part->billed = part->amortised = part->reserved_cost = 0;
		l->corrected_day_count += !day_is_nothing(part);
		i += of_now;
		j += of_billed;
	}
	return true;
}

/* Rule 7: the additional cost of a reservation that the corrected days do not have yet, over the lines from first on of the same reservation as line `any`. */
static void
settle_reservation(struct corrections *c, size_t first, size_t any)
{
	struct rated_day *to = NULL;
	int128 left = 0;

	for (size_t i = first; i < c->count; i++) {
		struct rated_line *l = &c->lines[i];

		if (!line_is_of_reservation(l) || !line_is_of_same_reservation(l, &c->lines[any]))
			continue;
		for (size_t k = 0; k < l->corrected_day_count; k++) {
			left += (l->kind == CHARGE_COMMITMENT ? l->corrected_days[k].billed : 0) -
			        l->corrected_days[k].amortised;
			if (to == NULL && l->kind != CHARGE_COMMITMENT)
				to = &l->corrected_days[k];
		}
	}
	if (to == NULL && c->lines[any].corrected_day_count > 0)
		to = c->lines[any].corrected_days;
	if (to != NULL)
		to->amortised += left;
}

static void
settle_reservations(struct corrections *c, size_t first)
{
	for (size_t i = first; i < c->count; i++) {
		bool seen = !line_is_of_reservation(&c->lines[i]);

		for (size_t k = first; k < i && !seen; k++)
			seen = line_is_of_reservation(&c->lines[k]) &&
			       line_is_of_same_reservation(&c->lines[k], &c->lines[i]);
		if (!seen)
			settle_reservation(c, first, i);
	}
}

#define P(kind, name) RECORD_FIELD(kind, struct rated_day, name)
static const struct record_field part_fields[] = {P(I32, day),
                                                  P(I128, ngh),
                                                  P(I128, used_ngh),
                                                  P(I128, idle_ngh),
                                                  P(I128, unmeasured_ngh),
                                                  P(I128, quantity),
                                                  P(I128, own_quantity),
                                                  P(I128, list_cost),
                                                  P(I128, discount),
                                                  P(I128, billed),
                                                  P(I128, amortised),
                                                  P(I128, energy_mj),
                                                  P(I128, on_demand_quantity),
                                                  P(I128, reserved_cost)};
static const struct record_type part_type = {'D', sizeof(struct rated_day), part_fields, ARRAY_LEN(part_fields),
                                             .later = 2};

void
correction_days_write(const struct rated_line *l, struct buf *out)
{
	for (size_t i = 0; i < l->corrected_day_count; i++)
		record_write(&part_type, &l->corrected_days[i], out);
}

bool
correction_days_read(const char *text, struct rated_day **ret, size_t *ret_count, struct err *err)
{
	in_place(records) struct records r = {0};
	struct rated_day *parts;

	records_init(&r, &part_type, 1);
	if (!records_read(&r, text, strlen(text), "the days of a correction", NULL, err))
		return false;
	parts = mem_array(r.lists[0].count + 1, sizeof(*parts));
	if (r.lists[0].count > 0)
		memcpy(parts, r.lists[0].at, r.lists[0].count * sizeof(*parts));
	*ret_count = r.lists[0].count;
	*ret = parts;
	return true;
}

static bool
correct(const struct correction_input *in, const struct rated_line *now, const struct rated_line *billed,
        struct corrections *c, struct err *err)
{
	const struct rated_line *from = now != NULL ? now : billed;
	struct rated_line l = {0};

	if (!subtract(now, billed, &l))
		return err_set(err, ERR_INVALID, "line %s of %s: the difference to what was billed is too large",
		               from->line_id, in->month);
	if (is_nothing(&l))
		return true;
	correction_id(in, from->line_id, l.line_id);
	describe(in, from, &l);
	if (in->by_day && !subtract_days(now, billed, &l)) {
		line_fini(&l);
		return err_set(err, ERR_INVALID, "line %s of %s: the difference to what was billed is too large",
		               from->line_id, in->month);
	}
	corrections_add(c, &l);
	return true;
}

static int
by_id(const void *a, const void *b)
{
	const struct rated_line *const *x = a, *const *y = b;

	return strcmp((*x)->line_id, (*y)->line_id);
}

static const struct rated_line **
sorted_by_id(const struct rated_line *lines, size_t n)
{
	const struct rated_line **at = mem_array(n, sizeof(*at));

	for (size_t i = 0; i < n; i++)
		at[i] = &lines[i];
	if (n > 0)
		qsort(at, n, sizeof(*at), by_id);
	return at;
}

bool
correction_run(const struct correction_input *in, struct corrections *c, struct err *err)
{
	size_t now_count = in->now != NULL ? in->now->count : 0, i = 0, j = 0, first = c->count;
	const struct rated_line **now = sorted_by_id(in->now != NULL ? in->now->lines : NULL, now_count);
	const struct rated_line **billed = sorted_by_id(in->billed, in->billed_count);
	bool ok = true;

	while (ok && (i < now_count || j < in->billed_count)) {
		int order = i == now_count ? 1 : j == in->billed_count ? -1 : by_id(&now[i], &billed[j]);

		ok = correct(in, order <= 0 ? now[i] : NULL, order >= 0 ? billed[j] : NULL, c, err);
		i += order <= 0;
		j += order >= 0;
	}
	mem_free(now);
	mem_free(billed);
	if (in->by_day)
		settle_reservations(c, first);
	return ok;
}

/* --- as a report wants them --- */

static int
by_tenant(const void *a, const void *b)
{
	const struct rated_line *x = a, *y = b;
	const char *const xs[] = {x->tenant,        x->period_start, x->workspace,    x->sku,          x->klass,
	                          x->price_version, x->cluster,      x->sharing_mode, x->correction_of};
	const char *const ys[] = {y->tenant,        y->period_start, y->workspace,    y->sku,          y->klass,
	                          y->price_version, y->cluster,      y->sharing_mode, y->correction_of};

	return compare_texts(xs, ys, ARRAY_LEN(xs));
}

void
corrections_sort(struct corrections *c)
{
	if (c->count > 1)
		qsort(c->lines, c->count, sizeof(*c->lines), by_tenant);
}

size_t
corrections_of(const struct corrections *c, const char *tenant, const struct rated_line **ret)
{
	size_t i = 0, n = 0;

	while (i < c->count && strcmp(c->lines[i].tenant, tenant) < 0)
		i++;
	*ret = c->lines + i;
	while (i + n < c->count && strcmp(c->lines[i + n].tenant, tenant) == 0)
		n++;
	return n;
}

void
rated_view_make(struct rated_view *v, const struct rated *r, const struct rated_line *corrections, size_t count)
{
	size_t own = r != NULL ? r->count : 0, i = 0, j = 0;

	v->rated.lines = mem_array(own + count, sizeof(*v->rated.lines));
	v->rated.count = own + count;
	while (i < own || j < count) {
		bool line = j == count || (i < own && strcmp(r->lines[i].tenant, corrections[j].tenant) <= 0);

		v->rated.lines[i + j] = line ? r->lines[i] : corrections[j];
		i += line;
		j += !line;
	}
}

void
rated_view_fini(struct rated_view *v)
{
	mem_free(v->rated.lines);
	v->rated = (struct rated){0};
}

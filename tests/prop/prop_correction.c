/* tests/prop/prop_correction.c - what holds for corrections of closed months, whatever has changed since, over two months of them. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/rating/correction.h"
#include "tests/support/harness/prop.h"

#define MAX_ROWS 10u
#define STATES 3u /* of October: as it was billed, as November found it, as December did */
#define PRICES 4u

static const char *const tenants[] = {"acme", "globex"};
static const char *const workspaces[] = {"training", "inference"};
static const char *const currencies[] = {"EUR", "JPY", "KWD"};
static const char *const models[] = {"H100-80GB", "A100-80GB"};
static const enum charge_kind kinds[] = {CHARGE_USAGE, CHARGE_COMMITMENT, CHARGE_UNDELIVERED, CHARGE_COVERED,
                                         CHARGE_METER};
static const char *const billed_in[STATES] = {"2026-10", "2026-11", "2026-12"};

struct history {
	struct usage_day rows[STATES][MAX_ROWS];
	size_t count[STATES];
	int128 prices[PRICES];
	int64_t discount_ratio;
	const char *currency;
};

/* ---- cases ---- */

static struct usage_day
draw_row(struct prop_source *s)
{
	enum charge_kind kind = kinds[prop_index(s, ARRAY_LEN(kinds))];
	bool meter = kind == CHARGE_METER, held = kind == CHARGE_USAGE || kind == CHARGE_COVERED;
	struct usage_day d = {.day = (int32_t)prop_index(s, 3),
	                      .kind = kind,
	                      .cluster = "demo",
	                      .tenant = tenants[prop_index(s, ARRAY_LEN(tenants))],
	                      .cost_center = "",
	                      .workspace = workspaces[prop_index(s, ARRAY_LEN(workspaces))],
	                      .gpu_model = meter ? "" : models[prop_index(s, ARRAY_LEN(models))],
	                      .mig_profile = "",
	                      .sharing_mode = meter ? "" : "exclusive",
	                      .klass = meter                  ? ""
	                               : kind == CHARGE_USAGE ? "on-demand"
	                                                      : "reserved",
	                      .instance_units = 5040};
	int128 amount = (int128)prop_u64(s, UINT64_C(5040) * 1000) * (int128)prop_u64(s, UINT64_C(86400000000));

	if (meter) {
		d.meter = "storage";
		d.category = "storage";
		d.unit = "GB-hour";
		d.meter_sku = "nvme";
		d.quantity = (int128)prop_u64(s, UINT64_C(1) << 40);
	} else if (held) {
		d.used_unit_ns = amount;
		d.idle_unit_ns = (int128)prop_u64(s, UINT64_C(1) << 50);
		d.energy_mj = (int128)prop_u64(s, UINT64_C(1) << 40);
	} else {
		d.unit_ns = amount;
	}
	return d;
}

/* Of each row: it stays, is another one, or is no more; then some that came late. */
static void
change(struct prop_source *s, const struct usage_day *from, size_t n, struct usage_day *to, size_t *ret_count)
{
	size_t count = 0, more;

	for (size_t i = 0; i < n; i++)
		switch (prop_index(s, 4)) {
		case 0:
		case 1: to[count++] = from[i]; break;
		case 2: to[count++] = draw_row(s); break;
		default: break;
		}
	for (more = prop_index(s, 3); more > 0 && count < MAX_ROWS; more--)
		to[count++] = draw_row(s);
	*ret_count = count;
}

static void
generate(struct prop_source *s, void *c)
{
	struct history *h = c;

	h->currency = currencies[prop_index(s, ARRAY_LEN(currencies))];
	h->discount_ratio = prop_i64(s, 0, 1000000000);
	for (size_t i = 0; i < PRICES; i++)
		h->prices[i] = (int128)prop_u64(s, UINT64_C(9999999999999));
	h->count[0] = prop_index(s, MAX_ROWS + 1);
	for (size_t i = 0; i < h->count[0]; i++)
		h->rows[0][i] = draw_row(s);
	for (size_t i = 1; i < STATES; i++)
		change(s, h->rows[i - 1], h->count[i - 1], h->rows[i], &h->count[i]);
}

static void
describe(const void *c, struct buf *out)
{
	const struct history *h = c;
	char text[2][DECIMAL_TEXT_SIZE];

	buf_printf(out, "in %s, discount %lld", h->currency, (long long)h->discount_ratio);
	for (size_t i = 0; i < PRICES; i++)
		buf_printf(out, " %s", decimal_format(h->prices[i], PRICE_SCALE, 0, text[0]));
	for (size_t i = 0; i < STATES; i++)
		for (size_t k = 0; k < h->count[i]; k++) {
			const struct usage_day *d = &h->rows[i][k];

			buf_printf(out, "\n#     %s: day %d kind %d %s/%s %s: %s, %s", billed_in[i], d->day,
			           (int)d->kind, d->tenant, d->workspace, d->gpu_model,
			           decimal_format(d->used_unit_ns + d->unit_ns, 0, 0, text[0]),
			           decimal_format(d->quantity, 0, 0, text[1]));
		}
}

/* ---- a month as it is at some time ---- */

struct rating {
	struct rating_item items[PRICES];
	struct rating_discount discount;
	struct rating_book book;
	struct usage_day rows[MAX_ROWS];
	struct rated *rated;
};

static void
rating_fini(struct rating *r)
{
	rated_free(r->rated);
}

/* Of one tenant, as the store does it. NULL in rated: it has nothing. */
static bool
rate(const struct history *h, size_t state, const char *tenant, struct rating *r, struct buf *why)
{
	static const struct rating_item selectors[PRICES] = {{.sku = "", .klass = "on-demand"},
	                                                     {.sku = "", .klass = "reserved"},
	                                                     {.sku = "", .gpu_model = "A100-80GB"},
	                                                     {.sku = "", .meter = "storage"}};
	struct rating_input in = {.period_start = "2026-10-01",
	                          .period_end = "2026-11-01",
	                          .period = "2026-10",
	                          .period_status = "closed",
	                          .currency = h->currency,
	                          .invoice_version = 1,
	                          .books = &r->book,
	                          .book_count = 1,
	                          .days = r->rows};
	struct err err = {0};

	for (size_t i = 0; i < PRICES; i++) {
		r->items[i] = selectors[i];
		r->items[i].price = h->prices[i];
	}
	r->discount = (struct rating_discount){.tenant = "globex", .ratio = h->discount_ratio};
	r->book = (struct rating_book){.version = "v1",
	                               .currency = h->currency,
	                               .items = r->items,
	                               .item_count = PRICES,
	                               .discounts = &r->discount,
	                               .discount_count = 1,
	                               .platform_cost = -1};
	for (size_t i = 0; i < h->count[state]; i++)
		if (strcmp(h->rows[state][i].tenant, tenant) == 0)
			r->rows[in.day_count++] = h->rows[state][i];
	if (in.day_count == 0 || rating_run(&in, &r->rated, &err))
		return true;
	buf_str(why, err.text);
	return false;
}

/* ---- what was billed so far ---- */

struct billed {
	struct rated_line at[STATES * MAX_ROWS * 2];
	size_t count;
};

static struct rated_line *
billed_line(struct billed *b, const char *line_id)
{
	for (size_t i = 0; i < b->count; i++)
		if (strcmp(b->at[i].line_id, line_id) == 0)
			return &b->at[i];
	return NULL;
}

static void
add_amounts(struct rated_line *to, const struct rated_line *l)
{
	to->allocated_ngh += l->allocated_ngh;
	to->used_ngh += l->used_ngh;
	to->idle_ngh += l->idle_ngh;
	to->unmeasured_ngh += l->unmeasured_ngh;
	to->ngh += l->ngh;
	to->quantity += l->quantity;
	to->list_cost += l->list_cost;
	to->discount += l->discount;
	to->rounding += l->rounding;
	to->billed += l->billed;
	to->energy_mj += l->energy_mj;
}

static bool
same_amounts(const struct rated_line *a, const struct rated_line *b)
{
	return a->allocated_ngh == b->allocated_ngh && a->used_ngh == b->used_ngh && a->idle_ngh == b->idle_ngh &&
	       a->unmeasured_ngh == b->unmeasured_ngh && a->ngh == b->ngh && a->quantity == b->quantity &&
	       a->list_cost == b->list_cost && a->discount == b->discount && a->rounding == b->rounding &&
	       a->billed == b->billed && a->energy_mj == b->energy_mj;
}

/* The first document is the month itself; a correction goes to the line that it names. */
static void
bill(struct billed *b, const struct rated_line *l)
{
	const char *line_id = l->correction_of != NULL ? l->correction_of : l->line_id;
	struct rated_line *to = billed_line(b, line_id);

	if (to == NULL) {
		to = &b->at[b->count++];
		*to = *l;
		memset(to->line_id, 0, sizeof(to->line_id));
		memcpy(to->line_id, line_id, strnlen(line_id, sizeof(to->line_id) - 1));
		to->correction_of = NULL;
		return;
	}
	add_amounts(to, l);
}

/* ---- what holds ---- */

static bool
corrected_lines_are(struct billed *b, const struct rated *now, struct buf *why)
{
	static const struct rated_line nothing;
	int128 billed = 0, due = 0;

	for (size_t i = 0; i < b->count; i++) {
		const struct rated_line *is = &nothing;

		for (size_t k = 0; now != NULL && k < now->count; k++)
			if (strcmp(now->lines[k].line_id, b->at[i].line_id) == 0)
				is = &now->lines[k];
		billed += b->at[i].billed;
		if (!same_amounts(&b->at[i], is)) {
			buf_printf(why, "line %s: billed and corrected is not what it is now", b->at[i].line_id);
			return false;
		}
	}
	for (size_t k = 0; now != NULL && k < now->count; k++) {
		due += now->lines[k].billed;
		if (billed_line(b, now->lines[k].line_id) == NULL && !same_amounts(&now->lines[k], &nothing)) {
			buf_printf(why, "line %s was never billed", now->lines[k].line_id);
			return false;
		}
	}
	if (billed != due)
		buf_str(why, "the corrected total is not the total of the month computed again");
	return billed == due;
}

/* Rule 2 of correction.h, and what a reader of the document needs. */
static bool
is_sound(const struct rated_line *l, struct billed *before, const struct rated *now, const char *tenant, int version,
         struct buf *why)
{
	static const struct rated_line nothing;
	char invoice[64];
	bool named = billed_line(before, l->correction_of) != NULL;

	for (size_t k = 0; now != NULL && k < now->count; k++)
		named |= strcmp(now->lines[k].line_id, l->correction_of) == 0;
	snprintf(invoice, sizeof(invoice), "%s-2026-10-%d", tenant, version);
	if (named && strcmp(l->charge_type, "correction") == 0 && strcmp(l->invoice_id, invoice) == 0 &&
	    l->invoice_version == version && strcmp(l->period_start, "2026-10-01") == 0 && !same_amounts(l, &nothing) &&
	    strcmp(l->line_id, l->correction_of) != 0 && l->day_count == 1 && l->days->billed == l->billed &&
	    l->list_cost - l->discount + l->rounding == l->billed * pow10_i128(COST_SCALE - l->currency_scale))
		return true;
	buf_printf(why, "correction %s of %s on %s: not sound", l->line_id, l->correction_of, l->invoice_id);
	return false;
}

static bool
correct(const struct history *h, size_t state, const char *tenant, struct billed *b, struct corrections *all,
        struct buf *why)
{
	in_place(rating) struct rating r = {0};
	size_t from = all->count;
	struct billed before = *b;
	struct err err = {0};

	if (!rate(h, state, tenant, &r, why))
		return false;
	if (!correction_run(&(struct correction_input){.tenant = tenant,
	                                               .month = "2026-10",
	                                               .period_start = "2026-10-01",
	                                               .period_end = "2026-11-01",
	                                               .billed_in = billed_in[state],
	                                               .version = (int32_t)state + 1,
	                                               .now = r.rated,
	                                               .billed = before.at,
	                                               .billed_count = before.count},
	                    all, &err)) {
		buf_str(why, err.text);
		return false;
	}
	for (size_t i = from; i < all->count; i++) {
		if (!is_sound(&all->lines[i], &before, r.rated, tenant, (int)state + 1, why))
			return false;
		for (size_t k = 0; k < i; k++)
			if (strcmp(all->lines[k].line_id, all->lines[i].line_id) == 0) {
				buf_printf(why, "two corrections have the id %s", all->lines[i].line_id);
				return false;
			}
		bill(b, &all->lines[i]);
	}
	return corrected_lines_are(b, r.rated, why);
}

static bool
corrections_make_the_month_what_it_is(const void *c, struct buf *why)
{
	const struct history *h = c;

	for (size_t t = 0; t < ARRAY_LEN(tenants); t++) {
		in_place(rating) struct rating first = {0};
		in_place(corrections) struct corrections all = {0};
		struct billed b = {0};

		if (!rate(h, 0, tenants[t], &first, why))
			return false;
		for (size_t i = 0; first.rated != NULL && i < first.rated->count; i++)
			bill(&b, &first.rated->lines[i]);
		for (size_t state = 1; state < STATES; state++)
			if (!correct(h, state, tenants[t], &b, &all, why))
				return false;
	}
	return true;
}

/* What was found wrong and then set right is given back to the cent: the month stands as it was billed. */
static bool
a_change_that_is_taken_back_leaves_nothing(const void *c, struct buf *why)
{
	struct history h = *(const struct history *)c;

	memcpy(h.rows[2], h.rows[0], sizeof(h.rows[0]));
	h.count[2] = h.count[0];
	for (size_t t = 0; t < ARRAY_LEN(tenants); t++) {
		in_place(rating) struct rating first = {0};
		in_place(corrections) struct corrections all = {0};
		struct billed b = {0};
		int128 sum = 0;

		if (!rate(&h, 0, tenants[t], &first, why))
			return false;
		for (size_t i = 0; first.rated != NULL && i < first.rated->count; i++)
			bill(&b, &first.rated->lines[i]);
		if (!correct(&h, 1, tenants[t], &b, &all, why) || !correct(&h, 2, tenants[t], &b, &all, why))
			return false;
		for (size_t i = 0; i < all.count; i++)
			sum += all.lines[i].billed;
		if (sum != 0) {
			buf_printf(why, "%s: the corrections do not cancel", tenants[t]);
			return false;
		}
	}
	return true;
}

static bool
a_month_that_is_as_it_was_has_no_correction(const void *c, struct buf *why)
{
	const struct history *h = c;

	for (size_t t = 0; t < ARRAY_LEN(tenants); t++) {
		in_place(rating) struct rating r = {0};
		in_place(corrections) struct corrections all = {0};
		struct billed b = {0};

		if (!rate(h, 0, tenants[t], &r, why))
			return false;
		for (size_t i = 0; r.rated != NULL && i < r.rated->count; i++)
			bill(&b, &r.rated->lines[i]);
		if (!correct(h, 0, tenants[t], &b, &all, why))
			return false;
		if (all.count > 0) {
			buf_printf(why, "%s: %zu corrections of nothing", tenants[t], all.count);
			return false;
		}
	}
	return true;
}

#define PROPERTY(name_, holds_)                                                                           \
	{                                                                                                 \
		.name = (name_), .size = sizeof(struct history), .generate = generate, .holds = (holds_), \
		.describe = describe                                                                      \
	}

int
main(void)
{
	static const struct prop_test tests[] = {
		PROPERTY("invoice and corrections of two months are the month computed again, line by line",
	                 corrections_make_the_month_what_it_is),
		PROPERTY("a change that is taken back leaves nothing", a_change_that_is_taken_back_leaves_nothing),
		PROPERTY("a month that is as it was has no correction", a_month_that_is_as_it_was_has_no_correction),
	};

	return prop_main("prop_correction", tests, ARRAY_LEN(tests));
}

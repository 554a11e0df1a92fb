/* tests/prop/prop_reconcile.c - what holds for every reconciliation: the equation closes to the cent at every level, the hours are those that
 * were rated, and the page comes to the total of the report.
 *
 * A month is made as the store makes it: pools' hours go through core/classes, what nobody held of shared nodes through core/shared_cost, the
 * rows through core/rating. */
#include <string.h>

#include "aggregator/core/rating/charge_classes.h"
#include "aggregator/core/reports/reconcile.h"
#include "aggregator/core/rating/shared_cost.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "tests/support/harness/prop.h"

#define HOURS_MAX 6u
#define WORKSPACES 4u /* two of each tenant */
#define TENANTS 2u
#define BOOKS 2u
#define ITEMS_MAX 7u
#define DISCOUNTS_MAX 3u
#define ROWS_MAX 256u
#define UNIT_HOUR ((int128)UNITS_PER_GPU * NS_PER_HOUR)

static const char *const tenants[] = {"acme", "globex"};
static const char *const clusters[] = {"east", "west"};
static const char *const models[] = {"H100-80GB", "A100-80GB"};
static const char *const currencies[] = {"EUR", "JPY", "KWD"};
static const char *const classes_of[] = {"on-demand", "borrowed", "reserved", "dedicated"};
static const char *const versions[BOOKS] = {"v1", "v2"};

/* An hour of a pool, by how much of it everybody has: fractions of what is left, in 1/1000. */
struct pool_hour {
	size_t cluster, model, owner; /* owner 0: shared */
	int32_t day;
	int64_t book; /* -1: none in force */
	uint64_t gpus, held[WORKSPACES], used[WORKSPACES], reserved[WORKSPACES], lend[WORKSPACES], stranded, down,
		unknown, odd;
	bool mig[WORKSPACES];
};

struct month {
	struct pool_hour hours[HOURS_MAX];
	size_t count;
	struct rating_item items[BOOKS][ITEMS_MAX];
	struct rating_discount discounts[BOOKS][DISCOUNTS_MAX];
	struct rating_weight weights[BOOKS][TENANTS];
	struct rating_book books[BOOKS];
};

static const char *
maybe(struct prop_source *s, const char *const *words, size_t n)
{
	size_t i = prop_index(s, n + 1);

	return i == 0 ? NULL : words[i - 1];
}

static void
draw_hour(struct prop_source *s, struct pool_hour *h)
{
	*h = (struct pool_hour){.cluster = prop_index(s, ARRAY_LEN(clusters)),
	                        .model = prop_index(s, ARRAY_LEN(models)),
	                        .owner = prop_index(s, TENANTS + 1),
	                        .day = (int32_t)prop_index(s, 3),
	                        .book = (int64_t)prop_index(s, BOOKS + 1) - 1,
	                        .gpus = prop_u64(s, 16),
	                        .stranded = prop_u64(s, 1000),
	                        .down = prop_u64(s, 8),
	                        .unknown = prop_u64(s, 8),
	                        .odd = prop_u64(s, 1000000007)};
	for (size_t w = 0; w < WORKSPACES; w++) {
		h->held[w] = prop_u64(s, 1000);
		h->used[w] = prop_u64(s, 1000);
		h->reserved[w] = prop_u64(s, 8);
		h->lend[w] = prop_u64(s, 8);
		h->mig[w] = prop_bool(s);
	}
}

static void
draw_book(struct prop_source *s, struct month *m, size_t b)
{
	struct rating_book *k = &m->books[b];

	*k = (struct rating_book){.version = versions[b],
	                          .currency = currencies[prop_index(s, ARRAY_LEN(currencies))],
	                          .item_count = prop_index(s, ITEMS_MAX + 1),
	                          .discount_count = prop_index(s, DISCOUNTS_MAX + 1),
	                          .lender_ratio = (int64_t)prop_u64(s, 1000000000),
	                          .shared_idle = (enum shared_method)prop_index(s, SHARED_WEIGHTS + 1),
	                          .weight_count = TENANTS,
	                          .platform_cost = prop_i64(s, -1, INT64_C(1000000000000))};
	for (size_t i = 0; i < k->item_count; i++) {
		struct rating_item *it = &m->items[b][i];

		*it = (struct rating_item){.sku = "", .price = (int128)prop_u64(s, UINT64_C(9999999999999))};
		it->tenant = maybe(s, tenants, TENANTS);
		it->gpu_model = maybe(s, models, ARRAY_LEN(models));
		it->klass = maybe(s, classes_of, ARRAY_LEN(classes_of));
		it->mig_profile = prop_index(s, 4) == 3 ? "1g.10gb" : NULL;
		it->basis_used = (it->klass == classes_of[0] || it->klass == classes_of[1]) && prop_bool(s);
	}
	for (size_t i = 0; i < k->discount_count; i++)
		m->discounts[b][i] = (struct rating_discount){maybe(s, tenants, TENANTS), prop_bool(s) ? "gpu" : NULL,
		                                              maybe(s, classes_of, ARRAY_LEN(classes_of)),
		                                              (int64_t)prop_u64(s, 1000000000)};
	for (size_t i = 0; i < TENANTS; i++)
		m->weights[b][i] = (struct rating_weight){tenants[i], 1 + (int64_t)prop_u64(s, 9)};
}

static void
generate(struct prop_source *s, void *c)
{
	struct month *m = c;

	m->count = prop_index(s, HOURS_MAX + 1);
	for (size_t i = 0; i < m->count; i++)
		draw_hour(s, &m->hours[i]);
	for (size_t b = 0; b < BOOKS; b++)
		draw_book(s, m, b);
}

static void
describe(const void *c, struct buf *out)
{
	const struct month *m = c;
	char text[DECIMAL_TEXT_SIZE];

	for (size_t i = 0; i < m->count; i++) {
		const struct pool_hour *h = &m->hours[i];

		buf_printf(out,
		           "\n#     %s %s owner %zu day %d book %d: %d GPUs, stranded %d, down %d, unknown %d, odd %d;",
		           clusters[h->cluster], models[h->model], h->owner, h->day, (int)h->book, (int)h->gpus,
		           (int)h->stranded, (int)h->down, (int)h->unknown, (int)h->odd);
		for (size_t w = 0; w < WORKSPACES; w++)
			buf_printf(out, " %zu: held %d used %d reserved %d lends %d%s", w, (int)h->held[w],
			           (int)h->used[w], (int)h->reserved[w], (int)h->lend[w], h->mig[w] ? " mig" : "");
	}
	for (size_t b = 0; b < BOOKS; b++) {
		buf_printf(out, "\n#     book %zu in %s, lender ratio %d, shared %d:", b, m->books[b].currency,
		           (int)m->books[b].lender_ratio, (int)m->books[b].shared_idle);
		for (size_t i = 0; i < m->books[b].item_count; i++) {
			const struct rating_item *it = &m->items[b][i];

			buf_printf(out, " [%s %s %s %s%s %s]", it->tenant ? it->tenant : "all",
			           it->gpu_model ? it->gpu_model : "any", it->klass ? it->klass : "any",
			           it->mig_profile ? it->mig_profile : "", it->basis_used ? " used" : "",
			           decimal_format(it->price, PRICE_SCALE, 0, text));
		}
	}
}

/* ---- a month as the store makes it ---- */

struct made {
	struct rating_book books[BOOKS];
	struct usage_day rows[TENANTS][ROWS_MAX];
	size_t count[TENANTS];
	struct reconcile_pool pools[HOURS_MAX];
	struct rating_input in;
	int128 billed[ARRAY_LEN(currencies)];
	struct reconciliation *r;
};

static void
made_free(struct made *d)
{
	if (d == NULL)
		return;
	reconciliation_free(d->r);
	mem_free(d);
}
DEFINE_OWNED(made, struct made)

static void
add(struct made *d, size_t tenant, const struct usage_day *row)
{
	ASSERT(d->count[tenant] < ROWS_MAX);
	d->rows[tenant][d->count[tenant]++] = *row;
}

static struct usage_day
row_of(const struct pool_hour *h, size_t tenant, const char *workspace)
{
	return (struct usage_day){.day = h->day,
	                          .cluster = clusters[h->cluster],
	                          .tenant = tenants[tenant],
	                          .cost_center = "",
	                          .workspace = workspace,
	                          .gpu_model = models[h->model],
	                          .mig_profile = "",
	                          .sharing_mode = "",
	                          .klass = "",
	                          .instance_units = UNITS_PER_GPU,
	                          .price_book = h->book};
}

static struct usage_day
held_row(const struct pool_hour *h, size_t workspace, size_t of, const struct class_amounts *a)
{
	static const char *const names[] = {"w0", "w1", "w2", "w3"};
	struct usage_day d = row_of(h, workspace / 2, names[workspace]);

	d.mig_profile = h->mig[of] ? "1g.10gb" : "";
	d.sharing_mode = h->mig[of] ? "mig" : "exclusive";
	d.instance_units = h->mig[of] ? 675 : UNITS_PER_GPU;
	d.used_unit_ns = a->used;
	d.idle_unit_ns = a->idle;
	d.unmeasured_unit_ns = a->unmeasured;
	d.over_unit_ns = a->over;
	return d;
}

static int128
held_of(const struct class_amounts *a)
{
	return a->used + a->idle + a->unmeasured;
}

/* What each workspace holds: its part of what is left of the capacity. */
static int128
fill_uses(const struct pool_hour *h, int128 capacity, struct class_use uses[WORKSPACES])
{
	int128 left = capacity;

	for (size_t w = 0; w < WORKSPACES; w++) {
		int128 held = left * (int128)h->held[w] / 1000, used = held * (int128)h->used[w] / 1000;

		uses[w] = (struct class_use){.workspace = (int64_t)w + 1,
		                             .instance_units = h->mig[w] ? 675 : UNITS_PER_GPU,
		                             .profile = h->mig[w] ? "1g.10gb" : "",
		                             .sharing = h->mig[w] ? 2 : 1,
		                             .amounts = {.used = used, .idle = held - used, .over = used / 3}};
		left -= held;
	}
	return left;
}

static void
add_held(struct made *d, const struct pool_hour *h, const struct classes *c, int64_t number)
{
	for (size_t w = 0; w < WORKSPACES; w++) {
		static const char *const names[CLASS_COUNT] = {"reserved", "on-demand", "borrowed"};

		for (size_t k = 0; k < CLASS_COUNT; k++) {
			struct usage_day row = held_row(h, w, w, &c->uses[w][k]);

			row.kind = k == CLASS_COVERED ? CHARGE_COVERED : CHARGE_USAGE;
			row.klass = names[k];
			row.reservation = k == CLASS_COVERED ? number + (int64_t)w : 0;
			if (held_of(&c->uses[w][k]) > 0)
				add(d, w / 2, &row);
		}
	}
	for (size_t i = 0; i < c->loan_count; i++) {
		struct usage_day row = held_row(h, c->loans[i].lender, c->loans[i].use, &c->loans[i].part);

		row.kind = CHARGE_LENT;
		row.klass = "reserved";
		row.counterparty = tenants[c->loans[i].use / 2];
		row.reservation = number + (int64_t)c->loans[i].lender;
		add(d, c->loans[i].lender / 2, &row);
	}
}

static void
add_reserved(struct made *d, const struct pool_hour *h, const struct class_right *rights, const struct classes *c,
             int64_t number)
{
	for (size_t w = 0; w < WORKSPACES; w++) {
		const struct {
			enum charge_kind kind;
			int128 amount;
		} parts[] = {{CHARGE_COMMITMENT, rights[w].reserved},
		             {CHARGE_UNUSED, c->rights[w].unused},
		             {CHARGE_UNDELIVERED, c->rights[w].undelivered}};

		for (size_t k = 0; k < ARRAY_LEN(parts); k++) {
			struct usage_day row = held_row(h, w, w, &(struct class_amounts){0});

			row.mig_profile = row.sharing_mode = "";
			row.instance_units = UNITS_PER_GPU;
			row.kind = parts[k].kind;
			row.klass = "reserved";
			row.unit_ns = parts[k].amount;
			row.reservation = number + (int64_t)w;
			if (row.unit_ns > 0)
				add(d, w / 2, &row);
		}
	}
}

/* What nobody held and nobody had reserved. */
static void
add_idle(struct made *d, const struct pool_hour *h, const struct reconcile_pool *p, const struct classes *c)
{
	struct shared_tenant parties[TENANTS] = {{tenants[0], "", 0}, {tenants[1], "", 0}};
	struct shared_pool pool = {h->day, h->book, clusters[h->cluster], models[h->model], 0};
	struct usage_day out[TENANTS];
	size_t n;

	if (h->owner > 0) {
		struct usage_day row = row_of(h, h->owner - 1, "");

		row.kind = CHARGE_DEDICATED;
		row.klass = "dedicated";
		row.unit_ns = p->unreserved_idle;
		add(d, h->owner - 1, &row);
		return;
	}
	if (h->book < 0)
		return;
	for (size_t w = 0; w < WORKSPACES; w++)
		for (size_t k = 0; k < CLASS_COUNT; k++)
			parties[w / 2].held_unit_ns += held_of(&c->uses[w][k]);
	pool.idle_unit_ns = p->stranded < p->unreserved_idle ? p->unreserved_idle - p->stranded : 0;
	n = shared_cost_rows(&d->books[h->book], &pool, parties, TENANTS, out);
	for (size_t i = 0; i < n; i++)
		add(d, strcmp(out[i].tenant, tenants[1]) == 0, &out[i]);
}

static bool
add_hour(struct made *d, const struct pool_hour *h, size_t index, struct err *err)
{
	struct reconcile_pool *p = &d->pools[index];
	int128 capacity = (int128)h->gpus * UNIT_HOUR + (h->gpus > 0 ? (int128)h->odd : 0), left;
	struct class_use uses[WORKSPACES];
	struct class_right rights[WORKSPACES];
	struct class_hour in = {capacity, uses, WORKSPACES, rights, WORKSPACES};
	owned(classes) struct classes *c = NULL;
	int64_t number = (int64_t)index * 16 + 1;

	left = fill_uses(h, capacity, uses);
	for (size_t w = 0; w < WORKSPACES; w++)
		rights[w] = (struct class_right){(int64_t)w + 1, (int128)h->reserved[w] * UNIT_HOUR,
		                                 (int128)h->lend[w] * UNIT_HOUR};
	if (!classes_of_hour(&in, &c, err))
		return false;
	*p = (struct reconcile_pool){.cluster = clusters[h->cluster],
	                             .gpu_model = models[h->model],
	                             .price_version = h->book < 0 ? NULL : versions[h->book],
	                             .owned = h->owner > 0,
	                             .unreserved_idle = c->unreserved_idle,
	                             .stranded = left * (int128)h->stranded / 1000,
	                             .down = (int128)h->down * UNIT_HOUR / 3,
	                             .unknown = (int128)h->unknown * UNIT_HOUR / 7};
	for (size_t w = 0; w < WORKSPACES; w++) {
		p->covered += held_of(&c->uses[w][CLASS_COVERED]);
		p->on_demand += held_of(&c->uses[w][CLASS_ON_DEMAND]);
		p->borrowed += held_of(&c->uses[w][CLASS_BORROWED]);
		p->unused += c->rights[w].unused;
	}
	add_held(d, h, c, number);
	add_reserved(d, h, rights, c, number);
	add_idle(d, h, p, c);
	return true;
}

static size_t
currency_at(const char *currency)
{
	size_t i = 0;

	while (strcmp(currencies[i], currency) != 0)
		i++;
	return i;
}

/* forget: the first row of somebody's use is lost on the way to reconciliation. */
static bool
reconcile_month(struct made *d, const struct month *m, bool forget, bool *ret_forgot, struct err *err)
{
	owned(reconcile) struct reconcile *r = reconcile_new(&d->in);

	for (size_t i = 0; i < m->count; i++)
		if (!reconcile_add_pool(r, &d->in, &d->pools[i], err))
			return false;
	for (size_t t = 0; t < TENANTS; t++) {
		owned(rated) struct rated *rated = NULL;

		d->in.days = d->rows[t];
		d->in.day_count = d->count[t];
		if (!rating_run(&d->in, &rated, err))
			return false;
		for (size_t i = 0; i < rated->count; i++)
			d->billed[currency_at(rated->lines[i].currency)] += rated->lines[i].billed;
		if (forget && !*ret_forgot && d->count[t] > 0 && d->rows[t][0].kind == CHARGE_USAGE) {
			d->in.days++;
			d->in.day_count--;
			*ret_forgot = true;
		}
		if (!reconcile_add_rated(r, &d->in, rated, err))
			return false;
	}
	return reconcile_end(&r, &d->r, err);
}

static bool
make(const struct month *m, bool forget, bool *ret_forgot, struct made **ret, struct buf *why)
{
	owned(made) struct made *d = mem_alloc(sizeof(*d));
	struct err err = {0};

	for (size_t b = 0; b < BOOKS; b++) {
		d->books[b] = m->books[b];
		d->books[b].items = m->items[b];
		d->books[b].discounts = m->discounts[b];
		d->books[b].weights = m->weights[b];
	}
	d->in = (struct rating_input){.period_start = "2026-03-01",
	                              .period_end = "2026-04-01",
	                              .period = "2026-03",
	                              .period_status = "open",
	                              .currency = "EUR",
	                              .invoice_version = 1,
	                              .books = d->books,
	                              .book_count = BOOKS};
	for (size_t i = 0; i < m->count; i++)
		if (!add_hour(d, &m->hours[i], i, &err)) {
			buf_str(why, err.text);
			return false;
		}
	if (!reconcile_month(d, m, forget, ret_forgot, &err)) {
		buf_str(why, err.text);
		return false;
	}
	*ret = take(d);
	return true;
}

/* ---- what holds ---- */

static bool
row_adds_up(const struct reconcile_row *row, struct buf *why)
{
	int128 terms = 0, hours = 0, sections = 0;

	for (size_t i = 0; i < RECONCILE_TERMS; i++)
		terms += row->terms[i];
	for (size_t i = 0; i < RECONCILE_HOURS; i++)
		hours += row->ngh[i];
	for (size_t i = 0; i < RECONCILE_SECTIONS; i++)
		sections += reconcile_section_sum(row, (enum reconcile_section)i);
	if (terms == row->value && sections == row->value && hours == row->capacity_ngh && !row->differs)
		return true;
	buf_printf(why, "%s %s %s: terms are %d off, sections %d, hours %d; %s", row->cluster, row->gpu_model,
	           row->currency, (int)(terms - row->value), (int)(sections - row->value),
	           (int)(hours - row->capacity_ngh), row->differs ? "hours differ" : "");
	return false;
}

/* Each cluster's row is the sum of its models', and the last one that of the clusters. */
static bool
levels_add_up(const struct reconciliation *r, struct buf *why)
{
	for (size_t k = 0; k < r->count; k++) {
		const struct reconcile_row *sum = &r->rows[k];
		int128 value = 0, hours = 0, terms[RECONCILE_TERMS] = {0};

		for (size_t i = 0; sum->level != LEVEL_MODEL && i < r->count; i++) {
			const struct reconcile_row *row = &r->rows[i];

			if (row->level + 1 != sum->level || strcmp(row->currency, sum->currency) != 0 ||
			    (sum->level == LEVEL_CLUSTER && strcmp(row->cluster, sum->cluster) != 0))
				continue;
			value += row->value;
			hours += row->capacity_ngh;
			for (size_t t = 0; t < RECONCILE_TERMS; t++)
				terms[t] += row->terms[t];
		}
		if (sum->level != LEVEL_MODEL && (value != sum->value || hours != sum->capacity_ngh ||
		                                  memcmp(terms, sum->terms, sizeof(terms)) != 0)) {
			buf_printf(why, "row %zu is not the sum of those below it", k);
			return false;
		}
	}
	return true;
}

/* Time in service x list price, from the pools alone. */
static bool
value_is_right(const struct month *m, const struct made *d, const struct reconcile_row *row, struct buf *why)
{
	int128 exact = 0, unit = pow10_i128(COST_SCALE - row->scale), off;

	for (size_t i = 0; i < m->count; i++) {
		const struct reconcile_pool *p = &d->pools[i];
		int64_t book = m->hours[i].book;
		struct usage_day ask = row_of(&m->hours[i], 0, "");
		struct rating_price price;

		if (book < 0 || strcmp(p->cluster, row->cluster) != 0 || strcmp(p->gpu_model, row->gpu_model) != 0 ||
		    strcmp(d->books[book].currency, row->currency) != 0)
			continue;
		ask.kind = CHARGE_USAGE;
		ask.tenant = "nobody";
		ask.klass = "on-demand";
		ask.sharing_mode = "exclusive";
		price = rating_price_of(&d->books[book], &ask);
		/* nano-hours, rounded down: a few of them are far less than a cent */
		exact += (price.item ? price.unit_price : 0) * ((p->on_demand + p->borrowed + p->covered + p->unused +
		                                                 p->unreserved_idle + p->down + p->unknown) /
		                                                ((int128)UNITS_PER_GPU * 3600));
	}
	off = row->value * unit - exact;
	if (off <= unit && off >= -unit)
		return true;
	buf_printf(why, "%s %s: the value is more than a cent off", row->cluster, row->gpu_model);
	return false;
}

static bool
equation_closes(const void *c, struct buf *why)
{
	const struct month *m = c;
	owned(made) struct made *d = NULL;
	bool forgot = false;

	if (!make(m, false, &forgot, &d, why))
		return false;
	for (size_t i = 0; i < d->r->count; i++)
		if (!row_adds_up(&d->r->rows[i], why) ||
		    (d->r->rows[i].level == LEVEL_MODEL && !value_is_right(m, d, &d->r->rows[i], why)))
			return false;
	for (size_t i = 0; i < d->r->total_count; i++) {
		const struct reconcile_total *t = &d->r->totals[i];
		int128 rows = 0;

		for (size_t k = 0; k < d->r->count; k++)
			if (d->r->rows[k].level == LEVEL_ALL && strcmp(d->r->rows[k].currency, t->currency) == 0)
				rows += reconcile_section_sum(&d->r->rows[k], SECTION_BILLED) +
				        reconcile_section_sum(&d->r->rows[k], SECTION_CREDITS);
		if (t->total != d->billed[currency_at(t->currency)] || t->capacity != rows || t->total != rows) {
			buf_printf(why, "%s: the page does not come to what is billed", t->currency);
			return false;
		}
	}
	return levels_add_up(d->r, why);
}

/* With one price for everything and no discount, other prices take nothing away. */
static bool
one_price_leaves_nothing(const void *c, struct buf *why)
{
	struct month m = *(const struct month *)c;
	owned(made) struct made *d = NULL;
	bool forgot = false;

	for (size_t b = 0; b < BOOKS; b++) {
		m.items[b][0] = (struct rating_item){.sku = "", .price = m.items[b][0].price};
		m.books[b].item_count = 1;
		m.books[b].discount_count = 0;
	}
	if (!make(&m, false, &forgot, &d, why))
		return false;
	for (size_t i = 0; i < d->r->count; i++)
		for (size_t t = TERM_ON_DEMAND_PRICES; d->r->rows[i].level == LEVEL_MODEL && t <= TERM_DISCOUNTS; t++) {
			int128 v = d->r->rows[i].terms[t];

			if (v > 1 || v < -1) {
				buf_printf(why, "%s of %s %s is %d", reconcile_terms[t].name, d->r->rows[i].cluster,
				           d->r->rows[i].gpu_model, (int)v);
				return false;
			}
		}
	return true;
}

static bool
lost_use_is_seen(const void *c, struct buf *why)
{
	owned(made) struct made *d = NULL;
	bool forgot = false, seen = false;

	if (!make(c, true, &forgot, &d, why))
		return false;
	for (size_t i = 0; i < d->r->count; i++)
		seen |= d->r->rows[i].differs;
	return seen == forgot;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"capacity at list price is billed, credited, unrecovered or taken by prices, to the cent, at every level",
	         sizeof(struct month), generate, equation_closes, describe, NULL},
		{"where everything has one price, nothing is lost to prices", sizeof(struct month), generate,
	         one_price_leaves_nothing, describe, NULL},
		{"use that was not rated is seen in the hours", sizeof(struct month), generate, lost_use_is_seen,
	         describe, NULL},
	};

	return prop_main("prop_reconcile", tests, ARRAY_LEN(tests));
}

/* tests/prop/prop_rating.c - what holds for every month, whatever was used and whatever it costs. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/reports/chargeback.h"
#include "tests/support/harness/prop.h"

#define MAX_ROWS 24u
#define MAX_PARTS 4u
#define BOOKS 2u
#define ITEMS 5u
#define NANO_GPU_HOUR INT64_C(18144000) /* unit-nanoseconds */
#define REPORT_MAX (1u << 20)

/* A month, a second order of its rows, and a way to cut each row into parts. */
struct month {
	struct usage_day rows[MAX_ROWS];
	size_t count;
	int128 prices[BOOKS][ITEMS];
	const char *currency;
	size_t swaps[MAX_ROWS];
	uint64_t cuts[MAX_ROWS][MAX_PARTS - 1]; /* in 1/1000 of what is left */
};

static const char *const tenants[] = {"acme", "globex", "initech"};
static const char *const centers[] = {"4711", "0815", ""};
static const char *const workspaces[] = {"training", "inference"};
static const char *const currencies[] = {"EUR", "JPY", "KWD"};
static const char *const classes[] = {"on-demand", "borrowed"};
static const struct {
	const char *model, *profile, *mode;
	int64_t units;
} kinds[] = {
	{"H100-80GB", "", "exclusive", 5040},  {"A100-80GB", "1g.10gb", "mig", 675},
	{"A100-80GB", "3g.40gb", "mig", 2340}, {"L40S-48GB", "", "timeslice", 5040},
	{"L40S-48GB", "", "exclusive", 5040},
};

/* Most amounts are those of devices held for a while; some are odd, to meet every remainder. */
static int128
draw_unit_ns(struct prop_source *s)
{
	return (int128)prop_u64(s, UINT64_C(5040) * 1000) * (int128)prop_u64(s, UINT64_C(86400000000));
}

static void
generate(struct prop_source *s, void *c)
{
	struct month *m = c;

	m->count = prop_index(s, MAX_ROWS + 1);
	m->currency = currencies[prop_index(s, ARRAY_LEN(currencies))];
	for (size_t b = 0; b < BOOKS; b++)
		for (size_t i = 0; i < ITEMS; i++)
			m->prices[b][i] = (int128)prop_u64(s, UINT64_C(9999999999999)); /* up to 9999.999999999 */
	for (size_t i = 0; i < m->count; i++) {
		size_t kind = prop_index(s, ARRAY_LEN(kinds)), tenant = prop_index(s, ARRAY_LEN(tenants));

		m->rows[i] = (struct usage_day){
			.day = (int32_t)prop_index(s, 3),
			.cluster = "demo",
			.tenant = tenants[tenant],
			.cost_center = centers[tenant],
			.workspace = workspaces[prop_index(s, ARRAY_LEN(workspaces))],
			.gpu_model = kinds[kind].model,
			.mig_profile = kinds[kind].profile,
			.sharing_mode = kinds[kind].mode,
			.klass = classes[prop_index(s, ARRAY_LEN(classes))],
			.instance_units = kinds[kind].units,
			.price_book = (int64_t)prop_index(s, BOOKS + 1) - 1,
			.used_unit_ns = draw_unit_ns(s),
			.idle_unit_ns = draw_unit_ns(s),
			.unmeasured_unit_ns = draw_unit_ns(s),
			.energy_mj = (int128)prop_u64(s, UINT64_C(1) << 40),
		};
		m->swaps[i] = prop_index(s, i + 1);
		for (size_t p = 0; p < MAX_PARTS - 1; p++)
			m->cuts[i][p] = prop_u64(s, 1000);
	}
}

static void
describe(const void *c, struct buf *out)
{
	const struct month *m = c;
	char used[DECIMAL_TEXT_SIZE], idle[DECIMAL_TEXT_SIZE], unmeasured[DECIMAL_TEXT_SIZE];

	buf_printf(out, "%zu rows in %s, prices", m->count, m->currency);
	for (size_t b = 0; b < BOOKS; b++)
		for (size_t i = 0; i < ITEMS; i++)
			buf_printf(out, " %s", decimal_format(m->prices[b][i], PRICE_SCALE, 0, used));
	for (size_t i = 0; i < m->count; i++) {
		const struct usage_day *d = &m->rows[i];

		buf_printf(out, "\n#     day %d %s/%s %s %s %s %s book %d: used %s idle %s unmeasured %s", d->day,
		           d->tenant, d->workspace, d->gpu_model, d->mig_profile, d->sharing_mode, d->klass,
		           (int)d->price_book, decimal_format(d->used_unit_ns, 0, 0, used),
		           decimal_format(d->idle_unit_ns, 0, 0, idle),
		           decimal_format(d->unmeasured_unit_ns, 0, 0, unmeasured));
	}
}

/* What rating borrows, kept together while it is looked at. */
struct rating {
	struct rating_item items[BOOKS][ITEMS];
	struct rating_book books[BOOKS];
	struct rating_input in;
	struct rated *rated;
};

static void
rating_fini(struct rating *r)
{
	rated_free(r->rated);
}

static bool
rate(const struct month *m, const struct usage_day *rows, size_t n, struct rating *r, struct buf *why)
{
	static const char *const versions[BOOKS] = {"2026-11", "2026-11b"};
	static const struct rating_item selectors[ITEMS] = {
		{.sku = "", .gpu_model = "H100-80GB"},
		{.sku = "", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb"},
		{.sku = "A100", .gpu_model = "A100-80GB"},
		{.sku = "", .sharing_mode = "timeslice", .klass = "borrowed"},
		{.sku = "", .sharing_mode = "exclusive"},
	};
	struct err err = {0};

	for (size_t b = 0; b < BOOKS; b++) {
		for (size_t i = 0; i < ITEMS; i++) {
			r->items[b][i] = selectors[i];
			r->items[b][i].price = m->prices[b][i];
		}
		r->books[b] = (struct rating_book){
			.version = versions[b], .currency = m->currency, .items = r->items[b], .item_count = ITEMS};
	}
	r->in = (struct rating_input){.period_start = "2026-11-01",
	                              .period_end = "2026-12-01",
	                              .period = "2026-11",
	                              .period_status = "open",
	                              .currency = m->currency,
	                              .invoice_version = 1,
	                              .books = r->books,
	                              .book_count = BOOKS,
	                              .days = rows,
	                              .day_count = n};
	if (rating_run(&r->in, &r->rated, &err))
		return true;
	buf_str(why, err.text);
	return false;
}

static bool
write_csv(const struct rating *r, struct buf *out, struct buf *why)
{
	struct err err = {0};

	buf_init(out, REPORT_MAX);
	if (report_csv(&r->in, r->rated, out, &err))
		return true;
	buf_str(why, err.text);
	return false;
}

/* ---- sums ---- */

static bool
days_add_up(const struct rated_line *l)
{
	int128 quantity = 0, cost = 0, billed = 0, hours = 0, unit = pow10_i128(COST_SCALE - l->currency_scale);

	for (size_t i = 0; i < l->day_count; i++) {
		const struct rated_day *d = &l->days[i];
		int128 off = d->billed * unit - (d->list_cost - d->discount);

		if ((i > 0 && d->day <= l->days[i - 1].day) || off >= unit || off <= -unit ||
		    d->list_cost != (int128)d->quantity * l->unit_price)
			return false;
		quantity += d->quantity;
		cost += d->list_cost - d->discount;
		billed += d->billed;
		hours += d->used_ngh + d->idle_ngh + d->unmeasured_ngh;
	}
	return quantity == l->quantity && cost == l->list_cost - l->discount && billed == l->billed &&
	       hours == l->allocated_ngh;
}

static bool
line_adds_up(const struct rated_line *l)
{
	int128 unit = pow10_i128(COST_SCALE - l->currency_scale), net = l->list_cost - l->discount;
	int128 off = l->billed * unit - net;

	return l->allocated_ngh == l->used_ngh + l->idle_ngh + l->unmeasured_ngh && l->used_ngh >= 0 &&
	       l->idle_ngh >= 0 && l->unmeasured_ngh >= 0 && l->list_cost == (int128)l->quantity * l->unit_price &&
	       l->rounding == off && off < unit && off > -unit;
}

static bool
sums_agree(const void *c, struct buf *why)
{
	const struct month *m = c;
	in_place(rating) struct rating r = {0};

	if (!rate(m, m->rows, m->count, &r, why))
		return false;
	for (size_t t = 0; t < ARRAY_LEN(tenants); t++) {
		int128 billed = 0, exact = 0, unit = 1;

		for (size_t i = 0; i < r.rated->count; i++) {
			const struct rated_line *l = &r.rated->lines[i];

			if (strcmp(l->tenant, tenants[t]) != 0)
				continue;
			if (!line_adds_up(l) || !days_add_up(l)) {
				buf_printf(why, "line %s does not add up", l->line_id);
				return false;
			}
			billed += l->billed;
			exact += l->list_cost - l->discount;
			unit = pow10_i128(COST_SCALE - l->currency_scale);
		}
		if (billed != div_round_half_even(exact, unit)) {
			buf_printf(why, "%s: the billed costs are not the rounded sum", tenants[t]);
			return false;
		}
	}
	return true;
}

/* ---- hours ---- */

static bool
belongs(const struct usage_day *d, const struct rated_line *l)
{
	return strcmp(d->tenant, l->tenant) == 0 && strcmp(d->workspace, l->workspace) == 0 &&
	       strcmp(d->gpu_model, l->gpu_model) == 0 && strcmp(d->mig_profile, l->mig_profile) == 0 &&
	       strcmp(d->sharing_mode, l->sharing_mode) == 0 && strcmp(d->klass, l->klass) == 0;
}

/* Three days, each rounded once: at most one and a half nano-hours for the sum, and three for each state. Lines of other
 * price versions hold the rest of the rows, so they are added up first. */
static bool
hours_are_those_of_the_input(const void *c, struct buf *why)
{
	const struct month *m = c;
	in_place(rating) struct rating r = {0};

	if (!rate(m, m->rows, m->count, &r, why))
		return false;
	for (size_t i = 0; i < r.rated->count; i++) {
		int128 allocated = 0, used = 0;
		int64_t lines = 0;

		for (size_t j = 0; j < m->count; j++)
			if (belongs(&m->rows[j], &r.rated->lines[i])) {
				allocated -= m->rows[j].used_unit_ns + m->rows[j].idle_unit_ns +
				             m->rows[j].unmeasured_unit_ns;
				used -= m->rows[j].used_unit_ns;
			}
		for (size_t j = 0; j < r.rated->count; j++) {
			const struct rated_line *l = &r.rated->lines[j], *here = &r.rated->lines[i];
			const struct usage_day as_day = {.tenant = l->tenant,
			                                 .workspace = l->workspace,
			                                 .gpu_model = l->gpu_model,
			                                 .mig_profile = l->mig_profile,
			                                 .sharing_mode = l->sharing_mode,
			                                 .klass = l->klass};

			if (belongs(&as_day, here)) {
				allocated += (int128)l->allocated_ngh * NANO_GPU_HOUR;
				used += (int128)l->used_ngh * NANO_GPU_HOUR;
				lines++;
			}
		}
		if (2 * allocated > 3 * lines * NANO_GPU_HOUR || 2 * allocated < -3 * lines * NANO_GPU_HOUR ||
		    used > 3 * lines * NANO_GPU_HOUR || used < -3 * lines * NANO_GPU_HOUR) {
			buf_printf(why, "line %s: hours were lost or made", r.rated->lines[i].line_id);
			return false;
		}
	}
	return true;
}

/* ---- order and number of rows ---- */

static bool
same_report(const struct month *m, const struct usage_day *other, size_t n, struct buf *why)
{
	in_place(rating) struct rating a = {0}, b = {0};
	in_place(buf) struct buf a_csv = {0}, b_csv = {0};

	if (!rate(m, m->rows, m->count, &a, why) || !rate(m, other, n, &b, why) || !write_csv(&a, &a_csv, why) ||
	    !write_csv(&b, &b_csv, why))
		return false;
	if (strcmp(buf_text(&a_csv), buf_text(&b_csv)) == 0)
		return true;
	buf_printf(why, "\n%s\nand\n%s", buf_text(&a_csv), buf_text(&b_csv));
	return false;
}

static bool
order_changes_nothing(const void *c, struct buf *why)
{
	const struct month *m = c;
	struct usage_day rows[MAX_ROWS];

	memcpy(rows, m->rows, sizeof(rows));
	for (size_t i = m->count; i > 1; i--) {
		struct usage_day kept = rows[i - 1];

		rows[i - 1] = rows[m->swaps[i - 1]];
		rows[m->swaps[i - 1]] = kept;
	}
	return same_report(m, rows, m->count, why);
}

static int128
cut_off(int128 *left, uint64_t thousandths)
{
	int128 part = *left * (int128)thousandths / 1000;

	*left -= part;
	return part;
}

static bool
splitting_rows_changes_nothing(const void *c, struct buf *why)
{
	const struct month *m = c;
	struct usage_day rows[MAX_ROWS * MAX_PARTS];
	size_t n = 0;

	for (size_t i = 0; i < m->count; i++) {
		struct usage_day left = m->rows[i];

		for (size_t p = 0; p < MAX_PARTS - 1; p++) {
			uint64_t cut = m->cuts[i][p];

			rows[n] = left;
			rows[n].used_unit_ns = cut_off(&left.used_unit_ns, cut);
			rows[n].idle_unit_ns = cut_off(&left.idle_unit_ns, 1000 - cut);
			rows[n].unmeasured_unit_ns = cut_off(&left.unmeasured_unit_ns, cut / 2);
			rows[n].energy_mj = cut_off(&left.energy_mj, cut);
			n++;
		}
		rows[n++] = left;
	}
	return same_report(m, rows, n, why);
}

/* ---- one tenant and all of them ---- */

/* Line by line, cents too: the store rates tenant by tenant. */
static bool
a_tenant_alone_is_billed_as_among_others(const void *c, struct buf *why)
{
	const struct month *m = c;
	in_place(rating) struct rating all = {0};
	size_t at = 0;

	if (!rate(m, m->rows, m->count, &all, why))
		return false;
	for (size_t t = 0; t < ARRAY_LEN(tenants); t++) {
		in_place(rating) struct rating one = {0};
		struct usage_day rows[MAX_ROWS];
		size_t n = 0;

		for (size_t i = 0; i < m->count; i++)
			if (strcmp(m->rows[i].tenant, tenants[t]) == 0)
				rows[n++] = m->rows[i];
		if (!rate(m, rows, n, &one, why))
			return false;
		for (size_t i = 0; i < one.rated->count; i++, at++) {
			const struct rated_line *a = &one.rated->lines[i];
			const struct rated_line *b = at < all.rated->count ? &all.rated->lines[at] : NULL;

			if (b == NULL || strcmp(a->line_id, b->line_id) != 0 || a->billed != b->billed ||
			    a->rounding != b->rounding || a->quantity != b->quantity || a->list_cost != b->list_cost) {
				buf_printf(why, "line %s of %s is another one among all", a->line_id, tenants[t]);
				return false;
			}
		}
	}
	return at == all.rated->count;
}

/* ---- a price change in the month ---- */

static const struct rated_line *
find_line(const struct rated *r, const char *line_id)
{
	for (size_t i = 0; i < r->count; i++)
		if (strcmp(r->lines[i].line_id, line_id) == 0)
			return &r->lines[i];
	return NULL;
}

/* Counts the lines of the part. Lines without a price name no book, so that rows of both may meet in one: not looked at. */
static bool
contains(const struct rated *whole, const struct rated *part, size_t *count, struct buf *why)
{
	for (size_t i = 0; i < part->count; i++) {
		const struct rated_line *p = &part->lines[i], *w = find_line(whole, p->line_id);

		if (!p->priced)
			continue;
		++*count;
		if (w == NULL || w->allocated_ngh != p->allocated_ngh || w->used_ngh != p->used_ngh ||
		    w->quantity != p->quantity || w->unit_price != p->unit_price || w->list_cost != p->list_cost ||
		    w->energy_mj != p->energy_mj) {
			buf_printf(why, "line %s of the part is not in the whole", p->line_id);
			return false;
		}
	}
	return true;
}

/* Rows under each book, rated alone, are the lines of the month that name that book. */
static bool
a_price_change_equals_two_bills(const void *c, struct buf *why)
{
	const struct month *m = c;
	in_place(rating) struct rating whole = {0};
	size_t lines = 0;

	if (!rate(m, m->rows, m->count, &whole, why))
		return false;
	for (int64_t book = 0; book < (int64_t)BOOKS; book++) {
		struct usage_day rows[MAX_ROWS];
		in_place(rating) struct rating part = {0};
		size_t n = 0;

		for (size_t i = 0; i < m->count; i++)
			if (m->rows[i].price_book == book)
				rows[n++] = m->rows[i];
		if (!rate(m, rows, n, &part, why))
			return false;
		if (!contains(whole.rated, part.rated, &lines, why))
			return false;
	}
	for (size_t i = 0; i < whole.rated->count; i++)
		lines -= whole.rated->lines[i].priced;
	if (lines != 0)
		buf_str(why, "the month has other lines than its parts");
	return lines == 0;
}

/* ---- what finance reads ---- */

#define COLUMN_TENANT 7
#define COLUMN_LIST_COST 27
#define COLUMN_DISCOUNT 28
#define COLUMN_ROUNDING 29
#define COLUMN_BILLED 30

/* Cuts a line into fields in place; the texts of these cases need no more than quotes around a comma. */
static size_t
cut_fields(char *line, char **fields, size_t max)
{
	bool quoted = false;
	size_t n = 0;

	fields[n++] = line;
	for (; *line != '\0'; line++) {
		if (*line == '"')
			quoted = !quoted;
		if (*line == ',' && !quoted && n < max) {
			*line = '\0';
			fields[n++] = line + 1;
		}
	}
	return n;
}

static bool
the_csv_read_back_adds_up(const void *c, struct buf *why)
{
	static const int columns[] = {COLUMN_LIST_COST, COLUMN_DISCOUNT, COLUMN_ROUNDING, COLUMN_BILLED};
	const struct month *m = c;
	in_place(rating) struct rating r = {0};
	in_place(buf) struct buf csv = {0};
	int128 from_csv = 0, from_lines = 0;
	char *save = NULL, *line;
	struct err err = {0};

	if (!rate(m, m->rows, m->count, &r, why) || !write_csv(&r, &csv, why))
		return false;
	for (size_t i = 0; i < r.rated->count; i++)
		from_lines += r.rated->lines[i].billed * pow10_i128(COST_SCALE - r.rated->lines[i].currency_scale);
	for (line = strtok_r(csv.data, "\r\n", &save); (line = strtok_r(NULL, "\r\n", &save)) != NULL;) {
		char *fields[36];
		int128 value[4];

		if (cut_fields(line, fields, ARRAY_LEN(fields)) != ARRAY_LEN(fields)) {
			buf_printf(why, "a row without 36 fields: %s", line);
			return false;
		}
		for (size_t i = 0; i < ARRAY_LEN(columns); i++)
			if (!decimal_parse(fields[columns[i]], COST_SCALE, &value[i], &err)) {
				buf_str(why, err.text);
				return false;
			}
		if (value[0] - value[1] + value[2] != value[3]) {
			buf_printf(why, "a row of %s whose amounts do not add up", fields[COLUMN_TENANT]);
			return false;
		}
		from_csv += value[3];
	}
	if (from_csv != from_lines)
		buf_str(why, "the billed costs read back differ");
	return from_csv == from_lines;
}

/* ---- loans ---- */

#define LENDERS 2u
#define BORROWERS 3u
#define LOAN_DAYS 3u

/* Workspaces of one tenant that borrow of two others on some days, in parts of hours. */
struct loans {
	uint64_t amounts[LOAN_DAYS][LENDERS][BORROWERS]; /* in milliseconds of a GPU */
	uint64_t price, own_price, ratio, discount;
	bool own, instance, used;
	const char *currency;
};

static void
generate_loans(struct prop_source *s, void *c)
{
	struct loans *l = c;

	for (size_t d = 0; d < LOAN_DAYS; d++)
		for (size_t j = 0; j < LENDERS; j++)
			for (size_t b = 0; b < BORROWERS; b++)
				l->amounts[d][j][b] = prop_bool(s) ? prop_u64(s, 3600000) : 0;
	l->price = prop_u64(s, UINT64_C(9999999999));
	l->own_price = prop_u64(s, UINT64_C(9999999999));
	l->ratio = prop_bool(s) ? 1000000000 : prop_u64(s, 1000000000);
	l->discount = prop_bool(s) ? 0 : prop_u64(s, 1000000000);
	l->own = prop_bool(s);
	l->instance = prop_bool(s);
	l->used = prop_bool(s);
	l->currency = currencies[prop_index(s, ARRAY_LEN(currencies))];
}

static void
describe_loans(const void *c, struct buf *out)
{
	const struct loans *l = c;

	buf_printf(out, "price %" PRIu64 ", own %" PRIu64 " (%d%s%s), ratio %" PRIu64 ", discount %" PRIu64 ", %s",
	           l->price, l->own_price, l->own, l->instance ? ", instances" : "", l->used ? ", used" : "", l->ratio,
	           l->discount, l->currency);
	for (size_t d = 0; d < LOAN_DAYS; d++)
		for (size_t j = 0; j < LENDERS; j++)
			for (size_t b = 0; b < BORROWERS; b++)
				buf_printf(out, " %" PRIu64, l->amounts[d][j][b]);
}

static struct usage_day
loan_row(enum charge_kind kind, const char *tenant, const char *workspace, const char *klass, size_t day)
{
	return (struct usage_day){.day = (int32_t)day,
	                          .kind = kind,
	                          .cluster = "c",
	                          .tenant = tenant,
	                          .cost_center = "",
	                          .workspace = workspace,
	                          .gpu_model = "H100-80GB",
	                          .mig_profile = kind == CHARGE_COMMITMENT ? "" : "1g.10gb",
	                          .sharing_mode = kind == CHARGE_COMMITMENT ? "" : "mig",
	                          .klass = klass,
	                          .instance_units = kind == CHARGE_COMMITMENT ? 5040 : 675};
}

static bool
lenders_never_earn_more_than_borrowers_paid(const void *c, struct buf *why)
{
	static const char *const lenders[LENDERS] = {"a", "b"}, *const borrowers[BORROWERS] = {"w0", "w1", "w2"};
	const struct loans *l = c;
	const struct rating_item items[] = {
		{.sku = "", .price = (int128)l->price},
		{.sku = "", .price = INT64_C(9000000000), .klass = "reserved"},
		{.sku = "",
	         .price = (int128)l->own_price,
	         .tenant = l->own ? "z" : "nobody",
	         .klass = "borrowed",
	         .mig_profile = l->instance ? "1g.10gb" : NULL,
	         .basis_used = l->used},
	};
	const struct rating_discount discount = {.tenant = "z", .ratio = (int64_t)l->discount};
	const struct rating_book book = {.version = "v",
	                                 .currency = l->currency,
	                                 .items = items,
	                                 .item_count = ARRAY_LEN(items),
	                                 .discounts = &discount,
	                                 .discount_count = 1,
	                                 .lender_ratio = (int64_t)l->ratio};
	struct usage_day rows[LOAN_DAYS * (LENDERS * (BORROWERS + 1) + BORROWERS)];
	struct rating_input in = {.period_start = "2026-11-01",
	                          .period_end = "2026-12-01",
	                          .period = "2026-11",
	                          .period_status = "open",
	                          .currency = l->currency,
	                          .books = &book,
	                          .book_count = 1,
	                          .days = rows};
	owned(rated) struct rated *r = NULL;
	int128 paid = 0, earned = 0;
	struct err err = {0};

	for (size_t d = 0; d < LOAN_DAYS; d++) {
		struct usage_day borrowed[BORROWERS];

		for (size_t b = 0; b < BORROWERS; b++)
			borrowed[b] = loan_row(CHARGE_USAGE, "z", borrowers[b], "borrowed", d);
		for (size_t j = 0; j < LENDERS; j++) {
			struct usage_day whole = loan_row(CHARGE_COMMITMENT, lenders[j], "lender", "reserved", d);

			whole.reservation = (int64_t)(d * LENDERS + j + 1);
			for (size_t b = 0; b < BORROWERS; b++) {
				struct usage_day lent = loan_row(CHARGE_LENT, lenders[j], "lender", "reserved", d);
				int128 amount = (int128)l->amounts[d][j][b] * 5040 * 1000000;

				lent.reservation = whole.reservation;
				lent.counterparty = "z";
				lent.borrower = borrowers[b];
				lent.used_unit_ns = amount / 3;
				lent.idle_unit_ns = amount - amount / 3;
				whole.unit_ns += amount;
				borrowed[b].used_unit_ns += lent.used_unit_ns;
				borrowed[b].idle_unit_ns += lent.idle_unit_ns;
				if (amount > 0)
					rows[in.day_count++] = lent;
			}
			if (whole.unit_ns > 0)
				rows[in.day_count++] = whole;
		}
		for (size_t b = 0; b < BORROWERS; b++)
			rows[in.day_count++] = borrowed[b];
	}
	if (!rating_run(&in, &r, &err)) {
		buf_str(why, err.text);
		return false;
	}
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *x = &r->lines[i];

		paid += x->kind == CHARGE_USAGE ? x->billed : 0;
		earned -= x->kind == CHARGE_LENT ? x->billed : 0;
		/* and all parts are in the unit of their commitment */
		if (x->kind == CHARGE_LENT && (x->unit.per_instance || x->quantity != -x->ngh || x->billed > 0)) {
			buf_str(why, "a credit that is not in GPU-hours");
			return false;
		}
	}
	if (earned > paid)
		buf_printf(why, "%" PRId64 " was earned of %" PRId64, (int64_t)earned, (int64_t)paid);
	return earned <= paid;
}

#define PROPERTY(name_, holds_)                                                                         \
	{                                                                                               \
		.name = (name_), .size = sizeof(struct month), .generate = generate, .holds = (holds_), \
		.describe = describe                                                                    \
	}

int
main(void)
{
	static const struct prop_test tests[] = {
		PROPERTY("billed costs are the rounded sum of an invoice, each within one minor unit", sums_agree),
		PROPERTY("no hours are lost or made by quantising days", hours_are_those_of_the_input),
		PROPERTY("the order of the input changes no byte of the report", order_changes_nothing),
		PROPERTY("a day that arrives in several rows changes no byte of the report",
	                 splitting_rows_changes_nothing),
		PROPERTY("a tenant alone is billed as among others", a_tenant_alone_is_billed_as_among_others),
		PROPERTY("a price change within the month equals two bills", a_price_change_equals_two_bills),
		PROPERTY("the CSV read back adds up to the same totals", the_csv_read_back_adds_up),
		{.name = "lenders never earn more than borrowers paid, in the unit of what was reserved",
	         .size = sizeof(struct loans),
	         .generate = generate_loans,
	         .holds = lenders_never_earn_more_than_borrowers_paid,
	         .describe = describe_loans},
	};

	return prop_main("prop_rating", tests, ARRAY_LEN(tests));
}

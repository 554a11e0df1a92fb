/* aggregator/store/usage_cost.c - what groups of usage cost. The numbers are those of usage_cost.h. */
#include "aggregator/store/usage_cost.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/amortise.h"
#include "aggregator/core/detail.h"
#include "aggregator/store/period.h"
#include "common/json.h"
#include "common/split.h"

#define SQL_MAX (64u << 10)
#define CURRENCIES 8 /* of one answer */
#define CELL_KEYS 9  /* columns before the keys of the group: grouping_cost_sql() */
#define ENERGY_KEYS 6
#define FINE pow10_i128(COST_DECIMALS)

/* What one group held of one kind of device in one workspace, day and price version. */
struct share {
	int row; /* of the result, whose first CELL_KEYS columns say of what */
	size_t group;
	int128 held, used, energy;
};

/* Rule 3. */
struct rest {
	char *tenant, *workspace, *cluster, *gpu_model;
	const char *reason;
	size_t currency;
	int128 amount;
};

struct usage_cost {
	const struct usage_query *q;
	PGresult *rows;
	int key_count;
	struct share *shares; /* by what they are of */
	size_t share_count;
	int *group_rows; /* a row of each group, by key */
	size_t group_count;
	int128 *amounts; /* of each group, CURRENCIES of them */
	struct rest *rest;
	size_t rest_count, rest_cap;
	struct {
		char code[8];
		int scale;
		int128 total;
	} currencies[CURRENCIES];
	size_t currency_count;
	/* The month that is being added, and which of its days. */
	const char *month;
	int64_t first_day, end_day;
};

void
usage_cost_free(struct usage_cost *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->rest_count; i++) {
		mem_free(c->rest[i].tenant);
		mem_free(c->rest[i].workspace);
		mem_free(c->rest[i].cluster);
		mem_free(c->rest[i].gpu_model);
	}
	mem_free(c->rest);
	mem_free(c->shares);
	mem_free(c->group_rows);
	mem_free(c->amounts);
	PQclear(c->rows);
	mem_free(c);
}

/* ---- shares and groups ---- */

static int
compare_columns(const PGresult *a, int arow, int acol, const PGresult *b, int brow, int bcol, int n)
{
	int order = 0;

	for (int i = 0; order == 0 && i < n; i++)
		order = strcmp(res_text(a, arow, acol + i), res_text(b, brow, bcol + i));
	return order;
}

static int
by_group(const void *a, const void *b, void *arg)
{
	const struct usage_cost *c = arg;

	return compare_columns(c->rows, *(const int *)a, CELL_KEYS, c->rows, *(const int *)b, CELL_KEYS, c->key_count);
}

static int
by_cell(const void *a, const void *b, void *arg)
{
	const struct usage_cost *c = arg;
	const struct share *x = a, *y = b;
	int order = compare_columns(c->rows, x->row, 0, c->rows, y->row, 0, CELL_KEYS);

	return order != 0 ? order : (x->group > y->group) - (x->group < y->group);
}

static bool
read_shares(struct usage_cost *c, struct err *err)
{
	const int n = PQntuples(c->rows);
	owned(mem) int *order = mem_array((size_t)n, sizeof(*order));

	c->shares = mem_array((size_t)n, sizeof(*c->shares));
	c->group_rows = mem_array((size_t)n, sizeof(*c->group_rows));
	for (int i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, (size_t)n, sizeof(*order), by_group, c);
	for (int i = 0; i < n; i++) {
		struct share *s = &c->shares[c->share_count++];
		int128 v[3];

		if (i == 0 || by_group(&order[i - 1], &order[i], c) != 0)
			c->group_rows[c->group_count++] = order[i];
		if (!usage_read(c->rows, order[i], CELL_KEYS + c->key_count, ARRAY_LEN(v), v, err))
			return false;
		*s = (struct share){
			.row = order[i], .group = c->group_count - 1, .held = v[0], .used = v[1], .energy = v[2]};
	}
	qsort_r(c->shares, c->share_count, sizeof(*c->shares), by_cell, c);
	c->amounts = mem_array(c->group_count * CURRENCIES, sizeof(*c->amounts));
	return true;
}

/* The shares whose first columns are these: from *ret_first on. */
static size_t
find_shares(const struct usage_cost *c, const char *const *keys, size_t key_count, size_t *ret_first)
{
	size_t low = 0, high = c->share_count, end;

#define COMPARE(at, order)                                     \
	for (size_t k = 0; (order) == 0 && k < key_count; k++) \
	(order) = strcmp(res_text(c->rows, c->shares[at].row, (int)k), keys[k])
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = 0;

		COMPARE(mid, order);
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	for (end = low; end < c->share_count; end++) {
		int order = 0;

		COMPARE(end, order);
		if (order != 0)
			break;
	}
#undef COMPARE
	*ret_first = low;
	return end - low;
}

/* ---- amounts ---- */

static bool
find_currency(struct usage_cost *c, const struct rated_line *l, size_t *ret, struct err *err)
{
	size_t i = 0;

	while (i < c->currency_count && strcmp(c->currencies[i].code, l->currency) != 0)
		i++;
	if (i == CURRENCIES)
		return err_set(err, ERR_INVALID, "cost: the range has more than %d currencies; ask for fewer months",
		               CURRENCIES);
	if (i == c->currency_count) {
		snprintf(c->currencies[i].code, sizeof(c->currencies[i].code), "%s", l->currency);
		c->currencies[i].scale = l->currency_scale;
		c->currency_count++;
	}
	*ret = i;
	return true;
}

static void
add_rest(struct usage_cost *c, const struct rated_line *l, const char *reason, size_t currency, int128 amount)
{
	for (size_t i = 0; i < c->rest_count; i++) {
		struct rest *r = &c->rest[i];

		if (r->currency != currency || strcmp(r->reason, reason) != 0 || strcmp(r->tenant, l->tenant) != 0 ||
		    strcmp(r->workspace, l->workspace) != 0 || strcmp(r->cluster, l->cluster) != 0 ||
		    strcmp(r->gpu_model, l->gpu_model) != 0)
			continue;
		r->amount += amount;
		return;
	}
	if (c->rest_count == c->rest_cap) {
		c->rest_cap = c->rest_cap > 0 ? 2 * c->rest_cap : 16;
		c->rest = mem_grow(c->rest, c->rest_cap, sizeof(*c->rest));
	}
	c->rest[c->rest_count++] = (struct rest){.tenant = mem_strdup(l->tenant),
	                                         .workspace = mem_strdup(l->workspace),
	                                         .cluster = mem_strdup(l->cluster),
	                                         .gpu_model = mem_strdup(l->gpu_model),
	                                         .reason = reason,
	                                         .currency = currency,
	                                         .amount = amount};
}

/* Rule 2; false: the hours name nobody. */
static bool
spread(struct usage_cost *c, const struct rated_line *l, const struct rated_day *d, size_t currency, int128 amount)
{
	char day[16];
	const char *const keys[CELL_KEYS] = {c->month,         day,          l->tenant,      l->workspace,   l->cluster,
	                                     l->price_version, l->gpu_model, l->mig_profile, l->sharing_mode};
	const bool energy = l->kind == CHARGE_ENERGY;
	const bool by_use = l->unit.basis_used;
	size_t first, n;

	snprintf(day, sizeof(day), "%d", (int)d->day);
	n = find_shares(c, keys, energy ? ENERGY_KEYS : CELL_KEYS, &first);
	for (int attempt = 0; n > 0 && attempt < 2; attempt++) {
		owned(mem) int128 *weight = mem_array(n, sizeof(*weight));
		owned(mem) int128 *part = mem_array(n, sizeof(*part));

		for (size_t i = 0; i < n; i++) {
			const struct share *s = &c->shares[first + i];

			weight[i] = attempt > 0 ? s->held : energy ? s->energy : by_use ? s->used : s->held;
		}
		if (!split_largest_remainder(amount, weight, n, part))
			continue;
		for (size_t i = 0; i < n; i++)
			c->amounts[c->shares[first + i].group * CURRENCIES + currency] += part[i];
		return true;
	}
	return false;
}

static bool
add_day(struct usage_cost *c, const struct rated_line *l, const struct rated_day *d, struct err *err)
{
	const char *reason = line_cost_reason(l);
	int128 amount = (l->correction_of != NULL ? rated_effective_sum(l) : rated_effective(l, d)) * FINE;
	size_t currency;

	if (amount == 0)
		return true;
	if (!find_currency(c, l, &currency, err))
		return false;
	c->currencies[currency].total += amount;
	if (reason == NULL && !spread(c, l, d, currency, amount))
		reason = "workload-unknown";
	if (reason != NULL)
		add_rest(c, l, reason, currency, amount);
	return true;
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct usage_cost *c = arg;

	(void)in;
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		if (c->q->workspace != NULL && strcmp(c->q->workspace, l->workspace) != 0)
			continue;
		for (size_t k = 0; k < l->day_count; k++) {
			int64_t day = l->correction_of != NULL ? 0 : l->days[k].day; /* rule 5 */

			if (day >= c->first_day && day < c->end_day && !add_day(c, l, &l->days[k], err))
				return false;
		}
	}
	return true;
}

/* ---- reading ---- */

bool
usage_widen_days(struct db *db, int64_t range[2], struct err *err)
{
	static const struct db_stmt stmt = {
		"usage cost days",
		"SELECT ns_of(date_trunc('day', $1::timestamptz AT TIME ZONE zone) AT TIME ZONE zone), "
		"ns_of(date_trunc('day', $2::timestamptz AT TIME ZONE zone + interval '1 day' - interval '1 microsecond') "
		"AT TIME ZONE zone) FROM ledger"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, range[0]);
	arg_time(&a, range[1]);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	range[0] = res_i64(r, 0, 0);
	range[1] = res_i64(r, 0, 1);
	return true;
}

static bool
check_question(const struct usage_query *q, struct err *err)
{
	if (q->csv)
		return err_set(err, ERR_INVALID, "cost: is in the JSON answer only; leave format=csv out");
	if (q->cluster != NULL || q->user != NULL || q->gpu_model != NULL || q->node != NULL)
		return err_set(err, ERR_INVALID,
		               "cost: goes with the filters tenant and workspace; group_by the others instead");
	return true;
}

static bool
add_months(struct db *db, struct usage_cost *c, const int64_t range[2], struct err *err)
{
	static const struct db_stmt stmt = {
		"usage cost months",
		"SELECT p.month, greatest(($1::timestamptz AT TIME ZONE l.zone)::date - (p.starts_at AT TIME ZONE l.zone)::date, 0), "
		"($2::timestamptz AT TIME ZONE l.zone)::date - (p.starts_at AT TIME ZONE l.zone)::date FROM ledger l, period p "
		"WHERE p.starts_at < $2 AND p.ends_at > $1 ORDER BY p.starts_at"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, range[0]);
	arg_time(&a, range[1]);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		c->month = res_text(r, row, 0);
		c->first_day = res_i64(r, row, 1);
		c->end_day = res_i64(r, row, 2);
		if (!store_period_each(db, c->month, c->q->tenant, add_tenant, c, err))
			return err_prefix(err, "cost of %s", c->month);
	}
	c->month = NULL;
	return true;
}

bool
usage_cost_load(struct db *db, const struct usage_query *q, struct grouping *g, const int64_t range[2],
                struct usage_cost **ret, struct err *err)
{
	owned(usage_cost) struct usage_cost *c = mem_alloc(sizeof(*c));
	in_place(db_array) struct db_array labels = {0};
	in_place(buf) struct buf sql = {0};
	struct db_args a = {0};

	db_array_init(&labels);
	buf_init(&sql, SQL_MAX);
	c->q = q;
	c->key_count = (int)g->count;
	if (!check_question(q, err))
		return false;
	arg_time(&a, range[0]);
	arg_time(&a, range[1]);
	grouping_cost_sql(g, q, &labels, &sql, &a);
	if (!buf_ok(&sql, "the statement", err) || !db_run_text(db, buf_text(&sql), &a, &c->rows, err) ||
	    !read_shares(c, err) || !add_months(db, c, range, err))
		return false;
	*ret = take(c);
	return true;
}

/* ---- writing ---- */

static void
write_amount(const struct usage_cost *c, size_t currency, int128 amount, struct usage_row *o)
{
	char text[DECIMAL_TEXT_SIZE];
	int scale = c->currencies[currency].scale;

	row_text(o, "currency", c->currencies[currency].code);
	row_text(o, "amount", decimal_format(amount, scale + COST_DECIMALS, scale, text));
}

static void
write_amounts(const struct usage_cost *c, const char *name, const int128 *amounts, struct usage_row *o)
{
	const char *comma = "";

	row_name(o, name, "");
	buf_char(o->out, '[');
	for (size_t i = 0; i < c->currency_count; i++) {
		struct usage_row one = {.out = o->out, .form = ROW_JSON};

		if (amounts[i] == 0)
			continue;
		buf_str(o->out, comma);
		comma = ",";
		row_begin(&one);
		write_amount(c, i, amounts[i], &one);
		row_end(&one);
	}
	buf_char(o->out, ']');
}

void
usage_cost_write_group(const struct usage_cost *c, const PGresult *r, int row, struct usage_row *o)
{
	static const int128 nothing[CURRENCIES];
	size_t low = 0, high = c->group_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (compare_columns(c->rows, c->group_rows[mid], CELL_KEYS, r, row, 0, c->key_count) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	if (low < c->group_count &&
	    compare_columns(c->rows, c->group_rows[low], CELL_KEYS, r, row, 0, c->key_count) == 0)
		write_amounts(c, "costs", c->amounts + low * CURRENCIES, o);
	else
		write_amounts(c, "costs", nothing, o);
}

void
usage_cost_write_rest(const struct usage_cost *c, struct usage_row *o)
{
	int128 totals[CURRENCIES] = {0};

	row_name(o, "costs_without_workload", "");
	buf_char(o->out, '[');
	for (size_t i = 0; i < c->rest_count; i++) {
		const struct rest *r = &c->rest[i];
		struct usage_row one = {.out = o->out, .form = ROW_JSON};

		buf_str(o->out, i > 0 ? ",\n" : "");
		row_begin(&one);
		row_text(&one, "tenant", r->tenant);
		row_text(&one, "workspace", r->workspace);
		row_text(&one, "cluster", r->cluster);
		row_text(&one, "gpu_model", r->gpu_model);
		row_text(&one, "reason", r->reason);
		write_amount(c, r->currency, r->amount, &one);
		row_end(&one);
	}
	buf_char(o->out, ']');
	for (size_t i = 0; i < c->currency_count; i++)
		totals[i] = c->currencies[i].total;
	write_amounts(c, "costs_total", totals, o);
}

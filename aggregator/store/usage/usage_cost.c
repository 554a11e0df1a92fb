/* aggregator/store/usage/usage_cost.c - the costs of groups of usage. The numbers are those of usage_internal.h. */
#include "aggregator/store/usage/usage_internal.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/rating/cost_day.h"
#include "aggregator/store/rollup/charges.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/billing/report_internal.h"
#include "common/conf/json.h"

#define SQL_MAX (64u << 10)
#define CURRENCIES 8 /* of one answer */
#define FINE pow10_i128(COST_DECIMALS)
#define ROWS_AT_ONCE 4000

/* Rule 3. */
struct rest {
	char *tenant, *workspace, *cluster, *gpu_model;
	const char *reason;
	size_t currency;
	int128 amount;
};

struct usage_cost {
	struct db *db;
	const struct usage_query *q;
	const struct grouping *g;
	const PGresult *groups; /* of the page, by key */
	int group_count;
	int128 *amounts; /* of each group, CURRENCIES of them */
	bool *priced;    /* likewise: it has a cost, which may be 0 */
	struct rest *rest;
	size_t rest_count, rest_cap;
	struct {
		char code[8];
		int scale;
		int128 total;
	} currencies[CURRENCIES];
	size_t currency_count;
	int64_t rows_read; /* 7 */
	/* Names of the ledger's ids. */
	PGresult *workspaces; /* tenant, workspace, id; by names */
	PGresult *clusters;   /* name, id; by name */
	PGresult *books;      /* id, version; by id */
	char **texts;         /* models and profiles: they are few */
	size_t text_count;
	/* The month that is being added, and which of its days. */
	int64_t first_day, end_day;
	struct cost_line *lines; /* rule 2 */
	size_t line_count, line_cap;
	struct hash workspace_rows; /* of the lines: id -> row of workspaces */
	/* The day that is being added. */
	struct cost_cell *cells;
	size_t cell_count, cell_cap;
	struct cost_share *shares; /* the groups' shares of the current cell */
	int *share_groups;         /* -1: a group of another page */
	size_t share_count, share_cap;
};

static void
rest_fini(struct rest *r)
{
	mem_free(r->tenant);
	mem_free(r->workspace);
	mem_free(r->cluster);
	mem_free(r->gpu_model);
}

void
usage_cost_free(struct usage_cost *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->rest_count; i++)
		rest_fini(&c->rest[i]);
	for (size_t i = 0; i < c->text_count; i++)
		mem_free(c->texts[i]);
	mem_free(c->rest);
	mem_free(c->texts);
	mem_free(c->amounts);
	mem_free(c->priced);
	mem_free(c->lines);
	mem_free(c->cells);
	mem_free(c->shares);
	mem_free(c->share_groups);
	hash_fini(&c->workspace_rows);
	PQclear(c->workspaces);
	PQclear(c->clusters);
	PQclear(c->books);
	mem_free(c);
}

/* ---- names ---- */

static const char *
keep_text(struct usage_cost *c, const char *text)
{
	for (size_t i = 0; i < c->text_count; i++)
		if (strcmp(c->texts[i], text) == 0)
			return c->texts[i];
	c->texts = mem_grow(c->texts, c->text_count + 1, sizeof(*c->texts));
	return c->texts[c->text_count++] = mem_strdup(text);
}

/* The row whose first n columns are these texts, of rows that are in their order; -1: there is none. */
static int
find_row(const PGresult *r, int rows, const char *const *texts, size_t n)
{
	int low = 0, high = rows;

	while (low < high) {
		int mid = low + (high - low) / 2, order = 0;

		for (size_t i = 0; order == 0 && i < n; i++)
			order = strcmp(res_text(r, mid, (int)i), texts[i]);
		if (order == 0)
			return mid;
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return -1;
}

static bool
load_names(struct usage_cost *c, struct err *err)
{
	static const struct db_stmt workspaces = {
		"usage cost workspaces", "SELECT t.name, w.name, w.id FROM workspace w JOIN tenant t ON t.id = "
					 "w.tenant_id ORDER BY t.name COLLATE \"C\", w.name COLLATE \"C\""};
	static const struct db_stmt clusters = {"usage cost clusters",
	                                        "SELECT name, id FROM cluster ORDER BY name COLLATE \"C\""};
	static const struct db_stmt books = {"usage cost books", "SELECT id, version FROM price_book ORDER BY id"};

	return db_run(c->db, &workspaces, NULL, &c->workspaces, err) &&
	       db_run(c->db, &clusters, NULL, &c->clusters, err) && db_run(c->db, &books, NULL, &c->books, err);
}

/* The number that stands for a sharing mode in the ledger. */
static int
sharing_of(const char *mode)
{
	for (int i = 0; i < SHARING_MODES; i++)
		if (strcmp(sharing_text(i), mode) == 0)
			return i;
	return -1;
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
add_rest(struct usage_cost *c, const char *const names[4], const char *reason, size_t currency, int128 amount)
{
	array_room(c->rest, c->rest_count, c->rest_cap);
	c->rest[c->rest_count++] = (struct rest){.tenant = mem_strdup(names[0]),
	                                         .workspace = mem_strdup(names[1]),
	                                         .cluster = mem_strdup(names[2]),
	                                         .gpu_model = mem_strdup(names[3]),
	                                         .reason = reason,
	                                         .currency = currency,
	                                         .amount = amount};
}

static int
compare_rest(const void *a, const void *b)
{
	const struct rest *x = a, *y = b;
	const char *const of_x[] = {x->tenant, x->workspace, x->cluster, x->gpu_model, x->reason};
	const char *const of_y[] = {y->tenant, y->workspace, y->cluster, y->gpu_model, y->reason};
	int order = 0;

	for (size_t i = 0; order == 0 && i < ARRAY_LEN(of_x); i++)
		order = strcmp(of_x[i], of_y[i]);
	return order != 0 ? order : (x->currency > y->currency) - (x->currency < y->currency);
}

/* Sorted, one row for each tenant, workspace, cluster, GPU model, reason and currency. */
static void
pack_rest(struct usage_cost *c)
{
	size_t kept = 0;

	if (c->rest_count > 1)
		qsort(c->rest, c->rest_count, sizeof(*c->rest), compare_rest);
	for (size_t i = 0; i < c->rest_count; i++) {
		if (kept == 0 || compare_rest(&c->rest[kept - 1], &c->rest[i]) != 0) {
			c->rest[kept++] = c->rest[i];
			continue;
		}
		c->rest[kept - 1].amount += c->rest[i].amount;
		rest_fini(&c->rest[i]);
	}
	c->rest_count = kept;
}

/* Of a line of core/rating/cost_day.h. */
static void
add_unknown(struct usage_cost *c, int64_t workspace_id, int64_t cluster_id, const char *gpu_model, size_t currency,
            int128 amount)
{
	const int row = (int)hash_get(&c->workspace_rows, (uint64_t)workspace_id);
	const char *names[4] = {res_text(c->workspaces, row, 0), res_text(c->workspaces, row, 1), "", gpu_model};

	for (int i = 0; i < PQntuples(c->clusters); i++)
		if (res_i64(c->clusters, i, 1) == cluster_id)
			names[2] = res_text(c->clusters, i, 0);
	if (amount != 0)
		add_rest(c, names, "workload-unknown", currency, amount);
}

/* ---- lines ---- */

/* A day of a line that workloads caused; false: the ledger does not know its workspace or cluster. */
static bool
add_line(struct usage_cost *c, const struct rated_line *l, const struct rated_day *d, size_t currency, int128 amount)
{
	const int workspace =
		find_row(c->workspaces, PQntuples(c->workspaces), (const char *const[]){l->tenant, l->workspace}, 2);
	const int cluster = find_row(c->clusters, PQntuples(c->clusters), (const char *const[]){l->cluster}, 1);
	struct cost_line *to;

	if (workspace < 0 || cluster < 0)
		return false;
	array_room(c->lines, c->line_count, c->line_cap);
	to = &c->lines[c->line_count++];
	*to = (struct cost_line){.day = d->day,
	                         .workspace_id = res_i64(c->workspaces, workspace, 2),
	                         .cluster_id = res_i64(c->clusters, cluster, 1),
	                         .gpu_model = keep_text(c, l->gpu_model),
	                         .profile = keep_text(c, l->mig_profile),
	                         .units = l->instance_units,
	                         .sharing = sharing_of(l->sharing_mode),
	                         .price_version = keep_text(c, l->price_version),
	                         .klass = l->kind == CHARGE_COVERED           ? CLASS_COVERED
	                                  : strcmp(l->klass, "borrowed") == 0 ? CLASS_BORROWED
	                                                                      : CLASS_ON_DEMAND,
	                         .basis = COST_HELD,
	                         .currency = currency,
	                         .amount = amount};
	if (l->kind == CHARGE_ENERGY)
		to->basis = COST_ENERGY;
	else if (l->kind == CHARGE_USAGE && (l->own_differs ? l->own_unit : l->unit).basis_used)
		to->basis = COST_USED;
	hash_put(&c->workspace_rows, (uint64_t)to->workspace_id, (size_t)workspace);
	return true;
}

static bool
add_rated_line(struct usage_cost *c, const struct rated_line *l, struct err *err)
{
	const char *reason = line_cost_reason(l);
	const char *const names[4] = {l->tenant, l->workspace, l->cluster, l->gpu_model};
	int128 rest = 0;
	size_t currency;

	if (!find_currency(c, l, &currency, err))
		return false;
	for (size_t i = 0; i < l->day_count; i++) {
		const int64_t day = l->correction_of != NULL ? 0 : l->days[i].day; /* 5 */
		const int128 amount =
			(l->correction_of != NULL ? rated_effective_sum(l) : rated_effective(l, &l->days[i])) * FINE;

		/* a cost of 0 says that there is a price */
		if (day < c->first_day || day >= c->end_day || (amount == 0 && (reason != NULL || !l->priced)))
			continue;
		c->currencies[currency].total += amount;
		if (reason != NULL || !add_line(c, l, &l->days[i], currency, amount))
			rest += amount;
	}
	if (rest != 0)
		add_rest(c, names, reason != NULL ? reason : "workload-unknown", currency, rest);
	return true;
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct usage_cost *c = arg;

	(void)in;
	for (size_t i = 0; i < r->count; i++)
		if ((c->q->workspace == NULL || strcmp(c->q->workspace, r->lines[i].workspace) == 0) &&
		    !add_rated_line(c, &r->lines[i], err))
			return false;
	return true;
}

/* ---- a day ---- */

static bool
add_cell(void *arg, const struct charge_use *u, struct err *err)
{
	struct usage_cost *c = arg;
	const int book = res_find_i64(c->books, &u->book_id, 1);
	struct cost_cell *to;

	(void)err;
	if (hash_get(&c->workspace_rows, (uint64_t)u->use->workspace) == HASH_NONE)
		return true;
	array_room(c->cells, c->cell_count, c->cell_cap);
	to = &c->cells[c->cell_count++];
	*to = (struct cost_cell){.workspace_id = u->use->workspace,
	                         .cluster_id = u->cluster_id,
	                         .gpu_model = keep_text(c, u->gpu_model),
	                         .profile = keep_text(c, u->use->profile),
	                         .units = u->use->instance_units,
	                         .sharing = u->use->sharing,
	                         .hour_ns = u->hour_ns,
	                         .owner_id = u->owner_id,
	                         .price_version = book < 0 ? "" : res_text(c->books, book, 1)};
	memcpy(to->classes, u->classes, sizeof(to->classes));
	return true;
}

static int
compare_cells(const void *a, const void *b)
{
	return cost_cell_compare(a, b);
}

static struct cost_cell
cell_of(const PGresult *r, int row)
{
	return (struct cost_cell){.workspace_id = res_i64(r, row, 0),
	                          .cluster_id = res_i64(r, row, 1),
	                          .gpu_model = res_text(r, row, 2),
	                          .profile = res_text(r, row, 3),
	                          .units = res_i64(r, row, 4),
	                          .sharing = (int)res_i64(r, row, 5),
	                          .hour_ns = res_i64(r, row, 6),
	                          .owner_id = res_i64(r, row, 7)};
}

/* Adds the cost of a cell to the groups that have a part of it. */
static void
settle_cell(struct usage_cost *c, struct cost_cell *cell)
{
	owned(mem) int128 *part = mem_array(c->share_count, sizeof(*part));
	const int128 left = cost_cell_split(cell, c->shares, c->share_count, part);

	for (size_t i = 0; i < c->share_count; i++) {
		const size_t at = (size_t)c->share_groups[i] * CURRENCIES + cell->currency;

		if (c->share_groups[i] < 0 || !cell->priced)
			continue;
		c->amounts[at] += part[i];
		c->priced[at] = true;
	}
	add_unknown(c, cell->workspace_id, cell->cluster_id, cell->gpu_model, cell->currency, left);
	memset(cell->parts, 0, sizeof(cell->parts));
	c->share_count = 0;
}

/* Constraints forbid negative time and energy: such a row was changed by hand. */
static bool
say_damaged(const struct usage_cost *c, const PGresult *r, int row, struct err *err)
{
	const int workspace = (int)hash_get(&c->workspace_rows, (uint64_t)res_i64(r, row, 0));
	char at[TIME_TEXT_SIZE];

	return err_set(err, ERR_FATAL,
	               "the usage of %s in %s/%s in the hour of %s is damaged: a time or an energy is negative",
	               res_text(r, row, 2), res_text(c->workspaces, workspace, 0),
	               res_text(c->workspaces, workspace, 1), time_format(res_i64(r, row, 6), at));
}

static bool
add_share(struct usage_cost *c, const PGresult *r, int row, struct err *err)
{
	const int keys = (int)c->g->count;
	const char *key[USAGE_KEYS];
	struct cost_share share;

	if (!usage_read(r, row, USAGE_CELL_COLUMNS + keys, COST_BASES, share.amount, err))
		return false;
	for (size_t i = 0; i < COST_BASES; i++)
		if (share.amount[i] < 0)
			return say_damaged(c, r, row, err);
	if (c->share_count == c->share_cap) {
		c->share_cap = c->share_cap > 0 ? 2 * c->share_cap : 64;
		c->shares = mem_grow(c->shares, c->share_cap, sizeof(*c->shares));
		c->share_groups = mem_grow(c->share_groups, c->share_cap, sizeof(*c->share_groups));
	}
	for (int i = 0; i < keys; i++)
		key[i] = res_text(r, row, USAGE_CELL_COLUMNS + i);
	c->shares[c->share_count] = share;
	c->share_groups[c->share_count++] = find_row(c->groups, c->group_count, key, c->g->count);
	return true;
}

/* Rows of a day, in the order of its cells. *at: the cell whose groups are being read. */
static bool
add_rows(struct usage_cost *c, const PGresult *r, size_t *at, struct err *err)
{
	for (int row = 0; row < PQntuples(r); row++) {
		const struct cost_cell of = cell_of(r, row);

		while (*at < c->cell_count && cost_cell_compare(&c->cells[*at], &of) < 0)
			settle_cell(c, &c->cells[(*at)++]);
		if (*at < c->cell_count && cost_cell_compare(&c->cells[*at], &of) == 0 && !add_share(c, r, row, err))
			return false;
	}
	c->rows_read += PQntuples(r);
	return c->rows_read <= c->q->cost_rows ||
	       err_set(err, ERR_INVALID,
	               "cost: the hours and groups of the range have more than %" PRId64
	               " rows (cost-rows); ask for fewer days, one tenant or fewer keys",
	               c->q->cost_rows);
}

static bool
add_holders(struct usage_cost *c, int64_t from_ns, int64_t until_ns, struct err *err)
{
	in_place(db_array) struct db_array labels = {0};
	in_place(buf) struct buf sql = {0};
	struct db_args a = {0};
	char fetch[64];
	size_t at = 0;
	int rows;

	db_array_init(&labels);
	buf_init(&sql, SQL_MAX);
	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	grouping_cost_sql(c->g, c->q, "cost_rows", &labels, &sql, &a);
	snprintf(fetch, sizeof(fetch), "FETCH %d FROM cost_rows", ROWS_AT_ONCE);
	if (!buf_ok(&sql, "the statement", err) || !db_run_text(c->db, buf_text(&sql), &a, NULL, err))
		return false;
	do {
		owned(result) PGresult *r = NULL;

		if (!db_run_text(c->db, fetch, NULL, &r, err) || !add_rows(c, r, &at, err))
			return false;
		rows = PQntuples(r);
	} while (rows == ROWS_AT_ONCE);
	while (at < c->cell_count)
		settle_cell(c, &c->cells[at++]);
	return db_script(c->db, "CLOSE cost_rows", err);
}

static bool
add_day(struct usage_cost *c, const struct cost_line *lines, size_t n, int64_t from_ns, int64_t until_ns,
        struct err *err)
{
	c->cell_count = 0;
	if (!charges_each_use(c->db, from_ns, until_ns, add_cell, c, err))
		return false;
	if (c->cell_count > 1)
		qsort(c->cells, c->cell_count, sizeof(*c->cells), compare_cells);
	for (size_t i = 0; i < n; i++)
		add_unknown(c, lines[i].workspace_id, lines[i].cluster_id, lines[i].gpu_model, lines[i].currency,
		            cost_line_spread(&lines[i], c->cells, c->cell_count));
	return add_holders(c, from_ns, until_ns, err);
}

/* ---- a month ---- */

static int
by_day(const void *a, const void *b)
{
	const struct cost_line *x = a, *y = b;

	return (x->day > y->day) - (x->day < y->day);
}

/* Column 0: the day's number in the month; a day without a row has no bounds. */
static bool
add_days(struct usage_cost *c, const char *month, struct err *err)
{
	static const struct db_stmt stmt = {
		"usage cost days of month",
		"SELECT b.day - (p.starts_at AT TIME ZONE l.zone)::date, ns_of(b.starts_at), ns_of(b.ends_at) FROM ledger l, period p "
		"JOIN billing_day b ON b.starts_at >= p.starts_at AND b.starts_at < p.ends_at WHERE p.month = $1 ORDER BY 1"};
	owned(result) PGresult *days = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	if (!db_run(c->db, &stmt, &a, &days, err))
		return false;
	if (c->line_count > 1)
		qsort(c->lines, c->line_count, sizeof(*c->lines), by_day);
	for (size_t i = 0, end; i < c->line_count; i = end) {
		const struct cost_line *l = &c->lines[i];
		const int64_t day = l->day;
		const int row = res_find_i64(days, &day, 1);

		for (end = i; end < c->line_count && c->lines[end].day == l->day; end++)
			if (row < 0)
				add_unknown(c, c->lines[end].workspace_id, c->lines[end].cluster_id,
				            c->lines[end].gpu_model, c->lines[end].currency, c->lines[end].amount);
		if (row >= 0 && !add_day(c, l, end - i, res_i64(days, row, 1), res_i64(days, row, 2), err))
			return false;
	}
	return true;
}

static bool
add_months(struct usage_cost *c, const int64_t range[2], struct err *err)
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
	if (!db_run(c->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const char *month = res_text(r, row, 0);

		c->first_day = res_i64(r, row, 1);
		c->end_day = res_i64(r, row, 2);
		c->line_count = 0;
		hash_clear(&c->workspace_rows);
		if (!store_period_each(c->db, month, c->q->tenant, add_tenant, c, err) || !add_days(c, month, err))
			return err_prefix(err, "cost of %s", month);
		pack_rest(c);
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

bool
usage_cost_check(const struct usage_query *q, struct err *err)
{
	if (q->csv)
		return err_set(err, ERR_INVALID, "cost: is in the JSON answer only; leave format=csv out");
	if (q->cluster != NULL || q->user != NULL || q->gpu_model != NULL || q->node != NULL)
		return err_set(err, ERR_INVALID,
		               "cost: goes with the filters tenant and workspace; group_by the others instead");
	return true;
}

bool
usage_cost_load(struct db *db, const struct usage_query *q, const struct grouping *g, const int64_t range[2],
                const PGresult *groups, int rows, struct usage_cost **ret, struct err *err)
{
	owned(usage_cost) struct usage_cost *c = mem_alloc(sizeof(*c));

	c->db = db;
	c->q = q;
	c->g = g;
	c->groups = groups;
	c->group_count = rows;
	c->amounts = mem_array((size_t)rows * CURRENCIES, sizeof(*c->amounts));
	c->priced = mem_array((size_t)rows * CURRENCIES, sizeof(*c->priced));
	if (!load_names(c, err) || !add_months(c, range, err))
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
write_amounts(const struct usage_cost *c, const char *name, const int128 *amounts, const bool *priced,
              struct usage_row *o)
{
	const char *comma = "";

	row_name(o, name, "");
	buf_char(o->out, '[');
	for (size_t i = 0; i < c->currency_count; i++) {
		struct usage_row one = {.out = o->out, .form = ROW_JSON};

		if (amounts[i] == 0 && (priced == NULL || !priced[i]))
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
usage_cost_write_group(const struct usage_cost *c, int row, struct usage_row *o)
{
	write_amounts(c, "costs", c->amounts + (size_t)row * CURRENCIES, c->priced + (size_t)row * CURRENCIES, o);
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
	write_amounts(c, "costs_total", totals, NULL, o);
}

/* aggregator/store/billing/shared_month.c - idle time of shared nodes in a month, divided among tenants.
 *
 * The division depends on all tenants, so it is made once for the month, before the tenants are loaded one by one. Stranded time stays
 * with the platform: charges.c subtracts it from idle time hour by hour, and the days have the sum. */
#include "aggregator/store/billing/report_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/shared_cost.h"
#include "aggregator/store/rollup/charges.h"

/* Rows of a table of the days that are stored, and of those that are not; $4: of one book, whichever it was. */
#define POOL_KEY \
	"c.day - $1::date AS d, CASE WHEN $4 THEN 0 ELSE coalesce(c.price_book_id, 0) END AS b, c.cluster_id, c.gpu_model"
#define SHARED_DAYS(columns, table)                                                                          \
	"SELECT " POOL_KEY ", " columns " FROM " table                                                       \
	" c WHERE c.owner_id IS NULL AND c.day >= $1::date AND c.day < "                                     \
	"$2::date AND c.day <> ALL ($3::date[]) AND EXISTS (SELECT FROM billing_day k WHERE k.day = c.day) " \
	"UNION ALL SELECT " POOL_KEY ", " columns " FROM open_" table                                        \
	" c WHERE c.owner_id IS NULL AND c.day >= $1::date AND c.day < $2::date"
#define POOL_ORDER "ORDER BY cluster_id, gpu_model COLLATE \"C\", d, b"

/* As the rows of report_rows.c, which reads them. */
enum { DAY, BOOK, CLUSTER, OWNER, MODEL, IDLE, TENANT = IDLE, HELD };

void
shared_month_fini(struct shared_month *s)
{
	PQclear(s->pools);
	mem_free(s->parts);
}

/* The state of the division. */
struct division {
	const struct report_month *m;
	const struct rating_book *proposed;
	const char *tenant; /* load only its parts; NULL: those of all */
	PGresult *held;     /* a page of them */
	PGresult *tenants;
	struct shared_tenant *shares; /* one for each tenant */
	struct usage_day *rows;
	int at;    /* of held: the first row that was not passed yet */
	bool last; /* there is no page after it */
};

static void
division_fini(struct division *d)
{
	PQclear(d->held);
	PQclear(d->tenants);
	mem_free(d->shares);
	mem_free(d->rows);
}

#define ROWS_AT_ONCE 4000

static bool
next_page(struct division *d, struct err *err)
{
	char fetch[64];

	PQclear(d->held);
	d->held = NULL;
	d->at = 0;
	snprintf(fetch, sizeof(fetch), "FETCH %d FROM shared_held", ROWS_AT_ONCE);
	if (!db_run_text(d->m->db, fetch, NULL, &d->held, err))
		return false;
	d->last = PQntuples(d->held) < ROWS_AT_ONCE;
	return true;
}

/* Whether there is another row, which is d->at of this page. */
static bool
has_row(struct division *d, bool *ret, struct err *err)
{
	if (d->at == PQntuples(d->held) && !d->last && !next_page(d, err))
		return false;
	*ret = d->at < PQntuples(d->held);
	return true;
}

static bool
load(struct division *d, struct shared_month *s, struct err *err)
{
	static const struct db_stmt pools = {"shared pools",
	                                     "SELECT d, b, cluster_id, 0, gpu_model, sum(idle) FROM (" SHARED_DAYS(
						     IDLE_LESS_STRANDED("c") " AS idle",
						     "pool_day") ") x GROUP BY 1, 2, 3, gpu_model " POOL_ORDER};
	/* a row for each tenant, pool and day: too many for memory, hence a cursor */
	static const char held[] =
		"DECLARE shared_held NO SCROLL CURSOR FOR SELECT d, b, cluster_id, 0, gpu_model, w.tenant_id, sum(x.held) FROM (" SHARED_DAYS(
			"c.workspace_id, c.used + c.idle + c.unmeasured AS held",
			"charge_day") ") x JOIN workspace w ON w.id = x.workspace_id GROUP BY 1, 2, 3, gpu_model, w.tenant_id " POOL_ORDER
				      ", w.tenant_id";
	static const struct db_stmt tenants = {"shared tenants", "SELECT id, name FROM tenant ORDER BY id"};
	struct db_args a = {0};

	arg_text(&a, d->m->in->period_start);
	arg_text(&a, d->m->in->period_end);
	arg_text(&a, d->m->dirty);
	arg_bool(&a, d->proposed != NULL);
	if (!db_run(d->m->db, &pools, &a, &s->pools, err) || !db_run_text(d->m->db, held, &a, NULL, err) ||
	    !next_page(d, err) || !db_run(d->m->db, &tenants, NULL, &d->tenants, err))
		return false;
	d->shares = mem_array((size_t)PQntuples(d->tenants), sizeof(*d->shares));
	d->rows = mem_array((size_t)PQntuples(d->tenants), sizeof(*d->rows));
	return true;
}

static int
compare_pools(const PGresult *a, int i, const PGresult *b, int j)
{
	static const int columns[] = {CLUSTER, MODEL, DAY, BOOK};
	int order = 0;

	for (size_t k = 0; k < ARRAY_LEN(columns) && order == 0; k++) {
		int64_t x, y;

		if (columns[k] == MODEL) {
			order = strcmp(res_text(a, i, MODEL), res_text(b, j, MODEL));
			continue;
		}
		x = res_i64(a, i, columns[k]);
		y = res_i64(b, j, columns[k]);
		order = (x > y) - (x < y);
	}
	return order;
}

/* Sets the time that each tenant held in the pool; both results have the same order. */
static bool
fill_tenants(struct division *d, const struct shared_month *s, int pool, struct err *err)
{
	int tenant = 0;

	for (int i = 0; i < PQntuples(d->tenants); i++)
		d->shares[i] = (struct shared_tenant){.tenant = res_text(d->tenants, i, 1), .cost_center = ""};
	for (bool more;; d->at++) {
		int order;

		if (!has_row(d, &more, err))
			return false;
		order = more ? compare_pools(d->held, d->at, s->pools, pool) : 1;
		if (order > 0)
			return true;
		if (order < 0)
			continue;
		while (res_i64(d->tenants, tenant, 0) != res_i64(d->held, d->at, TENANT))
			tenant++;
		if (!res_i128(d->held, d->at, HELD, 0, &d->shares[tenant].held_unit_ns, err))
			return false;
	}
}

static void
add_part(struct shared_month *s, int64_t tenant, int pool, const struct usage_day *d)
{
	array_room(s->parts, s->count, s->cap);
	s->parts[s->count++] = (struct shared_part){
		.tenant = (int32_t)tenant, .pool = pool, .ratio = (int32_t)d->origin_ratio, .unit_ns = d->unit_ns};
}

static bool
divide(struct division *d, struct shared_month *s, int row, struct err *err)
{
	struct shared_pool pool = {.cluster = "", .gpu_model = ""};
	const struct rating_book *book = d->proposed;
	size_t at = 0, count;

	if (!fill_tenants(d, s, row, err) || !res_i128(s->pools, row, IDLE, 0, &pool.idle_unit_ns, err))
		return false;
	if (book == NULL && hash_find(d->m->books, (uint64_t)res_i64(s->pools, row, BOOK), &at))
		book = &d->m->in->books[at];
	if (book == NULL)
		return true;
	count = shared_cost_rows(book, &pool, d->shares, (size_t)PQntuples(d->tenants), d->rows);
	for (size_t i = 0, tenant = 0; i < count; i++) {
		while (d->shares[tenant].tenant != d->rows[i].tenant)
			tenant++;
		if (d->tenant == NULL || strcmp(d->tenant, d->rows[i].tenant) == 0)
			add_part(s, res_i64(d->tenants, (int)tenant, 0), row, &d->rows[i]);
	}
	return true;
}

static int
compare_parts(const void *a, const void *b)
{
	const struct shared_part *x = a, *y = b;

	if (x->tenant != y->tenant)
		return x->tenant < y->tenant ? -1 : 1;
	return (x->pool > y->pool) - (x->pool < y->pool);
}

static bool
is_divided(const struct rating_book *books, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (books[i].shared_idle != SHARED_NONE)
			return true;
	return false;
}

bool
shared_month_load(const struct report_month *m, const struct rating_book *proposed, const char *tenant,
                  struct shared_month *s, struct err *err)
{
	in_place(division) struct division d = {.m = m, .proposed = proposed, .tenant = tenant};

	if (!is_divided(proposed ? proposed : m->in->books, proposed ? 1 : m->in->book_count))
		return true;
	if (!load(&d, s, err))
		return false;
	for (int row = 0; row < PQntuples(s->pools); row++)
		if (!divide(&d, s, row, err))
			return false;
	if (!db_script(m->db, "CLOSE shared_held", err))
		return false;
	if (s->count > 0)
		qsort(s->parts, s->count, sizeof(*s->parts), compare_parts);
	return true;
}

size_t
shared_month_first(const struct shared_month *s, int64_t tenant)
{
	size_t low = 0, high = s->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (s->parts[mid].tenant < tenant)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

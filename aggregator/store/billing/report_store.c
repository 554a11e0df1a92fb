/* aggregator/store/billing/report_store.c - the rating input of a month, tenant by tenant: its bounds, its price books, its rows.
 *
 * Days that are not folded are charged first, into temporary tables; from there on all days are alike. Everything is of one
 * snapshot, that of the caller's transaction where it has one, and memory holds one tenant's month. */
#include "aggregator/store/billing/report_internal.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/core/rating/price_preview.h"
#include "aggregator/store/policy/policy_write.h"
#include "aggregator/store/policy/price_books.h"
#include "aggregator/store/rollup/charges.h"

/* Currency of lines without a price in a ledger that never had a price book. */
#define REPORT_CURRENCY "EUR"

/* Texts of the rating input point into these results. */
struct report_memory {
	PGresult *period, *tenants;
	struct report_month month;
	struct report_rows *parts; /* of the tenants, where all are loaded at once */
	size_t part_count;
	struct usage_day *day_rows;
	struct price_books books;
	struct shared_month shared;
};

void
report_input_free(struct report_input *r)
{
	struct report_memory *m;

	if (!r)
		return;
	m = r->memory;
	PQclear(m->period);
	PQclear(m->tenants);
	PQclear(m->month.clusters);
	PQclear(m->month.centers);
	hash_fini(&m->month.cluster_at);
	price_books_fini(&m->books);
	shared_month_fini(&m->shared);
	mem_free(m->month.dirty);
	for (size_t i = 0; i < m->part_count; i++)
		report_rows_fini(&m->parts[i]);
	mem_free(m->parts);
	mem_free(m->day_rows);
	mem_free(m);
	mem_free(r);
}

/* "2026-11": four digits, a dash, and a month. */
static bool
is_month(const char *text)
{
	for (size_t i = 0; i < 7; i++)
		if (i == 4 ? text[i] != '-' : text[i] < '0' || text[i] > '9')
			return false;
	return text[7] == '\0' && (text[5] == '0' ? text[6] != '0' : text[5] == '1' && text[6] <= '2');
}

static bool
load_period(struct db *db, const char *period, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"report period", "SELECT p.month, to_char(p.starts_at AT TIME ZONE l.zone, 'YYYY-MM-DD'), "
				 "to_char(p.ends_at AT TIME ZONE l.zone, 'YYYY-MM-DD'), p.status, ns_of(p.starts_at), "
				 "ns_of(p.ends_at) FROM period p, ledger l WHERE p.month = $1"};
	struct db_args a = {0};

	if (!is_month(period))
		return err_set(err, ERR_INVALID, "period \"%.40s\" is not a month like 2026-11", period);
	arg_text(&a, period);
	if (!db_run(db, &stmt, &a, ret, err))
		return false;
	return PQntuples(*ret) == 1 || err_set(err, ERR_MISSING, "the ledger has nothing of period %s", period);
}

/* Lines without a price carry the currency of the month's newest book. */
static void
pick_currency(struct rating_input *in)
{
	in->currency = in->book_count > 0 ? in->books[in->book_count - 1].currency : REPORT_CURRENCY;
}

/* --- the month --- */

static bool
load_clusters(struct report_month *m, struct err *err)
{
	static const struct db_stmt stmt = {"report clusters", "SELECT id, name FROM cluster"};

	if (!db_run(m->db, &stmt, NULL, &m->clusters, err))
		return false;
	for (int row = 0; row < PQntuples(m->clusters); row++)
		hash_put(&m->cluster_at, (uint64_t)res_i64(m->clusters, row, 0), (size_t)row);
	return true;
}

static bool
open_days(struct report_month *m, int64_t from_ns, int64_t until_ns, struct err *err)
{
	static const struct db_stmt dirty = {"report dirty",
	                                     "SELECT coalesce(array_agg(b.day), '{}') FROM billing_day b WHERE b.dirty "
	                                     "AND b.starts_at >= $1 AND b.starts_at < $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int64_t count;

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	if (!db_run(m->db, &dirty, &a, &r, err) || !charges_open(m->db, from_ns, until_ns, false, &count, err))
		return false;
	m->dirty = mem_strdup(res_text(r, 0, 0));
	m->open = count > 0;
	return true;
}

/* The cost centres of tenants that had several in the month. */
static bool
load_cost_centers(struct report_month *m, int64_t from_ns, int64_t until_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"report cost centres",
		"SELECT c.tenant_id, c.first_day - $3::date, c.cost_center FROM cost_centers($1, $2) c ORDER BY 1, 2"};
	struct db_args a = {0};

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	arg_text(&a, m->in->period_start);
	return db_run(m->db, &stmt, &a, &m->centers, err);
}

/* Tenants by name, each with its workspaces and the cost centre of the month's last day: that in force when the day begins. */
static bool
load_tenants(struct db *db, const char *tenant, int64_t until_ns, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"report tenants",
		"SELECT t.id, t.name, t.cost_center, w.id, w.name FROM ledger l CROSS JOIN LATERAL "
		"tenants_known(($2::timestamptz AT TIME ZONE l.zone - interval '1 day') AT TIME ZONE l.zone) t "
		"LEFT JOIN workspace w ON w.tenant_id = t.id WHERE $1::text IS NULL OR t.name = $1 "
		"ORDER BY t.name COLLATE \"C\", w.id"};
	struct db_args a = {0};

	arg_text(&a, tenant);
	arg_time(&a, until_ns);
	return db_run(db, &stmt, &a, ret, err);
}

/* Read once for all tenants, because events have no roll-up. Not prepared, so that the plan knows the length of the range. */
static bool
open_meters(struct db *db, int64_t from_ns, int64_t until_ns, const char *tenant, struct err *err)
{
	static const char fill[] =
		"INSERT INTO open_meter_day SELECT m.day - ($1::timestamptz AT TIME ZONE l.zone)::date, "
		"coalesce(m.price_book_id, 0), w.tenant_id, w.id, m.category, m.meter, m.unit, m.sku, m.quantity "
		"FROM ledger l, meter_charges($1, $2) m JOIN workspace w ON w.id = m.workspace_id "
		"JOIN tenant t ON t.id = w.tenant_id WHERE $3::text IS NULL OR t.name = $3";
	struct db_args a = {0};

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	arg_text(&a, tenant);
	return db_run_text(db, fill, &a, NULL, err);
}

static bool
load_month(struct db *db, struct db_tx *tx, enum db_work work, const char *period, const char *tenant,
           struct report_input *r, struct err *err)
{
	struct report_memory *m = r->memory;
	struct rating_input *in = &r->in;
	int64_t from_ns, until_ns;

	if (!db_tx_join_snapshot(tx, db, work, err) || !load_period(db, period, &m->period, err))
		return false;
	in->period = res_text(m->period, 0, 0);
	in->period_start = res_text(m->period, 0, 1);
	in->period_end = res_text(m->period, 0, 2);
	in->period_status = res_text(m->period, 0, 3);
	in->invoice_version = 1;
	from_ns = res_i64(m->period, 0, 4);
	until_ns = res_i64(m->period, 0, 5);
	m->month = (struct report_month){.db = db, .in = in, .books = &m->books.at};
	if (!price_books_load(db, period, &m->books, err) || !load_clusters(&m->month, err) ||
	    !load_cost_centers(&m->month, from_ns, until_ns, err) ||
	    !load_tenants(db, tenant, until_ns, &m->tenants, err) || !charges_tables(db, err) ||
	    (tx->joined && !charges_tables_clear(db, err)) || !open_days(&m->month, from_ns, until_ns, err) ||
	    !open_meters(db, from_ns, until_ns, tenant, err))
		return false;
	in->books = m->books.books;
	in->book_count = m->books.count;
	pick_currency(in);
	m->month.shared = &m->shared;
	return shared_month_load(&m->month, NULL, tenant, &m->shared, err);
}

static struct report_input *
report_input_new(void)
{
	struct report_input *r = mem_alloc(sizeof(*r));

	r->memory = mem_alloc(sizeof(struct report_memory));
	return r;
}

/* Loads the rows of the tenant at *row and moves *row to the next tenant. */
static bool
next_tenant(const struct report_memory *m, const struct report_month *month, int *row, struct report_rows *ret,
            struct err *err)
{
	const PGresult *t = m->tenants;
	int first = *row;

	while (*row < PQntuples(t) && res_i64(t, *row, 0) == res_i64(t, first, 0))
		(*row)++;
	*ret = (struct report_rows){.month = month,
	                            .tenant_id = res_i64(t, first, 0),
	                            .tenant = res_text(t, first, 1),
	                            .cost_center = res_text(t, first, 2),
	                            .workspaces = t,
	                            .first = first,
	                            .end = *row};
	return report_rows_load(ret, err) || err_prefix(err, "tenant %s", ret->tenant);
}

/* The same month, priced by a proposed book alone. */
struct proposal {
	struct rating_input in;
	struct price_books books;
	struct shared_month shared;
	struct report_month month; /* owns nothing */
};

static void
proposal_fini(struct proposal *p)
{
	price_books_fini(&p->books);
	shared_month_fini(&p->shared);
}

static bool
propose(const struct report_input *r, const struct policy_book *book, const char *tenant, struct proposal *p,
        struct err *err)
{
	const struct report_memory *m = r->memory;

	price_books_of(book, &p->books);
	p->in = r->in;
	p->in.books = p->books.books;
	p->in.book_count = 1;
	p->in.currency = book->currency;
	p->month = m->month;
	p->month.in = &p->in;
	p->month.shared = &p->shared;
	p->month.proposed = true;
	return shared_month_load(&p->month, p->books.books, tenant, &p->shared, err);
}

/* Loads the tenant at *row and passes its rows on. */
static bool
step(const struct report_memory *m, const struct report_month *month, struct rating_input *in, int *row,
     report_tenant *each, void *arg, struct err *err)
{
	in_place(report_rows) struct report_rows rows = {0};

	if (!next_tenant(m, month, row, &rows, err))
		return false;
	in->days = rows.at;
	in->day_count = rows.count;
	return rows.count == 0 || each(arg, in, err);
}

static bool
each_tenant(struct db *db, const char *period, const char *tenant, const struct report_steps *steps, void *arg,
            struct err *err)
{
	owned(report_input) struct report_input *r = report_input_new();
	struct report_memory *m = r->memory;
	in_place(proposal) struct proposal then = {0};
	in_place(db_tx) struct db_tx tx = {0};

	if (!load_month(db, &tx, steps->work, period, tenant, r, err))
		return false;
	m->month.final = steps->final;
	if ((steps->begin != NULL && !steps->begin(arg, &r->in, err)) ||
	    (steps->proposed != NULL && !propose(r, steps->proposed, tenant, &then, err)))
		return false;
	for (int row = 0, next, again; row < PQntuples(m->tenants); row = next) {
		next = again = row;
		if (!step(m, &m->month, &r->in, &next, steps->each, arg, err))
			return false;
		if (steps->proposed != NULL && !step(m, &then.month, &then.in, &again, steps->then, arg, err))
			return false;
	}
	r->in.days = NULL;
	r->in.day_count = 0;
	return (steps->end == NULL || steps->end(arg, &r->in, err)) && db_tx_commit(&tx, err);
}

bool
report_each(struct db *db, const char *period, const char *tenant, const struct report_steps *steps, void *arg,
            struct err *err)
{
	bool ok = each_tenant(db, period, tenant, steps, arg, err);

	mem_give_back();
	return ok;
}

bool
store_report_each(struct db *db, const char *period, const char *tenant, report_begin *begin, report_tenant *each,
                  void *arg, struct err *err)
{
	return report_each(db, period, tenant, &(struct report_steps){.begin = begin, .each = each}, arg, err);
}

bool
store_report_load(struct db *db, const char *period, const char *tenant, struct report_input **ret, struct err *err)
{
	owned(report_input) struct report_input *r = report_input_new();
	struct report_memory *m = r->memory;
	in_place(db_tx) struct db_tx tx = {0};
	size_t count = 0;

	if (!load_month(db, &tx, DB_WORK_REPORT, period, tenant, r, err))
		return false;
	m->parts = mem_array((size_t)PQntuples(m->tenants), sizeof(*m->parts));
	for (int row = 0; row < PQntuples(m->tenants);) {
		struct report_rows *part = &m->parts[m->part_count++];

		if (!next_tenant(m, &m->month, &row, part, err))
			return false;
		count += part->count;
	}
	m->day_rows = mem_array(count, sizeof(*m->day_rows));
	for (size_t i = 0; i < m->part_count; i++) {
		if (m->parts[i].count > 0)
			memcpy(m->day_rows + r->in.day_count, m->parts[i].at, m->parts[i].count * sizeof(*m->day_rows));
		r->in.day_count += m->parts[i].count;
	}
	r->in.days = m->day_rows;
	*ret = take(r);
	return db_tx_commit(&tx, err);
}

bool
store_period_now(struct db *db, int64_t now_ns, char ret_period[40], struct err *err)
{
	static const struct db_stmt stmt = {
		"period now",
		"SELECT coalesce((SELECT p.month FROM period p WHERE p.starts_at <= $1 "
		"AND $1 < p.ends_at), to_char($1::timestamptz AT TIME ZONE l.zone, 'YYYY-MM')) FROM ledger l"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_FATAL, "the database has no ledger yet: migrate it first");
	snprintf(ret_period, 40, "%s", res_text(r, 0, 0));
	return true;
}

bool
store_day_start(struct db *db, const char *day, int64_t *ret_ns, struct err *err)
{
	static const struct db_stmt stmt = {"day start",
	                                    "SELECT ns_of($1::date::timestamp AT TIME ZONE l.zone) FROM ledger l"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, day);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_FATAL, "the database has no ledger yet: migrate it first");
	*ret_ns = res_i64(r, 0, 0);
	return true;
}

/* --- a month priced by a proposed book; nothing is written --- */

struct preview {
	struct price_preview rows;
	const char *version;
	struct buf *out;
};

static bool
add_now(void *arg, const struct rating_input *in, struct err *err)
{
	return price_preview_add(&((struct preview *)arg)->rows, in, false, err);
}

static bool
add_then(void *arg, const struct rating_input *in, struct err *err)
{
	return price_preview_add(&((struct preview *)arg)->rows, in, true, err);
}

static bool
write_all(void *arg, const struct rating_input *in, struct err *err)
{
	struct preview *p = arg;

	price_preview_json(&p->rows, in, p->version, p->out);
	return buf_ok(p->out, "the preview", err);
}

bool
store_price_preview(struct db *db, const struct price_request *rq, struct buf *out, struct err *err)
{
	static char no_cluster[] = "";
	static const struct policy none = {.cluster = no_cluster};
	owned(policy) struct policy *now = NULL;
	owned(policy_book) struct policy_book *book = NULL;
	struct preview p = {.out = out};
	struct report_steps steps = {.each = add_now, .then = add_then, .end = write_all};
	bool ok;

	if (!policy_in_force(db, &now, err) ||
	    !policy_parse_book(rq->name, rq->text, rq->len, now ? now : &none, &book, err))
		return false;
	steps.proposed = book;
	p.version = book->version;
	ok = report_each(db, rq->period, rq->tenant, &steps, &p, err);
	price_preview_fini(&p.rows);
	return ok;
}

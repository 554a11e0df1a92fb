/* aggregator/store/report_store.c - what rating needs for a month: its days, its price books, its bounds. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/db.h"
#include "common/idmap.h"

/* Without reservations everything that is allocated is on demand (BILLING 2). */
#define REPORT_CLASS "on-demand"
/* Of lines that have no price in a ledger that never had one. */
#define REPORT_CURRENCY "EUR"

/* Texts of the rating input point into these results. */
struct report_memory {
	PGresult *period, *days, *books, *items;
	struct usage_day *day_rows;
	struct rating_book *book_rows;
	struct rating_item *item_rows;
};

void
report_input_free(struct report_input *r)
{
	struct report_memory *m;

	if (!r)
		return;
	m = r->memory;
	PQclear(m->period);
	PQclear(m->days);
	PQclear(m->books);
	PQclear(m->items);
	mem_free(m->day_rows);
	mem_free(m->book_rows);
	mem_free(m->item_rows);
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

/* --- price books --- */

static const char *
optional(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? NULL : res_text(r, row, col);
}

/* Items are sorted by book and position, books by id: each book's items are one stretch. */
static bool
fill_books(struct report_memory *m, struct rating_input *in, struct idmap *index, struct err *err)
{
	int item = 0, items = PQntuples(m->items);

	in->book_count = (size_t)PQntuples(m->books);
	in->books = m->book_rows = mem_array(in->book_count, sizeof(*m->book_rows));
	m->item_rows = mem_array((size_t)items, sizeof(*m->item_rows));
	for (int i = 0; i < items; i++) {
		m->item_rows[i] = (struct rating_item){
			.sku = res_text(m->items, i, 1),
			.gpu_model = optional(m->items, i, 2),
			.mig_profile = optional(m->items, i, 3),
			.sharing_mode = optional(m->items, i, 4),
			.klass = optional(m->items, i, 5),
		};
		if (!res_i128(m->items, i, 6, PRICE_SCALE, &m->item_rows[i].price, err))
			return false;
	}
	for (size_t b = 0; b < in->book_count; b++) {
		int64_t id = res_i64(m->books, (int)b, 0);
		struct rating_book *book = &m->book_rows[b];

		*book = (struct rating_book){.version = res_text(m->books, (int)b, 1),
		                             .currency = res_text(m->books, (int)b, 2),
		                             .items = m->item_rows + item};
		for (; item < items && res_i64(m->items, item, 0) == id; item++)
			book->item_count++;
		idmap_put(index, (uint64_t)id, b);
	}
	return true;
}

static bool
load_books(struct db *db, struct report_memory *m, struct rating_input *in, struct idmap *index, struct err *err)
{
	static const struct db_stmt books = {
		"report books",
		"SELECT b.id, b.version, b.currency FROM price_book b, period p "
		"WHERE p.month = $1 AND b.effective && tstzrange(p.starts_at, p.ends_at) ORDER BY b.id"};
	static const struct db_stmt items = {
		"report items", "SELECT i.book_id, i.sku, i.gpu_model, i.mig_profile, i.sharing_mode, i.class, i.price "
				"FROM price_item i JOIN price_book b ON b.id = i.book_id, period p "
				"WHERE p.month = $1 AND b.effective && tstzrange(p.starts_at, p.ends_at) "
				"ORDER BY i.book_id, i.position"};
	struct db_args a = {0};

	arg_text(&a, in->period);
	return db_run(db, &books, &a, &m->books, err) && db_run(db, &items, &a, &m->items, err) &&
	       fill_books(m, in, index, err);
}

/* Lines without a price carry the currency of the month's newest book. */
static void
pick_currency(struct rating_input *in)
{
	in->currency = in->book_count > 0 ? in->books[in->book_count - 1].currency : REPORT_CURRENCY;
}

/* --- days --- */

static bool
fill_day(const PGresult *r, int row, const struct idmap *books, struct usage_day *d, struct err *err)
{
	size_t book = 0;

	*d = (struct usage_day){
		.day = (int32_t)res_i64(r, row, 0),
		.cluster = res_text(r, row, 1),
		.tenant = res_text(r, row, 2),
		.cost_center = res_text(r, row, 3),
		.workspace = res_text(r, row, 4),
		.gpu_model = res_text(r, row, 5),
		.mig_profile = res_text(r, row, 6),
		.sharing_mode = res_text(r, row, 7),
		.klass = REPORT_CLASS,
		.instance_units = res_i64(r, row, 8),
		.price_book = -1,
	};
	if (!res_null(r, row, 9)) {
		if (!idmap_find(books, (uint64_t)res_i64(r, row, 9), &book))
			return err_set(err, ERR_FATAL, "price book %s is in force but was not loaded",
			               res_text(r, row, 9));
		d->price_book = (int64_t)book;
	}
	return res_i128(r, row, 10, 0, &d->used_unit_ns, err) && res_i128(r, row, 11, 0, &d->idle_unit_ns, err) &&
	       res_i128(r, row, 12, 0, &d->unmeasured_unit_ns, err) && res_i128(r, row, 13, 0, &d->energy_mj, err);
}

/* Not prepared: a plan that does not know how long the period is would be made for a few rows. */
#define DAYS_SQL                                                                                           \
	"SELECT u.day - ($1::timestamptz AT TIME ZONE l.zone)::date, c.name, t.name, t.cost_center, "      \
	"w.name, u.gpu_model, u.profile, sharing_name(u.sharing), u.units, u.price_book_id, sum(u.used), " \
	"sum(u.idle), sum(u.unmeasured), sum(u.energy_mj) FROM ledger l, daily_rows($1, $2) u "            \
	"JOIN cluster c ON c.id = u.cluster_id JOIN workspace w ON w.id = u.workspace_id "                 \
	"JOIN tenant t ON t.id = w.tenant_id WHERE $3::text IS NULL OR t.name = $3 "                       \
	"GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 ORDER BY 2, 3, 5, 6, 7, 8, 9, 1, 10"

static bool
load_days(struct db *db, struct report_memory *m, struct rating_input *in, const char *tenant,
          const struct idmap *books, struct err *err)
{
	struct db_args a = {0};

	arg_time(&a, res_i64(m->period, 0, 4));
	arg_time(&a, res_i64(m->period, 0, 5));
	arg_text(&a, tenant);
	if (!db_run_text(db, DAYS_SQL, &a, &m->days, err))
		return false;
	in->day_count = (size_t)PQntuples(m->days);
	in->days = m->day_rows = mem_array(in->day_count, sizeof(*m->day_rows));
	for (size_t i = 0; i < in->day_count; i++)
		if (!fill_day(m->days, (int)i, books, &m->day_rows[i], err))
			return false;
	return true;
}

bool
store_report_load(struct db *db, const char *period, const char *tenant, struct report_input **ret, struct err *err)
{
	owned(report_input) struct report_input *r = mem_alloc(sizeof(*r));
	in_place(idmap) struct idmap books = {0};
	in_place(db_tx) struct db_tx tx = {0};
	struct report_memory *m = r->memory = mem_alloc(sizeof(*m));
	struct rating_input *in = &r->in;

	if (!db_tx_begin_read(&tx, db, err) || !load_period(db, period, &m->period, err))
		return false;
	in->period = res_text(m->period, 0, 0);
	in->period_start = res_text(m->period, 0, 1);
	in->period_end = res_text(m->period, 0, 2);
	in->period_status = res_text(m->period, 0, 3);
	in->invoice_version = 1;
	if (!load_books(db, m, in, &books, err) || !load_days(db, m, in, tenant, &books, err))
		return false;
	pick_currency(in);
	*ret = take(r);
	return true;
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

/* aggregator/store/close/period_close.c - the close of a month, in one transaction.
 *
 * Rules, in order:
 *  1. one close at a time, in any replica; another one is refused
 *  2. its checks come first: a final check that fails refuses it, any other needs a reason, which is stored and audited
 *  3. corrections of the months before it are computed first, each in a snapshot of its own
 *  4. everything is written in one transaction, tenant by tenant, of one snapshot: a close that dies leaves nothing
 *  5. a job writes the rows that it verified: where the rows have changed since, it must verify again
 *  6. the lines written are rated a second time (verify_lines.c), with the months that it corrects: a close whose lines differ is refused
 *  7. the month becomes closed with the last statement; changes during the close are in late_change, and corrected later */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/rating/rating_file.h"
#include "aggregator/store/billing/document.h"
#include "aggregator/store/billing/period_internal.h"
#include "aggregator/store/verify/verify_ledger.h"

#define PRICES_MAX (64u << 20)
#define FACTS_MAX (256u << 20)

struct closing {
	const struct period_close *rq;
	const struct period_checks *checks;
	const struct corrections *corrections;
	size_t next; /* of the corrections */
	struct db_array *seen;
	struct period_writer w;
	struct rating_input month; /* as of a closed month, without rows */
	struct buf facts;          /* facts of the documents beside their lines, as archived */
	struct month_facts *read;  /* the same */
	struct buf *out;
	char *after; /* the entry of the audit log */
	int64_t tenants, tenants_done;
};

/* --- rule 2 --- */

static bool
allowed(const struct period_checks *c, const struct period_close *rq, struct err *err)
{
	in_place(buf) struct buf found = {0};
	bool final = false, fails = false;

	buf_init(&found, 4096);
	if (strcmp(c->status, "closed") == 0)
		return err_set(err, ERR_CONFLICT, "period %s is closed", rq->month);
	for (enum period_check i = 0; i < PERIOD_CHECKS; i++) {
		char number[DECIMAL_TEXT_SIZE], threshold[DECIMAL_TEXT_SIZE];

		if (!period_check_fails(c, i))
			continue;
		fails = true;
		final |= period_check_final(i);
		buf_printf(&found, "%s%s is %s (at most %s)", found.len > 0 ? ", " : "", period_check_name(i),
		           decimal_format(c->at[i].number, 0, 0, number),
		           decimal_format(c->at[i].threshold, 0, 0, threshold));
		if (i == CHECK_UNRATED)
			buf_printf(&found, ": %s", c->unrated);
	}
	if (final)
		return err_set(err, ERR_CONFLICT, "period %s cannot be closed: %s", rq->month, buf_text(&found));
	return !fails || rq->reason[0] != '\0' ||
	       err_set(err, ERR_CONFLICT, "period %s can be closed with a reason only: %s", rq->month,
	               buf_text(&found));
}

/* --- rule 5 --- */

#define OF_DAYS(table) "SELECT '" table "', t::text FROM " table " t JOIN days d ON d.day = t.day UNION ALL "
#define OF_ALL(table) "SELECT '" table "', t::text FROM " table " t UNION ALL "

bool
store_period_fingerprint(struct db *db, const char *month, period_fingerprint ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"period fingerprint",
		"WITH days AS (SELECT b.day FROM billing_day b JOIN period p ON b.starts_at >= p.starts_at AND b.starts_at < p.ends_at WHERE p.month = $1 OR "
		"p.month IN (SELECT l.month FROM late_change l)), x(name, row) AS (" OF_DAYS("usage_daily") OF_DAYS(
			"charge_day") OF_DAYS("reserve_day") OF_DAYS("loan_day") OF_DAYS("pool_day") OF_ALL("price_book")
			OF_ALL("price_item") OF_ALL("price_discount") OF_ALL("price_site") OF_ALL("price_weight") OF_ALL(
				"adjustment") OF_ALL("adjustment_approval") OF_ALL("tenant") OF_ALL("tenant_term")
				OF_ALL("workspace_term") "SELECT 'workspace', t::text FROM workspace t) "
							 "SELECT encode(sha256(coalesce(string_agg(h.sha, ''::bytea ORDER BY h.sha), ''::bytea)), 'hex') FROM (SELECT "
							 "sha256(convert_to(x.name || ' ' || x.row, 'UTF8')) AS sha FROM x) h"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	snprintf(ret, sizeof(period_fingerprint), "%s", res_text(r, 0, 0));
	return true;
}

/* --- rule 4 --- */

/* The month before is closed, or there is none. */
static bool
load_facts(struct closing *c, struct err *err)
{
	in_place(previous_month) struct previous_month previous = {0};
	const struct facts_request rq = {.organisation = c->rq->organisation,
	                                 .provider = c->rq->provider,
	                                 .now_ns = c->rq->now_ns,
	                                 .closing = true};

	return previous_month_load(c->w.db, c->rq->month, NULL, &previous, err) &&
	       document_facts(c->w.db, &c->month, &rq, &previous, &c->facts, err) &&
	       month_facts_read(buf_text(&c->facts), c->facts.len, &c->read, err);
}

/* Rule 5. */
static bool
still_as_verified(const struct closing *c, struct err *err)
{
	period_fingerprint now;

	if (c->rq->verified == NULL)
		return true;
	return store_period_fingerprint(c->w.db, c->rq->month, now, err) &&
	       (strcmp(now, c->rq->verified) == 0 ||
	        err_set(err, ERR_RETRY, "the rows of period %s have changed since it was verified", c->rq->month));
}

static bool
begin_close(void *arg, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt stmt = {"period lock",
	                                    "SELECT p.status, (SELECT coalesce(max(number), 0) FROM invoice), "
	                                    "(SELECT count(*) FROM tenant) "
	                                    "FROM period p WHERE p.month = $1 FOR UPDATE OF p"};
	struct closing *c = arg;
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, c->rq->month);
	if (!db_run(c->w.db, &stmt, &a, &r, err))
		return false;
	if (strcmp(res_text(r, 0, 0), "closed") == 0)
		return err_set(err, ERR_CONFLICT, "period %s is closed", c->rq->month);
	c->w.number = res_i64(r, 0, 1);
	c->tenants = res_i64(r, 0, 2);
	c->month = *in;
	c->month.period_status = "closed";
	return still_as_verified(c, err) && load_facts(c, err) &&
	       period_documents_begin(&c->w.documents, c->read, &c->month, err);
}

static bool
write_tenant(struct closing *c, const struct rating_input *in, const char *tenant, const struct rated *rated,
             struct err *err)
{
	in_place(rated_view) struct rated_view view = {0};
	const struct rated_line *corrections = NULL;
	size_t n = corrections_of(c->corrections, tenant, &corrections);

	rated_view_make(&view, rated, corrections, n);
	c->next += n;
	return view.rated.count == 0 || period_write_tenant(&c->w, in, tenant, &view.rated, err);
}

/* Tenants come by name; those with corrections only are between them. before NULL: all that are left. */
static bool
write_corrected(struct closing *c, const char *before, struct err *err)
{
	while (c->next < c->corrections->count &&
	       (before == NULL || strcmp(c->corrections->lines[c->next].tenant, before) < 0))
		if (!write_tenant(c, &c->month, c->corrections->lines[c->next].tenant, NULL, err))
			return false;
	return true;
}

static bool
close_tenant(void *arg, const struct rating_input *in, struct err *err)
{
	struct closing *c = arg;
	struct rating_input mine = *in;
	owned(rated) struct rated *rated = NULL;
	const char *tenant = in->days[0].tenant;

	mine.period_status = "closed";
	if (c->rq->progress != NULL &&
	    !c->rq->progress(c->rq->progress_arg, c->tenants_done++, c->tenants, tenant, err))
		return false;
	if (!write_corrected(c, tenant, err))
		return false;
	if (!rating_run(&mine, &rated, err))
		return db_damaged(err);
	for (size_t i = 0; i < rated->count; i++)
		if (!rated->lines[i].priced && c->rq->reason[0] == '\0')
			return err_set(err, ERR_CONFLICT,
			               "period %s can be closed with a reason only: line %s of tenant %s %s",
			               in->period, rated->lines[i].line_id, tenant,
			               rated->lines[i].unrated ? "cannot be rated" : "has no price");
	return write_tenant(c, &mine, tenant, rated, err);
}

/* --- rule 6 --- */

/* Without corrected months that have later changes in this snapshot, which are corrected again, and without months of earlier rules. */
static bool
rate_again(const struct closing *c, struct err *err)
{
	static const struct db_stmt stmt = {
		"period months billed",
		"SELECT $1 UNION SELECT i.month FROM invoice i WHERE i.closed_in = $1 AND NOT EXISTS (SELECT FROM late_change l WHERE l.month = "
		"i.month) AND EXISTS (SELECT FROM period_close k WHERE k.month = i.month AND k.rating_rules = $2::bigint) ORDER BY 1"};
	owned(result) PGresult *months = NULL;
	struct db_args a = {0};

	arg_text(&a, c->rq->month);
	arg_i64(&a, RATING_RULES);
	if (!db_run(c->w.db, &stmt, &a, &months, err))
		return false;
	for (int row = 0; row < PQntuples(months); row++) {
		owned(result) PGresult *r = NULL;

		if (!verify_lines(c->w.db, res_text(months, row, 0), &r, err))
			return false;
		if (!res_null(r, 0, 0))
			return err_set(
				err, ERR_CONFLICT,
				"period %s cannot be closed: line %s of invoice %.160s, %s: rated a second time it is %s, not %s",
				c->rq->month, res_text(r, 0, 0), res_text(r, 0, 1), res_text(r, 0, 2),
				res_text(r, 0, 3), res_text(r, 0, 4));
	}
	return true;
}

/* --- rule 7 --- */

static bool
record_close(struct closing *c, const uint8_t input[SHA256_SIZE], const uint8_t output[SHA256_SIZE], struct err *err)
{
	static const struct db_stmt stmt = {
		"period close",
		"WITH made AS (INSERT INTO period_close (month, closed_at, actor, reason, checks, price_versions, input_sha256, "
		"prices_sha256, output_sha256, rating_rules) VALUES ($1, $2, $3, $4, $5::jsonb, $6::text[], $7, $8, $9, $13::integer) RETURNING *) "
		"INSERT INTO audit_log (actor, action, subject, before, after, reason) SELECT m.actor, 'period.close', 'period ' || m.month, "
		"jsonb_build_object('status', p.status), jsonb_build_object('status', 'closed', 'checks', m.checks, 'price_versions', "
		"to_jsonb(m.price_versions), 'invoices', $10::bigint, 'lines', $11::bigint, 'corrections', $12::bigint, 'input_sha256', "
		"encode(m.input_sha256, 'hex'), 'prices_sha256', encode(m.prices_sha256, 'hex'), 'output_sha256', "
		"encode(m.output_sha256, 'hex')), m.reason FROM made m JOIN period p ON p.month = m.month RETURNING after"};
	in_place(buf) struct buf checks = {0};
	struct db_array versions;
	uint8_t prices[SHA256_SIZE];
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	bool ok;

	buf_init(&checks, 64u << 10);
	period_checks_array(c->checks, &checks);
	db_array_init(&versions);
	for (size_t i = 0; i < c->month.book_count; i++)
		array_text(&versions, c->month.books[i].version);
	period_prices_sha256(&c->month, prices);
	arg_text(&a, c->rq->month);
	arg_time(&a, c->rq->now_ns);
	arg_text(&a, c->rq->actor);
	arg_text(&a, c->rq->reason);
	arg_text(&a, buf_text(&checks));
	arg_array(&a, &versions);
	arg_bytes(&a, input, SHA256_SIZE);
	arg_bytes(&a, prices, SHA256_SIZE);
	arg_bytes(&a, output, SHA256_SIZE);
	arg_i64(&a, c->w.invoices);
	arg_i64(&a, c->w.lines);
	arg_i64(&a, c->w.corrections);
	arg_i64(&a, RATING_RULES);
	ok = db_run(c->w.db, &stmt, &a, &r, err);
	db_array_fini(&versions);
	if (ok) {
		c->after = mem_strdup(res_text(r, 0, 0));
		buf_printf(c->out, "{\"period\":\"%s\",\"closed\":%s}\n", c->rq->month, c->after);
	}
	return ok;
}

/* The row of a job that was cancelled meanwhile differs from this snapshot: the server then refuses the transaction. */
static bool
end_job(struct closing *c, struct err *err)
{
	static const struct db_stmt stmt = {
		"period job ends",
		"UPDATE close_job SET state = 'closed', stage = 'done', ended_at = now(), closed = $2::jsonb "
		"WHERE month = $1 AND state = 'running' RETURNING month"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	if (c->rq->progress == NULL)
		return true;
	arg_text(&a, c->rq->month);
	arg_text(&a, c->after);
	if (!db_run(c->w.db, &stmt, &a, &r, err))
		return false;
	return PQntuples(r) == 1 || err_set(err, ERR_CONFLICT, "the close of %s was cancelled", c->rq->month);
}

static bool
end_close(void *arg, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt billed = {"period billed changes",
	                                      "DELETE FROM late_change WHERE id = ANY ($1::bigint[])"};
	static const struct db_stmt own = {"period own changes", "DELETE FROM late_change WHERE month = $1"};
	/* A dirty day makes no note when it changes again: its month is corrected again, whenever it was closed. */
	static const struct db_stmt dirty = {
		"period dirty days",
		"INSERT INTO late_change (month) SELECT p.month FROM period p WHERE (p.month = $1 OR p.status = 'closed') AND EXISTS ("
		"SELECT FROM billing_day b WHERE b.dirty AND b.starts_at >= p.starts_at AND b.starts_at < p.ends_at)"};
	static const struct db_stmt closed = {"period closed",
	                                      "UPDATE period SET status = 'closed', closed_at = $2 WHERE month = $1"};
	struct closing *c = arg;
	uint8_t input[SHA256_SIZE], output[SHA256_SIZE];
	struct db_args seen = {0}, month = {0}, at = {0};

	(void)in;
	arg_array(&seen, c->seen);
	arg_text(&month, c->rq->month);
	arg_text(&at, c->rq->month);
	arg_time(&at, c->rq->now_ns);
	if (!write_corrected(c, NULL, err) || !period_write_all(&c->w, &c->month, &c->facts, err))
		return false;
	sha256_end(c->w.input, input);
	sha256_end(c->w.output, output);
	c->w.input = c->w.output = NULL;
	return record_close(c, input, output, err) && db_run(c->w.db, &billed, &seen, NULL, err) &&
	       db_run(c->w.db, &own, &month, NULL, err) && db_run(c->w.db, &dirty, &month, NULL, err) &&
	       rate_again(c, err) && end_job(c, err) && db_run(c->w.db, &closed, &at, NULL, err);
}

static bool
close_now(struct db *db, const struct period_close *rq, struct buf *out, struct err *err)
{
	static const struct report_steps steps = {
		.final = true, .work = DB_WORK_CLOSE, .begin = begin_close, .each = close_tenant, .end = end_close};
	struct corrections corrections;
	struct db_array seen;
	struct period_checks checks;
	struct closing c = {.rq = rq,
	                    .checks = &checks,
	                    .corrections = &corrections,
	                    .seen = &seen,
	                    .out = out,
	                    .w = {.db = db, .month = rq->month}};
	bool ok;

	corrections_init(&corrections);
	db_array_init(&seen);
	buf_init(&c.facts, FACTS_MAX);
	c.w.input = sha256_begin();
	c.w.output = sha256_begin();
	ok = store_period_check(db, rq->month, rq->now_ns, &rq->thresholds, &checks, err) &&
	     allowed(&checks, rq, err) && period_corrections(db, rq->month, NULL, &corrections, &seen, err) &&
	     report_each(db, rq->month, NULL, &steps, &c, err);
	sha256_drop(c.w.input);
	sha256_drop(c.w.output);
	period_documents_fini(&c.w.documents);
	month_facts_free(c.read);
	mem_free(c.after);
	buf_fini(&c.facts);
	db_array_fini(&seen);
	corrections_fini(&corrections);
	return ok;
}

bool
store_period_closable(struct db *db, const struct period_close *rq, struct err *err)
{
	struct period_checks checks;

	return store_period_check(db, rq->month, rq->now_ns, &rq->thresholds, &checks, err) &&
	       allowed(&checks, rq, err);
}

/* Rule 1. A job has the lock already. */
bool
store_period_close(struct db *db, const struct period_close *rq, struct buf *out, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct err unlock = {0};
	bool ok;

	if (rq->progress != NULL)
		return close_now(db, rq, out, err);
	if (!db_run_text(db, "SELECT pg_try_advisory_lock(" DB_LOCK_CLOSE ")", NULL, &r, err))
		return false;
	if (!res_bool(r, 0, 0))
		return err_set(err, ERR_CONFLICT, "a period is being closed at this moment");
	ok = close_now(db, rq, out, err);
	/* A session that cannot give the lock back ends, and the lock with it. */
	if (!db_script(db, "SELECT pg_advisory_unlock(" DB_LOCK_CLOSE ")", &unlock))
		db_drop(db);
	return ok;
}

void
period_prices_sha256(const struct rating_input *in, uint8_t ret[SHA256_SIZE])
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, PRICES_MAX);
	rating_file_prices(in, &text);
	sha256(buf_text(&text), text.len, ret);
}

/* --- the schedule --- */

bool
store_period_grace(struct db *db, int64_t now_ns, int64_t *ret_changed, struct err *err)
{
	static const struct db_stmt stmt = {
		"period grace",
		"UPDATE period SET status = 'grace' WHERE status = 'open' AND ends_at <= $1 RETURNING month"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &stmt, &a, &r, err))
		return false;
	*ret_changed = PQntuples(r);
	return db_tx_commit(&tx, err);
}

bool
store_period_due(struct db *db, int64_t now_ns, int64_t after_ns, char ret_month[8], struct err *err)
{
	static const struct db_stmt stmt = {
		"period due",
		"SELECT CASE WHEN j.month IS NULL THEN p.month ELSE '' END FROM period p LEFT JOIN close_job j ON j.month = p.month "
		"AND (j.state = 'running' OR j.ended_at > now() - interval '1 hour') WHERE p.status <> 'closed' AND p.ends_at <= $1 "
		"ORDER BY p.starts_at LIMIT 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns - after_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	snprintf(ret_month, 8, "%.7s", PQntuples(r) > 0 ? res_text(r, 0, 0) : "");
	return true;
}

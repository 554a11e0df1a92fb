/* aggregator/store/close/close_job.c - the job that closes a month: any replica runs it, and another one resumes it when that one dies.
 *
 * Rules, in order:
 *  1. a request whose checks fail is refused with the reason, and makes no job
 *  2. one replica at a time works, under an advisory lock of its session: the lock ends with the process
 *  3. the month is verified first, from the batches, which are all anchored by then, to the charges, with the months whose corrections it bills and
 *     the chains of the audit log. A difference refuses the close, and so does an hour that cannot be verified; the job names them
 *  4. then it is written, in one transaction whose last statements end the job and make the month closed (period_close.c)
 *  5. a replica that resumes the job verifies again, and writes only rows that it has verified itself
 *  6. a cancel ends the job; the work stops at its next step and cannot be committed
 *  7. a transient error (the database is away, the program ends) leaves the job as it is; any other ends it with its reason */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/access/access.h"
#include "aggregator/store/billing/period_internal.h"
#include "aggregator/store/verify/verify.h"
#include "common/base/time.h"

#define DIFFERENCES_TOLD "99" /* the number of the last that the job has */
#define DIFFERENCES_MAX (64u << 20)
#define ATTEMPTS_MAX 100
#define TELL_EVERY_NS (NS_PER_S / 4)

/* --- asking --- */

bool
store_close_request(struct db *db, const struct period_close *rq, struct err *err)
{
	static const struct db_stmt stmt = {"close request", "SELECT close_request($1, $2, $3, $4, $5, $6, $7, $8)"};
	struct db_args a = {0};

	if (!store_period_closable(db, rq, err))
		return false;
	arg_text(&a, rq->month);
	arg_text(&a, rq->actor);
	arg_text(&a, rq->reason);
	arg_text(&a, rq->organisation);
	arg_text(&a, rq->provider);
	arg_i64(&a, rq->thresholds.unknown_ppm);
	arg_i64(&a, rq->thresholds.unattributed_ppm);
	arg_i64(&a, rq->thresholds.grace_ns);
	return db_write(db, &stmt, &a, NULL, err);
}

bool
store_close_json(struct db *db, const char *month, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"close json",
		"SELECT json_build_object('period', j.month, 'state', j.state, 'stage', j.stage, 'step', coalesce(p.step, ''), "
		"'done', coalesce(p.done, 0), 'total', coalesce(p.total, 0), 'actor', j.actor, 'reason', j.reason, 'asked', rfc3339(j.asked_at), "
		"'updated', rfc3339(greatest(j.asked_at, p.at, j.ended_at)), 'ended', rfc3339(j.ended_at), 'attempts', j.attempts, 'error', j.error, "
		"'proof', j.proof, 'differences', j.differences, 'closed', j.closed) "
		"FROM close_job j LEFT JOIN close_progress p ON p.month = j.month WHERE j.month = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "nobody has asked for period %.40s to be closed", month);
	buf_printf(out, "%s\n", res_text(r, 0, 0));
	return true;
}

bool
store_close_cancel(struct db *db, const char *month, const char *actor, struct err *err)
{
	static const struct db_stmt stmt = {"close cancel", "SELECT close_cancel($1, $2)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, actor);
	if (!db_write(db, &stmt, &a, &r, err))
		return false;
	return res_bool(r, 0, 0) || err_set(err, ERR_CONFLICT, "period %.40s is not being closed", month);
}

/* --- working --- */

struct job {
	const struct close_work *w;
	char month[8];
	char *actor, *reason, *organisation, *provider;
	struct period_thresholds thresholds;
	int64_t attempts, told_ns; /* told_ns: boot clock; 0: never */
	bool cancelled;
};

static void
job_fini(struct job *j)
{
	char *texts[] = {j->actor, j->reason, j->organisation, j->provider};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		mem_free(texts[i]);
}

/* False, and month "": there is none. */
static bool
take_up(struct job *j, struct err *err)
{
	static const struct db_stmt stmt = {
		"close take up",
		"UPDATE close_job j SET attempts = j.attempts + 1, stage = 'prove' FROM (SELECT month FROM close_job WHERE state = 'running' ORDER BY month LIMIT 1) x "
		"WHERE j.month = x.month AND j.state = 'running' RETURNING j.month, j.actor, j.reason, j.organisation, j.provider, j.unknown_ppm, "
		"j.unattributed_ppm, j.grace_ns, j.attempts"};
	owned(result) PGresult *r = NULL;

	if (!db_write(j->w->status, &stmt, NULL, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return true;
	snprintf(j->month, sizeof(j->month), "%.7s", res_text(r, 0, 0));
	j->actor = mem_strdup(res_text(r, 0, 1));
	j->reason = mem_strdup(res_text(r, 0, 2));
	j->organisation = mem_strdup(res_text(r, 0, 3));
	j->provider = mem_strdup(res_text(r, 0, 4));
	j->thresholds = (struct period_thresholds){.unknown_ppm = res_i64(r, 0, 5),
	                                           .unattributed_ppm = res_i64(r, 0, 6),
	                                           .grace_ns = res_i64(r, 0, 7)};
	j->attempts = res_i64(r, 0, 8);
	return true;
}

/* Rules 6 and 7, between two steps. */
static bool
report_progress(void *job, int64_t done, int64_t total, const char *step, struct err *err)
{
	static const struct db_stmt stmt = {
		"close progress",
		"WITH told AS (INSERT INTO close_progress (month, step, done, total) VALUES ($1, $2, $3, $4) ON CONFLICT (month) "
		"DO UPDATE SET step = excluded.step, done = excluded.done, total = excluded.total, at = now()) "
		"SELECT state = 'running' FROM close_job WHERE month = $1"};
	struct job *j = job;
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int64_t now_ns = time_boot_ns();

	if (!j->w->go_on(j->w->arg))
		return err_set(err, ERR_RETRY, "the close of %s goes on when the program is there again", j->month);
	if (j->told_ns != 0 && now_ns - j->told_ns < TELL_EVERY_NS)
		return true;
	arg_text(&a, j->month);
	arg_text(&a, step);
	arg_i64(&a, done);
	arg_i64(&a, total > done ? total : done);
	if (!db_put(j->w->status, &stmt, &a, &r, err))
		return false;
	j->told_ns = now_ns;
	j->cancelled = PQntuples(r) == 0 || !res_bool(r, 0, 0);
	return !j->cancelled || err_set(err, ERR_CONFLICT, "the close of %s was cancelled", j->month);
}

/* Ends the job; an end that is not "closed" is in the audit log. */
static bool
end(const struct job *j, const char *state, const char *text, const char *proof, const char *differences,
    struct err *err)
{
	static const struct db_stmt stmt = {
		"close end",
		"WITH ended AS (UPDATE close_job SET state = $2, ended_at = now(), error = $3, proof = coalesce($4::jsonb, proof), "
		"differences = coalesce(jsonb_path_query_array($5::jsonb, '$[0 to " DIFFERENCES_TOLD
		"]'), differences) WHERE month = $1 AND state = 'running' RETURNING *) "
		"INSERT INTO audit_log (actor, action, subject, after, reason) SELECT e.actor, 'period.close-' || e.state, 'period ' || e.month, "
		"jsonb_strip_nulls(jsonb_build_object('error', e.error, 'proof', e.proof)), e.reason FROM ended e"};
	struct db_args a = {0};

	arg_text(&a, j->month);
	arg_text(&a, state);
	arg_text(&a, text);
	arg_text(&a, proof);
	arg_text(&a, differences);
	return db_put(j->w->status, &stmt, &a, NULL, err);
}

static void
write_proof(const struct verify_counts *c, struct buf *out)
{
	buf_printf(out,
	           "{\"differences\":%" PRId64 ",\"nodes\":%" PRId64 ",\"hours\":%" PRId64 ",\"batches\":%" PRId64
	           ",\"records\":%" PRId64 ",\"days\":%" PRId64 ",\"charges\":%" PRId64 ",\"hours_pending\":%" PRId64
	           ",\"hours_unproved\":%" PRId64 ",\"days_open\":%" PRId64 ",\"days_gone\":%" PRId64
	           ",\"quarantined\":%" PRId64 ",\"unanchored\":%" PRId64 ",\"schema\":%" PRId64 "}",
	           c->differences, c->nodes, c->hours, c->batches, c->records, c->days, c->charges, c->hours_pending,
	           c->hours_unproved, c->days_open, c->days_gone, c->quarantined, c->unanchored, c->schema);
}

/* Anchors the batches first: the bill is made from batches that cannot be changed unnoticed. */
static bool
anchor(struct job *j, struct err *err)
{
	int64_t batches, done = 0;
	bool more;

	do {
		if (!report_progress(j, done, done, "batches", err) ||
		    !store_batches_anchor(j->w->work, &batches, &more, err))
			return false;
		done += batches;
	} while (more);
	return true;
}

/* Rule 3. */
static bool
verify(struct job *j, bool *ret_sound, struct close_outcome *ret, struct err *err)
{
	static const struct db_stmt stage = {"close proved", "UPDATE close_job SET stage = 'write', proof = $2::jsonb "
	                                                     "WHERE month = $1 AND state = 'running'"};
	struct verify_counts counts = {0};
	in_place(buf) struct buf differences = {0}, proof = {0};
	struct db_args a = {0};
	int64_t unverified;

	buf_init(&differences, DIFFERENCES_MAX);
	buf_init(&proof, 4096);
	if (!anchor(j, err) ||
	    !store_verify_month(j->w->work, j->month, report_progress, j, &counts, &differences, err))
		return false;
	write_proof(&counts, &proof);
	unverified = counts.hours_pending + counts.hours_unproved;
	*ret_sound = counts.differences == 0 && unverified == 0;
	if (*ret_sound) {
		arg_text(&a, j->month);
		arg_text(&a, buf_text(&proof));
		return db_put(j->w->status, &stage, &a, NULL, err);
	}
	ret->state = CLOSE_REFUSED;
	if (counts.differences > 0 && counts.differences == counts.schema_differences)
		snprintf(
			ret->text, sizeof(ret->text),
			"period %s cannot be closed: the schema of the database is not the one that this version makes, in %" PRId64
			" places",
			j->month, counts.differences);
	else if (counts.differences > 0)
		snprintf(ret->text, sizeof(ret->text),
		         "period %s cannot be closed: it is not what its batches say, in %" PRId64 " places", j->month,
		         counts.differences);
	else
		snprintf(ret->text, sizeof(ret->text),
		         "period %s cannot be closed: %" PRId64 " of its node-hours cannot be verified, %" PRId64
		         " of them because late records are still being ingested",
		         j->month, unverified, counts.hours_pending);
	return end(j, "refused", ret->text, buf_text(&proof), buf_text(&differences), err);
}

/* Rules 3 to 5. The fingerprint is taken first: rows that change during the verification are verified again. */
static bool
run(struct job *j, struct close_outcome *ret, struct err *err)
{
	struct period_close rq = {.month = j->month,
	                          .actor = j->actor,
	                          .reason = j->reason,
	                          .organisation = j->organisation,
	                          .provider = j->provider,
	                          .now_ns = time_wall_ns(),
	                          .thresholds = j->thresholds,
	                          .progress = report_progress,
	                          .progress_arg = j};
	in_place(buf) struct buf reply = {0};
	period_fingerprint verified;
	bool sound = true;

	buf_init(&reply, 1u << 20);
	if (!store_period_fingerprint(j->w->work, j->month, verified, err) || !verify(j, &sound, ret, err))
		return false;
	rq.verified = verified;
	j->told_ns = 0;
	if (!sound || !report_progress(j, 0, 0, "corrections", err))
		return !sound;
	rq.now_ns = time_wall_ns();
	if (!store_period_close(j->w->work, &rq, &reply, err))
		return false;
	ret->state = CLOSE_CLOSED;
	return true;
}

/* Rule 7: ends the job after a lasting error; false: try again. */
static bool
end_after_error(struct job *j, struct close_outcome *ret, struct err *err)
{
	bool refused = err->kind == ERR_CONFLICT || err->kind == ERR_INVALID || err->kind == ERR_MISSING;
	struct err why = *err;

	if (j->cancelled) {
		ret->state = CLOSE_CANCELLED;
		return true;
	}
	/* If it is unknown whether the month was closed, the next look at the job's row tells: the job is closed with
	 * the month. */
	if (err->kind == ERR_UNKNOWN || (err->kind == ERR_RETRY && j->attempts < ATTEMPTS_MAX))
		return false;
	ret->state = refused ? CLOSE_REFUSED : CLOSE_FAILED;
	snprintf(ret->text, sizeof(ret->text), "%s", why.text);
	return end(j, refused ? "refused" : "failed", why.text, NULL, NULL, err);
}

/* Rule 2. */
bool
store_close_work(const struct close_work *w, struct close_outcome *ret, struct err *err)
{
	in_place(job) struct job j = {.w = w};
	owned(result) PGresult *r = NULL;
	struct err unlock = {0};
	bool ok;

	*ret = (struct close_outcome){.state = CLOSE_NONE};
	if (!db_run_text(w->work, "SELECT pg_try_advisory_lock(" DB_LOCK_CLOSE ")", NULL, &r, err))
		return false;
	if (!res_bool(r, 0, 0))
		return true;
	ok = take_up(&j, err);
	if (ok && j.month[0] != '\0') {
		snprintf(ret->month, sizeof(ret->month), "%s", j.month);
		snprintf(ret->actor, sizeof(ret->actor), "%s", j.actor);
		ret->state = CLOSE_RUNNING;
		ok = run(&j, ret, err) || end_after_error(&j, ret, err);
	}
	/* A session that cannot give the lock back ends, and the lock with it. */
	if (!db_script(w->work, "SELECT pg_advisory_unlock(" DB_LOCK_CLOSE ")", &unlock))
		db_drop(w->work);
	return ok;
}

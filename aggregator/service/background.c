/* aggregator/service/background.c - periodic tasks: attribution after a change of rules, slices, hours, days, partitions,
 * retention, closing months, sealing the audit log, ending exceptions.
 *
 * One thread, a connection of each login, one task after the other. Every replica does all of them: the store sees to it that one works at
 * a time and the others find nothing to do. A task that fails is tried again at its next turn; the others go on. */
#include <string.h>

#include "aggregator/service/app.h"
#include "aggregator/service/audit_reads.h"
#include "aggregator/service/quota_telemetry.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/quota/decision.h"
#include "aggregator/store/quota/exception_store.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/rollup/rollup.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define HOURS_AT_ONCE 500
#define DAYS_AT_ONCE 40
#define ANCHOR_TURNS 12 /* a minute, at five seconds each */
#define ANCHOR_STEPS 20
#define ENTRIES_AT_ONCE 10000
#define HELD_NS_AT_ONCE (2 * NS_PER_S) /* for batches of newly approved nodes: the other tasks wait for it */
#define BUDGET_REST_TIMES 20
#define BUDGET_REST_TURNS 12
#define STEPS_AT_ONCE 100 /* of attributing holders again */

const char *const background_task_names[BACKGROUND_TASKS] = {
	[BACKGROUND_HELD] = "held",
	[BACKGROUND_ATTRIBUTE] = "attribute",
	[BACKGROUND_SLICE] = "slice",
	[BACKGROUND_SEAL] = "seal",
	[BACKGROUND_FOLD] = "fold",
	[BACKGROUND_PARTITIONS] = "partitions",
	[BACKGROUND_RETAIN] = "retain",
	[BACKGROUND_CLOSE] = "close",
	[BACKGROUND_ANCHOR] = "anchor",
	[BACKGROUND_AUDIT] = "audit",
	[BACKGROUND_EXCEPTIONS] = "exceptions",
	[BACKGROUND_BUDGETS] = "budgets",
};

struct background {
	struct app *app;
	struct db *db;     /* the daemon's login */
	struct db *rollup; /* the login that may write derived tables */
	struct ticker *ticker;
	int64_t audited_ns;                        /* boot clock; INT64_MIN: never */
	int64_t budgets_ended_ns, budgets_took_ns; /* the last time; 0: never */
	unsigned anchor_turn;
	bool anchor_more; /* batches are left that are in no range */
	char last_error[BACKGROUND_TASKS][ERR_LOG_SIZE];
};

/* --- tasks: *ret_done is the number of items processed --- */

/* Accepts the batches that nodes sent before they were approved. */
static bool
do_held(struct background *b, int64_t *ret_done, struct err *err)
{
	in_place(held_turn) struct held_turn turn = {0};
	int64_t until_ns = time_boot_ns() + HELD_NS_AT_ONCE;
	bool more = true;

	while (more && time_boot_ns() < until_ns && !ticker_is_stopping(b->ticker)) {
		in_place(ingest_result) struct ingest_result r = {0};

		if (!store_held_release(b->db, &turn, &r, &more, err))
			return false;
		*ret_done += r.batches + r.quarantined;
		atomic_fetch_add(&b->app->counters.ingest_batches, r.batches);
		atomic_fetch_add(&b->app->counters.ingest_records, r.records);
		usage_counters_add(b->app->usage, &r.sums);
	}
	if (*ret_done > 0)
		log_event(LOG_INFO, "batches of approved nodes taken in", LI("batches", *ret_done));
	if (turn.count > 0)
		*err = turn.err;
	return turn.count == 0;
}

/* Attributes existing holders again after a change of rules. */
static bool
do_attribute(struct background *b, int64_t *ret_done, struct err *err)
{
	int steps = 0;

	if (!store_reattribute(b->db, STEPS_AT_ONCE, &steps, err))
		return false;
	if (steps > 0)
		log_event(LOG_INFO,
		          steps < STEPS_AT_ONCE ? "holders attributed again" : "holders are being attributed again",
		          LI("steps", steps));
	*ret_done = steps;
	return true;
}

static bool
do_slice(struct background *b, int64_t *ret_done, struct err *err)
{
	return store_slice(b->rollup, b->app->options->slice_ns, ret_done, err);
}

static bool
do_seal(struct background *b, int64_t *ret_done, struct err *err)
{
	struct counters *c = &b->app->counters;
	struct rollup_result r = {0};

	if (!store_rollup(b->rollup, time_wall_ns(), b->app->options->seal_grace_ns, HOURS_AT_ONCE, &r, err))
		return false;
	atomic_fetch_add(&c->hours_sealed, r.sealed);
	atomic_fetch_add(&c->hours_resealed, r.resealed);
	atomic_store(&c->rollup_last_wall_ns, time_wall_ns());
	if (r.sealed + r.resealed > 0)
		log_event(LOG_INFO, "hours sealed", LI("first", r.sealed), LI("again", r.resealed),
		          LI("from_batches", r.restored));
	*ret_done = r.sealed + r.resealed;
	return true;
}

static bool
do_fold(struct background *b, int64_t *ret_done, struct err *err)
{
	return store_fold(b->rollup, time_wall_ns(), DAYS_AT_ONCE, ret_done, err);
}

static bool
do_partitions(struct background *b, int64_t *ret_done, struct err *err)
{
	return store_partitions(b->rollup, time_wall_ns(), ret_done, err);
}

static bool
do_retain(struct background *b, int64_t *ret_done, struct err *err)
{
	const struct aggregator_options *o = b->app->options;
	struct retention keep = {.intervals_ns = o->keep_intervals_ns,
	                         .batches_ns = o->keep_batches_ns,
	                         .hours_ns = o->keep_hours_ns};
	struct retention_result r;

	if (!store_retain(b->rollup, time_wall_ns(), &keep, &r, err))
		return false;
	if (r.days + r.batches + r.hours > 0)
		log_event(LOG_INFO, "kept long enough", LI("days_of_records", r.days), LI("batches", r.batches),
		          LI("hours", r.hours));
	*ret_done = r.days + r.batches + r.hours;
	return true;
}

/* Months that are over enter grace; a month that is due is requested to be closed (period_closer.c). */
static bool
do_close(struct background *b, int64_t *ret_done, struct err *err)
{
	const struct aggregator_options *o = b->app->options;
	struct period_close rq = {.actor = "schedule",
	                          .reason = "",
	                          .now_ns = time_wall_ns(),
	                          .organisation = o->organisation,
	                          .provider = o->provider_name,
	                          .thresholds = app_close_thresholds(o)};
	char month[8] = "";

	if (!store_period_grace(b->rollup, rq.now_ns, ret_done, err))
		return false;
	if (o->close_after_ns == 0)
		return true;
	if (!store_period_due(b->db, rq.now_ns, o->close_after_ns, month, err))
		return false;
	if (month[0] == '\0')
		return true;
	rq.month = month;
	if (!store_close_request(b->db, &rq, err))
		return false;
	closer_wake(b->app->closer);
	(*ret_done)++;
	return true;
}

/* Each seal is logged too: somebody who rewrites the database cannot reach the log. */
static bool
seal_entries(struct background *b, int64_t *ret_done, struct err *err)
{
	struct audit_sealed s;

	do {
		if (!store_audit_seal(b->db, ENTRIES_AT_ONCE, &s, err))
			return false;
		if (s.seal > 0)
			log_event(LOG_INFO, "audit log sealed", LI("entries", s.entries), LI("seal", s.seal),
			          LS("hash", s.hash));
		*ret_done += s.entries;
	} while (s.entries == ENTRIES_AT_ONCE);
	return true;
}

/* Batches that came into ranges. Not more often than ranges are worth a row; a ledger from before ranges has many, and goes on at the next turn. */
static bool
do_anchor(struct background *b, int64_t *ret_done, struct err *err)
{
	if (!b->anchor_more && b->anchor_turn++ % ANCHOR_TURNS != 0)
		return true;
	b->anchor_more = true;
	for (int i = 0; i < ANCHOR_STEPS && b->anchor_more; i++) {
		int64_t batches;

		if (!store_batches_anchor(b->db, &batches, &b->anchor_more, err))
			return false;
		*ret_done += batches;
	}
	return true;
}

/* By its own clock: a turn is shorter. */
static bool
do_audit(struct background *b, int64_t *ret_done, struct err *err)
{
	int64_t now_ns = time_boot_ns(), entered;

	if (b->audited_ns != INT64_MIN && now_ns - b->audited_ns < b->app->options->audit_interval_ns)
		return true;
	if (!audit_reads_enter(b->app->reads, b->db, &entered, err) || !seal_entries(b, ret_done, err))
		return false;
	b->audited_ns = now_ns;
	return true;
}

static bool
do_exceptions(struct background *b, int64_t *ret_done, struct err *err)
{
	int64_t now_ns;

	/* as the book says, whatever this machine's clock is set to */
	return store_quota_clock(b->db, &now_ns, err) && store_exceptions_end(b->db, now_ns, ret_done, err);
}

/* Reads what is consumed of this month's budgets, for decisions: each turn if that is quick, so that a spent budget stops new work at once. A month
 * that takes long rests BUDGET_REST_TIMES as long as it took, at most BUDGET_REST_TURNS turns. */
static bool
do_budgets(struct background *b, int64_t *ret_done, struct err *err)
{
	int64_t began_ns = time_boot_ns(), most_ns = BUDGET_REST_TURNS * b->app->options->rollup_interval_ns;
	int64_t rest_ns = BUDGET_REST_TIMES * b->budgets_took_ns;
	bool ok;

	if (b->budgets_ended_ns != 0 && began_ns - b->budgets_ended_ns < (rest_ns < most_ns ? rest_ns : most_ns))
		return true;
	*ret_done = 1;
	/* before the first record there is no month */
	ok = quota_loop_budgets(b->app->loop, b->db, time_wall_ns(), err) || err->kind == ERR_MISSING;
	b->budgets_ended_ns = time_boot_ns();
	b->budgets_took_ns = b->budgets_ended_ns - began_ns;
	return ok;
}

/* How often, in turns of the option rollup-interval. */
static const struct {
	bool (*run)(struct background *b, int64_t *ret_done, struct err *err);
	unsigned every;
} tasks[BACKGROUND_TASKS] = {
	[BACKGROUND_HELD] = {do_held, 1},
	[BACKGROUND_ATTRIBUTE] = {do_attribute, 1},
	[BACKGROUND_SLICE] = {do_slice, 1},
	[BACKGROUND_SEAL] = {do_seal, 1},
	[BACKGROUND_FOLD] = {do_fold, 6},
	[BACKGROUND_PARTITIONS] = {do_partitions, 12},
	[BACKGROUND_RETAIN] = {do_retain, 60},
	[BACKGROUND_CLOSE] = {do_close, 60},
	[BACKGROUND_ANCHOR] = {do_anchor, 1},
	[BACKGROUND_AUDIT] = {do_audit, 1},
	[BACKGROUND_EXCEPTIONS] = {do_exceptions, 1},
	[BACKGROUND_BUDGETS] = {do_budgets, 1},
};

/* Repeated errors are logged once. */
static void
run_task(struct background *b, enum background_task task)
{
	struct background_counters *c = &b->app->counters.background[task];
	int64_t began_ns = time_boot_ns(), done = 0;
	char why[ERR_LOG_SIZE];
	struct err err = {0};
	bool ok = tasks[task].run(b, &done, &err);

	atomic_fetch_add(&c->runs, 1);
	atomic_fetch_add(&c->duration_ns, time_boot_ns() - began_ns);
	if (ok) {
		atomic_fetch_add(&c->done, done);
		atomic_store(&c->last_wall_ns, time_wall_ns());
		b->last_error[task][0] = '\0';
		return;
	}
	atomic_fetch_add(&c->errors, 1);
	if (task == BACKGROUND_SEAL)
		atomic_fetch_add(&b->app->counters.rollup_errors, 1);
	err_log_text(&err, why);
	if (strcmp(b->last_error[task], why) != 0)
		log_event(LOG_WARN, "work in the background failed, will try again",
		          LS("task", background_task_names[task]), LS("error", why));
	memcpy(b->last_error[task], why, sizeof(b->last_error[task]));
}

/* --- the thread --- */

static void
work(struct ticker *ticker, void *arg)
{
	struct background *b = arg;
	unsigned turn = 0;

	do {
		for (enum background_task t = 0; t < BACKGROUND_TASKS && !ticker_is_stopping(ticker); t++)
			if (turn % tasks[t].every == 0)
				run_task(b, t);
		turn++;
	} while (ticker_wait(ticker, b->app->options->rollup_interval_ns));
	/* the HTTP server has stopped: write the last audit entries */
	b->audited_ns = INT64_MIN;
	run_task(b, BACKGROUND_AUDIT);
}

static void
background_free(struct background *b)
{
	db_free(b->db);
	db_free(b->rollup);
	mem_free(b);
}

bool
background_start(struct app *app, struct background **ret, struct err *err)
{
	struct background *b;
	owned(db) struct db *db = NULL, *rollup = NULL;

	if (!app_db_new(app->options, "tollgate-aggregator background", &app->db, &db, err) ||
	    !app_rollup_new(app->options, "tollgate-aggregator roll-up", &app->db, &rollup, err))
		return false;
	b = mem_alloc(sizeof(*b));
	*b = (struct background){.app = app, .db = take(db), .rollup = take(rollup), .audited_ns = INT64_MIN};
	if (!ticker_start("for work in the background", work, b, &b->ticker, err)) {
		background_free(b);
		return false;
	}
	*ret = b;
	return true;
}

void
background_stop(struct background *b)
{
	ticker_stop(b->ticker);
	background_free(b);
}

/* aggregator/store/billing/period.h - billing months: the checks before a close, the close, and the closed month.
 *
 * No SQL and no libpq: api/ includes this. */
#ifndef TOLLGATE_PERIOD_H
#define TOLLGATE_PERIOD_H

#include "aggregator/core/rating/correction.h"
#include "aggregator/store/store.h"

/* Checks before a close. Above its threshold a check needs a reason; a final one cannot be overruled. */
enum period_check {
	CHECK_NOT_OVER,      /* final: hours until the month ends */
	CHECK_EARLIER_OPEN,  /* final: months before it that are not closed */
	CHECK_MISSING_PRICE, /* lines without a price */
	CHECK_UNRATED,       /* lines that cannot be rated: rule 13 of core/rating/rating.h */
	CHECK_CONSERVATION,  /* final: unit-nanoseconds by which the states differ from the time in service */
	CHECK_GRACE,         /* hours until the grace time for late records is over */
	CHECK_SILENT_NODES,  /* nodes in service that have not accounted for the whole month */
	CHECK_QUARANTINE,    /* quarantined batches without a decision */
	CHECK_UNATTRIBUTED,  /* share of held time, in millionths */
	CHECK_UNKNOWN,       /* share of all time in service, in millionths */
	CHECK_HOURS,         /* node-hours that are open or dirty */
	CHECK_DAYS,          /* days that are not folded */
	PERIOD_CHECKS
};
struct period_thresholds {
	int64_t unattributed_ppm, unknown_ppm;
	int64_t grace_ns; /* after the end of the month */
};
#define PERIOD_THRESHOLDS ((struct period_thresholds){.unattributed_ppm = 10000, .unknown_ppm = 10000, .grace_ns = 0})

struct period_checks {
	char status[8];    /* open, grace, closed */
	char unrated[256]; /* names the first line that cannot be rated; "": there is none */
	struct {
		int128 number, threshold;
	} at[PERIOD_CHECKS];
};
const char *period_check_name(enum period_check c);
bool period_check_final(enum period_check c);
bool period_check_fails(const struct period_checks *c, enum period_check which); /* above its threshold */
/* {"period","status","closable","needs_reason","checks":[{"check","number","threshold","ok","final","meaning"}]} */
void period_checks_json(const struct period_checks *c, const char *month, struct buf *out);
/* Only the array. */
void period_checks_array(const struct period_checks *c, struct buf *out);
/* ERR_INVALID: not a month; ERR_MISSING: the ledger has nothing of it. */
MUST_CHECK bool store_period_check(struct db *db, const char *month, int64_t now_ns, const struct period_thresholds *t,
                                   struct period_checks *ret, struct err *err);

struct period_close {
	const char *month, *actor;
	const char *reason; /* "": none; a check above its threshold needs one */
	const char *organisation,
		*provider; /* the paying organisation and the platform's operator, named in documents */
	int64_t now_ns;
	struct period_thresholds thresholds;
	/* Of a job: called before each tenant is written; false ends the close with its err. The job ends with the close. NULL: no job. */
	bool (*progress)(void *arg, int64_t done, int64_t total, const char *step, struct err *err);
	void *progress_arg;
	/* store_period_fingerprint() from before the month was verified; NULL: it was not verified. ERR_RETRY: the fingerprint has changed. */
	const char *verified;
};
/* A SHA-256 over the rows that a month is computed from, including those of the months that it corrects. */
typedef char period_fingerprint[65];
MUST_CHECK bool store_period_fingerprint(struct db *db, const char *month, period_fingerprint ret, struct err *err);
/* ERR_CONFLICT: a final check fails, or a check fails and there is no reason. */
MUST_CHECK bool store_period_closable(struct db *db, const struct period_close *rq, struct err *err);
/* Closes the month, all or nothing: invoices, documents, corrections of earlier months, the close's record, the audit log. Writes
 * {"period","closed":{"status","invoices","lines","corrections","price_versions","checks","input_sha256",...}}. ERR_CONFLICT:
 * it is closed, being closed, or a check fails. */
MUST_CHECK bool store_period_close(struct db *db, const struct period_close *rq, struct buf *out, struct err *err);

/* --- a close as a job (close_job.c) --- */

/* ERR_CONFLICT: a check fails. A job that runs already is left as it is. */
MUST_CHECK bool store_close_request(struct db *db, const struct period_close *rq, struct err *err);
/* {"period","state","stage","step","done","total","actor","reason","asked","updated","ended","attempts","error","proof","differences","closed"};
 * ERR_MISSING: no close was requested. */
MUST_CHECK bool store_close_json(struct db *db, const char *month, struct buf *out, struct err *err);
/* ERR_CONFLICT: no close is running. */
MUST_CHECK bool store_close_cancel(struct db *db, const char *month, const char *actor, struct err *err);

enum close_state { CLOSE_NONE, CLOSE_RUNNING, CLOSE_CLOSED, CLOSE_REFUSED, CLOSE_FAILED, CLOSE_CANCELLED };
struct close_work {
	struct db *work, *status; /* two connections with the roll-up's login: for the work, and for the job's row */
	bool (*go_on)(void *arg); /* false: the program ends; the job is resumed later */
	void *arg;
};
struct close_outcome {
	enum close_state state; /* CLOSE_NONE: there is no job, or another replica runs it */
	char month[8], actor[256], text[1024];
};
/* Runs the oldest running job to its end. False: it was interrupted and must be resumed. */
MUST_CHECK bool store_close_work(const struct close_work *w, struct close_outcome *ret, struct err *err);

/* Months that are over go from open to grace. ret_changed: how many. */
MUST_CHECK bool store_period_grace(struct db *db, int64_t now_ns, int64_t *ret_changed, struct err *err);
/* The first month that is not closed, ended at least after_ns ago, and has no close that runs or ended within the last hour; "": none. */
MUST_CHECK bool store_period_due(struct db *db, int64_t now_ns, int64_t after_ns, char ret_month[8], struct err *err);

/* Corrections of closed months. Only the first month that is not closed has any. tenant NULL: all. */
MUST_CHECK bool store_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret,
                                  struct err *err);

/* The lines and corrections of a month, tenant by tenant, as its report has them; a closed month as it was billed. tenant NULL: all. */
typedef bool period_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err);
MUST_CHECK bool store_period_each(struct db *db, const char *month, const char *tenant, period_tenant *each, void *arg,
                                  struct err *err);

/* Computes the documents of a closed month again from its archived charge rows, prices and corrections, and compares them byte for byte:
 * {"period","differences":[{"tenant","format","sha256","recomputed_sha256"}],"documents","formats":[...],"identical","uncorrected_changes"} */
MUST_CHECK bool store_period_recompute(struct db *db, const char *month, struct buf *out, struct err *err);

#endif

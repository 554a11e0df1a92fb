/* aggregator/store/billing/period.h - months: what stands against closing one, closing it, and what was closed.
 *
 * Without a word of SQL or libpq: api/ includes this. */
#ifndef TOLLGATE_PERIOD_H
#define TOLLGATE_PERIOD_H

#include "aggregator/core/rating/correction.h"
#include "aggregator/store/store.h"

/* What stands against closing. Above its threshold each needs a reason; those that are final cannot be overruled. */
enum period_check {
	CHECK_NOT_OVER,      /* final: hours until the month ends */
	CHECK_EARLIER_OPEN,  /* final: months before it that are not closed */
	CHECK_MISSING_PRICE, /* lines without a price */
	CHECK_UNRATED,       /* lines that cannot be rated: rule 13 of core/rating/rating.h */
	CHECK_CONSERVATION,  /* final: unit-nanoseconds that the states do not add up to */
	CHECK_GRACE,         /* hours until the time for what is late has passed */
	CHECK_SILENT_NODES,  /* nodes in service that have not accounted for the whole month */
	CHECK_QUARANTINE,    /* batches of which nobody has decided */
	CHECK_UNATTRIBUTED,  /* share of what was held, in millionths */
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
bool period_check_stands(const struct period_checks *c, enum period_check which); /* above its threshold */
/* {"period","status","closable","needs_reason","checks":[{"check","number","threshold","ok","final","meaning"}]} */
void period_checks_json(const struct period_checks *c, const char *month, struct buf *out);
/* Only the array. */
void period_checks_array(const struct period_checks *c, struct buf *out);
/* ERR_INVALID: not a month; ERR_MISSING: the ledger has nothing of it. */
MUST_CHECK bool store_period_check(struct db *db, const char *month, int64_t now_ns, const struct period_thresholds *t,
                                   struct period_checks *ret, struct err *err);

struct period_close {
	const char *month, *actor;
	const char *reason;                  /* "": none; what stands against it needs one */
	const char *organisation, *provider; /* who pays, and who runs the platform: documents name them */
	int64_t now_ns;
	struct period_thresholds thresholds;
	/* Of a job: called before each tenant is written, false ends the close with err as it left it; and the job ends with the month. NULL: none. */
	bool (*tell)(void *arg, int64_t done, int64_t total, const char *step, struct err *err);
	void *tell_arg;
	const char *
		proved; /* store_period_fingerprint from before the month was proved; NULL: it was not. ERR_RETRY: it is another one now */
};
/* A SHA-256 over the rows that a month is written from, those that its corrections are of among them. */
typedef char period_fingerprint[65];
MUST_CHECK bool store_period_fingerprint(struct db *db, const char *month, period_fingerprint ret, struct err *err);
/* ERR_CONFLICT: something stands against closing that is final, or needs a reason and has none. */
MUST_CHECK bool store_period_closable(struct db *db, const struct period_close *rq, struct err *err);
/* Closes the month, all or nothing: invoices, documents, corrections of months before it, the record of it, the audit log. Writes
 * {"period","closed":{"status","invoices","lines","corrections","price_versions","checks","input_sha256",...}}. ERR_CONFLICT:
 * it is closed, being closed, or something stands against it. */
MUST_CHECK bool store_period_close(struct db *db, const struct period_close *rq, struct buf *out, struct err *err);

/* --- a close as a job (close_job.c) --- */

/* What stands against it is told at once, as ERR_CONFLICT. One that runs already is left as it is. */
MUST_CHECK bool store_close_request(struct db *db, const struct period_close *rq, struct err *err);
/* {"period","state","stage","step","done","total","actor","reason","asked","updated","ended","attempts","error","proof","differences","closed"};
 * ERR_MISSING: nobody has asked for it. */
MUST_CHECK bool store_close_json(struct db *db, const char *month, struct buf *out, struct err *err);
/* ERR_CONFLICT: none runs. */
MUST_CHECK bool store_close_cancel(struct db *db, const char *month, const char *actor, struct err *err);

enum close_state { CLOSE_NONE, CLOSE_RUNNING, CLOSE_CLOSED, CLOSE_REFUSED, CLOSE_FAILED, CLOSE_CANCELLED };
struct close_work {
	struct db *work, *tell;   /* two connections of the roll-up's login */
	bool (*go_on)(void *arg); /* false: the program ends; the job is taken up again later */
	void *arg;
};
struct close_outcome {
	enum close_state state; /* CLOSE_NONE: there is no job, or another replica is at it */
	char month[8], actor[256], text[1024];
};
/* Takes up the job that is to be done, and does it to its end. False: it could not go on, and is to be taken up again. */
MUST_CHECK bool store_close_work(const struct close_work *w, struct close_outcome *ret, struct err *err);

/* Months that are over go from open to grace. ret_changed: how many. */
MUST_CHECK bool store_period_grace(struct db *db, int64_t now_ns, int64_t *ret_changed, struct err *err);
/* The first month that is not closed and ended at least so long ago, and whose close does not run and did not end within the last hour; "": there is none. */
MUST_CHECK bool store_period_due(struct db *db, int64_t now_ns, int64_t after_ns, char ret_month[8], struct err *err);

/* What is to be corrected of closed months. Only the first month that is not closed has any. tenant NULL: all. */
MUST_CHECK bool store_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret,
                                  struct err *err);

/* The lines and corrections of a month, tenant by tenant, as its report has them: of a closed one as it was billed. tenant NULL: all. */
typedef bool period_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err);
MUST_CHECK bool store_period_each(struct db *db, const char *month, const char *tenant, period_tenant *each, void *arg,
                                  struct err *err);

/* A closed month computed again from the charge rows, prices and corrections that were kept, and compared byte for byte:
 * {"period","differences":[{"tenant","format","sha256","recomputed_sha256"}],"documents","formats":[...],"identical","uncorrected_changes"} */
MUST_CHECK bool store_period_recompute(struct db *db, const char *month, struct buf *out, struct err *err);

#endif

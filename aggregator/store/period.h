/* aggregator/store/period.h - months: what stands against closing one, closing it, and what was closed.
 *
 * Without a word of SQL or libpq: api/ includes this. */
#ifndef TOLLGATE_STORE_PERIOD_H
#define TOLLGATE_STORE_PERIOD_H

#include "aggregator/core/correction.h"
#include "aggregator/store/store.h"

/* What stands against closing. Above its threshold each needs a reason; those that are final cannot be overruled. */
enum period_check {
	CHECK_NOT_OVER,      /* final: hours until the month ends */
	CHECK_EARLIER_OPEN,  /* final: months before it that are not closed */
	CHECK_MISSING_PRICE, /* final: lines without a price */
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
	char status[8]; /* open, grace, closed */
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
};
/* Closes the month, all or nothing: invoices, documents, corrections of months before it, the record of it, the audit log. Writes
 * {"period","closed":{"status","invoices","lines","corrections","price_versions","checks","input_sha256",...}}. ERR_CONFLICT:
 * it is closed, being closed, or something stands against it. */
MUST_CHECK bool store_period_close(struct db *db, const struct period_close *rq, struct buf *out, struct err *err);

/* Months that are over go from open to grace. ret_changed: how many. */
MUST_CHECK bool store_period_grace(struct db *db, int64_t now_ns, int64_t *ret_changed, struct err *err);
/* The first month that is not closed and ended at least so long ago; "": there is none. */
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

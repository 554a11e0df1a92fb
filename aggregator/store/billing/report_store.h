/* aggregator/store/billing/report_store.h - rating input of a month, price previews, promises. */
#ifndef TOLLGATE_REPORT_STORE_H
#define TOLLGATE_REPORT_STORE_H

#include "aggregator/core/rating/rating.h"
#include "aggregator/store/store.h"

/* The input of rating for a month; owns every string. */
struct report_input {
	struct rating_input in;
	void *memory;
};
void report_input_free(struct report_input *r);
DEFINE_OWNED(report_input, struct report_input)
/* period "2026-11"; ERR_MISSING when the ledger has nothing of it. tenant NULL: all. */
MUST_CHECK bool store_report_load(struct db *db, const char *period, const char *tenant, struct report_input **ret,
                                  struct err *err);

/* One tenant after the other, by name: memory holds one tenant's month. in is that tenant's input, valid during the call; tenants
 * of which there is nothing are left out. begin is called once before them, with no days; it may be NULL. False of either ends
 * it. All is of one snapshot. */
typedef bool report_begin(void *arg, const struct rating_input *in, struct err *err);
typedef bool report_tenant(void *arg, const struct rating_input *in, struct err *err);
MUST_CHECK bool store_report_each(struct db *db, const char *period, const char *tenant, report_begin *begin,
                                  report_tenant *each, void *arg, struct err *err);

/* The cost of the month at these prices: a policy file, or only its key prices. JSON; nothing is written. */
struct price_request {
	const char *name; /* of the file, for errors */
	const char *text;
	size_t len;
	const char *period;
	const char *tenant; /* NULL: all */
};
MUST_CHECK bool store_price_preview(struct db *db, const struct price_request *rq, struct buf *out, struct err *err);

/* The billing period that now lies in: "2026-11". */
MUST_CHECK bool store_period_now(struct db *db, int64_t now_ns, char ret_period[40], struct err *err);
/* The beginning of a day, "2026-11-01", in the billing zone. */
MUST_CHECK bool store_day_start(struct db *db, const char *day, int64_t *ret_ns, struct err *err);

/* {"period","promises":[...]}: those in force at the end of the month, or now, beside what was measured of it. ERR_MISSING: the ledger has nothing of
 * that period. */
MUST_CHECK bool store_sla_json(struct db *db, const char *period, const char *tenant, int64_t now_ns, struct buf *out,
                               struct err *err);

#endif

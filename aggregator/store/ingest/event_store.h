/* aggregator/store/ingest/event_store.h - events of other meters into the ledger, each once, and what they add up to. For api/, like
 * store.h. */
#ifndef TOLLGATE_EVENT_STORE_H
#define TOLLGATE_EVENT_STORE_H

#include "aggregator/core/metering/events.h"
#include "aggregator/store/store.h"

struct event_sender {
	int64_t token_id;
	const char *tenant; /* whose sender it is: ids of its events are its own; NULL: the operator's */
	int64_t skus_max;   /* different SKUs of one tenant in one month */
	bool by_meter;      /* its token names the sources whose events it sends */
	int64_t now_ns;     /* when they came */
};
/* Every sound event gets its fate, in one transaction; those that are refused do not hold up the others. May be repeated:
 * what was stored then is a duplicate. */
MUST_CHECK bool store_events_add(struct db *db, struct events *all, const struct event_sender *sender, struct err *err);

struct meter_query {
	const char *period; /* "2026-11" */
	const char *tenant; /* NULL: all */
	const char *meter;  /* NULL: all */
	bool by_end_user;   /* inference only, each end user for itself; "" where none is said */
};
/* {"period","from","to","meters":[{tenant, workspace, category, meter, unit, sku, quantity, events}]}; quantities are exact
 * decimals in text. ERR_MISSING: the ledger has nothing of that period. */
MUST_CHECK bool store_meters_json(struct db *db, const struct meter_query *q, struct buf *out, struct err *err);

#endif

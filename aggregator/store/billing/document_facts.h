/* aggregator/store/billing/document_facts.h - between the files that make documents (document.c, period_documents.c, period_close.c) and
 * document_facts.c, which asks the ledger what they say beside their lines. */
#ifndef TOLLGATE_DOCUMENT_FACTS_H
#define TOLLGATE_DOCUMENT_FACTS_H

#include "aggregator/core/reports/month_facts.h"
#include "aggregator/store/store.h"

/* The month before, if the ledger has something of it: an invoice says what changed. in_place(previous_month) struct previous_month p = {0}; */
struct previous_month {
	char period[8]; /* "": there is none */
	struct previous_amount {
		char tenant[64];
		char currency[8];
		int128 billed;
		int scale;
	} * at; /* by tenant */
	size_t count;
};
void previous_month_fini(struct previous_month *p);
/* Outside of a transaction, unless that month is closed. tenant NULL: all. */
MUST_CHECK bool previous_month_load(struct db *db, const char *month, const char *tenant, struct previous_month *ret,
                                    struct err *err);

struct facts_request {
	const char *tenant;                  /* NULL: all */
	const char *organisation, *provider; /* who pays, and who runs the platform */
	int64_t now_ns;
	bool closing;       /* the month is being closed now */
	bool promises_only; /* of what is said beside lines: for JSON */
};
/* The text of core/reports/month_facts.h. previous NULL: without tenants. */
MUST_CHECK bool document_facts(struct db *db, const struct rating_input *in, const struct facts_request *rq,
                               const struct previous_month *previous, struct buf *out, struct err *err);

#endif

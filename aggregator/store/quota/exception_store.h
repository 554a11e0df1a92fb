/* aggregator/store/quota/exception_store.h - exceptions: extra limit or reservation of a workspace until a time.
 *
 * Rules, in order:
 *  1. a user who may request GPUs for a workspace gives a reason and an end. A request of an administrator is approved at once
 *  2. an extra limit within the tenant's rule (auto_approve) is approved at once, as long as all such that run at one time stay within it
 *  3. else a tenant's administrator approves an extra limit that the tenant's maximum leaves room for, and an administrator to anything;
 *     a reservation is a promise of capacity, which only an administrator makes
 *  4. it ends by itself, or is revoked, and never begins again. A request without a decision is over at its end too
 *  5. every step has its audit entry in the same transaction
 *  6. events begin and end it in the quota log: the store names those that are missing there */
#ifndef TOLLGATE_EXCEPTION_STORE_H
#define TOLLGATE_EXCEPTION_STORE_H

#include "aggregator/store/store.h"

/* Texts are clean. */
struct exception_request {
	const char *tenant, *workspace;
	const char *cluster; /* NULL: the workspace's, or the ledger's */
	const char *model;   /* in full: store_quota_model */
	bool reserved;       /* else a limit */
	bool shared;         /* of the shared nodes */
	bool shared_said;    /* else it is of those that have the model, the tenant's own before the shared ones */
	int64_t units;
	const char *reason;
	int64_t from_ns, until_ns, now_ns;
	const char *actor;
	bool admin;
	int64_t open_max; /* of the tenant's exceptions that are not over */
};
/* The new row is written to out. ERR_MISSING: no such workspace or cluster; ERR_LIMIT: open_max. */
MUST_CHECK bool store_exception_request(struct db *db, const struct exception_request *rq, struct buf *out,
                                        struct err *err);

enum exception_verb { EXCEPTION_APPROVE, EXCEPTION_REFUSE, EXCEPTION_REVOKE };
struct exception_decision {
	int64_t id;
	enum exception_verb verb;
	const char *actor, *why;
	uint32_t role;
	const char *tenant; /* the only one whose exceptions the caller may see; NULL: any */
	int64_t now_ns;
};
/* The row is written to out; the same again changes nothing. ERR_MISSING: there is none; ERR_DENIED: rule 3, or a developer decides about
 * another's; ERR_CONFLICT: it is decided otherwise, or over. */
MUST_CHECK bool store_exception_decide(struct db *db, const struct exception_decision *d, struct buf *out,
                                       struct err *err);

struct exception_query {
	const char *tenant, *workspace, *status; /* NULL: any */
	int64_t now_ns;
	struct page page;
};
/* {"exceptions":[...],"next":ID or null} */
MUST_CHECK bool store_exceptions_json(struct db *db, const struct exception_query *q, struct buf *out, struct err *err);

/* Background: ends exceptions at their time. */
MUST_CHECK bool store_exceptions_end(struct db *db, int64_t now_ns, int64_t *ret_ended, struct err *err);

/* Rule 6, for the decider, in the transaction that has the lock of the book. The engine ends an exception at its time by itself; so an
 * event is missing for one that is agreed to and not in the book, and for one that is in it and was revoked. */
struct exception_event {
	int64_t id;
	bool ends;
	char *actor, *event; /* the text of core/quota/book/quota_book.h */
};
struct exception_events {
	struct exception_event *at;
	size_t count;
};
void exception_events_fini(struct exception_events *e);
MUST_CHECK bool store_exception_events(struct db *db, int64_t now_ns, struct exception_events *ret, struct err *err);
/* The event is in the log under this number. One that the engine refuses (it does not know the model yet) is left as it is, and offered
 * again. */
MUST_CHECK bool store_exception_entered(struct db *db, const struct exception_event *e, int64_t seq, struct err *err);

#endif

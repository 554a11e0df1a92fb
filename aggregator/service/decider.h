/* aggregator/service/decider.h - the one thread of a replica that decides about capacity.
 *
 * Handlers queue their requests here and free their worker (http_later). The thread takes everything in its queues, decides it in one
 * turn (store/quota/decision.h) and replies. A turn never waits to grow: requests that arrive while one is being committed share the
 * next. Long polls stay queued until the decision they watch has changed, in whichever replica, or their time is over.
 *
 * A turn first commits optimistically: without the lock of the quota log, on condition that no other replica has committed since. Only
 * when that fails is it decided again under the lock. Its gain is in core/quota/book/decision_optimistic.h. */
#ifndef TOLLGATE_DECIDER_H
#define TOLLGATE_DECIDER_H

#include "aggregator/service/app.h"
#include "aggregator/service/reply.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/quota/decision.h"
#include "common/conf/json.h"

enum capacity_request_kind {
	REQUEST_SUBMIT,
	REQUEST_EVENT,    /* changes one existing lease or request */
	REQUEST_WATCH,    /* reads a decision, after it changed */
	REQUEST_LEAD,     /* an agent becomes the leader of its cluster, with a new epoch */
	REQUEST_ADOPTION, /* whether all that runs in a cluster was adopted */
	REQUEST_RECLAIMS, /* lists reclaims, after there are newer ones than `after` */
};

#define DECISION_CLUSTER_SIZE (LIMIT_LABEL + 1)
#define EPOCH_MAX INT64_C(1000000000000000) /* that an agent may say it has */

/* A queued request. It owns its texts. */
struct capacity_request {
	enum capacity_request_kind kind;
	const struct http_request *rq;
	struct http_reply *rp;
	char actor[352]; /* for the quota log */
	char tenant[64]; /* the only one whose rows may be shown; empty: any */
	/* The tenant that the request is about, in whose queue it waits; empty: none is named. */
	char of_tenant[DECISION_TENANT_SIZE];
	/* The agent of a cluster that sends it, and the epoch in which it leads; empty and 0: no agent does. */
	char agent[DECISION_CLUSTER_SIZE];
	int64_t epoch;
	int64_t token_id;          /* a cached token that the turn must check again; 0: it was checked */
	int64_t began_ns;          /* on the boot clock */
	int64_t until_ns;          /* likewise: end of a long poll; 0: it is none */
	char id[DECISION_ID_SIZE]; /* shown to users */
	char key[QUOTA_ID_SIZE];   /* the engine's name of it */
	/* a submit */
	json_t *doc;
	struct decision_body body;
	struct decision_ask ask; /* points into body */
	bool admits;             /* POST /v1/admit: the status of the reply is the answer */
	bool adopts;             /* it runs already: it becomes a lease without being decided */
	int64_t tenant_adds; /* of the first request of a tenant in a turn: how many of that tenant's were added to its queue */
	/* an event: its verb, and the whole text where it is more than {VERB: ID} */
	const char *word;
	char *event;
	struct decision_workload workload; /* points into doc and body; with a list there is no event */
	const char *cluster;               /* adoption: points into doc */
	int64_t after;                     /* a watch, reclaims: the last event that the client has seen */
	struct capacity_request *next;
	bool is_shown;             /* the thread of dry runs replies with the present state of a waiting decision */
	int64_t estimate_seq;      /* of such: it waits for the estimate of the book after this event */
	int64_t estimate_since_ns; /* since when, on the boot clock; 0: not yet */
	struct capacity_request *next_open; /* of a dry run: the next one without a reply */
	/* the outcome; written by the deciding thread only */
	enum {
		REQUEST_OPEN,
		REQUEST_DECIDED,       /* by this turn, which has all that the reply needs */
		REQUEST_READ_ROW,      /* the reply is made from the decision's row */
		REQUEST_TOKEN_REVOKED, /* its token was revoked or has expired */
		REQUEST_REFUSED,       /* err says why */
		REQUEST_OVER_LIMIT, /* refused, unless a row shows that it was decided before: the turn has not looked */
	} fate;
	struct err err;
	const struct quota_verdict *verdict; /* the turn's */
	char warning[16];                    /* the part of an event that was not applied; empty: none */
};
struct capacity_request *capacity_request_new(enum capacity_request_kind kind, const struct identity_row *who,
                                              const struct http_request *rq, struct http_reply *rp);
void capacity_request_free(struct capacity_request *i);
DEFINE_OWNED(capacity_request, struct capacity_request)

/* Writes the decision as the reply to its request. */
MUST_CHECK bool capacity_request_reply(struct capacity_request *i, const struct decision_view *v,
                                       const struct decision_told *told, struct err *err);

struct decider;
MUST_CHECK bool decider_start(struct app *app, struct decider **ret, struct err *err);
/* Keeps the HTTP request and takes ownership of the item, or replies 503 at once. The handler touches neither again. */
void decider_put(struct decider *d, struct capacity_request *item);
/* From now on nothing waits: queued requests are decided, and long polls are answered with the present state. For httpd's on_stop. */
void decider_drain(struct decider *d);
/* The client of a kept request has disconnected: the request is dropped soon. In any thread; for httpd's on_gone. */
void decider_client_gone(struct decider *d);
void decider_stop(struct decider *d);
/* The quota log of this replica, for readers. */
struct quota_log *decider_log(struct decider *d);
/* Makes the thread read the policy soon. */
void decider_read_policy_soon(struct decider *d);
/* The last version of the policy that the thread has read. */
int64_t decider_policy_version(struct decider *d);
/* Whether the quota book has this version of the policy or a later one, in force at from_ns or later. Waits for it until a time on the boot
 * clock. */
bool decider_policy_wait(struct decider *d, int64_t version, int64_t from_ns, int64_t until_ns);

#endif

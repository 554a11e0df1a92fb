/* aggregator/service/decider.h - the one thread of a replica that decides about capacity.
 *
 * Handlers put what was asked on its desk and keep their request without a worker (http_later). The thread takes everything that lies
 * there, decides it in one turn (store/quota/decision.h) and answers: nobody waits for company, and who comes while a turn is being
 * committed shares the next one. Long polls lie on the desk until what they wait for has changed, in whichever replica, or their time
 * is over. */
#ifndef TOLLGATE_DECIDER_H
#define TOLLGATE_DECIDER_H

#include "aggregator/service/app.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/quota/decision.h"
#include "common/conf/json.h"

enum desk_kind {
	DESK_SUBMIT,
	DESK_EVENT,    /* about one lease or request that there is */
	DESK_WATCH,    /* a decision, until it changes */
	DESK_RECLAIMS, /* reclaims, until there are any behind `after` */
};

/* What lies on the desk. It owns its texts. */
struct desk_item {
	enum desk_kind kind;
	const struct http_request *rq;
	struct http_reply *rp;
	char actor[352]; /* for the log */
	char tenant[64]; /* the only one whose rows may be shown; empty: any */
	/* The tenant that is asked for, polled or told about: the request counts for it beside its caller; empty: none is named. */
	char of_tenant[DECISION_TENANT_SIZE];
	int64_t token_id;          /* that the turn has to prove; 0: it was */
	int64_t began_ns;          /* on the boot clock */
	int64_t until_ns;          /* likewise: how long it may wait for more than a first answer; 0: not at all */
	char id[DECISION_ID_SIZE]; /* as it is said to people */
	char key[QUOTA_ID_SIZE];   /* as the engine knows it */
	/* a submit */
	json_t *doc;
	struct decision_body body;
	struct decision_ask ask; /* points into body */
	int64_t tenant_adds;     /* of its tenant's first in a turn: how many of them may wait after it */
	/* an event: its word, and the whole text where it is more than {WORD: ID} */
	const char *word;
	char *event;
	struct decision_workload workload; /* points into doc */
	int64_t after;                     /* a watch: what was seen already; reclaims: what is known */
	struct desk_item *next;
	bool is_shown;               /* with a decision that waits, by the thread of dry runs */
	int64_t estimate_seq;        /* of such: the estimate of the book after this event is waited for */
	int64_t estimate_since_ns;   /* since then on the boot clock; 0: not yet */
	struct desk_item *next_open; /* of a dry run: the next one that is not answered */
	/* what came of it, of the decider's thread alone */
	enum {
		DESK_OPEN,
		DESK_DECIDED,  /* by this turn: `view` is made from it */
		DESK_READ,     /* the row is read */
		DESK_STRANGER, /* its token does not hold any more */
		DESK_REFUSED,  /* err says why */
		DESK_LIMITED,  /* the same, unless a row knows it: the turn did not look for one */
	} fate;
	struct err err;
	const struct quota_verdict *verdict; /* the turn's */
	char warning[16];                    /* what was not done as asked; empty: nothing */
};
struct desk_item *desk_item_new(enum desk_kind kind, const struct identity_row *who, const struct http_request *rq,
                                struct http_reply *rp);
void desk_item_free(struct desk_item *i);
DEFINE_OWNED(desk_item, struct desk_item)

struct decider;
MUST_CHECK bool decider_start(struct app *app, struct decider **ret, struct err *err);
/* Keeps the request and takes the item; answers at once with 503 where that cannot be. The handler touches neither again. */
void decider_put(struct decider *d, struct desk_item *item);
/* From now on nothing waits: what lies on the desk is decided, and long polls are answered as things stand. For httpd's on_stop. */
void decider_hurry(struct decider *d);
/* The client of a request that was kept has gone: it is let go of soon. In any thread; for httpd's on_gone. */
void decider_client_gone(struct decider *d);
void decider_stop(struct decider *d);
/* The log of this replica, for readers. */
struct quota_log *decider_log(struct decider *d);
/* The policy is read soon, and up to which version it was read. */
void decider_look(struct decider *d);
int64_t decider_policy_version(struct decider *d);
/* Whether the book, by which every replica decides, has this version of the policy or a later one, as it is in force at from_ns or later. Waits for
 * it until a time on the boot clock. */
bool decider_policy_wait(struct decider *d, int64_t version, int64_t from_ns, int64_t until_ns);

#endif

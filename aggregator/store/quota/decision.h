/* aggregator/store/quota/decision.h - quota in service: this replica's book and its place in the log, turns of deciding, and stored decisions.
 *
 * A turn is one transaction under the lock of the book's row: first the events that other replicas have logged since are applied, then those of
 * this one, then all of it is committed. Two round trips, however many events.
 *
 * Where no other replica decides, a turn is optimistic (core/quota/book/decision_optimistic.h): it begins with the book in memory, and its one
 * round trip does nothing at all when another replica has decided meanwhile. */
#ifndef TOLLGATE_DECISION_H
#define TOLLGATE_DECISION_H

#include "aggregator/core/quota/book/decision_ask.h"
#include "aggregator/core/quota/book/decision_rows.h"
#include "aggregator/core/quota/book/quota_book.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/store.h"
#include "common/base/spill.h"

/* ---- the log ------------------------------------------------------------------------------------------------------------ */

/* Changed by the thread that takes turns; read by any, between borrow and give_back. */
struct quota_log;
/* quiet_ns: how long others must have been quiet before a turn is optimistic. */
struct quota_log *quota_log_new(int64_t quiet_ns);
void quota_log_free(struct quota_log *l);
DEFINE_OWNED(quota_log, struct quota_log)

/* NULL: nothing was read yet. Nothing changes it until it is given back, which should be soon: decisions wait. */
const struct quota_book *quota_log_borrow(struct quota_log *l);
void quota_log_give_back(struct quota_log *l);
int64_t quota_log_seq(struct quota_log *l);
/* The same without a lock, for the thread that takes turns. */
const struct quota_book *quota_log_mine(const struct quota_log *l);
/* Events of other replicas whose logged outcome differs from the one computed here, since the start. */
int64_t quota_log_disagreements(struct quota_log *l);

/* Of the policy that the book has, as last read by the thread that takes turns; NULL: none. */
const uint8_t *quota_log_policy_digest(const struct quota_log *l);

/* Applies events that other replicas have logged, without a turn. The rows they changed are added to `changed`. */
MUST_CHECK bool store_quota_follow(struct db *db, struct quota_log *l, struct decision_rows *changed, struct err *err);
/* The database's. */
MUST_CHECK bool store_quota_clock(struct db *db, int64_t *ret_ns, struct err *err);
/* Whether it is this session that looks at telemetry: one does, until its connection ends. */
MUST_CHECK bool store_quota_looks(struct db *db, bool *ret, struct err *err);

/* ---- a turn ------------------------------------------------------------------------------------------------------------- */

/* One request. */
struct decision_ask {
	const char *key, *request_id, *workspace;
	const char *body; /* JSON, as it is shown again */
	uint8_t digest[SHA256_SIZE];
	const char *asked_by;
	struct decision_workload workload;
};

/* A request that is known already, by the key that it was asked for with. */
struct decision_known {
	char key[QUOTA_ID_SIZE];
	uint8_t digest[SHA256_SIZE];
};

/* The requests and tokens of a turn. */
struct turn_asked {
	const char *const *keys; /* of requests: which of them are known */
	size_t key_count;
	const int64_t *tokens; /* which of them still hold; each once */
	size_t token_count;
	const char *const
		*clusters; /* of agents: the epochs of their leaders; each once. Such a turn is never optimistic */
	size_t cluster_count;
};

/* Those of these keys that are known, sorted by key; ret is from mem_*. */
MUST_CHECK bool store_decisions_known(struct db *db, const char *const *keys, size_t n, struct decision_known **ret,
                                      size_t *ret_count, struct err *err);
/* Tokens that hold. */
struct decision_tokens {
	int64_t *ids;
	size_t count;
};
void decision_tokens_fini(struct decision_tokens *t);
bool decision_token_holds(const struct decision_tokens *t, int64_t id); /* 0, one that was proved before, does */
/* Which of these hold. */
MUST_CHECK bool store_decision_tokens(struct db *db, const int64_t *ids, size_t n, struct decision_tokens *ret,
                                      struct err *err);
/* NULL: not among them. */
const struct decision_known *decision_known_find(const struct decision_known *known, size_t count, const char *key);

struct quota_turn;
MUST_CHECK bool store_quota_turn(struct db *db, struct quota_log *l, const struct turn_asked *asked,
                                 struct quota_turn **ret, struct err *err);
/* The same without the lock. It fails at the commit unless none of the keys is known and all tokens hold. NULL: not allowed now. */
struct quota_turn *store_quota_turn_optimistic(struct db *db, struct quota_log *l, const struct turn_asked *asked);
int64_t quota_turn_now(const struct quota_turn *t); /* of the database's clock, never before the last event */
const struct quota_book *quota_turn_book(const struct quota_turn *t);
/* NULL: not known. */
const struct decision_known *quota_turn_known(const struct quota_turn *t, const char *key);
bool quota_turn_is_optimistic(const struct quota_turn *t);
/* An event was stepped and not committed: when the turn is freed now, the book is read anew. */
bool quota_turn_costs_book(const struct quota_turn *t);
bool quota_turn_token_holds(const struct quota_turn *t, int64_t token_id);
/* Rows that this turn changes, and those that others have changed before it. */
const struct decision_rows *quota_turn_rows(const struct quota_turn *t);
const struct decision_rows *quota_turn_foreign(const struct quota_turn *t);
/* One event. asks: those of a submit, in its order; they are borrowed until the turn ends, as are actor and event. The outcome is the
 * turn's. An error leaves the turn as it was. */
MUST_CHECK bool quota_turn_step(struct quota_turn *t, const char *actor, const char *event, size_t len,
                                const struct decision_ask *asks, size_t ask_count, const struct quota_outcome **ret,
                                struct err *err);
/* The workload of a lease, given with its confirmation, or its list of workloads, which it has instead of the one before unless it was released;
 * NULL members stay as they are. */
void quota_turn_workload(struct quota_turn *t, const char *key, const struct decision_workload *w);
/* The largest epoch of a cluster's agents, which this turn may have raised; 0: none. For clusters that were asked for. */
int64_t quota_turn_epoch(const struct quota_turn *t, const char *cluster);
/* From this turn on; it is larger than the one before. cluster and actor live as long as the turn. */
void quota_turn_lead(struct quota_turn *t, const char *cluster, int64_t epoch, const char *actor);
/* Of the event that was stepped last. */
int64_t quota_turn_seq(const struct quota_turn *t);
/* The digest of the last policy event; 32 bytes. NULL: none yet. */
const uint8_t *quota_turn_policy_digest(const struct quota_turn *t);
void quota_turn_set_policy_digest(struct quota_turn *t, const uint8_t digest[SHA256_SIZE]);
/* Writes the book down where the log has grown long enough since it last was. */
MUST_CHECK bool quota_turn_snapshot(struct quota_turn *t, struct err *err);
/* ERR_UNKNOWN: the commit may or may not have happened; the rows of the requests say. The book is read anew at the next turn. An optimistic turn without events decides
 * nothing, and one that fails has done nothing: ERR_CONFLICT. */
MUST_CHECK bool quota_turn_commit(struct quota_turn *t, struct err *err);
/* Rolls back a turn that was not committed. */
void quota_turn_free(struct quota_turn *t);
DEFINE_OWNED(quota_turn, struct quota_turn)

/* ---- stored decisions ------------------------------------------------------------------------------------------------------ */

/* One decision with everything that is shown of it. Texts are the list's. */
struct decision_view {
	const char *key, *request_id, *tenant, *workspace;
	const char *status, *decision, *would, *rule;
	bool warn;
	int64_t position;
	const char *body, *asked_by;
	int64_t submitted_ns, changed_ns, changed_seq;
	int64_t adopted_ns, admitted_ns, confirmed_ns, seen_ns, released_ns, ended_ns; /* 0: not */
	const char *ended_why;                                                         /* "" */
	const char *reclaim; /* state of the order that is open; "" */
	struct decision_workload workload;
	const char *verdict; /* JSON; NULL: not read */
};
struct decision_views {
	struct decision_view *at;
	size_t count;
	void *memory;
};
void decision_views_fini(struct decision_views *v);
/* Those of these keys that there are, in any order. */
MUST_CHECK bool store_decisions_get(struct db *db, const char *const *keys, size_t n, struct decision_views *ret,
                                    struct err *err);
/* The key and tenant of a tenant's request_id, or of any tenant's (NULL). ERR_MISSING: there is none; ERR_CONFLICT: two tenants have it, named in the error. */
MUST_CHECK bool store_decision_find(struct db *db, const char *tenant, const char *request_id,
                                    char ret_key[QUOTA_ID_SIZE], char ret_tenant[DECISION_TENANT_SIZE],
                                    struct err *err);

/* The workspace, "acme/prod", of a request that names its workload:
 *
 *  1. a tenant's token means its own: where the tenant has that request_id, it is for the workspace that it was first asked for
 *  2. otherwise it is for the workspace that the attribution rules name now, but for rules 3 to 5
 *  3. of a token without a tenant: where the tenant that the rules name now has the same request already, it is that one's
 *  4. else where a token without a tenant asked the same before, and it still waits or runs, it is that one's: a client without an answer asks again,
 *     and the rules may have changed meanwhile. A tenant's own request, or one that is over, does not answer another's
 *  5. two such are ERR_CONFLICT, which names their tenants
 *
 * The same request is the same request_id with the same digest. NULL: there is none. From mem_*. */
MUST_CHECK bool store_decision_workspace(struct db *db, const char *tenant, const char *request_id, char **ret,
                                         struct err *err); /* 1 */
/* cluster NULL: the ledger's own. */
MUST_CHECK bool store_workload_workspace(struct db *db, struct rules_kept **kept, const char *cluster,
                                         const struct wire_holder *holder, char **ret, struct err *err); /* 2 */
/* now: of rule 2, or NULL. */
MUST_CHECK bool store_decision_replayed(struct db *db, const char *now, const char *request_id,
                                        const uint8_t digest[SHA256_SIZE], char **ret, struct err *err); /* 3 to 5 */

struct decision_query {
	const char *tenant, *workspace, *status; /* NULL: any */
	bool leases;                             /* only running leases, unless a status is given */
	struct page page;
	const struct quota_place *places; /* of waiting requests, as things are now */
	size_t place_count;
};
/* {"decisions":[...],"next":ID or null} or "leases"; newest first, without verdicts. */
MUST_CHECK bool store_decisions_json(struct db *db, const struct decision_query *q, struct buf *out, struct err *err);

struct reclaim_query {
	const char *tenant; /* NULL: any */
	int64_t after;      /* only reclaims that changed behind this event */
	bool ended;         /* those that ended behind `after` too */
	/* Of open orders, as the book has them: they move with a clock that was set, and the rows do not. */
	const struct quota_due *due;
	size_t due_count;
};
/* {"reclaims":[...],"seq":N}; ret_count: how many. */
MUST_CHECK bool store_reclaims_json(struct db *db, const struct reclaim_query *q, struct buf *out, int64_t *ret_count,
                                    struct err *err);
/* The key and tenant of the lease that a reclaim is of; ERR_MISSING: none of that id is the tenant's (NULL: anybody's). */
MUST_CHECK bool store_reclaim_lease(struct db *db, int64_t id, const char *tenant, char ret_lease[QUOTA_ID_SIZE],
                                    char ret_tenant[DECISION_TENANT_SIZE], char ret_state[16], struct err *err);

/* {"recording":1,"state":{...},"state_seq":n,"events":[...]}: everything from the last snapshot at or before from_seq to to_seq, piece
 * by piece. ERR_INVALID: there is no such range. */
MUST_CHECK bool store_quota_recording(struct db *db, int64_t from_seq, int64_t to_seq, struct spill *out,
                                      struct err *err);

#endif

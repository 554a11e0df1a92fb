/* aggregator/store/store.h - what the store does for the daemon, without a word of SQL or libpq: api/ includes this. */
#ifndef TOLLGATE_STORE_H
#define TOLLGATE_STORE_H

#include <stdatomic.h>

#include "aggregator/core/metering/ingest_sums.h"
#include "aggregator/core/policy/policy.h"
#include "aggregator/core/rating/rating.h"
#include "common/base/buf.h"

struct db;
/* Of all connections of a program. */
struct db_counters {
	atomic_llong connects;      /* that came about */
	atomic_llong open;          /* now */
	atomic_llong failures;      /* of connecting, and statements that failed */
	atomic_llong hung_until_ns; /* on the boot clock: until then nobody tries to connect */
};
/* What takes longer than the answer to a request. */
enum db_work {
	DB_WORK_REPORT, /* reports, and changes of the policy */
	DB_WORK_ROLLUP, /* hours, days, retention, attribution */
	DB_WORK_CLOSE,
	DB_WORK_VERIFY,
	DB_WORK_MIGRATE,
	DB_WORKS
};
struct db_options {
	struct db_counters *counters; /* NULL: nobody counts */
	const char *conninfo;         /* libpq's; may name several hosts */
	const char *user;             /* instead of the one in conninfo; NULL: that one */
	const char *application;
	int64_t statement_timeout_ns;
	int64_t lock_timeout_ns;
	int64_t connect_timeout_ns;
	int64_t work_timeout_ns[DB_WORKS]; /* of one statement of that work; 0: ten minutes */
};
MUST_CHECK bool db_new(const struct db_options *o, struct db **ret, struct err *err); /* connects at the first use */
void db_free(struct db *db);
/* Nobody waits any more for what this connection is asked: the statement that runs is cut off, and every further one fails (ERR_RETRY) until
 * db_serve. From any thread; does not wait. */
void db_abandon(struct db *db);
void db_serve(struct db *db);
/* Of the whole process: at that moment of the boot clock every connection is cut, whatever it waits for, and no new one is made. */
void db_stop_at(int64_t boot_ns);
int64_t db_cuts(
	void); /* connections cut by this program because the server did not answer in time, or because of db_stop_at */
DEFINE_OWNED(db, struct db)

/* --- schema --- */
struct ledger_options {
	bool demo;        /* only a ledger created as a demo takes simulated records */
	const char *zone; /* billing zone, an IANA name */
	/* Roles of the database; NULL: tollgate_owner, tollgate, tollgate_rollup. The owner's is used where a superuser migrates. */
	const char *owner_role, *daemon_role, *rollup_role;
};
/* Brings the schema to this program's version under an advisory lock, creates the ledger row if there is none, and gives the daemon's
 * and the roll-up's login their rights. For the owner of the schema, or a superuser. Refuses a migration file that was edited after it
 * was applied, and a schema that is newer than this program. ret_applied: how many ran. */
MUST_CHECK bool store_migrate(struct db *db, const struct ledger_options *o, int *ret_applied, struct err *err);
/* The database answers and its schema is this program's, or a newer one that says this program may use it. */
MUST_CHECK bool store_ready(struct db *db, struct err *err);
/* Both logins can do their part and no more: neither is a superuser or owns anything of the schema, and only the roll-up's writes what is
 * made from inputs. ERR_INVALID names the login and the remedy. */
MUST_CHECK bool store_logins_check(struct db *daemon, struct db *rollup, struct err *err);
struct ledger {
	bool demo;
	char zone[64];
};
MUST_CHECK bool store_ledger(struct db *db, struct ledger *ret, struct err *err);

/* --- access --- */
enum role {
	ROLE_ADMIN = 1,
	ROLE_BILLING = 2,
	ROLE_TENANT_ADMIN = 4,
	ROLE_DEVELOPER = 8,
	ROLE_VIEWER = 16,
	ROLE_NODE = 32,
	ROLE_SCHEDULER = 64,
	ROLE_METER = 128,
	ROLE_LAST = ROLE_METER,
};
struct identity_row {
	int64_t token_id;
	uint32_t role;
	char name[352];  /* for the audit log: "node demo-h100 #7" */
	char node[256];  /* ROLE_NODE: the one node it speaks for */
	char tenant[64]; /* tenant roles: the one tenant it may see; else empty */
};
struct token_request {
	uint32_t role;
	const char *tenant;      /* of a tenant role; it must exist */
	const char *node;        /* of a node token; the node need not have reported yet */
	const char *sources;     /* of a meter: whose events it sends, with commas between them */
	const char *description; /* NULL: none */
	int64_t expires_ns;      /* 0: never */
};
struct token_made {
	int64_t id;
	char name[352];
	char token[72]; /* the only time it is seen */
};
/* Makes a token (256 random bits as 64 hex digits), stores its SHA-256. */
MUST_CHECK bool store_token_create(struct db *db, const struct token_request *rq, const char *actor,
                                   struct token_made *ret, struct err *err);
/* ERR_DENIED when the token is unknown, expired or revoked. */
#define STORE_TOKEN_REFUSED "the token is not known, has expired or was revoked"
MUST_CHECK bool store_token_check(struct db *db, const char *token, struct identity_row *ret, struct err *err);
/* The same for several in one statement: each has its own outcome in who or err (ERR_NONE: it is known). */
#define TOKEN_LOOKS_MAX 64u
struct token_look {
	const char *token;
	struct identity_row who;
	struct err err;
};
void store_tokens_check(struct db *db, struct token_look *const *looks, size_t n);
const char *role_name(uint32_t role);
MUST_CHECK bool role_parse(const char *text, uint32_t *ret, struct err *err);

/* A list is read newest first, page by page. */
#define PAGE_MAX 1000
struct page {
	int64_t limit;  /* 1 to PAGE_MAX */
	int64_t before; /* an id: only what is older; 0: from the newest */
};
struct token_query {
	const char *tenant, *role, *node, *status; /* NULL: any */
	struct page page;
};
/* {"tokens":[...],"next":ID or null}; nothing in it opens a door. */
MUST_CHECK bool store_tokens_json(struct db *db, const struct token_query *q, struct buf *out, struct err *err);
/* The row of one token, as in the list. tenant: the only one whose tokens the caller may see; NULL: any. ERR_MISSING: there is
 * none of that id. */
MUST_CHECK bool store_token_json(struct db *db, int64_t id, const char *tenant, struct buf *out, struct err *err);
/* From the next check on the token is refused. tenant: the only one whose tokens the caller may revoke; NULL: any.
 * The token's row is written to out. ERR_MISSING: there is none of that id. */
MUST_CHECK bool store_token_revoke(struct db *db, int64_t id, const char *tenant, const char *actor, struct buf *out,
                                   struct err *err);

/* Join tokens: what a node exchanges for its own token, once. */
struct join_token_request {
	const char *node; /* the one name it enrols; NULL: any that has no active token */
	const char *description;
	int64_t expires_ns;
};
MUST_CHECK bool store_join_token_create(struct db *db, const struct join_token_request *rq, const char *actor,
                                        struct token_made *ret, struct err *err);
MUST_CHECK bool store_join_tokens_json(struct db *db, const char *status, const struct page *page, struct buf *out,
                                       struct err *err);
/* ERR_CONFLICT when a node has used it already. */
MUST_CHECK bool store_join_token_revoke(struct db *db, int64_t id, const char *actor, struct buf *out, struct err *err);
/* ERR_DENIED when the join token is not one that works; the text says why. It stays as it was. */
MUST_CHECK bool store_join_check(struct db *db, const char *join_token, struct err *err);
/* The exchange, all or nothing: of two at the same time one gets a token. ERR_DENIED: the join token is not one that
 * works, and the text says why; or, with *ret_known, it is made for another node. ERR_CONFLICT: the name has an active
 * token. */
MUST_CHECK bool store_join(struct db *db, const char *join_token, const char *node, struct token_made *ret,
                           bool *ret_known, struct err *err);

/* --- audit --- */
struct audit_query {
	const char *tenant, *actor, *action, *subject; /* NULL: any */
	int64_t from_ns, to_ns;                        /* INT64_MIN, INT64_MAX: any */
	struct page page;
};
/* {"entries":[...],"next":ID or null} */
MUST_CHECK bool store_audit_json(struct db *db, const struct audit_query *q, struct buf *out, struct err *err);

/* --- promises --- */
/* {"period","promises":[...]}: those in force at the end of the month, or now, beside what was measured of it. ERR_MISSING: the ledger has nothing of
 * that period. */
MUST_CHECK bool store_sla_json(struct db *db, const char *period, const char *tenant, int64_t now_ns, struct buf *out,
                               struct err *err);

/* --- ingest --- */
/* Why a push was refused as a whole. */
enum ingest_refusal {
	REFUSAL_NONE,
	REFUSAL_OTHER,   /* the database, or no frame at all */
	REFUSAL_TORN,    /* the body ends inside a frame */
	REFUSAL_CRC,     /* length or CRC32C */
	REFUSAL_GZIP,    /* no gzip, a torn one, or a bomb */
	REFUSAL_CONTENT, /* bytes that are no batch */
	REFUSAL_VERSION, /* a wire version that this program does not know */
	REFUSAL_STREAM,  /* frames of several streams, or of one that cannot be */
	REFUSAL_NODE,    /* another node than the token's */
	REFUSAL_SIMULATED,
	REFUSAL_GAP,
	REFUSAL_HELD,      /* a node that waits for approval has as much here as it may */
	REFUSAL_MISMATCH,  /* a number that is known with other bytes */
	REFUSAL_OVERSIZED, /* a body above the limit, as it came or after gzip: nobody looked into it */
	INGEST_REFUSALS
};
const char *ingest_refusal_name(enum ingest_refusal r);
/* Why a sound batch is in quarantine (ingest_judge.c). */
enum quarantine_class {
	QUARANTINE_NONE,
	QUARANTINE_FORMAT,     /* numbers and texts that no batch may have */
	QUARANTINE_DICTIONARY, /* a number of the dictionary with another meaning */
	QUARANTINE_SKEW,       /* the node's clock was wrong when it sent */
	QUARANTINE_FUTURE,
	QUARANTINE_PAST,
	QUARANTINE_COVERED,    /* time that the stream has accounted for */
	QUARANTINE_UNKNOWN_ID, /* a device or holder that was never introduced */
	QUARANTINE_WEIGHT,     /* more units than there are */
	QUARANTINE_TWO_NODES,  /* a GPU that another node has at that time */
	QUARANTINE_RETIRED,    /* a GPU that was declared retired for that time */
	QUARANTINE_UNPROVED,   /* time whose batches were kept long enough, and are gone */
	QUARANTINE_UNAPPROVED, /* of a node that nobody has declared or approved */
	QUARANTINE_ENERGY,     /* more energy or memory than the board can have */
	QUARANTINE_MODEL,      /* a GPU of another model than the policy declares of the node */
	QUARANTINE_CLASSES
};
const char *quarantine_class_name(enum quarantine_class c);

struct ingest_request {
	const char *node; /* the name the token speaks for; NULL: any */
	const void *frames;
	size_t len;
	int64_t now_ns;      /* when it arrived: judges times in the future, and the node's clock */
	int64_t clock_ns;    /* the node's clock at the moment of sending; INT64_MIN: it did not say */
	int64_t skew_max_ns; /* how far the two may be apart */
	int64_t held_max;    /* bytes that a node may have here before it is approved; 0: any */
};
struct ingest_result {
	uint64_t epoch, next_seq; /* of the stream after this call: everything before is durable */
	/* what this call did */
	int64_t batches, records, duplicates, quarantined, lost;
	int64_t set_aside;           /* records of GPUs that are not the node's, in batches that were taken */
	bool grouped;                /* in one transaction with others, if there were any */
	bool gap;                    /* ERR_CONFLICT: next_seq is the number expected */
	bool mismatch;               /* ERR_CONFLICT: a number that is known with other bytes */
	bool simulated;              /* ERR_INVALID: simulated records, and the ledger is not a demo */
	enum ingest_refusal refusal; /* NONE: it was taken */
	int64_t quarantined_by[QUARANTINE_CLASSES]; /* batches, and GPUs of batches that were set aside */
	char quarantine_reason[256];                /* of the last one */
	struct ingest_sums sums; /* of the records that this call made durable; duplicates are not among them */
};
void ingest_result_fini(struct ingest_result *r);
/* What is known of streams from one push to the next; one for all threads of a process. Records are summed in slices of slice_ns,
 * which divides an hour, as they go by (ingest_slice.c). */
struct ingest_cache;
struct ingest_cache *ingest_cache_new(int64_t slice_ns);
void ingest_cache_free(struct ingest_cache *c);
DEFINE_OWNED(ingest_cache, struct ingest_cache)

/* A push that has been decoded. It borrows the frames of its request. */
struct ingest_push;
/* Without the database, for any thread. False: ret_result says which refusal it is. */
MUST_CHECK bool ingest_push_new(const struct ingest_request *rq, struct ingest_push **ret,
                                struct ingest_result *ret_result, struct err *err);
size_t ingest_push_records(const struct ingest_push *p);
void ingest_push_free(struct ingest_push *p);
DEFINE_OWNED(ingest_push, struct ingest_push)
/* Takes in, in one transaction, those of the pushes that are what a steady stream sends: the next numbers, and nothing new in
 * the dictionary. The others, and all of them when anything fails, are left as they were. */
void store_ingest_group(struct db *db, struct ingest_cache *cache, struct ingest_push *const *pushes, size_t n);
/* The outcome of a push: what the group made of it, or now, in a transaction of its own. cache may be NULL. */
MUST_CHECK bool store_ingest_push(struct db *db, struct ingest_cache *cache, struct ingest_push *p,
                                  struct ingest_result *ret, struct err *err);
/* Nodes that nobody has approved, ingest_held.c. One step of taking in what approved ones sent before; *ret_more: there may be more. A node
 * whose batches cannot be taken in does not keep the others waiting: it is left out of the turn, and its error is the turn's. */
struct held_turn {
	int64_t *left_out; /* nodes */
	size_t count;
	struct err err; /* of the first of them */
};
void held_turn_fini(struct held_turn *t);
MUST_CHECK bool store_held_release(struct db *db, struct held_turn *turn, struct ingest_result *ret, bool *ret_more,
                                   struct err *err);
/* Approves a node. make: it may be a name that was never seen, else ERR_MISSING. *ret_changed: it was not approved before. */
MUST_CHECK bool store_node_approve(struct db *db, const char *node, const char *actor, const char *reason, bool make,
                                   bool *ret_changed, struct err *err);
/* All of that for one push. */
MUST_CHECK bool store_ingest(struct db *db, struct ingest_cache *cache, const struct ingest_request *rq,
                             struct ingest_result *ret, struct err *err);

/* --- quarantine --- */
struct quarantine_query {
	const char *node, *klass;
	const char *decision; /* open, released or discarded; each of them NULL: any */
	int64_t stream;       /* 0: any */
	struct page page;
};
/* {"batches":[...],"next":ID or null}, newest first: what was put into quarantine, why, and what was decided. */
MUST_CHECK bool store_quarantine_json(struct db *db, const struct quarantine_query *q, struct buf *out,
                                      struct err *err);
/* One of them, and what is in it. ERR_MISSING: no batch of that number was ever in quarantine. */
/* gpu "": the batch; else the records of that GPU in it, which were set aside. */
MUST_CHECK bool store_quarantine_show(struct db *db, int64_t stream, int64_t seq, const char *gpu, struct buf *out,
                                      struct err *err);

struct quarantine_decision {
	int64_t stream, seq;
	const char *gpu; /* "": the batch; else the records of that GPU in it, which were set aside */
	bool release;    /* else discard */
	const char *actor, *why;
	int64_t now_ns;
};
/* Discarding is the operator's word that its time stays unknown. Releasing judges the batch again, with rule 3 of
 * ingest_judge.c overruled, and takes it in as ingest would; ERR_CONFLICT says what still stands against it. What was
 * discarded can be released, what was released stays. The same decision again changes nothing. The batch's row is written
 * to out; ret says what was taken in by this call. */
MUST_CHECK bool store_quarantine_decide(struct db *db, const struct quarantine_decision *d, struct ingest_result *ret,
                                        struct buf *out, struct err *err);

/* --- GPUs --- */
struct gpu_move {
	const char *gpu;  /* its UUID */
	const char *node; /* which may have it from then on */
	int64_t at_ns;    /* its service ends then, but not before its last record */
	const char *actor, *why;
};
/* ERR_MISSING: there is no such GPU or node; ERR_CONFLICT: the policy lists it under another node. What the GPU's service is now is
 * written to out. The same again changes nothing. */
MUST_CHECK bool store_gpu_move(struct db *db, const struct gpu_move *m, struct buf *out, struct err *err);

/* --- policy --- */
struct policy_outcome {
	size_t changes;
	int64_t effective_ns;
	int64_t version;    /* 0 for a dry run or when nothing changed */
	bool reattributing; /* holders are still being attributed again: store_reattribution_json */
	/* The first closed month that it reaches into: what it changes of it becomes corrections. "": none. */
	char corrects_from[8];
};
struct policy_request {
	const char *name; /* of the document, for errors */
	const char *text;
	size_t len;
	const char *actor;
	const char *tenant; /* NULL: the whole policy, by an operator; else this tenant's part, by its administrator */
	int64_t now_ns;
	bool dry_run;
};
/* All or nothing. The differences are written to ret_diff, for people. */
MUST_CHECK bool store_policy_apply(struct db *db, const struct policy_request *rq, struct policy_outcome *ret,
                                   struct buf *ret_diff, struct err *err);
/* After a change of rules, holders that are there are attributed again in the background (policy/attribute.c): some steps of it, each a
 * short transaction, in any replica. ret_done: fewer than steps, and there is nothing left to do here. */
MUST_CHECK bool store_reattribute(struct db *db, int steps, int *ret_done, struct err *err);
/* {"running","effective","started","finished","holders","holders_done","changed","hours_dirty"} of the last change of rules. */
MUST_CHECK bool store_reattribution_json(struct db *db, struct buf *out, struct err *err);
/* A draft of a policy from what was held in the range (core/policy/suggest.h), cut to where a rule may still change something: not before the
 * policy in force, and not in a closed period. */
MUST_CHECK bool store_policy_suggest(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err);
/* The document as it was applied, with what tenants' administrators changed in it; or one tenant's part of it. ERR_MISSING
 * when there is none yet. */
MUST_CHECK bool store_policy_get(struct db *db, const char *tenant, struct buf *ret_text, struct err *err);
/* The id of the policy that was applied last; 0: none was applied yet. */
MUST_CHECK bool store_policy_version(struct db *db, int64_t *ret, struct err *err);
/* Attribution rules that one thread caches between two calls of store_workload_workspace() (quota/decision.h); NULL at first. */
struct rules_kept;
void rules_kept_free(struct rules_kept *k);

/* --- background work: safe in any replica at any time; while another one does the same task, nothing is done --- */
struct rollup_result {
	int64_t sealed, resealed; /* node-hours */
	int64_t restored;         /* node-hours whose records were made again from their batches */
};
/* Seals every node-hour that is due and computes the dirty ones again; at most `limit` of them. */
MUST_CHECK bool store_rollup(struct db *db, int64_t now_ns, int64_t grace_ns, int limit, struct rollup_result *ret,
                             struct err *err);
/* Sums what nodes have covered of open hours, in steps of slice_ns, which divides an hour. */
MUST_CHECK bool store_slice(struct db *db, int64_t slice_ns, int64_t *ret_sliced, struct err *err);
/* Folds days that are over and whose node-hours are all sealed; at most `limit`. */
MUST_CHECK bool store_fold(struct db *db, int64_t now_ns, int limit, int64_t *ret_folded, struct err *err);
/* Room for the records of the days to come. */
MUST_CHECK bool store_partitions(struct db *db, int64_t now_ns, int64_t *ret_made, struct err *err);
/* What is kept for how long. 0: for ever. */
struct retention {
	int64_t intervals_ns; /* records, by UTC day, once all that is made of them is folded */
	int64_t batches_ns;   /* the evidence, after its period was closed */
	int64_t hours_ns;     /* node-hours, once their day is folded */
};
struct retention_result {
	int64_t days; /* of records */
	int64_t busy; /* days of records that stay because somebody was writing; they are tried again */
	int64_t batches;
	int64_t hours;
};
MUST_CHECK bool store_retain(struct db *db, int64_t now_ns, const struct retention *keep, struct retention_result *ret,
                             struct err *err);

/* --- reading --- */
#define USAGE_PAGE_MAX 100000
struct usage_query {
	int64_t from_ns, to_ns; /* widened to billing hours */
	/* comma list of: cluster tenant workspace user workload label:KEY gpu_model profile node gpu sharing day hour state
	 * method; "" is one group of everything. gpu is the UUID. */
	const char *group_by;
	const char *tenant, *workspace, *cluster, *user, *gpu_model, *node; /* exactly this one; NULL: all */
	const char *cursor; /* next of the page before, with its range; NULL: the first page */
	int64_t limit;      /* groups in one answer, 1 to USAGE_PAGE_MAX */
	bool exact; /* whole numbers of unit-nanoseconds, millijoules, byte-milliseconds, which add up to the last one */
	bool csv;
	int64_t cost_rows; /* with cost: at most so many rows of hours and groups are read */
	bool cost; /* what each group costs, and what no workload caused (usage_cost.h); the range is widened to billing days; no CSV */
};
/* {"from","to","groups":[{...keys, "allocated_gpu_hours", "used_gpu_hours", ...}],"next"}, decimals as text with nine places; or CSV
 * of the groups. Sealed and open hours alike. By state, a group has one number, "gpu_hours". Keys that a row has not are "".
 * ret_next: the cursor of the next page; empty on the last one. */
MUST_CHECK bool store_usage(struct db *db, const struct usage_query *q, struct buf *out, struct buf *ret_next,
                            struct err *err);
/* {"from","to","gpus":[...]}: per GPU and node the time in service, the states, their sum, and the difference of both
 * beside clock_adjust, which must be 0; in GPU-hours, and exactly in unit-nanoseconds. */
MUST_CHECK bool store_conservation_json(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out,
                                        struct err *err);
/* What the differences of all GPUs over a period add up to, in unit-nanoseconds, whatever their sign: 0, or the ledger has
 * an error. The cheap check, by the roll-ups; nothing is read again from the batches. */
MUST_CHECK bool store_conservation_error(struct db *db, const char *period, int128 *ret_unit_ns, struct err *err);
/* The ledger computed a second time, from the batches it keeps as evidence, and every difference to what it has:
 * {"from","to","differences":[{"kind","node","gpu","hour","what","expected","found","difference"}],"count","left_out",
 * "nodes","hours",...}: the members of verify_counts. The kinds are in store/README.md. left_out: counted, but beyond what one answer
 * tells. ERR_MISSING: there is no such node. */
enum verify_part {
	VERIFY_ALL,
	VERIFY_NODES, /* batches, records, hours, attribution: of all nodes, or of one */
	VERIFY_DAYS,  /* billing days and their charges */
	VERIFY_BILLS, /* closed months: the record of the close, documents, lines, changes since */
	VERIFY_ROWS,  /* rows that cannot be computed again, by the journal; whatever the range */
	VERIFY_PARTS
};
extern const char *const verify_part_names[VERIFY_PARTS + 1]; /* ended by NULL */
struct verify_query {
	int64_t from_ns, to_ns; /* widened to billing hours */
	const char *node;       /* NULL: all */
	enum verify_part part;  /* of one node always VERIFY_NODES */
};
MUST_CHECK bool store_verify_json(struct db *db, const struct verify_query *q, struct buf *out, struct err *err);

/* How much was looked at, and how much was not, and why. */
struct verify_counts {
	int64_t differences;
	int64_t nodes, hours, batches, records, days, charges, rows;
	int64_t schema;             /* objects of the schema */
	int64_t schema_differences; /* of the differences */
	int64_t schema_texts;       /* of them: printed by another major version of PostgreSQL, and not compared */
	int64_t hours_pending;      /* records came for them after they were retired; they are being made again */
	int64_t hours_unproved;     /* their batches were given up */
	int64_t days_open;          /* not folded: reports make them from their hours */
	int64_t days_gone;          /* their hours were given up */
	int64_t quarantined;        /* batches that nobody released */
	int64_t set_aside;          /* GPUs of batches whose records nobody released */
	int64_t batches_outside;    /* accepted, and wholly outside the range: their bytes were not read */
	int64_t unanchored;         /* batches in no range yet: only their own SHA-256 proves them */
	int64_t months, documents, lines; /* closed months, and what was billed with them */
	int64_t lines_rated;              /* of the lines: those that were rated a second time */
	int64_t months_changed; /* of the months: something has changed since, which the first open month corrects */
	int64_t months_earlier; /* of the months: rated by the rules of an earlier release */
};
/* The proof of a month, as a close needs it: with the closed months that have changed since, all that was billed of days whose hours are kept, and
 * the chains of the audit log. In all parts, of which a node and a day are the largest that is in memory. tell is called before each step; false of
 * it ends the proof with err as it left it. out: the differences as a JSON array, 10,000 at most; ret->differences counts all. ERR_MISSING: the
 * ledger has nothing of the month. */
typedef bool verify_progress(void *arg, int64_t done, int64_t total, const char *step, struct err *err);
MUST_CHECK bool store_verify_month(struct db *db, const char *month, verify_progress *tell, void *arg,
                                   struct verify_counts *ret, struct buf *out, struct err *err);
/* The billing period that now lies in: "2026-11". */
MUST_CHECK bool store_period_now(struct db *db, int64_t now_ns, char ret_period[40], struct err *err);
/* The beginning of a day, "2026-11-01", in the billing zone. */
MUST_CHECK bool store_day_start(struct db *db, const char *day, int64_t *ret_ns, struct err *err);
/* The period's totals, for the daemon's gauges: calls back once per row. */
struct usage_total {
	const char *cluster, *tenant, *workspace, *gpu_model, *profile, *state;
	int128 unit_ns;
};
MUST_CHECK bool store_period_totals(struct db *db, const char *period,
                                    void (*each)(void *arg, const struct usage_total *t), void *arg, struct err *err);

/* What rating needs for a month; owns every string. */
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

/* What the month would have cost with these prices: a policy file, or only its key prices. JSON; nothing is written. */
struct price_request {
	const char *name; /* of the file, for errors */
	const char *text;
	size_t len;
	const char *period;
	const char *tenant; /* NULL: all */
};
MUST_CHECK bool store_price_preview(struct db *db, const struct price_request *rq, struct buf *out, struct err *err);

/* Lists for `tollgate get`: JSON arrays of objects. what: tenants, workspaces, nodes, periods. */
MUST_CHECK bool store_list_json(struct db *db, const char *what, const char *tenant, struct buf *out, struct err *err);
/* ERR_MISSING: no policy ever had a tenant of that name. */
MUST_CHECK bool store_tenant_known(struct db *db, const char *name, struct err *err);

#endif

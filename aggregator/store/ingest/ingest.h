/* aggregator/store/ingest/ingest.h - interface for data from outside: pushed batches, quarantine, GPU moves, events
 * of other meters, node status. */
#ifndef TOLLGATE_INGEST_H
#define TOLLGATE_INGEST_H

#include "aggregator/core/metering/events.h"
#include "aggregator/core/metering/ingest_sums.h"
#include "aggregator/core/metering/live.h"
#include "aggregator/store/store.h"

/* --- batches --- */

/* Why a push was refused as a whole. */
enum ingest_refusal {
	REFUSAL_NONE,
	REFUSAL_OTHER,   /* database error, or no frame at all */
	REFUSAL_TORN,    /* the body ends inside a frame */
	REFUSAL_CRC,     /* length or CRC32C */
	REFUSAL_GZIP,    /* no gzip, a torn one, or a bomb */
	REFUSAL_CONTENT, /* bytes that do not decode as a batch */
	REFUSAL_VERSION, /* a wire version that this program does not know */
	REFUSAL_STREAM,  /* frames of several streams, or an invalid stream */
	REFUSAL_NODE,    /* another node than the token's */
	REFUSAL_SIMULATED,
	REFUSAL_GAP,
	REFUSAL_HELD,      /* a node without approval has used its storage limit */
	REFUSAL_MISMATCH,  /* a known sequence number with different bytes */
	REFUSAL_OVERSIZED, /* a body above the limit, before or after gzip; not decoded */
	INGEST_REFUSALS
};
const char *ingest_refusal_name(enum ingest_refusal r);
/* Why a sound batch is in quarantine (ingest_accept.c). */
enum quarantine_class {
	QUARANTINE_NONE,
	QUARANTINE_FORMAT,     /* numbers or texts outside the wire format's bounds */
	QUARANTINE_DICTIONARY, /* a dictionary number with a different meaning */
	QUARANTINE_SKEW,       /* the node's clock was wrong when it sent */
	QUARANTINE_FUTURE,
	QUARANTINE_PAST,
	QUARANTINE_COVERED,    /* time that the stream has covered already */
	QUARANTINE_UNKNOWN_ID, /* a device or holder that was never introduced */
	QUARANTINE_WEIGHT,     /* more units than the device has */
	QUARANTINE_TWO_NODES,  /* a GPU that is in service on another node at that time */
	QUARANTINE_RETIRED,    /* a GPU that was declared retired for that time */
	QUARANTINE_UNPROVED,   /* time whose batches have been deleted by retention */
	QUARANTINE_UNAPPROVED, /* of a node that is neither declared nor approved */
	QUARANTINE_ENERGY,     /* more energy or memory than the board's model allows */
	QUARANTINE_MODEL,      /* a GPU of a model other than the policy declares for the node */
	QUARANTINE_CLASSES
};
const char *quarantine_class_name(enum quarantine_class c);

struct ingest_request {
	const char *node; /* the token's node; NULL: any */
	const void *frames;
	size_t len;
	int64_t now_ns;      /* arrival time: the reference for times in the future and for the node's clock */
	int64_t clock_ns;    /* the node's clock when it sent; INT64_MIN: not given */
	int64_t skew_max_ns; /* largest accepted difference between the two clocks */
	int64_t held_max;    /* bytes stored for a node before it is approved; 0: no limit */
};
struct ingest_result {
	uint64_t epoch, next_seq; /* of the stream after this call: everything before next_seq is durable */
	/* counts of this call */
	int64_t batches, records, duplicates, quarantined, lost;
	int64_t set_aside;           /* records set aside in accepted batches: their GPUs are not the node's */
	bool grouped;                /* stored in a transaction shared with other pushes */
	bool gap;                    /* ERR_CONFLICT: next_seq is the number expected */
	bool mismatch;               /* ERR_CONFLICT: a known number with different bytes */
	bool simulated;              /* ERR_INVALID: simulated records, and the ledger is not a demo */
	enum ingest_refusal refusal; /* NONE: the push was accepted */
	int64_t quarantined_by[QUARANTINE_CLASSES]; /* batches, and GPUs set aside in batches */
	char quarantine_reason[256];                /* of the last one */
	struct ingest_sums sums;                    /* of the records that this call made durable, without duplicates */
};
void ingest_result_fini(struct ingest_result *r);
/* Stream state kept from one push to the next; one cache for all threads of a process. Accepted records are summed in
 * slices of slice_ns, which divides an hour (ingest_write.c). */
struct ingest_cache;
struct ingest_cache *ingest_cache_new(int64_t slice_ns);
void ingest_cache_free(struct ingest_cache *c);
DEFINE_OWNED(ingest_cache, struct ingest_cache)

/* A decoded push. It borrows the frames of its request. */
struct ingest_push;
/* Uses no database; any thread may call it. On false, ret_result names the refusal. */
MUST_CHECK bool ingest_push_new(const struct ingest_request *rq, struct ingest_push **ret,
                                struct ingest_result *ret_result, struct err *err);
size_t ingest_push_records(const struct ingest_push *p);
void ingest_push_free(struct ingest_push *p);
DEFINE_OWNED(ingest_push, struct ingest_push)
/* Stores the steady pushes in one transaction: those with the next sequence numbers and no new dictionary entry. All
 * others are left unchanged; if anything fails, all of them are. */
void store_ingest_group(struct db *db, struct ingest_cache *cache, struct ingest_push *const *pushes, size_t n);
/* The result of a push. A push that no group has stored is stored now in its own transaction. cache may be NULL. */
MUST_CHECK bool store_ingest_push(struct db *db, struct ingest_cache *cache, struct ingest_push *p,
                                  struct ingest_result *ret, struct err *err);
/* One step of storing the held batches of nodes that are approved by now (ingest_held.c); *ret_more: there may be
 * more. A node whose batches cannot be stored does not delay the others: the turn skips it and returns its error. */
struct held_turn {
	int64_t *skipped; /* nodes skipped in this turn */
	size_t count;
	struct err err; /* of the first skipped node */
};
void held_turn_fini(struct held_turn *t);
MUST_CHECK bool store_held_release(struct db *db, struct held_turn *turn, struct ingest_result *ret, bool *ret_more,
                                   struct err *err);
/* ingest_push_new() and store_ingest_push() in one call. */
MUST_CHECK bool store_ingest(struct db *db, struct ingest_cache *cache, const struct ingest_request *rq,
                             struct ingest_result *ret, struct err *err);

/* --- quarantine --- */
struct quarantine_query {
	const char *node, *klass;
	const char *decision; /* open, released or discarded; each of them NULL: any */
	int64_t stream;       /* 0: any */
	struct page page;
};
/* {"batches":[...],"next":ID or null}, newest first: batches in quarantine, the reason, and the operator's decision. */
MUST_CHECK bool store_quarantine_json(struct db *db, const struct quarantine_query *q, struct buf *out,
                                      struct err *err);
/* One quarantined batch and its content. ERR_MISSING: no batch of that number was ever in quarantine. */
/* gpu "": the whole batch; otherwise the records of that GPU which were set aside. */
MUST_CHECK bool store_quarantine_show(struct db *db, int64_t stream, int64_t seq, const char *gpu, struct buf *out,
                                      struct err *err);

struct quarantine_decision {
	int64_t stream, seq;
	const char *gpu; /* "": the whole batch; otherwise the records of that GPU which were set aside */
	bool release;    /* false: discard */
	const char *actor, *why;
	int64_t now_ns;
};
/* A discarded batch leaves its time unknown. A released batch is judged again without rule 3 of ingest_accept.c and
 * stored as by a push; ERR_CONFLICT names the rule that still refuses it. A discarded batch can be released later; a
 * released batch stays released. Repeating a decision changes nothing. The batch's row is written to out; ret counts
 * the data stored by this call. */
MUST_CHECK bool store_quarantine_decide(struct db *db, const struct quarantine_decision *d, struct ingest_result *ret,
                                        struct buf *out, struct err *err);

/* --- GPUs --- */
struct gpu_move {
	const char *gpu;  /* its UUID */
	const char *node; /* may report the GPU from then on */
	int64_t at_ns;    /* the old service ends then, but not before its last record */
	const char *actor, *why;
};
/* ERR_MISSING: there is no such GPU or node; ERR_CONFLICT: the policy lists the GPU under another node. The GPU's
 * current service is written to out. Repeating the move changes nothing. */
MUST_CHECK bool store_gpu_move(struct db *db, const struct gpu_move *m, struct buf *out, struct err *err);

/* --- events of other meters --- */

struct event_sender {
	int64_t token_id;
	const char *tenant; /* the sender's tenant, which has its own set of ids; NULL: the operator */
	int64_t skus_max;   /* different SKUs of one tenant in one month */
	bool by_meter;      /* the token names the sources whose events it may send */
	int64_t now_ns;     /* arrival time */
};
/* Stores all valid events in one transaction and sets the outcome of each; a refused event does not delay the others.
 * The call may be repeated: stored events are then duplicates. */
MUST_CHECK bool store_events_add(struct db *db, struct events *all, const struct event_sender *sender, struct err *err);

struct meter_query {
	const char *period; /* "2026-11" */
	const char *tenant; /* NULL: all */
	const char *meter;  /* NULL: all */
	bool by_end_user;   /* inference only, one row per end user; "" where the event names none */
};
/* {"period","from","to","meters":[{tenant, workspace, category, meter, unit, sku, quantity, events}]}; quantities are
 * exact decimals in text. ERR_MISSING: the ledger has no data of that period. */
MUST_CHECK bool store_meters_json(struct db *db, const struct meter_query *q, struct buf *out, struct err *err);

/* --- status of nodes --- */

/* Arrival of a status message. */
struct live_arrival {
	int64_t wall_ns, age_ns; /* by our clock, and how long ago */
	int64_t skew_ns;         /* the node's clock minus ours */
};
/* Replaces a node's status. *ret_kept is false if a newer one of the same boot is stored already. ERR_DENIED: made by
 * a simulator, and the ledger is not a demo. */
MUST_CHECK bool store_status_keep(struct db *db, const struct live_status *s, const struct live_arrival *came,
                                  bool *ret_kept, struct err *err);

struct live_query {
	const char *tenant;  /* sees its own nodes, and on other nodes its own workloads; NULL: all */
	const char *node;    /* NULL: any */
	int64_t skew_max_ns; /* a larger difference is reported as skewed */
};
/* A JSON array with one object per node. */
MUST_CHECK bool store_status_json(struct db *db, const struct live_query *q, struct buf *out, struct err *err);

/* --- for the daemon's gauges: one callback per row; its texts are valid during the callback --- */

/* GPUs in service by state (healthy, down, unknown), which add up. tenant: the owner of the nodes, or "". */
struct capacity_row {
	const char *cluster, *tenant, *gpu_model, *state;
	int64_t gpus;
};
MUST_CHECK bool store_capacity(struct db *db, void (*each)(void *arg, const struct capacity_row *c), void *arg,
                               struct err *err);

struct node_row {
	const char *cluster, *node, *tenant; /* tenant: the node's owner, or "" */
	int64_t lag_ns;                      /* age of its latest record; -1: it has none */
	bool heard;                          /* it has sent a status */
	int64_t age_ns, skew_ns;             /* of the last status */
	bool silent;
};
MUST_CHECK bool store_nodes(struct db *db, int64_t now_ns, void (*each)(void *arg, const struct node_row *n), void *arg,
                            struct err *err);

/* Work that waits for an operator or for the roll-up. */
struct backlog {
	int64_t quarantined, quarantine_age_ns;           /* batches without a decision; 0: there is none */
	int64_t held_nodes;                               /* seen, but not approved */
	int64_t open_hours, dirty_hours, unsealed_age_ns; /* node-hours; time since the end of the oldest */
};
MUST_CHECK bool store_backlog(struct db *db, int64_t now_ns, struct backlog *ret, struct err *err);

MUST_CHECK bool store_workspaces(struct db *db,
                                 void (*each)(void *arg, int32_t id, const char *tenant, const char *workspace),
                                 void *arg, struct err *err);

#endif

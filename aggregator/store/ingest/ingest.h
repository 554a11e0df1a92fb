/* aggregator/store/ingest/ingest.h - what reaches the ledger from outside: pushed batches, quarantine, GPU moves, events of other meters, node status. */
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
/* Why a sound batch is in quarantine (ingest_accept.c). */
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
 * which divides an hour, as they go by (ingest_write.c). */
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
/* Stores the steady pushes in one transaction: those with the next numbers and nothing new in the dictionary. The others, and all of
 * them when anything fails, are left unchanged. */
void store_ingest_group(struct db *db, struct ingest_cache *cache, struct ingest_push *const *pushes, size_t n);
/* The outcome of a push: the group's, or else the push is stored now in its own transaction. cache may be NULL. */
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
/* Discarding a batch leaves its time unknown. Releasing judges the batch again, with rule 3 of
 * ingest_accept.c overruled, and takes it in as ingest would; ERR_CONFLICT says what still stands against it. What was
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

/* --- events of other meters --- */

struct event_sender {
	int64_t token_id;
	const char *tenant; /* whose sender it is: ids of its events are its own; NULL: the operator's */
	int64_t skus_max;   /* different SKUs of one tenant in one month */
	bool by_meter;      /* its token names the sources whose events it sends */
	int64_t now_ns;     /* when they came */
};
/* Stores all sound events in one transaction and sets the outcome of each; a refused event does not hold up the others. May be repeated:
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

/* --- status of nodes --- */

/* When a status arrived. */
struct live_arrival {
	int64_t wall_ns, age_ns; /* by our clock, and how long ago that is */
	int64_t skew_ns;         /* the node's clock less ours */
};
/* Keeps a node's status in the place of its last one. *ret_kept is false when a newer one of the
 * same boot is there already. ERR_DENIED: made by a simulator, and the ledger is not a demo. */
MUST_CHECK bool store_status_keep(struct db *db, const struct live_status *s, const struct live_arrival *came,
                                  bool *ret_kept, struct err *err);

struct live_query {
	const char *tenant;  /* sees its own nodes, elsewhere what it is on; NULL: all */
	const char *node;    /* NULL: any */
	int64_t skew_max_ns; /* beyond it a clock is called skewed */
};
/* A JSON array, one object for each node. */
MUST_CHECK bool store_status_json(struct db *db, const struct live_query *q, struct buf *out, struct err *err);

/* --- for the daemon's gauges: each calls back once per row, whose texts last until it returns --- */

/* GPUs in service by state, which add up: healthy, down, unknown. tenant: of nodes that have an owner, else "". */
struct capacity_row {
	const char *cluster, *tenant, *gpu_model, *state;
	int64_t gpus;
};
MUST_CHECK bool store_capacity(struct db *db, void (*each)(void *arg, const struct capacity_row *c), void *arg,
                               struct err *err);

struct node_row {
	const char *cluster, *node, *tenant; /* tenant: its owner, else "" */
	int64_t lag_ns;                      /* how far its records are behind; -1: it has none */
	bool heard;                          /* it has sent a status */
	int64_t age_ns, skew_ns;             /* of that */
	bool silent;
};
MUST_CHECK bool store_nodes(struct db *db, int64_t now_ns, void (*each)(void *arg, const struct node_row *n), void *arg,
                            struct err *err);

/* Work that waits for an operator or for the roll-up. */
struct backlog {
	int64_t quarantined, quarantine_age_ns;           /* batches without a decision; 0: there is none */
	int64_t held_nodes;                               /* seen, and approved by nobody */
	int64_t open_hours, dirty_hours, unsealed_age_ns; /* node-hours; since the end of the oldest */
};
MUST_CHECK bool store_backlog(struct db *db, int64_t now_ns, struct backlog *ret, struct err *err);

MUST_CHECK bool store_workspaces(struct db *db,
                                 void (*each)(void *arg, int32_t id, const char *tenant, const char *workspace),
                                 void *arg, struct err *err);

#endif

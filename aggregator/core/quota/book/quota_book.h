/* aggregator/core/quota/book/quota_book.h - the quota engine by names and texts, as a service keeps, logs and replays it.
 *
 * Pure. A book is a state of the engine with its policy, the names of everything and the inventory. It is opened from a text and
 * written as one: open(write(b)) behaves the same and writes the same bytes. An event is a text too, and there is no other way
 * to change a book: a service that logs the events and a replay of its log run the same code.
 *
 * An event is an object with one member:
 *
 *   {"submit":[R...]}                                         one batch
 *   {"tick":true}
 *   {"finish":ID} {"release":ID} {"empty":ID} {"drain":ID} {"enforce":ID}    a lease, or a list of them
 *   {"release":{"id","lost":true}}                            a lease whose node is dead: it returns at once, its devices are fenced
 *   {"unfence":{"id","parts":[{"node","gpu"}]}}               nothing of that lease is on them any more; without parts, or {"unfence":ID}: anywhere
 *   {"heartbeat":ID or [ID...]}
 *   {"renew":ID}                                              an unconfirmed lease, or a list of them: its confirm time begins anew
 *   {"confirm":{"id","parts":[{"node","gpu":POSITION or UUID,"count"}]}}     without parts, or {"confirm":ID}: where it was planned
 *   {"cancel":ID}                                             a waiting request
 *   {"node_lost":NAME} {"node_back":NAME}                     a node, or a list of them
 *   {"gpu_lost":{"node","gpu"}} {"gpu_back":{"node","gpu"}}
 *   {"layout":{"node","gpu","slots":[SLOT...]}}
 *   {"exception":{"id","workspace","cluster","model","shared","extra_limit_units","extra_reserved_units","from_ns","until_ns"}}
 *   {"exception_end":ID}
 *   {"policy":{...}}    the whole of it: settings, clusters, models, shapes, classes, tenants, workspaces, shares, caps, budgets, prices
 *   {"nodes":[{"name","cluster","tenant"?,"lost"?,"gpus":[{"uuid"?,"model","lost"?,"slots":[SLOT...]}]}]}    the whole inventory
 *   {"budgets":[{"tenant","workspace"?,"kind","consumed"}]}
 *
 *   {"adopt":{R,"started_ns"?,"parts":[{"node","gpu"?,"count"}]}}            what runs already; without gpu: anywhere on the node. Nodes and
 *                                                             GPUs that are not known are no error. of R, per_node and expiry mean nothing
 *   {"adoption":{"cluster","complete":true or false}}         whether everything that runs there was adopted
 *
 *   R = {"id","workspace":"acme/prod","cluster"?,"model"?, "gpus":N | "profile","count" | "replicas":N,"of":K, "per_node"?,
 *        "class"? or "priority"?, "preemptible"?, "expected_s"?, "cost"?, "expires_ns"? or "expires_in_ns"?, "cpu_millis"?, "memory_bytes"?, "storage_bytes"?,
 *        "queued_since_ns"?: since when its scheduler has it in the queue, over all attempts: a moment after the step is the step, one more than
 *        QUOTA_QUEUED_MAX_NS before it is that,
 *        "reason"?: why it waits, as its scheduler says, of at most 128 bytes}
 *   SLOT = {"profile","units","count"} | {"of":K,"count"} | {"count":1} a whole GPU
 *
 * The members of a policy are in ../README.md, under "The quota book". Positions of tenants, workspaces, shapes,
 * nodes and GPUs never change: tenants and workspaces that a new policy does not name stay with limits of 0, a node that is not in the inventory stays
 * without GPUs, a GPU that is gone stays without devices. Leases on them stay counted.
 *
 * A request that names a workspace, cluster, model, profile or class that is not known, or a number out of range, gets the verdict
 * reject by rule valid, and a notice that says why: one bad request does not spoil its batch. */
#ifndef TOLLGATE_QUOTA_BOOK_H
#define TOLLGATE_QUOTA_BOOK_H

#include "aggregator/core/quota/engine/quota_text.h"

#define QUOTA_BOOK_MAX_BYTES (256u << 20) /* of a state */
#define QUOTA_EVENT_MAX_BYTES (64u << 20)
#define QUOTA_UUID_SIZE (LIMIT_GPU_UUID + 1)
#define QUOTA_QUEUED_MAX_NS \
	(90 * 24 * INT64_C(3600000000000)) /* the oldest that a request may be when it is submitted */

struct quota_book;

/* A text made by quota_book_write(), or {}: nothing is known yet. */
MUST_CHECK bool quota_book_open(const char *state, size_t len, struct quota_book **ret, struct err *err);
void quota_book_write(const struct quota_book *b, struct buf *out);
struct quota_book *quota_book_clone(const struct quota_book *b);
void quota_book_free(struct quota_book *b);
DEFINE_OWNED(quota_book, struct quota_book)

/* For the figures of quota.h, and quota_save() for the lists. Its indices are those of this book, and stay. */
const struct quota_state *quota_book_state(const struct quota_book *b);
int64_t quota_book_now(const struct quota_book *b);

/* One event. An error (ERR_INVALID: the text is none; ERR_CONFLICT: a request_id or exception that is there already) leaves
 * the book as it was. A list of leases or nodes is one event; its outcomes follow each other in one. */
MUST_CHECK bool quota_book_step(struct quota_book *b, int64_t now_ns, const char *event, size_t len,
                                struct quota_outcome **ret, struct err *err);
/* What-if: the same on a copy. */
MUST_CHECK bool quota_book_try(const struct quota_book *b, int64_t now_ns, const char *event, size_t len,
                               struct quota_outcome **ret, struct err *err);
/* A waiting request with all its checks as they stand now. NULL: no such request. */
struct quota_outcome *quota_book_explain(const struct quota_book *b, int64_t now_ns, const char *request_id);

/* {"verdicts":[...],"notices":[...]}: verdicts as `tollgate quota simulate` prints them, without "at"; notices as
 * {"event","id","for" or "reason","due_ns"}. */
void quota_book_outcome_json(const struct quota_book *b, struct quota_outcome *o, struct buf *out);
/* The names of its positions, valid as long as the book. */
struct quota_namer quota_book_namer(const struct quota_book *b);
void quota_book_verdict_json(const struct quota_book *b, const struct quota_verdict *v, struct buf *out);

/* ---- names and positions ---------------------------------------------------------------------------------------------- */

/* QUOTA_NONE when there is none of that name. */
int32_t quota_book_cluster(const struct quota_book *b, const char *name);
int32_t quota_book_model(const struct quota_book *b, const char *name);
/* The model that a name in a request stands for; the name itself where there is none: the engine rejects that. ERR_INVALID: it is the family
 * of several. */
MUST_CHECK bool quota_book_model_of(const struct quota_book *b, const char *name, const char **ret, struct err *err);
int32_t quota_book_tenant(const struct quota_book *b, const char *name);
int32_t quota_book_workspace(const struct quota_book *b, const char *path); /* "acme/prod" */
/* Whether the present policy has the workspace and, where that is enforced, lets it use the priority class (NULL: none is named): only then are
 * its requests decided. */
bool quota_book_takes(const struct quota_book *b, const char *path, const char *klass);
/* Why it does not. ERR_MISSING: there is no such workspace, with the one that may have been meant. ERR_INVALID: no such class, with those that
 * it may use. tenant: whose workspaces may be named; "": anybody's. */
bool quota_book_not_taken(const struct quota_book *b, const char *path, const char *klass, const char *tenant,
                          struct err *err);
int32_t quota_book_node(const struct quota_book *b, const char *name);
int32_t quota_book_gpu(const struct quota_book *b, int32_t node, const char *uuid); /* its position on the node */

size_t quota_book_cluster_count(const struct quota_book *b);
size_t quota_book_model_count(const struct quota_book *b);
size_t quota_book_workspace_count(const struct quota_book *b);
size_t quota_book_node_count(const struct quota_book *b);
const char *quota_book_cluster_name(const struct quota_book *b, int32_t cluster);
const char *quota_book_model_name(const struct quota_book *b, int32_t model);
const char *quota_book_tenant_name(const struct quota_book *b, int32_t tenant);
const char *quota_book_workspace_path(const struct quota_book *b,
                                      int32_t workspace); /* "acme/prod"; "" for QUOTA_NONE */
const char *quota_book_node_name(const struct quota_book *b, int32_t node);
const char *quota_book_gpu_uuid(const struct quota_book *b, int32_t node, int32_t gpu); /* "": not seen yet */
struct quota_shape quota_book_shape(const struct quota_book *b, int32_t shape);
/* The settings in force. */
const struct quota_settings *quota_book_settings(const struct quota_book *b);
/* Requests of a workspace that is not enforced that the rules would not have admitted, since the book began. */
int64_t quota_book_would_deny(const struct quota_book *b, int32_t workspace);

/* ---- quota_recording.c: a log of a book, and its replay -------------------------------------------------------------------- */

/*
 *   {"recording":1, "state":{a book}, "state_seq":N,
 *    "events":[{"seq":N+1, "at_ns":T, "event":{...}, "outcome":{...}}, ...]}
 *
 * The state is as quota_book_write() makes it, {} for a book's beginning; events follow each other without a gap. Where an outcome
 * is recorded, the outcome of the replay is compared with it. Pure. */
#define QUOTA_RECORDING_VERSION 1
#define QUOTA_RECORDING_MAX_BYTES (1u << 30)

/* One event of it, with the book after it. */
struct quota_recorded {
	int64_t seq, at_ns;
	const struct quota_outcome *outcome;
	const struct quota_book *book;
	bool differs;
	const char *expected, *found; /* where it differs: the outcomes as JSON */
};
typedef void quota_recorded_tell(void *to, const struct quota_recorded *told);

struct quota_recording_sum {
	int64_t events, compared, differ;
};

/* Whether a text says of itself that it is one. */
bool quota_recording_is(const char *text, size_t len);

/* Every event in its order. ERR_INVALID: it is no recording, or an event of it cannot happen. */
MUST_CHECK bool quota_recording_replay(const char *name, const char *text, size_t len, quota_recorded_tell *tell,
                                       void *to, struct quota_recording_sum *ret, struct err *err);

#endif

/* tests/support/quota/quotaref.h - the rules of QUOTA a second time, for states small enough to try everything.
 *
 * Written from the document and not from aggregator/core/quota: one request on one state, each rule evaluated directly, the
 * victims by trying every subset of the leases. Slow and plain on purpose; it is the judge of the engine. */
#ifndef TOLLGATE_TESTS_QUOTAREF_H
#define TOLLGATE_TESTS_QUOTAREF_H

#include "common/base/buf.h"

#define QREF_NODES 4
#define QREF_WORKSPACES 4
#define QREF_LEASES 8
#define QREF_SHARED (-1)    /* the tenant of a shared node */
#define QREF_NONE INT64_MAX /* no limit */

enum qref_reclaim { QREF_ANY, QREF_LOWER, QREF_NEVER };
enum qref_decision { QREF_ADMIT, QREF_BORROW, QREF_RECLAIM, QREF_QUEUE, QREF_REJECT };

/* Of a workspace in one pool, in devices: a state has devices of one kind only, all of the same weight. */
struct qref_quota {
	int64_t reserved, limit, borrow, lend;
};

struct qref_workspace {
	int tenant;
	struct qref_quota own, shared;
	int64_t weight;
	enum qref_reclaim reclaim;
	bool preempt_own; /* lower; false: never */
};

struct qref_node {
	int tenant; /* QREF_SHARED */
	int devices;
	bool down;
};

struct qref_lease {
	int workspace;
	int on[QREF_NODES]; /* devices */
	int64_t priority;
	bool preemptible, draining;
};

struct qref_request {
	int workspace;
	int count;
	int per_node; /* 0: anywhere */
	int64_t priority;
	bool preemptible;
};

struct qref_state {
	struct qref_workspace workspaces[QREF_WORKSPACES];
	int workspace_count;
	struct qref_node nodes[QREF_NODES];
	int node_count;
	struct qref_lease leases[QREF_LEASES]; /* oldest first; ties of the order go by index */
	int lease_count;
	int64_t maximum; /* of every tenant; QREF_NONE */
};

struct qref_answer {
	enum qref_decision decision;
	int64_t borrowed; /* devices: the new part of the debt */
	int pool;         /* the tenant's, or QREF_SHARED; of admit, borrow and reclaim */
	unsigned legal;   /* of reclaim: one legal set, as bits of leases */
};

const char *qref_decision_name(enum qref_decision d);
void qref_describe(const struct qref_state *s, const struct qref_request *r, struct buf *out);

/* The decision by direct evaluation; reclaim when any subset of the leases is a legal set that makes the request fit. */
struct qref_answer qref_decide(const struct qref_state *s, const struct qref_request *r);

/* Whether a set of victims in a pool is legal, makes the request fit, and is minimal. */
bool qref_victims_hold(const struct qref_state *s, const struct qref_request *r, int pool, unsigned victims,
                       struct buf *why);

/* The set that the order of QUOTA finds: taken in order, the needless dropped in reverse, those no longer legal left out and
 * started over. 0 when the order finds none, and when the request is not owed and both its own and others' leases could go: which
 * of the two rights is used first is not said. */
unsigned qref_ordered_victims(const struct qref_state *s, const struct qref_request *r, int pool);

/* Whether the request fits on the healthy devices once the leases in `gone` have ended, whatever others are protected. */
bool qref_fits(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone);

#endif

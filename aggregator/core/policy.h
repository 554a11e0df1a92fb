/* aggregator/core/policy.h - the declarative policy file: who the tenants are, whose a node is, who belongs to which
 * workspace, and what a GPU-hour costs. Pure: text in, values, differences and errors with file and line out.
 * deploy/demo/policy.yaml is a commented example of every key. */
#ifndef TOLLGATE_CORE_POLICY_H
#define TOLLGATE_CORE_POLICY_H

#include "common/buf.h"
#include "common/money.h"

#define POLICY_VERSION 1
#define POLICY_MAX_TENANTS 10000u
#define POLICY_MAX_WORKSPACES 1000u /* of one tenant */
#define POLICY_MAX_RULES 1000u      /* of one workspace */
#define POLICY_MAX_NODES 20000u
#define POLICY_MAX_PRICES 1000u
#define POLICY_MAX_PRIORITY 10000
#define POLICY_MAX_PRICE 1000000000 /* per hour, in whole units of the currency */

/* A rule says whose usage belongs to a workspace. Every pattern given must match (`*` and `?` as in a shell);
 * absent ones (NULL) match anything. At least one is given. Lower priority numbers are asked first, then document
 * order. */
struct policy_rule {
	int64_t priority; /* 0..10000, default 100 */
	char *cluster;
	char *ns; /* Kubernetes namespace; a vCluster's host namespace too */
	char *slurm_account;
	char *user;  /* of a host or a Slurm job: name, or uid in decimal */
	char *group; /* primary group of such a user */
	char *labels; /* of a pod, as common/labels.h writes them, with patterns for values: all of the keys must be there */
	int line;
};

struct policy_workspace {
	char *name;
	char *description; /* "" when absent */
	struct policy_rule *rules;
	size_t rule_count;
	int line;
};

struct policy_tenant {
	char *name;         /* [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 63; not "unattributed" or "platform" */
	char *display_name; /* the name when absent */
	char *cost_center;  /* "" when absent */
	char *owner;        /* "" when absent */
	struct policy_workspace *workspaces;
	size_t workspace_count;
	int line;
};

struct policy_node {
	char *name;
	char *cluster; /* default: the file's cluster */
	char *tenant;  /* owner; NULL: shared */
	int line;
};

/* A price per hour of a GPU, or of a MIG instance when mig_profile is given. The most specific item wins
 * (rating.h). */
struct policy_price {
	char *sku;          /* "" : derived */
	char *gpu_model;    /* short model name, NULL: any */
	char *mig_profile;  /* NULL: any, share-priced */
	char *sharing_mode; /* exclusive, mig, mps, timeslice, plain; NULL: any */
	char *klass;        /* on-demand, borrowed, dedicated, reserved; NULL: any */
	int128 price;       /* scale PRICE_SCALE, >= 0 */
	int line;
};

struct policy_book {
	char *version;  /* names this state of prices on every line of a bill: "2026-11" */
	char *currency; /* ISO 4217 */
	struct policy_price *items;
	size_t item_count;
	int line;
};

struct policy {
	char *cluster;        /* name of this ledger's cluster */
	int64_t effective_ns; /* INT64_MIN: not given, the start of the current billing hour */
	struct policy_tenant *tenants;
	size_t tenant_count;
	struct policy_node *nodes;
	size_t node_count;
	struct policy_book *prices; /* NULL: none */
};

void policy_free(struct policy *p);
DEFINE_OWNED(policy, struct policy)

/* version: 1, then the sections. All or nothing; the first error names file, line, field, value and limit. */
MUST_CHECK bool policy_parse(const char *name, const char *text, size_t len, struct policy **ret, struct err *err);

/* What applying `to` over `from` (NULL: an empty ledger) changes, one line each for people: "+ workspace
 * acme/training", "~ price H100-80GB on-demand 3.00 -> 3.20", "- node demo-1". In the order of the file; what is
 * gone follows in the order of the old one. The effective time alone is no change. Returns the number of changes. */
size_t policy_diff(const struct policy *from, const struct policy *to, struct buf *out);

/* Shell-like pattern with * and ?; no recursion on hostile patterns (linear in practice). */
bool pattern_match(const char *pattern, const char *text);

#endif

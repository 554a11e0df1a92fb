/* aggregator/core/policy/policy.h - the declarative policy file: tenants, their workspaces, members and quotas, the owners of nodes, and
 * prices. Pure: text in, values, differences and errors with file and line out. deploy/demo/policy.yaml is a commented example of
 * every key, deploy/POLICY.md the reference; policy_fields.c has the table of keys that both are held against. */
#ifndef TOLLGATE_POLICY_H
#define TOLLGATE_POLICY_H

#include "aggregator/core/quota/engine/quantity.h"
#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/base/money.h"

#define POLICY_VERSION 1
#define POLICY_MAX_TENANTS 10000u
#define POLICY_MAX_WORKSPACES 1000u /* of one tenant */
#define POLICY_MAX_RULES 1000u      /* of one workspace */
#define POLICY_MAX_NODES 20000u
#define POLICY_MAX_MEMBERS 1000u /* of one tenant or workspace */
#define POLICY_MAX_PROFILES 32u  /* of one node */
#define POLICY_MAX_CLASS_VALUE 1000000
#define POLICY_MAX_WEIGHT 1000000
#define POLICY_MAX_PRICES 1000u
#define POLICY_MAX_BUDGET INT64_C(1000000000000)       /* money in whole units, or GPU-hours */
#define POLICY_MAX_TOKENS INT64_C(1000000000000000000) /* of a budget */
#define POLICY_MAX_PRIORITY 10000
#define POLICY_MAX_EXCEPTION_NS (INT64_C(366) * 86400 * 1000000000) /* how long an exception may last */
#define POLICY_MAX_BOUNDARY 200u                                    /* bytes of data_boundary */
#define POLICY_MAX_OWED_WAIT_NS (INT64_C(30) * 86400 * 1000000000)
#define POLICY_MAX_PRICE 1000000000 /* in whole units of the currency */
#define POLICY_MAX_PER 1000000000   /* units that a price is for */
#define POLICY_MAX_CARBON 1000000   /* grams per kWh */

/* A rule gives matching usage to a workspace. Every pattern given must match (`*` and `?` as in a shell);
 * absent ones (NULL) match anything. At least one is given. Lower priority numbers are asked first, then document
 * order. */
struct policy_rule {
	int64_t priority; /* 0..10000, default 100 */
	char *cluster;
	char *ns; /* Kubernetes namespace; a vCluster's host namespace too */
	char *slurm_account;
	char *user;  /* of a host or a Slurm job: name, or uid in decimal */
	char *group; /* primary group of such a user */
	char *labels; /* of a pod, as common/base/labels.h writes them, with patterns for values: all of the keys must be there */
	int line;
};

/* A person of a tenant or a workspace, by the name the identity provider gives. */
struct policy_member {
	char *user;
	const char *role; /* of a tenant: tenant-admin, developer, viewer; of a workspace: developer, viewer */
	int line;
};
struct policy_members {
	struct policy_member *at;
	size_t count;
};

/* An amount of GPUs, by model (quantity.h); no entry: the key is absent. */
struct policy_amounts {
	struct quantity *at;
	size_t count;
	int line;
};

/* Limits on everything but GPUs; -1: no limit. */
struct policy_resources {
	int64_t cpu_millis;
	int64_t memory_bytes;
	int64_t storage_bytes;
	int line;
};

/* The planned spending of a month. soft: passing it raises an alert; hard: no new request is admitted then. */
struct policy_budget {
	const char *kind; /* soft, hard; NULL: there is no budget */
	int128 amount;    /* scale PRICE_SCALE, > 0 */
	char unit[8];     /* of budget.h */
	int line;
};

/* The operator's promises. They are measured; no decision depends on them. */
struct policy_sla {
	int64_t owed_wait_ns;         /* an owed request is admitted within this; 0: nothing is promised */
	int64_t delivered_millionths; /* of reserved time is delivered; 0: nothing is promised */
};

/* Extra limits that a workspace gets at its request, without approval. */
struct policy_auto_approve {
	int64_t units;  /* of one model, over all such limits together; 0: none */
	int64_t for_ns; /* the longest duration of each */
};

/* Words are those of the file, and point to text that is never freed. */
struct policy_workspace {
	char *name;
	char *description; /* "" when absent */
	char *cluster;     /* where its reservations lie; default: the file's cluster */
	struct policy_rule *rules;
	size_t rule_count;
	struct policy_members members;
	struct policy_amounts reserved;        /* among the tenant's own nodes */
	struct policy_amounts reserved_shared; /* among the shared ones */
	struct policy_amounts limit;
	struct policy_amounts borrow;
	struct policy_amounts lend;
	const char *reclaim;     /* any, lower, never */
	const char *preempt_own; /* lower, never */
	const char *enforce;     /* off, warn, on */
	int64_t weight;
	int64_t idle_timeout_ns; /* 0: none */
	struct policy_resources limits;
	struct policy_budget budget;
	struct policy_sla sla;
	int line;
};

struct policy_tenant {
	char *name;          /* [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 63; not "unattributed" or "platform" */
	char *display_name;  /* the name when absent */
	char *cost_center;   /* "" when absent */
	char *owner;         /* "" when absent */
	char *data_boundary; /* where its data may be, in the operator's words; "" when absent */
	struct policy_members members;
	struct policy_amounts maximum;       /* over all its workspaces */
	struct policy_amounts default_limit; /* of a workspace that reserves nothing */
	const char *isolation;               /* node, gpu, mig, shared */
	char **classes;                      /* priority classes it may use */
	size_t class_count;
	bool classes_given; /* false: it may use all */
	struct policy_resources limits;
	struct policy_budget budget;
	struct policy_sla sla;
	struct policy_auto_approve auto_approve;
	struct policy_workspace *workspaces;
	size_t workspace_count;
	int line;
};

/* Priority class of a request: the higher value goes first; work that is not preemptible stays within the reservation. */
struct policy_class {
	char *name;
	int64_t value;
	bool preemptible;
	int line;
};

struct policy_profile {
	char *profile;
	int64_t count;
};

struct policy_device {
	char *uuid;
	const char *state;
	int line;
};

struct policy_node {
	char *name;
	char *cluster;                   /* default: the file's cluster */
	char *tenant;                    /* owner; NULL: shared */
	char *model;                     /* declared GPUs count until its exporter has reported; NULL: none declared */
	int64_t gpus;                    /* whole ones */
	struct policy_profile *profiles; /* MIG instances, on further GPUs */
	size_t profile_count;
	const char *state; /* in-service, maintenance, retired */
	struct policy_device *devices;
	size_t device_count;
	int line;
};

/* A price per hour of a GPU, or of a MIG instance when mig_profile is given, or of a unit of another meter. The most
 * specific item wins (rating.h). */
struct policy_price {
	char *sku;          /* "" : derived */
	char *gpu_model;    /* short model name, NULL: any */
	char *mig_profile;  /* NULL: any, share-priced */
	char *sharing_mode; /* exclusive, mig, mps, timeslice, plain; NULL: any */
	char *klass;        /* on-demand, borrowed, dedicated, reserved; NULL: any */
	char *tenant;       /* for this tenant alone; NULL: for all */
	const char *meter;  /* a word of events.h; NULL: of GPUs */
	char *meter_sku;    /* NULL: any of that meter */
	bool basis_used;    /* active time is priced, not held time */
	int128 price;       /* scale PRICE_SCALE, >= 0 */
	int64_t per;        /* units that the price is for; it divides the price */
	int line;
};

/* A discount on every price that matches; NULL: any. Energy is never discounted. */
struct policy_discount {
	char *tenant;
	const char *category; /* gpu, storage, network, inference, support */
	const char *klass;
	int64_t ratio; /* 10^-9 of the price, 0 .. 10^9 */
	int line;
};

struct policy_energy {
	char *cluster;
	int128 price;  /* per kWh; scale PRICE_SCALE; -1: none */
	int128 carbon; /* grams per kWh; scale PRICE_SCALE; -1: not known */
	int line;
};

struct policy_weight {
	char *tenant;
	int64_t weight;
	int line;
};

struct policy_book {
	char *version;  /* names this state of prices on every line of a bill: "2026-11" */
	char *currency; /* ISO 4217 */
	struct policy_price *items;
	size_t item_count;
	struct policy_discount *discounts;
	size_t discount_count;
	struct policy_energy *energy;
	size_t energy_count;
	int64_t lender_ratio;    /* 10^-9 of a borrower's payment */
	const char *shared_idle; /* how idle time of shared nodes is charged: none, even, proportional, weights */
	struct policy_weight *weights;
	size_t weight_count;
	int128 platform_cost; /* cost of the platform in a month; scale PRICE_SCALE; -1: not given */
	int line;
};
void policy_book_free(struct policy_book *b);
DEFINE_OWNED(policy_book, struct policy_book)

struct policy {
	char *cluster;        /* name of this ledger's cluster */
	int64_t effective_ns; /* INT64_MIN: not given, the start of the current billing hour */
	struct policy_class *classes;
	size_t class_count;
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
/* The same for a file of one tenant's administrator, which has neither nodes nor priority classes: checks that
 * need them are left out. */
MUST_CHECK bool policy_parse_part(const char *name, const char *text, size_t len, struct policy **ret, struct err *err);

/* The prices of a policy, or of a file that has nothing but the key prices; such a file may name the tenants and clusters
 * of `beside`. A file without prices is refused. */
MUST_CHECK bool policy_parse_book(const char *name, const char *text, size_t len, const struct policy *beside,
                                  struct policy_book **ret, struct err *err);
/* The policy as a file, with every key in one place and no comments; policy_parse() reads it back as the same policy. */
void policy_render(const struct policy *p, struct buf *out);
/* One tenant of it as a file of its administrator. */
void policy_render_part(const struct policy *p, const struct policy_tenant *t, struct buf *out);
/* One tenant as an entry of the list `tenants`, indented by so many spaces. */
void policy_render_tenant(const struct policy_tenant *t, int indent, struct buf *out);

/* The amount for a model: that model's own, or the one without a model; NULL: none is given. */
const struct quantity *policy_amount_for(const struct policy_amounts *a, const char *model);
/* As the file has it: "4", "3/7", "{H100-80GB: 4, A100-80GB: 2x1g.10gb}"; "" when absent. */
void policy_amounts_text(const struct policy_amounts *a, struct buf *out);
/* Where a workspace's reservations lie. */
const char *policy_workspace_cluster(const struct policy *p, const struct policy_workspace *w);

/* Lists the changes from `from` (NULL: an empty ledger) to `to`, one line each for people: "+ workspace
 * acme/training", "~ price H100-80GB on-demand 3.00 -> 3.20", "- node demo-1". In the order of the file; what is
 * gone follows in the order of the old one. The effective time alone is no change. Returns the number of changes. */
size_t policy_diff(const struct policy *from, const struct policy *to, struct buf *out);

/* The reference of all keys, in Markdown. */
void policy_key_reference(struct buf *out);

/* ---- the part of a policy that a tenant's administrator may change; the rules are numbered in policy_part.c ---- */

/* NULL: the policy has no such tenant. */
const struct policy_tenant *policy_tenant_named(const struct policy *p, const char *name);

/* `granted` is the policy as an operator last applied it. */
MUST_CHECK bool policy_part_check(const struct policy *granted, const struct policy *part, const char *tenant,
                                  const char *file, struct err *err);

/* The document in force, with the tenant's lines replaced by its part and everything else as it was; where the
 * tenant does not have lines of its own, the whole document written anew. `effective_ns` is written into it, or, when it
 * is INT64_MIN, none. */
MUST_CHECK bool policy_part_merge(const char *document, size_t len, const struct policy *now, const struct policy *part,
                                  int64_t effective_ns, struct buf *out, struct err *err);

/* ---- capacity of the nodes and reservations of it; the rules are numbered in policy_capacity.c ---- */

/* Whole GPUs (profile ""), or instances of a profile, of one GPU that is in service. */
struct policy_seen {
	const char *node, *gpu; /* name, UUID */
	const char *model;      /* short */
	const char *profile;
	int64_t count, units; /* how many, and the units of one */
};

struct policy_reservation {
	const char *tenant, *workspace, *cluster;
	bool shared;
	const char *model, *profile;
	int64_t instances; /* of the profile; 0 without one */
	int64_t units;
};
struct policy_reservations {
	struct policy_reservation *at;
	size_t count;
}; /* texts are borrowed from the policy and from `seen` */
void policy_reservations_fini(struct policy_reservations *r);

/* The reservations of a policy, each with its model; those of one tenant alone when `only` is given. Rule 5 is then not
 * checked: it was, for all tenants together, when an operator granted the reservations. ERR_INVALID names file, line, workspace and the numbers. */
MUST_CHECK bool policy_reserve(const struct policy *p, const struct policy_seen *seen, size_t count, const char *only,
                               const char *file, struct policy_reservations *ret, struct err *err);

#endif

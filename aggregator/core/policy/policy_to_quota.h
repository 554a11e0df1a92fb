/* aggregator/core/policy/policy_to_quota.h - the policy in force at a moment, with the inventory of that moment, as an event of the quota book. Pure.
 *
 * A policy has amounts for every model and limits for every pool; the book has one share for each workspace and pool. The rules, in the order of
 * the lists that are written:
 *
 *  1. A workspace has a share in every pool that it may use, of its tenant's nodes or of shared ones, where it has a reservation or an amount.
 *  2. A reservation in a pool that has no GPUs is still one.
 *  3. A limit that names its model, or the model's family, also holds in pools of the workspace's home that have no GPUs, as a scenario reads it.
 *  4. A maximum or a default limit of a tenant is a cap in every cluster, for each model that it fits.
 *  5. Of amounts of one kind the first that fits the model counts. One in instances of a profile that the model does not have is no amount.
 *  6. Prices are written for tenants that have a budget in the currency of the price book: of a whole GPU of each model and of an instance of each
 *     profile that the book has a price for. Any other profile costs its share of the GPU. */
#ifndef TOLLGATE_POLICY_TO_QUOTA_H
#define TOLLGATE_POLICY_TO_QUOTA_H

#include "aggregator/core/policy/policy.h"
#include "aggregator/core/quota/engine/quota.h"
#include "aggregator/core/rating/rating.h"

/* GPUs of a model in the nodes of a cluster that belong to a tenant, or, where tenant is "", are shared. */
struct in_force_pool {
	const char *cluster, *tenant, *model;
};

/* Devices that may be asked for, whether a GPU is cut like it now or not. */
struct in_force_shape {
	const char *model, *profile;
	int64_t units;
};

struct in_force_class {
	const char *name;
	int64_t value;
	bool preemptible;
};

struct in_force_tenant {
	const char *name, *isolation;
	const char *const *classes; /* priority classes it may use; NULL: all */
	size_t class_count;
	struct policy_resources limits;
};

struct in_force_workspace {
	const char *path, *tenant; /* "acme/prod", "acme" */
	const char *home;          /* cluster of requests that name none */
	const char *reclaim, *enforce;
	bool preempt_own;
	int64_t weight;
	struct policy_resources limits;
};

struct in_force_reservation {
	const char *workspace, *cluster, *model; /* the path of the workspace */
	bool shared;
	int64_t units;
	const char *profile; /* "": whole GPUs or a part of them, or instances of several profiles */
};

enum in_force_kind { IN_FORCE_LIMIT, IN_FORCE_BORROW, IN_FORCE_LEND, IN_FORCE_MAXIMUM, IN_FORCE_DEFAULT_LIMIT };

struct in_force_amount {
	const char *owner; /* the path of a workspace, or the name of a tenant */
	enum in_force_kind kind;
	const char *model; /* a model or a family; "": any */
	int64_t units;     /* -1: not known without the model where there is a profile, else no limit */
	const char *profile;
	int64_t instances; /* of the profile */
};

struct in_force_budget {
	const char *tenant, *workspace; /* the path; "": of the whole tenant */
	bool hard;
	const char *kind;     /* unit_seconds, money, tokens */
	int64_t amount;       /* in unit-seconds, hundredths of money, tokens */
	const char *currency; /* "": the budget is not of money */
};

/* Reservations, limits and maxima are sorted by owner, as workspaces and tenants are, by strcmp(); amounts of one owner and kind from the longest
 * name of a model to "". */
struct in_force_policy {
	const char **clusters;
	size_t cluster_count;
	const char **models;
	size_t model_count;
	struct in_force_pool *pools;
	size_t pool_count;
	struct in_force_shape *shapes;
	size_t shape_count;
	struct in_force_class *classes;
	size_t class_count;
	struct in_force_tenant *tenants;
	size_t tenant_count;
	struct in_force_workspace *workspaces;
	size_t workspace_count;
	struct in_force_reservation *reservations;
	size_t reservation_count;
	struct in_force_amount *limits; /* of workspaces: limit, borrow, lend */
	size_t limit_count;
	struct in_force_amount *maxima; /* of tenants: maximum, default limit */
	size_t maximum_count;
	struct in_force_budget *budgets;
	size_t budget_count;
	const struct rating_book *prices; /* NULL: none */
};

/* {"policy":{...}} (core/quota/book/quota_book.h). The text is the same as long as the policy, the inventory and the settings are. */
MUST_CHECK bool policy_to_quota(const struct in_force_policy *p, const struct quota_settings *settings, struct buf *out,
                                struct err *err);

#endif

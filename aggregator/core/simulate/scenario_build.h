/* aggregator/core/simulate/scenario_build.h - the lists of a scenario while its file is read. Only for the readers of the file. */
#ifndef TOLLGATE_SCENARIO_BUILD_H
#define TOLLGATE_SCENARIO_BUILD_H

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/simulate/scenario.h"
#include "aggregator/core/simulate/scenario_read.h"

/* A list that grows; what it holds is moved, so nothing points into it until the file is read. */
struct scenario_vec {
	void *at;
	size_t count, cap, size;
};
void *scenario_push(struct scenario_vec *v); /* zeroed */

struct scenario_class {
	char *name;
	int64_t value;
	bool preemptible;
};

struct scenario_builder {
	const struct yaml_doc *doc;
	struct quota_scenario *sc;
	struct scenario_vec kept;       /* char * or arrays: what the lists point to */
	struct scenario_vec clusters;   /* const char * */
	struct scenario_vec models;     /* const char * */
	struct scenario_vec classes;    /* struct scenario_class */
	struct scenario_vec shapes;     /* struct quota_shape; the whole GPU of model i is shape i */
	struct scenario_vec tenants;    /* struct quota_tenant */
	struct scenario_vec workspaces; /* struct quota_workspace */
	struct scenario_vec homes;      /* int32_t: the cluster of a workspace */
	struct scenario_vec shares;     /* struct quota_share */
	struct scenario_vec caps;       /* struct quota_cap */
	struct scenario_vec budgets;    /* struct quota_budget */
	struct scenario_vec nodes;      /* struct quota_node */
	struct scenario_vec leases;     /* struct quota_lease */
	struct scenario_vec exceptions; /* struct quota_exception */
	struct scenario_vec events;     /* struct scenario_event */
	struct scenario_vec runs;       /* struct scenario_run */
	size_t gpu_count, policy_count;
	bool nameless;     /* no model is named: the only one is a GPU like any other */
	int64_t drains_ns; /* of settings */
};

/* ---- scenario_build.c: names and things by name ---- */
void *scenario_keep(struct scenario_builder *b, void *memory); /* freed with the scenario */
const char *scenario_keep_text(struct scenario_builder *b, const char *text);
const char *scenario_model_name(const struct scenario_builder *b, int32_t model); /* for quantity.h */
int32_t scenario_find_name(const struct scenario_vec *names, const char *name);   /* QUOTA_NONE */
int32_t scenario_find_tenant(const struct scenario_builder *b, const char *name);
int32_t scenario_find_node(const struct scenario_builder *b, const char *name);
int32_t scenario_shape(struct scenario_builder *b, int32_t model, enum quota_shape_kind kind, const char *name,
                       int64_t units);
/* The workspace that a key names. */
MUST_CHECK bool scenario_workspace(struct scenario_builder *b, const struct scenario_at *at, int32_t *ret,
                                   struct err *err);
/* The cluster that the key names, else *ret stays; the model that the key names, else the only one the tenant may use. */
MUST_CHECK bool scenario_cluster(struct scenario_builder *b, const struct scenario_at *at, int32_t *ret,
                                 struct err *err);
MUST_CHECK bool scenario_model(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant, int32_t *ret,
                               struct err *err);
/* The policy as it stands, in memory of its own. */
void scenario_policy(struct scenario_builder *b, struct quota_policy *ret);

/* ---- readers of the sections ---- */
MUST_CHECK bool scenario_read_names(struct scenario_builder *b, struct err *err); /* clusters, models, classes */
MUST_CHECK bool scenario_read_tenant_names(struct scenario_builder *b, struct err *err);
MUST_CHECK bool scenario_read_nodes(struct scenario_builder *b, struct err *err);
MUST_CHECK bool scenario_read_tenants(struct scenario_builder *b, struct err *err);
MUST_CHECK bool scenario_read_leases(struct scenario_builder *b, struct err *err);
MUST_CHECK bool scenario_read_exceptions(struct scenario_builder *b, struct err *err);
MUST_CHECK bool scenario_read_exception(struct scenario_builder *b, const struct yaml_node *n, int64_t at_ns,
                                        struct quota_exception *ret, struct err *err);
MUST_CHECK bool scenario_read_requests(struct scenario_builder *b, const struct yaml_node *list, int64_t at_ns,
                                       struct quota_event *ret, struct err *err);
MUST_CHECK bool scenario_read_events(struct scenario_builder *b, struct err *err);
/* The keys of a tenant or a workspace that say what it may have, over what it has now. */
MUST_CHECK bool scenario_read_tenant_quota(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant,
                                           struct err *err);
MUST_CHECK bool scenario_read_workspace_quota(struct scenario_builder *b, const struct scenario_at *at,
                                              int32_t workspace, struct err *err);
void scenario_warn(struct scenario_builder *b);

#endif

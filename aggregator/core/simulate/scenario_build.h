/* aggregator/core/simulate/scenario_build.h - the lists of a scenario while its file is read. Only for the readers of the file. */
#ifndef TOLLGATE_SCENARIO_BUILD_H
#define TOLLGATE_SCENARIO_BUILD_H

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/quota/engine/quota_memory.h"
#include "aggregator/core/simulate/scenario.h"
#include "common/conf/yaml.h"

/* ---- typed values of the file, with errors that name file, line, field, value and limit ---------------------------------------- */

/* The map that is being read; `what` names it in errors: "lease". */
struct scenario_at {
	const struct yaml_doc *doc;
	const struct yaml_node *map;
	const char *what;
};

/* A map with no other keys than these. */
MUST_CHECK bool scenario_map(const struct scenario_at *at, const char *const *keys, struct err *err);
/* A text that `fault` finds nothing wrong with. A missing key leaves *ret as it is, unless it is required. */
MUST_CHECK bool scenario_text(const struct scenario_at *at, const char *key, const char *(*fault)(const char *),
                              bool required, char **ret, struct err *err);
/* One of the NULL-ended words, as its index. A missing key leaves *ret as it is. */
MUST_CHECK bool scenario_choice(const struct scenario_at *at, const char *key, const char *const *words, int *ret,
                                struct err *err);
MUST_CHECK bool scenario_i64(const struct scenario_at *at, const char *key, int64_t min, int64_t max, int64_t *ret,
                             struct err *err);
MUST_CHECK bool scenario_bool(const struct scenario_at *at, const char *key, bool *ret, struct err *err);
/* "90s", "10m", "7d"; 0 without a unit is allowed. */
MUST_CHECK bool scenario_duration(const struct scenario_at *at, const char *key, int64_t max_ns, int64_t *ret_ns,
                                  struct err *err);
/* Amounts of GPUs, by model; none when the key is missing. */
MUST_CHECK bool scenario_amounts(const struct scenario_at *at, const char *key, struct quantities *ret,
                                 struct err *err);
/* The list under a key; NULL when there is none. */
MUST_CHECK bool scenario_list(const struct scenario_at *at, const char *key, size_t max, const struct yaml_node **ret,
                              struct err *err);
/* "FILE:LINE: WHAT KEY "VALUE" ..." at the key's value, or at the map when it has no such key; returns false. */
bool scenario_err(const struct scenario_at *at, const char *key, struct err *err, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

/* An allowed id of a lease or a request: 1 to 63 characters without space or control. */
const char *scenario_id_fault(const char *text);
/* TENANT/WORKSPACE. */
const char *scenario_path_fault(const char *text);

/* ---- lists --------------------------------------------------------------------------------------------------------------------- */

/* A list that grows; its elements are moved, so nothing points into it until the file is read. */
struct scenario_vec {
	void *at;
	size_t count, cap, size;
};
void *scenario_push(struct scenario_vec *v); /* zeroed */

struct scenario_class {
	const char *name;
	int64_t value;
	bool preemptible;
};

struct scenario_builder {
	const struct yaml_doc *doc;
	struct quota_scenario *sc;
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
const char *scenario_keep_text(struct scenario_builder *b, const char *text);       /* freed with the scenario */
void *scenario_keep_list(struct scenario_builder *b, const struct scenario_vec *v); /* likewise; NULL: it is empty */
const char *scenario_model_name(const struct scenario_builder *b, int32_t model);   /* for quantity.h */
int32_t scenario_find_name(const struct scenario_vec *names, const char *name);     /* QUOTA_NONE */
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
/* The quota keys of a tenant or a workspace, over its present values. */
MUST_CHECK bool scenario_read_tenant_quota(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant,
                                           struct err *err);
MUST_CHECK bool scenario_read_workspace_quota(struct scenario_builder *b, const struct scenario_at *at,
                                              int32_t workspace, struct err *err);
void scenario_warn(struct scenario_builder *b);

#endif

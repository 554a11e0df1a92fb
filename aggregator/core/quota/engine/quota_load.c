/* aggregator/core/quota/engine/quota_load.c - a state from plain lists, and the devices that GPUs are cut into. Lists that contradict each other are refused. */
#include "aggregator/core/quota/engine/quota_state.h"

#define MAX_PLACES (1u << 24)
#define MAX_AMOUNT (INT64_C(1) << 60)
#define MAX_SECONDS INT64_C(100000000)

static bool
bad(struct err *err, const char *what, size_t i, const char *field, int64_t value)
{
	return err_set(err, ERR_INVALID, "%s %zu: %s %" PRId64 " is out of range", what, i, field, value);
}

static bool
index_ok(int64_t v, size_t count)
{
	return v >= 0 && (uint64_t)v < count;
}

static bool
name_ok(const char *name, size_t size)
{
	return name && strnlen(name, size) < size;
}

static bool
amount_ok(int64_t v)
{
	return v == QUOTA_UNLIMITED || (v >= 0 && v <= MAX_AMOUNT);
}

static void
copy_name(char *to, const char *from)
{
	memcpy(to, from, strlen(from) + 1);
}

/* ---- devices ---------------------------------------------------------------------------------------------------------------- */

bool
quota_slots_ok(const struct quota_state *s, const struct quota_slots *slots, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!index_ok(slots[i].shape, s->shapes.count) || slots[i].count < 0 ||
		    slots[i].count > QUOTA_MAX_COUNT ||
		    s->shapes.at[slots[i].shape].in.model != s->shapes.at[slots[0].shape].in.model)
			return false;
	}
	return true;
}

/* Groups of a GPU stay where they are, with the leases on them; shapes that are gone have no devices left. */
void
quota_gpu_slots(struct quota_state *s, int32_t gpu, const struct quota_slots *slots, size_t count)
{
	for (int32_t g = s->gpus.at[gpu].first_group; g != QUOTA_NONE; g = s->groups.at[g].next)
		s->groups.at[g].total = 0;
	for (size_t i = 0; i < count; i++) {
		int32_t *last = &s->gpus.at[gpu].first_group;

		while (*last != QUOTA_NONE && s->groups.at[*last].shape != slots[i].shape)
			last = &s->groups.at[*last].next;
		if (*last == QUOTA_NONE) {
			struct group *g;

			*last = (int32_t)s->groups.count;
			g = PUSH(s->groups);
			*g = (struct group){.gpu = gpu, .shape = slots[i].shape, .next = QUOTA_NONE};
			g->total = slots[i].count;
		} else {
			s->groups.at[*last].total += slots[i].count;
		}
	}
}

int32_t
quota_group_at(const struct quota_state *s, int32_t node, int32_t gpu, int32_t shape)
{
	int32_t g;

	if (!index_ok(node, s->nodes.count) || !index_ok(gpu, (size_t)s->nodes.at[node].gpu_count))
		return QUOTA_NONE;
	g = s->gpus.at[s->nodes.at[node].first_gpu + gpu].first_group;
	while (g != QUOTA_NONE && s->groups.at[g].shape != shape)
		g = s->groups.at[g].next;
	return g;
}

bool
quota_plan_of_parts(const struct quota_state *s, const struct quota_part *parts, size_t count, int32_t shape,
                    int64_t want, struct plan *ret)
{
	int64_t sum = 0;

	for (size_t i = 0; i < count; i++) {
		int32_t group = quota_group_at(s, parts[i].node, parts[i].gpu, parts[i].shape);

		if (group == QUOTA_NONE || parts[i].shape != shape || parts[i].count <= 0 || parts[i].count > want)
			return false;
		*PUSH(*ret) = (struct spot){.group = group, .count = parts[i].count};
		sum += parts[i].count;
	}
	quota_plan_merge(ret);
	return sum <= want;
}

/* ---- the policy ------------------------------------------------------------------------------------------------------------ */

static bool
load_settings(struct quota_state *s, const struct quota_settings *in, struct err *err)
{
	const int64_t times[] = {in->grace_ns,   in->aging_ns,          in->head_wait_ns, in->backoff_ns,
	                         in->confirm_ns, in->backoff_forget_ns, in->silence_ns,   in->unused_most_ns};

	if (in->burst < 0 || in->burst > 1000)
		return bad(err, "settings", 0, "burst", in->burst);
	for (size_t i = 0; i < ARRAY_LEN(times); i++)
		if (times[i] < 0 || times[i] > MAX_AMOUNT)
			return bad(err, "settings", i, "duration", times[i]);
	s->settings = *in;
	return true;
}

static bool
load_names(struct quota_state *s, const struct quota_policy *p, struct err *err)
{
	for (size_t i = 0; i < p->cluster_count; i++) {
		if (!name_ok(p->clusters[i], QUOTA_NAME_SIZE))
			return bad(err, "cluster", i, "length of its name", QUOTA_NAME_SIZE);
		copy_name(PUSH(s->clusters)->text, p->clusters[i]);
	}
	for (size_t i = 0; i < p->model_count; i++) {
		if (!name_ok(p->models[i], QUOTA_NAME_SIZE))
			return bad(err, "model", i, "length of its name", QUOTA_NAME_SIZE);
		copy_name(PUSH(s->models)->text, p->models[i]);
	}
	for (size_t i = 0; i < p->shape_count; i++) {
		const struct quota_shape *in = &p->shapes[i];
		struct shape *shape;

		if (!index_ok(in->model, p->model_count) || in->units <= 0 || in->units > UNITS_PER_GPU)
			return bad(err, "shape", i, "model or units", in->units);
		if (!name_ok(in->name, QUOTA_NAME_SIZE))
			return bad(err, "shape", i, "length of its name", QUOTA_NAME_SIZE);
		shape = PUSH(s->shapes);
		shape->in = *in;
		copy_name(shape->name, in->name);
	}
	s->class_count = p->class_count;
	return true;
}

static bool
others_ok(const int64_t *other)
{
	for (size_t i = 0; i < QUOTA_OTHERS; i++)
		if (!amount_ok(other[i]))
			return false;
	return true;
}

static bool
load_tenants(struct quota_state *s, const struct quota_policy *p, struct err *err)
{
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct quota_tenant *in = &p->tenants[i];
		struct tenant *t;

		if (!name_ok(in->name, QUOTA_NAME_SIZE) || !others_ok(in->other_limit) ||
		    !amount_ok(in->per_workload_units))
			return bad(err, "tenant", i, "name or limit", in->per_workload_units);
		t = PUSH(s->tenants);
		t->in = *in;
		copy_name(t->name, in->name);
		t->first_cap = t->first_budget = QUOTA_NONE;
	}
	for (size_t i = 0; i < p->workspace_count; i++) {
		const struct quota_workspace *in = &p->workspaces[i];
		struct workspace *w;

		if (!index_ok(in->tenant, p->tenant_count) || in->weight <= 0 || in->weight > INT32_MAX)
			return bad(err, "workspace", i, "tenant or weight", in->weight);
		if (!name_ok(in->name, QUOTA_NAME_SIZE) || !others_ok(in->other_limit) ||
		    !amount_ok(in->per_workload_units))
			return bad(err, "workspace", i, "name or limit", in->per_workload_units);
		w = PUSH(s->workspaces);
		w->in = *in;
		copy_name(w->name, in->name);
		w->first_account = QUOTA_NONE;
		w->first_hold = QUOTA_NONE;
	}
	return true;
}

static bool
load_caps(struct quota_state *s, const struct quota_policy *p, struct err *err)
{
	for (size_t i = 0; i < p->cap_count; i++) {
		const struct quota_cap *in = &p->caps[i];
		int32_t *first;
		struct cap *c;

		if ((in->tenant != QUOTA_NONE && !index_ok(in->tenant, p->tenant_count)) ||
		    !index_ok(in->cluster, p->cluster_count) || !index_ok(in->model, p->model_count) ||
		    !amount_ok(in->maximum) || (in->default_limit != QUOTA_DEFAULT && !amount_ok(in->default_limit)))
			return bad(err, "maximum", i, "tenant, cluster, model or amount", in->maximum);
		c = PUSH(s->caps);
		c->in = *in;
		first = in->tenant == QUOTA_NONE ? &s->first_cluster_cap : &s->tenants.at[in->tenant].first_cap;
		c->next = *first;
		*first = (int32_t)i;
	}
	/* From the last, so that a tenant's list is in the order of the policy. */
	for (size_t i = 0; i < p->budget_count; i++)
		PUSH(s->budgets)->in = p->budgets[i];
	for (size_t i = p->budget_count; i-- > 0;) {
		const struct quota_budget *in = &p->budgets[i];

		if (!index_ok(in->tenant, p->tenant_count) ||
		    (in->workspace != QUOTA_NONE && !index_ok(in->workspace, p->workspace_count)) ||
		    !amount_ok(in->amount) || !amount_ok(in->consumed))
			return bad(err, "budget", i, "tenant, workspace or amount", in->amount);
		s->budgets.at[i].next = s->tenants.at[in->tenant].first_budget;
		s->tenants.at[in->tenant].first_budget = (int32_t)i;
	}
	return true;
}

static bool
load_shares(struct quota_state *s, const struct quota_policy *p, struct err *err)
{
	for (size_t i = 0; i < p->share_count; i++) {
		const struct quota_share *in = &p->shares[i];
		int32_t account;

		if (!index_ok(in->workspace, p->workspace_count) || !index_ok(in->cluster, p->cluster_count) ||
		    !index_ok(in->model, p->model_count))
			return bad(err, "share", i, "workspace, cluster or model", in->workspace);
		if (in->reserved_shape != QUOTA_NONE &&
		    (!index_ok(in->reserved_shape, p->shape_count) || p->shapes[in->reserved_shape].model != in->model))
			return bad(err, "share", i, "shape", in->reserved_shape);
		if (in->reserved < 0 || in->reserved > MAX_AMOUNT / 2048 ||
		    (in->limit != QUOTA_DEFAULT && !amount_ok(in->limit)) ||
		    (in->borrow != QUOTA_DEFAULT && !amount_ok(in->borrow)) ||
		    (in->lend != QUOTA_DEFAULT && !amount_ok(in->lend)))
			return bad(err, "share", i, "reserved, limit, borrow or lend", in->reserved);
		if (quota_account_find(s, in->workspace, in->cluster, in->model, in->shared) != QUOTA_NONE)
			return err_set(err, ERR_INVALID, "share %zu: a workspace has one in each pool", i);
		account = quota_account(s, in->workspace, in->cluster, in->model, in->shared);
		s->accounts.at[account].base = *in;
	}
	return true;
}

static bool
load_policy(struct quota_state *s, const struct quota_policy *p, struct err *err)
{
	size_t places;

	if (p->cluster_count > 65536 || p->model_count > 65536 || p->tenant_count > 1000000 ||
	    __builtin_mul_overflow(p->cluster_count * p->model_count, p->tenant_count + 1, &places) ||
	    places > MAX_PLACES)
		return err_set(err, ERR_INVALID, "%zu tenants, %zu clusters and %zu models are too many together",
		               p->tenant_count, p->cluster_count, p->model_count);
	for (size_t i = 0; i < places; i++)
		PUSH(s->pool_places)->pool = QUOTA_NONE;
	return load_settings(s, &p->settings, err) && load_names(s, p, err) && load_tenants(s, p, err) &&
	       load_caps(s, p, err) && load_shares(s, p, err);
}

/* ---- devices --------------------------------------------------------------------------------------------------------------- */

static bool
load_nodes(struct quota_state *s, const struct quota_world *w, struct err *err)
{
	for (size_t i = 0; i < w->node_count; i++) {
		const struct quota_node *in = &w->nodes[i];
		struct node *n;

		if (!name_ok(in->name, QUOTA_NODE_SIZE) || !index_ok(in->cluster, s->clusters.count) ||
		    (in->tenant != QUOTA_NONE && !index_ok(in->tenant, s->tenants.count)) ||
		    in->gpu_count > QUOTA_MAX_COUNT)
			return bad(err, "node", i, "name, cluster, owner or GPUs", in->cluster);
		n = PUSH(s->nodes);
		copy_name(n->name, in->name);
		n->cluster = in->cluster;
		n->tenant = in->tenant;
		n->lost = in->lost;
		n->first_gpu = (int32_t)s->gpus.count;
		n->gpu_count = (int32_t)in->gpu_count;
		for (size_t d = 0; d < in->gpu_count; d++) {
			struct gpu *gpu = PUSH(s->gpus);

			if (!quota_slots_ok(s, in->gpus[d].slots, in->gpus[d].slot_count))
				return bad(err, "node", i, "slots of GPU", (int64_t)d);
			*gpu = (struct gpu){.node = (int32_t)i, .first_group = QUOTA_NONE, .lost = in->gpus[d].lost};
			quota_gpu_slots(s, (int32_t)s->gpus.count - 1, in->gpus[d].slots, in->gpus[d].slot_count);
		}
	}
	return true;
}

/* ---- leases, requests and the rest ----------------------------------------------------------------------------------------- */

bool
quota_lease_ok(const struct quota_state *s, const struct quota_lease *in)
{
	return name_ok(in->id, QUOTA_ID_SIZE) && in->id[0] && index_ok(in->workspace, s->workspaces.count) &&
	       index_ok(in->cluster, s->clusters.count) && index_ok(in->shape, s->shapes.count) && in->count > 0 &&
	       in->count <= QUOTA_MAX_COUNT &&
	       (in->node == QUOTA_NONE || in->node == QUOTA_NOWHERE || index_ok(in->node, s->nodes.count)) &&
	       others_ok(in->other) && in->unit_seconds >= 0 && in->cost >= 0 && in->order <= QUOTA_ENFORCED &&
	       in->state <= QUOTA_SUSPECT && (!in->reason || name_ok(in->reason, QUOTA_REASON_SIZE));
}

/* The node it names, else the first node where all of it fits, else wherever it fits. */
static bool
find_room(const struct quota_state *s, const struct quota_lease *in, int32_t account, struct plan *ret)
{
	const struct account *a = &s->accounts.at[account];
	struct ask ask = {.pool = a->pool,
	                  .shape = in->shape,
	                  .tenant = s->workspaces.at[in->workspace].in.tenant,
	                  .count = in->count,
	                  .node = in->node};
	int32_t pool_shape = quota_pool_shape(s, a->pool, in->shape);

	if (pool_shape == QUOTA_NONE)
		return false;
	if (in->node != QUOTA_NONE)
		return quota_fit(s, &ask, ret);
	for (int32_t i = 0; i < s->pool_shapes.at[pool_shape].node_shape_count; i++) {
		const struct node_shape *k = &s->node_shapes.at[s->pool_shapes.at[pool_shape].first_node_shape + i];

		ask.node = k->node;
		if (k->free >= in->count && quota_fit(s, &ask, ret))
			return true;
	}
	ask.node = QUOTA_NONE;
	return quota_fit(s, &ask, ret);
}

static bool
load_lease(struct quota_state *s, const struct quota_lease *in, int pass, size_t i, struct err *err)
{
	int32_t model = s->shapes.at[in->shape].in.model;
	int32_t node = in->part_count > 0 ? in->parts[0].node : in->node;
	bool known = index_ok(node, s->nodes.count), nowhere = node == QUOTA_NOWHERE;
	bool shared = known ? s->nodes.at[node].tenant == QUOTA_NONE : nowhere && in->shared;
	in_place(plan) struct plan plan = {0};
	int32_t account = quota_account(s, in->workspace, in->cluster, model, shared), lease;

	/* Leases whose place is known come first: others must not take it. */
	if (pass != (in->part_count > 0 ? 0 : known ? 1 : 2))
		return true;
	if (in->part_count > 0) {
		if (!quota_plan_of_parts(s, in->parts, in->part_count, in->shape, in->count, &plan))
			return bad(err, "lease", i, "parts, of", (int64_t)in->part_count);
	} else if (!nowhere && !find_room(s, in, account, &plan) && !known) {
		int32_t other = quota_account(s, in->workspace, in->cluster, model, true);

		if (find_room(s, in, other, &plan))
			account = other;
	}
	if (quota_lease_by_id(s, in->id) != QUOTA_NONE)
		return err_set(err, ERR_INVALID, "lease %zu: its id is used already", i);
	lease = quota_lease_new(s, in->id, in, account);
	quota_lease_place(s, lease, &plan);
	return true;
}

static bool
load_leases(struct quota_state *s, const struct quota_world *w, struct err *err)
{
	if (w->lease_count > QUOTA_MAX_LEASES)
		return err_set(err, ERR_INVALID, "%zu leases are more than %u", w->lease_count, QUOTA_MAX_LEASES);
	for (size_t i = 0; i < w->lease_count; i++)
		if (!quota_lease_ok(s, &w->leases[i]))
			return bad(err, "lease", i, "a field, count", w->leases[i].count);
	for (int pass = 0; pass < 3; pass++)
		for (size_t i = 0; i < w->lease_count; i++)
			if (!load_lease(s, &w->leases[i], pass, i, err))
				return false;
	return true;
}

bool
quota_request_ok(const struct quota_state *s, const struct quota_request *in)
{
	return name_ok(in->id, QUOTA_ID_SIZE) && in->id[0] && index_ok(in->workspace, s->workspaces.count) &&
	       index_ok(in->cluster, s->clusters.count) &&
	       (in->shape == QUOTA_NONE || index_ok(in->shape, s->shapes.count)) && in->count >= 0 &&
	       in->count <= QUOTA_MAX_COUNT && in->per_node >= 0 && others_ok(in->other) && in->cost >= 0 &&
	       in->cost <= MAX_AMOUNT && in->expected_s >= 0 && in->expected_s <= MAX_SECONDS &&
	       in->priority >= -QUOTA_MAX_PRIORITY && in->priority <= QUOTA_MAX_PRIORITY &&
	       (!in->reason || name_ok(in->reason, QUOTA_REASON_SIZE));
}

static bool
load_hold(struct quota_state *s, int32_t wait, const struct quota_request *in)
{
	int32_t account = QUOTA_NONE, model = s->shapes.at[in->shape].in.model;

	for (size_t i = 0; i < in->hold_count; i++) {
		const struct quota_part *p = &in->hold[i];
		int32_t lease = p->lease ? quota_lease_by_id(s, p->lease) : QUOTA_NONE;
		int32_t group = p->count > 0 ? quota_group_at(s, p->node, p->gpu, in->shape) : QUOTA_NONE;

		if ((p->lease && lease == QUOTA_NONE) || p->count < 0 || p->count > in->count ||
		    (group == QUOTA_NONE && (p->count > 0 || lease == QUOTA_NONE)))
			return false;
		if (group != QUOTA_NONE)
			account = quota_account(s, in->workspace, in->cluster, model,
			                        s->nodes.at[p->node].tenant == QUOTA_NONE);
		quota_hold_add(s, wait, group, p->count, lease);
	}
	if (account == QUOTA_NONE)
		return false;
	s->waits.at[wait].hold_owed = in->hold_owed;
	quota_hold_attach(s, wait, account);
	return true;
}

static void
load_head(struct quota_state *s, int32_t wait, int32_t account)
{
	s->waits.at[wait].head_of = s->accounts.at[account].pool;
	s->pools.at[s->accounts.at[account].pool].head = wait;
}

static bool
load_waiting(struct quota_state *s, const struct quota_world *w, struct err *err)
{
	for (size_t i = 0; i < w->waiting_count; i++) {
		const struct quota_request *in = &w->waiting[i];
		int32_t wait, own, shared;

		if (!quota_request_ok(s, in) || in->shape == QUOTA_NONE || in->count == 0)
			return bad(err, "request", i, "a field, count", in->count);
		if (quota_wait_by_id(s, in->id) != QUOTA_NONE || quota_lease_by_id(s, in->id) != QUOTA_NONE)
			return err_set(err, ERR_INVALID, "request %zu: its id is used already", i);
		wait = quota_wait_new(s, in);
		own = quota_account(s, in->workspace, in->cluster, s->shapes.at[in->shape].in.model, false);
		shared = quota_account(s, in->workspace, in->cluster, s->shapes.at[in->shape].in.model, true);
		if (in->head_own || in->head_shared)
			load_head(s, wait, in->head_own ? own : shared);
		if (in->hold_count > 0 && !load_hold(s, wait, in))
			return bad(err, "request", i, "a part of its hold, of", (int64_t)in->hold_count);
	}
	return true;
}

bool
quota_exception_ok(const struct quota_state *s, const struct quota_exception *in)
{
	return name_ok(in->id, QUOTA_ID_SIZE) && in->id[0] && index_ok(in->workspace, s->workspaces.count) &&
	       index_ok(in->cluster, s->clusters.count) && index_ok(in->model, s->models.count) &&
	       amount_ok(in->extra_limit) && in->extra_reserved >= 0 && in->extra_reserved <= MAX_AMOUNT / 2048;
}

/* A switch is of an enforced workspace, in a cluster whose adoption is not complete. */
static bool
load_adoptions(struct quota_state *s, const struct quota_world *w, struct err *err)
{
	for (size_t i = 0; i < w->adoption_count; i++) {
		const struct quota_adoption *in = &w->adoptions[i];

		if (!index_ok(in->cluster, s->clusters.count) || (i > 0 && w->adoptions[i - 1].cluster >= in->cluster))
			return bad(err, "adoption", i, "cluster", in->cluster);
		*PUSH(s->adoptions) = *in;
	}
	for (size_t i = 0; i < w->switch_count; i++) {
		const struct quota_switch *in = &w->switches[i], *before = i > 0 ? &w->switches[i - 1] : NULL;
		const struct quota_adoption *a = quota_adoption_of(s, in->cluster);

		if (!index_ok(in->workspace, s->workspaces.count) || !a || a->complete ||
		    s->workspaces.at[in->workspace].in.enforce != QUOTA_ENFORCE_ON || in->enforce == QUOTA_ENFORCE_ON ||
		    in->enforce > QUOTA_ENFORCE_OFF ||
		    (before && (before->workspace > in->workspace ||
		                (before->workspace == in->workspace && before->cluster >= in->cluster))))
			return bad(err, "switch", i, "workspace, cluster or enforcement, of workspace", in->workspace);
		*PUSH(s->switches) = *in;
		s->workspaces.at[in->workspace].switching = true;
	}
	return true;
}

static bool
load_rest(struct quota_state *s, const struct quota_world *w, struct err *err)
{
	for (size_t i = 0; i < w->exception_count; i++) {
		const struct quota_exception *in = &w->exceptions[i];
		struct exception *e;

		if (!quota_exception_ok(s, in))
			return bad(err, "exception", i, "a field, workspace", in->workspace);
		e = PUSH(s->exceptions);
		e->in = *in;
		copy_name(e->id, in->id);
		e->running = in->from_ns <= s->now_ns && s->now_ns < in->until_ns;
		(void)quota_account(s, in->workspace, in->cluster, in->model, in->shared);
	}
	for (size_t i = 0; i < w->backoff_count; i++) {
		const struct quota_backoff *in = &w->backoffs[i];

		if (!index_ok(in->workspace, s->workspaces.count) || !index_ok(in->cluster, s->clusters.count) ||
		    !index_ok(in->model, s->models.count))
			return bad(err, "back-off", i, "workspace, cluster or model", in->workspace);
		*PUSH(s->backoffs) = *in;
	}
	for (size_t i = 0; i < w->unused_count; i++) {
		if (!quota_unused_ok(s, &w->unused[i]))
			return bad(err, "unused lease", i, "a field, count", w->unused[i].count);
		quota_unused_add(s, &w->unused[i]);
	}
	for (size_t i = 0; i < w->fence_count; i++) {
		if (!quota_fence_ok(s, &w->fences[i]))
			return bad(err, "fence", i, "a field, count", w->fences[i].count);
		quota_fence_add(s, &w->fences[i]);
	}
	for (size_t i = 0; i < s->accounts.count; i++)
		quota_account_terms(s, (int32_t)i);
	return load_adoptions(s, w, err);
}

bool
quota_load(const struct quota_world *world, struct quota_state **ret, struct err *err)
{
	owned(quota) struct quota_state *s = mem_alloc(sizeof(*s));

	s->free_part = s->free_level = s->free_lease = s->free_wait = s->first_cluster_cap = QUOTA_NONE;
	s->now_ns = world->now_ns;
	s->skipped_ns = world->skipped_ns;
	if (!load_policy(s, &world->policy, err) || !load_nodes(s, world, err))
		return false;
	quota_reindex(s);
	if (!load_rest(s, world, err) || !load_leases(s, world, err) || !load_waiting(s, world, err))
		return false;
	*ret = take(s);
	return true;
}

void
quota_free(struct quota_state *s)
{
	if (!s)
		return;
	mem_free(s->clusters.at);
	mem_free(s->models.at);
	mem_free(s->shapes.at);
	mem_free(s->tenants.at);
	mem_free(s->workspaces.at);
	mem_free(s->caps.at);
	mem_free(s->budgets.at);
	mem_free(s->accounts.at);
	mem_free(s->pools.at);
	mem_free(s->pool_places.at);
	mem_free(s->pool_shapes.at);
	mem_free(s->node_shapes.at);
	mem_free(s->nodes.at);
	mem_free(s->gpus.at);
	mem_free(s->groups.at);
	mem_free(s->parts.at);
	mem_free(s->levels.at);
	mem_free(s->leases.at);
	mem_free(s->waits.at);
	mem_free(s->exceptions.at);
	mem_free(s->backoffs.at);
	mem_free(s->adoptions.at);
	mem_free(s->switches.at);
	mem_free(s->fences.at);
	mem_free(s->unused.at);
	mem_free(s->touched.at);
	hash_fini(&s->lease_ids);
	hash_fini(&s->wait_ids);
	mem_free(s);
}

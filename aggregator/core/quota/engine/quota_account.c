/* aggregator/core/quota/engine/quota_account.c - accounts (reservation, limit, borrow and lend cap of a workspace in a pool), pools and device groups: the sums that every
 * decision reads, kept up with each change. */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

static int64_t
above_zero(int64_t v)
{
	return v > 0 ? v : 0;
}

/* ---- accounts ------------------------------------------------------------------------------------------------------------ */

int64_t
quota_committed(const struct account *a)
{
	return a->leased + a->held - a->replaced;
}

int64_t
quota_debt(const struct account *a)
{
	return above_zero(quota_committed(a) - a->reserved);
}

int64_t
quota_idle(const struct account *a)
{
	return above_zero(a->reserved - quota_committed(a));
}

int64_t
quota_protected(const struct account *a)
{
	return above_zero(quota_idle(a) - a->lend);
}

int64_t
quota_victim_debt(const struct account *a)
{
	return above_zero(a->leased - a->leaving + a->held - a->reserved);
}

static void
account_add(struct quota_state *s, int32_t account, int64_t sign)
{
	const struct account *a = &s->accounts.at[account];
	struct pool *p = &s->pools.at[a->pool];
	int64_t empty = sign * above_zero(a->reserved - a->lend);

	p->reserved += sign * a->reserved;
	p->debt += sign * quota_debt(a);
	p->idle += sign * quota_idle(a);
	p->protected_units += sign * quota_protected(a);
	p->protected_empty += empty;
	if (a->pool_shape != QUOTA_NONE) {
		s->pool_shapes.at[a->pool_shape].protected_units += sign * quota_protected(a);
		s->pool_shapes.at[a->pool_shape].protected_empty += empty;
	}
	s->caps.at[a->cap].committed += sign * (a->leased + a->held - a->replaced_all);
	s->caps.at[a->cluster_cap].committed += sign * (a->leased + a->held - a->replaced_all);
}

void
quota_account_out(struct quota_state *s, int32_t account)
{
	account_add(s, account, -1);
}

void
quota_account_in(struct quota_state *s, int32_t account)
{
	account_add(s, account, 1);
}

static int32_t
pool_for(struct quota_state *s, int32_t cluster, int32_t tenant, int32_t model)
{
	size_t place = ((size_t)(tenant + 1) * s->clusters.count + (size_t)cluster) * s->models.count + (size_t)model;
	struct pool *p;

	if (s->pool_places.at[place].pool != QUOTA_NONE)
		return s->pool_places.at[place].pool;
	s->pool_places.at[place].pool = (int32_t)s->pools.count;
	p = PUSH(s->pools);
	p->cluster = cluster;
	p->tenant = tenant;
	p->model = model;
	p->first_account = QUOTA_NONE;
	p->head = QUOTA_NONE;
	return s->pool_places.at[place].pool;
}

int32_t
quota_pool_shape(const struct quota_state *s, int32_t pool, int32_t shape)
{
	const struct pool *p = &s->pools.at[pool];

	for (int32_t i = p->first_pool_shape; i < p->first_pool_shape + p->pool_shape_count; i++)
		if (s->pool_shapes.at[i].shape == shape)
			return i;
	return QUOTA_NONE;
}

int32_t
quota_account_find(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	int32_t a = s->workspaces.at[workspace].first_account;

	for (; a != QUOTA_NONE; a = s->accounts.at[a].next_of_workspace) {
		const struct pool *p = &s->pools.at[s->accounts.at[a].pool];

		if (p->cluster == cluster && p->model == model && (p->tenant == QUOTA_NONE) == shared)
			return a;
	}
	return QUOTA_NONE;
}

/* Without a maximum the sum is kept all the same: explanations show it. */
static int32_t
cap_of(struct quota_state *s, int32_t tenant, int32_t cluster, int32_t model)
{
	int32_t *first = tenant == QUOTA_NONE ? &s->first_cluster_cap : &s->tenants.at[tenant].first_cap;
	int32_t at = *first;
	struct cap *c;

	for (; at != QUOTA_NONE; at = s->caps.at[at].next)
		if (s->caps.at[at].in.cluster == cluster && s->caps.at[at].in.model == model)
			return at;
	at = (int32_t)s->caps.count;
	c = PUSH(s->caps);
	c->in = (struct quota_cap){.tenant = tenant,
	                           .cluster = cluster,
	                           .model = model,
	                           .maximum = QUOTA_UNLIMITED,
	                           .default_limit = QUOTA_DEFAULT};
	c->implied = true;
	c->next = *first;
	*first = at;
	return at;
}

int32_t
quota_account(struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	int32_t at = quota_account_find(s, workspace, cluster, model, shared);
	struct workspace *w = &s->workspaces.at[workspace];
	int32_t pool;
	struct account *a;

	if (at != QUOTA_NONE)
		return at;
	pool = pool_for(s, cluster, shared ? QUOTA_NONE : w->in.tenant, model);
	at = (int32_t)s->accounts.count;
	a = PUSH(s->accounts);
	a->workspace = workspace;
	a->pool = pool;
	a->cap = cap_of(s, w->in.tenant, cluster, model);
	a->cluster_cap = cap_of(s, QUOTA_NONE, cluster, model);
	a->pool_shape = QUOTA_NONE;
	a->first_lease = QUOTA_NONE;
	a->first_level = QUOTA_NONE;
	a->base = (struct quota_share){.workspace = workspace,
	                               .cluster = cluster,
	                               .model = model,
	                               .shared = shared,
	                               .reserved_shape = QUOTA_NONE,
	                               .limit = QUOTA_DEFAULT,
	                               .borrow = QUOTA_DEFAULT,
	                               .lend = QUOTA_DEFAULT};
	a->next_of_workspace = w->first_account;
	w->first_account = at;
	a->next_of_pool = s->pools.at[pool].first_account;
	s->pools.at[pool].first_account = at;
	quota_account_in(s, at);
	quota_account_terms(s, at);
	return at;
}

static int64_t
plus(int64_t a, int64_t b)
{
	int64_t sum;

	return a == QUOTA_UNLIMITED || b == QUOTA_UNLIMITED || __builtin_add_overflow(a, b, &sum) ? QUOTA_UNLIMITED
	                                                                                          : sum;
}

static int64_t
default_limit(const struct quota_state *s, const struct account *a)
{
	const struct quota_cap *c = &s->caps.at[a->cap].in;

	if (a->base.reserved > 0)
		return plus(a->base.reserved, a->base.reserved * s->settings.burst);
	return c->default_limit == QUOTA_DEFAULT ? c->maximum : c->default_limit;
}

void
quota_account_terms(struct quota_state *s, int32_t account)
{
	struct account *a = &s->accounts.at[account];
	int64_t extra_limit = 0, extra_reserved = 0;
	int64_t limit;

	for (size_t i = 0; i < s->exceptions.count; i++) {
		const struct quota_exception *e = &s->exceptions.at[i].in;

		if (!s->exceptions.at[i].running || e->workspace != a->workspace || e->cluster != a->base.cluster ||
		    e->model != a->base.model || e->shared != a->base.shared)
			continue;
		extra_limit = plus(extra_limit, plus(e->extra_limit, e->extra_reserved));
		extra_reserved += e->extra_reserved;
	}
	limit = a->base.limit == QUOTA_DEFAULT ? default_limit(s, a) : a->base.limit;
	quota_account_out(s, account);
	a->reserved = a->base.reserved + extra_reserved;
	a->limit = plus(limit, extra_limit);
	/* Units that an exception adds to the limit may be borrowed too, or it would be of no use. */
	a->borrow = a->base.borrow != QUOTA_DEFAULT ? a->base.borrow
	            : a->limit == QUOTA_UNLIMITED   ? QUOTA_UNLIMITED
	                                            : above_zero(a->limit - a->reserved);
	a->lend = a->base.lend == QUOTA_DEFAULT ? QUOTA_UNLIMITED : a->base.lend;
	quota_account_in(s, account);
}

/* ---- devices ------------------------------------------------------------------------------------------------------------- */

static bool
group_live(const struct quota_state *s, const struct group *g)
{
	const struct gpu *d = &s->gpus.at[g->gpu];

	return !d->lost && !s->nodes.at[d->node].lost;
}

/* Live devices that nobody has. */
static int32_t
group_left(const struct quota_state *s, const struct group *g)
{
	int32_t left = g->total - g->used - g->held;

	return left > 0 && group_live(s, g) ? left : 0;
}

/* Those of them that are fenced. */
static int32_t
group_fenced(const struct quota_state *s, const struct group *g)
{
	int32_t left = group_left(s, g);

	return g->fenced < left ? g->fenced : left;
}

int32_t
quota_group_free(const struct quota_state *s, int32_t group)
{
	const struct group *g = &s->groups.at[group];

	return group_left(s, g) - group_fenced(s, g);
}

static void
tenancy_add(struct tenancy *who, int32_t devices, int32_t tenant, bool strict)
{
	int64_t t = tenant + 1;

	who->devices += devices;
	who->sum += devices * t;
	who->squares += devices * t * t;
	if (strict)
		who->strict += devices;
}

void
quota_group_expect(struct quota_state *s, int32_t group, int32_t devices, int32_t tenant)
{
	const struct group *g = &s->groups.at[group];
	const struct node_shape *k = &s->node_shapes.at[g->node_shape];
	enum quota_isolation isolation = s->tenants.at[tenant].in.isolation;
	bool alone = isolation >= QUOTA_BY_GPU ||
	             (isolation == QUOTA_BY_MIG && s->shapes.at[g->shape].in.kind == QUOTA_REPLICA);

	tenancy_add(&s->gpus.at[g->gpu].who, devices, tenant, alone);
	tenancy_add(&s->nodes.at[k->node].who, devices, tenant, isolation == QUOTA_BY_NODE);
	if (alone)
		s->pools.at[s->pool_shapes.at[k->pool_shape].pool].strict += devices;
}

void
quota_group_change(struct quota_state *s, int32_t group, int32_t used, int32_t held, int32_t tenant)
{
	struct group *g = &s->groups.at[group];
	const struct quota_shape *shape = &s->shapes.at[g->shape].in;
	struct node_shape *k = &s->node_shapes.at[g->node_shape];
	struct pool_shape *f = &s->pool_shapes.at[k->pool_shape];
	struct pool *p = &s->pools.at[f->pool];
	int32_t before = quota_group_free(s, group), fenced = group_fenced(s, g), change;

	g->used += used;
	g->held += held;
	change = quota_group_free(s, group) - before;
	k->free += change;
	f->free += change;
	p->free += change * shape->units;
	p->fenced += (group_fenced(s, g) - fenced) * shape->units;
	p->leased += used * shape->units;
	p->held += held * shape->units;
	quota_group_expect(s, group, used + held, tenant);
}

/* A group's part of the sums beside its used and held devices. */
static void
group_add(struct quota_state *s, int32_t group, int32_t sign)
{
	const struct group *g = &s->groups.at[group];
	int64_t units = s->shapes.at[g->shape].in.units;
	struct node_shape *k = &s->node_shapes.at[g->node_shape];
	struct pool_shape *f = &s->pool_shapes.at[k->pool_shape];
	struct pool *p = &s->pools.at[f->pool];
	int32_t free = sign * quota_group_free(s, group), live = group_live(s, g) ? sign * g->total : 0;
	int32_t fenced = sign * group_fenced(s, g), usable = g->fenced < g->total ? g->total - g->fenced : 0;

	usable = group_live(s, g) ? sign * usable : 0;
	k->free += free;
	f->free += free;
	p->free += free * units;
	p->fenced += fenced * units;
	k->live += usable;
	f->live += usable;
	p->live += live * units;
	k->declared += sign * g->total;
	f->declared += sign * g->total;
	p->declared += sign * g->total * units;
}

void
quota_group_fence(struct quota_state *s, int32_t group, int32_t devices, int32_t tenant)
{
	group_add(s, group, -1);
	s->groups.at[group].fenced += devices;
	group_add(s, group, 1);
	quota_group_expect(s, group, devices, tenant);
}

static void
groups_add(struct quota_state *s, int32_t gpu, int32_t sign)
{
	for (int32_t g = s->gpus.at[gpu].first_group; g != QUOTA_NONE; g = s->groups.at[g].next)
		group_add(s, g, sign);
}

void
quota_gpu_health(struct quota_state *s, int32_t gpu, bool lost)
{
	groups_add(s, gpu, -1);
	s->gpus.at[gpu].lost = lost;
	groups_add(s, gpu, 1);
}

void
quota_node_health(struct quota_state *s, int32_t node, bool lost)
{
	struct node *n = &s->nodes.at[node];

	for (int32_t d = n->first_gpu; d < n->first_gpu + n->gpu_count; d++)
		groups_add(s, d, -1);
	n->lost = lost;
	for (int32_t d = n->first_gpu; d < n->first_gpu + n->gpu_count; d++)
		groups_add(s, d, 1);
}

/* ---- figures --------------------------------------------------------------------------------------------------------------- */

size_t
quota_pool_count(const struct quota_state *s)
{
	return s->pools.count;
}

struct quota_pool_figures
quota_pool_at(const struct quota_state *s, size_t i)
{
	const struct pool *p = &s->pools.at[i];
	int64_t leased = p->leased + p->unplaced;

	return (struct quota_pool_figures){.cluster = p->cluster,
	                                   .tenant = p->tenant,
	                                   .model = p->model,
	                                   .declared = p->declared,
	                                   .live = p->live,
	                                   .leased = leased,
	                                   .held = p->held,
	                                   .fenced = p->fenced,
	                                   .free = p->free,
	                                   .excess = leased + p->held + p->fenced + p->free - p->live,
	                                   .reserved = p->reserved,
	                                   .debt = p->debt,
	                                   .idle = p->idle,
	                                   .protected_units = p->protected_units};
}

struct quota_account_figures
quota_account_at(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	int32_t at = quota_account_find(s, workspace, cluster, model, shared);
	const struct account *a = at == QUOTA_NONE ? NULL : &s->accounts.at[at];

	if (!a)
		return (struct quota_account_figures){0};
	return (struct quota_account_figures){.reserved = a->reserved,
	                                      .limit = a->limit,
	                                      .borrow = a->borrow,
	                                      .lend = a->lend,
	                                      .leased = a->leased,
	                                      .held = a->held,
	                                      .committed = quota_committed(a),
	                                      .fixed = a->fixed,
	                                      .debt = quota_debt(a),
	                                      .idle = quota_idle(a)};
}

int64_t
quota_would_deny_count(const struct quota_state *s, int32_t workspace)
{
	return s->workspaces.at[workspace].would_deny;
}

size_t
quota_lease_count(const struct quota_state *s)
{
	return s->lease_count;
}

size_t
quota_waiting_count(const struct quota_state *s)
{
	return s->wait_count;
}

size_t
quota_waiting_of_tenant(const struct quota_state *s, int32_t tenant)
{
	return tenant >= 0 && (size_t)tenant < s->tenants.count ? s->tenants.at[tenant].waiting : 0;
}

int64_t
quota_now(const struct quota_state *s)
{
	return s->now_ns;
}

int64_t
quota_skipped(const struct quota_state *s)
{
	return s->skipped_ns;
}

bool
quota_knows(const struct quota_state *s, const char *id)
{
	return quota_lease_by_id(s, id) != QUOTA_NONE || quota_wait_by_id(s, id) != QUOTA_NONE;
}

int32_t
quota_lease_shape(const struct quota_state *s, const char *id)
{
	int32_t lease = quota_lease_by_id(s, id);

	return lease == QUOTA_NONE ? QUOTA_NONE : s->leases.at[lease].in.shape;
}

size_t
quota_orders_due(const struct quota_state *s, struct quota_due **ret)
{
	struct quota_due *list = mem_array(s->leases.count + 1, sizeof(*list));
	size_t n = 0;

	for (size_t i = 0; i < s->leases.count; i++) {
		const struct lease *l = &s->leases.at[i];

		if (l->id[0] == '\0' || l->in.order == QUOTA_NO_ORDER || l->in.due_ns <= 0)
			continue;
		memcpy(list[n].lease, l->id, sizeof(list[n].lease));
		list[n++].due_ns = l->in.due_ns;
	}
	*ret = list;
	return n;
}

/* ---- everything anew ------------------------------------------------------------------------------------------------------- */

struct place_of_group {
	int32_t pool, shape, node, group;
};

static int
compare_places(const void *a, const void *b)
{
	const struct place_of_group *x = a, *y = b;

	if (x->pool != y->pool)
		return x->pool < y->pool ? -1 : 1;
	if (x->shape != y->shape)
		return x->shape < y->shape ? -1 : 1;
	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return (x->group > y->group) - (x->group < y->group);
}

static void
clear_pools(struct quota_state *s)
{
	for (size_t i = 0; i < s->pools.count; i++) {
		struct pool *p = &s->pools.at[i];

		*p = (struct pool){.cluster = p->cluster,
		                   .tenant = p->tenant,
		                   .model = p->model,
		                   .first_account = p->first_account,
		                   .unplaced = p->unplaced,
		                   .strict = p->strict,
		                   .head = p->head};
	}
	for (size_t i = 0; i < s->caps.count; i++)
		s->caps.at[i].committed = 0;
	s->pool_shapes.count = 0;
	s->node_shapes.count = 0;
}

static void
lay_out(struct quota_state *s, const struct place_of_group *places, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct place_of_group *at = &places[i];
		bool same_pool_shape = i > 0 && places[i - 1].pool == at->pool && places[i - 1].shape == at->shape;
		struct group *g = &s->groups.at[at->group];
		struct pool *p = &s->pools.at[at->pool];

		if (!same_pool_shape) {
			struct pool_shape *f = PUSH(s->pool_shapes);

			f->pool = at->pool;
			f->shape = at->shape;
			f->first_node_shape = (int32_t)s->node_shapes.count;
			if (p->pool_shape_count++ == 0)
				p->first_pool_shape = (int32_t)s->pool_shapes.count - 1;
		}
		if (!same_pool_shape || places[i - 1].node != at->node) {
			struct node_shape *k = PUSH(s->node_shapes);

			k->node = at->node;
			k->pool_shape = (int32_t)s->pool_shapes.count - 1;
			s->pool_shapes.at[k->pool_shape].node_shape_count++;
		}
		g->node_shape = (int32_t)s->node_shapes.count - 1;
		p->leased += g->used * s->shapes.at[g->shape].in.units;
		p->held += g->held * s->shapes.at[g->shape].in.units;
		group_add(s, at->group, 1);
	}
}

void
quota_reindex(struct quota_state *s)
{
	owned(mem) struct place_of_group *places = mem_array(s->groups.count + 1, sizeof(*places));

	for (size_t i = 0; i < s->groups.count; i++) {
		const struct group *g = &s->groups.at[i];
		const struct node *n = &s->nodes.at[s->gpus.at[g->gpu].node];

		places[i] = (struct place_of_group){
			.pool = pool_for(s, n->cluster, n->tenant, s->shapes.at[g->shape].in.model),
			.shape = g->shape,
			.node = s->gpus.at[g->gpu].node,
			.group = (int32_t)i,
		};
	}
	clear_pools(s);
	qsort(places, s->groups.count, sizeof(*places), compare_places);
	lay_out(s, places, s->groups.count);
	for (size_t i = 0; i < s->accounts.count; i++) {
		struct account *a = &s->accounts.at[i];

		a->pool_shape = a->base.reserved_shape == QUOTA_NONE
		                        ? QUOTA_NONE
		                        : quota_pool_shape(s, a->pool, a->base.reserved_shape);
		quota_account_in(s, (int32_t)i);
	}
}

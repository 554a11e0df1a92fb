/* aggregator/core/policy/policy_capacity.c - what the nodes have, and whether the reservations fit.
 *
 * Rules:
 *  1. a pool is a cluster's nodes of one tenant, or its shared ones, per GPU model; retired nodes and GPUs are in none
 *  2. a node has what was seen on it; one that was never seen has what the file declares. A node in maintenance keeps its
 *     part: declared capacity is what there is when all is well
 *  3. a partitioned GPU has its instances, any other itself
 *  4. an amount without a model is of the only model of its pool; one with the name of a family ("H100") of the only model of
 *     that family. Where there are none or several, it is refused
 *  5. in each pool what is reserved is at most what there is, and of a MIG profile at most the instances there are
 *  6. a limit may name a model that is nowhere yet, but not a family of which there are several models */
#include "aggregator/core/policy/policy.h"

#include <stdlib.h>
#include <string.h>

/* GPUs or MIG instances of one kind in one pool. */
struct capacity {
	const char *cluster, *tenant; /* tenant "": the shared nodes */
	const char *model, *profile;
	int64_t count, units;
	int64_t taken; /* instances of the profile that are reserved */
	/* of all of the model, in the first entry of it */
	int64_t model_units, model_taken;
};

struct capacities {
	struct capacity *at;
	size_t count, cap;
};

static int
compare_pool(const struct capacity *a, const struct capacity *b)
{
	int order = strcmp(a->cluster, b->cluster);

	return order ? order : strcmp(a->tenant, b->tenant);
}

static int
compare_capacity(const void *a, const void *b)
{
	const struct capacity *x = a, *y = b;
	int order = compare_pool(x, y);

	order = order ? order : strcmp(x->model, y->model);
	return order ? order : strcmp(x->profile, y->profile);
}

static void
add_capacity(struct capacities *s, const struct policy_node *n, const char *model, const char *profile, int64_t count,
             int64_t units)
{
	array_room(s->at, s->count, s->cap);
	s->at[s->count++] = (struct capacity){.cluster = n->cluster,
	                                      .tenant = n->tenant ? n->tenant : "",
	                                      .model = model,
	                                      .profile = profile,
	                                      .count = count,
	                                      .units = count * units};
}

/* ---- capacity ---- */

static int
compare_seen(const void *a, const void *b)
{
	const struct policy_seen *const *x = a, *const *y = b;

	return strcmp((*x)->node, (*y)->node);
}

static int
find_seen(const void *name, const void *seen)
{
	const struct policy_seen *const *s = seen;

	return strcmp(name, (*s)->node);
}

static bool
is_retired(const struct policy_node *n, const char *gpu)
{
	for (size_t i = 0; i < n->device_count; i++)
		if (strcmp(n->devices[i].uuid, gpu) == 0)
			return strcmp(n->devices[i].state, "retired") == 0;
	return false;
}

static void
add_declared(struct capacities *s, const struct policy_node *n)
{
	if (n->gpus > 0)
		add_capacity(s, n, n->model, "", n->gpus, UNITS_PER_GPU);
	for (size_t i = 0; i < n->profile_count; i++) {
		struct err ignored;
		int64_t units;

		if (quantity_profile_units(n->model, n->profiles[i].profile, &units, &ignored))
			add_capacity(s, n, n->model, n->profiles[i].profile, n->profiles[i].count, units);
	}
}

/* Rules 1 to 3. */
static void
add_nodes(struct capacities *s, const struct policy *p, const struct policy_seen *seen, size_t count)
{
	owned(mem) const struct policy_seen **sorted = mem_array(count, sizeof(*sorted));

	for (size_t i = 0; i < count; i++)
		sorted[i] = &seen[i];
	qsort(sorted, count, sizeof(*sorted), compare_seen);
	for (size_t i = 0; i < p->node_count; i++) {
		const struct policy_node *n = &p->nodes[i];
		const struct policy_seen **first;

		if (strcmp(n->state, "retired") == 0)
			continue;
		first = bsearch(n->name, sorted, count, sizeof(*sorted), find_seen);
		if (first == NULL) {
			add_declared(s, n);
			continue;
		}
		while (first > sorted && strcmp(first[-1]->node, n->name) == 0)
			first--;
		for (; first < sorted + count && strcmp((*first)->node, n->name) == 0; first++)
			if (!is_retired(n, (*first)->gpu))
				add_capacity(s, n, (*first)->model, (*first)->profile, (*first)->count,
				             (*first)->units);
	}
}

/* One entry for each kind, and the sum of a model in its first. */
static void
fold(struct capacities *s)
{
	size_t n = 0, model = 0;

	if (s->count == 0)
		return;
	qsort(s->at, s->count, sizeof(*s->at), compare_capacity);
	for (size_t i = 0; i < s->count; i++) {
		if (n > 0 && compare_capacity(&s->at[n - 1], &s->at[i]) == 0) {
			s->at[n - 1].count += s->at[i].count;
			s->at[n - 1].units += s->at[i].units;
		} else {
			s->at[n++] = s->at[i];
		}
	}
	s->count = n;
	for (size_t i = 0; i < n; i++) {
		if (i > 0 &&
		    (compare_pool(&s->at[i - 1], &s->at[i]) != 0 || strcmp(s->at[i - 1].model, s->at[i].model) != 0))
			model = i;
		s->at[model].model_units += s->at[i].units;
	}
}

/* ---- reservations ---- */

struct request {
	const struct policy_tenant *tenant;
	const struct policy_workspace *workspace;
	const struct policy_amounts *amounts;
	const struct quantity *q;
	const char *cluster, *file;
	const char *key; /* of the file */
	bool shared;
};

/* "FILE:LINE: workspace acme/a: reserved 4x1g.10gb: " before what follows. */
static bool
refuse(const struct request *a, struct err *err, const char *why)
{
	in_place(buf) struct buf amount = {0};

	buf_init(&amount, 4096);
	policy_amounts_text(a->amounts, &amount);
	return err_set(err, ERR_INVALID, "%s:%d: %s %s%s%s: %s %s: %s", a->file, a->amounts->line,
	               a->workspace ? "workspace" : "tenant", a->tenant->name, a->workspace ? "/" : "",
	               a->workspace ? a->workspace->name : "", a->key, buf_text(&amount), why);
}

static void
pool_name(const struct request *a, struct buf *out)
{
	if (a->shared)
		buf_printf(out, "the shared nodes of cluster %s", a->cluster);
	else
		buf_printf(out, "the nodes of %s in cluster %s", a->tenant->name, a->cluster);
}

/* The pool's entries; they lie together. */
static struct capacity *
pool_of(const struct capacities *s, const struct request *a, size_t *ret_count)
{
	struct capacity key = {.cluster = a->cluster, .tenant = a->shared ? "" : a->tenant->name};
	size_t low = 0, high = s->count, n = 0;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare_pool(&s->at[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	while (low + n < s->count && compare_pool(&s->at[low + n], &key) == 0)
		n++;
	*ret_count = n;
	return s->at ? s->at + low : NULL;
}

/* Rule 4: the first entry of the model. */
static bool
find_model(const struct request *a, struct capacity *pool, size_t count, struct capacity **ret, struct err *err)
{
	in_place(buf) struct buf why = {0}, models = {0};
	struct capacity *found = NULL;
	bool several = false;

	buf_init(&why, sizeof(err->text));
	buf_init(&models, sizeof(err->text) / 2);
	for (size_t i = 0; i < count; i++) {
		if (i > 0 && strcmp(pool[i - 1].model, pool[i].model) == 0)
			continue;
		buf_printf(&models, "%s%s", models.len > 0 ? ", " : "", pool[i].model);
		if (strcmp(a->q->model, pool[i].model) == 0) {
			*ret = &pool[i];
			return true;
		}
		if (!quantity_model_fits(a->q->model, pool[i].model))
			continue;
		several |= found != NULL;
		found = &pool[i];
	}
	*ret = found;
	if (found != NULL && !several)
		return true;
	pool_name(a, &why);
	if (count == 0)
		buf_str(&why, " have no GPU: none was seen on them, and the file declares none");
	else if (several)
		buf_printf(&why, " have several models, %s: write which, {MODEL: N}", buf_text(&models));
	else
		buf_printf(&why, " have no %s, but %s", a->q->model, buf_text(&models));
	return refuse(a, err, buf_text(&why));
}

/* Rule 5. */
static bool
take_capacity(const struct request *a, struct capacity *model, struct capacity *end, const struct policy_reservation *r,
              bool check, struct err *err)
{
	char taken[QUANTITY_TEXT_SIZE], have[QUANTITY_TEXT_SIZE];
	in_place(buf) struct buf why = {0};

	buf_init(&why, sizeof(err->text));
	model->model_taken += r->units;
	if (!check)
		return true;
	if (r->instances > 0) {
		struct capacity *s = model;

		while (s < end && strcmp(s->model, model->model) == 0 && strcmp(s->profile, r->profile) != 0)
			s++;
		if (s == end || strcmp(s->model, model->model) != 0) {
			pool_name(a, &why);
			buf_printf(&why, " have no %s instance of %s", r->profile, model->model);
			return refuse(a, err, buf_text(&why));
		}
		s->taken += r->instances;
		if (s->taken > s->count) {
			buf_printf(&why, "with it %" PRId64 " %s instances of %s are reserved among ", s->taken,
			           r->profile, model->model);
			pool_name(a, &why);
			buf_printf(&why, ", which have %" PRId64, s->count);
			return refuse(a, err, buf_text(&why));
		}
	}
	if (model->model_taken <= model->model_units)
		return true;
	buf_printf(&why, "with it %s GPUs of %s are reserved among ", quantity_text(model->model_taken, taken),
	           model->model);
	pool_name(a, &why);
	buf_printf(&why, ", which have %s", quantity_text(model->model_units, have));
	return refuse(a, err, buf_text(&why));
}

static bool
reserve_one(const struct request *a, struct capacities *s, bool check, struct policy_reservations *ret, struct err *err)
{
	struct policy_reservation r = {.tenant = a->tenant->name,
	                               .workspace = a->workspace->name,
	                               .cluster = a->cluster,
	                               .shared = a->shared,
	                               .profile = a->q->profile};
	struct capacity *pool, *model;
	struct err why = {0};
	size_t count;

	if (a->q->num == 0)
		return true;
	pool = pool_of(s, a, &count);
	if (!find_model(a, pool, count, &model, err))
		return false;
	r.model = model->model;
	r.instances = r.profile[0] ? a->q->num : 0;
	if (!quantity_units(a->q, r.model, &r.units, &why))
		return refuse(a, err, why.text);
	for (size_t i = ret->count; i > 0 && ret->at[i - 1].workspace == r.workspace; i--)
		if (ret->at[i - 1].shared == r.shared && strcmp(ret->at[i - 1].model, r.model) == 0 &&
		    strcmp(ret->at[i - 1].profile, r.profile) == 0)
			return refuse(a, err, "two of these amounts are of the same model");
	if (!take_capacity(a, model, pool + count, &r, check, err))
		return false;
	if ((ret->count & (ret->count + 1)) == 0)
		ret->at = mem_grow(ret->at, 2 * ret->count + 2, sizeof(*ret->at));
	ret->at[ret->count++] = r;
	return true;
}

static bool
reserve_workspace(const struct request *of, struct capacities *s, bool check, struct policy_reservations *ret,
                  struct err *err)
{
	struct request a = *of;

	for (int shared = 0; shared < 2; shared++) {
		a.shared = shared == 1;
		a.key = a.shared ? "reserved_shared" : "reserved";
		a.amounts = a.shared ? &a.workspace->reserved_shared : &a.workspace->reserved;
		for (size_t i = 0; i < a.amounts->count; i++) {
			a.q = &a.amounts->at[i];
			if (!reserve_one(&a, s, check, ret, err))
				return false;
		}
	}
	return true;
}

/* ---- limits ---- */

/* Each model once. */
static const char **
models_of(const struct capacities *s, size_t *ret_count)
{
	const char **at = mem_array(s->count + 1, sizeof(*at));
	size_t n = 0;

	for (size_t i = 0; i < s->count; i++) {
		size_t k = 0;

		while (k < n && strcmp(at[k], s->at[i].model) != 0)
			k++;
		if (k == n)
			at[n++] = s->at[i].model;
	}
	*ret_count = n;
	return at;
}

/* Rule 6. */
static bool
check_limit(struct request a, const char *key, const struct policy_amounts *amounts, const char *const *models,
            size_t count, struct err *err)
{
	a.key = key;
	a.amounts = amounts;
	for (size_t i = 0; i < amounts->count; i++) {
		const char *name = amounts->at[i].model, *model;
		struct err why = {0};
		size_t fitting = 0;

		for (size_t k = 0; k < count; k++)
			fitting += quantity_model_fits(name, models[k]);
		if (name[0] != '\0' && fitting > 1 && !quantity_model(name, models, count, &model, &why))
			return refuse(&a, err, why.text);
	}
	return true;
}

static bool
check_limits(const struct policy_tenant *t, const struct capacities *s, const char *file, struct err *err)
{
	struct request a = {.tenant = t, .file = file};
	size_t count;
	owned(mem) const char **models = models_of(s, &count);
	bool ok = check_limit(a, "maximum", &t->maximum, models, count, err) &&
	          check_limit(a, "default_limit", &t->default_limit, models, count, err);

	for (size_t w = 0; w < t->workspace_count && ok; w++) {
		a.workspace = &t->workspaces[w];
		ok = check_limit(a, "limit", &a.workspace->limit, models, count, err) &&
		     check_limit(a, "borrow", &a.workspace->borrow, models, count, err) &&
		     check_limit(a, "lend", &a.workspace->lend, models, count, err);
	}
	return ok;
}

void
policy_reservations_fini(struct policy_reservations *r)
{
	mem_free(r->at);
	*r = (struct policy_reservations){0};
}

bool
policy_reserve(const struct policy *p, const struct policy_seen *seen, size_t count, const char *only, const char *file,
               struct policy_reservations *ret, struct err *err)
{
	struct capacities s = {0};
	bool ok = true;

	add_nodes(&s, p, seen, count);
	fold(&s);
	for (size_t i = 0; i < p->tenant_count && ok; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		if (only != NULL && strcmp(only, t->name) != 0)
			continue;
		ok = check_limits(t, &s, file, err);
		for (size_t w = 0; w < t->workspace_count && ok; w++) {
			struct request a = {.tenant = t, .workspace = &t->workspaces[w], .file = file};

			a.cluster = policy_workspace_cluster(p, a.workspace);
			ok = reserve_workspace(&a, &s, only == NULL, ret, err);
		}
	}
	mem_free(s.at);
	return ok;
}

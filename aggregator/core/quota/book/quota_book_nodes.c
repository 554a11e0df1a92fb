/* aggregator/core/quota/book/quota_book_nodes.c - the inventory by names: nodes, GPUs, and how GPUs are partitioned.
 *
 * A node keeps its position, and so does each GPU on it, found by its UUID; one that was declared and not seen yet is the first of its model
 * that is. A node or GPU that the new inventory lacks stays without devices: leases on it are counted until they end. A node that went to
 * another tenant or cluster takes no lease along: those stay counted, on no device. A fence ends with the devices that it is on. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/quota/book/quota_book_state.h"

#define MAX_NODES 100000u

/* ---- shapes ------------------------------------------------------------------------------------------------------------- */

bool
book_read_shape(struct book_names *n, int32_t model, const json_t *o, int32_t *ret, struct err *err)
{
	const char *profile = json_string_value(json_object_get(o, "profile"));
	int64_t of = json_integer_value(json_object_get(o, "of"));
	char name[24];

	if (profile)
		return book_add_shape(n, model, QUOTA_MIG, profile, json_integer_value(json_object_get(o, "units")),
		                      ret, err);
	if (!json_object_get(o, "of"))
		return book_add_shape(n, model, QUOTA_WHOLE, "", UNITS_PER_GPU, ret, err);
	if (of < 2 || of > UNITS_PER_GPU)
		return err_set(err, ERR_INVALID, "replicas are 2 to %" PRId64 " of a GPU", UNITS_PER_GPU);
	snprintf(name, sizeof(name), "1/%" PRId64, of);
	return book_add_shape(n, model, QUOTA_REPLICA, name, UNITS_PER_GPU / of, ret, err);
}

/* The devices of a GPU; a whole one where none are listed. */
static bool
read_slots(struct book_step *s, struct book_names *n, int32_t model, const json_t *list, struct quota_slots **ret,
           size_t *ret_count, struct err *err)
{
	size_t count = list ? json_array_size(list) : 1;
	struct quota_slots *slots;

	if ((list && !json_is_array(list)) || count > LIMIT_GPU_INSTANCES)
		return err_set(err, ERR_INVALID, "slots are a list of at most %d", LIMIT_GPU_INSTANCES);
	slots = quota_keep(&s->m, count, sizeof(*slots));
	for (size_t i = 0; i < count; i++) {
		const json_t *o = json_array_get(list, i);
		int64_t devices = list ? json_integer_value(json_object_get(o, "count")) : 1;

		if (devices < 0 || devices > QUOTA_MAX_COUNT)
			return err_set(err, ERR_INVALID, "a slot has a count of 0 to %d", QUOTA_MAX_COUNT);
		if (!book_read_shape(n, model, o, &slots[i].shape, err))
			return false;
		slots[i].count = (int32_t)devices;
	}
	*ret = slots;
	*ret_count = count;
	return true;
}

void
book_policy_extend(struct book_step *s, const struct book_names *n, struct quota_policy *p)
{
	struct quota_tenant *tenants = quota_keep(&s->m, n->tenants.count, sizeof(*tenants));

	for (size_t i = 0; i < n->tenants.count; i++)
		tenants[i] = i < p->tenant_count
		                     ? p->tenants[i]
		                     : (struct quota_tenant){.name = BOOK_AT(n->tenants, book_name, i)->text,
		                                             .per_workload_units = QUOTA_UNLIMITED,
		                                             .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED,
		                                                             QUOTA_UNLIMITED}};
	p->tenants = tenants;
	p->tenant_count = n->tenants.count;
	book_policy_names(s, n, p);
}

/* ---- a layout ----------------------------------------------------------------------------------------------------------- */

static int32_t
model_of_gpu(const struct quota_world *w, int32_t node, int32_t gpu)
{
	const struct quota_gpu *d = &w->nodes[node].gpus[gpu];

	return d->slot_count > 0 ? w->policy.shapes[d->slots[0].shape].model : QUOTA_NONE;
}

bool
book_layout(struct book_step *s, const json_t *v, struct err *err)
{
	owned(book_names) struct book_names *names = book_names_copy(s->b->names);
	struct quota_event event = {.kind = QUOTA_LAYOUT};
	const char *model = json_string_value(json_object_get(v, "model"));
	struct quota_slots *slots = NULL;
	struct quota_saved saved;
	int32_t m;
	bool ok;

	if (!book_read_device(names, v, &event.node, &event.gpu, err))
		return false;
	quota_save(s->b->state, &saved);
	m = model ? book_find(&names->models, model) : model_of_gpu(&saved.world, event.node, event.gpu);
	ok = m != QUOTA_NONE || err_set(err, ERR_INVALID, "the model of the GPU is not known");
	ok = ok && read_slots(s, names, m, json_object_get(v, "slots"), &slots, &event.slot_count, err);
	event.slots = slots;
	if (ok && names->shapes.count > saved.world.policy.shape_count) {
		book_policy_extend(s, names, &saved.world.policy);
		ok = book_step_anew(s, &saved.world, &names, &event, err);
	} else if (ok) {
		ok = book_step_engine(s, &event, err);
	}
	quota_saved_fini(&saved);
	return ok;
}

/* ---- the inventory ------------------------------------------------------------------------------------------------------ */

struct inventory {
	struct book_step *s;
	struct book_names *names;
	const struct quota_world *old;
	struct quota_node *nodes; /* by position; those of the old ones begin without devices */
	struct quota_gpu **gpus;  /* of each node, to be written */
	bool *given;
	size_t cap; /* nodes there may be */
};

struct given_gpu {
	const char *uuid;
	int32_t model;
	bool lost, placed;
	struct quota_slots *slots;
	size_t slot_count;
};

static int32_t
old_model(const struct inventory *v, int32_t node, size_t gpu)
{
	return (size_t)node < v->old->node_count && gpu < v->old->nodes[node].gpu_count
	               ? model_of_gpu(v->old, node, (int32_t)gpu)
	               : QUOTA_NONE;
}

static void
put_gpu(struct inventory *v, int32_t node, size_t at, struct given_gpu *g, bool *taken)
{
	struct book_node *names = BOOK_AT(v->names->nodes, book_node, node);

	v->gpus[node][at] = (struct quota_gpu){.slots = g->slots, .slot_count = g->slot_count, .lost = g->lost};
	snprintf(names->uuids[at], sizeof(names->uuids[at]), "%s", g->uuid);
	taken[at] = true;
	g->placed = true;
}

/* The positions of a node's GPUs: by UUID; then one that was not seen yet, of the same model; then a new one. */
static void
place_gpus(struct inventory *v, int32_t node, struct given_gpu *g, size_t count)
{
	struct book_node *names = BOOK_AT(v->names->nodes, book_node, node);
	size_t had = names->gpu_count;
	owned(mem) bool *taken = mem_array(had + count + 1, sizeof(*taken));
	struct quota_gpu *devices = quota_keep(&v->s->m, had + count, sizeof(*devices));

	names->uuids = mem_grow(names->uuids, had + count + 1, sizeof(*names->uuids));
	memset(names->uuids[had], 0, (count + 1) * sizeof(*names->uuids));
	v->gpus[node] = devices;
	for (size_t i = 0; i < count; i++)
		for (size_t at = 0; at < had && !g[i].placed && g[i].uuid[0] != '\0'; at++)
			if (!taken[at] && strcmp(names->uuids[at], g[i].uuid) == 0)
				put_gpu(v, node, at, &g[i], taken);
	for (size_t i = 0; i < count; i++) {
		for (size_t at = 0; at < had && !g[i].placed; at++)
			if (!taken[at] && names->uuids[at][0] == '\0' &&
			    (old_model(v, node, at) == g[i].model || old_model(v, node, at) == QUOTA_NONE))
				put_gpu(v, node, at, &g[i], taken);
		if (!g[i].placed)
			put_gpu(v, node, names->gpu_count++, &g[i], taken);
	}
	v->nodes[node].gpus = devices;
	v->nodes[node].gpu_count = names->gpu_count;
}

static bool
read_gpus(struct inventory *v, const json_t *list, struct given_gpu **ret, size_t *ret_count, struct err *err)
{
	size_t count = json_array_size(list);
	struct given_gpu *g;

	if (!json_is_array(list) || count > LIMIT_NODE_GPUS)
		return err_set(err, ERR_INVALID, "gpus are a list of at most %d", LIMIT_NODE_GPUS);
	g = quota_keep(&v->s->m, count, sizeof(*g));
	for (size_t i = 0; i < count; i++) {
		const json_t *o = json_array_get(list, i);
		const char *uuid = json_string_value(json_object_get(o, "uuid"));
		const char *model = json_string_value(json_object_get(o, "model"));

		g[i].uuid = uuid ? uuid : "";
		g[i].lost = json_is_true(json_object_get(o, "lost"));
		if (strlen(g[i].uuid) >= QUOTA_UUID_SIZE)
			return err_set(err, ERR_INVALID, "GPU %zu: its UUID is longer than %d bytes", i,
			               QUOTA_UUID_SIZE - 1);
		if (!book_add_model(v->names, model ? model : "", &g[i].model, err) ||
		    !read_slots(v->s, v->names, g[i].model, json_object_get(o, "slots"), &g[i].slots, &g[i].slot_count,
		                err))
			return err_prefix(err, "GPU %zu", i);
	}
	*ret = g;
	*ret_count = count;
	return true;
}

static bool
read_node(struct inventory *v, const json_t *o, struct err *err)
{
	const char *name = json_string_value(json_object_get(o, "name"));
	const char *cluster = json_string_value(json_object_get(o, "cluster"));
	const json_t *tenant = json_object_get(o, "tenant");
	const char *owner = json_string_value(tenant);
	size_t tenants = v->names->tenants.count, count = 0;
	struct given_gpu *g = NULL;
	struct quota_node *n;
	int32_t at, c, t = QUOTA_NONE;

	if (!book_add(&v->names->nodes, "node", name ? name : "", QUOTA_NODE_SIZE, &at, err) ||
	    !book_add(&v->names->clusters, "cluster", cluster ? cluster : "", QUOTA_NAME_SIZE, &c, err) ||
	    (tenant && !json_is_null(tenant) &&
	     !book_add(&v->names->tenants, "tenant", owner ? owner : "", QUOTA_NAME_SIZE, &t, err)))
		return false;
	if (v->names->tenants.count > tenants)
		BOOK_AT(v->names->tenants, book_name, t)->gone = true;
	if (v->given[at])
		return err_set(err, ERR_INVALID, "it is there twice");
	v->given[at] = true;
	if (!read_gpus(v, json_object_get(o, "gpus"), &g, &count, err))
		return false;
	n = &v->nodes[at];
	*n = (struct quota_node){.cluster = c, .tenant = t, .lost = json_is_true(json_object_get(o, "lost"))};
	place_gpus(v, at, g, count);
	return true;
}

/* Old devices stay as places of the leases on them. */
static void
keep_old(struct inventory *v)
{
	for (size_t i = 0; i < v->old->node_count; i++) {
		const struct quota_node *n = &v->old->nodes[i];

		v->nodes[i] = *n;
		v->nodes[i].gpus = v->gpus[i] = quota_keep(&v->s->m, n->gpu_count, sizeof(*v->gpus[i]));
	}
}

/* A place of no devices for a part, where the GPU is not cut like this any more. */
static void
keep_place(struct inventory *v, const struct quota_part *p)
{
	struct quota_gpu *g;
	struct quota_slots *slots;

	if (p->node == QUOTA_NONE)
		return;
	g = &v->gpus[p->node][p->gpu];
	for (size_t i = 0; i < g->slot_count; i++)
		if (g->slots[i].shape == p->shape)
			return;
	slots = quota_keep(&v->s->m, g->slot_count + 1, sizeof(*slots));
	for (size_t i = 0; i < g->slot_count; i++)
		slots[i] = g->slots[i];
	slots[g->slot_count] = (struct quota_slots){.shape = p->shape};
	g->slots = slots;
	g->slot_count++;
}

static bool
moved(const struct inventory *v, int32_t node)
{
	return node != QUOTA_NONE && (v->nodes[node].tenant != v->old->nodes[node].tenant ||
	                              v->nodes[node].cluster != v->old->nodes[node].cluster);
}

static void
keep_leases(struct inventory *v, struct quota_world *w)
{
	struct quota_lease *leases = quota_keep(&v->s->m, w->lease_count, sizeof(*leases));

	for (size_t i = 0; i < w->lease_count; i++) {
		struct quota_lease *l = &leases[i];
		bool away = false;

		*l = w->leases[i];
		for (size_t p = 0; p < l->part_count; p++)
			away = away || moved(v, l->parts[p].node);
		if (away)
			l->part_count = 0;
		for (size_t p = 0; p < l->part_count; p++)
			keep_place(v, &l->parts[p]);
	}
	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t p = 0; p < w->waiting[i].hold_count; p++)
			keep_place(v, &w->waiting[i].hold[p]);
	w->leases = leases;
}

/* Whether the devices of a fence are still there, as its owner's. */
static bool
has_devices(const struct inventory *v, const struct quota_fence *f)
{
	const struct quota_node *n = &v->nodes[f->node];

	if (moved(v, f->node) || (size_t)f->gpu >= n->gpu_count)
		return false;
	for (size_t i = 0; i < n->gpus[f->gpu].slot_count; i++)
		if (n->gpus[f->gpu].slots[i].shape == f->shape)
			return n->gpus[f->gpu].slots[i].count > 0;
	return false;
}

static void
keep_fences(struct inventory *v, struct quota_world *w)
{
	struct quota_fence *fences = quota_keep(&v->s->m, w->fence_count, sizeof(*fences));
	size_t count = 0;

	for (size_t i = 0; i < w->fence_count; i++) {
		if (has_devices(v, &w->fences[i]))
			fences[count++] = w->fences[i];
		else
			book_notice(v->s, QUOTA_UNFENCED, w->fences[i].id, "");
	}
	w->fences = fences;
	w->fence_count = count;
}

static bool
read_inventory(struct inventory *v, const json_t *list, struct err *err)
{
	keep_old(v);
	for (size_t i = 0; i < json_array_size(list); i++)
		if (!read_node(v, json_array_get(list, i), err))
			return err_prefix(err, "node %zu", i);
	for (size_t i = 0; i < v->names->nodes.count; i++)
		v->nodes[i].name = BOOK_AT(v->names->nodes, book_node, i)->text;
	return true;
}

/* Nothing is held on a node that changes hands: it is lost to its old owner first. */
static bool
leave_moved(struct inventory *v, struct quota_state *state, struct quota_saved *saved, struct err *err)
{
	bool any = false;

	for (size_t i = 0; i < saved->world.node_count; i++)
		if (moved(v, (int32_t)i)) {
			struct quota_event event = {.kind = QUOTA_NODE_LOST, .node = (int32_t)i};

			any = true;
			if (!book_step_state(v->s, state, &event, err))
				return false;
		}
	if (any) {
		quota_saved_fini(saved);
		quota_save(state, saved);
		v->old = &saved->world;
	}
	return true;
}

bool
book_nodes(struct book_step *s, const json_t *list, struct err *err)
{
	owned(book_names) struct book_names *names = book_names_copy(s->b->names);
	owned(quota) struct quota_state *state = quota_clone(s->b->state);
	struct inventory v = {.s = s, .names = names};
	struct quota_saved saved;
	bool ok;

	if (!json_is_array(list) || json_array_size(list) > MAX_NODES)
		return err_set(err, ERR_INVALID, "a list of at most %u nodes is expected", MAX_NODES);
	quota_save(state, &saved);
	v.old = &saved.world;
	v.cap = saved.world.node_count + json_array_size(list);
	v.nodes = quota_keep(&s->m, v.cap, sizeof(*v.nodes));
	v.gpus = quota_keep(&s->m, v.cap, sizeof(struct quota_gpu *));
	v.given = quota_keep(&s->m, v.cap, sizeof(*v.given));
	ok = read_inventory(&v, list, err) && leave_moved(&v, state, &saved, err);
	if (ok) {
		keep_leases(&v, &saved.world);
		keep_fences(&v, &saved.world);
		saved.world.nodes = v.nodes;
		saved.world.node_count = names->nodes.count;
		book_policy_extend(s, names, &saved.world.policy);
		ok = book_step_anew(s, &saved.world, &names,
		                    &(struct quota_event){.kind = QUOTA_POLICY, .policy = &saved.world.policy}, err);
	}
	quota_saved_fini(&saved);
	return ok;
}

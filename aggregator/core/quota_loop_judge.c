/* aggregator/core/quota_loop_judge.c - the closed loop, rule 1's beginning: each node by itself, so that one whose inventory the book
 * would not take is left out and reported, and the others are told.
 *
 * A node is left out when
 *  1. its name, or the UUID, model or profile of a GPU, is longer than limits.h says
 *  2. it has more than LIMIT_NODE_GPUS GPUs, or a GPU is cut into more kinds than LIMIT_GPU_INSTANCES
 *  3. instances, replicas or units are numbers that no GPU has
 *  4. a profile weighs something else than the book says, or units.h where the book has none, or the first node where neither knows it
 *  5. its part of the event is longer than a node's may be, or there is no room for it
 * A GPU that has not said what it is, because it was lost before, is not there yet; its node is judged without it. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/quantity.h"
#include "aggregator/core/quota_loop_state.h"
#include "common/json.h"

#define NODE_TEXT_MAX (1u << 20)
#define EVENT_TEXT_MAX (QUOTA_EVENT_MAX_BYTES - NODE_TEXT_MAX)
#define FAULT_SIZE 512
#define GPU_TEXT 80u /* of what surrounds its names */
#define SLOT_TEXT 80u

/* What an instance of a profile weighs on a model. */
struct weight {
	const char *model, *profile;
	int64_t units;
};

struct judge {
	struct loop *l;
	struct weight *weights;
	size_t weight_count, weight_cap;
	size_t bytes; /* of the event so far, at most */
	char fault[FAULT_SIZE];
};

static void
judge_fini(struct judge *j)
{
	mem_free(j->weights);
}

static void
add_weight(struct judge *j, const char *model, const char *profile, int64_t units)
{
	if (j->weight_count == j->weight_cap) {
		j->weight_cap = j->weight_cap > 0 ? 2 * j->weight_cap : 16;
		j->weights = mem_grow(j->weights, j->weight_cap, sizeof(*j->weights));
	}
	j->weights[j->weight_count++] = (struct weight){model, profile, units};
}

static void
add_book_weights(struct judge *j)
{
	const struct quota_policy *p = &j->l->w->policy;

	for (size_t i = 0; i < p->shape_count; i++)
		if (p->shapes[i].kind == QUOTA_MIG)
			add_weight(j, p->models[p->shapes[i].model], p->shapes[i].name, p->shapes[i].units);
}

/* Gives false. */
#define FAULT(j, ...) (snprintf((j)->fault, sizeof((j)->fault), __VA_ARGS__), false)

/* Rule 4. */
static bool
judge_weight(struct judge *j, const struct quota_seen_gpu *g, const struct quota_seen_slot *slot)
{
	struct err ignored;
	int64_t units;

	for (size_t i = 0; i < j->weight_count; i++) {
		const struct weight *w = &j->weights[i];

		if (strcmp(w->model, g->model) == 0 && strcmp(w->profile, slot->profile) == 0)
			return w->units == slot->units ||
			       FAULT(j, "GPU %s: an instance of %s weighs %" PRId64 " units, on a %s it is %" PRId64,
			             g->uuid, slot->profile, slot->units, g->model, w->units);
	}
	if (!quantity_profile_units(g->model, slot->profile, &units, &ignored))
		units = slot->units;
	add_weight(j, g->model, slot->profile, units);
	return judge_weight(j, g, slot);
}

/* Rule 3. */
static bool
judge_slot(struct judge *j, const struct quota_seen_gpu *g, const struct quota_seen_slot *slot)
{
	if (strlen(slot->profile) > LIMIT_PROFILE)
		return FAULT(j, "GPU %s: a profile has %zu bytes, the most is %d", g->uuid, strlen(slot->profile),
		             LIMIT_PROFILE);
	if (slot->count < 0 || slot->count > UNITS_PER_GPU)
		return FAULT(j, "GPU %s: it is cut into %" PRId32 " devices, the most is %" PRId64, g->uuid,
		             slot->count, UNITS_PER_GPU);
	if (slot->units < 1 || slot->units > UNITS_PER_GPU)
		return FAULT(j, "GPU %s: a device weighs %" PRId64 " units, it is 1 to %" PRId64, g->uuid, slot->units,
		             UNITS_PER_GPU);
	if (slot->of != 0 && (slot->of < 2 || slot->of > UNITS_PER_GPU))
		return FAULT(j, "GPU %s: it is shared by %" PRId32 " replicas, that is 2 to %" PRId64, g->uuid,
		             slot->of, UNITS_PER_GPU);
	return slot->profile[0] == '\0' || judge_weight(j, g, slot);
}

static bool
judge_gpu(struct judge *j, const struct quota_seen_gpu *g, size_t *bytes)
{
	if (strlen(g->uuid) > LIMIT_GPU_UUID || strlen(g->model) > LIMIT_MODEL)
		return FAULT(j, "GPU %.60s: its UUID has %zu bytes and its model %zu, the most is %d and %d", g->uuid,
		             strlen(g->uuid), strlen(g->model), LIMIT_GPU_UUID, LIMIT_MODEL);
	if (g->slot_count > LIMIT_GPU_INSTANCES)
		return FAULT(j, "GPU %s: it is cut into %zu kinds of devices, the most is %d", g->uuid, g->slot_count,
		             LIMIT_GPU_INSTANCES);
	/* A quotation mark takes two bytes in JSON. */
	*bytes += GPU_TEXT + 2 * (strlen(g->uuid) + strlen(g->model));
	for (size_t i = 0; i < g->slot_count; i++) {
		if (!judge_slot(j, g, &g->slots[i]))
			return false;
		*bytes += SLOT_TEXT + 2 * strlen(g->slots[i].profile);
	}
	return true;
}

static bool
judge_node(struct judge *j, const struct quota_seen_node *n)
{
	size_t bytes = GPU_TEXT + 2 * (strlen(n->name) + strlen(n->cluster) + strlen(n->tenant));

	if (n->name[0] == '\0' || strlen(n->name) > LIMIT_NODE_NAME)
		return FAULT(j, "its name has %zu bytes, it is 1 to %d", strlen(n->name), LIMIT_NODE_NAME);
	if (n->gpu_count > LIMIT_NODE_GPUS)
		return FAULT(j, "it has %zu GPUs, the most is %d", n->gpu_count, LIMIT_NODE_GPUS);
	for (size_t i = 0; i < n->gpu_count; i++)
		if (!judge_gpu(j, &n->gpus[i], &bytes))
			return false;
	if (bytes > NODE_TEXT_MAX)
		return FAULT(j, "what it has takes %zu bytes, the most is %u", bytes, NODE_TEXT_MAX);
	if (j->bytes + bytes > EVENT_TEXT_MAX)
		return FAULT(j, "the inventory of all nodes has no room for it: the most is %u bytes", EVENT_TEXT_MAX);
	j->bytes += bytes;
	return true;
}

/* Without GPUs that have no model yet. */
static void
keep_named_gpus(struct loop *l, struct quota_seen_node *n)
{
	struct quota_seen_gpu *gpus;
	size_t named = 0;

	for (size_t i = 0; i < n->gpu_count; i++)
		named += n->gpus[i].model[0] != '\0';
	if (named == n->gpu_count)
		return;
	gpus = quota_keep(&l->m, named, sizeof(*gpus));
	named = 0;
	for (size_t i = 0; i < n->gpu_count; i++)
		if (n->gpus[i].model[0] != '\0')
			gpus[named++] = n->gpus[i];
	n->gpus = gpus;
	n->gpu_count = named;
}

static void
report(struct loop *l, const struct quota_seen_node *n, const char *fault)
{
	in_place(buf) struct buf detail = {0};

	buf_init(&detail, 2 * FAULT_SIZE + 4u * LIMIT_NODE_NAME + 64);
	buf_str(&detail, "\"node\":");
	json_write_string(n->name, &detail);
	buf_str(&detail, ",\"why\":");
	json_write_string(fault, &detail);
	loop_anomaly(l, "inventory", n->name, n->tenant, &detail);
}

void
loop_judge(struct loop *l)
{
	in_place(judge) struct judge j = {.l = l};
	struct quota_seen_node *nodes = quota_keep(&l->m, l->in->node_count, sizeof(*nodes));

	add_book_weights(&j);
	for (size_t i = 0; i < l->in->node_count; i++) {
		size_t known = j.weight_count;

		nodes[i] = l->in->nodes[i];
		keep_named_gpus(l, &nodes[i]);
		if (judge_node(&j, &nodes[i]))
			continue;
		report(l, &nodes[i], j.fault);
		/* What a node that is left out said of weights binds nobody. */
		j.weight_count = known;
		nodes[i].gpus = NULL;
		nodes[i].gpu_count = 0;
	}
	l->judged = *l->in;
	l->judged.nodes = nodes;
	l->in = &l->judged;
}

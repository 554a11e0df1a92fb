/* aggregator/core/quota/loop/quota_loop_nodes.c - the closed loop, rule 1: the inventory, lost nodes and GPUs, and how GPUs are partitioned.
 *
 * First each node is judged by itself, so that one whose inventory the book
 * would refuse is left out and reported, and the others are passed on.
 *
 * A node is left out when
 *  1. its name, or the UUID, model or profile of a GPU, is longer than limits.h says
 *  2. it has more than LIMIT_NODE_GPUS GPUs, or a GPU is cut into more kinds than LIMIT_GPU_INSTANCES
 *  3. instances, replicas or units are numbers that no GPU has, or a profile's name has the mark of rule 7
 *  4. a profile that units.h knows weighs something else than the book says, or units.h where the book has none
 *  5. a profile that units.h does not know weighs something else than most nodes of the pool say: those with the same cluster, owner and
 *     model. Among equal numbers of nodes the weight of the book wins, then the smallest, which promises no device twice. Nodes of other
 *     pools have no vote
 *  6. its part of the event is longer than a node's may be, or there is no room for it
 * The book has one weight for each name, the first that it got, and no pool must lose its GPUs by that:
 *  7. a profile that units.h does not know is called PROFILE@UNITS in the book and in requests, where PROFILE has another weight in the book, or
 *     gets one now: the weight of most pools, then of most nodes, then the smallest
 * A GPU whose partitioning is unknown, because it was lost before, is not there yet; its node is judged without it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/quota/loop/quota_loop_state.h"
#include "common/base/text.h"
#include "common/conf/json.h"

/* ---- each node by itself --------------------------------------------------------------------------------------------------- */

#define NODE_TEXT_MAX (1u << 20)
#define EVENT_TEXT_MAX (QUOTA_EVENT_MAX_BYTES - NODE_TEXT_MAX)
#define FAULT_SIZE 512
#define GPU_TEXT 80u  /* beside its names */
#define SLOT_TEXT 80u /* the mark and units behind a profile's name among it */

#define UNITS_MARK '@'

/* A profile on a model, and the units of an instance; 0: not known. */
struct kind {
	const char *model, *profile;
	int64_t book_units, table_units;
};

/* Of rule 5: the units by a node, and then by its pool. */
struct vote {
	struct kind *kind;
	const struct quota_seen_node *node;
	int64_t units;
	size_t nodes; /* of the pool that say so */
};

struct judge {
	struct loop *l;
	struct kind *kinds; /* a table with open addressing */
	size_t kind_count, kind_cap;
	struct vote *votes; /* once they are counted, one for each kind and pool, sorted */
	size_t vote_count, vote_cap;
	size_t bytes; /* of the event so far, at most */
	char fault[FAULT_SIZE];
};

static void
judge_fini(struct judge *j)
{
	mem_free(j->kinds);
	mem_free(j->votes);
}

/* ---- kinds ---------------------------------------------------------------------------------------------------------------- */

static struct kind *
kind_slot(const struct judge *j, const char *model, const char *profile)
{
	size_t mask = j->kind_cap - 1, at = (text_hash(model) * 31 + text_hash(profile)) & mask;

	while (j->kinds[at].model &&
	       (strcmp(j->kinds[at].model, model) != 0 || strcmp(j->kinds[at].profile, profile) != 0))
		at = (at + 1) & mask;
	return &j->kinds[at];
}

/* Before there are votes, which point into the table, it holds all kinds that there are. */
static void
add_kind(struct judge *j, const char *model, const char *profile, int64_t book_units)
{
	struct kind *k, *old = j->kinds;
	size_t cap = j->kind_cap;
	struct err ignored;

	if (2 * (j->kind_count + 1) > cap) {
		j->kind_cap = cap > 0 ? 2 * cap : 64;
		j->kinds = mem_array(j->kind_cap, sizeof(*j->kinds));
		for (size_t i = 0; i < cap; i++)
			if (old[i].model)
				*kind_slot(j, old[i].model, old[i].profile) = old[i];
		mem_free(old);
	}
	k = kind_slot(j, model, profile);
	if (k->model)
		return;
	*k = (struct kind){.model = model, .profile = profile, .book_units = book_units};
	if (!quantity_profile_units(model, profile, &k->table_units, &ignored))
		k->table_units = 0;
	j->kind_count++;
}

static void
add_book_kinds(struct judge *j)
{
	const struct quota_policy *p = &j->l->w->policy;

	for (size_t i = 0; i < p->shape_count; i++)
		if (p->shapes[i].kind == QUOTA_MIG)
			add_kind(j, p->models[p->shapes[i].model], p->shapes[i].name, p->shapes[i].units);
}

/* ---- units by pool, rules 5 and 7 ------------------------------------------------------------------------------------------- */

static int
compare_pools(const struct vote *a, const struct vote *b)
{
	int order = strcmp(a->kind->model, b->kind->model);

	if (order == 0)
		order = strcmp(a->kind->profile, b->kind->profile);
	if (order == 0)
		order = strcmp(a->node->cluster, b->node->cluster);
	return order != 0 ? order : strcmp(a->node->tenant, b->node->tenant);
}

static int
compare_votes(const void *a_, const void *b_)
{
	const struct vote *a = a_, *b = b_;
	int order = compare_pools(a, b);

	if (order == 0)
		order = (a->units > b->units) - (a->units < b->units);
	return order != 0 ? order : (a->node > b->node) - (a->node < b->node);
}

static int
compare_pools_of(const void *a, const void *b)
{
	return compare_pools(a, b);
}

/* Nodes that rule 2 leaves out have no vote. */
static size_t
gpus_that_vote(const struct quota_seen_node *n)
{
	return n->gpu_count <= LIMIT_NODE_GPUS ? n->gpu_count : 0;
}

static size_t
slots_that_vote(const struct quota_seen_gpu *g)
{
	return g->slot_count <= LIMIT_GPU_INSTANCES ? g->slot_count : 0;
}

static void
add_votes(struct judge *j, const struct quota_seen_node *n, const struct quota_seen_gpu *g)
{
	for (size_t i = 0; i < slots_that_vote(g); i++) {
		const struct quota_seen_slot *slot = &g->slots[i];
		struct kind *k;

		if (slot->profile[0] == '\0' || slot->units < 1 || slot->units > UNITS_PER_GPU)
			continue;
		k = kind_slot(j, g->model, slot->profile);
		if (k->table_units != 0)
			continue;
		array_room(j->votes, j->vote_count, j->vote_cap);
		j->votes[j->vote_count++] = (struct vote){.kind = k, .node = n, .units = slot->units};
	}
}

/* Rule 5: the votes of one pool from here on; gives how many they are. */
static size_t
count_pool(const struct vote *votes, size_t count, struct vote *ret)
{
	int64_t book = votes[0].kind->book_units;
	struct vote said = {0};
	size_t i = 0;

	*ret = votes[0];
	for (; i < count && compare_pools(&votes[i], &votes[0]) == 0; i++) {
		bool same = i > 0 && votes[i].units == votes[i - 1].units;

		if (!same)
			said = (struct vote){.kind = votes[i].kind, .node = votes[i].node, .units = votes[i].units};
		said.nodes += !same || votes[i].node != votes[i - 1].node;
		if (said.nodes > ret->nodes || (said.nodes == ret->nodes && said.units == book))
			*ret = said;
	}
	return i;
}

/* Rule 7, of a kind that the book does not have: the weight that its name gets. */
static int64_t
named_weight(const struct vote *pools, size_t count)
{
	size_t most_pools = 0, most_nodes = 0;
	int64_t units = 0;

	for (size_t i = 0; i < count; i++) {
		size_t same = 0, nodes = 0;

		for (size_t k = 0; k < count; k++) {
			same += pools[k].units == pools[i].units;
			nodes += pools[k].units == pools[i].units ? pools[k].nodes : 0;
		}
		if (same > most_pools || (same == most_pools && nodes > most_nodes) ||
		    (same == most_pools && nodes == most_nodes && pools[i].units < units)) {
			most_pools = same;
			most_nodes = nodes;
			units = pools[i].units;
		}
	}
	return units;
}

static void
count_votes(struct judge *j)
{
	size_t pools = 0;

	if (j->vote_count == 0)
		return;
	qsort(j->votes, j->vote_count, sizeof(*j->votes), compare_votes);
	for (size_t i = 0; i < j->vote_count; pools++) {
		struct vote said;

		i += count_pool(&j->votes[i], j->vote_count - i, &said);
		j->votes[pools] = said;
	}
	j->vote_count = pools;
	for (size_t i = 0, n; i < pools; i += n) {
		for (n = 1; i + n < pools && j->votes[i + n].kind == j->votes[i].kind; n++)
			;
		if (j->votes[i].kind->book_units == 0)
			j->votes[i].kind->book_units = named_weight(&j->votes[i], n);
	}
}

/* Gives false. */
#define FAULT(j, ...) (snprintf((j)->fault, sizeof((j)->fault), __VA_ARGS__), false)

/* Rules 4 and 5. */
static bool
judge_weight(struct judge *j, const struct quota_seen_node *n, const struct quota_seen_gpu *g,
             const struct quota_seen_slot *slot)
{
	const struct kind *k = kind_slot(j, g->model, slot->profile);
	struct vote key = {.kind = kind_slot(j, g->model, slot->profile), .node = n};
	const struct vote *said;
	int64_t units = k->book_units ? k->book_units : k->table_units;

	if (k->table_units != 0)
		return slot->units == units ||
		       FAULT(j, "GPU %s: an instance of %s weighs %" PRId64 " units, on a %s it is %" PRId64, g->uuid,
		             slot->profile, slot->units, g->model, units);
	said = bsearch(&key, j->votes, j->vote_count, sizeof(*j->votes), compare_pools_of);
	ASSERT(said != NULL); /* its own vote at least */
	return slot->units == said->units ||
	       FAULT(j, "GPU %s: an instance of %s weighs %" PRId64 " units, most of its pool say %" PRId64, g->uuid,
	             slot->profile, slot->units, said->units);
}

/* Rule 3. */
static bool
judge_slot(struct judge *j, const struct quota_seen_node *n, const struct quota_seen_gpu *g,
           const struct quota_seen_slot *slot)
{
	if (strlen(slot->profile) > LIMIT_PROFILE)
		return FAULT(j, "GPU %s: a profile has %zu bytes, the most is %d", g->uuid, strlen(slot->profile),
		             LIMIT_PROFILE);
	if (strchr(slot->profile, UNITS_MARK))
		return FAULT(j, "GPU %s: the name of profile %s has a '%c'", g->uuid, slot->profile, UNITS_MARK);
	if (slot->count < 0 || slot->count > UNITS_PER_GPU)
		return FAULT(j, "GPU %s: it is cut into %" PRId32 " devices, the most is %" PRId64, g->uuid,
		             slot->count, UNITS_PER_GPU);
	if (slot->units < 1 || slot->units > UNITS_PER_GPU)
		return FAULT(j, "GPU %s: a device weighs %" PRId64 " units, it is 1 to %" PRId64, g->uuid, slot->units,
		             UNITS_PER_GPU);
	if (slot->of != 0 && (slot->of < 2 || slot->of > UNITS_PER_GPU))
		return FAULT(j, "GPU %s: it is shared by %" PRId32 " replicas, that is 2 to %" PRId64, g->uuid,
		             slot->of, UNITS_PER_GPU);
	return slot->profile[0] == '\0' || judge_weight(j, n, g, slot);
}

static bool
judge_gpu(struct judge *j, const struct quota_seen_node *n, const struct quota_seen_gpu *g, size_t *bytes)
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
		if (!judge_slot(j, n, g, &g->slots[i]))
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
		if (!judge_gpu(j, n, &n->gpus[i], &bytes))
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

/* Rule 7. */
static void
name_by_weight(struct judge *j, struct quota_seen_node *n)
{
	struct quota_seen_gpu *gpus = NULL;

	for (size_t i = 0; i < n->gpu_count; i++) {
		const struct quota_seen_gpu *g = &n->gpus[i];
		struct quota_seen_slot *slots = NULL;

		for (size_t s = 0; s < g->slot_count; s++) {
			const struct kind *k = kind_slot(j, g->model, g->slots[s].profile);
			char name[QUOTA_NAME_SIZE];

			if (g->slots[s].profile[0] == '\0' || k->table_units != 0 || k->book_units == g->slots[s].units)
				continue;
			if (!slots) {
				slots = quota_keep(&j->l->m, g->slot_count, sizeof(*slots));
				memcpy(slots, g->slots, g->slot_count * sizeof(*slots));
			}
			snprintf(name, sizeof(name), "%s%c%" PRId64, g->slots[s].profile, UNITS_MARK,
			         g->slots[s].units);
			slots[s].profile = quota_keep_text(&j->l->m, name);
		}
		if (!slots)
			continue;
		if (!gpus) {
			gpus = quota_keep(&j->l->m, n->gpu_count, sizeof(*gpus));
			memcpy(gpus, n->gpus, n->gpu_count * sizeof(*gpus));
		}
		gpus[i].slots = slots;
	}
	if (gpus)
		n->gpus = gpus;
}

bool
loop_is_profile(const char *shape, const char *profile)
{
	size_t n = strlen(profile);

	return strncmp(shape, profile, n) == 0 && (shape[n] == '\0' || shape[n] == UNITS_MARK);
}

void
loop_judge(struct loop *l)
{
	in_place(judge) struct judge j = {.l = l};
	struct quota_seen_node *nodes = quota_keep(&l->m, l->in->node_count, sizeof(*nodes));

	add_kind(&j, "", "", 0); /* so that there is a table */
	add_book_kinds(&j);
	for (size_t i = 0; i < l->in->node_count; i++) {
		nodes[i] = l->in->nodes[i];
		keep_named_gpus(l, &nodes[i]);
		for (size_t g = 0; g < gpus_that_vote(&nodes[i]); g++)
			for (size_t s = 0; s < slots_that_vote(&nodes[i].gpus[g]); s++)
				add_kind(&j, nodes[i].gpus[g].model, nodes[i].gpus[g].slots[s].profile, 0);
	}
	for (size_t i = 0; i < l->in->node_count; i++)
		for (size_t g = 0; g < gpus_that_vote(&nodes[i]); g++)
			add_votes(&j, &nodes[i], &nodes[i].gpus[g]);
	count_votes(&j);
	for (size_t i = 0; i < l->in->node_count; i++) {
		if (judge_node(&j, &nodes[i])) {
			name_by_weight(&j, &nodes[i]);
			continue;
		}
		report(l, &nodes[i], j.fault);
		nodes[i].gpus = NULL;
		nodes[i].gpu_count = 0;
	}
	l->judged = *l->in;
	l->judged.nodes = nodes;
	l->in = &l->judged;
}

/* ---- the inventory --------------------------------------------------------------------------------------------------------- */

#define TEXT_BYTES QUOTA_EVENT_MAX_BYTES

/* ---- the inventory of the book -------------------------------------------------------------------------------------------------- */

static bool
has_devices(const struct quota_gpu *g)
{
	for (size_t i = 0; i < g->slot_count; i++)
		if (g->slots[i].count > 0)
			return true;
	return false;
}

static const struct quota_seen_gpu *
seen_gpu(const struct quota_seen_node *n, const char *uuid)
{
	for (size_t i = 0; i < n->gpu_count; i++)
		if (strcmp(n->gpus[i].uuid, uuid) == 0)
			return &n->gpus[i];
	return NULL;
}

static bool
is_slot(const struct quota_shape *shape, const struct quota_seen_slot *slot)
{
	char replica[24];

	if (slot->profile[0] != '\0')
		return shape->kind == QUOTA_MIG && strcmp(shape->name, slot->profile) == 0;
	if (slot->of == 0)
		return shape->kind == QUOTA_WHOLE;
	snprintf(replica, sizeof(replica), "1/%" PRId32, slot->of);
	return shape->kind == QUOTA_REPLICA && strcmp(shape->name, replica) == 0;
}

static bool
same_cut(const struct loop *l, const struct quota_gpu *g, const struct quota_seen_gpu *seen)
{
	size_t there = 0, wanted = 0;

	for (size_t i = 0; i < g->slot_count; i++)
		there += g->slots[i].count > 0;
	for (size_t i = 0; i < seen->slot_count; i++) {
		bool found = seen->slots[i].count == 0;

		wanted += seen->slots[i].count > 0;
		for (size_t k = 0; k < g->slot_count && !found; k++)
			found = g->slots[k].count == seen->slots[i].count &&
			        is_slot(&l->w->policy.shapes[g->slots[k].shape], &seen->slots[i]);
		if (!found)
			return false;
	}
	return there == wanted;
}

/* ---- whether the inventory is another ----------------------------------------------------------------------------------- */

static size_t
declared_of(const struct loop *l, int32_t node)
{
	const struct quota_node *n = &l->w->nodes[node];
	size_t count = 0;

	for (size_t i = 0; i < n->gpu_count; i++)
		count += quota_book_gpu_uuid(l->b, node, (int32_t)i)[0] == '\0' && has_devices(&n->gpus[i]);
	return count;
}

static bool
same_node(const struct loop *l, int32_t node, const struct quota_seen_node *seen)
{
	const struct quota_node *n = &l->w->nodes[node];
	const char *tenant = n->tenant == QUOTA_NONE ? "" : l->w->policy.tenants[n->tenant].name;
	size_t declared = 0;

	if (seen->gpu_count > 0 &&
	    (strcmp(tenant, seen->tenant) != 0 || strcmp(l->w->policy.clusters[n->cluster], seen->cluster) != 0))
		return false;
	for (size_t i = 0; i < seen->gpu_count; i++) {
		const struct quota_seen_gpu *g = &seen->gpus[i];
		int32_t at = g->uuid[0] == '\0' ? QUOTA_NONE : quota_book_gpu(l->b, node, g->uuid);

		declared += g->uuid[0] == '\0';
		if (g->uuid[0] == '\0')
			continue;
		if (at == QUOTA_NONE || n->gpus[at].slot_count == 0 || (!g->known && !has_devices(&n->gpus[at])) ||
		    strcmp(l->w->policy.models[l->w->policy.shapes[n->gpus[at].slots[0].shape].model], g->model) != 0)
			return false;
	}
	for (size_t i = 0; i < n->gpu_count; i++) {
		const char *uuid = quota_book_gpu_uuid(l->b, node, (int32_t)i);

		if (uuid[0] != '\0' && has_devices(&n->gpus[i]) && !seen_gpu(seen, uuid))
			return false;
	}
	return declared == declared_of(l, node);
}

static bool
same_inventory(const struct loop *l)
{
	static const struct quota_seen_node nothing = {.name = "", .cluster = "", .tenant = ""};

	for (size_t i = 0; i < l->in->node_count; i++)
		if (l->book_of[i] == QUOTA_NONE && l->in->nodes[i].gpu_count > 0)
			return false;
	for (size_t i = 0; i < l->w->node_count; i++)
		if (!same_node(l, (int32_t)i, l->seen_of[i] == QUOTA_NONE ? &nothing : &l->in->nodes[l->seen_of[i]]))
			return false;
	return true;
}

/* ---- texts ---------------------------------------------------------------------------------------------------------------- */

static void
write_slots(const struct quota_seen_slot *slots, size_t count, struct buf *out)
{
	buf_str(out, "\"slots\":[");
	for (size_t i = 0; i < count; i++) {
		buf_printf(out, "%s{\"count\":%" PRId32, i > 0 ? "," : "", slots[i].count);
		if (slots[i].profile[0] != '\0') {
			buf_str(out, ",\"profile\":");
			json_write_string(slots[i].profile, out);
			buf_printf(out, ",\"units\":%" PRId64, slots[i].units);
		} else if (slots[i].of > 0) {
			buf_printf(out, ",\"of\":%" PRId32, slots[i].of);
		}
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

/* Its partitioning when its node last reported it. */
static bool
write_known_slots(const struct loop *l, int32_t node, const char *uuid, struct buf *out)
{
	int32_t at = node == QUOTA_NONE || uuid[0] == '\0' ? QUOTA_NONE : quota_book_gpu(l->b, node, uuid);
	const struct quota_gpu *g = at == QUOTA_NONE ? NULL : &l->w->nodes[node].gpus[at];
	bool any = false;

	if (!g || !has_devices(g))
		return false;
	buf_str(out, "\"slots\":[");
	for (size_t i = 0; i < g->slot_count; i++) {
		const struct quota_shape *shape = &l->w->policy.shapes[g->slots[i].shape];

		if (g->slots[i].count == 0)
			continue;
		buf_printf(out, "%s{\"count\":%" PRId32, any ? "," : "", g->slots[i].count);
		any = true;
		if (shape->kind == QUOTA_MIG) {
			buf_str(out, ",\"profile\":");
			json_write_string(shape->name, out);
			buf_printf(out, ",\"units\":%" PRId64, shape->units);
		} else if (shape->kind == QUOTA_REPLICA) {
			buf_printf(out, ",\"of\":%s", shape->name + 2);
		}
		buf_char(out, '}');
	}
	buf_char(out, ']');
	return true;
}

static bool
is_lost(const struct quota_seen_node *n)
{
	return n->silent || n->maintenance;
}

static void
write_gpu(const struct loop *l, int32_t node, const struct quota_seen_gpu *g, struct buf *out)
{
	buf_str(out, "{\"model\":");
	json_write_string(g->model, out);
	if (g->uuid[0] != '\0') {
		buf_str(out, ",\"uuid\":");
		json_write_string(g->uuid, out);
	}
	if (g->lost)
		buf_str(out, ",\"lost\":true");
	if (g->known || g->uuid[0] == '\0') {
		buf_char(out, ',');
		write_slots(g->slots, g->slot_count, out);
	} else {
		in_place(buf) struct buf slots = {0};

		buf_init(&slots, TEXT_BYTES);
		if (write_known_slots(l, node, g->uuid, &slots))
			buf_printf(out, ",%s", buf_text(&slots));
	}
	buf_char(out, '}');
}

static void
emit_inventory(struct loop *l, struct buf *out)
{
	bool any = false;

	buf_str(out, "{\"nodes\":[");
	for (size_t i = 0; i < l->in->node_count; i++) {
		const struct quota_seen_node *n = &l->in->nodes[i];

		if (n->gpu_count == 0)
			continue;
		buf_str(out, any ? ",{\"name\":" : "{\"name\":");
		any = true;
		json_write_string(n->name, out);
		buf_str(out, ",\"cluster\":");
		json_write_string(n->cluster, out);
		if (n->tenant[0] != '\0') {
			buf_str(out, ",\"tenant\":");
			json_write_string(n->tenant, out);
		}
		if (is_lost(n))
			buf_str(out, ",\"lost\":true");
		buf_str(out, ",\"gpus\":[");
		for (size_t g = 0; g < n->gpu_count; g++) {
			if (g > 0)
				buf_char(out, ',');
			write_gpu(l, l->book_of[i], &n->gpus[g], out);
		}
		buf_str(out, "]}");
	}
	buf_str(out, "]}");
	loop_event(l, "telemetry", out);
}

/* ---- losses and layouts ----------------------------------------------------------------------------------------------------- */

static void
emit_nodes(struct loop *l, const char *event, bool lost, struct buf *out)
{
	bool any = false;

	buf_clear(out);
	buf_printf(out, "{\"%s\":[", event);
	for (size_t i = 0; i < l->in->node_count; i++) {
		int32_t node = l->book_of[i];

		if (node == QUOTA_NONE || l->w->nodes[node].lost == lost || is_lost(&l->in->nodes[i]) != lost)
			continue;
		if (any)
			buf_char(out, ',');
		json_write_string(l->in->nodes[i].name, out);
		any = true;
	}
	buf_str(out, "]}");
	if (any)
		loop_event(l, "telemetry", out);
}

static void
emit_gpu(struct loop *l, const char *event, const char *node, const char *uuid, const struct quota_seen_gpu *cut,
         struct buf *out)
{
	buf_clear(out);
	buf_printf(out, "{\"%s\":{\"node\":", event);
	json_write_string(node, out);
	buf_str(out, ",\"gpu\":");
	json_write_string(uuid, out);
	if (cut) {
		buf_str(out, ",\"model\":");
		json_write_string(cut->model, out);
		buf_char(out, ',');
		write_slots(cut->slots, cut->slot_count, out);
	}
	buf_str(out, "}}");
	loop_event(l, "telemetry", out);
}

/* GPUs of a silent node are not looked at: it is lost as a whole. */
static void
emit_gpus(struct loop *l, struct buf *out)
{
	for (size_t i = 0; i < l->in->node_count; i++) {
		const struct quota_seen_node *n = &l->in->nodes[i];
		int32_t node = l->book_of[i];

		for (size_t g = 0; node != QUOTA_NONE && !n->silent && g < n->gpu_count; g++) {
			const struct quota_seen_gpu *s = &n->gpus[g];
			int32_t at = s->uuid[0] == '\0' ? QUOTA_NONE : quota_book_gpu(l->b, node, s->uuid);
			const struct quota_gpu *had = at == QUOTA_NONE ? NULL : &l->w->nodes[node].gpus[at];

			if (had && s->known && !same_cut(l, had, s))
				emit_gpu(l, "layout", n->name, s->uuid, s, out);
			if (had && had->lost != s->lost)
				emit_gpu(l, s->lost ? "gpu_lost" : "gpu_back", n->name, s->uuid, NULL, out);
		}
	}
}

void
loop_inventory(struct loop *l)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, TEXT_BYTES);
	if (!same_inventory(l)) {
		emit_inventory(l, &text);
		return;
	}
	emit_nodes(l, "node_lost", true, &text);
	emit_gpus(l, &text);
	emit_nodes(l, "node_back", false, &text);
}

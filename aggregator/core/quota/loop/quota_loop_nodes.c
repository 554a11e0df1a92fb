/* aggregator/core/quota/loop/quota_loop_nodes.c - the closed loop, rule 1: what there is, what is lost, and how it is cut. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"
#include "common/conf/json.h"

#define TEXT_BYTES QUOTA_EVENT_MAX_BYTES

/* ---- what the book has -------------------------------------------------------------------------------------------------- */

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

/* What it was cut into when its node last spoke of it. */
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
tell_inventory(struct loop *l, struct buf *out)
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
tell_nodes(struct loop *l, const char *event, bool lost, struct buf *out)
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
tell_gpu(struct loop *l, const char *event, const char *node, const char *uuid, const struct quota_seen_gpu *cut,
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

/* What a silent node has is not asked: it is lost as a whole. */
static void
tell_gpus(struct loop *l, struct buf *out)
{
	for (size_t i = 0; i < l->in->node_count; i++) {
		const struct quota_seen_node *n = &l->in->nodes[i];
		int32_t node = l->book_of[i];

		for (size_t g = 0; node != QUOTA_NONE && !n->silent && g < n->gpu_count; g++) {
			const struct quota_seen_gpu *s = &n->gpus[g];
			int32_t at = s->uuid[0] == '\0' ? QUOTA_NONE : quota_book_gpu(l->b, node, s->uuid);
			const struct quota_gpu *had = at == QUOTA_NONE ? NULL : &l->w->nodes[node].gpus[at];

			if (had && s->known && !same_cut(l, had, s))
				tell_gpu(l, "layout", n->name, s->uuid, s, out);
			if (had && had->lost != s->lost)
				tell_gpu(l, s->lost ? "gpu_lost" : "gpu_back", n->name, s->uuid, NULL, out);
		}
	}
}

void
loop_inventory(struct loop *l)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, TEXT_BYTES);
	if (!same_inventory(l)) {
		tell_inventory(l, &text);
		return;
	}
	tell_nodes(l, "node_lost", true, &text);
	tell_gpus(l, &text);
	tell_nodes(l, "node_back", false, &text);
}

/* aggregator/core/quota/engine/quota_device.c - what a GPU is cut into, and which devices are meant by a node, a GPU and a shape. */
#include "aggregator/core/quota/engine/quota_load.h"

bool
quota_slots_ok(const struct quota_state *s, const struct quota_slots *slots, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!quota_index_ok(slots[i].shape, s->shapes.count) || slots[i].count < 0 ||
		    slots[i].count > QUOTA_MAX_COUNT ||
		    s->shapes.at[slots[i].shape].in.model != s->shapes.at[slots[0].shape].in.model)
			return false;
	}
	return true;
}

/* Groups of a GPU stay where they are, with what is on them; shapes that are gone have none left. */
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

	if (!quota_index_ok(node, s->nodes.count) || !quota_index_ok(gpu, (size_t)s->nodes.at[node].gpu_count))
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

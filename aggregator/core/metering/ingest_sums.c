/* aggregator/core/metering/ingest_sums.c - the records of a push, summed by workspace, class of device and state. */
#include "aggregator/core/metering/ingest_sums.h"

#include <string.h>

const char *
usage_state_name(enum usage_state s)
{
	static const char *const names[USAGE_STATES] = {
		[USAGE_USED] = "used",
		[USAGE_IDLE] = "idle",
		[USAGE_UNMEASURED] = "unmeasured",
		[USAGE_UNALLOCATED] = "unallocated",
		[USAGE_STRANDED] = "stranded",
		[USAGE_DOWN] = "down",
		[USAGE_UNKNOWN] = "unknown",
	};

	return names[s];
}

void
device_classes_fini(struct device_classes *c)
{
	for (size_t i = 0; i < c->count; i++) {
		mem_free(c->at[i].cluster);
		mem_free(c->at[i].gpu_model);
		mem_free(c->at[i].profile);
	}
	mem_free(c->at);
	*c = (struct device_classes){0};
}

int32_t
device_classes_find(struct device_classes *c, const char *cluster, const char *gpu_model, const char *profile)
{
	for (size_t i = 0; i < c->count; i++)
		if (strcmp(c->at[i].gpu_model, gpu_model) == 0 && strcmp(c->at[i].profile, profile) == 0 &&
		    strcmp(c->at[i].cluster, cluster) == 0)
			return (int32_t)i;
	ASSERT(c->count < INT32_MAX);
	c->at = mem_grow(c->at, c->count + 1, sizeof(*c->at));
	c->at[c->count] = (struct device_class){.cluster = mem_strdup(cluster),
	                                        .gpu_model = mem_strdup(gpu_model),
	                                        .profile = mem_strdup(profile)};
	return (int32_t)c->count++;
}

void
ingest_sums_fini(struct ingest_sums *s)
{
	device_classes_fini(&s->classes);
	mem_free(s->at);
	hash_fini(&s->where);
	*s = (struct ingest_sums){0};
}

static void
add(struct ingest_sums *s, int32_t workspace_id, int32_t device_class, enum usage_state state, int128 unit_ns,
    int64_t energy_mj)
{
	uint64_t key =
		((uint64_t)(uint32_t)workspace_id << 32) + (uint64_t)(uint32_t)device_class * USAGE_STATES + state;
	size_t i;

	if (unit_ns == 0 && energy_mj == 0)
		return;
	if (!hash_find(&s->where, key, &i)) {
		array_room(s->at, s->count, s->cap);
		i = s->count++;
		s->at[i] =
			(struct ingest_sum){.workspace_id = workspace_id, .device_class = device_class, .state = state};
		hash_put(&s->where, key, i);
	}
	s->at[i].unit_ns += unit_ns;
	s->at[i].energy_mj += energy_mj;
}

void
ingest_sums_add(struct ingest_sums *s, int32_t workspace_id, int32_t device_class, const struct wire_record *r)
{
	static const enum usage_state unheld[] = {[WIRE_UNALLOCATED] = USAGE_UNALLOCATED,
	                                          [WIRE_STRANDED] = USAGE_STRANDED,
	                                          [WIRE_DOWN] = USAGE_DOWN,
	                                          [WIRE_UNKNOWN] = USAGE_UNKNOWN};
	int128 units = r->units;

	if (r->state != WIRE_HELD) {
		add(s, 0, device_class, unheld[r->state], units * r->held_ns, r->energy_mj);
		return;
	}
	add(s, workspace_id, device_class, USAGE_USED, units * r->used_ns, r->energy_mj);
	add(s, workspace_id, device_class, USAGE_UNMEASURED, units * r->unmeasured_ns, 0);
	add(s, workspace_id, device_class, USAGE_IDLE, units * (r->held_ns - r->used_ns - r->unmeasured_ns), 0);
}

/* aggregator/core/metering/usage_series.c - counters of accepted usage, a bounded number of series. */
#include "aggregator/core/metering/usage_series.h"

#include <string.h>

#define REMEMBERED_MAX 1000000u /* of the rest */

void
usage_table_init(struct usage_table *t, size_t max)
{
	*t = (struct usage_table){.max = max};
}

void
usage_table_fini(struct usage_table *t)
{
	for (size_t i = 0; i < t->count; i++) {
		mem_free(t->at[i].cluster);
		mem_free(t->at[i].gpu_model);
		mem_free(t->at[i].profile);
	}
	mem_free(t->at);
	hash_fini(&t->where);
	hash_fini(&t->beyond);
}

static uint64_t
hash_of(int32_t workspace_id, unsigned kind, const struct device_class *c)
{
	uint64_t hash = hash_number(HASH_START, (uint64_t)(uint32_t)workspace_id << 32 | kind);

	return hash_text(hash_text(hash_text(hash, c->cluster), c->gpu_model), c->profile);
}

static bool
is_of(const struct usage_series *s, int32_t workspace_id, unsigned kind, const struct device_class *c)
{
	return s->workspace_id == workspace_id && s->kind == kind && strcmp(s->cluster, c->cluster) == 0 &&
	       strcmp(s->gpu_model, c->gpu_model) == 0 && strcmp(s->profile, c->profile) == 0;
}

static struct usage_series *
add_series(struct usage_table *t, int32_t workspace_id, unsigned kind, const struct device_class *c)
{
	array_room_by_count(t->at, t->count);
	t->at[t->count] = (struct usage_series){.workspace_id = workspace_id,
	                                        .kind = kind,
	                                        .cluster = mem_strdup(c->cluster),
	                                        .gpu_model = mem_strdup(c->gpu_model),
	                                        .profile = mem_strdup(c->profile)};
	return &t->at[t->count++];
}

/* Where an amount is counted. */
static int128 *
place_of(struct usage_table *t, int32_t workspace_id, unsigned kind, const struct device_class *c)
{
	uint64_t key = hash_of(workspace_id, kind, c);
	size_t at, slot;

	for (at = hash_first(&t->where, key, &slot); at != HASH_NONE; at = hash_next(&t->where, key, &slot))
		if (is_of(&t->at[at], workspace_id, kind, c))
			return &t->at[at].amount;
	if (t->count < t->max) {
		hash_add(&t->where, key, t->count);
		return &add_series(t, workspace_id, kind, c)->amount;
	}
	if (t->beyond.count < REMEMBERED_MAX)
		hash_put(&t->beyond, key, 0);
	return &t->rest[kind];
}

void
usage_table_add(struct usage_table *t, const struct ingest_sums *sums)
{
	for (size_t i = 0; i < sums->count; i++) {
		const struct ingest_sum *s = &sums->at[i];
		const struct device_class *c = &sums->classes.at[s->device_class];

		if (s->unit_ns > 0)
			*place_of(t, s->workspace_id, s->state, c) += s->unit_ns;
		if (s->energy_mj > 0)
			*place_of(t, s->workspace_id, SERIES_ENERGY, c) += s->energy_mj;
	}
}

size_t
usage_table_left_out(const struct usage_table *t)
{
	return t->beyond.count;
}

/* tests/support/dcgmsim/dcgmsim_value.c - samples of what is watched, and values: what happened between the last two. */
#include "tests/support/dcgmsim/dcgmsim.h"

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"

#define STAMP0_US INT64_C(1700000000000000)
#define BYTES_PER_PPM 4096 /* so that a busy GPU moves 4 GB each second */

/* What is not scripted is a fixed part of the time in which a kernel ran, as in the NVML simulator. */
static const struct {
	int key; /* enum sim_key; -1: never scripted */
	int64_t of_hundred;
} shares[] = {
	{KEY_ENGINE_ACTIVE_PPM, 100},
	{KEY_SM_ACTIVE_PPM, 90},
	{KEY_SM_OCCUPANCY_PPM, 50},
	{KEY_TENSOR_ACTIVE_PPM, 60},
	{KEY_DRAM_ACTIVE_PPM, 40},
	{-1, 10},
	{-1, 30},
	{-1, 20},
};

/* ---- samples -------------------------------------------------------------------------------------------------------- */

static struct sim_sample *
find_sample(struct dcgm_pair pair)
{
	for (size_t i = 0; i < dsim.sample_count; i++)
		if (dsim.samples[i].pair.group == pair.group && dsim.samples[i].pair.id == pair.id)
			return &dsim.samples[i];
	return NULL;
}

static void
follow_group(const struct sim_group *g, uint32_t fields)
{
	for (size_t i = 0; i < g->count; i++) {
		struct sim_sample *s = find_sample(g->entities[i]);
		struct sim_entity e;

		if (!s && dsim.sample_count < SIM_SAMPLES_MAX && dsim_find(g->entities[i], &e)) {
			s = &dsim.samples[dsim.sample_count++];
			*s = (struct sim_sample){.pair = g->entities[i]};
			dsim_uuid(&e, s->uuid);
		}
		if (s)
			s->fields |= fields;
	}
}

void
dsim_follow(void)
{
	size_t kept = 0;

	for (size_t i = 0; i < dsim.sample_count; i++)
		dsim.samples[i].fields = 0;
	for (size_t i = 0; i < SIM_GROUPS; i++)
		if (dsim.watches[i].used)
			follow_group(&dsim.groups[dsim.watches[i].group],
			             dsim.field_groups[dsim.watches[i].field_group].fields);
	for (size_t i = 0; i < dsim.sample_count; i++)
		if (dsim.samples[i].fields)
			dsim.samples[kept++] = dsim.samples[i];
	dsim.sample_count = kept;
}

/* The one that is watched, while it is there. */
static bool
find_same(const struct sim_sample *s, struct sim_entity *ret)
{
	char uuid[SIM_TEXT];

	return dsim_find(s->pair, ret) && strcmp(dsim_uuid(ret, uuid), s->uuid) == 0;
}

/* The activity of a GPU instance is that of its compute instances by their slices. */
static int128
active_ppm_ns(const struct sim_entity *e)
{
	int128 sum = 0;

	if (!e->instance)
		return world_active_ppm_ns(dsim.world, e->gpu);
	if (!e->is_gi)
		return world_instance_ppm_ns(dsim.world, e->gpu, (size_t)(e->instance - e->layout->instances));
	for (size_t i = 0; i < e->layout->count; i++)
		if (e->layout->instances[i].gi == e->instance->gi)
			sum += world_instance_ppm_ns(dsim.world, e->gpu, i) * e->layout->instances[i].slices.compute;
	return sum / e->instance->slices.gi_compute;
}

void
dsim_take_samples(void)
{
	for (size_t i = 0; i < dsim.sample_count; i++) {
		struct sim_sample *s = &dsim.samples[i];
		struct sim_entity e;
		int128 active;

		if (!find_same(s, &e) || (s->begun && s->to_ns == dsim.now_ns))
			continue;
		active = active_ppm_ns(&e);
		s->whole = s->begun && s->to_ns < dsim.now_ns;
		if (s->whole) {
			s->active_ppm = (int64_t)((active - s->active_ppm_ns) / (dsim.now_ns - s->to_ns));
			s->from_ns = s->to_ns;
		}
		s->begun = true;
		s->to_ns = dsim.now_ns;
		s->active_ppm_ns = active;
	}
}

int
dcgmUpdateAllFields(uintptr_t handle, int wait)
{
	ENTER(handle);
	(void)wait;
	if (!dsim_outage(true))
		dsim_take_samples();
	return DCST_OK;
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

/* A number that there is not. */
static void
set_blank(struct dcgm_field_value *v, int status, int reason)
{
	bool quiet = (dsim.sc->dcgm.quirks & DCGM_QUIRK_BLANKS) != 0;

	v->status = quiet ? DCST_OK : status;
	if (v->type == DCGM_TYPE_DOUBLE)
		v->value.dbl = DCGM_BLANK_FP64 + reason;
	else
		v->value.i64 = DCGM_BLANK_INT64 + reason;
}

static bool
is_only_one(const struct sim_entity *e)
{
	size_t n = 0;

	for (size_t i = 0; i < e->layout->count; i++)
		n += e->layout->instances[i].gi == e->instance->gi;
	return n == 1;
}

static bool
scripted(const struct sim_entity *e, const struct sim_sample *s, int key, int64_t *ret)
{
	int gi = -1, ci = -1;

	if (key < 0 || (e->is_gi && !is_only_one(e)))
		return false;
	if (e->instance) {
		gi = (int)e->instance->gi;
		ci = (int)e->instance->ci;
	}
	return moment_average(&dsim.sc->gpus[e->gpu], (enum sim_key)key, gi, ci, s->from_ns, s->to_ns, ret);
}

static void
set_share(const struct sim_entity *e, const struct sim_sample *s, size_t index, struct dcgm_field_value *v)
{
	int64_t value;

	if (!scripted(e, s, shares[index].key, &value))
		value = s->active_ppm * shares[index].of_hundred / 100;
	if (value == SIM_ABSENT) {
		set_blank(v, DCST_NOT_SUPPORTED, DCGM_NOT_SUPPORTED);
		return;
	}
	v->value.dbl = (double)value / SIM_PPM;
	if (e->instance && (dsim.sc->dcgm.quirks & DCGM_QUIRK_ABOVE_ONE))
		v->value.dbl *= 1.25;
}

static void
set_rate(const struct sim_entity *e, const struct sim_sample *s, struct dcgm_field_value *v)
{
	int key = v->field == DCGM_FIELD_PCIE_TX   ? KEY_PCIE_TX_BYTES_PER_S
	          : v->field == DCGM_FIELD_PCIE_RX ? KEY_PCIE_RX_BYTES_PER_S
	                                           : -1;
	int64_t value;

	if (!scripted(e, s, key, &value))
		value = s->active_ppm * BYTES_PER_PPM;
	if (value == SIM_ABSENT)
		set_blank(v, DCST_NOT_SUPPORTED, DCGM_NOT_SUPPORTED);
	else
		v->value.i64 = value;
}

static void
set_profiled(struct dcgm_field_value *v)
{
	size_t index = (size_t)v->field - DCGM_FIELD_ENGINE;
	struct sim_sample *s = find_sample((struct dcgm_pair){v->group, v->id});
	struct sim_entity e;

	v->type = index < ARRAY_LEN(shares) ? DCGM_TYPE_DOUBLE : DCGM_TYPE_INT64;
	v->stamp_us = s ? STAMP0_US + s->to_ns / NS_PER_US : 0;
	if (!s || !(s->fields & 1u << index))
		set_blank(v, DCST_NOT_WATCHED, 0);
	else if (!find_same(s, &e))
		set_blank(v, DCST_NO_DATA, DCGM_NOT_FOUND);
	else if (moment_fault(dsim.sc, (int)e.gpu, dsim.now_ns))
		set_blank(v, DCST_GPU_IS_LOST, DCGM_NOT_FOUND);
	else if (!s->whole)
		set_blank(v, DCST_NO_DATA, 0);
	else if (v->group == DCGM_OF_CI && v->field == DCGM_FIELD_DRAM)
		set_blank(v, DCST_OK, DCGM_NOT_SUPPORTED);
	else if (index < ARRAY_LEN(shares))
		set_share(&e, s, index, v);
	else
		set_rate(&e, s, v);
}

int
dcgmEntitiesGetLatestValues(uintptr_t handle, struct dcgm_pair *entities, uint32_t count, uint16_t *fields,
                            uint32_t field_count, uint32_t flags, struct dcgm_field_value *values)
{
	struct sim_entity e;

	ENTER(handle);
	if (!entities || !fields || !values)
		return DCST_BADPARAM;
	for (uint32_t i = 0; i < count * field_count; i++) {
		struct dcgm_field_value *v = &values[i];
		struct dcgm_pair pair = entities[i / field_count];

		*v = (struct dcgm_field_value){.version = DCGM_FIELD_VALUE_V2,
		                               .group = pair.group,
		                               .id = pair.id,
		                               .field = fields[i % field_count]};
		if (v->field >= DCGM_FIELD_ENGINE && v->field < DCGM_FIELD_ENGINE + SIM_FIELDS) {
			set_profiled(v);
		} else if (v->field == DCGM_FIELD_UUID && (flags & DCGM_LIVE) && dsim_find(pair, &e) && !e.instance) {
			v->type = DCGM_TYPE_TEXT;
			snprintf(v->value.text, sizeof(v->value.text), "%s", dsim.sc->gpus[e.gpu].uuid);
		} else {
			v->type = DCGM_TYPE_TEXT;
			v->status = DCST_NOT_WATCHED;
		}
	}
	return DCST_OK;
}

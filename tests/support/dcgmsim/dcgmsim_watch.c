/* tests/support/dcgmsim/dcgmsim_watch.c - groups, what a GPU can measure, and watches. */
#include "tests/support/dcgmsim/dcgmsim.h"

#include <string.h>

#define BIT_OF(field) (1u << ((field)-DCGM_FIELD_ENGINE))
#define ALL_FIELDS ((1u << SIM_FIELDS) - 1)

/* Ids of groups are places plus one. */
#define PLACE(id) ((size_t)(id)-1)

uint32_t
dsim_supported(const struct sim_gpu *g)
{
	if (!g->dcp)
		return 0;
	return g->nvlinks > 0 ? ALL_FIELDS
	                      : ALL_FIELDS & ~(BIT_OF(DCGM_FIELD_NVLINK_TX) | BIT_OF(DCGM_FIELD_NVLINK_RX));
}

int
dcgmGroupCreate(uintptr_t handle, int type, const char *name, uintptr_t *group)
{
	size_t i = 0;

	ENTER(handle);
	if (type != DCGM_EMPTY_GROUP || !name || !group)
		return DCST_BADPARAM;
	while (i < SIM_GROUPS && dsim.groups[i].used)
		i++;
	if (i == SIM_GROUPS)
		return DCST_MAX_LIMIT;
	dsim.groups[i] = (struct sim_group){.used = true};
	*group = i + 1;
	return DCST_OK;
}

int
dcgmGroupDestroy(uintptr_t handle, uintptr_t group)
{
	ENTER(handle);
	if (PLACE(group) >= SIM_GROUPS || !dsim.groups[PLACE(group)].used)
		return DCST_BADPARAM;
	for (size_t i = 0; i < SIM_GROUPS; i++)
		dsim.watches[i].used &= dsim.watches[i].group != PLACE(group);
	dsim.groups[PLACE(group)].used = false;
	dsim_follow();
	return DCST_OK;
}

int
dcgmGroupAddEntity(uintptr_t handle, uintptr_t group, uint32_t entity_group, uint32_t entity)
{
	struct dcgm_pair pair = {entity_group, entity};
	struct sim_entity found;
	struct sim_group *g;

	ENTER(handle);
	if (PLACE(group) >= SIM_GROUPS || !dsim.groups[PLACE(group)].used || !dsim_find(pair, &found))
		return DCST_BADPARAM;
	g = &dsim.groups[PLACE(group)];
	if (g->count == DCGM_GROUP_ENTITIES)
		return DCST_MAX_LIMIT;
	g->entities[g->count++] = pair;
	return DCST_OK;
}

int
dcgmFieldGroupCreate(uintptr_t handle, int count, const uint16_t *fields, const char *name, uintptr_t *field_group)
{
	struct sim_field_group *g;
	size_t i = 0;

	ENTER(handle);
	if (count <= 0 || !fields || !name || !field_group)
		return DCST_BADPARAM;
	while (i < SIM_GROUPS && dsim.field_groups[i].used)
		i++;
	if (i == SIM_GROUPS)
		return DCST_MAX_LIMIT;
	g = &dsim.field_groups[i];
	*g = (struct sim_field_group){.used = true};
	for (int f = 0; f < count; f++) {
		if (fields[f] < DCGM_FIELD_ENGINE || fields[f] >= DCGM_FIELD_ENGINE + SIM_FIELDS) {
			g->used = false;
			return DCST_UNKNOWN_FIELD;
		}
		g->fields |= BIT_OF(fields[f]);
	}
	*field_group = i + 1;
	return DCST_OK;
}

int
dcgmFieldGroupDestroy(uintptr_t handle, uintptr_t field_group)
{
	ENTER(handle);
	if (PLACE(field_group) >= SIM_GROUPS || !dsim.field_groups[PLACE(field_group)].used)
		return DCST_BADPARAM;
	for (size_t i = 0; i < SIM_GROUPS; i++)
		dsim.watches[i].used &= dsim.watches[i].field_group != PLACE(field_group);
	dsim.field_groups[PLACE(field_group)].used = false;
	dsim_follow();
	return DCST_OK;
}

/* One member that cannot be measured makes the whole group fail. */
static int
judge(const struct sim_group *g, uint32_t fields)
{
	struct sim_entity e;

	for (size_t i = 0; i < g->count; i++)
		if (!dsim_find(g->entities[i], &e) || (fields & ~dsim_supported(&dsim.sc->gpus[e.gpu])))
			return DCST_MODULE_NOT_LOADED;
	if ((dsim.sc->dcgm.quirks & DCGM_QUIRK_MULTI_PASS) && (fields & (fields - 1)))
		return DCST_PROFILING_MULTI_PASS;
	return DCST_OK;
}

int
dcgmWatchFields(uintptr_t handle, uintptr_t group, uintptr_t field_group, long long every_us, double keep_s,
                int keep_samples)
{
	size_t i = 0;
	int status;

	ENTER(handle);
	if (PLACE(group) >= SIM_GROUPS || !dsim.groups[PLACE(group)].used || PLACE(field_group) >= SIM_GROUPS ||
	    !dsim.field_groups[PLACE(field_group)].used || every_us <= 0 || (keep_s <= 0 && keep_samples <= 0))
		return DCST_BADPARAM;
	status = judge(&dsim.groups[PLACE(group)], dsim.field_groups[PLACE(field_group)].fields);
	if (status != DCST_OK)
		return status;
	while (i < SIM_GROUPS && dsim.watches[i].used)
		i++;
	if (i == SIM_GROUPS)
		return DCST_MAX_LIMIT;
	dsim.watches[i] = (struct sim_watch){.used = true, .group = PLACE(group), .field_group = PLACE(field_group)};
	dsim_follow();
	return DCST_OK;
}

int
dcgmUnwatchFields(uintptr_t handle, uintptr_t group, uintptr_t field_group)
{
	ENTER(handle);
	for (size_t i = 0; i < SIM_GROUPS; i++)
		dsim.watches[i].used &=
			dsim.watches[i].group != PLACE(group) || dsim.watches[i].field_group != PLACE(field_group);
	dsim_follow();
	return DCST_OK;
}

int
dcgmProfGetSupportedMetricGroups(uintptr_t handle, struct dcgm_metric_groups *groups)
{
	struct dcgm_metric_group *to;
	uint32_t fields;

	ENTER(handle);
	if (!groups || groups->version != DCGM_METRIC_GROUPS_V3)
		return DCST_VER_MISMATCH;
	if (groups->gpu >= dsim.sc->gpu_count)
		return DCST_BADPARAM;
	fields = dsim_supported(&dsim.sc->gpus[groups->gpu]);
	if (fields == 0 || (dsim.sc->dcgm.quirks & DCGM_QUIRK_UNTOLD))
		return DCST_MODULE_NOT_LOADED;
	groups->count = 1;
	to = &groups->groups[0];
	*to = (struct dcgm_metric_group){.major = 0};
	for (uint16_t i = 0; i < SIM_FIELDS; i++)
		if (fields & 1u << i)
			to->fields[to->count++] = (uint16_t)(DCGM_FIELD_ENGINE + i);
	return DCST_OK;
}

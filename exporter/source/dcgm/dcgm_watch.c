/* exporter/source/dcgm/dcgm_watch.c - who is there in DCGM, and what of it is watched. The rules are in dcgm.h. */
#include "exporter/source/dcgm/dcgm_engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/time.h"

/* ---- who is there ---- */

static bool
fail(const struct dcgm_engine *e, int status, const char *what, struct err *err)
{
	return err_set(err, ERR_RETRY, "DCGM %s: %s", what, dcgm_status_text(e, status));
}

static void
note_lacking(struct dcgm_engine *e, const char *what, int status)
{
	if (e->lacking.kind == ERR_NONE)
		(void)err_set(&e->lacking, ERR_RETRY, "%s: %s", what, dcgm_status_text(e, status));
}

static struct dcgm_entity *
add_entity(struct dcgm_view *v, struct dcgm_pair pair, size_t gpu, int32_t gi, int32_t ci)
{
	struct dcgm_entity *to = &v->entities[v->count++];

	*to = (struct dcgm_entity){.pair = pair, .gpu = gpu, .gi = gi, .ci = ci};
	for (size_t i = 0; i < DCGM_VALUES; i++)
		to->values[i] = ABSENT;
	return to;
}

/* By the groups of metrics that can be had together. An engine that does not tell lets us try. */
static uint32_t
supported_fields(const struct dcgm_engine *e, uint32_t gpu)
{
	struct dcgm_metric_groups groups = {.version = DCGM_METRIC_GROUPS_V3, .gpu = gpu};
	uint32_t fields = 0;

	if (!e->api.dcgmProfGetSupportedMetricGroups ||
	    e->api.dcgmProfGetSupportedMetricGroups(e->handle, &groups) != DCST_OK)
		return DCGM_OF_GPUS;
	for (uint32_t g = 0; g < groups.count && g < ARRAY_LEN(groups.groups); g++)
		for (uint32_t i = 0; i < groups.groups[g].count && i < ARRAY_LEN(groups.groups[g].fields); i++) {
			unsigned field = groups.groups[g].fields[i];

			if (field >= DCGM_FIELD_ENGINE && field < DCGM_FIELD_ENGINE + DCGM_VALUES)
				fields |= DCGM_BIT(field - DCGM_FIELD_ENGINE);
		}
	return fields;
}

static int
read_uuid(const struct dcgm_engine *e, uint32_t id, char out[GPU_TEXT])
{
	struct dcgm_pair pair = {DCGM_OF_GPU, id};
	uint16_t field = DCGM_FIELD_UUID;
	struct dcgm_field_value *v = e->answers;
	int status;

	v->version = DCGM_FIELD_VALUE_V2;
	status = e->api.dcgmEntitiesGetLatestValues(e->handle, &pair, 1, &field, 1, DCGM_LIVE, v);
	if (status == DCST_OK)
		status = v->status;
	if (status != DCST_OK)
		return status;
	v->value.text[sizeof(v->value.text) - 1] = '\0';
	if (v->type != DCGM_TYPE_TEXT || strlen(v->value.text) >= GPU_TEXT)
		return DCST_NO_DATA;
	memcpy(out, v->value.text, strlen(v->value.text) + 1);
	return DCST_OK;
}

/* One that does not tell its UUID cannot be matched with anything, and costs the others nothing. */
static bool
find_gpus(struct dcgm_engine *e, struct err *err)
{
	struct dcgm_view *v = e->view;
	uint32_t ids[DCGM_DEVICES_MAX];
	int count = 0, status;

	status = e->api.dcgmGetAllSupportedDevices(e->handle, ids, &count);
	if (status != DCST_OK)
		return fail(e, status, "does not list its GPUs", err);
	for (int i = 0; i < count && i < DCGM_DEVICES_MAX; i++) {
		struct dcgm_gpu *g = &v->gpus[v->gpu_count];

		*g = (struct dcgm_gpu){.id = ids[i]};
		status = read_uuid(e, g->id, g->uuid);
		if (dcgm_is_lost(status))
			return fail(e, status, "does not tell who its GPUs are", err);
		if (status != DCST_OK) {
			note_lacking(e, "DCGM does not tell the UUID of a GPU", status);
			continue;
		}
		g->fields = supported_fields(e, g->id);
		add_entity(v, (struct dcgm_pair){DCGM_OF_GPU, g->id}, v->gpu_count, -1, -1)->fields = g->fields;
		v->gpu_count++;
	}
	return true;
}

static size_t
gpu_with(const struct dcgm_view *v, const char *uuid)
{
	size_t i = 0;

	while (i < v->gpu_count && strcmp(v->gpus[i].uuid, uuid) != 0)
		i++;
	return i;
}

static int32_t
small_id(uint32_t id)
{
	return id > INT16_MAX ? INT16_MAX : (int32_t)id;
}

/* The memory belongs to a GPU instance, and so does what moves it; PCIe and NVLink belong to the board. */
static void
add_instance(struct dcgm_view *v, struct dcgm_mig_entity *m)
{
	bool is_ci = m->entity.group == DCGM_OF_CI;
	uint32_t fields = is_ci ? DCGM_OF_ALL & ~DCGM_BIT(DCGM_DRAM) : DCGM_OF_ALL;
	size_t gpu;

	if (!is_ci && m->entity.group != DCGM_OF_GI)
		return;
	m->gpu_uuid[sizeof(m->gpu_uuid) - 1] = '\0';
	gpu = gpu_with(v, m->gpu_uuid);
	if (gpu < v->gpu_count)
		add_entity(v, m->entity, gpu, small_id(m->gi), is_ci ? small_id(m->ci) : -1)->fields =
			fields & v->gpus[gpu].fields;
}

static bool
find_instances(struct dcgm_engine *e, struct err *err)
{
	owned(mem) struct dcgm_hierarchy *h = mem_alloc(sizeof(*h));
	int status;

	h->version = DCGM_HIERARCHY_V2;
	status = e->api.dcgmGetGpuInstanceHierarchy ? e->api.dcgmGetGpuInstanceHierarchy(e->handle, h)
	                                            : DCST_NOT_SUPPORTED;
	if (dcgm_is_lost(status))
		return fail(e, status, "does not list MIG instances", err);
	e->instances_untold = status != DCST_OK && status != DCST_NOT_SUPPORTED;
	if (status == DCST_REQUIRES_ROOT)
		note_lacking(e, "DCGM's engine must run as root to tell of MIG instances", status);
	else if (status != DCST_OK && status != DCST_NOT_SUPPORTED)
		note_lacking(e, "DCGM does not list MIG instances", status);
	for (uint32_t i = 0; status == DCST_OK && i < h->count && i < DCGM_HIERARCHY_MAX; i++)
		add_instance(e->view, &h->entities[i]);
	return true;
}

/* ---- watching ---- */

static void
end_watch(const struct dcgm_engine *e, struct dcgm_watch *w)
{
	if (w->field_group && w->group && e->api.dcgmUnwatchFields)
		(void)e->api.dcgmUnwatchFields(e->handle, w->group, w->field_group);
	if (w->field_group)
		(void)e->api.dcgmFieldGroupDestroy(e->handle, w->field_group);
	if (w->group)
		(void)e->api.dcgmGroupDestroy(e->handle, w->group);
	mem_free(w->members);
	*w = (struct dcgm_watch){0};
}

void
dcgm_engine_unwatch(struct dcgm_engine *e)
{
	while (e->watch_count > 0)
		end_watch(e, &e->watches[--e->watch_count]);
}

/* An engine that runs by itself reads as often as we do; one that is told to read must not find that it is too early. */
static int
watch_group(struct dcgm_engine *e, struct dcgm_watch *w)
{
	int64_t every_us = e->every_ns / NS_PER_US / (e->embedded ? 2 : 1);
	double keep_s = (double)e->every_ns * 5 / NS_PER_S;
	uint16_t fields[DCGM_VALUES];
	int count = 0, status;
	char name[64];

	for (unsigned i = 0; i < DCGM_VALUES; i++)
		if (w->fields & DCGM_BIT(i))
			fields[count++] = (uint16_t)(DCGM_FIELD_ENGINE + i);
	snprintf(name, sizeof(name), "tollgate-%d-%u", (int)getpid(), e->names++);
	status = e->api.dcgmGroupCreate(e->handle, DCGM_EMPTY_GROUP, name, &w->group);
	for (size_t i = 0; status == DCST_OK && i < w->count; i++) {
		struct dcgm_pair pair = e->view->entities[w->members[i]].pair;

		status = e->api.dcgmGroupAddEntity(e->handle, w->group, pair.group, pair.id);
	}
	if (status == DCST_OK)
		status = e->api.dcgmFieldGroupCreate(e->handle, count, fields, name, &w->field_group);
	if (status == DCST_OK)
		status = e->api.dcgmWatchFields(e->handle, w->group, w->field_group, every_us, keep_s, 0);
	return status;
}

static void
refuse(struct dcgm_engine *e, const size_t *members, size_t count, int status)
{
	char what[GPU_TEXT + 64];

	for (size_t i = 0; i < count; i++) {
		struct dcgm_entity *at = &e->view->entities[members[i]];

		at->fields = 0;
		e->refused++;
		snprintf(what, sizeof(what), "DCGM does not profile %s%s", at->gi < 0 ? "" : "an instance of ",
		         e->view->gpus[at->gpu].uuid);
		note_lacking(e, what, status);
	}
}

/* What to try where all of it is refused: without NVLink and pipes, which boards may lack, then activity alone. 0: nothing is left. */
static uint32_t
fewer_fields(uint32_t fields)
{
	uint32_t rare = DCGM_BIT(DCGM_NVLINK_TX) | DCGM_BIT(DCGM_NVLINK_RX) | DCGM_BIT(DCGM_FP64) |
	                DCGM_BIT(DCGM_FP32) | DCGM_BIT(DCGM_FP16);
	uint32_t least = fields & DCGM_BIT(DCGM_ENGINE);

	if (fields & rare)
		return fields & ~rare;
	return fields == least ? 0 : least;
}

/* Rule 6. False: the engine is gone. */
static bool
watch(struct dcgm_engine *e, const size_t *members, size_t count, uint32_t fields, struct err *err)
{
	struct dcgm_watch *w = &e->watches[e->watch_count];
	int status;

	if (e->watch_count == DCGM_GROUPS_MAX) {
		refuse(e, members, count, DCST_MAX_LIMIT);
		return true;
	}
	*w = (struct dcgm_watch){.fields = fields, .count = count};
	w->members = mem_array(count, sizeof(*members));
	memcpy(w->members, members, count * sizeof(*members));
	status = watch_group(e, w);
	if (status == DCST_OK) {
		for (size_t i = 0; i < count; i++)
			e->view->entities[members[i]].fields = fields;
		e->watch_count++;
		return true;
	}
	end_watch(e, w);
	if (dcgm_is_lost(status))
		return fail(e, status, "does not watch", err);
	if (count > 1)
		return watch(e, members, count / 2, fields, err) &&
		       watch(e, members + count / 2, count - count / 2, fields, err);
	if (fewer_fields(fields))
		return watch(e, members, count, fewer_fields(fields), err);
	refuse(e, members, count, status);
	return true;
}

/* Instances come and go with their GPU, so those of each GPU are watched for themselves. */
static bool
may_share(const struct dcgm_entity *a, const struct dcgm_entity *b)
{
	return a->fields == b->fields && (a->gi < 0) == (b->gi < 0) && (a->gi < 0 || a->gpu == b->gpu);
}

/* All that can measure the same, as many at once as an engine takes. */
static bool
watch_all(struct dcgm_engine *e, bool taken[DCGM_ENTITIES_MAX], struct err *err)
{
	size_t members[DCGM_GROUP_ENTITIES], count;

	for (size_t first = 0; first < e->view->count; first++) {
		struct dcgm_entity like = e->view->entities[first];

		if (taken[first])
			continue;
		if (like.fields == 0) {
			refuse(e, &first, 1, DCST_NOT_SUPPORTED);
			continue;
		}
		count = 0;
		for (size_t i = first; i < e->view->count && count < ARRAY_LEN(members); i++)
			if (!taken[i] && may_share(&like, &e->view->entities[i])) {
				taken[i] = true;
				members[count++] = i;
			}
		if (!watch(e, members, count, like.fields, err))
			return false;
	}
	return true;
}

/* Where something of the old view is in the new one; the new count: nowhere. */
static size_t
same_entity(const struct dcgm_view *now, const struct dcgm_view *old, const struct dcgm_entity *was)
{
	size_t i = 0;

	for (; i < now->count; i++) {
		const struct dcgm_entity *is = &now->entities[i];

		if (is->pair.group == was->pair.group && is->pair.id == was->pair.id && is->gi == was->gi &&
		    is->ci == was->ci && strcmp(now->gpus[is->gpu].uuid, old->gpus[was->gpu].uuid) == 0)
			break;
	}
	return i;
}

/* False: something in it is gone, or to be watched anew. */
static bool
keep_watch(const struct dcgm_engine *e, const struct dcgm_view *old, struct dcgm_watch *w, uint32_t renew,
           bool taken[DCGM_ENTITIES_MAX])
{
	size_t at[DCGM_GROUP_ENTITIES];

	for (size_t i = 0; i < w->count; i++) {
		const struct dcgm_entity *was = &old->entities[w->members[i]];

		at[i] = same_entity(e->view, old, was);
		if (at[i] == e->view->count || (was->gi >= 0 && (renew >> was->gpu & 1)))
			return false;
	}
	for (size_t i = 0; i < w->count; i++) {
		struct dcgm_entity *is = &e->view->entities[at[i]];
		size_t gpu = is->gpu;

		*is = old->entities[w->members[i]];
		is->gpu = gpu;
		w->members[i] = at[i];
		taken[at[i]] = true;
	}
	return true;
}

bool
dcgm_engine_look(struct dcgm_engine *e, uint32_t renew, struct err *err)
{
	struct dcgm_view *old = e->view;
	bool taken[DCGM_ENTITIES_MAX] = {false};
	size_t kept = 0;

	e->view = e->spare;
	e->spare = old;
	e->view->gpu_count = e->view->count = 0;
	e->refused = 0;
	e->lacking.kind = ERR_NONE;
	if (!find_gpus(e, err) || !find_instances(e, err))
		return false;
	for (size_t i = 0; i < e->watch_count; i++) {
		struct dcgm_watch w = e->watches[i];

		if (keep_watch(e, old, &w, renew, taken))
			e->watches[kept++] = w;
		else
			end_watch(e, &w);
	}
	e->watch_count = kept;
	return watch_all(e, taken, err);
}

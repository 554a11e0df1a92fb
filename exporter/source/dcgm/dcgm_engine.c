/* exporter/source/dcgm/dcgm_engine.c - the client of DCGM's engine: library, connection, discovery, watches, values. Rules in dcgm.h. */
#include "exporter/source/dcgm/dcgm_engine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/time.h"

#define CONNECT_TIMEOUT_MS 3000
#define PPM 1000000

static const char *const default_libraries[] = {"libdcgm.so.4", "libdcgm.so.3"};

static const struct symbol {
	const char *name;
	size_t offset; /* in struct dcgm_api */
	bool required;
} symbols[] = {
#define REQUIRED_SYMBOL(ret, name, args) {#name, offsetof(struct dcgm_api, name), true},
#define OPTIONAL_SYMBOL(ret, name, args) {#name, offsetof(struct dcgm_api, name), false},
	DCGM_FUNCTIONS(REQUIRED_SYMBOL, OPTIONAL_SYMBOL)
#undef REQUIRED_SYMBOL
#undef OPTIONAL_SYMBOL
};

static const char *
status_text(const struct dcgm_engine *e, int status)
{
	const char *text = e->api.errorString ? e->api.errorString(status) : NULL;

	return text && *text ? text : "error without a name";
}

/* True when a status concerns the engine as a whole. */
static bool
is_lost(int status)
{
	return status == DCST_CONNECTION_NOT_VALID || status == DCST_UNINITIALIZED;
}

/* ---- the library ---- */

static bool
load_symbols(struct dcgm_engine *e, const char *name, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		void *symbol = dlsym(e->library, symbols[i].name);

		if (!symbol && symbols[i].required)
			return err_set(err, ERR_MISSING, "%s has no %s: it is not DCGM's library, or too old", name,
			               symbols[i].name);
		/* ISO C has no cast from an object pointer to a function */
		memcpy((char *)&e->api + symbols[i].offset, &symbol, sizeof(symbol));
	}
	e->simulated = dlsym(e->library, "tollgate_simulator") != NULL;
	return true;
}

static bool
load(struct dcgm_engine *e, const char *library, struct err *err)
{
	const char *name = library ? library : default_libraries[0];

	if (e->library)
		return true;
	e->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 1; !library && !e->library && i < ARRAY_LEN(default_libraries); i++) {
		name = default_libraries[i];
		e->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	}
	if (!e->library)
		return err_set(err, ERR_MISSING,
		               "DCGM's library cannot be loaded (%s): install DCGM, or name the library with "
		               "--dcgm-library",
		               dlerror());
	if (load_symbols(e, name, err))
		return true;
	dlclose(take(e->library));
	return false;
}

/* ---- the engine ---- */

static int
connect_to(struct dcgm_engine *e, const char *host)
{
	struct dcgm_connect params = {.version = DCGM_CONNECT_V2, .timeout_ms = CONNECT_TIMEOUT_MS};

	if (strncmp(host, "unix:", 5) == 0) {
		host += strncmp(host, "unix://", 7) == 0 ? 7 : 5;
		params.is_unix = 1;
	} else if (host[0] == '/') {
		params.is_unix = 1;
	}
	return e->api.dcgmConnect_v2(host, &params, &e->handle);
}

static int
embed(struct dcgm_engine *e)
{
	struct dcgm_embedded params = {.version = DCGM_EMBEDDED_V2,
	                               .mode = DCGM_MODE_MANUAL,
	                               .severity = DCGM_LOG_NONE};
	int status = e->api.dcgmStartEmbedded_v2(&params);

	e->handle = params.handle;
	e->embedded = true;
	return status;
}

/* An embedded engine needs root. DCGM reports its lack as "initialization error" or "requires root". */
static bool
fail_embedded(const struct dcgm_engine *e, int status, struct err *err)
{
	if ((status == DCST_INIT_ERROR || status == DCST_REQUIRES_ROOT) && geteuid() != 0)
		return err_set(
			err, ERR_DENIED,
			"DCGM needs root for an engine in this process, which runs as uid %u (%s): start the exporter as root "
			"(--user leaves root once the engine runs), or name a running host engine with --dcgm-host",
			(unsigned)geteuid(), status_text(e, status));
	return err_set(err, ERR_RETRY, "DCGM does not start an engine in this process: %s", status_text(e, status));
}

static bool
begin_engine(struct dcgm_engine *e, const char *host, struct err *err)
{
	int status = e->api.dcgmInit();

	if (status != DCST_OK)
		return err_set(err, ERR_RETRY, "DCGM's library does not start: %s", status_text(e, status));
	e->initialised = true;
	status = host ? connect_to(e, host) : embed(e);
	e->connected = status == DCST_OK;
	if (e->connected)
		return true;
	if (host)
		return err_set(err, ERR_RETRY, "DCGM's host engine at %s does not answer: %s", host,
		               status_text(e, status));
	return fail_embedded(e, status, err);
}

/* From "version:4.2.3;arch:x86_64;...". */
static void
read_version(struct dcgm_engine *e)
{
	struct dcgm_version_info info = {.version = DCGM_VERSION_INFO_V2};
	const char *at;

	snprintf(e->version, sizeof(e->version), "%s", "");
	if (!e->api.dcgmHostengineVersionInfo || e->api.dcgmHostengineVersionInfo(e->handle, &info) != DCST_OK)
		return;
	info.text[sizeof(info.text) - 1] = '\0';
	at = strstr(info.text, "version:");
	if (at)
		snprintf(e->version, sizeof(e->version), "%.*s", (int)strcspn(at + 8, ";"), at + 8);
}

/* ---- discovery ---- */

static bool
fail(const struct dcgm_engine *e, int status, const char *what, struct err *err)
{
	return err_set(err, ERR_RETRY, "DCGM %s: %s", what, status_text(e, status));
}

static void
note_incomplete(struct dcgm_engine *e, const char *what, int status)
{
	if (e->incomplete.kind == ERR_NONE)
		(void)err_set(&e->incomplete, ERR_RETRY, "%s: %s", what, status_text(e, status));
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

/* From the metric groups that the engine supports; all fields when it does not say. */
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

/* A GPU without a UUID cannot be matched and is left out. */
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
		if (is_lost(status))
			return fail(e, status, "does not report the UUIDs of its GPUs", err);
		if (status != DCST_OK) {
			note_incomplete(e, "DCGM does not report the UUID of a GPU", status);
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

/* Memory activity is measured for a GPU instance, not for its compute instances; PCIe and NVLink for the board. */
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
	if (is_lost(status))
		return fail(e, status, "does not list MIG instances", err);
	e->instances_unavailable = status != DCST_OK && status != DCST_NOT_SUPPORTED;
	if (status == DCST_REQUIRES_ROOT)
		note_incomplete(e, "DCGM's engine must run as root to list MIG instances", status);
	else if (status != DCST_OK && status != DCST_NOT_SUPPORTED)
		note_incomplete(e, "DCGM does not list MIG instances", status);
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

static void
unwatch_all(struct dcgm_engine *e)
{
	while (e->watch_count > 0)
		end_watch(e, &e->watches[--e->watch_count]);
}

/* A host engine reads at our interval. An embedded engine reads when told to, so its interval is half of ours: it must never find a
 * read too early. */
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
	snprintf(name, sizeof(name), "tollgate-%d-%u", (int)getpid(), e->group_number++);
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
		note_incomplete(e, what, status);
	}
}

/* The next smaller set of fields after a refusal: without NVLink and pipes, which boards may lack, then activity alone. 0: none. */
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
	if (is_lost(status))
		return fail(e, status, "does not watch", err);
	if (count > 1)
		return watch(e, members, count / 2, fields, err) &&
		       watch(e, members + count / 2, count - count / 2, fields, err);
	if (fewer_fields(fields))
		return watch(e, members, count, fewer_fields(fields), err);
	refuse(e, members, count, status);
	return true;
}

/* Instances change with the layout of their GPU, so each GPU has its own watches for them. */
static bool
may_share(const struct dcgm_entity *a, const struct dcgm_entity *b)
{
	return a->fields == b->fields && (a->gi < 0) == (b->gi < 0) && (a->gi < 0 || a->gpu == b->gpu);
}

/* Watches entities with the same fields together, as many as a group may have. */
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

/* The place in the new view of an entity of the old one; now->count: it is gone. */
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

/* Carries a watch and its values to the new view. False: a member is gone, or must be watched anew. */
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
dcgm_engine_discover(struct dcgm_engine *e, uint32_t renew, struct err *err)
{
	struct dcgm_view *old = e->view;
	bool taken[DCGM_ENTITIES_MAX] = {false};
	size_t kept = 0;

	e->view = e->spare;
	e->spare = old;
	e->view->gpu_count = e->view->count = 0;
	e->refused = 0;
	e->incomplete.kind = ERR_NONE;
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

/* ---- values ---- */

/* Rules 3 and 4. */
static int64_t
share(struct dcgm_engine *e, double v)
{
	if (!(v >= 0 && v < DCGM_BLANK_FP64))
		return ABSENT;
	if (v > 1) {
		e->clamped++;
		return PPM;
	}
	return (int64_t)(v * PPM + 0.5);
}

static int64_t
rate(const struct dcgm_field_value *v)
{
	if (v->type == DCGM_TYPE_INT64)
		return v->value.i64 >= 0 && v->value.i64 < DCGM_BLANK_INT64 ? v->value.i64 : ABSENT;
	return v->value.dbl >= 0 && v->value.dbl < DCGM_BLANK_FP64 ? (int64_t)v->value.dbl : ABSENT;
}

/* Rule 2: a value with an old stamp keeps the time of its first reading. */
static void
take_answer(struct dcgm_engine *e, struct dcgm_entity *to, const struct dcgm_field_value *v, int64_t boot_ns)
{
	size_t i = (size_t)v->field - DCGM_FIELD_ENGINE;

	if (v->status != DCST_OK || (v->type != DCGM_TYPE_DOUBLE && v->type != DCGM_TYPE_INT64)) {
		to->values[i] = ABSENT;
		return;
	}
	if (to->values[i] != ABSENT && v->stamp_us == to->stamps_us[i])
		return;
	if (i >= DCGM_PCIE_TX)
		to->values[i] = rate(v);
	else
		to->values[i] = v->type == DCGM_TYPE_DOUBLE ? share(e, v->value.dbl) : ABSENT;
	to->stamps_us[i] = v->stamp_us;
	to->boot_ns[i] = boot_ns;
}

static struct dcgm_entity *
find_member(const struct dcgm_engine *e, const struct dcgm_watch *w, size_t from, size_t count,
            const struct dcgm_field_value *v)
{
	for (size_t i = from; i < from + count; i++) {
		struct dcgm_entity *at = &e->view->entities[w->members[i]];

		if (at->pair.group == v->group && at->pair.id == v->id)
			return at;
	}
	return NULL;
}

/* Reads `count` entities of a watch, at most as many as `answers` has room for. */
static bool
read_some(struct dcgm_engine *e, const struct dcgm_watch *w, size_t from, size_t count, uint16_t *fields,
          uint32_t field_count, int64_t boot_ns, struct err *err)
{
	struct dcgm_pair pairs[DCGM_GROUP_ENTITIES];
	int status;

	for (size_t i = 0; i < count; i++)
		pairs[i] = e->view->entities[w->members[from + i]].pair;
	for (size_t i = 0; i < count * field_count; i++) {
		e->answers[i].version = DCGM_FIELD_VALUE_V2;
		e->answers[i].field = 0; /* not answered */
	}
	status = e->api.dcgmEntitiesGetLatestValues(e->handle, pairs, (uint32_t)count, fields, field_count, 0,
	                                            e->answers);
	if (is_lost(status))
		return err_set(err, ERR_RETRY, "DCGM's engine is gone: %s", status_text(e, status));
	for (size_t i = 0; i < count * field_count; i++) {
		struct dcgm_field_value *v = &e->answers[i];
		struct dcgm_entity *to;

		/* an answer without an entity belongs to the entity asked for at its place */
		if (status != DCST_OK || v->field == 0) {
			v->group = pairs[i / field_count].group;
			v->id = pairs[i / field_count].id;
			v->field = fields[i % field_count];
			v->status = status != DCST_OK ? status : DCST_NO_DATA;
		}
		to = find_member(e, w, from, count, v);
		if (to && v->field >= DCGM_FIELD_ENGINE && v->field < DCGM_FIELD_ENGINE + DCGM_VALUES)
			take_answer(e, to, v, boot_ns);
	}
	return true;
}

static bool
read_watch(struct dcgm_engine *e, const struct dcgm_watch *w, int64_t boot_ns, struct err *err)
{
	uint16_t fields[DCGM_VALUES];
	uint32_t field_count = 0;
	size_t room;

	for (unsigned i = 0; i < DCGM_VALUES; i++)
		if (w->fields & DCGM_BIT(i))
			fields[field_count++] = (uint16_t)(DCGM_FIELD_ENGINE + i);
	room = DCGM_ANSWERS / field_count;
	for (size_t from = 0; from < w->count; from += room) {
		size_t count = w->count - from < room ? w->count - from : room;

		if (!read_some(e, w, from, count, fields, field_count, boot_ns, err))
			return false;
	}
	return true;
}

bool
dcgm_engine_read(struct dcgm_engine *e, int64_t boot_ns, struct err *err)
{
	int status = e->api.dcgmUpdateAllFields(e->handle, 1);

	if (status != DCST_OK)
		return err_set(err, ERR_RETRY, "DCGM's engine does not read: %s", status_text(e, status));
	for (size_t i = 0; i < e->watch_count; i++)
		if (!read_watch(e, &e->watches[i], boot_ns, err))
			return false;
	return true;
}

/* ---- opening and closing ---- */

bool
dcgm_engine_open(struct dcgm_engine *e, const struct dcgm_options *o, struct err *err)
{
	if (!load(e, o->library, err))
		return false;
	e->every_ns = o->sample_interval_ns;
	if (!e->view)
		e->view = mem_alloc(sizeof(*e->view));
	if (!e->spare)
		e->spare = mem_alloc(sizeof(*e->spare));
	if (!e->answers)
		e->answers = mem_array(DCGM_ANSWERS, sizeof(*e->answers));
	if (!begin_engine(e, o->host, err))
		return false;
	read_version(e);
	return dcgm_engine_discover(e, 0, err);
}

void
dcgm_engine_close(struct dcgm_engine *e)
{
	if (e->connected)
		unwatch_all(e);
	if (e->connected)
		(void)(e->embedded ? e->api.dcgmStopEmbedded(e->handle) : e->api.dcgmDisconnect(e->handle));
	if (e->initialised)
		(void)e->api.dcgmShutdown();
	e->connected = e->initialised = e->embedded = false;
	e->watch_count = e->refused = 0;
	e->incomplete.kind = ERR_NONE;
	if (e->view)
		e->view->gpu_count = e->view->count = 0;
}

void
dcgm_engine_fini(struct dcgm_engine *e)
{
	mem_free(take(e->view));
	mem_free(take(e->spare));
	mem_free(take(e->answers));
	if (e->library)
		dlclose(take(e->library));
}

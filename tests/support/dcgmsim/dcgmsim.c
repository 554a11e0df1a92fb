/* tests/support/dcgmsim/dcgmsim.c - a shared library with DCGM's interface over a scenario: the library, the engine and who is there.
 *
 * The answers follow the real one as far as facts about it are known; see README.md. */
#include "tests/support/dcgmsim/dcgmsim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dcgmsim dsim = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* By this symbol the exporter knows that its readings are made up. */
EXPORTED extern const char tollgate_simulator[];
const char tollgate_simulator[] = "dcgmsim";

/* ---- entering a call ------------------------------------------------------------------------------------------------ */

void
dsim_leave(pthread_mutex_t **lock)
{
	pthread_mutex_unlock(*lock);
}

const struct sim_outage *
dsim_outage(bool stuck)
{
	for (size_t i = 0; i < dsim.sc->dcgm.outage_count; i++) {
		const struct sim_outage *o = &dsim.sc->dcgm.outages[i];

		if (o->stuck == stuck && o->at_ns <= dsim.now_ns && dsim.now_ns < o->until_ns)
			return o;
	}
	return NULL;
}

/* A connection does not outlive its engine, also when another one runs by now. */
static bool
is_cut_off(void)
{
	for (size_t i = 0; i < dsim.sc->dcgm.outage_count; i++) {
		const struct sim_outage *o = &dsim.sc->dcgm.outages[i];

		if (!o->stuck && o->at_ns > dsim.connected_ns && o->at_ns <= dsim.now_ns)
			return true;
	}
	return false;
}

static int
check_engine(uintptr_t handle)
{
	if (dsim.users == 0)
		return DCST_UNINITIALIZED;
	dsim.now_ns = dsim_clock_ns();
	return dsim.handle && handle == dsim.handle && !is_cut_off() ? DCST_OK : DCST_CONNECTION_NOT_VALID;
}

int
dsim_enter(const char *function, uintptr_t handle)
{
	int status = check_engine(handle);
	struct err err;

	if (status == DCST_OK)
		status = dsim_misbehave(function);
	if (status == DCST_OK)
		status = check_engine(handle); /* time may have passed */
	if (status != DCST_OK)
		return status;
	world_advance(dsim.world, dsim.now_ns);
	if (dsim.live && !live_sync(dsim.live, dsim.world, &err))
		fprintf(stderr, "dcgmsim: %s\n", err.text);
	return DCST_OK;
}

/* ---- the library ---------------------------------------------------------------------------------------------------- */

static void
stop(void)
{
	live_free(take(dsim.live));
	world_free(take(dsim.world));
	scenario_free(take(dsim.sc));
}

static bool
load(struct err *err)
{
	const char *path = getenv("TOLLGATE_SIM_SCENARIO"), *live = getenv("TOLLGATE_SIM_LIVE");

	if (!path || !*path)
		return err_set(err, ERR_INVALID, "TOLLGATE_SIM_SCENARIO does not name a scenario file");
	if (!scenario_load(path, &dsim.sc, err))
		return false;
	dsim.world = world_new(dsim.sc);
	return !live || !*live || live_open(live, dsim.sc, &dsim.live, err);
}

int
dcgmInit(void)
{
	struct err err;
	bool ok = true;

	pthread_mutex_lock(&dsim.lock);
	if (dsim.users == 0) {
		stop();
		dsim_begin_time();
		ok = load(&err);
	}
	if (ok)
		dsim.users++;
	else
		fprintf(stderr, "dcgmsim: %s\n", err.text);
	pthread_mutex_unlock(&dsim.lock);
	return ok ? DCST_OK : DCST_GENERIC_ERROR;
}

int
dcgmShutdown(void)
{
	bool ok;

	pthread_mutex_lock(&dsim.lock);
	ok = dsim.users > 0;
	if (ok && --dsim.users == 0)
		stop();
	pthread_mutex_unlock(&dsim.lock);
	return ok ? DCST_OK : DCST_UNINITIALIZED;
}

const char *
errorString(int status)
{
	switch (status) {
	case DCST_OK: return "success";
	case DCST_BADPARAM: return "bad parameter";
	case DCST_NOT_SUPPORTED: return "not supported";
	case DCST_INIT_ERROR: return "initialization error";
	case DCST_UNINITIALIZED: return "not initialised";
	case DCST_VER_MISMATCH: return "version mismatch";
	case DCST_NO_DATA: return "no data";
	case DCST_NOT_WATCHED: return "not watched";
	case DCST_GPU_IS_LOST: return "GPU is lost";
	case DCST_CONNECTION_NOT_VALID: return "the connection is not valid any longer";
	case DCST_MAX_LIMIT: return "limit reached";
	case DCST_REQUIRES_ROOT: return "requires root";
	case DCST_MODULE_NOT_LOADED: return "module not loaded";
	case DCST_PROFILING_MULTI_PASS: return "more than one pass is needed";
	default: return "unknown error";
	}
}

/* ---- the engine ----------------------------------------------------------------------------------------------------- */

/* A new engine knows nothing of what an earlier one watched. */
static int
begin_engine(const char *function, uintptr_t *handle)
{
	static uintptr_t last;
	int status = dsim_misbehave(function);

	dsim.now_ns = dsim_clock_ns();
	if (status != DCST_OK)
		return status;
	if (dsim_outage(false))
		return DCST_CONNECTION_NOT_VALID;
	memset(dsim.groups, 0, sizeof(dsim.groups));
	memset(dsim.field_groups, 0, sizeof(dsim.field_groups));
	memset(dsim.watches, 0, sizeof(dsim.watches));
	dsim.sample_count = 0;
	dsim.connected_ns = dsim.now_ns;
	dsim.handle = *handle = ++last;
	return DCST_OK;
}

int
dcgmStartEmbedded_v2(struct dcgm_embedded *params)
{
	int status = DCST_UNINITIALIZED;

	if (!params || params->version != DCGM_EMBEDDED_V2)
		return DCST_VER_MISMATCH;
	if (params->mode != DCGM_MODE_MANUAL)
		return DCST_BADPARAM;
	pthread_mutex_lock(&dsim.lock);
	if (dsim.users > 0 && dsim.sc->dcgm.quirks & DCGM_QUIRK_NEEDS_ROOT && geteuid() != 0)
		status = DCST_INIT_ERROR;
	else if (dsim.users > 0)
		status = begin_engine(__func__, &params->handle);
	pthread_mutex_unlock(&dsim.lock);
	return status;
}

int
dcgmConnect_v2(const char *address, struct dcgm_connect *params, uintptr_t *handle)
{
	int status = DCST_UNINITIALIZED;

	if (!params || params->version != DCGM_CONNECT_V2)
		return DCST_VER_MISMATCH;
	if (!address || !*address || !handle || (address[0] == '/') != (params->is_unix == 1))
		return DCST_BADPARAM;
	pthread_mutex_lock(&dsim.lock);
	if (dsim.users > 0)
		status = begin_engine(__func__, handle);
	pthread_mutex_unlock(&dsim.lock);
	return status;
}

int
dcgmDisconnect(uintptr_t handle)
{
	ENTER(handle);
	dsim.handle = 0;
	return DCST_OK;
}

int
dcgmStopEmbedded(uintptr_t handle)
{
	ENTER(handle);
	dsim.handle = 0;
	return DCST_OK;
}

int
dcgmHostengineVersionInfo(uintptr_t handle, struct dcgm_version_info *info)
{
	ENTER(handle);
	if (!info || info->version != DCGM_VERSION_INFO_V2)
		return DCST_VER_MISMATCH;
	snprintf(info->text, sizeof(info->text), "version:%s;arch:x86_64;buildtype:Simulator", dsim.sc->dcgm.version);
	return DCST_OK;
}

/* ---- who is there --------------------------------------------------------------------------------------------------- */

uint32_t
dsim_ci_id(size_t gpu, size_t instance)
{
	return (uint32_t)(gpu * SIM_INSTANCES_MAX + instance);
}

uint32_t
dsim_gi_id(size_t gpu, const struct sim_layout *l, uint32_t gi)
{
	size_t i = 0;

	while (l->instances[i].gi != gi)
		i++;
	return (uint32_t)(gpu * SIM_INSTANCES_MAX + i);
}

bool
dsim_find(struct dcgm_pair pair, struct sim_entity *ret)
{
	size_t gpu = pair.group == DCGM_OF_GPU ? pair.id : pair.id / SIM_INSTANCES_MAX;
	size_t i = pair.id % SIM_INSTANCES_MAX;

	if (gpu >= dsim.sc->gpu_count)
		return false;
	*ret = (struct sim_entity){.gpu = gpu,
	                           .layout = world_layout(dsim.world, gpu),
	                           .is_gi = pair.group == DCGM_OF_GI};
	if (pair.group == DCGM_OF_GPU)
		return true;
	if ((pair.group != DCGM_OF_GI && pair.group != DCGM_OF_CI) || !ret->layout->mig || i >= ret->layout->count)
		return false;
	ret->instance = &ret->layout->instances[i];
	return !ret->is_gi || dsim_gi_id(gpu, ret->layout, ret->instance->gi) == pair.id;
}

const char *
dsim_uuid(const struct sim_entity *e, char out[SIM_TEXT])
{
	snprintf(out, SIM_TEXT, "%s", e->instance ? e->instance->uuid : dsim.sc->gpus[e->gpu].uuid);
	return out;
}

int
dcgmGetAllSupportedDevices(uintptr_t handle, uint32_t ids[DCGM_DEVICES_MAX], int *count)
{
	ENTER(handle);
	for (*count = 0; (size_t)*count < dsim.sc->gpu_count && *count < DCGM_DEVICES_MAX; (*count)++)
		ids[*count] = (uint32_t)*count;
	return DCST_OK;
}

static bool
is_listed(size_t gpu, size_t instance)
{
	for (size_t i = 0; i < dsim.sc->dcgm.unlisted_count; i++) {
		const struct sim_unlisted *u = &dsim.sc->dcgm.unlisted[i];

		if ((size_t)u->gpu == gpu && (size_t)u->instance == instance && u->at_ns <= dsim.now_ns &&
		    dsim.now_ns < u->until_ns)
			return false;
	}
	return true;
}

/* A GPU instance is there with its first compute instance that is listed, and not without any. */
static bool
is_first_listed(size_t gpu, const struct sim_layout *l, size_t instance)
{
	for (size_t i = 0; i < instance; i++)
		if (l->instances[i].gi == l->instances[instance].gi && is_listed(gpu, i))
			return false;
	return is_listed(gpu, instance);
}

static void
tell_instances(size_t gpu, const struct sim_layout *l, struct dcgm_hierarchy *to)
{
	for (size_t i = 0; i < l->count; i++) {
		const struct sim_instance *in = &l->instances[i];
		struct dcgm_mig_entity m = {.gpu_index = (uint32_t)gpu, .gi = in->gi, .ci = UINT32_MAX};

		snprintf(m.gpu_uuid, sizeof(m.gpu_uuid), "%s", dsim.sc->gpus[gpu].uuid);
		m.entity = (struct dcgm_pair){DCGM_OF_GI, dsim_gi_id(gpu, l, in->gi)};
		m.parent = (struct dcgm_pair){DCGM_OF_GPU, (uint32_t)gpu};
		m.slices = (uint32_t)in->slices.gi_compute;
		if (!is_listed(gpu, i))
			continue;
		if (is_first_listed(gpu, l, i))
			to->entities[to->count++] = m;
		m.parent = m.entity;
		m.entity = (struct dcgm_pair){DCGM_OF_CI, dsim_ci_id(gpu, i)};
		m.ci = in->ci;
		m.slices = (uint32_t)in->slices.compute;
		to->entities[to->count++] = m;
	}
}

int
dcgmGetGpuInstanceHierarchy(uintptr_t handle, struct dcgm_hierarchy *hierarchy)
{
	bool partitioned = false;

	ENTER(handle);
	if (!hierarchy || hierarchy->version != DCGM_HIERARCHY_V2)
		return DCST_VER_MISMATCH;
	hierarchy->count = 0;
	for (size_t g = 0; g < dsim.sc->gpu_count && g < DCGM_DEVICES_MAX; g++) {
		const struct sim_layout *l = world_layout(dsim.world, g);

		partitioned |= l->mig;
		if (l->mig)
			tell_instances(g, l, hierarchy);
	}
	return partitioned && (dsim.sc->quirks & QUIRK_UNPRIVILEGED) ? DCST_REQUIRES_ROOT : DCST_OK;
}

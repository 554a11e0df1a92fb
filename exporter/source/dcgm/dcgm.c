/* exporter/source/dcgm/dcgm.c - the worker thread for DCGM, and the values it adds to readings. The rules are in dcgm.h. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/thread.h"
#include "common/base/time.h"
#include "exporter/source/dcgm/dcgm_engine.h"

#define LEAST_PAUSE_NS NS_PER_S /* rule 7 */
#define MOST_PAUSE_NS NS_PER_MIN
#define DISCOVER_PAUSE_NS (10 * NS_PER_S) /* rule 5: between searches for missing instances */
#define CLOSE_PATIENCE_NS (2 * NS_PER_S)
#define VALUE_TICKS 2 /* rule 2 */

/* Rule 5: NVML's layout of a GPU of the view, and for which layout (a hash) instances were discovered. */
struct layout {
	bool known; /* the view is of the layout with this hash */
	uint64_t hash;
	uint64_t wanted; /* discovery was requested for this one */
	int64_t wanted_boot_ns;
	uint64_t in_progress; /* `wanted` when the current discovery began */
	uint64_t discovered;  /* the view was discovered for this one; 0: none */
	size_t unlisted;      /* instances that DCGM does not list */
	char first[GPU_TEXT]; /* the UUID of the first of them */
};

struct dcgm {
	struct dcgm_options options;
	/* the worker's alone */
	struct dcgm_engine engine;
	int64_t pause_ns, retry_boot_ns;
	/* of all, under the lock */
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	size_t references; /* the caller, and the worker */
	bool ending, ended;
	bool opened;                /* the first opening has returned */
	uint64_t round, finished;   /* requested, and finished */
	bool late;                  /* the worker was still busy when the round began */
	int64_t finished_boot_ns;   /* of the last finished round */
	int64_t boot_ns;            /* of the round */
	int64_t deadline_ns;        /* of waiting for it, on the monotonic clock */
	uint32_t discover;          /* discover the instances of these GPUs again, by bit */
	bool discover_missing;      /* search for instances that were not listed; the watched ones stay */
	bool instances_unavailable; /* the engine lists no instances; status.trouble says why */
	bool mismatch;              /* one of DCGM and NVML is a simulator */
	struct dcgm_view *view;     /* result of the last round */
	struct layout layouts[DCGM_DEVICES_MAX];
	struct dcgm_status status;
};

static void
unref(struct dcgm *d)
{
	bool last = --d->references == 0;

	pthread_mutex_unlock(&d->lock);
	if (!last)
		return;
	pthread_cond_destroy(&d->work);
	pthread_cond_destroy(&d->done);
	pthread_mutex_destroy(&d->lock);
	mem_free(d->view);
	mem_free(d);
}

/* ---- the worker ---- */

/* Rule 5: the GPUs whose instances were discovered for an unknown layout, by bit. */
static uint32_t
of_unknown_layout(const struct dcgm *d, uint32_t discovered)
{
	const struct dcgm_view *now = d->engine.view;

	for (size_t i = 0; i < now->gpu_count; i++)
		if (i >= d->view->gpu_count || strcmp(now->gpus[i].uuid, d->view->gpus[i].uuid) != 0)
			discovered |= 1u << i;
	return discovered;
}

/* Copies the engine's result to where readings get it. */
static void
publish(struct dcgm *d, uint32_t discovered, const struct err *failure)
{
	struct dcgm_engine *e = &d->engine;
	uint32_t unknown = UINT32_MAX;

	d->status.up = e->connected;
	d->status.simulated = e->simulated;
	d->status.clamped = e->clamped;
	d->status.refused = e->refused;
	d->status.watched = 0;
	d->status.trouble = failure ? *failure : e->incomplete;
	if (e->connected) {
		unknown = of_unknown_layout(d, discovered);
		snprintf(d->status.version, sizeof(d->status.version), "%s", e->version);
		for (size_t i = 0; i < e->view->count; i++)
			d->status.watched += e->view->entities[i].fields != 0;
		d->view->gpu_count = e->view->gpu_count;
		d->view->count = e->view->count;
		memcpy(d->view->gpus, e->view->gpus, e->view->gpu_count * sizeof(*e->view->gpus));
		memcpy(d->view->entities, e->view->entities, e->view->count * sizeof(*e->view->entities));
	} else {
		d->view->gpu_count = d->view->count = 0;
	}
	d->instances_unavailable = e->connected && e->instances_unavailable;
	for (size_t i = 0; i < DCGM_DEVICES_MAX; i++) {
		struct layout *l = &d->layouts[i];

		if (!(unknown >> i & 1))
			continue;
		l->known = false;
		l->discovered = e->connected && (discovered >> i & 1) ? l->in_progress : 0;
		if (!e->connected)
			l->unlisted = 0;
		/* a layout that changed during this discovery needs another one */
		if (l->wanted == l->in_progress || !e->connected)
			d->discover &= ~(1u << i);
	}
}

/* Rule 7. */
static void
close_engine(struct dcgm *d, int64_t boot_ns)
{
	dcgm_engine_close(&d->engine);
	d->pause_ns = d->pause_ns == 0 ? LEAST_PAUSE_NS : d->pause_ns * 2;
	if (d->pause_ns > MOST_PAUSE_NS)
		d->pause_ns = MOST_PAUSE_NS;
	d->retry_boot_ns = boot_ns + d->pause_ns;
}

/* One round, without the lock. False: the engine failed. */
static bool
work(struct dcgm *d, int64_t boot_ns, uint32_t discover, bool discover_missing, bool *ret_opened, struct err *err)
{
	struct dcgm_engine *e = &d->engine;

	*ret_opened = !e->connected;
	if (!(e->connected ? ((discover == 0 && !discover_missing) || dcgm_engine_discover(e, discover, err))
	                   : dcgm_engine_open(e, &d->options, err)) ||
	    !dcgm_engine_read(e, boot_ns, err)) {
		close_engine(d, boot_ns);
		return false;
	}
	d->pause_ns = 0;
	return true;
}

static void
run_round(struct dcgm *d)
{
	uint64_t round = d->round;
	int64_t boot_ns = d->boot_ns;
	uint32_t discover = d->discover;
	bool discover_missing = d->discover_missing, opened = false, ok;
	struct err err = {0};

	d->discover = 0;
	d->discover_missing = false;
	for (size_t i = 0; i < DCGM_DEVICES_MAX; i++)
		d->layouts[i].in_progress = d->layouts[i].wanted;
	if (d->engine.connected || boot_ns >= d->retry_boot_ns) {
		pthread_mutex_unlock(&d->lock);
		ok = work(d, boot_ns, discover, discover_missing, &opened, &err);
		pthread_mutex_lock(&d->lock);
		d->status.connections += ok && opened;
		d->status.failures += !ok;
		publish(d, opened ? UINT32_MAX : discover, ok ? NULL : &err);
	}
	d->opened = true;
	d->finished = round;
	d->finished_boot_ns = boot_ns;
	pthread_cond_broadcast(&d->done);
}

static void *
worker_main(void *arg)
{
	struct dcgm *d = arg;

	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!d->ending && d->finished == d->round)
			pthread_cond_wait(&d->work, &d->lock);
		if (d->ending)
			break;
		run_round(d);
	}
	pthread_mutex_unlock(&d->lock);
	dcgm_engine_close(&d->engine);
	dcgm_engine_fini(&d->engine);
	pthread_mutex_lock(&d->lock);
	d->ended = true;
	pthread_cond_broadcast(&d->done);
	unref(d);
	return NULL;
}

/* ---- the caller ---- */

static bool
start_worker(struct dcgm *d, struct err *err)
{
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, worker_main, d);
	pthread_attr_destroy(&attr);
	return rc == 0 || err_errno(err, ERR_RETRY, rc, "cannot start a thread for DCGM");
}

bool
dcgm_new(const struct dcgm_options *o, struct dcgm **ret, struct err *err)
{
	struct dcgm *d = mem_alloc(sizeof(*d));

	d->options = *o;
	d->view = mem_alloc(sizeof(*d->view));
	pthread_mutex_init(&d->lock, NULL);
	condition_init(&d->work);
	condition_init(&d->done);
	d->references = 2;
	d->round = 1; /* the first round opens the engine */
	d->retry_boot_ns = INT64_MIN;
	d->boot_ns = d->finished_boot_ns =
		-NS_PER_MIN; /* a failure before the first tick does not delay the next attempt */
	if (!start_worker(d, err)) {
		pthread_mutex_lock(&d->lock);
		d->references = 1;
		unref(d);
		return false;
	}
	*ret = d;
	return true;
}

bool
dcgm_close(struct dcgm *d)
{
	int64_t deadline_ns = time_monotonic_ns() + CLOSE_PATIENCE_NS;
	bool ended;

	if (!d)
		return true;
	pthread_mutex_lock(&d->lock);
	d->ending = true;
	pthread_cond_broadcast(&d->work);
	while (!d->ended && condition_wait_until(&d->done, &d->lock, deadline_ns))
		;
	ended = d->ended;
	unref(d);
	return ended;
}

void
dcgm_free(struct dcgm *d)
{
	(void)dcgm_close(d);
}

bool
dcgm_wait_open(struct dcgm *d, int64_t patience_ns, struct err *err)
{
	int64_t deadline_ns = time_monotonic_ns() + patience_ns;
	bool ok;

	pthread_mutex_lock(&d->lock);
	while (!d->opened && condition_wait_until(&d->done, &d->lock, deadline_ns))
		;
	ok = d->status.up;
	if (!d->opened)
		(void)err_set(err, ERR_RETRY, "DCGM does not answer");
	else if (!ok)
		*err = d->status.trouble;
	pthread_mutex_unlock(&d->lock);
	return ok;
}

void
dcgm_begin(struct dcgm *d, int64_t boot_ns)
{
	pthread_mutex_lock(&d->lock);
	d->late = d->finished != d->round;
	d->status.late += d->late;
	d->round++;
	d->boot_ns = boot_ns;
	d->deadline_ns = time_monotonic_ns() + d->options.wait_ns;
	pthread_cond_signal(&d->work);
	pthread_mutex_unlock(&d->lock);
}

/* Rule 5. Instances of a layout that is still to be discovered are not missing. */
static void
report_unlisted(const struct dcgm *d, struct dcgm_status *ret)
{
	const char *first = NULL;

	for (size_t i = 0; i < d->view->gpu_count; i++) {
		const struct layout *l = &d->layouts[i];

		if (!l->known || l->unlisted == 0)
			continue;
		ret->unlisted += l->unlisted;
		first = first ? first : l->first;
	}
	if (first && !d->instances_unavailable)
		(void)err_set(&ret->not_listed, ERR_RETRY,
		              "DCGM does not list %zu of the MIG instances that NVML lists, first %s", ret->unlisted,
		              first);
}

void
dcgm_status(struct dcgm *d, struct dcgm_status *ret)
{
	bool hangs;

	pthread_mutex_lock(&d->lock);
	hangs = d->finished != d->round &&
	        d->boot_ns - d->finished_boot_ns > VALUE_TICKS * d->options.sample_interval_ns;
	*ret = d->status;
	report_unlisted(d, ret);
	if (d->mismatch)
		(void)err_set(&ret->trouble, ERR_FATAL, "one of DCGM and NVML is a simulator and the other is not");
	else if (hangs)
		(void)err_set(&ret->trouble, ERR_RETRY, "DCGM does not answer in time");
	ret->up = ret->up && !d->mismatch && !hangs;
	pthread_mutex_unlock(&d->lock);
}

/* ---- adding; the lock is held ---- */

static uint64_t
layout_hash(const struct gpu_reading *r)
{
	uint64_t h = hash_number(HASH_START, r->mig);

	for (size_t i = 0; i < r->instance_count; i++) {
		h = hash_text(h, r->instances[i].uuid);
		h = hash_number(h, (uint64_t)(uint32_t)r->instances[i].gi << 32 | (uint32_t)r->instances[i].ci);
	}
	return h;
}

static const struct dcgm_entity *
find_entity(const struct dcgm_view *v, size_t gpu, int32_t gi, int32_t ci)
{
	for (size_t i = 0; i < v->count; i++)
		if (v->entities[i].gpu == gpu && v->entities[i].gi == gi && v->entities[i].ci == ci)
			return &v->entities[i];
	return NULL;
}

static void
count_unlisted(const struct dcgm_view *v, size_t gpu, const struct gpu_reading *r, struct layout *l)
{
	l->unlisted = 0;
	for (size_t i = 0; i < r->instance_count; i++) {
		if (find_entity(v, gpu, r->instances[i].gi, r->instances[i].ci))
			continue;
		if (l->unlisted++ == 0)
			memcpy(l->first, r->instances[i].uuid, sizeof(l->first));
	}
}

/* Rule 5. A view that lacks instances may be of another layout, unless it was discovered for this one. */
static bool
is_of_this_layout(struct dcgm *d, size_t gpu, const struct gpu_reading *r)
{
	struct layout *l = &d->layouts[gpu];
	uint64_t hash = layout_hash(r);
	bool is_late = l->wanted == hash && d->boot_ns - l->wanted_boot_ns >= DISCOVER_PAUSE_NS;

	count_unlisted(d->view, gpu, r, l);
	if (!l->known && (l->unlisted == 0 || l->discovered == hash)) {
		l->known = true;
		l->hash = l->wanted = hash;
	}
	if (l->known && l->hash == hash) {
		if (l->unlisted > 0 && is_late) {
			d->discover_missing = true;
			l->wanted_boot_ns = d->boot_ns;
		}
		return true;
	}
	if (l->wanted != hash || is_late) {
		d->discover |= 1u << gpu;
		l->wanted = hash;
		l->wanted_boot_ns = d->boot_ns;
	}
	return false;
}

/* Rule 2. */
static int64_t
value_of(const struct dcgm *d, const struct dcgm_entity *e, enum dcgm_value which)
{
	if (!e || !(e->fields & DCGM_BIT(which)) ||
	    d->boot_ns - e->boot_ns[which] > VALUE_TICKS * d->options.sample_interval_ns)
		return ABSENT;
	return e->values[which];
}

static void
put(int64_t *to, int64_t value, bool over, enum gpu_kind kind, struct gpu_reading *r)
{
	if (value == ABSENT || (*to != ABSENT && !over))
		return;
	*to = value;
	r->by_dcgm |= 1u << kind;
}

static void
add_counters(const struct dcgm *d, const struct dcgm_entity *e, struct gpu_counters *to)
{
	static const enum dcgm_value pipes[GPU_PIPES] = {
		[GPU_PIPE_FP64] = DCGM_FP64, [GPU_PIPE_FP32] = DCGM_FP32, [GPU_PIPE_FP16] = DCGM_FP16};

	to->present = false;
	for (size_t i = 0; i < GPU_PIPES; i++) {
		to->pipe_ppm[i] = value_of(d, e, pipes[i]);
		to->present |= to->pipe_ppm[i] != ABSENT;
	}
	to->nvlink_tx_bytes_per_s = value_of(d, e, DCGM_NVLINK_TX);
	to->nvlink_rx_bytes_per_s = value_of(d, e, DCGM_NVLINK_RX);
	to->present |= to->nvlink_tx_bytes_per_s != ABSENT || to->nvlink_rx_bytes_per_s != ABSENT;
}

/* NVML samples utilisation in coarse steps and PCIe over 20 ms, so DCGM's values are better. NVML's GPM counters are the same as
 * DCGM's. */
static void
add_whole(const struct dcgm *d, bool prefer, const struct dcgm_entity *e, struct gpu_reading *r)
{
	bool over = prefer || r->sm_active_ppm == ABSENT;

	put(&r->board.pcie_tx_bytes_per_s, value_of(d, e, DCGM_PCIE_TX), over, GPU_KIND_PCIE, r);
	put(&r->board.pcie_rx_bytes_per_s, value_of(d, e, DCGM_PCIE_RX), over, GPU_KIND_PCIE, r);
	if (r->mig)
		return;
	put(&r->active_ppm, value_of(d, e, DCGM_ENGINE), over, GPU_KIND_ACTIVITY, r);
	put(&r->sm_active_ppm, value_of(d, e, DCGM_SM), prefer, GPU_KIND_SM_ACTIVE, r);
	put(&r->sm_occupancy_ppm, value_of(d, e, DCGM_OCCUPANCY), prefer, GPU_KIND_SM_OCCUPANCY, r);
	put(&r->tensor_active_ppm, value_of(d, e, DCGM_TENSOR), prefer, GPU_KIND_TENSOR_ACTIVE, r);
	put(&r->dram_active_ppm, value_of(d, e, DCGM_DRAM), prefer, GPU_KIND_DRAM_ACTIVE, r);
	add_counters(d, e, &r->counters);
}

static bool
is_alone(const struct gpu_reading *r, const struct gpu_instance *in)
{
	for (size_t i = 0; i < r->instance_count; i++)
		if (r->instances[i].gi == in->gi && &r->instances[i] != in)
			return false;
	return true;
}

/* A compute instance's own value, else that of its GPU instance when it is the only one there. */
static int64_t
instance_value(const struct dcgm *d, const struct dcgm_entity *ci, const struct dcgm_entity *gi, enum dcgm_value which)
{
	int64_t own = value_of(d, ci, which);

	return own != ABSENT ? own : value_of(d, gi, which);
}

static void
add_instance(const struct dcgm *d, bool prefer, size_t gpu, struct gpu_instance *in, struct gpu_reading *r)
{
	const struct dcgm_entity *ci = find_entity(d->view, gpu, in->gi, in->ci);
	const struct dcgm_entity *gi = is_alone(r, in) ? find_entity(d->view, gpu, in->gi, -1) : NULL;
	const struct dcgm_entity *same = in->compute_slices == in->gi_compute_slices ? gi : NULL;

	put(&in->active_ppm, instance_value(d, ci, same, DCGM_ENGINE), prefer, GPU_KIND_MIG_ACTIVITY, r);
	put(&in->sm_active_ppm, instance_value(d, ci, same, DCGM_SM), prefer, GPU_KIND_SM_ACTIVE, r);
	put(&in->sm_occupancy_ppm, instance_value(d, ci, same, DCGM_OCCUPANCY), prefer, GPU_KIND_SM_OCCUPANCY, r);
	put(&in->tensor_active_ppm, instance_value(d, ci, same, DCGM_TENSOR), prefer, GPU_KIND_TENSOR_ACTIVE, r);
	put(&in->dram_active_ppm, value_of(d, gi, DCGM_DRAM), prefer, GPU_KIND_DRAM_ACTIVE, r);
	add_counters(d, ci, &in->counters);
}

static void
add(struct dcgm *d, bool prefer, struct gpu_reading *r)
{
	size_t gpu = 0;

	while (gpu < d->view->gpu_count && strcmp(d->view->gpus[gpu].uuid, r->uuid) != 0)
		gpu++;
	if (gpu < d->view->gpu_count && r->down)
		d->layouts[gpu].unlisted = 0;
	if (gpu == d->view->gpu_count || r->down || !is_of_this_layout(d, gpu, r))
		return;
	add_whole(d, prefer, find_entity(d->view, gpu, -1, -1), r);
	for (size_t i = 0; i < r->instance_count; i++)
		add_instance(d, prefer, gpu, &r->instances[i], r);
}

void
dcgm_add(struct dcgm *d, bool prefer, bool simulated, struct gpu_reading *r)
{
	pthread_mutex_lock(&d->lock);
	while (d->finished != d->round && !d->late && condition_wait_until(&d->done, &d->lock, d->deadline_ns))
		;
	d->mismatch = d->status.up && d->status.simulated != simulated;
	if (!d->mismatch)
		add(d, prefer, r);
	pthread_mutex_unlock(&d->lock);
}

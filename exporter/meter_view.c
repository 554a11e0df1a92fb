/* exporter/meter_view.c - one GPU's reading in the terms of the meter. The driver's values are not trusted: what cannot be is
 * brought into range here, so that nothing behind this file has to doubt them. */
#include "exporter/meter_view.h"

#include <stdlib.h>
#include <string.h>

#include "common/units.h"

#define PPM INT64_C(1000000)
/* 4 TiB: above any GPU, and small enough that a quarter-hour of it in byte-milliseconds fits in 63 bits */
#define MEMORY_MAX (INT64_C(1) << 42)

static int64_t
ppm_in_range(int64_t v)
{
	if (v < 0)
		return ABSENT;
	return v > PPM ? PPM : v;
}

static struct dict_device *
find_instance(const struct gpu_view *last, const struct gpu_instance *i)
{
	for (size_t k = 0; k < last->instance_count; k++)
		if (dict_same_instance(last->instances[k].device, i))
			return last->instances[k].device;
	return NULL;
}

static bool
has_device(const struct gpu_view *v, const struct dict_device *device)
{
	for (size_t i = 0; i < v->instance_count; i++)
		if (v->instances[i].device == device)
			return true;
	return false;
}

static int
instance_order(const void *a, const void *b)
{
	const struct view_instance *x = a, *y = b;

	return x->device->wire.id < y->device->wire.id ? -1 : x->device->wire.id > y->device->wire.id;
}

/* What the instances leave of the 5040 is unallocated, up to the stranded part that the source found. */
static void
read_layout(struct gpu_view *v, struct dict *dict, struct dict_device *gpu, const struct gpu_reading *r,
            const struct gpu_view *last, int64_t wall_ns)
{
	int64_t rest = UNITS_PER_GPU;

	for (size_t i = 0; i < r->instance_count && i < GPU_INSTANCE_MAX; i++) {
		const struct gpu_instance *in = &r->instances[i];
		struct dict_device *device;

		if (in->units < 1 || in->units > rest || in->gi < 0 || in->ci < 0) {
			v->layout_odd = true;
			continue;
		}
		device = find_instance(last, in);
		if (device && has_device(v, device)) {
			v->layout_odd = true;
			continue;
		}
		if (!device)
			device = dict_add_instance(dict, gpu, in, wall_ns);
		v->instances[v->instance_count++] =
			(struct view_instance){.device = device, .active_ppm = ppm_in_range(in->active_ppm)};
		rest -= in->units;
	}
	qsort(v->instances, v->instance_count, sizeof(v->instances[0]), instance_order);
	v->units_stranded = r->units_stranded < 0 ? 0 : r->units_stranded > rest ? rest : r->units_stranded;
	v->units_unallocated = rest - v->units_stranded;
}

/* NULL: a process outside every instance of a partitioned GPU holds nothing. */
static struct dict_device *
device_of(const struct gpu_view *v, struct dict_device *gpu, const struct tick_process *p)
{
	if (!v->mig)
		return gpu;
	for (size_t i = 0; i < v->instance_count; i++) {
		struct dict_device *device = v->instances[i].device;

		if (device->wire.gi == p->gi && device->wire.ci == p->ci)
			return device;
	}
	return NULL;
}

static int
presence_order(const void *a, const void *b)
{
	const struct presence *x = a, *y = b;

	if (x->device != y->device)
		return x->device->wire.id < y->device->wire.id ? -1 : 1;
	return dict_holder_order(x->holder, y->holder);
}

static void
merge_presence(struct presence *into, const struct presence *p)
{
	if (p->begin_ns < into->begin_ns)
		into->begin_ns = p->begin_ns;
	into->memory_bytes += p->memory_bytes;
	if (into->memory_bytes > MEMORY_MAX)
		into->memory_bytes = MEMORY_MAX;
	into->sm_ppm += p->sm_ppm;
	if (into->sm_ppm > PPM)
		into->sm_ppm = PPM;
}

/* Sorted, with the processes of one holder on one device made one. */
static void
read_presences(struct gpu_view *v, struct dict *dict, struct dict_device *gpu, const struct tick_gpu *t,
               int64_t wall_offset_ns)
{
	size_t n = 0, kept = 0;

	if (t->process_count > v->presence_cap) {
		v->presence_cap = t->process_count;
		v->presences = mem_grow(v->presences, v->presence_cap, sizeof(*v->presences));
	}
	for (size_t i = 0; i < t->process_count; i++) {
		const struct tick_process *p = &t->processes[i];
		struct dict_device *device = device_of(v, gpu, p);
		int64_t memory = p->memory_bytes < 0 ? 0 : p->memory_bytes > MEMORY_MAX ? MEMORY_MAX : p->memory_bytes;
		int64_t sm_ppm = ppm_in_range(p->sm_ppm);
		int64_t begin_ns;

		if (!device)
			continue;
		if (__builtin_add_overflow(p->start_boot_ns, wall_offset_ns, &begin_ns))
			begin_ns = INT64_MAX;
		v->presences[n++] = (struct presence){.device = device,
		                                      .holder = dict_holder(dict, p->holder),
		                                      .begin_ns = begin_ns,
		                                      .memory_bytes = memory,
		                                      .sm_ppm = sm_ppm == ABSENT ? 0 : sm_ppm};
	}
	if (n > 1)
		qsort(v->presences, n, sizeof(*v->presences), presence_order);
	for (size_t i = 0; i < n; i++) {
		if (kept > 0 && presence_order(&v->presences[kept - 1], &v->presences[i]) == 0)
			merge_presence(&v->presences[kept - 1], &v->presences[i]);
		else
			v->presences[kept++] = v->presences[i];
	}
	v->presence_count = kept;
}

/* Empties a view and keeps its memory. */
static void
reset(struct gpu_view *v)
{
	*v = (struct gpu_view){.presences = v->presences, .presence_cap = v->presence_cap, .active_ppm = ABSENT};
}

void
gpu_view_read(struct gpu_view *v, struct dict *dict, struct dict_device *gpu, const struct tick_gpu *t,
              const struct gpu_view *last, int64_t wall_ns, int64_t wall_offset_ns)
{
	const struct gpu_reading *r = t->reading;

	if (r->down) {
		gpu_view_down(v, last);
		return;
	}
	reset(v);
	v->mig = r->mig;
	v->mps = r->mps;
	v->active_ppm = ppm_in_range(r->active_ppm);
	/* drivers do not tell the processes of instances apart */
	v->process_activity = r->process_activity && !r->mig;
	if (r->mig)
		read_layout(v, dict, gpu, r, last, wall_ns);
	read_presences(v, dict, gpu, t, wall_offset_ns);
}

void
gpu_view_down(struct gpu_view *v, const struct gpu_view *last)
{
	reset(v);
	v->down = true;
	v->mig = last->mig;
	memcpy(v->instances, last->instances, sizeof(v->instances));
	v->instance_count = last->instance_count;
}

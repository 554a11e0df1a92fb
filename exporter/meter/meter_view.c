/* exporter/meter/meter_view.c - one GPU's reading in the terms of the meter. The driver's values are not trusted: what cannot be is
 * brought into range here, so that nothing behind this file has to doubt them. */
#include "exporter/meter/meter_view.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exporter/meter/meter_people.h"

#define REPLICAS_MAX 1024 /* of one device; a device plugin has its own, far lower limit */

void
gpu_view_fini(struct gpu_view *v)
{
	mem_free(v->processes);
	mem_free(v->claims);
	mem_free(v->exits);
	*v = (struct gpu_view){0};
}

static int64_t
ppm_in_range(int64_t v)
{
	if (v < 0)
		return ABSENT;
	return v > PPM ? PPM : v;
}

static int64_t
memory_in_range(int64_t v)
{
	if (v < 0)
		return 0;
	return v > VIEW_MEMORY_MAX ? VIEW_MEMORY_MAX : v;
}

/* Far from both ends of what fits, so that who adds a tolerance or a slot need not look. */
static int64_t
wall_of(int64_t boot_ns, int64_t offset_ns)
{
	int64_t wall_ns;

	if (__builtin_add_overflow(boot_ns, offset_ns, &wall_ns))
		return boot_ns < 0 ? 0 : INT64_MAX / 2;
	return wall_ns < 0 ? 0 : wall_ns > INT64_MAX / 2 ? INT64_MAX / 2 : wall_ns;
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
read_layout(struct gpu_view *v, const struct view_context *c, const struct gpu_reading *r)
{
	int64_t rest = UNITS_PER_GPU;
	bool sorted = true;

	for (size_t i = 0; i < r->instance_count && i < GPU_INSTANCE_MAX; i++) {
		const struct gpu_instance *in = &r->instances[i];
		struct dict_device *device;

		if (in->units < 1 || in->units > rest || in->gi < 0 || in->ci < 0) {
			v->layout_odd = true;
			continue;
		}
		device = find_instance(c->last, in);
		if (device && has_device(v, device)) {
			v->layout_odd = true;
			continue;
		}
		if (!device)
			device = dict_add_instance(c->dict, c->gpu, in, c->wall_ns);
		v->instances[v->instance_count++] = (struct view_instance){
			.device = device, .activity = {ppm_in_range(in->active_ppm), ppm_in_range(in->sm_active_ppm)}};
		sorted = sorted && (v->instance_count == 1 ||
		                    v->instances[v->instance_count - 2].device->wire.id < device->wire.id);
		rest -= in->units;
	}
	if (!sorted)
		qsort(v->instances, v->instance_count, sizeof(v->instances[0]), instance_order);
	v->units_stranded = r->units_stranded < 0 ? 0 : r->units_stranded > rest ? rest : r->units_stranded;
	v->units_unallocated = rest - v->units_stranded;
}

/* ---- processes ---- */

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
process_order(const void *a, const void *b)
{
	return view_process_order(a, b);
}

/* Mostly the driver lists them in the order they have here, or nearly; then this neither allocates nor takes long. */
static void
sort_processes(struct view_process *p, size_t n)
{
	if (n > 64) {
		qsort(p, n, sizeof(*p), process_order);
		return;
	}
	for (size_t i = 1; i < n; i++) {
		struct view_process moving;
		size_t at = i;

		if (view_process_order(&p[i - 1], &p[i]) <= 0)
			continue;
		moving = p[i];
		for (; at > 0 && view_process_order(&p[at - 1], &moving) > 0; at--)
			p[at] = p[at - 1];
		p[at] = moving;
	}
}

static void
read_processes(struct gpu_view *v, const struct view_context *c, const struct tick_gpu *t)
{
	if (t->process_count > v->process_cap) {
		v->process_cap = t->process_count;
		v->processes = mem_grow(v->processes, v->process_cap, sizeof(*v->processes));
	}
	for (size_t i = 0; i < t->process_count; i++) {
		const struct tick_process *p = &t->processes[i];
		struct dict_device *device = device_of(v, c->gpu, p);
		int64_t sm_ppm = ppm_in_range(p->sm_ppm);

		if (!device)
			continue;
		v->processes[v->process_count++] =
			(struct view_process){.device = device,
		                              .holder = dict_holder(c->dict, p->holder),
		                              .pid = p->pid,
		                              .begin_ns = wall_of(p->start_boot_ns, c->wall_offset_ns),
		                              .end_ns = INT64_MAX,
		                              .memory_bytes = memory_in_range(p->memory_bytes),
		                              .sm_ppm = sm_ppm == ABSENT ? 0 : sm_ppm,
		                              .place = c->first_place + i};
	}
	sort_processes(v->processes, v->process_count);
}

/* An exit of a process that this tick still sees: it ended while the GPU was being read, or it let go of the GPU and came back. */
static void
meet_exits(struct gpu_view *v, const struct view_context *c)
{
	for (size_t i = 0; i < v->process_count; i++) {
		struct view_process *p = &v->processes[i];

		for (size_t k = 0; k < v->exit_count; k++) {
			struct view_exit *e = &v->exits[k];

			if (e->pid != p->pid || e->begin_ns < p->begin_ns - c->tolerance_ns)
				continue;
			e->seen = true;
			if (e->end_ns >= c->wall_ns - c->tolerance_ns)
				p->end_ns = e->end_ns;
		}
	}
}

static void
read_exits(struct gpu_view *v, const struct view_context *c, const struct tick_gpu *t)
{
	if (t->exit_count > v->exit_cap) {
		v->exit_cap = t->exit_count;
		v->exits = mem_grow(v->exits, v->exit_cap, sizeof(*v->exits));
	}
	for (size_t i = 0; i < t->exit_count; i++) {
		const struct tick_exit *e = &t->exits[i];

		v->exits[v->exit_count++] =
			(struct view_exit){.holder = e->holder ? dict_holder(c->dict, e->holder) : NULL,
		                           .pid = e->pid,
		                           .begin_ns = wall_of(e->start_boot_ns, c->wall_offset_ns),
		                           .end_ns = wall_of(e->end_boot_ns, c->wall_offset_ns),
		                           .active_ppm = ppm_in_range(e->active_ppm),
		                           .memory_bytes = memory_in_range(e->memory_bytes)};
	}
	meet_exits(v, c);
}

static bool
has_pid(const struct gpu_view *v, uint32_t pid)
{
	for (size_t i = 0; i < v->process_count; i++)
		if (v->processes[i].pid == pid)
			return true;
	for (size_t i = 0; i < v->exit_count; i++)
		if (v->exits[i].pid == pid)
			return true;
	return false;
}

int64_t
gpu_view_sampled(const struct gpu_view *v, const struct gpu_view *last, const struct gpu_reading *r)
{
	int64_t n = 0;

	/* who was there before an outage, nobody knows any more */
	if (v->down || v->silent || last->down)
		return 0;
	for (size_t i = 0; i < r->sampled_count && i < GPU_SAMPLED_MAX; i++)
		n += !has_pid(v, r->sampled[i]) && !has_pid(last, r->sampled[i]);
	return n;
}

/* ---- allocations ---- */

bool
gpu_view_claim(struct gpu_view *v, const struct view_context *c, const char *uuid, const struct tick_allocation *a)
{
	struct dict_device *device = NULL;
	int64_t of = a->replica_of > a->replica ? a->replica_of : (int64_t)a->replica + 1;

	if (!v->mig && strcmp(uuid, a->device_uuid) == 0)
		device = c->gpu;
	for (size_t i = 0; v->mig && !device && i < v->instance_count; i++)
		if (strcmp(v->instances[i].device->uuid_read, a->device_uuid) == 0)
			device = v->instances[i].device;
	if (!device || of > REPLICAS_MAX)
		return false;
	if (v->claim_count == v->claim_cap) {
		v->claim_cap = v->claim_cap ? v->claim_cap * 2 : 8;
		v->claims = mem_grow(v->claims, v->claim_cap, sizeof(*v->claims));
	}
	v->claims[v->claim_count++] =
		(struct view_claim){.device = device,
	                            .holder = dict_holder(c->dict, a->holder),
	                            .begin_ns = a->begin_boot_ns < 0 ? INT64_MAX
	                                                             : wall_of(a->begin_boot_ns, c->wall_offset_ns),
	                            .replica = a->replica < 0 ? -1 : a->replica,
	                            .replicas = a->replica < 0 ? 0 : 1,
	                            .replica_of = of};
	return true;
}

static int
claim_order(const void *a, const void *b)
{
	const struct view_claim *x = a, *y = b;
	int order = view_claim_order(x, y);

	if (order != 0)
		return order;
	return x->replica < y->replica ? -1 : x->replica > y->replica;
}

/* Another allocation of the same device to the same holder; they come in the order of replicas, all of the device first. */
static void
merge_claim(struct view_claim *into, const struct view_claim *c)
{
	if (into->replicas > 0 && c->replica != into->replica)
		into->replicas++;
	into->replica = c->replica;
	if (c->begin_ns < into->begin_ns)
		into->begin_ns = c->begin_ns;
	if (c->replica_of > into->replica_of)
		into->replica_of = c->replica_of;
}

void
gpu_view_claimed(struct gpu_view *v)
{
	size_t kept = 0;

	if (v->claim_count > 1)
		qsort(v->claims, v->claim_count, sizeof(*v->claims), claim_order);
	for (size_t i = 0; i < v->claim_count; i++) {
		if (kept > 0 && view_claim_order(&v->claims[kept - 1], &v->claims[i]) == 0)
			merge_claim(&v->claims[kept - 1], &v->claims[i]);
		else
			v->claims[kept++] = v->claims[i];
	}
	v->claim_count = kept;
}

/* ---- the view ---- */

/* Empties a view and keeps its memory. */
static void
reset(struct gpu_view *v)
{
	*v = (struct gpu_view){.processes = v->processes,
	                       .process_cap = v->process_cap,
	                       .claims = v->claims,
	                       .claim_cap = v->claim_cap,
	                       .exits = v->exits,
	                       .exit_cap = v->exit_cap,
	                       .activity = {ABSENT, ABSENT}};
}

static void
keep_layout(struct gpu_view *v, const struct gpu_view *last)
{
	reset(v);
	v->read_ns = last->read_ns;
	v->mig = last->mig;
	memcpy(v->instances, last->instances, sizeof(v->instances));
	v->instance_count = last->instance_count;
}

/* Nothing is known of it, so all stays as it was: the slots at both sides are unknown, and totals go on after it. */
static void
view_silent(struct gpu_view *v, const struct gpu_view *last)
{
	keep_layout(v, last);
	v->silent = true;
	if (last->process_count == 0)
		return;
	if (last->process_count > v->process_cap) {
		v->process_cap = last->process_count;
		v->processes = mem_grow(v->processes, v->process_cap, sizeof(*v->processes));
	}
	memcpy(v->processes, last->processes, last->process_count * sizeof(*v->processes));
	v->process_count = last->process_count;
}

void
gpu_view_down(struct gpu_view *v, const struct gpu_view *last)
{
	keep_layout(v, last);
	v->down = true;
}

void
gpu_view_read(struct gpu_view *v, const struct view_context *c, const struct tick_gpu *t)
{
	const struct gpu_reading *r = t->reading;

	if (r->silent) {
		view_silent(v, c->last);
		return;
	}
	if (r->down) {
		gpu_view_down(v, c->last);
		return;
	}
	reset(v);
	v->read_ns = c->wall_ns;
	v->mig = r->mig;
	v->mps = r->mps;
	v->activity = (struct view_activity){ppm_in_range(r->active_ppm), ppm_in_range(r->sm_active_ppm)};
	/* drivers do not tell the processes of instances apart */
	v->process_activity = r->process_activity && !r->mig;
	if (r->mig)
		read_layout(v, c, r);
	read_processes(v, c, t);
	read_exits(v, c, t);
}

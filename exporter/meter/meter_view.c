/* exporter/meter/meter_view.c - one GPU as one tick saw it: known devices and holders, values in range. The driver's values are not
 * trusted; they are brought into range here, so that the rest of the meter can rely on them. */
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exporter/meter/meter_internal.h"

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
known_or_zero(int64_t v)
{
	return v == ABSENT ? 0 : v;
}

static int64_t
memory_in_range(int64_t v)
{
	if (v < 0)
		return 0;
	return v > METER_MEMORY_MAX ? METER_MEMORY_MAX : v;
}

/* Far from both ends of the range, so that a tolerance or a slot can be added without a check. */
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

/* The rest of the 5040 units is unallocated, but for the stranded part that the source found. */
static void
read_layout(struct gpu_view *v, const struct view_context *c, const struct gpu_reading *r)
{
	int64_t rest = UNITS_PER_GPU;
	bool sorted = true;

	for (size_t i = 0; i < r->instance_count && i < GPU_INSTANCE_MAX; i++) {
		const struct gpu_instance *in = &r->instances[i];
		struct dict_device *device;

		if (in->units < 1 || in->units > rest || in->gi < 0 || in->ci < 0) {
			v->layout_invalid = true;
			continue;
		}
		device = find_instance(c->last, in);
		if (device && has_device(v, device)) {
			v->layout_invalid = true;
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

/* The device that a process runs on. NULL: it is outside every instance of a partitioned GPU, so it holds nothing. */
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
process_qsort_order(const void *a, const void *b)
{
	return process_order(a, b);
}

/* The driver lists processes nearly in this order, so an insertion sort is fast; it also allocates nothing. */
static void
sort_processes(struct meter_process *p, size_t n)
{
	if (n > 64) {
		qsort(p, n, sizeof(*p), process_qsort_order);
		return;
	}
	for (size_t i = 1; i < n; i++) {
		struct meter_process moving;
		size_t at = i;

		if (process_order(&p[i - 1], &p[i]) <= 0)
			continue;
		moving = p[i];
		for (; at > 0 && process_order(&p[at - 1], &moving) > 0; at--)
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

		if (!device)
			continue;
		v->processes[v->process_count++] =
			(struct meter_process){.device = device,
		                               .holder = dict_holder(c->dict, p->holder),
		                               .pid = p->pid,
		                               .begin_ns = wall_of(p->start_boot_ns, c->wall_offset_ns),
		                               .end_ns = INT64_MAX,
		                               .memory_bytes = memory_in_range(p->memory_bytes),
		                               .active_ppm = known_or_zero(ppm_in_range(p->sm_ppm)),
		                               .place = c->first_place + i};
	}
	sort_processes(v->processes, v->process_count);
}

/* Exits of processes that this tick still sees: one ended while the GPU was being read, or closed the GPU and opened it again. */
static void
meet_exits(struct gpu_view *v, const struct view_context *c)
{
	for (size_t i = 0; i < v->process_count; i++) {
		struct meter_process *p = &v->processes[i];

		for (size_t k = 0; k < v->exit_count; k++) {
			struct meter_process *e = &v->exits[k];

			if (e->pid != p->pid || e->begin_ns < p->begin_ns - c->tolerance_ns)
				continue;
			e->seen = SEEN_BY_SECOND;
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
		const struct tick_process *e = &t->exits[i];
		int64_t active_ppm = ppm_in_range(e->sm_ppm);

		v->exits[v->exit_count++] =
			(struct meter_process){.device = c->gpu,
		                               .holder = e->holder ? dict_holder(c->dict, e->holder) : NULL,
		                               .pid = e->pid,
		                               .begin_ns = wall_of(e->start_boot_ns, c->wall_offset_ns),
		                               .end_ns = wall_of(e->end_boot_ns, c->wall_offset_ns),
		                               .memory_bytes = memory_in_range(e->memory_bytes),
		                               .accounted = active_ppm != ABSENT,
		                               .active_ppm = known_or_zero(active_ppm)};
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

	/* after an outage the processes before it are not known */
	if (v->down || v->silent || last->down)
		return 0;
	for (size_t i = 0; i < r->sampled_count && i < GPU_SAMPLED_MAX; i++)
		n += !has_pid(v, r->sampled[i]) && !has_pid(last, r->sampled[i]);
	return n;
}

/* ---- allocations ---- */

bool
gpu_view_add_claim(struct gpu_view *v, const struct view_context *c, const char *uuid, const struct tick_allocation *a)
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
	array_room(v->claims, v->claim_count, v->claim_cap);
	v->claims[v->claim_count++] =
		(struct claim){.device = device,
	                       .holder = dict_holder(c->dict, a->holder),
	                       .begin_ns =
	                               a->begin_boot_ns < 0 ? INT64_MAX : wall_of(a->begin_boot_ns, c->wall_offset_ns),
	                       .replica = a->replica < 0 ? -1 : a->replica,
	                       .replicas = a->replica < 0 ? 0 : 1,
	                       .replica_of = of};
	return true;
}

static int
claim_qsort_order(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;
	int order = claim_order(x, y);

	if (order != 0)
		return order;
	return x->replica < y->replica ? -1 : x->replica > y->replica;
}

/* Adds another allocation of the same device to the same holder. They come sorted by replica; an allocation of the whole device comes first. */
static void
merge_claim(struct claim *into, const struct claim *c)
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
gpu_view_join_claims(struct gpu_view *v)
{
	size_t kept = 0;

	if (v->claim_count > 1)
		qsort(v->claims, v->claim_count, sizeof(*v->claims), claim_qsort_order);
	for (size_t i = 0; i < v->claim_count; i++) {
		if (kept > 0 && claim_order(&v->claims[kept - 1], &v->claims[i]) == 0)
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

/* A silent GPU keeps its last layout. The slots before and after this tick are unknown, and totals continue after it. */
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
	v->activity = (struct device_activity){ppm_in_range(r->active_ppm), ppm_in_range(r->sm_active_ppm)};
	/* drivers do not measure the processes of instances one by one */
	v->process_activity = r->process_activity && !r->mig;
	if (r->mig)
		read_layout(v, c, r);
	read_processes(v, c, t);
	read_exits(v, c, t);
}

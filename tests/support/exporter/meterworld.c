/* tests/support/exporter/meterworld.c - a small node for tests of the meter. */
#include "tests/support/exporter/meterworld.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/units.h"

static struct wire_holder
user(uint32_t id, const char *name)
{
	static char empty[] = "";
	struct wire_holder h = {.id = id, .kind = WIRE_HOST_USER, .uid = 1000 + (int64_t)id};

	h.ns = h.pod = h.pod_uid = h.container = h.slurm_job = h.slurm_account = h.group = h.labels = empty;
	h.user = mem_strdup(name);
	return h;
}

void
meterworld_init(struct meterworld *w, size_t gpus, int replicas)
{
	struct meter_options o = {
		.sample_interval_ns = S, .interval_ns = 60 * S, .wall_offset_ns = OFFSET, .replicas = replicas};

	*w = (struct meterworld){.meter = meter_new(&o), .gpu_count = gpus};
	w->gpus = mem_array(4, sizeof(*w->gpus));
	w->alice = user(7, "alice");
	w->bob = user(3, "bob");
	w->carol = user(5, "carol");
	for (size_t i = 0; i < gpus; i++) {
		struct gpu_reading *g = &w->gpus[i];

		snprintf(g->uuid, sizeof(g->uuid), "GPU-%zu", i);
		snprintf(g->model, sizeof(g->model), "NVIDIA H100 80GB HBM3");
		g->index = (int32_t)i;
		g->active_ppm = 0;
		g->sm_active_ppm = ABSENT;
		g->memory_bytes = INT64_C(80) << 30;
		g->energy_mj = ABSENT;
	}
}

void
meterworld_fini(struct meterworld *w)
{
	meter_free(w->meter);
	mem_free(w->gpus);
	mem_free(w->alice.user);
	mem_free(w->bob.user);
	mem_free(w->carol.user);
}

struct tick_process *
run(struct meterworld *w, size_t gpu, const struct wire_holder *h, int64_t start_boot_ns)
{
	struct tick_gpu *g = &w->tick_gpus[gpu];
	struct tick_process *p = &w->processes[gpu][g->process_count];

	*p = (struct tick_process){.holder = h,
	                           .pid = 100 + (uint32_t)g->process_count++,
	                           .start_boot_ns = start_boot_ns,
	                           .gi = -1,
	                           .ci = -1,
	                           .memory_bytes = ABSENT,
	                           .sm_ppm = ABSENT};
	return p;
}

void
stop_all(struct meterworld *w, size_t gpu)
{
	w->tick_gpus[gpu].process_count = 0;
}

struct tick_process *
ended(struct meterworld *w, size_t gpu, const struct wire_holder *h, uint32_t pid, int64_t start_boot_ns,
      int64_t end_boot_ns)
{
	struct tick_process *e = &w->exits[gpu][w->tick_gpus[gpu].exit_count++];

	*e = (struct tick_process){.holder = h,
	                           .pid = pid,
	                           .start_boot_ns = start_boot_ns,
	                           .end_boot_ns = end_boot_ns,
	                           .sm_ppm = ABSENT,
	                           .memory_bytes = ABSENT};
	return e;
}

struct tick_allocation *
allocate(struct meterworld *w, const struct wire_holder *h, const char *device_uuid, int32_t replica)
{
	struct tick_allocation *a = &w->allocations[w->allocation_count++];

	*a = (struct tick_allocation){
		.holder = h, .device_uuid = device_uuid, .replica = replica, .begin_boot_ns = ABSENT};
	return a;
}

struct gpu_instance *
instance(struct gpu_reading *g, int gi, const char *profile, int64_t units)
{
	struct gpu_instance *i = &g->instances[g->instance_count++];

	*i = (struct gpu_instance){
		.gi = gi, .ci = 0, .units = units, .memory_bytes = 10, .active_ppm = ABSENT, .sm_active_ppm = ABSENT};
	snprintf(i->uuid, sizeof(i->uuid), "MIG-%d", gi);
	snprintf(i->profile, sizeof(i->profile), "%s", profile);
	g->mig = true;
	g->active_ppm = ABSENT;
	return i;
}

bool
tick(struct meterworld *w, int64_t boot_ns)
{
	struct tick t = {.boot_ns = boot_ns,
	                 .gpus = w->tick_gpus,
	                 .gpu_count = w->gpu_count,
	                 .allocations = w->allocations,
	                 .allocation_count = w->allocation_count};
	bool closed;

	for (size_t i = 0; i < w->gpu_count; i++) {
		w->tick_gpus[i].reading = &w->gpus[i];
		w->tick_gpus[i].processes = w->processes[i];
		w->tick_gpus[i].exits = w->exits[i];
	}
	closed = meter_tick(w->meter, &t);
	for (size_t i = 0; i < w->gpu_count; i++)
		w->tick_gpus[i].exit_count = 0;
	return closed;
}

void
ticks(struct meterworld *w, int64_t from_ns, int64_t to_ns)
{
	for (int64_t t = from_ns; t <= to_ns; t += S)
		(void)tick(w, t);
}

struct wire_batch *
take_all(struct meterworld *w)
{
	struct wire_batch *b = wire_batch_new();
	struct err err;

	meter_flush(w->meter);
	assert_true(meter_batch(w->meter, true, b));
	b->kind = WIRE_USAGE;
	b->node = mem_strdup("node");
	b->exporter_version = mem_strdup("test");
	b->epoch = b->seq = b->last_seq = 1;
	if (!wire_check(b, &err))
		fail_msg("%s", err.text);
	return b;
}

const struct wire_device *
device_of(const struct wire_batch *b, uint32_t id)
{
	size_t i = 0;

	while (i < b->device_count && b->devices[i].id != id)
		i++;
	ASSERT(i < b->device_count); /* every record's device is in the full dictionary */
	return &b->devices[i];
}

static const char *
holder_of(const struct wire_batch *b, uint32_t id)
{
	for (size_t i = 0; i < b->holder_count; i++)
		if (b->holders[i].id == id)
			return b->holders[i].user;
	return "";
}

int128
unit_ns(const struct wire_batch *b, const char *gpu_uuid)
{
	int128 sum = 0;

	for (size_t i = 0; i < b->record_count; i++) {
		const struct wire_device *d = device_of(b, b->records[i].device);

		if (strcmp(device_of(b, d->gpu)->uuid, gpu_uuid) == 0)
			sum += (int128)b->records[i].units * b->records[i].held_ns;
	}
	return sum;
}

static void
describe(const struct wire_batch *b, struct buf *out)
{
	for (size_t i = 0; i < b->record_count; i++) {
		const struct wire_record *r = &b->records[i];

		buf_printf(out,
		           "%s %s %s %s %s %" PRId64 "+%" PRId64 " units=%" PRId64 " held=%" PRId64 " used=%" PRId64,
		           device_of(b, r->device)->uuid, r->holder ? holder_of(b, r->holder) : "-",
		           wire_state_name(r->state), wire_sharing_name(r->sharing), wire_method_name(r->method),
		           (r->start_ns - OFFSET) / MS, r->duration_ns / MS, r->units, r->held_ns / MS,
		           r->used_ns / MS);
		if (r->unmeasured_ns)
			buf_printf(out, " unmeasured=%" PRId64, r->unmeasured_ns / MS);
		if (r->over_ns)
			buf_printf(out, " over=%" PRId64, r->over_ns / MS);
		if (r->energy_mj)
			buf_printf(out, " mj=%" PRId64, r->energy_mj);
		if (r->memory_byte_ms)
			buf_printf(out, " mem=%" PRId64, r->memory_byte_ms);
		buf_printf(out, " ticks=%" PRId64 "\n", r->ticks);
	}
}

void
expect(struct meterworld *w, const char *want)
{
	owned(wire_batch) struct wire_batch *b = take_all(w);
	in_place(buf) struct buf got;

	buf_init(&got, 1 << 20);
	describe(b, &got);
	assert_string_equal(buf_text(&got), want);
}

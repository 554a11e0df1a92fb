/* Ticks with any values at all: no driver, scheduler or clock makes the meter stop, or make a batch that is refused, or lose or
 * make up a unit-nanosecond. The input is read as a row of small commands. */
#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/meter/meter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define GPUS 2
#define LIST 6
#define HOLDERS 3

struct node {
	const uint8_t *at, *end;
	struct gpu_reading *readings;
	struct tick_gpu gpus[GPUS];
	struct tick_process processes[GPUS][LIST];
	struct tick_process exits[GPUS][LIST];
	struct tick_allocation allocations[LIST];
	struct tick tick;
};

static char empty[] = "", names[HOLDERS][8] = {"u0", "u1", "u2"};
static struct wire_holder holders[HOLDERS];

static uint8_t
next(struct node *n)
{
	return n->at < n->end ? *n->at++ : 0;
}

/* Small, near the clock, or at the ends of the range. */
static int64_t
number(struct node *n)
{
	uint8_t kind = next(n);
	int64_t v = next(n);

	switch (kind % 6) {
	case 0: return v;
	case 1: return v * 4000;
	case 2: return n->tick.boot_ns + (v - 128) * 10 * NS_PER_MS;
	case 3: return INT64_MAX - v;
	case 4: return INT64_MIN + v;
	default: return -v;
	}
}

static void
command_gpu(struct node *n, size_t g)
{
	struct gpu_reading *r = &n->readings[g];
	uint8_t flags = next(n);

	r->down = flags & 1;
	r->silent = flags & 2;
	r->mig = flags & 4;
	r->mps = flags & 8;
	r->process_activity = flags & 16;
	r->active_ppm = number(n);
	r->energy_mj = number(n);
	r->units_stranded = number(n);
}

static void
command_instance(struct node *n, size_t g)
{
	struct gpu_reading *r = &n->readings[g];
	struct gpu_instance *i;

	if (r->instance_count == 4) {
		r->instance_count = 0;
		return;
	}
	i = &r->instances[r->instance_count++];
	*i = (struct gpu_instance){.gi = (int32_t)(next(n) % 5) - 1, .ci = (int32_t)(next(n) % 3) - 1};
	i->units = next(n) % 4 ? next(n) * 20 : number(n);
	i->active_ppm = number(n);
	snprintf(i->uuid, sizeof(i->uuid), "MIG-%zu-%d", g, i->gi);
}

static void
command_process(struct node *n, size_t g)
{
	struct tick_gpu *t = &n->gpus[g];

	if (t->process_count == LIST) {
		t->process_count = next(n) % LIST;
		return;
	}
	n->processes[g][t->process_count++] = (struct tick_process){.holder = &holders[next(n) % HOLDERS],
	                                                            .pid = next(n) % 8,
	                                                            .start_boot_ns = number(n),
	                                                            .gi = (int32_t)(next(n) % 5) - 1,
	                                                            .ci = (int32_t)(next(n) % 3) - 1,
	                                                            .memory_bytes = number(n),
	                                                            .sm_ppm = number(n)};
}

static void
command_exit(struct node *n, size_t g)
{
	struct tick_gpu *t = &n->gpus[g];
	uint8_t who = next(n) % (HOLDERS + 1);

	if (t->exit_count == LIST)
		return;
	n->exits[g][t->exit_count++] = (struct tick_process){.holder = who < HOLDERS ? &holders[who] : NULL,
	                                                     .pid = next(n) % 8,
	                                                     .start_boot_ns = number(n),
	                                                     .end_boot_ns = number(n),
	                                                     .sm_ppm = number(n),
	                                                     .memory_bytes = number(n)};
}

static void
command_allocation(struct node *n, size_t g)
{
	static const char *const uuids[GPUS][3] = {{"GPU-0", "MIG-0-0", "MIG-0-1"}, {"GPU-1", "MIG-1-0", "none"}};

	if (n->tick.allocation_count == LIST) {
		n->tick.allocation_count = next(n) % LIST;
		return;
	}
	n->allocations[n->tick.allocation_count++] = (struct tick_allocation){.holder = &holders[next(n) % HOLDERS],
	                                                                      .device_uuid = uuids[g][next(n) % 3],
	                                                                      .replica = (int32_t)number(n),
	                                                                      .replica_of = (int32_t)number(n),
	                                                                      .begin_boot_ns = number(n)};
}

/* Every batch is one that an aggregator takes, and has all of the time of each GPU that is in it from its beginning. */
static void
check_batches(struct meter *m)
{
	for (;;) {
		owned(wire_batch) struct wire_batch *b = wire_batch_new();
		int128 sum = 0;
		struct err err;

		if (!meter_batch(m, true, b))
			return;
		b->kind = WIRE_USAGE;
		b->node = mem_strdup("n");
		b->exporter_version = mem_strdup("v");
		b->epoch = b->seq = b->last_seq = 1;
		ASSERT(wire_check(b, &err));
		for (size_t i = 0; i < b->record_count; i++)
			sum += (int128)b->records[i].units * b->records[i].held_ns;
		/* both GPUs are in service from the first tick */
		ASSERT(sum == (int128)UNITS_PER_GPU * GPUS * (b->to_ns - b->from_ns));
	}
}

static void
command_tick(struct node *n, struct meter *m)
{
	n->tick.boot_ns += next(n) * 20 * NS_PER_MS;
	(void)meter_tick(m, &n->tick);
	check_batches(m);
	for (size_t g = 0; g < GPUS; g++)
		n->gpus[g].exit_count = 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const commands[])(struct node *, size_t) = {command_gpu, command_instance, command_process,
	                                                          command_exit, command_allocation};
	struct node n = {.at = data, .end = data + size, .tick = {.boot_ns = NS_PER_HOUR, .gpu_count = GPUS}};
	struct meter_options o = {.sample_interval_ns = NS_PER_S,
	                          .interval_ns = 5 * NS_PER_S,
	                          .wall_offset_ns = INT64_C(1999999) * NS_PER_QUARTER_HOUR};
	struct meter *m;

	for (size_t i = 0; i < HOLDERS; i++) {
		holders[i] = (struct wire_holder){.id = (uint32_t)i + 1, .kind = WIRE_HOST_USER, .user = names[i]};
		holders[i].ns = holders[i].pod = holders[i].pod_uid = holders[i].container = empty;
		holders[i].slurm_job = holders[i].slurm_account = holders[i].group = holders[i].labels = empty;
	}
	n.readings = mem_array(GPUS, sizeof(*n.readings));
	for (size_t g = 0; g < GPUS; g++) {
		snprintf(n.readings[g].uuid, sizeof(n.readings[g].uuid), "GPU-%zu", g);
		snprintf(n.readings[g].model, sizeof(n.readings[g].model), "H100");
		n.gpus[g] =
			(struct tick_gpu){.reading = &n.readings[g], .processes = n.processes[g], .exits = n.exits[g]};
	}
	n.tick.gpus = n.gpus;
	n.tick.allocations = n.allocations;
	o.replicas = 1 + next(&n) % 4;
	m = meter_new(&o);
	while (n.at < n.end) {
		uint8_t c = next(&n);

		if (c % 8 < ARRAY_LEN(commands))
			commands[c % 8](&n, c / 8 % GPUS);
		else
			command_tick(&n, m);
	}
	meter_flush(m);
	check_batches(m);
	meter_free(m);
	mem_free(n.readings);
	return 0;
}

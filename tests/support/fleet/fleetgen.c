/* tests/support/fleet/fleetgen.c - what the nodes of a large fleet send. */
#include "tests/support/fleet/fleetgen.h"

#include <stdio.h>
#include <string.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "common/base/units.h"

#define INSTANCE_UNITS 675 /* 1g.10gb of 80 GB */
#define PAYLOAD_MAX (8u << 20)

struct habit {
	int64_t percent, spread; /* of its share that it is active, and how far that varies */
	int64_t memory;          /* bytes */
	int64_t power_mw;
};

struct fleet_node {
	struct fleet_shape shape;
	char name[32];
	uint64_t rng;
	int64_t at_ns, step_ns;
	struct habit *habits; /* of gpus x places x processes */
	struct wire_batch *batch;
};

/* xorshift64*: the same numbers on every machine. */
static int64_t
draw(struct fleet_node *n, int64_t below)
{
	n->rng ^= n->rng >> 12;
	n->rng ^= n->rng << 25;
	n->rng ^= n->rng >> 27;
	return (int64_t)((n->rng * UINT64_C(2685821657736338717) >> 11) % (uint64_t)below);
}

static size_t
places(const struct fleet_shape *s)
{
	return s->gpus * (s->instances ? s->instances : 1);
}

static struct habit
draw_habit(struct fleet_node *n)
{
	struct habit h = {.memory = (1 + draw(n, 4000)) << 21, .power_mw = 3000 + draw(n, 20000)};
	int64_t kind = draw(n, 6);

	if (kind == 0)
		h.percent = 100;
	else if (kind < 4)
		h.percent = 20 + draw(n, 60), h.spread = 1 + draw(n, 18);
	return h;
}

static struct wire_device
device(uint32_t id, uint32_t gpu, const char *uuid, int32_t index)
{
	return (struct wire_device){.id = id,
	                            .gpu = gpu,
	                            .uuid = mem_strdup(uuid),
	                            .model = mem_strdup("NVIDIA H100 80GB HBM3"),
	                            .profile = mem_strdup(""),
	                            .gi = -1,
	                            .ci = -1,
	                            .units = UNITS_PER_GPU,
	                            .memory_bytes = INT64_C(85520809984),
	                            .index = index};
}

/* GPUs are 1 to gpus, instances follow. */
static void
introduce_devices(struct fleet_node *n)
{
	struct wire_batch *b = n->batch;
	const struct fleet_shape *s = &n->shape;

	b->devices = mem_array(s->gpus * (1 + s->instances), sizeof(*b->devices));
	for (size_t g = 0; g < s->gpus; g++) {
		char uuid[96];

		snprintf(uuid, sizeof(uuid), "GPU-%s-%04zx-4000-8000-00000000%04zx", n->name, g, g);
		b->devices[b->device_count++] = device((uint32_t)g + 1, (uint32_t)g + 1, uuid, (int32_t)g);
	}
	for (size_t i = 0; i < s->gpus * s->instances; i++) {
		size_t g = i / s->instances;
		char uuid[96];
		struct wire_device d;

		snprintf(uuid, sizeof(uuid), "MIG-%s-%04zx-5000-8000-00000000%04zx", n->name, g, i);
		d = device((uint32_t)(s->gpus + i + 1), (uint32_t)g + 1, uuid, (int32_t)g);
		mem_free(d.profile);
		d.profile = mem_strdup("1g.10gb");
		d.gi = (int32_t)(7 + i % s->instances);
		d.ci = 0;
		d.created_ns = n->at_ns - NS_PER_HOUR;
		d.units = INSTANCE_UNITS;
		d.memory_bytes = INT64_C(10200547328);
		b->devices[b->device_count++] = d;
	}
}

static void
introduce_holders(struct fleet_node *n)
{
	struct wire_batch *b = n->batch;

	b->holder_count = places(&n->shape) * n->shape.processes;
	b->holders = mem_array(b->holder_count, sizeof(*b->holders));
	for (size_t i = 0; i < b->holder_count; i++)
		b->holders[i] = (struct wire_holder){
			.id = (uint32_t)i + 1,
			.kind = WIRE_POD,
			.ns = mem_printf("team-%zu", i % 20),
			.pod = mem_printf("train-%s-%zu", n->name, i),
			.pod_uid = mem_printf("%08zx-0000-4000-8000-%012" PRIx64, i, n->rng & 0xffffffffffff),
			.container = mem_strdup("main"),
			.slurm_job = mem_strdup(""),
			.slurm_account = mem_strdup(""),
			.user = mem_strdup(""),
			.group = mem_strdup(""),
			.labels = mem_strdup(""),
			.uid = -1,
		};
}

static void
forget_dictionary(struct wire_batch *b)
{
	for (size_t i = 0; i < b->device_count; i++)
		wire_device_fini(&b->devices[i]);
	for (size_t i = 0; i < b->holder_count; i++)
		wire_holder_fini(&b->holders[i]);
	b->device_count = b->holder_count = 0;
}

struct fleet_node *
fleet_node_new(const struct fleet_shape *shape, size_t number, int64_t start_ns, int64_t step_ns)
{
	struct fleet_node *n = mem_alloc(sizeof(*n));
	struct wire_batch *b = wire_batch_new();

	*n = (struct fleet_node){.shape = *shape, .rng = UINT64_C(0x9e3779b97f4a7c15) * (number + 1)};
	n->at_ns = start_ns;
	n->step_ns = step_ns;
	snprintf(n->name, sizeof(n->name), "fleet-%05zu", number);
	n->habits = mem_array(places(shape) * shape->processes, sizeof(*n->habits));
	for (size_t i = 0; i < places(shape) * shape->processes; i++)
		n->habits[i] = draw_habit(n);
	b->kind = WIRE_USAGE;
	b->node = mem_strdup(n->name);
	b->exporter_version = mem_strdup("0.1.0");
	memcpy(b->boot_id, &n->rng, sizeof(n->rng));
	b->epoch = 1;
	b->records = mem_array(places(shape) * shape->processes + shape->gpus, sizeof(*b->records));
	n->batch = b;
	introduce_devices(n);
	introduce_holders(n);
	return n;
}

void
fleet_node_free(struct fleet_node *n)
{
	if (!n)
		return;
	wire_batch_free(n->batch);
	mem_free(n->habits);
	mem_free(n);
}

const char *
fleet_node_name(const struct fleet_node *n)
{
	return n->name;
}

/* The parts of a device's time are equal, but for what does not divide. */
static void
add_held(struct fleet_node *n, size_t place, size_t process)
{
	const struct fleet_shape *s = &n->shape;
	size_t holder = place * s->processes + process;
	const struct habit *h = &n->habits[holder];
	int64_t held = n->step_ns / (int64_t)s->processes;
	int64_t percent = h->spread ? h->percent - h->spread + draw(n, 2 * h->spread + 1) : h->percent;
	int64_t ticks = n->step_ns / NS_PER_S;
	enum wire_sharing sharing = s->instances ? WIRE_MIG : s->processes > 1 ? WIRE_PLAIN : WIRE_EXCLUSIVE;

	if (process == 0)
		held += n->step_ns % (int64_t)s->processes;
	n->batch->records[n->batch->record_count++] = (struct wire_record){
		.device = (uint32_t)(place + 1 + (s->instances ? s->gpus : 0)),
		.holder = (uint32_t)holder + 1,
		.state = WIRE_HELD,
		.sharing = sharing,
		.method = WIRE_MEASURED,
		.units = s->instances ? INSTANCE_UNITS : UNITS_PER_GPU,
		.start_ns = n->at_ns,
		.duration_ns = n->step_ns,
		.held_ns = held,
		.used_ns = percent == 100 || percent == 0 ? held / 100 * percent
	                                                  : held / 1000 * (percent * 10 + draw(n, 10)),
		.memory_byte_ms = h->memory * (n->step_ns / NS_PER_MS),
		.energy_mj = ticks * (h->power_mw + (percent ? draw(n, 200) : 0)),
		.ticks = ticks,
		.peak_memory_bytes = h->memory,
		.sm_active_ns = held / 100 * (percent * 3 / 4),
		.sm_measured_ns = held,
	};
}

static void
add_stranded(struct fleet_node *n, size_t gpu)
{
	int64_t units = UNITS_PER_GPU - (int64_t)n->shape.instances * INSTANCE_UNITS;

	n->batch->records[n->batch->record_count++] = (struct wire_record){
		.device = (uint32_t)gpu + 1,
		.state = n->shape.instances == 7 ? WIRE_STRANDED : WIRE_UNALLOCATED,
		.sharing = WIRE_MIG,
		.method = WIRE_NONE,
		.units = units,
		.start_ns = n->at_ns,
		.duration_ns = n->step_ns,
		.held_ns = n->step_ns,
		.ticks = n->step_ns / NS_PER_S,
	};
}

size_t
fleet_node_next(struct fleet_node *n, struct buf *out)
{
	in_place(buf) struct buf payload;
	struct wire_batch *b = n->batch;
	struct err err = {0};
	bool ok;

	b->seq++;
	b->last_seq = b->seq;
	b->from_ns = n->at_ns;
	b->to_ns = n->at_ns + n->step_ns;
	b->record_count = 0;
	for (size_t g = 0; n->shape.instances && g < n->shape.gpus; g++)
		add_stranded(n, g);
	for (size_t place = 0; place < places(&n->shape); place++)
		for (size_t process = 0; process < n->shape.processes; process++)
			add_held(n, place, process);
	buf_init(&payload, PAYLOAD_MAX);
	ok = wire_pack(b, &payload, &err);
	if (!ok)
		fprintf(stderr, "fleetgen: %s\n", err.text);
	ASSERT(ok);
	frame_append(out, payload.data, payload.len);
	forget_dictionary(b);
	n->at_ns += n->step_ns;
	return b->record_count;
}

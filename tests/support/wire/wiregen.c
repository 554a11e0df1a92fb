/* tests/support/wire/wiregen.c - batches for tests and benchmarks. */
#include "tests/support/wire/wiregen.h"

#include <string.h>

#include "common/base/time.h"
#include "common/base/units.h"

/* 2026-11-16T05:45:00Z, the start of a quarter-hour. */
#define FIXED_START_NS (INT64_C(1794807900) * NS_PER_S)

static void
head(struct wire_batch *b, const char *node)
{
	b->kind = WIRE_USAGE;
	b->node = mem_strdup(node);
	for (size_t i = 0; i < WIRE_BOOT_ID_SIZE; i++)
		b->boot_id[i] = (uint8_t)(0xa0 + i);
	b->epoch = 1794800000;
	b->seq = 7;
	b->last_seq = 7;
	b->flags = WIRE_SIMULATED;
	b->exporter_version = mem_strdup("0.1.0");
	b->from_ns = FIXED_START_NS;
	b->to_ns = FIXED_START_NS + NS_PER_MIN;
}

static struct wire_device
gpu(uint32_t id, const char *uuid, const char *model, int32_t index, int64_t memory_bytes)
{
	return (struct wire_device){
		.id = id,
		.gpu = id,
		.uuid = mem_strdup(uuid),
		.model = mem_strdup(model),
		.profile = mem_strdup(""),
		.gi = -1,
		.ci = -1,
		.units = UNITS_PER_GPU,
		.memory_bytes = memory_bytes,
		.index = index,
	};
}

static struct wire_holder
holder(uint32_t id, uint32_t kind)
{
	return (struct wire_holder){
		.id = id,
		.kind = kind,
		.ns = mem_strdup(""),
		.pod = mem_strdup(""),
		.pod_uid = mem_strdup(""),
		.container = mem_strdup(""),
		.slurm_job = mem_strdup(""),
		.slurm_account = mem_strdup(""),
		.user = mem_strdup(""),
		.uid = -1,
		.group = mem_strdup(""),
		.labels = mem_strdup(""),
	};
}

static void
set(char **field, const char *text)
{
	mem_free(*field);
	*field = mem_strdup(text);
}

static void
fixed_dictionary(struct wire_batch *b)
{
	b->device_count = 3;
	b->devices = mem_array(b->device_count, sizeof(*b->devices));
	b->devices[0] =
		gpu(1, "GPU-0a000000-0000-0000-0000-000000000001", "NVIDIA H100 80GB HBM3", 0, INT64_C(85520809984));
	b->devices[1] =
		gpu(2, "GPU-0a000000-0000-0000-0000-000000000002", "NVIDIA H100 80GB HBM3", 1, INT64_C(85520809984));
	b->devices[2] =
		gpu(3, "MIG-0b000000-0000-0000-0000-000000000003", "NVIDIA H100 80GB HBM3", 1, INT64_C(42278584320));
	b->devices[2].gpu = 2;
	set(&b->devices[2].profile, "3g.40gb");
	b->devices[2].gi = 1;
	b->devices[2].ci = 0;
	b->devices[2].created_ns = FIXED_START_NS - NS_PER_HOUR;
	b->devices[2].units = 2340;

	b->holder_count = 3;
	b->holders = mem_array(b->holder_count, sizeof(*b->holders));
	b->holders[0] = holder(1, WIRE_POD);
	set(&b->holders[0].ns, "research");
	set(&b->holders[0].pod, "train-0");
	set(&b->holders[0].pod_uid, "3e8a7f34-9f3c-4c52-8f44-5f1f0f1a2b3c");
	set(&b->holders[0].container, "main");
	b->holders[1] = holder(2, WIRE_SLURM_JOB);
	set(&b->holders[1].slurm_job, "4711");
	set(&b->holders[1].slurm_account, "physics");
	set(&b->holders[1].user, "j\xc3\xb8rgen");
	b->holders[1].uid = 1007;
	b->holders[2] = holder(3, WIRE_HOST_USER);
	set(&b->holders[2].user, "1000");
	b->holders[2].uid = 1000;
}

static struct wire_batch *
fixed(void)
{
	static const struct wire_record records[] = {
		/* device, holder, state, sharing, method, units, start, duration, held, used, unmeasured, over, memory, energy, ticks,
		 * peak of memory, SM active, SM measured */
		{1, 1, WIRE_HELD, WIRE_PLAIN, WIRE_MEASURED, 5040, FIXED_START_NS, 30 * NS_PER_S, 15 * NS_PER_S,
	         11 * NS_PER_S + 123, 0, NS_PER_S / 2, INT64_C(1288490188800000), 9000123, 30, 0, 0, 0},
		{1, 3, WIRE_HELD, WIRE_PLAIN, WIRE_ESTIMATED, 5040, FIXED_START_NS, 30 * NS_PER_S, 15 * NS_PER_S, 0,
	         2 * NS_PER_S, 0, INT64_C(12884901888000), 300000, 30, 0, 0, 0},
		{1, 0, WIRE_UNALLOCATED, WIRE_EXCLUSIVE, WIRE_NONE, 5040, FIXED_START_NS + 30 * NS_PER_S, 20 * NS_PER_S,
	         20 * NS_PER_S, 0, 0, 0, 0, 2100000, 20, 0, 0, 0},
		{1, 0, WIRE_UNKNOWN, WIRE_EXCLUSIVE, WIRE_NONE, 5040, FIXED_START_NS + 50 * NS_PER_S, 1, 1, 0, 0, 0, 0,
	         0, 0, 0, 0, 0},
		{1, 0, WIRE_DOWN, WIRE_EXCLUSIVE, WIRE_NONE, 5040, FIXED_START_NS + 50 * NS_PER_S + 1,
	         10 * NS_PER_S - 1, 10 * NS_PER_S - 1, 0, 0, 0, 0, 0, 10, 0, 0, 0},
		{3, 2, WIRE_HELD, WIRE_MIG, WIRE_NONE, 2340, FIXED_START_NS, 60 * NS_PER_S, 60 * NS_PER_S, 0,
	         60 * NS_PER_S, 0, INT64_C(600000000000000), 4000000, 60, 0, 0, 0},
		{2, 0, WIRE_UNALLOCATED, WIRE_MIG, WIRE_NONE, 2340, FIXED_START_NS, 60 * NS_PER_S, 60 * NS_PER_S, 0, 0,
	         0, 0, 0, 60, 0, 0, 0},
		{2, 0, WIRE_STRANDED, WIRE_MIG, WIRE_NONE, 360, FIXED_START_NS, 60 * NS_PER_S, 60 * NS_PER_S, 0, 0, 0,
	         0, 0, 60, 0, 0, 0},
	};
	struct wire_batch *b = wire_batch_new();

	head(b, "gpu-node-01");
	fixed_dictionary(b);
	b->record_count = ARRAY_LEN(records);
	b->records = mem_array(b->record_count, sizeof(*b->records));
	memcpy(b->records, records, sizeof(records));
	return b;
}

struct wire_batch *
wiregen_fixed_v1(void)
{
	struct wire_batch *b = fixed();

	b->version = 1;
	return b;
}

struct wire_batch *
wiregen_fixed_v2(void)
{
	struct wire_batch *b = fixed();

	b->version = 2;
	set(&b->holders[0].labels, "app.kubernetes.io/name=trainer,debug=,team=ml");
	set(&b->holders[1].group, "physics");
	set(&b->holders[2].group, "staff");
	return b;
}

struct wire_batch *
wiregen_fixed_v3(void)
{
	struct wire_batch *b = wiregen_fixed_v2();

	b->version = 3;
	b->records[0].peak_memory_bytes = INT64_C(45097156608);
	b->records[0].sm_active_ns = 7 * NS_PER_S + 21;
	b->records[0].sm_measured_ns = 15 * NS_PER_S;
	b->records[1].peak_memory_bytes = INT64_C(429496730);
	b->records[1].sm_measured_ns = 14 * NS_PER_S;
	b->records[5].peak_memory_bytes = INT64_C(10000000000);
	return b;
}

struct wire_batch *
wiregen_fixed(void)
{
	struct wire_batch *b = wiregen_fixed_v3();

	b->version = 4;
	return b;
}

struct wire_batch *
wiregen_loss(uint32_t version)
{
	struct wire_batch *b = wire_batch_new();

	head(b, "gpu-node-01");
	b->version = version;
	b->kind = WIRE_LOSS;
	b->last_seq = 1006;
	b->to_ns = b->from_ns + 1000 * NS_PER_MIN;
	return b;
}

/* ---- a busy node ---- */

/* xorshift64*: the same numbers on every machine. */
static uint64_t
draw(uint64_t *state, uint64_t below)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (*state * UINT64_C(2685821657736338717) >> 11) % below;
}

#define TICKS 10
#define STRETCH_NS (TICKS * NS_PER_S)

struct habit {
	int64_t percent;  /* of its share that it is active, on average */
	int64_t spread;   /* around it, either way */
	int64_t memory;   /* bytes */
	int64_t growth;   /* bytes a tick */
	int64_t power_mw; /* that its share of the GPU draws */
};

static struct habit
draw_habit(uint64_t *rng)
{
	struct habit h = {.memory = (int64_t)(1 + draw(rng, 2000)) << 21, .power_mw = 3000};
	uint64_t kind = draw(rng, 6);

	if (kind == 2) {
		h.percent = 100;
		h.power_mw = 30000;
	} else if (kind > 2) {
		h.percent = 10 + (int64_t)draw(rng, 80);
		h.spread = 10;
		h.power_mw = 5000 + 250 * h.percent;
	}
	if (draw(rng, 8) == 0)
		h.growth = INT64_C(2) << 20;
	return h;
}

/* Ten ticks a little early or late, each with the whole per cents a driver reports. */
static void
meter_stretch(uint64_t *rng, struct habit *h, size_t parts, struct wire_record *r)
{
	r->held_ns = r->duration_ns / (int64_t)parts;
	for (int t = 0; t < TICKS; t++) {
		int64_t tick_ns = t == TICKS - 1 ? r->held_ns - (TICKS - 1) * (r->held_ns / TICKS) : r->held_ns / TICKS;
		int64_t percent = h->percent;

		if (h->spread)
			percent += (int64_t)draw(rng, (uint64_t)(2 * h->spread + 1)) - h->spread;
		if (t < TICKS - 1 && h->spread)
			tick_ns -= (int64_t)draw(rng, 2000);
		r->used_ns += h->percent == 100 ? tick_ns : tick_ns * percent / 100;
		r->energy_mj += h->power_mw + (int64_t)draw(rng, (uint64_t)h->power_mw / 20);
		r->memory_byte_ms += h->memory * 1000;
		r->peak_memory_bytes = h->memory;
		/* three of four active engines' multiprocessors work, as a driver's whole per cents tell */
		r->sm_active_ns += tick_ns * (percent * 3 / 4) / 100;
		h->memory += h->growth;
	}
	if (r->used_ns > r->held_ns)
		r->used_ns = r->held_ns;
	r->sm_measured_ns = r->held_ns;
	r->ticks = TICKS;
}

static void
node_dictionary(struct wire_batch *b, size_t gpus, size_t holders)
{
	b->devices = mem_array(gpus, sizeof(*b->devices));
	b->holders = mem_array(holders, sizeof(*b->holders));
	for (size_t i = 0; i < gpus; i++) {
		owned(mem) char *uuid =
			mem_printf("GPU-%08zx-1111-2222-3333-444444444444", i * 2654435761u % 4294967296u);

		b->devices[i] = gpu((uint32_t)i + 1, uuid, "NVIDIA H100 80GB HBM3", (int32_t)i, INT64_C(85520809984));
	}
	for (size_t i = 0; i < holders; i++) {
		owned(mem) char *pod = mem_printf("inference-%zu", i);
		owned(mem) char *uid = mem_printf("%08zx-9f3c-4c52-8f44-5f1f0f1a2b3c", i * 2246822519u % 4294967296u);

		b->holders[i] = holder((uint32_t)i + 1, WIRE_POD);
		set(&b->holders[i].ns, i % 2 ? "research" : "serving");
		set(&b->holders[i].pod, pod);
		set(&b->holders[i].pod_uid, uid);
		set(&b->holders[i].container, "main");
	}
	b->device_count = gpus;
	b->holder_count = holders;
}

struct wire_batch *
wiregen_node(uint64_t seed, size_t gpus, size_t holders_per_gpu, size_t stretches)
{
	struct wire_batch *b = wire_batch_new();
	size_t holders = gpus * holders_per_gpu;
	uint64_t rng = seed | 1;

	head(b, "gpu-node-01");
	b->to_ns = b->from_ns + (int64_t)stretches * STRETCH_NS;
	node_dictionary(b, gpus, holders);
	b->records = mem_array(holders * stretches, sizeof(*b->records));
	for (size_t h = 0; h < holders; h++) {
		struct habit habit = draw_habit(&rng);

		for (size_t s = 0; s < stretches; s++) {
			struct wire_record *r = &b->records[b->record_count++];

			r->device = (uint32_t)(h / holders_per_gpu) + 1;
			r->holder = (uint32_t)h + 1;
			r->state = WIRE_HELD;
			r->sharing = holders_per_gpu > 1 ? WIRE_PLAIN : WIRE_EXCLUSIVE;
			r->method = WIRE_MEASURED;
			r->units = UNITS_PER_GPU;
			r->start_ns = b->from_ns + (int64_t)s * STRETCH_NS;
			r->duration_ns = STRETCH_NS;
			meter_stretch(&rng, &habit, holders_per_gpu, r);
		}
	}
	return b;
}

/* ---- comparing ---- */

#define SAME(x, y, field)                                                                            \
	if ((x)->field != (y)->field) {                                                              \
		buf_printf(why, "%s differs: %" PRId64 " and %" PRId64, #field, (int64_t)(x)->field, \
		           (int64_t)(y)->field);                                                     \
		return false;                                                                        \
	}
#define SAME_TEXT(x, y, field)                                                                \
	if (strcmp((x)->field, (y)->field) != 0) {                                            \
		buf_printf(why, "%s differs: '%s' and '%s'", #field, (x)->field, (y)->field); \
		return false;                                                                 \
	}

static bool
same_device(const struct wire_device *a, const struct wire_device *b, struct buf *why)
{
	SAME(a, b, id)
	SAME(a, b, gpu)
	SAME_TEXT(a, b, uuid)
	SAME_TEXT(a, b, model)
	SAME_TEXT(a, b, profile)
	SAME(a, b, gi)
	SAME(a, b, ci)
	SAME(a, b, created_ns)
	SAME(a, b, units)
	SAME(a, b, memory_bytes)
	SAME(a, b, index)
	return true;
}

static bool
same_holder(const struct wire_holder *a, const struct wire_holder *b, struct buf *why)
{
	SAME(a, b, id)
	SAME(a, b, kind)
	SAME_TEXT(a, b, ns)
	SAME_TEXT(a, b, pod)
	SAME_TEXT(a, b, pod_uid)
	SAME_TEXT(a, b, container)
	SAME_TEXT(a, b, slurm_job)
	SAME_TEXT(a, b, slurm_account)
	SAME_TEXT(a, b, user)
	SAME(a, b, uid)
	SAME_TEXT(a, b, group)
	SAME_TEXT(a, b, labels)
	return true;
}

static bool
same_record(const struct wire_record *a, const struct wire_record *b, struct buf *why)
{
	SAME(a, b, device)
	SAME(a, b, holder)
	SAME(a, b, state)
	SAME(a, b, sharing)
	SAME(a, b, method)
	SAME(a, b, units)
	SAME(a, b, start_ns)
	SAME(a, b, duration_ns)
	SAME(a, b, held_ns)
	SAME(a, b, used_ns)
	SAME(a, b, unmeasured_ns)
	SAME(a, b, over_ns)
	SAME(a, b, memory_byte_ms)
	SAME(a, b, energy_mj)
	SAME(a, b, ticks)
	SAME(a, b, peak_memory_bytes)
	SAME(a, b, sm_active_ns)
	SAME(a, b, sm_measured_ns)
	return true;
}

bool
wiregen_same(const struct wire_batch *a, const struct wire_batch *b, struct buf *why)
{
	SAME(a, b, version)
	SAME(a, b, kind)
	SAME_TEXT(a, b, node)
	SAME(a, b, epoch)
	SAME(a, b, seq)
	SAME(a, b, last_seq)
	SAME(a, b, flags)
	SAME_TEXT(a, b, exporter_version)
	SAME(a, b, from_ns)
	SAME(a, b, to_ns)
	SAME(a, b, device_count)
	SAME(a, b, holder_count)
	SAME(a, b, record_count)
	if (memcmp(a->boot_id, b->boot_id, WIRE_BOOT_ID_SIZE) != 0) {
		buf_str(why, "boot_id differs");
		return false;
	}
	for (size_t i = 0; i < a->device_count; i++)
		if (!same_device(&a->devices[i], &b->devices[i], why))
			return false;
	for (size_t i = 0; i < a->holder_count; i++)
		if (!same_holder(&a->holders[i], &b->holders[i], why))
			return false;
	for (size_t i = 0; i < a->record_count; i++)
		if (!same_record(&a->records[i], &b->records[i], why))
			return false;
	return true;
}

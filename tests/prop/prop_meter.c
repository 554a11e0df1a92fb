/* The meter against a second computation of the same rules, nanosecond by nanosecond, on random schedules: processes that
 * begin, end and fork, on whole GPUs, MIG instances and replicas; GPUs cut anew, lost and back; ticks early, late and missed. */
#include <stdio.h>
#include <string.h>

#include "common/time.h"
#include "common/units.h"
#include "exporter/meter.h"
#include "tests/support/prop.h"

#define GPUS 3
#define TICKS 24
#define PROCESSES 10
#define HOLDERS 4
#define SLOTS 5 /* of a GPU: instances with gi 0..3, and the GPU itself */
#define WHOLE 4

struct layout {
	bool mig;
	int64_t units[WHOLE]; /* of the instance with this gi; 0: none */
	int64_t stranded;
};
static const struct layout layouts[] = {
	{.mig = false},
	{.mig = true, .units = {2340, 2700}},
	{.mig = true, .units = {675, 0, 675, 675}},
	{.mig = true, .units = {5040}},
	{.mig = true},
	{.mig = true, .units = {0, 1350, 675}, .stranded = 990},
};

enum sight { SEEN, LOST, MISSING };

struct process {
	size_t gpu, holder, gi;
	int64_t begin, end; /* in the schedule's units */
	int64_t memory_bytes, sm_ppm;
};

struct schedule {
	int64_t unit_ns; /* 1: brute force is possible; else about a real tick */
	int64_t offset_ns;
	int replicas;
	int fineness; /* which interval */
	size_t gpus, ticks, processes;
	int64_t at[TICKS]; /* boot, in nanoseconds */
	enum sight sight[TICKS][GPUS];
	size_t layout[TICKS][GPUS];
	int64_t active_ppm[TICKS][GPUS];
	bool process_activity[GPUS];
	int64_t energy_mj[TICKS][GPUS];
	struct process process[PROCESSES];
};

static const int64_t intervals[] = {900, 300, 100, 50, 20}; /* in units; each is divided by the next two */

static void
generate(struct prop_source *s, struct schedule *c, int64_t unit_ns)
{
	int64_t t = unit_ns * (int64_t)prop_u64(s, 1000);
	int64_t energy[GPUS] = {0};

	c->unit_ns = unit_ns;
	c->offset_ns = unit_ns * 900 * (int64_t)prop_u64(s, 1000) + (int64_t)prop_u64(s, 1000);
	c->replicas = (int)prop_i64(s, 1, 5);
	c->fineness = (int)prop_index(s, 3);
	c->gpus = 1 + prop_index(s, GPUS);
	c->ticks = 1 + prop_index(s, TICKS);
	c->processes = prop_index(s, PROCESSES + 1);
	for (size_t g = 0; g < c->gpus; g++)
		c->process_activity[g] = prop_bool(s);
	for (size_t k = 0; k < c->ticks; k++) {
		c->at[k] = t;
		t += 1 + (int64_t)prop_u64(s, (uint64_t)(unit_ns * 50 - 1));
		for (size_t g = 0; g < c->gpus; g++) {
			size_t keep = prop_index(s, 4);

			c->layout[k][g] = k && keep ? c->layout[k - 1][g] : prop_index(s, ARRAY_LEN(layouts));
			c->sight[k][g] = prop_index(s, 8) == 7 ? (prop_bool(s) ? MISSING : LOST) : SEEN;
			c->active_ppm[k][g] = prop_i64(s, -1, 1000000);
			energy[g] += (int64_t)prop_u64(s, 1000);
			c->energy_mj[k][g] = prop_index(s, 5) == 4 ? ABSENT : energy[g];
		}
	}
	for (size_t i = 0; i < c->processes; i++) {
		struct process *p = &c->process[i];
		uint64_t span = (uint64_t)(t - c->at[0]) + 1;

		p->gpu = prop_index(s, c->gpus);
		p->holder = prop_index(s, HOLDERS);
		p->gi = prop_index(s, WHOLE);
		p->begin = c->at[0] - 5 + (int64_t)prop_u64(s, span);
		p->end = p->begin + (int64_t)prop_u64(s, span);
		p->memory_bytes = prop_i64(s, -1, INT64_C(1) << 36);
		p->sm_ppm = prop_i64(s, -1, 1000000);
	}
}

static void
generate_small(struct prop_source *s, void *c)
{
	generate(s, c, 1);
}

static void
generate_real(struct prop_source *s, void *c)
{
	generate(s, c, NS_PER_S / 20);
}

static void
describe(const void *vc, struct buf *out)
{
	const struct schedule *c = vc;

	buf_printf(out, "offset %" PRId64 ", replicas %d, interval %d, %zu gpus\n", c->offset_ns, c->replicas,
	           c->fineness, c->gpus);
	for (size_t k = 0; k < c->ticks; k++) {
		buf_printf(out, "tick %" PRId64 ":", c->at[k]);
		for (size_t g = 0; g < c->gpus; g++)
			buf_printf(out, " [%s layout %zu active %" PRId64 " mj %" PRId64 "]",
			           c->sight[k][g] == SEEN   ? "seen"
			           : c->sight[k][g] == LOST ? "lost"
			                                    : "missing",
			           c->layout[k][g], c->active_ppm[k][g], c->energy_mj[k][g]);
		buf_char(out, '\n');
	}
	for (size_t i = 0; i < c->processes; i++) {
		const struct process *p = &c->process[i];

		buf_printf(out, "holder %zu on gpu %zu gi %zu from %" PRId64 " to %" PRId64 " sm %" PRId64 "\n",
		           p->holder, p->gpu, p->gi, p->begin, p->end, p->sm_ppm);
	}
}

/* ---- the schedule as ticks ---- */

struct stage {
	struct gpu_reading *readings;
	struct tick_process processes[GPUS][PROCESSES];
	struct tick_gpu gpus[GPUS];
	struct wire_holder holders[HOLDERS];
};

static char names[HOLDERS][8] = {"u0", "u1", "u2", "u3"};
static char empty[] = "";

static void
stage_init(struct stage *st)
{
	*st = (struct stage){.readings = mem_array(GPUS, sizeof(*st->readings))};
	for (size_t i = 0; i < HOLDERS; i++) {
		struct wire_holder *h = &st->holders[i];

		*h = (struct wire_holder){
			.id = (uint32_t)i + 10, .kind = WIRE_HOST_USER, .user = names[i], .uid = (int64_t)i};
		h->ns = h->pod = h->pod_uid = h->container = h->slurm_job = h->slurm_account = empty;
	}
}

static void
stage_fini(struct stage *st)
{
	mem_free(st->readings);
}

static bool
alive(const struct process *p, int64_t at)
{
	return p->begin <= at && at < p->end;
}

static void
stage_gpu(struct stage *st, const struct schedule *c, size_t k, size_t g)
{
	struct gpu_reading *r = &st->readings[g];
	const struct layout *l = &layouts[c->layout[k][g]];
	struct tick_gpu *tg;

	*r = (struct gpu_reading){.index = (int32_t)g, .active_ppm = l->mig ? ABSENT : c->active_ppm[k][g]};
	snprintf(r->uuid, sizeof(r->uuid), "GPU-%zu", g);
	snprintf(r->model, sizeof(r->model), "H100");
	r->down = c->sight[k][g] == LOST;
	r->energy_mj = r->down ? ABSENT : c->energy_mj[k][g];
	r->process_activity = c->process_activity[g];
	r->mig = l->mig;
	r->units_stranded = l->stranded;
	for (size_t i = 0; l->mig && i < WHOLE; i++) {
		struct gpu_instance *in = &r->instances[r->instance_count];

		if (!l->units[i])
			continue;
		*in = (struct gpu_instance){
			.gi = (int32_t)i, .ci = 0, .units = l->units[i], .active_ppm = c->active_ppm[k][g]};
		snprintf(in->uuid, sizeof(in->uuid), "MIG-%zu-%zu", g, i);
		snprintf(in->profile, sizeof(in->profile), "p%" PRId64, in->units);
		r->instance_count++;
	}
	tg = &st->gpus[g];
	*tg = (struct tick_gpu){.reading = r, .processes = st->processes[g]};
	for (size_t i = 0; i < c->processes; i++) {
		const struct process *p = &c->process[i];

		if (p->gpu != g || !alive(p, c->at[k]))
			continue;
		st->processes[g][tg->process_count++] = (struct tick_process){.holder = &st->holders[p->holder],
		                                                              .start_boot_ns = p->begin,
		                                                              .memory_bytes = p->memory_bytes,
		                                                              .sm_ppm = p->sm_ppm,
		                                                              .gi = l->mig ? (int32_t)p->gi : -1,
		                                                              .ci = l->mig ? 0 : -1};
	}
}

static bool
stage_tick(struct stage *st, const struct schedule *c, size_t k, struct meter *m)
{
	struct tick t = {.boot_ns = c->at[k], .gpus = st->gpus};
	struct tick_gpu sorted[GPUS];

	for (size_t g = 0; g < c->gpus; g++) {
		if (c->sight[k][g] == MISSING)
			continue;
		stage_gpu(st, c, k, g);
		sorted[t.gpu_count++] = st->gpus[g];
	}
	t.gpus = sorted;
	return meter_tick(m, &t);
}

/* ---- what came out ---- */

enum who { FREE = HOLDERS, STRANDED, DOWN, UNKNOWN, WHOS };

struct amount {
	int128 unit_ns;
	int64_t held_ns, used_ns, unmeasured_ns, over_ns, memory, energy_mj, ticks;
};

struct ledger {
	struct amount of[GPUS][SLOTS][WHOS];
};

/* The stream's dictionary, as an aggregator would keep it. */
struct known {
	uint32_t holder_id[HOLDERS]; /* the latest */
	struct wire_device device[512];
	size_t gpu[512];
};

static bool
learn(struct known *d, const struct wire_batch *b, struct buf *why)
{
	for (size_t i = 0; i < b->device_count; i++) {
		const struct wire_device *dev = &b->devices[i];

		if (dev->id >= ARRAY_LEN(d->device)) {
			buf_printf(why, "device id %u is beyond what so short a schedule needs", dev->id);
			return false;
		}
		d->device[dev->id] = *dev;                      /* the texts are not used after the batch is gone */
		d->gpu[dev->id] = (size_t)(dev->uuid[4] - '0'); /* GPU-g, MIG-g-gi */
	}
	for (size_t i = 0; i < b->holder_count; i++)
		d->holder_id[b->holders[i].uid] = b->holders[i].id;
	return true;
}

static size_t
who_of(const struct known *d, const struct wire_record *r)
{
	switch ((enum wire_state)r->state) {
	case WIRE_HELD: break;
	case WIRE_UNALLOCATED: return FREE;
	case WIRE_STRANDED: return STRANDED;
	case WIRE_DOWN: return DOWN;
	case WIRE_UNKNOWN: return UNKNOWN;
	}
	for (size_t h = 0; h < HOLDERS; h++)
		if (d->holder_id[h] == r->holder)
			return h;
	return WHOS;
}

static bool
book(struct ledger *l, const struct known *d, const struct wire_batch *b, struct buf *why)
{
	for (size_t i = 0; i < b->record_count; i++) {
		const struct wire_record *r = &b->records[i];
		const struct wire_device *dev = &d->device[r->device];
		size_t who = who_of(d, r);
		struct amount *a;

		if (dev->id != r->device || who == WHOS) {
			buf_printf(why, "record %zu names device %u or holder %u, which no dictionary has", i,
			           r->device, r->holder);
			return false;
		}
		a = &l->of[d->gpu[r->device]][dev->gi < 0 ? WHOLE : dev->gi][who];
		a->unit_ns += (int128)r->units * r->held_ns;
		a->held_ns += r->held_ns;
		a->used_ns += r->used_ns;
		a->unmeasured_ns += r->unmeasured_ns;
		a->over_ns += r->over_ns;
		a->memory += r->memory_byte_ms;
		a->energy_mj += r->energy_mj;
		a->ticks += r->ticks;
	}
	return true;
}

static int64_t
interval_of(const struct schedule *c, int finer)
{
	return intervals[c->fineness + finer] * c->unit_ns;
}

typedef bool batch_check(const struct schedule *c, const struct known *d, const struct wire_batch *b, struct buf *why);

static bool
take_batches(struct meter *m, const struct schedule *c, struct known *d, struct ledger *l, uint64_t *seq,
             batch_check *check, struct buf *why)
{
	for (;;) {
		owned(wire_batch) struct wire_batch *b = wire_batch_new();
		struct err err;

		if (!meter_batch(m, *seq % 3 == 0, b))
			return true;
		b->kind = WIRE_USAGE;
		b->node = mem_strdup("n");
		b->exporter_version = mem_strdup("v");
		b->epoch = 1;
		b->seq = b->last_seq = ++*seq;
		if (!wire_check(b, &err)) {
			buf_str(why, err.text);
			return false;
		}
		if (!learn(d, b, why) || !book(l, d, b, why) || (check && !check(c, d, b, why)))
			return false;
	}
}

static bool
play(const struct schedule *c, int finer, struct ledger *l, batch_check *check, struct buf *why)
{
	struct meter_options o = {.sample_interval_ns = 20 * c->unit_ns,
	                          .interval_ns = interval_of(c, finer),
	                          .wall_offset_ns = c->offset_ns,
	                          .replicas = c->replicas};
	owned(meter) struct meter *m = meter_new(&o);
	owned(mem) struct known *d = mem_alloc(sizeof(*d));
	in_place(stage) struct stage st;
	uint64_t seq = 0;

	*l = (struct ledger){0};
	stage_init(&st);
	for (size_t k = 0; k < c->ticks; k++)
		if (stage_tick(&st, c, k, m) && !take_batches(m, c, d, l, &seq, check, why))
			return false;
	meter_flush(m);
	return take_batches(m, c, d, l, &seq, check, why);
}

/* ---- the second computation ---- */

static bool
seen_on(const struct schedule *c, size_t k, size_t g, size_t slot, size_t holder, int64_t from)
{
	for (size_t i = 0; i < c->processes; i++) {
		const struct process *p = &c->process[i];

		if (p->gpu == g && p->holder == holder && alive(p, c->at[k]) && (slot == WHOLE || p->gi == slot) &&
		    p->begin <= from)
			return true;
	}
	return false;
}

/* Whom nanosecond t (boot) of a device belongs to, by rules 1 and 3; k is the tick at the end of its slot.
 * Holders take their parts in the order of their names, which is that of their numbers. */
static size_t
owner(const struct schedule *c, size_t k, size_t g, size_t slot, int64_t t)
{
	const struct layout *then = &layouts[c->layout[k - 1][g]], *later = &layouts[c->layout[k][g]];
	bool stayed = slot == WHOLE || then->units[slot] == later->units[slot];
	size_t there[HOLDERS], n = 0, parts, part;

	for (size_t h = 0; h < HOLDERS; h++)
		if (seen_on(c, k - 1, g, slot, h, INT64_MAX) || (stayed && seen_on(c, k, g, slot, h, t)))
			there[n++] = h;
	parts = slot == WHOLE && (size_t)c->replicas > n ? (size_t)c->replicas : n ? n : 1;
	part = (size_t)((t + c->offset_ns) % (int64_t)parts);
	return part < n ? there[part] : FREE;
}

static void
add_nanosecond(const struct schedule *c, size_t k, size_t g, int64_t t, struct ledger *l)
{
	const struct layout *layout = &layouts[c->layout[k - 1][g]];
	struct amount(*of)[WHOS] = l->of[g];
	int64_t rest = UNITS_PER_GPU - layout->stranded;

	if (c->at[k] - c->at[k - 1] > 40 * c->unit_ns) {
		of[WHOLE][UNKNOWN].unit_ns += UNITS_PER_GPU;
		return;
	}
	if (c->sight[k][g] != SEEN || c->sight[k - 1][g] != SEEN || layout->mig != layouts[c->layout[k][g]].mig) {
		of[WHOLE][DOWN].unit_ns += UNITS_PER_GPU;
		return;
	}
	if (!layout->mig) {
		of[WHOLE][owner(c, k, g, WHOLE, t)].unit_ns += UNITS_PER_GPU;
		return;
	}
	of[WHOLE][STRANDED].unit_ns += layout->stranded;
	for (size_t slot = 0; slot < WHOLE; slot++) {
		if (!layout->units[slot])
			continue;
		of[slot][owner(c, k, g, slot, t)].unit_ns += layout->units[slot];
		rest -= layout->units[slot];
	}
	of[WHOLE][FREE].unit_ns += rest;
}

static bool
in_service(const struct schedule *c, size_t k, size_t g)
{
	for (size_t i = 0; i < k; i++)
		if (c->sight[i][g] != MISSING)
			return true;
	return false;
}

static bool
compare_unit_ns(const struct schedule *c, const struct ledger *want, const struct ledger *got, struct buf *why)
{
	for (size_t g = 0; g < c->gpus; g++)
		for (size_t slot = 0; slot < SLOTS; slot++)
			for (size_t who = 0; who < WHOS; who++) {
				int128 a = want->of[g][slot][who].unit_ns, b = got->of[g][slot][who].unit_ns;

				if (a == b)
					continue;
				buf_printf(why,
				           "gpu %zu slot %zu holder or state %zu: %" PRId64
				           " unit-ns, the rules give %" PRId64,
				           g, slot, who, (int64_t)b, (int64_t)a);
				return false;
			}
	return true;
}

static bool
batch_is_what_the_rules_give(const struct schedule *c, const struct known *d, const struct wire_batch *b,
                             struct buf *why)
{
	struct ledger want = {0}, got = {0};
	size_t k = 1;

	for (int64_t t = b->from_ns - c->offset_ns; t < b->to_ns - c->offset_ns; t++) {
		while (k < c->ticks && t >= c->at[k])
			k++;
		for (size_t g = 0; g < c->gpus; g++)
			if (in_service(c, k, g))
				add_nanosecond(c, k, g, t, &want);
	}
	return book(&got, d, b, why) && compare_unit_ns(c, &want, &got, why);
}

static bool
every_nanosecond_is_where_the_rules_put_it(const void *vc, struct buf *why)
{
	struct ledger l;

	return play(vc, 0, &l, batch_is_what_the_rules_give, why);
}

/* ---- at the scale of real ticks ---- */

static bool
gpu_adds_up(const struct schedule *c, const struct ledger *l, size_t g, struct buf *why)
{
	int128 sum = 0, want = 0;

	for (size_t slot = 0; slot < SLOTS; slot++)
		for (size_t who = 0; who < WHOS; who++)
			sum += l->of[g][slot][who].unit_ns;
	for (size_t k = 1; k < c->ticks; k++)
		if (in_service(c, k, g))
			want += (int128)UNITS_PER_GPU * (c->at[k] - c->at[k - 1]);
	if (sum != want)
		buf_printf(why, "gpu %zu: the states are %" PRId64 " units x ns off", g, (int64_t)(sum - want));
	return sum == want;
}

static bool
states_add_up_to_the_time(const void *vc, struct buf *why)
{
	const struct schedule *c = vc;
	struct ledger l;

	if (!play(c, 0, &l, NULL, why))
		return false;
	for (size_t g = 0; g < c->gpus; g++)
		if (!gpu_adds_up(c, &l, g, why))
			return false;
	return true;
}

static bool
energy_adds_up_to_the_counter(const void *vc, struct buf *why)
{
	const struct schedule *c = vc;
	struct ledger l;

	if (!play(c, 0, &l, NULL, why))
		return false;
	for (size_t g = 0; g < c->gpus; g++) {
		int64_t first = ABSENT, last = ABSENT, sum = 0;

		for (size_t k = 0; k < c->ticks; k++) {
			if (c->sight[k][g] != SEEN || c->energy_mj[k][g] == ABSENT)
				continue;
			last = c->energy_mj[k][g];
			first = first == ABSENT ? last : first;
		}
		for (size_t slot = 0; slot < SLOTS; slot++)
			for (size_t who = 0; who < WHOS; who++)
				sum += l.of[g][slot][who].energy_mj;
		if (sum != last - first) {
			buf_printf(why, "gpu %zu: records have %" PRId64 " mJ, the counter rose by %" PRId64, g, sum,
			           last - first);
			return false;
		}
	}
	return true;
}

static bool
more_boundaries_leave_the_sums_unchanged(const void *vc, struct buf *why)
{
	const struct schedule *c = vc;
	struct ledger coarse, fine;

	for (int finer = 1; finer < 3; finer++) {
		if (!play(c, 0, &coarse, NULL, why) || !play(c, finer, &fine, NULL, why))
			return false;
		for (size_t g = 0; g < c->gpus; g++)
			for (size_t slot = 0; slot < SLOTS; slot++)
				for (size_t who = 0; who < WHOS; who++) {
					const struct amount *a = &coarse.of[g][slot][who], *b = &fine.of[g][slot][who];

					if (a->unit_ns == b->unit_ns && a->held_ns == b->held_ns &&
					    a->used_ns == b->used_ns && a->unmeasured_ns == b->unmeasured_ns &&
					    a->over_ns == b->over_ns && a->memory == b->memory &&
					    a->energy_mj == b->energy_mj && a->ticks == b->ticks)
						continue;
					buf_printf(why, "gpu %zu slot %zu holder or state %zu: sums differ", g, slot,
					           who);
					return false;
				}
	}
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"every nanosecond of every unit is where the rules put it", sizeof(struct schedule), generate_small,
	         every_nanosecond_is_where_the_rules_put_it, describe, NULL},
		{"the states of a GPU add up to its time in service", sizeof(struct schedule), generate_real,
	         states_add_up_to_the_time, describe, NULL},
		{"the energy of a GPU's records adds up to its counter", sizeof(struct schedule), generate_real,
	         energy_adds_up_to_the_counter, describe, NULL},
		{"more interval boundaries leave every sum unchanged", sizeof(struct schedule), generate_real,
	         more_boundaries_leave_the_sums_unchanged, describe, NULL},
	};

	return prop_main("meter", tests, ARRAY_LEN(tests));
}

/* The meter against a second computation of the same rules (tests/support/exporter/meterref.c) on random schedules: processes that begin, end,
 * fork and are told of afterwards, allocations of devices and replicas, on whole GPUs, MIG instances and replicas; GPUs cut
 * anew, lost, silent and back; counters of energy that begin anew; ticks early, late and missed. */
#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/meter/meter.h"
#include "tests/support/exporter/meterref.h"

/* The stream's dictionary, as an aggregator would keep it. */
struct known {
	uint32_t holder_id[SCHED_HOLDERS]; /* the latest */
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
	case WIRE_UNALLOCATED: return WHO_FREE;
	case WIRE_STRANDED: return WHO_STRANDED;
	case WIRE_DOWN: return WHO_DOWN;
	case WIRE_UNKNOWN: return WHO_UNKNOWN;
	}
	for (size_t h = 0; h < SCHED_HOLDERS; h++)
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
		a = &l->of[d->gpu[r->device]][dev->gi < 0 ? SCHED_WHOLE : dev->gi][who];
		a->unit_ns += (int128)r->units * r->held_ns;
		a->active_unit_ns += (int128)r->units * (r->used_ns + r->over_ns);
		a->unmeasured_unit_ns += (int128)r->units * r->unmeasured_ns;
		a->held_ns += r->held_ns;
		a->used_ns += r->used_ns;
		a->unmeasured_ns += r->unmeasured_ns;
		a->over_ns += r->over_ns;
		a->memory += r->memory_byte_ms;
		a->energy_mj += r->energy_mj;
		a->ticks += r->ticks;
		a->sm_active_ns += r->sm_active_ns;
		a->sm_measured_ns += r->sm_measured_ns;
		if (r->peak_memory_bytes > a->peak_memory_bytes)
			a->peak_memory_bytes = r->peak_memory_bytes;
	}
	return true;
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

/* Looks at the meter after each tick. */
typedef bool tick_check(const struct schedule *c, size_t k, const struct meter *m, void *arg, struct buf *why);

struct checks {
	batch_check *batch;
	tick_check *tick;
	void *arg;
};
static const struct checks no_checks = {0};

static bool
play(const struct schedule *c, int finer, struct ledger *l, const struct checks *checks, struct buf *why)
{
	struct meter_options o = schedule_options(c, finer);
	owned(meter) struct meter *m = meter_new(&o);
	owned(mem) struct known *d = mem_alloc(sizeof(*d));
	in_place(stage) struct stage st;
	uint64_t seq = 0;

	*l = (struct ledger){0};
	stage_init(&st);
	for (size_t k = 0; k < c->ticks; k++) {
		if (stage_tick(&st, c, k, m) && !take_batches(m, c, d, l, &seq, checks->batch, why))
			return false;
		if (checks->tick && !checks->tick(c, k, m, checks->arg, why))
			return false;
	}
	meter_flush(m);
	return take_batches(m, c, d, l, &seq, checks->batch, why);
}

/* ---- nanosecond by nanosecond ---- */

static bool
compare_unit_ns(const struct schedule *c, const struct ledger *want, const struct ledger *got, struct buf *why)
{
	for (size_t g = 0; g < c->gpus; g++)
		for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
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
			if (ref_in_service(c, k, g))
				ref_nanosecond(c, k, g, t, &want);
	}
	return book(&got, d, b, why) && compare_unit_ns(c, &want, &got, why);
}

static bool
every_nanosecond_is_where_the_rules_put_it(const void *vc, struct buf *why)
{
	struct ledger l;

	return play(vc, 0, &l, &(struct checks){.batch = batch_is_what_the_rules_give}, why);
}

/* What the counter rose by at tick k, since it was last read; a fall is counted and gives nothing. */
static int64_t
energy_rise(const struct schedule *c, size_t k, size_t g, int64_t *resets)
{
	int64_t rise;

	if (c->sight[k][g] != SEEN || c->energy_mj[k][g] == ABSENT)
		return 0;
	for (size_t i = k; i-- > 0;) {
		if (c->sight[i][g] != SEEN || c->energy_mj[i][g] == ABSENT)
			continue;
		rise = c->energy_mj[k][g] - c->energy_mj[i][g];
		*resets += rise < 0;
		return rise < 0 ? 0 : rise;
	}
	return 0;
}

static bool
compare_amounts(const struct ledger *want, const struct ledger *got, size_t g, struct buf *why)
{
	for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
		for (size_t who = 0; who < WHOS; who++) {
			const struct amount *a = &want->of[g][slot][who], *b = &got->of[g][slot][who];
			int128 energy_off = (int128)b->energy_mj * 1000000 - a->energy_umj;

			if (a->unit_ns != b->unit_ns || a->active_unit_ns != b->active_unit_ns ||
			    a->unmeasured_unit_ns != b->unmeasured_unit_ns) {
				buf_printf(why,
				           "gpu %zu slot %zu holder or state %zu: held %" PRId64 " active %" PRId64
				           " unmeasured %" PRId64 ", the rules give %" PRId64 ", %" PRId64 ", %" PRId64,
				           g, slot, who, (int64_t)b->unit_ns, (int64_t)b->active_unit_ns,
				           (int64_t)b->unmeasured_unit_ns, (int64_t)a->unit_ns,
				           (int64_t)a->active_unit_ns, (int64_t)a->unmeasured_unit_ns);
				return false;
			}
			/* each of the two divisions rounds each part by less than one */
			if (energy_off > (int128)2000000 * want->entries[g] ||
			    energy_off < -(int128)2000000 * want->entries[g]) {
				buf_printf(why,
				           "gpu %zu slot %zu holder or state %zu: %" PRId64
				           " mJ, the rules give %" PRId64 " millionths",
				           g, slot, who, b->energy_mj, (int64_t)a->energy_umj);
				return false;
			}
		}
	return true;
}

static bool
activity_and_energy_are_divided_as_the_rules_say(const void *vc, struct buf *why)
{
	const struct schedule *c = vc;
	struct ledger want = {0}, got;
	int64_t resets = 0;

	for (size_t k = 1; k < c->ticks; k++)
		for (size_t g = 0; g < c->gpus; g++)
			if (ref_in_service(c, k, g))
				ref_slot(c, k, g, energy_rise(c, k, g, &resets), &want);
	if (!play(c, 0, &got, &no_checks, why))
		return false;
	for (size_t g = 0; g < c->gpus; g++)
		if (!compare_amounts(&want, &got, g, why))
			return false;
	return true;
}

/* ---- what is counted ---- */

static bool
same_count(const char *name, int64_t want, int64_t got, struct buf *why)
{
	if (want != got)
		buf_printf(why, "%s: %" PRId64 ", the rules give %" PRId64, name, got, want);
	return want == got;
}

static size_t
intruders_on(const struct meter *m, size_t g)
{
	const struct meter_intruder *list;
	size_t n = meter_intruders(m, &list), on = 0;

	for (size_t i = 0; i < n; i++)
		on += (size_t)(list[i].gpu->uuid[4] - '0') == g;
	return on;
}

static bool
count_tick(const struct schedule *c, size_t k, const struct meter *m, void *arg, struct buf *why)
{
	struct meter_stats *want = arg;

	for (size_t g = 0; g < c->gpus; g++) {
		size_t intruders = 0;

		if (k > 0 && ref_in_service(c, k, g))
			want->unknown_slots += ref_unknown(c, k, g);
		(void)energy_rise(c, k, g, &want->energy_resets);
		if (c->sight[k][g] != SEEN)
			continue;
		for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
			for (size_t h = 0; h < SCHED_HOLDERS; h++)
				intruders += ref_intrudes(c, k, g, slot, h);
		if (!same_count("intruders", (int64_t)intruders, (int64_t)intruders_on(m, g), why))
			return false;
	}
	for (size_t i = 0; k > 0 && i < c->processes; i++) {
		enum ref_short what = ref_short_process(c, k, i);

		want->short_processes += what == SHORT_HELD;
		want->short_not_held += what == SHORT_NOT_HELD;
	}
	return true;
}

static bool
compare_counts(const struct schedule *c, size_t k, const struct meter *m, void *arg, struct buf *why)
{
	const struct meter_stats *want = arg;
	struct meter_stats got;

	if (!count_tick(c, k, m, arg, why))
		return false;
	meter_stats(m, &got);
	return same_count("short processes", want->short_processes, got.short_processes, why) &&
	       same_count("short processes that hold nothing", want->short_not_held, got.short_not_held, why) &&
	       same_count("unknown slots", want->unknown_slots, got.unknown_slots, why) &&
	       same_count("energy resets", want->energy_resets, got.energy_resets, why);
}

static bool
what_is_counted_is_what_happened(const void *vc, struct buf *why)
{
	struct meter_stats want = {0};
	struct ledger l;

	return play(vc, 0, &l, &(struct checks){.tick = compare_counts, .arg = &want}, why);
}

/* Whoever has a total is on the device at this tick, by a process or an allocation, or the GPU is silent. */
static bool
totals_are_of_who_is_there(const struct schedule *c, size_t k, const struct meter *m, void *arg, struct buf *why)
{
	const struct meter_total *list;
	size_t n = meter_totals(m, &list);

	(void)arg;
	for (size_t i = 0; i < n; i++) {
		size_t g = (size_t)(list[i].gpu->uuid[4] - '0'), h = (size_t)list[i].holder->uid;
		size_t slot = list[i].device == list[i].gpu ? SCHED_WHOLE : (size_t)list[i].device->gi;
		bool there = c->sight[k][g] == SILENT;

		for (size_t p = 0; p < c->processes; p++)
			there = there || (c->process[p].gpu == g && c->process[p].holder == h &&
			                  sched_alive(&c->process[p], c->at[k]));
		for (size_t a = 0; a < c->allocations; a++)
			there = there || (c->allocation[a].gpu == g && c->allocation[a].slot == slot &&
			                  c->allocation[a].holder == h && sched_shown(&c->allocation[a], c->at[k]));
		if (!there) {
			buf_printf(why, "tick %zu: holder %zu has a total on gpu %zu slot %zu and is gone", k, h, g,
			           slot);
			return false;
		}
	}
	return true;
}

static bool
totals_leave_with_their_workloads(const void *vc, struct buf *why)
{
	struct ledger l;

	return play(vc, 0, &l, &(struct checks){.tick = totals_are_of_who_is_there}, why);
}

/* ---- at the scale of real ticks ---- */

static bool
gpu_adds_up(const struct schedule *c, const struct ledger *l, size_t g, struct buf *why)
{
	int128 sum = 0, want = 0;

	for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
		for (size_t who = 0; who < WHOS; who++)
			sum += l->of[g][slot][who].unit_ns;
	for (size_t k = 1; k < c->ticks; k++)
		if (ref_in_service(c, k, g))
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

	if (!play(c, 0, &l, &no_checks, why))
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

	if (!play(c, 0, &l, &no_checks, why))
		return false;
	for (size_t g = 0; g < c->gpus; g++) {
		int64_t want = 0, sum = 0, resets = 0;

		for (size_t k = 1; k < c->ticks; k++)
			want += energy_rise(c, k, g, &resets);
		for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
			for (size_t who = 0; who < WHOS; who++)
				sum += l.of[g][slot][who].energy_mj;
		if (sum != want) {
			buf_printf(why, "gpu %zu: records have %" PRId64 " mJ, the counter rose by %" PRId64, g, sum,
			           want);
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
		if (!play(c, 0, &coarse, &no_checks, why) || !play(c, finer, &fine, &no_checks, why))
			return false;
		for (size_t g = 0; g < c->gpus; g++)
			for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
				for (size_t who = 0; who < WHOS; who++) {
					const struct amount *a = &coarse.of[g][slot][who], *b = &fine.of[g][slot][who];

					if (a->unit_ns == b->unit_ns && a->held_ns == b->held_ns &&
					    a->used_ns == b->used_ns && a->unmeasured_ns == b->unmeasured_ns &&
					    a->over_ns == b->over_ns && a->memory == b->memory &&
					    a->energy_mj == b->energy_mj && a->ticks == b->ticks &&
					    a->sm_active_ns == b->sm_active_ns &&
					    a->sm_measured_ns == b->sm_measured_ns &&
					    a->peak_memory_bytes == b->peak_memory_bytes)
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
		{"every nanosecond of every unit is where the rules put it", sizeof(struct schedule), schedule_small,
	         every_nanosecond_is_where_the_rules_put_it, schedule_describe, NULL},
		{"activity and energy are divided as the rules say", sizeof(struct schedule), schedule_small,
	         activity_and_energy_are_divided_as_the_rules_say, schedule_describe, NULL},
		{"short processes, intruders, unknown slots and resets are counted as they happened",
	         sizeof(struct schedule), schedule_small, what_is_counted_is_what_happened, schedule_describe, NULL},
		{"a workload's total leaves with the tick that misses it", sizeof(struct schedule), schedule_small,
	         totals_leave_with_their_workloads, schedule_describe, NULL},
		{"the states of a GPU add up to its time in service", sizeof(struct schedule), schedule_real,
	         states_add_up_to_the_time, schedule_describe, NULL},
		{"the energy of a GPU's records adds up to its counter", sizeof(struct schedule), schedule_real,
	         energy_adds_up_to_the_counter, schedule_describe, NULL},
		{"more interval boundaries leave every sum unchanged", sizeof(struct schedule), schedule_real,
	         more_boundaries_leave_the_sums_unchanged, schedule_describe, NULL},
	};

	return prop_main("meter", tests, ARRAY_LEN(tests));
}

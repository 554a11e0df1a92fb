/* exporter/meter_plan.c - who held what of one GPU in one slot. */
#include "exporter/meter_plan.h"

#include <stdlib.h>

#include "common/split.h"
#include "common/time.h"
#include "common/units.h"

#define PPM INT64_C(1000000)

void
gpu_view_fini(struct gpu_view *v)
{
	mem_free(v->presences);
	*v = (struct gpu_view){0};
}

void
plan_fini(struct plan *p)
{
	mem_free(p->entries);
	mem_free(p->segments);
	*p = (struct plan){0};
}

/* Of the nanoseconds [0, t): how many belong to those parts. */
static int64_t
part_until(int64_t t, int64_t first, int64_t count, int64_t n)
{
	int64_t rest = t % n - first;

	if (rest < 0)
		rest = 0;
	if (rest > count)
		rest = count;
	return t / n * count + rest;
}

int64_t
plan_part_ns(int64_t from_ns, int64_t to_ns, int64_t first, int64_t count, int64_t n)
{
	return part_until(to_ns, first, count, n) - part_until(from_ns, first, count, n);
}

static int64_t
proportion(int64_t amount, int64_t part, int64_t whole)
{
	return (int64_t)((int128)amount * part / whole);
}

static int64_t
clamp(int64_t v, int64_t least, int64_t most)
{
	return v < least ? least : v > most ? most : v;
}

struct plan_entry
plan_cut(struct plan_entry *e, int64_t start_ns, int64_t duration_ns, int64_t left_ns)
{
	struct plan_entry cut = *e;

	cut.held_ns = plan_part_ns(start_ns, start_ns + duration_ns, e->part_first, e->part_count, e->part_of);
	/* no more than this part holds, and no less than what the rest could not hold */
	cut.used_ns = clamp(proportion(e->used_ns, duration_ns, left_ns), e->used_ns - (e->held_ns - cut.held_ns),
	                    cut.held_ns);
	cut.used_ns = clamp(cut.used_ns, 0, e->used_ns);
	/* all of an entry is unmeasured, or nothing is */
	cut.unmeasured_ns = e->unmeasured_ns ? cut.held_ns : 0;
	cut.over_ns = proportion(e->over_ns, duration_ns, left_ns);
	cut.memory_byte_ms = proportion(e->memory_byte_ms, duration_ns, left_ns);
	cut.energy_mj = proportion(e->energy_mj, duration_ns, left_ns);
	e->held_ns -= cut.held_ns;
	e->used_ns -= cut.used_ns;
	e->unmeasured_ns -= cut.unmeasured_ns;
	e->over_ns -= cut.over_ns;
	e->memory_byte_ms -= cut.memory_byte_ms;
	e->energy_mj -= cut.energy_mj;
	return cut;
}

static void
add_segment(struct plan *p, int64_t start_ns, int64_t end_ns)
{
	if (p->segment_count == p->segment_cap) {
		p->segment_cap = p->segment_cap ? p->segment_cap * 2 : 4;
		p->segments = mem_grow(p->segments, p->segment_cap, sizeof(*p->segments));
	}
	p->segments[p->segment_count++] =
		(struct plan_segment){.start_ns = start_ns, .end_ns = end_ns, .first = p->entry_count};
}

/* Adds an entry to the last segment, with all the time of its parts held. */
static struct plan_entry *
add_entry(struct plan *p, struct plan_entry e)
{
	struct plan_segment *s = &p->segments[p->segment_count - 1];

	if (p->entry_count == p->entry_cap) {
		p->entry_cap = p->entry_cap ? p->entry_cap * 2 : 16;
		p->entries = mem_grow(p->entries, p->entry_cap, sizeof(*p->entries));
	}
	e.held_ns = plan_part_ns(s->start_ns, s->end_ns, e.part_first, e.part_count, e.part_of);
	p->entries[p->entry_count] = e;
	s->count++;
	return &p->entries[p->entry_count++];
}

static void
add_whole(struct plan *p, struct dict_device *device, uint32_t state, uint32_t sharing, int64_t units)
{
	if (units > 0)
		(void)add_entry(p, (struct plan_entry){.device = device,
		                                       .state = state,
		                                       .sharing = sharing,
		                                       .units = units,
		                                       .part_count = 1,
		                                       .part_of = 1});
}

/* A holder in the slot: seen at either end. */
struct hold {
	struct presence seen;
	int64_t begin_ns;
	int64_t sm_ppm; /* 0 when the tick at the end missed it: nothing was measured for it */
};

static int
presence_order(const struct presence *a, const struct presence *b)
{
	if (a->device != b->device)
		return a->device->wire.id < b->device->wire.id ? -1 : 1;
	return dict_holder_order(a->holder, b->holder);
}

static bool
in_layout(const struct plan_slot *slot, const struct dict_device *device)
{
	if (!slot->prev->mig)
		return device == slot->gpu;
	for (size_t i = 0; i < slot->prev->instance_count; i++)
		if (slot->prev->instances[i].device == device)
			return true;
	return false;
}

/* Rule 1: who was there at the first tick holds the whole slot, who was seen only at its end from its start on. */
static size_t
find_holds(const struct plan_slot *slot, struct hold *holds)
{
	const struct gpu_view *prev = slot->prev, *now = slot->now;
	size_t i = 0, j = 0, n = 0;

	while (i < prev->presence_count || j < now->presence_count) {
		int order = i == prev->presence_count  ? 1
		            : j == now->presence_count ? -1
		                                       : presence_order(&prev->presences[i], &now->presences[j]);
		const struct presence *seen = order < 0 ? &prev->presences[i] : &now->presences[j];
		struct hold h = {.seen = *seen, .begin_ns = slot->start_ns, .sm_ppm = order < 0 ? 0 : seen->sm_ppm};

		i += order <= 0;
		j += order >= 0;
		if (order > 0)
			h.begin_ns = clamp(seen->begin_ns, slot->start_ns, slot->end_ns);
		if (h.begin_ns < slot->end_ns && in_layout(slot, seen->device))
			holds[n++] = h;
	}
	return n;
}

static int
time_order(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* The holders of one device in the last segment: entries first .. first+count-1 of the plan. */
struct sharers {
	size_t first, count;
	int64_t active_ppm;    /* of the device; ABSENT: not measured */
	bool process_activity; /* holds' sm_ppm are measured */
};

/* Rule 4: activity of the device among its holders. The weights are the measured activity of each, or what each holds. */
static void
share_activity(struct plan *p, const struct sharers *s, const int64_t *sm_ppm, int64_t duration_ns)
{
	owned(mem) int128 *weight = mem_array(s->count, sizeof(*weight));
	owned(mem) int128 *activity = mem_array(s->count, sizeof(*activity));
	bool by_process = s->process_activity && (s->count > 1 || s->active_ppm == ABSENT);
	int128 total_ppm = s->active_ppm;
	int128 measured_ppm = 0;
	bool shared;

	for (size_t i = 0; i < s->count; i++) {
		weight[i] = by_process ? sm_ppm[i] : p->entries[s->first + i].held_ns;
		measured_ppm += by_process ? sm_ppm[i] : 0;
	}
	/* clients that run at the same time can add up to more than the device was active */
	if (by_process && (s->active_ppm == ABSENT || measured_ppm < s->active_ppm))
		total_ppm = measured_ppm;
	shared = split_largest_remainder(total_ppm * duration_ns / PPM, weight, s->count, activity);
	for (size_t i = 0; i < s->count; i++) {
		struct plan_entry *e = &p->entries[s->first + i];

		/* nothing to share by: nobody was active, or the piece is shorter than its parts */
		if (!shared)
			activity[i] = 0;
		e->method = by_process || s->count == 1 ? WIRE_MEASURED : WIRE_ESTIMATED;
		e->used_ns = activity[i] < e->held_ns ? (int64_t)activity[i] : e->held_ns;
		e->over_ns = (int64_t)activity[i] - e->used_ns;
	}
}

/* The entries of one device in the last segment: one per holder, and its free part. */
static void
plan_device(struct plan *p, const struct plan_slot *slot, struct dict_device *device, int64_t active_ppm,
            const struct hold *holds, size_t hold_count, int64_t *sm_ppm)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	int64_t duration_ns = seg->end_ns - seg->start_ns;
	bool whole = device == slot->gpu;
	int64_t replicas = whole ? slot->replicas : 1;
	struct sharers s = {.active_ppm = active_ppm, .process_activity = slot->now->process_activity};
	int64_t parts, holders = 0;
	uint32_t sharing;

	for (size_t i = 0; i < hold_count; i++)
		holders += holds[i].begin_ns <= seg->start_ns;
	parts = replicas > holders ? replicas : holders;
	sharing = !whole                          ? WIRE_MIG
	          : replicas == 1 && holders <= 1 ? WIRE_EXCLUSIVE
	          : slot->now->mps                ? WIRE_MPS
	          : replicas > 1                  ? WIRE_TIMESLICE
	                                          : WIRE_PLAIN;
	struct plan_entry e = {.device = device, .sharing = sharing, .units = device->wire.units, .part_of = parts};

	if (parts > holders) {
		e.state = WIRE_UNALLOCATED;
		e.part_first = holders;
		e.part_count = parts - holders;
		(void)add_entry(p, e);
	}
	e.state = WIRE_HELD;
	e.part_first = 0;
	e.part_count = 1;
	s.first = p->entry_count;
	for (size_t i = 0; i < hold_count; i++) {
		struct plan_entry *added;

		if (holds[i].begin_ns > seg->start_ns)
			continue;
		e.holder = holds[i].seen.holder;
		added = add_entry(p, e);
		added->memory_byte_ms = (int64_t)((int128)holds[i].seen.memory_bytes * duration_ns / NS_PER_MS);
		sm_ppm[s.count++] = holds[i].sm_ppm;
		e.part_first++;
	}
	if (s.count == 0)
		return;
	if (s.active_ppm != ABSENT || s.process_activity) {
		share_activity(p, &s, sm_ppm, duration_ns);
		return;
	}
	for (size_t i = 0; i < s.count; i++)
		p->entries[s.first + i].unmeasured_ns = p->entries[s.first + i].held_ns;
}

static int64_t
activity_now(const struct gpu_view *now, const struct dict_device *device)
{
	for (size_t i = 0; i < now->instance_count; i++)
		if (now->instances[i].device == device)
			return now->instances[i].active_ppm;
	return ABSENT;
}

static void
plan_segment(struct plan *p, const struct plan_slot *slot, const struct hold *holds, size_t hold_count,
             int64_t *scratch)
{
	const struct gpu_view *prev = slot->prev;
	size_t at = 0;

	if (!prev->mig) {
		plan_device(p, slot, slot->gpu, slot->now->active_ppm, holds, hold_count, scratch);
		return;
	}
	add_whole(p, slot->gpu, WIRE_UNALLOCATED, WIRE_MIG, prev->units_unallocated);
	add_whole(p, slot->gpu, WIRE_STRANDED, WIRE_MIG, prev->units_stranded);
	/* instances and holds both come in the order of device ids */
	for (size_t i = 0; i < prev->instance_count; i++) {
		struct dict_device *device = prev->instances[i].device;
		size_t from = at;

		while (at < hold_count && holds[at].seen.device == device)
			at++;
		plan_device(p, slot, device, activity_now(slot->now, device), holds + from, at - from, scratch);
	}
}

/* Rule 7. */
static void
divide_energy(struct plan *p, int64_t energy_mj)
{
	owned(mem) int128 *weight = mem_array(p->entry_count, sizeof(*weight));
	owned(mem) int128 *part = mem_array(p->entry_count, sizeof(*part));
	bool active = false;

	if (energy_mj == 0)
		return;
	for (size_t i = 0; i < p->entry_count; i++) {
		const struct plan_entry *e = &p->entries[i];

		weight[i] = (int128)e->units * (e->used_ns + e->over_ns);
		active = active || weight[i] > 0;
	}
	for (size_t i = 0; !active && i < p->entry_count; i++)
		weight[i] = (int128)p->entries[i].units * p->entries[i].held_ns;
	/* some entry holds something, because the slot is not empty */
	ASSERT(split_largest_remainder(energy_mj, weight, p->entry_count, part));
	for (size_t i = 0; i < p->entry_count; i++)
		p->entries[i].energy_mj = (int64_t)part[i];
}

static void
plan_holders(const struct plan_slot *slot, struct plan *p)
{
	size_t most = slot->prev->presence_count + slot->now->presence_count;
	owned(mem) struct hold *holds = mem_array(most, sizeof(*holds));
	owned(mem) int64_t *cuts = mem_array(most + 2, sizeof(*cuts));
	owned(mem) int64_t *scratch = mem_array(most, sizeof(*scratch));
	size_t hold_count = find_holds(slot, holds), cut_count = 0;

	cuts[cut_count++] = slot->start_ns;
	for (size_t i = 0; i < hold_count; i++)
		cuts[cut_count++] = holds[i].begin_ns;
	cuts[cut_count++] = slot->end_ns;
	qsort(cuts, cut_count, sizeof(*cuts), time_order);
	for (size_t i = 0; i + 1 < cut_count; i++) {
		if (cuts[i] == cuts[i + 1])
			continue;
		add_segment(p, cuts[i], cuts[i + 1]);
		plan_segment(p, slot, holds, hold_count, scratch);
	}
}

void
plan_make(const struct plan_slot *slot, struct plan *into)
{
	const struct gpu_view *prev = slot->prev, *now = slot->now;
	bool unknown = slot->unknown || prev->layout_odd;
	bool down = prev->down || now->down || prev->mig != now->mig;

	into->entry_count = into->segment_count = 0;
	if (unknown || down) {
		add_segment(into, slot->start_ns, slot->end_ns);
		add_whole(into, slot->gpu,
		          slot->unknown ? WIRE_UNKNOWN
		          : down        ? WIRE_DOWN
		                        : WIRE_UNKNOWN,
		          WIRE_EXCLUSIVE, UNITS_PER_GPU);
	} else {
		plan_holders(slot, into);
	}
	divide_energy(into, slot->energy_mj);
}

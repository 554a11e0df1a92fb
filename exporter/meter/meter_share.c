/* exporter/meter/meter_share.c - who held what of one GPU in one slot: rules 3 to 9 and 11 of meter.h, in the order of their numbers. */
#include <stdlib.h>

#include "common/base/apportion.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/meter/meter_internal.h"

/* The part of one holder in one device in one segment. */
struct segment_holder {
	struct dict_holder *holder;
	const struct claim *claim; /* NULL: not allocated to it */
	bool holds;                /* else it is an intruder */
	bool running;              /* has a process whose activity only a tick can measure */
	bool accounted;            /* has a process whose activity accounting measured */
	bool active;               /* has a part in the activity of the device */
	size_t entry;              /* of the plan, when it holds */
	int128 active_ppm_ns;      /* of its processes, as far as it is measured for each */
	int128 memory_byte_ns;
	/* bytes of its processes by the tick that saw them; of those that no tick saw, the largest */
	int128 memory_seen[SEEN_BY_SECOND + 1];
};

void
plan_fini(struct plan *p)
{
	mem_free(p->entries);
	mem_free(p->segments);
	mem_free(p->processes);
	mem_free(p->claims);
	mem_free(p->holders);
	mem_free(p->cuts);
	mem_free(p->weights);
	mem_free(p->shares);
	*p = (struct plan){0};
}

/* ---- rule 3: a slot is cut where a holder begins or ends ---- */

static void
add_segment(struct plan *p, int64_t start_ns, int64_t end_ns)
{
	array_room(p->segments, p->segment_count, p->segment_cap);
	p->segments[p->segment_count++] =
		(struct plan_segment){.start_ns = start_ns, .end_ns = end_ns, .first = p->entry_count};
}

static int
time_order(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* The times at which claims begin, and at which the processes of one holder on one device, taken together, begin and end. */
static size_t
find_cuts(struct plan *p, const struct plan_slot *slot)
{
	size_t n = 0, most = 2 * p->process_count + p->claim_count + 2;
	bool sorted = true;

	if (most > p->cut_cap) {
		p->cut_cap = most;
		p->cuts = mem_grow(p->cuts, most, sizeof(*p->cuts));
	}
	p->cuts[n++] = slot->start_ns;
	for (size_t i = 0; i < p->claim_count; i++)
		p->cuts[n++] = p->claims[i].begin_ns;
	for (size_t i = 0; i < p->process_count;) {
		const struct meter_process *first = &p->processes[i];
		int64_t end_ns = first->end_ns;

		for (i++; i < p->process_count && p->processes[i].device == first->device &&
		          p->processes[i].holder == first->holder && p->processes[i].begin_ns <= end_ns;
		     i++)
			if (p->processes[i].end_ns > end_ns)
				end_ns = p->processes[i].end_ns;
		p->cuts[n++] = first->begin_ns;
		p->cuts[n++] = end_ns;
	}
	p->cuts[n++] = slot->end_ns;
	for (size_t i = 1; i < n; i++)
		sorted = sorted && p->cuts[i - 1] <= p->cuts[i];
	if (!sorted)
		qsort(p->cuts, n, sizeof(*p->cuts), time_order);
	return n;
}

/* ---- rule 4: holders have equal parts of a device, or a part for each replica ---- */

/* How many of the nanoseconds [0, t) belong to parts first .. first+count-1 of n. */
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

/* The same for [from, to); from >= 0. */
static int64_t
part_ns(int64_t from_ns, int64_t to_ns, int64_t first, int64_t count, int64_t n)
{
	return part_until(to_ns, first, count, n) - part_until(from_ns, first, count, n);
}

/* Adds an entry to the last segment, with all the time of its parts held. */
static void
add_entry(struct plan *p, struct plan_entry e)
{
	struct plan_segment *s = &p->segments[p->segment_count - 1];

	array_room(p->entries, p->entry_count, p->entry_cap);
	e.held_ns = part_ns(s->start_ns, s->end_ns, e.part_first, e.part_count, e.part_of);
	p->entries[p->entry_count++] = e;
	s->count++;
}

static void
add_whole(struct plan *p, struct dict_device *device, uint32_t state, uint32_t sharing, int64_t units)
{
	if (units > 0)
		add_entry(p, (struct plan_entry){.device = device,
		                                 .state = state,
		                                 .sharing = sharing,
		                                 .units = units,
		                                 .part_count = 1,
		                                 .part_of = 1});
}

/* The processes and claims of one device. */
struct on_device {
	const struct meter_process *processes;
	size_t process_count;
	const struct claim *claims;
	size_t claim_count;
};

/* Adds the part of a process that lies in the segment to its holder. */
static void
add_process(struct segment_holder *to, const struct meter_process *p, const struct plan_segment *seg)
{
	int64_t begin_ns = p->begin_ns > seg->start_ns ? p->begin_ns : seg->start_ns;
	int64_t end_ns = p->end_ns < seg->end_ns ? p->end_ns : seg->end_ns;

	if (begin_ns >= end_ns)
		return;
	to->running = to->running || !p->accounted;
	to->accounted = to->accounted || p->accounted;
	to->active_ppm_ns += (int128)p->active_ppm * (end_ns - begin_ns);
	to->memory_byte_ns += (int128)p->memory_bytes * (end_ns - begin_ns);
	if (p->seen == SEEN_BY_NONE)
		to->memory_seen[SEEN_BY_NONE] = p->memory_bytes > to->memory_seen[SEEN_BY_NONE]
		                                        ? p->memory_bytes
		                                        : to->memory_seen[SEEN_BY_NONE];
	else
		to->memory_seen[p->seen] += p->memory_bytes;
}

/* The holders of one device in the last segment, in the order of holders, in which processes and claims both come. Those hold that
 * the device is allocated to; where it is allocated to nobody, those with a process on it. */
static size_t
find_holders(struct plan *p, const struct on_device *on, bool *ret_allocated)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	size_t i = 0, j = 0, n = 0;

	*ret_allocated = false;
	while (i < on->process_count || j < on->claim_count) {
		int order = i == on->process_count ? 1
		            : j == on->claim_count ? -1
		                                   : dict_holder_order(on->processes[i].holder, on->claims[j].holder);
		const struct claim *c = order >= 0 ? &on->claims[j] : NULL;
		struct segment_holder h = {.holder = c ? c->holder : on->processes[i].holder};

		if (c && c->begin_ns <= seg->start_ns) {
			h.claim = c;
			*ret_allocated = true;
		}
		for (; order <= 0 && i < on->process_count && on->processes[i].holder == h.holder; i++)
			add_process(&h, &on->processes[i], seg);
		j += order >= 0;
		if (h.claim || h.running || h.accounted)
			p->holders[n++] = h;
	}
	for (i = 0; i < n; i++)
		p->holders[i].holds = p->holders[i].claim || !*ret_allocated;
	return n;
}

/* Into how many parts a device is divided. */
struct division {
	int64_t replicas; /* 1: by holders */
	int64_t held;     /* parts */
	int64_t holders;
};

static struct division
divide(const struct plan *p, size_t holder_count, bool allocated, int64_t replicas)
{
	struct division d = {.replicas = replicas};
	bool whole = false;

	for (size_t i = 0; i < holder_count; i++) {
		const struct claim *c = p->holders[i].claim;

		if (!p->holders[i].holds)
			continue;
		d.holders++;
		d.held += c ? c->replicas : 1;
		if (c && c->replica_of > d.replicas)
			d.replicas = c->replica_of;
		whole = whole || (c && c->replicas == 0);
	}
	if (allocated && whole) {
		d.replicas = 1;
		d.held = d.holders;
	}
	return d;
}

static int64_t
memory_byte_ms(const struct segment_holder *h, int64_t duration_ns)
{
	int128 most = (int128)METER_MEMORY_MAX * duration_ns;

	return (int64_t)((h->memory_byte_ns < most ? h->memory_byte_ns : most) / NS_PER_MS);
}

/* Rule 11: the memory of all its processes at one of the two ticks, or of one that no tick saw. */
static int64_t
peak_memory_bytes(const struct segment_holder *h)
{
	int128 most = 0;

	for (size_t i = 0; i < ARRAY_LEN(h->memory_seen); i++)
		if (h->memory_seen[i] > most)
			most = h->memory_seen[i];
	return most < METER_MEMORY_MAX ? (int64_t)most : METER_MEMORY_MAX;
}

/* One entry for each that holds. */
static void
add_holders(struct plan *p, size_t holder_count, struct plan_entry e, bool by_replicas)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	int64_t duration_ns = seg->end_ns - seg->start_ns;

	e.state = WIRE_HELD;
	for (size_t i = 0; i < holder_count; i++) {
		struct segment_holder *h = &p->holders[i];

		if (!h->holds)
			continue;
		h->entry = p->entry_count;
		e.holder = h->holder;
		e.part_count = by_replicas && h->claim ? h->claim->replicas : 1;
		e.memory_byte_ms = memory_byte_ms(h, duration_ns);
		e.peak_memory_bytes = peak_memory_bytes(h);
		add_entry(p, e);
		e.part_first += e.part_count;
	}
}

/* ---- rule 7: activity ---- */

static void
reserve_weights(struct plan *p, size_t count)
{
	if (count <= p->weight_cap)
		return;
	p->weight_cap = count;
	p->weights = mem_grow(p->weights, count, sizeof(*p->weights));
	p->shares = mem_grow(p->shares, count, sizeof(*p->shares));
}

/* One device in one segment. */
struct activity {
	int64_t ppm; /* ABSENT: not measured */
	bool by_process;
	int64_t duration_ns, parts;
};

/* The activity of a device belongs to the holders with a process there; where there is none, to those that it is allocated to. A
 * holder whose processes are all accounted has no part in it: at the tick, the device was active without them. Returns how many
 * have a part. */
static size_t
find_active(struct plan *p, size_t holder_count)
{
	size_t running = 0, n = 0;

	for (size_t i = 0; i < holder_count; i++)
		running += p->holders[i].running;
	for (size_t i = 0; i < holder_count; i++) {
		struct segment_holder *h = &p->holders[i];

		h->active = running ? h->running : !h->accounted;
		n += h->active;
	}
	return n;
}

static void
set_activity(struct plan *p, const struct segment_holder *h, int128 activity_ns, uint32_t method)
{
	struct plan_entry *e = &p->entries[h->entry];

	if (!h->holds)
		return;
	e->method = method;
	e->used_ns = activity_ns < e->held_ns ? (int64_t)activity_ns : e->held_ns;
	e->over_ns = (int64_t)activity_ns - e->used_ns;
}

static void
set_unmeasured(struct plan *p, const struct segment_holder *h)
{
	struct plan_entry *e = &p->entries[h->entry];

	if (!h->holds)
		return;
	e->method = h->claim ? WIRE_RESERVED : WIRE_NONE;
	e->unmeasured_ns = e->held_ns;
}

/* Several processes of one holder at once are active for no more than the segment. */
static int128
own_ppm_ns(const struct segment_holder *h, int64_t duration_ns)
{
	int128 most = (int128)PPM * duration_ns;

	return h->active_ppm_ns < most ? h->active_ppm_ns : most;
}

/* Between several holders. An intruder weighs as much as one part. */
static void
divide_activity(struct plan *p, size_t holder_count, const struct activity *a)
{
	int128 total = (int128)a->ppm * a->duration_ns, measured = 0;
	bool shared;

	reserve_weights(p, holder_count);
	for (size_t i = 0; i < holder_count; i++) {
		const struct segment_holder *h = &p->holders[i];

		p->weights[i] = !h->active      ? 0
		                : a->by_process ? own_ppm_ns(h, a->duration_ns)
		                : h->holds      ? p->entries[h->entry].held_ns
		                                : a->duration_ns / a->parts;
		measured += p->weights[i];
	}
	/* processes that run at the same time can add up to more than the device was active */
	if (a->by_process && (a->ppm == ABSENT || measured < total))
		total = measured;
	/* false when all weights are 0, because nobody was active or the segment is shorter than its parts: then all shares are 0 */
	shared = apportion(total / PPM, p->weights, holder_count, p->shares);
	for (size_t i = 0; i < holder_count; i++)
		if (p->holders[i].active)
			set_activity(p, &p->holders[i], shared ? p->shares[i] : 0,
			             a->by_process ? WIRE_MEASURED : WIRE_ESTIMATED);
}

/* Sets used, over, unmeasured and method of the entries of the holders of one device in the last segment. */
static void
share_activity(struct plan *p, size_t holder_count, int64_t parts, int64_t active_ppm, bool process_activity)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	size_t active = find_active(p, holder_count);
	struct activity a = {.ppm = active_ppm,
	                     .by_process = process_activity && (active > 1 || active_ppm == ABSENT),
	                     .duration_ns = seg->end_ns - seg->start_ns,
	                     .parts = parts};

	for (size_t i = 0; i < holder_count; i++) {
		const struct segment_holder *h = &p->holders[i];
		int128 own = own_ppm_ns(h, a.duration_ns) / PPM;

		if (h->accounted && !h->running)
			set_activity(p, h, own, WIRE_MEASURED);
		else if (active_ppm == ABSENT && !process_activity)
			set_unmeasured(p, h);
		else if (!h->active)
			set_activity(p, h, 0, WIRE_MEASURED);
		else if (active == 1)
			set_activity(p, h, a.by_process ? own : (int128)active_ppm * a.duration_ns / PPM,
			             WIRE_MEASURED);
	}
	if (active > 1 && (active_ppm != ABSENT || process_activity))
		divide_activity(p, holder_count, &a);
}

/* ---- rule 9: energy ---- */

static int128
active_unit_ns(const struct plan_entry *e)
{
	return (int128)e->units * (e->used_ns + e->over_ns + e->unmeasured_ns);
}

/* Adds a part of the energy to the entries by the weights. */
static void
divide_energy(struct plan *p, int128 energy_mj)
{
	if (energy_mj == 0)
		return;
	/* some entry has a weight: this part of the energy would be 0 otherwise */
	ASSERT(apportion(energy_mj, p->weights, p->entry_count, p->shares));
	for (size_t i = 0; i < p->entry_count; i++)
		p->entries[i].energy_mj += (int64_t)p->shares[i];
}

static void
share_energy(struct plan *p, int64_t energy_mj, int64_t slot_ns)
{
	/* accounted activity comes on top of what the tick measured: the sum can be above the whole */
	int128 whole = (int128)UNITS_PER_GPU * slot_ns, active = 0, halves[2], parts[2];

	if (energy_mj == 0)
		return;
	reserve_weights(p, p->entry_count);
	for (size_t i = 0; i < p->entry_count; i++)
		active += p->weights[i] = active_unit_ns(&p->entries[i]);
	halves[0] = active;
	halves[1] = active < whole ? whole - active : 0;
	ASSERT(apportion(energy_mj, halves, 2, parts)); /* a slot is not empty */
	divide_energy(p, parts[0]);
	for (size_t i = 0; i < p->entry_count; i++)
		p->weights[i] = (int128)p->entries[i].units * p->entries[i].held_ns;
	divide_energy(p, parts[1]);
}

/* ---- rule 11: multiprocessors ---- */

/* Sets sm_active and sm_measured of the same entries as share_activity, after it; sm_active_ppm is not ABSENT. */
static void
share_sm(struct plan *p, size_t holder_count, struct device_activity activity)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	int64_t duration_ns = seg->end_ns - seg->start_ns;
	int128 sm_ns = (int128)activity.sm_active_ppm * duration_ns / PPM;
	/* the activity of intruders is in the device's, and in no entry */
	int128 active = activity.active_ppm == ABSENT ? 0 : (int128)activity.active_ppm * duration_ns / PPM, held = 0;

	for (size_t i = 0; i < holder_count; i++)
		if (p->holders[i].holds)
			held += p->entries[p->holders[i].entry].used_ns + p->entries[p->holders[i].entry].over_ns;
	if (held > active)
		active = held;
	for (size_t i = 0; i < holder_count; i++) {
		struct plan_entry *e = &p->entries[p->holders[i].entry];
		int128 share;

		if (!p->holders[i].holds)
			continue;
		share = active > 0 ? sm_ns * (e->used_ns + e->over_ns) / active : sm_ns * e->held_ns / duration_ns;
		e->sm_measured_ns = e->held_ns;
		e->sm_active_ns = share < e->held_ns ? (int64_t)share : e->held_ns;
	}
}

/* ---- the plan of a slot: rules 4, 7 and 11 for each device, rules 5 and 8 for the GPU, rule 9 for all ---- */

/* The entries of one device in the last segment: one per holder, and its free part. */
static void
plan_device(struct plan *p, const struct plan_slot *slot, struct dict_device *device, struct device_activity activity,
            const struct on_device *on)
{
	bool whole = device == slot->gpu, allocated;
	size_t holder_count = find_holders(p, on, &allocated);
	struct division d = divide(p, holder_count, allocated, whole ? slot->replicas : 1);
	struct plan_entry e = {.device = device, .units = device->wire.units};

	e.part_of = d.replicas > d.held ? d.replicas : d.held;
	e.sharing = !whole                              ? WIRE_MIG
	            : d.replicas == 1 && d.holders <= 1 ? WIRE_EXCLUSIVE
	            : slot->now->mps                    ? WIRE_MPS
	            : d.replicas > 1                    ? WIRE_TIMESLICE
	                                                : WIRE_PLAIN;
	if (e.part_of > d.held) {
		e.state = WIRE_UNALLOCATED;
		e.part_first = d.held;
		e.part_count = e.part_of - d.held;
		add_entry(p, e);
		e.part_first = 0;
	}
	add_holders(p, holder_count, e, d.replicas > 1);
	if (holder_count > 0)
		share_activity(p, holder_count, e.part_of, activity.active_ppm, slot->now->process_activity);
	if (holder_count > 0 && activity.sm_active_ppm != ABSENT)
		share_sm(p, holder_count, activity);
}

/* `likely`: the position of the device among the instances, if the layout is as it was. */
static struct device_activity
activity_now(const struct gpu_view *now, const struct dict_device *device, size_t likely)
{
	if (likely < now->instance_count && now->instances[likely].device == device)
		return now->instances[likely].activity;
	for (size_t i = 0; i < now->instance_count; i++)
		if (now->instances[i].device == device)
			return now->instances[i].activity;
	return (struct device_activity){ABSENT, ABSENT};
}

static void
plan_segment(struct plan *p, const struct plan_slot *slot)
{
	const struct gpu_view *prev = slot->prev;
	struct on_device on = {p->processes, p->process_count, p->claims, p->claim_count};
	size_t i = 0, j = 0;

	if (!prev->mig) {
		plan_device(p, slot, slot->gpu, slot->now->activity, &on);
		return;
	}
	add_whole(p, slot->gpu, WIRE_UNALLOCATED, WIRE_MIG, prev->units_unallocated);
	add_whole(p, slot->gpu, WIRE_STRANDED, WIRE_MIG, prev->units_stranded);
	/* instances, processes and claims all come in the order of device ids */
	for (size_t k = 0; k < prev->instance_count; k++) {
		struct dict_device *device = prev->instances[k].device;

		on.process_count = on.claim_count = 0;
		for (; i < p->process_count && p->processes[i].device == device; i++)
			on.process_count++;
		for (; j < p->claim_count && p->claims[j].device == device; j++)
			on.claim_count++;
		on.processes = on.process_count ? &p->processes[i - on.process_count] : NULL;
		on.claims = on.claim_count ? &p->claims[j - on.claim_count] : NULL;
		plan_device(p, slot, device, activity_now(slot->now, device, k), &on);
	}
}

static void
plan_holders(const struct plan_slot *slot, struct plan *p)
{
	size_t cut_count;

	presence_find(slot, p);
	if (p->process_count + p->claim_count > p->holder_cap) {
		p->holder_cap = p->process_count + p->claim_count;
		p->holders = mem_grow(p->holders, p->holder_cap, sizeof(*p->holders));
	}
	cut_count = find_cuts(p, slot);
	for (size_t i = 0; i + 1 < cut_count; i++) {
		if (p->cuts[i] == p->cuts[i + 1])
			continue;
		add_segment(p, p->cuts[i], p->cuts[i + 1]);
		plan_segment(p, slot);
	}
}

void
plan_make(const struct plan_slot *slot, struct plan *into)
{
	const struct gpu_view *prev = slot->prev, *now = slot->now;
	bool silent = slot->unknown || prev->silent || now->silent;
	bool down = prev->down || now->down || prev->mig != now->mig;

	into->entry_count = into->segment_count = 0;
	into->short_held = into->short_not_held = 0;
	into->unknown = silent || (!down && prev->layout_invalid);
	into->no_holders = into->unknown || down;
	if (into->no_holders) {
		add_segment(into, slot->start_ns, slot->end_ns);
		add_whole(into, slot->gpu, into->unknown ? WIRE_UNKNOWN : WIRE_DOWN, WIRE_EXCLUSIVE, UNITS_PER_GPU);
		presence_count_short(slot, into);
	} else {
		plan_holders(slot, into);
	}
	share_energy(into, slot->energy_mj, slot->end_ns - slot->start_ns);
}

/* ---- cutting an entry at the end of an interval ---- */

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

/* A part of an amount that never exceeds held time: at most what this part holds, and at least what the rest cannot hold. */
static int64_t
cut_of_held(int64_t amount, const struct plan_entry *e, int64_t held_ns, int64_t duration_ns, int64_t left_ns)
{
	int64_t part = clamp(proportion(amount, duration_ns, left_ns), amount - (e->held_ns - held_ns), held_ns);

	return clamp(part, 0, amount);
}

struct plan_entry
plan_cut(struct plan_entry *e, int64_t start_ns, int64_t duration_ns, int64_t left_ns)
{
	struct plan_entry cut = *e;

	cut.held_ns = part_ns(start_ns, start_ns + duration_ns, e->part_first, e->part_count, e->part_of);
	cut.used_ns = cut_of_held(e->used_ns, e, cut.held_ns, duration_ns, left_ns);
	/* all of an entry is unmeasured, or nothing is; the same of its multiprocessors */
	cut.unmeasured_ns = e->unmeasured_ns ? cut.held_ns : 0;
	cut.sm_measured_ns = e->sm_measured_ns ? cut.held_ns : 0;
	cut.sm_active_ns = cut_of_held(e->sm_active_ns, e, cut.held_ns, duration_ns, left_ns);
	cut.over_ns = proportion(e->over_ns, duration_ns, left_ns);
	cut.memory_byte_ms = proportion(e->memory_byte_ms, duration_ns, left_ns);
	cut.energy_mj = proportion(e->energy_mj, duration_ns, left_ns);
	e->held_ns -= cut.held_ns;
	e->used_ns -= cut.used_ns;
	e->unmeasured_ns -= cut.unmeasured_ns;
	e->over_ns -= cut.over_ns;
	e->memory_byte_ms -= cut.memory_byte_ms;
	e->energy_mj -= cut.energy_mj;
	e->sm_active_ns -= cut.sm_active_ns;
	e->sm_measured_ns -= cut.sm_measured_ns;
	return cut;
}

/* exporter/meter/meter_plan.c - who held what of one GPU in one slot. */
#include "exporter/meter/meter_plan.h"

#include <stdlib.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/meter/meter_people.h"
#include "exporter/meter/meter_share.h"

void
plan_fini(struct plan *p)
{
	mem_free(p->entries);
	mem_free(p->segments);
	mem_free(p->presences);
	mem_free(p->claims);
	mem_free(p->parties);
	mem_free(p->cuts);
	mem_free(p->weights);
	mem_free(p->shares);
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

/* A part of an amount of which no nanosecond is above one of held time: no more than this part holds, and no less than what the rest could
 * not hold. */
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

	cut.held_ns = plan_part_ns(start_ns, start_ns + duration_ns, e->part_first, e->part_count, e->part_of);
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

/* The presences and claims of one device. */
struct people {
	const struct presence *presences;
	size_t presence_count;
	const struct claim *claims;
	size_t claim_count;
};

/* Adds what a process does in a segment to its holder's party. */
static void
join_party(struct party *to, const struct presence *who, const struct plan_segment *seg)
{
	int64_t begin_ns = who->begin_ns > seg->start_ns ? who->begin_ns : seg->start_ns;
	int64_t end_ns = who->end_ns < seg->end_ns ? who->end_ns : seg->end_ns;

	if (begin_ns >= end_ns)
		return;
	to->lasting = to->lasting || !who->told;
	to->told = to->told || who->told;
	to->active_ppm_ns += (int128)who->active_ppm * (end_ns - begin_ns);
	to->memory_byte_ns += (int128)who->memory_bytes * (end_ns - begin_ns);
	if (who->seen == SEEN_BY_NONE)
		to->memory_seen[SEEN_BY_NONE] = who->memory_bytes > to->memory_seen[SEEN_BY_NONE]
		                                        ? who->memory_bytes
		                                        : to->memory_seen[SEEN_BY_NONE];
	else
		to->memory_seen[who->seen] += who->memory_bytes;
}

/* Who has to do with one device in the last segment, in the order of holders; presences and claims both come in it. Who holds:
 * those who are allocated the device, or if nobody is, those who are there. */
static size_t
find_parties(struct plan *p, const struct people *on, bool *ret_allocated)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	size_t i = 0, j = 0, n = 0;

	*ret_allocated = false;
	while (i < on->presence_count || j < on->claim_count) {
		int order = i == on->presence_count ? 1
		            : j == on->claim_count  ? -1
		                                    : dict_holder_order(on->presences[i].holder, on->claims[j].holder);
		const struct claim *c = order >= 0 ? &on->claims[j] : NULL;
		struct party party = {.holder = c ? c->holder : on->presences[i].holder};

		if (c && c->begin_ns <= seg->start_ns) {
			party.claim = c;
			*ret_allocated = true;
		}
		for (; order <= 0 && i < on->presence_count && on->presences[i].holder == party.holder; i++)
			join_party(&party, &on->presences[i], seg);
		j += order >= 0;
		if (party.claim || party.lasting || party.told)
			p->parties[n++] = party;
	}
	for (i = 0; i < n; i++)
		p->parties[i].holds = p->parties[i].claim || !*ret_allocated;
	return n;
}

/* Rule 4: into how many parts the device is divided. */
struct division {
	int64_t replicas; /* 1: by holders */
	int64_t held, holders;
};

static struct division
divide(const struct plan *p, size_t party_count, bool allocated, int64_t replicas)
{
	struct division d = {.replicas = replicas};
	bool whole = false;

	for (size_t i = 0; i < party_count; i++) {
		const struct claim *c = p->parties[i].claim;

		if (!p->parties[i].holds)
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
memory_byte_ms(const struct party *party, int64_t duration_ns)
{
	int128 most = (int128)VIEW_MEMORY_MAX * duration_ns;

	return (int64_t)((party->memory_byte_ns < most ? party->memory_byte_ns : most) / NS_PER_MS);
}

/* What its processes had together at one of the two ticks, or one that no tick saw. */
static int64_t
peak_memory_bytes(const struct party *party)
{
	int128 most = 0;

	for (size_t i = 0; i < ARRAY_LEN(party->memory_seen); i++)
		if (party->memory_seen[i] > most)
			most = party->memory_seen[i];
	return most < VIEW_MEMORY_MAX ? (int64_t)most : VIEW_MEMORY_MAX;
}

static void
add_holders(struct plan *p, size_t party_count, struct plan_entry e, bool by_replicas)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	int64_t duration_ns = seg->end_ns - seg->start_ns;

	e.state = WIRE_HELD;
	for (size_t i = 0; i < party_count; i++) {
		struct party *party = &p->parties[i];

		if (!party->holds)
			continue;
		party->entry = p->entry_count;
		e.holder = party->holder;
		e.part_count = by_replicas && party->claim ? party->claim->replicas : 1;
		e.memory_byte_ms = memory_byte_ms(party, duration_ns);
		e.peak_memory_bytes = peak_memory_bytes(party);
		(void)add_entry(p, e);
		e.part_first += e.part_count;
	}
}

/* The entries of one device in the last segment: one per holder, and its free part. */
static void
plan_device(struct plan *p, const struct plan_slot *slot, struct dict_device *device, struct view_activity activity,
            const struct people *on)
{
	bool whole = device == slot->gpu, allocated;
	size_t party_count = find_parties(p, on, &allocated);
	struct division d = divide(p, party_count, allocated, whole ? slot->replicas : 1);
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
		(void)add_entry(p, e);
		e.part_first = 0;
	}
	add_holders(p, party_count, e, d.replicas > 1);
	if (party_count > 0)
		share_activity(p, party_count, e.part_of, activity.active_ppm, slot->now->process_activity);
	if (party_count > 0 && activity.sm_active_ppm != ABSENT)
		share_sm(p, party_count, activity);
}

static struct view_activity
activity_now(const struct gpu_view *now, const struct dict_device *device, size_t likely)
{
	if (likely < now->instance_count && now->instances[likely].device == device)
		return now->instances[likely].activity;
	for (size_t i = 0; i < now->instance_count; i++)
		if (now->instances[i].device == device)
			return now->instances[i].activity;
	return (struct view_activity){ABSENT, ABSENT};
}

static void
plan_segment(struct plan *p, const struct plan_slot *slot)
{
	const struct gpu_view *prev = slot->prev;
	struct people on = {p->presences, p->presence_count, p->claims, p->claim_count};
	size_t i = 0, j = 0;

	if (!prev->mig) {
		plan_device(p, slot, slot->gpu, slot->now->activity, &on);
		return;
	}
	add_whole(p, slot->gpu, WIRE_UNALLOCATED, WIRE_MIG, prev->units_unallocated);
	add_whole(p, slot->gpu, WIRE_STRANDED, WIRE_MIG, prev->units_stranded);
	/* instances, presences and claims all come in the order of device ids */
	for (size_t k = 0; k < prev->instance_count; k++) {
		struct dict_device *device = prev->instances[k].device;

		on.presence_count = on.claim_count = 0;
		for (; i < p->presence_count && p->presences[i].device == device; i++)
			on.presence_count++;
		for (; j < p->claim_count && p->claims[j].device == device; j++)
			on.claim_count++;
		on.presences = on.presence_count ? &p->presences[i - on.presence_count] : NULL;
		on.claims = on.claim_count ? &p->claims[j - on.claim_count] : NULL;
		plan_device(p, slot, device, activity_now(slot->now, device, k), &on);
	}
}

static int
time_order(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* Rule 3: where claims begin, and where the processes of one holder on one device begin and end, taken together. */
static size_t
find_cuts(struct plan *p, const struct plan_slot *slot)
{
	size_t n = 0, most = 2 * p->presence_count + p->claim_count + 2;
	bool sorted = true;

	if (most > p->cut_cap) {
		p->cut_cap = most;
		p->cuts = mem_grow(p->cuts, most, sizeof(*p->cuts));
	}
	p->cuts[n++] = slot->start_ns;
	for (size_t i = 0; i < p->claim_count; i++)
		p->cuts[n++] = p->claims[i].begin_ns;
	for (size_t i = 0; i < p->presence_count;) {
		const struct presence *first = &p->presences[i];
		int64_t end_ns = first->end_ns;

		for (i++; i < p->presence_count && p->presences[i].device == first->device &&
		          p->presences[i].holder == first->holder && p->presences[i].begin_ns <= end_ns;
		     i++)
			if (p->presences[i].end_ns > end_ns)
				end_ns = p->presences[i].end_ns;
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

static void
plan_people(const struct plan_slot *slot, struct plan *p)
{
	size_t cut_count;

	people_find(slot, p);
	if (p->presence_count + p->claim_count > p->party_cap) {
		p->party_cap = p->presence_count + p->claim_count;
		p->parties = mem_grow(p->parties, p->party_cap, sizeof(*p->parties));
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
	into->unknown = silent || (!down && prev->layout_odd);
	into->nobody = into->unknown || down;
	if (into->nobody) {
		add_segment(into, slot->start_ns, slot->end_ns);
		add_whole(into, slot->gpu, into->unknown ? WIRE_UNKNOWN : WIRE_DOWN, WIRE_EXCLUSIVE, UNITS_PER_GPU);
		people_count_short(slot, into);
	} else {
		plan_people(slot, into);
	}
	share_energy(into, slot->energy_mj, slot->end_ns - slot->start_ns);
}

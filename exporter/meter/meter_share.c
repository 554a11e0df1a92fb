/* exporter/meter/meter_share.c - the activity of a device among its holders, the energy of a GPU among the entries of a slot. */
#include "exporter/meter/meter_share.h"

#include "common/base/split.h"
#include "common/base/time.h"
#include "common/base/units.h"

static void
need_weights(struct plan *p, size_t count)
{
	if (count <= p->weight_cap)
		return;
	p->weight_cap = count;
	p->weights = mem_grow(p->weights, count, sizeof(*p->weights));
	p->shares = mem_grow(p->shares, count, sizeof(*p->shares));
}

/* ---- rule 7 ---- */

/* One device in one segment. */
struct activity {
	int64_t ppm; /* ABSENT: not measured */
	bool by_process;
	int64_t duration_ns, parts;
};

/* The activity of a device is of those who have a process there; where nobody has one, of those who are allocated it. A party
 * whose processes are all told by accounting has no part in it: what the device did at the tick, it did without them. */
static size_t
find_sharing(struct plan *p, size_t party_count)
{
	size_t lasting = 0, n = 0;

	for (size_t i = 0; i < party_count; i++)
		lasting += p->parties[i].lasting;
	for (size_t i = 0; i < party_count; i++) {
		struct party *party = &p->parties[i];

		party->sharing = lasting ? party->lasting : !party->told;
		n += party->sharing;
	}
	return n;
}

static void
set_activity(struct plan *p, const struct party *party, int128 activity_ns, uint32_t method)
{
	struct plan_entry *e = &p->entries[party->entry];

	if (!party->holds)
		return;
	e->method = method;
	e->used_ns = activity_ns < e->held_ns ? (int64_t)activity_ns : e->held_ns;
	e->over_ns = (int64_t)activity_ns - e->used_ns;
}

static void
set_unmeasured(struct plan *p, const struct party *party)
{
	struct plan_entry *e = &p->entries[party->entry];

	if (!party->holds)
		return;
	e->method = party->claim ? WIRE_RESERVED : WIRE_NONE;
	e->unmeasured_ns = e->held_ns;
}

/* Several processes of one party at once are no more active than all the time. */
static int128
own_ppm_ns(const struct party *party, int64_t duration_ns)
{
	int128 most = (int128)PPM * duration_ns;

	return party->active_ppm_ns < most ? party->active_ppm_ns : most;
}

/* Among several. An intruder weighs as much as one part. */
static void
divide_activity(struct plan *p, size_t party_count, const struct activity *a)
{
	int128 total = (int128)a->ppm * a->duration_ns, measured = 0;
	bool shared;

	need_weights(p, party_count);
	for (size_t i = 0; i < party_count; i++) {
		const struct party *party = &p->parties[i];

		p->weights[i] = !party->sharing ? 0
		                : a->by_process ? own_ppm_ns(party, a->duration_ns)
		                : party->holds  ? p->entries[party->entry].held_ns
		                                : a->duration_ns / a->parts;
		measured += p->weights[i];
	}
	/* clients that run at the same time can add up to more than the device was active */
	if (a->by_process && (a->ppm == ABSENT || measured < total))
		total = measured;
	/* false: nothing to share by, nobody was active or the piece is shorter than its parts; all shares are 0 */
	shared = split_largest_remainder(total / PPM, p->weights, party_count, p->shares);
	for (size_t i = 0; i < party_count; i++)
		if (p->parties[i].sharing)
			set_activity(p, &p->parties[i], shared ? p->shares[i] : 0,
			             a->by_process ? WIRE_MEASURED : WIRE_ESTIMATED);
}

void
share_activity(struct plan *p, size_t party_count, int64_t parts, int64_t active_ppm, bool process_activity)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	size_t sharing = find_sharing(p, party_count);
	struct activity a = {.ppm = active_ppm,
	                     .by_process = process_activity && (sharing > 1 || active_ppm == ABSENT),
	                     .duration_ns = seg->end_ns - seg->start_ns,
	                     .parts = parts};

	for (size_t i = 0; i < party_count; i++) {
		const struct party *party = &p->parties[i];
		int128 own = own_ppm_ns(party, a.duration_ns) / PPM;

		if (party->told && !party->lasting)
			set_activity(p, party, own, WIRE_MEASURED);
		else if (active_ppm == ABSENT && !process_activity)
			set_unmeasured(p, party);
		else if (!party->sharing)
			set_activity(p, party, 0, WIRE_MEASURED);
		else if (sharing == 1)
			set_activity(p, party, a.by_process ? own : (int128)active_ppm * a.duration_ns / PPM,
			             WIRE_MEASURED);
	}
	if (sharing > 1 && (active_ppm != ABSENT || process_activity))
		divide_activity(p, party_count, &a);
}

/* ---- rule 11 ---- */

void
share_sm(struct plan *p, size_t party_count, struct view_activity activity)
{
	const struct plan_segment *seg = &p->segments[p->segment_count - 1];
	int64_t duration_ns = seg->end_ns - seg->start_ns;
	int128 sm_ns = (int128)activity.sm_active_ppm * duration_ns / PPM;
	/* what intruders did is in the device's activity, and in nobody's entry */
	int128 active = activity.active_ppm == ABSENT ? 0 : (int128)activity.active_ppm * duration_ns / PPM, told = 0;

	for (size_t i = 0; i < party_count; i++)
		if (p->parties[i].holds)
			told += p->entries[p->parties[i].entry].used_ns + p->entries[p->parties[i].entry].over_ns;
	if (told > active)
		active = told;
	for (size_t i = 0; i < party_count; i++) {
		struct plan_entry *e = &p->entries[p->parties[i].entry];
		int128 share;

		if (!p->parties[i].holds)
			continue;
		share = active > 0 ? sm_ns * (e->used_ns + e->over_ns) / active : sm_ns * e->held_ns / duration_ns;
		e->sm_measured_ns = e->held_ns;
		e->sm_active_ns = share < e->held_ns ? (int64_t)share : e->held_ns;
	}
}

/* ---- rule 9 ---- */

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
	/* some entry has a weight: who calls has looked */
	ASSERT(split_largest_remainder(energy_mj, p->weights, p->entry_count, p->shares));
	for (size_t i = 0; i < p->entry_count; i++)
		p->entries[i].energy_mj += (int64_t)p->shares[i];
}

void
share_energy(struct plan *p, int64_t energy_mj, int64_t slot_ns)
{
	/* activity that accounting tells comes on top of what the tick measured: the sum can be above the whole */
	int128 whole = (int128)UNITS_PER_GPU * slot_ns, active = 0, halves[2], parts[2];

	if (energy_mj == 0)
		return;
	need_weights(p, p->entry_count);
	for (size_t i = 0; i < p->entry_count; i++)
		active += p->weights[i] = active_unit_ns(&p->entries[i]);
	halves[0] = active;
	halves[1] = active < whole ? whole - active : 0;
	ASSERT(split_largest_remainder(energy_mj, halves, 2, parts)); /* a slot is not empty */
	divide_energy(p, parts[0]);
	for (size_t i = 0; i < p->entry_count; i++)
		p->weights[i] = (int128)p->entries[i].units * p->entries[i].held_ns;
	divide_energy(p, parts[1]);
}

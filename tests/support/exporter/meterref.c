/* tests/support/exporter/meterref.c - the meter's rules a second time. The numbers are those of exporter/meter/meter.h. */
#include "tests/support/exporter/meterref.h"

#include "common/base/apportion.h"
#include "common/base/units.h"

#define PPM INT64_C(1000000)

bool
ref_in_service(const struct schedule *c, size_t k, size_t g)
{
	for (size_t i = 0; i < k; i++)
		if (c->sight[i][g] != MISSING)
			return true;
	return false;
}

bool
ref_unknown(const struct schedule *c, size_t k, size_t g)
{
	return c->at[k] - c->at[k - 1] > 40 * c->unit_ns || c->sight[k][g] == SILENT || c->sight[k - 1][g] == SILENT;
}

bool
ref_measured(const struct schedule *c, size_t k, size_t g)
{
	return !ref_unknown(c, k, g) && c->sight[k][g] == SEEN && c->sight[k - 1][g] == SEEN &&
	       schedule_layout(c, k, g)->mig == schedule_layout(c, k - 1, g)->mig;
}

/* The device of the slot's first tick is still there at its second. */
static bool
stayed(const struct schedule *c, size_t k, size_t g, size_t slot)
{
	return slot == SCHED_WHOLE ||
	       schedule_layout(c, k - 1, g)->units[slot] == schedule_layout(c, k, g)->units[slot];
}

static bool
is_device(const struct sched_layout *l, size_t slot)
{
	return l->mig ? slot != SCHED_WHOLE && l->units[slot] > 0 : slot == SCHED_WHOLE;
}

/* ---- rule 1 ---- */

struct claimed {
	bool any, whole;
	int64_t replicas, of;
};

/* What a tick shows of one holder's allocations of one device; from: the earliest beginning that is known. */
static struct claimed
shown(const struct schedule *c, size_t k, size_t g, size_t slot, size_t holder, int64_t *ret_from)
{
	struct claimed all = {0};
	unsigned replicas = 0;

	*ret_from = INT64_MAX;
	for (size_t i = 0; i < c->allocations; i++) {
		const struct sched_allocation *a = &c->allocation[i];

		if (a->gpu != g || a->slot != slot || a->holder != holder || !sched_shown(a, c->at[k]))
			continue;
		all.any = true;
		all.whole = all.whole || a->replica < 0;
		if (a->replica >= 0)
			replicas |= 1u << a->replica;
		if (a->replica_of > all.of)
			all.of = a->replica_of;
		if (a->replica + 1 > all.of)
			all.of = a->replica + 1;
		if (a->begin_known && a->begin < *ret_from)
			*ret_from = a->begin;
	}
	all.replicas = __builtin_popcount(replicas);
	return all;
}

static struct claimed
claimed_at(const struct schedule *c, size_t k, size_t g, size_t slot, size_t holder, int64_t t)
{
	int64_t from;
	struct claimed before = shown(c, k - 1, g, slot, holder, &from), after;

	if (before.any)
		return before;
	after = shown(c, k, g, slot, holder, &from);
	return stayed(c, k, g, slot) && t >= from ? after : before;
}

/* ---- rule 2 ---- */

struct doing {
	bool there, told;
	int64_t ppm;
};

/* What a process does on a device at nanosecond t. */
static struct doing
doing_at(const struct schedule *c, size_t k, size_t g, size_t slot, const struct sched_process *p, int64_t t)
{
	bool before = sched_alive(p, c->at[k - 1]), after = sched_alive(p, c->at[k]) && stayed(c, k, g, slot);
	bool told = p->told && p->end <= c->at[k];
	int64_t from = before ? c->at[k - 1] : p->begin;
	struct doing d = {0};

	if (p->gpu != g || (slot != SCHED_WHOLE && p->gi != slot))
		return d;
	if (after) {
		d.there = before || t >= p->begin;
		if (!d.there)
			return d;
		/* told of the slot, done while it was there */
		d.ppm = p->sm_ppm < 0 ? 0 : p->sm_ppm * (c->at[k] - c->at[k - 1]) / (c->at[k] - from);
		d.ppm = d.ppm > PPM ? PPM : d.ppm;
		return d;
	}
	if (before)
		d.there = !told || t < p->end;
	else
		d.there = told && p->named && slot == SCHED_WHOLE && p->begin <= t && t < p->end;
	d.told = told && p->exit_ppm >= 0;
	d.ppm = d.told ? p->exit_ppm : 0;
	return d;
}

/* ---- rule 4 ---- */

struct moment {
	unsigned there, claiming; /* holders, as bits */
	int64_t parts, first[SCHED_HOLDERS], count[SCHED_HOLDERS];
};

static struct moment
moment_at(const struct schedule *c, size_t k, size_t g, size_t slot, int64_t t)
{
	int64_t replicas = slot == SCHED_WHOLE ? c->replicas : 1, held = 0;
	struct claimed claims[SCHED_HOLDERS];
	struct moment m = {0};
	bool whole = false;

	for (size_t h = 0; h < SCHED_HOLDERS; h++) {
		claims[h] = claimed_at(c, k, g, slot, h, t);
		m.claiming |= (unsigned)claims[h].any << h;
		whole = whole || claims[h].whole;
		for (size_t i = 0; i < c->processes; i++)
			if (c->process[i].holder == h && doing_at(c, k, g, slot, &c->process[i], t).there)
				m.there |= 1u << h;
	}
	for (size_t h = 0; h < SCHED_HOLDERS; h++) {
		if (!((m.claiming ? m.claiming : m.there) >> h & 1))
			continue;
		m.first[h] = held;
		m.count[h] = m.claiming && !whole ? claims[h].replicas : 1;
		held += m.count[h];
		if (m.claiming && claims[h].of > replicas)
			replicas = claims[h].of;
	}
	if (whole)
		replicas = 1;
	m.parts = held > replicas ? held : replicas;
	return m;
}

/* Holders take their parts in the order of their names, which is that of their numbers. */
static size_t
owner(const struct schedule *c, const struct moment *m, int64_t t)
{
	int64_t part = (t + c->offset_ns) % m->parts;

	for (size_t h = 0; h < SCHED_HOLDERS; h++)
		if (part >= m->first[h] && part < m->first[h] + m->count[h])
			return h;
	return WHO_FREE;
}

/* ---- rules 5, 6 and 8 ---- */

/* False: all of it, and nobody holds. Else what is in no instance. */
static bool
book_rest(const struct schedule *c, size_t k, size_t g, int64_t ns, struct ledger *l)
{
	const struct sched_layout *layout = schedule_layout(c, k - 1, g);
	int64_t rest = layout->mig ? UNITS_PER_GPU - layout->stranded : 0;

	if (!ref_measured(c, k, g)) {
		l->of[g][SCHED_WHOLE][ref_unknown(c, k, g) ? WHO_UNKNOWN : WHO_DOWN].unit_ns +=
			(int128)UNITS_PER_GPU * ns;
		return false;
	}
	for (size_t slot = 0; slot < SCHED_WHOLE; slot++)
		rest -= layout->units[slot];
	l->of[g][SCHED_WHOLE][WHO_STRANDED].unit_ns += (int128)layout->stranded * ns;
	l->of[g][SCHED_WHOLE][WHO_FREE].unit_ns += (int128)rest * ns;
	return true;
}

static int64_t
units_of(const struct sched_layout *l, size_t slot)
{
	return slot == SCHED_WHOLE ? UNITS_PER_GPU : l->units[slot];
}

void
ref_nanosecond(const struct schedule *c, size_t k, size_t g, int64_t t, struct ledger *l)
{
	const struct sched_layout *layout = schedule_layout(c, k - 1, g);

	if (!book_rest(c, k, g, 1, l))
		return;
	for (size_t slot = 0; slot < SCHED_SLOTS; slot++) {
		struct moment m;

		if (!is_device(layout, slot))
			continue;
		m = moment_at(c, k, g, slot, t);
		l->of[g][slot][owner(c, &m, t)].unit_ns += units_of(layout, slot);
	}
}

/* ---- rule 7 ---- */

/* One device in a stretch in which nobody comes or goes. */
struct stretch {
	struct moment moment;
	int64_t ns, units;
	int64_t held[WHOS];
	int128 ppm_ns[SCHED_HOLDERS];
	bool lasting[SCHED_HOLDERS], told[SCHED_HOLDERS];
};

static struct stretch
look(const struct schedule *c, size_t k, size_t g, size_t slot, int64_t from, int64_t to)
{
	struct stretch s = {.moment = moment_at(c, k, g, slot, from),
	                    .ns = to - from,
	                    .units = units_of(schedule_layout(c, k - 1, g), slot)};

	for (int64_t t = from; t < to; t++) {
		s.held[owner(c, &s.moment, t)]++;
		for (size_t i = 0; i < c->processes; i++) {
			const struct sched_process *p = &c->process[i];
			struct doing d = doing_at(c, k, g, slot, p, t);

			if (!d.there)
				continue;
			s.ppm_ns[p->holder] += d.ppm;
			s.lasting[p->holder] = s.lasting[p->holder] || !d.told;
			s.told[p->holder] = s.told[p->holder] || d.told;
		}
	}
	for (size_t h = 0; h < SCHED_HOLDERS; h++)
		if (s.ppm_ns[h] > (int128)PPM * s.ns)
			s.ppm_ns[h] = (int128)PPM * s.ns;
	return s;
}

/* Who divides the activity of the device: bits of holders. */
static unsigned
sharers(const struct stretch *s)
{
	unsigned lasting = 0, idle = 0;

	for (size_t h = 0; h < SCHED_HOLDERS; h++) {
		lasting |= (unsigned)s->lasting[h] << h;
		idle |= (unsigned)((s->moment.claiming >> h & 1) && !s->told[h]) << h;
	}
	return lasting ? lasting : idle;
}

static void
divide(const struct stretch *s, unsigned sharing, int64_t device_ppm, bool by_process, int128 *out)
{
	int128 weight[SCHED_HOLDERS] = {0}, total = (int128)device_ppm * s->ns, sum = 0;

	for (size_t h = 0; h < SCHED_HOLDERS; h++) {
		if (!(sharing >> h & 1))
			continue;
		weight[h] = by_process ? s->ppm_ns[h] : s->moment.count[h] ? s->held[h] : s->ns / s->moment.parts;
		sum += weight[h];
	}
	if (by_process && (device_ppm == ABSENT || sum < total))
		total = sum;
	if (!apportion(total / PPM, weight, SCHED_HOLDERS, out))
		return; /* nothing to divide by: all 0 */
}

/* Activity of each holder; -1: unmeasured. */
static void
activities(const struct stretch *s, int64_t device_ppm, bool process_activity, int128 *out)
{
	unsigned sharing = sharers(s);
	int several = __builtin_popcount(sharing) > 1;
	bool by_process = process_activity && (several || device_ppm == ABSENT);
	int128 divided[SCHED_HOLDERS] = {0};

	if (several && (device_ppm != ABSENT || process_activity))
		divide(s, sharing, device_ppm, by_process, divided);
	for (size_t h = 0; h < SCHED_HOLDERS; h++) {
		if (s->told[h] && !s->lasting[h])
			out[h] = s->ppm_ns[h] / PPM;
		else if (device_ppm == ABSENT && !process_activity)
			out[h] = -1;
		else if (!(sharing >> h & 1))
			out[h] = 0;
		else if (several)
			out[h] = divided[h];
		else
			out[h] = by_process ? s->ppm_ns[h] / PPM : (int128)device_ppm * s->ns / PPM;
	}
}

/* ---- rules 3 and 9 ---- */

static bool
same_people(const struct schedule *c, size_t k, size_t g, int64_t a, int64_t b)
{
	for (size_t slot = 0; slot < SCHED_SLOTS; slot++) {
		struct moment x, y;

		if (!is_device(schedule_layout(c, k - 1, g), slot))
			continue;
		x = moment_at(c, k, g, slot, a);
		y = moment_at(c, k, g, slot, b);
		if (x.there != y.there || x.claiming != y.claiming)
			return false;
	}
	return true;
}

/* Books one stretch of one device into `slot_of`, which is of this slot of time only. */
static void
book_stretch(const struct schedule *c, size_t k, size_t g, size_t slot, int64_t from, int64_t to, struct ledger *l)
{
	struct stretch s = look(c, k, g, slot, from, to);
	bool mig = schedule_layout(c, k - 1, g)->mig;
	int128 activity[SCHED_HOLDERS];

	activities(&s, stayed(c, k, g, slot) ? c->active_ppm[k][g] : ABSENT, c->process_activity[g] && !mig, activity);
	l->of[g][slot][WHO_FREE].unit_ns += (int128)s.units * s.held[WHO_FREE];
	l->entries[g] += 1 + __builtin_popcount(s.moment.claiming | s.moment.there);
	for (size_t h = 0; h < SCHED_HOLDERS; h++) {
		struct amount *a = &l->of[g][slot][h];

		if (!s.moment.count[h])
			continue;
		a->unit_ns += (int128)s.units * s.held[h];
		if (activity[h] < 0)
			a->unmeasured_unit_ns += (int128)s.units * s.held[h];
		else
			a->active_unit_ns += s.units * activity[h];
	}
}

static void
add_slot(struct ledger *to, const struct ledger *slot_of, size_t g, int64_t energy_mj, int64_t ns)
{
	int128 whole = (int128)UNITS_PER_GPU * ns, active = 0, rest;

	for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
		for (size_t who = 0; who < WHOS; who++)
			active +=
				slot_of->of[g][slot][who].active_unit_ns + slot_of->of[g][slot][who].unmeasured_unit_ns;
	rest = active < whole ? whole - active : 0;
	for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
		for (size_t who = 0; who < WHOS; who++) {
			const struct amount *from = &slot_of->of[g][slot][who];
			struct amount *a = &to->of[g][slot][who];
			int128 umj = (int128)energy_mj * PPM;

			a->unit_ns += from->unit_ns;
			a->active_unit_ns += from->active_unit_ns;
			a->unmeasured_unit_ns += from->unmeasured_unit_ns;
			/* E x A/(A + rest) by activity, E x rest/(A + rest) by units x time */
			a->energy_umj += umj * (from->active_unit_ns + from->unmeasured_unit_ns) / (active + rest);
			a->energy_umj += umj * rest / (active + rest) * from->unit_ns / whole;
		}
	to->entries[g] += slot_of->entries[g] + 3;
}

void
ref_slot(const struct schedule *c, size_t k, size_t g, int64_t energy_mj, struct ledger *l)
{
	int64_t start = c->at[k - 1], end = c->at[k];
	struct ledger slot_of = {0};

	if (book_rest(c, k, g, end - start, &slot_of))
		for (int64_t from = start, to; from < end; from = to) {
			for (to = from + 1; to < end && same_people(c, k, g, from, to); to++)
				;
			for (size_t slot = 0; slot < SCHED_SLOTS; slot++)
				if (is_device(schedule_layout(c, k - 1, g), slot))
					book_stretch(c, k, g, slot, from, to, &slot_of);
		}
	add_slot(l, &slot_of, g, energy_mj, end - start);
}

/* ---- intruders and short processes ---- */

bool
ref_intrudes(const struct schedule *c, size_t k, size_t g, size_t slot, size_t holder)
{
	bool allocated = false, there = false;
	int64_t from;

	if (!is_device(schedule_layout(c, k, g), slot))
		return false;
	for (size_t h = 0; h < SCHED_HOLDERS; h++)
		allocated = allocated || shown(c, k, g, slot, h, &from).any;
	for (size_t i = 0; i < c->processes; i++)
		there = there ||
		        (c->process[i].gpu == g && c->process[i].holder == holder &&
		         (slot == SCHED_WHOLE || c->process[i].gi == slot) && sched_alive(&c->process[i], c->at[k]));
	return there && allocated && !shown(c, k, g, slot, holder, &from).any;
}

enum ref_short
ref_short_process(const struct schedule *c, size_t k, size_t process)
{
	const struct sched_process *p = &c->process[process];
	int64_t last_seen = INT64_MIN;
	bool told_before = false;

	if (!p->told || p->end > c->at[k] || c->sight[k][p->gpu] != SEEN || !ref_in_service(c, k, p->gpu))
		return SHORT_NOT;
	for (size_t i = 0; i < k; i++) {
		if (c->sight[i][p->gpu] != SEEN)
			continue;
		last_seen = c->at[i];
		told_before = told_before || p->end <= c->at[i];
	}
	if (told_before || last_seen == INT64_MIN || p->begin <= last_seen)
		return SHORT_NOT;
	if (!ref_measured(c, k, p->gpu) || schedule_layout(c, k, p->gpu)->mig || !p->named)
		return SHORT_NOT_HELD;
	for (int64_t t = p->begin; t < p->end; t++) {
		struct moment m = moment_at(c, k, p->gpu, SCHED_WHOLE, t);

		if (!m.claiming || m.claiming >> p->holder & 1)
			return SHORT_HELD;
	}
	return SHORT_NOT_HELD;
}

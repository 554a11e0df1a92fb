/* exporter/meter/meter_people.c - who was on one GPU in one slot. */
#include "exporter/meter/meter_people.h"

#include <stdlib.h>

static int
pair_order(const struct dict_device *a_device, const struct dict_holder *a_holder, const struct dict_device *b_device,
           const struct dict_holder *b_holder)
{
	if (a_device != b_device)
		return a_device->wire.id < b_device->wire.id ? -1 : 1;
	return dict_holder_order(a_holder, b_holder);
}

int
view_process_order(const struct view_process *a, const struct view_process *b)
{
	int order = pair_order(a->device, a->holder, b->device, b->holder);

	if (order != 0)
		return order;
	if (a->pid != b->pid)
		return a->pid < b->pid ? -1 : 1;
	return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

int
view_claim_order(const struct view_claim *a, const struct view_claim *b)
{
	return pair_order(a->device, a->holder, b->device, b->holder);
}

static int
presence_order(const void *a, const void *b)
{
	const struct presence *x = a, *y = b;
	int order = pair_order(x->device, x->holder, y->device, y->holder);

	if (order != 0)
		return order;
	return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

static int64_t
clamp(int64_t v, int64_t least, int64_t most)
{
	return v < least ? least : v > most ? most : v;
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

/* ---- rule 1 ---- */

static void
add_claim(const struct plan_slot *slot, struct plan *p, const struct view_claim *c, int64_t begin_ns)
{
	begin_ns = clamp(begin_ns, slot->start_ns, slot->end_ns);
	if (begin_ns == slot->end_ns || !in_layout(slot, c->device))
		return;
	p->claims[p->claim_count++] = (struct claim){.device = c->device,
	                                             .holder = c->holder,
	                                             .begin_ns = begin_ns,
	                                             .replicas = c->replicas,
	                                             .replica_of = c->replica_of};
}

static void
find_claims(const struct plan_slot *slot, struct plan *p)
{
	const struct gpu_view *prev = slot->prev, *now = slot->now;
	size_t most = prev->claim_count + now->claim_count, i = 0, j = 0;

	p->claim_count = 0;
	if (most > p->claim_cap) {
		p->claim_cap = most;
		p->claims = mem_grow(p->claims, most, sizeof(*p->claims));
	}
	while (i < prev->claim_count || j < now->claim_count) {
		int order = i == prev->claim_count  ? 1
		            : j == now->claim_count ? -1
		                                    : view_claim_order(&prev->claims[i], &now->claims[j]);

		if (order <= 0)
			add_claim(slot, p, &prev->claims[i], slot->start_ns);
		else
			add_claim(slot, p, &now->claims[j], now->claims[j].begin_ns);
		i += order <= 0;
		j += order >= 0;
	}
}

/* ---- rule 2 ---- */

static void
add_presence(const struct plan_slot *slot, struct plan *p, struct presence who)
{
	who.begin_ns = clamp(who.begin_ns, slot->start_ns, slot->end_ns);
	who.end_ns = clamp(who.end_ns, slot->start_ns, slot->end_ns);
	if (who.begin_ns < who.end_ns && in_layout(slot, who.device))
		p->presences[p->presence_count++] = who;
}

/* The exit of a process that was there at the first tick and not at the second: its life, as accounting has it, reaches over
 * the first. Accounting begins with the first use of the GPU, so not before the process. */
static struct view_exit *
exit_of(const struct plan_slot *slot, const struct view_process *who)
{
	struct view_exit *found = NULL;

	for (size_t i = 0; i < slot->now->exit_count; i++) {
		struct view_exit *e = &slot->now->exits[i];

		if (e->pid != who->pid || e->begin_ns > slot->start_ns + slot->tolerance_ns ||
		    e->end_ns < slot->start_ns - slot->tolerance_ns || e->begin_ns < who->begin_ns - slot->tolerance_ns)
			continue;
		e->seen = true;
		if (!found || e->end_ns > found->end_ns)
			found = e;
	}
	return found;
}

static void
add_gone(const struct plan_slot *slot, struct plan *p, const struct view_process *who)
{
	const struct view_exit *e = exit_of(slot, who);
	bool told = e && e->active_ppm != ABSENT;

	add_presence(slot, p,
	             (struct presence){.device = who->device,
	                               .holder = who->holder,
	                               .begin_ns = who->begin_ns,
	                               .end_ns = e ? e->end_ns : who->end_ns,
	                               .memory_bytes = who->memory_bytes,
	                               .seen = SEEN_BY_FIRST,
	                               .active_ppm = told ? e->active_ppm : 0,
	                               .told = told});
}

/* What the driver tells of a process is of the whole slot, and was done in the part of it in which the process was there. */
static int64_t
active_while_there(const struct plan_slot *slot, const struct view_process *who)
{
	int64_t begin_ns = clamp(who->begin_ns, slot->start_ns, slot->end_ns);
	int64_t there_ns = clamp(who->end_ns, slot->start_ns, slot->end_ns) - begin_ns;
	int128 active_ns = (int128)who->sm_ppm * (slot->end_ns - slot->start_ns);

	if (there_ns <= 0)
		return 0;
	return active_ns < (int128)PPM * there_ns ? (int64_t)(active_ns / there_ns) : PPM;
}

static void
add_there(const struct plan_slot *slot, struct plan *p, const struct view_process *who)
{
	add_presence(slot, p,
	             (struct presence){.device = who->device,
	                               .holder = who->holder,
	                               .begin_ns = who->begin_ns,
	                               .end_ns = who->end_ns,
	                               .memory_bytes = who->memory_bytes,
	                               .seen = SEEN_BY_SECOND,
	                               .active_ppm = active_while_there(slot, who)});
}

/* The same process of a holder that became another one: its user's name, its pod's labels or its allocation came to be known. */
static const struct view_process *
under_another_holder(const struct gpu_view *v, const struct view_process *who)
{
	for (size_t i = 0; i < v->process_count; i++) {
		const struct view_process *p = &v->processes[i];

		if (p->pid == who->pid && p->begin_ns == who->begin_ns && p->device == who->device &&
		    p->holder != who->holder)
			return p;
	}
	return NULL;
}

/* One that the tick before showed under this holder, and this one does not. A holder that became another is who it was until the
 * tick that says so: what lies before it is not divided between the two. */
static void
add_changed_gone(const struct plan_slot *slot, struct plan *p, const struct view_process *gone)
{
	if (!under_another_holder(slot->now, gone))
		add_gone(slot, p, gone);
}

static void
add_changed_there(const struct plan_slot *slot, struct plan *p, const struct view_process *there)
{
	const struct view_process *other = under_another_holder(slot->prev, there);
	struct view_process as_before = *there;

	if (other)
		as_before.holder = other->holder;
	add_there(slot, p, &as_before);
}

static bool
may_hold(const struct plan_slot *slot, const struct plan *p, const struct view_exit *e)
{
	bool free = true, own = false;

	for (size_t i = 0; i < p->claim_count; i++) {
		if (p->claims[i].device != slot->gpu)
			continue;
		own = own || (p->claims[i].holder == e->holder && p->claims[i].begin_ns < e->end_ns);
		free = free && p->claims[i].begin_ns > e->begin_ns;
	}
	return free || own;
}

/* Processes that no list had. On a partitioned GPU nobody knows in which instance one was. */
static void
add_exits(const struct plan_slot *slot, struct plan *p)
{
	for (size_t i = 0; i < slot->now->exit_count; i++) {
		const struct view_exit *e = &slot->now->exits[i];
		size_t before = p->presence_count;
		bool held;

		if (e->seen)
			continue;
		if (e->holder)
			add_presence(slot, p,
			             (struct presence){.device = slot->gpu,
			                               .holder = e->holder,
			                               .begin_ns = e->begin_ns,
			                               .end_ns = e->end_ns,
			                               .memory_bytes = e->memory_bytes,
			                               .active_ppm = e->active_ppm == ABSENT ? 0 : e->active_ppm,
			                               .told = e->active_ppm != ABSENT});
		held = p->presence_count > before && may_hold(slot, p, e);
		if (e->begin_ns > slot->prev->read_ns) {
			p->short_held += held;
			p->short_not_held += !held;
		}
	}
}

void
people_count_short(const struct plan_slot *slot, struct plan *p)
{
	for (size_t i = 0; i < slot->now->exit_count; i++)
		p->short_not_held += !slot->now->exits[i].seen && slot->now->exits[i].begin_ns > slot->prev->read_ns;
}

static void
sort_presences(struct plan *p)
{
	for (size_t i = 1; i < p->presence_count; i++)
		if (presence_order(&p->presences[i - 1], &p->presences[i]) > 0) {
			qsort(p->presences, p->presence_count, sizeof(*p->presences), presence_order);
			return;
		}
}

void
people_find(const struct plan_slot *slot, struct plan *p)
{
	const struct gpu_view *prev = slot->prev, *now = slot->now;
	size_t most = prev->process_count + now->process_count + now->exit_count, i = 0, j = 0;

	find_claims(slot, p);
	p->presence_count = 0;
	if (most > p->presence_cap) {
		p->presence_cap = most;
		p->presences = mem_grow(p->presences, most, sizeof(*p->presences));
	}
	while (i < prev->process_count || j < now->process_count) {
		int order = i == prev->process_count  ? 1
		            : j == now->process_count ? -1
		                                      : view_process_order(&prev->processes[i], &now->processes[j]);

		if (order == 0)
			add_there(slot, p, &now->processes[j]);
		else if (order < 0)
			add_changed_gone(slot, p, &prev->processes[i]);
		else
			add_changed_there(slot, p, &now->processes[j]);
		i += order <= 0;
		j += order >= 0;
	}
	add_exits(slot, p);
	sort_presences(p);
}

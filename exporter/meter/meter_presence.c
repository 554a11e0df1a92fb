/* exporter/meter/meter_presence.c - who was on one GPU in one slot: rules 1 and 2 of meter.h. */
#include <stdlib.h>

#include "exporter/meter/meter_internal.h"

static int
pair_order(const struct dict_device *a_device, const struct dict_holder *a_holder, const struct dict_device *b_device,
           const struct dict_holder *b_holder)
{
	if (a_device != b_device)
		return a_device->wire.id < b_device->wire.id ? -1 : 1;
	return dict_holder_order(a_holder, b_holder);
}

int
process_order(const struct meter_process *a, const struct meter_process *b)
{
	int order = pair_order(a->device, a->holder, b->device, b->holder);

	if (order != 0)
		return order;
	if (a->pid != b->pid)
		return a->pid < b->pid ? -1 : 1;
	return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

int
claim_order(const struct claim *a, const struct claim *b)
{
	return pair_order(a->device, a->holder, b->device, b->holder);
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

/* ---- rule 1: allocations ---- */

static void
add_claim(const struct plan_slot *slot, struct plan *p, struct claim c)
{
	c.begin_ns = clamp(c.begin_ns, slot->start_ns, slot->end_ns);
	if (c.begin_ns < slot->end_ns && in_layout(slot, c.device))
		p->claims[p->claim_count++] = c;
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
		                                    : claim_order(&prev->claims[i], &now->claims[j]);
		struct claim c = order <= 0 ? prev->claims[i] : now->claims[j];

		if (order <= 0)
			c.begin_ns = slot->start_ns;
		add_claim(slot, p, c);
		i += order <= 0;
		j += order >= 0;
	}
}

/* ---- rule 2: processes ---- */

static void
add_process(const struct plan_slot *slot, struct plan *p, struct meter_process process)
{
	process.begin_ns = clamp(process.begin_ns, slot->start_ns, slot->end_ns);
	process.end_ns = clamp(process.end_ns, slot->start_ns, slot->end_ns);
	if (process.begin_ns < process.end_ns && in_layout(slot, process.device))
		p->processes[p->process_count++] = process;
}

/* The exit of a process that ran at the first tick and not at the second: its life, as accounting reports it, reaches over the
 * first. Accounting begins with the first use of the GPU, so not before the process. */
static struct meter_process *
exit_of(const struct plan_slot *slot, const struct meter_process *process)
{
	struct meter_process *found = NULL;

	for (size_t i = 0; i < slot->now->exit_count; i++) {
		struct meter_process *e = &slot->now->exits[i];

		if (e->pid != process->pid || e->begin_ns > slot->start_ns + slot->tolerance_ns ||
		    e->end_ns < slot->start_ns - slot->tolerance_ns ||
		    e->begin_ns < process->begin_ns - slot->tolerance_ns)
			continue;
		e->seen = SEEN_BY_FIRST;
		if (!found || e->end_ns > found->end_ns)
			found = e;
	}
	return found;
}

/* The first tick saw it, the second did not. */
static void
add_ended(const struct plan_slot *slot, struct plan *p, struct meter_process process)
{
	const struct meter_process *e = exit_of(slot, &process);

	process.seen = SEEN_BY_FIRST;
	process.accounted = e && e->accounted;
	process.active_ppm = e ? e->active_ppm : 0;
	if (e)
		process.end_ns = e->end_ns;
	add_process(slot, p, process);
}

/* The second tick saw it. The driver reports its activity as a share of the whole slot, and it was active only in the part of
 * the slot in which it ran. */
static void
add_running(const struct plan_slot *slot, struct plan *p, struct meter_process process)
{
	int64_t ran_ns = clamp(process.end_ns, slot->start_ns, slot->end_ns) -
	                 clamp(process.begin_ns, slot->start_ns, slot->end_ns);
	int128 active_ns = (int128)process.active_ppm * (slot->end_ns - slot->start_ns);

	if (ran_ns <= 0)
		return;
	process.seen = SEEN_BY_SECOND;
	process.active_ppm = active_ns < (int128)PPM * ran_ns ? (int64_t)(active_ns / ran_ns) : PPM;
	add_process(slot, p, process);
}

/* The same process under another holder: the name of its user, the labels of its pod or its allocation became known. */
static const struct meter_process *
under_another_holder(const struct gpu_view *v, const struct meter_process *process)
{
	for (size_t i = 0; i < v->process_count; i++) {
		const struct meter_process *p = &v->processes[i];

		if (p->pid == process->pid && p->begin_ns == process->begin_ns && p->device == process->device &&
		    p->holder != process->holder)
			return p;
	}
	return NULL;
}

/* Whether an ended process that no tick saw holds its GPU: it is allocated to its holder, or to nobody while the process ran. */
static bool
exit_holds(const struct plan_slot *slot, const struct plan *p, const struct meter_process *e)
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

/* Processes that no tick saw. The instance of a partitioned GPU in which one ran is not known. */
static void
add_exits(const struct plan_slot *slot, struct plan *p)
{
	for (size_t i = 0; i < slot->now->exit_count; i++) {
		const struct meter_process *e = &slot->now->exits[i];
		size_t before = p->process_count;
		bool held;

		if (e->seen != SEEN_BY_NONE)
			continue;
		if (e->holder)
			add_process(slot, p, *e);
		held = p->process_count > before && exit_holds(slot, p, e);
		if (e->begin_ns > slot->prev->read_ns) {
			p->short_held += held;
			p->short_not_held += !held;
		}
	}
}

void
presence_count_short(const struct plan_slot *slot, struct plan *p)
{
	for (size_t i = 0; i < slot->now->exit_count; i++)
		p->short_not_held +=
			slot->now->exits[i].seen == SEEN_BY_NONE && slot->now->exits[i].begin_ns > slot->prev->read_ns;
}

static int
begin_order(const void *a, const void *b)
{
	const struct meter_process *x = a, *y = b;
	int order = pair_order(x->device, x->holder, y->device, y->holder);

	if (order != 0)
		return order;
	return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* They come sorted, but for exits and processes that began in the slot. */
static void
sort_processes(struct plan *p)
{
	for (size_t i = 1; i < p->process_count; i++)
		if (begin_order(&p->processes[i - 1], &p->processes[i]) > 0) {
			qsort(p->processes, p->process_count, sizeof(*p->processes), begin_order);
			return;
		}
}

void
presence_find(const struct plan_slot *slot, struct plan *p)
{
	const struct gpu_view *prev = slot->prev, *now = slot->now;
	size_t most = prev->process_count + now->process_count + now->exit_count, i = 0, j = 0;

	find_claims(slot, p);
	p->process_count = 0;
	if (most > p->process_cap) {
		p->process_cap = most;
		p->processes = mem_grow(p->processes, most, sizeof(*p->processes));
	}
	while (i < prev->process_count || j < now->process_count) {
		int order = i == prev->process_count  ? 1
		            : j == now->process_count ? -1
		                                      : process_order(&prev->processes[i], &now->processes[j]);
		struct meter_process process = order < 0 ? prev->processes[i] : now->processes[j];
		const struct meter_process *other =
			order == 0 ? NULL : under_another_holder(order < 0 ? now : prev, &process);

		/* A process whose holder became another one is added once, and is the former's until the second tick. */
		if (order < 0 && !other)
			add_ended(slot, p, process);
		if (order > 0 && other)
			process.holder = other->holder;
		if (order >= 0)
			add_running(slot, p, process);
		i += order <= 0;
		j += order >= 0;
	}
	add_exits(slot, p);
	sort_processes(p);
}

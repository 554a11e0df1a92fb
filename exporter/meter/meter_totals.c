/* exporter/meter/meter_totals.c - running totals per workload and process, and intruders, for /metrics. */
#include "exporter/meter/meter_internal.h"

void
totals_fini(struct totals *t)
{
	mem_free(t->list);
	mem_free(t->keys);
	mem_free(t->processes);
	mem_free(t->intruders);
	mem_free(t->before);
	hash_fini(&t->by_pair);
	*t = (struct totals){0};
}

/* ---- workloads ---- */

static uint64_t
pair_of(const struct dict_device *device, const struct dict_holder *holder)
{
	return (uint64_t)device->wire.id << 32 | holder->wire.id;
}

static struct meter_total *
total_of(struct totals *t, const struct plan_entry *e)
{
	uint64_t pair = pair_of(e->device, e->holder);
	size_t at = hash_get(&t->by_pair, pair);

	if (at != HASH_NONE)
		return &t->list[at];
	if (t->count == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 16;
		t->list = mem_grow(t->list, t->cap, sizeof(*t->list));
		t->keys = mem_grow(t->keys, t->cap, sizeof(*t->keys));
	}
	at = t->count++;
	t->list[at] = (struct meter_total){.holder = &e->holder->wire,
	                                   .device = &e->device->wire,
	                                   .gpu = &e->device->gpu->wire};
	t->keys[at] = (struct total_key){.pair = pair};
	hash_put(&t->by_pair, pair, at);
	return &t->list[at];
}

void
totals_add(struct totals *t, const struct plan_entry *cut)
{
	struct meter_total *total = total_of(t, cut);

	total->used_unit_ns += (int128)cut->units * cut->used_ns;
	total->unmeasured_unit_ns += (int128)cut->units * cut->unmeasured_ns;
	total->idle_unit_ns += (int128)cut->units * (cut->held_ns - cut->used_ns - cut->unmeasured_ns);
}

static void
note_there(struct totals *t, const struct dict_device *device, const struct dict_holder *holder)
{
	size_t at = hash_get(&t->by_pair, pair_of(device, holder));

	if (at != HASH_NONE)
		t->keys[at].there = true;
}

static void
drop_totals(struct totals *t)
{
	size_t kept = 0;

	for (size_t i = 0; i < t->count; i++) {
		if (!t->keys[i].there)
			continue;
		t->list[kept] = t->list[i];
		t->keys[kept++] = (struct total_key){.pair = t->keys[i].pair};
	}
	if (kept == t->count)
		return;
	t->count = kept;
	hash_clear(&t->by_pair);
	for (size_t i = 0; i < kept; i++)
		hash_put(&t->by_pair, t->keys[i].pair, i);
}

void
totals_carry(struct totals *t, const struct dict *dict, const struct totals *before, const struct dict *before_dict)
{
	const struct dict *from = before_dict;

	for (size_t i = 0; i < before->count; i++) {
		const struct meter_total *total = &before->list[i];
		struct plan_entry same = {
			.device =
				dict_twin_device(dict, from->devices[hash_get(&from->device_by_id, total->device->id)]),
			.holder = dict_twin_holder(dict,
		                                   from->holders[hash_get(&from->holder_by_id, total->holder->id)])};
		struct meter_total *to;

		if (!same.device || !same.holder)
			continue;
		to = total_of(t, &same);
		to->used_unit_ns = total->used_unit_ns;
		to->idle_unit_ns = total->idle_unit_ns;
		to->unmeasured_unit_ns = total->unmeasured_unit_ns;
	}
	for (size_t i = 0; i < t->process_count && i < before->process_count; i++)
		t->processes[i] = before->processes[i];
}

/* ---- processes ---- */

/* The only process on its device does what the device does. */
static int64_t
active_ppm(const struct gpu_view *v, size_t i)
{
	const struct meter_process *p = &v->processes[i];

	if (v->process_activity)
		return p->active_ppm;
	if ((i > 0 && v->processes[i - 1].device == p->device) ||
	    (i + 1 < v->process_count && v->processes[i + 1].device == p->device))
		return ABSENT;
	for (size_t k = 0; k < v->instance_count; k++)
		if (v->instances[k].device == p->device)
			return v->instances[k].activity.active_ppm;
	return v->activity.active_ppm;
}

/* Both lists have the same order. */
static void
carry_processes(struct totals *t, const struct gpu_view *prev, struct gpu_view *now, int64_t start_ns, int64_t end_ns,
                bool measured)
{
	size_t k = 0;

	for (size_t i = 0; i < now->process_count; i++) {
		struct meter_process *p = &now->processes[i];
		int64_t ppm = measured ? active_ppm(now, i) : ABSENT;
		/* the driver reports a process's activity as a share of the whole slot */
		int64_t begin_ns = now->process_activity || p->begin_ns < start_ns ? start_ns : p->begin_ns;

		while (k < prev->process_count && process_order(&prev->processes[k], p) < 0)
			k++;
		if (k < prev->process_count && process_order(&prev->processes[k], p) == 0) {
			p->measured = prev->processes[k].measured;
			p->active_unit_ns = prev->processes[k].active_unit_ns;
		}
		if (ppm != ABSENT && begin_ns < end_ns) {
			p->measured = true;
			p->active_unit_ns += (int128)p->device->wire.units * ppm * (end_ns - begin_ns) / PPM;
		}
		t->processes[p->place] =
			(struct meter_process_total){.measured = p->measured, .active_unit_ns = p->active_unit_ns};
	}
}

/* ---- intruders ---- */

static void
add_intruder(struct totals *t, const struct meter_process *p)
{
	array_room(t->intruders, t->intruder_count, t->intruder_cap);
	t->intruders[t->intruder_count++] = (struct meter_intruder){.holder = &p->holder->wire,
	                                                            .device = &p->device->wire,
	                                                            .gpu = &p->device->gpu->wire};
}

static bool
intrudes(const struct gpu_view *v, const struct meter_process *p)
{
	bool allocated = false;

	for (size_t i = 0; i < v->claim_count; i++) {
		if (v->claims[i].device != p->device)
			continue;
		if (v->claims[i].holder == p->holder)
			return false;
		allocated = true;
	}
	return allocated;
}

static int64_t
new_intrusions(const struct totals *t)
{
	int64_t n = (int64_t)t->intruder_count;

	for (size_t i = 0; i < t->intruder_count; i++)
		for (size_t k = 0; k < t->before_count; k++)
			if (t->before[k].holder == t->intruders[i].holder &&
			    t->before[k].device == t->intruders[i].device) {
				n--;
				break;
			}
	return n;
}

/* ---- a tick ---- */

void
totals_begin_tick(struct totals *t, size_t process_count)
{
	struct meter_intruder *list = t->before;
	size_t cap = t->before_cap;

	t->before = t->intruders;
	t->before_cap = t->intruder_cap;
	t->before_count = t->intruder_count;
	t->intruders = list;
	t->intruder_cap = cap;
	t->intruder_count = 0;
	if (process_count > t->process_cap) {
		t->process_cap = process_count;
		t->processes = mem_grow(t->processes, process_count, sizeof(*t->processes));
	}
	t->process_count = process_count;
	for (size_t i = 0; i < process_count; i++)
		t->processes[i] = (struct meter_process_total){0};
}

void
totals_add_gpu(struct totals *t, const struct gpu_view *prev, struct gpu_view *now, int64_t slot_start_ns,
               int64_t slot_end_ns, bool measured)
{
	for (size_t i = 0; i < now->claim_count; i++)
		note_there(t, now->claims[i].device, now->claims[i].holder);
	for (size_t i = 0; i < now->process_count; i++) {
		const struct meter_process *p = &now->processes[i];

		if (i > 0 && now->processes[i - 1].device == p->device && now->processes[i - 1].holder == p->holder)
			continue;
		note_there(t, p->device, p->holder);
		if (intrudes(now, p))
			add_intruder(t, p);
	}
	if (!now->silent)
		carry_processes(t, prev, now, slot_start_ns, slot_end_ns, measured);
}

int64_t
totals_end_tick(struct totals *t)
{
	drop_totals(t);
	return new_intrusions(t);
}

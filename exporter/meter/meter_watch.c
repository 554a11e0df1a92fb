/* exporter/meter/meter_watch.c - running totals, and who is where others are allocated. */
#include "exporter/meter/meter_watch.h"

#include "exporter/meter/meter_people.h"

void
watch_fini(struct watch *w)
{
	mem_free(w->totals);
	mem_free(w->keys);
	mem_free(w->processes);
	mem_free(w->intruders);
	mem_free(w->before);
	idmap_fini(&w->total_by_pair);
	*w = (struct watch){0};
}

/* ---- workloads ---- */

static uint64_t
pair_of(const struct dict_device *device, const struct dict_holder *holder)
{
	return (uint64_t)device->wire.id << 32 | holder->wire.id;
}

static struct meter_total *
total_of(struct watch *w, const struct plan_entry *e)
{
	uint64_t pair = pair_of(e->device, e->holder);
	size_t at = idmap_get(&w->total_by_pair, pair);

	if (at != IDMAP_NONE)
		return &w->totals[at];
	if (w->total_count == w->total_cap) {
		w->total_cap = w->total_cap ? w->total_cap * 2 : 16;
		w->totals = mem_grow(w->totals, w->total_cap, sizeof(*w->totals));
		w->keys = mem_grow(w->keys, w->total_cap, sizeof(*w->keys));
	}
	at = w->total_count++;
	w->totals[at] = (struct meter_total){.holder = &e->holder->wire,
	                                     .device = &e->device->wire,
	                                     .gpu = &e->device->gpu->wire};
	w->keys[at] = (struct total_key){.pair = pair};
	idmap_put(&w->total_by_pair, pair, at);
	return &w->totals[at];
}

void
watch_add(struct watch *w, const struct plan_entry *cut)
{
	struct meter_total *total = total_of(w, cut);

	total->used_unit_ns += (int128)cut->units * cut->used_ns;
	total->unmeasured_unit_ns += (int128)cut->units * cut->unmeasured_ns;
	total->idle_unit_ns += (int128)cut->units * (cut->held_ns - cut->used_ns - cut->unmeasured_ns);
}

static void
note_there(struct watch *w, const struct dict_device *device, const struct dict_holder *holder)
{
	size_t at = idmap_get(&w->total_by_pair, pair_of(device, holder));

	if (at != IDMAP_NONE)
		w->keys[at].there = true;
}

static void
drop_totals(struct watch *w)
{
	size_t kept = 0;

	for (size_t i = 0; i < w->total_count; i++) {
		if (!w->keys[i].there)
			continue;
		w->totals[kept] = w->totals[i];
		w->keys[kept++] = (struct total_key){.pair = w->keys[i].pair};
	}
	if (kept == w->total_count)
		return;
	w->total_count = kept;
	idmap_clear(&w->total_by_pair);
	for (size_t i = 0; i < kept; i++)
		idmap_put(&w->total_by_pair, w->keys[i].pair, i);
}

void
watch_carry(struct watch *w, const struct dict *dict, const struct watch *before, const struct dict *before_dict)
{
	const struct dict *from = before_dict;

	for (size_t i = 0; i < before->total_count; i++) {
		const struct meter_total *total = &before->totals[i];
		struct plan_entry same = {
			.device = dict_twin_device(dict,
		                                   from->devices[idmap_get(&from->device_by_id, total->device->id)]),
			.holder = dict_twin_holder(dict,
		                                   from->holders[idmap_get(&from->holder_by_id, total->holder->id)])};
		struct meter_total *to;

		if (!same.device || !same.holder)
			continue;
		to = total_of(w, &same);
		to->used_unit_ns = total->used_unit_ns;
		to->idle_unit_ns = total->idle_unit_ns;
		to->unmeasured_unit_ns = total->unmeasured_unit_ns;
	}
	for (size_t i = 0; i < w->process_count && i < before->process_count; i++)
		w->processes[i] = before->processes[i];
}

/* ---- processes ---- */

/* The only process on its device does what the device does. */
static int64_t
active_ppm(const struct gpu_view *v, size_t i)
{
	const struct view_process *p = &v->processes[i];

	if (v->process_activity)
		return p->sm_ppm;
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
carry_processes(struct watch *w, const struct gpu_view *prev, struct gpu_view *now, int64_t start_ns, int64_t end_ns,
                bool measured)
{
	size_t k = 0;

	for (size_t i = 0; i < now->process_count; i++) {
		struct view_process *p = &now->processes[i];
		int64_t ppm = measured ? active_ppm(now, i) : ABSENT;
		/* what is told of a process is of the whole slot */
		int64_t begin_ns = now->process_activity || p->begin_ns < start_ns ? start_ns : p->begin_ns;

		while (k < prev->process_count && view_process_order(&prev->processes[k], p) < 0)
			k++;
		if (k < prev->process_count && view_process_order(&prev->processes[k], p) == 0) {
			p->measured = prev->processes[k].measured;
			p->active_unit_ns = prev->processes[k].active_unit_ns;
		}
		if (ppm != ABSENT && begin_ns < end_ns) {
			p->measured = true;
			p->active_unit_ns += (int128)p->device->wire.units * ppm * (end_ns - begin_ns) / PPM;
		}
		w->processes[p->place] =
			(struct meter_process_total){.measured = p->measured, .active_unit_ns = p->active_unit_ns};
	}
}

/* ---- intruders ---- */

static void
add_intruder(struct watch *w, const struct view_process *p)
{
	if (w->intruder_count == w->intruder_cap) {
		w->intruder_cap = w->intruder_cap ? w->intruder_cap * 2 : 8;
		w->intruders = mem_grow(w->intruders, w->intruder_cap, sizeof(*w->intruders));
	}
	w->intruders[w->intruder_count++] = (struct meter_intruder){.holder = &p->holder->wire,
	                                                            .device = &p->device->wire,
	                                                            .gpu = &p->device->gpu->wire};
}

static bool
intrudes(const struct gpu_view *v, const struct view_process *p)
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
new_intrusions(const struct watch *w)
{
	int64_t n = (int64_t)w->intruder_count;

	for (size_t i = 0; i < w->intruder_count; i++)
		for (size_t k = 0; k < w->before_count; k++)
			if (w->before[k].holder == w->intruders[i].holder &&
			    w->before[k].device == w->intruders[i].device) {
				n--;
				break;
			}
	return n;
}

/* ---- a tick ---- */

void
watch_begin(struct watch *w, size_t process_count)
{
	struct meter_intruder *list = w->before;
	size_t cap = w->before_cap;

	w->before = w->intruders;
	w->before_cap = w->intruder_cap;
	w->before_count = w->intruder_count;
	w->intruders = list;
	w->intruder_cap = cap;
	w->intruder_count = 0;
	if (process_count > w->process_cap) {
		w->process_cap = process_count;
		w->processes = mem_grow(w->processes, process_count, sizeof(*w->processes));
	}
	w->process_count = process_count;
	for (size_t i = 0; i < process_count; i++)
		w->processes[i] = (struct meter_process_total){0};
}

void
watch_gpu(struct watch *w, const struct gpu_view *prev, struct gpu_view *now, int64_t slot_start_ns,
          int64_t slot_end_ns, bool measured)
{
	for (size_t i = 0; i < now->claim_count; i++)
		note_there(w, now->claims[i].device, now->claims[i].holder);
	for (size_t i = 0; i < now->process_count; i++) {
		const struct view_process *p = &now->processes[i];

		if (i > 0 && now->processes[i - 1].device == p->device && now->processes[i - 1].holder == p->holder)
			continue;
		note_there(w, p->device, p->holder);
		if (intrudes(now, p))
			add_intruder(w, p);
	}
	if (!now->silent)
		carry_processes(w, prev, now, slot_start_ns, slot_end_ns, measured);
}

int64_t
watch_end(struct watch *w)
{
	drop_totals(w);
	return new_intrusions(w);
}

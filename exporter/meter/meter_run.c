/* exporter/meter/meter_run.c - stretches in which nothing changed, and their records. */
#include "exporter/meter/meter_run.h"

#include <stdlib.h>
#include <string.h>

void
record_list_fini(struct record_list *l)
{
	mem_free(l->list);
	*l = (struct record_list){0};
}

static int
record_order(const void *a, const void *b)
{
	const struct wire_record *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->holder != y->holder)
		return x->holder < y->holder ? -1 : 1;
	if (x->start_ns != y->start_ns)
		return x->start_ns < y->start_ns ? -1 : 1;
	return x->state < y->state ? -1 : x->state > y->state;
}

struct wire_record *
record_list_take(struct record_list *l, size_t count)
{
	struct wire_record *taken = mem_array(count, sizeof(*taken));

	if (count) {
		memcpy(taken, l->list, count * sizeof(*taken));
		qsort(taken, count, sizeof(*taken), record_order);
	}
	l->count -= count;
	if (count && l->count)
		memmove(l->list, l->list + count, l->count * sizeof(*l->list));
	return taken;
}

void
run_fini(struct run *run)
{
	mem_free(run->entries);
	*run = (struct run){0};
}

static void
add_record(struct record_list *l, struct wire_record r)
{
	if (l->count == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 64;
		l->list = mem_grow(l->list, l->cap, sizeof(*l->list));
	}
	l->list[l->count++] = r;
}

void
run_close(struct run *run, struct record_list *into)
{
	if (run->start_ns == run->end_ns)
		return;
	for (size_t i = 0; i < run->count; i++) {
		const struct plan_entry *e = &run->entries[i].sum;
		/* only a broken counter gets there; it must not make the batch one that is refused */
		int64_t energy_mj = e->energy_mj < WIRE_MAX_ENERGY_MJ ? e->energy_mj : WIRE_MAX_ENERGY_MJ;

		add_record(into, (struct wire_record){.device = e->device->wire.id,
		                                      .holder = e->holder ? e->holder->wire.id : 0,
		                                      .state = e->state,
		                                      .sharing = e->sharing,
		                                      .method = e->method,
		                                      .units = e->units,
		                                      .start_ns = run->start_ns,
		                                      .duration_ns = run->end_ns - run->start_ns,
		                                      .held_ns = e->held_ns,
		                                      .used_ns = e->used_ns,
		                                      .unmeasured_ns = e->unmeasured_ns,
		                                      .over_ns = e->over_ns,
		                                      .memory_byte_ms = e->memory_byte_ms,
		                                      .energy_mj = energy_mj,
		                                      .ticks = run->entries[i].ticks,
		                                      .peak_memory_bytes = e->peak_memory_bytes,
		                                      .sm_active_ns = e->sm_active_ns,
		                                      .sm_measured_ns = e->sm_measured_ns});
	}
	run->start_ns = run->end_ns;
	run->count = 0;
}

static bool
same_shape(const struct run *run, const struct plan_entry *entries, size_t count)
{
	if (run->count != count)
		return false;
	for (size_t i = 0; i < count; i++) {
		const struct plan_entry *a = &run->entries[i].sum, *b = &entries[i];

		if (a->device != b->device || a->holder != b->holder || a->state != b->state ||
		    a->sharing != b->sharing || a->method != b->method || a->units != b->units ||
		    a->part_of != b->part_of || a->part_count != b->part_count)
			return false;
	}
	return true;
}

static void
begin_run(struct run *run, int64_t start_ns, const struct plan_entry *entries, size_t count)
{
	if (count > run->cap) {
		run->cap = count;
		run->entries = mem_grow(run->entries, count, sizeof(*run->entries));
	}
	run->start_ns = run->end_ns = start_ns;
	run->count = count;
	for (size_t i = 0; i < count; i++) {
		struct plan_entry key = entries[i];

		key.held_ns = key.used_ns = key.unmeasured_ns = key.over_ns = key.memory_byte_ms = key.energy_mj = 0;
		key.sm_active_ns = key.sm_measured_ns = key.peak_memory_bytes = 0;
		run->entries[i] = (struct run_entry){.sum = key};
	}
}

void
run_go_on(struct run *run, int64_t start_ns, const struct plan_entry *entries, size_t count, struct record_list *into)
{
	if (run->end_ns == start_ns && same_shape(run, entries, count))
		return;
	run_close(run, into);
	begin_run(run, start_ns, entries, count);
}

void
run_add(struct run_entry *to, const struct plan_entry *cut, bool is_tick)
{
	struct plan_entry *sum = &to->sum;

	sum->held_ns += cut->held_ns;
	sum->used_ns += cut->used_ns;
	sum->unmeasured_ns += cut->unmeasured_ns;
	sum->over_ns += cut->over_ns;
	sum->memory_byte_ms += cut->memory_byte_ms;
	sum->energy_mj += cut->energy_mj;
	sum->sm_active_ns += cut->sm_active_ns;
	sum->sm_measured_ns += cut->sm_measured_ns;
	if (cut->peak_memory_bytes > sum->peak_memory_bytes)
		sum->peak_memory_bytes = cut->peak_memory_bytes;
	to->ticks += is_tick;
}

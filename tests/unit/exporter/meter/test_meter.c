/* The meter's rules, one test each; the numbers are those of exporter/meter/meter.h and BILLING 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/units.h"
#include "tests/support/exporter/meterworld.h"

static void
the_first_tick_only_sets_the_beginning(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	owned(wire_batch) struct wire_batch *b = wire_batch_new();

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	assert_false(tick(&w, 10 * S));
	meter_flush(w.meter);
	assert_false(meter_batch(w.meter, true, b));
	assert_false(tick(&w, 11 * S));
	w.gpus[0].active_ppm = 250000;
	assert_false(tick(&w, 12 * S));
	expect(&w, "GPU-0 alice held exclusive measured 10000+2000 units=5040 held=2000 used=250 ticks=2\n");
}

static void
a_free_gpu_is_unallocated(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 2, 1);
	ticks(&w, 10 * S, 13 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+3000 units=5040 held=3000 used=0 ticks=3\n"
	           "GPU-1 - unallocated exclusive none 10000+3000 units=5040 held=3000 used=0 ticks=3\n");
}

static void
a_process_holds_from_its_start_until_the_tick_that_misses_it(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 11 * S);
	run(&w, 0, &w.alice, 11 * S + 400 * MS);
	ticks(&w, 12 * S, 13 * S);
	stop_all(&w, 0);
	ticks(&w, 14 * S, 15 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+1400 units=5040 held=1400 used=0 ticks=1\n"
	           "GPU-0 - unallocated exclusive none 14000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 11400+2600 units=5040 held=2600 used=0 ticks=3\n");
}

static void
a_process_older_than_the_previous_tick_holds_from_that_tick(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 11 * S);
	run(&w, 0, &w.alice, 3 * S);
	ticks(&w, 12 * S, 12 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 11000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
processes_of_one_holder_count_once_with_their_memory_added(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0)->memory_bytes = 300;
	run(&w, 0, &w.alice, 0)->memory_bytes = 700;
	w.gpus[0].active_ppm = 1000000;
	ticks(&w, 10 * S, 12 * S);
	expect(&w,
	       "GPU-0 alice held exclusive measured 10000+2000 units=5040 held=2000 used=2000 mem=2000000 ticks=2\n");
}

/* The record of a holder. */
static const struct wire_record *
record_of(const struct wire_batch *b, const char *user)
{
	for (size_t i = 0; i < b->record_count; i++)
		for (size_t k = 0; k < b->holder_count; k++)
			if (b->records[i].holder == b->holders[k].id && strcmp(b->holders[k].user, user) == 0)
				return &b->records[i];
	fail_msg("%s has no record", user);
	return NULL;
}

static void
the_peak_of_memory_is_what_a_holder_had_at_once(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0)->memory_bytes = 300;
	run(&w, 0, &w.alice, 0)->memory_bytes = 700;
	ticks(&w, 10 * S, 12 * S);
	/* the first grows, and a third takes the place of the second: these two are never there together */
	w.processes[0][0].memory_bytes = 400;
	w.processes[0][1].pid = 200;
	w.processes[0][1].start_boot_ns = 12 * S + 500 * MS;
	w.processes[0][1].memory_bytes = 500;
	ticks(&w, 13 * S, 14 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(b->record_count, 1);
	assert_int_equal(record_of(b, "alice")->peak_memory_bytes, 1000);
	assert_int_equal(record_of(b, "alice")->sm_measured_ns, 0);
}

static void
the_multiprocessors_of_a_device_work_for_its_only_holder(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	w.gpus[0].active_ppm = 800000;
	w.gpus[0].sm_active_ppm = 250000;
	ticks(&w, 10 * S, 12 * S);
	w.gpus[0].sm_active_ppm = ABSENT; /* a second of which nothing is told */
	ticks(&w, 13 * S, 13 * S);
	w.gpus[0].active_ppm = 0;
	w.gpus[0].sm_active_ppm = 100000; /* by another clock than the engine's */
	ticks(&w, 14 * S, 14 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(record_of(b, "alice")->held_ns, 4 * S);
	assert_int_equal(record_of(b, "alice")->sm_measured_ns, 3 * S);
	assert_int_equal(record_of(b, "alice")->sm_active_ns, 2 * 250 * MS + 100 * MS);
}

static void
the_multiprocessors_of_a_shared_device_work_as_its_activity_was_divided(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0)->sm_ppm = 300000;
	run(&w, 0, &w.bob, 0)->sm_ppm = 100000;
	w.gpus[0].process_activity = true;
	w.gpus[0].active_ppm = 400000;
	w.gpus[0].sm_active_ppm = 200000;
	ticks(&w, 10 * S, 12 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(record_of(b, "alice")->sm_active_ns, 300 * MS);
	assert_int_equal(record_of(b, "bob")->sm_active_ns, 100 * MS);
	assert_int_equal(record_of(b, "alice")->sm_measured_ns, 1 * S);
	assert_int_equal(record_of(b, "bob")->sm_measured_ns, 1 * S);
}

static void
records_end_at_multiples_of_the_interval(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	owned(wire_batch) struct wire_batch *b = wire_batch_new();

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	w.gpus[0].active_ppm = 500000;
	(void)tick(&w, 58 * S + 500 * MS);
	assert_false(tick(&w, 59 * S + 500 * MS));
	assert_true(tick(&w, 60 * S + 500 * MS));
	assert_true(meter_batch(w.meter, false, b));
	assert_int_equal(b->from_ns, OFFSET + 58 * S + 500 * MS);
	assert_int_equal(b->to_ns, OFFSET + 60 * S);
	assert_int_equal(b->record_count, 1);
	assert_int_equal(b->records[0].held_ns, 1500 * MS);
	assert_int_equal(b->records[0].used_ns, 750 * MS);
	assert_int_equal(b->records[0].ticks, 1);
	assert_int_equal(b->device_count, 1);
	assert_int_equal(b->holder_count, 1);
	expect(&w, "GPU-0 alice held exclusive measured 60000+500 units=5040 held=500 used=250 ticks=1\n");
}

static void
a_tick_on_the_boundary_closes_the_interval(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	owned(wire_batch) struct wire_batch *b = wire_batch_new();

	meterworld_init(&w, 1, 1);
	(void)tick(&w, 59 * S);
	assert_true(tick(&w, 60 * S));
	assert_true(meter_batch(w.meter, false, b));
	assert_int_equal(b->to_ns, OFFSET + 60 * S);
	assert_false(meter_batch(w.meter, false, b));
	assert_false(tick(&w, 61 * S));
}

static void
the_dictionary_has_only_what_is_new_unless_all_is_asked_for(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	owned(wire_batch) struct wire_batch *b = wire_batch_new();

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	ticks(&w, 59 * S, 60 * S);
	assert_true(meter_batch(w.meter, true, b));
	assert_int_equal(b->device_count, 1);
	assert_int_equal(b->holder_count, 1);
	assert_int_equal(b->holders[0].id, 1);
	assert_string_equal(b->holders[0].user, "alice");
	for (int round = 0; round < 3; round++) {
		owned(wire_batch) struct wire_batch *next = wire_batch_new();

		if (round == 1)
			run(&w, 0, &w.bob, 0);
		ticks(&w, (61 + 60 * round) * S, (120 + 60 * round) * S);
		assert_true(meter_batch(w.meter, round == 2, next));
		assert_int_equal(next->device_count, round == 2 ? 1 : 0);
		assert_int_equal(next->holder_count, round);
	}
}

static void
several_holders_have_equal_parts_exact_to_the_nanosecond(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	run(&w, 0, &w.bob, 0);
	run(&w, 0, &w.carol, 0);
	w.gpus[0].active_ppm = 600000;
	(void)tick(&w, 10 * S);
	(void)tick(&w, 11 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(b->record_count, 3);
	assert_true(unit_ns(b, "GPU-0") == (int128)UNITS_PER_GPU * S);
	for (size_t i = 0; i < 3; i++) {
		const struct wire_record *r = &b->records[i];

		assert_in_range(r->held_ns, S / 3, S / 3 + 1);
		assert_int_equal(r->sharing, WIRE_PLAIN);
		assert_int_equal(r->method, WIRE_ESTIMATED);
		assert_int_equal(r->used_ns, 200 * MS);
	}
}

static void
per_process_activity_is_measured_and_what_exceeds_the_share_is_over(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].process_activity = true;
	w.gpus[0].active_ppm = 1000000;
	run(&w, 0, &w.bob, 0)->sm_ppm = 800000;
	run(&w, 0, &w.alice, 0)->sm_ppm = 100000;
	ticks(&w, 10 * S, 12 * S);
	expect(&w, "GPU-0 bob held plain measured 10000+2000 units=5040 held=1000 used=1000 over=600 ticks=2\n"
	           "GPU-0 alice held plain measured 10000+2000 units=5040 held=1000 used=200 ticks=2\n");
}

static void
per_process_activity_never_adds_up_to_more_than_the_device_was_active(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].process_activity = true;
	w.gpus[0].active_ppm = 400000;
	run(&w, 0, &w.bob, 0)->sm_ppm = 600000;
	run(&w, 0, &w.alice, 0)->sm_ppm = 200000;
	ticks(&w, 10 * S, 11 * S);
	expect(&w, "GPU-0 bob held plain measured 10000+1000 units=5040 held=500 used=300 ticks=1\n"
	           "GPU-0 alice held plain measured 10000+1000 units=5040 held=500 used=100 ticks=1\n");
}

static void
activity_that_the_driver_lacks_is_unmeasured(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].active_ppm = ABSENT;
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 11 * S);
	expect(&w, "GPU-0 alice held exclusive none 10000+1000 units=5040 held=1000 used=0 unmeasured=1000 ticks=1\n");
}

static void
replicas_hold_their_part_and_the_free_ones_are_unallocated(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 4);
	w.gpus[0].active_ppm = 1000000;
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 11 * S);
	expect(&w, "GPU-0 - unallocated timeslice none 10000+1000 units=5040 held=750 used=0 ticks=1\n"
	           "GPU-0 alice held timeslice measured 10000+1000 units=5040 held=250 used=250 over=750 ticks=1\n");
}

static void
more_holders_than_replicas_share_equally(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 2);
	run(&w, 0, &w.alice, 0);
	run(&w, 0, &w.bob, 0);
	run(&w, 0, &w.carol, 0);
	w.gpus[0].active_ppm = ABSENT;
	ticks(&w, 12 * S, 13 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(b->record_count, 3);
	assert_true(unit_ns(b, "GPU-0") == (int128)UNITS_PER_GPU * S);
	for (size_t i = 0; i < 3; i++)
		assert_in_range(b->records[i].held_ns, S / 3, S / 3 + 1);
}

static void
mps_is_named_when_several_hold(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].mps = true;
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 11 * S);
	run(&w, 0, &w.bob, 0);
	ticks(&w, 12 * S, 12 * S);
	expect(&w, "GPU-0 alice held exclusive measured 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held mps estimated 11000+1000 units=5040 held=500 used=0 ticks=1\n"
	           "GPU-0 bob held mps estimated 11000+1000 units=5040 held=500 used=0 ticks=1\n");
}

static void
mig_instances_hold_their_units_and_the_rest_is_unallocated_or_stranded(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 4); /* replicas are of whole GPUs only */
	g = &w.gpus[0];
	instance(g, 1, "3g.40gb", 2340);
	instance(g, 2, "1g.10gb", 675);
	g->units_unallocated = 1350;
	g->units_stranded = 675;
	run(&w, 0, &w.alice, 0)->gi = 1;
	w.processes[0][0].ci = 0;
	ticks(&w, 10 * S, 11 * S);
	g->instances[0].active_ppm = 500000;
	ticks(&w, 12 * S, 12 * S);
	expect(&w, "GPU-0 - unallocated mig none 10000+1000 units=1350 held=1000 used=0 ticks=1\n"
	           "GPU-0 - stranded mig none 10000+1000 units=675 held=1000 used=0 ticks=1\n"
	           "GPU-0 - unallocated mig none 11000+1000 units=1350 held=1000 used=0 ticks=1\n"
	           "GPU-0 - stranded mig none 11000+1000 units=675 held=1000 used=0 ticks=1\n"
	           "MIG-1 alice held mig none 10000+1000 units=2340 held=1000 used=0 unmeasured=1000 ticks=1\n"
	           "MIG-1 alice held mig measured 11000+1000 units=2340 held=1000 used=500 ticks=1\n"
	           "MIG-2 - unallocated mig none 10000+1000 units=675 held=1000 used=0 ticks=1\n"
	           "MIG-2 - unallocated mig none 11000+1000 units=675 held=1000 used=0 ticks=1\n");
}

static void
several_holders_of_a_mig_instance_share_it_and_the_sharing_stays_mig(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	instance(&w.gpus[0], 1, "7g.80gb", 5040);
	w.gpus[0].instances[0].active_ppm = 800000;
	for (int i = 0; i < 2; i++) {
		struct tick_process *p = run(&w, 0, i ? &w.bob : &w.alice, 0);

		p->gi = 1;
		p->ci = 0;
	}
	ticks(&w, 10 * S, 11 * S);
	expect(&w, "MIG-1 alice held mig estimated 10000+1000 units=5040 held=500 used=400 ticks=1\n"
	           "MIG-1 bob held mig estimated 10000+1000 units=5040 held=500 used=400 ticks=1\n");
}

static void
a_process_outside_every_instance_of_a_partitioned_gpu_holds_nothing(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	instance(&w.gpus[0], 1, "7g.80gb", 5040);
	run(&w, 0, &w.alice, 0);
	run(&w, 0, &w.bob, 0)->gi = 9;
	ticks(&w, 10 * S, 11 * S);
	expect(&w, "MIG-1 - unallocated mig none 10000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
a_repartitioned_gpu_is_cut_at_the_tick_that_sees_it(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	instance(g, 1, "7g.80gb", 5040);
	ticks(&w, 10 * S, 11 * S);
	g->instance_count = 0;
	instance(g, 2, "3g.40gb", 2340);
	instance(g, 3, "4g.40gb", 2700);
	ticks(&w, 12 * S, 13 * S);
	expect(&w, "MIG-1 - unallocated mig none 10000+2000 units=5040 held=2000 used=0 ticks=2\n"
	           "MIG-2 - unallocated mig none 12000+1000 units=2340 held=1000 used=0 ticks=1\n"
	           "MIG-3 - unallocated mig none 12000+1000 units=2700 held=1000 used=0 ticks=1\n");
}

static void
an_instance_made_again_is_another_device(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;
	owned(wire_batch) struct wire_batch *b = NULL;
	uint32_t first = 0;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	instance(g, 1, "7g.80gb", 5040);
	ticks(&w, 10 * S, 11 * S);
	g->instance_count = 0;
	g->units_unallocated = 5040;
	ticks(&w, 12 * S, 12 * S);
	g->units_unallocated = 0;
	instance(g, 1, "7g.80gb", 5040);
	ticks(&w, 13 * S, 14 * S);
	b = take_all(&w);
	assert_int_equal(b->device_count, 3);
	for (size_t i = 0; i < b->device_count; i++) {
		const struct wire_device *d = &b->devices[i];

		if (strcmp(d->uuid, "MIG-1") != 0)
			continue;
		assert_int_equal(d->created_ns, OFFSET + (first ? 13 : 10) * S);
		assert_int_not_equal(d->id, first);
		first = d->id;
	}
}

static void
a_gpu_that_does_not_answer_is_down_and_a_mode_change_too(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 11 * S);
	g->down = true;
	ticks(&w, 12 * S, 13 * S);
	g->down = false;
	ticks(&w, 14 * S, 15 * S);
	stop_all(&w, 0);
	g->mig = true;
	g->units_unallocated = 5040;
	ticks(&w, 16 * S, 17 * S);
	expect(&w, "GPU-0 - down exclusive none 11000+3000 units=5040 held=3000 used=0 ticks=3\n"
	           "GPU-0 - down exclusive none 15000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 - unallocated mig none 16000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 14000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
a_gpu_that_left_the_inventory_is_down_until_it_is_back(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 2, 1);
	ticks(&w, 10 * S, 11 * S);
	w.gpu_count = 1;
	ticks(&w, 12 * S, 12 * S);
	w.gpu_count = 2;
	ticks(&w, 13 * S, 14 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+4000 units=5040 held=4000 used=0 ticks=4\n"
	           "GPU-1 - unallocated exclusive none 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-1 - down exclusive none 11000+2000 units=5040 held=2000 used=0 ticks=2\n"
	           "GPU-1 - unallocated exclusive none 13000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
missed_ticks_are_unknown_on_every_gpu(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	(void)tick(&w, 10 * S);
	(void)tick(&w, 12 * S); /* twice the interval is still a slot */
	(void)tick(&w, 14 * S + 1 * MS);
	(void)tick(&w, 15 * S);
	expect(&w, "GPU-0 - unknown exclusive none 12000+2001 units=5040 held=2001 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 10000+2000 units=5040 held=2000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 14001+999 units=5040 held=999 used=0 ticks=1\n");
}

static void
a_long_gap_is_unknown_cut_at_quarter_hours_and_beyond_a_day_not_covered(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	owned(wire_batch) struct wire_batch *b = wire_batch_new();

	meterworld_init(&w, 1, 1);
	(void)tick(&w, 10 * S);
	assert_true(tick(&w, 3600 * S + 10 * S));
	assert_true(meter_batch(w.meter, false, b));
	assert_int_equal(b->record_count, 4);
	assert_int_equal(b->to_ns, OFFSET + 3600 * S);
	assert_true(tick(&w, 3610 * S + NS_PER_DAY + 1)); /* closes what was open */
	wire_batch_free(b);
	b = wire_batch_new();
	assert_true(meter_batch(w.meter, false, b));
	assert_int_equal(b->from_ns, OFFSET + 3600 * S);
	assert_int_equal(b->to_ns, OFFSET + 3610 * S);
	(void)tick(&w, 3611 * S + NS_PER_DAY);
	wire_batch_free(b);
	b = take_all(&w);
	assert_int_equal(b->from_ns, OFFSET + 3610 * S + NS_PER_DAY + 1);
	assert_int_equal(b->record_count, 1);
	assert_int_equal(b->records[0].duration_ns, S - 1);
}

static void
driver_values_that_cannot_be_never_break_a_record(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 3, 1);
	g = &w.gpus[0];
	run(&w, 0, &w.alice, 0)->memory_bytes = INT64_MAX;
	run(&w, 0, &w.alice, 0)->memory_bytes = INT64_MAX;
	run(&w, 0, &w.bob, 900 * S)->sm_ppm = INT64_MAX;
	g->active_ppm = INT64_MAX;
	g->process_activity = true;
	g->energy_mj = INT64_MAX;
	instance(&w.gpus[1], 1, "7g.80gb", 5040);
	instance(&w.gpus[1], 2, "7g.80gb", 5040);
	instance(&w.gpus[1], 3, "0g", -5);
	snprintf(w.gpus[2].uuid, sizeof(w.gpus[2].uuid), "GPU-0"); /* a second GPU of the same name */
	ticks(&w, 10 * S, 11 * S);
	g->energy_mj = 0;
	ticks(&w, 12 * S, 12 * S);
	g->energy_mj = INT64_MAX;
	ticks(&w, 13 * S, 13 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_true(unit_ns(b, "GPU-0") == (int128)UNITS_PER_GPU * 3 * S);
	assert_true(unit_ns(b, "GPU-1") == (int128)UNITS_PER_GPU * 3 * S);
}

static void
a_tick_that_goes_back_in_time_is_ignored(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 11 * S);
	assert_false(tick(&w, 9 * S));
	assert_false(tick(&w, 11 * S));
	ticks(&w, 12 * S, 12 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+2000 units=5040 held=2000 used=0 ticks=2\n");
}

static void
a_holder_that_comes_back_under_a_new_cache_id_is_the_same_workload(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct wire_holder again;

	meterworld_init(&w, 1, 1);
	again = w.alice;
	again.id = 99;
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 11 * S);
	w.processes[0][0].holder = &again;
	ticks(&w, 12 * S, 12 * S);
	expect(&w, "GPU-0 alice held exclusive measured 10000+2000 units=5040 held=2000 used=0 ticks=2\n");
}

static void
a_holder_that_becomes_another_is_cut_at_the_tick_that_says_so(void **state)
{
	static char staff[] = "staff";
	in_place(meterworld) struct meterworld w;
	struct wire_holder known;

	(void)state;
	meterworld_init(&w, 1, 1);
	known = w.alice;
	known.id = 99;
	known.group = staff;
	run(&w, 0, &w.alice, 0);
	run(&w, 0, &w.bob, 0);
	ticks(&w, 10 * S, 12 * S);
	w.processes[0][0].holder = &known;
	ticks(&w, 13 * S, 14 * S);
	/* three seconds of the former, one of the latter: alice has half at any time, and never two thirds */
	expect(&w, "GPU-0 alice held plain estimated 10000+3000 units=5040 held=1500 used=0 ticks=3\n"
	           "GPU-0 bob held plain estimated 10000+3000 units=5040 held=1500 used=0 ticks=3\n"
	           "GPU-0 bob held plain estimated 13000+1000 units=5040 held=500 used=0 ticks=1\n"
	           "GPU-0 alice held plain estimated 13000+1000 units=5040 held=500 used=0 ticks=1\n");
}

static void
an_allocation_whose_holder_becomes_another_is_cut_there_too(void **state)
{
	static char staff[] = "staff";
	in_place(meterworld) struct meterworld w;
	struct wire_holder known;

	(void)state;
	meterworld_init(&w, 1, 1);
	known = w.alice;
	known.id = 99;
	known.group = staff;
	allocate(&w, &w.alice, "GPU-0", -1);
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 12 * S);
	w.processes[0][0].holder = &known;
	w.allocations[0].holder = &known;
	ticks(&w, 13 * S, 14 * S);
	expect(&w, "GPU-0 alice held exclusive measured 10000+3000 units=5040 held=3000 used=0 ticks=3\n"
	           "GPU-0 alice held exclusive measured 13000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_holder_that_becomes_another_is_cut_at_the_tick_that_says_so),
		cmocka_unit_test(an_allocation_whose_holder_becomes_another_is_cut_there_too),
		cmocka_unit_test(the_first_tick_only_sets_the_beginning),
		cmocka_unit_test(a_free_gpu_is_unallocated),
		cmocka_unit_test(a_process_holds_from_its_start_until_the_tick_that_misses_it),
		cmocka_unit_test(a_process_older_than_the_previous_tick_holds_from_that_tick),
		cmocka_unit_test(processes_of_one_holder_count_once_with_their_memory_added),
		cmocka_unit_test(the_peak_of_memory_is_what_a_holder_had_at_once),
		cmocka_unit_test(the_multiprocessors_of_a_device_work_for_its_only_holder),
		cmocka_unit_test(the_multiprocessors_of_a_shared_device_work_as_its_activity_was_divided),
		cmocka_unit_test(records_end_at_multiples_of_the_interval),
		cmocka_unit_test(a_tick_on_the_boundary_closes_the_interval),
		cmocka_unit_test(the_dictionary_has_only_what_is_new_unless_all_is_asked_for),
		cmocka_unit_test(several_holders_have_equal_parts_exact_to_the_nanosecond),
		cmocka_unit_test(per_process_activity_is_measured_and_what_exceeds_the_share_is_over),
		cmocka_unit_test(per_process_activity_never_adds_up_to_more_than_the_device_was_active),
		cmocka_unit_test(activity_that_the_driver_lacks_is_unmeasured),
		cmocka_unit_test(replicas_hold_their_part_and_the_free_ones_are_unallocated),
		cmocka_unit_test(more_holders_than_replicas_share_equally),
		cmocka_unit_test(mps_is_named_when_several_hold),
		cmocka_unit_test(mig_instances_hold_their_units_and_the_rest_is_unallocated_or_stranded),
		cmocka_unit_test(several_holders_of_a_mig_instance_share_it_and_the_sharing_stays_mig),
		cmocka_unit_test(a_process_outside_every_instance_of_a_partitioned_gpu_holds_nothing),
		cmocka_unit_test(a_repartitioned_gpu_is_cut_at_the_tick_that_sees_it),
		cmocka_unit_test(an_instance_made_again_is_another_device),
		cmocka_unit_test(a_gpu_that_does_not_answer_is_down_and_a_mode_change_too),
		cmocka_unit_test(a_gpu_that_left_the_inventory_is_down_until_it_is_back),
		cmocka_unit_test(missed_ticks_are_unknown_on_every_gpu),
		cmocka_unit_test(a_long_gap_is_unknown_cut_at_quarter_hours_and_beyond_a_day_not_covered),
		cmocka_unit_test(driver_values_that_cannot_be_never_break_a_record),
		cmocka_unit_test(a_tick_that_goes_back_in_time_is_ignored),
		cmocka_unit_test(a_holder_that_comes_back_under_a_new_cache_id_is_the_same_workload),
	};

	return cmocka_run_group_tests_name("meter", tests, NULL, NULL);
}

/* Who holds: processes that end between ticks, allocations, intruders, GPUs that do not answer. The rules are 1, 2, 4, 5 and 7 of
 * exporter/meter/meter.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/units.h"
#include "tests/support/exporter/meterworld.h"

static struct meter_stats
stats_of(const struct meterworld *w)
{
	struct meter_stats s;

	meter_stats(w->meter, &s);
	return s;
}

/* ---- processes that ended ---- */

static void
a_process_between_two_ticks_holds_from_its_start_to_its_end(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct tick_process *e;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 10 * S);
	e = ended(&w, 0, &w.alice, 55, 10 * S + 200 * MS, 10 * S + 700 * MS);
	e->sm_ppm = 400000;
	e->memory_bytes = 8;
	ticks(&w, 11 * S, 12 * S);
	assert_int_equal(stats_of(&w).short_processes, 1);
	assert_int_equal(stats_of(&w).short_not_held, 0);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+200 units=5040 held=200 used=0 ticks=0\n"
	           "GPU-0 - unallocated exclusive none 10700+1300 units=5040 held=1300 used=0 ticks=2\n"
	           "GPU-0 alice held exclusive measured 10200+500 units=5040 held=500 used=200 mem=4000 ticks=0\n");
}

static void
a_process_that_a_tick_saw_holds_until_the_end_that_accounting_tells(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 3 * S);
	ticks(&w, 10 * S, 11 * S);
	stop_all(&w, 0);
	/* accounting begins with the first use of the GPU, a while after the process did; whose it was the meter knows */
	ended(&w, 0, NULL, 100, 5 * S, 11 * S + 300 * MS)->sm_ppm = 500000;
	ticks(&w, 12 * S, 12 * S);
	assert_int_equal(stats_of(&w).short_processes, 0);
	assert_int_equal(stats_of(&w).short_not_held, 0);
	expect(&w, "GPU-0 - unallocated exclusive none 11300+700 units=5040 held=700 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 10000+1300 units=5040 held=1300 used=150 ticks=1\n");
}

static void
no_stretch_counts_twice_when_a_tick_and_accounting_tell_of_one_process(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 3 * S);
	ticks(&w, 10 * S, 10 * S);
	stop_all(&w, 0);
	/* 40 ms off in both times, as a driver's clock can be */
	ended(&w, 0, &w.alice, 100, 3 * S - 40 * MS, 10 * S - 40 * MS);
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).short_processes, 0);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
a_reused_pid_is_another_process(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.bob, 100, 10 * S + 200 * MS, 10 * S + 400 * MS)->sm_ppm = 0;
	run(&w, 0, &w.alice, 10 * S + 600 * MS);
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).short_processes, 1);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+200 units=5040 held=200 used=0 ticks=0\n"
	           "GPU-0 - unallocated exclusive none 10400+200 units=5040 held=200 used=0 ticks=0\n"
	           "GPU-0 alice held exclusive measured 10600+400 units=5040 held=400 used=0 ticks=1\n"
	           "GPU-0 bob held exclusive measured 10200+200 units=5040 held=200 used=0 ticks=0\n");
}

static void
a_process_that_ends_while_the_gpu_is_read_holds_no_further_slot(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 3 * S);
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.alice, 100, 3 * S, 11 * S + 5 * MS); /* listed, then gone */
	ticks(&w, 11 * S, 11 * S);
	stop_all(&w, 0);
	ticks(&w, 12 * S, 12 * S);
	assert_int_equal(stats_of(&w).short_processes, 0);
	expect(&w, "GPU-0 - unallocated exclusive none 11005+995 units=5040 held=995 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 10000+1005 units=5040 held=1005 used=0 ticks=1\n");
}

static void
processes_that_nobody_can_name_are_counted_and_hold_nothing(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 2, 1);
	instance(&w.gpus[1], 1, "7g.80gb", 5040);
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, NULL, 55, 10 * S + 200 * MS, 10 * S + 700 * MS);
	ended(&w, 0, &w.alice, 56, 9 * S + 200 * MS,
	      9 * S + 700 * MS); /* told too late, and some tick could have seen it */
	ended(&w, 1, &w.alice, 57, 10 * S + 200 * MS, 10 * S + 700 * MS);          /* in which instance? */
	memcpy(w.gpus[0].sampled, (uint32_t[]){55, 90, 91}, 3 * sizeof(uint32_t)); /* 55 is told of already */
	w.gpus[0].sampled_count = 3;
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).short_processes, 0);
	assert_int_equal(stats_of(&w).short_not_held, 4);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "MIG-1 - unallocated mig none 10000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
what_is_told_of_a_process_that_began_in_the_slot_was_done_since_then(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].process_activity = true;
	w.gpus[0].active_ppm = ABSENT;
	ticks(&w, 10 * S, 10 * S);
	run(&w, 0, &w.alice, 10 * S + 600 * MS)->sm_ppm = 300000; /* of the second: 0.3 s, in 0.4 s */
	ticks(&w, 11 * S, 11 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+600 units=5040 held=600 used=0 ticks=0\n"
	           "GPU-0 alice held exclusive measured 10600+400 units=5040 held=400 used=300 ticks=1\n");
}

static void
a_short_process_shares_with_who_was_there(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	w.gpus[0].active_ppm = 300000;
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.bob, 55, 10 * S + 400 * MS, 10 * S + 800 * MS)->sm_ppm = 800000;
	ticks(&w, 11 * S, 11 * S);
	expect(&w, "GPU-0 alice held exclusive measured 10000+400 units=5040 held=400 used=120 ticks=0\n"
	           "GPU-0 alice held plain measured 10400+400 units=5040 held=200 used=120 ticks=0\n"
	           "GPU-0 alice held exclusive measured 10800+200 units=5040 held=200 used=60 ticks=1\n"
	           "GPU-0 bob held plain measured 10400+400 units=5040 held=200 used=200 over=120 ticks=0\n");
}

static void
short_processes_of_one_workload_hold_once_where_they_overlap(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].active_ppm = ABSENT;
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.alice, 55, 10 * S + 100 * MS, 10 * S + 500 * MS)->sm_ppm = 250000;
	ended(&w, 0, &w.alice, 56, 10 * S + 300 * MS, 10 * S + 600 * MS)->sm_ppm = 500000;
	ended(&w, 0, &w.alice, 57, 10 * S + 900 * MS, 10 * S + 900 * MS); /* of no length */
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).short_processes, 2);
	assert_int_equal(stats_of(&w).short_not_held, 1);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+100 units=5040 held=100 used=0 ticks=0\n"
	           "GPU-0 - unallocated exclusive none 10600+400 units=5040 held=400 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 10100+500 units=5040 held=500 used=250 ticks=0\n");
}

static void
a_short_process_without_measured_activity_is_unmeasured_where_the_device_is(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].active_ppm = ABSENT;
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.alice, 55, 10 * S, 10 * S + 500 * MS);
	ticks(&w, 11 * S, 11 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10500+500 units=5040 held=500 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive none 10000+500 units=5040 held=500 used=0 unmeasured=500 ticks=0\n");
}

static void
very_many_records_close_the_interval_before_its_end(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	owned(wire_batch) struct wire_batch *b = wire_batch_new();
	struct tick_process *exits = mem_array(4096, sizeof(*exits));
	struct tick_gpu g = {.exits = exits, .exit_count = 4096};
	struct tick t = {.gpus = &g, .gpu_count = 1};
	int64_t at = 10 * S;

	meterworld_init(&w, 1, 1);
	g.reading = &w.gpus[0];
	do {
		for (int64_t i = 0; i < 4096; i++)
			exits[i] = (struct tick_process){.holder = &w.alice,
			                                 .pid = (uint32_t)i,
			                                 .start_boot_ns = at - S + i * 200000,
			                                 .end_boot_ns = at - S + i * 200000 + 100000,
			                                 .sm_ppm = ABSENT};
		t.boot_ns = at;
		at += S;
		assert_true(at < 50 * S);
	} while (!meter_tick(w.meter, &t));
	mem_free(exits);
	assert_true(meter_batch(w.meter, true, b));
	assert_in_range(b->record_count, 40000, WIRE_MAX_RECORDS);
	assert_int_equal(b->to_ns, OFFSET + at - S);
}

/* ---- allocations ---- */

static void
an_allocation_holds_without_a_process_from_tick_to_tick(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 10 * S);
	allocate(&w, &w.alice, "GPU-0", -1);
	ticks(&w, 11 * S, 13 * S);
	w.allocation_count = 0;
	ticks(&w, 14 * S, 15 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 - unallocated exclusive none 14000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 11000+3000 units=5040 held=3000 used=0 ticks=3\n");
}

static void
an_allocation_begins_when_the_source_says(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.bob, 0);
	ticks(&w, 10 * S, 10 * S);
	allocate(&w, &w.alice, "GPU-0", -1)->begin_boot_ns = 10 * S + 250 * MS;
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).intrusions, 1);
	expect(&w, "GPU-0 bob held exclusive measured 10000+250 units=5040 held=250 used=0 ticks=0\n"
	           "GPU-0 alice held exclusive measured 10250+750 units=5040 held=750 used=0 ticks=1\n");
}

static void
a_process_holds_until_its_allocation_is_shown_and_the_record_goes_on(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 10 * S);
	run(&w, 0, &w.alice, 10 * S + 500 * MS);
	allocate(&w, &w.alice, "GPU-0", -1);
	ticks(&w, 11 * S, 12 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+500 units=5040 held=500 used=0 ticks=0\n"
	           "GPU-0 alice held exclusive measured 10500+1500 units=5040 held=1500 used=0 ticks=2\n");
}

static void
an_intruder_holds_nothing_and_is_reported(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	const struct meter_intruder *list;

	meterworld_init(&w, 2, 1);
	w.gpus[0].process_activity = true;
	w.gpus[0].active_ppm = 900000;
	allocate(&w, &w.alice, "GPU-0", -1);
	run(&w, 0, &w.alice, 0)->sm_ppm = 200000;
	run(&w, 0, &w.bob, 0)->sm_ppm = 600000;
	run(&w, 1, &w.bob, 0);
	ticks(&w, 10 * S, 11 * S);
	assert_int_equal(meter_intruders(w.meter, &list), 1);
	assert_string_equal(list[0].holder->user, "bob");
	assert_string_equal(list[0].device->uuid, "GPU-0");
	assert_string_equal(list[0].gpu->uuid, "GPU-0");
	assert_int_equal(stats_of(&w).intrusions, 1);
	expect(&w, "GPU-0 alice held exclusive measured 10000+1000 units=5040 held=1000 used=200 ticks=1\n"
	           "GPU-1 bob held exclusive measured 10000+1000 units=5040 held=1000 used=0 ticks=1\n");
	stop_all(&w, 0);
	ticks(&w, 12 * S, 12 * S);
	assert_int_equal(meter_intruders(w.meter, &list), 0);
	run(&w, 0, &w.bob, 0);
	ticks(&w, 13 * S, 13 * S);
	assert_int_equal(stats_of(&w).intrusions, 2);
}

static void
a_short_process_on_a_device_of_others_is_counted_and_holds_nothing(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].active_ppm = ABSENT;
	allocate(&w, &w.alice, "GPU-0", -1);
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.bob, 55, 10 * S + 200 * MS, 10 * S + 700 * MS)->sm_ppm = 1000000;
	ended(&w, 0, &w.alice, 56, 10 * S + 200 * MS, 10 * S + 700 * MS)->sm_ppm = 600000;
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).short_processes, 1);
	assert_int_equal(stats_of(&w).short_not_held, 1);
	expect(&w, "GPU-0 alice held exclusive reserved 10000+200 units=5040 held=200 used=0 unmeasured=200 ticks=0\n"
	           "GPU-0 alice held exclusive measured 10200+500 units=5040 held=500 used=300 ticks=0\n"
	           "GPU-0 alice held exclusive reserved 10700+300 units=5040 held=300 used=0 unmeasured=300 ticks=1\n");
}

static void
a_process_between_anothers_allocation_and_its_own_is_an_intruder(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 10 * S);
	allocate(&w, &w.bob, "GPU-0", 0)->begin_boot_ns = 10 * S + 100 * MS;
	allocate(&w, &w.alice, "GPU-0", 1)->begin_boot_ns = 10 * S + 800 * MS;
	allocate(&w, &w.alice, "GPU-0", 2)->begin_boot_ns = 10 * S + 700 * MS; /* both from the earlier of the two */
	ended(&w, 0, &w.alice, 55, 10 * S + 200 * MS, 10 * S + 400 * MS)->sm_ppm = 1000000;
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).short_processes, 0);
	assert_int_equal(stats_of(&w).short_not_held, 1);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+100 units=5040 held=100 used=0 ticks=0\n"
	           "GPU-0 alice held timeslice estimated 10700+300 units=5040 held=200 used=0 ticks=1\n"
	           "GPU-0 bob held exclusive measured 10100+600 units=5040 held=600 used=0 ticks=0\n"
	           "GPU-0 bob held timeslice estimated 10700+300 units=5040 held=100 used=0 ticks=1\n");
}

static void
activity_beside_an_intruder_is_estimated_when_processes_are_not_told_apart(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].active_ppm = 800000;
	allocate(&w, &w.alice, "GPU-0", -1);
	run(&w, 0, &w.alice, 0);
	run(&w, 0, &w.bob, 0);
	ticks(&w, 10 * S, 11 * S);
	w.tick_gpus[0].process_count = 0;
	run(&w, 0, &w.bob, 0); /* now only the intruder could have been active */
	ticks(&w, 12 * S, 13 * S);
	expect(&w, "GPU-0 alice held exclusive estimated 10000+2000 units=5040 held=2000 used=800 ticks=2\n"
	           "GPU-0 alice held exclusive measured 12000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
an_allocation_without_measurement_is_reserved(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	instance(&w.gpus[0], 1, "4g.40gb", 2700);
	instance(&w.gpus[0], 2, "3g.40gb", 2340);
	allocate(&w, &w.alice, "MIG-1", -1);
	run(&w, 0, &w.bob, 0)->gi = 2;
	w.processes[0][0].ci = 0;
	ticks(&w, 10 * S, 11 * S);
	w.gpus[0].instances[0].active_ppm = 500000;
	ticks(&w, 12 * S, 12 * S);
	expect(&w, "MIG-1 alice held mig reserved 10000+1000 units=2700 held=1000 used=0 unmeasured=1000 ticks=1\n"
	           "MIG-1 alice held mig measured 11000+1000 units=2700 held=1000 used=500 ticks=1\n"
	           "MIG-2 bob held mig none 10000+1000 units=2340 held=1000 used=0 unmeasured=1000 ticks=1\n"
	           "MIG-2 bob held mig none 11000+1000 units=2340 held=1000 used=0 unmeasured=1000 ticks=1\n");
}

static void
allocated_replicas_hold_one_part_each_and_the_free_ones_are_unallocated(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	const struct meter_intruder *list;

	meterworld_init(&w, 1, 4);
	w.gpus[0].active_ppm = 600000;
	allocate(&w, &w.alice, "GPU-0", 0);
	allocate(&w, &w.bob, "GPU-0", 3);
	allocate(&w, &w.alice, "GPU-0", 1);
	allocate(&w, &w.alice, "GPU-0", 1); /* told twice */
	run(&w, 0, &w.bob, 0);
	run(&w, 0, &w.carol, 0); /* without an allocation: the free replica is not hers */
	ticks(&w, 10 * S, 12 * S);
	assert_int_equal(meter_intruders(w.meter, &list), 1);
	expect(&w, "GPU-0 - unallocated timeslice none 10000+2000 units=5040 held=500 used=0 ticks=2\n"
	           "GPU-0 bob held timeslice estimated 10000+2000 units=5040 held=500 used=500 over=100 ticks=2\n"
	           "GPU-0 alice held timeslice measured 10000+2000 units=5040 held=1000 used=0 ticks=2\n");
}

static void
replicas_are_as_many_as_the_device_plugin_tells(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	instance(&w.gpus[0], 1, "7g.80gb", 5040)->active_ppm = 100000;
	allocate(&w, &w.alice, "MIG-1", 0)->replica_of = 5;
	ticks(&w, 10 * S, 11 * S);
	w.allocation_count = 0;
	allocate(&w, &w.alice, "MIG-1", 3); /* not told: at least four */
	ticks(&w, 12 * S, 13 * S);
	expect(&w, "MIG-1 - unallocated mig none 10000+2000 units=5040 held=1600 used=0 ticks=2\n"
	           "MIG-1 - unallocated mig none 12000+1000 units=5040 held=750 used=0 ticks=1\n"
	           "MIG-1 alice held mig measured 10000+2000 units=5040 held=400 used=200 ticks=2\n"
	           "MIG-1 alice held mig measured 12000+1000 units=5040 held=250 used=100 ticks=1\n");
}

static void
two_allocations_of_all_of_a_device_share_it_equally(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 4);
	allocate(&w, &w.alice, "GPU-0", -1);
	allocate(&w, &w.bob, "GPU-0", -1);
	ticks(&w, 10 * S, 11 * S);
	w.allocation_count = 1;
	ticks(&w, 12 * S, 13 * S);
	expect(&w, "GPU-0 alice held plain estimated 10000+2000 units=5040 held=1000 used=0 ticks=2\n"
	           "GPU-0 alice held exclusive measured 12000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 bob held plain estimated 10000+2000 units=5040 held=1000 used=0 ticks=2\n");
}

static void
more_allocated_replicas_than_advertised_still_add_up(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 2);
	allocate(&w, &w.alice, "GPU-0", 0);
	allocate(&w, &w.bob, "GPU-0", 0);
	allocate(&w, &w.carol, "GPU-0", 1);
	ticks(&w, 12 * S, 15 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(b->record_count, 3);
	assert_true(unit_ns(b, "GPU-0") == (int128)UNITS_PER_GPU * 3 * S);
	for (size_t i = 0; i < 3; i++)
		assert_in_range(b->records[i].held_ns, S, S);
}

static void
an_allocation_of_a_device_that_is_not_there_is_counted(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 2, 1);
	instance(&w.gpus[1], 1, "7g.80gb", 5040);
	allocate(&w, &w.alice, "GPU-7", -1);
	allocate(&w, &w.bob, "GPU-1", -1);          /* partitioned: nobody can have all of it */
	allocate(&w, &w.carol, "GPU-0", INT32_MAX); /* no device plugin has so many */
	allocate(&w, &w.carol, "GPU-0", 0)->replica_of = INT32_MAX;
	allocate(&w, &w.carol, "GPU-0", -7)->begin_boot_ns = INT64_MAX; /* all of it, some day */
	ticks(&w, 10 * S, 10 * S);
	assert_int_equal(stats_of(&w).allocations_unknown, 4);
	w.allocation_count = 0;
	ticks(&w, 11 * S, 11 * S);
	assert_int_equal(stats_of(&w).allocations_unknown, 0);
	expect(&w, "GPU-0 carol held exclusive measured 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "MIG-1 - unallocated mig none 10000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
a_repartition_ends_the_allocation_of_an_instance_that_is_gone(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	instance(&w.gpus[0], 1, "7g.80gb", 5040);
	allocate(&w, &w.alice, "MIG-1", -1);
	ticks(&w, 10 * S, 11 * S);
	w.gpus[0].instance_count = 0;
	instance(&w.gpus[0], 2, "7g.80gb", 5040);
	ticks(&w, 12 * S, 13 * S);
	assert_int_equal(stats_of(&w).allocations_unknown, 1);
	expect(&w, "MIG-1 alice held mig reserved 10000+2000 units=5040 held=2000 used=0 unmeasured=2000 ticks=2\n"
	           "MIG-2 - unallocated mig none 12000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
an_allocated_gpu_that_is_down_or_missed_is_not_held(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	allocate(&w, &w.alice, "GPU-0", -1);
	ticks(&w, 10 * S, 11 * S);
	w.gpus[0].down = true;
	ticks(&w, 12 * S, 12 * S);
	w.gpus[0].down = false;
	ticks(&w, 13 * S, 14 * S);
	(void)tick(&w, 20 * S);
	expect(&w, "GPU-0 - down exclusive none 11000+2000 units=5040 held=2000 used=0 ticks=2\n"
	           "GPU-0 - unknown exclusive none 14000+6000 units=5040 held=6000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 alice held exclusive measured 13000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

/* ---- GPUs that do not answer ---- */

static void
a_silent_gpu_is_unknown_in_the_slots_beside_its_silence(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 2, 1);
	run(&w, 0, &w.alice, 0);
	run(&w, 1, &w.alice, 0);
	allocate(&w, &w.alice, "GPU-0", -1); /* an allocation does not tell what became of the GPU */
	ticks(&w, 10 * S, 12 * S);
	w.gpus[0].silent = true;
	ticks(&w, 13 * S, 15 * S);
	w.gpus[0].silent = false;
	ticks(&w, 16 * S, 17 * S);
	assert_int_equal(stats_of(&w).unknown_slots, 4);
	expect(&w, "GPU-0 - unknown exclusive none 12000+4000 units=5040 held=4000 used=0 ticks=4\n"
	           "GPU-0 alice held exclusive measured 10000+2000 units=5040 held=2000 used=0 ticks=2\n"
	           "GPU-0 alice held exclusive measured 16000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-1 alice held exclusive measured 10000+7000 units=5040 held=7000 used=0 ticks=7\n");
}

static void
silence_beside_an_outage_is_unknown_and_the_rest_of_the_outage_down(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	ticks(&w, 10 * S, 11 * S);
	w.gpus[0].down = true;
	ticks(&w, 12 * S, 13 * S);
	w.gpus[0].silent = true;
	ticks(&w, 14 * S, 14 * S);
	w.gpus[0].silent = w.gpus[0].down = false;
	ticks(&w, 15 * S, 16 * S);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+1000 units=5040 held=1000 used=0 ticks=1\n"
	           "GPU-0 - down exclusive none 11000+2000 units=5040 held=2000 used=0 ticks=2\n"
	           "GPU-0 - unknown exclusive none 13000+2000 units=5040 held=2000 used=0 ticks=2\n"
	           "GPU-0 - unallocated exclusive none 15000+1000 units=5040 held=1000 used=0 ticks=1\n");
}

static void
a_partitioned_gpu_that_was_silent_has_the_same_instances_afterwards(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	instance(&w.gpus[0], 1, "7g.80gb", 5040);
	ticks(&w, 10 * S, 11 * S);
	w.gpus[0].silent = true;
	w.gpus[0].instance_count = 0;
	w.gpus[0].mig = false;
	ticks(&w, 12 * S, 12 * S);
	w.gpus[0].silent = false;
	w.gpus[0].mig = true;
	w.gpus[0].instance_count = 1;
	ticks(&w, 13 * S, 14 * S);
	owned(wire_batch) struct wire_batch *b = take_all(&w);

	assert_int_equal(b->device_count, 2); /* the GPU and one instance */
	assert_int_equal(b->record_count, 3);
	assert_true(unit_ns(b, "GPU-0") == (int128)UNITS_PER_GPU * 4 * S);
}

static void
short_processes_in_unknown_time_are_counted_once_if_no_tick_saw_them(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 10 * S);
	stop_all(&w, 0);
	w.gpus[0].silent = true;
	ticks(&w, 11 * S, 13 * S);
	w.gpus[0].silent = false;
	ended(&w, 0, &w.alice, 100, 1 * S, 11 * S + 500 * MS);           /* the last answer showed it */
	ended(&w, 0, &w.bob, 101, 11 * S + 100 * MS, 11 * S + 500 * MS); /* nothing ever did */
	ticks(&w, 14 * S, 14 * S);
	assert_int_equal(stats_of(&w).short_processes, 0);
	assert_int_equal(stats_of(&w).short_not_held, 1);
	expect(&w, "GPU-0 - unknown exclusive none 10000+4000 units=5040 held=4000 used=0 ticks=4\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_process_between_two_ticks_holds_from_its_start_to_its_end),
		cmocka_unit_test(a_process_that_a_tick_saw_holds_until_the_end_that_accounting_tells),
		cmocka_unit_test(no_stretch_counts_twice_when_a_tick_and_accounting_tell_of_one_process),
		cmocka_unit_test(a_reused_pid_is_another_process),
		cmocka_unit_test(a_process_that_ends_while_the_gpu_is_read_holds_no_further_slot),
		cmocka_unit_test(processes_that_nobody_can_name_are_counted_and_hold_nothing),
		cmocka_unit_test(what_is_told_of_a_process_that_began_in_the_slot_was_done_since_then),
		cmocka_unit_test(a_short_process_shares_with_who_was_there),
		cmocka_unit_test(short_processes_of_one_workload_hold_once_where_they_overlap),
		cmocka_unit_test(a_short_process_without_measured_activity_is_unmeasured_where_the_device_is),
		cmocka_unit_test(very_many_records_close_the_interval_before_its_end),
		cmocka_unit_test(an_allocation_holds_without_a_process_from_tick_to_tick),
		cmocka_unit_test(an_allocation_begins_when_the_source_says),
		cmocka_unit_test(a_process_holds_until_its_allocation_is_shown_and_the_record_goes_on),
		cmocka_unit_test(an_intruder_holds_nothing_and_is_reported),
		cmocka_unit_test(a_short_process_on_a_device_of_others_is_counted_and_holds_nothing),
		cmocka_unit_test(a_process_between_anothers_allocation_and_its_own_is_an_intruder),
		cmocka_unit_test(activity_beside_an_intruder_is_estimated_when_processes_are_not_told_apart),
		cmocka_unit_test(an_allocation_without_measurement_is_reserved),
		cmocka_unit_test(allocated_replicas_hold_one_part_each_and_the_free_ones_are_unallocated),
		cmocka_unit_test(replicas_are_as_many_as_the_device_plugin_tells),
		cmocka_unit_test(two_allocations_of_all_of_a_device_share_it_equally),
		cmocka_unit_test(more_allocated_replicas_than_advertised_still_add_up),
		cmocka_unit_test(an_allocation_of_a_device_that_is_not_there_is_counted),
		cmocka_unit_test(a_repartition_ends_the_allocation_of_an_instance_that_is_gone),
		cmocka_unit_test(an_allocated_gpu_that_is_down_or_missed_is_not_held),
		cmocka_unit_test(a_silent_gpu_is_unknown_in_the_slots_beside_its_silence),
		cmocka_unit_test(silence_beside_an_outage_is_unknown_and_the_rest_of_the_outage_down),
		cmocka_unit_test(a_partitioned_gpu_that_was_silent_has_the_same_instances_afterwards),
		cmocka_unit_test(short_processes_in_unknown_time_are_counted_once_if_no_tick_saw_them),
	};

	return cmocka_run_group_tests_name("meter: who holds", tests, NULL, NULL);
}

/* What the meter divides and adds up besides time: energy (rule 9 of exporter/meter/meter.h), and the totals for /metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/units.h"
#include "tests/support/exporter/meterworld.h"

/* ---- energy ---- */

static void
the_active_part_goes_by_activity_and_the_rest_by_what_is_held(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	g->process_activity = true;
	g->active_ppm = 300000;
	run(&w, 0, &w.alice, 0)->sm_ppm = 200000;
	run(&w, 0, &w.bob, 0)->sm_ppm = 100000;
	g->energy_mj = 1000;
	ticks(&w, 10 * S, 10 * S);
	g->energy_mj = 1101;
	ticks(&w, 11 * S, 11 * S);
	/* active for 0.3 of the slot: 30 of 101, of which two thirds are alice's; the other 71 are half and half, the odd one hers */
	expect(&w, "GPU-0 alice held plain measured 10000+1000 units=5040 held=500 used=200 mj=56 ticks=1\n"
	           "GPU-0 bob held plain measured 10000+1000 units=5040 held=500 used=100 mj=45 ticks=1\n");
}

static void
the_idle_rest_of_what_nobody_holds_is_on_records_without_a_holder(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	instance(g, 1, "3g.40gb", 2340)->active_ppm = 500000;
	instance(g, 2, "1g.10gb", 675);
	g->units_stranded = 675;
	run(&w, 0, &w.alice, 0)->gi = 1;
	w.processes[0][0].ci = 0;
	g->energy_mj = 0;
	ticks(&w, 10 * S, 10 * S);
	g->energy_mj = 5040000;
	ticks(&w, 11 * S, 11 * S);
	/* active: 1170 units of 5040; of the rest, 3870000 mJ, each has its units out of 5040 */
	expect(&w, "GPU-0 - unallocated mig none 10000+1000 units=1350 held=1000 used=0 mj=1036607 ticks=1\n"
	           "GPU-0 - stranded mig none 10000+1000 units=675 held=1000 used=0 mj=518304 ticks=1\n"
	           "MIG-1 alice held mig measured 10000+1000 units=2340 held=1000 used=500 mj=2966786 ticks=1\n"
	           "MIG-2 - unallocated mig none 10000+1000 units=675 held=1000 used=0 mj=518303 ticks=1\n");
}

static void
what_is_unmeasured_counts_as_active(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	instance(g, 1, "4g.40gb", 2700);
	instance(g, 2, "3g.40gb", 2340);
	run(&w, 0, &w.alice, 0)->gi = 1;
	w.processes[0][0].ci = 0;
	g->energy_mj = 0;
	ticks(&w, 10 * S, 10 * S);
	g->energy_mj = 5040;
	ticks(&w, 11 * S, 11 * S);
	/* 2700 active; of the other 2340, 2700/5040 are alice's too */
	expect(&w, "MIG-1 alice held mig none 10000+1000 units=2700 held=1000 used=0 unmeasured=1000 mj=3954 ticks=1\n"
	           "MIG-2 - unallocated mig none 10000+1000 units=2340 held=1000 used=0 mj=1086 ticks=1\n");
}

static void
over_is_activity_too_and_a_free_replica_has_its_idle_part(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 4);
	w.gpus[0].active_ppm = 500000;
	w.gpus[0].energy_mj = 0;
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 10 * S);
	w.gpus[0].energy_mj = 800;
	ticks(&w, 11 * S, 11 * S);
	expect(&w,
	       "GPU-0 - unallocated timeslice none 10000+1000 units=5040 held=750 used=0 mj=300 ticks=1\n"
	       "GPU-0 alice held timeslice measured 10000+1000 units=5040 held=250 used=250 over=250 mj=500 ticks=1\n");
}

static void
activity_that_accounting_tells_on_top_of_a_busy_gpu_makes_no_energy(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;

	meterworld_init(&w, 1, 1);
	w.gpus[0].active_ppm = 1000000;
	w.gpus[0].energy_mj = 0;
	run(&w, 0, &w.alice, 0);
	ticks(&w, 10 * S, 10 * S);
	ended(&w, 0, &w.bob, 55, 10 * S, 11 * S)->sm_ppm = 1000000;
	w.gpus[0].energy_mj = 700;
	ticks(&w, 11 * S, 11 * S);
	expect(&w, "GPU-0 alice held plain measured 10000+1000 units=5040 held=500 used=500 over=500 mj=350 ticks=1\n"
	           "GPU-0 bob held plain measured 10000+1000 units=5040 held=500 used=500 over=500 mj=350 ticks=1\n");
}

static void
energy_used_while_nobody_looked_is_on_the_record_of_that_time(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	g->energy_mj = 100;
	run(&w, 0, &w.alice, 0);
	allocate(&w, &w.alice, "GPU-0", -1);
	ticks(&w, 10 * S, 10 * S);
	g->down = true;
	g->energy_mj = ABSENT;
	ticks(&w, 11 * S, 11 * S);
	g->down = false;
	g->energy_mj = 170;
	ticks(&w, 12 * S, 12 * S);
	g->energy_mj = 200;
	(void)tick(&w, 20 * S);
	g->silent = true;
	g->energy_mj = 999; /* not read */
	ticks(&w, 21 * S, 22 * S);
	g->silent = false;
	g->energy_mj = 265;
	ticks(&w, 23 * S, 23 * S);
	expect(&w, "GPU-0 - down exclusive none 10000+2000 units=5040 held=2000 used=0 mj=70 ticks=2\n"
	           "GPU-0 - unknown exclusive none 12000+11000 units=5040 held=11000 used=0 mj=95 ticks=4\n");
}

static void
a_counter_that_began_anew_leaves_its_slot_without_energy_and_is_counted(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	struct gpu_reading *g;
	struct meter_stats stats;

	meterworld_init(&w, 1, 1);
	g = &w.gpus[0];
	g->energy_mj = 100;
	ticks(&w, 10 * S, 10 * S);
	g->energy_mj = ABSENT; /* read again at the next tick: nothing is lost */
	ticks(&w, 11 * S, 11 * S);
	g->energy_mj = 170;
	ticks(&w, 12 * S, 12 * S);
	g->energy_mj = 20;
	ticks(&w, 13 * S, 13 * S);
	g->energy_mj = 25;
	ticks(&w, 14 * S, 14 * S);
	g->energy_mj = INT64_MAX; /* no board uses so much */
	ticks(&w, 15 * S, 15 * S);
	meter_stats(w.meter, &stats);
	assert_int_equal(stats.energy_resets, 2);
	expect(&w, "GPU-0 - unallocated exclusive none 10000+5000 units=5040 held=5000 used=0 mj=75 ticks=5\n");
}

/* ---- totals ---- */

static void
totals_follow_the_workload_and_leave_with_the_tick_that_misses_it(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	const struct meter_total *totals;

	meterworld_init(&w, 1, 1);
	run(&w, 0, &w.alice, 0);
	w.gpus[0].active_ppm = 250000;
	ticks(&w, 57 * S, 59 * S);
	assert_int_equal(meter_totals(w.meter, &totals), 1);
	assert_string_equal(totals[0].holder->user, "alice");
	assert_string_equal(totals[0].device->uuid, "GPU-0");
	assert_true(totals[0].used_unit_ns == (int128)UNITS_PER_GPU * 500 * MS);
	assert_true(totals[0].idle_unit_ns == (int128)UNITS_PER_GPU * 1500 * MS);
	assert_true(totals[0].unmeasured_unit_ns == 0);
	run(&w, 0, &w.bob, 0);
	(void)tick(&w, 60 * S);
	w.tick_gpus[0].process_count = 1;
	(void)tick(&w, 61 * S);
	assert_int_equal(meter_totals(w.meter, &totals), 1);
	assert_string_equal(totals[0].holder->user, "alice");
	stop_all(&w, 0);
	(void)tick(&w, 62 * S);
	assert_int_equal(meter_totals(w.meter, &totals), 0);
	run(&w, 0, &w.alice, 0);
	ticks(&w, 63 * S, 63 * S);
	assert_int_equal(meter_totals(w.meter, &totals), 1);
	assert_true(totals[0].idle_unit_ns == (int128)UNITS_PER_GPU * 750 * MS);
}

static void
totals_of_an_allocation_stay_without_a_process_and_those_of_a_silent_gpu_too(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	const struct meter_total *totals;

	meterworld_init(&w, 2, 1);
	run(&w, 0, &w.alice, 0);
	allocate(&w, &w.alice, "GPU-0", -1);
	run(&w, 1, &w.bob, 0);
	ticks(&w, 10 * S, 11 * S);
	stop_all(&w, 0);
	stop_all(&w, 1);
	w.gpus[1].silent = true;
	ticks(&w, 12 * S, 13 * S);
	assert_int_equal(meter_totals(w.meter, &totals), 2);
	w.gpus[1].silent = false;
	w.gpus[0].down = true; /* what was on it is gone */
	w.allocation_count = 0;
	ticks(&w, 14 * S, 14 * S);
	assert_int_equal(meter_totals(w.meter, &totals), 0);
}

static void
processes_have_their_own_activity_in_the_order_of_the_tick(void **state)
{
	(void)state;
	in_place(meterworld) struct meterworld w;
	const struct meter_process_total *totals;

	meterworld_init(&w, 2, 1);
	w.gpus[0].process_activity = true;
	w.gpus[0].active_ppm = 500000;
	run(&w, 0, &w.bob, 0)->sm_ppm = 400000;
	run(&w, 0, &w.alice, 0)->sm_ppm = 300000; /* sorted before bob in the records, after him here */
	w.gpus[1].active_ppm = 100000;
	run(&w, 1, &w.alice, 0);
	ticks(&w, 10 * S, 10 * S);
	assert_int_equal(meter_process_totals(w.meter, &totals), 3);
	assert_false(totals[0].measured);
	run(&w, 0, &w.alice, 11 * S + 500 * MS)->sm_ppm = 200000;
	ticks(&w, 11 * S, 12 * S);
	assert_int_equal(meter_process_totals(w.meter, &totals), 4);
	assert_true(totals[0].measured && totals[1].measured && totals[2].measured && totals[3].measured);
	assert_true(totals[0].active_unit_ns == (int128)UNITS_PER_GPU * 800 * MS);
	assert_true(totals[1].active_unit_ns == (int128)UNITS_PER_GPU * 600 * MS);
	assert_true(totals[2].active_unit_ns == (int128)UNITS_PER_GPU * 400 * MS); /* told of both slots */
	assert_true(totals[3].active_unit_ns ==
	            (int128)UNITS_PER_GPU * 200 * MS); /* the only one does what the GPU does */
	run(&w, 1, &w.alice, 0);
	w.gpus[0].silent = true;
	ticks(&w, 13 * S, 13 * S);
	assert_int_equal(meter_process_totals(w.meter, &totals), 5);
	assert_true(totals[3].active_unit_ns == (int128)UNITS_PER_GPU * 200 * MS);
	assert_false(totals[4].measured); /* two now, and nobody tells them apart: absent, not zero */
	w.gpus[0].silent = false;
	ticks(&w, 14 * S, 15 * S);
	assert_int_equal(meter_process_totals(w.meter, &totals), 5);
	assert_true(totals[0].active_unit_ns == (int128)UNITS_PER_GPU * 1200 * MS);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_active_part_goes_by_activity_and_the_rest_by_what_is_held),
		cmocka_unit_test(the_idle_rest_of_what_nobody_holds_is_on_records_without_a_holder),
		cmocka_unit_test(what_is_unmeasured_counts_as_active),
		cmocka_unit_test(over_is_activity_too_and_a_free_replica_has_its_idle_part),
		cmocka_unit_test(activity_that_accounting_tells_on_top_of_a_busy_gpu_makes_no_energy),
		cmocka_unit_test(energy_used_while_nobody_looked_is_on_the_record_of_that_time),
		cmocka_unit_test(a_counter_that_began_anew_leaves_its_slot_without_energy_and_is_counted),
		cmocka_unit_test(totals_follow_the_workload_and_leave_with_the_tick_that_misses_it),
		cmocka_unit_test(totals_of_an_allocation_stay_without_a_process_and_those_of_a_silent_gpu_too),
		cmocka_unit_test(processes_have_their_own_activity_in_the_order_of_the_tick),
	};

	return cmocka_run_group_tests_name("meter: energy and totals", tests, NULL, NULL);
}

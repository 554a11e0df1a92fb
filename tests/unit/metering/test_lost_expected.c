/* tests/unit/metering/test_lost_expected.c - the numbered rules of aggregator/core/metering/lost_expected.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/metering/lost_expected.h"
#include "common/base/buf.h"
#include "common/base/time.h"
#include "common/wire/wire.h"

#define HOUR (1000 * NS_PER_HOUR)
#define AT(seconds) (HOUR + (seconds)*NS_PER_S)

/* Device 1 is of GPU 10, device 2 of GPU 20. Times are seconds of the hour. */
static struct lost_expected_record
held(int64_t device, int64_t holder, int from, int to)
{
	return (struct lost_expected_record){.node = 1,
	                                     .gpu = 10 * device,
	                                     .device = device,
	                                     .holder = holder,
	                                     .stream = 5,
	                                     .start_ns = AT(from),
	                                     .end_ns = AT(to),
	                                     .state = WIRE_HELD};
}

static struct lost_expected_record
nobody(int64_t device, int state, int from, int to)
{
	struct lost_expected_record r = held(device, 0, from, to);

	r.state = state;
	return r;
}

static void
note(void *arg, const struct lost_expected *l)
{
	buf_printf(arg, "%d/%d@%d %s %d by %d;", (int)l->device, (int)l->holder, (int)((l->ended_ns - HOUR) / NS_PER_S),
	           lost_expected_causes[l->cause], (int)l->xid, (int)l->failed_gpu);
}

static void
the_rules_of_one_device(void **state)
{
	static const struct {
		const char *name, *lost;
	} rows[] = {
		{.name = "a workload that ends on a sound GPU has lost nothing", .lost = ""},
		{.name = "a GPU that is down within a minute was lost", .lost = "1/7@900 gpu-down 0 by 10;"},
		{.name = "one that is down later was not", .lost = ""},
		{.name = "a silent node is lost when its accounts have passed ten minutes",
	         .lost = "1/7@900 node-silent 0 by 10;"},
		{.name = "before that nobody knows", .lost = ""},
		{.name = "a stay that goes on within ten minutes has not ended", .lost = ""},
		{.name = "a critical error ends it", .lost = "1/7@900 xid 79 by 10;"},
		{.name = "an error of the program's own does not", .lost = ""},
		{.name = "two errors of one moment are two right answers",
	         .lost = "1/7@900 xid 79 by 10;1/7@900 xid 48 by 10;"},
		{.name = "what begins after the day is not known to it", .lost = "1/7@900 node-silent 0 by 10;"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const bool error = i >= 6 && i <= 8;
		struct lost_expected_record records[] = {
			held(1, 7, 0, 900),
			i == 1             ? nobody(1, WIRE_DOWN, 950, 1800)
			: i == 2           ? nobody(1, WIRE_DOWN, 961, 1800)
			: i == 5 || i == 9 ? held(1, 7, 1400, 1800)
					   : nobody(1, WIRE_UNALLOCATED, 900, 1800),
			nobody(1, WIRE_UNALLOCATED, 900, 1000),
		};
		struct lost_expected_xid xids[] = {{10, AT(890), i == 7 ? 31 : 79}, {10, AT(890), i == 8 ? 48 : 13}};
		const bool silent = i == 3 || i == 4;
		const struct lost_expected_evidence seen = {.records = records,
		                                            .record_count = silent   ? 1
		                                                            : i == 2 ? 3
		                                                                     : 2,
		                                            .xids = xids,
		                                            .xid_count = error ? 2 : 0,
		                                            .accounted_ns = AT(i == 4 ? 1499 : 1500),
		                                            .before_ns = i == 9 ? AT(1300) : INT64_MAX};
		in_place(buf) struct buf told = {0};

		buf_init(&told, 1000);
		lost_expected_stays(&seen, HOUR, note, &told);
		if (strcmp(buf_text(&told), rows[i].lost) != 0)
			fail_msg("%s: %s", rows[i].name, buf_text(&told));
	}
}

static void
other_devices_of_the_job_are_lost_with_it(void **state)
{
	const struct lost_expected failed = {.node = 1,
	                                     .stream = 5,
	                                     .device = 1,
	                                     .holder = 7,
	                                     .ended_ns = AT(900),
	                                     .cause = LOST_EXPECTED_DOWN,
	                                     .failed_gpu = 10};
	struct lost_expected_record records[] = {held(2, 7, 100, 840),   held(3, 7, 100, 839), held(4, 7, 100, 1000),
	                                         held(4, 7, 1900, 2000), held(5, 8, 100, 900), held(6, 7, 100, 1499),
	                                         held(8, 7, 100, 1500)};
	const struct lost_expected_evidence seen = {.records = records,
	                                            .record_count = ARRAY_LEN(records),
	                                            .before_ns = INT64_MAX};
	in_place(buf) struct buf told = {0};

	(void)state;
	buf_init(&told, 1000);
	lost_expected_others(&seen, &failed, note, &told);
	assert_string_equal(buf_text(&told), "2/7@840 gpu-down 0 by 10;6/7@1499 gpu-down 0 by 10;");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_rules_of_one_device),
		cmocka_unit_test(other_devices_of_the_job_are_lost_with_it),
	};

	return cmocka_run_group_tests_name("lost_expected", tests, NULL, NULL);
}

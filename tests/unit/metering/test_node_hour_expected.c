/* tests/unit/metering/test_node_hour_expected.c - the numbered rules of aggregator/core/metering/node_hour_expected.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/metering/node_hour_expected.h"
#include "common/base/buf.h"
#include "common/wire/wire.h"

static struct node_hour_interval
interval(int64_t device, int64_t start, int64_t energy)
{
	return (struct node_hour_interval){{
		[NODE_HOUR_DEVICE] = device,
		[NODE_HOUR_START] = start,
		[NODE_HOUR_STATE] = WIRE_UNALLOCATED,
		[NODE_HOUR_UNITS] = 5040,
		[NODE_HOUR_SHARING] = WIRE_EXCLUSIVE,
		[NODE_HOUR_DURATION] = 10,
		[NODE_HOUR_HELD] = 10,
		[NODE_HOUR_ENERGY_MJ] = energy,
	}};
}

static void
note_interval(void *arg, enum node_hour_fault fault, const struct node_hour_interval *expected,
              const struct node_hour_interval *found)
{
	static const char *const names[] = {"missing", "extra", "doubled", "changed"};
	const struct node_hour_interval *some = expected != NULL ? expected : found;

	buf_printf(arg, "%s %" PRId64 "@%" PRId64, names[fault], some->v[NODE_HOUR_DEVICE], some->v[NODE_HOUR_START]);
	if (fault == NODE_HOUR_CHANGED && expected != NULL)
		buf_printf(arg, " %" PRId64 ">%" PRId64, expected->v[NODE_HOUR_ENERGY_MJ],
		           found->v[NODE_HOUR_ENERGY_MJ]);
	buf_char(arg, ';');
}

/* Device and start are one digit each, then the energy: "115" is device 1 at 1 with 5. */
static size_t
read_intervals(const char *text, struct node_hour_interval *out)
{
	size_t n = 0;

	for (const char *p = text; *p != '\0'; p += p[3] == ' ' ? 4 : 3)
		out[n++] = interval(p[0] - '0', p[1] - '0', p[2] - '0');
	return n;
}

static void
every_interval_is_there_once_and_equal(void **state)
{
	static const struct {
		const char *name, *expected, *found, *faults;
	} rows[] = {
		{"nothing against nothing", "", "", ""},
		{"the same in another order", "111 215 120", "120 111 215", ""},
		{"two equal ones on both sides", "111 111", "111 111", ""},
		{"one is not there", "111 121", "121", "missing 1@1;"},
		{"none is there", "111 121", "", "missing 1@1;missing 1@2;"},
		{"one too many", "111", "111 215", "extra 2@1;"},
		{"one is there twice", "111 121", "111 111 121", "doubled 1@1;"},
		{"one is there three times", "111", "111 111 111", "doubled 1@1;doubled 1@1;"},
		{"one of two equal ones is gone", "111 111", "111", "missing 1@1;"},
		{"another number in it", "111 121", "114 121", "changed 1@1 1>4;"},
		{"two of one key, one changed", "111 112", "111 115", "changed 1@1 2>5;"},
		{"a changed key is one that is gone and one too many", "111", "211", "missing 1@1;extra 2@1;"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct node_hour_interval expected[8], found[8];
		size_t n = read_intervals(rows[i].expected, expected), m = read_intervals(rows[i].found, found);
		in_place(buf) struct buf faults;

		buf_init(&faults, 4096);
		node_hour_compare_intervals(expected, n, found, m, note_interval, &faults);
		if (strcmp(buf_text(&faults), rows[i].faults) != 0)
			fail_msg("%s: told \"%s\"", rows[i].name, buf_text(&faults));
	}
}

static void
sums_are_kept_per_key_however_many_records_there_are(void **state)
{
	in_place(node_hour_rows) struct node_hour_rows rows = {0};
	struct node_hour_interval held = interval(1, 0, 3);

	(void)state;
	held.v[NODE_HOUR_STATE] = WIRE_HELD;
	held.v[NODE_HOUR_HOLDER] = 9;
	held.v[NODE_HOUR_METHOD] = WIRE_MEASURED;
	held.v[NODE_HOUR_USED_NS] = 4;
	held.v[NODE_HOUR_UNMEASURED_NS] = 1;
	held.v[NODE_HOUR_OVER_NS] = 2;
	held.v[NODE_HOUR_MEMORY_BYTE_MS] = INT64_MAX;
	for (int i = 0; i < 20000; i++) {
		struct node_hour_interval free = interval(1 + i % 3, 0, 1);

		node_hour_rows_record(&rows, 7, &held);
		node_hour_rows_record(&rows, 7, &free);
	}
	assert_true(rows.cap < 20000);
	node_hour_rows_pack(&rows);
	assert_int_equal(rows.count, 4);
	assert_int_equal(rows.at[1].holder_id, 9);
	assert_true(rows.at[1].sum[NODE_HOUR_USED] == (int128)5040 * 4 * 20000);
	assert_true(rows.at[1].sum[NODE_HOUR_UNMEASURED] == (int128)5040 * 20000);
	assert_true(rows.at[1].sum[NODE_HOUR_IDLE] == (int128)5040 * 5 * 20000);
	assert_true(rows.at[1].sum[NODE_HOUR_OVER] == (int128)5040 * 2 * 20000);
	assert_true(rows.at[1].sum[NODE_HOUR_ENERGY] == 3 * 20000);
	assert_true(rows.at[1].sum[NODE_HOUR_MEMORY] == (int128)INT64_MAX * 20000);
	assert_true(node_hour_rows_conserved(&rows, 7) == (int128)5040 * 10 * 40000);
	assert_true(node_hour_rows_conserved(&rows, 8) == 0);
}

static void
every_state_without_a_holder_has_its_own_sum(void **state)
{
	static const struct {
		int64_t state;
		enum node_hour_sum sum;
	} rows[] = {{WIRE_UNALLOCATED, NODE_HOUR_UNALLOCATED},
	            {WIRE_STRANDED, NODE_HOUR_STRANDED},
	            {WIRE_DOWN, NODE_HOUR_DOWN},
	            {WIRE_UNKNOWN, NODE_HOUR_UNKNOWN}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(node_hour_rows) struct node_hour_rows r = {0};
		struct node_hour_interval one = interval(1, 0, 0);

		one.v[NODE_HOUR_STATE] = rows[i].state;
		node_hour_rows_record(&r, 7, &one);
		for (size_t s = 0; s < NODE_HOUR_SUMS; s++)
			assert_true(r.at[0].sum[s] == (s == rows[i].sum ? 50400 : 0));
	}
}

static void
the_rest_of_the_time_in_service_is_unknown_and_what_is_beyond_is_clock_adjust(void **state)
{
	static const struct {
		const char *name;
		int64_t served_ns, held, unknown, clock_adjust;
		size_t rows;
	} rows[] = {
		{"all of it is accounted for", 10, 50400, 0, 0, 0}, {"a gap", 10, 50000, 400, 0, 1},
		{"a time measured twice", 10, 50401, 0, 1, 1},      {"no record at all", 10, 0, 50400, 0, 1},
		{"records, and no service", 0, 5040, 0, 5040, 1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(node_hour_rows) struct node_hour_rows r = {0};

		node_hour_rows_balance(&r, 7, 1, rows[i].served_ns, rows[i].held);
		if (r.count != rows[i].rows ||
		    (r.count == 1 && (r.at[0].sum[NODE_HOUR_UNKNOWN] != rows[i].unknown ||
		                      r.at[0].sum[NODE_HOUR_CLOCK_ADJUST] != rows[i].clock_adjust)) ||
		    node_hour_rows_conserved(&r, 7) + rows[i].held != (int128)5040 * rows[i].served_ns)
			fail_msg("%s", rows[i].name);
	}
}

static void
note_row(void *arg, enum node_hour_fault fault, const struct node_hour_row *expected, const struct node_hour_row *found)
{
	buf_printf(arg, "%c%" PRId64,
	           fault == NODE_HOUR_MISSING ? '-'
	           : fault == NODE_HOUR_EXTRA ? '+'
	                                      : '=',
	           expected != NULL ? expected->device_id : found->device_id);
}

static void
rows_that_one_side_lacks_are_told(void **state)
{
	in_place(node_hour_rows) struct node_hour_rows a = {0}, b = {0};
	in_place(buf) struct buf told;

	(void)state;
	buf_init(&told, 256);
	for (int64_t i = 1; i <= 4; i++) {
		if (i != 3)
			node_hour_rows_add(&a, &(struct node_hour_row){.device_id = i});
		if (i != 1)
			node_hour_rows_add(&b, &(struct node_hour_row){.device_id = 6 - i});
	}
	node_hour_rows_pack(&a);
	node_hour_rows_pack(&b);
	node_hour_rows_compare(&a, &b, note_row, &told);
	assert_string_equal(buf_text(&told), "-1=2+3=4");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interval_is_there_once_and_equal),
		cmocka_unit_test(sums_are_kept_per_key_however_many_records_there_are),
		cmocka_unit_test(every_state_without_a_holder_has_its_own_sum),
		cmocka_unit_test(the_rest_of_the_time_in_service_is_unknown_and_what_is_beyond_is_clock_adjust),
		cmocka_unit_test(rows_that_one_side_lacks_are_told),
	};

	return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}

/* tests/unit/test_verify.c - the numbered rules of aggregator/core/metering/node_hour_expected.h. */
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

static struct verify_interval
interval(int64_t device, int64_t start, int64_t energy)
{
	return (struct verify_interval){{
		[VERIFY_DEVICE] = device,
		[VERIFY_START] = start,
		[VERIFY_STATE] = WIRE_UNALLOCATED,
		[VERIFY_UNITS] = 5040,
		[VERIFY_SHARING] = WIRE_EXCLUSIVE,
		[VERIFY_DURATION] = 10,
		[VERIFY_HELD] = 10,
		[VERIFY_ENERGY_MJ] = energy,
	}};
}

static void
note_interval(void *arg, enum verify_fault fault, const struct verify_interval *expected,
              const struct verify_interval *found)
{
	static const char *const names[] = {"missing", "extra", "doubled", "changed"};
	const struct verify_interval *some = expected != NULL ? expected : found;

	buf_printf(arg, "%s %" PRId64 "@%" PRId64, names[fault], some->v[VERIFY_DEVICE], some->v[VERIFY_START]);
	if (fault == VERIFY_CHANGED && expected != NULL)
		buf_printf(arg, " %" PRId64 ">%" PRId64, expected->v[VERIFY_ENERGY_MJ], found->v[VERIFY_ENERGY_MJ]);
	buf_char(arg, ';');
}

/* Device and start are one digit each, then the energy: "115" is device 1 at 1 with 5. */
static size_t
read_intervals(const char *text, struct verify_interval *out)
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
		struct verify_interval expected[8], found[8];
		size_t n = read_intervals(rows[i].expected, expected), m = read_intervals(rows[i].found, found);
		in_place(buf) struct buf faults;

		buf_init(&faults, 4096);
		verify_intervals(expected, n, found, m, note_interval, &faults);
		if (strcmp(buf_text(&faults), rows[i].faults) != 0)
			fail_msg("%s: told \"%s\"", rows[i].name, buf_text(&faults));
	}
}

static void
sums_are_kept_per_key_however_many_records_there_are(void **state)
{
	in_place(verify_rows) struct verify_rows rows = {0};
	struct verify_interval held = interval(1, 0, 3);

	(void)state;
	held.v[VERIFY_STATE] = WIRE_HELD;
	held.v[VERIFY_HOLDER] = 9;
	held.v[VERIFY_METHOD] = WIRE_MEASURED;
	held.v[VERIFY_USED_NS] = 4;
	held.v[VERIFY_UNMEASURED_NS] = 1;
	held.v[VERIFY_OVER_NS] = 2;
	held.v[VERIFY_MEMORY_BYTE_MS] = INT64_MAX;
	for (int i = 0; i < 20000; i++) {
		struct verify_interval free = interval(1 + i % 3, 0, 1);

		verify_rows_record(&rows, 7, &held);
		verify_rows_record(&rows, 7, &free);
	}
	assert_true(rows.cap < 20000);
	verify_rows_pack(&rows);
	assert_int_equal(rows.count, 4);
	assert_int_equal(rows.at[1].holder_id, 9);
	assert_true(rows.at[1].sum[VERIFY_USED] == (int128)5040 * 4 * 20000);
	assert_true(rows.at[1].sum[VERIFY_UNMEASURED] == (int128)5040 * 20000);
	assert_true(rows.at[1].sum[VERIFY_IDLE] == (int128)5040 * 5 * 20000);
	assert_true(rows.at[1].sum[VERIFY_OVER] == (int128)5040 * 2 * 20000);
	assert_true(rows.at[1].sum[VERIFY_ENERGY] == 3 * 20000);
	assert_true(rows.at[1].sum[VERIFY_MEMORY] == (int128)INT64_MAX * 20000);
	assert_true(verify_rows_conserved(&rows, 7) == (int128)5040 * 10 * 40000);
	assert_true(verify_rows_conserved(&rows, 8) == 0);
}

static void
every_state_without_a_holder_has_its_own_sum(void **state)
{
	static const struct {
		int64_t state;
		enum verify_sum sum;
	} rows[] = {{WIRE_UNALLOCATED, VERIFY_UNALLOCATED},
	            {WIRE_STRANDED, VERIFY_STRANDED},
	            {WIRE_DOWN, VERIFY_DOWN},
	            {WIRE_UNKNOWN, VERIFY_UNKNOWN}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(verify_rows) struct verify_rows r = {0};
		struct verify_interval one = interval(1, 0, 0);

		one.v[VERIFY_STATE] = rows[i].state;
		verify_rows_record(&r, 7, &one);
		for (size_t s = 0; s < VERIFY_SUMS; s++)
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
		in_place(verify_rows) struct verify_rows r = {0};

		verify_rows_balance(&r, 7, 1, rows[i].served_ns, rows[i].held);
		if (r.count != rows[i].rows ||
		    (r.count == 1 && (r.at[0].sum[VERIFY_UNKNOWN] != rows[i].unknown ||
		                      r.at[0].sum[VERIFY_CLOCK_ADJUST] != rows[i].clock_adjust)) ||
		    verify_rows_conserved(&r, 7) + rows[i].held != (int128)5040 * rows[i].served_ns)
			fail_msg("%s", rows[i].name);
	}
}

static void
note_row(void *arg, enum verify_fault fault, const struct verify_row *expected, const struct verify_row *found)
{
	buf_printf(arg, "%c%" PRId64,
	           fault == VERIFY_MISSING ? '-'
	           : fault == VERIFY_EXTRA ? '+'
	                                   : '=',
	           expected != NULL ? expected->device_id : found->device_id);
}

static void
rows_that_one_side_lacks_are_told(void **state)
{
	in_place(verify_rows) struct verify_rows a = {0}, b = {0};
	in_place(buf) struct buf told;

	(void)state;
	buf_init(&told, 256);
	for (int64_t i = 1; i <= 4; i++) {
		if (i != 3)
			verify_rows_add(&a, &(struct verify_row){.device_id = i});
		if (i != 1)
			verify_rows_add(&b, &(struct verify_row){.device_id = 6 - i});
	}
	verify_rows_pack(&a);
	verify_rows_pack(&b);
	verify_rows_compare(&a, &b, note_row, &told);
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

/* tests/unit/base/test_time.c - instants and durations as text, and the grid that records are cut at. */
#include "common/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const struct {
	const char *name;
	const char *text;
	int64_t ns;
} instants[] = {
	{"the epoch", "1970-01-01T00:00:00Z", 0},
	{"a time without decimals", "2026-11-16T05:45:00Z", INT64_C(1794807900) * NS_PER_S},
	{"as many decimals as needed", "2026-11-16T05:45:00.123Z", INT64_C(1794807900) * NS_PER_S + 123 * NS_PER_MS},
	{"zeros after the point stay", "2026-11-16T05:45:00.000001Z", INT64_C(1794807900) * NS_PER_S + NS_PER_US},
	{"one nanosecond", "1970-01-01T00:00:00.000000001Z", 1},
	{"one nanosecond before the epoch", "1969-12-31T23:59:59.999999999Z", -1},
	{"a leap day", "2024-02-29T12:00:00Z", INT64_C(1709208000) * NS_PER_S},
	{"a leap day of a full century", "2000-02-29T00:00:00Z", INT64_C(951782400) * NS_PER_S},
	{"the day after February in a century without one", "1900-03-01T00:00:00Z", INT64_C(-2203891200) * NS_PER_S},
	{"the last second of a year", "2026-12-31T23:59:59Z", INT64_C(1798761599) * NS_PER_S},
	{"the first representable instant", "1677-09-21T00:12:43.145224192Z", INT64_MIN},
	{"the last representable instant", "2262-04-11T23:47:16.854775807Z", INT64_MAX},
};

static void
instants_are_written_and_read_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(instants); i++) {
		char text[TIME_TEXT_SIZE];
		struct err err = {0};
		int64_t ns;

		if (strcmp(time_format(instants[i].ns, text), instants[i].text) != 0)
			fail_msg("%s: %s instead of %s", instants[i].name, text, instants[i].text);
		if (!time_parse(instants[i].text, &ns, &err))
			fail_msg("%s: %s", instants[i].name, err.text);
		if (ns != instants[i].ns)
			fail_msg("%s: read as %" PRId64 " instead of %" PRId64, instants[i].name, ns, instants[i].ns);
	}
}

/* The C library's calendar is the second opinion, on every day of five centuries. */
static void
every_day_from_1700_to_2200_agrees_with_the_c_library(void **state)
{
	(void)state;
	for (int64_t day = -98615; day < 84371; day++) {
		time_t seconds = (time_t)(day * 86400 + 3723);
		char text[TIME_TEXT_SIZE], expected[TIME_TEXT_SIZE];
		struct tm tm;
		int64_t ns;

		assert_non_null(gmtime_r(&seconds, &tm));
		assert_true(strftime(expected, sizeof(expected), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0);
		assert_string_equal(time_format(seconds * NS_PER_S, text), expected);
		assert_true(time_parse(expected, &ns, NULL));
		assert_int_equal(ns, seconds * NS_PER_S);
	}
}

static void
offsets_lower_case_and_a_space_are_read(void **state)
{
	static const char *const same[] = {
		"2026-11-16T05:45:00Z",      "2026-11-16t05:45:00z",      "2026-11-16 05:45:00Z",
		"2026-11-16T06:45:00+01:00", "2026-11-15T23:45:00-06:00", "2026-11-16T11:15:00+05:30",
		"2026-11-16T05:45:00-00:00", "2026-11-16T05:45:00.000Z",  "2026-11-16T05:45:00.000000000Z",
		"2026-11-17T05:44:00+23:59",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(same); i++) {
		struct err err = {0};
		int64_t ns;

		if (!time_parse(same[i], &ns, &err))
			fail_msg("%s: %s", same[i], err.text);
		if (ns != INT64_C(1794807900) * NS_PER_S)
			fail_msg("%s: read as %" PRId64, same[i], ns);
	}
}

static void
what_is_not_an_instant_is_refused(void **state)
{
	static const struct {
		const char *name, *text;
	} wrong[] = {
		{"nothing", ""},
		{"a date alone", "2026-11-16"},
		{"no offset: whose noon would it be", "2026-11-16T05:45:00"},
		{"something behind it", "2026-11-16T05:45:00Z "},
		{"something before it", " 2026-11-16T05:45:00Z"},
		{"one digit too few", "2026-11-6T05:45:00Z"},
		{"a year of five digits", "12026-11-16T05:45:00Z"},
		{"a negative year", "-026-11-16T05:45:00Z"},
		{"a sign inside", "2026-+1-16T05:45:00Z"},
		{"month 0", "2026-00-16T05:45:00Z"},
		{"month 13", "2026-13-16T05:45:00Z"},
		{"day 0", "2026-11-00T05:45:00Z"},
		{"31 November", "2026-11-31T05:45:00Z"},
		{"29 February of a common year", "2026-02-29T05:45:00Z"},
		{"29 February 1900", "1900-02-29T05:45:00Z"},
		{"hour 24", "2026-11-16T24:00:00Z"},
		{"minute 60", "2026-11-16T05:60:00Z"},
		{"a leap second, which the clock does not have", "2016-12-31T23:59:60Z"},
		{"a point without decimals", "2026-11-16T05:45:00.Z"},
		{"ten decimals", "2026-11-16T05:45:00.1234567890Z"},
		{"an offset without colon", "2026-11-16T05:45:00+0100"},
		{"an offset of hours alone", "2026-11-16T05:45:00+01"},
		{"an offset of a day", "2026-11-16T05:45:00+24:00"},
		{"an offset of sixty minutes", "2026-11-16T05:45:00+01:60"},
		{"before the first representable instant", "1677-09-21T00:12:43.145224191Z"},
		{"after the last representable instant", "2262-04-11T23:47:16.854775808Z"},
		{"the year 9999", "9999-12-31T23:59:59Z"},
		{"the year 0", "0000-01-01T00:00:00Z"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err err = {0};
		int64_t ns = 42;

		if (time_parse(wrong[i].text, &ns, &err))
			fail_msg("%s was read", wrong[i].name);
		if (err.kind != ERR_INVALID || !strstr(err.text, wrong[i].text) || ns != 42)
			fail_msg("%s: kind %s, text %s", wrong[i].name, err_kind_name(err.kind), err.text);
	}
}

static void
the_next_multiple_is_strictly_later_and_on_the_grid(void **state)
{
	static const struct {
		const char *name;
		int64_t t, step, next;
	} rows[] = {
		{"from the epoch", 0, 60, 60},
		{"just before a multiple", 59, 60, 60},
		{"on a multiple the next one", 60, 60, 120},
		{"just after a multiple", 61, 60, 120},
		{"before the epoch", -1, 60, 0},
		{"on a multiple before the epoch", -60, 60, 0},
		{"further before the epoch", -61, 60, -60},
		{"a step of one", 7, 1, 8},
		{"the end of time stands for what is beyond it", INT64_MAX - 5, NS_PER_HOUR, INT64_MAX},
		{"the end of time itself", INT64_MAX, 1, INT64_MAX},
		{"the first instant", INT64_MIN, 2, INT64_MIN + 2},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t next = time_next_multiple(rows[i].t, rows[i].step);

		if (next != rows[i].next)
			fail_msg("%s: %" PRId64 " instead of %" PRId64, rows[i].name, next, rows[i].next);
	}
}

static void
durations_are_written_and_read_back(void **state)
{
	static const struct {
		const char *text;
		int64_t ns;
	} rows[] = {
		{"0s", 0},
		{"1m30s", 90 * NS_PER_S},
		{"5m", 5 * NS_PER_MIN},
		{"1h30m", 90 * NS_PER_MIN},
		{"250ms", 250 * NS_PER_MS},
		{"7d", 7 * NS_PER_DAY},
		{"1d1h1m1s1ms1us1ns", NS_PER_DAY + NS_PER_HOUR + NS_PER_MIN + NS_PER_S + NS_PER_MS + NS_PER_US + 1},
		{"106751d23h47m16s854ms775us807ns", INT64_MAX},
	};
	char text[TIME_TEXT_SIZE];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err err = {0};
		int64_t ns;

		if (strcmp(duration_format(rows[i].ns, text), rows[i].text) != 0)
			fail_msg("%s instead of %s", text, rows[i].text);
		if (!duration_parse(rows[i].text, &ns, &err) || ns != rows[i].ns)
			fail_msg("%s: read as %" PRId64 " %s", rows[i].text, ns, err.text);
	}
	assert_string_equal(duration_format(-90 * NS_PER_S, text), "-1m30s");
	assert_string_equal(duration_format(INT64_MIN, text), "-106751d23h47m16s854ms775us808ns");
}

static void
a_duration_may_have_more_than_the_next_unit_holds(void **state)
{
	int64_t ns;

	(void)state;
	assert_true(duration_parse("90s", &ns, NULL));
	assert_int_equal(ns, 90 * NS_PER_S);
	assert_true(duration_parse("1m120s", &ns, NULL));
	assert_int_equal(ns, 3 * NS_PER_MIN);
}

static void
what_is_not_a_duration_is_refused(void **state)
{
	static const struct {
		const char *text, *says;
	} wrong[] = {
		{"", "is not a duration"},
		{"5", "needs a unit"},
		{"1h30", "needs a unit"},
		{"s", "is not a duration"},
		{"5 m", "is not a duration"},
		{"5m ", "is not a duration"},
		{" 5m", "is not a duration"},
		{"1.5h", "is not a duration"},
		{"-5m", "is not a duration"},
		{"+5m", "is not a duration"},
		{"5M", "is not a duration"},
		{"5min", "is not a duration"},
		{"30m1h", "is not a duration"},
		{"5s5s", "is not a duration"},
		{"1w", "is not a duration"},
		{"106751d23h47m16s854ms775us808ns", "longer than 292 years"},
		{"106752d", "longer than 292 years"},
		{"99999999999999999999ns", "longer than 292 years"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err err = {0};
		int64_t ns = 42;

		if (duration_parse(wrong[i].text, &ns, &err))
			fail_msg("\"%s\" was read as %" PRId64, wrong[i].text, ns);
		if (err.kind != ERR_INVALID || !strstr(err.text, wrong[i].says) || ns != 42)
			fail_msg("\"%s\": %s", wrong[i].text, err.text);
	}
}

static void
the_boot_clock_does_not_go_back_and_the_wall_clock_is_past_2020(void **state)
{
	int64_t before = time_boot_ns();

	(void)state;
	assert_true(time_boot_ns() >= before && before > 0);
	assert_true(time_wall_ns() > INT64_C(1577836800) * NS_PER_S);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(instants_are_written_and_read_back),
		cmocka_unit_test(every_day_from_1700_to_2200_agrees_with_the_c_library),
		cmocka_unit_test(offsets_lower_case_and_a_space_are_read),
		cmocka_unit_test(what_is_not_an_instant_is_refused),
		cmocka_unit_test(the_next_multiple_is_strictly_later_and_on_the_grid),
		cmocka_unit_test(durations_are_written_and_read_back),
		cmocka_unit_test(a_duration_may_have_more_than_the_next_unit_holds),
		cmocka_unit_test(what_is_not_a_duration_is_refused),
		cmocka_unit_test(the_boot_clock_does_not_go_back_and_the_wall_clock_is_past_2020),
	};

	return cmocka_run_group_tests_name("time", tests, NULL, NULL);
}

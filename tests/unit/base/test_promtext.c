/* tests/unit/base/test_promtext.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/promtext/promtext.h"
#include "tests/support/harness/golden.h"

/* What an exporter of two GPUs would write, and every case of escaping and of numbers. */
static void
write_all(struct buf *out, enum prom_format format)
{
	in_place(buf) struct buf set;
	struct prom p;

	buf_init(&set, 4096);
	prom_init(&p, out, format);
	prom_family(&p, "tollgate_gpu_info", PROM_GAUGE, "What the GPU is; \"always\" 1");
	for (int64_t gpu = 0; gpu < 2; gpu++) {
		buf_clear(&set);
		prom_set_label(&set, "uuid", gpu ? "GPU-1" : "GPU-0");
		prom_set_label(&set, "mig_uuid", "");
		prom_set_label(&set, "gpu_model", "NVIDIA H100 80GB HBM3");
		prom_begin(&p);
		prom_label_i64(&p, "gpu", gpu);
		prom_labels(&p, &(struct prom_set){set.data, set.len});
		prom_int(&p, 1);
	}
	prom_family(&p, "tollgate_workload_gpu_seconds_total", PROM_COUNTER,
	            "Seconds of GPU time; a \\ and a\nnewline");
	prom_begin(&p);
	prom_label(&p, "namespace", "research");
	prom_label(&p, "pod", "");
	prom_label(&p, "user", NULL);
	prom_label(&p, "state", "used");
	prom_fixed(&p, INT64_C(123456789012), 9);
	prom_begin(&p);
	prom_label(&p, "namespace", "a \"quote\", a \\ and a\nnewline");
	prom_fixed(&p, 5, 1);
	prom_begin(&p);
	prom_label(&p, "namespace", "j\xc3\xb8rgen \xf0\x9f\x98\x80 \xff \xe2\x82");
	prom_int(&p, INT64_MAX);
	prom_family(&p, "tollgate_exporter_clock_offset_seconds", PROM_GAUGE, "Without labels");
	prom_begin(&p);
	prom_fixed(&p, -1500, 3);
	prom_end(&p);
}

static void
the_text_format_is_as_agreed(void **state)
{
	in_place(buf) struct buf out;
	struct err err;

	(void)state;
	buf_init(&out, 1 << 16);
	write_all(&out, PROM_TEXT);
	if (!golden_check("promtext.prom", out.data, out.len, &err))
		fail_msg("%s", err.text);
}

static void
the_openmetrics_format_is_as_agreed(void **state)
{
	in_place(buf) struct buf out;
	struct err err;

	(void)state;
	buf_init(&out, 1 << 16);
	write_all(&out, PROM_OPENMETRICS);
	if (!golden_check("promtext.openmetrics", out.data, out.len, &err))
		fail_msg("%s", err.text);
}

/* The last line of a sample of one family, without the name. */
static void
assert_number(int64_t value, int decimals, const char *expected)
{
	in_place(buf) struct buf out;
	struct prom p;
	const char *space;

	buf_init(&out, 4096);
	prom_init(&p, &out, PROM_TEXT);
	prom_family(&p, "x", PROM_GAUGE, "X");
	prom_begin(&p);
	if (decimals < 0)
		prom_int(&p, value);
	else
		prom_fixed(&p, value, decimals);
	space = strrchr(buf_text(&out), ' ');
	assert_non_null(space);
	assert_int_equal(out.data[out.len - 1], '\n');
	out.data[out.len - 1] = '\0';
	assert_string_equal(space + 1, expected);
}

static void
numbers_are_written_exactly_with_all_their_decimals(void **state)
{
	(void)state;
	assert_number(0, -1, "0");
	assert_number(7, -1, "7");
	assert_number(10, -1, "10");
	assert_number(99, -1, "99");
	assert_number(100, -1, "100");
	assert_number(12345, -1, "12345");
	assert_number(INT64_MAX, -1, "9223372036854775807");
	assert_number(INT64_MIN, -1, "-9223372036854775808");
	assert_number(0, 9, "0.000000000");
	assert_number(1, 9, "0.000000001");
	assert_number(-1, 9, "-0.000000001");
	assert_number(1000000000, 9, "1.000000000");
	assert_number(1500000000, 9, "1.500000000");
	assert_number(10, 1, "1.0");
	assert_number(100, 1, "10.0");
	assert_number(1234, 2, "12.34");
	assert_number(1, 18, "0.000000000000000001");
	assert_number(INT64_MIN, 18, "-9.223372036854775808");
	assert_number(INT64_MAX, 9, "9223372036.854775807");
}

/* By snprintf and by hand, digit by digit. */
static const char *
slow_number(int64_t value, int decimals, char out[64])
{
	uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
	char digits[32];
	int n = snprintf(digits, sizeof(digits), "%0*llu", decimals + 1, (unsigned long long)v);

	n = snprintf(out, 64, "%s%.*s.%s", value < 0 ? "-" : "", n - decimals, digits, digits + n - decimals);
	if (decimals == 0)
		out[n - 1] = '\0';
	return out;
}

static void
numbers_of_every_length_agree_with_a_slow_writer(void **state)
{
	char slow[64];

	(void)state;
	for (int decimals = 0; decimals <= 18; decimals++)
		for (int bits = 0; bits < 63; bits++)
			for (int64_t odd = -3; odd <= 3; odd++) {
				int64_t power = INT64_C(1) << bits, ten = 1;

				for (int i = 0; i < bits % 19; i++)
					ten *= 10;
				assert_number(power + odd, decimals, slow_number(power + odd, decimals, slow));
				assert_number(ten + odd, decimals, slow_number(ten + odd, decimals, slow));
				assert_number(-power, decimals, slow_number(-power, decimals, slow));
				assert_number(ten / 700 * 100, decimals, slow_number(ten / 700 * 100, decimals, slow));
			}
}

static void
assert_overwritten(int64_t old, int64_t value, int decimals)
{
	char page[96] = "some labels} ", want[64], was[64];
	size_t before = strlen(page), len = strlen(slow_number(old, decimals, was));
	bool fits = strlen(slow_number(value, decimals, want)) == len && (old < 0) == (value < 0);

	snprintf(page + before, sizeof(page) - before, "%s\nnext{", was);
	assert_int_equal(prom_overwrite_fixed(page + before, len, old, value, decimals), fits);
	assert_memory_equal(page, "some labels} ", before);
	assert_memory_equal(page + before, fits ? want : was, len);
	assert_string_equal(page + before + len, "\nnext{");
}

static void
a_number_of_the_same_length_is_written_over_another_and_nothing_else_changes(void **state)
{
	const int64_t values[] = {0,
	                          1,
	                          9,
	                          10,
	                          99,
	                          100,
	                          4711,
	                          999999,
	                          1000000,
	                          12345678,
	                          99999999,
	                          100000000,
	                          123456789,
	                          9999999999,
	                          INT64_C(12345678901234567),
	                          INT64_C(999999999999999999),
	                          INT64_C(1000000000000000000),
	                          INT64_MAX,
	                          INT64_MIN};

	(void)state;
	for (int decimals = 0; decimals <= 18; decimals++)
		for (size_t i = 0; i < ARRAY_LEN(values); i++)
			for (size_t k = 0; k < ARRAY_LEN(values); k++) {
				assert_overwritten(values[i], values[k], decimals);
				assert_overwritten(-(values[i] + 1), values[k], decimals);
				assert_overwritten(values[i], -(values[k] + 1), decimals);
				assert_overwritten(-(values[i] + 1), -(values[k] + 1), decimals);
			}
}

static void
a_sample_of_sets_is_the_sample_of_its_labels(void **state)
{
	in_place(buf) struct buf first, second, out;
	struct prom p;

	(void)state;
	buf_init(&first, 4096);
	buf_init(&second, 4096);
	buf_init(&out, 4096);
	prom_set_label(&first, "a", "1");
	prom_set_label(&first, "b", "\"2\"");
	prom_set_label(&second, "c", "3");
	prom_init(&p, &out, PROM_TEXT);
	prom_family(&p, "x", PROM_GAUGE, "X");
	buf_clear(&out);
	prom_sample(&p, (struct prom_set[]){{first.data, first.len}, {"", 0}, {second.data, second.len}}, 3, 15, 1);
	assert_string_equal(buf_text(&out), "x{a=\"1\",b=\"\\\"2\\\"\",c=\"3\"} 1.5\n");
	assert_int_equal(p.number_len, 3);
	assert_memory_equal(out.data + p.number_at, "1.5", 3);
	buf_clear(&out);
	prom_sample(&p, NULL, 0, 0, 9);
	assert_string_equal(buf_text(&out), "x 0.000000000\n");
}

static void
labels_of_numbers_may_be_negative(void **state)
{
	in_place(buf) struct buf out;
	struct prom p;

	(void)state;
	buf_init(&out, 4096);
	prom_init(&p, &out, PROM_TEXT);
	prom_family(&p, "x", PROM_GAUGE, "X");
	prom_begin(&p);
	prom_label_i64(&p, "gi", -1);
	prom_label_i64(&p, "ci", INT64_MIN);
	prom_int(&p, 1);
	assert_non_null(strstr(buf_text(&out), "\nx{gi=\"-1\",ci=\"-9223372036854775808\"} 1\n"));
}

static void
openmetrics_is_sent_to_those_who_ask_for_it(void **state)
{
	static const struct {
		const char *name, *accept;
		enum prom_format format;
	} rows[] = {
		{"no header", NULL, PROM_TEXT},
		{"an empty header", "", PROM_TEXT},
		{"a browser", "text/html,application/xhtml+xml,*/*;q=0.8", PROM_TEXT},
		{"curl", "*/*", PROM_TEXT},
		{"Prometheus 2.42",
	         "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
	         PROM_OPENMETRICS},
		{"Prometheus 3",
	         "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1",
	         PROM_OPENMETRICS},
		{"no version named", "application/openmetrics-text", PROM_OPENMETRICS},
		{"blanks and capitals", "text/plain ; q=0.3 , Application/OpenMetrics-Text ; Version=1.0.0 ; Q=0.4",
	         PROM_OPENMETRICS},
		{"a quoted version", "application/openmetrics-text; version=\"1.0.0\"", PROM_OPENMETRICS},
		{"only the version before", "application/openmetrics-text;version=0.0.1", PROM_TEXT},
		{"plain text preferred", "application/openmetrics-text;q=0.4,text/plain;q=0.5", PROM_TEXT},
		{"refused by its weight", "application/openmetrics-text;q=0", PROM_TEXT},
		{"refused by its small weight", "application/openmetrics-text;q=0.000,text/plain", PROM_TEXT},
		{"a weight that is none", "application/openmetrics-text;q=x", PROM_TEXT},
		{"nothing but separators", ",;,;;=,", PROM_TEXT},
		{"a longer name", "application/openmetrics-textual", PROM_TEXT},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (prom_negotiate(rows[i].accept) != rows[i].format)
			fail_msg("%s", rows[i].name);
	assert_string_equal(prom_content_type(PROM_TEXT), PROM_TEXT_TYPE);
	assert_string_equal(prom_content_type(PROM_OPENMETRICS), PROM_OPENMETRICS_TYPE);
}

/* A file in a private folder and a shell command on it; what it said is in `said`. */
static int
run_on(const char *command, const char *text, size_t len, struct buf *said)
{
	char folder[] = "/tmp/test_promtext.XXXXXX";
	owned(mem) char *path = NULL, *line = NULL;
	char piece[512];
	struct err err;
	FILE *f;
	int status;

	assert_non_null(mkdtemp(folder));
	path = mem_printf("%s/metrics", folder);
	if (!file_write_atomic(path, text, len, 0600, &err))
		fail_msg("%s", err.text);
	line = mem_printf("cd %s && { %s; } 2>&1", folder, command);
	f = popen(line, "r");
	assert_non_null(f);
	while (fgets(piece, sizeof(piece), f))
		buf_str(said, piece);
	status = pclose(f);
	mem_free(line);
	line = mem_printf("rm -r %s", folder);
	assert_int_equal(system(line), 0);
	return status;
}

static bool
have_promtool(void)
{
	return system("command -v promtool >/dev/null 2>&1") == 0;
}

static void
promtool_finds_nothing_to_say_about_the_text_format(void **state)
{
	in_place(buf) struct buf out, said;

	(void)state;
	if (!have_promtool())
		skip();
	buf_init(&out, 1 << 16);
	buf_init(&said, 1 << 16);
	write_all(&out, PROM_TEXT);
	if (run_on("promtool check metrics <metrics", out.data, out.len, &said) != 0 || said.len > 0)
		fail_msg("%s", buf_text(&said));
}

/* promtool reads OpenMetrics only to make blocks of it, which needs a time on every sample. */
static void
add_times(const char *text, struct buf *out)
{
	for (; *text; text += strcspn(text, "\n") + 1) {
		buf_add(out, text, strcspn(text, "\n"));
		buf_str(out, text[0] == '#' ? "\n" : " 1700000000\n");
	}
}

static void
prometheus_reads_the_openmetrics_format(void **state)
{
	in_place(buf) struct buf out, timed, said;

	(void)state;
	if (!have_promtool())
		skip();
	buf_init(&out, 1 << 16);
	buf_init(&timed, 1 << 16);
	buf_init(&said, 1 << 16);
	write_all(&out, PROM_OPENMETRICS);
	add_times(buf_text(&out), &timed);
	if (run_on("promtool tsdb create-blocks-from openmetrics metrics data && promtool tsdb list data", timed.data,
	           timed.len, &said) != 0)
		fail_msg("%s", buf_text(&said));
	/* the number of samples in the block it made */
	assert_non_null(strstr(buf_text(&said), " 6 "));
}

static void
a_histogram_has_buckets_a_sum_and_a_count(void **state)
{
	const enum prom_format formats[] = {PROM_TEXT, PROM_OPENMETRICS};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		in_place(buf) struct buf out, wanted;
		struct prom p;

		buf_init(&out, 4096);
		buf_init(&wanted, 4096);
		prom_init(&p, &out, formats[i]);
		prom_family(&p, "wait_seconds", PROM_HISTOGRAM, "How long.");
		prom_begin_part(&p, "_bucket");
		prom_label(&p, "le", "0.1");
		prom_int(&p, 2);
		prom_begin_part(&p, "_bucket");
		prom_label(&p, "le", "+Inf");
		prom_int(&p, 3);
		prom_begin_part(&p, "_sum");
		prom_fixed(&p, 1500, 3);
		prom_begin_part(&p, "_count");
		prom_int(&p, 3);
		buf_printf(&wanted,
		           "# HELP wait_seconds How long.\n# TYPE wait_seconds histogram\n%s"
		           "wait_seconds_bucket{le=\"0.1\"} 2\nwait_seconds_bucket{le=\"+Inf\"} 3\n"
		           "wait_seconds_sum 1.500\nwait_seconds_count 3\n",
		           formats[i] == PROM_TEXT ? "" : "# UNIT wait_seconds seconds\n");
		assert_string_equal(buf_text(&out), buf_text(&wanted));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_histogram_has_buckets_a_sum_and_a_count),
		cmocka_unit_test(the_text_format_is_as_agreed),
		cmocka_unit_test(the_openmetrics_format_is_as_agreed),
		cmocka_unit_test(numbers_are_written_exactly_with_all_their_decimals),
		cmocka_unit_test(numbers_of_every_length_agree_with_a_slow_writer),
		cmocka_unit_test(a_number_of_the_same_length_is_written_over_another_and_nothing_else_changes),
		cmocka_unit_test(a_sample_of_sets_is_the_sample_of_its_labels),
		cmocka_unit_test(labels_of_numbers_may_be_negative),
		cmocka_unit_test(openmetrics_is_sent_to_those_who_ask_for_it),
		cmocka_unit_test(promtool_finds_nothing_to_say_about_the_text_format),
		cmocka_unit_test(prometheus_reads_the_openmetrics_format),
	};

	return cmocka_run_group_tests_name("promtext", tests, NULL, NULL);
}

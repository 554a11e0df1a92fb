/* tests/unit/conf/test_conf.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/conf/conf.h"
#include "common/base/time.h"

struct options {
	char *listen;
	char *token_file;
	int64_t workers;
	int64_t interval_ns;
	int64_t spool_bytes;
	bool compress;
	bool processes;
	int source;
	int64_t cap;
};

static const char *const sources[] = {"nvml", "dcgm", "auto", NULL};

static const struct conf_option table[] = {
	{"listen", CONF_STRING, offsetof(struct options, listen), "127.0.0.1:9401", 0, 0, NULL, "",
         "Address and port to listen on"},
	{"token-file", CONF_PATH, offsetof(struct options, token_file), NULL, 0, 0, NULL, NULL,
         "File that holds the node's token"},
	{"workers", CONF_INT, offsetof(struct options, workers), "4", 1, 64, NULL, "threads",
         "How many requests are answered at the same time"},
	{"sample-interval", CONF_DURATION, offsetof(struct options, interval_ns), "1s", 100 * NS_PER_MS, NS_PER_MIN,
         NULL, "",
         "How often the GPUs are read; every tick reads each GPU, each MIG instance and each process, so that a shorter one costs more"},
	{"spool-max-bytes", CONF_BYTES, offsetof(struct options, spool_bytes), "1GiB", 1 << 20, INT64_MAX, NULL,
         "bytes", "Size of the spool"},
	{"compress", CONF_BOOL, offsetof(struct options, compress), "true", 0, 0, NULL, "", "Compress what is sent"},
	{"processes", CONF_BOOL, offsetof(struct options, processes), "false", 0, 0, NULL, "",
         "Export series per process"},
	{"source", CONF_ENUM, offsetof(struct options, source), "auto", 0, 0, sources, "",
         "Where the values come from"},
	{"cap", CONF_INT, offsetof(struct options, cap), NULL, 0, 10, NULL, "", "A number that may stay unset"},
};
static const struct conf_program program = {
	.name = "tollgate-test", .summary = "Does nothing, for tests.", .options = table, .count = ARRAY_LEN(table)};

/* conf_load with at most eight words after the program's name. */
struct run {
	struct options o;
	enum conf_action action;
	bool check;
	struct buf text;
	struct err err;
};

static void
run_fini(struct run *r)
{
	conf_free(&program, &r->o);
	buf_fini(&r->text);
}

static bool
run(struct run *r, const char *const *words)
{
	char *argv[10] = {NULL};
	char *own[10] = {NULL};
	int argc = 0;
	bool ok;

	memset(r, 0, sizeof(*r));
	buf_init(&r->text, 1 << 16);
	argv[argc] = own[argc] = mem_strdup("tollgate-test");
	for (argc = 1; words && *words; words++, argc++)
		argv[argc] = own[argc] = mem_strdup(*words);
	ok = conf_load(&program, argc, argv, &r->o, &r->action, &r->check, &r->text, &r->err);
	for (int i = 0; i < argc; i++)
		mem_free(own[i]);
	return ok;
}

#define RUN(r, ...) run((r), (const char *const[]){__VA_ARGS__, NULL})

static void
assert_defaults(const struct options *o)
{
	assert_string_equal(o->listen, "127.0.0.1:9401");
	assert_null(o->token_file);
	assert_int_equal(o->workers, 4);
	assert_int_equal(o->interval_ns, NS_PER_S);
	assert_int_equal(o->spool_bytes, 1 << 30);
	assert_true(o->compress);
	assert_false(o->processes);
	assert_int_equal(o->source, 2);
	assert_int_equal(o->cap, 0);
}

static void
without_anything_the_defaults_hold(void **state)
{
	in_place(run) struct run r;

	(void)state;
	if (!run(&r, NULL))
		fail_msg("%s", r.err.text);
	assert_int_equal(r.action, CONF_RUN);
	assert_false(r.check);
	assert_int_equal(r.text.len, 0);
	assert_defaults(&r.o);
}

static void
flags_are_read_in_both_spellings(void **state)
{
	in_place(run) struct run r;

	(void)state;
	if (!RUN(&r, "--listen=[::1]:1", "--token-file", "/x y", "--no-compress", "--processes", "--source=dcgm",
	         "--workers", "64"))
		fail_msg("%s", r.err.text);
	assert_string_equal(r.o.listen, "[::1]:1");
	assert_string_equal(r.o.token_file, "/x y");
	assert_false(r.o.compress);
	assert_true(r.o.processes);
	assert_int_equal(r.o.source, 1);
	assert_int_equal(r.o.workers, 64);
}

static void
the_last_of_repeated_flags_holds(void **state)
{
	in_place(run) struct run r;

	(void)state;
	if (!RUN(&r, "--sample-interval=2s", "--sample-interval=1m", "--compress=false", "--compress", "--token-file=a",
	         "--token-file=", "-n"))
		fail_msg("%s", r.err.text);
	assert_int_equal(r.o.interval_ns, NS_PER_MIN);
	assert_true(r.o.compress);
	assert_null(r.o.token_file);
	assert_true(r.check);
}

static void
a_wrong_command_line_is_refused_with_the_option_the_value_and_the_limit(void **state)
{
	static const struct {
		const char *name, *words[4], *error;
	} rows[] = {
		{"an unknown flag with a neighbour",
	         {"--lisen=x"},
	         "command line: unknown option --lisen; did you mean --listen?"},
		{"an unknown builtin with a neighbour",
	         {"--print_config"},
	         "command line: unknown option --print_config; did you mean --print-config?"},
		{"an unknown flag", {"--zebra"}, "command line: unknown option --zebra; --help lists them"},
		{"a flag without its value", {"--listen"}, "command line: --listen needs a value"},
		{"a flag that would swallow the next",
	         {"--listen", "--compress"},
	         "command line: --listen needs a value"},
		{"a leftover word",
	         {"--compress", "false"},
	         "command line: unexpected word 'false'; options begin with --"},
		{"a lone --", {"--"}, "command line: unexpected word '--'; options begin with --"},
		{"a short flag that does not exist",
	         {"-x"},
	         "command line: unexpected word '-x'; options begin with --"},
		{"no- with a value", {"--no-compress=true"}, "command line: --no-compress takes no value"},
		{"no- of something that is no switch",
	         {"--no-listen"},
	         "command line: unknown option --no-listen; did you mean --listen?"},
		{"a builtin with a value", {"--check=yes"}, "command line: --check takes no value"},
		{"a switch that is neither",
	         {"--compress=yes"},
	         "command line: --compress: 'yes' is neither true nor false"},
		{"below the minimum",
	         {"--sample-interval=99ms"},
	         "command line: --sample-interval: 99ms is below the minimum of 100ms"},
		{"above the maximum",
	         {"--sample-interval", "61s"},
	         "command line: --sample-interval: 61s is above the maximum of 1m"},
		{"too few", {"--workers=0"}, "command line: --workers: 0 is below the minimum of 1"},
		{"a number that is none", {"--workers=four"}, "command line: --workers: 'four' is not a whole number"},
		{"an empty number", {"--workers="}, "command line: --workers: '' is not a whole number"},
		{"a size below the minimum",
	         {"--spool-max-bytes=1kB"},
	         "command line: --spool-max-bytes: 1kB is below the minimum of 1MiB"},
		{"a size of unknown unit",
	         {"--spool-max-bytes=1Gb"},
	         "command line: --spool-max-bytes: '1Gb' has an unknown unit; the units are B, kB, MB, GB, TB, KiB, MiB, GiB and TiB"},
		{"a choice that is none",
	         {"--source=rocm"},
	         "command line: --source: 'rocm' is none of: nvml, dcgm, auto"},
		{"nothing where there is a default", {"--listen="}, "command line: --listen: the value is empty"},
		{"control characters",
	         {"--token-file=a\nb"},
	         "command line: --token-file: 'a b' is not clean UTF-8 text"},
		{"a file that is not there",
	         {"--config=/nonexistent/x"},
	         "--config: cannot open /nonexistent/x: No such file or directory"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(run) struct run r;

		if (run(&r, rows[i].words))
			fail_msg("%s: accepted", rows[i].name);
		if (strcmp(r.err.text, rows[i].error) != 0)
			fail_msg("%s: \"%s\" instead of \"%s\"", rows[i].name, r.err.text, rows[i].error);
	}
}

static void
a_duration_without_unit_is_refused(void **state)
{
	in_place(run) struct run r;

	(void)state;
	assert_false(RUN(&r, "--sample-interval=60"));
	assert_non_null(strstr(r.err.text, "command line: --sample-interval: "));
	assert_non_null(strstr(r.err.text, "60"));
}

/* A file in a private folder, gone after the test. */
struct file {
	char folder[32];
	char path[64];
};

static void
file_fini(struct file *f)
{
	unlink(f->path);
	rmdir(f->folder);
}

static void
file_make(struct file *f, const char *text)
{
	struct err err;

	snprintf(f->folder, sizeof(f->folder), "/tmp/test_conf.XXXXXX");
	assert_non_null(mkdtemp(f->folder));
	snprintf(f->path, sizeof(f->path), "%s/c.yaml", f->folder);
	if (!file_write_atomic(f->path, text, strlen(text), 0600, &err))
		fail_msg("%s", err.text);
}

static void
a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default(void **state)
{
	in_place(file) struct file f;
	in_place(run) struct run r;

	(void)state;
	file_make(&f, "workers: 10\nsample_interval: 10s\nspool_max_bytes: 10MiB\nsource: nvml\nprocesses: true\n");
	setenv("TOLLGATE_WORKERS", "20", 1);
	setenv("TOLLGATE_SAMPLE_INTERVAL", "20s", 1);
	setenv("TOLLGATE_STATE", "used by others", 1);
	setenv("TOLLGATE_WORKER", "not an option of ours either", 1);
	bool ok = RUN(&r, "--workers=30", "--config", f.path);
	unsetenv("TOLLGATE_WORKERS");
	unsetenv("TOLLGATE_SAMPLE_INTERVAL");
	unsetenv("TOLLGATE_STATE");
	unsetenv("TOLLGATE_WORKER");
	if (!ok)
		fail_msg("%s", r.err.text);
	assert_int_equal(r.o.workers, 30);
	assert_int_equal(r.o.interval_ns, 20 * NS_PER_S);
	assert_int_equal(r.o.spool_bytes, 10 << 20);
	assert_int_equal(r.o.source, 0);
	assert_true(r.o.processes);
	assert_string_equal(r.o.listen, "127.0.0.1:9401");
}

static void
a_wrong_value_in_the_environment_is_refused_even_where_a_flag_overrides_it(void **state)
{
	in_place(run) struct run r;

	(void)state;
	setenv("TOLLGATE_WORKERS", "65", 1);
	bool ok = RUN(&r, "--workers=30");
	unsetenv("TOLLGATE_WORKERS");
	assert_false(ok);
	assert_string_equal(r.err.text, "TOLLGATE_WORKERS in the environment: 65 is above the maximum of 64");
}

static void
a_wrong_file_is_refused_with_file_and_line(void **state)
{
	static const struct {
		const char *name, *text, *error;
	} rows[] = {
		{"an unknown key", "listen: a:1\nwokers: 3\n",
	         "c.yaml:2: unknown key 'wokers'; did you mean 'workers'?"},
		{"the spelling of the flag", "sample-interval: 1s\n",
	         "c.yaml:1: unknown key 'sample-interval'; did you mean 'sample_interval'?"},
		{"a value below its range", "\n\nworkers: 0\n", "c.yaml:3: workers: 0 is below the minimum of 1"},
		{"a value above its range", "workers: 65\n", "c.yaml:1: workers: 65 is above the maximum of 64"},
		{"a list", "workers: [1]\n", "c.yaml:1: workers must be a single value, here it is a list"},
		{"no value where there is a default", "listen:\n", "c.yaml:1: listen has no value"},
		{"a key given twice", "workers: 1\nworkers: 2\n",
	         "c.yaml:2: key 'workers' appears twice in one map, first on line 1"},
		{"a list of options", "- workers: 1\n", "c.yaml:1: a configuration must be a map, here it is a list"},
		{"a switch in old YAML", "compress: on\n", "c.yaml:1: compress: 'on' is neither true nor false"},
		{"not YAML", "workers: 'x\n",
	         "c.yaml:2: found unexpected end of stream, while scanning a quoted scalar that began on line 1"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct options o = {.listen = NULL};
		struct err err;

		if (!conf_set_defaults(&program, &o, &err))
			fail_msg("%s", err.text);
		if (conf_load_text(&program, "c.yaml", rows[i].text, strlen(rows[i].text), &o, &err))
			fail_msg("%s: accepted", rows[i].name);
		if (strcmp(err.text, rows[i].error) != 0)
			fail_msg("%s: \"%s\" instead of \"%s\"", rows[i].name, err.text, rows[i].error);
		conf_free(&program, &o);
	}
}

static void
help_version_and_sample_are_written_instead_of_running(void **state)
{
	static const char *const flags[][2] = {
		{"--help", "Usage: tollgate-test [OPTION]..."},
		{"--version", "tollgate-test "},
		{"--print-config", "# Configuration of tollgate-test"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		in_place(run) struct run r;

		/* nothing after it is looked at, and no file either */
		if (!RUN(&r, "--config=/nonexistent/x", flags[i][0], "--no-such-flag"))
			fail_msg("%s: %s", flags[i][0], r.err.text);
		assert_int_equal(r.action, CONF_EXIT_OK);
		assert_true(strncmp(buf_text(&r.text), flags[i][1], strlen(flags[i][1])) == 0);
	}
}

static void
help_names_every_option_within_100_columns(void **state)
{
	in_place(buf) struct buf out;
	const char *at;

	(void)state;
	buf_init(&out, 1 << 16);
	conf_help(&program, &out);
	for (size_t i = 0; i < program.count; i++)
		assert_non_null(strstr(buf_text(&out), table[i].name));
	assert_non_null(strstr(buf_text(&out), "--[no-]compress"));
	assert_non_null(strstr(buf_text(&out), "--source=nvml|dcgm|auto"));
	assert_non_null(strstr(buf_text(&out), "[1s; 100ms to 1m]"));
	assert_non_null(strstr(buf_text(&out), "[4 threads; 1 to 64]"));
	assert_non_null(strstr(buf_text(&out), "[1GiB; 1MiB or more]"));
	for (at = buf_text(&out); *at; at += strcspn(at, "\n") + 1) {
		if (strcspn(at, "\n") > 100)
			fail_msg("a line of %zu columns: %.*s", strcspn(at, "\n"), (int)strcspn(at, "\n"), at);
		if (strcspn(at, "\n") > 0)
			assert_true(at[strcspn(at, "\n") - 1] != ' ');
	}
}

/* The sample without the '#' in front of its keys. */
static void
uncomment(const char *text, struct buf *out)
{
	for (; *text; text += strcspn(text, "\n") + 1) {
		const char *line = text[0] == '#' && text[1] >= 'a' && text[1] <= 'z' ? text + 1 : text;

		buf_add(out, line, strcspn(line, "\n") + 1);
	}
}

static void
the_sample_loads_to_the_defaults_as_it_is_and_uncommented(void **state)
{
	in_place(buf) struct buf sample, bare;
	struct options as_is = {.cap = 0},
		       uncommented = {.listen = mem_strdup("other"), .token_file = mem_strdup("other"), .cap = 3};
	struct err err;
	size_t keys = 0;

	(void)state;
	buf_init(&sample, 1 << 16);
	buf_init(&bare, 1 << 16);
	conf_sample(&program, &sample);
	if (!conf_set_defaults(&program, &as_is, &err) ||
	    !conf_load_text(&program, "sample", sample.data, sample.len, &as_is, &err))
		fail_msg("%s", err.text);
	assert_defaults(&as_is);
	conf_free(&program, &as_is);

	uncomment(buf_text(&sample), &bare);
	for (const char *at = buf_text(&bare); *at; at += strcspn(at, "\n") + 1)
		keys += at[0] >= 'a' && at[0] <= 'z';
	assert_int_equal(keys, program.count);
	/* over other values, without the defaults first */
	if (!conf_load_text(&program, "sample", bare.data, bare.len, &uncommented, &err))
		fail_msg("%s\n%s", err.text, buf_text(&bare));
	assert_defaults(&uncommented);
	conf_free(&program, &uncommented);
}

static void
sizes_are_read_in_both_systems_and_nothing_else(void **state)
{
	static const struct {
		const char *text;
		int64_t bytes; /* -1: refused */
	} rows[] = {
		{"0", 0},
		{"4096", 4096},
		{"4096B", 4096},
		{"1kB", 1000},
		{"1KiB", 1024},
		{"500MB", 500000000},
		{"512MiB", 512 << 20},
		{"1GiB", 1 << 30},
		{"2TB", INT64_C(2000000000000)},
		{"1TiB", INT64_C(1) << 40},
		{"9223372036854775807", INT64_MAX},
		{"8388607TiB", INT64_C(8388607) << 40},
		{"8388608TiB", -1},
		{"9223372036854775808", -1},
		{"", -1},
		{"MiB", -1},
		{"1.5GiB", -1},
		{"-1", -1},
		{"1 GiB", -1},
		{"1gib", -1},
		{"1GiB ", -1},
		{"010", -1},
		{"1Kib", -1},
		{"99999999999999999999999999", -1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err err;
		int64_t v = -1;
		bool ok = bytes_parse(rows[i].text, &v, &err);

		if (ok != (rows[i].bytes >= 0) || (ok && v != rows[i].bytes))
			fail_msg("'%s': %s %" PRId64, rows[i].text, ok ? "read as" : "refused", v);
	}
}

static void
a_size_is_shown_in_the_largest_unit_that_divides_it(void **state)
{
	char text[BYTES_TEXT_SIZE];

	(void)state;
	assert_string_equal(bytes_format(0, text), "0");
	assert_string_equal(bytes_format(1500, text), "1500");
	assert_string_equal(bytes_format(1536, text), "1536");
	assert_string_equal(bytes_format(2048, text), "2KiB");
	assert_string_equal(bytes_format(INT64_C(1) << 30, text), "1GiB");
	assert_string_equal(bytes_format(INT64_C(3) << 50, text), "3072TiB");
	assert_string_equal(bytes_format(INT64_MIN, text), "-8388608TiB");
}

static void
an_address_is_a_host_and_a_port(void **state)
{
	static const struct {
		const char *text, *host;
		int port; /* -1: refused */
	} rows[] = {
		{"127.0.0.1:9401", "127.0.0.1", 9401},
		{"[::1]:9401", "::1", 9401},
		{"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
		{"localhost:0", "localhost", 0},
		{"gpu-node_1.x:65535", "gpu-node_1.x", 65535},
		{"", NULL, -1},
		{"127.0.0.1", NULL, -1},
		{":9401", NULL, -1},
		{"127.0.0.1:", NULL, -1},
		{"127.0.0.1:65536", NULL, -1},
		{"127.0.0.1:-1", NULL, -1},
		{"127.0.0.1:0x50", NULL, -1},
		{"127.0.0.1:080", NULL, -1},
		{"::1:9401", NULL, -1},
		{"[::1]", NULL, -1},
		{"[::1]9401", NULL, -1},
		{"[::1:9401", NULL, -1},
		{"[]:1", NULL, -1},
		{"a b:1", NULL, -1},
		{"a/b:1", NULL, -1},
		{"a-name-that-is-longer-than-the-room-we-give-it:1", NULL, -1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char host[32];
		uint16_t port = 0;
		struct err err;
		bool ok = addr_parse(rows[i].text, host, sizeof(host), &port, &err);

		if (ok != (rows[i].port >= 0) || (ok && (port != rows[i].port || strcmp(host, rows[i].host) != 0)))
			fail_msg("'%s': %s", rows[i].text, ok ? "accepted" : err.text);
		if (!ok)
			assert_non_null(strstr(err.text, rows[i].text));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_anything_the_defaults_hold),
		cmocka_unit_test(flags_are_read_in_both_spellings),
		cmocka_unit_test(the_last_of_repeated_flags_holds),
		cmocka_unit_test(a_wrong_command_line_is_refused_with_the_option_the_value_and_the_limit),
		cmocka_unit_test(a_duration_without_unit_is_refused),
		cmocka_unit_test(a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default),
		cmocka_unit_test(a_wrong_value_in_the_environment_is_refused_even_where_a_flag_overrides_it),
		cmocka_unit_test(a_wrong_file_is_refused_with_file_and_line),
		cmocka_unit_test(help_version_and_sample_are_written_instead_of_running),
		cmocka_unit_test(help_names_every_option_within_100_columns),
		cmocka_unit_test(the_sample_loads_to_the_defaults_as_it_is_and_uncommented),
		cmocka_unit_test(sizes_are_read_in_both_systems_and_nothing_else),
		cmocka_unit_test(a_size_is_shown_in_the_largest_unit_that_divides_it),
		cmocka_unit_test(an_address_is_a_host_and_a_port),
	};

	return cmocka_run_group_tests_name("conf", tests, NULL, NULL);
}

/* tests/unit/quota/test_decision_ask.c - requests for capacity as clients write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "aggregator/core/quota/book/decision_ask.h"
#include "common/base/time.h"

#define NOW_NS (INT64_C(1800000000) * NS_PER_S)
#define BASE "\"request_id\":\"r1\",\"workspace\":\"acme/prod\""

static bool
read_text(const char *members, const char *tenant, struct decision_body *b, struct err *err)
{
	char text[16384];
	owned(json) json_t *doc = NULL;

	snprintf(text, sizeof(text), "{%s}", members);
	assert_true(json_parse("body", text, strlen(text), &doc, err));
	return decision_body_read(doc, tenant, NOW_NS, b, err);
}

static void
what_clients_write_is_what_the_book_reads(void **state)
{
	static const struct {
		const char *name, *members, *tenant, *request;
	} rows[] = {
		{"whole GPUs", BASE ",\"gpus\":8", NULL, "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":8}"},
		{"instances of a profile", BASE ",\"profile\":\"1g.10gb\",\"count\":2", NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"profile\":\"1g.10gb\",\"count\":2}"},
		{"replicas", BASE ",\"replicas\":1,\"of\":4", NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"replicas\":1,\"of\":4}"},
		{"a tenant's bare workspace", "\"request_id\":\"r1\",\"workspace\":\"prod\",\"gpus\":1", "acme",
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1}"},
		{"names, priority and preemption",
	         BASE
	         ",\"gpus\":1,\"preemptible\":false,\"gpu_model\":\"H100\",\"cluster\":\"c\",\"priority_class\":\"high\"",
	         NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1,\"preemptible\":false,\"cluster\":\"c\",\"model\":\"H100\",\"class\":"
	         "\"high\"}"},
		{"durations are seconds, and ends are moments",
	         BASE ",\"gpus\":1,\"expected_duration\":\"2h\",\"expires\":\"30m\"", NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1,\"expected_s\":7200,\"expires_in_ns\":1800000000000}"},
		{"cores, memory and storage", BASE ",\"gpus\":1,\"cpu\":\"500m\",\"memory\":\"2Gi\",\"storage\":\"1T\"",
	         NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1,\"cpu_millis\":500,\"memory_bytes\":2147483648,\"storage_bytes\":"
	         "1000000000000}"},
		{"the age of a request in its scheduler's queue",
	         BASE ",\"gpus\":1,\"queued_since\":\"2026-11-01T00:00:00Z\"", NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1,\"queued_since_ns\":1793491200000000000}"},
		{"the scheduler's reason", BASE ",\"gpus\":1,\"reason\":\"Resources\"", NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1,\"reason\":\"Resources\"}"},
		{"a plain number of cores", BASE ",\"gpus\":1,\"cpu\":4", NULL,
	         "{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":1,\"cpu_millis\":4000}"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(decision_body) struct decision_body b = {0};
		struct err err = {0};

		if (!read_text(rows[i].members, rows[i].tenant, &b, &err))
			fail_msg("%s: %s", rows[i].name, err.text);
		if (strcmp(buf_text(&b.request), rows[i].request) != 0)
			fail_msg("%s: %s", rows[i].name, buf_text(&b.request));
	}
}

static void
what_is_wrong_is_named(void **state)
{
	static const struct {
		const char *members, *tenant, *blamed;
		enum err_kind kind;
	} rows[] = {
		{"\"workspace\":\"a/b\",\"gpus\":1", NULL, "request_id", ERR_INVALID},
		{"\"request_id\":\"-x\",\"workspace\":\"a/b\",\"gpus\":1", NULL, "request_id", ERR_INVALID},
		{"\"request_id\":\"a b\",\"workspace\":\"a/b\",\"gpus\":1", NULL, "request_id", ERR_INVALID},
		{"\"request_id\":\"r\",\"gpus\":1", NULL, "workspace", ERR_INVALID},
		{"\"request_id\":\"r\",\"workspace\":\"prod\",\"gpus\":1", NULL, "workspace", ERR_INVALID},
		{BASE ",\"gpus\":1", "globex", "workspace", ERR_MISSING},
		{BASE ",\"gpus\":1", "acm", "workspace", ERR_MISSING},
		{BASE, NULL, "gpus", ERR_INVALID},
		{BASE ",\"gpus\":1,\"profile\":\"x\"", NULL, "gpus", ERR_INVALID},
		{BASE ",\"gpus\":0", NULL, "gpus", ERR_INVALID},
		{BASE ",\"gpus\":\"8\"", NULL, "gpus", ERR_INVALID},
		{BASE ",\"gpus\":1,\"count\":2", NULL, "count", ERR_INVALID},
		{BASE ",\"replicas\":1", NULL, "of:", ERR_INVALID},
		{BASE ",\"gpus\":1,\"of\":2", NULL, "of:", ERR_INVALID},
		{BASE ",\"gpus\":1,\"priority\":1,\"priority_class\":\"x\"", NULL, "priority", ERR_INVALID},
		{BASE ",\"gpus\":1,\"priority\":1", "acme", "priority", ERR_INVALID},
		{BASE ",\"gpus\":1,\"reason\":\"Resources\"", "acme", "reason", ERR_INVALID},
		{BASE ",\"gpus\":1,\"reason\":\"\"", NULL, "reason", ERR_INVALID},
		{BASE
	         ",\"gpus\":1,\"reason\":"
	         "\"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
	         "01234567890123456789012345678\"",
	         NULL, "reason: it has 129 bytes", ERR_INVALID},
		{BASE ",\"gpus\":1,\"preemptible\":1", NULL, "preemptible", ERR_INVALID},
		{BASE ",\"gpus\":1,\"expected_duration\":\"soon\"", NULL, "expected_duration", ERR_INVALID},
		{BASE ",\"gpus\":1,\"expires\":\"2020-01-01T00:00:00Z\"", NULL, "expires", ERR_INVALID},
		{BASE ",\"gpus\":1,\"queued_since\":\"2026-11-01T00:00:00Z\"", "acme", "queued_since", ERR_INVALID},
		{BASE ",\"gpus\":1,\"queued_since\":\"1h\"", NULL, "queued_since", ERR_INVALID},
		{BASE ",\"gpus\":1,\"queued_since\":1", NULL, "queued_since", ERR_INVALID},
		{BASE ",\"gpus\":1,\"cpu\":\"4Gi\"", NULL, "cpu", ERR_INVALID},
		{BASE ",\"gpus\":1,\"memory\":\"500m\"", NULL, "memory", ERR_INVALID},
		{BASE ",\"gpus\":1,\"memory\":\"99999999999999999999\"", NULL, "memory", ERR_INVALID},
		{BASE ",\"gpus\":1,\"storage\":\"1048577Ti\"", NULL, "storage", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workload\":{}", NULL, "workload", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workload\":{\"pod\":\"p\"}", NULL, "workload", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workload\":{\"pod_uid\":\"\"}", NULL, "workload", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":\"u\"", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[7]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"u\",\"a b\"]", NULL, "\"a b\"", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"claim:\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"slurm:\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"slurm:7.\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"slurm:7.x\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"slurm:7_3\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workloads\":[\"pod:u\"]", NULL, "workloads", ERR_INVALID},
		{BASE ",\"gpus\":1,\"colour\":\"red\"", NULL, "colour", ERR_INVALID},
		{BASE ",\"gpus\":1,\"workload\":{\"namespace\":\"n\",\"pod\":\"p\",\"user\":\"u\"}", NULL,
	         "user says whose it is", ERR_INVALID},
		{"\"request_id\":\"r\",\"gpus\":1,\"workload\":{\"slurm_job\":\"7\"}", NULL, "slurm_account",
	         ERR_INVALID},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(decision_body) struct decision_body b = {0};
		struct err err = {0};

		if (read_text(rows[i].members, rows[i].tenant, &b, &err) || err.kind != rows[i].kind ||
		    !strstr(err.text, rows[i].blamed))
			fail_msg("%s: %s", rows[i].members, err.text);
	}
}

static void
the_same_request_has_the_same_digest_however_it_is_spelt(void **state)
{
	in_place(decision_body) struct decision_body a = {0}, b = {0}, c = {0};
	struct err err = {0};

	(void)state;
	assert_true(read_text(BASE ",\"gpus\":1,\"expires\":\"1h\"", NULL, &a, &err));
	assert_true(
		read_text("\"expires\":\"1h\" , \"gpus\": 1, \"workspace\":\"acme\\u002fprod\",\"request_id\":\"r1\"",
	                  NULL, &b, &err));
	assert_true(read_text(BASE ",\"gpus\":2,\"expires\":\"1h\"", NULL, &c, &err));
	assert_memory_equal(a.digest, b.digest, SHA256_SIZE);
	assert_memory_not_equal(a.digest, c.digest, SHA256_SIZE);
}

static void
a_workload_has_no_workspace_until_it_is_placed(void **state)
{
	in_place(decision_body) struct decision_body b = {0};
	struct err err = {0};

	(void)state;
	assert_true(read_text(
		"\"request_id\":\"r\",\"gpus\":1,\"workload\":{\"namespace\":\"n\",\"labels\":{\"b\":\"2\",\"a\":\"1\"}}",
		NULL, &b, &err));
	assert_string_equal(b.workspace, "");
	assert_string_equal(b.holder.ns, "n");
	assert_string_equal(b.holder.labels, "a=1,b=2");
	assert_null(b.workload.namespace); /* telemetry does not know it by that alone */
	assert_false(decision_body_no_workspace(&b, &err));
	assert_string_equal(err.text, "workload: there is no workspace for namespace \"n\", labels \"a=1,b=2\"");
	assert_true(decision_body_place(&b, "acme/prod", &err));
	assert_string_equal(b.key, "acme/r");
	assert_string_equal(buf_text(&b.request), "{\"id\":\"acme/r\",\"workspace\":\"acme/prod\",\"gpus\":1}");
}

static void
workloads_are_counted_and_measured(void **state)
{
	in_place(buf) struct buf text = {0};
	struct err err = {0};

	(void)state;
	buf_init(&text, 1u << 20);
	for (int extra = 0; extra < 3; extra++) {
		in_place(decision_body) struct decision_body b = {0};
		int count = LIMIT_WORKLOADS + (extra == 1), length = LIMIT_WORKLOAD + (extra == 2);

		buf_clear(&text);
		buf_str(&text, BASE ",\"gpus\":1,\"workloads\":[");
		for (int i = 0; i < count; i++)
			buf_printf(&text, "%s\"slurm:%0*d\"", i > 0 ? "," : "", length - 6, i);
		buf_char(&text, ']');
		assert_int_equal(read_text(buf_text(&text), NULL, &b, &err), extra == 0);
		assert_int_equal(b.workload.list != NULL, extra == 0);
	}
}

static bool
read_adopted(const char *members, struct decision_body *b, struct err *err)
{
	char text[1024];
	owned(json) json_t *doc = NULL;

	snprintf(text, sizeof(text), "{" BASE ",\"gpus\":2%s}", members);
	assert_true(json_parse("body", text, strlen(text), &doc, err));
	return decision_adoption_read(doc, NOW_NS, b, err);
}

static void
work_that_runs_already_is_an_adopt_event_and_another_request_than_one_to_be_decided(void **state)
{
	in_place(decision_body) struct decision_body a = {0}, b = {0}, c = {0}, d = {0};
	struct err err = {0};

	(void)state;
	assert_true(read_adopted(",\"started\":\"2026-11-01T00:00:00Z\",\"parts\":[{\"node\":\"n1\",\"gpu\":\"G\"},"
	                         "{\"count\":1,\"node\":\"n2\"}]",
	                         &a, &err));
	assert_string_equal(
		buf_text(&a.request),
		"{\"id\":\"acme/r1\",\"workspace\":\"acme/prod\",\"gpus\":2,\"started_ns\":1793491200000000000,"
		"\"parts\":[{\"node\":\"n1\",\"gpu\":\"G\",\"count\":1},{\"node\":\"n2\",\"count\":1}]}");
	assert_true(read_adopted("", &b, &err));
	assert_true(read_text(BASE ",\"gpus\":2", NULL, &c, &err));
	assert_string_equal(buf_text(&b.request), buf_text(&c.request));
	assert_memory_not_equal(b.digest, c.digest, SHA256_SIZE);
	assert_false(read_text(BASE ",\"gpus\":2,\"parts\":[]", NULL, &d, &err));
	assert_non_null(strstr(err.text, "parts"));
}

static void
what_is_wrong_with_parts_is_named(void **state)
{
	static const struct {
		const char *members, *blamed;
	} rows[] = {
		{",\"started\":\"soon\"", "started: \"soon\""},
		{",\"parts\":{}", "parts: it is a list"},
		{",\"parts\":[1]", "part 0"},
		{",\"parts\":[{\"node\":\"n\"},{\"gpu\":\"G\"}]", "part 1 has a node"},
		{",\"parts\":[{\"node\":\"n\",\"gpu\":1}]", "the gpu of part 0"},
		{",\"parts\":[{\"node\":\"n\",\"count\":0}]", "the count of part 0"},
		{",\"parts\":[{\"node\":\"n\",\"count\":\"1\"}]", "the count of part 0"},
		{",\"parts\":[{\"node\":\"n\",\"slot\":1}]", "part 0 has node, gpu and count"},
		{",\"parts\":[{\"node\":\"n\",\"count\":3}]", "they have 3 devices, and gpus is 2"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(decision_body) struct decision_body b = {0};
		struct err err = {0};

		if (read_adopted(rows[i].members, &b, &err) || err.kind != ERR_INVALID ||
		    !strstr(err.text, rows[i].blamed))
			fail_msg("%s: %s", rows[i].members, err.text);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_clients_write_is_what_the_book_reads),
		cmocka_unit_test(what_is_wrong_is_named),
		cmocka_unit_test(a_workload_has_no_workspace_until_it_is_placed),
		cmocka_unit_test(workloads_are_counted_and_measured),
		cmocka_unit_test(work_that_runs_already_is_an_adopt_event_and_another_request_than_one_to_be_decided),
		cmocka_unit_test(what_is_wrong_with_parts_is_named),
		cmocka_unit_test(the_same_request_has_the_same_digest_however_it_is_spelt),
	};

	return cmocka_run_group_tests_name("decision_ask", tests, NULL, NULL);
}

/* tests/unit/metering/test_events.c - CloudEvents of other meters: what is taken, what is refused and for which field. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/metering/events.h"
#include "common/base/time.h"

#define NOW INT64_C(1794787200000000000) /* 2026-11-16T00:00:00Z */
#define HEAD "\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\","
#define AT "\"time\":\"2026-11-15T12:00:00Z\","
#define WHO "\"tenant\":\"acme\",\"workspace\":\"ml\","
#define STORAGE HEAD AT "\"type\":\"tollgate.storage.v1\","
#define INFERENCE HEAD AT "\"type\":\"tollgate.inference.v1\","

static const struct event_rules any = {
	.now_ns = NOW, .age_ns = 45 * NS_PER_DAY, .ahead_ns = 5 * NS_PER_MIN, .count_max = 3};
static const struct event_rules of_acme = {
	.now_ns = NOW, .age_ns = 45 * NS_PER_DAY, .ahead_ns = 5 * NS_PER_MIN, .count_max = 3, .tenant = "acme"};

static struct events *
parse(const char *text, const struct event_rules *rules)
{
	struct events *all = NULL;
	struct err err = {0};

	if (!events_parse(text, strlen(text), text[0] == '[', rules, &all, &err))
		fail_msg("%s: %s", text, err.text);
	return all;
}

/* Events that are not tied to an amount are written with this one. */
static struct events *
parse_storage(const char *gb_hours)
{
	char text[1024];

	snprintf(text, sizeof(text), "{" STORAGE "\"data\":{" WHO "\"gb_hours\":%s}}", gb_hours);
	return parse(text, &any);
}

static void
what_breaks_a_rule_is_refused_and_its_field_is_named(void **state)
{
	static const struct {
		const char *name, *text, *field, *says;
	} rows[] = {
		{"an event that is not an object", "[17]", "", "JSON object"},
		{"no id", "{\"specversion\":\"1.0\"}", "id", "missing"},
		{"an id that is a number", "{\"id\":7}", "id", "text"},
		{"an empty id", "{\"id\":\"\"}", "id", "1 to 256"},
		{"an id with a control character", "{\"id\":\"a\\nb\"}", "id", "control"},
		{"a source that is no URI reference", "{\"id\":\"1\",\"source\":\"a b\"}", "source", "URI"},
		{"a source with a broken escape", "{\"id\":\"1\",\"source\":\"a%2\"}", "source", "URI"},
		{"another version of CloudEvents", "{\"id\":\"1\",\"source\":\"/s\",\"specversion\":\"0.3\"}",
	         "specversion", "0.3"},
		{"an attribute in capitals", "{" STORAGE "\"Trace\":\"x\"}", "", "Trace"},
		{"an attribute that is an object", "{" STORAGE "\"trace\":{}}", "trace", "true or false"},
		{"an attribute with decimals", "{" STORAGE "\"trace\":1.5}", "trace", "whole number"},
		{"binary data", "{" STORAGE "\"data_base64\":\"AA==\"}", "data_base64", "not taken"},
		{"data that is not JSON", "{" STORAGE "\"datacontenttype\":\"text/xml\",\"data\":{}}",
	         "datacontenttype", "text/xml"},
		{"an unknown type", "{" HEAD AT "\"type\":\"tollgate.gpu.v1\"}", "type", "tollgate.gpu.v1"},
		{"no time", "{" HEAD "\"type\":\"tollgate.egress.v1\"}", "time", "missing"},
		{"a time that is none", "{" HEAD "\"type\":\"tollgate.egress.v1\",\"time\":\"yesterday\"}", "time",
	         "yesterday"},
		{"a time before the window",
	         "{" HEAD "\"type\":\"tollgate.egress.v1\",\"time\":\"2026-10-01T23:59:59Z\"}", "time", "45d"},
		{"a time after the window",
	         "{" HEAD "\"type\":\"tollgate.egress.v1\",\"time\":\"2026-11-16T00:05:00.000000001Z\"}", "time", "5m"},
		{"no data", "{" STORAGE "\"subject\":\"x\"}", "data", "object"},
		{"data that is a list", "{" STORAGE "\"data\":[]}", "data", "object"},
		{"a field that the type has not", "{" STORAGE "\"data\":{" WHO "\"gb\":1}}", "data", "'gb'"},
		{"nobody's usage", "{" STORAGE "\"data\":{\"gb_hours\":1}}", "data.tenant", "missing"},
		{"a tenant without workspace", "{" STORAGE "\"data\":{\"tenant\":\"acme\",\"gb_hours\":1}}",
	         "data.workspace", "missing"},
		{"two ways to say whose it is", "{" STORAGE "\"data\":{" WHO "\"namespace\":\"n\",\"gb_hours\":1}}",
	         "data.namespace", "one of the two"},
		{"no amount", "{" STORAGE "\"data\":{\"namespace\":\"n\"}}", "data.gb_hours", "whole number"},
		{"an amount that was a float", "{" STORAGE "\"data\":{" WHO "\"gb_hours\":1.5}}", "data.gb_hours",
	         "in quotes"},
		{"a negative amount", "{" STORAGE "\"data\":{" WHO "\"gb_hours\":\"-1\"}}", "data.gb_hours", "from 0"},
		{"an amount with ten places", "{" STORAGE "\"data\":{" WHO "\"gb_hours\":\"0.0000000001\"}}",
	         "data.gb_hours", "nine places"},
		{"an amount beyond the limit", "{" STORAGE "\"data\":{" WHO "\"gb_hours\":1000000000000000}}",
	         "data.gb_hours", "10^15"},
		{"an inference without amounts", "{" INFERENCE "\"data\":{" WHO "\"model\":\"m\"}}", "data.requests",
	         "none of"},
		{"an inference without model", "{" INFERENCE "\"data\":{" WHO "\"requests\":1}}", "data.model",
	         "missing"},
		{"half a request", "{" INFERENCE "\"data\":{" WHO "\"model\":\"m\",\"requests\":\"0.5\"}}",
	         "data.requests", "whole number"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(events) struct events *all = parse(rows[i].text, &any);
		const struct event *e = all->items;

		if (e->fate != EVENT_REFUSED || e->kind != ERR_INVALID)
			fail_msg("%s: not refused as invalid", rows[i].name);
		if (strcmp(e->field, rows[i].field) != 0)
			fail_msg("%s: blames \"%s\", not \"%s\"", rows[i].name, e->field, rows[i].field);
		if (strstr(e->detail, rows[i].says) == NULL)
			fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].name, e->detail, rows[i].says);
	}
}

static void
what_cannot_be_told_apart_into_events_fails_as_a_whole(void **state)
{
	static const struct {
		const char *name, *text;
		bool batch;
		const char *says;
	} rows[] = {
		{"no JSON", "{", false, "body:1:1"},
		{"a list sent as one event", "[]", false, "batch+json"},
		{"one event sent as a list", "{}", true, "a list"},
		{"more events than the limit", "[1,2,3,4]", true, "4 events are more than the limit of 3"},
		{"an attribute given twice", "{\"id\":\"1\",\"id\":\"2\"}", false, "duplicate"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct events *all = NULL;
		struct err err = {0};

		if (events_parse(rows[i].text, strlen(rows[i].text), rows[i].batch, &any, &all, &err))
			fail_msg("%s: taken", rows[i].name);
		if (err.kind != ERR_INVALID || strstr(err.text, rows[i].says) == NULL)
			fail_msg("%s: %s", rows[i].name, err.text);
		assert_null(all);
	}
}

static void
a_sound_event_is_read_to_the_last_digit(void **state)
{
	owned(events) struct events *all =
		parse("{" INFERENCE
	              "\"datacontenttype\":\"application/json; charset=utf-8\",\"traceparent\":\"x\",\"n\":null,"
	              "\"data\":{" WHO
	              "\"model\":\"llama-70b\",\"caller\":\"chat\",\"server\":\"vllm-1\",\"requests\":2,"
	              "\"input_tokens\":\"999999999999999\",\"output_tokens\":0}}",
	              &any);
	owned(events) struct events *gb = parse_storage("\"123456789012345.123456789\"");
	const struct event *e = all->items;

	(void)state;
	assert_int_equal(e->fate, EVENT_SOUND);
	assert_int_equal(e->type, EVENT_INFERENCE);
	assert_true(e->requests == 2 && e->input_tokens == INT64_C(999999999999999) && e->output_tokens == 0);
	assert_true(e->amount == EVENT_NONE);
	assert_string_equal(e->sku, "llama-70b");
	assert_string_equal(e->caller, "chat");
	assert_string_equal(e->server, "vllm-1");
	assert_true(e->time_ns == NOW - 12 * NS_PER_HOUR);
	assert_true(gb->items->amount == (int128)INT64_C(123456789012345) * 1000000000 + 123456789);
	assert_string_equal(gb->items->sku, "standard");
}

static void
the_ends_of_the_window_are_inside(void **state)
{
	static const char *const times[] = {"2026-10-02T00:00:00Z", "2026-11-16T00:05:00Z",
	                                    "2026-11-16T01:05:00+01:00"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(times); i++) {
		char text[512];

		snprintf(text, sizeof(text),
		         "{" HEAD "\"type\":\"tollgate.egress.v1\",\"time\":\"%s\",\"data\":{" WHO "\"gb\":1}}",
		         times[i]);
		owned(events) struct events *all = parse(text, &any);
		if (all->items->fate != EVENT_SOUND)
			fail_msg("%s: %s", times[i], all->items->detail);
	}
}

static void
a_tenants_sender_speaks_for_its_own_tenant(void **state)
{
	static const struct {
		const char *name, *data;
		enum err_kind kind; /* ERR_NONE: taken */
	} rows[] = {
		{"its own tenant by name", WHO, ERR_NONE},
		{"its own tenant unsaid", "\"workspace\":\"ml\",", ERR_NONE},
		{"another tenant", "\"tenant\":\"globex\",\"workspace\":\"ml\",", ERR_MISSING},
		{"a namespace", "\"namespace\":\"ml\",", ERR_DENIED},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[512];

		snprintf(text, sizeof(text), "{" STORAGE "\"data\":{%s\"gb_hours\":1}}", rows[i].data);
		owned(events) struct events *all = parse(text, &of_acme);
		if (all->items->kind != rows[i].kind)
			fail_msg("%s: %s", rows[i].name, err_kind_name(all->items->kind));
		if (rows[i].kind == ERR_NONE)
			assert_string_equal(all->items->tenant, "acme");
	}
}

static void
two_events_have_one_digest_exactly_when_they_mean_the_same(void **state)
{
	static const struct {
		const char *name, *text;
		bool same;
	} rows[] = {
		{"other spelling of the amount", "{" STORAGE "\"data\":{" WHO "\"gb_hours\":\"1.50\"}}", true},
		{"other order, a trace and the standard SKU by name",
	         "{\"traceparent\":\"x\"," STORAGE "\"data\":{\"sku\":\"standard\",\"gb_hours\":\"1.5\"," WHO
	         "\"namespace\":null}}",
	         true},
		{"the same instant in another zone",
	         "{" HEAD "\"time\":\"2026-11-15T13:00:00+01:00\",\"type\":\"tollgate.storage.v1\",\"data\":{" WHO
	         "\"gb_hours\":\"1.5\"}}",
	         true},
		{"another amount", "{" STORAGE "\"data\":{" WHO "\"gb_hours\":\"1.500000001\"}}", false},
		{"another workspace",
	         "{" STORAGE "\"data\":{\"tenant\":\"acme\",\"workspace\":\"m\",\"gb_hours\":\"1.5\"}}", false},
		{"letters on the other side of a border",
	         "{" STORAGE "\"data\":{\"tenant\":\"acm\",\"workspace\":\"eml\",\"gb_hours\":\"1.5\"}}", false},
		{"another SKU", "{" STORAGE "\"data\":{" WHO "\"sku\":\"nvme\",\"gb_hours\":\"1.5\"}}", false},
		{"a nanosecond later",
	         "{" HEAD "\"time\":\"2026-11-15T12:00:00.000000001Z\",\"type\":\"tollgate.storage.v1\",\"data\":{" WHO
	         "\"gb_hours\":\"1.5\"}}",
	         false},
	};
	owned(events) struct events *first = parse_storage("\"1.5\"");

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(events) struct events *all = parse(rows[i].text, &any);

		if (all->items->fate != EVENT_SOUND)
			fail_msg("%s: %s", rows[i].name, all->items->detail);
		if ((memcmp(all->items->digest, first->items->digest, SHA256_SIZE) == 0) != rows[i].same)
			fail_msg("%s", rows[i].name);
	}
}

static void
a_bad_event_does_not_touch_its_neighbours(void **state)
{
	owned(events) struct events *all = parse("[{" STORAGE "\"data\":{" WHO "\"gb_hours\":1}},{},{" STORAGE
	                                         "\"data\":{" WHO "\"gb_hours\":2}}]",
	                                         &any);

	(void)state;
	assert_int_equal(all->count, 3);
	assert_int_equal(all->items[0].fate, EVENT_SOUND);
	assert_int_equal(all->items[1].fate, EVENT_REFUSED);
	assert_int_equal(all->items[2].fate, EVENT_SOUND);
	assert_string_equal(event_type_name(all->items[2].type), "tollgate.storage.v1");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_breaks_a_rule_is_refused_and_its_field_is_named),
		cmocka_unit_test(what_cannot_be_told_apart_into_events_fails_as_a_whole),
		cmocka_unit_test(a_sound_event_is_read_to_the_last_digit),
		cmocka_unit_test(the_ends_of_the_window_are_inside),
		cmocka_unit_test(a_tenants_sender_speaks_for_its_own_tenant),
		cmocka_unit_test(two_events_have_one_digest_exactly_when_they_mean_the_same),
		cmocka_unit_test(a_bad_event_does_not_touch_its_neighbours),
	};

	return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}

/* tests/unit/conf/test_json.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/conf/json.h"

static json_t *
parse(const char *text)
{
	json_t *j = NULL;
	struct err err;

	if (!json_parse("body", text, strlen(text), &j, &err))
		fail_msg("%s", err.text);
	return j;
}

static void
what_is_not_strict_json_is_refused(void **state)
{
	static const struct {
		const char *name, *text, *error; /* error: how the message begins */
	} rows[] = {
		{"nothing at all", "", "body:1:0: "},
		{"a bare value", "17", "body:1:2: "},
		{"a field given twice", "{\"a\":1,\"a\":2}", "body:1:10: duplicate object key near '\"a\"'"},
		{"a field given twice by an escape", "{\"a\":1,\"\\u0061\":2}", "body:1:15: duplicate object key"},
		{"bytes after the end", "{} x", "body:1:4: end of file expected near 'x'"},
		{"a second document", "{}{}", "body:1:3: end of file expected near '{'"},
		{"an integer beyond 64 bits", "[9223372036854775808]", "body:1:20: too big integer"},
		{"a negative integer beyond 64 bits", "[-9223372036854775809]", "body:1:21: too big negative integer"},
		{"a real beyond doubles", "[1e999]", "body:1:6: real number overflow"},
		{"a leading zero", "[007]", "body:1:2: "},
		{"a comment", "{} // x", "body:1:4: "},
		{"a trailing comma", "[1,]", "body:1:4: "},
		{"NaN", "[NaN]", "body:1:4: "},
		{"bytes that are not UTF-8", "[\"\xff\"]", "body:1:2: unable to decode byte 0xff"},
		{"an overlong form", "[\"\xc0\xaf\"]", "body:1:2: unable to decode byte 0xc0"},
		{"a lone surrogate", "[\"\\ud800\"]", "body:1:9: invalid Unicode '\\uD800'"},
		{"a NUL by an escape", "[\"a\\u0000b\"]", "body:1:11: \\u0000 is not allowed"},
		{"a raw newline in a string", "[\"a\nb\"]", "body:1:3: "},
		{"text that ends too early", "{\"a\": [1, 2", "body:1:11: "},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err err = {.kind = ERR_NONE};
		json_t *j = NULL;

		if (json_parse("body", rows[i].text, strlen(rows[i].text), &j, &err))
			fail_msg("%s: accepted", rows[i].name);
		if (strncmp(err.text, rows[i].error, strlen(rows[i].error)) != 0)
			fail_msg("%s: \"%s\" does not begin with \"%s\"", rows[i].name, err.text, rows[i].error);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_null(j);
	}
}

static void
integers_keep_all_their_digits(void **state)
{
	owned(json) json_t *j = parse("{\"a\":9007199254740993,\"b\":-9223372036854775808}");
	struct err err;
	int64_t v;

	(void)state;
	assert_true(json_get_i64(j, "a", &v, &err));
	assert_true(v == INT64_C(9007199254740993));
	assert_true(json_get_i64(j, "b", &v, &err));
	assert_true(v == INT64_MIN);
}

static void
depth_and_size_have_ceilings(void **state)
{
	in_place(buf) struct buf b;
	struct err err;
	json_t *j = NULL;

	(void)state;
	buf_init(&b, 8u << 20);
	for (int i = 0; i < JSON_MAX_DEPTH; i++)
		buf_char(&b, '[');
	for (int i = 0; i < JSON_MAX_DEPTH; i++)
		buf_char(&b, ']');
	assert_true(json_parse("body", b.data, b.len, &j, &err));
	json_free(j);
	j = NULL;

	buf_clear(&b);
	for (int i = 0; i < JSON_MAX_DEPTH + 1; i++)
		buf_char(&b, '[');
	assert_false(json_parse("body", b.data, b.len, &j, &err));
	assert_string_equal(err.text, "body: nested deeper than 64 levels");

	buf_clear(&b);
	buf_str(&b, "{\"a\":\"\\\"");
	for (int i = 0; i < 100; i++)
		buf_str(&b, "[{\\\\");
	buf_str(&b, "\"}"); /* brackets inside a string have no depth */
	assert_true(json_parse("body", b.data, b.len, &j, &err));
	json_free(j);
	j = NULL;

	buf_clear(&b);
	buf_str(&b, "[]");
	while (b.len < JSON_MAX_BYTES)
		buf_char(&b, ' ');
	assert_true(json_parse("body", b.data, b.len, &j, &err));
	json_free(j);
	buf_char(&b, ' ');
	assert_false(json_parse("body", b.data, b.len, &j, &err));
	assert_string_equal(err.text, "body: 4194305 bytes are more than the limit of 4194304");
}

static void
a_member_of_the_wrong_type_is_named_with_what_was_found(void **state)
{
	owned(json) json_t *j = parse("{\"s\":\"x\",\"i\":1,\"r\":1.0,\"t\":true,\"n\":null,\"l\":[],\"o\":{}}");
	const char *s = NULL;
	struct err err;
	int64_t v;

	(void)state;
	assert_true(json_get_str(j, "s", &s, &err));
	assert_string_equal(s, "x");
	assert_false(json_get_str(j, "i", &s, &err));
	assert_string_equal(err.text, "field 'i' must be a string, found a whole number");
	assert_false(json_get_i64(j, "r", &v, &err));
	assert_string_equal(err.text, "field 'r' must be a whole number, found a number with decimals");
	assert_false(json_get_i64(j, "t", &v, &err));
	assert_string_equal(err.text, "field 't' must be a whole number, found true or false");
	assert_false(json_get_str(j, "n", &s, &err));
	assert_string_equal(err.text, "field 'n' must be a string, found null");
	assert_false(json_get_str(j, "l", &s, &err));
	assert_string_equal(err.text, "field 'l' must be a string, found a list");
	assert_false(json_get_i64(j, "o", &v, &err));
	assert_string_equal(err.text, "field 'o' must be a whole number, found an object");
	assert_false(json_get_i64(j, "s", &v, &err));
	assert_string_equal(err.text, "field 's' must be a whole number, found a string");
	assert_false(json_get_str(j, "absent", &s, &err));
	assert_string_equal(err.text, "field 'absent' is missing");
	assert_false(json_get_str(json_object_get(j, "l"), "x", &s, &err));
	assert_string_equal(err.text, "expected an object with the field 'x', found a list");
	assert_false(json_get_str(NULL, "x", &s, &err));
	assert_string_equal(err.text, "expected an object with the field 'x', found nothing");
}

static void
unknown_fields_are_refused_and_the_nearest_named(void **state)
{
	static const char *const allowed[] = {"request_id", "workspace", NULL};
	owned(json) json_t *good = parse("{\"workspace\":1}");
	owned(json) json_t *near = parse("{\"workspace\":1,\"requestid\":2}");
	owned(json) json_t *far = parse("{\"x\":1}");
	owned(json) json_t *list = parse("[]");
	struct err err;

	(void)state;
	assert_true(json_only_fields(good, allowed, &err));
	assert_false(json_only_fields(near, allowed, &err));
	assert_string_equal(err.text, "unknown field 'requestid'; did you mean 'request_id'?");
	assert_false(json_only_fields(far, allowed, &err));
	assert_string_equal(err.text, "unknown field 'x'");
	assert_false(json_only_fields(list, allowed, &err));
	assert_string_equal(err.text, "expected an object, found a list");
	assert_false(json_only_fields(NULL, allowed, &err));
}

static void
the_text_of_a_value_is_compact_with_sorted_keys(void **state)
{
	owned(json) json_t *j = parse("{ \"b\" : [ 1, 2.5, null ], \"a\" : \"x\\ny\" }");
	in_place(buf) struct buf out;

	(void)state;
	buf_init(&out, 1024);
	json_write(j, &out);
	assert_string_equal(buf_text(&out), "{\"a\":\"x\\ny\",\"b\":[1,2.5,null]}\n");
	buf_clear(&out);
	json_write(json_object_get(j, "a"), &out);
	assert_string_equal(buf_text(&out), "\"x\\ny\"\n");
}

static void
a_string_of_any_bytes_is_written_as_sound_json(void **state)
{
	static const char *const rows[][2] = {
		{"", "\"\""},
		{"plain", "\"plain\""},
		{"q\" b\\ s/", "\"q\\\" b\\\\ s/\""},
		{"\n\r\t\b\x01\x1f\x7f", "\"\\n\\r\\t\\u0008\\u0001\\u001f\\u007f\""},
		{"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
		{"a\xff"
	         "b",
	         "\"a\xef\xbf\xbd"
	         "b\""},
		{"\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
		{"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
	};
	in_place(buf) struct buf out;

	(void)state;
	buf_init(&out, 1024);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(json) json_t *back = NULL;
		struct err err;

		buf_clear(&out);
		buf_char(&out, '[');
		json_write_string(rows[i][0], &out);
		buf_char(&out, ']');
		if (strncmp(buf_text(&out) + 1, rows[i][1], strlen(rows[i][1])) != 0)
			fail_msg("row %zu: %s instead of %s", i, buf_text(&out), rows[i][1]);
		if (!json_parse("written", out.data, out.len, &back, &err))
			fail_msg("row %zu: %s", i, err.text);
	}
	buf_clear(&out);
	json_write_string(NULL, &out);
	assert_string_equal(buf_text(&out), "null");
}

static void
a_number_keeps_the_decimals_that_it_was_written_with(void **state)
{
	static const char *const texts[] = {"[4993.39]",      "[4.8,0.464285714,0.1]",
	                                    "[-0.660714286]", "[1234567890.12345]",
	                                    "[1e300]",        "[{\"a\":9999999999999.99}]"};
	in_place(buf) struct buf out;
	owned(json) json_t *real = NULL;

	(void)state;
	buf_init(&out, 1024);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		owned(json) json_t *j = NULL;
		struct err err;

		buf_clear(&out);
		if (!json_parse("text", texts[i], strlen(texts[i]), &j, &err))
			fail_msg("%s: %s", texts[i], err.text);
		json_write(j, &out);
		assert_memory_equal(buf_text(&out), texts[i], strlen(texts[i]));
	}
	/* more digits than that: as many as the number needs */
	real = json_real(0.1 + 0.2);
	buf_clear(&out);
	json_write(real, &out);
	assert_string_equal(buf_text(&out), "0.30000000000000004\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_not_strict_json_is_refused),
		cmocka_unit_test(integers_keep_all_their_digits),
		cmocka_unit_test(depth_and_size_have_ceilings),
		cmocka_unit_test(a_member_of_the_wrong_type_is_named_with_what_was_found),
		cmocka_unit_test(unknown_fields_are_refused_and_the_nearest_named),
		cmocka_unit_test(the_text_of_a_value_is_compact_with_sorted_keys),
		cmocka_unit_test(a_string_of_any_bytes_is_written_as_sound_json),
		cmocka_unit_test(a_number_keeps_the_decimals_that_it_was_written_with),
	};

	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}

/* tests/fuzz/fuzz_json.c - any bytes as JSON. What is accepted is written, read and written again to the same text; and any
 * bytes written as a string are sound JSON. */
#include <string.h>

#include "common/conf/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
write_and_read(const json_t *j)
{
	owned(json) json_t *back = NULL;
	in_place(buf) struct buf first, second;
	struct err err;

	/* an escape of six bytes may stand for each byte, and a number may grow */
	buf_init(&first, 16 * JSON_MAX_BYTES);
	buf_init(&second, 16 * JSON_MAX_BYTES);
	json_write(j, &first);
	ASSERT(buf_ok(&first, "text", &err));
	ASSERT(json_parse("again", first.data, first.len, &back, &err));
	json_write(back, &second);
	ASSERT(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
}

static void
write_as_string(const uint8_t *data, size_t size)
{
	owned(mem) char *text = mem_strndup((const char *)data, size);
	owned(json) json_t *j = NULL;
	in_place(buf) struct buf out;
	struct err err;

	buf_init(&out, 16 * JSON_MAX_BYTES);
	buf_char(&out, '[');
	json_write_string(text, &out);
	buf_char(&out, ']');
	ASSERT(json_parse("string", out.data, out.len, &j, &err));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(json) json_t *j = NULL;
	const char *text;
	struct err err;
	int64_t number;

	if (size > 1 << 16)
		return 0;
	if (json_parse("input", (const char *)data, size, &j, &err)) {
		write_and_read(j);
		(void)!json_get_str(j, "a", &text, &err);
		(void)!json_get_i64(j, "a", &number, &err);
		(void)!json_only_fields(j, (const char *const[]){"a", NULL}, &err);
	} else {
		ASSERT(err.kind == ERR_INVALID);
	}
	write_as_string(data, size);
	return 0;
}

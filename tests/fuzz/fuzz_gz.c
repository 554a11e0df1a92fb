/* tests/fuzz/fuzz_gz.c - arbitrary bytes as a gzip stream. Two bytes choose the ceiling, the rest is expanded. Nothing
 * ever comes out beyond the ceiling, and what comes out survives being packed again. */
#include <string.h>

#include "common/base/gz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expand(const uint8_t *data, size_t size, size_t max)
{
	in_place(buf) struct buf out = {.max = max}, packed = {.max = 2 * max + 1000}, back = {.max = max};
	struct err err = {0};

	if (!gz_expand(data, size, &out, &err)) {
		ASSERT(err.kind == ERR_INVALID && err.text[0] != '\0');
		ASSERT(out.len == 0 && out.cap <= max);
		return;
	}
	ASSERT(out.len <= max && out.cap <= max);
	ASSERT(gz_compress(buf_text(&out), out.len, 1, &packed, NULL));
	ASSERT(gz_expand(packed.data, packed.len, &back, NULL));
	ASSERT(back.len == out.len && memcmp(buf_text(&back), buf_text(&out), out.len) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	expand(data + 2, size - 2, (size_t)data[0] << 8 | data[1]);
	expand(data + 2, size - 2, 1u << 18);
	return 0;
}

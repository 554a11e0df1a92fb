/* tests/fuzz/fuzz_wire.c - any bytes as the body of a batch, and as the payload of a frame.
 * What is decoded must encode to the same bytes; what passes the check must pack. */
#include <string.h>

#include "common/wire/frame.h"
#include "common/wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
judge(const struct wire_batch *b)
{
	in_place(buf) struct buf payload;
	struct err err;

	buf_init(&payload, FRAME_MAX);
	if (wire_check(b, &err))
		ASSERT(wire_pack(b, &payload, &err));
	else
		ASSERT(err.kind == ERR_INVALID);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(wire_batch) struct wire_batch *body = NULL, *payload = NULL;
	in_place(buf) struct buf again;
	struct err err;

	buf_init(&again, WIRE_MAX_BODY);
	if (wire_decode(data, size, &body, &err)) {
		ASSERT(wire_encode(body, &again, &err));
		ASSERT(again.len == size && memcmp(again.data, data, size) == 0);
		judge(body);
	} else {
		ASSERT(err.kind == ERR_INVALID || err.kind == ERR_RETRY);
	}
	if (wire_unpack(data, size, &payload, &err))
		judge(payload);
	return 0;
}

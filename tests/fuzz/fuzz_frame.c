/* tests/fuzz/fuzz_frame.c - arbitrary bytes as a row of frames. Whatever they are, reading ends, stays inside them,
 * and what came out as frames is exactly what would be written for their payloads. */
#include <string.h>

#include "common/wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
read_as_frames(const uint8_t *data, size_t size)
{
	in_place(buf) struct buf again = {.max = size};
	const uint8_t *payload;
	size_t pos = 0, before = 0, len;
	enum frame_result result;

	while ((result = frame_next(data, size, &pos, &payload, &len)) == FRAME_OK) {
		ASSERT(len > 0 && len <= FRAME_MAX);
		ASSERT(payload == data + before + FRAME_HEAD && pos == before + FRAME_HEAD + len && pos <= size);
		frame_append(&again, payload, len);
		before = pos;
	}
	ASSERT(pos == before);
	ASSERT((result == FRAME_END) == (pos == size));
	ASSERT(!again.over && again.len == pos && (pos == 0 || memcmp(again.data, data, pos) == 0));
}

/* Behind the CRC, where chance does not get: the bytes as payloads of frames, then with the tail cut off. */
static void
write_as_frames(const uint8_t *data, size_t size)
{
	in_place(buf) struct buf row = {.max = 2 * size + 4 * FRAME_HEAD};
	size_t half = size / 2;

	if (half == 0)
		return;
	frame_append(&row, data, half);
	frame_append(&row, data + half, size - half);
	read_as_frames((const uint8_t *)row.data, row.len);
	read_as_frames((const uint8_t *)row.data, row.len - 1 - data[0] % half);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	ASSERT(crc32c(0, data, size) == crc32c_portable(0, data, size));
	read_as_frames(data, size);
	if (size <= FRAME_MAX)
		write_as_frames(data, size);
	return 0;
}

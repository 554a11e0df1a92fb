/* Any bytes as a spool segment: reading ends, what is called sound is sound, and reading that alone gives the same. */
#include <string.h>

#include "common/wire/frame.h"
#include "exporter/delivery/spool_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
scan(const void *data, size_t size)
{
	struct segment_scan s, again;
	struct err err;

	if (!segment_scan(data, size, &s, &err))
		return;
	ASSERT(s.sound_bytes <= size && (s.end != SEGMENT_WHOLE || s.sound_bytes == size));
	ASSERT(s.frames > 0 ? s.last_seq >= s.head.first_seq : s.last_seq == s.head.first_seq - 1);
	ASSERT(!s.loss || s.frames == 1);
	ASSERT(segment_scan(data, s.sound_bytes, &again, &err));
	ASSERT(again.end == SEGMENT_WHOLE && again.frames == s.frames && again.last_seq == s.last_seq &&
	       again.loss == s.loss);
	ASSERT(again.from_ns == s.from_ns && again.to_ns == s.to_ns);
}

/* Behind the CRCs, where chance does not get: a sound head, and the bytes as payloads. */
static void
scan_as_payloads(const uint8_t *data, size_t size)
{
	struct segment_head head = {.epoch = 1794800000, .first_seq = 7, .node = "gn1", .flags = WIRE_SIMULATED};
	in_place(buf) struct buf file = {.max = 2 * size + SEGMENT_HEAD_MAX + 16 * FRAME_HEAD};
	size_t step = size / 3 + 1;

	segment_head_write(&head, &file);
	for (size_t at = 0; at < size; at += step)
		frame_append(&file, data + at, size - at < step ? size - at : step);
	scan(file.data, file.len);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 1 << 16)
		return 0;
	owned(mem) uint8_t *exact = mem_array(1, size);

	if (size > 0)
		memcpy(exact, data, size);
	scan(exact, size);
	scan_as_payloads(data, size);
	return 0;
}

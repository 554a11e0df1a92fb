/* tests/unit/wire/test_frame.c - CRC32C against RFC 3720, and frames whole, torn and damaged. */
#include "common/wire/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* RFC 3720, appendix B.4, as numbers; and the check value of the algorithm. */
static void
crc32c_gives_the_values_of_rfc_3720(void **state)
{
	uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
	static const uint8_t read_command[48] = {
		0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
		0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,    0,
	};
	const struct {
		const char *name;
		const void *data;
		size_t n;
		uint32_t crc;
	} rows[] = {
		{"32 bytes of zeros", zeros, 32, 0x8a9136aa},
		{"32 bytes of ones", ones, 32, 0x62a8ab43},
		{"32 bytes counting up", up, 32, 0x46dd794e},
		{"32 bytes counting down", down, 32, 0x113fdb5c},
		{"an iSCSI read command", read_command, 48, 0xd9963a56},
		{"the digits 1 to 9", "123456789", 9, 0xe3069283},
		{"nothing", "", 0, 0},
	};

	(void)state;
	memset(ones, 0xff, sizeof(ones));
	for (int i = 0; i < 32; i++) {
		up[i] = (uint8_t)i;
		down[i] = (uint8_t)(31 - i);
	}
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (crc32c(0, rows[i].data, rows[i].n) != rows[i].crc)
			fail_msg("%s: 0x%08" PRIx32, rows[i].name, crc32c(0, rows[i].data, rows[i].n));
		if (crc32c_portable(0, rows[i].data, rows[i].n) != rows[i].crc)
			fail_msg("%s by table: 0x%08" PRIx32, rows[i].name,
			         crc32c_portable(0, rows[i].data, rows[i].n));
	}
}

static void
table_and_instruction_agree_on_every_length_and_alignment(void **state)
{
	uint8_t data[96];

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 37 + 11);
	for (size_t from = 0; from < 16; from++)
		for (size_t n = 0; from + n <= sizeof(data); n++)
			assert_int_equal(crc32c(7, data + from, n), crc32c_portable(7, data + from, n));
}

static void
a_crc_may_be_computed_in_pieces(void **state)
{
	static const char text[] = "the quick brown fox jumps over the lazy dog";
	uint32_t whole = crc32c(0, text, sizeof(text));

	(void)state;
	for (size_t cut = 0; cut <= sizeof(text); cut++)
		assert_int_equal(crc32c(crc32c(0, text, cut), text + cut, sizeof(text) - cut), whole);
}

static void
a_frame_has_length_crc_and_payload(void **state)
{
	in_place(buf) struct buf b = {.max = 100};

	(void)state;
	frame_append(&b, "123456789", 9);
	assert_int_equal(b.len, FRAME_HEAD + 9);
	assert_memory_equal(b.data,
	                    "\x09\x00\x00\x00\x83\x92\x06\xe3"
	                    "123456789",
	                    b.len);
}

static void
frames_are_read_in_order_to_the_end(void **state)
{
	in_place(buf) struct buf b = {.max = 1000};
	const uint8_t *payload;
	size_t pos = 0, len;

	(void)state;
	frame_append(&b, "one", 3);
	frame_append(&b, "2", 1);
	assert_int_equal(frame_next(b.data, b.len, &pos, &payload, &len), FRAME_OK);
	assert_int_equal(len, 3);
	assert_memory_equal(payload, "one", 3);
	assert_int_equal(pos, FRAME_HEAD + 3);
	assert_int_equal(frame_next(b.data, b.len, &pos, &payload, &len), FRAME_OK);
	assert_int_equal(len, 1);
	assert_memory_equal(payload, "2", 1);
	assert_int_equal(frame_next(b.data, b.len, &pos, &payload, &len), FRAME_END);
	assert_int_equal(pos, b.len);
	assert_int_equal(frame_next(NULL, 0, &pos, &payload, &len), FRAME_END);
}

static void
a_frame_cut_anywhere_is_torn_and_the_position_stays(void **state)
{
	in_place(buf) struct buf b = {.max = 1000};
	size_t first;

	(void)state;
	frame_append(&b, "first", 5);
	first = b.len;
	frame_append(&b, "second", 6);
	for (size_t n = first + 1; n < b.len; n++) {
		const uint8_t *payload = NULL;
		size_t pos = first, len = 42;

		assert_int_equal(frame_next(b.data, n, &pos, &payload, &len), FRAME_TORN);
		assert_int_equal(pos, first);
		assert_null(payload);
		assert_int_equal(len, 42);
	}
}

/* A bit of the length may make the frame longer than the bytes there are: that is torn. It is never a frame. */
static void
one_changed_bit_is_never_a_frame(void **state)
{
	in_place(buf) struct buf b = {.max = 1000};

	(void)state;
	frame_append(&b, "some payload", 12);
	for (size_t bit = 0; bit < b.len * 8; bit++) {
		const uint8_t *payload;
		size_t pos = 0, len;
		enum frame_result result;

		b.data[bit / 8] = (char)(b.data[bit / 8] ^ 1 << bit % 8);
		result = frame_next(b.data, b.len, &pos, &payload, &len);
		assert_true(result == FRAME_BAD || (result == FRAME_TORN && bit < 32));
		assert_int_equal(pos, 0);
		b.data[bit / 8] = (char)(b.data[bit / 8] ^ 1 << bit % 8);
	}
}

static void
zeros_left_by_a_crash_are_not_frames(void **state)
{
	static const char zeros[4096];
	const uint8_t *payload;
	size_t pos = 0, len;

	(void)state;
	assert_int_equal(frame_next(zeros, sizeof(zeros), &pos, &payload, &len), FRAME_BAD);
	assert_int_equal(frame_next(zeros, 3, &pos, &payload, &len), FRAME_TORN);
}

static void
the_largest_payload_is_read_and_a_larger_length_is_bad_at_once(void **state)
{
	owned(mem) char *data = mem_alloc(FRAME_MAX);
	in_place(buf) struct buf b = {.max = FRAME_MAX + FRAME_HEAD};
	const uint8_t *payload;
	size_t pos = 0, len;

	(void)state;
	frame_append(&b, data, FRAME_MAX);
	assert_false(b.over);
	assert_int_equal(frame_next(b.data, b.len, &pos, &payload, &len), FRAME_OK);
	assert_int_equal(len, FRAME_MAX);
	pos = 0;
	assert_int_equal(frame_next("\x01\x00\x80\x00\x00\x00\x00\x00", 8, &pos, &payload, &len), FRAME_BAD);
	assert_int_equal(frame_next("\xff\xff\xff\xff\x00\x00\x00\x00", 8, &pos, &payload, &len), FRAME_BAD);
}

static void
a_frame_that_does_not_fit_leaves_nothing(void **state)
{
	in_place(buf) struct buf b = {.max = 20};

	(void)state;
	frame_append(&b, "abc", 3);
	frame_append(&b, "ab", 2);
	assert_true(b.over);
	assert_int_equal(b.len, FRAME_HEAD + 3);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crc32c_gives_the_values_of_rfc_3720),
		cmocka_unit_test(table_and_instruction_agree_on_every_length_and_alignment),
		cmocka_unit_test(a_crc_may_be_computed_in_pieces),
		cmocka_unit_test(a_frame_has_length_crc_and_payload),
		cmocka_unit_test(frames_are_read_in_order_to_the_end),
		cmocka_unit_test(a_frame_cut_anywhere_is_torn_and_the_position_stays),
		cmocka_unit_test(one_changed_bit_is_never_a_frame),
		cmocka_unit_test(zeros_left_by_a_crash_are_not_frames),
		cmocka_unit_test(the_largest_payload_is_read_and_a_larger_length_is_bad_at_once),
		cmocka_unit_test(a_frame_that_does_not_fit_leaves_nothing),
	};

	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}

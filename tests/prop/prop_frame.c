/* tests/prop/prop_frame.c - rows of frames, whole, cut and damaged. */
#include "common/wire/frame.h"
#include "tests/support/harness/prop.h"

#include <string.h>

#define FRAMES 6
#define PAYLOAD 40

struct row {
	size_t n, len[FRAMES];
	uint8_t payload[FRAMES][PAYLOAD];
	size_t cut;  /* as a part of 1000 of the bytes */
	size_t flip; /* likewise, of the bits */
	uint8_t noise[64];
	size_t noise_len;
};

static void
generate(struct prop_source *s, void *c)
{
	struct row *k = c;

	k->n = prop_index(s, FRAMES + 1);
	for (size_t i = 0; i < k->n; i++) {
		k->len[i] = 1 + prop_index(s, PAYLOAD);
		prop_bytes(s, k->payload[i], k->len[i]);
	}
	k->cut = prop_index(s, 1000);
	k->flip = prop_index(s, 1000);
	k->noise_len = prop_index(s, sizeof(k->noise) + 1);
	prop_bytes(s, k->noise, k->noise_len);
}

static void
describe(const void *c, struct buf *out)
{
	const struct row *k = c;

	for (size_t i = 0; i < k->n; i++) {
		buf_printf(out, "[%zu:", k->len[i]);
		for (size_t j = 0; j < k->len[i]; j++)
			buf_printf(out, " %02x", k->payload[i][j]);
		buf_str(out, "] ");
	}
	buf_printf(out, "cut at %zu/1000, flipped at %zu/1000, noise", k->cut, k->flip);
	for (size_t i = 0; i < k->noise_len; i++)
		buf_printf(out, " %02x", k->noise[i]);
}

static void
write_row(const struct row *k, struct buf *out)
{
	for (size_t i = 0; i < k->n; i++)
		frame_append(out, k->payload[i], k->len[i]);
}

/* How many frames of the row come out as they went in; *ret_end is what ended the reading. */
static size_t
read_row(const struct row *k, const struct buf *in, enum frame_result *ret_end, bool *ret_other)
{
	const uint8_t *payload;
	size_t pos = 0, len, i = 0;

	*ret_other = false;
	while ((*ret_end = frame_next(in->data, in->len, &pos, &payload, &len)) == FRAME_OK) {
		if (i >= k->n || len != k->len[i] || memcmp(payload, k->payload[i], len) != 0) {
			*ret_other = true;
			return i;
		}
		i++;
	}
	return i;
}

static bool
whole_rows_come_back(const void *c, struct buf *why)
{
	const struct row *k = c;
	in_place(buf) struct buf b = {.max = 10000};
	enum frame_result end;
	bool other;
	size_t read;

	write_row(k, &b);
	read = read_row(k, &b, &end, &other);
	buf_printf(why, "%zu of %zu frames, ended by %d", read, k->n, (int)end);
	return read == k->n && end == FRAME_END && !other;
}

static bool
a_cut_row_gives_the_whole_frames_before_the_cut(const void *c, struct buf *why)
{
	const struct row *k = c;
	in_place(buf) struct buf b = {.max = 10000};
	enum frame_result end;
	size_t whole = 0, bytes = 0, read;
	bool other;

	write_row(k, &b);
	b.len = b.len * k->cut / 1000;
	while (whole < k->n && bytes + FRAME_HEAD + k->len[whole] <= b.len)
		bytes += FRAME_HEAD + k->len[whole++];
	read = read_row(k, &b, &end, &other);
	buf_printf(why, "%zu of %zu whole frames, ended by %d", read, whole, (int)end);
	return read == whole && !other && end == (bytes == b.len ? FRAME_END : FRAME_TORN);
}

static bool
a_flipped_bit_ends_the_row_at_its_frame(const void *c, struct buf *why)
{
	const struct row *k = c;
	in_place(buf) struct buf b = {.max = 10000};
	size_t bit, hit = 0, bytes = 0, read;
	enum frame_result end;
	bool other;

	write_row(k, &b);
	if (b.len == 0)
		return true;
	bit = b.len * 8 * k->flip / 1000;
	b.data[bit / 8] = (char)(b.data[bit / 8] ^ 1 << bit % 8);
	while (bytes + FRAME_HEAD + k->len[hit] <= bit / 8)
		bytes += FRAME_HEAD + k->len[hit++];
	read = read_row(k, &b, &end, &other);
	buf_printf(why, "%zu frames before the one hit, %zu, ended by %d", read, hit, (int)end);
	return read == hit && !other && (end == FRAME_BAD || end == FRAME_TORN);
}

static bool
both_crcs_agree_on_any_bytes(const void *c, struct buf *why)
{
	const struct row *k = c;
	size_t cut = k->noise_len * k->cut / 1000;
	uint32_t fast = crc32c(0, k->noise, k->noise_len), slow = crc32c_portable(0, k->noise, k->noise_len);

	buf_printf(why, "0x%08" PRIx32 " and 0x%08" PRIx32, fast, slow);
	return fast == slow && crc32c(crc32c_portable(0, k->noise, cut), k->noise + cut, k->noise_len - cut) == fast;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"whole rows come back", sizeof(struct row), generate, whole_rows_come_back, describe, NULL},
		{"a cut row gives the whole frames before the cut", sizeof(struct row), generate,
	         a_cut_row_gives_the_whole_frames_before_the_cut, describe, NULL},
		{"a flipped bit ends the row at its frame", sizeof(struct row), generate,
	         a_flipped_bit_ends_the_row_at_its_frame, describe, NULL},
		{"the CRC is the same by table and by instruction, whole and in pieces", sizeof(struct row), generate,
	         both_crcs_agree_on_any_bytes, describe, NULL},
	};

	return prop_main("frame", tests, ARRAY_LEN(tests));
}

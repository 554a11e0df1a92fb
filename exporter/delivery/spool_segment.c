/* exporter/delivery/spool_segment.c - the bytes of one spool segment. */
#include "exporter/delivery/spool_segment.h"

#include <string.h>

#include "common/wire/frame.h"
#include "common/base/text.h"

static const char magic[8] = {'T', 'G', 'S', 'P', 'O', 'O', 'L', '\n'};

/* magic 8, version 2, node length 2, flags 4, boot id 16, epoch 8, first seq 8; then the node and the CRC */
#define FIXED_LEN 48u
#define CRC_LEN 4u

static void
put_le(struct buf *out, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		buf_char(out, (char)(v >> (8 * i)));
}

static uint64_t
get_le(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

size_t
segment_head_len(const char *node)
{
	return FIXED_LEN + strlen(node) + CRC_LEN;
}

void
segment_head_write(const struct segment_head *h, struct buf *out)
{
	size_t start = out->len, node_len = strlen(h->node);

	buf_add(out, magic, sizeof(magic));
	put_le(out, SEGMENT_VERSION, 2);
	put_le(out, node_len, 2);
	put_le(out, h->flags, 4);
	buf_add(out, h->boot_id, sizeof(h->boot_id));
	put_le(out, h->epoch, 8);
	put_le(out, h->first_seq, 8);
	buf_add(out, h->node, node_len);
	put_le(out, crc32c(0, out->data + start, out->len - start), CRC_LEN);
}

bool
segment_head_read(const void *data, size_t n, struct segment_head *ret, size_t *ret_len, struct err *err)
{
	const uint8_t *p = data;
	struct segment_head h = {0};
	size_t node_len, len;

	if (n < FIXED_LEN || memcmp(p, magic, sizeof(magic)) != 0)
		return err_set(err, ERR_INVALID, "no segment head");
	node_len = (size_t)get_le(p + 10, 2);
	len = FIXED_LEN + node_len;
	if (node_len > WIRE_MAX_TEXT || len + CRC_LEN > n)
		return err_set(err, ERR_INVALID, "a node name of %zu bytes does not fit", node_len);
	if (get_le(p + len, CRC_LEN) != crc32c(0, p, len))
		return err_set(err, ERR_INVALID, "the CRC of the head is wrong");
	if (get_le(p + 8, 2) != SEGMENT_VERSION)
		return err_set(err, ERR_RETRY, "segment version %u is not known", (unsigned)get_le(p + 8, 2));
	h.flags = (uint32_t)get_le(p + 12, 4);
	memcpy(h.boot_id, p + 16, sizeof(h.boot_id));
	h.epoch = get_le(p + 32, 8);
	h.first_seq = get_le(p + 40, 8);
	memcpy(h.node, p + FIXED_LEN, node_len);
	if (h.epoch < 1 || h.epoch > INT64_MAX || h.first_seq < 1 || h.first_seq > INT64_MAX || node_len == 0 ||
	    strlen(h.node) != node_len || !text_is_clean(h.node))
		return err_set(err, ERR_INVALID, "the head has an impossible epoch, sequence number or node");
	*ret = h;
	*ret_len = len + CRC_LEN;
	return true;
}

/* Compares a batch with its place in the stream. A batch of a version that is not known is passed on as it is. */
static bool
check_batch(struct segment_scan *s, const uint8_t *payload, size_t len, uint64_t seq)
{
	owned(wire_batch) struct wire_batch *b = NULL;
	bool first = seq == s->head.first_seq;
	struct err err;

	if (!wire_unpack(payload, len, &b, &err))
		return err.kind == ERR_RETRY;
	if (b->epoch != s->head.epoch || b->seq != seq || strcmp(b->node, s->head.node) != 0 ||
	    memcmp(b->boot_id, s->head.boot_id, sizeof(b->boot_id)) != 0)
		return false;
	if (b->kind == WIRE_LOSS) {
		if (!first || b->last_seq < seq || b->last_seq >= INT64_MAX)
			return false;
		s->loss = true;
		s->last_seq = b->last_seq;
	}
	if (first)
		s->from_ns = b->from_ns;
	s->to_ns = b->to_ns;
	return true;
}

/* One frame further; false at the end of what is sound. */
static bool
scan_frame(struct segment_scan *s, const uint8_t *payload, size_t len, size_t end)
{
	if (s->loss || (s->frames == 0 && !check_batch(s, payload, len, s->head.first_seq)))
		return false;
	s->frames++;
	if (!s->loss)
		s->last_seq = s->head.first_seq + s->frames - 1;
	s->sound_bytes = end;
	return true;
}

bool
segment_scan(const void *data, size_t n, struct segment_scan *ret, struct err *err)
{
	const uint8_t *payload = NULL, *last = NULL;
	struct segment_scan s = {0}, first_only = {0};
	size_t pos, last_len = 0, len = 0;
	enum frame_result r;

	if (!segment_head_read(data, n, &s.head, &pos, err))
		return false;
	s.sound_bytes = pos;
	s.last_seq = s.head.first_seq - 1;
	while ((r = frame_next(data, n, &pos, &payload, &len)) == FRAME_OK) {
		if (!scan_frame(&s, payload, len, pos))
			break;
		if (s.frames == 1)
			first_only = s;
		last = payload;
		last_len = len;
	}
	s.end = r == FRAME_END ? SEGMENT_WHOLE : r == FRAME_TORN ? SEGMENT_TORN : SEGMENT_BAD;
	/* the last one tells whether the numbers in between are what they are counted to be */
	if (s.frames > 1 && !check_batch(&s, last, last_len, s.last_seq)) {
		s = first_only;
		s.end = SEGMENT_BAD;
	}
	*ret = s;
	return true;
}

/* common/wire/wire_encode.c - a batch to bytes. */
#include <string.h>

#include "common/wire/wire_layout.h"

/* Seven bits a byte, low bits first, the high bit set on all but the last. */
static size_t
put_varint(uint8_t *to, uint64_t v)
{
	size_t n = 0;

	while (v >= 0x80) {
		to[n++] = (uint8_t)(v | 0x80);
		v >>= 7;
	}
	to[n++] = (uint8_t)v;
	return n;
}

/* Small numbers of either sign become small numbers: 0, -1, 1, -2 are 0, 1, 2, 3. */
static uint64_t
zigzag(int64_t v)
{
	return (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}

static void
add_varint(struct buf *out, uint64_t v)
{
	uint8_t bytes[10];

	buf_add(out, bytes, put_varint(bytes, v));
}

static bool
add_text(struct buf *out, const char *thing, const struct wire_field *f, const char *text, struct err *err)
{
	size_t len;

	if (!text)
		return err_set(err, ERR_INVALID, "%s: %s is NULL", thing, f->name);
	len = strlen(text);
	if (len > wire_text_max(f->type))
		return err_set(err, ERR_INVALID, "%s: %s has %zu bytes, the limit is %zu", thing, f->name, len,
		               wire_text_max(f->type));
	add_varint(out, len);
	buf_add(out, text, len);
	return true;
}

/* A version has no place for the fields that came after it: nothing may be in them that would be lost. */
static bool
check_later_fields(const struct wire_layout *l, uint32_t version, const void *thing, struct err *err)
{
	for (size_t i = wire_field_count(l, version); i < l->count; i++) {
		const struct wire_field *f = &l->fields[i];
		const char *text = wire_is_text(f->type) ? wire_text(thing, f) : NULL;

		if (text && text[0])
			return err_set(err, ERR_INVALID,
			               "%s: %s is '%.200s', which version %" PRIu32 " has no place for", l->thing,
			               f->name, text, version);
	}
	return true;
}

/* One struct field by field: texts with their length, unsigned numbers as varints, signed ones zigzagged. */
static bool
add_thing(struct buf *out, const struct wire_layout *l, uint32_t version, const void *thing, struct err *err)
{
	size_t count = wire_field_count(l, version);

	for (size_t i = 0; i < count; i++) {
		const struct wire_field *f = &l->fields[i];

		switch (f->type) {
		case WIRE_TEXT:
		case WIRE_LABELS:
			if (!add_text(out, l->thing, f, wire_text(thing, f), err))
				return false;
			break;
		case WIRE_BOOT: buf_add(out, wire_at(thing, f), WIRE_BOOT_ID_SIZE); break;
		case WIRE_U32:
		case WIRE_U64: add_varint(out, (uint64_t)wire_number(thing, f)); break;
		case WIRE_I32:
		case WIRE_I64: add_varint(out, zigzag(wire_number(thing, f))); break;
		}
	}
	return check_later_fields(l, version, thing, err);
}

static bool
add_dictionary(struct buf *out, const struct wire_layout *l, uint32_t version, const void *things, size_t count,
               struct err *err)
{
	if (count > WIRE_MAX_DICT)
		return err_set(err, ERR_INVALID, "%zu %ss in one batch, the limit is %u", count, l->thing,
		               WIRE_MAX_DICT);
	add_varint(out, count);
	for (size_t i = 0; i < count; i++)
		if (!add_thing(out, l, version, (const char *)things + i * l->size, err))
			return false;
	return true;
}

/* The differences of one field from record to record, from 0 on, or from what the record's peak foretells, into `column`. */
static bool
fill_column(const struct wire_batch *b, const struct wire_field *f, uint8_t *column, size_t *ret_len, struct err *err)
{
	bool by_peak = wire_is_by_peak(f, b->version);
	int64_t before = 0;
	size_t len = 0;

	for (size_t i = 0; i < b->record_count; i++) {
		int64_t v = wire_number(&b->records[i], f), step;

		if (by_peak)
			before = wire_memory_at_peak(&b->records[i]);
		if (__builtin_sub_overflow(v, before, &step))
			return err_set(err, ERR_INVALID,
			               "record %zu: %s is %" PRId64 " after %" PRId64 ", a difference beyond 64 bits",
			               i, f->name, v, before);
		len += put_varint(column + len, zigzag(step));
		before = v;
	}
	*ret_len = len;
	return true;
}

/* A column that came after the version of the batch must be empty. */
static bool
check_later_column(const struct wire_batch *b, const struct wire_field *f, struct err *err)
{
	for (size_t i = 0; i < b->record_count; i++)
		if (wire_number(&b->records[i], f) != 0)
			return err_set(err, ERR_INVALID,
			               "record %zu: %s is %" PRId64 ", which version %" PRIu32 " has no place for", i,
			               f->name, wire_number(&b->records[i], f), b->version);
	return true;
}

static bool
add_records(const struct wire_batch *b, struct buf *out, struct err *err)
{
	size_t columns = wire_field_count(&wire_record_layout, b->version);
	owned(mem) uint8_t *column = NULL;

	if (b->record_count > WIRE_MAX_RECORDS)
		return err_set(err, ERR_INVALID, "%zu records in one batch, the limit is %u", b->record_count,
		               WIRE_MAX_RECORDS);
	column = mem_array(b->record_count, 10);
	add_varint(out, b->record_count);
	for (size_t i = 0; i < columns; i++) {
		size_t len = 0;

		if (!fill_column(b, &wire_record_layout.fields[i], column, &len, err))
			return false;
		add_varint(out, len);
		buf_add(out, column, len);
	}
	for (size_t i = columns; i < wire_record_layout.count; i++)
		if (!check_later_column(b, &wire_record_layout.fields[i], err))
			return false;
	return true;
}

bool
wire_encode(const struct wire_batch *b, struct buf *out, struct err *err)
{
	size_t start = out->len;
	uint32_t v = b->version;

	if (v < WIRE_OLDEST_VERSION || v > WIRE_VERSION)
		return err_set(err, ERR_INVALID, "version is %" PRIu32 ", %d to %d can be written", v,
		               WIRE_OLDEST_VERSION, WIRE_VERSION);
	buf_add(out, WIRE_MAGIC, WIRE_MAGIC_SIZE);
	buf_char(out, (char)v);
	if (add_thing(out, &wire_head, v, b, err) &&
	    add_dictionary(out, &wire_device_layout, v, b->devices, b->device_count, err) &&
	    add_dictionary(out, &wire_holder_layout, v, b->holders, b->holder_count, err) && add_records(b, out, err) &&
	    buf_ok(out, "the batch", err))
		return true;
	/* also after an overflow, so that the buffer's owner can go on with what it held */
	out->over = false;
	if (out->data) {
		out->len = start;
		out->data[start] = '\0';
	}
	return false;
}

/* common/wire/wire_decode.c - bytes to a batch. The bytes are hostile until they have passed: counts are held against their caps
 * and against the bytes that are left before anything is allocated, every number has one spelling only, and no sum wraps. */
#include <string.h>

#include "common/wire/wire_layout.h"

struct cursor {
	const uint8_t *start, *at, *end;
	uint32_t version;
};

static size_t
left(const struct cursor *c)
{
	return (size_t)(c->end - c->at);
}

static bool
unsound(const struct cursor *c, const char *name, const char *why, struct err *err)
{
	return err_set(err, ERR_INVALID, "byte %zu: %s: %s", (size_t)(c->at - c->start), name, why);
}

/* At most ten bytes, the tenth at most 1, and no zero byte at the end of a longer one: a second spelling of the same number
 * would make two batches of the same content differ in their bytes. */
static bool
get_varint(struct cursor *c, const char *name, uint64_t *ret, struct err *err)
{
	const uint8_t *p = c->at;
	uint64_t v = 0;

	for (unsigned shift = 0; p < c->end; shift += 7) {
		uint8_t byte = *p++;

		if (shift == 63 && byte > 1)
			return unsound(c, name, "a number of more than 64 bits", err);
		v |= (uint64_t)(byte & 0x7f) << shift;
		if (byte & 0x80)
			continue;
		if (byte == 0 && shift > 0)
			return unsound(c, name, "a number with needless bytes", err);
		c->at = p;
		*ret = v;
		return true;
	}
	return unsound(c, name, "the bytes end inside a number", err);
}

static int64_t
unzigzag(uint64_t v)
{
	return (int64_t)(v >> 1 ^ (0 - (v & 1)));
}

static bool
get_text(struct cursor *c, const struct wire_field *f, char **ret, struct err *err)
{
	uint64_t len;

	if (!get_varint(c, f->name, &len, err))
		return false;
	if (len > wire_text_max(f->type))
		return unsound(c, f->name,
		               f->type == WIRE_LABELS ? "a text over the limit of 6111 bytes"
		                                      : "a text over the limit of 512 bytes",
		               err);
	_Static_assert(WIRE_MAX_TEXT == 512 && LABELS_MAX_TEXT == 6111, "the messages above say 512 and 6111");
	if (len > left(c))
		return unsound(c, f->name, "the bytes end inside a text", err);
	if (memchr(c->at, '\0', (size_t)len))
		return unsound(c, f->name, "a NUL byte in a text", err);
	*ret = mem_strndup((const char *)c->at, (size_t)len);
	c->at += len;
	return true;
}

static bool
fits(int64_t v, enum wire_type type)
{
	switch (type) {
	case WIRE_U32: return v >= 0 && v <= UINT32_MAX;
	case WIRE_I32: return v >= INT32_MIN && v <= INT32_MAX;
	default: return true;
	}
}

static void
put_number(void *to, enum wire_type type, int64_t v)
{
	if (type == WIRE_U32)
		*(uint32_t *)to = (uint32_t)v;
	else if (type == WIRE_I32)
		*(int32_t *)to = (int32_t)v;
	else if (type == WIRE_U64)
		*(uint64_t *)to = (uint64_t)v;
	else
		*(int64_t *)to = v;
}

static bool
get_number(struct cursor *c, const struct wire_field *f, void *to, struct err *err)
{
	bool is_signed = f->type == WIRE_I32 || f->type == WIRE_I64;
	uint64_t raw;

	if (!get_varint(c, f->name, &raw, err))
		return false;
	if (f->type == WIRE_U32 && raw > UINT32_MAX)
		return unsound(c, f->name, "more than 32 bits", err);
	if (is_signed && !fits(unzigzag(raw), f->type))
		return unsound(c, f->name, "more than 32 bits", err);
	put_number(to, f->type, is_signed ? unzigzag(raw) : (int64_t)raw);
	return true;
}

static bool
get_boot_id(struct cursor *c, void *to, struct err *err)
{
	if (left(c) < WIRE_BOOT_ID_SIZE)
		return unsound(c, "boot_id", "the bytes end inside it", err);
	memcpy(to, c->at, WIRE_BOOT_ID_SIZE);
	c->at += WIRE_BOOT_ID_SIZE;
	return true;
}

/* Fields that the batch's version does not have are left empty. */
static bool
get_thing(struct cursor *c, const struct wire_layout *l, char *thing, struct err *err)
{
	size_t count = wire_field_count(l, c->version);

	for (size_t i = count; i < l->count; i++)
		if (wire_is_text(l->fields[i].type))
			*(char **)(void *)(thing + l->fields[i].offset) = mem_strdup("");
	for (size_t i = 0; i < count; i++) {
		const struct wire_field *f = &l->fields[i];
		void *to = thing + f->offset;
		bool ok;

		if (wire_is_text(f->type))
			ok = get_text(c, f, to, err);
		else if (f->type == WIRE_BOOT)
			ok = get_boot_id(c, to, err);
		else
			ok = get_number(c, f, to, err);
		if (!ok)
			return false;
	}
	return true;
}

/* A count of things of which each takes at least least_bytes of what is left. */
static bool
get_count(struct cursor *c, const char *thing, size_t cap, size_t least_bytes, size_t *ret, struct err *err)
{
	uint64_t n;

	ASSERT(least_bytes > 0);
	if (!get_varint(c, thing, &n, err))
		return false;
	if (n > cap)
		return err_set(err, ERR_INVALID, "%" PRIu64 " %ss in one batch, the limit is %zu", n, thing, cap);
	if (n > left(c) / least_bytes)
		return err_set(err, ERR_INVALID, "%" PRIu64 " %ss are announced, the %zu bytes left cannot hold them",
		               n, thing, left(c));
	*ret = (size_t)n;
	return true;
}

/* *ret_count moves with each entry begun, so that a batch that fails half-way frees what it has. */
static bool
get_dictionary(struct cursor *c, const struct wire_layout *l, void **ret_things, size_t *ret_count, struct err *err)
{
	size_t count;
	char *things;

	if (!get_count(c, l->thing, WIRE_MAX_DICT, wire_field_count(l, c->version), &count, err))
		return false;
	if (count == 0)
		return true;
	*ret_things = things = mem_array(count, l->size);
	for (size_t i = 0; i < count; i++) {
		*ret_count = i + 1;
		if (!get_thing(c, l, things + i * l->size, err))
			return err_prefix(err, "%s %zu", l->thing, i);
	}
	return true;
}

static bool
get_column(struct cursor *c, const struct wire_field *f, struct wire_record *records, size_t count, struct err *err)
{
	bool by_peak = wire_is_by_peak(f, c->version);
	struct cursor column;
	int64_t v = 0;
	uint64_t len;

	if (!get_varint(c, f->name, &len, err))
		return false;
	if (len > left(c))
		return unsound(c, f->name, "the bytes end inside the column", err);
	column = (struct cursor){c->start, c->at, c->at + len, c->version};
	c->at += len;
	for (size_t i = 0; i < count; i++) {
		uint64_t raw;

		/* most differences are one byte */
		if (column.at < column.end && *column.at < 0x80)
			raw = *column.at++;
		else if (!get_varint(&column, f->name, &raw, err))
			return err_prefix(err, "record %zu", i);
		if (by_peak)
			v = 0; /* the peak, which comes later, is added by get_records */
		if (__builtin_add_overflow(v, unzigzag(raw), &v) || !fits(v, f->type))
			return err_set(err, ERR_INVALID, "record %zu: %s leaves its %d bits", i, f->name,
			               f->type == WIRE_U32 ? 32 : 64);
		put_number((char *)&records[i] + f->offset, f->type, v);
	}
	if (column.at != column.end)
		return err_set(err, ERR_INVALID, "column %s has %zu bytes more than its %zu records", f->name,
		               left(&column), count);
	return true;
}

static bool
get_records(struct cursor *c, struct wire_batch *b, struct err *err)
{
	size_t columns = wire_field_count(&wire_record_layout, c->version);

	if (!get_count(c, "record", WIRE_MAX_RECORDS, columns, &b->record_count, err))
		return false;
	if (b->record_count)
		b->records = mem_array(b->record_count, sizeof(*b->records));
	for (size_t i = 0; i < columns; i++)
		if (!get_column(c, &wire_record_layout.fields[i], b->records, b->record_count, err))
			return false;
	for (size_t i = 0; c->version >= WIRE_MEMORY_BY_PEAK && i < b->record_count; i++) {
		struct wire_record *r = &b->records[i];

		if (__builtin_add_overflow(r->memory_byte_ms, wire_memory_at_peak(r), &r->memory_byte_ms))
			return err_set(err, ERR_INVALID, "record %zu: memory_byte_ms leaves its 64 bits", i);
	}
	return true;
}

static bool
get_version(struct cursor *c, struct err *err)
{
	uint32_t version;

	if (left(c) < WIRE_MAGIC_SIZE + 1 || memcmp(c->at, WIRE_MAGIC, WIRE_MAGIC_SIZE) != 0)
		return err_set(err, ERR_INVALID, "not a batch: it does not begin with " WIRE_MAGIC);
	version = c->at[WIRE_MAGIC_SIZE];
	if (version < WIRE_OLDEST_VERSION || version > WIRE_VERSION)
		return err_set(err, ERR_RETRY, "wire version %" PRIu32 " is not known here; versions %d to %d are",
		               version, WIRE_OLDEST_VERSION, WIRE_VERSION);
	c->at += WIRE_MAGIC_SIZE + 1;
	c->version = version;
	return true;
}

bool
wire_decode(const void *body, size_t n, struct wire_batch **ret, struct err *err)
{
	owned(wire_batch) struct wire_batch *b = wire_batch_new();
	void *devices = NULL, *holders = NULL;
	struct cursor c = {body, body, body, 0};
	bool ok;

	if (n > 0) /* body may be NULL when there is nothing */
		c.end += n;
	if (n > WIRE_MAX_BODY)
		return err_set(err, ERR_INVALID, "a batch of %zu bytes, the limit is %u", n, WIRE_MAX_BODY);
	if (!get_version(&c, err) || !get_thing(&c, &wire_head, (char *)b, err))
		return false;
	b->version = c.version;
	ok = get_dictionary(&c, &wire_device_layout, &devices, &b->device_count, err) &&
	     get_dictionary(&c, &wire_holder_layout, &holders, &b->holder_count, err);
	b->devices = devices;
	b->holders = holders;
	if (!ok || !get_records(&c, b, err))
		return false;
	if (c.at != c.end)
		return err_set(err, ERR_INVALID, "%zu bytes follow the end of the batch", left(&c));
	*ret = take(b);
	return true;
}

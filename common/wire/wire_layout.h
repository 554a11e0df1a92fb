/* common/wire/wire_layout.h - the fields of a batch in the order of the wire, as tables that encoder, decoder and checks share.
 * Only for wire*.c; the format is drawn in WIRE.md. */
#ifndef TOLLGATE_WIRE_LAYOUT_H
#define TOLLGATE_WIRE_LAYOUT_H

#include "common/base/time.h"
#include "common/wire/wire.h"

enum wire_type { WIRE_TEXT, WIRE_LABELS, WIRE_U32, WIRE_I32, WIRE_U64, WIRE_I64, WIRE_BOOT };

/* One field of a batch, a device, a holder or a record. wire_check() enforces the range; the decoder only the type. */
struct wire_field {
	const char *name;
	enum wire_type type;
	size_t offset;
	int64_t min, max;
	uint32_t since; /* the first version that has it; the fields are in ascending order of it */
};

struct wire_layout {
	const char *thing; /* "device" */
	const struct wire_field *fields;
	size_t count;
	size_t size; /* of the struct */
};

extern const struct wire_layout wire_head, wire_device_layout, wire_holder_layout, wire_record_layout;

/* "TGW" and the version. */
#define WIRE_MAGIC "TGW"
#define WIRE_MAGIC_SIZE 3u

/* The number of fields that a version has. */
static inline size_t
wire_field_count(const struct wire_layout *l, uint32_t version)
{
	size_t n = l->count;

	while (n > 0 && l->fields[n - 1].since > version)
		n--;
	return n;
}

static inline bool
wire_is_text(enum wire_type type)
{
	return type == WIRE_TEXT || type == WIRE_LABELS;
}

/* The longest text that the decoder accepts; wire_check() enforces the limit of each field. */
static inline size_t
wire_text_max(enum wire_type type)
{
	return type == WIRE_LABELS ? LABELS_MAX_TEXT : WIRE_MAX_TEXT;
}

static inline const void *
wire_at(const void *thing, const struct wire_field *f)
{
	return (const char *)thing + f->offset;
}

/* The value of a number field. A U64 above INT64_MAX comes out negative; the caller must check for it. */
static inline int64_t
wire_number(const void *thing, const struct wire_field *f)
{
	const void *p = wire_at(thing, f);

	switch (f->type) {
	case WIRE_U32: return *(const uint32_t *)p;
	case WIRE_I32: return *(const int32_t *)p;
	case WIRE_I64: return *(const int64_t *)p;
	case WIRE_U64: return (int64_t) * (const uint64_t *)p;
	default: return 0;
	}
}

/* Memory mostly stays: then memory_byte_ms is the peak x the duration, and one of the two columns says nothing new. From version 4 on the
 * former is written as its difference from that product. 0 where there is no peak, and where the product is beyond 63 bits. */
#define WIRE_MEMORY_BY_PEAK 4u

static inline bool
wire_is_by_peak(const struct wire_field *f, uint32_t version)
{
	return version >= WIRE_MEMORY_BY_PEAK && f->offset == offsetof(struct wire_record, memory_byte_ms);
}

static inline int64_t
wire_memory_at_peak(const struct wire_record *r)
{
	int128 v = (int128)r->peak_memory_bytes * r->duration_ns / NS_PER_MS;

	return r->peak_memory_bytes <= 0 || r->duration_ns <= 0 || v > INT64_MAX ? 0 : (int64_t)v;
}

static inline const char *
wire_text(const void *thing, const struct wire_field *f)
{
	return *(const char *const *)wire_at(thing, f);
}

#endif

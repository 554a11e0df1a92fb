/* aggregator/core/rating/records.h - structs as lines of an archived text, and back. Pure.
 *
 * One line per record, fields between tabs; the first letter is the record's type. Numbers are whole, in the scale of their field; a NULL
 * text is \N; backslash, tab and line ends are written \\ \t \n \r. The same records always give the same bytes. */
#ifndef TOLLGATE_RECORDS_H
#define TOLLGATE_RECORDS_H

#include "common/base/money.h"

enum record_field_type { FIELD_TEXT, FIELD_I128, FIELD_I64, FIELD_I32, FIELD_BOOL };
struct record_field {
	size_t offset;
	enum record_field_type type;
};
/* RECORD_FIELD(TEXT, struct thing, name) */
#define RECORD_FIELD(kind, type, name)             \
	{                                          \
		offsetof(type, name), FIELD_##kind \
	}

struct record_type {
	char letter;
	size_t size; /* of the struct */
	const struct record_field *fields;
	size_t count;
	size_t later; /* how many of the last fields older texts do not have. Trailing ones that are 0 or NULL are not written */
};

void record_write(const struct record_type *type, const void *record, struct buf *out);

/* Records of a kind, one after the other, as an array of its structs. */
struct record_list {
	void *at;
	size_t count, cap;
};
struct records {
	char *text; /* texts of the records point into it */
	const struct record_type *types;
	struct record_list *lists; /* one for each type */
	size_t type_count;
	size_t last; /* the type of the record before */
};
/* Called after each record with the number of its type: false refuses it at this place. */
typedef bool record_seen(struct records *r, size_t type);
void records_init(struct records *r, const struct record_type *types, size_t type_count);
void records_fini(struct records *r);
/* Call it once. ERR_INVALID: line N "is not <what>". seen may be NULL. */
MUST_CHECK bool records_read(struct records *r, const char *text, size_t len, const char *what, record_seen *seen,
                             struct err *err);

#endif

/* aggregator/core/quota/book/quota_book_row.h - structures as JSON objects and back, from one table of columns for both ways. For the quota
 * book's own files. A column that is 0, false or "" is left out, so that a text is short and there is one text for a value. */
#ifndef TOLLGATE_QUOTA_BOOK_ROW_H
#define TOLLGATE_QUOTA_BOOK_ROW_H

#include <stddef.h>

#include "aggregator/core/quota/engine/quota_memory.h"
#include "common/base/buf.h"
#include "common/conf/json.h"

enum book_type {
	BOOK_I32,
	BOOK_I64,
	BOOK_NS, /* a time or a duration: far from where sums of them do not fit */
	BOOK_BOOL,
	BOOK_ENUM,
	BOOK_TEXT
};
#define BOOK_MAX_NS (INT64_C(1) << 62)

struct book_column {
	const char *key;
	enum book_type type;
	size_t offset;
	int max; /* of an enum */
};
#define BOOK_COLUMN(key, type, structure, member)                \
	{                                                        \
		key, type, offsetof(struct structure, member), 0 \
	}
#define BOOK_CHOICE(key, structure, member, max)                        \
	{                                                               \
		key, BOOK_ENUM, offsetof(struct structure, member), max \
	}

/* The members without the braces; true when there was one. */
bool book_row_write(const struct book_column *columns, size_t count, const void *row, struct buf *out);

/* All members are columns or one of the NULL-ended others. Texts are kept in *m. */
MUST_CHECK bool book_row_read(const struct book_column *columns, size_t count, const char *const *others,
                              const json_t *object, struct quota_memory **m, void *row, struct err *err);

/* The list under a key, of at most max; none when the key is missing. */
MUST_CHECK bool book_list_read(const json_t *object, const char *key, size_t max, const json_t **ret, size_t *ret_count,
                               struct err *err);

#endif

/* aggregator/core/quota/book/quota_book_row.c - structures as JSON objects and back, from one table of columns. */
#include "aggregator/core/quota/book/quota_book_row.h"

#include <string.h>

static int64_t
value_of(const struct book_column *c, const void *row)
{
	const char *at = (const char *)row + c->offset;
	int32_t i32;
	int64_t i64;
	bool b;

	switch (c->type) {
	case BOOK_I64:
	case BOOK_NS: memcpy(&i64, at, sizeof(i64)); return i64;
	case BOOK_BOOL: memcpy(&b, at, sizeof(b)); return b;
	default: memcpy(&i32, at, sizeof(i32)); return i32;
	}
}

static void
key(const char *name, bool first, struct buf *out)
{
	buf_str(out, first ? "\"" : ",\"");
	buf_str(out, name);
	buf_str(out, "\":");
}

bool
book_row_write(const struct book_column *columns, size_t count, const void *row, struct buf *out)
{
	bool any = false;

	for (size_t i = 0; i < count; i++) {
		const struct book_column *c = &columns[i];

		if (c->type == BOOK_TEXT) {
			const char *text;

			memcpy(&text, (const char *)row + c->offset, sizeof(text));
			if (!text || text[0] == '\0')
				continue;
			key(c->key, !any, out);
			json_write_string(text, out);
		} else {
			int64_t value = value_of(c, row);

			if (value == 0)
				continue;
			key(c->key, !any, out);
			if (c->type == BOOK_BOOL)
				buf_str(out, "true");
			else
				buf_i64(out, value);
		}
		any = true;
	}
	return any;
}

static bool
read_value(const struct book_column *c, const json_t *v, struct quota_memory **m, char *at)
{
	int64_t value = json_is_integer(v) ? json_integer_value(v) : 0;
	int32_t i32 = (int32_t)value;
	const char *text;
	bool b;

	switch (c->type) {
	case BOOK_TEXT:
		if (!json_is_string(v))
			return false;
		text = quota_keep_text(m, json_string_value(v));
		memcpy(at, &text, sizeof(text));
		return true;
	case BOOK_BOOL:
		b = json_is_true(v);
		memcpy(at, &b, sizeof(b));
		return json_is_boolean(v);
	case BOOK_I64: memcpy(at, &value, sizeof(value)); return json_is_integer(v);
	case BOOK_NS:
		memcpy(at, &value, sizeof(value));
		return json_is_integer(v) && value >= -BOOK_MAX_NS && value <= BOOK_MAX_NS;
	case BOOK_I32:
	case BOOK_ENUM: break;
	}
	memcpy(at, &i32, sizeof(i32));
	return json_is_integer(v) && value == i32 && (c->type == BOOK_I32 || (value >= 0 && value <= c->max));
}

bool
book_row_read(const struct book_column *columns, size_t count, const char *const *others, const json_t *object,
              struct quota_memory **m, void *row, struct err *err)
{
	size_t found = 0;

	if (!json_is_object(object))
		return err_set(err, ERR_INVALID, "an object is expected");
	for (size_t i = 0; i < count; i++) {
		const json_t *v = json_object_get(object, columns[i].key);

		if (!v)
			continue;
		if (!read_value(&columns[i], v, m, (char *)row + columns[i].offset))
			return err_set(err, ERR_INVALID, "field '%s' is not what it should be", columns[i].key);
		found++;
	}
	for (size_t i = 0; others && others[i]; i++)
		found += json_object_get(object, others[i]) != NULL;
	if (found != json_object_size(object))
		return err_set(err, ERR_INVALID, "a field is not known");
	return true;
}

bool
book_list_read(const json_t *object, const char *name, size_t max, const json_t **ret, size_t *ret_count,
               struct err *err)
{
	const json_t *list = json_object_get(object, name);

	*ret = list;
	*ret_count = json_array_size(list);
	if (list && (!json_is_array(list) || *ret_count > max))
		return err_set(err, ERR_INVALID, "field '%s' is not a list of at most %zu", name, max);
	return true;
}

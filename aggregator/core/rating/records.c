/* aggregator/core/rating/records.c - structs as lines of an archived text, and back. */
#include "aggregator/core/rating/records.h"

#include <string.h>

#include "common/base/text.h"

/* --- writing --- */

static void
write_text(const char *text, struct buf *out)
{
	static const char plain[] = "\\\t\n\r", escaped[] = "\\tnr";

	if (text == NULL) {
		buf_str(out, "\\N");
		return;
	}
	for (size_t n; *text != '\0'; text += n) {
		n = strcspn(text, plain);
		buf_add(out, text, n);
		if (text[n] == '\0')
			return;
		buf_char(out, '\\');
		buf_char(out, escaped[strchr(plain, text[n]) - plain]);
		n++;
	}
}

static void
write_field(const void *at, enum record_field_type type, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE];

	switch (type) {
	case FIELD_TEXT: write_text(*(const char *const *)at, out); break;
	case FIELD_I128: buf_str(out, decimal_format(*(const int128 *)at, 0, 0, text)); break;
	case FIELD_I64: buf_i64(out, *(const int64_t *)at); break;
	case FIELD_I32: buf_i64(out, *(const int32_t *)at); break;
	case FIELD_BOOL: buf_char(out, *(const bool *)at ? '1' : '0'); break;
	}
}

static bool
is_zero(const void *at, enum record_field_type type)
{
	switch (type) {
	case FIELD_TEXT: return *(const char *const *)at == NULL;
	case FIELD_I128: return *(const int128 *)at == 0;
	case FIELD_I64: return *(const int64_t *)at == 0;
	case FIELD_I32: return *(const int32_t *)at == 0;
	case FIELD_BOOL: return !*(const bool *)at;
	}
	return false;
}

/* How many fields are written. */
static size_t
written(const struct record_type *type, const void *record)
{
	size_t count = type->count;

	while (count > type->count - type->later &&
	       is_zero((const char *)record + type->fields[count - 1].offset, type->fields[count - 1].type))
		count--;
	return count;
}

void
record_write(const struct record_type *type, const void *record, struct buf *out)
{
	const size_t count = written(type, record);

	buf_char(out, type->letter);
	for (size_t i = 0; i < count; i++) {
		buf_char(out, '\t');
		write_field((const char *)record + type->fields[i].offset, type->fields[i].type, out);
	}
	buf_char(out, '\n');
}

/* --- reading --- */

void
records_init(struct records *r, const struct record_type *types, size_t type_count)
{
	*r = (struct records){.types = types,
	                      .type_count = type_count,
	                      .lists = mem_array(type_count, sizeof(*r->lists))};
}

void
records_fini(struct records *r)
{
	for (size_t i = 0; i < r->type_count; i++)
		mem_free(r->lists[i].at);
	mem_free(r->lists);
	mem_free(r->text);
	*r = (struct records){0};
}

/* In place: a text is never longer than its escaped form. */
static bool
read_text(char *text, const char **ret)
{
	char *to = text;

	if (strcmp(text, "\\N") == 0) {
		*ret = NULL;
		return true;
	}
	*ret = text;
	for (; *text != '\0'; text++) {
		if (*text == '\r')
			return false;
		if (*text != '\\') {
			*to++ = *text;
			continue;
		}
		switch (*++text) {
		case '\\': *to++ = '\\'; break;
		case 't': *to++ = '\t'; break;
		case 'n': *to++ = '\n'; break;
		case 'r': *to++ = '\r'; break;
		default: return false;
		}
	}
	*to = '\0';
	return true;
}

/* As they are written: no zero in front, no plus. */
static bool
is_plain_number(const char *text)
{
	bool negative = text[0] == '-';

	text += negative;
	return text[0] == '0' ? text[1] == '\0' && !negative : text[0] >= '1' && text[0] <= '9';
}

static bool
read_field(char *text, enum record_field_type type, void *at)
{
	int64_t n = 0;

	if (type == FIELD_TEXT)
		return read_text(text, at);
	if (!is_plain_number(text))
		return false;
	if (type == FIELD_I128)
		return decimal_parse(text, 0, at, NULL);
	if (!text_to_i64(text, &n))
		return false;
	if (type == FIELD_I64)
		*(int64_t *)at = n;
	else if (type == FIELD_I32 && n >= INT32_MIN && n <= INT32_MAX)
		*(int32_t *)at = (int32_t)n;
	else if (type == FIELD_BOOL && (n == 0 || n == 1))
		*(bool *)at = n == 1;
	else
		return false;
	return true;
}

static bool
read_record(const struct record_type *type, struct record_list *list, char *fields)
{
	char *record;

	if (list->count == list->cap) {
		list->cap = list->cap > 0 ? 2 * list->cap : 16;
		list->at = mem_grow(list->at, list->cap, type->size);
	}
	record = (char *)list->at + list->count++ * type->size;
	memset(record, 0, type->size);
	for (size_t i = 0; i < type->count; i++) {
		char *end = fields != NULL ? strchr(fields, '\t') : NULL;

		if (fields == NULL && i >= type->count - type->later)
			return written(type, record) ==
			       i; /* the writer omits only empty fields at the end: it did not write any other line */
		if (end != NULL)
			*end++ = '\0';
		if (fields == NULL || !read_field(fields, type->fields[i].type, record + type->fields[i].offset))
			return false;
		fields = end;
	}
	return fields == NULL && written(type, record) == type->count;
}

static bool
read_line(struct records *r, char *line, record_seen *seen)
{
	for (size_t i = 0; i < r->type_count; i++)
		if (line[0] == r->types[i].letter) {
			bool ok = line[1] == '\t' && read_record(&r->types[i], &r->lists[i], line + 2) &&
			          (seen == NULL || seen(r, i));

			r->last = i;
			return ok;
		}
	return false;
}

bool
records_read(struct records *r, const char *text, size_t len, const char *what, record_seen *seen, struct err *err)
{
	size_t number = 0;

	if (len > 0 && (text[len - 1] != '\n' || memchr(text, '\0', len) != NULL))
		return err_set(err, ERR_INVALID, "the end of the last line is missing, or it is not text");
	r->text = mem_strndup(len > 0 ? text : "", len);
	for (char *line = r->text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		*end = '\0';
		number++;
		if (!read_line(r, line, seen))
			return err_set(err, ERR_INVALID, "line %zu is not %s", number, what);
	}
	return true;
}

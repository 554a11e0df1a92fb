/* common/conf/json.c - strict JSON by jansson, the same everywhere. */
#include "common/conf/json.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

/* jansson's own limit of 2048 levels is a matter of its stack, not of our documents. The scan is exact for sound JSON, and
 * what is unsound fails in the parser. */
static size_t
depth_of(const char *text, size_t len)
{
	size_t depth = 0, deepest = 0;
	bool in_string = false;

	for (size_t i = 0; i < len; i++) {
		char c = text[i];

		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
		} else if (c == '"') {
			in_string = true;
		} else if (c == '{' || c == '[') {
			if (++depth > deepest)
				deepest = depth;
		} else if ((c == '}' || c == ']') && depth > 0) {
			depth--;
		}
	}
	return deepest;
}

bool
json_parse(const char *name, const char *text, size_t len, json_t **ret, struct err *err)
{
	return json_parse_max(name, text, len, JSON_MAX_BYTES, ret, err);
}

bool
json_parse_max(const char *name, const char *text, size_t len, size_t max_bytes, json_t **ret, struct err *err)
{
	json_error_t why;
	json_t *j;

	if (len > max_bytes)
		return err_set(err, ERR_INVALID, "%s: %zu bytes are more than the limit of %zu", name, len, max_bytes);
	if (depth_of(text, len) > JSON_MAX_DEPTH)
		return err_set(err, ERR_INVALID, "%s: nested deeper than %d levels", name, JSON_MAX_DEPTH);
	j = json_loadb(len ? text : "", len, JSON_REJECT_DUPLICATES, &why);
	if (!j)
		return err_set(err, ERR_INVALID, "%s:%d:%d: %s", name, why.line, why.column, why.text);
	*ret = j;
	return true;
}

static const char *
type_name(const json_t *j)
{
	switch (json_typeof(j)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "a list";
	case JSON_STRING: return "a string";
	case JSON_INTEGER: return "a whole number";
	case JSON_REAL: return "a number with decimals";
	case JSON_TRUE:
	case JSON_FALSE: return "true or false";
	case JSON_NULL: return "null";
	}
	return "something else";
}

static bool
get_member(const json_t *obj, const char *field, const json_t **ret, struct err *err)
{
	if (!json_is_object(obj))
		return err_set(err, ERR_INVALID, "expected an object with the field '%s', found %s", field,
		               obj ? type_name(obj) : "nothing");
	*ret = json_object_get(obj, field);
	if (!*ret)
		return err_set(err, ERR_INVALID, "field '%s' is missing", field);
	return true;
}

bool
json_get_str(const json_t *obj, const char *field, const char **ret, struct err *err)
{
	const json_t *j;

	if (!get_member(obj, field, &j, err))
		return false;
	if (!json_is_string(j))
		return err_set(err, ERR_INVALID, "field '%s' must be a string, found %s", field, type_name(j));
	*ret = json_string_value(j);
	return true;
}

bool
json_get_i64(const json_t *obj, const char *field, int64_t *ret, struct err *err)
{
	const json_t *j;

	if (!get_member(obj, field, &j, err))
		return false;
	if (!json_is_integer(j))
		return err_set(err, ERR_INVALID, "field '%s' must be a whole number, found %s", field, type_name(j));
	*ret = json_integer_value(j);
	return true;
}

bool
json_only_fields(const json_t *obj, const char *const *allowed, struct err *err)
{
	if (!json_is_object(obj))
		return err_set(err, ERR_INVALID, "expected an object, found %s", obj ? type_name(obj) : "nothing");
	/* jansson's iterator is not const, though it changes nothing */
	for (void *i = json_object_iter((json_t *)(uintptr_t)obj); i;
	     i = json_object_iter_next((json_t *)(uintptr_t)obj, i)) {
		const char *field = json_object_iter_key(i);
		const char *const *a = allowed;
		const char *near;

		while (*a && strcmp(*a, field) != 0)
			a++;
		if (*a)
			continue;
		near = text_nearest(field, allowed);
		if (near)
			return err_set(err, ERR_INVALID, "unknown field '%s'; did you mean '%s'?", field, near);
		return err_set(err, ERR_INVALID, "unknown field '%s'", field);
	}
	return true;
}

/* At most JSON_MAX_DEPTH deep. */
bool
json_texts_clean(const json_t *j, struct err *err)
{
	json_t *open = (json_t *)(uintptr_t)j, *value;
	const char *key;
	size_t i;

	if (json_is_string(j))
		return text_n_is_clean(json_string_value(j), json_string_length(j)) ||
		       err_set(err, ERR_INVALID, "it is not UTF-8 text without control or direction characters");
	json_array_foreach(open, i, value)
	{
		if (!json_texts_clean(value, err))
			return false;
	}
	json_object_foreach(open, key, value)
	{
		if (!text_is_clean(key))
			return err_set(err, ERR_INVALID, "a name in the body has control or direction characters");
		if (!json_texts_clean(value, err))
			return err_prefix(err, "%s", key);
	}
	return true;
}

static int
write_some(const char *data, size_t n, void *out)
{
	buf_add(out, data, n);
	return 0;
}

/* How many digits the numbers with decimals in it need. */
static size_t
digits_of(const json_t *j)
{
	json_t *open = (json_t *)(uintptr_t)j; /* jansson's loops take no const */
	size_t digits = DBL_DIG, i;
	const char *key;
	json_t *value;
	char text[64];

	if (json_is_real(j))
		while (digits < DBL_DECIMAL_DIG) {
			snprintf(text, sizeof(text), "%.*g", (int)digits, json_real_value(j));
			if (strtod(text, NULL) == json_real_value(j))
				break;
			digits++;
		}
	json_array_foreach(open, i, value)
	{
		size_t inner = digits_of(value);

		digits = inner > digits ? inner : digits;
	}
	json_object_foreach(open, key, value)
	{
		size_t inner = digits_of(value);

		digits = inner > digits ? inner : digits;
	}
	return digits;
}

void
json_write(const json_t *j, struct buf *out)
{
	size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits_of(j));

	/* the callback never fails and a json_t of ours has no cycle: the buffer remembers what did not fit */
	ASSERT(json_dump_callback(j, write_some, out, flags) == 0);
	buf_char(out, '\n');
}

static void
write_escape(char c, struct buf *out)
{
	static const char hex[] = "0123456789abcdef";
	unsigned char u = (unsigned char)c;

	switch (c) {
	case '"': buf_str(out, "\\\""); return;
	case '\\': buf_str(out, "\\\\"); return;
	case '\n': buf_str(out, "\\n"); return;
	case '\r': buf_str(out, "\\r"); return;
	case '\t': buf_str(out, "\\t"); return;
	default:
		buf_str(out, "\\u00");
		buf_char(out, hex[u >> 4]);
		buf_char(out, hex[u & 15]);
	}
}

void
json_write_string(const char *s, struct buf *out)
{
	size_t left;

	if (!s) {
		buf_str(out, "null");
		return;
	}
	left = strlen(s);
	buf_char(out, '"');
	while (left > 0) {
		uint32_t code = 0;
		size_t len = utf8_next(s, left, &code);

		if (len == 0) {
			buf_str(out, "\xef\xbf\xbd");
			len = 1;
		} else if (code < 0x80 && (text_deceives(code) || code == '"' || code == '\\')) {
			write_escape(*s, out);
		} else if (text_deceives(code)) {
			buf_printf(out, "\\u%04" PRIx32, code);
		} else {
			buf_add(out, s, len);
		}
		s += len;
		left -= len;
	}
	buf_char(out, '"');
}

/* common/conf/conf_value.c - values of options: sizes, addresses, and one option's text into its field. */
#include "common/conf/conf_value.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

static const struct {
	const char *name;
	int64_t bytes;
} byte_units[] = {
	/* binary ones last and ascending: bytes_format takes the last that divides */
	{"", 1},
	{"B", 1},
	{"kB", INT64_C(1000)},
	{"MB", INT64_C(1000000)},
	{"GB", INT64_C(1000000000)},
	{"TB", INT64_C(1000000000000)},
	{"KiB", INT64_C(1) << 10},
	{"MiB", INT64_C(1) << 20},
	{"GiB", INT64_C(1) << 30},
	{"TiB", INT64_C(1) << 40},
};
#define FIRST_BINARY_UNIT 6u

bool
bytes_parse(const char *text, int64_t *ret_bytes, struct err *err)
{
	size_t digits = strspn(text, "0123456789");
	char number[24];
	int64_t v;

	if (digits == 0 || digits >= sizeof(number))
		return err_set(err, ERR_INVALID, "'%s' is not a size; write it like 512MiB, 1GB or 4096", text);
	memcpy(number, text, digits);
	number[digits] = '\0';
	if (!text_to_i64(number, &v))
		return err_set(err, ERR_INVALID, "'%s' is not a size; write it like 512MiB, 1GB or 4096", text);
	for (size_t i = 0; i < ARRAY_LEN(byte_units); i++) {
		if (strcmp(text + digits, byte_units[i].name) != 0)
			continue;
		if (__builtin_mul_overflow(v, byte_units[i].bytes, ret_bytes))
			return err_set(err, ERR_INVALID, "'%s' is more than 64 bits can count", text);
		return true;
	}
	return err_set(err, ERR_INVALID,
	               "'%s' has an unknown unit; the units are B, kB, MB, GB, TB, KiB, MiB, GiB and TiB", text);
}

const char *
bytes_format(int64_t bytes, char out[BYTES_TEXT_SIZE])
{
	int64_t unit = 1;
	const char *name = "";

	for (size_t i = FIRST_BINARY_UNIT; i < ARRAY_LEN(byte_units) && bytes != 0; i++) {
		if (bytes % byte_units[i].bytes != 0)
			break;
		unit = byte_units[i].bytes;
		name = byte_units[i].name;
	}
	snprintf(out, BYTES_TEXT_SIZE, "%" PRId64 "%s", bytes / unit, name);
	return out;
}

static bool
host_is_sound(const char *host, size_t len, bool bracketed)
{
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)host[i];

		if (!isalnum(c) && c != '.' && !(bracketed ? c == ':' || c == '%' : c == '-' || c == '_'))
			return false;
	}
	return len > 0;
}

bool
addr_parse(const char *text, char *ret_host, size_t host_size, uint16_t *ret_port, struct err *err)
{
	bool bracketed = text[0] == '[';
	const char *host = text + bracketed;
	const char *end = bracketed ? strchr(host, ']') : strrchr(host, ':');
	const char *port_text;
	int64_t port;
	size_t len;

	if (!end || (bracketed && end[1] != ':'))
		return err_set(err, ERR_INVALID, "'%s' has no port; write it like 127.0.0.1:9401 or [::1]:9401", text);
	len = (size_t)(end - host);
	if (!host_is_sound(host, len, bracketed))
		return err_set(err, ERR_INVALID, "'%s' has no usable host; write it like 127.0.0.1:9401 or [::1]:9401",
		               text);
	port_text = end + 1 + bracketed;
	if (!text_to_i64(port_text, &port) || port < 0 || port > UINT16_MAX)
		return err_set(err, ERR_INVALID, "'%s' has the port '%s'; a port is 0 to 65535", text, port_text);
	if (len >= host_size)
		return err_set(err, ERR_INVALID, "the host of '%s' is longer than %zu bytes", text, host_size - 1);
	memcpy(ret_host, host, len);
	ret_host[len] = '\0';
	*ret_port = (uint16_t)port;
	return true;
}

/* ---- one option ---- */

static void *
field_of(const struct conf_option *o, void *into)
{
	return (char *)into + o->offset;
}

bool
conf_value_has_range(const struct conf_option *o)
{
	return o->type == CONF_INT || o->type == CONF_DURATION || o->type == CONF_BYTES;
}

const char *
conf_value_format(const struct conf_option *o, int64_t value, char out[TIME_TEXT_SIZE])
{
	_Static_assert(BYTES_TEXT_SIZE <= TIME_TEXT_SIZE, "one buffer serves all types");
	if (o->type == CONF_DURATION)
		return duration_format(value, out);
	if (o->type == CONF_BYTES)
		return bytes_format(value, out);
	snprintf(out, TIME_TEXT_SIZE, "%" PRId64, value);
	return out;
}

static bool
set_text(const struct conf_option *o, const char *text, void *into, struct err *err)
{
	char **field = field_of(o, into);

	if (text[0] == '\0' && o->preset)
		return err_set(err, ERR_INVALID, "the value is empty");
	if (!text_is_clean(text))
		return err_set(err, ERR_INVALID, "'%s' is not clean UTF-8 text", text);
	mem_free(*field);
	*field = text[0] == '\0' ? NULL : mem_strdup(text);
	return true;
}

static bool
set_number(const struct conf_option *o, const char *text, void *into, struct err *err)
{
	char shown[TIME_TEXT_SIZE];
	int64_t v;

	if (o->type == CONF_DURATION) {
		if (!duration_parse(text, &v, err))
			return false;
	} else if (o->type == CONF_BYTES) {
		if (!bytes_parse(text, &v, err))
			return false;
	} else if (!text_to_i64(text, &v)) {
		return err_set(err, ERR_INVALID, "'%s' is not a whole number", text);
	}
	if (v < o->min)
		return err_set(err, ERR_INVALID, "%s is below the minimum of %s", text,
		               conf_value_format(o, o->min, shown));
	if (v > o->max)
		return err_set(err, ERR_INVALID, "%s is above the maximum of %s", text,
		               conf_value_format(o, o->max, shown));
	memcpy(field_of(o, into), &v, sizeof(v));
	return true;
}

static bool
set_bool(const struct conf_option *o, const char *text, void *into, struct err *err)
{
	bool yes = strcmp(text, "true") == 0;

	if (!yes && strcmp(text, "false") != 0)
		return err_set(err, ERR_INVALID, "'%s' is neither true nor false", text);
	memcpy(field_of(o, into), &yes, sizeof(yes));
	return true;
}

static bool
set_enum(const struct conf_option *o, const char *text, void *into, struct err *err)
{
	char list[512] = "";
	size_t len = 0;

	for (int i = 0; o->choices[i]; i++) {
		if (strcmp(text, o->choices[i]) == 0) {
			memcpy(field_of(o, into), &i, sizeof(i));
			return true;
		}
		if (len < sizeof(list))
			len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", i ? ", " : "", o->choices[i]);
	}
	return err_set(err, ERR_INVALID, "'%s' is none of: %s", text, list);
}

bool
conf_value_set(const struct conf_option *o, const char *text, void *into, struct err *err)
{
	switch (o->type) {
	case CONF_STRING:
	case CONF_PATH: return set_text(o, text, into, err);
	case CONF_INT:
	case CONF_DURATION:
	case CONF_BYTES: return set_number(o, text, into, err);
	case CONF_BOOL: return set_bool(o, text, into, err);
	case CONF_ENUM: return set_enum(o, text, into, err);
	}
	assert_failed("the option has a known type", __FILE__, __LINE__);
}

void
conf_value_clear(const struct conf_option *o, void *into)
{
	char **field = field_of(o, into);

	switch (o->type) {
	case CONF_STRING:
	case CONF_PATH:
		mem_free(*field);
		*field = NULL;
		return;
	case CONF_INT:
	case CONF_DURATION:
	case CONF_BYTES: memset(field, 0, sizeof(int64_t)); return;
	case CONF_BOOL: memset(field, 0, sizeof(bool)); return;
	case CONF_ENUM: memset(field, 0, sizeof(int)); return;
	}
}

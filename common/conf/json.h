/* common/conf/json.h - strict JSON by jansson: duplicate keys, bad UTF-8, NUL characters, trailing bytes and int64 overflow are
 * refused, size and depth are capped. Callers use jansson's json_t; this header adds what must be the same everywhere. */
#ifndef TOLLGATE_JSON_H
#define TOLLGATE_JSON_H

#include <jansson.h>

#include "common/base/buf.h"

#define JSON_MAX_BYTES (4u << 20)
#define JSON_MAX_DEPTH 64

/* An object or a list. Errors read "NAME:LINE:COLUMN: ...". */
MUST_CHECK bool json_parse(const char *name, const char *text, size_t len, json_t **ret, struct err *err);
/* The same with another limit, for texts that this program wrote itself. */
MUST_CHECK bool json_parse_max(const char *name, const char *text, size_t len, size_t max_bytes, json_t **ret,
                               struct err *err);
static inline void
json_free(json_t *j)
{
	json_decref(j);
}
static inline void
json_freep(json_t **p)
{
	json_decref(*p);
}

/* Members of an object by type; the message names the field and what was found. The text lives as long as obj. */
MUST_CHECK bool json_get_str(const json_t *obj, const char *field, const char **ret, struct err *err);
MUST_CHECK bool json_get_i64(const json_t *obj, const char *field, int64_t *ret, struct err *err);
/* Refuses members that are not in the NULL-ended list, naming the nearest allowed one. */
MUST_CHECK bool json_only_fields(const json_t *obj, const char *const *allowed, struct err *err);
/* Every text in it, names of members too, is clean (text.h). */
MUST_CHECK bool json_texts_clean(const json_t *j, struct err *err);
/* Compact text with sorted keys, and a newline at the end. A number with decimals has as few of them as read as the same number: one that was
 * written with up to 15 digits is written like that again. */
void json_write(const json_t *j, struct buf *out);
/* Quoted and escaped; bytes that are not UTF-8 become U+FFFD, NULL becomes null. */
void json_write_string(const char *s, struct buf *out);

#endif

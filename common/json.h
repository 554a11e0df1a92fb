/* common/json.h - strict JSON by jansson: duplicate keys, bad UTF-8, trailing bytes and int64 overflow are refused,
 * size and depth are capped. Callers use jansson's json_t; this header adds what must be the same everywhere. */
#ifndef TOLLGATE_COMMON_JSON_H
#define TOLLGATE_COMMON_JSON_H

#include <jansson.h>

#include "common/buf.h"

#define JSON_MAX_BYTES (4u << 20)

MUST_CHECK bool json_parse(const char *name, const char *text, size_t len, json_t **ret, struct err *err);
static inline void json_free(json_t *j) { json_decref(j); }
static inline void json_freep(json_t **p) { json_decref(*p); }

/* Members of an object by type; the message names the field and what was found. */
MUST_CHECK bool json_get_str(const json_t *obj, const char *field, const char **ret, struct err *err);
MUST_CHECK bool json_get_i64(const json_t *obj, const char *field, int64_t *ret, struct err *err);
/* Refuses members that are not in the NULL-ended list. */
MUST_CHECK bool json_only_fields(const json_t *obj, const char *const *allowed, struct err *err);
/* Compact text with sorted keys, and a newline at the end. */
void json_write(const json_t *j, struct buf *out);
void json_write_string(const char *s, struct buf *out); /* quoted and escaped */

#endif

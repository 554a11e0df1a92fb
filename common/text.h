/* common/text.h - text that came from outside: is it UTF-8, is it printable, and which known word did its author mean. */
#ifndef TOLLGATE_COMMON_TEXT_H
#define TOLLGATE_COMMON_TEXT_H

#include "common/base.h"

/* The length in bytes (1 to 4) of the UTF-8 character at s, of which n > 0 bytes are readable, and its code point;
 * 0 when the bytes there are not UTF-8: overlong, cut off, a surrogate or beyond U+10FFFF. */
size_t utf8_next(const char *s, size_t n, uint32_t *ret_code);

/* UTF-8 throughout, without control characters (C0, DEL, C1): fit for a database column, a log line and a label. */
bool text_is_clean(const char *s);

/* Decimal, as people write it: "0", "-17". No plus sign, spaces, leading zeros or overflow. */
bool text_to_i64(const char *s, int64_t *ret);

/* The word of the NULL-ended list that is nearest to `word`, for "did you mean"; NULL when none is close.
 * Case, '-' and '_' do not count as differences. */
const char *text_nearest(const char *word, const char *const *known);

#endif

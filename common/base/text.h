/* common/base/text.h - text that came from outside: is it UTF-8, is it printable, and which known word did its author mean. */
#ifndef TOLLGATE_TEXT_H
#define TOLLGATE_TEXT_H

#include "common/base/base.h"

/* The length in bytes (1 to 4) of the UTF-8 character at s, of which n > 0 bytes are readable, and its code point;
 * 0 when the bytes there are not UTF-8: overlong, cut off, a surrogate or beyond U+10FFFF. */
size_t utf8_next(const char *s, size_t n, uint32_t *ret_code);

/* Whether a character can make text look different from its content: controls (C0, DEL, C1), line and paragraph separators,
 * changes of the direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), and the byte order mark. */
bool text_deceives(uint32_t code);

/* UTF-8 throughout, without a character that deceives: fit for a database column, a log line, a document and a terminal. Every text
 * from outside passes here where it enters; the list of entrances is in tests/integration/test_trust_doors.py. */
bool text_is_clean(const char *s);
/* The same of n bytes; a NUL is not clean. */
bool text_n_is_clean(const char *s, size_t n);

/* Nothing in it is seen: spaces of any kind, and characters without width. Also true of "". */
bool text_is_blank(const char *s);

/* FNV-1a hash of a text, for tables. Collisions can be provoked, so tables compare the texts too. */
uint64_t text_hash(const char *s);

/* The order of the first two that differ. */
int compare_texts(const char *const *a, const char *const *b, size_t n);

/* Decimal, as people write it: "0", "-17". No plus sign, spaces, leading zeros or overflow. */
bool text_to_i64(const char *s, int64_t *ret);
bool text_ends(const char *s, const char *end);

/* A SLUID as Slurm prints it, the name of one run of a job: the letter s and 13 of Crockford's base-32 digits, in upper case. */
#define SLUID_CHARS 14
bool text_is_sluid(const char *s, size_t n);

/* The word of the NULL-ended list that is nearest to `word`, for "did you mean"; NULL when none is close.
 * Case, '-' and '_' do not count as differences. */
const char *text_nearest(const char *word, const char *const *known);

#endif

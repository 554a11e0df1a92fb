/* common/base/text.c - text that came from outside. */
#include "common/base/text.h"

#include <string.h>

/* `least` is the smallest code point that needs this many bytes: anything below is an overlong form. */
size_t
utf8_next(const char *s, size_t n, uint32_t *ret_code)
{
	const unsigned char *p = (const unsigned char *)s;
	uint32_t code, least;
	size_t len;

	if (p[0] < 0x80) {
		*ret_code = p[0];
		return 1;
	}
	if ((p[0] & 0xe0) == 0xc0) {
		code = p[0] & 0x1f;
		len = 2;
		least = 0x80;
	} else if ((p[0] & 0xf0) == 0xe0) {
		code = p[0] & 0x0f;
		len = 3;
		least = 0x800;
	} else if ((p[0] & 0xf8) == 0xf0) {
		code = p[0] & 0x07;
		len = 4;
		least = 0x10000;
	} else {
		return 0;
	}
	if (len > n)
		return 0;
	for (size_t i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (p[i] & 0x3f);
	}
	if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	*ret_code = code;
	return len;
}

bool
text_deceives(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e || code == 0x200f ||
	       (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

bool
text_n_is_clean(const char *s, size_t n)
{
	while (n > 0) {
		uint32_t code;
		size_t len = utf8_next(s, n, &code);

		if (len == 0 || text_deceives(code))
			return false;
		s += len;
		n -= len;
	}
	return true;
}

bool
text_is_clean(const char *s)
{
	return text_n_is_clean(s, strlen(s));
}

/* Spaces, and what has no width. */
static bool
is_unseen(uint32_t code)
{
	return code == ' ' || code == 0xa0 || code == 0xad || code == 0x034f || code == 0x115f || code == 0x1160 ||
	       code == 0x1680 || (code >= 0x17b4 && code <= 0x17b5) || (code >= 0x180b && code <= 0x180e) ||
	       (code >= 0x2000 && code <= 0x200f) || code == 0x202f || (code >= 0x205f && code <= 0x206f) ||
	       code == 0x2800 || code == 0x3000 || code == 0x3164 || (code >= 0xfe00 && code <= 0xfe0f) ||
	       code == 0xfeff || code == 0xffa0 || (code >= 0xe0000 && code <= 0xe0fff);
}

bool
text_is_blank(const char *s)
{
	size_t n = strlen(s), len;
	uint32_t code;

	for (; n > 0; s += len, n -= len) {
		len = utf8_next(s, n, &code);
		if (len == 0 || !is_unseen(code))
			return false;
	}
	return true;
}

uint64_t
text_hash(const char *s)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *s; s++)
		hash = (hash ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
	return hash;
}

int
compare_texts(const char *const *a, const char *const *b, size_t n)
{
	int order = 0;

	for (size_t i = 0; order == 0 && i < n; i++)
		order = strcmp(a[i], b[i]);
	return order;
}

bool
text_to_i64(const char *s, int64_t *ret)
{
	bool negative = *s == '-';
	int64_t v = 0;

	s += negative;
	if (*s == '\0' || (s[0] == '0' && (s[1] != '\0' || negative)))
		return false;
	for (; *s; s++) {
		int digit = *s - '0';

		if (digit < 0 || digit > 9)
			return false;
		/* towards its sign from the start, so that INT64_MIN is reached */
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, negative ? -digit : digit, &v))
			return false;
	}
	*ret = v;
	return true;
}

#define NEAREST_MAX 64u /* longer words are never typing mistakes of ours */

static char
folded(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c - 'A' + 'a');
	return c == '-' ? '_' : c;
}

static size_t
min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b. */
static size_t
edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	size_t row[3][NEAREST_MAX + 1] = {{0}};
	size_t *before = row[0], *above = row[1], *here = row[2];

	for (size_t j = 0; j <= b_len; j++)
		above[j] = j;
	for (size_t i = 1; i <= a_len; i++) {
		size_t *spare = before;

		here[0] = i;
		for (size_t j = 1; j <= b_len; j++) {
			char x = folded(a[i - 1]), y = folded(b[j - 1]);

			here[j] = min3(above[j] + 1, here[j - 1] + 1, above[j - 1] + (x != y));
			if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y &&
			    before[j - 2] + 1 < here[j])
				here[j] = before[j - 2] + 1;
		}
		before = above;
		above = here;
		here = spare;
	}
	return above[b_len];
}

const char *
text_nearest(const char *word, const char *const *known)
{
	size_t len = strnlen(word, NEAREST_MAX + 1);
	const char *best = NULL;
	size_t best_distance = len > 3 ? len / 3 : 1; /* with more letters wrong it is another word */

	if (len == 0 || len > NEAREST_MAX)
		return NULL;
	for (; *known; known++) {
		size_t known_len = strnlen(*known, NEAREST_MAX + 1);
		size_t distance;

		if (known_len > NEAREST_MAX)
			continue;
		distance = edit_distance(word, len, *known, known_len);
		if (distance < best_distance || (distance == best_distance && !best)) {
			best = *known;
			best_distance = distance;
		}
	}
	return best;
}

bool
text_ends(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && memcmp(s + n - m, end, m) == 0;
}

bool
text_is_sluid(const char *s, size_t n)
{
	if (n != SLUID_CHARS || s[0] != 's')
		return false;
	for (size_t i = 1; i < n; i++)
		if (!s[i] || !strchr("0123456789ABCDEFGHJKMNPQRSTVWXYZ", s[i]))
			return false;
	return true;
}

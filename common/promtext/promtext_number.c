/* common/promtext/promtext_number.c - numbers as text, eight digits at a time. */
#include "common/promtext/promtext.h"

#include <string.h>

#define MAX_DECIMALS 18

static const uint64_t powers[] = {1,
                                  10,
                                  100,
                                  1000,
                                  10000,
                                  100000,
                                  1000000,
                                  10000000,
                                  100000000,
                                  1000000000,
                                  10000000000,
                                  100000000000,
                                  1000000000000,
                                  10000000000000,
                                  100000000000000,
                                  1000000000000000,
                                  10000000000000000,
                                  100000000000000000,
                                  1000000000000000000,
                                  UINT64_C(10000000000000000000)};

static uint64_t
magnitude(int64_t v)
{
	return v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
}

#define ZEROS UINT64_C(0x3030303030303030)
#define EIGHT_DIGITS 100000000u

/* Eight digits, a byte each, the first in the lowest: halves, pairs and digits are parted side by side. */
static inline uint64_t
eight_digits(uint32_t v)
{
	uint64_t x = v / 10000 | (uint64_t)(v % 10000) << 32, q;

	q = (x * 10486 >> 20) & UINT64_C(0x7f0000007f); /* by 100 */
	x = q | (x - q * 100) << 16;
	q = (x * 103 >> 10) & UINT64_C(0x000f000f000f000f); /* by 10 */
	return q | (x - q * 10) << 8;
}

static inline void
put_word(char *to, uint64_t x)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	x = __builtin_bswap64(x);
#endif
	memcpy(to, &x, sizeof(x));
}

static inline uint64_t
get_word(const char *from)
{
	uint64_t x;

	memcpy(&x, from, sizeof(x));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	x = __builtin_bswap64(x);
#endif
	return x;
}

static inline void
put_eight(char *to, uint64_t digits)
{
	put_word(to, digits | ZEROS);
}

/* v < 10^8 without leading zeros; may write up to seven bytes more than the digits it returns. Counting them in the register
 * costs no branch, which numbers of all lengths would make the processor guess wrong. */
static inline size_t
put_small(char *to, uint32_t v)
{
	uint64_t x = eight_digits(v);
	unsigned lead = (unsigned)__builtin_ctzll(x | UINT64_C(1) << 56) / 8;

	put_eight(to, x >> lead * 8);
	return 8 - lead;
}

/* From the front, so that each part lies over what the one before it wrote too much. */
static inline size_t
put_whole(char *to, uint64_t v)
{
	size_t n = 0;

	if (v < EIGHT_DIGITS)
		return put_small(to, (uint32_t)v);
	if (v / EIGHT_DIGITS < EIGHT_DIGITS) {
		n = put_small(to, (uint32_t)(v / EIGHT_DIGITS));
	} else {
		n = put_small(to, (uint32_t)(v / EIGHT_DIGITS / EIGHT_DIGITS));
		put_eight(to + n, eight_digits((uint32_t)(v / EIGHT_DIGITS % EIGHT_DIGITS)));
		n += 8;
	}
	put_eight(to + n, eight_digits((uint32_t)(v % EIGHT_DIGITS)));
	return n + 8;
}

/* All digits after the point: v / 10^decimals; may write seven bytes more. */
static inline size_t
put_fraction(char *to, uint64_t v, int decimals)
{
	uint64_t high = v / EIGHT_DIGITS;
	int head = decimals - 8;

	if (decimals <= 8) {
		put_eight(to, eight_digits((uint32_t)(v * powers[8 - decimals])));
		return (size_t)decimals;
	}
	for (int i = head; i > 0; i--, high /= 10)
		to[i - 1] = (char)('0' + high % 10);
	put_eight(to + head, eight_digits((uint32_t)(v % EIGHT_DIGITS)));
	return (size_t)decimals;
}

/* A divisor that the compiler knows costs a multiplication, and nearly all numbers have one of these. */
static inline uint64_t
whole_part(uint64_t v, int decimals)
{
	switch (decimals) {
	case 0: return v;
	case 3: return v / 1000;
	case 6: return v / 1000000;
	case 9: return v / 1000000000;
	default: return v / powers[decimals];
	}
}

size_t
prom_write_fixed(char *to, int64_t value, int decimals)
{
	uint64_t v = magnitude(value), whole = whole_part(v, decimals);
	char *at = to;

	ASSERT(decimals >= 0 && decimals <= MAX_DECIMALS);
	if (value < 0)
		*at++ = '-';
	at += put_whole(at, whole);
	if (decimals == 0)
		return (size_t)(at - to);
	*at++ = '.';
	at += put_fraction(at, v - whole * powers[decimals], decimals);
	return (size_t)(at - to);
}

/* v < 10^n as n digits up to `end`; no other byte is changed, but eight before `end` are read. */
__attribute__((always_inline)) static inline void
put_digits(char *end, uint64_t v, size_t n)
{
	uint64_t keep;

	for (; n > 8; n -= 8) {
		uint64_t high = v / EIGHT_DIGITS;

		end -= 8;
		put_eight(end, eight_digits((uint32_t)(v - high * EIGHT_DIGITS)));
		v = high;
	}
	if (n == 1) {
		end[-1] = (char)('0' + v);
		return;
	}
	keep = n == 8 ? 0 : UINT64_MAX >> n * 8;
	put_word(end - 8, (get_word(end - 8) & keep) | ((eight_digits((uint32_t)v) | ZEROS) & ~keep));
}

__attribute__((always_inline)) static inline bool
overwrite(char *at, size_t len, int64_t old, int64_t value, int decimals)
{
	uint64_t v = magnitude(value), whole = whole_part(v, decimals);
	size_t sign = value<0, tail = decimals> 0 ? (size_t)decimals + 1 : 0, digits = len - sign - tail;

	if ((old < 0) != (value < 0) || digits >= ARRAY_LEN(powers) || whole >= powers[digits] ||
	    (digits > 1 && whole < powers[digits - 1]))
		return false;
	put_digits(at + sign + digits, whole, digits);
	if (decimals != 0)
		put_digits(at + len, v - whole * powers[decimals], (size_t)decimals);
	return true;
}

bool
prom_overwrite_fixed(char *at, size_t len, int64_t old, int64_t value, int decimals)
{
	ASSERT(decimals >= 0 && decimals <= MAX_DECIMALS);
	switch (decimals) {
	case 0: return overwrite(at, len, old, value, 0);
	case 6: return overwrite(at, len, old, value, 6);
	case 9: return overwrite(at, len, old, value, 9);
	default: return overwrite(at, len, old, value, decimals);
	}
}

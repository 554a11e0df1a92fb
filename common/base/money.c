/* common/base/money.c - exact decimals: their text, their rounding, and the decimals of currencies. */
#include "common/base/money.h"

#include <string.h>

#include "common/base/wide.h"

#define DECIMAL_MAX_DIGITS 38 /* whatever they are, they fit 128 bits */
#define DECIMAL_MAX_SCALE 38

int128
pow10_i128(int exponent)
{
	int128 value = 1;

	ASSERT(exponent >= 0 && exponent <= DECIMAL_MAX_SCALE);
	while (exponent-- > 0)
		value *= 10;
	return value;
}

/* Digits at *p added to *value; leading zeros do not count against the limit of digits. */
static bool
take_digits(const char **p, int128 *value, int *significant, int *count)
{
	*count = 0;
	for (; **p >= '0' && **p <= '9'; (*p)++, (*count)++) {
		if (*value > 0 || **p != '0')
			(*significant)++;
		if (*significant > DECIMAL_MAX_DIGITS)
			return false;
		*value = *value * 10 + (**p - '0');
	}
	return *count > 0;
}

bool
decimal_parse(const char *text, int scale, int128 *ret_value, struct err *err)
{
	const char *p = text;
	bool negative = *p == '-';
	int significant = 0, whole, decimals = 0;
	int128 value = 0;
	bool shaped;

	ASSERT(scale >= 0 && scale <= DECIMAL_MAX_SCALE);
	if (negative)
		p++;
	shaped = take_digits(&p, &value, &significant, &whole);
	if (shaped && *p == '.') {
		p++;
		shaped = take_digits(&p, &value, &significant, &decimals);
	}
	if (significant > DECIMAL_MAX_DIGITS)
		return err_set(err, ERR_INVALID, "\"%.60s\" has more than %d digits", text, DECIMAL_MAX_DIGITS);
	if (!shaped || *p != '\0')
		return err_set(err, ERR_INVALID, "\"%.60s\" is not a decimal number like 12.50", text);
	if (decimals > scale)
		return err_set(err, ERR_INVALID, "\"%.60s\" has %d decimals, at most %d are kept", text, decimals,
		               scale);
	if (__builtin_mul_overflow(value, pow10_i128(scale - decimals), &value))
		return err_set(err, ERR_INVALID, "\"%.60s\" is too large for %d decimals", text, scale);
	*ret_value = negative ? -value : value;
	return true;
}

/* The last digits of v in front of *at, and what is left of it. */
static uint128
put_digits(char **at, uint128 v, int count)
{
	uint64_t small;

	for (; v > UINT64_MAX && count > 0; count--, v /= 10)
		*--*at = (char)('0' + (int)(v % 10));
	if (v > UINT64_MAX)
		return v;
	/* in 64 bits division is cheap */
	for (small = (uint64_t)v; count > 0; count--, small /= 10)
		*--*at = (char)('0' + (int)(small % 10));
	return small;
}

const char *
decimal_format(int128 value, int scale, int min_decimals, char out[DECIMAL_TEXT_SIZE])
{
	uint128 left = value < 0 ? 0 - (uint128)value : (uint128)value;
	char *at = out + DECIMAL_TEXT_SIZE;
	int decimals = scale;

	ASSERT(scale >= 0 && scale <= DECIMAL_MAX_SCALE && min_decimals >= 0);
	for (; decimals > min_decimals && left > UINT64_MAX && left % 10 == 0; decimals--)
		left /= 10;
	if (left <= UINT64_MAX) {
		uint64_t small = (uint64_t)left;

		for (; decimals > min_decimals && small % 10 == 0; decimals--)
			small /= 10;
		left = small;
	}
	*--at = '\0';
	left = put_digits(&at, left, decimals);
	if (decimals > 0)
		*--at = '.';
	do {
		left = put_digits(&at, left, 1);
	} while (left > 0);
	if (value < 0)
		*--at = '-';
	return memmove(out, at, (size_t)(out + DECIMAL_TEXT_SIZE - at));
}

/* In digits of 32 bits, the least first; then division by 10^9 until nothing is left. */
#define HALF_DIGITS 4
#define PRODUCT_DIGITS (2 * HALF_DIGITS)
_Static_assert(HALF_DIGITS * 32 == 128, "a decimal has 128 bits");

static void
multiply(uint128 a, uint128 b, uint32_t out[PRODUCT_DIGITS])
{
	const struct wide w = wide_multiply(a, b);

	for (int i = 0; i < HALF_DIGITS; i++) {
		out[i] = (uint32_t)(w.low >> (32 * i));
		out[HALF_DIGITS + i] = (uint32_t)(w.high >> (32 * i));
	}
}

#define DIVISOR 1000000000u
#define DIVISOR_DIGITS 9

const char *
decimal_format_product(int128 a, int128 b, int scale, int min_decimals, char out[DECIMAL_PRODUCT_SIZE])
{
	const uint128 x = a < 0 ? 0 - (uint128)a : (uint128)a, y = b < 0 ? 0 - (uint128)b : (uint128)b;
	char digits[DECIMAL_PRODUCT_SIZE];
	char *at = digits + sizeof(digits), *end = at, *to = out;
	uint32_t left[PRODUCT_DIGITS] = {0};
	bool more = true;

	ASSERT(scale >= 0 && scale <= DECIMAL_MAX_SCALE && min_decimals >= 0);
	multiply(x, y, left);
	while (more || end - at <= scale) {
		uint64_t rest = 0;

		more = false;
		for (int i = PRODUCT_DIGITS - 1; i >= 0; i--) {
			rest = rest << 32 | left[i];
			left[i] = (uint32_t)(rest / DIVISOR);
			rest %= DIVISOR;
			more |= left[i] != 0;
		}
		for (int i = 0; i < DIVISOR_DIGITS; i++, rest /= 10)
			*--at = (char)('0' + rest % 10);
	}
	while (end - at > scale + 1 && *at == '0')
		at++;
	for (int cut = scale - min_decimals; cut > 0 && end[-1] == '0'; cut--)
		end--;
	if ((a < 0) != (b < 0) && x != 0 && y != 0)
		*to++ = '-';
	for (const char *point = digits + sizeof(digits) - scale; at < end; at++) {
		if (at == point)
			*to++ = '.';
		*to++ = *at;
	}
	*to = '\0';
	return out;
}

int128
div_round_half_even(int128 num, int128 den)
{
	int128 quotient, rest, to_next;

	ASSERT(den > 0);
	quotient = num / den;
	rest = num % den;
	if (rest < 0)
		rest = -rest;
	/* rest against den - rest instead of 2 * rest against den, which could overflow */
	to_next = den - rest;
	if (rest > to_next || (rest == to_next && quotient % 2 != 0))
		quotient += num < 0 ? -1 : 1;
	return quotient;
}

/* ISO 4217 by number of decimals. Codes without one (metals, XDR, XTS, XXX) cannot be billed in and are not here. ANG
 * and BGN were withdrawn in 2025 and 2026, but ledgers that were kept in them must still be read. */
static const struct {
	int exponent;
	const char *codes; /* four characters each */
} currencies[] = {
	{0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF "},
	{2, "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD "
            "CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD "
            "GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA "
            "MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR "
            "RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD "
            "TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG "},
	{3, "BHD IQD JOD KWD LYD OMR TND "},
	{4, "CLF UYW "},
};

bool
currency_exponent(const char *code, int *ret_exponent, struct err *err)
{
	if (strlen(code) == 3)
		for (size_t i = 0; i < ARRAY_LEN(currencies); i++)
			for (const char *c = currencies[i].codes; *c; c += 4)
				if (memcmp(c, code, 3) == 0) {
					*ret_exponent = currencies[i].exponent;
					return true;
				}
	return err_set(err, ERR_INVALID, "\"%.20s\" is not the ISO 4217 code of a currency, like EUR or JPY", code);
}

/* common/base/money.h - exact decimals. No float ever touches money.
 *
 * A decimal is a signed 128-bit integer and a scale: value / 10^scale. Prices have scale 9, quantities scale 9,
 * hence their product, a list cost, has scale 18 exactly. Billed amounts have the currency's ISO 4217 exponent. */
#ifndef TOLLGATE_MONEY_H
#define TOLLGATE_MONEY_H

#include "common/base/buf.h"

#define PRICE_SCALE 9
#define QUANTITY_SCALE 9
#define COST_SCALE (PRICE_SCALE + QUANTITY_SCALE)
#define DECIMAL_TEXT_SIZE 64
#define RATIO_ONE 1000000000 /* ratios are in 10^-9 */
#define MJ_PER_KWH INT64_C(3600000000)

/* "-12.50" with scale 9 gives -12500000000. More decimals than the scale holds are refused, not rounded;
 * so are exponents, signs other than '-', spaces, a point without digits on both sides, and more than 38 digits. */
MUST_CHECK bool decimal_parse(const char *text, int scale, int128 *ret_value, struct err *err);

/* At least min_decimals and at most scale decimals, no trailing zeros between: (1500000000, 9, 2) is "1.50".
 * A min_decimals above the scale counts as the scale. */
const char *decimal_format(int128 value, int scale, int min_decimals, char out[DECIMAL_TEXT_SIZE]);

/* a x b exactly, though the product may need 256 bits; scale and min_decimals are those of the product. */
#define DECIMAL_PRODUCT_SIZE 96
const char *decimal_format_product(int128 a, int128 b, int scale, int min_decimals, char out[DECIMAL_PRODUCT_SIZE]);

int128 pow10_i128(int exponent); /* 0 .. 38 */
/* num / den to the nearest integer, ties to even; den > 0. */
int128 div_round_half_even(int128 num, int128 den);

/* Decimals of an ISO 4217 currency: EUR 2, JPY 0, KWD 3. An unknown code is refused. */
MUST_CHECK bool currency_exponent(const char *code, int *ret_exponent, struct err *err);

#endif

/* tests/unit/base/test_money.c - decimals as text, rounding half to even, and the decimals of currencies. */
#include "common/base/money.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct {
	const char *text;
	int scale;
	int64_t value;
	const char *canonical; /* with no least number of decimals */
} numbers[] = {
	{"0", 9, 0, "0"},
	{"-0", 9, 0, "0"},
	{"-0.00", 2, 0, "0"},
	{"1", 9, 1000000000, "1"},
	{"-12.50", 9, -12500000000, "-12.5"},
	{"2.00", 9, 2000000000, "2"},
	{"0.000000001", 9, 1, "0.000000001"},
	{"-0.000000001", 9, -1, "-0.000000001"},
	{"9223372036.854775807", 9, INT64_MAX, "9223372036.854775807"},
	{"-9223372036.854775808", 9, INT64_MIN, "-9223372036.854775808"},
	{"007.50", 2, 750, "7.5"},
	{"0000000000000000000000000000000000000000001", 0, 1, "1"},
	{"100", 0, 100, "100"},
	{"0.10", 2, 10, "0.1"},
	{"-0.5", 1, -5, "-0.5"},
};

static void
decimals_are_read_exactly_and_written_without_useless_zeros(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		char text[DECIMAL_TEXT_SIZE];
		struct err err = {0};
		int128 value;

		if (!decimal_parse(numbers[i].text, numbers[i].scale, &value, &err))
			fail_msg("%s: %s", numbers[i].text, err.text);
		if (value != numbers[i].value)
			fail_msg("%s: read as %" PRId64, numbers[i].text, (int64_t)value);
		if (strcmp(decimal_format(value, numbers[i].scale, 0, text), numbers[i].canonical) != 0)
			fail_msg("%s: written as %s", numbers[i].text, text);
	}
}

static void
what_would_have_to_be_guessed_or_rounded_is_refused(void **state)
{
	static const struct {
		const char *name, *text, *says;
		int scale;
	} wrong[] = {
		{"nothing", "", "not a decimal", 9},
		{"a sign alone", "-", "not a decimal", 9},
		{"a plus sign", "+1", "not a decimal", 9},
		{"two signs", "--1", "not a decimal", 9},
		{"a point without digits before", ".5", "not a decimal", 9},
		{"a point without digits behind", "5.", "not a decimal", 9},
		{"a point alone", ".", "not a decimal", 9},
		{"two points", "1.2.3", "not a decimal", 9},
		{"a decimal comma", "1,5", "not a decimal", 9},
		{"thousands", "1,000.00", "not a decimal", 9},
		{"an exponent", "1e3", "not a decimal", 9},
		{"a space before", " 1", "not a decimal", 9},
		{"a space behind", "1 ", "not a decimal", 9},
		{"a currency", "1 EUR", "not a decimal", 9},
		{"hexadecimal", "0x10", "not a decimal", 9},
		{"not a number", "nan", "not a decimal", 9},
		{"infinity", "inf", "not a decimal", 9},
		{"one decimal too many", "1.0000000001", "10 decimals, at most 9", 9},
		{"a zero too many is not rounded either", "1.000", "3 decimals, at most 2", 2},
		{"decimals where there are none", "1.5", "1 decimals, at most 0", 0},
		{"39 digits", "123456789012345678901234567890123456789", "more than 38 digits", 0},
		{"39 digits around the point", "123456789012345678901234567890123456.789", "more than 38 digits", 9},
		{"more than 128 bits hold", "999999999999999999999999999999", "too large", 18},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err err = {0};
		int128 value = 42;

		if (decimal_parse(wrong[i].text, wrong[i].scale, &value, &err))
			fail_msg("%s was read", wrong[i].name);
		if (err.kind != ERR_INVALID || !strstr(err.text, wrong[i].says) || value != 42)
			fail_msg("%s: %s", wrong[i].name, err.text);
	}
}

static void
thirty_digits_are_kept(void **state)
{
	static const char text[] = "-123456789012345678901.234567891";
	char out[DECIMAL_TEXT_SIZE];
	int128 value;

	(void)state;
	assert_true(decimal_parse(text, 9, &value, NULL));
	assert_string_equal(decimal_format(value, 9, 0, out), text);
}

static void
the_least_number_of_decimals_is_kept(void **state)
{
	static const struct {
		int64_t value;
		int scale, least;
		const char *text;
	} rows[] = {
		{1500000000, 9, 2, "1.50"}, {1000000000, 9, 2, "1.00"}, {1234567890, 9, 2, "1.23456789"},
		{0, 9, 2, "0.00"},          {5, 2, 2, "0.05"},          {-5, 2, 2, "-0.05"},
		{123, 0, 0, "123"},         {1500000000, 9, 0, "1.5"},  {1500000000, 9, 9, "1.500000000"},
		{123, 0, 2, "123"},         {-100, 2, 0, "-1"},         {10, 3, 1, "0.01"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[DECIMAL_TEXT_SIZE];

		assert_string_equal(decimal_format(rows[i].value, rows[i].scale, rows[i].least, text), rows[i].text);
	}
}

static void
the_limits_of_128_bits_are_written(void **state)
{
	const int128 most = (int128)(((uint128)1 << 127) - 1);
	char text[DECIMAL_TEXT_SIZE];

	(void)state;
	assert_string_equal(decimal_format(most, 0, 0, text), "170141183460469231731687303715884105727");
	assert_string_equal(decimal_format(-most - 1, 0, 0, text), "-170141183460469231731687303715884105728");
	assert_string_equal(decimal_format(-most - 1, 38, 38, text), "-1.70141183460469231731687303715884105728");
	assert_string_equal(decimal_format(1, 38, 0, text), "0.00000000000000000000000000000000000001");
}

static void
products_of_256_bits_are_written(void **state)
{
	const int128 most = (int128)(((uint128)1 << 127) - 1);
	static const struct {
		int64_t a, b;
		int scale, least;
		const char *text;
	} rows[] = {
		{0, 5, 0, 0, "0"},
		{0, -5, 3, 2, "0.00"},
		{12, 5, 2, 0, "0.6"},
		{12, 5, 2, 2, "0.60"},
		{-12, 5, 1, 0, "-6"},
		{-12, -5, 0, 0, "60"},
		{1, 1, 27, 0, "0.000000000000000000000000001"},
		{100, 10, 2, 0, "10"},
		{1000000000, 1000000000, 9, 0, "1000000000"},
		{3, 7, 1, 9, "2.1"},
	};
	char text[DECIMAL_PRODUCT_SIZE];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_string_equal(decimal_format_product(rows[i].a, rows[i].b, rows[i].scale, rows[i].least, text),
		                    rows[i].text);
	assert_string_equal(decimal_format_product(-most - 1, -most - 1, 0, 0, text),
	                    "28948022309329048855892746252171976963317496166410141009864396001978282409984");
	assert_string_equal(decimal_format_product(-most - 1, most, 38, 0, text),
	                    "-289480223093290488558927462521719769631.47354982949671778132708698262398304256");
}

static void
powers_of_ten_are_exact(void **state)
{
	char text[DECIMAL_TEXT_SIZE];

	(void)state;
	assert_true(pow10_i128(0) == 1);
	assert_true(pow10_i128(18) == INT64_C(1000000000000000000));
	assert_string_equal(decimal_format(pow10_i128(38), 38, 0, text), "1");
}

static void
division_rounds_to_the_nearest_and_ties_to_even(void **state)
{
	static const struct {
		int64_t num, den, result;
	} rows[] = {
		{0, 5, 0},     {4, 2, 2},     {1, 2, 0},     {3, 2, 2},       {5, 2, 2},       {7, 2, 4},
		{-1, 2, 0},    {-3, 2, -2},   {-5, 2, -2},   {-7, 2, -4},     {1, 3, 0},       {2, 3, 1},
		{-1, 3, 0},    {-2, 3, -1},   {10, 4, 2},    {11, 4, 3},      {14, 4, 4},      {249, 100, 2},
		{250, 100, 2}, {251, 100, 3}, {350, 100, 4}, {-250, 100, -2}, {-350, 100, -4}, {7, 1, 7},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int128 result = div_round_half_even(rows[i].num, rows[i].den);

		if (result != rows[i].result)
			fail_msg("%" PRId64 " / %" PRId64 " is %" PRId64 " instead of %" PRId64, rows[i].num,
			         rows[i].den, (int64_t)result, rows[i].result);
	}
}

static void
division_rounds_at_the_limits_without_overflow(void **state)
{
	const int128 most = (int128)(((uint128)1 << 127) - 1), least = -most - 1;

	(void)state;
	assert_true(div_round_half_even(most, most) == 1);
	assert_true(div_round_half_even(most - 1, most) == 1);
	assert_true(div_round_half_even(least, most) == -1);
	assert_true(div_round_half_even(least, 1) == least);
	assert_true(div_round_half_even(most, 1) == most);
	assert_true(div_round_half_even(most / 2, most) == 0);
	assert_true(div_round_half_even(most / 2 + 1, most) == 1);
}

static void
currencies_have_the_decimals_of_iso_4217(void **state)
{
	static const struct {
		const char *code;
		int exponent;
	} rows[] = {
		{"EUR", 2}, {"USD", 2}, {"GBP", 2}, {"CHF", 2}, {"CNY", 2}, {"INR", 2}, {"AED", 2},
		{"ZWG", 2}, {"XCG", 2}, {"HUF", 2}, {"MRU", 2}, {"MGA", 2}, {"JPY", 0}, {"KRW", 0},
		{"ISK", 0}, {"CLP", 0}, {"VND", 0}, {"XPF", 0}, {"BIF", 0}, {"KWD", 3}, {"BHD", 3},
		{"TND", 3}, {"IQD", 3}, {"CLF", 4}, {"UYW", 4}, {"UYI", 0}, {"XAF", 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err err = {0};
		int exponent;

		if (!currency_exponent(rows[i].code, &exponent, &err))
			fail_msg("%s", err.text);
		if (exponent != rows[i].exponent)
			fail_msg("%s: %d instead of %d", rows[i].code, exponent, rows[i].exponent);
	}
}

/* Counts all three-letter codes, so that a code lost or doubled by an edit shows. */
static void
the_number_of_currencies_is_that_of_the_standard(void **state)
{
	int count[5] = {0};

	(void)state;
	for (int i = 0; i < 26 * 26 * 26; i++) {
		char code[4] = {(char)('A' + i / 676), (char)('A' + i / 26 % 26), (char)('A' + i % 26), '\0'};
		int exponent;

		if (currency_exponent(code, &exponent, NULL))
			count[exponent]++;
	}
	assert_int_equal(count[0], 17);
	assert_int_equal(count[1], 0);
	assert_int_equal(count[2], 139 + 2); /* and ANG and BGN, withdrawn */
	assert_int_equal(count[3], 7);
	assert_int_equal(count[4], 2);
}

static void
what_is_not_a_currency_with_decimals_is_refused(void **state)
{
	static const char *const wrong[] = {"",    "E",   "EU",  "EURO", "eur", "Eur",        "XAU",    "XXX",
	                                    "XDR", "XTS", "DEM", "ZZZ",  "R E", "EU\xc3\x9c", "USDEUR", "ED "};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err err = {0};
		int exponent = 42;

		if (currency_exponent(wrong[i], &exponent, &err))
			fail_msg("\"%s\" has %d decimals", wrong[i], exponent);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_int_equal(exponent, 42);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(decimals_are_read_exactly_and_written_without_useless_zeros),
		cmocka_unit_test(what_would_have_to_be_guessed_or_rounded_is_refused),
		cmocka_unit_test(thirty_digits_are_kept),
		cmocka_unit_test(the_least_number_of_decimals_is_kept),
		cmocka_unit_test(the_limits_of_128_bits_are_written),
		cmocka_unit_test(products_of_256_bits_are_written),
		cmocka_unit_test(powers_of_ten_are_exact),
		cmocka_unit_test(division_rounds_to_the_nearest_and_ties_to_even),
		cmocka_unit_test(division_rounds_at_the_limits_without_overflow),
		cmocka_unit_test(currencies_have_the_decimals_of_iso_4217),
		cmocka_unit_test(the_number_of_currencies_is_that_of_the_standard),
		cmocka_unit_test(what_is_not_a_currency_with_decimals_is_refused),
	};

	return cmocka_run_group_tests_name("money", tests, NULL, NULL);
}

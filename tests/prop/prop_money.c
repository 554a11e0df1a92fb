/* tests/prop/prop_money.c - decimals survive writing and reading, and division rounds to the nearest. */
#include "common/base/money.h"
#include "tests/support/harness/prop.h"

#include <string.h>

struct number {
	int128 value;
	int scale, least;
};

static void
add_i128(struct buf *out, int128 v)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(v, 0, 0, text));
}

static void
make_number(struct prop_source *s, void *c)
{
	struct number *k = c;

	k->value = prop_i128(s, 126); /* below 10^38, which is what decimal_parse takes */
	k->scale = (int)prop_index(s, 31);
	k->least = (int)prop_index(s, (size_t)k->scale + 3);
}

static void
show_number(const void *c, struct buf *out)
{
	const struct number *k = c;

	add_i128(out, k->value);
	buf_printf(out, " of scale %d with at least %d decimals", k->scale, k->least);
}

static bool
a_number_written_is_read_back(const void *c, struct buf *why)
{
	const struct number *k = c;
	char text[DECIMAL_TEXT_SIZE];
	struct err err = {0};
	int128 back = 0;

	decimal_format(k->value, k->scale, k->least, text);
	buf_printf(why, "%s", text);
	if (!decimal_parse(text, k->scale, &back, &err)) {
		buf_printf(why, " (%s)", err.text);
		return false;
	}
	return back == k->value;
}

static bool
it_has_the_decimals_asked_for_and_no_useless_zeros(const void *c, struct buf *why)
{
	const struct number *k = c;
	char text[DECIMAL_TEXT_SIZE];
	const char *point;
	int decimals, least = k->least < k->scale ? k->least : k->scale;

	decimal_format(k->value, k->scale, k->least, text);
	buf_printf(why, "%s", text);
	point = strchr(text, '.');
	decimals = point ? (int)strlen(point + 1) : 0;
	return decimals >= least && decimals <= k->scale && (decimals == least || text[strlen(text) - 1] != '0') &&
	       (!point || decimals > 0);
}

/* Digits of a product, read modulo a prime: what 128 bits cannot hold is checked by two of them. */
static int128
text_modulo(const char *text, int128 prime)
{
	int128 v = 0;

	for (; *text != '\0'; text++)
		if (*text >= '0' && *text <= '9')
			v = (v * 10 + (*text - '0')) % prime;
	return v;
}

static bool
a_product_is_exact_also_beyond_128_bits(const void *c, struct buf *why)
{
	static const int64_t primes[] = {INT64_C(1000000007), INT64_C(998244353)};
	const struct number *k = c;
	const int128 b = k->value / 3 + 7;
	char text[DECIMAL_PRODUCT_SIZE];

	decimal_format_product(k->value, b, k->scale, k->scale, text);
	buf_printf(why, "%s", text);
	for (size_t i = 0; i < ARRAY_LEN(primes); i++) {
		int128 x = k->value % primes[i], y = b % primes[i], want = x * y % primes[i];
		bool negative = text[0] == '-';

		want = (negative ? -want : want) % primes[i];
		if (want < 0)
			want += primes[i];
		if (text_modulo(text, primes[i]) != want)
			return false;
	}
	return true;
}

struct division {
	int128 num, den;
};

static void
make_division(struct prop_source *s, void *c)
{
	struct division *k = c;

	k->num = prop_i128(s, 126);
	k->den = prop_i128(s, 1 + (int)prop_index(s, 126));
	k->den = k->den < 0 ? -k->den : k->den;
	if (k->den == 0)
		k->den = 1;
	/* ties are rare by chance: half of the cases lie on one or beside it */
	if (prop_bool(s)) {
		int128 odd = (k->num / k->den) | 1, near = (int128)prop_u64(s, 2) - 1, tie;

		k->den = (k->den >> 1 > 0 ? k->den >> 1 : 1) * 2;
		if (!__builtin_mul_overflow(odd, k->den / 2, &tie) && !__builtin_add_overflow(tie, near, &tie))
			k->num = tie;
	}
}

static void
show_division(const void *c, struct buf *out)
{
	const struct division *k = c;

	add_i128(out, k->num);
	buf_str(out, " / ");
	add_i128(out, k->den);
}

static bool
the_quotient_is_the_nearest_and_ties_are_even(const void *c, struct buf *why)
{
	const struct division *k = c;
	int128 q = div_round_half_even(k->num, k->den);
	int128 off = k->num - q * k->den;

	add_i128(why, q);
	off = off < 0 ? -off : off;
	return off < k->den - off || (off == k->den - off && q % 2 == 0);
}

static bool
rounding_mirrors_at_zero(const void *c, struct buf *why)
{
	const struct division *k = c;
	int128 q = div_round_half_even(k->num, k->den);

	add_i128(why, q);
	return div_round_half_even(-k->num, k->den) == -q;
}

/* Text made of the characters of numbers: most of it is wrong, some is not. */
struct text {
	char text[48];
	int scale;
};

static void
make_text(struct prop_source *s, void *c)
{
	static const char alphabet[] = "0123456789012345678901234567890..-+eE ,x";
	struct text *k = c;
	size_t len = prop_index(s, sizeof(k->text));

	k->scale = (int)prop_index(s, 19);
	for (size_t i = 0; i < len; i++)
		k->text[i] = alphabet[prop_index(s, sizeof(alphabet) - 1)];
}

static void
show_text(const void *c, struct buf *out)
{
	const struct text *k = c;

	buf_printf(out, "\"%s\" at scale %d", k->text, k->scale);
}

/* The digits of the number, without sign, point and useless zeros, are those of the text. */
static void
bare(const char *text, char *out)
{
	const char *start = text + (*text == '-'), *point = strchr(text, '.');
	size_t len = strlen(start), n = 0;

	while (point && len > 0 && (start[len - 1] == '0' || start[len - 1] == '.')) {
		len--;
		if (start[len] == '.')
			break;
	}
	while (len > 1 && start[0] == '0' && start[1] != '.') {
		start++;
		len--;
	}
	for (size_t i = 0; i < len; i++)
		out[n++] = start[i];
	out[n] = '\0';
}

static bool
text_is_read_as_what_it_says_or_refused(const void *c, struct buf *why)
{
	const struct text *k = c;
	char written[DECIMAL_TEXT_SIZE], said[DECIMAL_TEXT_SIZE], meant[DECIMAL_TEXT_SIZE];
	struct err err = {0};
	int128 value;

	if (!decimal_parse(k->text, k->scale, &value, &err))
		return err.kind == ERR_INVALID;
	decimal_format(value, k->scale, 0, written);
	buf_printf(why, "%s", written);
	bare(k->text, said);
	bare(written, meant);
	return strcmp(said, meant) == 0 && (value == 0 || (value < 0) == (k->text[0] == '-'));
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a number written is read back", sizeof(struct number), make_number, a_number_written_is_read_back,
	         show_number, NULL},
		{"a number has the decimals asked for and no useless zeros", sizeof(struct number), make_number,
	         it_has_the_decimals_asked_for_and_no_useless_zeros, show_number, NULL},
		{"a product is exact also beyond 128 bits", sizeof(struct number), make_number,
	         a_product_is_exact_also_beyond_128_bits, show_number, NULL},
		{"a quotient is the nearest whole number, ties are even", sizeof(struct division), make_division,
	         the_quotient_is_the_nearest_and_ties_are_even, show_division, NULL},
		{"rounding mirrors at zero", sizeof(struct division), make_division, rounding_mirrors_at_zero,
	         show_division, NULL},
		{"text is read as what it says, or refused", sizeof(struct text), make_text,
	         text_is_read_as_what_it_says_or_refused, show_text, NULL},
	};

	return prop_main("money", tests, ARRAY_LEN(tests));
}

/* tests/prop/prop_apportion.c - what every split by largest remainder keeps. */
#include "common/base/money.h"
#include "common/base/apportion.h"
#include "tests/support/harness/prop.h"

#define PARTIES 64
#define SCALE_BITS 3 /* weights are also tried up to seven times as large */

struct split_case {
	int128 total;
	size_t n;
	int128 weight[PARTIES];
	int128 scale;
};

static void
draw(struct prop_source *s, struct split_case *k, int weight_bits, int total_bits)
{
	k->total = prop_i128(s, total_bits);
	k->scale = 1 + (int128)prop_u64(s, 6);
	for (size_t i = 0; i < k->n; i++) {
		int128 w = prop_i128(s, weight_bits);

		k->weight[i] = w < 0 ? -w : w;
	}
}

/* Bounds of the header: |total| and the sum of the weights below 2^126, also when scaled. */
static void
generate(struct prop_source *s, void *c)
{
	struct split_case *k = c;
	int weight_bits;

	k->n = 1 + prop_index(s, PARTIES);
	weight_bits = 1 + (int)prop_index(s, 126 - 6 - SCALE_BITS);
	draw(s, k, weight_bits, (int)prop_index(s, 126));
}

/* Small enough that the products have 126 bits, and can be looked at. */
static void
generate_small(struct prop_source *s, void *c)
{
	struct split_case *k = c;
	int weight_bits;

	k->n = 1 + prop_index(s, PARTIES);
	weight_bits = 1 + (int)prop_index(s, 126 - 6 - SCALE_BITS);
	draw(s, k, weight_bits, (int)prop_index(s, (size_t)(126 - SCALE_BITS - weight_bits + 1)));
}

static void
add_i128(struct buf *out, int128 v)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(v, 0, 0, text));
}

static void
describe(const void *c, struct buf *out)
{
	const struct split_case *k = c;

	add_i128(out, k->total);
	buf_str(out, " over");
	for (size_t i = 0; i < k->n; i++) {
		buf_char(out, ' ');
		add_i128(out, k->weight[i]);
	}
	buf_str(out, ", weights times ");
	add_i128(out, k->scale);
}

static int128
sum_of(const int128 *v, size_t n)
{
	int128 sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += v[i];
	return sum;
}

static bool
parts_add_up(const void *c, struct buf *why)
{
	const struct split_case *k = c;
	int128 part[PARTIES];
	bool somebody = apportion(k->total, k->weight, k->n, part);
	int128 sum = sum_of(part, k->n);

	add_i128(why, sum);
	return somebody ? sum == k->total : sum == 0 && sum_of(k->weight, k->n) == 0;
}

/* Not only within one: exact where the exact value is whole, and rounded up only before smaller remainders. */
static bool
parts_are_the_exact_value_rounded_by_remainder(const void *c, struct buf *why)
{
	const struct split_case *k = c;
	int128 part[PARTIES], sum = sum_of(k->weight, k->n), magnitude = k->total < 0 ? -k->total : k->total;

	if (!apportion(k->total, k->weight, k->n, part))
		return sum == 0;
	for (size_t i = 0; i < k->n; i++) {
		int128 mine = k->total < 0 ? -part[i] : part[i];
		int128 rest = magnitude * k->weight[i] % sum, up = mine - magnitude * k->weight[i] / sum;

		if (up < 0 || up > 1 || (up == 1 && rest == 0)) {
			buf_printf(why, "part %zu is off by more than its remainder", i);
			return false;
		}
		for (size_t j = 0; up == 0 && j < k->n; j++) {
			int128 theirs = k->total < 0 ? -part[j] : part[j];
			int128 their_rest = magnitude * k->weight[j] % sum;
			bool their_up = theirs > magnitude * k->weight[j] / sum;

			if (their_up && (their_rest < rest || (their_rest == rest && j > i))) {
				buf_printf(why, "part %zu was rounded up before part %zu", j, i);
				return false;
			}
		}
	}
	return true;
}

static bool
a_heavier_weight_never_gets_less(const void *c, struct buf *why)
{
	const struct split_case *k = c;
	int128 part[PARTIES];

	if (!apportion(k->total, k->weight, k->n, part))
		return true;
	for (size_t i = 0; i < k->n; i++)
		for (size_t j = 0; j < k->n; j++)
			if (k->weight[i] > k->weight[j] && (k->total < 0 ? part[i] > part[j] : part[i] < part[j])) {
				buf_printf(why, "part %zu against part %zu", i, j);
				return false;
			}
	return true;
}

static bool
a_debt_mirrors_a_credit_and_the_unit_of_weights_is_free(const void *c, struct buf *why)
{
	const struct split_case *k = c;
	int128 part[PARTIES], mirrored[PARTIES], scaled[PARTIES], weight[PARTIES];
	bool a, b, d;

	for (size_t i = 0; i < k->n; i++)
		weight[i] = k->weight[i] * k->scale;
	a = apportion(k->total, k->weight, k->n, part);
	b = apportion(-k->total, k->weight, k->n, mirrored);
	d = apportion(k->total, weight, k->n, scaled);
	if (a != b || a != d)
		return false;
	for (size_t i = 0; i < k->n; i++)
		if (part[i] != -mirrored[i] || part[i] != scaled[i]) {
			buf_printf(why, "part %zu", i);
			return false;
		}
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"the parts add up to the total", sizeof(struct split_case), generate, parts_add_up, describe, NULL},
		{"each part is the exact value, rounded up in order of remainders", sizeof(struct split_case),
	         generate_small, parts_are_the_exact_value_rounded_by_remainder, describe, NULL},
		{"a heavier weight never gets less", sizeof(struct split_case), generate,
	         a_heavier_weight_never_gets_less, describe, NULL},
		{"a debt mirrors a credit, and weights have no unit", sizeof(struct split_case), generate,
	         a_debt_mirrors_a_credit_and_the_unit_of_weights_is_free, describe, NULL},
	};

	return prop_main("split", tests, ARRAY_LEN(tests));
}

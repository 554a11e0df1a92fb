/* tests/prop/prop_shared_cost.c - what nobody held of shared nodes is divided without remainder and without a negative part. */
#include <string.h>

#include "aggregator/core/rating/shared_cost.h"
#include "tests/support/harness/prop.h"

#define PARTIES_MAX 8

static const char *const names[PARTIES_MAX] = {"a", "b", "c", "d", "e", "f", "g", "h"};

struct world {
	enum shared_method method;
	int128 idle;
	size_t count;
	int128 held[PARTIES_MAX];
	int64_t weight[PARTIES_MAX]; /* 0: not declared */
};

static int128
positive(int128 v)
{
	return v < 0 ? -v : v;
}

static void
generate(struct prop_source *s, void *c)
{
	struct world *w = c;

	w->method = (enum shared_method)prop_index(s, SHARED_WEIGHTS + 1);
	w->idle = positive(prop_i128(s, 90));
	w->count = prop_index(s, PARTIES_MAX + 1);
	for (size_t i = 0; i < w->count; i++) {
		w->held[i] = positive(prop_i128(s, 90));
		w->weight[i] = (int64_t)prop_u64(s, 1000000);
	}
}

static void
describe(const void *c, struct buf *out)
{
	const struct world *w = c;
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, "method %d, idle %s\n", (int)w->method, decimal_format(w->idle, 0, 0, text));
	for (size_t i = 0; i < w->count; i++)
		buf_printf(out, "%s holds %s, weight %" PRId64 "\n", names[i], decimal_format(w->held[i], 0, 0, text),
		           w->weight[i]);
}

static size_t
run(const struct world *w, struct usage_day *out)
{
	struct rating_weight weights[PARTIES_MAX];
	struct shared_tenant parties[PARTIES_MAX];
	struct rating_book book = {.shared_idle = w->method, .weights = weights};
	const struct shared_pool pool = {.cluster = "x", .gpu_model = "m", .idle_unit_ns = w->idle};

	for (size_t i = 0; i < w->count; i++) {
		parties[i] = (struct shared_tenant){names[i], "", w->held[i]};
		if (w->weight[i] > 0)
			weights[book.weight_count++] = (struct rating_weight){names[i], w->weight[i]};
	}
	return shared_cost_rows(&book, &pool, parties, w->count, out);
}

static bool
somebody_pays(const struct world *w)
{
	for (size_t i = 0; i < w->count; i++)
		if (w->method == SHARED_WEIGHTS ? w->weight[i] > 0 : w->method != SHARED_NONE && w->held[i] > 0)
			return true;
	return false;
}

static bool
adds_up(const void *c, struct buf *why)
{
	const struct world *w = c;
	struct usage_day rows[PARTIES_MAX];
	size_t n = run(w, rows);
	char text[DECIMAL_TEXT_SIZE];
	int128 sum = 0;

	for (size_t i = 0; i < n; i++) {
		if (rows[i].unit_ns <= 0 || (i > 0 && strcmp(rows[i - 1].tenant, rows[i].tenant) >= 0))
			return false;
		sum += rows[i].unit_ns;
	}
	buf_printf(why, "the parts are %s together\n", decimal_format(sum, 0, 0, text));
	return sum == (somebody_pays(w) ? w->idle : 0);
}

/* Who has no more than another in what the method looks at, pays no more than one nanosecond-unit above it. */
static bool
is_fair(const void *c, struct buf *why)
{
	const struct world *w = c;
	struct usage_day rows[PARTIES_MAX];
	size_t n = run(w, rows);
	int128 part[PARTIES_MAX] = {0};

	for (size_t i = 0; i < n; i++)
		part[rows[i].tenant[0] - 'a'] = rows[i].unit_ns;
	for (size_t i = 0; i < w->count; i++)
		for (size_t k = 0; k < w->count; k++) {
			bool less = w->method == SHARED_WEIGHTS ? w->weight[i] <= w->weight[k]
			            : w->method == SHARED_EVEN  ? (w->held[i] > 0) <= (w->held[k] > 0)
			                                        : w->held[i] <= w->held[k];

			if (less && part[i] > part[k] + 1) {
				buf_printf(why, "%s pays more than %s\n", names[i], names[k]);
				return false;
			}
		}
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"the parts of what was idle add up to it, and none is negative", sizeof(struct world), generate,
	         adds_up, describe, NULL},
		{"who has less does not pay more", sizeof(struct world), generate, is_fair, describe, NULL},
	};

	return prop_main("prop_shared_cost", tests, ARRAY_LEN(tests));
}

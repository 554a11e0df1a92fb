/* tests/support/harness/prop.c - drawing, recording and shrinking of random cases. */
#include "tests/support/harness/prop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/digest.h"

#define PROP_MAX_DRAWS 65536u
#define PROP_MAX_TRIALS 20000u     /* runs spent on shrinking one failure */
#define PROP_MAX_SHRINK_SECONDS 30 /* of the processor, spent on the same */
/* Under a sanitizer a case costs several times as much, and what it looks for is in fewer of them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PROP_DEFAULT_CASES 300u
#else
#define PROP_DEFAULT_CASES 1000u
#endif

struct prop_source {
	uint64_t state; /* of the generator of random numbers */
	uint64_t *draws;
	size_t len; /* recorded, or in a replay: given */
	size_t pos; /* drawn so far */
	bool replay;
};

/* splitmix64: one addition and a mix, so that neighbouring seeds give unrelated numbers. */
static uint64_t
random_u64(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint64_t
random_up_to(uint64_t *state, uint64_t max)
{
	return max == UINT64_MAX ? random_u64(state) : random_u64(state) % (max + 1);
}

/* Faults live at the ends, among small numbers and beside powers of two: half of the draws go there. */
static uint64_t
random_draw(uint64_t *state, uint64_t max)
{
	uint64_t near;

	switch (random_u64(state) % 10) {
	case 0: return 0;
	case 1: return max;
	case 2: return max - random_up_to(state, max < 3 ? max : 3);
	case 3: return random_up_to(state, max < 16 ? max : 16);
	case 4:
		near = UINT64_C(1) << random_u64(state) % 64;
		near += random_u64(state) % 3 - 1;
		return near <= max ? near : max;
	default: return random_up_to(state, max);
	}
}

uint64_t
prop_u64(struct prop_source *s, uint64_t max)
{
	uint64_t value;

	if (s->replay) {
		value = s->pos < s->len ? s->draws[s->pos] : 0;
		s->pos++;
		return value <= max ? value : max;
	}
	ASSERT(s->len < PROP_MAX_DRAWS);
	value = random_draw(&s->state, max);
	s->draws[s->len++] = value;
	s->pos = s->len;
	return value;
}

bool
prop_bool(struct prop_source *s)
{
	return prop_u64(s, 1) == 1;
}

size_t
prop_index(struct prop_source *s, size_t count)
{
	ASSERT(count > 0);
	return (size_t)prop_u64(s, count - 1);
}

int64_t
prop_i64(struct prop_source *s, int64_t least, int64_t most)
{
	ASSERT(least <= most);
	if (least > 0 || most < 0) {
		uint64_t off = prop_u64(s, (uint64_t)most - (uint64_t)least);

		return least > 0 ? (int64_t)((uint64_t)least + off) : (int64_t)((uint64_t)most - off);
	}
	if (least < 0 && prop_bool(s))
		return (int64_t)(0 - prop_u64(s, 0 - (uint64_t)least));
	return (int64_t)prop_u64(s, (uint64_t)most);
}

int128
prop_i128(struct prop_source *s, int bits)
{
	uint64_t high, low;
	bool negative;
	int128 value;

	ASSERT(bits >= 0 && bits <= 126);
	negative = prop_bool(s);
	high = prop_u64(s, bits > 64 ? (UINT64_C(1) << (bits - 64)) - 1 : 0);
	low = prop_u64(s, bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1);
	value = (int128)((uint128)high << 64 | low);
	return negative ? -value : value;
}

void
prop_bytes(struct prop_source *s, void *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)out)[i] = (uint8_t)prop_u64(s, 255);
}

/* One run of a property on the draws of a source; the report gets the case and what was found. */
static bool
run_case(const struct prop_test *t, struct prop_source *s, struct buf *report)
{
	owned(mem) void *c = mem_alloc(t->size);
	in_place(buf) struct buf why = {.max = 1u << 20};
	bool ok;

	t->generate(s, c);
	ok = t->holds(c, &why);
	if (report) {
		buf_str(report, "#   case: ");
		t->describe(c, report);
		buf_printf(report, "\n#   found: %s\n", buf_text(&why));
	}
	if (t->fini)
		t->fini(c);
	return ok;
}

struct shrink {
	const struct prop_test *test;
	uint64_t *best; /* the smallest draws that still fail */
	size_t len;
	uint64_t *trial;
	size_t trials;
	clock_t began;
};

/* A smaller case is a help, not the result: shrinking ends after so many trials or so much of the processor's time. */
static bool
is_spent(const struct shrink *k)
{
	return k->trials >= PROP_MAX_TRIALS || (clock() - k->began) / CLOCKS_PER_SEC >= PROP_MAX_SHRINK_SECONDS;
}

/* True when the trial fails too; it then is the best. Draws that the generator did not ask for are dropped. */
static bool
keep_if_failing(struct shrink *k, size_t len)
{
	struct prop_source s = {.draws = k->trial, .len = len, .replay = true};

	if (is_spent(k))
		return false;
	k->trials++;
	if (run_case(k->test, &s, NULL))
		return false;
	k->len = s.pos < len ? s.pos : len;
	memcpy(k->best, k->trial, k->len * sizeof(*k->best));
	return true;
}

static void
copy_best(struct shrink *k)
{
	memcpy(k->trial, k->best, k->len * sizeof(*k->trial));
}

static bool
try_without(struct shrink *k, size_t at, size_t n)
{
	copy_best(k);
	memmove(k->trial + at, k->trial + at + n, (k->len - at - n) * sizeof(*k->trial));
	return keep_if_failing(k, k->len - n);
}

static bool
try_value(struct shrink *k, size_t at, uint64_t value)
{
	copy_best(k);
	k->trial[at] = value;
	return keep_if_failing(k, k->len);
}

/* Halves, quarters and so on: what makes a long case short soonest. */
static bool
shrink_by_cutting(struct shrink *k)
{
	bool better = false;

	for (size_t n = k->len / 2; n > 8 && !is_spent(k); n /= 2)
		for (size_t at = k->len / n * n; at > 0;) {
			at -= n;
			better |= at + n <= k->len && try_without(k, at, n);
		}
	return better;
}

static bool
shrink_by_deleting(struct shrink *k)
{
	bool better = false;

	for (size_t n = 8; n > 0; n /= 2)
		for (size_t at = k->len; at-- > 0 && !is_spent(k);)
			while (at + n <= k->len && try_without(k, at, n))
				better = true;
	return better;
}

/* The lowest value that still fails, by halving: exact where failing is monotone, and smaller in any case. */
static bool
shrink_value(struct shrink *k, size_t at)
{
	uint64_t passes = 0;
	bool better = false;

	if (k->best[at] == 0)
		return false;
	if (try_value(k, at, 0))
		return true;
	while (at < k->len && k->best[at] - passes > 1) {
		uint64_t middle = passes + (k->best[at] - passes) / 2;

		if (try_value(k, at, middle))
			better = true;
		else
			passes = middle;
	}
	return better;
}

static bool
shrink_by_lowering(struct shrink *k)
{
	bool better = false;

	for (size_t at = 0; at < k->len && !is_spent(k); at++)
		better |= shrink_value(k, at);
	return better;
}

/* A count and the elements it counts must go together: one less, and one to four draws further on deleted. */
static bool
shrink_counts(struct shrink *k)
{
	for (size_t at = 0; at < k->len && !is_spent(k); at++)
		for (size_t n = 1; k->best[at] > 0 && n <= 4; n++)
			for (size_t from = at + 1; from + n <= k->len; from++) {
				copy_best(k);
				k->trial[at]--;
				memmove(k->trial + from, k->trial + from + n, (k->len - from - n) * sizeof(*k->trial));
				if (keep_if_failing(k, k->len - n))
					return true;
			}
	return false;
}

static void
shrink(struct shrink *k)
{
	bool better;

	do {
		better = shrink_by_cutting(k);
		better |= shrink_by_lowering(k);
		better |= shrink_by_deleting(k);
		better |= shrink_counts(k);
	} while (better && !is_spent(k));
}

static void
report_failure(const struct prop_test *t, uint64_t seed, size_t index, struct prop_source *failed, struct buf *report)
{
	owned(mem) uint64_t *trial = mem_array(PROP_MAX_DRAWS, sizeof(*trial));
	struct shrink k = {.test = t, .best = failed->draws, .len = failed->len, .trial = trial, .began = clock()};
	struct prop_source smallest;

	shrink(&k);
	smallest = (struct prop_source){.draws = k.best, .len = k.len, .replay = true};
	buf_printf(report,
	           "# broken: %s\n#   by case %zu of seed 0x%016" PRIx64 ", shrunk in %zu trials to %zu draws\n",
	           t->name, index + 1, seed, k.trials, k.len);
	(void)run_case(t, &smallest, report);
	buf_printf(report, "#   replay: TOLLGATE_PROP_SEED=0x%016" PRIx64 " TOLLGATE_PROP_CASES=1\n", seed + index);
}

bool
prop_run(const struct prop_test *t, uint64_t seed, size_t cases, struct buf *report)
{
	owned(mem) uint64_t *draws = mem_array(PROP_MAX_DRAWS, sizeof(*draws));

	for (size_t i = 0; i < cases; i++) {
		/* the seed of a case is its own, so that it can be replayed alone */
		struct prop_source s = {.state = seed + i, .draws = draws};

		random_u64(&s.state);
		if (run_case(t, &s, NULL))
			continue;
		report_failure(t, seed, i, &s, report);
		return false;
	}
	return true;
}

/* A number in the environment, or the preset. A wrong one ends the program: a test run by mistake with another seed or
 * with no cases would look like a passing one. */
static uint64_t
env_u64(const char *name, uint64_t preset)
{
	const char *text = getenv(name);
	uint64_t value;
	char *end;

	if (!text || !*text)
		return preset;
	value = strtoull(text, &end, 0);
	if (*end || text[0] == '-' || (value == 0 && strcmp(name, "TOLLGATE_PROP_CASES") == 0)) {
		fprintf(stderr, "%s=%s is not a number that can be used\n", name, text);
		exit(2);
	}
	return value;
}

int
prop_main(const char *program, const struct prop_test *tests, size_t count)
{
	uint64_t seed, cases = env_u64("TOLLGATE_PROP_CASES", PROP_DEFAULT_CASES);
	size_t failed = 0;

	random_bytes((uint8_t *)&seed, sizeof(seed));
	seed = env_u64("TOLLGATE_PROP_SEED", seed);
	printf("1..%zu\n# %s: %" PRIu64 " cases each, TOLLGATE_PROP_SEED=0x%016" PRIx64 "\n", count, program, cases,
	       seed);
	fflush(stdout);
	for (size_t i = 0; i < count; i++) {
		in_place(buf) struct buf report = {.max = 8u << 20};
		bool ok = prop_run(&tests[i], seed, (size_t)cases, &report);

		printf("%s%s %zu - %s\n", buf_text(&report), ok ? "ok" : "not ok", i + 1, tests[i].name);
		fflush(stdout);
		failed += !ok;
	}
	return failed ? 1 : 0;
}

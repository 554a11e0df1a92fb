/* tests/prop/prop_units.c - whatever a GPU is cut into adds up to at most a GPU. */
#include "common/base/units.h"
#include "tests/support/harness/prop.h"

/* A GPU of each geometry with its own table of profiles, so that the test does not read the one it tests. */
static const struct gpu {
	const char *model;
	int64_t memory_mib;
	const char *profile[6];
	size_t count;
} gpus[] = {
	{"NVIDIA H100 80GB HBM3", 81559, {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}, 6},
	{"NVIDIA A100-SXM4-40GB", 40960, {"1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}, 6},
	{"NVIDIA A30", 24576, {"1g.6gb", "2g.12gb", "4g.24gb"}, 3},
	{"NVIDIA H200", 143771, {"1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"}, 6},
	{"NVIDIA H100 NVL", 95830, {"1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"}, 6},
	{"NVIDIA B200", 183359, {"1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"}, 6},
	{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, {"1g.24gb", "2g.48gb", "4g.96gb"}, 3},
};

#define LAYOUT_MAX 8

struct layout {
	const struct gpu *gpu;
	struct mig_geometry g;
	struct mig_slices slices[6]; /* of each profile */
	size_t n, pick[LAYOUT_MAX];  /* the instances made, in order */
	int compute_left, memory_left;
	int cut[LAYOUT_MAX]; /* compute slices of the first compute instance in it */
};

/* Instances as long as one that was picked fits; a pick that does not is passed over. */
static void
generate(struct prop_source *s, void *c)
{
	struct layout *k = c;
	size_t tries;

	k->gpu = &gpus[prop_index(s, ARRAY_LEN(gpus))];
	ASSERT(mig_geometry_of(k->gpu->model, k->gpu->memory_mib, &k->g, NULL));
	for (size_t i = 0; i < k->gpu->count; i++)
		ASSERT(mig_profile_parse(&k->g, k->gpu->profile[i], &k->slices[i], NULL));
	k->compute_left = k->g.compute_slices;
	k->memory_left = k->g.memory_slices;
	tries = prop_index(s, LAYOUT_MAX + 1);
	for (size_t i = 0; i < tries; i++) {
		size_t pick = prop_index(s, k->gpu->count);
		const struct mig_slices *p = &k->slices[pick];

		if (p->compute > k->compute_left || p->memory > k->memory_left)
			continue;
		k->cut[k->n] = 1 + (int)prop_index(s, (size_t)p->compute);
		k->pick[k->n++] = pick;
		k->compute_left -= p->compute;
		k->memory_left -= p->memory;
	}
	/* some of the rest may be out of reach, so that every rest occurs */
	k->compute_left -= (int)prop_index(s, (size_t)k->compute_left + 1);
	k->memory_left -= (int)prop_index(s, (size_t)k->memory_left + 1);
}

static void
describe(const void *c, struct buf *out)
{
	const struct layout *k = c;

	buf_printf(out, "%s:", k->gpu->model);
	for (size_t i = 0; i < k->n; i++)
		buf_printf(out, " %s(%dc)", k->gpu->profile[k->pick[i]], k->cut[i]);
	buf_printf(out, ", %d compute and %d memory slices left", k->compute_left, k->memory_left);
}

static int64_t
units_made(const struct layout *k)
{
	int64_t units = 0;

	for (size_t i = 0; i < k->n; i++)
		units += units_of_slices(&k->g, k->slices[k->pick[i]]);
	return units;
}

/* The second opinion on packing: a table over all rests, filled from the small to the large. */
static int64_t
creatable_by_table(const struct layout *k)
{
	int64_t best[8][9] = {{0}};

	for (int compute = 0; compute <= k->compute_left; compute++)
		for (int memory = 0; memory <= k->memory_left; memory++)
			for (size_t i = 0; i < k->gpu->count; i++) {
				const struct mig_slices *p = &k->slices[i];
				int64_t units;

				if (p->compute > compute || p->memory > memory)
					continue;
				units = units_of_slices(&k->g, *p) + best[compute - p->compute][memory - p->memory];
				if (units > best[compute][memory])
					best[compute][memory] = units;
			}
	return best[k->compute_left][k->memory_left];
}

static bool
a_layout_and_what_can_be_added_are_at_most_a_gpu(const void *c, struct buf *why)
{
	const struct layout *k = c;
	int64_t made = units_made(k), creatable = units_creatable(&k->g, k->compute_left, k->memory_left);

	buf_printf(why, "%" PRId64 " made, %" PRId64 " creatable", made, creatable);
	return made >= 0 && creatable >= 0 && made + creatable <= UNITS_PER_GPU;
}

static bool
what_is_creatable_is_the_best_packing(const void *c, struct buf *why)
{
	const struct layout *k = c;
	int64_t creatable = units_creatable(&k->g, k->compute_left, k->memory_left), best = creatable_by_table(k);

	buf_printf(why, "%" PRId64 " instead of %" PRId64, creatable, best);
	return creatable == best;
}

static bool
more_slices_are_never_worth_less(const void *c, struct buf *why)
{
	const struct layout *k = c;
	int64_t now = units_creatable(&k->g, k->compute_left, k->memory_left);

	buf_printf(why, "%" PRId64, now);
	return units_creatable(&k->g, k->compute_left - 1, k->memory_left) <= now &&
	       units_creatable(&k->g, k->compute_left, k->memory_left - 1) <= now;
}

static bool
compute_instances_add_up_to_their_gpu_instance(const void *c, struct buf *why)
{
	const struct layout *k = c;

	for (size_t i = 0; i < k->n; i++) {
		struct mig_slices whole = k->slices[k->pick[i]], first = whole, rest = whole;
		int64_t sum;

		first.compute = k->cut[i];
		rest.compute = whole.compute - k->cut[i];
		sum = units_of_slices(&k->g, first) + units_of_slices(&k->g, rest);
		if (sum != units_of_slices(&k->g, whole)) {
			buf_printf(why, "%s cut at %d: %" PRId64, k->gpu->profile[k->pick[i]], k->cut[i], sum);
			return false;
		}
	}
	return true;
}

/* ---- where they lie ------------------------------------------------------------------------------------------------- */

/* Every place that NVIDIA lists, per profile of a GPU, as a second table: bits of the memory slices they take. */
#define PLACES_MAX 18
struct places {
	const struct gpu *gpu;
	struct mig_geometry g;
	size_t n;
	uint32_t slices[PLACES_MAX];
	int64_t units[PLACES_MAX];
	int compute[PLACES_MAX];
	size_t count, made[LAYOUT_MAX]; /* the instances there are */
};

static bool
may_begin(const struct mig_geometry *g, const struct mig_slices *p, int at)
{
	if (at + p->memory > g->memory_slices)
		return false;
	if (p->memory == 1) /* an H100's last memory slice has no compute slice */
		return at < g->compute_slices;
	if (p->compute == 2 && g->compute_slices == 7)
		return at % 2 == 0 && at + 2 <= 6;
	if (p->compute == 4)
		return at == 0;
	return at % p->memory == 0;
}

static void
generate_places(struct prop_source *s, void *c)
{
	struct places *k = c;
	uint32_t taken = 0;
	size_t tries;

	k->gpu = &gpus[prop_index(s, ARRAY_LEN(gpus))];
	ASSERT(mig_geometry_of(k->gpu->model, k->gpu->memory_mib, &k->g, NULL));
	for (size_t i = 0; i < k->gpu->count; i++) {
		struct mig_slices p;

		ASSERT(mig_profile_parse(&k->g, k->gpu->profile[i], &p, NULL));
		for (int at = 0; at < k->g.memory_slices; at++) {
			if (!may_begin(&k->g, &p, at))
				continue;
			ASSERT(k->n < PLACES_MAX);
			k->slices[k->n] = ((1u << p.memory) - 1) << at;
			k->units[k->n] = units_of_slices(&k->g, p);
			k->compute[k->n++] = p.compute;
		}
	}
	tries = prop_index(s, LAYOUT_MAX + 1);
	for (size_t i = 0; i < tries; i++) {
		size_t pick = prop_index(s, k->n);

		if (taken & k->slices[pick])
			continue;
		taken |= k->slices[pick];
		k->made[k->count++] = pick;
	}
}

static uint32_t
taken_by(const struct places *k)
{
	uint32_t taken = 0;

	for (size_t i = 0; i < k->count; i++)
		taken |= k->slices[k->made[i]];
	return taken;
}

static void
describe_places(const void *c, struct buf *out)
{
	const struct places *k = c;

	buf_printf(out, "%s: slices", k->gpu->model);
	for (size_t i = 0; i < k->count; i++)
		buf_printf(out, " %#x", k->slices[k->made[i]]);
	buf_printf(out, " are taken");
}

/* With and without each place: every set of instances that do not overlap. */
static int64_t
best_of_all_sets(const struct places *k, size_t from, uint32_t taken)
{
	int64_t without, with;

	if (from == k->n)
		return 0;
	without = best_of_all_sets(k, from + 1, taken);
	if (taken & k->slices[from])
		return without;
	with = k->units[from] + best_of_all_sets(k, from + 1, taken | k->slices[from]);
	return with > without ? with : without;
}

static bool
what_is_creatable_at_places_is_the_best_of_all_sets(const void *c, struct buf *why)
{
	const struct places *k = c;
	int64_t creatable = units_creatable_at(&k->g, taken_by(k)), best = best_of_all_sets(k, 0, taken_by(k));

	buf_printf(why, "%" PRId64 " instead of %" PRId64, creatable, best);
	return creatable == best;
}

static bool
places_never_give_more_than_counting_does(const void *c, struct buf *why)
{
	const struct places *k = c;
	int compute = k->g.compute_slices, memory = k->g.memory_slices - __builtin_popcount(taken_by(k));
	int64_t made = 0, at_places = units_creatable_at(&k->g, taken_by(k)), counted;

	for (size_t i = 0; i < k->count; i++) {
		compute -= k->compute[k->made[i]];
		made += k->units[k->made[i]];
	}
	counted = units_creatable(&k->g, compute, memory);
	buf_printf(why, "%" PRId64 " made, %" PRId64 " at places, %" PRId64 " counted", made, at_places, counted);
	return compute >= 0 && at_places <= counted && made + at_places <= UNITS_PER_GPU;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a legal layout and what can be added to it are at most a GPU", sizeof(struct layout), generate,
	         a_layout_and_what_can_be_added_are_at_most_a_gpu, describe, NULL},
		{"what is creatable is the best packing of what is left", sizeof(struct layout), generate,
	         what_is_creatable_is_the_best_packing, describe, NULL},
		{"more slices are never worth less", sizeof(struct layout), generate, more_slices_are_never_worth_less,
	         describe, NULL},
		{"compute instances add up to their GPU instance", sizeof(struct layout), generate,
	         compute_instances_add_up_to_their_gpu_instance, describe, NULL},
		{"what is creatable at the free places is the best of all sets", sizeof(struct places), generate_places,
	         what_is_creatable_at_places_is_the_best_of_all_sets, describe_places, NULL},
		{"places never give more than counting slices does", sizeof(struct places), generate_places,
	         places_never_give_more_than_counting_does, describe_places, NULL},
	};

	return prop_main("units", tests, ARRAY_LEN(tests));
}

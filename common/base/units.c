/* common/base/units.c - what a GPU, a MIG instance and a replica weigh. */
#include "common/base/units.h"

#include <stdio.h>
#include <string.h>

/* The families that can be cut, by the words of NVML's name. The memory range tells a GPU from something smaller that
 * carries its name, such as a virtual GPU. */
static const struct family {
	const char *words; /* upper case */
	int compute, memory;
	int least_gib, most_gib;
} families[] = {
	/* clang-format off */
	{"A30", 4, 4, 24, 24},
	{"A30X", 4, 4, 24, 24},
	{"A100", 7, 8, 40, 80},
	{"A100X", 7, 8, 80, 80},
	{"A800", 7, 8, 40, 80},
	{"H100", 7, 8, 64, 96},
	{"H800", 7, 8, 80, 94},
	{"H20", 7, 8, 96, 141},
	{"H200", 7, 8, 141, 141},
	{"GH200", 7, 8, 96, 144},
	{"B200", 7, 8, 180, 192},
	{"GB200", 7, 8, 180, 192},
	{"B300", 7, 8, 262, 288},
	{"GB300", 7, 8, 262, 288},
	{"RTX PRO 6000 BLACKWELL", 4, 4, 96, 96},
	/* clang-format on */
};

/* The makers' limits of board power; of several boards of a name the highest. */
static const struct {
	const char *words;
	int watts;
} board_power[] = {
	/* clang-format off */
	{"GB300", 1400}, {"B300", 1400}, {"GB200", 1200}, {"B200", 1200}, {"GH200", 1000}, {"H200", 700}, {"H100", 700}, {"H800", 700},
	{"H20", 500}, {"A100X", 300}, {"A100", 500}, {"A800", 500}, {"A30X", 230}, {"A30", 165}, {"RTX PRO 6000 BLACKWELL", 600},
	{"L40S", 350}, {"L40", 300}, {"L20", 275}, {"L4", 72}, {"L2", 72}, {"A40", 300}, {"A16", 250}, {"A10", 150}, {"A10G", 300}, {"A2", 60},
	{"V100", 350}, {"V100S", 250}, {"P100", 300}, {"P40", 250}, {"P4", 75}, {"T4", 70}, {"RTX A6000", 300}, {"RTX 6000 ADA", 300},
	{"RTX 4090", 600}, {"RTX 3090", 450}, {"RTX 5090", 600},
	/* clang-format on */
};

/* Models whose name does not say their memory, or says another one: GH200's 480GB are those of its processor. */
static const struct {
	const char *family, *word; /* word: NULL for every model of the family */
	int gib;
} implied_memory[] = {
	/* clang-format off */
	{"A30", NULL, 24},
	{"A30X", NULL, 24},
	{"A100X", NULL, 80},
	{"H100", "PCIE", 80},
	{"H100", "NVL", 94},
	{"H800", "PCIE", 80},
	{"H20", "3E", 141},
	{"H20", NULL, 96},
	{"H200", NULL, 141},
	{"GH200", "480GB", 96},
	{"GH200", "144G", 144},
	{"B200", NULL, 180},
	{"GB200", NULL, 186},
	{"B300", NULL, 269},
	{"GB300", NULL, 278},
	/* clang-format on */
};

/* The GPU instances NVIDIA offers, as slices, and the memory slices they may begin at, one bit each. A geometry that is not
 * here has its smallest and its whole. */
struct profile {
	int compute, memory;
	uint32_t begins;
};

#define AT(slice) (1u << (slice))
static const struct profile profiles_7_8[] = {
	/* clang-format off */
	{7, 8, AT(0)},
	{4, 4, AT(0)},
	{3, 4, AT(0) | AT(4)},
	{2, 2, AT(0) | AT(2) | AT(4)},
	{1, 2, AT(0) | AT(2) | AT(4) | AT(6)},
	{1, 1, AT(0) | AT(1) | AT(2) | AT(3) | AT(4) | AT(5) | AT(6)},
	/* clang-format on */
};
static const struct profile profiles_4_4[] = {
	/* clang-format off */
	{4, 4, AT(0)},
	{2, 2, AT(0) | AT(2)},
	{1, 1, AT(0) | AT(1) | AT(2) | AT(3)},
	/* clang-format on */
};
static const struct profile profiles_other[] = {{1, 1, 0}};
#define MEMORY_SLICES_MAX 8 /* of the geometries whose places are known */

static size_t
profiles_of(const struct mig_geometry *g, const struct profile **ret)
{
	if (g->compute_slices == 7 && g->memory_slices == 8) {
		*ret = profiles_7_8;
		return ARRAY_LEN(profiles_7_8);
	}
	if (g->compute_slices == 4 && g->memory_slices == 4) {
		*ret = profiles_4_4;
		return ARRAY_LEN(profiles_4_4);
	}
	*ret = profiles_other;
	return ARRAY_LEN(profiles_other);
}

#define WORDS_SIZE 128

/* " NVIDIA A100 SXM4 40GB " of "NVIDIA A100-SXM4-40GB": upper case, each word between spaces. */
static void
words_of(const char *name, char out[WORDS_SIZE])
{
	size_t len = 0;

	out[len++] = ' ';
	for (; *name && len < WORDS_SIZE - 2; name++) {
		bool letter = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
		              (*name >= '0' && *name <= '9');

		if (letter)
			out[len++] = (char)(*name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name);
		else if (out[len - 1] != ' ')
			out[len++] = ' ';
	}
	if (out[len - 1] != ' ')
		out[len++] = ' ';
	out[len] = '\0';
}

static bool
has_words(const char *words, const char *wanted)
{
	char between[WORDS_SIZE];

	snprintf(between, sizeof(between), " %s ", wanted);
	return strstr(words, between) != NULL;
}

static const struct family *
family_of(const char *words)
{
	for (size_t i = 0; i < ARRAY_LEN(families); i++)
		if (has_words(words, families[i].words))
			return &families[i];
	return NULL;
}

/* NVML's total is a little below the nominal size, because the driver keeps some memory for itself: mostly less than a
 * GiB, which rounding up gives back. Four percent are allowed: from six on, the whole would look like nine slices. */
bool
mig_geometry_of(const char *model, int64_t memory_mib, struct mig_geometry *ret, struct err *err)
{
	char words[WORDS_SIZE];
	const struct family *f;
	int64_t gib;

	words_of(model, words);
	f = family_of(words);
	if (!f)
		return err_set(err, ERR_MISSING, "the model \"%.96s\" is not known to be partitionable", model);
	gib = memory_mib > 0 && memory_mib < INT64_MAX - 1023 ? (memory_mib + 1023) / 1024 : 0;
	if (gib < f->least_gib - f->least_gib / 25 || gib > f->most_gib)
		return err_set(err, ERR_MISSING,
		               "the model \"%.96s\" with %" PRId64
		               " MiB is not known to be partitionable: %d to %d GiB expected",
		               model, memory_mib, f->least_gib, f->most_gib);
	*ret = (struct mig_geometry){
		.compute_slices = f->compute,
		.memory_slices = f->memory,
		.memory_slice_mib = gib * 1024 / f->memory,
	};
	return true;
}

/* A number of one to four digits followed by the text after it, such as "40gb". */
static bool
number_and(const char **p, const char *after, int *ret)
{
	int value = 0, count = 0;
	const char *q = *p;

	for (; *q >= '0' && *q <= '9' && count < 4; q++, count++)
		value = value * 10 + (*q - '0');
	if (count == 0 || value == 0 || strncmp(q, after, strlen(after)) != 0)
		return false;
	*p = q + strlen(after);
	*ret = value;
	return true;
}

/* "+me", "-me", "+gfx", "+me.all": engines beside the slices, which weigh nothing. */
static bool
is_extension(const char *p)
{
	size_t len;

	if (*p == '\0')
		return true;
	len = strspn(p + 1, "abcdefghijklmnopqrstuvwxyz.");
	return (*p == '+' || *p == '-') && len > 0 && p[1 + len] == '\0';
}

/* Memory in a profile's name is rounded to whole GB, and the size of a slice is only nominal: the nearest count within
 * a twelfth is meant. 0 when none is. */
static int
memory_slices_of(const struct mig_geometry *g, int gb)
{
	int64_t mib = (int64_t)gb * 1024;
	int64_t slices, off;

	if (g->memory_slice_mib <= 0)
		return 0;
	slices = (mib + g->memory_slice_mib / 2) / g->memory_slice_mib;
	off = slices * g->memory_slice_mib - mib;
	return off >= -mib / 12 && off <= mib / 12 && slices <= g->memory_slices ? (int)slices : 0;
}

static bool
is_offered(const struct mig_geometry *g, int compute, int memory)
{
	const struct profile *profiles;
	size_t n = profiles_of(g, &profiles);

	for (size_t i = 0; i < n; i++)
		if (profiles[i].compute == compute && profiles[i].memory == memory)
			return true;
	return compute == g->compute_slices && memory == g->memory_slices;
}

bool
mig_profile_parse(const struct mig_geometry *g, const char *profile, struct mig_slices *ret, struct err *err)
{
	const char *p = profile;
	int compute = 0, gi_compute, gb, memory;
	bool part = number_and(&p, "c.", &compute);

	if (!number_and(&p, "g.", &gi_compute) || !number_and(&p, "gb", &gb) || !is_extension(p))
		return err_set(err, ERR_INVALID,
		               "\"%.40s\" is not a MIG profile like 3g.40gb, 1g.10gb+me or 1c.3g.40gb", profile);
	memory = memory_slices_of(g, gb);
	if (!is_offered(g, gi_compute, memory))
		return err_set(
			err, ERR_INVALID,
			"the MIG profile \"%.40s\" does not exist on a GPU of %d compute, %d memory slices of %" PRId64
			" MiB",
			profile, g->compute_slices, g->memory_slices, g->memory_slice_mib);
	if (part && compute > gi_compute)
		return err_set(err, ERR_INVALID,
		               "the MIG profile \"%.40s\" has a compute instance larger than its GPU instance",
		               profile);
	*ret = (struct mig_slices){.compute = part ? compute : gi_compute, .memory = memory, .gi_compute = gi_compute};
	return true;
}

static int64_t
clamp(int64_t value, int64_t most)
{
	return value < 0 ? 0 : value > most ? most : value;
}

/* The slices may come from a driver: whatever it says, the result is within 0 .. 5040. */
int64_t
units_of_slices(const struct mig_geometry *g, struct mig_slices s)
{
	int64_t c_all = g->compute_slices, m_all = g->memory_slices;
	int64_t compute, memory, gi_compute;

	if (c_all <= 0 || m_all <= 0)
		return 0;
	gi_compute = clamp(s.gi_compute, c_all);
	compute = clamp(s.compute, c_all);
	memory = clamp(s.memory, m_all);
	if (gi_compute < compute)
		gi_compute = compute;
	if (gi_compute == 0)
		return 0;
	return UNITS_PER_GPU * compute * (gi_compute * m_all + memory * c_all) / (2 * c_all * m_all * gi_compute);
}

/* Tries each profile from `first` on as the next instance. At most seven deep, as each takes a compute slice. */
static int64_t
best_packing(const struct mig_geometry *g, const struct profile *profiles, size_t n, size_t first, int compute,
             int memory)
{
	int64_t best = 0;

	for (size_t i = first; i < n; i++) {
		const struct profile *p = &profiles[i];
		struct mig_slices s = {.compute = p->compute, .memory = p->memory, .gi_compute = p->compute};
		int64_t units;

		if (p->compute > compute || p->memory > memory)
			continue;
		units = units_of_slices(g, s) +
		        best_packing(g, profiles, n, i, compute - p->compute, memory - p->memory);
		if (units > best)
			best = units;
	}
	return best;
}

int64_t
units_creatable(const struct mig_geometry *g, int compute_left, int memory_left)
{
	const struct profile *profiles;
	size_t n = profiles_of(g, &profiles);

	if (compute_left >= g->compute_slices && memory_left >= g->memory_slices)
		return UNITS_PER_GPU;
	return best_packing(g, profiles, n, 0, compute_left, memory_left);
}

bool
mig_may_begin_at(const struct mig_geometry *g, int gi_compute, int memory, int start)
{
	const struct profile *profiles;
	size_t n = profiles_of(g, &profiles);

	for (size_t i = 0; i < n; i++)
		if (profiles[i].compute == gi_compute && profiles[i].memory == memory)
			return start >= 0 && start < MEMORY_SLICES_MAX && (profiles[i].begins & AT(start)) != 0;
	return false;
}

static uint32_t
slices_from(int start, int count)
{
	return ((1u << count) - 1) << start;
}

/* From the last slice to the first: the best of what begins here with the best after it, or of leaving this one free. The
 * places are such that memory runs out no later than compute, so memory decides alone. */
int64_t
units_creatable_at(const struct mig_geometry *g, uint32_t taken)
{
	int64_t best[MEMORY_SLICES_MAX + 1] = {0};
	const struct profile *profiles;
	size_t n = profiles_of(g, &profiles);

	if (taken == 0)
		return UNITS_PER_GPU;
	if (profiles == profiles_other)
		return 0;
	for (int at = g->memory_slices - 1; at >= 0; at--) {
		best[at] = best[at + 1];
		for (size_t i = 0; i < n; i++) {
			const struct profile *p = &profiles[i];
			struct mig_slices s = {.compute = p->compute, .memory = p->memory, .gi_compute = p->compute};
			int64_t units;

			if (!(p->begins & AT(at)) || taken & slices_from(at, p->memory))
				continue;
			units = units_of_slices(g, s) + best[at + p->memory];
			if (units > best[at])
				best[at] = units;
		}
	}
	return best[0];
}

/* The size in a word such as 80GB or 144G; 0 when none has one. */
static int
named_memory(const char *words)
{
	for (const char *p = words; *p; p++) {
		const char *q = p + 1;
		int gib;

		if (*p == ' ' && (number_and(&q, "GB ", &gib) || number_and(&q, "G ", &gib)))
			return gib;
	}
	return 0;
}

/* A size in the name counts where the family has it. */
static int
nominal_memory(const char *words, const struct family *f)
{
	int named = named_memory(words);

	if (named >= f->least_gib && named <= f->most_gib)
		return named;
	for (size_t i = 0; i < ARRAY_LEN(implied_memory); i++)
		if (strcmp(implied_memory[i].family, f->words) == 0 &&
		    (!implied_memory[i].word || has_words(words, implied_memory[i].word)))
			return implied_memory[i].gib;
	return named;
}

int64_t
gpu_power_most_w(const char *model)
{
	char words[WORDS_SIZE];
	int watts = GPU_POWER_UNKNOWN_W;

	words_of(model, words);
	for (size_t i = 0; i < ARRAY_LEN(board_power); i++)
		if (has_words(words, board_power[i].words)) {
			watts = board_power[i].watts;
			break;
		}
	return (int64_t)watts * 3 / 2;
}

int64_t
gpu_memory_most_bytes(const char *model)
{
	const struct family *f;
	char words[WORDS_SIZE];
	int gib;

	words_of(model, words);
	f = family_of(words);
	gib = f ? nominal_memory(words, f) : 0;
	/* GH200's 480GB are those of its processor. */
	return f && gib > f->most_gib ? (int64_t)f->most_gib << 30 : (int64_t)gib << 30;
}

void
gpu_model_short(const char *nvml_name, char *out, size_t size)
{
	const char *name = strncmp(nvml_name, "NVIDIA ", 7) == 0 ? nvml_name + 7 : nvml_name;
	const struct family *f;
	char words[WORDS_SIZE];
	int gib = 0;

	words_of(name, words);
	f = family_of(words);
	if (f && !strchr(f->words, ' '))
		gib = nominal_memory(words, f);
	if (gib > 0)
		snprintf(out, size, "%s-%dGB", f->words, gib);
	else
		snprintf(out, size, "%s", name);
}

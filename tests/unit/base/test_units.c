/* tests/unit/base/test_units.c - the weights of BILLING 1, for every model and profile that can be cut. */
#include "common/base/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Memory as NVML reports it, and every profile of the model with its units. */
static const struct {
	const char *model;
	int64_t memory_mib;
	const char *profile;
	int64_t units;
} weights[] = {
	{"NVIDIA H100 80GB HBM3", 81559, "1g.10gb", 675},
	{"NVIDIA H100 80GB HBM3", 81559, "1g.10gb+me", 675},
	{"NVIDIA H100 80GB HBM3", 81559, "1g.20gb", 990},
	{"NVIDIA H100 80GB HBM3", 81559, "2g.20gb", 1350},
	{"NVIDIA H100 80GB HBM3", 81559, "3g.40gb", 2340},
	{"NVIDIA H100 80GB HBM3", 81559, "4g.40gb", 2700},
	{"NVIDIA H100 80GB HBM3", 81559, "7g.80gb", 5040},
	{"NVIDIA H100 80GB HBM3", 81920, "1g.10gb", 675},
	{"NVIDIA H100 PCIe", 81559, "1g.10gb", 675},
	{"NVIDIA A100 80GB PCIe", 81920, "1g.10gb", 675},
	{"NVIDIA A100-SXM4-80GB", 81251, "7g.80gb", 5040},
	{"NVIDIA A100-SXM4-40GB", 40960, "1g.5gb", 675},
	{"NVIDIA A100-SXM4-40GB", 40536, "1g.5gb+me", 675},
	{"NVIDIA A100-SXM4-40GB", 40960, "1g.10gb", 990},
	{"NVIDIA A100-SXM4-40GB", 40960, "2g.10gb", 1350},
	{"A100-SXM4-40GB", 40960, "3g.20gb", 2340},
	{"NVIDIA A100-PCIE-40GB", 40960, "4g.20gb", 2700},
	{"NVIDIA A100-SXM4-40GB", 40960, "7g.40gb", 5040},
	{"NVIDIA A100-SXM-64GB", 65536, "1g.8gb", 675},
	{"NVIDIA A100-SXM-64GB", 65536, "3g.32gb", 2340},
	{"NVIDIA A30", 24576, "1g.6gb", 1260},
	{"NVIDIA A30", 24062, "1g.6gb+me", 1260},
	{"NVIDIA A30", 24576, "2g.12gb", 2520},
	{"NVIDIA A30", 24576, "4g.24gb", 5040},
	{"NVIDIA H100 NVL", 95830, "1g.12gb", 675},
	{"NVIDIA H100 NVL", 95830, "1g.24gb", 990},
	{"NVIDIA H100 NVL", 95830, "2g.24gb", 1350},
	{"NVIDIA H100 NVL", 95830, "3g.47gb", 2340},
	{"NVIDIA H100 NVL", 95830, "4g.47gb", 2700},
	{"NVIDIA H100 NVL", 95830, "7g.94gb", 5040},
	{"NVIDIA GH200 480GB", 97871, "1g.12gb", 675},
	{"NVIDIA GH200 480GB", 97871, "1g.24gb", 990},
	{"NVIDIA GH200 480GB", 97871, "3g.48gb", 2340},
	{"NVIDIA GH200 480GB", 97871, "7g.96gb", 5040},
	{"NVIDIA GH200 144G HBM3e", 147456, "1g.18gb", 675},
	{"NVIDIA GH200 144G HBM3e", 147456, "1g.36gb", 990},
	{"NVIDIA GH200 144G HBM3e", 147456, "4g.72gb", 2700},
	{"NVIDIA H100 96GB HBM3", 97871, "2g.24gb", 1350},
	{"NVIDIA H20", 97871, "4g.48gb", 2700},
	{"NVIDIA H200", 143771, "1g.18gb", 675},
	{"NVIDIA H200", 143771, "1g.35gb", 990},
	{"NVIDIA H200", 143771, "2g.35gb", 1350},
	{"NVIDIA H200", 143771, "3g.71gb", 2340},
	{"NVIDIA H200", 143771, "4g.71gb", 2700},
	{"NVIDIA H200 NVL", 143771, "7g.141gb", 5040},
	{"NVIDIA B200", 183359, "1g.23gb", 675},
	{"NVIDIA B200", 183359, "1g.45gb", 990},
	{"NVIDIA B200", 182642, "7g.180gb", 5040},
	{"NVIDIA B200", 183359, "2g.45gb", 1350},
	{"NVIDIA B200", 183359, "3g.90gb", 2340},
	{"NVIDIA B200", 183359, "4g.90gb", 2700},
	{"NVIDIA B200", 183359, "7g.180gb", 5040},
	{"NVIDIA GB200", 189471, "1g.23gb", 675},
	{"NVIDIA GB200", 189471, "1g.24gb", 675},
	{"NVIDIA GB200", 189471, "1g.47gb", 990},
	{"NVIDIA GB200", 189471, "3g.93gb", 2340},
	{"NVIDIA GB200", 189471, "7g.186gb", 5040},
	{"NVIDIA B300 SXM6 AC", 275040, "1g.34gb", 675},
	{"NVIDIA B300 SXM6 AC", 275040, "2g.67gb", 1350},
	{"NVIDIA B300 SXM6 AC", 275040, "7g.269gb", 5040},
	{"NVIDIA GB300", 284208, "1g.35gb", 675},
	{"NVIDIA GB300", 284208, "3g.139gb", 2340},
	{"NVIDIA GB300", 284208, "7g.278gb", 5040},
	{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "1g.24gb", 1260},
	{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "1g.24gb+me.all", 1260},
	{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "1g.24gb-me", 1260},
	{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "2g.48gb+gfx", 2520},
	{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "4g.96gb", 5040},
	{"NVIDIA H100 80GB HBM3", 81559, "1c.3g.40gb", 780},
	{"NVIDIA H100 80GB HBM3", 81559, "2c.3g.40gb", 1560},
	{"NVIDIA H100 80GB HBM3", 81559, "3c.3g.40gb", 2340},
	{"NVIDIA H100 80GB HBM3", 81559, "1c.7g.80gb", 720},
	{"NVIDIA H100 80GB HBM3", 81559, "2c.7g.80gb", 1440},
	{"NVIDIA H100 80GB HBM3", 81559, "4c.7g.80gb", 2880},
	{"NVIDIA H100 80GB HBM3", 81559, "1c.2g.20gb", 675},
	{"NVIDIA H100 80GB HBM3", 81559, "1c.4g.40gb", 675},
	{"NVIDIA H100 80GB HBM3", 81559, "2c.4g.40gb", 1350},
	{"NVIDIA H100 80GB HBM3", 81559, "1c.1g.20gb", 990},
	{"NVIDIA A30", 24576, "1c.4g.24gb", 1260},
	{"NVIDIA A30", 24576, "1c.2g.12gb+me", 1260},
};

static void
every_profile_of_every_model_has_its_weight(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(weights); i++) {
		struct mig_geometry g;
		struct mig_slices s = {0};
		struct err err = {0};
		int64_t units;

		if (!mig_geometry_of(weights[i].model, weights[i].memory_mib, &g, &err) ||
		    !mig_profile_parse(&g, weights[i].profile, &s, &err))
			fail_msg("%s on %s: %s", weights[i].profile, weights[i].model, err.text);
		units = units_of_slices(&g, s);
		if (units != weights[i].units)
			fail_msg("%s on %s: %" PRId64 " instead of %" PRId64, weights[i].profile, weights[i].model,
			         units, weights[i].units);
	}
}

static void
the_same_name_has_other_slices_on_a_smaller_gpu(void **state)
{
	struct mig_geometry g40, g80;
	struct mig_slices s;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA A100-SXM4-40GB", 40960, &g40, NULL));
	assert_true(mig_geometry_of("NVIDIA A100-SXM4-80GB", 81920, &g80, NULL));
	assert_true(mig_profile_parse(&g40, "1g.10gb", &s, NULL));
	assert_int_equal(s.memory, 2);
	assert_true(mig_profile_parse(&g80, "1g.10gb", &s, NULL));
	assert_int_equal(s.memory, 1);
	assert_int_equal(s.compute, 1);
	assert_int_equal(s.gi_compute, 1);
	assert_true(mig_profile_parse(&g80, "2c.3g.40gb", &s, NULL));
	assert_int_equal(s.compute, 2);
	assert_int_equal(s.gi_compute, 3);
	assert_int_equal(s.memory, 4);
}

static void
models_that_cannot_be_cut_are_missing(void **state)
{
	static const struct {
		const char *model;
		int64_t memory_mib;
	} rows[] = {
		{"NVIDIA L40S", 46068},
		{"NVIDIA GeForce RTX 4090", 24564},
		{"Tesla V100-SXM2-32GB", 32768},
		{"NVIDIA A10", 23028},
		{"NVIDIA A1000", 81920}, /* not an A100 */
		{"", 81920},
		{"NVIDIA H100 80GB HBM3", 0},
		{"NVIDIA H100 80GB HBM3", -1},
		{"NVIDIA H100 80GB HBM3", INT64_MAX},
		{"NVIDIA H100 80GB HBM3", 61439}, /* less than the smallest H100 has */
		{"GRID A100-10C", 10240},         /* a virtual GPU with the name of a real one */
		{"NVIDIA A30", 6144},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct mig_geometry g;
		struct err err = {0};

		if (mig_geometry_of(rows[i].model, rows[i].memory_mib, &g, &err))
			fail_msg("\"%s\" with %" PRId64 " MiB has a geometry", rows[i].model, rows[i].memory_mib);
		assert_int_equal(err.kind, ERR_MISSING);
		assert_non_null(strstr(err.text, rows[i].model));
	}
}

static void
profiles_that_do_not_exist_are_refused(void **state)
{
	static const char *const wrong[] = {
		"",           "1g",         "1g.",         "1g.10",          "g.10gb",
		"1g.gb",      "0g.10gb",    "1g.0gb",      "1g.80gb",        "1g.7gb",
		"1g.12gb",    "1g.5gb",     "5g.40gb",     "3g.20gb",        "8g.80gb",
		"7g.40gb",    "2g.10gb",    "1g.10GB",     "1G.10gb",        "1g.10gb ",
		" 1g.10gb",   "1g.10gb+",   "1g.10gb+ME",  "1g.10gb me",     "1g.10gb+me;x",
		"4c.3g.40gb", "0c.3g.40gb", "c.3g.40gb",   "1c.1c.3g.40gb",  "99999g.10gb",
		"1g.99999gb", "-1g.10gb",   "MIG 1g.10gb", "1g.10gb+me+gfx",
	};
	struct mig_geometry g;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA H100 80GB HBM3", 81559, &g, NULL));
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct mig_slices s = {.compute = 42};
		struct err err = {0};

		if (mig_profile_parse(&g, wrong[i], &s, &err))
			fail_msg("\"%s\" was taken for %d of %d compute and %d memory slices", wrong[i], s.compute,
			         s.gi_compute, s.memory);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_int_equal(s.compute, 42);
	}
}

/* Slices that a driver reports need not be sound: the result must be. */
static void
odd_slices_never_weigh_more_than_a_gpu_or_less_than_nothing(void **state)
{
	static const int odd[] = {INT32_MIN, -1, 0, 1, 5, 6, 7, 8, 9, 1000, INT32_MAX};
	struct mig_geometry g, empty = {0};

	(void)state;
	assert_true(mig_geometry_of("NVIDIA H100 80GB HBM3", 81559, &g, NULL));
	for (size_t i = 0; i < ARRAY_LEN(odd); i++)
		for (size_t j = 0; j < ARRAY_LEN(odd); j++)
			for (size_t k = 0; k < ARRAY_LEN(odd); k++) {
				struct mig_slices s = {.compute = odd[i], .memory = odd[j], .gi_compute = odd[k]};
				int64_t units = units_of_slices(&g, s);

				assert_true(units >= 0 && units <= UNITS_PER_GPU);
				assert_int_equal(units_of_slices(&empty, s), 0);
			}
}

static void
a_compute_instance_without_its_gpu_instance_counts_as_whole(void **state)
{
	struct mig_geometry g;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA H100 80GB HBM3", 81559, &g, NULL));
	assert_int_equal(units_of_slices(&g, (struct mig_slices){.compute = 3, .memory = 4}), 2340);
}

/* What is left of a GPU after some instances were made, and how much of it can still be used. */
static void
what_is_left_is_creatable_as_far_as_a_profile_fits(void **state)
{
	static const struct {
		const char *name;
		int compute, memory;
		int64_t creatable;
	} rows[] = {
		{"a free GPU is all creatable", 7, 8, 5040},
		{"nothing left", 0, 0, 0},
		{"3g + 3g leave one compute slice and no memory", 1, 0, 0},
		{"7 x 1g.10gb leave one memory slice and no compute", 0, 1, 0},
		{"4g.40gb leaves room for 3g.40gb", 3, 4, 2340},
		{"3g.40gb leaves room for 4g.40gb", 4, 4, 2700},
		{"2g.20gb leaves room for 3g.40gb and 2g.20gb", 5, 6, 2340 + 1350},
		{"1g.10gb leaves six compute and seven memory slices", 6, 7, 2340 + 1350 + 675},
		{"one compute slice prefers twice the memory", 1, 2, 990},
		{"two small ones beat one 2g with memory to spare", 2, 4, 990 + 990},
		{"two compute and three memory slices", 2, 3, 990 + 675},
		{"one and one", 1, 1, 675},
		{"compute without memory", 7, 0, 0},
		{"memory without compute", 0, 8, 0},
		{"less than nothing", -1, -3, 0},
	};
	struct mig_geometry g;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA H100 80GB HBM3", 81559, &g, NULL));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t units = units_creatable(&g, rows[i].compute, rows[i].memory);

		if (units != rows[i].creatable)
			fail_msg("%s: %" PRId64 " instead of %" PRId64, rows[i].name, units, rows[i].creatable);
	}
}

static void
stranded_units_are_those_of_billing(void **state)
{
	struct mig_geometry g;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA H100 80GB HBM3", 81559, &g, NULL));
	assert_int_equal(UNITS_PER_GPU - 2 * 2340 - units_creatable(&g, 1, 0), 360);
	assert_int_equal(UNITS_PER_GPU - 7 * 675 - units_creatable(&g, 0, 1), 315);
	assert_int_equal(UNITS_PER_GPU - (2 * 675 + 1350 + 2340) - units_creatable(&g, 0, 0), 0);
}

static void
an_a30_is_creatable_in_quarters(void **state)
{
	struct mig_geometry g;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA A30", 24576, &g, NULL));
	for (int i = 0; i <= 4; i++)
		assert_int_equal(units_creatable(&g, i, i), i * 1260);
	assert_int_equal(units_creatable(&g, 3, 2), 2520);
}

/* The memory slices of instances as a drawing: a letter each, a dot where a slice is free. */
static void
what_is_creatable_depends_on_where_the_instances_lie(void **state)
{
	static const struct {
		const char *name, *model;
		int64_t memory_mib;
		const char *slices;
		int64_t creatable;
	} rows[] = {
		{"a free GPU is all creatable", "NVIDIA H100 80GB HBM3", 81559, "........", 5040},
		{"nothing is left of a full one", "NVIDIA H100 80GB HBM3", 81559, "aaaaaaaa", 0},
		{"3g at 0 leaves a place for 3g", "NVIDIA H100 80GB HBM3", 81559, "aaaa....", 2340},
		{"3g at 4 leaves the only place of 4g", "NVIDIA H100 80GB HBM3", 81559, "....aaaa", 2700},
		{"1g at 0 bars 4g, and 3g from the front", "NVIDIA H100 80GB HBM3", 81559, "a.......",
	         675 + 1350 + 2340},
		{"1g at 5 bars 3g from the back", "NVIDIA H100 80GB HBM3", 81559, ".....a..", 2700 + 675 + 990},
		{"the last memory slice is of use with the one before only", "NVIDIA H100 80GB HBM3", 81559, "aabbccd.",
	         0},
		{"the last two are 1g with twice the memory", "NVIDIA H100 80GB HBM3", 81559, "aabbcc..", 990},
		{"two free slices that do not begin at an even one are two of 1g", "NVIDIA H100 80GB HBM3", 81559,
	         "a..bccdd", 1350},
		{"two that do are the same as 2g", "NVIDIA H100 80GB HBM3", 81559, "aa..ccdd", 1350},
		{"1g on every second slice strands what lies between", "NVIDIA H100 80GB HBM3", 81559, "a.b.c.d.",
	         3 * 675},
		{"an A100 of 40 GB has the same places", "NVIDIA A100-SXM4-40GB", 40960, "....aaaa", 2700},
		{"half an A30", "NVIDIA A30", 24576, "aa..", 2520},
		{"an A30 without a place for 2g", "NVIDIA A30", 24576, "a..b", 2520},
		{"a free A30", "NVIDIA A30", 24576, "....", 5040},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct mig_geometry g;
		uint32_t taken = 0;
		int64_t units;

		assert_true(mig_geometry_of(rows[i].model, rows[i].memory_mib, &g, NULL));
		for (size_t k = 0; rows[i].slices[k]; k++)
			taken |= (uint32_t)(rows[i].slices[k] != '.') << k;
		units = units_creatable_at(&g, taken);
		if (units != rows[i].creatable)
			fail_msg("%s: %" PRId64 " instead of %" PRId64, rows[i].name, units, rows[i].creatable);
	}
}

static void
places_of_unknown_geometries_are_not_guessed(void **state)
{
	const struct mig_geometry g = {.compute_slices = 12, .memory_slices = 12, .memory_slice_mib = 8192};

	(void)state;
	assert_false(mig_may_begin_at(&g, 1, 1, 0));
	assert_int_equal(units_creatable_at(&g, 0), UNITS_PER_GPU);
	assert_int_equal(units_creatable_at(&g, 1), 0);
}

static void
profiles_begin_where_nvidia_lets_them(void **state)
{
	static const struct {
		int compute, memory;
		const char *begins;
	} rows[] = {
		{1, 1, "xxxxxxx."}, {1, 2, "x.x.x.x."}, {2, 2, "x.x.x..."}, {3, 4, "x...x..."},
		{4, 4, "x......."}, {7, 8, "x......."}, {5, 4, "........"}, {2, 1, "........"},
	};
	struct mig_geometry g;

	(void)state;
	assert_true(mig_geometry_of("NVIDIA H100 80GB HBM3", 81559, &g, NULL));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		for (int at = 0; at < 8; at++)
			assert_int_equal(mig_may_begin_at(&g, rows[i].compute, rows[i].memory, at),
			                 rows[i].begins[at] == 'x');
		assert_false(mig_may_begin_at(&g, rows[i].compute, rows[i].memory, -1));
		assert_false(mig_may_begin_at(&g, rows[i].compute, rows[i].memory, 40));
	}
}

static void
short_names_are_those_of_policies(void **state)
{
	static const struct {
		const char *nvml, *brief;
	} rows[] = {
		{"NVIDIA H100 80GB HBM3", "H100-80GB"},
		{"NVIDIA H100 PCIe", "H100-80GB"},
		{"NVIDIA H100 NVL", "H100-94GB"},
		{"NVIDIA A100-SXM4-40GB", "A100-40GB"},
		{"A100-SXM4-40GB", "A100-40GB"},
		{"NVIDIA A100-PCIE-40GB", "A100-40GB"},
		{"NVIDIA A100 80GB PCIe", "A100-80GB"},
		{"NVIDIA A100-SXM4-80GB", "A100-80GB"},
		{"NVIDIA A800-SXM4-80GB", "A800-80GB"},
		{"NVIDIA A30", "A30-24GB"},
		{"NVIDIA H200", "H200-141GB"},
		{"NVIDIA H200 NVL", "H200-141GB"},
		{"NVIDIA GH200 480GB", "GH200-96GB"},
		{"NVIDIA GH200 144G HBM3e", "GH200-144GB"},
		{"NVIDIA H20", "H20-96GB"},
		{"NVIDIA B200", "B200-180GB"},
		{"NVIDIA GB200", "GB200-186GB"},
		{"NVIDIA B300 SXM6 AC", "B300-269GB"},
		{"NVIDIA GB300", "GB300-278GB"},
		{"NVIDIA B300-288GB", "B300-288GB"},
		{"NVIDIA L40S", "L40S"},
		{"NVIDIA RTX A6000", "RTX A6000"},
		{"NVIDIA GeForce RTX 4090", "GeForce RTX 4090"},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"},
		{"Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"},
		{"NVIDIA", "NVIDIA"},
		{"", ""},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char brief[64];

		gpu_model_short(rows[i].nvml, brief, sizeof(brief));
		if (strcmp(brief, rows[i].brief) != 0)
			fail_msg("%s: %s instead of %s", rows[i].nvml, brief, rows[i].brief);
	}
}

static void
a_short_name_keeps_to_its_size(void **state)
{
	char brief[5], long_name[300];

	(void)state;
	gpu_model_short("NVIDIA H100 80GB HBM3", brief, sizeof(brief));
	assert_string_equal(brief, "H100");
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	gpu_model_short(long_name, brief, sizeof(brief));
	assert_string_equal(brief, "xxxx");
}

static void
a_board_draws_no_more_than_its_model_can(void **state)
{
	static const struct {
		const char *model;
		int64_t watts, gib;
	} rows[] = {
		{"NVIDIA H100 80GB HBM3", 1050, 80},
		{"H100-80GB", 1050, 80},
		{"NVIDIA A100-SXM4-40GB", 750, 40},
		{"A30-24GB", 247, 24},
		{"B300-288GB", 2100, 288},
		{"NVIDIA GB300", 2100, 278},
		{"NVIDIA B300 SXM6 AC", 2100, 269},
		{"B300-269GB", 2100, 269},
		{"GB300-278GB", 2100, 278},
		{"GH200-96GB", 1500, 96},
		{"NVIDIA GH200 480GB", 1500, 96},
		{"L40S", 525, 0},
		{"NVIDIA L4", 108, 0},
		{"Something New", GPU_POWER_UNKNOWN_W * 3 / 2, 0},
		{"", GPU_POWER_UNKNOWN_W * 3 / 2, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (gpu_power_most_w(rows[i].model) != rows[i].watts ||
		    gpu_memory_most_bytes(rows[i].model) != rows[i].gib << 30)
			fail_msg("%s: %" PRId64 " W, %" PRId64 " bytes", rows[i].model, gpu_power_most_w(rows[i].model),
			         gpu_memory_most_bytes(rows[i].model));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_profile_of_every_model_has_its_weight),
		cmocka_unit_test(the_same_name_has_other_slices_on_a_smaller_gpu),
		cmocka_unit_test(models_that_cannot_be_cut_are_missing),
		cmocka_unit_test(profiles_that_do_not_exist_are_refused),
		cmocka_unit_test(odd_slices_never_weigh_more_than_a_gpu_or_less_than_nothing),
		cmocka_unit_test(a_compute_instance_without_its_gpu_instance_counts_as_whole),
		cmocka_unit_test(what_is_left_is_creatable_as_far_as_a_profile_fits),
		cmocka_unit_test(stranded_units_are_those_of_billing),
		cmocka_unit_test(an_a30_is_creatable_in_quarters),
		cmocka_unit_test(what_is_creatable_depends_on_where_the_instances_lie),
		cmocka_unit_test(places_of_unknown_geometries_are_not_guessed),
		cmocka_unit_test(profiles_begin_where_nvidia_lets_them),
		cmocka_unit_test(short_names_are_those_of_policies),
		cmocka_unit_test(a_short_name_keeps_to_its_size),
		cmocka_unit_test(a_board_draws_no_more_than_its_model_can),
	};

	return cmocka_run_group_tests_name("units", tests, NULL, NULL);
}

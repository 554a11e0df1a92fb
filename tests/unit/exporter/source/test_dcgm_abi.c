/* tests/unit/exporter/source/test_dcgm_abi.c - DCGM's structs as a table: versions, sizes and offsets as NVIDIA's headers from 3.3 to 4.6 have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/base/base.h"
#include "exporter/source/dcgm/dcgm_engine.h"

static void
every_versioned_struct_has_the_version_that_engines_expect(void **state)
{
	static const struct {
		const char *name;
		uint32_t ours, theirs;
	} rows[] = {
		{"the parameters of an embedded engine", DCGM_EMBEDDED_V2, 0x02000050},
		{"the parameters of a connection", DCGM_CONNECT_V2, 0x02000010},
		{"the hierarchy of MIG instances", DCGM_HIERARCHY_V2, 0x02011f08},
		{"the value of a field", DCGM_FIELD_VALUE_V2, 0x02001020},
		{"the groups of metrics of a GPU", DCGM_METRIC_GROUPS_V3, 0x03000560},
		{"the version of an engine", DCGM_VERSION_INFO_V2, 0x02000204},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].ours != rows[i].theirs)
			fail_msg("%s: %#x, and engines expect %#x", rows[i].name, rows[i].ours, rows[i].theirs);
}

static void
every_member_is_where_engines_look_for_it(void **state)
{
#define ROW(type, member, offset)                                        \
	{                                                                \
#type "." #member, offsetof(struct type, member), offset \
	}
	static const struct {
		const char *name;
		size_t ours, theirs;
	} rows[] = {
		ROW(dcgm_embedded, handle, 8),
		ROW(dcgm_embedded, log_file, 16),
		ROW(dcgm_embedded, service_account, 32),
		ROW(dcgm_embedded, deny, 40),
		ROW(dcgm_connect, timeout_ms, 8),
		ROW(dcgm_connect, is_unix, 12),
		ROW(dcgm_hierarchy, entities, 8),
		ROW(dcgm_hierarchy, entities[1], 172),
		ROW(dcgm_mig_entity, gpu_uuid, 16),
		ROW(dcgm_mig_entity, gi, 148),
		ROW(dcgm_mig_entity, ci, 152),
		ROW(dcgm_field_value, group, 4),
		ROW(dcgm_field_value, id, 8),
		ROW(dcgm_field_value, field, 12),
		ROW(dcgm_field_value, type, 14),
		ROW(dcgm_field_value, status, 16),
		ROW(dcgm_field_value, stamp_us, 24),
		ROW(dcgm_field_value, value, 32),
		ROW(dcgm_metric_groups, gpu, 8),
		ROW(dcgm_metric_groups, groups, 16),
		ROW(dcgm_metric_groups, groups[1], 152),
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].ours != rows[i].theirs)
			fail_msg("%s: at %zu, and engines have it at %zu", rows[i].name, rows[i].ours, rows[i].theirs);
}

static void
values_are_in_the_order_of_their_fields(void **state)
{
	static const struct {
		enum dcgm_value value;
		int field;
	} rows[] = {
		{DCGM_ENGINE, 1001},  {DCGM_SM, 1002},      {DCGM_OCCUPANCY, 1003}, {DCGM_TENSOR, 1004},
		{DCGM_DRAM, 1005},    {DCGM_FP64, 1006},    {DCGM_FP32, 1007},      {DCGM_FP16, 1008},
		{DCGM_PCIE_TX, 1009}, {DCGM_PCIE_RX, 1010}, {DCGM_NVLINK_TX, 1011}, {DCGM_NVLINK_RX, 1012},
	};

	(void)state;
	assert_int_equal(ARRAY_LEN(rows), DCGM_VALUES);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_int_equal(DCGM_FIELD_ENGINE + rows[i].value, rows[i].field);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_versioned_struct_has_the_version_that_engines_expect),
		cmocka_unit_test(every_member_is_where_engines_look_for_it),
		cmocka_unit_test(values_are_in_the_order_of_their_fields),
	};

	return cmocka_run_group_tests_name("dcgm_abi", tests, NULL, NULL);
}

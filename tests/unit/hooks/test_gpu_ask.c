/* tests/unit/hooks/test_gpu_ask.c - the GPUs that a job of Slurm asks for, in every way that there is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "hooks/agent/gpu_ask.h"

static const struct node_gpus a100 = {.count = 8, .type = "a100"}, none = {0}, mixed = {.count = 8, .mixed = true};

static void
every_way_to_ask_gives_a_number_a_type_and_a_share_of_each_node(void **state)
{
	static const struct {
		const char *name;
		struct gpu_ask_text t;
		const struct node_gpus *nodes;
		struct gpu_ask expected;
	} rows[] = {
		{"--gpus", {.per_job = "gres:gpu:2"}, NULL, {2, 0, ""}},
		{"--gpus with a type", {.per_job = "gres:gpu:a100:2"}, NULL, {2, 0, "a100"}},
		{"--gpus on one node is still any distribution",
	         {.per_job = "gres:gpu:6", .min_nodes = 1, .max_nodes = 1},
	         NULL,
	         {6, 0, ""}},
		{"--gres on one node", {.per_node = "gres:gpu:a100:2"}, NULL, {2, 2, "a100"}},
		{"--gres on two nodes", {.per_node = "gres:gpu:4", .min_nodes = 2, .max_nodes = 2}, NULL, {8, 4, ""}},
		{"--gres on one to four nodes counts four",
	         {.per_node = "gres:gpu:1", .min_nodes = 1, .max_nodes = 4},
	         NULL,
	         {4, 1, ""}},
		{"as newer versions write it", {.per_node = "gres/gpu:2"}, NULL, {2, 2, ""}},
		{"with an equals sign", {.per_task = "cpu=4,gres/gpu=1", .tasks = 3}, NULL, {3, 0, ""}},
		{"a type and an equals sign", {.per_node = "gres/gpu:h100=4"}, NULL, {4, 4, "h100"}},
		{"without a count", {.per_node = "gpu"}, NULL, {1, 1, ""}},
		{"a type without a count", {.per_node = "gpu:a100"}, NULL, {1, 1, "a100"}},
		{"--gpus-per-task", {.per_task = "gres:gpu:2", .tasks = 4}, NULL, {8, 0, ""}},
		{"--gpus-per-task without tasks", {.per_task = "gres:gpu:2", .min_nodes = 3}, NULL, {6, 0, ""}},
		{"--gpus and --gpus-per-node", {.per_job = "gres:gpu:8", .per_node = "gres:gpu:4"}, NULL, {8, 4, ""}},
		{"--gpus and --gpus-per-task",
	         {.per_job = "gres:gpu:8", .per_task = "gres:gpu:1", .tasks = 8},
	         NULL,
	         {8, 0, ""}},
		{"a MIG profile", {.per_node = "gres:gpu:1g.10gb:2"}, NULL, {2, 2, "1g.10gb"}},
		{"two entries of one type", {.per_node = "gpu:a100:1,gpu:a100:2"}, NULL, {3, 3, "a100"}},
		{"beside another resource", {.per_node = "gres:nvme:1,gres:gpu:1,license:x"}, NULL, {1, 1, ""}},
		{"an untyped one has its partition's type", {.per_job = "gres:gpu:2"}, &a100, {2, 0, "a100"}},
		{"an untyped one in a mixed partition has none", {.per_job = "gres:gpu:2"}, &mixed, {2, 0, ""}},
		{"--exclusive has all GPUs of its nodes", {.exclusive = true, .min_nodes = 2}, &a100, {16, 8, "a100"}},
		{"--exclusive with fewer GPUs too", {.exclusive = true, .per_node = "gpu:1"}, &a100, {8, 8, "a100"}},
		{"--exclusive on nodes without GPUs", {.exclusive = true, .min_nodes = 2}, &none, {0, 0, ""}},
		{"none at all", {.per_node = "gres:nvme:1", .min_nodes = 2}, &a100, {0, 0, ""}},
		{"nothing", {0}, NULL, {0, 0, ""}},
		{"a number of zero", {.per_node = "gpu:0"}, NULL, {0, 0, ""}},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct gpu_ask got = {0};
		struct err err = {0};

		if (!gpu_ask_parse(&rows[i].t, rows[i].nodes, &got, &err))
			fail_msg("%s: %s", rows[i].name, err.text);
		if (got.gpus != rows[i].expected.gpus || got.per_node != rows[i].expected.per_node ||
		    strcmp(got.type, rows[i].expected.type) != 0)
			fail_msg("%s: %" PRId64 " GPUs, %" PRId64 " of a node, type \"%s\"", rows[i].name, got.gpus,
			         got.per_node, got.type);
	}
}

static void
requests_that_cannot_be_leased_are_refused_with_a_reason(void **state)
{
	static const struct {
		const char *name;
		struct gpu_ask_text t;
		const struct node_gpus *nodes;
		const char *begins;
	} rows[] = {
		{"a GPU to Slurm's parser alone", {.per_job = "xgresgpu:8"}, NULL, "gres: \"xgresgpu:8\": write"},
		{"two types",
	         {.per_node = "gpu:a100:1,gpu:1g.10gb:2"},
	         NULL,
	         "GPUs of two types, a100 and 1g.10gb, in one job"},
		{"two types in two options",
	         {.per_job = "gpu:a100:1", .per_node = "gpu:h100:1"},
	         NULL,
	         "GPUs of two types, a100 and h100"},
		{"mps", {.per_node = "gres:mps:50"}, NULL, "mps: parts of a GPU"},
		{"shard", {.per_node = "shard:2"}, NULL, "shard: parts of a GPU"},
		{"per socket", {.per_socket = "gres:gpu:1"}, NULL, "gpus-per-socket: say"},
		{"no number", {.per_node = "gpu=x"}, NULL, "gpu: \"x\" is no number of GPUs"},
		{"an empty number", {.per_node = "gpu:a100="}, NULL, "gpu: \"\" is no number of GPUs"},
		{"a negative number", {.per_node = "gpu=-1"}, NULL, "gpu: \"-1\" is no number of GPUs"},
		{"too many",
	         {.per_node = "gpu:1000001"},
	         NULL,
	         "gpu: \"1000001\" is no number of GPUs from 0 to 1000000"},
		{"too many together", {.per_node = "gpu:1000", .min_nodes = 100000}, NULL, "gpu: more than 1000000"},
		{"a type with a quote", {.per_node = "gpu:a\"b:1"}, NULL, "gpu: \"a\"b\" is no type of GPU"},
		{"exclusive on unknown nodes", {.exclusive = true}, NULL, "exclusive: how many GPUs"},
		{"exclusive on different nodes",
	         {.exclusive = true},
	         &mixed,
	         "exclusive: the nodes of this partition have different GPUs"},
		{"exclusive with another type",
	         {.exclusive = true, .per_node = "gpu:h100:1"},
	         &a100,
	         "GPUs of two types, h100 and a100"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct gpu_ask got = {.gpus = 77};
		struct err err = {0};

		if (gpu_ask_parse(&rows[i].t, rows[i].nodes, &got, &err))
			fail_msg("%s: was taken", rows[i].name);
		if (err.kind != ERR_INVALID || strncmp(err.text, rows[i].begins, strlen(rows[i].begins)) != 0 ||
		    got.gpus != 77)
			fail_msg("%s: %s", rows[i].name, err.text);
	}
}

static void
the_gpus_of_a_partition_are_those_of_its_nodes_where_all_are_alike(void **state)
{
	static const struct {
		const char *name, *first, *second;
		int64_t count;
		const char *type;
		bool is_mixed;
	} rows[] = {
		{"equal nodes", "gpu:a100:8(S:0-1)", "gpu:a100:8(S:0,1)", 8, "a100", false},
		{"untyped", "gpu:4", "gpu:4", 4, "", false},
		{"none", "(null)", "(null)", 0, "", false},
		{"beside others", "nvme:1,gpu:h100:4(IDX:0,2),mps:100", "gpu:h100:4,shard:8", 4, "h100", false},
		{"another number", "gpu:a100:8", "gpu:a100:4", 8, "", true},
		{"another type", "gpu:a100:8", "gpu:h100:8", 8, "", true},
		{"two types on one node", "gpu:a100:4,gpu:1g.10gb:7", "gpu:a100:4,gpu:1g.10gb:7", 11, "", true},
		{"some without", "gpu:a100:8", "(null)", 8, "", true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct node_gpus n = {0};

		assert_true(node_gpus_add(rows[i].first, true, &n, NULL));
		assert_true(node_gpus_add(rows[i].second, false, &n, NULL));
		if (n.count != rows[i].count || n.mixed != rows[i].is_mixed || strcmp(n.type, rows[i].type) != 0)
			fail_msg("%s: %" PRId64 " of \"%s\", mixed %d", rows[i].name, n.count, n.type, n.mixed);
	}
}

static void
mig_profiles_are_known_by_their_names(void **state)
{
	static const char *const yes[] = {"1g.10gb", "3g.40gb", "1g.5gb+me", "7g.80gb", "1g.24gb.gfx"};
	static const char *const no[] = {"a100", "g.10gb", "1g.gb", "1g.10", "1g", "", "10gb", "h100-3g.40gb"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(yes); i++)
		assert_true(gpu_type_is_mig(yes[i]));
	for (size_t i = 0; i < ARRAY_LEN(no); i++)
		assert_false(gpu_type_is_mig(no[i]));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_way_to_ask_gives_a_number_a_type_and_a_share_of_each_node),
		cmocka_unit_test(requests_that_cannot_be_leased_are_refused_with_a_reason),
		cmocka_unit_test(the_gpus_of_a_partition_are_those_of_its_nodes_where_all_are_alike),
		cmocka_unit_test(mig_profiles_are_known_by_their_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

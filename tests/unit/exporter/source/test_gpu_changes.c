/* tests/unit/exporter/source/test_gpu_changes.c - what is told of GPUs from tick to tick. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/source/gpu_changes.h"

#define S NS_PER_S

/* One GPU at one tick, and what is told of it: "down REASON", "back REASON", "xid CODE xCOUNT", or nothing. */
struct row {
	const char *name;
	int64_t at_s;
	bool down, silent;
	const char *reason;
	struct gpu_xid xids[2];
	const char *told;
};

static void
write_changes(const struct gpu_change *list, size_t count, char *out, size_t size)
{
	size_t len = 0;

	out[0] = '\0';
	for (size_t i = 0; i < count; i++) {
		const char *sep = i ? ", " : "";

		if (list[i].kind == GPU_CHANGE_XID)
			len += (size_t)snprintf(out + len, size - len, "%sxid %" PRIu32 " x%" PRId64, sep, list[i].xid,
			                        list[i].count);
		else
			len += (size_t)snprintf(out + len, size - len, "%s%s %s", sep,
			                        list[i].kind == GPU_CHANGE_DOWN ? "down" : "back", list[i].reason);
	}
}

static void
each_change_is_told_once(void **state)
{
	static const struct row rows[] = {
		{.name = "a GPU that is well at first is nothing new", .at_s = 0, .told = ""},
		{.name = "it goes down, with its error",
	         .at_s = 1,
	         .down = true,
	         .reason = "lost",
	         .xids = {{79, 1, 0}},
	         .told = "xid 79 x1, down lost"},
		{.name = "it stays down", .at_s = 2, .down = true, .reason = "lost", .xids = {{79, 1, 0}}, .told = ""},
		{.name = "the reason is another",
	         .at_s = 3,
	         .down = true,
	         .reason = "gone",
	         .xids = {{79, 1, 0}},
	         .told = "down gone"},
		{.name = "it does not answer", .at_s = 4, .silent = true, .xids = {{79, 1, 0}}, .told = ""},
		{.name = "it is as it was before that",
	         .at_s = 5,
	         .down = true,
	         .reason = "gone",
	         .xids = {{79, 1, 0}},
	         .told = ""},
		{.name = "it comes back", .at_s = 6, .xids = {{79, 1, 0}}, .told = "back gone"},
		{.name = "the same error within the minute waits", .at_s = 7, .xids = {{79, 3, 0}}, .told = ""},
		{.name = "an error of another kind does not",
	         .at_s = 8,
	         .xids = {{79, 4, 0}, {31, 2, 0}},
	         .told = "xid 31 x2"},
		{.name = "those that waited are told together",
	         .at_s = 61,
	         .xids = {{79, 4, 0}, {31, 2, 0}},
	         .told = "xid 79 x3"},
		{.name = "and then there are none", .at_s = 200, .xids = {{79, 4, 0}, {31, 2, 0}}, .told = ""},
		{.name = "a GPU that is down for no reason has one nevertheless",
	         .at_s = 201,
	         .down = true,
	         .reason = "",
	         .told = "down no reason given"},
	};
	owned(gpu_changes) struct gpu_changes *c = gpu_changes_new();
	owned(gpu_snapshot) struct gpu_snapshot *s = gpu_snapshot_new();
	const struct gpu_change *list;

	(void)state;
	gpu_snapshot_resize(s, 1);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct gpu_reading *r = &s->gpus[0];
		char told[256];
		size_t count;

		gpu_reading_clear(r);
		snprintf(r->uuid, sizeof(r->uuid), "GPU-1");
		if (rows[i].down)
			gpu_reading_down(r, GPU_FAULT_OTHER, "%s", rows[i].reason);
		r->silent = rows[i].silent;
		for (size_t k = 0; k < 2 && rows[i].xids[k].code; k++)
			r->xids[r->xid_count++] = rows[i].xids[k];
		count = gpu_changes_take(c, s, rows[i].at_s * S, &list);
		write_changes(list, count, told, sizeof(told));
		if (strcmp(told, rows[i].told) != 0)
			fail_msg("%s: \"%s\" instead of \"%s\"", rows[i].name, told, rows[i].told);
	}
}

static void
gpus_are_told_apart_by_their_uuid(void **state)
{
	owned(gpu_changes) struct gpu_changes *c = gpu_changes_new();
	owned(gpu_snapshot) struct gpu_snapshot *s = gpu_snapshot_new();
	const struct gpu_change *list;

	(void)state;
	gpu_snapshot_resize(s, GPU_MAX);
	for (size_t i = 0; i < GPU_MAX; i++) {
		gpu_reading_clear(&s->gpus[i]);
		snprintf(s->gpus[i].uuid, sizeof(s->gpus[i].uuid), "GPU-%zu", i);
		s->gpus[i].index = (int32_t)i;
		gpu_reading_down(&s->gpus[i], GPU_FAULT_LOST, "lost");
	}
	assert_int_equal(gpu_changes_take(c, s, 0, &list), GPU_MAX);
	assert_string_equal(list[63].uuid, "GPU-63");
	assert_int_equal(list[63].index, 63);
	assert_int_equal(gpu_changes_take(c, s, S, &list), 0);
	snprintf(s->gpus[5].uuid, sizeof(s->gpus[5].uuid), "GPU-of-another-node");
	assert_int_equal(gpu_changes_take(c, s, 2 * S, &list), 0); /* more than a node may have: not told */
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_change_is_told_once),
		cmocka_unit_test(gpus_are_told_apart_by_their_uuid),
	};

	return cmocka_run_group_tests_name("gpu_changes", tests, NULL, NULL);
}

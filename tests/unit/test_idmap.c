/* tests/unit/test_idmap.c - the hash table of ids keeps what was put, however many and however close together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/idmap.h"

#define MANY 5000u

static void
an_empty_map_has_nothing(void **state)
{
	in_place(idmap) struct idmap m = {0};
	size_t at = 7;

	(void)state;
	assert_true(idmap_get(&m, 1) == IDMAP_NONE);
	assert_false(idmap_find(&m, 1, &at));
	assert_int_equal(at, 7);
}

static void
every_key_keeps_its_position_while_the_map_grows(void **state)
{
	in_place(idmap) struct idmap m = {0};

	(void)state;
	/* neighbours, and numbers that differ only in their upper half */
	for (uint64_t i = 0; i < MANY; i++) {
		idmap_put(&m, i, (size_t)i);
		idmap_put(&m, (i + 1) << 32, (size_t)(MANY + i));
	}
	for (uint64_t i = 0; i < MANY; i++) {
		assert_int_equal(idmap_get(&m, i), i);
		assert_int_equal(idmap_get(&m, (i + 1) << 32), MANY + i);
	}
	assert_true(idmap_get(&m, MANY) == IDMAP_NONE);
	assert_true(idmap_get(&m, UINT64_MAX) == IDMAP_NONE);
}

static void
putting_again_replaces_and_clearing_forgets(void **state)
{
	in_place(idmap) struct idmap m = {0};
	size_t at = 0;

	(void)state;
	idmap_put(&m, 42, 1);
	idmap_put(&m, 42, 2);
	assert_true(idmap_find(&m, 42, &at));
	assert_int_equal(at, 2);
	idmap_clear(&m);
	assert_false(idmap_find(&m, 42, &at));
	idmap_put(&m, 42, 3);
	assert_int_equal(idmap_get(&m, 42), 3);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_map_has_nothing),
		cmocka_unit_test(every_key_keeps_its_position_while_the_map_grows),
		cmocka_unit_test(putting_again_replaces_and_clearing_forgets),
	};

	return cmocka_run_group_tests_name("idmap", tests, NULL, NULL);
}

/* tests/unit/base/test_hash.c - the hash table keeps what was put, however many and however close together, and hashes tell contents apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/hash.h"

#define MANY 5000u

static void
an_empty_map_has_nothing(void **state)
{
	in_place(hash) struct hash m = {0};
	size_t at = 7;

	(void)state;
	assert_true(hash_get(&m, 1) == HASH_NONE);
	assert_false(hash_find(&m, 1, &at));
	assert_int_equal(at, 7);
}

static void
every_key_keeps_its_position_while_the_map_grows(void **state)
{
	in_place(hash) struct hash m = {0};

	(void)state;
	/* neighbours, and numbers that differ only in their upper half */
	for (uint64_t i = 0; i < MANY; i++) {
		hash_put(&m, i, (size_t)i);
		hash_put(&m, (i + 1) << 32, (size_t)(MANY + i));
	}
	for (uint64_t i = 0; i < MANY; i++) {
		assert_int_equal(hash_get(&m, i), i);
		assert_int_equal(hash_get(&m, (i + 1) << 32), MANY + i);
	}
	assert_true(hash_get(&m, MANY) == HASH_NONE);
	assert_true(hash_get(&m, UINT64_MAX) == HASH_NONE);
}

static void
putting_again_replaces_and_clearing_forgets(void **state)
{
	in_place(hash) struct hash m = {0};
	size_t at = 0;

	(void)state;
	hash_put(&m, 42, 1);
	hash_put(&m, 42, 2);
	assert_true(hash_find(&m, 42, &at));
	assert_int_equal(at, 2);
	hash_clear(&m);
	assert_false(hash_find(&m, 42, &at));
	hash_put(&m, 42, 3);
	assert_int_equal(hash_get(&m, 42), 3);
}

static void
contents_with_one_key_are_all_kept(void **state)
{
	in_place(hash) struct hash h = {0};
	size_t slot = 0, seen = 0;

	(void)state;
	for (size_t i = 0; i < 3; i++)
		hash_add(&h, 42, i);
	hash_add(&h, 43, 9);
	for (size_t at = hash_first(&h, 42, &slot); at != HASH_NONE; at = hash_next(&h, 42, &slot))
		seen |= (size_t)1 << at;
	assert_int_equal(seen, 7);
	hash_move(&h, 42, 1, 5);
	hash_remove(&h, 42, 0);
	hash_remove(&h, 42, 2);
	assert_int_equal(hash_first(&h, 42, &slot), 5);
	assert_true(hash_next(&h, 42, &slot) == HASH_NONE);
	assert_int_equal(h.count, 2);
}

static void
a_copy_lives_on_its_own(void **state)
{
	in_place(hash) struct hash h = {0}, copy = {0}, empty = {0};

	(void)state;
	hash_copy(&copy, &empty);
	assert_true(hash_get(&copy, 1) == HASH_NONE);
	hash_put(&h, 1, 10);
	hash_copy(&copy, &h);
	hash_put(&h, 1, 11);
	hash_put(&copy, 2, 20);
	assert_int_equal(hash_get(&copy, 1), 10);
	assert_true(hash_get(&h, 2) == HASH_NONE);
	assert_int_equal(hash_memory(&copy), hash_memory(&h));
}

static void
texts_are_found_in_an_array_of_structs(void **state)
{
	const struct {
		char name[24];
		int other;
	} rows[] = {{"", 0}, {"a", 1}, {"b", 2}, {"a longer name", 3}, {"a longer name than", 4}};
	in_place(hash) struct hash h = {0};

	(void)state;
	assert_true(hash_find_text(&h, rows, sizeof(rows[0]), "a") == HASH_NONE);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		hash_add(&h, hash_text(HASH_START, rows[i].name), i);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_int_equal(hash_find_text(&h, rows, sizeof(rows[0]), rows[i].name), i);
	assert_true(hash_find_text(&h, rows, sizeof(rows[0]), "c") == HASH_NONE);
}

/* Every split of a text, every prefix and zeros of any number are contents of their own. */
static void
contents_that_are_close_have_different_hashes(void **state)
{
	static const char text[] = "abcdefghijklmnopqrstuvwxyz", zeros[32] = {0};
	uint64_t seen[256];
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i <= strlen(text); i++) {
		seen[n++] = hash_bytes(HASH_START, text, i);
		seen[n++] = hash_bytes(hash_bytes(HASH_START, text, i), text + i, strlen(text) - i);
		seen[n++] = hash_bytes(hash_bytes(HASH_START, "", 0), text, i);
	}
	for (size_t i = 1; i <= sizeof(zeros); i++)
		seen[n++] = hash_bytes(HASH_START, zeros, i);
	seen[n++] = hash_number(HASH_START, 0);
	seen[n++] = hash_number(HASH_START, 1);
	seen[n++] = hash_number(HASH_START, UINT64_C(1) << 32);
	seen[n++] = hash_number(HASH_START, UINT64_MAX);
	/* "" before all of the text is the same as the split at 0 */
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if (seen[i] == seen[k])
				assert_true(k == 1 && i == 3 * strlen(text) + 2);
	assert_true(hash_text(HASH_START, text) == hash_bytes(HASH_START, text, strlen(text)));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_map_has_nothing),
		cmocka_unit_test(every_key_keeps_its_position_while_the_map_grows),
		cmocka_unit_test(putting_again_replaces_and_clearing_forgets),
		cmocka_unit_test(contents_with_one_key_are_all_kept),
		cmocka_unit_test(a_copy_lives_on_its_own),
		cmocka_unit_test(texts_are_found_in_an_array_of_structs),
		cmocka_unit_test(contents_that_are_close_have_different_hashes),
	};

	return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}

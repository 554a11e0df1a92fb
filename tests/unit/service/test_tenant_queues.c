/* tests/unit/service/test_tenant_queues.c - tenants take turns in the queues of the deciding thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "aggregator/service/tenant_queues.h"

#define ITEMS 100

static struct capacity_request items[ITEMS];

/* "a" is an item of tenant a, numbered as they come. */
static void
add(struct tenant_queues *l, const char *tenants)
{
	static size_t n;

	for (n = l->count == 0 ? 0 : n; *tenants != '\0'; tenants++, n++) {
		items[n] = (struct capacity_request){.began_ns = (int64_t)n};
		items[n].of_tenant[0] = *tenants;
		tenant_queues_add(l, &items[n]);
	}
}

/* Whose items these are, in their order. */
static const char *
names(const struct capacity_request *i)
{
	static char out[ITEMS + 1];
	size_t n = 0;

	for (; i; i = i->next)
		out[n++] = i->of_tenant[0] != '\0' ? i->of_tenant[0] : '-';
	out[n] = '\0';
	return out;
}

static void
tenants_take_turns(void **state)
{
	struct tenant_queues l = {0};

	(void)state;
	add(&l, "aaaaaaab");
	assert_string_equal(names(tenant_queues_take(&l, 5, 5, 2)), "aab");
	add(&l, "bc");
	assert_string_equal(names(tenant_queues_take(&l, 4, 5, 2)), "aabc");
	assert_string_equal(names(tenant_queues_take(&l, 9, 5, 2)), "aa"); /* others came a moment ago */
	assert_string_equal(names(tenant_queues_take(&l, 9, 5, 2)), "a");
	assert_int_equal(l.count, 0);
	assert_null(tenant_queues_take(&l, 9, 5, 2));
}

static void
who_was_not_reached_is_the_first_of_the_next(void **state)
{
	struct tenant_queues l = {0};

	(void)state;
	add(&l, "abcabc");
	assert_string_equal(names(tenant_queues_take(&l, 2, 1, 1)), "ab");
	assert_string_equal(names(tenant_queues_take(&l, 2, 1, 1)), "ca");
	assert_string_equal(names(tenant_queues_take(&l, 2, 1, 1)), "bc");
	assert_int_equal(l.count, 0);
}

static void
a_tenant_alone_has_more_and_its_order(void **state)
{
	struct tenant_queues l = {0};
	const struct capacity_request *i;
	int64_t n = 0;

	(void)state;
	add(&l, "aaaaaaaa");
	for (i = tenant_queues_take(&l, 9, 6, 1); i; i = i->next)
		assert_int_equal(i->began_ns, n++);
	for (i = tenant_queues_take(&l, 9, 6, 1); i; i = i->next)
		assert_int_equal(i->began_ns, n++);
	assert_int_equal(n, 8);
}

static void
who_was_not_served_is_told_apart(void **state)
{
	struct tenant_queues l = {0};

	(void)state;
	add(&l, "aaab");
	assert_string_equal(names(tenant_queues_take(&l, 9, 2, 2)), "aab");
	assert_false(tenant_queues_has_other(&l)); /* a again */
	add(&l, "b");
	assert_false(tenant_queues_has_other(&l));
	add(&l, "c");
	assert_true(tenant_queues_has_other(&l));
	while (l.count > 0)
		(void)tenant_queues_take(&l, 9, 9, 9);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tenants_take_turns),
		cmocka_unit_test(who_was_not_reached_is_the_first_of_the_next),
		cmocka_unit_test(a_tenant_alone_has_more_and_its_order),
		cmocka_unit_test(who_was_not_served_is_told_apart),
	};

	return cmocka_run_group_tests_name("tenant_queues", tests, NULL, NULL);
}

/* tests/unit/rating/test_classes.c - the classes of a pool's hour: the worked examples of the billing rules, and each rule's edges. */
#include "aggregator/core/rating/charge_classes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/units.h"

#define GPU_HOUR ((int128)UNITS_PER_GPU * 3600 * 1000000000)
#define PARTIES 4
#define NONE (-1) /* no reservation */

struct party {
	int held, reserved, lend_cap;                                /* GPU-hours; lend_cap NONE: all */
	int covered, on_demand, borrowed, lent, unused, undelivered; /* expected */
};

/* In GPU-hours of one hour; the workspaces have the ids 1, 2, ... */
static const struct {
	const char *name;
	int capacity;
	struct party party[PARTIES];
	int idle;
} rows[] = {
	{"the worked example: a holds 1 of 4, b holds 5 and has 2",
         8,
         {{1, 4, NONE, .covered = 1, .lent = 1, .unused = 2},
          {5, 2, NONE, .covered = 2, .on_demand = 2, .borrowed = 1}},
         0},
	{"without reservations everything is on demand",
         8,
         {{3, NONE, NONE, .on_demand = 3}, {4, NONE, NONE, .on_demand = 4}},
         1},
	{"a reservation that is not used is unused", 8, {{0, 5, NONE, .unused = 5}}, 3},
	{"capacity below the reservations is undelivered pro rata",
         6,
         {{0, 4, NONE, .unused = 2, .undelivered = 2}, {0, 8, NONE, .unused = 4, .undelivered = 4}},
         0},
	{"what was held is delivered, and the other has less than its part",
         6,
         {{4, 4, NONE, .covered = 4}, {0, 8, NONE, .unused = 2, .undelivered = 6}},
         0},
	{"all capacity lost: everything is undelivered", 0, {{0, 4, NONE, .undelivered = 4}}, 0},
	{"lend caps are kept while there is room elsewhere",
         10,
         {{0, 5, 1, .lent = 1, .unused = 4}, {0, 5, NONE, .lent = 3, .unused = 2}, {4, NONE, NONE, .borrowed = 4}},
         0},
	{"who borrows without asking takes also what nobody lends",
         4,
         {{0, 4, 1, .lent = 3, .unused = 1}, {3, NONE, NONE, .borrowed = 3}},
         0},
	{"spare capacity goes pro rata to those beyond their reservation",
         12,
         {{0, 6, NONE, .lent = 3, .unused = 3},
          {6, NONE, NONE, .on_demand = 4, .borrowed = 2},
          {3, NONE, NONE, .on_demand = 2, .borrowed = 1}},
         0},
};

static void
assert_hours(const char *row, size_t party, const char *what, int128 got, int expected)
{
	if (got != expected * GPU_HOUR)
		fail_msg("%s: %s of workspace %zu is %.6f GPU-hours, expected %d", row, what, party + 1,
		         (double)(got / 1000000) / (double)(GPU_HOUR / 1000000), expected);
}

static void
each_worked_hour_comes_out(void **state)
{
	(void)state;
	for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
		struct class_use uses[PARTIES];
		struct class_right rights[PARTIES];
		struct class_hour in = {.capacity = rows[r].capacity * GPU_HOUR, .uses = uses, .rights = rights};
		owned(classes) struct classes *c = NULL;
		struct err err = {0};
		size_t use = 0, right = 0;

		for (size_t i = 0; i < PARTIES; i++) {
			const struct party *p = &rows[r].party[i];

			if (p->held > 0)
				uses[in.use_count++] = (struct class_use){.workspace = (int64_t)i + 1,
				                                          .instance_units = UNITS_PER_GPU,
				                                          .profile = "",
				                                          .amounts.idle = p->held * GPU_HOUR};
			if (p->reserved > 0)
				rights[in.right_count++] = (struct class_right){
					.workspace = (int64_t)i + 1,
					.reserved = p->reserved * GPU_HOUR,
					.lend_cap = (p->lend_cap < 0 ? p->reserved : p->lend_cap) * GPU_HOUR};
		}
		if (!classes_of_hour(&in, &c, &err))
			fail_msg("%s: %s", rows[r].name, err.text);
		for (size_t i = 0; i < PARTIES; i++) {
			const struct party *p = &rows[r].party[i];

			if (p->held > 0) {
				assert_hours(rows[r].name, i, "covered", c->uses[use][CLASS_COVERED].idle, p->covered);
				assert_hours(rows[r].name, i, "on-demand", c->uses[use][CLASS_ON_DEMAND].idle,
				             p->on_demand);
				assert_hours(rows[r].name, i, "borrowed", c->uses[use++][CLASS_BORROWED].idle,
				             p->borrowed);
			}
			if (p->reserved > 0) {
				assert_hours(rows[r].name, i, "covered by the reservation", c->rights[right].covered,
				             p->covered);
				assert_hours(rows[r].name, i, "lent", c->rights[right].lent, p->lent);
				assert_hours(rows[r].name, i, "unused", c->rights[right].unused, p->unused);
				assert_hours(rows[r].name, i, "undelivered", c->rights[right++].undelivered,
				             p->undelivered);
			}
		}
		assert_hours(rows[r].name, 0, "unreserved idle", c->unreserved_idle, rows[r].idle);
	}
}

static struct class_use
use_of(int64_t workspace, int64_t units, const char *profile, int128 used, int128 idle)
{
	return (struct class_use){.workspace = workspace,
	                          .instance_units = units,
	                          .profile = profile,
	                          .amounts = {.used = used, .idle = idle}};
}

static void
whole_gpus_are_covered_first_then_larger_instances_then_by_name(void **state)
{
	const struct class_use uses[] = {
		use_of(1, 675, "1g.10gb", 0, 100),  use_of(1, 2340, "3g.40gb", 0, 100),   use_of(1, 5040, "", 0, 100),
		use_of(1, 1350, "2g.20gb", 0, 100), use_of(1, 675, "1g.10gb+me", 0, 100),
	};
	const struct class_right right = {.workspace = 1, .reserved = 350, .lend_cap = 350};
	const struct class_hour in = {
		.capacity = 600, .uses = uses, .use_count = ARRAY_LEN(uses), .rights = &right, .right_count = 1};
	const int128 covered[] = {50, 100, 100, 100, 0};
	owned(classes) struct classes *c = NULL;
	struct err err = {0};

	(void)state;
	assert_true(classes_of_hour(&in, &c, &err));
	for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
		assert_true(c->uses[i][CLASS_COVERED].idle == covered[i]);
		assert_true(c->uses[i][CLASS_ON_DEMAND].idle == 100 - covered[i]);
		assert_true(c->uses[i][CLASS_BORROWED].idle == 0);
	}
	assert_true(c->unreserved_idle == 100);
}

static void
activity_and_energy_are_divided_with_the_time(void **state)
{
	const struct class_use use = {
		.workspace = 1,
		.instance_units = 5040,
		.profile = "",
		.amounts = {.used = 50, .idle = 30, .unmeasured = 20, .over = 10, .energy_mj = 1001}};
	const struct class_right right = {.workspace = 1, .reserved = 60, .lend_cap = 60};
	const struct class_hour in = {
		.capacity = 100, .uses = &use, .use_count = 1, .rights = &right, .right_count = 1};
	owned(classes) struct classes *c = NULL;
	struct err err = {0};

	(void)state;
	assert_true(classes_of_hour(&in, &c, &err));
	assert_true(c->uses[0][CLASS_COVERED].used == 30 && c->uses[0][CLASS_COVERED].idle == 18 &&
	            c->uses[0][CLASS_COVERED].unmeasured == 12);
	assert_true(c->uses[0][CLASS_ON_DEMAND].used == 20 && c->uses[0][CLASS_ON_DEMAND].idle == 12 &&
	            c->uses[0][CLASS_ON_DEMAND].unmeasured == 8);
	assert_true(c->uses[0][CLASS_COVERED].over == 6 && c->uses[0][CLASS_ON_DEMAND].over == 4);
	assert_true(c->uses[0][CLASS_COVERED].energy_mj == 601 && c->uses[0][CLASS_ON_DEMAND].energy_mj == 400);
}

static void
every_borrower_has_of_every_lender_pro_rata(void **state)
{
	const struct class_use uses[] = {use_of(9, 5040, "", 0, 3), use_of(4, 5040, "", 0, 3)};
	const struct class_right rights[] = {{7, 4, 4}, {5, 4, 4}};
	const struct class_hour in = {.capacity = 8, .uses = uses, .use_count = 2, .rights = rights, .right_count = 2};
	/* three units are halved by largest remainder, the lender with the lower id first; the second borrower has what is left of each */
	const struct class_loan expected[] = {{.lender = 1, .use = 1, .part.idle = 2},
	                                      {.lender = 0, .use = 1, .part.idle = 1},
	                                      {.lender = 1, .use = 0, .part.idle = 1},
	                                      {.lender = 0, .use = 0, .part.idle = 2}};
	owned(classes) struct classes *c = NULL;
	struct err err = {0};

	(void)state;
	assert_true(classes_of_hour(&in, &c, &err));
	assert_int_equal(c->loan_count, ARRAY_LEN(expected));
	for (size_t i = 0; i < c->loan_count; i++) {
		assert_int_equal(c->loans[i].lender, expected[i].lender);
		assert_int_equal(c->loans[i].use, expected[i].use);
		assert_true(c->loans[i].part.idle == expected[i].part.idle);
	}
}

static void
what_cannot_be_is_refused_by_name(void **state)
{
	const struct class_use one = use_of(1, 5040, "", 0, 5), negative = use_of(1, 5040, "", -1, 5);
	const struct class_use twice[] = {one, one};
	const struct class_right rights[] = {{1, 1, 1}, {1, 2, 2}}, below = {1, -1, 0};
	const struct {
		struct class_hour in;
		const char *text;
	} bad[] = {
		{{.capacity = 4, .uses = &one, .use_count = 1}, "more is allocated than there is capacity"},
		{{.capacity = -1}, "capacity is negative"},
		{{.capacity = 9, .uses = &negative, .use_count = 1}, "an amount of whole GPUs is negative"},
		{{.capacity = 99, .uses = twice, .use_count = 2}, "a kind of device twice"},
		{{.capacity = 9, .rights = rights, .right_count = 2}, "a reservation twice"},
		{{.capacity = 9, .rights = &below, .right_count = 1}, "the reservation is negative"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		owned(classes) struct classes *c = NULL;
		struct err err = {0};

		assert_false(classes_of_hour(&bad[i].in, &c, &err));
		assert_int_equal(err.kind, ERR_INVALID);
		assert_non_null(strstr(err.text, bad[i].text));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_worked_hour_comes_out),
		cmocka_unit_test(whole_gpus_are_covered_first_then_larger_instances_then_by_name),
		cmocka_unit_test(activity_and_energy_are_divided_with_the_time),
		cmocka_unit_test(every_borrower_has_of_every_lender_pro_rata),
		cmocka_unit_test(what_cannot_be_is_refused_by_name),
	};

	return cmocka_run_group_tests_name("classes", tests, NULL, NULL);
}

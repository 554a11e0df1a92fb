/* tests/unit/support/test_quotaref.c - the judge of the quota engine on the worked examples of QUOTA, so that both are held against the
 * document and not only against each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/quota/quotaref.h"

#define WS(r_, b_, l_)                                                                                       \
	{                                                                                                    \
		.own = {.reserved = (r_), .limit = QREF_NONE, .borrow = (b_), .lend = (l_)}, .weight = 1,    \
		.shared = {.limit = QREF_NONE, .borrow = QREF_NONE, .lend = QREF_NONE}, .reclaim = QREF_ANY, \
		.preempt_own = true                                                                          \
	}
#define LEASE(w_, n_, p_)                                                              \
	{                                                                              \
		.workspace = (w_), .on = {(n_)}, .priority = (p_), .preemptible = true \
	}
#define ASK(w_, n_, p_)                                                                 \
	{                                                                               \
		.workspace = (w_), .count = (n_), .priority = (p_), .preemptible = true \
	}

struct row {
	const char *name;
	struct qref_state state;
	struct qref_request request;
	enum qref_decision decision;
	unsigned victims;
};

static const struct row rows[] = {
	{"45 and 56 are more than there is",
         {.node_count = 1,
          .nodes = {{0, 100, false}},
          .workspace_count = 2,
          .lease_count = 1,
          .maximum = QREF_NONE,
          .workspaces = {WS(50, 50, QREF_NONE), WS(50, 10, QREF_NONE)},
          .leases = {LEASE(0, 45, 0)}},
         ASK(1, 56, 0),
         QREF_QUEUE,
         0},
	{"45 and 55 fit, five of them borrowed",
         {.node_count = 1,
          .nodes = {{0, 100, false}},
          .workspace_count = 2,
          .lease_count = 1,
          .maximum = QREF_NONE,
          .workspaces = {WS(50, 50, QREF_NONE), WS(50, 10, QREF_NONE)},
          .leases = {LEASE(0, 45, 0)}},
         ASK(1, 55, 0),
         QREF_BORROW,
         0},
	{"a lender with a cap of two lends two",
         {.node_count = 1,
          .nodes = {{0, 5, false}},
          .workspace_count = 2,
          .lease_count = 1,
          .maximum = QREF_NONE,
          .workspaces = {WS(3, 6, 2), WS(2, 4, 2)},
          .leases = {LEASE(1, 2, 0)}},
         ASK(1, 3, 0),
         QREF_QUEUE,
         0},
	{"the borrower goes, not the own low job",
         {.node_count = 1,
          .nodes = {{0, 12, false}},
          .workspace_count = 2,
          .lease_count = 3,
          .maximum = QREF_NONE,
          .workspaces = {WS(6, 12, QREF_NONE), WS(6, 12, QREF_NONE)},
          .leases = {LEASE(0, 3, -1), LEASE(1, 3, 0), LEASE(1, 6, 1)}},
         ASK(0, 3, 1),
         QREF_RECLAIM,
         2},
	{"who would have to borrow has no right to reclaim",
         {.node_count = 1,
          .nodes = {{0, 12, false}},
          .workspace_count = 2,
          .lease_count = 3,
          .maximum = QREF_NONE,
          .workspaces = {WS(6, 12, QREF_NONE), WS(6, 12, QREF_NONE)},
          .leases = {LEASE(0, 4, 1), LEASE(1, 4, -1), LEASE(1, 4, -1)}},
         ASK(0, 4, 1),
         QREF_QUEUE,
         0},
	{"low alone is too small, and not needed with mid",
         {.node_count = 1,
          .nodes = {{0, 6, false}},
          .workspace_count = 1,
          .lease_count = 3,
          .maximum = QREF_NONE,
          .workspaces = {WS(6, 12, QREF_NONE)},
          .leases = {LEASE(0, 1, -1), LEASE(0, 2, 0), LEASE(0, 3, 1)}},
         ASK(0, 2, 1),
         QREF_RECLAIM,
         2},
	{"a gang that could not be completed evicts nobody",
         {.node_count = 2,
          .nodes = {{0, 1, false}, {0, 1, true}},
          .workspace_count = 2,
          .lease_count = 1,
          .maximum = QREF_NONE,
          .workspaces = {WS(0, QREF_NONE, QREF_NONE), WS(2, 4, QREF_NONE)},
          .leases = {LEASE(0, 1, 0)}},
         ASK(1, 2, 0),
         QREF_QUEUE,
         0},
	{"one slice is free and one is lent",
         {.node_count = 1,
          .nodes = {{0, 4, false}},
          .workspace_count = 2,
          .lease_count = 2,
          .maximum = QREF_NONE,
          .workspaces = {WS(1, 2, QREF_NONE), WS(2, 4, QREF_NONE)},
          .leases = {LEASE(0, 2, 0), LEASE(0, 1, 0)}},
         ASK(1, 2, 0),
         QREF_RECLAIM,
         2},
};

static void
the_worked_examples_are_answered_as_they_stand(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct qref_answer a = qref_decide(&rows[i].state, &rows[i].request);
		unsigned victims =
			a.decision == QREF_RECLAIM ? qref_ordered_victims(&rows[i].state, &rows[i].request, a.pool) : 0;

		if (a.decision != rows[i].decision || victims != rows[i].victims)
			fail_msg("%s: %s, victims %x", rows[i].name, qref_decision_name(a.decision), victims);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_worked_examples_are_answered_as_they_stand),
	};

	return cmocka_run_group_tests_name("quotaref", tests, NULL, NULL);
}

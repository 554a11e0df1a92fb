/* tests/unit/quota/test_quota.c - the worked examples of the quota model and every rule of aggregator/core/quota/engine/quota.h, a sentence each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/quota/quotascript.h"

static void
the_worked_examples(void **state)
{
	static const struct quotascript_row rows[] = {
		{"45 and 56 do not fit 100: the second waits",
	         "ws a R50 B50; ws b R50 B10; node n 100; ask ra a 45, rb b 56", "ra admit; rb queue"},
		{"45 and 55 fit: b borrows what a leaves",
	         "ws a R50 B50; ws b R50 B10; node n 100; ask ra a 45, rb b 55", "ra admit; rb borrow 5"},
		{"a lends only 2", "ws a R3 L2; ws b R2 L2; node n 5; lease l b 2; ask r b 3", "r queue"},
		{"the borrower gives back, not the own low job",
	         "ws c1 R6; ws c2 R6; node n 12; lease c1-low c1 3 p-1; lease c2-mid c2 3 p0; lease c2-high c2 6 p1;"
	         "ask r c1 3 p1",
	         "r reclaim c2-mid; order c2-mid for r"},
		{"who would have to borrow has no right to reclaim",
	         "ws c1 R6; ws c2 R6; node n 12; lease x c1 4 p1; lease y c2 4 p-1; lease z c2 4 p-1; ask r c1 4 p1",
	         "r queue"},
		{"low alone is too small, and not needed with mid",
	         "ws w R6; node n 6; lease low w 1 p-1; lease mid w 2 p0; lease high w 3 p1; ask r w 2 p1",
	         "r reclaim mid; order mid for r"},
		{"a gang that could not be completed now evicts nobody",
	         "ws q0 R0; ws q1 R2; node n1 1; node n2 1 down; lease l q0 1 @n1; ask r q1 2", "r queue"},
		{"of slices the lease of one is reclaimed: one is free, one is lent",
	         "ws q0 R1m; ws q1 R2m; mig n 4; lease two q0 2 mig; lease one q0 1 mig; ask r q1 2 mig",
	         "r reclaim one; order one for r"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
rules_1_to_4(void **state)
{
	static const struct quotascript_row rows[] = {
		{"a shape that nobody knows is refused", "ws a R4; node n 4; ask r a 1 unknown", "r reject"},
		{"a count that is no multiple of per_node is refused", "ws a R4; node n 4; ask r a 3 k2", "r reject"},
		{"a count of nothing is refused", "ws a R4; node n 4; ask r a 0", "r reject"},
		{"a workload above the guardrail is refused", "ws a R4 guard=2; node n 4; ask r a 3, s a 2",
	         "r reject; s admit"},
		{"the tenant's guardrail counts too", "tenant t guard=2; ws a R4; node n 4; ask r a 3", "r reject"},
		{"replicas are not to be had where there are none", "ws a R4; node n 4; ask r a 1 rep", "r reject"},
		{"the limit holds whatever is idle", "ws a R2 M3; node n 8; lease l a 2; ask r a 2", "r queue"},
		{"what alone is above the limit is refused", "ws a R2 M3; node n 8; ask r a 4", "r reject"},
		{"without reservation the limit is the tenant's default",
	         "tenant t max=8 default=2; ws a; node n 8; ask r a 3, s a 2", "r reject; s borrow 2"},
		{"the default limit is three times the reservation", "ws a R2; node n 9; ask r a 7, s a 6",
	         "r reject; s borrow 4"},
		{"the tenant's maximum counts all its workspaces",
	         "tenant t max=5; ws a R4; ws b R4; node n 8; lease l a 3; ask r b 3, s b 2", "r queue; s admit"},
		{"the tenant's maximum counts the shared pool too",
	         "tenant t max=4; ws a R2 S2 M9; node n 2; node s 4 shared; lease l a 2; ask r a 3, q a 2",
	         "q admit; r queue"},
		{"the cluster's maximum counts all tenants",
	         "set cluster=5; ws a R4; ws b R4 of=u; node n 4; node m 4 of=u; lease l a 3; ask r b 3, s b 2",
	         "r queue; s admit"},
		{"cores are limited without borrowing",
	         "ws a R4 cpu=1000; node n 4; ask r a 1 cpu=600, s a 1 cpu=600, q a 1 cpu=400",
	         "q admit; r admit; s queue"},
		{"more cores than the limit are refused for ever", "ws a R4 cpu=1000; node n 4; ask r a 1 cpu=1001",
	         "r reject"},
		{"the tenant's cores are counted over its workspaces",
	         "tenant t cpu=1000; ws a R4; ws b R4; node n 8; ask r a 1 cpu=600, s b 1 cpu=600", "r admit; s queue"},
		{"a hard budget stops new work when it is consumed",
	         "ws a R4; node n 4; budget a 10 hard used=8; ask r a 1 for=3", "r reject"},
		{"running work counts in the budget until it ends",
	         "ws a R4; node n 4; budget a 10 hard used=5; ask r a 1 for=3; ask s a 1 for=3; finish r",
	         "r admit; s queue; s admit; returned r"},
		{"a soft budget warns", "ws a R4; node n 4; budget a 10 soft used=8; ask r a 1 for=3", "r admit warn"},
		{"another tenant's nodes are out of reach", "ws a R0; ws b R4 of=u; node n 4 of=u; ask r a 1",
	         "r reject"},
		{"the own pool comes first, then the shared one",
	         "ws a R2 S2; node n 2; node s 4 shared; ask r a 2, s a 2, q a 2", "q admit; r admit; s borrow 2"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
rules_5_to_9(void **state)
{
	static const struct quotascript_row rows[] = {
		{"free GPUs on two nodes are not together",
	         "ws a R8; node n1 4; node n2 4; lease x a 2 @n1; lease y a 2 @n2; ask r a 4 k4", "r queue"},
		{"a request without shape is spread",
	         "ws a R8; node n1 4; node n2 4; lease x a 2 @n1; lease y a 2 @n2; ask r a 4", "r admit"},
		{"two chunks may be on one node", "ws a R8; node n1 8; ask r a 8 k4", "r admit"},
		{"whole GPUs are not made of slices", "ws a R8; node n 1; mig m 7; lease l a 1 @n; ask r a 1",
	         "r queue"},
		{"free slices do not make a node that cannot be had", "ws a R9; mig m 7; ask r a 8 mig", "r reject"},
		{"replicas are counted like devices", "ws a R1; rep m 4; ask r a 3 rep, s a 2 rep", "r admit; s queue"},
		{"work that cannot be preempted is never borrowed",
	         "ws a R2; ws b R2; node n 4; lease l a 1; ask r a 2 fixed", "r queue"},
		{"more work that cannot be preempted than reserved is refused", "ws a R2; node n 4; ask r a 3 fixed",
	         "r reject"},
		{"the borrow cap is on the whole debt", "ws a R2 B2; ws b R4; node n 8; lease l a 3; ask r a 2",
	         "r queue"},
		{"the borrow cap is not on the part that is owed", "ws a R2 B2; ws b R4; node n 8; ask r a 4",
	         "r borrow 2"},
		{"what is protected is not lent", "ws a R4 L1; ws b R0 M8; node n 4; ask r b 2", "r reject"},
		{"what is protected is not given to an owner either",
	         "ws a R3 L0; ws b R3; node n 6; gpulost n 0; ask r b 3", "r queue"},
		{"a lender that uses its own lends the rest",
	         "ws a R4 L2; ws b R0 M8; node n 4; lease l a 1; ask r b 2, s b 1", "r borrow 2; s queue"},
		{"slices that are protected are kept as slices",
	         "ws a R2m L0; ws b R8; mig m 4; node n 8; ask r b 3 mig, s b 2 mig", "r reject; s admit"},
		{"unreserved units need no lender", "ws a R2 L0; ws b R0 M8; node n 4; ask r b 2", "r borrow 2"},
		{"a borrower reclaims from nobody",
	         "ws a R2; ws b R0 M4; ws c R0 M4; node n 2; lease l b 2 p0; ask r c 1 p9", "r queue"},
		{"own leases of the same priority stay", "ws a R2; node n 2; lease l a 2 p1; ask r a 1 p1", "r queue"},
		{"preempt_own never keeps them all", "ws a R2 noown; node n 2; lease l a 2 p0; ask r a 1 p1",
	         "r queue"},
		{"own preemption may make a borrower fit",
	         "ws a R1 B3 M9; ws b R3; node n 4; lease f b 1 fixed; lease l a 3 p0; ask r a 2 p1",
	         "r reclaim 1 l; order l for r"},
		{"own and foreign victims together",
	         "ws a R4; ws b R0 M4; node n 8; ws c R4; lease x a 2 p0; lease y a 2 p1; lease z b 4 p5; ask r a 4 p1",
	         "r queue"},
		{"own victims make it owed, and then a debtor gives back",
	         "ws a R4; ws b R0 M4; node n 4; lease x a 1 p0; lease z b 3 p5; ask r a 4 p1",
	         "r reclaim z,x; order x for r; order z for r"},
		{"reclaim lower spares those of the same priority",
	         "ws a R2 lower; ws b R0 M4; node n 2; lease l b 2 p1; ask r a 2 p1", "r queue"},
		{"reclaim lower takes those of lower priority",
	         "ws a R2 lower; ws b R0 M4; node n 2; lease l b 2 p0; ask r a 2 p1", "r reclaim l; order l for r"},
		{"reclaim never takes nobody", "ws a R2 never; ws b R0 M4; node n 2; lease l b 2 p0; ask r a 2 p1",
	         "r queue"},
		{"what cannot be preempted is no victim", "ws a R2; ws b R2; node n 2; lease l b 2 fixed; ask r a 1",
	         "r queue"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
the_order_of_victims(void **state)
{
	static const struct quotascript_row rows[] = {
		{"the largest debt first",
	         "ws a R2; ws b R0 M9; ws c R0 M9; node n 6; lease x b 1; lease y c 2; lease z c 3; ask r a 1",
	         "r reclaim z; order z for r"},
		{"debt counts relative to weight",
	         "ws a R2; ws b R0 M9; ws c R0 M9 W9; node n 6; lease x b 2; lease y c 2; lease z c 2; ask r a 2",
	         "r reclaim x; order x for r"},
		{"then the lowest priority", "ws a R2; ws b R0 M9; node n 4; lease x b 2 p1; lease y b 2 p2; ask r a 2",
	         "r reclaim x; order x for r"},
		{"then the newest", "ws a R2; ws b R0 M9; node n 4; lease x b 2; lease y b 2; ask r a 2",
	         "r reclaim y; order y for r"},
		{"debt is looked at again after each victim",
	         "ws a R2; ws b R0 M9; ws c R0 M9; node n 7; lease b1 b 1; lease b2 b 1; lease b3 b 1; lease b4 b 1; lease c1 c 1;"
	         "lease c2 c 1; lease c3 c 1; ask r a 2",
	         "r reclaim b4,c3; order b4 for r; order c3 for r"},
		{"a workspace without debt is left alone",
	         "ws a R2; ws b R2; ws c R0 M9; node n 4; lease x b 2 p-9; lease y c 2 p9; ask r a 2",
	         "r reclaim y; order y for r"},
		{"what drains already comes first",
	         "ws a R2; ws b R0 M9; node n 4; lease x b 2 draining; lease y b 2; ask r a 2", "r reclaim x"},
		{"what drains for one is not counted for another",
	         "ws a R2; ws b R2; ws c R0 M9; node n 4; lease x c 2; lease y c 2; ask r a 2; ask s b 2",
	         "r reclaim y; order y for r; s reclaim x; order x for s"},
		{"what a victim returns beyond the need is there for the next",
	         "ws a R2; ws b R2; ws c R0 M9; node n 4; lease x c 4; ask r a 2; ask s b 2; finish x",
	         "r reclaim x; order x for r; s reclaim x; r admit; s admit; returned x"},
		{"what was admitted in a batch is no victim of it",
	         "ws a R2; ws b R0 M9; node n 2; ask r b 2 p9; ask s a 2, q b 1",
	         "r borrow 2; s reclaim r; q queue; order r for s"},
		{"a return that would protect more than it frees is left out",
	         "ws a R1; ws b R0 M9; ws c R2 L0; node n1 1; node n2 2; lease x b 1 @n2; lease y c 2 draining; lost n1; ask r a 1",
	         "r reclaim x; order x for r"},
		{"also where there are too many leases to try all sets",
	         "ws a R1; ws b R0 M99; ws c R30 L0; node n1 29; node n2 22; lease x0 b 1 @n2; lease x1 b 1 @n2; lease x2 b 1 @n2;"
	         "lease x3 b 1 @n2; lease x4 b 1 @n2; lease x5 b 1 @n2; lease x6 b 1 @n2; lease x7 b 1 @n2; lease x8 b 1 @n2;"
	         "lease x9 b 1 @n2; lease xa b 1 @n2; lease xb b 1 @n2; lease xc b 1 @n2; lease xd b 1 @n2; lease xe b 1 @n2;"
	         "lease xf b 1 @n2; lease xg b 1 @n2; lease xh b 1 @n2; lease xi b 1 @n2; lease xj b 1 @n2; lease xk b 1 @n2;"
	         "lease y c 30 draining; lost n1; ask r a 1",
	         "r reclaim xk; order xk for r"},
		{"devices that must be together are sought node by node",
	         "ws a R2; ws b R0 M9; node n1 2; node n2 2; lease x b 1 @n1; lease f b 1 @n2 fixed; lease y b 1 @n1; lease z b 1 @n2;"
	         "ask r a 2 k2",
	         "r reclaim y,x; order x for r; order y for r"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

/* What is admitted in a batch is no victim of it: who may borrow in one pool because its own is full must not take what another of the
 * batch is owed there. */
static void
a_right_is_in_one_pool(void **state)
{
	static const struct quotascript_row rows[] = {
		{"who is owed elsewhere does not borrow what another of the batch is owed",
	         "ws a S1 M9; ws b R1; node n 4; node s 1 shared; lease l a 4; ask r a 1, q b 1",
	         "r admit; q reclaim l; order l for q"},
		{"where there is room for both it borrows, and nobody gives way",
	         "ws a S1 M9; ws b R1; node n 4; node s 2 shared; lease l a 4; ask r a 1, q b 1",
	         "r admit; q borrow 1"},
		{"alone it borrows, and the owner takes it back with a grace",
	         "ws a S1 M9; ws b R1; node n 4; node s 1 shared; lease l a 4; ask q b 1; ask r a 1",
	         "q borrow 1; r reclaim q; order q for r"},
		{"of those before it the one that reclaims there holds what is free",
	         "ws a S2 M9; ws b R1; ws c M9; node n 4; node s 2 shared; lease l a 4; lease x c 1 @s; ask r a 2, q b 1",
	         "r reclaim x; q reclaim l; order l for q; order x for r"},
		{"one with a hold that could borrow lets the owner go first",
	         "ws a S1 M9; ws b R1; ws c M9; node n 4; node s 1 shared; lease l a 4; lease f c 1 @s fixed; ask q b 1; ask r a 1;"
	         "finish f",
	         "q reclaim l; order l for q; r queue; r admit; returned f"},
		{"a borrower's hold yields to an owner whose right came later",
	         "set grace=100; ws a R1 M9; ws b M9; node n 4; lease x a 1 p-1; lease y a 2 p-1; ask q b 2; ask r a 4 p1; policy ws b R2 M9;"
	         "finish x",
	         "q queue; r reclaim 3 y,x; order x for r; order y for r; q reclaim y; cancel order x; dropped r; q admit; cancel order y; returned x"},
		{"within a workspace the priority decides",
	         "ws a R2 S1 M9; ws b M9; node n 2; node s 2 shared; lease l b 2; ask r a 2 p1, q a 1",
	         "r borrow 1; q reclaim l; order l for q"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
own_work_at_a_limit(void **state)
{
	static const struct quotascript_row rows[] = {
		{"a workspace at its limit replaces its own lower work",
	         "ws a M8; node n 16; lease l a 8 p0; ask r a 8 p1; finish l",
	         "r reclaim 8 l; order l for r; r borrow 8; returned l"},
		{"work of the same priority is not given up", "ws a M8; node n 16; lease l a 8 p1; ask r a 8 p1",
	         "r queue"},
		{"with preempt_own: never it waits", "ws a M8 noown; node n 16; lease l a 8 p0; ask r a 8 p1",
	         "r queue"},
		{"only as much is given up as the limit lacks",
	         "ws a M8; node n 16; lease l a 5 p0; lease m a 3 p0; ask r a 2 p1", "r reclaim 2 m; order m for r"},
		{"other workspaces do not give way to a limit",
	         "tenant t max=8; ws a R4; ws b R4 M9; node n 16; lease l a 1 p0; lease m b 7 p0; ask r a 3 p1",
	         "r queue"},
		{"at the tenant's maximum the own work of the other pool may go",
	         "tenant t max=4; ws a R4 S4 M9; node n 4; node s 4 shared; lease l a 4 p0 @s; ask r a 4 p1; finish l",
	         "r reclaim l; order l for r; r admit; returned l"},
		{"at the cluster's maximum the own work may go",
	         "set cluster=4; ws a R4 M9; node n 8; lease l a 4 p0; ask r a 4 p1", "r reclaim l; order l for r"},
		{"cores come with the work that is given up",
	         "ws a R8 cpu=1000; node n 8; lease l a 2 p0; ask q a 1 cpu=900; ask r a 1 p1 cpu=900; finish q",
	         "q admit; r reclaim q; order q for r; r admit; returned q"},
		{"what is held and what drains for it count as the larger: eight that drain for two are eight",
	         "ws a M8; node n 16; lease l a 8 p0; ask r a 2 p1; ask s a 6 p0; finish l",
	         "r reclaim 2 l; order l for r; s queue; r borrow 2; s borrow 6; returned l"},
		{"two that drain for eight are eight",
	         "ws a M9; node n 16; lease l a 2 p0; ask r a 8 p1; ask s a 2 p0; ask t a 1 p0; finish l",
	         "r reclaim 8 l; order l for r; s queue; t borrow 1; r borrow 8; returned l"},
		{"a second request may wait for the same work",
	         "ws a M8; node n 16; lease l a 8 p0; ask r a 2 p1; ask s a 6 p1; finish l",
	         "r reclaim 2 l; order l for r; s reclaim 6 l; r borrow 2; s borrow 6; returned l"},
		{"what still has to borrow gives up only work that borrows",
	         "ws a R4 M8; node n 8; lease l a 4 p0; lease m a 2 p0; ask r a 4 p1", "r reclaim 4 m; order m for r"},
		{"work within the reservation does not go for a borrower",
	         "ws a R4 M5; node n 8; lease l a 4 p0; ask r a 5 p1", "r queue"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_worked_examples),    cmocka_unit_test(rules_1_to_4),
		cmocka_unit_test(rules_5_to_9),           cmocka_unit_test(the_order_of_victims),
		cmocka_unit_test(a_right_is_in_one_pool), cmocka_unit_test(own_work_at_a_limit),
	};

	return cmocka_run_group_tests_name("quota", tests, NULL, NULL);
}

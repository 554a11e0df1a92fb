/* tests/unit/quota/test_quota_time.c - what happens to leases, holds, orders and the queue over time, a sentence each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/quota/quotascript.h"

static void
holds_and_orders(void **state)
{
	static const struct quotascript_row rows[] = {
		{"the step that returns the victim admits the request",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; drain x; finish x",
	         "r reclaim x; order x for r; r admit; returned x"},
		{"released is not returned until the devices are seen empty",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; drain x; release x; empty x",
	         "r reclaim x; order x for r; r admit; returned x"},
		{"what is free is held with what will return, so that borrowers cannot take it",
	         "ws a R4; ws b R0 M9; node n 4; lease x b 3; ask r a 4; ask s b 1; finish x",
	         "r reclaim x; order x for r; s queue; r admit; returned x"},
		{"a cancelled request takes its order back",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; cancel r",
	         "r reclaim x; order x for r; cancel order x; dropped r; cancelled r"},
		{"what drains already goes on draining when the request is cancelled",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; drain x; cancel r; ask s b 1; finish x",
	         "r reclaim x; order x for r; dropped r; cancelled r; s queue; s borrow 1; returned x"},
		{"a lost node makes another plan",
	         "ws a R2; ws b R0 M9; node n1 2; node n2 2; lease x b 2 @n1; lease y b 2 @n2; ask r a 2 k2; lost n2",
	         "r reclaim y; order y for r; r reclaim x; order x for r; cancel order y; dropped r"},
		{"without another plan the request waits again",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; lost n; back n",
	         "r reclaim x; order x for r; cancel order x; dropped r; r reclaim x; order x for r"},
		{"an order is overdue after the grace, whether or not it was acknowledged",
	         "set grace=10; ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; tick 9; tick 1; enforce x; finish x",
	         "r reclaim x; order x for r; overdue x; r admit; returned x"},
		{"only what is overdue is enforced", "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; enforce x",
	         "r reclaim x; order x for r; refused x not overdue"},
		{"GPUs that become free elsewhere spare the victim",
	         "ws a R1; ws b R0 M9; node n 2; lease b0 b 1; lease b1 b 1; ask r a 1; finish b0",
	         "r reclaim b1; order b1 for r; r admit; cancel order b1; returned b0"},
		{"the own job that was given up returns to its workspace",
	         "ws a R2; node n 2; lease low a 2 p0; ask r a 1 p1; ask s a 1 p0; finish low",
	         "r reclaim low; order low for r; s queue; r admit; s admit; returned low"},
		{"a right that an own victim leaves behind comes when it has returned",
	         "ws a R4 M9; ws b R0 M9; node n 6; lease a0 a 1 p1; lease b0 b 2 p-1; lease a2 a 3 p0; ask r a 1 p-1; ask q a 1 p1; finish a2",
	         "r queue; q reclaim a2; order a2 for q; q admit; r admit; returned a2"},
		{"what drains of itself is leased until it returned, and gives its workspace no right before",
	         "ws a R4 M9; ws b R0 M9; node n 4; lease x b 2; lease y a 2 p-1; drain y; ask r a 3 p-1; finish y",
	         "r queue; r reclaim x; order x for r; returned y"},
		{"a borrower's hold yields to an owner",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2 p0; ask r b 2 p1; ask s a 2; finish x",
	         "r reclaim 2 x; order x for r; s reclaim x; dropped r; s admit; returned x"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
adoption(void **state)
{
	static const struct quotascript_row rows[] = {
		{"a request that waited before keeps its age in the queue",
	         "ws a R0 M9; node n 1; lease l a 1; tick 100; ask young a 1; ask old a 1 since=10; finish l",
	         "young queue; old queue; old borrow 1; returned l"},
		{"its age counts for its priority",
	         "set aging=60; ws a R0 M9 noown; node n 1; lease l a 1; tick 600; ask young a 1 p2; ask old a 1 since=0; finish l",
	         "young queue; old queue; old borrow 1; returned l"},
		{"its age makes it the head of the queue",
	         "set head=300; ws a R0 M9; ws b R0 M9; node n 2; lease x b 1; tick 400; ask big a 2 since=0; ask s b 1",
	         "big queue; s queue"},
		{"no request is older than the future",
	         "set head=300; ws a R0 M9; ws b R0 M9; node n 2; lease x b 1; ask big a 2 since=9000; tick 299; ask s b 1;"
	         "finish s; tick 1; ask q b 1",
	         "big queue; s borrow 1; returned s; q queue"},
		{"an unconfirmed lease that is renewed has all its time again",
	         "set confirm=30; ws a R2; node n 2; ask r a 1; tick 20; renew r; tick 29; tick 1",
	         "r admit; expired r"},
		{"a confirmed lease is not renewed, one that has ended is not known",
	         "set confirm=30 silence=60; ws a R2; node n 2; ask r a 1; confirm r; renew r; tick 60; finish r; renew r",
	         "r admit; suspect r; returned r; refused r unknown"},
		{"a renewed lease is as old as it was: the newest goes first",
	         "ws a R1; ws b R0 M9; node n 2; ask x b 1; tick 5; ask y b 1; tick 5; renew x; ask r a 1",
	         "x borrow 1; y borrow 1; r reclaim y; order y for r"},

		{"what runs is adopted whatever the rules say, and counts from then on",
	         "ws a R2 M2; node n 4; adopt x a 3 @n:0 @n:1 @n:2; ask r a 1", "x admit; adopted x; r queue"},
		{"nobody gives way for what is adopted",
	         "ws a R2; ws b R0 M9; node n 2; lease l b 2; adopt x a 2 @n:0 @n:1", "x admit; adopted x"},
		{"what is adopted on devices of others is excess, and they are free when both have ended",
	         "ws a R2; ws b R0 M9; node n 2; lease l b 2; adopt x a 2 @n:0 @n:1; ask r b 1; finish l; finish x",
	         "x admit; adopted x; r queue; returned l; r borrow 1; returned x"},
		{"without GPUs it has free ones of its node first",
	         "ws a R4; ws b R4 M9; node n 4; node m 4; lease l b 3 @n; adopt x a 2 @n @n; ask r b 1",
	         "x admit; adopted x; r admit"},
		{"devices that are not in its pool are nowhere, and it is adopted all the same",
	         "tenant u; ws a R4; ws b R4 of=u; node n 4; node m 4 of=u; adopt x a 2 @m:0 @n:0; ask r b 4",
	         "x admit; refused x place; adopted x; r admit"},
		{"it is of the shared pool where most of its devices are",
	         "ws a R1 M9; ws b R0 M9; node n 1; node s 2 shared; adopt x a 3 @s:0 @s:1 @n:0; ask r b 1; ask q b 1",
	         "x admit; refused x place; adopted x; r borrow 1; q queue"},
		{"what was adopted is no victim for one grace, and then it is debt as any other",
	         "set grace=10; ws a R2; ws b R0 M9; node n 2; adopt x b 2 @n:0 @n:1; ask r a 2; tick 9; tick 1; finish x",
	         "x admit; adopted x; r queue; r reclaim x; order x for r; r admit; returned x"},
		{"also for work of its own workspace",
	         "set grace=10; ws a R2 M2; node n 2; adopt x a 2 @n:0 @n:1; ask r a 2 p1; tick 10",
	         "x admit; adopted x; r queue; r reclaim x; order x for r"},
		{"a hold whose devices an adopted lease has is planned again",
	         "ws a R2; ws b R0 M9; node n1 2; node n2 2; lease x b 2 @n1; lease y b 1 @n2; ask r a 2; adopt z b 1 @n2:0",
	         "r reclaim y; order y for r; z admit; r reclaim x; order x for r; cancel order y; dropped r; adopted z"},
		{"a hold is not admitted above a limit that an adopted lease used up",
	         "ws a R2 M2; ws b R0 M9; node n 4; lease x b 4; ask r a 2; adopt z a 1; finish x",
	         "r reclaim x; order x for r; z admit; cancel order x; dropped r; refused z place; adopted z; returned x"},
		{"what was adopted is suspect when it is silent, and its silence begins with its adoption",
	         "set silence=60; ws a R2; node n 2; tick 100; adopt x a 1 @n:0 since=0; tick 59; tick 1",
	         "x admit; adopted x; suspect x"},
		{"a request_id is adopted once", "ws a R2; node n 2; adopt x a 1 @n:0; cancel x",
	         "x admit; adopted x; refused x unknown"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
fences(void **state)
{
	static const struct quotascript_row rows[] = {
		{"a lost lease leaves limits and debt at once, and its devices are not free",
	         "ws a R2 M2; node n 2; node m 2; lease l a 2 @n; lost n; lose l; ask r a 2; ask s a 1",
	         "returned l; fenced l; r admit; s queue"},
		{"a node that is back has its devices fenced until telemetry speaks",
	         "ws a R2; node n 2; lease l a 2 @n; lost n; lose l; back n; ask r a 2; unfence l",
	         "returned l; fenced l; r queue; r admit; unfenced l"},
		{"a fence ends GPU by GPU",
	         "ws a R2; node n 2; lease l a 2 @n; lose l; ask r a 1; ask s a 1; unfence l @n:1; unfence l @n:0",
	         "returned l; fenced l; r queue; s queue; r admit; unfenced l; s admit; unfenced l"},
		{"what is fenced is lent to nobody",
	         "ws a R2; ws b R0 M9; node n 2; lease l a 1 @n; lose l; ask r b 2; ask s b 1; unfence l; finish s",
	         "returned l; fenced l; r queue; s borrow 1; unfenced l; r borrow 2; returned s"},
		{"nobody is evicted for a device that is fenced",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 1; lease l a 1; lose l; ask r a 2; unfence l",
	         "returned l; fenced l; r queue; r reclaim x; order x for r; unfenced l"},
		{"a hold does not wait for a fence: it is planned again",
	         "ws a R2; ws b R0 M9; node n1 2; node n2 2; lease x b 2 @n1; lease y b 1 @n2; ask r a 2; lose y",
	         "r reclaim y; order y for r; r reclaim x; order x for r; dropped r; returned y; fenced y"},
		{"a hold that finds no other way has none, and gets what is unfenced",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; lose x; unfence x",
	         "r reclaim x; order x for r; dropped r; returned x; fenced x; r admit; unfenced x"},
		{"isolation counts what is fenced",
	         "tenant t iso=gpu; tenant u iso=gpu; ws a S4 M9; ws b S4 M9 of=u; mig n 7 shared; lease l a 1 mig @n; lose l; "
	         "ask r b 1 mig; ask s a 1 mig; finish s; unfence l",
	         "returned l; fenced l; r queue; s admit; returned s; r admit; unfenced l"},
		{"a GPU that is cut otherwise has nothing fenced",
	         "ws a R2; node n 1; lease l a 1; lose l; cut n 0 7; ask r a 1 mig",
	         "returned l; fenced l; unfenced l; r admit"},
		{"a lost lease on no device is fenced nowhere",
	         "ws a R2; node n 1; adopt x a 2 @n:0; lose x; ask r a 1; unfence x",
	         "x admit; refused x place; adopted x; returned x; fenced x; r queue; r admit; unfenced x"},
		{"only a lease can be lost, and only a fence can end", "ws a R2; node n 1; lose l; unfence l",
	         "refused l unknown; refused l unknown"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

#define UNUSED "set grace=10 confirm=30 unused=100; ws a R2; ws b R0 M9; node n 2; lease x b 2 confirmed; "
#define EVICTED UNUSED "ask r a 2; finish x; tick 30; "
#define EVICTED_SAYS "r reclaim x; order x for r; r admit; returned x; expired r"

static void
unused_leases(void **state)
{
	static const struct quotascript_row rows[] = {
		{"nobody is evicted for a request whose lease was not used, until the confirm time has passed",
	         EVICTED "ask y b 2; confirm y; ask s a 2; tick 29; tick 1",
	         EVICTED_SAYS "; y borrow 2; s queue; s reclaim y; order y for s"},
		{"without the setting it evicts again at once",
	         "set confirm=30; ws a R2; ws b R0 M9; node n 2; lease x b 2 confirmed; ask r a 2; finish x; tick 30; "
	         "ask y b 2; confirm y; ask s a 2",
	         EVICTED_SAYS "; y borrow 2; s reclaim y; order y for s"},
		{"where there is room it is admitted", EVICTED "ask s a 2", EVICTED_SAYS "; s admit"},
		{"the time doubles with each lease in a row, to the longest there is",
	         EVICTED "ask s a 2; tick 30; ask y b 2; confirm y; ask t a 2; tick 59; tick 1; finish y; tick 30; "
	                 "ask z b 2; confirm z; ask u a 2; tick 99; tick 1",
	         EVICTED_SAYS
	         "; s admit; expired s; y borrow 2; t queue; t reclaim y; order y for t; t admit; returned y; "
	         "expired t; z borrow 2; u queue; u reclaim z; order z for u"},
		{"another reason of the scheduler ends it, the same one and none do not",
	         UNUSED
	         "ask r a 2 why=Resources; finish x; tick 30; ask y b 2; confirm y; ask s a 2 why=Resources; ask t a 2; "
	         "ask u a 2 why=Licenses",
	         EVICTED_SAYS "; y borrow 2; s queue; t queue; u reclaim y; order y for u"},
		{"a reason is not another one where the expired lease had none",
	         EVICTED "ask y b 2; confirm y; ask s a 2 why=Resources", EVICTED_SAYS "; y borrow 2; s queue"},
		{"a confirmed lease of the workspace and shape forgets it",
	         EVICTED "ask q a 1; confirm q; finish q; ask y b 2; confirm y; ask s a 2",
	         EVICTED_SAYS "; q admit; returned q; y borrow 2; s reclaim y; order y for s"},
		{"another count or priority is another request",
	         EVICTED "ask y b 2; confirm y; ask s a 2; ask t a 1; cancel t; ask u a 2 p1",
	         EVICTED_SAYS
	         "; y borrow 2; s queue; t reclaim y; order y for t; cancel order y; dropped t; cancelled t; "
	         "u reclaim y; order y for u"},
		{"a lease that was asked to end was not unused",
	         "set grace=10 confirm=30 unused=100; ws a R0 M9; ws b R2; node n 2; ask l b 2; drain l; tick 30; ask y a 2; confirm y; "
	         "ask s b 2",
	         "l admit; expired l; y borrow 2; s reclaim y; order y for s"},
		{"leases of one time count once",
	         "set grace=10 confirm=30 unused=100; ws a R4; ws b R0 M9; node n 4; ask r a 2, s a 2; tick 30; ask y b 4; confirm y; "
	         "ask t a 2; tick 30",
	         "r admit; s admit; expired r; expired s; y borrow 4; t queue; t reclaim y; order y for t"},
		{"a hold of such a request is dropped, and who was not asked to end yet stays",
	         "set grace=90 confirm=30 unused=100; ws a R4; ws b R0 M9; node n 2; node m 2; lease y b 2 confirmed @n; ask r a 2; "
	         "ask s a 2; lost m; tick 30",
	         "r admit; s reclaim y; order y for s; cancel order y; dropped s; expired r"},
		{"own work is not given up for it either",
	         "set confirm=30 unused=100; ws a R2 M2; node n 2; ask r a 2 p1; tick 30; ask l a 2; ask s a 2 p1; tick 29; tick 1",
	         "r admit; expired r; l admit; s queue; s admit; expired l"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
enforcement_waits_for_adoption(void **state)
{
	static const struct quotascript_row rows[] = {
		{"without a word about adoption a switch takes effect at once",
	         "ws a R2 off; node n 2; ask r a 3; policy ws a R2; ask s a 3", "r admit would reject; s reject"},
		{"while a cluster is being adopted, enforcement is not switched on there",
	         "ws a R2 off; node n 2; adoption begins; policy ws a R2; ask r a 3; adoption complete; ask s a 3",
	         "r admit would reject; s reject"},
		{"what was a warning stays one until then",
	         "ws a R2 warn; node n 2; adoption begins; policy ws a R2; ask r a 3; adoption complete; ask s a 3",
	         "r admit would reject warn; s reject"},
		{"a workspace that is enforced stays so when its cluster is adopted again",
	         "ws a R2; node n 2; adoption begins; ask r a 3", "r reject"},
		{"a workspace that comes with enforcement waits like the others",
	         "ws a R2; node n 2; adoption begins; policy ws b R0; ask r b 3; adoption complete; ask s b 3",
	         "r admit would reject; s reject"},
		{"switching it off again needs no adoption",
	         "ws a R2 off; node n 2; adoption begins; policy ws a R2; policy ws a R2 off; adoption complete; ask r a 3",
	         "r admit would reject"},
		{"what was adopted is not evicted for the switch, only one grace after it",
	         "set grace=10; ws a R2; ws b R0 M9 off; node n 2; adoption begins; adopt x b 2 @n:0 @n:1; tick 60;"
	         "policy ws b R0 M9; tick 60; ask r a 2; adoption complete; tick 9; tick 1",
	         "x admit; adopted x; r queue; r reclaim x; order x for r"},
		{"nor for a switch after adoption was complete",
	         "set grace=10; ws a R2; ws b R0 M9 off; node n 2; adoption begins; adopt x b 2 @n:0 @n:1; adoption complete;"
	         "tick 60; ask r a 2; policy ws b R0 M9; tick 9; tick 1",
	         "x admit; adopted x; r queue; r reclaim x; order x for r"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
back_off_and_exceptions(void **state)
{
	static const struct quotascript_row rows[] = {
		{"who was reclaimed may not borrow for a while",
	         "set backoff=60 forget=600; ws a R2; ws b R0 M9; node n 4; lease x b 4; ask r a 2; finish x; ask s b 1; tick 59; tick 1",
	         "r reclaim x; order x for r; r admit; returned x; s queue; s borrow 1"},
		{"the back-off doubles with each reclaim",
	         "set backoff=60 forget=600; ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; finish x; finish r; tick 60;"
	         "ask s b 2; ask q a 2; finish s; finish q; ask v b 1; tick 119; tick 1",
	         "r reclaim x; order x for r; r admit; returned x; returned r; s borrow 2; q reclaim s; order s for q; q admit; returned s;"
	         " returned q; v queue; v borrow 1"},
		{"after a quiet time it begins anew",
	         "set backoff=60 forget=600; ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; finish x; finish r; tick 700;"
	         "ask s b 2; ask q a 2; finish s; finish q; ask v b 1; tick 60",
	         "r reclaim x; order x for r; r admit; returned x; returned r; s borrow 2; q reclaim s; order s for q; q admit; returned s;"
	         " returned q; v queue; v borrow 1"},
		{"what is owed is not held up by a back-off",
	         "set backoff=60; ws a R2; ws b R1 M9; node n 3; lease x b 3; ask r a 2; finish x; ask s b 1",
	         "r reclaim x; order x for r; r admit; returned x; s admit"},
		{"an exception raises the limit and ends by itself",
	         "ws a R2 M2 B9; node n 4; lease l a 2; ask r a 1; except x a 1 for=60; tick 60; ask s a 1",
	         "r queue; r borrow 1; began x; ended x; s queue"},
		{"an exception may be a reservation",
	         "ws a R0 M9; ws b R0 M9; node n 2; lease x b 2; reserve e a 2 for=60; ask r a 2",
	         "began e; r reclaim x; order x for r"},
		{"what an ended exception left over the limit is not confirmed again",
	         "ws a R2 M2 B9; node n 4; lease l a 2; except x a 2 for=60; ask r a 2; confirm r; tick 60; confirm r; beat r",
	         "began x; r borrow 2; ended x; refused r limit"},
		{"a revoked exception ends at once",
	         "ws a R2 M2 B9; node n 4; lease l a 2; except x a 1 for=60; revoke x; ask r a 1",
	         "began x; ended x; r queue"},
		{"a policy that takes a reservation back leaves the lease and makes it a debt",
	         "ws a R2; ws b R2; node n 2; lease x a 2; ask r b 2; policy ws a R0 M9",
	         "r queue; r reclaim x; order x for r"},
		{"a policy under which nobody is owed drops the hold",
	         "ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; policy ws a R0 M9",
	         "r reclaim x; order x for r; cancel order x; dropped r"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
a_clock_that_is_set(void **state)
{
	static const struct quotascript_row rows[] = {
		{"expires no lease",
	         "set confirm=30; ws a R2; node n 2; ask r a 2; tick 20; clock 3600; tick 9; tick 1",
	         "r admit; expired r"},
		{"makes no lease suspect",
	         "set silence=60; ws a R2; node n 2; ask r a 2; confirm r; tick 50; clock 3600; tick 9; tick 1",
	         "r admit; suspect r"},
		{"makes no order overdue",
	         "set grace=60; ws a R2; ws b R0 M9; node n 2; lease x b 2; ask r a 2; tick 50; clock 3600; tick 9; tick 1",
	         "r reclaim x; order x for r; overdue x"},
		{"ends no back-off",
	         "set backoff=60 forget=600; ws a R2; ws b R0 M9; node n 4; lease x b 4; ask r a 2; finish x; ask s b 1; clock 3600;"
	         "tick 59; tick 1",
	         "r reclaim x; order x for r; r admit; returned x; s queue; s borrow 1"},
		{"lets nobody be the head of the queue",
	         "set head=60; ws a R0 M9; ws b R0 M9; node n 4; lease x a 2; ask r a 4; clock 3600; ask s b 1; tick 60; ask q b 1",
	         "r queue; s borrow 1; q queue"},
		{"moves no date: an exception ends, and a request expires",
	         "ws a R2 M2 B9; node n 4; lease l a 2; except x a 1 for=60; ask r a 2 until=30; clock 3600; tick 0",
	         "began x; r queue; ended x; expired r"},
		{"back lets an order be overdue in its time, although the book stands",
	         "set grace=60; ws a R2; ws b R0 M9; node n 2; lease x b 2; tick 900; ask r a 2; clock -59; tick 59; clock -1; tick 1",
	         "r reclaim x; order x for r; overdue x"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

static void
leases_and_the_queue(void **state)
{
	static const struct quotascript_row rows[] = {
		{"an unconfirmed lease expires",
	         "set confirm=30; ws a R2; node n 2; ask r a 2; tick 29; ask s a 1; tick 1",
	         "r admit; s queue; s admit; expired r"},
		{"a confirmed lease does not expire, but is suspect when silent, and still counts",
	         "set confirm=30 silence=60; ws a R2; node n 2; ask r a 2; confirm r; tick 60; ask s a 1; empty r",
	         "r admit; suspect r; s queue; s admit; returned r"},
		{"a heartbeat keeps it",
	         "set silence=60; ws a R2; node n 2; ask r a 2; confirm r; tick 59; beat r; tick 59", "r admit"},
		{"devices seen empty do not end what is alive",
	         "ws a R2; node n 2; ask r a 2; confirm r; empty r; ask s a 1", "r admit; s queue"},
		{"what is not known is refused", "ws a R2; node n 2; ask r a 1; finish zzz; cancel yyy",
	         "r admit; refused zzz unknown; refused yyy unknown"},
		{"a waiting request expires", "ws a R2; node n 2; lease l a 2; ask r a 1 until=30; tick 30; finish l",
	         "r queue; expired r; returned l"},
		{"owed requests come first",
	         "ws a R2; ws b R0 M9; node n 2; lease x a 2 fixed; ask r b 1 p9, s a 1; finish x",
	         "r queue; s queue; s admit; r borrow 1; returned x"},
		{"then priority", "ws a R0 M9; ws b R0 M9; node n 1; lease x a 1; ask r a 1 p0, s b 1 p1; finish x",
	         "s queue; r queue; s borrow 1; returned x"},
		{"then priority with aging",
	         "set aging=60; ws a R0 M9; ws b R0 M9; node n 1; lease x a 1; ask r a 1 p0; tick 120; ask s b 1 p1; finish x",
	         "r queue; s queue; r borrow 1; returned x"},
		{"then the smallest debt",
	         "ws a R0 M9; ws b R0 M9; node n 2; lease x a 1; lease y b 1; ask r a 1; ask s b 1; finish y",
	         "r queue; s queue; s borrow 1; returned y"},
		{"a small one passes a large one that does not fit",
	         "ws a R0 M9; ws b R0 M9; node n 4; lease x a 2; ask r a 4; ask s b 1", "r queue; s borrow 1"},
		{"after head_wait the next units are kept for the large one",
	         "set head=60; ws a R0 M9; ws b R0 M9; node n 4; lease x a 2; ask r a 4; tick 60; ask s b 1; finish x",
	         "r queue; s queue; r borrow 4; returned x"},
		{"an owner does not wait behind another's head of the queue",
	         "set head=60; ws a R0 M9; ws b R1; node n 4; lease x a 2; ask r a 4; tick 60; ask s b 1",
	         "r queue; s admit"},
		{"later requests of the head's own workspace wait behind it, owed or not",
	         "set head=60; ws a R3 M9; ws b R0 M9; node n 4; lease x b 2 fixed; lease y a 1; ask r a 3; tick 60; ask s a 1",
	         "r queue; s queue"},
		{"enforce off admits whatever the rules say, and counts", "ws a R1 M1 off; node n 2; ask r a 4, s a 1",
	         "s admit; r admit would reject"},
		{"enforce warn says so", "ws a R1 M1 warn; node n 2; ask r a 2", "r admit would reject warn"},
		{"leases of a workspace that is not enforced are no victims",
	         "ws a R2; ws b R0 M9 off; node n 2; lease x b 2; ask r a 2", "r queue"},
		{"a GPU that is cut anew holds what it holds",
	         "ws a R2; node n 1; ask r a 1; cut n 0 7; ask s a 1 mig; finish r; cut n 0 0",
	         "r admit; s admit; returned r"},
		{"nobody comes beside who will be alone on a node when a lease has ended there",
	         "tenant t iso=node; tenant u; ws a S1 of=t; ws b M9 of=u; node n 2 shared; ask r b 1; ask s a 1; ask q b 1; "
	         "finish r; tick 1",
	         "r borrow 1; s reclaim r; order r for s; q queue; s admit; returned r"},
		{"a node to itself is not shared with anybody",
	         "tenant t iso=node; ws a S4 M9; ws b S4 M9 of=u; node n1 4 shared; node n2 4 shared; ask r a 1; ask s b 6; ask q b 4",
	         "r admit; s queue; q admit"},
		{"slices of one GPU are for one tenant that wants it so",
	         "tenant t iso=gpu; ws a S1 M9; ws b S1 M9 of=u; mig n1 7 shared; ask r a 1 mig; ask s b 1 mig",
	         "r admit; s queue"},
	};

	(void)state;
	QUOTASCRIPT_CHECK(rows);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(holds_and_orders),
		cmocka_unit_test(adoption),
		cmocka_unit_test(fences),
		cmocka_unit_test(unused_leases),
		cmocka_unit_test(enforcement_waits_for_adoption),
		cmocka_unit_test(back_off_and_exceptions),
		cmocka_unit_test(a_clock_that_is_set),
		cmocka_unit_test(leases_and_the_queue),
	};

	return cmocka_run_group_tests_name("quota over time", tests, NULL, NULL);
}

/* tests/unit/quota/test_quota_book.c - the quota book: events by names, what stays when things go, and recordings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/quota/book/quota_book.h"

#define BYTES (4u << 20)
#define POLICY                                                                                                            \
	"{\"policy\":{\"settings\":{\"burst\":2,\"grace_ns\":60000000000},\"clusters\":[\"east\"],\"models\":[\"H100\"]," \
	"\"shapes\":[{\"model\":\"H100\",\"profile\":\"1g.10gb\",\"units\":675}],"                                        \
	"\"classes\":[{\"name\":\"prod\",\"value\":100,\"preemptible\":false}],\"tenants\":[{\"name\":\"acme\"}],"        \
	"\"workspaces\":[{\"path\":\"acme/a\"},{\"path\":\"acme/b\"},{\"path\":\"acme/off\",\"enforce\":\"off\"}],"       \
	"\"shares\":[{\"workspace\":\"acme/a\",\"cluster\":\"east\",\"model\":\"H100\",\"reserved_units\":10080},"        \
	"{\"workspace\":\"acme/b\",\"cluster\":\"east\",\"model\":\"H100\",\"reserved_units\":10080}],"                   \
	"\"budgets\":[{\"tenant\":\"acme\",\"kind\":\"money\",\"amount\":10000}],"                                        \
	"\"prices\":[{\"tenant\":\"acme\",\"model\":\"H100\",\"hour_micros\":2500000}]}}"
#define GPU(uuid) "{\"uuid\":\"" uuid "\",\"model\":\"H100\"}"
#define NODE "{\"name\":\"n1\",\"cluster\":\"east\",\"tenant\":\"acme\",\"gpus\":["
#define NODES "{\"nodes\":[" NODE GPU("g0") "," GPU("g1") "," GPU("g2") "," GPU("g3") "]}]}"

struct book {
	struct quota_book *b;
	struct buf out; /* of the last step */
	int64_t now_ns;
};

static bool
try_step(struct book *k, const char *event, struct err *err)
{
	struct quota_outcome *o = NULL;

	buf_clear(&k->out);
	k->now_ns += 1000000000;
	if (!quota_book_step(k->b, k->now_ns, event, strlen(event), &o, err))
		return false;
	quota_book_outcome_json(k->b, o, &k->out);
	quota_outcome_free(o);
	return true;
}

static const char *
step(struct book *k, const char *event)
{
	struct err err = {0};

	if (!try_step(k, event, &err))
		fail_msg("%s: %s", event, err.text);
	return buf_text(&k->out);
}

static void
assert_has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in %s", part, text);
}

static int
setup(void **state)
{
	static struct book k;
	struct err err;

	k = (struct book){.now_ns = INT64_C(1800000000000000000)}; /* of 2027 */
	buf_init(&k.out, BYTES);
	assert_true(quota_book_open("{}", 2, &k.b, &err));
	(void)step(&k, POLICY);
	(void)step(&k, NODES);
	*state = &k;
	return 0;
}

static int
teardown(void **state)
{
	struct book *k = *state;

	quota_book_free(k->b);
	buf_fini(&k->out);
	return 0;
}

static struct quota_pool_figures
pool(const struct book *k)
{
	for (size_t i = 0; i < quota_pool_count(quota_book_state(k->b)); i++)
		if (quota_pool_at(quota_book_state(k->b), i).tenant == 0)
			return quota_pool_at(quota_book_state(k->b), i);
	fail_msg("there is no pool");
	return (struct quota_pool_figures){0};
}

#define ASK(id, more) "{\"submit\":[{\"id\":\"" id "\",\"workspace\":\"acme/a\"," more "}]}"

static void
a_request_that_names_what_is_not_known_is_rejected_and_does_not_spoil_its_batch(void **state)
{
	static const struct {
		const char *request, *why;
	} rows[] = {
		{"\"workspace\":\"acme/nobody\",\"gpus\":1", "unknown workspace"},
		{"\"gpus\":1", "unknown workspace"},
		{"\"workspace\":\"acme/a\",\"cluster\":\"west\",\"gpus\":1", "unknown cluster"},
		{"\"workspace\":\"acme/a\",\"model\":\"B200\",\"gpus\":1", "unknown model"},
		{"\"workspace\":\"acme/a\",\"profile\":\"9g.90gb\",\"count\":1", "no GPU was ever cut like this"},
		{"\"workspace\":\"acme/a\",\"replicas\":1,\"of\":4", "no GPU was ever cut like this"},
		{"\"workspace\":\"acme/a\",\"gpus\":1,\"class\":\"gold\"", "unknown priority class"},
		{"\"workspace\":\"acme/a\"", "gpus, profile or replicas is missing"},
		{"\"workspace\":\"acme/a\",\"gpus\":1000001", "a number is out of range"},
		{"\"workspace\":\"acme/a\",\"gpus\":\"1\"", "a number is out of range"},
		{"\"workspace\":\"acme/a\",\"gpus\":1,\"colour\":\"red\"", "a field is not known"},
		{"\"workspace\":\"acme/a\",\"gpus\":1,\"preemptible\":1", "preemptible is true or false"},
	};
	struct book *k = *state;
	char event[512], why[128];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		snprintf(
			event, sizeof(event),
			"{\"submit\":[{\"id\":\"bad%zu\",%s},{\"id\":\"good%zu\",\"workspace\":\"acme/off\",\"gpus\":1}]}",
			i, rows[i].request, i);
		snprintf(why, sizeof(why), "\"id\":\"bad%zu\",\"reason\":\"%s\"", i, rows[i].why);
		assert_has(step(k, event), why);
		snprintf(why, sizeof(why), "\"id\":\"bad%zu\",\"decision\":\"reject\"", i);
		assert_has(buf_text(&k->out), why);
		snprintf(why, sizeof(why), "\"id\":\"good%zu\",\"decision\":\"admit\"", i);
		assert_has(buf_text(&k->out), why);
	}
	assert_int_equal(quota_lease_count(quota_book_state(k->b)), ARRAY_LEN(rows));
}

static void
work_that_is_not_enforced_and_cannot_be_counted_runs_without_a_lease(void **state)
{
	struct book *k = *state;
	const char *out =
		step(k, "{\"submit\":[{\"id\":\"x\",\"workspace\":\"acme/off\",\"profile\":\"9g.90gb\",\"count\":1}]}");

	assert_has(out, "\"id\":\"x\",\"decision\":\"admit\"");
	assert_has(out, "{\"event\":\"lease returned\",\"id\":\"x\"}");
	assert_int_equal(quota_book_would_deny(k->b, quota_book_workspace(k->b, "acme/off")), 1);
	(void)step(k, NODES);
	assert_int_equal(quota_book_would_deny(k->b, quota_book_workspace(k->b, "acme/off")), 1);
}

static void
what_is_no_event_is_an_error_and_changes_nothing(void **state)
{
	static const char *const texts[] = {
		"",
		"[]",
		"{}",
		"{\"tick\":true,\"cancel\":\"x\"}",
		"{\"tick\":false}",
		"{\"explode\":true}",
		"{\"submit\":{}}",
		"{\"submit\":[{\"workspace\":\"acme/a\",\"gpus\":1}]}",
		"{\"submit\":[{\"id\":\"r\",\"workspace\":\"acme/a\",\"gpus\":1},{\"id\":\"r\",\"workspace\":\"acme/a\",\"gpus\":1}]}",
		"{\"finish\":\"\"}",
		"{\"finish\":7}",
		"{\"heartbeat\":[\"a\",7]}",
		"{\"node_lost\":\"n9\"}",
		"{\"node_lost\":[\"n1\",\"n9\"]}",
		"{\"gpu_lost\":{\"node\":\"n1\",\"gpu\":4}}",
		"{\"gpu_lost\":{\"node\":\"n1\",\"gpu\":\"g9\"}}",
		"{\"layout\":{\"node\":\"n1\",\"gpu\":0,\"slots\":[{\"profile\":\"1g.10gb\",\"units\":5041,\"count\":1}]}}",
		"{\"layout\":{\"node\":\"n1\",\"gpu\":0,\"slots\":[{\"profile\":\"1g.10gb\",\"units\":700,\"count\":1}]}}",
		"{\"exception\":{\"id\":\"x\",\"workspace\":\"acme/z\",\"cluster\":\"east\",\"model\":\"H100\",\"from_ns\":0,\"until_ns\":1}}",
		"{\"policy\":{\"settings\":{\"burst\":2},\"workspaces\":[{\"path\":\"other/a\"}]}}",
		"{\"policy\":{\"settings\":{\"burst\":-2}}}",
		"{\"policy\":{}}",
		"{\"nodes\":[" NODE "]}," NODE "]}]}",
		"{\"nodes\":[{\"name\":\"n1\"}]}",
		"{\"budgets\":[{\"tenant\":\"nobody\"}]}",
		"{\"renew\":7}",
		"{\"adoption\":{\"cluster\":\"west\",\"complete\":true}}",
		"{\"adoption\":{\"cluster\":\"east\"}}",
		"{\"adopt\":{\"id\":\"one\",\"workspace\":\"acme/a\",\"gpus\":1}}",
		"{\"adopt\":{\"id\":\"x\",\"workspace\":\"acme/z\",\"gpus\":1}}",
		"{\"adopt\":{\"id\":\"x\",\"workspace\":\"acme/a\",\"gpus\":0}}",
		"{\"adopt\":{\"id\":\"x\",\"workspace\":\"acme/a\",\"gpus\":1,\"colour\":\"red\"}}",
		"{\"adopt\":{\"id\":\"x\",\"workspace\":\"acme/a\",\"gpus\":1,\"parts\":[{\"node\":\"n1\",\"count\":2}]}}",
		"{\"adopt\":{\"id\":\"x\",\"workspace\":\"acme/a\",\"gpus\":1,\"parts\":[{\"node\":\"n1\"}]}}",
		"{\"adopt\":[]}",
		"{\"release\":{\"id\":\"one\"}}",
		"{\"release\":{\"id\":\"one\",\"lost\":1}}",
		"{\"release\":{\"lost\":true}}",
		"{\"unfence\":{\"id\":\"one\",\"parts\":[]}}",
		"{\"unfence\":{\"id\":\"one\",\"parts\":[{\"node\":\"elsewhere\",\"gpu\":0}]}}",
	};
	struct book *k = *state;
	in_place(buf) struct buf before, after;

	buf_init(&before, BYTES);
	buf_init(&after, BYTES);
	(void)step(k, ASK("one", "\"gpus\":1"));
	quota_book_write(k->b, &before);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct err err = {0};

		if (try_step(k, texts[i], &err))
			fail_msg("taken: %s", texts[i]);
		assert_true(err.kind == ERR_INVALID || err.kind == ERR_CONFLICT);
		buf_clear(&after);
		quota_book_write(k->b, &after);
		assert_string_equal(buf_text(&before), buf_text(&after));
	}
}

static void
a_class_gives_priority_and_says_whether_it_may_be_preempted(void **state)
{
	struct book *k = *state;
	struct quota_saved saved;

	(void)step(k, ASK("one", "\"gpus\":1,\"class\":\"prod\""));
	quota_save(quota_book_state(k->b), &saved);
	assert_int_equal(saved.world.lease_count, 1);
	assert_int_equal(saved.world.leases[0].priority, 100);
	assert_false(saved.world.leases[0].preemptible);
	quota_saved_fini(&saved);
}

static void
a_request_is_priced_by_how_long_it_is_expected_to_run(void **state)
{
	struct book *k = *state;
	struct quota_saved saved;

	/* Two GPUs for 40 minutes at 2.50 an hour are 3.3334, rounded up. */
	(void)step(k, ASK("one", "\"gpus\":2,\"expected_s\":2400"));
	quota_save(quota_book_state(k->b), &saved);
	assert_int_equal(saved.world.leases[0].cost, 334);
	quota_saved_fini(&saved);
	assert_has(step(k, "{\"budgets\":[{\"tenant\":\"acme\",\"kind\":\"money\",\"consumed\":9600}]}"),
	           "\"verdicts\":[]");
	/* 96.00 consumed, 3.34 committed, 2.50 more: above 100.00. */
	assert_has(step(k, "{\"submit\":[{\"id\":\"two\",\"workspace\":\"acme/b\",\"gpus\":1,\"expected_s\":3600}]}"),
	           "{\"rule\":\"budget\",\"ok\":false,\"need\":101.84,\"have\":100,");
	/* The policy comes again and says nothing about what was consumed. */
	(void)step(k, POLICY);
	assert_has(step(k, "{\"submit\":[{\"id\":\"3\",\"workspace\":\"acme/b\",\"gpus\":1,\"expected_s\":3600}]}"),
	           "\"need\":101.84,\"have\":100,");
}

static void
a_gpu_keeps_its_place_by_its_uuid(void **state)
{
	struct book *k = *state;

	(void)step(k, "{\"nodes\":[" NODE GPU("g3") "," GPU("g4") "," GPU("g1") "]}]}");
	assert_int_equal(quota_book_gpu(k->b, 0, "g1"), 1);
	assert_int_equal(quota_book_gpu(k->b, 0, "g3"), 3);
	assert_int_equal(quota_book_gpu(k->b, 0, "g4"), 4);
	assert_int_equal(pool(k).declared, 3 * UNITS_PER_GPU);
	(void)step(k, NODES);
	assert_int_equal(pool(k).declared, 4 * UNITS_PER_GPU);
}

static void
what_was_declared_and_not_seen_yet_becomes_the_gpu_that_is_seen(void **state)
{
	struct book *k = *state;

	(void)step(k, "{\"nodes\":[{\"name\":\"n2\",\"cluster\":\"east\",\"tenant\":\"acme\",\"gpus\":["
	              "{\"model\":\"H100\"},{\"model\":\"H100\"}]}]}");
	assert_int_equal(pool(k).declared, 2 * UNITS_PER_GPU);
	assert_int_equal(quota_book_gpu(k->b, 1, ""), 0);
	(void)step(k, "{\"nodes\":[{\"name\":\"n2\",\"cluster\":\"east\",\"tenant\":\"acme\",\"gpus\":[" GPU(
			      "x") "," GPU("y") "]}]}");
	assert_int_equal(quota_book_gpu(k->b, 1, "y"), 1);
	assert_int_equal(pool(k).declared, 2 * UNITS_PER_GPU);
}

static void
leases_on_a_node_that_is_gone_stay_counted(void **state)
{
	struct book *k = *state;

	(void)step(k, ASK("one", "\"gpus\":2"));
	(void)step(k, "{\"nodes\":[]}");
	assert_int_equal(pool(k).declared, 0);
	assert_int_equal(pool(k).leased, 2 * UNITS_PER_GPU);
	assert_int_equal(pool(k).excess, 2 * UNITS_PER_GPU);
	(void)step(k, NODES);
	assert_int_equal(pool(k).excess, 0);
	assert_int_equal(pool(k).free, 2 * UNITS_PER_GPU);
	(void)step(k, "{\"finish\":\"one\"}");
	assert_int_equal(pool(k).free, 4 * UNITS_PER_GPU);
}

static void
a_node_that_changes_hands_takes_no_lease_along(void **state)
{
	struct book *k = *state;

	(void)step(k, ASK("one", "\"gpus\":2"));
	(void)step(k, "{\"submit\":[{\"id\":\"all\",\"workspace\":\"acme/b\",\"gpus\":4}]}");
	(void)step(k, "{\"nodes\":[{\"name\":\"n1\",\"cluster\":\"east\",\"gpus\":[" GPU("g0") "," GPU("g1") "]}]}");
	assert_int_equal(pool(k).declared, 0);
	assert_int_equal(pool(k).leased, 2 * UNITS_PER_GPU);
	assert_int_equal(pool(k).excess, 2 * UNITS_PER_GPU);
	(void)step(k, "{\"finish\":\"one\"}");
	assert_int_equal(pool(k).leased, 0);
}

static void
a_gpu_may_be_cut_into_what_was_never_seen_before(void **state)
{
	struct book *k = *state;

	(void)step(
		k,
		"{\"layout\":{\"node\":\"n1\",\"gpu\":\"g1\",\"slots\":[{\"profile\":\"3g.40gb\",\"units\":2340,\"count\":2}]}}");
	assert_int_equal(pool(k).live, 3 * UNITS_PER_GPU + 2 * 2340);
	assert_has(step(k, ASK("one", "\"profile\":\"3g.40gb\",\"count\":1")), "\"decision\":\"admit\"");
}

static void
who_is_not_in_the_policy_any_more_gets_nothing_and_keeps_what_it_has(void **state)
{
	struct book *k = *state;

	(void)step(k, ASK("one", "\"gpus\":1"));
	(void)step(
		k,
		"{\"policy\":{\"settings\":{\"burst\":2},\"tenants\":[{\"name\":\"acme\"}],\"workspaces\":[{\"path\":\"acme/b\"}]}}");
	assert_has(step(k, ASK("two", "\"gpus\":1")), "\"reason\":\"unknown workspace\"");
	assert_int_equal(pool(k).leased, UNITS_PER_GPU);
	assert_has(step(k, "{\"submit\":[{\"id\":\"3\",\"workspace\":\"acme/b\",\"gpus\":1,\"class\":\"prod\"}]}"),
	           "\"reason\":\"unknown priority class\"");
	(void)step(k, POLICY);
	assert_has(step(k, ASK("four", "\"gpus\":1,\"class\":\"prod\"")), "\"decision\":\"admit\"");
}

static void
a_lease_is_bound_where_it_was_seen(void **state)
{
	struct book *k = *state;
	struct quota_saved saved;

	(void)step(k, ASK("one", "\"gpus\":2"));
	(void)step(k, "{\"confirm\":{\"id\":\"one\",\"parts\":[{\"node\":\"n1\",\"gpu\":\"g3\",\"count\":1},"
	              "{\"node\":\"n1\",\"gpu\":0,\"count\":1}]}}");
	quota_save(quota_book_state(k->b), &saved);
	assert_int_equal(saved.world.leases[0].state, QUOTA_CONFIRMED);
	assert_int_equal(saved.world.leases[0].parts[0].gpu, 0);
	assert_int_equal(saved.world.leases[0].parts[1].gpu, 3);
	quota_saved_fini(&saved);
	assert_has(step(k, "{\"heartbeat\":[\"one\",\"two\"]}"), "\"id\":\"two\",\"reason\":\"unknown\"");
}

/* ---- schedulers ----------------------------------------------------------------------------------------------------------- */

#define ADOPT(id, more) "{\"adopt\":{\"id\":\"" id "\",\"workspace\":\"acme/b\"," more "}}"

/* The book goes on from its text. */
static void
open_again(struct book *k)
{
	in_place(buf) struct buf text;
	struct err err = {0};

	buf_init(&text, BYTES);
	quota_book_write(k->b, &text);
	quota_book_free(k->b);
	k->b = NULL;
	if (!quota_book_open(buf_text(&text), text.len, &k->b, &err))
		fail_msg("%s", err.text);
}

static struct quota_lease
first_lease(const struct book *k)
{
	struct quota_saved saved;
	struct quota_lease ret;

	quota_save(quota_book_state(k->b), &saved);
	assert_true(saved.world.lease_count > 0);
	ret = saved.world.leases[0];
	quota_saved_fini(&saved);
	return ret;
}

static void
a_request_is_as_old_as_its_scheduler_says_within_bounds(void **state)
{
	static const int64_t day_ns = INT64_C(86400000000000);
	struct book *k = *state;
	struct quota_saved saved;
	char event[512];

	(void)step(k, ASK("all", "\"gpus\":4"));
	for (int i = 0; i < 3; i++) {
		static const int64_t before_ns[] = {86400000000000, -5, INT64_C(91) * 86400000000000};

		snprintf(event, sizeof(event),
		         "{\"submit\":[{\"id\":\"r%d\",\"workspace\":\"acme/a\",\"gpus\":1,\"queued_since_ns\":%lld}]}",
		         i, (long long)(k->now_ns + 1000000000 - before_ns[i]));
		assert_has(step(k, event), "\"decision\":\"queue\"");
	}
	quota_save(quota_book_state(k->b), &saved);
	assert_int_equal(saved.world.waiting_count, 3);
	assert_string_equal(saved.world.waiting[0].id, "r2");
	assert_int_equal(saved.world.waiting[0].submitted_ns, k->now_ns - QUOTA_QUEUED_MAX_NS);
	assert_string_equal(saved.world.waiting[1].id, "r0");
	assert_int_equal(saved.world.waiting[1].submitted_ns, k->now_ns - 2000000000 - day_ns);
	assert_string_equal(saved.world.waiting[2].id, "r1");
	assert_int_equal(saved.world.waiting[2].submitted_ns, k->now_ns - 1000000000);
	quota_saved_fini(&saved);
	assert_has(step(k, ASK("bad", "\"gpus\":1,\"queued_since_ns\":-1")), "a number is out of range");
}

static void
what_runs_is_adopted_where_it_runs_and_stays_so(void **state)
{
	struct book *k = *state;
	struct quota_lease l;

	assert_has(step(k,
	                ADOPT("x",
	                      "\"gpus\":3,\"started_ns\":1000,\"parts\":[{\"node\":\"n1\",\"gpu\":\"g2\",\"count\":1},"
	                      "{\"node\":\"n1\",\"count\":1},{\"node\":\"elsewhere\",\"count\":1}]")),
	           "\"id\":\"x\",\"decision\":\"admit\"");
	assert_has(buf_text(&k->out), "\"adopted\":true");
	assert_has(buf_text(&k->out), "{\"event\":\"adopted\",\"id\":\"x\"}");
	assert_has(buf_text(&k->out), "{\"event\":\"refused\",\"id\":\"x\",\"reason\":\"place\"}");
	open_again(k);
	l = first_lease(k);
	assert_true(l.adopted);
	assert_int_equal(l.adopted_ns, k->now_ns);
	assert_int_equal(l.since_ns, 1000);
	assert_int_equal(l.state, QUOTA_CONFIRMED);
	assert_int_equal(l.part_count, 2);
	assert_int_equal(pool(k).leased, 3 * UNITS_PER_GPU);
	assert_int_equal(pool(k).excess, UNITS_PER_GPU);
}

static void
what_runs_on_unknown_nodes_takes_no_known_device(void **state)
{
	struct book *k = *state;
	char event[512];

	snprintf(event, sizeof(event),
	         ADOPT("x", "\"gpus\":2,\"queued_since_ns\":%lld,\"parts\":[{\"node\":\"elsewhere\",\"count\":2}]"),
	         (long long)k->now_ns - 1000);
	assert_has(step(k, event), "{\"event\":\"refused\",\"id\":\"x\",\"reason\":\"place\"}");
	assert_int_equal(first_lease(k).part_count, 0);
	assert_int_equal(first_lease(k).since_ns,
	                 k->now_ns); /* it ran since now at the latest; when it was queued says nothing of that */
	assert_int_equal(pool(k).excess, 2 * UNITS_PER_GPU);
}

static void
adoption_is_declared_by_cluster_and_holds_a_switch_back(void **state)
{
	static const char on[] =
		"{\"policy\":{\"settings\":{\"burst\":2},\"clusters\":[\"east\"],\"models\":[\"H100\"],"
		"\"tenants\":[{\"name\":\"acme\"}],\"workspaces\":[{\"path\":\"acme/off\"}]}}";
	static const char ask[] = "{\"submit\":[{\"id\":\"r\",\"workspace\":\"acme/off\",\"gpus\":9}]}";
	struct book *k = *state;
	const struct quota_adoption *a;

	assert_null(quota_adoption_of(quota_book_state(k->b), 0));
	(void)step(k, "{\"adoption\":{\"cluster\":\"east\",\"complete\":false}}");
	(void)step(k, on);
	open_again(k);
	assert_has(step(k, ask), "\"decision\":\"admit\"");
	(void)step(k, NODES);
	assert_int_equal(quota_enforce_in(quota_book_state(k->b), quota_book_workspace(k->b, "acme/off"), 0),
	                 QUOTA_ENFORCE_OFF);
	(void)step(k, "{\"adoption\":{\"cluster\":\"east\",\"complete\":true}}");
	open_again(k);
	a = quota_adoption_of(quota_book_state(k->b), 0);
	assert_non_null(a);
	assert_true(a->complete);
	assert_int_equal(a->switched_ns, k->now_ns);
	/* a workspace that comes later has no adopted work: the others' is not spared once more */
	(void)step(
		k,
		"{\"policy\":{\"settings\":{\"burst\":2},\"clusters\":[\"east\"],\"models\":[\"H100\"],\"tenants\":[{\"name\":\"acme\"}],"
		"\"workspaces\":[{\"path\":\"acme/off\"},{\"path\":\"acme/new\"}]}}");
	assert_true(quota_adoption_of(quota_book_state(k->b), 0)->switched_ns < k->now_ns);
	assert_int_equal(quota_enforce_in(quota_book_state(k->b), quota_book_workspace(k->b, "acme/off"), 0),
	                 QUOTA_ENFORCE_ON);
}

/* Over a restart, until telemetry or an inventory without its GPU ends it. */
static void
what_is_lost_is_fenced_in_the_text_too(void **state)
{
	struct book *k = *state;
	in_place(buf) struct buf text;

	buf_init(&text, BYTES);
	(void)step(k, ASK("one", "\"gpus\":1"));
	assert_has(step(k, "{\"release\":{\"id\":\"one\",\"lost\":true}}"), "{\"event\":\"fenced\",\"id\":\"one\"}");
	assert_has(buf_text(&k->out), "{\"event\":\"lease returned\",\"id\":\"one\"}");
	quota_book_write(k->b, &text);
	assert_has(buf_text(&text), ",\"fences\":[{\"id\":\"one\"");
	open_again(k);
	assert_int_equal(pool(k).leased, 0);
	assert_int_equal(pool(k).fenced, UNITS_PER_GPU);
	assert_int_equal(pool(k).excess, 0);
	assert_has(step(k, "{\"unfence\":\"one\"}"), "{\"event\":\"unfenced\",\"id\":\"one\"}");
	assert_int_equal(pool(k).fenced, 0);
	(void)step(k, ASK("two", "\"gpus\":1"));
	(void)step(k, "{\"release\":{\"id\":\"two\",\"lost\":true}}");
	assert_has(step(k, "{\"nodes\":[]}"), "{\"event\":\"unfenced\",\"id\":\"two\"}");
	assert_int_equal(pool(k).fenced, 0);
	open_again(k);
}

/* The policy of this test has neither setting: it is said here. */
static void
that_a_lease_was_not_used_is_in_the_text_too(void **state)
{
	struct book *k = *state;
	in_place(buf) struct buf text, policy;

	buf_init(&text, BYTES);
	buf_init(&policy, BYTES);
	buf_str(&policy, "{\"policy\":{\"settings\":{\"confirm_ns\":60000000000,\"unused_most_ns\":3600000000000},");
	buf_str(&policy, strchr(strstr(POLICY, "\"settings\""), '}') + 2);
	(void)step(k, buf_text(&policy));
	(void)step(k, ASK("one", "\"gpus\":1,\"reason\":\"Resources\""));
	quota_book_write(k->b, &text);
	assert_has(buf_text(&text), "\"reason\":\"Resources\"");
	k->now_ns += INT64_C(60000000000);
	assert_has(step(k, "{\"tick\":true}"), "{\"event\":\"lease expired\",\"id\":\"one\"}");
	buf_clear(&text);
	quota_book_write(k->b, &text);
	assert_has(buf_text(&text), ",\"unused\":[{");
	assert_has(buf_text(&text), "\"times\":1");
	open_again(k);
	(void)step(k, ASK("two", "\"gpus\":1"));
	(void)step(k, "{\"confirm\":\"two\"}");
	buf_clear(&text);
	quota_book_write(k->b, &text);
	assert_null(strstr(buf_text(&text), "\"unused\":["));
	assert_has(step(k, ASK("bad", "\"gpus\":1,\"reason\":7")), "a field is no text");
}

/* A book that was written before there were such things has none of their members. */
static void
a_book_without_them_is_written_as_before(void **state)
{
	static const char *const members[] = {"adopt", "switch", "renewed", "fence", "unused", "reason"};
	struct book *k = *state;
	in_place(buf) struct buf text;

	buf_init(&text, BYTES);
	(void)step(k, ASK("one", "\"gpus\":1"));
	(void)step(k, ASK("two", "\"gpus\":4"));
	quota_book_write(k->b, &text);
	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		if (strstr(buf_text(&text), members[i]))
			fail_msg("%s is in %s", members[i], buf_text(&text));
}

/* ---- recordings ---------------------------------------------------------------------------------------------------------- */

static void
count_told(void *to, const struct quota_recorded *told)
{
	(void)told;
	++*(int *)to;
}

static bool
replay(const char *text, struct quota_recording_sum *ret, int *told, struct err *err)
{
	*told = 0;
	return quota_recording_replay("r.json", text, strlen(text), count_told, told, ret, err);
}

static void
what_was_recorded_comes_again_and_what_was_changed_is_found(void **state)
{
	static const char *const events[] = {POLICY, NODES, ASK("one", "\"gpus\":1"), "{\"finish\":\"one\"}"};
	in_place(buf) struct buf text;
	struct quota_recording_sum sum;
	struct quota_book *b = NULL;
	struct err err = {0};
	char *at;
	int told;

	(void)state;
	buf_init(&text, BYTES);
	assert_true(quota_book_open("{}", 2, &b, &err));
	buf_str(&text, "{\"recording\":1,\"state\":{},\"state_seq\":0,\"events\":[");
	for (size_t i = 0; i < ARRAY_LEN(events); i++) {
		struct quota_outcome *o = NULL;

		assert_true(quota_book_step(b, (int64_t)i * 1000, events[i], strlen(events[i]), &o, &err));
		buf_printf(&text, "%s{\"seq\":%zu,\"at_ns\":%zu,\"event\":%s,\"outcome\":", i > 0 ? "," : "", i + 1,
		           i * 1000, events[i]);
		quota_book_outcome_json(b, o, &text);
		buf_char(&text, '}');
		quota_outcome_free(o);
	}
	quota_book_free(b);
	buf_str(&text, "]}");
	assert_true(quota_recording_is(buf_text(&text), text.len));
	assert_true(replay(buf_text(&text), &sum, &told, &err));
	assert_int_equal(told, 4);
	assert_int_equal(sum.compared, 4);
	assert_int_equal(sum.differ, 0);
	at = strstr(text.data, "\"decision\":\"admit\"");
	memcpy(at, "\"decision\":\"queue\"", 18);
	assert_true(replay(buf_text(&text), &sum, &told, &err));
	assert_int_equal(sum.differ, 1);
	at = strstr(text.data, "{\"seq\":3");
	at[7] = '4';
	assert_false(replay(buf_text(&text), &sum, &told, &err));
	assert_has(err.text, "event 3: its seq is 4");
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_request_that_names_what_is_not_known_is_rejected_and_does_not_spoil_its_batch),
		TEST(work_that_is_not_enforced_and_cannot_be_counted_runs_without_a_lease),
		TEST(what_is_no_event_is_an_error_and_changes_nothing),
		TEST(a_class_gives_priority_and_says_whether_it_may_be_preempted),
		TEST(a_request_is_priced_by_how_long_it_is_expected_to_run),
		TEST(a_gpu_keeps_its_place_by_its_uuid),
		TEST(what_was_declared_and_not_seen_yet_becomes_the_gpu_that_is_seen),
		TEST(leases_on_a_node_that_is_gone_stay_counted),
		TEST(a_node_that_changes_hands_takes_no_lease_along),
		TEST(a_gpu_may_be_cut_into_what_was_never_seen_before),
		TEST(who_is_not_in_the_policy_any_more_gets_nothing_and_keeps_what_it_has),
		TEST(a_lease_is_bound_where_it_was_seen),
		TEST(a_request_is_as_old_as_its_scheduler_says_within_bounds),
		TEST(what_runs_is_adopted_where_it_runs_and_stays_so),
		TEST(what_runs_on_unknown_nodes_takes_no_known_device),
		TEST(adoption_is_declared_by_cluster_and_holds_a_switch_back),
		TEST(what_is_lost_is_fenced_in_the_text_too),
		TEST(that_a_lease_was_not_used_is_in_the_text_too),
		TEST(a_book_without_them_is_written_as_before),
		cmocka_unit_test(what_was_recorded_comes_again_and_what_was_changed_is_found),
	};

	return cmocka_run_group_tests_name("quota_book", tests, NULL, NULL);
}

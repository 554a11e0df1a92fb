/* tests/unit/quota/test_quota_loop.c - the closed loop: what the book is told of what telemetry shows, and what differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/quota/loop/quota_loop.h"

#define BYTES (4u << 20)
#define S INT64_C(1000000000)
#define START (1800000000 * S) /* of 2027 */

#define POLICY                                                                                                                       \
	"{\"policy\":{\"settings\":{\"burst\":2,\"grace_ns\":60000000000,\"confirm_ns\":600000000000,\"silence_ns\":300000000000},"  \
	"\"clusters\":[\"east\"],\"models\":[\"H100\"],\"tenants\":[{\"name\":\"acme\"},{\"name\":\"bank\",\"isolation\":\"gpu\"}]," \
	"\"workspaces\":[{\"path\":\"acme/a\"},{\"path\":\"acme/b\"},{\"path\":\"bank/x\"}],"                                        \
	"\"shares\":[{\"workspace\":\"acme/a\",\"cluster\":\"east\",\"model\":\"H100\",\"reserved_units\":10080},"                   \
	"{\"workspace\":\"acme/b\",\"cluster\":\"east\",\"model\":\"H100\",\"reserved_units\":10080}]}}"

/* Two nodes of acme with two GPUs each, and what is on them. */
struct world {
	struct quota_book *b;
	int64_t now_ns;
	struct quota_pace pace; /* of the last look that was followed */
	struct quota_seen_slot whole[1], cut[1];
	struct quota_seen_gpu gpus[2][2];
	struct quota_seen_node nodes[2];
	struct quota_seen_holder holders[8];
	struct quota_workload workloads[4];
	struct quota_idle idle[2];
	struct quota_idle_rule rules[1];
	struct quota_observed in;
	struct quota_loop_out out;
	struct buf text;
};

/* ---- saying it ---------------------------------------------------------------------------------------------------------- */

static const char *
look(struct world *k)
{
	quota_loop_out_fini(&k->out);
	for (size_t i = 0; i < 2; i++)
		k->nodes[i].heard_ns = k->nodes[i].silent ? k->nodes[i].heard_ns : k->now_ns;
	quota_loop(k->b, &k->in, k->now_ns, &k->out);
	buf_clear(&k->text);
	for (size_t i = 0; i < k->out.event_count; i++)
		buf_printf(&k->text, "%s%s", i > 0 ? " " : "", k->out.events[i].text);
	return buf_text(&k->text);
}

static void
tell(struct world *k, const char *event)
{
	struct quota_outcome *o = NULL;
	struct err err = {0};

	if (!quota_book_step(k->b, k->now_ns, event, strlen(event), &o, &err))
		fail_msg("%s: %s", event, err.text);
	quota_outcome_free(o);
}

/* Looks, and tells the book what is found. */
static void
settle(struct world *k)
{
	(void)look(k);
	for (size_t i = 0; i < k->out.event_count; i++)
		tell(k, k->out.events[i].text);
}

static void
later(struct world *k, int64_t seconds)
{
	k->now_ns += seconds * S;
}

static void
hold(struct world *k, int32_t node, int gpu, const char *workspace, const char *pod)
{
	k->holders[k->in.holder_count++] = (struct quota_seen_holder){.node = node,
	                                                              .gpu = k->gpus[node][gpu].uuid,
	                                                              .device = k->gpus[node][gpu].uuid,
	                                                              .replica = -1,
	                                                              .profile = "",
	                                                              .workspace = workspace,
	                                                              .ns = "team",
	                                                              .pod = pod,
	                                                              .pod_uid = "",
	                                                              .slurm_job = "",
	                                                              .holds = true};
}

static void
known_as(struct world *k, const char *lease, const char *pod)
{
	k->workloads[k->in.workload_count++] = (struct quota_workload){
		.lease = lease, .ns = "team", .pod = pod, .pod_uid = "", .slurm_job = "", .changed_ns = k->now_ns};
}

static const char *
anomaly(const struct world *k, const char *kind)
{
	for (size_t i = 0; i < k->out.anomaly_count; i++)
		if (strcmp(k->out.anomalies[i].kind, kind) == 0)
			return k->out.anomalies[i].subject;
	return "";
}

static int
setup(void **state)
{
	static struct world k;
	struct err err;

	k = (struct world){.now_ns = START};
	buf_init(&k.text, BYTES);
	k.whole[0] = (struct quota_seen_slot){"", 0, 1, UNITS_PER_GPU};
	k.cut[0] = (struct quota_seen_slot){"1g.10gb", 0, 7, 675};
	for (int n = 0; n < 2; n++) {
		for (int g = 0; g < 2; g++)
			k.gpus[n][g] = (struct quota_seen_gpu){.uuid = n == 0   ? g == 0 ? "g0" : "g1"
			                                               : g == 0 ? "g2"
			                                                        : "g3",
			                                       .model = "H100",
			                                       .known = true,
			                                       .slots = k.whole,
			                                       .slot_count = 1};
		k.nodes[n] = (struct quota_seen_node){.name = n == 0 ? "n0" : "n1",
		                                      .cluster = "east",
		                                      .tenant = "acme",
		                                      .gpus = k.gpus[n],
		                                      .gpu_count = 2};
	}
	k.in = (struct quota_observed){.nodes = k.nodes,
	                               .node_count = 2,
	                               .holders = k.holders,
	                               .workloads = k.workloads,
	                               .idle = k.idle,
	                               .idle_rules = k.rules,
	                               .in_service = true};
	assert_true(quota_book_open("{}", 2, &k.b, &err));
	tell(&k, POLICY);
	settle(&k);
	*state = &k;
	return 0;
}

static int
teardown(void **state)
{
	struct world *k = *state;

	quota_loop_out_fini(&k->out);
	quota_book_free(k->b);
	buf_fini(&k->text);
	return 0;
}

#define ASK(id, workspace, gpus) \
	"{\"submit\":[{\"id\":\"" id "\",\"workspace\":\"" workspace "\",\"cluster\":\"east\",\"gpus\":" gpus "}]}"

/* ---- 1 -------------------------------------------------------------------------------------------------------------------- */

static void
what_is_known_already_is_not_told_again(void **state)
{
	struct world *k = *state;

	assert_int_equal(quota_book_node_count(k->b), 2);
	assert_string_equal(look(k), "");
}

static void
a_new_gpu_a_gone_one_and_another_owner_are_told_as_the_whole_inventory(void **state)
{
	struct world *k = *state;

	k->gpus[1][1].uuid = "g9";
	assert_non_null(strstr(look(k), "{\"nodes\":[{\"name\":\"n0\""));
	settle(k);
	assert_string_equal(look(k), "");
	k->nodes[1].gpu_count = 1;
	assert_non_null(strstr(look(k), "{\"nodes\":["));
	settle(k);
	assert_string_equal(look(k), "");
	k->nodes[1].tenant = "";
	assert_non_null(strstr(look(k), "{\"nodes\":["));
	settle(k);
	assert_string_equal(look(k), "");
}

static void
a_silent_node_is_lost_and_its_layout_is_remembered_until_it_is_back(void **state)
{
	struct world *k = *state;

	k->gpus[1][0].slots = k->cut;
	settle(k);
	k->nodes[1].silent = true;
	k->gpus[1][0].known = k->gpus[1][1].known = false;
	assert_string_equal(look(k), "{\"node_lost\":[\"n1\"]}");
	settle(k);
	assert_string_equal(look(k), "");
	/* Something else changes while it is silent: how it was cut is told with it. */
	k->gpus[0][0].uuid = "g9";
	assert_non_null(
		strstr(look(k), "\"uuid\":\"g2\",\"slots\":[{\"count\":7,\"profile\":\"1g.10gb\",\"units\":675}]"));
	settle(k);
	k->nodes[1].silent = false;
	k->gpus[1][0].known = k->gpus[1][1].known = true;
	assert_string_equal(look(k), "{\"node_back\":[\"n1\"]}");
}

static void
a_gpu_that_is_cut_otherwise_or_lost_is_told_alone(void **state)
{
	struct world *k = *state;

	k->gpus[0][1].slots = k->cut;
	assert_string_equal(look(k),
	                    "{\"layout\":{\"node\":\"n0\",\"gpu\":\"g1\",\"model\":\"H100\",\"slots\":[{\"count\":7,"
	                    "\"profile\":\"1g.10gb\",\"units\":675}]}}");
	settle(k);
	assert_string_equal(look(k), "");
	k->gpus[0][1].lost = true;
	assert_string_equal(look(k), "{\"gpu_lost\":{\"node\":\"n0\",\"gpu\":\"g1\"}}");
	settle(k);
	k->gpus[0][1].lost = false;
	assert_string_equal(look(k), "{\"gpu_back\":{\"node\":\"n0\",\"gpu\":\"g1\"}}");
}

static void
a_node_in_maintenance_is_lost_although_it_speaks(void **state)
{
	struct world *k = *state;

	k->nodes[0].maintenance = true;
	assert_string_equal(look(k), "{\"node_lost\":[\"n0\"]}");
}

static void
what_is_declared_and_was_never_seen_is_inventory_too(void **state)
{
	struct world *k = *state;

	k->nodes[1].silent = true;
	k->gpus[1][0] = (struct quota_seen_gpu){.uuid = "", .model = "H100", .slots = k->whole, .slot_count = 1};
	k->gpus[1][1] = k->gpus[1][0];
	settle(k);
	assert_string_equal(look(k), "");
	assert_int_equal(quota_pool_at(quota_book_state(k->b), 0).declared, 4 * UNITS_PER_GPU);
	assert_int_equal(quota_pool_at(quota_book_state(k->b), 0).live, 2 * UNITS_PER_GPU);
}

/* ---- 2 to 5 ----------------------------------------------------------------------------------------------------------------- */

static void
a_lease_is_confirmed_where_its_workload_is_seen_by_its_identity(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	known_as(k, "one", "p1");
	later(k, 5);
	assert_string_equal(look(k), "");
	/* Its plan is on another node. */
	hold(k, 1, 1, "acme/a", "p1");
	assert_string_equal(look(k),
	                    "{\"confirm\":{\"id\":\"one\",\"parts\":[{\"node\":\"n1\",\"gpu\":1,\"count\":1}]}}");
	settle(k);
	assert_string_equal(look(k), "");
}

static void
a_lease_of_several_workloads_is_seen_by_any_of_them_and_is_empty_when_none_is_seen(void **state)
{
	static const struct quota_identity pods[] = {{.pod_uid = "u1", .slurm_job = ""},
	                                             {.pod_uid = "u2", .slurm_job = ""}};
	struct world *k = *state;

	tell(k, ASK("gang", "acme/a", "2"));
	known_as(k, "gang", "");
	k->workloads[0].more = pods;
	k->workloads[0].more_count = ARRAY_LEN(pods);
	later(k, 5);
	hold(k, 0, 0, "acme/a", "other"); /* of the same workspace, but none of them */
	assert_string_equal(look(k), "");
	hold(k, 1, 1, "acme/a", "late");
	k->holders[1].pod_uid = "u2";
	settle(k);
	tell(k, "{\"release\":\"gang\"}");
	k->workloads[0].changed_ns = k->now_ns;
	later(k, 5);
	assert_string_equal(look(k), "");
	k->holders[1].pod_uid = "u1"; /* the second has ended, and the first has begun */
	assert_string_equal(look(k), "");
	k->holders[1].pod_uid = "u3";
	assert_string_equal(look(k), "{\"empty\":[\"gang\"]}");
}

static void
a_lease_is_seen_by_a_slurm_job_among_its_workloads(void **state)
{
	static const struct quota_identity jobs[] = {{.pod_uid = "", .slurm_job = "4711"}};
	struct world *k = *state;

	tell(k, ASK("job", "acme/a", "1"));
	known_as(k, "job", "");
	k->workloads[0].more = jobs;
	k->workloads[0].more_count = ARRAY_LEN(jobs);
	later(k, 5);
	hold(k, 0, 0, "acme/a", "");
	k->holders[0].slurm_job = "471";
	assert_string_equal(look(k), "");
	k->holders[0].slurm_job = "4711";
	assert_string_equal(look(k), "{\"confirm\":\"job\"}");
}

static void
a_lease_without_identity_is_seen_by_what_its_workspace_holds(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "2"));
	later(k, 5);
	hold(k, 0, 0, "acme/b", "other");
	assert_string_equal(look(k), "");
	k->holders[0].workspace = "acme/a";
	assert_string_equal(look(k), "{\"confirm\":\"one\"}");
	hold(k, 0, 1, "acme/a", "other");
	assert_string_equal(look(k), "{\"confirm\":\"one\"}");
	assert_string_equal(anomaly(k, "unleased"), "");
}

static void
what_was_heard_before_the_lease_was_admitted_does_not_confirm_it(void **state)
{
	struct world *k = *state;

	later(k, 5);
	hold(k, 0, 0, "acme/a", "p");
	tell(k, ASK("one", "acme/a", "1"));
	assert_string_equal(look(k), "");
	later(k, 1);
	assert_non_null(strstr(look(k), "{\"confirm\":"));
}

static void
devices_that_another_lease_has_are_not_bound(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	tell(k, ASK("two", "acme/b", "1"));
	known_as(k, "one", "p1");
	known_as(k, "two", "p2");
	later(k, 5);
	hold(k, 0, 1, "acme/a", "p1"); /* where two is planned */
	assert_string_equal(look(k), "{\"confirm\":\"one\"}");
}

static void
a_lease_that_is_seen_has_a_heartbeat_in_time_and_a_suspect_one_at_once(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p");
	settle(k);
	later(k, 90);
	assert_string_equal(look(k), "");
	later(k, 10);
	assert_string_equal(look(k), "{\"heartbeat\":[\"one\"]}");
	later(k, 300);
	tell(k, "{\"tick\":true}");
	assert_string_equal(look(k), "{\"heartbeat\":[\"one\"]}");
}

static void
a_released_lease_is_empty_only_when_its_devices_are_seen_empty(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	known_as(k, "one", "p1");
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p1");
	settle(k);
	tell(k, "{\"release\":\"one\"}");
	k->workloads[0].changed_ns = k->now_ns;
	assert_string_equal(look(k), "");
	later(k, 5);
	assert_null(strstr(look(k), "empty"));
	k->in.holder_count = 0;
	assert_string_equal(look(k), "{\"empty\":[\"one\"]}");
	k->nodes[0].silent = true;
	assert_null(strstr(look(k), "empty"));
	k->nodes[0].silent = false;
	k->nodes[0].partial = true;
	assert_null(strstr(look(k), "empty"));
	k->nodes[0].partial = false;
	k->gpus[0][0].known = false;
	assert_null(strstr(look(k), "empty"));
}

static void
a_lease_on_a_silent_node_becomes_suspect_and_stays_counted(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p");
	settle(k);
	k->nodes[0].silent = true;
	k->gpus[0][0].known = k->gpus[0][1].known = false;
	k->in.holder_count = 0;
	later(k, 301);
	assert_string_equal(look(k), "{\"node_lost\":[\"n0\"]} {\"tick\":true}");
	settle(k);
	later(k, 100);
	assert_string_equal(look(k), "");
	assert_int_equal(quota_lease_count(quota_book_state(k->b)), 1);
	/* It speaks again, and nothing is there. */
	k->nodes[0].silent = false;
	k->gpus[0][0].known = k->gpus[0][1].known = true;
	settle(k);
	assert_int_equal(quota_lease_count(quota_book_state(k->b)), 0);
}

static void
a_fence_ends_when_its_node_speaks_and_shows_nothing_of_the_lost_work(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "2"));
	known_as(k, "one", "p1");
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p1");
	hold(k, 0, 1, "acme/a", "p1");
	settle(k);
	k->nodes[0].silent = true;
	k->gpus[0][0].known = k->gpus[0][1].known = false;
	later(k, 60);
	settle(k);
	tell(k, "{\"release\":{\"id\":\"one\",\"lost\":true}}");
	k->in.workload_count = 0;
	later(k, 60);
	assert_string_equal(look(k), "");
	/* The node is back, and the work goes on on one GPU. */
	k->nodes[0].silent = false;
	k->gpus[0][0].known = k->gpus[0][1].known = true;
	k->in.holder_count = 1;
	assert_string_equal(
		look(k),
		"{\"node_back\":[\"n0\"]} {\"unfence\":{\"id\":\"one\",\"parts\":[{\"node\":\"n0\",\"gpu\":1}]}}");
	assert_string_equal(anomaly(k, "unleased"), "acme/a n0");
	settle(k);
	assert_int_equal(quota_pool_at(quota_book_state(k->b), 0).fenced, UNITS_PER_GPU);
	assert_string_equal(look(k), "");
	k->nodes[0].partial = true;
	k->in.holder_count = 0;
	assert_string_equal(look(k), "");
	k->nodes[0].partial = false;
	assert_string_equal(look(k), "{\"unfence\":{\"id\":\"one\",\"parts\":[{\"node\":\"n0\",\"gpu\":0}]}}");
	settle(k);
	assert_int_equal(quota_pool_at(quota_book_state(k->b), 0).fenced, 0);
	assert_string_equal(look(k), "");
}

static void
a_fenced_gpu_on_which_another_lease_is_seen_is_its(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p1");
	settle(k);
	tell(k, "{\"release\":{\"id\":\"one\",\"lost\":true}}");
	/* What was heard before says nothing. */
	k->in.holder_count = 0;
	assert_string_equal(look(k), "");
	tell(k, ASK("two", "acme/a", "1"));
	known_as(k, "two", "p2");
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p2");
	assert_string_equal(look(k),
	                    "{\"unfence\":{\"id\":\"one\",\"parts\":[{\"node\":\"n0\",\"gpu\":0}]}} "
	                    "{\"confirm\":{\"id\":\"two\",\"parts\":[{\"node\":\"n0\",\"gpu\":0,\"count\":1}]}}");
	settle(k);
	assert_string_equal(look(k), "");
}

/* ---- 6 and 7 ---------------------------------------------------------------------------------------------------------------- */

static void
an_idle_lease_is_warned_and_then_drained_unless_it_works_again(void **state)
{
	struct world *k = *state;

	k->rules[0] = (struct quota_idle_rule){"acme/a", 600 * S};
	k->in.idle_rule_count = 1;
	tell(k, ASK("one", "acme/a", "1"));
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p");
	settle(k);
	for (int i = 0; i < 7; i++) {
		later(k, 99);
		settle(k);
		assert_int_equal(k->out.warned_count, 0);
	}
	/* It is measured now, and was active once. */
	k->holders[0].measured_ns = k->now_ns;
	k->holders[0].active_ns = k->now_ns - 599 * S;
	(void)look(k);
	assert_int_equal(k->out.warned_count, 0);
	assert_int_equal(k->out.idle[0].since_ns, k->now_ns - 599 * S);
	k->idle[0] = k->out.idle[0];
	k->idle[0].lease = "one";
	k->in.idle_count = 1;
	later(k, 1);
	k->holders[0].measured_ns = k->now_ns;
	settle(k);
	assert_int_equal(k->out.warned_count, 1);
	assert_string_equal(anomaly(k, "idle"), "one");
	k->idle[0].warned_ns = k->now_ns;
	later(k, 59);
	assert_string_equal(look(k), "");
	later(k, 1);
	assert_string_equal(look(k), "{\"drain\":\"one\"}");
	assert_string_equal(k->out.events[0].actor, "idle");
	k->holders[0].active_ns = k->now_ns;
	assert_string_equal(look(k), "");
	assert_string_equal(anomaly(k, "idle"), "");
	assert_int_equal(k->out.idle[0].warned_ns, 0);
}

static void
the_clock_is_told_only_when_it_changes_something(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	later(k, 599);
	assert_string_equal(look(k), "");
	later(k, 1);
	assert_string_equal(look(k), "{\"tick\":true}");
	settle(k);
	assert_int_equal(quota_lease_count(quota_book_state(k->b)), 0);
	tell(k, ASK("all", "acme/a", "2"));
	tell(k, ASK("more", "acme/a", "4"));
	assert_int_equal(quota_waiting_count(quota_book_state(k->b)), 1);
	k->in.last_tick_ns = k->now_ns;
	later(k, 9);
	assert_string_equal(look(k), "");
	later(k, 1);
	assert_string_equal(look(k), "{\"tick\":true}");
}

/* Some time passes, the database's clock says otherwise, and the loop looks; what it finds is told. */
static const char *
passes(struct world *k, int64_t seconds, int64_t by_clock)
{
	int64_t book_ns;

	k->in.was = k->pace;
	k->in.boot_ns += seconds * S;
	k->now_ns += by_clock * S;
	for (size_t i = 0; i < 2; i++)
		k->nodes[i].heard_ns = k->now_ns;
	quota_loop_out_fini(&k->out);
	book_ns = quota_book_now(k->b) > k->now_ns ? quota_book_now(k->b) : k->now_ns;
	quota_loop(k->b, &k->in, book_ns, &k->out);
	k->pace = k->out.pace;
	buf_clear(&k->text);
	for (size_t i = 0; i < k->out.event_count; i++) {
		buf_printf(&k->text, "%s%.8s", i > 0 ? " " : "", k->out.events[i].text);
		tell(k, k->out.events[i].text);
	}
	return buf_text(&k->text);
}

static size_t
leases(const struct world *k)
{
	return quota_lease_count(quota_book_state(k->b));
}

static void
a_clock_that_is_set_forward_makes_nothing_older(void **state)
{
	struct world *k = *state;

	k->in.boot_ns = 1000 * S;
	tell(k, ASK("one", "acme/a", "1"));
	assert_string_equal(passes(k, 1, 1), "");
	assert_string_equal(passes(k, 60, 61), "");
	/* a year, and what is asked for behind it is not taken for old */
	tell(k, ASK("two", "acme/a", "1"));
	k->now_ns += 31536000 * S;
	tell(k, ASK("three", "acme/b", "1"));
	assert_string_equal(passes(k, 1, 1), "{\"clock\" {\"tick\":");
	assert_int_equal(leases(k), 3);
	assert_string_equal(passes(k, 537, 537), "");
	assert_string_equal(passes(k, 1, 1), "{\"tick\":");
	assert_int_equal(leases(k), 2);
	assert_string_equal(passes(k, 62, 62), "{\"tick\":");
	assert_int_equal(leases(k), 0);
}

static void
a_clock_that_is_set_back_lets_nothing_live_for_ever(void **state)
{
	struct world *k = *state;
	int64_t before_ns;

	k->in.boot_ns = 1000 * S;
	tell(k, ASK("one", "acme/a", "1"));
	assert_string_equal(passes(k, 100, 100), "");
	tell(k, ASK("two", "acme/a", "1"));
	before_ns = quota_book_now(k->b);
	/* the book stands at the moment of the last event, and things grow older */
	k->now_ns -= 86400 * S;
	for (int i = 0; i < 500; i++) {
		assert_int_equal(leases(k), 2);
		(void)passes(k, 1, 1);
	}
	for (int i = 0; i < 10; i++)
		(void)passes(k, 1, 1);
	assert_int_equal(leases(k), 1);
	for (int i = 0; i < 80; i++) {
		assert_int_equal(leases(k), 1);
		(void)passes(k, 1, 1);
	}
	for (int i = 0; i < 20; i++)
		(void)passes(k, 1, 1);
	assert_int_equal(leases(k), 0);
	assert_int_equal(quota_book_now(k->b), before_ns);
}

static void
a_clock_that_is_set_back_to_after_the_last_event_makes_nothing_younger(void **state)
{
	struct world *k = *state;

	k->in.boot_ns = 1000 * S;
	tell(k, ASK("one", "acme/a", "1"));
	assert_string_equal(passes(k, 1, 1), "");
	assert_string_equal(passes(k, 500, 500), "");
	/* the book's last event is older: its time goes on from there */
	k->now_ns -= 300 * S;
	tell(k, ASK("two", "acme/a", "1")); /* it is not old */
	assert_string_equal(passes(k, 1, 1), "{\"clock\"");
	assert_string_equal(passes(k, 97, 97), "");
	assert_int_equal(leases(k), 2);
	assert_string_equal(passes(k, 1, 1), "{\"tick\":");
	assert_int_equal(leases(k), 1);
	assert_string_equal(passes(k, 500, 500), "");
	assert_string_equal(passes(k, 1, 1), "{\"tick\":");
	assert_int_equal(leases(k), 0);
}

static void
a_process_that_did_not_look_for_long_does_not_say_that_more_time_passed(void **state)
{
	struct world *k = *state;

	k->in.boot_ns = 1000 * S;
	tell(k, ASK("one", "acme/a", "1"));
	assert_string_equal(passes(k, 1, 1), "");
	/* another one has told the book of a step that this one's clock went through as time */
	assert_string_equal(passes(k, 7200, 10), "");
	assert_string_equal(passes(k, 1, 1), "");
	assert_int_equal(leases(k), 1);
	/* what is told twice counts once */
	tell(k, "{\"clock\":{\"until_ns\":9000000000000000000,\"skipped_ns\":1000}}");
	tell(k, "{\"clock\":{\"until_ns\":9000000000000000000,\"skipped_ns\":1000}}");
	assert_int_equal(quota_skipped(quota_book_state(k->b)), 1000);
}

static void
budgets_are_told_until_the_book_has_them(void **state)
{
	struct world *k = *state;
	const char *policy = POLICY;
	in_place(buf) struct buf with;

	buf_init(&with, BYTES);
	buf_printf(&with, "%.*s,\"budgets\":[{\"tenant\":\"acme\",\"kind\":\"money\",\"hard\":true,\"amount\":1000}]}}",
	           (int)strlen(policy) - 2, policy);
	k->in.budgets = "{\"budgets\":[{\"tenant\":\"acme\",\"kind\":\"money\",\"consumed\":700}]}";
	assert_string_equal(look(k), "");
	tell(k, buf_text(&with));
	assert_string_equal(look(k), k->in.budgets);
	assert_string_equal(k->out.events[0].actor, "ledger");
	assert_string_equal(look(k), k->in.budgets); /* what was found before was lost */
	settle(k);
	assert_string_equal(look(k), "");
}

/* ---- 8 ---------------------------------------------------------------------------------------------------------------------- */

static void
devices_held_beyond_leases_are_unleased_once_quota_is_in_service(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	later(k, 5);
	hold(k, 0, 0, "acme/a", "p");
	hold(k, 0, 1, "acme/a", "q");
	hold(k, 1, 0, "", "r");
	settle(k);
	assert_int_equal(k->out.anomaly_count, 2);
	assert_string_equal(k->out.anomalies[0].subject, "acme/a n0");
	assert_string_equal(k->out.anomalies[0].detail, "{\"workspace\":\"acme/a\",\"node\":\"n0\",\"gpus\":1}");
	assert_string_equal(k->out.anomalies[0].tenant, "acme");
	assert_string_equal(k->out.anomalies[1].subject, "nobody n1");
	k->in.in_service = false;
	(void)look(k);
	assert_string_equal(anomaly(k, "unleased"), "");
}

static void
a_confirmed_lease_that_nobody_sees_is_unused(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "1"));
	tell(k, "{\"confirm\":\"one\"}");
	later(k, 299);
	tell(k, "{\"heartbeat\":\"one\"}");
	(void)look(k);
	assert_string_equal(anomaly(k, "unused"), "");
	later(k, 1);
	(void)look(k);
	assert_string_equal(anomaly(k, "unused"), "one");
	k->nodes[0].silent = true;
	(void)look(k);
	assert_string_equal(anomaly(k, "unused"), "");
}

static void
a_holder_of_another_tenant_on_what_is_kept_for_one_is_foreign(void **state)
{
	struct world *k = *state;

	/* A tenant that is separated from nobody lends its nodes: what the bill calls borrowed is no broken isolation. */
	hold(k, 0, 0, "bank/x", "p");
	(void)look(k);
	assert_string_equal(anomaly(k, "foreign"), "");
	/* On shared nodes a tenant that shares no GPU minds others on its own. */
	k->nodes[0].tenant = "";
	settle(k);
	(void)look(k);
	assert_string_equal(anomaly(k, "foreign"), "");
	hold(k, 0, 1, "acme/a", "q");
	(void)look(k);
	assert_string_equal(anomaly(k, "foreign"), "");
	k->holders[1].gpu = k->holders[1].device = "g0";
	(void)look(k);
	assert_string_equal(anomaly(k, "foreign"), "n0 g0");
	assert_non_null(
		strstr(k->out.anomalies[0].detail, "\"kept_for\":\"bank\",\"holder\":{\"workspace\":\"acme/a\""));
	assert_string_equal(k->out.anomalies[0].tenant, "bank");
}

static void
what_the_book_says_of_pools_and_orders_is_reported(void **state)
{
	struct world *k = *state;

	tell(k, ASK("one", "acme/a", "4"));
	k->nodes[1].silent = true;
	settle(k);
	(void)look(k);
	assert_string_equal(anomaly(k, "excess"), "east acme H100");
	assert_string_equal(anomaly(k, "reserved"), "east acme H100");
	k->nodes[1].silent = false;
	settle(k);
	tell(k, "{\"submit\":[{\"id\":\"own\",\"workspace\":\"acme/b\",\"gpus\":2}]}");
	later(k, 60);
	tell(k, "{\"tick\":true}");
	(void)look(k);
	assert_string_equal(anomaly(k, "overdue"), "one");
}

/* ---- what a node says of itself, and of others ------------------------------------------------------------------------------- */

static const char *
detail_of(const struct world *k, const char *kind)
{
	for (size_t i = 0; i < k->out.anomaly_count; i++)
		if (strcmp(k->out.anomalies[i].kind, kind) == 0)
			return k->out.anomalies[i].detail;
	return "";
}

static void
a_node_that_the_book_would_not_take_is_left_out_and_the_others_go_on(void **state)
{
	static char long_name[LIMIT_NODE_NAME + 2], longest_name[LIMIT_NODE_NAME + 1], long_text[LIMIT_GPU_UUID + 2];
	static struct quota_seen_gpu many[LIMIT_NODE_GPUS + 1];
	static const struct quota_seen_slot light = {"1g.10gb", 0, 7, 1}, unknown = {"9g.99gb", 0, 1, 700},
					    heavier = {"9g.99gb", 0, 1, 701}, marked = {"9g.99gb@5", 0, 1, 700},
					    none = {"", 0, 1, 0}, one = {"", 1, 1, 5040};
	static struct quota_seen_slot kinds[LIMIT_GPU_INSTANCES + 1];
	const struct row {
		const char *sentence, *name, *uuid, *model, *why;
		const struct quota_seen_gpu *gpus;
		size_t gpu_count;
		const struct quota_seen_slot *slots;
		size_t slot_count;
	} rows[] = {
		{.sentence = "a name of 253 bytes is taken", .name = longest_name},
		{.sentence = "a longer one is not", .name = long_name, .why = "its name has 254 bytes, it is 1 to 253"},
		{.sentence = "a GPU without a model is not there yet", .model = ""},
		{.sentence = "a UUID that is too long",
	         .uuid = long_text,
	         .why = "its UUID has 129 bytes and its model 4, the most is 128 and 96"},
		{.sentence = "1024 GPUs are taken", .gpus = many, .gpu_count = LIMIT_NODE_GPUS},
		{.sentence = "1025 are not",
	         .gpus = many,
	         .gpu_count = LIMIT_NODE_GPUS + 1,
	         .why = "it has 1025 GPUs, the most is 1024"},
		{.sentence = "an instance of another weight",
	         .slots = &light,
	         .slot_count = 1,
	         .why = "GPU g2: an instance of 1g.10gb weighs 1 units, on a H100 it is 675"},
		{.sentence = "a profile that nobody knows weighs what its pool says",
	         .slots = &unknown,
	         .slot_count = 1},
		{.sentence = "also when that changes", .slots = &heavier, .slot_count = 1},
		{.sentence = "a profile with the mark of a weight",
	         .slots = &marked,
	         .slot_count = 1,
	         .why = "GPU g2: the name of profile 9g.99gb@5 has a '@'"},
		{.sentence = "a device without weight",
	         .slots = &none,
	         .slot_count = 1,
	         .why = "GPU g2: a device weighs 0 units, it is 1 to 5040"},
		{.sentence = "one replica",
	         .slots = &one,
	         .slot_count = 1,
	         .why = "GPU g2: it is shared by 1 replicas, that is 2 to 5040"},
		{.sentence = "too many kinds",
	         .slots = kinds,
	         .slot_count = LIMIT_GPU_INSTANCES + 1,
	         .why = "GPU g2: it is cut into 57 kinds of devices, the most is 56"},
	};
	struct world *k = *state;
	static char uuids[LIMIT_NODE_GPUS + 1][16];

	memset(long_name, 'n', sizeof(long_name) - 1);
	memset(longest_name, 'n', sizeof(longest_name) - 1);
	memset(long_text, 'u', sizeof(long_text) - 1);
	for (size_t i = 0; i <= LIMIT_NODE_GPUS; i++) {
		snprintf(uuids[i], sizeof(uuids[i]), "m%zu", i);
		many[i] = k->gpus[1][0];
		many[i].uuid = uuids[i];
	}
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *r = &rows[i];
		struct quota_seen_gpu gpu = k->gpus[1][0];
		struct quota_seen_node node = k->nodes[1];

		gpu.uuid = r->uuid ? r->uuid : gpu.uuid;
		gpu.model = r->model ? r->model : gpu.model;
		gpu.slots = r->slots ? r->slots : gpu.slots;
		gpu.slot_count = r->slots ? r->slot_count : gpu.slot_count;
		k->nodes[1] = (struct quota_seen_node){.name = r->name ? r->name : "other",
		                                       .cluster = "east",
		                                       .tenant = "",
		                                       .gpus = r->gpus ? r->gpus : &gpu,
		                                       .gpu_count = r->gpus ? r->gpu_count : 1};
		settle(k); /* the book takes whatever is told */
		(void)look(k);
		if ((r->why == NULL) != (anomaly(k, "inventory")[0] == '\0') ||
		    !strstr(detail_of(k, "inventory"), r->why ? r->why : ""))
			fail_msg("%s: %s", r->sentence, detail_of(k, "inventory"));
		/* The loss of another node is told all the same. */
		k->nodes[0].silent = true;
		if (strcmp(look(k), "{\"node_lost\":[\"n0\"]}") != 0)
			fail_msg("%s: %s", r->sentence, buf_text(&k->text));
		settle(k);
		k->nodes[0].silent = false;
		settle(k);
		k->nodes[1] = node;
		settle(k);
	}
}

/* Nodes with one GPU that has one instance of a profile that neither units.h nor the book knows: pool, and the weight that it says. */
static void
a_pool_says_what_a_profile_weighs_that_nobody_knows(void **state)
{
	static const struct row {
		const char *sentence;
		struct {
			const char *tenant;
			int64_t units;
			const char *told; /* the profile in the event; NULL: the node is left out */
		} nodes[5];
	} rows[] = {
		{"all say the same", {{"", 700, "p"}, {"", 700, "p"}, {"acme", 700, "p"}}},
		{"another pool says otherwise, and its node is the first",
	         {{"acme", 701, "p@701"}, {"", 700, "p"}, {"", 700, "p"}}},
		{"one of a pool says otherwise, and is the first", {{"", 701, NULL}, {"", 700, "p"}, {"", 700, "p"}}},
		{"the first of two in a pool says more", {{"", 701, NULL}, {"", 700, "p"}}},
		{"many of another pool say otherwise",
	         {{"acme", 9, "p@9"}, {"acme", 9, "p@9"}, {"acme", 9, "p@9"}, {"", 700, "p"}, {"globex", 700, "p"}}},
	};
	static char names[5][8], uuids[5][8];
	struct world *k = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct quota_seen_node nodes[5];
		struct quota_seen_gpu gpus[5];
		struct quota_seen_slot slots[5];
		char model[16], expected[128];
		size_t n = 0;

		snprintf(model, sizeof(model), "X%zu", i); /* a model that the book does not have */
		for (; n < 5 && rows[i].nodes[n].units > 0; n++) {
			snprintf(names[n], sizeof(names[n]), "v%zu", n);
			snprintf(uuids[n], sizeof(uuids[n]), "u%zu", n);
			slots[n] = (struct quota_seen_slot){"p", 0, 1, rows[i].nodes[n].units};
			gpus[n] = (struct quota_seen_gpu){
				.uuid = uuids[n], .model = model, .known = true, .slots = &slots[n], .slot_count = 1};
			nodes[n] = (struct quota_seen_node){.name = names[n],
			                                    .cluster = "east",
			                                    .tenant = rows[i].nodes[n].tenant,
			                                    .heard_ns = k->now_ns,
			                                    .gpus = &gpus[n],
			                                    .gpu_count = 1};
		}
		k->in.nodes = nodes;
		k->in.node_count = n;
		for (int again = 0; again < 2; again++) {
			size_t wanted = 0, left_out = 0;

			settle(k); /* the book takes all of it */
			for (size_t v = 0; v < n && again == 0; v++) {
				const char *told = rows[i].nodes[v].told;

				snprintf(
					expected, sizeof(expected),
					"\"uuid\":\"%s\",\"slots\":[{\"count\":1,\"profile\":\"%s\",\"units\":%" PRId64,
					uuids[v], told ? told : "p", slots[v].units);
				if ((told != NULL) != (strstr(buf_text(&k->text), expected) != NULL))
					fail_msg("%s: %s in %s", rows[i].sentence, expected, buf_text(&k->text));
			}
			for (size_t v = 0; v < n; v++)
				wanted += !rows[i].nodes[v].told;
			for (size_t v = 0; v < k->out.anomaly_count; v++)
				left_out += strcmp(k->out.anomalies[v].kind, "inventory") == 0;
			if (left_out != wanted)
				fail_msg("%s: %zu nodes are left out: %s", rows[i].sentence, left_out,
				         detail_of(k, "inventory"));
		}
		assert_string_equal(look(k), ""); /* what was told is what is seen */
	}
}

static void
another_tenants_node_neither_confirms_a_lease_nor_keeps_it(void **state)
{
	struct world *k = *state;

	k->nodes[1].tenant = "bank";
	settle(k);
	tell(k, ASK("one", "acme/a", "1"));
	known_as(k, "one", "p");
	later(k, 5);
	hold(k, 1, 0, "acme/a", "p");
	assert_string_equal(look(k), "");
	/* a GPU that the book does not have on the node */
	k->holders[0] = (struct quota_seen_holder){.node = 0,
	                                           .gpu = "g2",
	                                           .device = "g2",
	                                           .replica = -1,
	                                           .profile = "",
	                                           .workspace = "acme/a",
	                                           .ns = "team",
	                                           .pod = "p",
	                                           .pod_uid = "",
	                                           .slurm_job = "",
	                                           .holds = true};
	assert_string_equal(look(k), "");
	k->in.holder_count = 0;
	hold(k, 0, 0, "acme/a", "p");
	settle(k);
	tell(k, "{\"release\":\"one\"}");
	later(k, 5);
	k->in.holder_count = 0;
	hold(k, 1, 0, "acme/a", "p");
	assert_string_equal(look(k), "{\"empty\":[\"one\"]}");
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_is_known_already_is_not_told_again),
		TEST(a_new_gpu_a_gone_one_and_another_owner_are_told_as_the_whole_inventory),
		TEST(a_silent_node_is_lost_and_its_layout_is_remembered_until_it_is_back),
		TEST(a_gpu_that_is_cut_otherwise_or_lost_is_told_alone),
		TEST(a_node_in_maintenance_is_lost_although_it_speaks),
		TEST(what_is_declared_and_was_never_seen_is_inventory_too),
		TEST(a_lease_is_confirmed_where_its_workload_is_seen_by_its_identity),
		TEST(a_lease_of_several_workloads_is_seen_by_any_of_them_and_is_empty_when_none_is_seen),
		TEST(a_lease_is_seen_by_a_slurm_job_among_its_workloads),
		TEST(a_lease_without_identity_is_seen_by_what_its_workspace_holds),
		TEST(what_was_heard_before_the_lease_was_admitted_does_not_confirm_it),
		TEST(devices_that_another_lease_has_are_not_bound),
		TEST(a_lease_that_is_seen_has_a_heartbeat_in_time_and_a_suspect_one_at_once),
		TEST(a_released_lease_is_empty_only_when_its_devices_are_seen_empty),
		TEST(a_lease_on_a_silent_node_becomes_suspect_and_stays_counted),
		TEST(a_fence_ends_when_its_node_speaks_and_shows_nothing_of_the_lost_work),
		TEST(a_fenced_gpu_on_which_another_lease_is_seen_is_its),
		TEST(an_idle_lease_is_warned_and_then_drained_unless_it_works_again),
		TEST(the_clock_is_told_only_when_it_changes_something),
		TEST(a_clock_that_is_set_forward_makes_nothing_older),
		TEST(a_clock_that_is_set_back_lets_nothing_live_for_ever),
		TEST(a_clock_that_is_set_back_to_after_the_last_event_makes_nothing_younger),
		TEST(a_process_that_did_not_look_for_long_does_not_say_that_more_time_passed),
		TEST(budgets_are_told_until_the_book_has_them),
		TEST(devices_held_beyond_leases_are_unleased_once_quota_is_in_service),
		TEST(a_confirmed_lease_that_nobody_sees_is_unused),
		TEST(a_holder_of_another_tenant_on_what_is_kept_for_one_is_foreign),
		TEST(what_the_book_says_of_pools_and_orders_is_reported),
		TEST(a_node_that_the_book_would_not_take_is_left_out_and_the_others_go_on),
		TEST(a_pool_says_what_a_profile_weighs_that_nobody_knows),
		TEST(another_tenants_node_neither_confirms_a_lease_nor_keeps_it),
	};

	return cmocka_run_group_tests_name("quota_loop", tests, NULL, NULL);
}

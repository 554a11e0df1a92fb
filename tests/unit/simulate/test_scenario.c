/* tests/unit/simulate/test_scenario.c - the scenario file of quota simulate: what is read, what stands for what is missing, and that every
 * error names the line, the field, the value and the limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/simulate/scenario.h"

#define GPU UNITS_PER_GPU
#define TENANT "version: 1\ntenants:\n  - {name: t, workspaces: [{name: a, reserved: 4}, {name: b, reserved: 2}]}\n"

static struct quota_scenario *
read_text(const char *text)
{
	struct quota_scenario *sc = NULL;
	struct err err = {0};

	if (!quota_scenario_parse("s.yaml", text, strlen(text), &sc, &err))
		fail_msg("%s", err.text);
	return sc;
}

/* ---- what is refused ---- */

static const struct {
	const char *name, *text, *wrong;
} refused[] = {
	{"an empty file", "", "s.yaml:1: scenario: the key version is missing"},
	{"another version", "version: 2\n", "s.yaml:1: version"},
	{"an unknown key", "version: 1\ntenant: []\n", "did you mean"},
	{"no tenants", "version: 1\n", "the key tenants is missing"},
	{"a tenant without a name", "version: 1\ntenants: [{}]\n", "s.yaml:2: tenant: the key name is missing"},
	{"a tenant that is there twice", "version: 1\ntenants:\n - {name: t}\n - {name: t}\n",
         "s.yaml:4: tenant name \"t\" is there twice"},
	{"a workspace that is there twice", "version: 1\ntenants:\n - {name: t, workspaces: [{name: a}, {name: a}]}\n",
         "workspace name \"a\" is there twice"},
	{"a reservation that is no amount",
         "version: 1\ntenants:\n - name: t\n   workspaces: [{name: a, reserved: lots}]\n",
         "s.yaml:4: workspace reserved \"lots\" is not an amount"},
	{"a reservation without end", "version: 1\ntenants:\n - {name: t, workspaces: [{name: a, reserved: none}]}\n",
         "none"},
	{"a part of a GPU that is no whole unit",
         "version: 1\ntenants:\n - {name: t, workspaces: [{name: a, reserved: 1/11}]}\n", "no whole number of units"},
	{"a profile that no GPU has",
         "version: 1\ntenants:\n - {name: t, workspaces: [{name: a, reserved: 2x9g.99gb}]}\n", "9g.99gb"},
	{"a word that is no choice", "version: 1\ntenants:\n - {name: t, workspaces: [{name: a, reclaim: always}]}\n",
         "workspace reclaim \"always\" is not one of any, lower, never"},
	{"a weight out of range", "version: 1\ntenants:\n - {name: t, workspaces: [{name: a, weight: 0}]}\n", "weight"},
	{"a lease of nobody", TENANT "leases: [{id: l, workspace: t/c, gpus: 1}]\n",
         "s.yaml:4: lease workspace \"t/c\" is not among the tenants"},
	{"a workspace without its tenant", TENANT "leases: [{id: l, workspace: a, gpus: 1}]\n", "TENANT/WORKSPACE"},
	{"a lease of nothing", TENANT "leases: [{id: l, workspace: t/a}]\n",
         "exactly one of gpus, profile and replicas"},
	{"a lease of zero GPUs", TENANT "leases: [{id: l, workspace: t/a, gpus: 0}]\n",
         "lease gpus \"0\" is not a number of whole GPUs"},
	{"a lease of half a GPU", TENANT "leases: [{id: l, workspace: t/a, gpus: 1/2}]\n", "lease gpus \"1/2\""},
	{"a lease on a node that is not there", TENANT "leases: [{id: l, workspace: t/a, gpus: 1, node: n}]\n",
         "lease node \"n\" is not a node"},
	{"replicas that no node has", TENANT "leases: [{id: l, workspace: t/a, replicas: 1}]\n", "replicas"},
	{"a count without a profile", TENANT "leases: [{id: l, workspace: t/a, gpus: 1, count: 2}]\n",
         "goes with profile only"},
	{"an id that is there twice",
         TENANT "leases: [{id: x, workspace: t/a, gpus: 1}]\nrequests: [{id: x, workspace: t/a, gpus: 1}]\n",
         "s.yaml:5: id \"x\" is there already, on line 4"},
	{"an id with a space", TENANT "leases: [{id: a b, workspace: t/a, gpus: 1}]\n", "lease id \"a b\" has a space"},
	{"a priority that is neither number nor class",
         TENANT "requests: [{id: r, workspace: t/a, gpus: 1, priority: high}]\n",
         "request priority \"high\" is neither"},
	{"a priority out of range", TENANT "requests: [{id: r, workspace: t/a, gpus: 1, priority: 2000000000}]\n",
         "priority"},
	{"a truth that is none", TENANT "requests: [{id: r, workspace: t/a, gpus: 1, preemptible: maybe}]\n",
         "preemptible"},
	{"an empty batch", TENANT "requests: []\n", "requests is empty"},
	{"a node of nobody", "version: 1\ntenants: [{name: t}]\nnodes: [{name: n, tenant: u, gpus: 1}]\n",
         "s.yaml:3: node tenant \"u\" is not a tenant"},
	{"a node of nobody in particular", "version: 1\ntenants: [{name: t}]\nnodes: [{name: n, gpus: 1}]\n",
         "exactly one of tenant"},
	{"a node without GPUs", "version: 1\ntenants: [{name: t}]\nnodes: [{name: n, tenant: t}]\n", "it has no GPUs"},
	{"more instances than a GPU has",
         "version: 1\ntenants: [{name: t}]\nnodes: [{name: n, tenant: t, mig: [{1g.10gb: 8}]}]\n", "more than one GPU"},
	{"replicas that do not divide a GPU",
         "version: 1\ntenants: [{name: t}]\nnodes: [{name: n, tenant: t, gpus: 1, replicas: 11}]\n", "does not divide"},
	{"capacity beside nodes",
         "version: 1\ntenants: [{name: t, capacity: 4}]\nnodes: [{name: n, tenant: t, gpus: 1}]\n",
         "s.yaml:2: tenant capacity is for files without nodes"},
	{"a reservation for which of two models",
         "version: 1\nnodes: [{name: n, tenant: t, model: H100, gpus: 1}, {name: m, tenant: t, model: A100, gpus: 1}]\n"
         "tenants: [{name: t, workspaces: [{name: a, reserved: 1}]}]\n",
         "workspace reserved \"1\" is for which model?"},
	{"a request for which of two models",
         "version: 1\nnodes: [{name: n, tenant: t, model: H100, gpus: 1}, {name: m, tenant: t, model: A100, gpus: 1}]\n"
         "tenants: [{name: t, workspaces: [{name: a}]}]\nrequests: [{id: r, workspace: t/a, gpus: 1}]\n",
         "s.yaml:4: request: the key model is missing"},
	{"an event without a time", TENANT "events: [{finish: l}]\n", "the key at and exactly one thing"},
	{"two events in one", TENANT "events: [{at: 1m, finish: l, cancel: r}]\n", "exactly one thing"},
	{"a time without a unit", TENANT "events: [{at: 10, finish: l}]\n", "event at \"10\" is not a duration"},
	{"events that go back", TENANT "events: [{at: 2m, finish: l}, {at: 1m, finish: l}]\n",
         "event at \"1m\" is before the event above it, which is at 2m"},
	{"an event of another kind", TENANT "events: [{at: 1m, explode: l}]\n", "explode"},
	{"a lost node that is not there", TENANT "events: [{at: 1m, node_lost: n}]\n",
         "event node_lost \"n\" is not a node"},
	{"a lost GPU beyond the node's", TENANT "events: [{at: 1m, gpu_lost: {node: t, gpu: 6}}]\n", "gpu"},
	{"a policy for nobody", TENANT "events: [{at: 1m, policy: {workspace: t/c, reserved: 1}}]\n",
         "not among the tenants"},
	{"an exception without an end", TENANT "exceptions: [{id: e, workspace: t/a, limit: 1}]\n",
         "an exception ends"},
	{"an exception of nothing", TENANT "exceptions: [{id: e, workspace: t/a, until: 1h}]\n", "limit or reserved"},
	{"a budget of two kinds", "version: 1\ntenants: [{name: t, budget: {gpu_hours: 1, money: 1}}]\n",
         "exactly one of gpu_hours, money and tokens"},
	{"JSON with a key twice", "{\"version\": 1, \"version\": 1}", "s.yaml:1"},
	{"JSON with something behind it", "{\"version\": 1} x", "s.yaml:1"},
	{"ticks without number", TENANT "settings: {tick: 1ns, end: 1d}\n", "ticks"},
};

static void
a_wrong_file_is_refused_with_the_line_and_the_value(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		struct quota_scenario *sc = NULL;
		struct err err = {0};

		if (quota_scenario_parse("s.yaml", refused[i].text, strlen(refused[i].text), &sc, &err))
			fail_msg("%s: accepted", refused[i].name);
		if (strstr(err.text, refused[i].wrong) == NULL || strncmp(err.text, "s.yaml:", 7) != 0)
			fail_msg("%s: %s", refused[i].name, err.text);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_null(sc);
	}
}

/* ---- what stands for what is missing ---- */

static void
without_nodes_a_tenant_has_what_is_reserved(void **state)
{
	owned(quota_scenario) struct quota_scenario *sc = read_text(TENANT);

	(void)state;
	assert_int_equal(sc->world.node_count, 1);
	assert_int_equal(sc->world.nodes[0].gpu_count, 6);
	assert_int_equal(sc->world.nodes[0].tenant, 0);
	assert_int_equal(sc->world.policy.share_count, 2);
	assert_int_equal(sc->world.policy.shares[0].reserved, 4 * GPU);
	assert_int_equal(sc->world.policy.shares[0].limit, QUOTA_DEFAULT);
	assert_int_equal(sc->world.policy.shares[0].borrow, QUOTA_DEFAULT);
	assert_int_equal(sc->world.policy.shares[0].lend, QUOTA_DEFAULT);
	assert_int_equal(sc->world.policy.workspaces[0].weight, 1);
	assert_true(sc->world.policy.workspaces[0].preempt_own);
	assert_int_equal(sc->world.policy.workspaces[0].reclaim, QUOTA_RECLAIM_ANY);
	assert_int_equal(sc->world.policy.settings.burst, 2);
	assert_false(sc->over_time);
	assert_string_equal(buf_text(&sc->warnings), "");
}

static void
without_nodes_slices_are_instances_and_parts_are_whole_gpus(void **state)
{
	owned(quota_scenario) struct quota_scenario *slices =
		read_text("version: 1\ntenants: [{name: t, workspaces: [{name: a, reserved: 9x1g.10gb}]}]\n");
	owned(quota_scenario) struct quota_scenario *parts = read_text(
		"version: 1\ntenants: [{name: t, workspaces: [{name: a, reserved: 3/7}, {name: b, reserved: 1}]}]\n");

	(void)state;
	assert_int_equal(slices->world.nodes[0].gpu_count, 2); /* seven on the first, two on the second */
	assert_int_equal(slices->world.nodes[0].gpus[1].slots[0].count, 2);
	assert_int_equal(parts->world.nodes[0].gpu_count, 2);
	assert_int_equal(parts->world.policy.shares[0].reserved, 2160);
}

static void
reservations_beyond_the_nodes_are_a_warning(void **state)
{
	owned(quota_scenario) struct quota_scenario *sc =
		read_text("version: 1\nnodes: [{name: n, tenant: t, mig: {1g.10gb: 2, 3g.40gb: 1}}]\n"
	                  "tenants: [{name: t, workspaces: [{name: a, reserved: 3x1g.10gb}]}]\n");
	owned(quota_scenario) struct quota_scenario *more =
		read_text("version: 1\ntenants: [{name: t, capacity: 2, workspaces: [{name: a, reserved: 3}]}]\n");

	(void)state;
	assert_non_null(strstr(buf_text(&sc->warnings), "reservations of 3 x 1g.10gb exceed the 2 that there are"));
	assert_non_null(strstr(buf_text(&more->warnings), "reservations of 3 GPU exceed the capacity of 2"));
}

static void
amounts_are_for_the_pools_that_there_are(void **state)
{
	owned(quota_scenario) struct quota_scenario *sc = read_text(
		"version: 1\nnodes:\n - {name: n, tenant: t, model: H100, gpus: 4}\n - {name: s, shared: true, model: A100, gpus: 4}\n"
		"tenants:\n - {name: t, workspaces: [{name: a, reserved: 2, reserved_shared: 1, limit: none, borrow: 0, borrow_shared: 3}]}\n");
	const struct quota_share *own = &sc->world.policy.shares[0], *shared = &sc->world.policy.shares[1];

	(void)state;
	assert_int_equal(sc->world.policy.share_count, 2);
	assert_string_equal(sc->world.policy.models[own->model], "H100");
	assert_int_equal(own->reserved, 2 * GPU);
	assert_int_equal(own->limit, QUOTA_UNLIMITED);
	assert_int_equal(own->borrow, 0);
	assert_string_equal(sc->world.policy.models[shared->model], "A100");
	assert_true(shared->shared);
	assert_int_equal(shared->reserved, GPU);
	assert_int_equal(shared->borrow, 3 * GPU);
}

static void
a_class_gives_priority_and_preemptible(void **state)
{
	owned(quota_scenario) struct quota_scenario *sc = read_text(
		TENANT "priority_classes: [{name: prod, value: 100, preemptible: false}]\n"
		       "leases: [{id: l, workspace: t/a, gpus: 1, priority: prod}]\n"
		       "requests:\n - {id: r, workspace: t/a, gpus: 2x1g.10gb, priority: prod, preemptible: true}\n"
		       " - {id: q, workspace: t/b, gpus: 1}\n");
	const struct quota_request *r = sc->events[0].event.requests;

	(void)state;
	assert_int_equal(sc->world.leases[0].priority, 100);
	assert_false(sc->world.leases[0].preemptible);
	assert_true(r[0].preemptible);
	assert_int_equal(r[0].klass, 0);
	assert_int_equal(sc->world.policy.shapes[r[0].shape].units, 675);
	assert_int_equal(r[1].klass, QUOTA_NONE);
	assert_true(r[1].preemptible);
	assert_int_equal(r[1].priority, 0);
}

static void
a_change_of_policy_keeps_what_it_does_not_name(void **state)
{
	owned(quota_scenario) struct quota_scenario *sc = read_text(
		"version: 1\ntenants: [{name: t, workspaces: [{name: a, reserved: 4, limit: 6, weight: 3}]}]\n"
		"events:\n - {at: 1h, policy: {workspace: t/a, reserved: 2, reclaim: never}}\n"
		" - {at: 2h, policy: {tenant: t, maximum: 5}}\n");
	const struct quota_policy *first = sc->events[0].event.policy, *second = sc->events[1].event.policy;

	(void)state;
	assert_int_equal(sc->world.policy.shares[0].reserved, 4 * GPU);
	assert_int_equal(first->shares[0].reserved, 2 * GPU);
	assert_int_equal(first->shares[0].limit, 6 * GPU);
	assert_int_equal(first->workspaces[0].weight, 3);
	assert_int_equal(first->workspaces[0].reclaim, QUOTA_RECLAIM_NEVER);
	assert_int_equal(first->cap_count, 0);
	assert_int_equal(second->caps[0].maximum, 5 * GPU);
	assert_int_equal(second->shares[0].reserved, 2 * GPU);
	assert_true(sc->over_time);
	assert_int_equal(sc->end_ns, INT64_C(7200) * 1000000000);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_wrong_file_is_refused_with_the_line_and_the_value),
		cmocka_unit_test(without_nodes_a_tenant_has_what_is_reserved),
		cmocka_unit_test(without_nodes_slices_are_instances_and_parts_are_whole_gpus),
		cmocka_unit_test(reservations_beyond_the_nodes_are_a_warning),
		cmocka_unit_test(amounts_are_for_the_pools_that_there_are),
		cmocka_unit_test(a_class_gives_priority_and_preemptible),
		cmocka_unit_test(a_change_of_policy_keeps_what_it_does_not_name),
	};

	return cmocka_run_group_tests_name("scenario", tests, NULL, NULL);
}

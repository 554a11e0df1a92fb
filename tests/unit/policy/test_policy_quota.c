/* tests/unit/policy/test_policy_quota.c - members, quotas, priority classes and nodes in the policy file: what is read, what is
 * refused and how, what the nodes have against what is reserved, and what differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/policy/policy.h"

#define FILE_MAX (4u << 20)
#define HEAD "version: 1\ncluster: demo\n"
#define TENANT HEAD "tenants:\n  - name: acme\n"              /* from line 4 on */
#define WORKSPACE TENANT "    workspaces:\n      - name: a\n" /* from line 6 on */
#define NODES HEAD "tenants: [{name: acme}]\nnodes:\n"        /* lines 3 and 4 */

static struct policy *
parse(const char *text)
{
	struct policy *p = NULL;
	struct err err = {0};

	if (!policy_parse("p.yaml", text, strlen(text), &p, &err))
		fail_msg("refused: %s", err.text);
	return p;
}

static const char full[] = HEAD
	"priority_classes:\n"
	"  - {name: production, value: 100, preemptible: false}\n"
	"  - {name: batch, value: -5}\n"
	"tenants:\n"
	"  - name: acme\n"
	"    maximum: {H100-80GB: 16, A100-80GB: 28x1g.10gb}\n"
	"    default_limit: 2\n"
	"    isolation: gpu\n"
	"    priority_classes: [production]\n"
	"    limits: {cpu: 512, memory: 4Ti}\n"
	"    members: [{user: alice@acme.example, role: tenant-admin}]\n"
	"    workspaces:\n"
	"      - name: training\n"
	"        members: [{user: bob, role: developer}, {user: carol, role: viewer}]\n"
	"        reserved: {H100-80GB: 4, A100-80GB: 2x1g.10gb}\n"
	"        limit: {H100-80GB: 8, A100-80GB: none}\n"
	"        borrow: {H100-80GB: 4}\n"
	"        lend: {H100-80GB: \"1/2\"}\n"
	"        reclaim: lower\n"
	"        preempt_own: never\n"
	"        weight: 3\n"
	"        enforce: warn\n"
	"        idle_timeout: 1h30m\n"
	"        limits: {cpu: 500m, memory: 1536Mi, storage: 10T}\n"
	"      - {name: plain, cluster: west, reserved_shared: 1, idle_timeout: none}\n"
	"nodes:\n"
	"  - {name: n1, tenant: acme, model: H100-80GB, gpus: 8, state: maintenance, devices: [{uuid: GPU-1, state: retired}]}\n"
	"  - {name: n2, shared: true, cluster: west, model: A100-80GB, gpus: 1, mig: {1g.10gb: 7, 3g.40gb: 2}}\n";

static void
a_tenant_s_quotas_are_read_as_they_stand(void **state)
{
	owned(policy) struct policy *p = parse(full);
	const struct policy_tenant *t = &p->tenants[0];

	(void)state;
	assert_int_equal(p->class_count, 2);
	assert_string_equal(p->classes[0].name, "production");
	assert_int_equal(p->classes[0].value, 100);
	assert_false(p->classes[0].preemptible);
	assert_int_equal(p->classes[1].value, -5);
	assert_true(p->classes[1].preemptible);
	assert_string_equal(t->isolation, "gpu");
	assert_true(t->classes_given);
	assert_string_equal(t->classes[0], "production");
	assert_int_equal(t->limits.cpu_millis, 512000);
	assert_true(t->limits.memory_bytes == INT64_C(4) << 40);
	assert_int_equal(t->limits.storage_bytes, -1);
	assert_string_equal(t->members.at[0].user, "alice@acme.example");
	assert_string_equal(t->members.at[0].role, "tenant-admin");
	assert_int_equal(policy_amount_for(&t->maximum, "H100-80GB")->num, 16);
	assert_string_equal(policy_amount_for(&t->maximum, "A100-80GB")->profile, "1g.10gb");
	assert_null(policy_amount_for(&t->maximum, "L4"));
	assert_int_equal(policy_amount_for(&t->default_limit, "L4")->num, 2);
}

static void
a_workspace_s_quotas_are_read_as_they_stand(void **state)
{
	owned(policy) struct policy *p = parse(full);
	const struct policy_workspace *w = &p->tenants[0].workspaces[0], *plain = &p->tenants[0].workspaces[1];

	(void)state;
	assert_int_equal(w->members.count, 2);
	assert_string_equal(w->members.at[1].role, "viewer");
	assert_int_equal(policy_amount_for(&w->reserved, "A100-80GB")->num, 2);
	assert_true(policy_amount_for(&w->limit, "A100-80GB")->unlimited);
	assert_int_equal(policy_amount_for(&w->lend, "H100-80GB")->den, 2);
	assert_string_equal(w->reclaim, "lower");
	assert_string_equal(w->preempt_own, "never");
	assert_string_equal(w->enforce, "warn");
	assert_int_equal(w->weight, 3);
	assert_true(w->idle_timeout_ns == INT64_C(5400) * 1000000000);
	assert_int_equal(w->limits.cpu_millis, 500);
	assert_true(w->limits.memory_bytes == INT64_C(1536) << 20);
	assert_true(w->limits.storage_bytes == INT64_C(10000000000000));
	assert_string_equal(policy_workspace_cluster(p, w), "demo");
	assert_string_equal(policy_workspace_cluster(p, plain), "west");
	assert_string_equal(plain->reclaim, "any");
	assert_string_equal(plain->preempt_own, "lower");
	assert_string_equal(plain->enforce, "on");
	assert_int_equal(plain->weight, 1);
	assert_int_equal(plain->idle_timeout_ns, 0);
}

static void
a_node_says_what_it_has_and_in_which_state_it_is(void **state)
{
	owned(policy) struct policy *p = parse(full);

	(void)state;
	assert_string_equal(p->nodes[0].state, "maintenance");
	assert_int_equal(p->nodes[0].gpus, 8);
	assert_string_equal(p->nodes[0].devices[0].uuid, "GPU-1");
	assert_string_equal(p->nodes[0].devices[0].state, "retired");
	assert_string_equal(p->nodes[1].state, "in-service");
	assert_int_equal(p->nodes[1].profile_count, 2);
	assert_string_equal(p->nodes[1].profiles[1].profile, "3g.40gb");
	assert_int_equal(p->nodes[1].profiles[1].count, 2);
}

#define TENANT_QUOTA(text) TENANT "    " text "\n" /* line 5 */
#define QUOTA(text) WORKSPACE "        " text "\n" /* line 7 */

static const struct refusal {
	const char *name, *text, *want;
} refusals[] = {
	{"an amount that is none", QUOTA("reserved: many"), "p.yaml:7: \"many\" is not an amount of GPUs"},
	{"a part that is no whole units", QUOTA("reserved: 1/11"),
         "p.yaml:7: reserved: 1/11 of a GPU is no whole number"},
	{"a profile that no GPU has", QUOTA("limit: 2x9x"), "p.yaml:7: limit: profile \"9x\" is not a MIG profile"},
	{"a profile that the model has not", QUOTA("limit: {H100-80GB: 2x1g.5gb}"),
         "p.yaml:7: limit: the MIG profile \"1g.5gb\" does not exist"},
	{"a model with a colon", QUOTA("limit: {\"a:b\": 2}"), "p.yaml:7: limit: model \"a:b\" must be letters"},
	{"an unlimited reservation", QUOTA("reserved: none"),
         "p.yaml:7: workspace acme/a: reserved is none, but must be a number"},
	{"weight 0", QUOTA("weight: 0"), "p.yaml:7: weight is 0, outside 1 to 1000000"},
	{"a weight beyond the most", QUOTA("weight: 1000001"), "p.yaml:7: weight is 1000001, outside 1 to 1000000"},
	{"an unknown reclaim policy", QUOTA("reclaim: all"),
         "p.yaml:7: reclaim \"all\" is not one of any, lower, never"},
	{"an unknown own preemption", QUOTA("preempt_own: any"),
         "p.yaml:7: preempt_own \"any\" is not one of lower, never"},
	{"an unknown enforcement", QUOTA("enforce: true"), "p.yaml:7: enforce \"true\" is not one of off, warn, on"},
	{"an idle time without a unit", QUOTA("idle_timeout: 30"), "p.yaml:7: idle_timeout: \"30\""},
	{"an idle time that is too long", QUOTA("idle_timeout: 31d"),
         "p.yaml:7: idle_timeout \"31d\" is outside 1s to"},
	{"a budget of both", QUOTA("budget: {amount: 1, currency: EUR, gpu_hours: 1}"),
         "p.yaml:7: a budget has one of amount, gpu_hours and tokens"},
	{"a budget of neither", QUOTA("budget: {kind: hard}"),
         "p.yaml:7: a budget has one of amount, gpu_hours and tokens"},
	{"a budget of money without a currency", QUOTA("budget: {amount: 1}"),
         "p.yaml:7: a budget with an amount needs the key currency"},
	{"a budget of hours with a currency", QUOTA("budget: {gpu_hours: 1, currency: EUR}"),
         "p.yaml:7: a budget of gpu_hours has no currency"},
	{"a budget of tokens with a currency", QUOTA("budget: {tokens: 1, currency: EUR}"),
         "p.yaml:7: a budget of tokens has no currency"},
	{"a budget of a part of a token", QUOTA("budget: {tokens: \"0.5\"}"), "p.yaml:7: tokens: "},
	{"a budget of more tokens than there may be", QUOTA("budget: {tokens: 1000000000000000001}"),
         "p.yaml:7: tokens \"1000000000000000001\" is outside 0"},
	{"a budget of nothing", QUOTA("budget: {gpu_hours: 0}"), "p.yaml:7: gpu_hours \"0\" is outside 0"},
	{"a budget finer than its currency", QUOTA("budget: {amount: \"1.001\", currency: EUR}"), "p.yaml:7: amount:"},
	{"a budget beyond the most", QUOTA("budget: {gpu_hours: 1000000000001}"), "p.yaml:7: gpu_hours"},
	{"an auto-approval without an end", TENANT_QUOTA("auto_approve: {max: 2}"),
         "p.yaml:5: auto_approve needs the keys max and for"},
	{"promises of nothing", TENANT_QUOTA("sla: {}"), "p.yaml:5: sla needs owed_wait, delivered or both"},
	{"a promise to wait for ever", TENANT_QUOTA("sla: {owed_wait: 31d}"),
         "p.yaml:5: owed_wait \"31d\" is outside 1s to 30d"},
	{"a promise of more than all", TENANT_QUOTA("sla: {delivered: 100.0001}"),
         "p.yaml:5: delivered \"100.0001\" is outside 0 (not included) to 100 percent"},
	{"a boundary of two lines", TENANT_QUOTA("data_boundary: \"a\\nb\""), "p.yaml:5: data_boundary"},
	{"an auto-approval of nothing", TENANT_QUOTA("auto_approve: {max: 0, for: 1h}"), "p.yaml:5: max \"0\" is not"},
	{"an auto-approval of everything", TENANT_QUOTA("auto_approve: {max: none, for: 1h}"),
         "p.yaml:5: max \"none\" is not a number of GPUs"},
	{"an auto-approval of instances", TENANT_QUOTA("auto_approve: {max: 2x1g.10gb, for: 1h}"),
         "p.yaml:5: max \"2x1g.10gb\" is not a number of GPUs"},
	{"an auto-approval for ever", TENANT_QUOTA("auto_approve: {max: 1, for: 367d}"),
         "p.yaml:5: for \"367d\" is outside 1m"},
	{"an unknown kind of budget", QUOTA("budget: {gpu_hours: 1, kind: firm}"),
         "p.yaml:7: kind \"firm\" is not one of soft, hard"},
	{"a share of memory", QUOTA("limits: {memory: 50%}"), "p.yaml:7: memory \"50%\" is not an amount like 512Gi"},
	{"memory beyond 64 bits", QUOTA("limits: {memory: 9999999Pi}"),
         "p.yaml:7: memory \"9999999Pi\" is not an amount"},
	{"an unknown resource", QUOTA("limits: {disk: 1Gi}"), "p.yaml:7: unknown key 'disk'"},
	{"a cluster that nobody is in", QUOTA("cluster: east"),
         "p.yaml:6: workspace acme/a: cluster \"east\" is neither the file's nor a node's"},
	{"a member without a role", QUOTA("members: [{user: bob}]"), "p.yaml:7: a member needs the key role"},
	{"a member without a name", QUOTA("members: [{role: viewer}]"), "p.yaml:7: a member needs the key user"},
	{"a tenant's role in a workspace", QUOTA("members: [{user: bob, role: tenant-admin}]"),
         "p.yaml:7: role \"tenant-admin\" is not one of developer, viewer"},
	{"an operator's role in a tenant", TENANT "    members: [{user: bob, role: admin}]\n",
         "p.yaml:5: role \"admin\" is not one of tenant-admin, developer, viewer"},
	{"a member twice", QUOTA("members: [{user: bob, role: viewer}, {user: bob, role: developer}]"),
         "p.yaml:7: member \"bob\" of acme/a is already on line 7"},
	{"a member of a tenant twice",
         TENANT "    members: [{user: bob, role: viewer},\n              {user: bob, role: viewer}]\n",
         "p.yaml:6: member \"bob\" of acme is already on line 5"},
	{"an unknown isolation", TENANT "    isolation: vm\n",
         "p.yaml:5: isolation \"vm\" is not one of node, gpu, mig, shared"},
	{"its own nodes, of which there are none", TENANT "    isolation: node\n",
         "p.yaml:4: tenant acme: isolation node: no node of this file is its own"},
	{"its own nodes, which are retired",
         TENANT "    isolation: node\nnodes: [{name: n, tenant: acme, state: retired}, {name: s, shared: true}]\n",
         "p.yaml:4: tenant acme: isolation node: no node of this file is its own"},
	{"whole GPUs without any node", TENANT "    isolation: gpu\n",
         "p.yaml:4: tenant acme: isolation gpu: no node of this file is its own or shared"},
	{"a shared reservation on its own nodes",
         TENANT "    isolation: node\n    workspaces: [{name: a, reserved_shared: 1}]\n"
                "nodes: [{name: n, tenant: acme, model: L4, gpus: 8}]\n",
         "p.yaml:6: workspace acme/a: reserved_shared: the tenant's isolation is node"},
	{"a MIG instance for whole GPUs",
         TENANT
         "    isolation: gpu\n    workspaces: [{name: a, reserved_shared: 1x1g.10gb}]\nnodes: [{name: n, shared: true}]\n",
         "p.yaml:6: workspace acme/a: reserved_shared: the tenant's isolation is gpu"},
	{"a default limit beyond the maximum", TENANT "    maximum: 4\n    default_limit: 5\n",
         "p.yaml:6: tenant acme: default_limit 5 is beyond maximum 4"},
	{"a limit beyond the maximum", TENANT "    maximum: 4\n    workspaces: [{name: a, limit: 5}]\n",
         "p.yaml:6: workspace acme/a: limit 5 is beyond the tenant's maximum 4"},
	{"a limit of one model beyond the maximum of all",
         TENANT "    maximum: 4\n    workspaces: [{name: a, limit: {L4: 2, L40S: 5}}]\n",
         "p.yaml:6: workspace acme/a: limit 5 (L40S) is beyond the tenant's maximum 4"},
	{"reservations beyond the maximum",
         TENANT "    maximum: 4\n    workspaces: [{name: a, reserved: 3}, {name: b, reserved: 2}]\n",
         "p.yaml:5: tenant acme: maximum 4 is below what its workspaces reserve together, 5"},
	{"reservations in both pools beyond the maximum",
         TENANT "    maximum: {L4: 4}\n    workspaces: [{name: a, reserved: {L4: 3}, reserved_shared: {L4: 2}}]\n",
         "p.yaml:5: tenant acme: maximum 4 (L4) is below what its workspaces reserve together, 5"},
	{"a workspace's memory beyond the tenant's",
         TENANT "    limits: {memory: 1Gi}\n    workspaces: [{name: a, limits: {memory: 2Gi}}]\n",
         "p.yaml:6: workspace acme/a: limits: memory (in bytes) 2147483648 is beyond the tenant's 1073741824"},
	{"a priority class that is not there", TENANT "    priority_classes: [gold]\n",
         "p.yaml:4: tenant acme: priority_classes: \"gold\" is not among the file's 0 priority classes"},
	{"a priority class twice", HEAD "priority_classes:\n  - {name: a, value: 1}\n  - {name: a, value: 2}\n",
         "p.yaml:5: priority class \"a\" is already on line 4"},
	{"a priority class twice for a tenant",
         HEAD "priority_classes: [{name: a, value: 1}]\ntenants: [{name: t, priority_classes: [a, a]}]\n",
         "p.yaml:4: tenant t: priority_classes: \"a\" is there twice"},
	{"a priority class without a value", HEAD "priority_classes: [{name: a}]\n",
         "p.yaml:3: key 'value' is missing"},
	{"a priority beyond the most", HEAD "priority_classes: [{name: a, value: 1000001}]\n",
         "p.yaml:3: value is 1000001, outside -1000000 to 1000000"},
	{"GPUs without a model", NODES "  - {name: n, shared: true, gpus: 8}\n",
         "p.yaml:5: node \"n\" says what it has, and needs the key model"},
	{"a model without GPUs", NODES "  - {name: n, shared: true, model: L4}\n",
         "p.yaml:5: node \"n\" has a model, and needs gpus: N, mig: {PROFILE: N} or both"},
	{"instances of a model that cannot be cut", NODES "  - {name: n, shared: true, model: L4, mig: {1g.10gb: 7}}\n",
         "p.yaml:5: mig: the MIG profile \"1g.10gb\" does not exist on the model \"L4\""},
	{"no instances", NODES "  - {name: n, shared: true, model: H100-80GB, mig: {1g.10gb: 0}}\n",
         "p.yaml:5: 1g.10gb is 0, outside 1 to 10000"},
	{"more GPUs than a node can have", NODES "  - {name: n, shared: true, model: L4, gpus: 1025}\n",
         "p.yaml:5: gpus is 1025, outside 0 to 1024"},
	{"instances on more GPUs than a node can have",
         NODES "  - {name: n, shared: true, model: H100-80GB, gpus: 1000, mig: {1g.10gb: 169}}\n",
         "p.yaml:5: node \"n\": its instances need 1025 GPUs, the most is 1024"},
	{"an unknown state of a node", NODES "  - {name: n, shared: true, state: broken}\n",
         "p.yaml:5: state \"broken\" is not one of in-service, maintenance, retired"},
	{"a device without a state", NODES "  - {name: n, shared: true, devices: [{uuid: GPU-1}]}\n",
         "p.yaml:5: a device needs the key state"},
	{"a device with a space", NODES "  - {name: n, shared: true, devices: [{uuid: GPU 1, state: retired}]}\n",
         "p.yaml:5: device uuid \"GPU 1\" must be"},
	{"a device on two nodes",
         NODES "  - {name: n, shared: true, devices: [{uuid: GPU-1, state: retired}]}\n"
               "  - {name: m, shared: true, devices: [{uuid: GPU-1, state: retired}]}\n",
         "p.yaml:6: device \"GPU-1\" is already on line 5"},
};

/* One workspace with these keys, on line 5. */
static const struct refusal contradictions[] = {
	{"a limit below the reservation", "reserved: 4, limit: 2",
         "p.yaml:5: workspace acme/a: limit 2 is below reserved 4"},
	{"a limit below the shared reservation", "reserved_shared: 4, limit: 2",
         "p.yaml:5: workspace acme/a: limit 2 is below reserved 4"},
	{"a limit below the reservation of one model", "reserved: {L4: 1, L40S: 4}, limit: {L4: 1, L40S: 3}",
         "p.yaml:5: workspace acme/a: limit 3 (L40S) is below reserved 4"},
	{"a limit in instances below the reservation",
         "reserved: {H100-80GB: 2x1g.10gb}, limit: {H100-80GB: 1x1g.10gb}",
         "p.yaml:5: workspace acme/a: limit 15/112 (H100-80GB) is below reserved 15/56"},
	{"a debt beyond the limit", "reserved: 4, limit: 8, borrow: 5",
         "p.yaml:5: workspace acme/a: borrow 5 is more than limit less reserved, 4"},
	{"lending more than it has", "reserved: 4, lend: 5",
         "p.yaml:5: workspace acme/a: lend 5 is more than reserved 4"},
	{"lending without a reservation", "lend: 1", "p.yaml:5: workspace acme/a: lend 1 is more than reserved 0"},
};

static void
assert_refused(const char *name, const char *text, const char *want)
{
	owned(policy) struct policy *p = NULL;
	struct err err = {0};

	if (policy_parse("p.yaml", text, strlen(text), &p, &err))
		fail_msg("%s was accepted", name);
	if (p != NULL || err.kind != ERR_INVALID || strstr(err.text, want) == NULL)
		fail_msg("%s: \"%s\", wanted \"%s\"", name, err.text, want);
}

static void
what_is_wrong_is_refused_with_file_line_field_value_and_bound(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++)
		assert_refused(refusals[i].name, refusals[i].text, refusals[i].want);
	for (size_t i = 0; i < ARRAY_LEN(contradictions); i++) {
		owned(mem) char *text = mem_printf(TENANT "    workspaces: [{name: a, %s}]\n", contradictions[i].text);

		assert_refused(contradictions[i].name, text, contradictions[i].want);
	}
}

static void
amounts_at_their_bounds_are_accepted(void **state)
{
	static const char *const sound[] = {
		"reserved: 4, limit: 4, borrow: 0, lend: 4",
		"reserved: 4, limit: none, borrow: none, lend: none",
		"reserved: 0, limit: 0",
		"reserved: \"3/7\", limit: \"3/7\"",
		"reserved: {H100-80GB: 7x1g.10gb}, limit: {H100-80GB: 1}",
		"limits: {cpu: none, memory: none, storage: 0}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sound); i++) {
		owned(mem) char *text =
			mem_printf(TENANT "    maximum: 4\n    workspaces: [{name: a, %s}]\n", sound[i]);
		owned(policy) struct policy *p = parse(text);

		assert_int_equal(p->tenant_count, 1);
	}
}

/* ---- differences and the file again ---- */

static void
assert_diff(const struct policy *from, const struct policy *to, const char *want)
{
	in_place(buf) struct buf out;
	size_t lines = 0, changes;

	buf_init(&out, FILE_MAX);
	changes = policy_diff(from, to, &out);
	assert_string_equal(buf_text(&out), want);
	for (const char *c = want; *c != '\0'; c++)
		lines += *c == '\n';
	assert_int_equal(changes, lines);
}

static void
each_change_of_a_quota_is_one_line(void **state)
{
	owned(policy) struct policy *a = parse(
		HEAD
		"priority_classes: [{name: x, value: 1}, {name: y, value: 2}]\n"
		"tenants:\n"
		"  - {name: t, maximum: 8, priority_classes: [x], members: [{user: u, role: viewer}, {user: v, role: viewer}],\n"
		"     budget: {gpu_hours: 7, kind: hard}, auto_approve: {max: \"3/2\", for: 24h}, workspaces: [{name: w, reserved: 2, limit: 4, weight: 2, limits: {cpu: 1500m}}]}\n"
		"nodes: [{name: n, shared: true, model: L4, gpus: 2, devices: [{uuid: G1, state: retired}]}]\n");
	owned(policy) struct policy *b = parse(
		HEAD
		"priority_classes: [{name: x, value: 3, preemptible: false}, {name: z, value: 2}]\n"
		"tenants:\n"
		"  - {name: t, isolation: mig, default_limit: 2, members: [{user: u, role: developer}, {user: q, role: viewer}],\n"
		"     workspaces: [{name: w, reserved: 3, borrow: 1, members: [{user: k, role: viewer}], idle_timeout: 2h, budget: {amount: 9, currency: EUR}}]}\n"
		"nodes: [{name: n, shared: true, model: L4, gpus: 4, state: maintenance, devices: [{uuid: G2, state: retired}]}]\n");

	(void)state;
	assert_diff(a, b,
	            "~ priority class x 1 preemptible -> 3 not preemptible\n"
	            "+ priority class z 2 preemptible\n"
	            "- priority class y\n"
	            "- tenant t maximum 8\n"
	            "+ tenant t default_limit 2\n"
	            "~ tenant t isolation shared -> mig\n"
	            "- tenant t priority_classes [x]\n"
	            "- tenant t budget {gpu_hours: \"7\", kind: hard}\n"
	            "- tenant t auto_approve {max: 3/2, for: 1d}\n"
	            "~ member t u viewer -> developer\n"
	            "+ member t q viewer\n"
	            "- member t v viewer\n"
	            "~ workspace t/w reserved 2 -> 3\n"
	            "- workspace t/w limit 4\n"
	            "+ workspace t/w borrow 1\n"
	            "~ workspace t/w weight 2 -> 1\n"
	            "+ workspace t/w idle_timeout 2h\n"
	            "- workspace t/w limits {cpu: 1500m}\n"
	            "+ workspace t/w budget {amount: \"9.00\", currency: EUR, kind: soft}\n"
	            "+ member t/w k viewer\n"
	            "~ node n gpus 2 -> 4\n"
	            "~ node n state in-service -> maintenance\n"
	            "+ device G2 state retired\n"
	            "- device G1 state retired\n");
	assert_diff(a, a, "");
	assert_diff(b, b, "");
}

static void
a_policy_written_as_a_file_reads_back_as_the_same(void **state)
{
	owned(policy) struct policy *p = parse(full), *again = NULL;
	in_place(buf) struct buf out;

	(void)state;
	buf_init(&out, FILE_MAX);
	policy_render(p, &out);
	again = parse(buf_text(&out));
	assert_diff(p, again, "");
	assert_diff(again, p, "");
}

/* ---- capacity ---- */

#define POOLS                                                                                                 \
	"nodes:\n"                                                                                            \
	"  - {name: own1, tenant: acme, model: H100-80GB, gpus: 8}\n"                                         \
	"  - {name: own2, tenant: acme, model: H100-80GB, gpus: 4, mig: {1g.10gb: 7}}\n"                      \
	"  - {name: gone, tenant: acme, model: H100-80GB, gpus: 8, state: retired}\n"                         \
	"  - {name: ill, shared: true, model: A100-80GB, gpus: 2, state: maintenance}\n"                      \
	"  - {name: seen, shared: true, model: A100-80GB, gpus: 8, devices: [{uuid: old, state: retired}]}\n" \
	"  - {name: cut, shared: true}\n"                                                                     \
	"  - {name: far, shared: true, cluster: west, model: L4, gpus: 1}\n"

static const struct policy_seen seen[] = {
	{"seen", "u1", "A100-80GB", "", 1, 5040},       {"seen", "old", "A100-80GB", "", 1, 5040},
	{"cut", "u2", "A100-80GB", "3g.40gb", 2, 2340}, {"cut", "u3", "L40S", "", 1, 5040},
	{"stranger", "u4", "H100-80GB", "", 1, 5040},
};

/* Own: 12 H100 and 7 instances, 12 + 4725/5040 GPUs. Shared: 2 + 1 A100, 2 x 3g.40gb of A100, 1 L40S. */
static const struct {
	const char *name, *workspaces, *want; /* NULL: it fits */
} capacities[] = {
	{"all whole GPUs", "{name: a, reserved: 12}", NULL},
	{"a GPU in parts of two workspaces", "{name: a, reserved: \"1/2\"}, {name: b, reserved: 11}", NULL},
	{"more than there are", "{name: a, reserved: 8}, {name: b, reserved: 5}",
         "p.yaml:5: workspace acme/b: reserved 5: with it 13 GPUs of H100-80GB are reserved among the nodes of acme in "
         "cluster demo, which have 207/16"},
	{"all instances", "{name: a, reserved: 7x1g.10gb}, {name: b, reserved: 12}", NULL},
	{"an instance too many", "{name: a, reserved: 4x1g.10gb}, {name: b, reserved: 4x1g.10gb}",
         "p.yaml:5: workspace acme/b: reserved 4x1g.10gb: with it 8 1g.10gb instances of H100-80GB are reserved among the "
         "nodes of acme in cluster demo, which have 7"},
	{"instances that are not there", "{name: a, reserved: 1x2g.20gb}",
         "the nodes of acme in cluster demo have no 2g.20gb instance of H100-80GB"},
	{"a family for its only model", "{name: a, reserved: {H100: 12}}", NULL},
	{"a model that is not there", "{name: a, reserved: {B200: 1}}",
         "the nodes of acme in cluster demo have no B200, but H100-80GB"},
	{"no model where there are two", "{name: a, reserved_shared: 1}",
         "p.yaml:5: workspace acme/a: reserved_shared 1: the shared nodes of cluster demo have several models, A100-80GB, "
         "L40S: write which, {MODEL: N}"},
	{"what was seen, and what is in maintenance", "{name: a, reserved_shared: {A100-80GB: 3, L40S: 1}}", NULL},
	{"declared GPUs of a node that was seen", "{name: a, reserved_shared: {A100-80GB: 4}}",
         "with it 4 GPUs of A100-80GB are reserved among the shared nodes of cluster demo, which have 55/14"},
	{"instances that were seen", "{name: a, reserved_shared: {A100-80GB: 2x3g.40gb}}", NULL},
	{"one that was not seen", "{name: a, reserved_shared: {A100-80GB: 3x3g.40gb}}", "which have 2"},
	{"another cluster's pool", "{name: a, cluster: west, reserved_shared: 1}", NULL},
	{"more than another cluster has", "{name: a, cluster: west, reserved_shared: 2}",
         "with it 2 GPUs of L4 are reserved among the shared nodes of cluster west, which have 1"},
	{"its own nodes in a cluster where it has none", "{name: a, cluster: west, reserved: 1}",
         "the nodes of acme in cluster west have no GPU"},
	{"one model by two names", "{name: a, reserved: {H100: 1, H100-80GB: 1}}",
         "two of these amounts are of the same model"},
	{"nothing, of any model", "{name: a, reserved: 0, reserved_shared: {B200: 0}}", NULL},
};

static void
what_is_reserved_fits_what_the_nodes_have(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(capacities); i++) {
		owned(mem) char *text = mem_printf(TENANT "    workspaces: [%s]\n" POOLS, capacities[i].workspaces);
		in_place(policy_reservations) struct policy_reservations r = {0};
		owned(policy) struct policy *p = parse(text);
		struct err err = {0};
		bool fits = policy_reserve(p, seen, ARRAY_LEN(seen), NULL, "p.yaml", &r, &err);

		if (fits != (capacities[i].want == NULL))
			fail_msg("%s: %s", capacities[i].name, fits ? "accepted" : err.text);
		if (!fits && strstr(err.text, capacities[i].want) == NULL)
			fail_msg("%s: \"%s\", wanted \"%s\"", capacities[i].name, err.text, capacities[i].want);
	}
}

static void
a_limit_of_a_name_for_two_models_is_refused_by_its_key(void **state)
{
	static const char *const keys[] = {"maximum", "default_limit", "limit", "borrow"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const bool of_tenant = i < 2;
		owned(mem) char *limit = mem_printf("%s: {A100: 1}", keys[i]);
		owned(mem) char *text = mem_printf(TENANT "    %s\n    workspaces: [{name: a, weight: 1%s%s}]\nnodes:\n"
		                                          "  - {name: n1, shared: true, model: A100-80GB, gpus: 8}\n"
		                                          "  - {name: n2, shared: true, model: A100-40GB, gpus: 8}\n",
		                                   of_tenant ? limit : "owner: o@example.com", of_tenant ? "" : ", ",
		                                   of_tenant ? "" : limit);
		owned(mem) char *want = mem_printf("%s: %s {A100: 1}: \"A100\" stands for several models",
		                                   of_tenant ? "tenant acme" : "workspace acme/a", keys[i]);
		in_place(policy_reservations) struct policy_reservations r = {0};
		owned(policy) struct policy *p = parse(text);
		struct err err = {0};

		assert_false(policy_reserve(p, NULL, 0, NULL, "p.yaml", &r, &err));
		if (strstr(err.text, want) == NULL)
			fail_msg("%s: \"%s\", wanted \"%s\"", keys[i], err.text, want);
	}
}

static void
a_reservation_gets_its_model_and_weight(void **state)
{
	owned(policy) struct policy *p = parse(
		TENANT
		"    workspaces: [{name: a, reserved: {H100: 2x1g.10gb}}, {name: b, reserved_shared: {A100-80GB: 1}}]\n" POOLS);
	in_place(policy_reservations) struct policy_reservations r = {0};
	struct err err = {0};

	(void)state;
	assert_true(policy_reserve(p, seen, ARRAY_LEN(seen), NULL, "p.yaml", &r, &err));
	assert_int_equal(r.count, 2);
	assert_string_equal(r.at[0].model, "H100-80GB");
	assert_string_equal(r.at[0].profile, "1g.10gb");
	assert_int_equal(r.at[0].instances, 2);
	assert_int_equal(r.at[0].units, 2 * 675);
	assert_false(r.at[0].shared);
	assert_true(r.at[1].shared);
	assert_int_equal(r.at[1].units, 5040);
	assert_int_equal(r.at[1].instances, 0);
}

/* What one tenant has was granted beside the others', so a pool that has shrunk since does not hold it up. */
static void
one_tenant_alone_is_not_held_against_the_pool(void **state)
{
	owned(policy) struct policy *p = parse(TENANT "    workspaces: [{name: a, reserved: 99}]\n" POOLS);
	in_place(policy_reservations) struct policy_reservations r = {0}, none = {0};
	struct err err = {0};

	(void)state;
	assert_true(policy_reserve(p, seen, ARRAY_LEN(seen), "acme", "p.yaml", &r, &err));
	assert_int_equal(r.count, 1);
	assert_true(policy_reserve(p, seen, ARRAY_LEN(seen), "other", "p.yaml", &none, &err));
	assert_int_equal(none.count, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tenant_s_quotas_are_read_as_they_stand),
		cmocka_unit_test(a_workspace_s_quotas_are_read_as_they_stand),
		cmocka_unit_test(a_node_says_what_it_has_and_in_which_state_it_is),
		cmocka_unit_test(what_is_wrong_is_refused_with_file_line_field_value_and_bound),
		cmocka_unit_test(amounts_at_their_bounds_are_accepted),
		cmocka_unit_test(each_change_of_a_quota_is_one_line),
		cmocka_unit_test(a_policy_written_as_a_file_reads_back_as_the_same),
		cmocka_unit_test(what_is_reserved_fits_what_the_nodes_have),
		cmocka_unit_test(a_limit_of_a_name_for_two_models_is_refused_by_its_key),
		cmocka_unit_test(a_reservation_gets_its_model_and_weight),
		cmocka_unit_test(one_tenant_alone_is_not_held_against_the_pool),
	};

	return cmocka_run_group_tests_name("policy_quota", tests, NULL, NULL);
}

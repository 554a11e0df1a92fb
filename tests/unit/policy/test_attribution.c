/* tests/unit/policy/test_attribution.c - the numbered rules of aggregator/core/policy/attribution.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/policy/attribution.h"

static char empty[] = "";

static struct wire_holder
pod(char *ns)
{
	return (struct wire_holder){.kind = WIRE_POD,
	                            .ns = ns,
	                            .pod = empty,
	                            .pod_uid = empty,
	                            .container = empty,
	                            .slurm_job = empty,
	                            .slurm_account = empty,
	                            .user = empty,
	                            .uid = -1,
	                            .group = empty,
	                            .labels = empty};
}

static struct wire_holder
job(char *account, char *user, int64_t uid)
{
	struct wire_holder h = pod(empty);

	h.kind = WIRE_SLURM_JOB;
	h.slurm_account = account;
	h.user = user;
	h.uid = uid;
	return h;
}

static struct wire_holder
host_user(char *user, int64_t uid)
{
	struct wire_holder h = job(empty, user, uid);

	h.kind = WIRE_HOST_USER;
	return h;
}

static struct wire_holder
member(char *user, char *group)
{
	struct wire_holder h = host_user(user, 7);

	h.group = group;
	return h;
}

static struct wire_holder
labelled(char *ns, char *labels)
{
	struct wire_holder h = pod(ns);

	h.labels = labels;
	return h;
}

/* A pod that also carries what only others have. */
static struct wire_holder
spoilt_pod(char *ns, char *account)
{
	struct wire_holder h = pod(ns);

	h.slurm_account = h.group = account;
	h.uid = 0;
	return h;
}

static void
one_rule_matches_or_does_not(void **state)
{
	static char ns[] = "acme-training", account[] = "acme-gpu", alice[] = "alice", uid_text[] = "20001";
	static char staff[] = "staff", labels[] = "app=web,empty=,x.io/team=ml-core";
	struct wire_holder spoilt_job = job(account, alice, 7);
	spoilt_job.labels = labels;
	const struct {
		const char *name;
		struct attribution_rule rule;
		struct wire_holder holder;
		bool want;
	} rows[] = {
		{"a namespace matches itself", {.ns = "acme-training"}, pod(ns), true},
		{"a namespace matches its pattern", {.ns = "acme-*"}, pod(ns), true},
		{"a namespace does not match another", {.ns = "globex-*"}, pod(ns), false},
		{"a namespace pattern does not match a job", {.ns = "*"}, job(account, alice, 7), false},
		{"an account matches", {.slurm_account = "acme-*"}, job(account, alice, 7), true},
		{"an account pattern does not match a pod", {.slurm_account = "*"}, pod(ns), false},
		{"a user matches by name", {.user = "alice"}, host_user(alice, 7), true},
		{"a user matches by uid", {.user = "7"}, host_user(alice, 7), true},
		{"a user known only by uid matches by it", {.user = "20001"}, host_user(uid_text, 20001), true},
		{"a user matches by uid where no name is known", {.user = "20001"}, host_user(empty, 20001), true},
		{"any user matches *", {.user = "*"}, host_user(alice, 7), true},
		{"nobody does not match *", {.user = "*"}, host_user(empty, -1), false},
		{"a job's user matches too", {.user = "alice"}, job(account, alice, 7), true},
		{"all patterns must match", {.slurm_account = "acme-*", .user = "bob"}, job(account, alice, 7), false},
		{"all patterns do match", {.slurm_account = "acme-*", .user = "al?ce"}, job(account, alice, 7), true},
		{"the cluster matches", {.cluster = "demo"}, pod(ns), true},
		{"another cluster does not", {.cluster = "prod*", .ns = "acme-training"}, pod(ns), false},
		{"the uid inside a pod decides nothing", {.user = "0"}, spoilt_pod(ns, account), false},
		{"an account inside a pod decides nothing", {.slurm_account = "*"}, spoilt_pod(ns, account), false},
		{"a job without an account does not match *", {.slurm_account = "*"}, job(empty, alice, 7), false},
		{"a group matches", {.group = "st?ff"}, member(alice, staff), true},
		{"another group does not", {.group = "gpu*"}, member(alice, staff), false},
		{"a user whose group is not known does not match *", {.group = "*"}, host_user(alice, 7), false},
		{"user and group must both match", {.group = "staff", .user = "bob"}, member(alice, staff), false},
		{"a group inside a pod decides nothing", {.group = "*"}, spoilt_pod(ns, account), false},
		{"a label matches its pattern", {.labels = "x.io/team=ml-*"}, labelled(ns, labels), true},
		{"another value does not", {.labels = "x.io/team=ops"}, labelled(ns, labels), false},
		{"a pattern is for the whole value", {.labels = "app=we"}, labelled(ns, labels), false},
		{"all labels of a rule must match", {.labels = "app=web,x.io/team=ops"}, labelled(ns, labels), false},
		{"all labels of a rule do match", {.labels = "app=*,x.io/team=ml-*"}, labelled(ns, labels), true},
		{"a label that the pod lacks does not match *", {.labels = "team=*"}, labelled(ns, labels), false},
		{"part of a key is another key", {.labels = "ap=*"}, labelled(ns, labels), false},
		{"the empty value matches *", {.labels = "empty=*"}, labelled(ns, labels), true},
		{"the empty value matches the empty pattern", {.labels = "empty="}, labelled(ns, labels), true},
		{"another value does not match the empty pattern", {.labels = "app="}, labelled(ns, labels), false},
		{"a pod without labels does not match", {.labels = "app=*"}, pod(ns), false},
		{"namespace and labels must both match",
	         {.ns = "other", .labels = "app=*"},
	         labelled(ns, labels),
	         false},
		{"namespace and labels do both match", {.ns = "acme-*", .labels = "app=*"}, labelled(ns, labels), true},
		{"labels of a job decide nothing", {.labels = "app=*"}, spoilt_job, false},
		{"a vCluster's pods are in its host namespace",
	         {.ns = "vc-acme-*"},
	         pod((char[]){"vc-acme-dev"}),
	         true},
		{"a vCluster's namespaces are labels of its pods",
	         {.ns = "vc-*", .labels = "vcluster.loft.sh/namespace=train*"},
	         labelled((char[]){"vc-acme-dev"}, (char[]){"vcluster.loft.sh/namespace=training"}),
	         true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if ((attribution_match(&rows[i].rule, 1, "demo", &rows[i].holder) != NULL) != rows[i].want)
			fail_msg("%s", rows[i].name);
	}
}

static void
the_lowest_priority_number_is_asked_first_then_the_lowest_id(void **state)
{
	static char ns[] = "acme-training";
	struct attribution_rule rules[] = {
		{.id = 4, .workspace_id = 40, .priority = 100, .ns = "acme-*"},
		{.id = 1, .workspace_id = 10, .priority = 200, .ns = "*"},
		{.id = 3, .workspace_id = 30, .priority = 100, .ns = "*-training"},
		{.id = 9, .workspace_id = 90, .priority = 10, .ns = "other"},
	};
	struct wire_holder h = pod(ns);
	const struct attribution_rule *r;

	(void)state;
	attribution_sort(rules, ARRAY_LEN(rules));
	assert_int_equal(rules[0].id, 9);
	assert_int_equal(rules[1].id, 3);
	assert_int_equal(rules[2].id, 4);
	assert_int_equal(rules[3].id, 1);
	r = attribution_match(rules, ARRAY_LEN(rules), "demo", &h);
	assert_non_null(r);
	assert_int_equal(r->workspace_id, 30);
}

static void
without_a_matching_rule_usage_is_unattributed(void **state)
{
	static char ns[] = "acme-training";
	static const struct attribution_rule rule = {.ns = "globex"};
	struct wire_holder h = pod(ns);

	(void)state;
	assert_null(attribution_match(&rule, 1, "demo", &h));
	assert_null(attribution_match(NULL, 0, "demo", &h));
	attribution_sort(NULL, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_rule_matches_or_does_not),
		cmocka_unit_test(the_lowest_priority_number_is_asked_first_then_the_lowest_id),
		cmocka_unit_test(without_a_matching_rule_usage_is_unattributed),
	};

	return cmocka_run_group_tests_name("attribution", tests, NULL, NULL);
}

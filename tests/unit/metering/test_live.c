/* What a node may say of this moment, and what is said about what it may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "aggregator/core/metering/live.h"
#include "common/conf/json.h"

#define HEAD                                                                                                \
	"\"node\":\"n1\",\"boot_id\":\"abcd0000-0000-0000-0000-000000000001\",\"boot_ns\":5,\"wall_ns\":7," \
	"\"interval_ns\":5000000000,\"simulated\":false,\"left_out\":0"
#define GPU(uuid, replicas, instances, holders)                                                                    \
	"{\"uuid\":\"" uuid "\",\"model\":\"NVIDIA H100 80GB HBM3\",\"index\":0,\"healthy\":true,\"reason\":\"\"," \
	"\"xid\":0,\"sharing\":\"exclusive\",\"replicas\":" replicas ",\"instances\":[" instances                  \
	"],\"holders\":[" holders "]}"
#define INSTANCE(uuid, units) "{\"gi\":1,\"ci\":0,\"units\":" units ",\"uuid\":\"" uuid "\",\"profile\":\"3g.40gb\"}"
#define HOLDER(kind, device)                                                                            \
	"{\"kind\":\"" kind "\",\"pod\":\"train\",\"uid\":-1,\"device\":\"" device "\",\"replica\":-1," \
	"\"allocated\":true,\"holds\":true,\"active\":false}"
#define MESSAGE(gpus) "{" HEAD ",\"gpus\":[" gpus "]}"

static const struct {
	const char *name, *text, *says;
} refused[] = {
	{"no JSON", "{", "body:1:1"},
	{"a list", "[]", "a JSON object"},
	{"no node", "{\"gpus\":[]}", "node is missing"},
	{"a boot that is no UUID", "{\"node\":\"n1\",\"boot_id\":\"ABCD0000-0000-0000-0000-000000000001\"}",
         "boot_id ABCD0000"},
	{"no GPUs", "{" HEAD "}", "gpus must be a list"},
	{"a GPU that is a number", MESSAGE("7"), "gpus[0]. must be an object"},
	{"a GPU without a name", MESSAGE(GPU("", "1", "", "")), "gpus[0].uuid has 0 bytes"},
	{"a GPU twice", MESSAGE(GPU("a", "1", "", "") "," GPU("a", "1", "", "")), "gpus[1].uuid a is there twice"},
	{"no replica", MESSAGE(GPU("a", "0", "", "")), "gpus[0].replicas is 0"},
	{"more replicas than units", MESSAGE(GPU("a", "5041", "", "")), "gpus[0].replicas is 5041"},
	{"half a replica", MESSAGE(GPU("a", "1.5", "", "")), "gpus[0].replicas must be a whole number"},
	{"an instance twice", MESSAGE(GPU("a", "1", INSTANCE("m", "10") "," INSTANCE("m", "10"), "")),
         "gpus[0].instances[1].uuid m is there twice"},
	{"instances that weigh more than their GPU",
         MESSAGE(GPU("a", "1", INSTANCE("m", "5040") "," INSTANCE("n", "1"), "")), "weigh 5041 units together"},
	{"cut and shared at once", MESSAGE(GPU("a", "2", INSTANCE("m", "10"), "")),
         "gpus[0].replicas is 2 of a GPU that has instances"},
	{"a holder of no kind", MESSAGE(GPU("a", "1", "", HOLDER("king", "a"))), "gpus[0].holders[0].kind \"king\""},
	{"a holder of another GPU", MESSAGE(GPU("a", "1", "", HOLDER("pod", "b"))),
         "gpus[0].holders[0].device b is neither"},
	{"control characters", MESSAGE(GPU("a\\u0007", "1", "", "")),
         "gpus[0].uuid has control or direction characters"},
	{"a time before 1970", "{\"node\":\"n\",\"boot_id\":\"abcd0000-0000-0000-0000-000000000001\",\"boot_ns\":-1}",
         "boot_ns is -1"},
};

static void
what_is_wrong_is_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		owned(live_status) struct live_status *s = NULL;
		struct err err = {0};

		if (live_parse(refused[i].text, strlen(refused[i].text), &s, &err))
			fail_msg("%s: was taken", refused[i].name);
		if (err.kind != ERR_INVALID || !strstr(err.text, refused[i].says))
			fail_msg("%s: says \"%s\"", refused[i].name, err.text);
	}
}

static struct live_status *
parsed(const char *text)
{
	struct live_status *s = NULL;
	struct err err = {0};

	if (!live_parse(text, strlen(text), &s, &err))
		fail_msg("%s", err.text);
	return s;
}

static void
a_message_becomes_three_flat_lists(void **state)
{
	owned(live_status) struct live_status *s =
		parsed(MESSAGE(GPU("a", "1", INSTANCE("m", "2340"), HOLDER("pod", "m")) "," GPU("b", "4", "", "")));

	(void)state;
	assert_string_equal(s->node, "n1");
	assert_int_equal(s->gpu_count, 2);
	assert_int_equal(s->healthy_count, 2);
	assert_string_equal(
		buf_text(&s->gpus),
		"[{\"uuid\":\"a\",\"model\":\"NVIDIA H100 80GB HBM3\",\"short_model\":\"H100-80GB\",\"index\":0,"
		"\"healthy\":true,\"reason\":\"\",\"xid\":0,\"xid_at\":0,\"sharing\":\"exclusive\",\"replicas\":1},"
		"{\"uuid\":\"b\",\"model\":\"NVIDIA H100 80GB HBM3\",\"short_model\":\"H100-80GB\",\"index\":0,"
		"\"healthy\":true,\"reason\":\"\",\"xid\":0,\"xid_at\":0,\"sharing\":\"exclusive\",\"replicas\":4}]");
	assert_string_equal(
		buf_text(&s->instances),
		"[{\"gpu\":\"a\",\"uuid\":\"m\",\"profile\":\"3g.40gb\",\"gi\":1,\"ci\":0,\"units\":2340}]");
	assert_string_equal(
		buf_text(&s->holders),
		"[{\"gpu\":\"a\",\"device\":\"m\",\"replica\":-1,\"kind\":1,\"namespace\":\"\",\"pod\":\"train\","
		"\"pod_uid\":\"\",\"container\":\"\",\"slurm_job\":\"\",\"slurm_account\":\"\",\"user_name\":\"\","
		"\"uid\":-1,\"allocated\":true,\"holds\":true,\"active\":false}]");
}

static void
only_what_changed_changes_the_digest(void **state)
{
	static const char later[] =
		"{\"node\":\"n1\",\"boot_id\":\"abcd0000-0000-0000-0000-000000000001\",\"boot_ns\":50,\"wall_ns\":70,"
		"\"interval_ns\":5000000000,\"simulated\":false,\"left_out\":0,\"of_tomorrow\":{},\"gpus\":[" GPU(
			"a", "1", "", "") "]}";
	owned(live_status) struct live_status *first = parsed(MESSAGE(GPU("a", "1", "", "")));
	owned(live_status) struct live_status *second = parsed(later);
	owned(live_status) struct live_status *held = parsed(MESSAGE(GPU("a", "1", "", HOLDER("pod", "a"))));

	(void)state;
	assert_memory_equal(first->digest, second->digest, sizeof(first->digest));
	assert_memory_not_equal(first->digest, held->digest, sizeof(first->digest));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_wrong_is_named),
		cmocka_unit_test(a_message_becomes_three_flat_lists),
		cmocka_unit_test(only_what_changed_changes_the_digest),
	};

	return cmocka_run_group_tests_name("live", tests, NULL, NULL);
}

/* What the message about this moment says, and the thread that sends it against a server that plays the aggregator. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/http/httpd.h"
#include "common/conf/json.h"
#include "common/base/log.h"
#include "common/base/time.h"
#include "exporter/delivery/push.h"
#include "exporter/delivery/status.h"

#define PATIENCE_S 300 /* only a test that would hang waits this long */

/* ---- the message ---- */

static char empty[] = "", ns[] = "acme", pod[] = "train-0", uid_text[] = "6f9c", container[] = "main", user[] = "alice";
static char job[] = "17", account[] = "physics";
static struct wire_holder a_pod, a_job, a_user;

static void
make_holders(void)
{
	const struct wire_holder nobody = {.ns = empty,
	                                   .pod = empty,
	                                   .pod_uid = empty,
	                                   .container = empty,
	                                   .slurm_job = empty,
	                                   .slurm_account = empty,
	                                   .user = empty,
	                                   .uid = -1};

	a_pod = a_job = a_user = nobody;
	a_pod.kind = WIRE_POD;
	a_pod.ns = ns;
	a_pod.pod = pod;
	a_pod.pod_uid = uid_text;
	a_pod.container = container;
	a_job.kind = WIRE_SLURM_JOB;
	a_job.slurm_job = job;
	a_job.slurm_account = account;
	a_user.kind = WIRE_HOST_USER;
	a_user.user = a_job.user = user;
	a_user.uid = a_job.uid = 1000;
}

struct scene {
	struct gpu_reading readings[2];
	struct tick_gpu gpus[2];
	struct tick_process processes[4];
	struct tick_allocation allocations[4];
	struct tick tick;
	struct status_input in;
};

static void
scene_init(struct scene *s)
{
	*s = (struct scene){0};
	for (size_t i = 0; i < ARRAY_LEN(s->readings); i++) {
		struct gpu_reading *r = &s->readings[i];

		gpu_reading_clear(r);
		snprintf(r->uuid, sizeof(r->uuid), "GPU-%zu", i);
		snprintf(r->model, sizeof(r->model), "NVIDIA H100 80GB HBM3");
		r->index = (int32_t)i;
		s->gpus[i].reading = r;
		s->gpus[i].processes = &s->processes[2 * i];
	}
	s->tick = (struct tick){.boot_ns = 5, .gpus = s->gpus, .gpu_count = 1, .allocations = s->allocations};
	s->in = (struct status_input){.node = "n1",
	                              .boot_id = {0xab, 0xcd, [15] = 0x01},
	                              .boot_ns = 5,
	                              .wall_ns = 7,
	                              .interval_ns = NS_PER_S,
	                              .replicas = 1,
	                              .tick = &s->tick};
}

static void
cut_in_two(struct gpu_reading *r)
{
	r->mig = true;
	r->instance_count = 2;
	for (int i = 0; i < 2; i++) {
		struct gpu_instance *in = &r->instances[i];

		*in = (struct gpu_instance){.gi = i + 1, .ci = 0, .units = 2340};
		snprintf(in->uuid, sizeof(in->uuid), "MIG-%d", i);
		snprintf(in->profile, sizeof(in->profile), "3g.40gb");
	}
}

/* The message, parsed: what the aggregator reads must at least be JSON. */
static json_t *
message(const struct scene *s)
{
	in_place(buf) struct buf text;
	json_t *j = NULL;
	struct err err;

	buf_init(&text, STATUS_MAX);
	status_write(&s->in, &text);
	if (!buf_ok(&text, "the message", &err) || !json_parse("message", buf_text(&text), text.len, &j, &err))
		fail_msg("%s", err.text);
	return j;
}

static json_t *
gpu(json_t *message, size_t i)
{
	return json_array_get(json_object_get(message, "gpus"), i);
}

static json_t *
holder(json_t *message, size_t g, size_t i)
{
	return json_array_get(json_object_get(gpu(message, g), "holders"), i);
}

static const char *
text_of(const json_t *j, const char *field)
{
	return json_string_value(json_object_get(j, field));
}

static bool
truth_of(const json_t *j, const char *field)
{
	assert_true(json_is_boolean(json_object_get(j, field)));
	return json_is_true(json_object_get(j, field));
}

static void
a_free_gpu_is_said_in_full(void **state)
{
	static const char expected[] =
		"{\"node\":\"n1\",\"boot_id\":\"abcd0000-0000-0000-0000-000000000001\",\"boot_ns\":5,\"wall_ns\":7,"
		"\"interval_ns\":1000000000,\"simulated\":false,\"gpus\":[{\"uuid\":\"GPU-0\","
		"\"model\":\"NVIDIA H100 80GB HBM3\",\"index\":0,\"healthy\":true,\"reason\":\"\",\"xid\":0,\"xid_at\":0,"
		"\"sharing\":\"exclusive\",\"replicas\":1,\"instances\":[],\"holders\":[]}],\"left_out\":0}";
	struct scene *s = mem_alloc(sizeof(*s));
	in_place(buf) struct buf text;

	(void)state;
	scene_init(s);
	buf_init(&text, STATUS_MAX);
	status_write(&s->in, &text);
	assert_string_equal(buf_text(&text), expected);
	mem_free(s);
}

static void
an_allocation_holds_and_a_process_beside_it_does_not(void **state)
{
	struct scene *s = mem_alloc(sizeof(*s));
	owned(json) json_t *j = NULL;

	(void)state;
	scene_init(s);
	s->allocations[0] = (struct tick_allocation){.holder = &a_pod, .device_uuid = "GPU-0", .replica = -1};
	s->allocations[1] = (struct tick_allocation){.holder = &a_job, .device_uuid = "GPU-9", .replica = -1};
	s->tick.allocation_count = 2;
	s->processes[0] = (struct tick_process){.holder = &a_user, .pid = 1, .gi = -1, .ci = -1};
	s->processes[1] = (struct tick_process){.holder = &a_user, .pid = 2, .gi = -1, .ci = -1};
	s->gpus[0].process_count = 2;
	j = message(s);
	assert_int_equal(json_array_size(json_object_get(gpu(j, 0), "holders")), 2);
	assert_string_equal(text_of(holder(j, 0, 0), "kind"), "pod");
	assert_string_equal(text_of(holder(j, 0, 0), "namespace"), "acme");
	assert_string_equal(text_of(holder(j, 0, 0), "pod_uid"), "6f9c");
	assert_string_equal(text_of(holder(j, 0, 0), "device"), "GPU-0");
	assert_true(truth_of(holder(j, 0, 0), "allocated") && truth_of(holder(j, 0, 0), "holds"));
	assert_false(truth_of(holder(j, 0, 0), "active"));
	assert_string_equal(text_of(holder(j, 0, 1), "user"), "alice");
	assert_false(truth_of(holder(j, 0, 1), "allocated") || truth_of(holder(j, 0, 1), "holds"));
	assert_true(truth_of(holder(j, 0, 1), "active"));
	mem_free(s);
}

static void
on_a_partitioned_gpu_everyone_is_at_an_instance(void **state)
{
	struct scene *s = mem_alloc(sizeof(*s));
	owned(json) json_t *j = NULL;

	(void)state;
	scene_init(s);
	cut_in_two(&s->readings[0]);
	s->allocations[0] = (struct tick_allocation){.holder = &a_job, .device_uuid = "MIG-1", .replica = -1};
	s->tick.allocation_count = 1;
	s->processes[0] = (struct tick_process){.holder = &a_user, .pid = 1, .gi = 1, .ci = 0};
	s->processes[1] = (struct tick_process){.holder = &a_user, .pid = 2, .gi = -1, .ci = -1};
	s->gpus[0].process_count = 2;
	j = message(s);
	assert_string_equal(text_of(gpu(j, 0), "sharing"), "mig");
	assert_int_equal(json_array_size(json_object_get(gpu(j, 0), "instances")), 2);
	assert_int_equal(json_array_size(json_object_get(gpu(j, 0), "holders")), 2);
	assert_string_equal(text_of(holder(j, 0, 0), "device"), "MIG-1");
	assert_string_equal(text_of(holder(j, 0, 0), "slurm_account"), "physics");
	/* instance 0 is allocated to nobody, so a process there holds it */
	assert_string_equal(text_of(holder(j, 0, 1), "device"), "MIG-0");
	assert_true(truth_of(holder(j, 0, 1), "holds"));
	mem_free(s);
}

static void
replicas_are_those_of_the_scheduler_or_of_the_option(void **state)
{
	struct scene *s = mem_alloc(sizeof(*s));
	json_t *j;

	(void)state;
	scene_init(s);
	s->in.replicas = 2;
	j = message(s);
	assert_string_equal(text_of(gpu(j, 0), "sharing"), "timeslice");
	assert_int_equal(json_integer_value(json_object_get(gpu(j, 0), "replicas")), 2);
	json_decref(j);
	s->allocations[0] =
		(struct tick_allocation){.holder = &a_pod, .device_uuid = "GPU-0", .replica = 3, .replica_of = 4};
	s->tick.allocation_count = 1;
	j = message(s);
	assert_int_equal(json_integer_value(json_object_get(gpu(j, 0), "replicas")), 4);
	assert_int_equal(json_integer_value(json_object_get(holder(j, 0, 0), "replica")), 3);
	json_decref(j);
	mem_free(s);
}

static void
what_is_wrong_with_a_gpu_is_told_with_its_newest_error(void **state)
{
	struct scene *s = mem_alloc(sizeof(*s));
	owned(json) json_t *j = NULL;

	(void)state;
	scene_init(s);
	s->tick.gpu_count = 2;
	s->readings[0].xids[0] = (struct gpu_xid){.code = 48, .count = 1, .last_wall_ns = 9};
	s->readings[0].xids[1] = (struct gpu_xid){.code = 79, .count = 1, .last_wall_ns = 10};
	s->readings[0].xid_count = 2;
	gpu_reading_down(&s->readings[0], GPU_FAULT_LOST, "GPU is lost");
	s->readings[1].silent = true;
	j = message(s);
	assert_false(truth_of(gpu(j, 0), "healthy"));
	assert_string_equal(text_of(gpu(j, 0), "reason"), "GPU is lost");
	assert_int_equal(json_integer_value(json_object_get(gpu(j, 0), "xid")), 79);
	assert_true(json_integer_value(json_object_get(gpu(j, 0), "xid_at")) > 0);
	assert_false(truth_of(gpu(j, 1), "healthy"));
	assert_string_equal(text_of(gpu(j, 1), "reason"), "the driver does not answer");
	mem_free(s);
}

static void
a_node_whose_gpus_cannot_be_read_still_says_that_it_is_there(void **state)
{
	struct scene *s = mem_alloc(sizeof(*s));
	owned(json) json_t *j = NULL;

	(void)state;
	scene_init(s);
	s->in.tick = NULL;
	j = message(s);
	assert_int_equal(json_array_size(json_object_get(j, "gpus")), 0);
	assert_string_equal(text_of(j, "node"), "n1");
	mem_free(s);
}

/* As many holders as a GPU may have processes, each with texts as long as they get. */
static void
holders_that_do_not_fit_are_counted_and_the_message_stays_sound(void **state)
{
	enum { N = 4096 };
	struct scene *s = mem_alloc(sizeof(*s));
	struct wire_holder *holders = mem_array(N, sizeof(*holders));
	struct tick_process *processes = mem_array(N, sizeof(*processes));
	char longest[WIRE_MAX_TEXT + 1];
	json_t *j;
	size_t told;

	(void)state;
	memset(longest, '"', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	scene_init(s);
	for (size_t i = 0; i < N; i++) {
		holders[i] = a_pod;
		holders[i].pod = longest;
		processes[i] = (struct tick_process){.holder = &holders[i], .pid = (uint32_t)i + 1, .gi = -1, .ci = -1};
	}
	s->gpus[0].processes = processes;
	s->gpus[0].process_count = N;
	j = message(s);
	told = json_array_size(json_object_get(gpu(j, 0), "holders"));
	assert_true(told > 100 && told < N);
	assert_int_equal((size_t)json_integer_value(json_object_get(j, "left_out")) + told, N);
	json_decref(j);
	mem_free(holders);
	mem_free(processes);
	mem_free(s);
}

/* ---- the thread ---- */

struct aggregator {
	struct httpd *httpd;
	struct status *status;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool hangs;
	int requests; /* that came, answered or not */
	int status_code;
	char last[256];
	bool odd;
	char url[64];
};

static void
handle(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct aggregator *a = app;
	const char *encoding = http_header(rq, "Content-Encoding"), *clock = http_header(rq, PUSH_CLOCK_HEADER);

	(void)worker;
	pthread_mutex_lock(&a->lock);
	a->requests++;
	a->odd |= !encoding || strcmp(encoding, "gzip") != 0 || !clock;
	snprintf(a->last, sizeof(a->last), "%.*s", (int)rq->body_len, rq->body);
	pthread_cond_broadcast(&a->moved);
	while (a->hangs)
		pthread_cond_wait(&a->moved, &a->lock);
	if (a->status_code != 200)
		http_problem(rp, rq, a->status_code, NULL, "no");
	else
		buf_str(&rp->body, "{}");
	pthread_mutex_unlock(&a->lock);
}

static void
aggregator_start(struct aggregator *a, const char *token_file)
{
	static const struct http_route routes[] = {
		{.method = "POST", .path = STATUS_PATH, .body_max = STATUS_MAX, .handle = handle}};
	struct httpd_options h = {.listen = "127.0.0.1:0",
	                          .routes = routes,
	                          .route_count = ARRAY_LEN(routes),
	                          .app = a,
	                          .workers = 1,
	                          .queue_max = 4,
	                          .idle_timeout_ns = 60 * NS_PER_S,
	                          .connection_max = 8};
	struct status_options o = {.http = {.base_url = a->url,
	                                    .token_file = token_file,
	                                    .user_agent = "test",
	                                    .connect_timeout_ns = NS_PER_S * PATIENCE_S,
	                                    .timeout_ns = NS_PER_S * PATIENCE_S},
	                           .joins = token_file != NULL,
	                           .interval_ns = NS_PER_S * PATIENCE_S};
	struct err err;

	*a = (struct aggregator){.status_code = 200};
	log_init("test_status", LOG_ERROR);
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->moved, NULL);
	if (!httpd_start(&h, &a->httpd, &err))
		fail_msg("%s", err.text);
	snprintf(a->url, sizeof(a->url), "http://127.0.0.1:%u", httpd_port(a->httpd));
	if (!status_start(&o, &a->status, &err))
		fail_msg("%s", err.text);
}

static void
aggregator_stop(struct aggregator *a)
{
	assert_true(status_stop(a->status));
	pthread_mutex_lock(&a->lock);
	a->hangs = false;
	pthread_cond_broadcast(&a->moved);
	pthread_mutex_unlock(&a->lock);
	httpd_stop(a->httpd);
	pthread_mutex_destroy(&a->lock);
	pthread_cond_destroy(&a->moved);
}

static void
offer(struct aggregator *a, const char *text, int64_t boot_ns)
{
	in_place(buf) struct buf b;

	buf_init(&b, STATUS_MAX);
	buf_str(&b, text);
	status_offer(a->status, &b, boot_ns, 77);
}

static void
await_requests(struct aggregator *a, int count)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&a->lock);
	while (a->requests < count)
		if (pthread_cond_timedwait(&a->moved, &a->lock, &until) == ETIMEDOUT) {
			pthread_mutex_unlock(&a->lock);
			fail_msg("request %d never came", count);
		}
	pthread_mutex_unlock(&a->lock);
}

/* Until what came of the messages is known. */
static struct status_stats
await_outcomes(struct aggregator *a, int64_t count)
{
	const struct timespec moment = {.tv_nsec = 1000000};
	struct status_stats stats;

	for (int i = 0; i < PATIENCE_S * 1000; i++) {
		status_stats(a->status, &stats);
		if (stats.sent + stats.failed >= count)
			return stats;
		nanosleep(&moment, NULL);
	}
	fail_msg("outcome %" PRId64 " never came", count);
	return stats;
}

static void
a_message_is_sent_compressed_and_with_the_clock(void **state)
{
	struct aggregator a;
	struct status_stats stats;

	(void)state;
	aggregator_start(&a, NULL);
	status_stats(a.status, &stats);
	assert_int_equal(stats.last_success_wall_ns, -1);
	offer(&a, "{\"n\":1}", 0);
	stats = await_outcomes(&a, 1);
	assert_int_equal(stats.sent, 1);
	assert_true(stats.last_success_wall_ns > 0);
	assert_false(a.odd);
	assert_string_equal(a.last, "{\"n\":1}");
	aggregator_stop(&a);
}

static void
a_refused_message_is_counted_and_not_sent_again(void **state)
{
	struct aggregator a;
	struct status_stats stats;

	(void)state;
	aggregator_start(&a, NULL);
	a.status_code = 503;
	offer(&a, "{\"n\":1}", 0);
	stats = await_outcomes(&a, 1);
	assert_int_equal(stats.failed, 1);
	assert_int_equal(stats.last_success_wall_ns, -1);
	pthread_mutex_lock(&a.lock);
	a.status_code = 200;
	pthread_mutex_unlock(&a.lock);
	offer(&a, "{\"n\":2}", 0);
	stats = await_outcomes(&a, 2);
	assert_int_equal(stats.sent, 1);
	assert_int_equal(a.requests, 2);
	assert_string_equal(a.last, "{\"n\":2}");
	aggregator_stop(&a);
}

static void
while_the_aggregator_hangs_only_the_newest_waits_and_a_stop_does_not(void **state)
{
	struct aggregator a;
	struct status_stats stats;

	(void)state;
	aggregator_start(&a, NULL);
	pthread_mutex_lock(&a.lock);
	a.hangs = true;
	pthread_mutex_unlock(&a.lock);
	offer(&a, "{\"n\":1}", 0);
	await_requests(&a, 1);
	/* returns while the request is under way: this thread is the one that ticks */
	offer(&a, "{\"n\":2}", 0);
	offer(&a, "{\"n\":3}", 0);
	status_stats(a.status, &stats);
	assert_int_equal(stats.replaced, 1);
	assert_int_equal(stats.sent + stats.failed, 0);
	aggregator_stop(&a);
}

static void
a_node_that_has_not_joined_yet_keeps_quiet(void **state)
{
	struct aggregator a;
	struct status_stats stats;
	FILE *f;
	char path[] = "/tmp/test_status.XXXXXX", made[sizeof(path) + 4];
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	unlink(path);
	aggregator_start(&a, path);
	offer(&a, "{\"n\":1}", 0);
	offer(&a, "{\"n\":2}", 0);
	/* as joining writes it: whole or not at all */
	snprintf(made, sizeof(made), "%s.new", path);
	f = fopen(made, "w");
	assert_non_null(f);
	fputs("token\n", f);
	fclose(f);
	assert_int_equal(rename(made, path), 0);
	offer(&a, "{\"n\":3}", 0);
	stats = await_outcomes(&a, 1);
	assert_int_equal(stats.failed, 0);
	aggregator_stop(&a);
	unlink(path);
}

static void
what_a_scheduler_waits_for_changes_the_fingerprint_and_activity_does_not(void **state)
{
	struct scene *s = mem_alloc(sizeof(*s));
	uint64_t free_gpu, allocated, with_process, other_order;

	(void)state;
	scene_init(s);
	a_pod.id = 1;
	a_job.id = 2;
	a_user.id = 3;
	free_gpu = status_fingerprint(&s->in);
	s->in.boot_ns = s->in.wall_ns = 1000;
	assert_int_equal(status_fingerprint(&s->in), free_gpu);
	s->allocations[0] = (struct tick_allocation){.holder = &a_pod, .device_uuid = "GPU-0", .replica = -1};
	s->tick.allocation_count = 1;
	allocated = status_fingerprint(&s->in);
	assert_int_not_equal(allocated, free_gpu);
	/* the pod begins to use its GPU, with one process and then two */
	s->processes[0] = (struct tick_process){.holder = &a_pod, .pid = 1, .gi = -1, .ci = -1};
	s->processes[1] = (struct tick_process){.holder = &a_pod, .pid = 2, .gi = -1, .ci = -1};
	s->gpus[0].process_count = 1;
	assert_int_equal(status_fingerprint(&s->in), allocated);
	s->gpus[0].process_count = 2;
	assert_int_equal(status_fingerprint(&s->in), allocated);
	s->processes[1].holder = &a_user;
	with_process = status_fingerprint(&s->in);
	assert_int_not_equal(with_process, allocated);
	s->processes[1].holder = &a_job;
	s->processes[0].holder = &a_user;
	other_order = status_fingerprint(&s->in);
	assert_int_not_equal(other_order, with_process);
	s->processes[0].holder = &a_job;
	s->processes[1].holder = &a_user;
	assert_int_equal(status_fingerprint(&s->in), other_order);
	s->readings[0].down = true;
	assert_int_not_equal(status_fingerprint(&s->in), other_order);
	cut_in_two(&s->readings[0]);
	s->readings[0].down = false;
	assert_int_not_equal(status_fingerprint(&s->in), other_order);
	s->in.tick = NULL;
	assert_int_not_equal(status_fingerprint(&s->in), other_order);
	mem_free(s);
}

static void
the_next_one_is_due_after_the_interval(void **state)
{
	struct aggregator a;

	(void)state;
	aggregator_start(&a, NULL);
	assert_true(status_due(a.status, 0, 77));
	offer(&a, "{}", 10);
	assert_false(status_due(a.status, 10, 77));
	assert_false(status_due(a.status, 9 + NS_PER_S * PATIENCE_S, 77));
	assert_true(status_due(a.status, 10 + NS_PER_S * PATIENCE_S, 77));
	assert_true(status_due(a.status, 10, 78)); /* other holders than were told */
	(void)await_outcomes(&a, 1);
	aggregator_stop(&a);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_free_gpu_is_said_in_full),
		cmocka_unit_test(an_allocation_holds_and_a_process_beside_it_does_not),
		cmocka_unit_test(on_a_partitioned_gpu_everyone_is_at_an_instance),
		cmocka_unit_test(replicas_are_those_of_the_scheduler_or_of_the_option),
		cmocka_unit_test(what_is_wrong_with_a_gpu_is_told_with_its_newest_error),
		cmocka_unit_test(a_node_whose_gpus_cannot_be_read_still_says_that_it_is_there),
		cmocka_unit_test(holders_that_do_not_fit_are_counted_and_the_message_stays_sound),
		cmocka_unit_test(what_a_scheduler_waits_for_changes_the_fingerprint_and_activity_does_not),
		cmocka_unit_test(a_message_is_sent_compressed_and_with_the_clock),
		cmocka_unit_test(a_refused_message_is_counted_and_not_sent_again),
		cmocka_unit_test(while_the_aggregator_hangs_only_the_newest_waits_and_a_stop_does_not),
		cmocka_unit_test(a_node_that_has_not_joined_yet_keeps_quiet),
		cmocka_unit_test(the_next_one_is_due_after_the_interval),
	};

	make_holders();
	return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}

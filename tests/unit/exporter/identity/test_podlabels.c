/* tsan */
/* tests/unit/exporter/identity/test_podlabels.c - labels of pods: what a kubelet answers, and one that hangs, lies or is away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/time.h"
#include "exporter/identity/kubelet/podlabels.h"

#define PATIENCE_NS (300 * NS_PER_S) /* only ends a test that would hang */

/* ---- which labels ---- */

static void
keys_are_listed_once_each_and_are_what_a_label_may_be(void **state)
{
	static const struct {
		const char *text, *error; /* NULL: fine */
		size_t count;
	} rows[] = {
		{"", NULL, 0},
		{"team", NULL, 1},
		{"team,example.com/project,app", NULL, 3},
		{"team,app,team", "team is there twice", 0},
		{"te am", "'te am' must be letters", 0},
		{"team,,app", "'' must be letters", 0},
		{"team, app", "' app' must be letters", 0},
		{"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p", NULL, 16},
		{"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "more than 16 labels", 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct podlabels_keys k;
		struct err err = {0};
		bool ok = podlabels_keys_parse(rows[i].text, &k, &err);

		if (ok != (rows[i].error == NULL) || (!ok && strstr(err.text, rows[i].error) == NULL))
			fail_msg("\"%s\": %s", rows[i].text, ok ? "taken" : err.text);
		assert_int_equal(k.count, rows[i].count);
		podlabels_keys_fini(&k);
	}
}

/* ---- answers ---- */

static void
write_list(const struct podlabels_list *l, struct buf *out)
{
	for (size_t i = 0; i < l->count; i++)
		buf_printf(out, "%s%s:%s", i ? " " : "", l->pods[i].uid, l->pods[i].labels);
}

#define POD(uid, labels) "{\"metadata\":{\"name\":\"p\",\"uid\":\"" uid "\",\"labels\":" labels "}}"
#define LIST(items) "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":" items "}"

static void
an_answer_is_read_for_the_labels_that_are_wanted_or_refused_as_a_whole(void **state)
{
	static const struct {
		const char *name, *body, *want, *error;
	} rows[] = {
		{"no pods", LIST("[]"), "", NULL},
		{"no pods, as Go writes none", LIST("null"), "", NULL},
		{"one pod", LIST("[" POD("u1", "{\"team\":\"ml\"}") "]"), "u1:team=ml", NULL},
		{"only what is wanted", LIST("[" POD("u1", "{\"secret\":\"x\",\"app\":\"web\",\"team\":\"ml\"}") "]"),
	         "u1:app=web,team=ml", NULL},
		{"a pod without labels", LIST("[{\"metadata\":{\"uid\":\"u1\"}}]"), "u1:", NULL},
		{"a label of the spec is none", LIST("[{\"metadata\":{\"uid\":\"u1\"},\"labels\":{\"team\":\"ml\"}}]"),
	         "u1:", NULL},
		{"an empty value", LIST("[" POD("u1", "{\"team\":\"\"}") "]"), "u1:team=", NULL},
		{"a value that no label has", LIST("[" POD("u1", "{\"team\":\"a b\",\"app\":\"web\"}") "]"),
	         "u1:app=web", NULL},
		{"a value that is a number", LIST("[" POD("u1", "{\"team\":7}") "]"), "u1:", NULL},
		{"pods in the order of their UIDs", LIST("[" POD("u2", "{}") "," POD("u1", "{\"team\":\"a\"}") "]"),
	         "u1:team=a u2:", NULL},
		{"one UID twice", LIST("[" POD("u1", "{\"team\":\"b\"}") "," POD("u1", "{\"team\":\"a\"}") "]"),
	         "u1:team=a", NULL},
		{"a pod without UID", LIST("[{\"metadata\":{\"labels\":{\"team\":\"ml\"}}}, {}]"), "", NULL},
		{"a UID with a control character", LIST("[" POD("a\\u0007", "{}") "]"), "", NULL},
		{"brackets and quotes in strings",
	         LIST("[{\"status\":\"]}\\\"[{\",\"metadata\":{\"uid\":\"u1\",\"labels\":{\"team\":\"ml\"}}}]"),
	         "u1:team=ml", NULL},
		{"items elsewhere", "{\"metadata\":{\"items\":[7]},\"items\":[]}", "", NULL},
		{"space everywhere", " {\n\t\"items\" : [ " POD("u1", "{ }") " ] , \"x\" : 1 } \n", "u1:", NULL},
		{"no bytes", "", NULL, "it is no object"},
		{"a list", "[]", NULL, "it is no object"},
		{"no items", "{\"kind\":\"Status\"}", NULL, "it has no items"},
		{"nothing at all in it", "{}", NULL, "it has no items"},
		{"items twice", "{\"items\":[],\"items\":[]}", NULL, "items is there twice"},
		{"items that are no list", LIST("{}"), NULL, "items is no list"},
		{"items that are a word", LIST("nullx"), NULL, "items is no list"},
		{"a pod that is a number", LIST("[7]"), NULL, "pod 0 of the kubelet's answer"},
		{"a pod that is no JSON", LIST("[" POD("u1", "{}") ",{\"a\":}]"), NULL,
	         "pod 1 of the kubelet's answer"},
		{"a key twice in a pod", LIST("[{\"metadata\":{\"uid\":\"a\",\"uid\":\"b\"}}]"), NULL, "duplicate"},
		{"no comma between pods", LIST("[{} {}]"), NULL, "items does not end where it should"},
		{"a comma too many", LIST("[{},]"), NULL, "items ends too early"},
		{"an end too early", "{\"items\":[", NULL, "it ends too early"},
		{"a string without end", "{\"items\":[\"", NULL, "it ends too early"},
		{"an escape without end", "{\"items\":[\"\\", NULL, "it ends too early"},
		{"a key without value", "{\"items\"}", NULL, "a value is missing"},
		{"a value without key", "{7}", NULL, "a key is missing"},
		{"an end too many", LIST("[]") "}", NULL, "something follows it"},
		{"brackets the wrong way round", "{\"items\":]}", NULL, "it ends too early"},
	};
	struct podlabels_keys keys;
	struct err err = {0};

	(void)state;
	assert_true(podlabels_keys_parse("team,app", &keys, &err));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct podlabels_list list = {0};
		in_place(buf) struct buf got;
		size_t len = strlen(rows[i].body);
		owned(mem) char *exact = mem_alloc(len ? len : 1); /* so that the sanitizer sees a step beyond */

		memcpy(exact, rows[i].body, len);
		buf_init(&got, 4096);
		if (podlabels_decode(exact, len, &keys, &list, &err)) {
			write_list(&list, &got);
			if (!rows[i].want || strcmp(buf_text(&got), rows[i].want) != 0)
				fail_msg("%s: \"%s\"", rows[i].name, buf_text(&got));
		} else if (!rows[i].error || strstr(err.text, rows[i].error) == NULL) {
			fail_msg("%s: refused: %s", rows[i].name, err.text);
		}
		podlabels_list_fini(&list);
	}
	podlabels_keys_fini(&keys);
}

static void
an_answer_cut_anywhere_is_refused(void **state)
{
	static const char body[] = LIST("[" POD("u1", "{\"team\":\"ml\",\"x\":[1,{\"y\":null}]}") ",{\"a\":true}]");
	struct podlabels_keys keys;
	struct podlabels_list list = {0};
	struct err err = {0};

	(void)state;
	assert_true(podlabels_keys_parse("team", &keys, &err));
	for (size_t n = 0; n < sizeof(body) - 1; n++) {
		owned(mem) char *cut = mem_alloc(n ? n : 1);

		memcpy(cut, body, n);
		if (podlabels_decode(cut, n, &keys, &list, &err))
			fail_msg("the first %zu bytes were accepted", n);
	}
	assert_true(podlabels_decode(body, sizeof(body) - 1, &keys, &list, &err));
	podlabels_list_fini(&list);
	podlabels_keys_fini(&keys);
}

static struct podlabels_list
list_of(const char *items)
{
	struct podlabels_keys keys;
	struct podlabels_list list = {0};
	struct err err = {0};
	owned(mem) char *body = mem_printf("{\"items\":%s}", items);

	assert_true(podlabels_keys_parse("team", &keys, &err));
	if (!podlabels_decode(body, strlen(body), &keys, &list, &err))
		fail_msg("%s", err.text);
	podlabels_keys_fini(&keys);
	return list;
}

static void
a_pod_that_an_answer_misses_keeps_its_labels_for_a_while(void **state)
{
	struct podlabels_list first = list_of("[" POD("a", "{\"team\":\"x\"}") "," POD("b", "{\"team\":\"y\"}") "]");
	struct podlabels_list none = {0}, second = list_of("[" POD("b", "{\"team\":\"z\"}") "]"), third = {0},
			      fourth = {0};

	(void)state;
	podlabels_keep(&first, &none, 100);
	podlabels_keep(&second, &first, 101);
	assert_int_equal(second.count, 2);
	assert_string_equal(podlabels_find(&second, "a"), "team=x");
	assert_string_equal(podlabels_find(&second, "b"), "team=z");
	podlabels_keep(&third, &second, 99 + PODLABELS_KEEP_NS);
	assert_int_equal(third.count, 2);
	/* by the answer that last had it, not by the last answer */
	podlabels_keep(&fourth, &third, 100 + PODLABELS_KEEP_NS);
	assert_int_equal(fourth.count, 1);
	assert_null(podlabels_find(&fourth, "a"));
	assert_string_equal(podlabels_find(&fourth, "b"), "team=z");
	podlabels_list_fini(&first);
	podlabels_list_fini(&second);
	podlabels_list_fini(&third);
	podlabels_list_fini(&fourth);
}

/* ---- the thread ---- */

/* A kubelet that says what it is told to; NULL: reads, and never answers. */
struct kubelet {
	int listener;
	uint16_t port;
	pthread_t thread;
	pthread_mutex_t lock;
	const char *reply;
	char request[2048];
	int hanging; /* a connection without an answer; -1: none */
	int asked;
};

static void
serve(struct kubelet *k, int fd)
{
	char request[2048] = "";
	const char *reply;
	size_t n = 0;

	while (n < sizeof(request) - 1 && !strstr(request, "\r\n\r\n")) {
		ssize_t got = recv(fd, request + n, sizeof(request) - 1 - n, 0);

		if (got <= 0)
			break;
		n += (size_t)got;
	}
	pthread_mutex_lock(&k->lock);
	memcpy(k->request, request, sizeof(request));
	k->asked++;
	reply = k->reply;
	if (!reply)
		k->hanging = fd;
	pthread_mutex_unlock(&k->lock);
	if (!reply)
		return;
	(void)send(fd, reply, strlen(reply), MSG_NOSIGNAL);
	close(fd);
}

static void *
serve_all(void *arg)
{
	struct kubelet *k = arg;

	for (;;) {
		int fd = accept(k->listener, NULL, NULL);

		if (fd < 0)
			return NULL;
		serve(k, fd);
	}
}

static void
kubelet_init(struct kubelet *k, const char *reply)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);

	*k = (struct kubelet){.reply = reply, .hanging = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
	k->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(k->listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(k->listener, 8), 0);
	assert_int_equal(getsockname(k->listener, (struct sockaddr *)&at, &len), 0);
	k->port = ntohs(at.sin_port);
	assert_int_equal(pthread_create(&k->thread, NULL, serve_all, k), 0);
}

static void
kubelet_fini(struct kubelet *k)
{
	shutdown(k->listener, SHUT_RDWR);
	pthread_join(k->thread, NULL);
	close(k->listener);
	if (k->hanging >= 0)
		close(k->hanging);
}

static void
kubelet_say(struct kubelet *k, const char *reply)
{
	pthread_mutex_lock(&k->lock);
	k->reply = reply;
	pthread_mutex_unlock(&k->lock);
}

static int
kubelet_asked(struct kubelet *k)
{
	pthread_mutex_lock(&k->lock);
	int asked = k->asked;
	pthread_mutex_unlock(&k->lock);
	return asked;
}

static struct podlabels *
start(const struct kubelet *k, const char *token_file)
{
	owned(mem) char *url = mem_printf("http://127.0.0.1:%u", (unsigned)k->port);
	const struct podlabels_options o = {.url = url,
	                                    .token_file = token_file,
	                                    .keys = "team",
	                                    .user_agent = "test",
	                                    .refresh_ns = 10 * NS_PER_MS,
	                                    .timeout_ns = PATIENCE_NS};
	struct podlabels *p = NULL;
	struct err err;

	if (!podlabels_start(&o, &p, &err))
		fail_msg("%s", err.text);
	return p;
}

/* Until so many questions have ended in an answer, or without. */
static struct podlabels_stats
await(struct podlabels *p, int64_t answers, int64_t failures)
{
	int64_t until_ns = time_monotonic_ns() + PATIENCE_NS;
	struct podlabels_stats s;

	for (;;) {
		podlabels_stats(p, &s);
		if (s.answers >= answers && s.failures >= failures)
			return s;
		if (time_monotonic_ns() > until_ns)
			fail_msg("%" PRId64 " answers and %" PRId64 " failures", s.answers, s.failures);
		usleep(1000);
	}
}

#define OK "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"

static void
the_kubelet_is_asked_with_the_token_and_what_it_says_is_taken_once(void **state)
{
	char token[] = "/tmp/tollgate-token-XXXXXX";
	struct kubelet k;
	struct podlabels_list list;
	uint64_t version = 0;
	int fd = mkstemp(token);

	(void)state;
	assert_int_equal(write(fd, "secret-token\n", 13), 13);
	close(fd);
	kubelet_init(&k, OK LIST("[" POD("u1", "{\"team\":\"ml\"}") "," POD("u2", "{}") "]"));
	owned(podlabels) struct podlabels *p = start(&k, token);
	podlabels_wait_first(p, PATIENCE_NS);
	assert_true(podlabels_take(p, &version, &list));
	assert_string_equal(podlabels_find(&list, "u1"), "team=ml");
	podlabels_list_fini(&list);
	struct podlabels_stats s = await(p, 3, 0);
	assert_true(s.up);
	assert_int_equal(s.pods, 2);
	assert_int_equal(s.labelled, 1);
	/* the same answer again is nothing new */
	assert_false(podlabels_take(p, &version, &list));
	pthread_mutex_lock(&k.lock);
	assert_non_null(strstr(k.request, "GET /pods HTTP/1.1\r\n"));
	assert_non_null(strstr(k.request, "Authorization: Bearer secret-token\r\n"));
	k.reply = OK LIST("[" POD("u1", "{\"team\":\"ops\"}") "]");
	pthread_mutex_unlock(&k.lock);
	await(p, s.answers + 2, 0);
	assert_true(podlabels_take(p, &version, &list));
	assert_string_equal(podlabels_find(&list, "u1"), "team=ops");
	assert_string_equal(podlabels_find(&list, "u2"), "");
	podlabels_list_fini(&list);
	podlabels_free(p);
	p = NULL;
	kubelet_fini(&k);
	unlink(token);
}

static void
a_kubelet_that_refuses_or_lies_leaves_its_last_answer(void **state)
{
	static const struct {
		const char *name, *reply, *error;
	} rows[] = {
		{"it refuses", "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\nnot you", "403"},
		{"it lies", OK "{\"items\":[{\"metadata\":]}", "pod 0 of the kubelet's answer"},
	};
	struct kubelet k;
	struct podlabels_list list;
	uint64_t version = 0;

	(void)state;
	kubelet_init(&k, OK LIST("[" POD("u1", "{\"team\":\"ml\"}") "]"));
	owned(podlabels) struct podlabels *p = start(&k, NULL);
	await(p, 1, 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct podlabels_stats s = await(p, 1, 0);

		kubelet_say(&k, rows[i].reply);
		s = await(p, 1, s.failures + 1);
		if (s.up || !strstr(s.trouble.text, rows[i].error))
			fail_msg("%s: %s", rows[i].name, s.trouble.text);
	}
	assert_true(podlabels_take(p, &version, &list));
	assert_string_equal(podlabels_find(&list, "u1"), "team=ml");
	podlabels_list_fini(&list);
	/* and when it is well again, it is heard again */
	struct podlabels_stats s = await(p, 1, 0);
	kubelet_say(&k, OK LIST("[" POD("u1", "{\"team\":\"new\"}") "]"));
	s = await(p, s.answers + 1, 0);
	assert_int_equal(s.trouble.kind, ERR_NONE);
	assert_true(podlabels_take(p, &version, &list));
	assert_string_equal(podlabels_find(&list, "u1"), "team=new");
	podlabels_list_fini(&list);
	podlabels_free(p);
	p = NULL;
	kubelet_fini(&k);
}

static void
a_kubelet_that_hangs_keeps_nobody_waiting(void **state)
{
	struct kubelet k;
	struct podlabels_list list;
	uint64_t version = 0;
	int64_t until_ns = time_monotonic_ns() + PATIENCE_NS;

	(void)state;
	kubelet_init(&k, NULL);
	struct podlabels *p = start(&k, NULL);
	while (kubelet_asked(&k) == 0 && time_monotonic_ns() < until_ns)
		usleep(1000);
	assert_int_equal(kubelet_asked(&k), 1);
	podlabels_wait_first(p, NS_PER_MS);
	podlabels_hurry(p);
	assert_false(podlabels_take(p, &version, &list));
	podlabels_free(p);
	/* long before the question's own time was up */
	assert_true(time_monotonic_ns() < until_ns);
	kubelet_fini(&k);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_are_listed_once_each_and_are_what_a_label_may_be),
		cmocka_unit_test(an_answer_is_read_for_the_labels_that_are_wanted_or_refused_as_a_whole),
		cmocka_unit_test(an_answer_cut_anywhere_is_refused),
		cmocka_unit_test(a_pod_that_an_answer_misses_keeps_its_labels_for_a_while),
		cmocka_unit_test(the_kubelet_is_asked_with_the_token_and_what_it_says_is_taken_once),
		cmocka_unit_test(a_kubelet_that_refuses_or_lies_leaves_its_last_answer),
		cmocka_unit_test(a_kubelet_that_hangs_keeps_nobody_waiting),
	};

	return cmocka_run_group_tests_name("podlabels", tests, NULL, NULL);
}

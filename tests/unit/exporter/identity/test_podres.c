/* The kubelet's answers: decoding them, what they mean, and peers that are no kubelet. A real gRPC server is in
 * tests/integration/test_podres.py. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "exporter/identity/kubelet/podres.h"

/* ---- messages, written by hand: tag, length, content ---- */

#define MESSAGE_MAX (32u << 20)

static void
field(struct buf *b, int number, size_t n)
{
	buf_char(b, (char)(number << 3 | 2));
	for (; n >= 0x80; n >>= 7)
		buf_char(b, (char)(n | 0x80));
	buf_char(b, (char)n);
}

static void
field_bytes(struct buf *b, int number, const void *data, size_t n)
{
	field(b, number, n);
	buf_add(b, data, n);
}

static void
field_text(struct buf *b, int number, const char *s)
{
	field_bytes(b, number, s, strlen(s));
}

/* One container with devices of one resource; ids end with NULL. */
static void
container(struct buf *b, const char *name, const char *resource, const char *const *ids)
{
	in_place(buf) struct buf c, d;

	buf_init(&c, MESSAGE_MAX);
	buf_init(&d, MESSAGE_MAX);
	field_text(&d, 1, resource);
	for (size_t i = 0; ids[i]; i++)
		field_text(&d, 2, ids[i]);
	field_text(&d, 3, "\x0a\x02\x08\x01"); /* topology, which nobody here asks for */
	field_text(&c, 1, name);
	field_bytes(&c, 2, d.data, d.len);
	field_bytes(b, 3, c.data, c.len);
}

static void
pod(struct buf *b, const char *ns, const char *name, const char *resource, const char *const *ids)
{
	in_place(buf) struct buf p;

	buf_init(&p, MESSAGE_MAX);
	field_text(&p, 1, name);
	field_text(&p, 2, ns);
	container(&p, "main", resource, ids);
	field_bytes(b, 1, p.data, p.len);
}

#define IDS(...)                  \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

static struct podres_list
decoded(const struct buf *b)
{
	struct podres_list l;
	struct err err;

	if (!podres_decode_list(b->data, b->len, &l, &err))
		fail_msg("%s", err.text);
	return l;
}

static void
an_answer_tells_pod_container_and_device(void **state)
{
	in_place(buf) struct buf b, p;
	in_place(podres_list) struct podres_list l = {0};

	(void)state;
	buf_init(&b, MESSAGE_MAX);
	buf_init(&p, MESSAGE_MAX);
	pod(&b, "team-a", "train-0", "nvidia.com/gpu", IDS("GPU-a", "GPU-b"));
	field_text(&p, 1, "two");
	field_text(&p, 2, "team-b");
	container(&p, "one", "nvidia.com/mig-1g.10gb", IDS("MIG-c"));
	container(&p, "other", "nvidia.com/gpu.shared", IDS("GPU-d::0", "GPU-d::11"));
	container(&p, "net", "rdma/hca", IDS("hca0"));
	container(&p, "renamed", "example.com/accelerator", IDS("GPU-e"));
	field_bytes(&b, 1, p.data, p.len);
	l = decoded(&b);
	assert_int_equal(l.count, 6);
	assert_string_equal(l.grants[0].ns, "team-a");
	assert_string_equal(l.grants[0].pod, "train-0");
	assert_string_equal(l.grants[0].container, "main");
	assert_string_equal(l.grants[1].device, "GPU-b");
	assert_int_equal(l.grants[1].replica, -1);
	assert_string_equal(l.grants[2].container, "one");
	assert_string_equal(l.grants[2].device, "MIG-c");
	assert_string_equal(l.grants[4].device, "GPU-d");
	assert_int_equal(l.grants[4].replica, 11);
	assert_string_equal(l.grants[5].container, "renamed");
}

static void
an_empty_answer_is_an_answer(void **state)
{
	struct podres_list l;
	struct podres_offers o;
	struct err err;

	(void)state;
	assert_true(podres_decode_list("", 0, &l, &err));
	assert_int_equal(l.count, 0);
	podres_list_fini(&l);
	assert_true(podres_decode_offers("", 0, &o, &err));
	assert_int_equal(o.count, 0);
	podres_offers_fini(&o);
}

static void
names_that_are_none_do_no_harm(void **state)
{
	in_place(buf) struct buf b;
	in_place(podres_list) struct podres_list l = {0};
	owned(mem) char *long_name = mem_array(1, 100001);

	(void)state;
	memset(long_name, 'x', 100000);
	buf_init(&b, MESSAGE_MAX);
	pod(&b, "", "no-namespace", "nvidia.com/gpu", IDS("GPU-a"));
	pod(&b, "no-name", "", "nvidia.com/gpu", IDS("GPU-a"));
	pod(&b, "a\nb", "c\xff\x1b[2J", "nvidia.com/gpu",
	    IDS("GPU-a", "GPU-a::x", "GPU-a::1234567", "GPU-a::", long_name, ""));
	pod(&b, long_name, "p", "nvidia.com/gpu", IDS("GPU-b"));
	l = decoded(&b);
	assert_int_equal(l.count, 5);
	assert_string_equal(l.grants[0].ns, "a?b");
	assert_string_equal(l.grants[0].pod, "c??[2J");
	assert_string_equal(l.grants[1].device, "GPU-a::x");
	assert_string_equal(l.grants[2].device, "GPU-a::1234567");
	assert_int_equal(l.grants[3].replica, -1);
	assert_int_equal(strlen(l.grants[4].ns), 512);
}

static void
bytes_that_are_no_answer_are_refused(void **state)
{
	in_place(buf) struct buf b;
	struct podres_list l;
	struct err err;

	(void)state;
	buf_init(&b, MESSAGE_MAX);
	pod(&b, "team-a", "train-0", "nvidia.com/gpu", IDS("GPU-a"));
	for (size_t n = 1; n < b.len; n++)
		assert_false(podres_decode_list(b.data, n, &l, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_false(podres_decode_list("<html>", 6, &l, &err));
}

static void
an_answer_that_would_fill_the_memory_is_refused(void **state)
{
	in_place(buf) struct buf b;
	struct podres_list l;
	struct podres_offers o;
	struct err err;

	(void)state;
	buf_init(&b, MESSAGE_MAX);
	while (b.len < PODRES_MESSAGE_MAX)
		buf_add(&b, "\x0a\x00", 2); /* a pod without anything, in two bytes */
	assert_false(podres_decode_list(b.data, b.len, &l, &err));
	assert_non_null(strstr(err.text, "would take more than"));
	assert_false(podres_decode_offers(b.data, b.len, &o, &err));
	buf_clear(&b);
	for (unsigned i = 0; i <= PODRES_GRANTS_MAX; i++)
		pod(&b, "n", "p", "nvidia.com/gpu", IDS("GPU-a"));
	assert_false(podres_decode_list(b.data, b.len, &l, &err));
	assert_non_null(strstr(err.text, "more than 8192 GPUs"));
}

static void
replicas_are_counted_by_device(void **state)
{
	in_place(buf) struct buf b, d;
	in_place(podres_offers) struct podres_offers o = {0};
	const char *const ids[] = {"GPU-b::0", "GPU-a::2", "GPU-a::0", "GPU-a::1", "GPU-c", "MIG-d::0"};
	struct err err;

	(void)state;
	buf_init(&b, MESSAGE_MAX);
	/* the kubelet lists each device on its own */
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		buf_init(&d, MESSAGE_MAX);
		field_text(&d, 1, "nvidia.com/gpu");
		field_text(&d, 2, ids[i]);
		field_bytes(&b, 1, d.data, d.len);
		buf_fini(&d);
	}
	buf_init(&d, 1);
	assert_true(podres_decode_offers(b.data, b.len, &o, &err));
	assert_int_equal(o.count, 3);
	assert_string_equal(o.offers[0].device, "GPU-a");
	assert_int_equal(o.offers[0].replicas, 3);
	assert_string_equal(o.offers[2].device, "MIG-d");
	assert_int_equal(o.offers[2].replicas, 1);
}

/* ---- rules ---- */

struct spec {
	const char *ns, *pod, *device;
	int32_t replica;
};

static struct podres_list
list_of(const struct spec *s, size_t n)
{
	struct podres_list l = {.grants = mem_array(n, sizeof(*l.grants)), .count = n};

	for (size_t i = 0; i < n; i++)
		l.grants[i] = (struct podres_grant){.ns = mem_strdup(s[i].ns),
		                                    .pod = mem_strdup(s[i].pod),
		                                    .uid = mem_strdup(""),
		                                    .container = mem_strdup("main"),
		                                    .device = mem_strdup(s[i].device),
		                                    .replica = s[i].replica};
	return l;
}

static struct pod_folder folders_of_node[] = {
	{(char[]){"a"}, (char[]){"old"}, (char[]){"uid-old"}, 10},
	{(char[]){"a"}, (char[]){"new"}, (char[]){"uid-new"}, 20},
	{(char[]){"a"}, (char[]){"again"}, (char[]){"uid-first"}, 5},
	{(char[]){"a"}, (char[]){"again"}, (char[]){"uid-second"}, 6},
};
static const struct pod_folders node_folders = {.list = folders_of_node, .count = ARRAY_LEN(folders_of_node)};

static bool
all_but_old(const void *arg, const char *uid)
{
	(void)arg;
	return strcmp(uid, "uid-old") != 0;
}

struct rule_row {
	const char *name;
	struct spec before[3], answer[3];
	bool just_started, cgroups;
	const char *holds; /* pod:device, sorted by device */
};

static const struct rule_row rule_rows[] = {
	{"what is listed holds", {{0}}, {{"a", "new", "GPU-1", -1}}, false, false, "new:GPU-1 "},
	{"what is missed is released", {{"a", "new", "GPU-1", -1}}, {{0}}, false, false, ""},
	{"a kubelet that just started may not know its pods yet",
         {{"a", "new", "GPU-1", -1}, {"b", "unseen", "GPU-2", -1}},
         {{0}},
         true,
         false,
         "new:GPU-1 unseen:GPU-2 "},
	{"but a device that it gave to another pod is that one's",
         {{"a", "old", "GPU-1", -1}},
         {{"a", "new", "GPU-1", -1}},
         true,
         false,
         "new:GPU-1 "},
	{"and other replicas of the device are not touched",
         {{"a", "old", "GPU-1", 0}},
         {{"a", "new", "GPU-1", 1}},
         true,
         false,
         "old:GPU-1 new:GPU-1 "},
	{"a pod without cgroup has ended, where cgroups can be seen",
         {{0}},
         {{"a", "old", "GPU-1", -1}, {"a", "new", "GPU-2", -1}},
         false,
         true,
         "new:GPU-2 "},
	{"a pod without folder has not begun", {{0}}, {{"b", "unseen", "GPU-1", -1}}, false, true, "unseen:GPU-1 "},
	{"of two pods with one device the newer has it",
         {{0}},
         {{"a", "new", "GPU-1", -1}, {"a", "old", "GPU-1", -1}},
         false,
         false,
         "new:GPU-1 "},
	{"of two pods whose age nobody knows both have it",
         {{0}},
         {{"b", "unseen", "GPU-1", -1}, {"b", "other", "GPU-1", -1}},
         false,
         false,
         "other:GPU-1 unseen:GPU-1 "},
	{"replicas are different devices",
         {{0}},
         {{"a", "old", "GPU-1", 0}, {"a", "new", "GPU-1", 1}},
         false,
         false,
         "old:GPU-1 new:GPU-1 "},
};

static size_t
length(const struct spec *s)
{
	size_t n = 0;

	while (n < 3 && s[n].ns)
		n++;
	return n;
}

static void
answers_become_what_holds_by_the_rules(void **state)
{
	const struct podres_offers none = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rule_rows); i++) {
		const struct rule_row *r = &rule_rows[i];
		struct podres_circumstances c = {.folders = &node_folders,
		                                 .just_started = r->just_started,
		                                 .alive = r->cgroups ? all_but_old : NULL};
		in_place(podres_list) struct podres_list before = list_of(r->before, length(r->before));
		in_place(podres_list) struct podres_list list = list_of(r->answer, length(r->answer));
		in_place(buf) struct buf text;

		buf_init(&text, 4096);
		podres_apply(&c, &none, &list, &before);
		for (size_t k = 0; k < list.count; k++)
			buf_printf(&text, "%s:%s ", list.grants[k].pod, list.grants[k].device);
		if (strcmp(buf_text(&text), r->holds) != 0)
			fail_msg("%s: %s", r->name, buf_text(&text));
	}
}

static void
a_pod_whose_folder_is_gone_is_not_kept(void **state)
{
	const struct podres_offers none = {0};
	const struct spec spec = {"a", "deleted", "GPU-1", -1};
	struct podres_circumstances c = {.folders = &node_folders, .just_started = true};
	in_place(podres_list) struct podres_list before = list_of(&spec, 1), list = {0};

	(void)state;
	mem_free(before.grants[0].uid);
	before.grants[0].uid = mem_strdup("uid-deleted");
	podres_apply(&c, &none, &list, &before);
	assert_int_equal(list.count, 0);
}

static void
uid_and_number_of_replicas_are_filled_in(void **state)
{
	struct podres_offer offer = {(char[]){"GPU-1"}, 4};
	const struct podres_offers offers = {.offers = &offer, .count = 1};
	const struct spec specs[] = {{"a", "again", "GPU-1", 3},
	                             {"b", "unseen", "GPU-2", 0},
	                             {"a", "new", "GPU-3", -1}};
	struct podres_circumstances c = {.folders = &node_folders};
	in_place(podres_list) struct podres_list before = {0}, list = list_of(specs, 3);

	(void)state;
	podres_apply(&c, &offers, &list, &before);
	assert_string_equal(list.grants[0].uid, "uid-second"); /* the newer pod of that name */
	assert_int_equal(list.grants[0].replica_of, 4);
	assert_string_equal(list.grants[1].uid, "");
	assert_int_equal(list.grants[1].replica_of, 0);
	assert_int_equal(list.grants[2].replica_of, 0);
}

static void
a_pod_that_is_being_set_up_counts_when_it_has_a_folder_or_after_a_while(void **state)
{
	struct pod_folders folders = node_folders;
	const struct podres_offers none = {0};
	const struct spec specs[] = {{"a", "new", "GPU-1", -1}, {"b", "unseen", "GPU-2", -1}};
	struct podres_circumstances c = {.folders = &folders, .boot_ns = 100 * NS_PER_S};
	in_place(podres_list) struct podres_list before = {0}, list = list_of(specs, 2), later = list_of(specs, 2);

	(void)state;
	folders.changed_ns = 1; /* there are folders on this node */
	podres_apply(&c, &none, &list, &before);
	assert_false(list.grants[0].setting_up);
	assert_true(list.grants[1].setting_up);
	c.boot_ns += PODRES_SETUP_NS;
	podres_apply(&c, &none, &later, &list);
	assert_false(later.grants[1].setting_up);
	assert_int_equal(later.grants[1].listed_boot_ns, 100 * NS_PER_S);
}

/* ---- cgroups ---- */

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void
make_folders(const char *root, const char *path)
{
	owned(mem) char *full = mem_printf("%s/%s", root, path);

	for (char *slash = strchr(full + strlen(root) + 1, '/');; slash = strchr(slash + 1, '/')) {
		if (slash)
			*slash = '\0';
		(void)mkdir(full, 0755);
		if (!slash)
			break;
		*slash = '/';
	}
}

static void
pods_have_cgroups_of_either_driver_and_version(void **state)
{
	static const char *const paths[] = {
		"kubepods.slice/kubepods-pod1_1.slice",
		"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
		"memory/kubepods/besteffort/pod1-3",
		"unified/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod1_4.slice",
		"systemd/kubelet/kubepods/burstable/pod1-5",
	};
	struct pod_folder dir = {(char[]){"n"}, (char[]){"p"}, (char[]){"1-9"}, 0};
	const struct pod_folders folders = {.list = &dir, .count = 1};
	char root[] = "/tmp/tollgate-podres-XXXXXX";
	struct podres_cgroups c;

	(void)state;
	assert_non_null(mkdtemp(root));
	podres_cgroups_look(&c, root);
	assert_false(podres_cgroups_seen(&c, &folders));
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		char uid[] = "1-0";

		uid[2] = (char)('1' + (int)i);
		assert_false(podres_cgroup_exists(&c, uid));
		make_folders(root, paths[i]);
		podres_cgroups_look(&c, root);
		assert_true(podres_cgroup_exists(&c, uid));
	}
	assert_false(podres_cgroups_seen(&c, &folders));
	dir.uid[2] = '3';
	assert_true(podres_cgroups_seen(&c, &folders));
	assert_false(podres_cgroup_exists(&c, "1-3/../../pod1-3"));
	assert_false(podres_cgroup_exists(&c, ""));
	(void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- peers that are no kubelet ---- */

struct peer {
	char dir[64];
	struct sockaddr_un at;
	int listener;
	const char *says; /* NULL: nothing */
	size_t len;
	bool stays; /* silent, instead of hanging up */
	pthread_t thread;
};

static void *
serve(void *arg)
{
	const struct peer *p = arg;
	char sink[4096];
	int fd = accept(p->listener, NULL, NULL);

	if (fd < 0)
		return NULL;
	if (p->says)
		(void)!send(fd, p->says, p->len, MSG_NOSIGNAL);
	while (p->stays && recv(fd, sink, sizeof(sink), 0) > 0)
		;
	/* what was not read would reset the connection */
	shutdown(fd, SHUT_WR);
	while (recv(fd, sink, sizeof(sink), 0) > 0)
		;
	close(fd);
	return NULL;
}

static void
peer_start(struct peer *p)
{
	snprintf(p->dir, sizeof(p->dir), "/tmp/tollgate-peer-XXXXXX");
	assert_non_null(mkdtemp(p->dir));
	p->at = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(p->at.sun_path, sizeof(p->at.sun_path), "%s/s", p->dir);
	p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(p->listener, (const struct sockaddr *)&p->at, sizeof(p->at)), 0);
	assert_int_equal(listen(p->listener, 5), 0);
	assert_int_equal(pthread_create(&p->thread, NULL, serve, p), 0);
}

static void
peer_stop(struct peer *p)
{
	shutdown(p->listener, SHUT_RDWR);
	pthread_join(p->thread, NULL);
	close(p->listener);
	(void)nftw(p->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int64_t
soon_ns(int64_t from_now_ns)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec + from_now_ns;
}

struct peer_row {
	const char *name;
	const char *says;
	size_t len;
	bool stays;
	int64_t patience_ns;
	enum err_kind kind;
	const char *part;
};

#define SETTINGS "\0\0\0\4\0\0\0\0\0"
/* Headers of stream 1, by HPACK's static table: ":status: 200" and ":status: 404", at the end of the stream. */
#define HEADERS_200 "\0\0\1\1\5\0\0\0\1\x88"
#define HEADERS_404 "\0\0\1\1\5\0\0\0\1\x8d"
#define HEADERS_OPEN "\0\0\1\1\4\0\0\0\1\x88"
#define BYTES(s) s, sizeof(s) - 1

static const struct peer_row peer_rows[] = {
	{"hangs up at once", NULL, 0, false, 30 * NS_PER_S, ERR_RETRY, "closed the connection"},
	{"says nothing", NULL, 0, true, 50 * NS_PER_MS, ERR_RETRY, "does not answer in time"},
	{"speaks HTTP/1.1", BYTES("HTTP/1.1 400 Bad Request\r\n\r\n"), true, 30 * NS_PER_S, ERR_INVALID, "HTTP/2"},
	{"speaks nonsense", BYTES("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), true, 30 * NS_PER_S, ERR_INVALID,
         "HTTP/2"},
	{"begins well and hangs up", BYTES(SETTINGS), false, 30 * NS_PER_S, ERR_RETRY, "closed the connection"},
	{"begins well and falls silent", BYTES(SETTINGS HEADERS_OPEN), true, 50 * NS_PER_MS, ERR_RETRY,
         "does not answer in time"},
	{"answers without a status of gRPC", BYTES(SETTINGS HEADERS_200), true, 30 * NS_PER_S, ERR_RETRY,
         "gRPC status"},
	{"answers that there is no such page", BYTES(SETTINGS HEADERS_404), true, 30 * NS_PER_S, ERR_INVALID,
         "HTTP status '404'"},
	{"announces a giant", BYTES(SETTINGS HEADERS_OPEN "\0\0\6\0\0\0\0\0\1\0\x02\0\0\0x"), true, 30 * NS_PER_S,
         ERR_INVALID, "33554432 bytes, more than 16777216"},
	{"says more than announced", BYTES(SETTINGS HEADERS_OPEN "\0\0\7\0\0\0\0\0\1\0\0\0\0\1xy"), true, 30 * NS_PER_S,
         ERR_INVALID, "goes on after its end"},
};

static void
a_peer_that_is_no_kubelet_is_an_error_within_its_time(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(peer_rows); i++) {
		const struct peer_row *r = &peer_rows[i];
		struct peer p = {.says = r->says, .len = r->len, .stays = r->stays};
		struct podres_conn *c = NULL;
		in_place(buf) struct buf answer;
		struct err err = {0};
		bool ok;

		buf_init(&answer, PODRES_MESSAGE_MAX);
		peer_start(&p);
		ok = podres_connect(p.at.sun_path, soon_ns(30 * NS_PER_S), &c, &err) &&
		     podres_call(c, "List", soon_ns(r->patience_ns), &answer, &err);
		podres_conn_free(c);
		peer_stop(&p);
		if (ok || err.kind != r->kind || !strstr(err.text, r->part))
			fail_msg("%s: %s", r->name, ok ? "taken for an answer" : err.text);
	}
}

static void
where_nobody_listens_there_is_no_kubelet(void **state)
{
	const char *const paths[] = {"/nonexistent/kubelet.sock", "/dev/null"};
	struct podres_conn *c = NULL;
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		assert_false(podres_connect(paths[i], soon_ns(NS_PER_S), &c, &err));
		assert_int_equal(err.kind, ERR_MISSING);
	}
	owned(mem) char *long_path = mem_array(1, 300);

	memset(long_path, 'x', 299);
	assert_false(podres_connect(long_path, soon_ns(NS_PER_S), &c, &err));
	assert_int_equal(err.kind, ERR_INVALID);
}

static void
no_grant(void *arg, const struct podres_grant *g)
{
	(void)arg;
	fail_msg("%s has a device", g->pod);
}

static void
a_node_without_kubelet_has_no_trouble(void **state)
{
	struct podres_options o = {.socket_path = "/nonexistent/kubelet.sock",
	                           .pods_root = "/nonexistent",
	                           .cgroup_root = "/nonexistent",
	                           .refresh_ns = NS_PER_S,
	                           .timeout_ns = NS_PER_S};
	owned(podres) struct podres *p = NULL;
	struct podres_stats s;
	struct err err;

	(void)state;
	assert_true(podres_start(&o, &p, &err));
	podres_wait_first(p, 60 * NS_PER_S);
	podres_hurry(p);
	podres_stats(p, &s);
	assert_false(s.used || s.up);
	assert_int_equal(s.trouble.kind, ERR_NONE);
	assert_int_equal(s.failures, 0);
	(void)podres_visit(p, no_grant, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_answer_tells_pod_container_and_device),
		cmocka_unit_test(an_empty_answer_is_an_answer),
		cmocka_unit_test(names_that_are_none_do_no_harm),
		cmocka_unit_test(bytes_that_are_no_answer_are_refused),
		cmocka_unit_test(an_answer_that_would_fill_the_memory_is_refused),
		cmocka_unit_test(replicas_are_counted_by_device),
		cmocka_unit_test(answers_become_what_holds_by_the_rules),
		cmocka_unit_test(a_pod_whose_folder_is_gone_is_not_kept),
		cmocka_unit_test(uid_and_number_of_replicas_are_filled_in),
		cmocka_unit_test(a_pod_that_is_being_set_up_counts_when_it_has_a_folder_or_after_a_while),
		cmocka_unit_test(pods_have_cgroups_of_either_driver_and_version),
		cmocka_unit_test(a_peer_that_is_no_kubelet_is_an_error_within_its_time),
		cmocka_unit_test(where_nobody_listens_there_is_no_kubelet),
		cmocka_unit_test(a_node_without_kubelet_has_no_trouble),
	};

	return cmocka_run_group_tests_name("podres", tests, NULL, NULL);
}

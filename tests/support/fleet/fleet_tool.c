/* tests/support/fleet/fleet_tool.c - a fleet that pushes over real HTTP:
 *
 * fleet_tool PORT [--nodes N] [--gpus N] [--instances N] [--processes N] [--step-ms MS] [--steps N] [--paced 1] [--burst 1]
 *            [--at-once N] [--batches N] [--wait 1]
 *
 * Frames are made before anything is measured. Every node then sends its first batch, with the dictionary; when all are
 * acknowledged the measured part begins: --steps more batches of each node. Paced: a step is due every --step-ms, nodes one
 * after the other over the step, or all at once (--burst). Not paced: as fast as they are acknowledged, --at-once of the
 * nodes at a time. A push is --batches of them: more than one is what a node sends that was cut off for a while. A node's token is the SHA-256 of its name, in hex. 503 is repeated after a second.
 *
 * --wait: says {"ready":true} when the dictionaries are in, and goes on when a line comes. At the end one line of JSON: what was
 * sent, how long it took, its own processor time, and for each step how many of its batches were not acknowledged at its end and
 * the longest time from due to acknowledged. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/time.h"
#include "tests/support/fleet/fleetgen.h"

#define FRAMES_MAX (1u << 30)
#define REPLY_MAX 4096
#define RETRY_NS NS_PER_S

struct options {
	uint16_t port;
	int64_t nodes, gpus, instances, processes, step_ms, steps, paced, burst, at_once, batches, wait;
};

struct node {
	struct fleet_node *gen;
	char token[65];
	struct buf frames;
	size_t *ends; /* of each frame */
	int fd;
	size_t next;    /* the frame to send or on its way */
	bool sending;   /* a request is out */
	int64_t due_ns; /* of that frame, monotonic */
	struct buf request;
	size_t sent;
	char reply[REPLY_MAX];
	size_t reply_len;
};

struct step {
	int64_t late;   /* not acknowledged when the next step began */
	int64_t lag_ns; /* the longest */
	int64_t sum_ns;
};

struct fleet {
	struct options o;
	struct node *nodes;
	struct step *steps;
	int epoll;
	int64_t begin_ns;
	size_t out, done; /* requests on their way; batches acknowledged */
	size_t wanted;
	int64_t records, retries, bytes;
};

static _Noreturn void
die(const char *what)
{
	fprintf(stderr, "fleet_tool: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t
option(int argc, char **argv, const char *name, int64_t preset)
{
	for (int i = 2; i + 1 < argc; i += 2)
		if (strcmp(argv[i], name) == 0)
			return strtoll(argv[i + 1], NULL, 10);
	return preset;
}

static int64_t
own_cpu_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}

/* --- frames --- */

static void
prepare(struct fleet *f, size_t i, int64_t start_ns)
{
	struct node *n = &f->nodes[i];
	struct fleet_shape shape = {(size_t)f->o.gpus, (size_t)f->o.instances, (size_t)f->o.processes};
	uint8_t sha[SHA256_SIZE];

	n->gen = fleet_node_new(&shape, i, start_ns, f->o.step_ms * NS_PER_MS);
	sha256(fleet_node_name(n->gen), strlen(fleet_node_name(n->gen)), sha);
	hex_encode(sha, sizeof(sha), n->token);
	buf_init(&n->frames, FRAMES_MAX);
	buf_init(&n->request, FRAMES_MAX);
	n->ends = mem_array((size_t)f->o.steps + 1, sizeof(*n->ends));
	for (size_t k = 0; k <= (size_t)f->o.steps; k++) {
		for (int64_t b = 0; b < (k > 0 ? f->o.batches : 1); b++) {
			size_t records = fleet_node_next(n->gen, &n->frames);

			if (k > 0)
				f->records += (int64_t)records;
		}
		n->ends[k] = n->frames.len;
	}
}

/* --- HTTP --- */

static void
connect_node(struct fleet *f, struct node *n)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
	                        .sin_port = htons(f->o.port),
	                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = n};
	int on = 1;

	n->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (n->fd < 0 || connect(n->fd, (struct sockaddr *)&a, sizeof(a)) != 0)
		die("connect");
	setsockopt(n->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (epoll_ctl(f->epoll, EPOLL_CTL_ADD, n->fd, &e) != 0)
		die("epoll");
}

/* A request is a few kilobytes: it fits the socket's buffer, and the reply is waited for. */
static void
send_frame(struct fleet *f, struct node *n)
{
	size_t from = n->next == 0 ? 0 : n->ends[n->next - 1], len = n->ends[n->next] - from;

	buf_clear(&n->request);
	buf_printf(&n->request,
	           "POST /v1/ingest HTTP/1.1\r\nHost: fleet\r\nAuthorization: Bearer %s\r\n"
	           "Content-Type: application/octet-stream\r\nContent-Length: %zu\r\n\r\n",
	           n->token, len);
	buf_add(&n->request, n->frames.data + from, len);
	for (size_t at = 0; at < n->request.len;) {
		ssize_t w = send(n->fd, n->request.data + at, n->request.len - at, MSG_NOSIGNAL);

		if (w < 0)
			die("send");
		at += (size_t)w;
	}
	f->bytes += (int64_t)len;
	n->sending = true;
	n->reply_len = 0;
	f->out++;
}

/* The status once the reply is whole; 0: not yet. */
static int
take_reply(struct node *n)
{
	ssize_t r = recv(n->fd, n->reply + n->reply_len, sizeof(n->reply) - 1 - n->reply_len, 0);
	const char *body, *length;

	if (r <= 0)
		die("the aggregator closed a connection");
	n->reply_len += (size_t)r;
	n->reply[n->reply_len] = '\0';
	body = strstr(n->reply, "\r\n\r\n");
	length = strcasestr(n->reply, "content-length:");
	if (!body || !length || n->reply_len < (size_t)(body + 4 - n->reply) + strtoul(length + 15, NULL, 10))
		return 0;
	return atoi(n->reply + 9);
}

/* --- the run --- */

static int64_t
due_of(const struct fleet *f, const struct node *n, size_t frame)
{
	int64_t step_ns = f->o.step_ms * NS_PER_MS, at;

	if (!f->o.paced || frame == 0)
		return 0;
	at = f->begin_ns + (int64_t)(frame - 1) * step_ns;
	return f->o.burst ? at : at + step_ns * (n - f->nodes) / f->o.nodes;
}

static void
acknowledged(struct fleet *f, struct node *n, int64_t now_ns)
{
	if (n->next > 0 && f->o.paced) {
		struct step *s = &f->steps[n->next - 1];
		int64_t lag = now_ns - due_of(f, n, n->next);

		s->sum_ns += lag;
		if (lag > s->lag_ns)
			s->lag_ns = lag;
		if (lag > f->o.step_ms * NS_PER_MS)
			s->late++;
	}
	n->next++;
	n->due_ns = due_of(f, n, n->next);
	f->done++;
}

static void
on_reply(struct fleet *f, struct node *n)
{
	int status = take_reply(n);

	if (status == 0)
		return;
	n->sending = false;
	f->out--;
	if (status == 503) {
		f->retries++;
		n->due_ns = time_boot_ns() + RETRY_NS;
	} else if (status == 200) {
		acknowledged(f, n, time_boot_ns());
	} else {
		fprintf(stderr, "fleet_tool: %s\n", n->reply);
		exit(1);
	}
}

/* Sends what is due up to frame `last`; when the next one is due. */
static int64_t
send_due(struct fleet *f, size_t last)
{
	int64_t now_ns = time_boot_ns(), next_ns = now_ns + NS_PER_S;
	size_t at_once = f->o.paced && last > 0 ? SIZE_MAX : (size_t)f->o.at_once;

	for (int64_t i = 0; i < f->o.nodes; i++) {
		struct node *n = &f->nodes[i];

		if (n->sending || n->next > last)
			continue;
		if (n->due_ns <= now_ns) {
			if (f->out < at_once)
				send_frame(f, n);
		} else if (n->due_ns < next_ns) {
			next_ns = n->due_ns;
		}
	}
	return next_ns;
}

static void
run(struct fleet *f, size_t last)
{
	f->wanted = (size_t)f->o.nodes * (last + 1);
	while (f->done < f->wanted) {
		struct epoll_event events[256];
		int64_t next_ns = send_due(f, last), wait_ns = next_ns - time_boot_ns();
		int n = epoll_wait(f->epoll, events, 256, wait_ns <= 0 ? 0 : (int)(wait_ns / NS_PER_MS) + 1);

		if (n < 0 && errno != EINTR)
			die("epoll_wait");
		for (int i = 0; i < n; i++)
			on_reply(f, events[i].data.ptr);
	}
}

static void
print(const struct fleet *f, int64_t wall_ns, int64_t cpu_us, int64_t first_bytes)
{
	printf("{\"pushes\":%" PRId64 ",\"records\":%" PRId64 ",\"wire_bytes\":%" PRId64 ",\"first_bytes\":%" PRId64
	       ",\"seconds\":%.3f,\"own_cpu\":%.3f,\"retries\":%" PRId64 ",\"steps\":[",
	       f->o.nodes * f->o.steps, f->records, f->bytes - first_bytes, first_bytes, (double)wall_ns / 1e9,
	       (double)cpu_us / 1e6, f->retries);
	for (int64_t k = 0; f->o.paced && k < f->o.steps; k++)
		printf("%s{\"late\":%" PRId64 ",\"mean_ms\":%.1f,\"max_ms\":%.1f}", k > 0 ? "," : "", f->steps[k].late,
		       (double)f->steps[k].sum_ns / 1e6 / (double)f->o.nodes, (double)f->steps[k].lag_ns / 1e6);
	printf("]}\n");
}

static void
fleet_run(struct fleet *f)
{
	int64_t step_ns = f->o.step_ms * NS_PER_MS, start_ns, cpu_us, first_bytes;
	char line[16];

	start_ns = time_wall_ns();
	start_ns -= start_ns % step_ns + (f->o.paced ? step_ns : (f->o.steps * f->o.batches + 1) * step_ns);
	f->steps = mem_array((size_t)f->o.steps, sizeof(*f->steps));
	f->nodes = mem_array((size_t)f->o.nodes, sizeof(*f->nodes));
	f->epoll = epoll_create1(EPOLL_CLOEXEC);
	for (size_t i = 0; i < (size_t)f->o.nodes; i++) {
		prepare(f, i, start_ns);
		connect_node(f, &f->nodes[i]);
	}
	run(f, 0);
	first_bytes = f->bytes;
	if (f->o.wait) {
		printf("{\"ready\":true}\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			exit(1);
	}
	cpu_us = own_cpu_us();
	f->retries = 0;
	f->begin_ns = time_boot_ns();
	for (int64_t i = 0; i < f->o.nodes; i++)
		f->nodes[i].due_ns = due_of(f, &f->nodes[i], 1);
	run(f, (size_t)f->o.steps);
	print(f, time_boot_ns() - f->begin_ns, own_cpu_us() - cpu_us, first_bytes);
}

int
main(int argc, char **argv)
{
	struct fleet f = {0};

	if (argc < 2) {
		fprintf(stderr, "usage: fleet_tool PORT [--nodes N] ...\n");
		return 2;
	}
	f.o = (struct options){
		.port = (uint16_t)atoi(argv[1]),
		.nodes = option(argc, argv, "--nodes", 1000),
		.gpus = option(argc, argv, "--gpus", 8),
		.instances = option(argc, argv, "--instances", 7),
		.processes = option(argc, argv, "--processes", 3),
		.step_ms = option(argc, argv, "--step-ms", 10000),
		.steps = option(argc, argv, "--steps", 12),
		.paced = option(argc, argv, "--paced", 0),
		.burst = option(argc, argv, "--burst", 0),
		.at_once = option(argc, argv, "--at-once", 64),
		.batches = option(argc, argv, "--batches", 1),
		.wait = option(argc, argv, "--wait", 0),
	};
	fleet_run(&f);
	for (int64_t i = 0; i < f.o.nodes; i++) {
		close(f.nodes[i].fd);
		fleet_node_free(f.nodes[i].gen);
		buf_fini(&f.nodes[i].frames);
		buf_fini(&f.nodes[i].request);
		mem_free(f.nodes[i].ends);
	}
	close(f.epoll);
	mem_free(f.nodes);
	mem_free(f.steps);
	return 0;
}

/* tests/support/quota/decide_tool.c - clients that ask an aggregator for capacity, one request after the other, each on its own connection.
 *
 *   decide_tool PORT TOKEN CLIENTS REQUESTS PREFIX FIELDS [QUERY RATE]
 *
 * FIELDS are the members of each request beside its id, as JSON without braces; QUERY is "?dry_run=1" or the like. At most RATE requests are begun in
 * a second, by all clients together; 0: as many as go. Prints {"requests","seconds","p50_us","p99_us","other","limited"}; other: answers that were not 200
 * with an admission, limited: of these, 429. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/base.h"
#include "common/base/time.h"

#define REPLY_MAX (1u << 20)

struct client {
	pthread_t thread;
	const char *const *argv;
	int number, clients, requests, other, limited;
	int64_t *took_ns;
};

static int
dial(uint16_t port)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
	                         .sin_port = htons(port),
	                         .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
		perror("connect");
		exit(1);
	}
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

/* One whole answer; true: admitted. */
static bool
hear(int fd, char *reply)
{
	size_t len = 0, need = 0;

	while (need == 0 || len < need) {
		ssize_t n = recv(fd, reply + len, REPLY_MAX - 1 - len, 0);
		const char *end, *length;

		if (n <= 0) {
			fprintf(stderr, "the connection ended\n");
			exit(1);
		}
		len += (size_t)n;
		reply[len] = '\0';
		end = strstr(reply, "\r\n\r\n");
		length = end ? strcasestr(reply, "content-length:") : NULL;
		if (length)
			need = (size_t)(end + 4 - reply) + strtoul(length + strlen("content-length:"), NULL, 10);
	}
	return strncmp(reply, "HTTP/1.1 200", 12) == 0 && strstr(reply, "\"status\":\"admitted\"") != NULL;
}

static void
pause_until(int64_t ns)
{
	struct timespec at = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

	(void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void *
ask(void *arg)
{
	struct client *c = arg;
	int fd = dial((uint16_t)atoi(c->argv[1]));
	owned(mem) char *reply = mem_alloc(REPLY_MAX);
	const char *query = c->argv[7] ? c->argv[7] : "";
	int rate = c->argv[7] && c->argv[8] ? atoi(c->argv[8]) : 0;
	int64_t start_ns = time_monotonic_ns();

	for (int i = 0; i < c->requests; i++) {
		char body[1024], text[2048];
		int n = snprintf(body, sizeof(body), "{\"request_id\":\"%s-%d-%d\",%s}", c->argv[5], c->number, i,
		                 c->argv[6]);
		int64_t began_ns;

		n = snprintf(
			text, sizeof(text),
			"POST /v1/decisions%s HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
			query, c->argv[2], n, body);
		if (rate > 0)
			pause_until(start_ns + ((int64_t)i * c->clients + c->number) * NS_PER_S / rate);
		began_ns = time_monotonic_ns();
		if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n) {
			perror("send");
			exit(1);
		}
		c->other += hear(fd, reply) ? 0 : 1;
		c->limited += strncmp(reply, "HTTP/1.1 429", 12) == 0;
		c->took_ns[i] = time_monotonic_ns() - began_ns;
	}
	close(fd);
	return NULL;
}

static int
compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	bool sound = argc == 7 || argc == 9;
	int clients = sound ? atoi(argv[3]) : 0, each = sound ? atoi(argv[4]) / (clients > 0 ? clients : 1) : 0,
	    other = 0, limited = 0;
	size_t all = (size_t)clients * (size_t)each;
	owned(mem) struct client *list = NULL;
	owned(mem) int64_t *took_ns = NULL;
	int64_t began_ns;

	if (clients < 1 || each < 1) {
		fprintf(stderr, "usage: decide_tool PORT TOKEN CLIENTS REQUESTS PREFIX FIELDS [QUERY RATE]\n");
		return 2;
	}
	list = mem_array((size_t)clients, sizeof(*list));
	took_ns = mem_array(all, sizeof(*took_ns));
	began_ns = time_monotonic_ns();
	for (int i = 0; i < clients; i++) {
		list[i] = (struct client){.argv = (const char *const *)argv,
		                          .number = i,
		                          .clients = clients,
		                          .requests = each,
		                          .took_ns = took_ns + (size_t)i * (size_t)each};
		if (pthread_create(&list[i].thread, NULL, ask, &list[i]) != 0)
			return 1;
	}
	for (int i = 0; i < clients; i++) {
		pthread_join(list[i].thread, NULL);
		other += list[i].other;
		limited += list[i].limited;
	}
	began_ns = time_monotonic_ns() - began_ns;
	qsort(took_ns, all, sizeof(*took_ns), compare);
	printf("{\"requests\":%zu,\"seconds\":%.6f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"other\":%d,\"limited\":%d}\n", all,
	       (double)began_ns / 1e9, (double)took_ns[all / 2] / 1e3, (double)took_ns[all * 99 / 100] / 1e3, other,
	       limited);
	return 0;
}

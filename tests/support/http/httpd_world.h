/* tests/support/http/httpd_world.h - an HTTP server with one route for each thing to test, and a client that can say anything.
 * Nothing waits for a time to pass: workers wait at a gate that the test opens, and WORLD_PATIENCE_S only ends a test that
 * would hang. The functions here fail the running test. */
#ifndef TOLLGATE_TESTS_HTTPD_WORLD_H
#define TOLLGATE_TESTS_HTTPD_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "common/http/httpd.h"

#define WORLD_PATIENCE_S 300
#define WORLD_BODY_MAX 1000u
#define WORLD_SHARED_BYTES (4u << 20)
#define HOST "Host: t\r\n"

struct world {
	struct httpd *h;
	uint16_t port;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	int entered; /* requests at the gate */
	bool open;
	atomic_int workers_made, workers_freed, released, done;
	atomic_int last_status;
	char *shared;
};

/* Two workers, a queue of one, 64 connections, any free port. Routes: / /inline /worker /values /values/ /values/deep/ /echo
 * /echo-inline /thing /gate /shared /document /files/ /problem /over /name /text /text-inline /either. The guard refuses whoever sends X-Stranger. */
struct httpd_options options_of(struct world *w);
void world_init(struct world *w);
void world_start(struct world *w, const struct httpd_options *o);
void world_fini(struct world *w);
/* All three, for cmocka. */
int world_setup(void **state);
int world_teardown(void **state);

void await_entered(struct world *w, int n);
void open_gate(struct world *w);
void await_count(atomic_int *counter, int n);

/* ---- the client ---- */

struct answer {
	int status;
	char head[2048];
	struct buf body;
};

int dial(uint16_t port);
bool try_say(int fd, const void *data, size_t n); /* false when the server has closed the connection */
void tell(int fd, const char *text);
/* One reply of a connection, or status 0 when it ended without one. Never more bytes than belong to it. */
void hear(int fd, struct answer *a, bool head_only);
/* A fresh connection, one request, its reply. */
void ask(struct world *w, const char *request, struct answer *a);
void expect_end(int fd);
void expect_header(const struct answer *a, const char *line);
struct answer answer_empty(void);
void answer_fini(struct answer *a);

#endif

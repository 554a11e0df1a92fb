/* exporter/delivery/status.c - statuses to the aggregator. The rules are numbered in status.h. */
#include "exporter/delivery/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/time.h"
#include "exporter/delivery/push.h"

#define REPLY_MAX (64u << 10)
#define ABORT_NS (5 * NS_PER_S) /* for a request that was broken off to return */
#define LEAST_TIMEOUT_NS (5 * NS_PER_S)

struct status {
	struct status_options options;
	char *token_file;
	struct httpc *http;
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows up to stats */
	pthread_cond_t wake, done;
	struct buf waiting; /* the newest message that is not under way; empty: none */
	bool stop, ended;
	struct status_stats stats;
	/* of who offers */
	int64_t offered_boot_ns; /* INT64_MIN: never */
	/* of the thread */
	struct buf sending;
	char reason[256]; /* the last one logged; empty: all is well */
};

/* Waits for a message and takes it; false when the thread is to end. */
static bool
next_message(struct status *s)
{
	struct buf empty;
	bool stop;

	pthread_mutex_lock(&s->lock);
	while (!s->stop && s->waiting.len == 0)
		pthread_cond_wait(&s->wake, &s->lock);
	stop = s->stop;
	if (!stop) {
		empty = s->sending;
		buf_clear(&empty);
		s->sending = s->waiting;
		s->waiting = empty;
	}
	pthread_mutex_unlock(&s->lock);
	return !stop;
}

static void
note(struct status *s, const char *reason, bool refused)
{
	bool ok = reason == NULL, again;

	pthread_mutex_lock(&s->lock);
	s->stats.sent += ok;
	s->stats.failed += !ok;
	if (ok) {
		s->stats.last_success_wall_ns = time_wall_ns();
		s->stats.refused[0] = '\0';
	} else if (refused) {
		snprintf(s->stats.refused, sizeof(s->stats.refused), "%.*s", (int)sizeof(s->stats.refused) - 1, reason);
	}
	pthread_mutex_unlock(&s->lock);
	if (reason == NULL) {
		if (s->reason[0])
			log_event(LOG_INFO, "the aggregator takes statuses again", LS("was", s->reason));
		s->reason[0] = '\0';
		return;
	}
	again = s->reason[0] != '\0';
	snprintf(s->reason, sizeof(s->reason), "%.*s", (int)sizeof(s->reason) - 1, reason);
	if (!again)
		log_event(LOG_WARN, "the aggregator does not take statuses, live state is not told",
		          LS("reason", reason), LS("url", s->options.http.base_url));
}

/* Rule 1: what came of it is counted, and that is all. */
static void
send_message(struct status *s)
{
	struct httpc_reply reply = {0};
	struct err err;

	if (s->options.joins && access(s->token_file, F_OK) != 0)
		return;
	buf_init(&reply.body, REPLY_MAX);
	if (httpc_call(s->http, "POST", STATUS_PATH, "application/json", s->sending.data, s->sending.len, &reply,
	               &err) &&
	    (reply.status == 200 || httpc_problem(&reply, "status", &err)))
		note(s, NULL, false);
	else
		note(s, err.text, reply.status == 401 || reply.status == 403);
	buf_fini(&reply.body);
}

static void *
status_main(void *arg)
{
	struct status *s = arg;

	while (next_message(s))
		send_message(s);
	pthread_mutex_lock(&s->lock);
	s->ended = true;
	pthread_cond_signal(&s->done);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void
status_free(struct status *s)
{
	if (!s)
		return;
	httpc_free(s->http);
	buf_fini(&s->waiting);
	buf_fini(&s->sending);
	pthread_cond_destroy(&s->wake);
	pthread_cond_destroy(&s->done);
	pthread_mutex_destroy(&s->lock);
	mem_free(s->token_file);
	mem_free(s);
}
DEFINE_OWNED(status, struct status)

bool
status_start(const struct status_options *o, struct status **ret, struct err *err)
{
	owned(status) struct status *s = mem_alloc(sizeof(*s));
	struct httpc_options http = o->http;
	pthread_condattr_t attr;
	int rc;

	http.clock_header = PUSH_CLOCK_HEADER;
	http.gzip = true;
	/* once the next one is due nobody waits for this one any more */
	if (http.timeout_ns > o->interval_ns)
		http.timeout_ns = o->interval_ns > LEAST_TIMEOUT_NS ? o->interval_ns : LEAST_TIMEOUT_NS;
	s->options = *o;
	s->token_file = mem_strdup(o->http.token_file ? o->http.token_file : "");
	s->offered_boot_ns = INT64_MIN;
	s->stats.last_success_wall_ns = -1;
	buf_init(&s->waiting, STATUS_MAX);
	buf_init(&s->sending, STATUS_MAX);
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &attr);
	pthread_cond_init(&s->done, &attr);
	pthread_condattr_destroy(&attr);
	if (!httpc_new(&http, &s->http, err))
		return false;
	rc = pthread_create(&s->thread, NULL, status_main, s);
	if (rc != 0)
		return err_errno(err, ERR_FATAL, rc, "cannot start the status thread");
	*ret = take(s);
	return true;
}

int64_t
status_interval_ns(const struct status *s)
{
	return s->options.interval_ns;
}

bool
status_due(const struct status *s, int64_t boot_ns)
{
	return s->offered_boot_ns == INT64_MIN || boot_ns - s->offered_boot_ns >= s->options.interval_ns;
}

void
status_offer(struct status *s, const struct buf *text, int64_t boot_ns)
{
	s->offered_boot_ns = boot_ns;
	pthread_mutex_lock(&s->lock);
	s->stats.replaced += s->waiting.len > 0;
	buf_clear(&s->waiting);
	buf_add(&s->waiting, text->data, text->len);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

static struct timespec
after(int64_t ns)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	ns += t.tv_nsec;
	t.tv_sec += (time_t)(ns / NS_PER_S);
	t.tv_nsec = (long)(ns % NS_PER_S);
	return t;
}

bool
status_stop(struct status *s)
{
	struct timespec until;
	bool ended;

	if (!s)
		return true;
	until = after(ABORT_NS);
	httpc_abort(s->http);
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->wake);
	while (!s->ended && pthread_cond_timedwait(&s->done, &s->lock, &until) != ETIMEDOUT)
		;
	ended = s->ended;
	pthread_mutex_unlock(&s->lock);
	if (!ended)
		return false;
	pthread_join(s->thread, NULL);
	status_free(s);
	return true;
}

void
status_stats(struct status *s, struct status_stats *ret)
{
	pthread_mutex_lock(&s->lock);
	*ret = s->stats;
	pthread_mutex_unlock(&s->lock);
}

/* exporter/delivery/push.c - the push thread: decision on a reply, pauses, retries. */
#include "exporter/delivery/push.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/wire/frame.h"
#include "common/conf/json.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define REPLY_MAX (64u << 10)
#define RETRY_AFTER_PAUSES 10   /* longest Retry-After that is obeyed, in longest pauses */
#define ABORT_NS (5 * NS_PER_S) /* wait for an aborted request to return */
#define MOVES_MAX 3             /* in a row: more means that the aggregator contradicts itself */

/* ---- the decision ---- */

/* A number of a JSON reply; 0: not there, or not a batch number. The stream, when named, must be the one that was sent. */
static uint64_t
number_in(const struct httpc_reply *reply, const char *field, const struct spool_chunk *sent)
{
	owned(json) json_t *j = NULL;
	int64_t epoch, value;

	if (!json_parse("reply", buf_text(&reply->body), reply->body.len, &j, NULL) || !json_is_object(j))
		return 0;
	if (json_object_get(j, "epoch") && (!json_get_i64(j, "epoch", &epoch, NULL) || (uint64_t)epoch != sent->epoch))
		return 0;
	if (!json_get_i64(j, field, &value, NULL) || value < 1)
		return 0;
	return (uint64_t)value;
}

static struct push_decision
decision(enum push_action action, uint64_t next_seq, const char *reason)
{
	struct push_decision d = {.action = action, .next_seq = next_seq};

	snprintf(d.reason, sizeof(d.reason), "%.*s", (int)sizeof(d.reason) - 1, reason);
	return d;
}

struct push_decision
push_decide(const struct spool_chunk *sent, const struct httpc_reply *reply)
{
	bool ok = reply->status == 200;
	uint64_t next = ok                     ? number_in(reply, "next_seq", sent)
	                : reply->status == 409 ? number_in(reply, "expected_seq", sent)
	                                       : 0;
	struct err err = {0};

	if (ok && next > sent->first_seq && next <= sent->last_seq + 1)
		return decision(PUSH_ACKED, next, "");
	if (next != 0 && next != sent->first_seq)
		return decision(PUSH_MOVE, next, "the aggregator is at another batch");
	if (ok)
		return decision(PUSH_WAIT, 0,
		                next ? "200 without taking a batch" : "200 without next_seq of this stream");
	(void)httpc_problem(reply, "ingest", &err);
	if (reply->status == 413 && sent->last_seq > sent->first_seq)
		return decision(PUSH_FEWER, 0, err.text);
	if (sent->foreign && (reply->status == 403 || reply->status == 422))
		return decision(PUSH_ASIDE, 0, err.text);
	return decision(PUSH_WAIT, 0, err.text);
}

/* ---- the thread ---- */

struct push {
	struct push_options options;
	struct outbox *outbox;
	struct httpc *http;
	struct httpc *join_http; /* presents the join token; NULL: the node does not enrol itself */
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows up to stats */
	pthread_cond_t wake, done;
	bool more;      /* something may be new in the outbox */
	bool finishing; /* no more pauses; the first failure ends the thread */
	bool ended;
	struct push_stats stats;
	/* of the thread alone */
	unsigned failures, moves;
	int wait_s; /* Retry-After of the last reply */
	size_t chunk_bytes;
	char reason[256]; /* the last one logged; empty: all is well */
	char aside_reason[256];
	int64_t offer_again_boot_ns; /* 0: nothing is set aside */
	bool reached;                /* the aggregator has acknowledged something before */
	bool tried_last;             /* the last attempt before the end was made */
};

/* The pause after a failure. A stop cuts it short for one last attempt, because the newest batch has not been tried yet. False when
 * the thread must end. */
static bool
pause_a_while(struct push *p)
{
	uint64_t chance;
	int64_t deadline_ns;
	bool finishing;

	random_bytes((uint8_t *)&chance, sizeof(chance));
	deadline_ns = time_monotonic_ns() + httpc_pause_ns(p->options.least_pause_ns, p->options.most_pause_ns,
	                                                   p->failures, p->wait_s, chance);
	p->wait_s = 0;
	pthread_mutex_lock(&p->lock);
	while (!p->finishing && condition_wait_until(&p->wake, &p->lock, deadline_ns))
		;
	finishing = p->finishing;
	pthread_mutex_unlock(&p->lock);
	if (!finishing)
		return true;
	if (p->tried_last)
		return false;
	p->tried_last = true;
	return true;
}

/* Waits until there may be something to send. False when the thread must end. */
static bool
wait_for_more(struct push *p)
{
	bool more;

	pthread_mutex_lock(&p->lock);
	while (!p->finishing && !p->more)
		pthread_cond_wait(&p->wake, &p->lock);
	more = p->more;
	p->more = false;
	pthread_mutex_unlock(&p->lock);
	return more;
}

static void
count(struct push *p, int64_t *counter, bool failing)
{
	pthread_mutex_lock(&p->lock);
	++*counter;
	p->stats.failing = failing;
	if (!failing) {
		p->stats.last_success_wall_ns = time_wall_ns();
		p->stats.refused[0] = '\0';
	}
	pthread_mutex_unlock(&p->lock);
}

/* Errors of a connection contain times and ports; they count as the same cause when only these differ. */
static bool
same_but_for_digits(const char *a, const char *b)
{
	for (;;) {
		a += strspn(a, "0123456789");
		b += strspn(b, "0123456789");
		if (*a != *b || !*a)
			return *a == *b;
		a++;
		b++;
	}
}

static void
note_failure(struct push *p, bool replied, const char *reason)
{
	char text[sizeof(p->reason)];

	snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, reason);
	count(p, &p->stats.failed, true);
	p->failures++;
	if (replied ? strcmp(p->reason, text) == 0 : same_but_for_digits(p->reason, text))
		return;
	memcpy(p->reason, text, sizeof(p->reason));
	log_event(LOG_WARN, "push fails, batches stay in the spool", LS("reason", reason),
	          LS("url", p->options.http.base_url));
}

/* The aggregator refuses the token: this node is not ready until it accepts it. */
static void
note_refused(struct push *p, const char *reason)
{
	pthread_mutex_lock(&p->lock);
	snprintf(p->stats.refused, sizeof(p->stats.refused), "%.*s", (int)sizeof(p->stats.refused) - 1, reason);
	pthread_mutex_unlock(&p->lock);
}

static void
note_success(struct push *p)
{
	count(p, &p->stats.acked, false);
	if (p->reason[0] || !p->reached)
		log_event(LOG_INFO, p->reached ? "push works again" : "push works",
		          LS("url", p->options.http.base_url));
	p->reason[0] = '\0';
	p->reached = true;
	p->failures = p->moves = 0;
}

/* Logged once per reason: the streams of a former node name are refused every hour with the same text. */
static void
set_aside(struct push *p, const struct spool_chunk *chunk, const char *reason)
{
	outbox_refuse(p->outbox, chunk->epoch);
	if (p->offer_again_boot_ns == 0)
		p->offer_again_boot_ns = time_boot_ns() + p->options.refused_pause_ns;
	pthread_mutex_lock(&p->lock);
	p->stats.failed++;
	pthread_mutex_unlock(&p->lock);
	if (strcmp(p->aside_reason, reason) == 0)
		return;
	snprintf(p->aside_reason, sizeof(p->aside_reason), "%.*s", (int)sizeof(p->aside_reason) - 1, reason);
	log_event(LOG_WARN, "the aggregator refuses an older stream, it is set aside in the spool",
	          LI("epoch", chunk->epoch), LS("reason", reason), LS("url", p->options.http.base_url));
}

static void
offer_again_in_time(struct push *p)
{
	if (p->offer_again_boot_ns == 0 || time_boot_ns() < p->offer_again_boot_ns)
		return;
	p->offer_again_boot_ns = 0;
	outbox_offer_again(p->outbox);
}

static bool
move_cursor(struct push *p, const struct spool_chunk *chunk, uint64_t next_seq)
{
	struct err err;

	if (outbox_ack(p->outbox, chunk->epoch, next_seq, time_wall_ns(), &err))
		return true;
	note_failure(p, true, err.text);
	return false;
}

/* True when the next request may be sent at once. */
static bool
apply(struct push *p, const struct spool_chunk *chunk, const struct push_decision *d)
{
	switch (d->action) {
	case PUSH_ACKED:
		if (!move_cursor(p, chunk, d->next_seq))
			return false;
		note_success(p);
		return true;
	case PUSH_MOVE:
		if (p->moves++ < MOVES_MAX) {
			log_event(LOG_INFO, d->reason, LI("epoch", chunk->epoch), LI("sent", chunk->first_seq),
			          LI("wanted", d->next_seq));
			count(p, &p->stats.moved, false);
			return move_cursor(p, chunk, d->next_seq);
		}
		p->moves = 0;
		note_failure(p, true, "the aggregator keeps asking for other batches");
		return false;
	case PUSH_FEWER:
		p->chunk_bytes /= 2;
		note_failure(p, true, d->reason);
		return true;
	case PUSH_ASIDE: set_aside(p, chunk, d->reason); return true;
	case PUSH_WAIT: note_failure(p, true, d->reason); return false;
	}
	return false;
}

static bool
enrolled(struct push *p, struct err *err)
{
	bool joined = false;

	if (!p->join_http)
		return true;
	if (!join_if_needed(p->join_http, &p->options.join, &joined, err))
		return false;
	if (joined)
		log_event(LOG_INFO, "this node has joined", LS("node", p->options.join.node),
		          LS("token_file", p->options.join.token_file), LS("url", p->options.http.base_url));
	return true;
}

/* One request. *ret_any: there was something to send. True when the next request may be sent at once. */
static bool
push_once(struct push *p, struct buf *frames, bool *ret_any)
{
	struct httpc_reply reply = {0};
	struct spool_chunk chunk;
	struct push_decision d;
	struct err err;
	bool go_on = false;

	if (!enrolled(p, &err)) {
		*ret_any = true;
		note_failure(p, false, err.text);
		if (err.kind == ERR_DENIED)
			note_refused(p, err.text);
		return false;
	}
	offer_again_in_time(p);
	if (!outbox_peek(p->outbox, p->chunk_bytes, frames, &chunk, ret_any, &err)) {
		*ret_any = true;
		note_failure(p, false, err.text);
		return false;
	}
	if (!*ret_any)
		return false;
	buf_init(&reply.body, REPLY_MAX);
	if (!httpc_call(p->http, "POST", PUSH_PATH, PUSH_CONTENT_TYPE, frames->data, frames->len, &reply, &err)) {
		note_failure(p, false, err.text);
	} else {
		int64_t most_s = RETRY_AFTER_PAUSES * p->options.most_pause_ns / NS_PER_S;

		p->wait_s = reply.retry_after_s > most_s ? (int)most_s : reply.retry_after_s;
		d = push_decide(&chunk, &reply);
		if (d.action == PUSH_WAIT && (reply.status == 401 || reply.status == 403))
			note_refused(p, d.reason);
		go_on = apply(p, &chunk, &d);
	}
	buf_fini(&reply.body);
	return go_on;
}

static void *
push_main(void *arg)
{
	struct push *p = arg;
	in_place(buf) struct buf frames = {0};
	bool go_on = true;

	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	while (go_on) {
		bool any = false;

		if (!push_once(p, &frames, &any))
			go_on = any ? pause_a_while(p) : wait_for_more(p);
	}
	pthread_mutex_lock(&p->lock);
	p->ended = true;
	pthread_cond_signal(&p->done);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void
push_free(struct push *p)
{
	if (!p)
		return;
	httpc_free(p->http);
	httpc_free(p->join_http);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->done);
	pthread_mutex_destroy(&p->lock);
	mem_free(p);
}
DEFINE_OWNED(push, struct push)

bool
push_start(const struct push_options *o, struct outbox *outbox, struct push **ret, struct err *err)
{
	owned(push) struct push *p = mem_alloc(sizeof(*p));
	struct httpc_options http = o->http;
	int rc;

	http.clock_header = PUSH_CLOCK_HEADER;
	p->options = *o;
	p->outbox = outbox;
	p->chunk_bytes = o->chunk_bytes;
	p->stats.last_success_wall_ns = -1;
	pthread_mutex_init(&p->lock, NULL);
	condition_init(&p->wake);
	condition_init(&p->done);
	if (!httpc_new(&http, &p->http, err))
		return false;
	if (o->join.join_token_file) {
		http.token_file = o->join.join_token_file;
		if (!httpc_new(&http, &p->join_http, err))
			return false;
	}
	rc = pthread_create(&p->thread, NULL, push_main, p);
	if (rc != 0)
		return err_errno(err, ERR_FATAL, rc, "cannot start the push thread");
	*ret = take(p);
	return true;
}

void
push_wake(struct push *p)
{
	pthread_mutex_lock(&p->lock);
	p->more = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

static bool
wait_for_end(struct push *p, int64_t patience_ns)
{
	int64_t deadline_ns = time_monotonic_ns() + patience_ns;
	bool ended;

	pthread_mutex_lock(&p->lock);
	p->finishing = true;
	pthread_cond_signal(&p->wake);
	while (!p->ended && condition_wait_until(&p->done, &p->lock, deadline_ns))
		;
	ended = p->ended;
	pthread_mutex_unlock(&p->lock);
	return ended;
}

bool
push_stop(struct push *p, int64_t patience_ns)
{
	bool ended;

	if (!p)
		return true;
	ended = wait_for_end(p, patience_ns);
	httpc_abort(p->http);
	if (p->join_http)
		httpc_abort(p->join_http);
	if (!ended && !wait_for_end(p, ABORT_NS))
		return false;
	pthread_join(p->thread, NULL);
	push_free(p);
	return true;
}

void
push_stats(struct push *p, struct push_stats *ret)
{
	pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	pthread_mutex_unlock(&p->lock);
}

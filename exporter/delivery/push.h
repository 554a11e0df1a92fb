/* exporter/delivery/push.h - batches from the spool to the aggregator, in a thread of its own.
 *
 * One request at a time: POST /v1/ingest with the frames of one stream as they are on disk. Nothing is ever dropped here. */
#ifndef TOLLGATE_PUSH_H
#define TOLLGATE_PUSH_H

#include "common/http/httpc.h"
#include "exporter/delivery/join.h"
#include "exporter/delivery/outbox.h"

#define PUSH_PATH "/v1/ingest"
#define PUSH_CONTENT_TYPE "application/vnd.tollgate.batches"
/* The node's clock at the moment of sending, in nanoseconds since 1970: the aggregator measures by it how wrong that clock is. */
#define PUSH_CLOCK_HEADER "Tollgate-Clock"

/* What a reply means. Pure. Rules, in order:
 *  1. 200 with next_seq behind the first batch sent: acknowledged up to there
 *  2. 200 with another next_seq, or 409 with expected_seq, that is not the first batch sent: go on from there, back or forward
 *  3. 413 for more than one batch: send fewer at once
 *  4. 403 or 422 for a stream of another node name, or simulated where this run is not: it is set aside, the others go on.
 *     403 for this run's own is a wrong token, which may be put right any moment
 *  5. anything else: wait and send the same again */
enum push_action { PUSH_ACKED, PUSH_MOVE, PUSH_FEWER, PUSH_ASIDE, PUSH_WAIT };
struct push_decision {
	enum push_action action;
	uint64_t next_seq; /* ACKED, MOVE */
	char reason[256];  /* all but ACKED: for the log, the same text for the same cause */
};
struct push_decision push_decide(const struct spool_chunk *sent, const struct httpc_reply *reply);

struct push_options {
	struct httpc_options http;
	struct join_options join; /* done first, when the node has no token */
	size_t chunk_bytes;       /* of one request */
	/* See httpc_pause_ns. A Retry-After is waited for, but for no longer than ten times the longest pause. */
	int64_t least_pause_ns, most_pause_ns;
	int64_t refused_pause_ns; /* streams set aside are offered again after this */
};

struct push;

MUST_CHECK bool push_start(const struct push_options *o, struct outbox *outbox, struct push **ret, struct err *err);
/* There may be something new in the outbox. */
void push_wake(struct push *p);
/* Sends what is there at once, without pauses, until all of it is acknowledged, something fails or the time is over. Then ends the
 * thread and frees. NULL is allowed. False: the thread has not returned from the disk; it and the
 * outbox are as they were, and it can be asked again. */
bool push_stop(struct push *p, int64_t patience_ns);

struct push_stats {
	int64_t acked, moved, failed; /* requests by what came of them; failed: set aside too */
	int64_t last_success_wall_ns; /* -1: never */
	bool failing;
	char refused
		[256]; /* why the aggregator refuses this node's token, or its join token; "": it does not, as far as is known */
};
void push_stats(struct push *p, struct push_stats *ret);

#endif

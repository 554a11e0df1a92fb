/* exporter/delivery/push.h - the thread that sends batches from the spool to the aggregator, and the node's enrolment.
 *
 * One request at a time: POST /v1/ingest with the frames of one stream as they are on disk. Nothing is dropped here. */
#ifndef TOLLGATE_PUSH_H
#define TOLLGATE_PUSH_H

#include "common/http/httpc.h"
#include "exporter/delivery/outbox.h"

#define PUSH_PATH "/v1/ingest"
#define PUSH_CONTENT_TYPE "application/vnd.tollgate.batches"
/* The node's clock at the moment of sending, in nanoseconds since 1970: the aggregator compares it with its own. */
#define PUSH_CLOCK_HEADER "Tollgate-Clock"

/* The decision on a reply. Pure. Rules, in order:
 *  1. 200 with next_seq after the first batch sent: acknowledged up to there
 *  2. 200 with another next_seq, or 409 with expected_seq, that is not the first batch sent: continue from there, back or forward
 *  3. 413 for more than one batch: send fewer at once
 *  4. 403 or 422 for a stream of another node name, or simulated where this run is not: set it aside, send the others.
 *     403 for this run's own stream is a wrong token, which may be corrected at any moment
 *  5. anything else: wait and send the same batches again */
enum push_action { PUSH_ACKED, PUSH_MOVE, PUSH_FEWER, PUSH_ASIDE, PUSH_WAIT };
struct push_decision {
	enum push_action action;
	uint64_t next_seq; /* ACKED, MOVE */
	char reason[256];  /* all but ACKED: for the log; the same text for the same cause */
};
struct push_decision push_decide(const struct spool_chunk *sent, const struct httpc_reply *reply);

/* ---- enrolment (join.c) ---- */

#define JOIN_PATH "/v1/join"

struct join_options {
	const char *join_token_file; /* shared secret to present; NULL: this node does not enrol itself */
	const char *token_file;      /* where the node's own token is stored */
	const char *node;
};

/* Gets this node its token in exchange for the join token, which http presents. Rules, in order:
 *  1. a token file that is not empty is the node's token: nothing is done
 *  2. whether the token file can be written is tried before the join token is used
 *  3. the token is on disk, readable by its owner only, before the node counts as joined
 * ERR_RETRY: the aggregator did not answer. Other kinds: it refused, for the reason in the text. */
MUST_CHECK bool join_if_needed(struct httpc *http, const struct join_options *o, bool *ret_joined, struct err *err);

/* ---- the thread ---- */

struct push_options {
	struct httpc_options http;
	struct join_options join; /* before the first push, when the node has no token */
	size_t chunk_bytes;       /* of one request */
	/* See httpc_pause_ns. A Retry-After is obeyed up to ten times the longest pause. */
	int64_t least_pause_ns, most_pause_ns;
	int64_t refused_pause_ns; /* streams set aside are offered again after this */
};

struct push;

MUST_CHECK bool push_start(const struct push_options *o, struct outbox *outbox, struct push **ret, struct err *err);
/* There may be something new in the outbox. */
void push_wake(struct push *p);
/* Sends the remaining batches without pauses until all are acknowledged, a request fails or the time is over; then ends the thread
 * and frees. NULL is allowed. False: the thread has not returned from the disk; nothing was freed, and push_stop may be
 * called again. */
bool push_stop(struct push *p, int64_t patience_ns);

struct push_stats {
	int64_t acked, moved, failed; /* requests by result; failed includes streams set aside */
	int64_t last_success_wall_ns; /* -1: never */
	bool failing;
	/* why the aggregator refuses the token or the join token of this node; "": it does not, as far as known */
	char refused[256];
};
void push_stats(struct push *p, struct push_stats *ret);

#endif

/* exporter/delivery/status.h - what the aggregator is told of this moment: who holds which GPU, and which GPUs work.
 *
 * Rules, by number in the code:
 *  1. a status is no usage: it is never kept, and one that is lost is not sent again, because the next says it all
 *  2. it goes out in a thread and on a connection of its own: an aggregator that hangs holds up neither ticks nor batches
 *  3. of several that wait only the newest is sent */
#ifndef TOLLGATE_STATUS_H
#define TOLLGATE_STATUS_H

#include "common/http/httpc.h"
#include "exporter/meter/meter.h"

#define STATUS_PATH "/v1/status"
#define STATUS_MAX (1u << 20)

/* ---- the message ---- */

struct status_input {
	const char *node;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	int64_t boot_ns, wall_ns; /* of the tick */
	int64_t interval_ns;      /* when the next one may be expected */
	bool simulated;
	int replicas;            /* each whole GPU is advertised as this many */
	const struct tick *tick; /* NULL: nothing could be read */
};
/* One JSON object. At each device those who hold it, and those who are there without holding anything; a holder that does not
 * fit into STATUS_MAX is counted instead. Pure. */
void status_write(const struct status_input *in, struct buf *out);

/* ---- the thread ---- */

struct status_options {
	struct httpc_options http;
	bool joins; /* the node gets its token by itself: until there is one nothing is sent, and that is no failure */
	int64_t interval_ns;
};

struct status; /* one thread offers, and asks whether it is time */

MUST_CHECK bool status_start(const struct status_options *o, struct status **ret, struct err *err);
int64_t status_interval_ns(const struct status *s);
/* Whether it is time for another one. */
bool status_due(const struct status *s, int64_t boot_ns);
/* Hands a message over, which is copied; boot_ns is when it was made. Never waits for the network. */
void status_offer(struct status *s, const struct buf *text, int64_t boot_ns);
/* Ends the thread, breaking off what is under way. NULL is allowed. False: it has not returned from reading the token's file, and
 * is left to itself. */
bool status_stop(struct status *s);

struct status_stats {
	int64_t sent, failed;
	int64_t replaced;             /* never sent, because a newer one came */
	int64_t last_success_wall_ns; /* -1: never */
	char refused[256];            /* why the last one's token was refused; "": it was not */
};
void status_stats(struct status *s, struct status_stats *ret);

#endif

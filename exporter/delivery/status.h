/* exporter/delivery/status.h - live status for the aggregator: who holds which GPU now, and which GPUs work.
 *
 * Rules, by number in the code:
 *  1. a status is not usage: it is never stored, and a lost one is not sent again, because the next one replaces it
 *  2. it has its own thread and connection: an aggregator that hangs delays neither ticks nor batches
 *  3. only the newest waiting status is sent
 *  4. one is sent at each interval, and as soon as a tick sees other holders, instances or failures of GPUs than the last one told: a
 *     scheduler waits for a GPU that becomes free. A holder that only becomes active or idle can wait */
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
/* Writes one JSON object that lists, for each device, its holders and the processes on it that hold nothing. A holder that does not
 * fit into STATUS_MAX is only counted. Pure. */
void status_write(const struct status_input *in, struct buf *out);

/* A number that differs where rule 4 asks for a status before its time. Pure. */
uint64_t status_fingerprint(const struct status_input *in);

/* ---- the thread ---- */

struct status_options {
	struct httpc_options http;
	bool joins; /* the node enrols itself: nothing is sent until it has a token, and that is not a failure */
	int64_t interval_ns;
};

struct status; /* status_due and status_offer are called by one thread */

MUST_CHECK bool status_start(const struct status_options *o, struct status **ret, struct err *err);
int64_t status_interval_ns(const struct status *s);
/* Whether it is time for another one, or its content asks for it. */
bool status_due(const struct status *s, int64_t boot_ns, uint64_t fingerprint);
/* Copies the message for the thread to send; boot_ns is when it was made. Never waits for the network. */
void status_offer(struct status *s, const struct buf *text, int64_t boot_ns, uint64_t fingerprint);
/* Aborts the request and ends the thread. NULL is allowed. False: the thread has not returned from reading the token file; it is
 * abandoned. */
bool status_stop(struct status *s);

struct status_stats {
	int64_t sent, failed;
	int64_t replaced;             /* never sent, because a newer one came */
	int64_t last_success_wall_ns; /* -1: never */
	char refused[256];            /* why the token was refused; "": it was not */
};
void status_stats(struct status *s, struct status_stats *ret);

#endif

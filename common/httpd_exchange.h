/* common/httpd_exchange.h - one request of the HTTP server and its reply, apart from the library that moves their bytes.
 *
 * A scrape finds the processor's caches cold: on its way nothing is formatted and as little as possible allocated. */
#ifndef TOLLGATE_COMMON_HTTPD_EXCHANGE_H
#define TOLLGATE_COMMON_HTTPD_EXCHANGE_H

#include <stdatomic.h>

#include "common/httpd_rules.h"

/* A refused body up to this size is read and thrown away, so that its sender comes to read the refusal and the connection
 * stays usable. Beyond it the refusal is sent at once, or, where libmicrohttpd cannot, the connection is closed. */
#define HTTP_SWALLOW_MAX (1u << 20)

/* The bodies of all requests together; of the server's thread alone. */
struct http_bodies {
	size_t held, max;
};

#define HTTP_HEADERS_KEPT 16

struct link;
struct exchange {
	struct httpd *server;
	void *connection;  /* libmicrohttpd's */
	struct link *link; /* what we know of it */
	const struct httpd_options *options;
	struct http_bodies *bodies;
	enum {
		EXCHANGE_HEAD,   /* the target is known, the headers are not */
		EXCHANGE_BODY,   /* collecting the body */
		EXCHANGE_WORK,   /* in the pool, the connection is suspended */
		EXCHANGE_REPLY,  /* rp is ready */
		EXCHANGE_QUEUED, /* the reply is libmicrohttpd's */
	} stage;
	bool unsound; /* the target: see http_target_sound */
	bool refused; /* rp holds the refusal, what still comes is thrown away */
	bool gzip;
	bool close;   /* the connection ends with this reply */
	bool counted; /* among those that a stop waits for */
	bool later;   /* http_later was called; of the handler's thread */
	/* its handler has returned, its reply is written: what comes second gives the exchange back. Only where it is kept */
	atomic_int ready;
	int status; /* of the reply that was queued */
	size_t sent_bytes;
	size_t held; /* this body's part of bodies, also while a worker has the body */
	size_t swallowed;
	int64_t begun_ns;
	struct http_framing framing;
	struct http_lines lines;
	struct buf body;
	char method[16];
	char *path;
	struct http_request rq;
	struct http_reply rp;
	size_t header_count;
	/* the first headers, as libmicrohttpd holds them, which is asked for the others; not initialized */
	struct {
		const char *name, *value;
	} headers[HTTP_HEADERS_KEPT];
};

void exchange_init(struct exchange *x, const struct httpd_options *o, struct http_bodies *bodies);
void exchange_fini(struct exchange *x);

/* Called with each header in order; "" for one without a value. */
void exchange_header(struct exchange *x, const char *name, const char *value);
/* The head is in: what is asked for, and by which id it is known. */
void exchange_name(struct exchange *x, const char *method, const char *path);
/* Rules, in order; the first that applies refuses:
 *  1. a target, line ends or framing that two readers may read differently: 400, and the connection ends
 *  2. the server is stopping: 503
 *  3. what http_judge refuses: 404, 405, 415, 413
 * Later: more than the route takes (413) or than all requests together may hold (503); no worker free (503).
 * framing and lines have seen all headers. */
void exchange_judge(struct exchange *x, bool stopping);
/* Whether a refusal must not wait for the rest of the request. */
bool exchange_hurries(const struct exchange *x);
/* Takes a part of the body; false: it was refused and its sender goes on and on. */
MUST_CHECK bool exchange_collect(struct exchange *x, const char *data, size_t n);
/* 503 with Retry-After. */
void exchange_refuse_busy(struct exchange *x, const char *why) SELDOM;
/* Guard, gzip, handler; in a worker's thread, or in the server's with NULL. Then stage is EXCHANGE_REPLY, or the handler
 * wants a worker (rp.to_worker), or has kept the request (later): then rp is another's. */
void exchange_answer(struct exchange *x, void *worker);
/* The reply is about to be sent, in the server's thread. */
void exchange_settle(struct exchange *x);

#endif

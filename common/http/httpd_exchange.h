/* common/http/httpd_exchange.h - one request of the HTTP server and its reply, apart from the library that moves their bytes.
 *
 * A scrape finds the processor's caches cold: on its way nothing is formatted and as little as possible allocated. */
#ifndef TOLLGATE_HTTPD_EXCHANGE_H
#define TOLLGATE_HTTPD_EXCHANGE_H

#include <stdatomic.h>

#include "common/http/httpd_pool.h"
#include "common/http/httpd_rules.h"
#include "common/http/httpd_tally.h"

/* A refused body up to HTTP_SMALL_BODY is read and thrown away, so that the connection stays usable. Beyond it the refusal is sent at once
 * and the connection ends. Where libmicrohttpd cannot, because the body has begun to come, so much of it is thrown away before the
 * connection is closed. */
#define HTTP_SWALLOW_MAX (1u << 20)

/* The bodies of all requests together; of the server's thread alone. Rules, in order:
 *  1. without shares (no identify) every body counts for the total of its pool
 *  2. a body up to HTTP_SMALL_BODY of a known caller is always taken: connection_max limits them
 *  3. one of an unknown caller counts for its address, which has half of what all connections could hold in small bodies: a fleet
 *     of half as many nodes as there may be connections can come from one address, all at once, before its tokens are known
 *  4. a larger one counts for the pool and for its caller (the tenant, else the token), who has an eighth of the pool, and one body at
 *     least. It is only read when the caller is known, and counts from its first byte with the length that it announces */
struct http_bodies {
	size_t held[HTTP_POOLS], max[HTTP_POOLS], caller_max[HTTP_POOLS];
	size_t address_max; /* of small bodies of unknown callers */
	struct http_tally *callers;
	atomic_llong limited[HTTP_LIMITS]; /* of all threads: what was answered 429 */
};
void http_bodies_init(struct http_bodies *b, const struct httpd_options *o);
void http_bodies_fini(struct http_bodies *b);

#define HTTP_HEADERS_KEPT 16

struct link;
struct exchange {
	struct httpd *server;
	void *connection;  /* libmicrohttpd's */
	struct link *link; /* state of the connection */
	const struct httpd_options *options;
	struct http_bodies *bodies;
	enum {
		EXCHANGE_HEAD,     /* the target is known, the headers are not */
		EXCHANGE_IDENTIFY, /* in the pool for who is asking, the connection is suspended before its body is read */
		EXCHANGE_KNOWN,    /* that was found out */
		EXCHANGE_BODY,     /* collecting the body */
		EXCHANGE_WORK,     /* in the pool, the connection is suspended */
		EXCHANGE_GONE,     /* its client has */
		EXCHANGE_REPLY,    /* rp is ready */
		EXCHANGE_QUEUED, /* the reply is libmicrohttpd's */
	} stage;
	bool unsound;     /* the target: see http_target_sound */
	uintptr_t target; /* where it lay, for http_lines_begin */
	size_t target_len;
	const char
		*bad_query; /* name of a parameter that is not clean text (text.h), or whose value is not; NULL: none */
	bool refused;       /* rp holds the refusal, what still comes is thrown away */
	bool gzip;
	bool close;   /* the connection ends with this reply */
	bool counted; /* among those that a stop waits for */
	bool guarded; /* the worker that has it has asked the guard */
	bool poll;    /* of a kept one: what it counts as */
	atomic_bool gone;
	_Atomic(void *)
		worker; /* the worker whose handler may be interrupted, because it is heavy and changes nothing; NULL: none */
	bool identified, known; /* nobody need be asked about the caller any more; caller is set */
	atomic_bool later;      /* http_later was called, by the handler's thread */
	/* its handler has returned, its reply is written: what comes second gives the exchange back. Only where it is kept */
	atomic_int ready;
	int status; /* of the reply that was queued */
	size_t sent_bytes;
	size_t held;           /* this body's part of bodies, also while a worker has the body */
	char *held_by;         /* for whom it counts beside the total; NULL: nobody */
	char *kept_for;        /* of a kept one: the tenant it counts for beside the caller; NULL: none */
	enum http_limit limit; /* why it was not kept; HTTP_LIMITS: no limit of the caller's own */
	int pool;
	size_t swallowed;
	int64_t begun_ns;
	struct http_framing framing;
	struct http_lines lines;
	struct buf body;
	char method[16];
	char *path;
	struct http_caller caller;
	struct httpd_job job;
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
 *  2. a chunked body: 411, and the connection ends
 *  3. the server is stopping: 503
 *  4. what http_judge refuses: 404, 405, 415, 413
 *  5. a query that is not UTF-8 text, or has control or direction characters: 400
 * Later: who is asking (401, 403); more than the route takes (413), than the caller may hold (429) or than all requests together may (503);
 * no worker free (503), or too many of the caller's requests wait (429).
 * framing and lines have seen all headers. */
void exchange_judge(struct exchange *x, bool stopping);
/* Whether a refusal must not wait for the rest of the request. */
bool exchange_hurries(const struct exchange *x);
/* Whether the caller must be known before the body is read. */
bool exchange_is_large(const struct exchange *x);
/* Asks who is asking, where that is not known yet and somebody can say; in a worker's thread, or in the server's with NULL. False: it was refused. */
MUST_CHECK bool exchange_identify(struct exchange *x, void *worker);
/* The caller as far as it is known: may the body come? Otherwise it is refused. address: of the client. */
void exchange_admit(struct exchange *x, const char *address);
/* The account that the exchange counts for: "tenant acme", "token 7", or the address where the caller is not known. */
#define EXCHANGE_PAYER_SIZE 80
const char *exchange_payer(const struct exchange *x, const char *address, char out[EXCHANGE_PAYER_SIZE]);
/* Its share among those that wait for a worker. */
void exchange_share(const struct exchange *x, const char *address, struct httpd_share *ret);
/* Takes a part of the body; false: it was refused and its sender goes on and on. */
MUST_CHECK bool exchange_collect(struct exchange *x, const char *data, size_t n);
/* 503 with Retry-After. */
void exchange_refuse_busy(struct exchange *x, const char *why) SELDOM;
/* 429 with Retry-After and the name of the limit. */
void exchange_refuse_limit(struct exchange *x, enum http_limit limit, const char *fmt, ...) PRINTF_LIKE(3, 4) SELDOM;
/* Guard, gzip, handler; in a worker's thread, or in the server's with NULL. Then stage is EXCHANGE_REPLY, or the handler
 * wants a worker (rp.to_worker), or has kept the request (later): then rp is another's. */
void exchange_answer(struct exchange *x, void *worker);
/* The reply is about to be sent, in the server's thread. */
void exchange_settle(struct exchange *x);

#endif

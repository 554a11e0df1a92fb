/* common/http/httpd.h - the HTTP server of both daemons, on libmicrohttpd; the only file that includes it is httpd.c.
 *
 * One table of routes. An inline route is answered in the server's own thread and must not block; every other request is
 * suspended and handed to the workers of its route's pool, each with its own context (its database connection). A full queue
 * is answered 503 with Retry-After at once.
 *
 * Every resource a client can make the server hold has a limit: connections, idle time, the time to send a request and to
 * take its reply, headers (then 431), one body (as it arrives and after gzip), all bodies together, and requests
 * waiting. Where the server identifies callers (identify), each has a share of these, and a request beyond its own share is
 * answered 429 with Retry-After and the name of the limit.
 *
 * A worker's reply is compressed for clients that accept gzip, where that pays; an inline reply is sent as it is. */
#ifndef TOLLGATE_HTTPD_H
#define TOLLGATE_HTTPD_H

#include "common/base/buf.h"

struct httpd;
struct http_route;

/* The ceiling of a reply's own body; past it the client gets 500, never half a document. */
#define HTTP_REPLY_MAX (64u << 20)

/* A body up to this is read before the caller is identified. */
#define HTTP_SMALL_BODY (16u << 10)

#define HTTP_ID_MAX 64
#define HTTP_ADDRESS_SIZE 64

struct http_request {
	const char *method;
	const char *path; /* without the query */
	const char *tail; /* the rest of the path after the route's prefix: "2026-11.csv"; "" for an exact route */
	const char *body;
	size_t body_len;
	const struct http_route *route; /* that matched; NULL in on_done when none did */
	void *exchange;                 /* for http_header and its relatives */
	const char *detail; /* in on_done: what the log is told and the client is not (struct err); NULL: nothing */
	/* When its first line was in, however long its body takes and a worker is waited for: on the wall clock and on the boot clock. */
	int64_t arrived_wall_ns, arrived_ns;
	/* The client's X-Request-Id when it is one (see http_id_sound), else a number of our own; also in the reply. */
	char id[HTTP_ID_MAX + 1];
};

/* The first value of that name, or NULL when absent; "" for a query name without a value. Valid until the handler
 * returns, in the server's thread and in a worker's: the connection rests while a worker has its request. */
const char *http_header(const struct http_request *rq, const char *name);
const char *http_query(const struct http_request *rq, const char *name);
/* The subject (RFC 4514) of the certificate that the client showed and the client CA vouches for; false: none. */
MUST_CHECK bool http_client_name(const struct http_request *rq, char *out, size_t size);
#define HTTP_CLIENT_NAME_SIZE 512
/* The address that the request came from, without the port. */
const char *http_client_address(const struct http_request *rq, char out[HTTP_ADDRESS_SIZE]);
/* Whether an Accept-Encoding header takes gzip. NULL: no. */
bool http_takes_gzip(const char *accept_encoding);

struct http_reply {
	int status;               /* 200 unless set */
	const char *content_type; /* static text; NULL: none */
	struct buf body;          /* empty, with HTTP_REPLY_MAX as its ceiling */
	char etag[72];            /* without quotes; empty: none. A GET with the same If-None-Match is answered 304 */
	char filename[96];        /* Content-Disposition attachment; empty: none */
	int retry_after_s;        /* 0: none */
	char allow[64];           /* for 405 */
	char *link;               /* from mem_*, the reply's: value of a Link header; NULL: none */
	char *location;           /* the same of a Location header */
	char *manifest;           /* the same of a Tollgate-Manifest header: what is in the body */
	char *detail;             /* the same of what is for the log alone: see http_request */
	const char *challenge;    /* static text, for 401; NULL: "Bearer" */
	/* A body that outlives the reply: when set, `body` is ignored, these bytes are sent uncopied, and release(release_arg) is
	 * called exactly once after, in any thread, also when the client went away. */
	const void *shared;
	size_t shared_len;
	void (*release)(void *arg);
	void *release_arg;
	/* A body in a file, from its beginning: when file_len is above 0, it is sent instead of all others, and the descriptor is
	 * closed after. */
	int file;
	size_t file_len;
	const char *content_encoding; /* "gzip" when the shared bytes or those of the file are compressed */
	const char *vary;             /* static text: the request headers that decided about the reply; NULL: none */
	bool weak;      /* the entity tag: set where the server compresses, as these bytes are not the tag's own */
	bool to_worker; /* see http_defer */
};

/* For an inline handler that cannot answer this request without waiting: it writes nothing else, and is called again in a
 * worker's thread. */
void http_defer(struct http_reply *rp);

/* For a handler whose answer depends on a later event: the request is kept without a worker. From here on rq and rp
 * belong to the thread that calls http_later_done, exactly once, at any time; rq and rp are valid until then, with
 * query and headers, but without the body, and the handler touches neither again. A reply that came later is sent as it is, not
 * compressed. False: the server stops, or keeps too many already; nothing has happened, the handler answers at once (http_later_refuse: with 503,
 * or with 429 where the limit is the caller's own). */
struct http_keep {
	bool poll; /* it waits for something to happen, not only for its turn; the two are counted apart */
	/* The tenant that it counts for beside the caller, who asks on the tenant's behalf; NULL: the caller's own. */
	const char *tenant;
};
MUST_CHECK bool http_later(const struct http_request *rq, const struct http_keep *keep);
void http_later_refuse(const struct http_request *rq, struct http_reply *rp) SELDOM;
void http_later_done(const struct http_request *rq);
/* Of a kept request: its client has gone, the reply will not be read. */
bool http_gone(const struct http_request *rq);

/* The caller that a request counts for, in shares of bodies, workers and kept requests. */
struct http_caller {
	char tenant[64]; /* empty: of no tenant */
	int64_t token_id;
};
enum http_identified {
	HTTP_CALLER_UNKNOWN,   /* only a worker can tell; until then its address counts */
	HTTP_CALLER_ANONYMOUS, /* not identified: its address counts */
	HTTP_CALLER_KNOWN,
	HTTP_CALLER_REFUSED, /* the refusal is written to rp */
};

/* RFC 9457 problem+json: type, title, status, detail, request id, and `field` when one is to blame. */
void http_problem(struct http_reply *rp, const struct http_request *rq, int status, const char *field, const char *fmt,
                  ...) PRINTF_LIKE(5, 6) SELDOM;
/* Adds a member to the problem just written, for programs: for example expected_seq. */
void http_problem_i64(struct http_reply *rp, const char *name, int64_t value);
void http_problem_text(struct http_reply *rp, const char *name, const char *value);
void http_problem_json(struct http_reply *rp, const char *name, const struct buf *value); /* a document of our own */
/* The status of an error kind: INVALID 400, DENIED 403, MISSING 404, CONFLICT 409, LIMIT 429, RETRY 503, FATAL 500. UNKNOWN is 503
 * without Retry-After, and says to look at the route's own path first. The client gets the error's text; its detail goes to on_done. */
void http_problem_err(struct http_reply *rp, const struct http_request *rq, const struct err *err) SELDOM;

typedef void http_handler(void *app, void *worker, const struct http_request *rq, struct http_reply *rp);

/* Where a route is answered. */
#define HTTP_WORKER 0u /* in a worker's thread, of pool 0 unless it says otherwise */
#define HTTP_INLINE 1u /* in the server's thread; a request that is deferred in a worker's */
#define HTTP_HEAVY 2u  /* by a worker, and few of a caller's at once: it takes long, or much memory */
#define HTTP_POLLS \
	4u /* with ?wait= its requests are kept as polls: beyond the caller's limit of them no worker is asked */
#define HTTP_POOL(n) ((n) << 3) /* by the workers of this pool */
#define HTTP_POOLS 3

struct http_route {
	const char *method; /* "GET" also answers HEAD */
	const char *path;   /* exact, or a prefix when it ends in '/'; "/" itself is exact. The longest match wins */
	unsigned where;
	size_t body_max; /* bytes accepted, as they arrive and after expanding gzip */
	http_handler *handle;
	uint32_t roles;      /* for the daemon's guard; httpd does not look at it */
	const char *summary; /* for people */
};

/* PEM files. They are read again by httpd_tls_renew, and when they change. */
struct httpd_tls_files {
	const char *cert, *key;       /* the chain, the server's own first; NULL: no TLS */
	const char *client_ca;        /* signs clients' certificates; NULL: they are not asked for one */
	bool client_required;         /* a client without one is refused; a wrong one always is */
	int min_version, max_version; /* 12 or 13, for TLS 1.2 and 1.3; 0: as far as it goes */
};
/* Checks the names alone: a certificate needs its key, a client CA both. */
MUST_CHECK bool httpd_tls_files_check(const struct httpd_tls_files *files, struct err *err);
enum httpd_tls_event {
	HTTPD_TLS_RENEWED,
	HTTPD_TLS_REFUSED, /* the old files stay in use */
	HTTPD_TLS_EXPOSED, /* every user of this host may read the key */
};

struct httpd_options {
	const char *listen; /* "127.0.0.1:9402"; port 0: any free one */
	struct httpd_tls_files tls;
	int64_t tls_check_ns; /* how often changed files are looked for; 0: every 10 s */
	/* In the thread that renews, or in httpd_start's for EXPOSED. err is for REFUSED, else NULL. NULL: none. */
	void (*on_tls)(void *app, enum httpd_tls_event event, const struct err *err);
	const struct http_route *routes;
	size_t route_count;
	void *app; /* first argument of every handler */
	/* Called before a handler, in the same thread, while the body is still as it came (perhaps gzip); false when it has
	 * written a refusal to rp, or defers to a worker, where it is called again. NULL: none. */
	bool (*guard)(void *app, void *worker, const struct http_request *rq, struct http_reply *rp);
	/* Identifies the caller; called before a body above HTTP_SMALL_BODY is read, and before a request is answered. First in the server's thread
	 * with worker NULL, where it must not wait; when that does not know, in a worker's thread, where it replaces the guard, which
	 * the same worker then does not call. rq has no body. NULL: all callers are alike, without shares. */
	enum http_identified (*identify)(void *app, void *worker, const struct http_request *rq, struct http_reply *rp,
	                                 struct http_caller *ret);
	/* Whether a request of a route that is HTTP_HEAVY is, by its path: below a prefix there may be one that is quickly answered. In any thread,
	 * must not wait. NULL: all are. */
	bool (*heavy)(const struct http_request *rq);
	int workers;                      /* of pool 0; 0: all routes must be inline */
	int more_workers[HTTP_POOLS - 1]; /* of pools 1 and up, where routes name them */
	int nice;                         /* of the threads of pool 0, where there are others: those go first */
	int queue_max;                    /* requests waiting for a worker, of each pool, at least 1 */
	/* Bytes of all bodies held at once by the routes of a pool, then 503; 0: 8 times the largest body_max among them. With identify, bodies up to
	 * HTTP_SMALL_BODY are not counted: they are limited by connection_max. */
	size_t body_total_max;
	/* Made and freed in the worker's thread. NULL: the worker argument is NULL. */
	void *(*worker_new)(void *app);
	void (*worker_free)(void *worker);
	int64_t idle_timeout_ns; /* without a byte either way; rounded up to seconds */
	/* From a request's first line to its last byte, even if bytes arrive steadily; ten times that for taking the reply.
	 * Past it the connection is closed. 0: 60 s. */
	int64_t request_timeout_ns;
	int connection_max; /* more wait in the kernel's backlog */
	int later_max;      /* requests kept by http_later, of which each has a connection; 0: half of connection_max */
	/* With identify: of these, polls of one tenant, and as many of its other requests; 0: no limit but later_max. A token of no tenant has a quarter
	 * of later_max. */
	int later_tenant_max;
	/* The client of a heavy GET in a worker has gone: the worker's statement may be cancelled, since its reply will not be read. Called in another
	 * thread, while the worker still has that request; must not wait. NULL: the worker finishes. */
	void (*on_abandoned)(void *app, void *worker);
	/* A kept request's client has gone: its keeper may check (http_gone) and release it. In another thread, must not wait. NULL: its
	 * keeper answers in its own time. */
	void (*on_gone)(void *app);
	/* Called by httpd_stop when no handler runs any more and none will: owners of kept requests answer them now. The stop
	 * waits for that without limit. NULL: no request is kept. */
	void (*on_stop)(void *app);
	/* Of a request, in bytes, then 431. As much is set aside for each connection, and cleared after each request: where no
	 * client has reason to send more, less is cheaper. 0: 32 KiB. */
	size_t head_max;
	/* Access log, called after each request, in the server's thread. Status 0: the client went before its reply was
	 * ready. NULL: none. */
	void (*on_done)(void *app, const struct http_request *rq, int status, size_t bytes, int64_t duration_ns);
};

/* Limits of a caller, by their names in a 429 reply. */
enum http_limit {
	HTTP_LIMIT_ADDRESS_BODIES,
	HTTP_LIMIT_CALLER_BODIES,
	HTTP_LIMIT_WAITING,
	HTTP_LIMIT_REPORTS,
	HTTP_LIMIT_POLLS,
	HTTP_LIMIT_KEPT,
	HTTP_LIMITS
};
extern const char *const http_limit_names[HTTP_LIMITS];
struct httpd_stats {
	int64_t limited[HTTP_LIMITS];                     /* requests answered 429 since the start */
	int64_t abandoned;                                /* requests whose client went before their reply */
	int64_t waiting[HTTP_POOLS], running[HTTP_POOLS]; /* now */
	int64_t kept;                                     /* now, by http_later */
};
void httpd_stats(struct httpd *h, struct httpd_stats *ret);

/* A taken port is an error that names it. The options' pointers must stay valid until httpd_stop has returned. */
MUST_CHECK bool httpd_start(const struct httpd_options *o, struct httpd **ret, struct err *err);
/* Refuses new requests, finishes the complete ones, gives their clients up to three seconds to take the
 * replies, frees. NULL is allowed. */
void httpd_stop(struct httpd *h);
uint16_t httpd_port(const struct httpd *h); /* of a listener on port 0 */
/* Reads the TLS files again; on_tls gets the result. Connections stay open. Without TLS nothing happens. */
void httpd_tls_renew(struct httpd *h);
/* The same with other files; they need not outlive the call. False: the old ones stay in use. ERR_CONFLICT: TLS cannot be begun or
 * ended while serving. */
MUST_CHECK bool httpd_tls_use(struct httpd *h, const struct httpd_tls_files *files, struct err *err);

#endif

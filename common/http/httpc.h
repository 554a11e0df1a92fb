/* common/http/httpc.h - the HTTP client of exporter and command line, on libcurl; httpc.c is the only file that includes it.
 * Redirects are not followed, proxies from the environment are not used, and only http and https are spoken. */
#ifndef TOLLGATE_HTTPC_H
#define TOLLGATE_HTTPC_H

#include "common/base/buf.h"

struct httpc; /* one per thread; keeps its connection alive */

struct httpc_options {
	const char *base_url;   /* "http://127.0.0.1:9402" */
	const char *token_file; /* NULL: none. Read before each request, so that a renewed token is used */
	const char *ca_file;    /* NULL: the system's */
	/* PEM files, both or neither: the client certificate. */
	const char *client_cert, *client_key;
	const char *user_agent;
	const char *clock_header; /* the header that says when a call was sent, in nanoseconds since 1970; NULL: none */
	bool gzip;                /* bodies are sent compressed */
	int64_t connect_timeout_ns;
	int64_t timeout_ns; /* of a whole call */
	/* Called while a call is under way, at least once a second; total_bytes of the reply, 0: not known. NULL: none. */
	void (*progress)(void *arg, int64_t sent_bytes, int64_t received_bytes, int64_t total_bytes);
	void *progress_arg;
};

struct httpc_reply {
	int status;
	struct buf body; /* buf_init by the caller, with its ceiling; emptied by each call */
	/* Takes the body of a reply below 400 piece by piece, in place of the buffer; false ends the call. NULL: none. A call
	 * whose sink has taken a piece is not repeated. */
	bool (*sink)(void *arg, const void *data, size_t n);
	void *sink_arg;
	bool sunk; /* it has taken something */
	/* A header of the reply that is wanted too, and where its value goes; "" where the reply has none. NULL: none is. */
	const char *header;
	struct buf *header_value;
	char content_type[96];
	int retry_after_s;    /* 0: not given */
	int64_t date_wall_ns; /* the server's clock, to the second; -1: it did not say */
};

MUST_CHECK bool httpc_new(const struct httpc_options *o, struct httpc **ret, struct err *err);
void httpc_free(struct httpc *c);
DEFINE_OWNED(httpc, struct httpc)

/* A reply of any status is success. path begins with '/' and is already percent-encoded; body NULL: none. Failures:
 * ERR_RETRY no reply (refused, timed out, cut off, aborted), ERR_INVALID a reply above its body's ceiling, a sink that ended it, or a token file
 * that holds no token, and errors of reading the token file. The text has the reason and the URL, never the token. */
MUST_CHECK bool httpc_call(struct httpc *c, const char *method, const char *path, const char *content_type,
                           const void *body, size_t n, struct httpc_reply *reply, struct err *err);
/* ---- calls that are repeated ---- */

struct httpc_retry {
	int attempts;              /* all calls together, the first too; at least 1 */
	int64_t least_ns, most_ns; /* the pauses: the first, and the longest */
	int64_t patience_ns;       /* a server that asks for a longer pause than this is not waited for */
};

/* Whether a call may be made again after it failed or got this status (0: no reply). Pure. Rules, in order:
 *  1. only methods that do the same when they are done twice: GET, HEAD, PUT, DELETE
 *  2. only when the same may work later: no reply, 408, 429, 502, 503, 504
 *  3. as many attempts as there are, and no longer a pause than the patience */
bool httpc_may_repeat(const struct httpc_retry *r, const char *method, int status, int retry_after_s,
                      int attempts_done);
/* The pause after so many failures in a row: doubled each time from least to most, half of it left to chance so that clients
 * do not come back all at once. A server's Retry-After is waited for at least, and up to a tenth of it longer. */
int64_t httpc_pause_ns(int64_t least_ns, int64_t most_ns, unsigned failures, int retry_after_s, uint64_t chance);
/* httpc_call, repeated by these rules. The result is that of the last attempt. */
MUST_CHECK bool httpc_call_again(struct httpc *c, const struct httpc_retry *r, const char *method, const char *path,
                                 const char *content_type, const void *body, size_t n, struct httpc_reply *reply,
                                 struct err *err);

/* "WHAT: STATUS title: detail" of a problem+json reply, for people; of another reply its first 200 bytes. The kind follows
 * the status: 401, 403 DENIED; 404 MISSING; 409 CONFLICT; 408, 429, 5xx RETRY; else INVALID. Always returns false. */
bool httpc_problem(const struct httpc_reply *reply, const char *what, struct err *err);
/* May be called from another thread: the call under way returns at once, with ERR_RETRY, and so do later ones. */
void httpc_abort(struct httpc *c);

#endif

/* common/httpd.c - the HTTP server of both daemons, on libmicrohttpd.
 *
 * One thread of libmicrohttpd reads and writes all connections. A request is an exchange: it is judged when its headers
 * are in, its body is collected, then it is answered here (inline routes) or suspended and given to the pool. A worker
 * only touches its own exchange; it hands it back by resuming the connection, and the reply is queued in this thread. */
#include "common/httpd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/gz.h"
#include "common/httpd_listen.h"
#include "common/httpd_pool.h"
#include "common/httpd_rules.h"
#include "common/httpd_tls.h"
#include "common/httpd_watch.h"
#include "common/time.h"

#define STOP_GRACE_S 3
#define RETRY_AFTER_S 1
/* A refused body up to this size is read and thrown away, so that its sender comes to read the refusal and the connection
 * stays usable. Beyond it the refusal is sent at once, or, where libmicrohttpd cannot, the connection is closed. */
#define SWALLOW_MAX (1u << 20)
#define BODIES_HELD 8u
#define REQUEST_TIMEOUT_NS NS_PER_MIN
#define REPLY_TIMEOUTS 10 /* a reply may take as many times the request's time */
#define TLS_CHECK_NS (10 * NS_PER_S)
#define WATCH_MOST_NS NS_PER_S
#define WATCH_LEAST_NS (20 * NS_PER_MS)

struct httpd {
	struct httpd_options options;
	struct MHD_Daemon *daemon;
	struct httpd_pool *pool; /* NULL: no workers */
	struct httpd_watch *watch;
	struct httpd_tls *tls; /* NULL: none */
	int64_t request_timeout_ns;
	int64_t tls_checked_ns; /* of the watching thread alone */
	uint16_t port;
	size_t body_total_max;
	/* of libmicrohttpd's thread alone */
	size_t body_total;
	uint64_t next_id;
	/* shared with the thread that stops the server */
	atomic_bool stopping;
	pthread_mutex_t lock;
	pthread_cond_t idle; /* answering became 0 */
	int answering;       /* exchanges whose request is complete and whose reply is not yet out */
};

/* One connection. */
struct link {
	struct httpd_slot slot;
	void *tls; /* what httpd_tls_attach gave */
};

struct exchange {
	struct httpd *h;
	struct link *link;
	struct http_request rq;
	struct http_reply rp;
	enum {
		EXCHANGE_HEAD,   /* the target is known, the headers are not */
		EXCHANGE_BODY,   /* collecting the body */
		EXCHANGE_WORK,   /* in the pool, the connection is suspended */
		EXCHANGE_REPLY,  /* rp is ready */
		EXCHANGE_QUEUED, /* the reply is libmicrohttpd's */
	} stage;
	struct http_framing framing;
	struct http_lines lines;
	char method[16];
	char *path;
	bool unsound; /* the target: see http_target_sound */
	bool refused; /* rp holds the refusal, what still comes is thrown away */
	bool gzip;
	bool close;   /* the connection ends with this reply */
	bool counted; /* in httpd.answering */
	struct buf body;
	size_t held; /* this body's part of httpd.body_total, also while a worker has the body */
	size_t swallowed;
	int64_t begun_ns;
	int status; /* of the reply that was queued */
	size_t sent_bytes;
};

/* Until when the connection may take for what comes next; 0: as long as it likes. */
static void
link_allow(struct link *l, int64_t ns)
{
	atomic_store_explicit(&l->slot.deadline_ns, ns > 0 ? time_boot_ns() + ns : 0, memory_order_relaxed);
}

static struct exchange *
exchange_new(struct httpd *h, struct MHD_Connection *connection, const char *target)
{
	struct exchange *x = mem_alloc(sizeof(*x));

	x->h = h;
	x->begun_ns = time_boot_ns();
	x->rq.connection = connection;
	x->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	link_allow(x->link, h->request_timeout_ns);
	/* an odd step goes through all of 2^64 from a random start: no number comes twice */
	h->next_id += UINT64_C(0x9e3779b97f4a7c15);
	snprintf(x->rq.id, sizeof(x->rq.id), "%016" PRIx64, h->next_id);
	x->unsound = target && !http_target_sound(target);
	http_reply_init(&x->rp);
	return x;
}

/* The body's memory goes as soon as the handler is done with it, which may be long before the reply is out. */
static void
exchange_drop_body(struct exchange *x)
{
	buf_fini(&x->body);
	x->rq.body = "";
	x->rq.body_len = 0;
}

/* In libmicrohttpd's thread, once the body is gone. */
static void
exchange_unhold(struct exchange *x)
{
	x->h->body_total -= x->held;
	x->held = 0;
}

static void
exchange_free(struct exchange *x)
{
	exchange_drop_body(x);
	exchange_unhold(x);
	http_reply_fini(&x->rp);
	mem_free(x->path);
	mem_free(x);
}

const char *
http_header(const struct http_request *rq, const char *name)
{
	return MHD_lookup_connection_value(rq->connection, MHD_HEADER_KIND, name);
}

const char *
http_query(const struct http_request *rq, const char *name)
{
	const char *value = NULL;

	if (MHD_lookup_connection_value_n(rq->connection, MHD_GET_ARGUMENT_KIND, name, strlen(name), &value, NULL) !=
	    MHD_YES)
		return NULL;
	return value ? value : "";
}

bool
http_client_name(const struct http_request *rq, char *out, size_t size)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(rq->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);

	return info && info->tls_session && httpd_tls_client(info->tls_session, out, size);
}

const char *
http_client_address(const struct http_request *rq, char out[HTTP_ADDRESS_SIZE])
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(rq->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *from = info ? info->client_addr : NULL;

	out[0] = '\0';
	if (from && from->sa_family == AF_INET)
		(void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)from)->sin_addr, out,
		                HTTP_ADDRESS_SIZE);
	else if (from && from->sa_family == AF_INET6)
		(void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, out,
		                HTTP_ADDRESS_SIZE);
	return out;
}

/* ---- the reply ---- */

static void
set_header(struct MHD_Response *r, const char *name, const char *value)
{
	/* fails only for text that may not be in a header; the reply goes without it */
	(void)MHD_add_response_header(r, name, value);
}

static void
set_headers(const struct exchange *x, struct MHD_Response *r)
{
	const struct http_reply *rp = &x->rp;
	char text[HTTP_DISPOSITION_SIZE];

	set_header(r, "X-Request-Id", x->rq.id);
	if (rp->content_type && rp->status != 304)
		set_header(r, "Content-Type", rp->content_type);
	if (rp->content_encoding && rp->status != 304)
		set_header(r, "Content-Encoding", rp->content_encoding);
	if (rp->etag[0]) {
		snprintf(text, sizeof(text), "%s\"%s\"", rp->weak ? "W/" : "", rp->etag);
		set_header(r, "ETag", text);
	}
	if (rp->vary)
		set_header(r, "Vary", rp->vary);
	if (rp->filename[0])
		set_header(r, "Content-Disposition", http_disposition(rp->filename, text));
	if (rp->retry_after_s > 0) {
		snprintf(text, sizeof(text), "%d", rp->retry_after_s);
		set_header(r, "Retry-After", text);
	}
	if (rp->allow[0])
		set_header(r, "Allow", rp->allow);
	if (rp->status == 401)
		set_header(r, "WWW-Authenticate", "Bearer");
	if (rp->status == 415)
		set_header(r, "Accept-Encoding", "gzip");
	if (x->close)
		set_header(r, "Connection", "close");
}

/* Moves the body of rp into a response: libmicrohttpd frees or releases it when the last byte is out. */
static struct MHD_Response *
response_of(struct http_reply *rp)
{
	struct MHD_Response *r;

	if (rp->shared) {
		r = MHD_create_response_from_buffer_with_free_callback_cls(rp->shared_len,
		                                                           (void *)(uintptr_t)rp->shared, rp->release,
		                                                           rp->release_arg);
		if (r)
			rp->release = NULL;
	} else if (rp->body.len) {
		r = MHD_create_response_from_buffer_with_free_callback(rp->body.len, rp->body.data, mem_free);
		if (r)
			rp->body = (struct buf){.max = rp->body.max};
	} else {
		r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
	}
	return r;
}

static enum MHD_Result
exchange_send(struct exchange *x)
{
	struct http_reply *rp = &x->rp;
	struct MHD_Response *r;
	enum MHD_Result queued;

	exchange_unhold(x);
	link_allow(x->link, REPLY_TIMEOUTS * x->h->request_timeout_ns);
	http_reply_settle(rp, &x->rq, http_header(&x->rq, "If-None-Match"));
	x->status = rp->status;
	x->sent_bytes = rp->shared ? rp->shared_len : rp->body.len;
	if (strcmp(x->method, "HEAD") == 0)
		x->sent_bytes = 0;
	x->stage = EXCHANGE_QUEUED;
	r = response_of(rp);
	if (!r)
		return MHD_NO;
	set_headers(x, r);
	queued = MHD_queue_response(x->rq.connection, (unsigned)rp->status, r);
	MHD_destroy_response(r);
	return queued;
}

/* ---- the answer, in a worker or inline ---- */

static bool
exchange_expand(struct exchange *x)
{
	struct err err = {0};
	struct buf plain;

	buf_init(&plain, x->rq.route->body_max);
	if (!gz_expand(x->body.data, x->body.len, &plain, &err)) {
		if (plain.over)
			http_problem_large(&x->rp, &x->rq, " after gzip");
		else
			http_problem_err(&x->rp, &x->rq, &err);
		buf_fini(&plain);
		return false;
	}
	buf_fini(&x->body);
	x->body = plain;
	x->rq.body = buf_text(&x->body);
	x->rq.body_len = x->body.len;
	return true;
}

/* The guard goes first: nobody without a token makes the server expand anything. */
static void
exchange_answer(struct exchange *x, void *worker)
{
	const struct httpd_options *o = &x->h->options;

	x->rq.body = buf_text(&x->body);
	x->rq.body_len = x->body.len;
	if (!o->guard || o->guard(o->app, worker, &x->rq, &x->rp)) {
		if (!x->gzip || exchange_expand(x))
			x->rq.route->handle(o->app, worker, &x->rq, &x->rp);
	}
	if (x->rp.to_worker && !worker)
		return;
	exchange_drop_body(x);
	x->stage = EXCHANGE_REPLY;
}

static void
run_job(void *job, void *worker)
{
	struct exchange *x = job;

	exchange_answer(x, worker);
	http_reply_pack(&x->rp, &x->rq, http_header(&x->rq, "Accept-Encoding"), http_header(&x->rq, "If-None-Match"));
	/* from here on the exchange belongs to libmicrohttpd's thread, which may free it at any time */
	MHD_resume_connection(x->rq.connection);
}

/* ---- the request, in libmicrohttpd's thread ---- */

static void
refuse_busy(struct exchange *x, const char *why)
{
	http_problem(&x->rp, &x->rq, 503, NULL, "%s", why);
	x->rp.retry_after_s = RETRY_AFTER_S;
	x->refused = true;
}

static void
refuse_large(struct exchange *x)
{
	http_problem_large(&x->rp, &x->rq, "");
	x->refused = true;
}

static enum MHD_Result
framing_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct exchange *x = arg;

	(void)kind;
	http_framing_header(&x->framing, name, value ? value : "");
	http_lines_header(&x->lines, name, value ? value : "");
	return MHD_YES;
}

/* What is wrong with how the request is written; NULL: nothing. */
static const char *
head_fault(struct exchange *x, const char *method, const char *version)
{
	const union MHD_ConnectionInfo *head =
		MHD_get_connection_info(x->rq.connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);

	http_lines_begin(&x->lines, method, version, head ? head->header_size : 0);
	MHD_get_connection_values(x->rq.connection, MHD_HEADER_KIND, framing_header, x);
	http_lines_end(&x->lines);
	http_framing_end(&x->framing, version);
	if (!x->framing.fault)
		x->framing.fault = x->lines.fault;
	if (!x->framing.fault && x->unsound)
		x->framing.fault = "the request target has a control character or a space";
	return x->framing.fault;
}

/* Rules, in order; the first that applies refuses:
 *  1. a target, line ends or framing that two readers may read differently: 400, and the connection ends
 *  2. the server is stopping: 503
 *  3. what http_judge refuses: 404, 405, 415, 413
 * Later: more than the route takes (413) or than all requests together may hold (503); no worker free (503). */
static void
exchange_judge(struct exchange *x, const char *method, const char *version)
{
	const char *fault = head_fault(x, method, version);

	if (fault) {
		http_problem(&x->rp, &x->rq, 400, NULL, "%s", fault);
		x->refused = true;
		x->close = true;
		return;
	}
	if (atomic_load(&x->h->stopping)) {
		refuse_busy(x, "the server is stopping");
		x->close = true;
		return;
	}
	x->refused = !http_judge(x->h->options.routes, x->h->options.route_count, &x->framing,
	                         http_header(&x->rq, "Content-Encoding"), &x->rq, &x->rp, &x->gzip);
}

/* Whether a refusal must not wait for the rest of the request. */
static bool
refuse_at_once(const struct exchange *x)
{
	bool more = x->framing.chunked || x->framing.length > 0;

	if (x->framing.fault)
		return true;
	return x->refused && more && (x->framing.length > SWALLOW_MAX || http_header(&x->rq, "Expect"));
}

static enum MHD_Result
exchange_begin(struct exchange *x, const char *method, const char *path, const char *version)
{
	const char *id = http_header(&x->rq, "X-Request-Id");

	if (http_id_sound(id))
		memcpy(x->rq.id, id, strlen(id) + 1);
	snprintf(x->method, sizeof(x->method), "%s", method);
	x->path = mem_strdup(path);
	x->rq.method = x->method;
	x->rq.path = x->path;
	x->rq.tail = "";
	x->rq.body = "";
	x->stage = EXCHANGE_BODY;
	exchange_judge(x, method, version);
	if (!x->refused)
		buf_init(&x->body, x->rq.route->body_max);
	return refuse_at_once(x) ? exchange_send(x) : MHD_YES;
}

static enum MHD_Result
exchange_collect(struct exchange *x, const char *data, size_t n)
{
	struct httpd *h = x->h;

	if (!x->refused) {
		if (n > x->body.max - x->body.len)
			refuse_large(x);
		else if (n > h->body_total_max - h->body_total)
			refuse_busy(x, "the bodies of other requests fill the memory set aside for them");
	}
	if (x->refused) {
		exchange_drop_body(x);
		exchange_unhold(x);
		x->swallowed += n;
		return x->swallowed > SWALLOW_MAX ? MHD_NO : MHD_YES;
	}
	buf_add(&x->body, data, n);
	h->body_total += n;
	x->held += n;
	return MHD_YES;
}

static void
count_answering(struct exchange *x, int by)
{
	struct httpd *h = x->h;

	x->counted = by > 0;
	pthread_mutex_lock(&h->lock);
	h->answering += by;
	if (h->answering == 0)
		pthread_cond_signal(&h->idle);
	pthread_mutex_unlock(&h->lock);
}

/* The request is complete. */
static enum MHD_Result
exchange_dispatch(struct exchange *x)
{
	link_allow(x->link, 0);
	if (!atomic_load(&x->h->stopping))
		count_answering(x, +1);
	if (x->refused)
		return exchange_send(x);
	if (x->rq.route->inline_) {
		exchange_answer(x, NULL);
		if (!x->rp.to_worker)
			return exchange_send(x);
		ASSERT(x->h->pool);
		x->rp.to_worker = false;
	}
	/* suspended first: the worker may be done before the push returns */
	x->stage = EXCHANGE_WORK;
	MHD_suspend_connection(x->rq.connection);
	if (!httpd_pool_push(x->h->pool, x)) {
		x->close = atomic_load(&x->h->stopping);
		refuse_busy(x, x->close ? "the server is stopping" : "all workers are busy and the queue is full");
		x->stage = EXCHANGE_REPLY;
		MHD_resume_connection(x->rq.connection);
	}
	return MHD_YES;
}

static void *
on_target(void *arg, const char *target, struct MHD_Connection *connection)
{
	return exchange_new(arg, connection, target);
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *connection, const char *path, const char *method, const char *version,
           const char *data, size_t *n, void **slot)
{
	struct exchange *x = *slot;
	enum MHD_Result going = MHD_YES;

	(void)arg;
	(void)connection;
	switch (x->stage) {
	case EXCHANGE_HEAD: return exchange_begin(x, method, path, version);
	case EXCHANGE_BODY:
		if (*n == 0)
			return exchange_dispatch(x);
		going = exchange_collect(x, data, *n);
		*n = 0;
		return going;
	case EXCHANGE_REPLY: return exchange_send(x);
	case EXCHANGE_QUEUED:
		/* once it is being stopped libmicrohttpd takes replies, forgets them and asks again */
		return MHD_NO;
	case EXCHANGE_WORK: break;
	}
	/* libmicrohttpd does not ask about a request that rests */
	assert_failed("x->stage != EXCHANGE_WORK", __FILE__, __LINE__);
}

static void
on_completed(void *arg, struct MHD_Connection *connection, void **slot, enum MHD_RequestTerminationCode why)
{
	struct exchange *x = *slot;
	struct httpd *h = arg;

	(void)connection;
	(void)why;
	*slot = NULL;
	if (!x)
		return;
	if (h->options.on_done && x->stage != EXCHANGE_HEAD)
		h->options.on_done(h->options.app, &x->rq, x->status, x->sent_bytes, time_boot_ns() - x->begun_ns);
	if (x->counted)
		count_answering(x, -1);
	/* how long it may rest is libmicrohttpd's to see to, and then the next request's first line has its time */
	link_allow(x->link, h->options.idle_timeout_ns + NS_PER_S + h->request_timeout_ns);
	exchange_free(x);
}

static void
on_connection(void *arg, struct MHD_Connection *connection, void **slot, enum MHD_ConnectionNotificationCode what)
{
	struct httpd *h = arg;
	struct link *l = *slot;

	switch (what) {
	case MHD_CONNECTION_NOTIFY_STARTED:
		*slot = l = mem_alloc(sizeof(*l));
		if (h->tls)
			l->tls = httpd_tls_attach(
				h->tls,
				MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session);
		httpd_watch_add(h->watch, &l->slot,
		                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
		                time_boot_ns() + h->request_timeout_ns);
		break;
	case MHD_CONNECTION_NOTIFY_CLOSED:
		/* the descriptor is still open, and closed next */
		httpd_watch_remove(h->watch, &l->slot);
		httpd_tls_detach(l->tls);
		mem_free(l);
		*slot = NULL;
		break;
	}
}

/* ---- renewal of certificates ---- */

static void
tell_tls(struct httpd *h, enum httpd_tls_event event, const struct err *err)
{
	if (h->options.on_tls)
		h->options.on_tls(h->options.app, event, err);
}

void
httpd_tls_renew(struct httpd *h)
{
	struct err err = {0};

	if (!h->tls)
		return;
	if (!httpd_tls_reload(h->tls, &err)) {
		tell_tls(h, HTTPD_TLS_REFUSED, &err);
		return;
	}
	tell_tls(h, HTTPD_TLS_RENEWED, NULL);
	if (httpd_tls_key_exposed(h->tls))
		tell_tls(h, HTTPD_TLS_EXPOSED, NULL);
}

static void
on_watch(void *arg)
{
	struct httpd *h = arg;
	int64_t now_ns = time_boot_ns();

	if (!h->tls || now_ns - h->tls_checked_ns < (h->options.tls_check_ns ? h->options.tls_check_ns : TLS_CHECK_NS))
		return;
	h->tls_checked_ns = now_ns;
	if (httpd_tls_changed(h->tls))
		httpd_tls_renew(h);
}

/* ---- start and stop ---- */

static struct MHD_Daemon *
daemon_start(struct httpd *h, int fd)
{
	const struct httpd_options *o = &h->options;
	unsigned idle_s = (unsigned)((o->idle_timeout_ns + NS_PER_S - 1) / NS_PER_S);
	unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_ALLOW_SUSPEND_RESUME;
	static const char priorities[] = HTTPD_TLS_PRIORITIES;
	struct MHD_OptionItem more[] = {
		{MHD_OPTION_LISTEN_SOCKET, fd, NULL},
		{MHD_OPTION_CONNECTION_LIMIT, o->connection_max, NULL},
		{MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)idle_s, NULL},
		{MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
		{h->tls ? MHD_OPTION_HTTPS_PRIORITIES : MHD_OPTION_END, 0, (void *)(uintptr_t)priorities},
		{MHD_OPTION_END, 0, NULL},
	};
	sigset_t all, before;
	struct MHD_Daemon *d;

	/* ITC: without it a stop at the connection limit hangs. Signals stay with the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	d = MHD_start_daemon(h->tls ? flags | MHD_USE_TLS : flags, 0, NULL, NULL, on_request, h,
	                     MHD_OPTION_URI_LOG_CALLBACK, on_target, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
	                     MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_ARRAY, more,
	                     h->tls ? MHD_OPTION_HTTPS_CERT_CALLBACK : MHD_OPTION_END, httpd_tls_nothing(),
	                     MHD_OPTION_END);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return d;
}

static struct httpd *
httpd_new(const struct httpd_options *o)
{
	struct httpd *h = mem_alloc(sizeof(*h));
	pthread_condattr_t attr;
	size_t largest = 0;

	h->options = *o;
	for (size_t i = 0; i < o->route_count; i++) {
		ASSERT(o->routes[i].inline_ || o->workers > 0);
		if (o->routes[i].body_max > largest)
			largest = o->routes[i].body_max;
	}
	h->request_timeout_ns = o->request_timeout_ns ? o->request_timeout_ns : REQUEST_TIMEOUT_NS;
	h->body_total_max = o->body_total_max ? o->body_total_max : BODIES_HELD * largest;
	random_bytes((uint8_t *)&h->next_id, sizeof(h->next_id));
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->idle, &attr);
	pthread_condattr_destroy(&attr);
	return h;
}

static bool
start_helpers(struct httpd *h, struct err *err)
{
	int64_t look_ns = h->request_timeout_ns / 8;

	if (h->options.tls.cert && !httpd_tls_new(&h->options.tls, &h->tls, err))
		return false;
	if (h->tls && httpd_tls_key_exposed(h->tls))
		tell_tls(h, HTTPD_TLS_EXPOSED, NULL);
	if (h->options.tls_check_ns > 0 && h->options.tls_check_ns < look_ns)
		look_ns = h->options.tls_check_ns;
	look_ns = look_ns > WATCH_MOST_NS ? WATCH_MOST_NS : look_ns < WATCH_LEAST_NS ? WATCH_LEAST_NS : look_ns;
	h->tls_checked_ns = time_boot_ns();
	return httpd_watch_start(look_ns, on_watch, h, &h->watch, err);
}

bool
httpd_start(const struct httpd_options *o, struct httpd **ret, struct err *err)
{
	struct httpd_pool_options pool = {.workers = o->workers,
	                                  .queue_max = o->queue_max,
	                                  .app = o->app,
	                                  .worker_new = o->worker_new,
	                                  .worker_free = o->worker_free,
	                                  .run = run_job};
	struct httpd *h;
	int fd;

	ASSERT(o->idle_timeout_ns > 0 && o->connection_max > 0);
	h = httpd_new(o);
	if (!start_helpers(h, err) || !httpd_listen(o->listen, &fd, &h->port, err)) {
		httpd_stop(h);
		return false;
	}
	if (o->workers > 0 && !httpd_pool_start(&pool, &h->pool, err)) {
		close(fd);
		httpd_stop(h);
		return false;
	}
	h->daemon = daemon_start(h, fd);
	if (!h->daemon) {
		/* fd is not closed: on some of its ways out libmicrohttpd has done it, and the number may be another's by now */
		httpd_stop(h);
		return err_set(err, ERR_RETRY, "cannot start the HTTP server on %s: no memory, descriptors or threads",
		               o->listen);
	}
	*ret = h;
	return true;
}

/* libmicrohttpd cuts off what it is still sending when it is stopped, so the replies go out first. */
static void
wait_for_replies(struct httpd *h)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += STOP_GRACE_S;
	pthread_mutex_lock(&h->lock);
	while (h->answering > 0)
		if (pthread_cond_timedwait(&h->idle, &h->lock, &until) == ETIMEDOUT)
			break;
	pthread_mutex_unlock(&h->lock);
}

/* Connections are still accepted meanwhile, and told 503. MHD_quiesce_daemon would end that, but it and the server's thread
 * may both take the listening socket out of the epoll set when the connection limit is reached, and the second aborts. */
void
httpd_stop(struct httpd *h)
{
	if (!h)
		return;
	atomic_store(&h->stopping, true);
	if (h->pool)
		httpd_pool_drain(h->pool);
	/* every suspended connection is resumed now: a worker did it, or the push was refused */
	wait_for_replies(h);
	/* it calls on_tls, and may not outlive the caller's wish to hear */
	httpd_watch_stop(h->watch);
	if (h->daemon)
		MHD_stop_daemon(h->daemon);
	httpd_watch_free(h->watch);
	httpd_tls_free(h->tls);
	httpd_pool_free(h->pool);
	pthread_cond_destroy(&h->idle);
	pthread_mutex_destroy(&h->lock);
	mem_free(h);
}

uint16_t
httpd_port(const struct httpd *h)
{
	return h->port;
}

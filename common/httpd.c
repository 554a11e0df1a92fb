/* common/httpd.c - the HTTP server of both daemons, on libmicrohttpd.
 *
 * One thread of libmicrohttpd reads and writes all connections. A request is an exchange: it is judged when its headers
 * are in, its body is collected, then it is answered here (inline routes) or suspended and given to the pool. A worker
 * only touches its own exchange; it hands it back by resuming the connection, and the reply is queued in this thread. A
 * request that is kept (http_later) rests in the same way until somebody else has written its reply. */
#include "common/httpd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/httpd_exchange.h"
#include "common/httpd_listen.h"
#include "common/httpd_pool.h"
#include "common/httpd_tls.h"
#include "common/httpd_watch.h"
#include "common/time.h"

#define STOP_GRACE_S 3
#define BODIES_HELD 8u
#define HEAD_MAX (32u << 10)
#define REQUEST_TIMEOUT_NS NS_PER_MIN
#define REPLY_TIMEOUTS 10 /* a reply may take as many times the request's time */
#define TLS_CHECK_NS (10 * NS_PER_S)

struct httpd {
	struct httpd_options options;
	struct MHD_Daemon *daemon;
	struct httpd_pool *pool; /* NULL: no workers */
	struct httpd_watch *watch;
	struct httpd_tls *tls; /* NULL: none */
	int64_t request_timeout_ns;
	int64_t tls_checked_ns; /* of the watching thread alone */
	uint16_t port;
	/* of libmicrohttpd's thread alone */
	struct http_bodies bodies;
	struct exchange *spare; /* of the request before; NULL: none */
	uint64_t next_id;
	/* shared with the thread that stops the server */
	atomic_bool stopping;
	pthread_mutex_t lock;
	pthread_cond_t idle; /* answering became 0 */
	int answering;       /* exchanges whose request is complete and whose reply is not yet out */
	int kept;            /* of these, by http_later */
};

/* One connection. */
struct link {
	struct httpd_slot slot;
	void *tls; /* what httpd_tls_attach gave */
};

/* Until when the connection may take for what comes next; 0: as long as it likes. */
static void
link_allow(struct link *l, int64_t until_ns)
{
	atomic_store_explicit(&l->slot.deadline_ns, until_ns, memory_order_relaxed);
}

/* An odd step goes through all of 2^64 from a random start: no number comes twice. */
static void
next_id(struct httpd *h, char *out)
{
	uint8_t bytes[sizeof(h->next_id)];

	h->next_id += UINT64_C(0x9e3779b97f4a7c15);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(h->next_id >> (56 - 8 * i));
	hex_encode(bytes, sizeof(bytes), out);
}

static struct exchange *
exchange_new(struct httpd *h, struct MHD_Connection *connection, const char *target)
{
	struct exchange *x = h->spare ? take(h->spare) : mem_alloc(sizeof(*x));

	exchange_init(x, &h->options, &h->bodies);
	x->server = h;
	x->begun_ns = time_boot_ns();
	x->connection = connection;
	x->rq.exchange = x;
	x->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	link_allow(x->link, x->begun_ns + h->request_timeout_ns);
	next_id(h, x->rq.id);
	x->unsound = target && !http_target_sound(target);
	return x;
}

/* One is kept for the next request, which then finds its memory where the last one left it. */
static void
exchange_free(struct httpd *h, struct exchange *x)
{
	exchange_fini(x);
	if (h->spare)
		mem_free(x);
	else
		h->spare = x;
}

/* The handler's view of a request leads back to the exchange that it is part of. */
static struct MHD_Connection *
connection_of(const struct http_request *rq)
{
	const struct exchange *x = rq->exchange;

	return x->connection;
}

const char *
http_header(const struct http_request *rq, const char *name)
{
	const struct exchange *x = rq->exchange;

	for (size_t i = 0; i < x->header_count && i < ARRAY_LEN(x->headers); i++)
		if (http_same_name(x->headers[i].name, name))
			return x->headers[i].value;
	return x->header_count > ARRAY_LEN(x->headers)
	               ? MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name)
	               : NULL;
}

const char *
http_query(const struct http_request *rq, const char *name)
{
	const char *value = NULL;

	if (MHD_lookup_connection_value_n(connection_of(rq), MHD_GET_ARGUMENT_KIND, name, strlen(name), &value, NULL) !=
	    MHD_YES)
		return NULL;
	return value ? value : "";
}

bool
http_client_name(const struct http_request *rq, char *out, size_t size)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection_of(rq), MHD_CONNECTION_INFO_GNUTLS_SESSION);

	return info && info->tls_session && httpd_tls_client(info->tls_session, out, size);
}

const char *
http_client_address(const struct http_request *rq, char out[HTTP_ADDRESS_SIZE])
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection_of(rq), MHD_CONNECTION_INFO_CLIENT_ADDRESS);
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
set_header(void *response, const char *name, const char *value)
{
	/* fails only for text that may not be in a header; the reply goes without it */
	(void)MHD_add_response_header(response, name, value);
}

/* Moves the body of rp into a response: libmicrohttpd frees or releases it when the last byte is out. */
static struct MHD_Response *
response_of(struct http_reply *rp)
{
	struct MHD_Response *r;

	if (rp->file_len > 0) {
		r = MHD_create_response_from_fd64(rp->file_len, rp->file);
		if (r)
			rp->file_len = 0;
	} else if (rp->shared) {
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

	link_allow(x->link, time_boot_ns() + REPLY_TIMEOUTS * x->server->request_timeout_ns);
	exchange_settle(x);
	r = response_of(rp);
	if (!r)
		return MHD_NO;
	http_reply_headers(rp, x->rq.id, x->close, set_header, r);
	queued = MHD_queue_response(x->connection, (unsigned)rp->status, r);
	MHD_destroy_response(r);
	return queued;
}

/* ---- replies that come later ---- */

bool
http_later(const struct http_request *rq)
{
	struct exchange *x = rq->exchange;
	struct httpd *h = x->server;
	int most = h->options.later_max ? h->options.later_max : h->options.connection_max / 2;

	ASSERT(!x->later);
	pthread_mutex_lock(&h->lock);
	x->later = !atomic_load(&h->stopping) && h->kept < most;
	h->kept += x->later;
	pthread_mutex_unlock(&h->lock);
	return x->later;
}

void
http_later_refuse(const struct http_request *rq, struct http_reply *rp)
{
	const struct exchange *x = rq->exchange;

	http_problem(rp, rq, 503, NULL, "%s",
	             atomic_load(&x->server->stopping) ? "the server is stopping" : "too many requests wait already");
	rp->retry_after_s = 1;
}

/* Whichever of handler and reply comes second gives the exchange back to libmicrohttpd's thread, which may free it at any time. */
static void
later_meet(struct exchange *x)
{
	struct httpd *h = x->server;

	if (atomic_fetch_add(&x->ready, 1) == 0)
		return;
	MHD_resume_connection(x->connection);
	pthread_mutex_lock(&h->lock);
	h->kept--;
	if (h->kept == 0 && atomic_load(&h->stopping))
		pthread_cond_signal(&h->idle);
	pthread_mutex_unlock(&h->lock);
}

void
http_later_done(const struct http_request *rq)
{
	later_meet(rq->exchange);
}

/* Nobody can be refused to whom it was promised, so there is no limit. */
static void
wait_for_kept(struct httpd *h)
{
	if (h->daemon && h->options.on_stop)
		h->options.on_stop(h->options.app);
	pthread_mutex_lock(&h->lock);
	while (h->kept > 0)
		pthread_cond_wait(&h->idle, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

static void
run_job(void *job, void *worker)
{
	struct exchange *x = job;

	exchange_answer(x, worker);
	if (x->later) {
		later_meet(x);
		return;
	}
	http_reply_pack(&x->rp, &x->rq, http_header(&x->rq, "Accept-Encoding"), http_header(&x->rq, "If-None-Match"));
	/* from here on the exchange belongs to libmicrohttpd's thread, which may free it at any time */
	MHD_resume_connection(x->connection);
}

/* ---- the request, in libmicrohttpd's thread ---- */

static enum MHD_Result
on_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	(void)kind;
	exchange_header(arg, name, value ? value : "");
	return MHD_YES;
}

static enum MHD_Result
exchange_begin(struct exchange *x, const char *method, const char *path, const char *version)
{
	const union MHD_ConnectionInfo *head =
		MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);

	x->stage = EXCHANGE_BODY;
	http_lines_begin(&x->lines, method, version, head ? head->header_size : 0);
	MHD_get_connection_values(x->connection, MHD_HEADER_KIND, on_header, x);
	http_lines_end(&x->lines);
	http_framing_end(&x->framing, version);
	exchange_name(x, method, path);
	exchange_judge(x, atomic_load(&x->server->stopping));
	return exchange_hurries(x) ? exchange_send(x) : MHD_YES;
}

static void
count_answering(struct exchange *x, int by)
{
	struct httpd *h = x->server;

	x->counted = by > 0;
	pthread_mutex_lock(&h->lock);
	h->answering += by;
	if (h->answering == 0 && atomic_load(&h->stopping))
		pthread_cond_signal(&h->idle);
	pthread_mutex_unlock(&h->lock);
}

/* The request is complete. */
static enum MHD_Result
exchange_dispatch(struct exchange *x)
{
	link_allow(x->link, 0);
	if (!atomic_load(&x->server->stopping))
		count_answering(x, +1);
	if (x->refused)
		return exchange_send(x);
	if (x->rq.route->inline_) {
		exchange_answer(x, NULL);
		if (x->later) {
			MHD_suspend_connection(x->connection);
			later_meet(x);
			return MHD_YES;
		}
		if (!x->rp.to_worker)
			return exchange_send(x);
		ASSERT(x->server->pool);
		x->rp.to_worker = false;
	}
	/* suspended first: the worker may be done before the push returns */
	x->stage = EXCHANGE_WORK;
	MHD_suspend_connection(x->connection);
	if (!httpd_pool_push(x->server->pool, x)) {
		x->close = atomic_load(&x->server->stopping);
		exchange_refuse_busy(x, x->close ? "the server is stopping"
		                                 : "all workers are busy and the queue is full");
		x->stage = EXCHANGE_REPLY;
		MHD_resume_connection(x->connection);
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
		going = exchange_collect(x, data, *n) ? MHD_YES : MHD_NO;
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
	int64_t now_ns = time_boot_ns();

	(void)connection;
	(void)why;
	*slot = NULL;
	if (!x)
		return;
	if (h->options.on_done && x->stage != EXCHANGE_HEAD)
		h->options.on_done(h->options.app, &x->rq, x->status, x->sent_bytes, now_ns - x->begun_ns);
	if (x->counted)
		count_answering(x, -1);
	/* how long it may rest is libmicrohttpd's to see to, and then the next request's first line has its time */
	link_allow(x->link, now_ns + h->options.idle_timeout_ns + NS_PER_S + h->request_timeout_ns);
	exchange_free(h, x);
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

static void
tell_renewed(struct httpd *h)
{
	tell_tls(h, HTTPD_TLS_RENEWED, NULL);
	if (httpd_tls_key_exposed(h->tls))
		tell_tls(h, HTTPD_TLS_EXPOSED, NULL);
}

void
httpd_tls_renew(struct httpd *h)
{
	struct err err = {0};

	if (!h->tls)
		return;
	if (httpd_tls_reload(h->tls, &err))
		tell_renewed(h);
	else
		tell_tls(h, HTTPD_TLS_REFUSED, &err);
}

bool
httpd_tls_use(struct httpd *h, const struct httpd_tls_files *files, struct err *err)
{
	if (!h->tls != !files->cert)
		return err_set(err, ERR_CONFLICT, "TLS cannot be %s while serving: a restart is needed",
		               h->tls ? "ended" : "begun");
	if (!h->tls)
		return true;
	if (!httpd_tls_take(h->tls, files, err))
		return false;
	tell_renewed(h);
	return true;
}

static int64_t
tls_check_ns(const struct httpd *h)
{
	return h->options.tls_check_ns ? h->options.tls_check_ns : TLS_CHECK_NS;
}

static void
on_watch(void *arg)
{
	struct httpd *h = arg;
	int64_t now_ns = time_boot_ns();

	if (!h->tls || now_ns - h->tls_checked_ns < tls_check_ns(h))
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
		{MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)(o->head_max ? o->head_max : HEAD_MAX), NULL},
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
	h->bodies.max = o->body_total_max ? o->body_total_max : BODIES_HELD * largest;
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
	/* no deadline is set nearer than this */
	int64_t look_ns = h->request_timeout_ns;

	if (h->options.tls.cert && !httpd_tls_new(&h->options.tls, &h->tls, err))
		return false;
	if (h->tls && httpd_tls_key_exposed(h->tls))
		tell_tls(h, HTTPD_TLS_EXPOSED, NULL);
	if (h->tls && tls_check_ns(h) < look_ns)
		look_ns = tls_check_ns(h);
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
	wait_for_kept(h);
	/* every suspended connection is resumed now: a worker did it, or who kept it, or the push was refused */
	wait_for_replies(h);
	/* it calls on_tls, and may not outlive the caller's wish to hear */
	httpd_watch_stop(h->watch);
	if (h->daemon)
		MHD_stop_daemon(h->daemon);
	httpd_watch_free(h->watch);
	httpd_tls_free(h->tls);
	httpd_pool_free(h->pool);
	mem_free(h->spare);
	pthread_cond_destroy(&h->idle);
	pthread_mutex_destroy(&h->lock);
	mem_free(h);
}

uint16_t
httpd_port(const struct httpd *h)
{
	return h->port;
}

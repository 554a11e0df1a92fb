/* common/http/httpd.c - the HTTP server of both daemons, on libmicrohttpd.
 *
 * One thread of libmicrohttpd reads and writes all connections. A request is an exchange: it is judged when its headers
 * are in, its body is collected, then it is answered here (inline routes) or suspended and given to the workers of its pool. A worker
 * only touches its own exchange; it hands it back by resuming the connection, and the reply is queued in this thread. A
 * request that is kept (http_later) rests in the same way until somebody else has written its reply. Before a large body is read, and before a
 * request waits for a worker, the server asks who is asking; where only a worker can say, the exchange goes to the pool for that first.
 *
 * Of a suspended exchange there is one owner: the pool, then the worker or the keeper. The watch finds out that its client has gone: what waits in
 * the pool is taken out of it, a keeper is told. */
#include "common/http/httpd.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/http/httpd_exchange.h"
#include "common/http/httpd_listen.h"
#include "common/http/httpd_pool.h"
#include "common/http/httpd_tls.h"
#include "common/http/httpd_deadlines.h"
#include "common/base/text.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define STOP_GRACE_NS (3 * NS_PER_S)
#define HEAD_MAX (32u << 10)
#define FIRST_REQUEST_NS (10 * NS_PER_S)
#define REQUEST_TIMEOUT_NS NS_PER_MIN
#define REPLY_TIMEOUTS 10 /* a reply may take as many times the request's time */
#define TLS_CHECK_NS (10 * NS_PER_S)
#define HEAVY_WAITING_MAX 16 /* reports of a caller; a page of the web interface asks for several at once */

struct httpd {
	struct httpd_options options;
	struct MHD_Daemon *daemon;
	struct httpd_pool *pools[HTTP_POOLS]; /* NULL: no workers */
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
	struct http_tally *kept_by;
	atomic_llong abandoned;
};

/* One connection. */
struct link {
	struct httpd_slot slot;
	void *tls;   /* from httpd_tls_attach */
	bool linger; /* a reply was sent before the request was in */
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
	x->begun_ns = x->rq.arrived_ns = time_boot_ns();
	x->rq.arrived_wall_ns = time_wall_ns();
	x->connection = connection;
	x->rq.exchange = x;
	x->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	link_allow(x->link, x->begun_ns + h->request_timeout_ns);
	next_id(h, x->rq.id);
	x->unsound = target && !http_target_sound(target);
	x->target = (uintptr_t)target;
	x->target_len = target ? strlen(target) : 0;
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

/* As far as shares go: all addresses of an IPv6 network are one host's to choose from. */
static const char *
address_payer(const struct exchange *x, char out[EXCHANGE_PAYER_SIZE])
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *from = info ? info->client_addr : NULL;
	char text[HTTP_ADDRESS_SIZE] = "unknown";
	struct in6_addr network;

	if (from && from->sa_family == AF_INET6) {
		network = ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
		if (!IN6_IS_ADDR_V4MAPPED(&network))
			memset(&network.s6_addr[8], 0, 8);
		(void)inet_ntop(AF_INET6, &network, text, sizeof(text));
	} else {
		(void)http_client_address(&x->rq, text);
	}
	snprintf(out, EXCHANGE_PAYER_SIZE, "address %s", text);
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

/* The names under which a kept request is counted, "" where it is not. */
struct keep_names {
	char caller[EXCHANGE_PAYER_SIZE + 8], tenant[EXCHANGE_PAYER_SIZE + 8];
};

static struct keep_names
keep_names_of(const struct exchange *x, bool poll, const char *tenant)
{
	const char *what = poll ? "poll" : "ask";
	char payer[EXCHANGE_PAYER_SIZE];
	struct keep_names n = {.caller = ""};

	if (x->known)
		snprintf(n.caller, sizeof(n.caller), "%s %s", what, exchange_payer(x, "", payer));
	if (x->known && tenant && x->caller.tenant[0] == '\0')
		snprintf(n.tenant, sizeof(n.tenant), "%s tenant %.64s", what, tenant);
	return n;
}

static int
later_max(const struct httpd *h)
{
	return h->options.later_max ? h->options.later_max : h->options.connection_max / 2;
}

/* The most requests that http_later may keep for the caller, or for the tenant it asks for. */
static size_t
keep_max(const struct httpd *h, const struct exchange *x, bool of_tenant)
{
	size_t tenant_max = h->options.later_tenant_max > 0 ? (size_t)h->options.later_tenant_max : SIZE_MAX;

	return of_tenant || x->caller.tenant[0] != '\0' ? tenant_max : (size_t)(later_max(h) + 3) / 4;
}

bool
http_later(const struct http_request *rq, const struct http_keep *keep)
{
	struct exchange *x = rq->exchange;
	struct httpd *h = x->server;
	struct keep_names names = keep_names_of(x, keep->poll, keep->tenant);

	ASSERT(!x->later);
	x->limit = HTTP_LIMITS;
	pthread_mutex_lock(&h->lock);
	x->later = !atomic_load(&h->stopping) && h->kept < later_max(h);
	if (x->later &&
	    ((names.caller[0] != '\0' && http_tally_get(h->kept_by, names.caller) >= keep_max(h, x, false)) ||
	     (names.tenant[0] != '\0' && http_tally_get(h->kept_by, names.tenant) >= keep_max(h, x, true)))) {
		x->later = false;
		x->limit = keep->poll ? HTTP_LIMIT_POLLS : HTTP_LIMIT_KEPT;
	}
	if (x->later) {
		h->kept++;
		x->poll = keep->poll;
		x->kept_for = names.tenant[0] != '\0' ? mem_strdup(keep->tenant) : NULL;
		if (names.caller[0] != '\0')
			http_tally_add(h->kept_by, names.caller, 1);
		if (names.tenant[0] != '\0')
			http_tally_add(h->kept_by, names.tenant, 1);
	}
	pthread_mutex_unlock(&h->lock);
	return x->later;
}

/* The handler would be refused: said without one, as a caller that is at its limit asks again and again. */
static bool
polls_are_full(struct exchange *x)
{
	struct httpd *h = x->server;
	struct keep_names names;
	bool full;

	if (!(x->rq.route->where & HTTP_POLLS) || !x->known || !http_query(&x->rq, "wait"))
		return false;
	names = keep_names_of(x, true, NULL);
	pthread_mutex_lock(&h->lock);
	full = http_tally_get(h->kept_by, names.caller) >= keep_max(h, x, false);
	pthread_mutex_unlock(&h->lock);
	if (full) {
		x->limit = HTTP_LIMIT_POLLS;
		http_later_refuse(&x->rq, &x->rp);
	}
	return full;
}

void
http_later_refuse(const struct http_request *rq, struct http_reply *rp)
{
	struct exchange *x = rq->exchange;
	const struct httpd *h = x->server;

	if (x->limit != HTTP_LIMITS) {
		exchange_refuse_limit(x, x->limit,
		                      "too many %s wait: at most %zu of a tenant, %zu of a token that is of no tenant",
		                      x->limit == HTTP_LIMIT_POLLS ? "polls" : "requests", keep_max(h, x, true),
		                      (size_t)(later_max(h) + 3) / 4);
		x->refused = false; /* the request is in: the reply is as any other */
		return;
	}
	http_problem(rp, rq, 503, NULL, "%s",
	             atomic_load(&h->stopping) ? "the server is stopping" : "too many requests wait already");
	rp->retry_after_s = 1;
}

bool
http_gone(const struct http_request *rq)
{
	const struct exchange *x = rq->exchange;

	return atomic_load_explicit(&x->gone, memory_order_relaxed);
}

/* From here on the exchange belongs to libmicrohttpd's thread, which may free it at any time. */
static void
give_back(struct exchange *x)
{
	httpd_watch_wake(x->server->watch, &x->link->slot);
	MHD_resume_connection(x->connection);
}

/* Whichever of handler and reply comes second gives the exchange back to libmicrohttpd's thread. */
static void
finish_if_both_done(struct exchange *x)
{
	struct httpd *h = x->server;
	struct keep_names names;

	if (atomic_fetch_add(&x->ready, 1) == 0)
		return;
	names = keep_names_of(x, x->poll, x->kept_for);
	give_back(x);
	pthread_mutex_lock(&h->lock);
	h->kept--;
	if (names.caller[0] != '\0')
		http_tally_take(h->kept_by, names.caller, 1);
	if (names.tenant[0] != '\0')
		http_tally_take(h->kept_by, names.tenant, 1);
	if (h->kept == 0 && atomic_load(&h->stopping))
		pthread_cond_signal(&h->idle);
	pthread_mutex_unlock(&h->lock);
}

void
http_later_done(const struct http_request *rq)
{
	finish_if_both_done(rq->exchange);
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

/* ---- the pools ---- */

static struct exchange *
exchange_of(struct httpd_job *job)
{
	return (struct exchange *)(void *)((char *)job - offsetof(struct exchange, job));
}

/* Nobody reads its reply. */
static void
give_back_gone(struct exchange *x)
{
	atomic_fetch_add_explicit(&x->server->abandoned, 1, memory_order_relaxed);
	x->stage = EXCHANGE_GONE;
	give_back(x);
}

/* It has its refusal, and nobody else has it. */
static void
give_back_refused(struct exchange *x)
{
	x->stage = x->stage == EXCHANGE_IDENTIFY ? EXCHANGE_KNOWN : EXCHANGE_REPLY;
	give_back(x);
}

static void
refuse_push(struct exchange *x, enum httpd_push why, const char *payer)
{
	switch (why) {
	case HTTPD_PUSHED: break;
	case HTTPD_PUSH_CLOSING:
		x->close = true;
		exchange_refuse_busy(x, "the server is stopping");
		break;
	case HTTPD_PUSH_FULL: exchange_refuse_busy(x, "all workers are busy and the queue is full"); break;
	case HTTPD_PUSH_GROUP_FULL:
		exchange_refuse_limit(x, HTTP_LIMIT_WAITING, "too many requests of %s wait for a worker", payer);
		break;
	case HTTPD_PUSH_HEAVY_FULL:
		exchange_refuse_limit(x, HTTP_LIMIT_REPORTS,
		                      "one report of a tenant is made at a time, and too many of %s wait for that",
		                      payer);
		break;
	}
}

/* On HTTPD_PUSHED a worker owns the exchange; otherwise the exchange has its refusal. */
static enum httpd_push
exchange_push(struct exchange *x)
{
	struct httpd_job *displaced = NULL;
	char address[EXCHANGE_PAYER_SIZE];
	struct httpd_share share;
	enum httpd_push pushed;

	exchange_share(x, x->known ? "" : address_payer(x, address), &share);
	pushed = httpd_pool_push(x->server->pools[x->pool], &x->job, &share, &displaced);
	if (displaced) {
		refuse_push(exchange_of(displaced), HTTPD_PUSH_GROUP_FULL, "this caller");
		give_back_refused(exchange_of(displaced));
	}
	if (pushed != HTTPD_PUSHED)
		refuse_push(x, pushed, share.group);
	return pushed;
}

/* In a worker: who is asking is known now. True: this worker goes on with the request. */
static bool
go_on(struct exchange *x)
{
	char address[EXCHANGE_PAYER_SIZE];
	struct httpd_share share;

	exchange_share(x, x->known ? "" : address_payer(x, address), &share);
	if (httpd_pool_move(x->server->pools[x->pool], &x->job, &share)) {
		x->guarded = true;
		return true;
	}
	switch (exchange_push(x)) {
	case HTTPD_PUSHED: return false;
	case HTTPD_PUSH_CLOSING: /* every request that is in is answered */
		x->refused = x->close = false;
		http_reply_fini(&x->rp);
		http_reply_init(&x->rp);
		x->guarded = true;
		return true;
	default: give_back_refused(x); return false;
	}
}

static void
tell_keeper(void *arg)
{
	struct httpd *h = arg;

	if (h->options.on_gone)
		h->options.on_gone(h->options.app);
}

static void
run_job(struct httpd_job *job, void *worker)
{
	struct exchange *x = exchange_of(job);
	bool asked = x->options->identify && !x->identified, gone;
	struct httpd *h = x->server;

	if (asked && !exchange_identify(x, worker)) {
		give_back_refused(x);
		return;
	}
	if (x->stage == EXCHANGE_IDENTIFY) {
		x->stage = EXCHANGE_KNOWN;
		give_back(x);
		return;
	}
	if (asked && !go_on(x))
		return;
	exchange_answer(x, worker);
	if (x->later) {
		/* a keeper that was told before it had the request is told again */
		gone = http_gone(&x->rq);
		finish_if_both_done(x);
		if (gone)
			tell_keeper(h);
		return;
	}
	http_reply_pack(&x->rp, &x->rq, http_header(&x->rq, "Accept-Encoding"), http_header(&x->rq, "If-None-Match"));
	give_back(x);
}

/* ---- clients that go away, in the watch's thread ---- */

static bool
on_gone(void *arg, void *resting)
{
	struct exchange *x = resting;
	struct httpd *h = arg;
	void *worker;

	atomic_store(&x->gone, true);
	if (h->pools[x->pool] && httpd_pool_remove(h->pools[x->pool], &x->job))
		return true;
	/* the worker cannot give it back, and go on to another, before the watch lets go of its lock */
	worker = atomic_load(&x->worker);
	if (worker || atomic_load(&x->later))
		atomic_fetch_add_explicit(&h->abandoned, 1, memory_order_relaxed);
	if (h->options.on_abandoned && worker)
		h->options.on_abandoned(h->options.app, worker);
	return false;
}

static void
drop(void *arg, void *resting)
{
	(void)arg;
	give_back_gone(resting);
}

/* ---- the request, in libmicrohttpd's thread ---- */

static enum MHD_Result
on_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	(void)kind;
	exchange_header(arg, name, value ? value : "");
	return MHD_YES;
}

/* libmicrohttpd closes the connection when this is out. */
static enum MHD_Result
exchange_send_early(struct exchange *x)
{
	x->link->linger = true;
	return exchange_send(x);
}

/* Gives the exchange to its pool, and the connection rests. Suspended first: the worker may be done before the push returns. */
static void
exchange_rest(struct exchange *x)
{
	MHD_suspend_connection(x->connection);
	if (!httpd_watch_rest(x->server->watch, &x->link->slot, x)) {
		drop(x->server, x);
		return;
	}
	if (exchange_push(x) != HTTPD_PUSHED)
		give_back_refused(x);
}

/* A body will come. */
static enum MHD_Result
exchange_expect(struct exchange *x)
{
	char address[EXCHANGE_PAYER_SIZE];

	if (exchange_identify(x, NULL) && !x->identified && exchange_is_large(x)) {
		x->stage = EXCHANGE_IDENTIFY;
		exchange_rest(x);
		return MHD_YES;
	}
	x->stage = EXCHANGE_BODY;
	if (!x->refused)
		exchange_admit(x, x->known ? "" : address_payer(x, address));
	return exchange_hurries(x) ? exchange_send_early(x) : MHD_YES;
}

static enum MHD_Result
on_query(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len, const char *value, size_t value_len)
{
	struct exchange *x = arg;

	(void)kind;
	if (text_n_is_clean(name, name_len) && (!value || text_n_is_clean(value, value_len)))
		return MHD_YES;
	x->bad_query = name;
	return MHD_NO;
}

static enum MHD_Result
exchange_begin(struct exchange *x, const char *method, const char *path, const char *version)
{
	const union MHD_ConnectionInfo *head =
		MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);

	x->stage = EXCHANGE_BODY;
	http_lines_begin(&x->lines, method, x->target, x->target_len, version, head ? head->header_size : 0);
	MHD_get_connection_values(x->connection, MHD_HEADER_KIND, on_header, x);
	http_lines_end(&x->lines);
	http_framing_end(&x->framing, version);
	MHD_get_connection_values_n(x->connection, MHD_GET_ARGUMENT_KIND, on_query, x);
	exchange_name(x, method, path);
	exchange_judge(x, atomic_load(&x->server->stopping));
	if (!x->refused && (x->framing.chunked || x->framing.length > 0))
		return exchange_expect(x);
	return exchange_hurries(x) ? exchange_send_early(x) : MHD_YES;
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
	if (!exchange_identify(x, NULL))
		return exchange_send(x);
	if (x->rq.route->where & HTTP_INLINE) {
		exchange_answer(x, NULL);
		if (x->later) {
			MHD_suspend_connection(x->connection);
			if (!httpd_watch_rest(x->server->watch, &x->link->slot, x)) {
				atomic_store_explicit(&x->gone, true, memory_order_relaxed);
				tell_keeper(x->server);
			}
			finish_if_both_done(x);
			return MHD_YES;
		}
		if (!x->rp.to_worker)
			return exchange_send(x);
		ASSERT(x->server->pools[x->pool]);
		x->rp.to_worker = false;
	}
	if (polls_are_full(x))
		return exchange_send(x);
	x->stage = EXCHANGE_WORK;
	exchange_rest(x);
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
	case EXCHANGE_KNOWN: return exchange_expect(x);
	case EXCHANGE_BODY:
		if (*n == 0)
			return exchange_dispatch(x);
		going = exchange_collect(x, data, *n) ? MHD_YES : MHD_NO;
		*n = 0;
		return going;
	case EXCHANGE_REPLY: return exchange_send(x);
	case EXCHANGE_QUEUED:
		/* once it is being stopped libmicrohttpd takes replies, forgets them and asks again */
	case EXCHANGE_GONE: return MHD_NO;
	case EXCHANGE_IDENTIFY:
	case EXCHANGE_WORK: break;
	}
	/* libmicrohttpd does not ask about a request that rests */
	assert_failed("the exchange does not rest", __FILE__, __LINE__);
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

/* A new connection has less time than a request: whoever opens many and says nothing is to let them go soon. */
static int64_t
first_request_ns(const struct httpd *h)
{
	return h->request_timeout_ns < FIRST_REQUEST_NS ? h->request_timeout_ns : FIRST_REQUEST_NS;
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
		                time_boot_ns() + first_request_ns(h));
		break;
	case MHD_CONNECTION_NOTIFY_CLOSED:
		/* the descriptor is still open, and closed next */
		httpd_watch_remove(h->watch, &l->slot, l->linger);
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

/* So that nobody shuts the door for all others alone. A few connections, as tests have, are nobody's share. */
static int
connections_of_one(int all)
{
	return all < 64 ? all : all / 4 * 3;
}

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
		{MHD_OPTION_PER_IP_CONNECTION_LIMIT, connections_of_one(o->connection_max), NULL},
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

static int
workers_of(const struct httpd_options *o, int pool)
{
	return pool == 0 ? o->workers : o->more_workers[pool - 1];
}

static struct httpd *
httpd_new(const struct httpd_options *o)
{
	struct httpd *h = mem_alloc(sizeof(*h));

	h->options = *o;
	for (size_t i = 0; i < o->route_count; i++) {
		ASSERT(http_route_pool(&o->routes[i]) < HTTP_POOLS);
		ASSERT((o->routes[i].where & HTTP_INLINE) || workers_of(o, http_route_pool(&o->routes[i])) > 0);
	}
	h->request_timeout_ns = o->request_timeout_ns ? o->request_timeout_ns : REQUEST_TIMEOUT_NS;
	http_bodies_init(&h->bodies, o);
	h->kept_by = http_tally_new();
	random_bytes((uint8_t *)&h->next_id, sizeof(h->next_id));
	pthread_mutex_init(&h->lock, NULL);
	condition_init(&h->idle);
	return h;
}

static bool
start_helpers(struct httpd *h, struct err *err)
{
	/* no deadline is set nearer than this */
	int64_t look_ns = first_request_ns(h);

	if (h->options.tls.cert && !httpd_tls_new(&h->options.tls, &h->tls, err))
		return false;
	if (h->tls && httpd_tls_key_exposed(h->tls))
		tell_tls(h, HTTPD_TLS_EXPOSED, NULL);
	if (h->tls && tls_check_ns(h) < look_ns)
		look_ns = tls_check_ns(h);
	h->tls_checked_ns = time_boot_ns();
	/* without workers no request ever rests */
	return httpd_watch_start(&(struct httpd_watch_options){.interval_ns = look_ns,
	                                                       .tick = on_watch,
	                                                       .gone = h->options.workers > 0 ? on_gone : NULL,
	                                                       .drop = drop,
	                                                       .told = tell_keeper,
	                                                       .arg = h},
	                         &h->watch, err);
}

/* With shares: a caller has half of the workers and of the queue, and of the reports half of the workers are made at once, so that others find a
 * worker and the memory that reports take is bounded. */
static bool
start_pools(struct httpd *h, struct err *err)
{
	const struct httpd_options *o = &h->options;
	bool shares = o->identify != NULL;

	for (int i = 0; i < HTTP_POOLS; i++) {
		int workers = workers_of(o, i), half = (workers + 1) / 2;
		struct httpd_pool_options pool = {.workers = workers,
		                                  .queue_max = o->queue_max,
		                                  .running_max = shares ? half : 0,
		                                  .waiting_max = shares ? (o->queue_max + 1) / 2 : 0,
		                                  .heavy_max = shares ? half : 0,
		                                  .heavy_waiting_max = shares ? HEAVY_WAITING_MAX : 0,
		                                  .nice = i == 0 ? o->nice : 0,
		                                  .app = o->app,
		                                  .worker_new = o->worker_new,
		                                  .worker_free = o->worker_free,
		                                  .run = run_job};

		if (workers > 0 && !httpd_pool_start(&pool, &h->pools[i], err))
			return false;
	}
	return true;
}

bool
httpd_start(const struct httpd_options *o, struct httpd **ret, struct err *err)
{
	struct httpd *h;
	int fd;

	ASSERT(o->idle_timeout_ns > 0 && o->connection_max > 0);
	h = httpd_new(o);
	if (!start_helpers(h, err) || !httpd_listen(o->listen, &fd, &h->port, err)) {
		httpd_stop(h);
		return false;
	}
	if (!start_pools(h, err)) {
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
	int64_t deadline_ns = time_monotonic_ns() + STOP_GRACE_NS;

	pthread_mutex_lock(&h->lock);
	while (h->answering > 0 && condition_wait_until(&h->idle, &h->lock, deadline_ns))
		;
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
	for (int i = 0; i < HTTP_POOLS; i++)
		if (h->pools[i])
			httpd_pool_drain(h->pools[i]);
	wait_for_kept(h);
	/* every suspended connection is resumed now: a worker did it, or who kept it, or the push was refused */
	wait_for_replies(h);
	/* it calls on_tls, and may not outlive the caller's wish to hear */
	httpd_watch_stop(h->watch);
	if (h->daemon)
		MHD_stop_daemon(h->daemon);
	httpd_watch_free(h->watch);
	httpd_tls_free(h->tls);
	for (int i = 0; i < HTTP_POOLS; i++)
		httpd_pool_free(h->pools[i]);
	http_bodies_fini(&h->bodies);
	http_tally_free(h->kept_by);
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

void
httpd_stats(struct httpd *h, struct httpd_stats *ret)
{
	*ret = (struct httpd_stats){.abandoned = atomic_load_explicit(&h->abandoned, memory_order_relaxed)};
	for (int i = 0; i < HTTP_LIMITS; i++)
		ret->limited[i] = atomic_load_explicit(&h->bodies.limited[i], memory_order_relaxed);
	for (int i = 0; i < HTTP_POOLS; i++)
		if (h->pools[i])
			httpd_pool_counts(h->pools[i], &ret->waiting[i], &ret->running[i]);
	pthread_mutex_lock(&h->lock);
	ret->kept = h->kept;
	pthread_mutex_unlock(&h->lock);
}

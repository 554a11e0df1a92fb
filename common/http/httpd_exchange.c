/* common/http/httpd_exchange.c - one request of the HTTP server and its reply, apart from the library that moves their bytes. */
#include "common/http/httpd_exchange.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/gz.h"
#include "common/base/text.h"

#define RETRY_AFTER_S 1
#define REPORT_AFTER_S 5
#define BODIES_HELD 8u
#define BODIES_LEAST (16u << 20) /* of a pool, where there are shares */
#define REPORTS_TOKEN 2          /* heavy requests of a token of no tenant at once */

const char *const http_limit_names[HTTP_LIMITS] = {
	[HTTP_LIMIT_ADDRESS_BODIES] = "bodies-per-address",
	[HTTP_LIMIT_CALLER_BODIES] = "bodies-per-caller",
	[HTTP_LIMIT_WAITING] = "waiting-per-caller",
	[HTTP_LIMIT_REPORTS] = "reports-per-caller",
	[HTTP_LIMIT_POLLS] = "polls-per-caller",
	[HTTP_LIMIT_KEPT] = "undecided-per-caller",
};

void
http_bodies_init(struct http_bodies *b, const struct httpd_options *o)
{
	size_t largest[HTTP_POOLS] = {0};

	*b = (struct http_bodies){.callers = http_tally_new(),
	                          .address_max = (size_t)o->connection_max * HTTP_SMALL_BODY / 2};
	for (size_t i = 0; i < o->route_count; i++) {
		int pool = http_route_pool(&o->routes[i]);

		if (o->routes[i].body_max > largest[pool])
			largest[pool] = o->routes[i].body_max;
	}
	for (int i = 0; i < HTTP_POOLS; i++) {
		b->max[i] = o->body_total_max ? o->body_total_max : BODIES_HELD * largest[i];
		if (o->identify && b->max[i] < BODIES_LEAST)
			b->max[i] = BODIES_LEAST;
		b->caller_max[i] = b->max[i] / BODIES_HELD > largest[i] ? b->max[i] / BODIES_HELD : largest[i];
	}
}

void
http_bodies_fini(struct http_bodies *b)
{
	http_tally_free(b->callers);
}

void
exchange_init(struct exchange *x, const struct httpd_options *o, struct http_bodies *bodies)
{
	memset(x, 0, offsetof(struct exchange, headers));
	x->options = o;
	x->bodies = bodies;
	x->limit = HTTP_LIMITS;
	http_reply_init(&x->rp);
}

/* The body's memory goes as soon as the handler is done with it, which may be long before the reply is out. */
static void
drop_body(struct exchange *x)
{
	buf_fini(&x->body);
	x->rq.body = "";
	x->rq.body_len = 0;
}

/* ---- what bodies hold, in the server's thread ---- */

bool
exchange_is_large(const struct exchange *x)
{
	return x->options->identify && (x->framing.chunked || x->framing.length > HTTP_SMALL_BODY);
}

/* Whether it counts for the total of its pool. */
static bool
counts_for_pool(const struct exchange *x)
{
	return !x->options->identify || exchange_is_large(x);
}

/* Once the body is gone. */
static void
unhold(struct exchange *x)
{
	if (counts_for_pool(x))
		x->bodies->held[x->pool] -= x->held;
	if (x->held_by)
		http_tally_take(x->bodies->callers, x->held_by, x->held);
	mem_free(take(x->held_by));
	x->held = 0;
}

/* The rules of http_bodies, for so many bytes more. */
static bool
hold(struct exchange *x, size_t n)
{
	struct http_bodies *b = x->bodies;
	bool large = exchange_is_large(x);
	size_t caller_max = large ? b->caller_max[x->pool] : b->address_max;

	if (x->held_by && n + http_tally_get(b->callers, x->held_by) > caller_max) {
		exchange_refuse_limit(x, x->known ? HTTP_LIMIT_CALLER_BODIES : HTTP_LIMIT_ADDRESS_BODIES,
		                      "the bodies that %s is sending would be more than its limit of %zu bytes",
		                      strchr(x->held_by, ' ') + 1, caller_max);
		return false;
	}
	if (counts_for_pool(x) && n > b->max[x->pool] - b->held[x->pool]) {
		exchange_refuse_busy(x, "the bodies of other requests fill the memory set aside for them");
		return false;
	}
	if (counts_for_pool(x))
		b->held[x->pool] += n;
	if (x->held_by)
		http_tally_add(b->callers, x->held_by, n);
	x->held += n;
	return true;
}

void
exchange_admit(struct exchange *x, const char *address)
{
	char payer[EXCHANGE_PAYER_SIZE];

	if (!x->options->identify || (x->known && !exchange_is_large(x)))
		return;
	x->held_by = mem_printf("%d %s", x->pool, exchange_payer(x, address, payer));
	if (x->framing.length > 0 && !hold(x, (size_t)x->framing.length))
		unhold(x);
}

/* ---- who is asking ---- */

const char *
exchange_payer(const struct exchange *x, const char *address, char out[EXCHANGE_PAYER_SIZE])
{
	if (!x->known)
		snprintf(out, EXCHANGE_PAYER_SIZE, "%s", address);
	else if (x->caller.tenant[0] != '\0')
		snprintf(out, EXCHANGE_PAYER_SIZE, "tenant %.64s", x->caller.tenant);
	else
		snprintf(out, EXCHANGE_PAYER_SIZE, "token %" PRId64, x->caller.token_id);
	return out;
}

static bool
is_heavy(const struct exchange *x)
{
	return (x->rq.route->where & HTTP_HEAVY) != 0 && (!x->options->heavy || x->options->heavy(&x->rq));
}

void
exchange_share(const struct exchange *x, const char *address, struct httpd_share *ret)
{
	/* until the caller is known, the worker only looks up its identity, which is not heavy */
	*ret = (struct httpd_share){.heavy = x->identified && is_heavy(x)};
	if (!x->options->identify)
		return;
	(void)exchange_payer(x, address, ret->group);
	if (x->known)
		snprintf(ret->member, sizeof(ret->member), "%" PRId64, x->caller.token_id);
	ret->heavy_max = x->known && x->caller.tenant[0] == '\0' ? REPORTS_TOKEN : 1;
}

bool
exchange_identify(struct exchange *x, void *worker)
{
	const struct httpd_options *o = x->options;

	if (!o->identify || x->identified || x->refused)
		return !x->refused;
	switch (o->identify(o->app, worker, &x->rq, &x->rp, &x->caller)) {
	case HTTP_CALLER_UNKNOWN: x->identified = worker != NULL; break;
	case HTTP_CALLER_ANONYMOUS: x->identified = true; break;
	case HTTP_CALLER_KNOWN: x->identified = x->known = true; break;
	case HTTP_CALLER_REFUSED: x->refused = true; break;
	}
	return !x->refused;
}

/* ---- */

void
exchange_fini(struct exchange *x)
{
	drop_body(x);
	unhold(x);
	http_reply_fini(&x->rp);
	mem_free(x->path);
	mem_free(x->kept_for);
}

void
exchange_header(struct exchange *x, const char *name, const char *value)
{
	http_framing_header(&x->framing, name, value);
	http_lines_header(&x->lines, name, value);
	if (x->header_count < ARRAY_LEN(x->headers)) {
		x->headers[x->header_count].name = name;
		x->headers[x->header_count].value = value;
	}
	x->header_count++;
}

void
exchange_name(struct exchange *x, const char *method, const char *path)
{
	const char *id = http_header(&x->rq, "X-Request-Id");
	size_t n = strlen(method);

	if (http_id_sound(id))
		memcpy(x->rq.id, id, strlen(id) + 1);
	/* no route takes a longer one */
	n = n < sizeof(x->method) ? n : sizeof(x->method) - 1;
	memcpy(x->method, method, n);
	x->method[n] = '\0';
	x->path = mem_strdup(path);
	x->rq.method = x->method;
	x->rq.path = x->path;
	x->rq.tail = "";
	x->rq.body = "";
}

void
exchange_refuse_busy(struct exchange *x, const char *why)
{
	http_problem(&x->rp, &x->rq, 503, NULL, "%s", why);
	x->rp.retry_after_s = RETRY_AFTER_S;
	x->refused = true;
}

void
exchange_refuse_limit(struct exchange *x, enum http_limit limit, const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	http_problem(&x->rp, &x->rq, 429, NULL, "%s", text);
	http_problem_text(&x->rp, "limit", http_limit_names[limit]);
	x->rp.retry_after_s = limit == HTTP_LIMIT_REPORTS ? REPORT_AFTER_S : RETRY_AFTER_S;
	x->refused = true;
	atomic_fetch_add_explicit(&x->bodies->limited[limit], 1, memory_order_relaxed);
}

/* The fault in the request's head; NULL: none. */
static const char *
head_fault(struct exchange *x)
{
	if (!x->framing.fault)
		x->framing.fault = x->lines.fault;
	if (!x->framing.fault && x->unsound)
		x->framing.fault = "the request target has a control character or a space";
	return x->framing.fault;
}

static void
refuse_query(struct exchange *x)
{
	const char *name = text_is_clean(x->bad_query) ? x->bad_query : NULL;

	http_problem(&x->rp, &x->rq, 400, name, "%.64s: it is not UTF-8 text without control or direction characters",
	             name ? name : "a name in the query");
	x->refused = true;
}

void
exchange_judge(struct exchange *x, bool stopping)
{
	const char *fault = head_fault(x);

	if (fault) {
		http_problem(&x->rp, &x->rq, 400, NULL, "%s", fault);
		x->refused = true;
		x->close = true;
	} else if (x->framing.chunked) {
		http_problem(&x->rp, &x->rq, 411, "Transfer-Encoding",
		             "a body comes with a Content-Length here, not in chunks");
		x->refused = true;
		x->close = true;
	} else if (stopping) {
		exchange_refuse_busy(x, "the server is stopping");
		x->close = true;
	} else {
		x->refused = !http_judge(x->options->routes, x->options->route_count, &x->framing,
		                         http_header(&x->rq, "Content-Encoding"), &x->rq, &x->rp, &x->gzip);
		if (!x->refused && x->bad_query)
			refuse_query(x);
	}
	if (x->refused)
		return;
	x->pool = http_route_pool(x->rq.route);
	buf_init(&x->body, x->rq.route->body_max);
}

bool
exchange_hurries(const struct exchange *x)
{
	if (x->framing.fault || x->framing.chunked)
		return true;
	return x->refused && x->framing.length > 0 &&
	       (x->framing.length > HTTP_SMALL_BODY || http_header(&x->rq, "Expect"));
}

bool
exchange_collect(struct exchange *x, const char *data, size_t n)
{
	if (!x->refused && n > x->body.max - x->body.len) {
		http_problem_large(&x->rp, &x->rq, "");
		x->refused = true;
	} else if (!x->refused && (x->held_by || counts_for_pool(x)) && x->body.len + n > x->held) {
		(void)hold(x, x->body.len + n - x->held);
	}
	if (x->refused) {
		drop_body(x);
		unhold(x);
		x->swallowed += n;
		return x->swallowed <= HTTP_SWALLOW_MAX;
	}
	buf_add(&x->body, data, n);
	return true;
}

static bool
expand(struct exchange *x)
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

static bool
may_be_ended(const struct exchange *x)
{
	return is_heavy(x) && (strcmp(x->method, "GET") == 0 || strcmp(x->method, "HEAD") == 0);
}

/* Not the guard, in which a worker may be looking for others too. */
static void
handle(struct exchange *x, void *worker)
{
	if (may_be_ended(x))
		atomic_store(&x->worker, worker);
	/* either the watch sees the worker, or the worker that the client has gone */
	if (may_be_ended(x) && atomic_load(&x->gone))
		http_problem(&x->rp, &x->rq, 503, NULL, "the client has gone");
	else
		x->rq.route->handle(x->options->app, worker, &x->rq, &x->rp);
	atomic_store(&x->worker, NULL);
}

/* The guard goes first: nobody without a token makes the server expand anything. */
void
exchange_answer(struct exchange *x, void *worker)
{
	const struct httpd_options *o = x->options;

	x->rq.body = buf_text(&x->body);
	x->rq.body_len = x->body.len;
	if (!o->guard || x->guarded || o->guard(o->app, worker, &x->rq, &x->rp)) {
		if (!x->gzip || expand(x))
			handle(x, worker);
	}
	if (!x->later && x->rp.to_worker && !worker)
		return;
	drop_body(x);
	x->stage = EXCHANGE_REPLY;
}

void
exchange_settle(struct exchange *x)
{
	struct http_reply *rp = &x->rp;

	unhold(x);
	http_reply_settle(rp, &x->rq, http_header(&x->rq, "If-None-Match"));
	x->status = rp->status;
	x->rq.detail = rp->detail;
	x->sent_bytes = strcmp(x->method, "HEAD") == 0 ? 0
	                : rp->file_len > 0             ? rp->file_len
	                : rp->shared                   ? rp->shared_len
	                                               : rp->body.len;
	x->stage = EXCHANGE_QUEUED;
}

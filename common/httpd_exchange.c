/* common/httpd_exchange.c - one request of the HTTP server and its reply, apart from the library that moves their bytes. */
#include "common/httpd_exchange.h"

#include <string.h>

#include "common/gz.h"

#define RETRY_AFTER_S 1

void
exchange_init(struct exchange *x, const struct httpd_options *o, struct http_bodies *bodies)
{
	memset(x, 0, offsetof(struct exchange, headers));
	x->options = o;
	x->bodies = bodies;
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

/* In the server's thread, once the body is gone. */
static void
unhold(struct exchange *x)
{
	x->bodies->held -= x->held;
	x->held = 0;
}

void
exchange_fini(struct exchange *x)
{
	drop_body(x);
	unhold(x);
	http_reply_fini(&x->rp);
	mem_free(x->path);
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

/* What is wrong with how the request is written; NULL: nothing. */
static const char *
head_fault(struct exchange *x)
{
	if (!x->framing.fault)
		x->framing.fault = x->lines.fault;
	if (!x->framing.fault && x->unsound)
		x->framing.fault = "the request target has a control character or a space";
	return x->framing.fault;
}

void
exchange_judge(struct exchange *x, bool stopping)
{
	const char *fault = head_fault(x);

	if (fault) {
		http_problem(&x->rp, &x->rq, 400, NULL, "%s", fault);
		x->refused = true;
		x->close = true;
	} else if (stopping) {
		exchange_refuse_busy(x, "the server is stopping");
		x->close = true;
	} else {
		x->refused = !http_judge(x->options->routes, x->options->route_count, &x->framing,
		                         http_header(&x->rq, "Content-Encoding"), &x->rq, &x->rp, &x->gzip);
	}
	if (!x->refused)
		buf_init(&x->body, x->rq.route->body_max);
}

bool
exchange_hurries(const struct exchange *x)
{
	bool more = x->framing.chunked || x->framing.length > 0;

	if (x->framing.fault)
		return true;
	return x->refused && more && (x->framing.length > HTTP_SWALLOW_MAX || http_header(&x->rq, "Expect"));
}

bool
exchange_collect(struct exchange *x, const char *data, size_t n)
{
	struct http_bodies *all = x->bodies;

	if (!x->refused && n > x->body.max - x->body.len) {
		http_problem_large(&x->rp, &x->rq, "");
		x->refused = true;
	} else if (!x->refused && n > all->max - all->held) {
		exchange_refuse_busy(x, "the bodies of other requests fill the memory set aside for them");
	}
	if (x->refused) {
		drop_body(x);
		unhold(x);
		x->swallowed += n;
		return x->swallowed <= HTTP_SWALLOW_MAX;
	}
	buf_add(&x->body, data, n);
	all->held += n;
	x->held += n;
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

/* The guard goes first: nobody without a token makes the server expand anything. */
void
exchange_answer(struct exchange *x, void *worker)
{
	const struct httpd_options *o = x->options;

	x->rq.body = buf_text(&x->body);
	x->rq.body_len = x->body.len;
	if (!o->guard || o->guard(o->app, worker, &x->rq, &x->rp)) {
		if (!x->gzip || expand(x))
			x->rq.route->handle(o->app, worker, &x->rq, &x->rp);
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
	x->sent_bytes = strcmp(x->method, "HEAD") == 0 ? 0
	                : rp->file_len > 0             ? rp->file_len
	                : rp->shared                   ? rp->shared_len
	                                               : rp->body.len;
	x->stage = EXCHANGE_QUEUED;
}

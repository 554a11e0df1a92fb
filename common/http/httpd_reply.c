/* common/http/httpd_reply.c - the life of a reply before it is sent, and problems as replies. */
#include "common/http/httpd_rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/gz.h"
#include "common/conf/json.h"

#define PROBLEM_TYPE "application/problem+json"
#define PROBLEM_END "}\n"
#define NOTHING_RUNS "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
/* Our pages have one style sheet, inside them, and no script. */
#define HTML_RULES NOTHING_RUNS "; style-src 'unsafe-inline'"
#define GZIP_LEAST 1000u /* a packet takes this much anyway */
#define GZIP_DENSE_MAX (64u << 10)

void
http_reply_init(struct http_reply *rp)
{
	*rp = (struct http_reply){.status = 200};
	buf_init(&rp->body, HTTP_REPLY_MAX);
}

static void
drop_file(struct http_reply *rp)
{
	if (rp->file_len > 0)
		close(rp->file);
	rp->file_len = 0;
}

void
http_reply_fini(struct http_reply *rp)
{
	buf_fini(&rp->body);
	drop_file(rp);
	mem_free(rp->link);
	mem_free(rp->location);
	mem_free(rp->manifest);
	mem_free(rp->detail);
	if (rp->release)
		rp->release(rp->release_arg);
	*rp = (struct http_reply){.status = 0};
}

static void
drop_content(struct http_reply *rp)
{
	if (rp->release)
		rp->release(rp->release_arg);
	drop_file(rp);
	rp->shared = NULL;
	rp->shared_len = 0;
	rp->release = NULL;
	rp->release_arg = NULL;
	rp->content_type = NULL;
	rp->content_encoding = NULL;
	buf_clear(&rp->body);
}

void
http_defer(struct http_reply *rp)
{
	rp->to_worker = true;
}

static bool
type_is_text(const char *type)
{
	static const char *const types[] = {"text/",
	                                    "application/json",
	                                    "application/problem+json",
	                                    "application/openmetrics-text",
	                                    "application/yaml",
	                                    "image/svg+xml"};

	for (size_t i = 0; type && i < ARRAY_LEN(types); i++)
		if (strncmp(type, types[i], strlen(types[i])) == 0)
			return true;
	return false;
}

static bool
reads(const struct http_request *rq)
{
	return strcmp(rq->method, "GET") == 0 || strcmp(rq->method, "HEAD") == 0;
}

void
http_reply_pack(struct http_reply *rp, const struct http_request *rq, const char *accept_encoding,
                const char *if_none_match)
{
	struct buf *body = &rp->body, packed;

	if (rp->file_len > 0 || rp->shared || rp->content_encoding || body->over || !type_is_text(rp->content_type) ||
	    body->len < GZIP_LEAST || body->len > HTTP_GZIP_MAX)
		return;
	if (!rp->vary)
		rp->vary = "Accept-Encoding";
	if (!http_takes_gzip(accept_encoding))
		return;
	rp->weak = true;
	if (reads(rq) && rp->status == 200 && http_etag_listed(if_none_match, rp->etag))
		return;
	buf_init(&packed, body->len - 1);
	if (!gz_compress(body->data, body->len, body->len > GZIP_DENSE_MAX ? 1 : 6, &packed, NULL)) {
		buf_fini(&packed);
		return;
	}
	packed.max = body->max;
	buf_fini(body);
	*body = packed;
	rp->content_encoding = "gzip";
}

void
http_reply_settle(struct http_reply *rp, const struct http_request *rq, const char *if_none_match)
{
	if (rp->body.over && !rp->shared && rp->file_len == 0)
		http_problem(rp, rq, 500, NULL, "the reply is larger than the limit of %zu bytes", rp->body.max);
	ASSERT(rp->status >= 200 && rp->status <= 599);
	if (reads(rq) && rp->status == 200 && http_etag_listed(if_none_match, rp->etag)) {
		drop_content(rp);
		rp->filename[0] = '\0';
		rp->status = 304;
	}
}

const char *
http_disposition(const char *filename, char out[HTTP_DISPOSITION_SIZE])
{
	int n = snprintf(out, HTTP_DISPOSITION_SIZE, "attachment; filename=\"%s\"", filename);

	ASSERT(n > 0 && n < HTTP_DISPOSITION_SIZE);
	for (char *p = strchr(out, '"') + 1; p < out + n - 1; p++)
		if (*p <= ' ' || *p > '~' || strchr("\"\\/;%", *p))
			*p = '_';
	return out;
}

void
http_reply_headers(const struct http_reply *rp, const char *id, bool close,
                   void (*add)(void *arg, const char *name, const char *value), void *arg)
{
	char text[HTTP_DISPOSITION_SIZE];

	const bool html = rp->content_type && strncmp(rp->content_type, "text/html", 9) == 0;

	add(arg, "X-Request-Id", id);
	/* Rules for browsers and proxies, on every reply: no other type than said, nothing runs or is loaded, no copy is kept. A
	 * reply with an entity tag may be kept by the client, which asks whether it still holds. */
	add(arg, "X-Content-Type-Options", "nosniff");
	add(arg, "Content-Security-Policy", html ? HTML_RULES : NOTHING_RUNS);
	add(arg, "Cache-Control", rp->etag[0] ? "private, no-cache" : "no-store");
	if (rp->content_type && rp->status != 304)
		add(arg, "Content-Type", rp->content_type);
	if (rp->content_encoding && rp->status != 304)
		add(arg, "Content-Encoding", rp->content_encoding);
	if (rp->etag[0]) {
		snprintf(text, sizeof(text), "%s\"%s\"", rp->weak ? "W/" : "", rp->etag);
		add(arg, "ETag", text);
	}
	if (rp->vary)
		add(arg, "Vary", rp->vary);
	if (rp->filename[0])
		add(arg, "Content-Disposition", http_disposition(rp->filename, text));
	if (rp->retry_after_s > 0) {
		snprintf(text, sizeof(text), "%d", rp->retry_after_s);
		add(arg, "Retry-After", text);
	}
	if (rp->allow[0])
		add(arg, "Allow", rp->allow);
	if (rp->link)
		add(arg, "Link", rp->link);
	if (rp->location)
		add(arg, "Location", rp->location);
	if (rp->manifest)
		add(arg, "Tollgate-Manifest", rp->manifest);
	if (rp->status == 401)
		add(arg, "WWW-Authenticate", rp->challenge ? rp->challenge : "Bearer");
	if (rp->status == 415)
		add(arg, "Accept-Encoding", "gzip");
	if (close)
		add(arg, "Connection", "close");
}

static const char *
status_title(int status)
{
	static const struct {
		int status;
		const char *title;
	} titles[] = {
		{400, "Bad Request"},
		{401, "Unauthorized"},
		{403, "Forbidden"},
		{404, "Not Found"},
		{405, "Method Not Allowed"},
		{408, "Request Timeout"},
		{409, "Conflict"},
		{410, "Gone"},
		{411, "Length Required"},
		{412, "Precondition Failed"},
		{413, "Content Too Large"},
		{415, "Unsupported Media Type"},
		{422, "Unprocessable Content"},
		{429, "Too Many Requests"},
		{500, "Internal Server Error"},
		{501, "Not Implemented"},
		{503, "Service Unavailable"},
	};

	for (size_t i = 0; i < ARRAY_LEN(titles); i++)
		if (titles[i].status == status)
			return titles[i].title;
	return status >= 500 ? "Server Error" : "Request Refused";
}

void
http_problem(struct http_reply *rp, const struct http_request *rq, int status, const char *field, const char *fmt, ...)
{
	char detail[sizeof(((struct err *)NULL)->text)];
	va_list args;

	va_start(args, fmt);
	vsnprintf(detail, sizeof(detail), fmt, args);
	va_end(args);

	/* whatever the handler had begun to answer */
	drop_content(rp);
	rp->etag[0] = '\0';
	rp->filename[0] = '\0';
	mem_free(take(rp->link));
	mem_free(take(rp->location));
	mem_free(take(rp->manifest));
	rp->weak = false;
	rp->vary = NULL;

	rp->status = status;
	rp->content_type = PROBLEM_TYPE;
	buf_str(&rp->body, "{\"type\":\"about:blank\",\"title\":");
	json_write_string(status_title(status), &rp->body);
	buf_printf(&rp->body, ",\"status\":%d,\"detail\":", status);
	json_write_string(detail, &rp->body);
	if (field) {
		buf_str(&rp->body, ",\"field\":");
		json_write_string(field, &rp->body);
	}
	buf_str(&rp->body, ",\"request_id\":");
	json_write_string(rq->id, &rp->body);
	buf_str(&rp->body, PROBLEM_END);
}

/* The problem without its end, which member_end writes again. */
static void
member_begin(struct http_reply *rp, const char *name)
{
	size_t n = sizeof(PROBLEM_END) - 1;

	ASSERT(rp->content_type && strcmp(rp->content_type, PROBLEM_TYPE) == 0 && rp->body.len > n);
	rp->body.len -= n;
	buf_char(&rp->body, ',');
	json_write_string(name, &rp->body);
	buf_char(&rp->body, ':');
}

void
http_problem_i64(struct http_reply *rp, const char *name, int64_t value)
{
	member_begin(rp, name);
	buf_i64(&rp->body, value);
	buf_str(&rp->body, PROBLEM_END);
}

void
http_problem_text(struct http_reply *rp, const char *name, const char *value)
{
	member_begin(rp, name);
	json_write_string(value, &rp->body);
	buf_str(&rp->body, PROBLEM_END);
}

void
http_problem_json(struct http_reply *rp, const char *name, const struct buf *value)
{
	size_t n = value->len;

	while (n > 0 && buf_text(value)[n - 1] == '\n')
		n--;
	member_begin(rp, name);
	buf_add(&rp->body, buf_text(value), n);
	buf_str(&rp->body, PROBLEM_END);
}

void
http_problem_err(struct http_reply *rp, const struct http_request *rq, const struct err *err)
{
	int status = 500;

	switch (err->kind) {
	case ERR_INVALID: status = 400; break;
	case ERR_DENIED: status = 403; break;
	case ERR_MISSING: status = 404; break;
	case ERR_CONFLICT: status = 409; break;
	case ERR_RETRY:
	case ERR_UNKNOWN: status = 503; break;
	case ERR_LIMIT: status = 429; break;
	case ERR_NONE:
	case ERR_FATAL: break;
	}
	if (err->kind == ERR_UNKNOWN && rq->route != NULL) {
		size_t n = strlen(rq->route->path);

		n -= n > 1 && rq->route->path[n - 1] == '/';
		http_problem(rp, rq, status, NULL, "%s; look at GET %.*s before asking again", err->text, (int)n,
		             rq->route->path);
	} else {
		http_problem(rp, rq, status, NULL, "%s", err->text);
	}
	if (err->detail[0] != '\0') {
		mem_free(rp->detail);
		rp->detail = mem_strdup(err->detail);
	}
	/* a client that repeats the request without checking may do the work twice */
	if ((status == 503 || status == 429) && err->kind != ERR_UNKNOWN)
		rp->retry_after_s = 1;
}

void
http_problem_large(struct http_reply *rp, const struct http_request *rq, const char *when)
{
	http_problem(rp, rq, 413, NULL, "the body is larger than the limit of %zu bytes%s", rq->route->body_max, when);
}

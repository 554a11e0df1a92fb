/* tests/fuzz/fuzz_http.c - any bytes as a request's target, headers and body on one side, and as a reply on the other.
 *
 * The first line is a method and a target, then come headers up to an empty line, then the body; libmicrohttpd splits a head like
 * that. What is decided about it must not depend on bytes behind a NUL, must be a refusal with a status or a route, and a body is
 * expanded to the route's limit at most. The same bytes are then a problem that a server sent to our client. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/gz.h"
#include "common/http/httpc.h"
#include "common/http/httpd_rules.h"
#include "common/conf/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BODY_MAX 5000u

static const struct http_route routes[] = {
	{"GET", "/", true, 0, NULL, 0, ""},
	{"GET", "/values", true, 0, NULL, 0, ""},
	{"GET", "/values/", true, 0, NULL, 0, ""},
	{"POST", "/values", true, BODY_MAX, NULL, 0, ""},
	{"PUT", "/thing/deep/", true, BODY_MAX, NULL, 0, ""},
};

struct head {
	struct http_framing framing;
	const char *encoding, *accept, *if_none_match, *id;
};

/* Cuts the next line off, as a string; NULL when there is none. */
static char *
next_line(char **at, const char *end)
{
	char *line = *at, *stop;

	if (line >= end)
		return NULL;
	stop = memchr(line, '\n', (size_t)(end - line));
	if (!stop)
		stop = line + (end - line);
	*at = stop < end ? stop + 1 : stop;
	*stop = '\0';
	if (stop > line && stop[-1] == '\r')
		stop[-1] = '\0';
	return line;
}

static void
take_header(struct head *h, char *line)
{
	char *value = strchr(line, ':');

	if (!value)
		return;
	*value++ = '\0';
	value += strspn(value, " \t");
	http_framing_header(&h->framing, line, value);
	if (strcasecmp(line, "Content-Encoding") == 0)
		h->encoding = value;
	else if (strcasecmp(line, "Accept-Encoding") == 0)
		h->accept = value;
	else if (strcasecmp(line, "If-None-Match") == 0)
		h->if_none_match = value;
	else if (strcasecmp(line, "X-Request-Id") == 0)
		h->id = value;
}

static void
check_problem(const struct http_reply *rp)
{
	owned(json) json_t *j = NULL;
	struct err err;

	ASSERT(rp->status >= 400 && rp->status <= 599 && strcmp(rp->content_type, "application/problem+json") == 0);
	ASSERT(json_parse("problem", buf_text(&rp->body), rp->body.len, &j, &err));
}

static void
answer(const struct http_request *rq, struct http_reply *rp, const struct head *h, const char *body, size_t n,
       bool gzip)
{
	in_place(buf) struct buf plain;
	char disposition[HTTP_DISPOSITION_SIZE];
	struct err err = {0};

	buf_init(&plain, rq->route->body_max);
	if (gzip && !gz_expand(body, n, &plain, &err)) {
		ASSERT(err.kind == ERR_INVALID && plain.len == 0);
		http_problem_err(rp, rq, &err);
		check_problem(rp);
		return;
	}
	ASSERT(plain.len <= rq->route->body_max);
	buf_add(&rp->body, gzip ? buf_text(&plain) : body, gzip ? plain.len : n);
	rp->content_type = "text/plain";
	memcpy(rp->etag, "tag", 4);
	snprintf(rp->filename, sizeof(rp->filename), "%s", rq->tail);
	(void)http_disposition(rp->filename, disposition);
	ASSERT(strpbrk(disposition, "\r\n") == NULL && strchr(strchr(disposition, '"') + 1, '"')[1] == '\0');
	http_reply_pack(rp, rq, h->accept, h->if_none_match);
	ASSERT(!rp->content_encoding || http_takes_gzip(h->accept));
	http_reply_settle(rp, rq, h->if_none_match);
	ASSERT(rp->status == 200 || rp->status == 304);
}

static void
request(char *text, size_t size)
{
	char *at = text, *end = text + size, *line = next_line(&at, end), *path;
	struct http_request rq = {.id = "0", .tail = ""};
	struct http_reply rp;
	struct head h = {0};
	bool gzip = false;

	if (!line)
		return;
	path = strchr(line, ' ');
	if (!path)
		return;
	*path++ = '\0';
	(void)http_target_sound(path);
	path[strcspn(path, "? ")] = '\0';
	while ((line = next_line(&at, end)) && *line)
		take_header(&h, line);
	http_framing_end(&h.framing, "HTTP/1.1");
	if (h.framing.fault)
		return;
	if (http_id_sound(h.id))
		memcpy(rq.id, h.id, strlen(h.id) + 1);
	rq.method = text;
	rq.path = path;
	http_reply_init(&rp);
	if (http_judge(routes, ARRAY_LEN(routes), &h.framing, h.encoding, &rq, &rp, &gzip)) {
		ASSERT(rq.route && rq.tail >= path && rq.tail <= path + strlen(path));
		answer(&rq, &rp, &h, at, (size_t)(end - at), gzip);
	} else {
		check_problem(&rp);
	}
	http_reply_fini(&rp);
}

static void
reply(const uint8_t *data, size_t size)
{
	struct httpc_reply r = {.status = 400 + (int)(size % 200), .content_type = "application/problem+json"};
	struct err err;

	buf_init(&r.body, 1u << 20);
	buf_add(&r.body, data, size);
	ASSERT(!httpc_problem(&r, "fuzz", &err));
	ASSERT(err.kind != ERR_NONE && strncmp(err.text, "fuzz: ", 6) == 0);
	memcpy(r.content_type, "text/html", sizeof("text/html"));
	ASSERT(!httpc_problem(&r, "fuzz", &err));
	for (const char *p = err.text; *p; p++)
		ASSERT((unsigned char)*p >= ' ' && *p != 0x7f);
	buf_fini(&r.body);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(mem) char *text = mem_alloc(size + 1);

	if (size > 1 << 16)
		return 0;
	if (size)
		memcpy(text, data, size);
	request(text, size);
	reply(data, size);
	return 0;
}

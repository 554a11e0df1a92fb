/* common/http/httpd_rules.c - what the HTTP server decides without a socket: routes, framing, entity tags. */
#include "common/http/httpd_rules.h"

#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

static bool
is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static char
lower(char c)
{
	return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

/* Whether n characters are this word. strncasecmp would ask the locale. */
static bool
same_word(const char *at, size_t n, const char *word)
{
	size_t i = 0;

	while (i < n && word[i] && lower(at[i]) == lower(word[i]))
		i++;
	return i == n && !word[i];
}

bool
http_same_name(const char *a, const char *b)
{
	return same_word(a, strlen(a), b);
}

/* The tail when the route covers the path, else NULL. */
static const char *
route_tail(const struct http_route *r, const char *path)
{
	size_t n = strlen(r->path);
	bool prefix = n > 1 && r->path[n - 1] == '/';

	if (strncmp(path, r->path, n) != 0)
		return NULL;
	return prefix || path[n] == '\0' ? path + n : NULL;
}

static bool
route_speaks(const struct http_route *r, const char *method)
{
	return strcmp(r->method, method) == 0 || (strcmp(r->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static void
allow_add(char *allow, size_t size, const char *method)
{
	size_t n = strlen(allow);

	snprintf(allow + n, size - n, "%s%s%s", n ? ", " : "", method, strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

enum http_match
http_route_find(const struct http_route *routes, size_t count, const char *method, const char *path,
                const struct http_route **ret_route, const char **ret_tail, char *ret_allow, size_t allow_size)
{
	const struct http_route *best = NULL;

	/* exact paths and prefixes are told apart by their last character, so the longest match is also the exact one */
	for (size_t i = 0; i < count; i++)
		if (route_tail(&routes[i], path) && (!best || strlen(routes[i].path) > strlen(best->path)))
			best = &routes[i];
	if (!best)
		return HTTP_NO_PATH;
	ret_allow[0] = '\0';
	for (size_t i = 0; i < count; i++) {
		if (strcmp(routes[i].path, best->path) != 0)
			continue;
		if (route_speaks(&routes[i], method)) {
			ret_allow[0] = '\0';
			*ret_route = &routes[i];
			*ret_tail = route_tail(&routes[i], path);
			return HTTP_MATCH;
		}
		allow_add(ret_allow, allow_size, routes[i].method);
	}
	return HTTP_NO_METHOD;
}

/* The characters of a header's name, RFC 9110 5.6.2. */
static bool
is_token(const char *s)
{
	if (!*s)
		return false;
	for (; *s; s++) {
		switch (*s) {
		case '!':
		case '#':
		case '$':
		case '%':
		case '&':
		case '\'':
		case '*':
		case '+':
		case '-':
		case '.':
		case '^':
		case '_':
		case '`':
		case '|':
		case '~': break;
		default:
			if (!is_alnum(*s))
				return false;
		}
	}
	return true;
}

static bool
read_length(const char *s, uint64_t *ret)
{
	uint64_t v = 0;

	if (!*s)
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || __builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
			return false;
	}
	*ret = v;
	return true;
}

static const char *
length_fault(struct http_framing *f, const char *value)
{
	if (f->has_length)
		return strcmp(f->length_text, value) == 0 ? NULL
		                                          : "there are several Content-Length headers and they differ";
	f->has_length = true;
	if (strlen(value) >= sizeof(f->length_text) || !read_length(value, &f->length))
		return "Content-Length is not a number";
	memcpy(f->length_text, value, strlen(value) + 1);
	return NULL;
}

static const char *
coding_fault(struct http_framing *f, const char *value)
{
	if (f->chunked)
		return "there are several Transfer-Encoding headers";
	if (!http_same_name(value, "chunked"))
		return "Transfer-Encoding is not chunked";
	f->chunked = true;
	return NULL;
}

static bool
has_control(const char *value)
{
	for (; *value; value++)
		if (((unsigned char)*value < ' ' && *value != '\t') || *value == 0x7f)
			return true;
	return false;
}

/* Headers that decide who asks, whom, and what the body is. */
static const char *const singles[HTTP_SINGLES] = {"Host", "Authorization", "Content-Type", "Content-Encoding"};

static const char *
single_fault(struct http_framing *f, const char *name)
{
	for (size_t i = 0; i < HTTP_SINGLES; i++) {
		if (!http_same_name(name, singles[i]))
			continue;
		if (f->single[i])
			return "there are two headers of one kind: Host, Authorization, Content-Type and Content-Encoding "
			       "come once";
		f->single[i] = true;
	}
	return NULL;
}

void
http_framing_header(struct http_framing *f, const char *name, const char *value)
{
	const char *fault = NULL;

	if (!is_token(name))
		fault = "a header's name has a space or a character that is not allowed";
	else if (has_control(value))
		fault = "a header's value has a control character";
	else if (http_same_name(name, "Content-Length"))
		fault = length_fault(f, value);
	else if (http_same_name(name, "Transfer-Encoding"))
		fault = coding_fault(f, value);
	else
		fault = single_fault(f, name);
	if (!f->fault)
		f->fault = fault;
}

void
http_framing_end(struct http_framing *f, const char *version)
{
	if (f->fault)
		return;
	if (f->chunked && f->has_length)
		f->fault = "Content-Length and Transfer-Encoding are both given";
	else if (f->chunked && strcmp(version, "HTTP/1.1") != 0)
		f->fault = "Transfer-Encoding needs HTTP/1.1";
}

void
http_lines_begin(struct http_lines *l, const char *method, uintptr_t target, size_t target_len, const char *version,
                 size_t head_bytes)
{
	uintptr_t begin = (uintptr_t)method, first = (uintptr_t)version;

	*l = (struct http_lines){.at = first + strlen(version), .end = begin + head_bytes};
	l->off = first < begin || l->at > l->end;
	if (!l->off && target > begin && target < first &&
	    (target != begin + strlen(method) + 1 || first != target + target_len + 1))
		l->fault = "the request line has a NUL in it, or more than one space between its words";
}

static void
lines_expect(struct http_lines *l, uintptr_t from, uintptr_t to, uintptr_t apart)
{
	if (l->off || l->fault)
		return;
	if (to < from || to > l->end)
		l->fault = "a header is folded over several lines";
	else if (to - from < apart)
		l->fault = "a line of the head ends without a carriage return";
	else if (to - from > apart)
		l->fault = "a line of the head has a NUL in it or is folded";
}

void
http_lines_header(struct http_lines *l, const char *name, const char *value)
{
	lines_expect(l, l->at, (uintptr_t)name, 2);
	l->at = (uintptr_t)value + strlen(value);
}

/* The last line, and the empty one behind it. */
void
http_lines_end(struct http_lines *l)
{
	lines_expect(l, l->at, l->end, 4);
}

bool
http_id_sound(const char *id)
{
	size_t n = 0;

	for (; id && id[n] && n <= HTTP_ID_MAX; n++)
		if (!is_alnum(id[n]) && id[n] != '.' && id[n] != '_' && id[n] != '-')
			return false;
	return n > 0 && n <= HTTP_ID_MAX;
}

bool
http_target_sound(const char *target)
{
	for (const char *p = target; *p; p++) {
		if ((unsigned char)*p <= ' ' || *p == 0x7f)
			return false;
		if (p[0] == '%' && p[1] == '0' && p[2] == '0')
			return false;
	}
	return true;
}

enum http_encoding
http_encoding_of(const char *content_encoding)
{
	if (!content_encoding || http_same_name(content_encoding, "identity"))
		return HTTP_IDENTITY;
	if (http_same_name(content_encoding, "gzip") || http_same_name(content_encoding, "x-gzip"))
		return HTTP_GZIP;
	return HTTP_OTHER_ENCODING;
}

static bool
is_space(char c)
{
	return c == ' ' || c == '\t';
}

/* ";q=0", ";q=0.000": not at all. */
static bool
weight_is_none(const char *at, const char *end)
{
	while (at < end && !(at[0] == 'q' && at + 1 < end && at[1] == '='))
		at++;
	if (at == end)
		return false;
	for (at += 2; at < end && *at != ';' && !is_space(*at); at++)
		if (*at != '0' && *at != '.')
			return false;
	return true;
}

/* Whether an Accept-Encoding header takes this coding: 1 takes it, 0 refuses it, -1 does not name it. */
static int
list_takes(const char *at, const char *coding)
{
	while (*at) {
		const char *end, *name_end;

		while (is_space(*at) || *at == ',')
			at++;
		for (name_end = at; *name_end && *name_end != ';' && *name_end != ',' && !is_space(*name_end);)
			name_end++;
		for (end = name_end; *end && *end != ',';)
			end++;
		if (same_word(at, (size_t)(name_end - at), coding))
			return !weight_is_none(name_end, end);
		at = end;
	}
	return -1;
}

/* An entry that names gzip counts more than the entry "*". */
bool
http_takes_gzip(const char *accept_encoding)
{
	int takes;

	if (!accept_encoding)
		return false;
	takes = list_takes(accept_encoding, "gzip");
	if (takes < 0)
		takes = list_takes(accept_encoding, "*");
	return takes > 0;
}

bool
http_etag_listed(const char *if_none_match, const char *etag)
{
	size_t n = strlen(etag);
	const char *p = if_none_match;

	if (!p || !n)
		return false;
	if (strcmp(p, "*") == 0)
		return true;
	/* a list of "tag" and W/"tag": every second quote ends a tag, and tags have no quotes inside */
	while ((p = strchr(p, '"'))) {
		const char *end = strchr(++p, '"');

		if (!end)
			return false;
		if ((size_t)(end - p) == n && memcmp(p, etag, n) == 0)
			return true;
		p = end + 1;
	}
	return false;
}

static bool
judge_path(const struct http_route *routes, size_t count, struct http_request *rq, struct http_reply *rp)
{
	if (!text_is_clean(rq->path)) {
		http_problem(rp, rq, 404, NULL,
		             "there is nothing at that path: it is not UTF-8 text, or has control "
		             "characters");
		return false;
	}
	switch (http_route_find(routes, count, rq->method, rq->path, &rq->route, &rq->tail, rp->allow,
	                        sizeof(rp->allow))) {
	case HTTP_MATCH: return true;
	case HTTP_NO_PATH: http_problem(rp, rq, 404, NULL, "there is nothing at %s", rq->path); break;
	case HTTP_NO_METHOD: http_problem(rp, rq, 405, NULL, "%s does not take %s", rq->path, rq->method); break;
	}
	return false;
}

bool
http_judge(const struct http_route *routes, size_t count, const struct http_framing *f, const char *content_encoding,
           struct http_request *rq, struct http_reply *rp, bool *ret_gzip)
{
	enum http_encoding encoding = http_encoding_of(content_encoding);

	if (!judge_path(routes, count, rq, rp))
		return false;
	if (encoding == HTTP_OTHER_ENCODING) {
		http_problem(rp, rq, 415, "Content-Encoding", "the body may be plain or gzip, nothing else");
		return false;
	}
	if (f->has_length && f->length > rq->route->body_max) {
		http_problem_large(rp, rq, "");
		return false;
	}
	*ret_gzip = encoding == HTTP_GZIP;
	return true;
}

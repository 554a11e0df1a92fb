/* common/http/httpd_rules.h - what the HTTP server decides without a socket: routes, framing, entity tags.
 * Pure; httpd.c asks these about each request. */
#ifndef TOLLGATE_HTTPD_RULES_H
#define TOLLGATE_HTTPD_RULES_H

#include "common/http/httpd.h"

static inline int
http_route_pool(const struct http_route *r)
{
	return (int)(r->where >> 3);
}

enum http_match { HTTP_MATCH, HTTP_NO_PATH, HTTP_NO_METHOD };

/* Rules, in order:
 *  1. an exact path beats a prefix, a longer prefix beats a shorter one, whatever the method
 *  2. among the routes of that path the method decides; HEAD is answered by GET
 *  3. no method fits: ret_allow lists those that would
 * ret_tail points into path, behind the route's prefix. */
enum http_match http_route_find(const struct http_route *routes, size_t count, const char *method, const char *path,
                                const struct http_route **ret_route, const char **ret_tail, char *ret_allow,
                                size_t allow_size);

/* How a body is delimited. libmicrohttpd takes requests that say so in two ways and uses one of them; a proxy in front
 * may use the other, and then the rest of a body is read as somebody's next request. Hence such requests are refused, and so are
 * values with control characters and second headers of a kind of which the first would count here and the last elsewhere.
 * The lines between chunks are seen by nobody but libmicrohttpd, which takes bare LFs there: a chunked body is refused (411). */
#define HTTP_SINGLES 4
struct http_framing {
	bool has_length;
	bool chunked;
	bool single[HTTP_SINGLES]; /* of the headers that may come once: which have come */
	uint64_t length;           /* of Content-Length; UINT64_MAX when it is no number that fits */
	char length_text[24];      /* of the first Content-Length */
	const char *fault;         /* the first reason to refuse, static text; NULL: sound */
};

/* Called with each header of a request, in order, then once with its HTTP version. */
void http_framing_header(struct http_framing *f, const char *name, const char *value);
void http_framing_end(struct http_framing *f, const char *version);

/* Where the lines of a request's head end. libmicrohttpd takes a bare LF for CR LF, joins folded lines and takes several spaces and a
 * NUL in the request line; a proxy in front may read other headers out of such a head. It tells none of it, but its strings point into
 * the head as it came: one byte must lie between the words of the request line, and two between the end of each line's text and the
 * next line. Addresses are compared, nothing is read through them; should a
 * version of libmicrohttpd hand out copies, the check switches itself off. */
struct http_lines {
	uintptr_t at, end; /* behind the last text seen; behind the head */
	bool off;
	const char *fault; /* static text; NULL: sound */
};
/* The target as it was before anything of it was decoded: where it lay and how long it was; 0 and 0: not known. */
void http_lines_begin(struct http_lines *l, const char *method, uintptr_t target, size_t target_len,
                      const char *version, size_t head_bytes);
void http_lines_header(struct http_lines *l, const char *name, const char *value);
void http_lines_end(struct http_lines *l);

/* Names of headers and codings are the same whatever their case. */
bool http_same_name(const char *a, const char *b);

/* A client's request id that may be logged and repeated: 1 to HTTP_ID_MAX letters, digits, '.', '_' and '-'. NULL: no. */
bool http_id_sound(const char *id);

/* A request target with a control character, a space or an encoded NUL would mean one thing to C strings and another to
 * the peer. */
bool http_target_sound(const char *target);

enum http_encoding { HTTP_IDENTITY, HTTP_GZIP, HTTP_OTHER_ENCODING };
enum http_encoding http_encoding_of(const char *content_encoding); /* NULL allowed */

/* Whether an If-None-Match header (NULL allowed) names this entity tag; weak comparison, as GET asks for. */
bool http_etag_listed(const char *if_none_match, const char *etag);

/* Rules, in order; a refusal is written to rp and returns false:
 *  1. no such path, or one that is not clean text (text.h): 404; not that method: 405 with Allow
 *  2. an encoding that is not gzip: 415
 *  3. a body that announces more than the route takes: 413
 * Otherwise rq's route and tail are set. rq has its method, path and id. */
MUST_CHECK bool http_judge(const struct http_route *routes, size_t count, const struct http_framing *f,
                           const char *content_encoding, struct http_request *rq, struct http_reply *rp,
                           bool *ret_gzip);

/* ---- replies, in httpd_reply.c ---- */

void http_reply_init(struct http_reply *rp);
/* Frees the body and releases the shared one. */
void http_reply_fini(struct http_reply *rp);
/* Compresses the reply for a client that takes gzip. Rules, in order; the first that applies leaves it as it is:
 *  1. a shared body, or one that is encoded already
 *  2. a type that is not text, or fewer than 1000 bytes, or more than HTTP_GZIP_MAX
 *  3. the client does not take gzip, or has it already (If-None-Match)
 *  4. it would not become smaller
 * Up to 64 KiB at zlib's level 6, beyond it at level 1, so that no reply costs much more than 100 ms of a worker. From rule 3
 * on the reply says Vary: Accept-Encoding, and the entity tag is weak where rule 3 does not apply. */
#define HTTP_GZIP_MAX (16u << 20)
void http_reply_pack(struct http_reply *rp, const struct http_request *rq, const char *accept_encoding,
                     const char *if_none_match);
/* 413 with the route's limit; `when` ends the sentence, "" or " after gzip". */
void http_problem_large(struct http_reply *rp, const struct http_request *rq, const char *when);
/* The last word before sending: a body past its ceiling becomes 500, an entity tag the client has becomes 304. */
void http_reply_settle(struct http_reply *rp, const struct http_request *rq, const char *if_none_match);

/* Gives each header of a settled reply to add, but those that libmicrohttpd writes itself. close: the connection ends. */
void http_reply_headers(const struct http_reply *rp, const char *id, bool close,
                        void (*add)(void *arg, const char *name, const char *value), void *arg);

#define HTTP_DISPOSITION_SIZE 128
/* attachment; filename="...", with every character that could end or bend the quoted name replaced. */
const char *http_disposition(const char *filename, char out[HTTP_DISPOSITION_SIZE]);

#endif

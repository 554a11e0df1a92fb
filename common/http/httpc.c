/* common/http/httpc.c - the HTTP client of exporter and command line, on libcurl.
 *
 * A multi handle drives the one easy handle: that is how a call can be woken from another thread and end at once. */
#include "common/http/httpc.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/gz.h"
#include "common/conf/json.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define TOKEN_MAX 512u
#define EXCERPT_MAX 200u
#define RETRY_AFTER_MAX_S 86400
#define GZIP_LEVEL 1

struct httpc {
	CURLM *multi; /* keeps the connection */
	CURL *easy;
	char *base_url; /* without a slash at the end */
	char *token_file;
	char *clock_header;
	bool gzip;
	void (*progress)(void *arg, int64_t sent_bytes, int64_t received_bytes, int64_t total_bytes);
	void *progress_arg;
	struct httpc_reply *reply; /* of the call under way */
	atomic_bool aborted;
	char reason[CURL_ERROR_SIZE];
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_started;

static void
start_curl(void)
{
	curl_started = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t
take_body(char *data, size_t size, size_t n, void *arg)
{
	const struct httpc *c = arg;
	struct httpc_reply *reply = c->reply;
	long status = 0;

	if (reply->sink == NULL || curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status) != CURLE_OK ||
	    status >= 400) {
		buf_add(&reply->body, data, size * n);
		return reply->body.over ? 0 : size * n;
	}
	reply->sunk = true;
	return reply->sink(reply->sink_arg, data, size * n) ? size * n : 0;
}

static int
tell_progress(void *arg, curl_off_t total, curl_off_t received, curl_off_t to_send, curl_off_t sent)
{
	const struct httpc *c = arg;

	(void)to_send;
	c->progress(c->progress_arg, sent, received, total);
	return 0;
}

static bool
base_url_sound(const char *url)
{
	const char *host = NULL;

	if (strncmp(url, "http://", 7) == 0)
		host = url + 7;
	else if (strncmp(url, "https://", 8) == 0)
		host = url + 8;
	return host && *host && *host != '/' && !strpbrk(host, "@?#") && !strpbrk(url, " \t\r\n");
}

static long
milliseconds(int64_t ns)
{
	return (long)((ns + NS_PER_MS - 1) / NS_PER_MS);
}

static bool
set_options(struct httpc *c, const struct httpc_options *o)
{
	CURL *e = c->easy;
	bool ok = true;

	ok &= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
	/* an abort does not wait for a name server that does not answer */
	ok &= curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(o->connect_timeout_ns)) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, milliseconds(o->timeout_ns)) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_USERAGENT, o->user_agent) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, c->reason) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_body) == CURLE_OK;
	/* the name in the certificate is compared, and the chain verified: libcurl's default, said aloud */
	ok &= curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 1L) == CURLE_OK;
	ok &= curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 2L) == CURLE_OK;
	if (o->ca_file)
		ok &= curl_easy_setopt(e, CURLOPT_CAINFO, o->ca_file) == CURLE_OK &&
		      curl_easy_setopt(e, CURLOPT_CAPATH, NULL) == CURLE_OK;
	if (o->client_cert)
		ok &= curl_easy_setopt(e, CURLOPT_SSLCERT, o->client_cert) == CURLE_OK &&
		      curl_easy_setopt(e, CURLOPT_SSLKEY, o->client_key) == CURLE_OK;
	if (o->progress) {
		c->progress = o->progress;
		c->progress_arg = o->progress_arg;
		ok &= curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, tell_progress) == CURLE_OK;
		ok &= curl_easy_setopt(e, CURLOPT_XFERINFODATA, c) == CURLE_OK;
		ok &= curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L) == CURLE_OK;
	}
	return ok;
}

bool
httpc_new(const struct httpc_options *o, struct httpc **ret, struct err *err)
{
	owned(httpc) struct httpc *c = NULL;
	size_t n = strlen(o->base_url);

	ASSERT(o->connect_timeout_ns > 0 && o->timeout_ns > 0);
	if (!o->client_cert != !o->client_key)
		return err_set(err, ERR_INVALID, "the client certificate and its key are given together or not at all");
	if (!base_url_sound(o->base_url))
		return err_set(err, ERR_INVALID, "'%s' is no URL to send to; write it like http://127.0.0.1:9402",
		               o->base_url);
	pthread_once(&curl_once, start_curl);
	if (curl_started != CURLE_OK)
		return err_set(err, ERR_FATAL, "libcurl does not start: %s", curl_easy_strerror(curl_started));
	c = mem_alloc(sizeof(*c));
	while (n > 0 && o->base_url[n - 1] == '/')
		n--;
	c->base_url = mem_strndup(o->base_url, n);
	c->token_file = mem_strdup(o->token_file);
	c->clock_header = mem_strdup(o->clock_header);
	c->gzip = o->gzip;
	c->multi = curl_multi_init();
	c->easy = curl_easy_init();
	if (!c->multi || !c->easy || !set_options(c, o))
		return err_set(err, ERR_FATAL, "libcurl has no memory, or lacks an option that the client relies on");
	*ret = take(c);
	return true;
}

void
httpc_free(struct httpc *c)
{
	if (!c)
		return;
	curl_easy_cleanup(c->easy);
	curl_multi_cleanup(c->multi);
	mem_free(c->base_url);
	mem_free(c->token_file);
	mem_free(c->clock_header);
	mem_free(c);
}

void
httpc_abort(struct httpc *c)
{
	atomic_store(&c->aborted, true);
	(void)curl_multi_wakeup(c->multi);
}

/* ---- one call ---- */

/* A token with a line break in it would be a header of its own, so what is not a token stops the call. */
static bool
read_token(const char *path, struct buf *token, struct err *err)
{
	buf_init(token, TOKEN_MAX + 2); /* and the newline that editors leave */
	if (!buf_read_file(token, path, err) && !token->over)
		return err_prefix(err, "token file");
	while (token->len > 0 && strchr("\r\n", token->data[token->len - 1]))
		token->len--;
	if (token->len > TOKEN_MAX || token->over)
		return err_set(err, ERR_INVALID, "token file %s is larger than the limit of %u bytes", path, TOKEN_MAX);
	if (token->len == 0)
		return err_set(err, ERR_INVALID, "token file %s is empty", path);
	for (size_t i = 0; i < token->len; i++)
		if (token->data[i] <= ' ' || token->data[i] > '~')
			return err_set(err, ERR_INVALID, "token file %s has a character at byte %zu that no token has",
			               path, i + 1);
	token->data[token->len] = '\0';
	return true;
}

static void
curl_slist_freep(struct curl_slist **list)
{
	curl_slist_free_all(*list);
}

static void
add_header(struct curl_slist **list, const char *name, const char *value)
{
	owned(mem) char *line = mem_printf("%s: %s", name, value);
	struct curl_slist *longer = curl_slist_append(*list, line);

	/* as everywhere, no memory ends the program */
	ASSERT(longer);
	*list = longer;
}

static bool
add_token(const char *path, struct curl_slist **headers, struct err *err)
{
	in_place(buf) struct buf token = {0};
	owned(mem) char *value = NULL;

	buf_init(&token, 0);
	if (!read_token(path, &token, err))
		return false;
	value = mem_printf("Bearer %s", token.data);
	add_header(headers, "Authorization", value);
	return true;
}

/* The body that is sent: as it is, or compressed into `room`, whose memory it then is. */
static bool
add_body(const struct httpc *c, const void **body, size_t *n, struct buf *room, struct curl_slist **headers,
         struct err *err)
{
	if (!c->gzip || !*body)
		return true;
	buf_init(room, *n + *n / 8 + 1024);
	if (!gz_compress(*body, *n, GZIP_LEVEL, room, err))
		return false;
	*body = room->data;
	*n = room->len;
	add_header(headers, "Content-Encoding", "gzip");
	return true;
}

/* The last header to be made: what it says is when the call goes out. */
static void
add_clock(const struct httpc *c, struct curl_slist **headers)
{
	char now[24];

	if (!c->clock_header)
		return;
	snprintf(now, sizeof(now), "%" PRId64, time_wall_ns());
	add_header(headers, c->clock_header, now);
}

/* Runs the easy handle to its end or to an abort. */
static CURLcode
perform(struct httpc *c)
{
	CURLcode code = CURLE_ABORTED_BY_CALLBACK;
	int running = 1;

	if (curl_multi_add_handle(c->multi, c->easy) != CURLM_OK)
		return CURLE_FAILED_INIT;
	while (running && !atomic_load(&c->aborted)) {
		if (curl_multi_perform(c->multi, &running) != CURLM_OK)
			break;
		if (running && curl_multi_poll(c->multi, NULL, 0, 1000, NULL) != CURLM_OK)
			break;
	}
	if (!running) {
		int left;
		CURLMsg *msg = curl_multi_info_read(c->multi, &left);

		if (msg && msg->msg == CURLMSG_DONE)
			code = msg->data.result;
	}
	/* a transfer removed before its end takes its connection with it */
	curl_multi_remove_handle(c->multi, c->easy);
	return code;
}

static void
set_method(CURL *e, const char *method, const void *body, size_t n)
{
	curl_easy_setopt(e, CURLOPT_NOBODY, 0L);
	if (strcmp(method, "HEAD") == 0) {
		curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
	} else if (body || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0) {
		curl_easy_setopt(e, CURLOPT_POST, 1L);
		curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
		curl_easy_setopt(e, CURLOPT_POSTFIELDS, body ? body : "");
	} else {
		curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
	}
	curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, method);
}

static void
read_reply(CURL *e, struct httpc_reply *reply)
{
	const char *type = NULL;
	struct curl_header *date = NULL, *wanted = NULL;
	time_t date_s = -1;
	curl_off_t wait_s = 0;
	long status = 0;

	curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(e, CURLINFO_CONTENT_TYPE, &type);
	curl_easy_getinfo(e, CURLINFO_RETRY_AFTER, &wait_s);
	reply->status = (int)status;
	snprintf(reply->content_type, sizeof(reply->content_type), "%s", type ? type : "");
	reply->retry_after_s = wait_s < 0 ? 0 : wait_s > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (int)wait_s;
	if (curl_easy_header(e, "Date", 0, CURLH_HEADER, -1, &date) == CURLHE_OK)
		date_s = curl_getdate(date->value, NULL);
	reply->date_wall_ns = date_s < 0 ? -1 : (int64_t)date_s * NS_PER_S;
	if (reply->header == NULL)
		return;
	buf_clear(reply->header_value);
	if (curl_easy_header(e, reply->header, 0, CURLH_HEADER, -1, &wanted) == CURLHE_OK)
		buf_str(reply->header_value, wanted->value);
}

bool
httpc_call(struct httpc *c, const char *method, const char *path, const char *content_type, const void *body, size_t n,
           struct httpc_reply *reply, struct err *err)
{
	__attribute__((cleanup(curl_slist_freep))) struct curl_slist *headers = NULL;
	owned(mem) char *url = mem_printf("%s%s", c->base_url, path);
	in_place(buf) struct buf compressed = {0};
	CURLcode code;

	buf_init(&compressed, 0);
	ASSERT(path[0] == '/' && (body || n == 0));
	buf_clear(&reply->body);
	reply->status = 0;
	if ((c->token_file && !add_token(c->token_file, &headers, err)) ||
	    !add_body(c, &body, &n, &compressed, &headers, err))
		return false;
	/* an empty value takes away the header that libcurl would make up */
	add_header(&headers, "Content-Type", content_type ? content_type : "");
	add_clock(c, &headers);
	c->reason[0] = '\0';
	curl_easy_setopt(c->easy, CURLOPT_URL, url);
	curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, headers);
	c->reply = reply;
	reply->sunk = false;
	curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
	set_method(c->easy, method, body, n);
	code = perform(c);
	curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, NULL);
	if (atomic_load(&c->aborted))
		return err_set(err, ERR_RETRY, "%s %s: aborted", method, url);
	if (reply->body.over)
		return err_set(err, ERR_INVALID, "%s %s: the reply is larger than the limit of %zu bytes", method, url,
		               reply->body.max);
	if (code == CURLE_WRITE_ERROR)
		return err_set(err, ERR_INVALID, "%s %s: the reply could not be kept", method, url);
	if (code != CURLE_OK)
		return err_set(err, ERR_RETRY, "%s %s: %s", method, url,
		               c->reason[0] ? c->reason : curl_easy_strerror(code));
	read_reply(c->easy, reply);
	return true;
}

/* ---- calls that are repeated ---- */

static bool
same_done_twice(const char *method)
{
	static const char *const methods[] = {"GET", "HEAD", "PUT", "DELETE"};

	for (size_t i = 0; i < ARRAY_LEN(methods); i++)
		if (strcmp(method, methods[i]) == 0)
			return true;
	return false;
}

bool
httpc_may_repeat(const struct httpc_retry *r, const char *method, int status, int retry_after_s, int attempts_done)
{
	static const int later[] = {0, 408, 429, 502, 503, 504};
	bool may = false;

	if (!same_done_twice(method))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(later); i++)
		may |= status == later[i];
	return may && attempts_done < r->attempts && retry_after_s * NS_PER_S <= r->patience_ns;
}

int64_t
httpc_pause_ns(int64_t least_ns, int64_t most_ns, unsigned failures, int retry_after_s, uint64_t chance)
{
	int64_t pause = least_ns, asked = retry_after_s * NS_PER_S;

	for (unsigned i = 1; i < failures && pause < most_ns; i++)
		pause *= 2;
	if (pause > most_ns)
		pause = most_ns;
	pause -= (int64_t)(chance % (uint64_t)(pause / 2 + 1));
	if (asked <= pause)
		return pause;
	return asked + (int64_t)(chance % (uint64_t)(asked / 10 + 1));
}

/* An abort ends the pause. */
static void
rest(struct httpc *c, int64_t ns)
{
	int64_t until = time_boot_ns() + ns;

	while (!atomic_load(&c->aborted)) {
		int64_t left = until - time_boot_ns();

		if (left <= 0 || curl_multi_poll(c->multi, NULL, 0, (int)milliseconds(left), NULL) != CURLM_OK)
			return;
	}
}

bool
httpc_call_again(struct httpc *c, const struct httpc_retry *r, const char *method, const char *path,
                 const char *content_type, const void *body, size_t n, struct httpc_reply *reply, struct err *err)
{
	for (int done = 1;; done++) {
		struct err failure = {0};
		bool ok = httpc_call(c, method, path, content_type, body, n, reply, &failure);
		int wait_s = ok ? reply->retry_after_s : 0;
		uint64_t chance;

		if (atomic_load(&c->aborted) || reply->sunk || (!ok && failure.kind != ERR_RETRY) ||
		    !httpc_may_repeat(r, method, ok ? reply->status : 0, wait_s, done)) {
			if (!ok && err)
				*err = failure;
			return ok;
		}
		random_bytes((uint8_t *)&chance, sizeof(chance));
		rest(c, httpc_pause_ns(r->least_ns, r->most_ns, (unsigned)done, wait_s, chance));
	}
}

/* ---- problems ---- */

static enum err_kind
kind_of_status(int status)
{
	switch (status) {
	case 401:
	case 403: return ERR_DENIED;
	case 404: return ERR_MISSING;
	case 409: return ERR_CONFLICT;
	case 408:
	case 429: return ERR_RETRY;
	default: return status >= 500 ? ERR_RETRY : ERR_INVALID;
	}
}

static bool
is_problem(const struct httpc_reply *reply)
{
	static const char type[] = "application/problem+json";
	size_t n = sizeof(type) - 1;

	return strncmp(reply->content_type, type, n) == 0 &&
	       (reply->content_type[n] == '\0' || reply->content_type[n] == ';');
}

/* The beginning of a foreign body, safe to show to a person: whole UTF-8 characters, none that hides or reorders others. */
static void
excerpt(const struct buf *body, char out[EXCERPT_MAX + 1])
{
	size_t at = 0;

	while (at < body->len) {
		uint32_t code = 0;
		size_t len = utf8_next(body->data + at, body->len - at, &code);

		if (at + (len ? len : 1) > EXCERPT_MAX)
			break;
		if (len == 0 || text_deceives(code)) {
			memset(out + at, len == 0 ? '?' : ' ', len ? len : 1);
			at += len ? len : 1;
			continue;
		}
		memcpy(out + at, body->data + at, len);
		at += len;
	}
	while (at > 0 && out[at - 1] == ' ')
		at--;
	out[at] = '\0';
}

bool
httpc_problem(const struct httpc_reply *reply, const char *what, struct err *err)
{
	owned(json) json_t *problem = NULL;
	const char *title = NULL, *detail = NULL;
	enum err_kind kind = kind_of_status(reply->status);
	char text[EXCERPT_MAX + 1];

	if (is_problem(reply) && json_parse("problem", buf_text(&reply->body), reply->body.len, &problem, NULL) &&
	    json_get_str(problem, "title", &title, NULL)) {
		if (json_get_str(problem, "detail", &detail, NULL))
			return err_set(err, kind, "%s: %d %s: %s", what, reply->status, title, detail);
		return err_set(err, kind, "%s: %d %s", what, reply->status, title);
	}
	excerpt(&reply->body, text);
	return err_set(err, kind, "%s: %d%s%s", what, reply->status, text[0] ? ": " : "", text);
}

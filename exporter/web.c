/* exporter/web.c - the HTTP interface of the exporter. */
#include "exporter/web.h"

#include <pthread.h>
#include <stdio.h>

#include "common/http/basic_auth.h"
#include "common/base/log.h"
#include "common/base/time.h"

#define CONNECTION_MAX 64
#define IDLE_TIMEOUT_NS (90 * NS_PER_S)
#define REQUEST_TIMEOUT_NS (10 * NS_PER_S) /* nothing here takes a body */
#define HEAD_MAX (8u << 10)                /* a scraper sends a few hundred bytes */

#define PASSWORDS_WAITING 4 /* requests that wait for the one worker that checks passwords */

struct web {
	struct httpd *httpd;
	struct basic_auth *auth;
	const struct exporter_options *options;
	const char *config_file; /* NULL: none */
	struct metrics *metrics;
	const char *node;
	int64_t stale_ns;
	bool access_log;
	pthread_mutex_t lock; /* of the fields below */
	int64_t last_tick_boot_ns;
	bool ready;
	char why[sizeof(((struct err *)0)->text)]; /* why it is not ready */
	char refused[512];                         /* why the aggregator refuses the node's token; "": it does not */
};

static void
handle_metrics(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct web *w = app;
	enum prom_format format = prom_negotiate(http_header(rq, "Accept"));
	bool gzip = http_takes_gzip(http_header(rq, "Accept-Encoding"));
	struct metrics_page *page = metrics_get(w->metrics);

	(void)worker;
	if (!page) {
		http_problem(rp, rq, 503, NULL, "the first reading is not done yet");
		return;
	}
	metrics_page_bytes(page, format, gzip, &rp->shared, &rp->shared_len);
	rp->release = metrics_page_release;
	rp->release_arg = page;
	rp->content_type = prom_content_type(format);
	rp->content_encoding = gzip ? "gzip" : NULL;
	rp->vary = "Accept, Accept-Encoding";
}

static void
answer_ok(struct http_reply *rp)
{
	rp->content_type = "text/plain; charset=utf-8";
	buf_str(&rp->body, "ok\n");
}

/* Answers 503 with the reason; where there is a web configuration, only clients with a password get the reason. */
static void
answer_no(const struct web *w, const struct http_request *rq, struct http_reply *rp, const char *why)
{
	if (w->config_file && !http_header(rq, "Authorization"))
		why = "no; the reason is in the log, and is shown to clients with a password";
	http_problem(rp, rq, 503, NULL, "%s", why);
}

/* Whether the sampler still ticks. If not, answers 503 and returns false. */
static bool
is_alive(struct web *w, const struct http_request *rq, struct http_reply *rp)
{
	char age[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE], why[3 * TIME_TEXT_SIZE];
	int64_t age_ns;

	pthread_mutex_lock(&w->lock);
	age_ns = time_boot_ns() - w->last_tick_boot_ns;
	pthread_mutex_unlock(&w->lock);
	if (age_ns <= w->stale_ns)
		return true;
	snprintf(why, sizeof(why), "the last tick was %s ago, the limit is %s",
	         duration_format(age_ns / NS_PER_MS * NS_PER_MS, age), duration_format(w->stale_ns, limit));
	answer_no(w, rq, rp, why);
	return false;
}

static void
handle_healthz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)worker;
	if (is_alive(app, rq, rp))
		answer_ok(rp);
}

static void
handle_readyz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct web *w = app;
	char why[sizeof(w->why)];
	bool ready;

	(void)worker;
	if (!is_alive(w, rq, rp))
		return;
	pthread_mutex_lock(&w->lock);
	ready = w->ready && w->refused[0] == '\0';
	if (w->ready)
		snprintf(why, sizeof(why), "the aggregator refuses the token of this node: %s", w->refused);
	else
		snprintf(why, sizeof(why), "%s", w->why);
	pthread_mutex_unlock(&w->lock);
	if (ready)
		answer_ok(rp);
	else
		answer_no(w, rq, rp, why);
}

static void
handle_root(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const struct web *w = app;

	(void)worker;
	(void)rq;
	rp->content_type = "text/plain; charset=utf-8";
	buf_printf(
		&rp->body,
		"tollgate-exporter %s on %s\n\n"
		"/metrics   readings of the GPUs of this node, and about this exporter\n"
		"/healthz   whether this exporter is alive\n"
		"/readyz    whether the driver answers, so that the GPUs are read, and the aggregator accepts this node's token\n",
		TOLLGATE_VERSION, w->node);
}

static const struct http_route routes[] = {
	{.method = "GET",
         .path = "/metrics",
         .where = HTTP_INLINE,
         .handle = handle_metrics,
         .summary = "Prometheus metrics"},
	{.method = "GET", .path = "/healthz", .where = HTTP_INLINE, .handle = handle_healthz, .summary = "liveness"},
	{.method = "GET",
         .path = "/readyz",
         .where = HTTP_INLINE,
         .handle = handle_readyz,
         .summary = "the GPUs are read, the token is accepted"},
	{.method = "GET", .path = "/", .where = HTTP_INLINE, .handle = handle_root, .summary = "list of paths"},
};

/* A kubelet's probe has no password: it gets yes or no, without a reason. */
static bool
is_probe(const struct http_request *rq)
{
	return (rq->route->handle == handle_healthz || rq->route->handle == handle_readyz) &&
	       !http_header(rq, "Authorization");
}

static bool
guard(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const struct web *w = app;

	return is_probe(rq) || basic_auth_guard(w->auth, worker, rq, rp);
}

static void
on_done(void *app, const struct http_request *rq, int status, size_t bytes, int64_t duration_ns)
{
	const struct web *w = app;
	char from[HTTP_ADDRESS_SIZE], name[HTTP_CLIENT_NAME_SIZE];

	if (!w->access_log)
		return;
	log_event(LOG_INFO, "request", LS("id", rq->id), LS("from", http_client_address(rq, from)),
	          LS("client", http_client_name(rq, name, sizeof(name)) ? name : ""), LS("method", rq->method),
	          LS("path", rq->path), LI("status", status), LI("bytes", bytes), LI("us", duration_ns / NS_PER_US));
}

static void
on_tls(void *app, enum httpd_tls_event event, const struct err *err)
{
	(void)app;
	switch (event) {
	case HTTPD_TLS_RENEWED: log_write(LOG_INFO, "TLS files read again", NULL); break;
	case HTTPD_TLS_REFUSED:
		log_event(LOG_ERROR, "new TLS files refused, the old ones stay in use", LS("error", err->text));
		break;
	case HTTPD_TLS_EXPOSED:
		log_write(LOG_WARN, "every user of this host may read the key of the TLS certificate", NULL);
		break;
	}
}

/* Without a web configuration there is no authentication, and TLS follows the other options. */
static bool
start_server(struct web *w, const struct exporter_options *o, struct err *err)
{
	owned(webconf) struct webconf *c = NULL;
	struct httpd_options http = {.listen = o->listen,
	                             .tls = exporter_tls_files(o),
	                             .on_tls = on_tls,
	                             .routes = routes,
	                             .route_count = ARRAY_LEN(routes),
	                             .app = w,
	                             .idle_timeout_ns = IDLE_TIMEOUT_NS,
	                             .request_timeout_ns = REQUEST_TIMEOUT_NS,
	                             .connection_max = CONNECTION_MAX,
	                             .head_max = HEAD_MAX,
	                             .guard = guard,
	                             .workers = 1,
	                             .queue_max = PASSWORDS_WAITING,
	                             .worker_new = basic_auth_worker_new,
	                             .worker_free = basic_auth_worker_free,
	                             .on_done = on_done};

	if (!o->web_config_file) {
		http.guard = NULL;
		http.workers = 0;
		return httpd_start(&http, &w->httpd, err);
	}
	if (!webconf_read(o->web_config_file, &c, err))
		return false;
	basic_auth_set(w->auth, c);
	http.tls = webconf_tls(c);
	return httpd_start(&http, &w->httpd, err);
}

bool
web_start(const struct exporter_options *o, struct metrics *metrics, int64_t stale_ns, struct web **ret,
          struct err *err)
{
	struct web *w = mem_alloc(sizeof(*w));

	w->auth = basic_auth_new();
	w->options = o;
	w->config_file = o->web_config_file;
	w->metrics = metrics;
	w->node = o->node;
	w->stale_ns = stale_ns;
	w->access_log = o->access_log;
	w->last_tick_boot_ns = time_boot_ns();
	snprintf(w->why, sizeof(w->why), "the GPUs have not been read yet");
	pthread_mutex_init(&w->lock, NULL);
	if (!start_server(w, o, err)) {
		web_stop(w);
		return false;
	}
	*ret = w;
	return true;
}

void
web_stop(struct web *w)
{
	if (!w)
		return;
	httpd_stop(w->httpd);
	basic_auth_free(w->auth);
	pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

/* Sets the reason why no GPU is read; the lock is held. */
static void
set_why_none_is_read(struct web *w, const struct sampler_report *r)
{
	bool down = r->down.kind != ERR_NONE, unnamed = r->unnamed.kind != ERR_NONE;

	if (down || unnamed)
		snprintf(w->why, sizeof(w->why), "none of the %zu GPUs can be read: %.480s%s%.480s", r->count.listed,
		         down ? r->down.text : "", down && unnamed ? "; " : "", unnamed ? r->unnamed.text : "");
	else if (r->gpus > 0)
		snprintf(w->why, sizeof(w->why), "none of the %zu GPUs answers", r->gpus);
	else
		snprintf(w->why, sizeof(w->why), "the driver lists no GPU");
}

void
web_note(struct web *w, int64_t boot_ns, const struct sampler_report *r)
{
	pthread_mutex_lock(&w->lock);
	w->last_tick_boot_ns = boot_ns;
	w->ready = r->reading.kind == ERR_NONE && r->count.readable > 0;
	if (r->reading.kind != ERR_NONE)
		snprintf(w->why, sizeof(w->why), "%s", r->reading.text);
	else if (!w->ready)
		set_why_none_is_read(w, r);
	pthread_mutex_unlock(&w->lock);
}

void
web_note_refused(struct web *w, const char *why)
{
	pthread_mutex_lock(&w->lock);
	snprintf(w->refused, sizeof(w->refused), "%s", why);
	pthread_mutex_unlock(&w->lock);
}

void
web_renew(struct web *w)
{
	owned(webconf) struct webconf *c = NULL;
	struct httpd_tls_files tls;
	struct err err;

	if (!w->config_file) {
		httpd_tls_renew(w->httpd);
		return;
	}
	if (webconf_read(w->config_file, &c, &err) && exporter_listen_check(w->options, c, &err)) {
		tls = webconf_tls(c);
		if (httpd_tls_use(w->httpd, &tls, &err)) {
			basic_auth_set(w->auth, c);
			log_event(LOG_INFO, "web configuration read again", LS("file", w->config_file),
			          LI("users", c->user_count));
			return;
		}
	}
	log_event(LOG_ERROR, "the new web configuration is refused, the old one stays in use", LS("error", err.text));
}

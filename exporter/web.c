/* exporter/web.c - the HTTP interface of the exporter. */
#include "exporter/web.h"

#include "common/log.h"
#include "common/time.h"

#define CONNECTION_MAX 64
#define IDLE_TIMEOUT_NS (90 * NS_PER_S)
#define REQUEST_TIMEOUT_NS (10 * NS_PER_S) /* nothing here takes a body */
#define HEAD_MAX (8u << 10)                /* a scraper sends a few hundred bytes */

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
handle_healthz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct web *w = app;
	int64_t age_ns = time_boot_ns() - atomic_load(&w->last_reading_boot_ns);
	char age[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE];

	(void)worker;
	if (age_ns <= w->stale_ns) {
		rp->content_type = "text/plain; charset=utf-8";
		buf_str(&rp->body, "ok\n");
		return;
	}
	http_problem(rp, rq, 503, NULL, "the last reading of the GPUs is %s old, the limit is %s",
	             duration_format(age_ns / NS_PER_MS * NS_PER_MS, age), duration_format(w->stale_ns, limit));
}

static void
handle_root(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const struct web *w = app;

	(void)worker;
	(void)rq;
	rp->content_type = "text/plain; charset=utf-8";
	buf_printf(&rp->body,
	           "tollgate-exporter %s on %s\n\n"
	           "/metrics   readings of the GPUs of this node, and about this exporter\n"
	           "/healthz   whether the GPUs are being read\n",
	           TOLLGATE_VERSION, w->node);
}

static const struct http_route routes[] = {
	{.method = "GET",
         .path = "/metrics",
         .inline_ = true,
         .handle = handle_metrics,
         .summary = "Prometheus metrics"},
	{.method = "GET", .path = "/healthz", .inline_ = true, .handle = handle_healthz, .summary = "liveness"},
	{.method = "GET", .path = "/", .inline_ = true, .handle = handle_root, .summary = "what is here"},
};

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
		log_write(LOG_WARN, "every user of this host may read the file of tls-key", NULL);
		break;
	}
}

bool
web_start(struct web *w, const struct exporter_options *o, struct httpd **ret, struct err *err)
{
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
	                             .queue_max = 1,
	                             .on_done = on_done};

	w->access_log = o->access_log;
	return httpd_start(&http, ret, err);
}

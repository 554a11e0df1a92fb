/* exporter/web.c - the HTTP interface of the exporter. */
#include "exporter/web.h"

#include <string.h>
#include <strings.h>

#include "common/time.h"

#define CONNECTION_MAX 64
#define IDLE_TIMEOUT_NS (90 * NS_PER_S)

/* One element of the list: a coding and perhaps ";q=0", which refuses it. */
static bool
element_takes_gzip(const char *at, size_t len)
{
	size_t name = strcspn(at, "; \t,");
	const char *q;

	if (name > len || !((name == 4 && strncasecmp(at, "gzip", 4) == 0) || (name == 1 && *at == '*')))
		return false;
	q = memmem(at, len, "q=", 2);
	return !q || strspn(q + 2, "0.") != strcspn(q + 2, " \t,;");
}

bool
web_takes_gzip(const char *accept_encoding)
{
	for (const char *at = accept_encoding; at && *at;) {
		size_t len;

		at += strspn(at, " \t,");
		len = strcspn(at, ",");
		if (len > 0 && element_takes_gzip(at, len))
			return true;
		at += len;
	}
	return false;
}

static void
handle_metrics(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct web *w = app;
	enum prom_format format = prom_negotiate(http_header(rq, "Accept"));
	bool gzip = web_takes_gzip(http_header(rq, "Accept-Encoding"));
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

bool
web_start(struct web *w, const char *listen, struct httpd **ret, struct err *err)
{
	struct httpd_options o = {.listen = listen,
	                          .routes = routes,
	                          .route_count = ARRAY_LEN(routes),
	                          .app = w,
	                          .idle_timeout_ns = IDLE_TIMEOUT_NS,
	                          .connection_max = CONNECTION_MAX,
	                          .queue_max = 1};

	return httpd_start(&o, ret, err);
}

/* exporter/web.h - the HTTP interface of the exporter: /metrics, /healthz and a page with links. All answered in the server's
 * own thread, from memory. */
#ifndef TOLLGATE_EXPORTER_WEB_H
#define TOLLGATE_EXPORTER_WEB_H

#include <stdatomic.h>

#include "common/httpd.h"
#include "exporter/metrics.h"
#include "exporter/options.h"

struct web {
	struct metrics *metrics;
	const char *node;
	int64_t stale_ns; /* unhealthy when the last reading is older */
	_Atomic int64_t last_reading_boot_ns;
	bool access_log; /* from the options */
};

MUST_CHECK bool web_start(struct web *w, const struct exporter_options *o, struct httpd **ret, struct err *err);

#endif

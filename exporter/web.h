/* exporter/web.h - the HTTP interface of the exporter: /metrics, /healthz, /readyz and a page with links. All answered in the
 * server's own thread, from memory; only a password that was not shown before is checked in another. */
#ifndef TOLLGATE_WEB_H
#define TOLLGATE_WEB_H

#include "exporter/metrics/metrics.h"
#include "exporter/options.h"
#include "exporter/sampler.h"

struct web;

/* Not alive when the last tick is older than stale_ns. */
MUST_CHECK bool web_start(const struct exporter_options *o, struct metrics *metrics, int64_t stale_ns, struct web **ret,
                          struct err *err);
void web_stop(struct web *w); /* NULL is allowed */
/* What became of a tick. */
void web_note(struct web *w, int64_t boot_ns, const struct sampler_report *r);
/* Why the aggregator refuses this node's token, which makes it not ready; "": it does not. */
void web_note_refused(struct web *w, const char *why);
/* Reads the web configuration and the files of TLS again; what is wrong with them leaves the old ones in use. */
void web_renew(struct web *w);

#endif

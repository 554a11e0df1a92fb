/* exporter/web.h - the HTTP interface of the exporter: /metrics, /healthz, /readyz and a page with links. All are answered
 * in the server's own thread, from memory; only a password that is not known yet is checked in another. */
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
/* Notes the outcome of a tick. */
void web_note(struct web *w, int64_t boot_ns, const struct sampler_report *r);
/* Why the aggregator refuses this node's token, which makes it not ready; "": it does not. */
void web_note_refused(struct web *w, const char *why);
/* Reads the web configuration and the files of TLS again; if they are wrong, the old ones stay in use. */
void web_renew(struct web *w);

#endif

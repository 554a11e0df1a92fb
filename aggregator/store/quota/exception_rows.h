/* aggregator/store/quota/exception_rows.h - between exception_store.c and exception_read.c: an exception as the interface shows it. */
#ifndef TOLLGATE_EXCEPTION_ROWS_H
#define TOLLGATE_EXCEPTION_ROWS_H

/* now: the parameter with the present. */
#define EXCEPTION_ROW(now)                                                                                                \
	"SELECT x.id, t.name AS tenant, w.name AS workspace, c.name AS cluster, x.model AS gpu_model, x.kind, "           \
	"quantity_text(x.units, '', NULL) AS gpus, x.units, x.shared, rfc3339(lower(x.effective)) AS from, "              \
	"rfc3339(upper(x.effective)) AS until, x.status, x.status = 'approved' AND x.effective @> " now                   \
	"::timestamptz AS running, x.reason, x.requested_by, rfc3339(x.requested_at) AS requested, x.rule, "              \
	"x.decided_by, rfc3339(x.decided_at) AS decided, x.decided_why, x.over_by, rfc3339(x.over_at) AS over, "          \
	"x.over_why FROM exception x JOIN tenant t ON t.id = x.tenant_id JOIN workspace w ON w.id = x.workspace_id JOIN " \
	"cluster c ON c.id = x.cluster_id "

#endif

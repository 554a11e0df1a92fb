/* aggregator/store/billing/refund_store.c - losses of workloads in a month: how long the device had been held, and
 * the charges for that time.
 *
 * Rules:
 *  1. a run is the sequence of billing hours without a gap in which the workload held the device, up to the hour of the loss
 *  2. an hour is of one run: of the first loss at or after it
 *  3. the run's start within its first hour follows from the time held in that hour */
#include "aggregator/store/billing/finance.h"

#include <string.h>

#include "aggregator/core/rating/refund.h"
#include "aggregator/core/reports/chargeback.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/period.h"
#include "common/conf/json.h"
#include "common/base/time.h"

/* $1 month, $2 tenant or NULL. */
#define LOST                                                                                                                     \
	"WITH month AS MATERIALIZED (SELECT p.*, l.zone FROM period p, ledger l WHERE p.month = $1), "                           \
	"lost AS MATERIALIZED (SELECT refund_id(x.device_id, x.holder_id, x.ended_ns) AS id, x.*, w.id AS workspace_id, "        \
	"w.name AS workspace, t.name AS tenant, row_number() OVER (ORDER BY t.name COLLATE \"C\", w.name COLLATE \"C\", "        \
	"x.ended_ns, x.device_id, x.holder_id) - 1 AS n FROM month m, LATERAL lost_rows(m.starts_at, m.ends_at) x "              \
	"JOIN holder_attribution a ON a.holder_id = x.holder_id AND a.effective @> hour_of(x.ended_ns - 1) "                     \
	"JOIN workspace w ON w.id = a.workspace_id JOIN tenant t ON t.id = w.tenant_id WHERE $2::text IS NULL OR t.name = $2), " \
	"used AS MATERIALIZED (SELECT u.hour, u.holder_id, u.device_id, u.workspace_id, u.sharing, u.node_id, "                  \
	"sum(u.used + u.idle + u.unmeasured) AS held FROM month m, LATERAL usage_rows(m.starts_at, m.ends_at) u "                \
	"WHERE u.workspace_id IN (SELECT workspace_id FROM lost) GROUP BY 1, 2, 3, 4, 5, 6), "                                   \
	"hours AS MATERIALIZED (SELECT DISTINCT u.hour, u.holder_id, u.device_id FROM used u WHERE u.held > 0 AND "              \
	"(u.holder_id, u.device_id) IN (SELECT holder_id, device_id FROM lost)), "                                               \
	"islands AS MATERIALIZED (SELECT h.*, h.hour - row_number() OVER (PARTITION BY h.holder_id, h.device_id ORDER BY "       \
	"h.hour) * interval '1 hour' AS island FROM hours h), "                                                                  \
	"runs AS MATERIALIZED (SELECT l.n, i.hour, i.holder_id, i.device_id FROM lost l JOIN islands e ON e.holder_id = "        \
	"l.holder_id AND e.device_id = l.device_id AND e.hour = hour_of(l.ended_ns - 1) JOIN islands i ON i.holder_id = "        \
	"l.holder_id AND i.device_id = l.device_id AND i.island = e.island AND i.hour <= e.hour "                                \
	"AND NOT EXISTS (SELECT FROM lost o WHERE o.holder_id = l.holder_id AND o.device_id = l.device_id AND o.ended_ns < "     \
	"l.ended_ns AND hour_of(o.ended_ns - 1) >= i.hour)) "

static const char rows_sql[] = LOST
	"SELECT l.id, l.tenant, l.workspace, (ARRAY['pod', 'slurm_job', 'host_user'])[h.kind], h.user_name, h.slurm_job, h.namespace, "
	"coalesce(nullif(h.pod, ''), h.pod_uid), h.container, c.name, k.name, g.uuid, d.uuid, x.short_model, d.profile, "
	"ns_of(r.first) + greatest(0, CASE WHEN r.first = hour_of(l.ended_ns - 1) THEN l.ended_ns - ns_of(r.first) "
	"ELSE 3600000000000 END - r.held / d.units)::bigint, l.ended_ns, l.cause, coalesce(l.xid::text, ''), f.uuid, "
	"coalesce((SELECT string_agg(a.id::text, ' ' ORDER BY a.id) FROM adjustment a JOIN adjustment_approval y ON y.adjustment_id = a.id "
	"WHERE a.refund = l.id AND NOT EXISTS (SELECT FROM adjustment v JOIN adjustment_approval z ON z.adjustment_id = v.id "
	"WHERE v.reverses = a.id)), '') FROM lost l JOIN holder h ON h.id = l.holder_id JOIN device d ON d.id = l.device_id "
	"JOIN gpu g ON g.id = d.gpu_id JOIN gpu f ON f.id = l.failed_gpu_id JOIN node k ON k.id = l.node_id "
	"JOIN gpu_spec x ON x.gpu_id = g.id AND x.effective @> hour_of(l.ended_ns - 1) JOIN node_cluster y ON y.node_id = k.id "
	"AND y.effective @> hour_of(l.ended_ns - 1) JOIN cluster c ON c.id = y.cluster_id CROSS JOIN LATERAL (SELECT x.first, (SELECT sum(u.held) FROM used u WHERE u.hour = x.first AND u.holder_id = "
	"l.holder_id AND u.device_id = l.device_id) AS held FROM (SELECT min(r.hour) AS first FROM runs r WHERE r.n = l.n) x) r "
	"ORDER BY l.n";

static const char parts_sql[] = LOST
	", kinds AS MATERIALIZED (SELECT u.*, (u.hour AT TIME ZONE m.zone)::date - (m.starts_at AT TIME ZONE m.zone)::date AS day, "
	"c.name AS cluster, g.short_model, d.profile, coalesce(b.version, '') AS version FROM month m, used u "
	"JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour JOIN cluster c ON c.id = k.cluster_id "
	"JOIN device d ON d.id = u.device_id JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour "
	"LEFT JOIN price_book b ON b.effective @> u.hour WHERE u.held > 0), "
	"total AS (SELECT workspace_id, day, cluster, short_model, profile, sharing, version, sum(held) AS held FROM kinds GROUP BY 1, 2, 3, 4, 5, 6, 7) "
	"SELECT r.n, t.day, e.name, w.name, t.cluster, t.short_model, t.profile, sharing_name(t.sharing), t.version, sum(k.held), t.held "
	"FROM runs r JOIN kinds k ON k.hour = r.hour AND k.holder_id = r.holder_id AND k.device_id = r.device_id "
	"JOIN total t ON t.workspace_id = k.workspace_id AND t.day = k.day AND t.cluster = k.cluster AND t.short_model = k.short_model "
	"AND t.profile = k.profile AND t.sharing = k.sharing AND t.version = k.version JOIN workspace w ON w.id = t.workspace_id "
	"JOIN tenant e ON e.id = w.tenant_id GROUP BY r.n, t.day, e.name, w.name, t.cluster, t.short_model, t.profile, t.sharing, t.version, t.held "
	"ORDER BY 1, 2";

/* The text columns; from, until and the computed columns follow. */
static const char *const columns[] = {"id",        "tenant",     "workspace",   "kind",    "user",  "job",
                                      "namespace", "pod",        "container",   "cluster", "node",  "gpu",
                                      "device",    "gpu_model",  "mig_profile", "from",    "until", "cause",
                                      "xid",       "failed_gpu", "credits"};
enum { COLUMN_FROM = 15, COLUMN_UNTIL };

struct refunding {
	PGresult *rows, *part_rows;
	struct refund_part *parts;
	size_t part_count;
	struct refund_charges charges;
};

static void
refunding_fini(struct refunding *w)
{
	PQclear(w->rows);
	PQclear(w->part_rows);
	mem_free(w->parts);
	refund_charges_fini(&w->charges);
}

static bool
load(struct db *db, const struct refund_query *q, struct refunding *w, struct err *err)
{
	static const struct db_stmt month = {"refund month", "SELECT 1 FROM period WHERE month = $1"};
	in_place(db_tx) struct db_tx tx = {0}; /* both lists count alike */
	owned(result) PGresult *known = NULL;
	struct db_args a = {0}, m = {0};

	arg_text(&m, q->period);
	arg_text(&a, q->period);
	arg_text(&a, q->tenant);
	if (!db_tx_begin_read(&tx, db, err) || !db_run(db, &month, &m, &known, err))
		return false;
	if (PQntuples(known) == 0)
		return err_set(err, ERR_MISSING, "the ledger has nothing of period %.40s", q->period);
	if (!db_run_text(db, rows_sql, &a, &w->rows, err) || !db_run_text(db, parts_sql, &a, &w->part_rows, err) ||
	    !db_tx_commit(&tx, err))
		return false;
	w->part_count = (size_t)PQntuples(w->part_rows);
	w->parts = mem_array(w->part_count, sizeof(*w->parts));
	for (int i = 0; i < (int)w->part_count; i++) {
		const PGresult *r = w->part_rows;
		struct refund_part *p = &w->parts[i];

		*p = (struct refund_part){.refund = (size_t)res_i64(r, i, 0),
		                          .day = (int32_t)res_i64(r, i, 1),
		                          .tenant = res_text(r, i, 2),
		                          .workspace = res_text(r, i, 3),
		                          .cluster = res_text(r, i, 4),
		                          .gpu_model = res_text(r, i, 5),
		                          .mig_profile = res_text(r, i, 6),
		                          .sharing_mode = res_text(r, i, 7),
		                          .price_version = res_text(r, i, 8)};
		if (!res_i128(r, i, 9, 0, &p->held, err) || !res_i128(r, i, 10, 0, &p->all, err))
			return false;
	}
	return true;
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	struct refunding *w = arg;

	(void)in;
	return refund_add(&w->charges, view, w->parts, w->part_count, err) || db_damaged(err);
}

/* ---- rows ---- */

/* Column by column, as CSV or as members of an object. */
struct row_out {
	struct buf *out;
	bool csv, first;
};

static void
put(struct row_out *o, const char *name, const char *text)
{
	buf_str(o->out, o->first ? "" : ",");
	o->first = false;
	if (o->csv) {
		csv_text_field(o->out, text);
		return;
	}
	buf_printf(o->out, "\"%s\":", name);
	json_write_string(text, o->out);
}

static void
put_row(const struct refunding *w, int row, const struct refund_charge *c, struct row_out *o)
{
	char text[DECIMAL_TEXT_SIZE > TIME_TEXT_SIZE ? DECIMAL_TEXT_SIZE : TIME_TEXT_SIZE];

	for (int i = 0; i < (int)ARRAY_LEN(columns); i++)
		if (i == COLUMN_FROM || i == COLUMN_UNTIL)
			put(o, columns[i], time_format(res_i64(w->rows, row, i), text));
		else
			put(o, columns[i], res_text(w->rows, row, i));
	put(o, "gpu_hours", decimal_format(c->gpu_ngh, QUANTITY_SCALE, QUANTITY_SCALE, text));
	put(o, "reserved_gpu_hours", decimal_format(c->reserved_ngh, QUANTITY_SCALE, QUANTITY_SCALE, text));
	put(o, "charged", decimal_format(c->charged, c->scale, c->scale, text));
	put(o, "currency", c->currency);
}

static void
write_rows(const struct refunding *w, bool csv, struct buf *out)
{
	size_t count = 0;

	for (int row = 0; row < PQntuples(w->rows); row++) {
		struct refund_charge c;

		for (size_t k = 0; refund_charge_at(&w->charges, (size_t)row, k, &c); k++) {
			struct row_out o = {.out = out, .csv = csv, .first = true};

			if (!csv)
				buf_str(out, count++ > 0 ? ",\n{" : "\n{");
			put_row(w, row, &c, &o);
			buf_str(out, csv ? "\r\n" : "}");
		}
	}
}

bool
store_refunds(struct db *db, const struct refund_query *q, struct buf *out, struct err *err)
{
	in_place(refunding) struct refunding w = {0};

	if (!load(db, q, &w, err) ||
	    (PQntuples(w.rows) > 0 && !store_period_each(db, q->period, q->tenant, add_tenant, &w, err)))
		return false;
	if (q->csv) {
		for (size_t i = 0; i < ARRAY_LEN(columns); i++)
			buf_printf(out, "%s,", columns[i]);
		buf_str(out, "gpu_hours,reserved_gpu_hours,charged,currency\r\n");
		write_rows(&w, true, out);
	} else {
		buf_printf(out, "{\"period\":\"%s\",\"refunds\":[", q->period);
		write_rows(&w, false, out);
		buf_str(out, "]}\n");
	}
	return buf_ok(out, "the refunds", err);
}

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

/* One statement in two parts: $1 month, $2 tenant or NULL. A row for each loss and each kind of time in its run; a loss without a run was not charged.
 * Windows find the runs, because the planner cannot know how many rows a join of these lists has: it once compared every loss with every hour. The outer
 * joins are explained at folded_usage() in sql/. */
static const char runs_sql[] =
	"WITH month AS MATERIALIZED (SELECT p.*, (SELECT l.zone FROM ledger l) AS zone FROM period p WHERE p.month = $1), "
	"lost AS MATERIALIZED (SELECT x.*, w.id AS workspace_id, w.name AS workspace, t.name AS tenant, row_number() OVER (ORDER BY t.name COLLATE \"C\", "
	"w.name COLLATE \"C\", x.ended_ns, x.device_id, x.holder_id) - 1 AS n FROM month m CROSS JOIN LATERAL lost_rows(m.starts_at, m.ends_at) x "
	"LEFT JOIN holder_attribution a ON a.holder_id = x.holder_id AND a.effective @> hour_of(x.ended_ns - 1) "
	"LEFT JOIN workspace w ON w.id = a.workspace_id LEFT JOIN tenant t ON t.id = w.tenant_id "
	"WHERE coalesce(w.id, 0) > 0 AND ($2::text IS NULL OR t.name = $2)), "
	"losses AS (SELECT l.holder_id, l.device_id, array_agg(l.ended_ns) AS ended FROM lost l GROUP BY 1, 2), "
	"used AS (SELECT u.hour, u.holder_id, u.device_id, u.workspace_id, u.sharing, u.node_id, sum(u.used + u.idle + u.unmeasured) AS held "
	"FROM month m CROSS JOIN LATERAL usage_rows(m.starts_at, m.ends_at) u WHERE u.workspace_id IN (SELECT l.workspace_id FROM lost l) "
	"GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(u.used + u.idle + u.unmeasured) > 0), "
	"kinds AS (SELECT u.*, (u.hour AT TIME ZONE m.zone)::date - (m.starts_at AT TIME ZONE m.zone)::date AS day, c.name AS cluster, g.short_model, d.profile, "
	"coalesce(b.version, '') AS version FROM used u CROSS JOIN month m "
	"LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour LEFT JOIN cluster c ON c.id = k.cluster_id "
	"LEFT JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour "
	"LEFT JOIN price_book b ON b.effective @> u.hour), "
	/* An hour's loss is rule 2; total is what its workspace held that day of the same kind. */
	"holds AS (SELECT k.*, sum(k.held) OVER (PARTITION BY k.workspace_id, k.day, k.cluster, k.short_model, k.profile, k.sharing, k.version) AS total, "
	"sum(k.held) OVER (PARTITION BY k.holder_id, k.device_id, k.hour) AS hour_held, "
	"(SELECT min(x) FROM unnest(s.ended) x WHERE hour_of(x - 1) >= k.hour) AS ended_ns "
	"FROM kinds k LEFT JOIN losses s ON s.holder_id = k.holder_id AND s.device_id = k.device_id), "
	/* Rule 1: backwards from the loss, the first hour is the loss's own, and each one is an hour before the next. */
	"places AS (SELECT h.*, h.hour = hour_of(h.ended_ns - 1) - (dense_rank() OVER (PARTITION BY h.holder_id, h.device_id, h.ended_ns ORDER BY h.hour DESC) - 1) "
	"* interval '1 hour' AS in_run FROM holds h WHERE h.ended_ns IS NOT NULL), "
	/* Rule 3. */
	"runs AS (SELECT p.*, first_value(p.hour) OVER run AS first, first_value(p.hour_held) OVER run AS first_held FROM places p WHERE p.in_run "
	"WINDOW run AS (PARTITION BY p.holder_id, p.device_id, p.ended_ns ORDER BY p.hour)), "
	"parts AS (SELECT r.holder_id, r.device_id, r.ended_ns, r.first, r.first_held, r.day, r.workspace_id, r.cluster, r.short_model, r.profile, r.sharing, r.version, "
	"r.total, sum(r.held) AS held FROM runs r WHERE r.cluster IS NOT NULL AND r.short_model IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), "
	"credits AS (SELECT a.refund, string_agg(a.id::text, ' ' ORDER BY a.id) AS ids FROM adjustment a JOIN adjustment_approval y ON y.adjustment_id = a.id "
	"WHERE a.refund IS NOT NULL AND NOT EXISTS (SELECT FROM adjustment v JOIN adjustment_approval z ON z.adjustment_id = v.id WHERE v.reverses = a.id) GROUP BY 1) ";
static const char losses_sql[] =
	"SELECT i.id, l.tenant, l.workspace, (ARRAY['pod', 'slurm_job', 'host_user'])[h.kind], h.user_name, h.slurm_job, h.namespace, "
	"coalesce(nullif(h.pod, ''), h.pod_uid), h.container, c.name, k.name, g.uuid, d.uuid, x.short_model, d.profile, "
	"ns_of(p.first) + greatest(0, CASE WHEN p.first = hour_of(l.ended_ns - 1) THEN l.ended_ns - ns_of(p.first) ELSE 3600000000000 END "
	"- p.first_held / d.units)::bigint, l.ended_ns, l.cause, coalesce(l.xid::text, ''), f.uuid, coalesce(q.ids, ''), "
	"l.n, p.day, e.name, w.name, p.cluster, p.short_model, p.profile, sharing_name(p.sharing), p.version, p.held, p.total "
	"FROM lost l CROSS JOIN LATERAL refund_id(l.device_id, l.holder_id, l.ended_ns) AS i(id) "
	"LEFT JOIN parts p ON p.holder_id = l.holder_id AND p.device_id = l.device_id AND p.ended_ns = l.ended_ns "
	"LEFT JOIN holder h ON h.id = l.holder_id LEFT JOIN device d ON d.id = l.device_id LEFT JOIN gpu g ON g.id = d.gpu_id "
	"LEFT JOIN gpu f ON f.id = l.failed_gpu_id LEFT JOIN node k ON k.id = l.node_id "
	"LEFT JOIN gpu_spec x ON x.gpu_id = d.gpu_id AND x.effective @> hour_of(l.ended_ns - 1) "
	"LEFT JOIN node_cluster y ON y.node_id = l.node_id AND y.effective @> hour_of(l.ended_ns - 1) LEFT JOIN cluster c ON c.id = y.cluster_id "
	"LEFT JOIN workspace w ON w.id = p.workspace_id LEFT JOIN tenant e ON e.id = w.tenant_id "
	"LEFT JOIN credits q ON q.refund = i.id "
	"WHERE coalesce(p.held, 0) > 0 AND coalesce(c.id, 0) > 0 AND coalesce(x.gpu_id, 0) > 0 ORDER BY l.n, p.day";

/* The text columns; from, until and the computed columns follow. */
static const char *const columns[] = {"id",        "tenant",     "workspace",   "kind",    "user",  "job",
                                      "namespace", "pod",        "container",   "cluster", "node",  "gpu",
                                      "device",    "gpu_model",  "mig_profile", "from",    "until", "cause",
                                      "xid",       "failed_gpu", "credits"};
enum { COLUMN_FROM = 15, COLUMN_UNTIL, COLUMN_LOSS = ARRAY_LEN(columns), COLUMN_DAY };

struct refunding {
	PGresult *rows;
	struct refund_part *parts; /* one for each row */
	int *row_of;               /* by refund: its first row */
	size_t refund_count;
	struct refund_charges charges;
};

static void
refunding_fini(struct refunding *w)
{
	PQclear(w->rows);
	mem_free(w->parts);
	mem_free(w->row_of);
	refund_charges_fini(&w->charges);
}

static bool
load(struct db *db, const struct refund_query *q, struct refunding *w, struct err *err)
{
	static const struct db_stmt month = {"refund month", "SELECT 1 FROM period WHERE month = $1"};
	owned(result) PGresult *known = NULL;
	owned(mem) char *sql = mem_printf("%s%s", runs_sql, losses_sql);
	struct db_args a = {0}, m = {0};
	int count;

	arg_text(&m, q->period);
	arg_text(&a, q->period);
	arg_text(&a, q->tenant);
	if (!db_run(db, &month, &m, &known, err))
		return false;
	if (PQntuples(known) == 0)
		return err_set(err, ERR_MISSING, "the ledger has nothing of period %.40s", q->period);
	if (!db_run_text(db, sql, &a, &w->rows, err))
		return false;
	count = PQntuples(w->rows);
	w->parts = mem_array((size_t)count, sizeof(*w->parts));
	w->row_of = mem_array((size_t)count, sizeof(*w->row_of));
	for (int i = 0; i < count; i++) {
		const PGresult *r = w->rows;
		struct refund_part *p = &w->parts[i];

		if (i == 0 || res_i64(r, i, COLUMN_LOSS) != res_i64(r, i - 1, COLUMN_LOSS))
			w->row_of[w->refund_count++] = i;
		*p = (struct refund_part){.refund = w->refund_count - 1,
		                          .day = (int32_t)res_i64(r, i, COLUMN_DAY),
		                          .tenant = res_text(r, i, COLUMN_DAY + 1),
		                          .workspace = res_text(r, i, COLUMN_DAY + 2),
		                          .cluster = res_text(r, i, COLUMN_DAY + 3),
		                          .gpu_model = res_text(r, i, COLUMN_DAY + 4),
		                          .mig_profile = res_text(r, i, COLUMN_DAY + 5),
		                          .sharing_mode = res_text(r, i, COLUMN_DAY + 6),
		                          .price_version = res_text(r, i, COLUMN_DAY + 7)};
		if (!res_i128(r, i, COLUMN_DAY + 8, 0, &p->held, err) ||
		    !res_i128(r, i, COLUMN_DAY + 9, 0, &p->all, err))
			return false;
	}
	return true;
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	struct refunding *w = arg;

	(void)in;
	return refund_add(&w->charges, view, w->parts, (size_t)PQntuples(w->rows), err) || db_damaged(err);
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

	for (size_t i = 0; i < w->refund_count; i++) {
		struct refund_charge c;

		for (size_t k = 0; refund_charge_at(&w->charges, i, k, &c); k++) {
			struct row_out o = {.out = out, .csv = csv, .first = true};

			if (!csv)
				buf_str(out, count++ > 0 ? ",\n{" : "\n{");
			put_row(w, w->row_of[i], &c, &o);
			buf_str(out, csv ? "\r\n" : "}");
		}
	}
}

bool
store_refunds(struct db *db, const struct refund_query *q, struct buf *out, struct err *err)
{
	in_place(refunding) struct refunding w = {0};

	if (!load(db, q, &w, err) ||
	    (w.refund_count > 0 && !store_period_each(db, q->period, q->tenant, add_tenant, &w, err)))
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

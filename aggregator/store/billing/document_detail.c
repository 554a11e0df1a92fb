/* aggregator/store/billing/document_detail.c - the workloads that add up to a line: core/reports/detail.h divides, usage by the hour has the weights. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/reports/detail.h"
#include "aggregator/core/rating/rating.h"
#include "aggregator/core/reports/chargeback.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/document.h"
#include "aggregator/store/billing/period_internal.h"
#include "common/conf/json.h"

#define COLUMNS                                                                                                                  \
	"line_id,day,user,job,namespace,pod,container,node,device,gpu_hours,used_gpu_hours,idle_gpu_hours,unmeasured_gpu_hours," \
	"quantity,unit,list_cost,billed_cost,currency,energy_mj,note,own_quantity,own_unit,own_price"

struct detail {
	struct db *db;
	const struct detail_request *rq;
	struct spill *to;
	bool found;
	int64_t rows;
	PGresult *workloads;
	struct detail_workload *at;
	size_t count;
	PGresult *gone; /* days of the month whose hours were retired */
	char *billed;   /* of a correction: where the line is that it corrects; NULL: nothing had been billed of it */
	bool wanted;    /* the line has workloads */
};

static void
detail_fini(struct detail *d)
{
	PQclear(d->workloads);
	PQclear(d->gone);
	mem_free(d->at);
	mem_free(d->billed);
}

/* For a line without a price, of any price book. For an energy line, all that the workspace held in the cluster;
 * otherwise only that kind of device. All rows of a correction, which has one day for its whole month, are of that
 * day. Outer joins and coalesce(), so that the planner expects the right number of rows (folded_usage() in
 * sql/0012_rollup_functions.sql). */
static const char workloads_sql[] =
	"SELECT CASE WHEN $10 THEN 0 ELSE (u.hour AT TIME ZONE l.zone)::date - (p.starts_at AT TIME ZONE l.zone)::date END, h.user_name, h.slurm_job, h.namespace, "
	"coalesce(nullif(h.pod, ''), h.pod_uid), h.container, d.uuid, n.name, sum(u.used), sum(u.idle), sum(u.unmeasured), sum(u.energy_mj) "
	"FROM ledger l, period p, tenant t JOIN workspace w ON w.tenant_id = t.id, LATERAL usage_rows(p.starts_at, p.ends_at) u "
	"JOIN node n ON n.id = u.node_id LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour LEFT JOIN cluster c ON c.id = k.cluster_id "
	"JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour JOIN holder h ON h.id = u.holder_id LEFT JOIN price_book b ON b.effective @> u.hour "
	"WHERE p.month = $1 AND t.name = $2 AND w.name = $3 AND u.workspace_id = w.id AND coalesce(c.name, '') = $4 "
	"AND ($5::text IS NULL OR coalesce(b.version, '') = $5) AND ($6 OR (coalesce(g.short_model, '') = $7 AND d.profile = $8 AND sharing_name(u.sharing) = $9)) "
	"GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8";

#define MONTH_SIZE 8 /* "2026-11" */

/* The month whose usage a line is of. */
static void
month_of(const struct rating_input *in, const struct rated_line *l, char ret[MONTH_SIZE])
{
	snprintf(ret, MONTH_SIZE, "%.7s", l->correction_of != NULL ? l->period_start : in->period);
}

/* Rule 6 of detail.h: the first line that was billed of what a correction corrects. */
static bool
find_billed(struct detail *d, const struct rating_input *in, const struct rated_line *l, struct err *err)
{
	static const struct db_stmt stmt = {
		"detail billed",
		"SELECT l.closed_in, l.line_id FROM tenant t JOIN invoice i ON i.tenant_id = t.id AND i.month = $2 "
		"JOIN invoice_line l ON l.number = i.number WHERE t.name = $1 AND coalesce(l.correction_of, l.line_id) = $3 "
		"AND l.closed_in < $4 ORDER BY l.number LIMIT 1"};
	owned(result) PGresult *r = NULL;
	char month[MONTH_SIZE];
	struct db_args a = {0};

	month_of(in, l, month);
	arg_text(&a, l->tenant);
	arg_text(&a, month);
	arg_text(&a, l->correction_of);
	arg_text(&a, in->period);
	if (!db_run(d->db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) > 0)
		d->billed = mem_printf("the difference to what was billed; the workloads are those of line %s of %s",
		                       res_text(r, 0, 1), res_text(r, 0, 0));
	return true;
}

static bool
load_gone(struct detail *d, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"detail days gone", "SELECT b.day - $1::date FROM billing_day b WHERE b.hours_gone AND b.day >= "
				    "$1::date AND b.day < $2::date"};
	struct db_args a = {0};

	arg_text(&a, in->period_start);
	arg_text(&a, in->period_end);
	return db_run(d->db, &stmt, &a, &d->gone, err);
}

static bool
load_workloads(struct detail *d, const struct rating_input *in, const struct rated_line *l, struct err *err)
{
	struct db_args a = {0};
	char month[MONTH_SIZE];
	const PGresult *r;

	month_of(in, l, month);
	arg_text(&a, month);
	arg_text(&a, l->tenant);
	arg_text(&a, l->workspace);
	arg_text(&a, l->cluster);
	arg_text(&a, l->price_version[0] != '\0' ? l->price_version : NULL);
	arg_bool(&a, l->kind == CHARGE_ENERGY);
	arg_text(&a, l->gpu_model);
	arg_text(&a, l->mig_profile);
	arg_text(&a, l->sharing_mode);
	arg_bool(&a, l->correction_of != NULL);
	if (!db_run_text(d->db, workloads_sql, &a, &d->workloads, err) || !load_gone(d, in, err))
		return false;
	r = d->workloads;
	d->count = (size_t)PQntuples(r);
	d->at = mem_array(d->count, sizeof(*d->at));
	for (int i = 0; (size_t)i < d->count; i++) {
		d->at[i] = (struct detail_workload){.day = (int32_t)res_i64(r, i, 0),
		                                    .user = res_text(r, i, 1),
		                                    .job = res_text(r, i, 2),
		                                    .namespace = res_text(r, i, 3),
		                                    .pod = res_text(r, i, 4),
		                                    .container = res_text(r, i, 5),
		                                    .device = res_text(r, i, 6),
		                                    .node = res_text(r, i, 7)};
		if (!res_i128(r, i, 8, 0, &d->at[i].used, err) || !res_i128(r, i, 9, 0, &d->at[i].idle, err) ||
		    !res_i128(r, i, 10, 0, &d->at[i].unmeasured, err) ||
		    !res_i128(r, i, 11, 0, &d->at[i].energy_mj, err))
			return false;
	}
	return true;
}

/* ---- a row ---- */

/* Column by column, as CSV or as members of an object. */
struct row_out {
	struct buf *out;
	const char *name; /* of the next column, in COLUMNS */
	bool json, first;
};

static void
put(struct row_out *o, const char *text, bool number)
{
	size_t len = strcspn(o->name, ",");

	buf_str(o->out, o->first ? "" : ",");
	o->first = false;
	if (o->json) {
		buf_printf(o->out, "\"%.*s\":", (int)len, o->name);
		json_write_string(text, o->out);
	} else if (number) {
		csv_field(o->out, text);
	} else {
		csv_text_field(o->out, text);
	}
	o->name += len + (o->name[len] == ',');
}

static void
put_decimal(struct row_out *o, int128 value, int scale, int min_decimals)
{
	char text[DECIMAL_TEXT_SIZE];

	put(o, decimal_format(value, scale, min_decimals, text), true);
}

/* Why a row has no workload. */
static const char *
note_of(const struct detail *d, const struct rated_line *l, const struct detail_row *row)
{
	static const char *const kinds[CHARGE_KINDS] = {
		[CHARGE_USAGE] = "the hours of this day name no workload any more",
		[CHARGE_COVERED] = "the hours of this day name no workload any more",
		[CHARGE_COMMITMENT] = "all that was reserved, whoever used it",
		[CHARGE_UNUSED] = "reserved, and neither used nor lent",
		[CHARGE_UNDELIVERED] = "reserved, and there was no capacity",
		[CHARGE_LENT] = "lent: its workloads are on the borrower's line",
		[CHARGE_DEDICATED] = "held by nobody",
		[CHARGE_SHARED] = "held by nobody: this tenant's part",
		[CHARGE_METER] = "counted by events, which name no workload",
		[CHARGE_ADJUSTMENT] = "a one-off amount",
		[CHARGE_ENERGY] = "of what nobody held",
	};

	if (row->workload != NULL)
		return "";
	if (d->billed != NULL)
		return d->billed;
	for (int i = 0; d->wanted && i < PQntuples(d->gone); i++)
		if (l->correction_of == NULL && res_i64(d->gone, i, 0) == row->day)
			return "the workloads of this day were retired with its hours; the day itself is kept";
	return kinds[l->kind];
}

static void
write_row(const struct detail *d, const struct rated_line *l, const struct detail_row *row)
{
	static const struct detail_workload nobody = {
		.user = "", .job = "", .namespace = "", .pod = "", .container = "", .device = "", .node = ""};
	const struct detail_workload *w = row->workload ? row->workload : &nobody;
	struct row_out o = {.out = spill_buf(d->to), .name = COLUMNS, .json = d->rq->json, .first = true};
	owned(mem) char *unit = rating_unit_text(&l->unit);
	const char *const texts[] = {w->user, w->job, w->namespace, w->pod, w->container, w->node, w->device};

	if (o.json)
		buf_str(o.out, d->rows > 0 ? ",\n{" : "\n{");
	put(&o, l->line_id, false);
	if (l->correction_of != NULL) /* of a whole month */
		put(&o, "", true);
	else
		put_decimal(&o, row->day + 1, 0, 0);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		put(&o, texts[i], false);
	put_decimal(&o, row->ngh, QUANTITY_SCALE, QUANTITY_SCALE);
	put_decimal(&o, row->used_ngh, QUANTITY_SCALE, QUANTITY_SCALE);
	put_decimal(&o, row->idle_ngh, QUANTITY_SCALE, QUANTITY_SCALE);
	put_decimal(&o, row->unmeasured_ngh, QUANTITY_SCALE, QUANTITY_SCALE);
	put_decimal(&o, row->quantity, QUANTITY_SCALE, QUANTITY_SCALE);
	put(&o, unit, false);
	put_decimal(&o, row->list_cost, COST_SCALE, l->currency_scale);
	put_decimal(&o, row->billed, l->currency_scale, l->currency_scale);
	put(&o, l->currency, false);
	put_decimal(&o, row->energy_mj, 0, 0);
	put(&o, note_of(d, l, row), false);
	if (l->own_differs) {
		owned(mem) char *own_unit = rating_own_unit_text(&l->own_unit);

		put_decimal(&o, row->own_quantity, QUANTITY_SCALE, QUANTITY_SCALE);
		put(&o, own_unit, false);
		put_decimal(&o, l->own_price, PRICE_SCALE, l->currency_scale);
	} else {
		for (int i = 0; i < 3; i++)
			put(&o, "", i != 1);
	}
	buf_str(o.out, o.json ? "}" : "\r\n");
}

static bool
write_line(struct detail *d, const struct rating_input *in, const struct rated_line *l, struct err *err)
{
	size_t next = 0;

	if (l->correction_of != NULL && !find_billed(d, in, l, err))
		return false;
	d->wanted = detail_has_workloads(l) && d->billed == NULL;
	if (d->wanted && !load_workloads(d, in, l, err))
		return false;
	for (size_t i = 0; i < l->day_count; i++) {
		owned(mem) struct detail_row *rows = NULL;
		size_t first, n;

		while (next < d->count && d->at[next].day < l->days[i].day)
			next++;
		for (first = next; next < d->count && d->at[next].day == l->days[i].day;)
			next++;
		n = detail_day(l, &l->days[i], d->at + first, next - first, &rows);
		for (size_t k = 0; k < n; k++, d->rows++)
			write_row(d, l, &rows[k]);
		if (!spill_step(d->to, err))
			return false;
	}
	return true;
}

static bool
look_for_line(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct detail *d = arg;

	for (size_t i = 0; i < r->count && !d->found; i++)
		if (strcmp(r->lines[i].line_id, d->rq->line_id) == 0) {
			d->found = true;
			if (!write_line(d, in, &r->lines[i], err))
				return false;
		}
	return true;
}

static bool
begin(void *arg, const struct rating_input *in, struct err *err)
{
	(void)arg;
	(void)in;
	(void)err;
	return true;
}

/* The tenant of the line, if a close has stored it: then no other tenant's month is read. */
static bool
find_tenant(struct db *db, const struct detail_request *rq, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"detail tenant",
		"SELECT t.name FROM invoice_line l JOIN invoice i ON i.number = l.number JOIN tenant t "
		"ON t.id = i.tenant_id WHERE l.closed_in = $1 AND l.line_id = $2 "
		"AND ($3::text IS NULL OR t.name = $3) LIMIT 1"};
	struct db_args a = {0};

	arg_text(&a, rq->period);
	arg_text(&a, rq->line_id);
	arg_text(&a, rq->tenant);
	return db_run(db, &stmt, &a, ret, err);
}

/* Of a closed month the line as it was billed. */
bool
store_detail(struct db *db, const struct detail_request *rq, struct spill *to, int64_t *ret_rows, struct err *err)
{
	struct detail d = {.db = db, .rq = rq, .to = to};
	owned(result) PGresult *tenant = NULL;
	bool ok;

	buf_str(spill_buf(to), rq->json ? "{\"rows\":[" : COLUMNS "\r\n");
	ok = find_tenant(db, rq, &tenant, err) &&
	     period_each(db, rq->period, PQntuples(tenant) > 0 ? res_text(tenant, 0, 0) : rq->tenant, begin,
	                 look_for_line, &d, err);
	detail_fini(&d);
	if (!ok)
		return false;
	if (!d.found)
		return err_set(err, ERR_MISSING, "period %s has no line %.40s", rq->period, rq->line_id);
	buf_str(spill_buf(to), rq->json ? "]}\n" : "");
	*ret_rows = d.rows;
	return buf_ok(spill_buf(to), "the detail of a line", err);
}

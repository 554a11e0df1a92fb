/* aggregator/store/period_read.c - a closed month as it was stored, and the proof that it follows from what it was made of. */
#include <string.h>
#include <unistd.h>

#include "aggregator/core/rating_file.h"
#include "aggregator/store/period_rows.h"
#include "common/gz.h"
#include "common/json.h"

#define SOURCE_MAX (1000u << 20)

static bool
load_document(struct db *db, const char *month, const char *tenant, const char *format, struct buf *out,
              struct err *err)
{
	static const struct db_stmt stmt = {
		"period document read",
		"SELECT encode(d.gzip, 'hex'), encode(d.sha256, 'hex') FROM invoice_document d LEFT JOIN tenant t ON t.id = d.tenant_id "
		"WHERE d.month = $1 AND d.format = $3 AND t.name IS NOT DISTINCT FROM $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	uint8_t *packed;
	size_t n;
	bool ok;

	arg_text(&a, month);
	arg_text(&a, tenant);
	arg_text(&a, format);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return true;
	n = strlen(res_text(r, 0, 0)) / 2;
	packed = mem_array(n, 1);
	ok = hex_decode(res_text(r, 0, 0), packed, n, err) && gz_expand(packed, n, out, err);
	mem_free(packed);
	return ok;
}

static bool
is_closed(struct db *db, const char *month, bool *ret, struct err *err)
{
	static const struct db_stmt stmt = {"period is closed",
	                                    "SELECT status = 'closed' FROM period WHERE month = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret = PQntuples(r) == 1 && res_bool(r, 0, 0);
	return true;
}

bool
store_closed_document(struct db *db, const char *month, const char *tenant, const char *format, struct buf *out,
                      bool *ret_closed, struct err *err)
{
	return is_closed(db, month, ret_closed, err) &&
	       (!*ret_closed || load_document(db, month, tenant, format, out, err));
}

/* The corrections that were billed with the month, as the lines they are. */
static bool
load_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"period corrections billed",
		"SELECT l.line_id, l.correction_of, l.kind, l.priced, l.currency_scale, l.cluster, l.cost_center, l.workspace, l.category, "
		"l.sku, l.gpu_model, l.mig_profile, l.sharing_mode, l.class, l.unit, l.price_version, l.currency, l.counterparty, "
		"l.description, to_char(p.starts_at AT TIME ZONE g.zone, 'YYYY-MM-DD'), to_char(p.ends_at AT TIME ZONE g.zone, "
		"'YYYY-MM-DD'), i.version, i.invoice_id, l.allocated_gpu_hours, l.used_gpu_hours, l.idle_gpu_hours, "
		"l.unmeasured_gpu_hours, l.gpu_hours, l.quantity, l.unit_price, l.list_cost, l.discount, l.rounding, l.billed, l.energy_mj "
		"FROM ledger g, invoice i JOIN invoice_line l ON l.number = i.number JOIN tenant t ON t.id = i.tenant_id "
		"JOIN period p ON p.month = i.month WHERE i.closed_in = $1 AND t.name = $2 AND l.correction_of IS NOT NULL"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct rated_line l = {.kind = (enum charge_kind)res_i64(r, row, 2),
		                       .priced = res_bool(r, row, 3),
		                       .currency_scale = (int)res_i64(r, row, 4),
		                       .invoice_version = (int32_t)res_i64(r, row, 21),
		                       .charge_type = "correction",
		                       .tenant = mem_strdup(tenant)};
		const char **const texts[] = {
			&l.cluster,       &l.cost_center, &l.workspace,    &l.category, NULL,
			&l.gpu_model,     &l.mig_profile, &l.sharing_mode, &l.klass,    &l.unit,
			&l.price_version, &l.currency,    &l.counterparty, NULL,        &l.period_start,
			&l.period_end};
		int64_t *const hours[] = {&l.allocated_ngh,  &l.used_ngh, &l.idle_ngh,
		                          &l.unmeasured_ngh, &l.ngh,      &l.quantity};
		int128 *const amounts[] = {&l.unit_price, &l.list_cost, &l.discount,
		                           &l.rounding,   &l.billed,    &l.energy_mj};
		const int scales[] = {PRICE_SCALE, COST_SCALE, COST_SCALE, COST_SCALE, l.currency_scale, 0};
		int128 v;
		bool ok = true;

		memcpy(l.line_id, res_text(r, row, 0), strnlen(res_text(r, row, 0), sizeof(l.line_id) - 1));
		l.correction_of = mem_strdup(res_text(r, row, 1));
		for (size_t i = 0; i < ARRAY_LEN(texts); i++)
			if (texts[i] != NULL)
				*texts[i] = mem_strdup(res_text(r, row, 5 + (int)i));
		l.sku = mem_strdup(res_text(r, row, 9));
		l.description = mem_strdup(res_text(r, row, 18));
		l.invoice_id = mem_strdup(res_text(r, row, 22));
		for (size_t i = 0; ok && i < ARRAY_LEN(hours); i++) {
			ok = res_i128(r, row, 23 + (int)i, QUANTITY_SCALE, &v, err);
			*hours[i] = ok ? (int64_t)v : 0;
		}
		for (size_t i = 0; ok && i < ARRAY_LEN(amounts); i++)
			ok = res_i128(r, row, 29 + (int)i, scales[i], amounts[i], err);
		l.days = mem_alloc(sizeof(*l.days));
		l.day_count = 1;
		*l.days = (struct rated_day){.ngh = l.ngh,
		                             .used_ngh = l.used_ngh,
		                             .idle_ngh = l.idle_ngh,
		                             .unmeasured_ngh = l.unmeasured_ngh,
		                             .quantity = l.quantity,
		                             .list_cost = l.list_cost,
		                             .discount = l.discount,
		                             .billed = l.billed,
		                             .energy_mj = l.energy_mj};
		corrections_add(ret, &l);
		if (!ok)
			return false;
	}
	corrections_sort(ret);
	return true;
}

static bool
kept_tenant(struct db *db, const char *month, const struct buf *prices, const char *tenant, period_tenant *each,
            void *arg, struct err *err)
{
	in_place(buf) struct buf text;
	in_place(corrections) struct corrections corrections = {0};
	in_place(rated_view) struct rated_view view = {0};
	owned(rating_file) struct rating_file *file = NULL;
	owned(rated) struct rated *rated = NULL;

	buf_init(&text, SOURCE_MAX);
	buf_add(&text, buf_text(prices), prices->len);
	if (!load_document(db, month, tenant, SOURCE_ROWS, &text, err) || !buf_ok(&text, "what was rated", err) ||
	    !rating_file_read(buf_text(&text), text.len, &file, err) ||
	    !load_corrections(db, month, tenant, &corrections, err))
		return false;
	file->in.period_status = "closed";
	if (!rating_run(&file->in, &rated, err))
		return false;
	rated_view_make(&view, rated, corrections.lines, corrections.count);
	return each(arg, &file->in, &view.rated, err);
}

/* Of a closed month, from what was kept. */
static bool
kept_each(struct db *db, const char *month, const char *tenant, report_begin *begin, period_tenant *each, void *arg,
          struct err *err)
{
	static const struct db_stmt tenants = {
		"period kept tenants",
		"SELECT t.name FROM invoice_document d JOIN tenant t ON t.id = d.tenant_id WHERE d.month = $1 "
		"AND d.format = '" SOURCE_ROWS "' AND ($2::text IS NULL OR t.name = $2) ORDER BY t.name COLLATE \"C\""};
	in_place(buf) struct buf prices;
	owned(rating_file) struct rating_file *file = NULL;
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	buf_init(&prices, SOURCE_MAX);
	arg_text(&a, month);
	arg_text(&a, tenant);
	if (!load_document(db, month, NULL, SOURCE_PRICES, &prices, err) || !db_run(db, &tenants, &a, &r, err) ||
	    !rating_file_read(buf_text(&prices), prices.len, &file, err))
		return err_prefix(err, "what period %s was made from", month);
	file->in.period_status = "closed";
	if (!begin(arg, &file->in, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!kept_tenant(db, month, &prices, res_text(r, row, 0), each, arg, err))
			return err_prefix(err, "tenant %s", res_text(r, row, 0));
	return true;
}

/* --- a month that is not closed --- */

struct reading {
	report_begin *begin;
	period_tenant *each;
	void *arg;
	struct corrections corrections;
	size_t next;
};

static bool
read_begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct reading *r = arg;

	return r->begin(r->arg, in, err);
}

/* Tenants come by name: those that have nothing but corrections are between them. NULL: all that are left. */
static bool
read_corrected(struct reading *r, const struct rating_input *in, const char *before, struct err *err)
{
	while (r->next < r->corrections.count &&
	       (before == NULL || strcmp(r->corrections.lines[r->next].tenant, before) < 0)) {
		in_place(rated_view) struct rated_view view = {0};
		const struct rated_line *lines = NULL;
		size_t n = corrections_of(&r->corrections, r->corrections.lines[r->next].tenant, &lines);

		rated_view_make(&view, NULL, lines, n);
		r->next += n;
		if (!r->each(r->arg, in, &view.rated, err))
			return false;
	}
	return true;
}

static bool
read_tenant(void *arg, const struct rating_input *in, struct err *err)
{
	struct reading *r = arg;
	in_place(rated_view) struct rated_view view = {0};
	owned(rated) struct rated *rated = NULL;
	const struct rated_line *lines = NULL;
	struct rating_input empty = *in;
	size_t n;

	empty.days = NULL;
	empty.day_count = 0;
	if (!read_corrected(r, &empty, in->days[0].tenant, err) || !rating_run(in, &rated, err))
		return false;
	n = corrections_of(&r->corrections, in->days[0].tenant, &lines);
	rated_view_make(&view, rated, lines, n);
	r->next += n;
	return r->each(r->arg, in, &view.rated, err);
}

static bool
read_end(void *arg, const struct rating_input *in, struct err *err)
{
	return read_corrected(arg, in, NULL, err);
}

bool
period_each(struct db *db, const char *month, const char *tenant, report_begin *begin, period_tenant *each, void *arg,
            struct err *err)
{
	static const struct report_steps steps = {.begin = read_begin, .each = read_tenant, .end = read_end};
	struct reading r = {.begin = begin, .each = each, .arg = arg};
	bool closed = false, ok;

	if (!is_closed(db, month, &closed, err))
		return false;
	if (closed)
		return kept_each(db, month, tenant, begin, each, arg, err);
	corrections_init(&r.corrections);
	ok = store_corrections(db, month, tenant, &r.corrections, err) &&
	     report_each(db, month, tenant, &steps, &r, err);
	corrections_fini(&r.corrections);
	return ok;
}

static bool
begin_nothing(void *arg, const struct rating_input *in, struct err *err)
{
	(void)arg;
	(void)in;
	(void)err;
	return true;
}

bool
store_period_each(struct db *db, const char *month, const char *tenant, period_tenant *each, void *arg, struct err *err)
{
	return period_each(db, month, tenant, begin_nothing, each, arg, err);
}

/* --- the proof --- */

struct proof {
	struct db *db;
	const char *month;
	struct period_papers all;
	int64_t documents, different;
	struct buf *out;
};

/* The documents that were made now against those that were stored. tenant NULL: all. */
static bool
compare(struct proof *p, struct period_papers *papers, const char *tenant, struct err *err)
{
	static const struct db_stmt stmt = {
		"period document sha",
		"SELECT encode(d.sha256, 'hex') FROM invoice_document d LEFT JOIN tenant t ON t.id = d.tenant_id "
		"WHERE d.month = $1 AND d.format = $3 AND t.name IS NOT DISTINCT FROM $2"};
	struct spill_file files[KEPT_FORMATS];
	bool ok = period_papers_end(papers, files, err);

	for (size_t i = 0; i < KEPT_FORMATS; i++) {
		owned(result) PGresult *r = NULL;
		char sha[2 * SHA256_SIZE + 1];
		struct db_args a = {0};
		bool same;

		if (files[i].fd >= 0)
			close(files[i].fd);
		arg_text(&a, p->month);
		arg_text(&a, tenant);
		arg_text(&a, kept_names[i]);
		if (!ok || !db_run(p->db, &stmt, &a, &r, err)) {
			ok = false;
			continue;
		}
		hex_encode(files[i].sha256, SHA256_SIZE, sha);
		same = PQntuples(r) == 1 && strcmp(res_text(r, 0, 0), sha) == 0;
		p->documents++;
		p->different += !same;
		if (same)
			continue;
		buf_str(p->out, p->different > 1 ? ",{\"tenant\":" : "{\"tenant\":");
		if (tenant != NULL)
			json_write_string(tenant, p->out);
		else
			buf_str(p->out, "null");
		buf_printf(p->out, ",\"format\":\"%s\",\"sha256\":\"%s\",\"recomputed_sha256\":\"%s\"}", kept_names[i],
		           PQntuples(r) == 1 ? res_text(r, 0, 0) : "", sha);
	}
	return ok;
}

static bool
prove_begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct proof *p = arg;

	return period_papers_begin(&p->all, in, err);
}

static bool
prove_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	struct proof *p = arg;
	in_place(period_papers) struct period_papers own = {0};

	return period_papers_begin(&own, in, err) && period_papers_add(&own, in, view, err) &&
	       period_papers_add(&p->all, in, view, err) && compare(p, &own, view->lines[0].tenant, err);
}

bool
store_period_recompute(struct db *db, const char *month, struct buf *out, struct err *err)
{
	static const struct db_stmt late = {"period changed since",
	                                    "SELECT count(*) FROM late_change WHERE month = $1"};
	struct proof p = {.db = db, .month = month, .out = out};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	bool closed = false, ok;

	if (!is_closed(db, month, &closed, err))
		return false;
	if (!closed)
		return err_set(err, ERR_CONFLICT, "period %.40s is not closed: its report is computed at every reading",
		               month);
	arg_text(&a, month);
	buf_printf(out, "{\"period\":\"%s\",\"differences\":[", month);
	ok = db_run(db, &late, &a, &r, err) && kept_each(db, month, NULL, prove_begin, prove_tenant, &p, err) &&
	     compare(&p, &p.all, NULL, err);
	period_papers_fini(&p.all);
	if (ok)
		buf_printf(out, "],\"documents\":%" PRId64 ",\"identical\":%s,\"uncorrected_changes\":%s}\n",
		           p.documents, p.different == 0 ? "true" : "false", res_text(r, 0, 0));
	return ok;
}

/* aggregator/store/billing/period_archive.c - the lines and documents of a month: of a closed one from its archive, of another as they are now. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/rating/rating.h"
#include "aggregator/core/rating/rating_file.h"
#include "aggregator/store/billing/period_internal.h"
#include "common/base/gz.h"

#define ARCHIVE_MAX (1000u << 20)

bool
period_is_closed(struct db *db, const char *month, bool *ret, struct err *err)
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

/* --- documents --- */

#define PIECE "1048576" /* bytes of a stored document that one statement reads */

/* Appends the column, which is in hexadecimal. */
static bool
take_piece(const PGresult *r, int col, struct buf *packed, struct err *err)
{
	const char *hex = res_text(r, 0, col);
	size_t n = strlen(hex) / 2;
	uint8_t *at = (uint8_t *)buf_reserve(packed, n);

	if (at == NULL)
		return buf_ok(packed, "a document", err);
	if (!hex_decode(hex, at, n, err))
		return false;
	buf_commit(packed, n);
	return true;
}

/* Result: lines, rows, joined, its length. packed: its bytes as they are stored, read in pieces. No row: there is no such document. */
static bool
load_document(struct db *db, const char *month, const char *tenant, const char *name, struct buf *packed,
              PGresult **ret, struct err *err)
{
	static const struct db_stmt first = {
		"period document read",
		"SELECT d.lines, coalesce(d.rows, d.lines), d.joined, octet_length(d.gzip), encode(substr(d.gzip, 1, " PIECE
		"), 'hex') "
		"FROM invoice_document d LEFT JOIN tenant t ON t.id = d.tenant_id "
		"WHERE d.month = $1 AND d.format = $3 AND t.name IS NOT DISTINCT FROM $2"};
	static const struct db_stmt next = {
		"period document piece",
		"SELECT encode(substr(d.gzip, $4::integer, " PIECE
		"), 'hex') FROM invoice_document d LEFT JOIN tenant t "
		"ON t.id = d.tenant_id WHERE d.month = $1 AND d.format = $3 AND t.name IS NOT DISTINCT FROM $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, tenant);
	arg_text(&a, name);
	if (!db_run(db, &first, &a, &r, err))
		return false;
	if (PQntuples(r) == 1 && !take_piece(r, 4, packed, err))
		return false;
	while (PQntuples(r) == 1 && (int64_t)packed->len < res_i64(r, 0, 3)) {
		owned(result) PGresult *more = NULL;
		struct db_args at = a;

		arg_i64(&at, (int64_t)packed->len + 1);
		if (!db_run(db, &next, &at, &more, err))
			return false;
		if (PQntuples(more) != 1 || PQgetlength(more, 0, 0) == 0)
			return err_set(err, ERR_RETRY, "a document was removed while it was read");
		if (!take_piece(more, 0, packed, err))
			return false;
	}
	*ret = take(r);
	return true;
}

bool
period_archive_source(struct db *db, const char *month, const char *tenant, const char *name, struct buf *out,
                      struct err *err)
{
	in_place(buf) struct buf packed = {.max = ARCHIVE_MAX};
	owned(result) PGresult *r = NULL;

	return load_document(db, month, tenant, name, &packed, &r, err) &&
	       (PQntuples(r) == 0 || gz_expand(packed.data, packed.len, out, err));
}

struct plain {
	struct spill *to;
	bool skipping; /* the first line */
};

static bool
take_plain(void *arg, const char *data, size_t n, struct err *err)
{
	struct plain *p = arg;
	const char *end = p->skipping && n > 0 ? memchr(data, '\n', n) : NULL;
	size_t skipped = !p->skipping ? 0 : end != NULL ? (size_t)(end - data) + 1 : n;

	p->skipping = p->skipping && end == NULL;
	buf_add(spill_buf(p->to), data + skipped, n - skipped);
	return spill_step(p->to, err);
}

/* skip_line: all but its first line. Memory holds the packed document and one piece of its text. */
static bool
spill_plain(const struct buf *packed, bool skip_line, struct spill *to, struct err *err)
{
	struct plain p = {.to = to, .skipping = skip_line};

	return gz_expand_pieces(packed->data, packed->len, take_plain, &p, err);
}

/* The rows of every tenant, by name. */
static bool
spill_joined(struct db *db, const char *month, const char *name, struct spill *to, struct err *err)
{
	static const struct db_stmt stmt = {
		"period document tenants",
		"SELECT t.name FROM invoice_document d JOIN tenant t ON t.id = d.tenant_id WHERE d.month = $1 AND d.format = $2 "
		"ORDER BY t.name COLLATE \"C\""};
	owned(result) PGresult *tenants = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, name);
	if (!db_run(db, &stmt, &a, &tenants, err))
		return false;
	for (int row = 0; row < PQntuples(tenants); row++) {
		in_place(buf) struct buf packed = {.max = ARCHIVE_MAX};
		owned(result) PGresult *r = NULL;

		if (!load_document(db, month, res_text(tenants, row, 0), name, &packed, &r, err) ||
		    !spill_plain(&packed, true, to, err))
			return err_prefix(err, "%s of %s", name, res_text(tenants, row, 0));
	}
	return true;
}

/* The sums of its invoices, with the corrections that were billed with it. */
static bool
load_sums(struct db *db, const char *month, const char *tenant, struct manifest *m, struct err *err)
{
	static const struct db_stmt stmt = {
		"period document sums",
		"SELECT s.currency, sum(s.list_cost), sum(s.discount), sum(s.rounding), sum(s.billed) FROM invoice i "
		"JOIN invoice_total s ON s.number = i.number JOIN tenant t ON t.id = i.tenant_id "
		"WHERE i.closed_in = $1 AND ($2::text IS NULL OR t.name = $2) GROUP BY 1 ORDER BY 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) > MANIFEST_CURRENCIES)
		return err_set(err, ERR_INVALID, "a document has at most %d currencies", MANIFEST_CURRENCIES);
	m->invoice_version = 1;
	for (int row = 0; row < PQntuples(r); row++) {
		struct manifest_total *t = &m->totals[m->total_count++];

		snprintf(t->currency, sizeof(t->currency), "%s", res_text(r, row, 0));
		if (!currency_exponent(t->currency, &t->scale, err) ||
		    !res_i128(r, row, 1, COST_SCALE, &t->list_cost, err) ||
		    !res_i128(r, row, 2, COST_SCALE, &t->discount, err) ||
		    !res_i128(r, row, 3, COST_SCALE, &t->rounding, err) ||
		    !res_i128(r, row, 4, t->scale, &t->billed, err))
			return false;
	}
	return true;
}

bool
period_archive_document(struct db *db, const char *month, const char *tenant, const char *name, struct spill *to,
                        struct archived_document *ret, struct err *err)
{
	in_place(buf) struct buf packed = {.max = ARCHIVE_MAX};
	owned(result) PGresult *r = NULL;

	if (!load_document(db, month, tenant, name, &packed, &r, err))
		return false;
	ret->found = PQntuples(r) > 0;
	if (!ret->found)
		return true;
	ret->sums.lines = res_i64(r, 0, 0);
	ret->sums.rows = res_i64(r, 0, 1);
	/* The file of billing periods has no lines. */
	return (ret->sums.lines == 0 || load_sums(db, month, tenant, &ret->sums, err)) &&
	       spill_plain(&packed, false, to, err) && (!res_bool(r, 0, 2) || spill_joined(db, month, name, to, err));
}

/* --- lines --- */

bool
period_line_read(const PGresult *r, int row, const char *tenant, struct rated_line *ret, struct err *err)
{
	struct rated_line l = {.kind = (enum charge_kind)res_i64(r, row, LINE_KIND),
	                       .priced = res_bool(r, row, LINE_PRICED),
	                       .currency_scale = (int)res_i64(r, row, LINE_CURRENCY_SCALE),
	                       .discount_ratio = res_i64(r, row, LINE_DISCOUNT_RATIO),
	                       .own_differs = !res_null(r, row, LINE_OWN_UNIT),
	                       .tenant = mem_strdup(tenant),
	                       .sku = mem_strdup(res_text(r, row, LINE_SKU)),
	                       .description = mem_strdup(res_text(r, row, LINE_DESCRIPTION))};
	const struct {
		enum line_column col;
		const char **to;
	} texts[] = {{LINE_CLUSTER, &l.cluster},
	             {LINE_COST_CENTER, &l.cost_center},
	             {LINE_WORKSPACE, &l.workspace},
	             {LINE_CATEGORY, &l.category},
	             {LINE_GPU_MODEL, &l.gpu_model},
	             {LINE_MIG_PROFILE, &l.mig_profile},
	             {LINE_SHARING_MODE, &l.sharing_mode},
	             {LINE_CLASS, &l.klass},
	             {LINE_PRICE_VERSION, &l.price_version},
	             {LINE_CURRENCY, &l.currency},
	             {LINE_COUNTERPARTY, &l.counterparty}};
	const struct {
		enum line_column col;
		int scale;
		int128 *to;
	} numbers[] = {{LINE_UNIT_PRICE, PRICE_SCALE, &l.unit_price},
	               {LINE_DISCOUNT_PRICE, PRICE_SCALE, &l.discount_price},
	               {LINE_OWN_PRICE, PRICE_SCALE, &l.own_price},
	               {LINE_ALLOCATED, QUANTITY_SCALE, &l.allocated_ngh},
	               {LINE_USED, QUANTITY_SCALE, &l.used_ngh},
	               {LINE_IDLE, QUANTITY_SCALE, &l.idle_ngh},
	               {LINE_UNMEASURED, QUANTITY_SCALE, &l.unmeasured_ngh},
	               {LINE_HOURS, QUANTITY_SCALE, &l.ngh},
	               {LINE_QUANTITY, QUANTITY_SCALE, &l.quantity},
	               {LINE_OWN_QUANTITY, QUANTITY_SCALE, &l.own_quantity},
	               {LINE_LIST_COST, COST_SCALE, &l.list_cost},
	               {LINE_DISCOUNT, COST_SCALE, &l.discount},
	               {LINE_ROUNDING, COST_SCALE, &l.rounding},
	               {LINE_BILLED, l.currency_scale, &l.billed},
	               {LINE_ENERGY, 0, &l.energy_mj}};
	bool ok = true;

	memcpy(l.line_id, res_text(r, row, LINE_ID), strnlen(res_text(r, row, LINE_ID), sizeof(l.line_id) - 1));
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		*texts[i].to = mem_strdup(res_text(r, row, (int)texts[i].col));
	l.unit = rating_unit_read(l.kind, res_text(r, row, LINE_UNIT));
	if (l.own_differs)
		l.own_unit = rating_unit_read(l.kind, res_text(r, row, LINE_OWN_UNIT));
	for (size_t i = 0; ok && i < ARRAY_LEN(numbers); i++)
		ok = res_i128(r, row, (int)numbers[i].col, numbers[i].scale, numbers[i].to, err);
	*ret = l;
	return ok;
}

static void
give_one_day(struct rated_line *l)
{
	l->days = mem_alloc(sizeof(*l->days));
	l->day_count = 1;
	*l->days = (struct rated_day){.ngh = l->ngh,
	                              .used_ngh = l->used_ngh,
	                              .idle_ngh = l->idle_ngh,
	                              .unmeasured_ngh = l->unmeasured_ngh,
	                              .quantity = l->quantity,
	                              .own_quantity = l->own_quantity,
	                              .list_cost = l->list_cost,
	                              .discount = l->discount,
	                              .billed = l->billed,
	                              .energy_mj = l->energy_mj};
}

/* The corrections that were billed with the month, as lines. */
static bool
load_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret, struct err *err)
{
	enum { CORRECTION_OF = LINE_COLUMNS, PERIOD_START, PERIOD_END, VERSION, INVOICE_ID, DAYS };
	static const struct db_stmt stmt = {
		"period corrections billed",
		"SELECT l.line_id, " LINE_NAMES ", " LINE_AMOUNTS(
			"l") ", l.correction_of, to_char(p.starts_at AT TIME ZONE g.zone, 'YYYY-MM-DD'), to_char(p.ends_at AT TIME ZONE g.zone, "
			     "'YYYY-MM-DD'), i.version, i.invoice_id, l.days FROM ledger g, invoice i JOIN invoice_line l ON l.number = i.number JOIN tenant t ON t.id = i.tenant_id "
			     "JOIN period p ON p.month = i.month WHERE i.closed_in = $1 AND t.name = $2 AND l.correction_of IS NOT NULL"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct rated_line l = {0};
		bool ok = period_line_read(r, row, tenant, &l, err);

		l.charge_type = "correction";
		l.correction_of = mem_strdup(res_text(r, row, CORRECTION_OF));
		l.period_start = mem_strdup(res_text(r, row, PERIOD_START));
		l.period_end = mem_strdup(res_text(r, row, PERIOD_END));
		l.invoice_version = (int32_t)res_i64(r, row, VERSION);
		l.invoice_id = mem_strdup(res_text(r, row, INVOICE_ID));
		give_one_day(&l);
		if (ok && !res_null(r, row, DAYS))
			ok = correction_days_read(res_text(r, row, DAYS), &l.corrected_days, &l.corrected_day_count,
			                          err);
		corrections_add(ret, &l);
		if (!ok)
			return false;
	}
	corrections_sort(ret);
	return true;
}

/* The charge type of a stored line as a constant text. */
static const char *
charge_type_of(const char *text)
{
	static const char *const types[] = {"usage", "commitment", "covered", "credit", "adjustment", "tax"};

	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (strcmp(types[i], text) == 0)
			return types[i];
	return "";
}

/* The lines of a month that earlier rules rated, as they were billed (core/rating/rating_file.h). Lines that the present rules do not make are added
 * to `more`, on the first day of the month. */
static bool
set_billed(struct db *db, const char *month, const char *tenant, struct rated *rated, struct corrections *more,
           struct err *err)
{
	enum { CHARGE_TYPE = LINE_COLUMNS, INVOICE_ID };
	static const struct db_stmt stmt = {
		"period lines billed",
		"SELECT l.line_id, " LINE_NAMES ", " LINE_AMOUNTS(
			"l") ", l.charge_type, i.invoice_id FROM invoice i JOIN invoice_line l ON l.number = i.number JOIN tenant t ON t.id = i.tenant_id "
			     "WHERE i.closed_in = $1 AND t.name = $2 AND l.correction_of IS NULL ORDER BY l.line_id COLLATE \"C\""};
	in_place(corrections) struct corrections billed = {0};
	owned(mem) bool *found = NULL;
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct rated_line l = {0};
		bool ok = period_line_read(r, row, tenant, &l, err);

		l.charge_type = charge_type_of(res_text(r, row, CHARGE_TYPE));
		l.invoice_id = mem_strdup(res_text(r, row, INVOICE_ID));
		corrections_add(&billed, &l);
		if (!ok)
			return false;
	}
	found = mem_array(billed.count, sizeof(*found));
	rated_set_billed(rated, billed.lines, billed.count, found);
	for (size_t i = 0; i < billed.count; i++) {
		struct rated_line *l;

		if (found[i])
			continue;
		corrections_add_copy(more, &billed.lines[i]);
		l = &more->lines[more->count - 1];
		give_one_day(l);
		if (l->kind == CHARGE_COMMITMENT) /* its parts are on other lines, which have no link to it */
			l->days->amortised = l->billed;
	}
	return true;
}

static bool
archived_tenant(struct db *db, const char *month, const struct buf *prices, const char *tenant, bool other_rules,
                period_tenant *each, void *arg, struct err *err)
{
	in_place(buf) struct buf text = {0};
	in_place(corrections) struct corrections corrections = {0};
	in_place(rated_view) struct rated_view view = {0};
	owned(rating_file) struct rating_file *file = NULL;
	owned(rated) struct rated *rated = NULL;

	buf_init(&text, ARCHIVE_MAX);
	buf_add(&text, buf_text(prices), prices->len);
	if (!period_archive_source(db, month, tenant, SOURCE_ROWS, &text, err) ||
	    !buf_ok(&text, "the rows of a tenant", err) || !rating_file_read(buf_text(&text), text.len, &file, err) ||
	    !load_corrections(db, month, tenant, &corrections, err))
		return false;
	file->in.period_status = "closed";
	if (!rating_run(&file->in, &rated, err))
		return db_damaged(err);
	if (other_rules && !set_billed(db, month, tenant, rated, &corrections, err))
		return false;
	rated_view_make(&view, rated, corrections.lines, corrections.count);
	return each(arg, &file->in, &view.rated, err);
}

bool
period_archive_each(struct db *db, const char *month, const char *tenant, enum archive_as as, report_begin *begin,
                    period_tenant *each, void *arg, struct err *err)
{
	static const struct db_stmt rules = {
		"period kept rules",
		"SELECT (SELECT rating_rules FROM period_close WHERE month = $1) IS DISTINCT FROM $2::bigint"};
	static const struct db_stmt tenants = {
		"period kept tenants",
		"SELECT t.name FROM invoice_document d JOIN tenant t ON t.id = d.tenant_id WHERE d.month = $1 "
		"AND d.format = '" SOURCE_ROWS "' AND ($2::text IS NULL OR t.name = $2) ORDER BY t.name COLLATE \"C\""};
	in_place(buf) struct buf prices = {0};
	owned(rating_file) struct rating_file *file = NULL;
	owned(result) PGresult *r = NULL, *other = NULL;
	struct db_args a = {0}, of_rules = {0};

	buf_init(&prices, ARCHIVE_MAX);
	arg_text(&of_rules, month);
	arg_i64(&of_rules, RATING_RULES);
	arg_text(&a, month);
	arg_text(&a, tenant);
	if (!period_archive_source(db, month, NULL, SOURCE_PRICES, &prices, err) ||
	    !db_run(db, &tenants, &a, &r, err) || !db_run(db, &rules, &of_rules, &other, err) ||
	    !rating_file_read(buf_text(&prices), prices.len, &file, err))
		return err_prefix(err, "the archive of period %s", month);
	file->in.period_status = "closed";
	if (begin != NULL && !begin(arg, &file->in, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!archived_tenant(db, month, &prices, res_text(r, row, 0),
		                     as == ARCHIVE_AS_BILLED && res_bool(other, 0, 0), each, arg, err))
			return err_prefix(err, "tenant %s", res_text(r, row, 0));
	return true;
}

/* --- a month, closed or not --- */

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

	return r->begin == NULL || r->begin(r->arg, in, err);
}

/* Tenants come by name; those with corrections only are between them. before NULL: all that are left. */
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
	if (!read_corrected(r, &empty, in->days[0].tenant, err))
		return false;
	if (!rating_run(in, &rated, err))
		return db_damaged(err);
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

	if (!period_is_closed(db, month, &closed, err))
		return false;
	if (closed)
		return period_archive_each(db, month, tenant, ARCHIVE_AS_BILLED, begin, each, arg, err);
	corrections_init(&r.corrections);
	ok = store_corrections(db, month, tenant, &r.corrections, err) &&
	     report_each(db, month, tenant, &steps, &r, err);
	corrections_fini(&r.corrections);
	return ok;
}

bool
store_period_each(struct db *db, const char *month, const char *tenant, period_tenant *each, void *arg, struct err *err)
{
	return period_each(db, month, tenant, NULL, each, arg, err);
}

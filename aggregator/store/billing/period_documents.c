/* aggregator/store/billing/period_documents.c - the documents of a month, made from its lines tenant by tenant; and, at a close, written with the invoices. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/core/rating/rating.h"
#include "aggregator/core/rating/rating_file.h"
#include "aggregator/core/reports/chargeback.h"
#include "aggregator/store/billing/period_internal.h"

/* --- documents from lines --- */

/* How the document of all tenants is made from those of each. */
enum joining {
	JOIN_ROWS,  /* its first line, and all lines of theirs but the first; up to layout 1 */
	JOIN_PAGES, /* a tenant's page is the same in both; up to layout 1 */
	JOIN_NOT,   /* made from all lines again: it names borrowers, and the tenants' own do not */
	JOIN_NONE,  /* one tenant has none */
};
static const enum joining old_joinings[DOCUMENT_FORMATS] = {
	[DOCUMENT_CSV] = JOIN_ROWS,   [DOCUMENT_EXCEL] = JOIN_ROWS,   [DOCUMENT_FOCUS] = JOIN_NOT,
	[DOCUMENT_HTML] = JOIN_PAGES, [DOCUMENT_PERIODS] = JOIN_NONE, [DOCUMENT_JSON] = JOIN_NOT,
};

/* Months that were closed before facts were archived have the first layout. */
static int64_t
layout_of(const struct period_documents *p)
{
	return p->facts != NULL ? p->facts->frame.layout : 0;
}

static enum joining
joining_of(const struct period_documents *p, enum document_format f)
{
	if (layout_of(p) >= INVOICE_LAYOUT_PRIVATE && old_joinings[f] != JOIN_NONE)
		return JOIN_NOT;
	return old_joinings[f];
}

/* FOCUS files of older layouts had other costs: they stay as stored and are not made again. */
static bool
is_wanted(const struct period_documents *p, enum document_format f)
{
	if (f > DOCUMENT_HTML)
		return false;
	if (f == DOCUMENT_FOCUS || f == DOCUMENT_PERIODS)
		return layout_of(p) >= INVOICE_LAYOUT_FOCUS;
	return p->facts != NULL || f == DOCUMENT_CSV || f == DOCUMENT_JSON;
}

static void
document_draft_fini(struct document_draft *p)
{
	document_free(p->document);
	spill_free(p->spill);
	sha256_drop(p->sha);
	*p = (struct document_draft){0};
}

void
period_documents_fini(struct period_documents *p)
{
	for (size_t i = 0; i < DOCUMENT_FORMATS; i++)
		document_draft_fini(&p->at[i]);
	*p = (struct period_documents){0};
}

void
document_files_close(struct document_file files[DOCUMENT_FORMATS])
{
	for (size_t i = 0; i < DOCUMENT_FORMATS; i++)
		if (files[i].file.fd >= 0)
			close(files[i].file.fd);
}

static void
document_files_none(struct document_file files[DOCUMENT_FORMATS])
{
	for (size_t i = 0; i < DOCUMENT_FORMATS; i++)
		files[i] = (struct document_file){.file = {.fd = -1}};
}

static void
join(struct document_draft *all, const char *text, size_t n)
{
	sha256_add(all->sha, text, n);
	all->bytes += (int64_t)n;
}

bool
period_documents_begin(struct period_documents *p, const struct month_facts *facts, const struct rating_input *in,
                       struct err *err)
{
	*p = (struct period_documents){.facts = facts};
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++) {
		struct document_draft *all = &p->at[f];

		if (!is_wanted(p, f))
			continue;
		if (!spill_new(true, &all->spill, err) ||
		    !document_begin(f, NULL, layout_of(p), facts, in, all->spill, &all->document, err))
			return false;
		if (joining_of(p, f) != JOIN_ROWS)
			continue;
		all->sha = sha256_begin();
		join(all, buf_text(spill_buf(all->spill)), spill_buf(all->spill)->len);
	}
	return true;
}

/* One tenant's document, and its part of the one of all. */
static bool
make_own(struct period_documents *p, enum document_format f, const struct rating_input *in, const char *tenant,
         const struct rated *r, struct document_file *ret, struct err *err)
{
	in_place(document_draft) struct document_draft own = {0};
	struct document_draft *all = &p->at[f];
	struct document_result result;
	struct buf *text;
	size_t begun;

	if (!spill_new(true, &own.spill, err) ||
	    !document_begin(f, tenant, layout_of(p), p->facts, in, own.spill, &own.document, err))
		return false;
	text = spill_buf(own.spill);
	begun = text->len;
	if (!document_tenant(own.document, in, r, err))
		return false;
	if (joining_of(p, f) == JOIN_ROWS)
		join(all, buf_text(text) + begun, text->len - begun);
	else if (joining_of(p, f) == JOIN_PAGES)
		buf_add(spill_buf(all->spill), buf_text(text) + begun, text->len - begun);
	else if (!document_tenant(all->document, in, r, err))
		return false;
	if (!spill_step(all->spill, err) || !document_end(own.document, &result, err) ||
	    !spill_end(own.spill, &ret->file, err))
		return false;
	ret->lines = result.sums.lines;
	ret->rows = result.sums.rows;
	all->lines += ret->lines;
	all->rows += ret->rows;
	return true;
}

bool
period_documents_tenant(struct period_documents *p, const struct rating_input *in, const char *tenant,
                        const struct rated *r, struct document_file ret[DOCUMENT_FORMATS], struct err *err)
{
	document_files_none(ret);
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++)
		if (is_wanted(p, f) && joining_of(p, f) != JOIN_NONE && !make_own(p, f, in, tenant, r, &ret[f], err))
			return err_prefix(err, "%s", document_name(f));
	return true;
}

bool
period_documents_end(struct period_documents *p, struct document_file ret[DOCUMENT_FORMATS], struct err *err)
{
	document_files_none(ret);
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++) {
		struct document_draft *all = &p->at[f];
		struct document_result result;

		if (!is_wanted(p, f))
			continue;
		if (!document_end(all->document, &result, err) || !spill_end(all->spill, &ret[f].file, err))
			return false;
		ret[f].lines = all->lines;
		ret[f].rows = joining_of(p, f) == JOIN_NONE ? result.sums.rows : all->rows;
		ret[f].joined = joining_of(p, f) == JOIN_ROWS;
		if (!ret[f].joined)
			continue;
		ret[f].file.plain_len = all->bytes;
		sha256_end(all->sha, ret[f].file.sha256);
		all->sha = NULL;
	}
	return true;
}

/* --- written by a close: invoices --- */

#define COPY_MAX (256u << 20) /* of one tenant's lines */
#define PARTS_MAX (64u << 10) /* of one correction */
#define DOCUMENT_MAX (1000u << 20)
#define COPY_SQL                                                                                                              \
	"COPY invoice_line (number, closed_in, line_id, correction_of, kind, priced, currency_scale, cluster, cost_center, "  \
	"workspace, charge_type, category, sku, gpu_model, mig_profile, sharing_mode, class, unit, price_version, currency, " \
	"counterparty, description, allocated_gpu_hours, used_gpu_hours, idle_gpu_hours, unmeasured_gpu_hours, gpu_hours, "   \
	"quantity, unit_price, list_cost, discount, rounding, billed, energy_mj, discount_price, discount_ratio, "            \
	"own_unit, own_quantity, own_price, days) "                                                                           \
	"FROM STDIN (FORMAT csv, NULL '\\N')"

static void
add_text(struct buf *b, const char *text)
{
	buf_char(b, ',');
	csv_field(b, text != NULL ? text : "");
}

static void
add_number(struct buf *b, int128 v, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_char(b, ',');
	buf_str(b, decimal_format(v, scale, 0, text));
}

static void
add_parts(struct buf *b, const struct rated_line *l)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, PARTS_MAX);
	if (l->corrected_days != NULL)
		correction_days_write(l, &text);
	if (l->corrected_days == NULL || text.over)
		buf_str(b, ",\\N");
	else
		add_text(b, buf_text(&text));
}

static void
add_line(struct buf *b, const struct period_writer *w, const struct rated_line *l)
{
	owned(mem) char *unit = rating_unit_text(&l->unit);

	buf_printf(b, "%" PRId64 ",%s,%s,%s,%d,%s,%d", w->number, w->month, l->line_id,
	           l->correction_of != NULL ? l->correction_of : "\\N", (int)l->kind, l->priced ? "t" : "f",
	           l->currency_scale);
	add_text(b, l->cluster);
	add_text(b, l->cost_center);
	add_text(b, l->workspace);
	add_text(b, l->charge_type);
	add_text(b, l->category);
	add_text(b, l->sku);
	add_text(b, l->gpu_model);
	add_text(b, l->mig_profile);
	add_text(b, l->sharing_mode);
	add_text(b, l->klass);
	add_text(b, unit);
	add_text(b, l->price_version);
	add_text(b, l->currency);
	add_text(b, l->counterparty);
	add_text(b, l->description);
	add_number(b, l->allocated_ngh, QUANTITY_SCALE);
	add_number(b, l->used_ngh, QUANTITY_SCALE);
	add_number(b, l->idle_ngh, QUANTITY_SCALE);
	add_number(b, l->unmeasured_ngh, QUANTITY_SCALE);
	add_number(b, l->ngh, QUANTITY_SCALE);
	add_number(b, l->quantity, QUANTITY_SCALE);
	add_number(b, l->unit_price, PRICE_SCALE);
	add_number(b, l->list_cost, COST_SCALE);
	add_number(b, l->discount, COST_SCALE);
	add_number(b, l->rounding, COST_SCALE);
	add_number(b, l->billed, l->currency_scale);
	add_number(b, l->energy_mj, 0);
	add_number(b, l->discount_price, PRICE_SCALE);
	add_number(b, l->discount_ratio, 0);
	if (l->own_differs) {
		owned(mem) char *own_unit = rating_own_unit_text(&l->own_unit);

		add_text(b, own_unit);
		add_number(b, l->own_quantity, QUANTITY_SCALE);
		add_number(b, l->own_price, PRICE_SCALE);
	} else {
		buf_str(b, ",\\N,\\N,\\N");
	}
	add_parts(b, l);
	buf_char(b, '\n');
}

/* One total per currency of the lines first to end. */
static bool
write_totals(struct period_writer *w, const struct rated_line *lines, size_t n, struct err *err)
{
	static const struct db_stmt stmt = {
		"period total", "INSERT INTO invoice_total VALUES ($1, $2, $3, $4::numeric, $5::numeric, $6::numeric, "
				"$7::numeric, $8::numeric)"};

	for (size_t i = 0; i < n; i++) {
		char text[5][DECIMAL_TEXT_SIZE];
		int128 sum[5] = {0};
		struct db_args a = {0};
		int64_t count = 0;
		bool first = true;

		for (size_t j = 0; j < i; j++)
			first &= strcmp(lines[j].currency, lines[i].currency) != 0;
		for (size_t j = i; first && j < n; j++) {
			const struct rated_line *l = &lines[j];

			if (strcmp(l->currency, lines[i].currency) != 0)
				continue;
			count++;
			sum[0] += l->allocated_ngh;
			sum[1] += l->list_cost;
			sum[2] += l->discount;
			sum[3] += l->rounding;
			sum[4] += l->billed;
		}
		if (!first)
			continue;
		arg_i64(&a, w->number);
		arg_text(&a, lines[i].currency);
		arg_i64(&a, count);
		for (size_t k = 0; k < 5; k++)
			arg_text(&a, decimal_format(sum[k],
			                            k == 0  ? QUANTITY_SCALE
			                            : k < 4 ? COST_SCALE
			                                    : lines[i].currency_scale,
			                            0, text[k]));
		if (!db_run(w->db, &stmt, &a, NULL, err))
			return false;
	}
	return true;
}

static bool
write_invoice(struct period_writer *w, int64_t tenant_id, const char *month, int32_t version,
              const struct rated_line *lines, size_t n, struct err *err)
{
	static const struct db_stmt stmt = {
		"period invoice", "INSERT INTO invoice (number, tenant_id, month, version, closed_in, invoice_id) "
				  "VALUES ($1, $2, $3, $4, $5, $6)"};
	in_place(buf) struct buf rows = {0};
	struct db_args a = {0};

	buf_init(&rows, COPY_MAX);
	w->number++;
	arg_i64(&a, w->number);
	arg_i64(&a, tenant_id);
	arg_text(&a, month);
	arg_i64(&a, version);
	arg_text(&a, w->month);
	arg_text(&a, lines[0].invoice_id);
	if (!db_run(w->db, &stmt, &a, NULL, err) || !write_totals(w, lines, n, err))
		return false;
	for (size_t i = 0; i < n; i++)
		add_line(&rows, w, &lines[i]);
	w->invoices++;
	w->lines += (int64_t)n;
	return buf_ok(&rows, "the lines of an invoice", err) && db_copy_begin(w->db, COPY_SQL, err) &&
	       db_copy_put(w->db, buf_text(&rows), rows.len, err) && db_copy_end(w->db, err);
}

/* Lines of one invoice are neighbours: the month's own, then corrections month by month. */
static bool
write_invoices(struct period_writer *w, const struct rating_input *in, int64_t tenant_id, const struct rated *view,
               struct err *err)
{
	for (size_t i = 0, n; i < view->count; i += n) {
		const struct rated_line *l = &view->lines[i];
		char month[8] = "";
		bool correction = l->correction_of != NULL;

		for (n = 1; i + n < view->count && strcmp(view->lines[i + n].invoice_id, l->invoice_id) == 0; n++)
			;
		memcpy(month, correction ? l->period_start : in->period, 7);
		w->corrections += correction ? (int64_t)n : 0;
		if (!write_invoice(w, tenant_id, month, correction ? l->invoice_version : in->invoice_version, l, n,
		                   err))
			return err_prefix(err, "invoice %s", l->invoice_id);
	}
	return true;
}

/* --- written by a close: documents --- */

static bool
read_file(const struct spill_file *f, struct buf *out, struct err *err)
{
	char piece[65536];
	ssize_t n;

	while ((n = read(f->fd, piece, sizeof(piece))) > 0)
		buf_add(out, piece, (size_t)n);
	return n == 0 ? buf_ok(out, "a document", err) : err_errno(err, ERR_RETRY, errno, "reading a temporary file");
}

static bool
write_document(struct period_writer *w, const char *tenant_id, const char *name, const struct document_file *k,
               struct err *err)
{
	static const struct db_stmt stmt = {
		"period document",
		"INSERT INTO invoice_document (month, tenant_id, format, lines, rows, joined, plain_bytes, sha256, gzip) "
		"VALUES ($1, $2::integer, $3, $4, $5, $6, $7, $8, $9)"};
	in_place(buf) struct buf packed = {0};
	struct db_args a = {0};

	buf_init(&packed, DOCUMENT_MAX);
	if (!read_file(&k->file, &packed, err))
		return false;
	sha256_add(w->output, k->file.sha256, sizeof(k->file.sha256));
	arg_text(&a, w->month);
	arg_text(&a, tenant_id);
	arg_text(&a, name);
	arg_i64(&a, k->lines);
	arg_i64(&a, k->rows);
	arg_bool(&a, k->joined);
	arg_i64(&a, k->file.plain_len);
	arg_bytes(&a, k->file.sha256, sizeof(k->file.sha256));
	arg_bytes(&a, buf_text(&packed), packed.len);
	return db_run(w->db, &stmt, &a, NULL, err);
}

static bool
write_documents(struct period_writer *w, const char *tenant_id, const struct document_file files[DOCUMENT_FORMATS],
                struct err *err)
{
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++)
		if (files[f].file.fd >= 0 && !write_document(w, tenant_id, document_name(f), &files[f], err))
			return false;
	return true;
}

/* An input of the documents, archived with them. */
static bool
write_source(struct period_writer *w, const char *tenant_id, const char *format, const struct buf *text, int64_t lines,
             struct err *err)
{
	owned(spill) struct spill *s = NULL;
	struct document_file k = {.file = {.fd = -1}, .lines = lines, .rows = lines};
	bool ok;

	if (!buf_ok(text, format, err) || !spill_new(true, &s, err))
		return false;
	buf_add(spill_buf(s), buf_text(text), text->len);
	ok = spill_end(s, &k.file, err) && write_document(w, tenant_id, format, &k, err);
	if (k.file.fd >= 0)
		close(k.file.fd);
	return ok;
}

static bool
write_rows(struct period_writer *w, const struct rating_input *in, const char *tenant_id, struct err *err)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, COPY_MAX);
	rating_file_rows(in, &text);
	sha256_add(w->input, buf_text(&text), text.len);
	return write_source(w, tenant_id, SOURCE_ROWS, &text, (int64_t)in->day_count, err);
}

bool
period_write_tenant(struct period_writer *w, const struct rating_input *in, const char *tenant,
                    const struct rated *view, struct err *err)
{
	static const struct db_stmt stmt = {"period tenant", "SELECT id FROM tenant WHERE name = $1"};
	struct document_file files[DOCUMENT_FORMATS];
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	bool ok;

	arg_text(&a, tenant);
	if (!db_run(w->db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_FATAL, "tenant %s has lines and is not in the ledger", tenant);
	if (!write_rows(w, in, res_text(r, 0, 0), err) || !write_invoices(w, in, res_i64(r, 0, 0), view, err))
		return false;
	ok = period_documents_tenant(&w->documents, in, tenant, view, files, err) &&
	     write_documents(w, res_text(r, 0, 0), files, err);
	document_files_close(files);
	return ok;
}

bool
period_write_all(struct period_writer *w, const struct rating_input *in, const struct buf *facts, struct err *err)
{
	struct document_file files[DOCUMENT_FORMATS];
	in_place(buf) struct buf prices = {0};
	bool ok;

	buf_init(&prices, COPY_MAX);
	rating_file_prices(in, &prices);
	sha256_add(w->input, buf_text(facts), facts->len);
	if (!write_source(w, NULL, SOURCE_PRICES, &prices, (int64_t)in->book_count, err) ||
	    !write_source(w, NULL, SOURCE_FACTS, facts, 0, err))
		return false;
	ok = period_documents_end(&w->documents, files, err) && write_documents(w, NULL, files, err);
	document_files_close(files);
	return ok;
}

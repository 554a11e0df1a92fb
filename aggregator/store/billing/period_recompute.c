/* aggregator/store/billing/period_recompute.c - the documents of a closed month, made again from their archived input and compared with the stored bytes. */
#include <string.h>
#include <unistd.h>

#include "aggregator/store/billing/period_internal.h"
#include "common/conf/json.h"

#define FACTS_MAX (256u << 20)

struct recompute {
	struct db *db;
	const char *month;
	const struct month_facts *facts; /* NULL: closed before facts were archived */
	struct period_documents documents;
	int64_t compared, different;
	bool made[DOCUMENT_FORMATS]; /* there is one of the format */
	struct buf *out;
};

static void
add_difference(struct recompute *p, const char *tenant, enum document_format f, const char *was, const char *is)
{
	buf_str(p->out, p->different++ > 0 ? ",{\"tenant\":" : "{\"tenant\":");
	if (tenant != NULL)
		json_write_string(tenant, p->out);
	else
		buf_str(p->out, "null");
	buf_printf(p->out, ",\"format\":\"%s\",\"sha256\":\"%s\",\"recomputed_sha256\":\"%s\"}", document_name(f), was,
	           is);
}

/* Compares the documents made now with the stored ones. tenant NULL: of all. */
static bool
compare(struct recompute *p, const struct document_file files[DOCUMENT_FORMATS], const char *tenant, struct err *err)
{
	static const struct db_stmt stmt = {
		"period document sha",
		"SELECT encode(d.sha256, 'hex'), d.plain_bytes FROM invoice_document d LEFT JOIN tenant t ON t.id = d.tenant_id "
		"WHERE d.month = $1 AND d.format = $3 AND t.name IS NOT DISTINCT FROM $2"};

	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++) {
		owned(result) PGresult *r = NULL;
		char sha[2 * SHA256_SIZE + 1];
		struct db_args a = {0};

		if (files[f].file.fd < 0)
			continue;
		arg_text(&a, p->month);
		arg_text(&a, tenant);
		arg_text(&a, document_name(f));
		if (!db_run(p->db, &stmt, &a, &r, err))
			return false;
		hex_encode(files[f].file.sha256, SHA256_SIZE, sha);
		p->compared++;
		p->made[f] = true;
		if (PQntuples(r) != 1 || strcmp(res_text(r, 0, 0), sha) != 0 ||
		    res_i64(r, 0, 1) != files[f].file.plain_len)
			add_difference(p, tenant, f, PQntuples(r) == 1 ? res_text(r, 0, 0) : "", sha);
	}
	return true;
}

static bool
recompute_begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct recompute *p = arg;

	return period_documents_begin(&p->documents, p->facts, in, err);
}

static bool
recompute_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	struct recompute *p = arg;
	const char *tenant = view->lines[0].tenant;
	struct document_file files[DOCUMENT_FORMATS];
	bool ok =
		period_documents_tenant(&p->documents, in, tenant, view, files, err) && compare(p, files, tenant, err);

	document_files_close(files);
	return ok;
}

/* Compares the stored bytes with the stored SHA-256, of joined documents too. */
static bool
check_stored(struct recompute *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"period documents stored",
		"SELECT t.name, d.format, encode(d.sha256, 'hex'), d.plain_bytes FROM invoice_document d LEFT JOIN tenant t "
		"ON t.id = d.tenant_id WHERE d.month = $1 AND d.format NOT LIKE 'source.%' ORDER BY t.name COLLATE \"C\" NULLS LAST, 2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, p->month);
	if (!db_run(p->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const char *tenant = res_null(r, row, 0) ? NULL : res_text(r, row, 0);
		owned(spill) struct spill *spill = NULL;
		struct archived_document stored = {0};
		struct spill_file file;
		char sha[2 * SHA256_SIZE + 1];

		if (!spill_new(false, &spill, err) ||
		    !period_archive_document(p->db, p->month, tenant, res_text(r, row, 1), spill, &stored, err) ||
		    !spill_end(spill, &file, err))
			return false;
		close(file.fd);
		hex_encode(file.sha256, SHA256_SIZE, sha);
		for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++)
			if (strcmp(document_name(f), res_text(r, row, 1)) == 0 && strcmp(sha, res_text(r, row, 2)) != 0)
				add_difference(p, tenant, f, res_text(r, row, 2), sha);
	}
	return true;
}

static bool
recompute(struct recompute *p, struct err *err)
{
	struct document_file files[DOCUMENT_FORMATS];
	bool ok;

	if (!period_archive_each(p->db, p->month, NULL, ARCHIVE_AS_RATED_NOW, recompute_begin, recompute_tenant, p,
	                         err))
		return false;
	ok = period_documents_end(&p->documents, files, err) && compare(p, files, NULL, err) && check_stored(p, err);
	document_files_close(files);
	return ok;
}

bool
store_period_recompute(struct db *db, const char *month, struct buf *out, struct err *err)
{
	static const struct db_stmt late = {"period changed since",
	                                    "SELECT (SELECT count(*) FROM late_change WHERE month = $1), "
	                                    "coalesce((SELECT rating_rules FROM period_close WHERE month = $1), 1)"};
	owned(month_facts) struct month_facts *facts = NULL;
	in_place(buf) struct buf text = {0};
	struct recompute p = {.db = db, .month = month, .out = out};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	bool closed = false, ok;

	buf_init(&text, FACTS_MAX);
	if (!period_is_closed(db, month, &closed, err))
		return false;
	if (!closed)
		return err_set(err, ERR_CONFLICT, "period %.40s is not closed: its report is computed at every reading",
		               month);
	if (!period_archive_source(db, month, NULL, SOURCE_FACTS, &text, err) ||
	    (text.len > 0 && !month_facts_read(buf_text(&text), text.len, &facts, err)))
		return err_prefix(err, "the facts of period %s", month);
	p.facts = facts;
	arg_text(&a, month);
	if (!db_run(db, &late, &a, &r, err))
		return false;
	if (res_i64(r, 0, 1) != RATING_RULES)
		return err_set(
			err, ERR_CONFLICT,
			"period %.40s was rated by rules %s of an earlier release, and this one has rules %d: it is not computed again. Its "
			"documents are as they were stored; verify checks their bytes",
			month, res_text(r, 0, 1), RATING_RULES);
	buf_printf(out, "{\"period\":\"%s\",\"differences\":[", month);
	ok = recompute(&p, err);
	period_documents_fini(&p.documents);
	if (!ok)
		return false;
	buf_printf(out, "],\"documents\":%" PRId64 ",\"formats\":[", p.compared);
	for (enum document_format f = 0, n = 0; f < DOCUMENT_FORMATS; f++)
		if (p.made[f])
			buf_printf(out, "%s\"%s\"", n++ > 0 ? "," : "", document_name(f));
	buf_printf(out, "],\"identical\":%s,\"uncorrected_changes\":%s}\n", p.different == 0 ? "true" : "false",
	           res_text(r, 0, 0));
	return true;
}

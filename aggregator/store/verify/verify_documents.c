/* aggregator/store/verify/verify_documents.c - closed months of a range: the record of the close, documents, invoice
 * lines, and changes since.
 *
 * Rules, in order:
 *  1. a closed month has its record, and the record matches the entry of the audit log: actor, reason, objections
 *     overruled, hashes
 *  2. every document has the bytes of its SHA-256, and the hashes of all of them, in their order, give the record's
 *     output hash
 *  3. every line of every invoice is in the chargeback CSV of its tenant with the same amounts, and the CSV has no
 *     other line
 *  4. totals are the sums of their lines
 *  5. every line equals the result of rating the month's days, events and prices a second time (verify_lines.c),
 *     unless late_change announces a correction, or the month was rated by the rules of another release: such a month
 *     is only counted, and the journal covers it */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/store/rollup/charges.h"
#include "aggregator/store/billing/period_internal.h"
#include "aggregator/store/verify/verify_ledger.h"

#define SOURCE_MAX (1000u << 20)

/* --- rules 1 and 4 --- */

static const char close_sql[] =
	"WITH said AS (SELECT substr(a.subject, 8) AS month, a.actor, coalesce(a.reason, '') AS reason, a.after FROM audit_log a WHERE a.action = "
	"'period.close' AND a.subject LIKE 'period %') "
	"SELECT 'close', 'period ' || p.month || ': ' || x.name, x.said, x.found FROM period p LEFT JOIN period_close c ON c.month = p.month LEFT JOIN "
	"said s ON s.month = p.month CROSS JOIN LATERAL (VALUES "
	"('its status and its record', CASE WHEN c.month IS NULL THEN 'not closed' ELSE 'closed at ' || c.closed_at END, CASE WHEN p.status = 'closed' "
	"THEN 'closed at ' || p.closed_at ELSE 'not closed' END), "
	"('the entry of the audit log', CASE WHEN s.month IS NULL THEN 'none' ELSE 'closed' END, CASE WHEN c.month IS NULL THEN 'none' ELSE 'closed' END), "
	"('actor', s.actor, c.actor), ('reason', s.reason, c.reason), ('checks', s.after -> 'checks' #>> '{}', c.checks #>> '{}'), "
	"('price_versions', s.after -> 'price_versions' #>> '{}', to_jsonb(c.price_versions) #>> '{}'), "
	"('input_sha256', s.after ->> 'input_sha256', encode(c.input_sha256, 'hex')), "
	"('prices_sha256', s.after ->> 'prices_sha256', encode(c.prices_sha256, 'hex')), "
	"('output_sha256', s.after ->> 'output_sha256', encode(c.output_sha256, 'hex'))) AS x(name, said, found) "
	"WHERE p.starts_at >= $1 AND p.starts_at < $2 AND x.said IS DISTINCT FROM x.found "
	"UNION ALL SELECT 'period-bounds', 'the bounds of period ' || p.month, b.starts_at || ' to ' || b.ends_at, p.starts_at || ' to ' || p.ends_at FROM "
	"period p, ledger l, LATERAL (SELECT (p.month || '-01')::timestamp AT TIME ZONE l.zone AS starts_at, ((p.month || '-01')::timestamp + interval "
	"'1 month') AT TIME ZONE l.zone AS ends_at) b WHERE p.starts_at >= $1 AND p.starts_at < $2 AND (p.starts_at, p.ends_at) IS DISTINCT FROM "
	"(b.starts_at, b.ends_at) "
	"UNION ALL SELECT 'total', 'invoice ' || i.invoice_id || ', ' || coalesce(t.currency, s.currency), s.row::text, t.row::text FROM invoice i JOIN "
	"period p ON p.month = i.closed_in LEFT JOIN LATERAL (SELECT l.currency, (count(*), sum(l.allocated_gpu_hours), sum(l.list_cost), sum(l.discount), "
	"sum(l.rounding), sum(l.billed)) AS row FROM invoice_line l WHERE l.number = i.number GROUP BY 1) s ON true FULL JOIN LATERAL (SELECT t.currency, "
	"(t.lines, t.allocated_gpu_hours, t.list_cost, t.discount, t.rounding, t.billed) AS row, t.number FROM invoice_total t) t ON t.number = i.number AND "
	"t.currency = s.currency WHERE i.number IS NULL OR (p.starts_at >= $1 AND p.starts_at < $2 AND s.row IS DISTINCT FROM t.row)";

static bool
check_records(struct verify_node *n, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) || !db_run_text(n->db, close_sql, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		verify_report_text(n, res_text(r, row, 0), NULL, INT64_MIN, res_text(r, row, 1), res_text(r, row, 2),
		                   res_text(r, row, 3));
	return db_tx_commit(&tx, err);
}

/* --- rule 2 --- */

/* A document's plain bytes as a file; a table of all tenants is put together from theirs. */
static bool
read_document(struct db *db, const char *month, const char *tenant, const char *format, struct spill_file *ret,
              struct err *err)
{
	owned(spill) struct spill *spill = NULL;
	struct archived_document kept = {0};

	if (!spill_new(false, &spill, err))
		return false;
	if (strncmp(format, "source.", 7) == 0) {
		in_place(buf) struct buf text = {0};

		buf_init(&text, SOURCE_MAX);
		if (!period_archive_source(db, month, tenant, format, &text, err))
			return false;
		buf_add(spill_buf(spill), buf_text(&text), text.len);
	} else if (!period_archive_document(db, month, tenant, format, spill, &kept, err)) {
		return false;
	}
	return spill_end(spill, ret, err);
}

static void
report_document(struct verify_node *n, const char *month, const char *tenant, const char *format, const char *expected,
                const char *found)
{
	char what[320];

	snprintf(what, sizeof(what), "%s of period %s, %s%.64s", format, month,
	         tenant != NULL ? "tenant " : "all tenants", tenant != NULL ? tenant : "");
	verify_report_text(n, "document", NULL, INT64_MIN, what, expected, found);
}

static bool
check_documents(struct verify_node *n, const char *month, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify documents",
		"SELECT t.name, d.format, encode(d.sha256, 'hex'), d.plain_bytes, encode(c.output_sha256, 'hex') FROM invoice_document d LEFT JOIN tenant t "
		"ON t.id = d.tenant_id LEFT JOIN period_close c ON c.month = d.month WHERE d.month = $1 ORDER BY t.name COLLATE \"C\" NULLS LAST, "
		"array_position($2::text[], d.format)"};
	struct sha256_state *all = sha256_begin();
	struct db_array order;
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	uint8_t output[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1];
	bool ok;

	db_array_init(&order);
	array_text(&order, SOURCE_ROWS);
	array_text(&order, SOURCE_PRICES);
	array_text(&order, SOURCE_FACTS);
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++)
		array_text(&order, document_name(f));
	arg_text(&a, month);
	arg_array(&a, &order);
	ok = db_run(n->db, &stmt, &a, &r, err);
	for (int row = 0; ok && row < PQntuples(r); row++) {
		const char *tenant = res_null(r, row, 0) ? NULL : res_text(r, row, 0);
		struct spill_file file = {.fd = -1};
		struct err why = {0};

		n->report->counts.documents++;
		/* Bytes that are not gzip any more are a difference; the verification goes on. */
		if (!read_document(n->db, month, tenant, res_text(r, row, 1), &file, &why)) {
			report_document(n, month, tenant, res_text(r, row, 1), res_text(r, row, 2), why.text);
			continue;
		}
		close(file.fd);
		hex_encode(file.sha256, SHA256_SIZE, hex);
		sha256_add(all, file.sha256, SHA256_SIZE);
		if (strcmp(hex, res_text(r, row, 2)) != 0 || file.plain_len != res_i64(r, row, 3))
			report_document(n, month, tenant, res_text(r, row, 1), res_text(r, row, 2), hex);
	}
	sha256_end(all, output);
	db_array_fini(&order);
	hex_encode(output, SHA256_SIZE, hex);
	if (ok && PQntuples(r) > 0 && strcmp(hex, res_text(r, 0, 4)) != 0)
		report_document(n, month, NULL, "the output hash", res_text(r, 0, 4), hex);
	return ok;
}

/* --- rule 3 --- */

#define CSV_TABLE "verify_csv"

/* The CSV header names the columns of the temporary table. PostgreSQL parses the CSV, not our own reader. */
static bool
make_table(struct db *db, int fd, struct err *err)
{
	in_place(buf) struct buf sql = {0};
	char c;

	buf_init(&sql, 16384);
	buf_str(&sql, "CREATE TEMP TABLE " CSV_TABLE " (");
	while (read(fd, &c, 1) == 1 && c != '\n') {
		if (c == ',')
			buf_str(&sql, " text, ");
		else if ((c >= 'a' && c <= 'z') || c == '_')
			buf_char(&sql, c);
		else if (c != '\r')
			return err_set(err, ERR_FATAL, "the header of a stored CSV has an unexpected character");
	}
	buf_str(&sql, " text) ON COMMIT DROP");
	return buf_ok(&sql, "a header", err) && db_script(db, buf_text(&sql), err);
}

static bool
copy_file(struct db *db, int fd, struct err *err)
{
	char piece[65536];
	ssize_t got;

	if (!db_copy_begin(db, "COPY " CSV_TABLE " FROM STDIN (FORMAT csv)", err))
		return false;
	while ((got = read(fd, piece, sizeof(piece))) > 0)
		if (!db_copy_put(db, piece, (size_t)got, err))
			return false;
	return db_copy_end(db, err);
}

static const char lines_sql[] =
	"WITH l AS (SELECT l.*, i.invoice_id FROM invoice i JOIN invoice_line l ON l.number = i.number JOIN tenant t ON t.id = i.tenant_id WHERE "
	"i.closed_in = $1 AND t.name = $2) SELECT 'line ' || coalesce(l.line_id, d.line_id) || ' of invoice ' || coalesce(l.invoice_id, d.invoice_id) || "
	"', ' || x.name, x.document, x.line FROM l FULL JOIN " CSV_TABLE
	" d ON d.line_id = l.line_id AND d.invoice_id = l.invoice_id CROSS JOIN LATERAL (VALUES "
	"('there', (d.line_id IS NOT NULL)::text, (l.line_id IS NOT NULL)::text), ('charge_type', d.charge_type, l.charge_type), ('class', d.class, l.class), "
	"('unit', d.unit, l.unit), ('currency', d.currency, l.currency), ('price_version', d.price_version, l.price_version), "
	"('correction_of', d.correction_of, coalesce(l.correction_of, '')), "
	"('quantity', d.quantity::numeric::text, l.quantity::text), ('unit_price', nullif(d.unit_price, '')::numeric::text, l.unit_price::text), "
	"('list_cost', d.list_cost::numeric::text, l.list_cost::text), ('discount', d.discount::numeric::text, l.discount::text), "
	"('rounding', d.rounding::numeric::text, l.rounding::text), ('billed_cost', d.billed_cost::numeric::text, l.billed::text), "
	"('allocated_gpu_hours', nullif(d.allocated_gpu_hours, '')::numeric::text, l.allocated_gpu_hours::text), "
	"('used_gpu_hours', nullif(d.used_gpu_hours, '')::numeric::text, l.used_gpu_hours::text)) AS x(name, document, line) "
	"WHERE CASE WHEN x.document ~ '^-?[0-9.]+$' AND x.line ~ '^-?[0-9.]+$' THEN x.document::numeric <> x.line::numeric WHEN (x.name LIKE "
	"'%_gpu_hours' OR x.name = 'unit_price') AND x.document IS NULL THEN x.line::numeric <> 0 ELSE ltrim(coalesce(x.document, ''), '''') <> ltrim(coalesce(x.line, ''), '''') END "
	"AND (x.name = 'there' OR (d.line_id IS NOT NULL AND l.line_id IS NOT NULL)) LIMIT 1000";

static bool
compare_lines(struct verify_node *n, const char *month, const char *tenant, int fd, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL, *count = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, tenant);
	if (lseek(fd, 0, SEEK_SET) != 0)
		return err_set(err, ERR_RETRY, "a temporary file cannot be read again");
	if (!db_tx_begin_long(&tx, n->db, DB_WORK_VERIFY, err) || !make_table(n->db, fd, err) ||
	    !copy_file(n->db, fd, err) || !db_run_text(n->db, lines_sql, &a, &r, err) ||
	    !db_run_text(n->db, "SELECT count(*) FROM " CSV_TABLE, NULL, &count, err))
		return false;
	n->report->counts.lines += res_i64(count, 0, 0);
	for (int row = 0; row < PQntuples(r); row++)
		verify_report_text(n, "line", NULL, INT64_MIN, res_text(r, row, 0), res_text(r, row, 1),
		                   res_text(r, row, 2));
	return db_tx_commit(&tx, err);
}

static bool
check_lines(struct verify_node *n, const char *month, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify billed tenants",
		"SELECT DISTINCT t.name COLLATE \"C\", EXISTS (SELECT FROM invoice_document d WHERE d.month = $1 AND d.tenant_id = t.id AND d.format = $2) "
		"FROM tenant t WHERE t.id IN (SELECT i.tenant_id FROM invoice i WHERE i.closed_in = $1 UNION SELECT d.tenant_id FROM invoice_document d "
		"WHERE d.month = $1 AND d.format = $2) ORDER BY 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_text(&a, document_name(DOCUMENT_CSV));
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const char *tenant = res_text(r, row, 0);
		struct spill_file file = {.fd = -1};
		struct err why = {0};
		bool ok;

		if (!res_bool(r, row, 1)) {
			report_document(n, month, tenant, document_name(DOCUMENT_CSV), "a document", "");
			continue;
		}
		/* Rule 2 has reported it. */
		if (!read_document(n->db, month, tenant, document_name(DOCUMENT_CSV), &file, &why))
			continue;
		ok = compare_lines(n, month, tenant, file.fd, &why);
		close(file.fd);
		if (!ok)
			report_document(n, month, tenant, document_name(DOCUMENT_CSV), "a chargeback CSV", why.text);
	}
	return true;
}

/* --- rule 5 --- */

static void
report_lines(struct verify_node *n, const PGresult *r)
{
	n->report->counts.lines_rated += res_i64(r, 0, 5);
	for (int row = 0; row < PQntuples(r) && !res_null(r, row, 0); row++) {
		char what[320];

		snprintf(what, sizeof(what), "line %s of invoice %.160s, %s", res_text(r, row, 0), res_text(r, row, 1),
		         res_text(r, row, 2));
		verify_report_text(n, "line-rated", NULL, INT64_MIN, what, res_text(r, row, 3), res_text(r, row, 4));
	}
}

static bool
rate_lines(struct verify_node *n, const char *month, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify late",
		"SELECT (SELECT count(*) FROM late_change c WHERE c.month = p.month), ns_of(p.starts_at), "
		"ns_of(p.ends_at), "
		"coalesce((SELECT c.rating_rules IS DISTINCT FROM $2::bigint FROM period_close c WHERE c.month = p.month), false) FROM period p WHERE p.month = $1"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL, *found = NULL;
	struct db_args a = {0};
	int64_t days;

	arg_text(&a, month);
	arg_i64(&a, RATING_RULES);
	if (!db_tx_begin_snapshot(&tx, n->db, DB_WORK_VERIFY, err) || !db_run(n->db, &stmt, &a, &r, err))
		return false;
	if (res_bool(r, 0, 3)) {
		n->report->counts.months_earlier++;
		return true;
	}
	/* A change after the close is corrected by the first open month: it is not billed yet, so it is no
	 * difference. */
	if (res_i64(r, 0, 0) > 0) {
		n->report->counts.months_changed++;
		return true;
	}
	if (!charges_tables(n->db, err) ||
	    !charges_open(n->db, res_i64(r, 0, 1), res_i64(r, 0, 2), false, &days, err) ||
	    !verify_lines(n->db, month, &found, err))
		return false;
	report_lines(n, found);
	return db_tx_commit(&tx, err);
}

bool
verify_bills(struct verify_node *n, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify months",
		"SELECT p.month, p.status = 'closed' FROM period p WHERE p.starts_at >= $1 AND p.starts_at < $2 AND (p.status = 'closed' "
		"OR EXISTS (SELECT FROM invoice_document d WHERE d.month = p.month)) ORDER BY 1"};
	static bool (*const checks[])(struct verify_node *, const char *, struct err *) = {check_documents, check_lines,
	                                                                                   rate_lines};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	if (!check_records(n, err) || !db_run(n->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const char *month = res_text(r, row, 0);

		n->report->counts.months++;
		for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
			struct err why = {0};
			bool ok = (checks[i] == rate_lines && !res_bool(r, row, 1)) || checks[i](n, month, &why);
			char thing[64];

			snprintf(thing, sizeof(thing), "the rest of period %.16s", month);
			if (!verify_continue(n, ok, thing, &why, err))
				return err_prefix(err, "period %s", month);
		}
	}
	return true;
}

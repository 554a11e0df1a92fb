/* aggregator/store/verify/verify_dispositions.c - the disposition of batches that were not simply accepted, against
 * the journal.
 *
 * Rules, in order:
 *  1. every batch that is or was in quarantine, held or a loss has the hash of its last entry, and every entry except
 *     a removal has its batch
 *  2. a later decision has an entry of the audit log in the same transaction that names the batch: quarantine.release
 *     or .discard, or node.release over its number
 *  3. batches that were removed, one by one or as the retired range of a stream, were removed by a transaction with
 *     evidence.retire; a range that is not retired was written once
 *  4. the triggers that write this, and that refuse other changes, exist, are enabled and are unchanged
 * Hashes are computed by the database, which has the rows: only differences are returned. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"

#define FOUND_MAX "10000"

#define FIELD(c) "coalesce(octet_length(convert_to(" c ", 'UTF8')) || ':' || " c ", '-') || ';'"
#define FATE_HASH                                                                                                                                                     \
	"sha256(convert_to(" FIELD("b.status") " || " FIELD("b.reason") " || " FIELD("b.class") " || " FIELD("b.decision") " || " FIELD("b.decided_by") " || " FIELD( \
		"ns_of(b.decided_at)::text") " || " FIELD("b.decided_why") " || " FIELD("b.quarantine_id::text") " || " FIELD("b.held_ns::text") ", 'UTF8'))"
/* The condition of the index ingest_batch_fate. */
#define HAS_DISPOSITION \
	"(b.status <> 'accepted' OR b.quarantine_id IS NOT NULL OR b.decision IS NOT NULL OR b.held_ns IS NOT NULL)"
/* The node and epoch of a key "STREAM SEQ". */
#define OF_STREAM                                                                         \
	"LEFT JOIN stream s ON s.id = split_part(x.key, ' ', 1)::integer LEFT JOIN node " \
	"n ON n.id = s.node_id"

/* Columns: key, node, epoch, expected, found. */
static void
report_batch(struct verify_node *n, const char *kind, const PGresult *r, int row, const char *expected,
             const char *found)
{
	char what[512];

	snprintf(what, sizeof(what), "ingest_batch %.100s, of node %.200s, epoch %s", res_text(r, row, 0),
	         res_text(r, row, 1), res_text(r, row, 2));
	verify_report_text(n, kind, NULL, INT64_MIN, what, expected, found);
}

/* Rule 1. */
static bool
check_dispositions(struct verify_node *n, struct err *err)
{
	static const char sql[] =
		"WITH last AS (SELECT DISTINCT ON (u.key) u.key, u.hash FROM row_journal j, unnest(j.keys, j.hashes) AS u(key, hash) "
		"WHERE j.relation = 'ingest_batch' ORDER BY u.key, j.id DESC), now AS (SELECT b.stream_id || ' ' || b.seq AS key, " FATE_HASH
		" AS hash FROM ingest_batch b WHERE " HAS_DISPOSITION
		") SELECT x.key, n.name, s.epoch, encode(x.was, 'hex'), encode(x.is, 'hex') FROM (SELECT coalesce(n.key, l.key) AS key, "
		"l.hash AS was, n.hash AS is FROM last l FULL JOIN now n ON n.key = l.key WHERE l.hash IS DISTINCT FROM n.hash) x " OF_STREAM
		" ORDER BY s.id, x.key LIMIT " FOUND_MAX;
	static const char count[] = "SELECT count(*) FROM ingest_batch b WHERE " HAS_DISPOSITION;
	owned(result) PGresult *r = NULL, *rows = NULL;

	if (!db_run_text(n->db, sql, NULL, &r, err) || !db_run_text(n->db, count, NULL, &rows, err))
		return err_prefix(err, "what became of batches");
	n->report->counts.rows += res_i64(rows, 0, 0);
	for (int row = 0; row < PQntuples(r); row++)
		report_batch(n,
		             res_null(r, row, 3)   ? "row-extra"
		             : res_null(r, row, 4) ? "row-missing"
		                                   : "row-changed",
		             r, row, res_text(r, row, 3), res_text(r, row, 4));
	return true;
}

/* Rules 2 and 3. */
static bool
check_audited(struct verify_node *n, struct err *err)
{
	static const char sql[] =
		"WITH decided AS (SELECT u.key, j.id, a.action FROM row_journal j CROSS JOIN unnest(j.keys) AS u(key) LEFT JOIN audit_log a "
		"ON a.xid = j.xid AND a.after ->> 'stream' = split_part(u.key, ' ', 1) AND CASE WHEN a.action IN ('quarantine.release', "
		"'quarantine.discard') THEN starts_with(a.subject, 'batch ' || split_part(u.key, ' ', 2) || ' of node ') WHEN a.action = 'node.release' "
		"THEN split_part(u.key, ' ', 2)::bigint BETWEEN (a.after ->> 'first')::bigint AND (a.after ->> 'last')::bigint ELSE false END "
		"WHERE j.relation = 'ingest_batch' AND j.operation = 'update'), "
		"before AS (SELECT u.key FROM row_journal j, unnest(j.keys) AS u(key) WHERE j.relation = 'ingest_batch' AND j.operation = 'found'), "
		"ranges AS (SELECT DISTINCT ON (u.key) u.key, j.id, j.xid, j.operation FROM row_journal j, unnest(j.keys) AS u(key) "
		"WHERE j.relation = 'batch_range' AND u.key LIKE '% 1' ORDER BY u.key, j.id DESC), "
		"found AS (SELECT d.key, 'quarantine.release, quarantine.discard or node.release' AS expected, 'entry ' || d.id || ' of the journal' "
		"AS found FROM decided d WHERE d.action IS NULL "
		"UNION ALL SELECT b.stream_id || ' ' || b.seq, CASE b.decision WHEN 'released' THEN 'quarantine.release or node.release' "
		"ELSE 'quarantine.discard' END, 'none' FROM ingest_batch b WHERE " HAS_DISPOSITION
		" AND b.decision IS NOT NULL AND NOT EXISTS (SELECT FROM decided d WHERE d.key = b.stream_id || ' ' || b.seq AND d.action = ANY "
		"(CASE b.decision WHEN 'released' THEN ARRAY['quarantine.release', 'node.release'] ELSE ARRAY['quarantine.discard'] END)) "
		"AND NOT EXISTS (SELECT FROM before f WHERE f.key = b.stream_id || ' ' || b.seq) "
		"UNION ALL SELECT u.key, 'evidence.retire', 'entry ' || j.id || ' of the journal' FROM row_journal j, unnest(j.keys) AS u(key) "
		"WHERE j.operation = 'delete' AND j.relation = 'ingest_batch' AND NOT EXISTS (SELECT FROM audit_log a WHERE a.xid = j.xid "
		"AND a.action = 'evidence.retire') "
		"UNION ALL SELECT r.stream_id || ' 1-' || r.last_seq, 'evidence.retire', 'entry ' || j.id || ' of the journal' FROM batch_range r "
		"JOIN ranges j ON j.key = r.stream_id || ' 1' WHERE r.retired AND j.operation <> 'found' AND NOT EXISTS (SELECT FROM audit_log a WHERE a.xid = j.xid "
		"AND a.action = 'evidence.retire') "
		"UNION ALL SELECT r.stream_id || ' ' || r.first_seq || '-' || r.last_seq, 'one entry of the journal', count(*)::text FROM batch_range r JOIN "
		"(SELECT u.key FROM row_journal j, unnest(j.keys) AS u(key) WHERE j.relation = 'batch_range') j ON j.key = r.stream_id || ' ' || r.first_seq "
		"WHERE NOT r.retired GROUP BY r.stream_id, r.first_seq, r.last_seq HAVING count(*) > 1) "
		"SELECT x.key, n.name, s.epoch, x.expected, x.found FROM found x " OF_STREAM
		" ORDER BY s.id, x.key LIMIT " FOUND_MAX;
	owned(result) PGresult *r = NULL;

	if (!db_run_text(n->db, sql, NULL, &r, err))
		return err_prefix(err, "who decided about batches");
	for (int row = 0; row < PQntuples(r); row++)
		report_batch(n, "row-unaudited", r, row, res_text(r, row, 3), res_text(r, row, 4));
	return true;
}

/* Rule 4. */
#define DISPOSITION_COLUMNS \
	"status, reason, class, decision, decided_by, decided_at, decided_why, quarantine_id, held_ns"
#define MOVED(c) "old." c " IS DISTINCT FROM new." c
#define FATE_MOVED                                                                                                     \
	MOVED("status")                                                                                                \
	" OR " MOVED("reason") " OR " MOVED("class") " OR " MOVED("decision") " OR " MOVED("decided_by") " OR " MOVED( \
		"decided_at") " OR " MOVED("decided_why") " OR " MOVED("quarantine_id") " OR " MOVED("held_ns")
static const struct {
	const char *relation, *name, *definition;
} guards[] = {
	{"ingest_batch", "fate_inserts",
         "AFTER INSERT ON ingest_batch FOR EACH ROW WHEN new.status <> 'accepted'::text OR new.quarantine_id IS NOT NULL OR new.decision IS NOT NULL "
         "OR new.held_ns IS NOT NULL EXECUTE FUNCTION journal_fate"},
	{"ingest_batch", "fate_updates",
         "AFTER UPDATE OF " DISPOSITION_COLUMNS " ON ingest_batch FOR EACH ROW WHEN " FATE_MOVED
         " EXECUTE FUNCTION journal_fate"},
	{"ingest_batch", "fate_deletes",
         "AFTER DELETE ON ingest_batch REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION batches_retire"},
	{"ingest_batch", "settled_batch_stays",
         "BEFORE UPDATE OF " DISPOSITION_COLUMNS " ON ingest_batch FOR EACH ROW WHEN " FATE_MOVED
         " EXECUTE FUNCTION settled_batch_stays"},
	{"batch_set_aside", "set_aside_with_its_batch",
         "BEFORE INSERT ON batch_set_aside FOR EACH ROW EXECUTE FUNCTION set_aside_with_its_batch"},
};

static bool
check_guards(struct verify_node *n, struct err *err)
{
	/* Servers differ in where they print parentheses. */
	static const char sql[] =
		"SELECT g.relation, g.name, CASE WHEN t.definition IS NULL THEN 'off, or not there' ELSE t.definition END FROM "
		"unnest($1::text[], $2::text[], $3::text[]) AS g(relation, name, definition) LEFT JOIN (SELECT r.relname::text AS relation, t.tgname::text "
		"AS name, replace(pg_get_triggerdef(t.oid), 'tollgate.', '') AS definition FROM pg_trigger t JOIN pg_class r ON r.oid = t.tgrelid "
		"WHERE r.relnamespace = 'tollgate'::regnamespace AND t.tgenabled IN ('O', 'A')) t ON (t.relation, t.name) = (g.relation, g.name) "
		"WHERE translate(t.definition, '() ', '') IS DISTINCT FROM translate('CREATE TRIGGER ' || g.name || ' ' || g.definition, '() ', '')";
	in_place(db_columns) struct db_columns c = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < ARRAY_LEN(guards); i++) {
		array_text(&c.col[0], guards[i].relation);
		array_text(&c.col[1], guards[i].name);
		array_text(&c.col[2], guards[i].definition);
	}
	arg_columns(&a, &c);
	if (!db_run_text(n->db, sql, &a, &r, err))
		return err_prefix(err, "triggers of batches");
	for (int row = 0; row < PQntuples(r); row++) {
		char what[160];

		snprintf(what, sizeof(what), "trigger %s of %s", res_text(r, row, 1), res_text(r, row, 0));
		verify_report_text(n, "trigger", NULL, INT64_MIN, what, "in force", res_text(r, row, 2));
	}
	return true;
}

bool
verify_dispositions(struct verify_node *n, struct err *err)
{
	return check_dispositions(n, err) && check_audited(n, err) && check_guards(n, err);
}

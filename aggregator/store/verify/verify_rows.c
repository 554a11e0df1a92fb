/* aggregator/store/verify/verify_rows.c - rows that cannot be recomputed, against the journal written with them.
 *
 * Rules, in order:
 *  1. every row of a journalled table has the hash of its last entry, and every entry except a removal has its row
 *  2. a change of a decision by people or of a billed row has a matching entry of the audit log in the same
 *     transaction, or was accepted by an operator later
 *  3. the triggers that write the journal exist, are enabled and cover the columns below; no other table has one
 *  4. days whose hours were deleted by retention have the rows that they had then
 *  5. batches are deleted at most up to the end of a closed month that has no open month before it
 *  6. decisions on batches have their entries too (verify_dispositions.c)
 * The chain over the journal is verified with the audit log (audit_verify.c). Hashes are computed by the database,
 * which has the rows: only differences are returned. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"

#define FOUND_MAX "10000" /* rows returned for one relation */

/* The changes that need an entry in the audit log. */
enum audited { AUDITED_NEVER, AUDITED_CHANGES, AUDITED_ALWAYS };

/* The tables that sql/ puts under the journal: rule 3 compares. */
static const struct {
	const char *name, *key, *left_out;
	enum audited audited;
	const char *actions; /* of the audit entry */
	bool secret;         /* only the daemon's login reads it */
} relations[] = {
	{"cluster", "id", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"tenant", "id", "", AUDITED_ALWAYS, "policy.apply,ledger.create,schema.migrate", false},
	{"tenant_term", "tenant_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"workspace", "id", "", AUDITED_ALWAYS, "policy.apply,ledger.create,schema.migrate", false},
	{"workspace_term", "workspace_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"policy_version", "id", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"attribution_rule", "id", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"node_owner", "node_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"node_state", "node_id,gpu_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"node_declared", "node_id,model,profile,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"reservation", "workspace_id,cluster_id,shared,model,profile,effective", "", AUDITED_ALWAYS,
         "policy.apply,ledger.create", false},
	{"workspace_limit", "workspace_id,kind,model,profile,effective", "", AUDITED_ALWAYS,
         "policy.apply,ledger.create", false},
	{"tenant_limit", "tenant_id,kind,model,profile,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create",
         false},
	{"workspace_quota", "workspace_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"tenant_quota", "tenant_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"tenant_auto_approve", "tenant_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"priority_class", "name,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"tenant_member", "tenant_id,member,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"workspace_member", "workspace_id,member,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"budget", "tenant_id,workspace_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"price_book", "id", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"price_item", "book_id,position", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"price_discount", "book_id,position", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"price_site", "book_id,cluster_id", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"price_weight", "book_id,tenant_id", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"period_close", "month", "", AUDITED_ALWAYS, "period.close", false},
	{"invoice", "number", "", AUDITED_ALWAYS, "period.close", false},
	{"invoice_total", "number,currency", "", AUDITED_ALWAYS, "period.close", false},
	{"invoice_line", "number,line_id", "", AUDITED_ALWAYS, "period.close", false},
	{"invoice_document", "month,tenant_id,format", "gzip", AUDITED_ALWAYS, "period.close", false},
	{"adjustment", "id", "", AUDITED_ALWAYS, "credit.%", false},
	{"adjustment_approval", "adjustment_id", "", AUDITED_ALWAYS, "credit.%", false},
	{"event_source", "id", "", AUDITED_CHANGES, "", false},
	{"meter_event", "source_id,id", "", AUDITED_CHANGES, "", false},
	{"gpu_xid", "gpu_id,at_ns,xid", "", AUDITED_CHANGES, "", false},
	{"holder_attribution", "holder_id,effective", "", AUDITED_NEVER, "", false},
	{"node", "id", "covered_until_ns,silent_until_ns,hours_from,hours_until,behind,held,held_bytes",
         AUDITED_CHANGES, "policy.apply,node.%,gpu.%,token.create", false},
	{"node_cluster", "node_id,effective", "", AUDITED_CHANGES, "policy.apply,node.%,gpu.%,token.create", false},
	{"gpu", "id", "index", AUDITED_CHANGES, "policy.apply,node.%,gpu.%,token.create", false},
	{"gpu_spec", "gpu_id,effective", "", AUDITED_CHANGES, "policy.apply,node.%,gpu.%,token.create", false},
	{"device", "id", "", AUDITED_CHANGES, "", false},
	{"holder", "id", "", AUDITED_CHANGES, "", false},
	{"gpu_service", "id", "", AUDITED_NEVER, "", false},
	{"stream", "id", "next_seq,covered_until_ns,evidence_seq", AUDITED_CHANGES, "", false},
	{"stream_device", "stream_id,local_id", "", AUDITED_CHANGES, "", false},
	{"stream_holder", "stream_id,local_id", "", AUDITED_CHANGES, "", false},
	{"gpu_declared", "gpu_id,effective", "", AUDITED_ALWAYS, "policy.apply,ledger.create", false},
	{"batch_set_aside", "stream_id,seq,gpu", "", AUDITED_NEVER, "", false},
	{"stream_device_entry", "stream_id,local_id", "", AUDITED_NEVER, "", false},
	{"stream_holder_entry", "stream_id,local_id", "", AUDITED_NEVER, "", false},
	{"batch_range", "stream_id,first_seq", "", AUDITED_CHANGES, "evidence.retire", false},
	{"ledger", "one", "", AUDITED_CHANGES, "policy.apply,ledger.create,evidence.retire", false},
	{"period", "month", "", AUDITED_NEVER, "", false},
	{"lost_hold", "device_id,holder_id,ended_ns", "", AUDITED_NEVER, "", false},
	{"billing_day", "day", "starts_at,ends_at,folded_at,dirty", AUDITED_CHANGES, "hours.retire", false},
	{"access_token", "id", "last_used_at", AUDITED_ALWAYS, "token.%,join-token.%,node.%", true},
	{"join_token", "id", "", AUDITED_ALWAYS, "token.%,join-token.%,node.%", true},
};

/* $1 the relation, $2 key columns, $3 columns left out. */
#define KEY                                                                                                            \
	"(SELECT string_agg(coalesce(to_jsonb(t) ->> k.name, '-'), ' ' ORDER BY k.n) FROM unnest(string_to_array($2, " \
	"',')) WITH ORDINALITY AS k(name, n))"
#define HASH "sha256(convert_to((jsonb_strip_nulls(to_jsonb(t)) - string_to_array($3, ','))::text, 'UTF8'))"
#define ROW "left((to_jsonb(t) - string_to_array($3, ','))::text, 600)"
#define COMPARE                                                                                                           \
	"SELECT coalesce(n.key, l.key), encode(l.hash, 'hex'), encode(n.hash, 'hex'), n.row FROM last l FULL JOIN now n " \
	"ON n.key = l.key WHERE l.hash IS DISTINCT FROM n.hash ORDER BY 1 LIMIT " FOUND_MAX

static void
report_rows(struct verify_node *n, const char *relation, const PGresult *r)
{
	/* The journal has only hashes: the audit log has the old row, the difference shows the current one. */
	for (int row = 0; row < PQntuples(r); row++) {
		const char *kind = res_null(r, row, 1)   ? "row-extra"
		                   : res_null(r, row, 2) ? "row-missing"
		                                         : "row-changed";
		char what[512];

		snprintf(what, sizeof(what), "%s %.400s", relation, res_text(r, row, 0));
		verify_report_text(n, kind, NULL, INT64_MIN, what, res_text(r, row, 1),
		                   res_null(r, row, 3) ? res_text(r, row, 2) : res_text(r, row, 3));
	}
}

/* Rule 1. */
static bool
check_relation(struct verify_node *n, size_t i, struct err *err)
{
	static const char count_sql[] = "SELECT count(*) FROM ";
	in_place(buf) struct buf sql = {0}, count = {0};
	owned(result) PGresult *r = NULL, *rows = NULL;
	struct db_args a = {0};

	buf_init(&sql, 16384);
	buf_init(&count, 256);
	buf_printf(
		&sql,
		"WITH last AS (SELECT DISTINCT ON (u.key) u.key, u.hash FROM row_journal j, unnest(j.keys, j.hashes) AS u(key, hash) "
		"WHERE j.relation = $1 ORDER BY u.key, j.id DESC), now AS (SELECT " KEY " AS key, " HASH
		" AS hash, %s AS row FROM %s t) " COMPARE,
		relations[i].secret ? "NULL::text" : ROW, relations[i].name);
	buf_printf(&count, "%s%s", count_sql, relations[i].name);
	arg_text(&a, relations[i].name);
	arg_text(&a, relations[i].key);
	arg_text(&a, relations[i].left_out);
	if (!db_run_text(n->db, buf_text(&sql), &a, &r, err) || !db_run_text(n->db, buf_text(&count), NULL, &rows, err))
		return err_prefix(err, "rows of %s", relations[i].name);
	n->report->counts.rows += res_i64(rows, 0, 0);
	report_rows(n, relations[i].name, r);
	return true;
}

/* Rules 2 and 3. */
static bool
check_journal(struct verify_node *n, struct err *err)
{
	static const char unaudited[] =
		"SELECT j.relation, u.key, j.operation, j.id FROM row_journal j JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS c(relation, audited, actions) "
		"ON c.relation = j.relation, unnest(j.keys) AS u(key) WHERE j.operation <> 'found' AND CASE c.audited WHEN 0 THEN false WHEN 1 "
		"THEN j.operation IN ('update', 'delete') ELSE true END AND NOT EXISTS (SELECT FROM audit_log a WHERE a.xid = j.xid AND a.action LIKE ANY "
		"(string_to_array(c.actions, ','))) AND NOT EXISTS (SELECT FROM audit_log a WHERE a.action = 'journal.accept' AND a.subject = 'journal entry ' "
		"|| j.id) "
		/* The rows that existed when a table came under the journal are its first entries. */
		"UNION ALL SELECT j.relation, u.key, j.operation, j.id FROM row_journal j, unnest(j.keys) AS u(key) WHERE j.operation = 'found' AND EXISTS (SELECT "
		"FROM row_journal o WHERE o.relation = j.relation AND o.operation <> 'found' AND o.id < j.id) ORDER BY 4 LIMIT " FOUND_MAX;
	static const char triggers[] =
		"SELECT coalesce(e.relation, t.relation), coalesce(e.name, t.name), CASE WHEN t.name IS NULL THEN 'off, or not there' WHEN e.name IS NULL "
		"THEN 'on a table that this program does not compare' ELSE 'for other columns' END FROM (SELECT c.relation, x.name, convert_to(c.key, 'UTF8') "
		"|| '\\x00' || convert_to(c.left_out, 'UTF8') || '\\x00' AS args FROM unnest($1::text[], $2::text[], $3::text[]) AS c(relation, key, left_out), "
		"(VALUES ('journal_inserts'), ('journal_updates'), ('journal_deletes')) AS x(name)) e FULL JOIN (SELECT r.relname::text AS relation, "
		"t.tgname::text AS name, t.tgargs AS args FROM pg_trigger t JOIN pg_class r ON r.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid WHERE "
		"r.relnamespace = 'tollgate'::regnamespace AND p.proname IN ('journal_rows', 'journal_row') AND p.pronamespace = r.relnamespace AND "
		"t.tgenabled IN ('O', 'A')) t ON (t.relation, t.name) = (e.relation, e.name) WHERE t.args IS DISTINCT FROM e.args ORDER BY 1, 2";
	struct db_array names, keys, left_out, audited, actions;
	owned(result) PGresult *r = NULL, *off = NULL;
	struct db_args a = {0}, of_triggers = {0};
	bool ok;

	db_array_init(&names);
	db_array_init(&keys);
	db_array_init(&left_out);
	db_array_init(&audited);
	db_array_init(&actions);
	for (size_t i = 0; i < ARRAY_LEN(relations); i++) {
		array_text(&names, relations[i].name);
		array_text(&keys, relations[i].key);
		array_text(&left_out, relations[i].left_out);
		array_i64(&audited, relations[i].audited);
		array_text(&actions, relations[i].actions);
	}
	arg_array(&a, &names);
	arg_array(&a, &audited);
	arg_array(&a, &actions);
	arg_array(&of_triggers, &names);
	arg_array(&of_triggers, &keys);
	arg_array(&of_triggers, &left_out);
	ok = db_run_text(n->db, unaudited, &a, &r, err) && db_run_text(n->db, triggers, &of_triggers, &off, err);
	db_array_fini(&names);
	db_array_fini(&keys);
	db_array_fini(&left_out);
	db_array_fini(&audited);
	db_array_fini(&actions);
	for (int row = 0; ok && row < PQntuples(r); row++) {
		char what[512], found[64];

		snprintf(what, sizeof(what), "%s %.400s", res_text(r, row, 0), res_text(r, row, 1));
		snprintf(found, sizeof(found), "%s, entry %s of the journal", res_text(r, row, 2), res_text(r, row, 3));
		verify_report_text(n, "row-unaudited", NULL, INT64_MIN, what,
		                   "an entry of the audit log about it in the same transaction", found);
	}
	for (int row = 0; ok && row < PQntuples(off); row++) {
		char what[160];

		snprintf(what, sizeof(what), "trigger %s of %s", res_text(off, row, 1), res_text(off, row, 0));
		verify_report_text(n, "trigger", NULL, INT64_MIN, what, "in force", res_text(off, row, 2));
	}
	return ok;
}

/* Rule 4. */
static bool
check_final_days(struct verify_node *n, struct err *err)
{
	static const struct {
		const char *name, *key;
	} tables[] = {
		{"usage_daily",
	         "day,price_book_id,cluster_id,owner_id,workspace_id,gpu_model,profile,units,sharing,method"},
		{"charge_day",
	         "day,price_book_id,cluster_id,owner_id,workspace_id,gpu_model,profile,units,sharing,class"},
		{"reserve_day", "day,price_book_id,cluster_id,owner_id,workspace_id,gpu_model,profile,units"},
		{"loan_day",
	         "day,price_book_id,cluster_id,owner_id,lender_id,borrower_id,gpu_model,profile,units,sharing"},
		{"pool_day", "day,price_book_id,cluster_id,owner_id,gpu_model"},
	};

	for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
		in_place(buf) struct buf sql = {0};
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		buf_init(&sql, 16384);
		buf_printf(
			&sql,
			"WITH last AS (SELECT DISTINCT ON (u.key) u.key, u.hash FROM row_journal j, unnest(j.keys, j.hashes) AS u(key, hash) "
			"WHERE j.relation = $1 ORDER BY u.key, j.id DESC), now AS (SELECT " KEY " AS key, " HASH
			" AS hash, " ROW
			" AS row FROM %s t JOIN billing_day b ON b.day = t.day AND b.hours_gone) " COMPARE,
			tables[i].name);
		arg_text(&a, tables[i].name);
		arg_text(&a, tables[i].key);
		arg_text(&a, "");
		if (!db_run_text(n->db, buf_text(&sql), &a, &r, err))
			return err_prefix(err, "final rows of %s", tables[i].name);
		report_rows(n, tables[i].name, r);
	}
	return true;
}

/* Rule 5. Also counts the GPUs set aside without a decision. */
static bool
check_evidence(struct verify_node *n, struct err *err)
{
	static const char sql[] =
		"SELECT rfc3339(at_ns(l.evidence_from_ns)), (SELECT count(*) FROM batch_set_aside a WHERE a.decision IS NULL), l.evidence_from_ns = 0 OR EXISTS "
		"(SELECT FROM period p WHERE ns_of(p.ends_at) = l.evidence_from_ns AND p.status = 'closed' AND NOT EXISTS (SELECT FROM period o WHERE o.starts_at < "
		"p.starts_at AND o.status <> 'closed')) FROM ledger l";
	owned(result) PGresult *r = NULL;

	if (!db_run_text(n->db, sql, NULL, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		n->report->counts.set_aside += res_i64(r, row, 1);
		if (!res_bool(r, row, 2))
			verify_report_text(n, "evidence", NULL, INT64_MIN,
			                   "where the ledger says that its evidence begins",
			                   "the end of a closed month", res_text(r, row, 0));
	}
	return true;
}

bool
verify_rows_journal(struct verify_node *n, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) ||
	    !db_script(n->db, "SET LOCAL bytea_output = 'hex'", err))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(relations); i++)
		if (!(n->of_close && relations[i].secret) && !check_relation(n, i, err))
			return false;
	return check_journal(n, err) && check_final_days(n, err) && check_evidence(n, err) &&
	       verify_dispositions(n, err) && db_tx_commit(&tx, err);
}

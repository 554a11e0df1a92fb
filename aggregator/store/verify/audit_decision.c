/* aggregator/store/verify/audit_decision.c - the rows of decisions, compared with the quota log that they follow: a page of its events at a time.
 *
 * The log is read as the JSON it is, not by the engine, so that rows can be proved whichever release has logged. Rules, in order:
 *  1. a row that names an event of the page for its verdict has the last verdict of the page with its key: the same decision, would, warn and
 *     rule, it was admitted at the event's time if that verdict admits it, and the bytes at its place are that verdict
 *  2. every verdict of the page has a row that names it or a later one. By both, a row has the last verdict of the whole log
 *  3. rows whose request has ended by an event of the page, and notices of the page that end one, are of each other
 *  4. a row was submitted at the time of its event, and belongs to the workspace that it names
 *
 * What is not admitted names a rule that was not met, and releases differ in which of several: any of them is taken. What the rules
 * admit has one. Whether a lease was confirmed and when it was last heard of is not compared. */
#include "aggregator/store/verify/audit_proof.h"

#define FOUND_MAX 1000

#define PAGE \
	"WITH e AS MATERIALIZED (SELECT seq, at_ns, outcome, outcome::json AS o FROM quota_event WHERE seq > $1 AND seq <= $2)"

/* Rules 1 and 2. */
static const struct db_stmt verdicts_stmt = {
	"audit decision verdicts", PAGE
	", v AS (SELECT DISTINCT ON (y.key) y.*, y.v ->> 'decision' AS decision, y.v ->> 'would' AS would FROM (SELECT x.v ->> 'id' AS key, e.seq, e.at_ns, e.outcome, x.i, x.v "
	"FROM e, json_array_elements(e.o -> 'verdicts') WITH ORDINALITY AS x(v, i)) y ORDER BY y.key, y.seq DESC, y.i DESC) "
	"(SELECT 'decision ' || d.key || ', ' || c.name, c.expected, c.found FROM decision d LEFT JOIN v ON v.key = d.key CROSS JOIN LATERAL (VALUES "
	"('verdict_seq', v.seq::text, d.verdict_seq::text), ('decision', v.decision, d.decision), ('would', v.would, d.would), ('warn', v.v ->> 'warn', d.warn::text), "
	"('admitted_ns', CASE WHEN v.decision IN ('admit', 'borrow') THEN v.at_ns::text END, d.admitted_ns::text), "
	"('rule', CASE WHEN v.decision = 'admit' AND v.would = 'admit' THEN 'owed' WHEN v.decision = 'borrow' AND v.would = 'borrow' THEN 'borrow' "
	"WHEN d.rule IN (v.would, 'available', 'ownership') OR (d.rule = 'owed' AND v.decision = 'admit') OR EXISTS (SELECT FROM json_array_elements(v.v -> 'checks') AS k(v) "
	"WHERE k.v ->> 'rule' = d.rule AND k.v ->> 'ok' = 'false') THEN d.rule ELSE 'one that was not met' END, d.rule), "
	"('verdict_at', 'its verdict', CASE WHEN d.verdict_at BETWEEN 0 AND 1000000000 AND d.verdict_bytes BETWEEN 0 AND 1000000000 AND "
	"substring(convert_to(v.outcome, 'UTF8') FROM d.verdict_at + 1 FOR d.verdict_bytes) = convert_to(v.v::text, 'UTF8') THEN 'its verdict' "
	"ELSE d.verdict_bytes || ' bytes at ' || d.verdict_at END)) AS c(name, expected, found) "
	"WHERE d.verdict_seq > $1 AND d.verdict_seq <= $3 AND c.expected IS DISTINCT FROM c.found AND (v.key IS NOT NULL OR c.name = 'verdict_seq') LIMIT $4) "
	"UNION ALL (SELECT 'decision ' || v.key || ', verdict_seq', v.seq::text, d.verdict_seq::text FROM v LEFT JOIN decision d ON d.key = v.key "
	"WHERE d.key IS NULL OR d.verdict_seq <= $1 LIMIT $4) ORDER BY 1"};

/* Rule 3. A row does not change any more once its request has ended. */
static const struct db_stmt ends_stmt = {
	"audit decision ends", PAGE
	", n AS (SELECT DISTINCT ON (y.key) y.* FROM (SELECT x.v ->> 'id' AS key, e.seq, e.at_ns, w.status, w.why FROM e, json_array_elements(e.o -> 'notices') AS x(v) "
	"JOIN (VALUES ('lease returned', 'ended', 'returned'), ('lease expired', 'ended', 'unconfirmed'), ('request expired', 'expired', 'expired'), "
	"('request cancelled', 'cancelled', 'cancelled')) AS w(event, status, why) ON w.event = x.v ->> 'event') y ORDER BY y.key, y.seq DESC) "
	"(SELECT 'decision ' || d.key || ', ' || c.name, c.expected, c.found FROM n JOIN decision d ON d.key = n.key CROSS JOIN LATERAL (VALUES ('status', n.status, d.status), "
	"('ended_ns', n.at_ns::text, d.ended_ns::text), ('ended_why', n.why, d.ended_why)) AS c(name, expected, found) WHERE c.expected IS DISTINCT FROM c.found LIMIT $4) "
	"UNION ALL (SELECT 'decision ' || d.key || ', status', 'not ended', d.status FROM decision d WHERE d.status IN ('ended', 'expired', 'cancelled') "
	"AND d.changed_seq > $1 AND d.changed_seq <= $3 AND NOT EXISTS (SELECT FROM n WHERE n.key = d.key) LIMIT $4) ORDER BY 1"};

/* Rule 4. A workspace that was not known then is known to no row. */
static const struct db_stmt asked_stmt = {
	"audit decision asked",
	"SELECT 'decision ' || d.key || ', ' || c.name, c.expected, c.found FROM decision d LEFT JOIN quota_event e ON e.seq = d.submitted_seq "
	"LEFT JOIN tenant t ON t.id = d.tenant_id LEFT JOIN workspace w ON w.id = d.workspace_id CROSS JOIN LATERAL (VALUES ('submitted_ns', e.at_ns::text, d.submitted_ns::text), "
	"('tenant_id', split_part(d.workspace, '/', 1), coalesce(t.name, split_part(d.workspace, '/', 1))), "
	"('workspace_id', d.workspace, CASE WHEN w.id IS NULL THEN d.workspace ELSE t.name || '/' || w.name END)) AS c(name, expected, found) "
	"WHERE d.submitted_seq > $1 AND d.submitted_seq <= $3 AND $2::bigint IS NOT NULL AND c.expected IS DISTINCT FROM c.found ORDER BY 1 LIMIT $4"};

bool
proof_decisions(struct proof *p, int64_t after, int64_t end, bool last, struct err *err)
{
	const struct db_stmt *const stmts[] = {&verdicts_stmt, &ends_stmt, &asked_stmt};
	struct db_args a = {0};

	arg_i64(&a, after);
	arg_i64(&a, end);
	arg_i64(&a, last ? INT64_MAX : end); /* what a row names is not behind the end of the log */
	arg_i64(&a, FOUND_MAX);
	for (size_t i = 0; i < ARRAY_LEN(stmts); i++) {
		owned(result) PGresult *r = NULL;

		if (!db_run(p->db, stmts[i], &a, &r, err))
			return err_prefix(err, "decisions and the quota log");
		for (int row = 0; row < PQntuples(r); row++)
			proof_tell(p, "quota-decision", res_text(r, row, 0),
			           res_null(r, row, 1) ? "none" : res_text(r, row, 1),
			           res_null(r, row, 2) ? "none" : res_text(r, row, 2));
	}
	return true;
}

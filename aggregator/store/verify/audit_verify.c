/* aggregator/store/verify/audit_verify.c - verifies the audit log: its chains and seals, the quota log, and the rows
 * of decisions.
 *
 * Rules, in order:
 *  1. a chain's links are numbered from 1 without a hole, and each link's hash covers the link before it and its
 *     entry
 *  2. a chain ends where audit_chain says
 *  3. every entry is in a chain, or waits for its seal
 *  4. the journal of rows is a chain of the same kind
 *  5. so are the seals, and all chains, including the quota log's and the journal's, still contain the sealed links
 * The hashes are computed here, not by the functions that computed them when they were stored. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/quota/book/decision_rows.h"
#include "aggregator/core/quota/book/quota_book.h"
#include "aggregator/store/verify/verify.h"
#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/digest.h"
#include "common/base/gz.h"
#include "common/base/text.h"

typedef char digest_hex[2 * SHA256_SIZE + 1];

/* The phases, in order; a page ends inside one of them. */
enum audit_phase { PHASE_LINKS, PHASE_EVENTS, PHASE_JOURNAL, PHASE_SEALS, PHASE_COUNT };
struct place {
	enum audit_phase phase;
	int64_t chain, seq;
};

struct audit_check {
	struct verify_node node; /* without a node: collects the differences */
	struct verify_report report;
	struct db *db;
	struct place at;
	bool more;       /* this phase has another page */
	digest_hex hash; /* of the current link or seal */
	int64_t entries, events, journal, seals, unsealed;
};
static void report_difference(struct audit_check *p, const char *kind, const char *what, const char *expected,
                              const char *found);

/* --- rows of decisions against the quota log ---
 *
 * The log is read as JSON, not by the engine, so that rows can be checked whichever release wrote the log. Rules, in
 * order:
 *  1. a row that names an event of the page for its verdict has the last verdict of the page with its key: the same
 *     decision, would, warn and rule; if that verdict admits, it was admitted at the event's time; and the bytes at
 *     its place are that verdict
 *  2. every verdict of the page has a row that names it or a later one. Rules 1 and 2 together: a row has the last
 *     verdict of the whole log
 *  3. rows whose request was ended by an event of the page match the notices of the page that end a request
 *  4. a row was submitted at the time of its event, and belongs to the workspace that the event names
 *
 * A verdict that does not admit names one unmet rule. Releases differ in which of several they name, so any of them
 * is accepted. Whether and when a lease was confirmed is not compared. */

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

/* Rule 3. A row does not change any more after its request has ended. */
static const struct db_stmt ends_stmt = {
	"audit decision ends", PAGE
	", n AS (SELECT DISTINCT ON (y.key) y.* FROM (SELECT x.v ->> 'id' AS key, e.seq, e.at_ns, w.status, w.why FROM e, json_array_elements(e.o -> 'notices') AS x(v) "
	"JOIN (VALUES ('lease returned', 'ended', 'returned'), ('lease expired', 'ended', 'unconfirmed'), ('request expired', 'expired', 'expired'), "
	"('request cancelled', 'cancelled', 'cancelled')) AS w(event, status, why) ON w.event = x.v ->> 'event') y ORDER BY y.key, y.seq DESC) "
	"(SELECT 'decision ' || d.key || ', ' || c.name, c.expected, c.found FROM n JOIN decision d ON d.key = n.key CROSS JOIN LATERAL (VALUES ('status', n.status, d.status), "
	"('ended_ns', n.at_ns::text, d.ended_ns::text), ('ended_why', n.why, d.ended_why)) AS c(name, expected, found) WHERE c.expected IS DISTINCT FROM c.found LIMIT $4) "
	"UNION ALL (SELECT 'decision ' || d.key || ', status', 'not ended', d.status FROM decision d WHERE d.status IN ('ended', 'expired', 'cancelled') "
	"AND d.changed_seq > $1 AND d.changed_seq <= $3 AND NOT EXISTS (SELECT FROM n WHERE n.key = d.key) LIMIT $4) ORDER BY 1"};

/* Rule 4. A workspace unknown at that time has no row. */
static const struct db_stmt asked_stmt = {
	"audit decision asked",
	"SELECT 'decision ' || d.key || ', ' || c.name, c.expected, c.found FROM decision d LEFT JOIN quota_event e ON e.seq = d.submitted_seq "
	"LEFT JOIN tenant t ON t.id = d.tenant_id LEFT JOIN workspace w ON w.id = d.workspace_id CROSS JOIN LATERAL (VALUES ('submitted_ns', e.at_ns::text, d.submitted_ns::text), "
	"('tenant_id', split_part(d.workspace, '/', 1), coalesce(t.name, split_part(d.workspace, '/', 1))), "
	"('workspace_id', d.workspace, CASE WHEN w.id IS NULL THEN d.workspace ELSE t.name || '/' || w.name END)) AS c(name, expected, found) "
	"WHERE d.submitted_seq > $1 AND d.submitted_seq <= $3 AND $2::bigint IS NOT NULL AND c.expected IS DISTINCT FROM c.found ORDER BY 1 LIMIT $4"};

static bool
check_decisions(struct audit_check *p, int64_t after, int64_t end, bool last, struct err *err)
{
	const struct db_stmt *const stmts[] = {&verdicts_stmt, &ends_stmt, &asked_stmt};
	struct db_args a = {0};

	arg_i64(&a, after);
	arg_i64(&a, end);
	arg_i64(&a, last ? INT64_MAX : end); /* a row cannot name an event after the end of the log */
	arg_i64(&a, FOUND_MAX);
	for (size_t i = 0; i < ARRAY_LEN(stmts); i++) {
		owned(result) PGresult *r = NULL;

		if (!db_run(p->db, stmts[i], &a, &r, err))
			return err_prefix(err, "decisions and the quota log");
		for (int row = 0; row < PQntuples(r); row++)
			report_difference(p, "quota-decision", res_text(r, row, 0),
			                  res_null(r, row, 1) ? "none" : res_text(r, row, 1),
			                  res_null(r, row, 2) ? "none" : res_text(r, row, 2));
	}
	return true;
}

/* --- the quota log replayed ---
 *
 * Rules, in order:
 *  1. events are numbered without a hole, and each event's hash covers the hash before it and the whole event
 *  2. the engine, given the events, has the logged outcomes. A later release may add members to a verdict and give
 *     other advice: members that were not logged, and advice, are not compared (rule 1 covers their bytes)
 *  3. a snapshot is the book after its event
 *  4. the book's row is at the end of the log
 *  5. the rows of decisions match the log, where the log itself is right */

#define PAGE_EVENTS 5000
#define READ_EVENTS 500
#define SHOWN_BYTES 200

struct replay {
	struct audit_check *p;
	struct quota_book *book; /* NULL: events are only hashed from here on, not replayed */
	int64_t seq;
	uint8_t head[SHA256_SIZE];
	bool log_is_wrong; /* by rule 1, in this page */
};

static void
replay_fini(struct replay *r)
{
	quota_book_free(r->book);
}

enum { SNAPSHOT_SEQ, SNAPSHOT_HEAD, SNAPSHOT_STATE };

static bool
snapshot_text(const PGresult *r, struct buf *out, struct err *err)
{
	size_t n = (size_t)PQgetlength(r, 0, SNAPSHOT_STATE) / 2;
	owned(mem) uint8_t *packed = mem_alloc(n + 1);

	return hex_decode(res_text(r, 0, SNAPSHOT_STATE), packed, n, err) && gz_expand(packed, n, out, err);
}

/* An unreadable snapshot is a difference, not an error of this call. */
static bool
open_book(struct replay *r, int64_t seq, struct err *err)
{
	static const struct db_stmt stmt = {"audit snapshot",
	                                    "SELECT seq, encode(head, 'hex'), encode(state, 'hex') FROM quota_snapshot "
	                                    "WHERE seq <= $1 ORDER BY seq DESC LIMIT 1"};
	owned(result) PGresult *s = NULL;
	in_place(buf) struct buf state = {0};
	struct db_args a = {0};
	struct err why = {0};

	buf_init(&state, QUOTA_BOOK_MAX_BYTES);
	arg_i64(&a, seq);
	if (!db_run(r->p->db, &stmt, &a, &s, err))
		return false;
	if (PQntuples(s) == 0)
		return quota_book_open("{}", 2, &r->book, err);
	r->seq = res_i64(s, 0, SNAPSHOT_SEQ);
	if (!hex_decode(res_text(s, 0, SNAPSHOT_HEAD), r->head, SHA256_SIZE, &why) || !snapshot_text(s, &state, &why) ||
	    !quota_book_open(buf_text(&state), state.len, &r->book, &why)) {
		char what[64];

		snprintf(what, sizeof(what), "the snapshot after event %" PRId64, r->seq);
		report_difference(r->p, "quota-snapshot", what, "a book", why.text);
	}
	return true;
}

/* Rule 3. */
static bool
check_snapshot(struct replay *r, struct err *err)
{
	static const struct db_stmt stmt = {"audit snapshot of",
	                                    "SELECT seq, encode(head, 'hex'), encode(state, 'hex') FROM quota_snapshot "
	                                    "WHERE seq = $1"};
	owned(result) PGresult *s = NULL;
	in_place(buf) struct buf state = {0}, now = {0};
	struct db_args a = {0};
	struct err why = {0};
	digest_hex head;
	char what[64];

	buf_init(&state, QUOTA_BOOK_MAX_BYTES);
	buf_init(&now, QUOTA_BOOK_MAX_BYTES);
	arg_i64(&a, r->seq);
	if (!db_run(r->p->db, &stmt, &a, &s, err))
		return false;
	hex_encode(r->head, SHA256_SIZE, head);
	snprintf(what, sizeof(what), "the snapshot after event %" PRId64, r->seq);
	if (strcmp(head, res_text(s, 0, SNAPSHOT_HEAD)) != 0)
		report_difference(r->p, "quota-snapshot", what, head, res_text(s, 0, SNAPSHOT_HEAD));
	quota_book_write(r->book, &now);
	if (!snapshot_text(s, &state, &why))
		report_difference(r->p, "quota-snapshot", what, "a book", why.text);
	else if (state.len != now.len || memcmp(buf_text(&state), buf_text(&now), now.len) != 0)
		report_difference(r->p, "quota-snapshot", what, "the book that the events make", "another one");
	return true;
}

/* Rule 2. If the engine refuses an event, the rest of this page is not replayed. */
static void
check_outcome(struct replay *r, const struct quota_log_entry *e)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf told = {0};
	struct err why = {0};
	char what[64], expected[SHOWN_BYTES], found[SHOWN_BYTES];
	size_t from = 0;

	buf_init(&told, QUOTA_EVENT_MAX_BYTES);
	snprintf(what, sizeof(what), "event %" PRId64 " of the quota log, replayed", e->seq);
	if (!quota_book_step(r->book, e->at_ns, e->event, e->event_len, &o, &why)) {
		report_difference(r->p, "quota-replay", what, "an event", why.text);
		quota_book_free(r->book);
		r->book = NULL;
		return;
	}
	quota_book_outcome_json(r->book, o, &told);
	if (quota_log_agrees(e, &told))
		return;
	while (from < told.len && from < e->outcome_len && told.data[from] == e->outcome[from])
		from++;
	/* starts a little before the first difference; invalid UTF-8 is written as such */
	from = from > 40 ? from - 40 : 0;
	snprintf(expected, sizeof(expected), "%s", from < e->outcome_len ? e->outcome + from : "");
	snprintf(found, sizeof(found), "%s", from < told.len ? buf_text(&told) + from : "");
	report_difference(r->p, "quota-replay", what, expected, found);
}

enum { EVENT_SEQ, EVENT_AT, EVENT_ACTOR, EVENT_TEXT, EVENT_OUTCOME, EVENT_HASH, EVENT_SNAPSHOT };

/* Rule 1, then the others. The page before has reported everything up to its end. */
static bool
check_event(struct replay *r, const PGresult *rows, int row, int64_t told_seq, struct err *err)
{
	struct quota_log_entry e = {.seq = res_i64(rows, row, EVENT_SEQ),
	                            .at_ns = res_i64(rows, row, EVENT_AT),
	                            .actor = res_text(rows, row, EVENT_ACTOR),
	                            .event = res_text(rows, row, EVENT_TEXT),
	                            .event_len = (size_t)PQgetlength(rows, row, EVENT_TEXT),
	                            .outcome = res_text(rows, row, EVENT_OUTCOME),
	                            .outcome_len = (size_t)PQgetlength(rows, row, EVENT_OUTCOME)};
	bool again = e.seq <= told_seq;
	int64_t count = r->p->node.report->counts.differences;
	char what[64], number[24];
	digest_hex computed;

	snprintf(what, sizeof(what), "event %" PRId64 " of the quota log", e.seq);
	snprintf(number, sizeof(number), "%" PRId64, r->seq + 1);
	quota_log_hash(r->head, &e, r->head);
	hex_encode(r->head, SHA256_SIZE, computed);
	if (!again && e.seq != r->seq + 1)
		report_difference(r->p, "quota-log", what, number, res_text(rows, row, EVENT_SEQ));
	else if (!again && strcmp(computed, res_text(rows, row, EVENT_HASH)) != 0)
		report_difference(r->p, "quota-log", what, res_text(rows, row, EVENT_HASH), computed);
	r->log_is_wrong |= r->p->node.report->counts.differences != count;
	/* go on with the stored hash, so that one fault is reported once */
	if (!hex_decode(res_text(rows, row, EVENT_HASH), r->head, SHA256_SIZE, err))
		return false;
	r->seq = e.seq;
	if (again && r->book != NULL) {
		owned(quota_outcome) struct quota_outcome *o = NULL;

		if (quota_book_step(r->book, e.at_ns, e.event, e.event_len, &o, NULL))
			return true;
		quota_book_free(r->book);
		r->book = NULL;
	}
	if (again)
		return true;
	r->p->events++;
	/* a changed event cannot be replayed */
	if (r->book != NULL && r->p->node.report->counts.differences == count)
		check_outcome(r, &e);
	return r->book == NULL || !res_bool(rows, row, EVENT_SNAPSHOT) || check_snapshot(r, err);
}

/* Rule 4, at the end of the log. */
static bool
check_row(struct replay *r, struct err *err)
{
	static const struct db_stmt stmt = {"audit book", "SELECT seq, encode(head, 'hex') FROM quota_book"};
	owned(result) PGresult *row = NULL;
	char expected[128], found[128];
	digest_hex head;

	if (!db_run(r->p->db, &stmt, NULL, &row, err))
		return false;
	hex_encode(r->head, SHA256_SIZE, head);
	if (PQntuples(row) == 1 && res_i64(row, 0, 0) == r->seq && strcmp(res_text(row, 0, 1), head) == 0)
		return true;
	snprintf(expected, sizeof(expected), "%s %s", PQntuples(row) == 1 ? res_text(row, 0, 0) : "none",
	         PQntuples(row) == 1 ? res_text(row, 0, 1) : "");
	snprintf(found, sizeof(found), "%" PRId64 " %s", r->seq, head);
	report_difference(r->p, "quota-log", "the end of the quota log", expected, found);
	return true;
}

static bool
check_events(struct audit_check *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"audit events",
		"SELECT e.seq, e.at_ns, e.actor, e.event, e.outcome, encode(e.hash, 'hex'), EXISTS (SELECT FROM quota_snapshot s "
		"WHERE s.seq = e.seq) FROM quota_event e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2"};
	in_place(replay) struct replay r = {.p = p};
	int64_t told = p->at.seq, until = told + PAGE_EVENTS;
	bool rest = true;

	if (!open_book(&r, told, err))
		return false;
	while (rest && r.seq < until) {
		owned(result) PGresult *rows = NULL;
		struct db_args a = {0};

		arg_i64(&a, r.seq);
		arg_i64(&a, READ_EVENTS);
		if (!db_run(p->db, &stmt, &a, &rows, err))
			return false;
		for (int row = 0; row < PQntuples(rows); row++)
			if (!check_event(&r, rows, row, told, err))
				return false;
		rest = PQntuples(rows) == READ_EVENTS;
	}
	p->at.seq = r.seq;
	p->more = rest;
	if (!r.log_is_wrong && !check_decisions(p, told, r.seq, !rest, err))
		return false;
	return rest || check_row(&r, err);
}

/* --- chains and seals --- */

#define PAGE_LINKS 20000
#define FOUND_MAX 1000 /* entries without a chain reported in one answer */

static const char no_hash[] = "0000000000000000000000000000000000000000000000000000000000000000";

static void
report_difference(struct audit_check *p, const char *kind, const char *what, const char *expected, const char *found)
{
	verify_report_text(&p->node, kind, NULL, INT64_MIN, what, expected, found);
}

/* --- hashes --- */

static void
add_field(struct buf *b, const char *text)
{
	if (text == NULL)
		buf_str(b, "-;");
	else
		buf_printf(b, "%zu:%s;", strlen(text), text);
}

static void
add_number(struct buf *b, int64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, v);
	add_field(b, text);
}

/* b begins with space for the previous hash. */
static bool
hash_with(struct buf *b, const char *before, digest_hex ret, struct err *err)
{
	uint8_t sum[SHA256_SIZE];

	if (!hex_decode(before, (uint8_t *)b->data, SHA256_SIZE, err) || !buf_ok(b, "an entry of the audit log", err))
		return false;
	sha256(b->data, b->len, sum);
	hex_encode(sum, SHA256_SIZE, ret);
	return true;
}

static void
begin_hash(struct buf *b)
{
	buf_init(b, 256u << 20);
	(void)buf_reserve(b, SHA256_SIZE);
	memset(b->data, 0, SHA256_SIZE);
	buf_commit(b, SHA256_SIZE);
}

/* --- links --- */

enum {
	LINK_CHAIN,
	LINK_SEQ,
	LINK_ENTRY,
	LINK_HASH,
	LINK_OWNER, /* the entry's chain; NULL: there is no entry */
	LINK_AT,
	LINK_ACTOR,
	LINK_ACTION,
	LINK_SUBJECT,
	LINK_BEFORE,
	LINK_AFTER,
	LINK_REASON,
	LINK_NAME
};

static const char *
text_or_null(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? NULL : res_text(r, row, col);
}

static bool
hash_entry(const PGresult *r, int row, const char *before, digest_hex ret, struct err *err)
{
	in_place(buf) struct buf b = {0};

	begin_hash(&b);
	add_number(&b, res_i64(r, row, LINK_OWNER));
	add_number(&b, res_i64(r, row, LINK_SEQ));
	add_number(&b, res_i64(r, row, LINK_ENTRY));
	add_number(&b, res_i64(r, row, LINK_AT));
	for (int col = LINK_ACTOR; col <= LINK_REASON; col++)
		add_field(&b, text_or_null(r, row, col));
	return hash_with(&b, before, ret, err);
}

/* Rule 2 for a chain whose last link is the current one. */
static bool
check_end(struct audit_check *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"audit end",
		"SELECT c.seq, encode(c.hash, 'hex') FROM (VALUES (1)) one LEFT JOIN audit_chain c ON c.chain = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	char what[96], expected[128], found[128];

	if (p->at.seq == 0)
		return true;
	arg_i64(&a, p->at.chain);
	if (!db_run(p->db, &stmt, &a, &r, err))
		return false;
	if (res_i64(r, 0, 0) == p->at.seq && strcmp(res_text(r, 0, 1), p->hash) == 0)
		return true;
	snprintf(what, sizeof(what), "the end of chain %" PRId64, p->at.chain);
	snprintf(expected, sizeof(expected), "%s %s", res_null(r, 0, 0) ? "none" : res_text(r, 0, 0),
	         res_text(r, 0, 1));
	snprintf(found, sizeof(found), "%" PRId64 " %s", p->at.seq, p->hash);
	report_difference(p, "audit-head", what, expected, found);
	return true;
}

/* Rule 1. The next link is checked against the stored hash even if it is wrong, so that one fault is reported once. */
static bool
check_link(struct audit_check *p, const PGresult *r, int row, struct err *err)
{
	int64_t chain = res_i64(r, row, LINK_CHAIN), seq = res_i64(r, row, LINK_SEQ);
	digest_hex computed;
	char what[160], number[24];

	if (chain != p->at.chain) {
		if (!check_end(p, err))
			return false;
		p->at = (struct place){.phase = PHASE_LINKS, .chain = chain};
		memcpy(p->hash, no_hash, sizeof(p->hash));
	}
	snprintf(what, sizeof(what), "entry %" PRId64 ", number %" PRId64 " in the chain of %.64s",
	         res_i64(r, row, LINK_ENTRY), seq, chain == 0 ? "the operator" : res_text(r, row, LINK_NAME));
	if (seq != p->at.seq + 1) {
		snprintf(number, sizeof(number), "%" PRId64, p->at.seq + 1);
		report_difference(p, "audit-removed", what, number, res_text(r, row, LINK_SEQ));
	} else if (res_null(r, row, LINK_OWNER)) {
		report_difference(p, "audit-removed", what, "an entry", "none");
	} else if (!hash_entry(r, row, p->hash, computed, err)) {
		return false;
	} else if (strcmp(computed, res_text(r, row, LINK_HASH)) != 0) {
		report_difference(p, "audit-changed", what, res_text(r, row, LINK_HASH), computed);
	}
	p->at.seq = seq;
	snprintf(p->hash, sizeof(p->hash), "%s", res_text(r, row, LINK_HASH));
	p->entries++;
	return true;
}

/* The hash of the last link of the page before. */
static bool
resume_links(struct audit_check *p, struct err *err)
{
	static const struct db_stmt stmt = {"audit resume",
	                                    "SELECT encode(hash, 'hex') FROM audit_link WHERE chain = $1 AND seq = $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	memcpy(p->hash, no_hash, sizeof(p->hash));
	if (p->at.seq == 0)
		return true;
	arg_i64(&a, p->at.chain);
	arg_i64(&a, p->at.seq);
	if (!db_run(p->db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 1)
		snprintf(p->hash, sizeof(p->hash), "%s", res_text(r, 0, 0));
	return true;
}

static bool
check_links(struct audit_check *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"audit links",
		"SELECT l.chain, l.seq, l.audit_id, encode(l.hash, 'hex'), CASE WHEN a.id IS NOT NULL THEN "
		"coalesce(a.tenant_id, 0) END, ns_of(a.at), a.actor, a.action, a.subject, a.before::text, a.after::text, "
		"a.reason, t.name FROM audit_link l LEFT JOIN audit_log a ON a.id = l.audit_id LEFT JOIN tenant t ON "
		"t.id = l.chain WHERE (l.chain, l.seq) > ($1, $2) ORDER BY l.chain, l.seq LIMIT $3"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, p->at.chain);
	arg_i64(&a, p->at.seq);
	arg_i64(&a, PAGE_LINKS);
	if (!resume_links(p, err) || !db_run(p->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!check_link(p, r, row, err))
			return false;
	p->more = PQntuples(r) == PAGE_LINKS;
	return p->more || check_end(p, err);
}

/* Rule 3, and rule 2 for ends without a chain. */
static bool
check_strays(struct audit_check *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"audit strays",
		"(SELECT 'audit-inserted', 'entry ' || a.id || ' is in no chain', 'none', a.actor || ' ' || a.action FROM "
		"audit_log a WHERE NOT EXISTS (SELECT FROM audit_link l WHERE l.audit_id = a.id) AND NOT EXISTS (SELECT "
		"FROM audit_unsealed u WHERE u.audit_id = a.id) ORDER BY a.id LIMIT $1) UNION ALL (SELECT 'audit-removed', "
		"'entry ' || u.audit_id || ', which waits for its seal', 'an entry', 'none' FROM audit_unsealed u WHERE NOT "
		"EXISTS (SELECT FROM audit_log a WHERE a.id = u.audit_id) ORDER BY u.audit_id LIMIT $1) UNION ALL (SELECT "
		"'audit-head', 'the end of chain ' || c.chain, c.seq || ' ' || encode(c.hash, 'hex'), 'none' FROM "
		"audit_chain c WHERE NOT EXISTS (SELECT FROM audit_link l WHERE l.chain = c.chain) LIMIT $1) UNION ALL (SELECT "
		"'audit-seal', 'seal ' || h.seal, 'a seal', 'none' FROM audit_sealed_head h WHERE NOT EXISTS (SELECT FROM audit_seal s WHERE "
		"s.seq = h.seal) GROUP BY h.seal ORDER BY h.seal LIMIT $1)"};
	static const struct db_stmt waiting = {"audit waiting",
	                                       "SELECT (SELECT count(*) FROM audit_unsealed) + (SELECT count(*) "
	                                       "FROM row_journal WHERE seq IS NULL)"};
	owned(result) PGresult *r = NULL, *n = NULL;
	struct db_args a = {0};

	arg_i64(&a, FOUND_MAX);
	if (!db_run(p->db, &stmt, &a, &r, err) || !db_run(p->db, &waiting, NULL, &n, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		report_difference(p, res_text(r, row, 0), res_text(r, row, 1), res_text(r, row, 2),
		                  res_text(r, row, 3));
	p->unsealed = res_i64(n, 0, 0);
	return true;
}

/* --- the journal of rows --- */

/* Rule 4. Its links are in its own rows. */
static bool
check_journal(struct audit_check *p, struct err *err)
{
	static const struct db_stmt before = {"journal resume",
	                                      "SELECT encode(hash, 'hex') FROM row_journal WHERE seq = $1"};
	static const struct db_stmt stmt = {
		"journal links",
		"SELECT seq, encode(hash, 'hex'), id::text, ns_of(at)::text, xid::text, relation, operation, keys::text, hashes::text "
		"FROM row_journal WHERE seq > $1 ORDER BY seq LIMIT $2"};
	owned(result) PGresult *r = NULL, *last = NULL;
	struct db_args a = {0}, page = {0};

	arg_i64(&a, p->at.seq);
	arg_i64(&page, p->at.seq);
	arg_i64(&page, PAGE_LINKS);
	if (!db_script(p->db, "SET LOCAL bytea_output = 'hex'", err) || !db_run(p->db, &before, &a, &last, err) ||
	    !db_run(p->db, &stmt, &page, &r, err))
		return false;
	snprintf(p->hash, sizeof(p->hash), "%s", PQntuples(last) == 1 ? res_text(last, 0, 0) : no_hash);
	for (int row = 0; row < PQntuples(r); row++) {
		in_place(buf) struct buf b = {0};
		digest_hex computed;
		char what[160], number[24];

		begin_hash(&b);
		add_field(&b, res_text(r, row, 0));
		for (int col = 2; col <= 8; col++)
			add_field(&b, res_text(r, row, col));
		if (!hash_with(&b, p->hash, computed, err))
			return false;
		snprintf(what, sizeof(what), "entry %s of the journal of rows, number %s", res_text(r, row, 2),
		         res_text(r, row, 0));
		snprintf(number, sizeof(number), "%" PRId64, p->at.seq + 1);
		if (res_i64(r, row, 0) != p->at.seq + 1)
			report_difference(p, "journal-removed", what, number, res_text(r, row, 0));
		else if (strcmp(computed, res_text(r, row, 1)) != 0)
			report_difference(p, "journal-changed", what, res_text(r, row, 1), computed);
		p->at.seq = res_i64(r, row, 0);
		snprintf(p->hash, sizeof(p->hash), "%s", res_text(r, row, 1));
		p->journal++;
	}
	p->more = PQntuples(r) == PAGE_LINKS;
	return true;
}

/* --- seals --- */

enum { SEAL_SEQ, SEAL_AT, SEAL_HASH, SEAL_CHAIN, SEAL_HEAD_SEQ, SEAL_HEAD_HASH, SEAL_LINK_HASH };

/* The seal whose rows begin at *row; advances *row past them. */
static bool
check_seal(struct audit_check *p, const PGresult *r, int *row, struct err *err)
{
	int first = *row;
	in_place(buf) struct buf b = {0};
	digest_hex computed;
	char what[128], number[24];

	begin_hash(&b);
	add_number(&b, res_i64(r, first, SEAL_SEQ));
	add_number(&b, res_i64(r, first, SEAL_AT));
	for (; *row < PQntuples(r) && res_i64(r, *row, SEAL_SEQ) == res_i64(r, first, SEAL_SEQ); (*row)++) {
		if (res_null(r, *row, SEAL_CHAIN))
			continue;
		add_field(&b, res_text(r, *row, SEAL_CHAIN));
		add_field(&b, res_text(r, *row, SEAL_HEAD_SEQ));
		add_field(&b, res_text(r, *row, SEAL_HEAD_HASH));
		if (strcmp(res_text(r, *row, SEAL_HEAD_HASH), res_text(r, *row, SEAL_LINK_HASH)) != 0) {
			snprintf(what, sizeof(what), "number %s of chain %s, as sealed by seal %s",
			         res_text(r, *row, SEAL_HEAD_SEQ), res_text(r, *row, SEAL_CHAIN),
			         res_text(r, first, SEAL_SEQ));
			report_difference(p, "audit-seal", what, res_text(r, *row, SEAL_HEAD_HASH),
			                  res_null(r, *row, SEAL_LINK_HASH) ? "none"
			                                                    : res_text(r, *row, SEAL_LINK_HASH));
		}
	}
	snprintf(what, sizeof(what), "seal %s", res_text(r, first, SEAL_SEQ));
	snprintf(number, sizeof(number), "%" PRId64, p->at.seq + 1);
	if (!hash_with(&b, p->hash, computed, err))
		return false;
	if (res_i64(r, first, SEAL_SEQ) != p->at.seq + 1)
		report_difference(p, "audit-seal", what, number, res_text(r, first, SEAL_SEQ));
	else if (strcmp(computed, res_text(r, first, SEAL_HASH)) != 0)
		report_difference(p, "audit-seal", what, res_text(r, first, SEAL_HASH), computed);
	p->at.seq = res_i64(r, first, SEAL_SEQ);
	snprintf(p->hash, sizeof(p->hash), "%s", res_text(r, first, SEAL_HASH));
	p->seals++;
	return true;
}

static bool
check_seals(struct audit_check *p, struct err *err)
{
	static const struct db_stmt before = {"audit seal before",
	                                      "SELECT encode(hash, 'hex') FROM audit_seal WHERE seq = $1"};
	static const struct db_stmt stmt = {
		"audit seals",
		"SELECT s.seq, ns_of(s.at), encode(s.hash, 'hex'), h.chain, h.seq, encode(h.hash, 'hex'), encode(coalesce(l.hash, "
		"q.hash, j.hash), 'hex') FROM (SELECT * FROM audit_seal WHERE seq > $1 ORDER BY seq LIMIT $2) s LEFT JOIN "
		"audit_sealed_head h ON h.seal = s.seq LEFT JOIN audit_link l ON l.chain = h.chain AND l.seq = h.seq LEFT JOIN "
		"quota_event q ON h.chain = -1 AND q.seq = h.seq LEFT JOIN row_journal j ON h.chain = -2 AND j.seq = h.seq ORDER BY s.seq, h.chain"};
	owned(result) PGresult *r = NULL, *last = NULL;
	struct db_args a = {0}, page = {0};
	int64_t from = p->seals;

	arg_i64(&a, p->at.seq);
	arg_i64(&page, p->at.seq);
	arg_i64(&page, PAGE_LINKS);
	if (!db_run(p->db, &before, &a, &last, err) || !db_run(p->db, &stmt, &page, &r, err))
		return false;
	snprintf(p->hash, sizeof(p->hash), "%s", PQntuples(last) == 1 ? res_text(last, 0, 0) : no_hash);
	for (int row = 0; row < PQntuples(r);)
		if (!check_seal(p, r, &row, err))
			return false;
	p->more = p->seals - from == PAGE_LINKS;
	return true;
}

/* Compares a seal with the hash that the caller has recorded. */
static bool
check_witness(struct audit_check *p, const struct audit_verify_query *q, struct err *err)
{
	static const struct db_stmt stmt = {"audit witness",
	                                    "SELECT encode(hash, 'hex') FROM audit_seal WHERE seq = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	const char *found;
	char what[64];

	if (q->witness_seq == 0)
		return true;
	arg_i64(&a, q->witness_seq);
	if (!db_run(p->db, &stmt, &a, &r, err))
		return false;
	found = PQntuples(r) == 1 ? res_text(r, 0, 0) : "none";
	snprintf(what, sizeof(what), "seal %" PRId64 ", as it was written down", q->witness_seq);
	if (strcmp(found, q->witness_hash) != 0)
		report_difference(p, "audit-seal", what, q->witness_hash, found);
	return true;
}

/* --- pages --- */

/* A number followed by the character end; advances past both. */
static bool
parse_number(const char **at, char end, int64_t *ret)
{
	const char *stop = strchr(*at, end);
	char text[24];

	if (stop == NULL || stop - *at >= (ptrdiff_t)sizeof(text))
		return false;
	memcpy(text, *at, (size_t)(stop - *at));
	text[stop - *at] = '\0';
	*at = end == '\0' ? stop : stop + 1;
	return text_to_i64(text, ret) && *ret >= 0;
}

static const char *const phases[PHASE_COUNT] = {
	[PHASE_LINKS] = "links.", [PHASE_EVENTS] = "events.", [PHASE_JOURNAL] = "journal.", [PHASE_SEALS] = "seals."};

/* "links.CHAIN.SEQ", "events.SEQ", "journal.SEQ" or "seals.SEQ". */
static bool
place_parse(const char *text, struct place *ret, struct err *err)
{
	*ret = (struct place){.phase = PHASE_LINKS, .chain = -1};
	if (text == NULL)
		return true;
	for (int i = 0; i < PHASE_COUNT; i++) {
		const char *at = text + strlen(phases[i]);

		if (strncmp(text, phases[i], strlen(phases[i])) != 0)
			continue;
		*ret = (struct place){.phase = (enum audit_phase)i};
		if ((i != PHASE_LINKS || parse_number(&at, '.', &ret->chain)) && parse_number(&at, '\0', &ret->seq))
			return true;
	}
	return err_set(err, ERR_INVALID, "after: \"%.64s\" is not where a page ended", text);
}

/* Sets the start of the next page: in this phase, or in the next one. */
static void
write_next(const struct audit_check *p, struct buf *out)
{
	if (p->more && p->at.phase == PHASE_LINKS)
		buf_printf(out, "\"%s%" PRId64 ".%" PRId64 "\"", phases[PHASE_LINKS], p->at.chain, p->at.seq);
	else if (p->more)
		buf_printf(out, "\"%s%" PRId64 "\"", phases[p->at.phase], p->at.seq);
	else if (p->at.phase + 1 < PHASE_COUNT)
		buf_printf(out, "\"%s0\"", phases[p->at.phase + 1]);
	else
		buf_str(out, "null");
}

static bool
check_page(struct audit_check *p, const struct audit_verify_query *q, struct err *err)
{
	switch (p->at.phase) {
	case PHASE_LINKS: return check_links(p, err) && (p->more || check_strays(p, err));
	case PHASE_EVENTS: return check_events(p, err);
	case PHASE_JOURNAL: return check_journal(p, err);
	default: return check_seals(p, err) && (p->more || check_witness(p, q, err));
	}
}

bool
verify_audit_chains(struct db *db, struct verify_report *report, struct err *err)
{
	const struct audit_verify_query all = {0};
	struct audit_check p = {.db = db,
	                        .node = {.name = "", .report = report},
	                        .at = {.phase = PHASE_LINKS, .chain = -1}};

	while (p.at.phase < PHASE_COUNT) {
		in_place(db_tx) struct db_tx tx = {0};

		p.more = false;
		if (!db_tx_begin_read_long(&tx, db, DB_WORK_VERIFY, err) || !check_page(&p, &all, err) ||
		    !db_tx_commit(&tx, err))
			return false;
		if (!p.more)
			p.at = (struct place){.phase = p.at.phase + 1};
	}
	return true;
}

bool
store_audit_verify_json(struct db *db, const struct audit_verify_query *q, struct buf *out, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	struct audit_check p = {.db = db, .report = {.out = out}, .node = {.name = ""}};

	p.node.report = &p.report;
	if (!place_parse(q->after, &p.at, err) || !db_tx_begin_read_long(&tx, db, DB_WORK_VERIFY, err))
		return false;
	buf_str(out, "{\"differences\":[");
	if (!check_page(&p, q, err))
		return false;
	buf_printf(out,
	           "],\"count\":%" PRId64 ",\"left_out\":%" PRId64 ",\"entries\":%" PRId64 ",\"events\":%" PRId64
	           ",\"journal\":%" PRId64 ",\"seals\":%" PRId64 ",\"unsealed\":%" PRId64 ",\"next\":",
	           p.report.counts.differences, p.report.counts.differences - p.report.written, p.entries, p.events,
	           p.journal, p.seals, p.unsealed);
	write_next(&p, out);
	buf_str(out, "}\n");
	return buf_ok(out, "the answer", err) && db_tx_commit(&tx, err);
}

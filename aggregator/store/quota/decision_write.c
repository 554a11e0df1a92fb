/* aggregator/store/quota/decision_write.c - a turn of deciding as rows: events, decisions, reclaims, the book, in one round trip with the COMMIT.
 *
 * Lists of rows are one JSON parameter each. All events of a turn have one time. */
#include "aggregator/store/quota/decision_state.h"

#include <string.h>

#define ROWS_MAX (256u << 20)
#define SNAPSHOTS_KEPT "200"

const struct db_stmt turn_plans_stmt = {
	"quota_plans", "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), "
		       "set_config('enable_mergejoin', 'off', true)"};

/* Rows that name an event are written after it. */
static const struct db_stmt event_stmt = {
	"quota_event_add",
	"INSERT INTO quota_event (seq, at_ns, actor, event, outcome, hash) VALUES ($1, $2, $3, $4, $5, decode($6, 'hex'))"};

static const struct db_stmt decision_stmt = {
	"decision_add",
	"INSERT INTO decision (key, request_id, digest, tenant_id, workspace_id, workspace, body, status, decision, would, rule, warn, "
	"position, asked_by, submitted_seq, submitted_ns, verdict_seq, verdict_at, verdict_bytes, changed_seq, changed_ns, admitted_ns, confirmed_ns, "
	"seen_ns, released_ns, ended_ns, ended_why, workload_namespace, workload_pod, workload_pod_uid, workload_slurm_job, workloads, adopted_ns) "
	"SELECT n.key, n.id, decode(n.digest, 'hex'), t.id, w.id, n.workspace, n.body, n.status, n.decision, n.would, n.rule, n.warn, "
	"n.position, n.asked_by, n.submitted, $2::bigint, n.verdict, n.verdict_at, n.verdict_bytes, n.changed, $2, n.admitted, n.confirmed, n.seen, "
	"n.released, n.ended, n.why, n.namespace, n.pod, n.pod_uid, n.slurm_job, n.workloads, n.adopted "
	"FROM json_to_recordset($1::json) AS n(key text, id text, digest text, workspace text, body json, status text, decision text, "
	"would text, rule text, warn boolean, position bigint, asked_by text, submitted bigint, verdict bigint, verdict_at integer, verdict_bytes integer, changed bigint, "
	"admitted bigint, confirmed bigint, seen bigint, released bigint, ended bigint, why text, namespace text, pod text, "
	"pod_uid text, slurm_job text, workloads text[], adopted bigint) "
	"LEFT JOIN tenant t ON t.name = split_part(n.workspace, '/', 1) "
	"LEFT JOIN workspace w ON w.tenant_id = t.id AND w.name = split_part(n.workspace, '/', 2)"};

/* A heartbeat ends a suspicion; the first confirmation and the first release count. */
static const struct db_stmt change_stmt = {
	"decision_change",
	"UPDATE decision d SET status = coalesce(n.status, CASE WHEN d.status = 'suspect' AND n.seen IS NOT NULL THEN "
	"'confirmed' ELSE d.status END), decision = coalesce(n.decision, d.decision), would = coalesce(n.would, d.would), "
	"rule = coalesce(n.rule, d.rule), warn = coalesce(n.warn, d.warn), position = coalesce(n.position, d.position), "
	"verdict_seq = coalesce(n.verdict, d.verdict_seq), verdict_at = coalesce(n.verdict_at, d.verdict_at), "
	"verdict_bytes = coalesce(n.verdict_bytes, d.verdict_bytes), changed_seq = n.changed, changed_ns = $2::bigint, "
	"admitted_ns = coalesce(n.admitted, d.admitted_ns), confirmed_ns = coalesce(d.confirmed_ns, n.confirmed), "
	"seen_ns = coalesce(n.seen, d.seen_ns), released_ns = coalesce(d.released_ns, n.released), "
	"ended_ns = coalesce(n.ended, d.ended_ns), ended_why = coalesce(n.why, d.ended_why) "
	"FROM json_to_recordset($1::json) AS n(key text, status text, decision text, would text, rule text, warn boolean, "
	"position bigint, verdict bigint, verdict_at integer, verdict_bytes integer, changed bigint, admitted bigint, confirmed bigint, seen bigint, released bigint, "
	"ended bigint, why text) WHERE d.key = n.key"};

/* The list of a released lease stays: it returns when none of those that it had is seen. */
static const struct db_stmt workload_stmt = {
	"decision_workload",
	"UPDATE decision d SET workload_namespace = coalesce(n.namespace, d.workload_namespace), workload_pod = coalesce(n.pod, "
	"d.workload_pod), workload_pod_uid = coalesce(n.pod_uid, d.workload_pod_uid), "
	"workload_slurm_job = coalesce(n.slurm_job, d.workload_slurm_job), workloads = coalesce(n.workloads, d.workloads) "
	"FROM json_to_recordset($1::json) AS n(key text, namespace text, pod text, pod_uid text, slurm_job text, workloads text[]) "
	"WHERE d.key = n.key AND d.status IN ('admitted', 'confirmed', 'suspect') AND (n.workloads IS NULL OR d.released_ns IS NULL)"};

static const struct db_stmt leader_stmt = {
	"agent_leader_set",
	"INSERT INTO agent_leader (cluster, epoch, led_by, since_ns) SELECT n.cluster, n.epoch, n.led_by, $2::bigint "
	"FROM json_to_recordset($1::json) AS n(cluster text, epoch bigint, led_by text) "
	"ON CONFLICT (cluster) DO UPDATE SET epoch = excluded.epoch, led_by = excluded.led_by, since_ns = excluded.since_ns"};

static const struct db_stmt reclaim_change_stmt = {
	"reclaim_change",
	"UPDATE reclaim r SET state = CASE WHEN n.state = 'draining' AND r.state <> 'ordered' THEN r.state ELSE n.state END, "
	"changed_seq = n.changed, acked_ns = coalesce(r.acked_ns, n.acked), ended_ns = n.ended "
	"FROM json_to_recordset($1::json) AS n(lease text, state text, changed bigint, acked bigint, ended bigint, made boolean) "
	"WHERE NOT n.made AND r.lease_id = n.lease AND r.state NOT IN ('returned', 'cancelled')"};

/* After the one before: whether a drained lease had an order is seen by whether that statement found one. */
static const struct db_stmt reclaim_stmt = {
	"reclaim_add",
	"INSERT INTO reclaim (lease_id, cause, for_request, state, ordered_seq, changed_seq, ordered_ns, due_ns, acked_ns, "
	"ended_ns, asked_by) "
	"SELECT n.lease, CASE WHEN n.for_request IS NOT NULL THEN 'request' WHEN n.idle THEN 'idle' ELSE 'drain' END, "
	"n.for_request, n.state, n.ordered, n.changed, $2::bigint, n.due, n.acked, n.ended, n.asked_by "
	"FROM json_to_recordset($1::json) AS n(lease text, for_request text, state text, ordered bigint, changed bigint, "
	"due bigint, acked bigint, ended bigint, asked_by text, made boolean, drained boolean, idle boolean) "
	"WHERE n.made OR (n.drained AND NOT EXISTS (SELECT FROM reclaim r WHERE r.lease_id = n.lease AND r.changed_seq = n.changed))"};

static const struct db_stmt book_stmt = {
	"quota_book_set",
	"UPDATE quota_book SET seq = $1, at_ns = $2, head = decode($3, 'hex'), snapshot_seq = $4, snapshot_at_ns = $5, "
	"policy_digest = decode($6, 'hex')"};

/* Nearly always there is one, and then the plan is one for all; for a list it would be made anew each time. */
#define TOKEN_HOLDS "AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
#define TOKENS_HOLD                                                                                              \
	"CASE WHEN $6::bigint IS NOT NULL THEN EXISTS (SELECT FROM access_token WHERE id = $6 " TOKEN_HOLDS ") " \
	"ELSE $7::bigint[] IS NULL OR NOT EXISTS (SELECT FROM unnest($7) AS t(id) WHERE NOT EXISTS "             \
	"(SELECT FROM access_token k WHERE k.id = t.id " TOKEN_HOLDS ")) END"

/* A book that has gone on, or a token that does not hold any more, makes this a step back, which the table refuses. */
static const struct db_stmt optimistic_stmt = {
	"quota_book_bet", "UPDATE quota_book SET seq = CASE WHEN seq = $1 AND head = $2 AND " TOKENS_HOLD
			  " THEN $3 ELSE -1 END, at_ns = $4, head = $5 "
			  "RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"};

static const struct db_stmt snapshot_stmt = {
	"quota_snapshot_add",
	"WITH kept AS (INSERT INTO quota_snapshot (seq, at_ns, head, state, bytes) VALUES ($1, $2, decode($3, 'hex'), $4, $5)) "
	"DELETE FROM quota_snapshot WHERE seq < (SELECT min(seq) FROM (SELECT seq FROM quota_snapshot ORDER BY seq DESC "
	"LIMIT " SNAPSHOTS_KEPT ") n)"};

/* ---- rows as JSON ---------------------------------------------------------------------------------------------------------- */

static void
text(struct buf *out, const char *key, const char *value)
{
	if (!value)
		return;
	buf_printf(out, ",\"%s\":", key);
	json_write_string(value, out);
}

static void
number(struct buf *out, const char *key, int64_t value)
{
	buf_char(out, ',');
	buf_char(out, '"');
	buf_str(out, key);
	buf_str(out, "\":");
	buf_i64(out, value);
}

static void
time_if(struct buf *out, const char *key, int64_t value)
{
	if (value != 0)
		number(out, key, value);
}

static void
begin_row(struct buf *out, const char *key, const char *id)
{
	buf_char(out, out->len == 0 ? '[' : ',');
	buf_printf(out, "{\"%s\":", key);
	json_write_string(id, out);
}

static void
workload(struct buf *out, const struct decision_workload *w)
{
	text(out, "namespace", w->namespace);
	text(out, "pod", w->pod);
	text(out, "pod_uid", w->pod_uid);
	text(out, "slurm_job", w->slurm_job);
	if (w->list)
		buf_printf(out, ",\"workloads\":%s", w->list);
}

static void
change(struct buf *out, const struct decision_change *c)
{
	text(out, "status", decision_status_name(c->status));
	if (c->has_verdict) {
		text(out, "decision", quota_decision_name(c->decision));
		text(out, "would", quota_decision_name(c->would));
		text(out, "rule", quota_rule_name(c->rule));
		buf_printf(out, ",\"warn\":%s", c->warn ? "true" : "false");
		number(out, "verdict", c->verdict_seq);
		number(out, "verdict_at", (int64_t)c->verdict_at);
		number(out, "verdict_bytes", (int64_t)c->verdict_len);
	}
	if (c->has_verdict || c->ended_ns != 0)
		number(out, "position", c->position);
	number(out, "changed", c->changed_seq);
	time_if(out, "adopted", c->adopted_ns);
	time_if(out, "admitted", c->admitted_ns);
	time_if(out, "confirmed", c->confirmed_ns);
	time_if(out, "seen", c->seen_ns);
	time_if(out, "released", c->released_ns);
	time_if(out, "ended", c->ended_ns);
	text(out, "why", c->ended_why);
}

static void
fresh(struct buf *out, const struct decision_change *c, const struct decision_ask *a)
{
	char digest[2 * SHA256_SIZE + 1];

	hex_encode(a->digest, SHA256_SIZE, digest);
	begin_row(out, "key", c->id);
	text(out, "id", a->request_id);
	text(out, "digest", digest);
	text(out, "workspace", a->workspace);
	text(out, "asked_by", a->asked_by);
	buf_printf(out, ",\"body\":%s", a->body);
	number(out, "submitted", c->submitted_seq);
	workload(out, &a->workload);
	change(out, c);
	buf_char(out, '}');
}

static void
reclaim(struct buf *out, const struct reclaim_change *c)
{
	begin_row(out, "lease", c->lease);
	text(out, "state", reclaim_state_name(c->state));
	text(out, "for_request", c->for_request[0] ? c->for_request : NULL);
	text(out, "asked_by", c->asked_by);
	buf_printf(out, ",\"made\":%s,\"drained\":%s,\"idle\":%s", c->made ? "true" : "false",
	           c->drained ? "true" : "false", c->idle ? "true" : "false");
	number(out, "ordered", c->ordered_seq);
	number(out, "changed", c->seq);
	time_if(out, "due", c->due_ns);
	time_if(out, "acked", c->acked_ns);
	time_if(out, "ended", c->ended_ns);
	buf_char(out, '}');
}

static const struct decision_ask *
ask_of(const struct turn_write *w, const char *id)
{
	for (size_t i = 0; i < w->ask_count; i++)
		if (strcmp(w->asks[i]->key, id) == 0)
			return w->asks[i];
	return NULL;
}

/* ---- statements ------------------------------------------------------------------------------------------------------------ */

enum { DECISIONS, CHANGES, WORKLOADS, RECLAIMS, LEADERS, LISTS };

struct batch {
	struct buf lists[LISTS];
	struct db_args *args; /* of each call */
	struct db_call *calls;
	size_t count;
	char head[2 * SHA256_SIZE + 1], policy[2 * SHA256_SIZE + 1];
	char (*hashes)[2 * SHA256_SIZE + 1];
};

static struct db_args *
call(struct batch *b, const struct db_stmt *stmt)
{
	struct db_args *a = &b->args[b->count];

	b->calls[b->count++] = (struct db_call){.stmt = stmt, .args = a};
	return a;
}

static void
list_call(struct batch *b, int list, const struct db_stmt *stmt, int64_t at_ns, bool timed)
{
	struct db_args *a;

	if (b->lists[list].len == 0)
		return;
	a = call(b, stmt);
	arg_text(a, buf_text(&b->lists[list]));
	if (timed)
		arg_i64(a, at_ns);
}

static bool
write_lists(struct batch *b, const struct turn_write *w, struct err *err)
{
	for (size_t i = 0; i < w->rows->decision_count; i++) {
		const struct decision_change *c = &w->rows->decisions[i];
		const struct decision_ask *a = c->fresh ? ask_of(w, c->id) : NULL;

		if (a) {
			fresh(&b->lists[DECISIONS], c, a);
			continue;
		}
		begin_row(&b->lists[CHANGES], "key", c->id);
		change(&b->lists[CHANGES], c);
		buf_char(&b->lists[CHANGES], '}');
	}
	for (size_t i = 0; i < w->workload_count; i++) {
		begin_row(&b->lists[WORKLOADS], "key", w->workloads[i].key);
		workload(&b->lists[WORKLOADS], &w->workloads[i].workload);
		buf_char(&b->lists[WORKLOADS], '}');
	}
	for (size_t i = 0; i < w->leader_count; i++) {
		const struct turn_leader *a = &w->leaders[i];

		if (!a->changed)
			continue;
		begin_row(&b->lists[LEADERS], "cluster", a->cluster);
		number(&b->lists[LEADERS], "epoch", a->epoch);
		text(&b->lists[LEADERS], "led_by", a->actor);
		buf_char(&b->lists[LEADERS], '}');
	}
	for (size_t i = 0; i < w->rows->reclaim_count; i++)
		reclaim(&b->lists[RECLAIMS], &w->rows->reclaims[i]);
	for (int i = 0; i < LISTS; i++) {
		if (b->lists[i].len > 0)
			buf_char(&b->lists[i], ']');
		if (!buf_ok(&b->lists[i], "the rows of a turn", err))
			return false;
	}
	return true;
}

static void
write_events(struct batch *b, const struct turn_write *w)
{
	for (size_t i = 0; i < w->event_count; i++) {
		const struct turn_event *e = &w->events[i];
		struct db_args *a = call(b, &event_stmt);

		hex_encode(e->hash, SHA256_SIZE, b->hashes[i]);
		arg_i64(a, e->seq);
		arg_i64(a, w->row->at_ns);
		arg_text(a, e->actor);
		arg_text(a, e->event);
		arg_text(a, e->outcome);
		arg_text(a, b->hashes[i]);
	}
}

static void
write_book(struct batch *b, const struct turn_write *w)
{
	struct db_args *a;

	hex_encode(w->row->head, SHA256_SIZE, b->head);
	hex_encode(w->row->policy_digest, SHA256_SIZE, b->policy);
	if (w->snapshot) {
		a = call(b, &snapshot_stmt);
		arg_i64(a, w->row->seq);
		arg_i64(a, w->row->at_ns);
		arg_text(a, b->head);
		arg_bytes(a, w->snapshot->data, w->snapshot->len);
		arg_i64(a, w->snapshot_bytes);
	}
	a = call(b, &book_stmt);
	arg_i64(a, w->row->seq);
	arg_i64(a, w->row->at_ns);
	arg_text(a, b->head);
	arg_i64(a, w->row->snapshot_seq);
	arg_i64(a, w->row->snapshot_at_ns);
	arg_text(a, w->row->has_policy ? b->policy : NULL);
}

static void
batch_fini(struct batch *b)
{
	for (int i = 0; i < LISTS; i++)
		buf_fini(&b->lists[i]);
	mem_free(b->args);
	mem_free(b->calls);
	mem_free(b->hashes);
}

static void
batch_init(struct batch *b, const struct turn_write *w)
{
	size_t most = w->event_count + LISTS + 4;

	*b = (struct batch){.args = mem_array(most, sizeof(*b->args)),
	                    .calls = mem_array(most, sizeof(*b->calls)),
	                    .hashes = mem_array(w->event_count + 1, sizeof(*b->hashes))};
	for (int i = 0; i < LISTS; i++)
		buf_init(&b->lists[i], ROWS_MAX);
}

static void
write_rows(struct batch *b, const struct turn_write *w)
{
	int64_t at_ns = w->row->at_ns;

	write_events(b, w);
	list_call(b, DECISIONS, &decision_stmt, at_ns, true);
	list_call(b, CHANGES, &change_stmt, at_ns, true);
	list_call(b, WORKLOADS, &workload_stmt, at_ns, false);
	list_call(b, RECLAIMS, &reclaim_change_stmt, at_ns, false);
	list_call(b, RECLAIMS, &reclaim_stmt, at_ns, true);
	list_call(b, LEADERS, &leader_stmt, at_ns, true);
}

bool
turn_write(struct db_tx *tx, const struct turn_write *w, struct err *err)
{
	in_place(batch) struct batch b = {0};

	batch_init(&b, w);
	if (!write_lists(&b, w, err))
		return false;
	write_rows(&b, w);
	write_book(&b, w);
	return db_tx_commit_all(tx, b.calls, b.count, err);
}

/* Rows that are there already are found by key; new ones look for nothing. */
static bool
finds_rows(const struct batch *b)
{
	return b->lists[CHANGES].len > 0 || b->lists[WORKLOADS].len > 0 || b->lists[RECLAIMS].len > 0;
}

/* The book first: a turn that fails, or must wait for another replica, has written nothing yet. */
bool
turn_write_optimistic(struct db *db, const struct turn_write *w, const struct turn_expected *expected,
                      int64_t *ret_clock_ns, struct err *err)
{
	in_place(batch) struct batch b = {0};
	in_place(db_array) struct db_array tokens = {0};
	owned(result) PGresult *r = NULL;
	struct db_args *a;

	batch_init(&b, w);
	db_array_init(&tokens);
	for (size_t i = 0; i < expected->token_count; i++)
		array_i64(&tokens, expected->tokens[i]);
	if (!write_lists(&b, w, err))
		return false;
	a = call(&b, &optimistic_stmt);
	b.calls[0].ret = &r;
	arg_i64(a, expected->seq);
	arg_bytes(a, expected->head, sizeof(expected->head));
	arg_i64(a, w->row->seq);
	arg_i64(a, w->row->at_ns);
	arg_bytes(a, w->row->head, sizeof(w->row->head));
	if (expected->token_count == 1)
		arg_i64(a, expected->tokens[0]);
	else
		arg_text(a, NULL);
	if (expected->token_count > 1)
		arg_array(a, &tokens);
	else
		arg_text(a, NULL);
	if (finds_rows(&b))
		(void)call(&b, &turn_plans_stmt);
	write_rows(&b, w);
	if (!db_tx_all(db, b.calls, b.count, err))
		return false;
	*ret_clock_ns = res_i64(r, 0, 0);
	return true;
}

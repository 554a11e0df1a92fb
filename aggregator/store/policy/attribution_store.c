/* aggregator/store/policy/attribution_store.c - applies the rules of core/policy/attribution to holders, over time.
 *
 * Rules change at billing hours. Between two changes lies a stretch with one set of rules; a holder gets one row for
 * each run of stretches with the same answer, and together its rows cover all of time.
 *
 * A change of rules reaches the holders that exist already in small steps (store_reattribute):
 *  1. the change itself is one transaction; it records the hour from which on holders are due (table reattribution)
 *  2. a step is a transaction with the policy lock shared: new holders are made and attributed meanwhile, by the new rules
 *  3. first the holders, page by page; then the hours, a few at a time: those sealed with another answer become dirty
 *  4. an hour is compared with its rows locked, so that a step waits for an hour that is being sealed with the old answers
 *  5. a change before the end begins again, from the earlier of both times: a step does not depend on earlier steps
 *  6. the end is written to the audit log when some holder got another owner */
#include "aggregator/store/policy/attribution_store.h"

#include <stdlib.h>

#include "aggregator/store/store.h"

/* The rules with their ranges; INT64_MIN and INT64_MAX are without end. */
struct ruleset {
	PGresult *rows; /* owns the texts */
	struct attribution_rule *rules;
	int64_t *from_ns, *until_ns;
	size_t count;
	int64_t *cuts; /* where a set of rules ends and another begins, ascending */
	size_t cut_count;
	int64_t unattributed;
};

static void
ruleset_fini(struct ruleset *s)
{
	PQclear(s->rows);
	mem_free(s->rules);
	mem_free(s->from_ns);
	mem_free(s->until_ns);
	mem_free(s->cuts);
}

static int
compare_i64(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static void
ruleset_cuts(struct ruleset *s)
{
	size_t n = 0;

	s->cuts = mem_array(2 * s->count, sizeof(*s->cuts));
	for (size_t i = 0; i < s->count; i++) {
		if (s->from_ns[i] != INT64_MIN)
			s->cuts[n++] = s->from_ns[i];
		if (s->until_ns[i] != INT64_MAX)
			s->cuts[n++] = s->until_ns[i];
	}
	qsort(s->cuts, n, sizeof(*s->cuts), compare_i64);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || s->cuts[i] != s->cuts[s->cut_count - 1])
			s->cuts[s->cut_count++] = s->cuts[i];
}

static const char *
pattern_at(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? NULL : res_text(r, row, col);
}

static bool
ruleset_load(struct db *db, struct ruleset *s, struct err *err)
{
	static const struct db_stmt rules = {
		"rules", "SELECT id, workspace_id, priority, cluster, namespace, slurm_account, user_name, group_name, "
			 "labels_text(labels), ns_of(lower(effective)), ns_of(upper(effective)) FROM attribution_rule "
			 "WHERE NOT isempty(effective)"};
	static const struct db_stmt builtin = {"unattributed", "SELECT id FROM workspace WHERE builtin"};
	owned(result) PGresult *b = NULL;

	if (!db_run(db, &builtin, NULL, &b, err) || !db_run(db, &rules, NULL, &s->rows, err))
		return false;
	s->unattributed = res_i64(b, 0, 0);
	s->count = (size_t)PQntuples(s->rows);
	s->rules = mem_array(s->count, sizeof(*s->rules));
	s->from_ns = mem_array(s->count, sizeof(*s->from_ns));
	s->until_ns = mem_array(s->count, sizeof(*s->until_ns));
	for (size_t i = 0; i < s->count; i++) {
		int row = (int)i;

		s->rules[i] = (struct attribution_rule){
			.id = res_i64(s->rows, row, 0),
			.workspace_id = res_i64(s->rows, row, 1),
			.priority = res_i64(s->rows, row, 2),
			.cluster = pattern_at(s->rows, row, 3),
			.ns = pattern_at(s->rows, row, 4),
			.slurm_account = pattern_at(s->rows, row, 5),
			.user = pattern_at(s->rows, row, 6),
			.group = pattern_at(s->rows, row, 7),
			.labels = pattern_at(s->rows, row, 8),
		};
		s->from_ns[i] = res_null(s->rows, row, 9) ? INT64_MIN : res_i64(s->rows, row, 9);
		s->until_ns[i] = res_null(s->rows, row, 10) ? INT64_MAX : res_i64(s->rows, row, 10);
	}
	ruleset_cuts(s);
	return true;
}

/* The rules in force at an instant, in the order in which they are asked. */
static size_t
ruleset_at(const struct ruleset *s, int64_t at_ns, struct attribution_rule *out)
{
	size_t n = 0;

	for (size_t i = 0; i < s->count; i++)
		if (s->from_ns[i] <= at_ns && at_ns < s->until_ns[i])
			out[n++] = s->rules[i];
	attribution_sort(out, n);
	return n;
}

struct rules_kept {
	int64_t version, server_started_us, database;
	struct ruleset all;
	struct attribution_rule
		*rules; /* in force at from_ns and until until_ns, in the order in which they are asked */
	size_t count;
	int64_t from_ns, until_ns;
};

void
rules_kept_free(struct rules_kept *k)
{
	if (!k)
		return;
	ruleset_fini(&k->all);
	mem_free(k->rules);
	mem_free(k);
}
DEFINE_OWNED(rules_kept, struct rules_kept)

/* The version is read first: rules that a newer one wrote meanwhile are read again by the next caller, and never kept for too long. */
static bool
rules_read(struct db *db, struct rules_kept **kept, struct err *err)
{
	owned(rules_kept) struct rules_kept *k = NULL;
	struct db_ledger ledger;
	int64_t version = 0;

	if (!db_ledger_get(db, &ledger, err) || !store_policy_version(db, &version, err))
		return false;
	if (*kept && (*kept)->version == version && (*kept)->server_started_us == ledger.server_started_us &&
	    (*kept)->database == ledger.database)
		return true;
	k = mem_alloc(sizeof(*k));
	k->version = version;
	k->server_started_us = ledger.server_started_us;
	k->database = ledger.database;
	k->from_ns = k->until_ns = INT64_MIN;
	if (!ruleset_load(db, &k->all, err))
		return false;
	k->rules = mem_array(k->all.count, sizeof(*k->rules));
	rules_kept_free(*kept);
	*kept = take(k);
	return true;
}

static void
rules_turn_to(struct rules_kept *k, int64_t at_ns)
{
	if (k->from_ns <= at_ns && at_ns < k->until_ns)
		return;
	k->count = ruleset_at(&k->all, at_ns, k->rules);
	k->from_ns = at_ns;
	k->until_ns = INT64_MAX;
	for (size_t i = k->all.cut_count; i-- > 0 && k->all.cuts[i] > at_ns;)
		k->until_ns = k->all.cuts[i];
}

bool
attribute_workload(struct db *db, struct rules_kept **kept, int64_t at_ns, const char *cluster,
                   const struct wire_holder *holder, char **ret, struct err *err)
{
	static const struct db_stmt home = {"ledger cluster",
	                                    "SELECT c.name FROM ledger l JOIN cluster c ON c.id = l.cluster_id"};
	static const struct db_stmt path = {
		"workspace path", "SELECT tenant || '/' || name FROM workspaces_at($1) WHERE id = $2 AND NOT builtin"};
	owned(result) PGresult *c = NULL, *w = NULL;
	const struct attribution_rule *rule;
	struct db_args a = {0};

	*ret = NULL;
	if (!rules_read(db, kept, err) || (!cluster && !db_run(db, &home, NULL, &c, err)))
		return false;
	if (!cluster)
		cluster = PQntuples(c) > 0 ? res_text(c, 0, 0) : "";
	rules_turn_to(*kept, at_ns);
	rule = attribution_match((*kept)->rules, (*kept)->count, cluster, holder);
	if (!rule)
		return true;
	arg_time(&a, at_ns);
	arg_i64(&a, rule->workspace_id);
	if (!db_run(db, &path, &a, &w, err))
		return false;
	if (PQntuples(w) == 1)
		*ret = mem_strdup(res_text(w, 0, 0));
	return true;
}

/* From a moment on: where each set of rules begins, and the rules. */
struct stretches {
	int64_t *from_ns;
	struct attribution_rule **rules;
	size_t *rule_count;
	size_t count;
};

static void
stretches_fini(struct stretches *t)
{
	for (size_t i = 0; i < t->count; i++)
		mem_free(t->rules[i]);
	mem_free(t->from_ns);
	mem_free(t->rules);
	mem_free(t->rule_count);
}

static void
stretches_make(const struct ruleset *s, int64_t from_ns, struct stretches *t)
{
	t->from_ns = mem_array(s->cut_count + 1, sizeof(*t->from_ns));
	t->rules = mem_array(s->cut_count + 1, sizeof(struct attribution_rule *));
	t->rule_count = mem_array(s->cut_count + 1, sizeof(*t->rule_count));
	for (size_t i = 0; i <= s->cut_count; i++) {
		if (i > 0 && s->cuts[i - 1] <= from_ns)
			continue;
		t->from_ns[t->count] = i == 0 ? from_ns : s->cuts[i - 1];
		t->rules[t->count] = mem_array(s->count, sizeof(struct attribution_rule));
		t->rule_count[t->count] = ruleset_at(s, t->from_ns[t->count], t->rules[t->count]);
		t->count++;
	}
}

/* The workspace that a holder belongs to over some time. */
struct span {
	int64_t workspace, from_ns, until_ns;
};

/* The holder's workspaces by the rules: one span for each run of stretches with the same answer; out has room for one per stretch. */
static size_t
spans_of(const struct ruleset *s, const struct stretches *t, const char *cluster, const struct wire_holder *h,
         struct span *out)
{
	size_t n = 0;

	for (size_t i = 0; i < t->count; i++) {
		const struct attribution_rule *rule = attribution_match(t->rules[i], t->rule_count[i], cluster, h);
		int64_t workspace = rule != NULL ? rule->workspace_id : s->unattributed;

		if (n > 0 && out[n - 1].workspace == workspace)
			continue;
		if (n > 0)
			out[n - 1].until_ns = t->from_ns[i];
		out[n++] = (struct span){.workspace = workspace, .from_ns = t->from_ns[i], .until_ns = INT64_MAX};
	}
	return n;
}

/* Rows of holder_attribution: holder, workspace, from, until. */
enum { ROW_HOLDER, ROW_WORKSPACE, ROW_FROM, ROW_UNTIL, ROW_COLUMNS };

static void
rows_add(struct db_columns *r, int64_t holder, const struct span *spans, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		array_i64(&r->col[ROW_HOLDER], holder);
		array_i64(&r->col[ROW_WORKSPACE], spans[i].workspace);
		if (spans[i].from_ns == INT64_MIN)
			array_text(&r->col[ROW_FROM], NULL);
		else
			array_time(&r->col[ROW_FROM], spans[i].from_ns);
		if (spans[i].until_ns == INT64_MAX)
			array_text(&r->col[ROW_UNTIL], NULL);
		else
			array_time(&r->col[ROW_UNTIL], spans[i].until_ns);
	}
}

static bool
rows_insert(struct db *db, struct db_columns *r, struct err *err)
{
	static const struct db_stmt insert = {
		"attribution insert",
		"INSERT INTO holder_attribution (holder_id, workspace_id, effective) SELECT h, w, tstzrange(f, u) "
		"FROM unnest($1::bigint[], $2::integer[], $3::timestamptz[], $4::timestamptz[]) AS e(h, w, f, u)"};
	struct db_args a = {0};

	if (r->col[ROW_HOLDER].count == 0)
		return true;
	arg_columns(&a, r);
	return db_run(db, &insert, &a, NULL, err);
}

bool
attribute_new(struct db *db, const char *cluster, const struct wire_holder *const *holders, const int64_t *ids,
              size_t n, struct err *err)
{
	in_place(ruleset) struct ruleset s = {0};
	in_place(stretches) struct stretches t = {0};
	in_place(db_columns) struct db_columns rows = {0};
	owned(mem) struct span *spans = NULL;

	db_columns_init(&rows, ROW_COLUMNS);
	if (!ruleset_load(db, &s, err))
		return false;
	stretches_make(&s, INT64_MIN, &t);
	spans = mem_array(t.count, sizeof(*spans));
	for (size_t i = 0; i < n; i++)
		rows_add(&rows, ids[i], spans, spans_of(&s, &t, cluster, holders[i], spans));
	return rows_insert(db, &rows, err);
}

/* --- after a change of rules --- */

/* A page of holders. */
struct attribute_page {
	int64_t last_id;          /* of the page */
	int64_t holders, changed; /* 0 holders: there are no more */
};

/* Replaces the rows of the holders from effective_ns on. */
static bool
replace_from(struct db *db, struct db_columns *rows, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt drop = {
		"attribution drop",
		"DELETE FROM holder_attribution WHERE holder_id = ANY ($1::bigint[]) AND lower(effective) >= $2"};
	static const struct db_stmt cut = {"attribution cut",
	                                   "UPDATE holder_attribution SET effective = tstzrange(lower(effective), $2) "
	                                   "WHERE holder_id = ANY ($1::bigint[]) AND effective @> $2::timestamptz"};
	struct db_args a = {0};

	if (rows->col[ROW_HOLDER].count == 0)
		return true;
	arg_array(&a, &rows->col[ROW_HOLDER]);
	arg_time(&a, effective_ns);
	if (!db_run(db, &drop, &a, NULL, err) || !db_run(db, &cut, &a, NULL, err))
		return false;
	return rows_insert(db, rows, err);
}

/* A row of the page as core sees a holder. Texts are borrowed from the result. */
static struct wire_holder
holder_at(const PGresult *r, int row)
{
	return (struct wire_holder){
		.id = 1,
		.kind = (uint32_t)res_i64(r, row, 2),
		.ns = PQgetvalue(r, row, 3),
		.pod = PQgetvalue(r, row, 4),
		.pod_uid = PQgetvalue(r, row, 5),
		.container = PQgetvalue(r, row, 6),
		.slurm_job = PQgetvalue(r, row, 7),
		.slurm_account = PQgetvalue(r, row, 8),
		.user = PQgetvalue(r, row, 9),
		.uid = res_i64(r, row, 10),
		.group = PQgetvalue(r, row, 11),
		.labels = PQgetvalue(r, row, 12),
	};
}

/* The holders of a page in r, and in *ret_had their rows from effective_ns on, in the order of holder and time. */
static bool
load_page(struct db *db, int64_t effective_ns, int64_t after_id, int limit, PGresult **ret, PGresult **ret_had,
          struct err *err)
{
	static const struct db_stmt page = {
		"holders page",
		"SELECT h.id, c.name, h.kind, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, "
		"h.slurm_account, h.user_name, h.uid, h.group_name, labels_text(h.labels) FROM holder h "
		"JOIN cluster c ON c.id = h.cluster_id WHERE h.id > $1 ORDER BY h.id LIMIT $2"};
	static const struct db_stmt had = {
		"holders had",
		"SELECT a.holder_id, a.workspace_id, ns_of(lower(a.effective)), ns_of(upper(a.effective)) "
		"FROM holder_attribution a WHERE a.holder_id > $1 AND a.holder_id <= $2 "
		"AND (upper_inf(a.effective) OR upper(a.effective) > $3) ORDER BY a.holder_id, lower(a.effective)"};
	struct db_args p = {0}, h = {0};

	arg_i64(&p, after_id);
	arg_i64(&p, limit);
	if (!db_run(db, &page, &p, ret, err))
		return false;
	arg_i64(&h, after_id);
	arg_i64(&h, PQntuples(*ret) > 0 ? res_i64(*ret, PQntuples(*ret) - 1, 0) : after_id);
	arg_time(&h, effective_ns);
	return db_run(db, &had, &h, ret_had, err);
}

/* Does the holder have these spans already? *at moves behind its rows. */
static bool
has_spans(const PGresult *had, int *at, int64_t holder, const struct span *spans, size_t n)
{
	size_t i = 0;
	bool same = true;

	for (; *at < PQntuples(had) && res_i64(had, *at, 0) == holder; (*at)++) {
		bool end = res_null(had, *at, 3);

		/* Neighbours of one workspace are one span in two rows. */
		if (same && i < n && res_i64(had, *at, 1) == spans[i].workspace &&
		    (end ? spans[i].until_ns == INT64_MAX : res_i64(had, *at, 3) <= spans[i].until_ns))
			i += end || res_i64(had, *at, 3) == spans[i].until_ns;
		else
			same = false;
	}
	return same && i == n;
}

/* Brings the next page of holders up to date: where the rules from effective_ns on say something else of a holder, its rows are
 * replaced. */
static bool
attribute_page(struct db *db, int64_t effective_ns, int64_t after_id, int limit, struct attribute_page *ret,
               struct err *err)
{
	in_place(ruleset) struct ruleset s = {0};
	in_place(stretches) struct stretches t = {0};
	in_place(db_columns) struct db_columns rows = {0};
	owned(result) PGresult *r = NULL, *had = NULL;
	owned(mem) struct span *spans = NULL;
	int at = 0;

	*ret = (struct attribute_page){.last_id = after_id};
	db_columns_init(&rows, ROW_COLUMNS);
	if (!ruleset_load(db, &s, err) || !load_page(db, effective_ns, after_id, limit, &r, &had, err))
		return false;
	stretches_make(&s, effective_ns, &t);
	spans = mem_array(t.count, sizeof(*spans));
	for (int row = 0; row < PQntuples(r); row++) {
		struct wire_holder h = holder_at(r, row);
		size_t n = spans_of(&s, &t, res_text(r, row, 1), &h, spans);

		ret->last_id = res_i64(r, row, 0);
		ret->holders++;
		if (has_spans(had, &at, ret->last_id, spans, n))
			continue;
		ret->changed++;
		rows_add(&rows, ret->last_id, spans, n);
	}
	return replace_from(db, &rows, effective_ns, err);
}

#define HOLDERS_AT_ONCE 2000
#define HOURS_AT_ONCE "24 hours"

bool
reattribute_begin(struct db *db, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution begin",
		"INSERT INTO reattribution AS r (effective_at, last_id, holders) "
		"SELECT $1, coalesce(max(h.id), 0), count(*) FROM holder h "
		"ON CONFLICT (one) DO UPDATE SET effective_at = CASE WHEN r.finished_at IS NULL "
		"THEN least(r.effective_at, EXCLUDED.effective_at) ELSE EXCLUDED.effective_at END, started_at = now(), "
		"finished_at = NULL, after_id = 0, last_id = EXCLUDED.last_id, holders = EXCLUDED.holders, holders_done = 0, "
		"changed = 0, hour = NULL, last_hour = NULL, hours_dirty = 0"};
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	return db_run(db, &stmt, &a, NULL, err);
}

static bool
step_holders(struct db *db, int64_t effective_ns, int64_t after_id, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution holders",
		"UPDATE reattribution SET after_id = CASE WHEN $2 = 0 THEN greatest(last_id, $1) ELSE $1 END, "
		"holders_done = holders_done + $2, changed = changed + $3, "
		"hour = CASE WHEN $2 = 0 OR $1 >= last_id THEN effective_at END, "
		"last_hour = CASE WHEN $2 = 0 OR $1 >= last_id THEN (SELECT max(h.hour) FROM node_hour h) END"};
	struct attribute_page page;
	struct db_args a = {0};

	if (!attribute_page(db, effective_ns, after_id, HOLDERS_AT_ONCE, &page, err))
		return false;
	arg_i64(&a, page.last_id);
	arg_i64(&a, page.holders);
	arg_i64(&a, page.changed);
	return db_run(db, &stmt, &a, NULL, err);
}

/* Rules 3 and 4. Sealing that begins later reads the new rows of the holders. */
static bool
step_hours(struct db *db, struct err *err)
{
	static const struct db_stmt mark = {"reattribution hours",
	                                    "UPDATE reattribution SET hours_dirty = hours_dirty + "
	                                    "node_hours_reattribute(hour, hour + interval '" HOURS_AT_ONCE "'), "
	                                    "hour = hour + interval '" HOURS_AT_ONCE "'"};

	return db_run(db, &mark, NULL, NULL, err);
}

/* Rule 6. */
static bool
finish(struct db *db, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution end",
		"WITH done AS (UPDATE reattribution SET finished_at = clock_timestamp() RETURNING *) "
		"INSERT INTO audit_log (actor, action, subject, after) SELECT 'tollgate-aggregator', 'policy.reattribute', "
		"'holders from ' || rfc3339(d.effective_at) || ' on', jsonb_build_object('effective', rfc3339(d.effective_at), "
		"'holders', d.holders_done, 'changed', d.changed, 'hours', d.hours_dirty, 'started', rfc3339(d.started_at)) "
		"FROM done d WHERE d.changed > 0"};

	return db_run(db, &stmt, NULL, NULL, err);
}

/* Rule 2. Another replica that is at it is let be. */
static bool
step(struct db *db, bool *ret_more, struct err *err)
{
	static const struct db_stmt lock = {"reattribution policy",
	                                    "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_POLICY ")"};
	static const struct db_stmt due = {
		"reattribution due",
		"SELECT ns_of(effective_at), after_id, hour IS NULL, coalesce(hour > last_hour, true) "
		"FROM reattribution WHERE finished_at IS NULL FOR UPDATE SKIP LOCKED"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	bool ok;

	*ret_more = false;
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) || !db_run(db, &lock, NULL, NULL, err) ||
	    !db_run(db, &due, NULL, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return true;
	*ret_more = true;
	if (res_bool(r, 0, 2))
		ok = step_holders(db, res_i64(r, 0, 0), res_i64(r, 0, 1), err);
	else if (!res_bool(r, 0, 3))
		ok = step_hours(db, err);
	else
		ok = finish(db, err);
	return ok && db_tx_commit(&tx, err);
}

bool
store_reattribute(struct db *db, int steps, int *ret_done, struct err *err)
{
	static const struct db_stmt waiting = {"reattribution waiting",
	                                       "SELECT FROM reattribution WHERE finished_at IS NULL"};
	owned(result) PGresult *r = NULL;
	bool more = true;

	*ret_done = 0;
	if (!db_run(db, &waiting, NULL, &r, err))
		return false;
	for (more = PQntuples(r) > 0; more && *ret_done < steps; *ret_done += more)
		if (!step(db, &more, err))
			return false;
	return true;
}

bool
store_reattribution_json(struct db *db, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution row",
		"SELECT coalesce(r.finished_at IS NULL AND r.one, false) AS running, rfc3339(r.effective_at) AS effective, "
		"rfc3339(r.started_at) AS started, rfc3339(r.finished_at) AS finished, coalesce(r.holders, 0) AS holders, "
		"coalesce(least(r.holders_done, r.holders), 0) AS holders_done, coalesce(r.changed, 0) AS changed, "
		"coalesce(r.hours_dirty, 0) AS hours_dirty FROM ledger l LEFT JOIN reattribution r ON r.one"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the progress", err);
}

bool
reattribute_settled(struct db *db, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution settled",
		"SELECT rfc3339(started_at), holders_done, holders FROM reattribution WHERE finished_at IS NULL"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	return PQntuples(r) == 0 ||
	       err_set(err, ERR_RETRY, "the rules were changed at %s, and %s of %s holders are attributed again so far",
	               res_text(r, 0, 0), res_text(r, 0, 1), res_text(r, 0, 2));
}

/* aggregator/store/quota/exception_store.c - exceptions requested, approved, refused, revoked, listed, ended, and passed to the quota log. The rules are numbered in the header. */
#include "aggregator/store/quota/exception_store.h"

#include <string.h>

#include "aggregator/store/access/access.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/quota/quota_store.h"

/* An exception as the interface shows it; now: the parameter with the present. */
#define EXCEPTION_ROW(now)                                                                                                \
	"SELECT x.id, t.name AS tenant, w.name AS workspace, c.name AS cluster, x.model AS gpu_model, x.kind, "           \
	"quantity_text(x.units, '', NULL) AS gpus, x.units, x.shared, rfc3339(lower(x.effective)) AS from, "              \
	"rfc3339(upper(x.effective)) AS until, x.status, x.status = 'approved' AND x.effective @> " now                   \
	"::timestamptz AS running, x.reason, x.requested_by, rfc3339(x.requested_at) AS requested, x.rule, "              \
	"x.decided_by, rfc3339(x.decided_at) AS decided, x.decided_why, x.over_by, rfc3339(x.over_at) AS over, "          \
	"x.over_why FROM exception x JOIN tenant t ON t.id = x.tenant_id JOIN workspace w ON w.id = x.workspace_id JOIN " \
	"cluster c ON c.id = x.cluster_id "

static bool
write_row(struct db *db, int64_t id, int64_t now_ns, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {"exception row", EXCEPTION_ROW("$2") "WHERE x.id = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_time(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "there is no exception %" PRId64, id);
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the exception", err);
}

/* Rule 5: before is the row when it was locked; NULL: it is new. */
static bool
audit(struct db *db, int64_t id, const char *actor, const char *action, const char *before, const char *why,
      struct err *err)
{
	static const struct db_stmt stmt = {
		"exception audit",
		"INSERT INTO audit_log (actor, action, subject, before, after, reason, tenant_id) SELECT $2, $3, 'exception ' || "
		"x.id, $4::jsonb, shown(x), $5, x.tenant_id FROM exception x WHERE x.id = $1"};
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, actor);
	arg_text(&a, action);
	arg_text(&a, before);
	arg_text(&a, why);
	return db_run(db, &stmt, &a, NULL, err);
}

/* --- asked for --- */

/* Workspace, tenant and cluster by name; the units that the tenant's rule leaves of this model, and for how long, 0 without a rule. */
static bool
find_place(struct db *db, const struct exception_request *rq, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"exception place",
		"SELECT w.id, w.tenant_id, c.id, u.units - coalesce((SELECT sum(x.units) FROM exception x WHERE x.tenant_id = "
		"w.tenant_id AND x.model = $4 AND x.status = 'approved' AND x.rule = 'auto_approve' AND x.effective && "
		"tstzrange($5, $6)), 0), u.for_ns FROM workspaces_at($7::timestamptz) w LEFT JOIN cluster c ON "
		"c.name = $3 OR ($3::text IS NULL AND c.id = coalesce((SELECT v.cluster_id FROM reservation v WHERE "
		"v.workspace_id = w.id AND v.effective @> $7::timestamptz LIMIT 1), (SELECT l.cluster_id FROM ledger l))) "
		"LEFT JOIN tenant_auto_approve u ON u.tenant_id = w.tenant_id AND u.effective @> $7::timestamptz WHERE w.tenant = $1 AND "
		"w.name = $2"};
	struct db_args a = {0};

	arg_text(&a, rq->tenant);
	arg_text(&a, rq->workspace);
	arg_text(&a, rq->cluster);
	arg_text(&a, rq->model);
	arg_time(&a, rq->from_ns);
	arg_time(&a, rq->until_ns);
	arg_time(&a, rq->now_ns);
	if (!db_run(db, &stmt, &a, ret, err))
		return false;
	if (PQntuples(*ret) == 0)
		return err_set(err, ERR_MISSING, "there is no workspace \"%.64s/%.64s\"", rq->tenant, rq->workspace);
	if (res_null(*ret, 0, 2))
		return err_set(err, ERR_MISSING, "there is no cluster \"%.64s\"", rq->cluster);
	return true;
}

/* Two requests at once would both find the same room. */
static bool
lock_tenant(struct db *db, const char *tenant, struct err *err)
{
	static const struct db_stmt stmt = {"exception lock", "SELECT FROM tenant WHERE name = $1 FOR NO KEY UPDATE"};
	struct db_args a = {0};

	arg_text(&a, tenant);
	return db_run(db, &stmt, &a, NULL, err);
}

/* With the tenant locked. */
static bool
has_room(struct db *db, const struct exception_request *rq, struct err *err)
{
	static const struct db_stmt stmt = {
		"exceptions open",
		"SELECT count(*) FROM exception x JOIN tenant t ON t.id = x.tenant_id WHERE t.name = $1 "
		"AND x.status IN ('requested', 'approved') AND upper(x.effective) > $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, rq->tenant);
	arg_time(&a, rq->now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return res_i64(r, 0, 0) < rq->open_max || err_set(err, ERR_LIMIT,
	                                                  "tenant-exceptions: tenant \"%s\" has %" PRId64
	                                                  " exceptions that are not over, and may have %" PRId64,
	                                                  rq->tenant, res_i64(r, 0, 0), rq->open_max);
}

/* Rules 1 and 2; NULL: an approval is needed. */
static const char *
rule_of(const struct exception_request *rq, const PGresult *place)
{
	if (rq->admin)
		return "administrator";
	if (!rq->reserved && !res_null(place, 0, 4) && rq->units <= res_i64(place, 0, 3) &&
	    rq->until_ns - rq->from_ns <= res_i64(place, 0, 4))
		return "auto_approve";
	return NULL;
}

bool
store_exception_request(struct db *db, const struct exception_request *rq, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"exception request",
		"INSERT INTO exception (workspace_id, tenant_id, cluster_id, model, shared, kind, units, reason, effective, "
		"requested_by, requested_at, status, rule, decided_by, decided_at, decided_why) VALUES ($1, $2, $3, $4, $5, $6, "
		"$7, $8, tstzrange($9, $10), $11, $12, CASE WHEN $13::text IS NULL THEN 'requested' ELSE 'approved' END, $13, "
		"CASE $13::text WHEN 'auto_approve' THEN 'tollgate-aggregator' WHEN 'administrator' THEN $11 END, CASE WHEN "
		"$13::text IS NOT NULL THEN $12::timestamptz END, CASE WHEN $13::text IS NOT NULL THEN '' END) RETURNING id"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *place = NULL, *made = NULL;
	bool own = true, shared = rq->shared;
	struct db_args a = {0};
	int64_t id;

	if (!db_tx_begin(&tx, db, err) || !lock_tenant(db, rq->tenant, err) || !find_place(db, rq, &place, err) ||
	    !has_room(db, rq, err) ||
	    (!rq->shared_said &&
	     !store_quota_pools(db, rq->now_ns, res_i64(place, 0, 2), rq->tenant, rq->model, &own, &shared, err)))
		return false;
	if (!rq->shared_said)
		shared = shared && !own;
	for (int col = 0; col < 3; col++)
		arg_i64(&a, res_i64(place, 0, col));
	arg_text(&a, rq->model);
	arg_bool(&a, shared);
	arg_text(&a, rq->reserved ? "reserved" : "limit");
	arg_i64(&a, rq->units);
	arg_text(&a, rq->reason);
	arg_time(&a, rq->from_ns);
	arg_time(&a, rq->until_ns);
	arg_text(&a, rq->actor);
	arg_time(&a, rq->now_ns);
	arg_text(&a, rule_of(rq, place));
	if (!db_run(db, &stmt, &a, &made, err))
		return false;
	id = res_i64(made, 0, 0);
	return audit(db, id, rq->actor, "exception.request", NULL, rq->reason, err) &&
	       write_row(db, id, rq->now_ns, out, err) && db_tx_commit(&tx, err);
}

/* --- decided --- */

enum { IS_STATUS, IS_KIND, IS_REQUESTED_BY, IS_SHOWN, IS_ROOM, IS_UNITS, IS_OVER };

/* Also the units that the tenant's maximum leaves for extra limits of its model beside approved ones; NULL: there is no maximum. */
static bool
lock_row(struct db *db, const struct exception_decision *d, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"exception decide",
		"SELECT x.status, x.kind, x.requested_by, shown(x)::text, (SELECT l.units FROM tenant_limit l WHERE "
		"l.tenant_id = x.tenant_id AND l.kind = 'maximum' AND (l.model IN (x.model, '') OR starts_with(x.model, l.model || '-')) AND l.profile = '' AND "
		"l.effective @> $3::timestamptz ORDER BY l.model DESC LIMIT 1) - coalesce((SELECT sum(o.units) FROM "
		"exception o WHERE o.tenant_id = x.tenant_id AND o.model = x.model AND o.kind = 'limit' AND o.status "
		"= 'approved' AND o.effective && x.effective AND o.id <> x.id), 0), x.units, upper(x.effective) <= "
		"$3::timestamptz FROM exception x JOIN tenant t ON t.id = x.tenant_id WHERE x.id = $1 AND ($2::text "
		"IS NULL OR t.name = $2) FOR NO KEY UPDATE OF x, t"};
	struct db_args a = {0};

	arg_i64(&a, d->id);
	arg_text(&a, d->tenant);
	arg_time(&a, d->now_ns);
	if (!db_run(db, &stmt, &a, ret, err))
		return false;
	return PQntuples(*ret) == 1 || err_set(err, ERR_MISSING, "there is no exception %" PRId64, d->id);
}

/* Rule 3. */
static bool
may_decide(const struct exception_decision *d, const PGresult *was, struct err *err)
{
	if (d->role == ROLE_ADMIN)
		return true;
	if (d->role == ROLE_DEVELOPER)
		return (d->verb == EXCEPTION_REVOKE && strcmp(res_text(was, 0, IS_REQUESTED_BY), d->actor) == 0) ||
		       err_set(err, ERR_DENIED, "a developer may only revoke exceptions that it requested itself");
	if (d->verb != EXCEPTION_APPROVE)
		return true;
	if (strcmp(res_text(was, 0, IS_KIND), "reserved") == 0)
		return err_set(err, ERR_DENIED,
		               "a reservation is a promise of capacity: only an administrator agrees to it");
	return res_null(was, 0, IS_ROOM) || res_i64(was, 0, IS_UNITS) <= res_i64(was, 0, IS_ROOM) ||
	       err_set(err, ERR_DENIED,
	               "the tenant's maximum leaves no room for it: only an administrator agrees to it");
}

/* Rule 4; ret_again: it is so already. */
static bool
may_follow(const struct exception_decision *d, const PGresult *was, bool *ret_again, struct err *err)
{
	static const char *const becomes[] = {
		[EXCEPTION_APPROVE] = "approved", [EXCEPTION_REFUSE] = "refused", [EXCEPTION_REVOKE] = "revoked"};
	const char *status = res_text(was, 0, IS_STATUS);

	*ret_again = strcmp(status, becomes[d->verb]) == 0;
	if (*ret_again)
		return true;
	if (strcmp(status, "requested") != 0 && (d->verb != EXCEPTION_REVOKE || strcmp(status, "approved") != 0))
		return err_set(err, ERR_CONFLICT, "it is %s already", status);
	return !res_bool(was, 0, IS_OVER) || err_set(err, ERR_CONFLICT, "its end has passed");
}

static bool
decide(struct db *db, const struct exception_decision *d, struct err *err)
{
	static const struct db_stmt agree = {
		"exception agree",
		"UPDATE exception SET status = $2, rule = $3, decided_by = $4, decided_at = $5, decided_why = $6 "
		"WHERE id = $1"};
	static const struct db_stmt revoke = {
		"exception revoke",
		"UPDATE exception SET status = 'revoked', over_by = $2, over_at = $3, over_why = $4 WHERE id = $1"};
	struct db_args a = {0};

	arg_i64(&a, d->id);
	if (d->verb != EXCEPTION_REVOKE) {
		arg_text(&a, d->verb == EXCEPTION_APPROVE ? "approved" : "refused");
		arg_text(&a, d->role == ROLE_ADMIN ? "administrator" : "tenant-admin");
	}
	arg_text(&a, d->actor);
	arg_time(&a, d->now_ns);
	arg_text(&a, d->why);
	return db_run(db, d->verb == EXCEPTION_REVOKE ? &revoke : &agree, &a, NULL, err);
}

bool
store_exception_decide(struct db *db, const struct exception_decision *d, struct buf *out, struct err *err)
{
	static const char *const actions[] = {[EXCEPTION_APPROVE] = "exception.approve",
	                                      [EXCEPTION_REFUSE] = "exception.refuse",
	                                      [EXCEPTION_REVOKE] = "exception.revoke"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *was = NULL;
	bool again = false;

	if (!db_tx_begin(&tx, db, err) || !lock_row(db, d, &was, err) || !may_decide(d, was, err) ||
	    !may_follow(d, was, &again, err))
		return false;
	if (!again && (!decide(db, d, err) ||
	               !audit(db, d->id, d->actor, actions[d->verb], res_text(was, 0, IS_SHOWN), d->why, err)))
		return false;
	return write_row(db, d->id, d->now_ns, out, err) && db_tx_commit(&tx, err);
}

/* ---- listing, ending, and the events of the quota log ---------------------------------------------------------------------- */

/* Not prepared: planned for the filters given. */
bool
store_exceptions_json(struct db *db, const struct exception_query *q, struct buf *out, struct err *err)
{
	static const char sql[] = EXCEPTION_ROW(
		"$1") "WHERE ($2::text IS NULL OR t.name = $2) AND ($3::text IS NULL OR w.name = $3) AND ($4::text "
		      "IS NULL OR x.status = $4) AND ($5::bigint = 0 OR x.id < $5) ORDER BY x.id DESC LIMIT "
		      "$6::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, q->now_ns);
	arg_text(&a, q->tenant);
	arg_text(&a, q->workspace);
	arg_text(&a, q->status);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "exceptions", q->page.limit, out, err);
}

/* Rule 4. A row that is locked by a decision about it is ended at the next turn. */
bool
store_exceptions_end(struct db *db, int64_t now_ns, int64_t *ret_ended, struct err *err)
{
	static const struct db_stmt stmt = {
		"exceptions end",
		"WITH due AS MATERIALIZED (SELECT x AS was FROM exception x WHERE x.status IN ('requested', 'approved') AND "
		"upper(x.effective) <= $1 FOR NO KEY UPDATE SKIP LOCKED), over AS (UPDATE exception x SET status = 'ended', "
		"over_by = 'tollgate-aggregator', over_at = upper(x.effective), over_why = CASE x.status WHEN 'requested' THEN "
		"'nobody decided' ELSE '' END FROM due WHERE x.id = (due.was).id RETURNING x AS is, due.was) INSERT INTO "
		"audit_log (actor, action, subject, before, after, reason, tenant_id) SELECT 'tollgate-aggregator', "
		"'exception.end', 'exception ' || (o.is).id, shown(o.was), shown(o.is), (o.is).over_why, (o.is).tenant_id FROM "
		"over o ORDER BY (o.is).id RETURNING id"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &stmt, &a, &r, err) || !db_tx_commit(&tx, err))
		return false;
	*ret_ended = PQntuples(r);
	return true;
}

/* --- for the quota log --- */

void
exception_events_fini(struct exception_events *e)
{
	for (size_t i = 0; i < e->count; i++) {
		mem_free(e->at[i].actor);
		mem_free(e->at[i].event);
	}
	mem_free(e->at);
	*e = (struct exception_events){0};
}

/* Read by an index of exceptions that the log lacks, which is nearly always empty. */
bool
store_exception_events(struct db *db, int64_t now_ns, struct exception_events *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"exception events",
		"SELECT x.id, x.status = 'revoked', CASE x.status WHEN 'revoked' THEN x.over_by ELSE x.decided_by END, CASE x.status "
		"WHEN 'revoked' THEN json_build_object('exception_end', 'exception-' || x.id) ELSE json_build_object('exception', "
		"json_build_object('id', 'exception-' || x.id, 'workspace', t.name || '/' || w.name, 'cluster', c.name, 'model', "
		"x.model, 'shared', x.shared, 'extra_limit_units', CASE x.kind WHEN 'limit' THEN x.units ELSE 0 END, "
		"'extra_reserved_units', CASE x.kind WHEN 'reserved' THEN x.units ELSE 0 END, 'from_ns', ns_of(lower(x.effective)), "
		"'until_ns', ns_of(upper(x.effective)))) END FROM exception x JOIN tenant t ON t.id = x.tenant_id JOIN workspace w ON "
		"w.id = x.workspace_id JOIN cluster c ON c.id = x.cluster_id WHERE ((x.status = 'approved' AND x.begun_seq IS NULL) "
		"OR (x.status = 'revoked' AND x.begun_seq IS NOT NULL AND x.ended_seq IS NULL)) AND upper(x.effective) > $1 ORDER "
		"BY x.id FOR NO KEY UPDATE OF x SKIP LOCKED"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret = (struct exception_events){.count = (size_t)PQntuples(r)};
	ret->at = mem_array(ret->count, sizeof(*ret->at));
	for (int row = 0; row < PQntuples(r); row++)
		ret->at[row] = (struct exception_event){.id = res_i64(r, row, 0),
		                                        .ends = res_bool(r, row, 1),
		                                        .actor = mem_strdup(res_text(r, row, 2)),
		                                        .event = mem_strdup(res_text(r, row, 3))};
	return true;
}

bool
store_exception_entered(struct db *db, const struct exception_event *e, int64_t seq, struct err *err)
{
	static const struct db_stmt begun = {"exception begun", "UPDATE exception SET begun_seq = $2 WHERE id = $1"};
	static const struct db_stmt ended = {"exception ended", "UPDATE exception SET ended_seq = $2 WHERE id = $1"};
	struct db_args a = {0};

	arg_i64(&a, e->id);
	arg_i64(&a, seq);
	return db_run(db, e->ends ? &ended : &begun, &a, NULL, err);
}

/* aggregator/store/policy/policy_lists.c - the plain lists of `tollgate get`, as JSON arrays. */
#include <string.h>

#include "aggregator/store/db/db.h"
#include "aggregator/store/policy/policy_store.h"

/* In all of them $1 is the one tenant that the caller may see; NULL: all. */
static const struct db_stmt tenants = {
	"list tenants",
	"SELECT t.name, t.display_name, t.cost_center, t.owner, t.data_boundary, "
	"(SELECT count(*) FROM workspaces_at(now()) w WHERE w.tenant_id = t.id) AS workspaces, coalesce(q.isolation, '') AS isolation, "
	"tenant_limit_text(t.id, 'maximum', now()) AS maximum, "
	"tenant_limit_text(t.id, 'default_limit', now()) AS default_limit, "
	"(SELECT count(*) FROM tenant_member m WHERE m.tenant_id = t.id AND m.effective @> now()) AS members, "
	"t.builtin, rfc3339(t.since) AS since, rfc3339(t.until) AS until FROM tenants_known(now()) t "
	"LEFT JOIN tenant_quota q ON q.tenant_id = t.id AND q.effective @> now() "
	"WHERE $1::text IS NULL OR t.name = $1 ORDER BY t.name"};

static const struct db_stmt workspaces = {
	"list workspaces",
	"SELECT w.tenant, w.name, w.description, (SELECT count(*) FROM attribution_rule r WHERE "
	"r.workspace_id = w.id AND r.effective @> now()) AS rules, "
	"(SELECT count(*) FROM workspace_member m WHERE m.workspace_id = w.id AND m.effective @> now()) AS members, "
	"reservation_text(w.id, false, now()) AS reserved, reservation_text(w.id, true, now()) AS reserved_shared, "
	"workspace_limit_text(w.id, 'limit', now()) AS \"limit\", workspace_limit_text(w.id, 'borrow', now()) AS borrow, "
	"workspace_limit_text(w.id, 'lend', now()) AS lend, q.weight, coalesce(q.enforce, '') AS enforce, w.builtin, "
	"rfc3339(w.since) AS since, rfc3339(w.until) AS until FROM workspaces_known(now()) w "
	"LEFT JOIN workspace_quota q ON q.workspace_id = w.id AND q.effective @> now() "
	"WHERE $1::text IS NULL OR w.tenant = $1 ORDER BY w.tenant, w.name"};

/* Capacity of a node: the GPUs seen on it, without retired ones; the declared ones until it was seen. */
static const struct db_stmt nodes = {
	"list nodes",
	"SELECT n.name, c.name AS cluster, coalesce(t.name, '') AS tenant, o.node_id IS NOT NULL "
	"AND o.tenant_id IS NULL AS shared, o.node_id IS NOT NULL AS declared, coalesce(q.isolation, '') AS isolation, "
	"coalesce(x.state, 'in-service') AS state, "
	"(SELECT count(*) FROM gpu_service s WHERE s.node_id = n.id "
	"AND s.until_ns IS NULL) AS gpus, coalesce((SELECT string_agg(g.count || ' ' || g.short_model, ', ' "
	"ORDER BY g.short_model) FROM (SELECT g.short_model, count(*) FROM gpu_now g "
	"WHERE g.node_id = n.id AND NOT EXISTS (SELECT FROM node_state y WHERE y.gpu_id = g.gpu_id "
	"AND y.state = 'retired' AND y.effective @> now()) GROUP BY g.short_model) g), "
	"(SELECT string_agg(CASE WHEN d.profile = '' THEN d.count || ' ' || d.model "
	"ELSE d.count || 'x' || d.profile || ' ' || d.model END, ', ' ORDER BY d.model, d.profile) "
	"FROM node_declared d WHERE d.node_id = n.id AND d.effective @> now()), '') AS capacity, "
	"rfc3339(at_ns(n.covered_until_ns)) AS covered_until, "
	"coalesce(n.silent_until_ns > n.covered_until_ns, false) AS silent, "
	"CASE WHEN n.approved_at IS NULL THEN 'held' WHEN n.held THEN 'releasing' ELSE 'approved' END AS approval, "
	"coalesce(n.approved_by, '') AS approved_by, rfc3339(n.approved_at) AS approved_at, "
	"rfc3339((SELECT min(s.created_at) FROM stream s WHERE s.node_id = n.id)) AS first_seen, "
	"CASE WHEN n.held THEN (SELECT count(*) FROM stream s JOIN ingest_batch b ON b.stream_id = s.id AND b.held_ns IS NOT NULL "
	"WHERE s.node_id = n.id) ELSE 0 END AS held_batches FROM node n "
	"JOIN cluster c ON c.id = n.cluster_id "
	"LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> now() "
	"LEFT JOIN tenant t ON t.id = o.tenant_id "
	"LEFT JOIN tenant_quota q ON q.tenant_id = t.id AND q.effective @> now() "
	"LEFT JOIN node_state x ON x.node_id = n.id AND x.effective @> now() "
	"WHERE $1::text IS NULL OR t.name = $1 ORDER BY n.name"};

static const struct db_stmt members = {
	"list members",
	"SELECT * FROM (SELECT t.name AS tenant, '' AS workspace, m.member AS \"user\", m.role, "
	"rfc3339(lower(m.effective)) AS since FROM tenant_member m JOIN tenant t ON t.id = m.tenant_id "
	"WHERE m.effective @> now() UNION ALL SELECT t.name, w.name, m.member, m.role, rfc3339(lower(m.effective)) "
	"FROM workspace_member m JOIN workspace w ON w.id = m.workspace_id JOIN tenant t ON t.id = w.tenant_id "
	"WHERE m.effective @> now()) m WHERE $1::text IS NULL OR m.tenant = $1 ORDER BY 1, 2, 3"};

/* The terms of the policy over time. A node's states are listed under the tenant that owned it then. */
static const struct db_stmt history = {
	"list history",
	"SELECT h.kind, h.tenant, h.subject, h.value, rfc3339(lower(h.effective)) AS \"from\", "
	"rfc3339(upper(h.effective)) AS until FROM (SELECT 'owner' AS kind, coalesce(t.name, '') AS tenant, "
	"n.name AS subject, coalesce(t.name, 'shared') AS value, o.effective FROM node_owner o "
	"JOIN node n ON n.id = o.node_id LEFT JOIN tenant t ON t.id = o.tenant_id "
	"UNION ALL SELECT 'state', coalesce(t.name, ''), n.name, s.state, "
	"s.effective * coalesce(o.effective, tstzrange(NULL, NULL)) FROM node_state s JOIN node n ON n.id = s.node_id "
	"LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective && s.effective LEFT JOIN tenant t ON t.id = o.tenant_id "
	"UNION ALL SELECT 'state', '', g.uuid, s.state, s.effective FROM node_state s JOIN gpu g ON g.id = s.gpu_id "
	"UNION ALL SELECT 'isolation', t.name, t.name, q.isolation, q.effective FROM tenant_quota q "
	"JOIN tenant t ON t.id = q.tenant_id "
	"UNION ALL SELECT l.kind, t.name, t.name, CASE WHEN l.model = '' THEN '' ELSE l.model || ': ' END "
	"|| quantity_text(l.units, l.profile, l.instances), l.effective FROM tenant_limit l "
	"JOIN tenant t ON t.id = l.tenant_id "
	"UNION ALL SELECT l.kind, t.name, t.name || '/' || w.name, CASE WHEN l.model = '' THEN '' ELSE l.model || ': ' END "
	"|| quantity_text(l.units, l.profile, l.instances), l.effective FROM workspace_limit l "
	"JOIN workspace w ON w.id = l.workspace_id JOIN tenant t ON t.id = w.tenant_id "
	"UNION ALL SELECT CASE WHEN r.shared THEN 'reserved_shared' ELSE 'reserved' END, t.name, t.name || '/' || w.name, "
	"r.model || ': ' || quantity_text(r.units, r.profile, r.instances), r.effective FROM reservation r "
	"JOIN workspace w ON w.id = r.workspace_id JOIN tenant t ON t.id = w.tenant_id UNION ALL TABLE term_history) h "
	"WHERE $1::text IS NULL OR h.tenant = $1 ORDER BY h.kind, h.subject, h.effective, h.value"};

/* Months are the same for everybody. */
static const struct db_stmt periods = {
	"list periods",
	"SELECT month, rfc3339(starts_at) AS starts_at, rfc3339(ends_at) AS ends_at, status FROM period "
	"WHERE $1::text IS NULL OR true ORDER BY month"};

static const struct list {
	const char *what;
	const struct db_stmt *stmt;
} lists[] = {{"tenants", &tenants}, {"workspaces", &workspaces}, {"nodes", &nodes},
             {"members", &members}, {"history", &history},       {"periods", &periods}};

bool
store_list_json(struct db *db, const char *what, const char *tenant, struct buf *out, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		if (strcmp(lists[i].what, what) != 0)
			continue;
		arg_text(&a, tenant);
		if (!db_run(db, lists[i].stmt, &a, &r, err))
			return false;
		res_json(r, out);
		buf_char(out, '\n');
		return buf_ok(out, "the list", err);
	}
	return err_set(err, ERR_MISSING,
	               "there is no list of %s: tenants, workspaces, nodes, members, history, periods", what);
}

bool
store_tenant_known(struct db *db, const char *name, struct err *err)
{
	static const struct db_stmt stmt = {"tenant known", "SELECT FROM tenant WHERE name = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, name);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return PQntuples(r) > 0 || err_set(err, ERR_MISSING, "there is no tenant \"%.64s\"", name);
}

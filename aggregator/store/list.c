/* aggregator/store/list.c - the plain lists of `tollgate get`, as JSON arrays. */
#include <string.h>

#include "aggregator/store/db.h"

/* In all of them $1 is the one tenant that the caller may see; NULL: all. */
static const struct db_stmt tenants = {
	"list tenants",
	"SELECT t.name, t.display_name, t.cost_center, t.owner, "
	"(SELECT count(*) FROM workspace w WHERE w.tenant_id = t.id "
	"AND w.retired_at IS NULL) AS workspaces, t.builtin, rfc3339(t.retired_at) AS retired_at FROM tenant t "
	"WHERE $1::text IS NULL OR t.name = $1 ORDER BY t.name"};

static const struct db_stmt workspaces = {
	"list workspaces",
	"SELECT t.name AS tenant, w.name, w.description, (SELECT count(*) FROM attribution_rule r WHERE "
	"r.workspace_id = w.id AND r.effective @> now()) AS rules, w.builtin, rfc3339(w.retired_at) AS retired_at "
	"FROM workspace w JOIN tenant t ON t.id = w.tenant_id WHERE $1::text IS NULL OR t.name = $1 "
	"ORDER BY t.name, w.name"};

static const struct db_stmt nodes = {
	"list nodes", "SELECT n.name, c.name AS cluster, coalesce(t.name, '') AS tenant, o.node_id IS NOT NULL "
		      "AND o.tenant_id IS NULL AS shared, o.node_id IS NOT NULL AS declared, "
		      "(SELECT count(*) FROM gpu_service s WHERE s.node_id = n.id "
		      "AND s.until_ns IS NULL) AS gpus, rfc3339(at_ns(n.covered_until_ns)) AS covered_until, "
		      "coalesce(n.silent_until_ns > n.covered_until_ns, false) AS silent FROM node n "
		      "JOIN cluster c ON c.id = n.cluster_id "
		      "LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> now() "
		      "LEFT JOIN tenant t ON t.id = o.tenant_id WHERE $1::text IS NULL OR t.name = $1 ORDER BY n.name"};

/* Months are the same for everybody. */
static const struct db_stmt periods = {
	"list periods",
	"SELECT month, rfc3339(starts_at) AS starts_at, rfc3339(ends_at) AS ends_at, status FROM period "
	"WHERE $1::text IS NULL OR true ORDER BY month"};

static const struct list {
	const char *what;
	const struct db_stmt *stmt;
} lists[] = {{"tenants", &tenants}, {"workspaces", &workspaces}, {"nodes", &nodes}, {"periods", &periods}};

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
	return err_set(err, ERR_MISSING, "there is no list of %s: tenants, workspaces, nodes, periods", what);
}

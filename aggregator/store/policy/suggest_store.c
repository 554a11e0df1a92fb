/* aggregator/store/policy/suggest_store.c - loads the input of core/policy/suggest: usage by holder, nodes, the policy in force. */
#include "aggregator/core/policy/suggest.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/policy/policy_store.h"

/* Holders alike in all that a rule can see are one use; beyond so many the smallest are left out. */
#define USES_MAX 100000
#define POLICY_BYTES (4u << 20)

/* Rule changes count from billing hours on, never before the policy in force or inside a closed period: what was decided
 * there stays. */
static bool
effective_at(struct db *db, const struct db_ledger *l, int64_t from_ns, int64_t *ret_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"suggest effective",
		"SELECT ns_of(greatest((SELECT effective_at FROM policy_version ORDER BY id DESC LIMIT 1), "
		"(SELECT max(ends_at) FROM period WHERE status = 'closed')))"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	*ret_ns = hour_floor(l, from_ns);
	if (!res_null(r, 0, 0) && res_i64(r, 0, 0) > *ret_ns)
		*ret_ns = res_i64(r, 0, 0);
	return true;
}

static bool
load_uses(struct db *db, int64_t from_ns, int64_t to_ns, PGresult **ret_rows, struct suggest_use **ret,
          size_t *ret_count, struct err *err)
{
	static const char sql[] =
		"SELECT c.name, h.kind, h.namespace, h.slurm_account, h.user_name, h.uid, h.group_name, "
		"labels_text(h.labels), w.builtin, sum(u.held) FROM (SELECT x.holder_id, x.workspace_id, "
		"sum(x.used + x.idle + x.unmeasured) AS held FROM usage_rows($1, $2) x WHERE x.holder_id IS NOT NULL "
		"GROUP BY x.holder_id, x.workspace_id) u JOIN holder h ON h.id = u.holder_id "
		"JOIN cluster c ON c.id = h.cluster_id JOIN workspace w ON w.id = u.workspace_id "
		"GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 10 DESC, 1, 2, 3, 4, 5, 6, 7, 8 LIMIT $3";
	owned(mem) struct suggest_use *uses = NULL;
	struct db_args a = {0};
	PGresult *r;

	arg_time(&a, from_ns);
	arg_time(&a, to_ns);
	arg_i64(&a, USES_MAX);
	if (!db_run_text(db, sql, &a, ret_rows, err))
		return false;
	r = *ret_rows;
	uses = mem_array((size_t)PQntuples(r), sizeof(*uses));
	for (int row = 0; row < PQntuples(r); row++) {
		uses[row] = (struct suggest_use){
			.cluster = res_text(r, row, 0),
			.holder = {.id = 1,
		                   .kind = (uint32_t)res_i64(r, row, 1),
		                   .ns = PQgetvalue(r, row, 2),
		                   .slurm_account = PQgetvalue(r, row, 3),
		                   .user = PQgetvalue(r, row, 4),
		                   .uid = res_i64(r, row, 5),
		                   .group = PQgetvalue(r, row, 6),
		                   .labels = PQgetvalue(r, row, 7)},
			.attributed = !res_bool(r, row, 8),
		};
		if (!res_i128(r, row, 9, 0, &uses[row].unit_ns, err))
			return false;
	}
	*ret_count = (size_t)PQntuples(r);
	*ret = take(uses);
	return true;
}

static bool
load_nodes(struct db *db, PGresult **ret_rows, struct suggest_node **ret, size_t *ret_count, struct err *err)
{
	static const struct db_stmt stmt = {
		"suggest nodes", "SELECT n.name, c.name, EXISTS (SELECT FROM node_owner o WHERE o.node_id = n.id "
				 "AND upper_inf(o.effective)) FROM node n JOIN cluster c ON c.id = n.cluster_id "
				 "WHERE n.approved_at IS NOT NULL ORDER BY n.name"};
	struct suggest_node *nodes;

	if (!db_run(db, &stmt, NULL, ret_rows, err))
		return false;
	nodes = mem_array((size_t)PQntuples(*ret_rows), sizeof(*nodes));
	for (int row = 0; row < PQntuples(*ret_rows); row++)
		nodes[row] = (struct suggest_node){.name = res_text(*ret_rows, row, 0),
		                                   .cluster = res_text(*ret_rows, row, 1),
		                                   .declared = res_bool(*ret_rows, row, 2)};
	*ret_count = (size_t)PQntuples(*ret_rows);
	*ret = nodes;
	return true;
}

/* No policy in force is fine. */
static bool
load_current(struct db *db, struct buf *text, struct err *err)
{
	struct err why = {0};

	if (store_policy_get(db, NULL, text, &why) || why.kind == ERR_MISSING)
		return true;
	*err = why;
	return false;
}

/* Whole billing hours, one at least. */
static bool
load_range(struct db *db, int64_t from_ns, int64_t to_ns, struct suggest_input *in, struct err *err)
{
	struct db_ledger l;

	if (!db_ledger_get(db, &l, err) || !effective_at(db, &l, from_ns, &in->effective_ns, err))
		return false;
	in->from_ns = in->effective_ns;
	in->to_ns = hour_ceil(&l, to_ns) > in->from_ns ? hour_ceil(&l, to_ns) : in->from_ns + NS_PER_HOUR;
	return true;
}

/* The input of a draft; texts point into the results. */
struct seen {
	PGresult *use_rows, *node_rows, *cluster;
	struct suggest_use *uses;
	struct suggest_node *nodes;
	struct buf current;
};

static void
seen_fini(struct seen *s)
{
	PQclear(s->use_rows);
	PQclear(s->node_rows);
	PQclear(s->cluster);
	mem_free(s->uses);
	mem_free(s->nodes);
	buf_fini(&s->current);
}

bool
store_policy_suggest(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err)
{
	static const struct db_stmt home = {"suggest cluster",
	                                    "SELECT c.name FROM ledger l JOIN cluster c ON c.id = l.cluster_id"};
	in_place(db_tx) struct db_tx tx = {0};
	in_place(seen) struct seen s = {0};
	struct suggest_input in = {0};

	buf_init(&s.current, POLICY_BYTES);
	if (!db_tx_begin_read(&tx, db, err) || !load_range(db, from_ns, to_ns, &in, err) ||
	    !load_uses(db, in.from_ns, in.to_ns, &s.use_rows, &s.uses, &in.use_count, err) ||
	    !load_nodes(db, &s.node_rows, &s.nodes, &in.node_count, err) || !load_current(db, &s.current, err) ||
	    !db_run(db, &home, NULL, &s.cluster, err) || !db_tx_commit(&tx, err))
		return false;
	in.cluster = res_text(s.cluster, 0, 0);
	in.uses = s.uses;
	in.nodes = s.nodes;
	in.current = s.current.len > 0 ? buf_text(&s.current) : NULL;
	in.current_len = s.current.len;
	return suggest_policy(&in, out, err);
}

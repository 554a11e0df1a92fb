/* aggregator/store/ingest/gpu_move.c - an operator moves a GPU to another node: its service on the old node ends, and
 * the other node may report it. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/ingest/ingest.h"

#define ATTEMPTS 5

static bool
find(struct db *db, const struct gpu_move *m, int64_t *ret_gpu, int64_t *ret_node, struct err *err)
{
	static const struct db_stmt stmt = {
		"gpu move find",
		"SELECT (SELECT id FROM gpu WHERE uuid = $1), (SELECT id FROM node WHERE name = $2), (SELECT n.name FROM gpu g "
		"JOIN gpu_declared d ON d.gpu_id = g.id JOIN node n ON n.id = d.node_id WHERE g.uuid = $1 AND n.name <> $2 "
		"AND (upper_inf(d.effective) OR upper(d.effective) > hour_of($3)) LIMIT 1)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, m->gpu);
	arg_text(&a, m->node);
	arg_i64(&a, m->at_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (res_null(r, 0, 0))
		return err_set(err, ERR_MISSING, "gpu: there is no GPU \"%.64s\"", m->gpu);
	if (res_null(r, 0, 1))
		return err_set(err, ERR_MISSING, "node: there is no node \"%.64s\"", m->node);
	if (!res_null(r, 0, 2))
		return err_set(err, ERR_CONFLICT, "GPU %.64s is listed under node %s by the policy: move it there",
		               m->gpu, res_text(r, 0, 2));
	*ret_gpu = res_i64(r, 0, 0);
	*ret_node = res_i64(r, 0, 1);
	return true;
}

static bool
move(struct db *db, const struct gpu_move *m, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {"gpu move", "SELECT gpu_move($1, $2, $3, $4, $5)"};
	static const struct db_stmt show = {
		"gpu move show",
		"SELECT g.uuid AS gpu, n.name AS node, coalesce(t.name, n.name) AS next_node, rfc3339(at_ns(s.until_ns)) AS until "
		"FROM gpu g JOIN gpu_service s ON s.gpu_id = g.id JOIN node n ON n.id = s.node_id LEFT JOIN node t ON t.id = s.moved_to "
		"WHERE g.id = $1 ORDER BY s.from_ns DESC LIMIT 1"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0}, one = {0};
	int64_t gpu = 0, node = 0;

	if (!db_tx_begin(&tx, db, err) || !find(db, m, &gpu, &node, err))
		return false;
	arg_i64(&a, gpu);
	arg_i64(&a, node);
	arg_i64(&a, m->at_ns);
	arg_text(&a, m->actor);
	arg_text(&a, m->why);
	arg_i64(&one, gpu);
	if (!db_run(db, &stmt, &a, NULL, err) || !db_run(db, &show, &one, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_CONFLICT, "GPU %.64s was never in service", m->gpu);
	if (!db_tx_commit(&tx, err))
		return false;
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the GPU", err);
}

bool
store_gpu_move(struct db *db, const struct gpu_move *m, struct buf *out, struct err *err)
{
	/* A push may claim the same GPU at the same moment. */
	for (int attempt = 1;; attempt++) {
		if (move(db, m, out, err))
			return true;
		if (attempt == ATTEMPTS || !db_contended(db))
			return false;
	}
}

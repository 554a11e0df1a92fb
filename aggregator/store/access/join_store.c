/* aggregator/store/access/join_store.c - a node exchanges a join token, once, for its own token.
 *
 * Rules, in order:
 *  1. a join token works once, before it expires, unless it was revoked; only one transaction can use it
 *  2. a join token made for a node enrols no other
 *  3. a join token without a node cannot use a name that has an active token or is approved: it would speak for
 *     another's node
 *  4. a join token made for a node with active tokens revokes them in the same transaction, with an audit entry: a
 *     node has one token
 *  5. a refused join leaves the join token unchanged
 *  6. a join token made for a node approves that node, because its maker named it; one without a node does not */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/access/access.h"
#include "aggregator/store/access/token.h"

#define JOIN_STATUS                                                                                      \
	"CASE WHEN j.used_at IS NOT NULL THEN 'used' WHEN j.revoked_at IS NOT NULL THEN 'revoked' WHEN " \
	"j.expires_at <= now() THEN 'expired' ELSE 'active' END"
#define JOIN_COLUMNS                                                                                               \
	"j.id, j.node, j.description, j.created_by, rfc3339(j.created_at) AS created, "                            \
	"rfc3339(j.expires_at) AS expires, rfc3339(j.used_at) AS used, k.node AS used_by_node, k.id AS token_id, " \
	"rfc3339(j.revoked_at) AS revoked, " JOIN_STATUS " AS status "

bool
store_join_token_create(struct db *db, const struct join_token_request *rq, const char *actor, struct token_made *ret,
                        struct err *err)
{
	static const struct db_stmt insert = {
		"join token insert",
		"WITH made AS (INSERT INTO join_token AS j (sha256, node, description, created_by, expires_at) "
		"VALUES ($1, $2, $3, $4, $5) RETURNING j.id, shown(j) AS after), "
		"entered AS (INSERT INTO audit_log (actor, action, subject, after) "
		"SELECT $4, 'join-token.create', 'join token ' || id, after FROM made) "
		"SELECT id FROM made"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct token_made made = {0};
	uint8_t sha[SHA256_SIZE];
	struct db_args a = {0};

	if ((rq->node && !token_check_node(rq->node, err)) || !token_check_description(rq->description, err))
		return false;
	token_random(made.token, sha);
	arg_bytes(&a, sha, sizeof(sha));
	arg_text(&a, rq->node);
	arg_text(&a, rq->description ? rq->description : "");
	arg_text(&a, actor);
	arg_time(&a, rq->expires_ns);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &insert, &a, &r, err) || !db_tx_commit(&tx, err))
		return false;
	made.id = res_i64(r, 0, 0);
	snprintf(made.name, sizeof(made.name), "join token #%" PRId64, made.id);
	*ret = made;
	return true;
}

bool
store_join_tokens_json(struct db *db, const char *status, const struct page *page, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT " JOIN_COLUMNS "FROM join_token j LEFT JOIN access_token k ON k.join_token_id = j.id "
		"WHERE ($1::text IS NULL OR " JOIN_STATUS " = $1) AND ($2::bigint = 0 OR j.id < $2) "
		"ORDER BY j.id DESC LIMIT $3::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, status);
	arg_i64(&a, page->before);
	arg_i64(&a, page->limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "join_tokens", page->limit, out, err);
}

static bool
end_join_token(struct db *db, int64_t id, const char *actor, struct err *err)
{
	static const struct db_stmt stmt = {
		"join token revoke",
		"WITH ended AS (UPDATE join_token j SET revoked_at = now(), revoked_by = $2 "
		"WHERE j.id = $1 AND j.used_at IS NULL AND j.revoked_at IS NULL RETURNING j.id, shown(j) AS after) "
		"INSERT INTO audit_log (actor, action, subject, before, after) "
		"SELECT $2, 'join-token.revoke', 'join token ' || e.id, shown(j), e.after "
		"FROM join_token j JOIN ended e ON e.id = j.id"};
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, actor);
	return db_run(db, &stmt, &a, NULL, err);
}

bool
store_join_token_revoke(struct db *db, int64_t id, const char *actor, struct buf *out, struct err *err)
{
	static const struct db_stmt row = {"join token row",
	                                   "SELECT " JOIN_COLUMNS "FROM join_token j "
	                                   "LEFT JOIN access_token k ON k.join_token_id = j.id WHERE j.id = $1"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, id);
	if (!db_tx_begin(&tx, db, err) || !end_join_token(db, id, actor, err) || !db_run(db, &row, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "there is no join token %" PRId64, id);
	if (!res_null(r, 0, 6))
		return err_set(err, ERR_CONFLICT,
		               "join token %" PRId64 " was used by node %s at %s: revoke its token, %s", id,
		               res_text(r, 0, 7), res_text(r, 0, 6), res_text(r, 0, 8));
	if (!db_tx_commit(&tx, err))
		return false;
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the join token", err);
}

/* --- the exchange --- */

/* Rule 1. Of two transactions the second waits for the first, and then finds no unused token. */
static bool
take_join_token(struct db *db, const uint8_t sha[SHA256_SIZE], PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"join take", "UPDATE join_token SET used_at = now() WHERE sha256 = $1 AND used_at IS NULL AND "
			     "revoked_at IS NULL AND expires_at > now() RETURNING id, node"};
	struct db_args a = {0};

	arg_bytes(&a, sha, SHA256_SIZE);
	return db_run(db, &stmt, &a, ret, err);
}

/* The bearer of a join token may learn its state: that another node has used it is important to know. */
static bool
refuse(struct db *db, const uint8_t sha[SHA256_SIZE], struct err *err)
{
	static const struct db_stmt stmt = {
		"join why", "SELECT " JOIN_STATUS ", rfc3339(coalesce(j.used_at, j.revoked_at, j.expires_at)), k.node "
			    "FROM join_token j LEFT JOIN access_token k ON k.join_token_id = j.id WHERE j.sha256 = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_bytes(&a, sha, SHA256_SIZE);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_DENIED, "the join token is not known");
	if (!res_null(r, 0, 2))
		return err_set(err, ERR_DENIED, "the join token was used at %s, for node %s; it works once",
		               res_text(r, 0, 1), res_text(r, 0, 2));
	return err_set(err, ERR_DENIED, "the join token %s at %s",
	               res_text(r, 0, 0)[0] == 'r' ? "was revoked" : "expired", res_text(r, 0, 1));
}

bool
store_join_check(struct db *db, const char *join_token, struct err *err)
{
	static const struct db_stmt stmt = {
		"join check",
		"SELECT 1 FROM join_token WHERE sha256 = $1 AND used_at IS NULL AND revoked_at IS NULL AND "
		"expires_at > now()"};
	owned(result) PGresult *r = NULL;
	uint8_t sha[SHA256_SIZE];
	struct db_args a = {0};

	sha256(join_token, strlen(join_token), sha);
	arg_bytes(&a, sha, SHA256_SIZE);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return PQntuples(r) > 0 || refuse(db, sha, err);
}

/* Rule 4. The node's earlier tokens are refused from now on. */
static bool
end_tokens_of(struct db *db, const char *node, const char *actor, struct err *err)
{
	static const struct db_stmt stmt = {
		"join end", "WITH ended AS (UPDATE access_token k SET revoked_at = now(), revoked_by = $2 "
			    "WHERE k.node = $1 AND k.revoked_at IS NULL RETURNING k.id, shown(k) AS after) "
			    "INSERT INTO audit_log (actor, action, subject, before, after, reason) "
			    "SELECT $2, 'token.revoke', 'token ' || e.id, shown(k), e.after, 'the node enrolled again' "
			    "FROM access_token k JOIN ended e ON e.id = k.id ORDER BY e.id"};
	struct db_args a = {0};

	arg_text(&a, node);
	arg_text(&a, actor);
	return db_run(db, &stmt, &a, NULL, err);
}

/* Rule 3. */
static bool
check_name_is_free(struct db *db, const char *node, struct err *err)
{
	static const struct db_stmt stmt = {
		"join name",
		"SELECT (SELECT id FROM access_token WHERE node = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) ORDER BY id "
		"LIMIT 1), EXISTS (SELECT FROM node WHERE name = $1 AND approved_at IS NOT NULL)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, node);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (!res_null(r, 0, 0))
		return err_set(
			err, ERR_CONFLICT,
			"node: %s has an active token (%s): revoke it, or join with a join token made for that node",
			node, res_text(r, 0, 0));
	return !res_bool(r, 0, 1) || err_set(err, ERR_CONFLICT,
	                                     "node: %s is approved, so it joins with a join token made for that node: "
	                                     "tollgate node join-token --node %s",
	                                     node, node);
}

static bool
exchange(struct db *db, const PGresult *taken, const char *node, struct token_made *ret, struct err *err)
{
	struct token_request rq = {.role = ROLE_NODE, .node = node};
	struct token_source from = {.action = "node.join",
	                            .join_token_id = res_text(taken, 0, 0),
	                            .approves = !res_null(taken, 0, 1)};
	char actor[64];

	snprintf(actor, sizeof(actor), "join token #%s", res_text(taken, 0, 0));
	return (res_null(taken, 0, 1) || end_tokens_of(db, node, actor, err)) &&
	       token_insert(db, &rq, actor, &from, ret, err);
}

bool
store_join(struct db *db, const char *join_token, const char *node, struct token_made *ret, bool *ret_known,
           struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *taken = NULL;
	struct token_made made;
	uint8_t sha[SHA256_SIZE];

	*ret_known = false;
	sha256(join_token, strlen(join_token), sha);
	if (!db_tx_begin(&tx, db, err) || !take_join_token(db, sha, &taken, err))
		return false;
	if (PQntuples(taken) == 0)
		return refuse(db, sha, err);
	*ret_known = true;
	/* the lock serialises two join tokens for the same name */
	if (!token_check_node(node, err) || !db_script(db, "SELECT pg_advisory_xact_lock(" DB_LOCK_JOIN ")", err))
		return false;
	if (res_null(taken, 0, 1)) {
		if (!check_name_is_free(db, node, err))
			return false;
	} else if (strcmp(res_text(taken, 0, 1), node) != 0) {
		return err_set(err, ERR_DENIED, "node: the join token is for node %s, not for %s",
		               res_text(taken, 0, 1), node);
	}
	if (!exchange(db, taken, node, &made, err) || !db_tx_commit(&tx, err))
		return false;
	*ret = made;
	return true;
}

bool
store_node_approve(struct db *db, const char *node, const char *actor, const char *reason, bool make, bool *ret_changed,
                   struct err *err)
{
	static const struct db_stmt stmt = {
		"node approve",
		"SELECT node_approve($1, $2, $3, $4::boolean), EXISTS (SELECT FROM node WHERE name = $1)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, node);
	arg_text(&a, actor);
	arg_text(&a, reason);
	arg_text(&a, make ? "t" : "f");
	if (!db_write(db, &stmt, &a, &r, err))
		return false;
	if (!make && !res_bool(r, 0, 1))
		return err_set(err, ERR_MISSING, "there is no node \"%.253s\"", node);
	*ret_changed = res_bool(r, 0, 0);
	return true;
}

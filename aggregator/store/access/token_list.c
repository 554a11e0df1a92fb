/* aggregator/store/access/token_list.c - tokens as people see them, and their end. */
#include "aggregator/store/access/access.h"
#include "aggregator/store/access/token.h"

#define TOKEN_COLUMNS                                                                                                \
	"k.id, k.role, t.name AS tenant, k.node, array_to_string(k.sources, ',') AS sources, " TOKEN_NAME            \
	" AS name, k.description, k.created_by, "                                                                    \
	"rfc3339(k.created_at) AS created, rfc3339(k.expires_at) AS expires, rfc3339(k.last_used_at) AS last_used, " \
	"rfc3339(k.revoked_at) AS revoked, k.revoked_by, " TOKEN_STATUS " AS status "
#define TOKEN_STATUS                                                                                        \
	"CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= now() THEN 'expired' ELSE " \
	"'active' END"

/* Not prepared: planned for the filters given, each with its own index. */
bool
store_tokens_json(struct db *db, const struct token_query *q, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT " TOKEN_COLUMNS "FROM access_token k LEFT JOIN tenant t ON t.id = k.tenant_id "
		"WHERE ($1::text IS NULL OR k.tenant_id = (SELECT id FROM tenant WHERE name = $1)) "
		"AND ($2::text IS NULL OR k.role = $2) AND ($3::text IS NULL OR k.node = $3) "
		"AND ($4::text IS NULL OR " TOKEN_STATUS " = $4) AND ($5::bigint = 0 OR k.id < $5) "
		"ORDER BY k.id DESC LIMIT $6::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->tenant);
	arg_text(&a, q->role);
	arg_text(&a, q->node);
	arg_text(&a, q->status);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "tokens", q->page.limit, out, err);
}

/* One that is over already stays as it was, and the log has it once. */
static bool
end_token(struct db *db, int64_t id, const char *tenant, const char *actor, struct err *err)
{
	static const struct db_stmt stmt = {
		"token revoke", "WITH ended AS (UPDATE access_token k SET revoked_at = now(), revoked_by = $3 "
				"WHERE k.id = $1 AND k.revoked_at IS NULL AND "
				"($2::text IS NULL OR k.tenant_id = (SELECT t.id FROM tenant t WHERE t.name = $2)) "
				"RETURNING k.id, k.tenant_id, shown(k) AS after) "
				"INSERT INTO audit_log (actor, action, subject, before, after, tenant_id) "
				"SELECT $3, 'token.revoke', 'token ' || e.id, shown(k), e.after, e.tenant_id "
				"FROM access_token k JOIN ended e ON e.id = k.id"};
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, tenant);
	arg_text(&a, actor);
	return db_run(db, &stmt, &a, NULL, err);
}

bool
store_token_json(struct db *db, int64_t id, const char *tenant, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {"token row", "SELECT " TOKEN_COLUMNS
	                                                 "FROM access_token k LEFT JOIN tenant t ON t.id = k.tenant_id "
	                                                 "WHERE k.id = $1 AND ($2::text IS NULL OR t.name = $2)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "there is no token %" PRId64, id);
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the token", err);
}

bool
store_token_revoke(struct db *db, int64_t id, const char *tenant, const char *actor, struct buf *out, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	return db_tx_begin(&tx, db, err) && end_token(db, id, tenant, actor, err) &&
	       store_token_json(db, id, tenant, out, err) && db_tx_commit(&tx, err);
}

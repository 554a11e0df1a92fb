/* aggregator/store/access/token_store.c - bearer tokens: 256 random bits, of which only the SHA-256 is stored.
 *
 * A token is looked up by the hash of the presented text, so a right, a wrong, an expired and a nearly right token
 * take the same time. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/access/access.h"
#include "aggregator/store/access/token.h"
#include "common/base/text.h"

#define TOKEN_BYTES 32
#define DESCRIPTION_MAX 200
#define NODE_MAX 253
#define TOKEN_SOURCES_MAX 64
#define TOKEN_SOURCE_MAX 512 /* same limit as in core/metering/events.h */

enum scope { SCOPE_ALL, SCOPE_TENANT, SCOPE_NODE, SCOPE_SOURCES };
static const struct role_row {
	uint32_t role;
	const char *name;
	enum scope scope;
} roles[] = {
	{ROLE_ADMIN, "admin", SCOPE_ALL},
	{ROLE_BILLING, "billing", SCOPE_ALL},
	{ROLE_TENANT_ADMIN, "tenant-admin", SCOPE_TENANT},
	{ROLE_DEVELOPER, "developer", SCOPE_TENANT},
	{ROLE_VIEWER, "viewer", SCOPE_TENANT},
	{ROLE_NODE, "node", SCOPE_NODE},
	{ROLE_SCHEDULER, "scheduler", SCOPE_ALL},
	{ROLE_METER, "meter", SCOPE_SOURCES},
};

static const struct role_row *
role_row(uint32_t role)
{
	for (size_t i = 0; i < ARRAY_LEN(roles); i++)
		if (roles[i].role == role)
			return &roles[i];
	return NULL;
}

const char *
role_name(uint32_t role)
{
	const struct role_row *row = role_row(role);

	return row ? row->name : "?";
}

bool
role_parse(const char *text, uint32_t *ret, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
		if (strcmp(roles[i].name, text) == 0) {
			*ret = roles[i].role;
			return true;
		}
	}
	return err_set(
		err, ERR_INVALID,
		"role \"%s\" is not one of admin, billing, tenant-admin, developer, viewer, node, scheduler, meter",
		text);
}

/* Sources separated by commas, without spaces; each is the attribute source of its events. */
static bool
check_sources(const char *sources, struct err *err)
{
	size_t count = 0;

	for (const char *s = sources;; s++) {
		size_t n = strcspn(s, ",");

		if (n == 0 || n > TOKEN_SOURCE_MAX)
			return err_set(err, ERR_INVALID, "sources: source %zu has %zu bytes, 1 to %d are allowed",
			               count + 1, n, TOKEN_SOURCE_MAX);
		if (++count > TOKEN_SOURCES_MAX)
			return err_set(err, ERR_INVALID, "sources: more than %d sources", TOKEN_SOURCES_MAX);
		s += n;
		if (*s == '\0')
			break;
	}
	if (strchr(sources, '*') != NULL)
		return err_set(err, ERR_INVALID,
		               "sources: \"%.64s\" has a *: a source is as events name it, and there are no patterns",
		               sources);
	return (text_is_clean(sources) && strchr(sources, ' ') == NULL) ||
	       err_set(err, ERR_INVALID, "sources: they are UTF-8 text without spaces and control characters");
}

/* A role says what a token must name: one tenant, one node, sources of events, or nothing. */
static bool
check_scope(const struct role_row *row, const char *tenant, const char *node, const char *sources, struct err *err)
{
	if ((row->scope == SCOPE_SOURCES) != (sources != NULL))
		return err_set(err, ERR_INVALID,
		               sources ? "sources: a token of role %s names none"
		                       : "sources: a token of role %s needs them",
		               row->name);
	if (sources != NULL && !check_sources(sources, err))
		return false;
	if ((row->scope == SCOPE_TENANT) != (tenant != NULL))
		return err_set(err, ERR_INVALID,
		               tenant ? "tenant: a token of role %s is not bound to a tenant"
		                      : "tenant: a token of role %s needs one",
		               row->name);
	if ((row->scope == SCOPE_NODE) != (node != NULL))
		return err_set(err, ERR_INVALID,
		               node ? "node: a token of role %s is not bound to a node"
		                    : "node: a token of role %s needs one",
		               row->name);
	return node == NULL || token_check_node(node, err);
}

bool
token_check_node(const char *node, struct err *err)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-._";
	size_t n = strlen(node);

	/* characters of host names: no two different nodes may look the same in a list */
	return (n > 0 && n <= NODE_MAX && strspn(node, letters) == n && node[0] != '-' && node[0] != '.') ||
	       err_set(err, ERR_INVALID,
	               "node: \"%.64s\" is not the name of a node: 1 to %d letters, digits, '-', '.' and '_'",
	               text_is_clean(node) ? node : "", NODE_MAX);
}

bool
token_check_description(const char *text, struct err *err)
{
	return text == NULL || (strlen(text) <= DESCRIPTION_MAX && text_is_clean(text)) ||
	       err_set(err, ERR_INVALID, "description: it has %zu bytes; it is one line of UTF-8 text of at most %d",
	               strlen(text), DESCRIPTION_MAX);
}

void
token_random(char ret_token[72], uint8_t ret_sha[SHA256_SIZE])
{
	uint8_t secret[TOKEN_BYTES];

	random_bytes(secret, sizeof(secret));
	hex_encode(secret, sizeof(secret), ret_token);
	sha256(ret_token, 2 * TOKEN_BYTES, ret_sha);
}

static bool
tenant_id_of(struct db *db, const char *tenant, char id[TIME_TEXT_SIZE], struct err *err)
{
	static const struct db_stmt stmt = {"token tenant", "SELECT id FROM tenants_at(now()) WHERE name = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "tenant: there is no tenant \"%s\"", tenant);
	snprintf(id, TIME_TEXT_SIZE, "%s", res_text(r, 0, 0));
	return true;
}

bool
token_insert(struct db *db, const struct token_request *rq, const char *actor, const struct token_source *from,
             struct token_made *ret, struct err *err)
{
	static const struct db_stmt insert = {
		"token insert",
		"WITH made AS (INSERT INTO access_token AS k (sha256, role, tenant_id, node, description, created_by, "
		"expires_at, join_token_id, sources) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, string_to_array($10, ',')) "
		"RETURNING k.id, k.role, k.tenant_id, k.node, shown(k) AS after), "
		"entered AS (INSERT INTO audit_log (actor, action, subject, after, tenant_id) "
		"SELECT $6, $9::text, 'token ' || id, after, tenant_id FROM made) "
		"SELECT k.id, " TOKEN_NAME " FROM made k LEFT JOIN tenant t ON t.id = k.tenant_id"};
	owned(result) PGresult *r = NULL;
	uint8_t sha[SHA256_SIZE];
	char tenant_id[TIME_TEXT_SIZE];
	struct db_args a = {0};
	bool ignored;

	if (rq->tenant && !tenant_id_of(db, rq->tenant, tenant_id, err))
		return false;
	token_random(ret->token, sha);
	arg_bytes(&a, sha, SHA256_SIZE);
	arg_text(&a, role_name(rq->role));
	arg_text(&a, rq->tenant ? tenant_id : NULL);
	arg_text(&a, rq->node);
	arg_text(&a, rq->description ? rq->description : "");
	arg_text(&a, actor);
	arg_expiry(&a, rq->expires_ns);
	arg_text(&a, from->join_token_id);
	arg_text(&a, from->action);
	arg_text(&a, rq->sources);
	if (!db_run(db, &insert, &a, &r, err) ||
	    (from->approves &&
	     !store_node_approve(db, rq->node, actor, "a token was made for its name", true, &ignored, err)))
		return false;
	ret->id = res_i64(r, 0, 0);
	token_copy_text(ret->name, sizeof(ret->name), res_text(r, 0, 1));
	return true;
}

bool
store_token_create(struct db *db, const struct token_request *rq, const char *actor, struct token_made *ret,
                   struct err *err)
{
	const struct role_row *row = role_row(rq->role);
	in_place(db_tx) struct db_tx tx = {0};
	struct token_made made;

	if (!row)
		return err_set(err, ERR_INVALID, "role %" PRIu32 " does not exist", rq->role);
	if (!check_scope(row, rq->tenant, rq->node, rq->sources, err) ||
	    !token_check_description(rq->description, err) || !db_tx_begin(&tx, db, err) ||
	    !token_insert(db, rq, actor,
	                  &(struct token_source){.action = "token.create", .approves = rq->role == ROLE_NODE}, &made,
	                  err) ||
	    !db_tx_commit(&tx, err))
		return false;
	*ret = made;
	return true;
}

void
arg_expiry(struct db_args *a, int64_t expires_ns)
{
	if (expires_ns == 0)
		arg_text(a, NULL);
	else
		arg_time(a, expires_ns);
}

void
token_copy_text(char *out, size_t size, const char *text)
{
	size_t n = strlen(text), used = 0, step;
	uint32_t code;

	while (used < n && (step = utf8_next(text + used, n - used, &code)) > 0 && used + step < size)
		used += step;
	memcpy(out, text, used);
	out[used] = '\0';
}

/* At most one write per hour and token. It waits for no lock, and its failure is ignored: the token's rights do not
 * depend on it. */
static void
note_use(struct db *db, int64_t id)
{
	static const struct db_stmt stmt = {
		"token used", "UPDATE access_token SET last_used_at = date_trunc('hour', now()) WHERE id = "
			      "(SELECT id FROM access_token WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED)"};
	struct db_args a = {0};
	struct err ignored;

	arg_i64(&a, id);
	if (!db_put(db, &stmt, &a, NULL, &ignored))
		return;
}

static void
set_look_result(struct db *db, struct token_look *l, const PGresult *r, int row)
{
	l->who = (struct identity_row){.token_id = res_i64(r, row, 1)};
	token_copy_text(l->who.node, sizeof(l->who.node), res_text(r, row, 3));
	token_copy_text(l->who.tenant, sizeof(l->who.tenant), res_text(r, row, 4));
	token_copy_text(l->who.name, sizeof(l->who.name), res_text(r, row, 5));
	l->err = (struct err){0};
	if (!role_parse(res_text(r, row, 2), &l->who.role, &l->err))
		return;
	if (res_bool(r, row, 6))
		note_use(db, l->who.token_id);
}

/* OFFSET 0: each hash is looked up by its index, whatever statistics the planner had. (SELECT ...): hides the number
 * of hashes from the planner, so that one plan serves all. */
void
store_tokens_check(struct db *db, struct token_look *const *looks, size_t n)
{
	static const struct db_stmt stmt = {
		"token check",
		"SELECT e.place, k.id, k.role, coalesce(k.node, ''), coalesce(t.name, ''), " TOKEN_NAME ", "
		"k.last_used_at IS NULL OR k.last_used_at < date_trunc('hour', now()) "
		"FROM unnest((SELECT $1::bytea[])) WITH ORDINALITY AS e(sha256, place) "
		"JOIN LATERAL (SELECT * FROM access_token a WHERE a.sha256 = e.sha256 AND a.revoked_at IS NULL "
		"AND (a.expires_at IS NULL OR a.expires_at > now()) OFFSET 0) k ON true "
		"LEFT JOIN LATERAL (SELECT name FROM tenant WHERE id = k.tenant_id OFFSET 0) t ON true"};
	owned(result) PGresult *r = NULL;
	in_place(db_blobs) struct db_blobs hashes = {0};
	struct err err = {0};
	struct db_args a = {0};

	ASSERT(n > 0 && n <= TOKEN_LOOKS_MAX);
	db_blobs_init(&hashes);
	for (size_t i = 0; i < n; i++) {
		uint8_t sha[SHA256_SIZE];

		sha256(looks[i]->token, strlen(looks[i]->token), sha);
		blobs_add(&hashes, sha, sizeof(sha));
		looks[i]->err.kind = ERR_DENIED;
	}
	arg_blobs(&a, &hashes);
	if (!db_run(db, &stmt, &a, &r, &err)) {
		for (size_t i = 0; i < n; i++)
			looks[i]->err = err;
		return;
	}
	for (int row = 0; row < PQntuples(r); row++)
		set_look_result(db, looks[res_i64(r, row, 0) - 1], r, row);
	for (size_t i = 0; i < n; i++)
		if (looks[i]->err.kind == ERR_DENIED)
			err_set(&looks[i]->err, ERR_DENIED, STORE_TOKEN_REFUSED);
}

bool
store_token_check(struct db *db, const char *token, struct identity_row *ret, struct err *err)
{
	struct token_look look = {.token = token}, *looks = &look;

	store_tokens_check(db, &looks, 1);
	if (look.err.kind != ERR_NONE) {
		*err = look.err;
		return false;
	}
	*ret = look.who;
	return true;
}

/* --- list and revocation --- */

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

/* Revoking a token that is expired or revoked changes nothing, and the log has it once. */
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

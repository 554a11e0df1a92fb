/* aggregator/store/token_store.c - bearer tokens: 256 random bits, of which only the SHA-256 is kept. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/db.h"
#include "common/digest.h"
#include "common/text.h"

#define TOKEN_BYTES 32

enum scope { SCOPE_ALL, SCOPE_TENANT, SCOPE_NODE };
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
	return err_set(err, ERR_INVALID,
	               "role \"%s\" is not one of admin, billing, tenant-admin, developer, viewer, node, scheduler",
	               text);
}

/* A role says what a token must name: one tenant, one node, or nothing. */
static bool
check_scope(const struct role_row *row, const char *tenant, const char *node, struct err *err)
{
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
	if (node && (node[0] == '\0' || strlen(node) > 253 || !text_is_clean(node)))
		return err_set(err, ERR_INVALID, "node: its name has %zu bytes; it is UTF-8 text of 1 to 253",
		               strlen(node));
	return true;
}

static bool
tenant_id_of(struct db *db, const char *tenant, char id[TIME_TEXT_SIZE], struct err *err)
{
	static const struct db_stmt stmt = {"token tenant",
	                                    "SELECT id FROM tenant WHERE name = $1 AND retired_at IS NULL"};
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

static bool
insert_token(struct db *db, const struct role_row *row, const char *tenant, const char *node, const char *actor,
             const uint8_t sha[SHA256_SIZE], struct err *err)
{
	static const struct db_stmt insert = {
		"token insert",
		"WITH made AS (INSERT INTO access_token (sha256, role, tenant_id, node, created_by) VALUES ($1, "
		"$2, $3, $4, $5) RETURNING id) INSERT INTO audit_log (actor, action, subject, after) "
		"SELECT $5, 'token.create', 'token ' || id, jsonb_build_object('role', $2::text, 'tenant', "
		"$6::text, 'node', $4::text) FROM made"};
	char tenant_id[TIME_TEXT_SIZE];
	struct db_args a = {0};

	if (tenant && !tenant_id_of(db, tenant, tenant_id, err))
		return false;
	arg_bytes(&a, sha, SHA256_SIZE);
	arg_text(&a, row->name);
	arg_text(&a, tenant ? tenant_id : NULL);
	arg_text(&a, node);
	arg_text(&a, actor);
	arg_text(&a, tenant);
	return db_run(db, &insert, &a, NULL, err);
}

bool
store_token_create(struct db *db, uint32_t role, const char *tenant, const char *node, const char *actor,
                   char ret_token[72], struct err *err)
{
	const struct role_row *row = role_row(role);
	in_place(db_tx) struct db_tx tx = {0};
	uint8_t secret[TOKEN_BYTES], sha[SHA256_SIZE];
	char token[2 * TOKEN_BYTES + 1];

	if (!row)
		return err_set(err, ERR_INVALID, "role %" PRIu32 " does not exist", role);
	if (!check_scope(row, tenant, node, err))
		return false;
	random_bytes(secret, sizeof(secret));
	hex_encode(secret, sizeof(secret), token);
	sha256(token, 2 * TOKEN_BYTES, sha);
	if (!db_tx_begin(&tx, db, err) || !insert_token(db, row, tenant, node, actor, sha, err) ||
	    !db_tx_commit(&tx, err))
		return false;
	memcpy(ret_token, token, sizeof(token));
	return true;
}

/* As much of "ROLE SUBJECT" as fits, in whole characters. */
static void
copy_text(char *out, size_t size, const char *text)
{
	size_t n = strlen(text), used = 0, step;
	uint32_t code;

	while (used < n && (step = utf8_next(text + used, n - used, &code)) > 0 && used + step < size)
		used += step;
	memcpy(out, text, used);
	out[used] = '\0';
}

bool
store_token_check(struct db *db, const char *token, struct identity_row *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"token check",
		"SELECT k.id, k.role, coalesce(k.node, ''), coalesce(t.name, ''), "
		"k.role || coalesce(' ' || k.node, ' ' || t.name, ' #' || k.id) FROM access_token k "
		"LEFT JOIN tenant t ON t.id = k.tenant_id "
		"WHERE k.sha256 = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())"};
	owned(result) PGresult *r = NULL;
	uint8_t sha[SHA256_SIZE];
	struct db_args a = {0};

	sha256(token, strlen(token), sha);
	arg_bytes(&a, sha, sizeof(sha));
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_DENIED, "the token is not known, has expired or was revoked");
	*ret = (struct identity_row){.token_id = res_i64(r, 0, 0)};
	copy_text(ret->node, sizeof(ret->node), res_text(r, 0, 2));
	copy_text(ret->tenant, sizeof(ret->tenant), res_text(r, 0, 3));
	copy_text(ret->name, sizeof(ret->name), res_text(r, 0, 4));
	return role_parse(res_text(r, 0, 1), &ret->role, err);
}

/* aggregator/store/db/rights.c - the owner of the schema and the rights of the daemon's logins.
 *
 * Rules, in order:
 *  1. the owner migrates and does nothing else; a superuser that migrates acts as the owner's role, so that no function of the schema has a superuser's rights
 *  2. a missing role is created where the login may create roles; else the message has the statement that creates it
 *  3. the schema is the migrating login's own, or a superuser hands it over
 *  4. neither the daemon's nor the roll-up's role is a superuser, or the owner, or a member of the owner's role
 *  5. rights are granted again at the end of every migration (sql/access/grants.sql)
 *  6. a daemon does not start with logins that have more rights than these, or fewer */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/db/db.h"
#include "aggregator/store/db/migrate.h"

#define OWNER_ROLE "tollgate_owner"
#define DAEMON_ROLE "tollgate"
#define ROLLUP_ROLE "tollgate_rollup"
/* Derived tables, for rule 6: only the roll-up's login may write them. */
#define DERIVED                                                                                              \
	"ARRAY['usage_hourly','usage_daily','node_hour','billing_day','charge_day','reserve_day',"           \
	"'loan_day','pool_day','lost_hold','late_change','period','period_close','invoice','invoice_total'," \
	"'invoice_line','invoice_document']"

static const char *
or_else(const char *name, const char *preset)
{
	return name != NULL && name[0] != '\0' ? name : preset;
}

static bool
setting(struct db *db, const char *name, const char *value, struct err *err)
{
	struct db_args a = {0};

	arg_text(&a, name);
	arg_text(&a, value);
	return db_run_text(db, "SELECT set_config($1, $2, true)", &a, NULL, err);
}

/* --- roles --- */

struct login {
	char name[ROLE_NAME_SIZE];
	bool is_super, makes_roles;
};

static bool
login_of(struct db *db, struct login *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"rights login", "SELECT rolname, rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	snprintf(ret->name, sizeof(ret->name), "%s", res_text(r, 0, 0));
	ret->is_super = res_bool(r, 0, 1);
	ret->makes_roles = ret->is_super || res_bool(r, 0, 2);
	return true;
}

/* Rule 2. A migration of another database of the same server may create the same role at this moment. */
static bool
ensure_role(struct db *db, const struct login *me, const char *name, bool can_login, struct err *err)
{
	static const struct db_stmt exists = {
		"rights role",
		"SELECT format('CREATE ROLE %I', $1::text), EXISTS (SELECT FROM pg_roles WHERE rolname = $1)"};
	static const char create[] =
		"DO $$ BEGIN EXECUTE current_setting('tollgate.create_role'); EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$";
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	char sql[256];

	if (strlen(name) >= ROLE_NAME_SIZE)
		return err_set(err, ERR_INVALID, "role \"%.80s\" has a name of more than %d bytes", name,
		               ROLE_NAME_SIZE - 1);
	arg_text(&a, name);
	if (!db_run(db, &exists, &a, &r, err))
		return false;
	if (res_bool(r, 0, 1))
		return true;
	snprintf(sql, sizeof(sql), "%s %s", res_text(r, 0, 0), can_login ? "LOGIN" : "NOLOGIN");
	if (!me->makes_roles)
		return err_set(err, ERR_MISSING,
		               "the database has no role %s, and %s may not make one; who may runs: %s", name, me->name,
		               sql);
	return db_tx_begin(&tx, db, err) && setting(db, "tollgate.create_role", sql, err) &&
	       db_script(db, create, err) && db_tx_commit(&tx, err);
}

/* Rule 4. */
static bool
check_role(struct db *db, const char *name, const char *owner, const char *option, struct err *err)
{
	static const struct db_stmt stmt = {
		"rights role sound",
		"SELECT r.rolsuper, r.rolname = $2 OR pg_has_role(r.oid, o.oid, 'MEMBER') FROM pg_roles r, pg_roles o WHERE r.rolname = $1 AND o.rolname = $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, name);
	arg_text(&a, owner);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 1 && !res_bool(r, 0, 0) && !res_bool(r, 0, 1))
		return true;
	return err_set(err, ERR_INVALID,
	               "role %s %s: it may own nothing and is not to serve requests; name another one with --%s", name,
	               PQntuples(r) == 1 && res_bool(r, 0, 0) ? "is a superuser"
	                                                      : "is the owner of the schema, or a member of it",
	               option);
}

/* Rule 3. */
static bool
check_owner(struct db *db, const struct login *me, struct err *err)
{
	static const struct db_stmt stmt = {
		"rights owner",
		"SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'tollgate' AND NOT pg_has_role(n.nspowner, 'USAGE')"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	return PQntuples(r) == 0 ||
	       err_set(err, ERR_INVALID,
	               "schema tollgate belongs to %s and this login is %s: migrate as %s, or once as a superuser, who hands it over to " OWNER_ROLE,
	               res_text(r, 0, 0), me->name, res_text(r, 0, 0));
}

static bool
hand_over(struct db *db, const char *owner, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	return db_tx_begin(&tx, db, err) && setting(db, "tollgate.owner_role", owner, err) &&
	       db_script(db, access_owner, err) && db_tx_commit(&tx, err);
}

bool
rights_prepare(struct db *db, const struct ledger_options *o, struct migrator *ret, struct err *err)
{
	const char *owner = or_else(o->owner_role, OWNER_ROLE);
	struct login me = {0};

	ret->daemon_role = or_else(o->daemon_role, DAEMON_ROLE);
	ret->rollup_role = or_else(o->rollup_role, ROLLUP_ROLE);
	if (strcmp(ret->daemon_role, ret->rollup_role) == 0)
		return err_set(
			err, ERR_INVALID,
			"daemon-role and rollup-role are both %s: what is made from inputs is written by a login of its own",
			ret->daemon_role);
	if (!login_of(db, &me, err))
		return false;
	if (me.is_super) {
		if (!ensure_role(db, &me, owner, false, err) || !hand_over(db, owner, err))
			return false;
		snprintf(ret->owner, sizeof(ret->owner), "%s", owner);
	}
	return (me.is_super || check_owner(db, &me, err)) && ensure_role(db, &me, ret->daemon_role, true, err) &&
	       ensure_role(db, &me, ret->rollup_role, true, err) &&
	       check_role(db, ret->daemon_role, me.is_super ? owner : me.name, "daemon-role", err) &&
	       check_role(db, ret->rollup_role, me.is_super ? owner : me.name, "rollup-role", err);
}

bool
rights_act_as_owner(struct db *db, const struct migrator *m, struct err *err)
{
	return m->owner[0] == '\0' || setting(db, "role", m->owner, err);
}

bool
rights_grant(struct db *db, const struct migrator *m, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	return db_tx_begin(&tx, db, err) && rights_act_as_owner(db, m, err) &&
	       setting(db, "tollgate.daemon_role", m->daemon_role, err) &&
	       setting(db, "tollgate.rollup_role", m->rollup_role, err) && db_script(db, access_grants, err) &&
	       db_tx_commit(&tx, err);
}

/* --- rule 6 --- */

static bool
check_login(struct db *db, bool is_rollup, struct err *err)
{
	static const struct db_stmt stmt = {
		"rights of login",
		"SELECT r.rolname, r.rolsuper, (SELECT min(c.relname) FROM pg_class c WHERE c.relnamespace = 'tollgate'::regnamespace "
		"AND pg_has_role(c.relowner, 'MEMBER')), (SELECT min(t) FROM unnest(" DERIVED
		") t WHERE has_table_privilege('tollgate.' || t, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')), "
		"has_table_privilege('tollgate.charge_day', 'INSERT') FROM pg_roles r WHERE r.rolname = current_user"};
	const char *option = is_rollup ? "rollup-database" : "database";
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	if (res_bool(r, 0, 1))
		return err_set(
			err, ERR_INVALID,
			"%s: login %s is a superuser; run tollgate-aggregator --migrate as that, and start the daemon with "
			"a login that owns nothing (" DAEMON_ROLE ", " ROLLUP_ROLE ")",
			option, res_text(r, 0, 0));
	if (!res_null(r, 0, 2))
		return err_set(
			err, ERR_INVALID,
			"%s: login %s owns %s of the schema; run tollgate-aggregator --migrate as that, and start the daemon "
			"with a login that owns nothing (" DAEMON_ROLE ", " ROLLUP_ROLE ")",
			option, res_text(r, 0, 0), res_text(r, 0, 2));
	if (!is_rollup && !res_null(r, 0, 3))
		return err_set(
			err, ERR_INVALID,
			"database: login %s may write %s, which only the roll-up's login may; use another one, and "
			"rollup-database for the roll-up, or run tollgate-aggregator --migrate",
			res_text(r, 0, 0), res_text(r, 0, 3));
	if (is_rollup && !res_bool(r, 0, 4))
		return err_set(
			err, ERR_INVALID,
			"rollup-database: login %s may not write charge_day; it is the role that --migrate was given as rollup-role",
			res_text(r, 0, 0));
	return true;
}

bool
store_logins_check(struct db *daemon, struct db *rollup, struct err *err)
{
	return check_login(daemon, false, err) && check_login(rollup, true, err);
}

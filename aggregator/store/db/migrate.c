/* aggregator/store/db/migrate.c - brings the schema to this program's version.
 *
 * Rules, in order:
 *  1. one migrator at a time: an advisory lock, held until all is done
 *  2. a ledger of a version before the baseline of sql/ is refused, and nothing in it is changed
 *  3. the files of this program are numbered from 1 without a gap, and so are the rows of schema_migration
 *  4. a schema newer than this program is refused: a later version made it
 *  5. a file that was applied may not have changed since: its SHA-256 is stored
 *  6. each missing file runs in a transaction of its own, together with its row in schema_migration
 *  7. the ledger is created once; its zone and whether it is a demo stay as they are
 *  8. everything is done as the owner of the schema, and at the end each login gets its rights (rights.c) */
#include <stdlib.h>
#include <string.h>

#include "aggregator/store/db/db.h"
#include "aggregator/store/db/migrate.h"
#include "common/base/digest.h"

#define OLDEST_MARK "-- oldest-binary: "

static const struct db_stmt applied_stmt = {
	"migrations",
	"SELECT number, name, encode(sha256, 'hex'), oldest_binary FROM tollgate.schema_migration ORDER BY number"};

static const struct migration_file *
file_of(int64_t number)
{
	for (size_t i = 0; i < migration_file_count; i++)
		if (migration_files[i].number == number)
			return &migration_files[i];
	return NULL;
}

static void
hash_file(const struct migration_file *f, char hex[2 * SHA256_SIZE + 1])
{
	uint8_t digest[SHA256_SIZE];

	sha256(f->text, f->len, digest);
	hex_encode(digest, sizeof(digest), hex);
}

static bool
check_files(struct err *err)
{
	for (size_t i = 0; i < migration_file_count; i++)
		if (migration_files[i].number != (int)i + 1)
			return err_set(err, ERR_FATAL,
			               "migration %s is number %d of this program, expected %zu: there is a gap",
			               migration_files[i].name, migration_files[i].number, i + 1);
	return migration_file_count > 0 || err_set(err, ERR_FATAL, "this program carries no migrations");
}

static bool
refuse_old(struct err *err)
{
	return err_set(
		err, ERR_FATAL,
		"this ledger was made by a version before 0.2 and cannot be upgraded: keep this database if you need its "
		"figures, create an empty one, and run tollgate-aggregator --migrate there");
}

/* Rule 2, before anything is changed. By the catalogue, which every login may read: the first file of the baseline makes this domain and this table,
 * and no version before it had the domain. */
static bool
check_not_old(struct db *db, struct err *err)
{
	static const struct db_stmt old = {
		"migrations old",
		"SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'tollgate' AND c.relname = 'ledger' "
		"AND NOT EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = n.oid AND t.typname = 'gpu_units')"};
	owned(result) PGresult *found = NULL;

	return db_run(db, &old, NULL, &found, err) && (PQntuples(found) == 0 || refuse_old(err));
}

/* Rules 3 to 5 for one applied migration. */
static bool
check_applied(const PGresult *r, int row, struct err *err)
{
	int64_t number = res_i64(r, row, 0);
	const struct migration_file *f = file_of(number);
	char hex[2 * SHA256_SIZE + 1];

	if (number > (int64_t)migration_file_count)
		return err_set(err, ERR_FATAL,
		               "the database has migration %" PRId64
		               " (%s), this program (%s) knows %zu: it is older than the schema, which asks for "
		               "%s or later",
		               number, res_text(r, row, 1), TOLLGATE_VERSION, migration_file_count,
		               res_text(r, row, 3));
	if (number != row + 1 || !f)
		return err_set(err, ERR_FATAL,
		               "the database has migration %" PRId64
		               " but not %d: something was removed from schema_migration",
		               number, row + 1);
	hash_file(f, hex);
	if (strcmp(hex, res_text(r, row, 2)) != 0)
		return err_set(err, ERR_FATAL,
		               "migration %s was edited after it was applied (SHA-256 %.12s..., applied was %.12s...): "
		               "changes go into a new file",
		               f->name, hex, res_text(r, row, 2));
	return true;
}

static bool
load_applied(struct db *db, int *ret_count, struct err *err)
{
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &applied_stmt, NULL, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!check_applied(r, row, err))
			return false;
	*ret_count = PQntuples(r);
	return true;
}

/* The first line of every file names the oldest program that may use the schema it makes. */
static bool
oldest_binary(const struct migration_file *f, char *out, size_t size, struct err *err)
{
	size_t n = strlen(OLDEST_MARK), len;

	if (strncmp(f->text, OLDEST_MARK, n) != 0)
		return err_set(err, ERR_FATAL, "migration %s does not begin with \"%sVERSION\"", f->name, OLDEST_MARK);
	len = strcspn(f->text + n, " \n");
	if (len == 0 || len >= size)
		return err_set(err, ERR_FATAL, "migration %s names no oldest binary", f->name);
	memcpy(out, f->text + n, len);
	out[len] = '\0';
	return true;
}

static bool
apply_one(struct db *db, const struct migrator *m, const struct migration_file *f, struct err *err)
{
	static const struct db_stmt insert = {
		"migration insert", "INSERT INTO tollgate.schema_migration (number, name, sha256, oldest_binary) "
				    "VALUES ($1, $2, decode($3, 'hex'), $4)"};
	in_place(db_tx) struct db_tx tx = {0};
	struct db_args a = {0};
	char hex[2 * SHA256_SIZE + 1], oldest[32];

	hash_file(f, hex);
	arg_i64(&a, f->number);
	arg_text(&a, f->name);
	arg_text(&a, hex);
	arg_text(&a, oldest);
	return oldest_binary(f, oldest, sizeof(oldest), err) && db_tx_begin(&tx, db, err) &&
	       rights_act_as_owner(db, m, err) && db_script(db, f->text, err) && db_run(db, &insert, &a, NULL, err) &&
	       db_tx_commit(&tx, err);
}

/* A zone whose hours do not always begin at the same minute (Lord Howe Island moves by half an hour) has billing
 * hours that overlap; it is refused. The months from 2020 to 2060 are checked. */
static bool
zone_phase(struct db *db, const char *zone, int64_t *ret_phase_ns, struct err *err)
{
	static const struct db_stmt known = {"zone known", "SELECT FROM pg_timezone_names WHERE name = $1"};
	static const struct db_stmt phases = {
		"zone phases", "SELECT DISTINCT mod(mod(extract(epoch FROM (t AT TIME ZONE 'UTC') - (t AT TIME ZONE "
			       "$1))::bigint, 3600) + 3600, 3600) "
			       "FROM generate_series(timestamptz '2020-01-15', '2060-01-15', '1 month') t"};
	owned(result) PGresult *names = NULL, *r = NULL;
	struct db_args a = {0};

	arg_text(&a, zone);
	if (!db_run(db, &known, &a, &names, err))
		return false;
	if (PQntuples(names) == 0)
		return err_set(
			err, ERR_INVALID,
			"billing zone \"%s\" is not one that the database knows; it is a name like Europe/Berlin",
			zone);
	if (!db_run(db, &phases, &a, &r, err))
		return false;
	if (PQntuples(r) != 1 || res_i64(r, 0, 0) % 900 != 0)
		return err_set(err, ERR_INVALID,
		               "billing zone \"%s\" moves the start of its hours: it cannot be billed by the hour",
		               zone);
	*ret_phase_ns = res_i64(r, 0, 0) * NS_PER_S;
	return true;
}

static bool
ledger_create(struct db *db, const struct migrator *m, const struct ledger_options *o, struct err *err)
{
	static const struct db_stmt insert = {
		"ledger insert",
		"INSERT INTO tollgate.ledger (demo, zone, hour_phase_ns, cluster_id) SELECT $1, $2, $3, id "
		"FROM tollgate.cluster WHERE name = 'default'"};
	static const struct db_stmt audit = {
		"ledger audit", "INSERT INTO tollgate.audit_log (actor, action, subject, after) VALUES "
				"('tollgate-aggregator', 'ledger.create', 'ledger', jsonb_build_object('demo', "
				"$1::boolean, 'zone', $2::text))"};
	in_place(db_tx) struct db_tx tx = {0};
	const char *zone = o->zone ? o->zone : "UTC";
	struct db_args a = {0}, entry;
	int64_t phase_ns = 0;

	if (!db_tx_begin(&tx, db, err) || !rights_act_as_owner(db, m, err) || !zone_phase(db, zone, &phase_ns, err))
		return false;
	arg_bool(&a, o->demo);
	arg_text(&a, zone);
	entry = a;
	arg_i64(&a, phase_ns);
	return db_run(db, &insert, &a, NULL, err) && db_run(db, &audit, &entry, NULL, err) && db_tx_commit(&tx, err);
}

/* Rule 7. */
static bool
ledger_ensure(struct db *db, const struct migrator *m, const struct ledger_options *o, struct err *err)
{
	static const struct db_stmt exists = {"ledger exists", "SELECT demo, zone FROM tollgate.ledger"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &exists, NULL, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return ledger_create(db, m, o, err);
	if (o->demo && !res_bool(r, 0, 0))
		return err_set(err, ERR_CONFLICT, "this ledger was not created as a demo, and cannot become one");
	if (o->zone && strcmp(o->zone, res_text(r, 0, 1)) != 0)
		return err_set(err, ERR_CONFLICT, "this ledger bills in zone %s, and cannot change to %s",
		               res_text(r, 0, 1), o->zone);
	return true;
}

static bool
prepare_schema(struct db *db, const struct migrator *m, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	return db_tx_begin(&tx, db, err) && rights_act_as_owner(db, m, err) &&
	       db_script(
		       db,
		       "DO $$ BEGIN IF to_regnamespace('tollgate') IS NULL THEN CREATE SCHEMA tollgate; END IF; END $$;"
		       "CREATE TABLE IF NOT EXISTS tollgate.schema_migration ("
		       "number integer PRIMARY KEY CHECK (number > 0), name text NOT NULL UNIQUE,"
		       "sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),"
		       "applied_at timestamptz NOT NULL DEFAULT now(),"
		       "oldest_binary text NOT NULL);"
		       "COMMENT ON TABLE tollgate.schema_migration IS"
		       " 'The files of sql/ that made this schema, and the oldest program that may use it.'",
		       err) &&
	       db_tx_commit(&tx, err);
}

static bool
migrate_locked(struct db *db, const struct ledger_options *o, int *ret_applied, struct err *err)
{
	struct migrator m = {0};
	int have = 0, applied = 0;

	if (!check_not_old(db, err) || !rights_prepare(db, o, &m, err) || !prepare_schema(db, &m, err) ||
	    !load_applied(db, &have, err))
		return false;
	for (size_t i = (size_t)have; i < migration_file_count; i++, applied++)
		if (!apply_one(db, &m, &migration_files[i], err))
			return err_prefix(err, "migration %s", migration_files[i].name);
	if (!ledger_ensure(db, &m, o, err) || !rights_grant(db, &m, err))
		return false;
	*ret_applied = applied;
	return true;
}

/* The lock belongs to the session. The usual statement timeouts are lifted: a migration, or the wait for one, may take
 * longer. */
bool
store_migrate(struct db *db, const struct ledger_options *o, int *ret_applied, struct err *err)
{
	struct err unlock = {0};
	bool ok;

	if (!check_files(err) || !db_allow_session(db, DB_WORK_MIGRATE, err) ||
	    !db_script(db, "SELECT pg_advisory_lock(" DB_LOCK_MIGRATE ")", err))
		return false;
	ok = migrate_locked(db, o, ret_applied, err);
	/* Dropping the connection gives the lock back and restores the timeouts, whatever state the session is in. */
	if (!db_script(db, "SELECT pg_advisory_unlock(" DB_LOCK_MIGRATE ")", &unlock) && ok)
		return err_set(err, unlock.kind, "%s", unlock.text);
	db_drop(db);
	return ok;
}

/* "0.10.2" is later than "0.9.7": numbers one by one, a missing one is 0. */
static bool
version_at_least(const char *have, const char *need)
{
	while (*have || *need) {
		char *have_end, *need_end;
		long h = strtol(have, &have_end, 10), n = strtol(need, &need_end, 10);

		if (h != n)
			return h > n;
		have = *have_end == '.' ? have_end + 1 : "";
		need = *need_end == '.' ? need_end + 1 : "";
	}
	return true;
}

/* A schema that a newer program has expanded is usable where its oldest_binary says so: replicas are upgraded one by one. */
bool
store_ready(struct db *db, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct db_ledger ledger;
	int known = (int)migration_file_count;

	if (!check_not_old(db, err) || !db_run(db, &applied_stmt, NULL, &r, err))
		return false;
	if (PQntuples(r) < known)
		return err_set(err, ERR_RETRY, "the database has %d of %d migrations: it is not migrated yet",
		               PQntuples(r), known);
	for (int row = 0; row < known; row++)
		if (!check_applied(r, row, err))
			return false;
	for (int row = known; row < PQntuples(r); row++)
		if (!version_at_least(TOLLGATE_VERSION, res_text(r, row, 3)))
			return check_applied(r, row, err);
	return db_ledger_get(db, &ledger, err);
}

bool
store_ledger(struct db *db, struct ledger *ret, struct err *err)
{
	struct db_ledger l;

	if (!db_ledger_get(db, &l, err))
		return false;
	ret->demo = l.demo;
	memcpy(ret->zone, l.zone, sizeof(ret->zone));
	return true;
}

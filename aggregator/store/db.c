/* aggregator/store/db.c - a connection that comes back, transactions, prepared statements, COPY. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aggregator/store/db.h"

#define DB_MAX_PREPARED 512 /* more than all files of store/ have: a worker may come to use every one */
#define DB_WHERE_MAX 4096u

struct db {
	struct db_counters *counters;
	char *conninfo;
	char *user; /* NULL: as conninfo says */
	char *application;
	char *where;      /* the hosts and the database's name, for messages */
	bool any_session; /* the connection string itself says which kind of server it wants */
	int64_t statement_timeout_ns, lock_timeout_ns, connect_timeout_ns;
	PGconn *conn;
	bool open; /* counted as such */
	const struct db_stmt *prepared[DB_MAX_PREPARED];
	size_t prepared_count;
	bool in_tx;
	char sqlstate[6]; /* of the last failure since the transaction began */
	bool has_ledger;
	struct db_ledger ledger;
	/* db_abandon, in another thread: the descriptor is a duplicate, whose number is no other socket's while the lock is held; -1: none */
	atomic_bool abandoned;
	pthread_mutex_t cut_lock;
	int cut_fd;
};

/* A library does not write to stderr. */
static void
ignore_notice(void *arg, const char *message)
{
	(void)arg;
	(void)message;
}

static const char *
option_value(const PQconninfoOption *options, const char *keyword)
{
	for (const PQconninfoOption *o = options; o->keyword; o++)
		if (strcmp(o->keyword, keyword) == 0)
			return o->val && o->val[0] ? o->val : NULL;
	return NULL;
}

/* Everything but the password: "db1,db2 port 5432, database tollgate". */
static char *
describe(const PQconninfoOption *options)
{
	in_place(buf) struct buf b;
	const char *host = option_value(options, "host"), *port = option_value(options, "port"),
		   *name = option_value(options, "dbname");

	buf_init(&b, DB_WHERE_MAX);
	if (!host)
		host = option_value(options, "hostaddr");
	buf_str(&b, host ? host : "the default host");
	if (port)
		buf_printf(&b, " port %s", port);
	if (name)
		buf_printf(&b, ", database %s", name);
	return mem_strdup(buf_text(&b));
}

bool
db_new(const struct db_options *o, struct db **ret, struct err *err)
{
	PQconninfoOption *options = PQconninfoParse(o->conninfo, NULL);
	struct db *db;

	/* libpq's own message would repeat a part of the string, which may be the password. */
	if (!options)
		return err_set(err, ERR_INVALID,
		               "the database connection string cannot be read: it is \"host=... dbname=...\" or "
		               "\"postgresql://...\"");
	db = mem_alloc(sizeof(*db));
	db->cut_fd = -1;
	pthread_mutex_init(&db->cut_lock, NULL);
	db->counters = o->counters;
	db->conninfo = mem_strdup(o->conninfo);
	db->user = mem_strdup(o->user);
	db->application = mem_strdup(o->application ? o->application : "tollgate");
	db->where = describe(options);
	db->any_session = option_value(options, "target_session_attrs") != NULL;
	db->statement_timeout_ns = o->statement_timeout_ns;
	db->lock_timeout_ns = o->lock_timeout_ns;
	db->connect_timeout_ns = o->connect_timeout_ns;
	PQconninfoFree(options);
	*ret = db;
	return true;
}

/* From here on db_abandon cuts this descriptor; -1: none. */
static void
set_cut_fd(struct db *db, int fd)
{
	pthread_mutex_lock(&db->cut_lock);
	if (db->cut_fd >= 0)
		close(db->cut_fd);
	db->cut_fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	pthread_mutex_unlock(&db->cut_lock);
}

void
db_abandon(struct db *db)
{
	pthread_mutex_lock(&db->cut_lock);
	atomic_store(&db->abandoned, true);
	if (db->cut_fd >= 0)
		(void)shutdown(db->cut_fd, SHUT_RDWR);
	pthread_mutex_unlock(&db->cut_lock);
}

void
db_serve(struct db *db)
{
	atomic_store(&db->abandoned, false);
}

static bool
wanted(struct db *db, struct err *err)
{
	return !atomic_load(&db->abandoned) || err_set(err, ERR_RETRY, "nobody waits for the answer any more");
}

static void
disconnect(struct db *db)
{
	set_cut_fd(db, -1);
	if (db->counters && db->open)
		atomic_fetch_sub(&db->counters->open, 1);
	db->open = false;
	PQfinish(db->conn);
	db->conn = NULL;
	db->prepared_count = 0;
	db->has_ledger = false;
}

void
db_drop(struct db *db)
{
	ASSERT(!db->in_tx);
	disconnect(db);
}

void
db_free(struct db *db)
{
	if (!db)
		return;
	disconnect(db);
	pthread_mutex_destroy(&db->cut_lock);
	mem_free(db->conninfo);
	mem_free(db->user);
	mem_free(db->application);
	mem_free(db->where);
	mem_free(db);
}

/* --- failures --- */

static bool
is_one_of(const char *state, const char *const *list)
{
	for (; *list; list++)
		if (strncmp(state, *list, strlen(*list)) == 0)
			return true;
	return false;
}

/* SQLSTATE classes and codes after which the same call may work: connection, resources, operator, timeouts, deadlock,
 * a serialisation failure, a lock that was not free, a server that became a standby. */
static const char *const again_states[] = {"08", "53", "57", "40", "55P03", "25006", NULL};
static const char *const conflict_states[] = {"23", NULL};
static const char *const schema_states[] = {"3F000", "42P01", "42883", "42703", NULL};

static enum err_kind
kind_of(const char *state)
{
	if (is_one_of(state, again_states))
		return ERR_RETRY;
	return is_one_of(state, conflict_states) ? ERR_CONFLICT : ERR_FATAL;
}

static void
count_failure(const struct db *db)
{
	if (db->counters)
		atomic_fetch_add(&db->counters->failures, 1);
}

static bool
fail_connection(struct db *db, struct err *err)
{
	count_failure(db);
	memcpy(db->sqlstate, "08006", 6);
	err_set(err, ERR_RETRY, "the database does not answer");
	return err_detail(err, "database at %s: %s", db->where, PQerrorMessage(db->conn));
}

/* What everybody may read about a failure. Our own functions raise 23000 with a sentence of ours; PostgreSQL does not use that code. */
static const char *
public_text(const char *state, const char *message)
{
	if (strcmp(state, "23000") == 0 && message)
		return message;
	if (is_one_of(state, schema_states))
		return "the database has not the schema of this program: migrate it";
	if (strcmp(state, "42501") == 0)
		return "this login of the database may not do that; tollgate-aggregator --migrate gives each login its rights";
	if (strncmp(state, "57014", 5) == 0)
		return "the database took longer than it is given for this";
	switch (kind_of(state)) {
	case ERR_RETRY: return "the database cannot do this at the moment";
	case ERR_CONFLICT: return "this contradicts what is recorded";
	default: return "the database refused this; the log of the daemon says why";
	}
}

static bool
fail(struct db *db, const PGresult *r, struct err *err)
{
	const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
	const char *text = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY) : NULL;
	const char *detail = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_DETAIL) : NULL;

	if (!state || PQstatus(db->conn) == CONNECTION_BAD)
		return fail_connection(db, err);
	count_failure(db);
	snprintf(db->sqlstate, sizeof(db->sqlstate), "%s", state);
	err_set(err, kind_of(state), "%s", public_text(state, text));
	return err_detail(err, "database at %s: %s%s%s, SQLSTATE %s", db->where, text ? text : "failed",
	                  detail ? ": " : "", detail ? detail : "", state);
}

bool
db_contended(const struct db *db)
{
	static const char *const states[] = {"40P01", "40001", "23P01", "23505", NULL};

	return is_one_of(db->sqlstate, states);
}

/* --- connection --- */

/* jit: the statements are wide and short; compiling them takes longer than running them. */
static bool
session_setup(struct db *db, struct err *err)
{
	owned(result) PGresult *r = NULL;
	char sql[512];

	snprintf(sql, sizeof(sql),
	         "SET search_path = tollgate; SET TimeZone = 'UTC'; SET DateStyle = 'ISO';"
	         "SET client_min_messages = error; SET jit = off; SET client_connection_check_interval = 1000;"
	         "SET statement_timeout = %" PRId64 "; SET lock_timeout = %" PRId64 ";"
	         "SET idle_in_transaction_session_timeout = 60000",
	         db->statement_timeout_ns / NS_PER_MS, db->lock_timeout_ns / NS_PER_MS);
	r = PQexec(db->conn, sql);
	return PQresultStatus(r) == PGRES_COMMAND_OK || fail(db, r, err);
}

/* What the connection string says wins over the keepalive times here, and loses against the rest. */
static bool
connect_now(struct db *db, struct err *err)
{
	char timeout[24];
	const char *keys[] = {"keepalives_idle",
	                      "keepalives_interval",
	                      "keepalives_count",
	                      "dbname",
	                      "application_name",
	                      "client_encoding",
	                      "connect_timeout",
	                      NULL,
	                      NULL,
	                      NULL};
	const char *values[] = {"10", "5", "3", db->conninfo, db->application, "UTF8", timeout, NULL, NULL, NULL};
	size_t n = 7;

	if (!db->any_session) {
		keys[n] = "target_session_attrs";
		values[n++] = "read-write";
	}
	if (db->user) {
		keys[n] = "user";
		values[n] = db->user;
	}
	disconnect(db);
	snprintf(timeout, sizeof(timeout), "%" PRId64, (db->connect_timeout_ns + NS_PER_S - 1) / NS_PER_S);
	db->conn = PQconnectdbParams(keys, values, 1);
	if (!db->conn)
		return err_set(err, ERR_FATAL, "no memory for a database connection");
	PQsetNoticeProcessor(db->conn, ignore_notice, NULL);
	if (PQstatus(db->conn) != CONNECTION_OK)
		return fail_connection(db, err);
	set_cut_fd(db, PQsocket(db->conn));
	db->open = true;
	if (db->counters) {
		atomic_fetch_add(&db->counters->connects, 1);
		atomic_fetch_add(&db->counters->open, 1);
	}
	return session_setup(db, err);
}

/* Inside a transaction a lost connection stays lost: what was done in it is gone, and the caller must know. */
static bool
connected(struct db *db, struct err *err)
{
	if (!wanted(db, err))
		return false;
	if (db->conn && PQstatus(db->conn) == CONNECTION_OK)
		return true;
	if (db->in_tx)
		return fail_connection(db, err);
	return connect_now(db, err);
}

/* After a failure outside a transaction: true when the connection was the reason, and there is a new one. */
static bool
reconnected(struct db *db, struct err *err)
{
	if (db->in_tx || PQstatus(db->conn) != CONNECTION_BAD)
		return false;
	return wanted(db, err) && connect_now(db, err);
}

/* --- statements --- */

static bool
succeeded(const PGresult *r)
{
	ExecStatusType s = PQresultStatus(r);

	return s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_COPY_IN || s == PGRES_COPY_OUT;
}

static bool
finish(struct db *db, PGresult *r, PGresult **ret, struct err *err)
{
	owned(result) PGresult *mine = r;

	if (!succeeded(mine))
		return fail(db, mine, err);
	if (ret)
		*ret = take(mine);
	return true;
}

static bool
prepare(struct db *db, const struct db_stmt *s, struct err *err)
{
	owned(result) PGresult *r = NULL;

	for (size_t i = 0; i < db->prepared_count; i++)
		if (db->prepared[i] == s)
			return true;
	r = PQprepare(db->conn, s->name, s->sql, 0, NULL);
	if (PQresultStatus(r) != PGRES_COMMAND_OK)
		return fail(db, r, err);
	ASSERT(db->prepared_count < DB_MAX_PREPARED);
	db->prepared[db->prepared_count++] = s;
	return true;
}

static const struct db_args no_args;

bool
db_run(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret, struct err *err)
{
	if (!a)
		a = &no_args;
	if (!connected(db, err))
		return false;
	for (bool again = false;; again = true) {
		if (prepare(db, s, err) &&
		    finish(db, PQexecPrepared(db->conn, s->name, a->count, a->value, a->length, a->format, 0), ret,
		           err))
			return true;
		if (again || !reconnected(db, err))
			return false;
	}
}

bool
db_run_text(struct db *db, const char *sql, const struct db_args *a, PGresult **ret, struct err *err)
{
	if (!a)
		a = &no_args;
	if (!connected(db, err))
		return false;
	for (bool again = false;; again = true) {
		if (finish(db, PQexecParams(db->conn, sql, a->count, NULL, a->value, a->length, a->format, 0), ret,
		           err))
			return true;
		if (again || !reconnected(db, err))
			return false;
	}
}

bool
db_script(struct db *db, const char *sql, struct err *err)
{
	if (!connected(db, err))
		return false;
	for (bool again = false;; again = true) {
		if (finish(db, PQexec(db->conn, sql), NULL, err))
			return true;
		if (again || !reconnected(db, err))
			return false;
	}
}

/* --- several in one round trip --- */

static const struct db_stmt begin_stmt = {"begin", "BEGIN"}, commit_stmt = {"commit", "COMMIT"};

/* What was sent is answered in order; after a failure the server skips the rest until the sync. */
static bool
take_answers(struct db *db, const struct db_call *calls, size_t n, bool begun, struct err *err)
{
	bool ok = true;

	for (size_t i = 0; i < n + begun; i++) {
		owned(result) PGresult *r = PQgetResult(db->conn);
		const struct db_call *c = i < begun ? NULL : &calls[i - begun];

		if (ok && !succeeded(r))
			ok = fail(db, r, err);
		PQclear(PQgetResult(db->conn)); /* the end of this statement's results */
		if (ok && c && c->ret)
			*c->ret = take(r);
	}
	PQclear(PQgetResult(db->conn)); /* the sync */
	return ok;
}

static bool
send_all(struct db *db, const struct db_call *calls, size_t n, bool begin_first)
{
	if (begin_first && !PQsendQueryPrepared(db->conn, begin_stmt.name, 0, NULL, NULL, NULL, 0))
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct db_args *a = calls[i].args ? calls[i].args : &no_args;

		if (!PQsendQueryPrepared(db->conn, calls[i].stmt->name, a->count, a->value, a->length, a->format, 0))
			return false;
	}
	return PQpipelineSync(db->conn) != 0;
}

static bool
run_all(struct db *db, const struct db_call *calls, size_t n, bool begin_first, struct err *err)
{
	bool ok;

	if (begin_first && !prepare(db, &begin_stmt, err))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!prepare(db, calls[i].stmt, err))
			return false;
	ok = PQenterPipelineMode(db->conn) && send_all(db, calls, n, begin_first);
	ok = ok ? take_answers(db, calls, n, begin_first, err) : fail_connection(db, err);
	/* A session that is still in the middle of it is of no more use. */
	if (!PQexitPipelineMode(db->conn)) {
		if (ok)
			ok = fail_connection(db, err);
		disconnect(db);
	}
	return ok;
}

bool
db_run_all(struct db *db, const struct db_call *calls, size_t n, struct err *err)
{
	ASSERT(db->in_tx);
	return connected(db, err) && run_all(db, calls, n, false, err);
}

/* --- transactions --- */

static bool
begin(struct db_tx *tx, struct db *db, const char *sql, struct err *err)
{
	ASSERT(!db->in_tx);
	db->sqlstate[0] = '\0';
	if (!db_script(db, sql, err))
		return false;
	db->in_tx = true;
	tx->db = db;
	return true;
}

bool
db_tx_begin(struct db_tx *tx, struct db *db, struct err *err)
{
	return begin(tx, db, "BEGIN", err);
}

bool
db_tx_begin_all(struct db_tx *tx, struct db *db, const struct db_call *calls, size_t n, struct err *err)
{
	ASSERT(!db->in_tx);
	db->sqlstate[0] = '\0';
	if (!connected(db, err))
		return false;
	for (bool again = false;; again = true) {
		bool ok = run_all(db, calls, n, true, err);

		/* Whatever of it was done is rolled back with tx. */
		if (ok || PQtransactionStatus(db->conn) != PQTRANS_IDLE) {
			db->in_tx = true;
			tx->db = db;
		}
		if (ok)
			return true;
		if (again || PQstatus(db->conn) != CONNECTION_BAD)
			return false;
		db->in_tx = false;
		tx->db = NULL;
		if (!connect_now(db, err))
			return false;
	}
}

bool
db_tx_begin_read(struct db_tx *tx, struct db *db, struct err *err)
{
	return begin(tx, db, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", err);
}

bool
db_tx_begin_long(struct db_tx *tx, struct db *db, struct err *err)
{
	return begin(tx, db, "BEGIN; SET LOCAL statement_timeout = 600000", err);
}

bool
db_tx_commit(struct db_tx *tx, struct err *err)
{
	struct db *db = tx->db;
	owned(result) PGresult *r = NULL;

	if (!connected(db, err))
		return false;
	r = PQexec(db->conn, "COMMIT");
	if (PQresultStatus(r) != PGRES_COMMAND_OK)
		return fail(db, r, err);
	/* COMMIT of a transaction that failed answers ROLLBACK. */
	if (strcmp(PQcmdStatus(r), "COMMIT") != 0)
		return err_set(err, ERR_FATAL, "the transaction had failed and was rolled back");
	db->in_tx = false;
	tx->db = NULL;
	return true;
}

/* What fails before the COMMIT makes the server skip it. */
static bool
run_all_and_commit(struct db *db, const struct db_call *calls, size_t n, bool begin_first, struct err *err)
{
	owned(mem) struct db_call *all = mem_array(n + 1, sizeof(*all));
	owned(result) PGresult *r = NULL;

	for (size_t i = 0; i < n; i++)
		all[i] = calls[i];
	all[n] = (struct db_call){.stmt = &commit_stmt, .ret = &r};
	if (!connected(db, err) || !run_all(db, all, n + 1, begin_first, err))
		return false;
	if (strcmp(PQcmdStatus(r), "COMMIT") != 0)
		return err_set(err, ERR_FATAL, "the transaction had failed and was rolled back");
	return true;
}

bool
db_tx_commit_all(struct db_tx *tx, const struct db_call *calls, size_t n, struct err *err)
{
	struct db *db = tx->db;

	if (!run_all_and_commit(db, calls, n, false, err))
		return false; /* it is rolled back with tx */
	db->in_tx = false;
	tx->db = NULL;
	return true;
}

/* In a transaction from the start: a session that is lost is not made again. */
bool
db_tx_all(struct db *db, const struct db_call *calls, size_t n, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {.db = db};

	ASSERT(!db->in_tx);
	db->sqlstate[0] = '\0';
	if (!db->conn)
		return err_set(err, ERR_RETRY, "there is no session with the database yet");
	db->in_tx = true;
	if (!run_all_and_commit(db, calls, n, true, err))
		return false;
	db->in_tx = false;
	tx.db = NULL;
	return true;
}

void
db_tx_fini(struct db_tx *tx)
{
	struct db *db = tx->db;

	if (!db)
		return;
	db->in_tx = false;
	tx->db = NULL;
	if (!db->conn)
		return;
	/* A COPY that was left in the middle, or a connection that is gone: the server rolls back by itself. */
	if (PQstatus(db->conn) == CONNECTION_OK && PQtransactionStatus(db->conn) != PQTRANS_ACTIVE)
		PQclear(PQexec(db->conn, "ROLLBACK"));
	if (PQstatus(db->conn) != CONNECTION_OK || PQtransactionStatus(db->conn) != PQTRANS_IDLE)
		disconnect(db);
}

/* --- COPY --- */

bool
db_copy_begin(struct db *db, const char *sql, struct err *err)
{
	ASSERT(db->in_tx);
	return connected(db, err) && finish(db, PQexec(db->conn, sql), NULL, err);
}

bool
db_copy_put(struct db *db, const void *data, size_t n, struct err *err)
{
	const char *p = data;

	for (size_t piece; n > 0; p += piece, n -= piece) {
		piece = n < (1u << 20) ? n : 1u << 20;
		if (PQputCopyData(db->conn, p, (int)piece) != 1)
			return fail_connection(db, err);
	}
	return true;
}

bool
db_copy_end(struct db *db, struct err *err)
{
	owned(result) PGresult *r = NULL;
	PGresult *rest;

	if (PQputCopyEnd(db->conn, NULL) != 1)
		return fail_connection(db, err);
	r = PQgetResult(db->conn);
	while ((rest = PQgetResult(db->conn)) != NULL)
		PQclear(rest);
	return PQresultStatus(r) == PGRES_COMMAND_OK || fail(db, r, err);
}

bool
db_copy_read(struct db *db, const char *sql, struct buf *out, struct err *err)
{
	owned(result) PGresult *r = NULL;
	PGresult *rest;
	char *row;
	int n;

	ASSERT(db->in_tx);
	if (!connected(db, err) || !finish(db, PQexec(db->conn, sql), NULL, err))
		return false;
	while ((n = PQgetCopyData(db->conn, &row, 0)) > 0) {
		buf_add(out, row, (size_t)n);
		PQfreemem(row);
	}
	if (n == -2)
		return fail_connection(db, err);
	r = PQgetResult(db->conn);
	while ((rest = PQgetResult(db->conn)) != NULL)
		PQclear(rest);
	return PQresultStatus(r) == PGRES_COMMAND_OK || fail(db, r, err);
}

/* --- the ledger --- */

bool
db_ledger_get(struct db *db, struct db_ledger *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"ledger", "SELECT demo, zone, hour_phase_ns, "
			  "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, "
			  "(SELECT oid FROM pg_database WHERE datname = current_database()) FROM ledger"};
	owned(result) PGresult *r = NULL;

	if (db->has_ledger && db->conn && PQstatus(db->conn) == CONNECTION_OK) {
		*ret = db->ledger;
		return true;
	}
	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_FATAL, "the database has no ledger yet: migrate it first");
	db->ledger.demo = res_bool(r, 0, 0);
	snprintf(db->ledger.zone, sizeof(db->ledger.zone), "%s", res_text(r, 0, 1));
	db->ledger.hour_phase_ns = res_i64(r, 0, 2);
	db->ledger.server_started_us = res_i64(r, 0, 3);
	db->ledger.database = res_i64(r, 0, 4);
	db->has_ledger = true;
	*ret = db->ledger;
	return true;
}

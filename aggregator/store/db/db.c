/* aggregator/store/db/db.c - a connection that reconnects, transactions, prepared statements, COPY.
 *
 * Every call of libpq that may wait for the server has a deadline (expect_answer): the server's own limit of the
 * statement, and a few seconds more. No other file may call these functions; tests/lint checks that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aggregator/store/db/db.h"
#include "aggregator/store/db/db_watch.h"

#define DB_MAX_PREPARED 512 /* more than all statements of store/: a worker may use every one */
#define DB_WHERE_MAX 4096u
#define ANSWER_NS (5 * NS_PER_S) /* beyond a statement's own limit: time for the server to report the timeout */
#define GOODBYE_NS NS_PER_S      /* for the last message of a session */
#define WORK_TIMEOUT_NS (10 * NS_PER_MIN)
#define UNLIMITED_NS NS_PER_HOUR /* for a session whose statements have no limit on the server */
#define HUNG_NS \
	NS_PER_S /* a failed attempt that took this long was a timeout, not a refusal; for as long, no other thread tries */
#define OUTCOME_NS (10 * NS_PER_S) /* how long the outcome of a commit is queried */
#define OUTCOME_AGAIN_NS (100 * NS_PER_MS)

struct db {
	struct db_counters *counters;
	char *conninfo;
	char *user; /* NULL: from conninfo */
	char *application;
	char *where;      /* the hosts and the database's name, for messages */
	bool any_session; /* the connection string sets target_session_attrs itself */
	int64_t statement_timeout_ns, lock_timeout_ns, connect_timeout_ns, work_timeout_ns[DB_WORKS];
	PGconn *conn;
	struct db_watched watched;
	int64_t session_ns; /* the server's limit for a statement of this session */
	int64_t allowed_ns; /* the limit in the current transaction */
	bool open;          /* counted as open */
	const struct db_stmt *prepared[DB_MAX_PREPARED];
	size_t prepared_count;
	bool in_tx;
	char sqlstate[6]; /* of the last failure since the transaction began */
	bool has_ledger;
	struct db_ledger ledger;
	atomic_bool abandoned; /* set by another thread */
};

/* Discards libpq's notices: a library does not write to stderr. */
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

/* Everything except the password: "db1,db2 port 5432, database tollgate". */
static char *
describe(const PQconninfoOption *options)
{
	in_place(buf) struct buf b = {0};
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
	db->counters = o->counters;
	db->conninfo = mem_strdup(o->conninfo);
	db->user = mem_strdup(o->user);
	db->application = mem_strdup(o->application ? o->application : "tollgate");
	db->where = describe(options);
	db->any_session = option_value(options, "target_session_attrs") != NULL;
	db->statement_timeout_ns = o->statement_timeout_ns;
	db->lock_timeout_ns = o->lock_timeout_ns;
	db->connect_timeout_ns = o->connect_timeout_ns;
	for (size_t i = 0; i < DB_WORKS; i++)
		db->work_timeout_ns[i] = o->work_timeout_ns[i] > 0 ? o->work_timeout_ns[i] : WORK_TIMEOUT_NS;
	PQconninfoFree(options);
	*ret = db;
	return true;
}

void
db_abandon(struct db *db)
{
	atomic_store(&db->abandoned, true);
	db_watch_cut(&db->watched);
}

void
db_serve(struct db *db)
{
	atomic_store(&db->abandoned, false);
}

static bool
wanted(struct db *db, struct err *err)
{
	return !atomic_load(&db->abandoned) || err_set(err, ERR_RETRY, "request abandoned: the client disconnected");
}

/* --- deadlines --- */

static int64_t
answer_time_ns(const struct db *db)
{
	return (db->allowed_ns > 0 ? db->allowed_ns : UNLIMITED_NS) + ANSWER_NS;
}

static void
expect_answer(struct db *db)
{
	db_watch_until(&db->watched, time_boot_ns() + answer_time_ns(db));
}

static void
answered(struct db *db)
{
	db_watch_until(&db->watched, 0);
}

static PGresult *
exec(struct db *db, const char *sql)
{
	PGresult *r;

	expect_answer(db);
	r = PQexec(db->conn, sql);
	answered(db);
	return r;
}

static PGresult *
next_result(struct db *db)
{
	PGresult *r;

	expect_answer(db);
	r = PQgetResult(db->conn);
	answered(db);
	return r;
}

/* The watch also cuts a goodbye that the server does not read. */
static void
disconnect(struct db *db)
{
	if (db->counters && db->open)
		atomic_fetch_sub(&db->counters->open, 1);
	db->open = false;
	db_watch_until(&db->watched, time_boot_ns() + GOODBYE_NS);
	PQfinish(db->conn);
	db_watch_remove(&db->watched);
	db->conn = NULL;
	db->session_ns = db->allowed_ns = db->statement_timeout_ns;
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
db_stop_at(int64_t boot_ns)
{
	db_watch_stop_at(boot_ns);
}

int64_t
db_cuts(void)
{
	return db_watch_cuts();
}

void
db_free(struct db *db)
{
	if (!db)
		return;
	disconnect(db);
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
	char limit[TIME_TEXT_SIZE];

	count_failure(db);
	memcpy(db->sqlstate, "08006", 6);
	err_set(err, ERR_RETRY, "the database does not answer");
	if (!atomic_load(&db->watched.cut))
		return err_detail(err, "database at %s: %s", db->where, PQerrorMessage(db->conn));
	if (db_watch_stopped())
		return err_detail(err, "database at %s: cut off, this program is stopping", db->where);
	return err_detail(err, "database at %s: no reply within %s", db->where,
	                  duration_format(answer_time_ns(db), limit));
}

/* The public text of a failure. Our own functions raise 23000 with a text of ours; PostgreSQL does not use that code. */
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

/* jit off: the statements are wide and short, and compiling them takes longer than running them. Read-only: outside a
 * transaction a statement is repeated when its connection is lost, so it must not write. */
static bool
session_setup(struct db *db, struct err *err)
{
	owned(result) PGresult *r = NULL;
	char sql[512];

	snprintf(sql, sizeof(sql),
	         "SET search_path = tollgate; SET TimeZone = 'UTC'; SET DateStyle = 'ISO';"
	         "SET client_min_messages = error; SET jit = off; SET client_connection_check_interval = 1000;"
	         "SET statement_timeout = %" PRId64 "; SET lock_timeout = %" PRId64 ";"
	         "SET idle_in_transaction_session_timeout = 60000; SET default_transaction_read_only = on",
	         db->statement_timeout_ns / NS_PER_MS, db->lock_timeout_ns / NS_PER_MS);
	/* still part of connecting */
	db->allowed_ns = db->connect_timeout_ns;
	r = exec(db, sql);
	db->allowed_ns = db->session_ns;
	if (PQresultStatus(r) == PGRES_COMMAND_OK)
		return true;
	fail(db, r, err);
	disconnect(db); /* a session without its settings is useless */
	return false;
}

/* A hung server accepts every connection and holds it until the timeout. One thread at a time finds that out;
 * otherwise requests would queue behind each other's timeouts. */
static bool
may_connect(struct db *db, struct err *err)
{
	if (db_watch_stopped())
		return err_set(err, ERR_RETRY, "the database is not asked any more: this program is stopping");
	if (db->counters && time_boot_ns() < atomic_load(&db->counters->hung_until_ns))
		return err_set(err, ERR_RETRY, "the database does not answer") ||
		       err_detail(err, "database at %s: a connection to it timed out a moment ago", db->where);
	return true;
}

static void
note_hung(const struct db *db, int64_t begun_ns)
{
	int64_t now_ns = time_boot_ns();

	if (db->counters && now_ns - begun_ns >= HUNG_NS)
		atomic_store(&db->counters->hung_until_ns, now_ns + HUNG_NS);
}

/* The connection string overrides our TCP timeouts, but not the other parameters. libpq applies connect_timeout to
 * each host; it does not limit name resolution. */
static bool
connect_now(struct db *db, struct err *err)
{
	char timeout[24];
	const char *keys[] = {"keepalives_idle",
	                      "keepalives_interval",
	                      "keepalives_count",
	                      "tcp_user_timeout",
	                      "dbname",
	                      "application_name",
	                      "client_encoding",
	                      "connect_timeout",
	                      NULL,
	                      NULL,
	                      NULL};
	const char *values[] = {"10",   "5",     "3",  "20000", db->conninfo, db->application,
	                        "UTF8", timeout, NULL, NULL,    NULL};
	int64_t begun_ns = time_boot_ns();
	size_t n = 8;

	if (!db->any_session) {
		keys[n] = "target_session_attrs";
		values[n++] = "read-write";
	}
	if (db->user) {
		keys[n] = "user";
		values[n] = db->user;
	}
	disconnect(db);
	if (!may_connect(db, err))
		return false;
	snprintf(timeout, sizeof(timeout), "%" PRId64, (db->connect_timeout_ns + NS_PER_S - 1) / NS_PER_S);
	db->conn = PQconnectdbParams(keys, values, 1);
	if (!db->conn)
		return err_set(err, ERR_FATAL, "no memory for a database connection");
	PQsetNoticeProcessor(db->conn, ignore_notice, NULL);
	atomic_store(&db->watched.cut, false);
	if (PQstatus(db->conn) != CONNECTION_OK) {
		note_hung(db, begun_ns);
		return fail_connection(db, err);
	}
	if (!db_watch_add(&db->watched, PQsocket(db->conn), err) || !wanted(db, err)) {
		disconnect(db);
		return false;
	}
	db->open = true;
	if (db->counters) {
		atomic_fetch_add(&db->counters->connects, 1);
		atomic_fetch_add(&db->counters->open, 1);
	}
	if (session_setup(db, err))
		return true;
	note_hung(db, begun_ns);
	return false;
}

/* Inside a transaction a lost connection is not made again: the transaction's work is lost, and the caller must know. */
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

/* After a failure outside a transaction: true if the connection was the cause and there is a new one. A statement
 * that used up its time is not repeated. */
static bool
reconnected(struct db *db, struct err *err)
{
	if (db->in_tx || !db->conn || PQstatus(db->conn) != CONNECTION_BAD || atomic_load(&db->watched.cut))
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
	expect_answer(db);
	r = PQprepare(db->conn, s->name, s->sql, 0, NULL);
	answered(db);
	if (PQresultStatus(r) != PGRES_COMMAND_OK)
		return fail(db, r, err);
	ASSERT(db->prepared_count < DB_MAX_PREPARED);
	db->prepared[db->prepared_count++] = s;
	return true;
}

static const struct db_args no_args;

static PGresult *
exec_prepared(struct db *db, const struct db_stmt *s, const struct db_args *a)
{
	PGresult *r;

	expect_answer(db);
	r = PQexecPrepared(db->conn, s->name, a->count, a->value, a->length, a->format, 0);
	answered(db);
	return r;
}

static PGresult *
exec_text(struct db *db, const char *sql, const struct db_args *a)
{
	PGresult *r;

	expect_answer(db);
	r = PQexecParams(db->conn, sql, a->count, NULL, a->value, a->length, a->format, 0);
	answered(db);
	return r;
}

bool
db_run(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret, struct err *err)
{
	if (!a)
		a = &no_args;
	if (!connected(db, err))
		return false;
	for (bool again = false;; again = true) {
		if (prepare(db, s, err) && finish(db, exec_prepared(db, s, a), ret, err))
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
		if (finish(db, exec_text(db, sql, a), ret, err))
			return true;
		if (again || !reconnected(db, err))
			return false;
	}
}

static bool
script(struct db *db, const char *sql, PGresult **ret, struct err *err)
{
	if (!connected(db, err))
		return false;
	for (bool again = false;; again = true) {
		if (finish(db, exec(db, sql), ret, err))
			return true;
		if (again || !reconnected(db, err))
			return false;
	}
}

bool
db_script(struct db *db, const char *sql, struct err *err)
{
	return script(db, sql, NULL, err);
}

/* --- several in one round trip --- */

static const struct db_stmt begin_stmt = {"begin", "BEGIN READ WRITE"}, commit_stmt = {"commit", "COMMIT"};

/* Answers come in the order of the statements; after a failure the server skips the rest until the sync. */
static bool
take_answers(struct db *db, const struct db_call *calls, size_t n, bool begun, struct err *err)
{
	bool ok = true;

	for (size_t i = 0; i < n + begun; i++) {
		owned(result) PGresult *r = next_result(db);
		const struct db_call *c = i < begun ? NULL : &calls[i - begun];

		if (ok && !succeeded(r))
			ok = fail(db, r, err);
		PQclear(next_result(db)); /* the end of this statement's results */
		if (ok && c && c->ret)
			*c->ret = take(r);
	}
	PQclear(next_result(db)); /* the sync */
	return ok;
}

/* Sending waits too, if the server does not read. */
static bool
send_all(struct db *db, const struct db_call *calls, size_t n, bool begin_first)
{
	expect_answer(db);
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
	/* A session that is still in pipeline mode cannot be used any more. */
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

/* The transaction's number and the server that knows it: used to query the outcome of a commit whose answer is lost. */
#define TX_NUMBER "; SELECT pg_current_xact_id(), pg_postmaster_start_time()"

static bool
begin(struct db_tx *tx, struct db *db, const char *sql, int64_t allowed_ns, struct err *err)
{
	owned(result) PGresult *r = NULL;

	ASSERT(!db->in_tx);
	db->sqlstate[0] = '\0';
	*tx = (struct db_tx){0};
	if (!script(db, sql, &r, err))
		return false;
	db->in_tx = true;
	db->allowed_ns = allowed_ns;
	tx->db = db;
	tx->reads = PQntuples(r) == 0;
	if (!tx->reads) {
		snprintf(tx->number, sizeof(tx->number), "%s", res_text(r, 0, 0));
		snprintf(tx->server, sizeof(tx->server), "%s", res_text(r, 0, 1));
	}
	return true;
}

/* The session has no transaction any more. */
static void
end(struct db_tx *tx)
{
	struct db *db = tx->db;

	db->in_tx = false;
	db->allowed_ns = db->session_ns;
	tx->db = NULL;
}

bool
db_tx_begin(struct db_tx *tx, struct db *db, struct err *err)
{
	return begin(tx, db, "BEGIN READ WRITE" TX_NUMBER, db->session_ns, err);
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

		/* The rollback of tx undoes any part of it. */
		if (ok || PQtransactionStatus(db->conn) != PQTRANS_IDLE) {
			db->in_tx = true;
			tx->db = db;
		}
		if (ok)
			return true;
		if (again || PQstatus(db->conn) != CONNECTION_BAD || atomic_load(&db->watched.cut))
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
	return begin(tx, db, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", db->session_ns, err);
}

/* The idle limit between two statements equals the limit of a statement. */
static bool
begin_work(struct db_tx *tx, struct db *db, const char *mode, enum db_work work, const char *then, struct err *err)
{
	int64_t ms = db->work_timeout_ns[work] / NS_PER_MS;
	char sql[320];

	snprintf(sql, sizeof(sql),
	         "BEGIN%s; SET LOCAL statement_timeout = %" PRId64
	         "; SET LOCAL idle_in_transaction_session_timeout = %" PRId64 "%s",
	         mode, ms, ms, then);
	return begin(tx, db, sql, db->work_timeout_ns[work], err);
}

bool
db_tx_begin_long(struct db_tx *tx, struct db *db, enum db_work work, struct err *err)
{
	return begin_work(tx, db, " READ WRITE", work, TX_NUMBER, err);
}

bool
db_tx_begin_snapshot(struct db_tx *tx, struct db *db, enum db_work work, struct err *err)
{
	return begin_work(tx, db, " ISOLATION LEVEL REPEATABLE READ READ WRITE", work, TX_NUMBER, err);
}

bool
db_tx_join_snapshot(struct db_tx *tx, struct db *db, enum db_work work, struct err *err)
{
	if (!db->in_tx)
		return db_tx_begin_snapshot(tx, db, work, err);
	*tx = (struct db_tx){.joined = true};
	return true;
}

bool
db_tx_begin_read_long(struct db_tx *tx, struct db *db, enum db_work work, struct err *err)
{
	return begin_work(tx, db, " ISOLATION LEVEL REPEATABLE READ READ ONLY", work, "", err);
}

bool
db_allow_session(struct db *db, enum db_work work, struct err *err)
{
	char sql[96];

	snprintf(sql, sizeof(sql), "SET statement_timeout = %" PRId64 "; SET lock_timeout = 0",
	         db->work_timeout_ns[work] / NS_PER_MS);
	if (!db_script(db, sql, err))
		return false;
	db->session_ns = db->allowed_ns = db->work_timeout_ns[work];
	return true;
}

/* --- commits whose answer was lost --- */

static void
pause_for(int64_t ns)
{
	const struct timespec t = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

enum outcome { OUTCOME_UNKNOWN, OUTCOME_DONE, OUTCOME_NOT_DONE, OUTCOME_UNDER_WAY };

/* Only the server that began the transaction knows its number: after a failover, another server may have given that
 * number to another transaction. */
static enum outcome
ask_outcome(struct db *db, const struct db_tx *tx)
{
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	const char *status;

	arg_text(&a, tx->number);
	if (!connect_now(db, NULL))
		return OUTCOME_UNDER_WAY;
	if (!finish(db, exec_text(db, "SELECT pg_xact_status($1::xid8), pg_postmaster_start_time()", &a), &r, NULL))
		return PQstatus(db->conn) == CONNECTION_BAD ? OUTCOME_UNDER_WAY : OUTCOME_UNKNOWN;
	status = res_text(r, 0, 0);
	if (strcmp(res_text(r, 0, 1), tx->server) != 0)
		return OUTCOME_UNKNOWN;
	return strcmp(status, "committed") == 0     ? OUTCOME_DONE
	       : strcmp(status, "aborted") == 0     ? OUTCOME_NOT_DONE
	       : strcmp(status, "in progress") == 0 ? OUTCOME_UNDER_WAY
	                                            : OUTCOME_UNKNOWN;
}

static bool
fail_unknown(struct err *err)
{
	struct err why = {0};

	if (err)
		why = *err;
	err_set(err, ERR_UNKNOWN,
	        "whether it was done is not known: the database did not answer when it was to be committed");
	return err_detail(err, "%s", why.detail);
}

/* COMMIT was sent, and the connection is lost. True: it was committed. */
static bool
lost_commit(struct db_tx *tx, struct err *err)
{
	int64_t until_ns = time_boot_ns() + OUTCOME_NS;
	struct db *db = tx->db;
	enum outcome o = tx->number[0] != '\0' ? OUTCOME_UNDER_WAY : OUTCOME_UNKNOWN;

	end(tx);
	if (tx->reads)
		return false; /* err says why */
	for (bool again = false;
	     o == OUTCOME_UNDER_WAY && time_boot_ns() < until_ns && !db_watch_stopped() && wanted(db, NULL);
	     again = true) {
		if (again)
			pause_for(OUTCOME_AGAIN_NS);
		o = ask_outcome(db, tx);
	}
	if (o == OUTCOME_DONE)
		return true;
	return o == OUTCOME_NOT_DONE ? false : fail_unknown(err);
}

bool
db_tx_commit(struct db_tx *tx, struct err *err)
{
	struct db *db = tx->db;
	owned(result) PGresult *r = NULL;

	if (tx->joined)
		return true;
	if (!connected(db, err))
		return false;
	r = exec(db, "COMMIT");
	if (PQresultStatus(r) != PGRES_COMMAND_OK) {
		fail(db, r, err);
		return PQstatus(db->conn) == CONNECTION_BAD && lost_commit(tx, err);
	}
	/* COMMIT of a failed transaction answers ROLLBACK. */
	if (strcmp(PQcmdStatus(r), "COMMIT") != 0)
		return err_set(err, ERR_FATAL, "the transaction had failed and was rolled back");
	end(tx);
	return true;
}

bool
db_write(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	if (db->in_tx)
		return db_run(db, s, a, ret, err);
	return db_tx_begin(&tx, db, err) && db_run(db, s, a, ret, err) && db_tx_commit(&tx, err);
}

/* If an earlier statement fails, the server skips the COMMIT. Without any answer the outcome is unknown. */
static bool
run_all_and_commit(struct db *db, const struct db_call *calls, size_t n, bool begin_first, struct err *err)
{
	owned(mem) struct db_call *all = mem_array(n + 1, sizeof(*all));
	owned(result) PGresult *r = NULL;

	for (size_t i = 0; i < n; i++)
		all[i] = calls[i];
	all[n] = (struct db_call){.stmt = &commit_stmt, .ret = &r};
	if (!connected(db, err))
		return false;
	if (!run_all(db, all, n + 1, begin_first, err))
		return db->conn && PQstatus(db->conn) != CONNECTION_BAD ? false : fail_unknown(err);
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
	end(tx);
	return true;
}

/* A transaction from the start: a lost session is not made again. */
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
	end(&tx);
	return true;
}

bool
db_put(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret, struct err *err)
{
	const struct db_call call = {.stmt = s, .args = a, .ret = ret};
	struct err why = {0};

	for (bool again = false; connected(db, &why); again = true) {
		if (db_tx_all(db, &call, 1, &why))
			return true;
		/* The connection is not the cause, or the statement has used up its time. */
		if (again || db->conn || atomic_load(&db->watched.cut))
			break;
	}
	if (why.kind == ERR_UNKNOWN)
		why.kind = ERR_RETRY;
	if (err)
		*err = why;
	return false;
}

void
db_tx_fini(struct db_tx *tx)
{
	struct db *db = tx->db;

	if (!db)
		return;
	end(tx);
	if (!db->conn)
		return;
	/* After an unfinished COPY or a lost connection the server rolls back by itself. */
	if (PQstatus(db->conn) == CONNECTION_OK && PQtransactionStatus(db->conn) != PQTRANS_ACTIVE)
		PQclear(exec(db, "ROLLBACK"));
	if (PQstatus(db->conn) != CONNECTION_OK || PQtransactionStatus(db->conn) != PQTRANS_IDLE)
		disconnect(db);
}

/* --- COPY --- */

bool
db_copy_begin(struct db *db, const char *sql, struct err *err)
{
	ASSERT(db->in_tx);
	return connected(db, err) && finish(db, exec(db, sql), NULL, err);
}

bool
db_copy_put(struct db *db, const void *data, size_t n, struct err *err)
{
	const char *p = data;

	for (size_t piece; n > 0; p += piece, n -= piece) {
		piece = n < (1u << 20) ? n : 1u << 20;
		expect_answer(db);
		if (PQputCopyData(db->conn, p, (int)piece) != 1)
			return fail_connection(db, err);
	}
	answered(db);
	return true;
}

bool
db_copy_end(struct db *db, struct err *err)
{
	owned(result) PGresult *r = NULL;
	PGresult *rest;

	expect_answer(db);
	if (PQputCopyEnd(db->conn, NULL) != 1)
		return fail_connection(db, err);
	r = next_result(db);
	while ((rest = next_result(db)) != NULL)
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
	if (!connected(db, err) || !finish(db, exec(db, sql), NULL, err))
		return false;
	expect_answer(db);
	while ((n = PQgetCopyData(db->conn, &row, 0)) > 0) {
		buf_add(out, row, (size_t)n);
		PQfreemem(row);
		expect_answer(db);
	}
	if (n == -2)
		return fail_connection(db, err);
	r = next_result(db);
	while ((rest = next_result(db)) != NULL)
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

/* aggregator/store/db/db.h - PostgreSQL connections, statements and transactions, for the files of store/ only.
 *
 * A connection is made at the first use, and made again if it was lost outside a transaction. No call waits for the
 * server longer than the statement's limit plus a few seconds. Every failure becomes a struct err: ERR_RETRY if the
 * same call may succeed later (no answer, a timeout, a deadlock, a server that is starting or is a standby),
 * ERR_UNKNOWN for a commit whose outcome cannot be found out, ERR_CONFLICT if a constraint refused, ERR_FATAL for a
 * bug or a broken database. Its text, which clients read, names neither the server nor its message; its detail does,
 * for the log. */
#ifndef TOLLGATE_DB_H
#define TOLLGATE_DB_H

#include <libpq-fe.h>

#include "aggregator/store/store.h"
#include "common/base/time.h"

/* Advisory locks, all of one class, so that they cannot collide with another program's. */
#define DB_LOCK_CLASS "1953459308"
#define DB_LOCK_MIGRATE DB_LOCK_CLASS ", 1"
#define DB_LOCK_POLICY DB_LOCK_CLASS ", 2" /* shared: rules are used; exclusive: rules change */
#define DB_LOCK_ROLLUP DB_LOCK_CLASS ", 3"
#define DB_LOCK_JOIN DB_LOCK_CLASS ", 4"     /* two join tokens cannot enrol the same name */
#define DB_LOCK_LOOK DB_LOCK_CLASS ", 11"    /* a session's: the replica that reads telemetry for quota */
#define DB_LOCK_HELD DB_LOCK_CLASS ", 12"    /* the replica that stores batches of newly approved nodes */
#define DB_LOCK_EVIDENCE DB_LOCK_CLASS ", 7" /* shared: late batches are stored; exclusive: old ones are deleted */
/* A batch that covers only younger time needs no check against the start of the stored batches. */
#define EVIDENCE_ASKED_NS NS_PER_DAY

/* A statement is prepared once per connection, under its name. */
struct db_stmt {
	const char *name;
	const char *sql;
};

#define DB_MAX_ARGS 24
struct db_args {
	int count;
	const char *value[DB_MAX_ARGS];
	int length[DB_MAX_ARGS];
	int format[DB_MAX_ARGS];
	char number[DB_MAX_ARGS][TIME_TEXT_SIZE];
};
/* Texts, bytes and arrays are borrowed until the statement has run. */
void arg_i64(struct db_args *a, int64_t v);
void arg_bool(struct db_args *a, bool v);
void arg_text(struct db_args *a, const char *s); /* NULL: NULL */
void arg_bytes(struct db_args *a, const void *p, size_t n);
void arg_time(struct db_args *a, int64_t wall_ns); /* timestamptz, cut to microseconds */

/* A one-dimensional array parameter, as text, of at most 256 MiB. */
struct db_array {
	struct buf text;
	size_t count;
	bool closed;
};
void db_array_init(struct db_array *a);
void db_array_fini(struct db_array *a);
void array_i64(struct db_array *a, int64_t v);
void array_text(struct db_array *a, const char *s); /* NULL: NULL */
void array_bytes(struct db_array *a, const void *p, size_t n);
void array_time(struct db_array *a, int64_t wall_ns);
void arg_array(struct db_args *args, struct db_array *a); /* closes it; may be used again, not added to */

/* A bytea[] parameter, binary: as text it would need twice the memory and more time. At most 256 MiB. */
struct db_blobs {
	struct buf bytes;
	uint32_t count;
};
void db_blobs_init(struct db_blobs *b);
void db_blobs_fini(struct db_blobs *b);
void db_blobs_clear(struct db_blobs *b);
void blobs_add(struct db_blobs *b, const void *p, size_t n);
void arg_blobs(struct db_args *args, struct db_blobs *b); /* nothing may be added until the statement has run */

/* Rows for one statement: one array per column, for unnest(). in_place(db_columns) struct db_columns c; */
struct db_columns {
	size_t count;
	struct db_array col[DB_MAX_ARGS];
};
void db_columns_init(struct db_columns *c, size_t count);
void db_columns_fini(struct db_columns *c);
void arg_columns(struct db_args *args, struct db_columns *c); /* all of them, in order */

static inline void
result_free(PGresult *r)
{
	PQclear(r);
}
DEFINE_OWNED(result, PGresult)

/* Outside a transaction a lost connection makes these run again, so the session refuses to write there. ret may be
 * NULL. */
MUST_CHECK bool db_run(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret,
                       struct err *err);
MUST_CHECK bool db_run_text(struct db *db, const char *sql, const struct db_args *a, PGresult **ret,
                            struct err *err);                               /* not prepared */
MUST_CHECK bool db_script(struct db *db, const char *sql, struct err *err); /* several statements, no parameters */

/* Several statements in one round trip, inside a transaction. The first that fails is the error of all. */
struct db_call {
	const struct db_stmt *stmt;
	const struct db_args *args; /* NULL: none */
	PGresult **ret;             /* NULL: not wanted */
};
MUST_CHECK bool db_run_all(struct db *db, const struct db_call *calls, size_t n, struct err *err);

bool res_null(const PGresult *r, int row, int col);
const char *res_text(const PGresult *r, int row, int col); /* "" for NULL */
int64_t res_i64(const PGresult *r, int row, int col);      /* 0 for NULL */
/* The first row whose first n columns are these numbers, of rows that are sorted by them; -1: there is none. */
int res_find_i64(const PGresult *r, const int64_t *key, int n);
bool res_bool(const PGresult *r, int row, int col);
/* Invalid rows of the ledger are not the caller's fault: ERR_INVALID becomes ERR_FATAL. False, as err_prefix(). */
bool db_damaged(struct err *err);
MUST_CHECK bool res_i128(const PGresult *r, int row, int col, int scale, int128 *ret, struct err *err);
/* The rows as a JSON array of objects by column name: integers, booleans and JSON as such, everything else as text. */
void res_json(const PGresult *r, struct buf *out);
void res_json_row(const PGresult *r, int row, struct buf *out);
/* {"NAME":[at most limit rows],"next":ID}: the statement selects one row more than the limit, to see whether there is
 * a next page. The first column is the id. */
MUST_CHECK bool res_json_page(const PGresult *r, const char *name, int64_t limit, struct buf *out, struct err *err);

/* in_place(db_tx) struct db_tx tx = {0}; a transaction without commit is rolled back when tx leaves its scope. */
struct db_tx {
	struct db *db;
	/* of one that may write: its number, and the start time of its server; empty: begun by db_tx_begin_all */
	char number[24], server[40];
	bool reads;  /* read-only */
	bool joined; /* the transaction is the caller's, which ends it */
};
MUST_CHECK bool db_tx_begin(struct db_tx *tx, struct db *db, struct err *err);
/* Begins with its first statements in the same round trip. */
MUST_CHECK bool db_tx_begin_all(struct db_tx *tx, struct db *db, const struct db_call *calls, size_t n,
                                struct err *err);
MUST_CHECK bool db_tx_begin_read(struct db_tx *tx, struct db *db,
                                 struct err *err); /* one snapshot for several statements */
/* Work over many rows, whose statements have a limit of their own. */
MUST_CHECK bool db_tx_begin_long(struct db_tx *tx, struct db *db, enum db_work work, struct err *err);
MUST_CHECK bool db_tx_begin_snapshot(struct db_tx *tx, struct db *db, enum db_work work,
                                     struct err *err); /* the same, and one snapshot for all of it */
/* The same, or the transaction that is open already: then its beginner commits and ends it. */
MUST_CHECK bool db_tx_join_snapshot(struct db_tx *tx, struct db *db, enum db_work work, struct err *err);
MUST_CHECK bool db_tx_begin_read_long(struct db_tx *tx, struct db *db, enum db_work work, struct err *err);
/* If the connection is lost during the commit, the server is asked for the outcome by the transaction's number: true
 * means committed, ERR_RETRY not committed. ERR_UNKNOWN: the server could not be asked, or the transaction has no
 * number. */
/* One idempotent statement in one round trip: a lost connection makes it run again. */
MUST_CHECK bool db_put(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret,
                       struct err *err);
/* One writing statement, in the open transaction or in one of its own: its outcome is known, or reported as
 * ERR_UNKNOWN. */
MUST_CHECK bool db_write(struct db *db, const struct db_stmt *s, const struct db_args *a, PGresult **ret,
                         struct err *err);
MUST_CHECK bool db_tx_commit(struct db_tx *tx, struct err *err);
/* Commits with its last statements in the same round trip. ERR_UNKNOWN: the caller finds out from the rows that it
 * wrote. */
MUST_CHECK bool db_tx_commit_all(struct db_tx *tx, const struct db_call *calls, size_t n, struct err *err);
void db_tx_fini(struct db_tx *tx);
/* A whole transaction in one round trip, in an existing session. ERR_UNKNOWN: as above. */
MUST_CHECK bool db_tx_all(struct db *db, const struct db_call *calls, size_t n, struct err *err);

/* COPY ... FROM STDIN inside a transaction. */
MUST_CHECK bool db_copy_begin(struct db *db, const char *sql, struct err *err);
MUST_CHECK bool db_copy_put(struct db *db, const void *data, size_t n, struct err *err);
MUST_CHECK bool db_copy_end(struct db *db, struct err *err);
/* COPY ... TO STDOUT inside a transaction: all of it. */
MUST_CHECK bool db_copy_read(struct db *db, const char *sql, struct buf *out, struct err *err);

/* Until the session ends, its statements have the limit of that work, also for locks. */
MUST_CHECK bool db_allow_session(struct db *db, enum db_work work, struct err *err);
/* Ends the session; the next use begins a new one. */
void db_drop(struct db *db);

/* The last failure was a deadlock, or two transactions made the same row: a repetition is likely to work. */
bool db_contended(const struct db *db);

/* The ledger's row, which never changes; read once per connection. */
struct db_ledger {
	bool demo;
	char zone[64];
	int64_t hour_phase_ns;
	/* Identifies the database and the server's start: after a failover, a restart or a restore it differs, and
	 * cached state may be wrong. */
	int64_t server_started_us, database;
};
MUST_CHECK bool db_ledger_get(struct db *db, struct db_ledger *ret, struct err *err);
int64_t hour_floor(const struct db_ledger *l, int64_t wall_ns); /* start of the billing hour in which it lies */
int64_t hour_ceil(const struct db_ledger *l, int64_t wall_ns);

#endif

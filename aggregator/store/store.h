/* aggregator/store/store.h - database connections, the schema, and the ledger's row. No SQL and no libpq in it: service/ and api/ include it, and
 * the header of each room of the store they use (access.h, ingest.h, rollup.h, ...). */
#ifndef TOLLGATE_STORE_H
#define TOLLGATE_STORE_H

#include <stdatomic.h>
#include "common/base/buf.h"

struct db;
/* Counters over all connections of a program. */
struct db_counters {
	atomic_llong connects;      /* that came about */
	atomic_llong open;          /* now */
	atomic_llong failures;      /* of connecting, and statements that failed */
	atomic_llong hung_until_ns; /* on the boot clock: until then nobody tries to connect */
};
/* Kinds of work that take longer than a request; each has its own statement timeout. */
enum db_work {
	DB_WORK_REPORT, /* reports, and changes of the policy */
	DB_WORK_ROLLUP, /* hours, days, retention, attribution */
	DB_WORK_CLOSE,
	DB_WORK_VERIFY,
	DB_WORK_MIGRATE,
	DB_WORKS
};
struct db_options {
	struct db_counters *counters; /* NULL: not counted */
	const char *conninfo;         /* libpq's; may name several hosts */
	const char *user;             /* instead of the one in conninfo; NULL: that one */
	const char *application;
	int64_t statement_timeout_ns;
	int64_t lock_timeout_ns;
	int64_t connect_timeout_ns;
	int64_t work_timeout_ns[DB_WORKS]; /* of one statement of that work; 0: ten minutes */
};
MUST_CHECK bool db_new(const struct db_options *o, struct db **ret, struct err *err); /* connects at the first use */
void db_free(struct db *db);
/* Cancels this connection's work because its client is gone: the running statement is cut off, and every further one fails (ERR_RETRY) until
 * db_serve. From any thread; does not wait. */
void db_abandon(struct db *db);
void db_serve(struct db *db);
/* Of the whole process: at that moment of the boot clock every connection is cut, whatever it waits for, and no new one is made. */
void db_stop_at(int64_t boot_ns);
int64_t db_cuts(
	void); /* connections cut by this program because the server did not answer in time, or because of db_stop_at */
DEFINE_OWNED(db, struct db)

/* --- schema --- */
struct ledger_options {
	bool demo;        /* only a ledger created as a demo takes simulated records */
	const char *zone; /* billing zone, an IANA name */
	/* Roles of the database; NULL: tollgate_owner, tollgate, tollgate_rollup. The owner's is used where a superuser migrates. */
	const char *owner_role, *daemon_role, *rollup_role;
};
/* Brings the schema to this program's version under an advisory lock, creates the ledger row if there is none, and gives the daemon's
 * and the roll-up's login their rights. For the owner of the schema, or a superuser. Refuses a migration file that was edited after it
 * was applied, and a schema that is newer than this program. ret_applied: how many ran. */
MUST_CHECK bool store_migrate(struct db *db, const struct ledger_options *o, int *ret_applied, struct err *err);
/* The database answers and its schema is this program's, or a newer one that says this program may use it. */
MUST_CHECK bool store_ready(struct db *db, struct err *err);
/* Both logins can do their part and no more: neither is a superuser or owns anything of the schema, and only the roll-up's writes what is
 * computed from inputs. ERR_INVALID names the login and the remedy. */
MUST_CHECK bool store_logins_check(struct db *daemon, struct db *rollup, struct err *err);
struct ledger {
	bool demo;
	char zone[64];
};
MUST_CHECK bool store_ledger(struct db *db, struct ledger *ret, struct err *err);

/* A list is read newest first, page by page. */
#define PAGE_MAX 1000
struct page {
	int64_t limit;  /* 1 to PAGE_MAX */
	int64_t before; /* an id: only what is older; 0: from the newest */
};

#endif

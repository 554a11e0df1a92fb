/* aggregator/store/db/db_watch.h - the deadlines of database connections. For store/db/db.c alone.
 *
 * libpq waits for a server without limit, and a statement timeout is enforced by the server: a hung server or a cut
 * network blocks both. One thread per process checks the deadlines of all connections and shuts the socket of each
 * that is past its own; the waiting call then fails as if the server had gone.
 *
 *  1. A deadline is set and cleared by one atomic store: the connection's thread takes no lock and wakes no thread.
 *     It is enforced to within DB_WATCH_NS.
 *  2. The watched descriptor is a duplicate: its number cannot become another socket's while the connection is
 *     watched.
 *  3. After db_watch_stop_at(), no connection outlasts that time. */
#ifndef TOLLGATE_DB_WATCH_H
#define TOLLGATE_DB_WATCH_H

#include <stdatomic.h>

#include "common/base/err.h"

#define DB_WATCH_NS INT64_C(200000000)

struct db_watched {
	atomic_llong deadline_ns; /* on the boot clock; 0: the connection is idle, without a limit */
	atomic_bool cut;          /* by the watch */
	int fd;                   /* the duplicate */
	struct db_watched *before, *behind;
	bool linked;
};

/* ERR_RETRY: no descriptor or no thread is left. w is zeroed before its first use. */
MUST_CHECK bool db_watch_add(struct db_watched *w, int fd, struct err *err);
/* After the connection is closed; allowed for one that was never added. */
void db_watch_remove(struct db_watched *w);
/* Shuts the socket now, from any thread; does nothing if it is not watched. */
void db_watch_cut(struct db_watched *w);

static inline void
db_watch_until(struct db_watched *w, int64_t boot_ns)
{
	atomic_store_explicit(&w->deadline_ns, boot_ns, memory_order_relaxed);
}

/* Rule 3. */
void db_watch_stop_at(int64_t boot_ns);
bool db_watch_stopped(void); /* that time has passed */
int64_t db_watch_cuts(void); /* sockets shut since the process began */

#endif

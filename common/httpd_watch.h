/* common/httpd_watch.h - the open connections of the HTTP server and until when each may take for what it is doing.
 *
 * libmicrohttpd closes a connection without traffic, and every byte begins that time anew: a client that sends one byte a
 * minute would keep its place for ever. Here a deadline stands whatever trickles in. The thread that looks at the deadlines also calls
 * a function of the server's now and then. Knows nothing of HTTP. */
#ifndef TOLLGATE_COMMON_HTTPD_WATCH_H
#define TOLLGATE_COMMON_HTTPD_WATCH_H

#include <stdatomic.h>

#include "common/err.h"

struct httpd_watch;

/* A place in the list; part of the server's own record of the connection. */
struct httpd_slot {
	int fd;
	_Atomic int64_t deadline_ns; /* on the boot clock; 0: none */
	struct httpd_slot *before, *behind;
};

/* Looks at each deadline when it is due, 20 ms late at most. interval_ns: no deadline is ever set nearer than this; tick is
 * called as often at least. */
MUST_CHECK bool httpd_watch_start(int64_t interval_ns, void (*tick)(void *arg), void *arg, struct httpd_watch **ret,
                                  struct err *err);
/* Ends the thread. What is in the list may still be removed. */
void httpd_watch_stop(struct httpd_watch *w);
/* NULL is allowed. */
void httpd_watch_free(struct httpd_watch *w);

/* The descriptor stays open until it was removed: past its deadline it is shut down, once, and its owner sees the end of it. */
void httpd_watch_add(struct httpd_watch *w, struct httpd_slot *slot, int fd, int64_t deadline_ns);
void httpd_watch_remove(struct httpd_watch *w, struct httpd_slot *slot);

#endif

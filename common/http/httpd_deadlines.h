/* common/http/httpd_deadlines.h - the open connections of the HTTP server: until when each may take, and whether its client is still there.
 *
 * libmicrohttpd closes a connection without traffic, and every byte begins that time anew: a client that sends one byte a
 * minute would keep its place for ever. Here a deadline stands whatever trickles in. Nor does it look at a connection that is
 * suspended: what its client asked for would wait, and be worked on, for a client that has gone. The thread that looks at both also calls
 * a function of the server's now and then. Knows nothing of HTTP. */
#ifndef TOLLGATE_HTTPD_DEADLINES_H
#define TOLLGATE_HTTPD_DEADLINES_H

#include <stdatomic.h>

#include "common/base/err.h"

struct httpd_watch;

/* A place in the list; part of the server's own record of the connection. */
struct httpd_slot {
	int fd;
	_Atomic int64_t deadline_ns; /* on the boot clock; 0: none */
	/* of the watch, with its lock */
	struct httpd_slot *before, *behind;
	void *resting; /* the request that rests on this connection; NULL: none does */
	bool gone;     /* the client has closed its side, or the connection is broken */
};

struct httpd_watch_options {
	int64_t interval_ns; /* no deadline is ever set nearer than this; tick is called as often at least */
	void (*tick)(void *arg);
	/* NULL: no request ever rests. The client of a request that rests has gone. Called once, with the watch's lock: it may not call the watch. True: the request rests
	 * no more, and `drop` is called with it, without the lock. When that is done for all that were found, `told` is called, likewise. */
	bool (*gone)(void *arg, void *resting);
	void (*drop)(void *arg, void *resting);
	void (*told)(void *arg);
	void *arg;
};

/* Looks at each deadline when it is due, 20 ms late at most. */
MUST_CHECK bool httpd_watch_start(const struct httpd_watch_options *o, struct httpd_watch **ret, struct err *err);
/* Ends the thread. Descriptors that are still in the list may be removed afterwards. */
void httpd_watch_stop(struct httpd_watch *w);
/* NULL is allowed. */
void httpd_watch_free(struct httpd_watch *w);

/* The descriptor stays open until it was removed: past its deadline it is shut down, once, and its owner sees the end of it. */
void httpd_watch_add(struct httpd_watch *w, struct httpd_slot *slot, int fd, int64_t deadline_ns);
/* linger: the client may still be sending what nobody will read. The end of the connection would then reach it as a reset, and with that its
 * reply would be lost: what comes is read and thrown away for a moment. */
void httpd_watch_remove(struct httpd_watch *w, struct httpd_slot *slot, bool linger);

/* From here on until httpd_watch_wake, `gone` may be called with this request. False: the client has gone already. */
MUST_CHECK bool httpd_watch_rest(struct httpd_watch *w, struct httpd_slot *slot, void *resting);
/* When it returns, `gone` is not being called with it and will not be. */
void httpd_watch_wake(struct httpd_watch *w, struct httpd_slot *slot);

#endif

/* common/base/err.h - error values: kind, sentence, detail.
 *
 * A fallible function returns MUST_CHECK bool and takes struct err * last. The kind determines the caller's reaction,
 * the text names the thing, the value and the limit. Library code never logs; it returns this. */
#ifndef TOLLGATE_ERR_H
#define TOLLGATE_ERR_H

#include "common/base/base.h"

enum err_kind {
	ERR_NONE,
	ERR_INVALID,  /* the input is wrong: reject it, a repetition will not help */
	ERR_CONFLICT, /* the input contradicts recorded data */
	ERR_DENIED,   /* the caller may not do this */
	ERR_MISSING,  /* the thing named does not exist */
	ERR_RETRY,    /* the same call may work later; nothing was done */
	ERR_UNKNOWN,  /* whether it was done is not known: look first */
	ERR_LIMIT,    /* the caller has as much open as it may have: the same call works once there is less of it */
	ERR_FATAL,    /* nothing the caller can do */
};

struct err {
	enum err_kind kind;
	char text[1024]; /* one sentence, no newline, cut with "..." when longer; shown to the client */
	char detail
		[512]; /* for the log alone: names of hosts and databases, a server's message; "" when there is none */
};

/* All return false, so that a failing function can end in one line. A NULL err is allowed. err_set and err_errno begin a new error,
 * without a detail. */
bool err_set(struct err *err, enum err_kind kind, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool err_prefix(struct err *err, const char *fmt, ...) PRINTF_LIKE(2, 3); /* "PREFIX: old text" */
bool err_errno(struct err *err, enum err_kind kind, int errnum, const char *fmt, ...) PRINTF_LIKE(4, 5);
bool err_detail(struct err *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* "TEXT (DETAIL)", for a log line or the operator's terminal. Never for a client. */
#define ERR_LOG_SIZE (sizeof(((struct err *)NULL)->text) + sizeof(((struct err *)NULL)->detail) + 4)
const char *err_log_text(const struct err *err, char out[ERR_LOG_SIZE]);
const char *err_kind_name(enum err_kind kind);

#endif

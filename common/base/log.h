/* common/base/log.h - logfmt on stderr. Called only from mains, threads and api/; everything below returns its error. */
#ifndef TOLLGATE_LOG_H
#define TOLLGATE_LOG_H

#include "common/base/base.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_init(const char *program, enum log_level least);

/* log_event(LOG_INFO, "pushed", LI("batches", n), LS("url", url))
 * writes: ts=2026-11-16T05:45:00.123Z level=info prog=tollgate-exporter msg=pushed batches=3 url=http://...
 * Values are quoted and escaped where needed, so that no value can forge a field or a line. */
struct log_field {
	const char *name;
	enum { LOG_STR, LOG_INT } type;
	const char *str;
	int64_t num;
};
#define LS(name_, s_) ((struct log_field){.name = (name_), .type = LOG_STR, .str = (s_)})
#define LI(name_, n_) ((struct log_field){.name = (name_), .type = LOG_INT, .num = (int64_t)(n_)})
#define log_event(level, msg, ...) log_write((level), (msg), (const struct log_field[]){__VA_ARGS__, LS(NULL, NULL)})
/* The fields end with one whose name is NULL; NULL for none. A line longer than a pipe takes at once loses fields and
 * says cut=true. */
void log_write(enum log_level level, const char *msg, const struct log_field *fields);

#endif

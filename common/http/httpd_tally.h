/* common/http/httpd_tally.h - amounts by name: what each caller of the HTTP server holds. A name with nothing has no place. */
#ifndef TOLLGATE_HTTPD_TALLY_H
#define TOLLGATE_HTTPD_TALLY_H

#include "common/base/base.h"

struct http_tally;
struct http_tally *http_tally_new(void);
void http_tally_free(struct http_tally *t); /* NULL is allowed */
size_t http_tally_get(const struct http_tally *t, const char *name);
void http_tally_add(struct http_tally *t, const char *name, size_t amount);
/* Not more than was added. */
void http_tally_take(struct http_tally *t, const char *name, size_t amount);

#endif

/* common/http/httpd_listen.h - the listening socket of the HTTP server. */
#ifndef TOLLGATE_HTTPD_LISTEN_H
#define TOLLGATE_HTTPD_LISTEN_H

#include "common/base/err.h"

/* Listens on "127.0.0.1:9402" or "[::1]:9402". Port 0 takes a free one; ret_port tells which. The caller closes ret_fd.
 * ERR_CONFLICT: the port is taken. Errors name the address. */
MUST_CHECK bool httpd_listen(const char *address, int *ret_fd, uint16_t *ret_port, struct err *err);

#endif

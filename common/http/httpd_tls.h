/* common/http/httpd_tls.h - the certificate, key and client CA of the HTTP server, by GnuTLS, and their renewal while it serves.
 *
 * Each connection holds the set of files that was current when it began, so a renewal changes nothing for those under way. A
 * client's certificate is verified inside the handshake: a wrong one never reaches a handler. */
#ifndef TOLLGATE_HTTPD_TLS_H
#define TOLLGATE_HTTPD_TLS_H

#include "common/http/httpd.h"

struct httpd_tls;

/* TLS 1.2 and 1.3 only, and only key exchanges with forward secrecy. */
#define HTTPD_TLS_PRIORITIES "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:%SERVER_PRECEDENCE"

/* ERR_INVALID: what a file holds, or that certificate and key are not a pair. The texts name the file. */
MUST_CHECK bool httpd_tls_new(const struct httpd_tls_files *files, struct httpd_tls **ret, struct err *err);
/* NULL is allowed; nothing may be attached any more. */
void httpd_tls_free(struct httpd_tls *t);
/* Reads the files again, all of them. When anything is wrong with the new set the old one stays. */
MUST_CHECK bool httpd_tls_reload(struct httpd_tls *t, struct err *err);
/* The same with other files. When anything is wrong with them the old ones stay, and go on being looked at. */
MUST_CHECK bool httpd_tls_take(struct httpd_tls *t, const struct httpd_tls_files *files, struct err *err);
/* Whether the files are others than at the last attempt to read them, successful or not. */
bool httpd_tls_changed(struct httpd_tls *t);
/* Whether users beside the owner and the group may read the key. */
bool httpd_tls_key_exposed(struct httpd_tls *t);

/* Gives a session that has not begun its handshake the current set; the result is held until httpd_tls_detach. */
void *httpd_tls_attach(struct httpd_tls *t, void *session);
void httpd_tls_detach(void *held);
/* The subject of the verified client of a session, RFC 4514; false when it showed no certificate, or none that fits. */
MUST_CHECK bool httpd_tls_client(void *session, char *out, size_t size);

/* A certificate callback for libmicrohttpd that has none: a session that nothing was attached to cannot begin. */
typedef void httpd_tls_callback(void);
httpd_tls_callback *httpd_tls_nothing(void);

#endif

/* common/http/webconf.h - the web configuration file that Prometheus' exporters share: a certificate, and users with passwords.
 *
 *   tls_server_config: {cert_file, key_file, client_ca_file, client_auth_type, min_version, max_version}
 *   basic_auth_users: {NAME: BCRYPT_HASH}
 *
 * Relative paths begin at the file's own folder. Other settings of the format, and unknown ones, are refused by name:
 * a setting that protects nothing must not look as if it did. */
#ifndef TOLLGATE_WEBCONF_H
#define TOLLGATE_WEBCONF_H

#include "common/http/httpd.h"

/* A bcrypt hash is a matter of 2^cost; beyond this one password takes seconds of a processor. */
#define WEBCONF_COST_MIN 4
#define WEBCONF_COST_MAX 15

struct webconf_user {
	char *name, *hash;
	int cost;
};

struct webconf {
	char *cert_file, *key_file, *client_ca_file; /* NULL: none */
	bool client_required;
	int min_version, max_version; /* see httpd_tls_files */
	struct webconf_user *users;
	size_t user_count;
};

/* Errors read "FILE:LINE: ...". The files it names are not opened. */
MUST_CHECK bool webconf_read(const char *path, struct webconf **ret, struct err *err);
MUST_CHECK bool webconf_parse(const char *path, const char *text, size_t len, struct webconf **ret, struct err *err);
void webconf_free(struct webconf *c);
DEFINE_OWNED(webconf, struct webconf)

struct httpd_tls_files webconf_tls(const struct webconf *c);

#endif

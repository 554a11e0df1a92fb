/* common/http/httpd_tls.c - the certificate, key and client CA of the HTTP server, by GnuTLS, and their renewal while it serves. */
#include "common/http/httpd_tls.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_BYTES_MAX (1u << 20)

/* Certificates and settings that were read at one time. */
struct tls_set {
	atomic_int refs;
	gnutls_certificate_credentials_t credentials;
	gnutls_certificate_request_t request;
	gnutls_priority_t priority;
};

/* Enough of a file's status to see that it was written or replaced. */
struct file_mark {
	dev_t device;
	ino_t inode;
	off_t bytes;
	struct timespec changed;
};
enum { FILES = 3 };

struct httpd_tls {
	pthread_mutex_t reading; /* held while the files are read, and of these: */
	char *paths[FILES];      /* certificate, key, client CA; NULL: none */
	bool client_required;
	int min_version, max_version;
	pthread_mutex_t lock; /* of the rest */
	struct tls_set *current;
	struct file_mark marks[FILES]; /* at the last attempt */
};

static void
set_unref(struct tls_set *s)
{
	if (!s || atomic_fetch_sub(&s->refs, 1) > 1)
		return;
	if (s->credentials)
		gnutls_certificate_free_credentials(s->credentials);
	if (s->priority)
		gnutls_priority_deinit(s->priority);
	mem_free(s);
}

static void
set_unrefp(struct tls_set **s)
{
	set_unref(*s);
}

static void
mark_files(const struct httpd_tls *t, struct file_mark out[FILES])
{
	memset(out, 0, FILES * sizeof(*out));
	for (size_t i = 0; i < FILES; i++) {
		struct stat st;

		if (t->paths[i] && stat(t->paths[i], &st) == 0)
			out[i] = (struct file_mark){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
	}
}

static bool
marks_equal(const struct file_mark *a, const struct file_mark *b)
{
	for (size_t i = 0; i < FILES; i++)
		if (a[i].device != b[i].device || a[i].inode != b[i].inode || a[i].bytes != b[i].bytes ||
		    a[i].changed.tv_sec != b[i].changed.tv_sec || a[i].changed.tv_nsec != b[i].changed.tv_nsec)
			return false;
	return true;
}

/* Runs inside the handshake. That a client without a certificate is refused where one is required is GnuTLS's own check. */
static int
verify_client(gnutls_session_t session)
{
	gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
	                                 .data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};
	unsigned status = 0, count = 0;

	if (!gnutls_certificate_get_peers(session, &count) || count == 0)
		return 0;
	if (gnutls_certificate_verify_peers(session, &purpose, 1, &status) != GNUTLS_E_SUCCESS || status != 0)
		return GNUTLS_E_CERTIFICATE_ERROR;
	return 0;
}

static gnutls_datum_t
datum(const struct buf *b)
{
	return (gnutls_datum_t){.data = (unsigned char *)b->data, .size = (unsigned)b->len};
}

static bool
read_pair(struct httpd_tls *t, struct tls_set *s, struct err *err)
{
	in_place(buf) struct buf cert = {0}, key = {0};
	gnutls_datum_t cert_text, key_text;
	int rc;

	buf_init(&cert, FILE_BYTES_MAX);
	buf_init(&key, FILE_BYTES_MAX);
	if (!buf_read_file(&cert, t->paths[0], err))
		return err_prefix(err, "TLS certificate");
	if (!buf_read_file(&key, t->paths[1], err))
		return err_prefix(err, "TLS key");
	cert_text = datum(&cert);
	key_text = datum(&key);
	rc = gnutls_certificate_set_x509_key_mem2(s->credentials, &cert_text, &key_text, GNUTLS_X509_FMT_PEM, NULL, 0);
	if (key.data)
		gnutls_memset(key.data, 0, key.cap);
	if (rc < 0)
		return err_set(err, ERR_INVALID, "TLS certificate %s with key %s: %s", t->paths[0], t->paths[1],
		               gnutls_strerror(rc));
	return true;
}

static bool
read_client_ca(struct httpd_tls *t, struct tls_set *s, struct err *err)
{
	in_place(buf) struct buf ca = {0};
	gnutls_datum_t text;
	int rc;

	buf_init(&ca, FILE_BYTES_MAX);
	if (!buf_read_file(&ca, t->paths[2], err))
		return err_prefix(err, "TLS client CA");
	text = datum(&ca);
	rc = ca.len > 0 ? gnutls_certificate_set_x509_trust_mem(s->credentials, &text, GNUTLS_X509_FMT_PEM) : 0;
	if (rc <= 0)
		return err_set(err, ERR_INVALID, "TLS client CA %s: %s", t->paths[2],
		               rc < 0 ? gnutls_strerror(rc) : "there is no certificate in it");
	gnutls_certificate_set_verify_function(s->credentials, verify_client);
	s->request = t->client_required ? GNUTLS_CERT_REQUIRE : GNUTLS_CERT_REQUEST;
	return true;
}

static bool
set_versions(const struct httpd_tls *t, struct tls_set *s, struct err *err)
{
	const char *text = t->min_version == 13   ? HTTPD_TLS_PRIORITIES ":-VERS-TLS1.2"
	                   : t->max_version == 12 ? HTTPD_TLS_PRIORITIES ":-VERS-TLS1.3"
	                                          : HTTPD_TLS_PRIORITIES;

	if (gnutls_priority_init(&s->priority, text, NULL) == GNUTLS_E_SUCCESS)
		return true;
	return err_set(err, ERR_FATAL, "GnuTLS does not know the priorities %s", text);
}

static bool
set_read(struct httpd_tls *t, struct tls_set **ret, struct err *err)
{
	__attribute__((cleanup(set_unrefp))) struct tls_set *s = mem_alloc(sizeof(*s));

	atomic_init(&s->refs, 1);
	s->request = GNUTLS_CERT_IGNORE;
	if (gnutls_certificate_allocate_credentials(&s->credentials) != GNUTLS_E_SUCCESS)
		return err_set(err, ERR_FATAL, "GnuTLS has no memory");
	if (!set_versions(t, s, err) || !read_pair(t, s, err) || (t->paths[2] && !read_client_ca(t, s, err)))
		return false;
	*ret = take(s);
	return true;
}

bool
httpd_tls_reload(struct httpd_tls *t, struct err *err)
{
	struct file_mark marks[FILES];
	struct tls_set *fresh = NULL, *old = NULL;
	bool ok;

	pthread_mutex_lock(&t->reading);
	/* before reading: a file that changes meanwhile is then seen as changed */
	mark_files(t, marks);
	ok = set_read(t, &fresh, err);
	pthread_mutex_lock(&t->lock);
	memcpy(t->marks, marks, sizeof(marks));
	if (ok) {
		old = t->current;
		t->current = fresh;
	}
	pthread_mutex_unlock(&t->lock);
	pthread_mutex_unlock(&t->reading);
	set_unref(old);
	return ok;
}

static void
free_paths(struct httpd_tls *t)
{
	for (size_t i = 0; i < FILES; i++)
		mem_free(t->paths[i]);
}

static void
name_files(struct httpd_tls *t, const struct httpd_tls_files *files)
{
	ASSERT(files->cert && files->key);
	t->paths[0] = mem_strdup(files->cert);
	t->paths[1] = mem_strdup(files->key);
	t->paths[2] = mem_strdup(files->client_ca);
	t->client_required = files->client_required;
	t->min_version = files->min_version;
	t->max_version = files->max_version;
}

bool
httpd_tls_files_check(const struct httpd_tls_files *files, struct err *err)
{
	if (!files->cert != !files->key)
		return err_set(err, ERR_INVALID, "%s: TLS needs both tls-cert and tls-key",
		               files->cert ? "tls-key" : "tls-cert");
	if (files->client_ca && !files->cert)
		return err_set(err, ERR_INVALID, "tls-client-ca: only with tls-cert and tls-key");
	if (files->client_required && !files->client_ca)
		return err_set(err, ERR_INVALID, "tls-client-required: only with tls-client-ca");
	return true;
}

bool
httpd_tls_new(const struct httpd_tls_files *files, struct httpd_tls **ret, struct err *err)
{
	struct httpd_tls *t = mem_alloc(sizeof(*t));

	pthread_mutex_init(&t->reading, NULL);
	pthread_mutex_init(&t->lock, NULL);
	name_files(t, files);
	if (!httpd_tls_reload(t, err)) {
		httpd_tls_free(t);
		return false;
	}
	*ret = t;
	return true;
}

void
httpd_tls_free(struct httpd_tls *t)
{
	if (!t)
		return;
	set_unref(t->current);
	free_paths(t);
	pthread_mutex_destroy(&t->reading);
	pthread_mutex_destroy(&t->lock);
	mem_free(t);
}

bool
httpd_tls_take(struct httpd_tls *t, const struct httpd_tls_files *files, struct err *err)
{
	struct httpd_tls *fresh = NULL, old;

	if (!httpd_tls_new(files, &fresh, err))
		return false;
	pthread_mutex_lock(&t->reading);
	pthread_mutex_lock(&t->lock);
	old = *t;
	memcpy(t->paths, fresh->paths, sizeof(t->paths));
	t->client_required = fresh->client_required;
	t->min_version = fresh->min_version;
	t->max_version = fresh->max_version;
	t->current = fresh->current;
	memcpy(t->marks, fresh->marks, sizeof(t->marks));
	pthread_mutex_unlock(&t->lock);
	pthread_mutex_unlock(&t->reading);
	memcpy(fresh->paths, old.paths, sizeof(old.paths));
	fresh->current = old.current;
	httpd_tls_free(fresh);
	return true;
}

bool
httpd_tls_changed(struct httpd_tls *t)
{
	struct file_mark now[FILES];
	bool changed;

	pthread_mutex_lock(&t->reading);
	mark_files(t, now);
	pthread_mutex_lock(&t->lock);
	changed = !marks_equal(now, t->marks);
	pthread_mutex_unlock(&t->lock);
	pthread_mutex_unlock(&t->reading);
	return changed;
}

bool
httpd_tls_key_exposed(struct httpd_tls *t)
{
	struct stat st;
	bool exposed;

	pthread_mutex_lock(&t->reading);
	exposed = stat(t->paths[1], &st) == 0 && (st.st_mode & S_IRWXO) != 0;
	pthread_mutex_unlock(&t->reading);
	return exposed;
}

void *
httpd_tls_attach(struct httpd_tls *t, void *session)
{
	struct tls_set *s;

	pthread_mutex_lock(&t->lock);
	s = t->current;
	atomic_fetch_add(&s->refs, 1);
	pthread_mutex_unlock(&t->lock);
	gnutls_certificate_server_set_request(session, s->request);
	(void)gnutls_priority_set(session, s->priority);
	/* fails for want of memory only; the session then has libmicrohttpd's empty credentials and cannot begin */
	(void)gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, s->credentials);
	return s;
}

void
httpd_tls_detach(void *held)
{
	set_unref(held);
}

bool
httpd_tls_client(void *session, char *out, size_t size)
{
	gnutls_x509_crt_t certificate = NULL;
	const gnutls_datum_t *chain;
	gnutls_datum_t name = {0};
	unsigned count = 0;
	bool ok = false;

	chain = gnutls_certificate_get_peers(session, &count);
	if (!chain || count == 0 || gnutls_x509_crt_init(&certificate) != GNUTLS_E_SUCCESS)
		return false;
	if (gnutls_x509_crt_import(certificate, &chain[0], GNUTLS_X509_FMT_DER) == GNUTLS_E_SUCCESS &&
	    gnutls_x509_crt_get_dn3(certificate, &name, 0) == GNUTLS_E_SUCCESS && name.size > 0 && name.size < size) {
		memcpy(out, name.data, name.size);
		out[name.size] = '\0';
		ok = true;
	}
	gnutls_free(name.data);
	gnutls_x509_crt_deinit(certificate);
	return ok;
}

static int
retrieve_nothing(gnutls_session_t session, const gnutls_datum_t *ca, int ca_count,
                 const gnutls_pk_algorithm_t *algorithms, int algorithm_count, gnutls_pcert_st **ret,
                 unsigned *ret_count, gnutls_privkey_t *ret_key)
{
	(void)session;
	(void)ca;
	(void)ca_count;
	(void)algorithms;
	(void)algorithm_count;
	*ret = NULL;
	*ret_count = 0;
	*ret_key = NULL;
	return -1;
}

httpd_tls_callback *
httpd_tls_nothing(void)
{
	return (httpd_tls_callback *)retrieve_nothing;
}

/* tests/support/http/certs.c - certificates for tests. */
#include "tests/support/http/certs.h"

#include <arpa/inet.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <string.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/base/time.h"

#define OK(call) ASSERT((call) >= 0)

struct wanted {
	const char *name, *subject;
	const char *dns;     /* NULL: none, and no address either */
	const char *purpose; /* NULL: a CA */
	int from_s, to_s;    /* from now */
};

struct made {
	gnutls_x509_crt_t cert;
	gnutls_x509_privkey_t key;
};

static void
write_pem(const char *dir, const char *name, const char *ending, const gnutls_datum_t *text)
{
	owned(mem) char *path = mem_printf("%s/%s%s", dir, name, ending);
	struct err err;

	ASSERT(file_write_atomic(path, text->data, text->size, 0600, &err));
}

static void
write_both(const char *dir, const char *name, const struct made *m)
{
	gnutls_datum_t text;

	OK(gnutls_x509_crt_export2(m->cert, GNUTLS_X509_FMT_PEM, &text));
	write_pem(dir, name, ".pem", &text);
	gnutls_free(text.data);
	OK(gnutls_x509_privkey_export2(m->key, GNUTLS_X509_FMT_PEM, &text));
	write_pem(dir, name, ".key", &text);
	gnutls_free(text.data);
}

static void
describe(gnutls_x509_crt_t cert, const struct wanted *w)
{
	static const unsigned char loopback[] = {127, 0, 0, 1};
	const char *at = NULL;

	OK(gnutls_x509_crt_set_dn(cert, w->subject, &at));
	if (!w->purpose) {
		OK(gnutls_x509_crt_set_basic_constraints(cert, 1, -1));
		OK(gnutls_x509_crt_set_key_usage(cert, GNUTLS_KEY_KEY_CERT_SIGN));
		return;
	}
	OK(gnutls_x509_crt_set_basic_constraints(cert, 0, -1));
	OK(gnutls_x509_crt_set_key_usage(cert, GNUTLS_KEY_DIGITAL_SIGNATURE));
	OK(gnutls_x509_crt_set_key_purpose_oid(cert, w->purpose, 0));
	if (!w->dns)
		return;
	OK(gnutls_x509_crt_set_subject_alt_name(cert, GNUTLS_SAN_DNSNAME, w->dns, (unsigned)strlen(w->dns),
	                                        GNUTLS_FSAN_SET));
	if (strcmp(w->dns, "localhost") == 0)
		OK(gnutls_x509_crt_set_subject_alt_name(cert, GNUTLS_SAN_IPADDRESS, loopback, sizeof(loopback),
		                                        GNUTLS_FSAN_APPEND));
}

/* By the issuer, or by itself when that is NULL. */
static struct made
make(const char *dir, const struct wanted *w, const struct made *issuer)
{
	time_t now = (time_t)(time_wall_ns() / NS_PER_S);
	uint8_t serial[8];
	struct made m;

	OK(gnutls_x509_crt_init(&m.cert));
	OK(gnutls_x509_privkey_init(&m.key));
	OK(gnutls_x509_privkey_generate(m.key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
	random_bytes(serial, sizeof(serial));
	serial[0] &= 0x7f;
	OK(gnutls_x509_crt_set_version(m.cert, 3));
	OK(gnutls_x509_crt_set_serial(m.cert, serial, sizeof(serial)));
	OK(gnutls_x509_crt_set_activation_time(m.cert, now + w->from_s));
	OK(gnutls_x509_crt_set_expiration_time(m.cert, now + w->to_s));
	OK(gnutls_x509_crt_set_key(m.cert, m.key));
	describe(m.cert, w);
	OK(gnutls_x509_crt_sign2(m.cert, issuer ? issuer->cert : m.cert, issuer ? issuer->key : m.key,
	                         GNUTLS_DIG_SHA256, 0));
	write_both(dir, w->name, &m);
	return m;
}

static void
made_fini(struct made *m)
{
	gnutls_x509_crt_deinit(m->cert);
	gnutls_x509_privkey_deinit(m->key);
}

void
certs_write(const char *dir)
{
	static const struct wanted ca = {"ca", "CN=Test CA", NULL, NULL, -7200, 86400};
	static const struct wanted other_ca = {"other-ca", "CN=Other CA", NULL, NULL, -7200, 86400};
	static const struct wanted stranger = {"stranger", "CN=alice,O=Tollgate", NULL, GNUTLS_KP_TLS_WWW_CLIENT, -7200,
	                                       86400};
	static const struct wanted others[] = {
		{"server", "CN=server", "localhost", GNUTLS_KP_TLS_WWW_SERVER, -7200, 86400},
		{"renewed", "CN=renewed", "localhost", GNUTLS_KP_TLS_WWW_SERVER, -7200, 86400},
		{"elsewhere", "CN=elsewhere", "elsewhere.example", GNUTLS_KP_TLS_WWW_SERVER, -7200, 86400},
		{"client", "CN=alice,O=Tollgate", NULL, GNUTLS_KP_TLS_WWW_CLIENT, -7200, 86400},
		{"expired", "CN=alice,O=Tollgate", NULL, GNUTLS_KP_TLS_WWW_CLIENT, -7200, -3600},
		{"misused", "CN=server", NULL, GNUTLS_KP_TLS_WWW_SERVER, -7200, 86400},
	};
	struct made root = make(dir, &ca, NULL), other = make(dir, &other_ca, NULL), m;

	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		m = make(dir, &others[i], &root);
		made_fini(&m);
	}
	m = make(dir, &stranger, &other);
	made_fini(&m);
	made_fini(&root);
	made_fini(&other);
}

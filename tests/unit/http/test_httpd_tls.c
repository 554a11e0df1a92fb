/* tsan */
/* tests/unit/http/test_httpd_tls.c - the HTTP server over TLS: versions, who is let in, and new certificates while it serves.
 * The client here is GnuTLS itself, so that it can be as wrong as a test needs it. */
#include "tests/support/http/httpd_world.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/http/httpc.h"
#include "common/http/httpd_tls.h"
#include "common/base/time.h"
#include "tests/support/http/certs.h"

static char dir[] = "/tmp/tollgate-tls-XXXXXX";

static const char *
file(const char *name)
{
	static char paths[8][256];
	static unsigned next;
	char *path = paths[next++ % ARRAY_LEN(paths)];

	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

/* The files that the server reads; the certificates of certs.h are copied over them. */
static void
install(const char *from, const char *to)
{
	in_place(buf) struct buf text;
	struct err err;

	buf_init(&text, 1u << 20);
	assert_true(buf_read_file(&text, file(from), &err));
	assert_true(file_write_atomic(file(to), text.data, text.len, 0600, &err));
}

/* ---- a server with TLS ---- */

static struct {
	atomic_int renewed, refused, exposed;
	char why[256]; /* of the last refusal; read after the count has changed */
} events;

static void
on_tls(void *app, enum httpd_tls_event event, const struct err *err)
{
	(void)app;
	switch (event) {
	case HTTPD_TLS_RENEWED: atomic_fetch_add(&events.renewed, 1); break;
	case HTTPD_TLS_REFUSED:
		snprintf(events.why, sizeof(events.why), "%.200s", err->text);
		atomic_fetch_add(&events.refused, 1);
		break;
	case HTTPD_TLS_EXPOSED: atomic_fetch_add(&events.exposed, 1); break;
	}
}

static struct httpd_options
tls_options(struct world *w, bool ask, bool require)
{
	struct httpd_options o = options_of(w);

	o.tls = (struct httpd_tls_files){.cert = file("live.pem"),
	                                 .key = file("live.key"),
	                                 .client_ca = ask ? file("ca.pem") : NULL,
	                                 .client_required = require};
	o.on_tls = on_tls;
	o.tls_check_ns = NS_PER_HOUR;
	return o;
}

static struct world *
tls_world(bool ask, bool require)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct httpd_options o;

	memset(&events, 0, sizeof(events));
	install("server.pem", "live.pem");
	install("server.key", "live.key");
	world_init(w);
	o = tls_options(w, ask, require);
	world_start(w, &o);
	return w;
}

static void
world_end(struct world *w)
{
	world_fini(w);
	mem_free(w);
}

/* ---- a client that can be wrong ---- */

struct tls_client {
	int fd;
	gnutls_session_t session;
	gnutls_certificate_credentials_t credentials;
	gnutls_protocol_t version;
	char server[128]; /* the subject it showed */
	bool ok;          /* the handshake, and the reply that was read after it */
	int failure;      /* what GnuTLS says of a handshake that failed */
	char reply[4096];
};

static void
note_server(struct tls_client *c)
{
	gnutls_x509_crt_t cert;
	size_t size = sizeof(c->server);
	unsigned n = 0;
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(c->session, &n);

	assert_true(chain && n > 0);
	assert_int_equal(gnutls_x509_crt_init(&cert), 0);
	assert_int_equal(gnutls_x509_crt_import(cert, &chain[0], GNUTLS_X509_FMT_DER), 0);
	assert_int_equal(gnutls_x509_crt_get_dn(cert, c->server, &size), 0);
	gnutls_x509_crt_deinit(cert);
}

static bool
tls_say(struct tls_client *c, const char *text)
{
	return gnutls_record_send(c->session, text, strlen(text)) == (ssize_t)strlen(text);
}

static bool
whole(const char *reply)
{
	const char *length = strstr(reply, "Content-Length: "), *body = strstr(reply, "\r\n\r\n");

	return length && body && strlen(body + 4) >= strtoul(length + strlen("Content-Length: "), NULL, 10);
}

/* In TLS 1.3 a server refuses a client's certificate after the client has done its part, so only a reply shows success. */
static bool
tls_ask(struct tls_client *c, const char *request)
{
	ssize_t got;

	memset(c->reply, 0, sizeof(c->reply));
	if (!tls_say(c, request))
		return false;
	do {
		got = gnutls_record_recv(c->session, c->reply + strlen(c->reply),
		                         sizeof(c->reply) - strlen(c->reply) - 1);
	} while (got == GNUTLS_E_AGAIN || got == GNUTLS_E_INTERRUPTED || (got > 0 && !whole(c->reply)));
	return got > 0;
}

/* who: the name of a certificate of certs.h to show, NULL: none. */
static void
tls_dial(struct tls_client *c, uint16_t port, const char *priorities, const char *who)
{
	char cert[64], key[64];
	int rc;

	memset(c, 0, sizeof(*c));
	c->fd = dial(port);
	/* forced: it would not show a certificate of a CA that the server does not name */
	assert_int_equal(gnutls_init(&c->session, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL | GNUTLS_FORCE_CLIENT_CERT), 0);
	assert_int_equal(gnutls_certificate_allocate_credentials(&c->credentials), 0);
	if (who) {
		snprintf(cert, sizeof(cert), "%s.pem", who);
		snprintf(key, sizeof(key), "%s.key", who);
		assert_int_equal(gnutls_certificate_set_x509_key_file(c->credentials, file(cert), file(key),
		                                                      GNUTLS_X509_FMT_PEM),
		                 0);
	}
	assert_int_equal(gnutls_priority_set_direct(c->session, priorities, NULL), 0);
	assert_int_equal(gnutls_credentials_set(c->session, GNUTLS_CRD_CERTIFICATE, c->credentials), 0);
	gnutls_transport_set_int(c->session, c->fd);
	do
		rc = gnutls_handshake(c->session);
	while (rc < 0 && !gnutls_error_is_fatal(rc));
	c->failure = rc;
	if (rc != 0)
		return;
	c->version = gnutls_protocol_get_version(c->session);
	note_server(c);
	c->ok = tls_ask(c, "GET /name HTTP/1.1\r\n" HOST "\r\n");
}

static void
tls_close(struct tls_client *c)
{
	gnutls_deinit(c->session);
	gnutls_certificate_free_credentials(c->credentials);
	close(c->fd);
}

/* ---- versions ---- */

static void
tls_1_2_and_1_3_are_spoken_and_nothing_older(void **state)
{
	static const struct {
		const char *name, *priorities;
		gnutls_protocol_t version;
	} cases[] = {
		{"1.3", "NORMAL:-VERS-ALL:+VERS-TLS1.3", GNUTLS_TLS1_3},
		{"1.2", "NORMAL:-VERS-ALL:+VERS-TLS1.2", GNUTLS_TLS1_2},
		{"1.1", "LEGACY:-VERS-ALL:+VERS-TLS1.1:%VERIFY_ALLOW_SIGN_WITH_SHA1", 0},
		{"1.0", "LEGACY:-VERS-ALL:+VERS-TLS1.0:%VERIFY_ALLOW_SIGN_WITH_SHA1", 0},
	};
	struct world *w = tls_world(false, false);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct tls_client c;

		tls_dial(&c, w->port, cases[i].priorities, NULL);
		if (c.ok != (cases[i].version != 0) || c.version != cases[i].version)
			fail_msg("TLS %s: %s, version %d", cases[i].name, c.ok ? "spoken" : "refused", (int)c.version);
		/* it is the server that refused and not this client; libmicrohttpd sends no alert then, it hangs up */
		if (!c.ok && c.failure != GNUTLS_E_PREMATURE_TERMINATION && c.failure != GNUTLS_E_PULL_ERROR)
			fail_msg("TLS %s: %s", cases[i].name, gnutls_strerror(c.failure));
		tls_close(&c);
	}
	world_end(w);
}

static void
plain_http_gets_no_reply_where_tls_is_spoken(void **state)
{
	struct world *w = tls_world(false, false);
	struct answer a = answer_empty();

	(void)state;
	ask(w, "GET /inline HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 0);
	answer_fini(&a);
	world_end(w);
}

/* ---- clients ---- */

static void
clients_are_let_in_by_their_certificate(void **state)
{
	static const struct {
		const char *name, *who;
		bool ask, require, in;
		const char *client; /* what a handler knows of it */
	} cases[] = {
		{"no CA, no certificate", NULL, false, false, true, "client=none"},
		{"no CA: a certificate is not even asked for", "client", false, false, true, "client=none"},
		{"optional and absent", NULL, true, false, true, "client=none"},
		{"optional and shown", "client", true, false, true, "client=CN=alice,O=Tollgate"},
		{"optional and of another CA", "stranger", true, false, false, ""},
		{"optional and expired", "expired", true, false, false, ""},
		{"optional and made for servers", "misused", true, false, false, ""},
		{"required and absent", NULL, true, true, false, ""},
		{"required and shown", "client", true, true, true, "client=CN=alice,O=Tollgate"},
		{"required and of another CA", "stranger", true, true, false, ""},
	};
	static const char *const versions[] = {"NORMAL:-VERS-ALL:+VERS-TLS1.3", "NORMAL:-VERS-ALL:+VERS-TLS1.2"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct world *w = tls_world(cases[i].ask, cases[i].require);

		for (size_t v = 0; v < ARRAY_LEN(versions); v++) {
			struct tls_client c;

			tls_dial(&c, w->port, versions[v], cases[i].who);
			if (c.ok != cases[i].in || !strstr(c.reply, cases[i].client))
				fail_msg("%s, %s: %s\n%s", cases[i].name, versions[v], c.ok ? "let in" : "refused",
				         c.reply);
			tls_close(&c);
		}
		world_end(w);
	}
}

/* ---- renewal ---- */

static void
expect_server(struct world *w, const char *subject)
{
	struct tls_client c;

	tls_dial(&c, w->port, "NORMAL", NULL);
	assert_true(c.ok);
	assert_string_equal(c.server, subject);
	tls_close(&c);
}

static void
a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on(void **state)
{
	struct world *w = tls_world(false, false);
	struct tls_client old;

	(void)state;
	tls_dial(&old, w->port, "NORMAL", NULL);
	assert_string_equal(old.server, "CN=server");
	install("renewed.pem", "live.pem");
	install("renewed.key", "live.key");
	httpd_tls_renew(w->h);
	assert_int_equal(atomic_load(&events.renewed), 1);
	expect_server(w, "CN=renewed");
	/* twice, so that the set that the old connection holds is held by nothing else */
	httpd_tls_renew(w->h);
	assert_true(tls_ask(&old, "GET /inline HTTP/1.1\r\n" HOST "\r\n"));
	assert_non_null(strstr(old.reply, " 200 "));
	tls_close(&old);
	world_end(w);
}

static void
other_files_are_taken_together_or_not_at_all(void **state)
{
	struct world *w = tls_world(false, false);
	struct httpd_tls_files files = {.cert = file("renewed.pem"), .key = file("server.key")};
	struct err err;

	(void)state;
	assert_false(httpd_tls_use(w->h, &files, &err));
	assert_non_null(strstr(err.text, "server.key"));
	expect_server(w, "CN=server");
	httpd_tls_renew(w->h); /* the old files are still the ones that are read */
	expect_server(w, "CN=server");
	files = (struct httpd_tls_files){.cert = file("renewed.pem"), .key = file("renewed.key")};
	assert_true(httpd_tls_use(w->h, &files, &err));
	expect_server(w, "CN=renewed");
	httpd_tls_renew(w->h);
	expect_server(w, "CN=renewed");
	assert_int_equal(atomic_load(&events.renewed), 3);
	assert_int_equal(atomic_load(&events.refused), 0);
	world_end(w);
}

static void
a_bad_pair_is_refused_and_the_old_one_stays(void **state)
{
	static const struct {
		const char *name, *cert, *key, *why;
	} cases[] = {
		{"a key of another certificate", "renewed.pem", "server.key", "live.key"},
		{"a file that is no certificate", "server.key", "server.key", "live.pem"},
		{"no key", "renewed.pem", NULL, "TLS key"},
	};
	struct world *w = tls_world(false, false);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		install(cases[i].cert, "live.pem");
		if (cases[i].key)
			install(cases[i].key, "live.key");
		else
			assert_int_equal(unlink(file("live.key")), 0);
		httpd_tls_renew(w->h);
		assert_int_equal(atomic_load(&events.refused), (int)i + 1);
		if (!strstr(events.why, cases[i].why))
			fail_msg("%s: %s", cases[i].name, events.why);
		expect_server(w, "CN=server");
	}
	world_end(w);
}

static void
changed_files_are_noticed_and_a_bad_one_is_told_once(void **state)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct httpd_options o;

	(void)state;
	memset(&events, 0, sizeof(events));
	install("server.pem", "live.pem");
	install("server.key", "live.key");
	world_init(w);
	o = tls_options(w, false, false);
	o.tls_check_ns = NS_PER_MS;
	world_start(w, &o);
	/* the certificate comes first, and for a moment the two do not fit */
	install("renewed.pem", "live.pem");
	await_count(&events.refused, 1);
	expect_server(w, "CN=server");
	install("renewed.key", "live.key");
	await_count(&events.renewed, 1);
	expect_server(w, "CN=renewed");
	assert_int_equal(atomic_load(&events.refused), 1);
	world_end(w);
}

static void *
dial_for_a_while(void *arg)
{
	struct talker {
		struct world *w;
		int wrong;
	} *t = arg;

	for (int i = 0; i < 20; i++) {
		struct tls_client c;

		tls_dial(&c, t->w->port, "NORMAL", NULL);
		t->wrong += !c.ok;
		tls_close(&c);
	}
	return NULL;
}

static void
renewals_amid_handshakes_break_none(void **state)
{
	struct world *w = tls_world(true, false);
	struct {
		struct world *w;
		int wrong;
	} talkers[3];
	pthread_t threads[ARRAY_LEN(talkers)];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(talkers); i++) {
		talkers[i].w = w;
		talkers[i].wrong = 0;
		assert_int_equal(pthread_create(&threads[i], NULL, dial_for_a_while, &talkers[i]), 0);
	}
	for (int i = 0; i < 50; i++)
		httpd_tls_renew(w->h);
	for (size_t i = 0; i < ARRAY_LEN(talkers); i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(talkers[i].wrong, 0);
	}
	assert_int_equal(atomic_load(&events.renewed), 50);
	world_end(w);
}

/* ---- files ---- */

static void
wrong_files_stop_the_start_and_are_named(void **state)
{
	static const struct {
		const char *name, *cert, *key, *ca, *text;
	} cases[] = {
		{"no such certificate", "nothing.pem", "server.key", NULL, "nothing.pem"},
		{"no such key", "server.pem", "nothing.key", NULL, "nothing.key"},
		{"not a pair", "server.pem", "client.key", NULL, "client.key"},
		{"no such CA", "server.pem", "server.key", "nothing.pem", "nothing.pem"},
		{"a CA file without a certificate", "server.pem", "server.key", "empty", "empty"},
	};
	struct world *w = mem_alloc(sizeof(*w));
	struct err err = {0};

	(void)state;
	world_init(w);
	assert_true(file_write_atomic(file("empty"), "", 0, 0600, &err));
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct httpd_options o = options_of(w);
		struct httpd *h = NULL;

		o.tls = (struct httpd_tls_files){.cert = file(cases[i].cert),
		                                 .key = file(cases[i].key),
		                                 .client_ca = cases[i].ca ? file(cases[i].ca) : NULL};
		if (httpd_start(&o, &h, &err) || !strstr(err.text, cases[i].text))
			fail_msg("%s: %s", cases[i].name, err.text);
	}
	world_end(w);
}

static void
a_key_that_everybody_may_read_is_told_of(void **state)
{
	struct world *w = tls_world(false, false);

	(void)state;
	assert_int_equal(atomic_load(&events.exposed), 0);
	assert_int_equal(chmod(file("live.key"), 0644), 0);
	httpd_tls_renew(w->h);
	assert_int_equal(atomic_load(&events.exposed), 1);
	/* a group is somebody's decision */
	assert_int_equal(chmod(file("live.key"), 0640), 0);
	httpd_tls_renew(w->h);
	assert_int_equal(atomic_load(&events.exposed), 1);
	world_end(w);
}

static void
options_that_make_no_sense_together_are_refused(void **state)
{
	static const struct {
		struct httpd_tls_files files;
		const char *text; /* NULL: sound */
	} cases[] = {
		{{0}, NULL},
		{{.cert = "c", .key = "k"}, NULL},
		{{.cert = "c", .key = "k", .client_ca = "a", .client_required = true}, NULL},
		{{.cert = "c"}, "tls-key"},
		{{.key = "k"}, "tls-cert"},
		{{.client_ca = "a"}, "tls-client-ca"},
		{{.cert = "c", .key = "k", .client_required = true}, "tls-client-required"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = {0};
		bool ok = httpd_tls_files_check(&cases[i].files, &err);

		assert_int_equal(ok, cases[i].text == NULL);
		assert_true(ok || strncmp(err.text, cases[i].text, strlen(cases[i].text)) == 0);
	}
}

/* ---- our own client ---- */

static bool
httpc_get(struct world *w, const char *host, const char *ca, const char *who, struct httpc_reply *r, struct err *err)
{
	char url[64], cert[64], key[64];
	owned(httpc) struct httpc *c = NULL;
	struct httpc_options o = {.base_url = url,
	                          .ca_file = ca ? file(ca) : NULL,
	                          .user_agent = "t",
	                          .connect_timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
	                          .timeout_ns = WORLD_PATIENCE_S * NS_PER_S};

	snprintf(url, sizeof(url), "https://%s:%u", host, (unsigned)w->port);
	if (who) {
		snprintf(cert, sizeof(cert), "%s.pem", who);
		snprintf(key, sizeof(key), "%s.key", who);
		o.client_cert = file(cert);
		o.client_key = file(key);
	}
	assert_true(httpc_new(&o, &c, err));
	return httpc_call(c, "GET", "/name", NULL, NULL, 0, r, err);
}

static void
our_client_speaks_to_whom_it_can_verify_and_to_nobody_else(void **state)
{
	static const struct {
		const char *name, *server, *host, *ca, *who;
		bool ok;
	} cases[] = {
		{"the right CA and name", "server", "localhost", "ca.pem", "client", true},
		{"the right CA and address", "server", "127.0.0.1", "ca.pem", "client", true},
		{"another CA", "server", "localhost", "other-ca.pem", "client", false},
		{"the system's CAs", "server", "localhost", NULL, "client", false},
		{"a certificate for another name", "elsewhere", "localhost", "ca.pem", "client", false},
		{"no certificate where one is required", "server", "localhost", "ca.pem", NULL, false},
		{"a wrong certificate", "server", "localhost", "ca.pem", "stranger", false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct world *w = tls_world(true, true);
		struct httpc_reply r = {0};
		struct err err = {0};
		char from[64], key[64];
		bool ok;

		buf_init(&r.body, 1000);
		snprintf(from, sizeof(from), "%s.pem", cases[i].server);
		snprintf(key, sizeof(key), "%s.key", cases[i].server);
		install(from, "live.pem");
		install(key, "live.key");
		httpd_tls_renew(w->h);
		ok = httpc_get(w, cases[i].host, cases[i].ca, cases[i].who, &r, &err);
		if (ok != cases[i].ok || (!ok && err.kind != ERR_RETRY))
			fail_msg("%s: %d %s", cases[i].name, r.status, err.text);
		if (ok)
			assert_string_equal(buf_text(&r.body), "client=CN=alice,O=Tollgate");
		buf_fini(&r.body);
		world_end(w);
	}
}

static int
make_certificates(void **state)
{
	(void)state;
	assert_non_null(mkdtemp(dir));
	certs_write(dir);
	return 0;
}

static int
remove_certificates(void **state)
{
	static const char *const names[] = {"ca",      "server",  "renewed",  "elsewhere", "client",
	                                    "expired", "misused", "other-ca", "stranger",  "live"};
	char name[64];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(name, sizeof(name), "%s.pem", names[i]);
		(void)unlink(file(name));
		snprintf(name, sizeof(name), "%s.key", names[i]);
		(void)unlink(file(name));
	}
	(void)unlink(file("empty"));
	return rmdir(dir);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tls_1_2_and_1_3_are_spoken_and_nothing_older),
		cmocka_unit_test(plain_http_gets_no_reply_where_tls_is_spoken),
		cmocka_unit_test(clients_are_let_in_by_their_certificate),
		cmocka_unit_test(a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on),
		cmocka_unit_test(other_files_are_taken_together_or_not_at_all),
		cmocka_unit_test(a_bad_pair_is_refused_and_the_old_one_stays),
		cmocka_unit_test(changed_files_are_noticed_and_a_bad_one_is_told_once),
		cmocka_unit_test(renewals_amid_handshakes_break_none),
		cmocka_unit_test(wrong_files_stop_the_start_and_are_named),
		cmocka_unit_test(a_key_that_everybody_may_read_is_told_of),
		cmocka_unit_test(options_that_make_no_sense_together_are_refused),
		cmocka_unit_test(our_client_speaks_to_whom_it_can_verify_and_to_nobody_else),
	};

	return cmocka_run_group_tests_name("httpd_tls", tests, make_certificates, remove_certificates);
}

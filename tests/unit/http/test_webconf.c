/* tests/unit/http/test_webconf.c - the web configuration file: what it means, and what is refused in which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "common/http/webconf.h"

#define HASH "$2y$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"
#define TLS "tls_server_config:\n  cert_file: c.pem\n  key_file: k.pem\n"

static struct webconf *
parsed(const char *text)
{
	struct webconf *c = NULL;
	struct err err;

	if (!webconf_parse("/etc/tollgate/web.yml", text, strlen(text), &c, &err))
		fail_msg("%s", err.text);
	return c;
}

static void
an_empty_file_asks_for_nothing(void **state)
{
	const char *const texts[] = {"", "{}", "tls_server_config:\nbasic_auth_users:\n", "tls_server_config: {}\n",
	                             "http_server_config: {http2: false}\n"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		owned(webconf) struct webconf *c = parsed(texts[i]);
		struct httpd_tls_files tls = webconf_tls(c);

		assert_null(tls.cert);
		assert_int_equal(c->user_count, 0);
	}
}

static void
a_whole_file_is_taken_as_it_stands_with_paths_beside_it(void **state)
{
	owned(webconf) struct webconf *c = parsed("tls_server_config:\n"
	                                          "  cert_file: tls/node.pem\n"
	                                          "  key_file: /secret/node.key\n"
	                                          "  client_ca_file: ca.pem\n"
	                                          "  client_auth_type: RequireAndVerifyClientCert\n"
	                                          "  min_version: TLS12\n"
	                                          "  max_version: TLS13\n"
	                                          "http_server_config:\n"
	                                          "  http2: false\n"
	                                          "basic_auth_users:\n"
	                                          "  prometheus: " HASH "\n"
	                                          "  Zoë: \"" HASH "\"\n");
	struct httpd_tls_files tls = webconf_tls(c);

	(void)state;
	assert_string_equal(tls.cert, "/etc/tollgate/tls/node.pem");
	assert_string_equal(tls.key, "/secret/node.key");
	assert_string_equal(tls.client_ca, "/etc/tollgate/ca.pem");
	assert_true(tls.client_required);
	assert_int_equal(tls.min_version, 12);
	assert_int_equal(tls.max_version, 13);
	assert_int_equal(c->user_count, 2);
	assert_string_equal(c->users[0].name, "prometheus");
	assert_string_equal(c->users[0].hash, HASH);
	assert_int_equal(c->users[0].cost, 4);
	assert_string_equal(c->users[1].name, "Zoë");
}

static void
a_client_s_certificate_may_be_left_to_the_client(void **state)
{
	owned(webconf) struct webconf *c =
		parsed(TLS "  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n");

	(void)state;
	assert_false(c->client_required);
	assert_non_null(c->client_ca_file);
}

static void
what_is_wrong_or_unknown_is_refused_by_name_and_line(void **state)
{
	const struct {
		const char *what, *text, *words;
	} rows[] = {
		{"not a map", "- x\n", "web.yml:1"},
		{"an unknown section", "tls_config: {}\n", "tls_config"},
		{"a rate limit", "rate_limit: {interval: 1s}\n", "'rate_limit' is not supported here"},
		{"headers", "http_server_config:\n  headers: {X-Frame-Options: deny}\n", "web.yml:2: 'headers' is not"},
		{"HTTP/2", "http_server_config: {http2: true}\n", "HTTP/1.1 only"},
		{"a misspelt key", TLS "  cert_fil: x\n", "cert_fil"},
		{"cipher suites", TLS "  cipher_suites: [x]\n", "web.yml:4: 'cipher_suites' is not supported"},
		{"curves", TLS "  curve_preferences: [x]\n", "'curve_preferences' is not supported"},
		{"a key in the file itself", TLS "  key: x\n", "name a file with key_file"},
		{"a certificate without its key", "tls_server_config: {cert_file: c}\n", "together or not at all"},
		{"a version without a certificate", "tls_server_config: {min_version: TLS13}\n", "no cert_file"},
		{"an old version", TLS "  min_version: TLS11\n", "neither TLS12 nor TLS13"},
		{"versions the wrong way round", TLS "  min_version: TLS13\n  max_version: TLS12\n",
	         "above max_version"},
		{"a certificate that nobody verifies", TLS "  client_auth_type: RequireAnyClientCert\n",
	         "proves nothing"},
		{"verifying without a CA", TLS "  client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file"},
		{"a CA that nothing is verified with", TLS "  client_ca_file: ca\n", "only with client_auth_type"},
		{"users as a list", "basic_auth_users: [a]\n", "basic_auth_users"},
		{"a password in the clear", "basic_auth_users:\n  ada: secret\n", "web.yml:2: user 'ada': this is no"},
		{"another kind of hash", "basic_auth_users: {ada: $6$abc$def}\n", "no bcrypt hash"},
		{"a hash cut short", "basic_auth_users: {ada: $2y$10$abc}\n", "no bcrypt hash"},
		{"a hash that takes a minute",
	         "basic_auth_users: {ada: $2y$20$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy}\n",
	         "a cost of 20, the limits are 4 and 15"},
		{"a name with a colon", "basic_auth_users: {\"a:b\": " HASH "}\n", "without a colon"},
		{"a name twice", "basic_auth_users:\n  a: " HASH "\n  a: " HASH "\n", "web.yml:3"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(webconf) struct webconf *c = NULL;
		struct err err = {0};

		if (webconf_parse("web.yml", rows[i].text, strlen(rows[i].text), &c, &err))
			fail_msg("%s: accepted", rows[i].what);
		if (!strstr(err.text, rows[i].words))
			fail_msg("%s: \"%s\" lacks \"%s\"", rows[i].what, err.text, rows[i].words);
	}
}

static void
a_file_that_is_not_there_is_named(void **state)
{
	owned(webconf) struct webconf *c = NULL;
	struct err err;

	(void)state;
	assert_false(webconf_read("/nonexistent/web.yml", &c, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, "/nonexistent/web.yml"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_file_asks_for_nothing),
		cmocka_unit_test(a_whole_file_is_taken_as_it_stands_with_paths_beside_it),
		cmocka_unit_test(a_client_s_certificate_may_be_left_to_the_client),
		cmocka_unit_test(what_is_wrong_or_unknown_is_refused_by_name_and_line),
		cmocka_unit_test(a_file_that_is_not_there_is_named),
	};

	return cmocka_run_group_tests_name("webconf", tests, NULL, NULL);
}

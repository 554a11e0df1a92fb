/* tests/unit/http/test_basic_auth.c - names and passwords: what is right, what is known, and how often one may guess. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "common/http/basic_auth.h"
#include "common/base/time.h"

#define ADA "ada: $2y$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy\n" /* open sesame */
#define BOB "bob: $2b$05$abcdefghijklmnopqrstuuVQd15VhR/oN1H3pzUR5lME0fZO6.qRW\n" /* other */
#define EVE "eve: $2a$04$abcdefghijklmnopqrstuubyCG3zY1GIXMyxfivm.ClDiInHzxjiq\n" /* nothing at all */
#define ADA_RIGHT "Basic YWRhOm9wZW4gc2VzYW1l"
#define BOB_RIGHT "Basic Ym9iOm90aGVy"
#define EVE_RIGHT "Basic ZXZlOg=="

struct bench {
	struct basic_auth *auth;
	void *worker;
};

static void
set_users(struct bench *b, const char *users)
{
	in_place(buf) struct buf text;
	owned(webconf) struct webconf *c = NULL;
	struct err err;

	buf_init(&text, 4096);
	buf_str(&text, "basic_auth_users:\n");
	while (*users) {
		size_t line = strcspn(users, "\n") + 1;

		buf_str(&text, "  ");
		buf_add(&text, users, line);
		users += line;
	}
	if (!webconf_parse("web.yml", buf_text(&text), text.len, &c, &err))
		fail_msg("%s", err.text);
	basic_auth_set(b->auth, c);
}

static void
bench_init(struct bench *b, const char *users)
{
	b->auth = basic_auth_new();
	b->worker = basic_auth_worker_new(NULL);
	set_users(b, users);
}

static void
bench_fini(struct bench *b)
{
	basic_auth_free(b->auth);
	basic_auth_worker_free(b->worker);
}

static void
the_right_password_is_right_and_known_from_then_on(void **state)
{
	const char *const right[] = {ADA_RIGHT, BOB_RIGHT, EVE_RIGHT, "basic  YWRhOm9wZW4gc2VzYW1l"};
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b, ADA BOB EVE);
	for (size_t i = 0; i < 3; i++) {
		assert_false(basic_auth_known(b.auth, right[i]));
		assert_true(basic_auth_check(b.auth, b.worker, right[i]));
	}
	for (size_t i = 0; i < ARRAY_LEN(right); i++)
		assert_true(basic_auth_known(b.auth, right[i]));
}

static void
everything_else_is_wrong_and_never_known(void **state)
{
	const struct {
		const char *what, *header;
	} rows[] = {
		{"no header", NULL},
		{"an empty one", ""},
		{"another scheme", "Bearer YWRhOm9wZW4gc2VzYW1l"},
		{"nothing after the scheme", "Basic "},
		{"not base64", "Basic ada:open sesame"},
		{"base64 with something behind it", "Basic YWRhOm9wZW4gc2VzYW1l=x"},
		{"a digit too many", "Basic YWRhOm9wZW4gc2VzYW1lA"},
		{"no colon", "Basic YWRh"},
		{"a NUL in the password", "Basic YWRhOm9wZW4gc2VzYW1lAA=="},
		{"a wrong password", "Basic YWRhOm9wZW4gc2VzYW0="},
		{"another user's password", "Basic YWRhOm90aGVy"},
		{"nobody of that name", "Basic bm9ib2R5Om90aGVy"},
		{"another case of the name", "Basic QURBOm9wZW4gc2VzYW1l"},
		{"no name", "Basic Om9wZW4gc2VzYW1l"},
	};
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b, ADA BOB);
	assert_true(basic_auth_check(b.auth, b.worker, ADA_RIGHT));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (basic_auth_check(b.auth, b.worker, rows[i].header) || basic_auth_known(b.auth, rows[i].header))
			fail_msg("%s: let in", rows[i].what);
}

static void
a_header_of_any_length_is_judged(void **state)
{
	in_place(bench) struct bench b;
	in_place(buf) struct buf header;

	(void)state;
	bench_init(&b, ADA);
	buf_init(&header, 1 << 16);
	buf_str(&header, ADA_RIGHT);
	while (header.len < 5000) {
		assert_int_equal(basic_auth_check(b.auth, b.worker, buf_text(&header)),
		                 header.len == strlen(ADA_RIGHT));
		buf_str(&header, "YWRh");
		if (header.len > 100)
			buf_printf(&header, "%0400d", 0);
	}
}

static void
with_other_users_nothing_is_known(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b, ADA BOB);
	assert_true(basic_auth_check(b.auth, b.worker, ADA_RIGHT));
	assert_true(basic_auth_check(b.auth, b.worker, BOB_RIGHT));
	set_users(&b, ADA);
	assert_false(basic_auth_known(b.auth, ADA_RIGHT));
	assert_true(basic_auth_check(b.auth, b.worker, ADA_RIGHT));
	assert_false(basic_auth_known(b.auth, BOB_RIGHT));
	assert_false(basic_auth_check(b.auth, b.worker, BOB_RIGHT));
	/* ada has eve's password now */
	set_users(&b, "ada: $2a$04$abcdefghijklmnopqrstuubyCG3zY1GIXMyxfivm.ClDiInHzxjiq\n");
	assert_false(basic_auth_check(b.auth, b.worker, ADA_RIGHT));
	assert_true(basic_auth_check(b.auth, b.worker, "Basic YWRhOg=="));
}

static void
only_so_many_pairs_are_known_at_once(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b, ADA BOB);
	assert_true(basic_auth_check(b.auth, b.worker, BOB_RIGHT));
	for (int i = 0; i < BASIC_AUTH_KNOWN - 1; i++)
		assert_true(basic_auth_check(b.auth, b.worker, ADA_RIGHT));
	assert_true(basic_auth_known(b.auth, BOB_RIGHT));
	assert_true(basic_auth_check(b.auth, b.worker, ADA_RIGHT));
	assert_false(basic_auth_known(b.auth, BOB_RIGHT));
	assert_true(basic_auth_known(b.auth, ADA_RIGHT));
}

static void
guesses_are_limited_to_a_burst_and_then_a_rate(void **state)
{
	in_place(bench) struct bench b;
	int64_t now_ns = 5 * NS_PER_HOUR;
	int hashes = 0;

	(void)state;
	bench_init(&b, ADA);
	for (int i = 0; i < 1000; i++)
		hashes += basic_auth_may_hash(b.auth, now_ns);
	assert_int_equal(hashes, BASIC_AUTH_BURST);
	for (int i = 0; i < 10 * 100; i++) {
		now_ns += NS_PER_S / 100;
		hashes += basic_auth_may_hash(b.auth, now_ns);
	}
	assert_int_equal(hashes, BASIC_AUTH_BURST + 10 * BASIC_AUTH_PER_SECOND);
	/* a quiet day saves up no more than the burst */
	now_ns += NS_PER_DAY;
	for (int i = 0; i < 1000; i++)
		hashes += basic_auth_may_hash(b.auth, now_ns);
	assert_int_equal(hashes, 2 * BASIC_AUTH_BURST + 10 * BASIC_AUTH_PER_SECOND);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_right_password_is_right_and_known_from_then_on),
		cmocka_unit_test(everything_else_is_wrong_and_never_known),
		cmocka_unit_test(a_header_of_any_length_is_judged),
		cmocka_unit_test(with_other_users_nothing_is_known),
		cmocka_unit_test(only_so_many_pairs_are_known_at_once),
		cmocka_unit_test(guesses_are_limited_to_a_burst_and_then_a_rate),
	};

	return cmocka_run_group_tests_name("basic_auth", tests, NULL, NULL);
}

/* tests/unit/base/test_digest.c - SHA-256 against published values, hexadecimal both ways, random bytes. */
#include "common/base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void
hash_hex(const void *data, size_t n, char out[2 * SHA256_SIZE + 1])
{
	uint8_t hash[SHA256_SIZE];

	sha256(data, n, hash);
	hex_encode(hash, sizeof(hash), out);
}

/* FIPS 180-4 examples. */
static void
sha256_gives_the_published_values(void **state)
{
	owned(mem) char *million = mem_alloc(1000000);
	char hex[2 * SHA256_SIZE + 1];

	(void)state;
	hash_hex("", 0, hex);
	assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	hash_hex("abc", 3, hex);
	assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	hash_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
	assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
	memset(million, 'a', 1000000);
	hash_hex(million, 1000000, hex);
	assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void
hexadecimal_goes_both_ways_in_either_case(void **state)
{
	static const uint8_t bytes[] = {0x00, 0x01, 0x7f, 0x80, 0xab, 0xff};
	uint8_t back[6];
	char text[13];

	(void)state;
	hex_encode(bytes, sizeof(bytes), text);
	assert_string_equal(text, "00017f80abff");
	assert_true(hex_decode(text, back, 6, NULL));
	assert_memory_equal(back, bytes, 6);
	assert_true(hex_decode("00017F80ABFF", back, 6, NULL));
	assert_memory_equal(back, bytes, 6);
	hex_encode(bytes, 0, text);
	assert_string_equal(text, "");
	assert_true(hex_decode("", back, 0, NULL));
}

static void
hexadecimal_of_another_length_or_alphabet_is_refused_without_showing_it(void **state)
{
	static const char *const wrong[] = {"",     "0",    "000",  "00000", "0g00", "g000",
	                                    "000 ", " 000", "00:0", "+000",  "0x00"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		uint8_t out[2] = {42, 42};
		struct err err = {0};

		if (hex_decode(wrong[i], out, 2, &err))
			fail_msg("\"%s\" was read", wrong[i]);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_true(out[0] == 42 && out[1] == 42);
		/* what was given may be a secret */
		assert_true(strlen(wrong[i]) < 4 || !strstr(err.text, wrong[i]));
	}
}

static void
random_bytes_fill_what_was_asked_for_and_do_not_repeat(void **state)
{
	uint8_t a[34] = {0}, b[34] = {0};

	(void)state;
	random_bytes(a + 1, 32);
	random_bytes(b + 1, 32);
	assert_true(a[0] == 0 && a[33] == 0);
	assert_memory_not_equal(a, b, sizeof(a));
	random_bytes(a, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sha256_gives_the_published_values),
		cmocka_unit_test(hexadecimal_goes_both_ways_in_either_case),
		cmocka_unit_test(hexadecimal_of_another_length_or_alphabet_is_refused_without_showing_it),
		cmocka_unit_test(random_bytes_fill_what_was_asked_for_and_do_not_repeat),
	};

	return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}

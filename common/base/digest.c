/* common/base/digest.c - SHA-256 and random bytes by GnuTLS, and their text forms. */
#include "common/base/digest.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <string.h>

void
sha256(const void *data, size_t n, uint8_t out[SHA256_SIZE])
{
	ASSERT(gnutls_hash_fast(GNUTLS_DIG_SHA256, data, n, out) == 0);
}

struct sha256_state {
	gnutls_hash_hd_t hash;
};

struct sha256_state *
sha256_begin(void)
{
	struct sha256_state *s = mem_alloc(sizeof(*s));

	ASSERT(gnutls_hash_init(&s->hash, GNUTLS_DIG_SHA256) == 0);
	return s;
}

void
sha256_add(struct sha256_state *s, const void *data, size_t n)
{
	if (n > 0)
		ASSERT(gnutls_hash(s->hash, data, n) == 0);
}

void
sha256_end(struct sha256_state *s, uint8_t out[SHA256_SIZE])
{
	gnutls_hash_deinit(s->hash, out);
	mem_free(s);
}

void
sha256_drop(struct sha256_state *s)
{
	uint8_t unused[SHA256_SIZE];

	if (s)
		sha256_end(s, unused);
}

void
hex_encode(const uint8_t *in, size_t n, char *out)
{
	static const char digit[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		*out++ = digit[in[i] >> 4];
		*out++ = digit[in[i] & 15];
	}
	*out = '\0';
}

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* The message never shows the text: it may be a secret. */
bool
hex_decode(const char *text, uint8_t *out, size_t n, struct err *err)
{
	size_t len = strlen(text);

	if (len != 2 * n)
		return err_set(err, ERR_INVALID, "%zu hexadecimal digits expected, %zu characters given", 2 * n, len);
	for (size_t i = 0; i < len; i++)
		if (hex_digit(text[i]) < 0)
			return err_set(err, ERR_INVALID, "character %zu of %zu is not a hexadecimal digit", i + 1, len);
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
	return true;
}

/* Without random bytes there are no secrets, and nothing sensible could go on. */
void
random_bytes(uint8_t *out, size_t n)
{
	ASSERT(gnutls_rnd(GNUTLS_RND_KEY, out, n) == 0);
}

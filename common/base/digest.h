/* common/base/digest.h - SHA-256 and random bytes by GnuTLS, and their text forms. */
#ifndef TOLLGATE_DIGEST_H
#define TOLLGATE_DIGEST_H

#include "common/base/err.h"

#define SHA256_SIZE 32
void sha256(const void *data, size_t n, uint8_t out[SHA256_SIZE]);
/* The same in pieces; end or drop frees the state. */
struct sha256_state;
struct sha256_state *sha256_begin(void);
void sha256_add(struct sha256_state *s, const void *data, size_t n);
void sha256_end(struct sha256_state *s, uint8_t out[SHA256_SIZE]);
void sha256_drop(struct sha256_state *s);                                              /* NULL: nothing */
void hex_encode(const uint8_t *in, size_t n, char *out);                               /* writes 2n+1 bytes */
MUST_CHECK bool hex_decode(const char *text, uint8_t *out, size_t n, struct err *err); /* exactly 2n digits */
void random_bytes(uint8_t *out, size_t n);

#endif

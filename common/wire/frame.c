/* common/wire/frame.c - frames of the spool and the wire, and their CRC32C. */
#include "common/wire/frame.h"

#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

/* CRC32C (Castagnoli), reflected: RFC 3720, appendix B.4. */
#define CRC32C_POLYNOMIAL 0x82f63b78u

/* crc_table[k][b]: what byte b does to the register when k more bytes follow it; eight bytes are taken at a time. */
static uint32_t crc_table[8][256];
static bool crc_by_processor;
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void
crc_prepare(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
		crc_table[0][b] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++)
			crc_table[k][b] = crc_table[k - 1][b] >> 8 ^ crc_table[0][crc_table[k - 1][b] & 0xff];
#if defined(__x86_64__)
	crc_by_processor = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

static uint32_t
le32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void
put_le32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t
crc_by_table(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n >= 8; p += 8, n -= 8) {
		uint32_t low = crc ^ le32(p), high = le32(p + 4);

		crc = crc_table[7][low & 0xff] ^ crc_table[6][low >> 8 & 0xff] ^ crc_table[5][low >> 16 & 0xff] ^
		      crc_table[4][low >> 24] ^ crc_table[3][high & 0xff] ^ crc_table[2][high >> 8 & 0xff] ^
		      crc_table[1][high >> 16 & 0xff] ^ crc_table[0][high >> 24];
	}
	for (; n > 0; p++, n--)
		crc = crc >> 8 ^ crc_table[0][(crc ^ *p) & 0xff];
	return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t
crc_by_instruction(uint32_t crc, const uint8_t *p, size_t n)
{
	uint64_t wide = crc;

	for (; n >= 8; p += 8, n -= 8) {
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		wide = _mm_crc32_u64(wide, word);
	}
	crc = (uint32_t)wide;
	for (; n > 0; p++, n--)
		crc = _mm_crc32_u8(crc, *p);
	return crc;
}
#endif

uint32_t
crc32c_portable(uint32_t crc, const void *data, size_t n)
{
	pthread_once(&crc_once, crc_prepare);
	return ~crc_by_table(~crc, data, n);
}

uint32_t
crc32c(uint32_t crc, const void *data, size_t n)
{
	pthread_once(&crc_once, crc_prepare);
#if defined(__x86_64__)
	if (crc_by_processor)
		return ~crc_by_instruction(~crc, data, n);
#endif
	return ~crc_by_table(~crc, data, n);
}

/* Head and payload together or nothing: half a frame would make the next one unreadable. */
void
frame_append(struct buf *out, const void *payload, size_t n)
{
	uint8_t *to;

	ASSERT(n > 0 && n <= FRAME_MAX);
	to = (uint8_t *)buf_reserve(out, FRAME_HEAD + n);
	if (!to)
		return;
	put_le32(to, (uint32_t)n);
	put_le32(to + 4, crc32c(0, payload, n));
	memcpy(to + FRAME_HEAD, payload, n);
	buf_commit(out, FRAME_HEAD + n);
}

/* A length of 0 is impossible although its CRC would be right: a file system may leave zeros behind a crash, and they
 * must not read as an endless row of empty frames. */
enum frame_result
frame_next(const void *data, size_t n, size_t *pos, const uint8_t **ret_payload, size_t *ret_len)
{
	const uint8_t *at;
	uint32_t len;

	if (*pos >= n)
		return FRAME_END;
	at = (const uint8_t *)data + *pos;
	if (n - *pos < FRAME_HEAD)
		return FRAME_TORN;
	len = le32(at);
	if (len == 0 || len > FRAME_MAX)
		return FRAME_BAD;
	if (n - *pos - FRAME_HEAD < len)
		return FRAME_TORN;
	if (crc32c(0, at + FRAME_HEAD, len) != le32(at + 4))
		return FRAME_BAD;
	*ret_payload = at + FRAME_HEAD;
	*ret_len = len;
	*pos += FRAME_HEAD + len;
	return FRAME_OK;
}

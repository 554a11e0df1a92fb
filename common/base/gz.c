/* common/base/gz.c - gzip by zlib, both ways, with a ceiling on what comes out. */
#include "common/base/gz.h"

#include <string.h>
#include <zlib.h>

#define GZ_WINDOW (15 + 16) /* the largest window, with gzip's header and trailer */
#define GZ_STEP (64u << 10)
#define GZ_OS_UNKNOWN 255

/* zlib counts in unsigned int: input of any size goes in by pieces. */
static void
feed(z_stream *z, const uint8_t *in, size_t n, size_t *fed)
{
	size_t piece = n - *fed;

	if (z->avail_in > 0 || piece == 0)
		return;
	if (piece > UINT32_MAX / 2)
		piece = UINT32_MAX / 2;
	z->next_in = (z_const Bytef *)(uintptr_t)(in + *fed);
	z->avail_in = (uInt)piece;
	*fed += piece;
}

/* Offers the memory that out has anyway, at least GZ_STEP, never beyond its ceiling. False: the ceiling is reached. */
static bool
offer(z_stream *z, struct buf *out)
{
	size_t room = out->max - out->len;
	size_t want = out->cap - out->len;
	char *to;

	if (want < GZ_STEP)
		want = GZ_STEP;
	if (want > room)
		want = room;
	if (want > UINT32_MAX / 2)
		want = UINT32_MAX / 2;
	if (want == 0)
		return false;
	to = buf_reserve(out, want);
	if (!to)
		return false;
	z->next_out = (Bytef *)to;
	z->avail_out = (uInt)want;
	return true;
}

/* A failed call leaves the content as it was. */
static void
roll_back(struct buf *out, size_t len)
{
	out->len = len;
	if (out->data)
		out->data[len] = '\0';
}

/* last: the stream ends with this input. Otherwise what zlib has not given out yet stays with it. */
static bool
deflate_all(z_stream *z, const uint8_t *in, size_t n, bool last, struct buf *out, struct err *err)
{
	size_t fed = 0;
	int rc;

	do {
		uInt offered;

		if (!offer(z, out)) {
			out->over = true;
			return buf_ok(out, "the gzipped data", err);
		}
		offered = z->avail_out;
		feed(z, in, n, &fed);
		rc = deflate(z, last && fed == n ? Z_FINISH : Z_NO_FLUSH);
		ASSERT(rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR);
		buf_commit(out, offered - z->avail_out);
	} while (last ? rc != Z_STREAM_END : fed < n || z->avail_in > 0 || z->avail_out == 0);
	return true;
}

bool
gz_compress(const void *in, size_t n, int level, struct buf *out, struct err *err)
{
	gz_header header = {.os = GZ_OS_UNKNOWN};
	size_t before = out->len;
	z_stream z = {0};
	bool ok;

	ASSERT(level >= 1 && level <= 9);
	if (deflateInit2(&z, level, Z_DEFLATED, GZ_WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK)
		return err_set(err, ERR_RETRY, "no memory to gzip %zu bytes", n);
	ASSERT(deflateSetHeader(&z, &header) == Z_OK);
	ok = deflate_all(&z, in, n, true, out, err);
	deflateEnd(&z);
	if (!ok)
		roll_back(out, before);
	return ok;
}

struct gz_stream {
	z_stream z;
	gz_header header;
	bool ready;
};

struct gz_stream *
gz_stream_new(int level)
{
	struct gz_stream *g = mem_alloc(sizeof(*g));

	ASSERT(level >= 1 && level <= 9);
	g->header.os = GZ_OS_UNKNOWN;
	g->ready = deflateInit2(&g->z, level, Z_DEFLATED, GZ_WINDOW, 8, Z_DEFAULT_STRATEGY) == Z_OK;
	if (g->ready)
		ASSERT(deflateSetHeader(&g->z, &g->header) == Z_OK);
	return g;
}

void
gz_stream_free(struct gz_stream *g)
{
	if (g && g->ready)
		deflateEnd(&g->z);
	mem_free(g);
}

bool
gz_stream_add(struct gz_stream *g, const void *in, size_t n, bool last, struct buf *out, struct err *err)
{
	if (!g->ready)
		return err_set(err, ERR_RETRY, "no memory to gzip");
	return deflate_all(&g->z, in, n, last, out, err);
}

/* At the ceiling: the stream may still have its trailer to read, but not one byte to give. */
static int
inflate_beyond(z_stream *z, bool *ret_bomb)
{
	Bytef beyond;
	int rc;

	z->next_out = &beyond;
	z->avail_out = 1;
	rc = inflate(z, Z_NO_FLUSH);
	*ret_bomb = z->avail_out == 0;
	return rc;
}

static bool
inflate_all(z_stream *z, const uint8_t *in, size_t n, struct buf *out, struct err *err)
{
	size_t fed = 0;
	int rc;

	do {
		bool bomb = false;

		feed(z, in, n, &fed);
		if (offer(z, out)) {
			uInt offered = z->avail_out;

			rc = inflate(z, Z_NO_FLUSH);
			buf_commit(out, offered - z->avail_out);
		} else {
			rc = inflate_beyond(z, &bomb);
		}
		if (bomb) {
			out->over = true;
			return buf_ok(out, "the expanded data", err);
		}
		if (rc == Z_BUF_ERROR && fed == n && z->avail_in == 0)
			return err_set(err, ERR_INVALID, "the gzip stream of %zu bytes ends too early", n);
		if (rc == Z_MEM_ERROR)
			return err_set(err, ERR_RETRY, "no memory to expand %zu bytes", n);
		if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
			return err_set(err, ERR_INVALID, "the gzip stream is damaged: %s",
			               z->msg ? z->msg : "unsound data");
	} while (rc != Z_STREAM_END);
	if (z->avail_in > 0 || fed < n)
		return err_set(err, ERR_INVALID, "%zu bytes follow the gzip stream", z->avail_in + (n - fed));
	return true;
}

bool
gz_expand(const void *in, size_t n, struct buf *out, struct err *err)
{
	size_t before = out->len;
	z_stream z = {0};
	bool ok;

	if (inflateInit2(&z, GZ_WINDOW) != Z_OK)
		return err_set(err, ERR_RETRY, "no memory to expand %zu bytes", n);
	ok = inflate_all(&z, in, n, out, err);
	inflateEnd(&z);
	if (!ok)
		roll_back(out, before);
	return ok;
}

#define PIECE (256u << 10)

bool
gz_expand_pieces(const void *in, size_t n, gz_piece *each, void *arg, struct err *err)
{
	owned(mem) char *piece = mem_array(PIECE, 1);
	z_stream z = {0};
	size_t fed = 0;
	int rc = Z_OK;
	bool ok = true;

	if (inflateInit2(&z, GZ_WINDOW) != Z_OK)
		return err_set(err, ERR_RETRY, "no memory to expand %zu bytes", n);
	while (ok && rc == Z_OK) {
		feed(&z, in, n, &fed);
		z.next_out = (Bytef *)piece;
		z.avail_out = PIECE;
		rc = inflate(&z, Z_NO_FLUSH);
		if (rc != Z_OK && rc != Z_STREAM_END)
			ok = err_set(err, ERR_INVALID, "the gzip stream of %zu bytes is torn or damaged", n);
		else
			ok = each(arg, piece, PIECE - z.avail_out, err);
	}
	if (ok && (z.avail_in > 0 || fed < n))
		ok = err_set(err, ERR_INVALID, "%zu bytes follow the gzip stream", z.avail_in + (n - fed));
	inflateEnd(&z);
	return ok;
}

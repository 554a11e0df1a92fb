/* exporter/metrics_template.h - a page of /metrics without its numbers.
 *
 * From tick to tick mostly the numbers change. So the text between them is kept: as long as the same samples follow each
 * other, a page is that text, copied, with new numbers in the gaps. Each sample has a key that its labels depend on; the
 * ground holds whatever else the text depends on. One sample with another key, or another ground, and the page is written
 * in full, which makes a new template. */
#ifndef TOLLGATE_EXPORTER_METRICS_TEMPLATE_H
#define TOLLGATE_EXPORTER_METRICS_TEMPLATE_H

#include <string.h>

#include "common/promtext.h"

struct sample_key {
	const char *family; /* the same pointer, not an equal text */
	uint64_t thing, place;
};

struct template_piece {
	struct sample_key key;
	size_t text_len; /* what precedes the number */
};

struct page_template {
	struct buf ground;
	struct buf text; /* the pieces one after the other, then what follows the last number */
	struct template_piece *pieces;
	size_t count, cap;
	bool whole; /* of a page that was written to its end */
};

void page_template_init(struct page_template *t);
void page_template_fini(struct page_template *t);

/* Writing with it: begin, a number per sample, end. False: it does not fit, and `out` is as it was. */
struct template_cursor {
	const struct template_piece *piece, *last; /* the next one; after the last */
	const char *text;                          /* of the next piece */
	char *to;                                  /* in room for the longest page that can come of it */
	const struct page_template *t;
	struct buf *out;
};
bool template_begin(struct template_cursor *c, const struct page_template *t, const struct buf *ground,
                    struct buf *out);
bool template_end(struct template_cursor *c);

/* Here, and not behind a call, because it is all that most samples of a page take. */
static inline bool
template_number(struct template_cursor *c, const char *family, uint64_t thing, uint64_t place, int64_t value,
                int decimals)
{
	const struct template_piece *piece = c->piece;

	if (piece == c->last || piece->key.family != family || piece->key.thing != thing || piece->key.place != place)
		return false;
	c->to = (char *)mempcpy(c->to, c->text, piece->text_len);
	c->to += prom_write_fixed(c->to, value, decimals);
	c->text += piece->text_len;
	c->piece++;
	return true;
}

/* Making it while a page is written in full: begin, after each sample its key, end. */
struct template_recorder {
	struct page_template *t;
	size_t text_end; /* in the page, after the last number */
};
void template_record(struct template_recorder *r, struct page_template *t, const struct buf *ground);
void template_record_sample(struct template_recorder *r, const struct sample_key *key, const struct prom *p);
void template_record_end(struct template_recorder *r, const struct buf *page);

#endif

/* exporter/metrics/metrics_template.h - where the numbers are on a page of /metrics.
 *
 * From tick to tick some numbers change, and seldom anything else. As long as the same samples follow each other, a page is made of
 * the one before it by writing other numbers over those that changed; numbers have all their decimals, so that they seldom
 * change in length. Each sample has a key that its labels depend on; the ground holds whatever else the text depends on. One
 * sample with another key, or another ground, and the page is written in full, which makes a new template. */
#ifndef TOLLGATE_METRICS_TEMPLATE_H
#define TOLLGATE_METRICS_TEMPLATE_H

#include "common/promtext/promtext.h"

/* A sample: its key within its family, and its number. */
struct template_piece {
	uint64_t thing;
	uint32_t place;
	uint32_t number_at, number_len; /* on the page */
	int64_t value;
};

/* So many pieces ahead the page is fetched into the cache: it is larger than that, and numbers lie apart. */
#define TEMPLATE_AHEAD 12

/* Samples of one family that follow each other. */
struct template_family {
	const char *name; /* the same pointer, not an equal text */
	size_t end;       /* after its last piece */
};

struct page_template {
	struct buf ground;
	struct template_piece *pieces; /* there is room for TEMPLATE_AHEAD more */
	size_t count, cap;
	struct template_family *families; /* those with samples */
	size_t family_count, family_cap;
	bool whole; /* of a page that was written to its end */
	int shifts; /* on the way through it: numbers that became longer or shorter */
};

void page_template_init(struct page_template *t);
void page_template_fini(struct page_template *t);

/* Making the page anew: begin, each family and its samples, end. False: it does not fit; page and template are then of no more
 * use and must be made in full. */
struct template_cursor {
	struct page_template *t;
	struct template_piece *piece, *family_end; /* the next one; after the last of this family */
	const struct template_family *family;      /* the next one */
	struct buf *page;
	char *text; /* its bytes */
};
bool template_begin(struct template_cursor *c, struct page_template *t, const struct buf *ground, struct buf *page);
bool template_family(struct template_cursor *c, const char *name);
bool template_end(const struct template_cursor *c);

bool template_change(struct page_template *t, struct buf *page, struct template_piece *piece, int64_t value,
                     int decimals);

/* Here, and not behind a call, because it is all that most samples of a page take. Loops over thousands of them keep the cursor in a
 * local variable, and so in registers. */
static inline bool
template_number(struct template_cursor *c, uint64_t thing, uint32_t place, int64_t value, int decimals)
{
	struct template_piece *piece = c->piece;

	if (piece == c->family_end || piece->thing != thing || piece->place != place)
		return false;
	c->piece = piece + 1;
	__builtin_prefetch(c->text + piece[TEMPLATE_AHEAD].number_at, 1);
	return piece->value == value || template_change(c->t, c->page, piece, value, decimals);
}

/* Making it while a page is written in full: begin, each family, after each sample its key and number, end. */
struct template_recorder {
	struct page_template *t;
	const char *family;
};
void template_record(struct template_recorder *r, struct page_template *t, const struct buf *ground);
void template_record_family(struct template_recorder *r, const char *name);
void template_record_sample(struct template_recorder *r, uint64_t thing, uint32_t place, int64_t value,
                            const struct prom *p);
void template_record_end(struct template_recorder *r, const struct buf *page);

#endif

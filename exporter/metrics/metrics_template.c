/* exporter/metrics/metrics_template.c - where the numbers are on a page of /metrics. */
#include "exporter/metrics/metrics_template.h"

#include <string.h>

#define GROUND_MAX (32u << 20)
/* Numbers that change in length move the rest of the page; with more of them it is quicker to write it in full. */
#define SHIFTS_MAX 16

void
page_template_init(struct page_template *t)
{
	*t = (struct page_template){0};
	buf_init(&t->ground, GROUND_MAX);
}

void
page_template_fini(struct page_template *t)
{
	buf_fini(&t->ground);
	mem_free(t->pieces);
	mem_free(t->families);
}

/* ---- other numbers ---- */

bool
template_begin(struct template_cursor *c, struct page_template *t, const struct buf *ground, struct buf *page)
{
	if (!t->whole || ground->over || t->ground.len != ground->len ||
	    memcmp(buf_text(&t->ground), buf_text(ground), ground->len) != 0)
		return false;
	*c = (struct template_cursor){
		.t = t, .piece = t->pieces, .family_end = t->pieces, .family = t->families, .page = page};
	if (!buf_reserve(page, (size_t)SHIFTS_MAX * PROM_NUMBER_SIZE))
		return false;
	c->text = page->data;
	t->shifts = 0;
	return true;
}

bool
template_family(struct template_cursor *c, const char *name)
{
	const struct page_template *t = c->t;

	if (c->piece != c->family_end)
		return false;
	if (c->family != t->families + t->family_count && c->family->name == name)
		c->family_end = t->pieces + (c->family++)->end;
	return true;
}

/* A number of another length. */
static bool
shift(struct page_template *t, struct buf *page, struct template_piece *piece, int64_t value, int decimals)
{
	size_t end = piece->number_at + piece->number_len, rest = page->len - end;
	char number[PROM_NUMBER_SIZE];
	uint32_t len = (uint32_t)prom_write_fixed(number, value, decimals);

	if (t->shifts++ == SHIFTS_MAX)
		return false;
	memmove(page->data + piece->number_at + len, page->data + end, rest);
	memcpy(page->data + piece->number_at, number, len);
	page->len = piece->number_at + len + rest;
	page->data[page->len] = '\0';
	for (struct template_piece *p = piece + 1; p != t->pieces + t->count; p++)
		p->number_at = p->number_at - piece->number_len + len;
	piece->number_len = len;
	return true;
}

bool
template_change(struct page_template *t, struct buf *page, struct template_piece *piece, int64_t value, int decimals)
{
	int64_t old = piece->value;

	piece->value = value;
	return prom_overwrite_fixed(page->data + piece->number_at, piece->number_len, old, value, decimals) ||
	       shift(t, page, piece, value, decimals);
}

bool
template_end(const struct template_cursor *c)
{
	return c->piece == c->t->pieces + c->t->count;
}

/* ---- making it ---- */

void
template_record(struct template_recorder *r, struct page_template *t, const struct buf *ground)
{
	*r = (struct template_recorder){.t = t};
	t->count = t->family_count = 0;
	t->whole = false;
	buf_clear(&t->ground);
	buf_add(&t->ground, buf_text(ground), ground->len);
}

void
template_record_family(struct template_recorder *r, const char *name)
{
	r->family = name;
}

void
template_record_sample(struct template_recorder *r, uint64_t thing, uint32_t place, int64_t value, const struct prom *p)
{
	struct page_template *t = r->t;

	if (p->out->over)
		return;
	if (t->count + TEMPLATE_AHEAD >= t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;

		t->pieces = mem_grow(t->pieces, cap, sizeof(*t->pieces));
		memset(t->pieces + t->cap, 0, (cap - t->cap) * sizeof(*t->pieces));
		t->cap = cap;
	}
	t->pieces[t->count++] = (struct template_piece){.thing = thing,
	                                                .place = place,
	                                                .number_at = (uint32_t)p->number_at,
	                                                .number_len = (uint32_t)p->number_len,
	                                                .value = value};
	if (t->family_count == 0 || t->families[t->family_count - 1].name != r->family) {
		if (t->family_count == t->family_cap) {
			t->family_cap = t->family_cap ? t->family_cap * 2 : 64;
			t->families = mem_grow(t->families, t->family_cap, sizeof(*t->families));
		}
		t->families[t->family_count++].name = r->family;
	}
	t->families[t->family_count - 1].end = t->count;
}

void
template_record_end(struct template_recorder *r, const struct buf *page)
{
	r->t->whole = !page->over && !r->t->ground.over;
}

/* exporter/metrics_template.c - a page of /metrics without its numbers. */
#include "exporter/metrics_template.h"

#include <string.h>

#define TEMPLATE_MAX (32u << 20)

void
page_template_init(struct page_template *t)
{
	*t = (struct page_template){0};
	buf_init(&t->ground, TEMPLATE_MAX);
	buf_init(&t->text, TEMPLATE_MAX);
}

void
page_template_fini(struct page_template *t)
{
	buf_fini(&t->ground);
	buf_fini(&t->text);
	mem_free(t->pieces);
}

bool
template_begin(struct template_cursor *c, const struct page_template *t, const struct buf *ground, struct buf *out)
{
	if (!t->whole || ground->over || t->ground.len != ground->len ||
	    memcmp(buf_text(&t->ground), buf_text(ground), ground->len) != 0)
		return false;
	*c = (struct template_cursor){.piece = t->pieces,
	                              .last = t->pieces + t->count,
	                              .text = buf_text(&t->text),
	                              .to = buf_reserve(out, t->text.len + t->count * PROM_NUMBER_SIZE),
	                              .t = t,
	                              .out = out};
	return c->to != NULL;
}

bool
template_end(struct template_cursor *c)
{
	size_t rest = (size_t)(c->t->text.data + c->t->text.len - c->text);

	if (c->piece != c->last)
		return false;
	c->to = (char *)mempcpy(c->to, c->text, rest);
	buf_commit(c->out, (size_t)(c->to - (c->out->data + c->out->len)));
	return true;
}

void
template_record(struct template_recorder *r, struct page_template *t, const struct buf *ground)
{
	*r = (struct template_recorder){.t = t};
	t->count = 0;
	t->whole = false;
	buf_clear(&t->text);
	buf_clear(&t->ground);
	buf_add(&t->ground, buf_text(ground), ground->len);
}

void
template_record_sample(struct template_recorder *r, const struct sample_key *key, const struct prom *p)
{
	struct page_template *t = r->t;

	if (p->out->over)
		return;
	if (t->count == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 64;
		t->pieces = mem_grow(t->pieces, t->cap, sizeof(*t->pieces));
	}
	t->pieces[t->count++] = (struct template_piece){*key, p->number_at - r->text_end};
	buf_add(&t->text, p->out->data + r->text_end, p->number_at - r->text_end);
	r->text_end = p->number_at + p->number_len;
}

void
template_record_end(struct template_recorder *r, const struct buf *page)
{
	struct page_template *t = r->t;

	if (!page->over)
		buf_add(&t->text, buf_text(page) + r->text_end, page->len - r->text_end);
	t->whole = !page->over && !t->text.over && !t->ground.over;
}

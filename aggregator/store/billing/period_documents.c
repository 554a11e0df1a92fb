/* aggregator/store/billing/period_documents.c - the documents of a month that are kept, made from its lines, tenant by tenant. */
#include <string.h>
#include <unistd.h>

#include "aggregator/store/billing/period_rows.h"

/* How the document of all tenants comes from theirs. */
enum joining {
	JOIN_ROWS,  /* its first line, and all lines of theirs but the first; up to layout 1 */
	JOIN_PAGES, /* what a tenant adds is the same in both; up to layout 1 */
	JOIN_NOT,   /* made of all lines once more: it names who borrowed, and theirs do not */
	JOIN_NONE,  /* there is none of one tenant */
};
static const enum joining old_joinings[DOCUMENT_FORMATS] = {
	[DOCUMENT_CSV] = JOIN_ROWS,   [DOCUMENT_EXCEL] = JOIN_ROWS,   [DOCUMENT_FOCUS] = JOIN_NOT,
	[DOCUMENT_HTML] = JOIN_PAGES, [DOCUMENT_PERIODS] = JOIN_NONE, [DOCUMENT_JSON] = JOIN_NOT,
};

/* Months of before there were facts are of the first layout. */
static int64_t
layout_of(const struct period_papers *p)
{
	return p->facts != NULL ? p->facts->frame.layout : 0;
}

static enum joining
joining_of(const struct period_papers *p, enum document_format f)
{
	if (layout_of(p) >= INVOICE_LAYOUT_PRIVATE && old_joinings[f] != JOIN_NONE)
		return JOIN_NOT;
	return old_joinings[f];
}

/* FOCUS files of older layouts had other costs: they are as they were stored, and are not made again. */
static bool
is_wanted(const struct period_papers *p, enum document_format f)
{
	if (f > DOCUMENT_HTML)
		return false;
	if (f == DOCUMENT_FOCUS || f == DOCUMENT_PERIODS)
		return layout_of(p) >= INVOICE_LAYOUT_FOCUS;
	return p->facts != NULL || f == DOCUMENT_CSV || f == DOCUMENT_JSON;
}

static void
paper_fini(struct paper *p)
{
	document_free(p->document);
	spill_free(p->spill);
	sha256_drop(p->sha);
	*p = (struct paper){0};
}

void
period_papers_fini(struct period_papers *p)
{
	for (size_t i = 0; i < DOCUMENT_FORMATS; i++)
		paper_fini(&p->at[i]);
	*p = (struct period_papers){0};
}

void
kept_files_close(struct kept_file files[DOCUMENT_FORMATS])
{
	for (size_t i = 0; i < DOCUMENT_FORMATS; i++)
		if (files[i].file.fd >= 0)
			close(files[i].file.fd);
}

static void
kept_files_none(struct kept_file files[DOCUMENT_FORMATS])
{
	for (size_t i = 0; i < DOCUMENT_FORMATS; i++)
		files[i] = (struct kept_file){.file = {.fd = -1}};
}

static void
join(struct paper *all, const char *text, size_t n)
{
	sha256_add(all->sha, text, n);
	all->bytes += (int64_t)n;
}

bool
period_papers_begin(struct period_papers *p, const struct month_facts *facts, const struct rating_input *in,
                    struct err *err)
{
	*p = (struct period_papers){.facts = facts};
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++) {
		struct paper *all = &p->at[f];

		if (!is_wanted(p, f))
			continue;
		if (!spill_new(true, &all->spill, err) ||
		    !document_begin(f, NULL, layout_of(p), facts, in, all->spill, &all->document, err))
			return false;
		if (joining_of(p, f) != JOIN_ROWS)
			continue;
		all->sha = sha256_begin();
		join(all, buf_text(spill_buf(all->spill)), spill_buf(all->spill)->len);
	}
	return true;
}

/* One tenant's document, and its part of the one of all. */
static bool
make_own(struct period_papers *p, enum document_format f, const struct rating_input *in, const char *tenant,
         const struct rated *r, struct kept_file *ret, struct err *err)
{
	in_place(paper) struct paper own = {0};
	struct paper *all = &p->at[f];
	struct document_result result;
	struct buf *text;
	size_t begun;

	if (!spill_new(true, &own.spill, err) ||
	    !document_begin(f, tenant, layout_of(p), p->facts, in, own.spill, &own.document, err))
		return false;
	text = spill_buf(own.spill);
	begun = text->len;
	if (!document_tenant(own.document, in, r, err))
		return false;
	if (joining_of(p, f) == JOIN_ROWS)
		join(all, buf_text(text) + begun, text->len - begun);
	else if (joining_of(p, f) == JOIN_PAGES)
		buf_add(spill_buf(all->spill), buf_text(text) + begun, text->len - begun);
	else if (!document_tenant(all->document, in, r, err))
		return false;
	if (!spill_step(all->spill, err) || !document_end(own.document, &result, err) ||
	    !spill_end(own.spill, &ret->file, err))
		return false;
	ret->lines = result.sums.lines;
	ret->rows = result.sums.rows;
	all->lines += ret->lines;
	all->rows += ret->rows;
	return true;
}

bool
period_papers_tenant(struct period_papers *p, const struct rating_input *in, const char *tenant, const struct rated *r,
                     struct kept_file ret[DOCUMENT_FORMATS], struct err *err)
{
	kept_files_none(ret);
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++)
		if (is_wanted(p, f) && joining_of(p, f) != JOIN_NONE && !make_own(p, f, in, tenant, r, &ret[f], err))
			return err_prefix(err, "%s", document_name(f));
	return true;
}

bool
period_papers_end(struct period_papers *p, struct kept_file ret[DOCUMENT_FORMATS], struct err *err)
{
	kept_files_none(ret);
	for (enum document_format f = 0; f < DOCUMENT_FORMATS; f++) {
		struct paper *all = &p->at[f];
		struct document_result result;

		if (!is_wanted(p, f))
			continue;
		if (!document_end(all->document, &result, err) || !spill_end(all->spill, &ret[f].file, err))
			return false;
		ret[f].lines = all->lines;
		ret[f].rows = joining_of(p, f) == JOIN_NONE ? result.sums.rows : all->rows;
		ret[f].joined = joining_of(p, f) == JOIN_ROWS;
		if (!ret[f].joined)
			continue;
		ret[f].file.plain_len = all->bytes;
		sha256_end(all->sha, ret[f].file.sha256);
		all->sha = NULL;
	}
	return true;
}

/* aggregator/store/billing/period_read.c - a month as it is: of a closed one as it was billed, of another with what it corrects. */
#include <string.h>

#include "aggregator/store/billing/period_rows.h"
#include "aggregator/store/billing/report_store.h"

struct reading {
	report_begin *begin;
	period_tenant *each;
	void *arg;
	struct corrections corrections;
	size_t next;
};

static bool
read_begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct reading *r = arg;

	return r->begin == NULL || r->begin(r->arg, in, err);
}

/* Tenants come by name: those that have nothing but corrections are between them. NULL: all that are left. */
static bool
read_corrected(struct reading *r, const struct rating_input *in, const char *before, struct err *err)
{
	while (r->next < r->corrections.count &&
	       (before == NULL || strcmp(r->corrections.lines[r->next].tenant, before) < 0)) {
		in_place(rated_view) struct rated_view view = {0};
		const struct rated_line *lines = NULL;
		size_t n = corrections_of(&r->corrections, r->corrections.lines[r->next].tenant, &lines);

		rated_view_make(&view, NULL, lines, n);
		r->next += n;
		if (!r->each(r->arg, in, &view.rated, err))
			return false;
	}
	return true;
}

static bool
read_tenant(void *arg, const struct rating_input *in, struct err *err)
{
	struct reading *r = arg;
	in_place(rated_view) struct rated_view view = {0};
	owned(rated) struct rated *rated = NULL;
	const struct rated_line *lines = NULL;
	struct rating_input empty = *in;
	size_t n;

	empty.days = NULL;
	empty.day_count = 0;
	if (!read_corrected(r, &empty, in->days[0].tenant, err))
		return false;
	if (!rating_run(in, &rated, err))
		return db_damaged(err);
	n = corrections_of(&r->corrections, in->days[0].tenant, &lines);
	rated_view_make(&view, rated, lines, n);
	r->next += n;
	return r->each(r->arg, in, &view.rated, err);
}

static bool
read_end(void *arg, const struct rating_input *in, struct err *err)
{
	return read_corrected(arg, in, NULL, err);
}

bool
period_each(struct db *db, const char *month, const char *tenant, report_begin *begin, period_tenant *each, void *arg,
            struct err *err)
{
	static const struct report_steps steps = {.begin = read_begin, .each = read_tenant, .end = read_end};
	struct reading r = {.begin = begin, .each = each, .arg = arg};
	bool closed = false, ok;

	if (!period_is_closed(db, month, &closed, err))
		return false;
	if (closed)
		return period_kept_each(db, month, tenant, KEPT_AS_BILLED, begin, each, arg, err);
	corrections_init(&r.corrections);
	ok = store_corrections(db, month, tenant, &r.corrections, err) &&
	     report_each(db, month, tenant, &steps, &r, err);
	corrections_fini(&r.corrections);
	return ok;
}

bool
store_period_each(struct db *db, const char *month, const char *tenant, period_tenant *each, void *arg, struct err *err)
{
	return period_each(db, month, tenant, NULL, each, arg, err);
}

/* aggregator/store/billing/price_preview_store.c - what a month would have cost with a price book that is only proposed. Nothing is written. */
#include "aggregator/core/rating/price_preview.h"

#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/policy/policy_write.h"
#include "aggregator/store/billing/report_rows.h"

struct preview {
	struct price_preview rows;
	const char *version;
	struct buf *out;
};

static bool
add_now(void *arg, const struct rating_input *in, struct err *err)
{
	return price_preview_add(&((struct preview *)arg)->rows, in, false, err);
}

static bool
add_then(void *arg, const struct rating_input *in, struct err *err)
{
	return price_preview_add(&((struct preview *)arg)->rows, in, true, err);
}

static bool
write_all(void *arg, const struct rating_input *in, struct err *err)
{
	struct preview *p = arg;

	price_preview_json(&p->rows, in, p->version, p->out);
	return buf_ok(p->out, "the preview", err);
}

bool
store_price_preview(struct db *db, const struct price_request *rq, struct buf *out, struct err *err)
{
	static char no_cluster[] = "";
	static const struct policy none = {.cluster = no_cluster};
	owned(policy) struct policy *now = NULL;
	owned(policy_book) struct policy_book *book = NULL;
	struct preview p = {.out = out};
	struct report_steps steps = {.each = add_now, .then = add_then, .end = write_all};
	bool ok;

	if (!policy_in_force(db, &now, err) ||
	    !policy_parse_book(rq->name, rq->text, rq->len, now ? now : &none, &book, err))
		return false;
	steps.proposed = book;
	p.version = book->version;
	ok = report_each(db, rq->period, rq->tenant, &steps, &p, err);
	price_preview_fini(&p.rows);
	return ok;
}

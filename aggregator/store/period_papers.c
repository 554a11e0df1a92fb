/* aggregator/store/period_papers.c - the documents of a month that are kept, written tenant by tenant. */
#include "aggregator/core/report.h"
#include "aggregator/store/period_rows.h"

#define TOTALS_MAX (64u << 20)

const char *const kept_names[KEPT_FORMATS] = {[KEPT_CSV] = "csv", [KEPT_JSON] = "json"};

bool
period_papers_begin(struct period_papers *p, const struct rating_input *in, struct err *err)
{
	*p = (struct period_papers){0};
	buf_init(&p->totals, TOTALS_MAX);
	for (size_t i = 0; i < KEPT_FORMATS; i++)
		if (!spill_new(true, &p->at[i], err))
			return false;
	report_csv_header(CSV_RFC4180, spill_buf(p->at[KEPT_CSV]));
	report_json_begin(in, spill_buf(p->at[KEPT_JSON]));
	return true;
}

bool
period_papers_add(struct period_papers *p, const struct rating_input *in, const struct rated *r, struct err *err)
{
	if (!report_csv_rows(in, r, CSV_RFC4180, spill_buf(p->at[KEPT_CSV]), err) ||
	    !report_json_rows(in, r, p->lines == 0, spill_buf(p->at[KEPT_JSON]), &p->totals, err))
		return false;
	p->lines += (int64_t)r->count;
	for (size_t i = 0; i < KEPT_FORMATS; i++)
		if (!spill_step(p->at[i], err))
			return false;
	return true;
}

bool
period_papers_end(struct period_papers *p, struct spill_file ret[KEPT_FORMATS], struct err *err)
{
	report_json_end(&p->totals, spill_buf(p->at[KEPT_JSON]));
	for (size_t i = 0; i < KEPT_FORMATS; i++)
		ret[i] = (struct spill_file){.fd = -1};
	for (size_t i = 0; i < KEPT_FORMATS; i++)
		if (!spill_end(p->at[i], &ret[i], err))
			return false;
	return true;
}

void
period_papers_fini(struct period_papers *p)
{
	for (size_t i = 0; i < KEPT_FORMATS; i++)
		spill_free(p->at[i]);
	buf_fini(&p->totals);
	*p = (struct period_papers){0};
}

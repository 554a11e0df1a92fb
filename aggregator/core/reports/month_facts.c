/* aggregator/core/reports/month_facts.c - the facts of a month as an archived text, and back. */
#include "aggregator/core/reports/month_facts.h"

#include <string.h>

#include "aggregator/core/rating/records.h"

#define ACCOUNT_MAX 1024

#define F(kind, name) RECORD_FIELD(kind, struct facts_frame, name)
static const struct record_field frame_fields[] = {F(TEXT, organisation), F(TEXT, provider),        F(TEXT, account_id),
                                                   F(TEXT, zone),         F(TEXT, previous_period), F(I64, now_ns),
                                                   F(I64, layout)};
#define H(kind, name) RECORD_FIELD(kind, struct facts_ledger, name)
static const struct record_field ledger_fields[] = {H(I64, first_ns)};
#define D(kind, name) RECORD_FIELD(kind, struct facts_day, name)
static const struct record_field day_fields[] = {D(TEXT, begins), D(I64, begins_ns)};
#define P(kind, name) RECORD_FIELD(kind, struct focus_period, name)
static const struct record_field period_fields[] = {P(TEXT, start), P(TEXT, end), P(TEXT, status), P(TEXT, closed_at),
                                                    P(TEXT, first_day)};
#define Y(kind, name) RECORD_FIELD(kind, struct focus_day, name)
static const struct record_field past_fields[] = {Y(TEXT, first_day), Y(TEXT, begins)};
#define L(kind, name) RECORD_FIELD(kind, struct focus_label, name)
static const struct record_field label_fields[] = {L(TEXT, tenant), L(TEXT, workspace), L(TEXT, key), L(TEXT, value)};
#define T(kind, name) RECORD_FIELD(kind, struct facts_tenant, name)
static const struct record_field tenant_fields[] = {T(TEXT, tenant),   T(TEXT, display_name),    T(BOOL, has_own),
                                                    T(I128, own.held), T(I128, own.unallocated), T(I128, own.stranded),
                                                    T(I128, own.down), T(I128, own.unknown)};
#define A(kind, name) RECORD_FIELD(kind, struct invoice_amount, name)
static const struct record_field amount_fields[] = {A(TEXT, currency), A(I128, billed), A(I32, scale)};
#define B(kind, name) RECORD_FIELD(kind, struct budget, name)
static const struct record_field budget_fields[] = {B(TEXT, workspace), B(TEXT, kind), B(TEXT, unit), B(I128, limit)};

#define S(name) RECORD_FIELD(TEXT, struct invoice_promise, name)
static const struct record_field promise_fields[] = {S(workspace),         S(owed_wait_seconds),    S(owed_requests),
                                                     S(owed_late),         S(longest_wait_seconds), S(owed_kept),
                                                     S(delivered_percent), S(measured_percent),     S(delivered_kept)};

_Static_assert(sizeof(struct invoice_promise) == ARRAY_LEN(promise_fields) * sizeof(char *),
               "a promise has another field");
_Static_assert(sizeof(struct invoice_capacity) == 5 * sizeof(int128), "a tenant's nodes have another state");
_Static_assert(sizeof(struct focus_period) == 5 * sizeof(char *), "a billing period has another field");
_Static_assert(sizeof(struct budget) == 4 * sizeof(char *) + sizeof(int128), "a budget has another field");
_Static_assert(sizeof(int) == sizeof(int32_t), "scales are archived as 32 bits");

enum record {
	RECORD_FRAME,
	RECORD_LEDGER,
	RECORD_DAY,
	RECORD_PERIOD,
	RECORD_PAST,
	RECORD_LABEL,
	RECORD_TENANT,
	RECORD_AMOUNT,
	RECORD_BUDGET,
	RECORD_PROMISE,
	RECORDS
};
static const struct record_type types[RECORDS] = {
	[RECORD_FRAME] = {'F', sizeof(struct facts_frame), frame_fields, ARRAY_LEN(frame_fields), .later = 1},
	[RECORD_LEDGER] = {'H', sizeof(struct facts_ledger), ledger_fields, ARRAY_LEN(ledger_fields), 0},
	[RECORD_DAY] = {'D', sizeof(struct facts_day), day_fields, ARRAY_LEN(day_fields), 0},
	[RECORD_PERIOD] = {'P', sizeof(struct focus_period), period_fields, ARRAY_LEN(period_fields), 0},
	[RECORD_PAST] = {'Y', sizeof(struct focus_day), past_fields, ARRAY_LEN(past_fields), 0},
	[RECORD_LABEL] = {'L', sizeof(struct focus_label), label_fields, ARRAY_LEN(label_fields), 0},
	[RECORD_TENANT] = {'T', sizeof(struct facts_tenant), tenant_fields, ARRAY_LEN(tenant_fields), 0},
	[RECORD_AMOUNT] = {'A', sizeof(struct invoice_amount), amount_fields, ARRAY_LEN(amount_fields), 0},
	[RECORD_BUDGET] = {'B', sizeof(struct budget), budget_fields, ARRAY_LEN(budget_fields), 0},
	[RECORD_PROMISE] = {'S', sizeof(struct invoice_promise), promise_fields, ARRAY_LEN(promise_fields), 0},
};

/* --- writing --- */

/* "org/example-inc": letters and digits of the name. */
static void
account_id(const char *organisation, struct buf *out)
{
	bool dash = false;

	buf_str(out, "org/");
	for (const char *c = organisation; *c != '\0'; c++) {
		bool upper = *c >= 'A' && *c <= 'Z';

		if (!upper && !(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9')) {
			dash = out->len > 4;
			continue;
		}
		buf_str(out, dash ? "-" : "");
		buf_char(out, (char)(upper ? *c - 'A' + 'a' : *c));
		dash = false;
	}
	if (out->len == 4)
		buf_str(out, "default");
}

void
facts_write_frame(const struct facts_frame *f, struct buf *out)
{
	in_place(buf) struct buf id = {0};
	struct facts_frame frame = *f;

	buf_init(&id, ACCOUNT_MAX);
	account_id(f->organisation, &id);
	frame.account_id = buf_text(&id);
	record_write(&types[RECORD_FRAME], &frame, out);
}

/* A ledger that is older than the month needs no line, as in older texts. */
void
facts_write_ledger(const struct facts_ledger *l, struct buf *out)
{
	if (l->first_ns != 0)
		record_write(&types[RECORD_LEDGER], l, out);
}

void
facts_write_day(const struct facts_day *d, struct buf *out)
{
	record_write(&types[RECORD_DAY], d, out);
}

void
facts_write_period(const struct focus_period *p, struct buf *out)
{
	record_write(&types[RECORD_PERIOD], p, out);
}

void
facts_write_past_day(const struct focus_day *d, struct buf *out)
{
	record_write(&types[RECORD_PAST], d, out);
}

void
facts_write_label(const struct focus_label *l, struct buf *out)
{
	record_write(&types[RECORD_LABEL], l, out);
}

void
facts_write_tenant(const struct facts_tenant *t, struct buf *out)
{
	record_write(&types[RECORD_TENANT], t, out);
}

void
facts_write_amount(const struct invoice_amount *a, struct buf *out)
{
	record_write(&types[RECORD_AMOUNT], a, out);
}

void
facts_write_budget(const struct budget *b, struct buf *out)
{
	record_write(&types[RECORD_BUDGET], b, out);
}

void
facts_write_promise(const struct invoice_promise *p, struct buf *out)
{
	record_write(&types[RECORD_PROMISE], p, out);
}

/* --- reading --- */

struct memory {
	struct records records;
	const char **day_bounds;
};

void
month_facts_free(struct month_facts *f)
{
	struct memory *m;

	if (f == NULL)
		return;
	m = f->memory;
	records_fini(&m->records);
	mem_free(m->day_bounds);
	mem_free(m);
	mem_free(f);
}

static bool
frame_is_sound(const struct facts_frame *f)
{
	return f->organisation != NULL && f->provider != NULL && f->account_id != NULL && f->zone != NULL;
}

static bool
period_is_sound(const struct focus_period *p)
{
	return p->start != NULL && p->end != NULL && p->status != NULL && p->closed_at != NULL && p->first_day != NULL;
}

static bool
label_is_sound(const struct focus_label *l)
{
	return l->tenant != NULL && l->workspace != NULL && l->key != NULL && l->value != NULL;
}

static bool
amount_is_sound(const struct invoice_amount *a)
{
	return a->currency != NULL && a->scale >= 0;
}

static bool
budget_is_sound(const struct budget *b)
{
	return b->workspace != NULL && b->kind != NULL && b->unit != NULL && b->limit > 0;
}

/* Checks that texts which documents use without a NULL check are there, and that a tenant's records follow it. */
static bool
seen(struct records *r, size_t type)
{
	const struct record_list *list = &r->lists[type];
	const char *record = (const char *)list->at + (list->count - 1) * types[type].size;
	size_t tenants = r->lists[RECORD_TENANT].count;
	struct facts_tenant *tenant =
		tenants > 0 ? (struct facts_tenant *)r->lists[RECORD_TENANT].at + tenants - 1 : NULL;

	switch (type) {
	case RECORD_FRAME: return list->count == 1 && frame_is_sound((const void *)record);
	case RECORD_LEDGER:
		return list->count == 1 && ((const struct facts_ledger *)(const void *)record)->first_ns != 0;
	case RECORD_DAY: return ((const struct facts_day *)(const void *)record)->begins != NULL;
	case RECORD_PERIOD: return period_is_sound((const void *)record);
	case RECORD_PAST:
		return ((const struct focus_day *)(const void *)record)->first_day != NULL &&
		       ((const struct focus_day *)(const void *)record)->begins != NULL;
	case RECORD_LABEL: return label_is_sound((const void *)record);
	case RECORD_TENANT: return tenant != NULL && tenant->tenant != NULL && tenant->display_name != NULL;
	case RECORD_AMOUNT:
		if (tenant == NULL || !amount_is_sound((const void *)record))
			return false;
		tenant->previous_count++;
		return true;
	case RECORD_PROMISE:
		if (tenant == NULL || ((const struct invoice_promise *)(const void *)record)->workspace == NULL)
			return false;
		tenant->promise_count++;
		return true;
	default:
		if (tenant == NULL || !budget_is_sound((const void *)record))
			return false;
		tenant->budget_count++;
		return true;
	}
}

/* The lists do not move any more: lets tenants point to their part of them. */
static void
join_tenants(const struct record_list *lists)
{
	struct facts_tenant *tenant = lists[RECORD_TENANT].at;
	const struct invoice_amount *amount = lists[RECORD_AMOUNT].at;
	struct budget *budget = lists[RECORD_BUDGET].at;
	const struct invoice_promise *promise = lists[RECORD_PROMISE].at;

	for (size_t i = 0; i < lists[RECORD_TENANT].count; i++, tenant++) {
		tenant->previous = amount;
		tenant->budgets = budget;
		tenant->promises = promise;
		for (size_t k = 0; k < tenant->promise_count; k++)
			promise++;
		for (size_t k = 0; k < tenant->previous_count; k++)
			amount++;
		for (size_t k = 0; k < tenant->budget_count; k++)
			budget++->tenant = tenant->tenant;
	}
}

bool
month_facts_read(const char *text, size_t len, struct month_facts **ret, struct err *err)
{
	owned(month_facts) struct month_facts *f = mem_alloc(sizeof(*f));
	struct memory *m = f->memory = mem_alloc(sizeof(*m));
	const struct record_list *lists;

	records_init(&m->records, types, RECORDS);
	if (!records_read(&m->records, text, len, "what the documents of a month say", seen, err))
		return false;
	lists = m->records.lists;
	if (lists[RECORD_FRAME].count != 1)
		return err_set(err, ERR_INVALID, "it does not say who pays whom");
	m->day_bounds = mem_array(lists[RECORD_DAY].count, sizeof(*m->day_bounds));
	for (size_t i = 0; i < lists[RECORD_DAY].count; i++)
		m->day_bounds[i] = ((const struct facts_day *)lists[RECORD_DAY].at)[i].begins;
	join_tenants(lists);
	f->frame = *(const struct facts_frame *)lists[RECORD_FRAME].at;
	if (lists[RECORD_LEDGER].count > 0)
		f->first_ns = ((const struct facts_ledger *)lists[RECORD_LEDGER].at)->first_ns;
	f->day_bounds = m->day_bounds;
	f->day_bound_count = lists[RECORD_DAY].count;
	f->days = lists[RECORD_DAY].at;
	f->periods = lists[RECORD_PERIOD].at;
	f->period_count = lists[RECORD_PERIOD].count;
	f->past = m->records.lists[RECORD_PAST].at;
	f->past_count = m->records.lists[RECORD_PAST].count;
	f->labels = m->records.lists[RECORD_LABEL].at;
	f->label_count = m->records.lists[RECORD_LABEL].count;
	f->tenants = lists[RECORD_TENANT].at;
	f->tenant_count = lists[RECORD_TENANT].count;
	*ret = take(f);
	return true;
}

const struct facts_tenant *
month_facts_tenant(const struct month_facts *f, const char *tenant)
{
	size_t low = 0, high = f->tenant_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(f->tenants[middle].tenant, tenant);

		if (order == 0)
			return &f->tenants[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

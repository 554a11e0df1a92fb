/* aggregator/core/rating_file.c - what a month was rated from, as a text that is kept, and back. */
#include "aggregator/core/rating_file.h"

#include <string.h>

#include "common/text.h"

/* --- which fields a record has --- */

enum field_type { FIELD_TEXT, FIELD_I128, FIELD_I64, FIELD_I32, FIELD_BOOL };
struct field {
	size_t offset;
	enum field_type type;
};

#define TEXT(type, name)                         \
	{                                        \
		offsetof(type, name), FIELD_TEXT \
	}
#define I128(type, name)                         \
	{                                        \
		offsetof(type, name), FIELD_I128 \
	}
#define I64(type, name)                         \
	{                                       \
		offsetof(type, name), FIELD_I64 \
	}
#define I32(type, name)                         \
	{                                       \
		offsetof(type, name), FIELD_I32 \
	}
#define BOOL(type, name)                         \
	{                                        \
		offsetof(type, name), FIELD_BOOL \
	}

#define M(kind, name) kind(struct rating_input, name)
static const struct field month_fields[] = {M(TEXT, period), M(TEXT, period_start), M(TEXT, period_end),
                                            M(TEXT, currency), M(I32, invoice_version)};
#define B(kind, name) kind(struct rating_book, name)
static const struct field book_fields[] = {B(TEXT, version), B(TEXT, currency), B(I64, lender_ratio),
                                           B(I32, shared_idle), B(I128, platform_cost)};
#define I(kind, name) kind(struct rating_item, name)
static const struct field item_fields[] = {I(TEXT, sku),          I(TEXT, gpu_model),  I(TEXT, mig_profile),
                                           I(TEXT, sharing_mode), I(TEXT, klass),      I(I128, price),
                                           I(TEXT, tenant),       I(BOOL, basis_used), I(TEXT, meter),
                                           I(TEXT, meter_sku)};
#define D(kind, name) kind(struct rating_discount, name)
static const struct field discount_fields[] = {D(TEXT, tenant), D(TEXT, category), D(TEXT, klass), D(I64, ratio)};
#define S(kind, name) kind(struct rating_site, name)
static const struct field site_fields[] = {S(TEXT, cluster), S(I128, energy_price), S(I128, carbon)};
#define W(kind, name) kind(struct rating_weight, name)
static const struct field weight_fields[] = {W(TEXT, tenant), W(I64, weight)};
#define U(kind, name) kind(struct usage_day, name)
static const struct field row_fields[] = {U(I32, day),           U(I32, kind),           U(TEXT, cluster),
                                          U(TEXT, tenant),       U(TEXT, cost_center),   U(TEXT, workspace),
                                          U(TEXT, gpu_model),    U(TEXT, mig_profile),   U(TEXT, sharing_mode),
                                          U(TEXT, klass),        U(I64, instance_units), U(I64, price_book),
                                          U(I128, used_unit_ns), U(I128, idle_unit_ns),  U(I128, unmeasured_unit_ns),
                                          U(I128, over_unit_ns), U(I128, energy_mj),     U(I128, unit_ns),
                                          U(I64, reservation),   U(TEXT, counterparty),  U(TEXT, meter),
                                          U(TEXT, category),     U(TEXT, unit),          U(TEXT, meter_sku),
                                          U(I128, quantity),     U(I128, amount),        U(TEXT, currency),
                                          U(TEXT, reason)};

/* A field that is added to one of them belongs into its table: without it a month could not be proved. */
_Static_assert(sizeof(struct usage_day) == 288, "a row of charges has another field");
_Static_assert(sizeof(struct rating_item) == 96, "a price item has another field");
_Static_assert(sizeof(struct rating_book) == 112, "a price book has another field");
_Static_assert(sizeof(enum charge_kind) == sizeof(int32_t) && sizeof(enum shared_method) == sizeof(int32_t),
               "enums are kept as 32 bits");

enum record {
	RECORD_MONTH,
	RECORD_BOOK,
	RECORD_ITEM,
	RECORD_DISCOUNT,
	RECORD_SITE,
	RECORD_WEIGHT,
	RECORD_ROW,
	RECORDS
};
static const struct {
	char letter;
	size_t size;
	const struct field *fields;
	size_t count;
} records[RECORDS] = {
	[RECORD_MONTH] = {'M', sizeof(struct rating_input), month_fields, ARRAY_LEN(month_fields)},
	[RECORD_BOOK] = {'B', sizeof(struct rating_book), book_fields, ARRAY_LEN(book_fields)},
	[RECORD_ITEM] = {'I', sizeof(struct rating_item), item_fields, ARRAY_LEN(item_fields)},
	[RECORD_DISCOUNT] = {'D', sizeof(struct rating_discount), discount_fields, ARRAY_LEN(discount_fields)},
	[RECORD_SITE] = {'S', sizeof(struct rating_site), site_fields, ARRAY_LEN(site_fields)},
	[RECORD_WEIGHT] = {'W', sizeof(struct rating_weight), weight_fields, ARRAY_LEN(weight_fields)},
	[RECORD_ROW] = {'U', sizeof(struct usage_day), row_fields, ARRAY_LEN(row_fields)},
};

/* --- writing --- */

static void
write_text(const char *text, struct buf *out)
{
	static const char plain[] = "\\\t\n\r", escaped[] = "\\tnr";

	if (text == NULL) {
		buf_str(out, "\\N");
		return;
	}
	for (size_t n; *text != '\0'; text += n) {
		n = strcspn(text, plain);
		buf_add(out, text, n);
		if (text[n] == '\0')
			return;
		buf_char(out, '\\');
		buf_char(out, escaped[strchr(plain, text[n]) - plain]);
		n++;
	}
}

static void
write_field(const void *at, enum field_type type, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE];

	switch (type) {
	case FIELD_TEXT: write_text(*(const char *const *)at, out); break;
	case FIELD_I128: buf_str(out, decimal_format(*(const int128 *)at, 0, 0, text)); break;
	case FIELD_I64: buf_i64(out, *(const int64_t *)at); break;
	case FIELD_I32: buf_i64(out, *(const int32_t *)at); break;
	case FIELD_BOOL: buf_char(out, *(const bool *)at ? '1' : '0'); break;
	}
}

static void
write_record(enum record kind, const void *record, struct buf *out)
{
	buf_char(out, records[kind].letter);
	for (size_t i = 0; i < records[kind].count; i++) {
		buf_char(out, '\t');
		write_field((const char *)record + records[kind].fields[i].offset, records[kind].fields[i].type, out);
	}
	buf_char(out, '\n');
}

void
rating_file_prices(const struct rating_input *in, struct buf *out)
{
	write_record(RECORD_MONTH, in, out);
	for (size_t i = 0; i < in->book_count; i++) {
		const struct rating_book *b = &in->books[i];

		write_record(RECORD_BOOK, b, out);
		for (size_t j = 0; j < b->item_count; j++)
			write_record(RECORD_ITEM, &b->items[j], out);
		for (size_t j = 0; j < b->discount_count; j++)
			write_record(RECORD_DISCOUNT, &b->discounts[j], out);
		for (size_t j = 0; j < b->site_count; j++)
			write_record(RECORD_SITE, &b->sites[j], out);
		for (size_t j = 0; j < b->weight_count; j++)
			write_record(RECORD_WEIGHT, &b->weights[j], out);
	}
}

void
rating_file_rows(const struct rating_input *in, struct buf *out)
{
	for (size_t i = 0; i < in->day_count; i++)
		write_record(RECORD_ROW, &in->days[i], out);
}

/* --- reading --- */

/* Records of a kind, one after the other; texts point into the file's own. */
struct memory {
	char *text;
	void *at[RECORDS];
	size_t count[RECORDS], cap[RECORDS];
	enum record last; /* that was read */
};

void
rating_file_free(struct rating_file *f)
{
	struct memory *m;

	if (f == NULL)
		return;
	m = f->memory;
	for (size_t i = 0; i < RECORDS; i++)
		mem_free(m->at[i]);
	mem_free(m->text);
	mem_free(m);
	mem_free(f);
}

/* In place: what is written is never longer than what it says. */
static bool
read_text(char *text, const char **ret)
{
	char *to = text;

	if (strcmp(text, "\\N") == 0) {
		*ret = NULL;
		return true;
	}
	*ret = text;
	for (; *text != '\0'; text++) {
		if (*text == '\r')
			return false;
		if (*text != '\\') {
			*to++ = *text;
			continue;
		}
		switch (*++text) {
		case '\\': *to++ = '\\'; break;
		case 't': *to++ = '\t'; break;
		case 'n': *to++ = '\n'; break;
		case 'r': *to++ = '\r'; break;
		default: return false;
		}
	}
	*to = '\0';
	return true;
}

/* As they are written: no zero in front, no plus. */
static bool
is_plain_number(const char *text)
{
	bool negative = text[0] == '-';

	text += negative;
	return text[0] == '0' ? text[1] == '\0' && !negative : text[0] >= '1' && text[0] <= '9';
}

static bool
read_field(char *text, enum field_type type, void *at)
{
	int64_t n = 0;

	if (type == FIELD_TEXT)
		return read_text(text, at);
	if (!is_plain_number(text))
		return false;
	if (type == FIELD_I128)
		return decimal_parse(text, 0, at, NULL);
	if (!text_to_i64(text, &n))
		return false;
	if (type == FIELD_I64)
		*(int64_t *)at = n;
	else if (type == FIELD_I32 && n >= INT32_MIN && n <= INT32_MAX)
		*(int32_t *)at = (int32_t)n;
	else if (type == FIELD_BOOL && (n == 0 || n == 1))
		*(bool *)at = n == 1;
	else
		return false;
	return true;
}

static bool
read_record(struct memory *m, enum record kind, char *fields)
{
	char *record;

	if (m->count[kind] == m->cap[kind]) {
		m->cap[kind] = m->cap[kind] > 0 ? 2 * m->cap[kind] : 16;
		m->at[kind] = mem_grow(m->at[kind], m->cap[kind], records[kind].size);
	}
	record = (char *)m->at[kind] + m->count[kind]++ * records[kind].size;
	memset(record, 0, records[kind].size);
	for (size_t i = 0; i < records[kind].count; i++) {
		char *end = fields != NULL ? strchr(fields, '\t') : NULL;

		if (end != NULL)
			*end++ = '\0';
		if (fields == NULL ||
		    !read_field(fields, records[kind].fields[i].type, record + records[kind].fields[i].offset))
			return false;
		fields = end;
	}
	return fields == NULL;
}

/* The month, its books, the rows; what a book has follows it, each kind after the one before. */
static bool
is_in_order(const struct memory *m, enum record kind)
{
	enum record last = m->last;

	if (m->count[RECORD_MONTH] == 0 || kind == RECORD_MONTH)
		return kind == RECORD_MONTH && m->count[RECORD_MONTH] == 0;
	return kind >= last || (kind == RECORD_BOOK && last < RECORD_ROW);
}

static bool
count_part(struct memory *m, enum record kind)
{
	struct rating_book *book = m->at[RECORD_BOOK];

	if (kind < RECORD_ITEM || kind > RECORD_WEIGHT)
		return true;
	if (m->count[RECORD_BOOK] == 0)
		return false;
	book += m->count[RECORD_BOOK] - 1;
	*(kind == RECORD_ITEM       ? &book->item_count
	  : kind == RECORD_DISCOUNT ? &book->discount_count
	  : kind == RECORD_SITE     ? &book->site_count
	                            : &book->weight_count) += 1;
	return true;
}

static bool
read_line(struct memory *m, char *line)
{
	for (enum record kind = 0; kind < RECORDS; kind++)
		if (line[0] == records[kind].letter)
			return line[1] == '\t' && is_in_order(m, kind) && read_record(m, m->last = kind, line + 2) &&
			       count_part(m, kind);
	return false;
}

static void
join_books(struct memory *m)
{
	struct rating_book *book = m->at[RECORD_BOOK];
	const struct rating_item *item = m->at[RECORD_ITEM];
	const struct rating_discount *discount = m->at[RECORD_DISCOUNT];
	const struct rating_site *site = m->at[RECORD_SITE];
	const struct rating_weight *weight = m->at[RECORD_WEIGHT];

	for (size_t i = 0; i < m->count[RECORD_BOOK]; i++, book++) {
		book->items = item;
		book->discounts = discount;
		book->sites = site;
		book->weights = weight;
		item = book->item_count > 0 ? item + book->item_count : item; /* there may be none at all */
		discount = book->discount_count > 0 ? discount + book->discount_count : discount;
		site = book->site_count > 0 ? site + book->site_count : site;
		weight = book->weight_count > 0 ? weight + book->weight_count : weight;
	}
}

#define RATIO_MAX 1000000000
#define PRICE_MAX pow10_i128(PRICE_SCALE + 15) /* far above any, and a ratio of it stays in 128 bits */

static bool
has_all(const char *const *texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (texts[i] == NULL)
			return false;
	return true;
}

/* Texts that rating compares without a look, and numbers that it takes for positions. */
static bool
row_is_sound(const struct memory *m, const struct usage_day *d)
{
	const char *const all[] = {d->cluster,   d->tenant,      d->cost_center,  d->workspace,
	                           d->gpu_model, d->mig_profile, d->sharing_mode, d->klass};
	const char *const meter[] = {d->meter, d->category, d->unit, d->meter_sku};
	const char *const once[] = {d->category, d->unit, d->meter_sku, d->currency, d->reason};

	if (d->kind < 0 || d->kind >= CHARGE_ENERGY || d->price_book < -1 ||
	    d->price_book >= (int64_t)m->count[RECORD_BOOK] || !has_all(all, ARRAY_LEN(all)))
		return false;
	if (d->kind == CHARGE_METER)
		return has_all(meter, ARRAY_LEN(meter));
	if (d->kind == CHARGE_ADJUSTMENT)
		return has_all(once, ARRAY_LEN(once));
	return d->meter == NULL && (d->kind != CHARGE_LENT || d->counterparty != NULL);
}

static bool
rows_are_sound(const struct memory *m, size_t *ret_row)
{
	const struct usage_day *d = m->at[RECORD_ROW];

	for (size_t i = 0; i < m->count[RECORD_ROW]; i++, d++) {
		*ret_row = i + 1;
		if (!row_is_sound(m, d))
			return false;
	}
	return true;
}

static bool
is_price(int128 price, int128 least)
{
	return price >= least && price <= PRICE_MAX;
}

static bool
book_is_sound(const struct rating_book *b)
{
	bool ok = b->version != NULL && b->currency != NULL && b->lender_ratio >= 0 && b->lender_ratio <= RATIO_MAX &&
	          b->shared_idle >= 0 && b->shared_idle <= SHARED_WEIGHTS && is_price(b->platform_cost, -1);

	for (size_t i = 0; ok && i < b->item_count; i++)
		ok = b->items[i].sku != NULL && is_price(b->items[i].price, 0);
	for (size_t i = 0; ok && i < b->discount_count; i++)
		ok = b->discounts[i].ratio >= 0 && b->discounts[i].ratio <= RATIO_MAX;
	for (size_t i = 0; ok && i < b->site_count; i++)
		ok = b->sites[i].cluster != NULL && is_price(b->sites[i].energy_price, -1) &&
		     is_price(b->sites[i].carbon, -1);
	for (size_t i = 0; ok && i < b->weight_count; i++)
		ok = b->weights[i].tenant != NULL && b->weights[i].weight >= 1;
	return ok;
}

static bool
month_is_sound(const struct memory *m)
{
	const struct rating_input *in = m->at[RECORD_MONTH];
	const struct rating_book *books = m->at[RECORD_BOOK];
	const char *const texts[] = {in->period, in->period_start, in->period_end, in->currency};

	for (size_t i = 0; i < m->count[RECORD_BOOK]; i++)
		if (!book_is_sound(&books[i]))
			return false;
	return has_all(texts, ARRAY_LEN(texts));
}

bool
rating_file_read(const char *text, size_t len, struct rating_file **ret, struct err *err)
{
	owned(rating_file) struct rating_file *f = mem_alloc(sizeof(*f));
	struct memory *m = f->memory = mem_alloc(sizeof(*m));
	size_t number = 0, row = 0;

	if (len > 0 && (text[len - 1] != '\n' || memchr(text, '\0', len) != NULL))
		return err_set(err, ERR_INVALID, "the end of the last line is missing, or it is not text");
	m->text = mem_strndup(len > 0 ? text : "", len);
	for (char *line = m->text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		*end = '\0';
		number++;
		if (!read_line(m, line))
			return err_set(err, ERR_INVALID, "line %zu is not what was rated", number);
	}
	if (m->count[RECORD_MONTH] != 1)
		return err_set(err, ERR_INVALID, "it has %zu months, not one", m->count[RECORD_MONTH]);
	if (!rows_are_sound(m, &row))
		return err_set(err, ERR_INVALID, "row %zu of the charges cannot be", row);
	join_books(m);
	if (!month_is_sound(m))
		return err_set(err, ERR_INVALID, "its month or its price books cannot be");
	f->in = *(const struct rating_input *)m->at[RECORD_MONTH];
	f->in.books = m->at[RECORD_BOOK];
	f->in.book_count = m->count[RECORD_BOOK];
	f->in.days = m->at[RECORD_ROW];
	f->in.day_count = m->count[RECORD_ROW];
	*ret = take(f);
	return true;
}

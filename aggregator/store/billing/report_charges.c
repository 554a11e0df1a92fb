/* aggregator/store/billing/report_charges.c - the rows of charge_day of one tenant's month, by COPY. */
#include "aggregator/store/billing/report_charges.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (1000u << 20) /* of one tenant's month */
#define SQL_MAX (16u << 20)
#define COLUMNS                                                                                                          \
	"c.day, c.price_book_id, c.cluster_id, c.owner_id, c.gpu_model, c.workspace_id, c.profile, c.units, c.sharing, " \
	"c.class, c.used, c.idle, c.unmeasured, c.over, c.energy_mj"

void
report_charges_fini(struct report_charges *c)
{
	buf_fini(&c->text);
	mem_free(c->at);
}

int
pool_key_compare(const struct pool_key *a, const struct pool_key *b)
{
#define COMPARE(field)            \
	if (a->field != b->field) \
	return a->field < b->field ? -1 : 1
	COMPARE(cluster_id);
	COMPARE(owner_id);
	if (a->gpu_model != b->gpu_model && strcmp(a->gpu_model, b->gpu_model) != 0)
		return strcmp(a->gpu_model, b->gpu_model);
	COMPARE(workspace_id);
	COMPARE(day);
	COMPARE(book_id);
#undef COMPARE
	return 0;
}

static int
compare_charges(const void *a, const void *b)
{
	const struct report_charge *x = a, *y = b;
	int order = pool_key_compare(&x->key, &y->key);

	if (order == 0)
		order = (x->units < y->units) - (x->units > y->units);
	if (order == 0)
		order = strcmp(x->profile, y->profile);
	if (order == 0)
		order = (x->sharing > y->sharing) - (x->sharing < y->sharing);
	return order ? order : strcmp(x->klass, y->klass);
}

void
report_charges_sort(struct report_charges *c)
{
	if (c->count > 0)
		qsort(c->at, c->count, sizeof(*c->at), compare_charges);
}

/* ---- a line of COPY ---- */

/* The texts that were seen last, so that equal ones are one: a month has few kinds of devices, and comparing them is most of what
 * comes after. */
#define MEMO_SIZE 64u
struct reader {
	char *at;
	const char *memo[MEMO_SIZE];
	int64_t first_day; /* since 1970 */
	bool bad;
};

/* The next field, which ends at a tab or at the end of the line; *ret_len: of its bytes. A backslash keeps what COPY would take for
 * an end; \N is NULL, which only numbers have. */
static char *
next_field(struct reader *r, size_t *ret_len)
{
	char *field = r->at, *to = field, *from = field;

	for (; *from != '\t' && *from != '\n' && *from != '\0'; from++) {
		if (*from == '\\' && from[1] != '\0') {
			static const char codes[] = "tnrbfv", meant[] = "\t\n\r\b\f\v";
			const char *code = strchr(codes, *++from);

			*to++ = code != NULL ? meant[code - codes] : *from;
			continue;
		}
		*to++ = *from;
	}
	r->bad |= *from == '\0';
	r->at = *from == '\0' ? from : from + 1;
	*to = '\0';
	*ret_len = (size_t)(to - field);
	return field;
}

static const char *
take_text(struct reader *r)
{
	size_t len, slot = 2166136261u;
	const char *text = next_field(r, &len);

	for (const char *c = text; *c != '\0'; c++)
		slot = (slot ^ (unsigned char)*c) * 16777619u;
	slot = (slot ^ slot >> 15) % MEMO_SIZE;
	if (r->memo[slot] == NULL || strcmp(r->memo[slot], text) != 0)
		r->memo[slot] = text;
	return r->memo[slot];
}

#define DIGITS_MAX 18 /* of what certainly fits */

static int64_t
digits(struct reader *r, const char *text, size_t len)
{
	bool bad = len == 0;
	int64_t v = 0;

	for (size_t i = 0; i < len; i++) {
		bad |= text[i] < '0' || text[i] > '9';
		v = v * 10 + (text[i] - '0');
	}
	r->bad |= bad;
	return v;
}

/* 0 for NULL. */
static int64_t
take_i64(struct reader *r)
{
	size_t len;
	const char *text = next_field(r, &len);

	if (len == 1 && text[0] == 'N')
		return 0;
	if (len > DIGITS_MAX)
		r->bad = true;
	return r->bad ? 0 : digits(r, text, len);
}

static int128
take_amount(struct reader *r)
{
	size_t len;
	const char *text = next_field(r, &len);
	struct err err = {0};
	int128 v = 0;

	if (len <= DIGITS_MAX)
		return digits(r, text, len);
	r->bad |= !decimal_parse(text, 0, &v, &err);
	return v;
}

/* "2026-11-01" as days since 1970: years begin in March here, so that the leap day is the last. */
static int64_t
day_number(struct reader *r, const char *text, size_t len)
{
	int64_t year, month, day;

	if (len != 10 || text[4] != '-' || text[7] != '-') {
		r->bad = true;
		return 0;
	}
	year = digits(r, text, 4);
	month = digits(r, text + 5, 2);
	day = digits(r, text + 8, 2);
	year -= month <= 2;
	month = (month + 9) % 12;
	return year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719469;
}

static struct report_charge
take_charge(struct reader *r)
{
	struct report_charge c;
	size_t len;
	const char *day = next_field(r, &len);

	c.key.day = day_number(r, day, len) - r->first_day;
	c.key.book_id = take_i64(r);
	c.key.cluster_id = take_i64(r);
	c.key.owner_id = take_i64(r);
	c.key.gpu_model = take_text(r);
	c.key.workspace_id = take_i64(r);
	c.profile = take_text(r);
	c.units = take_i64(r);
	c.sharing = take_i64(r);
	c.klass = take_text(r);
	c.used = take_amount(r);
	c.idle = take_amount(r);
	c.unmeasured = take_amount(r);
	c.over = take_amount(r);
	c.energy_mj = take_amount(r);
	return c;
}

/* ---- a tenant's month ---- */

/* Dates and arrays of dates come from the database; nothing else has a place between these quotes. */
static bool
is_plain(const char *text)
{
	return text[strspn(text, "0123456789-,{}")] == '\0';
}

static void
add_select(struct buf *sql, const struct report_month *m, const char *table, const char *workspaces)
{
	buf_printf(sql,
	           "SELECT " COLUMNS " FROM %s c WHERE c.day >= '%s' AND c.day < '%s' AND c.workspace_id = ANY "
	           "('%s'::integer[])",
	           table, m->in->period_start, m->in->period_end, workspaces);
}

static bool
load_text(const struct report_month *m, const char *workspaces, struct buf *out, struct err *err)
{
	in_place(buf) struct buf sql = {0};

	if (!is_plain(m->in->period_start) || !is_plain(m->in->period_end) || !is_plain(m->dirty) ||
	    !is_plain(workspaces))
		return err_set(err, ERR_FATAL, "the bounds of period %s are not dates", m->in->period);
	buf_init(&sql, SQL_MAX);
	buf_str(&sql, "COPY (");
	add_select(&sql, m, "charge_day", workspaces);
	/* A row of a day that the ledger does not have bills nobody. */
	buf_str(&sql, " AND EXISTS (SELECT FROM billing_day k WHERE k.day = c.day)");
	if (strcmp(m->dirty, "{}") != 0)
		buf_printf(&sql, " AND c.day <> ALL ('%s'::date[])", m->dirty);
	if (m->open) {
		buf_str(&sql, " UNION ALL ");
		add_select(&sql, m, "open_charge_day", workspaces);
	}
	buf_str(&sql, ") TO STDOUT");
	return buf_ok(&sql, "the statement for a tenant's month", err) &&
	       db_copy_read(m->db, buf_text(&sql), out, err) && buf_ok(out, "the charges of a tenant's month", err);
}

bool
report_charges_load(const struct report_month *m, const char *workspaces, struct report_charges *ret, struct err *err)
{
	struct reader r = {0};
	size_t lines = 0;

	buf_init(&ret->text, TEXT_MAX);
	if (!load_text(m, workspaces, &ret->text, err))
		return false;
	for (const char *c = buf_text(&ret->text); (c = strchr(c, '\n')) != NULL; c++)
		lines++;
	ret->at = mem_array(lines, sizeof(*ret->at));
	r.first_day = day_number(&r, m->in->period_start, strlen(m->in->period_start));
	r.at = ret->text.data;
	while (ret->count < lines && !r.bad)
		ret->at[ret->count++] = take_charge(&r);
	return !r.bad || err_set(err, ERR_FATAL, "row %zu of the charges is not what they are read as", ret->count);
}

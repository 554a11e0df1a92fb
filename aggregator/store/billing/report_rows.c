/* aggregator/store/billing/report_rows.c - the rating input rows of one tenant's month, from the charges of its days.
 *
 * Rules, in order:
 *  1. held time is a row of usage, or of covered use where it was reserved
 *  2. every kind of instances reserved is a commitment; its parts (covered, lent, unused, undelivered) carry its number, and add up to it
 *  3. where a workspace reserved several kinds in one pool on one day, covered and lent time goes to them in the order of the
 *     table, as charges.c divided it
 *  4. unreserved idle time of a tenant's own nodes is a row without a workspace, with the energy of all idle time there
 *  5. the tenant's share of the idle time of shared nodes is a row without a workspace (shared_month.c)
 *  6. a proposed book prices all rows
 *  7. rows of a pool's day in whose open hours the workspace has a part are provisional (charges.h) */
#include "aggregator/store/billing/report_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"

/* The pool, workspace, day and book of a row, which decide the commitments that it may be a part of. */
struct pool_key {
	int64_t cluster_id, owner_id; /* owner 0: shared */
	const char *gpu_model;
	int64_t workspace_id;
	int64_t day; /* ordinal in the month */
	int64_t book_id;
};

struct report_charge {
	struct pool_key key;
	const char *profile, *klass;
	int64_t units, sharing;
	int128 used, idle, unmeasured, over, energy_mj;
};

/* ---- charges of the tenant's workspaces: most of the rows of a report. They come by COPY, which costs the server and this program half of
 * a result ---- */

#define TEXT_MAX (1000u << 20) /* of one tenant's month */
#define SQL_MAX (16u << 20)
#define CHARGE_COLUMNS                                                                                                   \
	"c.day, c.price_book_id, c.cluster_id, c.owner_id, c.gpu_model, c.workspace_id, c.profile, c.units, c.sharing, " \
	"c.class, c.used, c.idle, c.unmeasured, c.over, c.energy_mj"

static void
report_charges_fini(struct report_charges *c)
{
	buf_fini(&c->text);
	mem_free(c->at);
}

static int
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

static void
report_charges_sort(struct report_charges *c)
{
	if (c->count > 0)
		qsort(c->at, c->count, sizeof(*c->at), compare_charges);
}

/* ---- a line of COPY ---- */

/* The texts seen last, so that equal texts are mostly one pointer: a month has few kinds of devices, and most of the later work compares
 * them. */
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

/* Dates and arrays come from the database; anything else must not get between the quotes of the statement. */
static bool
is_plain(const char *text)
{
	return text[strspn(text, "0123456789-,{}")] == '\0';
}

static void
select_charges(struct buf *sql, const struct report_month *m, const char *table, const char *workspaces)
{
	buf_printf(sql,
	           "SELECT " CHARGE_COLUMNS " FROM %s c WHERE c.day >= '%s' AND c.day < '%s' AND c.workspace_id = ANY "
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
	select_charges(&sql, m, "charge_day", workspaces);
	/* Rows of a day that billing_day does not have are not billed. */
	buf_str(&sql, " AND EXISTS (SELECT FROM billing_day k WHERE k.day = c.day)");
	if (strcmp(m->dirty, "{}") != 0)
		buf_printf(&sql, " AND c.day <> ALL ('%s'::date[])", m->dirty);
	if (m->open) {
		buf_str(&sql, " UNION ALL ");
		select_charges(&sql, m, "open_charge_day", workspaces);
	}
	buf_str(&sql, ") TO STDOUT");
	return buf_ok(&sql, "the statement for a tenant's month", err) &&
	       db_copy_read(m->db, buf_text(&sql), out, err) && buf_ok(out, "the charges of a tenant's month", err);
}

/* workspaces: their ids as an array of SQL. Equal texts are mostly one text in memory. In no order. */
static bool
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
	return !r.bad || err_set(err, ERR_FATAL, "row %zu of the charges cannot be parsed", ret->count);
}

/* ---- the other rows ---- */

/* The columns that all rows of a workspace's pool begin with; rows are sorted by them. */
enum { DAY, BOOK, CLUSTER, OWNER, MODEL, WORKSPACE, OWN };
#define POOL_COLUMNS                                                                                             \
	"c.day - $1::date AS d, coalesce(c.price_book_id, 0) AS b, c.cluster_id, coalesce(c.owner_id, 0) AS o, " \
	"c.gpu_model, "
/* Rows of a day that billing_day does not have are not billed. */
#define STORED_DAYS                                                                 \
	"c.day >= $1::date AND c.day < $2::date AND c.day <> ALL ($3::date[]) AND " \
	"EXISTS (SELECT FROM billing_day k WHERE k.day = c.day)"
#define OPEN_DAYS "$3::date[] IS NOT NULL AND c.day >= $1::date AND c.day < $2::date"
#define POOL_ORDER(rest) " ORDER BY cluster_id, o, gpu_model COLLATE \"C\", " rest ", d, b"
/* The same rows from the table, and from the days that are not stored. */
#define BOTH(columns, table, of)                                                                         \
	"SELECT " columns " FROM " table " c WHERE " STORED_DAYS " AND " of " UNION ALL SELECT " columns \
	" FROM open_" table " c WHERE " OPEN_DAYS " AND " of
#define STORED(columns, table, of) "SELECT " columns " FROM " table " c WHERE " STORED_DAYS " AND " of

#define RESERVE_COLUMNS \
	POOL_COLUMNS "c.workspace_id, c.profile, c.units, c.reserved, c.covered, c.lent, c.unused, c.undelivered"
#define LOAN_COLUMNS                                                                                           \
	POOL_COLUMNS                                                                                           \
	"c.lender_id, c.profile, c.units, c.sharing, (SELECT t.name FROM workspace w JOIN tenant t ON t.id = " \
	"w.tenant_id WHERE w.id = c.borrower_id), c.used, c.idle, c.unmeasured, c.over, c.borrower_id"
#define POOL_DAY_COLUMNS POOL_COLUMNS "c.unreserved_idle, c.energy_mj"
#define OF_WORKSPACES(column) "c." column " = ANY ($4::integer[])"
#define RESERVE_ORDER POOL_ORDER("workspace_id") ", units DESC, profile COLLATE \"C\""
#define LOAN_ORDER POOL_ORDER("lender_id") ", borrower_id, units DESC, profile COLLATE \"C\", sharing"
#define OF_OWNER "c.owner_id = $4::integer AND c.unreserved_idle + c.energy_mj > 0"
#define IN_ORDER(rows, order) "SELECT * FROM (" rows ") x" order

/* [0]: all days are stored; [1]: some are not. */
static const struct db_stmt reserve_rows[] = {
	{"report reserves",
         IN_ORDER(STORED(RESERVE_COLUMNS, "reserve_day", OF_WORKSPACES("workspace_id")), RESERVE_ORDER)},
	{"report open reserves",
         IN_ORDER(BOTH(RESERVE_COLUMNS, "reserve_day", OF_WORKSPACES("workspace_id")), RESERVE_ORDER)},
};
static const struct db_stmt loan_rows[] = {
	{"report loans", IN_ORDER(STORED(LOAN_COLUMNS, "loan_day", OF_WORKSPACES("lender_id")), LOAN_ORDER)},
	{"report open loans", IN_ORDER(BOTH(LOAN_COLUMNS, "loan_day", OF_WORKSPACES("lender_id")), LOAN_ORDER)},
};
static const struct db_stmt meter_rows = {
	"report meters",
	"SELECT day, price_book_id, workspace_id, category, meter, unit, sku, quantity FROM open_meter_day "
	"WHERE tenant_id = $1 ORDER BY workspace_id, meter, sku, day, price_book_id"};
static const struct db_stmt pool_rows[] = {
	{"report pools", STORED(POOL_DAY_COLUMNS, "pool_day", OF_OWNER)},
	{"report open pools", BOTH(POOL_DAY_COLUMNS, "pool_day", OF_OWNER)},
};

/* Few rows: pools of today, and of days with late records. Workspace 0: idle time. */
static const struct db_stmt provisional_rows = {
	"report provisional",
	"SELECT DISTINCT c.day - $1::date, c.cluster_id, coalesce(c.owner_id, 0), c.workspace_id, c.gpu_model FROM open_provisional_day c "
	"WHERE c.day >= $1::date AND c.day < $2::date AND (c.workspace_id = ANY ($3::integer[]) OR c.workspace_id = 0) ORDER BY 1, 2, 3, 4"};

void
report_rows_fini(struct report_rows *r)
{
	PQclear(r->provisional);
	hash_fini(&r->workspace_at);
	report_charges_fini(&r->charges);
	PQclear(r->reserves);
	PQclear(r->loans);
	PQclear(r->pools);
	PQclear(r->meters);
	PQclear(r->adjustments);
	mem_free(r->at);
}

static void
add(struct report_rows *r, const struct usage_day *d)
{
	array_room(r->at, r->count, r->cap);
	r->at[r->count++] = *d;
}

/* --- one row --- */

const char *
sharing_text(int64_t sharing)
{
	static const char *const names[SHARING_MODES] = {"", "exclusive", "mig", "mps", "timeslice", "plain"};

	return sharing >= 0 && sharing < (int64_t)ARRAY_LEN(names) ? names[sharing] : "";
}

static struct pool_key
key_of(const PGresult *res, int row)
{
	return (struct pool_key){.cluster_id = res_i64(res, row, CLUSTER),
	                         .owner_id = res_i64(res, row, OWNER),
	                         .gpu_model = res_text(res, row, MODEL),
	                         .workspace_id = res_i64(res, row, WORKSPACE),
	                         .day = res_i64(res, row, DAY),
	                         .book_id = res_i64(res, row, BOOK)};
}

/* 0: none was in force. */
static bool
find_book(const struct report_rows *r, int64_t id, int64_t *ret, struct err *err)
{
	size_t book = 0;

	if (r->month->proposed) {
		*ret = 0;
		return true;
	}
	if (id != 0 && !hash_find(r->month->books, (uint64_t)id, &book))
		return err_set(err, ERR_FATAL, "price book %" PRId64 " is in force but was not loaded", id);
	*ret = id == 0 ? -1 : (int64_t)book;
	return true;
}

/* The cost centre in force when the day began; before the tenant's first one, that one. */
static const char *
cost_center_of(const struct report_rows *r, int64_t day)
{
	const PGresult *c = r->month->centers;
	int row = res_find_i64(c, &r->tenant_id, 1);

	if (row < 0)
		return r->cost_center;
	while (row + 1 < PQntuples(c) && res_i64(c, row + 1, 0) == r->tenant_id && res_i64(c, row + 1, 1) <= day)
		row++;
	return res_text(c, row, 2);
}

/* Sets the columns that all rows of a pool have. */
static bool
begin_row(const struct report_rows *r, const struct pool_key *key, struct usage_day *d, struct err *err)
{
	size_t cluster = hash_get(&r->month->cluster_at, (uint64_t)key->cluster_id);

	if (cluster == HASH_NONE)
		return err_set(err, ERR_FATAL, "cluster %" PRId64 " is charged but was not loaded", key->cluster_id);
	*d = (struct usage_day){
		.day = (int32_t)key->day,
		.cluster = res_text(r->month->clusters, (int)cluster, 1),
		.tenant = r->tenant,
		.cost_center = cost_center_of(r, key->day),
		.workspace = "",
		.gpu_model = key->gpu_model,
		.mig_profile = "",
		.sharing_mode = "",
		.klass = "",
		.instance_units = UNITS_PER_GPU,
	};
	return find_book(r, key->book_id, &d->price_book, err);
}

/* Rule 7. */
static bool
is_provisional(const struct report_rows *r, const struct pool_key *key, int64_t workspace)
{
	const int64_t at[] = {key->day, key->cluster_id, key->owner_id, workspace};
	const PGresult *p = r->provisional;
	int first = p != NULL ? res_find_i64(p, at, ARRAY_LEN(at)) : -1;

	/* one row for each model */
	for (int row = first; row >= 0 && row < PQntuples(p); row++) {
		for (int i = 0; i < (int)ARRAY_LEN(at); i++)
			if (res_i64(p, row, i) != at[i])
				return false;
		if (strcmp(res_text(p, row, 4), key->gpu_model) == 0)
			return true;
	}
	return false;
}

static bool
begin_workspace_row(const struct report_rows *r, const struct pool_key *key, const char *profile, int64_t units,
                    struct usage_day *d, struct err *err)
{
	size_t at = hash_get(&r->workspace_at, (uint64_t)key->workspace_id);

	if (!begin_row(r, key, d, err))
		return false;
	if (at == HASH_NONE)
		return err_set(err, ERR_FATAL, "workspace %" PRId64 " is charged but was not loaded",
		               key->workspace_id);
	d->workspace = res_text(r->workspaces, (int)at, 4);
	d->mig_profile = profile;
	d->instance_units = units;
	d->provisional = is_provisional(r, key, key->workspace_id);
	return true;
}

/* --- commitments and their parts --- */

static bool
same_texts(const PGresult *res, int a, int b, const int *columns, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(res_text(res, a, columns[i]), res_text(res, b, columns[i])) != 0)
			return false;
	return true;
}

struct commitment {
	int64_t number;
	int128 reserved, covered, lent, unused, undelivered;
};
/* The commitments of one pool, workspace, day and book. */
struct commitments {
	struct commitment *at;
	size_t count, cap;
	int row;              /* of reserve_rows: the first that is not among them */
	struct pool_key pool; /* of the commitments, if there are any */
};

/* The same number in all books of a day; rating decides whether they are one. Unique over all tenants. */
static int64_t
number_of(const struct report_rows *r, int row)
{
	const PGresult *res = r->reserves;
	static const int pool[] = {CLUSTER, OWNER, MODEL, WORKSPACE, DAY}, kind[] = {OWN, OWN + 1};
	int first = row;

	for (int k = row - 1; k >= 0 && same_texts(res, row, k, pool, ARRAY_LEN(pool)); k--)
		if (same_texts(res, row, k, kind, ARRAY_LEN(kind)))
			first = k;
	return (r->tenant_id << 32) + first + 1;
}

static bool
add_commitment(struct report_rows *r, struct commitments *c, int row, const struct pool_key *key, struct err *err)
{
	static const enum charge_kind kinds[] = {CHARGE_COMMITMENT, CHARGE_UNUSED, CHARGE_UNDELIVERED};
	struct commitment x = {.number = number_of(r, row)};
	int128 *const to[] = {&x.reserved, &x.covered, &x.lent, &x.unused, &x.undelivered};
	const int128 *const amounts[] = {&x.reserved, &x.unused, &x.undelivered};
	struct usage_day d;

	for (int i = 0; i < (int)ARRAY_LEN(to); i++)
		if (!res_i128(r->reserves, row, OWN + 2 + i, 0, to[i], err))
			return false;
	if (!begin_workspace_row(r, key, res_text(r->reserves, row, OWN), res_i64(r->reserves, row, OWN + 1), &d, err))
		return false;
	d.klass = "reserved";
	d.reservation = x.number;
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		d.kind = kinds[k];
		d.unit_ns = *amounts[k];
		if (d.unit_ns > 0)
			add(r, &d);
	}
	array_room(c->at, c->count, c->cap);
	c->at[c->count++] = x;
	return true;
}

/* Advances c to the commitments of this pool, which may have none. NULL: past all. */
static bool
seek_commitments(struct report_rows *r, struct commitments *c, const struct pool_key *pool, struct err *err)
{
	int rows = PQntuples(r->reserves);

	if (pool != NULL && c->count > 0 && pool_key_compare(&c->pool, pool) == 0)
		return true;
	c->count = 0;
	while (c->row < rows) {
		struct pool_key key = key_of(r->reserves, c->row);

		if (pool != NULL && pool_key_compare(&key, pool) > 0)
			break;
		if (c->count > 0 && pool_key_compare(&c->pool, &key) != 0)
			c->count = 0;
		c->pool = key;
		if (!add_commitment(r, c, c->row++, &key, err))
			return false;
	}
	if (pool != NULL && c->count > 0 && pool_key_compare(&c->pool, pool) != 0)
		c->count = 0;
	return true;
}

/* Splits the first `amount` off a row, in the order of its states. */
static struct usage_day
cut(struct usage_day *d, int128 amount)
{
	int128 *const from[] = {&d->used_unit_ns, &d->idle_unit_ns, &d->unmeasured_unit_ns};
	struct usage_day part = *d;
	int128 *const to[] = {&part.used_unit_ns, &part.idle_unit_ns, &part.unmeasured_unit_ns};

	for (size_t i = 0; i < ARRAY_LEN(from); i++) {
		*to[i] = *from[i] < amount ? *from[i] : amount;
		*from[i] -= *to[i];
		amount -= *to[i];
	}
	d->over_unit_ns = d->energy_mj = 0;
	return part;
}

static int128
held_of(const struct usage_day *d)
{
	return d->used_unit_ns + d->idle_unit_ns + d->unmeasured_unit_ns;
}

/* Rules 2 and 3. */
static bool
add_parts(struct report_rows *r, struct commitments *c, struct usage_day *d, struct err *err)
{
	for (size_t i = 0; i < c->count; i++) {
		int128 *room = d->kind == CHARGE_LENT ? &c->at[i].lent : &c->at[i].covered;
		int128 held = held_of(d), amount = held < *room ? held : *room;
		struct usage_day part;

		if (amount == 0)
			continue;
		part = cut(d, amount);
		part.reservation = c->at[i].number;
		*room -= amount;
		add(r, &part);
	}
	if (held_of(d) != 0)
		return err_set(err, ERR_FATAL, "%s/%s: more %s on day %" PRId32 " than was reserved", d->tenant,
		               d->workspace, d->kind == CHARGE_LENT ? "lent" : "covered", d->day);
	return true;
}

/* --- the tables --- */

/* Rule 1. */
static bool
add_charge(struct report_rows *r, struct commitments *c, const struct report_charge *from, struct err *err)
{
	const bool covered = strcmp(from->klass, "covered") == 0;
	struct usage_day d;

	if (!begin_workspace_row(r, &from->key, from->profile, from->units, &d, err))
		return false;
	d.sharing_mode = sharing_text(from->sharing);
	d.used_unit_ns = from->used;
	d.idle_unit_ns = from->idle;
	d.unmeasured_unit_ns = from->unmeasured;
	d.over_unit_ns = from->over;
	d.energy_mj = from->energy_mj;
	if (!covered || held_of(&d) == 0) {
		d.kind = CHARGE_USAGE;
		d.klass = covered ? "on-demand" : from->klass;
		add(r, &d);
		return true;
	}
	d.kind = CHARGE_COVERED;
	d.klass = "reserved";
	return seek_commitments(r, c, &from->key, err) && add_parts(r, c, &d, err);
}

static bool
add_loan(struct report_rows *r, struct commitments *c, int row, const struct pool_key *key, struct err *err)
{
	const PGresult *res = r->loans;
	struct usage_day d;
	int128 *const to[] = {&d.used_unit_ns, &d.idle_unit_ns, &d.unmeasured_unit_ns, &d.over_unit_ns};

	if (!begin_workspace_row(r, key, res_text(res, row, OWN), res_i64(res, row, OWN + 1), &d, err))
		return false;
	for (int i = 0; i < (int)ARRAY_LEN(to); i++)
		if (!res_i128(res, row, OWN + 4 + i, 0, to[i], err))
			return false;
	d.sharing_mode = sharing_text(res_i64(res, row, OWN + 2));
	d.kind = CHARGE_LENT;
	d.klass = "reserved";
	d.counterparty = res_text(res, row, OWN + 3);
	d.borrower = res_text(res, row, OWN + 8);
	return seek_commitments(r, c, key, err) && add_parts(r, c, &d, err);
}

static bool
add_charges(struct report_rows *r, struct err *err)
{
	struct commitments c = {0};
	int loan = 0, loans = PQntuples(r->loans);
	bool ok = true;

	if (loans > 0 || PQntuples(r->reserves) > 0)
		report_charges_sort(&r->charges);
	for (size_t row = 0; ok && row <= r->charges.count; row++) {
		const struct report_charge *charge = row < r->charges.count ? &r->charges.at[row] : NULL;

		/* Loans of the pools before this one, and of this one. */
		for (; ok && loan < loans; loan++) {
			struct pool_key key = key_of(r->loans, loan);

			if (charge != NULL && pool_key_compare(&key, &charge->key) > 0)
				break;
			ok = add_loan(r, &c, loan, &key, err);
		}
		ok = ok && (charge == NULL || add_charge(r, &c, charge, err));
	}
	ok = ok && seek_commitments(r, &c, NULL, err);
	mem_free(c.at);
	return ok;
}

/* Rule 4. */
static bool
add_pools(struct report_rows *r, struct err *err)
{
	for (int row = 0; row < PQntuples(r->pools); row++) {
		struct pool_key key = key_of(r->pools, row);
		struct usage_day d;

		if (!begin_row(r, &key, &d, err) || !res_i128(r->pools, row, WORKSPACE, 0, &d.unit_ns, err) ||
		    !res_i128(r->pools, row, WORKSPACE + 1, 0, &d.energy_mj, err))
			return false;
		d.kind = CHARGE_DEDICATED;
		d.provisional = is_provisional(r, &key, 0);
		d.klass = "dedicated";
		add(r, &d);
	}
	return true;
}

/* Rule 5. */
static bool
add_shared(struct report_rows *r, struct err *err)
{
	const struct shared_month *s = r->month->shared;

	if (s == NULL)
		return true;
	for (size_t i = shared_month_first(s, r->tenant_id); i < s->count && s->parts[i].tenant == r->tenant_id; i++) {
		struct pool_key key = key_of(s->pools, s->parts[i].pool);
		struct usage_day d;

		if (!begin_row(r, &key, &d, err))
			return false;
		d.kind = CHARGE_SHARED;
		d.provisional = is_provisional(r, &key, 0);
		d.klass = "dedicated";
		d.unit_ns = s->parts[i].unit_ns;
		d.origin_ratio = s->parts[i].ratio;
		if (!res_i128(s->pools, s->parts[i].pool, WORKSPACE, 0, &d.origin_unit_ns, err))
			return false;
		add(r, &d);
	}
	return true;
}

static bool
add_meters(struct report_rows *r, struct err *err)
{
	enum { METER_DAY, METER_BOOK, METER_WORKSPACE, CATEGORY, METER, UNIT, SKU, QUANTITY };

	for (int row = 0; row < PQntuples(r->meters); row++) {
		size_t at = hash_get(&r->workspace_at, (uint64_t)res_i64(r->meters, row, METER_WORKSPACE));
		struct usage_day d = {
			.day = (int32_t)res_i64(r->meters, row, METER_DAY),
			.kind = CHARGE_METER,
			.cluster = "",
			.tenant = r->tenant,
			.cost_center = cost_center_of(r, res_i64(r->meters, row, METER_DAY)),
			.workspace = at == HASH_NONE ? "" : res_text(r->workspaces, (int)at, 4),
			.gpu_model = "",
			.mig_profile = "",
			.sharing_mode = "",
			.klass = "",
			.category = res_text(r->meters, row, CATEGORY),
			.meter = res_text(r->meters, row, METER),
			.unit = res_text(r->meters, row, UNIT),
			.meter_sku = res_text(r->meters, row, SKU),
		};

		if (!find_book(r, res_i64(r->meters, row, METER_BOOK), &d.price_book, err) ||
		    !res_i128(r->meters, row, QUANTITY, QUANTITY_SCALE, &d.quantity, err))
			return false;
		add(r, &d);
	}
	return true;
}

static bool
add_adjustments(struct report_rows *r, struct err *err)
{
	struct usage_day d;

	for (int row = 0; row < PQntuples(r->adjustments); row++) {
		if (!adjustment_day(r->adjustments, row, &d, err))
			return false;
		d.tenant = r->tenant;
		d.cost_center = cost_center_of(r, d.day);
		add(r, &d);
	}
	return true;
}

bool
report_rows_load(struct report_rows *r, struct err *err)
{
	const struct report_month *m = r->month;
	in_place(db_array) struct db_array ids = {0};
	struct db_args a = {0}, own, id = {0}, open = {0};

	db_array_init(&ids);
	for (int i = r->first; i < r->end; i++) {
		if (res_null(r->workspaces, i, 3))
			continue;
		array_i64(&ids, res_i64(r->workspaces, i, 3));
		hash_put(&r->workspace_at, (uint64_t)res_i64(r->workspaces, i, 3), (size_t)i);
	}
	arg_text(&a, m->in->period_start);
	arg_text(&a, m->in->period_end);
	arg_text(&a, m->dirty);
	own = a;
	arg_array(&a, &ids);
	arg_i64(&own, r->tenant_id);
	arg_i64(&id, r->tenant_id);
	const struct db_call calls[] = {{&reserve_rows[m->open], &a, &r->reserves},
	                                {&loan_rows[m->open], &a, &r->loans},
	                                {&pool_rows[m->open], &own, &r->pools},
	                                {&meter_rows, &id, &r->meters}};
	arg_text(&open, m->in->period_start);
	arg_text(&open, m->in->period_end);
	arg_array(&open, &ids);
	return db_run_all(m->db, calls, ARRAY_LEN(calls), err) &&
	       (!m->open || m->final || db_run(m->db, &provisional_rows, &open, &r->provisional, err)) &&
	       (ids.count == 0 || report_charges_load(m, buf_text(&ids.text), &r->charges, err)) &&
	       adjustment_rows(m->db, m->in->period, r->tenant_id, &r->adjustments, err) && add_charges(r, err) &&
	       add_pools(r, err) && add_shared(r, err) && add_meters(r, err) && add_adjustments(r, err);
}

/* aggregator/store/db/db_value.c - parameters of statements and values of results. */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/store/db/db.h"
#include "common/base/digest.h"
#include "common/conf/json.h"
#include "common/base/money.h"

#define ARRAY_MAX_BYTES (256u << 20)

/* Types of pg_type with fixed OIDs. */
enum { OID_BOOL = 16, OID_BYTEA = 17, OID_INT8 = 20, OID_INT2 = 21, OID_INT4 = 23, OID_JSON = 114, OID_JSONB = 3802 };

static int
next_arg(struct db_args *a, const char *value, int length, int format)
{
	int i = a->count++;

	ASSERT(i < DB_MAX_ARGS);
	a->value[i] = value;
	a->length[i] = length;
	a->format[i] = format;
	return i;
}

void
arg_text(struct db_args *a, const char *s)
{
	next_arg(a, s, 0, 0);
}

void
arg_i64(struct db_args *a, int64_t v)
{
	int i = next_arg(a, NULL, 0, 0);

	snprintf(a->number[i], sizeof(a->number[i]), "%" PRId64, v);
	a->value[i] = a->number[i];
}

void
arg_bool(struct db_args *a, bool v)
{
	next_arg(a, v ? "t" : "f", 0, 0);
}

void
arg_bytes(struct db_args *a, const void *p, size_t n)
{
	ASSERT(n <= INT32_MAX);
	next_arg(a, p, (int)n, 1);
}

/* timestamptz would round; here a time is never moved forward. */
void
arg_time(struct db_args *a, int64_t wall_ns)
{
	int i = next_arg(a, NULL, 0, 0);

	a->value[i] = time_format(wall_ns - wall_ns % NS_PER_US, a->number[i]);
}

void
db_array_init(struct db_array *a)
{
	buf_init(&a->text, ARRAY_MAX_BYTES);
	a->count = 0;
	a->closed = false;
	buf_char(&a->text, '{');
}

void
db_array_fini(struct db_array *a)
{
	buf_fini(&a->text);
}

static void
separate(struct db_array *a)
{
	ASSERT(!a->closed);
	if (a->count++ > 0)
		buf_char(&a->text, ',');
}

void
array_i64(struct db_array *a, int64_t v)
{
	separate(a);
	buf_i64(&a->text, v);
}

void
array_text(struct db_array *a, const char *s)
{
	separate(a);
	if (!s) {
		buf_str(&a->text, "NULL");
		return;
	}
	buf_char(&a->text, '"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			buf_char(&a->text, '\\');
		buf_char(&a->text, *s);
	}
	buf_char(&a->text, '"');
}

void
array_bytes(struct db_array *a, const void *p, size_t n)
{
	owned(mem) char *hex = mem_alloc(2 * n + 1);

	separate(a);
	hex_encode(p, n, hex);
	buf_str(&a->text, "\"\\\\x");
	buf_str(&a->text, hex);
	buf_char(&a->text, '"');
}

void
array_time(struct db_array *a, int64_t wall_ns)
{
	char text[TIME_TEXT_SIZE];

	array_text(a, time_format(wall_ns - wall_ns % NS_PER_US, text));
}

void
arg_array(struct db_args *args, struct db_array *a)
{
	if (!a->closed)
		buf_char(&a->text, '}');
	a->closed = true;
	/* An array that did not fit must not be shortened silently: the server refuses the torn text. */
	next_arg(args, a->text.over ? "{too large" : buf_text(&a->text), 0, 0);
}

/* Dimensions, whether there are NULLs, the type of the elements; then how many there are and the number of the first. */
struct blobs_head {
	uint32_t dimensions, has_null, type, count, first;
};

void
db_blobs_clear(struct db_blobs *b)
{
	static const struct blobs_head unknown;

	buf_clear(&b->bytes);
	buf_add(&b->bytes, &unknown, sizeof(unknown));
	b->count = 0;
}

void
db_blobs_init(struct db_blobs *b)
{
	buf_init(&b->bytes, ARRAY_MAX_BYTES);
	db_blobs_clear(b);
}

void
db_blobs_fini(struct db_blobs *b)
{
	buf_fini(&b->bytes);
}

void
blobs_add(struct db_blobs *b, const void *p, size_t n)
{
	uint32_t len = htobe32((uint32_t)n);

	ASSERT(n <= INT32_MAX);
	buf_add(&b->bytes, &len, sizeof(len));
	buf_add(&b->bytes, p, n);
	b->count++;
}

void
arg_blobs(struct db_args *args, struct db_blobs *b)
{
	const struct blobs_head head = {htobe32(1), 0, htobe32(OID_BYTEA), htobe32(b->count), htobe32(1)};

	ASSERT(b->count > 0);
	memcpy(b->bytes.data, &head, sizeof(head));
	/* An array that did not fit lacks its end, and the server refuses it. */
	arg_bytes(args, b->bytes.data, b->bytes.len);
}

void
db_columns_init(struct db_columns *c, size_t count)
{
	ASSERT(count <= DB_MAX_ARGS);
	c->count = count;
	for (size_t i = 0; i < count; i++)
		db_array_init(&c->col[i]);
}

void
db_columns_fini(struct db_columns *c)
{
	for (size_t i = 0; i < c->count; i++)
		db_array_fini(&c->col[i]);
}

void
arg_columns(struct db_args *args, struct db_columns *c)
{
	for (size_t i = 0; i < c->count; i++)
		arg_array(args, &c->col[i]);
}

bool
res_null(const PGresult *r, int row, int col)
{
	return PQgetisnull(r, row, col) != 0;
}

const char *
res_text(const PGresult *r, int row, int col)
{
	return PQgetvalue(r, row, col);
}

int64_t
res_i64(const PGresult *r, int row, int col)
{
	return strtoll(PQgetvalue(r, row, col), NULL, 10);
}

static int
compare_key(const PGresult *r, int row, const int64_t *key, int n)
{
	for (int i = 0; i < n; i++) {
		int64_t v = res_i64(r, row, i);

		if (v != key[i])
			return v < key[i] ? -1 : 1;
	}
	return 0;
}

int
res_find_i64(const PGresult *r, const int64_t *key, int n)
{
	int low = 0, high = PQntuples(r);

	while (low < high) {
		int middle = low + (high - low) / 2;

		if (compare_key(r, middle, key, n) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < PQntuples(r) && compare_key(r, low, key, n) == 0 ? low : -1;
}

bool
res_bool(const PGresult *r, int row, int col)
{
	return PQgetvalue(r, row, col)[0] == 't';
}

bool
db_damaged(struct err *err)
{
	if (err != NULL && err->kind == ERR_INVALID)
		err->kind = ERR_FATAL;
	return false;
}

bool
res_i128(const PGresult *r, int row, int col, int scale, int128 *ret, struct err *err)
{
	if (!decimal_parse(PQgetvalue(r, row, col), scale, ret, err))
		return err_prefix(err, "column %s", PQfname(r, col)) || db_damaged(err);
	return true;
}

static void
value_json(const PGresult *r, int row, int col, struct buf *out)
{
	const char *text = PQgetvalue(r, row, col);

	if (PQgetisnull(r, row, col)) {
		buf_str(out, "null");
		return;
	}
	switch (PQftype(r, col)) {
	case OID_BOOL: buf_str(out, text[0] == 't' ? "true" : "false"); break;
	case OID_INT2:
	case OID_INT4:
	case OID_INT8:
	case OID_JSON:
	case OID_JSONB: buf_str(out, text); break;
	default: json_write_string(text, out);
	}
}

void
res_json_row(const PGresult *r, int row, struct buf *out)
{
	int cols = PQnfields(r);

	buf_char(out, '{');
	for (int col = 0; col < cols; col++) {
		if (col > 0)
			buf_char(out, ',');
		json_write_string(PQfname(r, col), out);
		buf_char(out, ':');
		value_json(r, row, col, out);
	}
	buf_char(out, '}');
}

static void
rows_json(const PGresult *r, int rows, struct buf *out)
{
	buf_char(out, '[');
	for (int row = 0; row < rows; row++) {
		if (row > 0)
			buf_str(out, ",\n");
		res_json_row(r, row, out);
	}
	buf_char(out, ']');
}

void
res_json(const PGresult *r, struct buf *out)
{
	rows_json(r, PQntuples(r), out);
}

bool
res_json_page(const PGresult *r, const char *name, int64_t limit, struct buf *out, struct err *err)
{
	bool more = PQntuples(r) > limit;
	int rows = more ? (int)limit : PQntuples(r);

	buf_printf(out, "{\"%s\":", name);
	rows_json(r, rows, out);
	buf_printf(out, ",\"next\":%s}\n", more ? res_text(r, rows - 1, 0) : "null");
	return buf_ok(out, "the list", err);
}

int64_t
hour_floor(const struct db_ledger *l, int64_t wall_ns)
{
	int64_t rest = (wall_ns - l->hour_phase_ns) % NS_PER_HOUR;

	return wall_ns - (rest < 0 ? rest + NS_PER_HOUR : rest);
}

int64_t
hour_ceil(const struct db_ledger *l, int64_t wall_ns)
{
	int64_t floor = hour_floor(l, wall_ns);

	return floor == wall_ns ? floor : floor + NS_PER_HOUR;
}

/* aggregator/store/usage/usage_query.c - usage by group, page by page, as JSON or CSV.
 *
 * A page ends with a cursor: the range of time, the keys of its last group, and a mark of the question. Groups come in the order of
 * their keys, so the next page begins behind that group, and what arrives in between moves nothing: a group is on exactly
 * one page. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/usage/usage.h"
#include "aggregator/store/usage/usage_cost.h"
#include "aggregator/store/usage/usage_group.h"
#include "aggregator/store/usage/usage_write.h"
#include "common/base/digest.h"
#include "common/conf/json.h"

#define USAGE_SQL_MAX (64u << 10)
#define CURSOR_MAX (16u << 10)
#define MARK_SIZE 8
#define LONG_RANGE (2 * NS_PER_DAY)

static void
mark_of(const struct usage_query *q, char out[2 * MARK_SIZE + 1])
{
	const char *const parts[] = {q->group_by, q->tenant, q->workspace, q->cluster, q->user, q->gpu_model, q->node};
	uint8_t sha[SHA256_SIZE];
	in_place(buf) struct buf b = {0};

	buf_init(&b, 1u << 20);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (parts[i] != NULL)
			buf_printf(&b, "%zu:%zu:%s", i, strlen(parts[i]), parts[i]);
		else
			buf_char(&b, '-');
	buf_str(&b, q->cost ? "cost" : "");
	sha256(b.data, b.len, sha);
	hex_encode(sha, MARK_SIZE, out);
}

static bool
write_cursor(const struct usage_query *q, const struct grouping *g, const int64_t range[2], const PGresult *r, int row,
             struct buf *out, struct err *err)
{
	in_place(buf) struct buf b = {0};
	char mark[2 * MARK_SIZE + 1];

	buf_init(&b, CURSOR_MAX);
	mark_of(q, mark);
	buf_printf(&b, "[\"%s\",%" PRId64 ",%" PRId64, mark, range[0], range[1]);
	for (size_t i = 0; i < g->count; i++) {
		buf_char(&b, ',');
		json_write_string(res_text(r, row, (int)i), &b);
	}
	buf_char(&b, ']');
	if (!buf_ok(&b, "the cursor", err))
		return false;
	for (size_t i = 0; i < b.len; i++)
		buf_printf(out, "%02x", (unsigned)(unsigned char)b.data[i]);
	return buf_ok(out, "the cursor", err);
}

/* The range and the keys; false for anything that write_cursor has not written for this question. */
static bool
read_cursor(const struct usage_query *q, const struct grouping *g, int64_t range[2], struct db_array *after,
            struct err *err)
{
	size_t len = strlen(q->cursor);
	owned(mem) uint8_t *bytes = mem_array(len / 2 + 1, 1);
	owned(json) json_t *list = NULL;
	char mark[2 * MARK_SIZE + 1];

	if (len > 2 * CURSOR_MAX || len % 2 != 0 || !hex_decode(q->cursor, bytes, len / 2, NULL) ||
	    !json_parse("cursor", (const char *)bytes, len / 2, &list, NULL) || json_array_size(list) != 3 + g->count ||
	    !json_is_integer(json_array_get(list, 1)) || !json_is_integer(json_array_get(list, 2)))
		return err_set(err, ERR_INVALID, "cursor: it is not the next of an answer to this question");
	mark_of(q, mark);
	if (!json_is_string(json_array_get(list, 0)) || strcmp(json_string_value(json_array_get(list, 0)), mark) != 0)
		return err_set(err, ERR_INVALID,
		               "cursor: it is the next of another question: group_by and filters must be the same");
	range[0] = json_integer_value(json_array_get(list, 1));
	range[1] = json_integer_value(json_array_get(list, 2));
	for (size_t i = 0; i < g->count; i++) {
		if (!json_is_string(json_array_get(list, 3 + i)))
			return err_set(err, ERR_INVALID, "cursor: it is not the next of an answer to this question");
		array_text(after, json_string_value(json_array_get(list, 3 + i)));
	}
	return true;
}

static bool
write_group(const struct usage_query *q, const struct grouping *g, const struct usage_cost *cost, const PGresult *r,
            int row, struct usage_row *o, struct err *err)
{
	int128 v[USAGE_VALUES] = {0};

	row_begin(o);
	for (size_t i = 0; i < g->count; i++)
		row_text(o, g->name[i], row < 0 ? "" : res_text(r, row, (int)i));
	if (row >= 0 && !usage_read(r, row, (int)g->count, g->by_state ? 1 : USAGE_VALUES, v, err))
		return false;
	if (!g->by_state && !row_values(o, v, q->exact, err))
		return false;
	if (g->by_state && q->exact)
		row_decimal(o, "unit", "_ns", v[0], 0);
	else if (g->by_state)
		row_hours(o, "", v[0]);
	if (cost != NULL)
		usage_cost_write_group(cost, row, o);
	row_end(o);
	return true;
}

/* Row -1 of the result is the line that names the columns. */
static bool
write_csv(const struct usage_query *q, const struct grouping *g, const PGresult *r, int rows, struct buf *out,
          struct err *err)
{
	for (int row = -1; row < rows; row++) {
		struct usage_row o = {.out = out, .form = row < 0 ? ROW_HEAD : ROW_CSV};

		if (!write_group(q, g, NULL, r, row, &o, err))
			return false;
	}
	return buf_ok(out, "the answer", err);
}

static bool
write_json(const struct usage_query *q, const struct grouping *g, const struct usage_cost *cost, const PGresult *r,
           int rows, const int64_t range[2], const struct buf *next, struct buf *out, struct err *err)
{
	struct usage_row whole = {.out = out, .form = ROW_JSON};

	row_range(&whole, range[0], range[1]);
	row_name(&whole, "groups", "");
	buf_char(out, '[');
	for (int row = 0; row < rows; row++) {
		struct usage_row o = {.out = out, .form = ROW_JSON};

		buf_str(out, row > 0 ? ",\n" : "");
		if (!write_group(q, g, cost, r, row, &o, err))
			return false;
	}
	buf_char(out, ']');
	if (cost != NULL && q->cursor == NULL)
		usage_cost_write_rest(cost, &whole);
	row_name(&whole, "next", "");
	if (next->len > 0)
		buf_printf(out, "\"%s\"", buf_text(next));
	else
		buf_str(out, "null");
	row_end(&whole);
	buf_char(out, '\n');
	return buf_ok(out, "the answer", err);
}

static bool
answer(struct db *db, const struct usage_query *q, struct buf *out, struct buf *ret_next, struct err *err)
{
	in_place(db_array) struct db_array labels = {0}, after = {0};
	owned(mem) struct grouping *g = mem_array(1, sizeof(*g));
	owned(result) PGresult *r = NULL;
	owned(usage_cost) struct usage_cost *cost = NULL;
	in_place(buf) struct buf sql = {0};
	int64_t range[2] = {q->from_ns, q->to_ns};
	struct db_args a = {0};
	int rows;

	db_array_init(&labels);
	db_array_init(&after);
	buf_init(&sql, USAGE_SQL_MAX);
	if (!grouping_parse(q->group_by, g, err) || (q->cursor != NULL && !read_cursor(q, g, range, &after, err)) ||
	    !usage_widen(db, &range[0], &range[1], err) || (q->cost && !usage_widen_days(db, range, err)))
		return false;
	g->long_range = range[1] - range[0] >= LONG_RANGE;
	arg_time(&a, range[0]);
	arg_time(&a, range[1]);
	grouping_sql(g, q, &labels, q->cursor != NULL ? &after : NULL, &sql, &a);
	if (!buf_ok(&sql, "the statement", err) || !db_run_text(db, buf_text(&sql), &a, &r, err))
		return false;
	rows = PQntuples(r) > q->limit ? (int)q->limit : PQntuples(r);
	if ((PQntuples(r) > rows && !write_cursor(q, g, range, r, rows - 1, ret_next, err)) ||
	    (q->cost && !usage_cost_load(db, q, g, range, r, rows, &cost, err)))
		return false;
	return q->csv ? write_csv(q, g, r, rows, out, err) : write_json(q, g, cost, r, rows, range, ret_next, out, err);
}

/* With costs it is many statements: one snapshot for all of them. */
bool
store_usage(struct db *db, const struct usage_query *q, struct buf *out, struct buf *ret_next, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	if (!q->cost)
		return answer(db, q, out, ret_next, err);
	return usage_cost_check(q, err) && db_tx_begin_snapshot(&tx, db, DB_WORK_REPORT, err) &&
	       answer(db, q, out, ret_next, err) && db_tx_commit(&tx, err);
}

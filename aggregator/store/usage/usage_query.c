/* aggregator/store/usage/usage_query.c - usage by group, page by page, as JSON or CSV.
 *
 * A page ends with a cursor: the range of time, the keys of its last group, and a digest of the query. Groups come in the order of
 * their keys, so the next page begins after that group, and records that arrive in between move nothing: a group is on exactly
 * one page. */
#include "aggregator/store/usage/usage_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/conf/json.h"

/* --- group_by --- */

/* The columns of usage_rows that a key is made of. Rows are summed by these first, because numbers are cheap to group
 * and names are not. */
enum {
	ID_HOUR = 1,
	ID_NODE = 2,
	ID_DEVICE = 4,
	ID_HOLDER = 8,
	ID_WORKSPACE = 16,
	ID_SHARING = 32,
	ID_METHOD = 64,
	ID_DAY = 128, /* the hour too, but any of its day will do */
	ID_CLUSTER = 256,
	ID_MODEL = 512,
	ID_OWNER = 1024,
	IDS_OF_DAYS = ID_WORKSPACE | ID_SHARING | ID_METHOD | ID_DAY
};
static const struct id_column {
	unsigned id;
	const char *name, *sql, *absent; /* absent: its value in a row that was summed over it */
} id_columns[] = {
	{ID_HOUR | ID_DAY, "hour", "u.hour", "NULL::timestamptz"},
	{ID_NODE, "node_id", "u.node_id", "NULL::integer"},
	{ID_DEVICE, "device_id", "u.device_id", "NULL::integer"},
	{ID_HOLDER, "holder_id", "u.holder_id", "NULL::bigint"},
	{ID_WORKSPACE, "workspace_id", "u.workspace_id", "NULL::integer"},
	{ID_SHARING, "sharing", "u.sharing", "NULL::smallint"},
	{ID_METHOD, "method", "u.method", "NULL::smallint"},
	{ID_CLUSTER, "cluster_id", "k.cluster_id", "NULL::integer"},
	{ID_MODEL, "gpu_model", "m.short_model", "NULL::text"},
	{ID_OWNER, "owner_id", "o.tenant_id", "NULL::integer"},
};

/* The keys of group_by and their expressions. "state" turns columns into rows. Labels are not here: their keys are the caller's. */
static const struct group_key {
	const char *name, *sql;
	unsigned ids;
} group_keys[] = {
	{"cluster", "c.name", ID_CLUSTER},
	{"tenant", "coalesce(t.name, '')", ID_WORKSPACE},
	{"workspace", "coalesce(w.name, '')", ID_WORKSPACE},
	{"user", "coalesce(h.user_name, '')", ID_HOLDER},
	{"workload", USAGE_WORKLOAD, ID_HOLDER},
	{"gpu_model", "u.gpu_model", ID_MODEL},
	{"profile", "d.profile", ID_DEVICE},
	{"node", "n.name", ID_NODE},
	{"gpu", "g.uuid", ID_DEVICE},
	{"sharing", "sharing_name(u.sharing)", ID_SHARING},
	{"day", "to_char(u.hour AT TIME ZONE (SELECT zone FROM ledger), 'YYYY-MM-DD')", ID_DAY},
	{"hour", "rfc3339(u.hour)", ID_HOUR},
	{"method", "CASE WHEN u.workspace_id IS NULL THEN '' ELSE method_name(u.method) END", ID_METHOD | ID_WORKSPACE},
	{"state", "s.state", 0},
};
#define LABEL_PREFIX "label:"

/* Sources: the hours of the range; or its days, where they are folded and wholly inside, and the hours of the other days. */
#define FROM_HOURS "usage_rows($1, $2) u "
#define STATES                                                                                                              \
	"r.used, r.idle, r.unmeasured, r.unallocated, r.stranded, r.down, r.unknown, r.over, r.clock_adjust, r.energy_mj, " \
	"r.memory_byte_ms, coalesce(r.sm_active, 0) AS sm_active, coalesce(r.sm_measured, 0) AS sm_measured, "              \
	"coalesce(r.peak_memory_bytes, 0) AS peak_memory_bytes "
#define FROM_DAYS                                                                                    \
	"(SELECT b.starts_at AS hour, r.workspace_id, r.sharing, r.method, " STATES                  \
	"FROM billing_day b JOIN usage_daily r ON r.day = b.day "                                    \
	"WHERE NOT b.dirty AND b.starts_at >= $1 AND b.ends_at <= $2 "                               \
	"UNION ALL SELECT r.hour, r.workspace_id, r.sharing, r.method, " STATES                      \
	"FROM billing_day b, LATERAL usage_rows(greatest(b.starts_at, $1), least(b.ends_at, $2)) r " \
	"WHERE b.starts_at < $2 AND b.ends_at > $1 AND (b.dirty OR b.starts_at < $1 OR b.ends_at > $2)) u "

#define STATE_ROWS                                                                             \
	", LATERAL (VALUES ('used', u.used), ('idle', u.idle), ('unmeasured', u.unmeasured), " \
	"('unallocated', u.unallocated), ('stranded', u.stranded), ('down', u.down), "         \
	"('unknown', u.unknown)) AS s(state, unit_ns) "

static bool
add_label(struct grouping *g, const char *word, size_t len, struct err *err)
{
	const char *key = word + strlen(LABEL_PREFIX);
	size_t key_len = len - strlen(LABEL_PREFIX);
	const char *fault = label_key_fault(key, key_len);

	if (fault != NULL)
		return err_set(err, ERR_INVALID, "group_by: the label \"%.*s\" %s", (int)(key_len < 64 ? key_len : 64),
		               key, fault);
	if (g->label_count == USAGE_LABELS)
		return err_set(err, ERR_INVALID, "group_by: more than %u labels", USAGE_LABELS);
	snprintf(g->name[g->count], USAGE_KEY_NAME, "%.*s", (int)len, word);
	g->label[g->count] = ++g->label_count;
	g->ids |= ID_HOLDER;
	return true;
}

static bool
add_known(struct grouping *g, const char *word, size_t len, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(group_keys); i++) {
		if (strlen(group_keys[i].name) != len || memcmp(group_keys[i].name, word, len) != 0)
			continue;
		snprintf(g->name[g->count], USAGE_KEY_NAME, "%s", group_keys[i].name);
		g->sql[g->count] = group_keys[i].sql;
		g->ids |= group_keys[i].ids;
		g->by_state = g->by_state || strcmp(group_keys[i].name, "state") == 0;
		return true;
	}
	return err_set(
		err, ERR_INVALID,
		"group_by: \"%.*s\" is not one of cluster, tenant, workspace, user, workload, label:KEY, gpu_model, "
		"profile, node, gpu, sharing, day, hour, state, method",
		(int)(len < 64 ? len : 64), word);
}

static bool
add_key(struct grouping *g, const char *word, size_t len, struct err *err)
{
	bool label = len > strlen(LABEL_PREFIX) && memcmp(word, LABEL_PREFIX, strlen(LABEL_PREFIX)) == 0;

	for (size_t i = 0; i < g->count; i++)
		if (strlen(g->name[i]) == len && memcmp(g->name[i], word, len) == 0)
			return err_set(err, ERR_INVALID, "group_by: %s is named twice", g->name[i]);
	/* Keys are different, and of each kind there are at most as many as there is room for. */
	ASSERT(g->count < USAGE_KEYS);
	if (!(label ? add_label(g, word, len, err) : add_known(g, word, len, err)))
		return false;
	g->count++;
	return true;
}

/* "tenant,label:team,day"; an error names group_by and the word. */
static bool
grouping_parse(const char *text, struct grouping *g, struct err *err)
{
	for (const char *p = text; *p;) {
		size_t len = strcspn(p, ",");

		if (!add_key(g, p, len, err))
			return false;
		p += len;
		if (*p == ',' && *++p == '\0')
			return err_set(err, ERR_INVALID, "group_by: ends with a comma");
	}
	return true;
}

/* --- the statement --- */

/* The number of the parameter just added. */
static int
filter(struct db_args *a, const char *text)
{
	arg_text(a, text);
	return a->count;
}

/* Filters on ids apply before anything is summed; the tables of names are small. */
static void
build_filters(const struct usage_query *q, struct buf *sql, struct db_args *a)
{
	if (q->tenant != NULL)
		buf_printf(sql,
		           " AND u.workspace_id IN (SELECT w.id FROM workspace w JOIN tenant t ON t.id = w.tenant_id "
		           "WHERE t.name = $%d)",
		           filter(a, q->tenant));
	if (q->workspace != NULL)
		buf_printf(sql, " AND u.workspace_id IN (SELECT w.id FROM workspace w WHERE w.name = $%d)",
		           filter(a, q->workspace));
	if (q->node != NULL)
		buf_printf(sql, " AND u.node_id = (SELECT n.id FROM node n WHERE n.name = $%d)", filter(a, q->node));
	if (q->cluster != NULL)
		buf_printf(sql,
		           " AND EXISTS (SELECT FROM node_cluster x JOIN cluster c ON c.id = x.cluster_id "
		           "WHERE x.node_id = u.node_id AND x.effective @> u.hour AND c.name = $%d)",
		           filter(a, q->cluster));
}

/* Days know neither nodes nor holders. In a short range there are few of them, and a statement whose plan knows its range is
 * the better one. */
static bool
reads_days(const struct grouping *g, const struct usage_query *q)
{
	return g->long_range && (g->ids & ~(unsigned)IDS_OF_DAYS) == 0 && q->node == NULL && q->cluster == NULL;
}

/* The rows of the range, summed by the ids that are needed. */
static void
build_summed(const struct grouping *g, const struct usage_query *q, struct buf *sql, struct db_args *a)
{
	const char *before = " GROUP BY ";

	buf_str(sql, "(SELECT ");
	for (size_t i = 0; i < ARRAY_LEN(id_columns); i++) {
		bool needed = (g->ids & id_columns[i].id) != 0;

		buf_printf(sql, "%s AS %s, ", needed ? id_columns[i].sql : id_columns[i].absent, id_columns[i].name);
	}
	buf_str(sql, USAGE_SUMS " FROM ");
	buf_str(sql, reads_days(g, q) ? FROM_DAYS : FROM_HOURS);
	buf_str(sql, (g->ids & ID_CLUSTER) != 0 ? USAGE_CLUSTER_OF_HOUR : "");
	buf_str(sql, (g->ids & ID_MODEL) != 0 ? USAGE_MODEL_OF_HOUR : "");
	buf_str(sql, (g->ids & ID_OWNER) != 0 ? USAGE_OWNER_OF_HOUR : "");
	buf_str(sql, " WHERE true");
	build_filters(q, sql, a);
	for (size_t i = 0; i < ARRAY_LEN(id_columns); i++) {
		if ((g->ids & id_columns[i].id) == 0)
			continue;
		buf_printf(sql, "%s%s", before, id_columns[i].sql);
		before = ", ";
	}
	buf_str(sql, ") u ");
}

/* "1, 2, 3" or "k1, k2, k3" between two words; nothing at all when there is nothing to list. */
static void
build_list(struct buf *sql, const char *before, const char *prefix, size_t count, const char *after)
{
	for (size_t i = 0; i < count; i++)
		buf_printf(sql, "%s%s%zu", i == 0 ? before : ", ", prefix, i + 1);
	buf_str(sql, count > 0 ? after : "");
}

/* The groups behind the last one of the page before. */
static void
build_after(const struct grouping *g, struct db_array *after, struct buf *sql, struct db_args *a)
{
	arg_array(a, after);
	build_list(sql, " WHERE ROW(", "k", g->count, ") > ROW(");
	for (size_t i = 0; i < g->count; i++)
		buf_printf(sql, "%s($%d::text[])[%zu]", i > 0 ? ", " : "", a->count, i + 1);
	buf_char(sql, ')');
}

/* "expression COLLATE "C" AS k1, ..." of all keys. */
static void
build_keys(const struct grouping *g, struct db_array *labels, struct buf *sql, struct db_args *a)
{
	int labels_at;

	for (size_t i = 0; i < g->count; i++)
		if (g->label[i] > 0)
			array_text(labels, g->name[i] + strlen(LABEL_PREFIX));
	if (g->label_count > 0)
		arg_array(a, labels);
	labels_at = a->count;
	for (size_t i = 0; i < g->count; i++) {
		if (g->label[i] > 0)
			buf_printf(sql, "coalesce(h.labels ->> ($%d::text[])[%zu], '')", labels_at, g->label[i]);
		else
			buf_printf(sql, "(%s)", g->sql[i]);
		buf_printf(sql, " COLLATE \"C\" AS k%zu, ", i + 1);
	}
}

/* The statement: the keys as text, in bytewise order, then USAGE_SUMS, or one sum by state; one group more than the limit, to see
 * whether there is a next page. after: the keys of the last group of the page before; NULL: from the first one. Both arrays
 * must live until the statement has run. Every word of it is from the tables above; the caller's texts are parameters. */
static void
grouping_sql(struct grouping *g, const struct usage_query *q, struct db_array *labels, struct db_array *after,
             struct buf *sql, struct db_args *a)
{
	in_place(buf) struct buf summed = {0};

	buf_init(&summed, sql->max);
	g->ids |= (q->user != NULL ? ID_HOLDER : 0u) | (q->gpu_model != NULL ? ID_MODEL : 0u);
	build_summed(g, q, &summed, a);
	buf_str(sql, "SELECT * FROM (SELECT ");
	build_keys(g, labels, sql, a);
	buf_str(sql, g->by_state ? "sum(s.unit_ns) FROM " : USAGE_SUMS " FROM ");
	buf_add(sql, buf_text(&summed), summed.len);
	buf_str(sql, USAGE_JOINS);
	buf_str(sql, g->by_state ? STATE_ROWS "WHERE s.unit_ns > 0" : "WHERE true");
	if (q->user != NULL)
		buf_printf(sql, " AND h.user_name = $%d", filter(a, q->user));
	if (q->gpu_model != NULL)
		buf_printf(sql, " AND u.gpu_model = $%d", filter(a, q->gpu_model));
	build_list(sql, " GROUP BY ", "", g->count, "");
	buf_str(sql, ") x");
	if (after != NULL)
		build_after(g, after, sql, a);
	build_list(sql, " ORDER BY ", "", g->count, "");
	buf_printf(sql, " LIMIT %" PRId64, q->limit + 1);
}

void
grouping_cost_sql(const struct grouping *g, const struct usage_query *q, const char *cursor, struct db_array *labels,
                  struct buf *sql, struct db_args *a)
{
	struct grouping cells = *g;
	in_place(buf) struct buf summed = {0};

	buf_init(&summed, sql->max);
	cells.ids |= ID_HOUR | ID_DEVICE | ID_WORKSPACE | ID_SHARING | ID_CLUSTER | ID_MODEL | ID_OWNER;
	cells.long_range = false;
	build_summed(&cells, q, &summed, a);
	buf_printf(sql,
	           "DECLARE %s NO SCROLL CURSOR FOR SELECT u.workspace_id, u.cluster_id, u.gpu_model COLLATE \"C\", "
	           "d.profile COLLATE \"C\", d.units, u.sharing, ns_of(u.hour), coalesce(u.owner_id, 0), ",
	           cursor);
	build_keys(g, labels, sql, a);
	buf_str(sql,
	        g->by_state
	                ? "sum(s.unit_ns), sum(CASE s.state WHEN 'used' THEN s.unit_ns + u.over WHEN 'idle' THEN 0 ELSE s.unit_ns END), "
	                  "sum(CASE WHEN s.state = 'used' THEN u.energy_mj ELSE 0 END) FROM "
	                : "sum(u.used + u.idle + u.unmeasured), sum(u.used + u.unmeasured + u.over), sum(u.energy_mj) FROM ");
	buf_add(sql, buf_text(&summed), summed.len);
	buf_str(sql, USAGE_JOINS);
	buf_str(sql, g->by_state ? STATE_ROWS "WHERE s.unit_ns > 0 AND s.state IN ('used', 'idle', 'unmeasured') "
	                         : "WHERE true ");
	buf_str(sql, "AND u.workspace_id IS NOT NULL");
	build_list(sql, " GROUP BY ", "", USAGE_CELL_COLUMNS + g->count, "");
	build_list(sql, " ORDER BY ", "", USAGE_CELL_COLUMNS + g->count, "");
}

/* --- pages --- */

#define USAGE_SQL_MAX (64u << 10)
#define CURSOR_MAX (16u << 10)
#define DIGEST_SIZE 8
#define LONG_RANGE (2 * NS_PER_DAY)

static void
query_digest(const struct usage_query *q, char out[2 * DIGEST_SIZE + 1])
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
	hex_encode(sha, DIGEST_SIZE, out);
}

static bool
write_cursor(const struct usage_query *q, const struct grouping *g, const int64_t range[2], const PGresult *r, int row,
             struct buf *out, struct err *err)
{
	in_place(buf) struct buf b = {0};
	char mark[2 * DIGEST_SIZE + 1];

	buf_init(&b, CURSOR_MAX);
	query_digest(q, mark);
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

/* The range and the keys; false for any text that write_cursor() did not write for this query. */
static bool
read_cursor(const struct usage_query *q, const struct grouping *g, int64_t range[2], struct db_array *after,
            struct err *err)
{
	size_t len = strlen(q->cursor);
	owned(mem) uint8_t *bytes = mem_array(len / 2 + 1, 1);
	owned(json) json_t *list = NULL;
	char mark[2 * DIGEST_SIZE + 1];

	if (len > 2 * CURSOR_MAX || len % 2 != 0 || !hex_decode(q->cursor, bytes, len / 2, NULL) ||
	    !json_parse("cursor", (const char *)bytes, len / 2, &list, NULL) || json_array_size(list) != 3 + g->count ||
	    !json_is_integer(json_array_get(list, 1)) || !json_is_integer(json_array_get(list, 2)))
		return err_set(err, ERR_INVALID, "cursor: it is not the next of an answer to this question");
	query_digest(q, mark);
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

/* Costs need many statements: one snapshot for all of them. */
bool
store_usage(struct db *db, const struct usage_query *q, struct buf *out, struct buf *ret_next, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};

	if (!q->cost)
		return answer(db, q, out, ret_next, err);
	return usage_cost_check(q, err) && db_tx_begin_snapshot(&tx, db, DB_WORK_REPORT, err) &&
	       answer(db, q, out, ret_next, err) && db_tx_commit(&tx, err);
}

/* aggregator/store/usage.c - usage as JSON and as totals, over sealed and open hours alike. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/rounding.h"
#include "aggregator/store/db.h"
#include "aggregator/store/usage_sql.h"
#include "common/json.h"
#include "common/units.h"

#define USAGE_MAX_GROUPS 100000
#define USAGE_SQL_MAX (64u << 10)
/* unit-nanoseconds of 1e-9 GPU-hours */
#define UNIT_NS_PER_NGH (UNITS_PER_GPU * (NS_PER_HOUR / NS_PER_S))

/* The columns of usage_rows that a key is made of. Rows are summed by these first, because numbers are cheap to group
 * and names are not. */
enum { ID_HOUR = 1, ID_NODE = 2, ID_DEVICE = 4, ID_HOLDER = 8, ID_WORKSPACE = 16, ID_SHARING = 32, ID_METHOD = 64 };
static const struct id_column {
	unsigned id;
	const char *name, *absent; /* absent: what stands for it in a row that was summed over it */
} id_columns[] = {
	{ID_HOUR, "hour", "NULL::timestamptz"},          {ID_NODE, "node_id", "NULL::integer"},
	{ID_DEVICE, "device_id", "NULL::integer"},       {ID_HOLDER, "holder_id", "NULL::bigint"},
	{ID_WORKSPACE, "workspace_id", "NULL::integer"}, {ID_SHARING, "sharing", "NULL::smallint"},
	{ID_METHOD, "method", "NULL::smallint"},
};

/* What usage can be grouped by, and the expression that gives it. "state" is not here: it turns columns into rows. */
static const struct group_key {
	const char *name, *sql;
	unsigned ids;
} group_keys[] = {
	{"cluster", "c.name", ID_NODE},
	{"tenant", "coalesce(t.name, '')", ID_WORKSPACE},
	{"workspace", "coalesce(w.name, '')", ID_WORKSPACE},
	{"user", "coalesce(h.user_name, '')", ID_HOLDER},
	{"workload", USAGE_WORKLOAD, ID_HOLDER},
	{"gpu_model", "g.short_model", ID_DEVICE},
	{"profile", "d.profile", ID_DEVICE},
	{"node", "n.name", ID_NODE},
	{"gpu", "g.uuid", ID_DEVICE},
	{"sharing", "sharing_name(u.sharing)", ID_SHARING},
	{"day", "to_char(u.hour AT TIME ZONE (SELECT zone FROM ledger), 'YYYY-MM-DD')", ID_HOUR},
	{"hour", "rfc3339(u.hour)", ID_HOUR},
	{"method", "CASE WHEN u.workspace_id IS NULL THEN '' ELSE method_name(u.method) END", ID_METHOD | ID_WORKSPACE},
};

/* The first three are the parts of what is allocated. */
static const char *const state_names[] = {"used", "idle", "unmeasured", "unallocated", "stranded", "down", "unknown"};
#define STATE_COUNT ARRAY_LEN(state_names)
#define HELD_STATES 3
#define STATE_ROWS                                                                             \
	", LATERAL (VALUES ('used', u.used), ('idle', u.idle), ('unmeasured', u.unmeasured), " \
	"('unallocated', u.unallocated), ('stranded', u.stranded), ('down', u.down), "         \
	"('unknown', u.unknown)) AS s(state, unit_ns) "

#define KEYS_MAX (ARRAY_LEN(group_keys) + 1)
struct grouping {
	const char *name[KEYS_MAX];
	const char *sql[KEYS_MAX];
	int count;
	unsigned ids; /* the columns that the names and the filter need */
	bool by_state;
};

static bool
add_key(struct grouping *g, const char *word, size_t len, struct err *err)
{
	const char *name = NULL, *sql = NULL;

	for (size_t i = 0; i < ARRAY_LEN(group_keys); i++) {
		if (strlen(group_keys[i].name) == len && memcmp(group_keys[i].name, word, len) == 0) {
			name = group_keys[i].name;
			sql = group_keys[i].sql;
			g->ids |= group_keys[i].ids;
		}
	}
	if (len == 5 && memcmp(word, "state", len) == 0) {
		name = sql = "state";
		g->by_state = true;
	}
	if (!name)
		return err_set(
			err, ERR_INVALID,
			"group_by: \"%.*s\" is not one of cluster, tenant, workspace, user, workload, gpu_model, "
			"profile, node, gpu, sharing, day, hour, "
			"state, method",
			(int)(len < 64 ? len : 64), word);
	for (int i = 0; i < g->count; i++)
		if (g->name[i] == name)
			return err_set(err, ERR_INVALID, "group_by: %s is named twice", name);
	g->name[g->count] = name;
	g->sql[g->count++] = sql;
	return true;
}

static bool
parse_grouping(const char *text, struct grouping *g, struct err *err)
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

static void
buf_list(struct buf *sql, const char *before, int count)
{
	for (int i = 0; i < count; i++)
		buf_printf(sql, "%s%d", i == 0 ? before : ", ", i + 1);
}

/* The rows of the range, summed by the ids that are needed. */
static void
build_summed(const struct grouping *g, struct buf *sql)
{
	const char *before = "GROUP BY ";

	buf_str(sql, "(SELECT ");
	for (size_t i = 0; i < ARRAY_LEN(id_columns); i++) {
		bool needed = (g->ids & id_columns[i].id) != 0;

		buf_printf(sql, "%s%s AS %s, ", needed ? "u." : "", needed ? id_columns[i].name : id_columns[i].absent,
		           id_columns[i].name);
	}
	buf_str(sql, USAGE_SUMS " FROM usage_rows($1, $2) u ");
	for (size_t i = 0; i < ARRAY_LEN(id_columns); i++) {
		if ((g->ids & id_columns[i].id) == 0)
			continue;
		buf_printf(sql, "%su.%s", before, id_columns[i].name);
		before = ", ";
	}
	buf_str(sql, ") u");
}

/* Every word of the statement is from the tables above; what the caller gave is a parameter. */
static void
build_sql(const struct grouping *g, struct buf *sql)
{
	buf_str(sql, "SELECT ");
	for (int i = 0; i < g->count; i++)
		buf_printf(sql, "%s AS \"%s\", ", g->sql[i], g->name[i]);
	buf_str(sql, g->by_state ? "sum(s.unit_ns) FROM " : USAGE_SUMS " FROM ");
	build_summed(g, sql);
	buf_str(sql, " " USAGE_JOINS);
	if (g->by_state)
		buf_str(sql, STATE_ROWS);
	buf_str(sql, g->by_state ? "WHERE s.unit_ns > 0 AND " : "WHERE ");
	buf_str(sql, "($3::text IS NULL OR t.name = $3)");
	buf_list(sql, " GROUP BY ", g->count);
	buf_list(sql, " ORDER BY ", g->count);
	buf_printf(sql, " LIMIT %d", USAGE_MAX_GROUPS + 1);
}

/* --- writing --- */

/* One JSON object; member names are our own words. */
struct object {
	struct buf *out;
	bool any;
};

static void
member(struct object *o, const char *name, const char *suffix)
{
	buf_printf(o->out, "%s\"%s%s\":", o->any ? "," : "", name, suffix);
	o->any = true;
}

static void
member_text(struct object *o, const char *name, const char *text)
{
	member(o, name, "");
	json_write_string(text, o->out);
}

static void
member_scaled(struct object *o, const char *name, const char *suffix, int128 value, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	member(o, name, suffix);
	buf_printf(o->out, "\"%s\"", decimal_format(value, scale, scale, text));
}

static void
member_hours(struct object *o, const char *name, int128 unit_ns)
{
	member_scaled(o, name, "_gpu_hours", div_round_half_even(unit_ns, UNIT_NS_PER_NGH), QUANTITY_SCALE);
}

/* A sum over no rows is NULL in SQL, and nothing here. */
static bool
read_sums(const PGresult *r, int row, int col, size_t n, int128 *out, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		out[i] = 0;
		if (!res_null(r, row, col + (int)i) && !res_i128(r, row, col + (int)i, 0, &out[i], err))
			return false;
	}
	return true;
}

/* What is held is rounded together, so that used + idle + unmeasured is allocated to the last digit. */
static bool
write_states(struct object *o, const int128 *unit_ns, struct err *err)
{
	int128 ngh[HELD_STATES], allocated;

	if (!round_together(unit_ns, HELD_STATES, UNIT_NS_PER_NGH, ngh, &allocated))
		return err_set(err, ERR_FATAL, "a sum of unit-nanoseconds does not fit 128 bits");
	member_scaled(o, "allocated", "_gpu_hours", allocated, QUANTITY_SCALE);
	for (size_t i = 0; i < HELD_STATES; i++)
		member_scaled(o, state_names[i], "_gpu_hours", ngh[i], QUANTITY_SCALE);
	for (size_t i = HELD_STATES; i < STATE_COUNT; i++)
		member_hours(o, state_names[i], unit_ns[i]);
	return true;
}

static bool
write_sums(struct object *o, const PGresult *r, int row, int col, struct err *err)
{
	int128 v[STATE_COUNT + 4];

	if (!read_sums(r, row, col, ARRAY_LEN(v), v, err) || !write_states(o, v, err))
		return false;
	member_hours(o, "over", v[STATE_COUNT]);
	member_hours(o, "clock_adjust", v[STATE_COUNT + 1]);
	/* millijoules to 1e-9 kWh, byte-milliseconds to 1e-9 GiB-hours */
	member_scaled(o, "energy", "_kwh", div_round_half_even(v[STATE_COUNT + 2] * 10, 36), QUANTITY_SCALE);
	member_scaled(o, "memory", "_gib_hours", div_round_half_even(v[STATE_COUNT + 3] * 10000, (int128)36 << 30),
	              QUANTITY_SCALE);
	return true;
}

static bool
write_group(const PGresult *r, int row, const struct grouping *g, struct buf *out, struct err *err)
{
	struct object o = {.out = out};
	int128 v = 0;

	buf_str(out, row > 0 ? ",\n{" : "{");
	for (int i = 0; i < g->count; i++)
		member_text(&o, g->name[i], res_text(r, row, i));
	if (!g->by_state) {
		if (!write_sums(&o, r, row, g->count, err))
			return false;
	} else if (read_sums(r, row, g->count, 1, &v, err)) {
		member_scaled(&o, "gpu", "_hours", div_round_half_even(v, UNIT_NS_PER_NGH), QUANTITY_SCALE);
	} else {
		return false;
	}
	buf_char(out, '}');
	return true;
}

static void
write_range(struct object *o, int64_t from_ns, int64_t to_ns)
{
	char text[TIME_TEXT_SIZE];

	buf_char(o->out, '{');
	member_text(o, "from", time_format(from_ns, text));
	member_text(o, "to", time_format(to_ns, text));
}

static bool
widen(struct db *db, int64_t *from_ns, int64_t *to_ns, struct err *err)
{
	struct db_ledger l;

	if (!db_ledger_get(db, &l, err))
		return false;
	*from_ns = hour_floor(&l, *from_ns);
	*to_ns = hour_ceil(&l, *to_ns);
	return *from_ns < *to_ns || err_set(err, ERR_INVALID, "from must be before to");
}

bool
store_usage_json(struct db *db, const struct usage_query *q, struct buf *out, struct err *err)
{
	struct grouping g = {.count = 0};
	owned(result) PGresult *r = NULL;
	in_place(buf) struct buf sql;
	struct object o = {.out = out};
	int64_t from_ns = q->from_ns, to_ns = q->to_ns;
	struct db_args a = {0};

	buf_init(&sql, USAGE_SQL_MAX);
	if (!parse_grouping(q->group_by, &g, err) || !widen(db, &from_ns, &to_ns, err))
		return false;
	if (q->tenant)
		g.ids |= ID_WORKSPACE;
	build_sql(&g, &sql);
	arg_time(&a, from_ns);
	arg_time(&a, to_ns);
	arg_text(&a, q->tenant);
	if (!buf_ok(&sql, "the statement", err) || !db_run_text(db, buf_text(&sql), &a, &r, err))
		return false;
	if (PQntuples(r) > USAGE_MAX_GROUPS)
		return err_set(err, ERR_INVALID, "group_by: more than %d groups; ask for a shorter time or fewer keys",
		               USAGE_MAX_GROUPS);
	write_range(&o, from_ns, to_ns);
	member(&o, "groups", "");
	buf_char(out, '[');
	for (int row = 0; row < PQntuples(r); row++)
		if (!write_group(r, row, &g, out, err))
			return false;
	buf_str(out, "]}\n");
	return buf_ok(out, "the answer", err);
}

/* --- conservation --- */

/* Columns: node, index, uuid, model, 5040 x time in service, then USAGE_SUMS. The time in service is taken from the
 * GPUs' services over the whole range at once, by another path than the hours: an hour that is missing shows as a
 * difference. */
static const char conservation_sql[] =
	"WITH served AS (SELECT s.node_id, s.gpu_id, 5040 * sum(least(ns_of($2), s.until_ns, "
	"greatest(n.covered_until_ns, n.silent_until_ns)) - greatest(ns_of($1), "
	"s.from_ns)) AS unit_ns FROM gpu_service s JOIN node n ON n.id = s.node_id WHERE greatest(ns_of($1), "
	"s.from_ns) < least(ns_of($2), s.until_ns, greatest(n.covered_until_ns, "
	"n.silent_until_ns)) GROUP BY s.node_id, s.gpu_id), summed AS (SELECT u.node_id, d.gpu_id, "
	"sum(u.used) AS used, sum(u.idle) AS idle, sum(u.unmeasured) AS unmeasured, "
	"sum(u.unallocated) AS unallocated, sum(u.stranded) AS stranded, sum(u.down) AS down, "
	"sum(u.unknown) AS unknown, sum(u.over) AS over, sum(u.clock_adjust) AS clock_adjust FROM usage_rows($1, "
	"$2) u JOIN device d ON d.id = u.device_id GROUP BY u.node_id, d.gpu_id) "
	"SELECT n.name, g.index, g.uuid, g.short_model, s.unit_ns, u.used, u.idle, u.unmeasured, u.unallocated, "
	"u.stranded, u.down, u.unknown, u.over, u.clock_adjust FROM served s "
	"FULL JOIN summed u ON u.node_id = s.node_id AND u.gpu_id = s.gpu_id "
	"JOIN node n ON n.id = coalesce(s.node_id, u.node_id) JOIN gpu g ON g.id = coalesce(s.gpu_id, u.gpu_id) "
	"ORDER BY n.name, g.index, g.uuid";

/* v: 5040 x the time in service, the states, over, clock_adjust. */
static int128
gpu_difference(const int128 *v)
{
	int128 sum = 0;

	for (size_t i = 0; i < STATE_COUNT; i++)
		sum += v[1 + i];
	return sum - v[1 + STATE_COUNT + 1] - v[0];
}

static bool
write_gpu(const PGresult *r, int row, struct buf *out, struct err *err)
{
	struct object o = {.out = out};
	int128 v[1 + STATE_COUNT + 2], sum = 0, difference;

	if (!read_sums(r, row, 4, ARRAY_LEN(v), v, err))
		return false;
	for (size_t i = 0; i < STATE_COUNT; i++)
		sum += v[1 + i];
	difference = gpu_difference(v);
	buf_str(out, row > 0 ? ",\n{" : "{");
	member_text(&o, "node", res_text(r, row, 0));
	member(&o, "gpu", "");
	buf_str(out, res_text(r, row, 1));
	member_text(&o, "uuid", res_text(r, row, 2));
	member_text(&o, "gpu_model", res_text(r, row, 3));
	member_hours(&o, "in_service", v[0]);
	if (!write_states(&o, v + 1, err))
		return false;
	member_hours(&o, "over", v[1 + STATE_COUNT]);
	member_hours(&o, "clock_adjust", v[1 + STATE_COUNT + 1]);
	member_hours(&o, "sum", sum);
	member_hours(&o, "difference", difference);
	/* Exact: hours would round a nanosecond away. */
	member_scaled(&o, "in_service", "_unit_ns", v[0], 0);
	member_scaled(&o, "sum", "_unit_ns", sum, 0);
	member_scaled(&o, "clock_adjust", "_unit_ns", v[1 + STATE_COUNT + 1], 0);
	member_scaled(&o, "difference", "_unit_ns", difference, 0);
	buf_char(out, '}');
	return true;
}

bool
store_conservation_json(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct object o = {.out = out};
	struct db_args a = {0};

	if (!widen(db, &from_ns, &to_ns, err))
		return false;
	arg_time(&a, from_ns);
	arg_time(&a, to_ns);
	if (!db_run_text(db, conservation_sql, &a, &r, err))
		return false;
	write_range(&o, from_ns, to_ns);
	member(&o, "gpus", "");
	buf_char(out, '[');
	for (int row = 0; row < PQntuples(r); row++)
		if (!write_gpu(r, row, out, err))
			return false;
	buf_str(out, "]}\n");
	return buf_ok(out, "the answer", err);
}

/* --- totals of a period --- */

static bool
period_bounds(struct db *db, const char *period, struct db_args *ret, bool *ret_known, struct err *err)
{
	static const struct db_stmt bounds = {"period bounds",
	                                      "SELECT ns_of(starts_at), ns_of(ends_at) FROM period WHERE month = $1"};
	owned(result) PGresult *p = NULL;
	struct db_args a = {0};

	arg_text(&a, period);
	if (!db_run(db, &bounds, &a, &p, err))
		return false;
	*ret_known = PQntuples(p) > 0;
	if (*ret_known) {
		arg_time(ret, res_i64(p, 0, 0));
		arg_time(ret, res_i64(p, 0, 1));
	}
	return true;
}

bool
store_conservation_error(struct db *db, const char *period, int128 *ret_unit_ns, struct err *err)
{
	owned(result) PGresult *r = NULL;
	int128 v[1 + STATE_COUNT + 2], error = 0;
	struct db_args a = {0};
	bool known;

	if (!period_bounds(db, period, &a, &known, err))
		return false;
	if (known && !db_run_text(db, conservation_sql, &a, &r, err))
		return false;
	for (int row = 0; known && row < PQntuples(r); row++) {
		int128 difference;

		if (!read_sums(r, row, 4, ARRAY_LEN(v), v, err))
			return false;
		difference = gpu_difference(v);
		error += difference < 0 ? -difference : difference;
	}
	*ret_unit_ns = error;
	return true;
}

bool
store_period_totals(struct db *db, const char *period, void (*each)(void *arg, const struct usage_total *t), void *arg,
                    struct err *err)
{
	static const char totals[] =
		"SELECT c.name, coalesce(t.name, ''), coalesce(w.name, ''), g.short_model, d.profile, sum(u.used), "
		"sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown) "
		"FROM (SELECT u.node_id, u.device_id, u.workspace_id, NULL::bigint AS holder_id, " USAGE_SUMS
		" FROM usage_rows($1, $2) u GROUP BY u.node_id, u.device_id, u.workspace_id) u " USAGE_JOINS
		"GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5";
	owned(result) PGresult *r = NULL;
	int128 v[STATE_COUNT];
	struct db_args a = {0};
	bool known;

	if (!period_bounds(db, period, &a, &known, err))
		return false;
	if (!known)
		return true;
	if (!db_run_text(db, totals, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		if (!read_sums(r, row, 5, STATE_COUNT, v, err))
			return false;
		for (size_t i = 0; i < STATE_COUNT; i++)
			if (v[i] != 0)
				each(arg, &(struct usage_total){.cluster = res_text(r, row, 0),
				                                .tenant = res_text(r, row, 1),
				                                .workspace = res_text(r, row, 2),
				                                .gpu_model = res_text(r, row, 3),
				                                .profile = res_text(r, row, 4),
				                                .state = state_names[i],
				                                .unit_ns = v[i]});
	}
	return true;
}

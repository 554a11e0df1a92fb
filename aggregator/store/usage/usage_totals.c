/* aggregator/store/usage/usage_totals.c - conservation check and monthly totals, over sealed and open hours alike. */
#include "aggregator/store/usage/usage_internal.h"

/* --- conservation --- */

/* Columns: node, index, uuid, model in the last hour, 5040 x time in service, then USAGE_SUMS. The time in service is taken from the
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
	"SELECT n.name, g.index, g.uuid, m.short_model, s.unit_ns, u.used, u.idle, u.unmeasured, u.unallocated, "
	"u.stranded, u.down, u.unknown, u.over, u.clock_adjust FROM served s "
	"FULL JOIN summed u ON u.node_id = s.node_id AND u.gpu_id = s.gpu_id "
	"JOIN node n ON n.id = coalesce(s.node_id, u.node_id) JOIN gpu g ON g.id = coalesce(s.gpu_id, u.gpu_id) "
	"JOIN gpu_spec m ON m.gpu_id = g.id AND m.effective @> $2::timestamptz - interval '1 hour' "
	"ORDER BY n.name, g.index, g.uuid";

/* v: 5040 x the time in service, the states, over, clock_adjust. */
static int128
gpu_difference(const int128 *v)
{
	int128 sum = 0;

	for (size_t i = 0; i < USAGE_STATES; i++)
		sum += v[1 + i];
	return sum - v[1 + USAGE_STATES + 1] - v[0];
}

static bool
write_gpu(const PGresult *r, int row, struct buf *out, struct err *err)
{
	struct usage_row o = {.out = out};
	int128 v[1 + USAGE_STATES + 2], sum = 0, difference;

	if (!usage_read(r, row, 4, ARRAY_LEN(v), v, err))
		return false;
	for (size_t i = 0; i < USAGE_STATES; i++)
		sum += v[1 + i];
	difference = gpu_difference(v);
	buf_str(out, row > 0 ? ",\n" : "");
	row_begin(&o);
	row_text(&o, "node", res_text(r, row, 0));
	row_name(&o, "gpu", "");
	buf_str(out, res_text(r, row, 1));
	row_text(&o, "uuid", res_text(r, row, 2));
	row_text(&o, "gpu_model", res_text(r, row, 3));
	row_hours(&o, "in_service", v[0]);
	if (!row_states(&o, v + 1, err))
		return false;
	row_hours(&o, "over", v[1 + USAGE_STATES]);
	row_hours(&o, "clock_adjust", v[1 + USAGE_STATES + 1]);
	row_hours(&o, "sum", sum);
	row_hours(&o, "difference", difference);
	/* Exact: hours would round a nanosecond away. */
	row_decimal(&o, "in_service", "_unit_ns", v[0], 0);
	row_decimal(&o, "sum", "_unit_ns", sum, 0);
	row_decimal(&o, "clock_adjust", "_unit_ns", v[1 + USAGE_STATES + 1], 0);
	row_decimal(&o, "difference", "_unit_ns", difference, 0);
	row_end(&o);
	return true;
}

bool
store_conservation_json(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct usage_row o = {.out = out};
	struct db_args a = {0};

	if (!usage_widen(db, &from_ns, &to_ns, err))
		return false;
	arg_time(&a, from_ns);
	arg_time(&a, to_ns);
	if (!db_run_text(db, conservation_sql, &a, &r, err))
		return false;
	row_range(&o, from_ns, to_ns);
	row_name(&o, "gpus", "");
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
	int128 v[1 + USAGE_STATES + 2], error = 0;
	struct db_args a = {0};
	bool known;

	if (!period_bounds(db, period, &a, &known, err))
		return false;
	if (known && !db_run_text(db, conservation_sql, &a, &r, err))
		return false;
	for (int row = 0; known && row < PQntuples(r); row++) {
		int128 difference;

		if (!usage_read(r, row, 4, ARRAY_LEN(v), v, err))
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
		"SELECT c.name, coalesce(t.name, ''), coalesce(w.name, ''), u.gpu_model, d.profile, sum(u.used), "
		"sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown) "
		"FROM (SELECT u.node_id, u.device_id, u.workspace_id, k.cluster_id, m.short_model AS gpu_model, NULL::bigint AS holder_id, " USAGE_SUMS
		" FROM usage_rows($1, $2) u " USAGE_CLUSTER_OF_HOUR USAGE_MODEL_OF_HOUR
		"GROUP BY u.node_id, u.device_id, u.workspace_id, k.cluster_id, m.short_model) u " USAGE_JOINS
		"GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5";
	owned(result) PGresult *r = NULL;
	int128 v[USAGE_STATES];
	struct db_args a = {0};
	bool known;

	if (!period_bounds(db, period, &a, &known, err))
		return false;
	if (!known)
		return true;
	if (!db_run_text(db, totals, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		if (!usage_read(r, row, 5, USAGE_STATES, v, err))
			return false;
		for (size_t i = 0; i < USAGE_STATES; i++)
			if (v[i] != 0)
				each(arg, &(struct usage_total){.cluster = res_text(r, row, 0),
				                                .tenant = res_text(r, row, 1),
				                                .workspace = res_text(r, row, 2),
				                                .gpu_model = res_text(r, row, 3),
				                                .profile = res_text(r, row, 4),
				                                .state = usage_state_name((enum usage_state)i),
				                                .unit_ns = v[i]});
	}
	return true;
}

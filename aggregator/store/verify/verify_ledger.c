/* aggregator/store/verify/verify_ledger.c - compares the ledger with its batches: every node of a range, and the list
 * of differences. */

#include "aggregator/store/policy/attribution_store.h"
#include "aggregator/store/verify/verify.h"
#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/money.h"
#include "common/conf/json.h"

/* All differences are counted; at most this many are listed in one answer. */
#define DIFFERENCES_MAX 10000

/* --- the list --- */

static void
write_difference(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                 const char *expected, const char *found, const char *difference)
{
	struct verify_report *r = n->report;
	char hour[TIME_TEXT_SIZE] = "";
	const struct {
		const char *name, *text;
	} members[] = {{"node", n->name},
	               {"gpu", gpu != NULL ? gpu : ""},
	               {"hour", hour},
	               {"what", what},
	               {"expected", expected},
	               {"found", found},
	               {"difference", difference}};

	if (r->counts.differences++ >= DIFFERENCES_MAX)
		return;
	if (hour_ns != INT64_MIN)
		time_format(hour_ns, hour);
	buf_printf(r->out, "%s{\"kind\":\"%s\"", r->written++ > 0 ? ",\n" : "", kind);
	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		buf_printf(r->out, ",\"%s\":", members[i].name);
		json_write_string(members[i].text, r->out);
	}
	buf_char(r->out, '}');
}

void
verify_report_text(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                   const char *expected, const char *found)
{
	write_difference(n, kind, gpu, hour_ns, what, expected, found, "");
}

void
verify_report_amount(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                     int128 expected, int128 found)
{
	char a[DECIMAL_TEXT_SIZE], b[DECIMAL_TEXT_SIZE], c[DECIMAL_TEXT_SIZE];

	write_difference(n, kind, gpu, hour_ns, what, decimal_format(expected, 0, 0, a), decimal_format(found, 0, 0, b),
	                 decimal_format(found - expected, 0, 0, c));
}

int128
verify_amount(struct verify_node *n, const PGresult *r, int row, int col, const char *kind, const char *gpu,
              int64_t hour_ns, const char *what)
{
	struct err why = {0};
	int128 v = 0;

	if (res_i128(r, row, col, 0, &v, &why))
		return v;
	write_difference(n, kind, gpu, hour_ns, what, "a whole number", res_text(r, row, col), "");
	return 0;
}

bool
verify_continue(struct verify_node *n, bool ok, const char *thing, const struct err *why, struct err *err)
{
	if (ok)
		return true;
	if (why->kind == ERR_INVALID || why->kind == ERR_FATAL || why->kind == ERR_CONFLICT) {
		verify_report_text(n, "unreadable", NULL, INT64_MIN, thing, "rows that can be read", why->text);
		return true;
	}
	*err = *why;
	return false;
}

/* --- a node --- */

static void
verify_node_fini(struct verify_node *n)
{
	for (size_t i = 0; i < n->stream_count; i++)
		verify_stream_fini(&n->streams[i]);
	for (size_t i = 0; i < n->gpu_count; i++)
		mem_free(n->gpus[i].uuid);
	mem_free(n->streams);
	mem_free(n->gpus);
	mem_free(n->services);
	mem_free(n->states);
	verify_models_fini(n);
	hash_fini(&n->gpu_at);
	hash_fini(&n->device_gpu);
	verify_rules_fini(&n->rules);
}

size_t
verify_gpu_enter(struct verify_node *n, int64_t gpu_id, int64_t device_id, const char *uuid)
{
	size_t i = hash_get(&n->gpu_at, (uint64_t)gpu_id);

	if (i != HASH_NONE)
		return i;
	i = n->gpu_count++;
	n->gpus = mem_grow(n->gpus, n->gpu_count, sizeof(*n->gpus));
	n->gpus[i] = (struct verify_gpu){
		.gpu_id = gpu_id, .device_id = device_id, .uuid = mem_strdup(uuid), .first_ns = INT64_MAX};
	hash_put(&n->gpu_at, (uint64_t)gpu_id, i);
	hash_put(&n->device_gpu, (uint64_t)device_id, i);
	return i;
}

const char *
verify_gpu_of(const struct verify_node *n, int64_t device_id)
{
	size_t i = hash_get(&n->device_gpu, (uint64_t)device_id);

	return i == HASH_NONE ? NULL : n->gpus[i].uuid;
}

static bool
load_services(struct verify_node *n, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify services",
		"SELECT s.gpu_id, d.id, g.uuid, s.from_ns, s.until_ns FROM gpu_service s JOIN gpu g ON g.id = s.gpu_id "
		"JOIN device d ON d.gpu_id = g.id AND d.gi = -1 WHERE s.node_id = $1 ORDER BY s.gpu_id, s.from_ns"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, n->id);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	n->service_count = (size_t)PQntuples(r);
	n->services = mem_array(n->service_count, sizeof(*n->services));
	for (int row = 0; row < PQntuples(r); row++)
		n->services[row] = (struct verify_service){
			.gpu = verify_gpu_enter(n, res_i64(r, row, 0), res_i64(r, row, 1), res_text(r, row, 2)),
			.from_ns = res_i64(r, row, 3),
			.until_ns = res_null(r, row, 4) ? INT64_MAX : res_i64(r, row, 4),
		};
	return true;
}

static bool
load_states(struct verify_node *n, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify states",
		"SELECT s.gpu_id, s.state = 'maintenance', ns_of(lower(s.effective)), ns_of(upper(s.effective)) "
		"FROM node_state s WHERE s.node_id = $1 OR s.gpu_id IN (SELECT g.gpu_id FROM gpu_service g WHERE g.node_id = $1)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, n->id);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	n->state_count = (size_t)PQntuples(r);
	n->states = mem_array(n->state_count, sizeof(*n->states));
	for (int row = 0; row < PQntuples(r); row++)
		n->states[row] = (struct verify_state){
			.gpu = res_null(r, row, 0) ? SIZE_MAX : hash_get(&n->gpu_at, (uint64_t)res_i64(r, row, 0)),
			.maintenance = res_bool(r, row, 1),
			.from_ns = res_i64(r, row, 2),
			.until_ns = res_null(r, row, 3) ? INT64_MAX : res_i64(r, row, 3),
		};
	return true;
}

/* The end of the node's accounted time, read in the same snapshot as everything else. */
static bool
load_node(struct verify_node *n, struct err *err)
{
	static const struct db_stmt stmt = {"verify node",
	                                    "SELECT covered_until_ns, greatest(covered_until_ns, silent_until_ns), "
	                                    "ns_of(hours_from), ns_of(hours_until) FROM node WHERE id = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, n->id);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_RETRY, "node %s is not there any more", n->name);
	n->covered_until_ns = res_null(r, 0, 0) ? INT64_MIN : res_i64(r, 0, 0);
	n->accounted_ns = res_null(r, 0, 1) ? INT64_MIN : res_i64(r, 0, 1);
	n->hours_from_ns = res_null(r, 0, 2) ? INT64_MAX : res_i64(r, 0, 2);
	n->hours_until_ns = res_null(r, 0, 3) ? INT64_MIN : res_i64(r, 0, 3);
	return true;
}

static bool
verify_node(struct verify_node *n, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	int64_t from_ns, to_ns;

	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) || !load_node(n, err) || !load_services(n, err) ||
	    !load_states(n, err) || !verify_rules_load(n, err) || !verify_streams(n, err))
		return false;
	n->report->counts.nodes++;
	from_ns = n->hours_from_ns > n->from_ns ? n->hours_from_ns : n->from_ns;
	to_ns = n->hours_until_ns < n->to_ns ? n->hours_until_ns : n->to_ns;
	/* An hour without its batches can be shown, but not verified. */
	for (; from_ns < n->report->proved_ns && from_ns < to_ns; from_ns += NS_PER_HOUR)
		n->report->counts.hours_unproved++;
	for (int64_t hour_ns = from_ns; hour_ns < to_ns; hour_ns += NS_PER_HOUR)
		if (!verify_hour(n, hour_ns, err))
			return false;
	return verify_models_check(n, err) && db_tx_commit(&tx, err);
}

/* --- the parts --- */

const char *const verify_part_names[VERIFY_PARTS + 1] = {[VERIFY_ALL] = "all",
                                                         [VERIFY_NODES] = "nodes",
                                                         [VERIFY_DAYS] = "days",
                                                         [VERIFY_BILLS] = "bills",
                                                         [VERIFY_ROWS] = "rows"};

/* The verification of a range, step by step. */
struct verify_run {
	struct db *db;
	struct verify_report report;
	int64_t from_ns, to_ns;
	bool of_close;             /* run by the login that writes derived tables, which may not read tokens */
	verify_progress *progress; /* NULL: no progress is reported */
	void *arg;
	int64_t done, total;
};

static bool
step(struct verify_run *v, const char *name, struct err *err)
{
	return v->progress == NULL || v->progress(v->arg, v->done++, v->total, name, err);
}

static bool
verify_nodes(struct verify_run *v, const char *name, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify nodes", "SELECT id, name FROM node WHERE $1::text IS NULL OR name = $1 ORDER BY name"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, name);
	if (!db_run(v->db, &stmt, &a, &r, err))
		return false;
	if (name != NULL && PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "node: there is no node \"%.64s\"", name);
	v->total += PQntuples(r);
	for (int row = 0; row < PQntuples(r); row++) {
		in_place(verify_node) struct verify_node n = {
			.db = v->db,
			.report = &v->report,
			.from_ns = v->from_ns,
			.to_ns = v->to_ns,
			.id = res_i64(r, row, 0),
			.name = res_text(r, row, 1),
		};

		struct err why = {0};
		bool ok;

		if (!step(v, n.name, err) || !db_ledger_get(v->db, &n.ledger, err))
			return false;
		ok = verify_node(&n, &why);
		if (!verify_continue(&n, ok, "the rest of the node", &why, err))
			return err_prefix(err, "node %s", n.name);
	}
	return true;
}

struct verify_step {
	const char *name;
	bool (*run)(struct verify_node *, struct err *);
};

static bool
run_steps(struct verify_node *n, const struct verify_step *steps, size_t count, struct err *err)
{
	for (size_t i = 0; i < count; i++) {
		struct err why = {0};
		bool ok = steps[i].run(n, &why);

		if (!verify_continue(n, ok, steps[i].name, &why, err))
			return false;
	}
	return true;
}

static bool
run_part(struct verify_run *v, enum verify_part part, const char *node, struct err *err)
{
	static const struct verify_step days[] = {{"gpu_spec", verify_histories},
	                                          {"meter_event", verify_event_owners},
	                                          {"billing_day", verify_days}};
	static const struct verify_step rows[] = {{"schema", verify_schema},
	                                          {"holder_attribution", verify_owner_histories},
	                                          {"row_journal", verify_rows_journal}};
	in_place(verify_node) struct verify_node all = {.db = v->db,
	                                                .report = &v->report,
	                                                .from_ns = v->from_ns,
	                                                .to_ns = v->to_ns,
	                                                .name = "",
	                                                .of_close = v->of_close};

	if (!db_ledger_get(v->db, &all.ledger, err))
		return false;
	switch (part) {
	case VERIFY_NODES: return verify_nodes(v, node, err);
	case VERIFY_DAYS: return step(v, "days", err) && run_steps(&all, days, ARRAY_LEN(days), err);
	case VERIFY_BILLS: return step(v, "bills", err) && verify_bills(&all, err);
	case VERIFY_ROWS: return step(v, "rows", err) && run_steps(&all, rows, ARRAY_LEN(rows), err);
	default: return false;
	}
}

static bool
run_parts(struct verify_run *v, enum verify_part part, const char *node, struct err *err)
{
	if (node != NULL || part != VERIFY_ALL)
		return run_part(v, node != NULL ? VERIFY_NODES : part, node, err);
	v->total = VERIFY_PARTS - VERIFY_NODES - 1;
	for (enum verify_part p = VERIFY_NODES; p < VERIFY_PARTS; p++)
		if (!run_part(v, p, NULL, err))
			return false;
	return true;
}

/* While holders are being attributed again, the ledger does not match the rules yet. */
static bool
begin(struct verify_run *v, struct err *err)
{
	static const struct db_stmt stmt = {"verify proved", "SELECT evidence_from_ns FROM ledger"};
	owned(result) PGresult *r = NULL;

	if (!reattribute_settled(v->db, err) || !db_run(v->db, &stmt, NULL, &r, err))
		return false;
	v->report.proved_ns = res_i64(r, 0, 0);
	return true;
}

static void
write_counts(const struct verify_report *r, struct buf *out)
{
	const struct verify_counts *c = &r->counts;
	const struct {
		const char *name;
		int64_t n;
	} members[] = {
		{"count", c->differences},
		{"left_out", c->differences - r->written},
		{"nodes", c->nodes},
		{"hours", c->hours},
		{"batches", c->batches},
		{"records", c->records},
		{"days", c->days},
		{"charges", c->charges},
		{"rows", c->rows},
		{"schema", c->schema},
		{"months", c->months},
		{"documents", c->documents},
		{"lines", c->lines},
		{"lines_rated", c->lines_rated},
		{"months_changed", c->months_changed},
		{"months_earlier", c->months_earlier},
		{"pending", c->hours_pending},
		{"hours_unproved", c->hours_unproved},
		{"days_open", c->days_open},
		{"days_gone", c->days_gone},
		{"quarantined", c->quarantined},
		{"set_aside", c->set_aside},
		{"batches_outside", c->batches_outside},
		{"unanchored", c->unanchored},
		{"schema_texts", c->schema_texts},
	};

	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		buf_printf(out, ",\"%s\":%" PRId64, members[i].name, members[i].n);
}

bool
store_verify_json(struct db *db, const struct verify_query *q, struct buf *out, struct err *err)
{
	struct verify_run v = {.db = db, .report = {.out = out}};
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE], proved[TIME_TEXT_SIZE];
	struct db_ledger l;

	if (!db_ledger_get(db, &l, err) || !begin(&v, err))
		return false;
	v.from_ns = hour_floor(&l, q->from_ns);
	v.to_ns = hour_ceil(&l, q->to_ns);
	if (v.from_ns >= v.to_ns)
		return err_set(err, ERR_INVALID, "from must be before to");
	buf_printf(out, "{\"from\":\"%s\",\"to\":\"%s\",\"differences\":[", time_format(v.from_ns, from),
	           time_format(v.to_ns, to));
	if (!run_parts(&v, q->part, q->node, err))
		return false;
	buf_char(out, ']');
	write_counts(&v.report, out);
	buf_printf(out, ",\"proved_from\":\"%s\"}\n",
	           time_format(v.from_ns > v.report.proved_ns ? v.from_ns : v.report.proved_ns, proved));
	return buf_ok(out, "the answer", err);
}

bool
store_verify_month(struct db *db, const char *month, verify_progress *progress, void *arg, struct verify_counts *ret,
                   struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify month",
		"SELECT ns_of(p.ends_at), ns_of(least(p.starts_at, (SELECT min(q.starts_at) FROM period q JOIN late_change l ON l.month = q.month))), "
		"ns_of(least(p.starts_at, (SELECT min(q.starts_at) FROM period q JOIN billing_day b ON b.starts_at >= q.starts_at AND b.starts_at < q.ends_at "
		"WHERE q.status = 'closed' AND NOT b.hours_gone))), ns_of(p.starts_at) FROM period p WHERE p.month = $1"};
	struct verify_run v = {.db = db, .report = {.out = out}, .progress = progress, .arg = arg};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int64_t starts_ns;

	arg_text(&a, month);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "the ledger has nothing of period %.40s", month);
	v.to_ns = res_i64(r, 0, 0);
	v.of_close = true;
	v.total = VERIFY_PARTS - VERIFY_NODES;
	buf_char(out, '[');
	if (!begin(&v, err))
		return false;
	/* Months before it whose batches were deleted cannot change any more. */
	starts_ns = res_i64(r, 0, 3);
	v.from_ns = v.report.proved_ns < starts_ns ? v.report.proved_ns : starts_ns;
	if (res_i64(r, 0, 1) > v.from_ns)
		v.from_ns = res_i64(r, 0, 1);
	if (!run_part(&v, VERIFY_NODES, NULL, err) || !run_part(&v, VERIFY_DAYS, NULL, err))
		return false;
	v.from_ns = res_i64(r, 0, 2);
	if (!run_part(&v, VERIFY_BILLS, NULL, err) || !run_part(&v, VERIFY_ROWS, NULL, err) ||
	    !step(&v, "audit log", err) || !verify_audit_chains(db, &v.report, err))
		return false;
	buf_char(out, ']');
	*ret = v.report.counts;
	return buf_ok(out, "the differences", err);
}

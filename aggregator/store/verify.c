/* aggregator/store/verify.c - the ledger against its evidence: every node of a range, and the list of differences. */

#include "aggregator/store/attribute.h"
#include "aggregator/store/verify.h"
#include "common/json.h"

/* All are counted; so many are told in one answer. */
#define DIFFERENCES_MAX 10000

/* --- the list --- */

static void
say(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what, const char *expected,
    const char *found, const char *difference)
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

	if (r->count++ >= DIFFERENCES_MAX)
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
verify_say_text(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                const char *expected, const char *found)
{
	say(n, kind, gpu, hour_ns, what, expected, found, "");
}

void
verify_say(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what, int128 expected,
           int128 found)
{
	char a[DECIMAL_TEXT_SIZE], b[DECIMAL_TEXT_SIZE], c[DECIMAL_TEXT_SIZE];

	say(n, kind, gpu, hour_ns, what, decimal_format(expected, 0, 0, a), decimal_format(found, 0, 0, b),
	    decimal_format(found - expected, 0, 0, c));
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
	idmap_fini(&n->gpu_at);
	idmap_fini(&n->device_gpu);
	verify_rules_fini(&n->rules);
}

size_t
verify_gpu_enter(struct verify_node *n, int64_t gpu_id, int64_t device_id, const char *uuid)
{
	size_t i = idmap_get(&n->gpu_at, (uint64_t)gpu_id);

	if (i != IDMAP_NONE)
		return i;
	i = n->gpu_count++;
	n->gpus = mem_grow(n->gpus, n->gpu_count, sizeof(*n->gpus));
	n->gpus[i] = (struct verify_gpu){
		.gpu_id = gpu_id, .device_id = device_id, .uuid = mem_strdup(uuid), .first_ns = INT64_MAX};
	idmap_put(&n->gpu_at, (uint64_t)gpu_id, i);
	idmap_put(&n->device_gpu, (uint64_t)device_id, i);
	return i;
}

const char *
verify_gpu_of(const struct verify_node *n, int64_t device_id)
{
	size_t i = idmap_get(&n->device_gpu, (uint64_t)device_id);

	return i == IDMAP_NONE ? NULL : n->gpus[i].uuid;
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
			.gpu = res_null(r, row, 0) ? SIZE_MAX : idmap_get(&n->gpu_at, (uint64_t)res_i64(r, row, 0)),
			.maintenance = res_bool(r, row, 1),
			.from_ns = res_i64(r, row, 2),
			.until_ns = res_null(r, row, 3) ? INT64_MAX : res_i64(r, row, 3),
		};
	return true;
}

/* How far the node is accounted for: read in the same snapshot as everything else. */
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

	if (!db_tx_begin_read(&tx, n->db, err) || !load_node(n, err) || !load_services(n, err) ||
	    !load_states(n, err) || !verify_rules_load(n, err) || !verify_streams(n, err))
		return false;
	n->report->nodes++;
	from_ns = n->hours_from_ns > n->from_ns ? n->hours_from_ns : n->from_ns;
	to_ns = n->hours_until_ns < n->to_ns ? n->hours_until_ns : n->to_ns;
	/* Without its batches an hour can be shown, and not proved. */
	if (from_ns < n->report->proved_ns)
		from_ns = hour_ceil(&n->ledger, n->report->proved_ns);
	for (int64_t hour_ns = from_ns; hour_ns < to_ns; hour_ns += NS_PER_HOUR)
		if (!verify_hour(n, hour_ns, err))
			return false;
	return db_tx_commit(&tx, err);
}

/* --- all of them --- */

static bool
verify_nodes(struct db *db, const struct verify_query *q, struct verify_report *report, int64_t from_ns, int64_t to_ns,
             struct err *err)
{
	static const struct db_stmt stmt = {
		"verify nodes", "SELECT id, name FROM node WHERE $1::text IS NULL OR name = $1 ORDER BY name"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->node);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (q->node != NULL && PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "node: there is no node \"%.64s\"", q->node);
	for (int row = 0; row < PQntuples(r); row++) {
		in_place(verify_node) struct verify_node n = {
			.db = db,
			.report = report,
			.from_ns = from_ns,
			.to_ns = to_ns,
			.id = res_i64(r, row, 0),
			.name = res_text(r, row, 1),
		};

		if (!db_ledger_get(db, &n.ledger, err) || !verify_node(&n, err))
			return err_prefix(err, "node %s", n.name);
	}
	if (q->node == NULL) {
		struct verify_node all = {.db = db, .report = report, .from_ns = from_ns, .to_ns = to_ns, .name = ""};

		return verify_days(&all, err) && verify_charges(&all, err);
	}
	return true;
}

static bool
load_proved(struct db *db, struct verify_report *report, struct err *err)
{
	static const struct db_stmt stmt = {"verify proved", "SELECT evidence_from_ns FROM ledger"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	report->proved_ns = res_i64(r, 0, 0);
	return true;
}

bool
store_verify_json(struct db *db, const struct verify_query *q, struct buf *out, struct err *err)
{
	struct verify_report report = {.out = out};
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE], proved[TIME_TEXT_SIZE];
	int64_t from_ns, to_ns;
	struct db_ledger l;

	/* While holders are being attributed again, the ledger does not say yet what the rules say. */
	if (!db_ledger_get(db, &l, err) || !reattribute_settled(db, err))
		return false;
	from_ns = hour_floor(&l, q->from_ns);
	to_ns = hour_ceil(&l, q->to_ns);
	if (from_ns >= to_ns)
		return err_set(err, ERR_INVALID, "from must be before to");
	if (!load_proved(db, &report, err))
		return false;
	buf_printf(out, "{\"from\":\"%s\",\"to\":\"%s\",\"differences\":[", time_format(from_ns, from),
	           time_format(to_ns, to));
	if (!verify_nodes(db, q, &report, from_ns, to_ns, err))
		return false;
	buf_printf(out,
	           "],\"count\":%" PRId64 ",\"left_out\":%" PRId64 ",\"nodes\":%" PRId64 ",\"hours\":%" PRId64
	           ",\"batches\":%" PRId64 ",\"records\":%" PRId64 ",\"days\":%" PRId64 ",\"pending\":%" PRId64
	           ",\"proved_from\":\"%s\"}\n",
	           report.count, report.count - report.written, report.nodes, report.hours, report.batches,
	           report.records, report.days, report.pending,
	           time_format(from_ns > report.proved_ns ? from_ns : report.proved_ns, proved));
	return buf_ok(out, "the answer", err);
}

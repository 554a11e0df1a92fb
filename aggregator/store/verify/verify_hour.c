/* aggregator/store/verify/verify_hour.c - a node-hour: the records of its batches against usage_interval, and their
 * sums against the sealed sums, or against those of an open hour. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/units.h"

#define ROW_PAGE 5000

/* Columns of a page of intervals: these two, then those of node_hour_interval. */
enum { ROW_STREAM, ROW_SEQ, ROW_FIRST };

static void
verify_hour_fini(struct verify_hour *h)
{
	node_hour_rows_fini(&h->expected);
	PQclear(h->page);
}

/* --- records --- */

static bool
open_rows(struct verify_hour *h, struct err *err)
{
	char sql[768];

	snprintf(
		sql, sizeof(sql),
		"DECLARE verify_rows NO SCROLL CURSOR FOR SELECT stream_id, seq, start_ns, device_id, "
		"coalesce(holder_id, 0), state, units, sharing, method, duration_ns, held_ns, used_ns, unmeasured_ns, "
		"over_ns, memory_byte_ms, energy_mj, ticks, peak_memory_bytes, sm_active_ns, sm_measured_ns FROM usage_interval WHERE start_ns >= %" PRId64
		" AND start_ns < %" PRId64 " AND node_id = %" PRId64 " ORDER BY stream_id, seq",
		h->from_ns, h->to_ns, h->node->id);
	return db_script(h->node->db, sql, err);
}

/* The row at the cursor; *ret_any false: there is none left. */
static bool
row_at(struct verify_hour *h, bool *ret_any, struct err *err)
{
	char sql[64];

	if (!h->ended && (h->page == NULL || h->row == PQntuples(h->page))) {
		PQclear(take(h->page));
		snprintf(sql, sizeof(sql), "FETCH FORWARD %d FROM verify_rows", ROW_PAGE);
		if (!db_run_text(h->node->db, sql, NULL, &h->page, err))
			return false;
		h->row = 0;
		h->ended = PQntuples(h->page) == 0;
	}
	*ret_any = !h->ended;
	return true;
}

static struct node_hour_interval
interval_at(const struct verify_hour *h)
{
	struct node_hour_interval i;

	for (int c = 0; c < NODE_HOUR_COLUMNS; c++)
		i.v[c] = res_i64(h->page, h->row, ROW_FIRST + c);
	return i;
}

struct fault_place {
	struct verify_hour *hour;
	const struct verify_stream *stream; /* NULL: a stream of another node, or none */
	int64_t seq;
};

static void
report_interval(void *arg, enum node_hour_fault fault, const struct node_hour_interval *expected,
                const struct node_hour_interval *found)
{
	static const char *const kinds[] = {[NODE_HOUR_MISSING] = "interval-missing",
	                                    [NODE_HOUR_EXTRA] = "interval-extra",
	                                    [NODE_HOUR_DOUBLED] = "interval-doubled",
	                                    [NODE_HOUR_CHANGED] = "interval-changed"};
	const struct fault_place *p = arg;
	struct verify_node *n = p->hour->node;
	const struct node_hour_interval *some = expected != NULL ? expected : found;
	const char *gpu = verify_gpu_of(n, some->v[NODE_HOUR_DEVICE]);
	char what[256], batch[64] = "no batch of this node";

	if (p->stream != NULL)
		snprintf(batch, sizeof(batch), "batch %" PRId64 " of epoch %" PRId64, p->seq, p->stream->epoch);
	if (fault != NODE_HOUR_CHANGED) {
		snprintf(what, sizeof(what), "%s: unit-ns of device %" PRId64 " at start_ns %" PRId64, batch,
		         some->v[NODE_HOUR_DEVICE], some->v[NODE_HOUR_START]);
		verify_report_amount(
			n, kinds[fault], gpu, p->hour->from_ns, what,
			fault == NODE_HOUR_EXTRA ? 0 : (int128)some->v[NODE_HOUR_UNITS] * some->v[NODE_HOUR_HELD],
			fault == NODE_HOUR_MISSING ? 0
						   : (int128)some->v[NODE_HOUR_UNITS] * some->v[NODE_HOUR_HELD] *
							     (fault == NODE_HOUR_DOUBLED ? 2 : 1));
		return;
	}
	for (size_t c = 0; c < NODE_HOUR_COLUMNS; c++) {
		if (expected->v[c] == found->v[c])
			continue;
		snprintf(what, sizeof(what), "%s: %s of device %" PRId64 " at start_ns %" PRId64, batch,
		         node_hour_column_names[c], some->v[NODE_HOUR_DEVICE], some->v[NODE_HOUR_START]);
		verify_report_amount(n, kinds[fault], gpu, p->hour->from_ns, what, expected->v[c], found->v[c]);
	}
}

/* Reports rows without a record in a batch, up to a position of stream and batch. */
static bool
pass_rows(struct verify_hour *h, int64_t stream_id, int64_t seq, struct err *err)
{
	struct fault_place place = {.hour = h};
	bool any;

	for (;; h->row++) {
		struct node_hour_interval i;
		int64_t stream;

		if (!row_at(h, &any, err))
			return false;
		if (!any)
			return true;
		stream = res_i64(h->page, h->row, ROW_STREAM);
		if (stream > stream_id || (stream == stream_id && res_i64(h->page, h->row, ROW_SEQ) >= seq))
			return true;
		i = interval_at(h);
		report_interval(&place, NODE_HOUR_EXTRA, NULL, &i);
	}
}

/* An array that doubles when its count reaches a power of two. */
static void
push(struct node_hour_interval **at, size_t *n, const struct node_hour_interval *i)
{
	if ((*n & (*n - 1)) == 0)
		*at = mem_grow(*at, *n == 0 ? 1 : 2 * *n, sizeof(**at));
	(*at)[(*n)++] = *i;
}

/* Translates a record to the ledger's numbers; false if the dictionary lacks one, which the dictionary check reports. */
static bool
translate(const struct verify_stream *s, const struct wire_record *r, struct node_hour_interval *ret)
{
	size_t device, holder = 0;

	if (!hash_find(&s->device_rows, r->device, &device) ||
	    (r->holder != 0 && !hash_find(&s->holder_rows, r->holder, &holder)))
		return false;
	*ret = (struct node_hour_interval){{
		[NODE_HOUR_START] = r->start_ns,
		[NODE_HOUR_DEVICE] = res_i64(s->devices, (int)device, 1),
		[NODE_HOUR_HOLDER] = r->holder != 0 ? res_i64(s->holders, (int)holder, 1) : 0,
		[NODE_HOUR_STATE] = r->state,
		[NODE_HOUR_UNITS] = r->units,
		[NODE_HOUR_SHARING] = r->sharing,
		[NODE_HOUR_METHOD] = r->method,
		[NODE_HOUR_DURATION] = r->duration_ns,
		[NODE_HOUR_HELD] = r->held_ns,
		[NODE_HOUR_USED_NS] = r->used_ns,
		[NODE_HOUR_UNMEASURED_NS] = r->unmeasured_ns,
		[NODE_HOUR_OVER_NS] = r->over_ns,
		[NODE_HOUR_MEMORY_BYTE_MS] = r->memory_byte_ms,
		[NODE_HOUR_ENERGY_MJ] = r->energy_mj,
		[NODE_HOUR_TICKS] = r->ticks,
		[NODE_HOUR_PEAK_MEMORY_BYTES] = r->peak_memory_bytes,
		[NODE_HOUR_SM_ACTIVE_NS] = r->sm_active_ns,
		[NODE_HOUR_SM_MEASURED_NS] = r->sm_measured_ns,
	}};
	return true;
}

/* Adds a record to the sums of the hour and of its GPU, which must be in service throughout. */
static void
account(struct verify_hour *h, const struct node_hour_interval *i)
{
	struct verify_node *n = h->node;
	size_t g = hash_get(&n->device_gpu, (uint64_t)i->v[NODE_HOUR_DEVICE]);
	struct verify_gpu *gpu = &n->gpus[g];
	bool inside = false;

	n->report->counts.records++;
	node_hour_rows_record(&h->expected, gpu->gpu_id, i);
	gpu->held += (int128)i->v[NODE_HOUR_UNITS] * i->v[NODE_HOUR_HELD];
	if (i->v[NODE_HOUR_START] < gpu->first_ns)
		gpu->first_ns = i->v[NODE_HOUR_START];
	for (size_t k = 0; k < n->service_count && !inside; k++)
		inside = n->services[k].gpu == g && n->services[k].from_ns <= i->v[NODE_HOUR_START] &&
		         i->v[NODE_HOUR_START] + i->v[NODE_HOUR_DURATION] <= n->services[k].until_ns;
	gpu->outside = gpu->outside || !inside;
}

/* A record of a GPU without a row must be set aside; otherwise it is missing. */
static void
report_unstored(struct verify_hour *h, const struct verify_stream *s, int64_t seq, const char *gpu,
                const struct wire_record *r)
{
	char what[256];

	if (gpu == NULL)
		return;
	snprintf(what, sizeof(what),
	         "batch %" PRId64 " of epoch %" PRId64 ": unit-ns of device number %" PRIu32 " at start_ns %" PRId64
	         ", neither taken nor set aside",
	         seq, s->epoch, r->device, r->start_ns);
	verify_report_amount(h->node, "interval-missing", gpu, h->from_ns, what, (int128)r->units * r->held_ns, 0);
}

bool
verify_records(struct verify_hour *h, struct verify_stream *s, const struct wire_batch *b, int64_t seq, struct err *err)
{
	owned(mem) struct node_hour_interval *expected = NULL, *found = NULL;
	struct fault_place place = {.hour = h, .stream = s, .seq = seq};
	struct node_hour_interval i;
	size_t n = 0, m = 0;
	bool any;

	for (size_t k = 0; k < b->record_count; k++) {
		const struct wire_record *r = &b->records[k];
		const char *gpu;

		if (r->start_ns < h->from_ns || r->start_ns >= h->to_ns)
			continue;
		gpu = verify_stream_gpu(s, r->device);
		if (gpu != NULL && verify_set_aside(s, seq, gpu))
			continue;
		if (!translate(s, r, &i)) {
			report_unstored(h, s, seq, gpu, r);
			continue;
		}
		account(h, &i);
		if (!h->retired)
			push(&expected, &n, &i);
	}
	if (h->retired)
		return true;
	if (!pass_rows(h, s->id, seq, err))
		return false;
	for (;; h->row++) {
		if (!row_at(h, &any, err))
			return false;
		if (!any || res_i64(h->page, h->row, ROW_STREAM) != s->id || res_i64(h->page, h->row, ROW_SEQ) != seq)
			break;
		i = interval_at(h);
		push(&found, &m, &i);
	}
	node_hour_compare_intervals(expected, n, found, m, report_interval, &place);
	return true;
}

/* --- sums --- */

/* The GPU's time in service in this hour. */
static int64_t
served_ns(const struct verify_hour *h, size_t gpu)
{
	const struct verify_node *n = h->node;
	int64_t sum = 0;

	for (size_t k = 0; k < n->service_count; k++) {
		const struct verify_service *s = &n->services[k];
		int64_t from_ns = s->from_ns > h->from_ns ? s->from_ns : h->from_ns, to_ns = h->to_ns;

		if (s->gpu != gpu)
			continue;
		if (s->until_ns < to_ns)
			to_ns = s->until_ns;
		if (n->accounted_ns < to_ns)
			to_ns = n->accounted_ns;
		if (from_ns < to_ns)
			sum += to_ns - from_ns;
	}
	return sum;
}

/* A service begins with a record, and no record lies outside it. */
static void
check_services(struct verify_hour *h)
{
	struct verify_node *n = h->node;

	for (size_t i = 0; i < n->gpu_count; i++)
		if (n->gpus[i].outside)
			verify_report_text(n, "service", n->gpus[i].uuid, h->from_ns, "records of the GPU",
			                   "in its time in service", "outside it");
	for (size_t k = 0; k < n->service_count; k++) {
		const struct verify_service *s = &n->services[k];

		if (s->from_ns >= h->from_ns && s->from_ns < h->to_ns && n->gpus[s->gpu].first_ns > s->from_ns)
			verify_report_amount(n, "service", n->gpus[s->gpu].uuid, h->from_ns,
			                     "from_ns of its time in service",
			                     n->gpus[s->gpu].first_ns == INT64_MAX ? 0 : n->gpus[s->gpu].first_ns,
			                     s->from_ns);
	}
}

#define SUM_COLUMNS                                                                                                 \
	"SELECT u.device_id, coalesce(u.holder_id, 0), u.sharing, u.method, coalesce(d.gpu_id, 0), "                \
	"coalesce(u.workspace_id, 0), u.used, u.idle, u.unmeasured, u.unallocated, u.stranded, u.down, u.unknown, " \
	"u.over, u.clock_adjust, u.energy_mj, u.memory_byte_ms, u.sm_active, u.sm_measured, u.peak_memory_bytes FROM "

static void
name_row(const struct node_hour_row *r, const char *thing, char out[256])
{
	snprintf(out, 256, "%s of device %" PRId64 ", holder %" PRId64 ", sharing %" PRId64 ", method %" PRId64, thing,
	         r->device_id, r->holder_id, r->sharing, r->method);
}

/* Sealed and clean hours are read from their stored sums; others as every reader of an open hour reads them. */
static bool
load_found(struct verify_hour *h, struct node_hour_rows *ret, struct err *err)
{
	static const struct db_stmt sealed = {"verify sealed",
	                                      SUM_COLUMNS "usage_hourly u LEFT JOIN device d ON d.id = u.device_id "
	                                                  "WHERE u.node_id = $1 AND u.hour = $2"};
	static const struct db_stmt open = {"verify open",
	                                    SUM_COLUMNS "hour_usage($2, ARRAY[$1::integer], $3, false) u "
	                                                "LEFT JOIN device d ON d.id = u.device_id"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, h->node->id);
	arg_time(&a, h->from_ns);
	if (!h->stored)
		arg_i64(&a, h->sliced_until_ns);
	if (!db_run(h->node->db, h->stored ? &sealed : &open, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct node_hour_row u = {
			.device_id = res_i64(r, row, 0),
			.holder_id = res_i64(r, row, 1),
			.sharing = res_i64(r, row, 2),
			.method = res_i64(r, row, 3),
			.gpu_id = res_i64(r, row, 4),
			.workspace_id = res_i64(r, row, 5),
		};
		char what[256];

		for (int s = 0; s < NODE_HOUR_SUMS; s++) {
			name_row(&u, node_hour_sum_names[s], what);
			u.sum[s] = verify_amount(h->node, r, row, 6 + s, "hour-changed",
			                         verify_gpu_of(h->node, u.device_id), h->from_ns, what);
		}
		node_hour_rows_add(ret, &u);
	}
	node_hour_rows_pack(ret);
	return true;
}

static int128
states_of(const struct node_hour_row *r)
{
	int128 sum = 0;

	for (size_t s = 0; s < NODE_HOUR_STATES; s++)
		sum += r->sum[s];
	return sum;
}

static void
report_lone_row(const struct verify_hour *h, const char *kind, const struct node_hour_row *row, int128 expected,
                int128 found)
{
	char what[256];

	name_row(row, "unit-ns", what);
	verify_report_amount(h->node, kind, verify_gpu_of(h->node, row->device_id), h->from_ns, what, expected, found);
}

static void
report_changes(const struct verify_hour *h, const struct node_hour_row *expected, const struct node_hour_row *found)
{
	const char *gpu = verify_gpu_of(h->node, expected->device_id);
	char what[256];

	for (size_t s = 0; s < NODE_HOUR_SUMS; s++) {
		if (expected->sum[s] == found->sum[s])
			continue;
		name_row(expected, node_hour_sum_names[s], what);
		verify_report_amount(h->node, "hour-changed", gpu, h->from_ns, what, expected->sum[s], found->sum[s]);
	}
	if (expected->workspace_id != found->workspace_id) {
		name_row(expected, "workspace", what);
		verify_report_text(h->node, "attribution", gpu, h->from_ns, what,
		                   verify_workspace(h->node, expected->workspace_id),
		                   verify_workspace(h->node, found->workspace_id));
	}
}

static void
report_row(void *arg, enum node_hour_fault fault, const struct node_hour_row *expected,
           const struct node_hour_row *found)
{
	const struct verify_hour *h = arg;

	(void)fault;
	if (expected == NULL)
		report_lone_row(h, "hour-row-extra", found, 0, states_of(found));
	else if (found == NULL)
		report_lone_row(h, "hour-row-missing", expected, states_of(expected), 0);
	else
		report_changes(h, expected, found);
}

/* A GPU's own state precedes its node's. */
static bool
in_maintenance(const struct verify_hour *h, size_t gpu)
{
	const struct verify_state *found = NULL;

	for (size_t i = 0; i < h->node->state_count; i++) {
		const struct verify_state *s = &h->node->states[i];

		if (s->from_ns <= h->from_ns && h->from_ns < s->until_ns &&
		    (s->gpu == gpu || (s->gpu == SIZE_MAX && found == NULL)))
			found = s;
	}
	return found != NULL && found->maintenance;
}

/* During maintenance, time without a holder is down, whatever was reported. */
static void
apply_states(struct verify_hour *h)
{
	static const enum node_hour_sum free_sums[] = {NODE_HOUR_UNALLOCATED, NODE_HOUR_STRANDED, NODE_HOUR_UNKNOWN};

	for (size_t i = 0; h->node->state_count > 0 && i < h->expected.count; i++) {
		struct node_hour_row *row = &h->expected.at[i];

		if (!in_maintenance(h, hash_get(&h->node->gpu_at, (uint64_t)row->gpu_id)))
			continue;
		for (size_t s = 0; s < ARRAY_LEN(free_sums); s++) {
			row->sum[NODE_HOUR_DOWN] += row->sum[free_sums[s]];
			row->sum[free_sums[s]] = 0;
		}
	}
}

static bool
compare_sums(struct verify_hour *h, struct err *err)
{
	in_place(node_hour_rows) struct node_hour_rows found = {0};
	struct verify_node *n = h->node;

	for (size_t i = 0; i < n->gpu_count; i++)
		node_hour_rows_balance(&h->expected, n->gpus[i].gpu_id, n->gpus[i].device_id, served_ns(h, i),
		                       n->gpus[i].held);
	node_hour_rows_pack(&h->expected);
	apply_states(h);
	if (!verify_owners(n, h->from_ns, &h->expected, err) || !load_found(h, &found, err))
		return false;
	node_hour_rows_compare(&h->expected, &found, report_row, h);
	for (size_t i = 0; i < n->gpu_count; i++) {
		int128 expected = (int128)UNITS_PER_GPU * served_ns(h, i);
		int128 conserved = node_hour_rows_conserved(&found, n->gpus[i].gpu_id);

		if (expected != conserved)
			verify_report_amount(n, "conservation", n->gpus[i].uuid, h->from_ns,
			                     "unit-ns of all states, less clock_adjust, against the time in service",
			                     expected, conserved);
	}
	return true;
}

/* State of the hour: sealed and clean, or open; its records stored, or retired. */
static bool
load_state(struct verify_hour *h, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify hour",
		"SELECT sealed_at IS NOT NULL AND (retired OR NOT dirty), retired, retired AND changes <> sealed_changes, "
		"coalesce(sliced_until_ns, ns_of(hour)), dirty FROM node_hour WHERE node_id = $1 AND hour = $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, h->node->id);
	arg_time(&a, h->from_ns);
	if (!db_run(h->node->db, &stmt, &a, &r, err))
		return false;
	h->sliced_until_ns = h->from_ns;
	if (PQntuples(r) == 0) {
		verify_report_text(h->node, "hour-missing", NULL, h->from_ns, "the node-hour", "a row", "");
		return true;
	}
	h->stored = res_bool(r, 0, 0);
	h->retired = res_bool(r, 0, 1);
	h->pending = res_bool(r, 0, 2);
	h->sliced_until_ns = res_i64(r, 0, 3);
	/* An hour that is not marked dirty is never sealed again. */
	if (h->pending && !res_bool(r, 0, 4))
		verify_report_text(h->node, "hour-flag", NULL, h->from_ns, "a node-hour that is to be made again",
		                   "dirty", "clean");
	return true;
}

bool
verify_hour(struct verify_node *n, int64_t hour_ns, struct err *err)
{
	in_place(verify_hour) struct verify_hour h = {.node = n, .from_ns = hour_ns, .to_ns = hour_ns + NS_PER_HOUR};

	if (!load_state(&h, err))
		return false;
	/* Late data is being merged into its records: neither records nor sums match the batches yet. */
	if (h.pending) {
		n->report->counts.hours_pending++;
		return true;
	}
	n->report->counts.hours++;
	for (size_t i = 0; i < n->gpu_count; i++) {
		n->gpus[i].held = 0;
		n->gpus[i].first_ns = INT64_MAX;
		n->gpus[i].outside = false;
	}
	if (!h.retired && !open_rows(&h, err))
		return false;
	for (size_t i = 0; i < n->stream_count; i++)
		if (!verify_stream_hour(&h, &n->streams[i], err))
			return false;
	if (!h.retired && (!pass_rows(&h, INT64_MAX, 0, err) || !db_script(n->db, "CLOSE verify_rows", err)))
		return false;
	check_services(&h);
	return compare_sums(&h, err);
}

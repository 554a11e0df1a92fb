/* aggregator/store/verify/verify_lost.c - lost_hold of a folded day against the losses that its batches show.
 *
 * Rules, in order:
 *  1. GPU-hours with time down, silent or in error after a hold are candidates; they are found in sealed hours, which
 *     are verified
 *  2. their records are read from the batches, also where the rows of usage_interval are retired; lost_expected.c
 *     decides which holds are lost
 *  3. lost_hold has one row for each of them, equal in every column, and no other; a row belongs to the day in which the
 *     hold ended. Failures in the last minutes of the day before and in the first minute of the day after are looked at too,
 *     because other devices of the same workload are lost with the failed one
 *  4. before the next day is folded, its beginning may not have been known: a row of the last minutes of a day may be
 *     missing, or may follow from the day alone; one of the last minute may follow from a part of the next day. Before the
 *     previous day is folded, the same holds for rows of the first minutes that other failures explain */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/metering/lost_expected.h"
#include "aggregator/store/verify/verify_ledger.h"

#define BATCH_PAGE "8" /* a page contains payloads */
#define LATE_NS (11 * NS_PER_MIN)
/* Rule 5 of lost_expected.h: a device is lost from a minute before another one fails until ten minutes after. */
#define LOST_BEFORE_NS NS_PER_MIN
#define LOST_AFTER_NS (10 * NS_PER_MIN)

struct lost_list {
	struct lost_expected *at;
	size_t count;
};
struct loss_check {
	struct verify_node *n;
	const char *day;
	int64_t from_ns, until_ns;
	struct lost_expected_record *records;
	size_t record_count;
	struct lost_expected_xid *xids;
	size_t xid_count;
	struct lost_list all, alone; /* by all known data, and by the day alone */
	bool before_folded, next_folded;
	struct lost_expected *found;
	size_t found_count;
};

static void
loss_check_fini(struct loss_check *l)
{
	mem_free(l->records);
	mem_free(l->xids);
	mem_free(l->all.at);
	mem_free(l->alone.at);
	mem_free(l->found);
}

static void
push(void *arg, const struct lost_expected *lost)
{
	struct lost_list *list = arg;

	list->at = mem_grow(list->at, list->count + 1, sizeof(*list->at));
	list->at[list->count++] = *lost;
}

/* --- rule 2: records --- */

/* The counting records of a batch that begin in the window. */
static bool
add_batch(struct loss_check *l, int64_t node, int64_t stream, int64_t seq, const struct wire_batch *b, int64_t from_ns,
          int64_t to_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify lost ids",
		"SELECT e.ord, d.gpu_id, d.id, coalesce(h.holder_id, 0) FROM unnest($3::bigint[], $4::bigint[]) WITH ORDINALITY AS e(device, holder, ord) "
		"JOIN stream_device x ON x.stream_id = $1 AND x.local_id = e.device JOIN device d ON d.id = x.device_id JOIN gpu g ON g.id = d.gpu_id "
		"LEFT JOIN stream_holder h ON h.stream_id = $1 AND h.local_id = e.holder WHERE NOT EXISTS (SELECT FROM batch_set_aside a "
		"WHERE a.stream_id = $1 AND a.seq = $2 AND a.gpu = g.uuid AND a.decision IS DISTINCT FROM 'released')"};
	in_place(db_columns) struct db_columns c = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_columns_init(&c, 2);
	for (size_t i = 0; i < b->record_count; i++) {
		array_i64(&c.col[0], b->records[i].device);
		array_i64(&c.col[1], b->records[i].holder);
	}
	arg_i64(&a, stream);
	arg_i64(&a, seq);
	arg_columns(&a, &c);
	if (!db_run(l->n->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const struct wire_record *w = &b->records[res_i64(r, row, 0) - 1];

		if (w->start_ns < from_ns || w->start_ns >= to_ns)
			continue;
		l->records = mem_grow(l->records, l->record_count + 1, sizeof(*l->records));
		l->records[l->record_count++] = (struct lost_expected_record){
			.node = node,
			.gpu = res_i64(r, row, 1),
			.device = res_i64(r, row, 2),
			.holder = res_i64(r, row, 3),
			.stream = stream,
			.start_ns = w->start_ns,
			.end_ns = w->start_ns + w->duration_ns,
			.state = (int)w->state,
		};
	}
	return true;
}

/* A batch that cannot be decoded is reported by verify_stream.c. */
static bool
unpack(struct loss_check *l, const PGresult *r, int row, int64_t node, int64_t from_ns, int64_t to_ns, struct err *err)
{
	owned(wire_batch) struct wire_batch *b = NULL;
	struct err why = {0};
	unsigned char *payload;
	size_t len = 0;
	bool ok;

	payload = PQunescapeBytea((const unsigned char *)res_text(r, row, 2), &len);
	if (payload == NULL)
		return err_set(err, ERR_RETRY, "no memory for a batch");
	ok = wire_unpack(payload, len, &b, &why) && wire_check(b, &why);
	PQfreemem(payload);
	return !ok || add_batch(l, node, res_i64(r, row, 0), res_i64(r, row, 1), b, from_ns, to_ns, err);
}

/* The records of a node that begin in the window, and the errors of its GPUs around it. */
static bool
load_window(struct loss_check *l, int64_t node, int64_t from_ns, int64_t to_ns, struct err *err)
{
	static const struct db_stmt batches = {
		"verify lost batches",
		"SELECT b.stream_id, b.seq, b.payload FROM ingest_batch b JOIN stream s ON s.id = b.stream_id WHERE s.node_id = $1 AND b.status = 'accepted' "
		"AND b.from_ns < $3 AND b.to_ns > $2 AND (b.stream_id, b.seq) > ($4::integer, $5::bigint) ORDER BY b.stream_id, b.seq LIMIT " BATCH_PAGE};
	static const struct db_stmt xids = {
		"verify lost errors",
		"SELECT gpu_id, at_ns, xid FROM gpu_xid WHERE at_ns >= $1 - 1800000000000 AND at_ns < $2 + 1800000000000"};
	owned(result) PGresult *x = NULL;
	struct db_args e = {0};
	int64_t stream = 0, seq = 0;
	bool more = true;

	l->record_count = l->xid_count = 0;
	arg_i64(&e, from_ns);
	arg_i64(&e, to_ns);
	if (!db_run(l->n->db, &xids, &e, &x, err))
		return false;
	l->xids = mem_grow(l->xids, (size_t)PQntuples(x) + 1, sizeof(*l->xids));
	for (int row = 0; row < PQntuples(x); row++)
		l->xids[l->xid_count++] = (struct lost_expected_xid){.gpu = res_i64(x, row, 0),
		                                                     .at_ns = res_i64(x, row, 1),
		                                                     .xid = res_i64(x, row, 2)};
	while (more) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		arg_i64(&a, node);
		arg_i64(&a, from_ns);
		arg_i64(&a, to_ns);
		arg_i64(&a, stream);
		arg_i64(&a, seq);
		if (!db_run(l->n->db, &batches, &a, &r, err))
			return false;
		more = PQntuples(r) > 0;
		for (int row = 0; row < PQntuples(r); row++) {
			stream = res_i64(r, row, 0);
			seq = res_i64(r, row, 1);
			if (!unpack(l, r, row, node, from_ns, to_ns, err))
				return false;
		}
	}
	return true;
}

static struct lost_expected_evidence
seen(const struct loss_check *l, int64_t accounted_ns, int64_t before_ns)
{
	return (struct lost_expected_evidence){.records = l->records,
	                                       .record_count = l->record_count,
	                                       .xids = l->xids,
	                                       .xid_count = l->xid_count,
	                                       .accounted_ns = accounted_ns,
	                                       .before_ns = before_ns};
}

/* Drops the records of GPUs that are not candidates in that hour. */
static void
keep_gpus(struct loss_check *l, const PGresult *gpus, int first, int end)
{
	size_t kept = 0;

	for (size_t i = 0; i < l->record_count; i++)
		for (int row = first; row < end; row++)
			if (res_i64(gpus, row, 2) == l->records[i].gpu) {
				l->records[kept++] = l->records[i];
				break;
			}
	l->record_count = kept;
}

/* Drops losses that ended outside the range. */
static void
keep_ended(struct lost_list *list, int64_t from_ns, int64_t until_ns)
{
	size_t kept = 0;

	for (size_t i = 0; i < list->count; i++)
		if (list->at[i].ended_ns >= from_ns && list->at[i].ended_ns < until_ns)
			list->at[kept++] = list->at[i];
	list->count = kept;
}

/* --- rule 1 --- */

/* Hour, node, GPU, end of the node's accounted time. Five minutes of a GPU are 1,512,000,000,000,000
 * unit-nanoseconds. */
static const char places_sql[] =
	"WITH hours AS MATERIALIZED (SELECT u.hour, u.node_id, d.gpu_id, sum(u.used) + sum(u.idle) + sum(u.unmeasured) AS held, sum(u.down) AS down, "
	"coalesce(sum(u.unknown) FILTER (WHERE u.sharing = 0), 0) AS silent FROM usage_hourly u JOIN device d ON d.id = u.device_id "
	"WHERE u.hour >= $1::timestamptz - interval '1 hour' AND u.hour < $2::timestamptz + interval '1 hour' GROUP BY 1, 2, 3), "
	"beside AS (SELECT h.*, lag(h.held) OVER w AS held_before, lead(h.silent) OVER w AS silent_after FROM hours h WINDOW w AS (PARTITION BY "
	"h.node_id, h.gpu_id ORDER BY h.hour)), "
	"places AS (SELECT hour, node_id, gpu_id FROM beside WHERE (held > 0 OR held_before > 0) AND (down > 0 OR silent >= 1512000000000000 OR "
	"silent_after >= 1512000000000000) UNION SELECT hour_of(t.ns), v.node_id, x.gpu_id FROM gpu_xid x JOIN gpu_service v ON v.gpu_id = x.gpu_id AND "
	"v.from_ns <= x.at_ns AND (v.until_ns IS NULL OR x.at_ns < v.until_ns), LATERAL (VALUES (x.at_ns - 60000000000), (x.at_ns + 600000000000)) t(ns) "
	"WHERE x.at_ns >= ns_of($1) - 600000000000 AND x.at_ns < ns_of($2) + 60000000000 AND x.xid NOT IN (13, 31, 43, 45, 68, 109)) "
	"SELECT ns_of(p.hour), p.node_id, p.gpu_id, coalesce(greatest(n.covered_until_ns, n.silent_until_ns), 0) FROM places p JOIN node n ON n.id = "
	"p.node_id WHERE p.hour >= $1 AND p.hour < $2 ORDER BY 1, 2, 3";

static bool
find_failed(struct loss_check *l, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, l->from_ns - NS_PER_HOUR);
	arg_time(&a, l->until_ns + NS_PER_HOUR);
	if (!db_run_text(l->n->db, places_sql, &a, &r, err))
		return false;
	for (int row = 0, end; row < PQntuples(r); row = end) {
		int64_t hour_ns = res_i64(r, row, 0), node = res_i64(r, row, 1), accounted_ns = res_i64(r, row, 3);
		struct lost_expected_evidence s;

		for (end = row; end < PQntuples(r) && res_i64(r, end, 0) == hour_ns && res_i64(r, end, 1) == node;)
			end++;
		if (!load_window(l, node, hour_ns - 15 * NS_PER_MIN, hour_ns + 70 * NS_PER_MIN, err))
			return false;
		keep_gpus(l, r, row, end);
		s = seen(l, accounted_ns, INT64_MAX);
		lost_expected_stays(&s, hour_ns, push, &l->all);
		s = seen(l, accounted_ns, l->until_ns);
		lost_expected_stays(&s, hour_ns, push, &l->alone);
	}
	keep_ended(&l->all, l->from_ns - LOST_AFTER_NS + 1, l->until_ns + LOST_BEFORE_NS + 1);
	keep_ended(&l->alone, l->from_ns - LOST_AFTER_NS + 1, l->until_ns);
	return true;
}

/* --- other devices of the holders that lost one --- */

static bool
same_key(const struct lost_expected *a, const struct lost_expected *b)
{
	return a->device == b->device && a->holder == b->holder && a->ended_ns == b->ended_ns;
}

/* Losses on other devices caused by the failed one, unless these failed themselves at that end. */
struct loss_others {
	struct lost_list *list;
	size_t failed_count;
};

static void
push_other(void *arg, const struct lost_expected *lost)
{
	struct loss_others *o = arg;

	for (size_t i = 0; i < o->failed_count; i++)
		if (same_key(&o->list->at[i], lost))
			return;
	push(o->list, lost);
}

static bool
find_others(struct loss_check *l, struct lost_list *list, int64_t before_ns, struct err *err)
{
	static const struct db_stmt nodes = {
		"verify lost nodes",
		"SELECT DISTINCT u.node_id FROM usage_hourly u JOIN holder h ON h.id = u.holder_id WHERE u.holder_id = $1 AND h.kind <> 3 "
		"AND u.hour >= hour_of($2::bigint - 900000000000) AND u.hour <= hour_of($2::bigint + 1500000000000)"};
	struct loss_others o = {.list = list, .failed_count = list->count};

	for (size_t i = 0; i < o.failed_count; i++) {
		const struct lost_expected failed = list->at[i];
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		arg_i64(&a, failed.holder);
		arg_i64(&a, failed.ended_ns);
		if (!db_run(l->n->db, &nodes, &a, &r, err))
			return false;
		for (int row = 0; row < PQntuples(r); row++) {
			struct lost_expected_evidence s;

			if (!load_window(l, res_i64(r, row, 0), failed.ended_ns - 15 * NS_PER_MIN,
			                 failed.ended_ns + 25 * NS_PER_MIN, err))
				return false;
			s = seen(l, 0, before_ns);
			lost_expected_others(&s, &failed, push_other, &o);
		}
	}
	keep_ended(list, l->from_ns, l->until_ns);
	return true;
}

/* --- rules 3 and 4 --- */

static enum lost_expected_cause
cause_named(const char *name)
{
	for (int c = LOST_EXPECTED_DOWN; c <= LOST_EXPECTED_XID; c++)
		if (strcmp(lost_expected_causes[c], name) == 0)
			return (enum lost_expected_cause)c;
	return LOST_EXPECTED_NOT;
}

static bool
load_neighbours(struct loss_check *l, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify days beside",
		"SELECT NOT EXISTS (SELECT FROM billing_day b WHERE b.day = $1::date - 1 AND b.dirty), "
		"EXISTS (SELECT FROM billing_day b WHERE b.day = $1::date + 1 AND NOT b.dirty)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, l->day);
	if (!db_run(l->n->db, &stmt, &a, &r, err))
		return false;
	l->before_folded = res_bool(r, 0, 0);
	l->next_folded = res_bool(r, 0, 1);
	return true;
}

static bool
load_found(struct loss_check *l, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify lost found",
		"SELECT node_id, stream_id, device_id, holder_id, ended_ns, coalesce(xid, 0), failed_gpu_id, cause "
		"FROM lost_hold WHERE day = $1::date ORDER BY device_id, holder_id, ended_ns"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, l->day);
	if (!db_run(l->n->db, &stmt, &a, &r, err))
		return false;
	l->found_count = (size_t)PQntuples(r);
	l->found = mem_array(l->found_count, sizeof(*l->found));
	for (int row = 0; row < PQntuples(r); row++)
		l->found[row] = (struct lost_expected){.node = res_i64(r, row, 0),
		                                       .stream = res_i64(r, row, 1),
		                                       .device = res_i64(r, row, 2),
		                                       .holder = res_i64(r, row, 3),
		                                       .ended_ns = res_i64(r, row, 4),
		                                       .xid = res_i64(r, row, 5),
		                                       .failed_gpu = res_i64(r, row, 6),
		                                       .cause = cause_named(res_text(r, row, 7))};
	return true;
}

static bool
same_row(const struct lost_expected *a, const struct lost_expected *b)
{
	return same_key(a, b) && a->node == b->node && a->stream == b->stream && a->xid == b->xid &&
	       a->failed_gpu == b->failed_gpu && a->cause == b->cause;
}

static void
describe(const struct lost_expected *v, char out[256])
{
	snprintf(out, 256, "node %" PRId64 ", stream %" PRId64 ", cause %s, xid %" PRId64 ", failed GPU %" PRId64,
	         v->node, v->stream, lost_expected_causes[v->cause], v->xid, v->failed_gpu);
}

static void
report_loss(const struct loss_check *l, const char *kind, const struct lost_expected *key, const char *expected,
            const char *found)
{
	char what[256];

	snprintf(what, sizeof(what),
	         "a row of lost_hold, %s: device %" PRId64 ", holder %" PRId64 ", ended_ns %" PRId64, l->day,
	         key->device, key->holder, key->ended_ns);
	verify_report_text(l->n, kind, NULL, hour_floor(&l->n->ledger, key->ended_ns), what, expected, found);
}

static const struct lost_expected *
find(const struct lost_list *list, const struct lost_expected *row, bool whole)
{
	for (size_t i = 0; i < list->count; i++)
		if (whole ? same_row(&list->at[i], row) : same_key(&list->at[i], row))
			return &list->at[i];
	return NULL;
}

/* Rule 4: the next day may change it. */
static bool
is_late(const struct loss_check *l, const struct lost_expected *v)
{
	return !l->next_folded && v->ended_ns >= l->until_ns - LATE_NS;
}

/* Rule 4: it may follow from a failure in a neighbour day that is not folded. */
static bool
is_neighbours(const struct loss_check *l, const struct lost_expected *v)
{
	return (!l->before_folded && v->ended_ns < l->from_ns + LOST_AFTER_NS) ||
	       (!l->next_folded && v->ended_ns >= l->until_ns - LOST_BEFORE_NS);
}

static void
check_found(const struct loss_check *l, const struct lost_expected *row)
{
	const struct lost_expected *expected = find(&l->all, row, false);
	char e[256], f[256];

	if (find(&l->all, row, true) != NULL || (is_late(l, row) && find(&l->alone, row, true) != NULL) ||
	    is_neighbours(l, row))
		return;
	describe(row, f);
	if (expected == NULL) {
		report_loss(l, "lost-hold-extra", row, "", f);
		return;
	}
	describe(expected, e);
	report_loss(l, "lost-hold-changed", row, e, f);
}

static bool
is_stored(const struct loss_check *l, const struct lost_expected *expected)
{
	for (size_t i = 0; i < l->found_count; i++)
		if (same_key(&l->found[i], expected))
			return true;
	return false;
}

static void
compare(const struct loss_check *l)
{
	for (size_t i = 0; i < l->found_count; i++)
		check_found(l, &l->found[i]);
	for (size_t i = 0; i < l->all.count; i++) {
		const struct lost_expected *v = &l->all.at[i];
		char expected[256];

		/* One of several equally right answers under the same key is enough. */
		if (find(&l->all, v, false) != v || is_late(l, v) || is_neighbours(l, v) || is_stored(l, v))
			continue;
		describe(v, expected);
		report_loss(l, "lost-hold-missing", v, expected, "");
	}
}

bool
verify_losses(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns, struct err *err)
{
	in_place(loss_check) struct loss_check l = {.n = n, .day = day, .from_ns = from_ns, .until_ns = until_ns};

	/* Without the batches of the hour before, losses cannot be found. */
	if (from_ns - NS_PER_HOUR < n->report->proved_ns)
		return true;
	if (!find_failed(&l, err) || !find_others(&l, &l.all, INT64_MAX, err) ||
	    !find_others(&l, &l.alone, until_ns, err) || !load_neighbours(&l, err) || !load_found(&l, err))
		return err_prefix(err, "losses of %s", day);
	compare(&l);
	return true;
}

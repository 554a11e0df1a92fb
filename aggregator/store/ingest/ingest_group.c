/* aggregator/store/ingest/ingest_group.c - the pushes of several steady streams in one transaction: one COPY, one commit.
 *
 * Rules, in order; a push that fails one of them is stored alone afterwards, by the rules of ingest_push.c:
 *  1. it has no dictionary entries and no loss, its numbers are consecutive, it spans at most HOURS_MAX hours, and their days have partitions
 *  2. its stream is in the cache (ingest_cache.c) with this server and policy version, and no other push of the group is of the same node
 *  3. no other transaction locks its stream or node, the cursor is at its first number, the node is not held, and no new description of
 *     one of the stream's GPUs is pending, not even one that was sent to another replica
 *  4. all of it is accepted without a query to the ledger
 * Nothing is written for a push that has not passed rule 4. After any failure the transaction is rolled back and every push of
 * the group is stored alone, so that one push cannot make another fail.
 *
 * Lock order: nodes, hours, then the table of records. Retention also locks hours before the table of records. */
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"

#define HOURS_MAX 48                /* that one push may span */
#define EVIDENCE_ROWS 64u           /* batches in one statement */
#define EVIDENCE_BYTES (256u << 10) /* a statement of this size gets no more batches */

/* --- rules 1 and 2 --- */

/* The first and the last hour that the records of the push can lie in. */
static void
hour_span(const struct db_ledger *l, const struct ingest *in, int64_t *ret_first, int64_t *ret_last)
{
	int64_t first = INT64_MAX, last = INT64_MIN;

	for (size_t i = 0; i < in->count; i++) {
		const struct wire_batch *b = in->frames[i].batch;

		first = b->from_ns < first ? b->from_ns : first;
		last = b->to_ns - 1 > last ? b->to_ns - 1 : last;
	}
	*ret_first = hour_floor(l, first);
	*ret_last = hour_floor(l, last);
}

static bool
is_steady(struct ingest_cache *c, const struct db_ledger *l, const struct ingest *in)
{
	int64_t first, last;

	for (size_t i = 0; i < in->count; i++) {
		const struct wire_batch *b = in->frames[i].batch;

		if (b->kind != WIRE_USAGE || b->device_count > 0 || b->holder_count > 0 ||
		    b->seq != in->frames[0].batch->seq + i)
			return false;
		if ((b->flags & WIRE_SIMULATED) != 0 && !l->demo)
			return false;
		if (b->from_ns < 0 || b->to_ns <= b->from_ns || !ingest_cache_has_days(c, l, b->from_ns, b->to_ns))
			return false;
	}
	hour_span(l, in, &first, &last);
	return last - first < HOURS_MAX * NS_PER_HOUR;
}

/* Moves the cached state of the stream into the push; ingest_cache_learn() puts it back. */
static bool
use_cached_stream(struct ingest_cache *c, const struct db_ledger *l, struct ingest *in)
{
	owned(cached_stream) struct cached_stream *k = ingest_cache_take(c, in->frames[0].batch);

	if (!k || k->server_started_us != l->server_started_us || k->database != l->database)
		return false;
	in->ledger = *l;
	in->stream_id = k->stream_id;
	in->node_id = k->node_id;
	in->cluster_id = k->cluster_id;
	in->policy_version = k->policy_version;
	mem_free(in->cluster);
	in->cluster = take(k->cluster);
	in->dict = k->dict;
	k->dict = (struct dict){0};
	in->slice_ns = ingest_cache_slice_ns(c);
	in->slice = k->slice;
	k->slice = (struct slice_sums){0};
	return true;
}

/* --- rule 3 --- */

/* Compares the server again: inside the transaction the connection can no longer change to another one. */
static bool
same_ledger(struct db *db, const struct db_ledger *was, struct err *err)
{
	struct db_ledger now;

	if (!db_ledger_get(db, &now, err))
		return false;
	if (now.server_started_us == was->server_started_us && now.database == was->database)
		return true;
	return err_set(err, ERR_RETRY, "the connection now reaches another server or database");
}

/* A stream without a row in the result is locked by another transaction. */
static void
read_stream_cursor(struct ingest *in, const PGresult *locked)
{
	in->unsteady = true;
	for (int row = 0; row < PQntuples(locked); row++) {
		if (res_i64(locked, row, 0) != in->stream_id)
			continue;
		in->next_seq = res_i64(locked, row, 1);
		in->covered_until_ns = res_null(locked, row, 2) ? INT64_MIN : res_i64(locked, row, 2);
		in->unsteady = in->next_seq != in->frames[0].seq || in->policy_version != res_i64(locked, row, 3);
		in->unsteady |= res_bool(locked, row, 8);
		in->node_had = true;
		in->node_had_ns = in->node_until_ns = res_null(locked, row, 4) ? INT64_MIN : res_i64(locked, row, 4);
		in->node_behind = res_i64(locked, row, 5);
		in->hours_from_ns = res_null(locked, row, 6) ? INT64_MAX : res_i64(locked, row, 6);
		in->hours_until_ns = res_null(locked, row, 7) ? INT64_MIN : res_i64(locked, row, 7);
		return;
	}
}

/* Another node's report may have moved a GPU. Such a move updates this node's row, which is locked by now, so the services that are read here
 * hold until the commit and need no second check. */
static void
read_services(struct ingest *in, const PGresult *services)
{
	in->dict.services_read = false;
	for (size_t i = 0; i < in->dict.gpu_count; i++)
		in->dict.gpus[i].in_service = false;
	for (int row = 0; row < PQntuples(services); row++) {
		size_t i;

		if (res_i64(services, row, 0) != in->node_id ||
		    !hash_find(&in->dict.gpu_ids, (uint64_t)res_i64(services, row, 1), &i))
			continue;
		in->dict.gpus[i].in_service = true;
		in->dict.gpus[i].from_ns = res_i64(services, row, 2);
		in->dict.gpus[i].until_ns = res_null(services, row, 3) ? INT64_MAX : res_i64(services, row, 3);
	}
}

/* The share lock makes sealing wait for this transaction, and this transaction for sealing. */
static bool
begin(struct db_tx *tx, struct db *db, struct ingest_push *const *group, size_t n, bool *ret_open, struct err *err)
{
	static const struct db_stmt lock = {
		"group lock",
		"SELECT s.id, s.next_seq, s.covered_until_ns, coalesce((SELECT max(v.id) FROM policy_version v), 0), "
		"n.covered_until_ns, n.behind, ns_of(n.hours_from), ns_of(n.hours_until), n.held "
		"FROM stream s JOIN node n ON n.id = s.node_id WHERE s.id = ANY ($1::integer[]) "
		"FOR NO KEY UPDATE SKIP LOCKED"};
	static const struct db_stmt services = {
		"group services",
		"SELECT DISTINCT ON (node_id, gpu_id) node_id, gpu_id, from_ns, until_ns FROM gpu_service "
		"WHERE node_id = ANY ($1::integer[]) ORDER BY node_id, gpu_id, from_ns DESC"};
	static const struct db_stmt words = {
		"group words",
		"SELECT DISTINCT e.stream_id FROM stream_device_entry e JOIN stream_device x ON x.stream_id = e.stream_id "
		"AND x.local_id = e.local_id WHERE e.stream_id = ANY ($1::integer[])"};
	static const struct db_stmt share = {"group hours",
	                                     "SELECT node_hours_share($1::integer[], $2::timestamptz[])"};
	owned(result) PGresult *locked = NULL, *served = NULL, *redescribed = NULL, *sealed = NULL;
	in_place(db_array) struct db_array streams = {0}, nodes = {0};
	in_place(db_columns) struct db_columns hours = {0};
	struct db_args s = {0}, g = {0}, h = {0};
	const struct db_call calls[] = {
		{&lock, &s, &locked}, {&services, &g, &served}, {&words, &s, &redescribed}, {&share, &h, &sealed}};

	db_array_init(&streams);
	db_array_init(&nodes);
	db_columns_init(&hours, 2);
	for (size_t i = 0; i < n; i++) {
		const struct ingest *in = &group[i]->in;
		int64_t first, last;

		array_i64(&streams, in->stream_id);
		array_i64(&nodes, in->node_id);
		hour_span(&in->ledger, in, &first, &last);
		for (; first <= last; first += NS_PER_HOUR) {
			array_i64(&hours.col[0], in->node_id);
			array_time(&hours.col[1], first);
		}
	}
	arg_array(&s, &streams);
	arg_array(&g, &nodes);
	arg_columns(&h, &hours);
	if (!db_tx_begin_all(tx, db, calls, ARRAY_LEN(calls), err) || !same_ledger(db, &group[0]->in.ledger, err))
		return false;
	*ret_open = !res_bool(sealed, 0, 0);
	for (size_t i = 0; i < n; i++) {
		read_stream_cursor(&group[i]->in, locked);
		read_services(&group[i]->in, served);
		for (int row = 0; row < PQntuples(redescribed); row++)
			group[i]->in.unsteady |= res_i64(redescribed, row, 0) == group[i]->in.stream_id;
	}
	return true;
}

/* --- rule 4 --- */

static bool
judge(struct ingest *in, struct err *err)
{
	bool ok = true;

	in->grouped = true;
	for (size_t i = 0; i < in->count && ok && !in->unsteady; i++) {
		ok = ingest_judge(in, &in->frames[i], err);
		if (in->frames[i].outcome != OUTCOME_ACCEPTED)
			in->unsteady = true;
	}
	in->grouped = false;
	return ok;
}

/* Moves the accepted pushes to the front; *n becomes their number. */
static bool
judge_all(struct ingest_push **group, size_t *n, struct err *err)
{
	size_t kept = 0;

	for (size_t i = 0; i < *n; i++) {
		struct ingest_push *p = group[i];

		if (!judge(&p->in, err))
			return false;
		if (p->in.unsteady)
			continue;
		group[i] = group[kept];
		group[kept++] = p;
	}
	*n = kept;
	return true;
}

/* --- what is stored --- */

/* Whether the node's hours include all records of the push, and none of these is earlier than the node's previous coverage. */
static bool
has_hours(const struct ingest *in)
{
	int64_t first, last;

	hour_span(&in->ledger, in, &first, &last);
	last = hour_floor(&in->ledger, in->covered_until_ns - 1);
	return in->hours_from_ns <= first && last < in->hours_until_ns && ingest_first_ns(in) >= in->node_had_ns;
}

/* node_hours_touch() updates one node. Where its hours exist and are open and no record is late, write_all() does the same for all nodes in one
 * statement; only the other nodes need the call. */
static bool
touch_and_slice(struct db *db, struct ingest_push *const *group, size_t n, bool open, struct err *err)
{
	in_place(slice_rows) struct slice_rows slices = {0};

	for (size_t i = 0; i < n; i++) {
		struct ingest *in = &group[i]->in;

		in->db = db;
		if ((!open || !has_hours(in)) && !ingest_touch_hours(in, err))
			return false;
		ingest_slice(in, &slices);
	}
	return ingest_slices_store(db, &slices, err);
}

/* Batches collected for one INSERT. */
struct evidence {
	struct db_columns columns;
	struct db_blobs sha, payload;
	struct db_args args;
};
#define EVIDENCE_COLUMNS 6

static void
evidence_init(struct evidence *e)
{
	db_columns_init(&e->columns, EVIDENCE_COLUMNS);
	db_blobs_init(&e->sha);
	db_blobs_init(&e->payload);
	e->args.count = 0;
}

static void
evidence_fini(struct evidence *e)
{
	db_columns_fini(&e->columns);
	db_blobs_fini(&e->sha);
	db_blobs_fini(&e->payload);
}

static void
evidence_add(struct evidence *e, const struct ingest *in, const struct ingest_frame *f)
{
	struct db_array *col = e->columns.col;

	array_i64(&col[0], in->stream_id);
	array_i64(&col[1], f->seq);
	array_i64(&col[2], f->batch->from_ns);
	array_i64(&col[3], f->batch->to_ns);
	array_i64(&col[4], (int64_t)f->batch->record_count);
	array_text(&col[5], f->batch->exporter_version);
	blobs_add(&e->sha, f->sha, sizeof(f->sha));
	blobs_add(&e->payload, f->payload, f->len);
}

static const struct db_args *
evidence_args(struct evidence *e)
{
	arg_columns(&e->args, &e->columns);
	arg_blobs(&e->args, &e->sha);
	arg_blobs(&e->args, &e->payload);
	return &e->args;
}

static const struct db_stmt evidence_stmt = {
	"group evidence",
	"INSERT INTO ingest_batch (stream_id, seq, last_seq, status, from_ns, to_ns, records, exporter_version, sha256, payload) "
	"SELECT stream_id, seq, seq, 'accepted', from_ns, to_ns, records, version, sha256, payload "
	"FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::text[], $7::bytea[], $8::bytea[]) "
	"AS e(stream_id, seq, from_ns, to_ns, records, version, sha256, payload)"};

/* Inserts all full statements of batches; the last one stays in e and is sent with the commit. */
static bool
store_evidence(struct db *db, struct ingest_push *const *group, size_t n, struct evidence *e, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		const struct ingest *in = &group[i]->in;

		for (size_t k = 0; k < in->count; k++) {
			if (e->sha.count >= EVIDENCE_ROWS || e->payload.bytes.len >= EVIDENCE_BYTES) {
				if (!db_run(db, &evidence_stmt, evidence_args(e), NULL, err))
					return false;
				evidence_fini(e);
				evidence_init(e);
			}
			evidence_add(e, in, &in->frames[k]);
		}
	}
	return true;
}

/* The evidence, the cursors, how far the nodes are covered, and COMMIT. */
static bool
write_all(struct db_tx *tx, struct db *db, struct ingest_push *const *group, size_t n, struct err *err)
{
	static const struct db_stmt move = {
		"group move",
		"UPDATE stream s SET next_seq = e.next, covered_until_ns = greatest(s.covered_until_ns, e.covered) "
		"FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS e(id, next, covered) WHERE s.id = e.id"};
	static const struct db_stmt cover = {
		"group cover", "UPDATE node n SET covered_until_ns = greatest(n.covered_until_ns, e.covered) "
			       "FROM unnest($1::integer[], $2::bigint[]) AS e(id, covered) WHERE n.id = e.id"};
	in_place(db_columns) struct db_columns streams = {0}, nodes = {0};
	in_place(evidence) struct evidence evidence = {0};
	struct db_args m = {0}, c = {0};

	db_columns_init(&streams, 3);
	db_columns_init(&nodes, 2);
	evidence_init(&evidence);
	for (size_t i = 0; i < n; i++) {
		const struct ingest *in = &group[i]->in;

		array_i64(&streams.col[0], in->stream_id);
		array_i64(&streams.col[1], in->frames[in->count - 1].seq + 1);
		array_i64(&streams.col[2], in->covered_until_ns);
		array_i64(&nodes.col[0], in->node_id);
		array_i64(&nodes.col[1], in->covered_until_ns);
	}
	arg_columns(&m, &streams);
	arg_columns(&c, &nodes);
	if (!store_evidence(db, group, n, &evidence, err))
		return false;
	return db_tx_commit_all(tx,
	                        (const struct db_call[]){{&evidence_stmt, evidence_args(&evidence), NULL},
	                                                 {&move, &m, NULL},
	                                                 {&cover, &c, NULL}},
	                        3, err);
}

static bool
store_all(struct db *db, struct ingest_push **group, size_t *n, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	bool open = false;

	if (!begin(&tx, db, group, *n, &open, err) || !judge_all(group, n, err))
		return false;
	if (*n == 0)
		return true;
	return ingest_copy_all(db, group, *n, err) && touch_and_slice(db, group, *n, open, err) &&
	       write_all(&tx, db, group, *n, err);
}

static void
finish(struct ingest_cache *cache, struct ingest_push *p)
{
	struct ingest *in = &p->in;

	p->done = true;
	p->result.grouped = true;
	p->result.epoch = in->frames[0].batch->epoch;
	p->result.next_seq = (uint64_t)in->frames[in->count - 1].seq + 1;
	ingest_count(in, &p->result);
	ingest_sum_known(in, &p->result.sums);
	ingest_cache_learn(cache, in);
}

void
store_ingest_group(struct db *db, struct ingest_cache *cache, struct ingest_push *const *pushes, size_t n)
{
	owned(mem) struct ingest_push **group = mem_array(n, sizeof(*group));
	in_place(hash) struct hash nodes = {0};
	struct db_ledger ledger;
	struct err ignored = {0};
	size_t count = 0, taken;

	if (!db_ledger_get(db, &ledger, &ignored))
		return;
	for (size_t i = 0; i < n; i++) {
		struct ingest *in = &pushes[i]->in;

		if (!is_steady(cache, &ledger, in) || !use_cached_stream(cache, &ledger, in) ||
		    hash_get(&nodes, (uint64_t)in->node_id) != HASH_NONE)
			continue;
		hash_put(&nodes, (uint64_t)in->node_id, count);
		group[count++] = pushes[i];
	}
	if (count == 0)
		return;
	taken = count;
	if (!store_all(db, group, &count, &ignored)) {
		for (size_t i = 0; i < taken; i++)
			slice_sums_fini(&group[i]->in.slice);
		/* The reason may be a partition that was dropped. */
		ingest_cache_forget_days(cache);
		return;
	}
	for (size_t i = 0; i < count; i++)
		finish(cache, group[i]);
}

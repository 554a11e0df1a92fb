/* aggregator/store/rollup/restore.c - restores the records of a node-hour from its batches.
 *
 * Records are stored for days, batches for months. If an hour changes whose records are retired (late data, a batch
 * released from quarantine, a state declared for the past), the records are restored from the batches before the hour
 * is sealed again. */
#include "aggregator/store/rollup/rollup_internal.h"
#include "common/base/hash.h"
#include "common/wire/wire.h"

#define BATCH_PAGE 16 /* a page contains payloads */

static inline void
pgmem_free(unsigned char *p)
{
	PQfreemem(p);
}
DEFINE_OWNED(pgmem, unsigned char)

/* in the order of usage_interval */
enum {
	COL_START,
	COL_DURATION,
	COL_HELD,
	COL_USED,
	COL_UNMEASURED,
	COL_OVER,
	COL_MEMORY,
	COL_ENERGY,
	COL_DEVICE,
	COL_HOLDER,
	COL_TICKS,
	COL_UNITS,
	COL_STATE,
	COL_SHARING,
	COL_METHOD,
	COL_PEAK_MEMORY,
	COL_SM_ACTIVE,
	COL_SM_MEASURED,
	COLUMNS
};

struct hour {
	struct db *db;
	int64_t node_id, from_ns, to_ns;
};
/* The dictionary of the current stream. */
struct names {
	int64_t stream_id;
	struct hash devices, holders;
	PGresult *aside; /* batch and device number of GPUs whose records in that batch were set aside */
};

static void
names_fini(struct names *n)
{
	hash_fini(&n->devices);
	hash_fini(&n->holders);
	PQclear(n->aside);
}

static bool
load_names(struct db *db, int64_t stream_id, struct names *n, struct err *err)
{
	static const struct db_stmt stmt = {
		"restore names", "SELECT kind = 'device', local_id, global_id FROM stream_dict WHERE stream_id = $1"};
	static const struct db_stmt aside = {
		"restore set aside",
		"SELECT a.seq, x.local_id FROM batch_set_aside a JOIN LATERAL (SELECT e.local_id FROM stream_device_entry e "
		"LEFT JOIN stream_device_entry p ON p.stream_id = e.stream_id AND p.local_id = e.gpu_local_id "
		"LEFT JOIN stream_device x ON x.stream_id = e.stream_id AND x.local_id = e.gpu_local_id LEFT JOIN device d ON d.id = x.device_id "
		"LEFT JOIN gpu g ON g.id = d.gpu_id WHERE e.stream_id = a.stream_id AND coalesce(p.uuid, g.uuid) = a.gpu UNION ALL "
		"SELECT x.local_id FROM stream_device x JOIN device d ON d.id = x.device_id JOIN gpu g ON g.id = d.gpu_id "
		"WHERE x.stream_id = a.stream_id AND g.uuid = a.gpu) x ON true "
		"WHERE a.stream_id = $1 AND a.decision IS DISTINCT FROM 'released' ORDER BY 1, 2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	if (n->stream_id == stream_id)
		return true;
	names_fini(n);
	*n = (struct names){.stream_id = stream_id};
	arg_i64(&a, stream_id);
	if (!db_run(db, &stmt, &a, &r, err) || !db_run(db, &aside, &a, &n->aside, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		hash_put(res_bool(r, row, 0) ? &n->devices : &n->holders, (uint64_t)res_i64(r, row, 1),
		         (size_t)res_i64(r, row, 2));
	return true;
}

static bool
add_record(const struct names *n, const struct wire_record *r, struct db_columns *c, struct err *err)
{
	size_t device, holder = 0;

	if (!hash_find(&n->devices, r->device, &device) ||
	    (r->holder != 0 && !hash_find(&n->holders, r->holder, &holder)))
		return err_set(err, ERR_FATAL,
		               "a record names device %" PRIu32 " and holder %" PRIu32
		               ", which the dictionary of stream %" PRId64 " has not",
		               r->device, r->holder, n->stream_id);
	array_i64(&c->col[COL_START], r->start_ns);
	array_i64(&c->col[COL_DURATION], r->duration_ns);
	array_i64(&c->col[COL_HELD], r->held_ns);
	array_i64(&c->col[COL_USED], r->used_ns);
	array_i64(&c->col[COL_UNMEASURED], r->unmeasured_ns);
	array_i64(&c->col[COL_OVER], r->over_ns);
	array_i64(&c->col[COL_MEMORY], r->memory_byte_ms);
	array_i64(&c->col[COL_ENERGY], r->energy_mj);
	array_i64(&c->col[COL_DEVICE], (int64_t)device);
	array_i64(&c->col[COL_HOLDER], (int64_t)holder);
	array_i64(&c->col[COL_TICKS], r->ticks);
	array_i64(&c->col[COL_UNITS], r->units);
	array_i64(&c->col[COL_STATE], r->state);
	array_i64(&c->col[COL_SHARING], r->sharing);
	array_i64(&c->col[COL_METHOD], r->method);
	array_i64(&c->col[COL_PEAK_MEMORY], r->peak_memory_bytes);
	array_i64(&c->col[COL_SM_ACTIVE], r->sm_active_ns);
	array_i64(&c->col[COL_SM_MEASURED], r->sm_measured_ns);
	return true;
}

/* The device numbers whose records in a batch are set aside. */
static void
aside_of(const struct names *n, int64_t seq, struct hash *ret)
{
	for (int row = 0; row < PQntuples(n->aside); row++)
		if (res_i64(n->aside, row, 0) == seq)
			hash_put(ret, (uint64_t)res_i64(n->aside, row, 1), 0);
}

/* The records of one batch that lie in the hour. */
static bool
restore_batch(const struct hour *h, const struct names *n, int64_t seq, const char *text, struct err *err)
{
	static const struct db_stmt stmt = {
		"restore records",
		"INSERT INTO usage_interval (seq, stream_id, node_id, start_ns, duration_ns, held_ns, used_ns, unmeasured_ns, "
		"over_ns, memory_byte_ms, energy_mj, device_id, holder_id, ticks, units, state, sharing, method, peak_memory_bytes, "
		"sm_active_ns, sm_measured_ns) "
		"SELECT $1, $2, $3, r.start, r.duration, r.held, r.used, r.unmeasured, r.over, r.memory, r.energy, r.device, "
		"nullif(r.holder, 0), r.ticks, r.units, r.state, r.sharing, r.method, r.peak, r.sm_active, r.sm_measured "
		"FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], "
		"$10::bigint[], $11::bigint[], $12::integer[], $13::bigint[], $14::integer[], $15::smallint[], "
		"$16::smallint[], $17::smallint[], $18::smallint[], $19::bigint[], $20::bigint[], $21::bigint[]) AS r(start, duration, held, used, unmeasured, over, "
		"memory, energy, device, holder, ticks, units, state, sharing, method, peak, sm_active, sm_measured)"};
	owned(wire_batch) struct wire_batch *b = NULL;
	owned(pgmem) unsigned char *payload = NULL;
	in_place(db_columns) struct db_columns c = {0};
	in_place(hash) struct hash aside = {0};
	struct db_args a = {0};
	size_t len = 0, ignored;

	db_columns_init(&c, COLUMNS);
	payload = PQunescapeBytea((const unsigned char *)text, &len);
	if (payload == NULL)
		return err_set(err, ERR_RETRY, "no memory for a batch");
	if (!wire_unpack(payload, len, &b, err))
		return false;
	aside_of(n, seq, &aside);
	for (size_t i = 0; i < b->record_count; i++) {
		const struct wire_record *r = &b->records[i];

		if (r->start_ns >= h->from_ns && r->start_ns < h->to_ns && !hash_find(&aside, r->device, &ignored) &&
		    !add_record(n, r, &c, err))
			return false;
	}
	if (c.col[0].count == 0)
		return true;
	arg_i64(&a, seq);
	arg_i64(&a, n->stream_id);
	arg_i64(&a, h->node_id);
	arg_columns(&a, &c);
	return db_run(h->db, &stmt, &a, NULL, err);
}

/* All batches that reach into the hour, in the order of their streams. */
static bool
restore_batches(const struct hour *h, struct err *err)
{
	static const struct db_stmt stmt = {
		"restore batches",
		"SELECT b.stream_id, b.seq, b.payload FROM ingest_batch b JOIN stream s ON s.id = b.stream_id "
		"WHERE s.node_id = $1 AND b.status = 'accepted' AND b.from_ns < $3 AND b.to_ns > $2 "
		"AND (b.stream_id, b.seq) > ($4, $5) ORDER BY b.stream_id, b.seq LIMIT $6"};
	in_place(names) struct names n = {0};
	int64_t stream_id = 0, seq = 0;

	for (bool more = true; more;) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		arg_i64(&a, h->node_id);
		arg_i64(&a, h->from_ns);
		arg_i64(&a, h->to_ns);
		arg_i64(&a, stream_id);
		arg_i64(&a, seq);
		arg_i64(&a, BATCH_PAGE);
		if (!db_run(h->db, &stmt, &a, &r, err))
			return false;
		more = PQntuples(r) == BATCH_PAGE;
		for (int row = 0; row < PQntuples(r); row++) {
			stream_id = res_i64(r, row, 0);
			seq = res_i64(r, row, 1);
			if (!load_names(h->db, stream_id, &n, err) ||
			    !restore_batch(h, &n, seq, res_text(r, row, 2), err))
				return err_prefix(err, "batch %" PRId64 " of stream %" PRId64, seq, stream_id);
		}
	}
	return true;
}

bool
restore_hour(struct db *db, int64_t node_id, int64_t hour_ns, struct err *err)
{
	static const struct db_stmt lock = {
		"restore lock", "SELECT FROM node_hour WHERE node_id = $1 AND hour = $2 AND retired FOR UPDATE"};
	static const struct db_stmt room = {"restore room", "SELECT make_partitions($1, $2)"};
	static const struct db_stmt drop = {
		"restore drop", "DELETE FROM usage_interval WHERE start_ns >= $1 AND start_ns < $2 AND node_id = $3"};
	static const struct db_stmt mark = {"restore mark",
	                                    "UPDATE node_hour SET retired = false WHERE node_id = $1 AND hour = $2"};
	struct hour h = {.db = db, .node_id = node_id, .from_ns = hour_ns, .to_ns = hour_ns + NS_PER_HOUR};
	owned(result) PGresult *r = NULL;
	struct db_args key = {0}, range = {0}, rows = {0};

	arg_i64(&key, node_id);
	arg_time(&key, hour_ns);
	arg_i64(&range, h.from_ns);
	arg_i64(&range, h.to_ns);
	arg_i64(&rows, h.from_ns);
	arg_i64(&rows, h.to_ns);
	arg_i64(&rows, node_id);
	if (!db_run(db, &lock, &key, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return true;
	return db_run(db, &room, &range, NULL, err) && db_run(db, &drop, &rows, NULL, err) &&
	       restore_batches(&h, err) && db_run(db, &mark, &key, NULL, err);
}

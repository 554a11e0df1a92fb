/* aggregator/store/ingest/ingest_accept.c - decides which batches are accepted and which are quarantined, with a
 * reason.
 *
 * A sound frame with refused content is acknowledged, so that it cannot block its stream. Rules, in order:
 *  1. the batch obeys the wire format (wire_check)
 *  1a. a batch of a held node is stored unread, after its clock was checked (ingest_held.c)
 *  2. a dictionary number keeps its meaning, and a MIG instance has a GPU
 *  3. the node's clock was right when it sent; the covered time ends at most five minutes ahead of our clock and
 *     begins at most 45 days before it
 *  4. the batch begins neither before the end of the time that the stream has covered, nor before the ledger's oldest
 *     stored batches
 *  4a. the streams of a node overlap by at most 65 minutes within half a day: a clock may be set back by an hour
 *  5. every device and holder that a record names has been introduced, and no record has more units than its device
 *  6. no GPU has more than 5040 units in the covered time
 *  6a. no GPU used more energy than its board can draw in that time, nor more memory than its model has. The limits
 *      are our table's (units.h), not the node's
 *  7. a GPU belongs to the node that has it in service: records of other GPUs are set aside, and the batch is
 *     accepted without them
 *
 * The dictionary of a batch refused by rules 3 to 7 is still noted, without rows for its devices and holders. A loss
 * batch is judged only by rule 1 and by the bounds of time in rule 3.
 *
 * Releasing a batch overrules rules 3 and 4a, except for time in the future, which cannot have been measured. Rule 4
 * then requires that the batch lies after every accepted batch of the stream with a lower number and before every one
 * with a higher number. The other rules are applied to the ledger as it is now: a retired GPU may be in service
 * again, but an hour whose batches have been deleted cannot be verified any more. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/limits.h"
#include "common/base/units.h"

/* --- rule 7: the node that a GPU belongs to ---
 *
 * Rules, in order:
 *  7.1 a GPU whose known service covers its records is the node's. For all others the ledger is asked (gpu_claim): at
 *      a GPU's first batch, for late batches, and for a GPU that is reported or declared differently from the ledger,
 *      as long as that is so: the stream's last description is stored until its records count
 *  7.2 the records of a GPU that is not the node's are set aside, by batch and GPU; the batch is accepted, and no row
 *      is made because of them. If the node has more than LIMIT_NODE_SET_ASIDE of them undecided, the whole batch is
 *      quarantined instead: one row until an operator decides. Releasing a batch is such a decision
 *  7.3 an instance of the node's own GPU that the ledger has with another profile or other units is a contradiction:
 *      the whole batch is refused, and the claims of 7.1 are rolled back
 *  7.4 devices and holders that the other records name are entered, and the records get their ids */

void
set_asides_free(struct set_aside *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		mem_free(list[i].gpu);
		mem_free(list[i].reason);
	}
	mem_free(list);
}

/* --- rule 7.1 --- */

static bool
needs_claim(const struct dict_gpu *g)
{
	return g->last_ns != 0 && (g->claim_always || !g->in_service || g->first_ns < g->from_ns ||
	                           g->last_ns > g->until_ns || g->last_ns > g->otherwise_ns);
}

enum { CLAIM_GPU, CLAIM_CLASS, CLAIM_WHY, CLAIM_FROM, CLAIM_UNTIL };

/* One row for each GPU to query_claims about. Without an entry of the stream, the ledger's description stands. Each call locks
 * its GPU, in the order of UUIDs, so that two nodes that name the same GPUs cannot deadlock. */
static bool
query_claims(struct ingest *in, const struct ingest_frame *f, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"gpu claim",
		"SELECT c.gpu_id, c.class, c.why, c.from_ns, c.until_ns FROM (SELECT e.uuid, coalesce(e.model, s.model) AS model, "
		"coalesce(e.short_model, s.short_model) AS short_model, coalesce(e.memory_bytes, s.memory_bytes) AS memory_bytes, "
		"coalesce(e.index, g.index) AS index, e.from_ns, e.until_ns, e.ord FROM unnest($4::text[], $5::text[], $6::text[], "
		"$7::bigint[], $8::integer[], $9::bigint[], $10::bigint[]) WITH ORDINALITY AS e(uuid, model, short_model, memory_bytes, index, "
		"from_ns, until_ns, ord) LEFT JOIN gpu g ON g.uuid = e.uuid LEFT JOIN gpu_spec s ON s.gpu_id = g.id AND upper_inf(s.effective) "
		"ORDER BY e.uuid COLLATE \"C\") e, LATERAL gpu_claim($1, e.uuid, e.model, e.short_model, e.memory_bytes, e.index, e.from_ns, "
		"e.until_ns, $2, $3) c ORDER BY e.ord"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};
	size_t n = 0;

	db_columns_init(&c, 7);
	for (size_t i = 0; i < in->dict.gpu_count; i++) {
		const struct dict_gpu *g = &in->dict.gpus[i];
		const struct wire_device *e = in->dict.devices[g->device].entry;
		char name[WIRE_MAX_TEXT + 1];

		if (!needs_claim(g))
			continue;
		n++;
		if (e != NULL)
			gpu_model_short(e->model, name, sizeof(name));
		array_text(&c.col[0], g->uuid);
		array_text(&c.col[1], e != NULL ? e->model : NULL);
		array_text(&c.col[2], e != NULL ? name : NULL);
		if (e != NULL) {
			array_i64(&c.col[3], e->memory_bytes);
			array_i64(&c.col[4], e->index);
		} else {
			array_text(&c.col[3], NULL);
			array_text(&c.col[4], NULL);
		}
		array_i64(&c.col[5], g->first_ns);
		array_i64(&c.col[6], g->last_ns);
	}
	arg_i64(&a, in->node_id);
	arg_i64(&a, in->stream_id);
	arg_i64(&a, f->seq);
	arg_columns(&a, &c);
	if (!db_run(in->db, &stmt, &a, ret, err))
		return false;
	return (size_t)PQntuples(*ret) == n ||
	       err_set(err, ERR_RETRY, "the ledger returned %d of %zu GPUs", PQntuples(*ret), n);
}

/* --- rule 7.2 --- */

static enum quarantine_class
class_of(const char *name)
{
	for (int c = QUARANTINE_NONE + 1; c < QUARANTINE_CLASSES; c++)
		if (strcmp(quarantine_class_name((enum quarantine_class)c), name) == 0)
			return (enum quarantine_class)c;
	return QUARANTINE_TWO_NODES;
}

static void
set_aside(struct ingest_frame *f, const struct dict_gpu *g, const char *klass, const char *why)
{
	in_place(buf) struct buf reason = {0};

	buf_init(&reason, 2 * WIRE_MAX_TEXT + 4096);
	buf_printf(&reason, "GPU %s %s", g->uuid, why);
	f->aside = mem_grow(f->aside, f->aside_count + 1, sizeof(*f->aside));
	f->aside[f->aside_count++] = (struct set_aside){.gpu = mem_strdup(g->uuid),
	                                                .reason = mem_strdup(buf_text(&reason)),
	                                                .klass = class_of(klass),
	                                                .records = g->records,
	                                                .from_ns = g->first_ns,
	                                                .to_ns = g->last_ns};
}

/* Marks the GPUs that are not the node's, before any answer of the ledger is remembered. */
static void
mark_gpus(struct ingest *in, struct ingest_frame *f, const PGresult *claims)
{
	int row = 0;

	for (size_t i = 0; i < in->dict.gpu_count; i++) {
		struct dict_gpu *g = &in->dict.gpus[i];

		g->aside = false;
		if (claims == NULL || !needs_claim(g))
			continue;
		g->aside = !res_null(claims, row, CLAIM_CLASS);
		if (g->aside)
			set_aside(f, g, res_text(claims, row, CLAIM_CLASS), res_text(claims, row, CLAIM_WHY));
		row++;
	}
}

static bool
count_open(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"set aside open",
		"SELECT count(*) FROM (SELECT FROM stream s JOIN batch_set_aside a ON a.stream_id = s.id "
		"WHERE s.node_id = $1 AND a.decision IS NULL LIMIT $2) x"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	if (in->aside_read)
		return true;
	arg_i64(&a, in->node_id);
	arg_i64(&a, LIMIT_NODE_SET_ASIDE);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	in->aside_open = res_i64(r, 0, 0);
	in->aside_read = true;
	return true;
}

/* Rule 7.2, the limit. *ret_refused: the batch is refused. */
static bool
check_open(struct ingest *in, struct ingest_frame *f, bool *ret_refused, struct err *err)
{
	*ret_refused = false;
	if (f->aside_count == 0 || in->overruled)
		return true;
	if (!count_open(in, err))
		return false;
	in->aside_open += (int64_t)f->aside_count;
	if (in->aside_open <= LIMIT_NODE_SET_ASIDE)
		return true;
	in->aside_open -= (int64_t)f->aside_count;
	*ret_refused = true;
	f->klass = f->aside[0].klass;
	err_set(&f->reason, ERR_INVALID,
	        "node %s has %" PRId64
	        " GPUs in its batches whose records are set aside and undecided, with these %zu more than %d: %.400s",
	        f->batch->node, in->aside_open, f->aside_count, LIMIT_NODE_SET_ASIDE, f->aside[0].reason);
	set_asides_free(take(f->aside), f->aside_count);
	f->aside_count = 0;
	return true;
}

/* Whether the records of a GPU count: it is the node's, and it is the requested one if only one was requested. */
static bool
counts(const struct ingest *in, const struct dict_gpu *g)
{
	return !g->aside && (!in->only_gpu || strcmp(in->only_gpu, g->uuid) == 0);
}

/* Marks the devices and holders that the counting records need. */
static void
mark_needed(struct ingest *in, struct ingest_frame *f)
{
	struct dict *d = &in->dict;

	for (size_t i = 0; i < d->device_count; i++)
		d->devices[i].needed = false;
	for (size_t i = 0; i < d->holder_count; i++)
		d->holders[i].needed = false;
	f->counted = 0;
	for (size_t i = 0; i < f->batch->record_count; i++) {
		const struct wire_record *r = &f->batch->records[i];
		struct dict_device *dev = &d->devices[hash_get(&d->device_ids, r->device)];

		if (!counts(in, &d->gpus[dev->gpu]))
			continue;
		f->counted++;
		dev->needed = true;
		/* A GPU in service has a device of its own, also when only its instances have records. */
		d->devices[d->gpus[dev->gpu].device].needed = true;
		if (r->holder != 0)
			d->holders[hash_get(&d->holder_ids, r->holder)].needed = true;
	}
}

/* --- rule 7.3 --- */

static bool
contradicts(const struct dict *d, struct ingest_frame *f)
{
	for (size_t i = 0; i < d->device_count; i++) {
		if (!d->devices[i].needed || d->devices[i].entered || !d->devices[i].other_shape)
			continue;
		f->klass = QUARANTINE_DICTIONARY;
		err_set(&f->reason, ERR_INVALID, "device %s has another profile or other units than before",
		        d->devices[i].entry->uuid);
		return true;
	}
	return false;
}

/* --- rule 7.4 --- */

/* *ret_taken: the ledger now has the stream's new description of a GPU. */
static void
remember(struct ingest *in, const PGresult *claims, bool *ret_taken)
{
	int row = 0;

	for (size_t i = 0; i < in->dict.gpu_count; i++) {
		struct dict_gpu *g = &in->dict.gpus[i];
		struct dict_device *own = &in->dict.devices[g->device];

		if (!needs_claim(g))
			continue;
		g->claim_always = g->aside;
		if (!g->aside) {
			dict_gpu_row(&in->dict, i, res_i64(claims, row, CLAIM_GPU));
			g->in_service = true;
			g->from_ns = res_i64(claims, row, CLAIM_FROM);
			g->until_ns =
				res_null(claims, row, CLAIM_UNTIL) ? INT64_MAX : res_i64(claims, row, CLAIM_UNTIL);
			if (own->entered && own->entry != NULL) {
				dict_entry(own, NULL);
				*ret_taken = true;
			}
		}
		row++;
	}
}

static void
fill_ids(const struct ingest *in, struct ingest_frame *f)
{
	const struct dict *d = &in->dict;

	for (size_t i = 0; i < f->batch->record_count; i++) {
		const struct wire_record *r = &f->batch->records[i];
		const struct dict_device *dev = &d->devices[hash_get(&d->device_ids, r->device)];
		bool counted = counts(in, &d->gpus[dev->gpu]);

		f->device_id[i] = counted ? dev->device_id : 0;
		f->holder_id[i] =
			counted && r->holder != 0 ? d->holders[hash_get(&d->holder_ids, r->holder)].holder_id : 0;
	}
}

/* All of rule 7: sets aside the records of GPUs that are not the node's, enters the devices and holders of the
 * others, and sets their ids. */
static bool
ingest_claim(struct ingest *in, struct ingest_frame *f, struct err *err)
{
	owned(result) PGresult *claims = NULL;
	bool asked = false, taken = false, refused = false;

	f->counted = (int64_t)f->batch->record_count;
	for (size_t i = 0; i < in->dict.gpu_count; i++)
		asked = asked || needs_claim(&in->dict.gpus[i]);
	if (!asked && !f->lacks_rows && !in->only_gpu)
		return true;
	in->unsteady = in->grouped;
	if (in->unsteady)
		return true;
	if (asked && (!ingest_enter_lock(in, err) || !db_script(in->db, "SAVEPOINT claims", err) ||
	              !query_claims(in, f, &claims, err)))
		return false;
	mark_gpus(in, f, claims);
	if (!check_open(in, f, &refused, err))
		return false;
	mark_needed(in, f);
	if (refused || contradicts(&in->dict, f))
		return !asked || db_script(in->db, "ROLLBACK TO SAVEPOINT claims; RELEASE SAVEPOINT claims", err);
	if (asked) {
		if (!db_script(in->db, "RELEASE SAVEPOINT claims", err))
			return false;
		remember(in, claims, &taken);
	}
	if (!dict_enter(in, err) || (taken && !dict_save(in, err)))
		return false;
	fill_ids(in, f);
	return true;
}

bool
ingest_set_aside_store(struct ingest *in, const struct ingest_frame *f, struct err *err)
{
	static const struct db_stmt stmt = {
		"batch set aside",
		"INSERT INTO batch_set_aside (stream_id, seq, gpu, class, reason, records, from_ns, to_ns) "
		"SELECT $1, $2, e.* FROM unnest($3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[]) e"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 6);
	if (f->aside_count == 0)
		return true;
	for (size_t i = 0; i < f->aside_count; i++) {
		array_text(&c.col[0], f->aside[i].gpu);
		array_text(&c.col[1], quarantine_class_name(f->aside[i].klass));
		array_text(&c.col[2], f->aside[i].reason);
		array_i64(&c.col[3], f->aside[i].records);
		array_i64(&c.col[4], f->aside[i].from_ns);
		array_i64(&c.col[5], f->aside[i].to_ns);
	}
	arg_i64(&a, in->stream_id);
	arg_i64(&a, f->seq);
	arg_columns(&a, &c);
	return db_run(in->db, &stmt, &a, NULL, err);
}

/* --- rules 1 to 6a --- */

#define AHEAD_MAX_NS (5 * NS_PER_MIN)
#define SAMPLE_MAX_NS (2 * NS_PER_S)
#define CATCH_UP_MAX_NS (2 * NS_PER_MIN)
#define MEMORY_SHARED_BY 2
#define BEHIND_MAX_NS (45 * NS_PER_DAY)
#define TWICE_MAX_NS (65 * NS_PER_MIN)
#define TWICE_NEAR_NS (12 * NS_PER_HOUR)

const char *
quarantine_class_name(enum quarantine_class c)
{
	static const char *const names[QUARANTINE_CLASSES] = {
		[QUARANTINE_NONE] = "none",
		[QUARANTINE_FORMAT] = "format",
		[QUARANTINE_DICTIONARY] = "dictionary",
		[QUARANTINE_SKEW] = "skewed-clock",
		[QUARANTINE_FUTURE] = "future",
		[QUARANTINE_PAST] = "past",
		[QUARANTINE_COVERED] = "covered",
		[QUARANTINE_UNKNOWN_ID] = "unknown-id",
		[QUARANTINE_WEIGHT] = "weight",
		[QUARANTINE_TWO_NODES] = "two-nodes",
		[QUARANTINE_RETIRED] = "retired",
		[QUARANTINE_UNPROVED] = "unproved",
		[QUARANTINE_UNAPPROVED] = "unapproved",
		[QUARANTINE_ENERGY] = "energy",
		[QUARANTINE_MODEL] = "model",
	};

	return names[c];
}

const char *
ingest_refusal_name(enum ingest_refusal r)
{
	static const char *const names[INGEST_REFUSALS] = {
		[REFUSAL_NONE] = "none",         [REFUSAL_OTHER] = "other",
		[REFUSAL_TORN] = "torn",         [REFUSAL_CRC] = "crc",
		[REFUSAL_GZIP] = "gzip",         [REFUSAL_CONTENT] = "content",
		[REFUSAL_VERSION] = "version",   [REFUSAL_STREAM] = "stream",
		[REFUSAL_NODE] = "node",         [REFUSAL_SIMULATED] = "simulated",
		[REFUSAL_GAP] = "gap",           [REFUSAL_HELD] = "held",
		[REFUSAL_MISMATCH] = "mismatch", [REFUSAL_OVERSIZED] = "oversized",
	};

	return names[r];
}

/* Always false, like err_set. */
#define REFUSE(f, why, ...) ((f)->klass = (why), err_set(&(f)->reason, ERR_INVALID, __VA_ARGS__))

static bool
refused(const struct ingest_frame *f)
{
	return f->reason.kind != ERR_NONE;
}

/* Rule 3, the node's clock. */
static void
judge_clock(const struct ingest *in, struct ingest_frame *f)
{
	bool ahead = in->skew_ns > 0;
	char apart[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE];

	if (in->overruled || (ahead ? in->skew_ns : -in->skew_ns) <= in->skew_max_ns)
		return;
	duration_format(ahead ? in->skew_ns : -in->skew_ns, apart);
	REFUSE(f, QUARANTINE_SKEW, "the node's clock was %s %s when it sent, more than %s", apart,
	       ahead ? "ahead" : "behind", duration_format(in->skew_max_ns, limit));
}

/* Rules 3 and 4. */
static void
judge_time(const struct ingest *in, struct ingest_frame *f)
{
	const struct wire_batch *b = f->batch;
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE];

	time_format(b->from_ns, from);
	time_format(b->to_ns, to);
	if (b->to_ns > in->now_ns + AHEAD_MAX_NS)
		REFUSE(f, QUARANTINE_FUTURE, "covers time until %s, more than five minutes after %s", to,
		       time_format(in->now_ns, limit));
	else if (b->kind == WIRE_LOSS || in->overruled)
		return;
	else if (b->from_ns < in->now_ns - BEHIND_MAX_NS)
		REFUSE(f, QUARANTINE_PAST, "covers time from %s, more than 45 days before %s", from,
		       time_format(in->now_ns, limit));
	else if (b->from_ns < in->covered_until_ns)
		REFUSE(f, QUARANTINE_COVERED, "covers time from %s, but this stream has covered all until %s", from,
		       time_format(in->covered_until_ns, limit));
}

/* Rule 4 for a batch that an operator releases. */
static bool
judge_place(struct ingest *in, struct ingest_frame *f, struct err *err)
{
	static const struct db_stmt stmt = {
		"batch place", "SELECT seq FROM ingest_batch WHERE stream_id = $1 AND status = 'accepted' "
			       "AND ((seq < $2 AND to_ns > $3) OR (seq > $2 AND from_ns < $4)) ORDER BY seq LIMIT 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, in->stream_id);
	arg_i64(&a, f->seq);
	arg_i64(&a, f->batch->from_ns);
	arg_i64(&a, f->batch->to_ns);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) > 0)
		REFUSE(f, QUARANTINE_COVERED,
		       "covers time that batch %s of this stream accounts for, or that lies beyond it",
		       res_text(r, 0, 0));
	return true;
}

/* Rule 4a. A stream accounts for all of its node's time from its first batch to its last, so the overlap of several
 * streams would be counted twice. A clock that was set back makes streams overlap by a little; a larger overlap has
 * another cause. */
static bool
judge_overlap(struct ingest *in, struct ingest_frame *f, struct err *err)
{
	static const struct db_stmt stmt = {
		"batch twice",
		"WITH asked AS (SELECT $1::bigint AS node_id, $2::bigint AS stream_id, $3::bigint AS from_ns, $4::bigint AS to_ns, $5::bigint AS near_ns), "
		"e AS (SELECT int8range(greatest(x.from_ns, q.from_ns - q.near_ns), least(x.to_ns, q.to_ns + q.near_ns)) AS r FROM asked q JOIN stream s ON "
		"s.node_id = q.node_id AND (s.id = q.stream_id OR s.covered_until_ns > q.from_ns - q.near_ns) LEFT JOIN LATERAL (SELECT b.from_ns FROM ingest_batch b "
		"WHERE b.stream_id = s.id AND b.status = 'accepted' ORDER BY b.seq LIMIT 1) f ON true CROSS JOIN LATERAL (SELECT CASE WHEN s.id = q.stream_id THEN "
		"least(f.from_ns, q.from_ns) ELSE f.from_ns END AS from_ns, CASE WHEN s.id = q.stream_id THEN greatest(s.covered_until_ns, q.to_ns) ELSE "
		"s.covered_until_ns END AS to_ns) x WHERE x.from_ns < q.to_ns + q.near_ns AND x.from_ns < x.to_ns) "
		"SELECT (SELECT sum(upper(e.r) - lower(e.r)) FROM e) - (SELECT sum(upper(p) - lower(p)) FROM (SELECT unnest(range_agg(e.r)) AS p FROM e) u)"};
	const struct wire_batch *first = in->frames[0].batch; /* of this call: not stored yet */
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	char twice[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE];

	if (f->batch->kind == WIRE_LOSS || in->overruled || f->batch->from_ns >= in->node_until_ns)
		return true;
	in->unsteady = in->grouped;
	if (in->unsteady)
		return true;
	arg_i64(&a, in->node_id);
	arg_i64(&a, in->stream_id);
	arg_i64(&a, first->from_ns < f->batch->from_ns ? first->from_ns : f->batch->from_ns);
	arg_i64(&a, f->batch->to_ns);
	arg_i64(&a, TWICE_NEAR_NS);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	if (res_i64(r, 0, 0) > TWICE_MAX_NS)
		REFUSE(f, QUARANTINE_COVERED,
		       "with it the node would have accounted for %s twice within half a day, more than %s: its streams overlap",
		       duration_format(res_i64(r, 0, 0), twice), duration_format(TWICE_MAX_NS, limit));
	return true;
}

/* Rule 4, the oldest stored batches. Only time older than a day needs the query: retention.c deletes no younger
 * batch. The lock is held until the commit, so that no batch of that time is deleted meanwhile. */
static bool
judge_evidence(struct ingest *in, struct ingest_frame *f, struct err *err)
{
	static const struct db_stmt lock = {"evidence lock",
	                                    "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_EVIDENCE ")"};
	static const struct db_stmt from = {"evidence from", "SELECT evidence_from_ns FROM ledger"};
	owned(result) PGresult *r = NULL;
	char covers[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE];

	if (f->batch->kind == WIRE_LOSS || f->batch->from_ns >= in->now_ns - EVIDENCE_ASKED_NS)
		return true;
	in->unsteady = in->grouped;
	if (in->unsteady)
		return true;
	if (!db_run(in->db, &lock, NULL, NULL, err) || !db_run(in->db, &from, NULL, &r, err))
		return false;
	if (f->batch->from_ns < res_i64(r, 0, 0))
		REFUSE(f, QUARANTINE_UNPROVED, "covers time from %s, but the evidence of all before %s was retired",
		       time_format(f->batch->from_ns, covers), time_format(res_i64(r, 0, 0), limit));
	return true;
}

/* Rule 5 for one record; adds it to its GPU's account. */
static bool
judge_record(struct ingest *in, struct ingest_frame *f, size_t i)
{
	const struct wire_record *r = &f->batch->records[i];
	struct dict *d = &in->dict;
	size_t device, holder = 0;
	struct dict_gpu *g;

	if (!hash_find(&d->device_ids, r->device, &device))
		return !REFUSE(f, QUARANTINE_UNKNOWN_ID,
		               "record %zu: device %" PRIu32 " was never introduced in this stream", i, r->device);
	if (r->holder != 0 && !hash_find(&d->holder_ids, r->holder, &holder))
		return !REFUSE(f, QUARANTINE_UNKNOWN_ID,
		               "record %zu: holder %" PRIu32 " was never introduced in this stream", i, r->holder);
	if (r->units > d->devices[device].units)
		return !REFUSE(f, QUARANTINE_WEIGHT,
		               "record %zu: units is %" PRId64 ", more than its device's %" PRId64, i, r->units,
		               d->devices[device].units);
	f->device_id[i] = d->devices[device].device_id;
	f->holder_id[i] = r->holder != 0 ? d->holders[holder].holder_id : 0;
	if (!d->devices[device].entered || (r->holder != 0 && f->holder_id[i] == 0))
		f->lacks_rows = true;
	g = &d->gpus[d->devices[device].gpu];
	if (in->only_gpu != NULL && strcmp(in->only_gpu, g->uuid) != 0)
		return true;
	g->records++;
	g->unit_ns += (int128)r->units * r->held_ns;
	g->energy_mj += r->energy_mj;
	g->memory_byte_ms += r->memory_byte_ms;
	if (r->peak_memory_bytes > g->peak_memory_bytes)
		g->peak_memory_bytes = r->peak_memory_bytes;
	if (g->last_ns == 0 || r->start_ns < g->first_ns)
		g->first_ns = r->start_ns;
	if (r->start_ns + r->duration_ns > g->last_ns)
		g->last_ns = r->start_ns + r->duration_ns;
	return true;
}

/* Rules 5 and 6. */
static void
judge_records(struct ingest *in, struct ingest_frame *f)
{
	const struct wire_batch *b = f->batch;
	int128 most = (int128)UNITS_PER_GPU * (b->to_ns - b->from_ns);

	f->device_id = mem_array(b->record_count, sizeof(*f->device_id));
	f->holder_id = mem_array(b->record_count, sizeof(*f->holder_id));
	for (size_t i = 0; i < in->dict.gpu_count; i++) {
		in->dict.gpus[i].unit_ns = in->dict.gpus[i].energy_mj = in->dict.gpus[i].memory_byte_ms = 0;
		in->dict.gpus[i].peak_memory_bytes = 0;
		in->dict.gpus[i].first_ns = in->dict.gpus[i].last_ns = in->dict.gpus[i].records = 0;
	}
	for (size_t i = 0; i < b->record_count && !refused(f); i++)
		judge_record(in, f, i);
	for (size_t i = 0; i < in->dict.gpu_count && !refused(f); i++)
		if (in->dict.gpus[i].unit_ns > most)
			REFUSE(f, QUARANTINE_WEIGHT, "GPU %s has more than 5040 units in the time covered",
			       in->dict.gpus[i].uuid);
}

/* Rule 6a. One watt is one millijoule per millisecond. A counter may be read one sample late, and the first reading
 * after a driver hang includes the energy of up to two minutes before it. Neither allowance is more than the covered
 * time, or twice that, so that short batches gain nothing. Some drivers count shared memory once for each process. */
static void
judge_board(struct ingest *in, struct ingest_frame *f)
{
	int64_t covered_ns = f->batch->to_ns - f->batch->from_ns;
	int64_t catch_up_ns = 2 * covered_ns < CATCH_UP_MAX_NS ? 2 * covered_ns : CATCH_UP_MAX_NS;
	int64_t late_ns = covered_ns < SAMPLE_MAX_NS ? covered_ns : SAMPLE_MAX_NS;
	int64_t ms = (covered_ns + late_ns + NS_PER_MS - 1) / NS_PER_MS, powered_ms = ms + catch_up_ns / NS_PER_MS;

	for (size_t i = 0; i < in->dict.gpu_count && !refused(f); i++) {
		const struct dict_gpu *g = &in->dict.gpus[i];
		int128 energy = (int128)g->power_w * powered_ms,
		       memory = (int128)g->memory_bytes * MEMORY_SHARED_BY * ms;

		if (g->energy_mj > energy)
			REFUSE(f, QUARANTINE_ENERGY,
			       "GPU %s used %" PRId64 " mJ in %" PRId64
			       " ms; a board of its model draws at most %" PRId64 " W: the most is %" PRId64 " mJ",
			       g->uuid, (int64_t)g->energy_mj, ms, g->power_w, (int64_t)energy);
		else if (g->memory_bytes != 0 && g->memory_byte_ms > memory)
			REFUSE(f, QUARANTINE_ENERGY,
			       "GPU %s held more memory in %" PRId64 " ms than its model has: %" PRId64 " bytes",
			       g->uuid, ms, g->memory_bytes);
		else if (g->memory_bytes != 0 &&
		         (int128)g->peak_memory_bytes > (int128)g->memory_bytes * MEMORY_SHARED_BY)
			REFUSE(f, QUARANTINE_ENERGY,
			       "GPU %s held %" PRId64 " bytes of memory at once; its model has %" PRId64 " bytes",
			       g->uuid, g->peak_memory_bytes, g->memory_bytes);
	}
}

/* *ret_noted: the batch's dictionary is valid, even if its records are refused. */
static bool
judge(struct ingest *in, struct ingest_frame *f, bool *ret_noted, struct err *err)
{
	struct err why = {0};

	if (!wire_check(f->batch, &why))
		return !REFUSE(f, QUARANTINE_FORMAT, "%s", why.text);
	if ((uint64_t)f->last_seq != f->batch->last_seq)
		return !REFUSE(f, QUARANTINE_FORMAT, "last_seq is %" PRIu64 ", beyond what a stream can reach",
		               f->batch->last_seq);
	if (in->held) {
		judge_clock(in, f);
		return refused(f) ||
		       !REFUSE(f, QUARANTINE_UNAPPROVED,
		               in->approved ? "node %s was approved, and what it sent before is taken in first"
		                            : "node %s is in no policy and nobody has approved it",
		               f->batch->node);
	}
	f->klass = QUARANTINE_DICTIONARY;
	if (!dict_note(in, f->batch, &f->reason, err))
		return false;
	*ret_noted = !refused(f);
	if (!refused(f))
		judge_clock(in, f);
	if (!refused(f))
		judge_time(in, f);
	if (!refused(f) && in->overruled && !in->only_gpu && f->batch->kind != WIRE_LOSS && !judge_place(in, f, err))
		return false;
	if (!refused(f) && !judge_evidence(in, f, err))
		return false;
	if (!refused(f) && !judge_overlap(in, f, err))
		return false;
	if (!refused(f))
		judge_records(in, f);
	if (!refused(f))
		judge_board(in, f);
	return refused(f) || ingest_claim(in, f, err);
}

bool
ingest_judge(struct ingest *in, struct ingest_frame *f, struct err *err)
{
	bool noted = false;

	f->reason = (struct err){0};
	f->klass = QUARANTINE_NONE;
	if (!judge(in, f, &noted, err))
		return false;
	if (noted && f->batch->device_count + f->batch->holder_count > 0 && !dict_save(in, err))
		return false;
	if (refused(f)) {
		f->outcome = OUTCOME_QUARANTINED;
		return true;
	}
	f->klass = QUARANTINE_NONE;
	f->outcome = f->batch->kind == WIRE_LOSS ? OUTCOME_LOSS : OUTCOME_ACCEPTED;
	if (f->batch->to_ns > in->covered_until_ns)
		in->covered_until_ns = f->batch->to_ns;
	return true;
}

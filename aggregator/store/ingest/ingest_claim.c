/* aggregator/store/ingest/ingest_claim.c - whose the GPUs of a batch are: rule 7 of ingest_judge.c.
 *
 * Rules, in order:
 *  1. a GPU whose known service covers its records is the node's; for all others the ledger is asked (gpu_claim): a GPU's first
 *     batch, late ones, and one that is reported or declared otherwise than known, as long as it is: what the stream said of it last is
 *     kept until its records count
 *  2. the records of a GPU that is not the node's are set aside, by batch and GPU; the batch is accepted, and nothing has a row
 *     because of them. Beyond LIMIT_NODE_SET_ASIDE of them that nobody has decided about, the batch is refused as a whole: then it is one row
 *     until somebody does. An operator who releases a batch has decided
 *  3. an instance of the node's own GPU that the ledger knows with another profile or other units is a contradiction: the whole
 *     batch is refused, and what the ledger said in rule 1 is taken back
 *  4. devices and holders that the other records name are entered, and the records get their ids */
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/limits.h"
#include "common/base/units.h"

void
set_asides_free(struct set_aside *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		mem_free(list[i].gpu);
		mem_free(list[i].reason);
	}
	mem_free(list);
}

/* --- rule 1 --- */

static bool
is_asked(const struct dict_gpu *g)
{
	return g->last_ns != 0 && (g->asks || !g->in_service || g->first_ns < g->from_ns || g->last_ns > g->until_ns ||
	                           g->last_ns > g->otherwise_ns);
}

enum { CLAIM_GPU, CLAIM_CLASS, CLAIM_WHY, CLAIM_FROM, CLAIM_UNTIL };

/* One row for each GPU that is asked about. Without an entry of the stream it is what the ledger says it is. Each call locks its GPU: in
 * the order of UUIDs, so that two nodes that name the same ones do not wait for each other. */
static bool
ask(struct ingest *in, const struct ingest_frame *f, PGresult **ret, struct err *err)
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

		if (!is_asked(g))
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
	       err_set(err, ERR_RETRY, "the ledger gave %d of %zu GPUs back", PQntuples(*ret), n);
}

/* --- rule 2 --- */

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

/* Which GPUs are not the node's, before anything is remembered of what the ledger said. */
static void
mark_gpus(struct ingest *in, struct ingest_frame *f, const PGresult *claims)
{
	int row = 0;

	for (size_t i = 0; i < in->dict.gpu_count; i++) {
		struct dict_gpu *g = &in->dict.gpus[i];

		g->aside = false;
		if (claims == NULL || !is_asked(g))
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

/* Rule 2's end. *ret_refused: the batch is. */
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

/* Whether the records of a GPU count here: it is the node's, and the one that is asked for where only one is. */
static bool
counts(const struct ingest *in, const struct dict_gpu *g)
{
	return !g->aside && (!in->only_gpu || strcmp(in->only_gpu, g->uuid) == 0);
}

/* What the records that count need. */
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
		struct dict_device *dev = &d->devices[idmap_get(&d->device_ids, r->device)];

		if (!counts(in, &d->gpus[dev->gpu]))
			continue;
		f->counted++;
		dev->needed = true;
		/* A GPU that serves has a device of its own, also when only its instances have records. */
		d->devices[d->gpus[dev->gpu].device].needed = true;
		if (r->holder != 0)
			d->holders[idmap_get(&d->holder_ids, r->holder)].needed = true;
	}
}

/* --- rule 3 --- */

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

/* --- rule 4 --- */

/* *ret_taken: a GPU that was described anew is now what the stream says it is. */
static void
remember(struct ingest *in, const PGresult *claims, bool *ret_taken)
{
	int row = 0;

	for (size_t i = 0; i < in->dict.gpu_count; i++) {
		struct dict_gpu *g = &in->dict.gpus[i];
		struct dict_device *own = &in->dict.devices[g->device];

		if (!is_asked(g))
			continue;
		g->asks = g->aside;
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
		const struct dict_device *dev = &d->devices[idmap_get(&d->device_ids, r->device)];
		bool counted = counts(in, &d->gpus[dev->gpu]);

		f->device_id[i] = counted ? dev->device_id : 0;
		f->holder_id[i] =
			counted && r->holder != 0 ? d->holders[idmap_get(&d->holder_ids, r->holder)].holder_id : 0;
	}
}

bool
ingest_claim(struct ingest *in, struct ingest_frame *f, struct err *err)
{
	owned(result) PGresult *claims = NULL;
	bool asked = false, taken = false, refused = false;

	f->counted = (int64_t)f->batch->record_count;
	for (size_t i = 0; i < in->dict.gpu_count; i++)
		asked = asked || is_asked(&in->dict.gpus[i]);
	if (!asked && !f->unsettled && !in->only_gpu)
		return true;
	in->unsteady = in->grouped;
	if (in->unsteady)
		return true;
	if (asked &&
	    (!ingest_enter_lock(in, err) || !db_script(in->db, "SAVEPOINT claims", err) || !ask(in, f, &claims, err)))
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
	if (!dict_enter(in, err) || (taken && !dict_keep(in, err)))
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

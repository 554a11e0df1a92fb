/* aggregator/store/ingest/ingest_dict.c - translates the small numbers of a stream: from the batch's dictionary to
 * rows of the ledger.
 *
 * Entries are matched by identity (a GPU's UUID, an instance's placement and creation time, a holder's identity), so
 * that a dictionary may be sent again at any time. A number whose meaning changes is a contradiction.
 *
 * A batch's dictionary is noted first, which makes no row of a device or holder. They are entered when a counting
 * record names them; until then the entry is stored with its stream as it arrived. */
#include <string.h>

#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/units.h"

static void
device_entry_free(struct wire_device *d)
{
	if (d == NULL)
		return;
	wire_device_fini(d);
	mem_free(d);
}

static void
holder_entry_free(struct wire_holder *h)
{
	if (h == NULL)
		return;
	wire_holder_fini(h);
	mem_free(h);
}

void
dict_fini(struct dict *d)
{
	for (size_t i = 0; i < d->gpu_count; i++)
		mem_free(d->gpus[i].uuid);
	for (size_t i = 0; i < d->device_count; i++)
		device_entry_free(d->devices[i].entry);
	for (size_t i = 0; i < d->holder_count; i++)
		holder_entry_free(d->holders[i].entry);
	mem_free(d->gpus);
	mem_free(d->devices);
	mem_free(d->holders);
	hash_fini(&d->gpu_ids);
	hash_fini(&d->gpu_uuids);
	hash_fini(&d->device_ids);
	hash_fini(&d->holder_ids);
	device_classes_fini(&d->classes);
	mem_free(d->owners);
	hash_fini(&d->owner_ids);
	memset(d, 0, sizeof(*d));
}

static size_t
text_bytes(const char *s)
{
	return s != NULL ? strlen(s) + 17 : 0; /* with the allocator's overhead */
}

/* Same growth as in room() below. */
static size_t
array_bytes_of(size_t count, size_t size)
{
	size_t cap = 1;

	while (cap < count)
		cap *= 2;
	return count == 0 ? 0 : cap * size;
}

size_t
dict_bytes(const struct dict *d)
{
	size_t sum = array_bytes_of(d->gpu_count, sizeof(*d->gpus)) +
	             array_bytes_of(d->device_count, sizeof(*d->devices)) +
	             array_bytes_of(d->holder_count, sizeof(*d->holders)) + d->owner_count * sizeof(*d->owners) +
	             hash_memory(&d->gpu_ids) + hash_memory(&d->gpu_uuids) + hash_memory(&d->device_ids) +
	             hash_memory(&d->holder_ids) + hash_memory(&d->owner_ids);

	for (size_t i = 0; i < d->gpu_count; i++)
		sum += text_bytes(d->gpus[i].uuid);
	for (size_t i = 0; i < d->device_count; i++) {
		const struct wire_device *e = d->devices[i].entry;

		if (e != NULL)
			sum += sizeof(*e) + text_bytes(e->uuid) + text_bytes(e->model) + text_bytes(e->profile);
	}
	for (size_t i = 0; i < d->holder_count; i++) {
		const struct wire_holder *e = d->holders[i].entry;

		if (e != NULL)
			sum += sizeof(*e) + text_bytes(e->ns) + text_bytes(e->pod) + text_bytes(e->pod_uid) +
			       text_bytes(e->container) + text_bytes(e->slurm_job) + text_bytes(e->slurm_account) +
			       text_bytes(e->user) + text_bytes(e->group) + text_bytes(e->labels);
	}
	for (size_t i = 0; i < d->classes.count; i++)
		sum += sizeof(d->classes.at[i]) + text_bytes(d->classes.at[i].cluster) +
		       text_bytes(d->classes.at[i].gpu_model) + text_bytes(d->classes.at[i].profile);
	return sum;
}

/* Arrays double when their count reaches a power of two. */
static void *
room(void *array, size_t count, size_t size)
{
	if ((count & (count - 1)) != 0)
		return array;
	return mem_grow(array, count == 0 ? 1 : 2 * count, size);
}

void
dict_gpu_row(struct dict *d, size_t gpu, int64_t gpu_id)
{
	d->gpus[gpu].gpu_id = gpu_id;
	hash_put(&d->gpu_ids, (uint64_t)gpu_id, gpu);
}

size_t
dict_gpu(struct dict *d, const char *uuid, int64_t gpu_id)
{
	uint64_t key = hash_text(HASH_START, uuid);
	size_t i, slot;

	for (i = hash_first(&d->gpu_uuids, key, &slot); i != HASH_NONE; i = hash_next(&d->gpu_uuids, key, &slot))
		if (strcmp(d->gpus[i].uuid, uuid) == 0)
			return i;
	d->gpus = room(d->gpus, d->gpu_count, sizeof(*d->gpus));
	i = d->gpu_count++;
	d->gpus[i] = (struct dict_gpu){.uuid = mem_strdup(uuid), .device = SIZE_MAX};
	hash_add(&d->gpu_uuids, key, i);
	if (gpu_id != 0)
		dict_gpu_row(d, i, gpu_id);
	return i;
}

void
dict_gpu_service(struct dict *d, size_t gpu, const PGresult *r, int row, int at)
{
	struct dict_gpu *g = &d->gpus[gpu];

	g->in_service = !res_null(r, row, at);
	g->from_ns = res_i64(r, row, at);
	g->until_ns = res_null(r, row, at + 1) ? INT64_MAX : res_i64(r, row, at + 1);
	g->otherwise_ns = res_null(r, row, at + 2) ? INT64_MAX : res_i64(r, row, at + 2);
	if (!d->services_read)
		d->services_seen = res_i64(r, row, at + 3);
	d->services_read = true;
}

void
dict_gpu_model(struct dict *d, size_t gpu, const char *short_model)
{
	struct dict_gpu *g = &d->gpus[gpu];
	int64_t power_w = gpu_power_most_w(short_model), memory_bytes = gpu_memory_most_bytes(short_model);

	/*  0 is no bound. Another node's description must not limit the owner's measurements: the larger one counts. */
	g->memory_bytes = g->power_w == 0                             ? memory_bytes
	                  : memory_bytes == 0 || g->memory_bytes == 0 ? 0
	                  : memory_bytes > g->memory_bytes            ? memory_bytes
	                                                              : g->memory_bytes;
	g->power_w = power_w > g->power_w ? power_w : g->power_w;
}

void
dict_device(struct dict *d, const struct dict_device *dev)
{
	d->devices = room(d->devices, d->device_count, sizeof(*d->devices));
	d->devices[d->device_count] = *dev;
	if (dev->is_gpu && d->gpus[dev->gpu].device == SIZE_MAX)
		d->gpus[dev->gpu].device = d->device_count;
	hash_put(&d->device_ids, dev->local, d->device_count++);
}

void
dict_holder(struct dict *d, const struct dict_holder *h)
{
	d->holders = room(d->holders, d->holder_count, sizeof(*d->holders));
	d->holders[d->holder_count] = *h;
	hash_put(&d->holder_ids, h->local, d->holder_count++);
}

/* --- entries of earlier batches of the stream --- */

int64_t
dict_from_ns(const struct ingest *in)
{
	int64_t from_ns = INT64_MAX;

	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].batch->from_ns < from_ns)
			from_ns = in->frames[i].batch->from_ns;
	/* Clamps the time to the range that the ledger can express. */
	return from_ns < 0 ? 0 : from_ns > INT64_MAX / 2 ? INT64_MAX / 2 : from_ns;
}

static bool
load_devices(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict devices",
		"SELECT x.local_id, d.id, g.id, g.uuid, d.gi = -1, d.units, d.profile, m.short_model, s.from_ns, s.until_ns, " DICT_DECLARED_OTHERWISE(
			"$2",
			"$3") ", " DICT_SERVICES_SEEN("$2") " FROM stream_device x JOIN device d ON d.id = x.device_id "
							    "JOIN gpu g ON g.id = d.gpu_id " DICT_LAST_SERVICE(
								    "$2") "WHERE x.stream_id = $1"};
	owned(result) PGresult *r = NULL;
	struct dict *d = &in->dict;
	struct db_args a = {0};

	arg_i64(&a, in->stream_id);
	arg_i64(&a, in->node_id);
	arg_i64(&a, dict_from_ns(in));
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		size_t gpu = dict_gpu(d, res_text(r, row, 3), res_i64(r, row, 2));

		dict_gpu_service(d, gpu, r, row, 8);
		dict_gpu_model(d, gpu, res_text(r, row, 7));
		dict_device(d, &(struct dict_device){.local = (uint32_t)res_i64(r, row, 0),
		                                     .device_id = res_i64(r, row, 1),
		                                     .gpu = gpu,
		                                     .is_gpu = res_bool(r, row, 4),
		                                     .entered = true,
		                                     .units = res_i64(r, row, 5),
		                                     .device_class = device_classes_find(&d->classes, in->cluster,
		                                                                         res_text(r, row, 7),
		                                                                         res_text(r, row, 6))});
	}
	return true;
}

static char *
text_at(const PGresult *r, int row, int col)
{
	return PQgetvalue(r, row, col);
}

static bool
load_device_entries(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict device entries",
		"SELECT local_id, gpu_local_id, uuid, model, profile, gi, ci, created_ns, units, memory_bytes, "
		"index FROM stream_device_entry WHERE stream_id = $1"};
	owned(result) PGresult *r = NULL;
	owned(mem) struct wire_device *list = NULL;
	struct err reason = {0};
	struct db_args a = {0};
	size_t n;

	arg_i64(&a, in->stream_id);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	n = (size_t)PQntuples(r);
	list = mem_array(n, sizeof(*list));
	for (int row = 0; row < (int)n; row++)
		list[row] = (struct wire_device){.id = (uint32_t)res_i64(r, row, 0),
		                                 .gpu = (uint32_t)res_i64(r, row, 1),
		                                 .uuid = text_at(r, row, 2),
		                                 .model = text_at(r, row, 3),
		                                 .profile = text_at(r, row, 4),
		                                 .gi = (int32_t)res_i64(r, row, 5),
		                                 .ci = (int32_t)res_i64(r, row, 6),
		                                 .created_ns = res_i64(r, row, 7),
		                                 .units = res_i64(r, row, 8),
		                                 .memory_bytes = res_i64(r, row, 9),
		                                 .index = (int32_t)res_i64(r, row, 10)};
	if (!dict_note_devices(in, list, n, true, &reason, err))
		return false;
	return reason.kind == ERR_NONE ||
	       err_set(err, ERR_FATAL, "the dictionary of stream %" PRId64 ": %s", in->stream_id, reason.text);
}

/* Only those that the frames name: a long stream has many holders. */
static void
wanted_holders(const struct ingest *in, struct db_array *ids)
{
	in_place(hash) struct hash seen = {0};
	size_t ignored;

	for (size_t i = 0; i < in->count; i++) {
		const struct wire_batch *b = in->frames[i].batch;

		for (size_t k = 0; k < b->record_count + b->holder_count; k++) {
			uint32_t id = k < b->record_count ? b->records[k].holder : b->holders[k - b->record_count].id;

			if (id == 0 || hash_find(&seen, id, &ignored))
				continue;
			hash_put(&seen, id, 0);
			array_i64(ids, id);
		}
	}
}

static bool
load_holder_entries(struct ingest *in, struct db_array *ids, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict holder entries",
		"SELECT local_id, kind, namespace, pod, pod_uid, container, slurm_job, slurm_account, user_name, uid, group_name, "
		"labels FROM stream_holder_entry WHERE stream_id = $1 AND local_id = ANY ($2::bigint[])"};
	owned(result) PGresult *r = NULL;
	owned(mem) struct wire_holder *list = NULL;
	struct err reason = {0};
	struct db_args a = {0};
	size_t n;

	arg_i64(&a, in->stream_id);
	arg_array(&a, ids);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	n = (size_t)PQntuples(r);
	list = mem_array(n, sizeof(*list));
	for (int row = 0; row < (int)n; row++)
		list[row] = (struct wire_holder){.id = (uint32_t)res_i64(r, row, 0),
		                                 .kind = (uint32_t)res_i64(r, row, 1),
		                                 .ns = text_at(r, row, 2),
		                                 .pod = text_at(r, row, 3),
		                                 .pod_uid = text_at(r, row, 4),
		                                 .container = text_at(r, row, 5),
		                                 .slurm_job = text_at(r, row, 6),
		                                 .slurm_account = text_at(r, row, 7),
		                                 .user = text_at(r, row, 8),
		                                 .uid = res_i64(r, row, 9),
		                                 .group = text_at(r, row, 10),
		                                 .labels = text_at(r, row, 11)};
	return dict_note_holders(in, list, n, true, &reason, err);
}

static bool
load_holders(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {"dict holders", "SELECT local_id, holder_id FROM stream_holder "
	                                                    "WHERE stream_id = $1 AND local_id = ANY ($2::bigint[])"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array ids = {0};
	struct db_args a = {0};

	db_array_init(&ids);
	wanted_holders(in, &ids);
	if (ids.count == 0)
		return true;
	arg_i64(&a, in->stream_id);
	arg_array(&a, &ids);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		dict_holder(&in->dict, &(struct dict_holder){.local = (uint32_t)res_i64(r, row, 0),
		                                             .holder_id = res_i64(r, row, 1)});
	return !in->has_entries || load_holder_entries(in, &ids, err);
}

bool
dict_load(struct ingest *in, struct err *err)
{
	dict_fini(&in->dict);
	/* A new stream has no entries. */
	if (in->next_seq == 1)
		return true;
	return load_devices(in, err) && (!in->has_entries || load_device_entries(in, err)) && load_holders(in, err);
}

bool
dict_note(struct ingest *in, const struct wire_batch *b, struct err *ret_reason, struct err *err)
{
	*ret_reason = (struct err){0};
	if (!dict_note_devices(in, b->devices, b->device_count, false, ret_reason, err) || ret_reason->kind != ERR_NONE)
		return ret_reason->kind != ERR_NONE;
	return dict_note_holders(in, b->holders, b->holder_count, false, ret_reason, err);
}

/* --- storing entries --- */

bool
dict_store(struct ingest *in, const struct db_stmt *stmt, struct db_columns *rows, struct err *err)
{
	struct db_args a = {0};

	if (rows->col[0].count == 0)
		return true;
	arg_i64(&a, in->stream_id);
	arg_columns(&a, rows);
	return db_run(in->db, stmt, &a, NULL, err);
}

bool
dict_drop_devices(struct ingest *in, struct db_columns *locals, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict device drop",
		"DELETE FROM stream_device_entry WHERE stream_id = $1 AND local_id = ANY ($2::bigint[])"};

	return dict_store(in, &stmt, locals, err);
}

static bool
save_devices(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict device keep",
		"INSERT INTO stream_device_entry SELECT $1, e.* FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], "
		"$6::text[], $7::integer[], $8::integer[], $9::bigint[], $10::smallint[], $11::bigint[], $12::integer[]) e"};
	in_place(db_columns) struct db_columns c = {0}, gone = {0};

	db_columns_init(&c, 11);
	db_columns_init(&gone, 1);
	for (size_t i = 0; i < in->dict.device_count; i++) {
		struct dict_device *d = &in->dict.devices[i];

		if (d->stored && (d->entry == NULL || d->outdated)) {
			array_i64(&gone.col[0], d->local);
			d->stored = false;
		}
		d->outdated = false;
		if (d->entry == NULL || d->stored)
			continue;
		d->stored = true;
		array_i64(&c.col[0], d->local);
		array_i64(&c.col[1], d->entry->gpu);
		array_text(&c.col[2], d->entry->uuid);
		array_text(&c.col[3], d->entry->model);
		array_text(&c.col[4], d->entry->profile);
		array_i64(&c.col[5], d->entry->gi);
		array_i64(&c.col[6], d->entry->ci);
		array_i64(&c.col[7], d->entry->created_ns);
		array_i64(&c.col[8], d->entry->units);
		array_i64(&c.col[9], d->entry->memory_bytes);
		array_i64(&c.col[10], d->entry->index);
	}
	return dict_drop_devices(in, &gone, err) && dict_store(in, &stmt, &c, err);
}

static bool
save_holders(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict holder keep",
		"INSERT INTO stream_holder_entry SELECT $1, e.* FROM unnest($2::bigint[], $3::smallint[], $4::text[], $5::text[], "
		"$6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bigint[], $12::text[], $13::text[]) e"};
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 12);
	for (size_t i = 0; i < in->dict.holder_count; i++) {
		struct dict_holder *h = &in->dict.holders[i];

		if (h->holder_id != 0 || h->stored)
			continue;
		h->stored = true;
		array_i64(&c.col[0], h->local);
		array_i64(&c.col[1], h->entry->kind);
		array_text(&c.col[2], h->entry->ns);
		array_text(&c.col[3], h->entry->pod);
		array_text(&c.col[4], h->entry->pod_uid);
		array_text(&c.col[5], h->entry->container);
		array_text(&c.col[6], h->entry->slurm_job);
		array_text(&c.col[7], h->entry->slurm_account);
		array_text(&c.col[8], h->entry->user);
		array_i64(&c.col[9], h->entry->uid);
		array_text(&c.col[10], h->entry->group);
		array_text(&c.col[11], h->entry->labels);
	}
	return dict_store(in, &stmt, &c, err);
}

bool
dict_save(struct ingest *in, struct err *err)
{
	return save_devices(in, err) && save_holders(in, err);
}

bool
dict_enter(struct ingest *in, struct err *err)
{
	return dict_enter_devices(in, err) && dict_enter_holders(in, err);
}

/* aggregator/store/ingest_device.c - the GPUs and MIG instances of a batch's dictionary.
 *
 * A GPU is known by its UUID, an instance by its GPU, its place and its birth. What a number means never changes. */
#include <stdio.h>

#include "aggregator/store/ingest.h"
#include "common/units.h"

/* New GPUs are what the batch says they are. What is known of others only the node that has them in service changes. */
static bool
describe_gpus(struct ingest *in, const struct wire_batch *b, const struct wire_device *const *gpus, size_t n,
              struct err *err)
{
#define ENTRIES                                                                                      \
	"unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::integer[]) AS e(uuid, model, " \
	"short_model, memory_bytes, index) "
	static const struct db_stmt insert = {
		"gpu insert",
		"WITH made AS (INSERT INTO gpu (uuid, model, short_model, memory_bytes, index) SELECT DISTINCT ON (uuid) * "
		"FROM " ENTRIES "ORDER BY uuid ON CONFLICT (uuid) DO NOTHING RETURNING *) "
		"INSERT INTO gpu_spec (gpu_id, model, short_model, memory_bytes, node_id, stream_id, seq, effective) "
		"SELECT id, model, short_model, memory_bytes, $6, $7, $8, tstzrange(NULL, NULL) FROM made"};
	static const struct db_stmt describe = {
		"gpu describe",
		"SELECT gpu_describe($6, g.id, e.model, e.short_model, e.memory_bytes, e.index, $9, $7, $8) FROM " ENTRIES
		"JOIN gpu g ON g.uuid = e.uuid JOIN gpu_spec s ON s.gpu_id = g.id AND upper_inf(s.effective) "
		"WHERE (s.model, s.short_model, s.memory_bytes, g.index) IS DISTINCT FROM (e.model, e.short_model, "
		"e.memory_bytes, e.index) AND EXISTS (SELECT FROM gpu_now v WHERE v.gpu_id = g.id AND v.node_id = $6)"};
#undef ENTRIES
	in_place(db_columns) struct db_columns c;
	struct db_args to_insert = {0}, to_describe = {0}, *both[] = {&to_insert, &to_describe};

	db_columns_init(&c, 5);
	for (size_t i = 0; i < n; i++) {
		char name[WIRE_MAX_TEXT + 1];

		gpu_model_short(gpus[i]->model, name, sizeof(name));
		array_text(&c.col[0], gpus[i]->uuid);
		array_text(&c.col[1], gpus[i]->model);
		array_text(&c.col[2], name);
		array_i64(&c.col[3], gpus[i]->memory_bytes);
		array_i64(&c.col[4], gpus[i]->index);
	}
	for (size_t i = 0; i < ARRAY_LEN(both); i++) {
		arg_columns(both[i], &c);
		arg_i64(both[i], in->node_id);
		arg_i64(both[i], in->stream_id);
		arg_i64(both[i], (int64_t)b->seq);
	}
	arg_i64(&to_describe, b->from_ns);
	return db_run(in->db, &insert, &to_insert, NULL, err) && db_run(in->db, &describe, &to_describe, NULL, err);
}

static bool
gpu_ids_of(struct ingest *in, const struct wire_device *const *gpus, size_t n, int64_t *ids, struct err *err)
{
	static const struct db_stmt stmt = {"gpu ids",
	                                    "SELECT g.id FROM unnest($1::text[]) WITH ORDINALITY AS e(uuid, ord) "
	                                    "JOIN gpu g ON g.uuid = e.uuid ORDER BY e.ord"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array uuid;
	struct db_args a = {0};

	db_array_init(&uuid);
	for (size_t i = 0; i < n; i++)
		array_text(&uuid, gpus[i]->uuid);
	arg_array(&a, &uuid);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	if ((size_t)PQntuples(r) != n)
		return err_set(err, ERR_RETRY, "the ledger gave %d of %zu GPUs back", PQntuples(r), n);
	for (size_t i = 0; i < n; i++)
		ids[i] = res_i64(r, (int)i, 0);
	return true;
}

/* Makes the missing devices and gives the rows of all, in order; the last column says whether the ledger's is what
 * the batch says. */
static bool
devices_of(struct ingest *in, const struct wire_device *const *devices, const int64_t *gpu_ids, size_t n,
           PGresult **ret, struct err *err)
{
	static const struct db_stmt insert = {
		"device insert",
		"INSERT INTO device (gpu_id, gi, ci, created_ns, profile, units, uuid, memory_bytes) SELECT * "
		"FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::bigint[], $5::text[], "
		"$6::smallint[], $7::text[], $8::bigint[]) AS e(gpu_id, gi, ci, created_ns, profile, units, "
		"uuid, memory_bytes) ORDER BY gpu_id, gi, ci, created_ns ON CONFLICT DO NOTHING"};
	static const struct db_stmt select = {
		"device select",
		"SELECT e.ord, " DICT_DEVICE_COLUMNS ", d.units = e.units AND d.profile = e.profile "
		"FROM unnest($1::integer[], $3::integer[], $4::integer[], $5::bigint[], $6::text[], "
		"$7::smallint[]) WITH ORDINALITY AS e(gpu_id, gi, ci, created_ns, profile, units, ord) "
		"JOIN device d ON d.gpu_id = e.gpu_id AND d.gi = e.gi AND d.ci = e.ci "
		"AND d.created_ns = e.created_ns " DICT_LAST_SERVICE "ORDER BY e.ord"};
	in_place(db_columns) struct db_columns c;
	struct db_args to_insert = {0}, to_select = {0};

	db_columns_init(&c, 8);
	for (size_t i = 0; i < n; i++) {
		array_i64(&c.col[0], gpu_ids[i]);
		array_i64(&c.col[1], devices[i]->gi);
		array_i64(&c.col[2], devices[i]->ci);
		array_i64(&c.col[3], devices[i]->created_ns);
		array_text(&c.col[4], devices[i]->profile);
		array_i64(&c.col[5], devices[i]->units);
		array_text(&c.col[6], devices[i]->uuid);
		array_i64(&c.col[7], devices[i]->memory_bytes);
	}
	arg_columns(&to_insert, &c);
	arg_array(&to_select, &c.col[0]);
	arg_i64(&to_select, in->node_id);
	for (size_t i = 1; i < 6; i++)
		arg_array(&to_select, &c.col[i]);
	return db_run(in->db, &insert, &to_insert, NULL, err) && db_run(in->db, &select, &to_select, ret, err);
}

static const struct db_stmt insert_stmt = {"dict device insert",
                                           "INSERT INTO stream_device (stream_id, local_id, device_id) SELECT $1, l, d "
                                           "FROM unnest($2::bigint[], $3::integer[]) AS e(l, d)"};

static bool
contradicts(const struct ingest *in, const struct wire_device *d, const PGresult *r, int row, struct err *reason)
{
	size_t known;

	if (!res_bool(r, row, 9)) {
		err_set(reason, ERR_INVALID, "device %s has another profile or other units than before", d->uuid);
		return true;
	}
	if (idmap_find(&in->dict.device_ids, d->id, &known) &&
	    in->dict.devices[known].device_id != res_i64(r, row, 1)) {
		err_set(reason, ERR_INVALID, "device id %" PRIu32 " meant another device before", d->id);
		return true;
	}
	return false;
}

static bool
enter(struct ingest *in, const struct wire_device *const *devices, const int64_t *gpu_ids, size_t n, struct err *reason,
      struct err *err)
{
	in_place(db_columns) struct db_columns entries;
	owned(result) PGresult *r = NULL;
	size_t known;

	db_columns_init(&entries, 2);
	if (n == 0)
		return true;
	if (!devices_of(in, devices, gpu_ids, n, &r, err))
		return false;
	if ((size_t)PQntuples(r) != n)
		return err_set(err, ERR_RETRY, "the ledger gave %d of %zu devices back", PQntuples(r), n);
	for (size_t i = 0; i < n; i++)
		if (contradicts(in, devices[i], r, (int)i, reason))
			return true;
	for (size_t i = 0; i < n; i++) {
		struct dict_device dev = dict_device_at(in, r, (int)i);

		if (idmap_find(&in->dict.device_ids, devices[i]->id, &known))
			continue;
		dict_device(&in->dict, devices[i]->id, &dev);
		array_i64(&entries.col[0], devices[i]->id);
		array_i64(&entries.col[1], dev.device_id);
	}
	return dict_insert(in, &insert_stmt, &entries, err);
}

/* GPUs first, because instances refer to them, also to those of the same batch. */
bool
dict_add_devices(struct ingest *in, const struct wire_batch *b, struct err *reason, struct err *err)
{
	owned(mem) const struct wire_device **some = mem_array(b->device_count, sizeof(*some));
	owned(mem) int64_t *gpu_ids = mem_array(b->device_count, sizeof(*gpu_ids));
	size_t n = 0;

	for (size_t i = 0; i < b->device_count; i++)
		if (b->devices[i].gpu == b->devices[i].id)
			some[n++] = &b->devices[i];
	if (n > 0 && (!describe_gpus(in, b, some, n, err) || !gpu_ids_of(in, some, n, gpu_ids, err) ||
	              !enter(in, some, gpu_ids, n, reason, err)))
		return false;
	if (reason->kind != ERR_NONE)
		return true;
	n = 0;
	for (size_t i = 0; i < b->device_count; i++) {
		const struct wire_device *d = &b->devices[i];
		size_t gpu;

		if (d->gpu == d->id)
			continue;
		if (!idmap_find(&in->dict.device_ids, d->gpu, &gpu) || !in->dict.devices[gpu].is_gpu) {
			err_set(reason, ERR_INVALID,
			        "device id %" PRIu32 " is part of GPU id %" PRIu32
			        ", which the stream has not introduced",
			        d->id, d->gpu);
			return true;
		}
		some[n] = d;
		gpu_ids[n++] = in->dict.gpus[in->dict.devices[gpu].gpu].gpu_id;
	}
	return enter(in, some, gpu_ids, n, reason, err);
}

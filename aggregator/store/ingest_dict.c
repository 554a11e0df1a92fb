/* aggregator/store/ingest_dict.c - what the small numbers of a stream mean: from the batch's dictionary to rows of
 * the ledger.
 *
 * Entries are matched by what they are (a GPU's UUID, an instance's place and birth, a holder's identity), so that a
 * dictionary may be sent again at any time. A number that comes to mean something else is a contradiction. */
#include <string.h>

#include "aggregator/store/ingest.h"
#include "common/units.h"

void
dict_fini(struct dict *d)
{
	mem_free(d->gpus);
	mem_free(d->devices);
	mem_free(d->holders);
	idmap_fini(&d->gpu_ids);
	idmap_fini(&d->device_ids);
	idmap_fini(&d->holder_ids);
	device_classes_fini(&d->classes);
	mem_free(d->owners);
	idmap_fini(&d->owner_ids);
	memset(d, 0, sizeof(*d));
}

/* Arrays double when their count reaches a power of two. */
static void *
room(void *array, size_t count, size_t size)
{
	if ((count & (count - 1)) != 0)
		return array;
	return mem_grow(array, count == 0 ? 1 : 2 * count, size);
}

static size_t
dict_gpu(struct dict *d, const struct dict_gpu *g)
{
	size_t i;

	if (idmap_find(&d->gpu_ids, (uint64_t)g->gpu_id, &i))
		return i;
	d->gpus = room(d->gpus, d->gpu_count, sizeof(*d->gpus));
	i = d->gpu_count++;
	d->gpus[i] = *g;
	idmap_put(&d->gpu_ids, (uint64_t)g->gpu_id, i);
	return i;
}

void
dict_device(struct dict *d, uint32_t local, const struct dict_device *dev)
{
	d->devices = room(d->devices, d->device_count, sizeof(*d->devices));
	d->devices[d->device_count] = *dev;
	idmap_put(&d->device_ids, local, d->device_count++);
}

void
dict_holder(struct dict *d, uint32_t local, int64_t holder_id)
{
	d->holders = room(d->holders, d->holder_count, sizeof(*d->holders));
	d->holders[d->holder_count] = holder_id;
	idmap_put(&d->holder_ids, local, d->holder_count++);
}

struct dict_device
dict_device_at(struct ingest *in, const PGresult *r, int row)
{
	struct dict_gpu g = {
		.gpu_id = res_i64(r, row, 2),
		.in_service = !res_null(r, row, 5),
		.from_ns = res_i64(r, row, 5),
		.until_ns = res_null(r, row, 6) ? INT64_MAX : res_i64(r, row, 6),
		.power_w = gpu_power_most_w(res_text(r, row, 7)),
		.memory_bytes = gpu_memory_most_bytes(res_text(r, row, 7)),
	};

	return (struct dict_device){.device_id = res_i64(r, row, 1),
	                            .gpu = dict_gpu(&in->dict, &g),
	                            .is_gpu = res_bool(r, row, 3),
	                            .units = res_i64(r, row, 4),
	                            .device_class = device_classes_find(&in->dict.classes, in->cluster,
	                                                                res_text(r, row, 7), res_text(r, row, 8))};
}

/* --- what earlier batches of the stream said --- */

static bool
load_devices(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"dict devices",
		"SELECT x.local_id, " DICT_DEVICE_COLUMNS
		"FROM stream_device x JOIN device d ON d.id = x.device_id " DICT_LAST_SERVICE "WHERE x.stream_id = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, in->stream_id);
	arg_i64(&a, in->node_id);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct dict_device dev = dict_device_at(in, r, row);

		dict_device(&in->dict, (uint32_t)res_i64(r, row, 0), &dev);
	}
	return true;
}

/* Only those that the frames name: a long stream has seen many holders. */
static void
wanted_holders(const struct ingest *in, struct db_array *ids)
{
	in_place(idmap) struct idmap seen = {0};
	size_t ignored;

	for (size_t i = 0; i < in->count; i++) {
		const struct wire_batch *b = in->frames[i].batch;

		for (size_t k = 0; k < b->record_count + b->holder_count; k++) {
			uint32_t id = k < b->record_count ? b->records[k].holder : b->holders[k - b->record_count].id;

			if (id == 0 || idmap_find(&seen, id, &ignored))
				continue;
			idmap_put(&seen, id, 0);
			array_i64(ids, id);
		}
	}
}

static bool
load_holders(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {"dict holders", "SELECT local_id, holder_id FROM stream_holder "
	                                                    "WHERE stream_id = $1 AND local_id = ANY ($2::bigint[])"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array ids;
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
		dict_holder(&in->dict, (uint32_t)res_i64(r, row, 0), res_i64(r, row, 1));
	return true;
}

bool
dict_load(struct ingest *in, struct err *err)
{
	dict_fini(&in->dict);
	/* Before its first batch a stream has said nothing. */
	if (in->next_seq == 1)
		return true;
	return load_devices(in, err) && load_holders(in, err);
}

bool
dict_add(struct ingest *in, const struct wire_batch *b, struct err *ret_reason, struct err *err)
{
	*ret_reason = (struct err){0};
	if (!dict_add_devices(in, b, ret_reason, err) || ret_reason->kind != ERR_NONE)
		return ret_reason->kind != ERR_NONE;
	return dict_add_holders(in, b, ret_reason, err);
}

bool
dict_insert(struct ingest *in, const struct db_stmt *stmt, struct db_columns *entries, struct err *err)
{
	struct db_args a = {0};

	if (entries->col[0].count == 0)
		return true;
	arg_i64(&a, in->stream_id);
	arg_columns(&a, entries);
	return db_run(in->db, stmt, &a, NULL, err);
}

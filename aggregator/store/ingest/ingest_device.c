/* aggregator/store/ingest/ingest_device.c - the GPUs and MIG instances of a batch's dictionary.
 *
 * A GPU is known by its UUID, an instance by its GPU, its place and its birth. The meaning of a stream's local id never changes.
 * Introducing a device creates no row: the first accepted record of the node on which the GPU is in service does. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/limits.h"
#include "common/base/units.h"

static struct wire_device *
device_copy(const struct wire_device *d)
{
	struct wire_device *c = mem_alloc(sizeof(*c));

	*c = *d;
	c->uuid = mem_strdup(d->uuid);
	c->model = mem_strdup(d->model);
	c->profile = mem_strdup(d->profile);
	return c;
}

void
dict_entry(struct dict_device *dev, const struct wire_device *d)
{
	if (dev->entry != NULL) {
		wire_device_fini(dev->entry);
		mem_free(dev->entry);
	}
	dev->entry = d != NULL ? device_copy(d) : NULL;
}

/* --- the dictionary in memory --- */

/* The UUID of each entry's GPU, borrowed from this list or from the dictionary. */
static bool
gpu_uuids(const struct dict *d, const struct wire_device *devices, size_t n, const char **uuids, struct err *reason)
{
	in_place(hash) struct hash gpus = {0};
	size_t k;

	for (size_t i = 0; i < n; i++)
		if (devices[i].gpu == devices[i].id)
			hash_put(&gpus, devices[i].id, i);
	for (size_t i = 0; i < n; i++) {
		if (hash_find(&gpus, devices[i].gpu, &k))
			uuids[i] = devices[k].uuid;
		else if (hash_find(&d->device_ids, devices[i].gpu, &k) && d->devices[k].is_gpu)
			uuids[i] = d->gpus[d->devices[k].gpu].uuid;
		else
			return err_set(reason, ERR_INVALID,
			               "device id %" PRIu32 " is part of GPU id %" PRIu32
			               ", which the stream has not introduced",
			               devices[i].id, devices[i].gpu);
	}
	return true;
}

enum { FOUND_GPU, FOUND_DEVICE, FOUND_SAME, FOUND_MODEL, FOUND_OTHERWISE, FOUND_SERVICE };

/* The ledger's rows for the entries, in the same order. */
static bool
find_devices(struct ingest *in, const struct wire_device *devices, const char *const *uuids, size_t n, PGresult **ret,
             struct err *err)
{
	static const struct db_stmt stmt = {
		"device find",
		"SELECT g.id, d.id, d.units = e.units AND d.profile = e.profile, m.short_model, "
		"(m.model, m.memory_bytes, g.index) IS DISTINCT FROM (e.model, e.memory_bytes, e.index), s.from_ns, s.until_ns, " DICT_DECLARED_OTHERWISE(
			"$1",
			"$11") ", " DICT_SERVICES_SEEN("$1") " FROM unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::text[], "
							     "$7::smallint[], $8::text[], $9::bigint[], $10::integer[]) WITH ORDINALITY "
							     "AS e(uuid, gi, ci, created_ns, profile, units, model, memory_bytes, index, ord) "
							     "LEFT JOIN gpu g ON g.uuid = e.uuid LEFT JOIN device d ON d.gpu_id = g.id AND d.gi = e.gi AND d.ci = e.ci "
							     "AND d.created_ns = e.created_ns " DICT_LAST_SERVICE(
								     "$1") "ORDER BY e.ord"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 9);
	for (size_t i = 0; i < n; i++) {
		array_text(&c.col[0], uuids[i]);
		array_i64(&c.col[1], devices[i].gi);
		array_i64(&c.col[2], devices[i].ci);
		array_i64(&c.col[3], devices[i].created_ns);
		array_text(&c.col[4], devices[i].profile);
		array_i64(&c.col[5], devices[i].units);
		array_text(&c.col[6], devices[i].model);
		array_i64(&c.col[7], devices[i].memory_bytes);
		array_i64(&c.col[8], devices[i].index);
	}
	arg_i64(&a, in->node_id);
	arg_columns(&a, &c);
	arg_i64(&a, dict_from_ns(in));
	if (!db_run(in->db, &stmt, &a, ret, err))
		return false;
	return (size_t)PQntuples(*ret) == n ||
	       err_set(err, ERR_RETRY, "the ledger returned %d of %zu devices", PQntuples(*ret), n);
}

static bool
other_shape(const struct wire_device *d, struct err *reason)
{
	return err_set(reason, ERR_INVALID, "device %s has another profile or other units than before", d->uuid);
}

/* False, with the reason, when the stream uses a known local id for another device. */
static bool
same_meaning(const struct dict *dict, const struct dict_device *known, const struct wire_device *d, const char *uuid,
             const PGresult *r, int row, struct err *reason)
{
	const struct wire_device *e = known->entry;
	bool same;

	if (known->entered)
		same = res_i64(r, row, FOUND_DEVICE) == known->device_id;
	else
		same = strcmp(dict->gpus[known->gpu].uuid, uuid) == 0 && e->gi == d->gi && e->ci == d->ci &&
		       e->created_ns == d->created_ns;
	if (!same)
		return err_set(reason, ERR_INVALID, "device id %" PRIu32 " meant another device before", d->id);
	if (known->entered ? !res_bool(r, row, FOUND_SAME)
	                   : e->units != d->units || strcmp(e->profile, d->profile) != 0)
		return other_shape(d, reason);
	return true;
}

static void
note_new(struct ingest *in, const struct wire_device *d, const char *uuid, bool stored, const PGresult *r, int row)
{
	size_t gpu = dict_gpu(&in->dict, uuid, res_i64(r, row, FOUND_GPU));
	char name[WIRE_MAX_TEXT + 1];

	gpu_model_short(d->model, name, sizeof(name));
	dict_gpu_model(&in->dict, gpu, name);
	if (!res_null(r, row, FOUND_MODEL))
		snprintf(name, sizeof(name), "%s", res_text(r, row, FOUND_MODEL));
	dict_gpu_service(&in->dict, gpu, r, row, FOUND_SERVICE);
	dict_gpu_model(&in->dict, gpu, name);
	dict_device(&in->dict,
	            &(struct dict_device){
			    .local = d->id,
			    .device_id = res_bool(r, row, FOUND_SAME) ? res_i64(r, row, FOUND_DEVICE) : 0,
			    .gpu = gpu,
			    .is_gpu = d->gpu == d->id,
			    .stored = stored,
			    .other_shape = !res_null(r, row, FOUND_DEVICE) && !res_bool(r, row, FOUND_SAME),
			    .units = d->units,
			    .device_class = device_classes_find(&in->dict.classes, in->cluster, name, d->profile),
			    .entry = device_copy(d)});
	/* The ledger describes this GPU differently, so it is asked at every batch. */
	if (d->gpu == d->id && res_bool(r, row, FOUND_OTHERWISE))
		in->dict.gpus[gpu].claim_always = true;
}

/* A GPU that the stream has named before: the last description wins. stored: the description was read from stream_device_entry. */
static void
note_known(struct ingest *in, size_t known, const struct wire_device *d, bool stored, const PGresult *r, int row)
{
	struct dict_device *dev = &in->dict.devices[known];
	struct dict_gpu *g = &in->dict.gpus[dev->gpu];
	const struct wire_device *e = dev->entry;
	/* A description in stream_device_entry counts as different: the ledger is asked about it, and then the entry is removed. */
	bool otherwise = res_bool(r, row, FOUND_OTHERWISE) || stored;
	char name[WIRE_MAX_TEXT + 1];

	dev->stored = dev->stored || stored;
	if (e != NULL && strcmp(e->model, d->model) == 0 && e->memory_bytes == d->memory_bytes && e->index == d->index)
		return;
	if (e == NULL && !otherwise)
		return;
	/* A device without a row in stream_device always keeps its entry. */
	dict_entry(dev, otherwise || !dev->entered ? d : NULL);
	ASSERT(d != NULL);
	dev->outdated = dev->stored && !stored;
	g->claim_always = otherwise;
	gpu_model_short(d->model, name, sizeof(name));
	dict_gpu_model(&in->dict, dev->gpu, name);
	if (res_null(r, row, FOUND_MODEL))
		dev->device_class = device_classes_find(&in->dict.classes, in->cluster, name, d->profile);
}

/* The number of devices that the stream has named and that no accepted record uses. */
static size_t
count_unused(const struct dict *d)
{
	size_t n = 0;

	for (size_t i = 0; i < d->device_count; i++)
		n += d->devices[i].stored && !d->devices[i].entered;
	return n;
}

/* GPUs first, because instances refer to them. */
bool
dict_note_devices(struct ingest *in, const struct wire_device *devices, size_t n, bool stored, struct err *reason,
                  struct err *err)
{
	owned(mem) const char **uuids = mem_array(n, sizeof(*uuids));
	owned(result) PGresult *r = NULL;
	struct dict *dict = &in->dict;
	size_t known;
	bool full;

	if (n == 0)
		return true;
	full = !stored && count_unused(dict) >= LIMIT_STREAM_ENTRIES;
	for (size_t i = 0; i < n && full; i++)
		if (!hash_find(&dict->device_ids, devices[i].id, &known)) {
			err_set(reason, ERR_INVALID,
			        "the stream has named %d devices and more of which no record counts, and names another one",
			        LIMIT_STREAM_ENTRIES);
			return true;
		}
	if (!gpu_uuids(dict, devices, n, uuids, reason))
		return true;
	if (!find_devices(in, devices, uuids, n, &r, err))
		return false;
	for (size_t i = 0; i < n; i++)
		if (hash_find(&dict->device_ids, devices[i].id, &known) &&
		    !same_meaning(dict, &dict->devices[known], &devices[i], uuids[i], r, (int)i, reason))
			return true;
	for (size_t k = 0; k < 2 * n; k++) {
		const struct wire_device *d = &devices[k % n];
		bool is_gpu = d->gpu == d->id;

		if (is_gpu != (k < n))
			continue;
		if (!hash_find(&dict->device_ids, d->id, &known))
			note_new(in, d, uuids[k % n], stored, r, (int)(k % n));
		else if (is_gpu)
			note_known(in, known, d, stored, r, (int)(k % n));
	}
	return true;
}

/* --- rows in the ledger --- */

/* Inserts the missing rows and selects all, in order, with a flag whether each has the profile and units of the batch. */
static bool
insert_devices(struct ingest *in, struct dict_device *const *devices, size_t n, PGresult **ret, struct err *err)
{
	static const struct db_stmt insert = {
		"device insert",
		"INSERT INTO device (gpu_id, gi, ci, created_ns, profile, units, uuid, memory_bytes) SELECT * "
		"FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::bigint[], $5::text[], "
		"$6::smallint[], $7::text[], $8::bigint[]) AS e(gpu_id, gi, ci, created_ns, profile, units, "
		"uuid, memory_bytes) ORDER BY gpu_id, gi, ci, created_ns ON CONFLICT DO NOTHING"};
	static const struct db_stmt select = {
		"device select",
		"SELECT d.id, d.units = e.units AND d.profile = e.profile FROM unnest($1::integer[], $2::integer[], $3::integer[], "
		"$4::bigint[], $5::text[], $6::smallint[]) WITH ORDINALITY AS e(gpu_id, gi, ci, created_ns, profile, units, ord) "
		"JOIN device d ON d.gpu_id = e.gpu_id AND d.gi = e.gi AND d.ci = e.ci AND d.created_ns = e.created_ns "
		"ORDER BY e.ord"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args to_insert = {0}, to_select = {0};

	db_columns_init(&c, 8);
	for (size_t i = 0; i < n; i++) {
		const struct wire_device *e = devices[i]->entry;

		array_i64(&c.col[0], in->dict.gpus[devices[i]->gpu].gpu_id);
		array_i64(&c.col[1], e->gi);
		array_i64(&c.col[2], e->ci);
		array_i64(&c.col[3], e->created_ns);
		array_text(&c.col[4], e->profile);
		array_i64(&c.col[5], e->units);
		array_text(&c.col[6], e->uuid);
		array_i64(&c.col[7], e->memory_bytes);
	}
	arg_columns(&to_insert, &c);
	for (size_t i = 0; i < 6; i++)
		arg_array(&to_select, &c.col[i]);
	if (!db_run(in->db, &insert, &to_insert, NULL, err) || !db_run(in->db, &select, &to_select, ret, err))
		return false;
	return (size_t)PQntuples(*ret) == n ||
	       err_set(err, ERR_RETRY, "the ledger returned %d of %zu devices", PQntuples(*ret), n);
}

bool
dict_enter_devices(struct ingest *in, struct err *err)
{
	static const struct db_stmt insert = {
		"dict device insert", "INSERT INTO stream_device (stream_id, local_id, device_id) SELECT $1, l, d "
				      "FROM unnest($2::bigint[], $3::integer[]) AS e(l, d)"};
	owned(mem) struct dict_device **pending = mem_array(in->dict.device_count, sizeof(*pending));
	in_place(db_columns) struct db_columns entered = {0}, gone = {0};
	owned(result) PGresult *r = NULL;
	size_t n = 0;

	db_columns_init(&entered, 2);
	db_columns_init(&gone, 1);
	for (size_t i = 0; i < in->dict.device_count; i++)
		if (in->dict.devices[i].needed && !in->dict.devices[i].entered)
			pending[n++] = &in->dict.devices[i];
	if (n == 0)
		return true;
	if (!ingest_enter_lock(in, err) || !insert_devices(in, pending, n, &r, err))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (!res_bool(r, (int)i, 1))
			return err_set(err, ERR_RETRY,
			               "device %s was inserted concurrently with another profile or other units",
			               pending[i]->entry->uuid);
		pending[i]->device_id = res_i64(r, (int)i, 0);
		array_i64(&entered.col[0], pending[i]->local);
		array_i64(&entered.col[1], pending[i]->device_id);
		if (pending[i]->stored)
			array_i64(&gone.col[0], pending[i]->local);
		pending[i]->entered = true;
		pending[i]->stored = false;
		dict_entry(pending[i], NULL);
	}
	return dict_store(in, &insert, &entered, err) && dict_drop_devices(in, &gone, err);
}

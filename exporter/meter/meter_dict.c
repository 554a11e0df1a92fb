/* exporter/meter/meter_dict.c - the dictionary of a stream: its devices and holders by id. */
#include <string.h>

#include "common/base/units.h"
#include "exporter/meter/meter_internal.h"
#include "exporter/source/sanitize.h"

static void
device_free(struct dict_device *d)
{
	wire_device_fini(&d->wire);
	mem_free(d);
}

static void
holder_free(struct dict_holder *h)
{
	wire_holder_fini(&h->wire);
	mem_free(h);
}

void
dict_fini(struct dict *d)
{
	for (size_t i = 0; i < d->device_count; i++)
		device_free(d->devices[i]);
	for (size_t i = 0; i < d->holder_count; i++)
		holder_free(d->holders[i]);
	mem_free(d->devices);
	mem_free(d->holders);
	hash_fini(&d->device_by_id);
	hash_fini(&d->holder_by_id);
	hash_fini(&d->holder_by_source);
	*d = (struct dict){0};
}

static struct dict_device *
add_device(struct dict *d)
{
	struct dict_device *device = mem_alloc(sizeof(*device));

	device->wire.id = ++d->last_device_id;
	d->devices = mem_grow(d->devices, d->device_count + 1, sizeof(*d->devices));
	hash_put(&d->device_by_id, device->wire.id, d->device_count);
	d->devices[d->device_count++] = device;
	return device;
}

static int64_t
not_negative(int64_t v)
{
	return v < 0 ? 0 : v;
}

struct dict_device *
dict_add_gpu(struct dict *d, const struct gpu_reading *g)
{
	struct dict_device *device = add_device(d);

	device->gpu = device;
	device->wire.gpu = device->wire.id;
	device->wire.uuid = sanitized_copy(g->uuid, GPU_TEXT);
	device->wire.model = sanitized_copy(g->model, GPU_TEXT);
	device->wire.profile = mem_strdup("");
	device->wire.gi = device->wire.ci = -1;
	device->wire.units = UNITS_PER_GPU;
	device->wire.memory_bytes = not_negative(g->memory_bytes);
	device->wire.index = g->index < 0 ? 0 : g->index;
	return device;
}

struct dict_device *
dict_add_instance(struct dict *d, struct dict_device *gpu, const struct gpu_instance *i, int64_t created_ns)
{
	struct dict_device *device = add_device(d);

	device->gpu = gpu;
	device->wire.gpu = gpu->wire.id;
	/* a driver that names neither is still metered */
	device->wire.uuid = sanitized_copy(i->uuid[0] ? i->uuid : "MIG-unnamed", GPU_TEXT);
	device->wire.model = mem_strdup(gpu->wire.model);
	device->wire.profile = sanitized_copy(i->profile[0] ? i->profile : "unnamed", GPU_TEXT);
	memcpy(device->uuid_read, i->uuid, sizeof(device->uuid_read));
	memcpy(device->profile_read, i->profile, sizeof(device->profile_read));
	device->wire.gi = i->gi;
	device->wire.ci = i->ci;
	device->wire.created_ns = created_ns;
	device->wire.units = i->units;
	device->wire.memory_bytes = not_negative(i->memory_bytes);
	device->wire.index = gpu->wire.index;
	return device;
}

bool
dict_same_instance(const struct dict_device *d, const struct gpu_instance *i)
{
	return d->wire.gi == i->gi && d->wire.ci == i->ci && d->wire.units == i->units &&
	       strcmp(d->uuid_read, i->uuid) == 0 && strcmp(d->profile_read, i->profile) == 0;
}

static int
holder_order(const struct wire_holder *a, const struct wire_holder *b)
{
	const char *const texts[][2] = {{a->ns, b->ns},
	                                {a->pod, b->pod},
	                                {a->pod_uid, b->pod_uid},
	                                {a->container, b->container},
	                                {a->slurm_job, b->slurm_job},
	                                {a->slurm_account, b->slurm_account},
	                                {a->user, b->user},
	                                {a->group, b->group},
	                                {a->labels, b->labels}};
	int order = 0;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	for (size_t i = 0; order == 0 && i < ARRAY_LEN(texts); i++)
		order = strcmp(texts[i][0], texts[i][1]);
	if (order != 0)
		return order;
	return a->uid < b->uid ? -1 : a->uid > b->uid;
}

int
dict_holder_order(const struct dict_holder *a, const struct dict_holder *b)
{
	return a == b ? 0 : holder_order(&a->wire, &b->wire);
}

static size_t
find_holder(const struct dict *d, const struct wire_holder *h)
{
	for (size_t i = 0; i < d->holder_count; i++)
		if (holder_order(&d->holders[i]->wire, h) == 0)
			return i;
	return HASH_NONE;
}

static void
copy_holder(struct wire_holder *to, const struct wire_holder *from)
{
	*to = *from;
	to->ns = mem_strdup(from->ns);
	to->pod = mem_strdup(from->pod);
	to->pod_uid = mem_strdup(from->pod_uid);
	to->container = mem_strdup(from->container);
	to->slurm_job = mem_strdup(from->slurm_job);
	to->slurm_account = mem_strdup(from->slurm_account);
	to->user = mem_strdup(from->user);
	to->group = mem_strdup(from->group);
	to->labels = mem_strdup(from->labels);
}

/* The identity cache never gives an id to other content, so its id is a short way to the entry; a new id is looked up by
 * content, because the cache may have forgotten a holder and met it again. */
struct dict_holder *
dict_holder(struct dict *d, const struct wire_holder *h)
{
	size_t at = hash_get(&d->holder_by_source, h->id);
	struct dict_holder *entry;

	if (at != HASH_NONE)
		return d->holders[at];
	at = find_holder(d, h);
	if (at == HASH_NONE) {
		entry = mem_alloc(sizeof(*entry));
		copy_holder(&entry->wire, h);
		entry->wire.id = ++d->last_holder_id;
		at = d->holder_count;
		d->holders = mem_grow(d->holders, d->holder_count + 1, sizeof(*d->holders));
		d->holders[d->holder_count++] = entry;
		hash_put(&d->holder_by_id, entry->wire.id, at);
	}
	hash_put(&d->holder_by_source, h->id, at);
	return d->holders[at];
}

struct dict_device *
dict_twin_device(const struct dict *d, const struct dict_device *other)
{
	for (size_t i = 0; i < d->device_count; i++) {
		struct dict_device *device = d->devices[i];

		if (device->wire.gi == other->wire.gi && device->wire.ci == other->wire.ci &&
		    strcmp(device->wire.uuid, other->wire.uuid) == 0 &&
		    strcmp(device->gpu->wire.uuid, other->gpu->wire.uuid) == 0)
			return device;
	}
	return NULL;
}

struct dict_holder *
dict_twin_holder(const struct dict *d, const struct dict_holder *other)
{
	size_t at = find_holder(d, &other->wire);

	return at == HASH_NONE ? NULL : d->holders[at];
}

static void
note_needed(struct dict *d, const struct wire_batch *b, bool full)
{
	for (size_t i = 0; i < d->device_count; i++) {
		d->devices[i]->needed = false;
		if (full)
			d->devices[i]->announced = false;
	}
	for (size_t i = 0; i < d->holder_count; i++) {
		d->holders[i]->needed = false;
		if (full)
			d->holders[i]->announced = false;
	}
	for (size_t i = 0; i < b->record_count; i++) {
		const struct wire_record *r = &b->records[i];
		struct dict_device *device = d->devices[hash_get(&d->device_by_id, r->device)];

		device->needed = device->gpu->needed = true;
		if (r->holder)
			d->holders[hash_get(&d->holder_by_id, r->holder)]->needed = true;
	}
}

static void
copy_device(struct wire_device *to, const struct wire_device *from)
{
	*to = *from;
	to->uuid = mem_strdup(from->uuid);
	to->model = mem_strdup(from->model);
	to->profile = mem_strdup(from->profile);
}

void
dict_write(struct dict *d, bool full, struct wire_batch *into)
{
	note_needed(d, into, full);
	into->devices = mem_array(d->device_count, sizeof(*into->devices));
	into->holders = mem_array(d->holder_count, sizeof(*into->holders));
	for (size_t i = 0; i < d->device_count; i++) {
		struct dict_device *device = d->devices[i];

		if (!device->needed || device->announced)
			continue;
		copy_device(&into->devices[into->device_count++], &device->wire);
		device->announced = true;
	}
	for (size_t i = 0; i < d->holder_count; i++) {
		struct dict_holder *holder = d->holders[i];

		if (!holder->needed || holder->announced)
			continue;
		copy_holder(&into->holders[into->holder_count++], &holder->wire);
		holder->announced = true;
	}
}

/* A device keeps its GPU: a batch that names the one must be able to name the other. */
void
dict_sweep(struct dict *d)
{
	size_t kept = 0, before = d->device_count + d->holder_count;

	for (size_t i = 0; i < d->device_count; i++)
		if (d->devices[i]->marked)
			d->devices[i]->gpu->marked = true;
	for (size_t i = 0; i < d->device_count; i++) {
		if (d->devices[i]->marked)
			d->devices[kept++] = d->devices[i];
		else
			device_free(d->devices[i]);
	}
	d->device_count = kept;
	kept = 0;
	for (size_t i = 0; i < d->holder_count; i++) {
		if (d->holders[i]->marked)
			d->holders[kept++] = d->holders[i];
		else
			holder_free(d->holders[i]);
	}
	d->holder_count = kept;
	for (size_t i = 0; i < d->device_count; i++)
		d->devices[i]->marked = false;
	for (size_t i = 0; i < d->holder_count; i++)
		d->holders[i]->marked = false;
	if (d->device_count + d->holder_count == before)
		return;
	hash_clear(&d->device_by_id);
	hash_clear(&d->holder_by_id);
	hash_clear(&d->holder_by_source); /* found again by content */
	for (size_t i = 0; i < d->device_count; i++)
		hash_put(&d->device_by_id, d->devices[i]->wire.id, i);
	for (size_t i = 0; i < d->holder_count; i++)
		hash_put(&d->holder_by_id, d->holders[i]->wire.id, i);
}

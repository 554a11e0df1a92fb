/* exporter/meter/meter_dict.h - the devices and holders of one stream, under the ids by which its batches name them.
 *
 * Entries live as long as something points at them (mark and sweep by the meter, once per batch), so that a node with many
 * short workloads does not grow. An entry that comes back later gets a new id: ids are never used twice. */
#ifndef TOLLGATE_METER_DICT_H
#define TOLLGATE_METER_DICT_H

#include "common/wire/wire.h"
#include "exporter/source/gpu_source.h"
#include "common/base/idmap.h"

struct dict_device {
	struct wire_device wire;
	struct dict_device *gpu;                          /* itself for a GPU */
	char uuid_read[GPU_TEXT], profile_read[GPU_TEXT]; /* of an instance, as the driver has them */
	bool announced;                                   /* some batch since the last full one has it */
	bool needed;                                      /* by the batch being made */
	bool marked;
};

struct dict_holder {
	struct wire_holder wire;
	bool announced, needed, marked;
};

struct dict {
	struct dict_device **devices; /* in the order of their ids */
	size_t device_count;
	struct dict_holder **holders;
	size_t holder_count;
	struct idmap device_by_id, holder_by_id;
	struct idmap holder_by_source; /* the identity cache's id to the position here */
	uint32_t last_device_id, last_holder_id;
};

void dict_fini(struct dict *d);

struct dict_device *dict_add_gpu(struct dict *d, const struct gpu_reading *g);
struct dict_device *dict_add_instance(struct dict *d, struct dict_device *gpu, const struct gpu_instance *i,
                                      int64_t created_ns);
/* True when the instance read now is the one known as d, as far as the driver lets one see. */
bool dict_same_instance(const struct dict_device *d, const struct gpu_instance *i);

/* The entry of this holder, made when its content is new. */
struct dict_holder *dict_holder(struct dict *d, const struct wire_holder *h);

/* A total order of holders by their content: the same in every stream, whatever ids they have. 0: the same holder. */
int dict_holder_order(const struct dict_holder *a, const struct dict_holder *b);

/* The entry that is the same as one of another stream's dictionary; NULL: none. */
struct dict_device *dict_twin_device(const struct dict *d, const struct dict_device *other);
struct dict_holder *dict_twin_holder(const struct dict *d, const struct dict_holder *other);

/* Fills the batch's dictionary with the entries that its records need. */
void dict_write(struct dict *d, bool full, struct wire_batch *into);

/* Drops every entry that is not marked, and takes the marks away. */
void dict_sweep(struct dict *d);

#endif

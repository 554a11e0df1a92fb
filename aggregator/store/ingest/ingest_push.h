/* aggregator/store/ingest/ingest_push.h - shared by the files that store pushed batches: ingest_push.c (one push, the rules in order), ingest_group.c
 * (many pushes in one transaction), ingest_read.c (decoding), ingest_cache.c (streams known from earlier pushes), ingest_dict.c, ingest_device.c and
 * ingest_holder.c (the dictionary of a stream), ingest_accept.c (acceptance, quarantine, records set aside), ingest_write.c (rows, slices, sums),
 * ingest_held.c (nodes that wait for approval). */
#ifndef TOLLGATE_INGEST_PUSH_H
#define TOLLGATE_INGEST_PUSH_H

#include "aggregator/store/db/db.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/digest.h"
#include "common/wire/wire.h"

/* A physical GPU that the stream has named. */
struct dict_gpu {
	int64_t gpu_id; /* 0: the ledger has no row for it */
	char *uuid;
	size_t device;   /* the GPU's own device: index into dict.devices */
	bool in_service; /* on this node, as far as known */
	bool claim_always; /* at every batch: the stream's description differs from the ledger's, or records were set aside */
	int64_t otherwise_ns; /* ... also from this time on, when the policy declares other models for the node; INT64_MAX: never */
	int64_t from_ns, until_ns; /* of its last service here; until INT64_MAX: still */
	int64_t power_w;           /* largest power draw of its model; 0: not known yet */
	int64_t memory_bytes;      /* memory of its model; 0: not known */
	/* totals of the batch being judged */
	int128 unit_ns, energy_mj, memory_byte_ms;
	int64_t peak_memory_bytes;
	int64_t first_ns, last_ns, records;
	bool aside; /* its records do not count */
};
/* A device has a row in the ledger once a counting record needs it; until then its entry is stored as it arrived. */
struct dict_device {
	uint32_t local;
	int64_t device_id; /* 0: there is no row */
	size_t gpu;        /* index into dict.gpus */
	bool is_gpu;
	bool entered;     /* in stream_device */
	bool stored;      /* in stream_device_entry, */
	bool outdated;    /* but with an older description */
	bool other_shape; /* the ledger's row has another profile or other units */
	bool needed;      /* by a record of the batch being judged */
	int64_t units;
	int32_t device_class; /* index into dict.classes */
	/* The stream's last description where the ledger has a different one; owned, or NULL. For an entered device:
	 * a new description of a GPU, which has no effect before its records count. */
	struct wire_device *entry;
};
/* The same for a holder. */
struct dict_holder {
	uint32_t local;
	int64_t holder_id; /* 0: not entered */
	bool stored, needed;
	struct wire_holder *entry; /* until it is entered */
};
/* Owner of a holder over a range of time. */
struct dict_owner {
	int64_t holder_id;
	int32_t workspace_id;
	int64_t from_ns, until_ns;
};

/* The meaning of a stream's numbers, as far as this call needs it. */
struct dict {
	struct dict_gpu *gpus;
	struct dict_device *devices;
	size_t gpu_count, device_count;
	struct dict_holder *holders;
	size_t holder_count;
	bool services_read;     /* of GPUs in service on the node */
	int64_t services_seen;  /* value of services_ended() at that time */
	struct hash gpu_ids;    /* gpu_id -> gpus */
	struct hash gpu_uuids;  /* hash of the UUID -> gpus */
	struct hash device_ids; /* local id -> devices */
	struct hash holder_ids; /* local id -> holders */
	struct device_classes classes;
	bool has_owners;
	struct dict_owner *owners; /* sorted by holder, then by time */
	size_t owner_count;
	struct hash owner_ids; /* holder_id -> its first owner */
};
void dict_fini(struct dict *d);
size_t dict_bytes(const struct dict *d); /* with its texts */

enum frame_outcome { OUTCOME_DUPLICATE, OUTCOME_ACCEPTED, OUTCOME_QUARANTINED, OUTCOME_LOSS };
struct ingest_frame {
	const uint8_t *payload; /* borrowed from the request */
	size_t len;
	uint8_t sha[SHA256_SIZE];
	struct wire_batch *batch;
	enum frame_outcome outcome;
	int64_t seq, last_seq; /* range of numbers that the frame stands for */
	struct err reason;     /* reason of the quarantine; ERR_NONE: accepted */
	enum quarantine_class klass;
	/* Per record, once accepted. Device 0: set aside; holder 0: none. */
	int64_t *device_id, *holder_id;
	int64_t counted; /* records that are not set aside */
	bool lacks_rows; /* a record names a device or holder without a row */
	struct set_aside *aside;
	size_t aside_count;
};
/* The records of one GPU in a batch that were set aside. */
struct set_aside {
	char *gpu, *reason;
	enum quarantine_class klass;
	int64_t records, from_ns, to_ns;
};
void set_asides_free(struct set_aside *list, size_t n);

/* Sums of a stream's records since its node's last slice. */
#define SLICE_AMOUNTS 8 /* held, used, unmeasured, over, energy, memory, SM active, SM measured: sums of usage_slice */
struct slice_sum {
	int64_t device_id, holder_id; /* holder 0: none */
	int64_t amount[SLICE_AMOUNTS];
	int64_t peak_memory_bytes;
	int8_t state, sharing, method;
};
struct slice_sums {
	bool begun;
	int64_t from_ns;    /* the sums contain all records of the node from here on */
	int64_t covered_ns; /* the node's state after this stream's last push */
	int64_t behind;
	struct slice_sum *at;
	size_t count, cap;
	struct hash index; /* of a record's numbers and words -> at */
};
void slice_sums_fini(struct slice_sums *s);

struct ingest {
	struct db *db;
	struct db_ledger ledger;
	int64_t now_ns;
	int64_t skew_ns, skew_max_ns; /* the node's clock minus ours; 0: not known */
	bool overruled;               /* an operator releases the frame: see ingest_accept.c */
	const char *only_gpu;         /* ... and only the records of this GPU in an accepted frame; NULL: all */
	struct ingest_frame *frames;
	size_t count;
	int64_t stream_id, node_id, cluster_id;
	char *cluster;
	bool has_entries;                      /* the stream has devices or holders without a row */
	int64_t next_seq;                      /* of the stream before this call */
	int64_t covered_until_ns;              /* of the stream; INT64_MIN: nothing yet */
	int64_t node_until_ns;                 /* end of the node's time covered by any stream; INT64_MIN: none */
	bool node_had;                         /* node_had_ns is known */
	int64_t node_had_ns;                   /* end of the node's covered time before this push; INT64_MIN: none */
	int64_t node_behind;                   /* number of times that late records had arrived before */
	int64_t hours_from_ns, hours_until_ns; /* the node's existing hours; in a group only */
	int64_t slice_ns;                      /* 0: no sums of slices */
	struct slice_sums slice;
	struct dict dict;
	bool held, approved; /* the node's batches are held; it is approved, and its held batches come first */
	int64_t held_bytes, held_max;
	bool entry_locked; /* ingest_enter_lock() was called in this transaction */
	bool aside_read;   /* aside_open is known */
	int64_t aside_open;
	int64_t policy_version; /* 0: none yet */
	/* A push of a group makes no query to the ledger; unsteady: it needs one, so it leaves the group. */
	bool grouped, unsteady;
};
void ingest_fini(struct ingest *in);
/* Clears the results of an earlier attempt from the frames. */
void ingest_frames_reset(struct ingest *in);

struct ingest_push {
	struct ingest in;
	bool done; /* stored by a group */
	struct ingest_result result;
};

/* Whether stream s has devices or holders without a row. */
#define STREAM_HAS_ENTRIES                                                               \
	"EXISTS (SELECT FROM stream_device_entry x WHERE x.stream_id = s.id) OR EXISTS " \
	"(SELECT FROM stream_holder_entry x WHERE x.stream_id = s.id)"

/* Loads the entries that the records and dictionaries of the frames refer to. */
MUST_CHECK bool dict_load(struct ingest *in, struct err *err);
/* Notes the batch's dictionary without making rows. ret_reason is a contradiction (ERR_NONE: there is none), err a
 * failure of the database. */
MUST_CHECK bool dict_note(struct ingest *in, const struct wire_batch *b, struct err *ret_reason, struct err *err);
/* Stores noted entries that the ledger lacks, and deletes stored ones that it has by now. */
MUST_CHECK bool dict_save(struct ingest *in, struct err *err);
/* Finds or makes the rows of the needed devices and holders; their GPUs have rows. */
MUST_CHECK bool dict_enter(struct ingest *in, struct err *err);

/* The parts of these for devices and holders. stored: the entries come from the ledger. */
MUST_CHECK bool dict_note_devices(struct ingest *in, const struct wire_device *devices, size_t n, bool stored,
                                  struct err *reason, struct err *err);
MUST_CHECK bool dict_note_holders(struct ingest *in, const struct wire_holder *holders, size_t n, bool stored,
                                  struct err *reason, struct err *err);
/* Sets the stream's last description of a device to a copy of d; NULL: it is the ledger's. */
void dict_entry(struct dict_device *dev, const struct wire_device *d);
MUST_CHECK bool dict_enter_devices(struct ingest *in, struct err *err);
MUST_CHECK bool dict_enter_holders(struct ingest *in, struct err *err);
/* Runs a statement whose first argument is the stream, followed by columns; does nothing without rows. */
MUST_CHECK bool dict_store(struct ingest *in, const struct db_stmt *stmt, struct db_columns *rows, struct err *err);
/* Deletes stored entries of devices that the ledger has or that are described anew. */
MUST_CHECK bool dict_drop_devices(struct ingest *in, struct db_columns *locals, struct err *err);
/* The ids of a batch's holders; new ones are made and attributed. Needs db, cluster_id and cluster of in; ids must be
 * 0. */
MUST_CHECK bool holder_ids(struct ingest *in, const struct wire_holder *const *holders, size_t n, int64_t *ids,
                           struct err *err);
/* Locks before GPUs, devices or holders are entered: policy lock shared, then the node's row. Applying a policy locks
 * nodes and GPUs after its own lock, and another stream of the node may enter the same rows and lock its node at the
 * end of its push, so the order matters. Rules and declarations do not change until the commit. */
MUST_CHECK bool ingest_enter_lock(struct ingest *in, struct err *err);
/* The argument of services_as_read(), used in or after the statement that locks the node's row: the value of
 * services_ended() when services were read without that lock, or NULL. */
void ingest_services_arg(const struct ingest *in, struct db_args *a);
/* The GPU of that UUID, added to the dictionary if it is new. */
size_t dict_gpu(struct dict *d, const char *uuid, int64_t gpu_id);
void dict_gpu_row(struct dict *d, size_t gpu, int64_t gpu_id); /* the GPU has a row from now on */
/* Sets the power and memory limits of the GPU's model from our table. */
void dict_gpu_model(struct dict *d, size_t gpu, const char *short_model);
void dict_device(struct dict *d, const struct dict_device *dev);
void dict_holder(struct dict *d, const struct dict_holder *h);
/* The last service of GPU g on a node, as s, and its model, as m. */
#define DICT_LAST_SERVICE(node)                                               \
	"LEFT JOIN gpu_spec m ON m.gpu_id = g.id AND upper_inf(m.effective) " \
	"LEFT JOIN LATERAL (SELECT v.from_ns, v.until_ns FROM gpu_service v " \
	"WHERE v.gpu_id = g.id AND v.node_id = " node " ORDER BY v.from_ns DESC LIMIT 1) s ON true "
/* The time, not before at, from which on the policy declares models for the node without this GPU's; NULL: never. A
 * declaration for part of that time gives no answer here: gpu_claim() decides. */
#define DICT_DECLARED_OTHERWISE(node, at)                                                                           \
	"(SELECT min(greatest(ns_of(lower(x.effective)), " at ")) FROM node_declared x WHERE x.node_id = " node     \
	" AND x.model <> m.short_model AND x.effective && tstzrange(hour_of(" at "), NULL) AND NOT EXISTS (SELECT " \
	"FROM node_declared y WHERE y.node_id = x.node_id AND y.model = m.short_model "                             \
	"AND y.effective @> x.effective * tstzrange(hour_of(" at "), NULL)))"
/* Start of the frames of this call. */
int64_t dict_from_ns(const struct ingest *in);
/* Counter of the node's ended services at the time they are read: see services_as_read(). */
#define DICT_SERVICES_SEEN(node) "(SELECT services_ended(" node "))"
/* Reads columns from at on: from_ns and until_ns of that service, DICT_DECLARED_OTHERWISE, DICT_SERVICES_SEEN. */
void dict_gpu_service(struct dict *d, size_t gpu, const PGresult *r, int row, int at);

MUST_CHECK bool ingest_set_aside_store(struct ingest *in, const struct ingest_frame *f, struct err *err);

/* Decides the outcome of a frame with the next number; advances covered_until_ns. */
MUST_CHECK bool ingest_judge(struct ingest *in, struct ingest_frame *f, struct err *err);

/* Reads under the lock whether the node is held; counts the bytes that this push adds (ingest_held.c). */
MUST_CHECK bool ingest_held_lock(struct ingest *in, struct err *err);
MUST_CHECK bool ingest_held_count(struct ingest *in, struct ingest_result *ret, struct err *err);
/* Makes a reason valid text: it may quote the refused bytes. */
void ingest_make_clean(char *text);

/* A batch as received, compared with its SHA-256. */
struct quarantine_bytes {
	unsigned char *data;
	size_t len;
	uint8_t sha[SHA256_SIZE];
};
void quarantine_bytes_fini(struct quarantine_bytes *b);
MUST_CHECK bool quarantine_payload(struct db *db, int64_t stream, int64_t seq, struct quarantine_bytes *ret,
                                   struct err *err);

/* Makes the day partitions of the accepted frames. */
MUST_CHECK bool ingest_partitions(struct ingest *in, struct err *err);
/* Advances the stream's cursor to next, and touches the hours of the accepted frames. */
MUST_CHECK bool ingest_move_cursor(struct ingest *in, int64_t next, struct err *err);

/* Sums the records of the accepted frames. */
MUST_CHECK bool ingest_sum_up(struct ingest *in, struct ingest_sums *sums, struct err *err);
/* The same, with the owners already in the dictionary. */
void ingest_sum_known(const struct ingest *in, struct ingest_sums *sums);

/* Writes the records of all accepted frames by COPY BINARY. */
MUST_CHECK bool ingest_copy(struct ingest *in, struct err *err);
MUST_CHECK bool ingest_copy_all(struct db *db, struct ingest_push *const *pushes, size_t n, struct err *err);

/* Slices that end in the time covered by a push. */
struct slice_row {
	int64_t node_id, hour_ns, from_ns, until_ns;
	struct slice_sum *sums;
	size_t count;
	bool marked; /* its hour expects it as the next slice */
};
struct slice_rows {
	struct slice_row *at;
	size_t count;
};
void slice_rows_fini(struct slice_rows *rows);
/* Adds the accepted records to the stream's sums, after its hours are touched; complete slices go to rows. */
void ingest_slice(struct ingest *in, struct slice_rows *rows);
MUST_CHECK bool ingest_slices_store(struct db *db, struct slice_rows *rows, struct err *err);

/* The billing hours of the accepted records, ascending; the caller frees them. */
size_t ingest_hours(const struct ingest *in, int64_t **ret);
int64_t ingest_first_ns(const struct ingest *in);
MUST_CHECK bool ingest_touch_hours(struct ingest *in, struct err *err);
void ingest_count(const struct ingest *in, struct ingest_result *ret);

/* State of a stream after its last push, for the next push (ingest_cache.c). */
struct cached_stream {
	struct cached_stream *next;          /* in its bucket */
	struct cached_stream *newer, *older; /* by time of use */
	size_t bytes;                        /* memory when it was cached */
	char *node;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	uint64_t epoch;
	int64_t server_started_us, database; /* see struct db_ledger */
	int64_t policy_version;
	int64_t stream_id, node_id, cluster_id;
	char *cluster;
	struct dict dict;
	struct slice_sums slice;
};
void cached_stream_free(struct cached_stream *k);
DEFINE_OWNED(cached_stream, struct cached_stream)
/* Takes the cached state of the batch's stream out of the cache: the caller owns it. NULL: not cached. */
struct cached_stream *ingest_cache_take(struct ingest_cache *c, const struct wire_batch *b);
void ingest_cache_put(struct ingest_cache *c, struct cached_stream *k);
/* For a push stored alone: sets the length of slices and the sums of its stream. */
void ingest_cache_slice(struct ingest_cache *c, const struct db_ledger *l, struct ingest *in);
int64_t ingest_cache_slice_ns(const struct ingest_cache *c);
/* After a push was stored alone: caches its stream, so that the next push may join a group. */
void ingest_cache_learn(struct ingest_cache *c, struct ingest *in);
/* Whether the partitions of these days are known to exist. */
bool ingest_cache_has_days(struct ingest_cache *c, const struct db_ledger *l, int64_t from_ns, int64_t to_ns);
void ingest_cache_forget_days(struct ingest_cache *c);

#endif

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
	int64_t gpu_id; /* 0: the ledger has no row of it */
	char *uuid;
	size_t device;   /* its own: index into dict.devices */
	bool in_service; /* on this node, as far as known */
	bool asks; /* the ledger is asked at every batch: the stream's last description differs from the ledger's, or its records were set aside */
	int64_t otherwise_ns; /* ... and from then on: the policy declares other models of the node. INT64_MAX: it does not */
	int64_t from_ns, until_ns; /* of its last service here; until INT64_MAX: still */
	int64_t power_w;           /* the most that its model draws; 0: not known yet */
	int64_t memory_bytes;      /* the most that its model has; 0: not known */
	/* of the batch being judged */
	int128 unit_ns, energy_mj, memory_byte_ms;
	int64_t peak_memory_bytes;
	int64_t first_ns, last_ns, records;
	bool aside; /* its records do not count */
};
/* A device has a row in the ledger once a record that counts needs it; until then its entry is kept as it came. */
struct dict_device {
	uint32_t local;
	int64_t device_id; /* 0: there is no row */
	size_t gpu;        /* index into dict.gpus */
	bool is_gpu;
	bool entered;     /* in stream_device */
	bool kept;        /* in stream_device_entry, */
	bool outdated;    /* with what the stream said before */
	bool other_shape; /* the ledger's row has another profile or other units */
	bool needed;      /* by a record of the batch being judged */
	int64_t units;
	int32_t device_class; /* index into dict.classes */
	/* What the stream said last, where the ledger does not have it; owned, or NULL. Of one that is entered: a GPU that was described
	 * anew, which counts for nothing until its records do. */
	struct wire_device *entry;
};
/* The same for a holder. */
struct dict_holder {
	uint32_t local;
	int64_t holder_id; /* 0: not entered */
	bool kept, needed;
	struct wire_holder *entry; /* until it is entered */
};
/* The workspace that owns a holder during a stretch of time. */
struct dict_owner {
	int64_t holder_id;
	int32_t workspace_id;
	int64_t from_ns, until_ns;
};

/* The meaning of a stream's local ids, as far as this call needs them. */
struct dict {
	struct dict_gpu *gpus;
	struct dict_device *devices;
	size_t gpu_count, device_count;
	struct dict_holder *holders;
	size_t holder_count;
	bool services_read;      /* of GPUs in service on the node; then */
	int64_t services_seen;   /* what services_ended() was at that time */
	struct idmap gpu_ids;    /* gpu_id -> gpus */
	struct idmap gpu_uuids;  /* hash of the UUID -> gpus */
	struct idmap device_ids; /* local id -> devices */
	struct idmap holder_ids; /* local id -> holders */
	struct device_classes classes;
	bool has_owners;
	struct dict_owner *owners; /* of the holders; a holder's lie together, by time */
	size_t owner_count;
	struct idmap owner_ids; /* holder_id -> its first owner */
};
void dict_fini(struct dict *d);
size_t dict_bytes(const struct dict *d); /* what it holds, its texts included */

enum frame_outcome { OUTCOME_DUPLICATE, OUTCOME_ACCEPTED, OUTCOME_QUARANTINED, OUTCOME_LOSS };
struct ingest_frame {
	const uint8_t *payload; /* borrowed from the request */
	size_t len;
	uint8_t sha[SHA256_SIZE];
	struct wire_batch *batch;
	enum frame_outcome outcome;
	int64_t seq, last_seq; /* what it stands for in the stream */
	struct err reason;     /* why it is quarantined; ERR_NONE: it is not */
	enum quarantine_class klass;
	/* Per record, once accepted. Device 0: it is set aside; holder 0: nobody. */
	int64_t *device_id, *holder_id;
	int64_t counted; /* records that are not set aside */
	bool unsettled;  /* a record names a device or holder that is not entered */
	struct set_aside *aside;
	size_t aside_count;
};
/* The records of one GPU in a batch that do not count. */
struct set_aside {
	char *gpu, *reason;
	enum quarantine_class klass;
	int64_t records, from_ns, to_ns;
};
void set_asides_free(struct set_aside *list, size_t n);

/* What a stream's records add up to since its node's last slice. */
#define SLICE_AMOUNTS 8 /* held, used, unmeasured, over, energy, memory, SM active, SM measured: sums of usage_slice */
struct slice_sum {
	int64_t device_id, holder_id; /* holder 0: nobody */
	int64_t amount[SLICE_AMOUNTS];
	int64_t peak_memory_bytes;
	int8_t state, sharing, method;
};
struct slice_sums {
	bool begun;
	int64_t from_ns;    /* all records of the node from there on are in them */
	int64_t covered_ns; /* and these as its last push left them */
	int64_t behind;
	struct slice_sum *at;
	size_t count, cap;
	struct idmap index; /* of a record's numbers and words -> at */
};
void slice_sums_fini(struct slice_sums *s);

struct ingest {
	struct db *db;
	struct db_ledger ledger;
	int64_t now_ns;
	int64_t skew_ns, skew_max_ns; /* the node's clock less ours; 0: not known */
	bool overruled;               /* an operator lets the frame in: see ingest_accept.c */
	const char *only_gpu;         /* ... of an accepted frame only the records of this GPU; NULL: all */
	struct ingest_frame *frames;
	size_t count;
	int64_t stream_id, node_id, cluster_id;
	char *cluster;
	bool has_entries;                      /* of the stream: devices or holders that are not entered */
	int64_t next_seq;                      /* of the stream before this call */
	int64_t covered_until_ns;              /* of the stream; INT64_MIN: nothing yet */
	int64_t node_until_ns;                 /* how far its node is covered by any stream; INT64_MIN: not at all */
	bool node_had;                         /* how far its node was covered before is known: */
	int64_t node_had_ns;                   /* INT64_MIN: not at all */
	int64_t node_behind;                   /* node.behind at that time: late pushes and GPUs moved away */
	int64_t hours_from_ns, hours_until_ns; /* the node's hours that are there; in a group only */
	int64_t slice_ns;                      /* 0: no sums of slices are kept */
	struct slice_sums slice;
	struct dict dict;
	bool held, approved; /* its node's batches are put aside; it is approved, and others of it come first */
	int64_t held_bytes, held_max;
	bool entry_locked; /* ingest_enter_lock() was called in this transaction */
	bool aside_read;   /* how many GPUs in batches of the node are set aside and undecided: */
	int64_t aside_open;
	int64_t policy_version; /* 0: none yet */
	/* One of a group: what only the ledger could answer is not asked, and the push is then not for the group. */
	bool grouped, unsteady;
};
void ingest_fini(struct ingest *in);
/* Resets the frames before an attempt: no verdict of an earlier attempt remains. */
void ingest_forget(struct ingest *in);

struct ingest_push {
	struct ingest in;
	bool done; /* by a group */
	struct ingest_result result;
};

/* Whether stream s has devices or holders that are not entered. */
#define STREAM_HAS_ENTRIES                                                               \
	"EXISTS (SELECT FROM stream_device_entry x WHERE x.stream_id = s.id) OR EXISTS " \
	"(SELECT FROM stream_holder_entry x WHERE x.stream_id = s.id)"

/* Loads what the records and dictionaries of the frames may refer to. */
MUST_CHECK bool dict_load(struct ingest *in, struct err *err);
/* Notes the batch's dictionary, without a row for anything. A contradiction goes to ret_reason (ERR_NONE: there is none), a
 * failure of the database to err. */
MUST_CHECK bool dict_note(struct ingest *in, const struct wire_batch *b, struct err *ret_reason, struct err *err);
/* Stores what was noted and the ledger does not have, and takes away what it has by now. */
MUST_CHECK bool dict_keep(struct ingest *in, struct err *err);
/* Rows of devices and holders that are needed, found or made; their GPUs have rows. */
MUST_CHECK bool dict_enter(struct ingest *in, struct err *err);

/* The halves of these. kept: the entries come from the ledger. */
MUST_CHECK bool dict_note_devices(struct ingest *in, const struct wire_device *devices, size_t n, bool kept,
                                  struct err *reason, struct err *err);
MUST_CHECK bool dict_note_holders(struct ingest *in, const struct wire_holder *holders, size_t n, bool kept,
                                  struct err *reason, struct err *err);
/* What the stream said of a device last is d, which is copied; NULL: what the ledger has. */
void dict_entry(struct dict_device *dev, const struct wire_device *d);
MUST_CHECK bool dict_enter_devices(struct ingest *in, struct err *err);
MUST_CHECK bool dict_enter_holders(struct ingest *in, struct err *err);
/* A statement whose first argument is the stream, and columns; nothing where there are no rows. */
MUST_CHECK bool dict_store(struct ingest *in, const struct db_stmt *stmt, struct db_columns *rows, struct err *err);
/* Entries of devices that the ledger has, or that are said anew. */
MUST_CHECK bool dict_drop_devices(struct ingest *in, struct db_columns *locals, struct err *err);
/* The holders of a batch in the ledger, made and attributed where they are new. Needs db, cluster_id and cluster of in; ids are
 * 0 before. */
MUST_CHECK bool holder_ids(struct ingest *in, const struct wire_holder *const *holders, size_t n, int64_t *ids,
                           struct err *err);
/* Before GPUs, devices or holders are entered. Rules and declarations do not change until the commit, and the node's row is locked, in this
 * order: a policy that is applied locks nodes and GPUs after its own lock, and another stream of the node may enter the same rows and lock
 * its node at the end of the push. */
MUST_CHECK bool ingest_enter_lock(struct ingest *in, struct err *err);
/* For services_as_read(), in the statement that locks the node's row or behind it: what services_ended() was when services were read without
 * that lock, or NULL. */
void ingest_services_arg(const struct ingest *in, struct db_args *a);
/* The GPU of that UUID, entered where it is new. */
size_t dict_gpu(struct dict *d, const char *uuid, int64_t gpu_id);
void dict_gpu_row(struct dict *d, size_t gpu, int64_t gpu_id); /* it has a row from now on */
/* What a board of its model can draw and have, by our table. */
void dict_gpu_model(struct dict *d, size_t gpu, const char *short_model);
void dict_device(struct dict *d, const struct dict_device *dev);
void dict_holder(struct dict *d, const struct dict_holder *h);
/* The last service of GPU g on a node, as s, and what it is, as m. */
#define DICT_LAST_SERVICE(node)                                               \
	"LEFT JOIN gpu_spec m ON m.gpu_id = g.id AND upper_inf(m.effective) " \
	"LEFT JOIN LATERAL (SELECT v.from_ns, v.until_ns FROM gpu_service v " \
	"WHERE v.gpu_id = g.id AND v.node_id = " node " ORDER BY v.from_ns DESC LIMIT 1) s ON true "
/* From when on, not before at, the policy declares models of the node and this GPU has none of them; NULL: never. One that is declared for
 * part of that time only is no answer: gpu_claim() has it. */
#define DICT_DECLARED_OTHERWISE(node, at)                                                                           \
	"(SELECT min(greatest(ns_of(lower(x.effective)), " at ")) FROM node_declared x WHERE x.node_id = " node     \
	" AND x.model <> m.short_model AND x.effective && tstzrange(hour_of(" at "), NULL) AND NOT EXISTS (SELECT " \
	"FROM node_declared y WHERE y.node_id = x.node_id AND y.model = m.short_model "                             \
	"AND y.effective @> x.effective * tstzrange(hour_of(" at "), NULL)))"
/* Where the frames of the call begin: the time that is asked about. */
int64_t dict_from_ns(const struct ingest *in);
/* Which services of the node have ended when they are read: see services_as_read(). */
#define DICT_SERVICES_SEEN(node) "(SELECT services_ended(" node "))"
/* Columns from at on: from_ns and until_ns of that service, DICT_DECLARED_OTHERWISE, DICT_SERVICES_SEEN. */
void dict_gpu_service(struct dict *d, size_t gpu, const PGresult *r, int row, int at);

MUST_CHECK bool ingest_set_aside_store(struct ingest *in, const struct ingest_frame *f, struct err *err);

/* Decides the outcome of a frame whose number is the next; advances covered_until_ns. */
MUST_CHECK bool ingest_judge(struct ingest *in, struct ingest_frame *f, struct err *err);

/* Whether the node is held, with its lock; what this push puts aside. ingest_held.c */
MUST_CHECK bool ingest_held_lock(struct ingest *in, struct err *err);
MUST_CHECK bool ingest_held_count(struct ingest *in, struct ingest_result *ret, struct err *err);
/* A reason may quote the very bytes that were refused. */
void ingest_make_clean(char *text);

/* A batch as it was received, held against its SHA-256. */
struct quarantine_bytes {
	unsigned char *data;
	size_t len;
	uint8_t sha[SHA256_SIZE];
};
void quarantine_bytes_fini(struct quarantine_bytes *b);
MUST_CHECK bool quarantine_payload(struct db *db, int64_t stream, int64_t seq, struct quarantine_bytes *ret,
                                   struct err *err);

/* The day partitions that the accepted frames need. */
MUST_CHECK bool ingest_partitions(struct ingest *in, struct err *err);
/* Moves the stream's cursor to next, and touches the hours of the accepted frames. */
MUST_CHECK bool ingest_move_cursor(struct ingest *in, int64_t next, struct err *err);

/* What the records of the accepted frames add up to. */
MUST_CHECK bool ingest_sum_up(struct ingest *in, struct ingest_sums *sums, struct err *err);
/* The same, when the dictionary has its owners. */
void ingest_sum_known(const struct ingest *in, struct ingest_sums *sums);

/* The records of all accepted frames, by COPY BINARY. */
MUST_CHECK bool ingest_copy(struct ingest *in, struct err *err);
MUST_CHECK bool ingest_copy_all(struct db *db, struct ingest_push *const *pushes, size_t n, struct err *err);

/* Slices whose end a push has covered. */
struct slice_row {
	int64_t node_id, hour_ns, from_ns, until_ns;
	struct slice_sum *sums;
	size_t count;
	bool marked; /* its hour has it as its next slice */
};
struct slice_rows {
	struct slice_row *at;
	size_t count;
};
void slice_rows_fini(struct slice_rows *rows);
/* Adds the accepted records to the sums of the stream, once its hours are touched; slices that are complete go to rows. */
void ingest_slice(struct ingest *in, struct slice_rows *rows);
MUST_CHECK bool ingest_slices_store(struct db *db, struct slice_rows *rows, struct err *err);

/* The billing hours of the accepted records, ascending; the caller frees them. */
size_t ingest_hours(const struct ingest *in, int64_t **ret);
int64_t ingest_first_ns(const struct ingest *in);
MUST_CHECK bool ingest_touch_hours(struct ingest *in, struct err *err);
void ingest_count(const struct ingest *in, struct ingest_result *ret);

/* Cached state of a stream after its last push, for the next one (ingest_cache.c). */
struct stream_known {
	struct stream_known *next;          /* in its bucket */
	struct stream_known *newer, *older; /* by use */
	size_t bytes;                       /* what it holds, since it was put there */
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
void stream_known_free(struct stream_known *k);
DEFINE_OWNED(stream_known, struct stream_known)
/* Removes the batch's stream from the cache and gives it to the caller; NULL: it is not cached. */
struct stream_known *ingest_cache_take(struct ingest_cache *c, const struct wire_batch *b);
void ingest_cache_put(struct ingest_cache *c, struct stream_known *k);
/* For a push that goes alone: the length of slices, and the sums of its stream. */
void ingest_cache_slice(struct ingest_cache *c, const struct db_ledger *l, struct ingest *in);
int64_t ingest_cache_slice_ns(const struct ingest_cache *c);
/* After a push was stored alone: the next one of its stream may be for a group. */
void ingest_cache_learn(struct ingest_cache *c, struct ingest *in);
/* Whether the partitions of the days from there to there are known to exist. */
bool ingest_cache_has_days(struct ingest_cache *c, const struct db_ledger *l, int64_t from_ns, int64_t to_ns);
void ingest_cache_forget_days(struct ingest_cache *c);

#endif

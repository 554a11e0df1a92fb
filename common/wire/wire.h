/* common/wire/wire.h - the batch of interval records that an exporter sends: versioned, columnar, with a dictionary.
 * The format is drawn in common/wire/WIRE.md. Pure: bytes to values and back. */
#ifndef TOLLGATE_WIRE_H
#define TOLLGATE_WIRE_H

#include "common/base/labels.h"
#include "common/base/limits.h"

#define WIRE_VERSION 4
#define WIRE_OLDEST_VERSION 1
#define WIRE_MAX_BODY (32u << 20) /* of one batch before gzip */
#define WIRE_MAX_RECORDS 200000u
#define WIRE_MAX_DICT 100000u
#define WIRE_MAX_TEXT 512u /* of one string */
#define WIRE_BOOT_ID_SIZE 16
#define WIRE_MAX_ENERGY_MJ INT64_C(1000000000000) /* of one record: a megawatt for a quarter-hour */
#define WIRE_MAX_TICKS INT64_C(10000000)

enum wire_kind { WIRE_USAGE = 1, WIRE_LOSS = 2 };
enum wire_flag { WIRE_SIMULATED = 1 }; /* made by a simulator: refused by a ledger that is not a demo */

/* The state of a stretch of device time (BILLING 1). HELD splits into used, unmeasured and the rest, idle. */
enum wire_state { WIRE_HELD = 1, WIRE_UNALLOCATED, WIRE_STRANDED, WIRE_DOWN, WIRE_UNKNOWN };
enum wire_sharing { WIRE_EXCLUSIVE = 1, WIRE_MIG, WIRE_MPS, WIRE_TIMESLICE, WIRE_PLAIN };
/* Where used_ns comes from. NONE: nothing was measured, so that a held record is all unmeasured, or the record is not held.
 * RESERVED: nothing was measured either, and what holds is an allocation rather than a process. */
enum wire_method { WIRE_NONE = 0, WIRE_MEASURED = 1, WIRE_ESTIMATED = 2, WIRE_RESERVED = 3 };

/* A device is a physical GPU (gi and ci are -1) or a MIG compute instance (gi and ci from 0; ci -1 where a GPU instance
 * without compute instance is reported as a device). Ids are the stream's own, from 1. */
struct wire_device {
	uint32_t id;
	uint32_t gpu;  /* id of the physical GPU; its own id for a GPU */
	char *uuid;    /* GPU-... or MIG-... */
	char *model;   /* NVML's name */
	char *profile; /* "3g.40gb"; empty for a GPU */
	int32_t gi, ci;
	int64_t created_ns; /* MIG: wall time at which this instance was first seen; with gpu, gi and ci its key. GPU: 0 */
	int64_t units;      /* 5040 for a GPU */
	int64_t memory_bytes;
	int32_t index; /* of the GPU on its node */
};

enum wire_holder_kind { WIRE_POD = 1, WIRE_SLURM_JOB, WIRE_HOST_USER };

/* A holder of a device: only the fields of its kind are filled, the others are empty, never NULL. user and uid may be known for every
 * kind. A pod has a name or a uid, a Slurm job its number, a host user its user. group and labels are of version 2. */
struct wire_holder {
	uint32_t id;
	uint32_t kind;
	char *ns, *pod, *pod_uid, *container; /* POD */
	char *slurm_job, *slurm_account;      /* SLURM_JOB */
	char *user;                           /* name, or the uid in decimal */
	int64_t uid;                          /* -1 when not known */
	char *group;                          /* SLURM_JOB, HOST_USER: primary group of the user; empty: not known */
	char *labels;                         /* POD: those the exporter was told to read, as labels.h spells them */
};

struct wire_record {
	uint32_t device;
	uint32_t holder; /* 0: nobody */
	uint32_t state;
	uint32_t sharing;
	uint32_t method;
	int64_t units;       /* weight of what this record covers, 1..5040 */
	int64_t start_ns;    /* wall */
	int64_t duration_ns; /* > 0; the record lies inside one UTC quarter-hour */
	int64_t held_ns; /* this record's part of duration: all of it, or one of n equal parts; also for states without a holder */
	int64_t used_ns; /* <= held_ns - unmeasured_ns */
	int64_t unmeasured_ns;
	int64_t over_ns; /* activity beyond the share, outside conservation */
	int64_t memory_byte_ms;
	int64_t energy_mj;
	int64_t ticks;
	/* of version 3; efficiency, never billed */
	int64_t peak_memory_bytes; /* the most that the holder had at once; 0: not told */
	int64_t sm_active_ns; /* of sm_measured_ns: time in which its multiprocessors worked, weighed by their share */
	int64_t sm_measured_ns; /* part of held_ns for which the source told SM activity */
};

/* Records may come in any order; by device, holder and start they take a third less room than by start. */
struct wire_batch {
	uint32_t version; /* of the format it is written in, WIRE_OLDEST_VERSION to WIRE_VERSION */
	uint32_t kind;
	char *node;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	uint64_t epoch;
	uint64_t seq;      /* from 1 */
	uint64_t last_seq; /* = seq, except in a loss batch: the last number lost */
	uint32_t flags;
	char *exporter_version;
	int64_t from_ns, to_ns; /* wall time covered: all of the node's GPUs are accounted for in it (loss: not) */
	struct wire_device *devices;
	size_t device_count;
	struct wire_holder *holders;
	size_t holder_count;
	struct wire_record *records;
	size_t record_count;
};

/* Appends the body before gzip; the same batch always gives the same bytes. The batch must be valid (wire_check): one whose
 * counts or texts are over the caps, whose values cannot be told apart by 64-bit differences, or that has what its version has
 * no place for, is refused. After an error `out` is as before. */
MUST_CHECK bool wire_encode(const struct wire_batch *b, struct buf *out, struct err *err);

/* ERR_INVALID with the reason for unsound bytes; ERR_RETRY for a version this program does not know. Content is decoded
 * but not judged: call wire_check. A body that is accepted is the only one of its content: encoding gives it back, in the version it came in. */
MUST_CHECK bool wire_decode(const void *body, size_t n, struct wire_batch **ret, struct err *err);

/* The rules every batch obeys whoever made it; the number of each is in wire_check.c and WIRE.md. Enumerations, ranges,
 * used + unmeasured <= held <= duration, a record inside one quarter-hour and inside from..to, holder present exactly when
 * HELD, nothing used where nothing was measured, unique ids, text in UTF-8 without control or direction characters; a loss batch has no
 * records. Ids need not be in this batch: an earlier one of the stream may have introduced them. Names the record, the field,
 * its value and the limit. */
MUST_CHECK bool wire_check(const struct wire_batch *b, struct err *err);

/* A batch owns its texts and arrays: each is from mem_*, and freed with it. A new one is of WIRE_VERSION. */
struct wire_batch *wire_batch_new(void);
void wire_device_fini(struct wire_device *d); /* its texts */
void wire_holder_fini(struct wire_holder *h);
void wire_batch_free(struct wire_batch *b);
DEFINE_OWNED(wire_batch, struct wire_batch)

/* The payload of a frame. Check, encode and gzip, appending to out; a payload over FRAME_MAX is refused. */
MUST_CHECK bool wire_pack(const struct wire_batch *b, struct buf *out, struct err *err);
/* Expand and decode, without wire_check. */
MUST_CHECK bool wire_unpack(const void *payload, size_t n, struct wire_batch **ret, struct err *err);

/* "?" for a number that has no name. */
const char *wire_state_name(uint32_t state);
const char *wire_sharing_name(uint32_t sharing);
const char *wire_method_name(uint32_t method);
const char *wire_holder_kind_name(uint32_t kind);

#endif

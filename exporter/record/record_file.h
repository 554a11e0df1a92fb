/* exporter/record/record_file.h - inside the recording: one file in memory, filled by record_take.c, written as YAML by record_file.c. All times
 * are nanoseconds since the file's first reading. */
#ifndef TOLLGATE_RECORD_FILE_H
#define TOLLGATE_RECORD_FILE_H

#include "common/base/buf.h"
#include "exporter/source/gpu_source.h"
#include "exporter/identity/identity_proc.h"

#define RECORD_TEXT_MAX (4u << 20) /* of any text, and of a whole file */
#define RECORD_NOT_WRITTEN INT64_MIN
#define RECORD_ALIVE INT64_MAX
#define RECORD_BOARD_FIELDS 34
#define RECORD_INSTANCE_FIELDS 7

/* A process on one device. */
struct record_run {
	size_t gpu;
	uint32_t pid;
	int32_t gi, ci;
	uint64_t start_ticks;
	int64_t start_ns, end_ns;
	int64_t uid;
	char *cgroup, *comm;
	bool mps;
	bool seen;           /* in the current reading */
	struct buf activity; /* phases, as the scenario has them */
	int64_t sm, memory;  /* the last ones written; RECORD_NOT_WRITTEN: none */
	int64_t memory_now;  /* of the last reading */
};

struct record_instance {
	char uuid[GPU_TEXT];
	int32_t gi, ci;
	int64_t last[RECORD_INSTANCE_FIELDS];
};

struct record_gpu {
	char uuid[GPU_TEXT], model[GPU_TEXT], pci[32];
	int32_t index;
	int64_t since_ns; /* its first reading */
	int64_t memory_bytes;
	bool gpm, samples, no_samples, accounting, placements_hidden;
	struct buf first_layout, layouts; /* the value of `mig`, and the entries of `repartition` */
	char *layout;                     /* the last one, as text */
	struct buf readings;
	int64_t last[RECORD_BOARD_FIELDS];
	struct record_instance instances[GPU_INSTANCE_MAX];
	size_t instance_count;
	int64_t down_ns, silent_ns; /* since when; -1: it is not */
	enum gpu_fault fault;       /* while it is down */
	struct gpu_xid xids[GPU_XID_MAX];
	size_t xid_count;
};

/* An event of a GPU: a fault, a call that hangs, or an XID. */
enum record_event_kind { RECORD_FAULT, RECORD_HANG, RECORD_XID };
struct record_event {
	enum record_event_kind kind;
	size_t gpu;
	int64_t at_ns, until_ns;
	uint32_t xid;
	enum gpu_fault fault;
};

struct record_file {
	const char *node;
	char driver[GPU_TEXT], library[GPU_TEXT];
	int64_t boot0_ns, wall0_ns;
	int64_t now_ns, before_ns; /* of the last two readings; before is -1 at the first */
	struct record_gpu *gpus;
	size_t gpu_count;
	struct record_run *runs;
	size_t run_count, run_cap;
	struct record_event *events;
	size_t event_count;
};

/* Adds a reading: each GPU, then the processes of all. */
void record_take_gpu(struct record_file *f, size_t place, const struct gpu_reading *r);
void record_take_processes(struct record_file *f, struct proc *proc, const struct gpu_snapshot *s, int64_t wall_ns);
void record_add_event(struct record_file *f, struct record_event e);

void record_file_fini(struct record_file *f);
/* Approximate length of the text. */
size_t record_file_size(const struct record_file *f);
void record_file_text(const struct record_file *f, struct buf *out);
/* Writes text in double quotes for YAML; bytes that are not plain ASCII are escaped. */
void record_quoted(struct buf *out, const char *text);

/* ---- the thread that writes files to a disk that may be slow or hang (record.c) ---- */

#define RECORD_WAITING_MAX 4
struct record_writer;
MUST_CHECK bool record_writer_new(struct record_writer **ret, struct err *err);
/* Takes ownership of the text. A waiting text for the same path is replaced by the newer one. Beyond RECORD_WAITING_MAX the oldest is
 * dropped. */
void record_writer_put(struct record_writer *w, const char *path, struct buf *text);
/* False: the last file was not written, or files were dropped. */
MUST_CHECK bool record_writer_check(struct record_writer *w, struct err *err);
/* Waits for the disk, but not longer than this. False: something is not written; a write in progress is abandoned. */
MUST_CHECK bool record_writer_close(struct record_writer *w, int64_t patience_ns, struct err *err);

#endif

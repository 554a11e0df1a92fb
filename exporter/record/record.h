/* exporter/record/record.h - records a node's GPU readings as scenarios for the simulator (--record DIR).
 *
 * Rules, by number in the code:
 *  1. a recording replayed at the same times gives the same readings. A momentary value holds from its reading on; an average, such
 *     as the activity of a process, holds from the reading before
 *  2. a process begins just after the last reading without it, and ends at the first reading without it. A PID that is used again, with
 *     another start time, is another process
 *  3. a process known from accounting alone lies between two readings, with an unknown owner
 *  4. a GPU that is down is a fault; one that does not answer in time is a call that hangs
 *  5. of a process its PID, uid, cgroup and name are kept, and no command line
 *  6. a file is complete at any time: it is written anew each minute and renamed, by a thread. At its limit the next file begins, which
 *     is readable without the ones before */
#ifndef TOLLGATE_RECORD_H
#define TOLLGATE_RECORD_H

#include "exporter/source/gpu_source.h"

#define RECORD_FILE_BYTES (3u << 20) /* the simulator reads files of up to 4 MiB */

struct recorder_options {
	const char *dir; /* made if missing */
	const char *node;
	const char *proc_root;
	size_t file_bytes; /* 0: RECORD_FILE_BYTES */
};

struct recorder;

MUST_CHECK bool recorder_new(const struct recorder_options *o, struct recorder **ret, struct err *err);

/* Adds a reading; wall_ns is the wall time of its boot_ns. An error concerns a file written before: it is written again a minute later,
 * within the limit of a file. */
MUST_CHECK bool recorder_take(struct recorder *r, const struct gpu_snapshot *s, const char *driver, const char *library,
                              int64_t wall_ns, struct err *err);
/* Writes the last file, waits for the disk at most patience_ns, and frees. r may be NULL. */
MUST_CHECK bool recorder_close(struct recorder *r, int64_t patience_ns, struct err *err);

#endif

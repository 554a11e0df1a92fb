/* exporter/record/record.h - what a node's GPUs answered, written down as scenarios for the simulator (--record DIR).
 *
 * Rules, by number in the code:
 *  1. a recording replayed at the same times gives the same readings. A moment's value holds from its reading on; an average, such
 *     as the activity of a process, holds from the reading before
 *  2. a process begins just after the last reading that did not have it, and ends at the first that misses it. A PID that is used
 *     again, which its start time tells, is another process
 *  3. what accounting alone has seen is a process between two readings, of nobody known
 *  4. a GPU that is down is a fault; one that does not answer in time is a call that hangs
 *  5. of a process its PID, uid, cgroup and name are kept, and no command line
 *  6. a file is whole at any time: it is written anew each minute and renamed, by a thread of its own. At its limit the next one
 *     begins, by itself */
#ifndef TOLLGATE_RECORD_H
#define TOLLGATE_RECORD_H

#include "exporter/source/gpu_source.h"

#define RECORD_FILE_BYTES (3u << 20) /* the simulator reads files of up to 4 MiB */

struct recorder_options {
	const char *dir; /* is made when it is not there */
	const char *node;
	const char *proc_root;
	size_t file_bytes; /* 0: RECORD_FILE_BYTES */
};

struct recorder;

MUST_CHECK bool recorder_new(const struct recorder_options *o, struct recorder **ret, struct err *err);

/* Takes a reading; wall_ns is the time of its boot_ns. An error is the disk's, of a file written before: what the disk did not take is
 * written again a minute later, within the limit of a file. */
MUST_CHECK bool recorder_take(struct recorder *r, const struct gpu_snapshot *s, const char *driver, const char *library,
                              int64_t wall_ns, struct err *err);
/* Writes all that was taken, waits for the disk for so long, and ends the recorder. r may be NULL. */
MUST_CHECK bool recorder_close(struct recorder *r, int64_t patience_ns, struct err *err);

#endif

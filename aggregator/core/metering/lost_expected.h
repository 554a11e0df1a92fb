/* aggregator/core/metering/lost_expected.h - devices that workloads lost because a GPU or the node failed, found a second time for `tollgate verify`. Pure.
 *
 * It shares no code with the SQL functions lost_stays() and lost_holds(), whose results it is compared with. Rules:
 *  1. a stay has ended where no record of its holder and device goes on within ten minutes
 *  2. the GPU is down within a minute after: gpu-down
 *  3. nothing accounts for the GPU for ten minutes, and the node's accounts have passed them: node-silent
 *  4. the GPU had a critical error that was not the program's own, at most ten minutes before or a minute after: xid
 *  5. other devices of the same pod or job that it gave up from a minute before until ten minutes after are lost with it
 * Where two answers are equally right (two errors of one moment, two failures of one job), each is reported: a row must equal one of them. */
#ifndef TOLLGATE_LOST_EXPECTED_H
#define TOLLGATE_LOST_EXPECTED_H

#include "common/base/base.h"

struct verify_lost_record {
	int64_t node, gpu, device, holder, stream, start_ns, end_ns;
	int state; /* enum wire_state */
};
struct verify_lost_xid {
	int64_t gpu, at_ns, xid;
};
enum verify_lost_cause { VERIFY_LOST_NOT, VERIFY_LOST_DOWN, VERIFY_LOST_SILENT, VERIFY_LOST_XID };
extern const char *const verify_lost_causes[];

struct verify_lost {
	int64_t node, stream, device, holder, ended_ns, xid, failed_gpu; /* xid 0: none */
	enum verify_lost_cause cause;
	bool other; /* by rule 5 */
};
typedef void verify_lost_tell(void *arg, const struct verify_lost *lost);

/* The evidence: records of a node around an hour, and errors of its GPUs. before_ns: records that begin there or later are ignored,
 * INT64_MAX: none is. */
struct verify_lost_seen {
	const struct verify_lost_record *records;
	size_t record_count;
	const struct verify_lost_xid *xids;
	size_t xid_count;
	int64_t accounted_ns, before_ns;
};
/* Rules 1 to 4, of stays that ended in the hour. */
void verify_lost_stays(const struct verify_lost_seen *s, int64_t hour_ns, verify_lost_tell *tell, void *arg);
/* Rule 5, of one failure and the records of its holder on one node. The caller leaves out devices that failed themselves. */
void verify_lost_others(const struct verify_lost_seen *s, const struct verify_lost *failed, verify_lost_tell *tell,
                        void *arg);

#endif

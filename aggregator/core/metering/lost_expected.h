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

struct lost_expected_record {
	int64_t node, gpu, device, holder, stream, start_ns, end_ns;
	int state; /* enum wire_state */
};
struct lost_expected_xid {
	int64_t gpu, at_ns, xid;
};
enum lost_expected_cause { LOST_EXPECTED_NOT, LOST_EXPECTED_DOWN, LOST_EXPECTED_SILENT, LOST_EXPECTED_XID };
extern const char *const lost_expected_causes[];

struct lost_expected {
	int64_t node, stream, device, holder, ended_ns, xid, failed_gpu; /* xid 0: none */
	enum lost_expected_cause cause;
};
typedef void lost_expected_tell(void *arg, const struct lost_expected *lost);

/* The evidence: records of a node around an hour, and errors of its GPUs. before_ns: records that begin there or later are ignored,
 * INT64_MAX: none is. */
struct lost_expected_evidence {
	const struct lost_expected_record *records;
	size_t record_count;
	const struct lost_expected_xid *xids;
	size_t xid_count;
	int64_t accounted_ns, before_ns;
};
/* Rules 1 to 4, of stays that ended in the hour. */
void lost_expected_stays(const struct lost_expected_evidence *s, int64_t hour_ns, lost_expected_tell *tell, void *arg);
/* Rule 5, of one failure and the records of its holder on one node. The caller leaves out devices that failed themselves. */
void lost_expected_others(const struct lost_expected_evidence *s, const struct lost_expected *failed,
                          lost_expected_tell *tell, void *arg);

#endif

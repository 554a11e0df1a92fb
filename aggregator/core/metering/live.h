/* aggregator/core/metering/live.h - the live status message of a node: read and checked. Pure.
 *
 * Rules, in order; the first that the message breaks refuses all of it, and the text names the member:
 *  1. it is a JSON object of at most LIVE_MAX_BYTES; unknown members are ignored, so that newer
 *     exporters are understood
 *  2. it names the node and its boot, the time by both clocks, and the interval until the next message
 *  3. there are at most LIMIT_NODE_GPUS GPUs with different UUIDs, and of the instances of one at most LIMIT_GPU_INSTANCES
 *  4. an instance weighs 1 to 5040 units, together they weigh no more than their GPU; a GPU is cut or shared by replicas
 *  5. a holder is at its GPU or at one of its instances, and is of a kind that holders have */
#ifndef TOLLGATE_LIVE_H
#define TOLLGATE_LIVE_H

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/base/limits.h"

#define LIVE_MAX_BYTES (1u << 20)
#define LIVE_HOLDERS_MAX 10000
#define LIVE_TEXT_MAX 512

struct live_status {
	char node[LIMIT_NODE_NAME + 1];
	char boot_id[37]; /* a UUID */
	int64_t boot_ns;  /* time since boot, which is never set: within one boot the greater is the newer */
	int64_t wall_ns;
	int64_t interval_ns;
	bool simulated;
	int64_t left_out; /* holders that did not fit */
	size_t gpu_count, healthy_count, instance_count, holder_count;
	size_t error_count; /* GPUs with a last critical error and its time */
	/* As JSON lists of flat objects, each with the UUID of its GPU and with every member that the database reads. */
	struct buf gpus;      /* uuid model short_model index healthy reason xid xid_at sharing replicas */
	struct buf instances; /* gpu gi ci uuid profile units */
	struct buf
		holders; /* gpu device replica kind namespace pod pod_uid container slurm_job slurm_account user_name uid
	                       * allocated holds active */
	uint8_t digest[SHA256_SIZE]; /* of the three lists: the same when nothing has changed but the time */
};
void live_status_free(struct live_status *s);
DEFINE_OWNED(live_status, struct live_status)

MUST_CHECK bool live_parse(const char *text, size_t len, struct live_status **ret, struct err *err);

#endif

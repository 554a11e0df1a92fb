/* exporter/source/gpu_changes.h - changes of GPUs between two ticks, for the log.
 *
 * Rules, by number in the code:
 *  1. a GPU that goes down is logged once, and again when the reason changes; its return is logged once
 *  2. a GPU that did not answer in time is neither down nor back: its last logged state holds
 *  3. an XID is logged at the tick that shows it. More of the same kind on the same GPU within a minute are logged together when the
 *     minute is over */
#ifndef TOLLGATE_GPU_CHANGES_H
#define TOLLGATE_GPU_CHANGES_H

#include "exporter/source/gpu_source.h"

#define GPU_CHANGES_PAUSE_NS INT64_C(60000000000) /* rule 3 */

enum gpu_change_kind { GPU_CHANGE_DOWN, GPU_CHANGE_BACK, GPU_CHANGE_XID };

struct gpu_change {
	enum gpu_change_kind kind;
	char uuid[GPU_TEXT];
	int32_t index;
	char reason[GPU_TEXT]; /* why it is down, or was */
	uint32_t xid;          /* NVIDIA's number; 0: one of those beyond GPU_XID_MAX kinds */
	int64_t count;         /* XIDs of this number since the last change of this kind */
};

struct gpu_changes;
struct gpu_changes *gpu_changes_new(void);
void gpu_changes_free(struct gpu_changes *c);
DEFINE_OWNED(gpu_changes, struct gpu_changes)

/* The changes of this tick; valid until the next call. */
size_t gpu_changes_take(struct gpu_changes *c, const struct gpu_snapshot *s, int64_t boot_ns,
                        const struct gpu_change **ret);

#endif

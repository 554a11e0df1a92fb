/* exporter/metrics/metrics_dcgm.h - the same readings under dcgm-exporter's names and labels, so that dashboards made for it keep working.
 *
 * Where it differs from the original, and why (the table for operators is in README.md):
 *  1. what belongs to a board is shown once, without a pod, when several workloads share it or it is partitioned: the original
 *     repeats it for each, so that sums over pods and instances are too large
 *  2. on a shared GPU, GPU_UTIL and FB_USED are each workload's own; one for which they are not known has no sample, not 0
 *  3. what the driver does not have is absent */
#ifndef TOLLGATE_METRICS_DCGM_H
#define TOLLGATE_METRICS_DCGM_H

#include "exporter/meter/meter.h"

/* Traffic over a GPU's NVLinks. Drivers count, the original shows a rate. */
struct dcgm_links {
	struct dcgm_link {
		char uuid[GPU_TEXT];
		int64_t bytes, boot_ns; /* of the last tick */
		int64_t bytes_per_s;    /* ABSENT: not known */
	} gpus[GPU_MAX];
	size_t count;
};
/* Once per tick. A counter that falls begins anew, and makes no rate. */
void dcgm_links_update(struct dcgm_links *l, const struct tick *t);
int64_t dcgm_links_rate(const struct dcgm_links *l, const char *uuid);

#endif

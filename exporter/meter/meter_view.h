/* exporter/meter/meter_view.h - one GPU's reading brought into the terms of the meter: known devices and holders, values in range. */
#ifndef TOLLGATE_METER_VIEW_H
#define TOLLGATE_METER_VIEW_H

#include "exporter/meter/meter.h"
#include "exporter/meter/meter_plan.h"

struct view_context {
	struct dict *dict;
	struct dict_device *gpu;
	const struct gpu_view *last; /* an instance of the last view that is still there stays the same device */
	int64_t wall_ns, wall_offset_ns;
	int64_t tolerance_ns; /* of the times that accounting tells */
	size_t first_place;   /* of the GPU's processes in the tick */
};
void gpu_view_read(struct gpu_view *v, const struct view_context *c, const struct tick_gpu *t);
/* A GPU that does not answer keeps the layout of the last view, so that it is known when it is back. */
void gpu_view_down(struct gpu_view *v, const struct gpu_view *last);

/* How many processes only the driver's samples of activity show: no tick saw them, and accounting does not tell of them. */
int64_t gpu_view_sampled(const struct gpu_view *v, const struct gpu_view *last, const struct gpu_reading *r);

/* Takes an allocation when it is for a device of this view; uuid is that of the GPU. Then, when all have been offered: sorted,
 * with the replicas of one holder of one device made one claim. */
bool gpu_view_claim(struct gpu_view *v, const struct view_context *c, const char *uuid,
                    const struct tick_allocation *a);
void gpu_view_claimed(struct gpu_view *v);

#endif

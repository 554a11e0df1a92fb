/* exporter/meter_view.h - one GPU's reading brought into the terms of the meter: known devices and holders, values in range. */
#ifndef TOLLGATE_EXPORTER_METER_VIEW_H
#define TOLLGATE_EXPORTER_METER_VIEW_H

#include "exporter/meter.h"
#include "exporter/meter_plan.h"

/* `last` is the view of the last tick that had an answer: an instance in it that is still there stays the same device. */
void gpu_view_read(struct gpu_view *v, struct dict *dict, struct dict_device *gpu, const struct tick_gpu *t,
                   const struct gpu_view *last, int64_t wall_ns, int64_t wall_offset_ns);
/* A GPU that does not answer keeps the layout of the last view, so that it is known when it is back. */
void gpu_view_down(struct gpu_view *v, const struct gpu_view *last);

#endif

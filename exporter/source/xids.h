/* exporter/source/xids.h - errors counted for as long as the exporter runs. A source counts from its opening, and a library that failed
 * is opened again: without this a counter would fall just when somebody looks at it. */
#ifndef TOLLGATE_XIDS_H
#define TOLLGATE_XIDS_H

#include "exporter/source/gpu_source.h"

struct xids;
struct xids *xids_new(void);
void xids_free(struct xids *x);

/* Adds to the errors of each GPU those of the sources before. `opening` is another number for each source. */
void xids_carry(struct xids *x, unsigned opening, struct gpu_snapshot *s);

#endif

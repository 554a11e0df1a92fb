/* exporter/source/dcgm/source_auto.h - a source with DCGM beside NVML: who is there, processes, MIG and the board by NVML, activity by whichever of
 * the two has it, or has it better.
 *
 * Rules, by number in the code:
 *  1. NVML decides whether there is a reading; whatever DCGM does, a reading is at least NVML's
 *  2. DCGM begins to read when the GPUs are listed, and is waited for when one of them has been read, as dcgm.h says */
#ifndef TOLLGATE_SOURCE_AUTO_H
#define TOLLGATE_SOURCE_AUTO_H

#include "exporter/source/dcgm/dcgm.h"

/* Takes over the NVML source; uses DCGM, which must outlive it. prefer: where both have a value, DCGM's is taken. */
struct gpu_source *source_auto_new(struct gpu_source *nvml, struct dcgm *dcgm, bool prefer);

#endif

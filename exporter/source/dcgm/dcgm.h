/* exporter/source/dcgm/dcgm.h - activity of GPUs and MIG instances from DCGM, added to NVML's readings.
 *
 * DCGM measures GPUs whose counters NVML does not show (Volta to Ada, with MIG on Ampere) and reports no processes. So it adds to a
 * reading and never removes from one. Rules, by number in the code:
 *  1. every call into the library, opening and closing it included, is made by one worker thread. A reading waits for it for a
 *     small part of the tick, and not at all while it is late with an earlier one
 *  2. a value is valid for two ticks after the reading that first had its stamp; a stamp that does not change is no new value
 *  3. blank numbers are ABSENT, whatever their status says
 *  4. a share above 1 is 1, and is counted
 *  5. GPUs are matched by UUID, instances by NVML's ids, and only while NVML's layout is the one for which DCGM's instances were
 *     discovered. Another layout makes the worker discover again. An instance that DCGM does not list has no values, is counted,
 *     and is searched for every ten seconds; the other instances of its GPU have theirs
 *  6. entities are watched in groups; a group that is refused is halved until those that fail are alone
 *  7. an engine that fails is closed, and opened again after 1 s, then 2 s, up to a minute
 *  8. DCGM's power of an instance is the whole board's, so power is never read from DCGM */
#ifndef TOLLGATE_DCGM_H
#define TOLLGATE_DCGM_H

#include "exporter/source/gpu_source.h"

struct dcgm_options {
	const char *library; /* NULL: libdcgm.so.4, then libdcgm.so.3 */
	/* A running host engine: "host" or "host:port", or a unix socket, "unix:PATH" or a path that begins with "/". NULL: an engine
	 * inside this process. */
	const char *host;
	int64_t sample_interval_ns;
	int64_t wait_ns; /* rule 1: of one tick */
};

struct dcgm;

/* Starts the worker, which opens the engine. The texts of the options must outlive it. */
MUST_CHECK bool dcgm_new(const struct dcgm_options *o, struct dcgm **ret, struct err *err);
/* False: a call has not returned; the worker ends when it does. */
bool dcgm_close(struct dcgm *d);
void dcgm_free(struct dcgm *d); /* dcgm_close without its result */
DEFINE_OWNED(dcgm, struct dcgm)

/* Waits for the first opening. False: it failed or did not return in time. */
MUST_CHECK bool dcgm_wait_open(struct dcgm *d, int64_t patience_ns, struct err *err);

/* Begins a tick: the worker reads new values. Never waits. */
void dcgm_begin(struct dcgm *d, int64_t boot_ns);
/* Adds DCGM's values of the current tick to a GPU's reading where NVML has none or a worse one; with `prefer`, wherever DCGM has one.
 * simulated: the reading comes from a simulator; DCGM must then be one too. Waits by rule 1. */
void dcgm_add(struct dcgm *d, bool prefer, bool simulated, struct gpu_reading *r);

struct dcgm_status {
	bool up; /* the engine delivers values */
	bool simulated;
	struct err trouble; /* why values are missing; kind ERR_NONE: none are */
	struct err
		not_listed; /* names missing instances; kind ERR_NONE: none, or all are missing for the reason in trouble */
	char version[GPU_TEXT];
	int64_t connections, failures; /* of the engine */
	int64_t late;                  /* ticks whose values came too late or never */
	int64_t clamped;               /* rule 4 */
	size_t watched, refused;       /* rule 6: GPUs and instances */
	size_t unlisted;               /* rule 5: instances that NVML lists and DCGM does not */
};
void dcgm_status(struct dcgm *d, struct dcgm_status *ret);

/* A source with DCGM beside NVML: NVML lists GPUs, processes, MIG instances and the board; activity comes from the better of the two.
 * A reading is at least NVML's, whatever DCGM does. Takes ownership of the NVML source; dcgm must outlive it. prefer: see dcgm_add. */
struct gpu_source *source_auto_new(struct gpu_source *nvml, struct dcgm *dcgm, bool prefer);

#endif

/* exporter/source/dcgm/dcgm.h - activity of GPUs and MIG instances by DCGM, beside what NVML tells.
 *
 * DCGM counts on GPUs whose counters NVML does not show (Volta to Ada, with MIG on Ampere), and tells nothing of processes. So it adds
 * to a reading, and never takes from one. Rules, by number in the code:
 *  1. every call into the library, opening and closing it included, is made by one worker thread. A reading waits for it for a
 *     small part of the tick, and not at all while it is late with an earlier one
 *  2. a value counts for two ticks from the one that brought it; a value whose stamp stands still was not brought again
 *  3. blank numbers are ABSENT, whatever their status says
 *  4. a share above the whole is the whole, and is counted
 *  5. GPUs are matched by UUID, instances by NVML's ids, each for itself, and only while NVML's layout is the one for which DCGM was
 *     asked for its instances. Another layout lets the worker ask again. An instance that DCGM does not list then has no values, is
 *     counted, and is asked for again every ten seconds; the others of its GPU have theirs
 *  6. what can be watched together is watched together; a group that is refused is halved until those that fail are alone
 *  7. an engine that fails is left, and tried again after 1 s, then 2 s, up to a minute
 *  8. DCGM's power of an instance is the whole board's, so power is never asked for */
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

/* Begins to open the engine. The texts of the options must outlive it. */
MUST_CHECK bool dcgm_new(const struct dcgm_options *o, struct dcgm **ret, struct err *err);
/* False: a call is under way; nobody waits for it, and the worker ends when it returns. */
bool dcgm_close(struct dcgm *d);
void dcgm_free(struct dcgm *d); /* the same, where nobody asks */
DEFINE_OWNED(dcgm, struct dcgm)

/* Waits for the first opening. False: it failed, or has not returned in time, and err says which. */
MUST_CHECK bool dcgm_wait_open(struct dcgm *d, int64_t patience_ns, struct err *err);

/* A tick: lets the worker bring new values. Never waits. */
void dcgm_begin(struct dcgm *d, int64_t boot_ns);
/* Adds to the reading of a GPU, of the tick that was begun last, what its source does not have, or does not have as well; with `prefer`,
 * all that DCGM has. simulated: whether the reading is made up; DCGM must be of the same kind. Waits by rule 1. */
void dcgm_add(struct dcgm *d, bool prefer, bool simulated, struct gpu_reading *r);

struct dcgm_status {
	bool up; /* values can be had */
	bool simulated;
	struct err trouble;    /* kind ERR_NONE: none. Why there are no values, or not all */
	struct err not_listed; /* kind ERR_NONE: no instance is missing, or the trouble says why all are */
	char version[GPU_TEXT];
	int64_t connections, failures; /* of the engine */
	int64_t late;                  /* ticks whose values came too late, or not */
	int64_t clamped;               /* rule 4 */
	size_t watched, refused;       /* GPUs and instances, by rule 6 */
	size_t unlisted;               /* instances that NVML lists and DCGM does not, by rule 5 */
};
void dcgm_status(struct dcgm *d, struct dcgm_status *ret);

#endif

/* exporter/sampler.h - one tick: reads the GPUs, finds the holders of their processes, meters, hands closed intervals to the outbox, and
 * renders /metrics. Runs in one thread; the clocks are arguments. */
#ifndef TOLLGATE_SAMPLER_H
#define TOLLGATE_SAMPLER_H

#include "exporter/identity/alloc.h"
#include "exporter/identity/identity.h"
#include "exporter/metrics/metrics.h"
#include "exporter/delivery/outbox.h"
#include "exporter/delivery/push.h"
#include "exporter/source/reader.h"
#include "exporter/delivery/status.h"
#include "exporter/metrics/workload.h"

/* Wall time further than this from boot time plus the stream's offset is a step of the clock: a new stream begins. */
#define CLOCK_STEP_NS INT64_C(1000000000)

struct sampler_options {
	const char *node, *version;
	int64_t sample_interval_ns, interval_ns;
	int64_t read_patience_ns; /* a driver that has not answered by then is silent */
	int replicas;
	bool process_metrics;
	size_t max_process_series;
	const char *dcgm_hostname; /* see struct metrics_input */
	bool dcgm_pod_uid;
	struct dcgm *dcgm;      /* that the reader's source uses, for /metrics and the report; NULL: none */
	int64_t (*clock)(void); /* measures the steps of a tick; NULL: not shown */
	struct identity_options identity;
};

struct sampler;

/* The caller keeps and outlives the parts. push may be NULL. */
struct sampler *sampler_new(const struct sampler_options *o, struct reader *reader, struct outbox *outbox,
                            struct push *push, struct metrics *metrics, int64_t boot_ns, int64_t wall_ns);
void sampler_free(struct sampler *s);
DEFINE_OWNED(sampler, struct sampler)

/* From now on allocations of schedulers count (alloc.h). Before the first tick; waits for the kubelet's first answer for at most
 * patience_ns. */
MUST_CHECK bool sampler_use_allocations(struct sampler *s, const struct alloc_options *o, int64_t patience_ns,
                                        struct err *err);

/* From now on labels of pods count (podlabels.h). `labels` is the caller's, and outlives the sampler. */
void sampler_use_labels(struct sampler *s, struct podlabels *labels);

/* From now on CPU, memory, I/O and pressure of workloads are read (workload.h). */
MUST_CHECK bool sampler_use_workloads(struct sampler *s, const struct workload_options *o, struct err *err);

/* From now on the status message is sent (status.h), with the id of this boot of the machine. */
void sampler_use_status(struct sampler *s, struct status *status, const uint8_t boot_id[WIRE_BOOT_ID_SIZE]);

/* The outcome of a tick, for the log and /readyz. */
struct sampler_report {
	struct err reading;     /* kind ERR_NONE: the driver answered */
	struct err silent;      /* kind ERR_NONE: and so did every GPU; else the text names those that did not */
	struct err down;        /* kind ERR_NONE: no GPU is down; else the text names those that are, and why */
	struct err unnamed;     /* kind ERR_NONE: every listed GPU has a UUID; else which ones do not */
	struct err storing;     /* kind ERR_NONE: nothing waits for the disk */
	struct err dcgm;        /* kind ERR_NONE: it has every value that it should, or is not used */
	struct err dcgm_lists;  /* kind ERR_NONE: it lists every MIG instance, or is not used */
	struct err kubelet;     /* kind ERR_NONE: it answers, or there never was one */
	struct err labels;      /* kind ERR_NONE: it answers about labels, or is not asked */
	struct err job_files;   /* kind ERR_NONE: no file of the Slurm or HPC map is refused */
	int64_t clock_step_ns;  /* not 0: a new stream began */
	size_t gpus, gpus_read; /* ever listed; of these, those that answered, down or not */
	struct metrics_gpus count;
};
void sampler_tick(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret);
/* Closes the open interval and hands it over. */
void sampler_finish(struct sampler *s, int64_t wall_ns, struct sampler_report *ret);

/* The readings of the last tick; NULL before the first. */
const struct gpu_snapshot *sampler_snapshot(const struct sampler *s);

/* Ticks missed and the duration of the last one, measured by the caller; shown at the next tick. */
void sampler_missed(struct sampler *s, int64_t ticks);
void sampler_took(struct sampler *s, int64_t duration_ns);

#endif

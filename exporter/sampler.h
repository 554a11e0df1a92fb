/* exporter/sampler.h - one tick: read the GPUs, find out whose processes are on them, meter, hand over what is closed, and
 * render /metrics. Runs in one thread; the clocks are arguments. */
#ifndef TOLLGATE_EXPORTER_SAMPLER_H
#define TOLLGATE_EXPORTER_SAMPLER_H

#include "exporter/gpu_source.h"
#include "exporter/identity.h"
#include "exporter/metrics.h"
#include "exporter/outbox.h"
#include "exporter/push.h"

/* Wall time further than this from boot time plus the stream's offset is a step of the clock: a new stream begins. */
#define CLOCK_STEP_NS INT64_C(1000000000)
/* A library that failed is opened again after this. */
#define SOURCE_PAUSE_NS INT64_C(10000000000)

struct sampler_options {
	const char *node, *version;
	const char *nvml_library; /* NULL: the driver's */
	bool enable_accounting;
	int64_t sample_interval_ns, interval_ns;
	int replicas;
	bool process_metrics;
	struct identity_options identity;
};

struct sampler;

/* Uses what it is given, except the source, which it takes over. push may be NULL. */
struct sampler *sampler_new(const struct sampler_options *o, struct gpu_source *source, struct outbox *outbox,
                            struct push *push, struct metrics *metrics, int64_t boot_ns, int64_t wall_ns);
void sampler_free(struct sampler *s);
DEFINE_OWNED(sampler, struct sampler)

/* What became of a tick, for the log. */
struct sampler_report {
	struct err reading;    /* kind ERR_NONE: the GPUs were read */
	struct err storing;    /* kind ERR_NONE: nothing waits for the disk */
	int64_t clock_step_ns; /* not 0: a new stream began */
	size_t gpus;
};
void sampler_tick(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret);
/* Closes the open interval and hands it over. */
void sampler_finish(struct sampler *s, int64_t wall_ns, struct sampler_report *ret);

/* Counted by the caller, who knows the deadlines; shown at the next tick. */
void sampler_missed(struct sampler *s, int64_t ticks);
void sampler_took(struct sampler *s, int64_t duration_ns);

#endif

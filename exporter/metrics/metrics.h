/* exporter/metrics/metrics.h - /metrics: rendered once per tick, shared by every scrape until the next one.
 *
 * A scrape touches neither the driver, nor /proc, nor the disk, nor a lock that a tick holds while it works. */
#ifndef TOLLGATE_METRICS_H
#define TOLLGATE_METRICS_H

#include "common/promtext/promtext.h"
#include "exporter/identity/alloc.h"
#include "exporter/source/dcgm/dcgm.h"
#include "exporter/meter/meter.h"
#include "exporter/metrics/metrics_dcgm.h"
#include "exporter/metrics/metrics_template.h"
#include "exporter/delivery/outbox.h"
#include "exporter/delivery/push.h"
#include "exporter/delivery/status.h"
#include "exporter/metrics/workload.h"

#define METRICS_MAX (32u << 20) /* of one page */

/* A part of the last tick that may fail. */
struct metrics_step {
	const char *name; /* "gpus"; a literal */
	bool success;
	int64_t duration_ns;
};

/* GPUs of the last tick. One that is silent is listed, and neither readable nor down. */
struct metrics_gpus {
	size_t listed;   /* by the driver */
	size_t readable; /* read without an error */
	size_t down;     /* lost, in error, without a handle, or no longer listed */
};

struct metrics_input {
	const char *node, *version;
	const char *source, *driver, *library; /* source: "nvml"; the others are empty when not told */
	bool simulated;
	const struct tick *tick;                          /* NULL: nothing was read yet, or the last reading failed */
	bool process_metrics;                             /* series per process too */
	size_t max_process_series;                        /* at most so many of these; 0: any number */
	const struct meter_process_total *process_totals; /* in the tick's order, or none */
	size_t process_total_count;
	const struct meter_total *totals;
	size_t total_count;
	const struct meter_intruder *intruders;
	size_t intruder_count;
	const struct workload_row *workloads; /* what is beside their GPUs */
	size_t workload_count;
	const struct workload_stats *workload_stats; /* NULL: nobody looked */
	uint64_t stream; /* another number: the ids of the totals' holders have begun anew */
	struct meter_stats meter;
	const struct metrics_step *steps;
	size_t step_count;
	struct metrics_gpus gpus;
	size_t silent_gpus, hanging_calls;
	int64_t silent_ns;                    /* how long a GPU, or the driver, has not answered; 0: all do */
	const struct alloc_stats *alloc;      /* NULL: nobody looked */
	const struct podlabels_stats *labels; /* NULL: the kubelet is not asked for them */
	int64_t boot_ns;
	const struct dcgm_status *dcgm; /* NULL: not beside NVML */
	struct outbox_stats outbox;
	bool pushes; /* an aggregator is configured */
	struct push_stats push;
	const struct status_stats *status; /* NULL: statuses are not sent */
	const char *dcgm_hostname; /* "Hostname" or "hostname": dcgm-exporter's names too, with that label; NULL: not */
	bool dcgm_pod_uid;         /* and with the pod's UID */
	const struct dcgm_links *dcgm_links; /* filled in by metrics_publish */
	int64_t ticks, missed_ticks, failed_readings;
	int64_t tick_duration_ns;     /* of the last one */
	int64_t last_reading_wall_ns; /* -1: none yet */
};

/* A process on the page: its key, and its values. */
struct process_row {
	uint64_t thing;
	uint32_t place;
	int64_t memory_bytes, sm_ppm, active_ns;
	const struct tick_process *process;
};
struct process_rows {
	struct process_row *row;
	size_t count, cap;
	size_t dropped;  /* series of processes that are left out */
	bool without_id; /* one of their holders has none */
};

/* What is known of a page that was rendered, so that the next one can be made of it. */
struct metrics_memory {
	struct page_template template;
	struct process_rows rows;
	struct buf ground;
};
void metrics_memory_init(struct metrics_memory *m);
void metrics_memory_fini(struct metrics_memory *m);

/* Prometheus text, and the same as OpenMetrics. `page` is empty, or as it was rendered with this memory before; that changes how long it
 * takes, not what is written. */
void metrics_render(const struct metrics_input *in, struct metrics_memory *m, struct buf *page);
void metrics_openmetrics(const char *text, size_t len, struct buf *out);

struct metrics_page; /* immutable; counted references */

struct metrics; /* where the newest page is */
struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);
DEFINE_OWNED(metrics, struct metrics)

void metrics_publish(struct metrics *m, const struct metrics_input *in);
/* A reference to the newest page, or NULL before the first. */
struct metrics_page *metrics_get(struct metrics *m);
void metrics_page_release(void *arg); /* the page; as http_reply.release wants it */
/* The bytes of a page, valid while the reference is held. OpenMetrics and gzip are made when first asked for, then
 * kept. */
void metrics_page_bytes(struct metrics_page *page, enum prom_format format, bool gzip, const void **ret,
                        size_t *ret_len);

#endif

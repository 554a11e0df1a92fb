/* exporter/metrics/metrics.h - /metrics: rendered once per tick, shared by every scrape until the next one.
 *
 * A scrape touches neither the driver, nor /proc, nor the disk, nor a lock that a tick holds while it works. */
#ifndef TOLLGATE_METRICS_H
#define TOLLGATE_METRICS_H

#include "common/promtext/promtext.h"
#include "exporter/identity/alloc.h"
#include "exporter/source/dcgm/dcgm.h"
#include "exporter/meter/meter.h"
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

/* GPUs of the last tick. A silent GPU is listed, and neither readable nor down. */
struct metrics_gpus {
	size_t listed;   /* by the driver */
	size_t readable; /* read without an error */
	size_t down;     /* lost, in error, without a handle, or no longer listed */
};

/* ---- dcgm-exporter's names (metrics_dcgm.c) ---- */

/* Rates over each GPU's NVLinks: the driver has counters, dcgm-exporter shows rates. */
struct dcgm_links {
	struct dcgm_link {
		char uuid[GPU_TEXT];
		int64_t bytes, boot_ns; /* of the last tick */
		int64_t bytes_per_s;    /* ABSENT: not known */
	} gpus[GPU_MAX];
	size_t count;
};
/* Once per tick. A counter that falls gives no rate for that tick. */
void dcgm_links_update(struct dcgm_links *l, const struct tick *t);
int64_t dcgm_links_rate(const struct dcgm_links *l, const char *uuid);

/* ---- the page ---- */

struct metrics_input {
	const char *node, *version;
	const char *source, *driver, *library; /* source: "nvml"; the others are empty when not known */
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
	const struct workload_row *workloads; /* CPU, memory and I/O of the workloads */
	size_t workload_count;
	const struct workload_stats *workload_stats; /* NULL: not read */
	uint64_t stream; /* a new number means that the ids of the totals' holders start again */
	struct meter_stats meter;
	const struct metrics_step *steps;
	size_t step_count;
	struct metrics_gpus gpus;
	size_t silent_gpus, hanging_calls;
	int64_t silent_ns;                    /* how long a GPU, or the driver, has not answered; 0: all do */
	const struct alloc_stats *alloc;      /* NULL: not read */
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

/* The state kept with a rendered page, from which the next page is made (metrics_render.h). */
struct metrics_memory;
void metrics_memory_init(struct metrics_memory *m);
void metrics_memory_fini(struct metrics_memory *m);

/* Renders the page as Prometheus text. `page` is empty, or as it was last rendered with this memory; that changes only the time it
 * takes. */
void metrics_render(const struct metrics_input *in, struct metrics_memory *m, struct buf *page);
/* Converts a page to OpenMetrics. */
void metrics_openmetrics(const char *text, size_t len, struct buf *out);

struct metrics_page; /* immutable; counted references */

struct metrics; /* holds the newest page */
struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);
DEFINE_OWNED(metrics, struct metrics)

void metrics_publish(struct metrics *m, const struct metrics_input *in);
/* A reference to the newest page, or NULL before the first. */
struct metrics_page *metrics_get(struct metrics *m);
void metrics_page_release(void *arg); /* the page; as http_reply.release wants it */
/* The bytes of a page, valid while the reference is held. OpenMetrics and gzip are made at the first request and
 * kept. */
void metrics_page_bytes(struct metrics_page *page, enum prom_format format, bool gzip, const void **ret,
                        size_t *ret_len);

#endif

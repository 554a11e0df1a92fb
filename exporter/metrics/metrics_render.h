/* exporter/metrics/metrics_render.h - how the parts of /metrics are written: every sample is either a number for the template, as long as that
 * fits, or a line written in full. For the metrics_*.c files. */
#ifndef TOLLGATE_METRICS_RENDER_H
#define TOLLGATE_METRICS_RENDER_H

#include "exporter/metrics/metrics.h"
#include "exporter/metrics/metrics_labels.h"

struct render {
	const struct metrics_input *in;
	struct prom p;
	size_t gpu_count;
	struct process_rows *rows;
	struct family {
		const char *name;
		enum prom_type type;
		const char *help;
	} family;
	bool in_full, fits;
	struct template_cursor cursor;
	/* for a page that is written in full */
	struct label_sets gpus, instances, processes; /* in the order of the tick, and of the rows */
	bool family_open;                             /* its head is written: it has a sample */
	uint64_t thing;
	uint32_t place;
	int64_t value;
	struct template_recorder recorder;
};

/* A family without a sample leaves nothing on the page. */
void render_family(struct render *r, const char *name, enum prom_type type, const char *help);

/* Opens a sample that is to be written in full. */
void render_open(struct render *r, uint64_t thing, uint32_t place, int64_t value);
void render_close(struct render *r);

/* Every sample begins here: true when it is to be written in full, and then render_close follows. What the labels depend on, beside
 * the family and the ground (see make_ground), is in thing and place. */
static inline bool
render_sample(struct render *r, uint64_t thing, uint32_t place, int64_t value, int decimals)
{
	if (r->in_full) {
		render_open(r, thing, place, value);
		return true;
	}
	if (r->fits)
		r->fits = template_number(&r->cursor, thing, place, value, decimals);
	return false;
}

/* A family with one sample without labels. */
void render_single(struct render *r, const char *name, enum prom_type type, const char *help, int64_t value,
                   int decimals);
/* The rest of a sample that has the labels of a GPU and more. */
void render_gpu_line(struct render *r, size_t gpu, const struct prom_set *more, int64_t value, int decimals);

static inline const struct gpu_reading *
render_reading(const struct render *r, size_t gpu)
{
	return r->in->tick->gpus[gpu].reading;
}

/* A driver's value in a smaller unit; one that is too large for that is none. */
static inline int64_t
render_times(int64_t value, int64_t times)
{
	return value < 0 || value > INT64_MAX / times ? ABSENT : value * times;
}

/* The parts. */
void render_gpus(struct render *r);
void render_processes(struct render *r);
void render_workloads(struct render *r);
void render_workload_cgroups(struct render *r);
void render_exporter(struct render *r);
void render_source_kinds(struct render *r); /* more of tollgate_exporter_source_info */
void render_dcgm_state(struct render *r);
void render_dcgm(struct render *r);

/* The processes that are shown, found once per page. */
void process_rows_fill(struct render *r);
void process_rows_labels(struct render *r);

#endif

/* exporter/metrics/metrics_render.h - inside /metrics: the page template, label sets, and how the metrics_*.c files write samples.
 *
 * From tick to tick mostly numbers change. As long as the same samples follow each other, a page is made from the one before the last by
 * overwriting the numbers that changed; numbers have all their decimals, so that they seldom change in length. Each sample has a key
 * that its labels depend on; `fixed` holds all other inputs of the text. A sample with another key, or another `fixed`, and the page is
 * written in full, which makes a new template.
 *
 * Measured (make bench T=render, 10,000 series, instructions under callgrind): 137 per series with the template, 982 written in full:
 * without the template a page would cost 7 times as much. */
#ifndef TOLLGATE_METRICS_RENDER_H
#define TOLLGATE_METRICS_RENDER_H

#include "exporter/metrics/metrics.h"

/* ---- the template ---- */

/* A sample of the template: its key within its family, and its number. */
struct template_sample {
	uint64_t id; /* id and part: the key */
	uint32_t part;
	uint32_t number_at, number_len; /* on the page */
	int64_t value;
};

/* The page is prefetched so many samples ahead: it is larger than the cache, and the numbers lie apart. */
#define TEMPLATE_AHEAD 12

/* Samples of one family that follow each other. */
struct template_family {
	const char *name; /* the same pointer, not an equal text */
	size_t end;       /* after its last sample */
};

struct page_template {
	struct buf fixed;
	struct template_sample *samples; /* with room for TEMPLATE_AHEAD more */
	size_t count, cap;
	struct template_family *families; /* those with samples */
	size_t family_count, family_cap;
	bool whole; /* the page was written to its end */
	int shifts; /* numbers of the current page that changed in length */
};

void page_template_init(struct page_template *t);
void page_template_fini(struct page_template *t);

/* Updating a page: begin, each family and its samples, end. False: it does not fit; page and template are then invalid and must be
 * written in full. */
struct template_cursor {
	struct page_template *t;
	struct template_sample *sample, *family_end; /* the next one; after the last of this family */
	const struct template_family *family;        /* the next one */
	struct buf *page;
	char *text; /* its bytes */
};
bool template_begin(struct template_cursor *c, struct page_template *t, const struct buf *fixed, struct buf *page);
bool template_family(struct template_cursor *c, const char *name);
bool template_end(const struct template_cursor *c);

bool template_change(struct page_template *t, struct buf *page, struct template_sample *sample, int64_t value,
                     int decimals);

/* Inline, because it is all the work for most samples. Loops over thousands of them keep the cursor in a local variable, and so in
 * registers. */
static inline bool
template_number(struct template_cursor *c, uint64_t id, uint32_t part, int64_t value, int decimals)
{
	struct template_sample *sample = c->sample;

	if (sample == c->family_end || sample->id != id || sample->part != part)
		return false;
	c->sample = sample + 1;
	__builtin_prefetch(c->text + sample[TEMPLATE_AHEAD].number_at, 1);
	return sample->value == value || template_change(c->t, c->page, sample, value, decimals);
}

/* Recording a template while a page is written in full: begin, each family, after each sample its key and number, end. */
struct template_recorder {
	struct page_template *t;
	const char *family;
};
void template_record(struct template_recorder *r, struct page_template *t, const struct buf *fixed);
void template_record_family(struct template_recorder *r, const char *name);
void template_record_sample(struct template_recorder *r, uint64_t id, uint32_t part, int64_t value,
                            const struct prom *p);
void template_record_end(struct template_recorder *r, const struct buf *page);

/* ---- label sets: rendered once per page as prom_set_label writes them, copied into every sample that has them ---- */

struct label_sets {
	struct buf bytes; /* one after the other */
	struct label_span {
		size_t at, len;
	} * spans;
	size_t count, cap;
};

void label_sets_init(struct label_sets *l);
void label_sets_fini(struct label_sets *l);
/* Ends the set that was written into bytes since the last one. */
void label_sets_end(struct label_sets *l);
struct prom_set label_sets_get(const struct label_sets *l, size_t i);

void label_number(struct buf *set, const char *name, int64_t value);
void label_gpu(struct buf *set, const char *node, int64_t index, const char *uuid, const char *model);
void label_instance(struct buf *set, const char *uuid, int32_t gi, int32_t ci, const char *profile);
void label_holder(struct buf *set, const struct wire_holder *h);

/* ---- rendering ---- */

/* A process on the page: the key of its samples, and its values. */
struct process_row {
	uint64_t id;
	uint32_t part;
	int64_t memory_bytes, sm_ppm, active_ns;
	const struct tick_process *process;
};
struct process_rows {
	struct process_row *row;
	size_t count, cap;
	size_t dropped;  /* series of processes that are left out */
	bool without_id; /* one of their holders has none */
};

/* The state kept with a rendered page, from which the next page is made. */
struct metrics_memory {
	struct page_template template;
	struct process_rows rows;
	struct buf fixed;
};

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
	/* only for a page that is written in full */
	struct label_sets gpus, instances, processes; /* in the order of the tick, and of the rows */
	bool family_open;                             /* its head is written: it has a sample */
	uint64_t id;
	uint32_t part;
	int64_t value;
	struct template_recorder recorder;
};

/* A family without a sample leaves nothing on the page. */
void render_family(struct render *r, const char *name, enum prom_type type, const char *help);

/* Begins a sample that is written in full. */
void render_open(struct render *r, uint64_t id, uint32_t part, int64_t value);
void render_close(struct render *r);

/* Every sample begins here: true when it must be written in full, and then render_close follows. The key (id, part) must determine the
 * labels, together with the family and the fixed inputs (collect_fixed). */
static inline bool
render_sample(struct render *r, uint64_t id, uint32_t part, int64_t value, int decimals)
{
	if (r->in_full) {
		render_open(r, id, part, value);
		return true;
	}
	if (r->fits)
		r->fits = template_number(&r->cursor, id, part, value, decimals);
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

/* A driver's value in a smaller unit; ABSENT when it is too large for that. */
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
void render_dcgm_counters(struct render *r);
void render_dcgm(struct render *r);

/* The processes that are shown, found once per page. */
void process_rows_fill(struct render *r);
void process_rows_labels(struct render *r);

#endif

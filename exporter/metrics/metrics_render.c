/* exporter/metrics/metrics_render.c - one page of /metrics: made of an earlier one where that fits, otherwise in full. */
#include "exporter/metrics/metrics_render.h"

#include <string.h>

void
metrics_memory_init(struct metrics_memory *m)
{
	page_template_init(&m->template);
	m->rows = (struct process_rows){0};
	buf_init(&m->ground, METRICS_MAX);
}

void
metrics_memory_fini(struct metrics_memory *m)
{
	page_template_fini(&m->template);
	mem_free(m->rows.row);
	buf_fini(&m->ground);
}

/* ---- samples ---- */

void
render_family(struct render *r, const char *name, enum prom_type type, const char *help)
{
	r->family = (struct family){name, type, help};
	r->family_open = false;
	if (!r->in_full)
		r->fits = r->fits && template_family(&r->cursor, name);
}

void
render_open(struct render *r, uint64_t thing, uint32_t place, int64_t value)
{
	if (!r->family_open) {
		prom_family(&r->p, r->family.name, r->family.type, r->family.help);
		template_record_family(&r->recorder, r->family.name);
		r->family_open = true;
	}
	r->thing = thing;
	r->place = place;
	r->value = value;
}

void
render_close(struct render *r)
{
	template_record_sample(&r->recorder, r->thing, r->place, r->value, &r->p);
}

void
render_single(struct render *r, const char *name, enum prom_type type, const char *help, int64_t value, int decimals)
{
	render_family(r, name, type, help);
	if (!render_sample(r, 0, 0, value, decimals))
		return;
	prom_begin(&r->p);
	prom_fixed(&r->p, value, decimals);
	render_close(r);
}

void
render_gpu_line(struct render *r, size_t gpu, const struct prom_set *more, int64_t value, int decimals)
{
	struct prom_set sets[2] = {label_sets_get(&r->gpus, gpu)};

	if (more)
		sets[1] = *more;
	prom_sample(&r->p, sets, more ? 2 : 1, value, decimals);
	render_close(r);
}

/* ---- the page ---- */

static void
make_sets(struct render *r)
{
	label_sets_init(&r->gpus);
	label_sets_init(&r->instances);
	label_sets_init(&r->processes);
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);

		label_gpu(&r->gpus.bytes, r->in->node, g->index, g->uuid, g->model);
		label_sets_end(&r->gpus);
		for (size_t k = 0; k < g->instance_count; k++) {
			const struct gpu_instance *in = &g->instances[k];

			label_instance(&r->instances.bytes, in->uuid, in->gi, in->ci, in->profile);
			label_sets_end(&r->instances);
		}
	}
}

static void
free_sets(struct render *r)
{
	label_sets_fini(&r->gpus);
	label_sets_fini(&r->instances);
	label_sets_fini(&r->processes);
}

static void
ground_text(struct buf *ground, const char *text)
{
	buf_add(ground, text, strlen(text) + 1);
}

static void
ground_number(struct buf *ground, int64_t n)
{
	buf_add(ground, &n, sizeof(n));
}

/* All that the text of a page depends on, but for which samples it has and for what their keys say. */
static void
make_ground(const struct render *r, struct buf *ground)
{
	const struct metrics_input *in = r->in;

	buf_clear(ground);
	ground_text(ground, in->node);
	ground_text(ground, in->version);
	ground_text(ground, in->source);
	ground_text(ground, in->driver);
	ground_text(ground, in->library);
	ground_text(ground, in->dcgm_hostname ? in->dcgm_hostname : "");
	ground_number(ground, in->dcgm_pod_uid);
	ground_number(ground, (int64_t)in->stream);
	ground_number(ground, in->simulated);
	ground_number(ground, (int64_t)r->gpu_count);
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);

		ground_text(ground, g->uuid);
		ground_text(ground, g->model);
		ground_text(ground, g->pci);
		ground_number(ground, (int64_t)g->index << 1 | g->mig);
		ground_number(ground, (int64_t)g->instance_count);
		for (size_t k = 0; k < g->instance_count; k++) {
			ground_text(ground, g->instances[k].uuid);
			ground_text(ground, g->instances[k].profile);
			ground_number(ground, (int64_t)g->instances[k].gi << 32 | (uint32_t)g->instances[k].ci);
		}
	}
}

static void
render_page(struct render *r)
{
	if (r->in->tick) {
		render_gpus(r);
		render_processes(r);
	}
	render_workloads(r);
	render_workload_cgroups(r);
	render_exporter(r);
	if (r->in->tick && r->in->dcgm_hostname)
		render_dcgm(r);
}

static bool
render_with_template(struct render *r, struct metrics_memory *m)
{
	r->fits = template_begin(&r->cursor, &m->template, &m->ground, r->p.out);
	if (r->fits)
		render_page(r);
	return r->fits && template_end(&r->cursor);
}

static void
render_in_full(struct render *r, struct metrics_memory *m)
{
	r->in_full = true;
	buf_clear(r->p.out);
	make_sets(r);
	process_rows_labels(r);
	template_record(&r->recorder, &m->template, &m->ground);
	render_page(r);
	template_record_end(&r->recorder, r->p.out);
	free_sets(r);
}

void
metrics_render(const struct metrics_input *in, struct metrics_memory *m, struct buf *page)
{
	struct render r = {.in = in, .gpu_count = in->tick ? in->tick->gpu_count : 0, .rows = &m->rows};

	prom_init(&r.p, page, PROM_TEXT);
	make_ground(&r, &m->ground);
	process_rows_fill(&r);
	if (page->len == 0 || !render_with_template(&r, m))
		render_in_full(&r, m);
}

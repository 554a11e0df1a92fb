/* exporter/metrics/metrics_render.c - renders one page of /metrics: from an earlier page with the template, otherwise in full. */
#include "exporter/metrics/metrics_render.h"

#include <string.h>

#include "common/base/units.h"

#define FIXED_MAX (32u << 20)
#define LABELS_MAX (32u << 20)
/* Numbers that change in length move the rest of the page; with more of them writing it in full is faster. */
#define SHIFTS_MAX 16

/* ---- the template ---- */

void
page_template_init(struct page_template *t)
{
	*t = (struct page_template){0};
	buf_init(&t->fixed, FIXED_MAX);
}

void
page_template_fini(struct page_template *t)
{
	buf_fini(&t->fixed);
	mem_free(t->samples);
	mem_free(t->families);
}

bool
template_begin(struct template_cursor *c, struct page_template *t, const struct buf *fixed, struct buf *page)
{
	if (!t->whole || fixed->over || t->fixed.len != fixed->len ||
	    memcmp(buf_text(&t->fixed), buf_text(fixed), fixed->len) != 0)
		return false;
	*c = (struct template_cursor){
		.t = t, .sample = t->samples, .family_end = t->samples, .family = t->families, .page = page};
	if (!buf_reserve(page, (size_t)SHIFTS_MAX * PROM_NUMBER_SIZE))
		return false;
	c->text = page->data;
	t->shifts = 0;
	return true;
}

bool
template_family(struct template_cursor *c, const char *name)
{
	const struct page_template *t = c->t;

	if (c->sample != c->family_end)
		return false;
	if (c->family != t->families + t->family_count && c->family->name == name)
		c->family_end = t->samples + (c->family++)->end;
	return true;
}

/* Replaces a number by one of another length. */
static bool
shift(struct page_template *t, struct buf *page, struct template_sample *sample, int64_t value, int decimals)
{
	size_t end = sample->number_at + sample->number_len, rest = page->len - end;
	char number[PROM_NUMBER_SIZE];
	uint32_t len = (uint32_t)prom_write_fixed(number, value, decimals);

	if (t->shifts++ == SHIFTS_MAX)
		return false;
	memmove(page->data + sample->number_at + len, page->data + end, rest);
	memcpy(page->data + sample->number_at, number, len);
	page->len = sample->number_at + len + rest;
	page->data[page->len] = '\0';
	for (struct template_sample *p = sample + 1; p != t->samples + t->count; p++)
		p->number_at = p->number_at - sample->number_len + len;
	sample->number_len = len;
	return true;
}

bool
template_change(struct page_template *t, struct buf *page, struct template_sample *sample, int64_t value, int decimals)
{
	int64_t old = sample->value;

	sample->value = value;
	return prom_overwrite_fixed(page->data + sample->number_at, sample->number_len, old, value, decimals) ||
	       shift(t, page, sample, value, decimals);
}

bool
template_end(const struct template_cursor *c)
{
	return c->sample == c->t->samples + c->t->count;
}

void
template_record(struct template_recorder *r, struct page_template *t, const struct buf *fixed)
{
	*r = (struct template_recorder){.t = t};
	t->count = t->family_count = 0;
	t->whole = false;
	buf_clear(&t->fixed);
	buf_add(&t->fixed, buf_text(fixed), fixed->len);
}

void
template_record_family(struct template_recorder *r, const char *name)
{
	r->family = name;
}

void
template_record_sample(struct template_recorder *r, uint64_t id, uint32_t part, int64_t value, const struct prom *p)
{
	struct page_template *t = r->t;

	if (p->out->over)
		return;
	if (t->count + TEMPLATE_AHEAD >= t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;

		t->samples = mem_grow(t->samples, cap, sizeof(*t->samples));
		memset(t->samples + t->cap, 0, (cap - t->cap) * sizeof(*t->samples));
		t->cap = cap;
	}
	t->samples[t->count++] = (struct template_sample){.id = id,
	                                                  .part = part,
	                                                  .number_at = (uint32_t)p->number_at,
	                                                  .number_len = (uint32_t)p->number_len,
	                                                  .value = value};
	if (t->family_count == 0 || t->families[t->family_count - 1].name != r->family) {
		array_room(t->families, t->family_count, t->family_cap);
		t->families[t->family_count++].name = r->family;
	}
	t->families[t->family_count - 1].end = t->count;
}

void
template_record_end(struct template_recorder *r, const struct buf *page)
{
	r->t->whole = !page->over && !r->t->fixed.over;
}

/* ---- label sets ---- */

void
label_sets_init(struct label_sets *l)
{
	*l = (struct label_sets){0};
	buf_init(&l->bytes, LABELS_MAX);
}

void
label_sets_fini(struct label_sets *l)
{
	buf_fini(&l->bytes);
	mem_free(l->spans);
	*l = (struct label_sets){0};
}

void
label_sets_end(struct label_sets *l)
{
	size_t at = l->count ? l->spans[l->count - 1].at + l->spans[l->count - 1].len : 0;

	array_room(l->spans, l->count, l->cap);
	l->spans[l->count++] = (struct label_span){.at = at, .len = l->bytes.len - at};
}

struct prom_set
label_sets_get(const struct label_sets *l, size_t i)
{
	const struct label_span *span = &l->spans[i];

	return (struct prom_set){.text = buf_text(&l->bytes) + span->at, .len = span->len};
}

void
label_number(struct buf *set, const char *name, int64_t value)
{
	char text[24], *at = text + sizeof(text) - 1;
	uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

	*at = '\0';
	do {
		*--at = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	if (value < 0)
		*--at = '-';
	prom_set_label(set, name, at);
}

void
label_gpu(struct buf *set, const char *node, int64_t index, const char *uuid, const char *model)
{
	char name[GPU_TEXT];

	gpu_model_short(model, name, sizeof(name));
	label_number(set, "gpu", index);
	prom_set_label(set, "uuid", uuid);
	prom_set_label(set, "gpu_model", name);
	prom_set_label(set, "node", node);
}

void
label_instance(struct buf *set, const char *uuid, int32_t gi, int32_t ci, const char *profile)
{
	prom_set_label(set, "mig_uuid", uuid);
	label_number(set, "gi", gi);
	label_number(set, "ci", ci);
	prom_set_label(set, "profile", profile);
}

void
label_holder(struct buf *set, const struct wire_holder *h)
{
	prom_set_label(set, "kind", wire_holder_kind_name(h->kind));
	prom_set_label(set, "namespace", h->ns);
	prom_set_label(set, "pod", h->pod);
	prom_set_label(set, "container", h->container);
	prom_set_label(set, "slurm_job", h->slurm_job);
	prom_set_label(set, "user", h->user);
	/* a pod without name is known by its UID only */
	if (h->kind == WIRE_POD && !h->pod[0])
		prom_set_label(set, "pod_uid", h->pod_uid);
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
render_open(struct render *r, uint64_t id, uint32_t part, int64_t value)
{
	if (!r->family_open) {
		prom_family(&r->p, r->family.name, r->family.type, r->family.help);
		template_record_family(&r->recorder, r->family.name);
		r->family_open = true;
	}
	r->id = id;
	r->part = part;
	r->value = value;
}

void
render_close(struct render *r)
{
	template_record_sample(&r->recorder, r->id, r->part, r->value, &r->p);
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

void
metrics_memory_init(struct metrics_memory *m)
{
	page_template_init(&m->template);
	m->rows = (struct process_rows){0};
	buf_init(&m->fixed, METRICS_MAX);
}

void
metrics_memory_fini(struct metrics_memory *m)
{
	page_template_fini(&m->template);
	mem_free(m->rows.row);
	buf_fini(&m->fixed);
}

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
add_text(struct buf *fixed, const char *text)
{
	buf_add(fixed, text, strlen(text) + 1);
}

static void
add_number(struct buf *fixed, int64_t n)
{
	buf_add(fixed, &n, sizeof(n));
}

/* All inputs of the text of a page that are not in the keys of its samples. */
static void
collect_fixed(const struct render *r, struct buf *fixed)
{
	const struct metrics_input *in = r->in;

	buf_clear(fixed);
	add_text(fixed, in->node);
	add_text(fixed, in->version);
	add_text(fixed, in->source);
	add_text(fixed, in->driver);
	add_text(fixed, in->library);
	add_text(fixed, in->dcgm_hostname ? in->dcgm_hostname : "");
	add_number(fixed, in->dcgm_pod_uid);
	add_number(fixed, (int64_t)in->stream);
	add_number(fixed, in->simulated);
	add_number(fixed, (int64_t)r->gpu_count);
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);

		add_text(fixed, g->uuid);
		add_text(fixed, g->model);
		add_text(fixed, g->pci);
		add_number(fixed, (int64_t)g->index << 1 | g->mig);
		add_number(fixed, (int64_t)g->instance_count);
		for (size_t k = 0; k < g->instance_count; k++) {
			add_text(fixed, g->instances[k].uuid);
			add_text(fixed, g->instances[k].profile);
			add_number(fixed, (int64_t)g->instances[k].gi << 32 | (uint32_t)g->instances[k].ci);
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
	r->fits = template_begin(&r->cursor, &m->template, &m->fixed, r->p.out);
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
	template_record(&r->recorder, &m->template, &m->fixed);
	render_page(r);
	template_record_end(&r->recorder, r->p.out);
	free_sets(r);
}

void
metrics_render(const struct metrics_input *in, struct metrics_memory *m, struct buf *page)
{
	struct render r = {.in = in, .gpu_count = in->tick ? in->tick->gpu_count : 0, .rows = &m->rows};

	prom_init(&r.p, page, PROM_TEXT);
	collect_fixed(&r, &m->fixed);
	process_rows_fill(&r);
	if (page->len == 0 || !render_with_template(&r, m))
		render_in_full(&r, m);
}

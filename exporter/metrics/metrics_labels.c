/* exporter/metrics/metrics_labels.c - label sets of /metrics. */
#include "exporter/metrics/metrics_labels.h"

#include "common/base/units.h"
#include "exporter/source/gpu_source.h"

#define LABELS_MAX (32u << 20)

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

	if (l->count == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 16;
		l->spans = mem_grow(l->spans, l->cap, sizeof(*l->spans));
	}
	l->spans[l->count++] = (struct label_span){.at = at, .len = l->bytes.len - at};
}

struct prom_set
label_sets_get(const struct label_sets *l, size_t i)
{
	const struct label_span *span = &l->spans[i];

	return (struct prom_set){.text = buf_text(&l->bytes) + span->at, .len = span->len};
}

/* snprintf takes longer than all the rest of a sample. */
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

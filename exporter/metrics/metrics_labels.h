/* exporter/metrics/metrics_labels.h - label sets of /metrics, rendered once per page and copied into every sample that has them.
 * A set's bytes are as prom_set_label writes them. */
#ifndef TOLLGATE_METRICS_LABELS_H
#define TOLLGATE_METRICS_LABELS_H

#include "common/promtext/promtext.h"
#include "common/wire/wire.h"

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

#endif

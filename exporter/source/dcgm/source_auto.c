/* exporter/source/dcgm/source_auto.c - the source that combines NVML and DCGM. */
#include "exporter/source/dcgm/dcgm.h"

struct source_auto {
	struct gpu_source base;
	struct gpu_source *nvml;
	struct dcgm *dcgm;
	bool prefer;
};

static const struct gpu_source *
nvml_of(const struct gpu_source *base)
{
	return ((const struct source_auto *)base)->nvml;
}

static const char *
driver_version(const struct gpu_source *base)
{
	return nvml_of(base)->ops->driver_version(nvml_of(base));
}

static const char *
library_version(const struct gpu_source *base)
{
	return nvml_of(base)->ops->library_version(nvml_of(base));
}

static bool
is_simulated(const struct gpu_source *base)
{
	return nvml_of(base)->ops->simulated(nvml_of(base));
}

/* DCGM begins to read when the GPUs are listed; dcgm_add waits for it when one of them has been read. */
static bool
list(struct gpu_source *base, int64_t boot_ns, struct gpu_snapshot *into, struct err *err)
{
	struct source_auto *s = (struct source_auto *)base;

	dcgm_begin(s->dcgm, boot_ns);
	return s->nvml->ops->list(s->nvml, boot_ns, into, err);
}

static void
read(struct gpu_source *base, size_t place, struct gpu_reading *r)
{
	struct source_auto *s = (struct source_auto *)base;

	s->nvml->ops->read(s->nvml, place, r);
	dcgm_add(s->dcgm, s->prefer, is_simulated(base), r);
}

static void
close_both(struct gpu_source *base)
{
	struct source_auto *s = (struct source_auto *)base;

	gpu_source_free(s->nvml);
	mem_free(s);
}

/* Named after the source that is required. */
static const struct gpu_source_ops ops = {
	.name = "nvml",
	.driver_version = driver_version,
	.library_version = library_version,
	.simulated = is_simulated,
	.list = list,
	.read = read,
	.close = close_both,
};

struct gpu_source *
source_auto_new(struct gpu_source *nvml, struct dcgm *dcgm, bool prefer)
{
	struct source_auto *s = mem_alloc(sizeof(*s));

	*s = (struct source_auto){.base = {.ops = &ops}, .nvml = nvml, .dcgm = dcgm, .prefer = prefer};
	return &s->base;
}

/* exporter/source/nvml/nvml_gpm.c - activity from the GPM counters of Hopper and later, for GPUs and MIG instances. The rules are in
 * nvml_source.h.
 *
 * A value is computed from two samples, so each measured device keeps the sample of its previous reading. */
#include "exporter/source/nvml/nvml_source.h"

#include <string.h>

#include "common/base/time.h"

/* The driver's counters are refreshed every 100 ms. */
#define GPM_LEAST_NS (100 * NS_PER_MS)
/* The driver's struct has grown under one version number, from 3944 bytes to 13344. */
#define GPM_ROOM 65536
#define MIB 1048576

static bool
is_supported(struct nvml_reading *n)
{
	struct nvml_gpm_support support = {.version = NVML_GPM_VERSION};
	int status;

	if (n->gpu->gpm_metrics)
		return true;
	if (nvml_is_unsupported(n, ASK_GPM_SUPPORT))
		return false;
	status = NVML_CALL(n->s, nvmlGpmQueryDeviceSupport, n->device, &support);
	if (status == NVST_SUCCESS && support.supported == 0)
		status = NVST_NOT_SUPPORTED;
	if (nvml_has(n, nvml_note(n, ASK_GPM_SUPPORT, status)))
		n->gpu->gpm_metrics = mem_alloc(GPM_ROOM);
	return n->gpu->gpm_metrics != NULL;
}

static void
forget(struct gpm_pair *p)
{
	p->begun = false;
	for (size_t i = 0; i < GPM_VALUES; i++)
		p->values[i] = ABSENT;
}

/* Rule 11. After a fault of the whole GPU or the library the second way is not tried. */
static bool
sample_instance(struct nvml_reading *n, int32_t gi, struct nvml_device *mig, struct nvml_gpm_sample *to,
                bool *ret_by_handle)
{
	*ret_by_handle = false;
	if (nvml_has(n, NVML_ASK(n, ASK_GPM_MIG, nvmlGpmMigSampleGet, n->device, (uint32_t)gi, to)))
		return true;
	if (n->fault != NVST_SUCCESS || !mig)
		return false;
	*ret_by_handle = true;
	return nvml_has(n, NVML_ASK(n, ASK_GPM_MIG_HANDLE, nvmlGpmSampleGet, mig, to));
}

static bool
take_sample(struct nvml_reading *n, struct gpm_pair *p, int32_t gi, struct nvml_device *mig, bool *ret_by_handle)
{
	struct nvml_gpm_sample **to = &p->samples[p->newest ^ 1];

	*ret_by_handle = false;

	if (!*to && !nvml_has(n, NVML_CALL(n->s, nvmlGpmSampleAlloc, to))) {
		*to = NULL;
		return false;
	}
	if (gi >= 0)
		return sample_instance(n, gi, mig, *to, ret_by_handle);
	return nvml_has(n, NVML_ASK(n, ASK_GPM, nvmlGpmSampleGet, n->device, *to));
}

/* Rule 5 for a share of time: rounding may exceed 100 % slightly, anything more is noise. */
static int64_t
share(double percent)
{
	if (!(percent >= 0 && percent < 101))
		return ABSENT;
	return percent > 100 ? 1000000 : (int64_t)(percent * 10000 + 0.5);
}

static int64_t
mib_per_s(double value)
{
	return value >= 0 && value < 1e9 ? (int64_t)(value * MIB + 0.5) : ABSENT;
}

static void
compute(struct nvml_reading *n, struct gpm_pair *p)
{
	static const uint32_t ids[GPM_VALUES] = {
		[GPM_ENGINE] = NVML_GPM_ENGINE,   [GPM_SM] = NVML_GPM_SM,     [GPM_OCCUPANCY] = NVML_GPM_OCCUPANCY,
		[GPM_TENSOR] = NVML_GPM_TENSOR,   [GPM_DRAM] = NVML_GPM_DRAM, [GPM_PCIE_TX] = NVML_GPM_PCIE_TX,
		[GPM_PCIE_RX] = NVML_GPM_PCIE_RX,
	};
	struct nvml_gpm_metrics *m = n->gpu->gpm_metrics;

	m->version = NVML_GPM_VERSION;
	m->count = GPM_VALUES;
	m->from = p->samples[p->newest];
	m->to = p->samples[p->newest ^ 1];
	for (size_t i = 0; i < GPM_VALUES; i++)
		m->metrics[i] = (struct nvml_gpm_metric){.id = ids[i], .status = NVST_UNKNOWN};
	if (!nvml_has(n, NVML_CALL(n->s, nvmlGpmMetricsGet, m)))
		return;
	for (size_t i = 0; i < GPM_VALUES; i++) {
		if (m->metrics[i].status != NVST_SUCCESS)
			continue;
		p->values[i] = i == GPM_PCIE_TX || i == GPM_PCIE_RX ? mib_per_s(m->metrics[i].value)
		                                                    : share(m->metrics[i].value);
	}
}

bool
nvml_read_gpm(struct nvml_reading *n, struct gpm_pair *p, int32_t gi, struct nvml_device *mig)
{
	bool begun = p->begun, by_handle;

	if (!is_supported(n))
		return false;
	if (begun && n->boot_ns - p->boot_ns < GPM_LEAST_NS && n->boot_ns >= p->boot_ns)
		return true;
	forget(p);
	if (!take_sample(n, p, gi, mig, &by_handle))
		return false;
	if (begun && by_handle == p->by_handle)
		compute(n, p);
	p->by_handle = by_handle;
	p->newest ^= 1;
	p->begun = true;
	p->boot_ns = n->boot_ns;
	return true;
}

void
nvml_free_gpm(const struct nvml_source *s, struct known_gpu *g)
{
	struct gpm_pair *pairs[GPU_INSTANCE_MAX + 1] = {&g->gpm_whole};

	for (size_t i = 0; i < GPU_INSTANCE_MAX; i++)
		pairs[i + 1] = &g->slots[i].gpm;
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
		for (size_t k = 0; k < 2; k++)
			if (pairs[i]->samples[k])
				(void)NVML_CALL(s, nvmlGpmSampleFree, pairs[i]->samples[k]);
	mem_free(g->gpm_metrics);
}

/* tests/support/nvmlsim/nvmlsim_gpm.c - GPM, of Hopper and later: activity of a GPU or an instance between two samples.
 *
 * The driver's struct has grown under one version number, and the driver fills all of it: `gpm_metrics` of the scenario says how
 * many entries that are. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <stdio.h>
#include <string.h>

#define PERCENT_PPM 10000.0
#define MIB 1048576.0
#define PCIE_BYTES_PER_PPM 4096 /* so that a busy GPU moves 4 GB each second */

struct nvml_gpm_sample {
	bool taken;
	size_t gpu;
	char uuid[SIM_TEXT]; /* of the GPU or the instance: another one under the same ids is not the same */
	int gi, ci;          /* -1: the GPU */
	int64_t t_ns;
	int128 active_ppm_ns;
};

int
nvmlGpmQueryDeviceSupport(struct nvml_device *device, struct nvml_gpm_support *support)
{
	ENTER_DEVICE(device, support);
	if (support->version != NVML_GPM_VERSION)
		return NVST_ARGUMENT_VERSION_MISMATCH;
	support->supported = on.gpu->gpm;
	return NVST_SUCCESS;
}

int
nvmlGpmSampleAlloc(struct nvml_gpm_sample **sample)
{
	ENTER();
	if (!sample)
		return NVST_INVALID_ARGUMENT;
	*sample = mem_alloc(sizeof(**sample));
	return NVST_SUCCESS;
}

int
nvmlGpmSampleFree(struct nvml_gpm_sample *sample)
{
	if (!sample)
		return NVST_INVALID_ARGUMENT;
	mem_free(sample);
	return NVST_SUCCESS;
}

/* The activity of a GPU instance is that of its compute instances by their slices. */
static int128
gi_active_ppm_ns(const struct target *on, uint32_t gi)
{
	int128 sum = 0;
	int slices = 1;

	for (size_t i = 0; i < on->layout->count; i++) {
		const struct sim_instance *in = &on->layout->instances[i];

		if (in->gi != gi)
			continue;
		sum += world_instance_ppm_ns(sim.world, on->index, i) * in->slices.compute;
		slices = in->slices.gi_compute;
	}
	return sum / slices;
}

static void
take_sample(const struct target *on, const struct sim_instance *in, int128 active_ppm_ns,
            struct nvml_gpm_sample *sample)
{
	*sample = (struct nvml_gpm_sample){.taken = true, .gpu = on->index, .gi = -1, .ci = -1, .t_ns = sim.now_ns};
	snprintf(sample->uuid, sizeof(sample->uuid), "%s", in ? in->uuid : on->gpu->uuid);
	if (in) {
		sample->gi = (int)in->gi;
		sample->ci = (int)in->ci;
	}
	sample->active_ppm_ns = active_ppm_ns;
}

int
nvmlGpmSampleGet(struct nvml_device *device, struct nvml_gpm_sample *sample)
{
	int128 active;

	ENTER_DEVICE(device, sample);
	if (!on.gpu->gpm)
		return NVST_NOT_SUPPORTED;
	active = on.instance ? world_instance_ppm_ns(sim.world, on.index, (size_t)(on.instance - on.layout->instances))
	                     : world_active_ppm_ns(sim.world, on.index);
	take_sample(&on, on.instance, active, sample);
	return NVST_SUCCESS;
}

int
nvmlGpmMigSampleGet(struct nvml_device *device, uint32_t gi, struct nvml_gpm_sample *sample)
{
	const struct sim_instance *in = NULL;

	ENTER_BOARD(device, sample);
	if (!on.gpu->gpm || !on.layout->mig)
		return NVST_NOT_SUPPORTED;
	for (size_t i = on.layout->count; i-- > 0;)
		if (on.layout->instances[i].gi == gi)
			in = &on.layout->instances[i];
	if (!in)
		return NVST_INVALID_ARGUMENT;
	take_sample(&on, in, gi_active_ppm_ns(&on, gi), sample);
	return NVST_SUCCESS;
}

/* ---- metrics -------------------------------------------------------------------------------------------------------- */

/* What is not scripted is a fixed part of the time in which a kernel ran. */
static const struct {
	uint32_t id;
	enum sim_key key;
	int64_t of_hundred;
} metrics_known[] = {
	{NVML_GPM_ENGINE, KEY_ENGINE_ACTIVE_PPM, 100},  {NVML_GPM_SM, KEY_SM_ACTIVE_PPM, 90},
	{NVML_GPM_OCCUPANCY, KEY_SM_OCCUPANCY_PPM, 50}, {NVML_GPM_TENSOR, KEY_TENSOR_ACTIVE_PPM, 60},
	{NVML_GPM_DRAM, KEY_DRAM_ACTIVE_PPM, 40},
};

static void
fill_metric(const struct nvml_gpm_sample *from, const struct nvml_gpm_sample *to, struct nvml_gpm_metric *m)
{
	int64_t window = to->t_ns - from->t_ns;
	int64_t active = (int64_t)((to->active_ppm_ns - from->active_ppm_ns) / window), value;

	m->status = NVST_NOT_SUPPORTED;
	m->value = 0;
	m->short_name = m->long_name = m->unit = NULL;
	for (size_t i = 0; i < ARRAY_LEN(metrics_known); i++) {
		if (metrics_known[i].id != m->id)
			continue;
		if (!moment_average(&sim.sc->gpus[to->gpu], metrics_known[i].key, to->gi, to->ci, from->t_ns, to->t_ns,
		                    &value))
			value = active * metrics_known[i].of_hundred / 100;
		if (value == SIM_ABSENT)
			return;
		m->value = (double)value / PERCENT_PPM;
		m->status = NVST_SUCCESS;
	}
	if (m->id == NVML_GPM_PCIE_TX || m->id == NVML_GPM_PCIE_RX) {
		if (!moment_average(&sim.sc->gpus[to->gpu],
		                    m->id == NVML_GPM_PCIE_TX ? KEY_PCIE_TX_BYTES_PER_S : KEY_PCIE_RX_BYTES_PER_S,
		                    to->gi, to->ci, from->t_ns, to->t_ns, &value))
			value = active * PCIE_BYTES_PER_PPM;
		m->status = value == SIM_ABSENT ? NVST_NOT_SUPPORTED : NVST_SUCCESS;
		m->value = value == SIM_ABSENT ? 0 : (double)value / MIB;
	}
}

int
nvmlGpmMetricsGet(struct nvml_gpm_metrics *metrics)
{
	const struct nvml_gpm_sample *from, *to;

	ENTER();
	if (!metrics)
		return NVST_INVALID_ARGUMENT;
	if (metrics->version != NVML_GPM_VERSION)
		return NVST_ARGUMENT_VERSION_MISMATCH;
	from = metrics->from;
	to = metrics->to;
	if (!from || !to || !from->taken || !to->taken || metrics->count > sim.sc->gpm_metrics)
		return NVST_INVALID_ARGUMENT;
	if (to->t_ns <= from->t_ns || strcmp(from->uuid, to->uuid) != 0)
		return NVST_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < metrics->count; i++)
		fill_metric(from, to, &metrics->metrics[i]);
	memset(metrics->metrics + metrics->count, 0,
	       ((size_t)sim.sc->gpm_metrics - metrics->count) * sizeof(*metrics->metrics));
	return NVST_SUCCESS;
}

/* exporter/metrics/metrics_dcgm.c - the same readings under dcgm-exporter's names and labels, so that its dashboards keep working.
 *
 * Differences from the original, with reasons (the table for operators is in exporter/README.md):
 *  1. values of a board are shown once, without a pod, when several workloads share it or it is partitioned: the original
 *     repeats them for each, so that sums over pods and instances are too large
 *  2. on a shared GPU, GPU_UTIL and FB_USED are each workload's own; a workload for which they are not known has no sample, not 0
 *  3. a value that the driver does not have is absent */

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/metrics/metrics_render.h"

#define LABELS_MAX (64u << 10)
#define KIB 1024
#define MIB (KIB * KIB)
#define PPM_PER_PERCENT 10000

/* ---- NVLink ---- */

static struct dcgm_link *
find_link(struct dcgm_links *l, const char *uuid)
{
	for (size_t i = 0; i < l->count; i++)
		if (strcmp(l->gpus[i].uuid, uuid) == 0)
			return &l->gpus[i];
	if (l->count == GPU_MAX)
		return NULL;
	l->gpus[l->count] = (struct dcgm_link){.bytes = ABSENT, .bytes_per_s = ABSENT};
	snprintf(l->gpus[l->count].uuid, GPU_TEXT, "%s", uuid);
	return &l->gpus[l->count++];
}

void
dcgm_links_update(struct dcgm_links *l, const struct tick *t)
{
	for (size_t i = 0; i < t->gpu_count; i++) {
		const struct gpu_board *b = &t->gpus[i].reading->board;
		struct dcgm_link *link = find_link(l, t->gpus[i].reading->uuid);
		int64_t bytes = b->nvlink_tx_bytes < 0 || b->nvlink_rx_bytes < 0 ||
		                                b->nvlink_tx_bytes > INT64_MAX - b->nvlink_rx_bytes
		                        ? ABSENT
		                        : b->nvlink_tx_bytes + b->nvlink_rx_bytes;

		if (!link || t->boot_ns <= link->boot_ns)
			continue;
		link->bytes_per_s = ABSENT;
		if (bytes != ABSENT && link->bytes != ABSENT && bytes >= link->bytes)
			link->bytes_per_s =
				(int64_t)((int128)(bytes - link->bytes) * NS_PER_S / (t->boot_ns - link->boot_ns));
		link->bytes = bytes;
		link->boot_ns = t->boot_ns;
	}
}

int64_t
dcgm_links_rate(const struct dcgm_links *l, const char *uuid)
{
	for (size_t i = 0; l && i < l->count; i++)
		if (strcmp(l->gpus[i].uuid, uuid) == 0)
			return l->gpus[i].bytes_per_s;
	return ABSENT;
}

/* ---- devices and their holders ---- */

/* A GPU, or a GPU instance with its compute instances; the original has no series for single compute instances. */
struct dcgm_device {
	size_t gpu;
	int32_t gi; /* -1: the GPU */
	size_t holders;
	const struct wire_holder *holder; /* when there is exactly one */
};

struct dcgm_page {
	struct render *r;
	struct dcgm_device *devices;
	size_t count;
	struct buf labels;
};

static bool
is_partitioned(const struct gpu_reading *g)
{
	return g->mig || g->instance_count > 0;
}

static void
list_devices(struct dcgm_page *d)
{
	size_t most = d->r->gpu_count;

	for (size_t i = 0; i < d->r->gpu_count; i++)
		most += render_reading(d->r, i)->instance_count;
	d->devices = mem_array(most, sizeof(*d->devices));
	for (size_t i = 0; i < d->r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(d->r, i);

		d->devices[d->count++] = (struct dcgm_device){.gpu = i, .gi = -1};
		for (size_t k = 0; k < g->instance_count; k++)
			if (k == 0 || g->instances[k].gi != g->instances[k - 1].gi)
				d->devices[d->count++] = (struct dcgm_device){.gpu = i, .gi = g->instances[k].gi};
	}
}

static bool
is_on(const struct render *r, const struct meter_total *t, const struct dcgm_device *device)
{
	return t->device->gi == device->gi && strcmp(t->gpu->uuid, render_reading(r, device->gpu)->uuid) == 0;
}

static bool
same_holder(const struct wire_holder *a, const struct wire_holder *b)
{
	return a->kind == b->kind && a->uid == b->uid && strcmp(a->ns, b->ns) == 0 && strcmp(a->pod, b->pod) == 0 &&
	       strcmp(a->pod_uid, b->pod_uid) == 0 && strcmp(a->container, b->container) == 0 &&
	       strcmp(a->slurm_job, b->slurm_job) == 0 && strcmp(a->user, b->user) == 0;
}

static void
find_holders(struct dcgm_page *d)
{
	const struct metrics_input *in = d->r->in;

	for (size_t i = 0; i < in->total_count; i++)
		for (size_t k = 0; k < d->count; k++) {
			struct dcgm_device *device = &d->devices[k];

			if (!is_on(d->r, &in->totals[i], device))
				continue;
			/* a holder of two compute instances of one GPU instance counts once */
			if (!device->holder || !same_holder(device->holder, in->totals[i].holder))
				device->holders++;
			device->holder = in->totals[i].holder;
			break;
		}
}

/* ---- lines ---- */

/* The meaning of an XID in a few words. */
static const char *
error_words(int64_t xid)
{
	switch (xid) {
	case 0: return "none";
	case 13: return "exception in a kernel";
	case 31: return "kernel used memory that it does not have";
	case 43: return "process stopped after an error of its own";
	case 45: return "process was taken off the GPU";
	case 48: return "memory error that could not be corrected";
	case 63: return "memory row or page replaced";
	case 64: return "memory row or page could not be replaced";
	case 74: return "error of an NVLink";
	case 79: return "GPU is not on the bus any more";
	case 92: return "many memory errors that were corrected";
	case 94: return "memory error, contained to one process";
	case 95: return "memory error, not contained";
	case 119: return "GPU's own processor does not answer";
	case 120: return "error of the GPU's own processor";
	}
	return "other";
}

static void
put_labels(struct dcgm_page *d, const struct dcgm_device *device, const struct wire_holder *h, int64_t error)
{
	const struct gpu_reading *g = render_reading(d->r, device->gpu);
	struct buf *l = &d->labels;
	char name[24];

	buf_clear(l);
	snprintf(name, sizeof(name), "nvidia%" PRId32, g->index);
	label_number(l, "gpu", g->index);
	prom_set_label(l, "UUID", g->uuid);
	prom_set_label(l, "pci_bus_id", g->pci);
	prom_set_label(l, "device", name);
	prom_set_label(l, "modelName", g->model);
	for (size_t k = 0; device->gi >= 0 && k < g->instance_count; k++)
		if (g->instances[k].gi == device->gi) {
			const char *profile = g->instances[k].profile, *of_gi = strstr(profile, "c.");

			prom_set_label(l, "GPU_I_PROFILE", of_gi ? of_gi + 2 : profile);
			label_number(l, "GPU_I_ID", device->gi);
			break;
		}
	prom_set_label(l, d->r->in->dcgm_hostname, d->r->in->node);
	prom_set_label(l, "DCGM_FI_DRIVER_VERSION", d->r->in->driver);
	prom_set_label(l, "container", h ? h->container : "");
	if (error != ABSENT) {
		label_number(l, "err_code", error);
		prom_set_label(l, "err_msg", error_words(error));
	}
	prom_set_label(l, "hpc_job", h ? h->slurm_job : "");
	prom_set_label(l, "namespace", h ? h->ns : "");
	prom_set_label(l, "pod", h ? h->pod : "");
	prom_set_label(l, "pod_uid", h && d->r->in->dcgm_pod_uid ? h->pod_uid : "");
}

/* `error` is for the label of XID_ERRORS; ABSENT elsewhere. */
static void
line(struct dcgm_page *d, const struct dcgm_device *device, const struct wire_holder *h, int64_t value, int decimals,
     int64_t error)
{
	struct render *r = d->r;
	uint64_t thing = (uint64_t)(device - d->devices) << 32 | (h ? h->id : 0);

	r->fits = r->fits && (!h || h->id != 0);
	if (!render_sample(r, thing, (uint32_t)(error + 1), value, decimals))
		return;
	put_labels(d, device, h, error);
	prom_sample(&r->p, &(struct prom_set){buf_text(&d->labels), d->labels.len}, 1, value, decimals);
	render_close(r);
}

/* A holder's use of a device: the sum over its processes there, 0 without processes, ABSENT when no process has a known value. */
static int64_t
part_of(const struct dcgm_page *d, const struct dcgm_device *device, const struct wire_holder *h, bool memory)
{
	const struct tick_gpu *g = &d->r->in->tick->gpus[device->gpu];
	bool any = false;
	int64_t sum = ABSENT;

	for (size_t i = 0; i < g->process_count; i++) {
		const struct tick_process *p = &g->processes[i];
		int64_t v = memory ? p->memory_bytes : g->reading->process_activity ? p->sm_ppm : ABSENT;

		if (p->gi != device->gi || !same_holder(p->holder, h))
			continue;
		any = true;
		if (v != ABSENT && __builtin_add_overflow(sum == ABSENT ? 0 : sum, v, &sum))
			sum = INT64_MAX;
	}
	return any ? sum : 0;
}

/* ---- values ---- */

enum dcgm_field {
	SM_CLOCK,
	MEM_CLOCK,
	MEMORY_TEMP,
	GPU_TEMP,
	POWER_USAGE,
	ENERGY,
	PCIE_REPLAYS,
	GPU_UTIL,
	MEM_COPY_UTIL,
	ENC_UTIL,
	DEC_UTIL,
	XID_ERRORS,
	FB_FREE,
	FB_USED,
	FB_RESERVED,
	UNCORRECTABLE_ROWS,
	CORRECTABLE_ROWS,
	REMAP_FAILURE,
	NVLINK_BANDWIDTH,
	VGPU_LICENSE,
	GR_ENGINE_ACTIVE,
	TENSOR_ACTIVE,
	DRAM_ACTIVE,
	PCIE_TX,
	PCIE_RX,
};

/* In the order of the original's default list: by field number. */
static const struct dcgm_family {
	const char *name;
	enum prom_type type;
	const char *help;
	int decimals;
} families[] = {
	[SM_CLOCK] = {"DCGM_FI_DEV_SM_CLOCK", PROM_GAUGE, "Clock of the multiprocessors in MHz.", 0},
	[MEM_CLOCK] = {"DCGM_FI_DEV_MEM_CLOCK", PROM_GAUGE, "Clock of the memory in MHz.", 0},
	[MEMORY_TEMP] = {"DCGM_FI_DEV_MEMORY_TEMP", PROM_GAUGE, "Temperature of the memory in degrees Celsius.", 0},
	[GPU_TEMP] = {"DCGM_FI_DEV_GPU_TEMP", PROM_GAUGE, "Temperature of the GPU in degrees Celsius.", 0},
	[POWER_USAGE] = {"DCGM_FI_DEV_POWER_USAGE", PROM_GAUGE, "Power drawn by the board in watts.", 6},
	[ENERGY] = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", PROM_PLAIN_COUNTER,
                    "Energy used by the board since the driver was loaded, in millijoules.", 0},
	[PCIE_REPLAYS] = {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", PROM_PLAIN_COUNTER, "PCIe packets that were sent again.",
                          0},
	[GPU_UTIL] = {"DCGM_FI_DEV_GPU_UTIL", PROM_GAUGE, "Time in which a kernel was running, in percent.", 0},
	[MEM_COPY_UTIL] = {"DCGM_FI_DEV_MEM_COPY_UTIL", PROM_GAUGE,
                           "Time in which memory was read or written, in percent.", 0},
	[ENC_UTIL] = {"DCGM_FI_DEV_ENC_UTIL", PROM_GAUGE, "Time in which the encoder was running, in percent.", 0},
	[DEC_UTIL] = {"DCGM_FI_DEV_DEC_UTIL", PROM_GAUGE, "Time in which the decoder was running, in percent.", 0},
	[XID_ERRORS] = {"DCGM_FI_DEV_XID_ERRORS", PROM_GAUGE, "The XID that was reported last; 0 for none.", 0},
	[FB_FREE] = {"DCGM_FI_DEV_FB_FREE", PROM_GAUGE, "Memory that is free, in MiB.", 0},
	[FB_USED] = {"DCGM_FI_DEV_FB_USED", PROM_GAUGE, "Memory in use, in MiB.", 0},
	[FB_RESERVED] = {"DCGM_FI_DEV_FB_RESERVED", PROM_GAUGE, "Memory that the driver keeps for itself, in MiB.", 0},
	[UNCORRECTABLE_ROWS] = {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", PROM_PLAIN_COUNTER,
                                "Memory rows replaced after errors that could not be corrected.", 0},
	[CORRECTABLE_ROWS] = {"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", PROM_PLAIN_COUNTER,
                              "Memory rows replaced after errors that were corrected.", 0},
	[REMAP_FAILURE] = {"DCGM_FI_DEV_ROW_REMAP_FAILURE", PROM_GAUGE, "1 when a memory row could not be replaced.",
                           0},
	[NVLINK_BANDWIDTH] = {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", PROM_PLAIN_COUNTER,
                              "Rate over all NVLinks in MB/s; a counter by name only.", 0},
	[VGPU_LICENSE] = {"DCGM_FI_DEV_VGPU_LICENSE_STATUS", PROM_GAUGE, "Always 0: the GPU is no vGPU.", 0},
	[GR_ENGINE_ACTIVE] = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", PROM_GAUGE,
                              "Share of time in which the compute engine was active.", 6},
	[TENSOR_ACTIVE] = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", PROM_GAUGE,
                           "Share of time in which the tensor cores were working.", 6},
	[DRAM_ACTIVE] = {"DCGM_FI_PROF_DRAM_ACTIVE", PROM_GAUGE, "Share of time in which data moved from or to memory.",
                         6},
	[PCIE_TX] = {"DCGM_FI_PROF_PCIE_TX_BYTES", PROM_GAUGE, "Rate at which the GPU sends over PCIe, in bytes/s.", 0},
	[PCIE_RX] = {"DCGM_FI_PROF_PCIE_RX_BYTES", PROM_GAUGE, "Rate at which the GPU receives over PCIe, in bytes/s.",
                     0},
};

static int64_t
scaled(int64_t v, int64_t divisor)
{
	return v == ABSENT ? ABSENT : v / divisor;
}

/* The code of the latest error; 0: none. */
static int64_t
last_error(const struct gpu_reading *g)
{
	const struct gpu_xid *last = NULL;

	for (size_t i = 0; i < g->xid_count; i++)
		if (!last || g->xids[i].last_wall_ns > last->last_wall_ns)
			last = &g->xids[i];
	return last ? last->code : 0;
}

static int64_t
gpu_value(const struct dcgm_page *d, const struct gpu_reading *g, enum dcgm_field field)
{
	const struct gpu_board *b = &g->board;

	switch (field) {
	case SM_CLOCK: return b->sm_clock_mhz;
	case MEM_CLOCK: return b->memory_clock_mhz;
	case MEMORY_TEMP: return b->memory_temperature_c;
	case GPU_TEMP: return g->temperature_c;
	case POWER_USAGE: return render_times(g->power_mw, 1000);
	case ENERGY: return g->energy_mj;
	case PCIE_REPLAYS: return b->pcie_replays;
	case GPU_UTIL: return scaled(g->active_ppm, PPM_PER_PERCENT);
	case MEM_COPY_UTIL: return scaled(g->memory_active_ppm, PPM_PER_PERCENT);
	case ENC_UTIL: return scaled(b->encoder_ppm, PPM_PER_PERCENT);
	case DEC_UTIL: return scaled(b->decoder_ppm, PPM_PER_PERCENT);
	case XID_ERRORS: return last_error(g);
	case FB_FREE: return scaled(b->memory_free_bytes, MIB);
	case FB_USED: return scaled(g->memory_used_bytes, MIB);
	case FB_RESERVED: return scaled(b->memory_reserved_bytes, MIB);
	case NVLINK_BANDWIDTH: return scaled(dcgm_links_rate(d->r->in->dcgm_links, g->uuid), INT64_C(1000) * KIB);
	case VGPU_LICENSE: return 0;
	case UNCORRECTABLE_ROWS: return b->remapped_uncorrected;
	case CORRECTABLE_ROWS: return b->remapped_corrected;
	case REMAP_FAILURE: return b->remap_failed;
	case GR_ENGINE_ACTIVE: return g->active_ppm;
	case TENSOR_ACTIVE: return g->tensor_active_ppm;
	case DRAM_ACTIVE: return g->dram_active_ppm;
	case PCIE_TX: return b->pcie_tx_bytes_per_s;
	case PCIE_RX: return b->pcie_rx_bytes_per_s;
	}
	return ABSENT;
}

/* Values of a GPU instance. Its memory is shared; its activity is the mean of its compute instances, weighted by slices. */
static int64_t
instance_value(const struct gpu_reading *g, int32_t gi, enum dcgm_field field)
{
	int64_t sum = 0, slices = 0;

	for (size_t k = 0; k < g->instance_count; k++) {
		const struct gpu_instance *in = &g->instances[k];
		int64_t share = field == GR_ENGINE_ACTIVE ? in->active_ppm
		                : field == TENSOR_ACTIVE  ? in->tensor_active_ppm
		                : field == DRAM_ACTIVE    ? in->dram_active_ppm
		                                          : ABSENT;

		if (in->gi != gi)
			continue;
		if (field == FB_USED)
			return scaled(in->memory_used_bytes, MIB);
		if (field == FB_FREE && in->memory_bytes != ABSENT && in->memory_used_bytes != ABSENT)
			return (in->memory_bytes - in->memory_used_bytes) / MIB;
		if (share == ABSENT)
			continue;
		sum += share * (in->compute_slices > 0 ? in->compute_slices : 1);
		slices += in->compute_slices > 0 ? in->compute_slices : 1;
	}
	return slices ? sum / slices : ABSENT;
}

/* True when an earlier total is of the same holder in another compute instance of the same device. */
static bool
came_before(const struct dcgm_page *d, const struct dcgm_device *device, size_t total)
{
	const struct meter_total *totals = d->r->in->totals;

	for (size_t i = 0; device->gi >= 0 && i < total; i++)
		if (is_on(d->r, &totals[i], device) && same_holder(totals[i].holder, totals[total].holder))
			return true;
	return false;
}

/* True when activity is known per process, or there are no processes. */
static bool
parts_are_known(const struct dcgm_page *d, const struct dcgm_device *device, bool memory)
{
	const struct tick_gpu *g = &d->r->in->tick->gpus[device->gpu];
	bool any = false;

	for (size_t i = 0; i < g->process_count; i++) {
		const struct tick_process *p = &g->processes[i];

		if (p->gi != device->gi)
			continue;
		any = true;
		if ((memory ? p->memory_bytes : g->reading->process_activity ? p->sm_ppm : ABSENT) != ABSENT)
			return true;
	}
	return !any;
}

/* Rule 2. */
static void
shared_lines(struct dcgm_page *d, const struct dcgm_device *device, enum dcgm_field field)
{
	const struct metrics_input *in = d->r->in;

	for (size_t i = 0; i < in->total_count; i++) {
		int64_t v;

		if (!is_on(d->r, &in->totals[i], device) || came_before(d, device, i))
			continue;
		v = part_of(d, device, in->totals[i].holder, field == FB_USED);
		if (v == ABSENT)
			continue;
		line(d, device, in->totals[i].holder, v / (field == FB_USED ? MIB : PPM_PER_PERCENT), 0, ABSENT);
	}
}

static void
device_lines(struct dcgm_page *d, const struct dcgm_device *device, enum dcgm_field field)
{
	const struct gpu_reading *g = render_reading(d->r, device->gpu);
	bool board = device->gi<0, shared = device->holders> 1, cut = board && is_partitioned(g);
	int64_t v = board ? gpu_value(d, g, field) : instance_value(g, device->gi, field);

	/* memory of a partitioned GPU is shown for its instances */
	if (cut && (field == FB_USED || field == FB_FREE))
		return;
	if (shared && (field == FB_USED || (field == GPU_UTIL && board)) &&
	    parts_are_known(d, device, field == FB_USED)) {
		shared_lines(d, device, field);
		return;
	}
	if (v != ABSENT)
		line(d, device, shared || cut ? NULL : device->holder, v, families[field].decimals,
		     field == XID_ERRORS ? v : ABSENT);
}

void
render_dcgm(struct render *r)
{
	struct dcgm_page d = {.r = r};

	buf_init(&d.labels, LABELS_MAX);
	list_devices(&d);
	find_holders(&d);
	for (size_t f = 0; f < ARRAY_LEN(families); f++) {
		render_family(r, families[f].name, families[f].type, families[f].help);
		for (size_t i = 0; i < d.count; i++) {
			const struct gpu_reading *g = render_reading(r, d.devices[i].gpu);

			if (!g->down && !g->silent)
				device_lines(&d, &d.devices[i], (enum dcgm_field)f);
		}
	}
	buf_fini(&d.labels);
	mem_free(d.devices);
}

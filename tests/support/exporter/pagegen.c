/* tests/support/exporter/pagegen.c */
#include "tests/support/exporter/pagegen.h"

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "common/base/units.h"

static void
make_gpu(struct pagegen *g, size_t i)
{
	struct gpu_reading *r = &g->readings[i];

	gpu_reading_clear(r);
	r->index = (int32_t)i;
	snprintf(r->uuid, sizeof(r->uuid), "GPU-8f3a2c1e-5b7d-4e6f-9a0b-%012zx", i);
	snprintf(r->model, sizeof(r->model), "NVIDIA H100 80GB HBM3");
	snprintf(r->pci, sizeof(r->pci), "00000000:%02zX:00.0", i + 1);
	r->memory_bytes = INT64_C(85520809984);
	r->process_activity = true;
	r->board = (struct gpu_board){.graphics_clock_mhz = 1980,
	                              .sm_clock_mhz = 1980,
	                              .memory_clock_mhz = 2619,
	                              .video_clock_mhz = 1545,
	                              .memory_temperature_c = 70,
	                              .power_limit_mw = 700000,
	                              .memory_reserved_bytes = 574619648,
	                              .pcie_generation = 5,
	                              .pcie_width = 16};
	r->xids[r->xid_count++] =
		(struct gpu_xid){.code = 31, .count = 2, .last_wall_ns = INT64_C(1790000000) * NS_PER_S};
	g->devices[i] = (struct wire_device){.id = (uint32_t)i + 1,
	                                     .gpu = (uint32_t)i + 1,
	                                     .uuid = mem_strdup(r->uuid),
	                                     .model = mem_strdup(r->model),
	                                     .profile = mem_strdup(""),
	                                     .gi = -1,
	                                     .ci = -1,
	                                     .units = UNITS_PER_GPU,
	                                     .index = r->index};
}

static void
make_process(struct pagegen *g, size_t i, const struct wire_device *device)
{
	g->holders[i] = (struct wire_holder){.id = (uint32_t)i + 1,
	                                     .kind = WIRE_POD,
	                                     .ns = mem_strdup("team-research"),
	                                     .pod = mem_printf("trainer-%zu", i),
	                                     .pod_uid = mem_printf("0f1e2d3c-%08zx", i),
	                                     .container = mem_printf("4d7a9b0c%04zx", i),
	                                     .slurm_job = mem_strdup(""),
	                                     .slurm_account = mem_strdup(""),
	                                     .user = mem_strdup(""),
	                                     .group = mem_strdup(""),
	                                     .labels = mem_strdup(""),
	                                     .uid = -1};
	g->processes[i] =
		(struct tick_process){.holder = &g->holders[i], .pid = 40000 + (uint32_t)i, .gi = -1, .ci = -1};
	g->totals[i] = (struct meter_total){.holder = &g->holders[i], .device = device, .gpu = device};
}

/* The parts to each other. */
static void
connect(struct pagegen *g)
{
	struct tick_process *p = g->processes;

	for (size_t i = 0; i < g->tick.gpu_count; i++) {
		g->gpus[i].reading = &g->readings[i];
		g->gpus[i].processes = p;
		p += g->gpus[i].process_count;
	}
	g->tick.gpus = g->gpus;
	g->in.tick = &g->tick;
	g->in.totals = g->totals;
	g->in.process_totals = g->process_totals;
}

struct pagegen *
pagegen_new(size_t gpus, size_t processes_per_gpu)
{
	struct pagegen *g = mem_alloc(sizeof(*g));

	g->process_count = gpus * processes_per_gpu;
	g->readings = mem_array(gpus, sizeof(*g->readings));
	g->devices = mem_array(gpus, sizeof(*g->devices));
	g->gpus = mem_array(gpus, sizeof(*g->gpus));
	g->processes = mem_array(g->process_count, sizeof(*g->processes));
	g->holders = mem_array(g->process_count, sizeof(*g->holders));
	g->totals = mem_array(g->process_count, sizeof(*g->totals));
	g->process_totals = mem_array(g->process_count, sizeof(*g->process_totals));
	for (size_t i = 0; i < gpus; i++) {
		make_gpu(g, i);
		for (size_t k = 0; k < processes_per_gpu; k++)
			make_process(g, i * processes_per_gpu + k, &g->devices[i]);
		g->gpus[i].process_count = processes_per_gpu;
	}
	g->tick = (struct tick){.boot_ns = NS_PER_S, .gpu_count = gpus};
	g->in = (struct metrics_input){.node = "node-0001",
	                               .version = TOLLGATE_VERSION,
	                               .source = "nvml",
	                               .driver = "550.163.01",
	                               .library = "12.550.163.01",
	                               .simulated = true,
	                               .process_metrics = true,
	                               .process_total_count = g->process_count,
	                               .total_count = g->process_count,
	                               .stream = 1,
	                               .pushes = true};
	connect(g);
	pagegen_tick(g);
	return g;
}

struct pagegen *
pagegen_copy(const struct pagegen *of)
{
	struct pagegen *g = mem_alloc(sizeof(*g));
	size_t gpus = of->tick.gpu_count;

	*g = *of;
	g->borrows = true;
	g->readings = mem_array(gpus, sizeof(*g->readings));
	g->gpus = mem_array(gpus, sizeof(*g->gpus));
	g->processes = mem_array(g->process_count, sizeof(*g->processes));
	g->totals = mem_array(g->process_count, sizeof(*g->totals));
	g->process_totals = mem_array(g->process_count, sizeof(*g->process_totals));
	memcpy(g->readings, of->readings, gpus * sizeof(*g->readings));
	memcpy(g->gpus, of->gpus, gpus * sizeof(*g->gpus));
	memcpy(g->processes, of->processes, g->process_count * sizeof(*g->processes));
	memcpy(g->totals, of->totals, g->process_count * sizeof(*g->totals));
	memcpy(g->process_totals, of->process_totals, g->process_count * sizeof(*g->process_totals));
	connect(g);
	return g;
}

static void
free_names(struct pagegen *g)
{
	for (size_t i = 0; i < g->tick.gpu_count; i++) {
		mem_free(g->devices[i].uuid);
		mem_free(g->devices[i].model);
		mem_free(g->devices[i].profile);
	}
	for (size_t i = 0; i < g->process_count; i++) {
		struct wire_holder *h = &g->holders[i];

		wire_holder_fini(h);
	}
	mem_free(g->devices);
	mem_free(g->holders);
}

void
pagegen_free(struct pagegen *g)
{
	if (!g)
		return;
	if (!g->borrows)
		free_names(g);
	mem_free(g->readings);
	mem_free(g->gpus);
	mem_free(g->processes);
	mem_free(g->totals);
	mem_free(g->process_totals);
	mem_free(g);
}

/* What a process does. On a node that many share, not all compute all the time: of four neighbours two train without a pause, one
 * serves requests and is called in two of five seconds, and one has a notebook open. */
static int64_t
activity(int64_t n, size_t i)
{
	int64_t busy = 150000 + (n * 6007 + (int64_t)i * 7001) % 700000;

	switch (i % 4) {
	case 0:
	case 1: return busy;
	case 2: return (n + (int64_t)i / 4) % 5 < 2 ? busy : 0;
	default: return 0;
	}
}

static void
tick_gpu(struct gpu_reading *r, int64_t n, int64_t i)
{
	r->active_ppm = 900000 + (n * 7919 + i * 104729) % 100000;
	r->memory_active_ppm = 300000 + (n * 7001 + i * 104729) % 200000;
	r->memory_used_bytes = INT64_C(71680) * 1048576 + n % 64 * 2097152;
	r->power_mw = 412500 + (n * 331 + i) % 97700;
	r->energy_mj += r->power_mw;
	r->temperature_c = 55 + (n + i) / 8 % 9;
	r->sm_active_ppm = 700000 + (n * 6007 + i) % 200000;
	r->sm_occupancy_ppm = 300000 + (n * 5003 + i) % 200000;
	r->tensor_active_ppm = 400000 + (n * 4001 + i) % 200000;
	r->dram_active_ppm = 500000 + (n * 3001 + i) % 200000;
	r->board.memory_free_bytes = r->memory_bytes - r->memory_used_bytes - r->board.memory_reserved_bytes;
	r->board.memory_temperature_c = 66 + (n + i) / 16 % 5;
	r->board.throttle_reasons = n / 32 % 2 ? 0x4 : 0;
	r->board.pcie_tx_bytes_per_s = INT64_C(1000) * (100000 + (n * 7879 + i) % 800000);
	r->board.pcie_rx_bytes_per_s = INT64_C(1000) * (100000 + (n * 7877 + i) % 800000);
	r->board.nvlink_tx_bytes += INT64_C(30000000000) + n % 1000;
	r->board.nvlink_rx_bytes += INT64_C(30000000000) + n % 1000;
}

/* What changes from one second to the next: of a GPU what it measures all the time; of a process its activity while it computes, and its
 * memory once in 16 ticks, because frameworks keep what they once took; of a workload the idle time always, since none computes for
 * all of a second, and the used time while it computes. Unmeasured time, limits and counts of errors stay where they are. Of 10,000
 * series that are 48 %. */
void
pagegen_tick(struct pagegen *g)
{
	int64_t n = ++g->in.ticks;

	g->in.last_reading_wall_ns = INT64_C(1790000000) * NS_PER_S + n * NS_PER_S;
	g->in.tick_duration_ns = 1234567 + n % 1000;
	for (size_t i = 0; i < g->tick.gpu_count; i++)
		tick_gpu(&g->readings[i], n, (int64_t)i);
	for (size_t i = 0; i < g->process_count; i++) {
		int64_t used = activity(n, i);

		g->processes[i].memory_bytes = INT64_C(1073741824) + (n + (int64_t)i) / 16 % 512 * 1048576;
		g->processes[i].sm_ppm = used;
		/* what was measured is no round number of nanoseconds */
		used = used ? used * 1000 + (n * 331 + (int64_t)i * 17) % 1000 : 0;
		g->process_totals[i].measured = true;
		g->process_totals[i].active_unit_ns += (int128)UNITS_PER_GPU * used;
		g->totals[i].used_unit_ns += (int128)UNITS_PER_GPU * used;
		g->totals[i].idle_unit_ns += (int128)UNITS_PER_GPU * (NS_PER_S - used);
	}
}

size_t
pagegen_series(const char *text, size_t len)
{
	size_t series = 0;

	for (const char *end = text + len; text < end;) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));

		series += text[0] != '#';
		text = stop ? stop + 1 : end;
	}
	return series;
}

/* exporter/record/record_take.c - adds readings of GPUs and processes to a file of a recording. The rules are in record.h. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/record/record_file.h"

#define EVENTS_ROOM 10000u /* XIDs beyond this in one file are not kept */
#define LAYOUTS_MAX_BYTES (256u << 10)
#define PPM_PER_PERCENT 10000
#define SERVER_PID 4194000u /* plus the number of the GPU: stands for an MPS server of unknown PID */
#define SERVER_NAME "nvidia-cuda-mps-server"
#define NOBODY 65534
#define NOWHERE "/recorded.slice" /* the cgroup of a process that cannot be looked up */

/* ---- values ---- */

/* The name of a value in a scenario. An average covers the time since the reading before (rule 1). */
struct field {
	const char *name;
	size_t offset;
	int64_t divisor;
	enum { MOMENT, AVERAGE, BY_GPM } kind; /* BY_GPM: an average where the GPU has GPM, else a moment */
};
#define OF(f) offsetof(struct gpu_reading, f)
static const struct field board_fields[] = {
	{"active", OF(active_ppm), PPM_PER_PERCENT, MOMENT},
	{"memory_active", OF(memory_active_ppm), PPM_PER_PERCENT, MOMENT},
	{"power_mw", OF(power_mw), 1, MOMENT},
	{"energy_mj", OF(energy_mj), 1, MOMENT},
	{"temperature_c", OF(temperature_c), 1, MOMENT},
	{"memory_bytes", OF(memory_bytes), 1, MOMENT},
	{"memory_used_bytes", OF(memory_used_bytes), 1, MOMENT},
	{"memory_reserved_bytes", OF(board.memory_reserved_bytes), 1, MOMENT},
	{"power_limit_mw", OF(board.power_limit_mw), 1, MOMENT},
	{"memory_temperature_c", OF(board.memory_temperature_c), 1, MOMENT},
	{"graphics_clock_mhz", OF(board.graphics_clock_mhz), 1, MOMENT},
	{"sm_clock_mhz", OF(board.sm_clock_mhz), 1, MOMENT},
	{"memory_clock_mhz", OF(board.memory_clock_mhz), 1, MOMENT},
	{"video_clock_mhz", OF(board.video_clock_mhz), 1, MOMENT},
	{"throttle_reasons", OF(board.throttle_reasons), 1, MOMENT},
	{"encoder", OF(board.encoder_ppm), PPM_PER_PERCENT, MOMENT},
	{"decoder", OF(board.decoder_ppm), PPM_PER_PERCENT, MOMENT},
	{"ecc_corrected", OF(board.ecc_corrected), 1, MOMENT},
	{"ecc_uncorrected", OF(board.ecc_uncorrected), 1, MOMENT},
	{"remapped_corrected", OF(board.remapped_corrected), 1, MOMENT},
	{"remapped_uncorrected", OF(board.remapped_uncorrected), 1, MOMENT},
	{"remap_pending", OF(board.remap_pending), 1, MOMENT},
	{"remap_failed", OF(board.remap_failed), 1, MOMENT},
	{"pcie_replays", OF(board.pcie_replays), 1, MOMENT},
	{"pcie_generation", OF(board.pcie_generation), 1, MOMENT},
	{"pcie_width", OF(board.pcie_width), 1, MOMENT},
	{"nvlink_tx_bytes", OF(board.nvlink_tx_bytes), 1, MOMENT},
	{"nvlink_rx_bytes", OF(board.nvlink_rx_bytes), 1, MOMENT},
	{"pcie_tx_bytes_per_s", OF(board.pcie_tx_bytes_per_s), 1, BY_GPM},
	{"pcie_rx_bytes_per_s", OF(board.pcie_rx_bytes_per_s), 1, BY_GPM},
	{"sm_active_ppm", OF(sm_active_ppm), 1, AVERAGE},
	{"sm_occupancy_ppm", OF(sm_occupancy_ppm), 1, AVERAGE},
	{"tensor_active_ppm", OF(tensor_active_ppm), 1, AVERAGE},
	{"dram_active_ppm", OF(dram_active_ppm), 1, AVERAGE},
};
#undef OF
#define OF(f) offsetof(struct gpu_instance, f)
static const struct field instance_fields[] = {
	{"memory_bytes", OF(memory_bytes), 1, MOMENT},
	{"memory_used_bytes", OF(memory_used_bytes), 1, MOMENT},
	{"engine_active_ppm", OF(active_ppm), 1, AVERAGE},
	{"sm_active_ppm", OF(sm_active_ppm), 1, AVERAGE},
	{"sm_occupancy_ppm", OF(sm_occupancy_ppm), 1, AVERAGE},
	{"tensor_active_ppm", OF(tensor_active_ppm), 1, AVERAGE},
	{"dram_active_ppm", OF(dram_active_ppm), 1, AVERAGE},
};
#undef OF
static_assert(ARRAY_LEN(board_fields) == RECORD_BOARD_FIELDS && ARRAY_LEN(instance_fields) == RECORD_INSTANCE_FIELDS,
              "every field has a last value");

/* Adds the changed values of a GPU or an instance, either momentary ones or averages. A momentary value that the driver does not have is
 * ABSENT from the beginning; averages exist from the second reading on. */
static void
add_values(struct buf *line, const struct field *fields, size_t count, const void *subject, int64_t *last,
           bool averages, bool gpm)
{
	for (size_t i = 0; i < count; i++) {
		bool average = fields[i].kind == AVERAGE || (fields[i].kind == BY_GPM && gpm);
		int64_t value;

		if (average != averages)
			continue;
		memcpy(&value, (const char *)subject + fields[i].offset, sizeof(value));
		if (value != ABSENT)
			value /= fields[i].divisor;
		if (value == last[i] || (average && value == ABSENT && last[i] == RECORD_NOT_WRITTEN))
			continue;
		last[i] = value;
		if (value == ABSENT)
			buf_printf(line, " %s=-", fields[i].name);
		else
			buf_printf(line, " %s=%" PRId64, fields[i].name, value);
	}
}

/* Adds a line to the scenario when a value has changed. */
static void
add_line(struct record_gpu *g, const struct gpu_reading *r, int64_t at_ns, bool averages)
{
	in_place(buf) struct buf line = {0};
	char at[TIME_TEXT_SIZE];

	buf_init(&line, RECORD_TEXT_MAX);
	add_values(&line, board_fields, ARRAY_LEN(board_fields), r, g->last, averages, g->gpm);
	if (averages && g->gpm && r->active_ppm != ABSENT && r->sm_active_ppm != ABSENT)
		buf_printf(&line, " engine_active_ppm=%" PRId64, r->active_ppm);
	for (size_t i = 0; i < r->instance_count; i++) {
		size_t before;

		buf_printf(&line, " @%d/%d", r->instances[i].gi, r->instances[i].ci);
		before = line.len;
		add_values(&line, instance_fields, ARRAY_LEN(instance_fields), &r->instances[i], g->instances[i].last,
		           averages, g->gpm);
		if (line.len == before) {
			while (line.data[line.len - 1] != ' ')
				line.len--;
			line.data[--line.len] = '\0';
		}
	}
	if (line.len > 0)
		buf_printf(&g->readings, "      - \"%s%s\"\n", duration_format(at_ns, at), buf_text(&line));
}

/* ---- a GPU ---- */

static void
forget(int64_t *last, size_t count)
{
	for (size_t i = 0; i < count; i++)
		last[i] = RECORD_NOT_WRITTEN;
}

void
record_add_event(struct record_file *f, struct record_event e)
{
	f->events = mem_grow(f->events, f->event_count + 1, sizeof(*f->events));
	f->events[f->event_count++] = e;
}

/* A GPU that appears later was lost until then. */
static struct record_gpu *
find_or_add_gpu(struct record_file *f, size_t place, const struct gpu_reading *r)
{
	struct record_gpu *g;

	if (place < f->gpu_count)
		return &f->gpus[place];
	f->gpus = mem_grow(f->gpus, f->gpu_count + 1, sizeof(*f->gpus));
	g = &f->gpus[f->gpu_count++];
	*g = (struct record_gpu){
		.index = r->index, .since_ns = f->now_ns, .memory_bytes = ABSENT, .down_ns = -1, .silent_ns = -1};
	memcpy(g->uuid, r->uuid, sizeof(g->uuid));
	memcpy(g->model, r->model, sizeof(g->model));
	memcpy(g->pci, r->pci, sizeof(g->pci));
	memcpy(g->xids, r->xids, sizeof(g->xids));
	g->xid_count = r->xid_count;
	buf_init(&g->first_layout, LAYOUTS_MAX_BYTES);
	buf_init(&g->layouts, RECORD_TEXT_MAX);
	buf_init(&g->readings, RECORD_TEXT_MAX);
	forget(g->last, RECORD_BOARD_FIELDS);
	if (f->now_ns > 0)
		record_add_event(f, (struct record_event){.kind = RECORD_FAULT,
		                                          .gpu = place,
		                                          .until_ns = f->now_ns,
		                                          .fault = GPU_FAULT_LOST});
	return g;
}

/* Rule 4. */
static void
take_health(struct record_file *f, size_t place, struct record_gpu *g, const struct gpu_reading *r)
{
	if (g->down_ns >= 0 && (r->silent || r->fault != g->fault)) {
		record_add_event(f, (struct record_event){.kind = RECORD_FAULT,
		                                          .gpu = place,
		                                          .at_ns = g->down_ns,
		                                          .until_ns = f->now_ns,
		                                          .fault = g->fault});
		g->down_ns = -1;
	}
	if (g->silent_ns >= 0 && !r->silent) {
		record_add_event(f, (struct record_event){.kind = RECORD_HANG,
		                                          .gpu = place,
		                                          .at_ns = g->silent_ns,
		                                          .until_ns = f->now_ns});
		g->silent_ns = -1;
	}
	if (r->silent && g->silent_ns < 0)
		g->silent_ns = f->now_ns;
	if (r->down && !r->silent && g->down_ns < 0) {
		g->down_ns = f->now_ns;
		g->fault = r->fault;
	}
}

/* Counters start at 0 when the source is opened again. */
static void
take_xids(struct record_file *f, size_t place, struct record_gpu *g, const struct gpu_reading *r)
{
	for (size_t i = 0; i < r->xid_count; i++) {
		int64_t before = 0;

		for (size_t j = 0; j < g->xid_count; j++)
			if (g->xids[j].code == r->xids[i].code && g->xids[j].count <= r->xids[i].count)
				before = g->xids[j].count;
		for (; before < r->xids[i].count && r->xids[i].code != 0 && f->event_count < EVENTS_ROOM; before++)
			record_add_event(f, (struct record_event){.kind = RECORD_XID,
			                                          .gpu = place,
			                                          .at_ns = f->now_ns,
			                                          .xid = r->xids[i].code});
	}
	memcpy(g->xids, r->xids, sizeof(g->xids));
	g->xid_count = r->xid_count;
}

static void
describe_layout(const struct gpu_reading *r, struct buf *out)
{
	buf_str(out, r->mig ? "[" : "off");
	for (size_t i = 0; r->mig && i < r->instance_count; i++) {
		const struct gpu_instance *in = &r->instances[i];

		buf_printf(out, "%s{gi: %d, ci: %d, profile: ", i ? ", " : "", in->gi, in->ci);
		record_quoted(out, in->profile);
		buf_str(out, ", uuid: ");
		record_quoted(out, in->uuid);
		if (in->placement_start >= 0)
			buf_printf(out, ", placement: %d", in->placement_start);
		buf_char(out, '}');
	}
	if (r->mig)
		buf_char(out, ']');
}

static void
take_layout(const struct record_file *f, struct record_gpu *g, const struct gpu_reading *r)
{
	in_place(buf) struct buf text = {0};
	char at[TIME_TEXT_SIZE];

	buf_init(&text, LAYOUTS_MAX_BYTES);
	describe_layout(r, &text);
	for (size_t i = 0; i < r->instance_count; i++)
		g->placements_hidden |= r->instances[i].placement_start < 0;
	if (g->layout && strcmp(g->layout, buf_text(&text)) == 0)
		return;
	if (!g->layout)
		buf_str(&g->first_layout, buf_text(&text));
	else
		buf_printf(&g->layouts, "      - {at: %s, mig: %s}\n", duration_format(f->now_ns, at), buf_text(&text));
	mem_free(g->layout);
	g->layout = mem_strdup(buf_text(&text));
}

/* The values last written of an instance belong to its UUID. */
static void
follow_instances(struct record_gpu *g, const struct gpu_reading *r)
{
	struct record_instance next[GPU_INSTANCE_MAX];

	for (size_t i = 0; i < r->instance_count; i++) {
		next[i] = (struct record_instance){.gi = r->instances[i].gi, .ci = r->instances[i].ci};
		memcpy(next[i].uuid, r->instances[i].uuid, sizeof(next[i].uuid));
		forget(next[i].last, RECORD_INSTANCE_FIELDS);
		for (size_t j = 0; j < g->instance_count; j++)
			if (strcmp(g->instances[j].uuid, next[i].uuid) == 0)
				next[i] = g->instances[j];
	}
	memcpy(g->instances, next, r->instance_count * sizeof(*next));
	g->instance_count = r->instance_count;
}

/* Where only root may read the memory of a GPU, it is computed from its instances. */
static void
take_memory(struct record_gpu *g, const struct gpu_reading *r)
{
	const struct gpu_instance *in = r->instances;

	if (r->memory_bytes > 0)
		g->memory_bytes = r->memory_bytes;
	else if (g->memory_bytes < 0 && r->instance_count > 0 && in->memory_slices > 0 && in->memory_bytes > 0)
		g->memory_bytes = in->memory_bytes / in->memory_slices * (strstr(r->model, "A30") ? 4 : 8);
}

void
record_take_gpu(struct record_file *f, size_t place, const struct gpu_reading *r)
{
	struct record_gpu *g = find_or_add_gpu(f, place, r);

	take_health(f, place, g, r);
	if (r->silent)
		return;
	take_xids(f, place, g, r);
	if (r->down)
		return;
	g->index = r->index;
	g->gpm |= r->sm_active_ppm != ABSENT;
	for (size_t i = 0; i < r->instance_count; i++)
		g->gpm |= r->instances[i].active_ppm != ABSENT;
	g->samples |= r->process_activity;
	g->no_samples |= !r->mig && !r->process_activity;
	g->accounting |= r->accounting;
	take_memory(g, r);
	take_layout(f, g, r);
	follow_instances(g, r);
	if (f->before_ns >= 0)
		add_line(g, r, f->before_ns, true);
	add_line(g, r, f->now_ns, false);
}

/* ---- processes ---- */

static struct record_run *
add_run(struct record_file *f)
{
	array_room(f->runs, f->run_count, f->run_cap);
	f->runs[f->run_count] = (struct record_run){
		.end_ns = RECORD_ALIVE, .uid = NOBODY, .sm = RECORD_NOT_WRITTEN, .memory = RECORD_NOT_WRITTEN};
	buf_init(&f->runs[f->run_count].activity, RECORD_TEXT_MAX);
	return &f->runs[f->run_count++];
}

/* Rule 5. A process that cannot be looked up belongs to the user nobody. */
static void
read_identity(struct proc *proc, struct record_run *run)
{
	char name[16], *open, *close;
	struct err ignored;
	size_t len;

	snprintf(name, sizeof(name), "%" PRIu32, run->pid);
	if (!proc_uid(proc, run->pid, &run->uid, &ignored))
		run->uid = NOBODY;
	if (proc_cgroup(proc, run->pid, &len, &ignored)) {
		while (len > 0 && proc->text[len - 1] == '\n')
			len--;
		run->cgroup = mem_strndup(proc->text, len);
	}
	if (proc_read(proc, name, "stat", &len, &ignored)) {
		open = strchr(proc->text, '(');
		close = strrchr(proc->text, ')');
		if (open && close && close > open)
			run->comm = mem_strndup(open + 1, (size_t)(close - open - 1));
	}
	if (!run->cgroup)
		run->cgroup = mem_strdup(NOWHERE);
	if (!run->comm)
		run->comm = mem_strdup("unknown");
}

/* Rule 1: activity is an average since the reading before, memory a momentary value. */
static void
add_phase(const struct record_file *f, struct record_run *run, int64_t sm, int64_t memory)
{
	int64_t after_ns = f->before_ns - run->start_ns, memory_then = run->memory_now;
	char at[TIME_TEXT_SIZE];

	if (run->sm == RECORD_NOT_WRITTEN) {
		after_ns = 0;
		memory_then = memory;
	}
	run->memory_now = memory;
	if (sm == run->sm && memory_then == run->memory)
		return;
	buf_printf(&run->activity, "%s%s", run->activity.len ? "; " : "", duration_format(after_ns, at));
	if (sm != run->sm)
		buf_printf(&run->activity, " sm=%" PRId64, sm);
	if (memory_then != run->memory)
		buf_printf(&run->activity, " memory_bytes=%" PRId64, memory_then);
	run->sm = sm;
	run->memory = memory_then;
}

static struct record_run *
find_alive(struct record_file *f, size_t gpu, const struct gpu_process *p)
{
	for (size_t i = f->run_count; i-- > 0;) {
		struct record_run *run = &f->runs[i];

		if (run->end_ns == RECORD_ALIVE && run->gpu == gpu && run->pid == p->pid && run->gi == p->gi &&
		    run->ci == p->ci)
			return run;
	}
	return NULL;
}

/* Rule 2. */
static void
take_process(struct record_file *f, struct proc *proc, size_t gpu, const struct gpu_process *p, bool server)
{
	struct record_run *run = find_alive(f, gpu, p);
	int64_t sm = p->sm_ppm > 0 ? p->sm_ppm / PPM_PER_PERCENT : 0;
	uint64_t start_ticks = 0;
	struct err ignored;

	if (!server && !proc_start(proc, p->pid, &start_ticks, &ignored))
		start_ticks = run ? run->start_ticks : 0;
	if (run && run->start_ticks != start_ticks) {
		run->end_ns = f->before_ns + 1;
		run = NULL;
	}
	if (!run) {
		run = add_run(f);
		run->gpu = gpu;
		run->pid = p->pid;
		run->gi = p->gi;
		run->ci = p->ci;
		run->mps = p->mps_client;
		run->start_ticks = start_ticks;
		run->start_ns = f->before_ns + 1;
		if (server) {
			run->comm = mem_strdup(SERVER_NAME);
			run->cgroup = mem_strdup(NOWHERE);
		} else {
			read_identity(proc, run);
		}
	}
	run->seen = true;
	add_phase(f, run, sm, p->memory_bytes > 0 ? p->memory_bytes : 0);
}

/* Sources leave MPS servers out; a server without clients shows only in the flag. */
static void
take_server(struct record_file *f, struct proc *proc, size_t gpu, const struct gpu_reading *r)
{
	struct gpu_process server = {.pid = SERVER_PID + (uint32_t)gpu, .gi = -1, .ci = -1, .sm_ppm = ABSENT};

	for (size_t i = 0; i < r->process_count; i++)
		if (r->processes[i].mps_client)
			return;
	if (r->mig && r->instance_count == 0)
		return;
	if (r->mig) {
		server.gi = r->instances[0].gi;
		server.ci = r->instances[0].ci;
	}
	take_process(f, proc, gpu, &server, true);
}

/* Rule 3. */
static void
take_exit(struct record_file *f, size_t gpu, const struct gpu_exit *e, int64_t wall_ns)
{
	int64_t start_ns = e->start_wall_ns - (wall_ns - f->now_ns), end_ns;
	struct record_run *run;

	if (e->start_wall_ns == ABSENT || e->duration_ns == ABSENT || f->before_ns < 0)
		return;
	for (size_t i = f->run_count; i-- > 0;)
		if (f->runs[i].gpu == gpu && f->runs[i].pid == e->pid && f->runs[i].end_ns > f->before_ns)
			return;
	end_ns = start_ns + e->duration_ns;
	if (end_ns > f->now_ns)
		end_ns = f->now_ns;
	if (start_ns <= f->before_ns)
		start_ns = f->before_ns + 1;
	if (end_ns <= start_ns)
		return;
	run = add_run(f);
	run->gpu = gpu;
	run->pid = e->pid;
	run->gi = run->ci = -1;
	run->start_ns = start_ns;
	run->end_ns = end_ns;
	run->cgroup = mem_strdup(NOWHERE);
	run->comm = mem_strdup("ended");
	add_phase(f, run, e->active_ppm > 0 ? e->active_ppm / PPM_PER_PERCENT : 0,
	          e->max_memory_bytes > 0 ? e->max_memory_bytes : 0);
}

void
record_take_processes(struct record_file *f, struct proc *proc, const struct gpu_snapshot *s, int64_t wall_ns)
{
	for (size_t i = 0; i < f->run_count; i++) {
		const struct gpu_reading *r = &s->gpus[f->runs[i].gpu];

		/* the processes of a GPU that does not answer are not known: they stay */
		f->runs[i].seen = r->down || r->silent;
	}
	for (size_t g = 0; g < s->count; g++) {
		for (size_t i = 0; i < s->gpus[g].process_count; i++)
			take_process(f, proc, g, &s->gpus[g].processes[i], false);
		if (s->gpus[g].mps)
			take_server(f, proc, g, &s->gpus[g]);
	}
	for (size_t i = 0; i < f->run_count; i++)
		if (!f->runs[i].seen && f->runs[i].end_ns == RECORD_ALIVE)
			f->runs[i].end_ns = f->now_ns;
	for (size_t g = 0; g < s->count; g++)
		for (size_t i = 0; i < s->gpus[g].exit_count; i++)
			take_exit(f, g, &s->gpus[g].exits[i], wall_ns);
}

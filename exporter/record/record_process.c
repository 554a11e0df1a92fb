/* exporter/record/record_process.c - processes taken into a file of a recording. The rules are in record.h. */
#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/record/record_file.h"

#define PPM_PER_PERCENT 10000
#define SERVER_PID 4194000u /* a server whose PID is not told, and the number of its GPU */
#define SERVER_NAME "nvidia-cuda-mps-server"
#define NOBODY 65534
#define NOWHERE "/recorded.slice" /* the cgroup of what cannot be looked up */

static struct record_run *
add_run(struct record_file *f)
{
	if (f->run_count == f->run_cap) {
		f->run_cap = f->run_cap ? 2 * f->run_cap : 64;
		f->runs = mem_grow(f->runs, f->run_cap, sizeof(*f->runs));
	}
	f->runs[f->run_count] = (struct record_run){
		.end_ns = RECORD_ALIVE, .uid = NOBODY, .sm = RECORD_NOT_WRITTEN, .memory = RECORD_NOT_WRITTEN};
	buf_init(&f->runs[f->run_count].activity, RECORD_TEXT_MAX);
	return &f->runs[f->run_count++];
}

/* Rule 5. What cannot be read belongs to nobody. */
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

/* Rule 1: the activity is that since the reading before, the memory that of now. */
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

/* Sources leave servers out; one without clients is known by the flag alone. */
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

		/* nobody knows who is on a GPU that does not answer: they stay */
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

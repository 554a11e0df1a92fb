/* tests/bench/bench_identity.c - whose 168 processes these are: a tick in which nothing changed, beside its limit of 0.3 ms of processor
 * time, and a tick in which all are new, beside reading the same three files of each. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"
#include "exporter/identity/alloc.h"
#include "tests/support/harness/bench.h"

enum { PROCESSES = 168, ROUNDS = 201 };
#define LIMIT_NS (300 * NS_PER_US)

struct world {
	pid_t pids[PROCESSES];
	struct identity *id;
	struct alloc *alloc;
	struct gpu_snapshot *snap;
	int64_t wall_ns;
};

static const struct identity_options options = {.proc_root = "/proc", .pods_root = "/nonexistent"};

static void
look_at_all(struct identity *id, struct world *w)
{
	for (int i = 0; i < PROCESSES; i++) {
		struct process_identity p;

		if (!identity_of(id, (uint32_t)w->pids[i], &p, NULL))
			return;
		if (w->alloc)
			bench_keep(alloc_holder(w->alloc, p.holder, &w->snap->gpus[0], -1, -1));
	}
	identity_sweep(id);
}

static void
same_tick(struct world *w)
{
	w->wall_ns += NS_PER_S;
	alloc_refresh(w->alloc, w->snap, w->wall_ns, w->wall_ns);
	look_at_all(w->id, w);
}

static void
new_tick(void *arg)
{
	struct world *w = arg;
	owned(identity) struct identity *id = identity_new(&options);
	struct world without = *w;

	without.alloc = NULL;
	look_at_all(id, &without);
}

static void
read_files(void *arg)
{
	static const char *const files[] = {"stat", "cgroup", "status"};
	const struct world *w = arg;
	char path[64], text[4096];

	for (int i = 0; i < PROCESSES; i++)
		for (size_t k = 0; k < ARRAY_LEN(files); k++) {
			int fd;

			snprintf(path, sizeof(path), "/proc/%d/%s", (int)w->pids[i], files[k]);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			bench_keep(read(fd, text, sizeof(text)) > 0 ? text : NULL);
			close(fd);
		}
}

static int64_t
cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* A limit has no turns to take: the median of many ticks beside the figure itself. */
static void
bench_limit(struct world *w)
{
	int64_t took[ROUNDS];
	int64_t median;

	for (int i = 0; i < ROUNDS; i++) {
		int64_t began = cpu_ns();
		int k = i;

		same_tick(w);
		began = cpu_ns() - began;
		for (; k > 0 && took[k - 1] > began; k--)
			took[k] = took[k - 1];
		took[k] = began;
	}
	median = took[ROUNDS / 2];
	printf("{\"name\": \"identity of 168, nothing new\", \"unit\": \"us/tick\", \"ours\": %.2f, \"against\": \"the limit\", "
	       "\"theirs\": %.2f, \"ratio\": %.3f, \"goal\": 1.000}\n",
	       (double)median / 1000, (double)LIMIT_NS / 1000, (double)median / (double)LIMIT_NS);
	fflush(stdout);
}

static bool
start(struct world *w)
{
	struct alloc_options none = {.slurm = {.slurm_dir = "/nonexistent"}};
	struct err err;

	for (int i = 0; i < PROCESSES; i++) {
		w->pids[i] = fork();
		if (w->pids[i] == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			pause();
			_exit(0);
		}
	}
	w->snap = gpu_snapshot_new();
	gpu_snapshot_resize(w->snap, 1);
	gpu_reading_clear(&w->snap->gpus[0]);
	w->id = identity_new(&options);
	return alloc_new(&none, w->id, 0, &w->alloc, &err);
}

int
main(void)
{
	struct world w = {.wall_ns = NS_PER_DAY};
	struct bench b = {.name = "identity of 168, all new",
	                  .item = "process",
	                  .items = PROCESSES,
	                  .against = "reading stat, cgroup and status",
	                  .goal = 2,
	                  .ours = new_tick,
	                  .theirs = read_files,
	                  .arg = &w};
	bool ok = start(&w);

	if (ok) {
		bench_limit(&w);
		bench_run(&b);
	}
	alloc_free(w.alloc);
	identity_free(w.id);
	gpu_snapshot_free(w.snap);
	for (int i = 0; i < PROCESSES; i++) {
		(void)kill(w.pids[i], SIGKILL);
		(void)waitpid(w.pids[i], NULL, 0);
	}
	return ok ? 0 : 1;
}

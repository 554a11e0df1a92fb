/* tests/support/exporter/simnode.c - a node on the NVML simulator inside a test. */
#include "tests/support/exporter/simnode.h"

#include <dlfcn.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"

static _Noreturn void
give_up(const char *what, const char *why)
{
	fprintf(stderr, "simnode: %s: %s\n", what, why);
	abort();
}

void
simnode_library(char *out, size_t size)
{
	const char *build = getenv("TOLLGATE_BUILD_DIR");
	char self[512];
	ssize_t n;

	if (build && *build) {
		snprintf(out, size, "%s/sim/libnvidia-ml.so.1", build);
		return;
	}
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		give_up("/proc/self/exe", "cannot be read");
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	snprintf(out, size, "%s/../sim/libnvidia-ml.so.1", self);
}

/* dlsym gives an object pointer, and ISO C has no cast from it to a function. */
static void
load_clock(struct simnode *n)
{
	void *symbol = dlsym(n->handle, "tollgate_sim_set_time_ns");

	if (!symbol)
		give_up(n->library, "has no clock");
	memcpy(&n->set_time_ns, &symbol, sizeof(symbol));
}

void
simnode_init_file(struct simnode *n, const char *path)
{
	char t0[32];

	memset(n, 0, sizeof(*n));
	/* in memory where the system has such a place: processes come and go there in fast-forward */
	snprintf(n->dir, sizeof(n->dir), "%s/simnode-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(n->dir))
		give_up(n->dir, "cannot be made");
	snprintf(n->scenario, sizeof(n->scenario), "%s", path);
	snprintf(n->proc, sizeof(n->proc), "%s/proc", n->dir);
	snprintf(n->pods, sizeof(n->pods), "%s/pods", n->dir);
	simnode_library(n->library, sizeof(n->library));
	snprintf(t0, sizeof(t0), "%" PRId64, SIMNODE_T0_NS);
	setenv("TOLLGATE_SIM_T0_NS", t0, 1);
	setenv("TOLLGATE_SIM_SCENARIO", n->scenario, 1);
	unsetenv("TOLLGATE_SIM_PROC");
	unsetenv("TOLLGATE_SIM_PODS");
	n->handle = dlopen(n->library, RTLD_NOW | RTLD_LOCAL);
	if (!n->handle)
		give_up("the simulator does not load", dlerror());
	load_clock(n);
	n->set_time_ns(0);
	n->snapshot = gpu_snapshot_new();
}

void
simnode_init(struct simnode *n, const char *scenario_yaml)
{
	struct err err;

	simnode_init_file(n, "");
	snprintf(n->scenario, sizeof(n->scenario), "%s/scenario.yaml", n->dir);
	setenv("TOLLGATE_SIM_SCENARIO", n->scenario, 1);
	if (!file_write_atomic(n->scenario, scenario_yaml, strlen(scenario_yaml), 0600, &err))
		give_up(n->scenario, err.text);
}

void
simnode_show_processes(struct simnode *n)
{
	setenv("TOLLGATE_SIM_PROC", n->proc, 1);
	setenv("TOLLGATE_SIM_PODS", n->pods, 1);
}

static int
remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void
simnode_fini(struct simnode *n)
{
	gpu_source_free(n->source);
	gpu_snapshot_free(n->snapshot);
	if (n->handle)
		dlclose(n->handle);
	if (n->dir[0])
		nftw(n->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	memset(n, 0, sizeof(*n));
}

bool
simnode_try_open(struct simnode *n, struct err *err)
{
	gpu_source_free(take(n->source));
	return nvml_open(&(struct nvml_options){.library = n->library}, &n->source, err);
}

static bool
open_library(void *arg, struct gpu_source **ret, struct err *err)
{
	const struct simnode *n = arg;

	return nvml_open(&(struct nvml_options){.library = n->library}, ret, err);
}

struct reader *
simnode_reader(struct simnode *n)
{
	struct reader_options o = {.open = open_library, .arg = n};
	struct reader *r = NULL;
	struct err err;
	bool answered;

	if (!reader_new(&o, &r, &err) || !reader_wait_open(r, SIMNODE_PATIENCE_NS, &answered, &err))
		give_up("the source does not open", err.text);
	if (!answered)
		give_up(n->library, "does not answer");
	return r;
}

bool
simnode_try_read(struct simnode *n, int64_t t_ns, struct err *err)
{
	n->set_time_ns(t_ns);
	return gpu_source_read_all(n->source, SIMNODE_T0_NS + t_ns, n->snapshot, err);
}

void
simnode_open(struct simnode *n)
{
	struct err err;

	if (!simnode_try_open(n, &err))
		give_up("the source does not open", err.text);
}

struct nvml_source *
simnode_nvml(struct simnode *n)
{
	if (!n->source)
		simnode_open(n);
	return (struct nvml_source *)n->source;
}

const struct gpu_reading *
simnode_read(struct simnode *n, int64_t t_ns, size_t gpu)
{
	struct err err;

	if (!n->source)
		simnode_open(n);
	if (!simnode_try_read(n, t_ns, &err))
		give_up("the source does not read", err.text);
	if (gpu >= n->snapshot->count)
		give_up(n->scenario, "has fewer GPUs than the test asks for");
	return &n->snapshot->gpus[gpu];
}

const struct gpu_process *
simnode_process(const struct gpu_reading *r, uint32_t pid)
{
	for (size_t i = 0; i < r->process_count; i++)
		if (r->processes[i].pid == pid)
			return &r->processes[i];
	return NULL;
}

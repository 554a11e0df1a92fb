/* CPU, memory, I/O and pressure of workloads, on a tree of files that looks like /proc and the cgroups. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "exporter/metrics/workload.h"

#define UID_DASHED "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
#define UID_UNDERSCORED "0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0"
#define CID "4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a"
#define POD_SLICE "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_UNDERSCORED ".slice"
#define POD_SCOPE POD_SLICE "/cri-containerd-" CID ".scope"
#define JOB_FOLDER "system.slice/slurmstepd.scope/job_4711"
#define SLUID "sEKNKTV3WPV500"
#define USER_SLICE "user.slice/user-1000.slice"

static char none[] = "";

#define POD(number, uid_of_pod)                                                                           \
	{                                                                                                 \
		.id = (number), .kind = WIRE_POD, .ns = (char[]){"research"}, .pod = (char[]){"train-0"}, \
		.pod_uid = (char[]){uid_of_pod}, .container = (char[]){"main"}, .slurm_job = none,        \
		.slurm_account = none, .user = none, .group = none, .labels = none, .uid = -1             \
	}
#define OTHER(number, what, job_id, of_uid)                                                                     \
	{                                                                                                       \
		.id = (number), .kind = (what), .ns = none, .pod = none, .pod_uid = none, .container = none,    \
		.slurm_job = (char[]){job_id}, .slurm_account = none, .user = (char[]){"alice"}, .group = none, \
		.labels = none, .uid = (of_uid)                                                                 \
	}
static struct wire_holder pod = POD(1, UID_DASHED), job = OTHER(2, WIRE_SLURM_JOB, "4711", -1),
			  user = OTHER(3, WIRE_HOST_USER, "", 1000);
/* another pod under the same name */
static struct wire_holder again = POD(4, "ffffffff-4b5a-6978-8796-a5b4c3d2e1f0");

/* ---- the tree ---- */

struct node {
	char dir[64];
	struct workload *w;
	struct tick_process processes[8];
	struct tick_gpu gpu;
	struct tick_allocation allocations[2];
	struct tick tick;
	const struct workload_row *rows;
	size_t row_count;
};

/* Writes DIR/PATH, with the folders that it needs. */
static void
put(const struct node *n, const char *path, const char *text)
{
	char whole[1024];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s/%s", n->dir, path);
	for (char *slash = whole + strlen(n->dir) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		(void)mkdir(whole, 0755);
		*slash = '/';
	}
	f = fopen(whole, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void
put_in(const struct node *n, const char *folder, const char *name, const char *text)
{
	char path[900];

	snprintf(path, sizeof(path), "cgroup/%s/%s", folder, name);
	put(n, path, text);
}

static void
put_process(const struct node *n, unsigned pid, const char *cgroup)
{
	char path[64];

	snprintf(path, sizeof(path), "proc/%u/cgroup", pid);
	put(n, path, cgroup);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static void
remove_tree(const struct node *n, const char *below)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s%s", n->dir, below);
	assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* All that v2 has. */
static void
put_v2(const struct node *n, const char *folder)
{
	put_in(n, folder, "cgroup.procs", "");
	put_in(n, folder, "cpu.stat", "usage_usec 7500000\nuser_usec 5000000\nsystem_usec 2500000\nnr_periods 0\n");
	put_in(n, folder, "memory.current", "1000000\n");
	put_in(n, folder, "memory.stat",
	       "anon 400000\nanon_thp 1\nfile 500000\ninactive_anon 7\ninactive_file 300000\n");
	put_in(n, folder, "memory.peak", "2000000\n");
	put_in(n, folder, "memory.max", "4000000\n");
	put_in(n, folder, "memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n");
	put_in(n, folder, "io.stat",
	       "8:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n259:0 rbytes=1000 wbytes=200 rios=1\n");
	put_in(n, folder, "cpu.pressure",
	       "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n");
	put_in(n, folder, "memory.pressure",
	       "some avg10=1.00 avg60=0.00 avg300=0.00 total=13\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=14\n");
	put_in(n, folder, "io.pressure",
	       "some avg10=0.00 avg60=0.00 avg300=0.00 total=15\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=16\n");
}

static const int64_t of_v2[WORKLOAD_VALUES] = {
	[WORKLOAD_CPU_USER_NS] = 5 * NS_PER_S,
	[WORKLOAD_CPU_SYSTEM_NS] = 2500 * NS_PER_MS,
	[WORKLOAD_MEMORY_BYTES] = 1000000,
	[WORKLOAD_MEMORY_WORKING_SET_BYTES] = 700000,
	[WORKLOAD_MEMORY_ANON_BYTES] = 400000,
	[WORKLOAD_MEMORY_PEAK_BYTES] = 2000000,
	[WORKLOAD_MEMORY_LIMIT_BYTES] = 4000000,
	[WORKLOAD_OOM_KILLS] = 2,
	[WORKLOAD_IO_READ_BYTES] = 1100,
	[WORKLOAD_IO_WRITE_BYTES] = 220,
	[WORKLOAD_PRESSURE_CPU_SOME_NS] = 11000,
	[WORKLOAD_PRESSURE_CPU_FULL_NS] = 12000,
	[WORKLOAD_PRESSURE_MEMORY_SOME_NS] = 13000,
	[WORKLOAD_PRESSURE_MEMORY_FULL_NS] = 14000,
	[WORKLOAD_PRESSURE_IO_SOME_NS] = 15000,
	[WORKLOAD_PRESSURE_IO_FULL_NS] = 16000,
};

/* What v1 has of a pod, a container deep. */
static void
put_v1(const struct node *n, const char *pod_folder)
{
	char folder[512];

	snprintf(folder, sizeof(folder), "cpuacct/%s", pod_folder);
	put_in(n, folder, "cgroup.procs", "");
	put_in(n, folder, "cpuacct.stat", "user 500\nsystem 250\n");
	snprintf(folder, sizeof(folder), "memory/%s", pod_folder);
	put_in(n, folder, "cgroup.procs", "");
	put_in(n, folder, "memory.usage_in_bytes", "1000000\n");
	put_in(n, folder, "memory.max_usage_in_bytes", "2000000\n");
	put_in(n, folder, "memory.limit_in_bytes", "9223372036854771712\n");
	put_in(n, folder, "memory.stat",
	       "cache 1\nrss 1\ninactive_file 2\ntotal_rss 400000\ntotal_inactive_file 300000\n");
	put_in(n, folder, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
	snprintf(folder, sizeof(folder), "blkio/%s", pod_folder);
	put_in(n, folder, "cgroup.procs", "");
	put_in(n, folder, "blkio.throttle.io_service_bytes_recursive",
	       "8:0 Read 100\n8:0 Write 20\n8:0 Sync 7\n8:0 Total 120\n259:0 Read 1000\n259:0 Write 200\nTotal 1320\n");
}

static void
begin(struct node *n, size_t files_max)
{
	char proc_root[80], cgroup_root[80];

	snprintf(proc_root, sizeof(proc_root), "%s/proc", n->dir);
	snprintf(cgroup_root, sizeof(cgroup_root), "%s/cgroup", n->dir);
	n->w = workload_new(&(struct workload_options){proc_root, cgroup_root, files_max});
}

static int
node_setup(void **state)
{
	struct node *n = mem_alloc(sizeof(*n));

	snprintf(n->dir, sizeof(n->dir), "/tmp/tollgate-workload-XXXXXX");
	assert_non_null(mkdtemp(n->dir));
	put(n, "proc/self/cgroup", "0::/system.slice/tollgate-exporter.service\n");
	put(n, "cgroup/README", "");
	n->gpu.processes = n->processes;
	n->tick = (struct tick){.boot_ns = NS_PER_HOUR, .gpus = &n->gpu, .gpu_count = 1, .allocations = n->allocations};
	*state = n;
	return 0;
}

static int
node_teardown(void **state)
{
	struct node *n = *state;

	workload_free(n->w);
	remove_tree(n, "");
	mem_free(n);
	return 0;
}

static void
add_process(struct node *n, const struct wire_holder *h, uint32_t pid)
{
	n->processes[n->gpu.process_count++] = (struct tick_process){.holder = h, .pid = pid, .gi = -1, .ci = -1};
}

static void
follow(struct node *n)
{
	n->row_count = workload_follow(n->w, &n->tick, &n->rows);
}

/* A tick that shows who is there, a reading, and the tick after it. */
static void
live(struct node *n)
{
	follow(n);
	workload_round(n->w, n->tick.boot_ns, true);
	n->tick.boot_ns += NS_PER_S;
	follow(n);
}

static size_t
unread(const struct node *n)
{
	struct workload_stats s;

	workload_stats(n->w, &s);
	return s.unread;
}

/* ---- values ---- */

static void
v2_tells_all_values(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "cpu io memory\n");
	put_v2(n, POD_SCOPE);
	put_process(n, 100, "0::/" POD_SCOPE "/made-by-the-pod\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_ptr_equal(n->rows[0].holder, &pod);
	assert_memory_equal(n->rows[0].values, of_v2, sizeof(of_v2));
	assert_int_equal(unread(n), 0);
}

static void
v1_tells_the_same_but_for_pressure_and_what_is_unlimited(void **state)
{
	struct node *n = *state;
	int64_t wanted[WORKLOAD_VALUES];

	memcpy(wanted, of_v2, sizeof(wanted));
	wanted[WORKLOAD_MEMORY_LIMIT_BYTES] = ABSENT;
	for (int i = WORKLOAD_PRESSURE_CPU_SOME_NS; i < WORKLOAD_VALUES; i++)
		wanted[i] = ABSENT;
	put_v1(n, "kubepods/burstable/pod" UID_DASHED "/" CID);
	put_process(n, 100,
	            "5:cpu,cpuacct:/kubepods/burstable/pod" UID_DASHED "/" CID
	            "\n4:memory:/kubepods/burstable/pod" UID_DASHED "/" CID
	            "\n3:blkio:/kubepods/burstable/pod" UID_DASHED "/" CID "\n2:freezer:/\n0::/\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_memory_equal(n->rows[0].values, wanted, sizeof(wanted));
}

/* The second process stands for one whose PID another job has by now. */
static void
a_job_is_found_by_the_sluid_that_its_cgroup_has(void **state)
{
	struct node *n = *state;
	struct wire_holder other = OTHER(5, WIRE_SLURM_JOB, "4712", -1);

	put(n, "cgroup/cgroup.controllers", "cpu io memory\n");
	put_v2(n, "system.slice/slurmstepd.scope/" SLUID);
	put_process(n, 100, "0::/system.slice/slurmstepd.scope/" SLUID "/step_0/user/task_0\n");
	begin(n, 100);
	add_process(n, &job, 100);
	memcpy(n->processes[0].slurm_sluid, SLUID, sizeof(SLUID));
	add_process(n, &other, 100);
	memcpy(n->processes[1].slurm_sluid, "sEKNKTV3WPV501", sizeof(SLUID));
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_ptr_equal(n->rows[0].holder, &job);
	assert_memory_equal(n->rows[0].values, of_v2, sizeof(of_v2));
	assert_int_equal(unread(n), 1);
}

static void
a_job_in_a_pod_has_its_own_values_and_so_has_the_pod(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "cpu io memory\n");
	put_v2(n, POD_SCOPE);
	put_v2(n, POD_SCOPE "/" JOB_FOLDER);
	put_in(n, POD_SCOPE "/" JOB_FOLDER, "memory.current", "600000\n");
	put_process(n, 100, "0::/" POD_SCOPE "/" JOB_FOLDER "/step_0\n");
	begin(n, 100);
	add_process(n, &job, 100);
	add_process(n, &pod, 100); /* as it is where the pod's namespace is not Slurm's */
	live(n);
	assert_int_equal(n->row_count, 2);
	assert_ptr_equal(n->rows[0].holder, &job);
	assert_int_equal(n->rows[0].values[WORKLOAD_MEMORY_BYTES], 600000);
	assert_int_equal(n->rows[1].values[WORKLOAD_MEMORY_BYTES], 1000000);
}

static void
v1_with_v2_beside_it_has_pressure_too(void **state)
{
	struct node *n = *state;

	put_v1(n, POD_SCOPE);
	put_in(n, "unified/" POD_SCOPE, "cgroup.procs", "");
	put_in(n, "unified/" POD_SCOPE, "cpu.stat", "usage_usec 9\nuser_usec 4\nsystem_usec 5\n");
	put_in(n, "unified/" POD_SCOPE, "io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=15\n");
	put_process(n, 100,
	            "5:cpuacct:/" POD_SCOPE "\n4:memory:/" POD_SCOPE "\n3:blkio:/" POD_SCOPE "\n0::/" POD_SCOPE "\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	live(n);
	assert_int_equal(n->rows[0].values[WORKLOAD_CPU_USER_NS], 4000);
	assert_int_equal(n->rows[0].values[WORKLOAD_MEMORY_BYTES], 1000000);
	assert_int_equal(n->rows[0].values[WORKLOAD_PRESSURE_IO_SOME_NS], 15000);
	assert_int_equal(n->rows[0].values[WORKLOAD_PRESSURE_IO_FULL_NS], ABSENT);
	assert_int_equal(n->rows[0].values[WORKLOAD_PRESSURE_CPU_SOME_NS], ABSENT);
}

static void
files_that_are_missing_or_odd_leave_their_values_out(void **state)
{
	struct node *n = *state;
	struct workload_stats s;
	int64_t wanted[WORKLOAD_VALUES];

	for (int i = 0; i < WORKLOAD_VALUES; i++)
		wanted[i] = ABSENT;
	put(n, "cgroup/cgroup.controllers", "");
	put_in(n, POD_SCOPE, "cgroup.procs", "");
	put_in(n, POD_SCOPE, "cpu.stat", "usage_usec\nuser_usec -5\nsystem_usec 99999999999999999999\n");
	put_in(n, POD_SCOPE, "memory.current", "");
	put_in(n, POD_SCOPE, "memory.stat", "anon\ninactive_file 9\n");
	put_in(n, POD_SCOPE, "memory.max", "max\n");
	put_in(n, POD_SCOPE, "cpu.pressure", "some avg10=0.00\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n");
	/* a folder instead of a file: there, and not to be read */
	put_in(n, POD_SCOPE "/memory.peak", "odd", "");
	wanted[WORKLOAD_PRESSURE_CPU_FULL_NS] = 12000;
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_memory_equal(n->rows[0].values, wanted, sizeof(wanted));
	workload_stats(n->w, &s);
	assert_int_equal(s.failures, 1);
	/* what was not there when the workload came is not looked for again */
	put_in(n, POD_SCOPE, "io.stat", "");
	live(n);
	assert_int_equal(n->rows[0].values[WORKLOAD_IO_READ_BYTES], ABSENT);
	workload_stats(n->w, &s);
	assert_int_equal(s.failures, 1);
}

static void
values_follow_the_files_whether_these_stay_open_or_not(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	add_process(n, &pod, 100);
	for (size_t files_max = 0; files_max < 4; files_max++) {
		put_in(n, POD_SCOPE, "memory.current", "1000000\n");
		begin(n, files_max);
		live(n);
		put_in(n, POD_SCOPE, "memory.current", "1000001\n");
		live(n);
		assert_int_equal(n->rows[0].values[WORKLOAD_MEMORY_BYTES], 1000001);
		workload_free(n->w);
	}
	n->w = NULL;
}

/* ---- whose cgroup ---- */

struct level_row {
	const char *name;
	const struct wire_holder *holder;
	const char *cgroup; /* of the process */
	const char *folder; /* that is read; NULL: none */
};

static const struct level_row level_rows[] = {
	{"a pod's container, not what it made below", &pod, "0::/" POD_SCOPE "/a/b\n", POD_SCOPE},
	{"a container without an id that can be read is its pod's", &pod, "0::/" POD_SLICE "/odd\n", POD_SLICE},
	{"a job, not its step", &job, "0::/" JOB_FOLDER "/step_0/user/task_0\n", JOB_FOLDER},
	{"a user's slice, not the session", &user, "0::/" USER_SLICE "/session-1.scope\n", USER_SLICE},
	{"a folder like a pod's that a user made is the user's", &user,
         "0::/" USER_SLICE "/user@1000.service/" POD_SCOPE "\n", USER_SLICE},
	{"a pod seen from another pod", &pod,
         "0::/../../kubepods-burstable-pod" UID_UNDERSCORED ".slice/cri-containerd-" CID ".scope\n", POD_SCOPE},
	{"a pod seen from another pod, not a folder of nobody that is called so", &pod,
         "0::/../pod" UID_DASHED "/" CID "\n", "kubepods/besteffort/pod" UID_DASHED "/" CID},
	{"a job seen from a pod", &job, "0::/../../../../" JOB_FOLDER "/step_0\n", JOB_FOLDER},
	{"a PID that is another pod's by now", &again, "0::/" POD_SCOPE "\n", NULL},
	{"a PID that is a pod's by now", &job, "0::/" POD_SCOPE "\n", NULL},
	{"a PID that is another user's by now", &user, "0::/user.slice/user-1001.slice/session-1.scope\n", NULL},
	{"a user's process outside the slice", &user, "0::/system.slice/cron.service\n", NULL},
	{"a user's process on a device of the job, outside it", &job, "0::/" USER_SLICE "/session-1.scope\n", NULL},
	{"no cgroup at all", &pod, "", NULL},
};

static void
only_the_own_folder_of_the_holder_is_read(void **state)
{
	struct node *n = *state;
	static const char *const folders[] = {POD_SCOPE,
	                                      POD_SLICE,
	                                      JOB_FOLDER,
	                                      USER_SLICE,
	                                      POD_SCOPE "/a/b",
	                                      JOB_FOLDER "/step_0/user/task_0",
	                                      USER_SLICE "/session-1.scope",
	                                      "user.slice/user-1001.slice",
	                                      "pod" UID_DASHED "/" CID,
	                                      "kubepods/besteffort/pod" UID_DASHED "/" CID,
	                                      "system.slice/cron.service"};

	put(n, "cgroup/cgroup.controllers", "");
	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		char bytes[32];

		snprintf(bytes, sizeof(bytes), "%zu\n", 1000 + i);
		put_in(n, folders[i], "cgroup.procs", "");
		put_in(n, folders[i], "memory.current", bytes);
	}
	for (size_t i = 0; i < ARRAY_LEN(level_rows); i++) {
		const struct level_row *r = &level_rows[i];
		size_t k = 0;

		put_process(n, 100, r->cgroup);
		begin(n, 100);
		n->gpu.process_count = 0;
		add_process(n, r->holder, 100);
		live(n);
		if (n->row_count != (r->folder != NULL))
			fail_msg("%s: %zu rows", r->name, n->row_count);
		while (r->folder && strcmp(folders[k], r->folder) != 0)
			k++;
		if (r->folder && n->rows[0].values[WORKLOAD_MEMORY_BYTES] != (int64_t)(1000 + k))
			fail_msg("%s: %" PRId64, r->name, n->rows[0].values[WORKLOAD_MEMORY_BYTES]);
		assert_int_equal(unread(n), r->folder ? 0 : 1);
		workload_free(n->w);
	}
	n->w = NULL;
}

static void
a_process_that_is_elsewhere_does_not_hide_one_that_is_in_the_job(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, JOB_FOLDER);
	put_process(n, 100, "0::/" USER_SLICE "/session-1.scope\n");
	put_process(n, 101, "0::/" JOB_FOLDER "/step_0\n");
	begin(n, 100);
	add_process(n, &job, 99); /* gone */
	add_process(n, &job, 100);
	add_process(n, &job, 101);
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_memory_equal(n->rows[0].values, of_v2, sizeof(of_v2));
}

/* ---- coming and going ---- */

static void
an_ended_workload_is_gone_with_the_tick_and_a_held_one_stays(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_v2(n, JOB_FOLDER);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	put_process(n, 101, "0::/" JOB_FOLDER "/step_0\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	add_process(n, &job, 101);
	live(n);
	assert_int_equal(n->row_count, 2);
	/* the job's process ends; the pod's too, but the pod keeps its device */
	n->gpu.process_count = 0;
	n->allocations[0] = (struct tick_allocation){.holder = &pod};
	n->tick.allocation_count = 1;
	follow(n);
	assert_int_equal(n->row_count, 1);
	assert_ptr_equal(n->rows[0].holder, &pod);
	live(n);
	assert_int_equal(n->row_count, 1);
	/* a tick in which the driver said nothing shows nobody, and forgets nobody */
	assert_int_equal(workload_follow(n->w, NULL, &n->rows), 0);
	follow(n);
	assert_int_equal(n->row_count, 1);
	n->tick.allocation_count = 0;
	follow(n);
	assert_int_equal(n->row_count, 0);
	assert_int_equal(unread(n), 0);
}

static void
a_container_that_starts_again_is_found_anew(void **state)
{
	static const char second[] = POD_SLICE "/cri-containerd-aaaa9b0c1e2f4d7a.scope";
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	begin(n, 0);
	add_process(n, &pod, 100);
	live(n);
	remove_tree(n, "/cgroup/" POD_SCOPE);
	remove_tree(n, "/proc/100");
	live(n);
	assert_int_equal(n->row_count, 0);
	assert_int_equal(unread(n), 1);
	put_v2(n, second);
	put_in(n, second, "memory.current", "5\n");
	put_process(n, 200,
	            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_UNDERSCORED
	            ".slice/cri-containerd-aaaa9b0c1e2f4d7a.scope\n");
	n->processes[0].pid = 200;
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_int_equal(n->rows[0].values[WORKLOAD_MEMORY_BYTES], 5);
}

static void
a_new_workload_is_read_at_once_and_the_others_with_the_round(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_v2(n, JOB_FOLDER);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	put_process(n, 101, "0::/" JOB_FOLDER "/step_0\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	live(n);
	put_in(n, POD_SCOPE, "memory.current", "5\n");
	add_process(n, &job, 101);
	follow(n);
	workload_round(n->w, n->tick.boot_ns, false);
	follow(n);
	assert_int_equal(n->row_count, 2);
	assert_int_equal(n->rows[0].values[WORKLOAD_MEMORY_BYTES], 1000000);
	workload_round(n->w, n->tick.boot_ns, true);
	follow(n);
	assert_int_equal(n->rows[0].values[WORKLOAD_MEMORY_BYTES], 5);
}

static void
old_values_are_no_values(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	live(n);
	n->tick.boot_ns += WORKLOAD_STALE_NS - NS_PER_S;
	follow(n);
	assert_int_equal(n->row_count, 1);
	n->tick.boot_ns++;
	follow(n);
	assert_int_equal(n->row_count, 0);
	assert_int_equal(unread(n), 1);
}

static void
of_two_with_the_same_labels_the_first_is_shown(void **state)
{
	struct node *n = *state;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_v2(n, "kubepods/podffffffff-4b5a-6978-8796-a5b4c3d2e1f0/" CID);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	put_process(n, 101, "0::/kubepods/podffffffff-4b5a-6978-8796-a5b4c3d2e1f0/" CID "\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	add_process(n, &again, 101);
	live(n);
	assert_int_equal(n->row_count, 1);
	assert_ptr_equal(n->rows[0].holder, &pod);
	assert_int_equal(unread(n), 0);
	n->processes[0] = n->processes[1];
	n->gpu.process_count = 1;
	follow(n);
	assert_int_equal(n->row_count, 1);
	assert_ptr_equal(n->rows[0].holder, &again);
}

static void
beyond_the_limit_workloads_have_no_values_and_are_counted(void **state)
{
	struct node *n = *state;
	struct wire_holder *many = mem_array(WORKLOADS_MAX + 3, sizeof(*many));
	struct tick_process *processes = mem_array(WORKLOADS_MAX + 3, sizeof(*processes));

	put(n, "cgroup/cgroup.controllers", "");
	begin(n, 100);
	for (uint32_t i = 0; i < WORKLOADS_MAX + 3; i++) {
		many[i] = user;
		many[i].id = 10 + i;
		many[i].uid = 5000 + i;
		processes[i] = (struct tick_process){.holder = &many[i], .pid = 100 + i};
	}
	n->gpu = (struct tick_gpu){.processes = processes, .process_count = WORKLOADS_MAX + 3};
	live(n);
	assert_int_equal(n->row_count, 0);
	assert_int_equal(unread(n), WORKLOADS_MAX + 3);
	mem_free(many);
	mem_free(processes);
}

static void
the_thread_reads_by_itself(void **state)
{
	struct node *n = *state;
	struct err err;

	put(n, "cgroup/cgroup.controllers", "");
	put_v2(n, POD_SCOPE);
	put_process(n, 100, "0::/" POD_SCOPE "\n");
	begin(n, 100);
	add_process(n, &pod, 100);
	assert_true(workload_start(n->w, &err));
	/* the thread's clock is the machine's; a test that fails waits for long */
	for (int i = 0; i < 6000 && n->row_count == 0; i++) {
		n->tick.boot_ns = time_boot_ns();
		follow(n);
		usleep(10000);
	}
	assert_int_equal(n->row_count, 1);
	assert_memory_equal(n->rows[0].values, of_v2, sizeof(of_v2));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(v2_tells_all_values, node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(v1_tells_the_same_but_for_pressure_and_what_is_unlimited, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(a_job_is_found_by_the_sluid_that_its_cgroup_has, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(a_job_in_a_pod_has_its_own_values_and_so_has_the_pod, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(v1_with_v2_beside_it_has_pressure_too, node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(files_that_are_missing_or_odd_leave_their_values_out, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(values_follow_the_files_whether_these_stay_open_or_not, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(only_the_own_folder_of_the_holder_is_read, node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(a_process_that_is_elsewhere_does_not_hide_one_that_is_in_the_job,
	                                        node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(an_ended_workload_is_gone_with_the_tick_and_a_held_one_stays,
	                                        node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(a_container_that_starts_again_is_found_anew, node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(a_new_workload_is_read_at_once_and_the_others_with_the_round,
	                                        node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(old_values_are_no_values, node_setup, node_teardown),
		cmocka_unit_test_setup_teardown(of_two_with_the_same_labels_the_first_is_shown, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(beyond_the_limit_workloads_have_no_values_and_are_counted, node_setup,
	                                        node_teardown),
		cmocka_unit_test_setup_teardown(the_thread_reads_by_itself, node_setup, node_teardown),
	};

	return cmocka_run_group_tests_name("workload", tests, NULL, NULL);
}

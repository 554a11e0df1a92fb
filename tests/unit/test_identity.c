/* Whose process it is: cgroup paths as real runtimes write them, and a /proc made of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/buf.h"
#include "common/time.h"
#include "exporter/identity.h"

#define UID_DASHED "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
#define UID_UNDERSCORED "0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0"
#define CID "4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a"

struct cgroup_row {
	const char *name;
	const char *text;
	const char *pod_uid, *container_id, *slurm_job;
};

static const struct cgroup_row cgroup_rows[] = {
	{"v2, systemd driver, containerd, burstable",
         "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_UNDERSCORED
         ".slice/cri-containerd-" CID ".scope\n",
         UID_DASHED, CID, ""},
	{"v2, systemd driver, CRI-O, guaranteed, with a cgroup made by the container below",
         "0::/kubepods.slice/kubepods-pod" UID_UNDERSCORED ".slice/crio-" CID ".scope/container\n", UID_DASHED, CID,
         ""},
	{"v2, systemd driver, docker",
         "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UID_UNDERSCORED ".slice/docker-" CID
         ".scope\n",
         UID_DASHED, CID, ""},
	{"v2, systemd driver below a kubelet slice",
         "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" UID_UNDERSCORED
         ".slice/cri-containerd-" CID ".scope\n",
         UID_DASHED, CID, ""},
	{"v2, cgroupfs driver", "0::/kubepods/burstable/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, ""},
	{"v2, seen from another cgroup namespace", "0::/../../kubepods/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID,
         ""},
	{"v1, cgroupfs driver, guaranteed",
         "12:pids:/kubepods/pod" UID_DASHED "/" CID "\n11:devices:/kubepods/pod" UID_DASHED "/" CID
         "\n1:name=systemd:/kubepods/pod" UID_DASHED "/" CID "\n",
         UID_DASHED, CID, ""},
	{"v1, containerd without the systemd driver",
         "4:memory:/system.slice/containerd.service/kubepods-burstable-pod" UID_UNDERSCORED ".slice:cri-containerd:" CID
         "\n",
         UID_DASHED, CID, ""},
	{"v1, only some hierarchies name the pod",
         "13:misc:/\n12:rdma:/\n5:cpu,cpuacct:/kubepods/besteffort/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, ""},
	{"a static pod has a hash for UID", "0::/kubepods/burstable/podaaaabbbbccccdddd0000111122223333/" CID "\n",
         "aaaabbbbccccdddd0000111122223333", CID, ""},
	{"the pod's own cgroup, without container", "0::/kubepods/burstable/pod" UID_DASHED "\n", UID_DASHED, "", ""},
	{"Slurm, v2", "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "", "", "4711"},
	{"Slurm, v2, several slurmd on one host", "0::/system.slice/gn1_slurmstepd.scope/job_12/step_batch/slurm\n", "",
         "", "12"},
	{"Slurm, v1", "7:cpuset:/slurm/uid_1000/job_99/step_0\n1:name=systemd:/system.slice/slurmd.service\n", "", "",
         "99"},
	{"Slurm, v1, with the node's name", "9:freezer:/slurm_gn1/uid_1000/job_7/step_extern\n", "", "", "7"},
	{"Slurm, v1, a login session adopted into its job",
         "11:memory:/slurm/uid_1000/job_5/step_extern\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n",
         "", "", "5"},
	{"a user's session", "0::/user.slice/user-1000.slice/session-2.scope\n", "", "", ""},
	{"a service", "0::/system.slice/ssh.service\n", "", "", ""},
	{"the root", "0::/\n", "", "", ""},
	{"a user cannot pose as a pod below his own slice",
         "0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod" UID_UNDERSCORED
         ".slice/cri-containerd-" CID ".scope\n",
         "", "", ""},
	{"a user cannot pose as a job below his own slice",
         "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_1\n", "", "", ""},
	{"a pod cannot pose as another pod below its own cgroup",
         "0::/kubepods/pod" UID_DASHED "/" CID "/kubepods/pod11111111-1111-1111-1111-111111111111/aaaaaaaaaaaaaaaa\n",
         UID_DASHED, CID, ""},
	{"a job cannot pose as a pod below its own cgroup",
         "0::/system.slice/slurmstepd.scope/job_3/step_0/user/kubepods/pod" UID_DASHED "/" CID "\n", "", "", "3"},
	{"a job number that is not a number", "0::/slurm/uid_0/job_1x/step_0\n", "", "", ""},
	{"a pod UID with a quote", "0::/kubepods/pod0f1e\"2d/" CID "\n", "", "", ""},
	{"nothing at all", "", "", "", ""},
	{"no colons", "kubepods\n", "", "", ""},
	{"ends inside a name", "0::/kubepods/pod", "", "", ""},
};

static void
cgroup_paths_name_their_owner(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cgroup_rows); i++) {
		const struct cgroup_row *r = &cgroup_rows[i];
		struct cgroup_owner o;
		bool found = cgroup_owner_parse(r->text, strlen(r->text), &o);

		if (found != (r->pod_uid[0] || r->slurm_job[0]) || strcmp(o.pod_uid, r->pod_uid) != 0 ||
		    strcmp(o.container_id, r->container_id) != 0 || strcmp(o.slurm_job, r->slurm_job) != 0)
			fail_msg("%s: found pod '%s' container '%s' job '%s'", r->name, o.pod_uid, o.container_id,
			         o.slurm_job);
	}
}

static void
names_too_long_are_not_taken(void **state)
{
	in_place(buf) struct buf text;
	struct cgroup_owner o;

	(void)state;
	buf_init(&text, 1 << 20);
	buf_str(&text, "0::/kubepods/pod");
	for (int i = 0; i < 5000; i++)
		buf_char(&text, 'a');
	buf_str(&text, "/" CID "\n0::/slurm/job_");
	for (int i = 0; i < 5000; i++)
		buf_char(&text, '1');
	assert_false(cgroup_owner_parse(text.data, text.len, &o));
}

/* ---- a /proc made of files ---- */

struct node {
	char root[64];
	struct identity *id;
};

static void
put(const struct node *n, const char *path, const char *text)
{
	owned(mem) char *full = mem_printf("%s/%s", n->root, path);
	struct err err;

	for (char *slash = strchr(full + strlen(n->root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(full, 0755);
		*slash = '/';
	}
	if (text && !file_write_atomic(full, text, strlen(text), 0644, &err))
		fail_msg("%s", err.text);
	if (!text)
		(void)mkdir(full, 0755);
}

static void
put_process(const struct node *n, unsigned pid, const char *name, unsigned long long start_ticks, const char *cgroup,
            unsigned uid)
{
	owned(mem) char *stat_path = mem_printf("proc/%u/stat", pid);
	owned(mem) char *cgroup_path = mem_printf("proc/%u/cgroup", pid);
	owned(mem) char *status_path = mem_printf("proc/%u/status", pid);
	owned(mem) char *stat = mem_printf("%u (%s) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %llu 20 21\n", pid,
	                                   name, start_ticks);
	owned(mem) char *status =
		mem_printf("Name:\t%s\nUmask:\t0022\nUid:\t%u\t0\t0\t0\nGid:\t0\t0\t0\t0\n", name, uid);

	put(n, stat_path, stat);
	put(n, cgroup_path, cgroup);
	put(n, status_path, status);
}

static void
node_init(struct node *n)
{
	struct identity_options o;

	snprintf(n->root, sizeof(n->root), "/tmp/tollgate-identity-XXXXXX");
	assert_non_null(mkdtemp(n->root));
	put(n, "proc", NULL);
	put(n, "pods", NULL);
	owned(mem) char *proc = mem_printf("%s/proc", n->root);
	owned(mem) char *pods = mem_printf("%s/pods", n->root);

	o = (struct identity_options){.proc_root = proc, .pods_root = pods};
	n->id = identity_new(&o);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void
node_fini(struct node *n)
{
	identity_free(n->id);
	(void)nftw(n->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static struct process_identity
who(struct node *n, uint32_t pid)
{
	struct process_identity p;
	struct err err;

	if (!identity_of(n->id, pid, &p, &err))
		fail_msg("%s", err.text);
	return p;
}

#define POD_CGROUP "0::/kubepods/burstable/pod" UID_DASHED "/" CID "\n"

static void
a_pod_is_named_by_its_log_directory(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;

	(void)state;
	node_init(&n);
	put(&n, "pods/research_train-0_" UID_DASHED, NULL);
	put(&n, "pods/other_thing_11111111-1111-1111-1111-111111111111", NULL);
	put_process(&n, 100, "python", 4242, POD_CGROUP, 1000);
	p = who(&n, 100);
	assert_int_equal(p.holder->kind, WIRE_POD);
	assert_string_equal(p.holder->ns, "research");
	assert_string_equal(p.holder->pod, "train-0");
	assert_string_equal(p.holder->pod_uid, UID_DASHED);
	assert_string_equal(p.holder->container, "4d7a9b0c1e2f");
	assert_string_equal(p.holder->user, "");
	assert_int_equal(p.holder->uid, -1);
	assert_int_equal(p.start_boot_ns, 4242 * (NS_PER_S / sysconf(_SC_CLK_TCK)));
}

static void
a_pod_without_directory_is_unnamed_until_it_has_one(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;
	uint32_t unnamed;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "python", 1, POD_CGROUP, 1000);
	p = who(&n, 100);
	unnamed = p.holder->id;
	assert_int_equal(p.holder->kind, WIRE_POD);
	assert_string_equal(p.holder->ns, "");
	assert_string_equal(p.holder->pod_uid, UID_DASHED);
	put(&n, "pods/research_train-0_" UID_DASHED, NULL);
	for (int i = 0; i < 100; i++) {
		identity_sweep(n.id);
		p = who(&n, 100);
	}
	assert_string_equal(p.holder->ns, "research");
	assert_int_not_equal(p.holder->id, unnamed);
}

static void
a_slurm_job_has_its_number_and_user(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "python", 1, "0::/system.slice/slurmstepd.scope/job_42/step_0\n", 0);
	p = who(&n, 100);
	assert_int_equal(p.holder->kind, WIRE_SLURM_JOB);
	assert_string_equal(p.holder->slurm_job, "42");
	assert_string_equal(p.holder->user, "root");
	assert_int_equal(p.holder->uid, 0);
}

static void
any_other_process_is_its_users(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "python", 1, "0::/user.slice/user-0.slice/session-1.scope\n", 0);
	put_process(&n, 101, "python", 1, "0::/\n", 4123456789u); /* nobody has this number */
	assert_int_equal(who(&n, 100).holder->kind, WIRE_HOST_USER);
	assert_string_equal(who(&n, 100).holder->user, "root");
	assert_string_equal(who(&n, 101).holder->user, "4123456789");
	assert_int_equal(who(&n, 101).holder->uid, 4123456789);
}

static void
processes_of_one_workload_have_one_holder(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "a", 1, POD_CGROUP, 1000);
	put_process(&n, 101, "b", 2, POD_CGROUP, 1001);
	put_process(&n, 102, "c", 2, "0::/\n", 0);
	assert_int_equal(who(&n, 100).holder->id, who(&n, 101).holder->id);
	assert_int_not_equal(who(&n, 100).holder->id, who(&n, 102).holder->id);
}

static void
a_name_in_stat_cannot_move_the_start_time(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put_process(&n, 100, ") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 (", 500, "0::/\n", 0);
	assert_int_equal(who(&n, 100).start_boot_ns, 500 * (NS_PER_S / sysconf(_SC_CLK_TCK)));
}

static void
a_pid_used_again_is_another_process(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "a", 1, POD_CGROUP, 1000);
	assert_int_equal(who(&n, 100).holder->kind, WIRE_POD);
	put_process(&n, 100, "b", 900, "0::/\n", 0);
	identity_sweep(n.id);
	assert_int_equal(who(&n, 100).holder->kind, WIRE_HOST_USER);
}

static void
a_known_process_is_not_looked_up_again(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "a", 1, POD_CGROUP, 1000);
	assert_int_equal(who(&n, 100).holder->kind, WIRE_POD);
	put(&n, "proc/100/cgroup", "0::/\n"); /* same start time: the cgroup is not read again */
	identity_sweep(n.id);
	assert_int_equal(who(&n, 100).holder->kind, WIRE_POD);
	identity_sweep(n.id);
	identity_sweep(n.id); /* not asked for in between: forgotten */
	assert_int_equal(who(&n, 100).holder->kind, WIRE_HOST_USER);
}

static void
a_process_that_is_gone_is_missing(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;
	struct err err;

	(void)state;
	node_init(&n);
	assert_false(identity_of(n.id, 100, &p, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	put_process(&n, 100, "a", 1, "0::/\n", 0);
	put(&n, "proc/100/stat", "100 (cut");
	assert_false(identity_of(n.id, 100, &p, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	put_process(&n, 100, "a", 1, "0::/\n", 0);
	assert_true(identity_of(n.id, 100, &p, &err));
}

static void
hostile_names_never_break_a_record(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;
	struct wire_batch b = {.kind = WIRE_USAGE, .epoch = 1, .seq = 1, .last_seq = 1};
	char node_name[] = "n", version[] = "v";
	struct wire_holder h;
	struct err err;

	(void)state;
	node_init(&n);
	put(&n, "pods/na\xff\nme_po\x1b[2Jd_" UID_DASHED, NULL);
	put_process(&n, 100, "a", 1, POD_CGROUP, 1000);
	p = who(&n, 100);
	assert_string_equal(p.holder->ns, "na??me");
	assert_string_equal(p.holder->pod, "po?[2Jd");
	h = *p.holder;
	b.node = node_name;
	b.exporter_version = version;
	b.holders = &h;
	b.holder_count = 1;
	if (!wire_check(&b, &err))
		fail_msg("%s", err.text);
}

static void
many_short_workloads_do_not_fill_the_memory(void **state)
{
	in_place(node) struct node n;
	uint32_t last = 0;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "a", 1, "0::/\n", 0);
	for (unsigned i = 0; i < 3000; i++) {
		owned(mem) char *job = mem_printf("0::/system.slice/slurmstepd.scope/job_%u/step_0\n", i + 1);

		put(&n, "proc/100/cgroup", job);
		last = who(&n, 100).holder->id;
		assert_int_equal(last, i + 1); /* an id is never given again */
		identity_sweep(n.id);
		identity_sweep(n.id);
	}
}

static void
real_processes_are_followed_until_they_end(void **state)
{
	struct identity_options o = {.proc_root = "/proc", .pods_root = "/nonexistent"};
	owned(identity) struct identity *id = identity_new(&o);
	struct process_identity p;
	struct err err;
	int hold[2];
	pid_t child;

	(void)state;
	assert_int_equal(pipe(hold), 0);
	child = fork();
	if (child == 0) {
		char c;

		close(hold[1]);
		(void)!read(hold[0], &c, 1);
		_exit(0);
	}
	for (int i = 0; i < 3; i++) {
		assert_true(identity_of(id, (uint32_t)child, &p, &err));
		assert_true(p.start_boot_ns > 0 && p.start_boot_ns <= time_boot_ns());
		identity_sweep(id);
	}
	close(hold[1]);
	close(hold[0]);
	(void)waitpid(child, NULL, 0);
	assert_false(identity_of(id, (uint32_t)child, &p, &err));
	assert_int_equal(err.kind, ERR_MISSING);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cgroup_paths_name_their_owner),
		cmocka_unit_test(names_too_long_are_not_taken),
		cmocka_unit_test(a_pod_is_named_by_its_log_directory),
		cmocka_unit_test(a_pod_without_directory_is_unnamed_until_it_has_one),
		cmocka_unit_test(a_slurm_job_has_its_number_and_user),
		cmocka_unit_test(any_other_process_is_its_users),
		cmocka_unit_test(processes_of_one_workload_have_one_holder),
		cmocka_unit_test(a_name_in_stat_cannot_move_the_start_time),
		cmocka_unit_test(a_pid_used_again_is_another_process),
		cmocka_unit_test(a_known_process_is_not_looked_up_again),
		cmocka_unit_test(a_process_that_is_gone_is_missing),
		cmocka_unit_test(hostile_names_never_break_a_record),
		cmocka_unit_test(many_short_workloads_do_not_fill_the_memory),
		cmocka_unit_test(real_processes_are_followed_until_they_end),
	};

	return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}

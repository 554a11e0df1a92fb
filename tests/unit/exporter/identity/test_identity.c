/* Whose process it is, on a /proc made of files and on the real one. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/base.h"
#include "common/base/time.h"
#include "exporter/identity/identity.h"

#define UID_DASHED "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
#define CID "4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a"

/* ---- a /proc made of files ---- */

struct node {
	char root[64];
	struct identity *id;
};

static void
put(const struct node *n, const char *path, const char *text)
{
	owned(mem) char *full = mem_printf("%s/%s", n->root, path);
	FILE *f;

	for (char *slash = strchr(full + strlen(n->root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(full, 0755);
		*slash = '/';
	}
	if (!text) {
		(void)mkdir(full, 0755);
		return;
	}
	f = fopen(full, "we");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
	assert_int_equal(fclose(f), 0);
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
node_init_with(struct node *n, const struct user_source *users)
{
	struct identity_options o;

	snprintf(n->root, sizeof(n->root), "/tmp/tollgate-identity-XXXXXX");
	assert_non_null(mkdtemp(n->root));
	put(n, "proc", NULL);
	put(n, "pods", NULL);
	owned(mem) char *proc = mem_printf("%s/proc", n->root);
	owned(mem) char *pods = mem_printf("%s/pods", n->root);

	o = (struct identity_options){
		.proc_root = proc, .pods_root = pods, .slurm_pod_namespaces = "slurm,hpc", .users = *users};
	n->id = identity_new(&o);
}

static void
node_init(struct node *n)
{
	node_init_with(n, &(struct user_source){0});
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

/* The number stands in for the name until the directory has answered, which a busy machine may delay. */
static struct process_identity
who_by_name(struct node *n, uint32_t pid, const char *number)
{
	struct process_identity p = who(n, pid);

	while (strcmp(p.holder->user, number) == 0) {
		identity_sweep(n->id);
		p = who(n, pid);
	}
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
	p = who_by_name(&n, 100, "0");
	assert_int_equal(p.holder->kind, WIRE_SLURM_JOB);
	assert_string_equal(p.holder->slurm_job, "42");
	assert_string_equal(p.holder->user, "root");
	assert_int_equal(p.holder->uid, 0);
}

#define SLUID "sEKNKTV3WPV500"
#define SLUID_CGROUP "0::/system.slice/slurmstepd.scope/" SLUID "/step_0/user/task_0\n"

/* The files of jobs as they are now: each a number and a SLUID. */
static void
tell_jobs(struct node *n, const char *const names[][2], size_t count)
{
	struct slurm_job jobs[4] = {0};

	assert_true(count <= ARRAY_LEN(jobs));
	for (size_t i = 0; i < count; i++) {
		jobs[i].job = mem_strdup(names[i][0]);
		jobs[i].sluid = mem_strdup(names[i][1]);
	}
	identity_set_jobs(n->id, jobs, count);
	for (size_t i = 0; i < count; i++)
		slurm_job_fini(&jobs[i]);
}

static void
a_job_by_its_sluid_has_the_number_of_its_file(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;

	(void)state;
	node_init(&n);
	tell_jobs(&n, (const char *const[][2]){{"41", "sEKNKTV3WPV4ZZ"}, {"42", SLUID}, {"43", ""}}, 3);
	put_process(&n, 100, "python", 1, SLUID_CGROUP, 4123456789u);
	p = who(&n, 100);
	assert_int_equal(p.holder->kind, WIRE_SLURM_JOB);
	assert_string_equal(p.holder->slurm_job, "42");
	assert_int_equal(p.holder->uid, 4123456789);
	assert_string_equal(p.slurm_sluid, SLUID);
	assert_int_equal(identity_unmapped(n.id), 0);
	/* the file is gone before the process is; nobody has its uid, so that it is looked up again and again */
	tell_jobs(&n, NULL, 0);
	for (int i = 0; i < 100; i++) {
		identity_sweep(n.id);
		assert_string_equal(who(&n, 100).holder->slurm_job, "42");
	}
	assert_int_equal(identity_unmapped(n.id), 0);
}

static void
a_job_whose_sluid_no_file_has_is_a_job_all_the_same(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "python", 1, SLUID_CGROUP, 0);
	p = who_by_name(&n, 100, "0");
	assert_int_equal(p.holder->kind, WIRE_SLURM_JOB);
	assert_string_equal(p.holder->slurm_job, SLUID);
	assert_string_equal(p.holder->user, "root");
	assert_int_equal(identity_unmapped(n.id), 1);
	/* two files with one SLUID tell nothing */
	tell_jobs(&n, (const char *const[][2]){{"7", SLUID}, {"8", SLUID}, {"9", SLUID}}, 3);
	identity_sweep(n.id);
	assert_string_equal(who(&n, 100).holder->slurm_job, SLUID);
	assert_int_equal(identity_unmapped(n.id), 1);
	/* the file comes late */
	tell_jobs(&n, (const char *const[][2]){{"7", SLUID}}, 1);
	identity_sweep(n.id);
	assert_string_equal(who(&n, 100).holder->slurm_job, "7");
	assert_int_equal(identity_unmapped(n.id), 0);
}

#define POD_JOB_CGROUP \
	"0::/kubepods/burstable/pod" UID_DASHED "/" CID "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
#define POD_SLUID_CGROUP \
	"0::/kubepods/burstable/pod" UID_DASHED "/" CID "/system.slice/slurmstepd.scope/" SLUID "/step_0/user/task_0\n"

static void
a_job_inside_a_pod_of_slurm_is_the_jobs(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put(&n, "pods/slurm_worker-0_" UID_DASHED, NULL);
	tell_jobs(&n, (const char *const[][2]){{"43", SLUID}}, 1);
	put_process(&n, 100, "python", 1, POD_JOB_CGROUP, 0);
	put_process(&n, 101, "python", 1, POD_SLUID_CGROUP, 0);
	put_process(&n, 102, "slurmd", 1, POD_CGROUP, 0);
	assert_int_equal(who(&n, 100).holder->kind, WIRE_SLURM_JOB);
	assert_string_equal(who(&n, 100).holder->slurm_job, "42");
	assert_string_equal(who(&n, 100).holder->pod_uid, "");
	assert_int_equal(who(&n, 101).holder->kind, WIRE_SLURM_JOB);
	assert_string_equal(who(&n, 101).holder->slurm_job, "43");
	assert_int_equal(who(&n, 102).holder->kind, WIRE_POD);
	assert_true(identity_runs_slurm(n.id, "slurm"));
	assert_true(identity_runs_slurm(n.id, "hpc"));
	assert_false(identity_runs_slurm(n.id, "hp"));
	assert_false(identity_runs_slurm(n.id, "hpc2"));
	assert_false(identity_runs_slurm(n.id, ""));
}

static void
a_pod_of_another_namespace_cannot_pose_as_a_job(void **state)
{
	in_place(node) struct node n;
	struct process_identity p;

	(void)state;
	node_init(&n);
	tell_jobs(&n, (const char *const[][2]){{"43", SLUID}}, 1);
	put_process(&n, 100, "python", 1, POD_JOB_CGROUP, 0);
	put_process(&n, 101, "python", 1, POD_SLUID_CGROUP, 0);
	/* as long as the namespace is not known, and from then on */
	for (int i = 0; i < 100; i++) {
		for (uint32_t pid = 100; pid <= 101; pid++) {
			p = who(&n, pid);
			assert_int_equal(p.holder->kind, WIRE_POD);
			assert_string_equal(p.holder->pod_uid, UID_DASHED);
			assert_string_equal(p.holder->container, "4d7a9b0c1e2f");
			assert_string_equal(p.slurm_sluid, "");
		}
		identity_sweep(n.id);
		if (i == 10)
			put(&n, "pods/research_train-0_" UID_DASHED, NULL);
	}
	assert_string_equal(p.holder->ns, "research");
	assert_int_equal(identity_unmapped(n.id), 0);
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
	assert_string_equal(who_by_name(&n, 100, "0").holder->user, "root");
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
	put(&n, "pods/research_train-0_" UID_DASHED, NULL);
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
a_session_belongs_to_who_logged_in(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	/* sudo, su, a rootless container: the real uid is another */
	put_process(&n, 100, "python", 1, "0::/user.slice/user-4123456700.slice/session-1.scope\n", 0);
	put_process(&n, 101, "python", 1, "0::/user.slice/user-4123456700.slice/user@1.service/x\n", 4123456999u);
	assert_int_equal(who(&n, 100).holder->uid, 4123456700);
	assert_int_equal(who(&n, 101).holder->id, who(&n, 100).holder->id);
}

static void
a_path_that_the_kernel_cannot_show_does_not_hide_a_process(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put_process(&n, 100, "python", 1, "0::/\n", 4123456700u);
	owned(mem) char *path = mem_printf("%s/proc/100/cgroup", n.root);

	assert_int_equal(remove(path), 0);
	put(&n, "proc/100/cgroup", NULL); /* a folder: opening works, reading does not */
	assert_int_equal(who(&n, 100).holder->kind, WIRE_HOST_USER);
	assert_int_equal(who(&n, 100).holder->uid, 4123456700);
}

static void
a_pod_of_a_virtual_cluster_is_in_its_host_namespace(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put(&n, "pods/team-a_train-0-x-victim-x-vc_" UID_DASHED, NULL);
	put_process(&n, 100, "python", 1, POD_CGROUP, 1000);
	assert_string_equal(who(&n, 100).holder->ns, "team-a");
	assert_string_equal(who(&n, 100).holder->pod, "train-0-x-victim-x-vc");
}

static void
folders_that_name_no_pod_are_passed_over(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	put(&n, "pods/_name_" UID_DASHED, NULL);
	put(&n, "pods/ns__" UID_DASHED, NULL);
	put(&n, "pods/ns_" UID_DASHED, NULL);
	put(&n, "pods/ns_file_" UID_DASHED, "not a folder");
	put_process(&n, 100, "python", 1, POD_CGROUP, 1000);
	assert_string_equal(who(&n, 100).holder->ns, "");
	assert_string_equal(who(&n, 100).holder->pod_uid, UID_DASHED);
}

/* ---- user names ---- */

/* A directory that does not answer before it is let. */
struct directory {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool open;
	bool known; /* the user has a name */
	int asked;
};

static bool
ask_directory(void *arg, uint32_t uid, struct user_text *ret)
{
	struct directory *d = arg;
	bool known;

	pthread_mutex_lock(&d->lock);
	d->asked++;
	while (!d->open)
		pthread_cond_wait(&d->changed, &d->lock);
	known = d->known;
	pthread_mutex_unlock(&d->lock);
	snprintf(ret->name, sizeof(ret->name), "user\n%u", uid);
	snprintf(ret->group, sizeof(ret->group), "group\t%u", uid / 1000);
	return known;
}

static void
directory_open(struct directory *d)
{
	pthread_mutex_lock(&d->lock);
	d->open = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
}

static void
a_directory_that_hangs_leaves_the_number_until_it_answers(void **state)
{
	struct directory d = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .known = true};
	in_place(node) struct node n;
	const struct wire_holder *h;
	uint32_t numbered, named;

	(void)state;
	node_init_with(&n, &(struct user_source){.ask = ask_directory, .arg = &d});
	put_process(&n, 100, "python", 1, "0::/\n", 1000);
	h = who(&n, 100).holder;
	numbered = h->id;
	assert_string_equal(h->user, "1000");
	assert_string_equal(h->group, "");
	assert_int_equal(h->uid, 1000);
	for (int i = 0; i < 5; i++) {
		identity_sweep(n.id);
		assert_int_equal(who(&n, 100).holder->id, numbered);
	}
	directory_open(&d);
	while (who(&n, 100).holder->id == numbered)
		identity_sweep(n.id);
	named = who(&n, 100).holder->id;
	assert_string_equal(who(&n, 100).holder->user, "user?1000");
	assert_string_equal(who(&n, 100).holder->group, "group?1");
	assert_string_equal(identity_group(n.id, 1000), "group?1");
	assert_string_equal(identity_group(n.id, -1), "");
	assert_int_equal(who(&n, 100).holder->uid, 1000);
	/* from then on it is the name, also for processes to come, and whatever the directory does */
	pthread_mutex_lock(&d.lock);
	d.known = false;
	pthread_mutex_unlock(&d.lock);
	put_process(&n, 101, "python", 1, "0::/\n", 1000);
	for (int i = 0; i < 100; i++) {
		identity_sweep(n.id);
		assert_int_equal(who(&n, 100).holder->id, named);
		assert_int_equal(who(&n, 101).holder->id, named);
	}
	pthread_mutex_lock(&d.lock);
	assert_int_equal(d.asked, 1);
	pthread_mutex_unlock(&d.lock);
}

static void
a_look_up_under_way_does_not_keep_the_exporter_from_ending(void **state)
{
	/* outlives the test's node, as the look-up does */
	static struct directory d = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	struct node n;

	(void)state;
	node_init_with(&n, &(struct user_source){.ask = ask_directory, .arg = &d});
	put_process(&n, 100, "python", 1, "0::/\n", 1000);
	assert_string_equal(who(&n, 100).holder->user, "1000");
	node_fini(&n);
	directory_open(&d);
}

/* ---- labels ---- */

static void
set_labels(struct node *n, const char *items)
{
	owned(mem) char *body = mem_printf("{\"items\":[%s]}", items);
	struct podlabels_list list;
	struct podlabels_keys keys;
	struct err err;

	assert_true(podlabels_keys_parse("app,team", &keys, &err));
	if (!podlabels_decode(body, strlen(body), &keys, &list, &err))
		fail_msg("%s", err.text);
	podlabels_keys_fini(&keys);
	identity_set_labels(n->id, &list);
}

#define LABELLED(labels) "{\"metadata\":{\"uid\":\"" UID_DASHED "\",\"labels\":" labels "}}"

static void
labels_that_become_known_or_change_make_another_holder(void **state)
{
	in_place(node) struct node n;
	uint32_t bare, first;
	uint64_t version;

	(void)state;
	node_init(&n);
	put(&n, "pods/research_train-0_" UID_DASHED, NULL);
	put_process(&n, 100, "python", 1, POD_CGROUP, 1000);
	put_process(&n, 200, "python", 1, "0::/\n", 1000);
	assert_false(identity_misses_labels(n.id));
	bare = who(&n, 100).holder->id;
	assert_string_equal(who(&n, 100).holder->labels, "");
	/* said once */
	assert_true(identity_misses_labels(n.id));
	assert_false(identity_misses_labels(n.id));
	identity_sweep(n.id);
	version = identity_version(n.id);
	set_labels(&n, LABELLED("{\"team\":\"ml\",\"app\":\"web\",\"x\":\"y\"}"));
	assert_true(identity_version(n.id) != version);
	first = who(&n, 100).holder->id;
	assert_int_not_equal(first, bare);
	assert_string_equal(who(&n, 100).holder->labels, "app=web,team=ml");
	assert_string_equal(who(&n, 100).holder->pod, "train-0");
	assert_string_equal(who(&n, 200).holder->labels, "");
	assert_string_equal(identity_labels(n.id, UID_DASHED), "app=web,team=ml");
	/* a list that does not have the pod leaves it who it is; one that has it, changed, does not */
	identity_sweep(n.id);
	set_labels(&n, "");
	assert_int_equal(who(&n, 100).holder->id, first);
	identity_sweep(n.id);
	set_labels(&n, LABELLED("{\"team\":\"ml\",\"app\":\"web\"}"));
	assert_int_equal(who(&n, 100).holder->id, first);
	identity_sweep(n.id);
	set_labels(&n, LABELLED("{\"team\":\"ops\"}"));
	assert_string_equal(who(&n, 100).holder->labels, "team=ops");
	/* labels that it loses are gone, and it is who it was without */
	identity_sweep(n.id);
	set_labels(&n, LABELLED("{}"));
	assert_int_equal(who(&n, 100).holder->id, bare);
}

/* ---- processes that end ---- */

static void
an_ended_process_keeps_its_holder_for_a_while(void **state)
{
	const int64_t tick_ns = NS_PER_S / sysconf(_SC_CLK_TCK);
	in_place(node) struct node n;
	struct process_identity p;
	uint32_t first, second;

	(void)state;
	node_init(&n);
	assert_null(identity_of_ended(n.id, 100, INT64_MAX));
	put_process(&n, 100, "a", 10, POD_CGROUP, 1000);
	first = who(&n, 100).holder->id;
	identity_sweep(n.id);
	/* the number passes to another process */
	put_process(&n, 100, "b", 500, "0::/\n", 0);
	second = who(&n, 100).holder->id;
	identity_sweep(n.id);
	assert_int_equal(identity_of_ended(n.id, 100, 10 * tick_ns)->id, first);
	assert_int_equal(identity_of_ended(n.id, 100, 499 * tick_ns)->id, first);
	assert_int_equal(identity_of_ended(n.id, 100, 500 * tick_ns)->id, second);
	assert_null(identity_of_ended(n.id, 100, 9 * tick_ns)); /* before either */
	assert_null(identity_of_ended(n.id, 101, 500 * tick_ns));
	/* both are gone */
	put(&n, "proc/100/stat", "cut");
	assert_false(identity_of(n.id, 100, &p, NULL));
	identity_sweep(n.id);
	assert_int_equal(identity_of_ended(n.id, 100, 300 * tick_ns)->id, first);
	assert_int_equal(identity_of_ended(n.id, 100, 600 * tick_ns)->id, second);
	for (int i = 0; i < 100; i++)
		identity_sweep(n.id);
	assert_null(identity_of_ended(n.id, 100, 600 * tick_ns));
}

static void
two_hundred_starts_in_a_tick_are_all_followed(void **state)
{
	enum { STARTS = 200, TICKS = 10 };
	const int64_t tick_ns = NS_PER_S / sysconf(_SC_CLK_TCK);
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	/* each lives for two ticks; numbers come around after five */
	for (unsigned t = 1; t <= TICKS; t++) {
		for (unsigned i = 0; i < STARTS; i++) {
			owned(mem) char *job =
				mem_printf("0::/system.slice/slurmstepd.scope/job_%u/step_0\n", 1000 * t + i);

			put_process(&n, 10000 + t % 5 * STARTS + i, "x", 100 * t + i % 100, job, 0);
		}
		for (unsigned life = 0; life < 2 && life < t; life++)
			for (unsigned i = 0; i < STARTS; i++) {
				unsigned born = t - life;
				struct process_identity p = who(&n, 10000 + born % 5 * STARTS + i);
				owned(mem) char *job = mem_printf("%u", 1000 * born + i);

				assert_string_equal(p.holder->slurm_job, job);
				assert_int_equal(p.start_boot_ns, (100 * born + i % 100) * tick_ns);
			}
		/* and those whose last tick was the one before are known to who asks for them now */
		for (unsigned i = 0; t > 2 && i < STARTS; i++) {
			unsigned born = t - 2;
			owned(mem) char *job = mem_printf("%u", 1000 * born + i);

			assert_string_equal(identity_of_ended(n.id, 10000 + born % 5 * STARTS + i,
			                                      (100 * born + 99) * tick_ns)
			                            ->slurm_job,
			                    job);
		}
		identity_sweep(n.id);
	}
}

static void
a_holder_that_is_held_stays(void **state)
{
	struct wire_holder content = {.kind = WIRE_SLURM_JOB, .uid = -1};
	char job[] = "77";
	in_place(node) struct node n;
	const struct wire_holder *h;
	uint32_t first;

	(void)state;
	node_init(&n);
	content.slurm_job = job;
	h = identity_hold(n.id, &content);
	first = h->id;
	assert_string_equal(h->slurm_account, "");
	for (unsigned i = 0; i < 3000; i++) {
		owned(mem) char *other = mem_printf("%u", 1000 + i);
		struct wire_holder o = {.kind = WIRE_SLURM_JOB, .slurm_job = other, .uid = -1};

		identity_release(n.id, identity_hold(n.id, &o));
	}
	put_process(&n, 100, "a", 1, "0::/\n", 0);
	(void)who(&n, 100);
	for (int i = 0; i < 100; i++)
		identity_sweep(n.id);
	assert_string_equal(h->slurm_job, "77");
	assert_int_equal(identity_hold(n.id, &content)->id, first);
	identity_release(n.id, h);
	identity_release(n.id, h);
}

static void
real_processes_are_followed_until_they_end(void **state)
{
	/* the second spelling is not known as this system's own: folders are watched instead of pidfds */
	static const char *const roots[] = {"/proc", "/proc/"};
	struct identity_options o = {.proc_root = roots[*state != NULL], .pods_root = "/nonexistent"};
	owned(identity) struct identity *id = identity_new(&o);
	struct process_identity p;
	struct err err;
	int hold[2];
	pid_t child;

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
	assert_non_null(identity_of_ended(id, (uint32_t)child, p.start_boot_ns));
	assert_false(identity_of(id, (uint32_t)child, &p, &err));
	assert_int_equal(err.kind, ERR_MISSING);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pod_is_named_by_its_log_directory),
		cmocka_unit_test(a_pod_without_directory_is_unnamed_until_it_has_one),
		cmocka_unit_test(a_slurm_job_has_its_number_and_user),
		cmocka_unit_test(a_job_by_its_sluid_has_the_number_of_its_file),
		cmocka_unit_test(a_job_whose_sluid_no_file_has_is_a_job_all_the_same),
		cmocka_unit_test(a_job_inside_a_pod_of_slurm_is_the_jobs),
		cmocka_unit_test(a_pod_of_another_namespace_cannot_pose_as_a_job),
		cmocka_unit_test(any_other_process_is_its_users),
		cmocka_unit_test(processes_of_one_workload_have_one_holder),
		cmocka_unit_test(a_name_in_stat_cannot_move_the_start_time),
		cmocka_unit_test(a_pid_used_again_is_another_process),
		cmocka_unit_test(a_known_process_is_not_looked_up_again),
		cmocka_unit_test(a_process_that_is_gone_is_missing),
		cmocka_unit_test(hostile_names_never_break_a_record),
		cmocka_unit_test(a_session_belongs_to_who_logged_in),
		cmocka_unit_test(a_path_that_the_kernel_cannot_show_does_not_hide_a_process),
		cmocka_unit_test(a_pod_of_a_virtual_cluster_is_in_its_host_namespace),
		cmocka_unit_test(folders_that_name_no_pod_are_passed_over),
		cmocka_unit_test(a_directory_that_hangs_leaves_the_number_until_it_answers),
		cmocka_unit_test(labels_that_become_known_or_change_make_another_holder),
		cmocka_unit_test(a_look_up_under_way_does_not_keep_the_exporter_from_ending),
		cmocka_unit_test(an_ended_process_keeps_its_holder_for_a_while),
		cmocka_unit_test(two_hundred_starts_in_a_tick_are_all_followed),
		cmocka_unit_test(a_holder_that_is_held_stays),
		cmocka_unit_test(many_short_workloads_do_not_fill_the_memory),
		{"real_processes_are_followed_by_pidfd", real_processes_are_followed_until_they_end, NULL, NULL, NULL},
		{"real_processes_are_followed_by_folder", real_processes_are_followed_until_they_end, NULL, NULL,
	         &(int){1}},
	};

	return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}

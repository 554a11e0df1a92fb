/* Allocations of Slurm and of HPC mappings, and under which holder processes are known; how schedulers name a GPU. The kubelet's
 * side is in test_podres.c and tests/integration/test_identity.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "exporter/identity/alloc.h"

/* ---- names of devices ---- */

static struct gpu_snapshot *
snapshot(void)
{
	struct gpu_snapshot *s = gpu_snapshot_new();

	gpu_snapshot_resize(s, 2);
	for (int i = 0; i < 2; i++) {
		gpu_reading_clear(&s->gpus[i]);
		snprintf(s->gpus[i].uuid, GPU_TEXT, "GPU-%c", 'a' + i);
		s->gpus[i].index = i;
	}
	s->gpus[1].mig = true;
	s->gpus[1].instance_count = 3;
	for (int i = 0; i < 3; i++) {
		struct gpu_instance *g = &s->gpus[1].instances[i];

		snprintf(g->uuid, GPU_TEXT, "MIG-%d", i);
		g->gi = i == 0 ? 7 : 9;
		g->ci = i == 2;
	}
	return s;
}

struct name_row {
	const char *text, *uuids;
	int32_t replica;
};

static const struct name_row name_rows[] = {
	{"GPU-a", "GPU-a ", -1},
	{"MIG-1", "MIG-1 ", -1},
	{"GPU-not-here", "GPU-not-here ", -1},
	{"0", "GPU-a ", -1},
	{"1", "GPU-b ", -1},
	{"2", "", -1},
	{"1234567", "1234567 ", -1},
	{"nvidia0", "GPU-a ", -1},
	{"nvidia1/gi7", "MIG-0 ", -1},
	{"nvidia1/gi9", "MIG-1 MIG-2 ", -1},
	{"nvidia1/gi8", "", -1},
	{"nvidia0/vgpu3", "GPU-a ", 3},
	{"nvidia1/gi7/vgpu2", "MIG-0 ", 2},
	{"nvidia0/x", "nvidia0/x ", -1},
	{"MIG-GPU-b/9/1", "MIG-2 ", -1},
	{"MIG-GPU-b/9/3", "", -1},
	{"MIG-GPU-b/9", "MIG-GPU-b/9 ", -1},
	{"0x1", "0x1 ", -1},
};

static void
schedulers_name_gpus_in_many_ways(void **state)
{
	owned(gpu_snapshot) struct gpu_snapshot *s = snapshot();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(name_rows); i++) {
		struct device_name d = device_name_parse(name_rows[i].text);
		const char *uuids[GPU_INSTANCE_MAX];
		size_t n = device_name_resolve(&d, s, uuids);
		char text[256] = "";

		for (size_t k = 0; k < n; k++)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", uuids[k]);
		if (strcmp(text, name_rows[i].uuids) != 0 || d.replica != name_rows[i].replica)
			fail_msg("%s means %s", name_rows[i].text, text);
		device_name_fini(&d);
	}
}

/* ---- allocations ---- */

struct node {
	char root[64];
	char *slurm, *hpc;
	struct identity *id;
	struct alloc *alloc;
	struct gpu_snapshot *snap;
	int64_t boot_ns, wall_ns;
};

/* Who has a name, and a group with it. */
static bool
ask_directory(void *arg, uint32_t uid, struct user_text *ret)
{
	(void)arg;
	snprintf(ret->name, sizeof(ret->name), "alice");
	snprintf(ret->group, sizeof(ret->group), "gpu-research");
	return uid == 1000;
}

static void
node_init(struct node *n)
{
	struct identity_options o = {.proc_root = "/nonexistent",
	                             .pods_root = "/nonexistent",
	                             .users = {.ask = ask_directory}};
	struct alloc_options a = {0};
	struct err err;

	snprintf(n->root, sizeof(n->root), "/tmp/tollgate-alloc-XXXXXX");
	assert_non_null(mkdtemp(n->root));
	n->slurm = mem_printf("%s/slurm", n->root);
	n->hpc = mem_printf("%s/hpc", n->root);
	assert_int_equal(mkdir(n->slurm, 0755), 0);
	assert_int_equal(mkdir(n->hpc, 0755), 0);
	n->id = identity_new(&o);
	a.slurm = (struct slurm_map_options){.slurm_dir = n->slurm, .hpc_dir = n->hpc, .owner_uid = geteuid()};
	n->alloc = NULL;
	assert_true(alloc_new(&a, n->id, 0, &n->alloc, &err));
	n->snap = snapshot();
	n->wall_ns = time_wall_ns();
	n->boot_ns = 1000 * NS_PER_S;
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
	alloc_free(n->alloc);
	identity_free(n->id);
	gpu_snapshot_free(n->snap);
	(void)nftw(n->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	mem_free(n->slurm);
	mem_free(n->hpc);
}

static void
put(const char *dir, const char *name, const char *text)
{
	owned(mem) char *path = mem_printf("%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/* "job/account/user@device " of each allocation, as they come. */
static const char *
allocations(struct node *n, char text[1024])
{
	const struct tick_allocation *list;
	size_t count;

	alloc_refresh(n->alloc, n->snap, n->boot_ns, n->wall_ns);
	count = alloc_list(n->alloc, &list);
	text[0] = '\0';
	for (size_t i = 0; i < count; i++)
		snprintf(text + strlen(text), 1024 - strlen(text), "%s/%s/%s@%s ", list[i].holder->slurm_job,
		         list[i].holder->slurm_account, list[i].holder->user, list[i].device_uuid);
	return text;
}

static void
a_job_holds_the_gpus_of_its_file(void **state)
{
	in_place(node) struct node n;
	const struct tick_allocation *list;
	struct alloc_stats s;
	char text[1024];

	(void)state;
	node_init(&n);
	owned(mem) char *file =
		mem_printf("job=7\naccount=physics\nuser=alice\nuid=1000\ngpus=0,MIG-1,0,5\nstart=%" PRId64 ".5\n",
	                   n.wall_ns / NS_PER_S - 10);

	put(n.slurm, "7", file);
	put(n.slurm, "8", "job=8\naccount=other\nuid=1001\n");
	assert_string_equal(allocations(&n, text), "7/physics/alice@GPU-a 7/physics/alice@MIG-1 ");
	assert_int_equal(alloc_list(n.alloc, &list), 2);
	assert_int_equal(list[0].holder->kind, WIRE_SLURM_JOB);
	assert_int_equal(list[0].holder->uid, 1000);
	assert_int_equal(list[0].replica, -1);
	assert_int_equal(list[0].begin_boot_ns,
	                 n.boot_ns - (n.wall_ns - ((n.wall_ns / NS_PER_S - 10) * NS_PER_S + NS_PER_S / 2)));
	alloc_stats(n.alloc, n.boot_ns, &s);
	assert_int_equal(s.from_slurm, 3);
	assert_int_equal(s.unresolved, 1); /* there is no GPU 5 */
	assert_int_equal(s.kubelet_age_ns, ABSENT);
}

static void
a_job_of_the_future_begins_when_it_is_seen(void **state)
{
	in_place(node) struct node n;
	const struct tick_allocation *list;
	char text[1024];

	(void)state;
	node_init(&n);
	put(n.slurm, "7", "job=7\ngpus=0\nstart=9000000000\n");
	assert_string_equal(allocations(&n, text), "7//@GPU-a ");
	assert_int_equal(alloc_list(n.alloc, &list), 1);
	assert_int_equal(list[0].begin_boot_ns, ABSENT);
}

static void
an_hpc_mapping_gives_gpus_to_jobs(void **state)
{
	in_place(node) struct node n;
	char text[1024];

	(void)state;
	node_init(&n);
	put(n.hpc, "0", "41\n42\n");
	assert_string_equal(allocations(&n, text), "41//@GPU-a 42//@GPU-a ");
	put(n.hpc, "0", "");
	put(n.hpc, "1.9", "43\n"); /* both compute instances of that GPU instance */
	assert_string_equal(allocations(&n, text), "43//@MIG-1 43//@MIG-2 ");
	/* with a file of its own the job is told once, with all that is known */
	put(n.slurm, "43", "job=43\naccount=physics\nuser=alice\n");
	assert_string_equal(allocations(&n, text), "43/physics/alice@MIG-1 43/physics/alice@MIG-2 ");
	put(n.slurm, "43", "job=43\naccount=physics\nuid=5\ngpus=MIG-1\n");
	assert_string_equal(allocations(&n, text), "43/physics/5@MIG-1 ");
}

static const struct wire_holder *
known_as(struct node *n, uint32_t kind, const char *job, int64_t uid, const char *pod)
{
	owned(mem) char *job_text = mem_strdup(job), *pod_text = mem_strdup(pod),
			*ns = mem_strdup(pod[0] ? "team" : "");
	struct wire_holder h = {.kind = kind, .slurm_job = job_text, .uid = uid, .pod = pod_text, .ns = ns};

	return identity_hold(n->id, &h);
}

static void
processes_have_the_holder_of_their_allocation(void **state)
{
	in_place(node) struct node n;
	const struct wire_holder *job, *other, *user, *stranger, *pod, *sluid, *h;
	const struct gpu_reading *a, *b;
	char text[1024];

	(void)state;
	node_init(&n);
	put(n.slurm, "7", "job=7\naccount=physics\nuser=alice\nuid=1000\ngpus=0\n");
	put(n.slurm, "8", "job=8\naccount=chemistry\nuser=alice\nuid=1000\ngpus=MIG-2\n");
	put(n.slurm, "9", "job=9\naccount=biology\n");
	assert_string_equal(allocations(&n, text), "7/physics/alice@GPU-a 8/chemistry/alice@MIG-2 ");
	a = &n.snap->gpus[0];
	b = &n.snap->gpus[1];
	job = known_as(&n, WIRE_SLURM_JOB, "7", 0, ""); /* a step that runs as root */
	other = known_as(&n, WIRE_SLURM_JOB, "10", 1000, "");
	user = known_as(&n, WIRE_HOST_USER, "", 1000, "");
	stranger = known_as(&n, WIRE_HOST_USER, "", 1001, "");
	pod = known_as(&n, WIRE_POD, "", -1, "p");

	h = alloc_holder(n.alloc, job, a, -1, -1);
	assert_string_equal(h->slurm_account, "physics");
	assert_int_equal(h->uid, 1000);
	assert_ptr_equal(alloc_holder(n.alloc, job, b, 9, 1), h); /* also where it has no business */
	/* a job with a file but without GPUs has its account */
	assert_string_equal(alloc_holder(n.alloc, known_as(&n, WIRE_SLURM_JOB, "9", 3, ""), a, -1, -1)->slurm_account,
	                    "biology");
	/* a user's own process on the GPU of one of his jobs is that job's, elsewhere it is his */
	assert_string_equal(alloc_holder(n.alloc, user, a, -1, -1)->slurm_job, "7");
	assert_string_equal(alloc_holder(n.alloc, user, b, 9, 1)->slurm_job, "8");
	assert_ptr_equal(alloc_holder(n.alloc, user, b, 7, 0), user);
	/* so is a process of a job whose SLUID is in no file */
	sluid = known_as(&n, WIRE_SLURM_JOB, "sEKNKTV3WPV500", 1000, "");
	assert_string_equal(alloc_holder(n.alloc, sluid, a, -1, -1)->slurm_job, "7");
	assert_ptr_equal(alloc_holder(n.alloc, sluid, b, 7, 0), sluid);
	sluid = known_as(&n, WIRE_SLURM_JOB, "sEKNKTV3WPV500", 1001, "");
	assert_ptr_equal(alloc_holder(n.alloc, sluid, a, -1, -1), sluid);
	/* nobody else becomes the job */
	assert_ptr_equal(alloc_holder(n.alloc, other, a, -1, -1), other);
	assert_ptr_equal(alloc_holder(n.alloc, stranger, a, -1, -1), stranger);
	assert_ptr_equal(alloc_holder(n.alloc, pod, a, -1, -1), pod);
	/* the job ends: what was concluded from it is forgotten */
	owned(mem) char *path = mem_printf("%s/7", n.slurm);

	assert_int_equal(unlink(path), 0);
	assert_string_equal(allocations(&n, text), "8/chemistry/alice@MIG-2 ");
	assert_ptr_equal(alloc_holder(n.alloc, job, a, -1, -1), job);
	assert_ptr_equal(alloc_holder(n.alloc, user, a, -1, -1), user);
}

static void
a_gpu_without_answer_keeps_its_allocation(void **state)
{
	in_place(node) struct node n;
	char text[1024];

	(void)state;
	node_init(&n);
	put(n.slurm, "7", "job=7\ngpus=0\n");
	gpu_reading_down(&n.snap->gpus[0], GPU_FAULT_LOST, "lost");
	assert_string_equal(allocations(&n, text), "7//@GPU-a ");
}

/* The directory is asked by a thread: the group may come some ticks later, and is then the job's from there on. */
static void
a_job_has_the_group_of_its_user(void **state)
{
	in_place(node) struct node n;
	const struct tick_allocation *list;
	char text[1024];

	(void)state;
	node_init(&n);
	put(n.slurm, "7", "job=7\nuser=alice\nuid=1000\ngpus=0\n");
	put(n.slurm, "8", "job=8\nuser=bob\nuid=1001\ngpus=MIG-2\n");
	do {
		identity_sweep(n.id);
		(void)allocations(&n, text);
		assert_int_equal(alloc_list(n.alloc, &list), 2);
	} while (!list[0].holder->group[0]);
	assert_string_equal(list[0].holder->group, "gpu-research");
	assert_string_equal(list[1].holder->group, "");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_has_the_group_of_its_user),
		cmocka_unit_test(schedulers_name_gpus_in_many_ways),
		cmocka_unit_test(a_job_holds_the_gpus_of_its_file),
		cmocka_unit_test(a_job_of_the_future_begins_when_it_is_seen),
		cmocka_unit_test(an_hpc_mapping_gives_gpus_to_jobs),
		cmocka_unit_test(processes_have_the_holder_of_their_allocation),
		cmocka_unit_test(a_gpu_without_answer_keeps_its_allocation),
	};

	return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}

/* Each way in which the spool can come to harm, on virtual clocks, with what the books must say in the end: time covered, time lost by
 * loss batches, gaps and overlaps of the wall clock, and what each holder had. Every sum is exact; there is no tolerance.
 *
 * A tick every 10 s, an interval of 60 s. GPU 0 is held by a pod all the time and half active; GPU 1 by a Slurm job for 45 s of every
 * two minutes. Disks that fill up or become read-only are mounts of their own, in a child with its own mount table. */
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "tests/support/exporter/books.h"
#include "tests/support/exporter/fastnode.h"
#include "tests/support/exporter/spooldir.h"

#define S NS_PER_S
#define MIN NS_PER_MIN
#define HOUR NS_PER_HOUR
#define TICK_NS (10 * S)
#define INTERVAL_NS MIN

static const char scenario[] =
	"name: lab\n"
	"gpus:\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2}\n"
	"processes:\n"
	"  - {pid: 100, gpu: 0, sm: 50, memory_mib: 1024, pod: {namespace: team, name: train-0}}\n"
	"  - {pid: 200, gpu: 1, start: 30s, end: 75s, every: 2m, sm: 100, uid: 0, cgroup: /slurm/uid_0/job_7/step_0}\n";

struct world {
	struct spooldir dir;
	struct fastnode node;
};

static void
world_init(struct world *w, int64_t cap_bytes, int64_t segment_bytes)
{
	struct fastnode_options o = {
		.sample_ns = TICK_NS, .interval_ns = INTERVAL_NS, .replicas = 1, .wall0_ns = SPOOLDIR_WALL};

	spooldir_init(&w->dir);
	o.spool = spooldir_options(&w->dir);
	o.spool.cap_bytes = cap_bytes;
	o.spool.segment_bytes = segment_bytes;
	fastnode_init(&w->node, scenario, &o);
}

static void
world_fini(struct world *w)
{
	fastnode_fini(&w->node);
	spooldir_fini(&w->dir);
}

/* What the aggregator has after it got everything. */
static void
collect(struct world *w, struct books *b)
{
	owned(spool) struct spool *s = NULL;
	struct err err;

	books_init(b);
	if (!spool_open(&w->node.options.spool, SPOOLDIR_WALL, &s, &err) ||
	    !books_add_spool(b, s, SPOOLDIR_WALL, &err)) {
		fprintf(stderr, "%s\n", err.text);
		abort();
	}
}

static bool in_child; /* where cmocka's asserts would go on with the next test */

static void
must_be(const char *what, int128 got, int128 want)
{
	if (got == want)
		return;
	fprintf(stderr, "%s: about %" PRId64 ", not %" PRId64 ", in billions; difference %" PRId64 "\n", what,
	        (int64_t)(got / S), (int64_t)(want / S), (int64_t)(got - want));
	if (in_child)
		_exit(1);
	fail();
}

struct totals {
	int64_t covered_ns, lost_ns, gap_ns, overlap_ns;
	int64_t job_ns; /* of GPU 1; -1: not asked */
};

static void
expect(const struct books *b, const struct totals *want)
{
	struct book_time t = books_time(b);
	int128 whole = (int128)UNITS_PER_GPU * want->covered_ns;
	const struct book_cell *pod, *job;

	must_be("time covered", t.covered_ns, want->covered_ns);
	must_be("time lost", t.lost_ns, want->lost_ns);
	must_be("gaps", t.gap_ns, want->gap_ns);
	must_be("overlaps", t.overlap_ns, want->overlap_ns);
	must_be("GPUs", (int128)b->gpu_count, 2);
	must_be("holders", (int128)b->cell_count, 2);
	pod = &b->cells[strcmp(b->cells[0].holder, "slurm/7/0") == 0];
	job = pod == b->cells ? &b->cells[1] : &b->cells[0];
	must_be("the pod's name", strcmp(pod->holder, "pod/team/train-0"), 0);
	must_be("GPU 0, all states", book_states(&b->gpus[pod->gpu].sums), whole);
	must_be("GPU 1, all states", book_states(&b->gpus[job->gpu].sums), whole);
	must_be("the pod, held", pod->held, whole);
	must_be("the pod, used", pod->used, whole / 2);
	must_be("the job's GPU, held and free", b->gpus[job->gpu].sums.unallocated + job->held, whole);
	if (want->job_ns >= 0)
		must_be("the job, held", job->held, (int128)UNITS_PER_GPU * want->job_ns);
}

/* The job holds from its start, at 30 s of every two minutes, until the first tick that misses it, at 80 s. */
#define JOB_NS(duration_ns) ((duration_ns) / (2 * MIN) * 50 * S)

/* ---- disks ---- */

enum { CHILD_OK = 0, CHILD_CANNOT = 77 };

static bool
write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return ok;
}

/* A mount table of this process's own: as root, or as the root of a user namespace. */
static bool
own_mounts(void)
{
	char map[64];

	if (unshare(CLONE_NEWNS) != 0) {
		snprintf(map, sizeof(map), "0 %u 1", (unsigned)getuid());
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write_text("/proc/self/uid_map", map))
			return false;
	}
	return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static void
mount_or_die(const char *at, unsigned long flags, const char *options)
{
	if (mount("tmpfs", at, "tmpfs", flags, options) != 0) {
		perror("mount");
		_exit(1);
	}
}

/* Runs the story in a child that may mount. What is wrong there ends it. */
static void
with_mounts(void (*story)(struct world *w), struct world *w)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		in_child = true;
		w->node.sim.dir[0] = '\0'; /* the parent's */
		if (!own_mounts())
			_exit(CHILD_CANNOT);
		story(w);
		_exit(CHILD_OK);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_CANNOT) {
		print_message("skip: this machine does not let the test mount a disk of its own\n");
		skip();
	}
	assert_int_equal(status, 0);
}

/* A file that leaves no room for anything. */
static void
fill_disk(const struct world *w)
{
	owned(mem) char *path = mem_printf("%s/filler", w->dir.path);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	static const char zeros[4096];

	ASSERT(fd >= 0);
	while (write(fd, zeros, sizeof(zeros)) > 0)
		;
	ASSERT(errno == ENOSPC);
	close(fd);
}

static void
empty_disk(const struct world *w)
{
	owned(mem) char *path = mem_printf("%s/filler", w->dir.path);

	ASSERT(unlink(path) == 0);
}

/* The books are looked at in the child: the mount is its own. */
static void
expect_in_child(struct world *w, const struct totals *want)
{
	struct books b;

	fastnode_stop(&w->node);
	collect(w, &b);
	expect(&b, want);
	books_fini(&b);
}

static void
full_for_an_hour(struct world *w)
{
	mount_or_die(w->dir.path, 0, "size=1m");
	fastnode_start(&w->node, 0);
	fastnode_play(&w->node, 5 * MIN);
	fill_disk(w);
	fastnode_play(&w->node, 60 * MIN);
	ASSERT(w->node.last.storing.kind == ERR_RETRY);
	empty_disk(w);
	fastnode_play(&w->node, 120 * MIN);
	ASSERT(w->node.last.storing.kind == ERR_NONE);
	expect_in_child(w, &(struct totals){.covered_ns = 2 * HOUR, .job_ns = JOB_NS(2 * HOUR)});
}

static void
a_disk_that_is_full_for_an_hour_loses_nothing(void **state)
{
	in_place(world) struct world w;

	(void)state;
	/* each batch begins a file: one that is open may have a page left */
	world_init(&w, INT64_C(1) << 30, 1);
	with_mounts(full_for_an_hour, &w);
}

/* From minute 5 to minute 180, batches 6 to 180 meet the full disk; memory keeps 64 entries, one of which is the loss. */
static void
full_for_three_hours(struct world *w)
{
	int64_t kept_ns = (OUTBOX_WAITING_MAX - 1) * MIN, lost_ns = 175 * MIN - kept_ns;

	mount_or_die(w->dir.path, 0, "size=1m");
	fastnode_start(&w->node, 0);
	fastnode_play(&w->node, 5 * MIN);
	fill_disk(w);
	fastnode_play(&w->node, 180 * MIN);
	empty_disk(w);
	fastnode_play(&w->node, 240 * MIN);
	expect_in_child(w, &(struct totals){.covered_ns = 4 * HOUR - lost_ns, .lost_ns = lost_ns, .job_ns = -1});
}

static void
a_disk_that_is_full_for_longer_than_memory_lasts_books_the_oldest_as_lost(void **state)
{
	in_place(world) struct world w;

	(void)state;
	world_init(&w, INT64_C(1) << 30, 1);
	with_mounts(full_for_three_hours, &w);
}

/* Another mount lies over the directory, so that every name in it is on a read-only file system. */
static void
read_only_for_half_an_hour(struct world *w)
{
	fastnode_start(&w->node, 0);
	fastnode_play(&w->node, 5 * MIN);
	mount_or_die(w->dir.path, MS_RDONLY, "size=64k");
	fastnode_play(&w->node, 35 * MIN);
	ASSERT(w->node.last.storing.kind == ERR_RETRY && strstr(w->node.last.storing.text, strerror(EROFS)));
	ASSERT(umount(w->dir.path) == 0);
	fastnode_play(&w->node, 60 * MIN);
	expect_in_child(w, &(struct totals){.covered_ns = HOUR, .job_ns = JOB_NS(HOUR)});
}

static void
a_disk_that_is_read_only_for_half_an_hour_loses_nothing(void **state)
{
	in_place(world) struct world w;

	(void)state;
	world_init(&w, INT64_C(1) << 30, 1);
	with_mounts(read_only_for_half_an_hour, &w);
}

static void
start_on_a_read_only_disk(struct world *w)
{
	struct spool *s = NULL;
	struct err err;

	mount_or_die(w->dir.path, MS_RDONLY, "size=64k");
	ASSERT(!spool_open(&w->node.options.spool, SPOOLDIR_WALL, &s, &err));
	ASSERT(strstr(err.text, w->dir.path) && strstr(err.text, strerror(EROFS)));
}

static void
a_disk_that_is_read_only_at_the_start_is_named(void **state)
{
	in_place(world) struct world w;

	(void)state;
	world_init(&w, INT64_C(1) << 30, 1);
	with_mounts(start_on_a_read_only_disk, &w);
}

/* ---- damage and the cap ---- */

static void
a_corrupt_segment_loses_what_is_behind_the_damage_in_it_and_books_it(void **state)
{
	in_place(world) struct world w;
	in_place(books) struct books b;
	struct book_time t;
	struct stat st;
	char byte = '?';
	int fd;

	(void)state;
	world_init(&w, INT64_C(1) << 30, 1000);
	fastnode_start(&w.node, 0);
	fastnode_play(&w.node, HOUR);
	fastnode_stop(&w.node);
	owned(mem) char *middle = spooldir_segment(&w.dir, 3);

	assert_non_null(middle);
	fd = open(middle, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
	close(fd);
	collect(&w, &b);
	t = books_time(&b);
	assert_true(t.lost_ns >= MIN && t.lost_ns % MIN == 0);
	/* the damage is in the middle of a file of some batches: what is lost is a part of it */
	assert_true(t.lost_ns <= 8 * MIN);
	expect(&b, &(struct totals){.covered_ns = HOUR - t.lost_ns, .lost_ns = t.lost_ns, .job_ns = -1});
	assert_int_equal(spooldir_count(&w.dir, ".seg.corrupt"), 1);
}

static void
over_its_cap_the_oldest_time_is_lost_and_the_rest_is_all_there(void **state)
{
	in_place(world) struct world w;
	in_place(books) struct books b;
	struct outbox_stats stats;
	struct book_time t;

	(void)state;
	world_init(&w, 20000, 2000);
	fastnode_start(&w.node, 0);
	fastnode_play(&w.node, 6 * HOUR);
	outbox_stats(w.node.outbox, &stats);
	assert_true(stats.spool.bytes <= 20000);
	fastnode_stop(&w.node);
	collect(&w, &b);
	t = books_time(&b);
	assert_true(b.batches[0].loss); /* one, of the oldest */
	assert_false(b.batches[1].loss);
	assert_int_equal(t.lost_ns, stats.spool.lost_batches * MIN);
	assert_true(t.lost_ns > HOUR && t.covered_ns > HOUR);
	expect(&b, &(struct totals){.covered_ns = 6 * HOUR - t.lost_ns, .lost_ns = t.lost_ns, .job_ns = -1});
}

/* ---- the aggregator ---- */

static void
an_aggregator_that_was_gone_for_a_day_gets_the_day(void **state)
{
	in_place(world) struct world w;
	in_place(books) struct books b;

	(void)state;
	world_init(&w, INT64_C(1) << 30, 8 << 20);
	fastnode_start(&w.node, 0);
	fastnode_play(&w.node, NS_PER_DAY);
	fastnode_stop(&w.node);
	collect(&w, &b);
	assert_int_equal(b.batch_count, 24 * 60);
	assert_int_equal(b.stream_count, 1);
	expect(&b, &(struct totals){.covered_ns = NS_PER_DAY, .job_ns = JOB_NS(NS_PER_DAY)});
}

static void
an_aggregator_whose_cursor_moved_back_gets_the_same_again(void **state)
{
	in_place(world) struct world w;
	in_place(books) struct books first, again;
	owned(spool) struct spool *s = NULL;
	struct err err;

	(void)state;
	world_init(&w, INT64_C(1) << 30, 1000);
	fastnode_start(&w.node, 0);
	fastnode_play(&w.node, HOUR);
	fastnode_stop(&w.node);
	if (!spool_open(&w.node.options.spool, SPOOLDIR_WALL, &s, &err))
		fail_msg("%s", err.text);
	books_init(&first);
	books_init(&again);
	assert_true(books_add_spool(&first, s, SPOOLDIR_WALL, &err));
	assert_true(spool_ack(s, first.batches[0].epoch, 1, SPOOLDIR_WALL, &err)); /* it forgot everything */
	assert_true(books_add_spool(&again, s, SPOOLDIR_WALL, &err));
	expect(&first, &(struct totals){.covered_ns = HOUR, .job_ns = JOB_NS(HOUR)});
	expect(&again, &(struct totals){.covered_ns = HOUR, .job_ns = JOB_NS(HOUR)});
	assert_int_equal(again.batch_count, first.batch_count);
}

/* ---- the clock ---- */

static void
play_with_a_step(int64_t step_ns, struct totals want)
{
	in_place(world) struct world w;
	in_place(books) struct books b;

	world_init(&w, INT64_C(1) << 30, 8 << 20);
	fastnode_start(&w.node, 0);
	fastnode_play(&w.node, 95 * MIN + 20 * S);
	fastnode_step(&w.node, step_ns);
	fastnode_play(&w.node, 4 * HOUR);
	fastnode_stop(&w.node);
	collect(&w, &b);
	assert_int_equal(b.stream_count, 2);
	expect(&b, &want);
}

static void
a_clock_stepped_by_an_hour_either_way_is_a_seam_of_an_hour_and_loses_no_time(void **state)
{
	(void)state;
	play_with_a_step(HOUR, (struct totals){.covered_ns = 4 * HOUR, .gap_ns = HOUR, .job_ns = JOB_NS(4 * HOUR)});
	play_with_a_step(-HOUR,
	                 (struct totals){.covered_ns = 4 * HOUR, .overlap_ns = HOUR, .job_ns = JOB_NS(4 * HOUR)});
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_disk_that_is_full_for_an_hour_loses_nothing),
		cmocka_unit_test(a_disk_that_is_full_for_longer_than_memory_lasts_books_the_oldest_as_lost),
		cmocka_unit_test(a_disk_that_is_read_only_for_half_an_hour_loses_nothing),
		cmocka_unit_test(a_disk_that_is_read_only_at_the_start_is_named),
		cmocka_unit_test(a_corrupt_segment_loses_what_is_behind_the_damage_in_it_and_books_it),
		cmocka_unit_test(over_its_cap_the_oldest_time_is_lost_and_the_rest_is_all_there),
		cmocka_unit_test(an_aggregator_that_was_gone_for_a_day_gets_the_day),
		cmocka_unit_test(an_aggregator_whose_cursor_moved_back_gets_the_same_again),
		cmocka_unit_test(a_clock_stepped_by_an_hour_either_way_is_a_seam_of_an_hour_and_loses_no_time),
	};

	return cmocka_run_group_tests_name("spool_totals", tests, NULL, NULL);
}

/* kill -9 at every write. The functions by which the spool changes its directory are counted here, and at the n-th of them the process
 * kills itself: before it, in the middle of it where it can be cut short, or after it. For every n, until a run comes through. Then
 * another exporter goes on, and what the aggregator has in the end must be this:
 *
 *   - each stream's numbers have no hole, and a number that came twice had the same bytes
 *   - time has one gap, from a boundary of the interval to the first tick of the next exporter: the unfinished interval, no more
 *   - outside the gap every GPU is accounted for to the nanosecond, and the pod that was always there holds all of it
 *   - with a spool over its cap: what loss batches say and what is covered is again all but the gap
 *   - a damaged spool that is killed while it is repaired has the same batches and the same loss as one that is not
 *
 * Virtual clocks: a tick every 10 s, an interval of 60 s, eight minutes, a clock stepped by an hour after four. */
#include <setjmp.h>
#include <stdarg.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "tests/support/exporter/books.h"
#include "tests/support/exporter/fastnode.h"
#include "tests/support/exporter/spooldir.h"

#define S NS_PER_S
#define TICK_NS (10 * S)
#define INTERVAL_NS (60 * S)
#define END_NS (480 * S)
#define STEP_AT_NS (240 * S)
#define TAKEN_MAX (1u << 20)
#define PASSES_MAX 2000
/* A process with a sanitizer takes long to begin and to end: there, not every n, and release has them all. */
#ifdef __SANITIZE_ADDRESS__
#define STRIDE 7
#else
#define STRIDE 1
#endif

/* ---- what a killed process leaves behind in memory ---- */

enum blow { BEFORE, WITHIN, AFTER, BLOWS };
static const char *const blow_names[] = {"before", "within", "after"};

struct shared {
	bool armed;
	enum blow blow;
	int until; /* operations before the blow */
	int done;
	char last[32];  /* the operation that was hit */
	int64_t now_ns; /* virtual */
	bool stepped;
	bool alone; /* the aggregator is away until the end */
	/* the aggregator: a sequence of length, payload; in the order of coming */
	size_t taken;
	char bytes[TAKEN_MAX];
};
static struct shared *shared;
static char watched[64]; /* the spool's directory */

/* ---- the operations ---- */

static bool
in_spool(const char *path)
{
	return shared && shared->armed && strncmp(path, watched, strlen(watched)) == 0;
}

static bool
fd_in_spool(int fd)
{
	char link[64], path[512];
	ssize_t n;

	if (!shared || !shared->armed)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	return in_spool(path);
}

/* True when this is the operation to be hit. */
static bool
is_hit(const char *name)
{
	if (shared->done++ != shared->until)
		return false;
	snprintf(shared->last, sizeof(shared->last), "%s", name);
	return true;
}

static void
die(void)
{
	raise(SIGKILL);
}

static void *
real(const char *name)
{
	void *symbol = dlsym(RTLD_NEXT, name);

	if (!symbol)
		abort();
	return symbol;
}

/* dlsym gives an object pointer, and ISO C has no cast from it to a function. */
#define REAL(type, name)                                         \
	static type *real_##name;                                \
	if (!real_##name) {                                      \
		void *symbol_ = real(#name);                     \
		memcpy(&real_##name, &symbol_, sizeof(symbol_)); \
	}

#define STRUCK(watch, name, call)            \
	bool hit_ = (watch) && is_hit(name); \
	if (hit_ && shared->blow != AFTER)   \
		die();                       \
	int result_ = (call);                \
	if (hit_)                            \
		die();                       \
	return result_

/* These are linked in the place of the C library's. */
typedef ssize_t write_fn(int fd, const void *data, size_t n);
typedef ssize_t pwrite_fn(int fd, const void *data, size_t n, off_t offset);
typedef int fd_fn(int fd);
typedef int cut_fd_fn(int fd, off_t length);
typedef int cut_fn(const char *path, off_t length);
typedef int two_paths_fn(const char *from, const char *to);
typedef int path_fn(const char *path);
typedef int temp_fn(char *template, int flags);
write_fn struck_write __asm__("write");
pwrite_fn struck_pwrite __asm__("pwrite");
fd_fn struck_fsync __asm__("fsync");
fd_fn struck_fdatasync __asm__("fdatasync");
cut_fd_fn struck_ftruncate __asm__("ftruncate");
cut_fn struck_truncate __asm__("truncate");
two_paths_fn struck_rename __asm__("rename");
two_paths_fn struck_link __asm__("link");
path_fn struck_unlink __asm__("unlink");
temp_fn struck_mkostemp __asm__("mkostemp");

ssize_t
struck_write(int fd, const void *data, size_t n)
{
	REAL(write_fn, write);
	if (fd_in_spool(fd) && is_hit("write")) {
		if (shared->blow != BEFORE)
			(void)!real_write(fd, data, shared->blow == WITHIN ? n / 2 : n);
		die();
	}
	return real_write(fd, data, n);
}

ssize_t
struck_pwrite(int fd, const void *data, size_t n, off_t offset)
{
	REAL(pwrite_fn, pwrite);
	if (fd_in_spool(fd) && is_hit("pwrite")) {
		if (shared->blow != BEFORE)
			(void)!real_pwrite(fd, data, shared->blow == WITHIN ? n / 2 : n, offset);
		die();
	}
	return real_pwrite(fd, data, n, offset);
}

int
struck_fsync(int fd)
{
	REAL(fd_fn, fsync);
	STRUCK(fd_in_spool(fd), "fsync", real_fsync(fd));
}

int
struck_fdatasync(int fd)
{
	REAL(fd_fn, fdatasync);
	STRUCK(fd_in_spool(fd), "fdatasync", real_fdatasync(fd));
}

int
struck_ftruncate(int fd, off_t length)
{
	REAL(cut_fd_fn, ftruncate);
	STRUCK(fd_in_spool(fd), "ftruncate", real_ftruncate(fd, length));
}

int
struck_truncate(const char *path, off_t length)
{
	REAL(cut_fn, truncate);
	STRUCK(in_spool(path), "truncate", real_truncate(path, length));
}

int
struck_rename(const char *from, const char *to)
{
	REAL(two_paths_fn, rename);
	STRUCK(in_spool(to), "rename", real_rename(from, to));
}

int
struck_link(const char *from, const char *to)
{
	REAL(two_paths_fn, link);
	STRUCK(in_spool(to), "link", real_link(from, to));
}

int
struck_unlink(const char *path)
{
	REAL(path_fn, unlink);
	STRUCK(in_spool(path), "unlink", real_unlink(path));
}

int
struck_mkostemp(char *template, int flags)
{
	REAL(temp_fn, mkostemp);
	STRUCK(in_spool(template), "mkostemp", real_mkostemp(template, flags));
}

/* ---- the aggregator ---- */

/* The payload of a batch that was taken, by its number; NULL: none. */
static const char *
taken_before(uint64_t epoch, uint64_t seq, size_t *ret_len)
{
	for (size_t at = 0; at < shared->taken;) {
		owned(wire_batch) struct wire_batch *b = NULL;
		struct err err;
		size_t len;

		memcpy(&len, shared->bytes + at, sizeof(len));
		at += sizeof(len);
		if (!wire_unpack(shared->bytes + at, len, &b, &err))
			abort();
		if (b->epoch == epoch && seq >= b->seq && seq <= b->last_seq) {
			*ret_len = len;
			return shared->bytes + at;
		}
		at += len;
	}
	return NULL;
}

/* Takes each number once, and checks that it is the same when it comes again. Its own end is not under test: it is complete when it
 * acknowledges. */
static void
take_frame(const struct spool_chunk *chunk, uint64_t seq, const uint8_t *payload, size_t len)
{
	size_t before_len = 0;
	const char *before = taken_before(chunk->epoch, seq, &before_len);

	if (before && (before_len != len || memcmp(before, payload, len) != 0)) {
		fprintf(stderr, "batch %" PRIu64 " came again with other bytes\n", seq);
		abort();
	}
	if (before)
		return;
	ASSERT(shared->taken + sizeof(len) + len <= TAKEN_MAX);
	memcpy(shared->bytes + shared->taken, &len, sizeof(len));
	memcpy(shared->bytes + shared->taken + sizeof(len), payload, len);
	shared->taken += sizeof(len) + len;
}

/* One push; false when there was nothing. */
static bool
push_once(struct outbox *outbox, int64_t wall_ns)
{
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;
	const uint8_t *payload;
	size_t pos = 0, len;
	uint64_t seq;
	struct err err;
	bool any;

	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	if (!outbox_peek(outbox, 600, &frames, &chunk, &any, &err))
		abort();
	seq = chunk.first_seq;
	while (any && frame_next(frames.data, frames.len, &pos, &payload, &len) == FRAME_OK)
		take_frame(&chunk, seq++, payload, len);
	if (any && !outbox_ack(outbox, chunk.epoch, chunk.last_seq + 1, wall_ns, &err))
		abort();
	return any;
}

/* ---- the node ---- */

static const char scenario[] =
	"name: lab\n"
	"gpus:\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2}\n"
	"processes:\n"
	"  - {pid: 100, gpu: 0, sm: 50, memory_mib: 1024, pod: {namespace: team, name: train-0}}\n"
	"  - {pid: 200, gpu: 1, start: 30s, end: 75s, every: 2m, sm: 100, uid: 0, cgroup: /slurm/uid_0/job_7/step_0}\n";

static void
live(struct fastnode *f, int64_t from_ns)
{
	if (shared->stepped)
		fastnode_step(f, NS_PER_HOUR);
	fastnode_start(f, from_ns);
	while (f->now_ns < END_NS) {
		int64_t next_ns = f->now_ns + TICK_NS;

		shared->now_ns = next_ns;
		if (!shared->stepped && next_ns > STEP_AT_NS) {
			shared->stepped = true;
			fastnode_step(f, NS_PER_HOUR);
		}
		fastnode_play(f, next_ns);
		/* the aggregator is behind at times, and not there in the minute of the step */
		if (!shared->alone && next_ns % (2 * INTERVAL_NS) == 70 * S)
			(void)push_once(f->outbox, fastnode_wall(f, next_ns));
	}
	sampler_finish(f->sampler, fastnode_wall(f, f->now_ns), &f->last);
	while (push_once(f->outbox, fastnode_wall(f, f->now_ns)))
		;
	fastnode_fini(f);
}

/* Plays in a child; true when it came to its end, false when it was killed. */
static bool
in_child(struct fastnode *f, int64_t from_ns, bool armed)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		shared->armed = armed;
		f->sim.dir[0] = '\0'; /* the parent's */
		live(f, from_ns);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	shared->armed = false;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return false;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("%s operation %d (%s): the exporter ended with status %#x", blow_names[shared->blow],
		         shared->until, shared->last, (unsigned)status);
	return true;
}

static void
check_books(const struct fastnode_options *o, int64_t killed_ns, bool cut)
{
	in_place(books) struct books b;
	struct book_time t;
	const struct book_gpu *gpu;
	int64_t gap_ns, hour_ns = shared->stepped ? NS_PER_HOUR : 0;
	struct err err;

	books_init(&b);
	for (size_t at = 0, len; at < shared->taken; at += sizeof(len) + len) {
		memcpy(&len, shared->bytes + at, sizeof(len));
		if (!books_add(&b, shared->bytes + at + sizeof(len), len, &err))
			fail_msg("%s operation %d (%s): %s", blow_names[shared->blow], shared->until, shared->last,
			         err.text);
	}
	t = books_time(&b);
	gap_ns = t.gap_ns - hour_ns;
	/* before the first batch, or after the last one: what was lost there has no batch on its other side */
	gap_ns += t.first_ns - o->wall0_ns + o->wall0_ns + END_NS + hour_ns - t.last_ns;
	if ((t.lost_ns != 0) != shared->alone || t.overlap_ns != 0 || gap_ns != END_NS - t.covered_ns - t.lost_ns ||
	    gap_ns > (cut ? INTERVAL_NS + TICK_NS : 0) || (cut && killed_ns < END_NS && gap_ns < TICK_NS))
		fail_msg("%s operation %d (%s) at %" PRId64 " s: covered %" PRId64 " s, gap %" PRId64
		         " ms, overlap %" PRId64 " ms, lost %" PRId64,
		         blow_names[shared->blow], shared->until, shared->last, killed_ns / S, t.covered_ns / S,
		         gap_ns / NS_PER_MS, t.overlap_ns / NS_PER_MS, t.lost_ns);
	assert_int_equal(b.gpu_count, 2);
	gpu = &b.gpus[b.cells[0].gpu];
	assert_true(book_states(&b.gpus[0].sums) == (int128)UNITS_PER_GPU * t.covered_ns);
	assert_true(book_states(&b.gpus[1].sums) == (int128)UNITS_PER_GPU * t.covered_ns);
	assert_true(books_cell(&b, gpu->uuid, "pod/team/train-0")->held == (int128)UNITS_PER_GPU * t.covered_ns);
}

/* One run with its blow, and what comes after it. True when the blow fell. */
static bool
strike(enum blow blow, int until, bool alone)
{
	in_place(spooldir) struct spooldir d;
	in_place(fastnode) struct fastnode f;
	struct fastnode_options o;
	int64_t killed_ns = -1;
	bool through;

	spooldir_init(&d);
	snprintf(watched, sizeof(watched), "%s", d.path);
	o = (struct fastnode_options){.spool = spooldir_options(&d),
	                              .sample_ns = TICK_NS,
	                              .interval_ns = INTERVAL_NS,
	                              .replicas = 1,
	                              .wall0_ns = SPOOLDIR_WALL};
	o.spool.segment_bytes = 500;
	o.spool.keep_ns = INTERVAL_NS; /* deleted within the run */
	if (alone)
		o.spool.cap_bytes = 1500;
	fastnode_init(&f, scenario, &o);
	memset(shared, 0, offsetof(struct shared, bytes));
	shared->blow = blow;
	shared->until = until;
	shared->alone = alone;
	through = in_child(&f, 0, true);
	if (!through) {
		killed_ns = shared->now_ns;
		(void)in_child(&f, killed_ns + TICK_NS, false);
	}
	check_books(&o, killed_ns, !through);
	return !through;
}

static void
every_blow(enum blow blow, bool alone)
{
	int until = 0;

	for (; strike(blow, until, alone); until += STRIDE)
		if (until > PASSES_MAX)
			fail_msg("it never comes through");
	print_message("killed %s every %d of %d operations\n", blow_names[blow], STRIDE, until);
	assert_true(until > 50);
}

static void
killed_before_any_write_it_loses_the_unfinished_interval_and_counts_nothing_twice(void **state)
{
	(void)state;
	every_blow(BEFORE, false);
}

static void
killed_within_any_write_it_loses_the_unfinished_interval_and_counts_nothing_twice(void **state)
{
	(void)state;
	every_blow(WITHIN, false);
}

static void
killed_after_any_write_it_loses_the_unfinished_interval_and_counts_nothing_twice(void **state)
{
	(void)state;
	every_blow(AFTER, false);
}

static void
killed_at_any_write_over_its_cap_what_is_lost_is_on_the_books(void **state)
{
	(void)state;
	for (enum blow blow = BEFORE; blow < BLOWS; blow++)
		every_blow(blow, true);
}

/* ---- repair ---- */

static void
damage(const char *path, off_t offset)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char c = 0;

	assert_true(fd >= 0 && pread(fd, &c, 1, offset) == 1);
	c ^= 0x20;
	assert_int_equal(pwrite(fd, &c, 1, offset), 1);
	close(fd);
}

/* Twelve batches, four to a segment: the second is damaged in batch 7, the third ends inside batch 12. */
static void
make_damaged(const struct spooldir *d)
{
	struct spool_options o = spooldir_options(d);
	owned(spool) struct spool *s = NULL;
	struct err err;

	if (!spool_open(&o, SPOOLDIR_WALL, &s, &err))
		fail_msg("%s", err.text);
	for (uint64_t seq = 1; seq <= 12; seq++) {
		in_place(buf) struct buf payload;

		buf_init(&payload, FRAME_MAX);
		spooldir_batch(&o, spool_epoch(s), seq, 200, &payload);
		if (!spool_append(s, payload.data, payload.len, spooldir_from_ns(seq), spooldir_from_ns(seq + 1),
		                  SPOOLDIR_WALL, &err))
			fail_msg("%s", err.text);
	}
	owned(mem) char *second = spooldir_segment(d, 1);
	owned(mem) char *third = spooldir_segment(d, 2);
	struct stat st;

	damage(second, 700);
	assert_int_equal(stat(third, &st), 0);
	assert_int_equal(truncate(third, st.st_size - 10), 0);
}

static void
repair_and_push(const struct spooldir *d)
{
	struct spool_options o = spooldir_options(d);
	struct spool *s = NULL;
	struct outbox *outbox;
	struct err err;

	if (!spool_open(&o, SPOOLDIR_WALL, &s, &err))
		abort();
	outbox = outbox_new(s, &o);
	while (push_once(outbox, SPOOLDIR_WALL))
		;
	outbox_free(outbox);
}

static bool
repair_in_child(const struct spooldir *d, bool armed)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		shared->armed = armed;
		repair_and_push(d);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	shared->armed = false;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return false;
	assert_int_equal(status, 0);
	return true;
}

/* "1 2 loss(3-4) 5 ", in the order of coming. */
static void
expect_taken(const char *want)
{
	in_place(buf) struct buf got;

	buf_init(&got, 1 << 16);
	for (size_t at = 0, len; at < shared->taken; at += sizeof(len) + len) {
		owned(wire_batch) struct wire_batch *b = NULL;
		struct err err;

		memcpy(&len, shared->bytes + at, sizeof(len));
		if (!wire_unpack(shared->bytes + at + sizeof(len), len, &b, &err))
			fail_msg("%s", err.text);
		buf_printf(&got, b->kind == WIRE_LOSS ? "loss(%" PRIu64 "-%" PRIu64 ") " : "%" PRIu64 " ", b->seq,
		           b->last_seq);
	}
	if (strcmp(buf_text(&got), want) != 0)
		fail_msg("%s operation %d (%s): %s", blow_names[shared->blow], shared->until, shared->last,
		         buf_text(&got));
}

static void
killed_at_any_write_of_a_repair_nothing_sound_is_lost(void **state)
{
	(void)state;
	for (enum blow blow = BEFORE; blow < BLOWS; blow++) {
		bool struck = true;

		for (int until = 0; struck; until += STRIDE) {
			in_place(spooldir) struct spooldir d;

			assert_true(until < PASSES_MAX);
			spooldir_init(&d);
			snprintf(watched, sizeof(watched), "%s", d.path);
			make_damaged(&d);
			memset(shared, 0, offsetof(struct shared, bytes));
			shared->blow = blow;
			shared->until = until;
			struck = !repair_in_child(&d, true);
			if (struck)
				assert_true(repair_in_child(&d, false));
			expect_taken("1 2 3 4 5 6 loss(7-8) 9 10 11 ");
			assert_int_equal(spooldir_count(&d, ".seg.corrupt"), 1);
		}
	}
}

static int
share(void **state)
{
	(void)state;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared == MAP_FAILED ? -1 : 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_before_any_write_it_loses_the_unfinished_interval_and_counts_nothing_twice),
		cmocka_unit_test(killed_within_any_write_it_loses_the_unfinished_interval_and_counts_nothing_twice),
		cmocka_unit_test(killed_after_any_write_it_loses_the_unfinished_interval_and_counts_nothing_twice),
		cmocka_unit_test(killed_at_any_write_over_its_cap_what_is_lost_is_on_the_books),
		cmocka_unit_test(killed_at_any_write_of_a_repair_nothing_sound_is_lost),
	};

	return cmocka_run_group_tests_name("spool_kill", tests, share, NULL);
}

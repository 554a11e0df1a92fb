/* A day of two nodes in fast-forward, second by second, against the truth of its scenario (tests/support/exporter/day/): MIG layouts that change,
 * MPS, time-slicing, plain sharing, 2,160 short processes of which a third lies between two ticks, two lost GPUs, three kills -9, and a
 * clock stepped an hour forward and an hour back. What the books must say:
 *
 * Time. Each stream covers exactly what its exporter lived, in whole intervals where it was killed; the seams are, to the nanosecond,
 * the unfinished intervals and the hour forward (gaps: unknown to the ledger) and the hour back (overlap: clock_adjust).
 * Conservation. Per GPU the seven states add up to 5040 x the time covered, to the unit-nanosecond.
 * States. unknown is nothing: no tick was missed; unmeasured is all that is held in MIG before Hopper
 * and nothing else; a GPU is down while it is lost, and one tick more where it was lost (the slot that ended in the loss), and one
 * tick where MIG mode was switched off.
 * Workloads, allocated and used, against the truth; in ticks (one second of a whole GPU) per stretch in which the workload is there and
 * nothing changes on the GPU:
 *
 *   node, GPU                                   allocated                       used
 *   gn1 0  A100, MIG, then whole                0                               all unmeasured in MIG; whole: 1
 *   gn1 1  exclusive, GPM                       0                               0
 *   gn1 2  MPS                                  0, and 1 tick for its loss      1
 *   gn1 3  short processes, accounting          0                               0
 *   gn1 4  short processes, ticks alone         1                               1
 *   gn1 5  MIG with GPM                         0                               0
 *   gn1 6  plain sharing                        0                               1
 *   gn2    four replicas                        0                               1
 *
 * The 1 for used is the end of a process: without GPM or accounting its last slot shows nothing of it.
 * A process between two ticks is in no list: whose it was nobody can tell once it has ended. It holds nothing, exactly, and where there is
 * accounting each is counted: tollgate_exporter_short_processes_total{held="false"}. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "tests/support/exporter/books.h"
#include "tests/support/exporter/day.h"
#include "tests/support/nvmlsim/truth.h"
#include "tests/support/exporter/spooldir.h"

#define TICK_UNIT_NS ((int128)UNITS_PER_GPU * DAY_TICK_NS)
#define ROWS_MAX 100

/* What may be wrong, in millionths of a tick. */
struct rule {
	int64_t held_ppm, used_ppm; /* per stretch */
	int64_t lost_ppm;           /* of held and used, once, for the slot that ended in a loss */
	int64_t down_ticks;         /* beyond the truth, exactly */
	int64_t energy_mj;          /* beyond the counter's steps; -1: the counter could not be read all the time */
};
#define TICK 1000000
static const struct rule rules[DAY_NODES][SIM_GPUS_MAX] = {
	{
		{.used_ppm = TICK, .down_ticks = 1},
		{.down_ticks = 1, .energy_mj = -1},
		{.used_ppm = TICK, .lost_ppm = TICK, .down_ticks = 1, .energy_mj = -1},
		{0},
		{.held_ppm = TICK, .used_ppm = TICK},
		{0},
		{.used_ppm = TICK},
	},
	{
		{.used_ppm = TICK},
		{.used_ppm = TICK},
	},
};

/* A workload on a GPU over all streams, by the truth. */
struct row {
	size_t gpu;
	char workload[BOOKS_LABEL]; /* as the books have it */
	int128 held, used, over;    /* x TRUTH_PARTS */
	bool unmeasured;            /* in MIG on a GPU without GPM */
	bool seen;                  /* by a tick */
	int64_t stretches;
};

struct day {
	const struct day_node *node;
	const struct rule *rules;
	struct spooldir dir;
	struct scenario *scenario;
	struct books books;
	struct day_played played;
	struct row rows[ROWS_MAX];
	size_t row_count;
	int64_t covered_ns, down_ns[SIM_GPUS_MAX];
	int128 energy_mw_ns[SIM_GPUS_MAX];
};

/* ---- the truth ---- */

/* The books do not know containers by name. */
static void
label_of(const char *workload, char out[BOOKS_LABEL])
{
	snprintf(out, BOOKS_LABEL, "%s", workload);
	if (strncmp(out, "pod/", 4) == 0)
		*strrchr(out, '/') = '\0';
}

static struct row *
row_of(struct day *d, size_t gpu, const char *workload)
{
	char label[BOOKS_LABEL];

	label_of(workload, label);
	for (size_t i = 0; i < d->row_count; i++)
		if (d->rows[i].gpu == gpu && strcmp(d->rows[i].workload, label) == 0)
			return &d->rows[i];
	assert_true(d->row_count < ROWS_MAX);
	d->rows[d->row_count] = (struct row){.gpu = gpu};
	memcpy(d->rows[d->row_count].workload, label, sizeof(label));
	return &d->rows[d->row_count++];
}

static void
count_stretch(void *arg, const struct truth_stretch *s)
{
	struct day *d = arg;

	for (size_t i = 0; !s->fault && i < s->holder_count; i++) {
		struct row *r = row_of(d, s->gpu, s->holders[i].workload);

		r->stretches++;
		r->seen |= time_next_multiple(s->from_ns - 1, DAY_TICK_NS) < s->to_ns;
		r->unmeasured = s->layout->mig && !d->scenario->gpus[s->gpu].gpm;
	}
}

static void
add_truth(struct day *d, const struct day_stream *s)
{
	owned(truth) struct truth *t = truth_new(d->scenario, s->from_ns, s->to_ns, d->node->replicas);

	for (size_t i = 0; i < t->count; i++) {
		struct row *r = row_of(d, t->rows[i].gpu, t->rows[i].workload);

		r->held += t->rows[i].held;
		r->used += t->rows[i].used;
		r->over += t->rows[i].over;
	}
	for (size_t g = 0; g < d->scenario->gpu_count; g++) {
		d->down_ns[g] += t->down_ns[g];
		d->energy_mw_ns[g] += t->energy_mw_ns[g];
		truth_walk(d->scenario, g, s->from_ns, s->to_ns, count_stretch, d);
	}
	d->covered_ns += s->to_ns - s->from_ns;
}

/* ---- the day ---- */

static void
day_init(struct day *d, size_t node)
{
	struct spool_options o;
	owned(spool) struct spool *s = NULL;
	struct err err;

	*d = (struct day){.node = &day_nodes[node], .rules = rules[node]};
	spooldir_init(&d->dir);
	o = spooldir_options(&d->dir);
	o.segment_bytes = 1 << 20;
	day_play(d->node, &o, SPOOLDIR_WALL, NS_PER_DAY, &d->played);
	o.node = d->node->name;
	books_init(&d->books);
	if (!scenario_load(d->node->scenario, &d->scenario, &err) ||
	    !spool_open(&o, SPOOLDIR_WALL + NS_PER_DAY, &s, &err) ||
	    !books_add_spool(&d->books, s, SPOOLDIR_WALL + NS_PER_DAY, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < d->played.stream_count; i++)
		add_truth(d, &d->played.streams[i]);
}

static void
day_fini(struct day *d)
{
	scenario_free(d->scenario);
	books_fini(&d->books);
	spooldir_fini(&d->dir);
}

/* ---- what must be ---- */

static void
check_streams(const struct day *d)
{
	const struct books *b = &d->books;
	size_t stream = 0;

	assert_int_equal(b->stream_count, d->played.stream_count);
	for (size_t i = 0; i < b->batch_count; i++) {
		const struct book_batch *now = &b->batches[i];
		const struct day_stream *want = &d->played.streams[stream];
		bool last = i + 1 == b->batch_count || now[1].epoch != now->epoch;

		assert_false(now->loss);
		if (now->seq == 1)
			assert_int_equal(now->from_ns, want->from_ns + want->offset_ns);
		if (last) {
			assert_int_equal(now->to_ns, want->to_ns + want->offset_ns);
			stream++;
		}
	}
}

/* Gaps are what no exporter lived to finish, and the step forward; the overlap is the step back. */
static void
check_seams(const struct day *d)
{
	struct book_time t = books_time(&d->books);
	int64_t gap_ns = 0, overlap_ns = 0;

	for (size_t i = 1; i < d->played.stream_count; i++) {
		const struct day_stream *s = &d->played.streams[i];
		int64_t seam_ns = s->from_ns - s[-1].to_ns + s->offset_ns - s[-1].offset_ns;

		*(seam_ns > 0 ? &gap_ns : &overlap_ns) += seam_ns > 0 ? seam_ns : -seam_ns;
	}
	assert_int_equal(t.covered_ns, d->covered_ns);
	assert_int_equal(t.gap_ns, gap_ns);
	assert_int_equal(t.overlap_ns, overlap_ns);
	assert_int_equal(t.covered_ns + t.gap_ns - t.overlap_ns, t.last_ns - t.first_ns);
}

static const struct book_gpu *
gpu_in_books(const struct day *d, size_t gpu)
{
	const struct book_gpu *g = books_gpu(&d->books, d->scenario->gpus[gpu].uuid);

	if (!g)
		fail_msg("%s has no GPU %zu in its books", d->node->name, gpu);
	return g;
}

/* In thousandths of a second of a whole GPU, for messages. */
static int64_t
ms_of(int128 unit_ns)
{
	return (int64_t)(unit_ns / UNITS_PER_GPU / NS_PER_MS);
}

static void
expect_near(const struct day *d, size_t gpu, const char *what, int128 got, int128 want, int128 most)
{
	int128 diff = got > want ? got - want : want - got;

	if (diff > most)
		fail_msg("%s GPU %zu, %s: %" PRId64 " ms of a GPU, the truth is %" PRId64 ", off by %" PRId64
		         ", at most %" PRId64,
		         d->node->name, gpu, what, ms_of(got), ms_of(want), ms_of(diff), ms_of(most));
}

static void
check_gpu(const struct day *d, size_t gpu)
{
	const struct book_gpu *g = gpu_in_books(d, gpu);
	const struct rule *rule = &d->rules[gpu];

	expect_near(d, gpu, "all states", book_states(&g->sums), (int128)UNITS_PER_GPU * d->covered_ns, 0);
	expect_near(d, gpu, "down", g->sums.down,
	            (int128)UNITS_PER_GPU * d->down_ns[gpu] + rule->down_ticks * TICK_UNIT_NS, 0);
	expect_near(d, gpu, "unknown", g->sums.unknown, 0, 0);
	if (rule->energy_mj >= 0)
		assert_in_range(llabs(g->sums.energy_mj - (int64_t)(d->energy_mw_ns[gpu] / NS_PER_S)), 0,
		                rule->energy_mj + (int64_t)d->played.stream_count);
}

static void
check_workload(const struct day *d, const struct row *r)
{
	const struct rule *rule = &d->rules[r->gpu];
	const struct book_cell *c = books_cell(&d->books, d->scenario->gpus[r->gpu].uuid, r->workload);
	const struct book_cell none = {0};
	int128 held_most = TICK_UNIT_NS * (rule->held_ppm * r->stretches + rule->lost_ppm) / TICK;
	int128 used_most = TICK_UNIT_NS * (rule->used_ppm * r->stretches + rule->lost_ppm) / TICK;
	char what[BOOKS_LABEL + 32];

	if (!c)
		c = &none;
	snprintf(what, sizeof(what), "%s, allocated", r->workload);
	expect_near(d, r->gpu, what, c->held, r->seen ? r->held / TRUTH_PARTS : 0, r->seen ? held_most : 0);
	snprintf(what, sizeof(what), "%s, unmeasured", r->workload);
	expect_near(d, r->gpu, what, c->unmeasured, r->unmeasured ? c->held : 0, 0);
	if (r->unmeasured)
		return;
	snprintf(what, sizeof(what), "%s, used", r->workload);
	expect_near(d, r->gpu, what, c->used, r->seen ? r->used / TRUTH_PARTS : 0, r->seen ? used_most : 0);
	snprintf(what, sizeof(what), "%s, beyond its share", r->workload);
	expect_near(d, r->gpu, what, c->over, r->over / TRUTH_PARTS, used_most);
}

/* Runs that lie between two ticks of one life, on all GPUs or on those with accounting. */
static int64_t
unseen_runs(const struct day *d, const struct day_life *life, bool accounting)
{
	int64_t runs = 0;

	for (size_t i = 0; i < d->scenario->process_count; i++) {
		const struct sim_process *p = &d->scenario->processes[i];
		bool counts = !accounting || d->scenario->gpus[__builtin_ctzll(p->gpus)].accounting;

		for (int64_t start = p->start_ns, end = p->end_ns; counts && p->every_ns && start < life->to_ns;
		     start += p->every_ns, end += p->every_ns)
			runs += start > life->from_ns && end <= life->to_ns &&
			        time_next_multiple(start, DAY_TICK_NS) >= end;
	}
	return runs;
}

static void
check_short(const struct day *d)
{
	for (size_t i = 0; i < d->played.life_count; i++)
		assert_in_range(d->played.lives[i].short_not_held, unseen_runs(d, &d->played.lives[i], true),
		                unseen_runs(d, &d->played.lives[i], false));
}

/* Nobody is on the books who was not there. */
static void
check_strangers(const struct day *d)
{
	for (size_t i = 0; i < d->books.cell_count; i++) {
		const struct book_cell *c = &d->books.cells[i];
		bool known = false;

		for (size_t k = 0; k < d->row_count && !known; k++)
			known = strcmp(d->rows[k].workload, c->holder) == 0 &&
			        strcmp(d->scenario->gpus[d->rows[k].gpu].uuid, d->books.gpus[c->gpu].uuid) == 0;
		if (!known)
			fail_msg("%s was never on %s", c->holder, d->books.gpus[c->gpu].uuid);
	}
}

static void
check_day(size_t node)
{
	in_place(day) struct day d;

	day_init(&d, node);
	check_streams(&d);
	check_seams(&d);
	for (size_t g = 0; g < d.scenario->gpu_count; g++)
		check_gpu(&d, g);
	for (size_t i = 0; i < d.row_count; i++)
		check_workload(&d, &d.rows[i]);
	check_strangers(&d);
	check_short(&d);
}

static void
a_day_of_a_node_with_mig_mps_short_processes_losses_kills_and_clock_steps_is_what_the_scenario_says(void **state)
{
	(void)state;
	check_day(0);
}

static void
a_day_of_a_node_whose_gpus_are_shared_by_time_slices_is_what_the_scenario_says(void **state)
{
	(void)state;
	check_day(1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_day_of_a_node_with_mig_mps_short_processes_losses_kills_and_clock_steps_is_what_the_scenario_says),
		cmocka_unit_test(a_day_of_a_node_whose_gpus_are_shared_by_time_slices_is_what_the_scenario_says),
	};

	return cmocka_run_group_tests_name("day", tests, NULL, NULL);
}

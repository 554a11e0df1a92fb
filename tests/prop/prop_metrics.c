/* A page of /metrics that was made of an earlier one is, byte for byte, the page that is written in full. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exporter/metrics/metrics_render.h"
#include "tests/support/exporter/pagegen.h"
#include "tests/support/harness/prop.h"

#define GPUS 3
#define PROCESSES 5 /* per GPU */
#define CHANGES 24

/* What happens to the node before a page; the numbers of a busy node move with each. */
enum change {
	NOTHING,
	PROCESS_ENDS,
	PROCESS_COMES,
	PROCESS_NUMBER, /* any value, or none */
	PROCESS_PID,
	GPU_NUMBER,
	GPU_DOWN,
	GPU_MODEL,
	GPU_PARTITIONED,
	TOTAL_ENDS,
	TOTAL_COMES,
	TOTAL_NUMBER,
	TOTALS_REORDERED,
	NEW_STREAM,
	EXPORTER_NUMBER,
	OTHER_DRIVER,
	NO_READING,
	GPU_ERROR,
	GPU_THROTTLED,
	INTRUDER,
	PROCESS_LIMIT,
	COMPAT,
	WORKLOADS,
	WORKLOAD_NUMBER, /* any value, or none */
	CHANGE_COUNT
};
static const char *const change_names[] = {
	"nothing",
	"a process ends",
	"a process comes",
	"a process' number",
	"a process' pid",
	"a GPU's number",
	"a GPU is lost",
	"a GPU's model",
	"a GPU is cut",
	"a total ends",
	"a total comes",
	"a total's number",
	"totals reordered",
	"a new stream",
	"a number of the exporter",
	"another driver",
	"no reading",
	"a GPU's error",
	"a GPU is throttled",
	"intruders",
	"a limit of series",
	"names of another exporter",
	"workloads with cgroups",
	"a workload's number",
};

struct step {
	enum change change;
	size_t which;
	int64_t value;
};
struct steps {
	size_t count;
	struct step step[CHANGES];
};

static void
generate(struct prop_source *s, void *c)
{
	struct steps *steps = c;

	steps->count = prop_u64(s, CHANGES);
	for (size_t i = 0; i < steps->count; i++)
		steps->step[i] = (struct step){.change = (enum change)prop_index(s, CHANGE_COUNT),
		                               .which = prop_index(s, (size_t)GPUS * PROCESSES),
		                               .value = prop_i64(s, -1, INT64_MAX / 4)};
}

static void
describe(const void *c, struct buf *out)
{
	const struct steps *steps = c;

	for (size_t i = 0; i < steps->count; i++)
		buf_printf(out, "  %s, at %zu: %" PRId64 "\n", change_names[steps->step[i].change],
		           steps->step[i].which, steps->step[i].value);
}

static void
partition(struct gpu_reading *r, const struct step *s)
{
	r->mig = s->value % 2;
	r->instance_count = (size_t)(s->value & 3);
	for (size_t i = 0; i < r->instance_count; i++) {
		struct gpu_instance *in = &r->instances[i];

		*in = (struct gpu_instance){.gi = (int32_t)i, .memory_bytes = s->value, .active_ppm = ABSENT};
		snprintf(in->uuid, sizeof(in->uuid), "MIG-%zu-%" PRId64, i, s->value % 3);
		snprintf(in->profile, sizeof(in->profile), "%zug.10gb", i);
	}
}

static void
add_error(struct gpu_reading *r, const struct step *s)
{
	struct gpu_xid *x = &r->xids[r->xid_count == 3 ? s->which % 3 : r->xid_count++];

	x->code += r->xid_count == 3 ? 0 : 10 + (uint32_t)r->xid_count;
	x->count++;
	x->last_wall_ns = s->value;
}

static void
swap_totals(struct pagegen *g, size_t a, size_t b)
{
	struct meter_total t = g->totals[a];

	g->totals[a] = g->totals[b];
	g->totals[b] = t;
}

static void
apply_to_gpu(struct pagegen *g, const struct step *s)
{
	struct gpu_reading *r = &g->readings[s->which % GPUS];
	int64_t *const numbers[] = {&r->power_mw, &r->energy_mj, &r->temperature_c, &r->memory_used_bytes};

	switch ((int)s->change) {
	case GPU_NUMBER: *numbers[s->which % ARRAY_LEN(numbers)] = s->value; break;
	case GPU_DOWN: r->down = !r->down; break;
	case GPU_MODEL: snprintf(r->model, sizeof(r->model), "NVIDIA H%" PRId64, s->value % 3); break;
	case GPU_PARTITIONED: partition(r, s); break;
	case GPU_ERROR: add_error(r, s); break;
	case GPU_THROTTLED: r->board.throttle_reasons = s->value % 512; break;
	}
}

static void
apply_to_process(struct pagegen *g, const struct step *s)
{
	struct tick_gpu *gpu = &g->gpus[s->which % GPUS];
	struct tick_process *p = &g->processes[s->which];

	switch ((int)s->change) {
	case PROCESS_ENDS: gpu->process_count -= gpu->process_count > 0; break;
	case PROCESS_COMES: gpu->process_count += gpu->process_count < PROCESSES; break;
	case PROCESS_NUMBER: *(s->which % 2 ? &p->memory_bytes : &p->sm_ppm) = s->value; break;
	case PROCESS_PID:
		p->pid = (uint32_t)s->value;
		p->gi = p->ci = (int32_t)(s->value % 3) - 1;
		break;
	}
}

/* What a page points to beside the node. */
struct beside {
	struct meter_intruder intruder;
	struct workload_row rows[GPUS * PROCESSES];
};

static void
apply_to_workloads(struct pagegen *g, const struct step *s, struct beside *b)
{
	switch ((int)s->change) {
	case WORKLOADS:
		g->in.workload_count = (size_t)(s->value + 1) % (ARRAY_LEN(b->rows) + 1);
		for (size_t i = 0; i < g->in.workload_count; i++)
			b->rows[i].holder = &g->holders[(s->which + i) % g->process_count];
		break;
	case WORKLOAD_NUMBER: b->rows[s->which].values[(size_t)(s->value + 1) % WORKLOAD_VALUES] = s->value; break;
	}
}

static void
apply(struct pagegen *g, const struct step *s, struct beside *beside)
{
	struct meter_total *t = &g->totals[s->which];

	g->in.tick = &g->tick;
	apply_to_gpu(g, s);
	apply_to_process(g, s);
	apply_to_workloads(g, s, beside);
	switch ((int)s->change) {
	case TOTAL_ENDS: g->in.total_count -= g->in.total_count > 0; break;
	case TOTAL_COMES: g->in.total_count += g->in.total_count < g->process_count; break;
	case TOTAL_NUMBER: t->used_unit_ns = (int128)s->value * (s->which % 2 ? 1 : 5040); break;
	case TOTALS_REORDERED: swap_totals(g, s->which, (size_t)s->value % g->process_count); break;
	case NEW_STREAM: /* the same id may be another holder now */
		g->in.stream++;
		snprintf(g->holders[s->which].pod, 8, "pod-%d", (int)(s->value % 100));
		break;
	case EXPORTER_NUMBER: g->in.push.last_success_wall_ns = s->value; break;
	case OTHER_DRIVER: g->in.driver = s->value % 2 ? "" : "550.1"; break;
	case NO_READING: g->in.tick = NULL; break;
	case COMPAT: g->in.dcgm_hostname = s->value % 2 ? "hostname" : NULL; break;
	case PROCESS_LIMIT: g->in.max_process_series = (size_t)s->value % 40; break;
	case INTRUDER:
		g->in.intruder_count = (size_t)(s->value & 1);
		beside->intruder = (struct meter_intruder){t->holder, t->device, t->gpu};
		break;
	}
}

static bool
holds(const void *c, struct buf *why)
{
	const struct steps *steps = c;
	owned(pagegen) struct pagegen *g = pagegen_new(GPUS, PROCESSES);
	struct beside beside = {0};
	struct metrics_memory memory;
	in_place(buf) struct buf quick;
	bool same = true;

	g->in.intruders = &beside.intruder;
	g->in.workloads = beside.rows;
	metrics_memory_init(&memory);
	buf_init(&quick, METRICS_MAX);
	for (size_t i = 0; i < steps->count && same; i++) {
		struct metrics_memory fresh;
		in_place(buf) struct buf full;

		pagegen_tick(g);
		apply(g, &steps->step[i], &beside);
		metrics_memory_init(&fresh);
		buf_init(&full, METRICS_MAX);
		metrics_render(&g->in, &fresh, &full);
		metrics_render(&g->in, &memory, &quick);
		same = full.len == quick.len && memcmp(full.data, quick.data, full.len) == 0;
		if (!same)
			buf_printf(why, "after step %zu:\n%s\ninstead of\n%s", i, quick.data, full.data);
		metrics_memory_fini(&fresh);
	}
	metrics_memory_fini(&memory);
	return same;
}

int
main(void)
{
	const struct prop_test tests[] = {{.name = "a page made of an earlier one is the page written in full",
	                                   .size = sizeof(struct steps),
	                                   .generate = generate,
	                                   .holds = holds,
	                                   .describe = describe}};

	return prop_main("metrics", tests, ARRAY_LEN(tests));
}

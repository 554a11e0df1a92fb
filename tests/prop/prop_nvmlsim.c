/* tests/prop/prop_nvmlsim.c - the simulator's world, which moves from event to event, against the truth, which looks at every
 * process at every change. */
#include <string.h>

#include "common/base/time.h"
#include "tests/support/nvmlsim/truth.h"
#include "tests/support/nvmlsim/world.h"
#include "tests/support/harness/prop.h"

#define PROCESSES_MAX 12
#define TIMES 8
#define TEXT_MAX (64u << 10)

struct world_case {
	struct buf text;
	int64_t times_ns[TIMES];
};

/* Processes that overlap, repeat and change, on GPUs that are cut anew and lose their scripted power. */
static void
generate(struct prop_source *s, void *c)
{
	struct world_case *k = c;
	size_t processes = prop_index(s, PROCESSES_MAX + 1);

	buf_init(&k->text, TEXT_MAX);
	buf_str(&k->text, "name: random\ngpus:\n"
	                  "  - {model: NVIDIA L40S, memory_mib: 46068, idle_watts: 33, max_watts: 299}\n"
	                  "  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n    mig: [3g.40gb, 2g.20gb]\n"
	                  "    repartition: [{at: 20s, mig: off}, {at: 40s, mig: [1g.10gb, 1g.10gb]}]\n"
	                  "    readings: ['50s power_mw=123456', '55s power_mw=1']\n");
	buf_str(&k->text, processes ? "processes:\n" : "");
	for (size_t i = 0; i < processes; i++) {
		int64_t start = prop_i64(s, 0, 60000), lasts = 1 + prop_i64(s, 0, 30000);

		buf_printf(&k->text,
		           "  - {pid: %zu, uid: %d, start: %" PRId64 "ms, end: %" PRId64 "ms, sm: %" PRId64
		           ", activity: '%" PRId64 "ms sm=%" PRId64 "', gpu: ",
		           1000 + 2000 * i, (int)prop_index(s, 3), start, start + lasts, prop_i64(s, 0, 100),
		           1 + prop_i64(s, 0, 9000), prop_i64(s, 0, 100));
		buf_str(&k->text, prop_bool(s) ? "[0, 1]" : "0");
		if (prop_bool(s))
			buf_printf(&k->text, ", every: %" PRId64 "ms, fresh_pids: %s",
			           lasts + 500 + prop_i64(s, 0, 5000), prop_bool(s) ? "true" : "false");
		buf_str(&k->text, "}\n");
	}
	for (size_t i = 0; i < TIMES; i++)
		k->times_ns[i] = prop_i64(s, 0, 100 * NS_PER_S);
}

static void
describe(const void *c, struct buf *out)
{
	const struct world_case *k = c;

	buf_str(out, buf_text(&k->text));
	for (size_t i = 0; i < TIMES; i++)
		buf_printf(out, "# then at %" PRId64 " ns\n", k->times_ns[i]);
}

static void
fini(void *c)
{
	buf_fini(&((struct world_case *)c)->text);
}

struct moment_check {
	struct world *w;
	bool ok;
};

/* The stretch of a single nanosecond: what is there at the moment. */
static void
check_moment(void *arg, const struct truth_stretch *s)
{
	struct moment_check *m = arg;
	const struct world_run *runs;
	size_t expected = 0;

	for (size_t i = 0; i < s->holder_count; i++)
		expected += s->holders[i].processes;
	m->ok &= world_alive(m->w, s->gpu, &runs) == expected && world_power_mw(m->w, s->gpu) == s->power_mw;
}

static bool
holds(const void *c, struct buf *why)
{
	const struct world_case *k = c;
	owned(scenario) struct scenario *sc = NULL;
	owned(world) struct world *w = NULL;
	struct err err;

	if (!scenario_parse("case", buf_text(&k->text), k->text.len, &sc, &err)) {
		buf_str(why, err.text);
		return false;
	}
	w = world_new(sc);
	for (size_t i = 0; i < TIMES; i++) {
		int64_t t = k->times_ns[i];
		owned(truth) struct truth *truth = truth_new(sc, 0, t, 1);
		struct moment_check m = {.w = w, .ok = true};

		world_advance(w, t);
		for (size_t g = 0; g < sc->gpu_count; g++) {
			int64_t energy_mj = (int64_t)(truth->energy_mw_ns[g] / NS_PER_S);

			truth_walk(sc, g, t, t + 1, check_moment, &m);
			if (m.ok && world_energy_mj(w, g) == energy_mj)
				continue;
			buf_printf(why, "GPU %zu at %" PRId64 " ns: %" PRId64 " mJ, expected %" PRId64 "%s", g, t,
			           world_energy_mj(w, g), energy_mj, m.ok ? "" : "; other processes or power");
			return false;
		}
	}
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"who is alive and what was consumed agree with the truth, also after going back in time",
	         sizeof(struct world_case), generate, holds, describe, fini},
	};

	return prop_main("prop_nvmlsim", tests, ARRAY_LEN(tests));
}

/* tests/fuzz/fuzz_scenario.c - any bytes as a scenario of the simulator: refused with one sentence, or read into a world that can be
 * moved, asked and summed up. The same bytes as a live registration. */
#include <string.h>

#include "common/base/time.h"
#include "tests/support/nvmlsim/truth.h"
#include "tests/support/nvmlsim/world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LOOK_NS (2 * NS_PER_S)
#define TURNS_MAX 1000 /* of all processes in that time: a scenario may repeat every nanosecond */

static bool
is_calm(const struct scenario *sc)
{
	int64_t turns = 0;

	for (size_t i = 0; i < sc->process_count; i++)
		turns += sc->processes[i].every_ns ? LOOK_NS / sc->processes[i].every_ns : 1;
	return turns <= TURNS_MAX && sc->process_count <= TURNS_MAX;
}

static void
move(const struct scenario *sc)
{
	owned(world) struct world *w = world_new(sc);
	owned(truth) struct truth *t = truth_new(sc, 0, LOOK_NS, 1);

	for (int64_t at = 0; at <= LOOK_NS; at += LOOK_NS / 4) {
		world_advance(w, at);
		for (size_t g = 0; g < sc->gpu_count; g++) {
			const struct world_run *runs;

			ASSERT(world_active_ppm(w, g) >= 0 && world_active_ppm(w, g) <= SIM_PPM);
			for (size_t i = world_alive(w, g, &runs); i-- > 0;)
				ASSERT(runs[i].start_ns <= at && runs[i].place != PLACE_NONE);
		}
	}
	for (size_t i = 0; i < t->count; i++)
		ASSERT(t->rows[i].used >= 0 && t->rows[i].used <= t->rows[i].held && t->rows[i].present_ns <= LOOK_NS);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(scenario) struct scenario *sc = NULL;
	struct sim_process *p = NULL;
	struct err err = {0};

	if (!scenario_parse("fuzz.yaml", (const char *)data, size, &sc, &err)) {
		ASSERT(sc == NULL && err.kind == ERR_INVALID);
		ASSERT(strncmp(err.text, "fuzz.yaml:", strlen("fuzz.yaml:")) == 0);
		sc = mem_alloc(sizeof(*sc));
	} else if (is_calm(sc)) {
		move(sc);
	}
	if (scenario_parse_live(sc, "fuzz.yaml", (const char *)data, size, &p, &err)) {
		ASSERT(p->gpus >> sc->gpu_count == 0 || sc->gpu_count == SIM_GPUS_MAX);
		sim_process_fini(p);
		mem_free(p);
	}
	return 0;
}

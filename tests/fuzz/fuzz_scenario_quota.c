/* tests/fuzz/fuzz_scenario_quota.c - any bytes as a scenario of quota simulate: refused with one clear sentence, or replayed to the
 * same bytes twice. */
#include <string.h>

#include "aggregator/core/simulate/scenario.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEPS_MAX 200u /* a small file may ask for a million ticks */
#define GPUS_MAX 2000u

static bool
is_calm(const struct quota_scenario *sc)
{
	size_t gpus = 0;

	for (size_t i = 0; i < sc->world.node_count; i++)
		gpus += sc->world.nodes[i].gpu_count;
	return gpus <= GPUS_MAX && (sc->tick_ns == 0 || sc->end_ns / sc->tick_ns <= STEPS_MAX) &&
	       sc->run_count <= STEPS_MAX && (sc->tick_ns == 0 || sc->run_count == 0);
}

struct sum {
	const struct quota_scenario *sc;
	struct buf lines;
};

static void
add(void *to, const struct scenario_told *told)
{
	struct sum *s = to;

	for (size_t i = 0; i < told->outcome->verdict_count; i++)
		ASSERT(told->outcome->verdicts[i].decision <= QUOTA_REJECT);
	for (size_t i = 0; i < quota_pool_count(told->state); i++) {
		struct quota_pool_figures f = quota_pool_at(told->state, i);

		ASSERT(f.leased + f.held + f.fenced + f.free == f.live + f.excess);
	}
	quota_scenario_json(s->sc, told, &s->lines);
}

static void
replay(const struct quota_scenario *sc, struct buf *out)
{
	struct sum s = {.sc = sc, .lines = {.max = 64u << 20}};
	struct err err = {0};

	if (!quota_scenario_replay(sc, add, &s, &err)) {
		ASSERT(err.kind == ERR_INVALID || err.kind == ERR_CONFLICT);
		buf_str(&s.lines, err.text);
	}
	*out = s.lines;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(quota_scenario) struct quota_scenario *sc = NULL;
	in_place(buf) struct buf first = {0}, second = {0};
	struct err err = {0};

	if (!quota_scenario_parse("fuzz.yaml", (const char *)data, size, &sc, &err)) {
		ASSERT(sc == NULL && err.kind == ERR_INVALID);
		ASSERT(strncmp(err.text, "fuzz.yaml:", strlen("fuzz.yaml:")) == 0);
		return 0;
	}
	if (!is_calm(sc))
		return 0;
	replay(sc, &first);
	replay(sc, &second);
	ASSERT(first.len == second.len && (first.len == 0 || memcmp(first.data, second.data, first.len) == 0));
	return 0;
}

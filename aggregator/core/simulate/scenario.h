/* aggregator/core/simulate/scenario.h - a state of the quota engine and events from a file: what-if for operators.
 *
 * The format is in the README of this folder. Pure: text in, values and errors with file and line out.
 * Replaying is pure too: the same text gives the same bytes. */
#ifndef TOLLGATE_SCENARIO_H
#define TOLLGATE_SCENARIO_H

#include "aggregator/core/quota/engine/quota_text.h"

#define SCENARIO_VERSION 1
#define SCENARIO_MAX_GPUS 100000u /* of all nodes; a simulation is of a site, not of a continent */
#define SCENARIO_MAX_POLICIES 1000u
#define SCENARIO_MAX_TICKS 1000000
#define SCENARIO_START_NS (INT64_C(10000) * 86400 * 1000000000) /* 0 in the file */

/* One thing that happens. The batch of `requests` is the first, at 0. */
struct scenario_event {
	int64_t at_ns; /* since the beginning */
	int line;
	struct quota_event event;
};

/* How long the work of a lease runs once it is admitted, and how long it takes to leave once it is ordered to. */
struct scenario_run {
	const char *id;
	int line;
	int64_t runs_ns, drains_ns; /* -1: until an event says so */
};

struct quota_scenario {
	struct quota_world world;
	struct scenario_event *events; /* by time, then by place in the file */
	size_t event_count;
	struct scenario_run *runs; /* of leases and requests, sorted by id */
	size_t run_count;
	int64_t tick_ns;             /* between two ticks; 0: none but those of the file */
	int64_t end_ns;              /* the last moment that is looked at */
	bool over_time;              /* more happens than one batch */
	struct buf warnings;         /* one per line, for the operator, before the answers are believed */
	struct quota_memory *memory; /* of all lists and texts */
};

void quota_scenario_free(struct quota_scenario *sc);
DEFINE_OWNED(quota_scenario, struct quota_scenario)

/* YAML or JSON. All or nothing; the first error names file, line, field, value and limit. */
MUST_CHECK bool quota_scenario_parse(const char *name, const char *text, size_t len, struct quota_scenario **ret,
                                     struct err *err);

/* One outcome of the engine in a replay, with the state after it. */
struct scenario_told {
	int64_t at_ns; /* since the beginning */
	const struct quota_event *event;
	const struct quota_outcome *outcome;
	const struct quota_state *state;
};
typedef void scenario_tell(void *to, const struct scenario_told *told);

/* Loads the world and applies the events, ticks and ends of work in the order of time. */
MUST_CHECK bool quota_scenario_replay(const struct quota_scenario *sc, scenario_tell *tell, void *to, struct err *err);

/* One JSON object and a newline for each verdict, and over time for each notice. */
void quota_scenario_json(const struct quota_scenario *sc, const struct scenario_told *told, struct buf *out);

/* The names of its positions, valid as long as the scenario. */
struct quota_namer quota_scenario_namer(const struct quota_scenario *sc);

#endif

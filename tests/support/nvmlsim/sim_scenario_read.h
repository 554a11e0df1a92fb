/* tests/support/nvmlsim/sim_scenario_read.h - what the files that read a scenario share. */
#ifndef TOLLGATE_NVMLSIM_SCENARIO_READ_H
#define TOLLGATE_NVMLSIM_SCENARIO_READ_H

#include "common/conf/yaml.h"
#include "tests/support/nvmlsim/sim_scenario.h"

/* The file being read. */
struct reader {
	const struct yaml_doc *doc;
	struct scenario *sc;
	struct err *err;
};

/* Typed values; a key that is absent leaves its default. */
MUST_CHECK bool read_int(const struct reader *r, const struct yaml_node *map, const char *key, int64_t min, int64_t max,
                         int64_t *value);
MUST_CHECK bool read_flag(const struct reader *r, const struct yaml_node *map, const char *key, bool *value);
MUST_CHECK bool read_duration(const struct reader *r, const struct yaml_node *map, const char *key, int64_t *value);
MUST_CHECK bool read_text(const struct reader *r, const struct yaml_node *map, const char *key, char **value);
/* Into an array, at most size - 1 bytes: longer ones are refused. */
MUST_CHECK bool read_short(const struct reader *r, const struct yaml_node *map, const char *key, char *out,
                           size_t size);
/* NULL when the key is absent. */
MUST_CHECK bool read_list(const struct reader *r, const struct yaml_node *map, const char *key, size_t max,
                          const struct yaml_node **ret);
/* The number of a GPU that exists. */
MUST_CHECK bool read_gpu_number(const struct reader *r, const struct yaml_node *n, int *ret);

/* One entry each of the lists of their names. */
MUST_CHECK bool read_gpu(const struct reader *r, const struct yaml_node *n);
MUST_CHECK bool read_process(const struct reader *r, const struct yaml_node *n);
MUST_CHECK bool read_fault(const struct reader *r, const struct yaml_node *n);
MUST_CHECK bool read_call(const struct reader *r, const struct yaml_node *n);
MUST_CHECK bool read_xid(const struct reader *r, const struct yaml_node *n);
MUST_CHECK bool read_clock_step(const struct reader *r, const struct yaml_node *n);

/* `at` and `until`, from the beginning to the end unless they are given. */
MUST_CHECK bool read_span(const struct reader *r, const struct yaml_node *n, int64_t *at_ns, int64_t *until_ns);
/* `dcgm` of the scenario. */
MUST_CHECK bool read_dcgm(const struct reader *r, const struct yaml_node *root);

/* `mig` and `repartition` of a GPU. */
MUST_CHECK bool read_layouts(const struct reader *r, const struct yaml_node *map, struct sim_gpu *g);
/* `readings` of a GPU. */
MUST_CHECK bool read_readings(const struct reader *r, const struct yaml_node *map, struct sim_gpu *g);
/* `activity` of a process whose first phase is there. */
MUST_CHECK bool read_activity(const struct reader *r, const struct yaml_node *map, struct sim_process *p);

/* The next word of a line of values: up to a blank, or a semicolon, which is a word of its own. */
struct sim_word {
	const char *at;
	size_t len;
};
bool next_word(const char **text, struct sim_word *ret);
/* A duration, or key=value with a number or "-" for absent. */
MUST_CHECK bool word_duration(struct sim_word w, int64_t *ret, struct err *err);
MUST_CHECK bool word_pair(struct sim_word w, struct sim_word *ret_key, int64_t *ret_value, struct err *err);
bool word_is(struct sim_word w, const char *text);

/* What other entries do to each other: PIDs used twice at once, the events in their order. */
MUST_CHECK bool check_pids(const struct reader *r);
void order_events(struct scenario *sc);

#endif

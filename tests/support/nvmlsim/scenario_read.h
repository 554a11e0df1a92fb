/* tests/support/nvmlsim/scenario_read.h - what the files that read a scenario share. */
#ifndef TOLLGATE_NVMLSIM_SCENARIO_READ_H
#define TOLLGATE_NVMLSIM_SCENARIO_READ_H

#include "common/yaml.h"
#include "tests/support/nvmlsim/scenario.h"

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
/* NULL when the key is absent. */
MUST_CHECK bool read_list(const struct reader *r, const struct yaml_node *map, const char *key, size_t max,
                          const struct yaml_node **ret);

/* An entry of `gpus`: one or more GPUs with their layouts. */
MUST_CHECK bool read_gpu(const struct reader *r, const struct yaml_node *n);

#endif

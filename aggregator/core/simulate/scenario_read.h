/* aggregator/core/simulate/scenario_read.h - typed values of a scenario file, with errors that name file, line, field, value and limit.
 * Only for the readers of the file. */
#ifndef TOLLGATE_SCENARIO_READ_H
#define TOLLGATE_SCENARIO_READ_H

#include "aggregator/core/quota/engine/quantity.h"
#include "common/conf/yaml.h"

/* The map that is being read; `what` names it in errors: "lease". */
struct scenario_at {
	const struct yaml_doc *doc;
	const struct yaml_node *map;
	const char *what;
};

/* A map with no other keys than these. */
MUST_CHECK bool scenario_map(const struct scenario_at *at, const char *const *keys, struct err *err);
/* A text that `fault` finds nothing wrong with. A missing key leaves *ret as it is, unless it is required. */
MUST_CHECK bool scenario_text(const struct scenario_at *at, const char *key, const char *(*fault)(const char *),
                              bool required, char **ret, struct err *err);
/* One of the NULL-ended words, as its index. A missing key leaves *ret as it is. */
MUST_CHECK bool scenario_choice(const struct scenario_at *at, const char *key, const char *const *words, int *ret,
                                struct err *err);
MUST_CHECK bool scenario_i64(const struct scenario_at *at, const char *key, int64_t min, int64_t max, int64_t *ret,
                             struct err *err);
MUST_CHECK bool scenario_bool(const struct scenario_at *at, const char *key, bool *ret, struct err *err);
/* "90s", "10m", "7d"; 0 without a unit is allowed. */
MUST_CHECK bool scenario_duration(const struct scenario_at *at, const char *key, int64_t max_ns, int64_t *ret_ns,
                                  struct err *err);
/* Amounts of GPUs, by model; none when the key is missing. */
MUST_CHECK bool scenario_amounts(const struct scenario_at *at, const char *key, struct quantities *ret,
                                 struct err *err);
/* The list under a key; NULL when there is none. */
MUST_CHECK bool scenario_list(const struct scenario_at *at, const char *key, size_t max, const struct yaml_node **ret,
                              struct err *err);
/* "FILE:LINE: WHAT KEY "VALUE" ..." at the key's value, or at the map when it has no such key; returns false. */
bool scenario_err(const struct scenario_at *at, const char *key, struct err *err, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

/* What may be an id of a lease or a request: 1 to 63 characters without space or control. */
const char *scenario_id_fault(const char *text);
/* TENANT/WORKSPACE. */
const char *scenario_path_fault(const char *text);

#endif

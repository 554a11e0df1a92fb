/* aggregator/core/quota/engine/check_numbers.h - the numbers of checks as people count: GPUs, cores, bytes, hours. */
#ifndef TOLLGATE_CHECK_NUMBERS_H
#define TOLLGATE_CHECK_NUMBERS_H

#include "aggregator/core/simulate/scenario.h"

enum scenario_measure {
	SCENARIO_GPUS,  /* of units */
	SCENARIO_COUNT, /* devices, nodes */
	SCENARIO_CORES, /* of thousandths */
	SCENARIO_BYTES,
	SCENARIO_HOURS, /* GPU-hours, of unit-seconds */
	SCENARIO_MONEY,
	SCENARIO_TOKENS,  /* of hundredths */
	SCENARIO_SECONDS, /* of nanoseconds */
};

const char *scenario_measure_name(enum scenario_measure m);
/* What the numbers of a check or change are in; money: its budget is of money. */
enum scenario_measure scenario_measure_of(enum quota_rule rule, enum quota_scope scope, enum quota_budget_kind budget);
/* A decimal number of at most nine digits behind the point, rounded; exact for whole GPUs. */
void scenario_number(int64_t value, enum scenario_measure m, struct buf *out);

#endif

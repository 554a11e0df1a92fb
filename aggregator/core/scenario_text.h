/* aggregator/core/scenario_text.h - the numbers of checks as people count: GPUs, cores, bytes, hours. */
#ifndef TOLLGATE_CORE_SCENARIO_TEXT_H
#define TOLLGATE_CORE_SCENARIO_TEXT_H

#include "aggregator/core/scenario.h"

enum scenario_measure {
	SCENARIO_GPUS,  /* of units */
	SCENARIO_COUNT, /* devices, nodes */
	SCENARIO_CORES, /* of thousandths */
	SCENARIO_BYTES,
	SCENARIO_HOURS,   /* GPU-hours, of unit-seconds */
	SCENARIO_MONEY,   /* of hundredths */
	SCENARIO_SECONDS, /* of nanoseconds */
};

/* What the numbers of a check on a workspace's request are in. */
enum scenario_measure quota_json_measure(const struct quota_namer *namer, const struct quota_check *c,
                                         int32_t workspace);
const char *scenario_measure_name(enum scenario_measure m);
/* What the numbers of a check are in; money: its budget is of money. */
enum scenario_measure scenario_measure_of(const struct quota_check *c, bool money);
/* Whether the budget of a workspace, or of its tenant, is of money. */
bool scenario_budget_is_money(const struct quota_policy *p, int32_t workspace, bool whole_tenant);
enum scenario_measure scenario_change_measure(enum quota_change_kind kind);
/* A decimal number of at most nine digits behind the point, rounded; exact for whole GPUs. */
void scenario_number(int64_t value, enum scenario_measure m, struct buf *out);

#endif

/* aggregator/core/quota/engine/check_numbers.h - the numbers of a check in GPUs, cores, bytes, hours or money. */
#ifndef TOLLGATE_CHECK_NUMBERS_H
#define TOLLGATE_CHECK_NUMBERS_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"

enum check_measure {
	CHECK_GPUS,  /* of units */
	CHECK_COUNT, /* devices, nodes */
	CHECK_CORES, /* of thousandths */
	CHECK_BYTES,
	CHECK_HOURS, /* GPU-hours, of unit-seconds */
	CHECK_MONEY,
	CHECK_TOKENS,  /* of hundredths */
	CHECK_SECONDS, /* of nanoseconds */
};

const char *check_measure_name(enum check_measure m);
/* The measure of the numbers of a check or change; budget: the kind, where the rule is the budget. */
enum check_measure check_measure_of(enum quota_rule rule, enum quota_scope scope, enum quota_budget_kind budget);
/* A decimal number of at most nine digits behind the point, rounded; exact for whole GPUs. */
void check_number(int64_t value, enum check_measure m, struct buf *out);

#endif

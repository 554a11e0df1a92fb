/* aggregator/core/quota/engine/check_numbers.c - the numbers of a check in GPUs, cores, bytes, hours or money. */
#include "aggregator/core/quota/engine/check_numbers.h"

#include "common/base/time.h"

#define DECIMALS 9

static const struct {
	const char *name;
	int64_t one;
} measures[] = {
	/* clang-format off */
	[CHECK_GPUS] = {"gpus", UNITS_PER_GPU},
	[CHECK_COUNT] = {"count", 1},
	[CHECK_CORES] = {"cores", 1000},
	[CHECK_BYTES] = {"bytes", 1},
	[CHECK_HOURS] = {"gpu_hours", UNITS_PER_GPU * 3600},
	[CHECK_MONEY] = {"money", 100},
	[CHECK_TOKENS] = {"tokens", 1},
	[CHECK_SECONDS] = {"seconds", NS_PER_S},
	/* clang-format on */
};

const char *
check_measure_name(enum check_measure m)
{
	return measures[m].name;
}

enum check_measure
check_measure_of(enum quota_rule rule, enum quota_scope scope, enum quota_budget_kind budget)
{
	switch (scope) {
	case QUOTA_SCOPE_REQUEST:
	case QUOTA_SCOPE_ISOLATION:
	case QUOTA_SCOPE_HEAD:
	case QUOTA_SCOPE_PREEMPTIBLE: return CHECK_COUNT;
	case QUOTA_SCOPE_CPU:
	case QUOTA_SCOPE_TENANT_CPU: return CHECK_CORES;
	case QUOTA_SCOPE_MEMORY:
	case QUOTA_SCOPE_STORAGE:
	case QUOTA_SCOPE_TENANT_MEMORY:
	case QUOTA_SCOPE_TENANT_STORAGE: return CHECK_BYTES;
	case QUOTA_SCOPE_BACKOFF: return CHECK_SECONDS;
	default: break;
	}
	if (rule != QUOTA_RULE_BUDGET)
		return CHECK_GPUS;
	switch (budget) {
	case QUOTA_BUDGET_MONEY: return CHECK_MONEY;
	case QUOTA_BUDGET_TOKENS: return CHECK_TOKENS;
	case QUOTA_BUDGET_UNIT_SECONDS: break;
	}
	return CHECK_HOURS;
}

void
check_number(int64_t value, enum check_measure m, struct buf *out)
{
	const int64_t scale = INT64_C(1000000000);
	int64_t one = measures[m].one, size = value < 0 ? -value : value;
	char digits[DECIMALS + 1];
	int64_t part;
	int n = DECIMALS;

	if (value >= 0 && value % one == 0) { /* nearly always */
		buf_i64(out, value / one);
		return;
	}
	/* no measure has more than a thousand million in one: the product has room */
	part = ((size % one) * scale * 2 + one) / (2 * one);
	size /= one;
	if (part == scale) {
		part = 0;
		size++;
	}
	if (value < 0 && (size > 0 || part > 0))
		buf_char(out, '-');
	buf_i64(out, size);
	if (part == 0)
		return;
	for (int i = DECIMALS; i-- > 0; part /= 10)
		digits[i] = (char)('0' + part % 10);
	while (n > 0 && digits[n - 1] == '0')
		n--;
	buf_char(out, '.');
	buf_add(out, digits, (size_t)n);
}

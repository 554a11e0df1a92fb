/* aggregator/core/quota/engine/quota_text.h - verdicts and notices for users: JSON with keys in a fixed order, sentences, numbers without binary fractions. */
#ifndef TOLLGATE_QUOTA_TEXT_H
#define TOLLGATE_QUOTA_TEXT_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"

/* The names of the positions in a verdict. */
struct quota_namer {
	const void *of;
	void (*workspace)(const void *of, int32_t workspace, struct buf *out); /* "acme/prod"; nothing for QUOTA_NONE */
	const char *(*node)(const void *of, int32_t node);
	struct quota_shape (*shape)(const void *of, int32_t shape);
};

/* at: when it was decided, or NULL to leave it out. */
void quota_json_verdict(const struct quota_namer *namer, const struct quota_verdict *v, const char *at,
                        struct buf *out);
/* The reader of a verdict. */
struct quota_reader {
	const char *
		tenant; /* the reader's; of other tenants' leases it sees only the reason and the units. "": an operator, who sees all */
};
/* The members of a verdict behind its id and decision, each with a comma before it, for a reply: "summary" before "checks", not last, and leases by
 * their request_id. */
void quota_json_reply(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_reader *reader,
                      struct buf *out);
/* One to three sentences for the user: the reason, the expected start, and the change that would admit it. */
void quota_sentences(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out);
/* A change with its amount and unit: "raise the workspace's limit by 2 GPUs". */
void quota_change_text(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_change *c,
                       struct buf *out);
/* {"event","id","for" or "reason","due_ns"}; with at: {"at",...}. */
void quota_json_notice(const struct quota_notice *n, const char *at, struct buf *out);

/* ---- the numbers of a check, in the measure that users read them in ------------------------------------------------------- */

enum check_measure {
	CHECK_GPUS,  /* of units */
	CHECK_COUNT, /* devices, nodes */
	CHECK_CORES, /* of thousandths */
	CHECK_BYTES,
	CHECK_GPU_HOURS, /* GPU-hours, of unit-seconds */
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

/* aggregator/core/quota_json.h - verdicts and notices as JSON. Keys in a fixed order, numbers without binary fractions. */
#ifndef TOLLGATE_CORE_QUOTA_JSON_H
#define TOLLGATE_CORE_QUOTA_JSON_H

#include "aggregator/core/quota.h"
#include "common/buf.h"

/* Who knows what the positions in a verdict are called. */
struct quota_namer {
	const void *of;
	void (*workspace)(const void *of, int32_t workspace, struct buf *out); /* "acme/prod"; nothing for QUOTA_NONE */
	const char *(*node)(const void *of, int32_t node);
	/* Whether the budget of a workspace, or of its tenant, is of money. */
	bool (*money)(const void *of, int32_t workspace, bool whole_tenant);
};

/* at: when it was decided, or NULL to leave it out. */
void quota_json_verdict(const struct quota_namer *namer, const struct quota_verdict *v, const char *at,
                        struct buf *out);
/* {"event","id","for" or "reason","due_ns"}; with at: {"at",...}. */
void quota_json_notice(const struct quota_notice *n, const char *at, struct buf *out);

#endif

/* aggregator/core/quota/engine/quota_json.h - verdicts and notices as JSON. Keys in a fixed order, numbers without binary fractions. */
#ifndef TOLLGATE_QUOTA_JSON_H
#define TOLLGATE_QUOTA_JSON_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"

/* Who knows what the positions in a verdict are called. */
struct quota_namer {
	const void *of;
	void (*workspace)(const void *of, int32_t workspace, struct buf *out); /* "acme/prod"; nothing for QUOTA_NONE */
	const char *(*node)(const void *of, int32_t node);
	struct quota_shape (*shape)(const void *of, int32_t shape);
};

/* at: when it was decided, or NULL to leave it out. */
void quota_json_verdict(const struct quota_namer *namer, const struct quota_verdict *v, const char *at,
                        struct buf *out);
/* To whom a verdict is told. */
struct quota_reader {
	const char *
		tenant; /* whose leases it may know: of others' only why they would go and how much they are; "": all of them */
};
/* The members of a verdict behind its id and decision, each with a comma before it, for a reply: "summary" before "checks", not last, and leases by
 * their request_id. */
void quota_json_reply(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_reader *reader,
                      struct buf *out);
/* One to three sentences for the person who asked: why, when, and what can be done. */
void quota_sentences(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out);
/* What a change asks for, with its amount and unit: "raise the workspace's limit by 2 GPUs". */
void quota_change_text(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_change *c,
                       struct buf *out);
/* {"event","id","for" or "reason","due_ns"}; with at: {"at",...}. */
void quota_json_notice(const struct quota_notice *n, const char *at, struct buf *out);

#endif

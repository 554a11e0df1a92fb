/* aggregator/cli/commands/quota_bar.h - a workspace's GPUs as a bar: what is used, on demand, borrowed, lent and left up to its limit. Pure. */
#ifndef TOLLGATE_QUOTA_BAR_H
#define TOLLGATE_QUOTA_BAR_H

#include "common/base/buf.h"

#define QUOTA_BAR_CELLS 24
#define QUOTA_BAR_LEGEND "# in use  * on demand  + borrowed  = lent  - reserved and idle  . left up to the limit"

/* In units. */
struct quota_bar {
	int64_t limit; /* -1: none; the bar then ends at what is reserved or used */
	int64_t reserved, in_use, borrowed, lent, on_demand;
};

/* "[######++....]": always as long, each cell rounded so that whatever is there has at least one. */
void quota_bar_write(const struct quota_bar *b, bool colours, struct buf *out);

#endif

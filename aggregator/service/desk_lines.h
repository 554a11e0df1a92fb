/* aggregator/service/desk_lines.h - items that wait for a thread, one line for each tenant.
 *
 * Rules, in order:
 *  1. the items of a tenant keep their order; those that are about no tenant are a line of their own
 *  2. tenants take turns: who was served goes behind the others
 *  3. of one tenant at most `alone` items are taken at once, and at most `beside` while others have come within the last second: so long does
 *     somebody else wait for it
 *
 * For one thread, or under a lock. */
#ifndef TOLLGATE_DESK_LINES_H
#define TOLLGATE_DESK_LINES_H

#include "aggregator/service/decider.h"

#define DESK_SERVED 16
#define DESK_BUCKETS 256

struct desk_lines {
	struct desk_line *first,
		*last; /* the one whose turn it is, and the one that waits longest for its own; each has an item */
	size_t count;
	struct desk_line *buckets[DESK_BUCKETS]; /* the same lines by hash */
	int64_t crowded_ns;                      /* when there were several last */
	uint64_t served[DESK_SERVED];            /* by hash, the tenants that were served last, or the first of them */
	size_t served_count;
};

void desk_lines_add(struct desk_lines *l, struct desk_item *item);
struct desk_item *desk_lines_take(struct desk_lines *l, size_t most, size_t alone, size_t beside);
/* Takes out of a list the items whose client has gone: nobody would read what was decided for them, and they may be asked again. */
struct desk_item *desk_items_gone(struct desk_item **items);
/* Somebody waits who was not among those that were served last. */
bool desk_lines_other(const struct desk_lines *l);

#endif

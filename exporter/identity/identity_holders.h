/* exporter/identity/identity_holders.h - the holders that this node knows, each content once, under an id that is never given again. */
#ifndef TOLLGATE_IDENTITY_HOLDERS_H
#define TOLLGATE_IDENTITY_HOLDERS_H

#include "common/base/idmap.h"
#include "common/wire/wire.h"

struct holder_entry {
	struct wire_holder wire;
	size_t uses; /* processes and allocations */
};

struct holders {
	struct holder_entry **entries;
	size_t count;
	struct idmap by_content; /* a hash; the next number is tried when it is another's */
	struct idmap by_id;
	uint32_t last_id;
};

void holders_fini(struct holders *h);
/* The entry with this content, made if there is none; the id in `content` is not looked at, a text that is NULL is empty, and
 * texts are copied. */
struct holder_entry *holders_get(struct holders *h, const struct wire_holder *content);
/* NULL: no such id. */
struct holder_entry *holders_by_id(const struct holders *h, uint32_t id);
/* Drops the entries that nobody uses when there are many of them, so that a workload that comes back soon keeps its own. */
void holders_sweep(struct holders *h);

#endif

/* aggregator/core/quota/engine/quota_unused.c - requests of which the last lease was not used: what the scheduler cannot place evicts nobody again and again.
 *
 *  1. a lease that expires unconfirmed, and was not asked to end, was not used. From then on nobody is evicted for requests of the same workspace,
 *     cluster, shape, count and priority: for the confirm time, doubled with each such lease in a row, at most unused_most_ns
 *  2. leases that were admitted before the last one expired count with it
 *  3. a request whose scheduler gives another reason than for the last one may reclaim. Without a reason on both sides only time ends it
 *  4. a confirmed lease of the workspace, cluster and shape forgets it, and so does a day in which none expired */
#include "aggregator/core/quota/engine/quota_state.h"

#include "common/base/time.h"

#define FORGET_NS NS_PER_DAY
#define MAX_DOUBLINGS 20

void
quota_copy_reason(char to[QUOTA_REASON_SIZE], const char *from)
{
	to[0] = '\0';
	if (from)
		memcpy(to, from, strlen(from) + 1);
}

bool
quota_unused_ok(const struct quota_state *s, const struct quota_unused *in)
{
	return in->workspace >= 0 && (size_t)in->workspace < s->workspaces.count && in->cluster >= 0 &&
	       (size_t)in->cluster < s->clusters.count && in->shape >= 0 && (size_t)in->shape < s->shapes.count &&
	       in->count > 0 && in->count <= QUOTA_MAX_COUNT && in->times > 0 &&
	       (!in->reason || strnlen(in->reason, QUOTA_REASON_SIZE) < QUOTA_REASON_SIZE);
}

static int
compare(const struct quota_unused *a, const struct quota_unused *b)
{
	if (a->workspace != b->workspace)
		return a->workspace < b->workspace ? -1 : 1;
	if (a->cluster != b->cluster)
		return a->cluster < b->cluster ? -1 : 1;
	if (a->shape != b->shape)
		return a->shape < b->shape ? -1 : 1;
	if (a->count != b->count)
		return a->count < b->count ? -1 : 1;
	return (a->priority > b->priority) - (a->priority < b->priority);
}

/* The first that is not before it. */
static size_t
place_of(const struct quota_state *s, const struct quota_unused *key)
{
	size_t from = 0, to = s->unused.count;

	while (from < to) {
		size_t middle = from + (to - from) / 2;

		if (compare(&s->unused.at[middle].in, key) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

static const struct unused *
find(const struct quota_state *s, const struct quota_unused *key)
{
	size_t at = place_of(s, key);

	return at < s->unused.count && compare(&s->unused.at[at].in, key) == 0 ? &s->unused.at[at] : NULL;
}

void
quota_unused_add(struct quota_state *s, const struct quota_unused *in)
{
	size_t at = place_of(s, in);
	struct unused *u;

	(void)PUSH(s->unused);
	u = &s->unused.at[at];
	memmove(u + 1, u, (s->unused.count - 1 - at) * sizeof(*u));
	u->in = *in;
	quota_copy_reason(u->reason, in->reason);
}

static struct quota_unused
key_of_lease(const struct lease *l)
{
	return (struct quota_unused){.workspace = l->in.workspace,
	                             .cluster = l->in.cluster,
	                             .shape = l->in.shape,
	                             .count = l->in.count,
	                             .priority = l->in.priority};
}

int64_t
quota_unused_until(const struct quota_state *s, const struct wait *w)
{
	struct quota_unused key = {.workspace = w->in.workspace,
	                           .cluster = w->in.cluster,
	                           .shape = w->in.shape,
	                           .count = w->in.count,
	                           .priority = w->in.priority};
	const struct unused *u = s->unused.count == 0 ? NULL : find(s, &key);

	if (!u || u->in.until_ns <= s->now_ns)
		return 0;
	if (w->reason[0] != '\0' && u->reason[0] != '\0' && strcmp(w->reason, u->reason) != 0) /* 3 */
		return 0;
	return u->in.until_ns;
}

static int64_t
span_of(const struct quota_settings *set, int32_t times)
{
	int64_t span = set->confirm_ns;

	for (int32_t i = 1; i < times && i < MAX_DOUBLINGS && span < set->unused_most_ns; i++)
		span *= 2;
	return span < set->unused_most_ns ? span : set->unused_most_ns;
}

void
quota_unused_expired(struct quota_state *s, const struct lease *l, struct gather *g)
{
	struct quota_unused key = key_of_lease(l);
	struct unused *u;

	if (s->settings.unused_most_ns == 0 || l->in.order != QUOTA_NO_ORDER || l->was != QUOTA_NO_ORDER)
		return;
	if (!find(s, &key)) {
		key.last_ns = INT64_MIN;
		quota_unused_add(s, &key);
	}
	u = &s->unused.at[place_of(s, &key)];
	if (l->in.since_ns >= u->in.last_ns) { /* 2 */
		u->in.times++;
		u->in.last_ns = s->now_ns;
		u->in.until_ns = s->now_ns + span_of(&s->settings, u->in.times);
		quota_copy_reason(u->reason, l->reason);
	}
	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];

		if (w->id[0] != '\0' && w->account != QUOTA_NONE && quota_unused_until(s, w) > 0)
			quota_replan(s, (int32_t)i, g);
	}
}

static void
drop(struct quota_state *s, size_t at)
{
	struct unused *u = &s->unused.at[at];

	memmove(u, u + 1, (--s->unused.count - at) * sizeof(*u));
	s->dirty = true;
}

void
quota_unused_confirmed(struct quota_state *s, const struct lease *l)
{
	for (size_t i = s->unused.count; i-- > 0;) {
		const struct quota_unused *u = &s->unused.at[i].in;

		if (u->workspace == l->in.workspace && u->cluster == l->in.cluster && u->shape == l->in.shape)
			drop(s, i);
	}
}

void
quota_unused_forget(struct quota_state *s)
{
	for (size_t i = s->unused.count; i-- > 0;)
		if (s->now_ns - s->unused.at[i].in.until_ns >= FORGET_NS)
			drop(s, i);
}

/* aggregator/core/quota/engine/quota_forecast.c - when each waiting request is expected to start: a copy of the state is run forward.
 *
 *  1. a lease ends at its admission plus its expected duration. One that has run longer has no known end
 *  2. a lease that was ordered to end does so when its grace period is over, if not before
 *  3. requests that start on the way end likewise; no further request comes, no node fails, and every lease is confirmed
 *  4. back-offs, exceptions and requests end at their time
 *  5. when nothing more has a known end, the rest ends all the same: a request that starts only then waits for something without a known
 *     end, and one that does not start even then waits for more than the end of others
 *  6. of a tenant's requests the first of the queue are looked at, a given number, and those with a hold. The others are too far ahead: a tenant
 *     with many requests shortens only its own estimates. An estimate without them is a rough one
 *  7. a step costs one and one for each request that is looked at and waits; when the given cost is used up, requests that still wait are too far ahead */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

#include "common/base/time.h"

struct forecast {
	struct quota_state *s; /* the copy */
	int64_t began_ns;
	struct quota_start *at; /* by id */
	size_t count;
	int64_t left; /* of the cost */
	const _Atomic bool *give_up;
	bool by_force; /* rule 5 */
	bool roughly;  /* rule 6 */
};

static int
compare_starts(const void *a, const void *b)
{
	const struct quota_start *x = a, *y = b;

	return strcmp(x->id, y->id);
}

static struct quota_start *
start_of(struct forecast *f, const char *id)
{
	struct quota_start key = {0};

	memcpy(key.id, id, strnlen(id, sizeof(key.id) - 1));
	return f->count == 0 ? NULL : bsearch(&key, f->at, f->count, sizeof(*f->at), compare_starts);
}

const struct quota_start *
quota_start_find(const struct quota_start *at, size_t count, const char *id)
{
	struct forecast f = {.at = (struct quota_start *)(uintptr_t)at, .count = count};

	return start_of(&f, id);
}

static bool
step(struct forecast *f, int64_t now_ns, const struct quota_event *e)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;

	f->left -= 1 + (int64_t)f->s->wait_count;
	if (f->give_up && *f->give_up)
		f->left = -1;
	if (f->left < 0 || !quota_step(f->s, now_ns, e, &o, NULL))
		return false;
	for (size_t i = 0; i < o->verdict_count; i++) {
		const struct quota_verdict *v = &o->verdicts[i];
		struct quota_start *w =
			v->decision == QUOTA_ADMIT || v->decision == QUOTA_BORROW ? start_of(f, v->id) : NULL;

		if (w && w->kind == QUOTA_START_NOT_YET) {
			w->kind = f->by_force  ? QUOTA_START_NO_DURATION
			          : f->roughly ? QUOTA_START_ROUGHLY
			                       : QUOTA_START_AT;
			w->at_ns = f->by_force ? 0 : f->s->now_ns;
		}
	}
	for (size_t i = 0; i < o->notice_count; i++) {
		struct quota_start *w =
			o->notices[i].kind == QUOTA_REQUEST_EXPIRED ? start_of(f, o->notices[i].id) : NULL;

		if (w && w->kind == QUOTA_START_NOT_YET)
			w->kind = QUOTA_START_EXPIRES;
	}
	return true;
}

/* INT64_MAX: not known. */
static int64_t
end_of(const struct forecast *f, const struct lease *l)
{
	int64_t now = f->s->now_ns, end = INT64_MAX;

	if (l->in.released)
		return now;
	if (l->in.unit_seconds > 0 && l->units > 0)
		end = l->in.since_ns + l->in.unit_seconds / l->units * NS_PER_S;
	if (end <= f->began_ns)
		end = INT64_MAX;
	if (l->in.order != QUOTA_NO_ORDER && l->in.due_ns > 0 && l->in.due_ns < end)
		end = l->in.due_ns;
	return end < now ? now : end;
}

static void
sooner(int64_t at_ns, int64_t now_ns, int64_t *next_ns)
{
	if (at_ns > now_ns && at_ns < *next_ns)
		*next_ns = at_ns;
}

/* The next thing that happens with time alone; false: nothing is known. */
static bool
next_event(const struct forecast *f, int64_t *ret_ns, struct quota_event *ret)
{
	const struct quota_state *s = f->s;
	const struct lease *first = NULL;
	int64_t next = INT64_MAX, end = INT64_MAX;

	for (size_t i = 0; i < s->leases.count; i++) {
		const struct lease *l = &s->leases.at[i];
		int64_t at = l->id[0] == '\0' ? INT64_MAX : end_of(f, l);

		if (at < end || (at == end && first && strcmp(l->id, first->id) < 0 && at != INT64_MAX)) {
			end = at;
			first = l;
		}
	}
	for (size_t i = 0; i < s->leases.count; i++)
		if (s->leases.at[i].id[0] != '\0' && s->leases.at[i].in.adopted)
			sooner(quota_spared_until(s, &s->leases.at[i]), s->now_ns, &next);
	for (size_t i = 0; i < s->unused.count; i++)
		sooner(s->unused.at[i].in.until_ns, s->now_ns, &next);
	for (size_t i = 0; i < s->backoffs.count; i++)
		sooner(s->backoffs.at[i].until_ns, s->now_ns, &next);
	for (size_t i = 0; i < s->exceptions.count; i++) {
		sooner(s->exceptions.at[i].in.from_ns, s->now_ns, &next);
		sooner(s->exceptions.at[i].in.until_ns, s->now_ns, &next);
	}
	for (size_t i = 0; i < s->waits.count; i++)
		if (s->waits.at[i].id[0] != '\0' && s->waits.at[i].in.expires_ns > 0)
			sooner(s->waits.at[i].in.expires_ns, s->now_ns, &next);
	*ret = (struct quota_event){.kind = QUOTA_TICK};
	if (first && end <= next)
		*ret = (struct quota_event){.kind = QUOTA_FINISH, .id = first->id};
	*ret_ns = end < next ? end : next;
	return *ret_ns != INT64_MAX;
}

static const char *
any_lease(const struct quota_state *s)
{
	for (size_t i = 0; i < s->leases.count; i++)
		if (s->leases.at[i].id[0] != '\0')
			return s->leases.at[i].id;
	return NULL;
}

static void
run(struct forecast *f)
{
	struct quota_event e = {.kind = QUOTA_TICK};
	int64_t at_ns = f->s->now_ns;
	char id[QUOTA_ID_SIZE];
	bool more = true;

	while (more && f->s->wait_count > 0 && step(f, at_ns, &e)) {
		more = next_event(f, &at_ns, &e);
		if (more && e.id)
			e.id = memcpy(id, e.id, sizeof(id)); /* the lease's own is gone with it */
	}
	f->by_force = true;
	for (const char *lease = any_lease(f->s); lease && !more && f->s->wait_count > 0; lease = any_lease(f->s)) {
		memcpy(id, lease, sizeof(id));
		if (!step(f, f->s->now_ns, &(struct quota_event){.kind = QUOTA_FINISH, .id = id}))
			break;
	}
	for (size_t i = 0; i < f->count; i++)
		if (f->at[i].kind == QUOTA_START_NOT_YET)
			f->at[i].kind = f->left < 0 ? QUOTA_START_TOO_FAR : QUOTA_START_NOT_BY_WAITING;
}

/* Rule 6. */
static void
leave_out(struct forecast *f, size_t of_tenant)
{
	struct quota_state *s = f->s;
	owned(mem) struct queued *order = NULL;
	owned(mem) size_t *seen = mem_array(s->tenants.count + 1, sizeof(*seen));
	size_t n = quota_queue_order(s, &order);

	for (size_t i = 0; i < n; i++) {
		const struct wait *w = &s->waits.at[order[i].wait];
		size_t *count = &seen[s->workspaces.at[w->in.workspace].in.tenant];

		if (w->account != QUOTA_NONE || (*count)++ < of_tenant)
			continue;
		start_of(f, w->id)->kind = QUOTA_START_TOO_FAR;
		quota_wait_free(s, order[i].wait);
		f->roughly = true;
	}
}

size_t
quota_forecast(const struct quota_state *s, int64_t now_ns, struct quota_reach reach, const _Atomic bool *give_up,
               struct quota_start **ret)
{
	owned(quota) struct quota_state *copy = quota_clone(s);
	struct forecast f = {
		.s = copy, .left = reach.cost, .give_up = give_up, .at = mem_array(s->wait_count + 1, sizeof(*f.at))};

	if (now_ns > copy->now_ns)
		copy->now_ns = now_ns;
	f.began_ns = copy->now_ns;
	copy->settings.confirm_ns = copy->settings.silence_ns = 0;
	for (size_t i = 0; i < s->waits.count; i++)
		if (s->waits.at[i].id[0] != '\0') {
			memcpy(f.at[f.count].id, s->waits.at[i].id, QUOTA_ID_SIZE);
			f.at[f.count++].kind = QUOTA_START_NOT_YET;
		}
	if (f.count > 0)
		qsort(f.at, f.count, sizeof(*f.at), compare_starts);
	leave_out(&f, reach.of_tenant);
	run(&f);
	*ret = f.at;
	return f.count;
}

bool
quota_start_is_known(enum quota_start_kind kind)
{
	return kind == QUOTA_START_AT || kind == QUOTA_START_ROUGHLY;
}

int64_t
quota_start_told_ns(int64_t at_ns, int64_t now_ns)
{
	int64_t unit = at_ns - now_ns > NS_PER_HOUR ? 5 * NS_PER_MIN : NS_PER_MIN;

	return (at_ns + unit - 1) / unit * unit;
}

const char *
quota_start_text(enum quota_start_kind kind)
{
	static const char *const texts[] = {
		[QUOTA_START_UNASKED] = "",
		[QUOTA_START_NOT_YET] = "not estimated yet",
		[QUOTA_START_AT] = "an estimate: what runs ends as announced, and nothing else is asked for",
		[QUOTA_START_ROUGHLY] =
			"a rough estimate: what runs ends as announced, nothing else is asked for, and a tenant's last waiting requests are left out",
		[QUOTA_START_NO_DURATION] =
			"work that must end first has no expected duration, or has run longer than expected",
		[QUOTA_START_NOT_BY_WAITING] = "the end of other work alone does not admit it",
		[QUOTA_START_EXPIRES] = "it expires before it is expected to start",
		[QUOTA_START_TOO_FAR] = "it is too far ahead to be estimated",
	};

	return texts[kind];
}

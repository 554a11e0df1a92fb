/* aggregator/core/quota/loop/quota_loop_match.c - the closed loop, rule 2: which lease the devices that are held are seen for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"

#define KEY_BYTES 2048u

/* ---- devices -------------------------------------------------------------------------------------------------------------- */

static int32_t
shape_of(const struct loop *l, const struct quota_seen_holder *h, int32_t node, int32_t gpu)
{
	const struct quota_gpu *g = &l->w->nodes[node].gpus[gpu];

	for (size_t i = 0; i < g->slot_count; i++) {
		const struct quota_shape *s = &l->w->policy.shapes[g->slots[i].shape];
		bool fits = h->profile[0] != '\0' ? s->kind == QUOTA_MIG && loop_is_profile(s->name, h->profile)
		                                  : s->kind == (h->replica >= 0 ? QUOTA_REPLICA : QUOTA_WHOLE);

		if (fits)
			return g->slots[i].shape;
	}
	return QUOTA_NONE;
}

static bool
same_device(const struct quota_seen_holder *a, const struct quota_seen_holder *b)
{
	return a->node == b->node && a->replica == b->replica && strcmp(a->gpu, b->gpu) == 0 &&
	       strcmp(a->device, b->device) == 0;
}

static void
add_device(struct loop *l, const struct quota_seen_holder *h)
{
	struct loop_device *d = l->device_count > 0 ? &l->devices[l->device_count - 1] : NULL;

	if (d && same_device(d->holder, h)) {
		d->holder_count++;
		return;
	}
	d = &l->devices[l->device_count];
	*d = (struct loop_device){.holder = h,
	                          .holder_count = 1,
	                          .node = h->node,
	                          .book_node = l->book_of[h->node],
	                          .gpu = QUOTA_NONE,
	                          .shape = QUOTA_NONE,
	                          .workspace = quota_book_workspace(l->b, h->workspace),
	                          .lease = QUOTA_NONE,
	                          .next = QUOTA_NONE};
	if (d->book_node != QUOTA_NONE)
		d->gpu = quota_book_gpu(l->b, d->book_node, h->gpu);
	if (d->gpu != QUOTA_NONE)
		d->shape = shape_of(l, h, d->book_node, d->gpu);
	l->device_count++;
}

static void
find_devices(struct loop *l)
{
	l->devices = quota_keep(&l->m, l->in->holder_count, sizeof(*l->devices));
	for (size_t i = 0; i < l->in->holder_count; i++)
		if (l->in->holders[i].holds)
			add_device(l, &l->in->holders[i]);
	l->first_of = quota_keep(&l->m, l->w->policy.workspace_count, sizeof(*l->first_of));
	for (size_t i = 0; i < l->w->policy.workspace_count; i++)
		l->first_of[i] = QUOTA_NONE;
	for (size_t i = l->device_count; i-- > 0;) {
		struct loop_device *d = &l->devices[i];

		if (d->workspace == QUOTA_NONE)
			continue;
		d->next = l->first_of[d->workspace];
		l->first_of[d->workspace] = (int32_t)i;
	}
}

/* ---- leases ----------------------------------------------------------------------------------------------------------------- */

static int
compare_workload(const void *key, const void *row)
{
	return strcmp(key, ((const struct quota_workload *)row)->lease);
}

static void
find_leases(struct loop *l)
{
	const struct quota_observed *in = l->in;

	l->leases = quota_keep(&l->m, l->w->lease_count, sizeof(*l->leases));
	for (size_t i = 0; i < l->w->lease_count; i++) {
		const struct quota_lease *had = &l->w->leases[i];
		struct loop_lease *x = &l->leases[i];

		x->workload = in->workload_count == 0 ? NULL
		                                      : bsearch(had->id, in->workloads, in->workload_count,
		                                                sizeof(*in->workloads), compare_workload);
		x->changed_ns = x->workload && x->workload->since_ns > 0 ? x->workload->since_ns : had->since_ns;
		if (!x->workload)
			continue;
		x->identified = x->workload->pod_uid[0] != '\0' || x->workload->pod[0] != '\0' ||
		                x->workload->slurm_job[0] != '\0';
		/* What still runs was there before its last heartbeat; what is to end must be looked at after it was told to. */
		if (x->workload->changed_ns > x->changed_ns &&
		    (had->released || had->state == QUOTA_SUSPECT || had->order >= QUOTA_DRAINING))
			x->changed_ns = x->workload->changed_ns;
	}
}

/* Whether the node of a device may speak for a lease. Another tenant's node has none of its devices, whatever it says is there. */
static bool
may_speak(const struct loop *l, const struct loop_device *d, const struct quota_lease *had)
{
	const struct quota_node *n;

	if (d->book_node == QUOTA_NONE || d->gpu == QUOTA_NONE)
		return false;
	n = &l->w->nodes[d->book_node];
	return n->cluster == had->cluster &&
	       (n->tenant == QUOTA_NONE || n->tenant == l->w->policy.workspaces[had->workspace].tenant);
}

/* Whose the holder is by the rules of attribution says more than what a lease says its workload is: what is another tenant's is not the lease's. */
static bool
is_strangers(const struct loop *l, const struct loop_device *d, const struct quota_lease *had)
{
	const struct quota_workspace *all = l->w->policy.workspaces;

	return d->workspace != QUOTA_NONE && all[d->workspace].tenant != all[had->workspace].tenant;
}

/* It may be what the lease is about: its node may say so and was heard since, and it is neither another tenant's nor seen for another lease. */
static bool
may_be(const struct loop *l, const struct loop_device *d, int32_t lease)
{
	const struct quota_lease *had = &l->w->leases[lease];

	return d->lease == QUOTA_NONE && l->leases[lease].seen < had->count && may_speak(l, d, had) &&
	       !is_strangers(l, d, had) && l->in->nodes[d->node].heard_ns > l->leases[lease].changed_ns;
}

/* How near a device is to a lease's plan: 0 in it, 1 on one of its nodes, 2 elsewhere. */
static int
distance(const struct quota_lease *had, const struct loop_device *d)
{
	int best = 2;

	for (size_t i = 0; i < had->part_count; i++) {
		if (had->parts[i].node != d->book_node)
			continue;
		if (had->parts[i].gpu == d->gpu)
			return 0;
		best = 1;
	}
	return best;
}

static void
claim(struct loop *l, struct loop_device *d, int32_t lease)
{
	d->lease = lease;
	l->leases[lease].seen++;
}

/* ---- by identity ------------------------------------------------------------------------------------------------------------ */

struct key {
	const char *text;
	int32_t lease;
};

static int
compare_keys(const void *a, const void *b)
{
	const struct key *x = a, *y = b;
	int c = strcmp(x->text, y->text);

	return c != 0 ? c : (x->lease > y->lease) - (x->lease < y->lease);
}

/* The narrowest that is given. */
static const char *
key_of(const char *ns, const char *pod, const char *pod_uid, const char *slurm_job, int way, char out[KEY_BYTES])
{
	if (way == 0 && pod_uid[0] != '\0')
		snprintf(out, KEY_BYTES, "uid %s", pod_uid);
	else if (way == 1 && pod[0] != '\0')
		snprintf(out, KEY_BYTES, "pod %s %s", ns, pod);
	else if (way == 2 && slurm_job[0] != '\0')
		snprintf(out, KEY_BYTES, "job %s", slurm_job);
	else
		return NULL;
	return out;
}

static size_t
find_keys(struct loop *l, struct key *keys)
{
	size_t count = 0;
	char text[KEY_BYTES];

	for (size_t i = 0; i < l->w->lease_count; i++) {
		const struct quota_workload *w = l->leases[i].workload;
		const char *key = NULL;

		for (int way = 0; l->leases[i].identified && way < 3 && !key; way++)
			key = key_of(w->ns, w->pod, w->pod_uid, w->slurm_job, way, text);
		if (key)
			keys[count++] = (struct key){quota_keep_text(&l->m, key), (int32_t)i};
	}
	if (count > 0)
		qsort(keys, count, sizeof(*keys), compare_keys);
	return count;
}

static void
claim_by_key(struct loop *l, struct loop_device *d, const struct key *keys, size_t count, const char *text, int near)
{
	size_t from = 0, to = count;

	while (from < to) {
		size_t mid = from + (to - from) / 2;

		if (strcmp(keys[mid].text, text) < 0)
			from = mid + 1;
		else
			to = mid;
	}
	for (; from < count && strcmp(keys[from].text, text) == 0; from++)
		if (may_be(l, d, keys[from].lease) && distance(&l->w->leases[keys[from].lease], d) <= near) {
			claim(l, d, keys[from].lease);
			return;
		}
}

static void
match_identities(struct loop *l)
{
	struct key *keys = quota_keep(&l->m, l->w->lease_count, sizeof(*keys));
	size_t count = find_keys(l, keys);
	char text[KEY_BYTES];

	for (int near = 1; count > 0 && near <= 2; near++)
		for (size_t i = 0; i < l->device_count; i++) {
			struct loop_device *d = &l->devices[i];

			for (size_t h = 0; h < d->holder_count; h++)
				for (int way = 0; way < 3 && d->lease == QUOTA_NONE; way++) {
					const struct quota_seen_holder *x = &d->holder[h];

					if (key_of(x->ns, x->pod, x->pod_uid, x->slurm_job, way, text))
						claim_by_key(l, d, keys, count, text, near);
				}
		}
}

/* ---- by workspace ----------------------------------------------------------------------------------------------------------- */

static void
match_workspaces(struct loop *l)
{
	for (int near = 0; near <= 2; near++)
		for (size_t i = 0; i < l->w->lease_count; i++) {
			const struct quota_lease *had = &l->w->leases[i];

			for (int32_t at = l->leases[i].identified ? QUOTA_NONE : l->first_of[had->workspace];
			     at != QUOTA_NONE && l->leases[i].seen < had->count; at = l->devices[at].next) {
				struct loop_device *d = &l->devices[at];

				if (d->shape == had->shape && may_be(l, d, (int32_t)i) && distance(had, d) <= near)
					claim(l, d, (int32_t)i);
			}
		}
}

void
loop_match(struct loop *l)
{
	find_devices(l);
	find_leases(l);
	match_identities(l);
	match_workspaces(l);
	for (size_t i = 0; i < l->w->lease_count; i++)
		l->leases[i].first = QUOTA_NONE;
	for (size_t i = l->device_count; i-- > 0;) {
		struct loop_device *d = &l->devices[i];

		if (d->lease == QUOTA_NONE)
			continue;
		d->next_of_lease = l->leases[d->lease].first;
		l->leases[d->lease].first = (int32_t)i;
	}
}

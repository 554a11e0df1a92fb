/* aggregator/core/quota/loop/quota_loop_leases.c - the closed loop, rules 2 to 7: leases matched with the work that telemetry shows, and the events of leases. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"
#include "common/base/time.h"
#include "common/conf/json.h"

/* ---- rule 2: which lease is seen where ------------------------------------------------------------------------------------- */

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
		                x->workload->slurm_job[0] != '\0' || x->workload->more_count > 0;
		/* A running lease was there before its last heartbeat; one that is to end must be looked at after its order. */
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

/* The holder's workspace by the attribution rules counts more than the workload that a lease names: work of another tenant is not the lease's. */
static bool
is_strangers(const struct loop *l, const struct loop_device *d, const struct quota_lease *had)
{
	const struct quota_workspace *all = l->w->policy.workspaces;

	return d->workspace != QUOTA_NONE && all[d->workspace].tenant != all[had->workspace].tenant;
}

/* Whether the device may be the lease's: its node counts and was heard since, and it is neither another tenant's nor seen for another lease. */
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

static struct key *
find_keys(struct loop *l, size_t *ret_count)
{
	size_t count = 0, most = l->w->lease_count;
	struct key *keys;
	char text[KEY_BYTES];

	for (size_t i = 0; i < l->w->lease_count; i++)
		most += l->leases[i].workload ? l->leases[i].workload->more_count : 0;
	keys = quota_keep(&l->m, most, sizeof(*keys));
	for (size_t i = 0; i < l->w->lease_count; i++) {
		const struct quota_workload *w = l->leases[i].workload;
		const char *key = NULL;

		for (int way = 0; l->leases[i].identified && way < 3 && !key; way++)
			key = key_of(w->ns, w->pod, w->pod_uid, w->slurm_job, way, text);
		if (key)
			keys[count++] = (struct key){quota_keep_text(&l->m, key), (int32_t)i};
		for (size_t k = 0; w && k < w->more_count; k++) {
			const struct quota_identity *m = &w->more[k];

			key = key_of("", "", m->pod_uid, m->slurm_job, m->pod_uid[0] != '\0' ? 0 : 2, text);
			if (key)
				keys[count++] = (struct key){quota_keep_text(&l->m, key), (int32_t)i};
		}
	}
	if (count > 0)
		qsort(keys, count, sizeof(*keys), compare_keys);
	*ret_count = count;
	return keys;
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
	size_t count = 0;
	struct key *keys = find_keys(l, &count);
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

/* ---- rules 3 to 7: events of leases ---------------------------------------------------------------------------------------- */

#define TEXT_BYTES QUOTA_EVENT_MAX_BYTES
#define LOOK_AGAIN_NS (10 * NS_PER_S) /* while somebody waits: aging, back-offs, the head of the queue */

/* ---- 5: fences ----------------------------------------------------------------------------------------------------------- */

/* Whether the node reports the GPU, all of its holders, and was heard since. */
static bool
gpu_speaks(const struct loop *l, int32_t node, int32_t gpu, int64_t since_ns)
{
	int32_t at = l->seen_of[node];
	const struct quota_seen_node *n = at == QUOTA_NONE ? NULL : &l->in->nodes[at];
	const char *uuid = quota_book_gpu_uuid(l->b, node, gpu);

	if (!n || n->silent || n->partial || n->heard_ns <= since_ns)
		return false;
	for (size_t g = 0; g < n->gpu_count; g++)
		if (n->gpus[g].known && strcmp(n->gpus[g].uuid, uuid) == 0)
			return true;
	return false;
}

static bool
is_over(const struct loop *l, const struct quota_fence *f)
{
	if (!gpu_speaks(l, f->node, f->gpu, f->since_ns))
		return false;
	for (size_t i = 0; i < l->device_count; i++) {
		const struct loop_device *d = &l->devices[i];

		if (d->book_node == f->node && d->gpu == f->gpu && d->lease == QUOTA_NONE &&
		    (d->workspace == QUOTA_NONE || d->workspace == f->workspace) &&
		    (d->shape == QUOTA_NONE || d->shape == f->shape))
			return false;
	}
	return true;
}

/* One event for each lost lease, before leases are confirmed where its work was. */
static void
emit_unfenced(struct loop *l, struct buf *out)
{
	const struct quota_world *w = l->w;
	bool *told = quota_keep(&l->m, w->fence_count, sizeof(*told));

	for (size_t i = 0; i < w->fence_count; i++) {
		bool any = false;

		for (size_t k = i; k < w->fence_count; k++) {
			const struct quota_fence *f = &w->fences[k];

			if (told[k] || strcmp(f->id, w->fences[i].id) != 0 || !is_over(l, f))
				continue;
			told[k] = true;
			if (!any) {
				buf_clear(out);
				buf_str(out, "{\"unfence\":{\"id\":");
				json_write_string(f->id, out);
				buf_str(out, ",\"parts\":[");
			}
			buf_str(out, any ? ",{\"node\":" : "{\"node\":");
			json_write_string(quota_book_node_name(l->b, f->node), out);
			buf_printf(out, ",\"gpu\":%" PRId32 "}", f->gpu);
			any = true;
		}
		if (!any)
			continue;
		buf_str(out, "]}}");
		loop_event(l, "telemetry", out);
	}
}

/* ---- 3: confirmed, with the devices ---------------------------------------------------------------------------------------- */

/* Devices of other leases on a GPU, to know whether they are free for this one. */
struct taken {
	int32_t lease, shape, count, next;
};

struct places {
	int32_t *first_gpu;   /* by node */
	int32_t *first_taken; /* by GPU of all nodes */
	struct taken *at;
};

static void
find_places(struct loop *l, struct places *p)
{
	size_t gpus = 0, parts = 0, count = 0;

	p->first_gpu = quota_keep(&l->m, l->w->node_count, sizeof(*p->first_gpu));
	for (size_t i = 0; i < l->w->node_count; i++) {
		p->first_gpu[i] = (int32_t)gpus;
		gpus += l->w->nodes[i].gpu_count;
	}
	for (size_t i = 0; i < l->w->lease_count; i++)
		parts += l->w->leases[i].part_count;
	p->first_taken = quota_keep(&l->m, gpus, sizeof(*p->first_taken));
	p->at = quota_keep(&l->m, parts, sizeof(*p->at));
	for (size_t i = 0; i < gpus; i++)
		p->first_taken[i] = QUOTA_NONE;
	for (size_t i = 0; i < l->w->lease_count; i++)
		for (size_t k = 0; k < l->w->leases[i].part_count; k++) {
			const struct quota_part *part = &l->w->leases[i].parts[k];
			int32_t *first = &p->first_taken[p->first_gpu[part->node] + part->gpu];

			p->at[count] = (struct taken){(int32_t)i, part->shape, part->count, *first};
			*first = (int32_t)count++;
		}
}

static int32_t
free_for(const struct loop *l, const struct places *p, int32_t lease, int32_t node, int32_t gpu, int32_t shape)
{
	const struct quota_gpu *g = &l->w->nodes[node].gpus[gpu];
	int32_t free = 0;

	for (size_t i = 0; i < g->slot_count; i++)
		if (g->slots[i].shape == shape)
			free += g->slots[i].count;
	for (int32_t t = p->first_taken[p->first_gpu[node] + gpu]; t != QUOTA_NONE; t = p->at[t].next)
		if (p->at[t].lease != lease && p->at[t].shape == shape)
			free -= p->at[t].count;
	return free;
}

/* Where a lease is, when all of its devices are seen and free for it, and it is not known yet. Devices are in the order of GPUs. */
static bool
write_parts(const struct loop *l, const struct places *p, int32_t lease, struct buf *out)
{
	const struct quota_lease *had = &l->w->leases[lease];
	bool other = false, any = false;

	if (l->leases[lease].seen != had->count)
		return false;
	for (int32_t at = l->leases[lease].first; at != QUOTA_NONE;) {
		const struct loop_device *d = &l->devices[at];
		int32_t count = 0, planned = 0;

		for (; at != QUOTA_NONE && l->devices[at].book_node == d->book_node && l->devices[at].gpu == d->gpu;
		     at = l->devices[at].next_of_lease)
			count++;
		if (d->shape != had->shape || free_for(l, p, lease, d->book_node, d->gpu, d->shape) < count)
			return false;
		for (size_t k = 0; k < had->part_count; k++)
			if (had->parts[k].node == d->book_node && had->parts[k].gpu == d->gpu)
				planned += had->parts[k].count;
		other = other || planned != count;
		buf_printf(out, "%s{\"node\":", any ? "," : "");
		json_write_string(quota_book_node_name(l->b, d->book_node), out);
		buf_printf(out, ",\"gpu\":%" PRId32 ",\"count\":%" PRId32 "}", d->gpu, count);
		any = true;
	}
	return other;
}

static void
emit_confirmed(struct loop *l, struct buf *out)
{
	struct places places = {0};
	in_place(buf) struct buf parts = {0};

	buf_init(&parts, TEXT_BYTES);
	for (size_t i = 0; i < l->w->lease_count; i++) {
		const struct quota_lease *had = &l->w->leases[i];

		if (had->state != QUOTA_ADMITTED || l->leases[i].seen == 0)
			continue;
		if (!places.at)
			find_places(l, &places);
		buf_clear(&parts);
		buf_clear(out);
		buf_str(out, "{\"confirm\":");
		if (write_parts(l, &places, (int32_t)i, &parts)) {
			buf_str(out, "{\"id\":");
			json_write_string(had->id, out);
			buf_printf(out, ",\"parts\":[%s]}", buf_text(&parts));
		} else {
			json_write_string(had->id, out);
		}
		buf_char(out, '}');
		loop_event(l, "telemetry", out);
	}
}

/* ---- 4 and 5: seen, or seen empty --------------------------------------------------------------------------------------------- */

/* Whether every node that it might be on reports its devices, and was heard since. */
static bool
would_be_seen(const struct loop *l, const struct quota_lease *had, int64_t since_ns)
{
	for (size_t i = 0; i < had->part_count; i++)
		if (!gpu_speaks(l, had->parts[i].node, had->parts[i].gpu, since_ns))
			return false;
	for (size_t i = 0; had->part_count == 0 && i < l->in->node_count; i++) {
		const struct quota_seen_node *n = &l->in->nodes[i];

		if (l->book_of[i] != QUOTA_NONE && l->w->nodes[l->book_of[i]].cluster == had->cluster &&
		    (n->silent || n->partial || n->heard_ns <= since_ns))
			return false;
	}
	return true;
}

static bool
needs_heartbeat(const struct loop *l, size_t i)
{
	const struct quota_lease *had = &l->w->leases[i];
	int64_t silence_ns = l->w->policy.settings.silence_ns;

	return l->leases[i].seen > 0 && had->state != QUOTA_ADMITTED &&
	       (had->state == QUOTA_SUSPECT || had->empty ||
	        (silence_ns > 0 && l->now_ns - had->seen_ns >= silence_ns / 3));
}

static bool
is_empty(const struct loop *l, size_t i)
{
	const struct quota_lease *had = &l->w->leases[i];

	return l->leases[i].seen == 0 && (had->released || had->state == QUOTA_SUSPECT) &&
	       would_be_seen(l, had, l->leases[i].changed_ns);
}

static void
emit_all(struct loop *l, const char *event, bool (*which)(const struct loop *, size_t), struct buf *out)
{
	bool any = false;

	buf_clear(out);
	buf_printf(out, "{\"%s\":[", event);
	for (size_t i = 0; i < l->w->lease_count; i++) {
		if (!which(l, i))
			continue;
		if (any)
			buf_char(out, ',');
		json_write_string(l->w->leases[i].id, out);
		any = true;
	}
	buf_str(out, "]}");
	if (any)
		loop_event(l, "telemetry", out);
}

/* ---- 6: idle ------------------------------------------------------------------------------------------------------------------ */

static int
compare_rule(const void *key, const void *row)
{
	return strcmp(key, ((const struct quota_idle_rule *)row)->workspace);
}

static int
compare_idle(const void *key, const void *row)
{
	return strcmp(key, ((const struct quota_idle *)row)->lease);
}

/* Until when all its holders are measured, and the last moment in which one was active; false: that is not known. */
static bool
measure(const struct loop *l, int32_t lease, int64_t *ret_measured_ns, int64_t *ret_active_ns)
{
	*ret_measured_ns = INT64_MAX;
	*ret_active_ns = 0;
	for (int32_t i = l->leases[lease].first; i != QUOTA_NONE; i = l->devices[i].next_of_lease)
		for (size_t h = 0; h < l->devices[i].holder_count; h++) {
			const struct quota_seen_holder *x = &l->devices[i].holder[h];

			if (x->measured_ns == 0)
				return false;
			if (x->measured_ns < *ret_measured_ns)
				*ret_measured_ns = x->measured_ns;
			if (x->active_ns > *ret_active_ns)
				*ret_active_ns = x->active_ns;
		}
	return l->leases[lease].seen > 0;
}

static void
remember_idle(struct loop *l, const char *lease, int64_t since_ns, int64_t warned_ns)
{
	struct quota_loop_out *o = l->out;

	array_room(o->idle, o->idle_count, l->idle_cap);
	o->idle[o->idle_count++] = (struct quota_idle){quota_keep_text(&l->m, lease), since_ns, warned_ns};
}

static void
report_idle_one(struct loop *l, const struct quota_lease *had, const struct quota_idle_rule *rule, int32_t lease,
                struct buf *out)
{
	const struct quota_idle *was =
		l->in->idle_count == 0 ? NULL
				       : bsearch(had->id, l->in->idle, l->in->idle_count, sizeof(*was), compare_idle);
	int64_t since_ns = was ? was->since_ns : had->since_ns, warned_ns = was ? was->warned_ns : 0;
	int64_t measured_ns, active_ns;

	if (!measure(l, lease, &measured_ns, &active_ns)) {
		if (was)
			remember_idle(l, had->id, since_ns, warned_ns);
		return;
	}
	if (active_ns > since_ns) {
		since_ns = active_ns;
		warned_ns = 0;
	}
	if (measured_ns - since_ns >= rule->timeout_ns && warned_ns == 0) {
		struct quota_loop_out *o = l->out;

		warned_ns = l->now_ns;
		o->warned = mem_grow(o->warned, o->warned_count + 1, sizeof(*o->warned));
		o->warned[o->warned_count++] = quota_keep_text(&l->m, had->id);
	} else if (warned_ns > 0 && l->now_ns - warned_ns >= l->w->policy.settings.grace_ns &&
	           had->order == QUOTA_NO_ORDER) {
		buf_clear(out);
		buf_str(out, "{\"drain\":");
		json_write_string(had->id, out);
		buf_char(out, '}');
		loop_event(l, "idle", out);
	}
	remember_idle(l, had->id, since_ns, warned_ns);
	if (warned_ns == 0)
		return;
	buf_clear(out);
	buf_printf(out, "\"since_ns\":%" PRId64 ",\"warned_ns\":%" PRId64 ",\"workspace\":", since_ns, warned_ns);
	json_write_string(rule->workspace, out);
	loop_anomaly(l, "idle", had->id, quota_book_tenant_name(l->b, l->w->policy.workspaces[had->workspace].tenant),
	             out);
}

/* By id, as it is remembered. */
static int
compare_leases(const void *a, const void *b, void *arg)
{
	const struct loop *l = arg;

	return strcmp(l->w->leases[*(const int32_t *)a].id, l->w->leases[*(const int32_t *)b].id);
}

static void
report_idle(struct loop *l, struct buf *out)
{
	int32_t *order = quota_keep(&l->m, l->w->lease_count, sizeof(*order));
	size_t count = 0;

	for (size_t i = 0; i < l->w->lease_count && l->in->idle_rule_count > 0; i++)
		if (l->w->leases[i].state != QUOTA_ADMITTED)
			order[count++] = (int32_t)i;
	if (count > 0)
		qsort_r(order, count, sizeof(*order), compare_leases, l);
	for (size_t i = 0; i < count; i++) {
		const struct quota_lease *had = &l->w->leases[order[i]];
		const struct quota_idle_rule *rule =
			bsearch(quota_book_workspace_path(l->b, had->workspace), l->in->idle_rules,
		                l->in->idle_rule_count, sizeof(*rule), compare_rule);

		if (rule)
			report_idle_one(l, had, rule, order[i], out);
	}
}

/* ---- 7: due ------------------------------------------------------------------------------------------------------------------- */

static bool
lease_is_due(const struct loop *l, size_t i)
{
	const struct quota_lease *had = &l->w->leases[i];
	const struct quota_settings *s = &l->w->policy.settings;

	if ((had->order == QUOTA_ORDERED || had->order == QUOTA_DRAINING) && had->due_ns > 0 &&
	    had->due_ns <= l->now_ns)
		return true;
	if (had->state == QUOTA_ADMITTED)
		return s->confirm_ns > 0 && l->leases[i].seen == 0 &&
		       l->now_ns - quota_confirmable_since(had) >= s->confirm_ns;
	return had->state == QUOTA_CONFIRMED && s->silence_ns > 0 && l->leases[i].seen == 0 &&
	       l->now_ns - had->seen_ns >= s->silence_ns;
}

static bool
is_due(const struct loop *l)
{
	for (size_t i = 0; i < l->w->lease_count; i++)
		if (lease_is_due(l, i))
			return true;
	for (size_t i = 0; i < l->w->waiting_count; i++)
		if (l->w->waiting[i].expires_ns > 0 && l->w->waiting[i].expires_ns <= l->now_ns)
			return true;
	for (size_t i = 0; i < l->w->exception_count; i++)
		if (l->w->exceptions[i].until_ns <= l->now_ns ||
		    (l->w->exceptions[i].from_ns > l->w->now_ns && l->w->exceptions[i].from_ns <= l->now_ns))
			return true;
	return l->w->waiting_count > 0 && l->now_ns - l->in->last_tick_ns >= LOOK_AGAIN_NS;
}

void
loop_leases(struct loop *l)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, TEXT_BYTES);
	emit_unfenced(l, &text);
	emit_confirmed(l, &text);
	emit_all(l, "heartbeat", needs_heartbeat, &text);
	emit_all(l, "empty", is_empty, &text);
	report_idle(l, &text);
	l->out->ticked = is_due(l);
	if (!l->out->ticked)
		return;
	buf_clear(&text);
	buf_str(&text, "{\"tick\":true}");
	loop_event(l, "clock", &text);
}

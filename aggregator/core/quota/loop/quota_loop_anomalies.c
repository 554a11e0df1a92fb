/* aggregator/core/quota/loop/quota_loop_anomalies.c - the closed loop, rule 8: differences between telemetry and the book. */
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"
#include "aggregator/core/quota/engine/quota_text.h"
#include "common/conf/json.h"
#include "common/base/time.h"

#define TEXT_BYTES 8192u
#define UNUSED_NS (300 * NS_PER_S) /* where the policy sets no silence */

static void
member(struct buf *out, const char *key, const char *text)
{
	if (out->len > 0)
		buf_char(out, ',');
	buf_printf(out, "\"%s\":", key);
	json_write_string(text, out);
}

static void
gpus(struct buf *out, const char *key, int64_t units)
{
	if (out->len > 0)
		buf_char(out, ',');
	buf_printf(out, "\"%s\":", key);
	check_number(units, CHECK_GPUS, out);
}

static void
subject_of(struct buf *out, const char *a, const char *b, const char *c)
{
	buf_clear(out);
	buf_printf(out, "%s %s%s%s", a, b, c[0] != '\0' ? " " : "", c);
}

static const char *
tenant_of(const struct loop *l, int32_t workspace)
{
	return workspace == QUOTA_NONE ? "" : l->w->policy.tenants[l->w->policy.workspaces[workspace].tenant].name;
}

static const char *
path_of(const struct loop *l, int32_t workspace)
{
	return workspace == QUOTA_NONE ? "nobody" : quota_book_workspace_path(l->b, workspace);
}

/* ---- devices without a lease --------------------------------------------------------------------------------------------- */

static int64_t
units_of(const struct loop *l, const struct loop_device *d)
{
	return d->shape == QUOTA_NONE ? UNITS_PER_GPU : l->w->policy.shapes[d->shape].units;
}

/* Reports the GPUs of a node that are in use without a lease, by workspace. Before the first lease was ever requested this is no anomaly: it is
 * reported as "ungated". */
static void
unleased_on(struct loop *l, size_t from, size_t to)
{
	in_place(buf) struct buf subject = {0}, detail = {0};

	buf_init(&subject, TEXT_BYTES);
	buf_init(&detail, TEXT_BYTES);
	for (size_t i = from; i < to; i++) {
		const struct loop_device *d = &l->devices[i];
		int64_t units = 0;
		bool first = d->lease == QUOTA_NONE;

		for (size_t k = from; k < i && first; k++)
			first = l->devices[k].lease != QUOTA_NONE || l->devices[k].workspace != d->workspace;
		if (!first)
			continue;
		for (size_t k = i; k < to; k++)
			if (l->devices[k].lease == QUOTA_NONE && l->devices[k].workspace == d->workspace)
				units += units_of(l, &l->devices[k]);
		subject_of(&subject, path_of(l, d->workspace), l->in->nodes[d->node].name, "");
		buf_clear(&detail);
		member(&detail, "workspace", path_of(l, d->workspace));
		member(&detail, "node", l->in->nodes[d->node].name);
		gpus(&detail, "gpus", units);
		loop_anomaly(l, l->in->in_service ? "unleased" : "ungated", buf_text(&subject),
		             tenant_of(l, d->workspace), &detail);
	}
}

static void
unleased(struct loop *l)
{
	for (size_t i = 0, end; i < l->device_count; i = end) {
		for (end = i + 1; end < l->device_count && l->devices[end].node == l->devices[i].node;)
			end++;
		if (!l->in->nodes[l->devices[i].node].silent)
			unleased_on(l, i, end);
	}
}

/* ---- holders of other tenants on isolated nodes ---------------------------------------------------------------------------- */

static int32_t
holder_tenant(const struct loop *l, const struct quota_seen_holder *h)
{
	int32_t w = quota_book_workspace(l->b, h->workspace);

	return w == QUOTA_NONE ? QUOTA_NONE : l->w->policy.workspaces[w].tenant;
}

/* The foreign holder's identity is a member of its own: only operators see it. */
static void
report_foreign(struct loop *l, const struct quota_seen_holder *h, int32_t of)
{
	in_place(buf) struct buf subject = {0}, detail = {0}, who = {0};

	buf_init(&subject, TEXT_BYTES);
	buf_init(&detail, TEXT_BYTES);
	buf_init(&who, TEXT_BYTES);
	subject_of(&subject, l->in->nodes[h->node].name, h->device, "");
	member(&detail, "node", l->in->nodes[h->node].name);
	member(&detail, "device", h->device);
	member(&detail, "kept_for", l->w->policy.tenants[of].name);
	member(&who, "workspace", h->workspace);
	member(&who, "namespace", h->ns);
	member(&who, "pod", h->pod);
	member(&who, "slurm_job", h->slurm_job);
	buf_printf(&detail, ",\"holder\":{%s}", buf_text(&who));
	loop_anomaly(l, "foreign", buf_text(&subject), l->w->policy.tenants[of].name, &detail);
}

/* Whether both devices are in the node or GPU that the tenant shares with no other. */
static bool
kept_apart(enum quota_isolation isolation, const struct quota_seen_holder *a, const struct quota_seen_holder *b)
{
	switch (isolation) {
	case QUOTA_SHARED: return false;
	case QUOTA_BY_NODE: return true;
	case QUOTA_BY_GPU: return strcmp(a->gpu, b->gpu) == 0;
	case QUOTA_BY_MIG: return strcmp(a->device, b->device) == 0;
	}
	return false;
}

static void
foreign_on(struct loop *l, size_t from, size_t to)
{
	const struct quota_seen_holder *holders = l->in->holders;
	int32_t owner = quota_book_tenant(l->b, l->in->nodes[holders[from].node].tenant);

	for (size_t i = from; i < to; i++) {
		int32_t who = holder_tenant(l, &holders[i]);

		if (who == QUOTA_NONE)
			continue;
		/* a tenant without isolation lends its nodes, and the bill says borrowed */
		if (owner != QUOTA_NONE && who != owner && l->w->policy.tenants[owner].isolation != QUOTA_SHARED)
			report_foreign(l, &holders[i], owner);
		for (size_t k = from; k < to; k++) {
			int32_t of = holder_tenant(l, &holders[k]);

			if (of != QUOTA_NONE && of != who && holders[k].holds &&
			    kept_apart(l->w->policy.tenants[of].isolation, &holders[i], &holders[k])) {
				report_foreign(l, &holders[i], of);
				break;
			}
		}
	}
}

static void
foreign(struct loop *l)
{
	for (size_t i = 0, end; i < l->in->holder_count; i = end) {
		for (end = i + 1; end < l->in->holder_count && l->in->holders[end].node == l->in->holders[i].node;)
			end++;
		if (!l->in->nodes[l->in->holders[i].node].silent)
			foreign_on(l, i, end);
	}
}

/* ---- leases and pools ----------------------------------------------------------------------------------------------------------- */

static bool
heard_of_all(const struct loop *l, const struct quota_lease *had)
{
	for (size_t i = 0; i < had->part_count; i++) {
		int32_t at = l->seen_of[had->parts[i].node];

		if (at == QUOTA_NONE || l->in->nodes[at].silent || l->in->nodes[at].partial ||
		    l->in->nodes[at].heard_ns <= had->since_ns)
			return false;
	}
	return had->part_count > 0;
}

static void
of_leases(struct loop *l)
{
	int64_t silence_ns = l->w->policy.settings.silence_ns > 0 ? l->w->policy.settings.silence_ns : UNUSED_NS;
	in_place(buf) struct buf detail = {0};

	buf_init(&detail, TEXT_BYTES);
	for (size_t i = 0; i < l->w->lease_count; i++) {
		const struct quota_lease *had = &l->w->leases[i];

		buf_clear(&detail);
		member(&detail, "workspace", quota_book_workspace_path(l->b, had->workspace));
		if (had->state == QUOTA_CONFIRMED && !had->released && l->leases[i].seen == 0 &&
		    l->now_ns - had->since_ns >= silence_ns && heard_of_all(l, had))
			loop_anomaly(l, "unused", had->id, tenant_of(l, had->workspace), &detail);
		if (had->order == QUOTA_OVERDUE || had->order == QUOTA_ENFORCED) {
			buf_printf(&detail, ",\"due_ns\":%" PRId64, had->due_ns);
			loop_anomaly(l, "overdue", had->id, tenant_of(l, had->workspace), &detail);
		}
	}
}

static void
of_pools(struct loop *l)
{
	const struct quota_state *s = quota_book_state(l->b);
	in_place(buf) struct buf subject = {0}, detail = {0};

	buf_init(&subject, TEXT_BYTES);
	buf_init(&detail, TEXT_BYTES);
	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures p = quota_pool_at(s, i);
		const char *tenant = p.tenant == QUOTA_NONE ? "" : l->w->policy.tenants[p.tenant].name;

		subject_of(&subject, l->w->policy.clusters[p.cluster], p.tenant == QUOTA_NONE ? "shared" : tenant,
		           l->w->policy.models[p.model]);
		if (p.excess > 0) {
			buf_clear(&detail);
			gpus(&detail, "excess_gpus", p.excess);
			gpus(&detail, "live_gpus", p.live);
			gpus(&detail, "leased_gpus", p.leased);
			loop_anomaly(l, "excess", buf_text(&subject), tenant, &detail);
		}
		if (p.reserved > p.live) {
			buf_clear(&detail);
			gpus(&detail, "reserved_gpus", p.reserved);
			gpus(&detail, "live_gpus", p.live);
			gpus(&detail, "declared_gpus", p.declared);
			loop_anomaly(l, "reserved", buf_text(&subject), tenant, &detail);
		}
	}
}

void
loop_anomalies(struct loop *l)
{
	unleased(l);
	foreign(l);
	of_leases(l);
	of_pools(l);
}

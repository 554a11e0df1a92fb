/* tests/support/quota/quotatext.c - policies, nodes and events of the quota engine as the texts of a quota book. */
#include "tests/support/quota/quotatext.h"

#include "common/conf/json.h"

static void
amount(const char *key, int64_t value, struct buf *out)
{
	if (value == QUOTA_UNLIMITED)
		buf_printf(out, ",\"%s\":null", key);
	else if (value != QUOTA_DEFAULT)
		buf_printf(out, ",\"%s\":%" PRId64, key, value);
}

static void
workspace_path(const struct quota_policy *p, int32_t w, struct buf *out)
{
	buf_printf(out, "\"%s/%s\"", p->tenants[p->workspaces[w].tenant].name, p->workspaces[w].name);
}

static void
shape_members(const struct quota_shape *s, struct buf *out)
{
	if (s->kind == QUOTA_MIG)
		buf_printf(out, ",\"profile\":\"%s\",\"units\":%" PRId64, s->name, s->units);
	else if (s->kind == QUOTA_REPLICA)
		buf_printf(out, ",\"of\":%" PRId64, UNITS_PER_GPU / s->units);
}

static void
people(const struct quota_policy *p, struct buf *out)
{
	static const char *const isolations[] = {"shared", "mig", "gpu", "node"};
	static const char *const reclaims[] = {"any", "lower", "never"};
	static const char *const enforces[] = {"on", "warn", "off"};

	buf_str(out, ",\"tenants\":[");
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct quota_tenant *t = &p->tenants[i];

		buf_printf(out, "%s{\"name\":\"%s\",\"isolation\":\"%s\"", i > 0 ? "," : "", t->name,
		           isolations[t->isolation]);
		amount("per_workload_units", t->per_workload_units, out);
		amount("cpu_millis", t->other_limit[QUOTA_CPU], out);
		amount("memory_bytes", t->other_limit[QUOTA_MEMORY], out);
		amount("storage_bytes", t->other_limit[QUOTA_STORAGE], out);
		buf_char(out, '}');
	}
	buf_str(out, "],\"workspaces\":[");
	for (size_t i = 0; i < p->workspace_count; i++) {
		const struct quota_workspace *w = &p->workspaces[i];

		buf_printf(out, "%s{\"path\":", i > 0 ? "," : "");
		workspace_path(p, (int32_t)i, out);
		buf_printf(out, ",\"reclaim\":\"%s\",\"preempt_own\":%s,\"enforce\":\"%s\",\"weight\":%" PRId64,
		           reclaims[w->reclaim], w->preempt_own ? "true" : "false", enforces[w->enforce], w->weight);
		amount("per_workload_units", w->per_workload_units, out);
		amount("cpu_millis", w->other_limit[QUOTA_CPU], out);
		amount("memory_bytes", w->other_limit[QUOTA_MEMORY], out);
		amount("storage_bytes", w->other_limit[QUOTA_STORAGE], out);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
rights(const struct quota_policy *p, struct buf *out)
{
	buf_str(out, ",\"shares\":[");
	for (size_t i = 0; i < p->share_count; i++) {
		const struct quota_share *s = &p->shares[i];

		buf_printf(out, "%s{\"workspace\":", i > 0 ? "," : "");
		workspace_path(p, s->workspace, out);
		buf_printf(out, ",\"cluster\":\"%s\",\"model\":\"%s\",\"shared\":%s", p->clusters[s->cluster],
		           p->models[s->model], s->shared ? "true" : "false");
		amount("reserved_units", s->reserved, out);
		amount("limit_units", s->limit, out);
		amount("borrow_units", s->borrow, out);
		amount("lend_units", s->lend, out);
		if (s->reserved_shape != QUOTA_NONE)
			buf_printf(out, ",\"reserved_profile\":\"%s\"", p->shapes[s->reserved_shape].name);
		buf_char(out, '}');
	}
	buf_str(out, "],\"caps\":[");
	for (size_t i = 0; i < p->cap_count; i++) {
		const struct quota_cap *c = &p->caps[i];

		buf_printf(out, "%s{\"cluster\":\"%s\",\"model\":\"%s\"", i > 0 ? "," : "", p->clusters[c->cluster],
		           p->models[c->model]);
		if (c->tenant != QUOTA_NONE)
			buf_printf(out, ",\"tenant\":\"%s\"", p->tenants[c->tenant].name);
		amount("maximum_units", c->maximum, out);
		amount("default_limit_units", c->default_limit, out);
		buf_char(out, '}');
	}
	buf_str(out, "],\"budgets\":[");
	for (size_t i = 0; i < p->budget_count; i++) {
		const struct quota_budget *b = &p->budgets[i];

		buf_printf(out, "%s{\"tenant\":\"%s\",\"kind\":\"%s\",\"hard\":%s", i > 0 ? "," : "",
		           p->tenants[b->tenant].name,
		           b->kind == QUOTA_BUDGET_MONEY    ? "money"
		           : b->kind == QUOTA_BUDGET_TOKENS ? "tokens"
		                                            : "unit_seconds",
		           b->hard ? "true" : "false");
		if (b->workspace != QUOTA_NONE) {
			buf_str(out, ",\"workspace\":");
			workspace_path(p, b->workspace, out);
		}
		amount("amount", b->amount, out);
		amount("consumed", b->consumed, out);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

void
quotatext_policy(const struct quota_policy *p, struct buf *out)
{
	const struct quota_settings *s = &p->settings;

	buf_printf(out,
	           "{\"policy\":{\"settings\":{\"burst\":%" PRId64 ",\"grace_ns\":%" PRId64 ",\"aging_ns\":%" PRId64
	           ",\"head_wait_ns\":%" PRId64 ",\"backoff_ns\":%" PRId64 ",\"backoff_forget_ns\":%" PRId64
	           ",\"confirm_ns\":%" PRId64 ",\"silence_ns\":%" PRId64 ",\"unused_most_ns\":%" PRId64
	           "},\"clusters\":[",
	           s->burst, s->grace_ns, s->aging_ns, s->head_wait_ns, s->backoff_ns, s->backoff_forget_ns,
	           s->confirm_ns, s->silence_ns, s->unused_most_ns);
	for (size_t i = 0; i < p->cluster_count; i++)
		buf_printf(out, "%s\"%s\"", i > 0 ? "," : "", p->clusters[i]);
	buf_str(out, "],\"models\":[");
	for (size_t i = 0; i < p->model_count; i++)
		buf_printf(out, "%s\"%s\"", i > 0 ? "," : "", p->models[i]);
	buf_str(out, "],\"shapes\":[");
	for (size_t i = 0; i < p->shape_count; i++) {
		buf_printf(out, "%s{\"model\":\"%s\"", i > 0 ? "," : "", p->models[p->shapes[i].model]);
		shape_members(&p->shapes[i], out);
		buf_char(out, '}');
	}
	buf_char(out, ']');
	people(p, out);
	rights(p, out);
	buf_str(out, "}}");
}

static void
slots(const struct quota_policy *p, const struct quota_slots *at, size_t count, struct buf *out)
{
	buf_str(out, "\"slots\":[");
	for (size_t i = 0; i < count; i++) {
		buf_printf(out, "%s{\"count\":%" PRId32, i > 0 ? "," : "", at[i].count);
		shape_members(&p->shapes[at[i].shape], out);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

void
quotatext_nodes(const struct quota_world *w, struct buf *out)
{
	buf_str(out, "{\"nodes\":[");
	for (size_t i = 0; i < w->node_count; i++) {
		const struct quota_node *n = &w->nodes[i];

		buf_printf(out, "%s{\"name\":\"%s\",\"cluster\":\"%s\",\"lost\":%s", i > 0 ? "," : "", n->name,
		           w->policy.clusters[n->cluster], n->lost ? "true" : "false");
		if (n->tenant != QUOTA_NONE)
			buf_printf(out, ",\"tenant\":\"%s\"", w->policy.tenants[n->tenant].name);
		buf_str(out, ",\"gpus\":[");
		for (size_t g = 0; g < n->gpu_count; g++) {
			const struct quota_gpu *d = &n->gpus[g];

			buf_printf(out, "%s{\"model\":\"%s\",\"lost\":%s,", g > 0 ? "," : "",
			           w->policy.models[d->slot_count > 0 ? w->policy.shapes[d->slots[0].shape].model : 0],
			           d->lost ? "true" : "false");
			slots(&w->policy, d->slots, d->slot_count, out);
			buf_char(out, '}');
		}
		buf_str(out, "]}");
	}
	buf_str(out, "]}");
}

/* Who it is, and how much. */
static void
begin_work(const struct quota_policy *p, const char *id, int32_t workspace, int32_t cluster, int32_t shape,
           int32_t count, struct buf *out)
{
	const struct quota_shape *s = &p->shapes[shape];

	buf_printf(out, "{\"id\":\"%s\",\"workspace\":", id);
	workspace_path(p, workspace, out);
	buf_printf(out, ",\"cluster\":\"%s\",\"model\":\"%s\"", p->clusters[cluster], p->models[s->model]);
	if (s->kind == QUOTA_MIG)
		buf_printf(out, ",\"profile\":\"%s\",\"count\":%" PRId32, s->name, count);
	else if (s->kind == QUOTA_REPLICA)
		buf_printf(out, ",\"replicas\":%" PRId32 ",\"of\":%" PRId64, count, UNITS_PER_GPU / s->units);
	else
		buf_printf(out, ",\"gpus\":%" PRId32, count);
}

static void
adopted(const struct quota_world *w, const struct quota_lease *l, struct buf *out)
{
	begin_work(&w->policy, l->id, l->workspace, l->cluster, l->shape, l->count, out);
	buf_printf(out,
	           ",\"priority\":%" PRId32 ",\"preemptible\":%s,\"started_ns\":%" PRId64 ",\"cpu_millis\":%" PRId64
	           ",\"parts\":[",
	           l->priority, l->preemptible ? "true" : "false", l->since_ns, l->other[QUOTA_CPU]);
	for (size_t i = 0; i < l->part_count; i++) {
		const struct quota_part *p = &l->parts[i];

		buf_printf(out, "%s{\"node\":\"%s\",\"count\":%" PRId32, i > 0 ? "," : "", w->nodes[p->node].name,
		           p->count);
		if (p->gpu != QUOTA_NONE)
			buf_printf(out, ",\"gpu\":%" PRId32, p->gpu);
		buf_char(out, '}');
	}
	buf_str(out, "]}");
}

static void
request(const struct quota_policy *p, const struct quota_request *r, struct buf *out)
{
	begin_work(p, r->id, r->workspace, r->cluster, r->shape, r->count, out);
	buf_printf(out, ",\"queued_since_ns\":%" PRId64, r->submitted_ns);
	if (r->reason && r->reason[0] != '\0') {
		buf_str(out, ",\"reason\":");
		json_write_string(r->reason, out);
	}
	buf_printf(out, ",\"per_node\":%" PRId32 ",\"priority\":%" PRId32 ",\"preemptible\":%s", r->per_node,
	           r->priority, r->preemptible ? "true" : "false");
	buf_printf(out, ",\"expected_s\":%" PRId64 ",\"cost\":%" PRId64 ",\"expires_ns\":%" PRId64, r->expected_s,
	           r->cost, r->expires_ns);
	buf_printf(out, ",\"cpu_millis\":%" PRId64 ",\"memory_bytes\":%" PRId64 ",\"storage_bytes\":%" PRId64 "}",
	           r->other[QUOTA_CPU], r->other[QUOTA_MEMORY], r->other[QUOTA_STORAGE]);
}

static void
exception(const struct quota_policy *p, const struct quota_exception *x, struct buf *out)
{
	buf_printf(out, "{\"id\":\"%s\",\"workspace\":", x->id);
	workspace_path(p, x->workspace, out);
	buf_printf(out,
	           ",\"cluster\":\"%s\",\"model\":\"%s\",\"shared\":%s,\"extra_limit_units\":%" PRId64
	           ",\"extra_reserved_units\":%" PRId64 ",\"from_ns\":%" PRId64 ",\"until_ns\":%" PRId64 "}",
	           p->clusters[x->cluster], p->models[x->model], x->shared ? "true" : "false", x->extra_limit,
	           x->extra_reserved, x->from_ns, x->until_ns);
}

static void
parts(const struct quota_world *w, const struct quota_event *e, struct buf *out)
{
	buf_printf(out, "{\"id\":\"%s\",\"parts\":[", e->id);
	for (size_t i = 0; i < e->part_count; i++)
		buf_printf(out, "%s{\"node\":\"%s\",\"gpu\":%" PRId32 ",\"count\":%" PRId32 "}", i > 0 ? "," : "",
		           w->nodes[e->parts[i].node].name, e->parts[i].gpu, e->parts[i].count);
	buf_str(out, "]}");
}

void
quotatext_event(const struct quota_world *w, const struct quota_event *e, struct buf *out)
{
	static const char *const names[] = {
		[QUOTA_SUBMIT] = "submit",       [QUOTA_TICK] = "tick",
		[QUOTA_FINISH] = "finish",       [QUOTA_RELEASE] = "release",
		[QUOTA_EMPTY] = "empty",         [QUOTA_DRAIN] = "drain",
		[QUOTA_ENFORCE] = "enforce",     [QUOTA_CONFIRM] = "confirm",
		[QUOTA_HEARTBEAT] = "heartbeat", [QUOTA_CANCEL] = "cancel",
		[QUOTA_NODE_LOST] = "node_lost", [QUOTA_NODE_BACK] = "node_back",
		[QUOTA_GPU_LOST] = "gpu_lost",   [QUOTA_GPU_BACK] = "gpu_back",
		[QUOTA_LAYOUT] = "layout",       [QUOTA_EXCEPTION] = "exception",
		[QUOTA_POLICY] = "policy",       [QUOTA_EXCEPTION_END] = "exception_end",
		[QUOTA_RENEW] = "renew",         [QUOTA_ADOPT] = "adopt",
		[QUOTA_ADOPTION] = "adoption",   [QUOTA_UNFENCE] = "unfence",
	};

	if (e->kind == QUOTA_POLICY) {
		quotatext_policy(e->policy, out);
		return;
	}
	buf_printf(out, "{\"%s\":", names[e->kind]);
	switch (e->kind) {
	case QUOTA_SUBMIT:
		for (size_t i = 0; i < e->request_count; i++) {
			buf_char(out, i > 0 ? ',' : '[');
			request(&w->policy, &e->requests[i], out);
		}
		buf_char(out, ']');
		break;
	case QUOTA_TICK: buf_str(out, "true"); break;
	case QUOTA_ADOPT: adopted(w, e->adopted, out); break;
	case QUOTA_ADOPTION:
		buf_printf(out, "{\"cluster\":\"%s\",\"complete\":%s}", w->policy.clusters[e->cluster],
		           e->complete ? "true" : "false");
		break;
	case QUOTA_NODE_LOST:
	case QUOTA_NODE_BACK: json_write_string(w->nodes[e->node].name, out); break;
	case QUOTA_GPU_LOST:
	case QUOTA_GPU_BACK:
	case QUOTA_LAYOUT:
		buf_printf(out, "{\"node\":\"%s\",\"gpu\":%" PRId32, w->nodes[e->node].name, e->gpu);
		if (e->kind == QUOTA_LAYOUT) {
			buf_char(out, ',');
			slots(&w->policy, e->slots, e->slot_count, out);
		}
		buf_char(out, '}');
		break;
	case QUOTA_EXCEPTION: exception(&w->policy, e->exception, out); break;
	case QUOTA_RELEASE:
		if (e->lost)
			buf_printf(out, "{\"id\":\"%s\",\"lost\":true}", e->id);
		else
			json_write_string(e->id, out);
		break;
	case QUOTA_UNFENCE:
		buf_printf(out, "{\"id\":\"%s\"", e->id);
		for (size_t i = 0; i < e->part_count; i++)
			buf_printf(out, "%s{\"node\":\"%s\",\"gpu\":%" PRId32 "}%s", i > 0 ? "," : ",\"parts\":[",
			           w->nodes[e->parts[i].node].name, e->parts[i].gpu, i + 1 == e->part_count ? "]" : "");
		buf_char(out, '}');
		break;
	case QUOTA_CONFIRM:
		if (e->part_count > 0) {
			parts(w, e, out);
			break;
		}
		json_write_string(e->id, out);
		break;
	default: json_write_string(e->id, out); break;
	}
	buf_char(out, '}');
}

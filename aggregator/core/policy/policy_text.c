/* aggregator/core/policy/policy_text.c - the fields of tenants, workspaces and nodes as text. */
#include "aggregator/core/policy/policy_text.h"

#include "aggregator/core/policy/policy_budget.h"
#include "aggregator/core/policy/policy_exception.h"
#include "aggregator/core/policy/policy_sla.h"
#include "common/base/time.h"

const struct policy_tenant policy_tenant_preset = {
	.isolation = "shared",
	.limits = {.cpu_millis = -1, .memory_bytes = -1, .storage_bytes = -1},
};
const struct policy_workspace policy_workspace_preset = {
	.reclaim = "any",
	.preempt_own = "lower",
	.enforce = "on",
	.weight = 1,
	.limits = {.cpu_millis = -1, .memory_bytes = -1, .storage_bytes = -1},
};
const struct policy_node policy_node_preset = {.state = "in-service"};

static void
write_cores(int64_t millis, struct buf *out)
{
	if (millis % 1000 == 0)
		buf_i64(out, millis / 1000);
	else
		buf_printf(out, "%" PRId64 "m", millis);
}

/* With the largest suffix that leaves a whole number. */
static void
write_bytes(int64_t n, struct buf *out)
{
	static const char *const suffixes[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi"};
	size_t i = 0;

	while (n != 0 && n % 1024 == 0 && i + 1 < ARRAY_LEN(suffixes)) {
		n /= 1024;
		i++;
	}
	buf_printf(out, "%" PRId64 "%s", n, suffixes[i]);
}

static void
write_resources(const struct policy_resources *r, struct buf *out)
{
	const char *before = "{";

	if (r->cpu_millis >= 0) {
		buf_printf(out, "%scpu: ", before);
		write_cores(r->cpu_millis, out);
		before = ", ";
	}
	if (r->memory_bytes >= 0) {
		buf_printf(out, "%smemory: ", before);
		write_bytes(r->memory_bytes, out);
		before = ", ";
	}
	if (r->storage_bytes >= 0) {
		buf_printf(out, "%sstorage: ", before);
		write_bytes(r->storage_bytes, out);
		before = ", ";
	}
	if (before[0] == ',')
		buf_char(out, '}');
}

const char *
policy_tenant_field(const struct policy_tenant *t, size_t nth, struct buf *out)
{
	buf_clear(out);
	switch (nth) {
	case 0: policy_amounts_text(&t->maximum, out); return "maximum";
	case 1: policy_amounts_text(&t->default_limit, out); return "default_limit";
	case 2: buf_str(out, t->isolation); return "isolation";
	case 3:
		for (size_t i = 0; i < t->class_count; i++)
			buf_printf(out, "%s%s", i == 0 ? "[" : ", ", t->classes[i]);
		if (t->classes_given)
			buf_str(out, t->class_count == 0 ? "[]" : "]");
		return "priority_classes";
	case 4: write_resources(&t->limits, out); return "limits";
	case 5: policy_budget_text(&t->budget, out); return "budget";
	case 6: policy_auto_approve_text(&t->auto_approve, out); return "auto_approve";
	case 7: policy_sla_text(&t->sla, out); return "sla";
	case 8: buf_str(out, t->data_boundary ? t->data_boundary : ""); return "data_boundary";
	default: return NULL;
	}
}

static void
write_timeout(int64_t ns, struct buf *out)
{
	char text[TIME_TEXT_SIZE];

	if (ns > 0)
		buf_str(out, duration_format(ns, text));
}

const char *
policy_workspace_field(const struct policy_workspace *w, size_t nth, struct buf *out)
{
	static const char *const names[] = {"cluster",      "reserved", "reserved_shared", "limit",  "borrow",
	                                    "lend",         "reclaim",  "preempt_own",     "weight", "enforce",
	                                    "idle_timeout", "limits",   "budget",          "sla"};
	const struct policy_amounts *const amounts[] = {&w->reserved, &w->reserved_shared, &w->limit, &w->borrow,
	                                                &w->lend};

	buf_clear(out);
	if (nth >= 1 && nth <= ARRAY_LEN(amounts))
		policy_amounts_text(amounts[nth - 1], out);
	else if (nth == 0)
		buf_str(out, w->cluster ? w->cluster : "");
	else if (nth == 6)
		buf_str(out, w->reclaim);
	else if (nth == 7)
		buf_str(out, w->preempt_own);
	else if (nth == 8)
		buf_i64(out, w->weight);
	else if (nth == 9)
		buf_str(out, w->enforce);
	else if (nth == 10)
		write_timeout(w->idle_timeout_ns, out);
	else if (nth == 11)
		write_resources(&w->limits, out);
	else if (nth == 12)
		policy_budget_text(&w->budget, out);
	else if (nth == 13)
		policy_sla_text(&w->sla, out);
	return nth < ARRAY_LEN(names) ? names[nth] : NULL;
}

const char *
policy_node_field(const struct policy_node *n, size_t nth, struct buf *out)
{
	buf_clear(out);
	switch (nth) {
	case 0: buf_str(out, n->model ? n->model : ""); return "model";
	case 1:
		if (n->gpus > 0)
			buf_i64(out, n->gpus);
		return "gpus";
	case 2:
		for (size_t i = 0; i < n->profile_count; i++)
			buf_printf(out, "%s%s: %" PRId64, i == 0 ? "{" : ", ", n->profiles[i].profile,
			           n->profiles[i].count);
		if (n->profile_count > 0)
			buf_char(out, '}');
		return "mig";
	case 3: buf_str(out, n->state); return "state";
	default: return NULL;
	}
}

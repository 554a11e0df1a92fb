/* aggregator/core/quota/book/quota_book_columns.c - what the rows of a quota book's text have: one table for writing and reading. */
#include "aggregator/core/quota/book/quota_book_columns.h"

#define I32(key, s, m) BOOK_COLUMN(key, BOOK_I32, s, m)
#define I64(key, s, m) BOOK_COLUMN(key, BOOK_I64, s, m)
#define NS(key, s, m) BOOK_COLUMN(key, BOOK_NS, s, m)
#define BOOL(key, s, m) BOOK_COLUMN(key, BOOK_BOOL, s, m)
#define TEXT(key, s, m) BOOK_COLUMN(key, BOOK_TEXT, s, m)

_Static_assert(sizeof((struct quota_class_set){0}.bits) == 2 * sizeof(int64_t),
               "a tenant has a column for each word of its classes");

/* clang-format off */
static const struct book_column setting_columns[] = {
	I64("burst", quota_settings, burst), NS("grace_ns", quota_settings, grace_ns), NS("aging_ns", quota_settings, aging_ns),
	NS("head_wait_ns", quota_settings, head_wait_ns), NS("backoff_ns", quota_settings, backoff_ns),
	NS("backoff_forget_ns", quota_settings, backoff_forget_ns), NS("confirm_ns", quota_settings, confirm_ns),
	NS("silence_ns", quota_settings, silence_ns),
};
static const struct book_column class_columns[] = {
	TEXT("name", class_row, name), I32("value", class_row, value), BOOL("preemptible", class_row, preemptible),
	BOOL("gone", class_row, gone),
};
static const struct book_column shape_columns[] = {
	I32("model", quota_shape, model), BOOK_CHOICE("kind", quota_shape, kind, QUOTA_REPLICA), I64("units", quota_shape, units),
	TEXT("name", quota_shape, name),
};
static const struct book_column tenant_columns[] = {
	TEXT("name", tenant_row, in.name), BOOK_CHOICE("isolation", tenant_row, in.isolation, QUOTA_BY_NODE),
	I64("per_workload", tenant_row, in.per_workload_units), BOOL("classes_only", tenant_row, in.classes.only),
	I64("classes", tenant_row, in.classes.bits[0]), I64("classes_more", tenant_row, in.classes.bits[1]),
	I64("cpu", tenant_row, in.other_limit[QUOTA_CPU]), I64("memory", tenant_row, in.other_limit[QUOTA_MEMORY]),
	I64("storage", tenant_row, in.other_limit[QUOTA_STORAGE]), BOOL("gone", tenant_row, gone),
};
static const struct book_column workspace_columns[] = {
	TEXT("name", workspace_row, in.name), I32("tenant", workspace_row, in.tenant), I32("home", workspace_row, home),
	BOOK_CHOICE("reclaim", workspace_row, in.reclaim, QUOTA_RECLAIM_NEVER), BOOL("preempt_own", workspace_row, in.preempt_own),
	BOOK_CHOICE("enforce", workspace_row, in.enforce, QUOTA_ENFORCE_OFF), I64("weight", workspace_row, in.weight),
	I64("per_workload", workspace_row, in.per_workload_units), I64("cpu", workspace_row, in.other_limit[QUOTA_CPU]),
	I64("memory", workspace_row, in.other_limit[QUOTA_MEMORY]), I64("storage", workspace_row, in.other_limit[QUOTA_STORAGE]),
	BOOL("gone", workspace_row, gone), I64("denied", workspace_row, denied),
};
static const struct book_column share_columns[] = {
	I32("workspace", quota_share, workspace), I32("cluster", quota_share, cluster), I32("model", quota_share, model),
	BOOL("shared", quota_share, shared), I64("reserved", quota_share, reserved), I32("shape", quota_share, reserved_shape),
	I64("limit", quota_share, limit), I64("borrow", quota_share, borrow), I64("lend", quota_share, lend),
};
static const struct book_column cap_columns[] = {
	I32("tenant", quota_cap, tenant), I32("cluster", quota_cap, cluster), I32("model", quota_cap, model),
	I64("maximum", quota_cap, maximum), I64("default_limit", quota_cap, default_limit),
};
static const struct book_column budget_columns[] = {
	I32("tenant", quota_budget, tenant), I32("workspace", quota_budget, workspace),
	BOOK_CHOICE("kind", quota_budget, kind, QUOTA_BUDGET_TOKENS), BOOL("hard", quota_budget, hard),
	I64("amount", quota_budget, amount), I64("consumed", quota_budget, consumed),
};
static const struct book_column price_columns[] = {
	I32("tenant", price_row, tenant), I32("model", price_row, model), TEXT("profile", price_row, profile),
	I64("hour_micros", price_row, hour_micros),
};
static const struct book_column node_columns[] = {
	TEXT("name", node_row, in.name), I32("cluster", node_row, in.cluster), I32("tenant", node_row, in.tenant),
	BOOL("lost", node_row, in.lost),
};
static const struct book_column gpu_columns[] = {
	TEXT("uuid", gpu_row, uuid), BOOL("lost", gpu_row, lost),
};
static const struct book_column slot_columns[] = {
	I32("shape", quota_slots, shape), I32("count", quota_slots, count),
};
static const struct book_column part_columns[] = {
	I32("node", quota_part, node), I32("gpu", quota_part, gpu), I32("shape", quota_part, shape), I32("count", quota_part, count),
	TEXT("lease", quota_part, lease),
};
static const struct book_column lease_columns[] = {
	TEXT("id", quota_lease, id), I32("workspace", quota_lease, workspace), I32("cluster", quota_lease, cluster),
	I32("shape", quota_lease, shape), I32("count", quota_lease, count), I32("node", quota_lease, node), BOOL("shared", quota_lease, shared),
	I32("priority", quota_lease, priority), BOOL("preemptible", quota_lease, preemptible),
	BOOK_CHOICE("state", quota_lease, state, QUOTA_SUSPECT), BOOL("released", quota_lease, released), BOOL("empty", quota_lease, empty),
	NS("since_ns", quota_lease, since_ns), NS("seen_ns", quota_lease, seen_ns),
	BOOK_CHOICE("order", quota_lease, order, QUOTA_ENFORCED), NS("ordered_ns", quota_lease, ordered_ns),
	NS("due_ns", quota_lease, due_ns), BOOL("reclaimed", quota_lease, reclaimed), I64("unit_seconds", quota_lease, unit_seconds),
	I64("cost", quota_lease, cost), I64("cpu", quota_lease, other[QUOTA_CPU]), I64("memory", quota_lease, other[QUOTA_MEMORY]),
	I64("storage", quota_lease, other[QUOTA_STORAGE]),
};
static const struct book_column request_columns[] = {
	TEXT("id", quota_request, id), I32("workspace", quota_request, workspace), I32("cluster", quota_request, cluster),
	I32("shape", quota_request, shape), I32("count", quota_request, count), I32("per_node", quota_request, per_node),
	I32("priority", quota_request, priority), I32("class", quota_request, klass), BOOL("preemptible", quota_request, preemptible),
	I64("expected_s", quota_request, expected_s), I64("cost", quota_request, cost), NS("submitted_ns", quota_request, submitted_ns),
	NS("expires_ns", quota_request, expires_ns), I64("cpu", quota_request, other[QUOTA_CPU]),
	I64("memory", quota_request, other[QUOTA_MEMORY]), I64("storage", quota_request, other[QUOTA_STORAGE]),
	BOOL("hold_owed", quota_request, hold_owed), BOOL("head_own", quota_request, head_own),
	BOOL("head_shared", quota_request, head_shared),
};
static const struct book_column exception_columns[] = {
	TEXT("id", quota_exception, id), I32("workspace", quota_exception, workspace), I32("cluster", quota_exception, cluster),
	I32("model", quota_exception, model), BOOL("shared", quota_exception, shared), I64("extra_limit", quota_exception, extra_limit),
	I64("extra_reserved", quota_exception, extra_reserved), NS("from_ns", quota_exception, from_ns),
	NS("until_ns", quota_exception, until_ns),
};
static const struct book_column backoff_columns[] = {
	I32("workspace", quota_backoff, workspace), I32("cluster", quota_backoff, cluster), I32("model", quota_backoff, model),
	I32("times", quota_backoff, times), NS("last_ns", quota_backoff, last_ns), NS("until_ns", quota_backoff, until_ns),
};
/* clang-format on */

#define ROWS(key, name, type)                                                       \
	{                                                                           \
		key, name##_columns, ARRAY_LEN(name##_columns), sizeof(struct type) \
	}

const struct book_rows book_rows_classes = ROWS("classes", class, class_row);
const struct book_rows book_rows_shapes = ROWS("shapes", shape, quota_shape);
const struct book_rows book_rows_tenants = ROWS("tenants", tenant, tenant_row);
const struct book_rows book_rows_workspaces = ROWS("workspaces", workspace, workspace_row);
const struct book_rows book_rows_shares = ROWS("shares", share, quota_share);
const struct book_rows book_rows_caps = ROWS("caps", cap, quota_cap);
const struct book_rows book_rows_budgets = ROWS("budgets", budget, quota_budget);
const struct book_rows book_rows_prices = ROWS("prices", price, price_row);
const struct book_rows book_rows_slots = ROWS("slots", slot, quota_slots);
const struct book_rows book_rows_parts = ROWS("parts", part, quota_part);
const struct book_rows book_rows_hold = ROWS("hold", part, quota_part);
const struct book_rows book_rows_exceptions = ROWS("exceptions", exception, quota_exception);
const struct book_rows book_rows_backoffs = ROWS("backoffs", backoff, quota_backoff);
const struct book_rows book_rows_settings = ROWS("settings", setting, quota_settings);
const struct book_rows book_rows_nodes = ROWS("nodes", node, node_row);
const struct book_rows book_rows_gpus = ROWS("gpus", gpu, gpu_row);
const struct book_rows book_rows_leases = ROWS("leases", lease, quota_lease);
const struct book_rows book_rows_waiting = ROWS("waiting", request, quota_request);

/* aggregator/core/quota/book/quota_book_codec.c - a quota book as text and back, both ways from one table of columns.
 *
 * Lists are in the order of their positions, and rows refer to each other by them. A column that is 0, false or "" is left out, so that a
 * text is short and there is one text for a value. A text whose parts contradict each other is refused. */
#include <stddef.h>
#include <string.h>

#include "aggregator/core/quota/book/quota_book_state.h"

/* ---- a structure as a JSON object ------------------------------------------------------------------------------------------ */

enum book_type {
	BOOK_I32,
	BOOK_I64,
	BOOK_NS, /* a time or a duration: far from where sums of them do not fit */
	BOOK_BOOL,
	BOOK_ENUM,
	BOOK_TEXT
};

struct book_column {
	const char *key;
	enum book_type type;
	size_t offset;
	int max; /* of an enum */
};
#define BOOK_COLUMN(key, type, structure, member)                \
	{                                                        \
		key, type, offsetof(struct structure, member), 0 \
	}
#define BOOK_CHOICE(key, structure, member, max)                        \
	{                                                               \
		key, BOOK_ENUM, offsetof(struct structure, member), max \
	}

static int64_t
value_of(const struct book_column *c, const void *row)
{
	const char *at = (const char *)row + c->offset;
	int32_t i32;
	int64_t i64;
	bool b;

	switch (c->type) {
	case BOOK_I64:
	case BOOK_NS: memcpy(&i64, at, sizeof(i64)); return i64;
	case BOOK_BOOL: memcpy(&b, at, sizeof(b)); return b;
	default: memcpy(&i32, at, sizeof(i32)); return i32;
	}
}

static void
write_key(const char *name, bool first, struct buf *out)
{
	buf_str(out, first ? "\"" : ",\"");
	buf_str(out, name);
	buf_str(out, "\":");
}

/* The members without the braces; true when there was one. */
static bool
book_row_write(const struct book_column *columns, size_t count, const void *row, struct buf *out)
{
	bool any = false;

	for (size_t i = 0; i < count; i++) {
		const struct book_column *c = &columns[i];

		if (c->type == BOOK_TEXT) {
			const char *text;

			memcpy(&text, (const char *)row + c->offset, sizeof(text));
			if (!text || text[0] == '\0')
				continue;
			write_key(c->key, !any, out);
			json_write_string(text, out);
		} else {
			int64_t value = value_of(c, row);

			if (value == 0)
				continue;
			write_key(c->key, !any, out);
			if (c->type == BOOK_BOOL)
				buf_str(out, "true");
			else
				buf_i64(out, value);
		}
		any = true;
	}
	return any;
}

static bool
read_value(const struct book_column *c, const json_t *v, struct quota_memory **m, char *at)
{
	int64_t value = json_is_integer(v) ? json_integer_value(v) : 0;
	int32_t i32 = (int32_t)value;
	const char *text;
	bool b;

	switch (c->type) {
	case BOOK_TEXT:
		if (!json_is_string(v))
			return false;
		text = quota_keep_text(m, json_string_value(v));
		memcpy(at, &text, sizeof(text));
		return true;
	case BOOK_BOOL:
		b = json_is_true(v);
		memcpy(at, &b, sizeof(b));
		return json_is_boolean(v);
	case BOOK_I64: memcpy(at, &value, sizeof(value)); return json_is_integer(v);
	case BOOK_NS:
		memcpy(at, &value, sizeof(value));
		return json_is_integer(v) && value >= -BOOK_MAX_NS && value <= BOOK_MAX_NS;
	case BOOK_I32:
	case BOOK_ENUM: break;
	}
	memcpy(at, &i32, sizeof(i32));
	return json_is_integer(v) && value == i32 && (c->type == BOOK_I32 || (value >= 0 && value <= c->max));
}

/* All members are columns or one of the NULL-ended others. Texts are kept in *m. */
static bool
book_row_read(const struct book_column *columns, size_t count, const char *const *others, const json_t *object,
              struct quota_memory **m, void *row, struct err *err)
{
	size_t found = 0;

	if (!json_is_object(object))
		return err_set(err, ERR_INVALID, "an object is expected");
	for (size_t i = 0; i < count; i++) {
		const json_t *v = json_object_get(object, columns[i].key);

		if (!v)
			continue;
		if (!read_value(&columns[i], v, m, (char *)row + columns[i].offset))
			return err_set(err, ERR_INVALID, "field '%s' has the wrong type or is out of range",
			               columns[i].key);
		found++;
	}
	for (size_t i = 0; others && others[i]; i++)
		found += json_object_get(object, others[i]) != NULL;
	if (found != json_object_size(object))
		return err_set(err, ERR_INVALID, "a field is not known");
	return true;
}

bool
book_list_read(const json_t *object, const char *name, size_t max, const json_t **ret, size_t *ret_count,
               struct err *err)
{
	const json_t *list = json_object_get(object, name);

	*ret = list;
	*ret_count = json_array_size(list);
	if (list && (!json_is_array(list) || *ret_count > max))
		return err_set(err, ERR_INVALID, "field '%s' is not a list of at most %zu", name, max);
	return true;
}

/* ---- the rows and their columns -------------------------------------------------------------------------------------------- */

#define QUOTA_BOOK_VERSION 1

struct tenant_row {
	struct quota_tenant in;
	bool gone;
};

struct workspace_row {
	struct quota_workspace in;
	int32_t home;
	bool gone;
	int64_t denied;
};

struct node_row {
	struct quota_node in;
};

struct gpu_row {
	const char *uuid;
	bool lost;
};

struct class_row {
	const char *name;
	int32_t value;
	bool preemptible, gone;
};

struct price_row {
	int32_t tenant, model;
	const char *profile;
	int64_t hour_micros;
};

/* A list of plain rows: its member, its columns, the size of a row. */
struct book_rows {
	const char *key;
	const struct book_column *columns;
	size_t column_count, size;
};

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
	NS("silence_ns", quota_settings, silence_ns), NS("unused_most_ns", quota_settings, unused_most_ns),
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
	I64("storage", quota_lease, other[QUOTA_STORAGE]), NS("renewed_ns", quota_lease, renewed_ns), BOOL("adopted", quota_lease, adopted),
	NS("adopted_ns", quota_lease, adopted_ns), TEXT("reason", quota_lease, reason),
};
static const struct book_column request_columns[] = {
	TEXT("id", quota_request, id), I32("workspace", quota_request, workspace), I32("cluster", quota_request, cluster),
	I32("shape", quota_request, shape), I32("count", quota_request, count), I32("per_node", quota_request, per_node),
	I32("priority", quota_request, priority), I32("class", quota_request, klass), BOOL("preemptible", quota_request, preemptible),
	I64("expected_s", quota_request, expected_s), I64("cost", quota_request, cost), NS("submitted_ns", quota_request, submitted_ns),
	NS("expires_ns", quota_request, expires_ns), I64("cpu", quota_request, other[QUOTA_CPU]),
	I64("memory", quota_request, other[QUOTA_MEMORY]), I64("storage", quota_request, other[QUOTA_STORAGE]),
	BOOL("hold_owed", quota_request, hold_owed), BOOL("head_own", quota_request, head_own),
	BOOL("head_shared", quota_request, head_shared), TEXT("reason", quota_request, reason),
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
static const struct book_column adoption_columns[] = {
	I32("cluster", quota_adoption, cluster), BOOL("complete", quota_adoption, complete), NS("switched_ns", quota_adoption, switched_ns),
};
static const struct book_column switch_columns[] = {
	I32("workspace", quota_switch, workspace), I32("cluster", quota_switch, cluster),
	BOOK_CHOICE("enforce", quota_switch, enforce, QUOTA_ENFORCE_OFF),
};
static const struct book_column fence_columns[] = {
	TEXT("id", quota_fence, id), I32("workspace", quota_fence, workspace), I32("node", quota_fence, node), I32("gpu", quota_fence, gpu),
	I32("shape", quota_fence, shape), I32("count", quota_fence, count), NS("since_ns", quota_fence, since_ns),
};
static const struct book_column unused_columns[] = {
	I32("workspace", quota_unused, workspace), I32("cluster", quota_unused, cluster), I32("shape", quota_unused, shape),
	I32("count", quota_unused, count), I32("priority", quota_unused, priority), I32("times", quota_unused, times),
	NS("last_ns", quota_unused, last_ns), NS("until_ns", quota_unused, until_ns), TEXT("reason", quota_unused, reason),
};
/* clang-format on */

#define ROWS(key, name, type)                                                       \
	{                                                                           \
		key, name##_columns, ARRAY_LEN(name##_columns), sizeof(struct type) \
	}

static const struct book_rows book_rows_classes = ROWS("classes", class, class_row);
static const struct book_rows book_rows_shapes = ROWS("shapes", shape, quota_shape);
static const struct book_rows book_rows_tenants = ROWS("tenants", tenant, tenant_row);
static const struct book_rows book_rows_workspaces = ROWS("workspaces", workspace, workspace_row);
static const struct book_rows book_rows_shares = ROWS("shares", share, quota_share);
static const struct book_rows book_rows_caps = ROWS("caps", cap, quota_cap);
static const struct book_rows book_rows_budgets = ROWS("budgets", budget, quota_budget);
static const struct book_rows book_rows_prices = ROWS("prices", price, price_row);
static const struct book_rows book_rows_slots = ROWS("slots", slot, quota_slots);
static const struct book_rows book_rows_parts = ROWS("parts", part, quota_part);
static const struct book_rows book_rows_hold = ROWS("hold", part, quota_part);
static const struct book_rows book_rows_exceptions = ROWS("exceptions", exception, quota_exception);
static const struct book_rows book_rows_backoffs = ROWS("backoffs", backoff, quota_backoff);
static const struct book_rows book_rows_adoptions = ROWS("adoptions", adoption, quota_adoption);
static const struct book_rows book_rows_switches = ROWS("switches", switch, quota_switch);
static const struct book_rows book_rows_fences = ROWS("fences", fence, quota_fence);
static const struct book_rows book_rows_unused = ROWS("unused", unused, quota_unused);
static const struct book_rows book_rows_settings = ROWS("settings", setting, quota_settings);
static const struct book_rows book_rows_nodes = ROWS("nodes", node, node_row);
static const struct book_rows book_rows_gpus = ROWS("gpus", gpu, gpu_row);
static const struct book_rows book_rows_leases = ROWS("leases", lease, quota_lease);
static const struct book_rows book_rows_waiting = ROWS("waiting", request, quota_request);

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

static void
write_rows(const struct book_rows *r, const void *at, size_t count, struct buf *out)
{
	buf_str(out, ",\"");
	buf_str(out, r->key);
	buf_str(out, "\":[");
	for (size_t i = 0; i < count; i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		(void)book_row_write(r->columns, r->column_count, (const char *)at + i * r->size, out);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
write_names(const char *key, const char *const *names, size_t count, struct buf *out)
{
	buf_str(out, ",\"");
	buf_str(out, key);
	buf_str(out, "\":[");
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_char(out, ',');
		json_write_string(names[i], out);
	}
	buf_char(out, ']');
}

static void
write_tenants(const struct quota_book *b, const struct quota_policy *p, struct buf *out)
{
	const struct book_names *n = b->names;
	owned(mem) struct class_row *classes = mem_array(n->classes.count + 1, sizeof(*classes));
	owned(mem) struct tenant_row *tenants = mem_array(p->tenant_count + 1, sizeof(*tenants));
	owned(mem) struct workspace_row *workspaces = mem_array(p->workspace_count + 1, sizeof(*workspaces));

	for (size_t i = 0; i < n->classes.count; i++) {
		const struct book_class *c = BOOK_AT(n->classes, book_class, i);

		classes[i] = (struct class_row){c->text, c->value, c->preemptible, c->gone};
	}
	for (size_t i = 0; i < p->tenant_count; i++)
		tenants[i] = (struct tenant_row){p->tenants[i], BOOK_AT(n->tenants, book_name, i)->gone};
	for (size_t i = 0; i < p->workspace_count; i++) {
		const struct book_workspace *w = BOOK_AT(n->workspaces, book_workspace, i);

		workspaces[i] = (struct workspace_row){p->workspaces[i], w->home, w->gone,
		                                       quota_book_would_deny(b, (int32_t)i)};
	}
	write_rows(&book_rows_classes, classes, n->classes.count, out);
	write_rows(&book_rows_tenants, tenants, p->tenant_count, out);
	write_rows(&book_rows_workspaces, workspaces, p->workspace_count, out);
}

static void
write_node(const struct quota_book *b, const struct quota_node *node, size_t i, struct buf *out)
{
	const struct book_node *names = BOOK_AT(b->names->nodes, book_node, i);
	struct node_row row = {*node};

	buf_str(out, i > 0 ? ",{" : "{");
	(void)book_row_write(book_rows_nodes.columns, book_rows_nodes.column_count, &row, out);
	buf_str(out, ",\"gpus\":[");
	for (size_t g = 0; g < node->gpu_count; g++) {
		struct gpu_row gpu = {names->uuids[g], node->gpus[g].lost};

		buf_str(out, g > 0 ? ",{\"at\":" : "{\"at\":");
		buf_u64(out, g);
		if (gpu.uuid[0] != '\0' || gpu.lost) {
			buf_char(out, ',');
			(void)book_row_write(book_rows_gpus.columns, book_rows_gpus.column_count, &gpu, out);
		}
		write_rows(&book_rows_slots, node->gpus[g].slots, node->gpus[g].slot_count, out);
		buf_char(out, '}');
	}
	buf_str(out, "]}");
}

static void
write_work(const struct quota_world *w, struct buf *out)
{
	buf_str(out, ",\"leases\":[");
	for (size_t i = 0; i < w->lease_count; i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		(void)book_row_write(book_rows_leases.columns, book_rows_leases.column_count, &w->leases[i], out);
		write_rows(&book_rows_parts, w->leases[i].parts, w->leases[i].part_count, out);
		buf_char(out, '}');
	}
	buf_str(out, "],\"waiting\":[");
	for (size_t i = 0; i < w->waiting_count; i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		(void)book_row_write(book_rows_waiting.columns, book_rows_waiting.column_count, &w->waiting[i], out);
		write_rows(&book_rows_hold, w->waiting[i].hold, w->waiting[i].hold_count, out);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
write_prices(const struct book_names *n, struct buf *out)
{
	owned(mem) struct price_row *rows = mem_array(n->price_count + 1, sizeof(*rows));

	for (size_t i = 0; i < n->price_count; i++)
		rows[i] = (struct price_row){n->prices[i].tenant, n->prices[i].model, n->prices[i].profile,
		                             n->prices[i].hour_micros};
	write_rows(&book_rows_prices, rows, n->price_count, out);
}

void
quota_book_write(const struct quota_book *b, struct buf *out)
{
	struct quota_saved saved;
	const struct quota_policy *p = &saved.world.policy;

	quota_save(b->state, &saved);
	buf_printf(out, "{\"book\":%d,\"now_ns\":%" PRId64, QUOTA_BOOK_VERSION, saved.world.now_ns);
	if (saved.world.skipped_ns != 0)
		buf_printf(out, ",\"skipped_ns\":%" PRId64, saved.world.skipped_ns);
	buf_str(out, ",\"settings\":{");
	(void)book_row_write(book_rows_settings.columns, book_rows_settings.column_count, &p->settings, out);
	buf_char(out, '}');
	write_names("clusters", p->clusters, p->cluster_count, out);
	write_names("models", p->models, p->model_count, out);
	write_rows(&book_rows_shapes, p->shapes, p->shape_count, out);
	write_tenants(b, p, out);
	write_rows(&book_rows_shares, p->shares, p->share_count, out);
	write_rows(&book_rows_caps, p->caps, p->cap_count, out);
	write_rows(&book_rows_budgets, p->budgets, p->budget_count, out);
	write_prices(b->names, out);
	buf_str(out, ",\"nodes\":[");
	for (size_t i = 0; i < saved.world.node_count; i++)
		write_node(b, &saved.world.nodes[i], i, out);
	buf_char(out, ']');
	write_work(&saved.world, out);
	write_rows(&book_rows_exceptions, saved.world.exceptions, saved.world.exception_count, out);
	write_rows(&book_rows_backoffs, saved.world.backoffs, saved.world.backoff_count, out);
	/* Not known to texts of before: without any the text is as it was. */
	if (saved.world.adoption_count > 0)
		write_rows(&book_rows_adoptions, saved.world.adoptions, saved.world.adoption_count, out);
	if (saved.world.switch_count > 0)
		write_rows(&book_rows_switches, saved.world.switches, saved.world.switch_count, out);
	if (saved.world.fence_count > 0)
		write_rows(&book_rows_fences, saved.world.fences, saved.world.fence_count, out);
	if (saved.world.unused_count > 0)
		write_rows(&book_rows_unused, saved.world.unused, saved.world.unused_count, out);
	buf_str(out, "}\n");
	quota_saved_fini(&saved);
}

/* ---- reading --------------------------------------------------------------------------------------------------------------- */

struct reader {
	const json_t *doc;
	struct quota_memory *m;
	struct book_names *names;
	struct quota_world world;
	int64_t *denied;
};

static bool
read_rows(struct reader *r, const json_t *object, const struct book_rows *rows, void *ret_at, size_t *ret_count,
          struct err *err)
{
	const json_t *list;
	char *at;

	if (!book_list_read(object, rows->key, QUOTA_BOOK_MAX_ROWS, &list, ret_count, err))
		return false;
	at = quota_keep(&r->m, *ret_count, rows->size);
	for (size_t i = 0; i < *ret_count; i++)
		if (!book_row_read(rows->columns, rows->column_count, NULL, json_array_get(list, i), &r->m,
		                   at + i * rows->size, err))
			return err_prefix(err, "%s %zu", rows->key, i);
	memcpy(ret_at, &at, sizeof(at));
	return true;
}

/* A name that is there already would make one position of two. */
static bool
add_at(struct book_list *l, const char *what, const char *text, size_t size, size_t i, struct err *err)
{
	int32_t at;

	if (!book_add(l, what, text ? text : "", size, &at, err))
		return false;
	return (size_t)at == i || err_set(err, ERR_INVALID, "%s \"%.60s\" is there twice", what, text);
}

static bool
read_names(struct reader *r, const char *key, struct book_list *list, const char *const **ret, size_t *ret_count,
           struct err *err)
{
	const json_t *names;
	const char **at;

	if (!book_list_read(r->doc, key, QUOTA_BOOK_MAX_ROWS, &names, ret_count, err))
		return false;
	at = quota_keep(&r->m, *ret_count, sizeof(*at));
	for (size_t i = 0; i < *ret_count; i++) {
		const char *text = json_string_value(json_array_get(names, i));

		if (!add_at(list, key, text, QUOTA_NAME_SIZE, i, err))
			return false;
		at[i] = quota_keep_text(&r->m, text);
	}
	*ret = at;
	return true;
}

static bool
read_shapes(struct reader *r, struct err *err)
{
	struct quota_policy *p = &r->world.policy;
	struct quota_shape *shapes;
	int32_t at;

	if (!read_rows(r, r->doc, &book_rows_shapes, &shapes, &p->shape_count, err))
		return false;
	p->shapes = shapes;
	for (size_t i = 0; i < p->shape_count; i++) {
		struct quota_shape *s = &shapes[i];

		s->name = s->name ? s->name : "";
		if (s->model < 0 || (size_t)s->model >= p->model_count)
			return err_set(err, ERR_INVALID, "shape %zu has no model", i);
		if (!book_add_shape(r->names, s->model, s->kind, s->name, s->units, &at, err))
			return false;
		if ((size_t)at != i)
			return err_set(err, ERR_INVALID, "shape %zu is there twice", i);
	}
	for (size_t i = 0; i < p->model_count; i++)
		if (book_find_shape(r->names, (int32_t)i, QUOTA_WHOLE, "") == QUOTA_NONE)
			return err_set(err, ERR_INVALID, "model %zu has no whole GPU", i);
	return true;
}

static bool
read_classes(struct reader *r, struct err *err)
{
	struct class_row *rows;
	size_t count;

	if (!read_rows(r, r->doc, &book_rows_classes, &rows, &count, err))
		return false;
	for (size_t i = 0; i < count; i++) {
		struct book_class *c;

		if (!add_at(&r->names->classes, "class", rows[i].name, QUOTA_NAME_SIZE, i, err))
			return false;
		c = BOOK_AT(r->names->classes, book_class, i);
		c->value = rows[i].value;
		c->preemptible = rows[i].preemptible;
		c->gone = rows[i].gone;
	}
	r->world.policy.class_count = count;
	return true;
}

static bool
read_tenants(struct reader *r, struct err *err)
{
	struct quota_policy *p = &r->world.policy;
	struct tenant_row *rows;
	struct quota_tenant *tenants;

	if (!read_rows(r, r->doc, &book_rows_tenants, &rows, &p->tenant_count, err))
		return false;
	p->tenants = tenants = quota_keep(&r->m, p->tenant_count, sizeof(*tenants));
	for (size_t i = 0; i < p->tenant_count; i++) {
		if (!add_at(&r->names->tenants, "tenant", rows[i].in.name, QUOTA_NAME_SIZE, i, err))
			return false;
		tenants[i] = rows[i].in;
		/* Written before a set could be empty: 0 meant all. */
		if (tenants[i].classes.bits[0] != 0 || tenants[i].classes.bits[1] != 0)
			tenants[i].classes.only = true;
		BOOK_AT(r->names->tenants, book_name, i)->gone = rows[i].gone;
	}
	return true;
}

static bool
read_workspaces(struct reader *r, struct err *err)
{
	struct quota_policy *p = &r->world.policy;
	struct workspace_row *rows;
	struct quota_workspace *workspaces;
	in_place(buf) struct buf path = {0};

	buf_init(&path, 2 * (size_t)QUOTA_NAME_SIZE);
	if (!read_rows(r, r->doc, &book_rows_workspaces, &rows, &p->workspace_count, err))
		return false;
	p->workspaces = workspaces = quota_keep(&r->m, p->workspace_count, sizeof(*workspaces));
	r->denied = mem_array(p->workspace_count + 1, sizeof(*r->denied));
	for (size_t i = 0; i < p->workspace_count; i++) {
		const struct workspace_row *row = &rows[i];
		struct book_workspace *w;

		if (row->in.tenant < 0 || (size_t)row->in.tenant >= p->tenant_count || !row->in.name ||
		    row->home < QUOTA_NONE || row->home >= (int32_t)p->cluster_count)
			return err_set(err, ERR_INVALID, "workspace %zu has no tenant, name or cluster", i);
		buf_clear(&path);
		buf_printf(&path, "%s/%s", p->tenants[row->in.tenant].name, row->in.name);
		if (!add_at(&r->names->workspaces, "workspace", buf_text(&path), 2 * (size_t)QUOTA_NAME_SIZE, i, err))
			return false;
		w = BOOK_AT(r->names->workspaces, book_workspace, i);
		w->tenant = row->in.tenant;
		w->home = row->home;
		w->gone = row->gone;
		workspaces[i] = row->in;
		r->denied[i] = row->denied;
	}
	return true;
}

static bool
read_rights(struct reader *r, struct err *err)
{
	struct quota_policy *p = &r->world.policy;
	struct quota_share *shares;
	struct quota_cap *caps;
	struct quota_budget *budgets;
	struct price_row *rows;
	struct book_price *prices;
	size_t price_count;

	if (!read_rows(r, r->doc, &book_rows_shares, &shares, &p->share_count, err) ||
	    !read_rows(r, r->doc, &book_rows_caps, &caps, &p->cap_count, err) ||
	    !read_rows(r, r->doc, &book_rows_budgets, &budgets, &p->budget_count, err) ||
	    !read_rows(r, r->doc, &book_rows_prices, &rows, &price_count, err))
		return false;
	p->shares = shares;
	p->caps = caps;
	p->budgets = budgets;
	prices = quota_keep(&r->m, price_count, sizeof(*prices));
	for (size_t i = 0; i < price_count; i++)
		if (!book_price_init(&prices[i], rows[i].tenant, rows[i].model, rows[i].profile ? rows[i].profile : "",
		                     rows[i].hour_micros, err))
			return err_prefix(err, "price %zu", i);
	book_prices_set(r->names, prices, price_count);
	return true;
}

static bool
read_gpu(struct reader *r, const json_t *object, size_t at, struct quota_gpu *ret, struct book_node *names,
         struct err *err)
{
	static const char *const others[] = {"at", "slots", NULL};
	struct gpu_row row = {0};
	struct quota_slots *slots;

	if (!book_row_read(book_rows_gpus.columns, book_rows_gpus.column_count, others, object, &r->m, &row, err) ||
	    !read_rows(r, object, &book_rows_slots, &slots, &ret->slot_count, err))
		return false;
	ret->slots = slots;
	ret->lost = row.lost;
	if (row.uuid && strlen(row.uuid) >= QUOTA_UUID_SIZE)
		return err_set(err, ERR_INVALID, "the UUID of GPU %zu is longer than %d bytes", at,
		               QUOTA_UUID_SIZE - 1);
	if (row.uuid)
		memcpy(names->uuids[at], row.uuid, strlen(row.uuid) + 1);
	return true;
}

static bool
read_nodes(struct reader *r, struct err *err)
{
	static const char *const others[] = {"gpus", NULL};
	const json_t *list, *gpus;
	struct quota_node *nodes;

	if (!book_list_read(r->doc, "nodes", QUOTA_BOOK_MAX_ROWS, &list, &r->world.node_count, err))
		return false;
	r->world.nodes = nodes = quota_keep(&r->m, r->world.node_count, sizeof(*nodes));
	for (size_t i = 0; i < r->world.node_count; i++) {
		const json_t *object = json_array_get(list, i);
		struct node_row row = {0};
		struct quota_gpu *devices;
		struct book_node *names;

		if (!book_row_read(book_rows_nodes.columns, book_rows_nodes.column_count, others, object, &r->m, &row,
		                   err) ||
		    !add_at(&r->names->nodes, "node", row.in.name, QUOTA_NODE_SIZE, i, err) ||
		    !book_list_read(object, "gpus", QUOTA_BOOK_MAX_ROWS, &gpus, &row.in.gpu_count, err))
			return err_prefix(err, "node %zu", i);
		row.in.gpus = devices = quota_keep(&r->m, row.in.gpu_count, sizeof(*devices));
		nodes[i] = row.in;
		names = BOOK_AT(r->names->nodes, book_node, i);
		names->uuids = mem_array(row.in.gpu_count + 1, sizeof(*names->uuids));
		names->gpu_count = row.in.gpu_count;
		for (size_t g = 0; g < row.in.gpu_count; g++)
			if (!read_gpu(r, json_array_get(gpus, g), g, &devices[g], names, err))
				return err_prefix(err, "node %zu", i);
	}
	return true;
}

static bool
read_work(struct reader *r, struct err *err)
{
	static const char *const with_parts[] = {"parts", NULL}, *const with_hold[] = {"hold", NULL};
	const json_t *leases, *waiting;
	struct quota_request *requests;
	struct quota_lease *held;
	struct quota_part *parts;

	if (!book_list_read(r->doc, "leases", QUOTA_MAX_LEASES, &leases, &r->world.lease_count, err) ||
	    !book_list_read(r->doc, "waiting", QUOTA_BOOK_MAX_ROWS, &waiting, &r->world.waiting_count, err))
		return false;
	r->world.leases = held = quota_keep(&r->m, r->world.lease_count, sizeof(*held));
	for (size_t i = 0; i < r->world.lease_count; i++) {
		const json_t *object = json_array_get(leases, i);

		if (!book_row_read(book_rows_leases.columns, book_rows_leases.column_count, with_parts, object, &r->m,
		                   &held[i], err) ||
		    !read_rows(r, object, &book_rows_parts, &parts, &held[i].part_count, err))
			return err_prefix(err, "lease %zu", i);
		held[i].parts = parts;
	}
	r->world.waiting = requests = quota_keep(&r->m, r->world.waiting_count, sizeof(*requests));
	for (size_t i = 0; i < r->world.waiting_count; i++) {
		const json_t *object = json_array_get(waiting, i);

		if (!book_row_read(book_rows_waiting.columns, book_rows_waiting.column_count, with_hold, object, &r->m,
		                   &requests[i], err) ||
		    !read_rows(r, object, &book_rows_hold, &parts, &requests[i].hold_count, err))
			return err_prefix(err, "request %zu", i);
		requests[i].hold = parts;
	}
	return true;
}

bool
book_settings_read(const json_t *v, struct quota_memory **m, struct quota_settings *ret, struct err *err)
{
	return book_row_read(book_rows_settings.columns, book_rows_settings.column_count, NULL, v, m, ret, err) ||
	       err_prefix(err, "settings");
}

static bool
read_rest(struct reader *r, struct err *err)
{
	struct quota_exception *exceptions;
	struct quota_backoff *backoffs;
	struct quota_adoption *adoptions;
	struct quota_switch *switches;
	struct quota_fence *fences;
	struct quota_unused *unused;
	const json_t *settings = json_object_get(r->doc, "settings"), *now = json_object_get(r->doc, "now_ns");

	if (!read_rows(r, r->doc, &book_rows_exceptions, &exceptions, &r->world.exception_count, err) ||
	    !read_rows(r, r->doc, &book_rows_backoffs, &backoffs, &r->world.backoff_count, err) ||
	    !read_rows(r, r->doc, &book_rows_adoptions, &adoptions, &r->world.adoption_count, err) ||
	    !read_rows(r, r->doc, &book_rows_switches, &switches, &r->world.switch_count, err) ||
	    !read_rows(r, r->doc, &book_rows_fences, &fences, &r->world.fence_count, err) ||
	    !read_rows(r, r->doc, &book_rows_unused, &unused, &r->world.unused_count, err))
		return false;
	r->world.unused = unused;
	r->world.fences = fences;
	r->world.adoptions = adoptions;
	r->world.switches = switches;
	r->world.exceptions = exceptions;
	r->world.backoffs = backoffs;
	r->world.now_ns = json_integer_value(now);
	if (r->world.now_ns < 0 || r->world.now_ns > BOOK_MAX_NS)
		return err_set(err, ERR_INVALID, "now_ns %" PRId64 " is out of range", r->world.now_ns);
	r->world.skipped_ns = json_integer_value(json_object_get(r->doc, "skipped_ns"));
	if (r->world.skipped_ns < -QUOTA_MAX_SKIPPED_NS || r->world.skipped_ns > QUOTA_MAX_SKIPPED_NS)
		return err_set(err, ERR_INVALID, "skipped_ns %" PRId64 " is out of range", r->world.skipped_ns);
	if (settings && !book_settings_read(settings, &r->m, &r->world.policy.settings, err))
		return false;
	r->names->settings = r->world.policy.settings;
	return true;
}

bool
quota_book_open(const char *state, size_t len, struct quota_book **ret, struct err *err)
{
	owned(json) json_t *doc = NULL;
	owned(book_names) struct book_names *names = book_names_new();
	struct reader r = {.names = names};
	struct quota_state *loaded = NULL;
	const json_t *version;
	bool ok;

	if (!json_parse_max("quota book", state, len, QUOTA_BOOK_MAX_BYTES, &doc, err))
		return false;
	version = json_object_get(doc, "book");
	if (!json_is_object(doc) || (json_object_size(doc) > 0 && json_integer_value(version) != QUOTA_BOOK_VERSION))
		return err_set(err, ERR_INVALID, "quota book: not a text of version %d", QUOTA_BOOK_VERSION);
	r.doc = doc;
	ok = read_names(&r, "clusters", &names->clusters, &r.world.policy.clusters, &r.world.policy.cluster_count,
	                err) &&
	     read_names(&r, "models", &names->models, &r.world.policy.models, &r.world.policy.model_count, err) &&
	     read_shapes(&r, err) && read_classes(&r, err) && read_tenants(&r, err) && read_workspaces(&r, err) &&
	     read_rights(&r, err) && read_nodes(&r, err) && read_work(&r, err) && read_rest(&r, err) &&
	     quota_load(&r.world, &loaded, err);
	quota_memory_free(r.m);
	if (!ok) {
		mem_free(r.denied);
		return err_prefix(err, "quota book");
	}
	*ret = mem_alloc(sizeof(**ret));
	**ret = (struct quota_book){loaded, take(names), r.denied, r.world.policy.workspace_count};
	return true;
}

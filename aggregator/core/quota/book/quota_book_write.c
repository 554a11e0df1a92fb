/* aggregator/core/quota/book/quota_book_write.c - a quota book as text. Lists are in the order of their positions, and rows refer to each other by
 * them. */
#include "aggregator/core/quota/book/quota_book_columns.h"

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
write_people(const struct quota_book *b, const struct quota_policy *p, struct buf *out)
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
	write_people(b, p, out);
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
	buf_str(out, "}\n");
	quota_saved_fini(&saved);
}

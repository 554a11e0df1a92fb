/* aggregator/core/quota/book/quota_book_read.c - a quota book from its text. What does not fit together is refused, whoever wrote it. */
#include <string.h>

#include "aggregator/core/quota/book/quota_book_columns.h"
#include "aggregator/core/quota/book/quota_book_step.h"

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
	const json_t *settings = json_object_get(r->doc, "settings"), *now = json_object_get(r->doc, "now_ns");

	if (!read_rows(r, r->doc, &book_rows_exceptions, &exceptions, &r->world.exception_count, err) ||
	    !read_rows(r, r->doc, &book_rows_backoffs, &backoffs, &r->world.backoff_count, err))
		return false;
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

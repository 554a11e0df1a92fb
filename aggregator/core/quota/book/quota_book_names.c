/* aggregator/core/quota/book/quota_book_names.c - the names of a quota book's positions, and outcomes by names. */
#include "aggregator/core/quota/book/quota_book_state.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "aggregator/core/quota/engine/quantity.h"
#include "common/base/text.h"

#define MAX_THINGS (1u << 20) /* of one kind */

/* ---- lists of names ---------------------------------------------------------------------------------------------------- */

static void
list_init(struct book_list *l, size_t size)
{
	*l = (struct book_list){.size = size};
}

static void
list_copy(struct book_list *to, const struct book_list *from)
{
	*to = *from;
	to->cap = from->count + 1;
	to->at = mem_array(to->cap, to->size);
	if (from->count > 0)
		memcpy(to->at, from->at, from->count * from->size);
	hash_copy(&to->ids, &from->ids);
}

static void
list_fini(struct book_list *l)
{
	mem_free(l->at);
	hash_fini(&l->ids);
}

int32_t
book_find(const struct book_list *l, const char *text)
{
	return (int32_t)hash_find_text(&l->ids, l->at, l->size, text); /* or QUOTA_NONE */
}

bool
book_add(struct book_list *l, const char *what, const char *text, size_t size, int32_t *ret, struct err *err)
{
	int32_t at = book_find(l, text);
	size_t len = strnlen(text, size);

	if (at != QUOTA_NONE) {
		*ret = at;
		return true;
	}
	if (len == 0 || len >= size || l->count >= MAX_THINGS)
		return err_set(err, ERR_INVALID, "%s \"%.60s\" has no name of 1 to %zu bytes, or is more than %u", what,
		               text, size - 1, MAX_THINGS);
	if (l->count == l->cap) {
		l->cap = l->cap > 0 ? 2 * l->cap : 8;
		l->at = mem_grow(l->at, l->cap, l->size);
	}
	at = (int32_t)l->count;
	memset((char *)l->at + l->count * l->size, 0, l->size);
	memcpy((char *)l->at + l->count * l->size, text, len);
	l->count++;
	hash_add(&l->ids, hash_text(HASH_START, text), l->count - 1);
	*ret = at;
	return true;
}

/* ---- all of them ------------------------------------------------------------------------------------------------------- */

struct book_names *
book_names_new(void)
{
	struct book_names *n = mem_alloc(sizeof(*n));

	atomic_init(&n->copies, 1);
	list_init(&n->clusters, sizeof(struct book_name));
	list_init(&n->models, sizeof(struct book_name));
	list_init(&n->classes, sizeof(struct book_class));
	list_init(&n->shapes, sizeof(struct book_shape));
	list_init(&n->tenants, sizeof(struct book_name));
	list_init(&n->workspaces, sizeof(struct book_workspace));
	list_init(&n->nodes, sizeof(struct book_node));
	return n;
}

static void *
copy_of(const void *from, size_t count, size_t size)
{
	void *to = mem_array(count + 1, size);

	if (count > 0)
		memcpy(to, from, count * size);
	return to;
}

struct book_names *
book_names_copy(const struct book_names *n)
{
	struct book_names *c = mem_alloc(sizeof(*c));

	atomic_init(&c->copies, 1);
	list_copy(&c->clusters, &n->clusters);
	list_copy(&c->models, &n->models);
	list_copy(&c->classes, &n->classes);
	list_copy(&c->shapes, &n->shapes);
	list_copy(&c->tenants, &n->tenants);
	list_copy(&c->workspaces, &n->workspaces);
	list_copy(&c->nodes, &n->nodes);
	for (size_t i = 0; i < c->nodes.count; i++) {
		struct book_node *node = BOOK_AT(c->nodes, book_node, i);

		node->uuids = copy_of(node->uuids, node->gpu_count, sizeof(*node->uuids));
	}
	c->prices = copy_of(n->prices, n->price_count, sizeof(*n->prices));
	c->price_count = n->price_count;
	c->settings = n->settings;
	return c;
}

struct book_names *
book_names_share(struct book_names *n)
{
	atomic_fetch_add(&n->copies, 1);
	return n;
}

void
book_names_free(struct book_names *n)
{
	if (!n || atomic_fetch_sub(&n->copies, 1) > 1)
		return;
	for (size_t i = 0; i < n->nodes.count; i++)
		mem_free(BOOK_AT(n->nodes, book_node, i)->uuids);
	list_fini(&n->clusters);
	list_fini(&n->models);
	list_fini(&n->classes);
	list_fini(&n->shapes);
	list_fini(&n->tenants);
	list_fini(&n->workspaces);
	list_fini(&n->nodes);
	mem_free(n->prices);
	mem_free(n);
}

/* ---- shapes, models, prices -------------------------------------------------------------------------------------------- */

static void
shape_key(int32_t model, enum quota_shape_kind kind, const char *name, char out[static 2 * QUOTA_NAME_SIZE])
{
	snprintf(out, 2 * (size_t)QUOTA_NAME_SIZE, "%" PRId32 " %d %.*s", model, (int)kind, QUOTA_NAME_SIZE, name);
}

int32_t
book_find_shape(const struct book_names *n, int32_t model, enum quota_shape_kind kind, const char *name)
{
	char key[2 * QUOTA_NAME_SIZE];

	shape_key(model, kind, name, key);
	return book_find(&n->shapes, key);
}

bool
book_add_shape(struct book_names *n, int32_t model, enum quota_shape_kind kind, const char *name, int64_t units,
               int32_t *ret, struct err *err)
{
	char key[2 * QUOTA_NAME_SIZE];
	struct book_shape *s;

	if (strnlen(name, QUOTA_NAME_SIZE) >= QUOTA_NAME_SIZE || units <= 0 || units > UNITS_PER_GPU)
		return err_set(err, ERR_INVALID, "shape \"%.60s\" of %" PRId64 " units is none", name, units);
	shape_key(model, kind, name, key);
	if (!book_add(&n->shapes, "shape", key, sizeof(key), ret, err))
		return false;
	s = BOOK_AT(n->shapes, book_shape, *ret);
	if (s->in.units != 0)
		return s->in.units == units ||
		       err_set(err, ERR_INVALID, "%s of %s has %" PRId64 " units, not %" PRId64, name,
		               BOOK_AT(n->models, book_name, model)->text, s->in.units, units);
	memcpy(s->name, name, strlen(name) + 1);
	s->in = (struct quota_shape){.model = model, .kind = kind, .units = units};
	return true;
}

bool
book_add_model(struct book_names *n, const char *name, int32_t *ret, struct err *err)
{
	int32_t shape;

	return book_add(&n->models, "model", name, QUOTA_NAME_SIZE, ret, err) &&
	       book_add_shape(n, *ret, QUOTA_WHOLE, "", UNITS_PER_GPU, &shape, err);
}

static int
compare_prices(const void *a, const void *b)
{
	const struct book_price *x = a, *y = b;

	if (x->tenant != y->tenant)
		return x->tenant < y->tenant ? -1 : 1;
	if (x->model != y->model)
		return x->model < y->model ? -1 : 1;
	return strcmp(x->profile, y->profile);
}

bool
book_price_init(struct book_price *p, int32_t tenant, int32_t model, const char *profile, int64_t hour_micros,
                struct err *err)
{
	*p = (struct book_price){.tenant = tenant, .model = model, .hour_micros = hour_micros};
	if (strlen(profile) >= sizeof(p->profile))
		return err_set(err, ERR_INVALID, "its profile is longer than %zu bytes", sizeof(p->profile) - 1);
	memcpy(p->profile, profile, strlen(profile) + 1);
	return hour_micros >= 0 || err_set(err, ERR_INVALID, "it is negative");
}

void
book_prices_set(struct book_names *n, const struct book_price *prices, size_t count)
{
	mem_free(n->prices);
	n->prices = copy_of(prices, count, sizeof(*prices));
	n->price_count = count;
	if (count > 0)
		qsort(n->prices, count, sizeof(*n->prices), compare_prices);
}

static const struct book_price *
find_price(const struct book_names *n, const struct book_price *key)
{
	return n->price_count == 0 ? NULL : bsearch(key, n->prices, n->price_count, sizeof(*key), compare_prices);
}

void
book_price_of(const struct book_names *n, int32_t tenant, int32_t shape, int64_t *ret_micros, int64_t *ret_units)
{
	const struct book_shape *s = BOOK_AT(n->shapes, book_shape, shape);
	struct book_price key = {.tenant = tenant, .model = s->in.model};
	const struct book_price *p = NULL;

	*ret_units = s->in.units;
	if (s->in.kind == QUOTA_MIG) {
		memcpy(key.profile, s->name, sizeof(key.profile));
		p = find_price(n, &key);
		key.profile[0] = '\0';
	}
	if (p == NULL) {
		p = find_price(n, &key);
		*ret_units = UNITS_PER_GPU;
	}
	*ret_micros = p ? p->hour_micros : 0;
}

#define CHOICES_MAX 65536u

/* ---- names of a book ---------------------------------------------------------------------------------------------------------------- */

int32_t
quota_book_cluster(const struct quota_book *b, const char *name)
{
	return book_find(&b->names->clusters, name);
}

int32_t
quota_book_model(const struct quota_book *b, const char *name)
{
	return book_find(&b->names->models, name);
}

bool
quota_book_model_of(const struct quota_book *b, const char *name, const char **ret, struct err *err)
{
	const struct book_list *l = &b->names->models;
	owned(mem) const char **models = NULL;
	size_t fitting = 0;

	*ret = name;
	if (book_find(l, name) != QUOTA_NONE)
		return true;
	models = mem_array(l->count + 1, sizeof(*models));
	for (size_t i = 0; i < l->count; i++) {
		models[i] = BOOK_AT(*l, book_name, i)->text;
		fitting += quantity_model_fits(name, models[i]);
	}
	return fitting == 0 || name[0] == '\0' || quantity_model(name, models, l->count, ret, err);
}

int32_t
quota_book_tenant(const struct quota_book *b, const char *name)
{
	return book_find(&b->names->tenants, name);
}

int32_t
quota_book_workspace(const struct quota_book *b, const char *path)
{
	return book_find(&b->names->workspaces, path);
}

static int32_t
workspace_now(const struct quota_book *b, const char *path)
{
	int32_t w = book_find(&b->names->workspaces, path);

	return w == QUOTA_NONE || BOOK_AT(b->names->workspaces, book_workspace, w)->gone ? QUOTA_NONE : w;
}

static bool
may_use_class(const struct quota_book *b, int32_t workspace, int32_t klass)
{
	return klass != QUOTA_NONE && !BOOK_AT(b->names->classes, book_class, klass)->gone &&
	       quota_may_use_class(b->state, workspace, klass);
}

bool
quota_book_takes(const struct quota_book *b, const char *path, const char *klass)
{
	int32_t w = workspace_now(b, path);

	/* where quotas are not enforced nothing is refused */
	return w != QUOTA_NONE &&
	       (!klass || !quota_is_enforced(b->state, w) || may_use_class(b, w, book_find(&b->names->classes, klass)));
}

static bool
no_workspace(const struct quota_book *b, const char *path, const char *tenant, struct err *err)
{
	const struct book_names *n = b->names;
	owned(mem) const char **known = mem_array(n->workspaces.count + 1, sizeof(*known));
	size_t count = 0, len = strlen(tenant);
	const char *near;

	for (size_t i = 0; i < n->workspaces.count; i++) {
		const struct book_workspace *w = BOOK_AT(n->workspaces, book_workspace, (int32_t)i);

		if (!w->gone && (len == 0 || (strncmp(w->text, tenant, len) == 0 && w->text[len] == '/')))
			known[count++] = w->text;
	}
	near = text_nearest(path, known);
	if (!near)
		return err_set(err, ERR_MISSING, "workspace: there is no workspace \"%.130s\"", path);
	return err_set(err, ERR_MISSING, "workspace: there is no workspace \"%.130s\"; did you mean \"%.130s\"?", path,
	               near);
}

static bool
no_class(const struct quota_book *b, int32_t workspace, const char *klass, struct err *err)
{
	const struct book_names *n = b->names;
	in_place(buf) struct buf may = {0};
	size_t count = 0;

	buf_init(&may, CHOICES_MAX);
	for (size_t i = 0; i < n->classes.count; i++)
		if (may_use_class(b, workspace, (int32_t)i))
			buf_printf(&may, "%s%s", count++ > 0 ? ", " : "", BOOK_AT(n->classes, book_class, i)->text);
	if (count == 0)
		return err_set(err, ERR_INVALID,
		               "priority_class: its tenant has no class \"%.64s\", and no other: leave it out", klass);
	return err_set(err, ERR_INVALID, "priority_class: its tenant has no class \"%.64s\"; it may use: %.300s", klass,
	               buf_text(&may));
}

bool
quota_book_not_taken(const struct quota_book *b, const char *path, const char *klass, const char *tenant,
                     struct err *err)
{
	int32_t w = workspace_now(b, path);

	return w == QUOTA_NONE ? no_workspace(b, path, tenant, err) : no_class(b, w, klass, err);
}

int32_t
quota_book_node(const struct quota_book *b, const char *name)
{
	return book_find(&b->names->nodes, name);
}

int32_t
quota_book_gpu(const struct quota_book *b, int32_t node, const char *uuid)
{
	const struct book_node *n = BOOK_AT(b->names->nodes, book_node, node);

	for (size_t i = 0; i < n->gpu_count; i++)
		if (strcmp(n->uuids[i], uuid) == 0)
			return (int32_t)i;
	return QUOTA_NONE;
}

size_t
quota_book_cluster_count(const struct quota_book *b)
{
	return b->names->clusters.count;
}

size_t
quota_book_model_count(const struct quota_book *b)
{
	return b->names->models.count;
}

size_t
quota_book_workspace_count(const struct quota_book *b)
{
	return b->names->workspaces.count;
}

size_t
quota_book_node_count(const struct quota_book *b)
{
	return b->names->nodes.count;
}

const char *
quota_book_cluster_name(const struct quota_book *b, int32_t cluster)
{
	return BOOK_AT(b->names->clusters, book_name, cluster)->text;
}

const char *
quota_book_model_name(const struct quota_book *b, int32_t model)
{
	return BOOK_AT(b->names->models, book_name, model)->text;
}

const char *
quota_book_tenant_name(const struct quota_book *b, int32_t tenant)
{
	return BOOK_AT(b->names->tenants, book_name, tenant)->text;
}

const char *
quota_book_workspace_path(const struct quota_book *b, int32_t workspace)
{
	return workspace == QUOTA_NONE ? "" : BOOK_AT(b->names->workspaces, book_workspace, workspace)->text;
}

const char *
quota_book_node_name(const struct quota_book *b, int32_t node)
{
	return BOOK_AT(b->names->nodes, book_node, node)->text;
}

const char *
quota_book_gpu_uuid(const struct quota_book *b, int32_t node, int32_t gpu)
{
	return BOOK_AT(b->names->nodes, book_node, node)->uuids[gpu];
}

struct quota_shape
quota_book_shape(const struct quota_book *b, int32_t shape)
{
	const struct book_shape *s = BOOK_AT(b->names->shapes, book_shape, shape);
	struct quota_shape ret = s->in;

	ret.name = s->name;
	return ret;
}

const struct quota_settings *
quota_book_settings(const struct quota_book *b)
{
	return &b->names->settings;
}

int64_t
quota_book_would_deny(const struct quota_book *b, int32_t workspace)
{
	return quota_would_deny_count(b->state, workspace) +
	       ((size_t)workspace < b->denied_count ? b->denied[workspace] : 0);
}

/* ---- outcomes ------------------------------------------------------------------------------------------------------------- */

static void
name_workspace(const void *of, int32_t workspace, struct buf *out)
{
	buf_str(out, quota_book_workspace_path(of, workspace));
}

static const char *
name_node(const void *of, int32_t node)
{
	return quota_book_node_name(of, node);
}

static struct quota_shape
name_shape(const void *of, int32_t shape)
{
	return quota_book_shape(of, shape);
}

struct quota_namer
quota_book_namer(const struct quota_book *b)
{
	return (struct quota_namer){b, name_workspace, name_node, name_shape};
}

void
quota_book_verdict_json(const struct quota_book *b, const struct quota_verdict *v, struct buf *out)
{
	const struct quota_namer namer = quota_book_namer(b);

	quota_json_verdict(&namer, v, NULL, out);
}

void
quota_book_outcome_json(const struct quota_book *b, struct quota_outcome *o, struct buf *out)
{
	size_t begin = out->len;

	buf_str(out, "{\"verdicts\":[");
	for (size_t i = 0; i < o->verdict_count; i++) {
		if (i > 0)
			buf_char(out, ',');
		o->verdicts[i].text_at = out->len - begin;
		quota_book_verdict_json(b, &o->verdicts[i], out);
		o->verdicts[i].text_len = out->len - begin - o->verdicts[i].text_at;
	}
	buf_str(out, "],\"notices\":[");
	for (size_t i = 0; i < o->notice_count; i++) {
		if (i > 0)
			buf_char(out, ',');
		quota_json_notice(&o->notices[i], NULL, out);
	}
	buf_str(out, "]}");
}

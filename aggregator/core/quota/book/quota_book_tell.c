/* aggregator/core/quota/book/quota_book_tell.c - what the positions in a quota book are called, and outcomes by names. */
#include <string.h>

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/quota/book/quota_book_names.h"
#include "common/base/text.h"

#define CHOICES_MAX 65536u

/* ---- names ---------------------------------------------------------------------------------------------------------------- */

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

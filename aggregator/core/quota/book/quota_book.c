/* aggregator/core/quota/book/quota_book.c - the quota engine by names and texts: events, outcomes, names. */
#include "aggregator/core/quota/book/quota_book.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/book/quota_book_state.h"
#include "aggregator/core/quota/engine/quota_text.h"

#define MAX_LIST 100000u /* leases or nodes of one event */

/* ---- a book ------------------------------------------------------------------------------------------------------------- */

struct quota_book *
quota_book_clone(const struct quota_book *b)
{
	struct quota_book *c = mem_alloc(sizeof(*c));

	c->state = quota_clone(b->state);
	c->names = book_names_share(b->names);
	c->denied = mem_array(b->denied_count + 1, sizeof(*c->denied));
	memcpy(c->denied, b->denied, b->denied_count * sizeof(*c->denied));
	c->denied_count = b->denied_count;
	return c;
}

void
quota_book_free(struct quota_book *b)
{
	if (!b)
		return;
	quota_free(b->state);
	book_names_free(b->names);
	mem_free(b->denied);
	mem_free(b);
}

const struct quota_state *
quota_book_state(const struct quota_book *b)
{
	return b->state;
}

int64_t
quota_book_now(const struct quota_book *b)
{
	return quota_now(b->state);
}

/* ---- outcomes ------------------------------------------------------------------------------------------------------------- */

static void
append(struct quota_outcome *to, struct quota_outcome *from)
{
	if (from->verdict_count > 0) {
		to->verdicts = mem_grow(to->verdicts, to->verdict_count + from->verdict_count, sizeof(*to->verdicts));
		memcpy(&to->verdicts[to->verdict_count], from->verdicts, from->verdict_count * sizeof(*to->verdicts));
		to->verdict_count += from->verdict_count;
	}
	if (from->notice_count > 0) {
		to->notices = mem_grow(to->notices, to->notice_count + from->notice_count, sizeof(*to->notices));
		memcpy(&to->notices[to->notice_count], from->notices, from->notice_count * sizeof(*to->notices));
		to->notice_count += from->notice_count;
	}
	from->verdict_count = 0;
	quota_outcome_free(from);
}

/* Appends the outcome of one step of the engine to those of the steps before. */
bool
book_step_state(struct book_step *s, struct quota_state *state, const struct quota_event *event, struct err *err)
{
	struct quota_outcome *o = NULL;

	if (!quota_step(state, s->now_ns, event, &o, err))
		return false;
	append(s->out, o);
	return true;
}

bool
book_step_engine(struct book_step *s, const struct quota_event *event, struct err *err)
{
	return book_step_state(s, s->b->state, event, err);
}

bool
book_step_anew(struct book_step *s, const struct quota_world *world, struct book_names **names,
               const struct quota_event *event, struct err *err)
{
	owned(quota) struct quota_state *anew = NULL, *old = s->b->state;
	struct quota_book *b = s->b;
	int64_t *denied;

	if (!quota_load(world, &anew, err) || !book_step_state(s, anew, event, err)) {
		old = NULL;
		return false;
	}
	denied = mem_array((*names)->workspaces.count + 1, sizeof(*denied));
	for (size_t i = 0; i < quota_book_workspace_count(b); i++)
		denied[i] = quota_book_would_deny(b, (int32_t)i);
	mem_free(b->denied);
	b->denied = denied;
	b->denied_count = (*names)->workspaces.count;
	book_names_free(b->names);
	b->names = take(*names);
	b->state = take(anew);
	return true;
}

void
book_notice(struct book_step *s, enum quota_notice_kind kind, const char *id, const char *for_id)
{
	struct quota_outcome *o = s->out;
	struct quota_notice n = {.kind = kind, .at_ns = quota_book_now(s->b)};
	size_t at = 0;

	memcpy(n.id, id, strnlen(id, QUOTA_ID_SIZE - 1));
	memcpy(n.for_id, for_id, strnlen(for_id, QUOTA_ID_SIZE - 1));
	while (at < o->notice_count &&
	       (o->notices[at].kind < kind || (o->notices[at].kind == kind && strcmp(o->notices[at].id, n.id) <= 0)))
		at++;
	o->notices = mem_grow(o->notices, o->notice_count + 1, sizeof(*o->notices));
	memmove(&o->notices[at + 1], &o->notices[at], (o->notice_count - at) * sizeof(n));
	o->notices[at] = n;
	o->notice_count++;
}

/* ---- events --------------------------------------------------------------------------------------------------------------- */

static bool
id_of(const json_t *v, const char **ret, struct err *err)
{
	const char *id = json_string_value(v);

	if (!id || id[0] == '\0' || strlen(id) >= QUOTA_ID_SIZE)
		return err_set(err, ERR_INVALID, "an id of 1 to %d bytes is expected", QUOTA_ID_SIZE - 1);
	*ret = id;
	return true;
}

/* One text, or a list of them. */
static bool
texts_of(struct book_step *s, const json_t *v, const json_t ***ret, size_t *ret_count, struct err *err)
{
	size_t count = json_is_array(v) ? json_array_size(v) : 1;
	const json_t **at;

	if (count > MAX_LIST)
		return err_set(err, ERR_INVALID, "%zu in one event are more than %u", count, MAX_LIST);
	at = quota_keep(&s->m, count, sizeof(*at));
	for (size_t i = 0; i < count; i++)
		at[i] = json_is_array(v) ? json_array_get(v, i) : v;
	*ret = at;
	*ret_count = count;
	return true;
}

static bool
ids_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	const json_t **at;
	const char *id;
	size_t count;

	if (!texts_of(s, v, &at, &count, err))
		return false;
	for (size_t i = 0; i < count; i++)
		if (!id_of(at[i], &id, err))
			return false;
	for (size_t i = 0; i < count; i++)
		if (!book_step_engine(s, &(struct quota_event){.kind = kind, .id = json_string_value(at[i])}, err))
			return false;
	return true;
}

static bool
nodes_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	const json_t **at;
	int32_t *nodes;
	size_t count;

	if (!texts_of(s, v, &at, &count, err))
		return false;
	nodes = quota_keep(&s->m, count, sizeof(*nodes));
	for (size_t i = 0; i < count; i++) {
		const char *name = json_string_value(at[i]);

		nodes[i] = name ? quota_book_node(s->b, name) : QUOTA_NONE;
		if (nodes[i] == QUOTA_NONE)
			return err_set(err, ERR_INVALID, "there is no node \"%.100s\"", name ? name : "");
	}
	for (size_t i = 0; i < count; i++)
		if (!book_step_engine(s, &(struct quota_event){.kind = kind, .node = nodes[i]}, err))
			return false;
	return true;
}

bool
book_read_device(const struct book_names *n, const json_t *v, int32_t *ret_node, int32_t *ret_gpu, struct err *err)
{
	const char *node = json_string_value(json_object_get(v, "node"));
	const json_t *gpu = json_object_get(v, "gpu");
	const struct book_node *names;
	size_t at = 0;

	*ret_node = node ? book_find(&n->nodes, node) : QUOTA_NONE;
	if (*ret_node == QUOTA_NONE)
		return err_set(err, ERR_INVALID, "there is no node \"%.100s\"", node ? node : "");
	names = BOOK_AT(n->nodes, book_node, *ret_node);
	if (json_is_integer(gpu))
		at = json_integer_value(gpu) < 0 ? SIZE_MAX : (size_t)json_integer_value(gpu);
	else if (json_is_string(gpu))
		while (at < names->gpu_count && strcmp(names->uuids[at], json_string_value(gpu)) != 0)
			at++;
	if (!(json_is_integer(gpu) || json_is_string(gpu)) || at >= names->gpu_count)
		return err_set(err, ERR_INVALID, "node %s has no such GPU", node);
	*ret_gpu = (int32_t)at;
	return true;
}

static bool
gpu_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	struct quota_event event = {.kind = kind};

	return book_read_device(s->b->names, v, &event.node, &event.gpu, err) && book_step_engine(s, &event, err);
}

static bool
release_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	static const char *const fields[] = {"id", "lost", NULL};
	struct quota_event event = {.kind = kind};

	if (!json_is_object(v))
		return ids_event(s, kind, v, err);
	if (!json_only_fields(v, fields, err) || !id_of(json_object_get(v, "id"), &event.id, err))
		return false;
	if (!json_is_boolean(json_object_get(v, "lost")))
		return err_set(err, ERR_INVALID, "lost is true or false");
	event.lost = json_is_true(json_object_get(v, "lost"));
	return book_step_engine(s, &event, err);
}

static bool
unfence_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	static const char *const fields[] = {"id", "parts", NULL};
	const json_t *parts = json_object_get(v, "parts");
	struct quota_event event = {.kind = kind, .part_count = json_array_size(parts)};
	struct quota_part *at;

	if (!json_is_object(v))
		return ids_event(s, kind, v, err);
	if (!json_only_fields(v, fields, err) || !id_of(json_object_get(v, "id"), &event.id, err))
		return false;
	if (parts && (event.part_count == 0 || event.part_count > MAX_LIST))
		return err_set(err, ERR_INVALID, "parts are a list of 1 to %u", MAX_LIST);
	event.parts = at = quota_keep(&s->m, event.part_count, sizeof(*at));
	for (size_t i = 0; i < event.part_count; i++)
		if (!book_read_device(s->b->names, json_array_get(parts, i), &at[i].node, &at[i].gpu, err))
			return err_prefix(err, "part %zu", i);
	return book_step_engine(s, &event, err);
}

/* Its parts are of the lease's own shape. */
static bool
confirm_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	const json_t *parts = json_object_get(v, "parts");
	struct quota_event event = {.kind = kind, .part_count = json_array_size(parts)};
	struct quota_part *at;
	int32_t shape;

	if (!json_is_object(v))
		return ids_event(s, kind, v, err);
	if (!id_of(json_object_get(v, "id"), &event.id, err))
		return false;
	if (json_object_size(v) != 1u + (parts != NULL) || (parts && !json_is_array(parts)) ||
	    event.part_count > MAX_LIST)
		return err_set(err, ERR_INVALID, "a confirmation has an id and a list of parts");
	shape = quota_lease_shape(s->b->state, event.id);
	event.parts = at = quota_keep(&s->m, event.part_count, sizeof(*at));
	for (size_t i = 0; i < event.part_count; i++) {
		const json_t *p = json_array_get(parts, i);
		int64_t count = json_integer_value(json_object_get(p, "count"));

		if (count < 1 || count > QUOTA_MAX_COUNT)
			return err_set(err, ERR_INVALID, "part %zu has no count of 1 to %d", i, QUOTA_MAX_COUNT);
		if (!book_read_device(s->b->names, p, &at[i].node, &at[i].gpu, err))
			return err_prefix(err, "part %zu", i);
		at[i].count = (int32_t)count;
		at[i].shape = shape;
	}
	return book_step_engine(s, &event, err);
}

static bool
tick_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	if (!json_is_true(v))
		return err_set(err, ERR_INVALID, "a tick is true");
	return book_step_engine(s, &(struct quota_event){.kind = kind}, err);
}

static bool
clock_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	static const char *const fields[] = {"until_ns", "skipped_ns", NULL};
	struct quota_event event = {.kind = kind};

	return json_only_fields(v, fields, err) && json_get_i64(v, "until_ns", &event.until_ns, err) &&
	       json_get_i64(v, "skipped_ns", &event.skipped_ns, err) && book_step_engine(s, &event, err);
}

static bool
exception_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	struct quota_exception x = {0};
	struct quota_event event = {.kind = kind, .exception = &x};
	const char *workspace, *cluster, *model;

	if (!json_is_object(v) || !id_of(json_object_get(v, "id"), &x.id, err))
		return err_set(err, ERR_INVALID, "an exception has an id of 1 to %d bytes", QUOTA_ID_SIZE - 1);
	if (!json_get_str(v, "workspace", &workspace, err) || !json_get_str(v, "cluster", &cluster, err) ||
	    !json_get_str(v, "model", &model, err) || !json_get_i64(v, "from_ns", &x.from_ns, err) ||
	    !json_get_i64(v, "until_ns", &x.until_ns, err))
		return false;
	x.workspace = quota_book_workspace(s->b, workspace);
	x.cluster = quota_book_cluster(s->b, cluster);
	x.model = quota_book_model(s->b, model);
	x.shared = json_is_true(json_object_get(v, "shared"));
	x.extra_limit = json_integer_value(json_object_get(v, "extra_limit_units"));
	x.extra_reserved = json_integer_value(json_object_get(v, "extra_reserved_units"));
	if (x.from_ns < 0 || x.until_ns < 0 || x.until_ns > BOOK_MAX_NS)
		return err_set(err, ERR_INVALID, "exception %s: a time is out of range", x.id);
	if (x.workspace == QUOTA_NONE || x.cluster == QUOTA_NONE || x.model == QUOTA_NONE)
		return err_set(err, ERR_INVALID, "exception %s: %s, %s or %s is not known", x.id, workspace, cluster,
		               model);
	return book_step_engine(s, &event, err);
}

static bool
adoption_event(struct book_step *s, enum quota_event_kind kind, const json_t *v, struct err *err)
{
	static const char *const fields[] = {"cluster", "complete", NULL};
	struct quota_event event = {.kind = kind};
	const char *cluster;

	if (!json_only_fields(v, fields, err) || !json_get_str(v, "cluster", &cluster, err))
		return false;
	if (!json_is_boolean(json_object_get(v, "complete")))
		return err_set(err, ERR_INVALID, "complete is true or false");
	event.complete = json_is_true(json_object_get(v, "complete"));
	event.cluster = quota_book_cluster(s->b, cluster);
	if (event.cluster == QUOTA_NONE)
		return err_set(err, ERR_INVALID, "there is no cluster \"%.100s\"", cluster);
	return book_step_engine(s, &event, err);
}

static bool
named_event(struct book_step *s, const char *name, const json_t *v, struct err *err)
{
	static const struct {
		const char *name;
		enum quota_event_kind kind;
		bool (*plain)(struct book_step *, enum quota_event_kind, const json_t *, struct err *);
		bool (*read)(struct book_step *, const json_t *, struct err *);
	} events[] = {
		{"submit", QUOTA_SUBMIT, NULL, book_submit},
		{"tick", QUOTA_TICK, tick_event, NULL},
		{"finish", QUOTA_FINISH, ids_event, NULL},
		{"release", QUOTA_RELEASE, release_event, NULL},
		{"empty", QUOTA_EMPTY, ids_event, NULL},
		{"drain", QUOTA_DRAIN, ids_event, NULL},
		{"enforce", QUOTA_ENFORCE, ids_event, NULL},
		{"confirm", QUOTA_CONFIRM, confirm_event, NULL},
		{"heartbeat", QUOTA_HEARTBEAT, ids_event, NULL},
		{"cancel", QUOTA_CANCEL, ids_event, NULL},
		{"node_lost", QUOTA_NODE_LOST, nodes_event, NULL},
		{"node_back", QUOTA_NODE_BACK, nodes_event, NULL},
		{"gpu_lost", QUOTA_GPU_LOST, gpu_event, NULL},
		{"gpu_back", QUOTA_GPU_BACK, gpu_event, NULL},
		{"layout", QUOTA_LAYOUT, NULL, book_layout},
		{"exception", QUOTA_EXCEPTION, exception_event, NULL},
		{"exception_end", QUOTA_EXCEPTION_END, ids_event, NULL},
		{"policy", QUOTA_POLICY, NULL, book_policy},
		{"nodes", QUOTA_POLICY, NULL, book_nodes},
		{"budgets", QUOTA_POLICY, NULL, book_budgets},
		{"clock", QUOTA_CLOCK, clock_event, NULL},
		{"renew", QUOTA_RENEW, ids_event, NULL},
		{"adopt", QUOTA_ADOPT, NULL, book_adopt},
		{"adoption", QUOTA_ADOPTION, adoption_event, NULL},
		{"unfence", QUOTA_UNFENCE, unfence_event, NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(events); i++)
		if (strcmp(events[i].name, name) == 0)
			return events[i].read ? events[i].read(s, v, err) : events[i].plain(s, events[i].kind, v, err);
	return err_set(err, ERR_INVALID, "\"%.40s\" is not an event", name);
}

bool
quota_book_step(struct quota_book *b, int64_t now_ns, const char *event, size_t len, struct quota_outcome **ret,
                struct err *err)
{
	owned(json) json_t *doc = NULL;
	owned(quota_outcome) struct quota_outcome *out = mem_alloc(sizeof(*out));
	struct book_step s = {.b = b, .now_ns = now_ns, .out = out};
	const char *name;
	json_t *value;
	bool ok = false;

	if (!json_parse_max("event", event, len, QUOTA_EVENT_MAX_BYTES, &doc, err))
		return false;
	if (!json_is_object(doc) || json_object_size(doc) != 1)
		return err_set(err, ERR_INVALID, "event: an object with one member is expected");
	if (now_ns < 0 || now_ns > BOOK_MAX_NS)
		return err_set(err, ERR_INVALID, "event: the time %" PRId64 " is out of range", now_ns);
	json_object_foreach(doc, name, value) ok =
		named_event(&s, name, value, err) || err_prefix(err, "event %.40s", name);
	quota_memory_free(s.m);
	if (ok)
		*ret = take(out);
	return ok;
}

bool
quota_book_try(const struct quota_book *b, int64_t now_ns, const char *event, size_t len, struct quota_outcome **ret,
               struct err *err)
{
	owned(quota_book) struct quota_book *c = quota_book_clone(b);

	return quota_book_step(c, now_ns, event, len, ret, err);
}

struct quota_outcome *
quota_book_explain(const struct quota_book *b, int64_t now_ns, const char *request_id)
{
	return quota_explain(b->state, now_ns, request_id);
}

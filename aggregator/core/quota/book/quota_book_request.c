/* aggregator/core/quota/book/quota_book_request.c - requests by names. A faulty request does not spoil its batch: the engine, or the book where the workspace is
 * unknown, rejects that one by rule 1. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/quota/book/quota_book_state.h"

#define MAX_REQUESTS 100000u
#define FAULT_MAX 8192u
#define MAX_SECONDS INT64_C(100000000)
#define MAX_AMOUNT (INT64_C(1) << 60)
#define COST_PER_MICRO 10000 /* costs are in hundredths */

struct asked {
	struct quota_request r;
	const char *fault; /* why the rules cannot be asked, or NULL */
	/* for the user, with the value and the choices; NULL: the fault says it all */
	const char *told, *remedy;
	size_t fields; /* that were understood */
};

/* ---- fields ------------------------------------------------------------------------------------------------------------ */

static const char *
text(const json_t *o, const char *key, struct asked *a)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return NULL;
	a->fields++;
	if (!json_is_string(v))
		a->fault = "a field is no text";
	return json_string_value(v);
}

static bool
number(const json_t *o, const char *key, int64_t min, int64_t max, struct asked *a, int64_t *ret)
{
	const json_t *v = json_object_get(o, key);
	int64_t value = json_integer_value(v);

	if (!v)
		return false;
	a->fields++;
	if (!json_is_integer(v) || value < min || value > max) {
		a->fault = "a number is out of range";
		return false;
	}
	*ret = value;
	return true;
}

/* ---- shape and count ------------------------------------------------------------------------------------------------- */

/* "A", "A or B", "A, B or C". */
static void
add_choice(struct buf *out, const char *name, size_t i, size_t count)
{
	buf_str(out, i == 0 ? "" : i + 1 == count ? " or " : ", ");
	buf_str(out, name);
}

static bool
may_use_model(const struct book_step *s, const struct asked *a, int32_t model)
{
	const struct book_names *n = s->b->names;

	for (size_t i = 0; i < n->shapes.count; i++)
		if (BOOK_AT(n->shapes, book_shape, i)->in.model == model &&
		    quota_may_use_shape(s->b->state, a->r.workspace, a->r.cluster, (int32_t)i))
			return true;
	return false;
}

/* No model is named, or one that there is not: the choices are those that the workspace may use. */
static void
fault_in_model(struct book_step *s, const char *model, struct asked *a)
{
	const struct book_names *n = s->b->names;
	const char **usable = quota_keep(&s->m, n->models.count + 1, sizeof(*usable));
	in_place(buf) struct buf told = {0}, remedy = {0};
	size_t count = 0;

	buf_init(&told, FAULT_MAX);
	buf_init(&remedy, FAULT_MAX);
	for (size_t i = 0; i < n->models.count; i++)
		if (may_use_model(s, a, (int32_t)i))
			usable[count++] = BOOK_AT(n->models, book_name, i)->text;
	if (model)
		buf_printf(&told, "there is no gpu_model \"%.64s\"", model);
	else
		buf_str(&told, "it names no gpu_model, and there are several");
	buf_str(&remedy, count > 0 ? "name a gpu_model: " : "add nodes that its workspace may use");
	for (size_t i = 0; i < count; i++)
		add_choice(&remedy, usable[i], i, count);
	a->told = quota_keep_text(&s->m, buf_text(&told));
	a->remedy = quota_keep_text(&s->m, buf_text(&remedy));
}

static void
add_shape(struct buf *out, const struct book_shape *shape, size_t i, size_t count)
{
	char name[2 * QUOTA_NAME_SIZE] = "whole GPUs";

	if (shape->in.kind == QUOTA_REPLICA)
		snprintf(name, sizeof(name), "replicas of %" PRId64, UNITS_PER_GPU / shape->in.units);
	else if (shape->in.kind == QUOTA_MIG)
		snprintf(name, sizeof(name), "the profile %s", shape->name);
	add_choice(out, name, i, count);
}

/* The model is there, but no GPU of it was ever cut like this. */
static void
fault_in_shape(struct book_step *s, int32_t model, struct asked *a)
{
	const struct book_names *n = s->b->names;
	const struct book_shape **usable = quota_keep(&s->m, n->shapes.count + 1, sizeof(*usable));
	in_place(buf) struct buf told = {0}, remedy = {0};
	size_t count = 0;

	buf_init(&told, FAULT_MAX);
	buf_init(&remedy, FAULT_MAX);
	for (size_t i = 0; i < n->shapes.count; i++) {
		const struct book_shape *shape = BOOK_AT(n->shapes, book_shape, i);

		if (shape->in.model == model &&
		    quota_may_use_shape(s->b->state, a->r.workspace, a->r.cluster, (int32_t)i))
			usable[count++] = shape;
	}
	buf_printf(&told, "no GPU of %s is cut like this", BOOK_AT(n->models, book_name, model)->text);
	buf_str(&remedy, count > 0 ? "ask for " : "add nodes that its workspace may use");
	for (size_t i = 0; i < count; i++)
		add_shape(&remedy, usable[i], i, count);
	a->told = quota_keep_text(&s->m, buf_text(&told));
	a->remedy = quota_keep_text(&s->m, buf_text(&remedy));
}

static int32_t
the_shape(const struct book_names *n, const json_t *o, int32_t model, int64_t *count, struct asked *a)
{
	const char *profile = text(o, "profile", a);
	int64_t of = 0;
	char name[24];

	if (profile) {
		*count = 1;
		(void)number(o, "count", 0, QUOTA_MAX_COUNT, a, count);
		return book_find_shape(n, model, QUOTA_MIG, profile);
	}
	if (number(o, "replicas", 0, QUOTA_MAX_COUNT, a, count)) {
		(void)number(o, "of", 2, UNITS_PER_GPU, a, &of);
		snprintf(name, sizeof(name), "1/%" PRId64, of);
		return book_find_shape(n, model, QUOTA_REPLICA, name);
	}
	if (!number(o, "gpus", 0, QUOTA_MAX_COUNT, a, count))
		a->fault = a->fault ? a->fault : "gpus, profile or replicas is missing";
	return book_find_shape(n, model, QUOTA_WHOLE, "");
}

static void
read_shape(struct book_step *s, const json_t *o, struct asked *a)
{
	const struct book_names *n = s->b->names;
	const char *model = text(o, "model", a);
	int32_t m = model ? book_find(&n->models, model) : n->models.count == 1 ? 0 : QUOTA_NONE;
	int64_t count = 0, per_node = 0;

	a->r.shape = the_shape(n, o, m, &count, a);
	a->r.count = (int32_t)count;
	(void)number(o, "per_node", 0, QUOTA_MAX_COUNT, a, &per_node);
	a->r.per_node = (int32_t)per_node;
	if (m == QUOTA_NONE) {
		a->fault = model ? "unknown model" : "which model?";
		fault_in_model(s, model, a);
	} else if (a->r.shape == QUOTA_NONE) {
		a->fault = "no GPU was ever cut like this";
		fault_in_shape(s, m, a);
	}
}

static void
read_priority(const struct book_names *n, const json_t *o, struct asked *a)
{
	const char *name = text(o, "class", a);
	const json_t *preemptible = json_object_get(o, "preemptible");
	int64_t priority = 0;

	a->r.klass = QUOTA_NONE;
	a->r.preemptible = true;
	if (name) {
		int32_t i = book_find(&n->classes, name);

		if (i == QUOTA_NONE || BOOK_AT(n->classes, book_class, i)->gone) {
			a->fault = "unknown priority class";
		} else {
			a->r.klass = i;
			priority = BOOK_AT(n->classes, book_class, i)->value;
			a->r.preemptible = BOOK_AT(n->classes, book_class, i)->preemptible;
		}
	}
	(void)number(o, "priority", -QUOTA_MAX_PRIORITY, QUOTA_MAX_PRIORITY, a, &priority);
	a->r.priority = (int32_t)priority;
	if (preemptible) {
		a->fields++;
		a->r.preemptible = json_is_true(preemptible);
		if (!json_is_boolean(preemptible))
			a->fault = "preemptible is true or false";
	}
}

/* On demand for as long as it is expected to run, rounded up to the next hundredth. */
static int64_t
cost_of(const struct book_names *n, const struct quota_request *r)
{
	const struct quota_shape *shape = &BOOK_AT(n->shapes, book_shape, r->shape)->in;
	int32_t tenant = BOOK_AT(n->workspaces, book_workspace, r->workspace)->tenant;
	int64_t micros, units;
	int128 each, sum;

	book_price_of(n, tenant, r->shape, &micros, &units);
	each = (int128)units * 3600 * COST_PER_MICRO;
	sum = (int128)r->expected_s * r->count * shape->units * micros;
	sum = (sum + each - 1) / each;
	return sum > MAX_AMOUNT ? MAX_AMOUNT : (int64_t)sum;
}

/* Its age in the queue of its scheduler. */
static void
read_age(const json_t *o, struct asked *a)
{
	int64_t now_ns = a->r.submitted_ns;

	if (!number(o, "queued_since_ns", 0, BOOK_MAX_NS, a, &a->r.submitted_ns))
		return;
	if (a->r.submitted_ns > now_ns)
		a->r.submitted_ns = now_ns;
	if (now_ns - a->r.submitted_ns > QUOTA_QUEUED_MAX_NS)
		a->r.submitted_ns = now_ns - QUOTA_QUEUED_MAX_NS;
}

static void
read_rest(const struct book_names *n, const json_t *o, struct asked *a)
{
	int64_t in_ns = 0;
	bool priced;

	(void)number(o, "expected_s", 0, MAX_SECONDS, a, &a->r.expected_s);
	(void)number(o, "expires_ns", 0, BOOK_MAX_NS, a, &a->r.expires_ns);
	if (number(o, "expires_in_ns", 1, MAX_AMOUNT, a, &in_ns))
		a->r.expires_ns = in_ns < BOOK_MAX_NS - a->r.submitted_ns ? a->r.submitted_ns + in_ns : BOOK_MAX_NS;
	(void)number(o, "cpu_millis", 0, MAX_AMOUNT, a, &a->r.other[QUOTA_CPU]);
	(void)number(o, "memory_bytes", 0, MAX_AMOUNT, a, &a->r.other[QUOTA_MEMORY]);
	(void)number(o, "storage_bytes", 0, MAX_AMOUNT, a, &a->r.other[QUOTA_STORAGE]);
	read_age(o, a);
	a->r.reason = text(o, "reason", a);
	if (a->r.reason && strlen(a->r.reason) >= QUOTA_REASON_SIZE)
		a->fault = "a reason has at most 128 bytes";
	priced = number(o, "cost", 0, MAX_AMOUNT, a, &a->r.cost);
	if (!a->fault && !priced)
		a->r.cost = cost_of(n, &a->r);
	if (!a->fault && a->fields != json_object_size(o))
		a->fault = "a field is not known";
}

/* Workspace and cluster; QUOTA_NONE where one is not known. */
static void
read_where(const struct book_names *n, const json_t *o, struct asked *a)
{
	const char *path = text(o, "workspace", a), *cluster = text(o, "cluster", a);
	const struct book_workspace *w;

	a->r.workspace = path ? book_find(&n->workspaces, path) : QUOTA_NONE;
	a->r.cluster = QUOTA_NONE;
	if (a->r.workspace == QUOTA_NONE || BOOK_AT(n->workspaces, book_workspace, a->r.workspace)->gone) {
		a->r.workspace = QUOTA_NONE;
		a->fault = "unknown workspace";
		return;
	}
	w = BOOK_AT(n->workspaces, book_workspace, a->r.workspace);
	if (cluster)
		a->r.cluster = book_find(&n->clusters, cluster);
	else
		a->r.cluster = w->home == QUOTA_NONE && n->clusters.count == 1 ? 0 : w->home;
	if (a->r.cluster == QUOTA_NONE)
		a->fault = cluster ? "unknown cluster" : "which cluster?";
}

/* The book's time never goes back. */
static int64_t
step_time(const struct book_step *s)
{
	int64_t book_ns = quota_book_now(s->b);

	return s->now_ns > book_ns ? s->now_ns : book_ns;
}

/* others: members beside those of a request. */
static bool
read_request(struct book_step *s, const json_t *o, size_t others, struct asked *ret, struct err *err)
{
	const struct book_names *n = s->b->names;
	const char *id = json_string_value(json_object_get(o, "id"));

	if (!id || id[0] == '\0' || strlen(id) >= QUOTA_ID_SIZE)
		return err_set(err, ERR_INVALID, "a request has an id of 1 to %d bytes", QUOTA_ID_SIZE - 1);
	*ret = (struct asked){.fields = 1 + others};
	ret->r.id = id;
	ret->r.submitted_ns = step_time(s);
	read_where(n, o, ret);
	if (ret->r.workspace == QUOTA_NONE || ret->r.cluster == QUOTA_NONE)
		return true;
	read_shape(s, o, ret);
	read_priority(n, o, ret);
	read_rest(n, o, ret);
	/* A faulty request is submitted without devices: the engine knows whether its workspace is enforced. */
	if (ret->fault)
		ret->r = (struct quota_request){.id = id,
		                                .workspace = ret->r.workspace,
		                                .cluster = ret->r.cluster,
		                                .shape = QUOTA_NONE,
		                                .klass = QUOTA_NONE,
		                                .submitted_ns = ret->r.submitted_ns};
	return true;
}

/* ---- the batch --------------------------------------------------------------------------------------------------------- */

static void
reject(struct book_step *s, const struct asked *a)
{
	struct quota_outcome *o = s->out;
	struct quota_verdict *v;

	o->verdicts = mem_grow(o->verdicts, o->verdict_count + 1, sizeof(*o->verdicts));
	v = &o->verdicts[o->verdict_count++];
	*v = (struct quota_verdict){
		.workspace = a->r.workspace,
		.decision = QUOTA_REJECT,
		.would = QUOTA_REJECT,
		.shape = QUOTA_NONE,
		.changes = {{.kind = QUOTA_CHANGE_REQUEST, .rule = QUOTA_RULE_VALID, .scope = QUOTA_SCOPE_REQUEST}},
		.change_count = 1,
		.check_count = 1};
	memcpy(v->id, a->r.id, strlen(a->r.id));
	v->checks = mem_array(1, sizeof(*v->checks));
	v->checks[0] = (struct quota_check){.rule = QUOTA_RULE_VALID, .scope = QUOTA_SCOPE_REQUEST};
}

/* Work of a workspace that is not enforced runs, but its devices cannot be counted: it has no lease. */
static void
tell_faults(struct book_step *s, const struct asked *asked, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (asked[i].fault)
			book_notice(s, QUOTA_REFUSED, asked[i].r.id, asked[i].fault);
	for (size_t i = 0; i < s->out->verdict_count; i++) {
		struct quota_verdict *v = &s->out->verdicts[i];

		for (size_t k = 0; k < count; k++) {
			if (!asked[k].fault || strcmp(asked[k].r.id, v->id) != 0)
				continue;
			mem_free(v->fault);
			v->fault = mem_strdup(asked[k].told ? asked[k].told : asked[k].fault);
			v->remedy = asked[k].remedy ? mem_strdup(asked[k].remedy) : NULL;
			if (v->decision != QUOTA_REJECT)
				book_notice(s, QUOTA_LEASE_RETURNED, v->id, "");
		}
	}
}

bool
book_submit(struct book_step *s, const json_t *v, struct err *err)
{
	size_t count = json_array_size(v), known = 0, faults = 0;
	struct asked *asked = quota_keep(&s->m, count, sizeof(*asked));
	struct quota_request *requests = quota_keep(&s->m, count, sizeof(*requests));
	struct quota_event event = {.kind = QUOTA_SUBMIT, .requests = requests};

	if (!json_is_array(v) || count > MAX_REQUESTS)
		return err_set(err, ERR_INVALID, "a batch is a list of at most %u requests", MAX_REQUESTS);
	for (size_t i = 0; i < count; i++) {
		if (!read_request(s, json_array_get(v, i), 0, &asked[i], err))
			return false;
		faults += asked[i].fault != NULL;
		if (asked[i].r.cluster != QUOTA_NONE)
			requests[known++] = asked[i].r;
	}
	event.request_count = known;
	if (!book_step_engine(s, &event, err))
		return false;
	for (size_t i = 0; i < count; i++)
		if (asked[i].r.cluster == QUOTA_NONE)
			reject(s, &asked[i]);
	if (faults > 0)
		tell_faults(s, asked, count);
	return true;
}

/* ---- adoption ---------------------------------------------------------------------------------------------------------- */

/* Its parts on nodes that are known. A GPU that is not is anywhere on its node. */
static bool
read_parts(struct book_step *s, const json_t *list, struct quota_lease *ret, struct err *err)
{
	size_t count = json_array_size(list);
	struct quota_part *parts = quota_keep(&s->m, count, sizeof(*parts));

	if (list && (!json_is_array(list) || count > QUOTA_MAX_COUNT))
		return err_set(err, ERR_INVALID, "parts are a list of at most %d", QUOTA_MAX_COUNT);
	ret->parts = parts;
	for (size_t i = 0; i < count; i++) {
		const json_t *o = json_array_get(list, i), *gpu = json_object_get(o, "gpu");
		const char *node = json_string_value(json_object_get(o, "node"));
		int64_t devices = json_integer_value(json_object_get(o, "count"));
		struct quota_part *p = &parts[ret->part_count];

		if (!node || json_object_size(o) != 2u + (gpu != NULL) || devices < 1 || devices > QUOTA_MAX_COUNT ||
		    (gpu && !json_is_string(gpu) && !json_is_integer(gpu)))
			return err_set(err, ERR_INVALID,
			               "part %zu is no node, GPU by position or UUID, and count of 1 to %d", i,
			               QUOTA_MAX_COUNT);
		*p = (struct quota_part){.node = quota_book_node(s->b, node),
		                         .gpu = QUOTA_NONE,
		                         .shape = ret->shape,
		                         .count = (int32_t)devices};
		if (p->node == QUOTA_NONE)
			continue;
		if (json_is_string(gpu))
			p->gpu = quota_book_gpu(s->b, p->node, json_string_value(gpu));
		else if (gpu && json_integer_value(gpu) >= 0 &&
		         (size_t)json_integer_value(gpu) < BOOK_AT(s->b->names->nodes, book_node, p->node)->gpu_count)
			p->gpu = (int32_t)json_integer_value(gpu);
		ret->part_count++;
	}
	return true;
}

bool
book_adopt(struct book_step *s, const json_t *v, struct err *err)
{
	const json_t *started = json_object_get(v, "started_ns"), *parts = json_object_get(v, "parts");
	struct quota_lease lease = {.node = QUOTA_NONE};
	struct quota_event event = {.kind = QUOTA_ADOPT, .adopted = &lease};
	struct asked a;

	if (!json_is_object(v))
		return err_set(err, ERR_INVALID, "an object is expected");
	if (!read_request(s, v, (size_t)(started != NULL) + (parts != NULL), &a, err))
		return false;
	if (a.fault)
		return err_set(err, ERR_INVALID, "lease %s: %s", a.r.id, a.told ? a.told : a.fault);
	if (started &&
	    (!json_is_integer(started) || json_integer_value(started) < 0 || json_integer_value(started) > BOOK_MAX_NS))
		return err_set(err, ERR_INVALID, "lease %s: started_ns is out of range", a.r.id);
	lease.id = a.r.id;
	lease.workspace = a.r.workspace;
	lease.cluster = a.r.cluster;
	lease.shape = a.r.shape;
	lease.count = a.r.count;
	lease.priority = a.r.priority;
	lease.preemptible = a.r.preemptible;
	lease.since_ns = started ? json_integer_value(started) : step_time(s);
	lease.unit_seconds = a.r.count * BOOK_AT(s->b->names->shapes, book_shape, a.r.shape)->in.units * a.r.expected_s;
	lease.cost = a.r.cost;
	memcpy(lease.other, a.r.other, sizeof(lease.other));
	if (!read_parts(s, parts, &lease, err))
		return false;
	event.is_elsewhere = lease.part_count == 0 && json_array_size(parts) > 0;
	return book_step_engine(s, &event, err);
}

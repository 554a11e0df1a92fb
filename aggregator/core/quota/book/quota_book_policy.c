/* aggregator/core/quota/book/quota_book_policy.c - a whole policy by names, and the consumed part of budgets.
 *
 * Positions never change. Tenants, workspaces and classes that the new policy does not name are gone: requests that
 * name them are not valid, and their waiting requests are never admitted. */
#include <string.h>

#include "aggregator/core/quota/book/quota_book_state.h"

#define MAX_PRICE_MICROS INT64_C(1000000000000)

struct reader {
	struct book_step *s;
	struct book_names *names;
	const json_t *doc;
	struct quota_policy policy;
	struct quota_tenant *tenants;
	struct quota_workspace *workspaces;
};

/* ---- fields ------------------------------------------------------------------------------------------------------------ */

/* An amount: where it is missing *ret stays, null is no limit. */
static bool
amount(const json_t *o, const char *key, int64_t *ret, struct err *err)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return true;
	if (json_is_null(v))
		*ret = QUOTA_UNLIMITED;
	else if (json_is_integer(v) && json_integer_value(v) >= 0)
		*ret = json_integer_value(v);
	else
		return err_set(err, ERR_INVALID, "%s is neither null nor a whole number from 0", key);
	return true;
}

static bool
choice(const json_t *o, const char *key, const char *const *words, int *ret, struct err *err)
{
	const char *text = json_string_value(json_object_get(o, key));

	if (!json_object_get(o, key))
		return true;
	for (int i = 0; text && words[i]; i++)
		if (strcmp(words[i], text) == 0) {
			*ret = i;
			return true;
		}
	return err_set(err, ERR_INVALID, "%s \"%.40s\" is not known", key, text ? text : "");
}

static bool
flag(const json_t *o, const char *key, bool *ret, struct err *err)
{
	const json_t *v = json_object_get(o, key);

	if (v)
		*ret = json_is_true(v);
	return !v || json_is_boolean(v) || err_set(err, ERR_INVALID, "%s is neither true nor false", key);
}

/* The position of the thing that a member names. */
static bool
named(const struct book_list *l, const json_t *o, const char *key, int32_t *ret, struct err *err)
{
	const char *text = json_string_value(json_object_get(o, key));

	*ret = text ? book_find(l, text) : QUOTA_NONE;
	return *ret != QUOTA_NONE || err_set(err, ERR_INVALID, "%s \"%.100s\" is not known", key, text ? text : "");
}

/* ---- names ------------------------------------------------------------------------------------------------------------- */

static bool
read_plain_names(struct reader *r, struct err *err)
{
	const json_t *list;
	size_t count;
	int32_t at;

	if (!book_list_read(r->doc, "clusters", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++) {
		const char *name = json_string_value(json_array_get(list, i));

		if (!book_add(&r->names->clusters, "cluster", name ? name : "", QUOTA_NAME_SIZE, &at, err))
			return false;
	}
	if (!book_list_read(r->doc, "models", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++) {
		const char *name = json_string_value(json_array_get(list, i));

		if (!book_add_model(r->names, name ? name : "", &at, err))
			return false;
	}
	return true;
}

static bool
read_shapes(struct reader *r, struct err *err)
{
	const json_t *list;
	size_t count;

	if (!book_list_read(r->doc, "shapes", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++) {
		int32_t model, shape;

		if (!named(&r->names->models, json_array_get(list, i), "model", &model, err) ||
		    !book_read_shape(r->names, model, json_array_get(list, i), &shape, err))
			return err_prefix(err, "shape %zu", i);
	}
	return true;
}

/* A class that is gone makes room when there are as many as there may be. */
static bool
add_class(struct book_names *n, const char *name, int32_t *ret, struct err *err)
{
	struct book_list *l = &n->classes;

	if (l->count < LIMIT_CLASSES || book_find(l, name) != QUOTA_NONE)
		return book_add(l, "priority class", name, QUOTA_NAME_SIZE, ret, err);
	for (size_t i = 0; i < l->count; i++) {
		struct book_class *c = BOOK_AT(*l, book_class, i);

		if (!c->gone)
			continue;
		hash_remove(&l->ids, hash_text(HASH_START, c->text), i);
		*c = (struct book_class){0};
		memcpy(c->text, name, strnlen(name, QUOTA_NAME_SIZE - 1));
		hash_add(&l->ids, hash_text(HASH_START, c->text), i);
		*ret = (int32_t)i;
		return true;
	}
	return err_set(err, ERR_INVALID, "there are more than %d priority classes", LIMIT_CLASSES);
}

static bool
read_classes(struct reader *r, struct err *err)
{
	const json_t *list;
	size_t count;

	if (!book_list_read(r->doc, "classes", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < r->names->classes.count; i++)
		BOOK_AT(r->names->classes, book_class, i)->gone = true;
	/* Those that stay first, so that none of them makes room. */
	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < count; i++) {
			const json_t *o = json_array_get(list, i);
			const char *name = json_string_value(json_object_get(o, "name"));
			int64_t value = json_integer_value(json_object_get(o, "value"));
			struct book_class *c;
			int32_t at;

			if (!name || name[0] == '\0' || strlen(name) >= QUOTA_NAME_SIZE ||
			    value < -QUOTA_MAX_PRIORITY || value > QUOTA_MAX_PRIORITY)
				return err_set(err, ERR_INVALID, "priority class %zu has no name or value", i);
			if (pass == 0 && book_find(&r->names->classes, name) == QUOTA_NONE)
				continue;
			if (!add_class(r->names, name, &at, err))
				return false;
			c = BOOK_AT(r->names->classes, book_class, at);
			c->value = (int32_t)value;
			c->preemptible = true;
			c->gone = false;
			if (!flag(o, "preemptible", &c->preemptible, err))
				return err_prefix(err, "priority class %zu", i);
		}
	r->policy.class_count = r->names->classes.count;
	return true;
}

static bool
read_people_names(struct reader *r, struct err *err)
{
	const json_t *list;
	size_t count;
	int32_t at;

	for (size_t i = 0; i < r->names->tenants.count; i++)
		BOOK_AT(r->names->tenants, book_name, i)->gone = true;
	for (size_t i = 0; i < r->names->workspaces.count; i++)
		BOOK_AT(r->names->workspaces, book_workspace, i)->gone = true;
	if (!book_list_read(r->doc, "tenants", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++) {
		const char *name = json_string_value(json_object_get(json_array_get(list, i), "name"));

		if (!book_add(&r->names->tenants, "tenant", name ? name : "", QUOTA_NAME_SIZE, &at, err))
			return false;
		BOOK_AT(r->names->tenants, book_name, at)->gone = false;
	}
	if (!book_list_read(r->doc, "workspaces", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++) {
		const char *path = json_string_value(json_object_get(json_array_get(list, i), "path"));
		const char *slash = path ? strchr(path, '/') : NULL;
		char tenant[QUOTA_NAME_SIZE] = {0};
		struct book_workspace *w;
		int32_t owner;

		if (!slash || (size_t)(slash - path) >= sizeof(tenant) || slash[1] == '\0' ||
		    strlen(slash + 1) >= QUOTA_NAME_SIZE)
			return err_set(err, ERR_INVALID, "workspace %zu has no path like acme/prod", i);
		memcpy(tenant, path, (size_t)(slash - path));
		owner = book_find(&r->names->tenants, tenant);
		if (owner == QUOTA_NONE)
			return err_set(err, ERR_INVALID, "workspace %.100s has no tenant", path);
		if (!book_add(&r->names->workspaces, "workspace", path, 2 * (size_t)QUOTA_NAME_SIZE, &at, err))
			return false;
		w = BOOK_AT(r->names->workspaces, book_workspace, at);
		w->tenant = owner;
		w->gone = false;
	}
	return true;
}

/* ---- tenants, workspaces and their rights --------------------------------------------------------------------------------------------------- */

static bool
read_others(const json_t *o, int64_t *per_workload, int64_t other[QUOTA_OTHERS], struct err *err)
{
	return amount(o, "per_workload_units", per_workload, err) && amount(o, "cpu_millis", &other[QUOTA_CPU], err) &&
	       amount(o, "memory_bytes", &other[QUOTA_MEMORY], err) &&
	       amount(o, "storage_bytes", &other[QUOTA_STORAGE], err);
}

static bool
read_tenant(struct reader *r, const json_t *o, struct err *err)
{
	static const char *const isolations[] = {"shared", "mig", "gpu", "node", NULL};
	const json_t *classes = json_object_get(o, "classes");
	struct quota_tenant *t;
	int isolation = QUOTA_SHARED;
	int32_t at;

	if (!named(&r->names->tenants, o, "name", &at, err) || !choice(o, "isolation", isolations, &isolation, err))
		return false;
	t = &r->tenants[at];
	t->isolation = (enum quota_isolation)isolation;
	if (classes && !json_is_array(classes))
		return err_set(err, ERR_INVALID, "tenant %s: classes is not a list", t->name);
	t->classes.only = classes != NULL;
	for (size_t i = 0; i < json_array_size(classes); i++) {
		const char *name = json_string_value(json_array_get(classes, i));
		int32_t c = name ? book_find(&r->names->classes, name) : QUOTA_NONE;

		if (c == QUOTA_NONE)
			return err_set(err, ERR_INVALID, "tenant %s: class \"%.100s\" is not known", t->name,
			               name ? name : "");
		quota_class_allow(&t->classes, c);
	}
	return read_others(o, &t->per_workload_units, t->other_limit, err) || err_prefix(err, "tenant %s", t->name);
}

static bool
read_workspace(struct reader *r, const json_t *o, struct err *err)
{
	static const char *const reclaims[] = {"any", "lower", "never", NULL};
	static const char *const enforces[] = {"on", "warn", "off", NULL};
	int reclaim = QUOTA_RECLAIM_ANY, enforce = QUOTA_ENFORCE_ON;
	struct book_workspace *names;
	struct quota_workspace *w;
	int32_t at;

	if (!named(&r->names->workspaces, o, "path", &at, err))
		return false;
	w = &r->workspaces[at];
	names = BOOK_AT(r->names->workspaces, book_workspace, at);
	names->home = QUOTA_NONE;
	w->preempt_own = true;
	w->per_workload_units = QUOTA_UNLIMITED;
	if (!choice(o, "reclaim", reclaims, &reclaim, err) || !choice(o, "enforce", enforces, &enforce, err) ||
	    !flag(o, "preempt_own", &w->preempt_own, err) ||
	    !read_others(o, &w->per_workload_units, w->other_limit, err) ||
	    (json_object_get(o, "home") && !named(&r->names->clusters, o, "home", &names->home, err)))
		return err_prefix(err, "workspace %s", names->text);
	w->reclaim = (enum quota_reclaim)reclaim;
	w->enforce = (enum quota_enforce)enforce;
	if (json_object_get(o, "weight"))
		w->weight = json_integer_value(json_object_get(o, "weight"));
	return true;
}

static bool
read_people(struct reader *r, struct err *err)
{
	const struct book_names *n = r->names;
	const json_t *list;
	size_t count;

	r->policy.tenant_count = n->tenants.count;
	r->policy.tenants = r->tenants = quota_keep(&r->s->m, n->tenants.count, sizeof(*r->tenants));
	for (size_t i = 0; i < n->tenants.count; i++)
		r->tenants[i] =
			(struct quota_tenant){.name = BOOK_AT(n->tenants, book_name, i)->text,
		                              .per_workload_units = QUOTA_UNLIMITED,
		                              .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
	if (!book_list_read(r->doc, "tenants", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++)
		if (!read_tenant(r, json_array_get(list, i), err))
			return false;
	r->policy.workspace_count = n->workspaces.count;
	r->policy.workspaces = r->workspaces = quota_keep(&r->s->m, n->workspaces.count, sizeof(*r->workspaces));
	for (size_t i = 0; i < n->workspaces.count; i++) {
		const struct book_workspace *w = BOOK_AT(n->workspaces, book_workspace, i);

		/* One that is gone may have nothing. */
		r->workspaces[i] =
			(struct quota_workspace){.name = strchr(w->text, '/') + 1,
		                                 .tenant = w->tenant,
		                                 .preempt_own = true,
		                                 .weight = 1,
		                                 .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
	}
	if (!book_list_read(r->doc, "workspaces", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	for (size_t i = 0; i < count; i++)
		if (!read_workspace(r, json_array_get(list, i), err))
			return false;
	return true;
}

static bool
read_share(struct reader *r, const json_t *o, struct quota_share *ret, struct err *err)
{
	const char *profile = json_string_value(json_object_get(o, "reserved_profile"));

	*ret = (struct quota_share){
		.reserved_shape = QUOTA_NONE, .limit = QUOTA_DEFAULT, .borrow = QUOTA_DEFAULT, .lend = QUOTA_DEFAULT};
	if (!named(&r->names->workspaces, o, "workspace", &ret->workspace, err) ||
	    !named(&r->names->clusters, o, "cluster", &ret->cluster, err) ||
	    !named(&r->names->models, o, "model", &ret->model, err) || !flag(o, "shared", &ret->shared, err) ||
	    !amount(o, "reserved_units", &ret->reserved, err) || !amount(o, "limit_units", &ret->limit, err) ||
	    !amount(o, "borrow_units", &ret->borrow, err) || !amount(o, "lend_units", &ret->lend, err))
		return false;
	if (profile) {
		ret->reserved_shape = book_find_shape(r->names, ret->model, QUOTA_MIG, profile);
		if (ret->reserved_shape == QUOTA_NONE)
			return err_set(err, ERR_INVALID, "profile %.60s is not among the shapes", profile);
	}
	return true;
}

static bool
read_cap(struct reader *r, const json_t *o, struct quota_cap *ret, struct err *err)
{
	*ret = (struct quota_cap){.tenant = QUOTA_NONE, .maximum = QUOTA_UNLIMITED, .default_limit = QUOTA_DEFAULT};
	return (!json_object_get(o, "tenant") || named(&r->names->tenants, o, "tenant", &ret->tenant, err)) &&
	       named(&r->names->clusters, o, "cluster", &ret->cluster, err) &&
	       named(&r->names->models, o, "model", &ret->model, err) &&
	       amount(o, "maximum_units", &ret->maximum, err) &&
	       amount(o, "default_limit_units", &ret->default_limit, err);
}

/* ---- budgets and prices -------------------------------------------------------------------------------------------------- */

static bool
read_budget_key(const struct book_names *n, const json_t *o, struct quota_budget *ret, struct err *err)
{
	static const char *const kinds[] = {"unit_seconds", "money", "tokens", NULL};
	int kind = QUOTA_BUDGET_UNIT_SECONDS;

	*ret = (struct quota_budget){.workspace = QUOTA_NONE, .hard = true};
	if (!named(&n->tenants, o, "tenant", &ret->tenant, err) || !choice(o, "kind", kinds, &kind, err) ||
	    (json_object_get(o, "workspace") && !named(&n->workspaces, o, "workspace", &ret->workspace, err)))
		return false;
	ret->kind = (enum quota_budget_kind)kind;
	return true;
}

static const struct quota_budget *
find_budget(const struct quota_policy *p, const struct quota_budget *like)
{
	for (size_t i = 0; i < p->budget_count; i++)
		if (p->budgets[i].tenant == like->tenant && p->budgets[i].workspace == like->workspace &&
		    p->budgets[i].kind == like->kind)
			return &p->budgets[i];
	return NULL;
}

/* The consumed amount stays where the new policy does not give one. */
static bool
read_budgets(struct reader *r, struct quota_saved *old, struct err *err)
{
	struct quota_budget *budgets;
	const json_t *list;

	if (!book_list_read(r->doc, "budgets", QUOTA_BOOK_MAX_ROWS, &list, &r->policy.budget_count, err))
		return false;
	r->policy.budgets = budgets = quota_keep(&r->s->m, r->policy.budget_count, sizeof(*budgets));
	for (size_t i = 0; i < r->policy.budget_count; i++) {
		const json_t *o = json_array_get(list, i);
		struct quota_budget *b = &budgets[i];
		const struct quota_budget *was;

		if (!read_budget_key(r->names, o, b, err) || !amount(o, "amount", &b->amount, err) ||
		    !flag(o, "hard", &b->hard, err))
			return err_prefix(err, "budget %zu", i);
		was = find_budget(&old->world.policy, b);
		b->consumed = was ? was->consumed : 0;
		if (!amount(o, "consumed", &b->consumed, err))
			return err_prefix(err, "budget %zu", i);
	}
	return true;
}

static bool
read_prices(struct reader *r, struct err *err)
{
	struct book_price *prices;
	const json_t *list;
	size_t count;

	if (!book_list_read(r->doc, "prices", QUOTA_BOOK_MAX_ROWS, &list, &count, err))
		return false;
	prices = quota_keep(&r->s->m, count, sizeof(*prices));
	for (size_t i = 0; i < count; i++) {
		const json_t *o = json_array_get(list, i);
		const char *profile = json_string_value(json_object_get(o, "profile"));
		int64_t hour_micros = json_integer_value(json_object_get(o, "hour_micros"));
		int32_t tenant, model;

		if (!named(&r->names->tenants, o, "tenant", &tenant, err) ||
		    !named(&r->names->models, o, "model", &model, err) ||
		    !book_price_init(&prices[i], tenant, model, profile ? profile : "", hour_micros, err))
			return err_prefix(err, "price %zu", i);
		if (hour_micros > MAX_PRICE_MICROS)
			return err_set(err, ERR_INVALID, "price %zu is not from 0 to %" PRId64, i, MAX_PRICE_MICROS);
	}
	book_prices_set(r->names, prices, count);
	return true;
}

/* ---- the events ----------------------------------------------------------------------------------------------------------- */

static bool
read_rights(struct reader *r, struct err *err)
{
	struct quota_policy *p = &r->policy;
	struct quota_share *shares;
	const json_t *list;
	struct quota_cap *caps;

	if (!book_list_read(r->doc, "shares", QUOTA_BOOK_MAX_ROWS, &list, &p->share_count, err))
		return false;
	p->shares = shares = quota_keep(&r->s->m, p->share_count, sizeof(*shares));
	for (size_t i = 0; i < p->share_count; i++)
		if (!read_share(r, json_array_get(list, i), &shares[i], err))
			return err_prefix(err, "share %zu", i);
	if (!book_list_read(r->doc, "caps", QUOTA_BOOK_MAX_ROWS, &list, &p->cap_count, err))
		return false;
	p->caps = caps = quota_keep(&r->s->m, p->cap_count, sizeof(*caps));
	for (size_t i = 0; i < p->cap_count; i++)
		if (!read_cap(r, json_array_get(list, i), &caps[i], err))
			return err_prefix(err, "maximum %zu", i);
	return true;
}

/* Lists of names and shapes from the names. */
void
book_policy_names(struct book_step *s, const struct book_names *n, struct quota_policy *p)
{
	const char **clusters = quota_keep(&s->m, n->clusters.count, sizeof(*clusters));
	const char **models = quota_keep(&s->m, n->models.count, sizeof(*models));
	struct quota_shape *shapes = quota_keep(&s->m, n->shapes.count, sizeof(*shapes));

	for (size_t i = 0; i < n->clusters.count; i++)
		clusters[i] = BOOK_AT(n->clusters, book_name, i)->text;
	for (size_t i = 0; i < n->models.count; i++)
		models[i] = BOOK_AT(n->models, book_name, i)->text;
	for (size_t i = 0; i < n->shapes.count; i++) {
		shapes[i] = BOOK_AT(n->shapes, book_shape, i)->in;
		shapes[i].name = BOOK_AT(n->shapes, book_shape, i)->name;
	}
	p->clusters = clusters;
	p->cluster_count = n->clusters.count;
	p->models = models;
	p->model_count = n->models.count;
	p->shapes = shapes;
	p->shape_count = n->shapes.count;
}

bool
book_policy(struct book_step *s, const json_t *v, struct err *err)
{
	static const char *const members[] = {"settings",   "clusters", "models", "shapes",  "classes", "tenants",
	                                      "workspaces", "shares",   "caps",   "budgets", "prices",  NULL};
	owned(book_names) struct book_names *names = book_names_copy(s->b->names);
	struct reader r = {.s = s, .names = names, .doc = v};
	struct quota_saved old;
	bool ok;

	if (!json_only_fields(v, members, err))
		return false;
	quota_save(s->b->state, &old);
	ok = read_plain_names(&r, err) && read_shapes(&r, err) && read_classes(&r, err) && read_people_names(&r, err) &&
	     book_settings_read(json_object_get(v, "settings"), &s->m, &r.policy.settings, err) &&
	     read_people(&r, err) && read_rights(&r, err) && read_budgets(&r, &old, err) && read_prices(&r, err);
	quota_saved_fini(&old);
	if (!ok)
		return false;
	names->settings = r.policy.settings;
	book_policy_names(s, names, &r.policy);
	if (!book_step_engine(s, &(struct quota_event){.kind = QUOTA_POLICY, .policy = &r.policy}, err))
		return false;
	book_names_free(s->b->names);
	s->b->names = take(names);
	return true;
}

bool
book_budgets(struct book_step *s, const json_t *v, struct err *err)
{
	struct quota_budget *budgets;
	struct quota_saved saved;
	struct quota_policy *p = &saved.world.policy;
	bool ok = true;

	if (!json_is_array(v))
		return err_set(err, ERR_INVALID, "a list is expected");
	quota_save(s->b->state, &saved);
	budgets = quota_keep(&s->m, p->budget_count, sizeof(*budgets));
	for (size_t i = 0; i < p->budget_count; i++)
		budgets[i] = p->budgets[i];
	for (size_t i = 0; i < json_array_size(v) && ok; i++) {
		const json_t *o = json_array_get(v, i);
		const struct quota_budget *was;
		struct quota_budget like;

		ok = read_budget_key(s->b->names, o, &like, err) && amount(o, "consumed", &like.consumed, err);
		was = ok ? find_budget(p, &like) : NULL;
		if (was)
			budgets[was - p->budgets].consumed = like.consumed;
	}
	p->budgets = budgets;
	ok = ok && book_step_engine(s, &(struct quota_event){.kind = QUOTA_POLICY, .policy = p}, err);
	quota_saved_fini(&saved);
	return ok;
}

/* aggregator/core/policy/policy_to_quota.c - the policy in force as an event of the quota book. The rules are numbered in the header. */
#include "aggregator/core/policy/policy_to_quota.h"

#include <string.h>

#include "common/conf/json.h"

static void
text(struct buf *out, const char *key, const char *value)
{
	buf_printf(out, "\"%s\":", key);
	json_write_string(value, out);
}

static void
names(struct buf *out, const char *key, const char *const *at, size_t count)
{
	buf_printf(out, ",\"%s\":[", key);
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			buf_char(out, ',');
		json_write_string(at[i], out);
	}
	buf_char(out, ']');
}

static void
resources(struct buf *out, const struct policy_resources *r)
{
	if (r->cpu_millis >= 0)
		buf_printf(out, ",\"cpu_millis\":%" PRId64, r->cpu_millis);
	if (r->memory_bytes >= 0)
		buf_printf(out, ",\"memory_bytes\":%" PRId64, r->memory_bytes);
	if (r->storage_bytes >= 0)
		buf_printf(out, ",\"storage_bytes\":%" PRId64, r->storage_bytes);
}

static void
write_settings(const struct quota_settings *s, struct buf *out)
{
	buf_printf(out,
	           "{\"policy\":{\"settings\":{\"burst\":%" PRId64 ",\"grace_ns\":%" PRId64 ",\"aging_ns\":%" PRId64
	           ",\"head_wait_ns\":%" PRId64 ",\"backoff_ns\":%" PRId64 ",\"backoff_forget_ns\":%" PRId64
	           ",\"confirm_ns\":%" PRId64 ",\"silence_ns\":%" PRId64 ",\"unused_most_ns\":%" PRId64 "}",
	           s->burst, s->grace_ns, s->aging_ns, s->head_wait_ns, s->backoff_ns, s->backoff_forget_ns,
	           s->confirm_ns, s->silence_ns, s->unused_most_ns);
}

static void
write_shapes_and_classes(const struct in_force_policy *p, struct buf *out)
{
	buf_str(out, ",\"shapes\":[");
	for (size_t i = 0; i < p->shape_count; i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "model", p->shapes[i].model);
		buf_char(out, ',');
		text(out, "profile", p->shapes[i].profile);
		buf_printf(out, ",\"units\":%" PRId64 "}", p->shapes[i].units);
	}
	buf_str(out, "],\"classes\":[");
	for (size_t i = 0; i < p->class_count; i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "name", p->classes[i].name);
		buf_printf(out, ",\"value\":%" PRId64 ",\"preemptible\":%s}", p->classes[i].value,
		           p->classes[i].preemptible ? "true" : "false");
	}
	buf_char(out, ']');
}

static void
write_tenants_and_workspaces(const struct in_force_policy *p, struct buf *out)
{
	buf_str(out, ",\"tenants\":[");
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct in_force_tenant *t = &p->tenants[i];

		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "name", t->name);
		buf_char(out, ',');
		text(out, "isolation", t->isolation);
		if (t->classes)
			names(out, "classes", t->classes, t->class_count);
		resources(out, &t->limits);
		buf_char(out, '}');
	}
	buf_str(out, "],\"workspaces\":[");
	for (size_t i = 0; i < p->workspace_count; i++) {
		const struct in_force_workspace *w = &p->workspaces[i];

		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "path", w->path);
		buf_char(out, ',');
		text(out, "home", w->home);
		buf_char(out, ',');
		text(out, "reclaim", w->reclaim);
		buf_printf(out, ",\"preempt_own\":%s,", w->preempt_own ? "true" : "false");
		text(out, "enforce", w->enforce);
		buf_printf(out, ",\"weight\":%" PRId64, w->weight);
		resources(out, &w->limits);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

/* ---- shares and caps --------------------------------------------------------------------------------------------------------- */

struct amounts {
	const struct in_force_amount *at;
	size_t count;
};

/* Those of an owner. Owners are asked for in the order of the list; *next is where the search goes on. */
static struct amounts
amounts_of(const struct in_force_amount *all, size_t count, const char *owner, size_t *next)
{
	size_t first;

	while (*next < count && strcmp(all[*next].owner, owner) < 0)
		++*next;
	first = *next;
	while (*next < count && strcmp(all[*next].owner, owner) == 0)
		++*next;
	return (struct amounts){all + first, *next - first};
}

/* Rule 5. The amount of a kind for a model, as a member; false: there is none. */
static bool
write_amount(const struct amounts *a, enum in_force_kind kind, const char *model, const char *key, struct buf *out)
{
	const struct in_force_amount *q = NULL;
	int64_t units;

	for (size_t i = 0; i < a->count && !q; i++)
		if (a->at[i].kind == kind && quantity_model_fits(a->at[i].model, model))
			q = &a->at[i];
	if (!q)
		return false;
	if (q->units >= 0)
		buf_printf(out, ",\"%s\":%" PRId64, key, q->units);
	else if (q->profile[0] == '\0')
		buf_printf(out, ",\"%s\":null", key);
	else if (quantity_profile_units(model, q->profile, &units, NULL))
		buf_printf(out, ",\"%s\":%" PRId64, key, units * q->instances);
	else
		return false;
	return true;
}

/* The shares of one workspace. */
struct share_writer {
	const struct in_force_policy *p;
	const struct in_force_workspace *w;
	struct amounts limits;
	const struct in_force_reservation *reserved;
	size_t reserved_count;
	bool *any; /* the list has an entry */
	struct buf *out;
};

static const struct in_force_reservation *
find_reserved(const struct share_writer *s, const char *cluster, const char *model, bool shared)
{
	for (size_t i = 0; i < s->reserved_count; i++)
		if (strcmp(s->reserved[i].cluster, cluster) == 0 && strcmp(s->reserved[i].model, model) == 0 &&
		    s->reserved[i].shared == shared)
			return &s->reserved[i];
	return NULL;
}

static bool
is_pool(const struct share_writer *s, const char *cluster, const char *model, bool shared)
{
	const char *tenant = shared ? "" : s->w->tenant;

	for (size_t i = 0; i < s->p->pool_count; i++)
		if (strcmp(s->p->pools[i].cluster, cluster) == 0 && strcmp(s->p->pools[i].tenant, tenant) == 0 &&
		    strcmp(s->p->pools[i].model, model) == 0)
			return true;
	return false;
}

static void
write_share(const struct share_writer *s, const char *cluster, const char *model, bool shared)
{
	const struct in_force_reservation *reserved = find_reserved(s, cluster, model, shared);
	in_place(buf) struct buf amounts = {0};
	bool any = reserved != NULL;

	buf_init(&amounts, 4096);
	any = write_amount(&s->limits, IN_FORCE_LIMIT, model, "limit_units", &amounts) || any;
	any = write_amount(&s->limits, IN_FORCE_BORROW, model, "borrow_units", &amounts) || any;
	any = write_amount(&s->limits, IN_FORCE_LEND, model, "lend_units", &amounts) || any;
	if (!any)
		return;
	buf_str(s->out, *s->any ? ",{" : "{");
	*s->any = true;
	text(s->out, "workspace", s->w->path);
	buf_char(s->out, ',');
	text(s->out, "cluster", cluster);
	buf_char(s->out, ',');
	text(s->out, "model", model);
	buf_printf(s->out, ",\"shared\":%s", shared ? "true" : "false");
	if (reserved)
		buf_printf(s->out, ",\"reserved_units\":%" PRId64, reserved->units);
	if (reserved && reserved->profile[0] != '\0') {
		buf_char(s->out, ',');
		text(s->out, "reserved_profile", reserved->profile);
	}
	buf_printf(s->out, "%s}", buf_text(&amounts));
}

static bool
is_named(const struct amounts *limits, const char *model)
{
	for (size_t i = 0; i < limits->count; i++)
		if (limits->at[i].model[0] != '\0' && quantity_model_fits(limits->at[i].model, model))
			return true;
	return false;
}

/* Rules 1 to 3. */
static void
write_workspace_shares(const struct share_writer *s)
{
	const struct in_force_policy *p = s->p;

	for (size_t i = 0; i < p->pool_count; i++) {
		bool shared = p->pools[i].tenant[0] == '\0';

		if (shared || strcmp(p->pools[i].tenant, s->w->tenant) == 0)
			write_share(s, p->pools[i].cluster, p->pools[i].model, shared);
	}
	for (size_t i = 0; i < s->reserved_count; i++) {
		const struct in_force_reservation *r = &s->reserved[i];

		if (!is_pool(s, r->cluster, r->model, r->shared))
			write_share(s, r->cluster, r->model, r->shared);
	}
	for (size_t i = 0; i < p->model_count; i++) {
		if (!is_named(&s->limits, p->models[i]))
			continue;
		for (int shared = 0; shared < 2; shared++)
			if (!is_pool(s, s->w->home, p->models[i], shared) &&
			    !find_reserved(s, s->w->home, p->models[i], shared))
				write_share(s, s->w->home, p->models[i], shared);
	}
}

static void
write_shares(const struct in_force_policy *p, struct buf *out)
{
	size_t next_limit = 0, next = 0;
	bool any = false;

	buf_str(out, ",\"shares\":[");
	for (size_t i = 0; i < p->workspace_count; i++) {
		const struct in_force_workspace *w = &p->workspaces[i];
		struct share_writer s = {.p = p, .w = w, .any = &any, .out = out};

		s.limits = amounts_of(p->limits, p->limit_count, w->path, &next_limit);
		while (next < p->reservation_count && strcmp(p->reservations[next].workspace, w->path) < 0)
			next++;
		s.reserved = p->reservations + next;
		while (next < p->reservation_count && strcmp(p->reservations[next].workspace, w->path) == 0) {
			s.reserved_count++;
			next++;
		}
		write_workspace_shares(&s);
	}
	buf_char(out, ']');
}

/* Rule 4. */
static void
write_caps(const struct in_force_policy *p, struct buf *out)
{
	in_place(buf) struct buf amounts = {0};
	bool any = false;
	size_t next = 0;

	buf_init(&amounts, 4096);
	buf_str(out, ",\"caps\":[");
	for (size_t i = 0; i < p->tenant_count; i++) {
		struct amounts of = amounts_of(p->maxima, p->maximum_count, p->tenants[i].name, &next);

		for (size_t c = 0; of.count > 0 && c < p->cluster_count; c++)
			for (size_t m = 0; m < p->model_count; m++) {
				buf_clear(&amounts);
				(void)write_amount(&of, IN_FORCE_MAXIMUM, p->models[m], "maximum_units", &amounts);
				(void)write_amount(&of, IN_FORCE_DEFAULT_LIMIT, p->models[m], "default_limit_units",
				                   &amounts);
				if (amounts.len == 0)
					continue;
				buf_str(out, any ? ",{" : "{");
				any = true;
				text(out, "tenant", p->tenants[i].name);
				buf_char(out, ',');
				text(out, "cluster", p->clusters[c]);
				buf_char(out, ',');
				text(out, "model", p->models[m]);
				buf_printf(out, "%s}", buf_text(&amounts));
			}
	}
	buf_char(out, ']');
}

/* ---- budgets and prices -------------------------------------------------------------------------------------------------------- */

static void
write_budgets(const struct in_force_policy *p, struct buf *out)
{
	buf_str(out, ",\"budgets\":[");
	for (size_t i = 0; i < p->budget_count; i++) {
		const struct in_force_budget *b = &p->budgets[i];

		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "tenant", b->tenant);
		if (b->workspace[0] != '\0') {
			buf_char(out, ',');
			text(out, "workspace", b->workspace);
		}
		buf_printf(out, ",\"kind\":\"%s\",\"hard\":%s,\"amount\":%" PRId64 "}", b->kind,
		           b->hard ? "true" : "false", b->amount);
	}
	buf_char(out, ']');
}

/* The price on demand per hour of a whole GPU (profile "") or an instance of `units`, as it will be billed; rounded up to a millionth. */
static int64_t
hour_micros(const struct rating_book *book, const char *tenant, const char *model, const char *profile, int64_t units)
{
	const struct usage_day day = {.kind = CHARGE_USAGE,
	                              .cluster = "",
	                              .tenant = tenant,
	                              .cost_center = "",
	                              .workspace = "",
	                              .gpu_model = model,
	                              .mig_profile = profile,
	                              .sharing_mode = profile[0] ? "mig" : "exclusive",
	                              .klass = "on-demand",
	                              .instance_units = units};
	const struct rating_price price = rating_price_of(book, &day);
	const int64_t of = price.own.per_instance ? units : UNITS_PER_GPU; /* units that the price is for */
	const int128 each = (int128)RATIO_ONE * 1000 * of;

	if (price.item == NULL)
		return 0;
	return (int64_t)((price.own_price * (RATIO_ONE - price.discount_ratio) * units + each - 1) / each);
}

static bool
is_named_before(const struct rating_book *book, size_t item)
{
	for (size_t i = 0; i < item; i++)
		if (book->items[i].mig_profile != NULL &&
		    strcmp(book->items[i].mig_profile, book->items[item].mig_profile) == 0)
			return true;
	return false;
}

static void
write_model_prices(const struct rating_book *book, const char *tenant, const char *model, bool *any, struct buf *out)
{
	for (size_t i = 0; i <= book->item_count; i++) {
		const char *profile = i == 0 ? "" : book->items[i - 1].mig_profile;
		int64_t units = UNITS_PER_GPU;

		if (profile == NULL ||
		    (i > 0 && (is_named_before(book, i - 1) || !quantity_profile_units(model, profile, &units, NULL))))
			continue;
		buf_str(out, *any ? ",{" : "{");
		*any = true;
		text(out, "tenant", tenant);
		buf_char(out, ',');
		text(out, "model", model);
		if (profile[0] != '\0') {
			buf_char(out, ',');
			text(out, "profile", profile);
		}
		buf_printf(out, ",\"hour_micros\":%" PRId64 "}", hour_micros(book, tenant, model, profile, units));
	}
}

/* Rule 6. */
static void
write_prices(const struct in_force_policy *p, struct buf *out)
{
	const char *last = "";
	bool any = false;

	buf_str(out, ",\"prices\":[");
	for (size_t i = 0; i < p->budget_count && p->prices; i++) {
		const struct in_force_budget *b = &p->budgets[i];

		if (strcmp(p->prices->currency, b->currency) != 0 || strcmp(last, b->tenant) == 0)
			continue;
		last = b->tenant;
		for (size_t m = 0; m < p->model_count; m++)
			write_model_prices(p->prices, b->tenant, p->models[m], &any, out);
	}
	buf_char(out, ']');
}

bool
policy_to_quota(const struct in_force_policy *p, const struct quota_settings *settings, struct buf *out,
                struct err *err)
{
	write_settings(settings, out);
	names(out, "clusters", p->clusters, p->cluster_count);
	names(out, "models", p->models, p->model_count);
	write_shapes_and_classes(p, out);
	write_tenants_and_workspaces(p, out);
	write_shares(p, out);
	write_caps(p, out);
	write_budgets(p, out);
	write_prices(p, out);
	buf_str(out, "}}");
	return buf_ok(out, "the policy", err);
}

/* aggregator/store/quota/quota_policy.c - the policy in force, as the quota book reads it: from the tables of the policy, by names.
 *
 * Amounts that a policy gives for every model, and limits that hold in every pool, become one share for each pool that the workspace may
 * use: those of its tenant's nodes, and the shared ones. */
#include <string.h>

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/store/policy/price_books.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/conf/json.h"

enum list {
	CLUSTERS,
	MODELS,
	POOLS,
	SHAPES,
	CLASSES,
	TENANTS,
	WORKSPACES,
	RESERVATIONS,
	LIMITS,
	MAXIMA,
	BUDGETS,
	LISTS
};

struct policy_rows {
	PGresult *at[LISTS];
};

static void
policy_rows_fini(struct policy_rows *r)
{
	for (size_t i = 0; i < LISTS; i++)
		PQclear(r->at[i]);
}

/* $1: the time. GPUs of nodes: counted on them or declared, and not retired. */
#define WITH_INVENTORY                                                                                                                    \
	"WITH had AS (SELECT p.node_id, p.model FROM gpu_place p WHERE p.model <> '' "                                                    \
	"UNION SELECT d.node_id, d.model FROM node_declared d WHERE d.effective @> $1::timestamptz), "                                    \
	"pool AS (SELECT DISTINCT c.name AS cluster, coalesce(t.name, '') AS tenant, h.model FROM had h JOIN node n ON n.id = h.node_id " \
	"JOIN cluster c ON c.id = n.cluster_id LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> $1::timestamptz "            \
	"LEFT JOIN tenant t ON t.id = o.tenant_id WHERE NOT EXISTS (SELECT FROM node_state x WHERE x.node_id = n.id "                     \
	"AND x.state = 'retired' AND x.effective @> $1::timestamptz)) "
#define PATH "(w.tenant || '/' || w.name)"
#define OF_WORKSPACE "JOIN workspaces_at($1) w ON w.id = x.workspace_id AND NOT w.builtin "

static const struct db_stmt statements[LISTS] = {
	[CLUSTERS] = {"quota policy clusters",
                      "SELECT name FROM cluster WHERE $1::timestamptz IS NOT NULL ORDER BY id"},
	[MODELS] =
		{"quota policy models", WITH_INVENTORY
                 ", known AS (SELECT model FROM pool UNION SELECT model FROM reservation WHERE effective @> $1::timestamptz), "
                 "limited AS (SELECT model FROM workspace_limit WHERE effective @> $1::timestamptz UNION SELECT model FROM "
                 "tenant_limit WHERE effective @> $1::timestamptz) "
                 /* a limit may name a family: that is no model where there is one of it */
                 "SELECT DISTINCT m.model COLLATE \"C\" FROM (SELECT model FROM known UNION SELECT model FROM limited l WHERE NOT "
                 "EXISTS (SELECT FROM known k WHERE starts_with(k.model, l.model || '-'))) m WHERE m.model <> '' ORDER BY 1"},
	[POOLS] =
		{"quota policy pools", WITH_INVENTORY
                 "SELECT cluster, tenant, model FROM pool ORDER BY cluster COLLATE \"C\", tenant COLLATE \"C\", model "
                 "COLLATE \"C\""},
	[SHAPES] =
		{"quota policy shapes",
                 "SELECT DISTINCT model COLLATE \"C\", profile COLLATE \"C\", units FROM (SELECT model, profile, units FROM node_declared "
                 "WHERE effective @> $1::timestamptz UNION ALL SELECT model, profile, units / instances FROM reservation "
                 "WHERE effective @> $1::timestamptz) s WHERE profile <> '' ORDER BY 1, 2"},
	[CLASSES] = {"quota policy classes",
                     "SELECT name, value, preemptible FROM priority_class WHERE effective @> $1::timestamptz "
                     "ORDER BY name COLLATE \"C\""},
	[TENANTS] =
		{"quota policy tenants",
                 "SELECT t.name, coalesce(q.isolation, 'shared'), array_to_json(q.priority_classes)::text, q.cpu_millis, "
                 "q.memory_bytes, q.storage_bytes FROM tenants_at($1) t LEFT JOIN tenant_quota q ON q.tenant_id = t.id AND "
                 "q.effective @> $1::timestamptz WHERE NOT t.builtin ORDER BY t.name COLLATE \"C\""},
	[WORKSPACES] =
		{"quota policy workspaces",
                 "SELECT " PATH
                 ", w.tenant, coalesce(h.home, l.home), coalesce(x.reclaim, 'any'), coalesce(x.preempt_own, 'lower') = "
                 "'lower', coalesce(x.enforce, 'on'), coalesce(x.weight, 1), x.cpu_millis, x.memory_bytes, x.storage_bytes "
                 "FROM workspaces_at($1) w CROSS JOIN (SELECT c.name AS home FROM ledger JOIN cluster c "
                 "ON c.id = ledger.cluster_id) l LEFT JOIN workspace_quota x ON x.workspace_id = w.id AND x.effective @> "
                 "$1::timestamptz LEFT JOIN LATERAL (SELECT min(c.name) AS home FROM reservation r JOIN cluster c ON c.id = "
                 "r.cluster_id WHERE r.workspace_id = w.id AND r.effective @> $1::timestamptz HAVING count(DISTINCT c.id) = 1) h "
                 "ON true WHERE NOT w.builtin ORDER BY " PATH " COLLATE \"C\""},
	[RESERVATIONS] =
		{"quota policy reservations",
                 "SELECT " PATH
                 ", c.name, x.model, x.shared, sum(x.units)::bigint, CASE WHEN count(*) = 1 THEN min(x.profile) ELSE '' "
                 "END FROM reservation x JOIN cluster c ON c.id = x.cluster_id " OF_WORKSPACE
                 "WHERE x.effective @> $1::timestamptz GROUP BY " PATH ", c.name, x.model, x.shared "
                 "ORDER BY " PATH " COLLATE \"C\", c.name COLLATE \"C\", x.model COLLATE \"C\", x.shared"},
	[LIMITS] = {"quota policy limits",
                    "SELECT " PATH
                    ", x.kind, x.model, x.profile, x.instances, x.units FROM workspace_limit x " OF_WORKSPACE
                    "WHERE x.effective @> $1::timestamptz ORDER BY " PATH
                    " COLLATE \"C\", x.kind, x.model COLLATE \"C\" DESC"},
	[MAXIMA] =
		{"quota policy maxima",
                 "SELECT t.name, x.kind, x.model, x.profile, x.instances, x.units FROM tenant_limit x JOIN tenants_at($1) t ON t.id = x.tenant_id "
                 "AND NOT t.builtin WHERE x.effective @> $1::timestamptz "
                 "ORDER BY t.name COLLATE \"C\", x.kind, x.model COLLATE \"C\" DESC"},
	[BUDGETS] =
		{"quota policy budgets",
                 "SELECT t.name, CASE WHEN w.id IS NULL THEN '' ELSE " PATH
                 " END, b.kind = 'hard', CASE WHEN b.meter_unit = 'token' THEN 'tokens' WHEN b.currency IS NULL THEN 'unit_seconds' ELSE 'money' END, "
                 "least(floor(b.amount * CASE WHEN b.meter_unit = 'token' THEN 1 WHEN b.currency IS NULL THEN 5040 * 3600 ELSE 100 END), "
                 "1000000000000000000)::bigint, b.currency FROM budget b JOIN tenants_at($1) t ON t.id = b.tenant_id "
                 "LEFT JOIN workspaces_at($1) w ON w.id = b.workspace_id WHERE b.effective @> $1::timestamptz "
                 "AND (b.workspace_id IS NULL OR w.id IS NOT NULL) ORDER BY t.name COLLATE \"C\", 2"},
};

/* ---- JSON ------------------------------------------------------------------------------------------------------------------- */

static void
text(struct buf *out, const char *key, const char *value)
{
	buf_printf(out, "\"%s\":", key);
	json_write_string(value, out);
}

/* NULL: no limit. */
static void
limit(struct buf *out, const char *key, const PGresult *r, int row, int col)
{
	if (!res_null(r, row, col))
		buf_printf(out, ",\"%s\":%" PRId64, key, res_i64(r, row, col));
}

static void
names(struct buf *out, const char *key, const PGresult *r)
{
	buf_printf(out, ",\"%s\":[", key);
	for (int i = 0; i < PQntuples(r); i++) {
		if (i > 0)
			buf_char(out, ',');
		json_write_string(res_text(r, i, 0), out);
	}
	buf_char(out, ']');
}

static void
write_settings(const struct quota_settings *s, struct buf *out)
{
	buf_printf(out,
	           "{\"policy\":{\"settings\":{\"burst\":%" PRId64 ",\"grace_ns\":%" PRId64 ",\"aging_ns\":%" PRId64
	           ",\"head_wait_ns\":%" PRId64 ",\"backoff_ns\":%" PRId64 ",\"backoff_forget_ns\":%" PRId64
	           ",\"confirm_ns\":%" PRId64 ",\"silence_ns\":%" PRId64 "}",
	           s->burst, s->grace_ns, s->aging_ns, s->head_wait_ns, s->backoff_ns, s->backoff_forget_ns,
	           s->confirm_ns, s->silence_ns);
}

static void
write_people(const struct policy_rows *p, struct buf *out)
{
	const PGresult *r = p->at[SHAPES];

	buf_str(out, ",\"shapes\":[");
	for (int i = 0; i < PQntuples(r); i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "model", res_text(r, i, 0));
		buf_char(out, ',');
		text(out, "profile", res_text(r, i, 1));
		buf_printf(out, ",\"units\":%" PRId64 "}", res_i64(r, i, 2));
	}
	r = p->at[CLASSES];
	buf_str(out, "],\"classes\":[");
	for (int i = 0; i < PQntuples(r); i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "name", res_text(r, i, 0));
		buf_printf(out, ",\"value\":%" PRId64 ",\"preemptible\":%s}", res_i64(r, i, 1),
		           res_bool(r, i, 2) ? "true" : "false");
	}
	r = p->at[TENANTS];
	buf_str(out, "],\"tenants\":[");
	for (int i = 0; i < PQntuples(r); i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "name", res_text(r, i, 0));
		buf_char(out, ',');
		text(out, "isolation", res_text(r, i, 1));
		if (!res_null(r, i, 2))
			buf_printf(out, ",\"classes\":%s", res_text(r, i, 2));
		limit(out, "cpu_millis", r, i, 3);
		limit(out, "memory_bytes", r, i, 4);
		limit(out, "storage_bytes", r, i, 5);
		buf_char(out, '}');
	}
	r = p->at[WORKSPACES];
	buf_str(out, "],\"workspaces\":[");
	for (int i = 0; i < PQntuples(r); i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "path", res_text(r, i, 0));
		buf_char(out, ',');
		text(out, "home", res_text(r, i, 2));
		buf_char(out, ',');
		text(out, "reclaim", res_text(r, i, 3));
		buf_printf(out, ",\"preempt_own\":%s,", res_bool(r, i, 4) ? "true" : "false");
		text(out, "enforce", res_text(r, i, 5));
		buf_printf(out, ",\"weight\":%" PRId64, res_i64(r, i, 6));
		limit(out, "cpu_millis", r, i, 7);
		limit(out, "memory_bytes", r, i, 8);
		limit(out, "storage_bytes", r, i, 9);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

/* ---- limits ------------------------------------------------------------------------------------------------------------------ */

/* Rows of one owner: its name, kind, model ('' comes last), profile, instances, units. */
struct stretch {
	const PGresult *r;
	int first, end;
};

static struct stretch
rows_of(const PGresult *r, const char *owner, int *next)
{
	struct stretch s = {.r = r};

	while (*next < PQntuples(r) && strcmp(res_text(r, *next, 0), owner) < 0)
		++*next;
	s.first = *next;
	while (*next < PQntuples(r) && strcmp(res_text(r, *next, 0), owner) == 0)
		++*next;
	s.end = *next;
	return s;
}

/* The amount of a kind for a model, as a member; false: none is given. A profile that the model does not have is no amount of it. */
static bool
write_amount(const struct stretch *s, const char *kind, const char *model, const char *key, struct buf *out)
{
	for (int i = s->first; i < s->end; i++) {
		const char *of = res_text(s->r, i, 2), *profile = res_text(s->r, i, 3);
		int64_t units;

		if (strcmp(res_text(s->r, i, 1), kind) != 0 || !quantity_model_fits(of, model))
			continue;
		if (!res_null(s->r, i, 5)) {
			buf_printf(out, ",\"%s\":%" PRId64, key, res_i64(s->r, i, 5));
		} else if (profile[0] == '\0') {
			buf_printf(out, ",\"%s\":null", key);
		} else {
			if (!quantity_profile_units(model, profile, &units, NULL))
				return false;
			buf_printf(out, ",\"%s\":%" PRId64, key, units * res_i64(s->r, i, 4));
		}
		return true;
	}
	return false;
}

struct share_writer {
	struct buf *out;
	bool any;
};

static void
write_share(struct share_writer *w, const char *path, const char *cluster, const char *model, bool shared,
            const struct stretch *limits, const PGresult *reserved, int row)
{
	in_place(buf) struct buf amounts = {0};
	bool any = row >= 0;

	buf_init(&amounts, 4096);
	any = write_amount(limits, "limit", model, "limit_units", &amounts) || any;
	any = write_amount(limits, "borrow", model, "borrow_units", &amounts) || any;
	any = write_amount(limits, "lend", model, "lend_units", &amounts) || any;
	if (!any)
		return;
	buf_str(w->out, w->any ? ",{" : "{");
	w->any = true;
	text(w->out, "workspace", path);
	buf_char(w->out, ',');
	text(w->out, "cluster", cluster);
	buf_char(w->out, ',');
	text(w->out, "model", model);
	buf_printf(w->out, ",\"shared\":%s", shared ? "true" : "false");
	if (row >= 0)
		buf_printf(w->out, ",\"reserved_units\":%" PRId64, res_i64(reserved, row, 4));
	if (row >= 0 && res_text(reserved, row, 5)[0] != '\0') {
		buf_char(w->out, ',');
		text(w->out, "reserved_profile", res_text(reserved, row, 5));
	}
	buf_printf(w->out, "%s}", buf_text(&amounts));
}

static int
find_reserved(const struct stretch *s, const char *cluster, const char *model, bool shared)
{
	for (int i = s->first; i < s->end; i++)
		if (strcmp(res_text(s->r, i, 1), cluster) == 0 && strcmp(res_text(s->r, i, 2), model) == 0 &&
		    res_bool(s->r, i, 3) == shared)
			return i;
	return -1;
}

static bool
is_pool(const PGresult *pools, const char *cluster, const char *tenant, const char *model)
{
	for (int i = 0; i < PQntuples(pools); i++)
		if (strcmp(res_text(pools, i, 0), cluster) == 0 && strcmp(res_text(pools, i, 1), tenant) == 0 &&
		    strcmp(res_text(pools, i, 2), model) == 0)
			return true;
	return false;
}

/* A limit that names its model holds in the pools of the workspace's home that have nothing too, as a scenario reads it. */
static void
write_empty_pools(struct share_writer *w, const struct policy_rows *p, int row, const struct stretch *limits,
                  const struct stretch *reserved)
{
	const PGresult *workspaces = p->at[WORKSPACES], *models = p->at[MODELS];
	const char *path = res_text(workspaces, row, 0), *tenant = res_text(workspaces, row, 1);
	const char *home = res_text(workspaces, row, 2);

	for (int i = 0; i < PQntuples(models); i++) {
		const char *model = res_text(models, i, 0);
		bool named = false;

		for (int k = limits->first; k < limits->end && !named; k++)
			named = res_text(limits->r, k, 2)[0] != '\0' &&
			        quantity_model_fits(res_text(limits->r, k, 2), model);
		for (int shared = 0; shared < 2 && named; shared++)
			if (!is_pool(p->at[POOLS], home, shared ? "" : tenant, model) &&
			    find_reserved(reserved, home, model, shared) < 0)
				write_share(w, path, home, model, shared, limits, NULL, -1);
	}
}

static void
write_shares(const struct policy_rows *p, struct buf *out)
{
	const PGresult *workspaces = p->at[WORKSPACES], *pools = p->at[POOLS];
	struct share_writer w = {.out = out};
	int next_limit = 0, next_reserved = 0;

	buf_str(out, ",\"shares\":[");
	for (int i = 0; i < PQntuples(workspaces); i++) {
		const char *path = res_text(workspaces, i, 0), *tenant = res_text(workspaces, i, 1);
		struct stretch limits = rows_of(p->at[LIMITS], path, &next_limit);
		struct stretch reserved = rows_of(p->at[RESERVATIONS], path, &next_reserved);

		for (int k = 0; k < PQntuples(pools); k++) {
			const char *cluster = res_text(pools, k, 0), *of = res_text(pools, k, 1);
			const char *model = res_text(pools, k, 2);
			bool shared = of[0] == '\0';

			if (shared || strcmp(of, tenant) == 0)
				write_share(&w, path, cluster, model, shared, &limits, reserved.r,
				            find_reserved(&reserved, cluster, model, shared));
		}
		/* A reservation in a pool that has nothing is still one. */
		for (int k = reserved.first; k < reserved.end; k++) {
			bool shared = res_bool(reserved.r, k, 3);

			if (!is_pool(pools, res_text(reserved.r, k, 1), shared ? "" : tenant,
			             res_text(reserved.r, k, 2)))
				write_share(&w, path, res_text(reserved.r, k, 1), res_text(reserved.r, k, 2), shared,
				            &limits, reserved.r, k);
		}
		write_empty_pools(&w, p, i, &limits, &reserved);
	}
	buf_char(out, ']');
}

static void
write_caps(const struct policy_rows *p, struct buf *out)
{
	const PGresult *tenants = p->at[TENANTS], *clusters = p->at[CLUSTERS], *models = p->at[MODELS];
	in_place(buf) struct buf amounts = {0};
	bool first = true;
	int next = 0;

	buf_init(&amounts, 4096);
	buf_str(out, ",\"caps\":[");
	for (int i = 0; i < PQntuples(tenants); i++) {
		struct stretch s = rows_of(p->at[MAXIMA], res_text(tenants, i, 0), &next);

		for (int c = 0; s.first < s.end && c < PQntuples(clusters); c++)
			for (int m = 0; m < PQntuples(models); m++) {
				const char *model = res_text(models, m, 0);

				buf_clear(&amounts);
				(void)write_amount(&s, "maximum", model, "maximum_units", &amounts);
				(void)write_amount(&s, "default_limit", model, "default_limit_units", &amounts);
				if (amounts.len == 0)
					continue;
				buf_str(out, first ? "{" : ",{");
				first = false;
				text(out, "tenant", res_text(tenants, i, 0));
				buf_char(out, ',');
				text(out, "cluster", res_text(clusters, c, 0));
				buf_char(out, ',');
				text(out, "model", model);
				buf_printf(out, "%s}", buf_text(&amounts));
			}
	}
	buf_char(out, ']');
}

/* ---- budgets and prices -------------------------------------------------------------------------------------------------------- */

static void
write_budgets(const PGresult *r, struct buf *out)
{
	buf_str(out, ",\"budgets\":[");
	for (int i = 0; i < PQntuples(r); i++) {
		buf_str(out, i > 0 ? ",{" : "{");
		text(out, "tenant", res_text(r, i, 0));
		if (res_text(r, i, 1)[0] != '\0') {
			buf_char(out, ',');
			text(out, "workspace", res_text(r, i, 1));
		}
		buf_printf(out, ",\"kind\":\"%s\",\"hard\":%s,\"amount\":%" PRId64 "}", res_text(r, i, 3),
		           res_bool(r, i, 2) ? "true" : "false", res_i64(r, i, 4));
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

/* Of the whole GPU, and of each profile that the book has a price for: any other costs its share of the GPU. */
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

/* Only where a budget of the same currency is held against them. */
static bool
write_prices(struct db *db, const struct policy_rows *p, int64_t now_ns, struct buf *out, struct err *err)
{
	const PGresult *budgets = p->at[BUDGETS], *models = p->at[MODELS];
	in_place(price_books) struct price_books books = {0};
	const char *last = "";
	bool any = false;

	buf_str(out, ",\"prices\":[");
	if (PQntuples(budgets) > 0 && !price_books_at(db, now_ns, &books, err))
		return false;
	for (int i = 0; i < PQntuples(budgets) && books.count > 0; i++) {
		const char *tenant = res_text(budgets, i, 0);

		if (res_null(budgets, i, 5) || strcmp(books.books[0].currency, res_text(budgets, i, 5)) != 0 ||
		    strcmp(last, tenant) == 0)
			continue;
		last = tenant;
		for (int m = 0; m < PQntuples(models); m++)
			write_model_prices(&books.books[0], tenant, res_text(models, m, 0), &any, out);
	}
	buf_char(out, ']');
	return true;
}

bool
store_quota_policy(struct db *db, int64_t now_ns, const struct quota_settings *settings, struct buf *out,
                   struct err *err)
{
	in_place(policy_rows) struct policy_rows rows = {0};
	struct db_args when = {0};

	arg_time(&when, now_ns);
	for (size_t i = 0; i < LISTS; i++)
		if (!db_run(db, &statements[i], &when, &rows.at[i], err))
			return false;
	write_settings(settings, out);
	names(out, "clusters", rows.at[CLUSTERS]);
	names(out, "models", rows.at[MODELS]);
	write_people(&rows, out);
	write_shares(&rows, out);
	write_caps(&rows, out);
	write_budgets(rows.at[BUDGETS], out);
	if (!write_prices(db, &rows, now_ns, out, err))
		return false;
	buf_str(out, "}}");
	return buf_ok(out, "the policy", err);
}

bool
store_quota_model(struct db *db, int64_t now_ns, const char *name, char ret[QUOTA_NAME_SIZE], struct err *err)
{
	owned(mem) const char **models = NULL;
	owned(result) PGresult *r = NULL;
	struct db_args when = {0};
	const char *model = "";
	int count;

	arg_time(&when, now_ns);
	if (!db_run(db, &statements[MODELS], &when, &r, err))
		return false;
	count = PQntuples(r);
	models = mem_array((size_t)count + 1, sizeof(*models));
	for (int i = 0; i < count; i++)
		models[i] = res_text(r, i, 0);
	if (!quantity_model(name, models, (size_t)count, &model, err))
		return false;
	if (strlen(model) >= QUOTA_NAME_SIZE)
		return err_set(err, ERR_INVALID, "the name of a model has at most %d bytes", QUOTA_NAME_SIZE - 1);
	memcpy(ret, model, strlen(model) + 1);
	return true;
}

bool
store_quota_pools(struct db *db, int64_t now_ns, int64_t cluster_id, const char *tenant, const char *model,
                  bool *ret_own, bool *ret_shared, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota pools of a model", WITH_INVENTORY
		"SELECT coalesce(bool_or(p.tenant = $3), false), coalesce(bool_or(p.tenant = ''), false) FROM pool p JOIN cluster c "
		"ON c.name = p.cluster WHERE c.id = $2 AND p.model = $4"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	arg_i64(&a, cluster_id);
	arg_text(&a, tenant);
	arg_text(&a, model);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret_own = res_bool(r, 0, 0);
	*ret_shared = res_bool(r, 0, 1);
	return true;
}

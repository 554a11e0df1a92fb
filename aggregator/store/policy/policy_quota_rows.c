/* aggregator/store/policy/policy_quota_rows.c - members, quotas, priority classes and reservations of a policy as rows. */
#include <string.h>

#include "aggregator/core/rating/budget.h"
#include "aggregator/store/policy/policy_over_time.h"

void
array_i64_or_null(struct db_array *a, bool known, int64_t v)
{
	if (known)
		array_i64(a, v);
	else
		array_text(a, NULL);
}

bool
over_time_write(struct db *db, const struct over_time *t, const struct db_args *a, struct err *err)
{
	return db_run(db, &t->drop, a, NULL, err) && db_run(db, &t->cut, a, NULL, err) &&
	       db_run(db, &t->fill, a, NULL, err);
}

/* All columns behind the hour. */
static bool
write_columns(struct db *db, const struct over_time *t, struct db_columns *c, int64_t effective_ns, struct err *err)
{
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	arg_columns(&a, c);
	return over_time_write(db, t, &a, err);
}

#define WORKSPACE_OF_E \
	"JOIN tenant x ON x.name = e.tenant JOIN workspace w ON w.tenant_id = x.id AND w.name = e.workspace"

static bool
write_classes(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy classes", "priority_class", "name, value, preemptible",
	                  "t.name, t.value, t.preemptible",
	                  "SELECT * FROM unnest($2::text[], $3::integer[], $4::boolean[]) AS e(name, value, "
	                  "preemptible)",
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->class_count; i++) {
		array_text(&c.col[0], p->classes[i].name);
		array_i64(&c.col[1], p->classes[i].value);
		array_text(&c.col[2], p->classes[i].preemptible ? "t" : "f");
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_tenant_members(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy members", "tenant_member", "tenant_id, member, role", "t.tenant_id, t.member, t.role",
	                  "SELECT x.id, e.member, e.role FROM unnest($2::text[], $3::text[], $4::text[]) "
	                  "AS e(tenant, member, role) JOIN tenant x ON x.name = e.tenant",
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].members.count; k++) {
			array_text(&c.col[0], p->tenants[i].name);
			array_text(&c.col[1], p->tenants[i].members.at[k].user);
			array_text(&c.col[2], p->tenants[i].members.at[k].role);
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_workspace_members(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy workspace members", "workspace_member", "workspace_id, member, role",
	                  "t.workspace_id, t.member, t.role",
	                  "SELECT w.id, e.member, e.role FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) "
	                  "AS e(tenant, workspace, member, role) " WORKSPACE_OF_E,
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 4);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];

			for (size_t m = 0; m < w->members.count; m++) {
				array_text(&c.col[0], p->tenants[i].name);
				array_text(&c.col[1], w->name);
				array_text(&c.col[2], w->members.at[m].user);
				array_text(&c.col[3], w->members.at[m].role);
			}
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

/* '{"a","b"}', or NULL where all may be used. Names need no escape. */
static void
add_class_names(struct db_array *a, const struct policy_tenant *t)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, LIMIT_CLASSES * 70u);
	buf_char(&text, '{');
	for (size_t i = 0; i < t->class_count; i++)
		buf_printf(&text, "%s\"%s\"", i == 0 ? "" : ",", t->classes[i]);
	buf_char(&text, '}');
	array_text(a, t->classes_given ? buf_text(&text) : NULL);
}

static void
add_resources(struct db_array *cols, const struct policy_resources *r)
{
	array_i64_or_null(&cols[0], r->cpu_millis >= 0, r->cpu_millis);
	array_i64_or_null(&cols[1], r->memory_bytes >= 0, r->memory_bytes);
	array_i64_or_null(&cols[2], r->storage_bytes >= 0, r->storage_bytes);
}

static void
add_sla(struct db_array *cols, const struct policy_sla *s)
{
	array_i64_or_null(&cols[0], s->owed_wait_ns > 0, s->owed_wait_ns);
	array_i64_or_null(&cols[1], s->delivered_millionths > 0, s->delivered_millionths);
}

static bool
write_tenant_quotas(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy tenant quotas", "tenant_quota",
		"tenant_id, isolation, priority_classes, cpu_millis, memory_bytes, storage_bytes, owed_wait_ns, delivered_millionths",
		"t.tenant_id, t.isolation, t.priority_classes, t.cpu_millis, t.memory_bytes, t.storage_bytes, t.owed_wait_ns, "
		"t.delivered_millionths",
		"SELECT x.id, e.isolation, e.classes::text[], e.cpu, e.memory, e.storage, e.owed_wait, e.delivered "
		"FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], "
		"$9::bigint[]) AS e(tenant, isolation, classes, cpu, memory, storage, owed_wait, delivered) JOIN tenant x ON x.name = e.tenant",
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 8);
	for (size_t i = 0; i < p->tenant_count; i++) {
		array_text(&c.col[0], p->tenants[i].name);
		array_text(&c.col[1], p->tenants[i].isolation);
		add_class_names(&c.col[2], &p->tenants[i]);
		add_resources(&c.col[3], &p->tenants[i].limits);
		add_sla(&c.col[6], &p->tenants[i].sla);
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

/* kind, model, profile, instances, units. What an instance weighs is not known where its model is not named. */
static void
add_amount(struct db_array *cols, const char *kind, const struct quantity *q)
{
	struct err ignored;
	int64_t units = 0;
	bool known = (q->model[0] || !q->profile[0]) && !q->unlimited && quantity_units(q, q->model, &units, &ignored);

	array_text(&cols[0], kind);
	array_text(&cols[1], q->model);
	array_text(&cols[2], q->profile);
	array_i64_or_null(&cols[3], q->profile[0] != '\0', q->num);
	array_i64_or_null(&cols[4], known, units);
}

static bool
write_tenant_limits(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy tenant limits", "tenant_limit", "tenant_id, kind, model, profile, instances, units",
	                  "t.tenant_id, t.kind, t.model, t.profile, t.instances, t.units",
	                  "SELECT x.id, e.kind, e.model, e.profile, e.instances, e.units "
	                  "FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[]) "
	                  "AS e(tenant, kind, model, profile, instances, units) JOIN tenant x ON x.name = e.tenant",
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 6);
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];
		const struct policy_amounts *const amounts[] = {&t->maximum, &t->default_limit};
		static const char *const kinds[] = {"maximum", "default_limit"};

		for (size_t k = 0; k < ARRAY_LEN(amounts); k++)
			for (size_t m = 0; m < amounts[k]->count; m++) {
				array_text(&c.col[0], t->name);
				add_amount(&c.col[1], kinds[k], &amounts[k]->at[m]);
			}
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_workspace_quotas(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy workspace quotas", "workspace_quota",
		"workspace_id, reclaim, preempt_own, weight, enforce, idle_timeout_ns, cpu_millis, memory_bytes, "
		"storage_bytes, owed_wait_ns, delivered_millionths",
		"t.workspace_id, t.reclaim, t.preempt_own, t.weight, t.enforce, t.idle_timeout_ns, t.cpu_millis, "
		"t.memory_bytes, t.storage_bytes, t.owed_wait_ns, t.delivered_millionths",
		"SELECT w.id, e.reclaim, e.preempt_own, e.weight, e.enforce, e.idle, e.cpu, e.memory, e.storage, e.owed_wait, e.delivered "
		"FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::bigint[], "
		"$9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]) AS e(tenant, workspace, reclaim, preempt_own, weight, "
		"enforce, idle, cpu, memory, storage, owed_wait, delivered) " WORKSPACE_OF_E,
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 12);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];

			array_text(&c.col[0], p->tenants[i].name);
			array_text(&c.col[1], w->name);
			array_text(&c.col[2], w->reclaim);
			array_text(&c.col[3], w->preempt_own);
			array_i64(&c.col[4], w->weight);
			array_text(&c.col[5], w->enforce);
			array_i64_or_null(&c.col[6], w->idle_timeout_ns > 0, w->idle_timeout_ns);
			add_resources(&c.col[7], &w->limits);
			add_sla(&c.col[10], &w->sla);
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_workspace_limits(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy workspace limits", "workspace_limit", "workspace_id, kind, model, profile, instances, units",
		"t.workspace_id, t.kind, t.model, t.profile, t.instances, t.units",
		"SELECT w.id, e.kind, e.model, e.profile, e.instances, e.units FROM unnest($2::text[], $3::text[], "
		"$4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[]) "
		"AS e(tenant, workspace, kind, model, profile, instances, units) " WORKSPACE_OF_E,
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 7);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];
			const struct policy_amounts *const amounts[] = {&w->limit, &w->borrow, &w->lend};
			static const char *const kinds[] = {"limit", "borrow", "lend"};

			for (size_t n = 0; n < ARRAY_LEN(amounts); n++)
				for (size_t m = 0; m < amounts[n]->count; m++) {
					array_text(&c.col[0], p->tenants[i].name);
					array_text(&c.col[1], w->name);
					add_amount(&c.col[2], kinds[n], &amounts[n]->at[m]);
				}
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

static void
add_budget(struct db_columns *c, const char *tenant, const char *workspace, const struct policy_budget *b)
{
	char text[DECIMAL_TEXT_SIZE];

	if (b->kind == NULL)
		return;
	array_text(&c->col[0], tenant);
	array_text(&c->col[1], workspace);
	array_text(&c->col[2], b->kind);
	array_text(&c->col[3], budget_unit_is_money(b->unit) ? b->unit : NULL);
	array_text(&c->col[4], decimal_format(b->amount, PRICE_SCALE, 0, text));
	array_text(&c->col[5], strcmp(b->unit, BUDGET_TOKENS) == 0 ? b->unit : NULL);
}

static bool
write_budgets(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy budgets", "budget", "tenant_id, workspace_id, kind, currency, amount, meter_unit",
		"t.tenant_id, t.workspace_id, t.kind, t.currency, t.amount, t.meter_unit",
		"SELECT x.id, w.id, e.kind, e.currency, e.amount::numeric(30, 9), e.meter_unit FROM unnest($2::text[], $3::text[], "
		"$4::text[], $5::text[], $6::numeric[], $7::text[]) AS e(tenant, workspace, kind, currency, amount, meter_unit) JOIN tenant x ON "
		"x.name = e.tenant LEFT JOIN workspace w ON w.tenant_id = x.id AND w.name = e.workspace",
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 6);
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		add_budget(&c, t->name, NULL, &t->budget);
		for (size_t k = 0; k < t->workspace_count; k++)
			add_budget(&c, t->name, t->workspaces[k].name, &t->workspaces[k].budget);
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_auto_approve(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy auto-approval", "tenant_auto_approve", "tenant_id, units, for_ns",
		"t.tenant_id, t.units, t.for_ns",
		"SELECT x.id, e.units, e.for_ns FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS e(tenant, units, "
		"for_ns) JOIN tenant x ON x.name = e.tenant",
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		if (t->auto_approve.units == 0)
			continue;
		array_text(&c.col[0], t->name);
		array_i64(&c.col[1], t->auto_approve.units);
		array_i64(&c.col[2], t->auto_approve.for_ns);
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

bool
quota_rows_write(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	return write_classes(db, p, effective_ns, err) && write_tenant_members(db, p, effective_ns, err) &&
	       write_workspace_members(db, p, effective_ns, err) && write_tenant_quotas(db, p, effective_ns, err) &&
	       write_tenant_limits(db, p, effective_ns, err) && write_workspace_quotas(db, p, effective_ns, err) &&
	       write_workspace_limits(db, p, effective_ns, err) && write_budgets(db, p, effective_ns, err) &&
	       write_auto_approve(db, p, effective_ns, err);
}

/* aggregator/store/verify/verify_owner.c - the owner of a holder, recomputed by the rules in force at the hour.
 *
 * Rules:
 *  1. checked for every holder with usage in an hour, and for every holder that an event of the hour names
 *  2. checked for every holder at each start of a row of holder_attribution; the rows of a holder leave no gap */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/usage/usage_internal.h"
#include "aggregator/store/verify/verify_ledger.h"

void
verify_rules_fini(struct verify_rules *r)
{
	PQclear(r->rows);
	PQclear(r->workspaces);
	mem_free(r->active);
	hash_fini(&r->names);
	memset(r, 0, sizeof(*r));
}

/* Columns of rules.rows. */
enum {
	RULE_ID,
	RULE_WORKSPACE,
	RULE_PRIORITY,
	RULE_CLUSTER,
	RULE_NAMESPACE,
	RULE_ACCOUNT,
	RULE_USER,
	RULE_GROUP,
	RULE_LABELS,
	RULE_FROM,
	RULE_UNTIL
};

bool
verify_rules_load(struct verify_node *n, struct err *err)
{
	static const struct db_stmt rules = {
		"verify rules",
		"SELECT id, workspace_id, priority, cluster, namespace, slurm_account, user_name, "
		"group_name, labels_text(labels), ns_of(lower(effective)), ns_of(upper(effective)) FROM attribution_rule "
		"WHERE NOT isempty(effective)"};
	static const struct db_stmt workspaces = {"verify workspaces",
	                                          "SELECT w.id, t.name || '/' || w.name, w.builtin FROM workspace w "
	                                          "JOIN tenant t ON t.id = w.tenant_id"};
	struct verify_rules *r = &n->rules;

	if (!db_run(n->db, &rules, NULL, &r->rows, err) || !db_run(n->db, &workspaces, NULL, &r->workspaces, err))
		return false;
	r->count = (size_t)PQntuples(r->rows);
	r->active = mem_array(r->count, sizeof(*r->active));
	r->active_ns = INT64_MIN;
	for (int row = 0; row < PQntuples(r->workspaces); row++) {
		hash_put(&r->names, (uint64_t)res_i64(r->workspaces, row, 0), (size_t)row);
		if (res_bool(r->workspaces, row, 2))
			r->unattributed = res_i64(r->workspaces, row, 0);
	}
	return true;
}

const char *
verify_workspace(const struct verify_node *n, int64_t workspace_id)
{
	size_t row = hash_get(&n->rules.names, (uint64_t)workspace_id);

	return row == HASH_NONE ? "" : res_text(n->rules.workspaces, (int)row, 1);
}

static const char *
pattern(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? NULL : res_text(r, row, col);
}

static void
rules_at(struct verify_rules *s, int64_t hour_ns)
{
	const PGresult *r = s->rows;

	if (s->active_ns == hour_ns)
		return;
	s->active_ns = hour_ns;
	s->active_count = 0;
	for (int row = 0; row < (int)s->count; row++) {
		if ((!res_null(r, row, RULE_FROM) && hour_ns < res_i64(r, row, RULE_FROM)) ||
		    (!res_null(r, row, RULE_UNTIL) && hour_ns >= res_i64(r, row, RULE_UNTIL)))
			continue;
		s->active[s->active_count++] = (struct attribution_rule){
			.id = res_i64(r, row, RULE_ID),
			.workspace_id = res_i64(r, row, RULE_WORKSPACE),
			.priority = res_i64(r, row, RULE_PRIORITY),
			.cluster = pattern(r, row, RULE_CLUSTER),
			.ns = pattern(r, row, RULE_NAMESPACE),
			.slurm_account = pattern(r, row, RULE_ACCOUNT),
			.user = pattern(r, row, RULE_USER),
			.group = pattern(r, row, RULE_GROUP),
			.labels = pattern(r, row, RULE_LABELS),
		};
	}
	attribution_sort(s->active, s->active_count);
}

/* The workspace that the rules give a holder; the ledger must have the same. */
static int64_t
owner_of(struct verify_node *n, int64_t hour_ns, const PGresult *r, int row)
{
	struct wire_holder h = {
		.id = 1,
		.kind = (uint32_t)res_i64(r, row, 2),
		.ns = PQgetvalue(r, row, 3),
		.pod = PQgetvalue(r, row, 4),
		.pod_uid = PQgetvalue(r, row, 5),
		.container = PQgetvalue(r, row, 6),
		.slurm_job = PQgetvalue(r, row, 7),
		.slurm_account = PQgetvalue(r, row, 8),
		.user = PQgetvalue(r, row, 9),
		.uid = res_i64(r, row, 10),
		.group = PQgetvalue(r, row, 11),
		.labels = PQgetvalue(r, row, 12),
	};
	const struct attribution_rule *rule =
		attribution_match(n->rules.active, n->rules.active_count, res_text(r, row, 1), &h);
	int64_t expected = rule != NULL ? rule->workspace_id : n->rules.unattributed;
	char what[256];

	if (res_i64(r, row, 13) != expected) {
		snprintf(what, sizeof(what), "holder_attribution of %.200s", res_text(r, row, 14));
		verify_report_text(n, "attribution", NULL, hour_ns, what, verify_workspace(n, expected),
		                   verify_workspace(n, res_i64(r, row, 13)));
	}
	return expected;
}

static bool
load_owners(struct verify_node *n, int64_t hour_ns, struct db_array *ids, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify owners",
		"SELECT h.id, c.name, h.kind, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, h.slurm_account, "
		"h.user_name, h.uid, h.group_name, labels_text(h.labels), (SELECT a.workspace_id "
		"FROM holder_attribution a WHERE a.holder_id = h.id "
		"AND a.effective @> $2::timestamptz), " USAGE_WORKLOAD " FROM holder h "
		"JOIN cluster c ON c.id = h.cluster_id WHERE h.id = ANY ($1::bigint[])"};
	struct db_args a = {0};

	arg_array(&a, ids);
	arg_time(&a, hour_ns);
	if (!db_run(n->db, &stmt, &a, ret, err))
		return false;
	rules_at(&n->rules, hour_ns);
	return true;
}

bool
verify_owners(struct verify_node *n, int64_t hour_ns, struct node_hour_rows *rows, struct err *err)
{
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array ids = {0};
	in_place(hash) struct hash at = {0}; /* holder -> index in owner */
	owned(mem) int64_t *owner = NULL;

	db_array_init(&ids);
	for (size_t i = 0; i < rows->count; i++) {
		uint64_t id = (uint64_t)rows->at[i].holder_id;

		if (id == 0 || hash_get(&at, id) != HASH_NONE)
			continue;
		hash_put(&at, id, 0);
		array_i64(&ids, (int64_t)id);
	}
	if (ids.count == 0)
		return true;
	if (!load_owners(n, hour_ns, &ids, &r, err))
		return false;
	owner = mem_array((size_t)PQntuples(r) + 1, sizeof(*owner));
	for (int row = 0; row < PQntuples(r); row++) {
		hash_put(&at, (uint64_t)res_i64(r, row, 0), (size_t)row + 1);
		owner[row + 1] = owner_of(n, hour_ns, r, row);
	}
	/* Index 0 is for a holder without a row; the dictionary check reports it. */
	for (size_t i = 0; i < rows->count; i++)
		if (rows->at[i].holder_id != 0)
			rows->at[i].workspace_id = owner[hash_get(&at, (uint64_t)rows->at[i].holder_id)];
	return true;
}

static bool
check_hour(struct verify_node *n, int64_t hour_ns, struct db_array *ids, struct err *err)
{
	owned(result) PGresult *r = NULL;

	if (!load_owners(n, hour_ns, ids, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		(void)owner_of(n, hour_ns, r, row);
	return true;
}

/* Hour by hour; an hour of a tenant has as many holders as it has namespaces that send events. */
bool
verify_event_owners(struct verify_node *n, struct err *err)
{
	static const char named[] =
		"DECLARE verify_named NO SCROLL CURSOR FOR SELECT DISTINCT ns_of(hour_of(e.time_ns)), e.holder_id FROM meter_event e "
		"WHERE e.holder_id IS NOT NULL AND e.time_ns >= ns_of($1) AND e.time_ns < ns_of($2) ORDER BY 1, 2";
	in_place(db_tx) struct db_tx tx = {0};
	in_place(db_array) struct db_array ids = {0};
	struct db_args a = {0};
	int64_t hour_ns = INT64_MIN;
	bool more = true;

	db_array_init(&ids);
	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) || !verify_rules_load(n, err) ||
	    !db_run_text(n->db, named, &a, NULL, err))
		return false;
	while (more) {
		owned(result) PGresult *r = NULL;

		if (!db_run_text(n->db, "FETCH 4000 FROM verify_named", NULL, &r, err))
			return false;
		more = PQntuples(r) > 0;
		for (int row = 0; row < PQntuples(r); row++) {
			if (res_i64(r, row, 0) != hour_ns && ids.count > 0) {
				if (!check_hour(n, hour_ns, &ids, err))
					return false;
				db_array_fini(&ids);
				db_array_init(&ids);
			}
			hour_ns = res_i64(r, row, 0);
			array_i64(&ids, res_i64(r, row, 1));
		}
	}
	return (ids.count == 0 || check_hour(n, hour_ns, &ids, err)) && db_tx_commit(&tx, err);
}

/* --- rule 2 --- */

/* Sorted by the start of the rows: the rules are loaded once for all rows of a change. Columns as load_owners(), then
 * the start, and the expected start. */
static const char histories_sql[] =
	"DECLARE verify_owned NO SCROLL CURSOR FOR SELECT h.id, c.name, h.kind, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, h.slurm_account, "
	"h.user_name, h.uid, h.group_name, labels_text(h.labels), a.workspace_id, " USAGE_WORKLOAD
	", ns_of(lower(a.effective)), a.before IS NOT DISTINCT FROM lower(a.effective), a.is_last AND NOT upper_inf(a.effective), rfc3339(lower(a.effective)) "
	"FROM holder h JOIN cluster c ON c.id = h.cluster_id JOIN (SELECT x.*, lag(upper(x.effective)) OVER w AS before, lead(1) OVER w IS NULL AS is_last "
	"FROM holder_attribution x WHERE NOT isempty(x.effective) WINDOW w AS (PARTITION BY x.holder_id ORDER BY lower(x.effective) NULLS FIRST)) a "
	"ON a.holder_id = h.id ORDER BY lower(a.effective) NULLS FIRST";
enum { OWNED_NAME = 14, OWNED_FROM, OWNED_JOINS, OWNED_ENDS, OWNED_TEXT };

static void
check_owned(struct verify_node *n, const PGresult *r, int row)
{
	int64_t from_ns = res_null(r, row, OWNED_FROM) ? INT64_MIN : res_i64(r, row, OWNED_FROM);
	char what[256];

	/* Before the first rule nothing can begin earlier. */
	rules_at(&n->rules, from_ns == INT64_MIN ? INT64_MIN + 1 : from_ns);
	(void)owner_of(n, from_ns, r, row);
	if (res_bool(r, row, OWNED_JOINS) && !res_bool(r, row, OWNED_ENDS))
		return;
	snprintf(what, sizeof(what), "holder_attribution of %.200s", res_text(r, row, OWNED_NAME));
	verify_report_text(n, "attribution", NULL, from_ns, what, "rows without a gap, from ever to ever",
	                   res_text(r, row, OWNED_TEXT));
}

bool
verify_owner_histories(struct verify_node *n, struct err *err)
{
	static const struct db_stmt without = {"verify ownerless",
	                                       "SELECT " USAGE_WORKLOAD
	                                       " FROM holder h WHERE NOT EXISTS (SELECT FROM holder_attribution a "
	                                       "WHERE a.holder_id = h.id AND NOT isempty(a.effective)) LIMIT 10000"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *none = NULL;
	bool more = true;

	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) || !verify_rules_load(n, err) ||
	    !db_run(n->db, &without, NULL, &none, err) || !db_run_text(n->db, histories_sql, NULL, NULL, err))
		return false;
	for (int row = 0; row < PQntuples(none); row++) {
		char what[256];

		snprintf(what, sizeof(what), "holder_attribution of %.200s", res_text(none, row, 0));
		verify_report_text(n, "attribution", NULL, INT64_MIN, what, "a row", "");
	}
	while (more) {
		owned(result) PGresult *r = NULL;

		if (!db_run_text(n->db, "FETCH 4000 FROM verify_owned", NULL, &r, err))
			return false;
		more = PQntuples(r) > 0;
		for (int row = 0; row < PQntuples(r); row++)
			check_owned(n, r, row);
	}
	return db_tx_commit(&tx, err);
}

/* aggregator/store/ingest/event_store.c - events of other meters: each event is stored once, however often it is
 * sent.
 *
 * Rules, in order:
 *  0. a meter's token sends only events of the sources that the token names
 *  1. an event that names a workspace is refused if no workspace had that name at the time of the event
 *  2. an event that names a namespace belongs to a holder with that namespace; the attribution rules of its hour
 *     decide the owner, also when they change later
 *  3. source and id are the key. The operator's senders share one set of sources; each tenant's senders have their
 *     own. A tenant has a limited number of different SKUs in a month, so that its reports can be made: an event
 *     with one more is refused. The tenant is the owner of the event's workspace, or of its namespace by the rules of
 *     that time. The sum of a tenant's events of a month is limited too (rule 7 of core/metering/events.h): an event
 *     that would exceed the limit is refused, unless it is stored already. Events that name a namespace are summed
 *     per namespace
 *  4. new events are inserted by one statement in the order of the key, so that two senders of the same events cannot
 *     deadlock
 *  5. an event whose key exists already is a duplicate if its content is the same, otherwise a conflict; within one
 *     call the first event of a key counts
 *  6. all of it is one transaction */
#include <string.h>

#include "aggregator/core/metering/events.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/limits.h"
#include "common/base/money.h"
#include "common/conf/json.h"

/* The events not refused so far, and their columns. */
struct event_insert {
	struct db *db;
	const struct event_sender *sender;
	struct event **events;
	int64_t *workspace_id, *holder_id, *source_id; /* 0: none */
	size_t count;
};

static void
event_insert_fini(struct event_insert *a)
{
	mem_free(a->events);
	mem_free(a->workspace_id);
	mem_free(a->holder_id);
	mem_free(a->source_id);
}

static void
event_insert_init(struct event_insert *a, struct db *db, struct events *all, const struct event_sender *sender)
{
	*a = (struct event_insert){.db = db,
	                           .sender = sender,
	                           .events = mem_array(all->count, sizeof(struct event *)),
	                           .workspace_id = mem_array(all->count, sizeof(int64_t)),
	                           .holder_id = mem_array(all->count, sizeof(int64_t)),
	                           .source_id = mem_array(all->count, sizeof(int64_t))};
	for (size_t i = 0; i < all->count; i++)
		if (all->items[i].fate == EVENT_SOUND)
			a->events[a->count++] = &all->items[i];
}

/* Removes the refused events. */
static void
drop_refused(struct event_insert *a)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->count; i++) {
		if (a->events[i]->fate == EVENT_REFUSED)
			continue;
		a->workspace_id[kept] = a->workspace_id[i];
		a->holder_id[kept] = a->holder_id[i];
		a->source_id[kept] = a->source_id[i];
		a->events[kept++] = a->events[i];
	}
	a->count = kept;
}

/* Rule 0. */
static bool
check_sources(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {
		"event sources allowed",
		"SELECT e.ord FROM unnest($1::text[]) WITH ORDINALITY AS e(source, ord) JOIN access_token k "
		"ON k.id = $2 AND k.role = 'meter' WHERE e.source <> ALL (k.sources)"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array names = {0};
	struct db_args args = {0};

	db_array_init(&names);
	for (size_t i = 0; i < a->count; i++)
		array_text(&names, a->events[i]->source);
	arg_array(&args, &names);
	arg_i64(&args, a->sender->token_id);
	if (!db_run(a->db, &stmt, &args, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct event *e = a->events[res_i64(r, row, 0) - 1];

		(void)event_refuse(e, EVENT_REFUSED, ERR_DENIED, "source",
		                   "the token does not send events of the source \"%.64s\"", e->source);
	}
	drop_refused(a);
	return true;
}

/* --- owners --- */

/* Rule 1. */
static bool
find_workspaces(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {
		"event workspaces",
		"SELECT e.ord, w.id FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS e(tenant, "
		"workspace, time_ns, ord) JOIN LATERAL workspaces_at(at_ns(e.time_ns)) w ON w.tenant = e.tenant "
		"AND w.name = e.workspace WHERE NOT w.builtin"};
	owned(result) PGresult *r = NULL;
	in_place(db_columns) struct db_columns rows = {0};
	struct db_args args = {0};

	db_columns_init(&rows, 3);
	for (size_t i = 0; i < a->count; i++) {
		array_text(&rows.col[0], a->events[i]->tenant);
		array_text(&rows.col[1], a->events[i]->workspace);
		array_i64(&rows.col[2], a->events[i]->time_ns);
	}
	arg_columns(&args, &rows);
	if (!db_run(a->db, &stmt, &args, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		a->workspace_id[res_i64(r, row, 0) - 1] = res_i64(r, row, 1);
	for (size_t i = 0; i < a->count; i++) {
		struct event *e = a->events[i];

		if (a->workspace_id[i] == 0 && e->ns[0] == '\0')
			(void)event_refuse(e, EVENT_REFUSED, ERR_MISSING, "data.workspace",
			                   "there is no workspace \"%.64s\" of a tenant \"%.64s\" at that time",
			                   e->workspace, e->tenant);
	}
	drop_refused(a);
	return true;
}

/* Rule 2. A namespace without a pod is a holder like any other, in the ledger's cluster. */
static bool
find_holders(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {"event cluster",
	                                    "SELECT c.id, c.name FROM ledger l JOIN cluster c ON c.id = l.cluster_id"};
	static char none[] = "";
	owned(result) PGresult *r = NULL;
	owned(mem) char *cluster = NULL;
	owned(mem) struct wire_holder *holders = mem_array(a->count, sizeof(*holders));
	owned(mem) size_t *place = mem_array(a->count, sizeof(*place));
	owned(mem) const struct wire_holder **list = mem_array(a->count, sizeof(*list));
	owned(mem) int64_t *ids = mem_array(a->count, sizeof(*ids));
	struct ingest in = {.db = a->db};
	size_t n = 0;

	for (size_t i = 0; i < a->count; i++) {
		if (a->workspace_id[i] != 0)
			continue;
		place[n] = i;
		list[n] = &holders[n];
		/* the lookup only reads the holder's texts */
		holders[n++] = (struct wire_holder){.kind = WIRE_POD,
		                                    .ns = (char *)(uintptr_t)a->events[i]->ns,
		                                    .pod = none,
		                                    .pod_uid = none,
		                                    .container = none,
		                                    .slurm_job = none,
		                                    .slurm_account = none,
		                                    .user = none,
		                                    .group = none,
		                                    .labels = none,
		                                    .uid = -1};
	}
	if (n == 0)
		return true;
	if (!db_run(a->db, &stmt, NULL, &r, err))
		return false;
	in.cluster_id = res_i64(r, 0, 0);
	cluster = mem_strdup(res_text(r, 0, 1));
	in.cluster = cluster;
	if (!holder_ids(&in, list, n, ids, err))
		return false;
	for (size_t k = 0; k < n; k++)
		a->holder_id[place[k]] = ids[k];
	return true;
}

/* --- rule 3 --- */

static bool
source_ids(struct event_insert *a, bool *ret_all, struct err *err)
{
	static const struct db_stmt stmt = {
		"event sources", "SELECT e.ord, s.id FROM unnest($2::text[]) WITH ORDINALITY AS e(name, ord) "
				 "JOIN event_source s ON s.name = e.name AND s.tenant_id IS NOT DISTINCT FROM "
				 "(SELECT t.id FROM tenant t WHERE t.name = $1)"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array names = {0};
	struct db_args args = {0};

	db_array_init(&names);
	for (size_t i = 0; i < a->count; i++)
		array_text(&names, a->events[i]->source);
	arg_text(&args, a->sender->tenant);
	arg_array(&args, &names);
	if (!db_run(a->db, &stmt, &args, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		a->source_id[res_i64(r, row, 0) - 1] = res_i64(r, row, 1);
	*ret_all = PQntuples(r) == (int)a->count;
	return true;
}

static bool
find_sources(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {"event sources new",
	                                    "INSERT INTO event_source (tenant_id, name) "
	                                    "SELECT DISTINCT (SELECT t.id FROM tenant t WHERE t.name = $1), e.name "
	                                    "FROM unnest($2::text[]) AS e(name) ORDER BY 2 ON CONFLICT DO NOTHING"};
	in_place(db_array) struct db_array names = {0};
	struct db_args args = {0};
	bool all = false;

	db_array_init(&names);
	if (!source_ids(a, &all, err) || all)
		return all;
	for (size_t i = 0; i < a->count; i++)
		if (a->source_id[i] == 0)
			array_text(&names, a->events[i]->source);
	arg_text(&args, a->sender->tenant);
	arg_array(&args, &names);
	if (!db_run(a->db, &stmt, &args, NULL, err) || !source_ids(a, &all, err))
		return false;
	return all || err_set(err, ERR_RETRY, "the ledger did not give the sources of the events back");
}

static void
array_id(struct db_array *list, int64_t id)
{
	if (id == 0)
		array_text(list, NULL);
	else
		array_i64(list, id);
}

static bool
lock_tenants(struct event_insert *a, struct db_array *tenants, struct err *err)
{
	static const struct db_stmt stmt = {
		"event tenants", "SELECT FROM tenant WHERE id = ANY($1::integer[]) ORDER BY id FOR NO KEY UPDATE"};
	struct db_args args = {0};

	arg_array(&args, tenants);
	return db_run(a->db, &stmt, &args, NULL, err);
}

#define SKUS_OF_EVENTS                                                                                                                   \
	"WITH e AS (SELECT e.ord, coalesce(w.tenant_id, h.tenant_id, 0) AS tenant_id, date_trunc('month', at_ns(e.time_ns) "             \
	"AT TIME ZONE l.zone)::date AS month, e.sku FROM ledger l, unnest($1::bigint[], $2::bigint[], $3::bigint[], "                    \
	"$4::text[]) WITH ORDINALITY AS e(workspace_id, holder_id, time_ns, sku, ord) "                                                  \
	"LEFT JOIN workspace w ON w.id = e.workspace_id LEFT JOIN LATERAL (SELECT x.tenant_id FROM holder_attribution y "                \
	"JOIN workspace x ON x.id = y.workspace_id WHERE y.holder_id = e.holder_id AND y.effective @> at_ns(e.time_ns) "                 \
	"LIMIT 1) h ON true), new AS (SELECT tenant_id, month, sku, min(ord) AS ord FROM e WHERE sku <> '' AND NOT EXISTS (SELECT FROM " \
	"event_sku k WHERE (k.tenant_id, k.month, k.sku) = (e.tenant_id, e.month, e.sku)) GROUP BY 1, 2, 3) "

static void
sku_args(const struct event_insert *a, struct db_columns *rows, struct db_args *args)
{
	db_columns_init(rows, 4);
	for (size_t i = 0; i < a->count; i++) {
		array_id(&rows->col[0], a->workspace_id[i]);
		array_id(&rows->col[1], a->holder_id[i]);
		array_i64(&rows->col[2], a->events[i]->time_ns);
		array_text(&rows->col[3], a->events[i]->sku);
	}
	arg_columns(args, rows);
}

/* Refuses the events whose SKUs exceed the limit. */
static void
refuse_skus(struct event_insert *a, const PGresult *r)
{
	for (int row = 0; row < PQntuples(r); row++)
		(void)event_refuse(
			a->events[res_i64(r, row, 0) - 1], EVENT_REFUSED, ERR_LIMIT, "data.sku",
			"tenant-skus: the tenant has %s different SKUs in the events of that month, and may have "
			"%" PRId64,
			res_text(r, row, 1), a->sender->skus_max);
	drop_refused(a);
}

/* Known SKUs cost one query. New ones are counted with their tenants locked: otherwise two senders could both use the
 * last free place. */
static bool
count_skus(struct event_insert *a, struct err *err)
{
	static const struct db_stmt look = {"event skus", SKUS_OF_EVENTS "SELECT DISTINCT tenant_id FROM new"};
	static const struct db_stmt enter = {
		"event skus enter", SKUS_OF_EVENTS
		", had AS (SELECT n.tenant_id, n.month, (SELECT count(*) FROM event_sku k WHERE (k.tenant_id, k.month) = "
		"(n.tenant_id, n.month)) AS skus FROM (SELECT DISTINCT tenant_id, month FROM new) n), "
		"ranked AS (SELECT n.*, h.skus, row_number() OVER (PARTITION BY n.tenant_id, n.month ORDER BY n.ord) AS nth FROM new n "
		"JOIN had h USING (tenant_id, month)), "
		"entered AS (INSERT INTO event_sku (tenant_id, month, sku) SELECT tenant_id, month, sku FROM ranked WHERE skus + nth "
		"<= $5::bigint ON CONFLICT DO NOTHING) "
		"SELECT e.ord, greatest(r.skus, $5) FROM e JOIN ranked r USING (tenant_id, month, sku) "
		"WHERE r.skus + r.nth > $5"};
	owned(result) PGresult *tenants = NULL, *over = NULL;
	in_place(db_columns) struct db_columns rows = {0}, again = {0};
	in_place(db_array) struct db_array ids = {0};
	struct db_args args = {0}, more = {0};

	db_array_init(&ids);
	sku_args(a, &rows, &args);
	sku_args(a, &again, &more);
	if (!db_run(a->db, &look, &args, &tenants, err))
		return false;
	if (PQntuples(tenants) == 0)
		return true;
	for (int row = 0; row < PQntuples(tenants); row++)
		array_i64(&ids, res_i64(tenants, row, 0));
	arg_i64(&more, a->sender->skus_max);
	if (!lock_tenants(a, &ids, err) || !db_run(a->db, &enter, &more, &over, err))
		return false;
	refuse_skus(a, over);
	return true;
}

/* Large events stored for the tenants and namespaces, in the months of the new events, ordered by group. The partial
 * indexes of sql/0008_events.sql have this condition. */
#define LARGE                                                                                                   \
	"((m.type = 4 AND m.amount >= 10) OR (m.type IN (1, 2) AND m.amount >= 10000) OR greatest(m.requests, " \
	"m.input_tokens, m.output_tokens) >= 10000000)"
_Static_assert(LIMIT_METER_HOURS_DIGITS - LIMIT_METER_SMALL_DIGITS == 1 &&
                       LIMIT_METER_GB_DIGITS - LIMIT_METER_SMALL_DIGITS == 4 &&
                       LIMIT_METER_COUNT_DIGITS - LIMIT_METER_SMALL_DIGITS == 7,
               "LARGE says which events are not small");
#define MEASURED "m.type, m.amount, m.requests, m.input_tokens, m.output_tokens"
static const struct db_stmt sums_stmt = {
	"event sums",
	"WITH e AS (SELECT e.ord, w.tenant_id, e.holder_id, date_trunc('month', at_ns(e.time_ns) AT TIME ZONE l.zone) AS month FROM ledger l, "
	"unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) WITH ORDINALITY AS e(workspace_id, holder_id, time_ns, "
	"source_id, id, ord) LEFT JOIN workspace w ON w.id = e.workspace_id WHERE NOT EXISTS (SELECT FROM meter_event m WHERE m.source_id = "
	"e.source_id AND m.id = e.id)), "
	"g AS (SELECT row_number() OVER () AS number, x.*, ns_of(x.month AT TIME ZONE l.zone) AS from_ns, ns_of((x.month + interval '1 month') AT "
	"TIME ZONE l.zone) AS until_ns FROM ledger l, (SELECT DISTINCT tenant_id, holder_id, month FROM e) x), "
	"had AS MATERIALIZED (SELECT g.*, s.* FROM g CROSS JOIN LATERAL (SELECT sum(m.amount) FILTER (WHERE m.type = 1) AS storage, sum(m.amount) FILTER "
	"(WHERE m.type = 2) AS egress, sum(m.requests) AS requests, sum(m.input_tokens) AS input, sum(m.output_tokens) AS output, "
	"sum(m.amount) FILTER (WHERE m.type = 4) AS support FROM ("
	"SELECT " MEASURED
	" FROM workspace x JOIN meter_event m ON m.workspace_id = x.id WHERE x.tenant_id = g.tenant_id AND m.time_ns >= g.from_ns "
	"AND m.time_ns < g.until_ns AND " LARGE " UNION ALL SELECT " MEASURED
	" FROM meter_event m WHERE m.holder_id = g.holder_id AND m.time_ns >= "
	"g.from_ns AND m.time_ns < g.until_ns AND " LARGE ") m) s) "
	"SELECT h.number, e.ord, h.tenant_id, to_char(h.month, 'YYYY-MM'), coalesce(h.storage, 0), coalesce(h.egress, 0), coalesce(h.requests, 0), "
	"coalesce(h.input, 0), coalesce(h.output, 0), coalesce(h.support, 0) FROM e JOIN had h ON h.month = e.month AND h.tenant_id IS NOT DISTINCT "
	"FROM e.tenant_id AND h.holder_id IS NOT DISTINCT FROM e.holder_id ORDER BY 1, 2"};
enum { SUM_GROUP, SUM_ORD, SUM_TENANT, SUM_MONTH, SUM_FIRST };

static bool
load_sums(struct event_insert *a, const size_t *large, size_t n, PGresult **ret, struct err *err)
{
	in_place(db_columns) struct db_columns rows = {0};
	struct db_args args = {0};

	db_columns_init(&rows, 5);
	for (size_t k = 0; k < n; k++) {
		array_id(&rows.col[0], a->workspace_id[large[k]]);
		array_id(&rows.col[1], a->holder_id[large[k]]);
		array_i64(&rows.col[2], a->events[large[k]]->time_ns);
		array_i64(&rows.col[3], a->source_id[large[k]]);
		array_text(&rows.col[4], a->events[large[k]]->id);
	}
	arg_columns(&args, &rows);
	return db_run(a->db, &sums_stmt, &args, ret, err);
}

/* Each group of rows starts a new sum. */
static bool
start_sums(const PGresult *r, int row, int128 sums[EVENT_METERS], struct err *err)
{
	if (row > 0 && res_i64(r, row, SUM_GROUP) == res_i64(r, row - 1, SUM_GROUP))
		return true;
	for (int m = 0; m < EVENT_METERS; m++)
		if (!decimal_parse(res_text(r, row, SUM_FIRST + m), QUANTITY_SCALE, &sums[m], err))
			return db_damaged(err);
	return true;
}

/* Locks tenants close to a limit: otherwise two of their senders could both use the remainder. */
static bool
tenants_to_lock(const struct event_insert *a, const size_t *large, const PGresult *r, struct db_array *ret,
                bool *ret_any, struct err *err)
{
	int128 sums[EVENT_METERS] = {0};

	for (int row = 0; row < PQntuples(r); row++) {
		if (!start_sums(r, row, sums, err))
			return false;
		event_sum(a->events[large[res_i64(r, row, SUM_ORD) - 1]], sums);
		if (res_null(r, row, SUM_TENANT) || !event_sums_are_large(sums))
			continue;
		array_i64(ret, res_i64(r, row, SUM_TENANT));
		*ret_any = true;
	}
	return true;
}

/* Most events are small and need no query here. */
static bool
limit_sums(struct event_insert *a, struct err *err)
{
	owned(mem) size_t *large = mem_array(a->count, sizeof(*large));
	owned(result) PGresult *seen = NULL, *locked = NULL;
	in_place(db_array) struct db_array tenants = {0};
	int128 sums[EVENT_METERS] = {0};
	const PGresult *r;
	bool near = false;
	size_t n = 0;

	db_array_init(&tenants);
	for (size_t i = 0; i < a->count; i++)
		if (!event_is_small(a->events[i]))
			large[n++] = i;
	if (n == 0)
		return true;
	if (!load_sums(a, large, n, &seen, err) || !tenants_to_lock(a, large, seen, &tenants, &near, err) ||
	    (near && (!lock_tenants(a, &tenants, err) || !load_sums(a, large, n, &locked, err))))
		return false;
	r = near ? locked : seen;
	for (int row = 0; row < PQntuples(r); row++) {
		if (!start_sums(r, row, sums, err))
			return false;
		(void)event_add_up(a->events[large[res_i64(r, row, SUM_ORD) - 1]], res_text(r, row, SUM_MONTH), sums);
	}
	drop_refused(a);
	return true;
}

/* --- rules 4 and 5 --- */

static void
array_amount(struct db_array *list, int128 amount, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	array_text(list, amount == EVENT_NONE ? NULL : decimal_format(amount, scale, 0, text));
}

enum { COLUMNS = 16 };

static void
add_row(struct db_columns *c, const struct event_insert *a, size_t i)
{
	const struct event *e = a->events[i];
	struct db_array *col = c->col;

	array_i64(col++, a->source_id[i]);
	array_text(col++, e->id);
	array_i64(col++, e->type);
	array_i64(col++, e->time_ns);
	array_id(col++, a->workspace_id[i]);
	array_id(col++, a->holder_id[i]);
	array_text(col++, e->sku);
	array_amount(col++, e->amount, QUANTITY_SCALE);
	array_amount(col++, e->requests, 0);
	array_amount(col++, e->input_tokens, 0);
	array_amount(col++, e->output_tokens, 0);
	array_text(col++, e->model);
	array_text(col++, e->caller);
	array_text(col++, e->server);
	array_bytes(col++, e->digest, sizeof(e->digest));
	array_text(col++, e->end_user[0] != '\0' ? e->end_user : NULL);
	ASSERT(col == c->col + COLUMNS);
}

static bool
insert(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {
		"events insert",
		"INSERT INTO meter_event (token_id, source_id, id, type, time_ns, workspace_id, holder_id, sku, amount, "
		"requests, input_tokens, output_tokens, model, caller, server, digest, end_user) "
		"SELECT DISTINCT ON (e.source_id, e.id) $1::bigint, e.source_id, e.id, e.type, e.time_ns, e.workspace_id, "
		"e.holder_id, e.sku, e.amount, e.requests, e.input_tokens, e.output_tokens, e.model, e.caller, e.server, "
		"e.digest, e.end_user FROM unnest($2::bigint[], $3::text[], $4::smallint[], $5::bigint[], $6::integer[], $7::bigint[], "
		"$8::text[], $9::numeric[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], "
		"$15::text[], $16::bytea[], $17::text[]) WITH ORDINALITY AS e(source_id, id, type, time_ns, workspace_id, holder_id, "
		"sku, amount, requests, input_tokens, output_tokens, model, caller, server, digest, end_user, ord) "
		"ORDER BY e.source_id, e.id, e.ord ON CONFLICT (source_id, id) DO NOTHING"};
	in_place(db_columns) struct db_columns rows = {0};
	struct db_args args = {0};

	db_columns_init(&rows, COLUMNS);
	for (size_t i = 0; i < a->count; i++)
		add_row(&rows, a, i);
	arg_i64(&args, a->sender->token_id);
	arg_columns(&args, &rows);
	return db_run(a->db, &stmt, &args, NULL, err);
}

/* A row written by this transaction is the first event of its key in this call; any other row is compared with the
 * event. */
static bool
set_outcomes(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {
		"events settle",
		"SELECT e.ord, m.xmin = pg_current_xact_id()::xid AND row_number() OVER (PARTITION BY e.source_id, e.id "
		"ORDER BY e.ord) = 1, m.digest = e.digest FROM unnest($1::bigint[], $2::text[], $3::bytea[]) "
		"WITH ORDINALITY AS e(source_id, id, digest, ord) "
		"JOIN meter_event m ON m.source_id = e.source_id AND m.id = e.id"};
	owned(result) PGresult *r = NULL;
	in_place(db_columns) struct db_columns keys = {0};
	struct db_args args = {0};

	db_columns_init(&keys, 3);
	for (size_t i = 0; i < a->count; i++) {
		array_i64(&keys.col[0], a->source_id[i]);
		array_text(&keys.col[1], a->events[i]->id);
		array_bytes(&keys.col[2], a->events[i]->digest, SHA256_SIZE);
	}
	arg_columns(&args, &keys);
	if (!db_run(a->db, &stmt, &args, &r, err))
		return false;
	if (PQntuples(r) != (int)a->count)
		return err_set(err, ERR_RETRY, "the ledger returned %d of %zu events", PQntuples(r), a->count);
	for (int row = 0; row < PQntuples(r); row++) {
		struct event *e = a->events[res_i64(r, row, 0) - 1];

		if (res_bool(r, row, 1))
			e->fate = EVENT_ACCEPTED;
		else if (res_bool(r, row, 2))
			e->fate = EVENT_DUPLICATE;
		else
			(void)event_refuse(e, EVENT_CONFLICT, ERR_CONFLICT, "id",
			                   "this source sent an event of this id with other content before");
	}
	return true;
}

/* Stores the bounds of the events' months and, where such a month is closed, of the current month, which carries the
 * correction. */
static bool
make_periods(struct event_insert *a, struct err *err)
{
	static const struct db_stmt stmt = {"event periods", "SELECT make_periods(at_ns($1), at_ns($2))"};
	static const struct db_stmt late = {
		"event periods late",
		"SELECT make_periods(at_ns($3), at_ns($3) + interval '1 microsecond') WHERE EXISTS (SELECT FROM period p "
		"WHERE p.status = 'closed' AND p.starts_at < at_ns($2) AND p.ends_at > at_ns($1))"};
	int64_t first_ns = a->events[0]->time_ns, last_ns = first_ns;
	struct db_args args = {0};

	for (size_t i = 0; i < a->count; i++) {
		first_ns = a->events[i]->time_ns < first_ns ? a->events[i]->time_ns : first_ns;
		last_ns = a->events[i]->time_ns > last_ns ? a->events[i]->time_ns : last_ns;
	}
	arg_i64(&args, first_ns);
	arg_i64(&args, last_ns + NS_PER_US);
	if (!db_run(a->db, &stmt, &args, NULL, err))
		return false;
	arg_i64(&args, a->sender->now_ns);
	return db_run(a->db, &late, &args, NULL, err);
}

bool
store_events_add(struct db *db, struct events *all, const struct event_sender *sender, struct err *err)
{
	in_place(event_insert) struct event_insert a = {0};
	in_place(db_tx) struct db_tx tx = {0};

	event_insert_init(&a, db, all, sender);
	if (a.count == 0)
		return true;
	if (!db_tx_begin(&tx, db, err) || (sender->by_meter && !check_sources(&a, err)) || !find_workspaces(&a, err))
		return false;
	if (a.count == 0)
		return true;
	if (!find_holders(&a, err) || !count_skus(&a, err))
		return false;
	if (a.count == 0)
		return true;
	if (!find_sources(&a, err) || !limit_sums(&a, err))
		return false;
	if (a.count == 0)
		return true;
	return insert(&a, err) && set_outcomes(&a, err) && make_periods(&a, err) && db_tx_commit(&tx, err);
}

/* --- totals of a billing month --- */

#define METERS_MAX 100000

static bool
write_rows(const PGresult *r, struct buf *out, struct err *err)
{
	if (PQntuples(r) > METERS_MAX)
		return err_set(err, ERR_INVALID, "meter: more than %d groups; ask for one meter or one tenant",
		               METERS_MAX);
	res_json(r, out);
	return true;
}

bool
store_meters_json(struct db *db, const struct meter_query *q, struct buf *out, struct err *err)
{
	static const struct db_stmt bounds = {"meter period",
	                                      "SELECT ns_of(starts_at), ns_of(ends_at) FROM period WHERE month = $1"};
	/* not prepared: the planner should see the length of the range */
	static const char totals[] =
		"SELECT t.name AS tenant, w.name AS workspace, u.category, u.meter, u.unit, u.sku, "
		"trim_scale(sum(u.quantity))::text AS quantity, sum(u.events)::bigint AS events "
		"FROM meter_usage($1, $2) u JOIN workspace w ON w.id = u.workspace_id JOIN tenant t ON t.id = w.tenant_id "
		"WHERE ($3::text IS NULL OR t.name = $3) AND ($4::text IS NULL OR u.meter = $4) "
		"GROUP BY t.name, w.name, u.category, u.meter, u.unit, u.sku "
		"ORDER BY t.name, w.name, u.category, u.meter, u.unit, u.sku LIMIT 100001";
	static const char by_end_user[] =
		"SELECT t.name AS tenant, w.name AS workspace, 'inference' AS category, m.meter, m.unit, e.sku, coalesce(e.end_user, '') AS end_user, "
		"trim_scale(sum(m.quantity))::text AS quantity, count(*) AS events FROM meter_event e LEFT JOIN holder_attribution a "
		"ON a.holder_id = e.holder_id AND a.effective @> at_ns(e.time_ns) JOIN workspace w ON w.id = coalesce(e.workspace_id, a.workspace_id) "
		"JOIN tenant t ON t.id = w.tenant_id CROSS JOIN LATERAL (VALUES ('inference-requests', 'request', e.requests::numeric), "
		"('inference-input-tokens', 'token', e.input_tokens::numeric), ('inference-output-tokens', 'token', e.output_tokens::numeric)) "
		"AS m(meter, unit, quantity) WHERE e.type = 3 AND e.time_ns >= ns_of($1) AND e.time_ns < ns_of($2) AND m.quantity IS NOT NULL "
		"AND ($3::text IS NULL OR t.name = $3) AND ($4::text IS NULL OR m.meter = $4) GROUP BY 1, 2, 4, 5, 6, 7 "
		"ORDER BY 1, 2, 4, 5, 6, 7 LIMIT 100001";
	owned(result) PGresult *p = NULL, *r = NULL;
	struct db_args b = {0}, a = {0};
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE];

	_Static_assert(METERS_MAX == 100000, "the statement asks for one row more");
	arg_text(&b, q->period);
	if (!db_run(db, &bounds, &b, &p, err))
		return false;
	if (PQntuples(p) == 0)
		return err_set(err, ERR_MISSING, "the ledger has nothing of the period \"%.32s\"", q->period);
	arg_time(&a, res_i64(p, 0, 0));
	arg_time(&a, res_i64(p, 0, 1));
	arg_text(&a, q->tenant);
	arg_text(&a, q->meter);
	if (!db_run_text(db, q->by_end_user ? by_end_user : totals, &a, &r, err))
		return false;
	buf_printf(out, "{\"period\":\"%s\",\"from\":\"%s\",\"to\":\"%s\",\"meters\":", q->period,
	           time_format(res_i64(p, 0, 0), from), time_format(res_i64(p, 0, 1), to));
	if (!write_rows(r, out, err))
		return false;
	buf_str(out, "}\n");
	return buf_ok(out, "the answer", err);
}

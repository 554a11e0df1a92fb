/* aggregator/store/access/audit_store.c - the audit log, read. It is written in the transactions that change something. */
#include "aggregator/store/access/access.h"
#include "aggregator/store/db/db.h"

static void
arg_time_or_any(struct db_args *a, int64_t wall_ns)
{
	if (wall_ns == INT64_MIN || wall_ns == INT64_MAX)
		arg_text(a, NULL);
	else
		arg_time(a, wall_ns);
}

/* Not prepared: planned for the filters given, each with its own index. */
bool
store_audit_json(struct db *db, const struct audit_query *q, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT a.id, rfc3339(a.at) AS at, a.actor, a.action, a.subject, t.name AS tenant, a.before, a.after, "
		"a.reason FROM audit_log a LEFT JOIN tenant t ON t.id = a.tenant_id "
		"WHERE ($1::text IS NULL OR a.tenant_id = (SELECT id FROM tenant WHERE name = $1)) "
		"AND ($2::text IS NULL OR a.actor = $2) AND ($3::text IS NULL OR a.action = $3) "
		"AND ($4::text IS NULL OR a.subject = $4) AND ($5::timestamptz IS NULL OR a.at >= $5) "
		"AND ($6::timestamptz IS NULL OR a.at < $6) AND ($7::bigint = 0 OR a.id < $7) "
		"ORDER BY a.id DESC LIMIT $8::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->tenant);
	arg_text(&a, q->actor);
	arg_text(&a, q->action);
	arg_text(&a, q->subject);
	arg_time_or_any(&a, q->from_ns);
	arg_time_or_any(&a, q->to_ns);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "entries", q->page.limit, out, err);
}

/* aggregator/store/policy/policy_over_time.h - rows that hold for a range of billing hours: between the files that write a policy.
 *
 * A table is made to say what the file says from an hour on. What is the same stays untouched, what had not begun by then is
 * taken back, what is in force and no longer said ends, and the new begins. */
#ifndef TOLLGATE_POLICY_OVER_TIME_H
#define TOLLGATE_POLICY_OVER_TIME_H

#include "aggregator/core/policy/policy_capacity.h"
#include "aggregator/store/db/db.h"

struct over_time {
	struct db_stmt drop, cut, fill;
};

/* `columns` are the table's beside effective, `of_t` the same of the alias t, `file` a query that gives them from the
 * parameters after $1, the hour; `scope` restricts what of the table is looked at, and begins with AND. Rows are compared as
 * text, so that NULL equals NULL and the join can be hashed. */
#define OVER_TIME(name, table, columns, of_t, file, scope)                                                            \
	{                                                                                                             \
		.drop = {name " drop", "WITH file AS (" file ") DELETE FROM " table " t WHERE lower(t.effective) "    \
		                       ">= $1 " scope " AND NOT EXISTS (SELECT FROM file f WHERE lower(t.effective) " \
		                       "= $1 AND upper_inf(t.effective) AND f::text = ROW(" of_t ")::text)"},         \
		.cut = {name " cut", "WITH file AS (" file ") UPDATE " table                                          \
		                     " t SET effective = tstzrange(lower(t.effective), $1) "                          \
		                     "WHERE t.effective @> $1::timestamptz " scope                                    \
		                     " AND NOT EXISTS (SELECT FROM file f WHERE upper_inf(t.effective) "              \
		                     "AND f::text = ROW(" of_t ")::text)"},                                           \
		.fill = {name, "WITH file AS (" file ") INSERT INTO " table " (" columns ", effective) "              \
		               "SELECT f.*, tstzrange($1, NULL) FROM file f WHERE NOT EXISTS (SELECT FROM " table     \
		               " t WHERE upper_inf(t.effective) AND t.effective @> $1::timestamptz " scope            \
		               " AND f::text = ROW(" of_t ")::text)"},                                                \
	}

/* The hour is the first argument. */
MUST_CHECK bool over_time_write(struct db *db, const struct over_time *t, const struct db_args *a, struct err *err);

/* policy_quota_rows.c, policy_node_rows.c: the caller holds DB_LOCK_POLICY exclusively, and has written tenants, workspaces,
 * clusters and nodes. */
MUST_CHECK bool quota_rows_write(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err);
/* Of the tenant `only` alone, when it is given. `file` names the document in a refusal. */
MUST_CHECK bool reservation_rows_write(struct db *db, const struct policy *p, const char *only, const char *file,
                                       int64_t effective_ns, struct err *err);
MUST_CHECK bool node_rows_write(struct db *db, const struct policy *p, const char *file, int64_t effective_ns,
                                struct err *err);
/* policy_price_rows.c; NULL: from then on there are no prices. */
MUST_CHECK bool price_rows_write(struct db *db, const struct policy_book *book, int64_t effective_ns, struct err *err);
/* Of a file that reaches into closed months, which end at closed_ns: its prices are those in force last, and nothing is written. */
MUST_CHECK bool price_rows_keep(struct db *db, const struct policy_book *book, int64_t closed_ns, struct err *err);
/* A number, or NULL. */
void array_i64_or_null(struct db_array *a, bool known, int64_t v);

#endif

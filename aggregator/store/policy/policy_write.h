/* aggregator/store/policy/policy_write.h - a policy as rows that hold for ranges of billing hours. For the files of store/ only.
 *
 * Writing a policy makes each table say what the file says from an hour on. A row that is the same stays untouched, a row that has
 * not begun by that hour is deleted, a row in force that the file no longer has ends at that hour, and new rows begin at it. */
#ifndef TOLLGATE_POLICY_WRITE_H
#define TOLLGATE_POLICY_WRITE_H

#include "aggregator/core/policy/policy.h"
#include "aggregator/store/db/db.h"

/* Makes the ledger say what the policy says from effective_ns on. The caller holds DB_LOCK_POLICY exclusively. `only` is the one
 * tenant whose part is new (NULL: the whole policy is), `file` the name of the document for a refusal. closed_ns is the end of the
 * last closed month, 0 when effective_ns lies behind it. */
MUST_CHECK bool policy_write(struct db *db, const struct policy *p, const char *only, const char *file,
                             int64_t effective_ns, int64_t closed_ns, struct err *err);
/* policy_write_nodes.c: capacity and states of nodes, then reservations (of the tenant `only` alone, when it is given). Tenants,
 * workspaces, clusters and nodes have been written. */
MUST_CHECK bool policy_write_nodes(struct db *db, const struct policy *p, const char *file, int64_t effective_ns,
                                   struct err *err);
MUST_CHECK bool policy_write_reservations(struct db *db, const struct policy *p, const char *only, const char *file,
                                          int64_t effective_ns, struct err *err);

/* policy_apply.c: the policy that was applied last; NULL in *ret when there is none. */
MUST_CHECK bool policy_in_force(struct db *db, struct policy **ret, struct err *err);

struct over_time {
	struct db_stmt drop, cut, fill;
};

/* The table's `columns` without effective, `of_t` the same of the alias t, `file` a query that gives them from the
 * parameters after $1, which is the hour; `scope` restricts the rows of the table that are compared, and begins with AND. Rows are compared as
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
/* A number, or NULL. */
void array_i64_or_null(struct db_array *a, bool known, int64_t v);

#endif

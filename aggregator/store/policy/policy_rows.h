/* aggregator/store/policy/policy_rows.h - a policy as rows: between policy_store.c, which decides, and policy_rows.c, which
 * writes. */
#ifndef TOLLGATE_POLICY_ROWS_H
#define TOLLGATE_POLICY_ROWS_H

#include "aggregator/store/db/db.h"

/* Makes the ledger say what the policy says from effective_ns on. The caller holds DB_LOCK_POLICY exclusively. `only` is
 * the one tenant whose part is new (NULL: all of it is), `file` the name of the document for a refusal. Until
 * closed_ns its hours are of closed months; 0: none is. */
MUST_CHECK bool policy_rows_write(struct db *db, const struct policy *p, const char *only, const char *file,
                                  int64_t effective_ns, int64_t closed_ns, struct err *err);

/* policy_store.c: what was applied last; NULL in *ret: nothing was. */
MUST_CHECK bool policy_in_force(struct db *db, struct policy **ret, struct err *err);

#endif

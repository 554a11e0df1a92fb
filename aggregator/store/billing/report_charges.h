/* aggregator/store/billing/report_charges.h - what a tenant's workspaces held in a month, row by row, for report_rows.c: most of what a report
 * reads. It comes by COPY, which costs the server and this program half of what a result does. */
#ifndef TOLLGATE_REPORT_CHARGES_H
#define TOLLGATE_REPORT_CHARGES_H

#include "aggregator/store/billing/report_rows.h"

/* Which commitments a row may be a part of. Rows are sorted by it where that matters. */
struct pool_key {
	int64_t cluster_id, owner_id; /* owner 0: shared */
	const char *gpu_model;
	int64_t workspace_id;
	int64_t day; /* ordinal in the month */
	int64_t book_id;
};
int pool_key_compare(const struct pool_key *a, const struct pool_key *b);

struct report_charge {
	struct pool_key key;
	const char *profile, *klass;
	int64_t units, sharing;
	int128 used, idle, unmeasured, over, energy_mj;
};

/* workspaces: their ids as an array of SQL. Equal texts are mostly one text in memory. In no order. */
MUST_CHECK bool report_charges_load(const struct report_month *m, const char *workspaces, struct report_charges *ret,
                                    struct err *err);
/* By key, then larger instances first, by profile, sharing and class. */
void report_charges_sort(struct report_charges *c);
void report_charges_fini(struct report_charges *c);

#endif

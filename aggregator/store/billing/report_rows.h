/* aggregator/store/billing/report_rows.h - between report_store.c (the month, its books, its tenants) and report_rows.c (the rows of one of
 * them). */
#ifndef TOLLGATE_REPORT_ROWS_H
#define TOLLGATE_REPORT_ROWS_H

#include "aggregator/core/policy/policy.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/db/db.h"
#include "common/base/idmap.h"

/* One snapshot of a month. */
struct report_month {
	struct db *db;
	const struct rating_input *in; /* its bounds and books */
	const struct idmap *books;     /* id -> index */
	PGresult *clusters;            /* id, name */
	struct idmap cluster_at;
	PGresult *centers; /* cost_centers(): tenant, first day since the month began, cost centre, in this order */
	char *dirty;       /* days that are not stored, as an array */
	bool open;         /* there are such days: they are in temporary tables */
	const struct shared_month *shared; /* what this tenant pays of what nobody held; NULL: nothing */
	bool proposed;                     /* one book prices everything: the first of in */
	bool final;                        /* no row is provisional */
};

/* What its workspaces held (report_charges.h). */
struct report_charges {
	struct buf text; /* owns the texts */
	struct report_charge *at;
	size_t count;
};

/* The rows of one tenant's month. in_place(report_rows) struct report_rows rows = {0}; */
struct report_rows {
	const struct report_month *month;
	const char *tenant, *cost_center; /* the latter where the month has but one */
	int64_t tenant_id;
	const PGresult *workspaces; /* id and name in columns 3 and 4, rows first to end */
	int first, end;
	struct idmap workspace_at;
	struct report_charges charges;
	PGresult *reserves, *loans, *pools, *meters, *adjustments; /* own the texts */
	PGresult *provisional; /* pools' days of which hours are not sealed; NULL: none */
	struct usage_day *at;
	size_t count, cap;
};
/* store_report_each for files of store/: what the steps write is committed with the end, or not at all. */
struct report_steps {
	enum db_work work;
	bool final;          /* what is closed, or corrected, is final whether its hours are sealed or not */
	report_begin *begin; /* NULL: nothing; as is end */
	report_tenant *each;
	report_begin *end;
	const struct policy_book
		*proposed; /* NULL: none; else `then` gets each tenant's rows, priced by this book alone */
	report_tenant *then;
};
MUST_CHECK bool report_each(struct db *db, const char *period, const char *tenant, const struct report_steps *steps,
                            void *arg, struct err *err);
/* "exclusive", "mig", ...: the name of a number below SHARING_MODES; "": of none. */
#define SHARING_MODES 6
const char *sharing_text(int64_t sharing);
MUST_CHECK bool report_rows_load(struct report_rows *r, struct err *err);
void report_rows_fini(struct report_rows *r);

#endif

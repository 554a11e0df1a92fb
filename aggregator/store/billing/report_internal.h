/* aggregator/store/billing/report_internal.h - the rating input of a month, for the files of store/: report_store.c (the month, its price books,
 * its tenants), report_rows.c (the rows of one tenant), shared_month.c (idle time of shared nodes, divided among tenants). */
#ifndef TOLLGATE_REPORT_INTERNAL_H
#define TOLLGATE_REPORT_INTERNAL_H

#include "aggregator/core/policy/policy.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/db/db.h"
#include "common/base/hash.h"

/* One snapshot of a month. */
struct report_month {
	struct db *db;
	const struct rating_input *in; /* its bounds and books */
	const struct hash *books;      /* id -> index */
	PGresult *clusters;            /* id, name */
	struct hash cluster_at;
	PGresult *centers; /* of cost_centers(): tenant, first day in the month, cost centre; in this order */
	char *dirty;       /* days that are not stored, as an array */
	bool open;         /* there are such days: they are in temporary tables */
	const struct shared_month *shared; /* the tenants' shares of idle shared nodes; NULL: none */
	bool proposed;                     /* one book prices everything: the first of in */
	bool final;                        /* no row is provisional */
};

/* The charges of its workspaces (report_rows.c). */
struct report_charges {
	struct buf text; /* owns the texts */
	struct report_charge *at;
	size_t count;
};

/* The rows of one tenant's month. in_place(report_rows) struct report_rows rows = {0}; */
struct report_rows {
	const struct report_month *month;
	const char *tenant, *cost_center; /* cost_center: where the month has only one */
	int64_t tenant_id;
	const PGresult *workspaces; /* id and name in columns 3 and 4, rows first to end */
	int first, end;
	struct hash workspace_at;
	struct report_charges charges;
	PGresult *reserves, *loans, *pools, *meters, *adjustments; /* own the texts */
	PGresult *provisional; /* days of pools with hours that are not sealed; NULL: none */
	struct usage_day *at;
	size_t count, cap;
};
/* store_report_each() for files of store/. Everything that the steps write is committed with the end, or not at all. */
struct report_steps {
	enum db_work work;
	bool final;          /* no row is provisional: a close or a correction is final, sealed hours or not */
	report_begin *begin; /* begin and end may be NULL */
	report_tenant *each;
	report_begin *end;
	const struct policy_book
		*proposed; /* NULL: none; else `then` gets each tenant's rows, priced by this book alone */
	report_tenant *then;
};
MUST_CHECK bool report_each(struct db *db, const char *period, const char *tenant, const struct report_steps *steps,
                            void *arg, struct err *err);
/* The name of a sharing mode, a number below SHARING_MODES: "exclusive", "mig", ...; "" of any other number. */
#define SHARING_MODES 6
const char *sharing_text(int64_t sharing);
MUST_CHECK bool report_rows_load(struct report_rows *r, struct err *err);
void report_rows_fini(struct report_rows *r);

/* ---- idle time of shared nodes in a month, divided among tenants (core/rating/shared_cost.h) ---- */

struct shared_part {
	int32_t tenant;
	int32_t pool;  /* row of pools */
	int32_t ratio; /* its share of the pool, in 10^-9 */
	int128 unit_ns;
};

/* in_place(shared_month) struct shared_month s = {0}; */
struct shared_month {
	PGresult *pools;           /* day, book, cluster, 0, model, idle */
	struct shared_part *parts; /* by tenant, then in the order of the pools */
	size_t count, cap;
};
void shared_month_fini(struct shared_month *s);

/* Divides by the rules of the month's price books, or of the proposed book where there is one. tenant: load only its parts; NULL: all. */
MUST_CHECK bool shared_month_load(const struct report_month *m, const struct rating_book *proposed, const char *tenant,
                                  struct shared_month *s, struct err *err);
/* The index of the tenant's first part; its other parts follow. */
size_t shared_month_first(const struct shared_month *s, int64_t tenant);

/* ---- one-off charges and credits of a tenant's month (finance.c) ---- */

MUST_CHECK bool adjustment_rows(struct db *db, const char *period, int64_t tenant_id, PGresult **ret, struct err *err);
/* A row of the result as rating input; the texts are the result's, the caller sets the tenant. */
MUST_CHECK bool adjustment_day(const PGresult *r, int row, struct usage_day *ret, struct err *err);

#endif

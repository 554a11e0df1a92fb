/* aggregator/store/billing/reconcile_store.c - a month's pools, rows and lines, for the reconciliation. */
#include "aggregator/store/billing/finance.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/store/rollup/charges.h"
#include "aggregator/store/billing/period_internal.h"

struct reconciling {
	struct db *db;
	struct reconcile *r;
};

#define POOLS(table, days)                                                                                  \
	"SELECT c.cluster_id, c.gpu_model, c.price_book_id, c.owner_id IS NOT NULL AS owned, c.on_demand, " \
	"c.borrowed, c.covered, c.unused, c.unreserved_idle, c.unreserved_idle - " IDLE_LESS_STRANDED(      \
		"c") " AS stranded, c.down, c.unknown FROM " table " c "                                    \
		     "WHERE c.day >= $1::date AND c.day < $2::date" days

/* Stranded time of shared nodes that is reserved counts as unused: stranded here is the unreserved part, hour by
 * hour, as in shared_month.c. */
static bool
add_pools(struct reconciling *w, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"reconcile pools",
		"SELECT k.name, x.gpu_model, b.version, x.owned, sum(x.on_demand), sum(x.borrowed), sum(x.covered), sum(x.unused), "
		"sum(x.unreserved_idle), sum(x.stranded), sum(x.down), sum(x.unknown) FROM (" POOLS(
			"pool_day",
			" AND EXISTS (SELECT FROM billing_day d WHERE d.day = c.day AND NOT d.dirty)") " UNION ALL " POOLS("open_pool_day",
	                                                                                                                   "") ") x JOIN cluster k ON k.id = x.cluster_id LEFT JOIN price_book b ON b.id = x.price_book_id "
															       "GROUP BY k.name, x.gpu_model, b.version, x.owned"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, in->period_start);
	arg_text(&a, in->period_end);
	if (!db_run(w->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct reconcile_pool p = {.cluster = res_text(r, row, 0),
		                           .gpu_model = res_text(r, row, 1),
		                           .price_version = res_null(r, row, 2) ? NULL : res_text(r, row, 2),
		                           .owned = res_bool(r, row, 3)};
		int128 *const to[] = {&p.on_demand,       &p.borrowed, &p.covered, &p.unused,
		                      &p.unreserved_idle, &p.stranded, &p.down,    &p.unknown};

		for (int i = 0; i < (int)ARRAY_LEN(to); i++)
			if (!res_i128(r, row, 4 + i, 0, to[i], err))
				return false;
		if (!reconcile_add_pool(w->r, in, &p, err))
			return db_damaged(err);
	}
	return true;
}

/* A month that is not closed is read in one snapshot, which has its open days already. */
static bool
add_closed_pools(struct reconciling *w, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt bounds = {
		"reconcile bounds", "SELECT ns_of(p.starts_at), ns_of(p.ends_at) FROM period p WHERE p.month = $1"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int64_t count;

	arg_text(&a, in->period);
	return db_tx_begin_snapshot(&tx, w->db, DB_WORK_REPORT, err) && db_run(w->db, &bounds, &a, &r, err) &&
	       charges_tables(w->db, err) &&
	       charges_open(w->db, res_i64(r, 0, 0), res_i64(r, 0, 1), false, &count, err) && add_pools(w, in, err) &&
	       db_tx_commit(&tx, err);
}

static bool
begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct reconciling *w = arg;

	w->r = reconcile_new(in);
	return strcmp(in->period_status, "closed") == 0 ? add_closed_pools(w, in, err) : add_pools(w, in, err);
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	struct reconciling *w = arg;

	return reconcile_add_rated(w->r, in, view, err) || db_damaged(err);
}

bool
store_reconcile(struct db *db, const char *period, struct reconciliation **ret, char ret_zone[64], struct err *err)
{
	struct reconciling w = {.db = db};
	struct db_ledger ledger;
	bool ok = db_ledger_get(db, &ledger, err) && period_each(db, period, NULL, begin, add_tenant, &w, err) &&
	          reconcile_end(&w.r, ret, err);

	reconcile_free(w.r);
	if (ok)
		snprintf(ret_zone, 64, "%s", ledger.zone);
	return ok;
}

/* aggregator/store/verify/verify_charge.c - charges of folded days, recomputed from their sealed hours and compared
 * row by row.
 *
 * The hours, the reservations and the lend caps are read by statements of this file, and an hour is settled by
 * core/rating/charges_expected.c: neither charge_input() nor core/rating/charge_classes.c, which made the rows, is
 * used. Memory holds one pool's hour and the sums of one day. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/charges_expected.h"
#include "aggregator/store/verify/verify_ledger.h"

#define ROWS_AT_ONCE 4000
#define KEY_SIZE 512

/* --- rows of a day --- */

struct fact {
	enum charges_expected_table table;
	char *key;
	int128 sum[CHARGES_EXPECTED_SUMS];
	bool older; /* a row of pool_day billed before the column idle_less_stranded existed */
};
struct facts {
	struct fact *at;
	size_t count, cap;
};

static const struct {
	const char *name;
	/* Selects the stored rows: key columns in the order of key_of(), then the sums. */
	const char *select;
	const char *const sums[CHARGES_EXPECTED_SUMS];
} tables[CHARGES_EXPECTED_TABLES] = {
	[CHARGES_EXPECTED_CHARGE_DAY] =
		{"charge_day",
                 "SELECT coalesce(price_book_id, 0), cluster_id, coalesce(owner_id, 0), gpu_model, workspace_id, 0, profile, units, "
                 "sharing, class, used, idle, unmeasured, over, energy_mj FROM charge_day WHERE day = $1",
                 {"used", "idle", "unmeasured", "over", "energy_mj"}},
	[CHARGES_EXPECTED_RESERVE_DAY] =
		{"reserve_day",
                 "SELECT coalesce(price_book_id, 0), cluster_id, coalesce(owner_id, 0), gpu_model, workspace_id, 0, profile, units, "
                 "0, '', reserved, covered, lent, unused, undelivered FROM reserve_day WHERE day = $1",
                 {"reserved", "covered", "lent", "unused", "undelivered"}},
	[CHARGES_EXPECTED_LOAN_DAY] =
		{"loan_day",
                 "SELECT coalesce(price_book_id, 0), cluster_id, coalesce(owner_id, 0), gpu_model, lender_id, borrower_id, profile, "
                 "units, sharing, '', used, idle, unmeasured, over, energy_mj FROM loan_day WHERE day = $1",
                 {"used", "idle", "unmeasured", "over", "energy_mj"}},
	[CHARGES_EXPECTED_POOL_DAY] =
		{"pool_day",
                 "SELECT coalesce(price_book_id, 0), cluster_id, coalesce(owner_id, 0), gpu_model, 0, 0, '', 0, 0, '', capacity, covered, "
                 "on_demand, borrowed, unused, unreserved_idle, unallocated, stranded, down, unknown, energy_mj, coalesce(idle_less_stranded, "
                 "CASE WHEN EXISTS (SELECT FROM billing_day b JOIN period p ON p.status = 'closed' AND b.starts_at >= p.starts_at AND "
                 "b.starts_at < p.ends_at WHERE b.day = $1) THEN NULL ELSE -1 END) FROM pool_day WHERE day = $1",
                 {"capacity", "covered", "on_demand", "borrowed", "unused", "unreserved_idle", "unallocated",
                  "stranded", "down", "unknown", "energy_mj", "idle_less_stranded"}},
};
#define KEY_COLUMNS 10
#define IDLE_LESS_STRANDED_SUM 11 /* of pool_day */

static void
facts_fini(struct facts *f)
{
	for (size_t i = 0; i < f->count; i++)
		mem_free(f->at[i].key);
	mem_free(f->at);
	*f = (struct facts){0};
}

static void
facts_add(struct facts *f, enum charges_expected_table table, const char *key, const int128 sum[CHARGES_EXPECTED_SUMS])
{
	array_room(f->at, f->count, f->cap);
	f->at[f->count] = (struct fact){.table = table, .key = mem_strdup(key)};
	memcpy(f->at[f->count++].sum, sum, CHARGES_EXPECTED_SUMS * sizeof(*sum));
}

static int
compare_facts(const void *a, const void *b)
{
	const struct fact *x = a, *y = b;

	return x->table != y->table ? (x->table < y->table ? -1 : 1) : strcmp(x->key, y->key);
}

/* Sorts the rows and merges rows of the same key. */
static void
facts_pack(struct facts *f)
{
	size_t kept = 0;

	if (f->count > 0)
		qsort(f->at, f->count, sizeof(*f->at), compare_facts);
	for (size_t i = 0; i < f->count; i++) {
		if (kept == 0 || compare_facts(&f->at[kept - 1], &f->at[i]) != 0) {
			f->at[kept++] = f->at[i];
			continue;
		}
		for (size_t s = 0; s < CHARGES_EXPECTED_SUMS; s++)
			f->at[kept - 1].sum[s] += f->at[i].sum[s];
		mem_free(f->at[i].key);
	}
	f->count = kept;
}

/* The key of a row, in the order of the columns of tables[].select; numbers that a table does not have are 0. */
static void
key_of(const int64_t pool[3], const char *model, int64_t workspace, int64_t other, const char *profile, int64_t units,
       int64_t sharing, const char *klass, char out[KEY_SIZE])
{
	int n = snprintf(out, KEY_SIZE, "price book %" PRId64 ", cluster %" PRId64 ", owner %" PRId64 ", %.200s",
	                 pool[0], pool[1], pool[2], model);

	if (workspace != 0)
		n += snprintf(out + n, KEY_SIZE - (size_t)n, ", workspace %" PRId64, workspace);
	if (other != 0)
		n += snprintf(out + n, KEY_SIZE - (size_t)n, ", lent to %" PRId64, other);
	if (units != 0)
		snprintf(out + n, KEY_SIZE - (size_t)n, ", %.60s%s%" PRId64 " units, sharing %" PRId64 "%s%s", profile,
		         profile[0] != '\0' ? ", " : "", units, sharing, klass[0] != '\0' ? ", " : "", klass);
}

/* --- the day recomputed --- */

enum { HOUR, CLUSTER, OWNER, MODEL, BOOK, WORKSPACE, PROFILE, UNITS, USE_SHARING };
enum { USE_STATES = USE_SHARING + 1, USE_OVER = USE_STATES + 7, USE_ENERGY };
enum { RIGHT_RESERVED = UNITS + 1, RIGHT_CAP };

static const char uses_sql[] =
	"DECLARE verify_uses NO SCROLL CURSOR FOR SELECT ns_of(u.hour), coalesce(k.cluster_id, 0), coalesce((SELECT o.tenant_id FROM node_owner o "
	"WHERE o.node_id = u.node_id AND o.effective @> u.hour), 0), coalesce(g.short_model, '') COLLATE \"C\", coalesce((SELECT p.id FROM price_book p "
	"WHERE p.effective @> u.hour), 0), coalesce(u.workspace_id, 0), d.profile, d.units, u.sharing, sum(u.used), sum(u.idle), "
	"sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown), sum(u.over), sum(u.energy_mj) "
	"FROM usage_hourly u LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour JOIN device d ON d.id = "
	"u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour "
	"WHERE u.hour >= $1 AND u.hour < $2 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 2, 3, 4, 1";

/* Every hour of a folded day is sealed, so a reservation counts whole in each hour that any node has. A cap of the
 * model precedes one of any model; instances weigh as much as reserved ones. */
static const char rights_sql[] =
	"SELECT ns_of(h.hour), r.cluster_id, CASE WHEN r.shared THEN 0 ELSE w.tenant_id END, r.model COLLATE \"C\", coalesce((SELECT p.id FROM "
	"price_book p WHERE p.effective @> h.hour), 0), r.workspace_id, r.profile, coalesce(r.units / r.instances, 5040), r.units * "
	"3600000000000::numeric, (SELECT CASE WHEN bool_or(l.units IS NULL AND l.profile = '') THEN NULL ELSE sum(CASE WHEN l.units IS NOT NULL "
	"THEN l.units WHEN v.each IS NULL THEN 0 ELSE l.instances * v.each END) * 3600000000000::numeric END FROM workspace_limit l LEFT JOIN "
	"LATERAL (SELECT max(x.units / x.instances) AS each FROM reservation x WHERE x.workspace_id = r.workspace_id AND x.model = r.model AND "
	"x.profile = l.profile AND x.effective @> h.hour) v ON true WHERE l.workspace_id = r.workspace_id AND l.kind = 'lend' AND l.effective @> "
	"h.hour AND l.model = CASE WHEN EXISTS (SELECT FROM workspace_limit y WHERE y.workspace_id = r.workspace_id AND y.kind = 'lend' AND "
	"y.effective @> h.hour AND y.model = r.model) THEN r.model ELSE '' END) FROM (SELECT DISTINCT hour FROM node_hour WHERE hour >= $1 AND "
	"hour < $2) h JOIN reservation r ON r.effective @> h.hour JOIN workspace w ON w.id = r.workspace_id ORDER BY 2, 3, 4, 1";

struct day_reader {
	struct verify_node *n;
	struct facts expected;
	/* The current pool-hour. */
	bool any;
	int64_t pool[3]; /* price book, cluster, owner */
	int64_t hour_ns;
	char *model;
	struct charges_expected_pool p;
	size_t use_cap, right_cap;
	PGresult *uses, *rights;
	int use, right;
	bool ended;
};

static void
day_reader_fini(struct day_reader *r)
{
	facts_fini(&r->expected);
	mem_free(r->model);
	for (size_t i = 0; i < r->p.use_count; i++)
		mem_free((void *)(uintptr_t)r->p.uses[i].profile);
	mem_free(r->p.uses);
	mem_free(r->p.rights);
	PQclear(r->uses);
	PQclear(r->rights);
}

static void
add_pool_row(void *arg, const struct charges_expected_row *row)
{
	static const char *const classes[] = {"covered", "on-demand", "borrowed"};
	struct day_reader *r = arg;
	const bool charge = row->table == CHARGES_EXPECTED_CHARGE_DAY, loan = row->table == CHARGES_EXPECTED_LOAN_DAY;
	char key[KEY_SIZE];

	key_of(r->pool, r->model,
	       charge               ? row->use->workspace
	       : loan               ? row->lender
	       : row->right != NULL ? row->right->workspace
	                            : 0,
	       loan ? row->use->workspace : 0,
	       row->use != NULL     ? row->use->profile
	       : row->right != NULL ? row->right->profile
	                            : "",
	       row->use != NULL     ? row->use->units
	       : row->right != NULL ? row->right->units
	                            : 0,
	       row->use != NULL ? row->use->sharing : 0, charge ? classes[row->klass] : "", key);
	facts_add(&r->expected, row->table, key, row->sum);
}

static void
finish_pool_hour(struct day_reader *r)
{
	if (r->any)
		charges_expected_settle(&r->p, add_pool_row, r);
	for (size_t i = 0; i < r->p.use_count; i++)
		mem_free((void *)(uintptr_t)r->p.uses[i].profile);
	r->p = (struct charges_expected_pool){.uses = r->p.uses, .rights = r->p.rights};
	r->any = false;
}

/* Cluster, owner, model, hour: the order of both statements. */
static int
compare_places(const PGresult *a, int row_a, const PGresult *b, int row_b)
{
	static const int columns[] = {CLUSTER, OWNER, MODEL, HOUR};

	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		int c = columns[i], order;

		if (c == MODEL) {
			order = strcmp(res_text(a, row_a, c), res_text(b, row_b, c));
		} else {
			int64_t x = res_i64(a, row_a, c), y = res_i64(b, row_b, c);

			order = (x > y) - (x < y);
		}
		if (order != 0)
			return order;
	}
	return 0;
}

static bool
is_at(const struct day_reader *r, const PGresult *res, int row)
{
	return r->any && r->pool[1] == res_i64(res, row, CLUSTER) && r->pool[2] == res_i64(res, row, OWNER) &&
	       r->hour_ns == res_i64(res, row, HOUR) && strcmp(r->model, res_text(res, row, MODEL)) == 0;
}

static void
move_to_pool_hour(struct day_reader *r, const PGresult *res, int row)
{
	if (is_at(r, res, row))
		return;
	finish_pool_hour(r);
	r->any = true;
	r->pool[0] = res_i64(res, row, BOOK);
	r->pool[1] = res_i64(res, row, CLUSTER);
	r->pool[2] = res_i64(res, row, OWNER);
	r->hour_ns = res_i64(res, row, HOUR);
	mem_free(r->model);
	r->model = mem_strdup(res_text(res, row, MODEL));
}

static void
add_use(struct day_reader *r)
{
	const PGresult *res = r->uses;
	int128 state[NODE_HOUR_STATES], over, energy;
	int row = r->use++;
	char what[256];

	move_to_pool_hour(r, res, row);
	snprintf(what, sizeof(what), "sums of usage_hourly: %.100s, workspace %" PRId64, r->model,
	         res_i64(res, row, WORKSPACE));
	for (int s = 0; s < NODE_HOUR_STATES; s++)
		state[s] = verify_amount(r->n, res, row, USE_STATES + s, "hour-changed", NULL, r->hour_ns, what);
	over = verify_amount(r->n, res, row, USE_OVER, "hour-changed", NULL, r->hour_ns, what);
	energy = verify_amount(r->n, res, row, USE_ENERGY, "hour-changed", NULL, r->hour_ns, what);
	r->p.unallocated += state[NODE_HOUR_UNALLOCATED];
	r->p.stranded += state[NODE_HOUR_STRANDED];
	r->p.down += state[NODE_HOUR_DOWN];
	r->p.unknown += state[NODE_HOUR_UNKNOWN];
	if (res_i64(res, row, WORKSPACE) == 0) {
		r->p.energy_mj += energy;
		return;
	}
	array_room(r->p.uses, r->p.use_count, r->use_cap);
	r->p.uses[r->p.use_count++] = (struct charges_expected_use){
		.workspace = res_i64(res, row, WORKSPACE),
		.units = res_i64(res, row, UNITS),
		.profile = mem_strdup(res_text(res, row, PROFILE)), /* outlives its page */
		.sharing = res_i64(res, row, USE_SHARING),
		.amount = {state[NODE_HOUR_USED], state[NODE_HOUR_IDLE], state[NODE_HOUR_UNMEASURED], over, energy},
	};
}

static bool
add_right(struct day_reader *r, struct err *err)
{
	const PGresult *res = r->rights;
	int row = r->right++;
	struct charges_expected_right x = {.workspace = res_i64(res, row, WORKSPACE),
	                                   .units = res_i64(res, row, UNITS),
	                                   .profile = res_text(res, row, PROFILE),
	                                   .lend_cap = -1};

	move_to_pool_hour(r, res, row);
	if (!res_i128(res, row, RIGHT_RESERVED, 0, &x.reserved, err) ||
	    (!res_null(res, row, RIGHT_CAP) && !res_i128(res, row, RIGHT_CAP, 0, &x.lend_cap, err)))
		return false;
	array_room(r->p.rights, r->p.right_count, r->right_cap);
	r->p.rights[r->p.right_count++] = x;
	return true;
}

/* Reads the next page when the current one is used up. */
static bool
more_uses(struct day_reader *r, struct err *err)
{
	char fetch[64];

	if (r->ended || (r->uses != NULL && r->use < PQntuples(r->uses)))
		return true;
	PQclear(take(r->uses));
	r->use = 0;
	snprintf(fetch, sizeof(fetch), "FETCH %d FROM verify_uses", ROWS_AT_ONCE);
	if (!db_run_text(r->n->db, fetch, NULL, &r->uses, err))
		return false;
	r->ended = PQntuples(r->uses) == 0;
	return true;
}

static bool
compute(struct day_reader *r, int64_t from_ns, int64_t until_ns, struct err *err)
{
	struct db_args a = {0};

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	if (!db_run_text(r->n->db, rights_sql, &a, &r->rights, err) || !db_run_text(r->n->db, uses_sql, &a, NULL, err))
		return false;
	for (;;) {
		bool right = r->right < PQntuples(r->rights);

		if (!more_uses(r, err))
			return false;
		if (r->ended && !right)
			break;
		right = right && (r->ended || compare_places(r->rights, r->right, r->uses, r->use) <= 0);
		if (!right)
			add_use(r);
		else if (!add_right(r, err))
			return false;
	}
	finish_pool_hour(r);
	facts_pack(&r->expected);
	return db_script(r->n->db, "CLOSE verify_uses", err);
}

/* --- the stored day, and the differences --- */

static bool
load_found(struct verify_node *n, const char *day, struct facts *ret, struct err *err)
{
	for (size_t t = 0; t < CHARGES_EXPECTED_TABLES; t++) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		arg_text(&a, day);
		if (!db_run_text(n->db, tables[t].select, &a, &r, err))
			return false;
		for (int row = 0; row < PQntuples(r); row++) {
			int64_t pool[] = {res_i64(r, row, 0), res_i64(r, row, 1), res_i64(r, row, 2)};
			int128 sum[CHARGES_EXPECTED_SUMS] = {0};
			char key[KEY_SIZE], what[KEY_SIZE + 128];
			bool older;

			key_of(pool, res_text(r, row, 3), res_i64(r, row, 4), res_i64(r, row, 5), res_text(r, row, 6),
			       res_i64(r, row, 7), res_i64(r, row, 8), res_text(r, row, 9), key);
			older = t == CHARGES_EXPECTED_POOL_DAY &&
			        res_null(r, row, KEY_COLUMNS + IDLE_LESS_STRANDED_SUM);
			for (int s = 0; s < CHARGES_EXPECTED_SUMS - (older ? 1 : 0) && tables[t].sums[s] != NULL; s++) {
				snprintf(what, sizeof(what), "%s of %s, %s: %s", tables[t].sums[s], tables[t].name, day,
				         key);
				sum[s] = verify_amount(n, r, row, KEY_COLUMNS + s, "charge-changed", NULL, INT64_MIN,
				                       what);
			}
			facts_add(ret, (enum charges_expected_table)t, key, sum);
			ret->at[ret->count - 1].older = older;
		}
	}
	facts_pack(ret);
	return true;
}

static void
report_charge(struct verify_node *n, const char *day, const struct fact *expected, const struct fact *found)
{
	const struct fact *some = expected != NULL ? expected : found;
	const char *kind = expected == NULL ? "charge-row-extra"
	                   : found == NULL  ? "charge-row-missing"
	                                    : "charge-changed";
	char what[KEY_SIZE + 128];

	ASSERT(some != NULL);
	for (size_t s = 0; s < CHARGES_EXPECTED_SUMS && tables[some->table].sums[s] != NULL; s++) {
		int128 e = expected != NULL ? expected->sum[s] : 0, f = found != NULL ? found->sum[s] : 0;

		if (e == f || (found != NULL && found->older && s == IDLE_LESS_STRANDED_SUM))
			continue;
		snprintf(what, sizeof(what), "%s of %s, %s: %s", tables[some->table].sums[s], tables[some->table].name,
		         day, some->key);
		verify_report_amount(n, kind, NULL, INT64_MIN, what, e, f);
	}
	/* A row of zeros is not billed and not written. */
	for (size_t s = 0; expected == NULL && s < CHARGES_EXPECTED_SUMS; s++)
		if (found->sum[s] != 0)
			return;
	if (expected == NULL) {
		snprintf(what, sizeof(what), "a row of %s, %s: %s", tables[some->table].name, day, some->key);
		verify_report_text(n, kind, NULL, INT64_MIN, what, "", "a row of zeros");
	}
}

static void
compare(struct verify_node *n, const char *day, const struct facts *e, const struct facts *f)
{
	size_t i = 0, j = 0;

	while (i < e->count || j < f->count) {
		int order = i == e->count ? 1 : j == f->count ? -1 : compare_facts(&e->at[i], &f->at[j]);

		n->report->counts.charges++;
		if (order < 0)
			report_charge(n, day, &e->at[i++], NULL);
		else if (order > 0)
			report_charge(n, day, NULL, &f->at[j++]);
		else
			report_charge(n, day, &e->at[i++], &f->at[j++]);
	}
}

bool
verify_charges(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns, struct err *err)
{
	in_place(day_reader) struct day_reader r = {.n = n};
	in_place(facts) struct facts found = {0};

	if (!compute(&r, from_ns, until_ns, err) || !load_found(n, day, &found, err))
		return err_prefix(err, "charges of %s", day);
	compare(n, day, &r.expected, &found);
	return true;
}

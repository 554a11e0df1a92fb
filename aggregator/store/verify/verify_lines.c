/* aggregator/store/verify/verify_lines.c - the lines of a closed month, rated a second time: in the database, in
 * numeric, as sets, and without the functions that wrote them. The input is the days that verify_day.c and
 * verify_charge.c have checked, events of other meters, one-off charges and credits, and price books; the result is
 * every column of a line that is money, hours or a price.
 *
 * The rules are those of core/rating/rating.h, core/rating/shared_cost.h and core/rating/correction.h; "R3" below is
 * rule 3 of rating.h. In order:
 *  1. facts: the use of each reservation, by kind of reserved device; then idle nodes, meters, one-off amounts,
 *     energy
 *  2. kinds: facts that are priced alike. Each kind is priced once, and the columns of its line (R1) are hashed to
 *     the line's id
 *  3. cells: the days of a line, or of a reservation's part, quantised once (R2, R4)
 *  4. lines: sums of their days (R5), and their cents (R6)
 *  5. the billed amount of a line is its line and all later corrections of it (correction.h 1): it must equal the
 *     recomputed line, and every one of those rows has the line's price, version and names
 *
 * Only the differences leave the database. Temporary tables carry the result of one step to the next, because the
 * planner needs their statistics to make the next step fast; they are dropped at the end in every case. Texts without
 * a rule (description) are not compared. */
#include "aggregator/store/rollup/charges.h"
#include "aggregator/store/verify/verify_ledger.h"

#define SQL_MAX (64u << 10) /* of one statement */

/* One clause per line: the formatter would indent the lines after a macro. */
/* clang-format off */

/* The stored days of the month, and the others, which the caller has charged into open_... (charges.h). */
#define DAYS_OF(table)                                                                                            \
	"(SELECT c.* FROM verify_month m JOIN " table " c ON c.day >= m.first AND c.day < m.until WHERE c.day "   \
	"NOT IN (SELECT b.day FROM billing_day b WHERE b.dirty) UNION ALL SELECT c.* FROM verify_month m JOIN "   \
	"open_" table " c ON c.day >= m.first AND c.day < m.until)"
#define POOL(c)                                                                                                        \
	c ".day, coalesce(" c ".price_book_id, 0), " c ".cluster_id, coalesce(" c ".owner_id, 0), " c ".gpu_model"
#define SAME_POOL(a, b)                                                                                                \
	a ".day = " b ".day AND coalesce(" a ".price_book_id, 0) = coalesce(" b ".price_book_id, 0) AND " a            \
	  ".cluster_id = " b ".cluster_id AND coalesce(" a ".owner_id, 0) = coalesce(" b ".owner_id, 0) AND " a        \
	  ".gpu_model = " b ".gpu_model"
/* The part of [at, at + n) that lies between lo and hi. */
#define BETWEEN(at, n) "greatest(0, least(x.hi, " at " + " n ") - greatest(x.lo, " at "))"
/* Unit-nanoseconds of 10^-9 GPU-hours; of 10^-9 instance-hours it is the instance's units x 3600. */
#define NGH "18144000::numeric"
/* x / n half to even, of whole numbers >= 0: no quotient is rounded on the way. */
#define HALF_EVEN(x, n)                                                                                                \
	"(div(2 * (" x ") + " n ", 2 * " n ") - CASE WHEN mod(2 * (" x ") + " n ", 2 * " n ") = 0 AND mod(div(2 * (" x \
	") + " n ", 2 * " n "), 2) = 1 THEN 1 ELSE 0 END)"
/* Rounds a decimal to a whole number. */
#define WHOLE(x)                                                                                                       \
	"(floor((" x ") + 0.5) - CASE WHEN (" x ") + 0.5 = floor((" x ") + 0.5) AND mod(floor((" x ") + 0.5), 2) <> "  \
	"0 THEN 1 ELSE 0 END)"

/* --- 1. facts --- */

static const char month_sql[] =
	"CREATE TEMP TABLE verify_month ON COMMIT DROP AS "
	"SELECT p.month, p.starts_at, p.ends_at, l.zone, (p.starts_at AT TIME ZONE l.zone)::date AS first, "
	"(p.ends_at AT TIME ZONE l.zone)::date AS until, "
	/* R7: lines without a price have the currency of the month's newest book */
	"coalesce((SELECT b.currency FROM price_book b WHERE b.effective && tstzrange(p.starts_at, p.ends_at) ORDER BY b.id DESC LIMIT 1), "
	"'EUR') AS currency FROM period p, ledger l WHERE p.month = $1";

/* The columns that decide a price or a line (kind to unit), and the amount. Nothing is NULL: missing values are '' or
 * 0. */
static const char facts_sql[] =
	"CREATE TEMP TABLE verify_fact ("
	"kind text, book bigint, cluster integer, tenant integer, workspace integer, model text, profile text, units integer, "
	"sharing text, class text, counterparty integer, reserved_profile text, reserved_units integer, meter text, sku text, category text, "
	"unit text, price numeric, currency text, "
	"day date, reservation bigint, used numeric, idle numeric, unmeasured numeric, over numeric, amount numeric, energy numeric, borrower integer DEFAULT 0, "
	"center text NOT NULL DEFAULT '') ON COMMIT DROP";
#define KEY                                                                                                            \
	"kind, book, cluster, tenant, workspace, model, profile, units, sharing, class, counterparty, "                \
	"reserved_profile, reserved_units, meter, sku, category, unit, price, currency, center"
#define SHARING(column) "(ARRAY['exclusive', 'mig', 'mps', 'timeslice', 'plain'])[nullif(" column ", 0)]"

/* The reservations of a pool's day are laid end to end, larger instances first: covered and lent time fills them in
 * that order. from: where each begins. */
static const char reserved_sql[] =
	"CREATE TEMP TABLE verify_reserved ON COMMIT DROP AS "
	"SELECT row_number() OVER () AS reservation, r.*, w.tenant_id AS tenant, sum(r.covered) OVER behind - r.covered AS covered_from, "
	"sum(r.lent) OVER behind - r.lent AS lent_from "
	"FROM " DAYS_OF("reserve_day") " r JOIN workspace w ON w.id = r.workspace_id "
	"WINDOW behind AS (PARTITION BY " POOL("r") ", r.workspace_id ORDER BY r.units DESC, r.profile COLLATE \"C\" ROWS UNBOUNDED PRECEDING)";

/* R8: the commitment, its part neither used nor lent, and its part without capacity. */
static const char commitments_sql[] =
	"INSERT INTO verify_fact "
	"SELECT x.kind, coalesce(r.price_book_id, 0), r.cluster_id, r.tenant, r.workspace_id, r.gpu_model, r.profile, r.units, '', 'reserved', "
	"0, r.profile, r.units, '', '', 'gpu', '', 0, '', r.day, r.reservation, 0, 0, 0, 0, x.amount, 0 "
	"FROM verify_reserved r CROSS JOIN LATERAL (VALUES ('commitment', r.reserved), ('unused', r.unused), ('undelivered', r.undelivered)) "
	"AS x(kind, amount) WHERE x.amount > 0";

/* R8: covered time, cut where one reservation ends and the next begins. Activity lies in the order used, idle,
 * unmeasured; amounts other than hours go with their first part. */
static const char covered_sql[] =
	"INSERT INTO verify_fact "
	"SELECT 'covered', coalesce(c.price_book_id, 0), c.cluster_id, r.tenant, c.workspace_id, c.gpu_model, c.profile, c.units, "
	"coalesce(" SHARING("c.sharing") ", ''), 'reserved', 0, r.profile, r.units, '', '', 'gpu', '', 0, '', c.day, r.reservation, "
	BETWEEN("c.at", "c.used") ", " BETWEEN("c.at + c.used", "c.idle") ", " BETWEEN("c.at + c.used + c.idle", "c.unmeasured") ", "
	"CASE WHEN x.lo = c.at THEN c.over ELSE 0 END, 0, CASE WHEN x.lo = c.at THEN c.energy_mj ELSE 0 END "
	"FROM (SELECT c.*, c.used + c.idle + c.unmeasured AS held, sum(c.used + c.idle + c.unmeasured) OVER behind - (c.used + c.idle + "
	"c.unmeasured) AS at FROM " DAYS_OF("charge_day") " c WHERE c.class = 'covered' AND c.used + c.idle + c.unmeasured > 0 "
	"WINDOW behind AS (PARTITION BY " POOL("c") ", c.workspace_id ORDER BY c.units DESC, c.profile COLLATE \"C\", c.sharing "
	"ROWS UNBOUNDED PRECEDING)) c JOIN verify_reserved r ON " SAME_POOL("r", "c") " AND r.workspace_id = c.workspace_id "
	"CROSS JOIN LATERAL (SELECT greatest(c.at, r.covered_from) AS lo, least(c.at + c.held, r.covered_from + r.covered) AS hi) x "
	"WHERE x.lo < x.hi";

/* R9: lent time, in the same way; the kind of device is the borrower's. */
static const char lent_sql[] =
	"INSERT INTO verify_fact "
	"SELECT 'lent', coalesce(c.price_book_id, 0), c.cluster_id, r.tenant, c.lender_id, c.gpu_model, c.profile, c.units, "
	"coalesce(" SHARING("c.sharing") ", ''), 'borrowed', w.tenant_id, r.profile, r.units, '', '', 'gpu', '', 0, '', c.day, r.reservation, "
	BETWEEN("c.at", "c.used") ", " BETWEEN("c.at + c.used", "c.idle") ", " BETWEEN("c.at + c.used + c.idle", "c.unmeasured") ", "
	"CASE WHEN x.lo = c.at THEN c.over ELSE 0 END, 0, 0, c.borrower_id "
	"FROM (SELECT c.*, c.used + c.idle + c.unmeasured AS held, sum(c.used + c.idle + c.unmeasured) OVER behind - (c.used + c.idle + "
	"c.unmeasured) AS at FROM " DAYS_OF("loan_day") " c WINDOW behind AS (PARTITION BY " POOL("c") ", c.lender_id ORDER BY c.borrower_id, "
	"c.units DESC, c.profile COLLATE \"C\", c.sharing ROWS UNBOUNDED PRECEDING)) c "
	"JOIN verify_reserved r ON " SAME_POOL("r", "c") " AND r.workspace_id = c.lender_id JOIN workspace w ON w.id = c.borrower_id "
	"CROSS JOIN LATERAL (SELECT greatest(c.at, r.lent_from) AS lo, least(c.at + c.held, r.lent_from + r.lent) AS hi) x WHERE x.lo < x.hi";

/* On a tenant's own nodes: time neither held nor reserved, and the energy of all time not held. */
static const char dedicated_sql[] =
	"INSERT INTO verify_fact "
	"SELECT 'dedicated', coalesce(c.price_book_id, 0), c.cluster_id, c.owner_id, 0, c.gpu_model, '', 5040, '', 'dedicated', 0, '', 0, '', '', "
	"'gpu', '', 0, '', c.day, 0, 0, 0, 0, 0, c.unreserved_idle, c.energy_mj "
	"FROM " DAYS_OF("pool_day") " c WHERE c.owner_id IS NOT NULL AND c.unreserved_idle + c.energy_mj > 0";

/* R11, and all of shared_cost.h: the tenants that share unheld time, and their shares. */
static const char shared_sql[] =
	"INSERT INTO verify_fact "
	"WITH pool AS (SELECT c.day, b.id AS book, b.shared_idle AS method, c.cluster_id, c.gpu_model, sum(coalesce("
	"c.idle_less_stranded, greatest(c.unreserved_idle - c.stranded, 0))) AS idle FROM " DAYS_OF("pool_day") " c JOIN price_book b ON b.id = c.price_book_id AND b.shared_idle <> 'none' "
	"WHERE c.owner_id IS NULL GROUP BY 1, 2, 3, 4, 5), "
	"held AS (SELECT c.day, b.id AS book, c.cluster_id, c.gpu_model, w.tenant_id AS tenant, sum(c.used + c.idle + c.unmeasured) AS held "
	"FROM price_book b JOIN " DAYS_OF("charge_day") " c ON c.price_book_id = b.id JOIN workspace w ON w.id = c.workspace_id "
	"WHERE b.shared_idle IN ('even', 'proportional') AND c.owner_id IS NULL GROUP BY 1, 2, 3, 4, 5), "
	"payer AS (SELECT p.*, h.tenant, CASE p.method WHEN 'even' THEN 1 ELSE h.held END AS weight FROM pool p JOIN held h USING (day, book, "
	"cluster_id, gpu_model) WHERE p.method IN ('even', 'proportional') AND h.held > 0 "
	"UNION ALL SELECT p.*, w.tenant_id, w.weight FROM pool p JOIN price_weight w ON w.book_id = p.book WHERE p.method = 'weights'), "
	"part AS (SELECT p.*, div(p.idle * p.weight, p.total) AS whole, mod(p.idle * p.weight, p.total) AS rest FROM (SELECT p.*, sum(p.weight) "
	"OVER (PARTITION BY p.day, p.book, p.cluster_id, p.gpu_model) AS total FROM payer p) p), "
	"ranked AS (SELECT p.*, p.idle - sum(p.whole) OVER (PARTITION BY p.day, p.book, p.cluster_id, p.gpu_model) AS left, row_number() OVER "
	"(PARTITION BY p.day, p.book, p.cluster_id, p.gpu_model ORDER BY p.rest DESC, p.tenant) AS place FROM part p) "
	"SELECT 'shared', r.book, r.cluster_id, r.tenant, 0, r.gpu_model, '', 5040, '', 'dedicated', 0, '', 0, '', '', 'gpu', '', 0, '', r.day, 0, "
	"0, 0, 0, 0, r.whole + (r.place <= r.left)::integer, 0 FROM ranked r WHERE r.whole + (r.place <= r.left)::integer > 0";

/* Events: their owner at their time, and their price book. The amount is a quantity in 10^-9. */
static const char meters_sql[] =
	"INSERT INTO verify_fact "
	"SELECT 'meter', coalesce(b.id, 0), 0, w.tenant_id, w.id, '', '', 0, '', '', 0, '', 0, x.meter, e.sku, x.category, x.unit, 0, '', "
	"(at_ns(e.time_ns) AT TIME ZONE m.zone)::date, 0, 0, 0, 0, 0, sum(x.quantity) * 1000000000, 0 "
	"FROM verify_month m JOIN meter_event e ON e.time_ns >= ns_of(m.starts_at) AND e.time_ns < ns_of(m.ends_at) "
	"LEFT JOIN holder_attribution a ON a.holder_id = e.holder_id AND a.effective @> at_ns(e.time_ns) "
	"JOIN workspace w ON w.id = CASE WHEN e.holder_id IS NULL THEN e.workspace_id ELSE a.workspace_id END "
	"LEFT JOIN price_book b ON b.effective @> at_ns(e.time_ns) "
	"CROSS JOIN LATERAL (SELECT 'storage' AS meter, 'storage' AS category, 'GB-hour' AS unit, e.amount AS quantity WHERE e.type = 1 "
	"UNION ALL SELECT 'egress', 'network', 'GB', e.amount WHERE e.type = 2 "
	"UNION ALL SELECT 'inference-requests', 'inference', 'request', e.requests WHERE e.type = 3 "
	"UNION ALL SELECT 'inference-input-tokens', 'inference', 'token', e.input_tokens WHERE e.type = 3 "
	"UNION ALL SELECT 'inference-output-tokens', 'inference', 'token', e.output_tokens WHERE e.type = 3 "
	"UNION ALL SELECT 'support', 'support', 'hour', e.amount WHERE e.type = 4) x "
	"GROUP BY b.id, w.tenant_id, w.id, x.meter, e.sku, x.category, x.unit, (at_ns(e.time_ns) AT TIME ZONE m.zone)::date HAVING sum(x.quantity) > 0";

/* R12 */
static const char adjustments_sql[] =
	"INSERT INTO verify_fact "
	"SELECT 'adjustment', 0, 0, a.tenant_id, coalesce(a.workspace_id, 0), '', '', 0, '', '', 0, '', 0, '', 'adjustment-' || a.id, a.category, "
	"'charge', a.amount, a.currency, greatest(m.first, least((a.at AT TIME ZONE m.zone)::date, m.until - 1)), 0, 0, 0, 0, 0, 1000000000, 0 "
	"FROM verify_month m JOIN adjustment a ON a.period = m.month WHERE EXISTS (SELECT FROM adjustment_approval y WHERE y.adjustment_id = a.id)";

/* R10: one fact for all time that a workspace held, and one for unheld time of a tenant's own nodes. The amount is in
 * mJ. */
static const char energy_sql[] =
	"INSERT INTO verify_fact "
	"SELECT 'energy', s.book_id, s.cluster_id, x.tenant, x.workspace, '', '', 5040, '', '', 0, '', 0, '', '', 'energy', 'kWh', s.energy_price, '', "
	"x.day, 0, 0, 0, 0, 0, sum(x.energy), 0 FROM price_site s JOIN ("
	"SELECT c.price_book_id AS book, c.cluster_id AS cluster, w.tenant_id AS tenant, w.id AS workspace, c.day, c.energy_mj AS energy FROM "
	DAYS_OF("charge_day") " c JOIN workspace w ON w.id = c.workspace_id "
	"UNION ALL SELECT f.book, f.cluster, f.tenant, 0, f.day, f.energy FROM verify_fact f WHERE f.kind = 'dedicated') x "
	"ON x.book = s.book_id AND x.cluster = s.cluster_id WHERE s.energy_price IS NOT NULL AND x.energy > 0 "
	"GROUP BY s.book_id, s.cluster_id, x.tenant, x.workspace, s.energy_price, x.day";

/* On-demand and borrowed time is most of a month, and is read in place. Energy without hours is on demand, whatever
 * its class. */
#define IS_USE                                                                                                         \
	"c.used + c.idle + c.unmeasured + c.energy_mj > 0 AND (c.class <> 'covered' OR c.used + c.idle + "             \
	"c.unmeasured = 0)"
#define USE_CLASS "CASE c.class WHEN 'covered' THEN 'on-demand' ELSE c.class END"

/* R1: days of a tenant's further cost centres in the month; the first one, that of the first charged day, has no row. */
static const char centers_sql[] =
	"CREATE TEMP TABLE verify_center ON COMMIT DROP AS "
	"SELECT t.tenant_id AS tenant, d.day::date AS day, x.cost_center AS center FROM verify_month m "
	"CROSS JOIN (SELECT y.tenant_id FROM tenant_term y GROUP BY 1 HAVING min(y.cost_center) <> max(y.cost_center)) t "
	"CROSS JOIN LATERAL generate_series(m.first::timestamp, (m.until - 1)::timestamp, interval '1 day') AS d(day) "
	/* in force when the day begins; else the last of the month before it, else its first, else any by the same order */
	"CROSS JOIN LATERAL (SELECT y.cost_center FROM tenant_term y CROSS JOIN (SELECT d.day AT TIME ZONE m.zone AS at, (m.until - 1)::timestamp AT TIME ZONE m.zone AS "
	"last) b WHERE y.tenant_id = t.tenant_id ORDER BY NOT y.effective && tstzrange(m.starts_at, b.last, '[]'), coalesce(lower(y.effective) > b.at, false), CASE WHEN coalesce(lower(y.effective) > b.at, false) THEN lower(y.effective) END, lower(y.effective) DESC "
	"NULLS LAST LIMIT 1) x";
static const char first_centers_sql[] =
	"CREATE TEMP TABLE verify_first_center ON COMMIT DROP AS "
	"SELECT DISTINCT ON (f.tenant) f.tenant, c.center FROM (SELECT tenant, day FROM verify_fact UNION ALL "
	"SELECT w.tenant_id, c.day FROM " DAYS_OF("charge_day") " c JOIN workspace w ON w.id = c.workspace_id WHERE " IS_USE ") f JOIN verify_center c ON "
	"c.tenant = f.tenant AND c.day = f.day ORDER BY f.tenant, f.day";
static const char further_centers_sql[] =
	"DELETE FROM verify_center v USING verify_first_center x WHERE x.tenant = v.tenant AND x.center = v.center";
static const char only_centers_sql[] =
	"INSERT INTO verify_first_center SELECT y.tenant_id, min(y.cost_center) FROM tenant_term y GROUP BY 1 HAVING min(y.cost_center) = max(y.cost_center)";
static const char fact_centers_sql[] =
	"UPDATE verify_fact f SET center = c.center FROM verify_center c WHERE c.tenant = f.tenant AND c.day = f.day";

/* --- 2. kinds and their prices --- */

static const char uses_sql[] =
	"CREATE TEMP TABLE verify_use ON COMMIT DROP AS "
	"SELECT -row_number() OVER () AS number, u.* FROM (SELECT DISTINCT coalesce(c.price_book_id, 0) AS book, c.cluster_id, c.workspace_id, "
	"c.gpu_model, c.profile, c.units, c.sharing, " USE_CLASS " AS class, coalesce(v.center, '') AS center FROM " DAYS_OF("charge_day") " c "
	"JOIN workspace w ON w.id = c.workspace_id LEFT JOIN verify_center v ON v.tenant = w.tenant_id AND v.day = c.day WHERE " IS_USE ") u";

static const char kinds_sql[] =
	"CREATE TEMP TABLE verify_kind ON COMMIT DROP AS "
	"SELECT row_number() OVER () AS number, k.* FROM (SELECT DISTINCT " KEY " FROM verify_fact) k "
	"UNION ALL SELECT u.number, 'usage', u.book, u.cluster_id, w.tenant_id, w.id, u.gpu_model, u.profile, u.units, coalesce(" SHARING("u.sharing")
	", ''), u.class, 0, '', 0, '', '', 'gpu', '', 0, '', u.center FROM verify_use u JOIN workspace w ON w.id = u.workspace_id";

/* R3. The prices needed: for lent time two, the borrower's price and the commitment's; covered, unused, one-off and
 * energy facts need none. */
static const char prices_sql[] =
	"CREATE TEMP TABLE verify_price ON COMMIT DROP AS "
	"WITH ask AS ("
	"SELECT book, tenant, meter, sku, category, model, profile, sharing, class FROM verify_kind WHERE kind IN ('usage', 'commitment', "
	"'undelivered', 'dedicated', 'shared', 'meter') "
	"UNION SELECT book, counterparty, '', '', 'gpu', model, profile, sharing, 'borrowed' FROM verify_kind WHERE kind = 'lent' "
	"UNION SELECT book, tenant, '', '', 'gpu', model, reserved_profile, '', 'reserved' FROM verify_kind WHERE kind IN ('lent', 'covered', "
	"'unused')) "
	"SELECT a.*, i.sku AS item_sku, l.mig_profile IS NOT NULL AND a.meter = '' AS per_instance, l.basis = 'used' AS basis_used, coalesce(l.per, 1) AS "
	"per, l.price AS unit_price, i.mig_profile IS NOT NULL AND a.meter = '' AS own_instance, i.basis = 'used' AS own_used, coalesce(i.per, 1) AS own_per, "
	"i.price AS own_price, coalesce(d.ratio, 0) AS ratio "
	"FROM ask a "
#define MATCHES                                                                                                        \
	"i.book_id = a.book AND coalesce(i.meter, '') = a.meter AND (i.meter_sku IS NULL OR i.meter_sku = a.sku) AND " \
	"(i.gpu_model IS NULL OR i.gpu_model = a.model) AND (i.mig_profile IS NULL OR i.mig_profile = a.profile) AND " \
	"(i.sharing_mode IS NULL OR i.sharing_mode = a.sharing) AND (i.class IS NULL OR i.class = a.class) "           \
	"ORDER BY i.gpu_model IS NULL, i.mig_profile IS NULL, i.sharing_mode IS NULL, i.class IS NULL, i.meter_sku "   \
	"IS NULL, i.position LIMIT 1"
	"LEFT JOIN LATERAL (SELECT i.* FROM price_item i WHERE i.tenant_id IS NULL AND " MATCHES ") p ON true "
	"LEFT JOIN LATERAL (SELECT i.* FROM price_item i WHERE i.tenant_id = a.tenant AND " MATCHES ") o ON true "
	"LEFT JOIN LATERAL (SELECT d.ratio FROM price_discount d WHERE d.book_id = a.book AND (d.tenant_id IS NULL OR d.tenant_id = a.tenant) "
	"AND (d.category IS NULL OR d.category = a.category) AND (d.class IS NULL OR d.class = a.class) ORDER BY d.tenant_id IS NULL, "
	"d.category IS NULL, d.class IS NULL, d.position LIMIT 1) d ON true "
	/* i: the tenant's price; l: the list price */
	"JOIN LATERAL (SELECT o.* WHERE o.book_id IS NOT NULL UNION ALL SELECT p.* WHERE o.book_id IS NULL AND p.book_id IS NOT NULL) i ON true "
	"JOIN LATERAL (SELECT p.* WHERE p.book_id IS NOT NULL UNION ALL SELECT o.* WHERE p.book_id IS NULL) l ON true";

/* R7 to R12: the unit price of each kind. R8: a part of a reservation has the commitment's unit. R9: a credit is the
 * borrower's price x the lender's ratio, at most the price of the same units of the commitment: for the commitment's
 * unit, and for that of the borrower. */
#define PARTS "('covered', 'unused', 'lent')"
#define CREDIT(units)                                                                                                  \
	"coalesce(least(div(p.own_price * 1000000000 * (1 - p.ratio) * b.lender_ratio * " units ", y.paid_units), "      \
	"div(coalesce(r.own_price, 0) * 1000000000 * (1 - coalesce(r.ratio, 0)) * " units ", y.reserved_units)) * "       \
	"0.000000001, 0)"
static const char priced_sql[] =
	"CREATE TEMP TABLE verify_priced ON COMMIT DROP AS "
	"SELECT k.number, k.kind, k.book, k.tenant, k.center, k.units, k.reserved_units, k.sku AS own_sku, k.meter, k.category, c.charge, c.words, c.place, "
	"coalesce(l.name, '') AS cluster, t.name AS tenant_name, coalesce(w.name, '') AS workspace, coalesce(n.name, '') AS counterparty, k.model, "
	"k.profile, k.sharing, k.class, x.priced, x.unit_price, x.own_price, x.ratio, x.paid_credit, y.paid_units, "
	"coalesce(p.own_used, false) AS paid_used, y.per_instance, y.basis_used, y.own_instance, y.own_used, y.per, y.own_per, "
	"y.per_instance <> y.own_instance OR y.per <> y.own_per OR (y.basis_used <> y.own_used AND k.kind IN ('usage', 'covered', 'lent')) AS differs, "
	"u.one || CASE WHEN y.per > 1 THEN u.more ELSE '' END AS unit, "
	"CASE WHEN y.own_per > 1 THEN y.own_per || ' ' || k.unit || u.more WHEN k.unit <> '' THEN k.unit ELSE CASE WHEN y.own_instance THEN 'instance-hour' "
	"ELSE 'gpu-hour' END || CASE WHEN y.own_used THEN ' used' ELSE ' held' END END AS own_unit, "
	"coalesce(p.item_sku, '') AS item_sku, "
	"CASE WHEN coalesce(p.item_sku, '') <> '' THEN p.item_sku WHEN k.kind = 'energy' THEN 'energy' WHEN k.sku <> '' THEN k.sku "
	"ELSE lower(k.model || CASE WHEN k.profile <> '' THEN '-mig-' || k.profile ELSE '' END COLLATE \"C\") END AS sku, "
	"CASE WHEN x.by_book THEN b.version ELSE '' END AS price_version, "
	"CASE WHEN k.kind = 'adjustment' THEN k.currency WHEN x.by_book THEN b.currency ELSE m.currency END AS currency ";
static const char priced_from[] =
	"FROM verify_month m CROSS JOIN verify_kind k "
	"JOIN (VALUES ('usage', 0, 'usage', ''), ('covered', 1, 'covered', ', covered by the reservation'), ('commitment', 2, 'commitment', ''), "
	"('unused', 3, 'covered', ', neither used nor lent'), ('undelivered', 4, 'credit', ', not delivered'), ('lent', 5, 'credit', ', lent to '), "
	"('dedicated', 6, 'usage', ', held by nobody'), ('shared', 7, 'usage', ' on shared nodes, held by nobody'), ('meter', 8, 'usage', ''), "
	"('adjustment', 9, 'adjustment', ''), ('energy', 10, 'usage', '')) AS c(kind, place, charge, words) ON c.kind = k.kind "
	"JOIN tenant t ON t.id = k.tenant LEFT JOIN workspace w ON w.id = k.workspace LEFT JOIN cluster l ON l.id = k.cluster "
	"LEFT JOIN tenant n ON n.id = k.counterparty LEFT JOIN price_book b ON b.id = k.book "
	"LEFT JOIN verify_price p ON p.book = k.book AND p.tenant = CASE k.kind WHEN 'lent' THEN k.counterparty ELSE k.tenant END AND p.meter = k.meter "
	"AND p.sku = k.sku AND p.category = k.category AND p.model = k.model AND p.profile = k.profile "
	"AND p.sharing = k.sharing AND p.class = k.class AND k.kind NOT IN ('covered', 'unused', 'adjustment', 'energy') "
	"LEFT JOIN verify_price r ON k.kind IN " PARTS " AND r.book = k.book AND r.tenant = k.tenant AND r.meter = '' AND r.model = k.model AND "
	"r.profile = k.reserved_profile AND r.sharing = '' AND r.class = 'reserved' "
	"CROSS JOIN LATERAL (SELECT CASE WHEN k.kind = 'lent' AND p.book IS NULL THEN false WHEN k.kind IN " PARTS " THEN coalesce(r.per_instance, false) "
	"ELSE coalesce(p.per_instance, false) END AS instance) i "
	"CROSS JOIN LATERAL (SELECT i.instance AS per_instance, CASE WHEN k.kind IN " PARTS " THEN i.instance ELSE coalesce(p.own_instance, false) END AS "
	"own_instance, k.kind = 'usage' AND coalesce(p.basis_used, false) AS basis_used, k.kind IN ('usage', 'lent') AND coalesce(p.own_used, "
	"false) AS own_used, coalesce(p.per, 1) AS per, coalesce(p.own_per, 1) AS own_per, CASE WHEN i.instance THEN k.reserved_units ELSE 5040 END AS units, "
	"CASE WHEN p.own_instance THEN k.units ELSE 5040 END AS paid_units, CASE WHEN r.own_instance THEN k.reserved_units ELSE 5040 END AS reserved_units) y "
	"CROSS JOIN LATERAL (SELECT CASE WHEN k.unit = '' THEN CASE WHEN y.per_instance AND k.kind IN " PARTS " AND k.reserved_profile <> k.profile THEN "
	"'instance-hour of ' || k.reserved_profile WHEN y.per_instance THEN 'instance-hour' ELSE 'gpu-hour' END WHEN y.per > 1 THEN y.per || "
	"' ' || k.unit ELSE k.unit END AS one, CASE WHEN k.unit = 'GB' THEN '' ELSE 's' END AS more) u "
	"CROSS JOIN LATERAL (SELECT "
	"k.kind IN ('covered', 'unused', 'adjustment', 'energy') OR p.book IS NOT NULL AS priced, "
	"b.id IS NOT NULL AND (k.kind IN ('covered', 'unused', 'energy') OR p.book IS NOT NULL) AS by_book, "
	"CASE WHEN k.kind IN ('adjustment', 'energy') THEN abs(k.price) WHEN p.book IS NULL THEN 0 WHEN k.kind = 'lent' THEN " CREDIT("y.units") " ELSE p.unit_price END AS "
	"unit_price, CASE WHEN k.kind IN ('adjustment', 'energy') THEN abs(k.price) WHEN p.book IS NULL THEN 0 WHEN k.kind = 'lent' THEN " CREDIT("y.units") " ELSE "
	"p.own_price END AS own_price, CASE WHEN k.kind = 'lent' AND p.book IS NOT NULL THEN " CREDIT("y.paid_units") " ELSE 0 END AS paid_credit, "
	"CASE WHEN k.kind = 'lent' THEN 0 ELSE coalesce(p.ratio, 0) END AS ratio) x";

/* R1: the columns of a line, each with its length, under half a SHA-256; rows of several books of one version are one
 * line. The kind of a credit depends on its sign. */
#define LENGTH(text) "octet_length(" text ") || ':' || " text " || ','"
static const char ids_sql[] =
	"CREATE TEMP TABLE verify_id ON COMMIT DROP AS "
	"SELECT k.number, x.line_id, x.charge, dense_rank() OVER (ORDER BY x.line_id)::integer AS line "
	"FROM verify_month m CROSS JOIN verify_priced k JOIN verify_kind s ON s.number = k.number CROSS JOIN LATERAL (SELECT v.charge, "
	"encode(substr(sha256(convert_to('15:tollgate-line-2,' || " LENGTH("m.month") " || " LENGTH("k.cluster") " || " LENGTH("k.tenant_name") " || "
	LENGTH("k.workspace") " || " LENGTH("v.charge") " || " LENGTH("k.words") " || " LENGTH("k.counterparty") " || " LENGTH("k.category") " || "
	LENGTH("k.meter") " || " LENGTH("k.sku") " || " LENGTH("k.model") " || " LENGTH("k.profile") " || " LENGTH("v.units") " || "
	LENGTH("k.sharing") " || " LENGTH("k.class") " || " LENGTH("k.price_version") " || " LENGTH("k.unit") " || " LENGTH("v.price") " || "
	LENGTH("k.currency") " || CASE WHEN k.center <> '' THEN " LENGTH("k.center") " ELSE '' END, 'UTF8')), 1, 16), 'hex') AS line_id "
	"FROM (SELECT k.units || CASE WHEN k.per_instance AND k.kind IN " PARTS " AND k.reserved_units NOT IN (0, k.units) THEN '/' || k.reserved_units ELSE "
	"'' END AS units, CASE WHEN s.price < 0 THEN 'credit' ELSE k.charge END AS charge, CASE WHEN k.priced THEN trim_scale(k.unit_price)::text ELSE "
	"'' END AS price) v) x";

/* --- 3. cells --- */

/* The columns common to all kinds of a line. */
static const char lines_sql[] =
	"CREATE TEMP TABLE verify_line ON COMMIT DROP AS "
	"SELECT DISTINCT ON (i.line) i.line, i.line_id, i.charge, k.kind, k.place, k.tenant, k.center, k.tenant_name, k.cluster, k.workspace, k.category, k.sku, "
	"k.item_sku, k.model, k.profile, k.units, k.sharing, k.class, k.unit, k.price_version, k.currency, k.counterparty, k.priced, k.unit_price, "
	"k.own_price, k.ratio, k.per_instance, k.basis_used, k.own_instance, k.own_used, k.per::numeric AS per, k.own_per::numeric AS own_per, k.differs, "
	"k.own_unit, k.paid_credit, k.paid_units, k.paid_used, CASE WHEN k.kind IN " PARTS " AND k.reserved_units > 0 THEN k.reserved_units ELSE k.units END "
	"* 3600::numeric AS instance, false AS unrated "
	"FROM verify_id i JOIN verify_priced k ON k.number = i.number ORDER BY i.line";

static const char sums_sql[] = "CREATE TEMP TABLE verify_sum (line integer, hours numeric, used numeric, idle numeric, unmeasured numeric, "
			       "quantity numeric, own numeric, energy numeric, discount numeric) ON COMMIT DROP";

/* A day of a line that is no part of a reservation is one cell. */
#define CELL_SUMS                                                                                                      \
	"sum(f.used) AS used, sum(f.idle) AS idle, sum(f.unmeasured) AS unmeasured, sum(f.over) AS over"
static const char use_cells[] =
	"INSERT INTO verify_sum WITH cell AS (SELECT i.line, f.day, " CELL_SUMS ", 0 AS amount, sum(f.energy_mj) AS energy, NULL::numeric AS hours, NULL::numeric AS part, "
	"false AS part_instance FROM "
	"(SELECT c.*, coalesce(c.price_book_id, 0) AS book, " USE_CLASS " AS use, coalesce(v.center, '') AS center FROM " DAYS_OF("charge_day") " c JOIN "
	"workspace w ON w.id = c.workspace_id LEFT JOIN verify_center v ON v.tenant = w.tenant_id AND v.day = c.day WHERE " IS_USE ") f "
	"JOIN verify_use u ON u.workspace_id = f.workspace_id AND u.gpu_model = f.gpu_model AND u.profile = f.profile AND u.class = f.use AND u.units = "
	"f.units AND u.sharing = f.sharing AND u.cluster_id = f.cluster_id AND u.book = f.book AND u.center = f.center JOIN verify_id i ON i.number = u.number "
	"GROUP BY i.line, f.day)";
static const char fact_cells[] =
	"INSERT INTO verify_sum WITH cell AS (SELECT i.line, f.day, " CELL_SUMS ", sum(f.amount) AS amount, sum(f.energy) AS energy, NULL::numeric AS "
	"hours, NULL::numeric AS part, false AS part_instance FROM verify_fact f JOIN verify_kind k USING (" KEY ") JOIN verify_id i ON i.number = k.number WHERE f.reservation = 0 "
	"GROUP BY i.line, f.day)";

/* R2: a reservation's day has a cell for the commitment and one for each of its parts, which are rounded together and
 * add up to it; the rest goes to the largest remainders, equal ones in the order of R1's columns. */
static const char part_cells[] =
	"INSERT INTO verify_sum WITH fact AS (SELECT i.line, f.day, f.reservation, " CELL_SUMS ", sum(f.amount) AS amount, sum(f.energy) AS energy, "
	"sum(f.used + f.idle + f.unmeasured + f.amount) AS total "
	"FROM verify_fact f JOIN verify_kind k USING (" KEY ") JOIN verify_id i ON i.number = k.number WHERE f.reservation > 0 GROUP BY 1, 2, 3), "
	"sized AS (SELECT f.*, k.kind, k.kind = 'commitment' AS whole, k.profile, k.sharing, k.counterparty, k.item_sku, k.price_version, k.place AS kind_place, "
	"k.unit_price, k.own_price, k.ratio, k.per_instance, k.basis_used, k.units, bool_or(k.kind = 'commitment' AND k.per_instance) OVER together AS "
	"part_instance, max(k.instance) FILTER (WHERE k.kind = 'commitment') OVER together AS instance FROM fact f JOIN verify_line k ON k.line = f.line "
	"WINDOW together AS (PARTITION BY f.reservation)), "
	"divided AS (SELECT s.*, CASE WHEN s.part_instance THEN s.instance ELSE " NGH " END AS by FROM sized s), "
#define TIES                                                                                                           \
	"d.profile COLLATE \"C\", d.sharing COLLATE \"C\", d.counterparty COLLATE \"C\", d.item_sku COLLATE \"C\", "     \
	"d.price_version COLLATE \"C\", d.kind_place, d.unit_price, d.own_price, d.ratio, d.per_instance, d.basis_used, d.units"
	"placed AS (SELECT d.*, div(d.total, " NGH ") AS floor, row_number() OVER (PARTITION BY d.reservation, d.whole ORDER BY mod(d.total, " NGH ") DESC, "
	TIES ") AS place, div(d.total, d.by) AS part_floor, row_number() OVER (PARTITION BY d.reservation, d.whole ORDER BY mod(d.total, d.by) DESC, " TIES
	") AS part_place FROM divided d), "
	"summed AS (SELECT p.*, sum(p.total) OVER together AS sum, sum(p.floor) OVER together AS floors, sum(p.part_floor) OVER together AS part_floors FROM "
	"placed p WINDOW together AS (PARTITION BY p.reservation, p.whole)), "
	"cell AS (SELECT s.line, s.day, s.used, s.idle, s.unmeasured, s.over, s.amount, s.energy, s.floor + (s.place <= " HALF_EVEN("s.sum", NGH) " - "
	"s.floors)::integer AS hours, s.part_floor + (s.part_place <= " HALF_EVEN("s.sum", "s.by") " - s.part_floors)::integer AS part, s.part_instance "
	"FROM summed s)";

/* R2: used, idle and unmeasured add up to the hours; the rest goes to the largest remainders, equal ones in this
 * order. R4: the priced quantity n / d, by the list and by the tenant's own price. OFFSET 0: each quotient is
 * computed once. */
#define PRICED(used, instance)                                                                                         \
	"CASE WHEN k.kind = 'energy' THEN c.amount * 5 WHEN " used " AND k.kind IN ('usage', 'lent') THEN c.used + "    \
	"c.unmeasured + c.over WHEN c.part IS NOT NULL AND " instance " = c.part_instance THEN NULL WHEN " instance       \
	" THEN c.used + c.idle + c.unmeasured + c.amount END"
#define DIVISOR(instance)                                                                                              \
	"CASE WHEN k.kind = 'energy' THEN 18 WHEN " instance " THEN k.instance ELSE " NGH " END"
/* R5: negative for credits */
#define QUANTITY(n, d, instance, per)                                                                                  \
	"CASE WHEN r.charge = 'credit' THEN -1 ELSE 1 END * CASE WHEN r.kind IN ('meter', 'adjustment') THEN "         \
	HALF_EVEN("r.amount", per) " WHEN " n " IS NOT NULL THEN " HALF_EVEN(n, d) " WHEN r.part IS NOT NULL AND "     \
	instance " = r.part_instance THEN r.part ELSE r.ngh END"
static const char quantised[] =
	", whole AS (SELECT c.line, c.day, c.amount, c.energy, c.hours, c.part, c.part_instance, k.kind, k.charge, k.own_price, k.ratio, k.per, k.own_per, "
	"k.per_instance, k.own_instance, k.differs, "
	"c.used + c.idle + c.unmeasured + c.amount AS total, div(c.used, " NGH ") AS used_hours, div(c.idle, " NGH ") AS idle_hours, "
	"div(c.unmeasured, " NGH ") AS unmeasured_hours, mod(c.used, " NGH ") AS u, mod(c.idle, " NGH ") AS i, mod(c.unmeasured, " NGH ") AS m, "
	PRICED("k.basis_used", "k.per_instance") " AS n, " DIVISOR("k.per_instance") " AS d, "
	PRICED("k.own_used", "k.own_instance") " AS own_n, " DIVISOR("k.own_instance") " AS own_d "
	"FROM cell c JOIN verify_line k ON k.line = c.line OFFSET 0), "
	"timed AS (SELECT w.*, CASE WHEN w.hours IS NOT NULL THEN w.hours WHEN w.kind IN ('meter', 'adjustment', 'energy') THEN 0 ELSE "
	HALF_EVEN("w.total", NGH) " END AS ngh FROM whole w OFFSET 0), "
	"rests AS (SELECT t.*, t.ngh - t.used_hours - t.idle_hours - t.unmeasured_hours AS left FROM timed t OFFSET 0), "
	"listed AS (SELECT r.*, " QUANTITY("r.n", "r.d", "r.per_instance", "r.per") " AS quantity FROM rests r OFFSET 0), "
	"part AS (SELECT r.line, r.day, r.own_price, r.ratio, r.energy, r.ngh, "
	"r.used_hours + (r.left > (r.i > r.u)::integer + (r.m > r.u)::integer)::integer AS used, "
	"r.idle_hours + (r.left > (r.u >= r.i)::integer + (r.m > r.i)::integer)::integer AS idle, "
	"r.unmeasured_hours + (r.left > (r.u >= r.m)::integer + (r.i >= r.m)::integer)::integer AS unmeasured, r.quantity, "
	"CASE WHEN r.differs THEN " QUANTITY("r.own_n", "r.own_d", "r.own_instance", "r.own_per") " ELSE r.quantity END AS own FROM listed r OFFSET 0), ";

/* R5: a line is the sum of its days; a deduction is rounded once a day, also if it has parts of several reservations. */
static const char one_a_day[] = "day AS (SELECT * FROM part) ";
static const char many_a_day[] =
	"day AS (SELECT p.line, p.own_price, p.ratio, sum(p.ngh) AS ngh, sum(p.used) AS used, sum(p.idle) AS idle, sum(p.unmeasured) AS unmeasured, "
	"sum(p.quantity) AS quantity, sum(p.own) AS own, sum(p.energy) AS energy FROM part p GROUP BY p.line, p.day, p.own_price, p.ratio) ";
static const char line_sums[] =
	"SELECT d.line, sum(d.ngh), sum(d.used), sum(d.idle), sum(d.unmeasured), sum(d.quantity), sum(d.own), sum(d.energy), sum(CASE WHEN d.ratio = 0 THEN 0 ELSE "
	WHOLE("d.own * d.own_price * 1000000000 * d.ratio") " END) FROM day d GROUP BY d.line";

/* --- 4. lines --- */

/* R9: the amount that each workspace borrowed of a line of lent time, in its own unit, each day rounded down. */
static const char loans_sql[] =
	"CREATE TEMP TABLE verify_loan ON COMMIT DROP AS SELECT x.line, x.borrower, sum(div(x.ns, x.paid_units * 3600::numeric)) AS quantity FROM (SELECT "
	"i.line, f.day, f.borrower, l.paid_units, sum(f.used + f.unmeasured + CASE WHEN l.paid_used THEN f.over ELSE f.idle END) AS ns FROM verify_fact f JOIN "
	"verify_kind k USING (" KEY ") JOIN verify_id i ON i.number = k.number JOIN verify_line l ON l.line = i.line WHERE f.kind = 'lent' GROUP BY 1, 2, 3, 4) x "
	"GROUP BY 1, 2";

/* R13: lines whose sum of costs exceeds 10^18, the smaller ones first, have no price. */
static const char unrated_sql[] =
	"WITH cost AS (SELECT k.line, k.line_id, k.tenant, k.currency, greatest(abs(s.quantity * 0.000000001 * k.unit_price), abs(s.own * 0.000000001 * "
	"k.own_price - s.discount * 0.000000000000000001)) AS cost FROM verify_line k JOIN verify_sum s ON s.line = k.line), "
	"sized AS (SELECT c.line, sum(c.cost) OVER (PARTITION BY c.tenant, c.currency ORDER BY c.cost, c.line_id COLLATE \"C\" ROWS UNBOUNDED PRECEDING) AS "
	"sum FROM cost c), unrated AS (SELECT line FROM sized WHERE sum > 1000000000000000000), "
	"zero AS (UPDATE verify_sum s SET discount = 0 FROM unrated u WHERE s.line = u.line) "
	"UPDATE verify_line k SET priced = false, unit_price = 0, own_price = 0, ratio = 0, paid_credit = 0, unrated = true FROM unrated u WHERE k.line = u.line";

/* R6: the total of a tenant and currency is rounded once; its cents go to the largest remainders, equal ones by line_id. ISO 4217 has no
 * decimals, three or four for a few currencies, and two for all others. */
static const char rated_sql[] =
	"CREATE TEMP TABLE verify_rated ON COMMIT DROP AS "
	"WITH cost AS (SELECT k.*, CASE WHEN k.differs THEN 0 ELSE k.unit_price - k.own_price END AS discount_price, s.hours, s.used, s.idle, s.unmeasured, "
	"s.quantity, s.own, s.energy, s.quantity * 0.000000001 * k.unit_price AS list_cost, s.quantity * 0.000000001 * k.unit_price - s.own * 0.000000001 * "
	"k.own_price + s.discount * 0.000000000000000001 AS discount, "
	"CASE WHEN k.currency IN ('BIF', 'CLP', 'DJF', 'GNF', 'ISK', 'JPY', 'KMF', 'KRW', 'PYG', 'RWF', 'UGX', 'UYI', 'VND', 'VUV', 'XAF', 'XOF', "
	"'XPF') THEN 0 WHEN k.currency IN ('BHD', 'IQD', 'JOD', 'KWD', 'LYD', 'OMR', 'TND') THEN 3 WHEN k.currency IN ('CLF', 'UYW') THEN 4 ELSE 2 "
	"END AS scale FROM verify_line k JOIN verify_sum s ON s.line = k.line), "
	"loan AS (SELECT c.line, sum(trunc(l.quantity * 0.000000001 * c.paid_credit * (ARRAY[1, 10, 100, 1000, 10000])[c.scale + 1])) AS cents FROM cost c "
	"JOIN verify_loan l ON l.line = c.line GROUP BY 1), "
	"minor AS (SELECT c.*, CASE WHEN c.kind = 'lent' THEN 0 ELSE c.list_cost - c.discount END * (ARRAY[1, 10, 100, 1000, 10000])[c.scale + 1] AS minor, "
	"(ARRAY[1, 0.1, 0.01, 0.001, 0.0001])[c.scale + 1] AS coin, l.cents FROM cost c LEFT JOIN loan l ON l.line = c.line), "
	"placed AS (SELECT x.*, floor(x.minor) AS whole, row_number() OVER (PARTITION BY x.tenant, x.currency ORDER BY x.minor - floor(x.minor) DESC, "
	"x.line_id COLLATE \"C\") AS rank, sum(x.minor) OVER invoice AS total, sum(floor(x.minor)) OVER invoice AS wholes FROM minor x WINDOW invoice AS "
	"(PARTITION BY x.tenant, x.currency)) "
	"SELECT p.*, CASE WHEN p.kind = 'lent' THEN -p.cents ELSE p.whole + (p.rank <= " WHOLE("p.total") " - p.wholes)::integer END * p.coin AS billed FROM "
	"placed p";

/* --- 5. billed amounts --- */

/* correction.h 1 to 4: sums over all billed rows of a line. A line that does not exist any more was taken back whole;
 * a line that was rated and cannot be rated any more costs the billed amount. Names and prices are those of the line
 * wherever it is billed. correction.h 6: the id of a correction. */
#define DECIMAL(x) x " * 0.000000001"
static const char billed_sums[] =
	"WITH billed AS (SELECT l.*, i.invoice_id, i.month, i.version, t.name AS tenant, coalesce(l.correction_of, l.line_id) AS line FROM invoice i "
	"JOIN invoice_line l ON l.number = i.number JOIN tenant t ON t.id = i.tenant_id JOIN verify_month m ON m.month = i.month), "
	"sums AS (SELECT b.line, min(b.invoice_id COLLATE \"C\") AS invoice_id, bool_and(b.correction_of IS NULL) AS uncorrected, "
	"count(*) FILTER (WHERE b.correction_of IS NULL) AS lines, bool_or(b.priced) AS rated, sum(b.allocated_gpu_hours) AS allocated, "
	"sum(b.used_gpu_hours) AS used, sum(b.idle_gpu_hours) AS idle, sum(b.unmeasured_gpu_hours) AS unmeasured, sum(b.gpu_hours) AS hours, "
	"sum(b.quantity) AS quantity, sum(coalesce(b.own_quantity, 0)) AS own, sum(b.list_cost) AS list_cost, sum(b.discount) AS discount, sum(b.rounding) AS rounding, sum(b.billed) AS "
	"billed, sum(b.energy_mj) AS energy FROM billed b GROUP BY b.line), ";
/* The names and the unit price of each line: as rated; for a line that does not exist any more, as billed first. */
static const char billed_names[] =
	"line AS (SELECT e.line_id, e.unrated, e.tenant_name AS tenant, e.place, e.priced, e.scale, e.cluster, e.workspace, e.charge, e.category, e.sku, e.model, "
	"e.profile, e.sharing, e.class, e.unit, e.price_version, e.currency, e.counterparty, e.unit_price, e.discount_price, CASE WHEN e.differs THEN "
	"e.own_unit ELSE '' END AS own_unit, CASE WHEN e.differs THEN e.own_price ELSE 0 END AS own_price, e.ratio * 1000000000 AS ratio, "
	"CASE WHEN e.center <> '' THEN e.center ELSE coalesce((SELECT f.center FROM verify_first_center f WHERE f.tenant = e.tenant), '') END AS center FROM verify_rated e UNION ALL (SELECT DISTINCT ON (b.line) b.line, false, b.tenant, b.kind, b.priced, b.currency_scale, b.cluster, b.workspace, "
	"b.charge_type, b.category, b.sku, b.gpu_model, b.mig_profile, b.sharing_mode, b.class, b.unit, b.price_version, b.currency, b.counterparty, "
	"b.unit_price, b.discount_price, coalesce(b.own_unit, ''), coalesce(b.own_price, 0), b.discount_ratio, b.cost_center FROM billed b WHERE NOT EXISTS (SELECT FROM verify_rated e WHERE e.line_id = b.line) "
	"ORDER BY b.line, b.number)), ";
static const char different_sums[] =
	"found AS ("
	"SELECT coalesce(s.line, e.line_id) AS line, coalesce(s.invoice_id, e.tenant_name || '-' || m.month || '-1') AS invoice, x.name, x.expected, "
	"x.found FROM verify_month m CROSS JOIN (verify_rated e FULL JOIN sums s ON s.line = e.line_id) CROSS JOIN LATERAL (SELECT 'a line' AS name, "
	"CASE WHEN e.line_id IS NULL THEN 'none' WHEN s.line IS NULL THEN e.billed || ' ' || e.currency ELSE 'billed once' END AS expected, "
	"CASE WHEN s.line IS NULL THEN 'not billed' ELSE 'billed ' || s.lines || ' times' END AS found "
	"WHERE s.line IS NULL OR s.lines > 1 OR (e.line_id IS NULL AND s.uncorrected)) x "
	"UNION ALL SELECT s.line, s.invoice_id, x.name, trim_scale(coalesce(x.expected, 0))::text, trim_scale(x.found)::text "
	"FROM sums s LEFT JOIN verify_rated e ON e.line_id = s.line CROSS JOIN LATERAL (VALUES "
	"('allocated_gpu_hours', CASE WHEN e.kind IN ('usage', 'covered') THEN " DECIMAL("e.hours") " ELSE 0 END, s.allocated), "
	"('used_gpu_hours', CASE WHEN e.kind IN ('usage', 'covered') THEN " DECIMAL("e.used") " ELSE 0 END, s.used), "
	"('idle_gpu_hours', CASE WHEN e.kind IN ('usage', 'covered') THEN " DECIMAL("e.idle") " ELSE 0 END, s.idle), "
	"('unmeasured_gpu_hours', CASE WHEN e.kind IN ('usage', 'covered') THEN " DECIMAL("e.unmeasured") " ELSE 0 END, s.unmeasured), "
	"('gpu_hours', " DECIMAL("e.hours") ", s.hours), ('quantity', " DECIMAL("e.quantity") ", s.quantity), "
	"('own_quantity', CASE WHEN e.differs THEN " DECIMAL("e.own") " ELSE 0 END, s.own), "
	"('list_cost', e.list_cost, s.list_cost), ('discount', e.discount, s.discount), "
	"('rounding', e.billed - (e.list_cost - e.discount), s.rounding), ('billed', e.billed, s.billed), ('energy_mj', e.energy, s.energy)) "
	"AS x(name, expected, found) WHERE coalesce(x.expected, 0) <> x.found AND NOT (coalesce(e.unrated, false) AND s.rated AND x.name IN ('list_cost', 'discount', 'rounding', 'billed')) AND (e.line_id IS NOT NULL OR NOT s.uncorrected) ";
static const char different_names[] =
	"UNION ALL SELECT b.line_id, b.invoice_id, x.name, x.expected, x.found FROM billed b JOIN line e ON e.line_id = b.line "
	/* A policy that changed the month after its close leaves the billed names unchanged; a correction has those
	 * of its own time. */
	"CROSS JOIN LATERAL (SELECT b.correction_of IS NOT NULL OR EXISTS (SELECT FROM verify_month m JOIN period_close k ON k.month = m.month JOIN policy_version v "
	"ON v.applied_at > k.closed_at AND v.effective_at < m.ends_at) AS told) c "
	"CROSS JOIN LATERAL (VALUES ('tenant', e.tenant, b.tenant), ('kind', e.place::text, b.kind::text), ('priced', e.priced::text, b.priced::text), "
	"('currency_scale', e.scale::text, b.currency_scale::text), ('cluster', e.cluster, b.cluster), ('workspace', e.workspace, b.workspace), "
	"('charge_type', CASE WHEN b.correction_of IS NULL THEN e.charge ELSE 'correction' END, b.charge_type), ('category', e.category, b.category), "
	"('sku', e.sku, b.sku), ('gpu_model', e.model, b.gpu_model), ('mig_profile', e.profile, b.mig_profile), ('sharing_mode', e.sharing, "
	"b.sharing_mode), ('class', e.class, b.class), ('unit', e.unit, b.unit), ('price_version', e.price_version, b.price_version), "
	"('currency', e.currency, b.currency), ('counterparty', e.counterparty, b.counterparty), "
	"('unit_price', trim_scale(e.unit_price)::text, trim_scale(b.unit_price)::text), "
	"('discount_price', trim_scale(e.discount_price)::text, trim_scale(b.discount_price)::text), "
	"('own_unit', e.own_unit, coalesce(b.own_unit, '')), ('own_price', trim_scale(e.own_price)::text, trim_scale(coalesce(b.own_price, 0))::text), "
	"('discount_ratio', trim_scale(e.ratio)::text, b.discount_ratio::text), ('cost_center', CASE WHEN c.told THEN b.cost_center ELSE e.center END, b.cost_center)) AS x(name, expected, found) WHERE x.expected <> x.found AND NOT (e.unrated AND b.priced AND x.name IN ('priced', 'unit_price', 'discount_price', 'own_price', 'discount_ratio')) "
	"UNION ALL SELECT b.line_id, b.invoice_id, x.name, x.expected, x.found FROM billed b CROSS JOIN LATERAL (VALUES "
	"('invoice_id', b.tenant || '-' || b.month || '-' || b.version, b.invoice_id), "
	"('line_id', CASE WHEN b.correction_of IS NULL THEN b.line_id ELSE encode(substr(sha256(convert_to(E'correction\\n' || b.closed_in || E'\\n' || "
	"b.month || E'\\n' || b.correction_of, 'UTF8')), 1, 16), 'hex') END, b.line_id)) AS x(name, expected, found) WHERE x.expected <> x.found) "
	"SELECT f.line, f.invoice, f.name, f.expected, f.found, (SELECT count(*) FROM billed) FROM (SELECT 1) one LEFT JOIN (SELECT * FROM found "
	"ORDER BY invoice COLLATE \"C\", line, name LIMIT 1000) f ON true";

/* --- all of it --- */

/* clang-format on */

#define PIECES 5
struct step {
	const char *name;
	const char *sql[PIECES];
	const char
		*analyze; /* the table that is complete now, for the planner; NULL: more rows follow, or it is small */
};

static const struct step steps[] = {
	{"facts", {facts_sql}, NULL},
	{"reservations", {reserved_sql}, "verify_reserved"},
	{"commitments", {commitments_sql}, NULL},
	{"covered hours", {covered_sql}, NULL},
	{"lent hours", {lent_sql}, NULL},
	{"dedicated nodes", {dedicated_sql}, NULL},
	{"shared nodes", {shared_sql}, NULL},
	{"meters", {meters_sql}, NULL},
	{"one-off charges", {adjustments_sql}, NULL},
	{"energy", {energy_sql}, NULL},
	{"cost centres", {centers_sql}, NULL},
	{"first cost centres", {first_centers_sql}, NULL},
	{"further cost centres", {further_centers_sql}, "verify_center"},
	{"only cost centres", {only_centers_sql}, "verify_first_center"},
	{"cost centres of the facts", {fact_centers_sql}, "verify_fact"},
	{"uses", {uses_sql}, "verify_use"},
	{"kinds", {kinds_sql}, "verify_kind"},
	{"prices", {prices_sql}, "verify_price"},
	{"priced kinds", {priced_sql, priced_from}, "verify_priced"},
	{"line ids", {ids_sql}, "verify_id"},
	{"lines", {lines_sql}, "verify_line"},
	{"sums", {sums_sql}, NULL},
	{"days of use", {use_cells, quantised, one_a_day, line_sums}, NULL},
	{"days of the rest", {fact_cells, quantised, one_a_day, line_sums}, NULL},
	{"days of reservations", {part_cells, quantised, many_a_day, line_sums}, "verify_sum"},
	{"loans", {loans_sql}, NULL},
	{"lines beyond a bill", {unrated_sql}, NULL},
	{"cents", {rated_sql}, "verify_rated"},
};
static const struct step compare = {"bills", {billed_sums, billed_names, different_sums, different_names}, NULL};

static const char drop_sql[] =
	"DROP TABLE verify_month, verify_fact, verify_center, verify_reserved, verify_use, verify_kind, verify_price, verify_priced, verify_id, verify_line, verify_sum, "
	"verify_loan, verify_rated, verify_first_center";

static bool
run_step(struct db *db, const struct step *s, PGresult **ret, struct err *err)
{
	in_place(buf) struct buf sql = {0};

	buf_init(&sql, SQL_MAX);
	for (size_t i = 0; i < PIECES && s->sql[i] != NULL; i++)
		buf_str(&sql, s->sql[i]);
	if (!buf_ok(&sql, s->name, err) || !db_run_text(db, buf_text(&sql), NULL, ret, err))
		return false;
	buf_clear(&sql);
	buf_printf(&sql, "ANALYZE %s", s->analyze);
	return s->analyze == NULL || db_script(db, buf_text(&sql), err);
}

bool
verify_lines(struct db *db, const char *month, PGresult **ret, struct err *err)
{
	owned(result) PGresult *found = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	/* The planner expects hardly a row from a join by all columns of a kind; nested loops would then take
	 * forever. */
	if (!charges_tables(db, err) ||
	    !db_script(db, "SET LOCAL work_mem = '64MB'; SET LOCAL jit = off; SET LOCAL enable_nestloop = off", err) ||
	    !db_run_text(db, month_sql, &a, NULL, err))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (!run_step(db, &steps[i], NULL, err))
			return err_prefix(err, "rating %s of %s again", steps[i].name, month);
	if (!run_step(db, &compare, &found, err) || !db_script(db, drop_sql, err) ||
	    !db_script(db, "SET LOCAL enable_nestloop = on", err))
		return err_prefix(err, "comparing what was billed of %s", month);
	*ret = take(found);
	return true;
}

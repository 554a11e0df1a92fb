/* aggregator/store/usage/usage_internal.h - usage by group: the statement that sums it, its cost, its rows as JSON and CSV. For the files of store/. */
#ifndef TOLLGATE_USAGE_INTERNAL_H
#define TOLLGATE_USAGE_INTERNAL_H

#include "aggregator/core/metering/ingest_sums.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/usage/usage.h"
#include "common/base/labels.h"

/* ---- SQL: the same joins and sums for every reader ---- */

/* Cluster, GPU model and owner of rows of usage_rows(...) u as of their hour, before they are summed: k.cluster_id, m.short_model, o.tenant_id. */
#define USAGE_CLUSTER_OF_HOUR "LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour "
#define USAGE_MODEL_OF_HOUR \
	"LEFT JOIN device e ON e.id = u.device_id LEFT JOIN gpu_spec m ON m.gpu_id = e.gpu_id AND m.effective @> u.hour "

/* o.tenant_id: the node's owner; NULL: shared. */
#define USAGE_OWNER_OF_HOUR "LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour "

/* u has the ids of usage_rows(...), summed as far as they are needed, with cluster_id and gpu_model as of their hour: n node,
 * c cluster, d device, g GPU, w workspace, t tenant, h holder; NULL where the id was not needed, or nobody held. */
#define USAGE_JOINS                                                                                \
	"LEFT JOIN node n ON n.id = u.node_id LEFT JOIN cluster c ON c.id = u.cluster_id "         \
	"LEFT JOIN device d ON d.id = u.device_id LEFT JOIN gpu g ON g.id = d.gpu_id "             \
	"LEFT JOIN workspace w ON w.id = u.workspace_id LEFT JOIN tenant t ON t.id = w.tenant_id " \
	"LEFT JOIN holder h ON h.id = u.holder_id "

/* "namespace/pod/container", "slurm job 17", "user alice"; empty where nobody held. */
#define USAGE_WORKLOAD                                                      \
	"CASE h.kind WHEN 1 THEN concat_ws('/', nullif(h.namespace, ''), "  \
	"coalesce(nullif(h.pod, ''), h.pod_uid), nullif(h.container, '')) " \
	"WHEN 2 THEN 'slurm job ' || h.slurm_job WHEN 3 THEN 'user ' || h.user_name ELSE '' END"

/* Every sum, and the peak, under its own name, so that sums can be summed again. */
#define USAGE_SUMS                                                                              \
	"sum(u.used) AS used, sum(u.idle) AS idle, sum(u.unmeasured) AS unmeasured, "           \
	"sum(u.unallocated) AS unallocated, sum(u.stranded) AS stranded, sum(u.down) AS down, " \
	"sum(u.unknown) AS unknown, sum(u.over) AS over, sum(u.clock_adjust) AS clock_adjust, " \
	"sum(u.energy_mj) AS energy_mj, sum(u.memory_byte_ms) AS memory_byte_ms, "              \
	"sum(u.sm_active) AS sm_active, sum(u.sm_measured) AS sm_measured, "                    \
	"max(u.peak_memory_bytes) AS peak_memory_bytes"

/* ---- grouping (usage_query.c) ---- */

#define USAGE_LABELS 4u                 /* label keys in one query */
#define USAGE_KEYS (14u + USAGE_LABELS) /* every other key once */
#define USAGE_KEY_NAME (sizeof("label:") + LABEL_MAX_KEY)

struct grouping {
	char name[USAGE_KEYS][USAGE_KEY_NAME];
	const char *sql[USAGE_KEYS];
	size_t label[USAGE_KEYS]; /* its number among the labels, from 1; 0: not a label */
	size_t count, label_count;
	unsigned ids; /* the columns of usage_rows() that names and filters need */
	bool by_state;
	bool long_range; /* folded days may be read instead of hours */
};

/* The part of each group in each cell of core/rating/cost_day.h, as a cursor, in the order of the cells and then of the keys: workspace, cluster, GPU model, MIG
 * profile, units, sharing, hour, owner, the keys, then time held, time used, energy. Of the query only tenant and workspace count. */
#define USAGE_CELL_COLUMNS 8
void grouping_cost_sql(const struct grouping *g, const struct usage_query *q, const char *cursor,
                       struct db_array *labels, struct buf *sql, struct db_args *a);

/* ---- rows as JSON or CSV (usage_write.c) ---- */

#define USAGE_HELD 3 /* the first three states are the parts of allocated time */
/* The columns of USAGE_SUMS, in their order. */
enum usage_value {
	USAGE_OVER = USAGE_STATES, /* the states before it */
	USAGE_CLOCK_ADJUST,
	USAGE_ENERGY_MJ,
	USAGE_MEMORY_BYTE_MS,
	USAGE_SM_ACTIVE, /* efficiency from here on, never billed */
	USAGE_SM_MEASURED,
	USAGE_PEAK_MEMORY_BYTES,
	USAGE_VALUES
};

/* A JSON object or CSV line that is being written. ROW_HEAD is the line of CSV that names the columns. Names are constants and need no escape. */
enum row_form { ROW_JSON, ROW_CSV, ROW_HEAD };
struct usage_row {
	struct buf *out;
	enum row_form form;
	bool any;
};
void row_begin(struct usage_row *o);
void row_end(struct usage_row *o);
void row_name(struct usage_row *o, const char *name, const char *suffix); /* of a member that the caller writes; JSON */
void row_text(struct usage_row *o, const char *name, const char *text);
void row_decimal(struct usage_row *o, const char *name, const char *suffix, int128 value, int scale);
/* name_gpu_hours, or gpu_hours for "", to nine places */
void row_hours(struct usage_row *o, const char *name, int128 unit_ns);
/* allocated and the states, in hours */
MUST_CHECK bool row_states(struct usage_row *o, const int128 unit_ns[USAGE_STATES], struct err *err);
/* All values: in hours, kWh and GiB-hours, or exact, in unit-nanoseconds, millijoules and byte-milliseconds. */
MUST_CHECK bool row_values(struct usage_row *o, const int128 v[USAGE_VALUES], bool exact, struct err *err);
/* {"from":...,"to":... */
void row_range(struct usage_row *o, int64_t from_ns, int64_t to_ns);

/* Reads n sums; a sum over no rows is NULL in SQL and 0 here. */
MUST_CHECK bool usage_read(const PGresult *r, int row, int col, size_t n, int128 *out, struct err *err);
/* Widens the range to whole billing hours; ERR_INVALID when it is empty. */
MUST_CHECK bool usage_widen(struct db *db, int64_t *from_ns, int64_t *to_ns, struct err *err);

/* ---- costs (usage_cost.c) ----
 *
 * The cost of groups of usage: amortised, adding up to the invoices. Rules, in order:
 *  1. the cost of a line's day is EffectiveCost of FOCUS (core/rating/amortise.h): covered hours cost what was paid for the reservation
 *  2. the cost of covered, on-demand and borrowed use goes to the hours that it is of, in proportion to what was priced of that class in each
 *     hour, and within an hour to the holders, pro rata within the workspace, the kind of device, the pool and the hour: by the time held, or by the
 *     time used where the tenant pays for that. Energy likewise by energy (core/rating/cost_day.h). A holder that ran in covered hours pays nothing for another's
 *     hours on demand
 *  3. a cost that no workload caused is a row of its own with a reason, and never goes to a holder: unused, lent and undelivered reservation, idle
 *     nodes, other meters, one-off amounts, corrections, and use whose hours name no holder any more (workload-unknown)
 *  4. amounts have COST_DECIMALS digits more than the currency, by largest remainder. So the groups of all pages and the rows without a workload add up to
 *     the lines of the range: of a whole month to its invoices, whatever it is grouped by. A month that earlier rules rated costs what was billed (core/rating/rating_file.h)
 *  5. days are whole: the range is widened to billing days. A correction counts on the first day of the month that it is billed in
 *  6. an answer is of one snapshot. The rows without a workload and the total of all groups are on the first page only
 *  7. memory holds the groups of the page, a month's lines, and one day's cells. An answer that has to read more than usage_query.cost_rows
 *     rows of cells and groups is refused */

#define COST_DECIMALS 6

/* ERR_INVALID: a filter or form that has no cost. */
MUST_CHECK bool usage_cost_check(const struct usage_query *q, struct err *err);

struct usage_cost;
/* The costs of the first `rows` rows of a result whose first columns are the keys, in their order. The result must outlive it. The range is whole
 * billing days, see usage_widen_days(). Call it inside a transaction of one snapshot. ERR_INVALID: too many rows. */
MUST_CHECK bool usage_cost_load(struct db *db, const struct usage_query *q, const struct grouping *g,
                                const int64_t range[2], const PGresult *groups, int rows, struct usage_cost **ret,
                                struct err *err);
void usage_cost_free(struct usage_cost *c);
DEFINE_OWNED(usage_cost, struct usage_cost)

MUST_CHECK bool usage_widen_days(struct db *db, int64_t range[2], struct err *err);

/* "costs":[{"currency","amount"}] of a row: an amount of 0 where there is a price, nothing where there is none. */
void usage_cost_write_group(const struct usage_cost *c, int row, struct usage_row *o);
/* "costs_without_workload":[{"tenant","workspace","cluster","gpu_model","reason","currency","amount"}],"costs_total":[...] */
void usage_cost_write_rest(const struct usage_cost *c, struct usage_row *o);

#endif

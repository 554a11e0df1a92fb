/* aggregator/store/billing/period_correct.c - corrections: the changes of closed months since they were billed.
 *
 * Only the first month that is not closed has corrections, and only closed months with changes (late_change) are computed again. Each month
 * is read in one snapshot, so that the difference has exactly the changes of that snapshot. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/rating.h"
#include "aggregator/store/billing/period_internal.h"

struct correcting {
	struct db *db;
	const char *month;  /* in which they are billed */
	const char *late;   /* the closed month that is computed again */
	bool earlier;       /* it was rated by earlier rules */
	const char *tenant; /* NULL: all */
	struct corrections *to;
	struct db_array *seen; /* NULL: not wanted */
	char **visited;        /* tenants that have rows now, by name */
	size_t visited_count;
};

/* --- what was billed --- */

struct billed_lines {
	struct corrections lines; /* by line_id */
	int32_t versions;         /* how many invoices there are of the tenant's month */
	bool by_day;              /* the lines have their days */
};

static void
billed_lines_fini(struct billed_lines *b)
{
	corrections_fini(&b->lines);
}

static int
by_line_id(const void *a, const void *b)
{
	return strcmp(((const struct rated_line *)a)->line_id, ((const struct rated_line *)b)->line_id);
}

/* Among the first n. */
static struct rated_line *
find_line(struct billed_lines *b, size_t n, const char *line_id)
{
	struct rated_line key = {0};

	memcpy(key.line_id, line_id, strnlen(line_id, sizeof(key.line_id) - 1));
	return n > 0 ? bsearch(&key, b->lines.lines, n, sizeof(key), by_line_id) : NULL;
}

static bool
add_amounts(const struct rated_line *l, struct rated_line *to, struct err *err)
{
#define ADD_TO(field) !__builtin_add_overflow(to->field, l->field, &to->field)
	return (ADD_TO(allocated_ngh) && ADD_TO(used_ngh) && ADD_TO(idle_ngh) && ADD_TO(unmeasured_ngh) &&
	        ADD_TO(ngh) && ADD_TO(quantity) && ADD_TO(own_quantity) && ADD_TO(list_cost) && ADD_TO(discount) &&
	        ADD_TO(rounding) && ADD_TO(billed) && ADD_TO(energy_mj)) ||
	       err_set(err, ERR_INVALID, "line %s: the sum of its invoices is too large", l->line_id);
#undef ADD_TO
}

/* A month that earlier rules rated: the first invoice counts as the present rules rate the same rows, so that only later changes are corrected.
 * The lines in b are the corrections since. */
static bool
add_rated_again(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct billed_lines *b = arg;
	size_t corrected = b->lines.count;

	(void)in;
	for (size_t i = 0; i < r->count; i++) {
		struct rated_line *l = find_line(b, corrected, r->lines[i].line_id);

		if (r->lines[i].correction_of != NULL)
			continue;
		if (l == NULL)
			corrections_add_copy(&b->lines, &r->lines[i]);
		else if (!add_amounts(&r->lines[i], l, err))
			return false;
	}
	if (b->lines.count > 0)
		qsort(b->lines.lines, b->lines.count, sizeof(*b->lines.lines), by_line_id);
	return true;
}

/* Each line as it was first billed, with the sums of all invoices of the month. */
static bool
load_billed(const struct correcting *c, const char *tenant, struct billed_lines *b, struct err *err)
{
	static const struct db_stmt lines = {
		"period billed",
		"WITH l AS (SELECT l.*, coalesce(l.correction_of, l.line_id) AS line FROM tenant t "
		"JOIN invoice i ON i.tenant_id = t.id AND i.month = $2 JOIN invoice_line l ON l.number = i.number WHERE t.name = $1 AND (NOT $3 OR l.correction_of IS NOT NULL)), "
		"sums AS (SELECT line, sum(allocated_gpu_hours) AS allocated_gpu_hours, sum(used_gpu_hours) AS used_gpu_hours, sum(idle_gpu_hours) AS idle_gpu_hours, "
		"sum(unmeasured_gpu_hours) AS unmeasured_gpu_hours, sum(gpu_hours) AS gpu_hours, sum(quantity) AS quantity, sum(own_quantity) AS own_quantity, "
		"sum(list_cost) AS list_cost, sum(discount) AS discount, sum(rounding) AS rounding, sum(billed) AS billed, sum(energy_mj) AS energy_mj FROM l GROUP BY line) "
		"SELECT DISTINCT ON (l.line COLLATE \"C\") l.line, " LINE_NAMES ", " LINE_AMOUNTS(
			"s") " FROM l JOIN sums s ON s.line = l.line ORDER BY l.line COLLATE \"C\", l.number"};
	static const struct db_stmt versions = {"period versions",
	                                        "SELECT count(*) FROM tenant t JOIN invoice i ON i.tenant_id = t.id "
	                                        "AND i.month = $2 WHERE t.name = $1"};
	owned(result) PGresult *r = NULL, *v = NULL;
	struct db_args a = {0}, of_lines;

	arg_text(&a, tenant);
	arg_text(&a, c->late);
	of_lines = a;
	arg_bool(&of_lines, c->earlier);
	if (!db_run(c->db, &lines, &of_lines, &r, err) || !db_run(c->db, &versions, &a, &v, err))
		return false;
	b->versions = (int32_t)res_i64(v, 0, 0);
	for (int row = 0; row < PQntuples(r); row++) {
		struct rated_line l = {0};
		bool ok = period_line_read(r, row, tenant, &l, err);

		corrections_add(&b->lines, &l);
		if (!ok)
			return false;
	}
	return !c->earlier ||
	       period_archive_each(c->db, c->late, tenant, ARCHIVE_AS_RATED_NOW, NULL, add_rated_again, b, err);
}

/* --- its days --- */

/* Adds the day to those of the line, which stay in their order. */
static bool
add_billed_day(struct rated_line *l, const struct rated_day *d)
{
	size_t at = 0;
	struct rated_day *to;

	while (at < l->day_count && l->days[at].day < d->day)
		at++;
	if (at == l->day_count || l->days[at].day != d->day) {
		l->days = mem_grow(l->days, l->day_count + 1, sizeof(*l->days));
		memmove(l->days + at + 1, l->days + at, (l->day_count - at) * sizeof(*l->days));
		l->days[at] = (struct rated_day){.day = d->day};
		l->day_count++;
	}
	to = &l->days[at];
#define ADD_TO(field) !__builtin_add_overflow(to->field, d->field, &to->field)
	return ADD_TO(ngh) && ADD_TO(used_ngh) && ADD_TO(idle_ngh) && ADD_TO(unmeasured_ngh) && ADD_TO(quantity) &&
	       ADD_TO(own_quantity) && ADD_TO(on_demand_quantity) && ADD_TO(reserved_cost) && ADD_TO(list_cost) &&
	       ADD_TO(discount) && ADD_TO(billed) && ADD_TO(amortised) && ADD_TO(energy_mj);
#undef ADD_TO
}

/* Adds the days of the month as it was closed. */
static bool
add_first_days(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct billed_lines *b = arg;

	(void)in;
	(void)err;
	for (size_t i = 0; i < r->count; i++) {
		struct rated_line *l =
			r->lines[i].correction_of == NULL ? find_line(b, b->lines.count, r->lines[i].line_id) : NULL;

		for (size_t k = 0; l != NULL && k < r->lines[i].day_count; k++)
			b->by_day &= add_billed_day(l, &r->lines[i].days[k]);
	}
	return true;
}

/* Adds the days of its corrections since. Corrections billed before days were archived have none. */
static bool
add_corrected_days(const struct correcting *c, const char *tenant, struct billed_lines *b, struct err *err)
{
	static const struct db_stmt stmt = {
		"period billed days",
		"SELECT l.correction_of, l.days FROM tenant t JOIN invoice i ON i.tenant_id = t.id AND i.month = $2 "
		"JOIN invoice_line l ON l.number = i.number WHERE t.name = $1 AND l.correction_of IS NOT NULL"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, tenant);
	arg_text(&a, c->late);
	if (!db_run(c->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r) && b->by_day; row++) {
		struct rated_line *l = find_line(b, b->lines.count, res_text(r, row, 0));
		owned(mem) struct rated_day *parts = NULL;
		size_t n = 0;

		b->by_day = l != NULL && !res_null(r, row, 1);
		if (b->by_day && !correction_days_read(res_text(r, row, 1), &parts, &n, err))
			return false;
		for (size_t i = 0; i < n; i++)
			b->by_day &= add_billed_day(l, &parts[i]);
	}
	return true;
}

static bool
load_days(const struct correcting *c, const char *tenant, struct billed_lines *b, struct err *err)
{
	b->by_day = true;
	if (!period_archive_each(c->db, c->late, tenant, ARCHIVE_AS_RATED_NOW, NULL, add_first_days, b, err) ||
	    !add_corrected_days(c, tenant, b, err))
		return false;
	for (size_t i = 0; i < b->lines.count; i++) {
		const struct rated_line *l = &b->lines.lines[i];
		int128 billed = 0, ngh = 0;

		for (size_t k = 0; k < l->day_count; k++) {
			billed += l->days[k].billed;
			ngh += l->days[k].ngh;
		}
		b->by_day &= billed == l->billed && ngh == l->ngh;
	}
	return true;
}

/* --- the difference --- */

static bool
correct_tenant(struct correcting *c, const struct rating_input *in, const char *tenant, const struct rated *now,
               struct err *err)
{
	in_place(billed_lines) struct billed_lines billed = {0};
	struct correction_input ci = {.tenant = tenant,
	                              .month = c->late,
	                              .period_start = in->period_start,
	                              .period_end = in->period_end,
	                              .billed_in = c->month,
	                              .now = now};

	if (!load_billed(c, tenant, &billed, err) || !load_days(c, tenant, &billed, err))
		return false;
	ci.by_day = billed.by_day;
	ci.version = billed.versions + 1;
	ci.billed = billed.lines.lines;
	ci.billed_count = billed.lines.count;
	return correction_run(&ci, c->to, err) || db_damaged(err);
}

static bool
each_tenant(void *arg, const struct rating_input *in, struct err *err)
{
	struct correcting *c = arg;
	owned(rated) struct rated *now = NULL;

	c->visited = mem_grow(c->visited, c->visited_count + 1, sizeof(*c->visited));
	c->visited[c->visited_count++] = mem_strdup(in->days[0].tenant);
	if (!rating_run(in, &now, err))
		return db_damaged(err);
	return correct_tenant(c, in, in->days[0].tenant, now, err);
}

/* Corrects tenants that were billed and have no rows any more; notes the changes that this snapshot includes. */
static bool
end_month(void *arg, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"period billed tenants",
		"SELECT DISTINCT t.name COLLATE \"C\" FROM tenant t JOIN invoice i ON i.tenant_id = t.id "
		"WHERE i.month = $1 AND ($2::text IS NULL OR t.name = $2) ORDER BY 1"};
	static const struct db_stmt changes = {"period changes seen", "SELECT id FROM late_change WHERE month = $1"};
	struct correcting *c = arg;
	owned(result) PGresult *r = NULL, *ids = NULL;
	struct db_args a = {0}, m = {0};
	size_t v = 0;

	arg_text(&a, c->late);
	arg_text(&a, c->tenant);
	arg_text(&m, c->late);
	if (!db_run(c->db, &stmt, &a, &r, err) || !db_run(c->db, &changes, &m, &ids, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const char *tenant = res_text(r, row, 0);

		while (v < c->visited_count && strcmp(c->visited[v], tenant) < 0)
			v++;
		if ((v == c->visited_count || strcmp(c->visited[v], tenant) != 0) &&
		    !correct_tenant(c, in, tenant, NULL, err))
			return false;
	}
	for (int row = 0; c->seen != NULL && row < PQntuples(ids); row++)
		array_i64(c->seen, res_i64(ids, row, 0));
	return true;
}

static bool
correct_month(struct correcting *c, struct err *err)
{
	bool ok = report_each(c->db, c->late, c->tenant,
	                      &(struct report_steps){.final = true, .each = each_tenant, .end = end_month}, c, err);

	for (size_t i = 0; i < c->visited_count; i++)
		mem_free(c->visited[i]);
	mem_free(c->visited);
	c->visited = NULL;
	c->visited_count = 0;
	return ok;
}

bool
period_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret,
                   struct db_array *ret_seen, struct err *err)
{
	static const struct db_stmt late = {
		"period late",
		"SELECT p.month, (SELECT k.rating_rules FROM period_close k WHERE k.month = p.month) IS DISTINCT FROM $2::bigint FROM period p WHERE p.status = 'closed' AND EXISTS (SELECT FROM late_change c WHERE c.month = p.month) "
		"AND $1 = (SELECT min(o.month) FROM period o WHERE o.status <> 'closed') ORDER BY p.month"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_i64(&a, RATING_RULES);
	if (!db_run(db, &late, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		struct correcting c = {.db = db,
		                       .month = month,
		                       .late = res_text(r, row, 0),
		                       .earlier = res_bool(r, row, 1),
		                       .tenant = tenant,
		                       .to = ret,
		                       .seen = ret_seen};

		if (!correct_month(&c, err))
			return err_prefix(err, "correcting %s", c.late);
	}
	corrections_sort(ret);
	return true;
}

bool
store_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret, struct err *err)
{
	return period_corrections(db, month, tenant, ret, NULL, err);
}

/* aggregator/store/close/close_checks.c - the checks before a month is closed, each with its number and its threshold. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/usage/usage.h"
#include "common/conf/json.h"

static const struct {
	const char *name, *meaning;
	bool final;
} kinds[PERIOD_CHECKS] = {
	[CHECK_NOT_OVER] = {"not-over", "hours until the month ends", true},
	[CHECK_EARLIER_OPEN] = {"earlier-open", "months before it that are not closed", true},
	[CHECK_MISSING_PRICE] = {"missing-prices", "lines without a price: they cost nothing", false},
	[CHECK_UNRATED] = {"unrated", "lines whose cost is beyond what a bill holds: they cost nothing", false},
	[CHECK_CONSERVATION] = {"conservation", "unit-nanoseconds that the states of GPUs do not add up to", true},
	[CHECK_GRACE] = {"grace", "hours until the time for what is late has passed", false},
	[CHECK_SILENT_NODES] = {"silent-nodes", "nodes in service that have not accounted for the whole month", false},
	[CHECK_QUARANTINE] = {"quarantine",
                              "batches in quarantine, and GPUs set aside in batches, of which nobody has decided",
                              false},
	[CHECK_UNATTRIBUTED] = {"unattributed", "share of held time that is nobody's, in millionths", false},
	[CHECK_UNKNOWN] = {"unknown", "share of time in service that is not known, in millionths", false},
	[CHECK_HOURS] = {"open-hours", "node-hours that are open or changed", false},
	[CHECK_DAYS] = {"open-days", "days that are not folded", false},
};

const char *
period_check_name(enum period_check c)
{
	return kinds[c].name;
}

bool
period_check_final(enum period_check c)
{
	return kinds[c].final;
}

bool
period_check_fails(const struct period_checks *c, enum period_check which)
{
	return c->at[which].number > c->at[which].threshold;
}

static void
add_check(const struct period_checks *c, enum period_check i, struct buf *out)
{
	char number[DECIMAL_TEXT_SIZE], threshold[DECIMAL_TEXT_SIZE];
	bool named = i == CHECK_UNRATED && c->unrated[0] != '\0';
	owned(mem) char *meaning =
		mem_printf("%s%s%s", kinds[i].meaning, named ? "; the first is " : "", named ? c->unrated : "");

	buf_printf(out, "%s{\"check\":\"%s\",\"number\":%s,\"threshold\":%s,\"ok\":%s,\"final\":%s,\"meaning\":",
	           i > 0 ? "," : "", kinds[i].name, decimal_format(c->at[i].number, 0, 0, number),
	           decimal_format(c->at[i].threshold, 0, 0, threshold), period_check_fails(c, i) ? "false" : "true",
	           kinds[i].final ? "true" : "false");
	json_write_string(meaning, out);
	buf_char(out, '}');
}

void
period_checks_array(const struct period_checks *c, struct buf *out)
{
	buf_char(out, '[');
	for (enum period_check i = 0; i < PERIOD_CHECKS; i++)
		add_check(c, i, out);
	buf_char(out, ']');
}

void
period_checks_json(const struct period_checks *c, const char *month, struct buf *out)
{
	bool closable = strcmp(c->status, "closed") != 0, reason = false;

	for (enum period_check i = 0; i < PERIOD_CHECKS; i++)
		if (period_check_fails(c, i)) {
			closable &= !kinds[i].final;
			reason |= !kinds[i].final;
		}
	buf_printf(out, "{\"period\":\"%s\",\"status\":\"%s\",\"closable\":%s,\"needs_reason\":%s,\"checks\":", month,
	           c->status, closable ? "true" : "false", reason ? "true" : "false");
	period_checks_array(c, out);
	buf_str(out, "}\n");
}

/* --- the numbers --- */

/* All but prices and conservation, which are not counted in SQL. */
static bool
count(struct db *db, const char *month, int64_t now_ns, int64_t grace_ns, struct period_checks *c, struct err *err)
{
	static const char sql[] =
		"SELECT p.status, "
		"greatest(0, ceil(extract(epoch FROM p.ends_at - $2::timestamptz) / 3600))::bigint, "
		"greatest(0, ceil(extract(epoch FROM p.ends_at - $3::timestamptz) / 3600))::bigint, "
		"(SELECT count(*) FROM period o WHERE o.starts_at < p.starts_at AND o.status <> 'closed'), "
		"(SELECT count(*) FROM node n WHERE coalesce(n.covered_until_ns, 0) < ns_of(p.ends_at) AND EXISTS ("
		"SELECT FROM gpu_service s WHERE s.node_id = n.id AND s.from_ns < ns_of(p.ends_at) "
		"AND coalesce(s.until_ns, ns_of(p.ends_at)) > greatest(n.covered_until_ns, ns_of(p.starts_at)))), "
		"(SELECT count(*) FROM ingest_batch b WHERE b.status = 'quarantined' AND b.decision IS NULL "
		"AND b.from_ns < ns_of(p.ends_at) AND b.to_ns > ns_of(p.starts_at)) + (SELECT count(*) FROM batch_set_aside b "
		"WHERE b.decision IS NULL AND b.from_ns < ns_of(p.ends_at) AND b.to_ns > ns_of(p.starts_at)), "
		"coalesce(ceil(u.nobody * 1000000 / nullif(u.held, 0)), 0)::bigint, "
		"coalesce(ceil(u.unknown * 1000000 / nullif(u.all_time, 0)), 0)::bigint, "
		"(SELECT count(*) FROM node_hour h WHERE h.hour >= p.starts_at AND h.hour < p.ends_at "
		"AND (h.sealed_at IS NULL OR h.dirty)), "
		"(SELECT count(*) FROM billing_day b WHERE b.starts_at >= p.starts_at AND b.starts_at < p.ends_at AND b.dirty) "
		"FROM period p, LATERAL (SELECT sum(x.held) FILTER (WHERE w.builtin) AS nobody, sum(x.held) AS held, "
		"sum(x.unknown) AS unknown, sum(x.all_time) AS all_time "
		"FROM (SELECT d.workspace_id, d.used + d.idle + d.unmeasured AS held, d.unknown, d.used + d.idle + d.unmeasured + "
		"d.unallocated + d.stranded + d.down + d.unknown AS all_time FROM daily_rows(p.starts_at, p.ends_at) d) x "
		"LEFT JOIN workspace w ON w.id = x.workspace_id) u WHERE p.month = $1";
	static const enum period_check order[] = {CHECK_NOT_OVER,     CHECK_GRACE,      CHECK_EARLIER_OPEN,
	                                          CHECK_SILENT_NODES, CHECK_QUARANTINE, CHECK_UNATTRIBUTED,
	                                          CHECK_UNKNOWN,      CHECK_HOURS,      CHECK_DAYS};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	arg_time(&a, now_ns);
	arg_time(&a, now_ns - grace_ns);
	if (!db_run_text(db, sql, &a, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_MISSING, "the ledger has nothing of period %.40s", month);
	snprintf(c->status, sizeof(c->status), "%.7s", res_text(r, 0, 0));
	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		c->at[order[i]].number = res_i64(r, 0, (int)i + 1);
	return true;
}

static bool
count_unpriced(void *arg, const struct rating_input *in, struct err *err)
{
	struct period_checks *c = arg;
	owned(rated) struct rated *r = NULL;

	if (!rating_run(in, &r, err))
		return db_damaged(err);
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		c->at[l->unrated ? CHECK_UNRATED : CHECK_MISSING_PRICE].number += !l->priced;
		if (l->unrated && c->unrated[0] == '\0')
			snprintf(c->unrated, sizeof(c->unrated), "line %s of tenant %.100s, %.100s", l->line_id,
			         l->tenant, l->sku);
	}
	return true;
}

bool
store_period_check(struct db *db, const char *month, int64_t now_ns, const struct period_thresholds *t,
                   struct period_checks *ret, struct err *err)
{
	struct period_checks c = {0};

	c.at[CHECK_UNATTRIBUTED].threshold = t->unattributed_ppm;
	c.at[CHECK_UNKNOWN].threshold = t->unknown_ppm;
	if (!store_report_each(db, month, NULL, NULL, count_unpriced, &c, err) ||
	    !count(db, month, now_ns, t->grace_ns, &c, err) ||
	    !store_conservation_error(db, month, &c.at[CHECK_CONSERVATION].number, err))
		return false;
	*ret = c;
	return true;
}

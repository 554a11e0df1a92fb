/* aggregator/store/policy/policy_apply.c - applies a policy file: all of it, or nothing.
 *
 * Rules, in order:
 *  1. the file is read and checked as a whole before anything is written
 *  2. it takes effect at the start of a billing hour: the one it names, or the current one; any other time is refused
 *  3. it may reach back into closed months, which stay as they were billed: what it changes of them (rules, owners, states, reservations, lend
 *     caps) becomes corrections in the next open month. Their prices stay: such a file has the prices that are in force last, and they
 *     stay as they are over time. Where hours are no longer kept nothing can change
 *  4. a file that changes nothing writes nothing
 *  5. a dry run does everything, so that every constraint has its say, and rolls back
 *  6. a tenant's administrator changes its own part (core/policy/policy_part.c): that part takes its place in the document in force,
 *     from the current hour or later, and not before the policy it changes */
#include <stdio.h>

#include "aggregator/core/policy/policy.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/policy/policy_write.h"
#include "common/base/digest.h"

#define STEPS_AT_ONCE 10 /* of attributing holders again, before the answer */

/* Rule 2. */
static bool
effective_of(const struct db_ledger *l, const struct policy *p, int64_t now_ns, int64_t *ret_ns, struct err *err)
{
	char given[TIME_TEXT_SIZE], before[TIME_TEXT_SIZE], after[TIME_TEXT_SIZE];
	int64_t floor_ns;

	if (p->effective_ns == INT64_MIN) {
		*ret_ns = hour_floor(l, now_ns);
		return true;
	}
	floor_ns = hour_floor(l, p->effective_ns);
	if (floor_ns != p->effective_ns)
		return err_set(err, ERR_INVALID,
		               "effective: %s is not the start of a billing hour in %s; the nearest are %s and %s",
		               time_format(p->effective_ns, given), l->zone, time_format(floor_ns, before),
		               time_format(floor_ns + NS_PER_HOUR, after));
	*ret_ns = floor_ns;
	return true;
}

/* Rule 3. ret_closed_ns: until when its hours are of closed months; 0: none is. */
static bool
check_periods(struct db *db, int64_t effective_ns, char ret_month[8], int64_t *ret_closed_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy closed",
		"SELECT min(month), ns_of(max(ends_at)), (SELECT ns_of(max(b.ends_at)) FROM billing_day b WHERE b.hours_gone AND b.ends_at > $1) "
		"FROM period WHERE status = 'closed' AND ends_at > $1"};
	owned(result) PGresult *r = NULL;
	char when[TIME_TEXT_SIZE], first[TIME_TEXT_SIZE];
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	snprintf(ret_month, 8, "%.7s", res_text(r, 0, 0));
	*ret_closed_ns = res_i64(r, 0, 1);
	return res_null(r, 0, 2) ||
	       err_set(err, ERR_CONFLICT,
	               "effective: %s lies before %s: hours until then are no longer kept, and nothing of them can change",
	               time_format(effective_ns, when), time_format(res_i64(r, 0, 2), first));
}

struct stored_policy {
	struct policy *policy;  /* NULL: there is none */
	struct policy *granted; /* as an operator last applied it; only where a tenant's part is asked for */
	int64_t effective_ns;
	PGresult *row; /* id, document, name, SHA-256 */
};

static void
stored_policy_fini(struct stored_policy *s)
{
	policy_free(s->policy);
	policy_free(s->granted);
	PQclear(s->row);
}

static bool
load_latest(struct db *db, struct stored_policy *s, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy latest",
		"SELECT id, document, name, encode(sha256, 'hex'), ns_of(effective_at) FROM policy_version "
		"ORDER BY id DESC LIMIT 1"};

	if (!db_run(db, &stmt, NULL, &s->row, err))
		return false;
	if (PQntuples(s->row) == 0)
		return true;
	s->effective_ns = res_i64(s->row, 0, 4);
	if (!policy_parse(res_text(s->row, 0, 2), res_text(s->row, 0, 1), (size_t)PQgetlength(s->row, 0, 1), &s->policy,
	                  err))
		return err_prefix(err, "the policy in force");
	return true;
}

bool
policy_in_force(struct db *db, struct policy **ret, struct err *err)
{
	in_place(stored_policy) struct stored_policy s = {0};

	if (!load_latest(db, &s, err))
		return false;
	*ret = take(s.policy);
	return true;
}

static bool
load_granted(struct db *db, struct stored_policy *s, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy granted",
		"SELECT document, name FROM policy_version WHERE tenant_id IS NULL ORDER BY id DESC LIMIT 1"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	if (PQntuples(r) == 0 || s->policy == NULL)
		return err_set(err, ERR_MISSING, "no policy has been applied yet");
	return policy_parse(res_text(r, 0, 1), res_text(r, 0, 0), (size_t)PQgetlength(r, 0, 0), &s->granted, err) ||
	       err_prefix(err, "the policy in force");
}

/* Rule 6: from when a tenant's part counts. */
static bool
part_effective(const struct policy *part, int64_t hour_ns, int64_t from_ns, int64_t *effective_ns, struct err *err)
{
	int64_t least_ns = hour_ns > from_ns ? hour_ns : from_ns;
	char given[TIME_TEXT_SIZE], least[TIME_TEXT_SIZE];

	if (part->effective_ns == INT64_MIN) {
		*effective_ns = least_ns;
		return true;
	}
	return *effective_ns >= least_ns ||
	       err_set(err, ERR_INVALID,
	               "effective: %s is before %s, the earliest from which a tenant's part may count",
	               time_format(*effective_ns, given), time_format(least_ns, least));
}

/* The policy with the tenant's part in it, and its document. */
static bool
merge_part(struct db *db, const struct policy_request *rq, const struct db_ledger *ledger, struct stored_policy *old,
           struct policy **p, int64_t *effective_ns, struct buf *document, struct err *err)
{
	int64_t hour_ns = hour_floor(ledger, rq->now_ns);
	owned(policy) struct policy *merged = NULL;

	if (!load_granted(db, old, err) || !policy_part_check(old->granted, *p, rq->tenant, rq->name, err) ||
	    !part_effective(*p, hour_ns, old->effective_ns, effective_ns, err) ||
	    !policy_part_merge(res_text(old->row, 0, 1), (size_t)PQgetlength(old->row, 0, 1), old->policy, *p,
	                       *effective_ns > hour_ns ? *effective_ns : INT64_MIN, document, err) ||
	    !policy_parse(rq->name, buf_text(document), document->len, &merged, err))
		return false;
	policy_free(*p);
	*p = take(merged);
	return true;
}

static bool
record(struct db *db, const struct stored_policy *old, const struct policy_request *rq, const struct buf *document,
       const char *diff, struct policy_outcome *ret, struct err *err)
{
	static const struct db_stmt insert = {
		"policy insert",
		"INSERT INTO policy_version (name, document, sha256, actor, effective_at, tenant_id) "
		"VALUES ($1, convert_from($2, 'UTF8'), $3, $4, $5, (SELECT id FROM tenant WHERE name = $6)) RETURNING id"};
	static const struct db_stmt audit = {
		"policy audit",
		"INSERT INTO audit_log (actor, action, subject, before, after, tenant_id) "
		"VALUES ($1, 'policy.apply', 'policy version ' || $2::text, "
		"CASE WHEN $3::text IS NOT NULL THEN jsonb_build_object('version', $3::bigint, 'sha256', "
		"$4::text) END, jsonb_build_object('version', $2::bigint, 'sha256', $5::text, 'effective', "
		"$6::text, 'diff', $7::text), (SELECT id FROM tenant WHERE name = $8))"};
	owned(result) PGresult *made = NULL;
	uint8_t sha[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1], when[TIME_TEXT_SIZE];
	bool first = PQntuples(old->row) == 0;
	struct db_args i = {0}, a = {0};

	sha256(buf_text(document), document->len, sha);
	hex_encode(sha, sizeof(sha), hex);
	arg_text(&i, rq->name);
	arg_bytes(&i, buf_text(document), document->len);
	arg_bytes(&i, sha, sizeof(sha));
	arg_text(&i, rq->actor);
	arg_time(&i, ret->effective_ns);
	arg_text(&i, rq->tenant);
	if (!db_run(db, &insert, &i, &made, err))
		return false;
	ret->version = res_i64(made, 0, 0);
	arg_text(&a, rq->actor);
	arg_text(&a, res_text(made, 0, 0));
	arg_text(&a, first ? NULL : res_text(old->row, 0, 0));
	arg_text(&a, first ? NULL : res_text(old->row, 0, 3));
	arg_text(&a, hex);
	arg_text(&a, time_format(ret->effective_ns, when));
	arg_text(&a, diff);
	arg_text(&a, rq->tenant);
	return db_run(db, &audit, &a, NULL, err);
}

/* Within the transaction, with the lock. */
static bool
apply(struct db *db, const struct policy_request *rq, const struct db_ledger *ledger, struct policy **p,
      struct policy_outcome *ret, struct buf *ret_diff, struct err *err)
{
	in_place(stored_policy) struct stored_policy old = {0};
	in_place(buf) struct buf document = {0};
	int64_t closed_ns = 0;

	buf_init(&document, YAML_MAX_BYTES);
	if (!load_latest(db, &old, err))
		return false;
	if (rq->tenant == NULL)
		buf_add(&document, rq->text, rq->len);
	else if (!merge_part(db, rq, ledger, &old, p, &ret->effective_ns, &document, err))
		return false;
	if (!check_periods(db, ret->effective_ns, ret->corrects_from, &closed_ns, err))
		return false;
	ret->changes = policy_diff(old.policy, *p, ret_diff);
	if (!buf_ok(ret_diff, "the differences", err))
		return false;
	if (ret->changes == 0 && old.policy && ret->effective_ns >= old.effective_ns)
		return true;
	if (!policy_write(db, *p, rq->tenant, rq->name, ret->effective_ns, closed_ns, err))
		return false;
	return rq->dry_run || record(db, &old, rq, &document, buf_text(ret_diff), ret, err);
}

bool
store_policy_apply(struct db *db, const struct policy_request *rq, struct policy_outcome *ret, struct buf *ret_diff,
                   struct err *err)
{
	owned(policy) struct policy *p = NULL;
	in_place(db_tx) struct db_tx tx = {0};
	struct db_ledger ledger;
	struct err later = {0};
	int done = 0;
	bool parsed = rq->tenant != NULL ? policy_parse_part(rq->name, rq->text, rq->len, &p, err)
	                                 : policy_parse(rq->name, rq->text, rq->len, &p, err);

	*ret = (struct policy_outcome){0};
	if (!parsed || !db_ledger_get(db, &ledger, err) ||
	    !effective_of(&ledger, p, rq->now_ns, &ret->effective_ns, err) ||
	    !db_tx_begin_long(&tx, db, DB_WORK_REPORT, err) ||
	    !db_script(db, "SELECT pg_advisory_xact_lock(" DB_LOCK_POLICY ")", err) ||
	    !apply(db, rq, &ledger, &p, ret, ret_diff, err))
		return false;
	if (ret->version != 0 && !db_tx_commit(&tx, err)) {
		ret->version = 0;
		return false;
	}
	/* A small ledger is done at once; remaining steps, and steps that fail here, are left to the background work. */
	if (ret->version != 0)
		ret->reattributing = !store_reattribute(db, STEPS_AT_ONCE, &done, &later) || done == STEPS_AT_ONCE;
	return true;
}

bool
store_policy_get(struct db *db, const char *tenant, struct buf *ret_text, struct err *err)
{
	in_place(stored_policy) struct stored_policy s = {0};
	const struct policy_tenant *t;

	if (!load_latest(db, &s, err))
		return false;
	if (s.policy == NULL)
		return err_set(err, ERR_MISSING, "no policy has been applied yet");
	if (tenant == NULL) {
		buf_add(ret_text, res_text(s.row, 0, 1), (size_t)PQgetlength(s.row, 0, 1));
		return buf_ok(ret_text, "the policy", err);
	}
	t = policy_tenant_named(s.policy, tenant);
	if (t == NULL)
		return err_set(err, ERR_MISSING, "there is no tenant \"%.64s\" in the policy", tenant);
	policy_render_part(s.policy, t, ret_text);
	return buf_ok(ret_text, "the policy", err);
}

bool
store_policy_version(struct db *db, int64_t *ret, struct err *err)
{
	static const struct db_stmt stmt = {"policy version", "SELECT coalesce(max(id), 0) FROM policy_version"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	*ret = res_i64(r, 0, 0);
	return true;
}

/* aggregator/store/policy_store.c - applies a policy file: all of it, or nothing.
 *
 * Rules, in order:
 *  1. the file is read and checked as a whole before anything is written
 *  2. it takes effect at the start of a billing hour: the one it names, or the current one; any other time is refused
 *  3. it may not reach back into a closed period
 *  4. a file that changes nothing writes nothing
 *  5. a dry run does everything, so that every constraint has its say, and rolls back */
#include "aggregator/store/db.h"
#include "aggregator/store/policy_rows.h"
#include "common/digest.h"

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

/* Rule 3. */
static bool
check_periods(struct db *db, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy closed",
		"SELECT month FROM period WHERE status = 'closed' AND ends_at > $1 ORDER BY month DESC LIMIT 1"};
	owned(result) PGresult *r = NULL;
	char when[TIME_TEXT_SIZE];
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return PQntuples(r) == 0 ||
	       err_set(err, ERR_CONFLICT, "effective: %s lies before the end of period %s, which is closed",
	               time_format(effective_ns, when), res_text(r, 0, 0));
}

struct stored_policy {
	struct policy *policy; /* NULL: there is none */
	int64_t effective_ns;
	PGresult *row; /* id, document, name, SHA-256 */
};

static void
stored_policy_fini(struct stored_policy *s)
{
	policy_free(s->policy);
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

static bool
record(struct db *db, const struct stored_policy *old, const char *name, const char *text, size_t len,
       const char *actor, const char *diff, struct policy_outcome *ret, struct err *err)
{
	static const struct db_stmt insert = {
		"policy insert", "INSERT INTO policy_version (name, document, sha256, actor, effective_at) "
				 "VALUES ($1, convert_from($2, 'UTF8'), $3, $4, $5) RETURNING id"};
	static const struct db_stmt audit = {
		"policy audit",
		"INSERT INTO audit_log (actor, action, subject, before, after) "
		"VALUES ($1, 'policy.apply', 'policy version ' || $2::text, "
		"CASE WHEN $3::text IS NOT NULL THEN jsonb_build_object('version', $3::bigint, 'sha256', "
		"$4::text) END, jsonb_build_object('version', $2::bigint, 'sha256', $5::text, 'effective', "
		"$6::text, 'diff', $7::text))"};
	owned(result) PGresult *made = NULL;
	uint8_t sha[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1], when[TIME_TEXT_SIZE];
	bool first = PQntuples(old->row) == 0;
	struct db_args i = {0}, a = {0};

	sha256(text, len, sha);
	hex_encode(sha, sizeof(sha), hex);
	arg_text(&i, name);
	arg_bytes(&i, text, len);
	arg_bytes(&i, sha, sizeof(sha));
	arg_text(&i, actor);
	arg_time(&i, ret->effective_ns);
	if (!db_run(db, &insert, &i, &made, err))
		return false;
	ret->version = res_i64(made, 0, 0);
	arg_text(&a, actor);
	arg_text(&a, res_text(made, 0, 0));
	arg_text(&a, first ? NULL : res_text(old->row, 0, 0));
	arg_text(&a, first ? NULL : res_text(old->row, 0, 3));
	arg_text(&a, hex);
	arg_text(&a, time_format(ret->effective_ns, when));
	arg_text(&a, diff);
	return db_run(db, &audit, &a, NULL, err);
}

bool
store_policy_apply(struct db *db, const char *name, const char *text, size_t len, const char *actor, int64_t now_ns,
                   bool dry_run, struct policy_outcome *ret, struct buf *ret_diff, struct err *err)
{
	owned(policy) struct policy *p = NULL;
	in_place(stored_policy) struct stored_policy old = {0};
	in_place(db_tx) struct db_tx tx = {0};
	struct db_ledger ledger;

	*ret = (struct policy_outcome){0};
	if (!policy_parse(name, text, len, &p, err) || !db_ledger_get(db, &ledger, err) ||
	    !effective_of(&ledger, p, now_ns, &ret->effective_ns, err) || !db_tx_begin_long(&tx, db, err) ||
	    !db_script(db, "SELECT pg_advisory_xact_lock(" DB_LOCK_POLICY ")", err) || !load_latest(db, &old, err) ||
	    !check_periods(db, ret->effective_ns, err))
		return false;
	ret->changes = policy_diff(old.policy, p, ret_diff);
	if (!buf_ok(ret_diff, "the differences", err))
		return false;
	if (ret->changes == 0 && old.policy && ret->effective_ns >= old.effective_ns)
		return true;
	if (!policy_rows_write(db, p, ret->effective_ns, err))
		return false;
	if (dry_run)
		return true;
	if (!record(db, &old, name, text, len, actor, buf_text(ret_diff), ret, err) || !db_tx_commit(&tx, err)) {
		ret->version = 0;
		return false;
	}
	return true;
}

bool
store_policy_get(struct db *db, struct buf *ret_text, struct err *err)
{
	static const struct db_stmt stmt = {"policy get",
	                                    "SELECT document FROM policy_version ORDER BY id DESC LIMIT 1"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "no policy has been applied yet");
	buf_add(ret_text, res_text(r, 0, 0), (size_t)PQgetlength(r, 0, 0));
	return buf_ok(ret_text, "the policy", err);
}

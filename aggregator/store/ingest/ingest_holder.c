/* aggregator/store/ingest/ingest_holder.c - the holders of a batch's dictionary. A holder is remembered when a batch names it; it gets
 * a row and an owner when the first accepted record needs it. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/policy/attribution_store.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/limits.h"

typedef uint8_t identity[SHA256_SIZE];

static void
add_text(struct buf *b, const char *s)
{
	buf_u64(b, strlen(s));
	buf_char(b, ':');
	buf_str(b, s);
}

/* Every text is hashed with its length, so that no two holders have the same input. Group and labels are hashed only where
 * there are any, so that holders of wire version 1, which had neither, keep their identity. */
static void
holder_identity(int64_t cluster_id, const struct wire_holder *h, identity out)
{
	in_place(buf) struct buf b = {0};

	buf_init(&b, 16 * WIRE_MAX_TEXT + LABELS_MAX_TEXT);
	buf_printf(&b, "%" PRId64 " %" PRIu32 " %" PRId64 " ", cluster_id, h->kind, h->uid);
	add_text(&b, h->ns);
	add_text(&b, h->pod);
	add_text(&b, h->pod_uid);
	add_text(&b, h->container);
	add_text(&b, h->slurm_job);
	add_text(&b, h->slurm_account);
	add_text(&b, h->user);
	if (h->group[0] || h->labels[0]) {
		add_text(&b, h->group);
		add_text(&b, h->labels);
	}
	ASSERT(!b.over);
	sha256(b.data, b.len, out);
}

/* ids[i] stays 0 where there is no such holder. */
static bool
find_holders(struct ingest *in, identity *keys, size_t n, int64_t *ids, struct err *err)
{
	static const struct db_stmt stmt = {
		"holder ids", "SELECT e.ord, h.id FROM unnest($1::bytea[]) WITH ORDINALITY AS e(identity, ord) "
			      "JOIN holder h USING (identity)"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array list = {0};
	struct db_args a = {0};

	db_array_init(&list);
	for (size_t i = 0; i < n; i++)
		array_bytes(&list, keys[i], SHA256_SIZE);
	arg_array(&a, &list);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		ids[res_i64(r, row, 0) - 1] = res_i64(r, row, 1);
	return true;
}

static void
add_row(struct db_columns *c, const struct wire_holder *h, const identity key)
{
	array_bytes(&c->col[0], key, SHA256_SIZE);
	array_i64(&c->col[1], h->kind);
	array_text(&c->col[2], h->ns);
	array_text(&c->col[3], h->pod);
	array_text(&c->col[4], h->pod_uid);
	array_text(&c->col[5], h->container);
	array_text(&c->col[6], h->slurm_job);
	array_text(&c->col[7], h->slurm_account);
	array_text(&c->col[8], h->user);
	array_i64(&c->col[9], h->uid);
	array_text(&c->col[10], h->group);
	array_text(&c->col[11], h->labels);
}

bool
ingest_enter_lock(struct ingest *in, struct err *err)
{
	static const struct db_stmt policy = {"policy shared",
	                                      "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_POLICY ")"};
	static const struct db_stmt node = {"node lock", "SELECT FROM node WHERE id = $1 FOR NO KEY UPDATE"};
	static const struct db_stmt services = {"services as read", "SELECT services_as_read($1, $2)"};
	struct db_args n = {0}, s = {0};

	if (in->entry_locked)
		return true;
	arg_i64(&n, in->node_id);
	arg_i64(&s, in->node_id);
	ingest_services_arg(in, &s);
	in->entry_locked =
		db_run_all(in->db,
	                   (const struct db_call[]){{&policy, NULL, NULL}, {&node, &n, NULL}, {&services, &s, NULL}}, 3,
	                   err);
	return in->entry_locked;
}

/* Two ids of a batch may mean one holder, which is inserted and attributed once. If another transaction is inserting the
 * same holder, the INSERT waits for it, and find_holders() then sees its row with the attribution. */
static bool
make_missing(struct ingest *in, const struct wire_holder *const *holders, size_t count, identity *keys, int64_t *ids,
             struct err *err)
{
	static const struct db_stmt stmt = {
		"holder insert",
		"WITH made AS (INSERT INTO holder (identity, cluster_id, kind, namespace, pod, pod_uid, "
		"container, slurm_job, slurm_account, user_name, uid, group_name, labels) SELECT identity, $1, kind, ns, "
		"pod, pod_uid, container, job, account, usr, uid, grp, labels_of(labels) FROM unnest($2::bytea[], $3::smallint[], $4::text[], "
		"$5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], "
		"$11::bigint[], $12::text[], $13::text[]) AS e(identity, kind, ns, pod, pod_uid, container, job, account, "
		"usr, uid, grp, labels) ORDER BY identity ON CONFLICT (identity) DO NOTHING RETURNING id, identity) "
		"SELECT DISTINCT ON (m.id) e.ord, m.id "
		"FROM unnest($2::bytea[]) WITH ORDINALITY AS e(identity, ord) JOIN made m USING (identity) "
		"ORDER BY m.id, e.ord"};
	owned(result) PGresult *r = NULL;
	in_place(db_columns) struct db_columns rows = {0};
	owned(mem) const struct wire_holder **missing = mem_array(count, sizeof(*missing));
	owned(mem) const struct wire_holder **made = mem_array(count, sizeof(*made));
	owned(mem) int64_t *made_ids = mem_array(count, sizeof(*made_ids));
	struct db_args a = {0};
	size_t n = 0, made_count = 0;

	db_columns_init(&rows, 12);
	for (size_t i = 0; i < count; i++) {
		if (ids[i] != 0)
			continue;
		add_row(&rows, holders[i], keys[i]);
		missing[n++] = holders[i];
	}
	if (n == 0)
		return true;
	arg_i64(&a, in->cluster_id);
	arg_columns(&a, &rows);
	if (!ingest_enter_lock(in, err) || !db_run(in->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++, made_count++) {
		made[made_count] = missing[res_i64(r, row, 0) - 1];
		made_ids[made_count] = res_i64(r, row, 1);
	}
	return attribute_new(in->db, in->cluster, made, made_ids, made_count, err) &&
	       find_holders(in, keys, count, ids, err);
}

bool
holder_ids(struct ingest *in, const struct wire_holder *const *holders, size_t n, int64_t *ids, struct err *err)
{
	owned(mem) identity *keys = mem_array(n, sizeof(*keys));

	for (size_t i = 0; i < n; i++)
		holder_identity(in->cluster_id, holders[i], keys[i]);
	return find_holders(in, keys, n, ids, err) && make_missing(in, holders, n, keys, ids, err);
}

/* --- the dictionary in memory --- */

static struct wire_holder *
holder_copy(const struct wire_holder *h)
{
	struct wire_holder *c = mem_alloc(sizeof(*c));

	*c = *h;
	c->ns = mem_strdup(h->ns);
	c->pod = mem_strdup(h->pod);
	c->pod_uid = mem_strdup(h->pod_uid);
	c->container = mem_strdup(h->container);
	c->slurm_job = mem_strdup(h->slurm_job);
	c->slurm_account = mem_strdup(h->slurm_account);
	c->user = mem_strdup(h->user);
	c->group = mem_strdup(h->group);
	c->labels = mem_strdup(h->labels);
	return c;
}

/* A holder id that the stream used before must still mean the same holder. */
static bool
check_known(struct ingest *in, const struct wire_holder *holders, size_t n, identity *keys, struct err *reason,
            struct err *err)
{
	owned(mem) int64_t *ids = mem_array(n, sizeof(*ids));
	bool any_entered = false;
	size_t known;

	for (size_t i = 0; i < n; i++)
		any_entered = any_entered || (hash_find(&in->dict.holder_ids, holders[i].id, &known) &&
		                              in->dict.holders[known].holder_id != 0);
	if (any_entered && !find_holders(in, keys, n, ids, err))
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct dict_holder *h;
		identity was;

		if (!hash_find(&in->dict.holder_ids, holders[i].id, &known))
			continue;
		h = &in->dict.holders[known];
		if (h->holder_id == 0)
			holder_identity(in->cluster_id, h->entry, was);
		if (h->holder_id != 0 ? h->holder_id != ids[i] : memcmp(was, keys[i], sizeof(was)) != 0) {
			err_set(reason, ERR_INVALID, "holder id %" PRIu32 " meant another holder before",
			        holders[i].id);
			return true;
		}
	}
	return true;
}

bool
dict_note_holders(struct ingest *in, const struct wire_holder *holders, size_t n, bool stored, struct err *reason,
                  struct err *err)
{
	owned(mem) identity *keys = mem_array(n, sizeof(*keys));
	size_t known;

	if (n == 0)
		return true;
	/* Each new holder is attributed under the policy lock, so their number is limited. An exporter sends each holder once in a spool
	 * segment: a batch names those that appeared within a push interval, or were there when the segment began. */
	if (!stored && n > LIMIT_BATCH_HOLDERS) {
		err_set(reason, ERR_INVALID, "the batch names %zu holders, and may name %d", n, LIMIT_BATCH_HOLDERS);
		return true;
	}
	for (size_t i = 0; i < n; i++)
		holder_identity(in->cluster_id, &holders[i], keys[i]);
	if (!check_known(in, holders, n, keys, reason, err))
		return false;
	for (size_t i = 0; i < n && reason->kind == ERR_NONE; i++)
		if (!hash_find(&in->dict.holder_ids, holders[i].id, &known))
			dict_holder(&in->dict, &(struct dict_holder){.local = holders[i].id,
			                                             .stored = stored,
			                                             .entry = holder_copy(&holders[i])});
	return true;
}

/* --- rows in the ledger --- */

bool
dict_enter_holders(struct ingest *in, struct err *err)
{
	static const struct db_stmt insert = {
		"dict holder insert", "INSERT INTO stream_holder (stream_id, local_id, holder_id) SELECT $1, l, h "
				      "FROM unnest($2::bigint[], $3::bigint[]) AS e(l, h)"};
	static const struct db_stmt drop = {
		"dict holder drop",
		"DELETE FROM stream_holder_entry WHERE stream_id = $1 AND local_id = ANY ($2::bigint[])"};
	size_t count = in->dict.holder_count, n = 0;
	owned(mem) struct dict_holder **pending = mem_array(count, sizeof(*pending));
	owned(mem) const struct wire_holder **entries = mem_array(count, sizeof(*entries));
	owned(mem) int64_t *ids = mem_array(count, sizeof(*ids));
	in_place(db_columns) struct db_columns entered = {0}, gone = {0};

	db_columns_init(&entered, 2);
	db_columns_init(&gone, 1);
	for (size_t i = 0; i < count; i++) {
		if (!in->dict.holders[i].needed || in->dict.holders[i].holder_id != 0)
			continue;
		pending[n] = &in->dict.holders[i];
		entries[n++] = in->dict.holders[i].entry;
	}
	if (n == 0)
		return true;
	if (!holder_ids(in, entries, n, ids, err))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (ids[i] == 0)
			return err_set(err, ERR_RETRY, "the ledger did not return holder %" PRIu32, pending[i]->local);
		array_i64(&entered.col[0], pending[i]->local);
		array_i64(&entered.col[1], ids[i]);
		if (pending[i]->stored)
			array_i64(&gone.col[0], pending[i]->local);
		pending[i]->holder_id = ids[i];
		pending[i]->stored = false;
		wire_holder_fini(pending[i]->entry);
		mem_free(take(pending[i]->entry));
	}
	return dict_store(in, &insert, &entered, err) && dict_store(in, &drop, &gone, err);
}

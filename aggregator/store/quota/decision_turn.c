/* aggregator/store/quota/decision_turn.c - a turn of deciding: the lock, events of other replicas, this replica's events, COMMIT. */
#include "aggregator/store/quota/decision_state.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/gz.h"

#define SNAPSHOT_EVENTS 2000
#define SNAPSHOT_NS (10 * NS_PER_MIN)
#define SNAPSHOT_LEVEL 1

struct quota_turn {
	struct db *db;
	struct quota_log *log;
	struct db_tx tx;
	struct book_row row;
	bool stepped, committed; /* the book is ahead of the database */
	struct decision_rows rows;
	struct decision_known *known;
	size_t known_count;
	struct decision_tokens tokens;
	bool is_optimistic;
	struct turn_expected expected;
	struct turn_event *events;
	size_t event_count;
	const struct decision_ask **asks;
	size_t ask_count;
	struct turn_workload *workloads;
	size_t workload_count;
	struct turn_leader *leaders; /* of the clusters that were asked for */
	size_t leader_count;
	bool leads; /* one of them changed */
	struct decision_rows foreign;
	struct buf snapshot;
	int64_t snapshot_bytes;
};

void
quota_turn_free(struct quota_turn *t)
{
	if (!t)
		return;
	db_tx_fini(&t->tx);
	if (quota_turn_costs_book(t))
		quota_log_drop(t->log);
	for (size_t i = 0; i < t->event_count; i++) {
		mem_free(t->events[i].event);
		mem_free(t->events[i].outcome);
		quota_outcome_free(t->events[i].told);
	}
	decision_rows_fini(&t->rows);
	decision_rows_fini(&t->foreign);
	buf_fini(&t->snapshot);
	mem_free(t->known);
	decision_tokens_fini(&t->tokens);
	mem_free(t->events);
	mem_free(t->asks);
	mem_free(t->workloads);
	mem_free(t->leaders);
	mem_free(t);
}

/* ---- begin ----------------------------------------------------------------------------------------------------------------- */

static int
compare_known(const void *a, const void *b)
{
	return strcmp(((const struct decision_known *)a)->key, ((const struct decision_known *)b)->key);
}

static void
take_known(const PGresult *r, struct decision_known **ret, size_t *ret_count)
{
	*ret = mem_array((size_t)PQntuples(r) + 1, sizeof(**ret));
	*ret_count = 0;
	for (int i = 0; i < PQntuples(r); i++) {
		struct decision_known *k = &(*ret)[*ret_count];
		const char *id = res_text(r, i, 0);

		if (strlen(id) >= sizeof(k->key) || !hex_decode(res_text(r, i, 1), k->digest, SHA256_SIZE, NULL))
			continue;
		memcpy(k->key, id, strlen(id) + 1);
		(*ret_count)++;
	}
	qsort(*ret, *ret_count, sizeof(**ret), compare_known);
}

const struct decision_known *
decision_known_find(const struct decision_known *known, size_t count, const char *key)
{
	struct decision_known wanted = {.key = ""};

	if (count == 0 || strlen(key) >= sizeof(wanted.key))
		return NULL;
	memcpy(wanted.key, key, strlen(key) + 1);
	return bsearch(&wanted, known, count, sizeof(*known), compare_known);
}

void
decision_tokens_fini(struct decision_tokens *t)
{
	mem_free(t->ids);
}

bool
decision_token_holds(const struct decision_tokens *t, int64_t id)
{
	bool found = id == 0;

	for (size_t i = 0; i < t->count && !found; i++)
		found = t->ids[i] == id;
	return found;
}

static void
take_tokens(const PGresult *r, struct decision_tokens *ret)
{
	*ret = (struct decision_tokens){.ids = mem_array((size_t)PQntuples(r) + 1, sizeof(*ret->ids))};
	for (int i = 0; i < PQntuples(r); i++)
		ret->ids[ret->count++] = res_i64(r, i, 0);
}

static const struct db_stmt lock_stmt = {
	"quota_book_lock",
	"SELECT seq, at_ns, encode(head, 'hex'), snapshot_seq, snapshot_at_ns, encode(policy_digest, 'hex') "
	"FROM quota_book FOR UPDATE"};
static const struct db_stmt known_stmt = {
	"decision_known",
	"SELECT i.key, encode(d.digest, 'hex') FROM unnest($1::text[]) AS i(key) JOIN decision d "
	"ON d.request_id = split_part(i.key, '/', 2) AND split_part(d.workspace, '/', 1) = split_part(i.key, '/', 1)"};
static const struct db_stmt tokens_stmt = {
	"decision_tokens", "SELECT id FROM access_token WHERE id = ANY($1::bigint[]) AND revoked_at IS NULL "
			   "AND (expires_at IS NULL OR expires_at > now())"};

/* A cluster without an agent so far has no row. */
static const struct db_stmt leaders_stmt = {
	"agent_leaders", "SELECT coalesce(a.epoch, 0) FROM unnest($1::text[]) WITH ORDINALITY AS i(cluster, nr) "
			 "LEFT JOIN agent_leader a ON a.cluster = i.cluster ORDER BY i.nr"};

static void
take_leaders(const PGresult *r, const struct turn_asked *asked, struct quota_turn *t)
{
	t->leaders = mem_array(asked->cluster_count, sizeof(*t->leaders));
	for (size_t i = 0; i < asked->cluster_count; i++)
		t->leaders[t->leader_count++] =
			(struct turn_leader){.cluster = asked->clusters[i], .epoch = res_i64(r, (int)i, 0)};
}

bool
store_decisions_known(struct db *db, const char *const *keys, size_t n, struct decision_known **ret, size_t *ret_count,
                      struct err *err)
{
	in_place(db_array) struct db_array list = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_array_init(&list);
	for (size_t i = 0; i < n; i++)
		array_text(&list, keys[i]);
	arg_array(&a, &list);
	if (!db_run(db, &known_stmt, &a, &r, err))
		return false;
	take_known(r, ret, ret_count);
	return true;
}

bool
store_decision_tokens(struct db *db, const int64_t *ids, size_t n, struct decision_tokens *ret, struct err *err)
{
	in_place(db_array) struct db_array list = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_array_init(&list);
	for (size_t i = 0; i < n; i++)
		array_i64(&list, ids[i]);
	arg_array(&a, &list);
	if (!db_run(db, &tokens_stmt, &a, &r, err))
		return false;
	take_tokens(r, ret);
	return true;
}

/* Each statement sees the rows committed when it began: rows read behind the lock are those that the lock protects. */
static bool
begin(struct quota_turn *t, const struct turn_asked *asked, struct err *err)
{
	owned(result) PGresult *row = NULL;
	owned(result) PGresult *events = NULL;
	owned(result) PGresult *clock = NULL;
	owned(result) PGresult *known = NULL;
	owned(result) PGresult *tokens = NULL;
	owned(result) PGresult *leaders = NULL;
	in_place(db_array) struct db_array keys = {0}, token_ids = {0}, clusters = {0};
	struct db_args after = {0}, known_args = {0}, token_args = {0}, leader_args = {0};
	struct db_call calls[7] = {{&lock_stmt, NULL, &row},
	                           {&quota_events_stmt, &after, &events},
	                           {&quota_clock_stmt, NULL, &clock},
	                           {&turn_plans_stmt, NULL, NULL}};
	size_t n = 4;
	int64_t now_ns, asked_ns = time_boot_ns();

	db_array_init(&keys);
	db_array_init(&token_ids);
	db_array_init(&clusters);
	for (size_t i = 0; i < asked->key_count; i++)
		array_text(&keys, asked->keys[i]);
	for (size_t i = 0; i < asked->token_count; i++)
		array_i64(&token_ids, asked->tokens[i]);
	for (size_t i = 0; i < asked->cluster_count; i++)
		array_text(&clusters, asked->clusters[i]);
	arg_array(&known_args, &keys);
	arg_array(&token_args, &token_ids);
	arg_array(&leader_args, &clusters);
	quota_events_args(&after, t->log->seq);
	if (asked->key_count > 0)
		calls[n++] = (struct db_call){&known_stmt, &known_args, &known};
	if (asked->token_count > 0)
		calls[n++] = (struct db_call){&tokens_stmt, &token_args, &tokens};
	if (asked->cluster_count > 0)
		calls[n++] = (struct db_call){&leaders_stmt, &leader_args, &leaders};
	if (!db_tx_begin_all(&t->tx, t->db, calls, n, err))
		return false;
	if (PQntuples(row) != 1)
		return err_set(err, ERR_FATAL, "the quota book has no row");
	quota_log_row(t->log, row, &t->row);
	/* the connection may be another one than a moment ago */
	if (!quota_log_same_place(t->db, t->log, err))
		return false;
	if (!t->log->book)
		return err_set(err, ERR_RETRY, "the database is another one than a moment ago");
	if (!quota_log_apply(t->log, events, t->row.seq, &t->foreign, err)) {
		quota_log_drop(t->log);
		return false;
	}
	if (!quota_log_reach(t->db, t->log, &t->row, &t->foreign, err))
		return false;
	now_ns = res_i64(clock, 0, 0);
	optimistic_clock(&t->log->optimistic, asked_ns, time_boot_ns(), now_ns);
	if (now_ns > t->row.at_ns)
		t->row.at_ns = now_ns;
	if (known) {
		take_known(known, &t->known, &t->known_count);
		for (size_t i = 0; i < t->known_count; i++)
			optimistic_remember(&t->log->optimistic, t->known[i].key);
	}
	if (tokens)
		take_tokens(tokens, &t->tokens);
	if (leaders)
		take_leaders(leaders, asked, t);
	return true;
}

static struct quota_turn *
turn_new(struct db *db, struct quota_log *l)
{
	struct quota_turn *t = mem_alloc(sizeof(*t));

	t->db = db;
	t->log = l;
	buf_init(&t->snapshot, QUOTA_BOOK_MAX_BYTES);
	return t;
}

bool
store_quota_turn(struct db *db, struct quota_log *l, const struct turn_asked *asked, struct quota_turn **ret,
                 struct err *err)
{
	owned(quota_turn) struct quota_turn *t = turn_new(db, l);

	/* the long way without the lock, so that a replica that starts does not hold up the others */
	if (!l->book && !store_quota_follow(db, l, NULL, err))
		return false;
	if (!begin(t, asked, err))
		return false;
	*ret = take(t);
	return true;
}

/* The place is known without asking unless the session is a new one. */
struct quota_turn *
store_quota_turn_optimistic(struct db *db, struct quota_log *l, const struct turn_asked *asked)
{
	int64_t now_ns = time_boot_ns();
	struct quota_turn *t;

	if (!l->book || asked->cluster_count > 0 || !optimistic_commit_allowed(&l->optimistic, now_ns) ||
	    !quota_log_same_place(db, l, NULL) || !l->book)
		return NULL;
	for (size_t i = 0; i < asked->key_count; i++)
		if (optimistic_knows(&l->optimistic, asked->keys[i]) ||
		    quota_knows(quota_book_state(l->book), asked->keys[i]))
			return NULL;
	t = turn_new(db, l);
	t->is_optimistic = true;
	t->row = (struct book_row){.seq = l->seq, .at_ns = l->at_ns, .has_policy = l->has_policy};
	memcpy(t->row.head, l->head, SHA256_SIZE);
	memcpy(t->row.policy_digest, l->policy_digest, SHA256_SIZE);
	if (t->row.at_ns < optimistic_database_now(&l->optimistic, now_ns))
		t->row.at_ns = optimistic_database_now(&l->optimistic, now_ns);
	t->expected = (struct turn_expected){.seq = l->seq, .tokens = asked->tokens, .token_count = asked->token_count};
	memcpy(t->expected.head, l->head, SHA256_SIZE);
	return t;
}

int64_t
quota_turn_now(const struct quota_turn *t)
{
	return t->row.at_ns;
}

const struct quota_book *
quota_turn_book(const struct quota_turn *t)
{
	return t->log->book;
}

const struct decision_known *
quota_turn_known(const struct quota_turn *t, const char *key)
{
	return decision_known_find(t->known, t->known_count, key);
}

bool
quota_turn_is_optimistic(const struct quota_turn *t)
{
	return t->is_optimistic;
}

bool
quota_turn_costs_book(const struct quota_turn *t)
{
	return t->stepped && !t->committed;
}

bool
quota_turn_token_holds(const struct quota_turn *t, int64_t token_id)
{
	return t->is_optimistic || decision_token_holds(&t->tokens, token_id);
}

const struct decision_rows *
quota_turn_rows(const struct quota_turn *t)
{
	return &t->rows;
}

const struct decision_rows *
quota_turn_foreign(const struct quota_turn *t)
{
	return &t->foreign;
}

/* ---- events ---------------------------------------------------------------------------------------------------------------- */

static void
add_rows(struct quota_turn *t, const struct turn_event *e)
{
	struct decision_moment m = {.seq = e->seq, .at_ns = t->row.at_ns, .actor = e->actor};
	owned(json) json_t *doc = NULL;
	in_place(decision_cause) struct decision_cause cause = {0};
	bool ok = json_parse("event", e->event, e->event_len, &doc, NULL);

	ASSERT(ok); /* the book has just read it */
	decision_cause_of(doc, &cause);
	decision_rows_add(&t->rows, &m, &cause, e->told);
}

bool
quota_turn_step(struct quota_turn *t, const char *actor, const char *event, size_t len, const struct decision_ask *asks,
                size_t ask_count, const struct quota_outcome **ret, struct err *err)
{
	struct turn_event e = {.actor = actor, .event_len = len, .seq = t->row.seq + 1};
	struct quota_log *l = t->log;
	in_place(buf) struct buf told = {0};
	bool ok;

	buf_init(&told, QUOTA_EVENT_MAX_BYTES);
	pthread_mutex_lock(&l->lock);
	ok = quota_book_step(l->book, t->row.at_ns, event, len, &e.told, err);
	if (ok)
		quota_book_outcome_json(l->book, e.told, &told);
	pthread_mutex_unlock(&l->lock);
	if (!ok)
		return false;
	t->stepped = true;
	e.event = mem_strndup(event, len);
	e.outcome_len = told.len;
	e.outcome = mem_strndup(buf_text(&told), told.len);
	quota_log_hash(t->row.head,
	               &(struct quota_log_entry){.seq = e.seq,
	                                         .at_ns = t->row.at_ns,
	                                         .actor = actor,
	                                         .event = e.event,
	                                         .event_len = len,
	                                         .outcome = e.outcome,
	                                         .outcome_len = e.outcome_len},
	               e.hash);
	t->row.seq = e.seq;
	memcpy(t->row.head, e.hash, SHA256_SIZE);
	t->events = mem_grow(t->events, t->event_count + 1, sizeof(*t->events));
	t->events[t->event_count++] = e;
	t->asks = mem_grow(t->asks, t->ask_count + ask_count + 1, sizeof(*t->asks));
	for (size_t i = 0; i < ask_count; i++)
		t->asks[t->ask_count++] = &asks[i];
	add_rows(t, &e);
	*ret = e.told;
	return buf_ok(&told, "the outcome of an event", err);
}

void
quota_turn_workload(struct quota_turn *t, const char *key, const struct decision_workload *w)
{
	t->workloads = mem_grow(t->workloads, t->workload_count + 1, sizeof(*t->workloads));
	t->workloads[t->workload_count++] = (struct turn_workload){.key = key, .workload = *w};
}

static struct turn_leader *
leader_of(const struct quota_turn *t, const char *cluster)
{
	for (size_t i = 0; i < t->leader_count; i++)
		if (strcmp(t->leaders[i].cluster, cluster) == 0)
			return &t->leaders[i];
	return NULL;
}

int64_t
quota_turn_epoch(const struct quota_turn *t, const char *cluster)
{
	const struct turn_leader *a = leader_of(t, cluster);

	return a ? a->epoch : 0;
}

void
quota_turn_lead(struct quota_turn *t, const char *cluster, int64_t epoch, const char *actor)
{
	struct turn_leader *a = leader_of(t, cluster);

	ASSERT(a && epoch > a->epoch);
	a->epoch = epoch;
	a->actor = actor;
	a->changed = t->leads = true;
}

const uint8_t *
quota_turn_policy_digest(const struct quota_turn *t)
{
	return t->row.has_policy ? t->row.policy_digest : NULL;
}

void
quota_turn_set_policy_digest(struct quota_turn *t, const uint8_t digest[SHA256_SIZE])
{
	memcpy(t->row.policy_digest, digest, SHA256_SIZE);
	t->row.has_policy = true;
}

int64_t
quota_turn_seq(const struct quota_turn *t)
{
	return t->row.seq;
}

/* ---- the end --------------------------------------------------------------------------------------------------------------- */

bool
quota_turn_snapshot(struct quota_turn *t, struct err *err)
{
	in_place(buf) struct buf state = {.max = QUOTA_BOOK_MAX_BYTES};

	if (t->row.seq == t->row.snapshot_seq ||
	    (t->row.seq - t->row.snapshot_seq < SNAPSHOT_EVENTS && t->row.at_ns - t->row.snapshot_at_ns < SNAPSHOT_NS))
		return true;
	quota_book_write(t->log->book, &state);
	if (!buf_ok(&state, "the quota book", err) ||
	    !gz_compress(buf_text(&state), state.len, SNAPSHOT_LEVEL, &t->snapshot, err))
		return false;
	t->snapshot_bytes = (int64_t)state.len;
	t->row.snapshot_seq = t->row.seq;
	t->row.snapshot_at_ns = t->row.at_ns;
	return true;
}

static bool
commit_optimistic(struct quota_turn *t, const struct turn_write *w, struct err *err)
{
	int64_t clock_ns, asked_ns = time_boot_ns();

	if (turn_write_optimistic(t->db, w, &t->expected, &clock_ns, err)) {
		optimistic_clock(&t->log->optimistic, asked_ns, time_boot_ns(), clock_ns);
		return true;
	}
	optimistic_failed(&t->log->optimistic, time_boot_ns());
	return false;
}

bool
quota_turn_commit(struct quota_turn *t, struct err *err)
{
	struct turn_write w = {.row = &t->row,
	                       .events = t->events,
	                       .event_count = t->event_count,
	                       .rows = &t->rows,
	                       .asks = t->asks,
	                       .ask_count = t->ask_count,
	                       .workloads = t->workloads,
	                       .workload_count = t->workload_count,
	                       .leaders = t->leaders,
	                       .leader_count = t->leader_count,
	                       .snapshot = t->snapshot.len > 0 ? &t->snapshot : NULL,
	                       .snapshot_bytes = t->snapshot_bytes};

	if (t->is_optimistic && t->event_count == 0)
		return err_set(err, ERR_CONFLICT, "nothing was decided");
	if (t->event_count == 0 && !w.snapshot && t->workload_count == 0 && !t->leads)
		return db_tx_commit(&t->tx,
		                    err); /* rows that callers wrote in it; the lock ends with the transaction */
	if (!(t->is_optimistic ? commit_optimistic(t, &w, err) : turn_write(&t->tx, &w, err))) {
		t->stepped = true;
		return false;
	}
	for (size_t i = 0; i < t->event_count; i++)
		optimistic_decided(&t->log->optimistic, t->events[i].told);
	pthread_mutex_lock(&t->log->lock);
	t->log->seq = t->row.seq;
	t->log->at_ns = t->row.at_ns;
	memcpy(t->log->head, t->row.head, SHA256_SIZE);
	pthread_mutex_unlock(&t->log->lock);
	t->log->has_policy = t->row.has_policy;
	memcpy(t->log->policy_digest, t->row.policy_digest, SHA256_SIZE);
	t->committed = true;
	return true;
}

/* aggregator/service/decider_turn.c - one turn of the decider.
 *
 * Events about leases go first, because they may free capacity; all requests follow as one batch. Events of one kind by one caller are one
 * event of the log. */
#include "aggregator/service/decider_turn.h"

#include <string.h>

#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/quota/exception_store.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/base/text.h"

#define TEXT_MAX QUOTA_EVENT_MAX_BYTES
#define ACTORS_MAX (1u << 20)

void
turn_result_fini(struct turn_result *r)
{
	quota_turn_free(r->turn);
	for (size_t i = 0; i < r->text_count; i++)
		mem_free(r->texts[i]);
	mem_free(r->texts);
	*r = (struct turn_result){0};
}

/* Keeps a text as long as the turn. */
static const char *
keep(struct turn_result *r, char *text)
{
	r->texts = mem_grow(r->texts, r->text_count + 1, sizeof(*r->texts));
	r->texts[r->text_count++] = text;
	return text;
}

static bool
step(struct turn_result *r, const char *actor, const char *event, size_t len, const struct decision_ask *asks,
     size_t ask_count, const struct quota_outcome **ret, struct err *err)
{
	return quota_turn_step(r->turn, actor, event, len, asks, ask_count, ret, err);
}

static bool
is_token_revoked(const struct turn_result *r, struct capacity_request *i)
{
	if (quota_turn_token_holds(r->turn, i->token_id))
		return false;
	i->fate = REQUEST_TOKEN_REVOKED;
	return true;
}

/* ---- leases ------------------------------------------------------------------------------------------------------------------- */

static const char *
refusal_of(const struct quota_outcome *o, const char *id)
{
	for (size_t i = 0; i < o->notice_count; i++)
		if (o->notices[i].kind == QUOTA_REFUSED && strcmp(o->notices[i].id, id) == 0)
			return o->notices[i].for_id;
	return NULL;
}

/* Sets the fate of an event by the engine's refusal, if any. Ending a lease that has ended is no refusal; for a cancel and for an enforcement the
 * row decides (answer_view). */
static void
settle_event(struct capacity_request *i, const struct quota_outcome *o)
{
	const char *why = refusal_of(o, i->key);

	i->fate = REQUEST_READ_ROW;
	if (!why)
		return;
	if (strcmp(why, "place") == 0) {
		memcpy(i->warning, "place", sizeof("place"));
		return;
	}
	if (strcmp(why, "limit") == 0) {
		i->fate = REQUEST_REFUSED;
		err_set(&i->err, ERR_CONFLICT, "its workspace is above its limit: lease \"%s\" is not confirmed again",
		        i->id);
	} else if (strcmp(i->word, "heartbeat") == 0 || strcmp(i->word, "confirm") == 0 ||
	           strcmp(i->word, "renew") == 0) {
		i->fate = REQUEST_REFUSED;
		err_set(&i->err, ERR_CONFLICT, "\"%s\" is not a lease that runs", i->id);
	}
}

static bool
same_group(const struct capacity_request *a, const struct capacity_request *b)
{
	return b->kind == REQUEST_EVENT && b->fate == REQUEST_OPEN && !b->event && a->word == b->word &&
	       strcmp(a->actor, b->actor) == 0;
}

static bool
takes_list(const char *word)
{
	return strcmp(word, "cancel") != 0 && strcmp(word, "confirm") != 0;
}

static bool
step_group(struct turn_result *r, struct capacity_request *first, struct err *err)
{
	const struct quota_outcome *o = NULL;
	in_place(buf) struct buf text = {0};
	const char *comma = "[";

	buf_init(&text, TEXT_MAX);
	buf_printf(&text, "{\"%s\":", first->word);
	for (struct capacity_request *i = first; i; i = i->next) {
		if (i != first && (!takes_list(first->word) || !same_group(first, i)))
			continue;
		if (takes_list(first->word))
			buf_str(&text, comma);
		comma = ",";
		json_write_string(i->key, &text);
	}
	buf_str(&text, takes_list(first->word) ? "]}" : "}");
	if (!buf_ok(&text, "an event", err) || !step(r, first->actor, buf_text(&text), text.len, NULL, 0, &o, err))
		return false;
	for (struct capacity_request *i = first->next; i && takes_list(first->word); i = i->next)
		if (same_group(first, i))
			settle_event(i, o);
	settle_event(first, o);
	return true;
}

static bool
step_alone(struct turn_result *r, struct capacity_request *i, struct err *err)
{
	const struct quota_outcome *o = NULL;

	if (step(r, i->actor, i->event, strlen(i->event), NULL, 0, &o, &i->err)) {
		settle_event(i, o);
		return true;
	}
	if (i->tenant[0] == '\0') {
		i->fate = REQUEST_REFUSED; /* a node or GPU that is not known */
		return true;
	}
	/* A tenant must not learn which nodes and GPUs exist: an unknown one is treated like one that it may not use. */
	if (!step_group(r, i, err))
		return false;
	if (i->fate == REQUEST_READ_ROW)
		memcpy(i->warning, "place", sizeof("place"));
	return true;
}

/* No event of the book: rows alone have the workloads of a lease. */
static void
replace_workloads(struct turn_result *r, struct capacity_request *i)
{
	if (quota_lease_shape(quota_book_state(quota_turn_book(r->turn)), i->key) == QUOTA_NONE) {
		i->fate = REQUEST_REFUSED;
		err_set(&i->err, ERR_CONFLICT, "\"%s\" is not a lease that runs", i->id);
		return;
	}
	i->fate = REQUEST_READ_ROW;
	quota_turn_workload(r->turn, i->key, &i->workload);
}

static bool
step_events(struct turn_result *r, struct capacity_request *items, struct err *err)
{
	for (struct capacity_request *i = items; i; i = i->next) {
		if (i->kind != REQUEST_EVENT || i->fate != REQUEST_OPEN)
			continue;
		if (i->workload.list) {
			replace_workloads(r, i);
			continue;
		}
		if (!(i->event ? step_alone(r, i, err) : step_group(r, i, err)))
			return false;
		if (i->fate == REQUEST_READ_ROW && (i->workload.pod_uid || i->workload.slurm_job || i->workload.pod))
			quota_turn_workload(r->turn, i->key, &i->workload);
	}
	return true;
}

/* ---- agents -------------------------------------------------------------------------------------------------------------------- */

/* Rules, in order, under the lock of the book, before anything is stepped:
 *  1. an agent is of a cluster that the book knows
 *  2. one that asks to lead has the epoch after the largest
 *  3. a larger epoch than any before is remembered: another than this service gave it
 *  4. a request with a smaller epoch than the largest is refused: that agent is not the leader any more */
static void
judge_epochs(struct turn_result *r, struct capacity_request *items)
{
	const struct quota_book *b = quota_turn_book(r->turn);

	for (struct capacity_request *i = items; i; i = i->next) {
		int64_t epoch;

		if (i->agent[0] == '\0' || i->fate != REQUEST_OPEN || is_token_revoked(r, i))
			continue;
		epoch = quota_turn_epoch(r->turn, i->agent);
		if (quota_book_cluster(b, i->agent) == QUOTA_NONE) {
			i->fate = REQUEST_REFUSED;
			err_set(&i->err, ERR_MISSING, "there is no cluster \"%s\" for an agent", i->agent);
		} else if (i->kind == REQUEST_LEAD) {
			i->fate = REQUEST_DECIDED;
			i->epoch = epoch + 1;
			quota_turn_lead(r->turn, i->agent, i->epoch, i->actor);
		} else if (i->epoch > epoch) {
			quota_turn_lead(r->turn, i->agent, i->epoch, i->actor);
		}
	}
	for (struct capacity_request *i = items; i; i = i->next) {
		if (i->agent[0] == '\0' || i->fate != REQUEST_OPEN || i->epoch >= quota_turn_epoch(r->turn, i->agent))
			continue;
		i->fate = REQUEST_REFUSED;
		err_set(&i->err, ERR_CONFLICT,
		        "Tollgate-Epoch: %" PRId64 " of the agent of cluster \"%s\" is over: epoch %" PRId64 " leads",
		        i->epoch, i->agent, quota_turn_epoch(r->turn, i->agent));
	}
}

/* ---- clusters ------------------------------------------------------------------------------------------------------------------ */

static void
step_clusters(struct turn_result *r, struct capacity_request *items)
{
	for (struct capacity_request *i = items; i; i = i->next) {
		const struct quota_outcome *o = NULL;

		if (i->kind != REQUEST_ADOPTION || i->fate != REQUEST_OPEN)
			continue;
		i->fate = REQUEST_REFUSED;
		if (quota_book_cluster(quota_turn_book(r->turn), i->cluster) == QUOTA_NONE)
			err_set(&i->err, ERR_MISSING, "cluster: there is no cluster \"%.100s\"", i->cluster);
		else if (step(r, i->actor, i->event, strlen(i->event), NULL, 0, &o, &i->err))
			i->fate = REQUEST_DECIDED;
	}
}

/* ---- requests ----------------------------------------------------------------------------------------------------------------- */

static void
settle_known(struct capacity_request *i, const uint8_t digest[SHA256_SIZE])
{
	i->fate = REQUEST_READ_ROW;
	if (memcmp(digest, i->body.digest, SHA256_SIZE) == 0)
		return;
	i->fate = REQUEST_REFUSED;
	err_set(&i->err, ERR_CONFLICT, "request_id: \"%s\" was used for another request", i->id);
}

/* A request whose workspace, class or model the book does not know is refused. */
static bool
is_refused(const struct turn_result *r, struct capacity_request *i, const char **ret_model)
{
	const struct quota_book *b = quota_turn_book(r->turn);
	bool known = quota_book_takes(b, i->body.workspace, i->body.klass);

	*ret_model = NULL;
	if (known && (!i->body.model || quota_book_model_of(b, i->body.model, ret_model, &i->err)))
		return false;
	if (known)
		err_prefix(&i->err, "gpu_model");
	else /* a policy that another replica has read removed it a moment ago */
		(void)quota_book_not_taken(b, i->body.workspace, i->body.klass, i->tenant, &i->err);
	i->fate = REQUEST_REFUSED;
	return true;
}

/* Items of a batch by one of their texts, in a table with open addressing: so that what a turn costs grows with its items, not with
 * their square. */
struct item_table {
	struct capacity_request **slots;
	size_t mask;
	size_t text_at; /* where the text is in an item */
};

static void
item_table_init(struct item_table *t, size_t items, size_t text_at)
{
	size_t size = 8;

	while (size < 2 * items)
		size *= 2;
	*t = (struct item_table){.slots = mem_array(size, sizeof(*t->slots)), .mask = size - 1, .text_at = text_at};
}

static void
item_table_fini(struct item_table *t)
{
	mem_free(t->slots);
}

/* The place of the item that has the same text as this one, or of one that may be put there. */
static struct capacity_request **
item_table_slot(const struct item_table *t, const struct capacity_request *i)
{
	const char *text = (const char *)i + t->text_at;
	size_t at = text_hash(text) & t->mask;

	while (t->slots[at] && strcmp((const char *)t->slots[at] + t->text_at, text) != 0)
		at = (at + 1) & t->mask;
	return &t->slots[at];
}

static bool
is_repeated(const struct turn_result *r, const struct item_table *decided, struct capacity_request *i)
{
	const struct decision_known *k = quota_turn_known(r->turn, i->key);
	const struct capacity_request *before = *item_table_slot(decided, i);

	if (!k && !before)
		return false;
	settle_known(i, k ? k->digest : before->body.digest);
	return true;
}

/* Everybody who asked for one of the requests that a batch decides, each once, in the order of their first requests. */
static void
write_actors(const struct capacity_request *items, struct buf *out)
{
	for (const struct capacity_request *i = items; i; i = i->next) {
		const struct capacity_request *before = items;

		if (i->kind != REQUEST_SUBMIT || i->fate != REQUEST_DECIDED)
			continue;
		while (before != i && (before->kind != REQUEST_SUBMIT || before->fate != REQUEST_DECIDED ||
		                       strcmp(before->actor, i->actor) != 0))
			before = before->next;
		if (before != i)
			continue;
		if (out->len > 0)
			buf_str(out, ", ");
		buf_str(out, i->actor);
	}
}

/* The item of a verdict. They are mostly in the order in which the items came: the search begins behind the last one. */
static struct capacity_request *
item_of(struct capacity_request *items, struct capacity_request *from, const char *key)
{
	for (struct capacity_request *i = from; i; i = i->next)
		if (i->kind == REQUEST_SUBMIT && i->fate == REQUEST_DECIDED && strcmp(i->key, key) == 0)
			return i;
	for (struct capacity_request *i = items; i != from; i = i->next)
		if (i->kind == REQUEST_SUBMIT && i->fate == REQUEST_DECIDED && strcmp(i->key, key) == 0)
			return i;
	return NULL;
}

static void
set_verdicts(struct capacity_request *items, const struct quota_outcome *o)
{
	struct capacity_request *from = items;

	for (size_t k = 0; k < o->verdict_count; k++) {
		struct capacity_request *i = item_of(items, from, o->verdicts[k].id);

		if (!i)
			continue;
		from = i->next;
		i->verdict = &o->verdicts[k];
	}
}

static bool
is_limited(const struct quota_book *b, struct capacity_request *i, int64_t adds, int64_t most)
{
	int64_t queued =
		adds + (int64_t)quota_waiting_of_tenant(quota_book_state(b), quota_book_tenant(b, i->body.tenant));

	if (queued < most)
		return false;
	err_set(&i->err, ERR_LIMIT,
	        "tenant-queued: tenant \"%s\" has %" PRId64 " requests waiting, and may have %" PRId64, i->body.tenant,
	        queued, most);
	return true;
}

bool
decider_is_limited(const struct quota_book *b, struct capacity_request *i, int64_t queued_max)
{
	return i->kind == REQUEST_SUBMIT && !i->adopts && is_limited(b, i, 0, queued_max);
}

/* The limit on a tenant's waiting requests, those of this batch included. */
struct queue_limit {
	int64_t most;            /* of one tenant */
	bool is_near;            /* the requests of all tenants together exceed it, so one tenant may */
	struct item_table first; /* the first request of each tenant; it counts those of this batch */
};

static void
queue_limit_init(struct queue_limit *q, const struct turn_result *r, int64_t most, size_t items)
{
	const struct quota_state *s = quota_book_state(quota_turn_book(r->turn));

	*q = (struct queue_limit){.most = most, .is_near = (int64_t)(quota_waiting_count(s) + items) > most};
	if (q->is_near)
		item_table_init(&q->first, items, offsetof(struct capacity_request, body.tenant));
}

static void
queue_limit_fini(struct queue_limit *q)
{
	item_table_fini(&q->first);
}

/* A request that is within the limit takes one of the places. */
static bool
is_over_limit(const struct turn_result *r, struct queue_limit *q, struct capacity_request *i)
{
	struct capacity_request **first;

	if (!q->is_near)
		return false;
	first = item_table_slot(&q->first, i);
	if (!*first) {
		*first = i;
		i->tenant_adds = 0;
	}
	if (is_limited(quota_turn_book(r->turn), i, (*first)->tenant_adds, q->most))
		return true;
	(*first)->tenant_adds++;
	return false;
}

/* Gives the items that are decided their fate and their place in the event. */
static size_t
choose_submits(struct turn_result *r, struct capacity_request *items, int64_t queued_max, size_t count,
               const struct item_table *decided, struct decision_ask *asks, struct buf *text)
{
	in_place(queue_limit) struct queue_limit limit = {0};
	size_t n = 0;

	queue_limit_init(&limit, r, queued_max, count);
	for (struct capacity_request *i = items; i; i = i->next) {
		const char *model = NULL;

		if (i->kind != REQUEST_SUBMIT || i->fate != REQUEST_OPEN || i->adopts || is_token_revoked(r, i) ||
		    is_repeated(r, decided, i) || is_refused(r, i, &model))
			continue;
		if (is_over_limit(r, &limit, i)) {
			/* it may have been decided long ago: an optimistic turn has not looked */
			i->fate = quota_turn_is_optimistic(r->turn) ? REQUEST_OVER_LIMIT : REQUEST_REFUSED;
			continue;
		}
		i->fate = REQUEST_DECIDED;
		*item_table_slot(decided, i) = i;
		asks[n] = i->ask;
		buf_str(text, n++ == 0 ? "{\"submit\":[" : ",");
		decision_body_write(&i->body, model, text);
	}
	return n;
}

/* Each adoption is one event, before all requests: they are decided by what runs. */
static bool
step_adoptions(struct turn_result *r, struct capacity_request *items, const struct item_table *decided, struct err *err)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, TEXT_MAX);
	for (struct capacity_request *i = items; i; i = i->next) {
		const struct quota_outcome *o = NULL;
		const char *model = NULL;

		if (i->kind != REQUEST_SUBMIT || i->fate != REQUEST_OPEN || !i->adopts || is_token_revoked(r, i) ||
		    is_repeated(r, decided, i) || is_refused(r, i, &model))
			continue;
		buf_clear(&text);
		buf_str(&text, "{\"adopt\":");
		decision_body_write(&i->body, model, &text);
		buf_char(&text, '}');
		if (!buf_ok(&text, "an event", err))
			return false;
		if (!step(r, i->actor, buf_text(&text), text.len, &i->ask, 1, &o, &i->err)) {
			i->fate = REQUEST_REFUSED;
			continue;
		}
		i->fate = REQUEST_DECIDED;
		*item_table_slot(decided, i) = i;
		for (size_t k = 0; k < o->verdict_count; k++)
			if (strcmp(o->verdicts[k].id, i->key) == 0)
				i->verdict = &o->verdicts[k];
	}
	return true;
}

static bool
step_submits(struct turn_result *r, struct capacity_request *items, int64_t queued_max, struct err *err)
{
	const struct quota_outcome *o = NULL;
	in_place(item_table) struct item_table decided = {0};
	in_place(buf) struct buf text = {0}, actors = {0};
	struct decision_ask *asks;
	size_t n = 0;

	for (const struct capacity_request *i = items; i; i = i->next)
		n += i->kind == REQUEST_SUBMIT;
	if (n == 0)
		return true;
	buf_init(&text, TEXT_MAX);
	buf_init(&actors, ACTORS_MAX);
	asks = mem_array(n, sizeof(*asks));
	(void)keep(r, (char *)asks);
	item_table_init(&decided, n, offsetof(struct capacity_request, key));
	if (!step_adoptions(r, items, &decided, err))
		return false;
	n = choose_submits(r, items, queued_max, n, &decided, asks, &text);
	if (n == 0)
		return true;
	write_actors(items, &actors);
	buf_str(&text, "]}");
	if (!buf_ok(&text, "an event", err) ||
	    !step(r, keep(r, mem_strdup(buf_text(&actors))), buf_text(&text), text.len, asks, n, &o, err))
		return false;
	set_verdicts(items, o);
	return true;
}

/* ---- a turn --------------------------------------------------------------------------------------------------------------------- */

/* The things a turn must look up: keys of requests, cached tokens, and clusters of agents. */
struct agenda {
	const char **keys, **clusters;
	int64_t *tokens;
	struct turn_asked asked;
	size_t count; /* requests that need a turn */
};

static void
agenda_fini(struct agenda *a)
{
	mem_free(a->keys);
	mem_free(a->clusters);
	mem_free(a->tokens);
}

static void
add_token(struct agenda *a, int64_t id)
{
	for (size_t i = 0; i < a->asked.token_count; i++)
		if (a->tokens[i] == id)
			return;
	a->tokens[a->asked.token_count++] = id;
}

static void
add_cluster(struct agenda *a, const char *cluster)
{
	for (size_t i = 0; i < a->asked.cluster_count; i++)
		if (strcmp(a->clusters[i], cluster) == 0)
			return;
	a->clusters[a->asked.cluster_count++] = cluster;
}

static void
agenda_of(const struct capacity_request *items, struct agenda *a)
{
	size_t n = 0;

	for (const struct capacity_request *i = items; i; i = i->next)
		n++;
	*a = (struct agenda){.keys = mem_array(n + 1, sizeof(*a->keys)),
	                     .clusters = mem_array(n + 1, sizeof(*a->clusters)),
	                     .tokens = mem_array(n + 1, sizeof(*a->tokens))};
	for (const struct capacity_request *i = items; i; i = i->next) {
		a->count += i->kind == REQUEST_SUBMIT || i->kind == REQUEST_EVENT || i->kind == REQUEST_ADOPTION ||
		            i->kind == REQUEST_LEAD;
		if (i->kind == REQUEST_SUBMIT)
			a->keys[a->asked.key_count++] = i->key;
		if (i->token_id != 0)
			add_token(a, i->token_id);
		if (i->agent[0] != '\0')
			add_cluster(a, i->agent);
	}
	a->asked.keys = a->keys;
	a->asked.tokens = a->tokens;
	a->asked.clusters = a->clusters;
}

bool
decider_settle_refused(struct db *db, struct capacity_request *items, struct err *err)
{
	in_place(decision_tokens) struct decision_tokens tokens = {0};
	owned(mem) struct decision_known *known = NULL;
	in_place(agenda) struct agenda a = {0};
	size_t count = 0;

	agenda_of(items, &a);
	if (!store_decisions_known(db, a.keys, a.asked.key_count, &known, &count, err) ||
	    (a.asked.token_count > 0 && !store_decision_tokens(db, a.tokens, a.asked.token_count, &tokens, err)))
		return false;
	for (struct capacity_request *i = items; i; i = i->next) {
		const struct decision_known *k = decision_known_find(known, count, i->key);

		i->fate = REQUEST_REFUSED;
		if (!decision_token_holds(&tokens, i->token_id))
			i->fate = REQUEST_TOKEN_REVOKED;
		else if (k)
			settle_known(i, k->digest);
	}
	return true;
}

static void
begin_items(struct capacity_request *items)
{
	for (struct capacity_request *i = items; i; i = i->next) {
		i->fate = REQUEST_OPEN;
		i->warning[0] = '\0';
		i->verdict = NULL;
	}
}

static bool
step_all(struct turn_result *r, struct capacity_request *items, int64_t queued_max, struct err *err)
{
	judge_epochs(r, items);
	step_clusters(r, items);
	return step_events(r, items, err) && step_submits(r, items, queued_max, err);
}

/* False without ERR_RETRY or ERR_UNKNOWN: nothing was done. */
static bool
turn_optimistic(struct db *db, struct quota_log *log, struct capacity_request *items, const struct agenda *a,
                int64_t queued_max, struct turn_result *ret, struct err *err)
{
	err->kind = ERR_CONFLICT;
	ret->turn = store_quota_turn_optimistic(db, log, &a->asked);
	return ret->turn && step_all(ret, items, queued_max, err) && quota_turn_commit(ret->turn, err);
}

bool
decider_turn(struct db *db, struct quota_log *log, struct capacity_request *items, int64_t queued_max,
             struct turn_result *ret, struct err *err)
{
	in_place(agenda) struct agenda a = {0};
	bool lost;

	agenda_of(items, &a);
	begin_items(items);
	if (a.count == 0 || turn_optimistic(db, log, items, &a, queued_max, ret, err))
		return true;
	if (err->kind == ERR_RETRY || err->kind == ERR_UNKNOWN)
		return false;
	lost = ret->turn && quota_turn_costs_book(ret->turn);
	turn_result_fini(ret);
	ret->optimistic_failed = lost;
	begin_items(items);
	return store_quota_turn(db, log, &a.asked, &ret->turn, err) && step_all(ret, items, queued_max, err) &&
	       quota_turn_commit(ret->turn, err);
}

/* ---- a tick: the clock, the policy and telemetry ------------------------------------------------------------------------------- */

/* An event that the book refuses does not end the tick: the next tick sees the present state. A policy that is not the newest any more is
 * skipped: the book may have the newer one already, from another replica. */
static bool
step_loop(struct db *db, struct tick_state *l, struct turn_result *r, const struct quota_loop_result *found,
          struct err *err)
{
	const uint8_t *have = quota_turn_policy_digest(r->turn);
	bool same = have && memcmp(have, found->policy_digest, SHA256_SIZE) == 0, newest = true, taken = same;
	int64_t version = found->policy_version;

	if (found->policy_changed) {
		if (!store_policy_version(db, &version, err))
			return false;
		newest = version == found->policy_version;
	} else {
		taken = true;
	}
	for (size_t i = found->policy_changed && (same || !newest) ? 1 : 0; i < found->event_count; i++) {
		const struct quota_loop_event *e = &found->events[i];
		const struct quota_outcome *o = NULL;
		bool policy = found->policy_changed && i == 0;

		if (!step(r, keep(r, mem_strdup(e->actor)), e->text, strlen(e->text), NULL, 0, &o, &l->why)) {
			l->refused++;
		} else if (policy) {
			quota_turn_set_policy_digest(r->turn, found->policy_digest);
			taken = true;
		}
	}
	if (taken && newest) {
		l->policy_version = found->policy_version;
		l->policy_at_ns = found->policy_at_ns;
	}
	return true;
}

/* Exceptions that are approved and not in the book, or revoked and still there. */
static bool
step_exceptions(struct db *db, struct turn_result *r, struct err *err)
{
	in_place(exception_events) struct exception_events events = {0};

	if (!store_exception_events(db, quota_turn_now(r->turn), &events, err))
		return false;
	for (size_t i = 0; i < events.count; i++) {
		const struct exception_event *e = &events.at[i];
		const struct quota_outcome *o = NULL;
		struct err refused = {0};

		if (step(r, keep(r, mem_strdup(e->actor)), e->event, strlen(e->event), NULL, 0, &o, &refused) &&
		    !store_exception_entered(db, e, quota_turn_seq(r->turn), err))
			return false;
	}
	return true;
}

/* Reads before the book is locked, so that no turn waits for it. */
static bool
look(struct tick_state *l, struct db *db, struct quota_log *log, struct quota_loop_result *ret, struct err *err)
{
	int64_t now_ns;

	if (!store_quota_follow(db, log, NULL, err) || !store_quota_clock(db, &now_ns, err))
		return false;
	/* this thread is the only one that changes the book */
	return quota_loop_events(l->memory, db, quota_log_mine(log), quota_log_policy_digest(log), now_ns, ret, err);
}

bool
decider_tick(struct tick_state *l, struct db *db, struct quota_log *log, struct turn_result *ret, struct err *err)
{
	in_place(quota_loop_result) struct quota_loop_result found = {0};
	bool looks = false;

	if (!store_quota_looks(db, &looks, err) || ((looks || l->now) && !look(l, db, log, &found, err)) ||
	    !store_quota_turn(db, log, &(struct turn_asked){0}, &ret->turn, err))
		return false;
	l->now = false;
	l->refused = 0;
	l->policy_version = 0;
	if ((found.events && !step_loop(db, l, ret, &found, err)) || !step_exceptions(db, ret, err) ||
	    (looks && !quota_loop_store(db, &found, quota_turn_now(ret->turn), err)))
		return false;
	return quota_turn_snapshot(ret->turn, err) && quota_turn_commit(ret->turn, err);
}

bool
turn_result_view(const struct turn_result *r, const struct capacity_request *i, struct decision_view *v)
{
	const struct decision_change *c = decision_rows_of(quota_turn_rows(r->turn), i->key);

	if (!c || !c->fresh)
		return false;
	*v = (struct decision_view){.key = i->key,
	                            .request_id = i->id,
	                            .tenant = i->body.tenant,
	                            .workspace = i->body.workspace,
	                            .status = decision_status_name(c->status),
	                            .decision = quota_decision_name(c->decision),
	                            .would = quota_decision_name(c->would),
	                            .rule = quota_rule_name(c->rule),
	                            .warn = c->warn,
	                            .position = c->position,
	                            .body = buf_text(&i->body.body),
	                            .asked_by = i->actor,
	                            .submitted_ns = quota_turn_now(r->turn),
	                            .changed_ns = c->changed_ns,
	                            .changed_seq = c->changed_seq,
	                            .adopted_ns = c->adopted_ns,
	                            .admitted_ns = c->admitted_ns,
	                            .confirmed_ns = c->confirmed_ns,
	                            .seen_ns = c->seen_ns,
	                            .ended_why = "",
	                            .reclaim = "",
	                            .workload = i->body.workload};
	return true;
}

/* aggregator/service/decider.c - the deciding thread: its queues, its periodic work, and its replies. */
#include "aggregator/service/decider.h"

#include <string.h>

#include "aggregator/service/decider_turn.h"
#include "aggregator/service/tenant_queues.h"
#include "aggregator/service/dry_run.h"
#include "aggregator/service/reply.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define GROUP_MAX 512                   /* a larger turn would delay its first request */
#define ALONE_MAX 64                    /* of one tenant */
#define BESIDE_MAX 16                   /* of one tenant beside others */
#define GONE_NS (10 * NS_PER_MS)        /* between two searches for disconnected clients */
#define LIMITED_NS (20 * NS_PER_MS)     /* between two rounds of refusals of tenants at their limit */
#define LOOK_AGAIN_NS (200 * NS_PER_MS) /* between two ticks while a handler waits for a policy */
#define ADMIT_AGAIN_S 5                 /* Retry-After of a request that waits */
#define FOLLOW_NS (100 * NS_PER_MS)     /* between two readings of the log while long polls wait */

struct decider {
	struct app *app;
	struct db *db;
	struct quota_log *log;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct capacity_request *first, **end; /* in order of arrival */
	atomic_bool draining;
	bool stop, read_policy_soon, gone; /* gone: a client has disconnected */
	_Atomic int64_t policy_version;    /* up to which the policy was read; written by the thread alone */
	int64_t book_version, book_at_ns;  /* of the book's policy, and when that is in force */
	pthread_cond_t book_changed;
	/* used by the thread only */
	struct tenant_queues queues;
	struct capacity_request *watches;
	struct capacity_request *limited,
		**limited_end; /* of tenants at their limit, to be refused, in order of arrival */
	int64_t limited_ns;    /* when such were last refused */
	struct tick_state tick_state;
	int64_t ticked_ns, followed_ns, gone_ns, disagreements;
	char last_error[ERR_LOG_SIZE];
};

/* ---- items ----------------------------------------------------------------------------------------------------------------- */

struct capacity_request *
capacity_request_new(enum capacity_request_kind kind, const struct identity_row *who, const struct http_request *rq,
                     struct http_reply *rp)
{
	struct capacity_request *i = mem_alloc(sizeof(*i));

	i->kind = kind;
	i->rq = rq;
	i->rp = rp;
	i->began_ns = time_boot_ns();
	memcpy(i->actor, who->name, sizeof(i->actor) < sizeof(who->name) ? sizeof(i->actor) : sizeof(who->name));
	i->actor[sizeof(i->actor) - 1] = '\0';
	if ((who->role & ROLES_TENANT) != 0)
		memcpy(i->tenant, who->tenant, sizeof(i->tenant));
	return i;
}

void
capacity_request_free(struct capacity_request *i)
{
	if (!i)
		return;
	decision_body_fini(&i->body);
	json_decref(i->doc);
	mem_free(i->event);
	mem_free(i);
}

/* 200: it may run; 202: it waits, and where to look again; 403: never, and why; 409: that was long ago. */
static bool
reply_admission(struct capacity_request *i, const struct decision_view *v, struct err *err)
{
	in_place(buf) struct buf decision = {.max = HTTP_REPLY_MAX}, location = {.max = HTTP_REPLY_MAX};

	if (strcmp(v->status, "waiting") == 0) {
		i->rp->status = 202;
		i->rp->retry_after_s = ADMIT_AGAIN_S;
		buf_printf(&location, "/v1/decisions/%s/%s", v->tenant, v->request_id);
		i->rp->location = mem_strdup(buf_text(&location));
	} else if (strcmp(v->status, "rejected") == 0) {
		buf_add(&decision, buf_text(&i->rp->body), i->rp->body.len);
		http_problem(i->rp, i->rq, 403, NULL, "\"%s\" is refused by the rule %s: the decision has the checks",
		             v->request_id, v->rule);
		http_problem_json(i->rp, "decision", &decision);
	} else if (strcmp(v->status, "ended") == 0 || strcmp(v->status, "cancelled") == 0 ||
	           strcmp(v->status, "expired") == 0) {
		buf_clear(&i->rp->body);
		return err_set(err, ERR_CONFLICT, "request_id: \"%s\" is over, it is %s: use another one for new work",
		               v->request_id, v->status);
	}
	return true;
}

bool
capacity_request_reply(struct capacity_request *i, const struct decision_view *v, const struct decision_told *told,
                       struct err *err)
{
	i->rp->content_type = "application/json";
	return reply_decision(v, told, i->warning[0] != '\0' ? i->warning : NULL, i->tenant, &i->rp->body, err) &&
	       (!i->admits || reply_admission(i, v, err));
}

void
decider_put(struct decider *d, struct capacity_request *item)
{
	struct http_keep keep = {.poll = item->until_ns != 0,
	                         .tenant = item->of_tenant[0] != '\0' ? item->of_tenant : NULL};

	if (!http_later(item->rq, &keep)) {
		http_later_refuse(item->rq, item->rp);
		capacity_request_free(item);
		return;
	}
	pthread_mutex_lock(&d->lock);
	*d->end = item;
	d->end = &item->next;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

/* The reply is written. */
static void
done(struct decider *d, struct capacity_request *item)
{
	const struct http_request *rq = item->rq;

	if (item->kind == REQUEST_SUBMIT)
		histogram_add(&d->app->counters.decision_duration, time_boot_ns() - item->began_ns);
	capacity_request_free(item);
	http_later_done(rq);
}

static void
done_all(struct decider *d, struct capacity_request *items)
{
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		done(d, i);
	}
}

static void
refuse(struct decider *d, struct capacity_request *item, const struct err *err)
{
	reply_problem(item->rp, item->rq, err);
	/* a retry with the same request_id gets the outcome of this request */
	if (err->kind == ERR_RETRY || err->kind == ERR_UNKNOWN)
		item->rp->retry_after_s = 1;
	done(d, item);
}

static void
refuse_token(struct decider *d, struct capacity_request *item)
{
	reply_token_refused(d->app, item->rq, item->rp);
	done(d, item);
}

static void
refuse_all(struct decider *d, struct capacity_request *items, const struct err *err)
{
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		refuse(d, i, err);
	}
}

/* Repeated errors are logged once. */
static void
log_once(struct decider *d, const struct err *err)
{
	char why[ERR_LOG_SIZE];

	err_log_text(err, why);
	if (strcmp(d->last_error, why) != 0)
		log_event(LOG_WARN, "deciding about capacity failed, will try again", LS("error", why));
	memcpy(d->last_error, why, sizeof(d->last_error));
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------- */

/* Rows come mostly in the order they were asked for: the search begins behind the last one. */
static const struct decision_view *
view_named(const struct decision_views *views, const struct capacity_request *i, size_t *from)
{
	for (size_t k = 0; k < views->count; k++) {
		const struct decision_view *v = &views->at[(*from + k) % views->count];

		if (strcmp(v->key, i->key) != 0)
			continue;
		*from += k + 1;
		return i->tenant[0] != '\0' && strcmp(v->tenant, i->tenant) != 0 ? NULL : v;
	}
	return NULL;
}

static void
missing(struct decider *d, struct capacity_request *i)
{
	struct err err = {0};

	err_set(&err, ERR_MISSING, "there is no decision \"%s\"", i->id);
	refuse(d, i, &err);
}

/* True: it was answered; false: it goes on waiting. */
static bool
answer_view(struct decider *d, struct capacity_request *i, const struct decision_view *v)
{
	bool waits = i->until_ns > time_boot_ns() && !d->draining;
	struct err err = {0};

	if (!v) {
		missing(d, i);
		return true;
	}
	if (i->kind == REQUEST_SUBMIT && waits && strcmp(v->status, "waiting") == 0) {
		i->kind = REQUEST_WATCH;
		i->fate = REQUEST_READ_ROW; /* the verdict may be outdated when the poll ends */
		i->after = INT64_MAX;       /* until it no longer waits */
		return false;
	}
	if (i->kind == REQUEST_WATCH && waits && strcmp(v->status, "waiting") == 0 && v->changed_seq <= i->after)
		return false;
	if (i->kind == REQUEST_EVENT && strcmp(i->word, "cancel") == 0 && strcmp(v->status, "cancelled") != 0) {
		err_set(&err, ERR_CONFLICT, "\"%s\" does not wait: it is %s", i->id, v->status);
		refuse(d, i, &err);
		return true;
	}
	if (i->kind == REQUEST_EVENT && strcmp(i->word, "enforce") == 0 && strcmp(v->reclaim, "enforced") != 0 &&
	    strcmp(v->status, "ended") != 0) {
		err_set(&err, ERR_CONFLICT, "\"%s\" has no order that is overdue", i->id);
		refuse(d, i, &err);
		return true;
	}
	if (i->kind == REQUEST_EVENT && i->workload.list && v->released_ns != 0) {
		err_set(&err, ERR_CONFLICT,
		        "\"%s\" was released: it returns when none of the workloads that it had is seen", i->id);
		refuse(d, i, &err);
		return true;
	}
	/* A waiting decision is shown with its present checks by the thread of dry runs; this turn's verdict has them already. */
	if (strcmp(v->status, "waiting") == 0 && i->fate != REQUEST_DECIDED) {
		dry_runs_show(d->app->dry_runs, i);
		return true;
	}
	if (capacity_request_reply(i, v,
	                           i->fate == REQUEST_DECIDED && i->verdict
	                                   ? &(struct decision_told){quota_book_namer(quota_log_mine(d->log)),
	                                                             i->verdict}
	                                   : NULL,
	                           &err))
		done(d, i);
	else
		refuse(d, i, &err);
	return true;
}

static void
keep_watching(struct decider *d, struct capacity_request *i)
{
	if (http_gone(i->rq)) {
		done(d, i);
		return;
	}
	i->next = d->watches;
	d->watches = i;
}

/* Decisions whose rows must be read, in one question. */
static void
answer_by_rows(struct decider *d, struct capacity_request *items)
{
	in_place(decision_views) struct decision_views views = {0};
	owned(mem) const char **keys = NULL;
	struct err err = {0};
	size_t n = 0, from = 0;

	for (const struct capacity_request *i = items; i; i = i->next)
		n++;
	if (n == 0)
		return;
	keys = mem_array(n, sizeof(*keys));
	n = 0;
	for (const struct capacity_request *i = items; i; i = i->next)
		keys[n++] = i->key;
	if (!store_decisions_get(d->db, keys, n, &views, &err)) {
		log_once(d, &err);
		refuse_all(d, items, &err);
		return;
	}
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		if (!answer_view(d, i, view_named(&views, i, &from)))
			keep_watching(d, i);
	}
}

/* True: it was answered. */
static bool
answer_reclaims(struct decider *d, struct capacity_request *i)
{
	const struct quota_book *b = quota_log_mine(d->log);
	owned(mem) struct quota_due *due = NULL;
	struct reclaim_query q = {.tenant = i->tenant[0] != '\0' ? i->tenant : NULL,
	                          .after = i->after,
	                          .ended = i->after > 0};
	struct err err = {0};
	int64_t count = 0;

	q.due_count = b ? quota_orders_due(quota_book_state(b), &due) : 0;
	q.due = due;
	if (!store_reclaims_json(d->db, &q, &i->rp->body, &count, &err)) {
		buf_clear(&i->rp->body);
		refuse(d, i, &err);
		return true;
	}
	if (count == 0 && i->until_ns > time_boot_ns() && !d->draining) {
		buf_clear(&i->rp->body);
		return false;
	}
	i->rp->content_type = "application/json";
	done(d, i);
	return true;
}

static void
answer_lead(struct decider *d, struct capacity_request *i)
{
	i->rp->status = 201;
	i->rp->content_type = "application/json";
	buf_str(&i->rp->body, "{\"cluster\":");
	json_write_string(i->agent, &i->rp->body);
	buf_printf(&i->rp->body, ",\"epoch\":%" PRId64 "}\n", i->epoch);
	done(d, i);
}

static void
answer_adoption(struct decider *d, struct capacity_request *i)
{
	const struct quota_book *b = quota_log_mine(d->log);
	const struct quota_adoption *a =
		b ? quota_adoption_of(quota_book_state(b), quota_book_cluster(b, i->cluster)) : NULL;
	struct err err = {0};

	if (!a) {
		err_set(&err, ERR_RETRY, "the quota book was not read yet");
		refuse(d, i, &err);
		return;
	}
	i->rp->content_type = "application/json";
	reply_adoption(b, a, &i->rp->body);
	buf_char(&i->rp->body, '\n');
	done(d, i);
}

/* ---- long polls --------------------------------------------------------------------------------------------------------------- */

/* Those whose time is over, or that a change is about; NULL: nothing changed. */
static void
look_at_watches(struct decider *d, const struct decision_rows *changed)
{
	struct capacity_request *kept = NULL, *rows = NULL, *reclaims = NULL;
	int64_t now_ns = time_boot_ns();

	for (struct capacity_request *i = d->watches, *next; i; i = next) {
		bool due = d->draining || i->until_ns <= now_ns;
		struct capacity_request **to = &kept;

		next = i->next;
		if (http_gone(i->rq)) {
			done(d, i);
			continue;
		}
		if (i->kind == REQUEST_RECLAIMS && (due || (changed && changed->reclaim_count > 0)))
			to = &reclaims;
		else if (i->kind == REQUEST_WATCH && (due || (changed && decision_rows_of(changed, i->key))))
			to = &rows;
		i->next = *to;
		*to = i;
	}
	d->watches = kept;
	answer_by_rows(d, rows);
	for (struct capacity_request *i = reclaims, *next; i; i = next) {
		next = i->next;
		if (!answer_reclaims(d, i))
			keep_watching(d, i);
	}
}

static void
follow(struct decider *d)
{
	in_place(decision_rows) struct decision_rows changed = {0};
	struct err err = {0};

	d->followed_ns = time_boot_ns();
	if (!store_quota_follow(d->db, d->log, &changed, &err))
		log_once(d, &err);
	look_at_watches(d, &changed);
}

/* ---- requests of tenants at their limit ------------------------------------------------------------------------------------------- */

static void
defer_refusal(struct decider *d, struct capacity_request *i)
{
	if (!d->limited)
		d->limited_end = &d->limited;
	i->next = NULL;
	*d->limited_end = i;
	d->limited_end = &i->next;
}

/* The items without those that are limited, which wait for their refusal. */
static struct capacity_request *
defer_limited(struct decider *d, struct capacity_request *items)
{
	const struct quota_book *b = quota_log_mine(d->log);
	int64_t most = d->app->options->tenant_queued;
	struct capacity_request *rest = NULL, **end = &rest;

	if (!b || (int64_t)quota_waiting_count(quota_book_state(b)) < most)
		return items;
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		i->next = NULL;
		if (decider_is_limited(b, i, most)) {
			defer_refusal(d, i);
		} else {
			*end = i;
			end = &i->next;
		}
	}
	return rest;
}

/* Refused as their err says, but for those that were decided before: only their rows know. */
static void
refuse_unless_known(struct decider *d, struct capacity_request *items)
{
	struct capacity_request *rows = NULL;
	struct err err = {0};

	if (!items)
		return;
	if (!decider_settle_refused(d->db, items, &err)) {
		log_once(d, &err);
		refuse_all(d, items, &err);
		return;
	}
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		if (i->fate == REQUEST_REFUSED) {
			refuse(d, i, &i->err);
		} else if (i->fate == REQUEST_TOKEN_REVOKED) {
			refuse_token(d, i);
		} else {
			i->next = rows;
			rows = i;
		}
	}
	answer_by_rows(d, rows);
}

/* Refuses them together, without a turn and at most every LIMITED_NS, so that other requests wait for one reading of log, rows and tokens at most.
 * The rows are read because a request may have been decided long ago. Returns requests that meanwhile are within their limit. */
static struct capacity_request *
answer_limited(struct decider *d)
{
	struct capacity_request *rest, *items = NULL;

	if (!d->limited)
		return NULL;
	follow(d);
	rest = defer_limited(d, take(d->limited));
	items = take(d->limited);
	d->limited_ns = time_boot_ns();
	refuse_unless_known(d, items);
	return rest;
}

/* ---- a turn ------------------------------------------------------------------------------------------------------------------- */

static void
log_disagreements(struct decider *d)
{
	int64_t n = quota_log_disagreements(d->log);

	if (n > d->disagreements)
		log_event(LOG_ERROR,
		          "another replica decided otherwise than this program would have: run one version everywhere",
		          LI("events", n - d->disagreements));
	d->disagreements = n;
}

static void
look_at_turn(struct decider *d, const struct turn_result *r)
{
	if (!r->turn)
		return;
	look_at_watches(d, quota_turn_foreign(r->turn));
	look_at_watches(d, quota_turn_rows(r->turn));
}

static void
answer_items(struct decider *d, struct capacity_request *items, const struct turn_result *r)
{
	struct capacity_request *rows = NULL, **end = &rows;

	for (struct capacity_request *i = items, *next; i; i = next) {
		struct decision_view v;

		next = i->next;
		i->next = NULL;
		if (i->kind == REQUEST_RECLAIMS) {
			if (!answer_reclaims(d, i))
				keep_watching(d, i);
		} else if (i->fate == REQUEST_REFUSED) {
			refuse(d, i, &i->err);
		} else if (i->kind == REQUEST_LEAD && i->fate == REQUEST_DECIDED) {
			answer_lead(d, i);
		} else if (i->kind == REQUEST_ADOPTION && i->fate == REQUEST_DECIDED) {
			answer_adoption(d, i);
		} else if (i->fate == REQUEST_OVER_LIMIT) {
			defer_refusal(d, i);
		} else if (i->fate == REQUEST_TOKEN_REVOKED) {
			refuse_token(d, i);
		} else if (i->fate == REQUEST_DECIDED && turn_result_view(r, i, &v)) {
			if (!i->adopts)
				decision_counters_add(d->app->decisions, v.workspace, v.decision, v.rule);
			if (!answer_view(d, i, &v))
				keep_watching(d, i);
		} else {
			*end = i;
			end = &i->next;
		}
	}
	answer_by_rows(d, rows);
}

/* Wakes handlers that wait for a policy to be in effect. */
static void
publish_book_policy(struct decider *d)
{
	if (d->tick_state.policy_version == 0)
		return;
	pthread_mutex_lock(&d->lock);
	d->book_version = d->tick_state.policy_version;
	d->book_at_ns = d->tick_state.policy_at_ns;
	pthread_cond_broadcast(&d->book_changed);
	pthread_mutex_unlock(&d->lock);
}

static void
tick(struct decider *d)
{
	in_place(turn_result) struct turn_result r = {0};
	struct err err = {0};

	d->ticked_ns = time_boot_ns();
	if (!decider_tick(&d->tick_state, d->db, d->log, &r, &err))
		log_once(d, &err);
	else if (d->tick_state.refused > 0)
		log_once(d, &d->tick_state.why);
	else
		publish_book_policy(d);
	log_disagreements(d);
	look_at_turn(d, &r);
}

static void
read_policy(struct decider *d)
{
	int64_t version = d->policy_version;
	struct err err = {0};

	if (!store_policy_version(d->db, &version, &err) ||
	    (version == d->policy_version && version == d->tick_state.policy_version))
		return;
	d->tick_state.now = true;
	tick(d);
	d->policy_version = version;
}

static bool
is_any_unknown(const struct decider *d, const struct capacity_request *items)
{
	const struct quota_book *b = quota_log_mine(d->log);
	bool unknown = false;

	for (const struct capacity_request *i = items; i && !unknown; i = i->next)
		unknown = i->kind == REQUEST_SUBMIT && (!b || !quota_book_takes(b, i->body.workspace, i->body.klass));
	return unknown;
}

/* A workspace that the book does not know may be one that was made a moment ago: then the policy comes first. */
static void
read_new_workspaces(struct decider *d, const struct capacity_request *items)
{
	if (!is_any_unknown(d, items))
		return;
	read_policy(d);
	if (is_any_unknown(d, items))
		follow(d); /* another replica read it */
}

/* Requests of workspaces that there are not are refused without a turn: nothing is written. The others are returned. */
static struct capacity_request *
refuse_unknown(struct decider *d, struct capacity_request *items)
{
	struct capacity_request *rest = NULL, **end = &rest, *unknown = NULL, **unknown_end = &unknown;
	const struct quota_book *b;

	read_new_workspaces(d, items);
	b = quota_log_mine(d->log);
	for (struct capacity_request *i = items, *next; i; i = next) {
		struct capacity_request ***to = &end;

		next = i->next;
		i->next = NULL;
		if (b && i->kind == REQUEST_SUBMIT && !quota_book_takes(b, i->body.workspace, i->body.klass)) {
			(void)quota_book_not_taken(b, i->body.workspace, i->body.klass, i->tenant, &i->err);
			to = &unknown_end;
		}
		**to = i;
		*to = &i->next;
	}
	refuse_unless_known(d, unknown);
	return rest;
}

static void
count_turn(struct decider *d, const struct turn_result *r)
{
	atomic_llong *turns = d->app->counters.decision_ways;

	if (r->optimistic_failed)
		atomic_fetch_add(&turns[WAY_OPTIMISTIC_FAILED], 1);
	if (r->turn)
		atomic_fetch_add(&turns[quota_turn_is_optimistic(r->turn) ? WAY_OPTIMISTIC : WAY_LOCKED], 1);
}

/* A failed attempt was rolled back, or its outcome is unknown: the second attempt finds its rows by the requests' ids. If the second fails as
 * well, ERR_UNKNOWN stays, so that no client is told that nothing was decided. */
static bool
take_turn(struct decider *d, struct capacity_request *items, struct err *err)
{
	in_place(turn_result) struct turn_result r = {0};
	bool unknown = false;

	for (int attempt = 0;; attempt++) {
		turn_result_fini(&r);
		if (decider_turn(d->db, d->log, items, d->app->options->tenant_queued, &r, err))
			break;
		unknown |= err->kind == ERR_UNKNOWN;
		if (attempt == 1 && unknown)
			return err_set(
				err, ERR_UNKNOWN,
				"whether it was decided is not known: the database did not answer; ask again with the same request_id");
		if ((err->kind != ERR_RETRY && err->kind != ERR_UNKNOWN) || attempt == 1)
			return false;
		log_once(d, err);
	}
	d->last_error[0] = '\0';
	count_turn(d, &r);
	log_disagreements(d);
	look_at_turn(d, &r);
	answer_items(d, items, &r);
	return true;
}

static void
decide(struct decider *d, struct capacity_request *items)
{
	struct err err = {0};

	items = refuse_unknown(d, items);
	if (items && !take_turn(d, items, &err)) {
		log_once(d, &err);
		refuse_all(d, items, &err);
	}
}

/* ---- the thread --------------------------------------------------------------------------------------------------------------- */

/* The requests of the next turn, or NULL when other work is due. */
static struct capacity_request *
take_items(struct decider *d, int64_t until_ns, bool *ret_look, bool *ret_gone, bool *ret_stop)
{
	struct capacity_request *items;
	int64_t deadline_ns = time_monotonic_ns() + (until_ns - time_boot_ns());

	pthread_mutex_lock(&d->lock);
	while (!d->first && d->queues.count == 0 && !d->stop && !d->read_policy_soon && !d->gone &&
	       !(d->draining && (d->watches || d->limited)))
		if (!condition_wait_until(&d->wake, &d->lock, deadline_ns))
			break;
	items = take(d->first);
	d->end = &d->first;
	*ret_look = d->read_policy_soon;
	d->read_policy_soon = false;
	*ret_gone |= d->gone;
	d->gone = false;
	*ret_stop = d->stop;
	pthread_mutex_unlock(&d->lock);
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		tenant_queues_add(&d->queues, i);
	}
	items = tenant_queues_take(&d->queues, GROUP_MAX, ALONE_MAX, BESIDE_MAX);
	*ret_stop &= items == NULL;
	done_all(d, capacity_requests_gone(&items)); /* also clients that disconnected while their request was queued */
	return items;
}

static int64_t
next_ns(const struct decider *d, bool gone)
{
	int64_t at_ns = d->ticked_ns + d->app->options->quota_tick_ns;

	if (d->watches && d->followed_ns + FOLLOW_NS < at_ns)
		at_ns = d->followed_ns + FOLLOW_NS;
	if (d->limited && d->limited_ns + LIMITED_NS < at_ns)
		at_ns = d->limited_ns + LIMITED_NS;
	if (gone && d->gone_ns + GONE_NS < at_ns)
		at_ns = d->gone_ns + GONE_NS;
	return at_ns;
}

static void *
decider_main(void *arg)
{
	struct decider *d = arg;
	bool stop = false, look = false, gone = false;

	while (!stop) {
		struct capacity_request *items = take_items(d, next_ns(d, gone), &look, &gone, &stop);

		decide(d, defer_limited(d, items));
		if (d->draining || time_boot_ns() - d->limited_ns >= LIMITED_NS)
			decide(d, answer_limited(d));
		if (d->draining || (gone && time_boot_ns() - d->gone_ns >= GONE_NS)) {
			look_at_watches(d, NULL);
			d->gone_ns = time_boot_ns();
			gone = false;
		}
		if (look && !stop)
			read_policy(d);
		if (!stop && time_boot_ns() - d->ticked_ns >= d->app->options->quota_tick_ns)
			tick(d);
		else if (d->watches && time_boot_ns() - d->followed_ns >= FOLLOW_NS)
			follow(d);
	}
	return NULL;
}

static void
decider_free(struct decider *d)
{
	ASSERT(!d->first && d->queues.count == 0 && !d->watches && !d->limited);
	pthread_cond_destroy(&d->book_changed);
	pthread_cond_destroy(&d->wake);
	pthread_mutex_destroy(&d->lock);
	quota_log_free(d->log);
	db_free(d->db);
	mem_free(d);
}

bool
decider_start(struct app *app, struct decider **ret, struct err *err)
{
	struct decider *d;
	struct db *db = NULL;

	if (!app_db_new(app->options, "tollgate-aggregator decider", &app->db, &db, err))
		return false;
	d = mem_alloc(sizeof(*d));
	*d = (struct decider){.app = app,
	                      .db = db,
	                      .log = quota_log_new(app->options->quota_quiet_ns),
	                      .tick_state = {.memory = app->loop}};
	d->end = &d->first;
	d->ticked_ns = time_boot_ns() - app->options->quota_tick_ns;
	pthread_mutex_init(&d->lock, NULL);
	condition_init(&d->wake);
	condition_init(&d->book_changed);
	if (!thread_start("that decides", decider_main, d, &d->thread, err)) {
		decider_free(d);
		return false;
	}
	*ret = d;
	return true;
}

void
decider_drain(struct decider *d)
{
	pthread_mutex_lock(&d->lock);
	d->draining = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

void
decider_client_gone(struct decider *d)
{
	pthread_mutex_lock(&d->lock);
	d->gone = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

void
decider_stop(struct decider *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->draining = true;
	d->stop = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	decider_free(d);
}

struct quota_log *
decider_log(struct decider *d)
{
	return d->log;
}

void
decider_read_policy_soon(struct decider *d)
{
	pthread_mutex_lock(&d->lock);
	d->read_policy_soon = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

int64_t
decider_policy_version(struct decider *d)
{
	return d->policy_version;
}

bool
decider_policy_wait(struct decider *d, int64_t version, int64_t from_ns, int64_t until_ns)
{
	bool has;

	pthread_mutex_lock(&d->lock);
	while (!(has = d->book_version >= version && d->book_at_ns >= from_ns) && !d->draining &&
	       time_boot_ns() < until_ns) {
		d->read_policy_soon = true;
		pthread_cond_signal(&d->wake);
		/* a tick that fails, or finds the database's clock behind, publishes nothing: another one is requested */
		(void)condition_wait_until(&d->book_changed, &d->lock, time_monotonic_ns() + LOOK_AGAIN_NS);
	}
	pthread_mutex_unlock(&d->lock);
	return has;
}

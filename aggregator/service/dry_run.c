/* aggregator/service/dry_run.c - the thread of dry runs. Rules by number in the header. */
#include "aggregator/service/dry_run.h"

#include <string.h>

#include "aggregator/service/tenant_queues.h"
#include "aggregator/service/start_estimate.h"
#include "aggregator/service/reply.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define OPEN_MAX 1024u              /* of all tenants; then 503 */
#define GROUP_MAX 16                /* share one reading of the log */
#define BESIDE_MAX 4                /* of one tenant beside others */
#define REST_MIN_NS (5 * NS_PER_MS) /* rule 4 */
#define REST_MAX_NS (50 * NS_PER_MS)
#define POLICY_WAIT_NS (2 * NS_PER_S)
#define POLICY_LOOK_NS (50 * NS_PER_MS)
#define ESTIMATE_WAIT_NS NS_PER_S           /* for the first estimate of a request */
#define ESTIMATE_NEWER_NS (100 * NS_PER_MS) /* for a newer one than there is */
#define ESTIMATE_LOOK_NS (5 * NS_PER_MS)
#define NICE 5 /* real decisions go first */

struct dry_runs {
	struct app *app;
	struct db *db;
	struct quota_log *log; /* used by the thread only */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct tenant_queues queues;
	struct capacity_request *open; /* all without a reply, for the limits */
	size_t open_count;
	atomic_bool draining;
	bool stop;
	bool estimate; /* is asked for */
	struct estimates *estimates;
	/* used by the thread only */
	struct capacity_request *waiting; /* for a policy or an estimate */
	int64_t look_ns;                  /* until they are tried again */
	int64_t policy_version;           /* that the deciding thread is known to have read */
	char last_error[sizeof(((struct err *)0)->text)];
};

/* ---- items ----------------------------------------------------------------------------------------------------------------- */

/* With the lock. */
static int64_t
open_of_tenant(const struct dry_runs *d, const char *tenant)
{
	int64_t count = 0;

	for (const struct capacity_request *i = d->open; i; i = i->next_open)
		count += strcmp(i->body.tenant, tenant) == 0;
	return count;
}

/* With the lock. */
static void
forget(struct dry_runs *d, const struct capacity_request *item)
{
	struct capacity_request **at = &d->open;

	while (*at != item)
		at = &(*at)->next_open;
	*at = item->next_open;
	d->open_count--;
}

void
dry_runs_put(struct dry_runs *d, struct capacity_request *item)
{
	int64_t most = d->app->options->tenant_dry_runs, open;
	struct err err = {0};
	bool room, kept;

	pthread_mutex_lock(&d->lock);
	open = open_of_tenant(d, item->body.tenant);
	room = open < most;
	kept = room && d->open_count < OPEN_MAX && http_later(item->rq, &(struct http_keep){.poll = false});
	if (kept) {
		tenant_queues_add(&d->queues, item);
		item->next_open = d->open;
		d->open = item;
		d->open_count++;
		pthread_cond_signal(&d->wake);
	}
	pthread_mutex_unlock(&d->lock);
	if (kept)
		return;
	if (room) {
		http_later_refuse(item->rq, item->rp);
	} else if (item->token_id != 0) {
		http_defer(item->rp); /* a worker checks the token before the limit is named */
	} else {
		err_set(&err, ERR_LIMIT,
		        "tenant-dry-runs: tenant \"%s\" has %" PRId64 " dry runs open, and may have %" PRId64,
		        item->body.tenant, open, most);
		reply_problem(item->rp, item->rq, &err);
	}
	capacity_request_free(item);
}

void
dry_runs_show(struct dry_runs *d, struct capacity_request *item)
{
	item->is_shown = true;
	pthread_mutex_lock(&d->lock);
	tenant_queues_add(&d->queues, item);
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

/* The reply is written. */
static void
done(struct dry_runs *d, struct capacity_request *item)
{
	const struct http_request *rq = item->rq;

	if (!item->is_shown) {
		pthread_mutex_lock(&d->lock);
		forget(d, item);
		pthread_mutex_unlock(&d->lock);
	}
	capacity_request_free(item);
	http_later_done(rq);
}

static void
done_all(struct dry_runs *d, struct capacity_request *items)
{
	for (struct capacity_request *i = items, *next; i; i = next) {
		next = i->next;
		done(d, i);
	}
}

static void
refuse(struct dry_runs *d, struct capacity_request *item, const struct err *err)
{
	reply_problem(item->rp, item->rq, err);
	done(d, item);
}

/* The same error is logged once. */
static void
log_once(struct dry_runs *d, const struct err *err)
{
	if (strcmp(d->last_error, err->text) != 0)
		log_event(LOG_WARN, "the quota log cannot be read for dry runs", LS("error", err->text));
	memcpy(d->last_error, err->text, sizeof(d->last_error));
}

/* ---- an answer ---------------------------------------------------------------------------------------------------------------- */

static const struct quota_verdict *
verdict_of(const struct quota_outcome *o, const char *id)
{
	for (size_t i = o->verdict_count; i-- > 0;)
		if (strcmp(o->verdicts[i].id, id) == 0)
			return &o->verdicts[i];
	return NULL;
}

static bool
answer(const struct quota_book *b, int64_t now_ns, int64_t seq, struct capacity_request *i, struct err *err)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	const struct quota_verdict *v;
	in_place(buf) struct buf text = {0};
	struct quota_namer namer = quota_book_namer(b);
	struct buf *out = &i->rp->body;
	const char *model = NULL;

	if (!quota_book_takes(b, i->body.workspace, i->body.klass))
		return quota_book_not_taken(b, i->body.workspace, i->body.klass, i->tenant, err);
	if (i->body.model && !quota_book_model_of(b, i->body.model, &model, err))
		return err_prefix(err, "gpu_model");
	buf_init(&text, QUOTA_EVENT_MAX_BYTES);
	buf_str(&text, "{\"submit\":[");
	decision_body_write(&i->body, model, &text);
	buf_str(&text, "]}");
	if (!quota_book_try(b, now_ns, buf_text(&text), text.len, &o, err)) {
		if (err->kind == ERR_CONFLICT) /* the only one that a single request can have */
			return err_set(
				err, ERR_CONFLICT,
				"a request with the request_id \"%s\" waits or has its GPUs already; a dry run needs "
				"an id that no request has",
				i->id);
		return false;
	}
	v = verdict_of(o, i->key);
	if (!v)
		return err_set(err, ERR_FATAL, "the request has no verdict");
	buf_str(out, "{\"dry_run\":true,\"request_id\":");
	json_write_string(i->id, out);
	buf_printf(out, ",\"seq\":%" PRId64 ",\"verdict\":{\"id\":", seq);
	json_write_string(i->id, out);
	buf_printf(out, ",\"decision\":\"%s\"", quota_decision_name(v->decision));
	quota_json_reply(&namer, v, &(struct quota_reader){.tenant = i->tenant}, out);
	buf_str(out, "}}\n");
	i->rp->content_type = "application/json";
	return true;
}

/* ---- a decision that waits -------------------------------------------------------------------------------------------------------- */

static void
show(struct dry_runs *d, const struct quota_book *b, int64_t now_ns, struct capacity_request *i,
     const struct decision_view *v)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct decision_told now = {.namer = quota_book_namer(b)};
	struct err err = {0};

	if (!v || (i->tenant[0] != '\0' && strcmp(v->tenant, i->tenant) != 0)) {
		err_set(&err, ERR_MISSING, "there is no decision \"%s\"", i->id);
		refuse(d, i, &err);
		return;
	}
	if (strcmp(v->status, "waiting") == 0)
		o = quota_book_explain(b, quota_book_now(b), i->key);
	if (o && o->verdict_count == 1) {
		struct quota_start start = estimates_of(d->estimates, i->key);

		/* a job runs longer than it said: the start is not known */
		if (quota_start_is_known(start.kind) && start.at_ns < now_ns)
			start = (struct quota_start){.kind = QUOTA_START_NO_DURATION};
		o->verdicts[0].start = start.kind;
		o->verdicts[0].start_ns = start.at_ns;
		now.verdict = &o->verdicts[0];
	}
	if (capacity_request_reply(i, v, now.verdict ? &now : NULL, &err))
		done(d, i);
	else
		refuse(d, i, &err);
}

/* Their rows are read again: they may have changed since they were handed over. */
static void
show_all(struct dry_runs *d, const struct quota_book *b, int64_t now_ns, struct capacity_request *items)
{
	in_place(decision_views) struct decision_views views = {0};
	owned(mem) const char **keys = NULL;
	struct err err = {0};
	size_t n = 0;
	bool ok;

	for (const struct capacity_request *i = items; i; i = i->next)
		n++;
	keys = mem_array(n + 1, sizeof(*keys));
	n = 0;
	for (const struct capacity_request *i = items; i; i = i->next)
		keys[n++] = i->key;
	ok = n == 0 || store_decisions_get(d->db, keys, n, &views, &err);
	for (struct capacity_request *i = items, *next; i; i = next) {
		const struct decision_view *v = NULL;

		next = i->next;
		for (size_t k = 0; k < views.count && !v; k++)
			v = strcmp(views.at[k].key, i->key) == 0 ? &views.at[k] : NULL;
		if (ok)
			show(d, b, now_ns, i, v);
		else
			refuse(d, i, &err);
	}
}

/* ---- estimates -------------------------------------------------------------------------------------------------------------------- */

void
dry_runs_estimate(struct dry_runs *d)
{
	pthread_mutex_lock(&d->lock);
	d->estimate = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

struct quota_start
dry_runs_start_of(struct dry_runs *d, const char *key)
{
	return estimates_of(d->estimates, key);
}

/* Gives a copy of the book to the thread of estimates, if a request asks for one and there is none yet. */
static void
estimate(struct dry_runs *d, const struct quota_book *b, const struct capacity_request *items, int64_t now_ns)
{
	int64_t seq = quota_log_seq(d->log);
	bool wanted;

	pthread_mutex_lock(&d->lock);
	wanted = d->estimate;
	d->estimate = false;
	pthread_mutex_unlock(&d->lock);
	for (const struct capacity_request *i = items; i && !wanted; i = i->next)
		wanted = i->is_shown;
	if (wanted && quota_waiting_count(quota_book_state(b)) > 0 && estimates_want(d->estimates, seq))
		estimates_give(d->estimates, quota_book_clone(b), seq, now_ns);
}

/* Whether a request goes on waiting for an estimate of the book as of its first try. */
static bool
waits_for_estimate(struct dry_runs *d, const struct quota_book *b, struct capacity_request *i)
{
	const struct quota_state *s = quota_book_state(b);
	bool first = estimates_of(d->estimates, i->key).kind == QUOTA_START_NOT_YET;

	if (i->estimate_since_ns == 0) {
		i->estimate_since_ns = time_boot_ns();
		i->estimate_seq = quota_log_seq(d->log);
	}
	return !d->draining && quota_knows(s, i->key) && quota_lease_shape(s, i->key) == QUOTA_NONE &&
	       estimates_seq(d->estimates) < i->estimate_seq &&
	       time_boot_ns() - i->estimate_since_ns < (first ? ESTIMATE_WAIT_NS : ESTIMATE_NEWER_NS);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------- */

/* Checks the cached tokens of a group. */
static bool
read_tokens(struct db *db, const struct capacity_request *items, struct decision_tokens *ret, struct err *err)
{
	owned(mem) int64_t *ids = NULL;
	size_t n = 0;

	for (const struct capacity_request *i = items; i; i = i->next)
		n++;
	ids = mem_array(n + 1, sizeof(*ids));
	n = 0;
	for (const struct capacity_request *i = items; i; i = i->next)
		if (i->token_id != 0 && !i->is_shown)
			ids[n++] = i->token_id;
	return n == 0 || store_decision_tokens(db, ids, n, ret, err);
}

/* ---- a group ------------------------------------------------------------------------------------------------------------------- */

/* Whether an item goes on waiting for a policy that the deciding thread has yet to read. Asked for once in a group at most. */
struct policy_look {
	bool asked;
	int64_t version;
};

static bool
waits_for_policy(struct dry_runs *d, const struct quota_book *b, const struct capacity_request *i,
                 struct policy_look *look)
{
	if (quota_book_takes(b, i->body.workspace, i->body.klass) || d->draining ||
	    time_boot_ns() - i->began_ns >= POLICY_WAIT_NS)
		return false;
	if (!look->asked && !store_policy_version(d->db, &look->version, NULL))
		return false;
	look->asked = true;
	if (look->version <= d->policy_version)
		return false;
	if (decider_policy_version(d->app->decider) < look->version) {
		decider_read_policy_soon(d->app->decider);
		return true;
	}
	/* read, but perhaps not yet when this group began to follow the log: the next one is sure to see it */
	d->policy_version = look->version;
	return true;
}

static void
answer_group(struct dry_runs *d, struct capacity_request *items)
{
	in_place(decision_tokens) struct decision_tokens tokens = {0};
	struct policy_look look = {0};
	struct capacity_request *shown = NULL, **shown_end = &shown;
	const struct quota_book *b = NULL;
	int64_t now_ns = 0;
	struct err err = {0};
	bool ok = store_quota_follow(d->db, d->log, NULL, &err) && store_quota_clock(d->db, &now_ns, &err) &&
	          read_tokens(d->db, items, &tokens, &err);

	if (ok) {
		d->last_error[0] = '\0';
		b = quota_log_mine(d->log);
		if (now_ns < quota_book_now(b))
			now_ns = quota_book_now(b);
		estimate(d, b, items, now_ns);
	} else {
		log_once(d, &err);
	}
	d->look_ns = POLICY_LOOK_NS;
	for (struct capacity_request *i = items, *next; i; i = next) {
		struct err why = err;

		next = i->next;
		if (ok && i->is_shown && waits_for_estimate(d, b, i)) {
			i->next = d->waiting;
			d->waiting = i;
			d->look_ns = ESTIMATE_LOOK_NS;
		} else if (ok && i->is_shown) {
			i->next = NULL;
			*shown_end = i;
			shown_end = &i->next;
		} else if (ok && !decision_token_holds(&tokens, i->token_id)) {
			reply_token_refused(d->app, i->rq, i->rp);
			done(d, i);
		} else if (ok && waits_for_policy(d, b, i, &look)) {
			i->next = d->waiting;
			d->waiting = i;
		} else if (!ok || !answer(b, now_ns, quota_log_seq(d->log), i, &why)) {
			refuse(d, i, &why);
		} else {
			done(d, i);
		}
	}
	show_all(d, b, now_ns, shown);
}

/* ---- the thread --------------------------------------------------------------------------------------------------------------- */

/* Requests that wait for a policy or an estimate, and the first ones of the queues. NULL: an estimate was requested, or the thread must stop. */
static struct capacity_request *
take_items(struct dry_runs *d, bool *ret_stop, bool *ret_estimate)
{
	struct capacity_request *items = d->waiting, **end = &items;
	int64_t deadline_ns = items ? time_monotonic_ns() + d->look_ns : INT64_MAX;

	d->waiting = NULL;
	while (*end)
		end = &(*end)->next;
	pthread_mutex_lock(&d->lock);
	while (d->queues.count == 0 && !d->stop && !d->estimate && !(d->draining && items))
		if (!condition_wait_until(&d->wake, &d->lock, deadline_ns))
			break;
	*end = tenant_queues_take(&d->queues, GROUP_MAX, GROUP_MAX, BESIDE_MAX);
	*ret_stop = d->stop && !items;
	*ret_estimate = d->estimate;
	pthread_mutex_unlock(&d->lock);
	return items;
}

/* Rule 4. A tenant that was not in the last group ends the rest. */
static void
rest(struct dry_runs *d, int64_t took_ns)
{
	int64_t rest_ns = took_ns < REST_MIN_NS ? REST_MIN_NS : took_ns > REST_MAX_NS ? REST_MAX_NS : took_ns;
	int64_t deadline_ns = time_monotonic_ns() + rest_ns;
	bool in_time = true;

	pthread_mutex_lock(&d->lock);
	while (!d->draining && !tenant_queues_has_other(&d->queues) && in_time)
		in_time = condition_wait_until(&d->wake, &d->lock, deadline_ns);
	pthread_mutex_unlock(&d->lock);
}

static void *
dry_runs_main(void *arg)
{
	struct dry_runs *d = arg;
	bool stop = false, estimate_asked = false;

	thread_gives_way(NICE);
	while (!stop) {
		struct capacity_request *items = take_items(d, &stop, &estimate_asked);
		int64_t began_ns = time_monotonic_ns();

		done_all(d, capacity_requests_gone(&items));
		if (!items && !estimate_asked)
			continue;
		answer_group(d, items);
		rest(d, time_monotonic_ns() - began_ns);
	}
	return NULL;
}

static void
dry_runs_free(struct dry_runs *d)
{
	ASSERT(!d->open);
	pthread_cond_destroy(&d->wake);
	pthread_mutex_destroy(&d->lock);
	estimates_stop(d->estimates);
	quota_log_free(d->log);
	db_free(d->db);
	mem_free(d);
}

bool
dry_runs_start(struct app *app, struct dry_runs **ret, struct err *err)
{
	struct dry_runs *d;
	struct db *db = NULL;

	if (!app_db_new(app->options, "tollgate-aggregator dry runs", &app->db, &db, err))
		return false;
	d = mem_alloc(sizeof(*d));
	*d = (struct dry_runs){.app = app, .db = db, .log = quota_log_new(app->options->quota_quiet_ns)};
	pthread_mutex_init(&d->lock, NULL);
	condition_init(&d->wake);
	if (!estimates_start(&d->estimates, err)) {
		dry_runs_free(d);
		return false;
	}
	if (!thread_start("of dry runs", dry_runs_main, d, &d->thread, err)) {
		dry_runs_free(d);
		return false;
	}
	*ret = d;
	return true;
}

void
dry_runs_drain(struct dry_runs *d)
{
	pthread_mutex_lock(&d->lock);
	d->draining = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

void
dry_runs_stop(struct dry_runs *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->draining = true;
	d->stop = true;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	dry_runs_free(d);
}

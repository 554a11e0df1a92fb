/* hooks/agent/agent.c - the agent's loop. */
#include "hooks/agent/agent.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"
#include "hooks/agent/quota_client.h"
#include "hooks/agent/slurm.h"

#define CONNECT_TIMEOUT_NS (5 * NS_PER_S)
#define PARTITIONS_NS NS_PER_MIN /* how often sinfo is asked */
#define MARKS_PER_SECOND 20      /* texts for people; what changes a job's state is not limited */

struct agent {
	const struct agent_options *options;
	struct slurm slurm;
	struct gpu_models models;
	struct quota_client *client;
	struct hook_desk *desk;
	struct ticker *ticker;
	struct ticker *turns; /* the same, for its own thread */
	struct partitions partitions;
	int64_t partitions_at_ns; /* 0: not read yet */
	bool book_empty;          /* the last list had no request of this cluster, and none was made since */
	int64_t marks_left;       /* of this turn */
	int64_t down_since_ns;    /* the aggregator; 0: it answers */
	pthread_mutex_t lock;
	struct agent_figures figures;
};

/* One turn's view. */
struct turn {
	struct job_list jobs;
	struct request_list requests;
	struct action_list actions;
};

static void
turn_fini(struct turn *t)
{
	job_list_fini(&t->jobs);
	request_list_fini(&t->requests);
	action_list_fini(&t->actions);
}

/* ---- what is told about ---- */

static void
count(struct agent *a, enum action_kind kind, bool ok)
{
	pthread_mutex_lock(&a->lock);
	if (ok)
		a->figures.done[kind]++;
	else
		a->figures.failed[kind]++;
	pthread_mutex_unlock(&a->lock);
}

/* Logged when it begins, when its text changes and when it is over. */
static void
tell_trouble(struct agent *a, bool *state, char text[256], const char *of, const struct err *err)
{
	bool ok = !err, was_ok;
	bool same;

	pthread_mutex_lock(&a->lock);
	was_ok = *state;
	same = err && strncmp(text, err->text, 255) == 0;
	*state = ok;
	text_fit(text, 256, err ? err->text : "");
	pthread_mutex_unlock(&a->lock);
	if (err && (was_ok || !same))
		log_event(LOG_WARN, "no answer", LS("of", of), LS("error", err->text));
	else if (ok && !was_ok)
		log_event(LOG_INFO, "answers", LS("of", of));
}

static void
tell_slurm(struct agent *a, const struct err *err)
{
	tell_trouble(a, &a->figures.slurm_ok, a->figures.slurm_error, "slurm", err);
}

static void
tell_aggregator(struct agent *a, const struct err *err)
{
	tell_trouble(a, &a->figures.aggregator_ok, a->figures.aggregator_error, "aggregator", err);
}

void
agent_figures(struct agent *a, struct agent_figures *ret)
{
	pthread_mutex_lock(&a->lock);
	*ret = a->figures;
	pthread_mutex_unlock(&a->lock);
}

/* ---- actions ---- */

/* Counts an action, and logs it with its failure. A job that has ended meanwhile is a failure too: the next turn does not see it any more. */
static bool
done(struct agent *a, enum action_kind kind, const char *job, bool ok, const struct err *err)
{
	count(a, kind, ok);
	if (ok)
		log_event(kind == ACTION_MARK || kind == ACTION_ASK ? LOG_DEBUG : LOG_INFO, "done",
		          LS("action", action_names[kind]), LS("job", job));
	else
		log_event(LOG_WARN, "failed", LS("action", action_names[kind]), LS("job", job), LS("error", err->text));
	return ok;
}

static void
write_mark(struct agent *a, const struct job *j, const struct mark *m, const char *text)
{
	struct err err = {0};

	if (a->marks_left <= 0)
		return; /* the next turn finds the same difference */
	a->marks_left--;
	done(a, ACTION_MARK, j->key, slurm_mark(&a->slurm, j, m, text, &err), &err);
}

static void
write_wait(struct agent *a, const struct job *j, const char *category, int64_t attempt, const char *text)
{
	struct mark m = j->mark;

	/* of a job that runs, only the attempt matters */
	if (j->state == JOB_PENDING)
		m.word = MARK_WAIT;
	if (m.word == MARK_WAIT && strcmp(m.category, category) == 0 && m.attempt == attempt)
		return;
	if (j->state == JOB_PENDING) {
		text_fit(m.category, sizeof(m.category), category);
	} else if (m.attempt == attempt) {
		return;
	}
	m.attempt = attempt;
	write_mark(a, j, &m, text);
}

/* The hold is lifted first: killed in between, rule 9 completes the mark. */
static void
start_job(struct agent *a, const struct job *j, const char *category, const char *text)
{
	struct mark m = j->mark;
	struct err err = {0};

	if (!done(a, ACTION_START, j->key, slurm_release(&a->slurm, j, &err), &err))
		return;
	m.word = MARK_RUN;
	text_fit(m.category, sizeof(m.category), category);
	done(a, ACTION_MARK, j->key, slurm_mark(&a->slurm, j, &m, text, &err), &err);
}

static void
handle_nobody(struct agent *a, const struct job *j, const char *text)
{
	if (a->options->unattributed == UNATTRIBUTED_DENY)
		write_wait(a, j, "unattributed", j->mark.attempt, text);
	else if (j->state == JOB_PENDING)
		start_job(a, j, "unattributed", "no workspace has it: it runs without a lease");
}

/* A job that was rejected is judged without writing first: a rejected request stays rejected, and what the policy says now needs a new one. */
static bool
ask_for(struct agent *a, const struct job *j, struct err *err)
{
	bool dry_run = strcmp(j->mark.category, "never") == 0;
	int64_t now_ns = time_monotonic_ns();
	char known[SHAPE_TEXT_SIZE];
	struct answer answer;

	switch (hook_desk_known(a->desk, j, now_ns, known)) {
	case SHAPE_REJECTED: write_wait(a, j, "never", j->mark.attempt, known); return true;
	case SHAPE_NOBODY: handle_nobody(a, j, known); return true;
	case SHAPE_UNKNOWN: break;
	}
	/* The job may have ended when the queue is read next: its lease must be looked for all the same. */
	a->book_empty = false;
	if (!done(a, ACTION_ASK, j->key, quota_client_ask(a->client, j, dry_run, &answer, err), err))
		return false;
	switch (answer.kind) {
	case ANSWER_REJECTED:
		hook_desk_learn(a->desk, j, SHAPE_REJECTED, answer.text, now_ns + a->options->ask_again_ns);
		write_wait(a, j, "never", j->mark.attempt, answer.text);
		break;
	case ANSWER_NOBODY:
		hook_desk_learn(a->desk, j, SHAPE_NOBODY, answer.text, now_ns + a->options->ask_again_ns);
		handle_nobody(a, j, answer.text);
		break;
	case ANSWER_ENDED: write_wait(a, j, "again", j->mark.attempt + 1, "it is asked for again"); break;
	case ANSWER_WAITING:
	case ANSWER_ADMITTED:
		if (dry_run)
			write_wait(a, j, "again", j->mark.attempt + 1, "the policy allows it now");
		else if (answer.kind == ANSWER_WAITING)
			write_wait(a, j, answer.category, j->mark.attempt, answer.text);
		else if (j->state == JOB_PENDING)
			start_job(a, j, "admitted", "its GPUs are given");
		break;
	}
	return true;
}

/* For people, where the aggregator has nothing to say. */
static const char *
own_words(const struct job *j, const struct mark *m)
{
	if (m->user_hold)
		return "its user holds it";
	if (strcmp(m->category, "unfit") == 0)
		return j->fault;
	if (strcmp(m->category, "operator") == 0)
		return "somebody released it by hand; it has no lease";
	if (m->word == MARK_RUN)
		return "its GPUs are given";
	return "it is asked for again";
}

static bool
explain(struct agent *a, const struct job *j, const struct mark *m, const struct request *r, struct err *err)
{
	struct answer answer = {0};

	if (a->marks_left <= 0)
		return true;
	if (m->word == MARK_WAIT && r && r->state == REQUEST_WAITING &&
	    !quota_client_explain(a->client, r, &answer, err))
		return false;
	write_mark(a, j, m, answer.text[0] != '\0' ? answer.text : own_words(j, m));
	return true;
}

static void
tell_job(struct agent *a, const struct job *j, int64_t due_in_ns, const struct mark *m)
{
	char text[160];
	struct err err = {0};

	snprintf(text, sizeof(text),
	         "Tollgate: the owner of these GPUs needs them: this job is requeued in about %" PRId64 " s",
	         (due_in_ns > a->options->kill_wait_ns ? due_in_ns - a->options->kill_wait_ns : 0) / NS_PER_S);
	/* A job without a step of srun has no place for a message. */
	if (!slurm_notify(&a->slurm, j, text, &err))
		log_event(LOG_DEBUG, "not told", LS("job", j->key), LS("error", err.text));
	if (!slurm_signal(&a->slurm, j, &err))
		log_event(LOG_WARN, "no signal", LS("job", j->key), LS("error", err.text));
	done(a, ACTION_TELL, j->key, slurm_mark(&a->slurm, j, m, text, &err), &err);
}

/* False: a call of the aggregator failed. */
static bool
act(struct agent *a, const struct turn *t, const struct action *x, struct err *err)
{
	const struct job *j = x->job == NO_JOB ? NULL : &t->jobs.at[x->job];
	const struct request *r = x->request == NO_REQUEST ? NULL : &t->requests.at[x->request];
	struct err slurm = {0};

	if (x->kind == ACTION_RELEASE)
		return done(a, x->kind, r->of.key, quota_client_release(a->client, r, err), err);
	if (x->kind == ACTION_CANCEL)
		return done(a, x->kind, r->of.key, quota_client_cancel(a->client, r, err), err);
	if (x->kind == ACTION_ACK)
		return done(a, x->kind, r->of.key, quota_client_ack(a->client, r, err), err);
	if (!j)
		return true; /* never: the other actions are about a job */
	switch (x->kind) {
	case ACTION_ASK: return ask_for(a, j, err);
	case ACTION_START: start_job(a, j, "admitted", "its GPUs are given"); return true;
	case ACTION_CONFIRM: return done(a, x->kind, j->key, quota_client_confirm(a->client, r, j, err), err);
	case ACTION_MARK: return explain(a, j, &x->mark, r, err);
	case ACTION_HOLD:
		if (done(a, x->kind, j->key, slurm_hold(&a->slurm, j, &slurm), &slurm))
			done(a, ACTION_MARK, j->key,
			     slurm_mark(&a->slurm, j, &x->mark, "its lease ended before it started", &slurm), &slurm);
		return true;
	case ACTION_TELL: tell_job(a, j, r ? r->due_in_ns : 0, &x->mark); return true;
	case ACTION_REQUEUE: done(a, x->kind, j->key, slurm_requeue_held(&a->slurm, j, &slurm), &slurm); return true;
	case ACTION_RELEASE:
	case ACTION_CANCEL:
	case ACTION_ACK:
	case ACTION_KINDS: break;
	}
	return true;
}

/* ---- turns ---- */

static bool
is_meant(const struct user_hold *h, const struct job *j)
{
	if (h->array_id == 0)
		return j->array_task < 0 && j->id == h->job;
	return j->array_id == h->array_id && (h->array_task < 0 || h->array_task == j->array_task);
}

/* Holds of users that job_submit.lua reported are written into the marks. The end of one begins a new attempt, because the request was cancelled. */
static void
note_user_holds(struct agent *a, struct job_list *jobs)
{
	size_t hold_count = 0;
	owned(mem) struct user_hold *holds = hook_desk_take_holds(a->desk, &hold_count);

	for (size_t i = 0; i < hold_count; i++)
		for (size_t k = 0; k < jobs->count; k++) {
			struct job *j = &jobs->at[k];
			struct err err = {0};

			if (!is_meant(&holds[i], j) || j->mark.word == MARK_NONE || j->mark.user_hold == holds[i].hold)
				continue;
			j->mark.user_hold = holds[i].hold;
			j->mark.attempt += !holds[i].hold;
			text_fit(j->mark.category, sizeof(j->mark.category), "hold");
			done(a, ACTION_MARK, j->key,
			     slurm_mark(&a->slurm, j, &j->mark,
			                holds[i].hold ? "its user holds it" : "its user holds it no longer", &err),
			     &err);
		}
}

static bool
read_slurm(struct agent *a, struct turn *t, struct err *err)
{
	int64_t now_ns = time_monotonic_ns();

	if (a->partitions_at_ns == 0 || now_ns - a->partitions_at_ns > PARTITIONS_NS) {
		struct partitions p = {0}, copy = {0};

		if (!slurm_partitions(&a->slurm, &p, err))
			return false;
		copy.at = mem_array(p.count + 1, sizeof(*p.at));
		copy.count = copy.cap = p.count;
		if (p.count > 0)
			memcpy(copy.at, p.at, p.count * sizeof(*p.at));
		hook_desk_partitions(a->desk, &copy);
		partitions_fini(&a->partitions);
		a->partitions = p;
		a->partitions_at_ns = now_ns;
	}
	return slurm_queue(&a->slurm, &a->partitions, &t->jobs, err);
}

static bool
waits_for_quota(const struct job *j)
{
	return j->state == JOB_PENDING && j->held && !j->mark.user_hold && j->fault[0] == '\0' &&
	       (j->mark.word == MARK_WAIT || j->mark.word == MARK_BACK || j->mark.word == MARK_DRAIN);
}

/* Nothing is known of leases: whatever runs goes on, and what waits is told why, or started by the option. What the policy never admits waits on. */
static void
bear_outage(struct agent *a, const struct job_list *jobs)
{
	const struct agent_options *o = a->options;
	int64_t now_ns = time_monotonic_ns();
	bool start;

	if (a->down_since_ns == 0)
		a->down_since_ns = now_ns;
	start = o->outage == OUTAGE_RUN && now_ns - a->down_since_ns >= o->outage_after_ns;
	for (size_t i = 0; i < jobs->count && !ticker_is_stopping(a->turns); i++) {
		const struct job *j = &jobs->at[i];

		if (!waits_for_quota(j) || strcmp(j->mark.category, "never") == 0)
			continue;
		if (start && !j->waits)
			start_job(a, j, "outage", "the quota service does not answer; it runs without a lease");
		else if (j->mark.word != MARK_DRAIN)
			write_wait(a, j, "outage", j->mark.attempt,
			           "the quota service does not answer; the job waits until it does");
	}
}

static void
note_figures(struct agent *a, const struct turn *t)
{
	struct agent_figures *f = &a->figures;

	pthread_mutex_lock(&a->lock);
	f->jobs = (int64_t)t->jobs.count;
	f->marked = (int64_t)t->jobs.marked;
	f->waiting = f->running = 0;
	for (size_t i = 0; i < t->jobs.count; i++) {
		const struct job *j = &t->jobs.at[i];

		if (j->mark.word == MARK_NONE)
			continue;
		f->waiting += j->state == JOB_PENDING && j->held;
		f->running += j->state == JOB_RUNNING;
	}
	f->requests = f->leases = 0;
	for (size_t i = 0; i < t->requests.count; i++) {
		f->requests += t->requests.at[i].state == REQUEST_WAITING;
		f->leases += t->requests.at[i].state != REQUEST_WAITING;
	}
	f->unleased = (int64_t)t->actions.unleased_jobs;
	pthread_mutex_unlock(&a->lock);
}

static bool
do_all(struct agent *a, struct turn *t, struct err *err)
{
	const struct agent_options *o = a->options;
	struct job_actions_options r = {.cluster = o->cluster,
	                                .kill_wait_ns = o->kill_wait_ns + o->poll_interval_ns,
	                                .window = o->window};

	if (t->jobs.marked == 0 && a->book_empty)
		return true;
	if (!quota_client_list(a->client, &t->requests, err))
		return false;
	a->book_empty = t->requests.count == 0;
	job_actions_find(&t->jobs, &t->requests, &r, &t->actions);
	for (size_t i = 0; i < t->actions.count && !ticker_is_stopping(a->turns); i++)
		if (!act(a, t, &t->actions.at[i], err) && (err->kind == ERR_RETRY || err->kind == ERR_DENIED))
			return false;
	return true;
}

static void
take_turn(struct agent *a)
{
	in_place(turn) struct turn t = {0};
	int64_t began_ns = time_monotonic_ns();
	struct err err = {0};
	bool ok;

	a->marks_left = MARKS_PER_SECOND * a->options->poll_interval_ns / NS_PER_S + 1;
	ok = read_slurm(a, &t, &err);
	tell_slurm(a, ok ? NULL : &err);
	if (ok) {
		note_user_holds(a, &t.jobs);
		ok = do_all(a, &t, &err);
		tell_aggregator(a, ok ? NULL : &err);
		if (ok)
			a->down_since_ns = 0;
		else
			bear_outage(a, &t.jobs);
		note_figures(a, &t);
	}
	pthread_mutex_lock(&a->lock);
	a->figures.turns++;
	a->figures.turn_ns = time_monotonic_ns() - began_ns;
	a->figures.last_turn_boot_ns = time_boot_ns();
	pthread_mutex_unlock(&a->lock);
}

static void
run(struct ticker *ticker, void *arg)
{
	struct agent *a = arg;

	a->turns = ticker;
	do
		take_turn(a);
	while (ticker_wait(ticker, a->options->poll_interval_ns));
}

bool
agent_start(const struct agent_options *o, struct hook_desk *desk, struct agent **ret, struct err *err)
{
	struct agent *a = mem_alloc(sizeof(*a));
	struct httpc_options http = {.base_url = o->aggregator_url,
	                             .token_file = o->token_file,
	                             .ca_file = o->ca_file,
	                             .client_cert = o->client_cert,
	                             .client_key = o->client_key,
	                             .user_agent = "tollgate-agent/" TOLLGATE_VERSION,
	                             .connect_timeout_ns = CONNECT_TIMEOUT_NS,
	                             .timeout_ns = o->timeout_ns};

	a->options = o;
	a->desk = desk;
	a->slurm = (struct slurm){.bin = o->slurm_bin, .timeout_ns = o->slurm_timeout_ns};
	a->figures.slurm_ok = a->figures.aggregator_ok = true;
	pthread_mutex_init(&a->lock, NULL);
	if (!gpu_models_parse(o->gpu_models ? o->gpu_models : "", &a->models, err) ||
	    !quota_client_new(&http, o->cluster, o->quota_cluster, &a->models, &a->client, err) ||
	    !ticker_start("that reads Slurm's queue", run, a, &a->ticker, err)) {
		agent_stop(a);
		return false;
	}
	*ret = a;
	return true;
}

void
agent_stop(struct agent *a)
{
	if (!a)
		return;
	if (a->client)
		quota_client_abort(a->client);
	ticker_stop(a->ticker);
	quota_client_free(a->client);
	gpu_models_fini(&a->models);
	partitions_fini(&a->partitions);
	pthread_mutex_destroy(&a->lock);
	mem_free(a);
}

/* hooks/agent/job_actions.c - what must be done about jobs and leases. The rules are numbered in job_actions.h. */
#include "hooks/agent/job_actions.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

const char *const action_names[ACTION_KINDS] = {"ask",  "start", "confirm", "release", "cancel",
                                                "mark", "hold",  "ack",     "tell",    "requeue"};

struct work {
	const struct job_list *jobs;
	const struct request_list *requests;
	const struct job_actions_options *o;
	struct action_list *out;
	struct hash by_key; /* of requests, by the job's key */
	struct hash groups; /* by account, user and shape: into counts */
	int64_t *counts;
	size_t group_count, group_cap;
	size_t *asks; /* jobs that rule 7 would ask for */
	size_t ask_count, ask_cap;
};

void
request_list_fini(struct request_list *l)
{
	mem_free(l->at);
}

void
action_list_fini(struct action_list *l)
{
	mem_free(l->at);
}

static struct action *
add(struct work *w, enum action_kind kind, size_t job, size_t request)
{
	struct action *a;

	array_room(w->out->at, w->out->count, w->out->cap);
	a = &w->out->at[w->out->count++];
	*a = (struct action){.kind = kind, .job = job, .request = request};
	if (job != NO_JOB)
		a->mark = w->jobs->at[job].mark;
	return a;
}

static void
add_mark(struct work *w, enum action_kind kind, size_t job, size_t request, enum mark_word word, const char *category)
{
	struct action *a = add(w, kind, job, request);

	a->mark.word = word;
	text_fit(a->mark.category, sizeof(a->mark.category), category);
}

/* ---- windows: rule 7 ---- */

static uint64_t
group_key(const struct job *j)
{
	uint64_t key = hash_text(hash_text(hash_text(HASH_START, j->account), j->user), j->ask.type);

	key = hash_number(hash_number(key, (uint64_t)j->ask.gpus), (uint64_t)j->ask.per_node);
	return hash_number(key, job_is_preemptible(j));
}

static int64_t *
group_of(struct work *w, const struct job *j)
{
	uint64_t key = group_key(j);
	size_t at = hash_get(&w->groups, key);

	if (at == HASH_NONE) {
		array_room(w->counts, w->group_count, w->group_cap);
		at = w->group_count++;
		w->counts[at] = 0;
		hash_put(&w->groups, key, at);
	}
	return &w->counts[at];
}

static int
order_of_asks(const void *a, const void *b, void *arg)
{
	const struct job_list *jobs = arg;
	const struct job *x = &jobs->at[*(const size_t *)a], *y = &jobs->at[*(const size_t *)b];

	if (x->nice != y->nice)
		return ORDER(x->nice, y->nice);
	if (x->submit_s != y->submit_s)
		return ORDER(x->submit_s, y->submit_s);
	if (x->array_id != y->array_id)
		return ORDER(x->array_id, y->array_id);
	return ORDER(x->array_task, y->array_task);
}

static void
add_asks(struct work *w)
{
	struct job_list jobs = *w->jobs;

	if (w->ask_count > 1)
		qsort_r(w->asks, w->ask_count, sizeof(*w->asks), order_of_asks, &jobs);
	for (size_t i = 0; i < w->ask_count; i++) {
		int64_t *waiting = group_of(w, &w->jobs->at[w->asks[i]]);

		if (*waiting < w->o->window) {
			++*waiting;
			add(w, ACTION_ASK, w->asks[i], NO_REQUEST);
		}
	}
}

/* ---- jobs ---- */

/* The requests of a job, sorted into its own and old ones. */
struct found {
	size_t own;     /* NO_REQUEST: none */
	bool old_lease; /* one has not ended */
	size_t old[8];  /* those that must be ended; more are ended in later calls */
	size_t old_count;
};

static struct found
find_requests(struct work *w, const struct job *j)
{
	uint64_t key = hash_text(HASH_START, j->key);
	struct found f = {.own = NO_REQUEST};
	char id[REQUEST_ID_SIZE];
	size_t slot;

	job_request_id(j, w->o->cluster, id);
	for (size_t at = hash_first(&w->by_key, key, &slot); at != HASH_NONE; at = hash_next(&w->by_key, key, &slot)) {
		const struct request *r = &w->requests->at[at];
		bool own;

		if (strcmp(r->of.key, j->key) != 0)
			continue;
		own = r->of.restarts == j->restarts && r->of.attempt == j->mark.attempt &&
		      (j->state != JOB_PENDING || strcmp(r->id, id) == 0);
		if (own && f.own == NO_REQUEST) {
			f.own = at;
			continue;
		}
		f.old_lease = f.old_lease || r->state != REQUEST_WAITING;
		if (f.old_count < ARRAY_LEN(f.old))
			f.old[f.old_count++] = at;
	}
	return f;
}

static void
end_request(struct work *w, size_t request)
{
	const struct request *r = &w->requests->at[request];

	if (r->state == REQUEST_WAITING)
		add(w, ACTION_CANCEL, NO_JOB, request);
	else if (!r->released)
		add(w, ACTION_RELEASE, NO_JOB, request);
}

static void
drain_job(struct work *w, size_t job, size_t request)
{
	const struct job *j = &w->jobs->at[job];
	const struct request *r = &w->requests->at[request];

	if (!r->order_acked)
		add(w, ACTION_ACK, NO_JOB, request);
	if (j->mark.word != MARK_DRAIN)
		add_mark(w, ACTION_TELL, job, request, MARK_DRAIN, "reclaim");
	if (r->due_in_ns <= w->o->kill_wait_ns)
		add(w, ACTION_REQUEUE, job, request);
}

/* Rules 1 and 2. */
static void
judge_running(struct work *w, size_t job, const struct found *f)
{
	const struct job *j = &w->jobs->at[job];
	const struct request *r = f->own == NO_REQUEST ? NULL : &w->requests->at[f->own];

	for (size_t i = 0; i < f->old_count; i++)
		end_request(w, f->old[i]);
	if (j->state != JOB_RUNNING)
		return;
	w->out->unleased_jobs += !r || r->state == REQUEST_WAITING;
	if (!r) {
		if (!f->old_lease && j->fault[0] == '\0')
			w->asks[w->ask_count++] = job;
		return;
	}
	if (r->state == REQUEST_WAITING || r->released)
		return;
	if (r->state == REQUEST_ADMITTED)
		add(w, ACTION_CONFIRM, job, f->own);
	if (r->order != 0)
		drain_job(w, job, f->own);
	else if (j->mark.word != MARK_RUN)
		add_mark(w, ACTION_MARK, job, f->own, MARK_RUN, "admitted");
}

/* Rules 4 to 7. */
static void
judge_held(struct work *w, size_t job, const struct found *f)
{
	const struct job *j = &w->jobs->at[job];
	const struct request *r = f->own == NO_REQUEST ? NULL : &w->requests->at[f->own];
	struct action *a;

	if (j->mark.word == MARK_RUN) { /* 4 */
		add_mark(w, ACTION_MARK, job, NO_REQUEST, MARK_WAIT, "hold");
		a = &w->out->at[w->out->count - 1];
		a->mark.user_hold = true;
		a->mark.attempt++;
		return;
	}
	if (j->mark.user_hold) {
		if (r)
			end_request(w, f->own);
		return;
	}
	if (r && r->state != REQUEST_WAITING && r->order != 0) { /* 10 */
		add_mark(w, ACTION_MARK, job, NO_REQUEST, MARK_BACK, "again");
		w->out->at[w->out->count - 1].mark.attempt++;
	} else if (r && r->state != REQUEST_WAITING && !r->released) /* 5 */
		add_mark(w, ACTION_START, job, f->own, MARK_RUN, "admitted");
	else if (r && r->state == REQUEST_WAITING && strcmp(r->category, j->mark.category) != 0) /* 6 */
		add_mark(w, ACTION_MARK, job, f->own, MARK_WAIT, r->category);
	else if (!r && j->fault[0] != '\0' && strcmp(j->mark.category, "unfit") != 0) /* 7 */
		add_mark(w, ACTION_MARK, job, NO_REQUEST, MARK_WAIT, "unfit");
	else if (!r && !f->old_lease && !j->waits && j->fault[0] == '\0')
		w->asks[w->ask_count++] = job;
	if (r && r->state == REQUEST_WAITING)
		++*group_of(w, j);
}

static bool
runs_without_lease(const struct mark *m)
{
	return strcmp(m->category, "unattributed") == 0 || strcmp(m->category, "operator") == 0 ||
	       strcmp(m->category, "outage") == 0;
}

/* Rules 8 to 10. */
static void
judge_free(struct work *w, size_t job, const struct found *f)
{
	const struct job *j = &w->jobs->at[job];
	const struct request *r = f->own == NO_REQUEST ? NULL : &w->requests->at[f->own];
	bool leased = r && r->state != REQUEST_WAITING && !r->released;

	if (j->mark.word == MARK_RUN) {
		if ((!leased && !runs_without_lease(&j->mark)) || (leased && r->order != 0)) {
			add_mark(w, ACTION_HOLD, job, NO_REQUEST, MARK_BACK, "again");
			w->out->at[w->out->count - 1].mark.attempt++;
		}
		return;
	}
	add_mark(w, ACTION_MARK, job, f->own, MARK_RUN, leased ? "admitted" : "operator");
}

static void
judge_job(struct work *w, size_t job)
{
	const struct job *j = &w->jobs->at[job];
	struct found f = find_requests(w, j);

	if (j->state != JOB_PENDING) {
		judge_running(w, job, &f);
		return;
	}
	for (size_t i = 0; i < f.old_count; i++) /* 3 */
		end_request(w, f.old[i]);
	if (j->held)
		judge_held(w, job, &f);
	else
		judge_free(w, job, &f);
}

static bool
is_known(const struct hash *known, const struct job_list *jobs, const char *job_key)
{
	uint64_t key = hash_text(HASH_START, job_key);
	size_t slot;

	for (size_t at = hash_first(known, key, &slot); at != HASH_NONE; at = hash_next(known, key, &slot))
		if (strcmp(jobs->at[at].key, job_key) == 0)
			return true;
	return false;
}

void
job_actions_find(const struct job_list *jobs, const struct request_list *requests, const struct job_actions_options *o,
                 struct action_list *ret)
{
	struct work w = {.jobs = jobs, .requests = requests, .o = o, .out = ret};
	in_place(hash) struct hash known = {0}; /* jobs, by key */

	w.asks = mem_array(jobs->count + 1, sizeof(*w.asks));
	for (size_t i = 0; i < requests->count; i++)
		hash_add(&w.by_key, hash_text(HASH_START, requests->at[i].of.key), i);
	for (size_t i = 0; i < jobs->count; i++) {
		hash_add(&known, hash_text(HASH_START, jobs->at[i].key), i);
		if (jobs->at[i].mark.word != MARK_NONE)
			judge_job(&w, i);
	}
	for (size_t i = 0; i < requests->count; i++)
		if (!is_known(&known, jobs, requests->at[i].of.key))
			end_request(&w, i);
	add_asks(&w);
	mem_free(w.asks);
	mem_free(w.counts);
	hash_fini(&w.by_key);
	hash_fini(&w.groups);
}

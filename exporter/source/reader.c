/* exporter/source/reader.c - the worker threads that call the source, and the caller's deadline. The rules are in reader.h. */
#include "exporter/source/reader.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/thread.h"
#include "common/base/time.h"

#define LEAST_WAIT_NS (2 * NS_PER_MS) /* with less time left no new worker is started */
#define CLOSE_PATIENCE_NS (2 * NS_PER_S)

/* A source with a reference for the reader and for every worker at work. */
struct shared_source {
	struct gpu_source *source;
	size_t references;
};

enum stage { STAGE_IDLE, STAGE_OPEN, STAGE_LIST, STAGE_READ, STAGE_CLOSE };

/* One thread. It is the reader's current worker until another one replaces it (rule 2); then it ends when its call returns. */
struct worker {
	struct reader *reader;
	struct worker *next;
	struct shared_source *source; /* while at work */
	struct gpu_snapshot *into;    /* its own, because a call may return after the round is over */
	enum stage stage;
	uint64_t round; /* of the reading that it works for */
	int64_t call_began_ns;
	char uuid[GPU_TEXT]; /* of the GPU being read */
	bool ends;           /* when its call has returned */
};

enum place { PLACE_SKIPPED, PLACE_PENDING, PLACE_TAKEN, PLACE_DONE };

struct reader {
	struct reader_options options;
	pthread_mutex_t lock;      /* of all that follows */
	pthread_cond_t work, done; /* for the worker; for the caller */
	size_t references;         /* the caller, and every thread */
	bool ending;
	struct worker *workers;       /* all */
	struct worker *worker;        /* takes the next job; NULL: none */
	bool job;                     /* a reading is requested */
	struct shared_source *source; /* NULL: closed */
	unsigned openings;            /* that succeeded */
	struct reader_facts facts;
	bool first_returned; /* the first opening */
	struct err trouble;  /* why it is closed */
	int64_t retry_boot_ns;
	/* the current reading, or the last one */
	uint64_t round; /* odd: in progress */
	int64_t boot_ns;
	bool listed, lost;
	struct err failure; /* of listing or opening, in this round */
	enum place places[GPU_MAX];
	size_t undone;
	struct gpu_snapshot *snapshot;
	struct gpu_xids *xids;
	int64_t silent_since_ns[GPU_MAX], library_since_ns; /* boot time; -1: it answers */
};

static void
unref(struct reader *r)
{
	bool last = --r->references == 0;

	pthread_mutex_unlock(&r->lock);
	if (!last)
		return;
	gpu_snapshot_free(r->snapshot);
	gpu_xids_free(r->xids);
	pthread_cond_destroy(&r->work);
	pthread_cond_destroy(&r->done);
	pthread_mutex_destroy(&r->lock);
	mem_free(r);
}

/* ---- the worker; the lock is held except during calls ---- */

static void
begin_call(struct worker *w, enum stage stage)
{
	w->stage = stage;
	w->call_began_ns = time_monotonic_ns();
	pthread_mutex_unlock(&w->reader->lock);
}

static void
end_call(struct worker *w)
{
	pthread_mutex_lock(&w->reader->lock);
	w->stage = STAGE_IDLE;
}

/* Rule 6. */
static void
release(struct worker *w, struct shared_source *h)
{
	if (!h || --h->references > 0)
		return;
	begin_call(w, STAGE_CLOSE);
	gpu_source_free(h->source);
	end_call(w);
	mem_free(h);
}

static void
note_facts(struct reader_facts *f, const struct gpu_source *s)
{
	f->opened = true;
	f->simulated = s->ops->simulated(s);
	snprintf(f->name, sizeof(f->name), "%s", s->ops->name);
	snprintf(f->driver, sizeof(f->driver), "%s", s->ops->driver_version(s));
	snprintf(f->library, sizeof(f->library), "%s", s->ops->library_version(s));
}

static void
open_source(struct worker *w)
{
	struct reader *r = w->reader;
	struct gpu_source *source = NULL;
	struct err err = {0};
	bool ok;

	begin_call(w, STAGE_OPEN);
	ok = r->options.open(r->options.arg, &source, &err);
	end_call(w);
	/* records are flagged once per stream: a change between a real library and a simulator is refused */
	if (ok && r->facts.opened && source->ops->simulated(source) != r->facts.simulated) {
		begin_call(w, STAGE_CLOSE);
		gpu_source_free(take(source));
		end_call(w);
		ok = err_set(&err, ERR_FATAL, "the GPU library changed between a real one and a simulator");
	}
	if (ok) {
		note_facts(&r->facts, source);
		r->openings++;
		r->source = mem_alloc(sizeof(*r->source));
		*r->source = (struct shared_source){.source = source, .references = 1};
	} else {
		r->trouble = err;
		r->retry_boot_ns = r->boot_ns + READER_PAUSE_NS;
	}
}

/* The library has failed: it is opened again after a pause. */
static void
drop_source(struct worker *w, const struct err *why)
{
	struct reader *r = w->reader;

	if (r->source != w->source)
		return; /* another worker has dropped it already */
	r->trouble = *why;
	r->retry_boot_ns = r->boot_ns + READER_PAUSE_NS;
	r->source = NULL;
	w->source->references--;
}

static bool
is_current(const struct worker *w)
{
	return w->round == w->reader->round;
}

static void
finish_place(struct reader *r, size_t place)
{
	r->places[place] = PLACE_DONE;
	if (--r->undone == 0)
		pthread_cond_signal(&r->done);
}

/* Swaps the lists, so that both sides reuse their memory. */
static void
move_reading(struct gpu_reading *to, struct gpu_reading *from)
{
	struct gpu_reading old = {.processes = to->processes,
	                          .process_cap = to->process_cap,
	                          .exits = to->exits,
	                          .exit_cap = to->exit_cap};

	memcpy(to, from, sizeof(*to));
	from->processes = old.processes;
	from->process_cap = old.process_cap;
	from->process_count = 0;
	from->exits = old.exits;
	from->exit_cap = old.exit_cap;
	from->exit_count = 0;
}

/* Identity, and the XIDs that the list reported: they may be the reason why the GPU does not answer. */
static void
copy_identity(struct gpu_reading *to, const struct gpu_reading *from)
{
	gpu_reading_clear(to);
	memcpy(to->uuid, from->uuid, sizeof(to->uuid));
	memcpy(to->model, from->model, sizeof(to->model));
	memcpy(to->pci, from->pci, sizeof(to->pci));
	to->index = from->index;
	memcpy(to->xids, from->xids, sizeof(to->xids));
	to->xid_count = from->xid_count;
}

static void
make_silent(struct gpu_reading *g)
{
	gpu_reading_down(g, GPU_FAULT_NONE, "%s", "");
	g->down = false;
	g->silent = true;
}

/* Rule 4. */
static bool
has_call(const struct reader *r, const char *uuid)
{
	for (const struct worker *w = r->workers; w; w = w->next)
		if (w->stage == STAGE_READ && strcmp(w->uuid, uuid) == 0)
			return true;
	return false;
}

/* Every GPU is silent until it has been read. */
static void
take_list(struct worker *w)
{
	struct reader *r = w->reader;

	gpu_snapshot_resize(r->snapshot, w->into->count);
	r->snapshot->boot_ns = r->boot_ns;
	r->snapshot->listed = w->into->listed;
	r->snapshot->unnamed = w->into->unnamed;
	memcpy(r->snapshot->unnamed_reason, w->into->unnamed_reason, sizeof(r->snapshot->unnamed_reason));
	r->undone = 0;
	r->listed = true;
	for (size_t i = 0; i < w->into->count; i++) {
		struct gpu_reading *g = &w->into->gpus[i];

		copy_identity(&r->snapshot->gpus[i], g);
		make_silent(&r->snapshot->gpus[i]);
		r->places[i] = PLACE_SKIPPED;
		if (has_call(r, g->uuid))
			continue;
		if (g->down) {
			move_reading(&r->snapshot->gpus[i], g);
			continue;
		}
		r->places[i] = PLACE_PENDING;
		r->undone++;
	}
	if (r->undone == 0)
		pthread_cond_signal(&r->done);
}

static void
list_gpus(struct worker *w)
{
	struct reader *r = w->reader;
	struct err err = {0};
	int64_t boot_ns = r->boot_ns;
	bool ok;

	begin_call(w, STAGE_LIST);
	ok = w->source->source->ops->list(w->source->source, boot_ns, w->into, &err);
	end_call(w);
	if (!ok) {
		drop_source(w, &err);
		return;
	}
	if (is_current(w))
		take_list(w);
}

static size_t
next_pending(const struct reader *r)
{
	size_t i = 0;

	while (i < r->snapshot->count && r->places[i] != PLACE_PENDING)
		i++;
	return i;
}

static void
read_place(struct worker *w, size_t place)
{
	struct reader *r = w->reader;
	struct gpu_reading *g = &w->into->gpus[place];
	struct err lost;

	r->places[place] = PLACE_TAKEN;
	memcpy(w->uuid, g->uuid, sizeof(w->uuid));
	begin_call(w, STAGE_READ);
	w->source->source->ops->read(w->source->source, place, g);
	end_call(w);
	if (g->library_lost) {
		(void)err_set(&lost, ERR_RETRY, "the GPU library failed while %s was read: %s", g->uuid,
		              g->down_reason[0] ? g->down_reason : "no reason given");
		drop_source(w, &lost);
	}
	if (!is_current(w))
		return;
	r->lost |= g->library_lost;
	if (!g->library_lost)
		move_reading(&r->snapshot->gpus[place], g);
	finish_place(r, place);
}

/* A worker that replaces another one starts from the list that was made. */
static void
prepare(struct worker *w)
{
	const struct gpu_snapshot *s = w->reader->snapshot;

	gpu_snapshot_resize(w->into, s->count);
	for (size_t i = 0; i < s->count; i++)
		copy_identity(&w->into->gpus[i], &s->gpus[i]);
}

static void
work(struct worker *w)
{
	struct reader *r = w->reader;
	size_t place;

	w->round = r->round;
	if (!r->source) {
		open_source(w);
		if (!r->first_returned && r->options.opened)
			r->options.opened(r->options.arg);
		r->first_returned = true;
	}
	if (r->source && is_current(w) && r->round % 2 == 1) {
		w->source = r->source;
		w->source->references++;
		if (!r->listed)
			list_gpus(w);
		else
			prepare(w);
		while (is_current(w) && r->listed && !w->ends && !r->lost && (place = next_pending(r)) < w->into->count)
			read_place(w, place);
	}
	release(w, take(w->source));
	pthread_cond_signal(&r->done);
}

static void *
worker_main(void *arg)
{
	struct worker *w = arg;
	struct reader *r = w->reader;
	struct worker **at = &r->workers;

	pthread_mutex_lock(&r->lock);
	for (;;) {
		while (!w->ends && !r->ending && !r->job)
			pthread_cond_wait(&r->work, &r->lock);
		if (w->ends || r->ending)
			break;
		r->job = false;
		work(w);
	}
	if (r->worker == w)
		r->worker = NULL;
	if (r->ending && r->source)
		release(w, take(r->source));
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	pthread_cond_signal(&r->done);
	gpu_snapshot_free(w->into);
	mem_free(w);
	unref(r);
	return NULL;
}

/* ---- the caller ---- */

static bool
start_worker(struct reader *r, struct err *err)
{
	struct worker *w = mem_alloc(sizeof(*w));
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	w->reader = r;
	w->into = gpu_snapshot_new();
	w->next = r->workers;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, worker_main, w);
	pthread_attr_destroy(&attr);
	if (rc != 0) {
		gpu_snapshot_free(w->into);
		mem_free(w);
		return err_errno(err, ERR_RETRY, rc, "cannot start a thread to read the GPUs");
	}
	r->workers = r->worker = w;
	r->references++;
	return true;
}

bool
reader_new(const struct reader_options *o, struct reader **ret, struct err *err)
{
	struct reader *r = mem_alloc(sizeof(*r));
	bool ok;

	r->options = *o;
	r->references = 1;
	r->library_since_ns = -1;
	r->snapshot = gpu_snapshot_new();
	r->xids = gpu_xids_new();
	for (size_t i = 0; i < GPU_MAX; i++)
		r->silent_since_ns[i] = -1;
	pthread_mutex_init(&r->lock, NULL);
	condition_init(&r->work);
	condition_init(&r->done);
	pthread_mutex_lock(&r->lock);
	r->job = true;
	ok = start_worker(r, err);
	if (!ok) {
		unref(r);
		return false;
	}
	pthread_mutex_unlock(&r->lock);
	*ret = r;
	return true;
}

static size_t
calls_in_progress(const struct reader *r)
{
	size_t n = 0;

	for (const struct worker *w = r->workers; w; w = w->next)
		n += w->stage != STAGE_IDLE;
	return n;
}

bool
reader_close(struct reader *r)
{
	int64_t deadline_ns;
	bool closed;

	if (!r)
		return true;
	deadline_ns = time_monotonic_ns() + CLOSE_PATIENCE_NS;
	pthread_mutex_lock(&r->lock);
	r->ending = true;
	pthread_cond_broadcast(&r->work);
	/* without a call in progress the source is closed, and its library unloaded, when this returns */
	if (calls_in_progress(r) == 0)
		while (r->workers && condition_wait_until(&r->done, &r->lock, deadline_ns))
			;
	closed = !r->workers;
	unref(r);
	return closed;
}

void
reader_free(struct reader *r)
{
	(void)reader_close(r);
}

void
reader_facts(struct reader *r, struct reader_facts *ret)
{
	pthread_mutex_lock(&r->lock);
	*ret = r->facts;
	pthread_mutex_unlock(&r->lock);
}

bool
reader_wait_open(struct reader *r, int64_t patience_ns, bool *ret_answered, struct err *err)
{
	int64_t deadline_ns = time_monotonic_ns() + patience_ns;
	bool ok;

	pthread_mutex_lock(&r->lock);
	while (!r->first_returned && condition_wait_until(&r->done, &r->lock, deadline_ns))
		;
	*ret_answered = r->first_returned;
	ok = !r->first_returned || r->source;
	if (!ok && err)
		*err = r->trouble;
	pthread_mutex_unlock(&r->lock);
	return ok;
}

/* Rule 2: when to check whether a new worker is needed. A worker that is not reading a GPU now may be by then. */
static int64_t
check_at(const struct reader *r, int64_t deadline_ns)
{
	const struct worker *w = r->worker;
	int64_t from_ns = w && w->stage == STAGE_READ ? w->call_began_ns : time_monotonic_ns();

	if (!w || (r->listed && next_pending(r) >= r->snapshot->count) || deadline_ns - from_ns < 2 * LEAST_WAIT_NS)
		return deadline_ns;
	return from_ns + (deadline_ns - from_ns) / 2;
}

/* After a failure of the library, its closing is part of the round: it is usually quick, and the next round then has a worker. */
static bool
round_is_over(const struct reader *r)
{
	if (r->listed && !r->lost)
		return r->undone == 0;
	return !r->job && (!r->worker || r->worker->stage == STAGE_IDLE);
}

static void
await_round(struct reader *r, int64_t patience_ns)
{
	int64_t deadline_ns = time_monotonic_ns() + patience_ns;

	while (!round_is_over(r)) {
		int64_t until_ns = check_at(r, deadline_ns);

		if (condition_wait_until(&r->done, &r->lock, until_ns))
			continue;
		if (until_ns == deadline_ns)
			break;
		if (round_is_over(r) || r->worker->stage != STAGE_READ ||
		    time_monotonic_ns() < check_at(r, deadline_ns))
			continue; /* it is in another call now */
		r->worker->ends = true;
		r->worker = NULL;
		r->job = true;
		if (!start_worker(r, NULL)) {
			r->job = false;
			break;
		}
	}
}

/* A worker that is still reading stays with its GPU; one in a call for all GPUs stays the current worker (rule 5). */
static void
end_round(struct reader *r)
{
	r->round++;
	r->job = false;
	if (r->worker && r->worker->stage == STAGE_READ) {
		r->worker->ends = true;
		r->worker = NULL;
	}
}

/* Only the first worker, which opens, can be idle here. */
static const char *
stage_text(enum stage stage)
{
	switch (stage) {
	case STAGE_IDLE:
	case STAGE_OPEN: return "opening its library";
	case STAGE_LIST: return "listing its GPUs";
	case STAGE_CLOSE: return "closing its library";
	case STAGE_READ: break;
	}
	return "a call";
}

/* Returns false, the result of its callers. */
static bool
all_silent(struct reader *r)
{
	for (size_t i = 0; i < r->snapshot->count; i++)
		make_silent(&r->snapshot->gpus[i]);
	return false;
}

static bool
run_round(struct reader *r, int64_t patience_ns, struct err *err)
{
	if (r->worker && (r->worker->stage != STAGE_IDLE || r->job)) {
		(void)all_silent(r);
		return err_set(err, ERR_RETRY, "the GPU driver does not return from %s", stage_text(r->worker->stage));
	}
	if (!r->source && r->boot_ns < r->retry_boot_ns) {
		*err = r->trouble;
		return all_silent(r);
	}
	if (!r->worker && !start_worker(r, err))
		return all_silent(r);
	r->round++;
	r->listed = r->lost = false;
	r->job = true;
	pthread_cond_signal(&r->work);
	await_round(r, patience_ns);
	end_round(r);
	if (r->listed)
		gpu_xids_accumulate(r->xids, r->openings, r->snapshot);
	if (r->listed && !r->lost)
		return true;
	if (r->worker && r->worker->stage != STAGE_IDLE && r->worker->stage != STAGE_CLOSE)
		(void)err_set(err, ERR_RETRY, "the GPU driver does not return from %s", stage_text(r->worker->stage));
	else
		*err = r->trouble;
	return all_silent(r);
}

bool
reader_read(struct reader *r, int64_t boot_ns, int64_t patience_ns, const struct gpu_snapshot **ret, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&r->lock);
	r->boot_ns = boot_ns;
	ok = run_round(r, patience_ns, err);
	r->snapshot->boot_ns = boot_ns;
	if (ok)
		r->library_since_ns = -1;
	else if (r->library_since_ns < 0)
		r->library_since_ns = boot_ns;
	for (size_t i = 0; i < r->snapshot->count; i++) {
		if (!r->snapshot->gpus[i].silent)
			r->silent_since_ns[i] = -1;
		else if (r->silent_since_ns[i] < 0)
			r->silent_since_ns[i] = boot_ns;
	}
	*ret = r->snapshot;
	pthread_mutex_unlock(&r->lock);
	return ok;
}

void
reader_status(struct reader *r, int64_t boot_ns, struct reader_status *ret)
{
	int64_t first_ns;

	*ret = (struct reader_status){0};
	pthread_mutex_lock(&r->lock);
	first_ns = r->library_since_ns;
	for (size_t i = 0; i < r->snapshot->count; i++) {
		int64_t since_ns = r->silent_since_ns[i];

		ret->silent += since_ns >= 0;
		if (since_ns >= 0 && (first_ns < 0 || since_ns < first_ns))
			first_ns = since_ns;
	}
	ret->hanging = calls_in_progress(r);
	ret->silent_ns = first_ns >= 0 ? boot_ns - first_ns : 0;
	pthread_mutex_unlock(&r->lock);
}

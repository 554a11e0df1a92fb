/* common/http/httpd_pool.c - worker threads, and the jobs that wait for them in fair shares. */
#include "common/http/httpd_pool.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/base/text.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define BUCKETS 1024u
#define REST_MAX_NS (10 * NS_PER_S)

/* The waiting jobs of one member, plain and heavy, each in order of arrival. Freed with its last job. */
struct httpd_member {
	struct httpd_member *next, *before; /* the members of the group, in a ring */
	struct group *group;
	struct {
		struct httpd_job *first, *last;
	} jobs[2]; /* by httpd_job.heavy */
	char name[HTTPD_MEMBER_SIZE];
};

/* Freed when no job of it waits or runs and it does not rest. */
struct group {
	struct group *next, *before; /* ring of the groups with waiting jobs */
	struct group *chain;         /* next group of the hash bucket */
	struct httpd_member *turn;   /* the member whose turn is next; NULL: nothing waits */
	int waiting, heavy_waiting, running, heavy_running;
	int heavy_max;
	int64_t rest_until_ns;      /* no heavy job of the group starts before; 0: it does not rest */
	struct group *next_resting; /* in the pool's list */
	char name[HTTPD_GROUP_SIZE];
};

/* The group that the running job counts for. It is on the worker's stack, because the job may be freed before run() returns. */
struct httpd_place {
	struct group *group;
	bool heavy;
	int64_t began_ns;
};

struct httpd_pool {
	struct httpd_pool_options options;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* a job came or may run now, or the pool is closing */
	struct group *buckets[BUCKETS];
	struct group *turn; /* NULL: nothing waits */
	struct group *resting;
	int waiting, running, heavy_running;
	int idle; /* workers that sleep, some of which may have been woken */
	uint64_t pushed, wakes;
	bool closing;
	pthread_t *threads;
	int started;
};

/* ---- groups and members, with the lock ---- */

static struct group **
bucket_of(struct httpd_pool *p, const char *name)
{
	return &p->buckets[text_hash(name) % BUCKETS];
}

static struct group *
group_find(struct httpd_pool *p, const char *name)
{
	struct group *g = *bucket_of(p, name);

	while (g && strcmp(g->name, name) != 0)
		g = g->chain;
	return g;
}

static struct group *
group_of(struct httpd_pool *p, const struct httpd_share *share)
{
	struct group *g = group_find(p, share->group);
	struct group **bucket;

	if (!g) {
		bucket = bucket_of(p, share->group);
		g = mem_alloc(sizeof(*g));
		memcpy(g->name, share->group, sizeof(g->name));
		g->chain = *bucket;
		*bucket = g;
	}
	g->heavy_max = share->heavy_max;
	return g;
}

static void
group_release(struct httpd_pool *p, struct group *g)
{
	struct group **at = bucket_of(p, g->name);

	if (g->waiting > 0 || g->running > 0 || g->rest_until_ns != 0)
		return;
	while (*at != g)
		at = &(*at)->chain;
	*at = g->chain;
	mem_free(g);
}

static struct httpd_member *
member_of(struct group *g, const char *name)
{
	struct httpd_member *m = g->turn;

	if (m) {
		do {
			if (strcmp(m->name, name) == 0)
				return m;
			m = m->next;
		} while (m != g->turn);
	}
	m = mem_alloc(sizeof(*m));
	memcpy(m->name, name, strlen(name) + 1);
	m->group = g;
	/* last in the ring: all other members have their turn first */
	m->next = g->turn ? g->turn : m;
	m->before = g->turn ? g->turn->before : m;
	m->next->before = m;
	m->before->next = m;
	if (!g->turn)
		g->turn = m;
	return m;
}

static void
member_release(struct httpd_member *m)
{
	struct group *g = m->group;

	if (m->jobs[false].first || m->jobs[true].first)
		return;
	m->next->before = m->before;
	m->before->next = m->next;
	if (g->turn == m)
		g->turn = m->next == m ? NULL : m->next;
	mem_free(m);
}

/* ---- jobs that wait, with the lock ---- */

static void
wait_begin(struct httpd_pool *p, struct httpd_job *job, const struct httpd_share *share)
{
	struct group *g = group_of(p, share);
	struct httpd_member *m = member_of(g, share->member);

	job->member = m;
	job->heavy = share->heavy;
	job->number = p->pushed++;
	job->next = NULL;
	job->before = m->jobs[job->heavy].last;
	if (job->before)
		job->before->next = job;
	else
		m->jobs[job->heavy].first = job;
	m->jobs[job->heavy].last = job;
	if (g->waiting++ == 0) {
		g->next = p->turn ? p->turn : g;
		g->before = p->turn ? p->turn->before : g;
		g->next->before = g;
		g->before->next = g;
		if (!p->turn)
			p->turn = g;
	}
	g->heavy_waiting += job->heavy;
	p->waiting++;
}

/* Returns the group, which the caller keeps using or releases. */
static struct group *
wait_end(struct httpd_pool *p, struct httpd_job *job)
{
	struct httpd_member *m = job->member;
	struct group *g = m->group;

	if (job->before)
		job->before->next = job->next;
	else
		m->jobs[job->heavy].first = job->next;
	if (job->next)
		job->next->before = job->before;
	else
		m->jobs[job->heavy].last = job->before;
	job->member = NULL;
	member_release(m);
	p->waiting--;
	g->heavy_waiting -= job->heavy;
	if (--g->waiting == 0) {
		g->next->before = g->before;
		g->before->next = g->next;
		if (p->turn == g)
			p->turn = g->next == g ? NULL : g->next;
	}
	return g;
}

/* ---- groups that rest, with the lock ---- */

/* Rule 4. */
static void
rest_begin(struct httpd_pool *p, struct group *g, int64_t ran_ns)
{
	int64_t until_ns = time_monotonic_ns() + (ran_ns < REST_MAX_NS ? ran_ns : REST_MAX_NS);

	if (g->heavy_max != 1)
		return;
	if (g->rest_until_ns == 0) {
		g->next_resting = p->resting;
		p->resting = g;
	}
	if (until_ns > g->rest_until_ns)
		g->rest_until_ns = until_ns;
}

static void
rest_end_all(struct httpd_pool *p)
{
	int64_t now_ns = p->resting ? time_monotonic_ns() : 0;

	for (struct group **at = &p->resting; *at;) {
		struct group *g = *at;

		if (g->rest_until_ns > now_ns && !p->closing) {
			at = &g->next_resting;
			continue;
		}
		*at = g->next_resting;
		g->rest_until_ns = 0;
		group_release(p, g);
	}
}

/* The end of the first rest that delays a waiting job; 0: there is none. */
static int64_t
rest_next_ns(const struct httpd_pool *p)
{
	int64_t next_ns = 0;

	for (const struct group *g = p->resting; g; g = g->next_resting)
		if (g->heavy_waiting > 0 && (next_ns == 0 || g->rest_until_ns < next_ns))
			next_ns = g->rest_until_ns;
	return next_ns;
}

/* ---- whose turn it is, with the lock ---- */

/* Rules 2 and 3. */
static bool
group_may_run(const struct httpd_pool *p, const struct group *g, bool heavy)
{
	if (p->options.running_max > 0 && g->running >= p->options.running_max)
		return false;
	if (!heavy)
		return true;
	return g->rest_until_ns == 0 && (g->heavy_max == 0 || g->heavy_running < g->heavy_max) &&
	       (p->options.heavy_max == 0 || p->heavy_running < p->options.heavy_max);
}

static struct httpd_job *
member_next(const struct httpd_member *m, bool heavy_too)
{
	struct httpd_job *plain = m->jobs[false].first, *heavy = heavy_too ? m->jobs[true].first : NULL;

	if (!plain || !heavy)
		return plain ? plain : heavy;
	return plain->number < heavy->number ? plain : heavy;
}

static struct httpd_job *
group_next(const struct httpd_pool *p, const struct group *g)
{
	bool heavy_too = group_may_run(p, g, true);
	const struct httpd_member *m = g->turn;

	if (!group_may_run(p, g, false))
		return NULL;
	do {
		struct httpd_job *job = member_next(m, heavy_too);

		if (job)
			return job;
		m = m->next;
	} while (m != g->turn);
	return NULL;
}

/* Rule 1. NULL: nothing may run now. */
static struct httpd_job *
pool_next(const struct httpd_pool *p)
{
	const struct group *g = p->turn;

	if (!g)
		return NULL;
	do {
		struct httpd_job *job = group_next(p, g);

		if (job)
			return job;
		g = g->next;
	} while (g != p->turn);
	return NULL;
}

/* Passes the turn to the next group, and in the job's group to the next member. */
static void
turn_pass(struct httpd_pool *p, const struct httpd_job *job)
{
	job->member->group->turn = job->member->next;
	p->turn = job->member->group->next;
}

/* Wakes one worker if a job may run now or after a rest. Workers never all sleep while a job may run: a push wakes a worker, a worker that ends or
 * takes a job looks for the next one, a sleeping worker wakes at the end of the first rest that delays a job, and no other event makes a job
 * runnable. */
static void
wake_one(struct httpd_pool *p)
{
	if (p->idle > 0 && (pool_next(p) || rest_next_ns(p) != 0))
		pthread_cond_signal(&p->wake);
}

static void
run_begin(struct httpd_pool *p, struct httpd_place *place, struct group *g, bool heavy)
{
	*place = (struct httpd_place){.group = g, .heavy = heavy, .began_ns = heavy ? time_monotonic_ns() : 0};
	g->running++;
	g->heavy_running += heavy;
	p->running++;
	p->heavy_running += heavy;
}

static void
run_end(struct httpd_pool *p, struct httpd_place *place)
{
	struct group *g = take(place->group);

	g->running--;
	g->heavy_running -= place->heavy;
	p->running--;
	p->heavy_running -= place->heavy;
	if (place->heavy)
		rest_begin(p, g, time_monotonic_ns() - place->began_ns);
	group_release(p, g);
}

/* ---- the threads ---- */

static void
sleep_until_woken(struct httpd_pool *p)
{
	int64_t rest_ns = rest_next_ns(p);

	p->idle++;
	(void)condition_wait_until(&p->wake, &p->lock, rest_ns == 0 ? INT64_MAX : rest_ns);
	p->idle--;
	p->wakes++;
	rest_end_all(p);
}

/* The next job; NULL: the pool is closing and no job waits any more. */
static struct httpd_job *
next_job(struct httpd_pool *p, struct httpd_place *place)
{
	struct httpd_job *job;

	pthread_mutex_lock(&p->lock);
	rest_end_all(p);
	while (!(job = pool_next(p)) && !(p->closing && p->waiting == 0))
		sleep_until_woken(p);
	if (job) {
		turn_pass(p, job);
		run_begin(p, place, wait_end(p, job), job->heavy);
		job->place = place;
		wake_one(p);
	}
	pthread_mutex_unlock(&p->lock);
	return job;
}

/* The end of a job may let two others run, one of its group and a heavy one of another group: this worker takes one, and next_job() wakes a second
 * worker. */
static void
job_done(struct httpd_pool *p, struct httpd_place *place)
{
	pthread_mutex_lock(&p->lock);
	run_end(p, place);
	if (p->closing)
		pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

static void *
work(void *arg)
{
	struct httpd_pool *p = arg;
	void *worker = p->options.worker_new ? p->options.worker_new(p->options.app) : NULL;
	struct httpd_place place;
	struct httpd_job *job;

	if (p->options.nice > 0)
		thread_gives_way(p->options.nice);
	while ((job = next_job(p, &place))) {
		p->options.run(job, worker);
		job_done(p, &place);
	}
	if (p->options.worker_free)
		p->options.worker_free(worker);
	return NULL;
}

/* Signals stay with the program's own threads: a worker that took SIGTERM could not act on it. */
static int
start_threads(struct httpd_pool *p)
{
	sigset_t all, before;
	int errnum = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (p->started < p->options.workers && !errnum) {
		errnum = pthread_create(&p->threads[p->started], NULL, work, p);
		if (!errnum)
			p->started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return errnum;
}

bool
httpd_pool_start(const struct httpd_pool_options *o, struct httpd_pool **ret, struct err *err)
{
	struct httpd_pool *p;
	int errnum;

	ASSERT(o->workers > 0 && o->queue_max > 0);
	p = mem_alloc(sizeof(*p));
	p->options = *o;
	p->threads = mem_array((size_t)o->workers, sizeof(*p->threads));
	pthread_mutex_init(&p->lock, NULL);
	condition_init(&p->wake);
	errnum = start_threads(p);
	if (errnum) {
		httpd_pool_free(p);
		return err_errno(err, ERR_RETRY, errnum, "cannot start %d HTTP workers", o->workers);
	}
	*ret = p;
	return true;
}

/* ---- from outside ---- */

/* Rule 5. */
static enum httpd_push
group_takes(const struct httpd_pool *p, const struct group *g, bool heavy)
{
	const struct httpd_pool_options *o = &p->options;

	if (!g)
		return HTTPD_PUSHED;
	if (o->waiting_max > 0 && g->waiting >= o->waiting_max)
		return HTTPD_PUSH_GROUP_FULL;
	if (heavy && o->heavy_waiting_max > 0 && g->heavy_waiting >= o->heavy_waiting_max)
		return HTTPD_PUSH_HEAVY_FULL;
	return HTTPD_PUSHED;
}

static struct httpd_job *
newest_of(const struct group *g)
{
	const struct httpd_member *m = g->turn;
	struct httpd_job *newest = NULL;

	do {
		for (int heavy = 0; heavy < 2; heavy++) {
			struct httpd_job *last = m->jobs[heavy].last;

			if (last && (!newest || last->number > newest->number))
				newest = last;
		}
		m = m->next;
	} while (m != g->turn);
	return newest;
}

/* Rule 6: the job displaced by a new one of a group that has this many waiting; NULL: none. */
static struct httpd_job *
displaced_by(struct httpd_pool *p, int waiting)
{
	struct group *most = p->turn, *g = p->turn;

	if (!most)
		return NULL;
	while ((g = g->next) != p->turn)
		if (g->waiting > most->waiting)
			most = g;
	return most->waiting > waiting + 1 ? newest_of(most) : NULL;
}

static enum httpd_push
push(struct httpd_pool *p, struct httpd_job *job, const struct httpd_share *share, struct httpd_job **ret_displaced)
{
	const struct group *g = group_find(p, share->group);
	enum httpd_push takes = group_takes(p, g, share->heavy);
	struct httpd_job *displaced = NULL;

	if (p->closing)
		return HTTPD_PUSH_CLOSING;
	if (takes != HTTPD_PUSHED)
		return takes;
	if (p->waiting + p->running >= p->options.queue_max + p->options.workers) {
		displaced = displaced_by(p, g ? g->waiting : 0);
		if (!displaced)
			return HTTPD_PUSH_FULL;
		group_release(p, wait_end(p, displaced));
	}
	wait_begin(p, job, share);
	*ret_displaced = displaced;
	return HTTPD_PUSHED;
}

enum httpd_push
httpd_pool_push(struct httpd_pool *p, struct httpd_job *job, const struct httpd_share *share,
                struct httpd_job **ret_displaced)
{
	enum httpd_push pushed;

	*ret_displaced = NULL;
	pthread_mutex_lock(&p->lock);
	rest_end_all(p);
	pushed = push(p, job, share, ret_displaced);
	if (pushed == HTTPD_PUSHED)
		wake_one(p);
	pthread_mutex_unlock(&p->lock);
	return pushed;
}

bool
httpd_pool_remove(struct httpd_pool *p, struct httpd_job *job)
{
	bool waited;

	pthread_mutex_lock(&p->lock);
	waited = job->member != NULL;
	if (waited)
		group_release(p, wait_end(p, job));
	if (p->closing)
		pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	return waited;
}

bool
httpd_pool_move(struct httpd_pool *p, struct httpd_job *job, const struct httpd_share *share)
{
	struct httpd_place *place = job->place;
	struct group *g;
	bool may;

	pthread_mutex_lock(&p->lock);
	rest_end_all(p);
	g = group_find(p, share->group);
	may = !g || (g->waiting == 0 && group_may_run(p, g, share->heavy));
	may = may && (!share->heavy || p->options.heavy_max == 0 || p->heavy_running < p->options.heavy_max);
	if (may) {
		run_end(p, place);
		run_begin(p, place, group_of(p, share), share->heavy);
		/* the share that the job leaves may run another job now */
		wake_one(p);
	}
	pthread_mutex_unlock(&p->lock);
	return may;
}

uint64_t
httpd_pool_wakes(struct httpd_pool *p)
{
	uint64_t wakes;

	pthread_mutex_lock(&p->lock);
	wakes = p->wakes;
	pthread_mutex_unlock(&p->lock);
	return wakes;
}

void
httpd_pool_counts(struct httpd_pool *p, int64_t *ret_waiting, int64_t *ret_running)
{
	pthread_mutex_lock(&p->lock);
	*ret_waiting = p->waiting;
	*ret_running = p->running;
	pthread_mutex_unlock(&p->lock);
}

void
httpd_pool_drain(struct httpd_pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	while (p->started > 0)
		pthread_join(p->threads[--p->started], NULL);
}

void
httpd_pool_free(struct httpd_pool *p)
{
	if (!p)
		return;
	httpd_pool_drain(p);
	ASSERT(p->waiting == 0 && p->running == 0);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	mem_free(p->threads);
	mem_free(p);
}

/* exporter/identity/kubelet/podres.c - the thread that asks the kubelet. */
#include "exporter/identity/kubelet/podres.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/time.h"
#include "exporter/source/gpu_source.h"

#define LEAST_PAUSE_NS (NS_PER_S / 2) /* between two questions, however much somebody hurries */
#define OFFERS_EVERY_NS NS_PER_MIN    /* what is advertised changes rarely */

/* Tells one run of the kubelet from the next: each makes its socket anew. */
struct run_id {
	uint64_t inode;
	int64_t changed_ns;
};

struct podres {
	struct podres_options options;
	char *socket_path, *pods_root, *cgroup_root;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* stop, hurry, or the first question has ended */
	bool stop, hurry, asked;
	struct podres_list holds; /* under the lock; written by the thread only */
	struct podres_stats stats;
	/* the thread's own */
	struct pod_dirs dirs;
	struct podres_offers offers;
	struct buf message;
	struct run_id run;
	int64_t run_seen_boot_ns, offers_boot_ns;
	bool restarted; /* this is not the first run of the kubelet that was seen */
};

/* ---- one question ---- */

/* Notes when another run of the kubelet began to answer. */
static void
note_run(struct podres *p)
{
	struct run_id run = {0};
	struct stat st;

	if (stat(p->socket_path, &st) == 0)
		run = (struct run_id){.inode = st.st_ino,
		                      .changed_ns = st.st_ctim.tv_sec * NS_PER_S + st.st_ctim.tv_nsec};
	if (run.inode == p->run.inode && run.changed_ns == p->run.changed_ns)
		return;
	p->restarted = p->run.inode != 0;
	p->run = run;
	p->run_seen_boot_ns = time_boot_ns();
	p->offers_boot_ns = 0;
}

/* A kubelet that has no such method, or has it switched off, is none the worse: replicas are then what the options say, or what
 * it told before. */
static void
ask_offers(struct podres *p, struct podres_conn *conn, int64_t deadline_ns)
{
	struct podres_offers offers;

	if (p->offers_boot_ns != 0 && time_boot_ns() - p->offers_boot_ns < OFFERS_EVERY_NS)
		return;
	p->offers_boot_ns = time_boot_ns();
	if (!podres_call(conn, "GetAllocatableResources", deadline_ns, &p->message, NULL) ||
	    !podres_decode_offers(buf_text(&p->message), p->message.len, &offers, NULL))
		return;
	podres_offers_fini(&p->offers);
	p->offers = offers;
}

static bool
ask(struct podres *p, struct podres_list *ret, struct err *err)
{
	owned(podres_conn) struct podres_conn *conn = NULL;
	int64_t deadline_ns = time_monotonic_ns() + p->options.timeout_ns;

	if (!podres_connect(p->socket_path, deadline_ns, &conn, err))
		return false;
	note_run(p);
	if (!podres_call(conn, "List", deadline_ns, &p->message, err) ||
	    !podres_decode_list(buf_text(&p->message), p->message.len, ret, err))
		return false;
	ask_offers(p, conn, deadline_ns);
	return true;
}

static bool
is_alive(const void *arg, const char *uid)
{
	return podres_cgroup_exists(arg, uid);
}

static bool
same_text(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

/* Both are sorted. */
static bool
same_list(const struct podres_list *a, const struct podres_list *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++) {
		const struct podres_grant *x = &a->grants[i], *y = &b->grants[i];

		if (x->setting_up != y->setting_up || x->replica != y->replica || x->replica_of != y->replica_of ||
		    !same_text(x->device, y->device) || !same_text(x->ns, y->ns) || !same_text(x->pod, y->pod) ||
		    !same_text(x->uid, y->uid) || !same_text(x->container, y->container))
			return false;
	}
	return true;
}

static void
copy_list(struct podres_list *to, const struct podres_list *from)
{
	*to = (struct podres_list){.grants = mem_array(from->count, sizeof(*to->grants)), .count = from->count};
	for (size_t i = 0; i < from->count; i++) {
		const struct podres_grant *g = &from->grants[i];

		to->grants[i] = (struct podres_grant){.ns = mem_strdup(g->ns),
		                                      .pod = mem_strdup(g->pod),
		                                      .uid = mem_strdup(g->uid),
		                                      .container = mem_strdup(g->container),
		                                      .device = mem_strdup(g->device),
		                                      .replica = g->replica,
		                                      .replica_of = g->replica_of,
		                                      .listed_boot_ns = g->listed_boot_ns,
		                                      .setting_up = g->setting_up};
	}
}

/* What holds now, from a new answer or, without one, from the last: pods may end also while the kubelet is away. */
static void
settle(struct podres *p, struct podres_list *list, bool answered)
{
	struct podres_circumstances c = {.dirs = &p->dirs, .boot_ns = time_boot_ns()};
	struct podres_cgroups cgroups;
	struct podres_list before;

	pod_dirs_read(&p->dirs);
	/* without a kubelet there is nothing to look for in the cgroups */
	if (!answered && p->holds.count == 0)
		return;
	c.just_started = answered && p->restarted && c.boot_ns - p->run_seen_boot_ns < PODRES_GRACE_NS;
	podres_cgroups_look(&cgroups, p->cgroup_root);
	c.alive = podres_cgroups_seen(&cgroups, &p->dirs) ? is_alive : NULL;
	c.arg = &cgroups;
	/* only this thread writes it, so reading needs no lock */
	copy_list(&before, &p->holds);
	if (!answered)
		copy_list(list, &p->holds);
	podres_apply(&c, &p->offers, list, &before);
	podres_list_fini(&before);
	pthread_mutex_lock(&p->lock);
	if (!same_list(list, &p->holds)) {
		struct podres_list old = p->holds;

		p->holds = *list;
		*list = old;
		p->stats.version++;
	}
	pthread_mutex_unlock(&p->lock);
	podres_list_fini(list);
}

/* ---- the thread ---- */

static void
note_outcome(struct podres *p, bool answered, const struct err *err)
{
	pthread_mutex_lock(&p->lock);
	p->stats.up = answered;
	/* where nobody ever listened there is no kubelet, and no trouble */
	p->stats.used = p->stats.used || answered || err->kind != ERR_MISSING;
	p->stats.trouble = (struct err){0};
	if (answered) {
		p->stats.answers++;
		p->stats.answered_boot_ns = time_boot_ns();
	} else if (p->stats.used) {
		p->stats.failures++;
		p->stats.trouble = *err;
	}
	p->asked = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

/* Waits for a while, or until somebody hurries; true when the thread shall end. */
static bool
rest(struct podres *p, int64_t until_ns)
{
	struct timespec t = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};
	bool stop;

	pthread_mutex_lock(&p->lock);
	while (!p->stop && pthread_cond_timedwait(&p->changed, &p->lock, &t) != ETIMEDOUT)
		;
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	return stop;
}

static bool
take_hurry(struct podres *p)
{
	bool hurry;

	pthread_mutex_lock(&p->lock);
	hurry = p->hurry;
	p->hurry = false;
	pthread_mutex_unlock(&p->lock);
	return hurry;
}

/* Sleeps until the next question; true when there shall be none. A pod that comes or goes makes it earlier. */
static bool
pause_until_next(struct podres *p)
{
	int64_t end_ns = time_monotonic_ns() + p->options.refresh_ns;

	do {
		if (rest(p, time_monotonic_ns() + LEAST_PAUSE_NS))
			return true;
	} while (!take_hurry(p) && !pod_dirs_changed(&p->dirs) && time_monotonic_ns() < end_ns);
	return false;
}

static void *
run(void *arg)
{
	struct podres *p = arg;

	do {
		struct podres_list list = {0};
		struct err err = {0};
		bool answered = ask(p, &list, &err);

		settle(p, &list, answered);
		note_outcome(p, answered, &err);
	} while (!pause_until_next(p));
	return NULL;
}

bool
podres_start(const struct podres_options *o, struct podres **ret, struct err *err)
{
	struct podres *p = mem_alloc(sizeof(*p));
	pthread_condattr_t monotonic;
	int rc;

	p->options = *o;
	p->socket_path = mem_strdup(o->socket_path);
	p->pods_root = mem_strdup(o->pods_root);
	p->cgroup_root = mem_strdup(o->cgroup_root);
	p->stats.answered_boot_ns = ABSENT;
	pod_dirs_init(&p->dirs, p->pods_root);
	buf_init(&p->message, PODRES_MESSAGE_MAX);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	rc = pthread_create(&p->thread, NULL, run, p);
	if (rc != 0) {
		p->stop = true; /* there is no thread to end */
		podres_free(p);
		return err_errno(err, ERR_FATAL, rc, "no thread to ask the kubelet");
	}
	*ret = p;
	return true;
}

void
podres_free(struct podres *p)
{
	bool has_thread;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	has_thread = !p->stop;
	p->stop = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	/* at most one question's time */
	if (has_thread)
		pthread_join(p->thread, NULL);
	podres_list_fini(&p->holds);
	podres_offers_fini(&p->offers);
	pod_dirs_fini(&p->dirs);
	buf_fini(&p->message);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	mem_free(p->socket_path);
	mem_free(p->pods_root);
	mem_free(p->cgroup_root);
	mem_free(p);
}

void
podres_wait_first(struct podres *p, int64_t most_ns)
{
	int64_t until_ns = time_monotonic_ns() + most_ns;
	struct timespec t = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};

	pthread_mutex_lock(&p->lock);
	while (!p->asked && pthread_cond_timedwait(&p->changed, &p->lock, &t) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&p->lock);
}

void
podres_hurry(struct podres *p)
{
	pthread_mutex_lock(&p->lock);
	p->hurry = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

void
podres_stats(struct podres *p, struct podres_stats *ret)
{
	pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	pthread_mutex_unlock(&p->lock);
}

uint64_t
podres_visit(struct podres *p, void (*each)(void *arg, const struct podres_grant *g), void *arg)
{
	uint64_t version;

	pthread_mutex_lock(&p->lock);
	version = p->stats.version;
	for (size_t i = 0; i < p->holds.count; i++)
		if (!p->holds.grants[i].setting_up)
			each(arg, &p->holds.grants[i]);
	pthread_mutex_unlock(&p->lock);
	return version;
}

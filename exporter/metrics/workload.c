/* exporter/metrics/workload.c - the set of workloads, and the thread that reads their cgroups. The rules are numbered in workload.h. */
#include "exporter/metrics/workload.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/thread.h"
#include "common/base/time.h"
#include "exporter/identity/identity_proc.h"
#include "exporter/metrics/metrics_render.h"

#define LABELS_MAX (64u << 10)
#define PIDS 4         /* processes of a workload that are tried to find its cgroup */
#define RETRY_MAX_S 32 /* a missing cgroup is searched again after 1, 2, 4 ... up to so many seconds */

/* The identity that a cgroup must have to be this workload's. */
struct workload_id {
	uint32_t id; /* of the holder */
	uint32_t kind;
	char pod_uid[64], slurm_job[32], slurm_sluid[SLUID_CHARS + 1];
	int64_t uid;
	uint32_t pids[PIDS];
	size_t pid_count;
};

/* A workload, as the tick thread sees it; under the lock. */
struct followed {
	struct workload_id wanted;
	uint64_t labels; /* a hash of them */
	bool shown;      /* rule 5 */
	uint64_t seen;   /* the tick that last had it */
	const struct wire_holder *holder;
	int64_t read_boot_ns; /* ABSENT: no values */
	int64_t values[WORKLOAD_VALUES];
	int64_t retry_boot_ns; /* not before */
	int64_t retry_s;
};

/* A workload's open cgroup; of the reading thread. */
struct open_cgroup {
	uint32_t id;
	bool open;
	struct workload_cgroup cgroup;
};
struct result {
	struct workload_id wanted;
	bool known;
	int64_t values[WORKLOAD_VALUES];
};

struct workload {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool has_thread, stop, hurry, busy, orphaned;
	struct followed *followed;
	size_t count, beyond; /* beyond: workloads over WORKLOADS_MAX */
	struct hash by_id;
	uint64_t ticks;
	struct workload_stats stats;
	struct workload_row *rows; /* of the tick's thread */
	struct buf labels;
	/* of the reading thread */
	struct proc proc;
	struct cgroup_base base;
	struct workload_mounts mounts;
	struct open_cgroup *opened;
	size_t opened_count;
	struct hash opened_by_id;
	struct result *results;
	size_t result_count;
};

struct workload *
workload_new(const struct workload_options *o)
{
	struct workload *w = mem_alloc(sizeof(*w));
	size_t len;

	w->followed = mem_array(WORKLOADS_MAX, sizeof(*w->followed));
	w->rows = mem_array(WORKLOADS_MAX, sizeof(*w->rows));
	w->opened = mem_array(WORKLOADS_MAX, sizeof(*w->opened));
	w->results = mem_array(WORKLOADS_MAX, sizeof(*w->results));
	w->stats.round_ns = ABSENT;
	buf_init(&w->labels, LABELS_MAX);
	proc_init(&w->proc, o->proc_root);
	if (proc_read(&w->proc, "self", "cgroup", &len, NULL))
		cgroup_base_parse(w->proc.text, len, &w->base);
	workload_mounts_init(&w->mounts, o->cgroup_root, o->files_max);
	pthread_mutex_init(&w->lock, NULL);
	condition_init(&w->wake);
	return w;
}

static void
destroy(struct workload *w)
{
	for (size_t i = 0; i < w->opened_count; i++)
		if (w->opened[i].open)
			workload_cgroup_close(&w->mounts, &w->opened[i].cgroup);
	workload_mounts_fini(&w->mounts);
	proc_fini(&w->proc);
	hash_fini(&w->by_id);
	hash_fini(&w->opened_by_id);
	buf_fini(&w->labels);
	mem_free(w->followed);
	mem_free(w->rows);
	mem_free(w->opened);
	mem_free(w->results);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

void
workload_free(struct workload *w)
{
	bool orphan;

	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	orphan = w->has_thread && w->busy;
	w->orphaned = orphan;
	if (orphan)
		pthread_detach(w->thread);
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	if (orphan)
		return;
	if (w->has_thread)
		pthread_join(w->thread, NULL);
	destroy(w);
}

/* ---- the set of workloads ---- */

static uint64_t
labels_of(struct workload *w, const struct wire_holder *h)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

	buf_clear(&w->labels);
	label_holder(&w->labels, h);
	for (size_t i = 0; i < w->labels.len; i++)
		hash = (hash ^ (unsigned char)w->labels.data[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* NULL: too many. */
static struct followed *
follow(struct workload *w, const struct wire_holder *h)
{
	size_t at;

	if (hash_find(&w->by_id, h->id, &at))
		return &w->followed[at];
	if (w->count == WORKLOADS_MAX) {
		w->beyond++;
		return NULL;
	}
	at = w->count++;
	w->followed[at] = (struct followed){.wanted = {.id = h->id, .kind = h->kind, .uid = h->uid},
	                                    .labels = labels_of(w, h),
	                                    .read_boot_ns = ABSENT};
	snprintf(w->followed[at].wanted.pod_uid, sizeof(w->followed[at].wanted.pod_uid), "%s", h->pod_uid);
	snprintf(w->followed[at].wanted.slurm_job, sizeof(w->followed[at].wanted.slurm_job), "%s", h->slurm_job);
	hash_put(&w->by_id, h->id, at);
	return &w->followed[at];
}

/* With a process of it, or NULL: an allocation. */
static void
mark(struct workload *w, const struct wire_holder *h, const struct tick_process *p)
{
	struct followed *f = follow(w, h);

	if (!f)
		return;
	if (f->seen != w->ticks)
		f->wanted.pid_count = 0;
	f->seen = w->ticks;
	f->holder = h;
	if (p && p->slurm_sluid[0])
		memcpy(f->wanted.slurm_sluid, p->slurm_sluid, sizeof(f->wanted.slurm_sluid));
	if (p && f->wanted.pid_count < PIDS)
		f->wanted.pids[f->wanted.pid_count++] = p->pid;
}

static void
mark_all(struct workload *w, const struct tick *t)
{
	for (size_t i = 0; i < t->gpu_count; i++)
		for (size_t k = 0; k < t->gpus[i].process_count; k++)
			mark(w, t->gpus[i].processes[k].holder, &t->gpus[i].processes[k]);
	for (size_t i = 0; i < t->allocation_count; i++)
		mark(w, t->allocations[i].holder, NULL);
}

/* Rule 4. */
static bool
forget_gone(struct workload *w)
{
	size_t kept = 0;

	for (size_t i = 0; i < w->count; i++)
		if (w->followed[i].seen == w->ticks)
			w->followed[kept++] = w->followed[i];
	if (kept == w->count)
		return false;
	w->count = kept;
	hash_clear(&w->by_id);
	for (size_t i = 0; i < kept; i++)
		hash_put(&w->by_id, w->followed[i].wanted.id, i);
	return true;
}

/* Rule 5. */
static void
choose_shown(struct workload *w)
{
	struct hash labels = {0};

	for (size_t i = 0; i < w->count; i++) {
		w->followed[i].shown = hash_get(&labels, w->followed[i].labels) == HASH_NONE;
		hash_put(&labels, w->followed[i].labels, i);
	}
	hash_fini(&labels);
}

static bool
is_due(const struct followed *f, int64_t boot_ns)
{
	return f->read_boot_ns == ABSENT && f->wanted.pid_count > 0 && boot_ns >= f->retry_boot_ns;
}

static size_t
fill_rows(struct workload *w, int64_t boot_ns)
{
	size_t n = 0;

	w->stats.unread = w->beyond;
	for (size_t i = 0; i < w->count; i++) {
		const struct followed *f = &w->followed[i];
		bool fresh = f->read_boot_ns != ABSENT && boot_ns - f->read_boot_ns <= WORKLOAD_STALE_NS;

		w->hurry |= is_due(f, boot_ns);
		w->stats.unread += !fresh;
		if (!fresh || !f->shown)
			continue;
		w->rows[n].holder = f->holder;
		memcpy(w->rows[n++].values, f->values, sizeof(f->values));
	}
	return n;
}

size_t
workload_follow(struct workload *w, const struct tick *t, const struct workload_row **ret)
{
	size_t n, before;
	bool changed;

	*ret = w->rows;
	if (!t)
		return 0;
	pthread_mutex_lock(&w->lock);
	before = w->count;
	w->ticks++;
	w->beyond = 0;
	mark_all(w, t);
	changed = w->count != before;
	changed |= forget_gone(w);
	if (changed)
		choose_shown(w);
	n = fill_rows(w, t->boot_ns);
	if (w->hurry)
		pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	return n;
}

void
workload_stats(struct workload *w, struct workload_stats *ret)
{
	pthread_mutex_lock(&w->lock);
	*ret = w->stats;
	pthread_mutex_unlock(&w->lock);
}

/* ---- reading ---- */

/* The workloads of this round. */
static void
collect(struct workload *w, int64_t boot_ns, bool all)
{
	w->result_count = 0;
	for (size_t i = 0; i < w->count; i++)
		if (all || is_due(&w->followed[i], boot_ns))
			w->results[w->result_count++] = (struct result){.wanted = w->followed[i].wanted};
}

/* In a round of all workloads, closes the cgroups of those that were dropped. */
static void
close_dropped(struct workload *w, bool all)
{
	struct hash current = {0};
	size_t kept = 0;

	for (size_t i = 0; all && i < w->result_count; i++)
		hash_put(&current, w->results[i].wanted.id, i);
	hash_clear(&w->opened_by_id);
	for (size_t i = 0; i < w->opened_count; i++) {
		struct open_cgroup *h = &w->opened[i];

		if (all && hash_get(&current, h->id) == HASH_NONE) {
			if (h->open)
				workload_cgroup_close(&w->mounts, &h->cgroup);
			continue;
		}
		w->opened[kept] = *h;
		hash_put(&w->opened_by_id, h->id, kept++);
	}
	w->opened_count = kept;
	hash_fini(&current);
}

/* NULL: too many until the next round of all. */
static struct open_cgroup *
open_cgroup_of(struct workload *w, uint32_t id)
{
	size_t at;

	if (hash_find(&w->opened_by_id, id, &at))
		return &w->opened[at];
	if (w->opened_count == WORKLOADS_MAX)
		return NULL;
	at = w->opened_count++;
	w->opened[at] = (struct open_cgroup){.id = id};
	hash_put(&w->opened_by_id, id, at);
	return &w->opened[at];
}

static bool
is_of(const struct cgroup_owner *o, const struct workload_id *wanted)
{
	if (wanted->kind == WIRE_POD)
		return o->pod_uid[0] && strcmp(o->pod_uid, wanted->pod_uid) == 0;
	if (wanted->kind == WIRE_SLURM_JOB && o->slurm_sluid[0])
		return strcmp(o->slurm_sluid, wanted->slurm_sluid) == 0;
	if (wanted->kind == WIRE_SLURM_JOB)
		return o->slurm_job[0] && strcmp(o->slurm_job, wanted->slurm_job) == 0;
	return !o->pod_uid[0] && !cgroup_names_job(o) && o->session_uid >= 0 && o->session_uid == wanted->uid;
}

/* Rule 1. The check of the owner also covers a PID that was reused by another process. */
static bool
find_cgroup(struct workload *w, const struct workload_id *wanted, struct workload_cgroup *ret)
{
	for (size_t i = 0; i < wanted->pid_count; i++) {
		struct cgroup_owner owner;
		size_t len;

		if (!proc_cgroup(&w->proc, wanted->pids[i], &len, NULL))
			continue;
		(void)cgroup_owner_parse(&w->base, w->proc.text, len, &owner);
		if (wanted->kind == WIRE_POD)
			cgroup_forget_job(&owner); /* the holder shows that the pod is not believed to run Slurm */
		if (is_of(&owner, wanted) && workload_cgroup_open(&w->mounts, &w->base, w->proc.text, len, &owner, ret))
			return true;
	}
	return false;
}

/* Rule 2. */
static bool
read_one(struct workload *w, struct result *r)
{
	struct open_cgroup *h = open_cgroup_of(w, r->wanted.id);

	if (!h)
		return false;
	if (h->open && workload_cgroup_read(&w->mounts, &h->cgroup, r->values))
		return true;
	if (h->open)
		workload_cgroup_close(&w->mounts, &h->cgroup);
	h->open = find_cgroup(w, &r->wanted, &h->cgroup);
	return h->open && workload_cgroup_read(&w->mounts, &h->cgroup, r->values);
}

/* Under the lock. A workload that was dropped meanwhile is ignored. */
static void
store(struct workload *w, const struct result *r, int64_t boot_ns)
{
	struct followed *f;
	size_t at;

	if (!hash_find(&w->by_id, r->wanted.id, &at))
		return;
	f = &w->followed[at];
	if (r->known) {
		f->read_boot_ns = boot_ns;
		memcpy(f->values, r->values, sizeof(f->values));
		f->retry_s = 0;
		return;
	}
	f->read_boot_ns = ABSENT;
	f->retry_s = f->retry_s == 0 ? 1 : f->retry_s < RETRY_MAX_S ? f->retry_s * 2 : RETRY_MAX_S;
	f->retry_boot_ns = boot_ns + f->retry_s * NS_PER_S;
}

void
workload_round(struct workload *w, int64_t boot_ns, bool all)
{
	pthread_mutex_lock(&w->lock);
	collect(w, boot_ns, all);
	pthread_mutex_unlock(&w->lock);
	close_dropped(w, all);
	for (size_t i = 0; i < w->result_count; i++)
		w->results[i].known = read_one(w, &w->results[i]);
	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->result_count; i++)
		store(w, &w->results[i], boot_ns);
	w->stats.failures = w->mounts.failures;
	pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ---- */

/* Waits until then, or until there is a new workload. True: it is time to read all workloads. */
static bool
wait_until(struct workload *w, int64_t until_ns)
{
	bool in_time = true;

	while (!w->stop && !w->hurry && in_time)
		in_time = condition_wait_until(&w->wake, &w->lock, until_ns);
	w->hurry = false;
	return !in_time;
}

static void *
run(void *arg)
{
	struct workload *w = arg;
	int64_t next_ns = time_monotonic_ns() + WORKLOAD_INTERVAL_NS;
	bool orphaned;

	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		bool all = wait_until(w, next_ns);
		int64_t began_ns = time_monotonic_ns();

		if (w->stop)
			break;
		w->busy = true;
		pthread_mutex_unlock(&w->lock);
		workload_round(w, time_boot_ns(), all);
		pthread_mutex_lock(&w->lock);
		w->busy = false;
		if (all) {
			w->stats.round_ns = time_monotonic_ns() - began_ns;
			next_ns = began_ns + WORKLOAD_INTERVAL_NS;
		}
	}
	orphaned = w->orphaned;
	pthread_mutex_unlock(&w->lock);
	if (orphaned)
		destroy(w);
	return NULL;
}

bool
workload_start(struct workload *w, struct err *err)
{
	w->has_thread = thread_start("that reads cgroups", run, w, &w->thread, err);
	return w->has_thread;
}

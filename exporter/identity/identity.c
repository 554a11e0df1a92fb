/* exporter/identity/identity.c - PID to holder: the processes that are known, and the holders, each content once. */
#include "exporter/identity/identity.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/time.h"
#include "exporter/identity/cgroup.h"
#include "exporter/identity/identity_proc.h"
#include "exporter/identity/kubelet/pod_folders.h"

#define HELD_MAX 512u      /* descriptors spent on not reading /proc; beyond them it is read */
#define RETRY_SWEEPS 32u   /* unknown names are looked up again after 1, 2, 4 ... so many */
#define ENDED_MAX 4096u    /* processes remembered after their end */
#define ENDED_SWEEPS 16u   /* for so many */
#define CONTAINER_CHARS 12 /* of a container's id, as `crictl ps` shows it */
#define IDLE_MAX 1024u     /* holders kept without a use */
#define HOLDER_TEXTS 9

struct holder_entry {
	struct wire_holder wire;
	size_t uses; /* processes and allocations */
};

struct holders {
	struct holder_entry **entries;
	size_t count;
	struct hash by_content;
	struct hash by_id;
	uint32_t last_id;
};

struct pid_entry {
	uint32_t pid;
	uint64_t start_ticks;
	int held; /* see proc_hold(); -1: none */
	bool ended;
	char slurm_sluid[SLUID_CHARS + 1];
	bool unmapped; /* no file names its SLUID */
	struct holder_entry *holder;
	uint64_t asked;    /* the sweep in which it was last asked for */
	uint64_t retry_at; /* the sweep in which its unknown names are looked up again; 0: all are known */
	uint64_t retry_wait;
};

/* The number of the job with a SLUID. */
struct job_name {
	char sluid[SLUID_CHARS + 1];
	char *job; /* NULL: two files name this SLUID, so neither is believed */
};

/* A process that is no longer asked for. Its use of the holder is kept. */
struct ended {
	uint32_t pid;
	uint64_t start_ticks;
	struct holder_entry *holder;
	uint64_t sweep;
};

struct identity {
	struct proc proc;
	struct cgroup_base base;
	struct pod_folders pods;
	uint64_t pods_read; /* in this sweep */
	char *slurm_pod_namespaces;
	struct job_name *jobs; /* ordered by SLUID */
	size_t job_count;
	struct user_names *users;
	struct podlabels_list labels;
	uint64_t labels_version;
	bool misses_labels;
	int64_t patience_ns; /* left in this sweep */
	uint64_t sweep, polled;
	struct pid_entry *pids;
	struct pollfd *polls; /* as long as pids */
	size_t pid_count, pid_cap, held_count;
	struct hash by_pid;
	struct ended *ended; /* oldest first */
	size_t ended_count;
	struct holders holders;
};

/* ---- holders, each content once ---- */

static void
texts_of(const struct wire_holder *w, const char *out[HOLDER_TEXTS])
{
	const char *const texts[HOLDER_TEXTS] = {w->ns,        w->pod,       w->pod_uid,
	                                         w->container, w->slurm_job, w->slurm_account,
	                                         w->user,      w->group,     w->labels};

	for (size_t i = 0; i < HOLDER_TEXTS; i++)
		out[i] = texts[i] ? texts[i] : "";
}

static uint64_t
hash_of(const struct wire_holder *w)
{
	const char *texts[HOLDER_TEXTS];
	uint64_t hash = hash_number(hash_number(HASH_START, w->kind), (uint64_t)w->uid);

	texts_of(w, texts);
	for (size_t i = 0; i < HOLDER_TEXTS; i++)
		hash = hash_text(hash, texts[i]);
	return hash;
}

static bool
same_content(const struct wire_holder *a, const struct wire_holder *b)
{
	const char *x[HOLDER_TEXTS], *y[HOLDER_TEXTS];

	if (a->kind != b->kind || a->uid != b->uid)
		return false;
	texts_of(a, x);
	texts_of(b, y);
	for (size_t i = 0; i < HOLDER_TEXTS; i++)
		if (strcmp(x[i], y[i]) != 0)
			return false;
	return true;
}

static void
entry_free(struct holder_entry *e)
{
	wire_holder_fini(&e->wire);
	mem_free(e);
}

static void
holders_fini(struct holders *h)
{
	for (size_t i = 0; i < h->count; i++)
		entry_free(h->entries[i]);
	mem_free(h->entries);
	hash_fini(&h->by_content);
	hash_fini(&h->by_id);
	*h = (struct holders){0};
}

static void
index_entry(struct holders *h, size_t position)
{
	const struct wire_holder *w = &h->entries[position]->wire;

	hash_add(&h->by_content, hash_of(w), position);
	hash_put(&h->by_id, w->id, position);
}

static char *
text_copy(const char *s)
{
	return mem_strdup(s ? s : "");
}

/* The entry with this content, made if there is none; the id in `content` is ignored, a text that is NULL is empty, and texts are
 * copied. */
static struct holder_entry *
holders_get(struct holders *h, const struct wire_holder *content)
{
	uint64_t key = hash_of(content);
	struct holder_entry *e;
	size_t at, slot;

	for (at = hash_first(&h->by_content, key, &slot); at != HASH_NONE; at = hash_next(&h->by_content, key, &slot))
		if (same_content(&h->entries[at]->wire, content))
			return h->entries[at];
	e = mem_alloc(sizeof(*e));
	e->wire = (struct wire_holder){.id = ++h->last_id,
	                               .kind = content->kind,
	                               .ns = text_copy(content->ns),
	                               .pod = text_copy(content->pod),
	                               .pod_uid = text_copy(content->pod_uid),
	                               .container = text_copy(content->container),
	                               .slurm_job = text_copy(content->slurm_job),
	                               .slurm_account = text_copy(content->slurm_account),
	                               .user = text_copy(content->user),
	                               .group = text_copy(content->group),
	                               .labels = text_copy(content->labels),
	                               .uid = content->uid};
	h->entries = mem_grow(h->entries, h->count + 1, sizeof(*h->entries));
	h->entries[h->count++] = e;
	index_entry(h, h->count - 1);
	return e;
}

/* NULL: no such id. */
static struct holder_entry *
holders_by_id(const struct holders *h, uint32_t id)
{
	size_t at;

	return hash_find(&h->by_id, id, &at) ? h->entries[at] : NULL;
}

/* Drops unused entries when there are many of them, so that a workload that comes back soon keeps its own. */
static void
holders_sweep(struct holders *h)
{
	size_t idle = 0, kept = 0;

	for (size_t i = 0; i < h->count; i++)
		idle += h->entries[i]->uses == 0;
	if (idle <= IDLE_MAX)
		return;
	for (size_t i = 0; i < h->count; i++) {
		if (h->entries[i]->uses > 0)
			h->entries[kept++] = h->entries[i];
		else
			entry_free(h->entries[i]);
	}
	h->count = kept;
	hash_clear(&h->by_content);
	hash_clear(&h->by_id);
	for (size_t i = 0; i < kept; i++)
		index_entry(h, i);
}

/* ---- setting up ---- */

struct identity *
identity_new(const struct identity_options *o)
{
	struct identity *id = mem_alloc(sizeof(*id));
	size_t len;

	proc_init(&id->proc, o->proc_root);
	pod_folders_init(&id->pods, o->pods_root);
	id->slurm_pod_namespaces = mem_strdup(o->slurm_pod_namespaces ? o->slurm_pod_namespaces : "");
	id->users = user_names_new(&o->users);
	id->ended = mem_array(ENDED_MAX, sizeof(*id->ended));
	id->sweep = 1;
	id->patience_ns = IDENTITY_PATIENCE_NS;
	if (proc_read(&id->proc, "self", "cgroup", &len, NULL))
		cgroup_base_parse(id->proc.text, len, &id->base);
	return id;
}

static void
forget_jobs(struct identity *id)
{
	for (size_t i = 0; i < id->job_count; i++)
		mem_free(id->jobs[i].job);
	mem_free(id->jobs);
	id->jobs = NULL;
	id->job_count = 0;
}

void
identity_free(struct identity *id)
{
	if (!id)
		return;
	for (size_t i = 0; i < id->pid_count; i++)
		if (id->pids[i].held >= 0)
			close(id->pids[i].held);
	holders_fini(&id->holders);
	user_names_free(id->users);
	pod_folders_fini(&id->pods);
	podlabels_list_fini(&id->labels);
	forget_jobs(id);
	mem_free(id->slurm_pod_namespaces);
	proc_fini(&id->proc);
	hash_fini(&id->by_pid);
	mem_free(id->pids);
	mem_free(id->polls);
	mem_free(id->ended);
	mem_free(id);
}

/* ---- the holder of a process ---- */

/* The folder of a pod, looked for once per sweep while there is none. */
static const struct pod_folder *
find_pod_folder(struct identity *id, const char *uid)
{
	const struct pod_folder *folder = pod_folders_by_uid(&id->pods, uid);

	if (!folder && id->pods_read != id->sweep) {
		pod_folders_read(&id->pods);
		id->pods_read = id->sweep;
		folder = pod_folders_by_uid(&id->pods, uid);
	}
	return folder;
}

/* wire_holder has writable texts; holders_get only reads them. */
static char *
borrowed(const char *text)
{
	return (char *)(uintptr_t)text;
}

/* A pod without folder is a holder without name, until it has one; then it is another holder. */
static struct holder_entry *
pod_holder(struct identity *id, struct cgroup_owner *o, bool *ret_known)
{
	const struct pod_folder *folder = find_pod_folder(id, o->pod_uid);
	struct wire_holder h = {.kind = WIRE_POD, .uid = -1, .pod_uid = o->pod_uid, .container = o->container_id};

	o->container_id[CONTAINER_CHARS] = '\0';
	h.labels = borrowed(identity_labels(id, o->pod_uid));
	if (folder) {
		h.ns = folder->ns;
		h.pod = folder->name;
	}
	*ret_known = folder != NULL;
	return holders_get(&id->holders, &h);
}

static int
by_sluid(const void *a, const void *b)
{
	return strcmp(((const struct job_name *)a)->sluid, ((const struct job_name *)b)->sluid);
}

/* NULL: the number is not known. */
static const char *
job_of_sluid(const struct identity *id, const char *sluid)
{
	struct job_name wanted = {0};
	const struct job_name *found;

	memcpy(wanted.sluid, sluid, sizeof(wanted.sluid));
	found = id->jobs ? bsearch(&wanted, id->jobs, id->job_count, sizeof(*id->jobs), by_sluid) : NULL;
	return found ? found->job : NULL;
}

/* A job or a host user. The number is the identity; the name joins it when it is known. */
static struct holder_entry *
user_holder(struct identity *id, struct cgroup_owner *o, int64_t uid, bool *ret_known)
{
	struct user_name name = user_names_get(id->users, (uint32_t)uid, &id->patience_ns);
	owned(mem) char *user = name.name ? mem_strdup(name.name) : mem_printf("%" PRId64, uid);
	struct wire_holder h = {.kind = o->slurm_job[0] ? WIRE_SLURM_JOB : WIRE_HOST_USER,
	                        .slurm_job = o->slurm_job,
	                        .user = user,
	                        .uid = uid,
	                        .group = borrowed(name.group)};

	*ret_known = name.name != NULL;
	return holders_get(&id->holders, &h);
}

/* Rule 10 of cgroup.h: a job inside a pod is believed if the kubelet's own record says that the pod is one of Slurm's. */
static void
choose_pod_or_job(struct identity *id, struct cgroup_owner *o)
{
	const struct pod_folder *folder;

	if (!o->pod_uid[0] || !cgroup_names_job(o))
		return;
	folder = find_pod_folder(id, o->pod_uid);
	if (folder && identity_runs_slurm(id, folder->ns))
		o->pod_uid[0] = o->container_id[0] = '\0';
	else
		cgroup_forget_job(o);
}

/* The number of a job whose cgroup has its SLUID: from the job's file, or as it was known before that was removed. Without either the SLUID
 * is in its place. */
static void
number_job(const struct identity *id, struct pid_entry *e, struct cgroup_owner *o)
{
	const char *job = job_of_sluid(id, o->slurm_sluid);

	if (!job && e->holder && !e->unmapped && strcmp(e->slurm_sluid, o->slurm_sluid) == 0)
		job = e->holder->wire.slurm_job;
	memcpy(e->slurm_sluid, o->slurm_sluid, sizeof(e->slurm_sluid));
	e->unmapped = o->slurm_sluid[0] && !job;
	if (o->slurm_sluid[0])
		snprintf(o->slurm_job, sizeof(o->slurm_job), "%s", job ? job : o->slurm_sluid);
}

static bool
resolve(struct identity *id, struct pid_entry *e, struct holder_entry **ret, bool *ret_known, struct err *err)
{
	struct cgroup_owner owner = {.session_uid = -1};
	uint32_t pid = e->pid;
	struct err unread;
	int64_t uid;
	size_t len;

	/* a process that makes its cgroup's path longer than the kernel can show is not hidden by that: it belongs to its user */
	if (proc_cgroup(&id->proc, pid, &len, &unread))
		(void)cgroup_owner_parse(&id->base, id->proc.text, len, &owner);
	else if (unread.kind == ERR_MISSING)
		return err_set(err, unread.kind, "%s", unread.text);
	choose_pod_or_job(id, &owner);
	number_job(id, e, &owner);
	if (owner.pod_uid[0]) {
		*ret = pod_holder(id, &owner, ret_known);
		return true;
	}
	if (!proc_uid(&id->proc, pid, &uid, err))
		return false;
	/* the user who logged in, also where the process has become another user or is in a user namespace */
	if (owner.session_uid >= 0)
		uid = owner.session_uid;
	*ret = user_holder(id, &owner, uid, ret_known);
	return true;
}

/* ---- known processes ---- */

static void
release_descriptor(struct identity *id, struct pid_entry *e)
{
	if (e->held >= 0) {
		close(e->held);
		id->held_count--;
	}
	e->held = -1;
}

static void
forget_ended(struct identity *id, size_t n)
{
	for (size_t i = 0; i < n; i++)
		id->ended[i].holder->uses--;
	id->ended_count -= n;
	memmove(id->ended, id->ended + n, id->ended_count * sizeof(*id->ended));
}

/* Remembers the holder for identity_of_ended(); the entry's use of it goes over. */
static void
retire(struct identity *id, struct pid_entry *e)
{
	release_descriptor(id, e);
	if (!e->holder)
		return;
	if (id->ended_count == ENDED_MAX)
		forget_ended(id, ENDED_MAX / 4);
	id->ended[id->ended_count++] =
		(struct ended){.pid = e->pid, .start_ticks = e->start_ticks, .holder = e->holder, .sweep = id->sweep};
	e->holder = NULL;
}

/* One system call for all processes. */
static void
poll_all(struct identity *id)
{
	id->polled = id->sweep;
	if (id->proc.watch != PROC_PIDFD || id->pid_count == 0)
		return;
	for (size_t i = 0; i < id->pid_count; i++)
		id->polls[i] = (struct pollfd){.fd = id->pids[i].held, .events = POLLIN};
	if (poll(id->polls, id->pid_count, 0) <= 0)
		return;
	for (size_t i = 0; i < id->pid_count; i++)
		id->pids[i].ended = id->polls[i].fd >= 0 && id->polls[i].revents != 0;
}

static bool
is_same_process(struct identity *id, const struct pid_entry *e)
{
	uint64_t ticks;

	if (!e->holder)
		return false;
	if (e->held >= 0)
		return id->proc.watch == PROC_PIDFD ? !e->ended : !proc_ended(&id->proc, e->held);
	return proc_start(&id->proc, e->pid, &ticks, NULL) && ticks == e->start_ticks;
}

static bool
look_up(struct identity *id, struct pid_entry *e, struct err *err)
{
	struct holder_entry *holder = NULL;
	bool known = false;

	if (e->held < 0 && id->held_count < HELD_MAX) {
		e->held = proc_hold(&id->proc, e->pid);
		id->held_count += e->held >= 0;
	}
	if (!proc_start(&id->proc, e->pid, &e->start_ticks, err) || !resolve(id, e, &holder, &known, err))
		return false;
	/* if the process that is held still runs, the files just read are its own */
	if (e->held >= 0 && proc_ended(&id->proc, e->held))
		return err_set(err, ERR_MISSING, "process %" PRIu32 " has ended", e->pid);
	holder->uses++;
	if (e->holder)
		e->holder->uses--;
	e->holder = holder;
	e->ended = false;
	e->retry_wait = known ? 0 : e->retry_wait * 2;
	if (!known && (e->retry_wait == 0 || e->retry_wait > RETRY_SWEEPS))
		e->retry_wait = e->retry_wait == 0 ? 1 : RETRY_SWEEPS;
	e->retry_at = known ? 0 : id->sweep + e->retry_wait;
	return true;
}

static struct pid_entry *
entry_of(struct identity *id, uint32_t pid)
{
	size_t at = hash_get(&id->by_pid, pid);

	if (at == HASH_NONE) {
		if (id->pid_count == id->pid_cap) {
			id->pid_cap = id->pid_cap ? id->pid_cap * 2 : 64;
			id->pids = mem_grow(id->pids, id->pid_cap, sizeof(*id->pids));
			id->polls = mem_grow(id->polls, id->pid_cap, sizeof(*id->polls));
		}
		at = id->pid_count++;
		id->pids[at] = (struct pid_entry){.pid = pid, .held = -1};
		hash_put(&id->by_pid, pid, at);
	}
	return &id->pids[at];
}

static int64_t
boot_ns_of(const struct identity *id, uint64_t ticks)
{
	return (int64_t)ticks * id->proc.ns_per_clock_tick;
}

bool
identity_of(struct identity *id, uint32_t pid, struct process_identity *ret, struct err *err)
{
	struct pid_entry *e;

	if (id->polled != id->sweep)
		poll_all(id);
	e = entry_of(id, pid);
	if (e->asked != id->sweep || !e->holder) {
		bool same = is_same_process(id, e);

		e->asked = id->sweep;
		if (!same)
			retire(id, e);
		if ((!same || (e->retry_at && e->retry_at <= id->sweep)) && !look_up(id, e, err)) {
			retire(id, e);
			return false;
		}
	}
	*ret = (struct process_identity){.start_boot_ns = boot_ns_of(id, e->start_ticks), .holder = &e->holder->wire};
	memcpy(ret->slurm_sluid, e->slurm_sluid, sizeof(ret->slurm_sluid));
	return true;
}

const struct wire_holder *
identity_of_ended(struct identity *id, uint32_t pid, int64_t boot_ns)
{
	size_t at = hash_get(&id->by_pid, pid);

	/* the latest process of this number that had begun by then */
	if (at != HASH_NONE && id->pids[at].holder && boot_ns_of(id, id->pids[at].start_ticks) <= boot_ns)
		return &id->pids[at].holder->wire;
	for (size_t i = id->ended_count; i-- > 0;)
		if (id->ended[i].pid == pid && boot_ns_of(id, id->ended[i].start_ticks) <= boot_ns)
			return &id->ended[i].holder->wire;
	return NULL;
}

void
identity_sweep(struct identity *id)
{
	size_t kept = 0, old = 0;

	for (size_t i = 0; i < id->pid_count; i++) {
		struct pid_entry *e = &id->pids[i];

		if (e->asked == id->sweep && e->holder)
			id->pids[kept++] = *e;
		else
			retire(id, e);
	}
	while (old < id->ended_count && id->ended[old].sweep + ENDED_SWEEPS <= id->sweep)
		old++;
	if (old > 0)
		forget_ended(id, old);
	if (kept != id->pid_count) {
		id->pid_count = kept;
		hash_clear(&id->by_pid);
		for (size_t i = 0; i < kept; i++)
			hash_put(&id->by_pid, id->pids[i].pid, i);
	}
	if (old > 0)
		holders_sweep(&id->holders);
	id->sweep++;
	id->patience_ns = IDENTITY_PATIENCE_NS;
}

/* ---- jobs of Slurm ---- */

void
identity_set_jobs(struct identity *id, const struct slurm_job *jobs, size_t count)
{
	size_t kept = 0;

	forget_jobs(id);
	id->jobs = count ? mem_array(count, sizeof(*id->jobs)) : NULL;
	for (size_t i = 0; i < count; i++)
		if (jobs[i].sluid[0]) {
			struct job_name *name = &id->jobs[id->job_count++];

			*name = (struct job_name){.job = mem_strdup(jobs[i].job)};
			memcpy(name->sluid, jobs[i].sluid, sizeof(name->sluid));
		}
	if (id->job_count > 0)
		qsort(id->jobs, id->job_count, sizeof(*id->jobs), by_sluid);
	for (size_t i = 0; i < id->job_count; i++) {
		if (kept > 0 && by_sluid(&id->jobs[kept - 1], &id->jobs[i]) == 0) {
			mem_free(id->jobs[kept - 1].job);
			mem_free(id->jobs[i].job);
			id->jobs[kept - 1].job = NULL;
		} else {
			id->jobs[kept++] = id->jobs[i];
		}
	}
	id->job_count = kept;
	for (size_t i = 0; i < id->pid_count; i++)
		if (id->pids[i].unmapped && job_of_sluid(id, id->pids[i].slurm_sluid))
			id->pids[i].retry_at = id->sweep;
}

size_t
identity_unmapped(const struct identity *id)
{
	size_t n = 0;

	for (size_t i = 0; i < id->pid_count; i++)
		n += id->pids[i].holder && id->pids[i].unmapped;
	return n;
}

bool
identity_runs_slurm(const struct identity *id, const char *ns)
{
	for (const char *at = id->slurm_pod_namespaces; *at;) {
		size_t n = strcspn(at, ",");

		if (n > 0 && strlen(ns) == n && memcmp(at, ns, n) == 0)
			return true;
		at += n + (at[n] == ',');
	}
	return false;
}

/* ---- labels ---- */

const char *
identity_labels(struct identity *id, const char *pod_uid)
{
	const char *labels = podlabels_find(&id->labels, pod_uid);

	id->misses_labels |= labels == NULL;
	return labels ? labels : "";
}

const char *
identity_group(struct identity *id, int64_t uid)
{
	if (uid < 0 || uid > UINT32_MAX)
		return "";
	return user_names_get(id->users, (uint32_t)uid, &id->patience_ns).group;
}

void
identity_set_labels(struct identity *id, struct podlabels_list *list)
{
	podlabels_list_fini(&id->labels);
	id->labels = *list;
	*list = (struct podlabels_list){0};
	id->labels_version++;
	for (size_t i = 0; i < id->pid_count; i++) {
		struct pid_entry *e = &id->pids[i];
		const char *labels = e->holder && e->holder->wire.kind == WIRE_POD
		                             ? podlabels_find(&id->labels, e->holder->wire.pod_uid)
		                             : NULL;

		if (labels && strcmp(labels, e->holder->wire.labels) != 0)
			e->retry_at = id->sweep;
	}
}

bool
identity_misses_labels(struct identity *id)
{
	bool misses = id->misses_labels;

	id->misses_labels = false;
	return misses;
}

uint64_t
identity_version(struct identity *id)
{
	return id->labels_version + user_names_known(id->users);
}

const struct wire_holder *
identity_hold(struct identity *id, const struct wire_holder *content)
{
	struct holder_entry *h = holders_get(&id->holders, content);

	h->uses++;
	return &h->wire;
}

void
identity_release(struct identity *id, const struct wire_holder *holder)
{
	struct holder_entry *h = holders_by_id(&id->holders, holder->id);

	ASSERT(h && h->uses > 0);
	h->uses--;
}

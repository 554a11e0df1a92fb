/* exporter/identity/identity.c - whose process it is. */
#include "exporter/identity/identity.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/idmap.h"
#include "common/base/time.h"
#include "exporter/identity/cgroup.h"
#include "exporter/identity/identity_holders.h"
#include "exporter/identity/kubelet/identity_pods.h"
#include "exporter/identity/identity_proc.h"

#define HELD_MAX 512u      /* descriptors spent on not reading /proc; beyond them it is read */
#define RETRY_SWEEPS 32u   /* what is not known is looked up again after 1, 2, 4 ... so many */
#define ENDED_MAX 4096u    /* processes remembered after their end */
#define ENDED_SWEEPS 16u   /* for so many */
#define CONTAINER_CHARS 12 /* of its id: what people see in `crictl ps` */

struct pid_entry {
	uint32_t pid;
	uint64_t start_ticks;
	int held; /* see proc_hold(); -1: none */
	bool ended;
	struct holder_entry *holder;
	uint64_t asked;    /* the sweep in which it was last asked for */
	uint64_t retry_at; /* the sweep in which what is not known of it is looked up again; 0: all is known */
	uint64_t retry_wait;
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
	struct pod_dirs pods;
	uint64_t pods_read; /* in this sweep */
	struct user_names *users;
	struct podlabels_list labels;
	uint64_t labels_version;
	bool misses_labels;
	int64_t patience_ns; /* left in this sweep */
	uint64_t sweep, polled;
	struct pid_entry *pids;
	struct pollfd *polls; /* as long as pids */
	size_t pid_count, pid_cap, held_count;
	struct idmap by_pid;
	struct ended *ended; /* oldest first */
	size_t ended_count;
	struct holders holders;
};

struct identity *
identity_new(const struct identity_options *o)
{
	struct identity *id = mem_alloc(sizeof(*id));
	size_t len;

	proc_init(&id->proc, o->proc_root);
	pod_dirs_init(&id->pods, o->pods_root);
	id->users = user_names_new(&o->users);
	id->ended = mem_array(ENDED_MAX, sizeof(*id->ended));
	id->sweep = 1;
	id->patience_ns = IDENTITY_PATIENCE_NS;
	if (proc_read(&id->proc, "self", "cgroup", &len, NULL))
		cgroup_base_parse(id->proc.text, len, &id->base);
	return id;
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
	pod_dirs_fini(&id->pods);
	podlabels_list_fini(&id->labels);
	proc_fini(&id->proc);
	idmap_fini(&id->by_pid);
	mem_free(id->pids);
	mem_free(id->polls);
	mem_free(id->ended);
	mem_free(id);
}

/* ---- holders ---- */

/* The folder of a pod, looked for once per sweep while there is none. */
static const struct pod_dir *
find_pod(struct identity *id, const char *uid)
{
	const struct pod_dir *dir = pod_dirs_by_uid(&id->pods, uid);

	if (!dir && id->pods_read != id->sweep) {
		pod_dirs_read(&id->pods);
		id->pods_read = id->sweep;
		dir = pod_dirs_by_uid(&id->pods, uid);
	}
	return dir;
}

/* What a holder was made with is read only. */
static char *
borrowed(const char *text)
{
	return (char *)(uintptr_t)text;
}

/* A pod without folder is a holder without name, until it has one; then it is another holder. */
static struct holder_entry *
pod_holder(struct identity *id, struct cgroup_owner *o, bool *ret_known)
{
	const struct pod_dir *dir = find_pod(id, o->pod_uid);
	struct wire_holder h = {.kind = WIRE_POD, .uid = -1, .pod_uid = o->pod_uid, .container = o->container_id};

	o->container_id[CONTAINER_CHARS] = '\0';
	h.labels = borrowed(identity_labels(id, o->pod_uid));
	if (dir) {
		h.ns = dir->ns;
		h.pod = dir->name;
	}
	*ret_known = dir != NULL;
	return holders_get(&id->holders, &h);
}

/* A job or a host user. The number is the identity; the name joins it when it is known. */
static struct holder_entry *
user_holder(struct identity *id, struct cgroup_owner *o, int64_t uid, bool *ret_known)
{
	struct user_name who = user_names_get(id->users, (uint32_t)uid, &id->patience_ns);
	owned(mem) char *user = who.name ? mem_strdup(who.name) : mem_printf("%" PRId64, uid);
	struct wire_holder h = {.kind = o->slurm_job[0] ? WIRE_SLURM_JOB : WIRE_HOST_USER,
	                        .slurm_job = o->slurm_job,
	                        .user = user,
	                        .uid = uid,
	                        .group = borrowed(who.group)};

	*ret_known = who.name != NULL;
	return holders_get(&id->holders, &h);
}

static bool
resolve(struct identity *id, uint32_t pid, struct holder_entry **ret, bool *ret_known, struct err *err)
{
	struct cgroup_owner owner = {.session_uid = -1};
	struct err unread;
	int64_t uid;
	size_t len;

	/* a process may make its cgroup's path longer than the kernel can show: that does not hide it, it is its user's then */
	if (proc_cgroup(&id->proc, pid, &len, &unread))
		(void)cgroup_owner_parse(&id->base, id->proc.text, len, &owner);
	else if (unread.kind == ERR_MISSING)
		return err_set(err, unread.kind, "%s", unread.text);
	if (owner.pod_uid[0]) {
		*ret = pod_holder(id, &owner, ret_known);
		return true;
	}
	if (!proc_uid(&id->proc, pid, &uid, err))
		return false;
	/* who logged in, also where the process has become another user or lives in a user namespace */
	if (owner.session_uid >= 0)
		uid = owner.session_uid;
	*ret = user_holder(id, &owner, uid, ret_known);
	return true;
}

/* ---- the cache ---- */

static void
let_go(struct identity *id, struct pid_entry *e)
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

/* The entry's holder is remembered for who asks about an ended process; its use goes over. */
static void
retire(struct identity *id, struct pid_entry *e)
{
	let_go(id, e);
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
still_the_same(struct identity *id, const struct pid_entry *e)
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
	if (!proc_start(&id->proc, e->pid, &e->start_ticks, err) || !resolve(id, e->pid, &holder, &known, err))
		return false;
	/* what was read is of the process that is held, if that is still there */
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
	size_t at = idmap_get(&id->by_pid, pid);

	if (at == IDMAP_NONE) {
		if (id->pid_count == id->pid_cap) {
			id->pid_cap = id->pid_cap ? id->pid_cap * 2 : 64;
			id->pids = mem_grow(id->pids, id->pid_cap, sizeof(*id->pids));
			id->polls = mem_grow(id->polls, id->pid_cap, sizeof(*id->polls));
		}
		at = id->pid_count++;
		id->pids[at] = (struct pid_entry){.pid = pid, .held = -1};
		idmap_put(&id->by_pid, pid, at);
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
		bool same = still_the_same(id, e);

		e->asked = id->sweep;
		if (!same)
			retire(id, e);
		if ((!same || (e->retry_at && e->retry_at <= id->sweep)) && !look_up(id, e, err)) {
			retire(id, e);
			return false;
		}
	}
	*ret = (struct process_identity){.start_boot_ns = boot_ns_of(id, e->start_ticks), .holder = &e->holder->wire};
	return true;
}

const struct wire_holder *
identity_of_ended(struct identity *id, uint32_t pid, int64_t boot_ns)
{
	size_t at = idmap_get(&id->by_pid, pid);

	/* the latest process of this number that had begun by then */
	if (at != IDMAP_NONE && id->pids[at].holder && boot_ns_of(id, id->pids[at].start_ticks) <= boot_ns)
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
		idmap_clear(&id->by_pid);
		for (size_t i = 0; i < kept; i++)
			idmap_put(&id->by_pid, id->pids[i].pid, i);
	}
	if (old > 0)
		holders_sweep(&id->holders);
	id->sweep++;
	id->patience_ns = IDENTITY_PATIENCE_NS;
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

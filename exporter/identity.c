/* exporter/identity.c - whose process it is. */
#include "exporter/identity.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/text.h"
#include "common/time.h"
#include "common/idmap.h"
#include "exporter/sanitize.h"

#define PROC_FILE_MAX 65536u   /* of one /proc file; more than this is cut */
#define PIDFDS_MAX 512u        /* descriptors spent on not reading /proc; beyond them it is read */
#define IDLE_HOLDERS_MAX 1024u /* kept without a process */
#define PODS_MAX 10000u        /* directories looked at */
#define RETRY_SWEEPS 30u       /* a pod without directory is looked up again after so many */
#define CONTAINER_CHARS 12     /* of its id: what people see in `crictl ps` */

struct holder_entry {
	struct wire_holder wire;
	size_t processes;
};

struct pid_entry {
	uint32_t pid;
	uint64_t start_ticks;
	int pidfd; /* -1: none */
	struct holder_entry *holder;
	uint64_t asked;    /* the sweep in which it was last asked for */
	uint64_t retry_at; /* the sweep in which an unknown pod is looked up again; 0: not needed */
};

struct identity {
	int proc_fd; /* -1: the root cannot be opened */
	char *proc_root, *pods_root;
	bool use_pidfds;
	int64_t ns_per_clock_tick;
	uint64_t sweep;
	struct pid_entry *pids;
	size_t pid_count, pid_cap, pidfd_count;
	struct idmap by_pid;
	struct holder_entry **holders;
	size_t holder_count;
	uint32_t last_holder_id;
	char **pods; /* names of the directories of pods_root when it was last read */
	size_t pod_count;
	uint64_t pods_read;           /* in this sweep */
	char text[PROC_FILE_MAX + 1]; /* the /proc file just read */
};

static void
holder_entry_free(struct holder_entry *h)
{
	wire_holder_fini(&h->wire);
	mem_free(h);
}

static void
forget_pods(struct identity *id)
{
	for (size_t i = 0; i < id->pod_count; i++)
		mem_free(id->pods[i]);
	mem_free(id->pods);
	id->pods = NULL;
	id->pod_count = 0;
}

struct identity *
identity_new(const struct identity_options *o)
{
	struct identity *id = mem_alloc(sizeof(*id));
	long ticks = sysconf(_SC_CLK_TCK);

	id->proc_root = mem_strdup(o->proc_root);
	id->pods_root = mem_strdup(o->pods_root);
	id->proc_fd = open(o->proc_root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* another root's PIDs are not those of this process's system calls */
	id->use_pidfds = strcmp(o->proc_root, "/proc") == 0;
	id->ns_per_clock_tick = NS_PER_S / (ticks > 0 ? ticks : 100);
	id->sweep = 1;
	return id;
}

void
identity_free(struct identity *id)
{
	if (!id)
		return;
	for (size_t i = 0; i < id->pid_count; i++)
		if (id->pids[i].pidfd >= 0)
			close(id->pids[i].pidfd);
	for (size_t i = 0; i < id->holder_count; i++)
		holder_entry_free(id->holders[i]);
	forget_pods(id);
	if (id->proc_fd >= 0)
		close(id->proc_fd);
	idmap_fini(&id->by_pid);
	mem_free(id->pids);
	mem_free(id->holders);
	mem_free(id->proc_root);
	mem_free(id->pods_root);
	mem_free(id);
}

/* ---- /proc ---- */

/* Reads PROC/PID/NAME into id->text. ESRCH and ENOENT both mean that the process is gone. */
static bool
read_proc(struct identity *id, uint32_t pid, const char *name, size_t *ret_len, struct err *err)
{
	char path[48];
	size_t len = 0;
	ssize_t got = 0;
	int fd;

	snprintf(path, sizeof(path), "%" PRIu32 "/%s", pid, name);
	fd = openat(id->proc_fd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_MISSING, errno, "process %" PRIu32 ": cannot open %s/%s", pid, id->proc_root,
		                 path);
	while (len < PROC_FILE_MAX && (got = read(fd, id->text + len, PROC_FILE_MAX - len)) != 0) {
		if (got < 0 && errno != EINTR)
			break;
		len += got > 0 ? (size_t)got : 0;
	}
	close(fd);
	if (got < 0)
		return err_errno(err, ERR_MISSING, errno, "process %" PRIu32 ": cannot read %s/%s", pid, id->proc_root,
		                 path);
	id->text[len] = '\0';
	*ret_len = len;
	return true;
}

/* Field 22 of stat. The name in field 2 may hold anything, so fields are counted from its last ')'. */
static bool
read_start(struct identity *id, uint32_t pid, uint64_t *ret_ticks, struct err *err)
{
	const char *at;
	char *end;
	size_t len;

	if (!read_proc(id, pid, "stat", &len, err))
		return false;
	at = memrchr(id->text, ')', len);
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at) {
		errno = 0;
		*ret_ticks = strtoull(at + 1, &end, 10);
		if (end != at + 1 && errno == 0 && *ret_ticks <= (uint64_t)(INT64_MAX / id->ns_per_clock_tick))
			return true;
	}
	return err_set(err, ERR_MISSING, "process %" PRIu32 ": %s/%" PRIu32 "/stat has no start time", pid,
	               id->proc_root, pid);
}

/* The real uid: who started it, whatever it may do. */
static bool
read_uid(struct identity *id, uint32_t pid, int64_t *ret_uid, struct err *err)
{
	const char key[] = "\nUid:";
	const char *at;
	unsigned long long uid;
	char *end;
	size_t len;

	if (!read_proc(id, pid, "status", &len, err))
		return false;
	at = memmem(id->text, len, key, strlen(key));
	if (at) {
		uid = strtoull(at + strlen(key), &end, 10);
		if (end != at + strlen(key) && uid <= UINT32_MAX) {
			*ret_uid = (int64_t)uid;
			return true;
		}
	}
	return err_set(err, ERR_MISSING, "process %" PRIu32 ": %s/%" PRIu32 "/status has no Uid", pid, id->proc_root,
	               pid);
}

/* A pidfd is readable once its process has ended; it never turns to another process with the same number. */
static bool
has_ended(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return poll(&p, 1, 0) != 0;
}

/* ---- pods ---- */

static void
read_pods(struct identity *id)
{
	DIR *dir = opendir(id->pods_root);
	const struct dirent *entry;

	forget_pods(id);
	id->pods_read = id->sweep;
	if (!dir)
		return;
	while (id->pod_count < PODS_MAX && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		id->pods = mem_grow(id->pods, id->pod_count + 1, sizeof(*id->pods));
		id->pods[id->pod_count++] = mem_strdup(entry->d_name);
	}
	closedir(dir);
}

/* The directory "<namespace>_<name>_<uid>"; neither namespace nor name can contain '_'. */
static const char *
find_pod(const struct identity *id, const char *uid)
{
	for (size_t i = 0; i < id->pod_count; i++) {
		const char *name = id->pods[i], *last = strrchr(name, '_');

		if (last && strcmp(last + 1, uid) == 0 && strchr(name, '_') != last)
			return name;
	}
	return NULL;
}

/* Fills namespace and name. False when the node has no directory for this pod. */
static bool
name_pod(struct identity *id, const char *uid, struct wire_holder *h)
{
	const char *name = find_pod(id, uid);
	const char *first, *last;

	if (!name && id->pods_read != id->sweep) {
		read_pods(id);
		name = find_pod(id, uid);
	}
	if (!name)
		return false;
	first = strchr(name, '_');
	last = strrchr(name, '_');
	owned(mem) char *ns = mem_strndup(name, (size_t)(first - name));
	owned(mem) char *pod = mem_strndup(first + 1, (size_t)(last - first - 1));

	h->ns = sanitized_copy(ns, WIRE_MAX_TEXT);
	h->pod = sanitized_copy(pod, WIRE_MAX_TEXT);
	return true;
}

/* ---- holders ---- */

static struct holder_entry *
find_pod_holder(const struct identity *id, const char *pod_uid, const char *container, bool named)
{
	for (size_t i = 0; i < id->holder_count; i++) {
		const struct wire_holder *h = &id->holders[i]->wire;

		if (h->kind == WIRE_POD && strcmp(h->pod_uid, pod_uid) == 0 && strcmp(h->container, container) == 0 &&
		    named == (h->pod[0] != '\0'))
			return id->holders[i];
	}
	return NULL;
}

static struct holder_entry *
find_user_holder(const struct identity *id, uint32_t kind, const char *job, int64_t uid)
{
	for (size_t i = 0; i < id->holder_count; i++) {
		const struct wire_holder *h = &id->holders[i]->wire;

		if (h->kind == kind && h->uid == uid && strcmp(h->slurm_job, job) == 0)
			return id->holders[i];
	}
	return NULL;
}

static char *
text_or_empty(char *s)
{
	return s ? s : mem_strdup("");
}

/* Takes the texts over; those that are NULL become empty. */
static struct holder_entry *
add_holder(struct identity *id, struct wire_holder h)
{
	struct holder_entry *entry = mem_alloc(sizeof(*entry));

	h.id = ++id->last_holder_id;
	h.ns = text_or_empty(h.ns);
	h.pod = text_or_empty(h.pod);
	h.pod_uid = text_or_empty(h.pod_uid);
	h.container = text_or_empty(h.container);
	h.slurm_job = text_or_empty(h.slurm_job);
	h.slurm_account = text_or_empty(h.slurm_account);
	h.user = text_or_empty(h.user);
	entry->wire = h;
	id->holders = mem_grow(id->holders, id->holder_count + 1, sizeof(*id->holders));
	id->holders[id->holder_count++] = entry;
	return entry;
}

static char *
user_name(int64_t uid)
{
	struct passwd pw, *found = NULL;
	char text[4096];

	if (getpwuid_r((uid_t)uid, &pw, text, sizeof(text), &found) == 0 && found && found->pw_name[0])
		return sanitized_copy(found->pw_name, WIRE_MAX_TEXT);
	return mem_printf("%" PRId64, uid);
}

/* A pod without directory is a holder without name, until it has one; then it is another holder. */
static struct holder_entry *
pod_holder(struct identity *id, const struct cgroup_owner *o)
{
	owned(mem) char *container = mem_strndup(o->container_id, CONTAINER_CHARS);
	struct wire_holder h = {.kind = WIRE_POD, .uid = -1};
	struct holder_entry *known;

	known = find_pod_holder(id, o->pod_uid, container, true);
	if (!known && !name_pod(id, o->pod_uid, &h))
		known = find_pod_holder(id, o->pod_uid, container, false);
	if (known)
		return known;
	h.pod_uid = mem_strdup(o->pod_uid);
	h.container = take(container);
	return add_holder(id, h);
}

static bool
resolve(struct identity *id, uint32_t pid, struct holder_entry **ret, struct err *err)
{
	struct cgroup_owner owner;
	struct wire_holder h = {.kind = WIRE_HOST_USER, .uid = -1};
	size_t len;

	if (!read_proc(id, pid, "cgroup", &len, err))
		return false;
	if (cgroup_owner_parse(id->text, len, &owner) && owner.pod_uid[0]) {
		*ret = pod_holder(id, &owner);
		return true;
	}
	if (!read_uid(id, pid, &h.uid, err))
		return false;
	if (owner.slurm_job[0])
		h.kind = WIRE_SLURM_JOB;
	*ret = find_user_holder(id, h.kind, owner.slurm_job, h.uid);
	if (*ret)
		return true;
	h.slurm_job = mem_strdup(owner.slurm_job);
	h.user = user_name(h.uid);
	*ret = add_holder(id, h);
	return true;
}

/* ---- the cache ---- */

static void
drop_pid(struct identity *id, struct pid_entry *e)
{
	if (e->pidfd >= 0) {
		close(e->pidfd);
		id->pidfd_count--;
	}
	e->pidfd = -1;
	if (e->holder)
		e->holder->processes--;
	e->holder = NULL;
}

static bool
still_the_same(struct identity *id, struct pid_entry *e)
{
	uint64_t ticks;

	if (!e->holder || (e->retry_at && e->retry_at <= id->sweep))
		return false;
	if (e->pidfd >= 0)
		return !has_ended(e->pidfd);
	return read_start(id, e->pid, &ticks, NULL) && ticks == e->start_ticks;
}

static bool
look_up(struct identity *id, struct pid_entry *e, struct err *err)
{
	struct holder_entry *holder = NULL;

	if (id->use_pidfds && id->pidfd_count < PIDFDS_MAX) {
		e->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)e->pid, 0);
		id->pidfd_count += e->pidfd >= 0;
	}
	if (!read_start(id, e->pid, &e->start_ticks, err) || !resolve(id, e->pid, &holder, err))
		return false;
	/* what was read is of the process that the pidfd names, if that is still there */
	if (e->pidfd >= 0 && has_ended(e->pidfd))
		return err_set(err, ERR_MISSING, "process %" PRIu32 " has ended", e->pid);
	e->holder = holder;
	holder->processes++;
	e->retry_at = holder->wire.kind == WIRE_POD && !holder->wire.pod[0] ? id->sweep + RETRY_SWEEPS : 0;
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
		}
		at = id->pid_count++;
		id->pids[at] = (struct pid_entry){.pid = pid, .pidfd = -1};
		idmap_put(&id->by_pid, pid, at);
	}
	return &id->pids[at];
}

bool
identity_of(struct identity *id, uint32_t pid, struct process_identity *ret, struct err *err)
{
	struct pid_entry *e = entry_of(id, pid);

	if (e->asked != id->sweep || !e->holder) {
		e->asked = id->sweep;
		if (!still_the_same(id, e)) {
			drop_pid(id, e);
			if (!look_up(id, e, err)) {
				drop_pid(id, e);
				return false;
			}
		}
	}
	*ret = (struct process_identity){.start_boot_ns = (int64_t)e->start_ticks * id->ns_per_clock_tick,
	                                 .holder = &e->holder->wire};
	return true;
}

/* Holders are dropped all at once, when many have no process: a workload that comes back soon keeps its entry. */
static void
drop_idle_holders(struct identity *id)
{
	size_t idle = 0, kept = 0;

	for (size_t i = 0; i < id->holder_count; i++)
		idle += id->holders[i]->processes == 0;
	if (idle <= IDLE_HOLDERS_MAX)
		return;
	for (size_t i = 0; i < id->holder_count; i++) {
		if (id->holders[i]->processes > 0)
			id->holders[kept++] = id->holders[i];
		else
			holder_entry_free(id->holders[i]);
	}
	id->holder_count = kept;
}

void
identity_sweep(struct identity *id)
{
	size_t kept = 0;

	for (size_t i = 0; i < id->pid_count; i++) {
		struct pid_entry *e = &id->pids[i];

		if (e->asked == id->sweep && e->holder)
			id->pids[kept++] = *e;
		else
			drop_pid(id, e);
	}
	if (kept != id->pid_count) {
		id->pid_count = kept;
		idmap_clear(&id->by_pid);
		for (size_t i = 0; i < kept; i++)
			idmap_put(&id->by_pid, id->pids[i].pid, i);
		drop_idle_holders(id);
	}
	id->sweep++;
}

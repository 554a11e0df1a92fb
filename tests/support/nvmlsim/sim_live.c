/* tests/support/nvmlsim/sim_live.c - a folder in which real processes register themselves. */
#include "tests/support/nvmlsim/sim_live.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/buf.h"

#define NAME_SIZE 256
#define TEXT_MAX 4096
#define FOLDER_EVENT UINT64_MAX

/* A file of the folder; one that was refused has no process and is not read again until it changes. */
struct registration {
	char name[NAME_SIZE];
	ino_t inode;
	struct timespec changed;
	const struct sim_process *process; /* owned by the world */
	int pidfd;                         /* -1: the kernel has none, or the process is gone */
	bool seen;                         /* by the scan under way */
};

struct live {
	char *path;
	struct scenario *sc;
	int dir, inotify, epoll;
	bool stale; /* the folder has changed */
	struct registration *entries;
	size_t count;
};

bool
live_open(const char *dir, struct scenario *sc, struct live **ret, struct err *err)
{
	owned(live) struct live *l = mem_alloc(sizeof(*l));
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = FOLDER_EVENT};

	*l = (struct live){.path = mem_strdup(dir), .sc = sc, .dir = -1, .epoll = -1, .stale = true};
	l->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	l->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (l->dir < 0)
		return err_errno(err, ERR_FATAL, errno, "%s, the folder of registrations, cannot be opened", dir);
	if (l->inotify < 0 || l->epoll < 0 ||
	    inotify_add_watch(l->inotify, dir, IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE) < 0 ||
	    epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->inotify, &event) != 0)
		return err_errno(err, ERR_FATAL, errno, "%s cannot be watched", dir);
	*ret = take(l);
	return true;
}

void
live_free(struct live *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->count; i++)
		if (l->entries[i].pidfd >= 0)
			close(l->entries[i].pidfd);
	if (l->inotify >= 0)
		close(l->inotify);
	if (l->epoll >= 0)
		close(l->epoll);
	if (l->dir >= 0)
		close(l->dir);
	mem_free(l->entries);
	mem_free(l->path);
	mem_free(l);
}

/* ---- one registration ----------------------------------------------------------------------------------------------- */

static void
end_process(struct registration *e, struct world *w)
{
	if (e->process)
		world_end(w, e->process);
	if (e->pidfd >= 0)
		close(e->pidfd);
	e->process = NULL;
	e->pidfd = -1;
}

/* A pidfd becomes readable when its process ends, and is never another process's. */
static bool
follow_pid(const struct live *l, struct registration *e, uint32_t pid)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = pid};

	e->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	if (e->pidfd < 0)
		return errno != ESRCH && kill((pid_t)pid, 0) == 0;
	return epoll_ctl(l->epoll, EPOLL_CTL_ADD, e->pidfd, &event) == 0;
}

static bool
begin_process(struct live *l, struct registration *e, struct world *w, struct err *err)
{
	in_place(buf) struct buf text;
	struct sim_process *p = NULL;
	owned(mem) char *path = mem_printf("%s/%s", l->path, e->name);

	buf_init(&text, TEXT_MAX);
	if (!buf_read_file(&text, path, err))
		return err->kind == ERR_MISSING; /* removed meanwhile */
	if (!scenario_parse_live(l->sc, path, buf_text(&text), text.len, &p, err))
		return false;
	if (!follow_pid(l, e, p->pid)) {
		sim_process_fini(p);
		mem_free(p);
		return true;
	}
	world_add(w, p);
	e->process = p;
	return true;
}

static struct registration *
find_entry(struct live *l, const char *name)
{
	for (size_t i = 0; i < l->count; i++)
		if (strcmp(l->entries[i].name, name) == 0)
			return &l->entries[i];
	if (l->count == LIVE_MAX || strlen(name) >= NAME_SIZE)
		return NULL;
	l->entries = mem_grow(l->entries, l->count + 1, sizeof(*l->entries));
	l->entries[l->count] = (struct registration){.pidfd = -1};
	snprintf(l->entries[l->count].name, NAME_SIZE, "%s", name);
	return &l->entries[l->count++];
}

static bool
look_at(struct live *l, const char *name, struct world *w, struct err *err)
{
	struct registration *e;
	struct stat st;

	if (name[0] == '.' || fstatat(l->dir, name, &st, 0) != 0 || !S_ISREG(st.st_mode))
		return true;
	e = find_entry(l, name);
	if (!e)
		return err_set(err, ERR_INVALID, "%s has more than %u registrations", l->path, LIVE_MAX);
	e->seen = true;
	if (e->inode == st.st_ino && e->changed.tv_sec == st.st_mtim.tv_sec && e->changed.tv_nsec == st.st_mtim.tv_nsec)
		return true;
	e->inode = st.st_ino;
	e->changed = st.st_mtim;
	end_process(e, w);
	return begin_process(l, e, w, err);
}

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

static bool
scan(struct live *l, struct world *w, struct err *err)
{
	int fd = openat(l->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	struct err refused;
	bool ok = true;
	size_t kept = 0;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return err_errno(err, ERR_RETRY, errno, "%s cannot be read", l->path);
	}
	for (size_t i = 0; i < l->count; i++)
		l->entries[i].seen = false;
	while ((entry = readdir(dir)))
		if (!look_at(l, entry->d_name, w, &refused)) {
			ok = false;
			*err = refused;
		}
	closedir(dir);
	for (size_t i = 0; i < l->count; i++) {
		if (!l->entries[i].seen)
			end_process(&l->entries[i], w);
		else if (kept++ != i)
			l->entries[kept - 1] = l->entries[i];
	}
	l->count = kept;
	return ok;
}

static void
end_pid(struct live *l, uint64_t pid, struct world *w)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->entries[i].process && l->entries[i].process->pid == pid)
			end_process(&l->entries[i], w);
}

bool
live_sync(struct live *l, struct world *w, struct err *err)
{
	struct epoll_event events[16];
	char drained[4096];
	int n = epoll_wait(l->epoll, events, ARRAY_LEN(events), 0);

	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 != FOLDER_EVENT) {
			end_pid(l, events[i].data.u64, w);
			continue;
		}
		while (read(l->inotify, drained, sizeof(drained)) > 0)
			;
		l->stale = true;
	}
	if (!l->stale)
		return true;
	l->stale = false;
	return scan(l, w, err);
}

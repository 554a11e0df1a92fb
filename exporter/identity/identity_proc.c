/* exporter/identity/identity_proc.c - the files of a process in /proc. */
#include "exporter/identity/identity_proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/base/time.h"

void
proc_init(struct proc *p, const char *root)
{
	long ticks = sysconf(_SC_CLK_TCK);
	struct statfs fs;

	p->root = mem_strdup(root);
	p->fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	p->ns_per_clock_tick = NS_PER_S / (ticks > 0 ? ticks : 100);
	p->watch = PROC_READ;
	/* another root's PIDs are not those of this process's system calls */
	if (p->fd >= 0 && fstatfs(p->fd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC)
		p->watch = strcmp(root, "/proc") == 0 ? PROC_PIDFD : PROC_FOLDER;
}

void
proc_fini(struct proc *p)
{
	if (p->fd >= 0)
		close(p->fd);
	mem_free(p->root);
	p->fd = -1;
	p->root = NULL;
}

static bool
fail(const struct proc *p, const char *path, int errnum, struct err *err)
{
	/* ESRCH: it ended while it was read */
	enum err_kind kind = errnum == ENOENT || errnum == ESRCH ? ERR_MISSING : ERR_DENIED;

	return err_errno(err, kind, errnum, "cannot read %s/%s", p->root, path);
}

bool
proc_read(struct proc *p, const char *name, const char *file, size_t *ret_len, struct err *err)
{
	char path[48];
	size_t len = 0;
	ssize_t got = 0;
	int fd, errnum;

	snprintf(path, sizeof(path), "%s/%s", name, file);
	fd = openat(p->fd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fail(p, path, p->fd < 0 ? ENOENT : errno, err);
	while (len < PROC_FILE_MAX && (got = read(fd, p->text + len, PROC_FILE_MAX - len)) != 0) {
		if (got < 0 && errno != EINTR)
			break;
		len += got > 0 ? (size_t)got : 0;
	}
	errnum = errno;
	close(fd);
	if (got < 0)
		return fail(p, path, errnum, err);
	p->text[len] = '\0';
	*ret_len = len;
	return true;
}

static bool
read_pid(struct proc *p, uint32_t pid, const char *file, size_t *ret_len, struct err *err)
{
	char name[16];

	snprintf(name, sizeof(name), "%" PRIu32, pid);
	return proc_read(p, name, file, ret_len, err);
}

/* Field 22 of stat. The name in field 2 may hold anything, so fields are counted from its last ')'. */
bool
proc_start(struct proc *p, uint32_t pid, uint64_t *ret_ticks, struct err *err)
{
	const char *at;
	char *end;
	size_t len;

	if (!read_pid(p, pid, "stat", &len, err))
		return false;
	at = memrchr(p->text, ')', len);
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at) {
		errno = 0;
		*ret_ticks = strtoull(at + 1, &end, 10);
		if (end != at + 1 && errno == 0 && *ret_ticks <= (uint64_t)(INT64_MAX / p->ns_per_clock_tick))
			return true;
	}
	return err_set(err, ERR_MISSING, "%s/%" PRIu32 "/stat has no start time", p->root, pid);
}

bool
proc_uid(struct proc *p, uint32_t pid, int64_t *ret_uid, struct err *err)
{
	/* the kernel escapes a newline in the name, which stands before */
	const char key[] = "\nUid:";
	const char *at;
	unsigned long long uid;
	char *end;
	size_t len;

	if (!read_pid(p, pid, "status", &len, err))
		return false;
	at = memmem(p->text, len, key, strlen(key));
	if (at) {
		uid = strtoull(at + strlen(key), &end, 10);
		if (end != at + strlen(key) && uid <= UINT32_MAX) {
			*ret_uid = (int64_t)uid;
			return true;
		}
	}
	return err_set(err, ERR_MISSING, "%s/%" PRIu32 "/status has no Uid", p->root, pid);
}

bool
proc_cgroup(struct proc *p, uint32_t pid, size_t *ret_len, struct err *err)
{
	return read_pid(p, pid, "cgroup", ret_len, err);
}

int
proc_hold(const struct proc *p, uint32_t pid)
{
	char name[16];

	if (p->watch == PROC_PIDFD)
		return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	if (p->watch == PROC_READ)
		return -1;
	snprintf(name, sizeof(name), "%" PRIu32, pid);
	return openat(p->fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

bool
proc_ended(const struct proc *p, int held)
{
	struct pollfd one = {.fd = held, .events = POLLIN};

	if (p->watch == PROC_FOLDER)
		return faccessat(held, "stat", F_OK, 0) != 0;
	return poll(&one, 1, 0) != 0;
}

/* aggregator/cli/doctor/doctor_node.c - probes of this machine as a GPU node: what the exporter needs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "aggregator/cli/doctor/doctor.h"
#include "common/base/text.h"

/* The kernel's number for the first namespace of processes, which is the host's (PROC_PID_INIT_INO). */
#define HOST_PID_NAMESPACE "pid:[4026531836]"

const char *
doctor_path(const struct doctor *d, const char *path, struct facts *f)
{
	snprintf(f->thing, sizeof(f->thing), "%s%s", strcmp(d->root, "/") == 0 ? "" : d->root, path);
	return f->thing;
}

static bool
exists(const struct doctor *d, const char *path)
{
	struct facts f = {0};

	return access(doctor_path(d, path, &f), F_OK) == 0;
}

bool
doctor_is_node(const struct doctor *d)
{
	return exists(d, "/proc/driver/nvidia") || exists(d, "/dev/nvidiactl") || exists(d, d->spool_dir) ||
	       d->metrics.len > 0;
}

/* ---- driver ---- */

void
probe_driver(struct doctor *d, struct facts *ret)
{
	in_place(buf) struct buf text = {0};
	const char *path = doctor_path(d, "/proc/driver/nvidia/version", ret), *line;

	buf_init(&text, 65536);
	if (access(path, R_OK) != 0)
		ret->errnum = errno;
	else if (!buf_read_file(&text, path, NULL))
		ret->errnum = EIO;
	line = buf_text(&text);
	if (strncmp(line, "NVRM version: ", 14) == 0)
		line += 14;
	snprintf(ret->text, sizeof(ret->text), "%.*s", (int)strcspn(line, "\n"), line);
}

/* The well-known places; loading it is left to the exporter, which knows what it needs of it. */
void
probe_library(struct doctor *d, struct facts *ret)
{
	static const char *const folders[] = {
		"/usr/lib/x86_64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu",
		"/usr/lib64",
		"/usr/lib",
		"/usr/local/nvidia/lib64",
		"/usr/lib/x86_64-linux-gnu/nvidia/current",
		"/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
	};
	char path[256];

	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		snprintf(path, sizeof(path), "%s/libnvidia-ml.so.1", folders[i]);
		ret->errnum = access(doctor_path(d, path, ret), R_OK) == 0 ? 0 : errno;
		if (ret->errnum != ENOENT && ret->errnum != ENOTDIR)
			return;
	}
	ret->errnum = ENOENT;
}

static void
add_name(struct facts *f, const char *name)
{
	size_t n = strlen(f->text);

	if (n + strlen(name) + 3 < sizeof(f->text))
		snprintf(f->text + n, sizeof(f->text) - n, "%s%s", n > 0 ? ", " : "", name);
}

/* How many entries a folder has whose names do not begin with a dot; -1: it cannot be read. */
static int64_t
count_entries(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *e;
	int64_t n = 0;

	if (dir == NULL)
		return -1;
	while ((e = readdir(dir)) != NULL)
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

/* nvidiactl is opened, because a container may be denied what its mode allows; opening a GPU could start it. */
static bool
can_open(const char *path, const char *name)
{
	int fd;

	if (strcmp(name, "nvidiactl") != 0)
		return access(path, R_OK | W_OK) == 0;
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* nvidiactl and nvidia0, nvidia1, ...: what NVML opens. The driver lists its GPUs, so that a file that was not made is missed. */
void
probe_devices(struct doctor *d, struct facts *ret)
{
	struct facts at = {0};
	int64_t gpus = count_entries(doctor_path(d, "/proc/driver/nvidia/gpus", &at)), files = 0;
	DIR *dir = opendir(doctor_path(d, "/dev", ret));
	const struct dirent *e;

	while (dir != NULL && (e = readdir(dir)) != NULL) {
		const char *tail = e->d_name + 6;
		bool control = strcmp(e->d_name, "nvidiactl") == 0;
		char path[300];

		if (strncmp(e->d_name, "nvidia", 6) != 0 ||
		    (!control && (*tail == '\0' || tail[strspn(tail, "0123456789")] != '\0')))
			continue;
		ret->of++;
		files += !control;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		if (!can_open(doctor_path(d, path, &at), e->d_name)) {
			ret->count++;
			add_name(ret, e->d_name);
		}
	}
	if (dir != NULL)
		closedir(dir);
	/* one of them is the control file */
	ret->failures = (gpus > files ? gpus - files : 0) + (ret->of == files);
}

/* ---- process identity ---- */

void
probe_pid_namespace(struct doctor *d, struct facts *ret)
{
	char target[64];
	ssize_t n = readlink(doctor_path(d, "/proc/self/ns/pid", ret), target, sizeof(target) - 1);

	if (n < 0) {
		ret->errnum = errno;
		return;
	}
	target[n] = '\0';
	ret->count = strcmp(target, HOST_PID_NAMESPACE) == 0;
}

/* The value of hidepid among the options with which /proc is mounted. */
static void
find_hidepid(const struct doctor *d, struct facts *ret)
{
	in_place(buf) struct buf text = {0};
	struct facts at = {0};

	buf_init(&text, 1u << 20);
	if (!buf_read_file(&text, doctor_path(d, "/proc/self/mounts", &at), NULL))
		return;
	for (const char *line = buf_text(&text), *end; *line != '\0'; line = *end != '\0' ? end + 1 : end) {
		const char *option;

		end = strchrnul(line, '\n');
		if (strncmp(line, "proc /proc proc ", 16) != 0)
			continue;
		option = memmem(line, (size_t)(end - line), "hidepid=", 8);
		if (option != NULL)
			snprintf(ret->text, sizeof(ret->text), "%.*s", (int)strcspn(option, ", \n"), option);
	}
}

/* PID 1 is root's: a user who can read its cgroup can read every cgroup. */
void
probe_processes(struct doctor *d, struct facts *ret)
{
	int fd = open(doctor_path(d, "/proc/1/cgroup", ret), O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		ret->errnum = errno;
	else
		close(fd);
	find_hidepid(d, ret);
}

void
probe_cgroup(struct doctor *d, struct facts *ret)
{
	if (exists(d, "/sys/fs/cgroup/cgroup.controllers"))
		ret->count = 2;
	else if (exists(d, "/sys/fs/cgroup/memory") || exists(d, "/sys/fs/cgroup/cpu") ||
	         exists(d, "/sys/fs/cgroup/unified"))
		ret->count = 1;
	doctor_path(d, "/sys/fs/cgroup", ret);
}

static bool
is_kubernetes(const struct doctor *d)
{
	return exists(d, "/var/lib/kubelet") || exists(d, "/etc/kubernetes/kubelet.conf");
}

void
probe_pods(struct doctor *d, struct facts *ret)
{
	const char *path = doctor_path(d, "/var/log/pods", ret);

	ret->count = count_entries(path);
	ret->errnum = ret->count < 0 ? errno : 0;
	ret->absent = ret->errnum == ENOENT && !is_kubernetes(d);
}

/* Only connects. A path too long for a socket address is not tried. */
static int
try_connect(const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd, errnum;

	if (strlen(path) >= sizeof(to.sun_path))
		return 0;
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	errnum = fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	return errnum == EAGAIN ? 0 : errnum;
}

void
probe_kubelet(struct doctor *d, struct facts *ret)
{
	const char *path = doctor_path(d, "/var/lib/kubelet/pod-resources/kubelet.sock", ret);
	struct stat st;

	ret->absent = !is_kubernetes(d);
	if (access(path, R_OK | W_OK) != 0 || stat(path, &st) != 0)
		ret->errnum = errno;
	else if (!S_ISSOCK(st.st_mode))
		ret->errnum = ENOTSOCK;
	else
		ret->errnum = try_connect(path);
}

/* As the exporter sees it: root's, and for nobody else to write. */
static bool
is_believed(const struct stat *st, bool folder)
{
	return st->st_uid == 0 && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
	       (folder ? S_ISDIR(st->st_mode) : S_ISREG(st->st_mode));
}

void
probe_slurm(struct doctor *d, struct facts *ret)
{
	bool slurm = exists(d, "/etc/slurm") || exists(d, "/etc/slurm-llnl") || exists(d, "/var/spool/slurmd");
	DIR *dir = opendir(doctor_path(d, "/run/tollgate-slurm", ret));
	const struct dirent *e;
	struct stat st;

	ret->errnum = dir == NULL ? errno : 0;
	ret->absent = ret->errnum == ENOENT && !slurm;
	if (dir == NULL)
		return;
	if (fstat(dirfd(dir), &st) == 0 && !is_believed(&st, true)) {
		ret->failures++;
		add_name(ret, "the folder itself");
	}
	while ((e = readdir(dir)) != NULL) {
		if (e->d_name[0] == '.' || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		ret->of++;
		if (!is_believed(&st, false)) {
			ret->failures++;
			add_name(ret, e->d_name);
		}
	}
	closedir(dir);
}

/* Whether a line of the file is exactly `line`. */
static bool
has_line(int dir, const char *name, const char *line)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
	char at[256];
	bool found = false;

	if (fd >= 0 && f == NULL)
		close(fd);
	while (f != NULL && !found && fgets(at, sizeof(at), f) != NULL) {
		at[strcspn(at, "\n")] = '\0';
		found = strcmp(at, line) == 0;
	}
	if (f != NULL)
		fclose(f);
	return found;
}

static bool
some_file_names(const struct doctor *d, const char *sluid)
{
	struct facts at = {0};
	DIR *dir = opendir(doctor_path(d, "/run/tollgate-slurm", &at));
	const struct dirent *e;
	char line[sizeof("sluid=") + SLUID_CHARS];
	bool found = false;

	snprintf(line, sizeof(line), "sluid=%.*s", SLUID_CHARS, sluid);
	while (dir != NULL && !found && (e = readdir(dir)) != NULL)
		found = e->d_name[0] != '.' && has_line(dirfd(dir), e->d_name, line);
	if (dir != NULL)
		closedir(dir);
	return found;
}

/* The folders of jobs below one slurmstepd.scope. */
static void
look_at_scope(const struct doctor *d, const char *scope, struct facts *ret)
{
	struct facts at = {0};
	char path[300];
	const struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "/sys/fs/cgroup/system.slice/%s", scope);
	dir = opendir(doctor_path(d, path, &at));
	while (dir != NULL && (e = readdir(dir)) != NULL) {
		if (!text_is_sluid(e->d_name, strlen(e->d_name)))
			continue;
		ret->of++;
		if (!some_file_names(d, e->d_name)) {
			ret->count++;
			add_name(ret, e->d_name);
		}
	}
	if (dir != NULL)
		closedir(dir);
}

/* Slurm 26.05 and later name the cgroup of a job by its SLUID unless CgroupJobIdPaths=yes. In other slices than system.slice, and in pods that
 * run slurmd, the exporter sees what the folders here do not show. */
void
probe_slurm_names(struct doctor *d, struct facts *ret)
{
	DIR *dir = opendir(doctor_path(d, "/sys/fs/cgroup/system.slice", ret));
	const struct dirent *e;
	int64_t unmapped = 0;

	while (dir != NULL && (e = readdir(dir)) != NULL)
		if (text_ends(e->d_name, "slurmstepd.scope"))
			look_at_scope(d, e->d_name, ret);
	if (dir != NULL)
		closedir(dir);
	if (metric_value(buf_text(&d->metrics), "tollgate_exporter_unmapped_slurm_processes", NULL, &unmapped))
		ret->failures = unmapped / 1000;
	ret->absent = ret->of == 0 && ret->failures == 0;
}

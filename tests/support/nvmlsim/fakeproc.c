/* tests/support/nvmlsim/fakeproc.c - the simulated processes as the kernel and the kubelet would show them. */
#include "tests/support/nvmlsim/fakeproc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"

#define MARK ".nvmlsim" /* in every folder that is ours */
#define TEXT_MAX 4096

struct fakeproc {
	const struct scenario *sc;
	int64_t t0_ns;
	int64_t ticks_per_s;
	int proc, pods;   /* open folders; -1: not wanted */
	int64_t *shown;   /* by process: the run that is shown; -1: none */
	uint64_t version; /* of the world that is shown; 0: none */
};

/* ---- folders -------------------------------------------------------------------------------------------------------- */

/* Removes what is in a folder, but not the mark. */
static void
empty_folder(int at)
{
	int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;
		int sub;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, MARK) == 0)
			continue;
		sub = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub >= 0) {
			empty_folder(sub);
			close(sub);
		}
		unlinkat(at, name, sub >= 0 ? AT_REMOVEDIR : 0);
	}
	closedir(dir);
}

static bool
is_empty_folder(int at)
{
	int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	bool empty = dir != NULL;

	while (dir && empty && (entry = readdir(dir)))
		empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
	if (dir)
		closedir(dir);
	else if (fd >= 0)
		close(fd);
	return empty;
}

/* Only a folder that is new, empty or marked as ours is used, because what is in it is removed. */
static bool
open_folder(const char *path, int *ret_fd, struct err *err)
{
	int fd, mark;

	*ret_fd = -1;
	if (!path || !*path)
		return true;
	if (mkdir(path, 0755) != 0 && errno != EEXIST)
		return err_errno(err, ERR_FATAL, errno, "%s cannot be made", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_FATAL, errno, "%s cannot be opened", path);
	if (faccessat(fd, MARK, F_OK, 0) != 0 && !is_empty_folder(fd)) {
		close(fd);
		return err_set(err, ERR_INVALID, "%s is not empty and not the simulator's: it would be emptied", path);
	}
	mark = openat(fd, MARK, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (mark < 0) {
		int errnum = errno;

		close(fd);
		return err_errno(err, ERR_FATAL, errnum, "%s cannot be written to", path);
	}
	close(mark);
	empty_folder(fd);
	*ret_fd = fd;
	return true;
}

static bool
make_folder(int at, const char *path, struct err *err)
{
	return mkdirat(at, path, 0755) == 0 || errno == EEXIST ||
	       err_errno(err, ERR_FATAL, errno, "%s cannot be made", path);
}

static bool
write_file(int at, const char *path, const char *text, struct err *err)
{
	int fd = openat(at, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	size_t len = strlen(text);
	bool ok = fd >= 0 && write(fd, text, len) == (ssize_t)len;
	int errnum = errno;

	if (fd >= 0)
		close(fd);
	return ok || err_errno(err, ERR_FATAL, errnum, "%s cannot be written", path);
}

/* ---- a process ------------------------------------------------------------------------------------------------------ */

/* Field 22, the start, is in clock ticks since boot, rounded down as the kernel does. */
static void
stat_text(const struct fakeproc *fp, const struct sim_process *p, int64_t run, char out[TEXT_MAX])
{
	uint32_t pid = moment_pid(p, run);
	int64_t start_ns = fp->t0_ns + moment_run_start(p, run);
	int64_t start_ticks = start_ns / NS_PER_S * fp->ticks_per_s + start_ns % NS_PER_S * fp->ticks_per_s / NS_PER_S;

	snprintf(out, TEXT_MAX,
	         "%" PRIu32 " (%s) S %" PRIu32 " %" PRIu32 " %" PRIu32
	         " 0 -1 4194304 100 0 0 0 5 2 0 0 20 0 1 0 %" PRId64
	         " 1073741824 65536 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
	         pid, p->comm, p->ppid, pid, pid, start_ticks);
}

static void
status_text(const struct sim_process *p, int64_t run, char out[TEXT_MAX])
{
	uint32_t pid = moment_pid(p, run);

	snprintf(out, TEXT_MAX,
	         "Name:\t%s\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t%" PRIu32 "\nNgid:\t0\nPid:\t%" PRIu32
	         "\nPPid:\t%" PRIu32 "\nTracerPid:\t0\nUid:\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64
	         "\nGid:\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\nThreads:\t1\n",
	         p->comm, pid, pid, p->ppid, p->uid, p->uid, p->uid, p->uid, p->uid, p->uid, p->uid, p->uid);
}

static bool
show_in_proc(const struct fakeproc *fp, const struct sim_process *p, int64_t run, struct err *err)
{
	char text[TEXT_MAX], name[16], path[64];
	static const char hidden[] = ".new"; /* renamed when it is complete: nobody sees half a process */

	if (!make_folder(fp->proc, hidden, err))
		return false;
	stat_text(fp, p, run, text);
	snprintf(path, sizeof(path), "%s/stat", hidden);
	if (!write_file(fp->proc, path, text, err))
		return false;
	status_text(p, run, text);
	snprintf(path, sizeof(path), "%s/status", hidden);
	if (!write_file(fp->proc, path, text, err))
		return false;
	snprintf(path, sizeof(path), "%s/cgroup", hidden);
	if (!write_file(fp->proc, path, p->cgroup, err))
		return false;
	snprintf(name, sizeof(name), "%" PRIu32, moment_pid(p, run));
	return renameat(fp->proc, hidden, fp->proc, name) == 0 ||
	       err_errno(err, ERR_FATAL, errno, "%s cannot be shown", name);
}

static void
hide_from_proc(const struct fakeproc *fp, uint32_t pid)
{
	static const char *const files[] = {"stat", "status", "cgroup"};
	char path[64];

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%" PRIu32 "/%s", pid, files[i]);
		unlinkat(fp->proc, path, 0);
	}
	snprintf(path, sizeof(path), "%" PRIu32, pid);
	unlinkat(fp->proc, path, AT_REMOVEDIR);
}

/* ---- a pod ---------------------------------------------------------------------------------------------------------- */

static void
pod_path(const struct sim_pod *pod, char out[512])
{
	snprintf(out, 512, "%s_%s_%s", pod->ns, pod->name, pod->uid);
}

static bool
show_pod(const struct fakeproc *fp, const struct sim_pod *pod, struct err *err)
{
	char path[512], container[640];

	pod_path(pod, path);
	snprintf(container, sizeof(container), "%s/%s", path, pod->container);
	return make_folder(fp->pods, path, err) && make_folder(fp->pods, container, err);
}

static bool
same_pod(const struct sim_pod *a, const struct sim_pod *b)
{
	return strcmp(a->uid, b->uid) == 0 && strcmp(a->ns, b->ns) == 0 && strcmp(a->name, b->name) == 0;
}

static bool
pod_is_alive(const struct fakeproc *fp, const struct sim_pod *pod, int64_t t_ns)
{
	for (size_t i = 0; i < fp->sc->process_count; i++) {
		const struct sim_process *p = &fp->sc->processes[i];

		if (p->pod && same_pod(p->pod, pod) && moment_run(p, t_ns) >= 0)
			return true;
	}
	return false;
}

static void
hide_pod(const struct fakeproc *fp, const struct sim_pod *pod)
{
	char path[512];
	int fd;

	pod_path(pod, path);
	fd = openat(fp->pods, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	empty_folder(fd);
	close(fd);
	unlinkat(fp->pods, path, AT_REMOVEDIR);
}

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

bool
fakeproc_open(const char *proc_dir, const char *pods_dir, const struct scenario *sc, int64_t t0_ns,
              struct fakeproc **ret, struct err *err)
{
	owned(fakeproc) struct fakeproc *fp = mem_alloc(sizeof(*fp));

	*fp = (struct fakeproc){.sc = sc, .t0_ns = t0_ns, .ticks_per_s = sysconf(_SC_CLK_TCK), .proc = -1, .pods = -1};
	fp->shown = mem_array(sc->process_count, sizeof(*fp->shown));
	for (size_t i = 0; i < sc->process_count; i++)
		fp->shown[i] = -1;
	if (!open_folder(proc_dir, &fp->proc, err) || !open_folder(pods_dir, &fp->pods, err))
		return false;
	*ret = take(fp);
	return true;
}

void
fakeproc_free(struct fakeproc *fp)
{
	if (!fp)
		return;
	if (fp->proc >= 0)
		close(fp->proc);
	if (fp->pods >= 0)
		close(fp->pods);
	mem_free(fp->shown);
	mem_free(fp);
}

/* A process on several GPUs may be in several entries of the scenario. */
static bool
is_shown_by_another(const struct fakeproc *fp, size_t i, uint32_t pid)
{
	for (size_t j = 0; j < fp->sc->process_count; j++)
		if (j != i && fp->shown[j] >= 0 && moment_pid(&fp->sc->processes[j], fp->shown[j]) == pid)
			return true;
	return false;
}

/* First everything that ended goes, then what began comes: a PID may pass from one to the other. */
bool
fakeproc_sync(struct fakeproc *fp, const struct world *w, struct err *err)
{
	int64_t t_ns = world_now(w);

	if ((fp->proc < 0 && fp->pods < 0) || fp->version == world_version(w))
		return true;
	for (size_t i = 0; i < fp->sc->process_count; i++) {
		const struct sim_process *p = &fp->sc->processes[i];

		if (fp->shown[i] < 0 || fp->shown[i] == moment_run(p, t_ns))
			continue;
		if (fp->proc >= 0 && !is_shown_by_another(fp, i, moment_pid(p, fp->shown[i])))
			hide_from_proc(fp, moment_pid(p, fp->shown[i]));
		if (fp->pods >= 0 && p->pod && !pod_is_alive(fp, p->pod, t_ns))
			hide_pod(fp, p->pod);
		fp->shown[i] = -1;
	}
	for (size_t i = 0; i < fp->sc->process_count; i++) {
		const struct sim_process *p = &fp->sc->processes[i];
		int64_t run = moment_run(p, t_ns);

		if (run < 0 || fp->shown[i] == run)
			continue;
		if (fp->pods >= 0 && p->pod && !show_pod(fp, p->pod, err))
			return false;
		if (fp->proc >= 0 && !is_shown_by_another(fp, i, moment_pid(p, run)) && !show_in_proc(fp, p, run, err))
			return false;
		fp->shown[i] = run;
	}
	fp->version = world_version(w);
	return true;
}

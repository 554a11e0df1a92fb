/* exporter/metrics/workload_cgroup.c - the files of a workload's cgroup. The rules are numbered in workload.h. */
#include "exporter/metrics/workload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/time.h"

#define TEXT_MAX 32768u /* of one file; more than this is cut */
#define PATH_ROOM 1024
#define V1_UNLIMITED (INT64_C(1) << 60) /* v1 shows "no limit" as a number near the largest */

/* ---- texts ---- */

/* The number at the beginning of a text; ABSENT: there is none, or it is too large. */
static int64_t
number_at(const char *at)
{
	int64_t v = 0;

	if (*at < '0' || *at > '9')
		return ABSENT;
	for (; *at >= '0' && *at <= '9'; at++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *at - '0', &v))
			return ABSENT;
	return v;
}

static int64_t
scaled(int64_t v, int64_t times)
{
	return v == ABSENT || v > INT64_MAX / times ? ABSENT : v * times;
}

static const char *
next_line(const char *at)
{
	at = strchr(at, '\n');
	return at && at[1] ? at + 1 : NULL;
}

/* The number after a key at the beginning of a line. */
static int64_t
keyed(const char *text, const char *key)
{
	size_t n = strlen(key);

	for (const char *line = *text ? text : NULL; line; line = next_line(line))
		if (strncmp(line, key, n) == 0)
			return number_at(line + n);
	return ABSENT;
}

/* The sum over all lines of the number after a mark within a line. */
static int64_t
summed(const char *text, const char *mark)
{
	int64_t sum = 0;

	for (const char *at = text; (at = strstr(at, mark)); at++) {
		int64_t v = number_at(at + strlen(mark));

		if (v != ABSENT && __builtin_add_overflow(sum, v, &sum))
			return ABSENT;
	}
	return sum;
}

/* ---- files ---- */

static void
take_cpu(const char *text, int64_t *v)
{
	v[WORKLOAD_CPU_USER_NS] = scaled(keyed(text, "user_usec "), NS_PER_US);
	v[WORKLOAD_CPU_SYSTEM_NS] = scaled(keyed(text, "system_usec "), NS_PER_US);
}

static void
take_cpuacct(const char *text, int64_t *v)
{
	long ticks = sysconf(_SC_CLK_TCK);
	int64_t ns_per_tick = NS_PER_S / (ticks > 0 ? ticks : 100);

	v[WORKLOAD_CPU_USER_NS] = scaled(keyed(text, "user "), ns_per_tick);
	v[WORKLOAD_CPU_SYSTEM_NS] = scaled(keyed(text, "system "), ns_per_tick);
}

static void
take_memory(const char *text, int64_t *v)
{
	v[WORKLOAD_MEMORY_BYTES] = number_at(text);
}

/* After the memory in use. */
static void
take_working_set(int64_t inactive_file, int64_t *v)
{
	int64_t all = v[WORKLOAD_MEMORY_BYTES];

	if (all != ABSENT && inactive_file != ABSENT)
		v[WORKLOAD_MEMORY_WORKING_SET_BYTES] = inactive_file < all ? all - inactive_file : 0;
}

static void
take_memory_stat(const char *text, int64_t *v)
{
	v[WORKLOAD_MEMORY_ANON_BYTES] = keyed(text, "anon ");
	take_working_set(keyed(text, "inactive_file "), v);
}

static void
take_memory_stat_v1(const char *text, int64_t *v)
{
	v[WORKLOAD_MEMORY_ANON_BYTES] = keyed(text, "total_rss ");
	take_working_set(keyed(text, "total_inactive_file "), v);
}

static void
take_peak(const char *text, int64_t *v)
{
	v[WORKLOAD_MEMORY_PEAK_BYTES] = number_at(text);
}

/* "max" is not a number: no limit. */
static void
take_limit(const char *text, int64_t *v)
{
	int64_t limit = number_at(text);

	v[WORKLOAD_MEMORY_LIMIT_BYTES] = limit < V1_UNLIMITED ? limit : ABSENT;
}

static void
take_oom_kills(const char *text, int64_t *v)
{
	v[WORKLOAD_OOM_KILLS] = keyed(text, "oom_kill ");
}

static void
take_io(const char *text, int64_t *v)
{
	v[WORKLOAD_IO_READ_BYTES] = summed(text, " rbytes=");
	v[WORKLOAD_IO_WRITE_BYTES] = summed(text, " wbytes=");
}

static void
take_blkio(const char *text, int64_t *v)
{
	v[WORKLOAD_IO_READ_BYTES] = summed(text, " Read ");
	v[WORKLOAD_IO_WRITE_BYTES] = summed(text, " Write ");
}

static int64_t
stalled_ns(const char *text, const char *kind)
{
	const char *line = strncmp(text, kind, strlen(kind)) == 0 ? text : strstr(text, kind);
	const char *end = line ? strchr(line, '\n') : NULL, *total = line ? strstr(line, " total=") : NULL;

	if (!total || (end && total > end))
		return ABSENT;
	return scaled(number_at(total + strlen(" total=")), NS_PER_US);
}

static void
take_pressure(const char *text, int64_t *some)
{
	some[0] = stalled_ns(text, "some ");
	some[1] = stalled_ns(text, "full ");
}

static void
take_cpu_pressure(const char *text, int64_t *v)
{
	take_pressure(text, v + WORKLOAD_PRESSURE_CPU_SOME_NS);
}

static void
take_memory_pressure(const char *text, int64_t *v)
{
	take_pressure(text, v + WORKLOAD_PRESSURE_MEMORY_SOME_NS);
}

static void
take_io_pressure(const char *text, int64_t *v)
{
	take_pressure(text, v + WORKLOAD_PRESSURE_IO_SOME_NS);
}

static const struct file_kind {
	int hierarchy;
	enum workload_value first; /* not read when this one is known */
	const char *name;
	void (*parse)(const char *text, int64_t *v);
} kinds[] = {
	{HIERARCHY_V2, WORKLOAD_CPU_USER_NS, "cpu.stat", take_cpu},
	{HIERARCHY_V2, WORKLOAD_MEMORY_BYTES, "memory.current", take_memory},
	{HIERARCHY_V2, WORKLOAD_MEMORY_ANON_BYTES, "memory.stat", take_memory_stat},
	{HIERARCHY_V2, WORKLOAD_MEMORY_PEAK_BYTES, "memory.peak", take_peak},
	{HIERARCHY_V2, WORKLOAD_MEMORY_LIMIT_BYTES, "memory.max", take_limit},
	{HIERARCHY_V2, WORKLOAD_OOM_KILLS, "memory.events", take_oom_kills},
	{HIERARCHY_V2, WORKLOAD_IO_READ_BYTES, "io.stat", take_io},
	{HIERARCHY_V2, WORKLOAD_PRESSURE_CPU_SOME_NS, "cpu.pressure", take_cpu_pressure},
	{HIERARCHY_V2, WORKLOAD_PRESSURE_MEMORY_SOME_NS, "memory.pressure", take_memory_pressure},
	{HIERARCHY_V2, WORKLOAD_PRESSURE_IO_SOME_NS, "io.pressure", take_io_pressure},
	{HIERARCHY_CPUACCT, WORKLOAD_CPU_USER_NS, "cpuacct.stat", take_cpuacct},
	{HIERARCHY_MEMORY, WORKLOAD_MEMORY_BYTES, "memory.usage_in_bytes", take_memory},
	{HIERARCHY_MEMORY, WORKLOAD_MEMORY_ANON_BYTES, "memory.stat", take_memory_stat_v1},
	{HIERARCHY_MEMORY, WORKLOAD_MEMORY_PEAK_BYTES, "memory.max_usage_in_bytes", take_peak},
	{HIERARCHY_MEMORY, WORKLOAD_MEMORY_LIMIT_BYTES, "memory.limit_in_bytes", take_limit},
	{HIERARCHY_MEMORY, WORKLOAD_OOM_KILLS, "memory.oom_control", take_oom_kills},
	{HIERARCHY_BLKIO, WORKLOAD_IO_READ_BYTES, "blkio.throttle.io_service_bytes_recursive", take_blkio},
};
_Static_assert(ARRAY_LEN(kinds) == WORKLOAD_FILES, "one place per file");

/* ---- folders ---- */

static int
open_folder(int at, const char *path)
{
	return openat(at, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

void
workload_mounts_init(struct workload_mounts *m, const char *root, size_t keep_max)
{
	static const char *const names[HIERARCHIES] = {"unified", "cpuacct", "memory", "blkio"};
	int at = open_folder(AT_FDCWD, root);
	bool v2 = at >= 0 && faccessat(at, "cgroup.controllers", F_OK, 0) == 0;

	*m = (struct workload_mounts){.keep_max = keep_max};
	for (size_t h = 0; h < HIERARCHIES; h++)
		m->fds[h] = at < 0 ? -1 : open_folder(at, v2 && h == HIERARCHY_V2 ? "." : names[h]);
	if (at >= 0)
		close(at);
}

void
workload_mounts_fini(struct workload_mounts *m)
{
	for (size_t h = 0; h < HIERARCHIES; h++)
		if (m->fds[h] >= 0)
			close(m->fds[h]);
}

static bool
names_owner(const char *path, const struct cgroup_owner *owner)
{
	char text[PATH_ROOM + 8];
	struct cgroup_owner o;
	int len = snprintf(text, sizeof(text), "0::/%s", path);

	(void)cgroup_owner_parse(NULL, text, (size_t)len, &o);
	return strcmp(o.pod_uid, owner->pod_uid) == 0 && strcmp(o.container_id, owner->container_id) == 0 &&
	       strcmp(o.slurm_job, owner->slurm_job) == 0 && o.session_uid == owner->session_uid;
}

/* A path that begins with ".." is seen from this exporter's own cgroup namespace, as in a pod: the path above it is unknown. It is
 * one of those that services of a node make, and the whole path must name the same owner. */
static int
open_from_above(int mount, const char *path, const struct cgroup_owner *owner)
{
	static const char *const above[] = {"",
	                                    "kubepods.slice/",
	                                    "kubepods.slice/kubepods-burstable.slice/",
	                                    "kubepods.slice/kubepods-besteffort.slice/",
	                                    "kubelet.slice/kubelet-kubepods.slice/",
	                                    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/",
	                                    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/",
	                                    "kubepods/",
	                                    "kubepods/burstable/",
	                                    "kubepods/besteffort/",
	                                    "kubelet/kubepods/",
	                                    "kubelet/kubepods/burstable/",
	                                    "kubelet/kubepods/besteffort/",
	                                    "system.slice/",
	                                    "user.slice/"};

	while (strncmp(path, "../", 3) == 0)
		path += 3;
	for (size_t i = 0; i < ARRAY_LEN(above); i++) {
		char whole[PATH_ROOM];
		int fd, len = snprintf(whole, sizeof(whole), "%s%s", above[i], path);

		if (len >= (int)sizeof(whole) || !names_owner(whole, owner))
			continue;
		fd = open_folder(mount, whole);
		if (fd >= 0)
			return fd;
	}
	return -1;
}

bool
workload_cgroup_open(struct workload_mounts *m, const struct cgroup_base *base, const char *text, size_t len,
                     const struct cgroup_owner *owner, struct workload_cgroup *ret)
{
	static const char *const controllers[HIERARCHIES] = {"", "cpuacct", "memory", "blkio"};
	bool any = false;

	*ret = (struct workload_cgroup){0};
	for (size_t i = 0; i < WORKLOAD_FILES; i++)
		ret->files[i].fd = -1;
	for (size_t h = 0; h < HIERARCHIES; h++) {
		char path[PATH_ROOM];

		ret->folders[h] = -1;
		if (m->fds[h] < 0 || !cgroup_own_folder(base, text, len, owner, controllers[h], path, sizeof(path)))
			continue;
		ret->folders[h] = strncmp(path, "../", 3) == 0 ? open_from_above(m->fds[h], path, owner)
		                                               : open_folder(m->fds[h], path);
		any |= ret->folders[h] >= 0;
	}
	return any;
}

static void
close_file(struct workload_mounts *m, struct workload_file *f)
{
	if (f->fd < 0)
		return;
	close(f->fd);
	f->fd = -1;
	m->kept--;
}

void
workload_cgroup_close(struct workload_mounts *m, struct workload_cgroup *c)
{
	for (size_t i = 0; i < WORKLOAD_FILES; i++)
		close_file(m, &c->files[i]);
	for (size_t h = 0; h < HIERARCHIES; h++)
		if (c->folders[h] >= 0)
			close(c->folders[h]);
}

/* ---- reading ---- */

/* The text of a file; false with errno. */
static bool
read_file(struct workload_mounts *m, int folder, const char *name, struct workload_file *f, char text[TEXT_MAX])
{
	int fd = f->fd >= 0 ? f->fd : openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), errnum;
	ssize_t got;

	if (fd < 0)
		return false;
	/* the kernel gives such a file in one piece */
	got = pread(fd, text, TEXT_MAX - 1, 0);
	errnum = errno;
	text[got > 0 ? got : 0] = '\0';
	if (f->fd < 0 && got >= 0 && m->kept < m->keep_max) {
		f->fd = fd;
		m->kept++;
	} else if (f->fd < 0) {
		close(fd);
	}
	errno = errnum;
	return got >= 0;
}

/* A file that does not exist, or is not enabled, is not tried again. False: the cgroup was removed. */
static bool
note_failure(struct workload_mounts *m, int folder, struct workload_file *f, int errnum)
{
	if (errnum == ENODEV || (errnum == ENOENT && faccessat(folder, "cgroup.procs", F_OK, 0) != 0))
		return false;
	f->missing = true;
	close_file(m, f);
	m->failures += errnum != ENOENT && errnum != EOPNOTSUPP;
	return true;
}

bool
workload_cgroup_read(struct workload_mounts *m, struct workload_cgroup *c, int64_t ret[WORKLOAD_VALUES])
{
	char text[TEXT_MAX];

	for (size_t i = 0; i < WORKLOAD_VALUES; i++)
		ret[i] = ABSENT;
	for (size_t i = 0; i < WORKLOAD_FILES; i++) {
		const struct file_kind *k = &kinds[i];
		struct workload_file *f = &c->files[i];

		if (c->folders[k->hierarchy] < 0 || f->missing || ret[k->first] != ABSENT)
			continue;
		if (read_file(m, c->folders[k->hierarchy], k->name, f, text))
			k->parse(text, ret);
		else if (!note_failure(m, c->folders[k->hierarchy], f, errno))
			return false;
	}
	return true;
}

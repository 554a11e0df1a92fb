/* exporter/identity/slurm_map.c - which job has which GPUs: the folders. */
#include "exporter/identity/slurm_map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"

#define COARSE_NS (2 * NS_PER_S)

void
slurm_map_init(struct slurm_map *m, const struct slurm_map_options *o)
{
	*m = (struct slurm_map){.slurm_dir = mem_strdup(o->slurm_dir),
	                        .hpc_dir = mem_strdup(o->hpc_dir),
	                        .owner_uid = o->owner_uid};
}

static void
forget(struct slurm_map *m)
{
	for (size_t i = 0; i < m->job_count; i++)
		slurm_job_fini(&m->jobs[i]);
	for (size_t i = 0; i < m->gpu_count; i++)
		hpc_gpu_fini(&m->gpus[i]);
	mem_free(m->jobs);
	mem_free(m->gpus);
	m->jobs = NULL;
	m->gpus = NULL;
	m->job_count = m->gpu_count = m->refused = 0;
	m->trouble.kind = ERR_NONE;
}

void
slurm_map_fini(struct slurm_map *m)
{
	forget(m);
	mem_free(m->slurm_dir);
	mem_free(m->hpc_dir);
	*m = (struct slurm_map){0};
}

/* ---- what changed ---- */

static uint64_t
mix(uint64_t hash, uint64_t value)
{
	return (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15) + (hash >> 29);
}

static int64_t
ns_of(struct timespec t)
{
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static uint64_t
mix_stat(struct slurm_map *m, uint64_t hash, const struct stat *st)
{
	int64_t changed_ns = ns_of(st->st_ctim);

	if (changed_ns > m->newest_ns)
		m->newest_ns = changed_ns;
	hash = mix(hash, st->st_ino);
	hash = mix(hash, (uint64_t)st->st_size);
	hash = mix(hash, (uint64_t)st->st_uid << 32 | st->st_mode);
	hash = mix(hash, (uint64_t)changed_ns);
	return mix(hash, (uint64_t)ns_of(st->st_mtim));
}

/* Calls nobody's code: names and times only. */
static uint64_t
mix_folder(struct slurm_map *m, uint64_t hash, const char *path)
{
	DIR *dir = path ? opendir(path) : NULL;
	const struct dirent *entry;
	struct stat st;
	size_t files = 0;

	if (!dir)
		return mix(hash, 0);
	if (fstat(dirfd(dir), &st) == 0)
		hash = mix_stat(m, hash, &st);
	while (files < SLURM_FILES_MAX && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		files++;
		for (const char *c = entry->d_name; *c; c++)
			hash = mix(hash, (unsigned char)*c);
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			hash = mix_stat(m, hash, &st);
	}
	closedir(dir);
	return hash;
}

/* ---- who may write ---- */

static bool
check_owner(const struct slurm_map *m, const char *what, const struct stat *st, struct err *err)
{
	if (st->st_uid != 0 && (int64_t)st->st_uid != m->owner_uid)
		return err_set(err, ERR_DENIED, "%s belongs to uid %u, not to root: what it says is not believed", what,
		               st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return err_set(err, ERR_DENIED,
		               "%s has mode %04o: others may write to it, so what it says is not believed", what,
		               st->st_mode & 07777);
	return true;
}

static void
refuse(struct slurm_map *m, const struct err *err)
{
	if (m->refused++ == 0)
		m->trouble = *err;
}

/* ---- reading ---- */

static bool
read_file(const struct slurm_map *m, int dir, const char *path, const char *name, struct buf *text, struct err *err)
{
	/* a pipe in the folder must not make a tick wait */
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	owned(mem) char *what = mem_printf("%s/%s", path, name);
	struct stat st;
	bool ok = false;
	ssize_t n;

	if (fd < 0)
		return err_errno(err, errno == ENOENT ? ERR_MISSING : ERR_DENIED, errno, "cannot open %s", what);
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		err_set(err, ERR_DENIED, "%s is not a file", what);
	else if (st.st_size > (off_t)SLURM_FILE_MAX)
		err_set(err, ERR_INVALID, "%s has %jd bytes, more than %u", what, (intmax_t)st.st_size, SLURM_FILE_MAX);
	else
		ok = check_owner(m, what, &st, err);
	buf_clear(text);
	while (ok && text->len < SLURM_FILE_MAX) {
		n = read(fd, buf_reserve(text, SLURM_FILE_MAX - text->len), SLURM_FILE_MAX - text->len);
		if (n < 0)
			ok = err_errno(err, ERR_RETRY, errno, "cannot read %s", what);
		if (n <= 0)
			break;
		buf_commit(text, (size_t)n);
	}
	close(fd);
	return ok;
}

static bool
add_job(struct slurm_map *m, const char *name, const struct buf *text, struct err *err)
{
	struct slurm_job job;

	if (!slurm_job_parse(buf_text(text), text->len, &job, err))
		return false;
	if (strcmp(job.job, name) != 0) {
		err_set(err, ERR_INVALID, "job=%s in the file of another job", job.job);
		slurm_job_fini(&job);
		return false;
	}
	m->jobs = mem_grow(m->jobs, m->job_count + 1, sizeof(*m->jobs));
	m->jobs[m->job_count++] = job;
	return true;
}

static bool
add_gpu(struct slurm_map *m, const char *name, const struct buf *text, struct err *err)
{
	struct hpc_gpu gpu;

	if (!hpc_gpu_parse(name, buf_text(text), text->len, &gpu, err))
		return false;
	m->gpus = mem_grow(m->gpus, m->gpu_count + 1, sizeof(*m->gpus));
	m->gpus[m->gpu_count++] = gpu;
	return true;
}

static void
read_folder(struct slurm_map *m, const char *path,
            bool (*add)(struct slurm_map *, const char *, const struct buf *, struct err *))
{
	int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	const struct dirent *entry;
	in_place(buf) struct buf text = {0};
	struct err err = {0};
	struct stat st;
	size_t files = 0;

	buf_init(&text, SLURM_FILE_MAX + 1);
	if (!dir) {
		if (path && errno != ENOENT) {
			err_errno(&err, ERR_DENIED, errno, "cannot open %s", path);
			refuse(m, &err);
		}
		return;
	}
	if (fstat(fd, &st) != 0 || !check_owner(m, path, &st, &err)) {
		refuse(m, &err);
		closedir(dir);
		return;
	}
	while (files < SLURM_FILES_MAX && (entry = readdir(dir)) != NULL) {
		/* a file that is being written has a dot in front */
		if (entry->d_name[0] == '.')
			continue;
		files++;
		if (read_file(m, fd, path, entry->d_name, &text, &err)) {
			if (!add(m, entry->d_name, &text, &err)) {
				err_prefix(&err, "%s/%s", path, entry->d_name);
				refuse(m, &err);
			}
		} else if (err.kind != ERR_MISSING) {
			refuse(m, &err);
		}
	}
	closedir(dir);
}

static int
by_job(const void *a, const void *b)
{
	return strcmp(((const struct slurm_job *)a)->job, ((const struct slurm_job *)b)->job);
}

static int
by_gpu(const void *a, const void *b)
{
	const struct hpc_gpu *x = a, *y = b;
	int order = strcmp(x->gpu, y->gpu);

	return order ? order : (x->gi > y->gi) - (x->gi < y->gi);
}

bool
slurm_map_refresh(struct slurm_map *m, int64_t wall_ns)
{
	uint64_t seen = 1;

	m->newest_ns = 0;
	seen = mix_folder(m, seen, m->slurm_dir);
	seen = mix_folder(m, seen, m->hpc_dir);
	if (seen == m->seen && (m->newest_ns == 0 || m->newest_ns < wall_ns - COARSE_NS))
		return false;
	m->seen = seen;
	forget(m);
	read_folder(m, m->slurm_dir, add_job);
	read_folder(m, m->hpc_dir, add_gpu);
	/* a folder's own order is that of its file system */
	if (m->job_count > 0)
		qsort(m->jobs, m->job_count, sizeof(*m->jobs), by_job);
	if (m->gpu_count > 0)
		qsort(m->gpus, m->gpu_count, sizeof(*m->gpus), by_gpu);
	return true;
}

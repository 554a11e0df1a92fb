/* exporter/identity/slurm_map.c - which job has which GPUs: the text of the files, and the folders they are in. */
#include "exporter/identity/slurm_map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/wire/wire.h"

#define COARSE_NS (2 * NS_PER_S) /* of the times of a file: two changes within it may look like one */
#define JOB_MAX 31u              /* digits of a job's number */

static void
free_texts(char **texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		mem_free(texts[i]);
	mem_free(texts);
}

void
slurm_job_fini(struct slurm_job *j)
{
	mem_free(j->job);
	mem_free(j->sluid);
	mem_free(j->account);
	mem_free(j->user);
	mem_free(j->partition);
	free_texts(j->gpus, j->gpu_count);
	*j = (struct slurm_job){0};
}

void
hpc_gpu_fini(struct hpc_gpu *g)
{
	mem_free(g->gpu);
	free_texts(g->jobs, g->job_count);
	*g = (struct hpc_gpu){0};
}

/* The text up to the next separator, as a string; moves behind it. */
static char *
next_part(const char **at, const char *end, char separator)
{
	const char *stop = memchr(*at, separator, (size_t)(end - *at));
	char *part = mem_strndup(*at, (size_t)((stop ? stop : end) - *at));

	*at = stop ? stop + 1 : end;
	return part;
}

static bool
is_digits(const char *s)
{
	return s[0] && s[strspn(s, "0123456789")] == '\0';
}

/* ---- the file of a job ---- */

static bool
take_text(const char *key, const char *value, char **to, struct err *err)
{
	if (strlen(value) > WIRE_MAX_TEXT || !text_is_clean(value))
		return err_set(err, ERR_INVALID,
		               "%s: not a text of at most %u bytes without control or direction characters", key,
		               WIRE_MAX_TEXT);
	mem_free(*to);
	*to = mem_strdup(value);
	return true;
}

static bool
take_sluid(const char *value, struct slurm_job *j, struct err *err)
{
	if (value[0] && !text_is_sluid(value, strlen(value)))
		return err_set(err, ERR_INVALID, "sluid: not the letter s and %d base-32 digits in upper case",
		               SLUID_CHARS - 1);
	mem_free(j->sluid);
	j->sluid = mem_strdup(value);
	return true;
}

static bool
take_uid(const char *value, struct slurm_job *j, struct err *err)
{
	if (!value[0])
		return true;
	if (!text_to_i64(value, &j->uid) || j->uid < 0 || j->uid >= UINT32_MAX) {
		j->uid = -1;
		return err_set(err, ERR_INVALID, "uid: not a number from 0 to %u", UINT32_MAX - 1);
	}
	return true;
}

/* "1763280000" or "1763280000.25" */
static bool
take_start(const char *value, struct slurm_job *j, struct err *err)
{
	const char *dot = strchr(value, '.');
	owned(mem) char *whole = mem_strndup(value, dot ? (size_t)(dot - value) : strlen(value));
	int64_t seconds, part_ns = 0, digit_ns = NS_PER_S;

	if (!value[0])
		return true;
	if (!is_digits(whole) || !text_to_i64(whole, &seconds) || seconds > INT64_MAX / NS_PER_S - 1 ||
	    (dot && !is_digits(dot + 1)))
		return err_set(err, ERR_INVALID, "start: not seconds since 1970");
	for (const char *c = dot ? dot + 1 : ""; *c && digit_ns > 1; c++) {
		digit_ns /= 10;
		part_ns += (*c - '0') * digit_ns;
	}
	j->start_wall_ns = seconds * NS_PER_S + part_ns;
	return true;
}

static bool
take_gpus(const char *value, struct slurm_job *j, struct err *err)
{
	const char *at = value, *end = value + strlen(value);

	while (at < end) {
		owned(mem) char *gpu = next_part(&at, end, ',');

		if (!gpu[0])
			continue;
		if (j->gpu_count == SLURM_GPUS_MAX)
			return err_set(err, ERR_INVALID, "gpus: more than %u", SLURM_GPUS_MAX);
		if (strlen(gpu) > WIRE_MAX_TEXT || !text_is_clean(gpu))
			return err_set(err, ERR_INVALID, "gpus: neither a UUID nor an index");
		j->gpus = mem_grow(j->gpus, j->gpu_count + 1, sizeof(*j->gpus));
		j->gpus[j->gpu_count++] = take(gpu);
	}
	return true;
}

static bool
take_line(const char *line, struct slurm_job *j, struct err *err)
{
	const char *equals = strchr(line, '=');
	const char *value = equals ? equals + 1 : "";

	if (!line[0] || line[0] == '#')
		return true;
	if (!equals)
		return err_set(err, ERR_INVALID, "not key=value");
	owned(mem) char *key = mem_strndup(line, (size_t)(equals - line));

	if (strcmp(key, "job") == 0) {
		if (!is_digits(value) || strlen(value) > JOB_MAX)
			return err_set(err, ERR_INVALID, "job: not a number");
		return take_text(key, value, &j->job, err);
	}
	if (strcmp(key, "sluid") == 0)
		return take_sluid(value, j, err);
	if (strcmp(key, "account") == 0)
		return take_text(key, value, &j->account, err);
	if (strcmp(key, "user") == 0)
		return take_text(key, value, &j->user, err);
	if (strcmp(key, "partition") == 0)
		return take_text(key, value, &j->partition, err);
	if (strcmp(key, "uid") == 0)
		return take_uid(value, j, err);
	if (strcmp(key, "start") == 0)
		return take_start(value, j, err);
	if (strcmp(key, "gpus") == 0)
		return take_gpus(value, j, err);
	return true;
}

bool
slurm_job_parse(const char *text, size_t len, struct slurm_job *ret, struct err *err)
{
	struct slurm_job j = {.sluid = mem_strdup(""),
	                      .account = mem_strdup(""),
	                      .user = mem_strdup(""),
	                      .partition = mem_strdup(""),
	                      .uid = -1,
	                      .start_wall_ns = -1};
	const char *at = text, *end = text + len;
	int number = 0;
	bool ok = !memchr(text, '\0', len) || err_set(err, ERR_INVALID, "a NUL byte in the text");

	while (ok && at < end) {
		owned(mem) char *line = next_part(&at, end, '\n');

		number++;
		ok = take_line(line, &j, err) || err_prefix(err, "line %d", number);
	}
	if (ok && !j.job)
		ok = err_set(err, ERR_INVALID, "no job= line");
	if (ok)
		*ret = j;
	else
		slurm_job_fini(&j);
	return ok;
}

/* ---- the file of a GPU in an HPC job mapping ---- */

static bool
take_jobs(const char *text, size_t len, struct hpc_gpu *g, struct err *err)
{
	const char *at = text, *end = text + len;

	while (at < end) {
		owned(mem) char *line = next_part(&at, end, '\n');
		size_t first = strspn(line, " \t\r"), last = strlen(line);

		while (last > first && strchr(" \t\r", line[last - 1]))
			last--;
		if (last == first)
			continue;
		owned(mem) char *job = mem_strndup(line + first, last - first);

		if (g->job_count == SLURM_GPUS_MAX)
			return err_set(err, ERR_INVALID, "more than %u jobs", SLURM_GPUS_MAX);
		if (strlen(job) > WIRE_MAX_TEXT || !text_is_clean(job))
			return err_set(
				err, ERR_INVALID,
				"a job is not a text of at most %u bytes without control or direction characters",
				WIRE_MAX_TEXT);
		g->jobs = mem_grow(g->jobs, g->job_count + 1, sizeof(*g->jobs));
		g->jobs[g->job_count++] = take(job);
	}
	return true;
}

bool
hpc_gpu_parse(const char *name, const char *text, size_t len, struct hpc_gpu *ret, struct err *err)
{
	const char *dot = strchr(name, '.');
	struct hpc_gpu g = {.gpu = mem_strndup(name, dot ? (size_t)(dot - name) : strlen(name)), .gi = -1};
	int64_t gi = -1;
	bool ok = true;

	if (!g.gpu[0] || strlen(g.gpu) > WIRE_MAX_TEXT || !text_is_clean(g.gpu) ||
	    (dot && (!text_to_i64(dot + 1, &gi) || gi < 0 || gi > INT32_MAX)))
		ok = err_set(err, ERR_INVALID, "the name is neither <gpu> nor <gpu>.<gpu instance>");
	if (ok && memchr(text, '\0', len))
		ok = err_set(err, ERR_INVALID, "a NUL byte in the text");
	g.gi = (int32_t)gi;
	ok = ok && take_jobs(text, len, &g, err);
	if (ok)
		*ret = g;
	else
		hpc_gpu_fini(&g);
	return ok;
}

/* ---- the map ---- */

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

/* ---- a fingerprint of both folders ---- */

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

/* Names, owners, sizes and times; no file is opened. */
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

/* ---- checking the owner ---- */

static bool
check_owner(const struct slurm_map *m, const char *what, const struct stat *st, struct err *err)
{
	if (st->st_uid != 0 && (int64_t)st->st_uid != m->owner_uid)
		return err_set(err, ERR_DENIED, "%s belongs to uid %u, not to root: it is not used", what, st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return err_set(err, ERR_DENIED, "%s has mode %04o: others may write to it, so it is not used", what,
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
	/* readdir has no order */
	if (m->job_count > 0)
		qsort(m->jobs, m->job_count, sizeof(*m->jobs), by_job);
	if (m->gpu_count > 0)
		qsort(m->gpus, m->gpu_count, sizeof(*m->gpus), by_gpu);
	return true;
}

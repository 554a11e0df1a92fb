/* exporter/identity/slurm_map_parse.c - the text of a job's file, and of a GPU's. Pure. */
#include <string.h>

#include "common/base/text.h"
#include "common/base/time.h"
#include "common/wire/wire.h"
#include "exporter/identity/slurm_map.h"

#define JOB_MAX 31u /* digits of a job's number, and the longest name of a job in an HPC mapping is a text */

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

/* ---- a job ---- */

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
	struct slurm_job j = {.account = mem_strdup(""),
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

/* ---- a GPU ---- */

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

/* hooks/agent/slurm.c - Slurm by its own commands. */
#include "hooks/agent/slurm.h"

#include <stdio.h>

#include "common/base/time.h"
#include "hooks/agent/command.h"

#define PATH_SIZE 4096

static const char *
program(const struct slurm *s, const char *name, char out[PATH_SIZE])
{
	snprintf(out, PATH_SIZE, "%s/%s", s->bin, name);
	return out;
}

/* ---- reading ---- */

struct reading {
	const struct partitions *partitions;
	struct job_list *jobs;
	int64_t now_s;
};

static bool
take_job(void *arg, const char *line, struct err *err)
{
	const struct reading *r = arg;

	return job_list_add(r->jobs, line, r->partitions, r->now_s, err);
}

bool
slurm_queue(const struct slurm *s, const struct partitions *partitions, struct job_list *ret, struct err *err)
{
	in_place(job_list) struct job_list jobs = {0};
	struct reading r = {.partitions = partitions, .jobs = &jobs, .now_s = time_wall_ns() / NS_PER_S};
	static const char format[] = SQUEUE_FORMAT;
	char path[PATH_SIZE];
	/* -r: each task of an array by itself. main() has set SLURM_TIME_FORMAT, so that times are seconds. */
	const char *const argv[] = {program(s, "squeue", path), "--noheader", "--array", "--Format", format, NULL};

	if (!command_run(argv, s->timeout_ns, take_job, &r, err))
		return false;
	*ret = jobs;
	jobs = (struct job_list){0};
	return true;
}

static bool
take_partition(void *arg, const char *line, struct err *err)
{
	return partitions_add(arg, line, err);
}

bool
slurm_partitions(const struct slurm *s, struct partitions *ret, struct err *err)
{
	in_place(partitions) struct partitions p = {0};
	char path[PATH_SIZE];
	const char *const argv[] = {program(s, "sinfo", path), "--noheader", "--format", "%R|%G", NULL};

	if (!command_run(argv, s->timeout_ns, take_partition, &p, err))
		return false;
	*ret = p;
	p = (struct partitions){0};
	return true;
}

/* ---- acting ---- */

static bool
scontrol(const struct slurm *s, const char *word, const char *first, const char *second, struct err *err)
{
	char path[PATH_SIZE];
	const char *const argv[] = {program(s, "scontrol", path), word, first, second, NULL};

	return command_run(argv, s->timeout_ns, NULL, NULL, err);
}

bool
slurm_release(const struct slurm *s, const struct job *j, struct err *err)
{
	return scontrol(s, "release", j->key, NULL, err);
}

bool
slurm_hold(const struct slurm *s, const struct job *j, struct err *err)
{
	return scontrol(s, "hold", j->key, NULL, err);
}

bool
slurm_requeue_held(const struct slurm *s, const struct job *j, struct err *err)
{
	return scontrol(s, "requeuehold", j->key, NULL, err);
}

bool
slurm_mark(const struct slurm *s, const struct job *j, const struct mark *m, const char *text, struct err *err)
{
	in_place(buf) struct buf comment = {0};
	char job[JOB_KEY_SIZE + 8];

	buf_init(&comment, 1024);
	buf_str(&comment, "AdminComment=");
	mark_write(m, text, &comment);
	snprintf(job, sizeof(job), "JobId=%s", j->key);
	return buf_ok(&comment, "the mark", err) && scontrol(s, "update", job, buf_text(&comment), err);
}

bool
slurm_notify(const struct slurm *s, const struct job *j, const char *text, struct err *err)
{
	return scontrol(s, "notify", j->key, text, err);
}

bool
slurm_signal(const struct slurm *s, const struct job *j, struct err *err)
{
	char path[PATH_SIZE], number[24];
	const char *const argv[] = {program(s, "scancel", path),
	                            "--signal",
	                            number,
	                            j->mark.signal_batch ? "--batch" : "--quiet",
	                            j->key,
	                            NULL};

	if (j->mark.signal == 0)
		return true;
	snprintf(number, sizeof(number), "%" PRId64, j->mark.signal);
	return command_run(argv, s->timeout_ns, NULL, NULL, err);
}

/* hooks/agent/slurm.h - the agent's view of Slurm and its hands there, through squeue, sinfo, scontrol and scancel. */
#ifndef TOLLGATE_AGENT_SLURM_H
#define TOLLGATE_AGENT_SLURM_H

#include "hooks/agent/job.h"

struct slurm {
	const char *bin;    /* the folder of Slurm's commands */
	int64_t timeout_ns; /* of one command */
};

/* Jobs that have not ended and ask for GPUs. An error: nothing is known. */
MUST_CHECK bool slurm_queue(const struct slurm *s, const struct partitions *partitions, struct job_list *ret,
                            struct err *err);
MUST_CHECK bool slurm_partitions(const struct slurm *s, struct partitions *ret, struct err *err);

MUST_CHECK bool slurm_release(const struct slurm *s, const struct job *j, struct err *err);
/* As an operator, so that its user cannot lift it. */
MUST_CHECK bool slurm_hold(const struct slurm *s, const struct job *j, struct err *err);
MUST_CHECK bool slurm_requeue_held(const struct slurm *s, const struct job *j, struct err *err);
MUST_CHECK bool slurm_mark(const struct slurm *s, const struct job *j, const struct mark *m, const char *text,
                           struct err *err);
/* A message in the job's output. */
MUST_CHECK bool slurm_notify(const struct slurm *s, const struct job *j, const char *text, struct err *err);
/* The signal that the job declared for its own end; without one nothing happens. */
MUST_CHECK bool slurm_signal(const struct slurm *s, const struct job *j, struct err *err);

#endif

/* hooks/agent/agent.h - the agent's loop: it reads Slurm's queue and the aggregator's book, and does what job_actions.h says. */
#ifndef TOLLGATE_AGENT_H
#define TOLLGATE_AGENT_H

#include "hooks/agent/hook_desk.h"
#include "hooks/agent/options.h"
#include "hooks/agent/job_actions.h"

struct agent;
MUST_CHECK bool agent_start(const struct agent_options *o, struct hook_desk *desk, struct agent **ret, struct err *err);
/* Ends after the action under way. NULL is allowed. */
void agent_stop(struct agent *a);

/* For /metrics and health; a copy. */
struct agent_figures {
	int64_t last_turn_boot_ns;    /* 0: none has ended yet */
	int64_t turns, turn_ns;       /* how many; how long the last one took */
	bool slurm_ok, aggregator_ok; /* at the last attempt */
	char slurm_error[256], aggregator_error[256];
	int64_t jobs, marked, waiting, running; /* in the queue, with GPUs; of the marked ones: held by us, running */
	int64_t requests, leases;               /* of this cluster in the aggregator's book */
	int64_t unleased;                       /* marked jobs that run without a lease */
	int64_t done[ACTION_KINDS], failed[ACTION_KINDS];
};
void agent_figures(struct agent *a, struct agent_figures *ret);

#endif

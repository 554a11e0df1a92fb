/* hooks/agent/job_actions.h - from the jobs in Slurm's queue and the leases in the aggregator's book to what must be done. Pure.
 *
 * Nothing is remembered between two calls: what was done is seen in the mark of a job and in the state of its request. So an agent that was killed
 * between any two actions goes on where it was.
 *
 * A request is a job's own when it has the name that the job has now (its start, attempt and ask); of a job that has started, whatever its
 * ask looks like now. Requests of a job that are not its own are old.
 *
 * Rules, for each marked job:
 *  1. runs: its lease is confirmed once, and its mark says run. Old leases are released. Without a lease it is asked for.
 *  2. runs, and its lease was ordered back: the order is acknowledged and the job told, once (the mark says drain afterwards);
 *     when the time that Slurm needs to end it begins, it is requeued and held.
 *  3. waits: old leases are released, old requests cancelled. It is not asked for while an old lease has not ended.
 *  4. waits, and its user holds it: its own request is cancelled or its lease released, and nothing is asked for. A hold of an admitted job is its
 *     user's, or an operator's: it is remembered in the mark.
 *  5. waits, held by us, and its own request is admitted: its hold is lifted, then the mark says run.
 *  6. waits, held by us, and its own request waits: its mark says why, when the category has changed.
 *  7. waits, held by us, could start, and has no request: it is asked for, at most `window` of an account, user and shape, the nicest first, then the
 *     oldest.
 *     A request that cannot be leased (gpu_ask.h) has its reason in the mark.
 *  8. waits, not held, mark run: without a lease of its own (it expired, or Slurm requeued the job) it is held again, mark back, with the next attempt.
 *     A job that Tollgate let through without a lease (category unattributed, outage or operator) is left alone.
 *  9. waits, not held, another mark: with an admitted request the mark is completed (the agent was killed between two steps of rule 5); without one
 *     an operator released it, and the mark says so.
 * 10. waits, admitted, and its lease was ordered back before it started: it is held, and begins a new attempt, by which the lease is an old one.
 * And of requests without a job: waiting ones are cancelled, leases are released. */
#ifndef TOLLGATE_AGENT_JOB_ACTIONS_H
#define TOLLGATE_AGENT_JOB_ACTIONS_H

#include "hooks/agent/job.h"

#define TENANT_SIZE 128

enum request_state { REQUEST_WAITING, REQUEST_ADMITTED, REQUEST_CONFIRMED };

/* A request of this cluster that has not ended. */
struct request {
	char id[REQUEST_ID_SIZE];
	char tenant[TENANT_SIZE];
	struct request_name of;
	enum request_state state;
	bool released;                /* the agent said so; it ends when its GPUs are seen empty */
	char category[CATEGORY_SIZE]; /* of one that waits: the rule that it waits for */
	int64_t order;                /* to give back its GPUs; 0: none */
	bool order_acked;
	int64_t due_in_ns; /* of the order */
};
struct request_list {
	struct request *at;
	size_t count, cap;
};
void request_list_fini(struct request_list *l);

enum action_kind {
	ACTION_ASK,     /* job */
	ACTION_START,   /* job, request: lift the hold, then mark */
	ACTION_CONFIRM, /* job, request */
	ACTION_RELEASE, /* request: the lease */
	ACTION_CANCEL,  /* request */
	ACTION_MARK,    /* job, mark; the text is the request's where there is one */
	ACTION_HOLD,    /* job, mark: hold, then mark */
	ACTION_ACK,     /* request */
	ACTION_TELL,    /* job, request, mark: notify and signal, then mark */
	ACTION_REQUEUE, /* job, request: requeue and hold */
	ACTION_KINDS
};
extern const char *const action_names[ACTION_KINDS];

#define NO_JOB SIZE_MAX
#define NO_REQUEST SIZE_MAX
struct action {
	enum action_kind kind;
	size_t job, request; /* positions in the lists */
	struct mark mark;    /* to be written */
};
struct action_list {
	struct action *at;
	size_t count, cap;
	size_t unleased_jobs; /* that run with a mark and without a lease */
};
void action_list_fini(struct action_list *l);

struct job_actions_options {
	const char *cluster;
	int64_t kill_wait_ns; /* from the requeue until the job's processes are gone */
	int64_t window;       /* requests that wait at the same time, of one account, user and shape */
};
void job_actions_find(const struct job_list *jobs, const struct request_list *requests,
                      const struct job_actions_options *o, struct action_list *ret);

#endif

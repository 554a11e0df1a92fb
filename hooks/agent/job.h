/* hooks/agent/job.h - a Slurm job as the agent sees it: the line of squeue, the mark in its AdminComment, the name of its request. Pure.
 *
 * The mark is the only thing that the agent keeps beside a job, and users cannot write it:
 *
 *   tollgate WORD.ATTEMPT[u][bN|sN] CATEGORY: text for people
 *
 *   WORD      wait   held by Tollgate until it is admitted
 *             run    admitted: Slurm may start it
 *             back   was admitted, and is held again because its lease ended before it started, or because Slurm requeued it
 *             drain  runs, and was told to give back its GPUs; or was requeued for that
 *   ATTEMPT   of asking for this start of the job: an ended request cannot be asked again under its name
 *   u         the user holds the job too: Tollgate does not release it
 *   bN, sN    the signal that its script declared (--signal): to the batch shell, to all steps
 *   CATEGORY  one word: the text is written again only when it changes
 *
 * A request is named s:CLUSTER:JOB:RESTART.ATTEMPT:HASH, with a hash of what is asked for: the same job asks for the same thing under the same
 * name, also after the agent was killed, and for another thing under another one. */
#ifndef TOLLGATE_AGENT_JOB_H
#define TOLLGATE_AGENT_JOB_H

#include "common/base/buf.h"
#include "hooks/agent/gpu_ask.h"

#define JOB_KEY_SIZE 32
#define JOB_NAME_SIZE 65   /* of accounts and users; longer ones are cut */
#define PARTITION_SIZE 129 /* a job may name several */
#define REQUEST_ID_SIZE 64 /* with the NUL, as the aggregator takes them */
#define CLUSTER_NAME_MAX 16
#define CATEGORY_SIZE 24
#define MARK_TEXT_MAX 240 /* bytes of the text for people */
#define JOBS_MAX 1000000u

/* Copies what fits; the rest of the array is zero. NULL is "". */
void text_fit(char *out, size_t size, const char *text);

enum mark_word { MARK_NONE, MARK_WAIT, MARK_RUN, MARK_BACK, MARK_DRAIN };
struct mark {
	enum mark_word word;
	int64_t attempt;
	bool user_hold;
	int64_t signal; /* 0: none declared */
	bool signal_batch;
	char category[CATEGORY_SIZE];
};

/* MARK_NONE: it is no mark. */
struct mark mark_parse(const char *admin_comment);
/* The text is cut, and control characters in it become spaces. */
void mark_write(const struct mark *m, const char *text, struct buf *out);

enum job_state { JOB_PENDING, JOB_RUNNING, JOB_ENDING };

struct job {
	char key[JOB_KEY_SIZE]; /* "4711", or "4711_3" for task 3 of an array */
	int64_t id;             /* Slurm's own number; the tasks of an array that have not been touched yet share one */
	int64_t array_id, array_task; /* array_task -1: no array */
	enum job_state state;
	bool held; /* priority 0 */
	int64_t restarts;
	bool batch, requeue;
	bool waits; /* for another job, or for its begin time */
	char account[JOB_NAME_SIZE], user[JOB_NAME_SIZE];
	int64_t uid;
	int64_t nice, submit_s, time_limit_s; /* time limit 0: none */
	struct mark mark;
	struct gpu_ask ask;
	char fault[128]; /* why its request cannot be asked for; "": it can */
};

/* Work that Slurm can requeue may borrow; other work is never taken back. */
static inline bool
job_is_preemptible(const struct job *j)
{
	return j->batch && j->requeue;
}

/* The GPUs of each partition, from sinfo. */
struct partition {
	char name[PARTITION_SIZE];
	struct node_gpus gpus;
};
struct partitions {
	struct partition *at;
	size_t count, cap;
};
void partitions_fini(struct partitions *p);
/* "PARTITION|GRES": nodes of the partition that have these GPUs. */
MUST_CHECK bool partitions_add(struct partitions *p, const char *line, struct err *err);
/* NULL: not known, or a list of partitions whose nodes differ. */
const struct node_gpus *partitions_find(const struct partitions *p, const char *names);

struct job_list {
	struct job *at; /* all that ask for GPUs, with a mark or without */
	size_t count, cap;
	size_t marked;
};
void job_list_fini(struct job_list *l);

/* The format for squeue -O. 0: as wide as the text; columns that are padded cost squeue four times as much. The mark comes last, because an operator may have written anything there. */
#define SQUEUE_FORMAT                                                                                                  \
	"ArrayJobID:0|,ArrayTaskID:0|,JobID:0|,StateCompact:0|,PriorityLong:0|,RestartCnt:0|,Requeue:0|,BatchFlag:0|," \
	"UserID:0|,Nice:0|,NumNodes:0|,MaxNodes:0|,NumTasks:0|,OverSubscribe:0|,SubmitTime:0|,EligibleTime:0|,"        \
	"TimeLimit:0|,HetJobID:0|,Account:0|,UserName:0|,Partition:0|,tres-per-job:0|,tres-per-node:0|,"               \
	"tres-per-socket:0|,tres-per-task:0|,Dependency:0|,admin_comment:0"
/* Adds the job of one line, if it asks for GPUs. A line that is not understood is an error, and then nothing of the queue may be believed: a job that is left
 * out would look as if it had ended. now_s: for begin times. */
MUST_CHECK bool job_list_add(struct job_list *l, const char *line, const struct partitions *partitions, int64_t now_s,
                             struct err *err);

void job_request_id(const struct job *j, const char *cluster, char out[REQUEST_ID_SIZE]);
/* The job, restart and attempt of a request of this cluster; false: it is none. */
struct request_name {
	char key[JOB_KEY_SIZE];
	int64_t restarts, attempt;
};
bool request_id_parse(const char *id, const char *cluster, struct request_name *ret);

#endif

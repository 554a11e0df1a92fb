/* hooks/agent/hook_desk.h - what job_submit.lua is answered, from memory alone. Locked: the socket's thread asks, the agent's thread fills it.
 *
 * A question is one line: a verb, then NAME=VALUE fields separated by tabs, values percent-encoded; an answer likewise (hooks/slurm/job_submit.lua). slurmctld
 * waits for the answer with its locks held, so nothing here waits for Slurm or the aggregator. Rules for a submission:
 *  1. It asks for no GPU: pass.
 *  2. It asks in a way that cannot be leased (gpu_ask.h; heterogeneous jobs; --ntasks-per-gpu without a number of GPUs): refuse, with the reason.
 *  3. The aggregator rejected the same ask (account, user, type, number) a short time ago: refuse, with the aggregator's sentence.
 *  4. No workspace has the same account and user, by an answer of a short time ago: pass or refuse, by the option `unattributed`.
 *  5. Otherwise hold: the agent asks the aggregator, and releases the job when it is admitted.
 * And for a user's change of a marked job:
 *  6. Lifting our hold is refused; where the user held the job too, that hold is forgotten. A hold of a waiting job is remembered.
 *  7. Anything else may change while the job waits: it is asked for anew. Once it is admitted, only its time limit may.
 *  8. A job without a mark gets no GPU by a change: a submission alone is asked about. */
#ifndef TOLLGATE_AGENT_HOOK_DESK_H
#define TOLLGATE_AGENT_HOOK_DESK_H

#include "hooks/agent/job.h"

#define HOOK_LINE_MAX (64u << 10) /* of a question and of an answer, as job_submit.lua has it */

enum unattributed { UNATTRIBUTED_PASS, UNATTRIBUTED_DENY };

struct hook_desk;
struct hook_desk *hook_desk_new(enum unattributed unattributed);
void hook_desk_free(struct hook_desk *d);

/* Writes the answer to a question, a line without its end; it cuts the question up. A question that is not understood: out stays empty, which
 * job_submit.lua takes for no answer. */
void hook_desk_answer(struct hook_desk *d, char *question, int64_t now_ns, struct buf *out);

/* Takes the partitions over. */
void hook_desk_partitions(struct hook_desk *d, struct partitions *p);

/* What the aggregator said of a shape: an account's and user's ask. It is believed until until_ns. */
enum shape_verdict { SHAPE_UNKNOWN, SHAPE_REJECTED, SHAPE_NOBODY };
void hook_desk_learn(struct hook_desk *d, const struct job *j, enum shape_verdict v, const char *text,
                     int64_t until_ns);
#define SHAPE_TEXT_SIZE 512
enum shape_verdict hook_desk_known(struct hook_desk *d, const struct job *j, int64_t now_ns,
                                   char ret_text[SHAPE_TEXT_SIZE]);

/* A user's hold of a job, or its end, which the agent writes into the job's mark. */
struct user_hold {
	int64_t job, array_id, array_task; /* array_task -1: all of the array, or none */
	bool hold;
};
/* The caller frees it with mem_free; *ret_count may be 0. */
struct user_hold *hook_desk_take_holds(struct hook_desk *d, size_t *ret_count);

enum hook_result { HOOK_PASS, HOOK_HOLD, HOOK_REFUSE, HOOK_MALFORMED, HOOK_RESULTS };
enum hook_verb { HOOK_SUBMIT, HOOK_MODIFY, HOOK_OTHER, HOOK_VERBS };
extern const char *const hook_result_names[HOOK_RESULTS], *const hook_verb_names[HOOK_VERBS];
void hook_desk_counts(struct hook_desk *d, int64_t ret[HOOK_VERBS][HOOK_RESULTS]);

#endif

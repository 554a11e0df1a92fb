/* hooks/agent/quota_client.h - the calls of the aggregator that the agent makes. One client per thread. */
#ifndef TOLLGATE_AGENT_QUOTA_CLIENT_H
#define TOLLGATE_AGENT_QUOTA_CLIENT_H

#include "common/http/httpc.h"
#include "hooks/agent/job_actions.h"

/* Slurm's type of a GPU → the policy's model. A type that is not listed is its own model. */
struct gpu_model {
	char type[GPU_TYPE_SIZE], model[GPU_TYPE_SIZE];
};
struct gpu_models {
	struct gpu_model *at;
	size_t count;
};
/* "a100=A100-80GB,h100=H100-80GB" */
MUST_CHECK bool gpu_models_parse(const char *text, struct gpu_models *ret, struct err *err);
void gpu_models_fini(struct gpu_models *m);

struct quota_client;
MUST_CHECK bool quota_client_new(const struct httpc_options *http, const char *cluster, const char *quota_cluster,
                                 const struct gpu_models *models, struct quota_client **ret, struct err *err);
void quota_client_free(struct quota_client *c);
DEFINE_OWNED(quota_client, struct quota_client)
/* From another thread: the call under way and all later ones fail. */
void quota_client_abort(struct quota_client *c);

/* An answer to a request for capacity. */
enum answer_kind {
	ANSWER_WAITING,
	ANSWER_ADMITTED,
	ANSWER_REJECTED, /* it can never run by the present policy */
	ANSWER_ENDED,    /* a request of this name has ended already */
	ANSWER_NOBODY,   /* no rule gives the job to a workspace */
};
struct answer {
	enum answer_kind kind;
	char tenant[TENANT_SIZE];
	char category[CATEGORY_SIZE];
	char text[512]; /* for people */
};

/* dry_run: what it would be; nothing is written. ERR_RETRY: the aggregator does not answer, or not now. */
MUST_CHECK bool quota_client_ask(struct quota_client *c, const struct job *j, bool dry_run, struct answer *ret,
                                 struct err *err);
/* Why a request waits. */
MUST_CHECK bool quota_client_explain(struct quota_client *c, const struct request *r, struct answer *ret,
                                     struct err *err);
/* All requests of this cluster that have not ended, with the orders to give back. */
MUST_CHECK bool quota_client_list(struct quota_client *c, struct request_list *ret, struct err *err);
MUST_CHECK bool quota_client_confirm(struct quota_client *c, const struct request *r, const struct job *j,
                                     struct err *err);
MUST_CHECK bool quota_client_release(struct quota_client *c, const struct request *r, struct err *err);
MUST_CHECK bool quota_client_cancel(struct quota_client *c, const struct request *r, struct err *err);
MUST_CHECK bool quota_client_ack(struct quota_client *c, const struct request *r, struct err *err);

#endif

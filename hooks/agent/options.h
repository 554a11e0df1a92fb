/* hooks/agent/options.h - the options of tollgate-agent. */
#ifndef TOLLGATE_AGENT_OPTIONS_H
#define TOLLGATE_AGENT_OPTIONS_H

#include "common/conf/conf.h"

enum outage { OUTAGE_WAIT, OUTAGE_RUN };

struct agent_options {
	char *listen;
	char *socket;
	char *aggregator_url;
	char *token_file;
	char *ca_file;
	char *client_cert;
	char *client_key;
	int64_t timeout_ns;
	char *cluster;       /* in names of requests */
	char *quota_cluster; /* NULL: the ledger's own */
	char *gpu_models;    /* NULL: Slurm's types are the models */
	char *slurm_bin;
	int64_t slurm_timeout_ns;
	int64_t poll_interval_ns;
	int64_t kill_wait_ns;
	int64_t window;
	int64_t ask_again_ns;
	int unattributed; /* enum unattributed */
	int outage;       /* enum outage */
	int64_t outage_after_ns;
	int log_level;
};

extern const struct conf_program agent_program;

/* Checks that the table cannot express. */
MUST_CHECK bool agent_options_check(struct agent_options *o, struct err *err);

#endif

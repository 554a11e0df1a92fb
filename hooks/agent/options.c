/* hooks/agent/options.c - one row per option; help, manual page, sample configuration and checks come from it. */
#include "hooks/agent/options.h"

#include <string.h>

#include "common/base/time.h"
#include "hooks/agent/quota_client.h"

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const unattributed[] = {"pass", "deny", NULL}; /* enum unattributed */
static const char *const outage[] = {"wait", "run", NULL};        /* enum outage */

#define FIELD(f) offsetof(struct agent_options, f)

/* clang-format off */
static const struct conf_option options[] = {
	{.name = "listen", .type = CONF_STRING, .offset = FIELD(listen), .preset = "127.0.0.1:9403",
	 .help = "address and port of /metrics, /healthz and /readyz"},
	{.name = "socket", .type = CONF_PATH, .offset = FIELD(socket), .preset = "/run/tollgate-agent/agent.sock",
	 .help = "unix socket that job_submit.lua asks; only root and the agent's own user are answered"},
	{.name = "aggregator-url", .type = CONF_STRING, .offset = FIELD(aggregator_url), .preset = "http://127.0.0.1:9402",
	 .help = "where the aggregator answers"},
	{.name = "token-file", .type = CONF_PATH, .offset = FIELD(token_file), .preset = "/etc/tollgate/agent.token",
	 .help = "file with a token of the role scheduler; read before each call"},
	{.name = "ca-file", .type = CONF_PATH, .offset = FIELD(ca_file),
	 .help = "PEM file with the CAs of the aggregator's certificate; unset: the system's"},
	{.name = "client-cert", .type = CONF_PATH, .offset = FIELD(client_cert),
	 .help = "PEM file with the certificate that is shown to the aggregator; with client-key"},
	{.name = "client-key", .type = CONF_PATH, .offset = FIELD(client_key),
	 .help = "PEM file with its key"},
	{.name = "timeout", .type = CONF_DURATION, .offset = FIELD(timeout_ns), .preset = "10s",
	 .min = 100 * NS_PER_MS, .max = 10 * NS_PER_MIN,
	 .help = "longest time for one call of the aggregator"},
	{.name = "cluster", .type = CONF_STRING, .offset = FIELD(cluster), .preset = "slurm",
	 .help = "name of this Slurm in the names of its requests, at most 16 letters, digits and -; another one for each Slurm that asks the same aggregator"},
	{.name = "quota-cluster", .type = CONF_STRING, .offset = FIELD(quota_cluster),
	 .help = "the policy's name of the cluster; unset: the one that the policy file names"},
	{.name = "gpu-models", .type = CONF_STRING, .offset = FIELD(gpu_models),
	 .help = "the policy's model of each type in gres.conf, as TYPE=MODEL,TYPE=MODEL; a type that is not listed is its own model"},
	{.name = "slurm-bin", .type = CONF_PATH, .offset = FIELD(slurm_bin), .preset = "/usr/bin",
	 .help = "folder of squeue, sinfo, scontrol and scancel"},
	{.name = "slurm-timeout", .type = CONF_DURATION, .offset = FIELD(slurm_timeout_ns), .preset = "30s",
	 .min = NS_PER_S, .max = 10 * NS_PER_MIN,
	 .help = "longest time for one of Slurm's commands"},
	{.name = "poll-interval", .type = CONF_DURATION, .offset = FIELD(poll_interval_ns), .preset = "2s",
	 .min = 100 * NS_PER_MS, .max = 10 * NS_PER_MIN,
	 .help = "how often Slurm's queue and the requests are read"},
	{.name = "kill-wait", .type = CONF_DURATION, .offset = FIELD(kill_wait_ns), .preset = "35s",
	 .min = 0, .max = NS_PER_HOUR,
	 .help = "a job that must give back its GPUs is requeued so long before that is overdue: KillWait of slurm.conf, and a little more"},
	{.name = "window", .type = CONF_INT, .offset = FIELD(window), .preset = "64", .min = 1, .max = 1024,
	 .help = "requests that wait at the same time, of one account, user and kind of request; the other jobs wait in Slurm alone"},
	{.name = "ask-again", .type = CONF_DURATION, .offset = FIELD(ask_again_ns), .preset = "1m",
	 .min = NS_PER_S, .max = NS_PER_DAY,
	 .help = "how long the answer that a job can never run, or is nobody's, is believed: equal jobs are refused meanwhile, waiting ones ask again afterwards"},
	{.name = "unattributed", .type = CONF_ENUM, .offset = FIELD(unattributed), .preset = "pass", .choices = unattributed,
	 .help = "jobs that no rule gives to a workspace: pass starts them without a lease, deny lets them wait and refuses equal ones"},
	{.name = "outage", .type = CONF_ENUM, .offset = FIELD(outage), .preset = "wait", .choices = outage,
	 .help = "jobs that wait while the aggregator does not answer: wait holds them, run starts them without a lease, which is asked for when it answers again"},
	{.name = "outage-after", .type = CONF_DURATION, .offset = FIELD(outage_after_ns), .preset = "5m",
	 .min = 0, .max = NS_PER_DAY,
	 .help = "with outage run: how long the aggregator has not answered before jobs are started without it"},
	{.name = "log-level", .type = CONF_ENUM, .offset = FIELD(log_level), .preset = "info", .choices = log_levels,
	 .help = "least important messages that are written"},
};
/* clang-format on */

const struct conf_program agent_program = {
	.name = "tollgate-agent",
	.summary = "makes Slurm obey the quotas of the aggregator",
	.details =
		"Runs beside slurmctld, as SlurmUser. job_submit.lua asks it about each job that wants GPUs, and holds the job; the agent asks the aggregator, releases the job when it is admitted, confirms and releases its lease, and requeues jobs whose GPUs are taken back. It keeps nothing on disk: what it did is in the AdminComment of the jobs and in the aggregator's book.",
	.see_also = (const char *const[]){"tollgate(1)", "tollgate-aggregator(8)", "tollgate-exporter(8)", NULL},
	.options = options,
	.count = ARRAY_LEN(options),
};

static bool
is_name(const char *s)
{
	return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == strlen(s);
}

bool
agent_options_check(struct agent_options *o, struct err *err)
{
	struct gpu_models models = {0};

	if (strlen(o->cluster) > CLUSTER_NAME_MAX || !is_name(o->cluster))
		return err_set(err, ERR_INVALID, "cluster: \"%.64s\" is not a name of at most %d letters, digits and -",
		               o->cluster, CLUSTER_NAME_MAX);
	if (strncmp(o->aggregator_url, "http://", 7) != 0 && strncmp(o->aggregator_url, "https://", 8) != 0)
		return err_set(err, ERR_INVALID, "aggregator-url: '%s' begins neither with http:// nor with https://",
		               o->aggregator_url);
	if (!o->client_cert != !o->client_key)
		return err_set(err, ERR_INVALID, "client-cert and client-key are given together or not at all");
	if (!gpu_models_parse(o->gpu_models ? o->gpu_models : "", &models, err))
		return err_prefix(err, "gpu-models");
	gpu_models_fini(&models);
	return true;
}

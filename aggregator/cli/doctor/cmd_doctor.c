/* aggregator/cli/doctor/cmd_doctor.c - tollgate doctor: the table of checks, and their output. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/doctor/doctor.h"

enum { GROUP_SERVER = 1, GROUP_NODE = 2 };

struct check {
	const char *name;
	unsigned groups;
	probe_fn *probe;
	judge_fn *judge;
};

/* Each check comes after the checks that it depends on. */
static const struct check checks[] = {
	{"aggregator", GROUP_SERVER, probe_reachable, judge_reachable},
	{"database", GROUP_SERVER, probe_database, judge_database},
	{"token file", GROUP_SERVER, probe_token_file, judge_token_file},
	{"token", GROUP_SERVER, probe_token, judge_token},
	{"clock", GROUP_SERVER, probe_clock, judge_clock},
	{"clock synchronisation", GROUP_SERVER | GROUP_NODE, probe_ntp, judge_ntp},
	{"nodes", GROUP_SERVER, probe_nodes, judge_nodes},
	{"held nodes", GROUP_SERVER, probe_held_nodes, judge_held_nodes},
	{"quarantine", GROUP_SERVER, probe_quarantine, judge_quarantine},
	{"live state", GROUP_SERVER, probe_live, judge_live},
	{"clocks of nodes", GROUP_SERVER, probe_node_clocks, judge_node_clocks},
	{"unattributed usage", GROUP_SERVER, probe_unattributed, judge_unattributed},
	{"prices", GROUP_SERVER, probe_prices, judge_prices},
	{"user", GROUP_NODE, probe_user, judge_user},
	{"driver", GROUP_NODE, probe_driver, judge_driver},
	{"NVML library", GROUP_NODE, probe_library, judge_library},
	{"GPU devices", GROUP_NODE, probe_devices, judge_devices},
	{"process namespace", GROUP_NODE, probe_pid_namespace, judge_pid_namespace},
	{"processes", GROUP_NODE, probe_processes, judge_processes},
	{"cgroups", GROUP_NODE, probe_cgroup, judge_cgroup},
	{"pod directories", GROUP_NODE, probe_pods, judge_pods},
	{"kubelet socket", GROUP_NODE, probe_kubelet, judge_kubelet},
	{"Slurm job files", GROUP_NODE, probe_slurm, judge_slurm},
	{"exporter", GROUP_NODE, probe_exporter, judge_exporter},
	{"readings", GROUP_NODE, probe_readings, judge_readings},
	{"accounting", GROUP_NODE, probe_accounting, judge_accounting},
	{"MIG placements", GROUP_NODE, probe_placements, judge_placements},
	{"kubelet", GROUP_NODE, probe_kubelet_answer, judge_kubelet_answer},
	{"pod labels", GROUP_NODE, probe_pod_labels, judge_pod_labels},
	{"allocations", GROUP_NODE, probe_allocations, judge_allocations},
	{"Slurm job names", GROUP_NODE, probe_slurm_names, judge_slurm_names},
	{"push", GROUP_NODE, probe_push, judge_push},
	{"spool", GROUP_NODE, probe_spool, judge_spool},
};

static const struct {
	const char *word, *colour;
} verdicts[] = {
	[VERDICT_OK] = {"ok", "\033[32m"},
	[VERDICT_WARN] = {"warn", "\033[33m"},
	[VERDICT_FAIL] = {"fail", "\033[31m"},
};

static bool
open_clients(struct doctor *d, struct err *err)
{
	struct httpc_options o = {.base_url = d->url,
	                          .user_agent = "tollgate/" TOLLGATE_VERSION,
	                          .connect_timeout_ns = 3 * NS_PER_S,
	                          .timeout_ns = 30 * NS_PER_S};

	cli_tls(d->cli, &o);
	if (!httpc_new(&o, &d->open, err))
		return false;
	o.token_file = d->token_file;
	return d->token_file == NULL || httpc_new(&o, &d->with, err);
}

/* The groups named by --server and --node. Without these: the node if this machine is one, and the aggregator if it is configured, if it answers,
 * or if this machine is no node. */
static unsigned
choose_groups(struct doctor *d)
{
	unsigned groups = (cli_value(d->cli, "server") != NULL ? GROUP_SERVER : 0u) |
	                  (cli_value(d->cli, "node") != NULL ? GROUP_NODE : 0u);
	bool configured = cli_setting(d->cli, "url", "TOLLGATE_URL") != NULL || d->token_file != NULL;
	struct facts f = {0};

	if (groups != 0)
		return groups;
	probe_exporter(d, &f);
	if (doctor_is_node(d))
		groups |= GROUP_NODE;
	if (!configured && groups != 0) {
		memset(&f, 0, sizeof(f));
		probe_reachable(d, &f);
		configured = f.status == 200;
	}
	return groups | (configured || groups == 0 ? GROUP_SERVER : 0u);
}

static void
print_line(const char *name, const struct finding *f)
{
	bool colours = cli_colours();

	printf("%s%s%s%*s%s: %s%s%s\n", colours ? verdicts[f->verdict].colour : "", verdicts[f->verdict].word,
	       colours ? "\033[0m" : "", (int)(6 - strlen(verdicts[f->verdict].word)), "", name, f->finding,
	       f->remedy[0] != '\0' ? "; " : "", f->remedy);
}

static json_t *
row_of(const char *name, const struct finding *f)
{
	json_t *row = json_object();

	json_object_set_new(row, "result", json_string(verdicts[f->verdict].word));
	json_object_set_new(row, "check", json_string(name));
	json_object_set_new(row, "finding", json_string(f->finding));
	json_object_set_new(row, "remedy", json_string(f->remedy));
	return row;
}

static int
run_checks(struct doctor *d, unsigned groups)
{
	owned(json) json_t *rows = json_array();
	bool lines = cli_output(d->cli, OUTPUT_TABLE) == OUTPUT_TABLE;
	int code = CLI_OK;

	for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
		struct facts facts = {0};
		struct finding finding = {0};

		if ((checks[i].groups & groups) == 0)
			continue;
		checks[i].probe(d, &facts);
		if (facts.absent)
			continue;
		checks[i].judge(&facts, &finding);
		if (finding.verdict == VERDICT_FAIL)
			code = CLI_FAILED;
		if (lines)
			print_line(checks[i].name, &finding);
		else
			json_array_append_new(rows, row_of(checks[i].name, &finding));
		fflush(stdout);
	}
	if (!lines)
		(void)cli_print(d->cli, rows, rows, "result,check,finding,remedy");
	return code;
}

static const char *
or_default(const char *value, const char *preset)
{
	return value != NULL ? value : preset;
}

int
cmd_doctor(struct cli *c)
{
	struct doctor d = {
		.cli = c,
		.url = or_default(cli_setting(c, "url", "TOLLGATE_URL"), CLI_DEFAULT_URL),
		.token_file = cli_setting(c, "token-file", "TOLLGATE_TOKEN_FILE"),
		.root = or_default(cli_value(c, "root"), "/"),
		.exporter_url = or_default(cli_value(c, "exporter"), "http://127.0.0.1:9401"),
		.spool_dir = or_default(cli_value(c, "spool-dir"), "/var/lib/tollgate/spool"),
		.now_wall_ns = time_wall_ns(),
	};
	struct err err = {0};
	int code;

	buf_init(&d.metrics, CLI_REPLY_MAX);
	code = open_clients(&d, &err) ? run_checks(&d, choose_groups(&d)) : cli_misuse(&err);
	httpc_free(d.open);
	httpc_free(d.with);
	json_decref(d.live);
	json_decref(d.report);
	buf_fini(&d.metrics);
	return code;
}

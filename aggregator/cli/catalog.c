/* aggregator/cli/catalog.c - the command table: every command with its arguments, options and allowed values. */
#include "aggregator/cli/cli.h"
#include "aggregator/core/reports/focus.h"

static const char *const outputs[] = {"table", "json", "csv", "yaml", NULL};
static const char *const no_outputs[] = {NULL};
static const char *const only_json[] = {"json", NULL};
static const char *const only_yaml[] = {"yaml", NULL};
static const char *const table_or_json[] = {"table", "json", NULL};
static const char *const formats[] = {"csv", "focus", "json", "html", NULL};
static const char *const page_formats[] = {"csv", "json", "html", NULL};
static const char *const shells[] = {"bash", "zsh", NULL};
static const char *const months[] = {"current", "previous", NULL};
static const char *const lists[] = {"tenants", "workspaces", "nodes",    "status", "members", "history", "periods",
                                    "leases",  "decisions",  "reclaims", "policy", "sla",     NULL};
static const char *const roles[] = {"admin", "billing",   "tenant-admin", "developer", "viewer",
                                    "node",  "scheduler", "meter",        NULL};
static const char *const states[] = {"active", "expired", "revoked", NULL};
static const char *const join_states[] = {"active", "used", "expired", "revoked", NULL};
static const char *const actions[] = {"ledger.create",
                                      "policy.apply",
                                      "token.create",
                                      "token.revoke",
                                      "join-token.create",
                                      "join-token.revoke",
                                      "node.join",
                                      "policy.reattribute",
                                      "quarantine.release",
                                      "quarantine.discard",
                                      "period.close",
                                      "credit.add",
                                      "credit.approve",
                                      "credit.reverse",
                                      "report.read",
                                      "audit.read",
                                      "exception.request",
                                      "exception.approve",
                                      "exception.refuse",
                                      "exception.revoke",
                                      "exception.end",
                                      "quota.anomaly.begin",
                                      "quota.anomaly.end",
                                      "node.approve",
                                      "gpu.move",
                                      "gpu.change",
                                      NULL};
static const char *const yes_no[] = {"yes", "no", NULL};
static const char *const lease_states[] = {"admitted", "confirmed", "suspect", "ended", NULL};
static const char *const exception_kinds[] = {"limit", "reserved", NULL};
static const char *const exception_states[] = {"requested", "approved", "refused", "revoked", "ended", NULL};
static const char *const classes[] = {"format",   "dictionary", "skewed-clock", "future",    "past",
                                      "covered",  "unknown-id", "weight",       "two-nodes", "retired",
                                      "unproved", "unapproved", "energy",       "model",     NULL};
static const char *const categories[] = {"gpu", "storage", "network", "inference", "support", "energy", "other", NULL};
static const char *const decisions[] = {"open", "released", "discarded", NULL};
static const char *const event_groups[] = {"sku", "end_user", NULL};
static const char *const meters[] = {
	"storage", "egress", "inference-requests", "inference-input-tokens", "inference-output-tokens",
	"support", NULL};
static const char *const group_keys[] = {"cluster",   "tenant",  "workspace", "user", "workload", "label:",
                                         "gpu_model", "profile", "node",      "gpu",  "sharing",  "day",
                                         "hour",      "state",   "method",    NULL};

#define MONTH_OPTIONS                                                           \
	{"this-month", 0, NULL, "the billing month that now lies in", NULL, 0}, \
	{                                                                       \
		"last-month", 0, NULL, "the billing month before it", NULL, 0   \
	}
#define RANGE_OPTIONS                                                                                                    \
	{"since", 0, "AGE", "from this long ago, such as 90m, 24h or 7d (default 24h)", NULL, 0},                        \
		{"from", 0, "TIME", "from this moment (2026-11-01T08:00:00Z) or the beginning of this day (2026-11-01)", \
	         NULL,   0},                                                                                             \
		{"to", 0, "TIME", "until this moment or the beginning of this day (default now)", NULL, 0},              \
		MONTH_OPTIONS
#define TENANT_OPTION                                            \
	{                                                        \
		"tenant", 0, "NAME", "this tenant only", NULL, 0 \
	}

#define GPU_OPTION                                                                            \
	{                                                                                     \
		"gpu", 0, "UUID", "not the batch, but the records of this GPU in it", NULL, 0 \
	}
#define DECISION_OPTIONS                                                                                           \
	{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}, GPU_OPTION,                           \
	{                                                                                                          \
		"through", 0, "SEQ", "also those of the stream that are open up to this number, in order", NULL, 0 \
	}
#define RANGE_DETAILS \
	"Days and months are those of the ledger's billing zone. Ranges are widened to whole billing hours."

/* clang-format off */
const struct cli_command cli_commands[] = {
	{.name = "apply", .words = "", .run = cmd_apply,
	 .summary = "apply a policy file, or show what it would change",
	 .details = "All of the file is applied, or nothing of it. Applying the same file again changes nothing. A tenant's administrator "
	            "applies a file of its own tenant, as get policy shows it.",
	 .options = {{"file", 'f', "FILE", "the policy; - for standard input", NULL, CLI_REQUIRED},
	             {"dry-run", 0, NULL, "show the differences, change nothing", NULL, 0},
	             {"no-wait", 0, NULL, "do not wait until holders are attributed again; the aggregator goes on by itself", NULL, 0}}},
	{.name = "policy suggest", .words = "", .run = cmd_policy_suggest, .outputs = only_yaml,
	 .summary = "a draft of a policy that owns what was seen, to be looked at and applied",
	 .details = "Tenants and workspaces from namespaces, Slurm accounts, users, groups and labels, with the time that is behind each rule. What the policy in "
	            "force says stays.",
	 .options = {{"since", 0, "AGE", "look at this much time (default 30d)", NULL, 0},
	             {"output", 'O', "FILE", "write here instead of standard output", NULL, 0}}},
	{.name = "price preview", .words = "", .run = cmd_price_preview,
	 .summary = "what a month would have cost with other prices; nothing is changed",
	 .details = "The file is a policy, or only its key prices. The whole month is priced with them, and set against what it costs now, tenant by tenant.",
	 .options = {{"file", 'f', "FILE", "the prices; - for standard input", NULL, CLI_REQUIRED},
	             {"month", 0, "YYYY-MM", "this month, or previous (default current, the month that is open)", NULL, 0},
	             TENANT_OPTION}},
	{.name = "report", .words = "YYYY-MM", .word_max = 1, .word_choices = months, .words_open = true, .run = cmd_report,
	 .summary = "the month's chargeback; \"current\" for the month that is open, \"previous\" for the one before",
	 .details = "One line per workspace, SKU, class and price version. Without --out or --format it is CSV. FOCUS has a row for each day of a "
	            "line; HTML is a page to print for each tenant. Into a folder, each document is written with a manifest beside it: rows, sums per "
	            "currency and SHA-256; with FOCUS comes the file of billing periods, with version 1.4 also that of the invoices' lines.",
	 .options = {{"format", 0, "csv|focus|json|html", "what document; csv and json are the same as --out", formats, 0},
	             MONTH_OPTIONS, TENANT_OPTION,
	             {"focus-version", 0, FOCUS_VERSIONS, "version of --format focus (default 1.2)", focus_versions, 0},
	             {"excel", 0, NULL, "CSV for spreadsheets that write 1,5: semicolons, a decimal comma, a byte order mark", NULL, 0},
	             {"recompute", 0, NULL, "prove a closed month: compute it again from what was kept, and compare every byte", NULL, 0},
	             {"detail", 0, "LINE_ID", "the workloads that add up to this line, by day and device", NULL, 0},
	             {"output", 'O', "FILE", "write to this file, or into this folder", NULL, 0}}},
	{.name = "close", .words = "YYYY-MM", .word_min = 1, .word_max = 1, .words_open = true, .run = cmd_close,
	 .summary = "close a month, for good: what was billed stays, and what comes later is a correction in the next open month",
	 .details = "Months are closed in order. What stands against it needs a reason, which is kept; that the month is not over, an earlier one that is open and an error of conservation "
	            "cannot be overruled. The aggregator proves the month from its batches first, and refuses to close it when something differs; the command follows it to its end. Ctrl-C "
	            "leaves it running. With --check the exit code is 1 when something stands against it.",
	 .options = {{"check", 0, NULL, "list what stands against closing, change nothing", NULL, 0},
	             {"reason", 0, "TEXT", "close it although something stands against it, for this reason", NULL, 0},
	             {"unknown-max", 0, "N", "at most this share of unknown time, in millionths: less than the aggregator was told", NULL, 0},
	             {"unattributed-max", 0, "N", "at most this share of time that is nobody's, in millionths: less than the aggregator was told", NULL, 0},
	             {"status", 0, NULL, "how far a close has come, or what it was refused for", NULL, 0},
	             {"cancel", 0, NULL, "cancel a close that runs", NULL, 0},
	             {"yes", 0, NULL, "do not ask", NULL, 0}}},
	{.name = "usage", .words = "", .run = cmd_usage,
	 .summary = "GPU-hours by group, and what they cost",
	 .details = RANGE_DETAILS,
	 .options = {RANGE_OPTIONS,
	             {"by", 0, "KEYS", "what makes a group (default tenant,workspace); label:KEY is a label of pods", group_keys, CLI_LIST},
	             TENANT_OPTION,
	             {"workspace", 0, "NAME", "workspaces of this name only", NULL, 0},
	             {"cluster", 0, "NAME", "this cluster only", NULL, 0},
	             {"user", 0, "NAME", "this user only", NULL, 0},
	             {"gpu-model", 0, "MODEL", "this model only, such as H100-80GB", NULL, 0},
	             {"node", 0, "NAME", "this node only", NULL, 0},
	             {"exact", 0, NULL, "whole unit-nanoseconds instead of rounded hours: they add up to the last one", NULL, 0},
	             {"cost", 0, NULL, "what each group costs, reservations included, and what no workload caused; whole days", NULL, 0}}},
	{.name = "top", .words = "", .run = cmd_top,
	 .summary = "live table of this month's usage and cost by workspace",
	 .options = {{"interval", 0, "AGE", "time between two tables (default 5s)", NULL, 0},
	             {"count", 0, "N", "stop after N tables (default: never)", NULL, 0}}},
	{.name = "conservation", .words = "", .run = cmd_conservation,
	 .summary = "per GPU: the states of its time against the time in service",
	 .details = "The difference is 0 for every GPU, or the ledger has an error. " RANGE_DETAILS,
	 .options = {RANGE_OPTIONS}},
	{.name = "verify", .words = "", .run = cmd_verify,
	 .summary = "compute the ledger again from the batches it keeps, and list every difference",
	 .details = "Bytes against their SHA-256, numbers, dictionaries, records, the sums of every hour, whose they are, and conservation; one "
	            "node after the other; then days and what they are charged as, by a second computation of the rules; closed months with their records, documents and lines; rows that "
	            "cannot be computed again, by the journal that was written with them; then the chains of the audit log from "
	            "their beginning, the log of quota decisions, replayed, and the seals over them. It says what it covered and what it could not. The exit code "
	            "is 1 when something differs, and 4 when nothing does but a part of the range, or all of it, could not be proved. " RANGE_DETAILS,
	 .options = {RANGE_OPTIONS,
	             {"month", 0, "YYYY-MM", "this billing month", NULL, 0},
	             {"all", 0, NULL, "everything that the ledger has", NULL, 0},
	             {"node", 0, "NAME", "this node only, and no audit log", NULL, 0},
	             {"seal", 0, "SEQ:HASH", "a seal of the audit log as it was written down: the aggregator logs each", NULL, 0}}},
	{.name = "journal accept", .words = "ENTRY", .word_min = 1, .word_max = 1, .run = cmd_journal_accept,
	 .summary = "answer for a change of rows that has no entry of the audit log",
	 .details = "verify names such a change as row-unaudited, with the number of its entry in the journal, and a month cannot be closed while there is one. The "
	            "acceptance is an entry of the audit log itself. A row that was changed behind the journal (row-changed) is to be put back instead.",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}}},
	{.name = "get", .words = "tenants|workspaces|nodes|status|members|history|periods|leases|decisions|reclaims|policy|sla", .word_min = 1, .word_max = 1,
	 .word_choices = lists, .run = cmd_get,
	 .summary = "what the ledger knows",
	 .details = "Amounts are those of this hour, as the policy writes them; history has all of them, with owners and states of "
	            "nodes, and from when to when each held.",
	 .options = {TENANT_OPTION}},
	{.name = "node approve", .words = "NAME", .word_min = 1, .word_max = 1, .run = cmd_node_approve,
	 .summary = "let a node count that no policy declares: what it sends, and what it sent while it was held",
	 .details = "What it sent before the oldest open month began stays in quarantine. tollgate get nodes shows which nodes are held.",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}}},
	{.name = "quarantine list", .words = "", .run = cmd_quarantine_list,
	 .summary = "batches whose content was refused, and GPUs whose records in a batch were set aside, newest first; what was decided",
	 .options = {{"node", 0, "NAME", "this node only", NULL, 0},
	             {"stream", 0, "STREAM", "this stream only", NULL, 0},
	             {"class", 0, "CLASS", "those that this rule refused", classes, 0},
	             {"decision", 0, "DECISION", "only those that are so; open: nobody has decided", decisions, 0},
	             {"limit", 0, "N", "at most this many (default 50; 0 for all)", NULL, 0},
	             {"before", 0, "ID", "only those older than this one", NULL, 0}}},
	{.name = "quarantine show", .words = "STREAM SEQ", .word_min = 2, .word_max = 2, .run = cmd_quarantine_show,
	 .summary = "one of them, and what is in it",
	 .options = {GPU_OPTION}},
	{.name = "quarantine release", .words = "STREAM SEQ", .word_min = 2, .word_max = 2, .run = cmd_quarantine_release,
	 .summary = "take a batch into the ledger after all",
	 .details = "It is judged again: a wrong clock and an old age are overruled, what can never be true stays refused. Its hours are "
	            "computed again. A second time changes nothing.",
	 .options = {DECISION_OPTIONS}},
	{.name = "quarantine discard", .words = "STREAM SEQ", .word_min = 2, .word_max = 2, .run = cmd_quarantine_discard,
	 .summary = "leave a batch out: its time stays unknown on the books",
	 .options = {DECISION_OPTIONS}},
	{.name = "events send", .words = "FILE", .word_min = 1, .word_max = 1, .run = cmd_events_send,
	 .summary = "send CloudEvents of other meters: a JSON object or a list of them; - for standard input",
	 .details = "An event that the ledger has already counts once, so a file may be sent again. Those that are refused are listed, the "
	            "others are kept; the exit code is 1 when there are some."},
	{.name = "events summary", .words = "YYYY-MM", .word_max = 1, .run = cmd_events_summary,
	 .summary = "what the events of a month add up to (default: the month that is open)",
	 .options = {{"meter", 0, "METER", "this meter only", meters, 0}, TENANT_OPTION,
	             {"by", 0, "WHAT", "end_user: inference alone, each end user for itself", event_groups, 0}}},
	{.name = "budget status", .words = "YYYY-MM", .word_max = 1, .run = cmd_budget_status,
	 .summary = "budgets of a month: what was spent, and what it will come to (default: the month that is open)",
	 .details = "The forecast is the mean of the last 7 full days for the time that is left, or pro rata of the time elapsed while there "
	            "are fewer, since the ledger's first hour where that is in the month; one-off charges and credits count once.",
	 .options = {TENANT_OPTION}},
	{.name = "reconcile", .words = "", .run = cmd_reconcile,
	 .summary = "a month's capacity at list price against what was billed of it, and what the platform costs",
	 .details = "Capacity x list price = billed + credits + what nobody pays (idle, stranded, down, unknown) + what other prices take "
	            "away, per cluster and GPU model and in total, to the cent. The HTML is a page to print.",
	 .options = {{"month", 0, "YYYY-MM", "the month (default: the one that is open)", NULL, 0},
	             {"format", 0, "FORMAT", "every term, as a document (default: a table of the sums)", page_formats, 0},
	             {"output", 0, "FILE", "write it to this file", NULL, 0}}},
	{.name = "refunds", .words = "", .run = cmd_refunds,
	 .summary = "hours of jobs that ended by a failed GPU or node, and what was charged for them",
	 .details = "A job is listed with every device that it lost: its GPU was down from then on (gpu-down, with the XID where the node told "
	            "one), it had a critical error that is not the program's own (xid), or the whole node fell silent and came back, if at all, "
	            "with another boot (node-silent). Nothing is refunded by itself: credit add --refund ID enters a credit for a row, and the row "
	            "then names it.",
	 .options = {{"month", 0, "YYYY-MM", "the month (default: the one that is open)", NULL, 0}, TENANT_OPTION}},
	{.name = "credit add", .words = "", .run = cmd_credit_add,
	 .summary = "enter a one-off charge, or a credit when the amount is negative",
	 .details = "It is a line of the month's report. What an administrator enters counts at once; what billing enters counts when "
	            "somebody else approves it. Rows are never changed, and none enters a closed month.",
	 .options = {{"tenant", 0, "NAME", "who is charged", NULL, CLI_REQUIRED},
	             {"workspace", 0, "NAME", "one of its workspaces (default: the tenant as a whole)", NULL, 0},
	             {"period", 0, "YYYY-MM", "the month (default: the one that is open)", NULL, 0},
	             {"amount", 0, "DECIMAL", "such as 25.50, or -100.00 for a credit", NULL, CLI_REQUIRED},
	             {"currency", 0, "CODE", "such as EUR", NULL, CLI_REQUIRED},
	             {"category", 0, "CATEGORY", "under which it is summed up (default other)", categories, 0},
	             {"reason", 0, "TEXT", "why, for the invoice and the audit log", NULL, CLI_REQUIRED},
	             {"refund", 0, "ID", "the row of tollgate refunds that it is a credit for", NULL, 0}}},
	{.name = "credit list", .words = "", .run = cmd_credit_list,
	 .summary = "one-off charges and credits, newest first",
	 .options = {TENANT_OPTION,
	             {"period", 0, "YYYY-MM", "this month only", NULL, 0},
	             {"limit", 0, "N", "at most this many (default 50; 0 for all)", NULL, 0},
	             {"before", 0, "ID", "only those older than this one", NULL, 0}}},
	{.name = "credit approve", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_credit_approve,
	 .summary = "agree to a one-off charge or credit that somebody else entered",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}}},
	{.name = "credit reverse", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_credit_reverse,
	 .summary = "take a one-off charge or credit back, by a new row of the opposite amount",
	 .options = {{"reason", 0, "TEXT", "why, for the invoice and the audit log", NULL, CLI_REQUIRED},
	             {"period", 0, "YYYY-MM", "the month that it goes into (default: that of the row)", NULL, 0}}},
	{.name = "quota status", .words = "", .run = cmd_quota_status,
	 .summary = "who may have how many GPUs, and who has them: a bar for each workspace and model",
	 .details = "Of each workspace in its own pool and the shared one: in use, the limit, what is reserved, borrowed, lent to others and waited for; then what the "
	            "pools have. With enforce: off, WOULD DENY counts what the rules would not have admitted. JSON and CSV have units, 5040 to a GPU.",
	 .options = {TENANT_OPTION,
	             {"workspace", 0, "NAME", "this workspace only", NULL, 0}}},
	{.name = "quota watch", .words = "", .run = cmd_quota_watch,
	 .summary = "the same, again and again",
	 .options = {TENANT_OPTION,
	             {"workspace", 0, "NAME", "this workspace only", NULL, 0},
	             {"interval", 0, "AGE", "time between two tables (default 2s)", NULL, 0},
	             {"count", 0, "N", "stop after N tables (default: never)", NULL, 0}}},
	{.name = "quota decide", .words = "[TENANT/WORKSPACE]", .word_max = 1, .run = cmd_quota_decide,
	 .summary = "ask for GPUs as a scheduler does, or only what the answer would be",
	 .details = "Shows the decision with every check and its numbers. What is admitted is a lease, which ends unless it is confirmed. The exit code is 1 for a reject. "
	            "The same id asks once: again shows the same decision. Without a workspace the workload says whose it is, by the attribution rules of the policy: "
	            "--namespace and --labels of a pod, or --slurm-account, --user and --group of a Slurm job.",
	 .options = {{"gpus", 0, "N", "so many whole GPUs", NULL, 0},
	             {"profile", 0, "PROFILE", "instances of this MIG profile, such as 1g.10gb", NULL, 0},
	             {"count", 0, "N", "how many of them", NULL, 0},
	             {"replicas", 0, "N", "so many replicas of shared GPUs", NULL, 0},
	             {"of", 0, "M", "with --replicas: of GPUs that are shared by so many replicas", NULL, 0},
	             {"gpu-model", 0, "MODEL", "of this model: H100-80GB, or H100 for the only one of its family", NULL, 0},
	             {"per-node", 0, "N", "each node must give this many together", NULL, 0},
	             {"priority-class", 0, "NAME", "the priority class", NULL, 0},
	             {"priority", 0, "N", "the priority itself (scheduler and admin)", NULL, 0},
	             {"preemptible", 0, "yes|no", "whether it may be asked to give way", yes_no, 0},
	             {"duration", 0, "AGE", "how long it will run, for budgets", NULL, 0},
	             {"expires", 0, "TIME", "until when it may wait", NULL, 0},
	             {"cluster", 0, "NAME", "in this cluster", NULL, 0},
	             {"namespace", 0, "NAME", "the pod's namespace, instead of a workspace", NULL, 0},
	             {"labels", 0, "KEY=VALUE,...", "the pod's labels, likewise", NULL, 0},
	             {"slurm-account", 0, "NAME", "the Slurm job's account, likewise", NULL, 0},
	             {"user", 0, "NAME", "the Slurm job's user, likewise", NULL, 0},
	             {"group", 0, "NAME", "the group of that user, likewise", NULL, 0},
	             {"id", 0, "ID", "the request's id (default: a new one)", NULL, 0},
	             {"wait", 0, "AGE", "wait so long for it to be admitted, at most 5m", NULL, 0},
	             {"dry-run", 0, NULL, "what the answer would be; nothing is asked for", NULL, 0}}},
	{.name = "quota explain", .words = "[TENANT/]ID", .word_min = 1, .word_max = 1, .run = cmd_quota_explain,
	 .summary = "why a request was answered as it was: every check, who gives way, what would admit it",
	 .options = {{"wait", 0, "AGE", "wait so long for a request that waits to change, at most 5m", NULL, 0}}},
	{.name = "quota record", .words = "", .run = cmd_quota_record, .outputs = only_json,
	 .summary = "the log of decisions as a file that quota simulate replays",
	 .options = {{"from", 0, "SEQ", "from this event on (default: the last state that was kept)", NULL, 0},
	             {"to", 0, "SEQ", "up to this event (default: the last)", NULL, 0}}},
	{.name = "quota simulate", .words = "FILE", .word_min = 1, .word_max = 1, .run = cmd_quota_simulate, .outputs = table_or_json,
	 .summary = "what the quota engine would decide, on a state from a file; - for standard input",
	 .details = "Offline: it asks no aggregator and changes nothing. The file is YAML or JSON: version: 1, nodes, tenants with their "
	            "workspaces, leases (oldest first), requests (one batch) and, over time, events. It prints a JSON object per request in the "
	            "order decided: id, decision (admit, borrow, reclaim, queue, reject), borrowed_gpus, victims, and checks with rule, ok, need "
	            "and have; null is no limit. With events, and for work that ends by itself (runs), also one for each thing that happens "
	            "later, with its time. A warning on standard error says when reservations exceed capacity. The same file gives the same "
	            "bytes. A file made by quota record is replayed: what comes of each event is held against the outcome that was recorded, "
	            "and the first differences are on standard error, with exit code 1. All keys: aggregator/core/simulate/README.md, \"The "
	            "scenario file\", and aggregator/core/quota/README.md, \"The quota book\".",
	 .options = {{"explain", 0, NULL, "for people: all checks in a table, the queue, the victims with reasons, what would admit it", NULL, 0}}},
	{.name = "lease list", .words = "", .run = cmd_lease_list,
	 .summary = "leases that have not ended, newest first",
	 .options = {TENANT_OPTION,
	             {"workspace", 0, "TENANT/WORKSPACE", "this workspace only", NULL, 0},
	             {"status", 0, "STATUS", "only those that are so; ended shows those that are over", lease_states, 0},
	             {"limit", 0, "N", "at most this many (default 50; 0 for all)", NULL, 0},
	             {"before", 0, "ID", "only those older than this one", NULL, 0}}},
	{.name = "lease confirm", .words = "[TENANT/]ID", .word_min = 1, .word_max = 1, .run = cmd_lease_confirm,
	 .summary = "the work of a lease runs, where it was planned"},
	{.name = "lease heartbeat", .words = "[TENANT/]ID", .word_min = 1, .word_max = 1, .run = cmd_lease_heartbeat,
	 .summary = "the work of a lease still runs"},
	{.name = "lease release", .words = "[TENANT/]ID", .word_min = 1, .word_max = 1, .run = cmd_lease_release,
	 .summary = "the work of a lease has ended",
	 .details = "Its GPUs are free when telemetry sees them empty.",
	 .options = {{"lost", 0, NULL, "it ended on a dead node: the lease ends at once, its GPUs are fenced until the node speaks", NULL, 0}}},
	{.name = "lease cancel", .words = "[TENANT/]ID", .word_min = 1, .word_max = 1, .run = cmd_lease_cancel,
	 .summary = "a request that waits for a lease is no longer wanted"},
	{.name = "lease renew", .words = "[TENANT/]ID", .word_min = 1, .word_max = 1, .run = cmd_lease_renew,
	 .summary = "the work of an unconfirmed lease has not started yet: it may be confirmed for the whole time again",
	 .details = "For schedulers and administrators."},
	{.name = "exception request", .words = "TENANT/WORKSPACE", .word_min = 1, .word_max = 1, .run = cmd_exception_request,
	 .summary = "ask for extra GPUs beyond a workspace's limit, or for an extra reservation, until a time",
	 .details = "It needs a reason and an end, and ends by itself. An extra limit within the tenant's rule (auto_approve in the policy) is agreed to at "
	            "once; else a tenant's administrator agrees to a limit within the tenant's maximum, and an administrator to anything. A tenant's token may "
	            "leave the tenant's name out.",
	 .options = {{"gpus", 0, "N", "how many: 2, 3/7 or 2x1g.10gb", NULL, CLI_REQUIRED},
	             {"gpu-model", 0, "MODEL", "of this model: H100-80GB, or H100 for the only one of its family", NULL, CLI_REQUIRED},
	             {"until", 0, "TIME", "its end: this long from its beginning (8h) or a moment", NULL, CLI_REQUIRED},
	             {"reason", 0, "TEXT", "why, for who decides and for the audit log", NULL, CLI_REQUIRED},
	             {"kind", 0, "limit|reserved", "what is raised (default limit)", exception_kinds, 0},
	             {"from", 0, "TIME", "its beginning: this long from now or a moment (default: now)", NULL, 0},
	             {"shared", 0, NULL, "among the shared nodes (default: the tenant's own where they have the model)", NULL, 0},
	             {"cluster", 0, "NAME", "in this cluster (default: the workspace's)", NULL, 0}}},
	{.name = "exception list", .words = "", .run = cmd_exception_list,
	 .summary = "exceptions and how they stand, newest first",
	 .options = {TENANT_OPTION,
	             {"workspace", 0, "NAME", "workspaces of this name only", NULL, 0},
	             {"status", 0, "STATUS", "only those that are so", exception_states, 0},
	             {"limit", 0, "N", "at most this many (default 50; 0 for all)", NULL, 0},
	             {"before", 0, "ID", "only those older than this one", NULL, 0}}},
	{.name = "exception approve", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_exception_approve,
	 .summary = "agree to an exception",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}}},
	{.name = "exception refuse", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_exception_refuse,
	 .summary = "do not agree to an exception",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}}},
	{.name = "exception revoke", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_exception_revoke,
	 .summary = "end an exception before its time, or take a request back",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED}}},
	{.name = "token create", .words = "", .run = cmd_token_create,
	 .summary = "make a bearer token; it is shown once",
	 .options = {{"role", 0, "ROLE", "what the token may do", roles, CLI_REQUIRED},
	             {"tenant", 0, "NAME", "the tenant of a tenant's role", NULL, 0},
	             {"node", 0, "NAME", "the node that a node token speaks for", NULL, 0},
	             {"sources", 0, "SOURCE,...", "whose events a meter's token sends", NULL, 0},
	             {"expires", 0, "TIME", "its end: this long from now (30d) or a moment (default: never; made by a "
	              "tenant-admin 90d)", NULL, 0},
	             {"description", 0, "TEXT", "what it is for, for token list", NULL, 0}}},
	{.name = "token list", .words = "", .run = cmd_token_list,
	 .summary = "tokens, whose they are and when they were last used; never the tokens themselves",
	 .options = {TENANT_OPTION,
	             {"role", 0, "ROLE", "this role only", roles, 0},
	             {"node", 0, "NAME", "this node only", NULL, 0},
	             {"status", 0, "STATUS", "only those that are so", states, 0}}},
	{.name = "token revoke", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_token_revoke,
	 .summary = "end a token at once; its id is in token list"},
	{.name = "token whoami", .words = "", .run = cmd_token_whoami,
	 .summary = "the token that this command shows: its role, tenant, node and expiry"},
	{.name = "node join-token", .words = "", .run = cmd_node_join_token,
	 .summary = "make a one-time token with which a node gets its own",
	 .options = {{"node", 0, "NAME", "only the node of this name may use it (default: any that has no token)", NULL, 0},
	             {"expires", 0, "TIME", "it must be used within this time, or until this moment (default 1h)", NULL, 0},
	             {"description", 0, "TEXT", "what it is for", NULL, 0}}},
	{.name = "node join-tokens", .words = "", .run = cmd_node_join_tokens,
	 .summary = "join tokens and what became of them; never the tokens themselves",
	 .options = {{"status", 0, "STATUS", "only those that are so", join_states, 0}}},
	{.name = "node revoke-join-token", .words = "ID", .word_min = 1, .word_max = 1, .run = cmd_node_revoke_join_token,
	 .summary = "end a join token that no node has used; its id is in node join-tokens"},
	{.name = "gpu move", .words = "UUID NODE", .word_min = 2, .word_max = 2, .run = cmd_gpu_move,
	 .summary = "say which node a GPU is in from now on; its records from any other node are set aside",
	 .details = "A GPU belongs to the node that has it in service, until that node reports without it, the policy lists it elsewhere or retires it, "
	            "or this command. Its service ends at the time given, but not before its last record.",
	 .options = {{"reason", 0, "TEXT", "why, for the audit log", NULL, CLI_REQUIRED},
	             {"at", 0, "TIME", "when it left, such as 2026-11-01T08:00:00Z (default now)", NULL, 0}}},
	{.name = "audit", .words = "", .run = cmd_audit,
	 .summary = "who changed what, when and why, and who read reports and this log; newest first",
	 .details = "The table shows the parts that changed, cut to one line; JSON and CSV have all. Entries are in chains of hashes, which verify "
	            "checks. Reads are entered once a minute, those of one kind together.",
	 .options = {TENANT_OPTION,
	             {"actor", 0, "NAME", "what this one did", NULL, 0},
	             {"action", 0, "ACTION", "what was done", actions, 0},
	             {"subject", 0, "TEXT", "what it was done to", NULL, 0},
	             {"since", 0, "AGE", "not longer ago than this, such as 90m, 24h or 7d", NULL, 0},
	             {"from", 0, "TIME", "from this moment on (2026-11-01T08:00:00Z)", NULL, 0},
	             {"to", 0, "TIME", "before this moment", NULL, 0},
	             {"limit", 0, "N", "at most this many entries (default 50; 0 for all)", NULL, 0},
	             {"before", 0, "ID", "only entries older than this one", NULL, 0}}},
	{.name = "doctor", .words = "", .run = cmd_doctor,
	 .summary = "look for what is missing or wrong, and say what helps",
	 .details = "One line per finding: ok, warn or fail, the thing, what was found, and the remedy. The exit code is 1 when "
	            "something fails. Without --server and --node it looks at the aggregator when one is named or answers, and at "
	            "this machine when it is a GPU node.",
	 .options = {{"server", 0, NULL, "look at the aggregator, the token and the ledger", NULL, 0},
	             {"node", 0, NULL, "look at this machine as a GPU node", NULL, 0},
	             {"exporter", 0, "URL", "the exporter of this node (default http://127.0.0.1:9401)", NULL, 0},
	             {"spool-dir", 0, "DIR", "its spool (default /var/lib/tollgate/spool)", NULL, 0},
	             {"root", 0, "DIR", "where the host's files are, for a container that sees them (default /)", NULL, 0}}},
	{.name = "completion", .words = "bash|zsh", .word_min = 1, .word_max = 1, .word_choices = shells, .run = cmd_completion, .outputs = no_outputs,
	 .summary = "print the completion of tollgate for a shell",
	 .details = "In bash: . <(tollgate completion bash). In zsh: tollgate completion zsh >DIR/_tollgate, with DIR in fpath."},
};
const size_t cli_command_count = ARRAY_LEN(cli_commands);

const struct cli_option cli_common[] = {
	{"url", 0, "URL", "the aggregator (default $TOLLGATE_URL, else " CLI_DEFAULT_URL ")", NULL, 0},
	{"token-file", 0, "FILE", "file with the bearer token (default $TOLLGATE_TOKEN_FILE)", NULL, 0},
	{"ca-file", 0, "FILE", "certificates to trust (default $TOLLGATE_CA_FILE, else the system's)", NULL, 0},
	{"client-cert", 0, "FILE", "certificate to show to an aggregator that asks for one (default $TOLLGATE_CLIENT_CERT)", NULL, 0},
	{"client-key", 0, "FILE", "its key (default $TOLLGATE_CLIENT_KEY)", NULL, 0},
	{"out", 'o', "table|json|csv|yaml", "for people, for scripts, for spreadsheets, for people and scripts (default table)", outputs, 0},
	[CLI_COMMON_HELP] = {"help", 'h', NULL, "print what the command takes", NULL, 0},
};
const size_t cli_common_count = ARRAY_LEN(cli_common);

const struct cli_note cli_exits[] = {
	{"0", "done"},
	{"1", "refused or failed; doctor: something fails; verify: something differs; reconcile: the month does not add up"},
	{"2", "wrong use: an unknown command, option or value"},
	{"3", "the aggregator cannot be reached"},
	{"4", "verify: nothing is known to differ, but not all that was asked for could be proved, or it could not be asked for"},
};
const size_t cli_exit_count = ARRAY_LEN(cli_exits);

const struct cli_note cli_variables[] = {
	{"TOLLGATE_URL", "the aggregator, where --url is not given"},
	{"TOLLGATE_TOKEN_FILE", "file with the bearer token, where --token-file is not given"},
	{"TOLLGATE_CA_FILE", "certificates to trust, where --ca-file is not given"},
	{"TOLLGATE_CLIENT_CERT", "certificate to show, where --client-cert is not given"},
	{"TOLLGATE_CLIENT_KEY", "its key, where --client-key is not given"},
	{"NO_COLOR", "set to anything: no colours"},
};
const size_t cli_variable_count = ARRAY_LEN(cli_variables);
/* clang-format on */

/* aggregator/cli/cli.h - the `tollgate` command: one table of commands (catalog.c) drives parsing, help, the man page and
 * completion. */
#ifndef TOLLGATE_CLI_H
#define TOLLGATE_CLI_H

#include "common/http/httpc.h"
#include "common/conf/json.h"
#include "common/base/time.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_UNREACHABLE = 3, CLI_INCOMPLETE = 4 };

#define CLI_OPTION_MAX 24
#define CLI_WORD_MAX 8
#define CLI_REPLY_MAX (1u << 30)
#define CLI_PATH_BYTES (64u << 10)
#define CLI_TEXT_BYTES (1u << 20)

enum {
	CLI_LIST = 1, /* a comma-separated list of the choices */
	CLI_REQUIRED = 2
};

struct cli_option {
	const char *name;  /* "dry-run" */
	char letter;       /* 'f', or 0 */
	const char *value; /* name of its argument, "FILE"; NULL: takes none */
	const char *help;
	const char *const *choices; /* allowed values, NULL-ended; NULL: any value */
	unsigned flags;
};

struct cli;
struct cli_command {
	const char *name;  /* "apply", "token create" */
	const char *words; /* arguments: "YYYY-MM"; "" for none */
	int word_min, word_max;
	const char *const *word_choices; /* allowed arguments, NULL-ended; NULL: any */
	bool words_open;                 /* other arguments than the choices are allowed too */
	const char *summary;
	const char *details;                       /* a paragraph for help and the man page; NULL: none */
	struct cli_option options[CLI_OPTION_MAX]; /* ended by a NULL name */
	const char *const *outputs;                /* supported values of --out, NULL-ended; NULL: all */
	int (*run)(struct cli *c);
};

/* A line of a list in help and the man page: an exit code, a variable of the environment. */
struct cli_note {
	const char *name, *text;
};

extern const struct cli_command cli_commands[];
extern const size_t cli_command_count;
extern const struct cli_option cli_common[]; /* options of every command, allowed before and after its name */
enum { CLI_COMMON_HELP = 6 };                /* --help in cli_common */
extern const size_t cli_common_count;
extern const struct cli_note cli_exits[], cli_variables[];
extern const size_t cli_exit_count, cli_variable_count;

struct cli {
	const struct cli_command *command;  /* NULL: the user asked for help on all commands or a group */
	const char *group;                  /* the group the user asked for help on; NULL: none */
	const char *values[CLI_OPTION_MAX]; /* of the command's options; "" for one that takes no value */
	const char *common[CLI_OPTION_MAX]; /* of the options every command has */
	const char *words[CLI_WORD_MAX];
	int word_count;
	struct httpc *client;   /* made at the first call */
	int64_t server_wall_ns; /* the aggregator's clock at the last reply; -1: not known */
};

/* Fills command, values and words from the command line; a usage error is ERR_INVALID. */
MUST_CHECK bool cli_parse(struct cli *c, int argc, char *const *argv, struct err *err);
/* The value of an option of this command, or one that every command has; NULL when not given. */
const char *cli_value(const struct cli *c, const char *name);
/* The same, else the value of the environment variable, else NULL. An empty value counts as not given. */
const char *cli_setting(const struct cli *c, const char *name, const char *variable);
/* TLS settings of the client: trusted CAs and our own certificate. */
void cli_tls(const struct cli *c, struct httpc_options *o);

/* ---- help, manual page and completion, from the command table ---- */
void cli_help(struct buf *out);
void cli_command_help(const struct cli_command *cmd, struct buf *out);
/* Help for the commands that begin with this word. */
void cli_group_help(const char *group, struct buf *out);
void cli_man(struct buf *out);
void cli_completion_bash(struct buf *out);
void cli_completion_zsh(struct buf *out);

/* ---- talking to the aggregator ---- */
#define CLI_DEFAULT_URL "http://127.0.0.1:9402"
/* One request; a status of 400 or above is an error with the problem's text. */
MUST_CHECK bool cli_call(struct cli *c, const char *method, const char *path, const char *content_type,
                         const void *body, size_t n, struct buf *ret_body, struct err *err);
/* GET of a document of any size, piece by piece. manifest: receives the document's manifest, if the aggregator sends one; NULL: not wanted. */
MUST_CHECK bool cli_get_pieces(struct cli *c, const char *path, bool (*sink)(void *arg, const void *data, size_t n),
                               void *arg, struct buf *manifest, struct err *err);
MUST_CHECK bool cli_get_json(struct cli *c, const char *path, json_t **ret, struct err *err);
/* A file's text, or standard input's for "-", up to the ceiling of out. */
MUST_CHECK bool cli_read_document(const char *file, struct buf *out, struct err *err);
/* Adds a text as one segment of a path, escaped. */
void cli_path(struct buf *path, const char *text);
/* Adds ?name=value or &name=value, escaped; nothing for a value that is NULL or empty. */
void cli_query(struct buf *path, const char *name, const char *value);
/* The same, but adds an empty value too. */
void cli_query_set(struct buf *path, const char *name, const char *value);

/* One page of a list that is newest first, added to `rows`; *before is where the next one begins, 0 when there is none. */
MUST_CHECK bool cli_get_page(struct cli *c, const char *base, const char *member, int64_t limit, int64_t *before,
                             json_t *rows, struct err *err);
/* Adds pages of a path, which may have filters, to `rows` until there are --limit rows (default: preset; 0: all). Returns the exit code. */
int cli_get_pages(struct cli *c, const char *base, const char *member, int64_t preset, json_t *rows);
/* Prints the same rows, with the named options as filters. Returns the exit code. */
int cli_print_pages(struct cli *c, const char *path, const char *member, const char *columns,
                    const char *const *filters, size_t n, int64_t preset);

/* Prints the error and returns the exit code: 3 if the aggregator is unreachable, else 1. */
int cli_fail(const struct err *err);
/* Prints a usage error and returns exit code 2. */
int cli_misuse(const struct err *err);

/* ---- progress: a line on a terminal, from the second second on ---- */
struct progress {
	bool wanted; /* standard error is a terminal that can redraw a line */
	bool shown;
	int64_t begun_ns, drawn_ns; /* boot clock */
};
void progress_begin(struct progress *p, int64_t boot_ns);
void progress_tell(void *progress, int64_t sent_bytes, int64_t received_bytes, int64_t total_bytes);
void progress_end(struct progress *p);
/* The line at one moment, without control characters; for progress_tell and its test. */
void progress_line(int64_t elapsed_ns, int64_t received_bytes, int64_t total_bytes, struct buf *out);

/* ---- ranges of time (range.c) ---- */
struct range_options {
	const char *since, *from, *to; /* as written; NULL: not given */
	bool this_month, last_month;
	const char *preset; /* --since when nothing is given */
};
struct range {
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE]; /* for the query; "": the aggregator's default */
};
/* Wrong or contradicting options are ERR_INVALID. */
MUST_CHECK bool range_check(const struct range_options *o, struct err *err);
/* periods: the reply of GET /v1/periods, needed for months only. */
MUST_CHECK bool range_resolve(const struct range_options *o, int64_t now_ns, const json_t *periods, struct range *ret,
                              struct err *err);
/* The billing month that now lies in, or the one before it. */
MUST_CHECK bool range_month(const json_t *periods, int64_t now_ns, bool previous, const json_t **ret, struct err *err);

/* Whether the text has the form of a month: 2026-10. */
MUST_CHECK bool cli_month(const char *text, struct err *err);
/* Adds from=... and to=... to the path, for --since, --from, --to and the options of months. Returns the exit code. */
int cli_add_range(struct cli *c, struct buf *path);

/* ---- output ---- */
enum cli_output { OUTPUT_TABLE, OUTPUT_JSON, OUTPUT_CSV, OUTPUT_YAML };
enum cli_output cli_output(const struct cli *c, enum cli_output preset);
/* Whether the comma-separated list contains the word. */
bool cli_in_list(const char *list, const char *word);
/* Prints an array of flat objects as a table, with a column for each key that any of them has and numbers aligned right. */
void cli_print_table(const json_t *rows);
/* The same, and always with these columns (comma-separated), even if no row has a value in them. */
void cli_print_table_with(const json_t *rows, const char *always);
/* Wraps a paragraph to the width of the terminal, or to 80 characters where there is none. */
void cli_print_paragraph(const char *text);
/* columns: comma-separated, the header when there are no rows. */
void cli_print_csv(const json_t *rows, const char *columns);
/* The rows as table or CSV, or the whole reply as JSON or YAML. */
int cli_print(const struct cli *c, const json_t *rows, const json_t *whole, const char *columns);
/* One object as a table or CSV of one row, or as JSON or YAML. */
int cli_print_one(const struct cli *c, json_t *object);
MUST_CHECK bool cli_post_json(struct cli *c, const char *path, const json_t *request, json_t **ret, struct err *err);
/* The same, and prints the one row of the reply. Returns the exit code. */
int cli_post(struct cli *c, const char *path, const json_t *request);
/* Whether output is coloured: on a terminal, unless NO_COLOR is set. */
bool cli_colours(void);

int cmd_apply(struct cli *c);
/* Waits until all holders are attributed again after a change of rules, and shows the progress. */
int cli_await_policy(struct cli *c);
int cmd_policy_suggest(struct cli *c);
int cmd_price_preview(struct cli *c);
int cmd_report(struct cli *c);
int cmd_usage(struct cli *c);
int cmd_top(struct cli *c);
int cmd_get(struct cli *c);
int cmd_conservation(struct cli *c);
int cmd_verify(struct cli *c);
int cmd_events_send(struct cli *c);
int cmd_events_summary(struct cli *c);
int cmd_quota_simulate(struct cli *c);
int cmd_quota_status(struct cli *c);
int cmd_quota_watch(struct cli *c);
int cmd_quota_decide(struct cli *c);
int cmd_quota_explain(struct cli *c);
int cmd_quota_record(struct cli *c);
/* Parts of `tollgate get`; list: "decisions" or "leases". */
int cli_get_decisions(struct cli *c, const char *list);
int cli_get_reclaims(struct cli *c);
/* Rows of decisions or leases as a table: these columns, and the amount that was asked for. */
json_t *cli_requests_table(const json_t *rows, const char *const *columns, size_t n);
int cmd_lease_list(struct cli *c);
int cmd_lease_confirm(struct cli *c);
int cmd_lease_heartbeat(struct cli *c);
int cmd_lease_release(struct cli *c);
int cmd_lease_cancel(struct cli *c);
int cmd_lease_renew(struct cli *c);
int cmd_token_create(struct cli *c);
int cmd_token_list(struct cli *c);
int cmd_token_revoke(struct cli *c);
int cmd_token_whoami(struct cli *c);
int cmd_node_join_token(struct cli *c);
int cmd_node_join_tokens(struct cli *c);
int cmd_node_revoke_join_token(struct cli *c);
int cmd_audit(struct cli *c);
int cmd_budget_status(struct cli *c);
int cmd_exception_request(struct cli *c);
int cmd_exception_list(struct cli *c);
int cmd_exception_approve(struct cli *c);
int cmd_exception_refuse(struct cli *c);
int cmd_exception_revoke(struct cli *c);
int cmd_reconcile(struct cli *c);
int cmd_refunds(struct cli *c);
int cmd_credit_add(struct cli *c);
int cmd_credit_list(struct cli *c);
int cmd_credit_approve(struct cli *c);
int cmd_credit_reverse(struct cli *c);
int cmd_close(struct cli *c);
/* report --recompute: computes a closed month again; CLI_FAILED when a byte differs. */
int cli_recompute(struct cli *c, const char *month);
int cmd_node_approve(struct cli *c);
int cmd_gpu_move(struct cli *c);
int cmd_journal_accept(struct cli *c);
int cmd_quarantine_list(struct cli *c);
int cmd_quarantine_show(struct cli *c);
int cmd_quarantine_release(struct cli *c);
int cmd_quarantine_discard(struct cli *c);
int cmd_doctor(struct cli *c);
int cmd_completion(struct cli *c);

#endif

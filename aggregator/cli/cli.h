/* aggregator/cli/cli.h - the `tollgate` command: one table of commands drives parsing and help. */
#ifndef TOLLGATE_CLI_CLI_H
#define TOLLGATE_CLI_CLI_H

#include "common/httpc.h"
#include "common/json.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_UNREACHABLE = 3 };

#define CLI_OPTION_MAX 16
#define CLI_WORD_MAX 8
#define CLI_REPLY_MAX (1u << 30)

struct cli_option {
	const char *name;  /* "dry-run" */
	char letter;       /* 'f', or 0 */
	const char *value; /* what it takes, "FILE"; NULL: nothing */
	const char *help;
};

struct cli;
struct cli_command {
	const char *name;  /* "apply", "token create" */
	const char *words; /* what follows: "YYYY-MM"; "" for nothing */
	int word_min, word_max;
	const char *summary;
	struct cli_option options[CLI_OPTION_MAX]; /* ended by a NULL name */
	int (*run)(struct cli *c);
};

struct cli {
	const struct cli_command *command;
	const char *values[CLI_OPTION_MAX]; /* of the command's options; "" for one that takes nothing */
	const char *common[CLI_OPTION_MAX]; /* of the options every command has */
	const char *words[CLI_WORD_MAX];
	int word_count;
	struct httpc *client; /* made at the first call */
};

/* The value of an option of this command, or one that every command has; NULL when not given. */
const char *cli_value(const struct cli *c, const char *name);

enum cli_output { OUTPUT_TABLE, OUTPUT_JSON, OUTPUT_CSV };
MUST_CHECK bool cli_output(const struct cli *c, enum cli_output *ret, struct err *err);

/* One request to the aggregator; a status of 400 or above is an error with the problem's text. */
MUST_CHECK bool cli_call(struct cli *c, const char *method, const char *path, const char *content_type,
                         const void *body, size_t n, struct buf *ret_body, struct err *err);
MUST_CHECK bool cli_get_json(struct cli *c, const char *path, json_t **ret, struct err *err);
/* Adds ?name=value or &name=value, escaped. */
void cli_query(struct buf *path, const char *name, const char *value);

/* Prints the error and gives the exit code: unreachable 3, else 1. */
int cli_fail(const struct err *err);

/* Rows of an array of flat objects, columns as in the first one; numbers to the right. */
void cli_print_table(const json_t *rows);
void cli_print_csv(const json_t *rows);
int cli_print(const struct cli *c, const json_t *rows, const json_t *whole);

int cmd_apply(struct cli *c);
int cmd_report(struct cli *c);
int cmd_usage(struct cli *c);
int cmd_top(struct cli *c);
int cmd_get(struct cli *c);
int cmd_token_create(struct cli *c);
int cmd_conservation(struct cli *c);

#endif

/* aggregator/cli/main.c - tollgate: find the command, read its options, run it. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

/* clang-format off */
static const struct cli_command commands[] = {
	{"apply", "", 0, 0, "apply a policy file, or show what it would change",
	 {{"file", 'f', "FILE", "the policy; - for standard input"},
	  {"dry-run", 0, NULL, "show the differences, change nothing"}}, cmd_apply},
	{"report", "YYYY-MM", 1, 1, "the month's chargeback; \"current\" for the month that is open",
	 {{"format", 0, "csv|json", "what to write (default csv)"},
	  {"tenant", 0, "NAME", "this tenant only"},
	  {"output", 'O', "FILE", "write here instead of standard output"}}, cmd_report},
	{"usage", "", 0, 0, "GPU-hours by group",
	 {{"since", 0, "AGE", "from this long ago, e.g. 7d (default 24h)"},
	  {"by", 0, "KEYS",
	   "cluster, tenant, workspace, user, workload, gpu_model, profile, node, gpu, sharing, day, hour, state, method"},
	  {"tenant", 0, "NAME", "this tenant only"}}, cmd_usage},
	{"top", "", 0, 0, "live table of this month's usage and cost by workspace",
	 {{"interval", 0, "AGE", "time between two tables (default 5s)"},
	  {"count", 0, "N", "stop after N tables (default: never)"}}, cmd_top},
	{"conservation", "", 0, 0, "per GPU: the states of its time against the time in service",
	 {{"since", 0, "AGE", "from this long ago (default 24h)"}}, cmd_conservation},
	{"get", "tenants|workspaces|nodes|periods|policy", 1, 1, "what the ledger knows",
	 {{"tenant", 0, "NAME", "this tenant only"}}, cmd_get},
	{"token create", "", 0, 0, "make a bearer token; it is shown once",
	 {{"role", 0, "ROLE", "admin, billing, tenant-admin, developer, viewer, node or scheduler"},
	  {"tenant", 0, "NAME", "the tenant of a tenant's role"},
	  {"node", 0, "NAME", "the node that a node token speaks for"}}, cmd_token_create},
};
/* clang-format on */

static const struct cli_option common_options[] = {
	{"url", 0, "URL", "the aggregator (default $TOLLGATE_URL, else http://127.0.0.1:9402)"},
	{"token-file", 0, "FILE", "file with the bearer token (default $TOLLGATE_TOKEN_FILE)"},
	{"ca-file", 0, "FILE", "certificates to trust (default $TOLLGATE_CA_FILE, else the system's)"},
	{"out", 'o', "table|json|csv", "for people, for scripts, for spreadsheets (default table)"},
	{"help", 'h', NULL, "this text"},
};

static void
print_options(const struct cli_option *o, size_t n)
{
	for (size_t i = 0; i < n && o[i].name != NULL; i++) {
		char left[64];

		snprintf(left, sizeof(left), "%s%c%s--%s%s%s", o[i].letter != 0 ? "-" : " ",
		         o[i].letter != 0 ? o[i].letter : ' ', o[i].letter != 0 ? ", " : "  ", o[i].name,
		         o[i].value != NULL ? " " : "", o[i].value != NULL ? o[i].value : "");
		printf("  %-30s %s\n", left, o[i].help);
	}
}

static void
print_command_help(const struct cli_command *cmd)
{
	printf("tollgate %s%s%s [OPTIONS]\n  %s\n\n", cmd->name, cmd->words[0] != '\0' ? " " : "", cmd->words,
	       cmd->summary);
	print_options(cmd->options, CLI_OPTION_MAX);
	print_options(common_options, ARRAY_LEN(common_options));
}

static void
print_help(void)
{
	printf("tollgate - asks and instructs the Tollgate aggregator\n\nCommands (tollgate COMMAND --help for their options):\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		printf("  %-14s %s\n", commands[i].name, commands[i].summary);
	printf("\nEvery command takes:\n");
	print_options(common_options, ARRAY_LEN(common_options));
	printf("\nExit codes: 0 done, 1 refused or failed, 2 wrong use, 3 the aggregator cannot be reached.\n");
}

/* The command that the first words name; *ret_used is how many words that took. */
static const struct cli_command *
find_command(int argc, char **argv, int *ret_used)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		const char *name = commands[i].name, *space = strchr(name, ' ');

		if (space == NULL) {
			*ret_used = 1;
			if (strcmp(name, argv[1]) == 0)
				return &commands[i];
		} else if (argc > 2 && strncmp(name, argv[1], (size_t)(space - name)) == 0 &&
		           argv[1][space - name] == '\0' && strcmp(space + 1, argv[2]) == 0) {
			*ret_used = 2;
			return &commands[i];
		}
	}
	return NULL;
}

/* --name, --name=value or -f: which option of the table this word is, or -1. */
static int
match_option(const struct cli_option *o, size_t n, const char *word, const char **ret_inline)
{
	*ret_inline = NULL;
	for (size_t i = 0; i < n && o[i].name != NULL; i++) {
		size_t len = strlen(o[i].name);

		if (word[1] != '-') {
			if (o[i].letter != 0 && word[1] == o[i].letter && word[2] == '\0')
				return (int)i;
		} else if (strncmp(word + 2, o[i].name, len) == 0 && (word[2 + len] == '\0' || word[2 + len] == '=')) {
			*ret_inline = word[2 + len] == '=' ? word + 3 + len : NULL;
			return (int)i;
		}
	}
	return -1;
}

static bool
take_option(struct cli *c, int argc, char **argv, int *at, struct err *err)
{
	const char *word = argv[*at], *given = NULL;
	const struct cli_option *table = c->command->options;
	const char **values = c->values;
	int i = match_option(table, CLI_OPTION_MAX, word, &given);

	if (i < 0) {
		table = common_options;
		values = c->common;
		i = match_option(table, ARRAY_LEN(common_options), word, &given);
	}
	if (i < 0)
		return err_set(err, ERR_INVALID, "%s is not an option of tollgate %s", word, c->command->name);
	if (table[i].value == NULL) {
		if (given != NULL)
			return err_set(err, ERR_INVALID, "--%s takes no value", table[i].name);
		values[i] = "";
		return true;
	}
	if (given == NULL) {
		if (*at + 1 >= argc)
			return err_set(err, ERR_INVALID, "--%s needs %s", table[i].name, table[i].value);
		given = argv[++*at];
	}
	values[i] = given;
	return true;
}

static bool
parse(struct cli *c, int argc, char **argv, int at, struct err *err)
{
	bool options = true;

	for (; at < argc; at++) {
		if (options && strcmp(argv[at], "--") == 0) {
			options = false;
		} else if (options && argv[at][0] == '-' && argv[at][1] != '\0') {
			if (!take_option(c, argc, argv, &at, err))
				return false;
		} else if (c->word_count == c->command->word_max) {
			return err_set(err, ERR_INVALID, "tollgate %s: \"%s\" is one word too many", c->command->name,
			               argv[at]);
		} else {
			c->words[c->word_count++] = argv[at];
		}
	}
	if (cli_value(c, "help") == NULL && c->word_count < c->command->word_min)
		return err_set(err, ERR_INVALID, "tollgate %s needs %s", c->command->name, c->command->words);
	return true;
}

const char *
cli_value(const struct cli *c, const char *name)
{
	for (size_t i = 0; i < CLI_OPTION_MAX && c->command->options[i].name != NULL; i++)
		if (strcmp(c->command->options[i].name, name) == 0)
			return c->values[i];
	for (size_t i = 0; i < ARRAY_LEN(common_options); i++)
		if (strcmp(common_options[i].name, name) == 0)
			return c->common[i];
	return NULL;
}

int
main(int argc, char **argv)
{
	struct cli c = {0};
	struct err err = {0};
	int used = 0, code;

	if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
		print_help();
		return argc < 2 ? CLI_USAGE : CLI_OK;
	}
	if (strcmp(argv[1], "--version") == 0) {
		puts("tollgate " TOLLGATE_VERSION);
		return CLI_OK;
	}
	c.command = find_command(argc, argv, &used);
	if (c.command == NULL) {
		fprintf(stderr, "tollgate: there is no command \"%s\"; tollgate --help lists them\n", argv[1]);
		return CLI_USAGE;
	}
	if (!parse(&c, argc, argv, 1 + used, &err)) {
		fprintf(stderr, "tollgate: %s\n", err.text);
		return CLI_USAGE;
	}
	if (cli_value(&c, "help") != NULL) {
		print_command_help(c.command);
		return CLI_OK;
	}
	code = c.command->run(&c);
	httpc_free(c.client);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "tollgate: standard output cannot be written\n");
		return code == CLI_OK ? CLI_FAILED : code;
	}
	return code;
}

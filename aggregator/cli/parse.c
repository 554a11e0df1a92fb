/* aggregator/cli/parse.c - parses the command line by the command table. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/base/buf.h"
#include "common/base/text.h"

/* Whether the first words of argv are this command's name; *ret_used is the number of these words. */
static bool
is_named(const char *name, int argc, char *const *argv, int *ret_used)
{
	const char *space = strchr(name, ' ');
	size_t first = space != NULL ? (size_t)(space - name) : strlen(name);

	*ret_used = space != NULL ? 2 : 1;
	return strlen(argv[1]) == first && strncmp(name, argv[1], first) == 0 &&
	       (space == NULL || (argc > 2 && strcmp(space + 1, argv[2]) == 0));
}

static const struct cli_command *
find_command(int argc, char *const *argv, int *ret_used)
{
	for (size_t i = 0; i < cli_command_count; i++)
		if (is_named(cli_commands[i].name, argc, argv, ret_used))
			return &cli_commands[i];
	return NULL;
}

/* The error for a word that begins several commands and stands alone; it lists what may follow. */
static bool
incomplete_command(const char *word, struct err *err)
{
	size_t first = strlen(word);
	in_place(buf) struct buf rest = {0};

	buf_init(&rest, sizeof(err->text));
	for (size_t i = 0; i < cli_command_count; i++)
		if (strncmp(cli_commands[i].name, word, first) == 0 && cli_commands[i].name[first] == ' ')
			buf_printf(&rest, "%s%s", rest.len > 0 ? ", " : "", cli_commands[i].name + first + 1);
	return err_set(err, ERR_INVALID, "there is no command \"%s\" alone; it is followed by one of %s", word,
	               buf_text(&rest));
}

/* Whether commands of two words begin with this one. */
static bool
is_group(const char *word)
{
	size_t first = strlen(word);

	for (size_t i = 0; i < cli_command_count; i++)
		if (strncmp(cli_commands[i].name, word, first) == 0 && cli_commands[i].name[first] == ' ')
			return true;
	return false;
}

static bool
unknown_command(int argc, char *const *argv, struct err *err)
{
	const char *known[128] = {NULL};
	owned(mem) char *word = NULL;
	const char *near;
	bool group = is_group(argv[1]);

	for (size_t n = 0; n < cli_command_count && n < ARRAY_LEN(known) - 1; n++)
		known[n] = cli_commands[n].name;
	if (group && (argc == 2 || argv[2][0] == '-'))
		return incomplete_command(argv[1], err);
	word = group && argc > 2 ? mem_printf("%s %s", argv[1], argv[2]) : mem_strdup(argv[1]);
	near = text_nearest(word, known);
	if (near != NULL)
		return err_set(err, ERR_INVALID, "there is no command \"%s\"; did you mean \"%s\"?", word, near);
	return err_set(err, ERR_INVALID, "there is no command \"%s\"; tollgate --help lists them", word);
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
is_choice(const char *const *choices, const char *word, size_t len)
{
	for (size_t i = 0; choices[i] != NULL; i++) {
		size_t n = strlen(choices[i]);
		bool begins = choices[i][n - 1] == ':' && len > n; /* "label:" is a prefix */

		if ((n == len || begins) && strncmp(choices[i], word, n) == 0)
			return true;
	}
	return false;
}

static bool
not_a_choice(const char *what, const char *const *choices, const char *word, size_t len, struct err *err)
{
	in_place(buf) struct buf all = {0};

	buf_init(&all, 4096);
	for (size_t i = 0; choices[i] != NULL; i++)
		buf_printf(&all, "%s%s", i > 0 ? ", " : "", choices[i]);
	return err_set(err, ERR_INVALID, "%s: \"%.*s\" is not one of %s", what, (int)(len > 100 ? 100 : len), word,
	               buf_text(&all));
}

static bool
check_value(const struct cli_option *o, const char *value, struct err *err)
{
	owned(mem) char *what = mem_printf("--%s", o->name);

	if (o->choices == NULL || ((o->flags & CLI_LIST) != 0 && value[0] == '\0')) /* a list may be empty */
		return true;
	for (const char *at = value;; at++) {
		size_t len = (o->flags & CLI_LIST) != 0 ? strcspn(at, ",") : strlen(at);

		if (!is_choice(o->choices, at, len))
			return not_a_choice(what, o->choices, at, len, err);
		at += len;
		if (*at == '\0')
			return true;
	}
}

static bool
take_option(struct cli *c, int argc, char *const *argv, int *at, struct err *err)
{
	const char *word = argv[*at], *given = NULL;
	const struct cli_option *table = c->command != NULL ? c->command->options : NULL;
	const char **values = c->values;
	int i = table != NULL ? match_option(table, CLI_OPTION_MAX, word, &given) : -1;

	if (i < 0) {
		table = cli_common;
		values = c->common;
		i = match_option(table, cli_common_count, word, &given);
	}
	if (i < 0 && c->command == NULL)
		return err_set(err, ERR_INVALID,
		               "%s is not an option of every command, and only those may stand before the command",
		               word);
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
	return check_value(&table[i], given, err);
}

static bool
take_word(struct cli *c, const char *word, struct err *err)
{
	const struct cli_command *cmd = c->command;

	if (c->word_count == cmd->word_max)
		return err_set(err, ERR_INVALID, "tollgate %s: unexpected argument \"%s\"", cmd->name, word);
	if (cmd->word_choices != NULL && !cmd->words_open && !is_choice(cmd->word_choices, word, strlen(word)))
		return not_a_choice(cmd->name, cmd->word_choices, word, strlen(word), err);
	c->words[c->word_count++] = word;
	return true;
}

static bool
check_complete(const struct cli *c, struct err *err)
{
	const struct cli_option *o = c->command->options;

	if (cli_value(c, "help") != NULL)
		return true;
	if (cli_value(c, "out") != NULL && c->command->outputs != NULL && c->command->outputs[0] == NULL)
		return err_set(err, ERR_INVALID, "tollgate %s has no --out: it has only one output format",
		               c->command->name);
	if (cli_value(c, "out") != NULL && c->command->outputs != NULL &&
	    !is_choice(c->command->outputs, cli_value(c, "out"), strlen(cli_value(c, "out")))) {
		owned(mem) char *what = mem_printf("tollgate %s --out", c->command->name);

		return not_a_choice(what, c->command->outputs, cli_value(c, "out"), strlen(cli_value(c, "out")), err);
	}
	if (c->word_count < c->command->word_min)
		return err_set(err, ERR_INVALID, "tollgate %s needs %s", c->command->name, c->command->words);
	for (size_t i = 0; i < CLI_OPTION_MAX && o[i].name != NULL; i++)
		if ((o[i].flags & CLI_REQUIRED) != 0 && c->values[i] == NULL)
			return err_set(err, ERR_INVALID, "tollgate %s needs --%s %s", c->command->name, o[i].name,
			               o[i].value);
	return true;
}

/* Parses options of every command, up to the first word that is not an option. */
static bool
take_common(struct cli *c, int argc, char *const *argv, int *at, struct err *err)
{
	for (; *at < argc && argv[*at][0] == '-' && argv[*at][1] != '\0'; (*at)++)
		if (!take_option(c, argc, argv, at, err))
			return false;
	return true;
}

/* Help for a group of commands, as in "quota --help". */
static bool
take_group(struct cli *c, int argc, char *const *argv, struct err *err)
{
	int at = 2;

	if (!is_group(argv[1]) || !take_common(c, argc, argv, &at, err) || at < argc || cli_value(c, "help") == NULL)
		return unknown_command(argc, argv, err);
	c->group = argv[1];
	return true;
}

bool
cli_parse(struct cli *c, int argc, char *const *argv, struct err *err)
{
	bool options = true;
	int used = 0, before = 1;

	if (!take_common(c, argc, argv, &before, err))
		return false;
	if (before < argc && strcmp(argv[before], "help") == 0) {
		c->common[CLI_COMMON_HELP] = "";
		before++;
	}
	argc -= before - 1;
	argv += before - 1; /* the command's first word is argv[1] */
	if (argc < 2)
		return cli_value(c, "help") != NULL ||
		       err_set(err, ERR_INVALID, "a command is missing; tollgate --help lists them");
	c->command = find_command(argc, argv, &used);
	if (c->command == NULL)
		return take_group(c, argc, argv, err);
	for (int at = 1 + used; at < argc; at++) {
		if (options && strcmp(argv[at], "--") == 0) {
			options = false;
		} else if (options && argv[at][0] == '-' && argv[at][1] != '\0') {
			if (!take_option(c, argc, argv, &at, err))
				return false;
		} else if (!take_word(c, argv[at], err)) {
			return false;
		}
	}
	return check_complete(c, err);
}

const char *
cli_value(const struct cli *c, const char *name)
{
	for (size_t i = 0; c->command != NULL && i < CLI_OPTION_MAX && c->command->options[i].name != NULL; i++)
		if (strcmp(c->command->options[i].name, name) == 0)
			return c->values[i];
	for (size_t i = 0; i < cli_common_count; i++)
		if (strcmp(cli_common[i].name, name) == 0)
			return c->common[i];
	return NULL;
}

const char *
cli_setting(const struct cli *c, const char *name, const char *variable)
{
	const char *v = cli_value(c, name);

	if (v == NULL)
		v = getenv(variable);
	return v != NULL && v[0] != '\0' ? v : NULL;
}

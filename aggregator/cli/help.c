/* aggregator/cli/help.c - help texts, from the command table. */
#include <string.h>

#include "aggregator/cli/cli.h"

#define WIDTH 100u
#define COMMAND_COLUMN 19u
#define OPTION_COLUMN 33u

/* Words from the column on, in as many lines as they need; the first line is at `at` already. */
static void
put_words(struct buf *out, const char *text, size_t column, size_t at)
{
	bool begun = false;

	for (; at < column; at++)
		buf_char(out, ' ');
	while (*text != '\0') {
		size_t len = strcspn(text, " ");

		if (begun && at + 1 + len > WIDTH) {
			buf_char(out, '\n');
			for (at = 0; at < column; at++)
				buf_char(out, ' ');
		} else if (begun) {
			buf_char(out, ' ');
			at++;
		}
		buf_add(out, text, len);
		at += len;
		text += len;
		text += strspn(text, " ");
		begun = true;
	}
	buf_char(out, '\n');
}

/* A name, and its text beside it or, where the name is too long, below. */
static void
put_entry(struct buf *out, const char *left, const char *text, size_t column)
{
	size_t at = 2 + strlen(left);

	buf_printf(out, "  %s", left);
	if (at + 1 > column) {
		buf_char(out, '\n');
		at = 0;
	}
	put_words(out, text, column, at);
}

static void
put_option(struct buf *out, const struct cli_option *o)
{
	in_place(buf) struct buf left = {0}, text = {0};

	buf_init(&left, 256);
	buf_init(&text, 4096);
	if (o->letter != 0)
		buf_printf(&left, "-%c, --%s", o->letter, o->name);
	else
		buf_printf(&left, "    --%s", o->name);
	if (o->value != NULL)
		buf_printf(&left, " %s", o->value);
	buf_str(&text, o->help);
	/* a value that names its choices has said them */
	if (o->choices != NULL && strchr(o->value, '|') == NULL) {
		buf_str(&text, (o->flags & CLI_LIST) != 0 ? "; some of " : "; one of ");
		for (size_t i = 0; o->choices[i] != NULL; i++)
			buf_printf(&text, "%s%s", i > 0 ? ", " : "", o->choices[i]);
	}
	if ((o->flags & CLI_REQUIRED) != 0)
		buf_str(&text, " (required)");
	put_entry(out, buf_text(&left), buf_text(&text), OPTION_COLUMN);
}

static void
put_options(struct buf *out, const struct cli_option *o, size_t n)
{
	for (size_t i = 0; i < n && o[i].name != NULL; i++)
		put_option(out, &o[i]);
}

/* Common options; --out with only the formats that the command supports. */
static void
put_common(struct buf *out, const struct cli_command *cmd)
{
	for (size_t i = 0; i < cli_common_count; i++) {
		struct cli_option o = cli_common[i];
		in_place(buf) struct buf value = {0};

		buf_init(&value, 256);
		if (cmd != NULL && cmd->outputs != NULL && strcmp(o.name, "out") == 0) {
			for (size_t k = 0; cmd->outputs[k] != NULL; k++)
				buf_printf(&value, "%s%s", k > 0 ? "|" : "", cmd->outputs[k]);
			if (value.len == 0)
				continue;
			o.value = buf_text(&value);
			o.help = "the form of what is printed";
			o.choices = NULL;
		}
		put_option(out, &o);
	}
}

static void
put_notes(struct buf *out, const char *title, const struct cli_note *notes, size_t n)
{
	buf_printf(out, "\n%s:\n", title);
	for (size_t i = 0; i < n; i++)
		put_entry(out, notes[i].name, notes[i].text, strlen(notes[i].name) < 4 ? 6 : COMMAND_COLUMN + 4);
}

void
cli_command_help(const struct cli_command *cmd, struct buf *out)
{
	const char *open = cmd->word_min == 0 ? "[" : "", *close = cmd->word_min == 0 ? "]" : "";

	buf_printf(out, "tollgate %s", cmd->name);
	if (cmd->words[0] != '\0')
		buf_printf(out, " %s%s%s", open, cmd->words, close);
	buf_str(out, " [OPTIONS]\n");
	put_words(out, cmd->summary, 2, 0);
	if (cmd->details != NULL) {
		buf_char(out, '\n');
		put_words(out, cmd->details, 0, 0);
	}
	buf_char(out, '\n');
	put_options(out, cmd->options, CLI_OPTION_MAX);
	put_common(out, cmd);
	put_notes(out, "Exit codes", cli_exits, cli_exit_count);
}

void
cli_group_help(const char *group, struct buf *out)
{
	size_t first = strlen(group);

	buf_printf(out, "tollgate %s COMMAND [OPTIONS]\n\nCommands (tollgate %s COMMAND --help for their options):\n",
	           group, group);
	for (size_t i = 0; i < cli_command_count; i++)
		if (strncmp(cli_commands[i].name, group, first) == 0 && cli_commands[i].name[first] == ' ')
			put_entry(out, cli_commands[i].name, cli_commands[i].summary, COMMAND_COLUMN);
}

void
cli_help(struct buf *out)
{
	buf_str(out, "tollgate - asks and instructs the Tollgate aggregator\n\n"
	             "Commands (tollgate COMMAND --help for their options):\n");
	for (size_t i = 0; i < cli_command_count; i++)
		put_entry(out, cli_commands[i].name, cli_commands[i].summary, COMMAND_COLUMN);
	buf_str(out, "\nEvery command takes, before its name or after it:\n");
	put_common(out, NULL);
	put_notes(out, "Environment", cli_variables, cli_variable_count);
	put_notes(out, "Exit codes", cli_exits, cli_exit_count);
}

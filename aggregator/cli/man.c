/* aggregator/cli/man.c - the manual page tollgate(1), from the command table. */
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/conf/roff.h"

static void
man_option(const struct cli_option *o, struct buf *out)
{
	in_place(buf) struct buf tag = {0}, text = {0};

	buf_init(&tag, 256);
	buf_init(&text, 4096);
	if (o->letter != 0)
		buf_printf(&tag, "-%c, ", o->letter);
	buf_printf(&tag, "--%s", o->name);
	buf_str(&text, o->help);
	if ((o->flags & CLI_REQUIRED) != 0)
		buf_str(&text, "; required");
	if (o->choices != NULL && strchr(o->value, '|') == NULL) {
		buf_str(&text,
		        (o->flags & CLI_LIST) != 0 ? "; one or more of these, separated by commas: " : "; one of ");
		for (size_t i = 0; o->choices[i] != NULL; i++)
			buf_printf(&text, "%s%s", i > 0 ? ", " : "", o->choices[i]);
	}
	roff_item(out, buf_text(&tag), o->value, buf_text(&text));
}

static void
man_command(const struct cli_command *cmd, struct buf *out)
{
	in_place(buf) struct buf title = {0};

	buf_init(&title, 256);
	buf_printf(&title, "tollgate %s", cmd->name);
	if (cmd->words[0] != '\0')
		buf_printf(&title, " %s%s%s", cmd->word_min == 0 ? "[" : "", cmd->words, cmd->word_min == 0 ? "]" : "");
	roff_subsection(out, buf_text(&title));
	roff_paragraph(out, cmd->summary);
	if (cmd->details != NULL)
		roff_paragraph(out, cmd->details);
	for (size_t i = 0; i < CLI_OPTION_MAX && cmd->options[i].name != NULL; i++)
		man_option(&cmd->options[i], out);
}

void
cli_man(struct buf *out)
{
	roff_page(out, "tollgate", 1, "command line of the Tollgate aggregator");
	roff_section(out, "SYNOPSIS");
	roff_command(out, "tollgate [OPTION]... COMMAND [WORD] [OPTION]...");
	roff_section(out, "DESCRIPTION");
	roff_paragraph(out,
	               "The command speaks HTTP to the aggregator and never opens the database: it shows the data of "
	               "the API. It needs a token, whose role decides which commands are allowed.");
	roff_paragraph(out,
	               "Tables are for people and leave out columns that say nothing; JSON and CSV have everything. "
	               "A call that takes longer than a second shows how far it is, on a terminal only.");
	roff_section(out, "COMMANDS");
	for (size_t i = 0; i < cli_command_count; i++)
		man_command(&cli_commands[i], out);
	roff_section(out, "OPTIONS");
	roff_paragraph(out, "Every command takes, before its name or after it:");
	for (size_t i = 0; i < cli_common_count; i++)
		man_option(&cli_common[i], out);
	roff_section(out, "EXIT STATUS");
	for (size_t i = 0; i < cli_exit_count; i++)
		roff_item(out, cli_exits[i].name, NULL, cli_exits[i].text);
	roff_section(out, "ENVIRONMENT");
	for (size_t i = 0; i < cli_variable_count; i++)
		roff_item(out, cli_variables[i].name, NULL, cli_variables[i].text);
	roff_see_also(out, (const char *const[]){"tollgate-aggregator(8)", "tollgate-exporter(8)", NULL});
}

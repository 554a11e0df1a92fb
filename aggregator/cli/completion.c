/* aggregator/cli/completion.c - completion for bash and zsh, from the command table. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

/* Length of the first word of a command's name; all of it where there is only one. */
static size_t
first_word(const char *name)
{
	return strcspn(name, " ");
}

/* Is this the first command of the table that begins with its first word? */
static bool
opens_family(size_t index)
{
	const char *name = cli_commands[index].name;
	size_t n = first_word(name);

	for (size_t i = 0; i < index; i++)
		if (first_word(cli_commands[i].name) == n && strncmp(cli_commands[i].name, name, n) == 0)
			return false;
	return true;
}

static bool
same_family(size_t a, size_t b)
{
	size_t n = first_word(cli_commands[a].name);

	return first_word(cli_commands[b].name) == n && strncmp(cli_commands[a].name, cli_commands[b].name, n) == 0;
}

static bool
has_second_word(size_t index)
{
	return strchr(cli_commands[index].name, ' ') != NULL;
}

static void
put_choices(struct buf *out, const char *const *choices)
{
	for (size_t i = 0; choices[i] != NULL; i++)
		buf_printf(out, "%s%s", i > 0 ? " " : "", choices[i]);
}

/* ---- bash ---- */

static void
bash_options(struct buf *out, const struct cli_option *o, size_t n)
{
	for (size_t i = 0; i < n && o[i].name != NULL; i++) {
		buf_printf(out, " --%s", o[i].name);
		if (o[i].letter != 0)
			buf_printf(out, " -%c", o[i].letter);
	}
}

/* One branch per option that takes a value: what may stand behind it. */
static void
bash_values(struct buf *out, const char *command, const struct cli_option *o, size_t n)
{
	for (size_t i = 0; i < n && o[i].name != NULL; i++) {
		if (o[i].value == NULL)
			continue;
		buf_printf(out, "\t%s' --%s'", command, o[i].name);
		if (o[i].letter != 0)
			buf_printf(out, " | %s' -%c'", command, o[i].letter);
		buf_str(out, ")\n\t\t");
		if (o[i].choices != NULL) {
			buf_str(out, (o[i].flags & CLI_LIST) != 0 ? "_tollgate_list '" : "_tollgate_words '");
			put_choices(out, o[i].choices);
			buf_str(out, "'\n");
		} else if (strcmp(o[i].value, "FILE") == 0) {
			buf_str(out, "_tollgate_files -f\n");
		} else if (strcmp(o[i].value, "DIR") == 0) {
			buf_str(out, "_tollgate_files -d\n");
		} else {
			buf_str(out, ":\n");
		}
		buf_str(out, "\t\treturn ;;\n");
	}
}

static const char bash_head[] =
	"# Completion of tollgate for bash, as `tollgate completion bash` prints it.\n"
	"_tollgate_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }\n"
	"_tollgate_list() {\n"
	"\tlocal head=\n"
	"\t[[ $cur != *,* ]] || head=${cur%,*},\n"
	"\tmapfile -t COMPREPLY < <(compgen -P \"$head\" -W \"$1\" -- \"${cur##*,}\")\n"
	"\tcompopt -o nospace 2>/dev/null\n"
	"}\n"
	"_tollgate_files() {\n"
	"\tmapfile -t COMPREPLY < <(compgen \"$1\" -- \"$cur\")\n"
	"\tcompopt -o filenames 2>/dev/null\n"
	"}\n"
	"_tollgate() {\n"
	"\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command options words=\n"
	"\tCOMPREPLY=()\n"
	"\t# bash takes --name=value for three words\n"
	"\tif [[ $cur == = ]]; then\n"
	"\t\tcur=\n"
	"\telif [[ $prev == = ]]; then\n"
	"\t\tprev=${COMP_WORDS[COMP_CWORD - 2]}\n"
	"\tfi\n";

static void
bash_commands(struct buf *out)
{
	buf_str(out, "\tif ((COMP_CWORD == 1)); then\n\t\t_tollgate_words '");
	for (size_t i = 0; i < cli_command_count; i++)
		if (opens_family(i))
			buf_printf(out, "%.*s ", (int)first_word(cli_commands[i].name), cli_commands[i].name);
	buf_str(out, "--help --version'\n\t\treturn\n\tfi\n\tcommand=${COMP_WORDS[1]}\n\tcase $command in\n");
	for (size_t i = 0; i < cli_command_count; i++) {
		const char *name = cli_commands[i].name;

		if (!has_second_word(i) || !opens_family(i))
			continue;
		buf_printf(out, "\t%.*s)\n\t\tif ((COMP_CWORD == 2)); then\n\t\t\t_tollgate_words '",
		           (int)first_word(name), name);
		for (size_t k = i; k < cli_command_count; k++)
			if (same_family(i, k))
				buf_printf(out, "%s%s", k > i ? " " : "", strchr(cli_commands[k].name, ' ') + 1);
		buf_str(out, "'\n\t\t\treturn\n\t\tfi\n\t\tcommand=\"$command ${COMP_WORDS[2]}\" ;;\n");
	}
	buf_str(out, "\tesac\n");
}

void
cli_completion_bash(struct buf *out)
{
	buf_str(out, bash_head);
	bash_commands(out);
	buf_str(out, "\tcase \"$command $prev\" in\n");
	for (size_t i = 0; i < cli_command_count; i++) {
		char pattern[64];

		snprintf(pattern, sizeof(pattern), "'%s'", cli_commands[i].name);
		bash_values(out, pattern, cli_commands[i].options, CLI_OPTION_MAX);
	}
	bash_values(out, "*", cli_common, cli_common_count);
	buf_str(out, "\tesac\n\tcase $command in\n");
	for (size_t i = 0; i < cli_command_count; i++) {
		const struct cli_command *cmd = &cli_commands[i];

		buf_printf(out, "\t'%s')\n\t\toptions='", cmd->name);
		bash_options(out, cmd->options, CLI_OPTION_MAX);
		buf_char(out, '\'');
		if (cmd->word_choices != NULL) {
			buf_str(out, " words='");
			put_choices(out, cmd->word_choices);
			buf_char(out, '\'');
		}
		buf_str(out, " ;;\n");
	}
	buf_str(out, "\t*) return ;;\n\tesac\n\toptions+='");
	bash_options(out, cli_common, cli_common_count);
	buf_str(out, "'\n\tif [[ -n $words && $cur != -* ]]; then\n\t\t_tollgate_words \"$words\"\n\telse\n"
	             "\t\t_tollgate_words \"$options\"\n\tfi\n}\ncomplete -F _tollgate tollgate\n");
}

/* ---- zsh ---- */

/* Text within single quotes, in a place where zsh's _arguments reads ':' and brackets. */
static void
zsh_text(struct buf *out, const char *text)
{
	for (; *text != '\0'; text++) {
		if (*text == '\'') {
			buf_str(out, "'\\''");
			continue;
		}
		if (strchr(":[]\\", *text) != NULL)
			buf_char(out, '\\');
		buf_char(out, *text);
	}
}

static void
zsh_value(struct buf *out, const struct cli_option *o)
{
	buf_char(out, ':');
	zsh_text(out, o->value);
	buf_char(out, ':');
	if (o->choices != NULL) {
		buf_str(out, (o->flags & CLI_LIST) != 0 ? "_values -s , key " : "(");
		put_choices(out, o->choices);
		buf_str(out, (o->flags & CLI_LIST) != 0 ? "" : ")");
	} else if (strcmp(o->value, "FILE") == 0) {
		buf_str(out, "_files");
	} else if (strcmp(o->value, "DIR") == 0) {
		buf_str(out, "_files -/");
	} else {
		buf_char(out, ' ');
	}
}

static void
zsh_options(struct buf *out, const struct cli_option *o, size_t n)
{
	for (size_t i = 0; i < n && o[i].name != NULL; i++) {
		const char *equals = o[i].value != NULL ? "=" : "";

		buf_str(out, " \\\n\t\t\t");
		if (o[i].letter != 0)
			buf_printf(out, "'(-%c --%s)'{-%c,--%s%s}'[", o[i].letter, o[i].name, o[i].letter, o[i].name,
			           equals);
		else
			buf_printf(out, "'--%s%s[", o[i].name, equals);
		zsh_text(out, o[i].help);
		buf_char(out, ']');
		if (o[i].value != NULL)
			zsh_value(out, &o[i]);
		buf_char(out, '\'');
	}
}

/* The commands to choose from at one place, with their summaries; family NULL: the first words. */
static void
zsh_menu(struct buf *out, const char *indent, size_t family, bool second)
{
	buf_printf(out, "%smenu=(", indent);
	for (size_t i = 0; i < cli_command_count; i++) {
		const char *name = cli_commands[i].name;

		if (second ? !same_family(family, i) : !opens_family(i))
			continue;
		buf_printf(out, "\n%s\t'", indent);
		if (second)
			buf_str(out, strchr(name, ' ') + 1);
		else
			buf_add(out, name, first_word(name));
		buf_char(out, ':');
		zsh_text(out, has_second_word(i) && !second ? "more commands" : cli_commands[i].summary);
		buf_char(out, '\'');
	}
	buf_printf(out, "\n%s)\n%s_describe command menu\n%sreturn\n", indent, indent, indent);
}

static void
zsh_command(struct buf *out, const struct cli_command *cmd)
{
	buf_printf(out, "\t'%s')\n\t\t_arguments", cmd->name);
	zsh_options(out, cmd->options, CLI_OPTION_MAX);
	buf_str(out, " $common");
	if (cmd->word_max > 0) {
		buf_str(out, " \\\n\t\t\t'1:");
		zsh_text(out, cmd->words);
		buf_char(out, ':');
		if (cmd->word_choices != NULL) {
			buf_char(out, '(');
			put_choices(out, cmd->word_choices);
			buf_char(out, ')');
		} else {
			buf_char(out, ' ');
		}
		buf_char(out, '\'');
	}
	buf_str(out, " ;;\n");
}

void
cli_completion_zsh(struct buf *out)
{
	buf_str(out,
	        "#compdef tollgate\n# Completion of tollgate for zsh, as `tollgate completion zsh` prints it.\n_tollgate() {\n"
	        "\tlocal command=$words[2]\n\tlocal -a menu common\n\tlocal curcontext=$curcontext\n"
	        "\tcommon=(");
	zsh_options(out, cli_common, cli_common_count);
	buf_str(out, ")\n\tif ((CURRENT == 2)); then\n");
	zsh_menu(out, "\t\t", 0, false);
	buf_str(out, "\tfi\n\tcase $command in\n");
	for (size_t i = 0; i < cli_command_count; i++) {
		if (!has_second_word(i) || !opens_family(i))
			continue;
		buf_printf(out, "\t%.*s)\n\t\tif ((CURRENT == 3)); then\n", (int)first_word(cli_commands[i].name),
		           cli_commands[i].name);
		zsh_menu(out, "\t\t\t", i, true);
		buf_str(out, "\t\tfi\n\t\tcommand+=\" $words[3]\"\n\t\tshift words\n\t\t((CURRENT--)) ;;\n");
	}
	buf_str(out, "\tesac\n\tshift words\n\t((CURRENT--))\n\tcase $command in\n");
	for (size_t i = 0; i < cli_command_count; i++)
		zsh_command(out, &cli_commands[i]);
	buf_str(out,
	        "\tesac\n}\nif [[ $funcstack[1] == _tollgate ]]; then\n\t_tollgate \"$@\"\nelse\n\tcompdef _tollgate tollgate\nfi\n");
}

int
cmd_completion(struct cli *c)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, CLI_TEXT_BYTES);
	if (strcmp(c->words[0], "bash") == 0)
		cli_completion_bash(&text);
	else
		cli_completion_zsh(&text);
	return fwrite(buf_text(&text), 1, text.len, stdout) == text.len ? CLI_OK : CLI_FAILED;
}

/* aggregator/cli/main.c - tollgate: read the command line, run the command. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

int
main(int argc, char **argv)
{
	struct cli c = {.server_wall_ns = -1};
	struct err err = {0};
	in_place(buf) struct buf text = {0};
	int code = CLI_OK;

	buf_init(&text, CLI_TEXT_BYTES);
	if (argc < 2) {
		cli_help(&text);
		code = CLI_USAGE;
	} else if (strcmp(argv[1], "--version") == 0) {
		buf_str(&text, "tollgate " TOLLGATE_VERSION "\n");
	} else if (strcmp(argv[1], "--man") == 0) {
		cli_man(&text);
	} else if (!cli_parse(&c, argc, argv, &err)) {
		return cli_misuse(&err);
	} else if (c.group != NULL) {
		cli_group_help(c.group, &text);
	} else if (c.command == NULL) {
		cli_help(&text);
	} else if (cli_value(&c, "help") != NULL) {
		cli_command_help(c.command, &text);
	} else {
		code = c.command->run(&c);
	}
	fputs(buf_text(&text), stdout);
	httpc_free(c.client);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "tollgate: standard output cannot be written\n");
		return code == CLI_OK ? CLI_FAILED : code;
	}
	return code;
}

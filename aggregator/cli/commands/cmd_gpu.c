/* aggregator/cli/commands/cmd_gpu.c - tollgate gpu move and journal accept: decisions of an operator. */
#include <string.h>

#include "aggregator/cli/cli.h"

#define UUID_LETTERS "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-._:"

int
cmd_gpu_move(struct cli *c)
{
	owned(json) json_t *request = json_object();
	in_place(buf) struct buf path = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	if (c->words[0][strspn(c->words[0], UUID_LETTERS)] != '\0') {
		err_set(&err, ERR_INVALID, "\"%.64s\" is not the UUID of a GPU; conservation shows them", c->words[0]);
		return cli_misuse(&err);
	}
	buf_printf(&path, "/v1/gpus/%s/move", c->words[0]);
	json_object_set_new(request, "node", json_string(c->words[1]));
	json_object_set_new(request, "reason", json_string(cli_value(c, "reason")));
	if (cli_value(c, "at") != NULL)
		json_object_set_new(request, "at", json_string(cli_value(c, "at")));
	return cli_post(c, buf_text(&path), request);
}

int
cmd_journal_accept(struct cli *c)
{
	owned(json) json_t *request = json_pack("{s:s}", "reason", cli_value(c, "reason"));
	in_place(buf) struct buf path = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	if (c->words[0][strspn(c->words[0], "0123456789")] != '\0') {
		err_set(&err, ERR_INVALID, "\"%.64s\" is not the number of an entry; verify tells it", c->words[0]);
		return cli_misuse(&err);
	}
	buf_printf(&path, "/v1/journal/%s/accept", c->words[0]);
	return cli_post(c, buf_text(&path), request);
}

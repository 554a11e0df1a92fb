/* aggregator/cli/suggest.c - policy suggest: a draft of a policy, to standard output or a file. */
#include <stdio.h>

#include "aggregator/cli/cli.h"

int
cmd_policy_suggest(struct cli *c)
{
	const char *since = cli_value(c, "since"), *file = cli_value(c, "output");
	in_place(buf) struct buf path, body;
	char from[TIME_TEXT_SIZE];
	struct err err = {0};
	int64_t age_ns;

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	buf_str(&path, "/v1/policy/suggest");
	if (since != NULL && !duration_parse(since, &age_ns, &err)) {
		err_prefix(&err, "--since");
		return cli_misuse(&err);
	}
	if (since != NULL)
		cli_query(&path, "from", time_format(time_wall_ns() - age_ns, from));
	if (!cli_call(c, "GET", buf_text(&path), NULL, NULL, 0, &body, &err))
		return cli_fail(&err);
	if (file == NULL)
		return fwrite(buf_text(&body), 1, body.len, stdout) == body.len ? CLI_OK : CLI_FAILED;
	return file_write_atomic(file, buf_text(&body), body.len, 0644, &err) ? CLI_OK : cli_fail(&err);
}

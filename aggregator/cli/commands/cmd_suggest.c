/* aggregator/cli/commands/cmd_suggest.c - tollgate policy suggest; waiting for re-attribution after apply. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"

int
cmd_policy_suggest(struct cli *c)
{
	const char *since = cli_value(c, "since"), *file = cli_value(c, "output");
	in_place(buf) struct buf path = {0}, body = {0};
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

#define CLEAR_LINE "\r\033[K"
#define ASK_AGAIN_NS (500 * NS_PER_MS)

/* Waits until the aggregator has re-attributed all holders. */
int
cli_await_policy(struct cli *c)
{
	bool terminal = isatty(STDERR_FILENO) != 0, running = true;
	struct err err = {0};

	while (running) {
		owned(json) json_t *at = NULL;
		int64_t done = 0, all = 0;

		if (!cli_get_json(c, "/v1/policy/progress", &at, &err) ||
		    !json_get_i64(at, "holders_done", &done, &err) || !json_get_i64(at, "holders", &all, &err))
			/* A tenant administrator may not read the progress; the change is complete all the same. */
			return err.kind == ERR_DENIED ? CLI_OK : cli_fail(&err);
		running = json_is_true(json_object_get(at, "running"));
		if (terminal)
			fprintf(stderr, CLEAR_LINE "attributed again: %" PRId64 " of %" PRId64 " holders", done, all);
		if (running)
			nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
	}
	if (terminal)
		fputs(CLEAR_LINE, stderr);
	return CLI_OK;
}

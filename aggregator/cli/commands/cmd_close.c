/* aggregator/cli/commands/cmd_close.c - tollgate close: starts and follows the job that closes a month, or lists what prevents it; report --recompute. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"

#define COLUMNS "check,number,threshold,ok,final,meaning"
#define DIFFERENCES "kind,node,gpu,hour,what,expected,found,difference"
#define CLEAR_LINE "\r\033[K"
#define ASK_AGAIN_NS (NS_PER_S / 4)
#define AWAY_MAX_NS (60 * NS_PER_S)

/* /v1/periods/YYYY-MM/VERB, with the thresholds that were asked for. */
static void
add_path(struct cli *c, const char *month, const char *verb, struct buf *path)
{
	static const char *const options[][2] = {{"unknown-max", "unknown_max"},
	                                         {"unattributed-max", "unattributed_max"}};

	buf_printf(path, "/v1/periods/%s/%s", month, verb);
	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		if (cli_value(c, options[i][0]) != NULL)
			cli_query(path, options[i][1], cli_value(c, options[i][0]));
}

static int
print_checks(struct cli *c, const char *month, bool *ret_closable, bool *ret_needs_reason)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	const char *status = NULL;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	add_path(c, month, "check", &path);
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	*ret_closable = json_is_true(json_object_get(reply, "closable"));
	*ret_needs_reason = json_is_true(json_object_get(reply, "needs_reason"));
	if (json_get_str(reply, "status", &status, &err) && strcmp(status, "closed") == 0)
		fprintf(stderr, "tollgate: %s is closed already; these are the checks of a month that is open\n",
		        month);
	return cli_print(c, json_object_get(reply, "checks"), reply, COLUMNS);
}

/* Asks for confirmation on a terminal; scripts pass --yes. */
static bool
confirmed(struct cli *c, const char *month)
{
	char answer[8] = "";

	if (cli_value(c, "yes") != NULL)
		return true;
	fprintf(stderr, "A closed month stays closed. Close %s? [y/N] ", month);
	return fgets(answer, sizeof(answer), stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

/* --- the job --- */

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

static const char *
text_of(const json_t *job, const char *name)
{
	const char *text = json_string_value(json_object_get(job, name));

	return text != NULL ? text : "";
}

/* Prints that the month is closed, or why not. */
static int
print_end(struct cli *c, json_t *job)
{
	const char *state = text_of(job, "state");
	bool closed = strcmp(state, "closed") == 0;
	json_t *differences = json_object_get(job, "differences");

	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE) {
		int code = cli_print_one(c, job);

		return code != CLI_OK || closed ? code : CLI_FAILED;
	}
	if (closed) {
		printf("%s is closed\n", text_of(job, "period"));
		return CLI_OK;
	}
	if (json_array_size(differences) > 0 && cli_print(c, differences, job, DIFFERENCES) != CLI_OK)
		return CLI_FAILED;
	fprintf(stderr, "tollgate: %s was not closed (%s): %s\n", text_of(job, "period"), state, text_of(job, "error"));
	return CLI_FAILED;
}

static void
show_progress(const json_t *job, bool terminal)
{
	if (terminal)
		fprintf(stderr, CLEAR_LINE "%s: %s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " %s",
		        text_of(job, "period"), strcmp(text_of(job, "stage"), "prove") == 0 ? "proving" : "writing",
		        json_integer_value(json_object_get(job, "done")),
		        json_integer_value(json_object_get(job, "total")), text_of(job, "step"));
}

static int
left_running(const char *month)
{
	fprintf(stderr,
	        "tollgate: %s is still being closed. Progress: tollgate close %s --status. To stop it: tollgate close %s --cancel\n",
	        month, month, month);
	return CLI_FAILED;
}

/* A restarted aggregator resumes the job, so a short outage does not end the command. */
static int
follow(struct cli *c, const char *month)
{
	const char *term = getenv("TERM");
	bool terminal = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
	int64_t heard_ns = time_boot_ns();
	in_place(buf) struct buf path = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "/v1/periods/%s/close", month);
	while (!interrupted) {
		owned(json) json_t *job = NULL;
		struct err err = {0};
		bool heard = cli_get_json(c, buf_text(&path), &job, &err);

		if (heard && strcmp(text_of(job, "state"), "running") != 0) {
			if (terminal)
				fputs(CLEAR_LINE, stderr);
			return print_end(c, job);
		}
		if (heard) {
			heard_ns = time_boot_ns();
			show_progress(job, terminal);
		} else if (err.kind != ERR_RETRY || time_boot_ns() - heard_ns > AWAY_MAX_NS) {
			cli_fail(&err);
			left_running(month);
			return err.kind == ERR_RETRY ? CLI_UNREACHABLE : CLI_FAILED;
		}
		nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
	}
	if (terminal)
		fputs(CLEAR_LINE, stderr);
	return left_running(month);
}

static int
close_month(struct cli *c, const char *month)
{
	owned(json) json_t *request = json_object();
	in_place(buf) struct buf path = {0}, body = {0}, text = {0};
	const char *reason = cli_value(c, "reason");
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_PATH_BYTES);
	buf_init(&text, CLI_REPLY_MAX);
	add_path(c, month, "close", &path);
	/* the job may run from here on, even if this program ends */
	signal(SIGINT, on_interrupt);
	if (reason != NULL)
		json_object_set_new(request, "reason", json_string(reason));
	json_write(request, &body);
	if (!cli_call(c, "POST", buf_text(&path), "application/json", buf_text(&body), body.len, &text, &err))
		return cli_fail(&err);
	return follow(c, month);
}

/* --status and --cancel of a close job. */
static int
look_at_job(struct cli *c, const char *month, const char *method)
{
	owned(json) json_t *job = NULL;
	in_place(buf) struct buf path = {0}, text = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&text, CLI_REPLY_MAX);
	buf_printf(&path, "/v1/periods/%s/close", month);
	if (!cli_call(c, method, buf_text(&path), NULL, NULL, 0, &text, &err) ||
	    !json_parse("reply", buf_text(&text), text.len, &job, &err))
		return cli_fail(&err);
	return cli_print_one(c, job);
}

int
cli_recompute(struct cli *c, const char *month)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "/v1/periods/%s/recompute", month);
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	code = cli_print_one(c, reply);
	return code == CLI_OK && !json_is_true(json_object_get(reply, "identical")) ? CLI_FAILED : code;
}

int
cmd_close(struct cli *c)
{
	const char *month = c->words[0];
	bool closable = false, needs_reason = false;
	struct err err = {0};
	int code;

	if (!cli_month(month, &err))
		return cli_misuse(&err);
	if (cli_value(c, "check") != NULL) {
		code = print_checks(c, month, &closable, &needs_reason);
		return code == CLI_OK && (!closable || needs_reason) ? CLI_FAILED : code;
	}
	if (cli_value(c, "status") != NULL)
		return look_at_job(c, month, "GET");
	if (cli_value(c, "cancel") != NULL)
		return look_at_job(c, month, "DELETE");
	if (!confirmed(c, month)) {
		fprintf(stderr, "tollgate: %s was not closed\n", month);
		return CLI_FAILED;
	}
	return close_month(c, month);
}

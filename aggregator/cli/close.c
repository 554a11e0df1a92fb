/* aggregator/cli/close.c - a month is closed, or what stands against it; a closed one is proved. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

#define COLUMNS "check,number,threshold,ok,final,meaning"

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
	in_place(buf) struct buf path;
	const char *status = NULL;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	add_path(c, month, "check", &path);
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	*ret_closable = json_is_true(json_object_get(reply, "closable"));
	*ret_needs_reason = json_is_true(json_object_get(reply, "needs_reason"));
	if (json_get_str(reply, "status", &status, &err) && strcmp(status, "closed") == 0)
		fprintf(stderr, "tollgate: %s is closed already; this is what a month that is open would be asked\n",
		        month);
	return cli_print(c, json_object_get(reply, "checks"), reply, COLUMNS);
}

/* On a terminal somebody is asked; a script says --yes. */
static bool
confirmed(struct cli *c, const char *month)
{
	char answer[8] = "";

	if (cli_value(c, "yes") != NULL)
		return true;
	fprintf(stderr, "A closed month stays closed. Close %s? [y/N] ", month);
	return fgets(answer, sizeof(answer), stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

static int
close_month(struct cli *c, const char *month)
{
	owned(json) json_t *request = json_object(), *reply = NULL;
	in_place(buf) struct buf path, body, text;
	const char *reason = cli_value(c, "reason");
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_PATH_BYTES);
	buf_init(&text, CLI_REPLY_MAX);
	add_path(c, month, "close", &path);
	json_object_set_new(request, "reason", json_string(reason != NULL ? reason : ""));
	json_write(request, &body);
	if (!cli_call(c, "POST", buf_text(&path), "application/json", buf_text(&body), body.len, &text, &err) ||
	    !json_parse("reply", buf_text(&text), text.len, &reply, &err))
		return cli_fail(&err);
	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_JSON)
		return cli_print_one(c, reply);
	printf("%s is closed\n", month);
	return CLI_OK;
}

int
cli_prove(struct cli *c, const char *month)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path;
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
	int code;

	if (strlen(month) != 7 || strspn(month, "0123456789-") != 7) {
		fprintf(stderr, "tollgate: \"%.40s\" is not a month; write YYYY-MM\n", month);
		return CLI_USAGE;
	}
	if (cli_value(c, "check") != NULL) {
		code = print_checks(c, month, &closable, &needs_reason);
		return code == CLI_OK && (!closable || needs_reason) ? CLI_FAILED : code;
	}
	if (!confirmed(c, month)) {
		fprintf(stderr, "tollgate: %s was not closed\n", month);
		return CLI_FAILED;
	}
	return close_month(c, month);
}

/* aggregator/cli/commands/cmd_exception.c - tollgate exception: request, decide and list quota exceptions. */
#include <stdlib.h>

#include "aggregator/cli/cli.h"
#include "common/base/text.h"

#define COLUMNS                                                                                                                 \
	"id,tenant,workspace,cluster,gpu_model,kind,gpus,units,shared,from,until,status,running,reason,requested_by,requested," \
	"rule,decided_by,decided,decided_why,over_by,over,over_why"

/* Columns of the table: amount, end and status. Other formats have every column. */
static int
show(const struct cli *c, const json_t *rows, const json_t *whole)
{
	static const char *const shown[] = {"id",           "tenant",     "workspace", "gpu_model", "kind",
	                                    "gpus",         "from",       "until",     "status",    "running",
	                                    "requested_by", "decided_by", "reason"};
	owned(json) json_t *table = json_array();

	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print(c, rows, whole, COLUMNS);
	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *row = json_object();

		for (size_t k = 0; k < ARRAY_LEN(shown); k++)
			json_object_set(row, shown[k], json_object_get(json_array_get(rows, i), shown[k]));
		json_array_append_new(table, row);
	}
	return cli_print(c, table, table, COLUMNS);
}

int
cmd_exception_list(struct cli *c)
{
	static const char *const filters[] = {"tenant", "workspace", "status"};
	owned(json) json_t *rows = json_array();
	in_place(buf) struct buf path = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/exceptions");
	for (size_t i = 0; i < ARRAY_LEN(filters); i++)
		cli_query(&path, filters[i], cli_value(c, filters[i]));
	code = cli_get_pages(c, buf_text(&path), "exceptions", 50, rows);
	return code != CLI_OK ? code : show(c, rows, rows);
}

static int
post(struct cli *c, const char *path, const json_t *request)
{
	owned(json) json_t *row = NULL, *rows = json_array();
	struct err err = {0};

	if (!cli_post_json(c, path, request, &row, &err))
		return cli_fail(&err);
	json_array_append(rows, row);
	return show(c, rows, row);
}

static void
add(const struct cli *c, json_t *request, const char *option, const char *field)
{
	if (cli_value(c, option) != NULL)
		json_object_set_new(request, field, json_string(cli_value(c, option)));
}

int
cmd_exception_request(struct cli *c)
{
	owned(json) json_t *request = json_object();

	json_object_set_new(request, "workspace", json_string(c->words[0]));
	add(c, request, "gpus", "gpus");
	add(c, request, "gpu-model", "gpu_model");
	add(c, request, "cluster", "cluster");
	add(c, request, "kind", "kind");
	add(c, request, "from", "from");
	add(c, request, "until", "until");
	add(c, request, "reason", "reason");
	if (cli_value(c, "shared") != NULL)
		json_object_set_new(request, "shared", json_true());
	return post(c, "/v1/exceptions", request);
}

static int
decide(struct cli *c, const char *verb)
{
	owned(json) json_t *request = json_object();
	in_place(buf) struct buf path = {0};
	struct err err = {0};
	int64_t id;

	buf_init(&path, CLI_PATH_BYTES);
	if (!text_to_i64(c->words[0], &id) || id < 1) {
		err_set(&err, ERR_INVALID, "\"%.40s\" is not an id; tollgate exception list shows them", c->words[0]);
		return cli_misuse(&err);
	}
	buf_printf(&path, "/v1/exceptions/%" PRId64 "/%s", id, verb);
	add(c, request, "reason", "reason");
	return post(c, buf_text(&path), request);
}

int
cmd_exception_approve(struct cli *c)
{
	return decide(c, "approve");
}

int
cmd_exception_refuse(struct cli *c)
{
	return decide(c, "refuse");
}

int
cmd_exception_revoke(struct cli *c)
{
	return decide(c, "revoke");
}

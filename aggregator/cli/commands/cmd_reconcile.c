/* aggregator/cli/commands/cmd_reconcile.c - tollgate reconcile: capacity at list price against billed amounts. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

static json_t *
table_row(const json_t *r)
{
	static const char *const fields[] = {"cluster",        "gpu_model", "currency", "capacity_gpu_hours",
	                                     "capacity_value", "billed",    "credits",  "unrecovered",
	                                     "prices"};
	json_t *row = json_object();

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		json_object_set(row, fields[i], json_object_get(r, fields[i]));
	return row;
}

/* Names every row whose rated hours differ from the hours of its capacity on stderr; the exit code is 1 then, for every output format. In a closed
 * month the difference arose after the close: the documents stay, and corrections bill it. */
static int
report_differences(const json_t *reply)
{
	const char *period = json_string_value(json_object_get(reply, "period")),
		   *status = json_string_value(json_object_get(reply, "period_status"));
	bool closed = status != NULL && strcmp(status, "closed") == 0;
	const json_t *all = json_object_get(reply, "rows");
	int code = CLI_OK;

	for (size_t i = 0; i < json_array_size(all); i++) {
		const json_t *r = json_array_get(all, i);
		const char *hours = json_string_value(json_object_get(r, "differing_gpu_hours"));

		if (!json_is_false(json_object_get(r, "agrees")))
			continue;
		fprintf(stderr,
		        "tollgate: %s in cluster %s does not add up: the hours rated differ from the hours of capacity by %s\n",
		        json_string_value(json_object_get(r, "gpu_model")),
		        json_string_value(json_object_get(r, "cluster")), hours != NULL ? hours : "an unknown amount");
		code = CLI_FAILED;
	}
	if (code != CLI_OK && closed)
		fprintf(stderr,
		        "tollgate: these hours came, or changed, after %s was closed. Its documents stay as they are; the difference is billed by "
		        "corrections in the report of a later month\n",
		        period != NULL ? period : "the month");
	return code;
}

/* The table is made from the JSON reply; print_document() prints the formats that the aggregator renders. */
static int
print_rows(const json_t *reply)
{
	owned(json) json_t *rows = json_array();
	const json_t *all = json_object_get(reply, "rows");

	for (size_t i = 0; i < json_array_size(all); i++)
		json_array_append_new(rows, table_row(json_array_get(all, i)));
	cli_print_table(rows);
	return CLI_OK;
}

static int
print_document(struct cli *c, struct buf *path, const char *format, struct err *err)
{
	const char *file = cli_value(c, "output");
	in_place(buf) struct buf body = {0};

	buf_init(&body, CLI_REPLY_MAX);
	cli_query(path, "format", format != NULL ? format : "csv");
	if (!cli_call(c, "GET", buf_text(path), NULL, NULL, 0, &body, err))
		return cli_fail(err);
	if (file != NULL)
		return file_write_atomic(file, buf_text(&body), body.len, 0644, err) ? CLI_OK : cli_fail(err);
	return fwrite(buf_text(&body), 1, body.len, stdout) == body.len ? CLI_OK : CLI_FAILED;
}

int
cmd_reconcile(struct cli *c)
{
	const char *format = cli_value(c, "format");
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};
	enum cli_output output = cli_output(c, OUTPUT_TABLE);
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	if (output == OUTPUT_YAML && cli_value(c, "output") != NULL) {
		fprintf(stderr, "tollgate: a file cannot be written as YAML; use --format csv, json or html\n");
		return CLI_USAGE;
	}
	if (format != NULL && cli_value(c, "out") != NULL) {
		fprintf(stderr, "tollgate: --format and --out choose the same thing; give only one of them\n");
		return CLI_USAGE;
	}
	if (output == OUTPUT_CSV || output == OUTPUT_JSON)
		format = output == OUTPUT_CSV ? "csv" : "json";
	buf_str(&path, "/v1/reconciliation");
	cli_query(&path, "month", cli_value(c, "month"));
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	if (output == OUTPUT_YAML)
		code = cli_print(c, json_object_get(reply, "rows"), reply, "");
	else if (format == NULL && cli_value(c, "output") == NULL)
		code = print_rows(reply);
	else
		code = print_document(c, &path, format, &err);
	return code != CLI_OK ? code : report_differences(reply);
}

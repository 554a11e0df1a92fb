/* aggregator/cli/reconcile.c - capacity at list price against what was billed. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

static json_t *
row_for_people(const json_t *r)
{
	static const char *const fields[] = {"cluster",        "gpu_model", "currency", "capacity_gpu_hours",
	                                     "capacity_value", "billed",    "credits",  "unrecovered",
	                                     "prices"};
	json_t *row = json_object();

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		json_object_set(row, fields[i], json_object_get(r, fields[i]));
	return row;
}

/* -o table and -o json are of the same reply; the other forms are the aggregator's own. */
static int
print_rows(struct cli *c, const char *path)
{
	owned(json) json_t *reply = NULL, *rows = json_array();
	const json_t *all;
	struct err err = {0};

	if (!cli_get_json(c, path, &reply, &err))
		return cli_fail(&err);
	all = json_object_get(reply, "rows");
	for (size_t i = 0; i < json_array_size(all); i++)
		json_array_append_new(rows, row_for_people(json_array_get(all, i)));
	cli_print_table(rows);
	return CLI_OK;
}

int
cmd_reconcile(struct cli *c)
{
	const char *format = cli_value(c, "format"), *file = cli_value(c, "output");
	in_place(buf) struct buf path, body;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	if (format != NULL && cli_value(c, "out") != NULL) {
		fprintf(stderr, "tollgate: --format and --out say the same; give one of them\n");
		return CLI_USAGE;
	}
	if (format == NULL && cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		format = cli_output(c, OUTPUT_TABLE) == OUTPUT_CSV ? "csv" : "json";
	buf_str(&path, "/v1/reconciliation");
	cli_query(&path, "month", cli_value(c, "month"));
	if (format == NULL && file == NULL)
		return print_rows(c, buf_text(&path));
	cli_query(&path, "format", format != NULL ? format : "csv");
	if (!cli_call(c, "GET", buf_text(&path), NULL, NULL, 0, &body, &err))
		return cli_fail(&err);
	if (file != NULL)
		return file_write_atomic(file, buf_text(&body), body.len, 0644, &err) ? CLI_OK : cli_fail(&err);
	return fwrite(buf_text(&body), 1, body.len, stdout) == body.len ? CLI_OK : CLI_FAILED;
}

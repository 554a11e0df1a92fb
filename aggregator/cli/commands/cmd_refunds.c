/* aggregator/cli/commands/cmd_refunds.c - tollgate refunds: hours of jobs that ended because a GPU or node failed. */
#include "aggregator/cli/cli.h"

#define COLUMNS                                                                                                         \
	"id,tenant,workspace,kind,user,job,namespace,pod,container,cluster,node,gpu,device,gpu_model,mig_profile,from," \
	"until,cause,xid,failed_gpu,credits,gpu_hours,reserved_gpu_hours,charged,currency"

static json_t *
table_row(const json_t *r)
{
	static const char *const fields[] = {"id",        "tenant",  "workspace", "job",    "pod",
	                                     "gpu",       "from",    "until",     "cause",  "xid",
	                                     "gpu_hours", "charged", "currency",  "credits"};
	json_t *row = json_object();

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		json_object_set(row, fields[i], json_object_get(r, fields[i]));
	return row;
}

int
cmd_refunds(struct cli *c)
{
	owned(json) json_t *reply = NULL, *rows = json_array();
	in_place(buf) struct buf path = {0};
	const json_t *refunds;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/refunds");
	cli_query(&path, "month", cli_value(c, "month"));
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	refunds = json_object_get(reply, "refunds");
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print(c, refunds, reply, COLUMNS);
	for (size_t i = 0; i < json_array_size(refunds); i++)
		json_array_append_new(rows, table_row(json_array_get(refunds, i)));
	cli_print_table(rows);
	return CLI_OK;
}

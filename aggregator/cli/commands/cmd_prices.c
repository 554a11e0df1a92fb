/* aggregator/cli/commands/cmd_prices.c - price preview: what a month would have cost with other prices. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

#define PRICES_BYTES (4u << 20)

/* One table: a row for each tenant, and their total. */
static int
print_preview(const struct cli *c, json_t *reply)
{
	json_t *rows = json_object_get(reply, "tenants"), *totals = json_object_get(reply, "totals");
	const char *period = "", *status = "", *version = "";
	struct err err = {0};
	int code;

	if (!json_get_str(reply, "period", &period, &err) || !json_get_str(reply, "status", &status, &err) ||
	    !json_get_str(reply, "version", &version, &err))
		return cli_fail(&err);
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print(c, rows, reply, "tenant,currency,now,then,difference,unpriced_lines");
	printf("%s (%s) with prices %s:\n", period, status, version);
	code = cli_print(c, rows, reply, "");
	for (size_t i = 0; i < json_array_size(totals); i++) {
		const json_t *total = json_array_get(totals, i);

		printf("all in %s: %s now, %s then, difference %s\n",
		       json_string_value(json_object_get(total, "currency")),
		       json_string_value(json_object_get(total, "now")),
		       json_string_value(json_object_get(total, "then")),
		       json_string_value(json_object_get(total, "difference")));
	}
	return code;
}

/* --month; the default is the open month. */
static bool
add_month(struct cli *c, struct buf *path, struct err *err)
{
	const char *month = cli_value(c, "month");
	owned(json) json_t *periods = NULL;
	const json_t *found = NULL;

	if (month == NULL || strcmp(month, "previous") != 0) {
		cli_query(path, "period", month);
		return true;
	}
	if (!cli_get_json(c, "/v1/periods", &periods, err) ||
	    !range_month(periods, c->server_wall_ns >= 0 ? c->server_wall_ns : time_wall_ns(), true, &found, err) ||
	    !json_get_str(found, "month", &month, err))
		return false;
	cli_query(path, "period", month);
	return true;
}

int
cmd_price_preview(struct cli *c)
{
	const char *file = cli_value(c, "file");
	in_place(buf) struct buf document = {0}, path = {0}, body = {0};
	owned(json) json_t *reply = NULL;
	struct err err = {0};

	buf_init(&document, PRICES_BYTES);
	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	buf_str(&path, "/v1/prices/preview");
	cli_query(&path, "name", strcmp(file, "-") == 0 ? "standard input" : file);
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_read_document(file, &document, &err) || !add_month(c, &path, &err) ||
	    !cli_call(c, "POST", buf_text(&path), "application/yaml", buf_text(&document), document.len, &body, &err) ||
	    !json_parse("reply", buf_text(&body), body.len, &reply, &err))
		return cli_fail(&err);
	return print_preview(c, reply);
}

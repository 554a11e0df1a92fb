/* aggregator/cli/commands/cmd_budget.c - tollgate budget status: budgets of a month, each with a bar. */
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/base/money.h"

#define BAR 20
#define COLUMNS "tenant,workspace,kind,unit,limit,consumed,forecast,ratio,threshold,forecast_breach,method"

/* A ratio such as "0.837" as a bar; ">" at its end marks a ratio above 1. */
static json_t *
bar_of(const char *ratio)
{
	char bar[BAR + 2] = "";
	struct err err = {0};
	int128 millionths;
	size_t n;

	if (!decimal_parse(ratio, 6, &millionths, &err))
		return json_string("");
	n = millionths >= 1000000 ? BAR : (size_t)millionths * BAR / 1000000;
	memset(bar, '#', n);
	memset(bar + n, '.', BAR - n);
	if (millionths > 1000000)
		bar[BAR] = '>';
	return json_string(bar);
}

static json_t *
table_row(const json_t *b)
{
	static const char *const fields[] = {"tenant", "workspace", "kind", "unit", "limit", "consumed", "forecast"};
	const char *ratio = json_string_value(json_object_get(b, "ratio"));
	json_t *row = json_object();

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		json_object_set(row, fields[i], json_object_get(b, fields[i]));
	json_object_set_new(row, "spent", bar_of(ratio != NULL ? ratio : ""));
	json_object_set(row, "ratio", json_object_get(b, "ratio"));
	json_object_set_new(row, "warning",
	                    json_string(json_integer_value(json_object_get(b, "threshold")) >= 100 ? "over budget"
	                                : json_is_true(json_object_get(b, "forecast_breach"))      ? "will be over"
	                                                                                           : ""));
	json_object_set(row, "forecast_by", json_object_get(b, "method"));
	return row;
}

int
cmd_budget_status(struct cli *c)
{
	owned(json) json_t *reply = NULL, *rows = json_array();
	in_place(buf) struct buf path = {0};
	const json_t *budgets;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/budgets");
	if (c->word_count > 0)
		cli_query(&path, "period", c->words[0]);
	if (cli_value(c, "tenant") != NULL)
		cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	budgets = json_object_get(reply, "budgets");
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print(c, budgets, reply, COLUMNS);
	for (size_t i = 0; i < json_array_size(budgets); i++)
		json_array_append_new(rows, table_row(json_array_get(budgets, i)));
	cli_print_table(rows);
	return CLI_OK;
}

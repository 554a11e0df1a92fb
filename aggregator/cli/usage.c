/* aggregator/cli/usage.c - usage: GPU-hours by group, all pages of them. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

#define VALUES(unit)                                                                                             \
	"allocated_" unit ",used_" unit ",idle_" unit ",unmeasured_" unit ",unallocated_" unit ",stranded_" unit \
	",down_" unit ",unknown_" unit ",over_" unit ",clock_adjust_" unit

/* Is the key in the list, which is divided by commas? */
static bool
has_key(const char *list, const char *key)
{
	size_t n = strlen(key);

	for (const char *at = list;; at++) {
		if (strncmp(at, key, n) == 0 && (at[n] == ',' || at[n] == '\0'))
			return true;
		at = strchr(at, ',');
		if (at == NULL)
			return false;
	}
}

/* The first answer, with the groups of all that follow it. The cursor has the range of time, so that "now" is the same on
 * every page. */
static bool
get_all(struct cli *c, const char *base, json_t **ret, struct err *err)
{
	owned(json) json_t *whole = NULL;
	const char *next;

	if (!cli_get_json(c, base, &whole, err))
		return false;
	while ((next = json_string_value(json_object_get(whole, "next"))) != NULL) {
		owned(json) json_t *page = NULL;
		in_place(buf) struct buf path = {0};

		buf_init(&path, 2 * CLI_PATH_BYTES);
		buf_str(&path, base);
		cli_query(&path, "cursor", next);
		if (!cli_get_json(c, buf_text(&path), &page, err))
			return false;
		json_array_extend(json_object_get(whole, "groups"), json_object_get(page, "groups"));
		json_object_set(whole, "next", json_object_get(page, "next"));
	}
	*ret = take(whole);
	return true;
}

/* "12.34 EUR, 5 USD" of an array of amounts, or of one amount. */
static json_t *
cost_text(const json_t *amounts)
{
	in_place(buf) struct buf text = {0};
	size_t n = json_is_array(amounts) ? json_array_size(amounts) : 1;

	buf_init(&text, CLI_PATH_BYTES);
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_is_array(amounts) ? json_array_get(amounts, i) : amounts;
		const char *amount = json_string_value(json_object_get(one, "amount"));
		const char *currency = json_string_value(json_object_get(one, "currency"));

		buf_printf(&text, "%s%s %s", i > 0 ? ", " : "", amount != NULL ? amount : "?",
		           currency != NULL ? currency : "?");
	}
	return json_string(buf_text(&text));
}

/* The groups with their cost as text, and behind them what no workload caused. */
static json_t *
rows_with_cost(const json_t *reply)
{
	json_t *rows = json_deep_copy(json_object_get(reply, "groups"));
	const json_t *rest = json_object_get(reply, "costs_without_workload");

	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *row = json_array_get(rows, i);

		json_object_set_new(row, "cost", cost_text(json_object_get(row, "costs")));
		json_object_set_new(row, "reason", json_string(""));
	}
	for (size_t i = 0; i < json_array_size(rest); i++) {
		json_t *row = json_copy(json_array_get(rest, i));

		json_object_set_new(row, "cost", cost_text(row));
		json_array_append_new(rows, row);
	}
	return rows;
}

int
cmd_usage(struct cli *c)
{
	static const struct {
		const char *option, *parameter;
	} filters[] = {{"tenant", "tenant"}, {"workspace", "workspace"}, {"cluster", "cluster"},
	               {"user", "user"},     {"gpu-model", "gpu_model"}, {"node", "node"}};
	const char *by = cli_value(c, "by") != NULL ? cli_value(c, "by") : "tenant,workspace";
	bool exact = cli_value(c, "exact") != NULL;
	in_place(buf) struct buf path = {0}, columns = {0};
	owned(json) json_t *reply = NULL, *rows = NULL;
	const bool cost = cli_value(c, "cost") != NULL;
	bool table = cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE;
	struct err err = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&columns, CLI_PATH_BYTES);
	buf_str(&path, "/v1/usage");
	code = cli_add_range(c, &path);
	if (code != CLI_OK)
		return code;
	cli_query(&path, "group_by", by);
	for (size_t i = 0; i < ARRAY_LEN(filters); i++)
		cli_query(&path, filters[i].parameter, cli_value(c, filters[i].option));
	cli_query(&path, "exact", exact ? "1" : NULL);
	cli_query(&path, "cost", cost ? "1" : NULL);
	if (!get_all(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	buf_printf(&columns, "%s,", by);
	if (has_key(by, "state"))
		buf_str(&columns, exact ? "unit_ns" : "gpu_hours");
	else
		buf_str(&columns,
		        exact ? VALUES("unit_ns") ",energy_mj,memory_byte_ms,sm_active_unit_ns,sm_measured_unit_ns,peak_memory_bytes"
		        : table ? VALUES("gpu_hours") ",energy_kwh,memory_gib_hours,sm_activity,peak_memory_gib"
		                : VALUES("gpu_hours") ",energy_kwh,memory_gib_hours,sm_active_gpu_hours,sm_measured_gpu_hours,sm_activity,peak_memory_gib");
	buf_str(&columns, cost ? ",cost,reason" : "");
	rows = cost ? rows_with_cost(reply) : json_incref(json_object_get(reply, "groups"));
	if (table)
		puts(exact ? "unit-nanoseconds: a GPU is 5040 units" : "GPU-hours");
	return cli_print(c, rows, reply, buf_text(&columns));
}

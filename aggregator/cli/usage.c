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
	owned(json) json_t *reply = NULL;
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
	if (!get_all(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	buf_printf(&columns, "%s,", by);
	if (has_key(by, "state"))
		buf_str(&columns, exact ? "unit_ns" : "gpu_hours");
	else
		buf_str(&columns, exact ? VALUES("unit_ns") ",energy_mj,memory_byte_ms"
		                        : VALUES("gpu_hours") ",energy_kwh,memory_gib_hours");
	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE)
		puts(exact ? "unit-nanoseconds: a GPU is 5040 units" : "GPU-hours");
	return cli_print(c, json_object_get(reply, "groups"), reply, buf_text(&columns));
}

/* aggregator/cli/commands/cmd_usage.c - tollgate usage: GPU-hours and cost by group, all pages. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/base/money.h"
#include "common/base/text.h"

#define VALUES(unit)                                                                                             \
	"allocated_" unit ",used_" unit ",idle_" unit ",unmeasured_" unit ",unallocated_" unit ",stranded_" unit \
	",down_" unit ",unknown_" unit ",over_" unit ",clock_adjust_" unit
#define EXACT_VALUES \
	VALUES("unit_ns") ",energy_mj,memory_byte_ms,sm_active_unit_ns,sm_measured_unit_ns,peak_memory_bytes"
#define EFFICIENCY ",energy_kwh,memory_gib_hours,sm_active_gpu_hours,sm_measured_gpu_hours,sm_activity,peak_memory_gib"
#define PAGE_MOST "100000" /* groups of one answer */

/* Decimals of hours in a table. */
#define TABLE_PLACES 4
#define TABLE_ROUND 100000
/* Decimals of costs in a table, at most. */
#define COST_PLACES 4

/* Columns of costs that no workload caused. */
static const char *const rest_keys[] = {"tenant", "workspace", "cluster", "gpu_model"};

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

/* ---- columns ---- */

/* Columns of a reply: keys, measurements, and with costs "cost,currency,reason". */
struct columns {
	struct buf all;    /* of a CSV, whether it has rows or not; of a table of usage */
	struct buf groups; /* of a table of costs: what has room on a line */
	struct buf rest;   /* of its second one, what no workload caused */
};

static void
columns_fini(struct columns *c)
{
	buf_fini(&c->all);
	buf_fini(&c->groups);
	buf_fini(&c->rest);
}

static void
add_column(struct buf *list, const char *name, size_t n)
{
	buf_str(list, list->len > 0 && n > 0 ? "," : "");
	buf_add(list, name, n);
}

static void
columns_make(struct columns *c, const char *by, bool exact, bool cost)
{
	const char *values = cli_in_list(by, "state") ? (exact ? "unit_ns" : "gpu_hours")
	                     : exact                  ? EXACT_VALUES
	                                              : VALUES("gpu_hours") EFFICIENCY;

	buf_init(&c->all, CLI_PATH_BYTES);
	buf_init(&c->groups, CLI_PATH_BYTES);
	buf_init(&c->rest, CLI_PATH_BYTES);
	add_column(&c->all, by, strlen(by));
	add_column(&c->all, values, strlen(values));
	buf_str(&c->all, cost ? ",cost,currency,reason" : "");
	add_column(&c->groups, by, strlen(by));
	buf_printf(&c->groups, "%s%s,cost,currency", c->groups.len > 0 ? "," : "",
	           cli_in_list(by, "state") ? values : "allocated_gpu_hours,used_gpu_hours");
	for (const char *at = by; *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
		for (size_t i = 0; i < ARRAY_LEN(rest_keys); i++)
			if (strncmp(at, rest_keys[i], strcspn(at, ",")) == 0 &&
			    strlen(rest_keys[i]) == strcspn(at, ","))
				add_column(&c->rest, rest_keys[i], strlen(rest_keys[i]));
	add_column(&c->rest, "reason,cost,currency", strlen("reason,cost,currency"));
}

/* A copy of the row with only these columns, in their order; "" where the row lacks one. */
static json_t *
pick(const json_t *row, const char *columns)
{
	json_t *out = json_object();

	for (const char *at = columns; *at != '\0';) {
		size_t n = strcspn(at, ",");
		owned(mem) char *name = mem_strndup(at, n);
		json_t *value = json_object_get(row, name);

		json_object_set_new(out, name, value != NULL ? json_incref(value) : json_string(""));
		at += n + (at[n] == ',');
	}
	return out;
}

/* ---- costs ---- */

static void
set_cost(json_t *row, const json_t *cost)
{
	json_object_set(row, "cost", json_object_get(cost, "amount"));
	json_object_set(row, "currency", json_object_get(cost, "currency"));
}

/* A row for each group and currency; only the first row of a group has the hours. */
static json_t *
group_rows(const json_t *reply, const char *by, const char *columns)
{
	const json_t *groups = json_object_get(reply, "groups");
	json_t *rows = json_array();

	for (size_t i = 0; i < json_array_size(groups); i++) {
		const json_t *costs = json_object_get(json_array_get(groups, i), "costs");

		for (size_t k = 0; k == 0 || k < json_array_size(costs); k++) {
			owned(json) json_t *keys = pick(json_array_get(groups, i), by);
			json_t *row = pick(k == 0 ? json_array_get(groups, i) : keys, columns);

			if (json_array_size(costs) > 0)
				set_cost(row, json_array_get(costs, k));
			json_array_append_new(rows, row);
		}
	}
	return rows;
}

static int
decimals_of(const char *amount)
{
	const char *point = strchr(amount, '.');

	return point != NULL ? (int)strlen(point + 1) : 0;
}

static json_t *
sum_of(const char *a, const char *b)
{
	char text[DECIMAL_TEXT_SIZE];
	const int least = decimals_of(a) < decimals_of(b) ? decimals_of(a) : decimals_of(b);
	int128 x, y;

	if (!decimal_parse(a, COST_SCALE, &x, NULL) || !decimal_parse(b, COST_SCALE, &y, NULL))
		return json_string("?");
	return json_string(decimal_format(x + y, COST_SCALE, least, text));
}

/* Adds the costs that no workload caused to the rows, summed by those of the columns that they have. */
static void
add_rest(const json_t *reply, const char *columns, json_t *rows)
{
	const json_t *rest = json_object_get(reply, "costs_without_workload");
	owned(json) json_t *known = json_object(); /* the columns of a row as text -> the row */

	for (size_t i = 0; i < json_array_size(rest); i++) {
		json_t *row = pick(json_array_get(rest, i), columns), *value, *same;
		in_place(buf) struct buf of = {0};
		const char *key;

		buf_init(&of, CLI_PATH_BYTES);
		json_object_set(row, "currency", json_object_get(json_array_get(rest, i), "currency"));
		json_object_foreach(row, key, value)
		{
			buf_printf(&of, "%s\n", json_string_value(value));
		}
		json_object_set(row, "cost", json_object_get(json_array_get(rest, i), "amount"));
		same = json_object_get(known, buf_text(&of));
		if (same != NULL)
			json_object_set_new(same, "cost",
			                    sum_of(json_string_value(json_object_get(same, "cost")),
			                           json_string_value(json_object_get(row, "cost"))));
		else
			json_object_set(known, buf_text(&of), row);
		if (same == NULL)
			json_array_append(rows, row);
		json_decref(row);
	}
}

/* ---- tables ---- */

/* Shortens nine decimals for tables. Returns whether the row has a number above 0. */
static bool
shorten_hours(json_t *row)
{
	const char *key;
	json_t *value;
	bool any = false;

	json_object_foreach(row, key, value)
	{
		char text[DECIMAL_TEXT_SIZE];
		int128 hours;

		if (!json_is_string(value) || (!text_ends(key, "_hours") && !text_ends(key, "_kwh")) ||
		    !decimal_parse(json_string_value(value), QUANTITY_SCALE, &hours, NULL))
			continue;
		any = any || hours > 0;
		decimal_format(div_round_half_even(hours, TABLE_ROUND), TABLE_PLACES, TABLE_PLACES, text);
		json_object_set_new(row, key, json_string(text));
	}
	return any;
}

/* Exact costs are for machines: of a currency all costs of a table have as many decimals as the longest of them, COST_PLACES at most. */
static void
align_costs(json_t *rows)
{
	owned(json) json_t *places = json_object(); /* currency -> decimals */

	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < json_array_size(rows); i++) {
			json_t *row = json_array_get(rows, i);
			const char *cost = json_string_value(json_object_get(row, "cost"));
			const char *currency = json_string_value(json_object_get(row, "currency"));
			char text[DECIMAL_TEXT_SIZE];
			int128 amount;

			if (cost == NULL || currency == NULL || !decimal_parse(cost, COST_SCALE, &amount, NULL))
				continue;
			const int known = (int)json_integer_value(json_object_get(places, currency));
			const int own = decimals_of(cost) < COST_PLACES ? decimals_of(cost) : COST_PLACES;

			if (pass == 0) {
				json_object_set_new(places, currency, json_integer(own > known ? own : known));
				continue;
			}
			decimal_format(div_round_half_even(amount, pow10_i128(COST_SCALE - known)), known, known, text);
			json_object_set_new(row, "cost", json_string(text));
		}
}

/* A table leaves exact integers out, as what stands behind its hours; here they are what was asked for. */
static json_t *
without_unit(const json_t *row)
{
	json_t *out = json_object(), *value;
	const char *key;

	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		size_t n = strlen(key) - (text_ends(key, "_unit_ns") ? strlen("_unit_ns") : 0);
		owned(mem) char *name = mem_strndup(key, n);

		json_object_set(out, name, value);
	}
	return out;
}

static void
print_table(json_t *rows, bool exact)
{
	owned(json) json_t *shown = json_array();

	for (size_t i = 0; i < json_array_size(rows); i++) {
		shorten_hours(json_array_get(rows, i));
		json_array_append_new(shown, without_unit(json_array_get(rows, i)));
	}
	puts(exact ? "unit-nanoseconds: a GPU is 5040 units" : "GPU-hours");
	cli_print_table(shown);
}

static void
print_costs(const json_t *reply, const char *by, const struct columns *columns)
{
	owned(json) json_t *rows = group_rows(reply, by, buf_text(&columns->groups)), *groups = json_array(),
			   *rest = json_array();
	const json_t *totals = json_object_get(reply, "costs_total");

	/* Leaves out groups that nobody held and that cost nothing: a table of usage without costs shows them. */
	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *row = json_array_get(rows, i);

		if (shorten_hours(row) || json_string_length(json_object_get(row, "cost")) > 0)
			json_array_append(groups, row);
	}
	align_costs(groups);
	if (json_array_size(groups) > 0) {
		puts("GPU-hours and what they cost");
		cli_print_table_with(groups, "cost");
	}
	add_rest(reply, buf_text(&columns->rest), rest);
	align_costs(rest);
	if (json_array_size(rest) > 0) {
		printf("%sCosts that no workload caused\n", json_array_size(groups) > 0 ? "\n" : "");
		cli_print_table(rest);
	}
	for (size_t i = 0; i < json_array_size(totals); i++) {
		const json_t *total = json_array_get(totals, i);

		printf("%sTotal %s %s\n", i == 0 ? "\n" : "", json_string_value(json_object_get(total, "amount")),
		       json_string_value(json_object_get(total, "currency")));
	}
}

int
cmd_usage(struct cli *c)
{
	static const struct {
		const char *option, *parameter;
		bool of_usage; /* not of costs */
	} filters[] = {{"tenant", "tenant", false}, {"workspace", "workspace", false}, {"cluster", "cluster", true},
	               {"user", "user", true},      {"gpu-model", "gpu_model", true},  {"node", "node", true}};
	const char *by = cli_value(c, "by") != NULL ? cli_value(c, "by") : "tenant,workspace";
	const bool exact = cli_value(c, "exact") != NULL, cost = cli_value(c, "cost") != NULL;
	const bool table = cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE;
	in_place(buf) struct buf path = {0};
	in_place(columns) struct columns columns = {0};
	owned(json) json_t *reply = NULL, *rows = NULL;
	struct err err = {0};
	int code;

	columns_make(&columns, by, exact, cost);
	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/usage");
	code = cli_add_range(c, &path);
	if (code != CLI_OK)
		return code;
	cli_query_set(&path, "group_by", by);
	for (size_t i = 0; i < ARRAY_LEN(filters); i++)
		if (cost && filters[i].of_usage && cli_value(c, filters[i].option) != NULL) {
			(void)err_set(
				&err, ERR_INVALID,
				"--%s: costs are of tenants and workspaces as a whole; --cost --by %s has them of each",
				filters[i].option, filters[i].parameter);
			return cli_misuse(&err);
		}
	for (size_t i = 0; i < ARRAY_LEN(filters); i++)
		cli_query(&path, filters[i].parameter, cli_value(c, filters[i].option));
	cli_query(&path, "exact", exact ? "1" : NULL);
	/* A page of costs is computed from all of the range: as few as there can be. */
	cli_query(&path, "cost", cost ? "1" : NULL);
	cli_query(&path, "limit", cost ? PAGE_MOST : NULL);
	if (!get_all(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	rows = group_rows(reply, by, buf_text(&columns.all));
	if (cost)
		add_rest(reply, buf_text(&columns.all), rows);
	if (!table)
		return cli_print(c, rows, reply, buf_text(&columns.all));
	if (json_array_size(rows) == 0)
		printf("No usage from %s to %s.\n", json_string_value(json_object_get(reply, "from")),
		       json_string_value(json_object_get(reply, "to")));
	else if (cost && !exact)
		print_costs(reply, by, &columns);
	else
		print_table(rows, exact);
	return CLI_OK;
}

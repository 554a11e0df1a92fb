/* aggregator/cli/commands/cmd_quota_status.c - tollgate quota status and quota watch: limits and use of GPUs by workspace. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"
#include "aggregator/cli/commands/quota_bar.h"
#include "common/base/money.h"
#include "common/base/text.h"
#include "common/base/units.h"

#define COLUMNS                                                                                                                          \
	"cluster,workspace,gpu_model,pool,limit_units,reserved_units,in_use_units,held_units,borrowed_units,on_demand_units,lent_units," \
	"idle_units,borrow_units,lend_units,queued_units,would_deny"

/* Units as GPUs with at most two decimals; absent or null is no limit. */
static json_t *
gpus(const json_t *row, const char *member)
{
	const json_t *v = json_object_get(row, member);
	char text[DECIMAL_TEXT_SIZE];
	int128 hundredths;

	if (!json_is_integer(v))
		return json_string("none");
	hundredths = div_round_half_even((int128)json_integer_value(v) * 100, UNITS_PER_GPU);
	return json_string(decimal_format(hundredths, 2, 0, text));
}

static int64_t
units(const json_t *row, const char *member)
{
	const json_t *v = json_object_get(row, member);

	return json_is_integer(v) ? json_integer_value(v) : -1;
}

static json_t *
bar_of(const json_t *row, bool colours)
{
	const struct quota_bar b = {.limit = units(row, "limit_units"),
	                            .reserved = units(row, "reserved_units"),
	                            .in_use = units(row, "in_use_units"),
	                            .borrowed = units(row, "borrowed_units"),
	                            .lent = units(row, "lent_units"),
	                            .on_demand = units(row, "on_demand_units")};
	in_place(buf) struct buf text = {0};

	buf_init(&text, CLI_PATH_BYTES);
	quota_bar_write(&b, colours, &text);
	return json_string(buf_text(&text));
}

/* One line for each workspace, model and pool. */
static json_t *
workspaces_for_people(const json_t *rows, bool colours)
{
	static const char *const amounts[][2] = {{"in_use", "in_use_units"},       {"limit", "limit_units"},
	                                         {"reserved", "reserved_units"},   {"borrowed", "borrowed_units"},
	                                         {"on_demand", "on_demand_units"}, {"lent", "lent_units"},
	                                         {"queued", "queued_units"}};
	json_t *table = json_array();

	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *r = json_array_get(rows, i);
		json_t *row = json_object();

		json_object_set(row, "workspace", json_object_get(r, "workspace"));
		json_object_set(row, "model", json_object_get(r, "gpu_model"));
		json_object_set(row, "pool", json_object_get(r, "pool"));
		json_object_set_new(row, "use", bar_of(r, colours));
		for (size_t k = 0; k < ARRAY_LEN(amounts); k++)
			json_object_set_new(row, amounts[k][0], gpus(r, amounts[k][1]));
		json_object_set(row, "would_deny", json_object_get(r, "would_deny"));
		json_array_append_new(table, row);
	}
	return table;
}

/* Lenders and borrowers. */
static json_t *
pools_for_people(const json_t *rows)
{
	static const char *const amounts[][2] = {{"declared", "declared_units"}, {"live", "live_units"},
	                                         {"in_use", "in_use_units"},     {"fenced", "fenced_units"},
	                                         {"free", "free_units"},         {"reserved", "reserved_units"},
	                                         {"excess", "excess_units"}};
	json_t *table = json_array();

	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *r = json_array_get(rows, i), *tenant = json_object_get(r, "tenant");
		json_t *row = json_object();

		json_object_set(row, "cluster", json_object_get(r, "cluster"));
		json_object_set_new(row, "nodes_of",
		                    json_string(json_is_string(tenant) ? json_string_value(tenant) : "all"));
		json_object_set(row, "model", json_object_get(r, "gpu_model"));
		for (size_t k = 0; k < ARRAY_LEN(amounts); k++)
			json_object_set_new(row, amounts[k][0], gpus(r, amounts[k][1]));
		json_array_append_new(table, row);
	}
	return table;
}

/* Filter: --workspace. */
static json_t *
chosen(const struct cli *c, const json_t *rows)
{
	const char *only = cli_value(c, "workspace");
	json_t *some = json_array();

	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *r = json_array_get(rows, i);
		const char *path = json_string_value(json_object_get(r, "workspace"));
		const char *name = path != NULL ? strchr(path, '/') : NULL;

		if (only == NULL || (path != NULL && strcmp(path, only) == 0) ||
		    (name != NULL && strcmp(name + 1, only) == 0))
			json_array_append(some, r);
	}
	return some;
}

static int
show(struct cli *c, bool again, struct err *err)
{
	owned(json) json_t *reply = NULL, *rows = NULL, *table = NULL, *pools = NULL, *unleased = NULL;
	in_place(buf) struct buf path = {0};
	const char *at;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/quota");
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_get_json(c, buf_text(&path), &reply, err))
		return cli_fail(err);
	rows = chosen(c, json_object_get(reply, "workspaces"));
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print(c, rows, reply, COLUMNS);
	at = json_string_value(json_object_get(reply, "at"));
	if (again && isatty(STDOUT_FILENO))
		printf("\033[H\033[J");
	printf("GPUs%s%s\n", at != NULL ? " at " : "", at != NULL ? at : "");
	table = workspaces_for_people(rows, cli_colours());
	cli_print_table(table);
	puts(QUOTA_BAR_LEGEND "\n");
	pools = pools_for_people(json_object_get(reply, "pools"));
	cli_print_table(pools);
	unleased = chosen(c, json_object_get(reply, "held_without_lease"));
	if (json_array_size(unleased) > 0) {
		puts("\nHeld without a lease; what is free above does not know of it:");
		cli_print_table(unleased);
	}
	return CLI_OK;
}

int
cmd_quota_status(struct cli *c)
{
	struct err err = {0};

	return show(c, false, &err);
}

int
cmd_quota_watch(struct cli *c)
{
	const char *interval = cli_value(c, "interval"), *count = cli_value(c, "count");
	int64_t interval_ns, most = -1;
	struct err err = {0};

	if (!duration_parse(interval != NULL ? interval : "2s", &interval_ns, &err)) {
		(void)err_prefix(&err, "--interval");
		return cli_misuse(&err);
	}
	if (count != NULL && (!text_to_i64(count, &most) || most < 1)) {
		(void)err_set(&err, ERR_INVALID, "--count: \"%.40s\" is not a number from 1", count);
		return cli_misuse(&err);
	}
	for (int64_t shown = 0; most < 0 || shown < most; shown++) {
		struct timespec pause = {.tv_sec = (time_t)(interval_ns / NS_PER_S),
		                         .tv_nsec = (long)(interval_ns % NS_PER_S)};
		int code;

		if (shown > 0)
			nanosleep(&pause, NULL);
		code = show(c, true, &err);
		if (code != CLI_OK)
			return code;
		fflush(stdout);
	}
	return CLI_OK;
}

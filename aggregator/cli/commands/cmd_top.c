/* aggregator/cli/commands/cmd_top.c - tollgate top: this month's GPU-hours and cost by workspace, refreshed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"
#include "common/base/money.h"
#include "common/base/time.h"

#define TOP_ROWS 2000

struct top_row {
	const char *tenant, *workspace, *currency; /* borrowed from the reply */
	int128 allocated, used, idle, unmeasured;  /* scale QUANTITY_SCALE */
	int128 cost;                               /* scale COST_SCALE */
	bool provisional;                          /* an hour of it is still open */
};

/* A line that is no GPU time, such as a credit or gigabytes stored, has an empty text where its hours would be. */
static bool
add_decimal(const json_t *line, const char *field, int scale, int128 *sum, struct err *err)
{
	const char *text = NULL;
	int128 v = 0;

	if (!json_get_str(line, field, &text, err))
		return false;
	if (text[0] == '\0')
		return true;
	if (!decimal_parse(text, scale, &v, err))
		return err_prefix(err, "%s", field);
	*sum += v;
	return true;
}

static struct top_row *
row_of(struct top_row *rows, size_t *n, const char *tenant, const char *workspace, const char *currency)
{
	for (size_t i = 0; i < *n; i++)
		if (strcmp(rows[i].tenant, tenant) == 0 && strcmp(rows[i].workspace, workspace) == 0 &&
		    strcmp(rows[i].currency, currency) == 0)
			return &rows[i];
	if (*n == TOP_ROWS)
		return NULL;
	rows[*n] = (struct top_row){.tenant = tenant, .workspace = workspace, .currency = currency};
	return &rows[(*n)++];
}

static bool
add_line(const json_t *line, struct top_row *rows, size_t *n, struct err *err)
{
	const char *tenant = NULL, *workspace = NULL, *currency = NULL;
	struct top_row *row;

	if (!json_get_str(line, "tenant", &tenant, err) || !json_get_str(line, "workspace", &workspace, err) ||
	    !json_get_str(line, "currency", &currency, err))
		return false;
	row = row_of(rows, n, tenant, workspace, currency);
	if (row != NULL)
		row->provisional = row->provisional || json_is_true(json_object_get(line, "provisional"));
	return row == NULL || (add_decimal(line, "allocated_gpu_hours", QUANTITY_SCALE, &row->allocated, err) &&
	                       add_decimal(line, "used_gpu_hours", QUANTITY_SCALE, &row->used, err) &&
	                       add_decimal(line, "idle_gpu_hours", QUANTITY_SCALE, &row->idle, err) &&
	                       add_decimal(line, "unmeasured_gpu_hours", QUANTITY_SCALE, &row->unmeasured, err) &&
	                       add_decimal(line, "billed_cost", COST_SCALE, &row->cost, err));
}

/* Four decimals, truncated. */
static const char *
hours(int128 v, char out[DECIMAL_TEXT_SIZE])
{
	return decimal_format(v / pow10_i128(QUANTITY_SCALE - 4), 4, 4, out);
}

static void
print_rows(const char *period, const struct top_row *rows, size_t n)
{
	char a[DECIMAL_TEXT_SIZE], b[DECIMAL_TEXT_SIZE], d[DECIMAL_TEXT_SIZE], e[DECIMAL_TEXT_SIZE],
		f[DECIMAL_TEXT_SIZE];
	char now[TIME_TEXT_SIZE];

	printf("%s  period %s, GPU-hours so far\n", time_format(time_wall_ns() / NS_PER_S * NS_PER_S, now),
	       period[0] != '\0' ? period : "not begun");
	printf("%-12s %-12s %9s %9s %9s %9s %14s\n", "TENANT", "WORKSPACE", "ALLOCATED", "USED", "IDLE", "UNMEAS.",
	       "COST");
	for (size_t i = 0; i < n; i++)
		printf("%-12s %-12s %9s %9s %9s %9s %c%9s %s\n", rows[i].tenant, rows[i].workspace,
		       hours(rows[i].allocated, a), hours(rows[i].used, b), hours(rows[i].idle, d),
		       hours(rows[i].unmeasured, e), rows[i].provisional ? '*' : ' ',
		       decimal_format(rows[i].cost, COST_SCALE, 2, f), rows[i].currency);
	for (size_t i = 0; i < n; i++)
		if (rows[i].provisional) {
			printf("* provisional: an hour is still open, its cost may change until it is sealed\n");
			break;
		}
	if (n == 0)
		printf("(no usage yet)\n");
	fflush(stdout);
}

/* Machine formats: full precision, one document per refresh. */
static void
print_data(const struct cli *c, const char *period, const struct top_row *rows, size_t n)
{
	owned(json) json_t *list = json_array();
	char text[DECIMAL_TEXT_SIZE];

	for (size_t i = 0; i < n; i++) {
		const struct top_row *r = &rows[i];
		const struct {
			const char *name;
			int128 value;
			int scale, shown;
		} numbers[] = {{"allocated_gpu_hours", r->allocated, QUANTITY_SCALE, QUANTITY_SCALE},
		               {"used_gpu_hours", r->used, QUANTITY_SCALE, QUANTITY_SCALE},
		               {"idle_gpu_hours", r->idle, QUANTITY_SCALE, QUANTITY_SCALE},
		               {"unmeasured_gpu_hours", r->unmeasured, QUANTITY_SCALE, QUANTITY_SCALE},
		               {"billed_cost", r->cost, COST_SCALE, 2}};
		json_t *row = json_object();

		json_object_set_new(row, "period", json_string(period));
		json_object_set_new(row, "tenant", json_string(r->tenant));
		json_object_set_new(row, "workspace", json_string(r->workspace));
		for (size_t k = 0; k < ARRAY_LEN(numbers); k++)
			json_object_set_new(row, numbers[k].name,
			                    json_string(decimal_format(numbers[k].value, numbers[k].scale,
			                                               numbers[k].shown, text)));
		json_object_set_new(row, "currency", json_string(r->currency));
		json_object_set_new(row, "provisional", json_boolean(r->provisional));
		json_array_append_new(list, row);
	}
	(void)cli_print(
		c, list, list,
		"period,tenant,workspace,allocated_gpu_hours,used_gpu_hours,idle_gpu_hours,unmeasured_gpu_hours,"
		"billed_cost,currency,provisional");
	fflush(stdout);
}

static bool
show(struct cli *c, bool clear, struct err *err)
{
	owned(json) json_t *reply = NULL;
	struct top_row *rows __attribute__((cleanup(mem_freep))) = mem_array(TOP_ROWS, sizeof(*rows));
	const char *period = "";
	const json_t *lines;
	size_t n = 0;

	/* a month of which the ledger has nothing yet is an empty table */
	if (!cli_get_json(c, "/v1/reports/current.json", &reply, err) && err->kind != ERR_MISSING)
		return false;
	if (reply != NULL && !json_get_str(reply, "period", &period, err))
		return false;
	lines = json_object_get(reply, "lines");
	for (size_t i = 0; i < json_array_size(lines); i++)
		if (!add_line(json_array_get(lines, i), rows, &n, err))
			return false;
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE) {
		print_data(c, period, rows, n);
		return true;
	}
	if (clear && isatty(STDOUT_FILENO))
		printf("\033[H\033[J");
	print_rows(period, rows, n);
	return true;
}

static bool
options(const struct cli *c, int64_t *ret_interval_ns, long *ret_count, struct err *err)
{
	const char *interval = cli_value(c, "interval"), *count = cli_value(c, "count");
	char *end = NULL;

	if (!duration_parse(interval != NULL ? interval : "5s", ret_interval_ns, err))
		return err_prefix(err, "--interval");

	if (count != NULL) {
		*ret_count = strtol(count, &end, 10);
		if (*end != '\0' || *ret_count < 1)
			return err_set(err, ERR_INVALID, "--count: \"%s\" is not a number from 1", count);
	}
	return true;
}

int
cmd_top(struct cli *c)
{
	int64_t interval_ns;
	long count = -1;
	struct err err = {0};

	if (!options(c, &interval_ns, &count, &err)) {
		fprintf(stderr, "tollgate: %s\n", err.text);
		return CLI_USAGE;
	}
	for (long shown = 0; count < 0 || shown < count; shown++) {
		struct timespec pause = {.tv_sec = (time_t)(interval_ns / NS_PER_S),
		                         .tv_nsec = (long)(interval_ns % NS_PER_S)};

		if (shown > 0)
			nanosleep(&pause, NULL);
		if (!show(c, count != 1, &err))
			return cli_fail(&err);
	}
	return CLI_OK;
}

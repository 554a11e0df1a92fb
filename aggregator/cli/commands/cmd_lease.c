/* aggregator/cli/commands/cmd_lease.c - tollgate lease: list leases, and tell of one what its scheduler knows. */
#include <string.h>

#include "aggregator/cli/cli.h"

#define COLUMNS \
	"request_id,workspace,status,asked,admitted_at,confirmed_at,seen_at,released_at,ended_at,ended_why,reclaim,workloads"

int
cmd_lease_list(struct cli *c)
{
	static const char *const filters[] = {"tenant", "workspace", "status"};
	static const char *const shown[] = {"request_id", "workspace", "status", "seen_at", "reclaim"};
	owned(json) json_t *rows = json_array(), *table = NULL;
	in_place(buf) struct buf path = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/leases");
	for (size_t i = 0; i < ARRAY_LEN(filters); i++)
		cli_query(&path, filters[i], cli_value(c, filters[i]));
	code = cli_get_pages(c, buf_text(&path), "leases", 50, rows);
	if (code != CLI_OK || cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return code != CLI_OK ? code : cli_print(c, rows, rows, COLUMNS);
	table = cli_requests_table(rows, shown, ARRAY_LEN(shown));
	return cli_print(c, table, table, COLUMNS);
}

/* The decision after a change of its lease. Tables and CSV have one row: its names, and how the lease stands. */
static int
show(const struct cli *c, const json_t *decision)
{
	static const char *const of_decision[] = {"request_id", "workspace", "status", "ended_why"};
	static const char *const of_lease[] = {"confirmed_at", "seen_at", "released_at", "reclaim"};
	owned(json) json_t *rows = json_array(), *row = json_object();
	const json_t *lease = json_object_get(decision, "lease");

	for (size_t i = 0; i < ARRAY_LEN(of_decision); i++)
		json_object_set(row, of_decision[i], json_object_get(decision, of_decision[i]));
	for (size_t i = 0; i < ARRAY_LEN(of_lease); i++)
		json_object_set(row, of_lease[i], json_object_get(lease, of_lease[i]));
	json_array_append(rows, row);
	return cli_print(c, rows, decision, COLUMNS);
}

/* [TENANT/]ID below a path. False: it is no id. */
static bool
add_id(const struct cli *c, struct buf *path, struct err *err)
{
	buf_str(path, c->words[0]);
	return c->words[0][strcspn(c->words[0], "?#% ")] == '\0' ||
	       err_set(err, ERR_INVALID, "\"%.64s\" is not the id of a lease; tollgate lease list shows them",
	               c->words[0]);
}

static int
post(struct cli *c, const char *word, const json_t *request)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/leases/");
	if (!add_id(c, &path, &err))
		return cli_misuse(&err);
	buf_printf(&path, "/%s", word);
	if (!cli_post_json(c, buf_text(&path), request, &reply, &err))
		return cli_fail(&err);
	return show(c, reply);
}

int
cmd_lease_confirm(struct cli *c)
{
	owned(json) json_t *request = json_object();

	return post(c, "confirm", request);
}

int
cmd_lease_heartbeat(struct cli *c)
{
	owned(json) json_t *request = json_object();

	return post(c, "heartbeat", request);
}

int
cmd_lease_renew(struct cli *c)
{
	owned(json) json_t *request = json_object();

	return post(c, "renew", request);
}

int
cmd_lease_release(struct cli *c)
{
	owned(json) json_t *request = json_object();

	if (cli_value(c, "lost") != NULL)
		json_object_set_new(request, "lost", json_true());
	return post(c, "release", request);
}

int
cmd_lease_cancel(struct cli *c)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0}, body = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	buf_str(&path, "/v1/decisions/");
	if (!add_id(c, &path, &err))
		return cli_misuse(&err);
	if (!cli_call(c, "DELETE", buf_text(&path), NULL, NULL, 0, &body, &err) ||
	    !json_parse("the reply", buf_text(&body), body.len, &reply, &err))
		return cli_fail(&err);
	return show(c, reply);
}

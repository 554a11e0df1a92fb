/* aggregator/cli/commands/cmd_apply_get.c - apply, conservation, get. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

#define POLICY_BYTES (4u << 20)

bool
cli_read_document(const char *file, struct buf *out, struct err *err)
{
	char chunk[8192];
	size_t n;

	if (strcmp(file, "-") != 0)
		return buf_read_file(out, file, err);
	while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0)
		buf_add(out, chunk, n);
	return buf_ok(out, "standard input", err);
}

static int
print_applied(const struct cli *c, json_t *reply, bool dry_run)
{
	const char *diff = "", *effective = "", *quota = "";
	int64_t changes = 0;
	struct err err = {0};

	if (!json_get_i64(reply, "changes", &changes, &err) || !json_get_str(reply, "diff", &diff, &err) ||
	    !json_get_str(reply, "effective", &effective, &err))
		return cli_fail(&err);
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print_one(c, reply);
	fputs(diff, stdout);
	if (changes == 0)
		printf("no changes\n");
	else if (dry_run)
		printf("%" PRId64 " change%s, none applied (dry run); would be in effect from %s\n", changes,
		       changes == 1 ? "" : "s", effective);
	else
		printf("%" PRId64 " change%s applied, in effect from %s\n", changes, changes == 1 ? "" : "s",
		       effective);
	if (json_get_str(reply, "quota", &quota, NULL) && strcmp(quota, "pending") == 0)
		printf("Quota still decides by the policy before: its book has not taken this one yet. See `tollgate quota status`.\n");
	return CLI_OK;
}

int
cmd_apply(struct cli *c)
{
	const char *file = cli_value(c, "file");
	bool dry_run = cli_value(c, "dry-run") != NULL;
	in_place(buf) struct buf document = {0}, path = {0}, body = {0};
	owned(json) json_t *reply = NULL;
	struct err err = {0};
	int code;

	buf_init(&document, POLICY_BYTES);
	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	buf_str(&path, "/v1/policy");
	cli_query(&path, "name", strcmp(file, "-") == 0 ? "standard input" : file);
	cli_query(&path, "dry_run", dry_run ? "1" : NULL);
	if (!cli_read_document(file, &document, &err) ||
	    !cli_call(c, "PUT", buf_text(&path), "application/yaml", buf_text(&document), document.len, &body, &err) ||
	    !json_parse("reply", buf_text(&body), body.len, &reply, &err))
		return cli_fail(&err);
	code = print_applied(c, reply, dry_run);
	if (json_is_string(json_object_get(reply, "corrects_from")))
		fprintf(stderr,
		        "tollgate: %s is closed: what this changes of it, and of the closed months after it, becomes corrections in the next open month\n",
		        json_string_value(json_object_get(reply, "corrects_from")));
	if (code == CLI_OK && json_is_true(json_object_get(reply, "reattributing")) && cli_value(c, "no-wait") == NULL)
		return cli_await_policy(c);
	return code;
}

bool
cli_post_json(struct cli *c, const char *path, const json_t *request, json_t **ret, struct err *err)
{
	in_place(buf) struct buf body = {0}, reply = {0};

	buf_init(&body, CLI_PATH_BYTES);
	buf_init(&reply, CLI_REPLY_MAX);
	json_write(request, &body);
	return cli_call(c, "POST", path, "application/json", buf_text(&body), body.len, &reply, err) &&
	       json_parse("reply", buf_text(&reply), reply.len, ret, err);
}

int
cli_post(struct cli *c, const char *path, const json_t *request)
{
	owned(json) json_t *row = NULL;
	struct err err = {0};

	return cli_post_json(c, path, request, &row, &err) ? cli_print_one(c, row) : cli_fail(&err);
}

/* ---- months and ranges of time ---- */

bool
cli_month(const char *text, struct err *err)
{
	bool digits = strlen(text) == 7 && text[4] == '-' && strspn(text, "0123456789") == 4 &&
	              strspn(text + 5, "0123456789") == 2;

	return (digits && strcmp(text + 5, "01") >= 0 && strcmp(text + 5, "12") <= 0) ||
	       err_set(err, ERR_INVALID, "\"%.40s\" is not a month; write YYYY-MM", text);
}

int
cli_add_range(struct cli *c, struct buf *path)
{
	struct range_options o = {
		.since = cli_value(c, "since"),
		.from = cli_value(c, "from"),
		.to = cli_value(c, "to"),
		.this_month = cli_value(c, "this-month") != NULL,
		.last_month = cli_value(c, "last-month") != NULL,
		.preset = "24h",
	};
	owned(json) json_t *periods = NULL;
	int64_t now_ns = time_wall_ns();
	struct range r;
	struct err err = {0};

	if (!range_check(&o, &err))
		return cli_misuse(&err);
	if ((o.this_month || o.last_month) && !cli_get_json(c, "/v1/periods", &periods, &err))
		return cli_fail(&err);
	if (periods != NULL && c->server_wall_ns >= 0)
		now_ns = c->server_wall_ns;
	if (!range_resolve(&o, now_ns, periods, &r, &err))
		return cli_fail(&err);
	cli_query(path, "from", r.from);
	cli_query(path, "to", r.to);
	return CLI_OK;
}

/* ---- conservation and lists ---- */

#define STATE_COLUMNS                                                                                   \
	"allocated_gpu_hours,used_gpu_hours,idle_gpu_hours,unmeasured_gpu_hours,unallocated_gpu_hours," \
	"stranded_gpu_hours,down_gpu_hours,unknown_gpu_hours,over_gpu_hours,clock_adjust_gpu_hours,"

/* Prints the array of a reply; a caption goes above a table. */
static int
print_member(struct cli *c, const char *path, const char *member, const char *caption, const char *columns)
{
	owned(json) json_t *reply = NULL;
	struct err err = {0};

	if (!cli_get_json(c, path, &reply, &err))
		return cli_fail(&err);
	if (caption != NULL && cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE)
		puts(caption);
	return cli_print(c, member != NULL ? json_object_get(reply, member) : reply, reply, columns);
}

int
cmd_conservation(struct cli *c)
{
	in_place(buf) struct buf path = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/conservation");
	code = cli_add_range(c, &path);
	return code != CLI_OK ? code
	                      : print_member(c, buf_text(&path), "gpus", "GPU-hours",
	                                     "node,gpu,uuid,gpu_model,in_service_gpu_hours," STATE_COLUMNS
	                                     "sum_gpu_hours,difference_gpu_hours,in_service_unit_ns,sum_unit_ns,"
	                                     "clock_adjust_unit_ns,difference_unit_ns");
}

static int
get_policy(struct cli *c)
{
	owned(json) json_t *object = NULL;
	in_place(buf) struct buf body = {0}, path = {0};
	struct err err = {0};

	buf_init(&body, CLI_REPLY_MAX);
	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/policy");
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_call(c, "GET", buf_text(&path), NULL, NULL, 0, &body, &err))
		return cli_fail(&err);
	if (cli_output(c, OUTPUT_YAML) == OUTPUT_TABLE || cli_output(c, OUTPUT_YAML) == OUTPUT_YAML)
		return fwrite(buf_text(&body), 1, body.len, stdout) == body.len ? CLI_OK : CLI_FAILED;
	object = json_object();
	json_object_set_new(object, "document", json_stringn(buf_text(&body), body.len));
	return cli_print_one(c, object);
}

/* A table has the columns of what was measured also where nothing was: then they are empty, as what was promised is there. */
static int
get_promises(struct cli *c, const char *path, const char *columns)
{
	owned(json) json_t *reply = NULL;
	const json_t *rows;
	struct err err = {0};

	if (!cli_get_json(c, path, &reply, &err))
		return cli_fail(&err);
	rows = json_object_get(reply, "promises");
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE || json_array_size(rows) == 0)
		return cli_print(c, rows, reply, columns);
	cli_print_table_with(rows, columns);
	return CLI_OK;
}

int
cmd_get(struct cli *c)
{
	static const struct {
		const char *list, *columns;
	} lists[] = {
		{"tenants",
	         "name,display_name,cost_center,owner,data_boundary,workspaces,isolation,maximum,default_limit,members,builtin,since,until"},
		{"workspaces",
	         "tenant,name,description,rules,members,reserved,reserved_shared,limit,borrow,lend,weight,"
	         "enforce,builtin,since,until"},
		{"nodes",
	         "name,cluster,tenant,shared,declared,approval,isolation,state,gpus,capacity,covered_until,silent,first_seen,held_batches"},
		{"members", "tenant,workspace,user,role,since"},
		{"history", "kind,tenant,subject,value,from,until"},
		{"status", "node,cluster,tenant,age_seconds,silent,skew_seconds,skewed,gpus,healthy,held"},
		{"periods", "month,starts_at,ends_at,status"},
		{"sla",
	         "tenant,workspace,data_boundary,owed_wait_seconds,owed_requests,owed_late,longest_wait_seconds,owed_kept,delivered_percent,"
	         "measured_percent,measured_days,delivered_kept"},
	};
	const char *columns = "";
	in_place(buf) struct buf path = {0};

	buf_init(&path, CLI_PATH_BYTES);
	if (strcmp(c->words[0], "policy") == 0)
		return get_policy(c);
	if (strcmp(c->words[0], "decisions") == 0 || strcmp(c->words[0], "leases") == 0)
		return cli_get_decisions(c, c->words[0]);
	if (strcmp(c->words[0], "reclaims") == 0)
		return cli_get_reclaims(c);
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		if (strcmp(c->words[0], lists[i].list) == 0)
			columns = lists[i].columns;
	buf_printf(&path, "/v1/%s", c->words[0]);
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (strcmp(c->words[0], "sla") == 0)
		return get_promises(c, buf_text(&path), columns);
	return print_member(c, buf_text(&path), NULL, NULL, columns);
}

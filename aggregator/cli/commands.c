/* aggregator/cli/commands.c - apply, report, usage, conservation, get, token create. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"
#include "common/time.h"

#define PATH_BYTES (64u << 10)
#define POLICY_BYTES (4u << 20)

static bool
read_document(const char *file, struct buf *out, struct err *err)
{
	char chunk[8192];
	size_t n;

	if (strcmp(file, "-") != 0)
		return buf_read_file(out, file, err);
	while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0)
		buf_add(out, chunk, n);
	return buf_ok(out, "standard input", err);
}

int
cmd_apply(struct cli *c)
{
	const char *file = cli_value(c, "file"), *diff = "";
	bool dry_run = cli_value(c, "dry-run") != NULL;
	in_place(buf) struct buf document, path, body;
	owned(json) json_t *reply = NULL;
	int64_t changes = 0;
	const char *effective = "";
	struct err err = {0};

	buf_init(&document, POLICY_BYTES);
	buf_init(&path, PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	if (file == NULL) {
		fprintf(stderr, "tollgate: apply needs -f FILE\n");
		return CLI_USAGE;
	}
	buf_str(&path, "/v1/policy");
	cli_query(&path, "name", strcmp(file, "-") == 0 ? "standard input" : file);
	cli_query(&path, "dry_run", dry_run ? "1" : NULL);
	if (!read_document(file, &document, &err) ||
	    !cli_call(c, "PUT", buf_text(&path), "application/yaml", buf_text(&document), document.len, &body, &err) ||
	    !json_parse("reply", buf_text(&body), body.len, &reply, &err) ||
	    !json_get_i64(reply, "changes", &changes, &err) || !json_get_str(reply, "diff", &diff, &err) ||
	    !json_get_str(reply, "effective", &effective, &err))
		return cli_fail(&err);
	fputs(diff, stdout);
	if (changes == 0)
		printf("no changes\n");
	else if (dry_run)
		printf("%" PRId64 " changes, none applied (dry run); they would take effect at %s\n", changes,
		       effective);
	else
		printf("%" PRId64 " changes applied, in effect from %s\n", changes, effective);
	return CLI_OK;
}

int
cmd_report(struct cli *c)
{
	const char *format = cli_value(c, "format"), *output = cli_value(c, "output");
	in_place(buf) struct buf path, body;
	struct err err = {0};

	buf_init(&path, PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	if (format == NULL)
		format = "csv";
	if (strcmp(format, "csv") != 0 && strcmp(format, "json") != 0) {
		fprintf(stderr, "tollgate: --format: \"%s\" is not one of csv, json\n", format);
		return CLI_USAGE;
	}
	if (strspn(c->words[0], "0123456789-") != strlen(c->words[0]) && strcmp(c->words[0], "current") != 0) {
		fprintf(stderr, "tollgate: \"%s\" is not a month; write YYYY-MM\n", c->words[0]);
		return CLI_USAGE;
	}
	buf_printf(&path, "/v1/reports/%s.%s", c->words[0], format);
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_call(c, "GET", buf_text(&path), NULL, NULL, 0, &body, &err))
		return cli_fail(&err);
	if (output == NULL)
		return fwrite(buf_text(&body), 1, body.len, stdout) == body.len ? CLI_OK : CLI_FAILED;
	if (!file_write_atomic(output, buf_text(&body), body.len, 0644, &err))
		return cli_fail(&err);
	return CLI_OK;
}

/* --since 7d as from=... in the path; to is now. */
static bool
add_since(const struct cli *c, struct buf *path, const char *preset, struct err *err)
{
	const char *since = cli_value(c, "since");
	char when[TIME_TEXT_SIZE];
	int64_t age_ns;

	if (!duration_parse(since != NULL ? since : preset, &age_ns, err))
		return err_prefix(err, "--since");
	cli_query(path, "from", time_format(time_wall_ns() - age_ns, when));
	return true;
}

/* Prints the array of a reply; a caption goes above a table. */
static int
print_member(struct cli *c, const char *path, const char *member, const char *caption)
{
	owned(json) json_t *reply = NULL;
	enum cli_output output;
	struct err err = {0};

	if (!cli_output(c, &output, &err) || !cli_get_json(c, path, &reply, &err))
		return cli_fail(&err);
	if (caption != NULL && output == OUTPUT_TABLE)
		puts(caption);
	return cli_print(c, member != NULL ? json_object_get(reply, member) : reply, reply);
}

int
cmd_usage(struct cli *c)
{
	const char *by = cli_value(c, "by");
	in_place(buf) struct buf path;
	struct err err = {0};

	buf_init(&path, PATH_BYTES);
	buf_str(&path, "/v1/usage");
	if (!add_since(c, &path, "24h", &err))
		return cli_fail(&err);
	cli_query(&path, "group_by", by != NULL ? by : "tenant,workspace");
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	return print_member(c, buf_text(&path), "groups", "GPU-hours");
}

int
cmd_conservation(struct cli *c)
{
	in_place(buf) struct buf path;
	struct err err = {0};

	buf_init(&path, PATH_BYTES);
	buf_str(&path, "/v1/conservation");
	if (!add_since(c, &path, "24h", &err))
		return cli_fail(&err);
	return print_member(c, buf_text(&path), "gpus", "GPU-hours");
}

int
cmd_get(struct cli *c)
{
	static const char *const lists[] = {"tenants", "workspaces", "nodes", "periods"};
	in_place(buf) struct buf path, body;
	struct err err = {0};

	buf_init(&path, PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	if (strcmp(c->words[0], "policy") == 0) {
		if (!cli_call(c, "GET", "/v1/policy", NULL, NULL, 0, &body, &err))
			return cli_fail(&err);
		fwrite(buf_text(&body), 1, body.len, stdout);
		return CLI_OK;
	}
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		if (strcmp(c->words[0], lists[i]) == 0) {
			buf_printf(&path, "/v1/%s", lists[i]);
			cli_query(&path, "tenant", cli_value(c, "tenant"));
			return print_member(c, buf_text(&path), NULL, NULL);
		}
	fprintf(stderr, "tollgate: get: \"%s\" is not one of %s\n", c->words[0], c->command->words);
	return CLI_USAGE;
}

int
cmd_token_create(struct cli *c)
{
	static const char *const fields[] = {"role", "tenant", "node"};
	in_place(buf) struct buf body, reply;
	owned(json) json_t *request = json_object(), *doc = NULL;
	const char *token = NULL;
	struct err err = {0};

	buf_init(&body, PATH_BYTES);
	buf_init(&reply, PATH_BYTES);
	if (cli_value(c, "role") == NULL) {
		fprintf(stderr, "tollgate: token create needs --role ROLE\n");
		return CLI_USAGE;
	}
	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		if (cli_value(c, fields[i]) != NULL)
			json_object_set_new(request, fields[i], json_string(cli_value(c, fields[i])));
	json_write(request, &body);
	if (!cli_call(c, "POST", "/v1/tokens", "application/json", buf_text(&body), body.len, &reply, &err) ||
	    !json_parse("reply", buf_text(&reply), reply.len, &doc, &err) || !json_get_str(doc, "token", &token, &err))
		return cli_fail(&err);
	puts(token);
	return CLI_OK;
}

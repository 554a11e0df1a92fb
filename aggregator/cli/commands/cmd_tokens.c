/* aggregator/cli/commands/cmd_tokens.c - tollgate token and node join-token; lists in pages. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/base/text.h"

#define PAGE_ENTRIES 500 /* asked for at once */

/* ---- making ---- */

/* A duration or an instant. The aggregator adds it to its own clock. */
static bool
check_expires(const struct cli *c, struct err *err)
{
	const char *text = cli_value(c, "expires");
	int64_t ns;

	return text == NULL || duration_parse(text, &ns, NULL) || time_parse(text, &ns, NULL) ||
	       err_set(err, ERR_INVALID,
	               "--expires: \"%.60s\" is neither a duration like 30d nor a time like 2027-01-31T00:00:00Z",
	               text);
}

/* Posts the options that were given. Prints the token of the reply alone on a line, so that it can be redirected into a file. */
static int
post_token(struct cli *c, const char *path, const char *const *fields, size_t n, const char *member)
{
	owned(json) json_t *request = json_object(), *doc = NULL;
	const char *token = NULL;
	struct err err = {0};

	if (!check_expires(c, &err))
		return cli_misuse(&err);
	for (size_t i = 0; i < n; i++)
		if (cli_value(c, fields[i]) != NULL)
			json_object_set_new(request, fields[i], json_string(cli_value(c, fields[i])));
	if (!cli_post_json(c, path, request, &doc, &err) || !json_get_str(doc, member, &token, &err))
		return cli_fail(&err);
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print_one(c, doc);
	puts(token);
	return CLI_OK;
}

int
cmd_token_create(struct cli *c)
{
	static const char *const fields[] = {"role", "tenant", "node", "sources", "expires", "description"};

	return post_token(c, "/v1/tokens", fields, ARRAY_LEN(fields), "token");
}

int
cmd_node_join_token(struct cli *c)
{
	static const char *const fields[] = {"node", "expires", "description"};

	return post_token(c, "/v1/join-tokens", fields, ARRAY_LEN(fields), "join_token");
}

/* ---- lists that come in pages ---- */

static bool
number_option(const struct cli *c, const char *name, int64_t preset, int64_t *ret, struct err *err)
{
	const char *v = cli_value(c, name);

	*ret = preset;
	return v == NULL || (text_to_i64(v, ret) && *ret >= 0) ||
	       err_set(err, ERR_INVALID, "--%s: \"%s\" is not a number from 0", name, v);
}

bool
cli_get_page(struct cli *c, const char *base, const char *member, int64_t limit, int64_t *before, json_t *rows,
             struct err *err)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	const json_t *page, *next;

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "%s%climit=%" PRId64, base, strchr(base, '?') == NULL ? '?' : '&', limit);
	if (*before > 0)
		buf_printf(&path, "&before=%" PRId64, *before);
	if (!cli_get_json(c, buf_text(&path), &reply, err))
		return false;
	page = json_object_get(reply, member);
	next = json_object_get(reply, "next");
	for (size_t i = 0; i < json_array_size(page); i++)
		json_array_append(rows, json_array_get(page, i));
	*before = json_array_size(page) > 0 && json_is_integer(next) ? json_integer_value(next) : 0;
	return true;
}

int
cli_get_pages(struct cli *c, const char *base, const char *member, int64_t preset, json_t *rows)
{
	int64_t limit, before;
	struct err err = {0};

	if (!number_option(c, "limit", preset, &limit, &err) || !number_option(c, "before", 0, &before, &err))
		return cli_misuse(&err);
	do {
		int64_t left = limit - (int64_t)json_array_size(rows);
		int64_t ask = limit == 0 || left > PAGE_ENTRIES ? PAGE_ENTRIES : left;

		if (!cli_get_page(c, base, member, ask, &before, rows, &err))
			return cli_fail(&err);
	} while (before > 0 && (limit == 0 || (int64_t)json_array_size(rows) < limit));
	return CLI_OK;
}

int
cli_print_pages(struct cli *c, const char *path, const char *member, const char *columns, const char *const *filters,
                size_t n, int64_t preset)
{
	owned(json) json_t *rows = json_array();
	in_place(buf) struct buf base = {0};
	int code;

	buf_init(&base, CLI_PATH_BYTES);
	buf_str(&base, path);
	for (size_t i = 0; i < n; i++)
		cli_query(&base, filters[i], cli_value(c, filters[i]));
	code = cli_get_pages(c, buf_text(&base), member, preset, rows);
	return code != CLI_OK ? code : cli_print(c, rows, rows, columns);
}

int
cmd_token_list(struct cli *c)
{
	static const char *const filters[] = {"tenant", "role", "node", "status"};

	return cli_print_pages(
		c, "/v1/tokens", "tokens",
		"id,role,tenant,node,sources,name,description,created_by,created,expires,last_used,revoked,revoked_by,"
		"status",
		filters, ARRAY_LEN(filters), 0);
}

int
cmd_node_join_tokens(struct cli *c)
{
	static const char *const filters[] = {"status"};

	return cli_print_pages(
		c, "/v1/join-tokens", "join_tokens",
		"id,node,description,created_by,created,expires,used,used_by_node,token_id,revoked,status", filters,
		ARRAY_LEN(filters), 0);
}

int
cmd_token_whoami(struct cli *c)
{
	owned(json) json_t *row = NULL;
	struct err err = {0};

	if (!cli_get_json(c, "/v1/whoami", &row, &err))
		return cli_fail(&err);
	return cli_print_one(c, row);
}

/* ---- ending ---- */

static int
revoke(struct cli *c, const char *base, const char *list)
{
	in_place(buf) struct buf path = {0}, body = {0};
	owned(json) json_t *row = NULL;
	int64_t id;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_PATH_BYTES);
	if (!text_to_i64(c->words[0], &id) || id < 1) {
		fprintf(stderr, "tollgate: \"%s\" is not an id; tollgate %s shows them\n", c->words[0], list);
		return CLI_USAGE;
	}
	buf_printf(&path, "%s%" PRId64, base, id);
	if (!cli_call(c, "DELETE", buf_text(&path), NULL, NULL, 0, &body, &err) ||
	    !json_parse("reply", buf_text(&body), body.len, &row, &err))
		return cli_fail(&err);
	return cli_print_one(c, row);
}

int
cmd_token_revoke(struct cli *c)
{
	return revoke(c, "/v1/tokens/", "token list");
}

int
cmd_node_revoke_join_token(struct cli *c)
{
	return revoke(c, "/v1/join-tokens/", "node join-tokens");
}

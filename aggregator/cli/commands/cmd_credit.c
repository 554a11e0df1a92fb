/* aggregator/cli/commands/cmd_credit.c - tollgate credit: one-off charges and credits, requested, approved, reversed, listed. */
#include "aggregator/cli/cli.h"
#include "common/base/text.h"

#define COLUMNS                                                                                                          \
	"id,tenant,workspace,period,amount,currency,category,reason,status,requested_by,requested,approved_by,approved," \
	"reverses,reversed_by,refund"

int
cmd_credit_list(struct cli *c)
{
	static const char *const filters[] = {"tenant", "period"};

	return cli_print_pages(c, "/v1/adjustments", "adjustments", COLUMNS, filters, ARRAY_LEN(filters), 50);
}

/* Posts the given options and prints the resulting row. */
static int
post(struct cli *c, const char *path, const char *const *fields, size_t n)
{
	owned(json) json_t *request = json_object();

	for (size_t i = 0; i < n; i++)
		if (cli_value(c, fields[i]) != NULL)
			json_object_set_new(request, fields[i], json_string(cli_value(c, fields[i])));
	return cli_post(c, path, request);
}

int
cmd_credit_add(struct cli *c)
{
	static const char *const fields[] = {"tenant",   "workspace", "period", "amount",
	                                     "currency", "category",  "reason", "refund"};

	return post(c, "/v1/adjustments", fields, ARRAY_LEN(fields));
}

static int
decide(struct cli *c, const char *verb)
{
	static const char *const fields[] = {"reason", "period"};
	in_place(buf) struct buf path = {0};
	struct err err = {0};
	int64_t id;

	buf_init(&path, CLI_PATH_BYTES);
	if (!text_to_i64(c->words[0], &id) || id < 1) {
		err_set(&err, ERR_INVALID, "\"%.40s\" is not an id; tollgate credit list shows them", c->words[0]);
		return cli_misuse(&err);
	}
	buf_printf(&path, "/v1/adjustments/%" PRId64 "/%s", id, verb);
	return post(c, buf_text(&path), fields, ARRAY_LEN(fields));
}

int
cmd_credit_approve(struct cli *c)
{
	return decide(c, "approve");
}

int
cmd_credit_reverse(struct cli *c)
{
	return decide(c, "reverse");
}

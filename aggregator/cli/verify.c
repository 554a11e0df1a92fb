/* aggregator/cli/verify.c - the ledger against its evidence, one node after the other: no answer is long, and a person sees
 * how far it has come. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"

#define CLEAR_LINE "\r\033[K"
#define COLUMNS "kind,node,gpu,hour,what,expected,found,difference"

/* What the nodes' answers add up to; the reply of --out json. */
struct verified {
	json_t *whole, *differences; /* differences is a member of whole */
	bool terminal;               /* standard error is one that can */
};

static const char *const counts[] = {"count",   "left_out", "nodes",  "hours", "batches",
                                     "records", "entries",  "events", "seals"};
/* How many of them, from the first on, an answer about nodes has; one about the audit log has the first two and the last three. */
#define NODE_COUNTS 6

static bool
add_counts(struct verified *v, const json_t *reply, size_t from, size_t to, struct err *err)
{
	for (size_t i = from; i < to; i++) {
		int64_t some = 0;

		if (!json_get_i64(reply, counts[i], &some, err))
			return false;
		json_integer_set(json_object_get(v->whole, counts[i]),
		                 json_integer_value(json_object_get(v->whole, counts[i])) + some);
	}
	return true;
}

static bool
ask_node(struct cli *c, struct verified *v, const char *range, const char *node, struct err *err)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, range);
	cli_query(&path, "node", node);
	if (!cli_get_json(c, buf_text(&path), &reply, err))
		return false;
	if (!add_counts(v, reply, 0, NODE_COUNTS, err))
		return false;
	json_object_set(v->whole, "from", json_object_get(reply, "from"));
	json_object_set(v->whole, "to", json_object_get(reply, "to"));
	json_array_extend(v->differences, json_object_get(reply, "differences"));
	return true;
}

/* The names of all nodes, or the one that was asked for. */
static bool
list_nodes(struct cli *c, json_t **ret, struct err *err)
{
	const char *one = cli_value(c, "node");

	if (one == NULL)
		return cli_get_json(c, "/v1/nodes", ret, err);
	*ret = json_pack("[{s:s}]", "name", one);
	return *ret != NULL || err_set(err, ERR_INVALID, "--node: it is not UTF-8 text");
}

static bool
ask_all(struct cli *c, struct verified *v, const char *range, struct err *err)
{
	owned(json) json_t *nodes = NULL;

	if (!list_nodes(c, &nodes, err))
		return false;
	if (json_array_size(nodes) == 0)
		return ask_node(c, v, range, NULL, err);
	for (size_t i = 0; i < json_array_size(nodes); i++) {
		const char *name = "";
		bool ok;

		if (!json_get_str(json_array_get(nodes, i), "name", &name, err))
			return false;
		if (v->terminal)
			fprintf(stderr, CLEAR_LINE "node %zu of %zu: %s", i + 1, json_array_size(nodes), name);
		ok = ask_node(c, v, range, name, err);
		if (v->terminal)
			fputs(CLEAR_LINE, stderr);
		if (!ok)
			return false;
	}
	return true;
}

/* The chains of the audit log have no range: they are proved from their beginning. */
static bool
ask_audit(struct cli *c, struct verified *v, struct err *err)
{
	char next[64] = "";

	if (cli_value(c, "node") != NULL)
		return true;
	do {
		owned(json) json_t *reply = NULL;
		in_place(buf) struct buf path;
		const char *after;

		buf_init(&path, CLI_PATH_BYTES);
		buf_str(&path, "/v1/audit/differences");
		cli_query(&path, "after", next[0] != '\0' ? next : NULL);
		cli_query(&path, "seal", cli_value(c, "seal"));
		if (!cli_get_json(c, buf_text(&path), &reply, err) || !add_counts(v, reply, 0, 2, err) ||
		    !add_counts(v, reply, NODE_COUNTS, ARRAY_LEN(counts), err))
			return false;
		json_array_extend(v->differences, json_object_get(reply, "differences"));
		after = json_string_value(json_object_get(reply, "next"));
		snprintf(next, sizeof(next), "%s", after != NULL ? after : "");
	} while (next[0] != '\0');
	return true;
}

static int
print_verified(struct cli *c, const struct verified *v)
{
	json_int_t n[ARRAY_LEN(counts)];
	int code = CLI_OK;

	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		n[i] = json_integer_value(json_object_get(v->whole, counts[i]));
	if (n[0] > 0 || cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		code = cli_print(c, v->differences, v->whole, COLUMNS);
	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE) {
		printf("%" JSON_INTEGER_FORMAT " nodes, %" JSON_INTEGER_FORMAT " node-hours, %" JSON_INTEGER_FORMAT
		       " batches, %" JSON_INTEGER_FORMAT " records",
		       n[2], n[3], n[4], n[5]);
		if (cli_value(c, "node") == NULL)
			printf(", %" JSON_INTEGER_FORMAT " audit entries, %" JSON_INTEGER_FORMAT
			       " quota events, %" JSON_INTEGER_FORMAT " seals",
			       n[6], n[7], n[8]);
		fputs(": ", stdout);
		if (n[0] == 0)
			puts("no difference");
		else
			printf("%" JSON_INTEGER_FORMAT " differences, %" JSON_INTEGER_FORMAT " of them not shown\n",
			       n[0], n[1]);
	}
	return n[0] > 0 ? CLI_FAILED : code;
}

int
cmd_verify(struct cli *c)
{
	const char *term = getenv("TERM");
	owned(json) json_t *whole = json_pack("{s:s,s:s,s:[],s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "from", "", "to",
	                                      "", "differences", counts[0], 0, counts[1], 0, counts[2], 0, counts[3], 0,
	                                      counts[4], 0, counts[5], 0, counts[6], 0, counts[7], 0, counts[8], 0);
	struct verified v = {
		.whole = whole,
		.differences = json_object_get(whole, "differences"),
		.terminal = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0,
	};
	in_place(buf) struct buf path;
	struct err err = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/conservation/differences");
	code = cli_add_range(c, &path);
	if (code != CLI_OK)
		return code;
	return ask_all(c, &v, buf_text(&path), &err) && ask_audit(c, &v, &err) ? print_verified(c, &v) : cli_fail(&err);
}

/* aggregator/cli/commands/cmd_quarantine.c - tollgate quarantine: list, show, release and discard refused batches; node approve. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/base/text.h"

#define PAGE_ENTRIES 500
#define COLUMNS                                                                                                        \
	"id,node,stream,epoch,seq,last_seq,gpu,class,reason,from,to,records,received,age_seconds,decision,decided_by," \
	"decided,why"

int
cmd_quarantine_list(struct cli *c)
{
	static const char *const filters[] = {"node", "stream", "class", "decision"};

	return cli_print_pages(c, "/v1/quarantine", "batches", COLUMNS, filters, ARRAY_LEN(filters), 50);
}

/* STREAM and SEQ of the command line. */
static bool
read_words(const struct cli *c, int64_t *ret_stream, int64_t *ret_seq, struct err *err)
{
	return (text_to_i64(c->words[0], ret_stream) && text_to_i64(c->words[1], ret_seq) && *ret_stream > 0 &&
	        *ret_seq > 0) ||
	       err_set(err, ERR_INVALID,
	               "\"%.40s %.40s\" is not a batch; tollgate quarantine list shows stream and seq", c->words[0],
	               c->words[1]);
}

int
cmd_quarantine_show(struct cli *c)
{
	static const char *const lists[] = {"devices", "holders", "first_records"};
	owned(json) json_t *batch = NULL, *row = NULL;
	in_place(buf) struct buf path = {0};
	int64_t stream, seq;
	struct err err = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	if (!read_words(c, &stream, &seq, &err))
		return cli_misuse(&err);
	buf_printf(&path, "/v1/quarantine/%" PRId64 "/%" PRId64, stream, seq);
	if (cli_value(c, "gpu") != NULL)
		cli_query(&path, "gpu", cli_value(c, "gpu"));
	if (!cli_get_json(c, buf_text(&path), &batch, &err))
		return cli_fail(&err);
	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_JSON || cli_output(c, OUTPUT_TABLE) == OUTPUT_YAML)
		return cli_print_one(c, batch);
	row = json_copy(batch);
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		json_object_del(row, lists[i]);
	code = cli_print_one(c, row);
	for (size_t i = 0; i < ARRAY_LEN(lists) && cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE; i++) {
		if (json_array_size(json_object_get(batch, lists[i])) == 0)
			continue;
		printf("\n%s\n", lists[i]);
		cli_print_table(json_object_get(batch, lists[i]));
	}
	return code;
}

static bool
decide(struct cli *c, const char *verb, int64_t stream, int64_t seq, json_t *rows, struct err *err)
{
	owned(json) json_t *request = json_object(), *row = NULL;
	in_place(buf) struct buf path = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "/v1/quarantine/%" PRId64 "/%" PRId64 "/%s", stream, seq, verb);
	json_object_set_new(request, "reason", json_string(cli_value(c, "reason")));
	if (cli_value(c, "gpu") != NULL)
		json_object_set_new(request, "gpu", json_string(cli_value(c, "gpu")));
	if (!cli_post_json(c, buf_text(&path), request, &row, err))
		return false;
	json_array_append(rows, row);
	return true;
}

/* The numbers after `seq` that nobody has decided about, ascending: the list is newest first, and a stream's numbers only
 * grow. */
static bool
later_ones(struct cli *c, int64_t stream, int64_t seq, int64_t through, json_t *ret, struct err *err)
{
	owned(json) json_t *rows = json_array();
	in_place(buf) struct buf path = {0};
	int64_t before = 0;

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "/v1/quarantine?decision=open&stream=%" PRId64, stream);
	do {
		if (!cli_get_page(c, buf_text(&path), "batches", PAGE_ENTRIES, &before, rows, err))
			return false;
	} while (before > 0);
	for (size_t i = json_array_size(rows); i-- > 0;) {
		const char *only = cli_value(c, "gpu") != NULL ? cli_value(c, "gpu") : "", *gpu = "";
		int64_t n = 0;

		if (!json_get_i64(json_array_get(rows, i), "seq", &n, err) ||
		    !json_get_str(json_array_get(rows, i), "gpu", &gpu, err))
			return false;
		if (n > seq && n <= through && strcmp(gpu, only) == 0)
			json_array_append_new(ret, json_integer(n));
	}
	return true;
}

static int
decide_all(struct cli *c, const char *verb)
{
	owned(json) json_t *numbers = json_array(), *rows = json_array();
	const char *last = cli_value(c, "through");
	int64_t stream, seq, through = 0;
	struct err err = {0};
	int code = CLI_OK;

	if (!read_words(c, &stream, &seq, &err))
		return cli_misuse(&err);
	if (last != NULL && (!text_to_i64(last, &through) || through < seq)) {
		err_set(&err, ERR_INVALID, "--through: \"%.40s\" is not a number from %" PRId64, last, seq);
		return cli_misuse(&err);
	}
	json_array_append_new(numbers, json_integer(seq));
	if (last != NULL && !later_ones(c, stream, seq, through, numbers, &err))
		return cli_fail(&err);
	/* In order, stopping at the first refusal: later batches may depend on it. */
	for (size_t i = 0; i < json_array_size(numbers) && code == CLI_OK; i++)
		if (!decide(c, verb, stream, json_integer_value(json_array_get(numbers, i)), rows, &err))
			code = cli_fail(&err);
	if (json_array_size(rows) > 0 && cli_print(c, rows, rows, COLUMNS) != CLI_OK)
		return CLI_FAILED;
	return code;
}

int
cmd_quarantine_release(struct cli *c)
{
	return decide_all(c, "release");
}

int
cmd_quarantine_discard(struct cli *c)
{
	return decide_all(c, "discard");
}

int
cmd_node_approve(struct cli *c)
{
	owned(json) json_t *request = json_object();
	in_place(buf) struct buf path = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/nodes/");
	cli_path(&path, c->words[0]);
	buf_str(&path, "/approve");
	json_object_set_new(request, "reason", json_string(cli_value(c, "reason")));
	return cli_post(c, buf_text(&path), request);
}

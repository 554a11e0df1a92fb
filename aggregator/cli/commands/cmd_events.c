/* aggregator/cli/commands/cmd_events.c - events send, events summary: CloudEvents of other meters. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

#define EVENTS_BYTES (4u << 20) /* the aggregator's limit */
#define EVENT_COLUMNS "index,id,source,status,field,detail"

static const char *
text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text != NULL ? text : "";
}

/* The events of a reply as flat rows: all, or only the refused ones. */
static json_t *
flat_rows(const json_t *reply, bool bad_only)
{
	const json_t *events = json_object_get(reply, "events");
	json_t *rows = json_array();

	for (size_t i = 0; i < json_array_size(events); i++) {
		const json_t *e = json_array_get(events, i), *problem = json_object_get(e, "problem");
		json_t *row;

		if (bad_only && problem == NULL)
			continue;
		row = json_pack("{s:O?, s:s, s:s, s:s, s:s, s:s}", "index", json_object_get(e, "index"), "id",
		                text_of(e, "id"), "source", text_of(e, "source"), "status", text_of(e, "status"),
		                "field", text_of(problem, "field"), "detail", text_of(problem, "detail"));
		ASSERT(row != NULL && json_array_append_new(rows, row) == 0);
	}
	return rows;
}

static int
print_sent(const struct cli *c, const json_t *reply)
{
	int64_t accepted = 0, duplicates = 0, conflicts = 0, refused = 0;
	owned(json) json_t *rows = NULL;
	struct err err = {0};

	if (!json_get_i64(reply, "accepted", &accepted, &err) ||
	    !json_get_i64(reply, "duplicates", &duplicates, &err) ||
	    !json_get_i64(reply, "conflicts", &conflicts, &err) || !json_get_i64(reply, "refused", &refused, &err))
		return cli_fail(&err);
	rows = flat_rows(reply, cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE);
	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE)
		printf("%" PRId64 " accepted, %" PRId64 " known already, %" PRId64 " refused\n", accepted, duplicates,
		       conflicts + refused);
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE || json_array_size(rows) > 0)
		(void)cli_print(c, rows, reply, EVENT_COLUMNS);
	return conflicts + refused > 0 ? CLI_FAILED : CLI_OK;
}

int
cmd_events_send(struct cli *c)
{
	in_place(buf) struct buf document = {0}, body = {0};
	owned(json) json_t *reply = NULL;
	struct err err = {0};
	const char *type;

	buf_init(&document, EVENTS_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	if (!cli_read_document(c->words[0], &document, &err))
		return cli_fail(&err);
	/* a batch is a JSON array, a single event is an object */
	type = buf_text(&document)[strspn(buf_text(&document), " \t\r\n")] == '[' ? "application/cloudevents-batch+json"
	                                                                          : "application/cloudevents+json";
	if (!cli_call(c, "POST", "/v1/events", type, buf_text(&document), document.len, &body, &err) ||
	    !json_parse("reply", buf_text(&body), body.len, &reply, &err))
		return cli_fail(&err);
	return print_sent(c, reply);
}

int
cmd_events_summary(struct cli *c)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/events/summary");
	cli_query(&path, "period", c->word_count > 0 ? c->words[0] : NULL);
	cli_query(&path, "meter", cli_value(c, "meter"));
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	cli_query(&path, "by", cli_value(c, "by"));
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	return cli_print(c, json_object_get(reply, "meters"), reply,
	                 cli_value(c, "by") != NULL && strcmp(cli_value(c, "by"), "end_user") == 0
	                         ? "tenant,workspace,category,meter,unit,sku,end_user,quantity,events"
	                         : "tenant,workspace,category,meter,unit,sku,quantity,events");
}

/* aggregator/cli/commands/cmd_audit.c - tollgate audit: the audit log; tables show only the fields that changed. */
#include <string.h>

#include "aggregator/cli/cli.h"

#define COLUMNS "id,at,actor,action,subject,tenant,before,after,reason"
#define CELL_CHARACTERS 60

/* A short form of a value: text as it is, anything else as JSON. */
static void
write_value(const json_t *v, struct buf *out)
{
	if (json_is_string(v)) {
		buf_str(out, json_string_value(v));
		return;
	}
	json_write(v, out);
	if (out->len > 0 && out->data[out->len - 1] == '\n')
		out->data[--out->len] = '\0';
}

/* Members that are missing or different on the other side: "status=revoked". */
static void
write_changed(const json_t *side, const json_t *other, struct buf *out)
{
	const char *key;
	const json_t *value;
	void *at;

	if (!json_is_object(side)) {
		if (side != NULL && !json_is_null(side))
			write_value(side, out);
		return;
	}
	for (at = json_object_iter((json_t *)(uintptr_t)side); at != NULL;
	     at = json_object_iter_next((json_t *)(uintptr_t)side, at)) {
		key = json_object_iter_key(at);
		value = json_object_iter_value(at);
		if (json_is_null(value) || json_equal((json_t *)(uintptr_t)value, json_object_get(other, key)))
			continue;
		buf_printf(out, "%s%s=", out->len > 0 ? " " : "", key);
		write_value(value, out);
	}
}

/* One line of at most so many characters. */
static json_t *
cell(const struct buf *text)
{
	in_place(buf) struct buf line = {0};
	size_t characters = 0;

	buf_init(&line, CLI_TEXT_BYTES);
	for (const char *s = buf_text(text); *s != '\0'; s++) {
		if (((unsigned char)*s & 0xC0) != 0x80 && characters++ == CELL_CHARACTERS) {
			buf_str(&line, "…");
			break;
		}
		buf_char(&line, (unsigned char)*s < ' ' ? ' ' : *s);
	}
	return json_string(buf_text(&line));
}

static json_t *
for_people(const json_t *entries)
{
	static const char *const plain[][2] = {{"id", "id"},       {"when", "at"},         {"who", "actor"},
	                                       {"what", "action"}, {"subject", "subject"}, {"tenant", "tenant"}};
	json_t *rows = json_array();

	for (size_t i = 0; i < json_array_size(entries); i++) {
		const json_t *e = json_array_get(entries, i);
		const json_t *before = json_object_get(e, "before"), *after = json_object_get(e, "after");
		in_place(buf) struct buf was = {0}, is = {0}, why = {0};
		json_t *row = json_object();

		buf_init(&was, CLI_REPLY_MAX);
		buf_init(&is, CLI_REPLY_MAX);
		buf_init(&why, CLI_REPLY_MAX);
		for (size_t k = 0; k < ARRAY_LEN(plain); k++)
			json_object_set(row, plain[k][0], json_object_get(e, plain[k][1]));
		write_changed(before, after, &was);
		write_changed(after, before, &is);
		if (json_is_string(json_object_get(e, "reason")))
			buf_str(&why, json_string_value(json_object_get(e, "reason")));
		json_object_set_new(row, "before", cell(&was));
		json_object_set_new(row, "after", cell(&is));
		json_object_set_new(row, "why", cell(&why));
		json_array_append_new(rows, row);
	}
	return rows;
}

/* --since is a --from. */
static bool
add_since(const struct cli *c, struct buf *path, struct err *err)
{
	const char *since = cli_value(c, "since");
	char from[TIME_TEXT_SIZE];
	int64_t ns;

	if (since == NULL)
		return true;
	if (cli_value(c, "from") != NULL)
		return err_set(err, ERR_INVALID, "--since and --from exclude each other");
	if (!duration_parse(since, &ns, err))
		return err_prefix(err, "--since");
	cli_query(path, "from", time_format(time_wall_ns() - ns, from));
	return true;
}

int
cmd_audit(struct cli *c)
{
	static const char *const filters[] = {"tenant", "actor", "action", "subject", "from", "to"};
	owned(json) json_t *rows = json_array(), *shown = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/audit");
	for (size_t i = 0; i < ARRAY_LEN(filters); i++)
		cli_query(&path, filters[i], cli_value(c, filters[i]));
	if (!add_since(c, &path, &err))
		return cli_misuse(&err);
	code = cli_get_pages(c, buf_text(&path), "entries", 50, rows);
	if (code != CLI_OK || cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return code != CLI_OK ? code : cli_print(c, rows, rows, COLUMNS);
	shown = for_people(rows);
	return cli_print(c, shown, shown, COLUMNS);
}

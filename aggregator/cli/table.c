/* aggregator/cli/table.c - prints arrays of flat JSON objects as table, CSV, JSON or YAML. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"
#include "aggregator/core/reports/chargeback.h"
#include "common/base/text.h"

#define COLUMN_MAX 64

enum cli_output
cli_output(const struct cli *c, enum cli_output preset)
{
	const char *v = cli_value(c, "out");

	/* parsing lets only these through */
	if (v == NULL)
		return preset;
	return strcmp(v, "json") == 0   ? OUTPUT_JSON
	       : strcmp(v, "csv") == 0  ? OUTPUT_CSV
	       : strcmp(v, "yaml") == 0 ? OUTPUT_YAML
	                                : OUTPUT_TABLE;
}

bool
cli_colours(void)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return (no == NULL || no[0] == '\0') && isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
}

/* A value as text; scratch holds numbers. */
static const char *
cell(const json_t *v, char scratch[32])
{
	if (json_is_string(v))
		return json_string_value(v);
	if (json_is_integer(v)) {
		snprintf(scratch, 32, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		return scratch;
	}
	if (json_is_real(v)) {
		snprintf(scratch, 32, "%.15g", json_real_value(v));
		return scratch;
	}
	if (json_is_boolean(v))
		return json_is_true(v) ? "yes" : "no";
	return "";
}

/* Characters, not bytes, so that names in any script line up; a colour has no width. */
static size_t
width(const char *s)
{
	size_t n = 0;

	while (*s != '\0') {
		if (*s == '\033' && s[strcspn(s, "m")] == 'm') {
			s += strcspn(s, "m") + 1;
			continue;
		}
		n += ((unsigned char)*s & 0xC0) != 0x80;
		s++;
	}
	return n;
}

static bool
is_number(const char *s)
{
	if (*s == '-')
		s++;
	if (!isdigit((unsigned char)*s))
		return false;
	for (; *s != '\0'; s++)
		if (!isdigit((unsigned char)*s) && *s != '.')
			return false;
	return true;
}

struct column {
	const char *name;
	char title[64];
	size_t width;
	bool number;
	bool blank; /* no row has anything but zero or nothing in it */
};

/* "used_gpu_hours" is "USED": a table of hours says so once, not in every column. */
static void
make_title(struct column *col)
{
	static const char hours[] = "_gpu_hours";
	size_t n = strlen(col->name), k = 0;

	if (n > strlen(hours) && strcmp(col->name + n - strlen(hours), hours) == 0)
		n -= strlen(hours);
	for (; k < n && k < sizeof(col->title) - 1; k++)
		col->title[k] = col->name[k] == '_' ? ' ' : (char)toupper((unsigned char)col->name[k]);
	col->title[k] = '\0';
}

/* The keys of a row that are no column yet. */
static size_t
add_columns(json_t *row, struct column *columns, size_t n)
{
	const char *key;
	json_t *value;

	json_object_foreach(row, key, value)
	{
		size_t i = 0;

		while (i < n && strcmp(columns[i].name, key) != 0)
			i++;
		if (i < n || n == COLUMN_MAX)
			continue;
		columns[n] = (struct column){.name = key, .number = true, .blank = true};
		make_title(&columns[n]);
		columns[n].width = strlen(columns[n].title);
		n++;
	}
	return n;
}

static size_t
measure(const json_t *rows, struct column *columns)
{
	size_t n = 0;

	for (size_t r = 0; r < json_array_size(rows); r++)
		n = add_columns(json_array_get(rows, r), columns, n);
	for (size_t r = 0; r < json_array_size(rows); r++) {
		for (size_t i = 0; i < n; i++) {
			char scratch[32];
			const char *text = cell(json_object_get(json_array_get(rows, r), columns[i].name), scratch);
			size_t w = width(text);

			if (w > columns[i].width)
				columns[i].width = w;
			if (text[0] != '\0' && !is_number(text))
				columns[i].number = false;
			if (text[strspn(text, "0.")] != '\0')
				columns[i].blank = false;
		}
	}
	return n;
}

/* Escapes characters that could make a terminal show other text; our own colours pass. */
static void
put_text(const char *text)
{
	size_t left = strlen(text);

	while (left > 0) {
		uint32_t code = 0;
		size_t n = utf8_next(text, left, &code);

		if (n == 0 || (text_deceives(code) && code != '\033'))
			fputs("\xef\xbf\xbd", stdout);
		else
			fwrite(text, 1, n, stdout);
		text += n ? n : 1;
		left -= n ? n : 1;
	}
}

/* Width of the terminal; 80 where there is none. */
static size_t
columns_of_terminal(void)
{
	struct winsize size = {0};

	if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		return 80;
	return size.ws_col;
}

void
cli_print_paragraph(const char *text)
{
	const size_t most = columns_of_terminal();
	size_t at = 0;

	while (*text != '\0') {
		const size_t n = strcspn(text, " ");
		owned(mem) char *word = mem_strndup(text, n);

		if (at > 0 && at + 1 + width(word) > most) {
			putchar('\n');
			at = 0;
		}
		if (at > 0)
			putchar(' ');
		put_text(word);
		at += width(word) + (at > 0);
		text += n + (text[n] == ' ');
	}
	putchar('\n');
}

static void
put_cell(const struct column *col, const char *text, bool last)
{
	int pad = (int)(col->width - width(text));

	printf("%*s", col->number ? pad : 0, "");
	put_text(text);
	printf("%*s%s", col->number || last ? 0 : pad, "", last ? "\n" : "  ");
}

static bool
is_difference(const char *name)
{
	return strncmp(name, "difference", strlen("difference")) == 0 || text_ends(name, "_difference") ||
	       text_ends(name, "_differences");
}

bool
cli_in_list(const char *list, const char *word)
{
	const size_t n = strlen(word);

	for (; *list != '\0'; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
		if (strcspn(list, ",") == n && strncmp(list, word, n) == 0)
			return true;
	return false;
}

/* People read what is there: columns that say nothing in any row, and the exact integers behind the hours, are left to
 * the other formats. A difference is shown, because its zero is the news; and so are those of the list. */
static size_t
for_people(struct column *columns, size_t n, const char *always)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++) {
		const char *name = columns[i].name;

		if (text_ends(name, "_unit_ns") ||
		    (columns[i].blank && !is_difference(name) && !cli_in_list(always, name) && i > 0))
			continue;
		columns[kept++] = columns[i];
	}
	return kept;
}

void
cli_print_table(const json_t *rows)
{
	cli_print_table_with(rows, "");
}

void
cli_print_table_with(const json_t *rows, const char *always)
{
	struct column columns[COLUMN_MAX];
	size_t n = for_people(columns, measure(rows, columns), always);

	if (n == 0) {
		puts("(nothing)");
		return;
	}
	for (size_t i = 0; i < n; i++)
		put_cell(&columns[i], columns[i].title, i + 1 == n);
	for (size_t r = 0; r < json_array_size(rows); r++)
		for (size_t i = 0; i < n; i++) {
			char scratch[32];

			put_cell(&columns[i], cell(json_object_get(json_array_get(rows, r), columns[i].name), scratch),
			         i + 1 == n);
		}
}

void
cli_print_csv(const json_t *rows, const char *columns_of_none)
{
	struct column columns[COLUMN_MAX];
	size_t n = measure(rows, columns);
	in_place(buf) struct buf line = {0};

	buf_init(&line, CLI_REPLY_MAX);
	if (n == 0)
		buf_printf(&line, "%s\r\n", columns_of_none);
	for (size_t i = 0; i < n; i++) {
		csv_field(&line, columns[i].name);
		buf_str(&line, i + 1 == n ? "\r\n" : ",");
	}
	for (size_t r = 0; r < json_array_size(rows); r++)
		for (size_t i = 0; i < n; i++) {
			char scratch[32];
			const char *text = cell(json_object_get(json_array_get(rows, r), columns[i].name), scratch);

			if (columns[i].number)
				csv_field(&line, text);
			else
				csv_text_field(&line, text);
			buf_str(&line, i + 1 == n ? "\r\n" : ",");
		}
	fwrite(buf_text(&line), 1, line.len, stdout);
}

/* Rows in which an object or a list is its JSON text, for tables and CSV. A list of objects has no end that a line could hold: a table has its length. */
static json_t *
flatten(const json_t *rows, bool table)
{
	json_t *flat = json_array();

	for (size_t r = 0; r < json_array_size(rows); r++) {
		json_t *row = json_object(), *value;
		const char *key;

		json_object_foreach(json_array_get(rows, r), key, value)
		{
			in_place(buf) struct buf text = {0};

			buf_init(&text, CLI_REPLY_MAX);
			if (table && json_is_object(json_array_get(value, 0))) {
				json_object_set_new(row, key, json_integer((json_int_t)json_array_size(value)));
			} else if (json_is_object(value) || json_is_array(value)) {
				json_write(value, &text);
				json_object_set_new(row, key, json_stringn(buf_text(&text), text.len - 1));
			} else {
				json_object_set(row, key, value);
			}
		}
		json_array_append_new(flat, row);
	}
	return flat;
}

/* ---- YAML: the values of the JSON, one to a line ---- */

/* Letters first and nothing after them that YAML has a use for; not a word that is a value of another type. */
static bool
is_plain(const char *s)
{
	static const char *const taken[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};

	if (!isalpha((unsigned char)s[0]))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(taken); i++)
		if (strcasecmp(s, taken[i]) == 0)
			return false;
	for (; *s != '\0'; s++)
		if (!isalnum((unsigned char)*s) && strchr("_-./", *s) == NULL)
			return false;
	return true;
}

static void
yaml_text(const char *s, struct buf *out)
{
	size_t left = strlen(s);

	if (is_plain(s)) {
		buf_str(out, s);
		return;
	}
	buf_char(out, '"');
	while (left > 0) {
		uint32_t code = 0;
		size_t n = utf8_next(s, left, &code);

		if (n == 0 || text_deceives(code) || code >= 0xFFFE)
			buf_printf(out, "\\U%08" PRIX32, n == 0 ? 0xFFFDu : code);
		else if (code == '"' || code == '\\')
			buf_printf(out, "\\%c", (char)code);
		else
			buf_add(out, s, n);
		s += n ? n : 1;
		left -= n ? n : 1;
	}
	buf_char(out, '"');
}

static bool
has_children(const json_t *v)
{
	return json_object_size(v) > 0 || json_array_size(v) > 0;
}

static void
yaml_scalar(const json_t *v, struct buf *out)
{
	in_place(buf) struct buf text = {0};

	if (json_is_string(v)) {
		yaml_text(json_string_value(v), out);
		return;
	}
	buf_init(&text, CLI_REPLY_MAX);
	json_write(v, &text); /* a number, true, null, {} or [], with a line's end */
	buf_add(out, buf_text(&text), text.len - 1);
}

static void yaml_children(const json_t *v, int indent, bool begun, struct buf *out);

/* Writes the value after "key:" or "-", to the end of its last line. */
static void
yaml_value(const json_t *v, int indent, bool in_list, struct buf *out)
{
	if (has_children(v)) {
		buf_char(out, in_list ? ' ' : '\n');
		yaml_children(v, indent + 2, in_list, out);
		return;
	}
	buf_char(out, ' ');
	yaml_scalar(v, out);
	buf_char(out, '\n');
}

/* begun: the first child stands on the line that is there, behind the dash of a list. */
static void
yaml_children(const json_t *v, int indent, bool begun, struct buf *out)
{
	const char *key;
	json_t *child;
	size_t i;

	json_object_foreach((json_t *)(uintptr_t)v, key, child)
	{
		buf_printf(out, "%*s", begun ? 0 : indent, "");
		yaml_text(key, out);
		buf_char(out, ':');
		yaml_value(child, indent, false, out);
		begun = false;
	}
	json_array_foreach(v, i, child)
	{
		buf_printf(out, "%*s-", begun ? 0 : indent, "");
		yaml_value(child, indent, true, out);
		begun = false;
	}
}

/* The dashes before it make documents one after the other a stream of documents. */
static void
yaml_document(const json_t *v, struct buf *out)
{
	buf_str(out, "---\n");
	if (has_children(v)) {
		yaml_children(v, 0, false, out);
		return;
	}
	yaml_scalar(v, out);
	buf_char(out, '\n');
}

int
cli_print(const struct cli *c, const json_t *rows, const json_t *whole, const char *columns)
{
	enum cli_output output = cli_output(c, OUTPUT_TABLE);
	owned(json) json_t *flat = flatten(rows, output == OUTPUT_TABLE);
	in_place(buf) struct buf text = {0};

	buf_init(&text, CLI_REPLY_MAX);
	if (output == OUTPUT_TABLE) {
		cli_print_table(flat);
	} else if (output == OUTPUT_CSV) {
		cli_print_csv(flat, columns);
	} else if (output == OUTPUT_YAML) {
		yaml_document(whole, &text);
		fwrite(buf_text(&text), 1, text.len, stdout);
	} else {
		json_write(whole, &text);
		fwrite(buf_text(&text), 1, text.len, stdout);
	}
	return CLI_OK;
}

int
cli_print_one(const struct cli *c, json_t *object)
{
	owned(json) json_t *rows = json_array();

	json_array_append(rows, object);
	return cli_print(c, rows, object, "");
}

/* aggregator/cli/table.c - rows for people, scripts and spreadsheets, from an array of flat JSON objects. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "aggregator/core/report.h"

#define COLUMN_MAX 32

bool
cli_output(const struct cli *c, enum cli_output *ret, struct err *err)
{
	const char *v = cli_value(c, "out");

	if (v == NULL || strcmp(v, "table") == 0)
		*ret = OUTPUT_TABLE;
	else if (strcmp(v, "json") == 0)
		*ret = OUTPUT_JSON;
	else if (strcmp(v, "csv") == 0)
		*ret = OUTPUT_CSV;
	else
		return err_set(err, ERR_INVALID, "--out: \"%s\" is not one of table, json, csv", v);
	return true;
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
	if (json_is_boolean(v))
		return json_is_true(v) ? "yes" : "no";
	return "";
}

/* Characters, not bytes, so that names in any script line up. */
static size_t
width(const char *s)
{
	size_t n = 0;

	for (; *s != '\0'; s++)
		n += ((unsigned char)*s & 0xC0) != 0x80;
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

static size_t
measure(const json_t *rows, struct column *columns)
{
	json_t *first = json_array_get(rows, 0);
	const char *key;
	json_t *value;
	size_t n = 0;

	json_object_foreach(first, key, value)
	{
		if (n == COLUMN_MAX)
			break;
		columns[n] = (struct column){.name = key, .number = true, .blank = true};
		make_title(&columns[n]);
		columns[n].width = strlen(columns[n].title);
		n++;
	}
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

static void
put_cell(const struct column *col, const char *text, bool last)
{
	size_t pad = col->width - width(text);

	if (col->number)
		printf("%*s%s", (int)pad, "", text);
	else
		printf("%s%*s", text, last ? 0 : (int)pad, "");
	fputs(last ? "\n" : "  ", stdout);
}

/* People read what is there: columns that say nothing in any row, and the exact integers behind the hours, are left to
 * the other formats. A difference is shown, because its zero is the news. */
static size_t
for_people(struct column *columns, size_t n)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++) {
		const char *name = columns[i].name;

		if (strstr(name, "_unit_ns") != NULL ||
		    (columns[i].blank && strstr(name, "difference") == NULL && i > 0))
			continue;
		columns[kept++] = columns[i];
	}
	return kept;
}

void
cli_print_table(const json_t *rows)
{
	struct column columns[COLUMN_MAX];
	size_t n = for_people(columns, measure(rows, columns));

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
cli_print_csv(const json_t *rows)
{
	struct column columns[COLUMN_MAX];
	size_t n = measure(rows, columns);
	in_place(buf) struct buf line;

	buf_init(&line, CLI_REPLY_MAX);
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

int
cli_print(const struct cli *c, const json_t *rows, const json_t *whole)
{
	enum cli_output output;
	struct err err = {0};
	in_place(buf) struct buf text;

	buf_init(&text, CLI_REPLY_MAX);
	if (!cli_output(c, &output, &err))
		return cli_fail(&err);
	if (output == OUTPUT_TABLE) {
		cli_print_table(rows);
	} else if (output == OUTPUT_CSV) {
		cli_print_csv(rows);
	} else {
		json_write(whole, &text);
		fwrite(buf_text(&text), 1, text.len, stdout);
	}
	return CLI_OK;
}

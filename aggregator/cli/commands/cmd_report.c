/* aggregator/cli/commands/cmd_report.c - tollgate report: a month as a document, printed or saved with its manifest. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "aggregator/cli/commands/download.h"
#include "common/base/text.h"

/* The aggregator's clock decides which month it is: it is the one that bills. */
static bool
find_previous(struct cli *c, json_t **ret_periods, const char **ret_month, struct err *err)
{
	const json_t *period = NULL;

	return cli_get_json(c, "/v1/periods", ret_periods, err) &&
	       range_month(*ret_periods, c->server_wall_ns >= 0 ? c->server_wall_ns : time_wall_ns(), true, &period,
	                   err) &&
	       json_get_str(period, "month", ret_month, err);
}

/* The month in the path: as written, or what --last-month and --this-month say. */
static int
report_month(struct cli *c, struct buf *path)
{
	const char *word = c->word_count > 0 ? c->words[0] : NULL;
	bool this_month = cli_value(c, "this-month") != NULL, last_month = cli_value(c, "last-month") != NULL;
	owned(json) json_t *periods = NULL;
	struct err err = {0};

	if ((word != NULL) + this_month + last_month != 1) {
		fprintf(stderr,
		        "tollgate: report needs one of YYYY-MM, current, previous, --this-month, --last-month\n");
		return CLI_USAGE;
	}
	if (word == NULL)
		word = this_month ? "current" : "previous";
	if (strcmp(word, "previous") == 0) {
		if (!find_previous(c, &periods, &word, &err))
			return cli_fail(&err);
	} else if (strcmp(word, "current") != 0 && strspn(word, "0123456789-") != strlen(word)) {
		fprintf(stderr, "tollgate: \"%s\" is not a month; write YYYY-MM\n", word);
		return CLI_USAGE;
	}
	buf_printf(path, "/v1/reports/%s", word);
	return CLI_OK;
}

static int
print_table(struct cli *c, const char *path, const char *member)
{
	owned(json) json_t *reply = NULL;
	struct err err = {0};

	if (!cli_get_json(c, path, &reply, &err))
		return cli_fail(&err);
	return cli_print(c, json_object_get(reply, member), reply, "");
}

/* ---- --output: the document and its manifest in a folder ---- */

#define ATTEMPTS 3 /* while the month changes between a document and its manifest */

/* The manifest comes with the document; older aggregators are asked for it separately. */
static bool
fetch_manifest(struct cli *c, const char *path, struct buf *manifest, struct err *err)
{
	in_place(buf) struct buf manifest_path = {0};

	buf_init(&manifest_path, CLI_PATH_BYTES);
	if (manifest->len > 0) {
		buf_char(manifest, '\n');
		return true;
	}
	buf_str(&manifest_path, path);
	cli_query(&manifest_path, "manifest", "1");
	return cli_call(c, "GET", buf_text(&manifest_path), NULL, NULL, 0, manifest, err);
}

static bool
fetch_pair(struct cli *c, const char *path, const char *beside, struct download *d, struct buf *manifest, json_t **ret,
           struct err *err)
{
	for (int i = 0; i < ATTEMPTS; i++) {
		char sha256[2 * SHA256_SIZE + 1];
		const json_t *said;

		buf_clear(manifest);
		json_decref(*ret);
		*ret = NULL;
		download_fini(d);
		if (!download_open(d, beside, err) || !download_get(d, c, path, sha256, manifest, err) ||
		    !fetch_manifest(c, path, manifest, err) ||
		    !json_parse("the manifest", buf_text(manifest), manifest->len, ret, err))
			return false;
		said = json_object_get(*ret, "sha256");
		if (json_is_string(said) && strcmp(json_string_value(said), sha256) == 0)
			return true;
	}
	return err_set(err, ERR_RETRY, "the month changed while it was read; try again, or close it first");
}

/* FILE and FILE.manifest.json, under the name that the aggregator gives it. */
static bool
save_pair(struct cli *c, const char *path, const char *dir, struct err *err)
{
	owned(json) json_t *about = NULL;
	in_place(download) struct download d = {.fd = -1};
	in_place(buf) struct buf manifest = {0}, file = {0};
	const char *name = NULL;

	buf_init(&manifest, CLI_TEXT_BYTES);
	buf_init(&file, CLI_PATH_BYTES);
	buf_printf(&file, "%s/.tollgate", dir);
	if (!buf_ok(&file, "the name of the file", err) ||
	    !fetch_pair(c, path, buf_text(&file), &d, &manifest, &about, err) ||
	    !json_get_str(about, "document", &name, err))
		return false;
	if (name[0] == '.' || strchr(name, '/') != NULL)
		return err_set(err, ERR_INVALID, "the aggregator names the document \"%.100s\"", name);
	buf_clear(&file);
	buf_printf(&file, "%s/%s", dir, name);
	if (!buf_ok(&file, "the name of the file", err) || !download_keep(&d, buf_text(&file), err))
		return false;
	puts(buf_text(&file));
	buf_str(&file, ".manifest.json");
	return buf_ok(&file, "the name of the file", err) &&
	       file_write_atomic(buf_text(&file), buf_text(&manifest), manifest.len, 0644, err);
}

static bool
is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- the command ---- */

struct wanted {
	const char *suffix; /* of the document */
	bool table;
};

/* The workloads behind one line instead of the document. */
static void
add_name(const struct cli *c, const struct wanted *want, struct buf *path)
{
	const char *line = cli_value(c, "detail");

	if (line == NULL)
		buf_printf(path, ".%s", want->suffix);
	else
		buf_printf(path, "/lines/%s.%s", line, want->suffix);
}

/* Reads --format, --out, --excel and --detail, and refuses combinations that contradict each other. */
static int
what_is_wanted(const struct cli *c, struct wanted *ret)
{
	static const char *const suffixes[][2] = {
		{"csv", "csv"}, {"focus", "focus.csv"}, {"json", "json"}, {"html", "html"}};
	const char *format = cli_value(c, "format");
	enum cli_output output = cli_output(c, OUTPUT_CSV);

	if (format != NULL && cli_value(c, "out") != NULL) {
		fprintf(stderr, "tollgate: --format and --out choose the same thing; give only one of them\n");
		return CLI_USAGE;
	}
	*ret = (struct wanted){.suffix = output == OUTPUT_CSV ? "csv" : "json",
	                       .table = output == OUTPUT_TABLE || output == OUTPUT_YAML};
	for (size_t i = 0; format != NULL && i < ARRAY_LEN(suffixes); i++)
		if (strcmp(format, suffixes[i][0]) == 0)
			ret->suffix = suffixes[i][1];
	if (ret->table && cli_value(c, "output") != NULL) {
		fprintf(stderr, "tollgate: a file is written as CSV or JSON: --out csv or --out json\n");
		return CLI_USAGE;
	}
	if (cli_value(c, "detail") != NULL &&
	    (strspn(cli_value(c, "detail"), "0123456789abcdef") != strlen(cli_value(c, "detail")) ||
	     (strcmp(ret->suffix, "csv") != 0 && strcmp(ret->suffix, "json") != 0))) {
		fprintf(stderr, "tollgate: --detail is a line_id of the report, as CSV or JSON\n");
		return CLI_USAGE;
	}
	if (cli_value(c, "excel") != NULL &&
	    (ret->table || cli_value(c, "detail") != NULL || strcmp(ret->suffix, "csv") != 0)) {
		fprintf(stderr, "tollgate: --excel is a form of the CSV\n");
		return CLI_USAGE;
	}
	if (cli_value(c, "focus-version") != NULL && strcmp(ret->suffix, "focus.csv") != 0) {
		fprintf(stderr, "tollgate: --focus-version is of --format focus\n");
		return CLI_USAGE;
	}
	return CLI_OK;
}

static void
add_query(const struct cli *c, const char *suffix, struct buf *path)
{
	cli_query(path, "tenant", cli_value(c, "tenant"));
	cli_query(path, "excel", cli_value(c, "excel") != NULL ? "1" : NULL);
	if (strcmp(suffix, "focus.csv") == 0)
		cli_query(path, "focus_version", cli_value(c, "focus-version"));
}

static int
save_all(struct cli *c, const char *month, const char *suffix, const char *dir)
{
	const char *version = cli_value(c, "focus-version");
	const char *const suffixes[] = {suffix, strcmp(suffix, "focus.csv") == 0 ? "focus-periods.csv" : NULL,
	                                version != NULL && strcmp(version, "1.4") == 0 ? "focus-invoices.csv" : NULL};
	struct err err = {0};

	for (size_t i = 0; i < ARRAY_LEN(suffixes) && suffixes[i] != NULL; i++) {
		in_place(buf) struct buf path = {0};

		buf_init(&path, CLI_PATH_BYTES);
		buf_printf(&path, "%s.%s", month, suffixes[i]);
		add_query(c, suffixes[i], &path);
		if (!save_pair(c, buf_text(&path), dir, &err))
			return cli_fail(&err);
	}
	return CLI_OK;
}

int
cmd_report(struct cli *c)
{
	const char *file = cli_value(c, "output"), *line = cli_value(c, "detail");
	in_place(download) struct download d = {.fd = -1};
	in_place(buf) struct buf path = {0};
	struct wanted want;
	struct err err = {0};
	int code = what_is_wanted(c, &want);

	buf_init(&path, CLI_PATH_BYTES);
	if (code == CLI_OK)
		code = report_month(c, &path);
	if (code != CLI_OK)
		return code;
	if (cli_value(c, "recompute") != NULL)
		return cli_recompute(c, strrchr(buf_text(&path), '/') + 1);
	if (file != NULL && line == NULL && is_directory(file))
		return save_all(c, buf_text(&path), want.suffix, file);
	add_name(c, &want, &path);
	add_query(c, want.suffix, &path);
	if (want.table)
		return print_table(c, buf_text(&path), line != NULL ? "rows" : "lines");
	if ((file != NULL && !download_open(&d, file, &err)) ||
	    !download_get(&d, c, buf_text(&path), NULL, NULL, &err) || (file != NULL && !download_keep(&d, file, &err)))
		return cli_fail(&err);
	return CLI_OK;
}

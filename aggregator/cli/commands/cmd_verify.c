/* aggregator/cli/commands/cmd_verify.c - tollgate verify: compares the ledger with its evidence, one node and day per request, so that progress
 * can be shown. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"

#define CLEAR_LINE "\r\033[K"
#define COLUMNS "kind,node,gpu,hour,what,expected,found,difference"

/* Sum of all replies; printed by --out json. */
struct verified {
	json_t *whole, *differences; /* differences is a member of whole */
	bool terminal;               /* standard error is one that can */
};

/* The counts of an answer, their names in the last line, and whether they make the proof incomplete. Several answers are added up. */
static const struct {
	const char *name, *text;
	bool missing;
} counts[] = {
	{"count", NULL, false},
	{"left_out", NULL, false},
	{"nodes", "nodes", false},
	{"hours", "node-hours", false},
	{"batches", "batches", false},
	{"records", "records", false},
	{"days", "days", false},
	{"charges", "charges", false},
	{"months", "closed months", false},
	{"documents", "documents", false},
	{"lines", "lines", false},
	{"lines_rated", "lines rated again", false},
	{"rows", "rows by the journal", false},
	{"schema", "objects of the schema", false},
	{"entries", "audit entries", false},
	{"events", "quota events", false},
	{"journal", "journal entries", false},
	{"seals", "seals", false},
	{"pending", "node-hours are being made again from records that came late", true},
	{"hours_unproved", "node-hours have lost their batches (keep_batches)", true},
	{"days_gone", "days have lost their hours (keep_hours)", true},
	{"days_open", "days are not folded: reports compute them from their hours at every reading", false},
	{"months_changed", "closed months have changed since: the first open month corrects them", false},
	{"months_earlier",
         "closed months were rated by the rules of an earlier release: the journal proves their lines, and nothing rates them again",
         false},
	{"quarantined", "batches are in quarantine, and billed to nobody", false},
	{"set_aside", "times a GPU's records of a batch are set aside, and billed to nobody", false},
	{"unsealed", "entries are not sealed yet: who rewrites one before its seal is not found out", false},
	{"batches_outside", "batches lie outside this time: their bytes were not read", false},
	{"unanchored", "batches came within the last minute or so: nothing but their own hash proves them yet", false},
	{"schema_texts",
         "definitions are printed otherwise by this version of PostgreSQL: only their other properties were compared",
         false},
};
enum { COUNT, LEFT_OUT, FIRST_SHOWN, FIRST_ROWS = 8, FIRST_SKIPPED = 18 };

static bool
add_counts(struct verified *v, const json_t *reply, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		int64_t some = 0;

		if (json_object_get(reply, counts[i].name) == NULL)
			continue;
		if (!json_get_i64(reply, counts[i].name, &some, err))
			return false;
		json_object_set_new(v->whole, counts[i].name,
		                    json_integer(json_integer_value(json_object_get(v->whole, counts[i].name)) + some));
	}
	json_array_extend(v->differences, json_object_get(reply, "differences"));
	return true;
}

static json_int_t
count_of(const struct verified *v, size_t i)
{
	return json_integer_value(json_object_get(v->whole, counts[i].name));
}

/* One answer, with a line on a terminal while it is awaited. */
static bool
ask(struct cli *c, struct verified *v, const char *path, const char *step, json_t **ret, struct err *err)
{
	bool ok;

	if (v->terminal)
		fprintf(stderr, CLEAR_LINE "%s", step);
	ok = cli_get_json(c, path, ret, err) && add_counts(v, *ret, err);
	if (v->terminal)
		fputs(CLEAR_LINE, stderr);
	return ok;
}

static bool
ask_part(struct cli *c, struct verified *v, const char *range, const char *name, const char *value, const char *step,
         struct err *err)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, range);
	cli_query(&path, name, value);
	if (!ask(c, v, buf_text(&path), step, &reply, err))
		return false;
	/* A day's answer is about a part of the range. */
	if (json_object_get(v->whole, "from") == NULL) {
		json_object_set(v->whole, "from", json_object_get(reply, "from"));
		json_object_set(v->whole, "to", json_object_get(reply, "to"));
	}
	return true;
}

/* --- the parts --- */

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
ask_nodes(struct cli *c, struct verified *v, const char *range, struct err *err)
{
	owned(json) json_t *nodes = NULL;

	if (!list_nodes(c, &nodes, err))
		return false;
	if (json_array_size(nodes) == 0)
		return ask_part(c, v, range, "part", "nodes", "nodes", err);
	for (size_t i = 0; i < json_array_size(nodes); i++) {
		const char *name = "";
		char step[320];

		if (!json_get_str(json_array_get(nodes, i), "name", &name, err))
			return false;
		snprintf(step, sizeof(step), "node %zu of %zu: %s", i + 1, json_array_size(nodes), name);
		if (!ask_part(c, v, range, "node", name, step, err))
			return false;
	}
	return true;
}

/* Days that begin in the range, as many as begin in 24 hours at a time: no answer takes long. The answers about nodes have the range in whole
 * hours, so that no day is asked for twice. */
static bool
ask_days(struct cli *c, struct verified *v, struct err *err)
{
	const char *from = "", *to = "";
	int64_t from_ns, to_ns;

	if (!json_get_str(v->whole, "from", &from, err) || !json_get_str(v->whole, "to", &to, err) ||
	    !time_parse(from, &from_ns, err) || !time_parse(to, &to_ns, err))
		return false;
	for (int64_t at_ns = from_ns; at_ns < to_ns; at_ns += NS_PER_DAY) {
		char first[TIME_TEXT_SIZE], last[TIME_TEXT_SIZE], step[64 + TIME_TEXT_SIZE];
		in_place(buf) struct buf path = {0};

		buf_init(&path, CLI_PATH_BYTES);
		buf_str(&path, "/v1/conservation/differences");
		time_format(at_ns, first);
		cli_query(&path, "from", first);
		cli_query(&path, "to", time_format(at_ns + NS_PER_DAY < to_ns ? at_ns + NS_PER_DAY : to_ns, last));
		snprintf(step, sizeof(step), "days and charges from %s", first);
		if (!ask_part(c, v, buf_text(&path), "part", "days", step, err))
			return false;
	}
	return true;
}

/* The chains of the audit log have no range: they are proved from their beginning. */
static bool
ask_audit(struct cli *c, struct verified *v, struct err *err)
{
	char next[64] = "";

	do {
		owned(json) json_t *reply = NULL;
		in_place(buf) struct buf path = {0};
		const char *after;

		buf_init(&path, CLI_PATH_BYTES);
		buf_str(&path, "/v1/audit/differences");
		cli_query(&path, "after", next[0] != '\0' ? next : NULL);
		cli_query(&path, "seal", cli_value(c, "seal"));
		if (!ask(c, v, buf_text(&path), "audit log", &reply, err))
			return false;
		after = json_string_value(json_object_get(reply, "next"));
		snprintf(next, sizeof(next), "%s", after != NULL ? after : "");
	} while (next[0] != '\0');
	return true;
}

/* --- the range --- */

/* --month and --all as from and to; "": the ledger has nothing of it. */
static bool
period_range(struct cli *c, struct buf *path, struct err *err)
{
	const char *month = cli_value(c, "month"), *from = NULL, *to = NULL;
	owned(json) json_t *periods = NULL;

	if (!cli_get_json(c, "/v1/periods", &periods, err))
		return false;
	for (size_t i = 0; i < json_array_size(periods); i++) {
		const json_t *p = json_array_get(periods, i);
		const char *name = "", *starts_at = "", *ends_at = "";

		if (!json_get_str(p, "month", &name, err) || !json_get_str(p, "starts_at", &starts_at, err) ||
		    !json_get_str(p, "ends_at", &ends_at, err))
			return false;
		if (month != NULL && strcmp(name, month) != 0)
			continue;
		from = from == NULL || strcmp(starts_at, from) < 0 ? starts_at : from;
		to = to == NULL || strcmp(ends_at, to) > 0 ? ends_at : to;
	}
	if (from == NULL)
		return err_set(err, ERR_MISSING, "the ledger has nothing of %s", month != NULL ? month : "any month");
	cli_query(path, "from", from);
	cli_query(path, "to", to);
	return true;
}

/* Exit code 1 means a difference, and none was found. */
static int
not_proved(const struct err *err)
{
	int code = err->kind == ERR_INVALID ? cli_misuse(err) : cli_fail(err);

	return code == CLI_FAILED ? CLI_INCOMPLETE : code;
}

static int
add_range(struct cli *c, struct buf *path)
{
	static const char *const ranges[] = {"since", "from", "to", "this-month", "last-month", "month", "all"};
	bool period = cli_value(c, "month") != NULL || cli_value(c, "all") != NULL;
	struct err err = {0};
	int given = 0;

	for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
		given += cli_value(c, ranges[i]) != NULL;
	if (!period)
		return cli_add_range(c, path);
	if (given > 1) {
		(void)err_set(&err, ERR_INVALID, "--month and --all each say the whole range: give one of them alone");
		return cli_misuse(&err);
	}
	if (cli_value(c, "month") != NULL && !cli_month(cli_value(c, "month"), &err))
		return cli_misuse(&err);
	if (period_range(c, path, &err))
		return CLI_OK;
	return not_proved(&err);
}

/* --- the answer --- */

static bool
is_incomplete(const struct verified *v)
{
	for (size_t i = FIRST_SKIPPED; i < ARRAY_LEN(counts); i++)
		if (counts[i].missing && count_of(v, i) > 0)
			return true;
	/* A ledger without a node-hour in the range has nothing to prove there, and nothing was proved. */
	for (size_t i = FIRST_SHOWN + 1; i < FIRST_ROWS; i++)
		if (count_of(v, i) > 0)
			return false;
	return true;
}

static void
print_sentence(struct cli *c, const struct verified *v)
{
	bool node = cli_value(c, "node") != NULL;

	printf("%s to %s: ", json_string_value(json_object_get(v->whole, "from")),
	       json_string_value(json_object_get(v->whole, "to")));
	for (size_t i = FIRST_SHOWN; i < (node ? FIRST_SHOWN + 4 : FIRST_SKIPPED); i++)
		printf("%s%" JSON_INTEGER_FORMAT " %s", i > FIRST_SHOWN ? ", " : "", count_of(v, i), counts[i].text);
	if (count_of(v, COUNT) > 0)
		printf(": %" JSON_INTEGER_FORMAT " differences, %" JSON_INTEGER_FORMAT " of them not shown\n",
		       count_of(v, COUNT), count_of(v, LEFT_OUT));
	else
		puts(": no difference");
	for (size_t i = FIRST_SKIPPED; i < ARRAY_LEN(counts); i++)
		if (count_of(v, i) > 0)
			printf("%s: %" JSON_INTEGER_FORMAT " %s\n", counts[i].missing ? "Not proved" : "Not looked at",
			       count_of(v, i), counts[i].text);
	if (count_of(v, FIRST_SHOWN + 1) == 0 && is_incomplete(v))
		puts("Covered nothing: the ledger has no node-hour in this range. --all takes all that it has, --month a month.");
}

static int
print_verified(struct cli *c, const struct verified *v)
{
	int code = CLI_OK;

	if (count_of(v, COUNT) > 0 || cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		code = cli_print(c, v->differences, v->whole, COLUMNS);
	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE)
		print_sentence(c, v);
	return count_of(v, COUNT) > 0 ? CLI_FAILED : code != CLI_OK ? code : is_incomplete(v) ? CLI_INCOMPLETE : CLI_OK;
}

int
cmd_verify(struct cli *c)
{
	const char *term = getenv("TERM");
	owned(json) json_t *whole = json_pack("{s:[]}", "differences");
	struct verified v = {
		.whole = whole,
		.differences = json_object_get(whole, "differences"),
		.terminal = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0,
	};
	in_place(buf) struct buf path = {0};
	struct err err = {0};
	int code;

	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		json_object_set_new(whole, counts[i].name, json_integer(0));
	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/conservation/differences");
	code = add_range(c, &path);
	if (code != CLI_OK)
		return code;
	if (!ask_nodes(c, &v, buf_text(&path), &err) ||
	    (cli_value(c, "node") == NULL &&
	     (!ask_days(c, &v, &err) || !ask_part(c, &v, buf_text(&path), "part", "bills", "closed months", &err) ||
	      !ask_part(c, &v, buf_text(&path), "part", "rows", "rows", &err) || !ask_audit(c, &v, &err)))) {
		return not_proved(&err);
	}
	return print_verified(c, &v);
}

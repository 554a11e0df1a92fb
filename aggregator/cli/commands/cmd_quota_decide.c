/* aggregator/cli/commands/cmd_quota_decide.c - tollgate quota decide, explain and record; get decisions, leases and reclaims. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "common/base/digest.h"
#include "common/base/labels.h"
#include "common/base/text.h"

/* ---- a decision as text ---------------------------------------------------------------------------------------------- */

static const char *
text_of(const json_t *o, const char *member)
{
	const char *s = json_string_value(json_object_get(o, member));

	return s != NULL ? s : "";
}

/* A JSON number with its decimals; null is no limit. */
static json_t *
amount(const json_t *o, const char *member)
{
	const json_t *v = json_object_get(o, member);
	in_place(buf) struct buf text = {0};

	buf_init(&text, 256);
	if (v == NULL || json_is_null(v))
		buf_str(&text, "none");
	else if (json_is_real(v))
		buf_printf(&text, "%.15g", json_real_value(v));
	else if (json_is_integer(v))
		buf_printf(&text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	else
		buf_str(&text, json_is_string(v) ? json_string_value(v) : "");
	return json_string(buf_text(&text));
}

static void
print_amount(const json_t *o, const char *member)
{
	owned(json) json_t *text = amount(o, member);

	fputs(json_string_value(text), stdout);
}

static void
print_nodes(const json_t *d)
{
	const json_t *nodes = json_object_get(d, "nodes");

	for (size_t i = 0; i < json_array_size(nodes); i++) {
		const json_t *n = json_array_get(nodes, i);

		fputs(i > 0 ? ", " : "on: ", stdout);
		print_amount(n, "count");
		printf(" at %s", text_of(n, "node"));
	}
	if (json_array_size(nodes) > 0)
		putchar('\n');
}

static const char *
gpus_word(const json_t *o)
{
	return json_number_value(json_object_get(o, "gpus")) == 1 ? " GPU" : " GPUs";
}

static void
print_victims(const json_t *d)
{
	const json_t *reasons = json_object_get(d, "reasons");

	for (size_t i = 0; i < json_array_size(reasons); i++) {
		const json_t *v = json_array_get(reasons, i);

		if (!json_is_string(json_object_get(v, "id"))) {
			printf("takes back: another tenant's, ");
			print_amount(v, "gpus");
			printf("%s: %s\n", gpus_word(v), text_of(v, "why"));
			continue;
		}
		printf("takes back: %s of %s, ", text_of(v, "id"), text_of(v, "workspace"));
		print_amount(v, "gpus");
		printf("%s, priority ", gpus_word(v));
		print_amount(v, "priority");
		printf(": %s\n", text_of(v, "why"));
	}
}

static void
print_changes(const json_t *d)
{
	const json_t *changes = json_object_get(d, "changes");

	for (size_t i = 0; i < json_array_size(changes); i++) {
		const json_t *x = json_array_get(changes, i);
		owned(json) json_t *by = amount(x, "amount");

		printf("%s%s", i > 0 ? " and " : "would be admitted after: ", text_of(x, "change"));
		if (strcmp(json_string_value(by), "0") != 0)
			printf(" by %s %s", json_string_value(by), text_of(x, "unit"));
	}
	if (json_array_size(changes) > 0)
		putchar('\n');
}

static void
print_checks(const json_t *d)
{
	static const char *const amounts[] = {"need", "have", "leased", "held", "requested", "headroom"};
	const json_t *checks = json_object_get(d, "checks");
	owned(json) json_t *rows = json_array();

	for (size_t i = 0; i < json_array_size(checks); i++) {
		const json_t *k = json_array_get(checks, i);
		json_t *row = json_object();

		if (json_is_true(json_object_get(k, "after")))
			json_object_set_new(row, "rule", json_string("limit, after"));
		else
			json_object_set(row, "rule", json_object_get(k, "rule"));
		json_object_set(row, "scope", json_object_get(k, "scope"));
		json_object_set(row, "pool", json_object_get(k, "pool"));
		json_object_set_new(row, "holds", json_string(json_is_true(json_object_get(k, "ok")) ? "yes" : "NO"));
		for (size_t n = 0; n < ARRAY_LEN(amounts); n++)
			json_object_set_new(row, amounts[n], amount(k, amounts[n]));
		json_object_set(row, "unit", json_object_get(k, "unit"));
		json_array_append_new(rows, row);
	}
	if (json_array_size(rows) > 0)
		cli_print_table(rows);
}

static void
print_warnings(const json_t *d)
{
	const json_t *warnings = json_object_get(d, "warnings");

	for (size_t i = 0; i < json_array_size(warnings); i++) {
		owned(mem) char *text = mem_printf("warning: %s", json_string_value(json_array_get(warnings, i)));

		cli_print_paragraph(text);
	}
}

/* A decision, or the verdict of a dry run, which has no status. */
static void
print_decision(const json_t *reply)
{
	const json_t *verdict = json_object_get(reply, "verdict"), *d = verdict != NULL ? verdict : reply;
	const char *workspace = text_of(d, "workspace");
	int64_t position = 0;

	printf("request %s of %s: %s", text_of(reply, "request_id"), workspace, text_of(d, "decision"));
	if (text_of(reply, "status")[0] != '\0')
		printf(", %s", text_of(reply, "status"));
	if (text_of(reply, "rule")[0] != '\0')
		printf(" by the rule %s", text_of(reply, "rule"));
	if (strcmp(text_of(d, "would"), text_of(d, "decision")) != 0 && text_of(d, "would")[0] != '\0')
		printf(" (not enforced; by the rules: %s)", text_of(d, "would"));
	if (json_get_i64(d, "position", &position, NULL) && position > 0)
		printf(", position %" PRId64 " of the queue for %s GPUs", position,
		       strcmp(text_of(d, "queue_pool"), "shared") == 0 ? "shared" : "its own");
	if (text_of(reply, "ended_why")[0] != '\0')
		printf(", ended: %s", text_of(reply, "ended_why"));
	putchar('\n');
	if (text_of(d, "summary")[0] != '\0')
		cli_print_paragraph(text_of(d, "summary"));
	if (json_is_null(json_object_get(d, "expected_start")))
		printf("expected start: not known, %s\n", text_of(d, "expected_start_reason"));
	print_warnings(reply);
	print_nodes(d);
	print_victims(d);
	if (text_of(d, "summary")[0] == '\0')
		print_changes(d);
	print_checks(d);
}

/* Scripts see a reject as exit code 1. A queued request may still be admitted and is 0. */
static int
tell(const struct cli *c, json_t *reply)
{
	const json_t *verdict = json_object_get(reply, "verdict");
	const char *decision = text_of(verdict != NULL ? verdict : reply, "decision");
	int code = CLI_OK;

	if (cli_output(c, OUTPUT_TABLE) == OUTPUT_TABLE)
		print_decision(reply);
	else
		code = cli_print_one(c, reply);
	return strcmp(decision, "reject") == 0 ? CLI_FAILED : code;
}

/* ---- asking --------------------------------------------------------------------------------------------------------------- */

struct field {
	const char *option, *member;
	bool number;
};

static bool
add_fields(const struct cli *c, const struct field *fields, size_t n, json_t *request, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		const char *text = cli_value(c, fields[i].option);
		int64_t v = 0;

		if (text == NULL)
			continue;
		if (fields[i].number && !text_to_i64(text, &v))
			return err_set(err, ERR_INVALID, "--%s: \"%.40s\" is not a number", fields[i].option, text);
		json_object_set_new(request, fields[i].member, fields[i].number ? json_integer(v) : json_string(text));
	}
	return true;
}

/* A random request_id unless one is given. */
static void
add_id(const struct cli *c, json_t *request)
{
	uint8_t random[8];
	char id[4 + 2 * sizeof(random) + 1] = "cli-";

	if (cli_value(c, "id") != NULL) {
		json_object_set_new(request, "request_id", json_string(cli_value(c, "id")));
		return;
	}
	random_bytes(random, sizeof(random));
	hex_encode(random, sizeof(random), id + 4);
	json_object_set_new(request, "request_id", json_string(id));
}

/* "team=ml,app=web". The aggregator checks the labels. */
static bool
add_labels(const char *text, json_t *workload, struct err *err)
{
	json_t *labels = json_object();
	struct label l;

	json_object_set_new(workload, "labels", labels);
	while (labels_next(&text, &l)) {
		if (l.value == l.key + l.key_len)
			return err_set(err, ERR_INVALID, "--labels: \"%.*s\" is not KEY=VALUE",
			               (int)(l.key_len < 80 ? l.key_len : 80), l.key);
		json_object_setn_new(labels, l.key, l.key_len, json_stringn(l.value, l.value_len));
	}
	return true;
}

/* The workspace argument, or the workload that the options describe. */
static bool
add_workspace(const struct cli *c, json_t *request, struct err *err)
{
	static const struct field fields[] = {{"namespace", "namespace", false},
	                                      {"slurm-account", "slurm_account", false},
	                                      {"user", "user", false},
	                                      {"group", "group", false}};
	owned(json) json_t *workload = json_object();

	if (!add_fields(c, fields, ARRAY_LEN(fields), workload, err) ||
	    (cli_value(c, "labels") != NULL && !add_labels(cli_value(c, "labels"), workload, err)))
		return false;
	if ((c->word_count > 0) == (json_object_size(workload) > 0))
		return err_set(
			err, ERR_INVALID,
			"TENANT/WORKSPACE says whose it is, or --namespace, --labels, --slurm-account, --user and "
			"--group do: one of the two is needed");
	if (c->word_count > 0)
		json_object_set_new(request, "workspace", json_string(c->words[0]));
	else
		json_object_set(request, "workload", workload);
	return true;
}

static bool
make_request(const struct cli *c, json_t *request, struct err *err)
{
	static const struct field fields[] = {{"gpus", "gpus", true},
	                                      {"profile", "profile", false},
	                                      {"count", "count", true},
	                                      {"replicas", "replicas", true},
	                                      {"of", "of", true},
	                                      {"gpu-model", "gpu_model", false},
	                                      {"per-node", "per_node", true},
	                                      {"priority-class", "priority_class", false},
	                                      {"priority", "priority", true},
	                                      {"duration", "expected_duration", false},
	                                      {"expires", "expires", false},
	                                      {"cluster", "cluster", false}};

	add_id(c, request);
	if (!add_workspace(c, request, err))
		return false;
	if (cli_value(c, "preemptible") != NULL)
		json_object_set_new(request, "preemptible",
		                    json_boolean(strcmp(cli_value(c, "preemptible"), "yes") == 0));
	return add_fields(c, fields, ARRAY_LEN(fields), request, err);
}

int
cmd_quota_decide(struct cli *c)
{
	owned(json) json_t *request = json_object(), *reply = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	if (!make_request(c, request, &err))
		return cli_misuse(&err);
	buf_str(&path, "/v1/decisions");
	cli_query(&path, "dry_run", cli_value(c, "dry-run") != NULL ? "1" : NULL);
	cli_query(&path, "wait", cli_value(c, "wait"));
	if (!cli_post_json(c, buf_text(&path), request, &reply, &err))
		return cli_fail(&err);
	return tell(c, reply);
}

int
cmd_quota_explain(struct cli *c)
{
	owned(json) json_t *reply = NULL;
	in_place(buf) struct buf path = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "/v1/decisions/%s", c->words[0]);
	if (c->words[0][strcspn(c->words[0], "?#% ")] != '\0') {
		(void)err_set(&err, ERR_INVALID, "\"%.64s\" is not the id of a request", c->words[0]);
		return cli_misuse(&err);
	}
	cli_query(&path, "wait", cli_value(c, "wait"));
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	(void)tell(c, reply);
	return CLI_OK;
}

/* ---- the log -------------------------------------------------------------------------------------------------------------- */

int
cmd_quota_record(struct cli *c)
{
	in_place(buf) struct buf path = {0}, body = {0};
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_init(&body, CLI_REPLY_MAX);
	buf_str(&path, "/v1/quota/recording");
	cli_query(&path, "from_seq", cli_value(c, "from"));
	cli_query(&path, "to_seq", cli_value(c, "to"));
	if (!cli_call(c, "GET", buf_text(&path), NULL, NULL, 0, &body, &err))
		return cli_fail(&err);
	return fwrite(buf_text(&body), 1, body.len, stdout) == body.len ? CLI_OK : CLI_FAILED;
}

/* ---- lists ---------------------------------------------------------------------------------------------------------------- */

#define DECISION_COLUMNS                                                                                                            \
	"id,request_id,workspace,status,decision,would,rule,warn,position,expected_start,request,asked_by,submitted_at,changed_at," \
	"admitted_at,confirmed_at,seen_at,released_at,ended_at,ended_why,workload"
#define RECLAIM_COLUMNS \
	"id,lease,workspace,cause,for,state,ordered_at,due_at,due_in_seconds,acked_at,ended_at,seq,workload"

/* "1 GPU", "2 GPUs". */
static json_t *
counted(const json_t *asked, const char *member, const char *one)
{
	const json_int_t n = json_integer_value(json_object_get(asked, member));

	return json_sprintf("%" JSON_INTEGER_FORMAT " %s%s", n, one, n == 1 ? "" : "s");
}

json_t *
cli_requests_table(const json_t *rows, const char *const *columns, size_t n)
{
	json_t *table = json_array();

	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *r = json_array_get(rows, i), *asked = json_object_get(r, "request");
		json_t *row = json_object();

		for (size_t k = 0; k < n; k++)
			json_object_set(row, columns[k], json_object_get(r, columns[k]));
		if (json_object_get(asked, "profile") != NULL)
			json_object_set_new(row, "asked",
			                    json_sprintf("%" JSON_INTEGER_FORMAT " x %s",
			                                 json_integer_value(json_object_get(asked, "count")),
			                                 text_of(asked, "profile")));
		else if (json_object_get(asked, "replicas") != NULL)
			json_object_set_new(row, "asked", counted(asked, "replicas", "replica"));
		else if (asked != NULL)
			json_object_set_new(row, "asked", counted(asked, "gpus", "GPU"));
		json_array_append_new(table, row);
	}
	return table;
}

int
cli_get_decisions(struct cli *c, const char *list)
{
	static const char *const shown[] = {"request_id",   "workspace",  "status",         "decision",
	                                    "rule",         "position",   "expected_start", "asked_by",
	                                    "submitted_at", "changed_at", "confirmed_at",   "ended_why"};
	owned(json) json_t *rows = json_array(), *table = NULL;
	in_place(buf) struct buf path = {0};
	int code;

	buf_init(&path, CLI_PATH_BYTES);
	buf_printf(&path, "/v1/%s", list);
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	code = cli_get_pages(c, buf_text(&path), list, 0, rows);
	if (code != CLI_OK || cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return code != CLI_OK ? code : cli_print(c, rows, rows, DECISION_COLUMNS);
	table = cli_requests_table(rows, shown, ARRAY_LEN(shown));
	return cli_print(c, table, table, DECISION_COLUMNS);
}

int
cli_get_reclaims(struct cli *c)
{
	static const char *const shown[] = {"id",    "lease",      "workspace", "cause",   "for",
	                                    "state", "ordered_at", "due_at",    "acked_at"};
	owned(json) json_t *reply = NULL, *table = NULL;
	in_place(buf) struct buf path = {0};
	const json_t *rows;
	struct err err = {0};

	buf_init(&path, CLI_PATH_BYTES);
	buf_str(&path, "/v1/reclaims");
	cli_query(&path, "tenant", cli_value(c, "tenant"));
	if (!cli_get_json(c, buf_text(&path), &reply, &err))
		return cli_fail(&err);
	rows = json_object_get(reply, "reclaims");
	if (cli_output(c, OUTPUT_TABLE) != OUTPUT_TABLE)
		return cli_print(c, rows, rows, RECLAIM_COLUMNS);
	table = cli_requests_table(rows, shown, ARRAY_LEN(shown));
	return cli_print(c, table, table, RECLAIM_COLUMNS);
}

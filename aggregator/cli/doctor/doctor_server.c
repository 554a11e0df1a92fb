/* aggregator/cli/doctor/doctor_server.c - probes of the aggregator: reachability, access, and gaps in the ledger. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#include "aggregator/cli/doctor/doctor.h"
#include "common/base/money.h"

/* GET; without a reply the status is 0 and text has the reason. *ret_body is the body of a 200. */
static void
ask(struct doctor *d, struct httpc *client, const char *path, struct buf *ret_body, struct facts *f)
{
	struct httpc_reply reply = {0};
	int64_t sent_ns = time_wall_ns();
	struct err err = {0};

	buf_init(&reply.body, CLI_REPLY_MAX);
	if (!httpc_call(client, "GET", path, NULL, NULL, 0, &reply, &err)) {
		snprintf(f->text, sizeof(f->text), "%.*s", DOCTOR_TEXT - 1, err.text);
	} else {
		f->status = reply.status;
		if (reply.date_wall_ns >= 0 && !d->clock_seen) {
			/* the Date header has whole seconds: a difference within that second does not count */
			int64_t low = reply.date_wall_ns, high = reply.date_wall_ns + NS_PER_S, got_ns = time_wall_ns();

			d->difference_ns = got_ns < low ? got_ns - low : sent_ns > high ? sent_ns - high : 0;
			d->clock_seen = true;
		}
		if (reply.status >= 400) {
			(void)httpc_problem(&reply, "it says", &err);
			snprintf(f->text, sizeof(f->text), "%.*s", DOCTOR_TEXT - 1, err.text);
		}
	}
	if (ret_body != NULL && f->status == 200) {
		buf_fini(ret_body);
		*ret_body = reply.body;
	} else {
		buf_fini(&reply.body);
	}
}

static bool
ask_json(struct doctor *d, const char *path, json_t **ret, struct facts *f)
{
	in_place(buf) struct buf body = {0};

	buf_init(&body, 0);
	ask(d, d->with, path, &body, f);
	return f->status == 200 && json_parse(path, buf_text(&body), body.len, ret, NULL);
}

void
probe_reachable(struct doctor *d, struct facts *ret)
{
	snprintf(ret->thing, sizeof(ret->thing), "%s", d->url);
	ask(d, d->open, "/healthz", NULL, ret);
	d->reachable = ret->status != 0;
}

void
probe_database(struct doctor *d, struct facts *ret)
{
	ret->absent = !d->reachable;
	if (!ret->absent)
		ask(d, d->open, "/readyz", NULL, ret);
}

void
probe_token_file(struct doctor *d, struct facts *ret)
{
	struct stat st;
	int fd;

	if (d->token_file == NULL)
		return;
	snprintf(ret->thing, sizeof(ret->thing), "%s", d->token_file);
	fd = open(d->token_file, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) != 0)
		ret->errnum = errno;
	else
		ret->mode = st.st_mode;
	if (fd >= 0)
		close(fd);
}

static const char *
text_of(const json_t *row, const char *field)
{
	const char *text = json_string_value(json_object_get(row, field));

	return text != NULL ? text : "";
}

/* The token's role, tenant or node, and expiry. */
void
probe_token(struct doctor *d, struct facts *ret)
{
	owned(json) json_t *row = NULL;
	const char *tenant, *node;
	int64_t expires_ns;

	ret->absent = !d->reachable || d->with == NULL;
	ret->difference_ns = -1;
	if (ret->absent || !ask_json(d, "/v1/whoami", &row, ret))
		return;
	d->accepted = true;
	tenant = text_of(row, "tenant");
	node = text_of(row, "node");
	snprintf(ret->text, sizeof(ret->text), "%s%s%s%s%s", text_of(row, "role"), tenant[0] ? ", tenant " : "", tenant,
	         node[0] ? ", node " : "", node);
	if (time_parse(text_of(row, "expires"), &expires_ns, NULL))
		ret->difference_ns = expires_ns > d->now_wall_ns ? expires_ns - d->now_wall_ns : 0;
}

void
probe_clock(struct doctor *d, struct facts *ret)
{
	ret->absent = !d->clock_seen;
	ret->difference_ns = d->difference_ns;
}

void
probe_ntp(struct doctor *d, struct facts *ret)
{
	struct timex t = {.modes = 0};
	int state = adjtimex(&t);

	(void)d;
	ret->absent = state < 0;
	ret->count = state != TIME_ERROR && (t.status & STA_UNSYNC) == 0;
}

/* ---- gaps in the ledger ---- */

/* Compares whole names: "gpu-1" is not in "gpu-10, gpu-2". */
static bool
has_name(const char *names, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = names; *at != '\0'; at += strspn(at, ", ")) {
		size_t len = strcspn(at, ",");

		if (len == n && memcmp(at, name, n) == 0)
			return true;
		at += len;
	}
	return false;
}

static void
add_name(struct facts *f, const char *name)
{
	size_t n = strlen(f->text);

	if (!has_name(f->text, name) && n + strlen(name) + 6 < sizeof(f->text))
		snprintf(f->text + n, sizeof(f->text) - n, "%s%s", n > 0 ? ", " : "", name);
}

void
probe_nodes(struct doctor *d, struct facts *ret)
{
	owned(json) json_t *nodes = NULL;

	ret->absent = !d->accepted || !ask_json(d, "/v1/nodes", &nodes, ret);
	for (size_t i = 0; i < json_array_size(nodes); i++) {
		const json_t *node = json_array_get(nodes, i);

		if (text_of(node, "covered_until")[0] == '\0')
			continue; /* declared in the policy, but has sent nothing */
		ret->of++;
		if (json_is_true(json_object_get(node, "silent"))) {
			ret->count++;
			add_name(ret, text_of(node, "name"));
		}
	}
}

void
probe_held_nodes(struct doctor *d, struct facts *ret)
{
	owned(json) json_t *nodes = NULL;

	ret->absent = !d->accepted || !ask_json(d, "/v1/nodes", &nodes, ret);
	for (size_t i = 0; i < json_array_size(nodes); i++) {
		const json_t *node = json_array_get(nodes, i);

		if (strcmp(text_of(node, "approval"), "held") != 0)
			continue;
		ret->count++;
		add_name(ret, text_of(node, "name"));
	}
	ret->absent = ret->absent || ret->count == 0;
}

/* The first page of undecided batches, without those of held nodes, which the check before reports. */
void
probe_quarantine(struct doctor *d, struct facts *ret)
{
	owned(json) json_t *page = NULL;
	const json_t *batches;

	ret->absent = !d->accepted || !ask_json(d, "/v1/quarantine?decision=open", &page, ret);
	batches = json_object_get(page, "batches");
	for (size_t i = 0; i < json_array_size(batches); i++) {
		const json_t *b = json_array_get(batches, i);

		if (strcmp(text_of(b, "class"), "unapproved") == 0)
			continue;
		ret->count++;
		add_name(ret, text_of(b, "node"));
	}
	ret->of = json_is_integer(json_object_get(page, "next")) ? ret->count + 1 : ret->count;
	ret->absent = ret->absent || ret->count == 0;
}

/* Counts and names the nodes of which this field is true. */
static void
name_nodes(const struct doctor *d, const char *field, struct facts *ret)
{
	ret->absent = d->live == NULL || json_array_size(d->live) == 0;
	ret->of = (int64_t)json_array_size(d->live);
	for (size_t i = 0; i < json_array_size(d->live); i++) {
		const json_t *node = json_array_get(d->live, i);

		if (!json_is_true(json_object_get(node, field)))
			continue;
		ret->count++;
		add_name(ret, text_of(node, "node"));
	}
}

void
probe_live(struct doctor *d, struct facts *ret)
{
	if (d->accepted && d->live == NULL)
		(void)ask_json(d, "/v1/status", &d->live, ret);
	name_nodes(d, "silent", ret);
}

void
probe_node_clocks(struct doctor *d, struct facts *ret)
{
	name_nodes(d, "skewed", ret);
}

void
probe_unattributed(struct doctor *d, struct facts *ret)
{
	const json_t *lines;
	int128 sum = 0;
	char text[DECIMAL_TEXT_SIZE];

	ret->absent = !d->accepted || !ask_json(d, "/v1/reports/current.json", &d->report, ret);
	lines = json_object_get(d->report, "lines");
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *line = json_array_get(lines, i);
		int128 v = 0;

		if (strcmp(text_of(line, "tenant"), "unattributed") == 0 &&
		    decimal_parse(text_of(line, "allocated_gpu_hours"), QUANTITY_SCALE, &v, NULL))
			sum += v;
	}
	if (sum > 0)
		snprintf(ret->text, sizeof(ret->text), "%s", decimal_format(sum, QUANTITY_SCALE, 2, text));
}

/* The name of the price item that the line needs: GPU model and MIG profile, or SKU and category of an event. */
static void
name_of_line(const json_t *line, char ret[DOCTOR_TEXT])
{
	const char *model = text_of(line, "gpu_model"), *profile = text_of(line, "mig_profile");
	const char *sku = text_of(line, "sku"), *category = text_of(line, "category");

	if (model[0] != '\0')
		snprintf(ret, DOCTOR_TEXT, "%s%s%s", model, profile[0] != '\0' ? " " : "", profile);
	else if (sku[0] != '\0' && strcmp(sku, category) != 0)
		snprintf(ret, DOCTOR_TEXT, "%s (%s)", sku, category);
	else
		snprintf(ret, DOCTOR_TEXT, "%s", category);
}

void
probe_prices(struct doctor *d, struct facts *ret)
{
	const json_t *lines = json_object_get(d->report, "lines");

	ret->absent = d->report == NULL;
	ret->of = (int64_t)json_array_size(lines);
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *line = json_array_get(lines, i);

		if (text_of(line, "unit_price")[0] == '\0') {
			char name[DOCTOR_TEXT];

			name_of_line(line, name);
			ret->count++;
			add_name(ret, name);
		}
	}
}

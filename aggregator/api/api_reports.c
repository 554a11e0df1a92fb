/* aggregator/api/api_reports.c - /v1/reports, /v1/usage, /v1/conservation. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/api/api.h"
#include "aggregator/store/verify/verify.h"
#include "aggregator/core/reports/focus.h"
#include "aggregator/store/billing/document.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/usage/usage.h"
#include "common/base/time.h"

/* ---- reports of a month ---- */

#define DAY_LENGTH 10 /* 2026-11-01 */

/* A query parameter that is a time in RFC 3339, or a day, which means its start in the billing zone. */
static bool
time_point(struct db *db, const struct http_request *rq, const char *name, int64_t preset_ns, int64_t *ret_ns,
           struct err *err)
{
	const char *text = http_query(rq, name);
	char moment[TIME_TEXT_SIZE];

	*ret_ns = preset_ns;
	if (text == NULL)
		return true;
	if (strlen(text) != DAY_LENGTH)
		return time_parse(text, ret_ns, err) || err_prefix(err, "%s", name);
	snprintf(moment, sizeof(moment), "%.10sT00:00:00Z", text);
	return (time_parse(moment, ret_ns, err) || err_prefix(err, "%s", name)) &&
	       store_day_start(db, text, ret_ns, err);
}

bool
api_range(struct db *db, const struct http_request *rq, int64_t now_ns, int64_t *ret_from_ns, int64_t *ret_to_ns,
          struct err *err)
{
	int64_t to_ns, from_ns;

	if (!time_point(db, rq, "to", now_ns, &to_ns, err) ||
	    !time_point(db, rq, "from", to_ns - NS_PER_DAY, &from_ns, err))
		return false;
	if (from_ns >= to_ns)
		return err_set(err, ERR_INVALID, "from: must be before to");
	*ret_from_ns = from_ns;
	*ret_to_ns = to_ns;
	return true;
}

void
handle_conservation(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	int64_t from_ns, to_ns;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_range(w->db, rq, time_wall_ns(), &from_ns, &to_ns, &err) ||
	    !store_conservation_json(w->db, from_ns, to_ns, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

#define MANIFEST_MAX (16u << 10)
#define LINE_MAX 64

/* "2026-11.csv" is period and format; the period "current" is the present one. */
static bool
report_name(const char *tail, char ret_period[API_PERIOD_SIZE], enum document_format *ret_format)
{
	const char *dot = strchr(tail, '.');

	if (dot == NULL || dot - tail >= API_PERIOD_SIZE)
		return false;
	memcpy(ret_period, tail, (size_t)(dot - tail));
	ret_period[dot - tail] = '\0';
	for (int i = 0; i < DOCUMENT_FORMATS; i++)
		if (strcmp(dot + 1, document_suffix((enum document_format)i)) == 0) {
			*ret_format = (enum document_format)i;
			return true;
		}
	return false;
}

/* The query parameters of a report. */
static bool
report_flags(const struct http_request *rq, enum document_format *format, bool *ret_manifest, struct err *err)
{
	static const char *const yes_no[] = {"0", "1", NULL};
	const char *manifest = NULL, *excel = NULL, *version = NULL;

	if (!api_query(rq, "manifest", yes_no, &manifest, err) || !api_query(rq, "excel", yes_no, &excel, err) ||
	    !api_query(rq, "focus_version", focus_versions, &version, err))
		return false;
	if (version != NULL && (*format != DOCUMENT_FOCUS || !document_focus_format(version, format)))
		return err_set(err, ERR_INVALID, "focus_version: only .focus.csv has versions");
	*ret_manifest = manifest != NULL && strcmp(manifest, "1") == 0;
	if (excel == NULL || strcmp(excel, "0") == 0)
		return true;
	if (*format != DOCUMENT_CSV)
		return err_set(err, ERR_INVALID, "excel: only the chargeback CSV has a form for spreadsheets");
	*format = DOCUMENT_EXCEL;
	return true;
}

static const char *
report_type(enum document_format format)
{
	if (format == DOCUMENT_JSON)
		return "application/json";
	return format == DOCUMENT_HTML ? "text/html; charset=utf-8" : "text/csv; charset=utf-8; header=present";
}

static void
reply_file(const struct spill_file *file, bool gzip, struct http_reply *rp)
{
	hex_encode(file->sha256, SHA256_SIZE, rp->etag);
	rp->vary = "Accept-Encoding";
	rp->file = file->fd;
	rp->file_len = (size_t)file->len;
	rp->content_encoding = gzip ? "gzip" : NULL;
	rp->weak = gzip;
}

/* The document, or its manifest, as the reply. */
static bool
report_reply(struct worker *w, const struct http_request *rq, const struct document_request *doc, bool manifest,
             struct http_reply *rp, struct err *err)
{
	bool gzip = !manifest && http_takes_gzip(http_header(rq, "Accept-Encoding"));
	owned(spill) struct spill *spill = NULL;
	struct manifest_document about = {.name = rp->filename, .period = doc->period, .tenant = doc->tenant};
	struct document_result result = {0};
	struct spill_file file;
	in_place(buf) struct buf text = {0};

	buf_init(&text, MANIFEST_MAX);
	/* the variant for spreadsheets has its own name, so that it cannot overwrite the file that finance imports */
	snprintf(rp->filename, sizeof(rp->filename), "tollgate-%.7s%s%.48s.%s", doc->period,
	         doc->tenant != NULL ? "-" : "", doc->tenant != NULL ? doc->tenant : "",
	         doc->format == DOCUMENT_EXCEL || doc->format == DOCUMENT_FOCUS_1_3 || doc->format == DOCUMENT_FOCUS_1_4
	                 ? document_name(doc->format)
	                 : document_suffix(doc->format));
	if (!spill_new(gzip, &spill, err) || !store_document(w->db, doc, spill, &result, err) ||
	    !spill_end(spill, &file, err))
		return false;
	about.period_status = result.period_status;
	about.bytes = file.plain_len;
	memcpy(about.sha256, file.sha256, sizeof(about.sha256));
	manifest_json(&result.sums, &about, &text);
	if (manifest) {
		close(file.fd);
		buf_add(&rp->body, buf_text(&text), text.len);
		rp->content_type = "application/json";
		rp->filename[0] = '\0';
		return true;
	}
	/* The manifest comes with the document: a second request in an open month would describe a newer document. */
	rp->manifest = mem_printf("%.*s", (int)strcspn(buf_text(&text), "\n"), buf_text(&text));
	rp->content_type = report_type(doc->format);
	reply_file(&file, gzip, rp);
	return true;
}

/* "2026-11/lines/ID", as CSV unless it ends in .json; false: another path. */
static bool
detail_name(const char *tail, char ret_period[API_PERIOD_SIZE], char ret_line[LINE_MAX], bool *ret_json)
{
	static const char between[] = "/lines/";
	const char *slash = strchr(tail, '/'), *line, *dot;
	size_t len;

	if (slash == NULL || slash - tail >= API_PERIOD_SIZE || strncmp(slash, between, strlen(between)) != 0)
		return false;
	line = slash + strlen(between);
	dot = strchr(line, '.');
	len = dot != NULL ? (size_t)(dot - line) : strlen(line);
	if (len == 0 || len >= LINE_MAX || (dot != NULL && strcmp(dot, ".csv") != 0 && strcmp(dot, ".json") != 0))
		return false;
	memcpy(ret_period, tail, (size_t)(slash - tail));
	ret_period[slash - tail] = '\0';
	memcpy(ret_line, line, len);
	ret_line[len] = '\0';
	*ret_json = dot != NULL && strcmp(dot, ".json") == 0;
	return true;
}

/* The audit log names the month itself, because "current" will mean another one. */
static void
note_report(struct app *app, const struct worker *w, const char *tenant, const char *period, const char *tail)
{
	char subject[API_PERIOD_SIZE + LINE_MAX + 32];

	snprintf(subject, sizeof(subject), "report %s%s", period, tail + strcspn(tail, "./"));
	api_note_read(app, w, tenant, "report.read", subject);
}

static void
reply_detail(struct app *app, struct worker *w, const struct http_request *rq, struct detail_request *d,
             char period[API_PERIOD_SIZE], struct http_reply *rp)
{
	bool gzip = http_takes_gzip(http_header(rq, "Accept-Encoding"));
	owned(spill) struct spill *spill = NULL;
	struct spill_file file;
	const char *month; /* period */
	struct err err = {0};
	int64_t rows;

	if (!api_tenant(w, rq, &d->tenant, rp))
		return;
	if (!api_period_of(w->db, period, period, &month, &err) || !spill_new(gzip, &spill, &err) ||
	    !store_detail(w->db, d, spill, &rows, &err) || !spill_end(spill, &file, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	rp->content_type = report_type(d->json ? DOCUMENT_JSON : DOCUMENT_CSV);
	reply_file(&file, gzip, rp);
	note_report(app, w, d->tenant, period, rq->tail);
}

void
handle_report(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const struct aggregator_options *o = ((const struct app *)app)->options;
	struct worker *w = worker;
	char period[API_PERIOD_SIZE];
	struct document_request doc = {.period = period,
	                               .organisation = o->organisation,
	                               .provider = o->provider_name,
	                               .now_ns = time_wall_ns()};
	char line[LINE_MAX];
	struct detail_request detail = {.period = period, .line_id = line};
	bool manifest = false;
	const char *month; /* period */
	struct err err = {0};

	if (detail_name(rq->tail, period, line, &detail.json)) {
		reply_detail(app, w, rq, &detail, period, rp);
		return;
	}
	if (!report_name(rq->tail, period, &doc.format)) {
		http_problem(
			rp, rq, 404, NULL,
			"there is no report \"%.32s\"; ask for YYYY-MM.csv, .json, .html, .focus.csv, .focus-periods.csv or .focus-invoices.csv, or YYYY-MM/lines/ID",
			rq->tail);
		return;
	}
	if (!api_tenant(w, rq, &doc.tenant, rp))
		return;
	if (!report_flags(rq, &doc.format, &manifest, &err) || !api_period_of(w->db, period, period, &month, &err) ||
	    !report_reply(w, rq, &doc, manifest, rp, &err)) {
		rp->filename[0] = '\0';
		http_problem_err(rp, rq, &err);
		return;
	}
	note_report(app, w, doc.tenant, period, rq->tail);
	/* browsers show pages and JSON, and save tables */
	if (doc.format == DOCUMENT_JSON || doc.format == DOCUMENT_HTML)
		rp->filename[0] = '\0';
}

/* ---- usage ---- */

#define PAGE_GROUPS 10000
#define CURSOR_BYTES (64u << 10)

/* The parameters of a usage query; the link to the next page repeats them. */
static const char *const parameters[] = {"group_by", "tenant", "workspace", "cluster", "user", "gpu_model",
                                         "node",     "limit",  "exact",     "format",  "cost"};

static void
add_escaped(struct buf *out, const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
		if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
		    strchr("-._~,:/", *p) != NULL)
			buf_char(out, (char)*p);
		else
			buf_printf(out, "%%%02X", *p);
}

/* The Link header of RFC 8288, so that a CSV reply names its next page too. */
static void
link_next(const struct http_request *rq, const char *cursor, struct http_reply *rp)
{
	in_place(buf) struct buf link = {0};

	buf_init(&link, 2 * CURSOR_BYTES);
	buf_str(&link, "</v1/usage?cursor=");
	buf_str(&link, cursor);
	for (size_t i = 0; i < ARRAY_LEN(parameters); i++) {
		const char *value = http_query(rq, parameters[i]);

		if (value == NULL)
			continue;
		buf_printf(&link, "&%s=", parameters[i]);
		add_escaped(&link, value);
	}
	buf_str(&link, ">; rel=\"next\"");
	if (!link.over)
		rp->link = mem_strdup(buf_text(&link));
}

static bool
wants_csv(const struct http_request *rq, bool *ret, struct err *err)
{
	static const char *const formats[] = {"json", "csv", NULL};
	const char *format = NULL, *accept = http_header(rq, "Accept");

	if (!api_query(rq, "format", formats, &format, err))
		return false;
	*ret = format != NULL ? strcmp(format, "csv") == 0 : accept != NULL && strstr(accept, "text/csv") != NULL;
	return true;
}

static bool
read_query(struct worker *w, const struct http_request *rq, struct usage_query *q, struct err *err)
{
	static const char *const yes[] = {"1", "0", NULL};
	const char *exact = NULL, *cost = NULL;

	if (!api_query(rq, "group_by", NULL, &q->group_by, err) ||
	    !api_query(rq, "workspace", NULL, &q->workspace, err) ||
	    !api_query(rq, "cluster", NULL, &q->cluster, err) || !api_query(rq, "user", NULL, &q->user, err) ||
	    !api_query(rq, "gpu_model", NULL, &q->gpu_model, err) || !api_query(rq, "node", NULL, &q->node, err) ||
	    !api_query(rq, "cursor", NULL, &q->cursor, err) || !api_query(rq, "exact", yes, &exact, err) ||
	    !api_query(rq, "cost", yes, &cost, err) || !api_query_i64(rq, "limit", USAGE_PAGE_MAX, &q->limit, err) ||
	    !wants_csv(rq, &q->csv, err))
		return false;
	if (q->group_by == NULL)
		q->group_by = "tenant,workspace";
	q->exact = exact != NULL && exact[0] == '1';
	q->cost = cost != NULL && cost[0] == '1';
	/* The cursor carries its own range, because "now" has moved since the first page. */
	return q->cursor != NULL || api_range(w->db, rq, time_wall_ns(), &q->from_ns, &q->to_ns, err);
}

void
handle_usage(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const struct app *app = app_;
	struct usage_query q = {.limit = PAGE_GROUPS, .cost_rows = app->options->cost_rows};
	in_place(buf) struct buf next = {0};
	struct err err = {0};

	buf_init(&next, CURSOR_BYTES);
	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	if (!read_query(w, rq, &q, &err) || !store_usage(w->db, &q, &rp->body, &next, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	rp->content_type = q.csv ? "text/csv; charset=utf-8; header=present" : "application/json";
	rp->vary = "Accept";
	if (next.len > 0)
		link_next(rq, buf_text(&next), rp);
}

/* ---- conservation ---- */

static bool
verify(struct db *db, struct verify_query *q, const char *part, struct buf *out, struct err *err)
{
	for (enum verify_part p = VERIFY_ALL; part != NULL && p < VERIFY_PARTS; p++)
		if (strcmp(verify_part_names[p], part) == 0)
			q->part = p;
	return store_verify_json(db, q, out, err);
}

/* The command line asks for one node or one day at a time, so that a request does not occupy a worker for long. */
void
handle_verify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct verify_query q = {0};
	const char *part = NULL;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_query(rq, "node", NULL, &q.node, &err) || !api_query(rq, "part", verify_part_names, &part, &err) ||
	    !api_range(w->db, rq, time_wall_ns(), &q.from_ns, &q.to_ns, &err) ||
	    !verify(w->db, &q, part, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

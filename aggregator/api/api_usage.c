/* aggregator/api/api_usage.c - GET /v1/usage: GPU-hours by group, page by page. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/usage/usage.h"
#include "common/base/time.h"

#define PAGE_GROUPS 10000
#define CURSOR_BYTES (64u << 10)

/* The parameters that make the question; all of them are in the link to the next page. */
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

/* RFC 8288: also a CSV says where it goes on. */
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
	/* The cursor has its own range: "now" has moved since. */
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

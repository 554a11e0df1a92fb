/* aggregator/api/api_quota.c - GET /v1/quota: what everybody may have and has; GET /v1/quota/recording: the log to replay. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/decider.h"
#include "aggregator/core/quota/book/quota_figures.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/base/spill.h"

static void
units(struct buf *out, const char *name, int64_t v)
{
	if (v == QUOTA_UNLIMITED)
		buf_printf(out, ",\"%s_units\":null", name);
	else
		buf_printf(out, ",\"%s_units\":%" PRId64, name, v);
}

static void
write_figure(const struct quota_book *b, const struct quota_figure *f, struct buf *out, bool first)
{
	const struct quota_account_figures *a = &f->account;

	buf_str(out, first ? "\n{\"cluster\":" : ",\n{\"cluster\":");
	json_write_string(quota_book_cluster_name(b, f->cluster), out);
	buf_str(out, ",\"workspace\":");
	json_write_string(quota_book_workspace_path(b, f->workspace), out);
	buf_str(out, ",\"gpu_model\":");
	json_write_string(quota_book_model_name(b, f->model), out);
	buf_printf(out, ",\"pool\":\"%s\"", f->shared ? "shared" : "own");
	units(out, "limit", a->limit);
	units(out, "reserved", a->reserved);
	units(out, "in_use", a->leased);
	units(out, "held", a->held);
	units(out, "borrowed", f->borrowed);
	units(out, "on_demand", f->on_demand);
	units(out, "lent", f->lent);
	units(out, "idle", a->idle);
	units(out, "borrow", a->borrow);
	units(out, "lend", a->lend);
	units(out, "queued", f->queued);
	buf_printf(out, ",\"would_deny\":%" PRId64 "}", quota_book_would_deny(b, f->workspace));
}

static void
write_pools(const struct quota_book *b, const char *tenant, struct buf *out)
{
	const struct quota_state *s = quota_book_state(b);
	bool first = true;

	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures p = quota_pool_at(s, i);
		const char *owner = p.tenant == QUOTA_NONE ? NULL : quota_book_tenant_name(b, p.tenant);

		if (tenant && owner && strcmp(owner, tenant) != 0)
			continue;
		buf_str(out, first ? "\n{\"cluster\":" : ",\n{\"cluster\":");
		first = false;
		json_write_string(quota_book_cluster_name(b, p.cluster), out);
		buf_str(out, ",\"tenant\":");
		json_write_string(owner, out);
		buf_str(out, ",\"gpu_model\":");
		json_write_string(quota_book_model_name(b, p.model), out);
		units(out, "declared", p.declared);
		units(out, "live", p.live);
		units(out, "in_use", p.leased);
		units(out, "held", p.held);
		units(out, "free", p.free);
		units(out, "excess", p.excess);
		units(out, "reserved", p.reserved);
		units(out, "borrowed", quota_pool_lent(&p));
		units(out, "on_demand", p.debt - quota_pool_lent(&p));
		units(out, "lent", quota_pool_lent(&p));
		units(out, "protected", p.protected_units);
		buf_char(out, '}');
	}
}

static bool
is_of(const struct quota_book *b, int32_t workspace, const char *tenant)
{
	const char *path = quota_book_workspace_path(b, workspace);
	size_t n = tenant ? strlen(tenant) : 0;

	return !tenant || (strncmp(path, tenant, n) == 0 && path[n] == '/');
}

/* Without the last member, which is the database's, and the end. */
static void
write_status(const struct quota_book *b, const char *tenant, int64_t seq, struct buf *out)
{
	in_place(quota_figures) struct quota_figures f = {0};
	bool first = true;

	quota_figures_make(b, &f);
	buf_printf(out, "{\"seq\":%" PRId64 ",\"at\":", seq);
	reply_write_time(out, quota_book_now(b));
	buf_str(out, ",\"workspaces\":[");
	for (size_t i = 0; i < f.count; i++) {
		if (!is_of(b, f.at[i].workspace, tenant))
			continue;
		write_figure(b, &f.at[i], out, first);
		first = false;
	}
	buf_str(out, "],\"pools\":[");
	write_pools(b, tenant, out);
	buf_char(out, ']');
}

void
handle_quota(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct quota_log *log = decider_log(app->decider);
	int64_t seq = quota_log_seq(log);
	const struct quota_book *b;
	const char *tenant = NULL;
	struct worker *w = worker;
	struct err err = {0};

	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	b = quota_log_borrow(log);
	if (b)
		write_status(b, tenant, seq, &rp->body);
	quota_log_give_back(log);
	if (!b) {
		http_problem(rp, rq, 503, NULL, "the quota book was not read yet");
		rp->retry_after_s = 1;
		return;
	}
	buf_str(&rp->body, ",\"held_without_lease\":");
	if (!store_quota_unleased_json(w->db, tenant, &rp->body, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	buf_str(&rp->body, "}\n");
}

void
handle_quota_anomalies(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL;
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!store_quota_anomalies_json(w->db, tenant, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

void
handle_quota_recording(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	owned(spill) struct spill *spill = NULL;
	struct worker *w = worker;
	int64_t from = 1, to = INT64_MAX;
	struct spill_file file;
	struct err err = {0};

	(void)app;
	if (!api_query_i64(rq, "from_seq", INT64_MAX, &from, &err) ||
	    !api_query_i64(rq, "to_seq", INT64_MAX, &to, &err) || !spill_new(false, &spill, &err) ||
	    !store_quota_recording(w->db, from, to, spill, &err) || !spill_end(spill, &file, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	rp->content_type = "application/json";
	rp->file = file.fd;
	rp->file_len = (size_t)file.len;
}

/* aggregator/api/quota_status.c - GET /v1/quota: what everybody may have and has; GET /v1/quota/recording: the log to replay. */
#include <string.h>

#include "aggregator/api/decider.h"
#include "common/spill.h"

static void
units(struct buf *out, const char *name, int64_t v)
{
	if (v == QUOTA_UNLIMITED)
		buf_printf(out, ",\"%s_units\":null", name);
	else
		buf_printf(out, ",\"%s_units\":%" PRId64, name, v);
}

/* Of one workspace in one pool: what waits there. */
static int64_t
queued(const struct quota_world *w, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	int64_t sum = 0;

	for (size_t i = 0; i < w->waiting_count && !shared; i++) {
		const struct quota_request *r = &w->waiting[i];

		if (r->workspace == workspace && r->cluster == cluster && r->shape != QUOTA_NONE &&
		    w->policy.shapes[r->shape].model == model)
			sum += r->count * w->policy.shapes[r->shape].units;
	}
	return sum;
}

static bool
write_account(const struct quota_book *b, const struct quota_world *w, const int32_t at[3], bool shared,
              struct buf *out, bool first)
{
	struct quota_account_figures a = quota_account_at(quota_book_state(b), at[0], at[1], at[2], shared);
	int64_t waits = queued(w, at[0], at[1], at[2], shared);

	if (a.reserved == 0 && a.committed == 0 && waits == 0 && (a.limit == 0 || shared))
		return false;
	buf_str(out, first ? "\n{\"cluster\":" : ",\n{\"cluster\":");
	json_write_string(quota_book_cluster_name(b, at[1]), out);
	buf_str(out, ",\"workspace\":");
	json_write_string(quota_book_workspace_path(b, at[0]), out);
	buf_str(out, ",\"gpu_model\":");
	json_write_string(quota_book_model_name(b, at[2]), out);
	buf_printf(out, ",\"pool\":\"%s\"", shared ? "shared" : "own");
	units(out, "limit", a.limit);
	units(out, "reserved", a.reserved);
	units(out, "in_use", a.leased);
	units(out, "held", a.held);
	units(out, "borrowed", a.debt);
	units(out, "idle", a.idle);
	units(out, "borrow", a.borrow);
	units(out, "lend", a.lend);
	units(out, "queued", waits);
	buf_printf(out, ",\"would_deny\":%" PRId64 "}", quota_book_would_deny(b, at[0]));
	return true;
}

static void
write_pools(const struct quota_book *b, const char *tenant, struct buf *out)
{
	const struct quota_state *s = quota_book_state(b);
	bool first = true;

	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures p = quota_pool_at(s, i);
		const char *owner = p.tenant == QUOTA_NONE ? NULL : quota_book_tenant_name(b, p.tenant);
		/* what an idle reservation lends is what debts exceed unreserved capacity by */
		int64_t unreserved = p.declared > p.reserved ? p.declared - p.reserved : 0;

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
		units(out, "borrowed", p.debt);
		units(out, "lent", p.debt > unreserved ? p.debt - unreserved : 0);
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

static void
write_status(const struct quota_book *b, const char *tenant, int64_t seq, struct buf *out)
{
	struct quota_saved saved;
	bool first = true;

	quota_save(quota_book_state(b), &saved);
	buf_printf(out, "{\"seq\":%" PRId64 ",\"at\":", seq);
	api_write_time(out, quota_book_now(b));
	buf_str(out, ",\"workspaces\":[");
	for (int32_t w = 0; (size_t)w < quota_book_workspace_count(b); w++)
		for (int32_t c = 0; (size_t)c < quota_book_cluster_count(b) && is_of(b, w, tenant); c++)
			for (int32_t m = 0; (size_t)m < quota_book_model_count(b); m++)
				for (int shared = 0; shared < 2; shared++)
					first = !write_account(b, &saved.world, (const int32_t[]){w, c, m}, shared == 1,
					                       out, first) &&
					        first;
	buf_str(out, "],\"pools\":[");
	write_pools(b, tenant, out);
	buf_str(out, "]}\n");
	quota_saved_fini(&saved);
}

void
handle_quota(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct quota_log *log = decider_log(app->decider);
	int64_t seq = quota_log_seq(log);
	const struct quota_book *b;
	const char *tenant = NULL;

	if (!api_tenant(worker, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	b = quota_log_borrow(log);
	if (b)
		write_status(b, tenant, seq, &rp->body);
	quota_log_give_back(log);
	if (!b) {
		http_problem(rp, rq, 503, NULL, "the quota book was not read yet");
		rp->retry_after_s = 1;
	}
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
		api_problem(rp, rq, &err);
		return;
	}
	rp->content_type = "application/json";
	rp->file = file.fd;
	rp->file_len = (size_t)file.len;
}

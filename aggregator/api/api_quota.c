/* aggregator/api/api_quota.c - /v1/quota and /v1/exceptions. */
#include <stdio.h>
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/core/policy/policy.h"
#include "aggregator/store/access/access.h"
#include "aggregator/core/quota/book/quota_figures.h"
#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/service/decider.h"
#include "aggregator/store/quota/decision.h"
#include "aggregator/store/quota/exception_store.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/base/log.h"
#include "common/base/spill.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* ---- quota ---- */

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
		units(out, "fenced", p.fenced);
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

/* ---- exceptions ---- */

#define NAME_MAX_BYTES 128

/* "acme/prod"; a tenant's token may leave its own name out. */
static bool
workspace_of(const json_t *doc, const struct identity_row *who, char tenant[NAME_MAX_BYTES],
             struct exception_request *rq, struct err *err)
{
	const char *text, *slash;

	if (!json_get_str(doc, "workspace", &text, err))
		return false;
	slash = strchr(text, '/');
	if (!text_is_clean(text) || (slash != NULL && slash - text >= NAME_MAX_BYTES) ||
	    (slash == NULL && who->tenant[0] == '\0'))
		return err_set(err, ERR_INVALID, "workspace: it is TENANT/WORKSPACE");
	if (slash != NULL)
		snprintf(tenant, NAME_MAX_BYTES, "%.*s", (int)(slash - text), text);
	else
		snprintf(tenant, NAME_MAX_BYTES, "%s", who->tenant);
	rq->tenant = tenant;
	rq->workspace = slash != NULL ? slash + 1 : text;
	/* a token never learns which other tenants exist */
	return who->tenant[0] == '\0' || strcmp(tenant, who->tenant) == 0 ||
	       err_set(err, ERR_MISSING, "there is no workspace \"%.128s\"", text);
}

/* 2, "3/7" or "2x1g.10gb" of the model. */
static bool
units_of(const json_t *doc, const char *model, int64_t *ret, struct err *err)
{
	const json_t *v = json_object_get(doc, "gpus");
	struct quantity q;
	char number[24];
	const char *text = json_string_value(v);

	if (json_is_integer(v)) {
		snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		text = number;
	}
	if (text == NULL)
		return err_set(err, ERR_INVALID, "gpus: it is a number, or text like 3/7 or 2x1g.10gb");
	if (!quantity_parse(text, &q, err))
		return err_prefix(err, "gpus");
	if (q.unlimited)
		return err_set(err, ERR_INVALID, "gpus: an exception is of a number");
	if (!quantity_units(&q, model, ret, err))
		return err_prefix(err, "gpus");
	return *ret > 0 || err_set(err, ERR_INVALID, "gpus: it is 0");
}

/* A moment, or a duration after `base_ns`; preset_ns when absent. */
static bool
moment_of(const json_t *doc, const char *field, int64_t base_ns, int64_t preset_ns, int64_t *ret, struct err *err)
{
	const char *text = NULL;
	int64_t ns = 0;

	if (!api_field(doc, field, &text, err))
		return false;
	*ret = preset_ns;
	if (text == NULL)
		return preset_ns != INT64_MIN || err_set(err, ERR_INVALID, "%s: it is missing", field);
	if (duration_parse(text, &ns, NULL)) {
		*ret = ns > POLICY_MAX_EXCEPTION_NS ? INT64_MAX : base_ns + ns;
		return true;
	}
	return time_parse(text, ret, err) ||
	       err_prefix(err, "%s: a time like 2027-01-31T00:00:00Z or a duration like 8h", field);
}

static bool
range_of(const json_t *doc, struct exception_request *rq, struct err *err)
{
	char most[TIME_TEXT_SIZE];

	if (!moment_of(doc, "from", rq->now_ns, rq->now_ns, &rq->from_ns, err) ||
	    !moment_of(doc, "until", rq->from_ns, INT64_MIN, &rq->until_ns, err))
		return false;
	if (rq->from_ns < rq->now_ns)
		rq->from_ns = rq->now_ns;
	if (rq->from_ns - rq->now_ns > POLICY_MAX_EXCEPTION_NS)
		return err_set(err, ERR_INVALID, "from: it is more than %s ahead",
		               duration_format(POLICY_MAX_EXCEPTION_NS, most));
	if (rq->until_ns <= rq->from_ns)
		return err_set(err, ERR_INVALID, "until: the end is not after the beginning");
	return rq->until_ns - rq->from_ns <= POLICY_MAX_EXCEPTION_NS ||
	       err_set(err, ERR_INVALID, "until: it would last longer than %s",
	               duration_format(POLICY_MAX_EXCEPTION_NS, most));
}

static bool
shared_of(const json_t *doc, bool *ret_said, bool *ret, struct err *err)
{
	const json_t *v = json_object_get(doc, "shared");

	*ret_said = v != NULL;
	*ret = json_is_true(v);
	return v == NULL || json_is_boolean(v) || err_set(err, ERR_INVALID, "shared: it is true or false");
}

static bool
kind_of(const json_t *doc, bool *ret_reserved, struct err *err)
{
	const char *kind = NULL;

	if (!api_field(doc, "kind", &kind, err))
		return false;
	*ret_reserved = kind != NULL && strcmp(kind, "reserved") == 0;
	return kind == NULL || *ret_reserved || strcmp(kind, "limit") == 0 ||
	       err_set(err, ERR_INVALID, "kind: \"%.40s\" is neither limit nor reserved", kind);
}

/* In full, as the policy calls it. */
static bool
model_of(struct db *db, const json_t *doc, int64_t now_ns, char ret[QUOTA_NAME_SIZE], struct err *err)
{
	const char *name;

	if (!json_get_str(doc, "gpu_model", &name, err))
		return false;
	if (name[0] == '\0' || strlen(name) >= NAME_MAX_BYTES / 2 || !text_is_clean(name))
		return err_set(
			err, ERR_INVALID,
			"gpu_model: it is the name of a model, such as H100-80GB, or of the only one of its family, "
			"such as H100");
	return store_quota_model(db, now_ns, name, ret, err) || err_prefix(err, "gpu_model");
}

static bool
read_request(struct db *db, const json_t *doc, const struct identity_row *who, char tenant[NAME_MAX_BYTES],
             char model[QUOTA_NAME_SIZE], struct exception_request *rq, struct err *err)
{
	if (!workspace_of(doc, who, tenant, rq, err) || !api_field(doc, "cluster", &rq->cluster, err) ||
	    !model_of(db, doc, rq->now_ns, model, err))
		return false;
	rq->model = model;
	if (rq->cluster != NULL && !text_is_clean(rq->cluster))
		return err_set(err, ERR_INVALID,
		               "cluster: it is not UTF-8 text without control or direction characters");
	return units_of(doc, rq->model, &rq->units, err) && kind_of(doc, &rq->reserved, err) &&
	       shared_of(doc, &rq->shared_said, &rq->shared, err) && range_of(doc, rq, err) &&
	       api_reason(doc, &rq->reason, err);
}

void
handle_exception_request(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"workspace", "cluster", "gpu_model", "gpus",   "kind",
	                                     "shared",    "from",    "until",     "reason", NULL};
	struct worker *w = worker;
	const struct app *app = app_;
	struct exception_request x = {.actor = w->who.name,
	                              .admin = w->who.role == ROLE_ADMIN,
	                              .open_max = app->options->tenant_exceptions};
	char tenant[NAME_MAX_BYTES], model[QUOTA_NAME_SIZE];
	owned(json) json_t *doc = NULL;
	struct err err = {0};

	rp->content_type = "application/json";
	if (!api_body(rq, fields, &doc, &err) || !store_quota_clock(w->db, &x.now_ns, &err) ||
	    !read_request(w->db, doc, &w->who, tenant, model, &x, &err) ||
	    !store_exception_request(w->db, &x, &rp->body, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	rp->status = 201;
	log_event(LOG_INFO, "exception asked for", LS("by", x.actor), LS("tenant", x.tenant),
	          LS("workspace", x.workspace), LI("units", x.units));
}

/* ID/approve, ID/refuse or ID/revoke. */
static bool
decision_of(const struct http_request *rq, struct exception_decision *d, struct err *err)
{
	static const char *const verbs[] = {
		[EXCEPTION_APPROVE] = "approve", [EXCEPTION_REFUSE] = "refuse", [EXCEPTION_REVOKE] = "revoke"};
	size_t n = strcspn(rq->tail, "/");
	char id[24];

	if (n < sizeof(id) && rq->tail[n] == '/') {
		memcpy(id, rq->tail, n);
		id[n] = '\0';
		for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
			if (strcmp(rq->tail + n + 1, verbs[i]) == 0 && text_to_i64(id, &d->id) && d->id > 0) {
				d->verb = (enum exception_verb)i;
				return true;
			}
	}
	return err_set(err, ERR_MISSING,
	               "an exception can be approved, refused or revoked: POST .../ID/approve, .../ID/refuse or "
	               ".../ID/revoke");
}

void
handle_exception_decide(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"reason", NULL};
	struct worker *w = worker;
	struct exception_decision d = {.actor = w->who.name,
	                               .role = w->who.role,
	                               .tenant = w->who.tenant[0] != '\0' ? w->who.tenant : NULL};
	owned(json) json_t *doc = NULL;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!decision_of(rq, &d, &err) || !api_body(rq, fields, &doc, &err) || !api_reason(doc, &d.why, &err) ||
	    !store_quota_clock(w->db, &d.now_ns, &err) || !store_exception_decide(w->db, &d, &rp->body, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, "exception decided", LS("by", d.actor), LI("id", d.id), LS("path", rq->tail));
}

void
handle_exceptions(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const states[] = {"requested", "approved", "refused", "revoked", "ended", NULL};
	struct worker *w = worker;
	struct exception_query q = {0};
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "workspace", NULL, &q.workspace, &err) ||
	    !api_query(rq, "status", states, &q.status, &err) || !api_page(rq, &q.page, &err) ||
	    !store_quota_clock(w->db, &q.now_ns, &err) || !store_exceptions_json(w->db, &q, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

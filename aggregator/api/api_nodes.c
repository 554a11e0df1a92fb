/* aggregator/api/api_nodes.c - /v1/status and /v1/gpus: live state of nodes, GPUs that move. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* ---- live state ---- */

/* The node's clock less ours when the message arrived; by its header, which is made as the last thing before sending, else by the message. */
static int64_t
skew_of(const struct http_request *rq, const struct live_status *s)
{
	const char *text = http_header(rq, "Tollgate-Clock");
	int64_t ns;

	return (text != NULL && text_to_i64(text, &ns) && ns >= 0 ? ns : s->wall_ns) - rq->arrived_wall_ns;
}

/* False when it is refused, with the problem written. */
static bool
take_status(const struct worker *w, const struct http_request *rq, struct http_reply *rp, bool *ret_kept,
            int64_t *ret_skew_ns)
{
	owned(live_status) struct live_status *s = NULL;
	struct err err = {0};

	if (!live_parse(rq->body, rq->body_len, &s, &err)) {
		http_problem_err(rp, rq, &err);
		return false;
	}
	if (strcmp(s->node, w->who.node) != 0) {
		http_problem(rp, rq, 403, "node", "the token speaks for node %s, the status is of node %s", w->who.node,
		             s->node);
		return false;
	}
	*ret_skew_ns = skew_of(rq, s);
	if (store_status_keep(w->db, s,
	                      &(struct live_arrival){.wall_ns = rq->arrived_wall_ns,
	                                             .age_ns = time_boot_ns() - rq->arrived_ns,
	                                             .skew_ns = *ret_skew_ns},
	                      ret_kept, &err))
		return true;
	if (err.kind == ERR_DENIED)
		http_problem(rp, rq, 422, "simulated", "%s", err.text);
	else
		http_problem_err(rp, rq, &err);
	return false;
}

void
handle_status(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct counters *c = &((struct app *)app)->counters;
	int64_t skew_ns = 0;
	bool kept = false;

	if (!take_status(worker, rq, rp, &kept, &skew_ns)) {
		atomic_fetch_add(&c->status_refused, 1);
		return;
	}
	atomic_fetch_add(kept ? &c->status_kept : &c->status_late, 1);
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"kept\":%s,\"skew_ns\":%" PRId64 "}\n", kept ? "true" : "false", skew_ns);
}

void
handle_status_list(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	struct live_query q = {.skew_max_ns = app->options->clock_skew_max_ns};
	struct err err = {0};

	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "node", NULL, &q.node, &err) || !store_status_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

/* ---- GPUs that move to another node ---- */

#define UUID_MAX 512

/* {"node": NAME, "reason": TEXT, "at": TIME}; without at it is now. */
static bool
read_move(const struct http_request *rq, char gpu[UUID_MAX + 1], json_t **ret_doc, struct gpu_move *m, struct err *err)
{
	static const char *const fields[] = {"node", "reason", "at", NULL};
	size_t n = strcspn(rq->tail, "/");
	const char *at = NULL;

	if (n == 0 || n > UUID_MAX || strcmp(rq->tail + n, "/move") != 0 || !text_is_clean(rq->tail))
		return err_set(err, ERR_MISSING, "a GPU can be moved: POST /v1/gpus/UUID/move");
	memcpy(gpu, rq->tail, n);
	gpu[n] = '\0';
	m->gpu = gpu;
	if (!api_body(rq, fields, ret_doc, err) || !json_get_str(*ret_doc, "node", &m->node, err) ||
	    !api_reason(*ret_doc, &m->why, err) || !api_field(*ret_doc, "at", &at, err))
		return false;
	if (at != NULL && !time_parse(at, &m->at_ns, err))
		return err_prefix(err, "at");
	return text_is_clean(m->node) || err_set(err, ERR_INVALID, "node: it is UTF-8 text without control characters");
}

void
handle_gpu_move(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct gpu_move m = {.actor = w->who.name, .at_ns = time_wall_ns()};
	owned(json) json_t *doc = NULL;
	char gpu[UUID_MAX + 1];
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!read_move(rq, gpu, &doc, &m, &err) || !store_gpu_move(w->db, &m, &rp->body, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, "GPU moved", LS("by", w->who.name), LS("gpu", gpu), LS("node", m.node),
	          LS("reason", m.why));
}

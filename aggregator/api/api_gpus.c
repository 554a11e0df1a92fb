/* aggregator/api/api_gpus.c - POST /v1/gpus/UUID/move: an operator says which node a GPU is in. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

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

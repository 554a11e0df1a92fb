/* aggregator/api/api_quarantine.c - batches whose content was refused: looked at, released, discarded; nodes that are held, approved. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* STREAM/SEQ, and what follows it after another slash; NULL: nothing. */
static bool
batch_of(const struct http_request *rq, int64_t *ret_stream, int64_t *ret_seq, const char **ret_verb, struct err *err)
{
	char stream[24], seq[24];
	size_t n = strcspn(rq->tail, "/"), m;
	const char *rest = rq->tail[n] == '/' ? rq->tail + n + 1 : "";

	m = strcspn(rest, "/");
	if (n < sizeof(stream) && m < sizeof(seq)) {
		memcpy(stream, rq->tail, n);
		stream[n] = '\0';
		memcpy(seq, rest, m);
		seq[m] = '\0';
		*ret_verb = rest[m] == '/' ? rest + m + 1 : NULL;
		if (text_to_i64(stream, ret_stream) && text_to_i64(seq, ret_seq) && *ret_stream > 0 && *ret_seq > 0 &&
		    *ret_stream <= INT32_MAX)
			return true;
	}
	return err_set(err, ERR_MISSING, "\"%.64s\" is not a batch; it is STREAM/SEQ, two numbers from 1", rq->tail);
}

void
handle_quarantine(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const decisions[] = {"open", "released", "discarded", NULL};
	const char *classes[QUARANTINE_CLASSES] = {NULL};
	struct worker *w = worker;
	struct quarantine_query q = {0};
	struct err err = {0};

	(void)app;
	for (size_t i = QUARANTINE_NONE + 1; i < QUARANTINE_CLASSES; i++)
		classes[i - 1] = quarantine_class_name((enum quarantine_class)i);
	rp->content_type = "application/json";
	if (!api_query(rq, "node", NULL, &q.node, &err) || !api_query(rq, "class", classes, &q.klass, &err) ||
	    !api_query(rq, "decision", decisions, &q.decision, &err) ||
	    !api_query_i64(rq, "stream", INT32_MAX, &q.stream, &err) || !api_page(rq, &q.page, &err) ||
	    !store_quarantine_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

void
handle_quarantine_show(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	int64_t stream = 0, seq = 0;
	const char *verb = NULL, *gpu = NULL;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_query(rq, "gpu", NULL, &gpu, &err) || !batch_of(rq, &stream, &seq, &verb, &err) ||
	    (verb != NULL && !err_set(&err, ERR_MISSING, "there is nothing at /%.64s of a batch", verb)) ||
	    !store_quarantine_show(w->db, stream, seq, gpu != NULL ? gpu : "", &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

/* {"reason": TEXT}, and where it is asked for {"gpu": UUID}: without it, it is about the batch. */
static bool
reason_of(const struct http_request *rq, json_t **ret_doc, const char **ret, const char **ret_gpu, struct err *err)
{
	static const char *const fields[] = {"reason", NULL}, *const fields_of_gpu[] = {"reason", "gpu", NULL};

	if (!api_body(rq, ret_gpu != NULL ? fields_of_gpu : fields, ret_doc, err) || !api_reason(*ret_doc, ret, err))
		return false;
	if (ret_gpu != NULL) {
		*ret_gpu = "";
		if (json_object_get(*ret_doc, "gpu") != NULL && !json_get_str(*ret_doc, "gpu", ret_gpu, err))
			return false;
		if (!text_is_clean(*ret_gpu))
			return err_set(err, ERR_INVALID, "gpu: it is a UUID, UTF-8 text without control characters");
	}
	return true;
}

void
handle_quarantine_decide(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	struct quarantine_decision d = {.actor = w->who.name, .now_ns = time_wall_ns()};
	in_place(ingest_result) struct ingest_result r = {0};
	owned(json) json_t *doc = NULL;
	const char *verb = NULL;
	struct err err = {0};

	rp->content_type = "application/json";
	if (!batch_of(rq, &d.stream, &d.seq, &verb, &err) ||
	    ((verb == NULL || (strcmp(verb, "release") != 0 && strcmp(verb, "discard") != 0)) &&
	     !err_set(&err, ERR_MISSING, "a batch can be released or discarded: POST .../release or .../discard")) ||
	    !reason_of(rq, &doc, &d.why, &d.gpu, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	d.release = strcmp(verb, "release") == 0;
	if (!store_quarantine_decide(w->db, &d, &r, &rp->body, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	atomic_fetch_add(d.release ? &app->counters.quarantine_released : &app->counters.quarantine_discarded, 1);
	atomic_fetch_add(&app->counters.ingest_batches, r.batches);
	atomic_fetch_add(&app->counters.ingest_records, r.records);
	usage_counters_add(app->usage, &r.sums);
	log_event(LOG_INFO, d.release ? "batch released from quarantine" : "batch in quarantine discarded",
	          LS("by", w->who.name), LI("stream", d.stream), LI("seq", d.seq), LI("records", r.records));
}

/* NAME/approve. A name may have any character, a slash among them. */
static bool
node_of(const struct http_request *rq, char node[static LIMIT_NODE_NAME + 1], struct err *err)
{
	static const char verb[] = "/approve";
	size_t n = strlen(rq->tail), name = n < sizeof(verb) ? 0 : n - (sizeof(verb) - 1);

	if (name == 0 || name > LIMIT_NODE_NAME || strcmp(rq->tail + name, verb) != 0)
		return err_set(err, ERR_MISSING, "a node can be approved: POST /v1/nodes/NAME/approve");
	memcpy(node, rq->tail, name);
	node[name] = '\0';
	return true;
}

void
handle_node_approve(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	char node[LIMIT_NODE_NAME + 1];
	owned(json) json_t *doc = NULL;
	const char *why = NULL;
	struct err err = {0};
	bool changed = false;

	(void)app;
	rp->content_type = "application/json";
	if (!node_of(rq, node, &err) || !reason_of(rq, &doc, &why, NULL, &err) ||
	    !store_node_approve(w->db, node, w->who.name, why, false, &changed, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	buf_str(&rp->body, "{\"node\":");
	json_write_string(node, &rp->body);
	buf_printf(&rp->body, ",\"approval\":\"approved\",\"changed\":%s}\n", changed ? "true" : "false");
	log_event(LOG_INFO, changed ? "node approved" : "node was approved already", LS("by", w->who.name),
	          LS("node", node));
}

/* aggregator/api/api_ingest.c - /v1/ingest and /v1/quarantine: batches of exporters. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "aggregator/service/ingest_batcher.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* ---- ingest ---- */

/* Counts only what this call committed: a repeated push counts nothing, in whichever replica. */
static void
count(struct app *app, const struct ingest_result *r)
{
	struct counters *c = &app->counters;

	usage_counters_add(app->usage, &r->sums);
	atomic_fetch_add(&c->ingest_batches, r->batches);
	atomic_fetch_add(&c->ingest_records, r->records);
	atomic_fetch_add(&c->ingest_duplicates, r->duplicates);
	atomic_fetch_add(&c->ingest_lost, r->lost);
	for (size_t i = 0; i < QUARANTINE_CLASSES; i++)
		atomic_fetch_add(&c->ingest_quarantined_by[i], r->quarantined_by[i]);
}

/* 409 carries the number that the stream continues with, so that the exporter can move its cursor forward or back. */
static void
reply_conflict(struct http_reply *rp, const struct http_request *rq, const struct ingest_result *r,
               const struct err *err)
{
	http_problem(rp, rq, 409, "seq", "%s", err->text);
	http_problem_i64(rp, "epoch", (int64_t)r->epoch);
	http_problem_i64(rp, "expected_seq", (int64_t)r->next_seq);
}

/* A retry of the same push gets the position of the stream. */
static void
reply_unknown(struct http_reply *rp, const struct http_request *rq)
{
	http_problem(rp, rq, 503, NULL,
	             "whether it was stored is not known: the database did not answer; send it again");
	rp->retry_after_s = 1;
}

static void
refuse(struct app *app, const struct worker *w, const struct http_request *rq, struct http_reply *rp,
       const struct ingest_result *r, const struct err *err)
{
	atomic_fetch_add(&app->counters.ingest_refused_by[r->refusal], 1);
	if (r->mismatch) {
		atomic_fetch_add(&app->counters.ingest_mismatches, 1);
		log_event(LOG_ERROR, "a batch number came again with other bytes", LS("node", w->who.node),
		          LS("error", err->text));
	}
	if (r->gap || r->mismatch)
		reply_conflict(rp, rq, r, err);
	else if (r->simulated)
		http_problem(rp, rq, 422, "flags", "%s", err->text);
	else if (err->kind == ERR_UNKNOWN)
		reply_unknown(rp, rq);
	else
		http_problem_err(rp, rq, err);
}

/* The node's clock when it sent the push. A malformed header counts as absent. */
static int64_t
clock_of(const struct http_request *rq)
{
	const char *text = http_header(rq, "Tollgate-Clock");
	int64_t ns;

	return text != NULL && text_to_i64(text, &ns) && ns >= 0 ? ns : INT64_MIN;
}

static void
take_push(struct app *app, struct worker *w, const struct http_request *rq, struct http_reply *rp)
{
	owned(ingest_push) struct ingest_push *push = NULL;
	in_place(ingest_result) struct ingest_result r = {0};
	struct err err = {0};
	struct ingest_request in = {.node = w->who.node,
	                            .frames = rq->body,
	                            .len = rq->body_len,
	                            .now_ns = rq->arrived_wall_ns,
	                            .clock_ns = clock_of(rq),
	                            .skew_max_ns = app->options->clock_skew_max_ns,
	                            .held_max = app->options->held_node_max_bytes};

	if (!ingest_push_new(&in, &push, &r, &err) || !ingest_batcher_push(app->ingest, w->db, push, &r, &err)) {
		refuse(app, w, rq, rp, &r, &err);
		return;
	}
	count(app, &r);
	if (r.set_aside > 0)
		log_event(LOG_WARN, "records set aside", LS("node", w->who.node), LI("records", r.set_aside),
		          LS("reason", r.quarantine_reason));
	if (r.quarantined > 0)
		log_event(LOG_WARN, "batches quarantined", LS("node", w->who.node), LI("batches", r.quarantined),
		          LS("reason", r.quarantine_reason));
	rp->content_type = "application/json";
	buf_printf(&rp->body,
	           "{\"epoch\":%" PRIu64 ",\"next_seq\":%" PRIu64 ",\"batches\":%" PRId64 ",\"duplicates\":%" PRId64
	           ",\"quarantined\":%" PRId64 ",\"set_aside\":%" PRId64 "}\n",
	           r.epoch, r.next_seq, r.batches, r.duplicates, r.quarantined, r.set_aside);
}

void
handle_ingest(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	int64_t began_ns = time_monotonic_ns();
	struct app *app = app_;

	take_push(app, worker, rq, rp);
	atomic_fetch_add(&app->counters.ingest_bytes, (long long)rq->body_len);
	histogram_add(&app->counters.ingest_duration, time_monotonic_ns() - began_ns);
}

/* ---- quarantine ---- */

/* STREAM/SEQ, and the text after another slash; NULL: none. */
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

/* {"reason": TEXT} and, if a GPU may be named, {"gpu": UUID}; without it the whole batch is meant. */
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

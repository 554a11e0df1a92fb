/* aggregator/api/api_ingest.c - POST /v1/ingest: from an exporter's frames to an acknowledgement. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/ingest_batcher.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* Only what this call made durable: a push that came again counts nothing, whichever replica takes it. */
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

/* 409 carries the number the stream must go on with, so that the exporter can move its cursor either way. */
static void
reply_conflict(struct http_reply *rp, const struct http_request *rq, const struct ingest_result *r,
               const struct err *err)
{
	http_problem(rp, rq, 409, "seq", "%s", err->text);
	http_problem_i64(rp, "epoch", (int64_t)r->epoch);
	http_problem_i64(rp, "expected_seq", (int64_t)r->next_seq);
}

/* The same push again is told where the stream stands. */
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

/* What the node's clock said when it sent. A header that says nothing sensible is as good as none. */
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

	if (!ingest_push_new(&in, &push, &r, &err) || !ingest_line_pass(app->line, w->db, push, &r, &err)) {
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

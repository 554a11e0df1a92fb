/* aggregator/service/reply.h - replies that handlers and the deciding threads both write: problems, refused tokens, decisions. */
#ifndef TOLLGATE_REPLY_H
#define TOLLGATE_REPLY_H

#include "aggregator/service/app.h"
#include "aggregator/store/quota/decision.h"

/* As http_problem_err; an ERR_INVALID text that begins with a parameter's name and a colon also names it in "field". */
void reply_problem(struct http_reply *rp, const struct http_request *rq, const struct err *err);

/* The token of the Authorization header; NULL: none. */
const char *request_token(const struct http_request *rq);
/* 401, and the cached identity of the token is dropped. */
void reply_token_refused(struct app *app, const struct http_request *rq, struct http_reply *rp);

/* The time as a JSON string of whole seconds; null for 0. */
void reply_write_time(struct buf *out, int64_t wall_ns);

/* Adoption in a cluster: {"cluster","complete","switched_at"}. */
void reply_adoption(const struct quota_book *b, const struct quota_adoption *a, struct buf *out);

/* A verdict at hand, by names. */
struct decision_told {
	struct quota_namer namer;
	const struct quota_verdict *verdict;
};
/* The resource of a decision. told: what the turn decided, or how it stands now; NULL: what is stored with the row. tenant: who reads it;
 * empty: anybody. */
MUST_CHECK bool reply_decision(const struct decision_view *v, const struct decision_told *told, const char *warning,
                               const char *tenant, struct buf *out, struct err *err);

#endif

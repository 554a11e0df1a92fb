/* aggregator/api/api_audit.c - /v1/audit and /v1/journal: entries of the audit log, and the check of its chains. */
#include <stdio.h>
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/audit_reads.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/verify/verify.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define HASH_TEXT ((size_t)2 * SHA256_SIZE)

static bool
query_time(const struct http_request *rq, const char *name, int64_t preset_ns, int64_t *ret_ns, struct err *err)
{
	const char *text = http_query(rq, name);

	*ret_ns = preset_ns;
	return text == NULL || time_parse(text, ret_ns, err) || err_prefix(err, "%s", name);
}

void
api_note_read(struct app *app, const struct worker *w, const char *tenant, const char *action, const char *subject)
{
	audit_reads_note(app->reads, w->db, &w->who, tenant, action, subject, time_wall_ns());
}

void
handle_audit(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct audit_query q = {0};
	struct err err = {0};

	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "actor", NULL, &q.actor, &err) || !api_query(rq, "action", NULL, &q.action, &err) ||
	    !api_query(rq, "subject", NULL, &q.subject, &err) || !query_time(rq, "from", INT64_MIN, &q.from_ns, &err) ||
	    !query_time(rq, "to", INT64_MAX, &q.to_ns, &err) || !api_page(rq, &q.page, &err) ||
	    !store_audit_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
	else
		api_note_read(app, w, q.tenant, "audit.read", "audit log");
}

/* SEQ:HASH, as the daemon's log has it. */
static bool
query_seal(const struct http_request *rq, char number[24], struct audit_verify_query *q, struct err *err)
{
	const char *text = http_query(rq, "seal"), *colon = text != NULL ? strchr(text, ':') : NULL;
	uint8_t hash[SHA256_SIZE];
	size_t n = colon != NULL ? (size_t)(colon - text) : 0;

	if (text == NULL)
		return true;
	if (colon == NULL || n >= 24 || strlen(colon + 1) != HASH_TEXT ||
	    !hex_decode(colon + 1, hash, sizeof(hash), NULL))
		return err_set(err, ERR_INVALID, "seal: it is SEQ:HASH, as in the aggregator's log");
	memcpy(number, text, n);
	number[n] = '\0';
	q->witness_hash = colon + 1;
	return (text_to_i64(number, &q->witness_seq) && q->witness_seq > 0) ||
	       err_set(err, ERR_INVALID, "seal: \"%s\" is not a number from 1", number);
}

void
handle_audit_verify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct audit_verify_query q = {0};
	char number[24];
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_query(rq, "after", NULL, &q.after, &err) || !query_seal(rq, number, &q, &err) ||
	    !store_audit_verify_json(w->db, &q, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

/* ENTRY/accept, as verify names it. */
void
handle_journal_accept(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"reason", NULL};
	struct worker *w = worker;
	struct journal_accept a = {.actor = w->who.name};
	owned(json) json_t *doc = NULL;
	size_t n = strcspn(rq->tail, "/");
	char number[24];
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	snprintf(number, sizeof(number), "%.*s", (int)(n < sizeof(number) ? n : 0), rq->tail);
	if (strcmp(rq->tail + n, "/accept") != 0 || !text_to_i64(number, &a.entry))
		err_set(&err, ERR_MISSING, "an entry of the journal can be accepted: POST /v1/journal/ENTRY/accept");
	else if (api_body(rq, fields, &doc, &err) && api_reason(doc, &a.reason, &err) &&
	         store_journal_accept(w->db, &a, &rp->body, &err))
		log_event(LOG_INFO, "unaudited change accepted", LS("by", w->who.name), LI("entry", a.entry),
		          LS("reason", a.reason));
	if (err.kind != ERR_NONE)
		http_problem_err(rp, rq, &err);
}

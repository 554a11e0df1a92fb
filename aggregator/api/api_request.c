/* aggregator/api/api_request.c - query parameters, bodies, pages and periods of requests. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/report_store.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define REASON_MAX 1000
#define PAGE_PRESET 100

bool
api_query(const struct http_request *rq, const char *name, const char *const *choices, const char **ret,
          struct err *err)
{
	const char *text = http_query(rq, name);

	*ret = text;
	if (text == NULL)
		return true;
	if (!text_is_clean(text))
		return err_set(err, ERR_INVALID, "%s: it is not UTF-8 text without control or direction characters",
		               name);
	if (choices == NULL)
		return true;
	for (const char *const *c = choices; *c != NULL; c++)
		if (strcmp(*c, text) == 0)
			return true;
	return err_set(err, ERR_INVALID, "%s: \"%.64s\" is not known; try %s", name, text, choices[0]);
}

bool
api_period_of(struct db *db, const char *said, char now[API_PERIOD_SIZE], const char **ret, struct err *err)
{
	if (said != NULL && strcmp(said, "current") != 0) {
		*ret = said;
		return true;
	}
	if (!store_period_now(db, time_wall_ns(), now, err))
		return false;
	*ret = now;
	return true;
}

bool
api_period(struct worker *w, const struct http_request *rq, const char *name, char now[API_PERIOD_SIZE],
           const char **ret, struct err *err)
{
	const char *said = NULL;

	return api_query(rq, name, NULL, &said, err) && api_period_of(w->db, said, now, ret, err);
}

bool
api_query_i64(const struct http_request *rq, const char *name, int64_t max, int64_t *ret, struct err *err)
{
	const char *text = http_query(rq, name);

	if (text == NULL)
		return true;
	if (!text_to_i64(text, ret) || *ret < 1 || *ret > max)
		return err_set(err, ERR_INVALID, "%s: \"%.64s\" is not a number from 1 to %" PRId64, name, text, max);
	return true;
}

bool
api_page(const struct http_request *rq, struct page *ret, struct err *err)
{
	*ret = (struct page){.limit = PAGE_PRESET};
	return api_query_i64(rq, "limit", PAGE_MAX, &ret->limit, err) &&
	       api_query_i64(rq, "before", INT64_MAX, &ret->before, err);
}

bool
api_id(const struct http_request *rq, int64_t *ret, struct err *err)
{
	return (text_to_i64(rq->tail, ret) && *ret > 0) ||
	       err_set(err, ERR_MISSING, "\"%.64s\" is not an id; it is a number from 1", rq->tail);
}

bool
api_body(const struct http_request *rq, const char *const *fields, json_t **ret, struct err *err)
{
	return json_parse("body", rq->body, rq->body_len, ret, err) && json_only_fields(*ret, fields, err) &&
	       json_texts_clean(*ret, err);
}

bool
api_reason(const json_t *doc, const char **ret, struct err *err)
{
	if (!json_get_str(doc, "reason", ret, err))
		return false;
	return ((*ret)[0] != '\0' && strlen(*ret) <= REASON_MAX && text_is_clean(*ret)) ||
	       err_set(err, ERR_INVALID,
	               "reason: it is UTF-8 text of 1 to %d bytes, without control or direction characters",
	               REASON_MAX);
}

bool
api_field(const json_t *doc, const char *field, const char **ret, struct err *err)
{
	*ret = NULL;
	return json_object_get(doc, field) == NULL || json_get_str(doc, field, ret, err);
}

bool
api_expiry(const json_t *doc, int64_t now_ns, int64_t preset_ns, int64_t most_ns, int64_t *ret_ns, struct err *err)
{
	const char *text = NULL;
	char most[TIME_TEXT_SIZE];
	int64_t ns = 0;

	if (!api_field(doc, "expires", &text, err))
		return false;
	if (text == NULL) {
		*ret_ns = preset_ns == 0 ? 0 : now_ns + preset_ns;
		return true;
	}
	if (duration_parse(text, &ns, NULL))
		ns = ns > most_ns ? INT64_MAX : now_ns + ns;
	else if (!time_parse(text, &ns, err))
		return err_prefix(err, "expires: a time like 2027-01-31T00:00:00Z or a duration like 30d");
	if (ns <= now_ns)
		return err_set(err, ERR_INVALID, "expires: \"%.64s\" is not in the future", text);
	if (ns > now_ns + most_ns)
		return err_set(err, ERR_INVALID, "expires: \"%.64s\" is later than the limit of %s from now", text,
		               duration_format(most_ns, most));
	*ret_ns = ns;
	return true;
}

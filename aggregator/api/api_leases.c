/* aggregator/api/api_leases.c - POST /v1/leases/ID/confirm, /heartbeat, /release: what a scheduler says of what was admitted. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/decider.h"

#define GPUS_MAX 100000u

/* {"nodes":[{"node","gpus":[UUID...]}]} as the parts of a confirm event. */
static bool
write_parts(const json_t *nodes, struct buf *out, struct err *err)
{
	const json_t *n, *gpu;
	size_t i, k;

	if (!json_is_array(nodes))
		return err_set(err, ERR_INVALID, "nodes: it is a list");
	buf_str(out, ",\"parts\":[");
	json_array_foreach(nodes, i, n)
	{
		const char *name = json_string_value(json_object_get(n, "node"));
		const json_t *gpus = json_object_get(n, "gpus");

		if (!name || !json_is_array(gpus) || json_array_size(gpus) > GPUS_MAX)
			return err_set(err, ERR_INVALID, "nodes: each has a node and its gpus, a list of UUIDs");
		json_array_foreach(gpus, k, gpu)
		{
			if (!json_is_string(gpu))
				return err_set(err, ERR_INVALID, "nodes: a GPU is named by its UUID");
			buf_str(out, out->data[out->len - 1] == '[' ? "{\"node\":" : ",{\"node\":");
			json_write_string(name, out);
			buf_str(out, ",\"gpu\":");
			json_write_string(json_string_value(gpu), out);
			buf_str(out, ",\"count\":1}");
		}
	}
	buf_char(out, ']');
	return true;
}

static bool
read_confirm(const struct http_request *rq, struct desk_item *i, struct err *err)
{
	static const char *const fields[] = {"nodes", "workload", NULL};
	in_place(buf) struct buf event = {.max = QUOTA_EVENT_MAX_BYTES};
	const json_t *nodes;

	if (rq->body_len == 0)
		return true;
	if (!api_body(rq, fields, &i->doc, err) || !decision_workload_read(i->doc, &i->workload, err))
		return false;
	nodes = json_object_get(i->doc, "nodes");
	if (!nodes)
		return true;
	buf_str(&event, "{\"confirm\":{\"id\":");
	json_write_string(i->key, &event);
	if (!write_parts(nodes, &event, err))
		return false;
	buf_str(&event, "}}");
	if (!buf_ok(&event, "the confirmation", err))
		return false;
	i->event = mem_strdup(buf_text(&event));
	return true;
}

/* ID/WORD or TENANT/ID/WORD */
static bool
read_path(struct worker *w, const struct http_request *rq, struct desk_item *i, struct err *err)
{
	static const char *const words[] = {"confirm", "heartbeat", "release", "drain"};
	const char *slash = strrchr(rq->tail, '/');

	for (size_t k = 0; slash && k < ARRAY_LEN(words); k++)
		if (strcmp(slash + 1, words[k]) == 0)
			i->word = words[k];
	if (!i->word)
		return err_set(err, ERR_MISSING,
		               "there is nothing at \"%.64s\": it is ID/confirm, heartbeat, release or drain",
		               rq->tail);
	return api_decision_find(w, rq, (size_t)(slash - rq->tail), i, err);
}

void
handle_lease_event(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(desk_item) struct desk_item *i = desk_item_new(DESK_EVENT, &w->who, rq, rp);
	struct err err = {0};

	if (!read_path(w, rq, i, &err) || (strcmp(i->word, "confirm") == 0 && !read_confirm(rq, i, &err))) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

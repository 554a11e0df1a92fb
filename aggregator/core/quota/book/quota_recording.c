/* aggregator/core/quota/book/quota_recording.c - replays a recorded quota book and compares each outcome with the recorded one. */
#include "aggregator/core/quota/book/quota_book.h"

#include <string.h>

#include "aggregator/core/quota/book/decision_rows.h"
#include "common/conf/json.h"

#define LOOK_BYTES 4096u /* the head of the file that is searched for "recording" */

bool
quota_recording_is(const char *text, size_t len)
{
	static const char word[] = "\"recording\"";
	size_t look = len < LOOK_BYTES ? len : LOOK_BYTES;

	return memmem(text, look, word, sizeof(word) - 1) != NULL;
}

static void
write_json(const json_t *j, struct buf *out)
{
	buf_clear(out);
	json_write(j, out);
}

struct replay {
	struct quota_book *book;
	quota_recorded_tell *tell;
	void *to;
	struct quota_recording_sum sum;
	struct buf text, found, expected;
};

static bool
compare(struct replay *r, const json_t *recorded, struct quota_outcome *o, bool *ret_same, struct err *err)
{
	owned(json) json_t *now = NULL;

	buf_clear(&r->found);
	quota_book_outcome_json(r->book, o, &r->found);
	if (!buf_ok(&r->found, "the outcome", err) ||
	    !json_parse_max("outcome", buf_text(&r->found), r->found.len, QUOTA_RECORDING_MAX_BYTES, &now, err))
		return false;
	*ret_same = quota_outcome_agrees(recorded, now);
	if (!*ret_same) {
		write_json(recorded, &r->expected);
		write_json(now, &r->found);
	}
	return true;
}

static bool
replay_event(struct replay *r, const json_t *o, int64_t seq, struct err *err)
{
	owned(quota_outcome) struct quota_outcome *outcome = NULL;
	const json_t *recorded = json_object_get(o, "outcome"), *event = json_object_get(o, "event");
	struct quota_recorded told = {.seq = seq, .book = r->book};
	bool same = true;
	int64_t given;

	if (!json_get_i64(o, "seq", &given, err) || !json_get_i64(o, "at_ns", &told.at_ns, err))
		return false;
	if (given != seq)
		return err_set(err, ERR_INVALID, "its seq is %" PRId64 ": the events between are missing", given);
	if (!json_is_object(event))
		return err_set(err, ERR_INVALID, "it has no event");
	write_json(event, &r->text);
	if (!buf_ok(&r->text, "the event", err) ||
	    !quota_book_step(r->book, told.at_ns, buf_text(&r->text), r->text.len, &outcome, err))
		return false;
	r->sum.events++;
	if (recorded) {
		if (!compare(r, recorded, outcome, &same, err))
			return false;
		r->sum.compared++;
		r->sum.differ += !same;
	}
	told.outcome = outcome;
	told.differs = !same;
	told.expected = same ? NULL : buf_text(&r->expected);
	told.found = same ? NULL : buf_text(&r->found);
	r->tell(r->to, &told);
	return true;
}

static bool
replay_all(struct replay *r, const json_t *doc, struct err *err)
{
	const json_t *state = json_object_get(doc, "state"), *events = json_object_get(doc, "events");
	int64_t version, seq;

	if (!json_get_i64(doc, "recording", &version, err) || !json_get_i64(doc, "state_seq", &seq, err))
		return false;
	if (version != QUOTA_RECORDING_VERSION || !json_is_object(state) || !json_is_array(events) || seq < 0)
		return err_set(err, ERR_INVALID, "it is not a recording of version %d with a state and events",
		               QUOTA_RECORDING_VERSION);
	write_json(state, &r->text);
	if (!buf_ok(&r->text, "the state", err) || !quota_book_open(buf_text(&r->text), r->text.len, &r->book, err))
		return false;
	for (size_t i = 0; i < json_array_size(events); i++) {
		seq++;
		if (!replay_event(r, json_array_get(events, i), seq, err))
			return err_prefix(err, "event %" PRId64, seq);
	}
	return true;
}

bool
quota_recording_replay(const char *name, const char *text, size_t len, quota_recorded_tell *tell, void *to,
                       struct quota_recording_sum *ret, struct err *err)
{
	owned(json) json_t *doc = NULL;
	struct replay r = {.tell = tell, .to = to};
	bool ok;

	if (!json_parse_max(name, text, len, QUOTA_RECORDING_MAX_BYTES, &doc, err))
		return false;
	buf_init(&r.text, QUOTA_BOOK_MAX_BYTES);
	buf_init(&r.found, QUOTA_BOOK_MAX_BYTES);
	buf_init(&r.expected, QUOTA_BOOK_MAX_BYTES);
	ok = replay_all(&r, doc, err) || err_prefix(err, "%s", name);
	quota_book_free(r.book);
	buf_fini(&r.text);
	buf_fini(&r.found);
	buf_fini(&r.expected);
	if (ok)
		*ret = r.sum;
	return ok;
}

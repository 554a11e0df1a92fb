/* aggregator/store/quota/quota_log_record.c - a stretch of the quota log as a recording that `tollgate quota simulate` replays. */
#include "aggregator/store/quota/decision_log.h"

#include "common/base/gz.h"

static bool
write_state(const PGresult *r, int64_t *ret_seq, struct buf *out, struct err *err)
{
	in_place(buf) struct buf state = {0};
	size_t n;
	owned(mem) uint8_t *packed = NULL;

	buf_init(&state, QUOTA_BOOK_MAX_BYTES);
	*ret_seq = 0;
	if (PQntuples(r) == 1) {
		n = (size_t)PQgetlength(r, 0, 1) / 2;
		packed = mem_alloc(n + 1);
		if (!hex_decode(res_text(r, 0, 1), packed, n, err) || !gz_expand(packed, n, &state, err))
			return err_prefix(err, "quota snapshot %s", res_text(r, 0, 0));
		*ret_seq = res_i64(r, 0, 0);
	}
	buf_printf(out, "{\"recording\":1,\"state\":%s,\"state_seq\":%" PRId64 ",\"events\":[",
	           state.len > 0 ? buf_text(&state) : "{}", *ret_seq);
	return true;
}

static void
write_event(const PGresult *r, int i, bool first, struct buf *out)
{
	buf_printf(out, "%s\n{\"seq\":%s,\"at_ns\":%s,\"actor\":", first ? "" : ",", res_text(r, i, 0),
	           res_text(r, i, 1));
	json_write_string(res_text(r, i, 2), out);
	buf_str(out, ",\"event\":");
	buf_str(out, res_text(r, i, 3));
	buf_str(out, ",\"outcome\":");
	buf_str(out, res_text(r, i, 4));
	buf_char(out, '}');
}

bool
store_quota_recording(struct db *db, int64_t from_seq, int64_t to_seq, struct spill *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota_snapshot_at",
		"SELECT seq, encode(state, 'hex') FROM quota_snapshot WHERE seq < $1 ORDER BY seq DESC LIMIT 1"};
	owned(result) PGresult *snapshot = NULL;
	struct db_args from = {0};
	int64_t seq;
	bool first = true, more = true;

	if (from_seq > to_seq)
		return err_set(err, ERR_INVALID, "to_seq: it is before from_seq");
	arg_i64(&from, from_seq);
	if (!db_run(db, &stmt, &from, &snapshot, err) || !write_state(snapshot, &seq, spill_buf(out), err))
		return false;
	while (more) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		quota_events_args(&a, seq);
		if (!db_run(db, &quota_events_stmt, &a, &r, err))
			return false;
		more = PQntuples(r) == QUOTA_EVENTS_AT_ONCE;
		for (int i = 0; i < PQntuples(r); i++) {
			seq = res_i64(r, i, 0);
			if (seq > to_seq) {
				more = false;
				break;
			}
			write_event(r, i, first, spill_buf(out));
			first = false;
		}
		if (!spill_step(out, err))
			return false;
	}
	buf_str(spill_buf(out), "\n]}\n");
	return buf_ok(spill_buf(out), "a recording", err);
}

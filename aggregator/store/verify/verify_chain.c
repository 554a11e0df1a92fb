/* aggregator/store/verify/verify_chain.c - the stored batches of a stream, in the order of their numbers.
 *
 * Rules, in order:
 *  1. numbers have no hole, and end where the stream's cursor and the node's say
 *  2. a batch has the bytes of its SHA-256, also in quarantine and of held nodes. Accepted batches outside the
 *     requested range are only counted
 *  3. ranges (batch_range) have no hole either, from number 1 to where stream_anchor says, and the batches of each
 *     range have its hash; the journal covers the ranges (verify_rows.c)
 *  4. batches are missing only in the first range, if it is retired; the journal and the audit log record that
 *  5. batches after the last range are counted: only rule 2 covers them */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/digest.h"

#define CHAIN_PAGE 2000 /* number of payloads that the database reads at once */
#define RANGE_PAGE 5000

void
verify_name_batch(const struct verify_stream *s, int64_t seq, const char *thing, char out[256])
{
	snprintf(out, 256, "batch %" PRId64 " of epoch %" PRId64 ": %s", seq, s->epoch, thing);
}

/* --- ranges --- */

/* The current range, and its batches so far. */
struct ranges {
	struct verify_node *node;
	const struct verify_stream *stream;
	PGresult *page;
	int row;
	bool ended; /* there is no current range */
	int64_t first, last, batches;
	bool retired;
	char hash[2 * SHA256_SIZE + 1];
	int64_t retired_until; /* the last number of the retired range; 0: there is none */
	int64_t found;         /* batches of the current range */
	struct sha256_state *sum;
};

static void
ranges_fini(struct ranges *r)
{
	PQclear(r->page);
	sha256_drop(r->sum);
}

static void
name_range(const struct ranges *r, const char *thing, char out[256])
{
	snprintf(out, 256, "batches %" PRId64 "-%" PRId64 " of epoch %" PRId64 " (stream %" PRId64 "): %s", r->first,
	         r->last, r->stream->epoch, r->stream->id, thing);
}

/* Advances to the next range. */
static bool
next_range(struct ranges *r, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify ranges", "SELECT first_seq, last_seq, batches, encode(hash, 'hex'), retired FROM batch_range "
				 "WHERE stream_id = $1 AND first_seq > $2 ORDER BY first_seq LIMIT $3"};
	int64_t expected = r->last + 1;
	char what[256];

	if (r->page == NULL || (r->row == PQntuples(r->page) && r->row == RANGE_PAGE)) {
		struct db_args a = {0};

		PQclear(r->page);
		r->page = NULL;
		r->row = 0;
		arg_i64(&a, r->stream->id);
		arg_i64(&a, r->first);
		arg_i64(&a, RANGE_PAGE);
		if (!db_run(r->node->db, &stmt, &a, &r->page, err))
			return false;
	}
	r->ended = r->row == PQntuples(r->page);
	if (r->ended)
		return true;
	r->first = res_i64(r->page, r->row, 0);
	r->last = res_i64(r->page, r->row, 1);
	r->batches = res_i64(r->page, r->row, 2);
	snprintf(r->hash, sizeof(r->hash), "%s", res_text(r->page, r->row, 3));
	r->retired = res_bool(r->page, r->row, 4);
	r->row++;
	if (r->retired)
		r->retired_until = r->last;
	r->found = 0;
	sha256_drop(r->sum);
	r->sum = sha256_begin();
	if (r->first != expected) {
		name_range(r, "where the range begins", what);
		verify_report_amount(r->node, "batch-range", NULL, INT64_MIN, what, expected, r->first);
	}
	return true;
}

/* Rules 3 and 4 for the current range, after all of its batches. */
static void
check_range(struct ranges *r)
{
	uint8_t sum[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1], what[256];

	sha256_end(take(r->sum), sum);
	hex_encode(sum, sizeof(sum), hex);
	if (r->found != r->batches) {
		name_range(r, r->retired ? "batches, which are retired" : "batches", what);
		verify_report_amount(r->node, "batch-range", NULL, INT64_MIN, what, r->batches, r->found);
	} else if (!r->retired && strcmp(hex, r->hash) != 0) {
		name_range(r, "what was received", what);
		verify_report_text(r->node, "batch-range", NULL, INT64_MIN, what, r->hash, hex);
	}
}

/* --- batches --- */

/* Columns of a page; those up to VERSION are hashed by a range. */
enum {
	CHAIN_SEQ,
	CHAIN_LAST,
	CHAIN_FROM,
	CHAIN_TO,
	CHAIN_RECORDS,
	CHAIN_RECEIVED,
	CHAIN_SHA,
	CHAIN_VERSION,
	CHAIN_STATUS,
	CHAIN_BYTES /* the SHA-256 of the bytes; NULL: they were not read */
};

/* Results of a walk along the numbers. */
struct chain {
	int64_t next, covered_ns;
	int64_t first_ns, last_ns; /* of the accepted batches */
};

static bool
put_into_range(struct ranges *g, const PGresult *r, int row, struct err *err)
{
	int64_t seq = res_i64(r, row, CHAIN_SEQ);
	const char *version;
	char length[24];

	while (!g->ended && seq > g->last) {
		check_range(g);
		if (!next_range(g, err))
			return false;
	}
	if (g->ended) {
		g->node->report->counts.unanchored++;
		return true;
	}
	if (seq < g->first)
		return true; /* between two ranges: reported where the range begins */
	g->found++;
	for (int col = CHAIN_SEQ; col < CHAIN_VERSION; col++) {
		sha256_add(g->sum, res_text(r, row, col), strlen(res_text(r, row, col)));
		sha256_add(g->sum, " ", 1);
	}
	version = res_text(r, row, CHAIN_VERSION);
	sha256_add(g->sum, length, (size_t)snprintf(length, sizeof(length), "%zu:", strlen(version)));
	sha256_add(g->sum, version, strlen(version));
	sha256_add(g->sum, ";", 1);
	return true;
}

/* Rule 2. */
static void
check_bytes(struct verify_node *n, const struct verify_stream *s, const PGresult *r, int row)
{
	char what[256];

	if (res_null(r, row, CHAIN_BYTES)) {
		n->report->counts.batches_outside++;
		return;
	}
	n->report->counts.batches++;
	if (strcmp(res_text(r, row, CHAIN_BYTES), res_text(r, row, CHAIN_SHA)) == 0)
		return;
	verify_name_batch(s, res_i64(r, row, CHAIN_SEQ), "SHA-256 of its bytes", what);
	verify_report_text(n, "batch-bytes", NULL, INT64_MIN, what, res_text(r, row, CHAIN_SHA),
	                   res_text(r, row, CHAIN_BYTES));
}

/* Rule 1. */
static void
chain_batch(struct verify_node *n, struct verify_stream *s, struct chain *c, const PGresult *r, int row)
{
	int64_t seq = res_i64(r, row, CHAIN_SEQ), from_ns = res_i64(r, row, CHAIN_FROM),
		to_ns = res_i64(r, row, CHAIN_TO);
	const char *status = res_text(r, row, CHAIN_STATUS);
	char what[256];

	if (seq != c->next) {
		verify_name_batch(s, c->next, "its place in the stream", what);
		verify_report_amount(n, "batch-missing", NULL, INT64_MIN, what, c->next, seq);
	}
	c->next = res_i64(r, row, CHAIN_LAST) + 1;
	if (strcmp(status, "quarantined") == 0) {
		n->report->counts.quarantined += to_ns > n->from_ns && from_ns < n->to_ns;
		return;
	}
	if (to_ns > c->covered_ns)
		c->covered_ns = to_ns;
	if (strcmp(status, "accepted") != 0)
		return;
	if (from_ns < c->first_ns)
		c->first_ns = from_ns;
	if (to_ns > c->last_ns)
		c->last_ns = to_ns;
	if (to_ns <= n->from_ns) {
		s->at_seq = seq + 1;
		s->checked_seq = seq;
	}
}

static void
check_cursor(struct verify_node *n, const struct verify_stream *s, const struct chain *c)
{
	char what[256];

	if (s->next_seq != c->next) {
		snprintf(what, sizeof(what), "next_seq of epoch %" PRId64, s->epoch);
		verify_report_amount(n, "cursor", NULL, INT64_MIN, what, c->next, s->next_seq);
	}
	if (s->covered_until_ns != c->covered_ns) {
		snprintf(what, sizeof(what), "covered_until_ns of epoch %" PRId64, s->epoch);
		verify_report_amount(n, "cursor", NULL, INT64_MIN, what, c->covered_ns == INT64_MIN ? 0 : c->covered_ns,
		                     s->covered_until_ns == INT64_MIN ? 0 : s->covered_until_ns);
	}
}

/* Rules 3 and 4 at the end of the stream. */
static bool
end_ranges(struct ranges *g, int64_t anchored_seq, struct err *err)
{
	const struct verify_stream *s = g->stream;
	char what[256];

	while (!g->ended) {
		check_range(g);
		if (!next_range(g, err))
			return false;
	}
	if (anchored_seq != g->last) {
		snprintf(what, sizeof(what), "where the ranges of epoch %" PRId64 " (stream %" PRId64 ") end", s->epoch,
		         s->id);
		verify_report_amount(g->node, "batch-range", NULL, INT64_MIN, what, g->last, anchored_seq);
	}
	if (g->last >= s->next_seq) {
		snprintf(what, sizeof(what),
		         "next_seq of epoch %" PRId64 " (stream %" PRId64 "), whose ranges go further", s->epoch,
		         s->id);
		verify_report_amount(g->node, "batch-range", NULL, INT64_MIN, what, g->last + 1, s->next_seq);
	}
	if (s->evidence_seq != g->retired_until + 1) {
		snprintf(what, sizeof(what), "evidence_seq of epoch %" PRId64 " (stream %" PRId64 ")", s->epoch, s->id);
		verify_report_amount(g->node, "batch-range", NULL, INT64_MIN, what, g->retired_until + 1,
		                     s->evidence_seq);
	}
	return true;
}

static bool
walk_chain(struct verify_node *n, struct verify_stream *s, struct chain *c, int64_t anchored_seq, struct err *err)
{
	/* The database computes the hash: only the hash is sent. */
	static const struct db_stmt stmt = {
		"verify chain",
		"SELECT seq, last_seq, from_ns, to_ns, records, ns_of(received_at), encode(sha256, 'hex'), exporter_version, status, "
		"CASE WHEN status <> 'accepted' OR (to_ns > $4 AND from_ns < $5) THEN encode(sha256(payload), 'hex') END "
		"FROM ingest_batch WHERE stream_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3"};
	in_place(ranges) struct ranges g = {.node = n, .stream = s};
	int64_t seq = 1; /* includes batches before the first number that should be stored */

	if (!next_range(&g, err))
		return false;
	for (bool more = true; more;) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		arg_i64(&a, s->id);
		arg_i64(&a, seq);
		arg_i64(&a, CHAIN_PAGE);
		arg_i64(&a, n->from_ns);
		arg_i64(&a, n->to_ns);
		if (!db_run(n->db, &stmt, &a, &r, err))
			return false;
		for (int row = 0; row < PQntuples(r); row++) {
			chain_batch(n, s, c, r, row);
			check_bytes(n, s, r, row);
			if (!put_into_range(&g, r, row, err))
				return false;
		}
		more = PQntuples(r) == CHAIN_PAGE;
		if (more)
			seq = res_i64(r, CHAIN_PAGE - 1, CHAIN_SEQ) + 1;
	}
	return end_ranges(&g, anchored_seq, err);
}

bool
verify_streams(struct verify_node *n, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify streams",
		"SELECT s.id, s.epoch, s.next_seq, s.covered_until_ns, replace(s.boot_id::text, '-', ''), s.evidence_seq, coalesce(a.seq, 0) "
		"FROM stream s LEFT JOIN stream_anchor a ON a.stream_id = s.id WHERE s.node_id = $1 ORDER BY s.id"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int64_t covered_ns = INT64_MIN;

	arg_i64(&a, n->id);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	n->stream_count = (size_t)PQntuples(r);
	n->streams = mem_array(n->stream_count, sizeof(*n->streams));
	for (int row = 0; row < PQntuples(r); row++) {
		struct verify_stream *s = &n->streams[row];
		struct chain c = {.next = res_i64(r, row, 5),
		                  .covered_ns = INT64_MIN,
		                  .first_ns = INT64_MAX,
		                  .last_ns = INT64_MIN};

		*s = (struct verify_stream){
			.id = res_i64(r, row, 0),
			.epoch = res_i64(r, row, 1),
			.next_seq = res_i64(r, row, 2),
			.covered_until_ns = res_null(r, row, 3) ? INT64_MIN : res_i64(r, row, 3),
			.evidence_seq = res_i64(r, row, 5),
			.at_seq = res_i64(r, row, 5),
			.next_from_ns = INT64_MIN,
		};
		snprintf(s->boot_id, sizeof(s->boot_id), "%s", res_text(r, row, 4));
		if (!walk_chain(n, s, &c, res_i64(r, row, 6), err))
			return false;
		/* The time covered by retired batches is not known any more. */
		if (s->evidence_seq > 1 && c.covered_ns == INT64_MIN)
			c.covered_ns = s->covered_until_ns;
		check_cursor(n, s, &c);
		if (c.covered_ns > covered_ns)
			covered_ns = c.covered_ns;
		/* Hours that the batches cover are checked even if node_hour has none. */
		if (c.first_ns < n->hours_from_ns)
			n->hours_from_ns = hour_floor(&n->ledger, c.first_ns);
		if (c.last_ns > n->hours_until_ns)
			n->hours_until_ns = hour_ceil(&n->ledger, c.last_ns);
	}
	if (covered_ns != n->covered_until_ns)
		verify_report_amount(n, "cursor", NULL, INT64_MIN, "covered_until_ns of the node",
		                     covered_ns == INT64_MIN ? 0 : covered_ns,
		                     n->covered_until_ns == INT64_MIN ? 0 : n->covered_until_ns);
	return true;
}

/* aggregator/store/verify/verify.h - recomputes the ledger from its batches and compares it; verifies the audit
 * chains. */
#ifndef TOLLGATE_VERIFY_H
#define TOLLGATE_VERIFY_H

#include "aggregator/store/store.h"

/* Recomputes the ledger from its stored batches and reports every difference:
 * {"from","to","differences":[{"kind","node","gpu","hour","what","expected","found","difference"}],"count","left_out",
 * "nodes","hours",...}: the members of verify_counts. The kinds are in store/README.md. left_out: differences counted
 * beyond the limit of one answer. ERR_MISSING: there is no such node. */
enum verify_part {
	VERIFY_ALL,
	VERIFY_NODES, /* batches, records, hours, attribution: of all nodes, or of one */
	VERIFY_DAYS,  /* billing days and their charges */
	VERIFY_BILLS, /* closed months: the record of the close, documents, lines, changes since */
	VERIFY_ROWS,  /* rows that cannot be recomputed, against the journal; without a range */
	VERIFY_PARTS
};
extern const char *const verify_part_names[VERIFY_PARTS + 1]; /* ended by NULL */
struct verify_query {
	int64_t from_ns, to_ns; /* widened to billing hours */
	const char *node;       /* NULL: all */
	enum verify_part part;  /* with a node always VERIFY_NODES */
};
MUST_CHECK bool store_verify_json(struct db *db, const struct verify_query *q, struct buf *out, struct err *err);

/* Counts of compared items, and of skipped ones by reason. */
struct verify_counts {
	int64_t differences;
	int64_t nodes, hours, batches, records, days, charges, rows;
	int64_t schema;             /* objects of the schema */
	int64_t schema_differences; /* part of the differences */
	int64_t schema_texts;    /* part of schema: printed by another major version of PostgreSQL, and not compared */
	int64_t hours_pending;   /* records arrived after they were retired; they are being sealed again */
	int64_t hours_unproved;  /* their batches were deleted by retention */
	int64_t days_open;       /* not folded: reports compute them from their hours */
	int64_t days_gone;       /* their hours were deleted by retention */
	int64_t quarantined;     /* batches not released */
	int64_t set_aside;       /* GPUs whose records in a batch were set aside and not released */
	int64_t batches_outside; /* accepted, and wholly outside the range: their bytes were not read */
	int64_t unanchored;      /* batches in no range yet: only their own SHA-256 covers them */
	int64_t months, documents, lines; /* closed months, their documents and invoice lines */
	int64_t lines_rated;              /* lines that were rated a second time */
	int64_t months_changed;           /* months changed since the close; the first open month has the correction */
	int64_t months_earlier;           /* months rated by the rules of an earlier release */
};
/* Verifies a month for its close, with the closed months that have changed since, every billed day whose hours are
 * stored, and the chains of the audit log. At most one node or one day is in memory. progress is called before each step;
 * if it returns false, the call ends with its err. out: the differences as a JSON array, 10,000 at most;
 * ret->differences counts all. ERR_MISSING: the ledger has no data of the month. */
typedef bool verify_progress(void *arg, int64_t done, int64_t total, const char *step, struct err *err);
MUST_CHECK bool store_verify_month(struct db *db, const char *month, verify_progress *progress, void *arg,
                                   struct verify_counts *ret, struct buf *out, struct err *err);

/* Recomputes the chains and seals page by page: {"differences":[...as
 * store_verify_json],"count","left_out","entries","events", "seals","unsealed","next"}; the kinds are in
 * store/README.md. Includes the quota log: its hashes, and its events replayed. */
struct audit_verify_query {
	const char *after;   /* next of the page before; NULL: the first page */
	int64_t witness_seq; /* a seal that the caller has recorded, and its hash; 0: none */
	const char *witness_hash;
};
MUST_CHECK bool store_audit_verify_json(struct db *db, const struct audit_verify_query *q, struct buf *out,
                                        struct err *err);

#endif

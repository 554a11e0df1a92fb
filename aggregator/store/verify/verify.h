/* aggregator/store/verify/verify.h - the ledger computed a second time and compared, and the proof of the audit chains. */
#ifndef TOLLGATE_VERIFY_H
#define TOLLGATE_VERIFY_H

#include "aggregator/store/store.h"

/* The ledger computed a second time, from the batches it keeps as evidence, and every difference to what it has:
 * {"from","to","differences":[{"kind","node","gpu","hour","what","expected","found","difference"}],"count","left_out",
 * "nodes","hours",...}: the members of verify_counts. The kinds are in store/README.md. left_out: counted, but beyond what one answer
 * tells. ERR_MISSING: there is no such node. */
enum verify_part {
	VERIFY_ALL,
	VERIFY_NODES, /* batches, records, hours, attribution: of all nodes, or of one */
	VERIFY_DAYS,  /* billing days and their charges */
	VERIFY_BILLS, /* closed months: the record of the close, documents, lines, changes since */
	VERIFY_ROWS,  /* rows that cannot be computed again, by the journal; whatever the range */
	VERIFY_PARTS
};
extern const char *const verify_part_names[VERIFY_PARTS + 1]; /* ended by NULL */
struct verify_query {
	int64_t from_ns, to_ns; /* widened to billing hours */
	const char *node;       /* NULL: all */
	enum verify_part part;  /* of one node always VERIFY_NODES */
};
MUST_CHECK bool store_verify_json(struct db *db, const struct verify_query *q, struct buf *out, struct err *err);

/* How much was looked at, and how much was not, and why. */
struct verify_counts {
	int64_t differences;
	int64_t nodes, hours, batches, records, days, charges, rows;
	int64_t schema;             /* objects of the schema */
	int64_t schema_differences; /* of the differences */
	int64_t schema_texts;       /* of them: printed by another major version of PostgreSQL, and not compared */
	int64_t hours_pending;      /* records came for them after they were retired; they are being made again */
	int64_t hours_unproved;     /* their batches were given up */
	int64_t days_open;          /* not folded: reports make them from their hours */
	int64_t days_gone;          /* their hours were given up */
	int64_t quarantined;        /* batches that nobody released */
	int64_t set_aside;          /* GPUs of batches whose records nobody released */
	int64_t batches_outside;    /* accepted, and wholly outside the range: their bytes were not read */
	int64_t unanchored;         /* batches in no range yet: only their own SHA-256 proves them */
	int64_t months, documents, lines; /* closed months, and what was billed with them */
	int64_t lines_rated;              /* of the lines: those that were rated a second time */
	int64_t months_changed; /* of the months: something has changed since, which the first open month corrects */
	int64_t months_earlier; /* of the months: rated by the rules of an earlier release */
};
/* The proof of a month, as a close needs it: with the closed months that have changed since, all that was billed of days whose hours are kept, and
 * the chains of the audit log. In all parts, of which a node and a day are the largest that is in memory. tell is called before each step; false of
 * it ends the proof with err as it left it. out: the differences as a JSON array, 10,000 at most; ret->differences counts all. ERR_MISSING: the
 * ledger has nothing of the month. */
typedef bool verify_progress(void *arg, int64_t done, int64_t total, const char *step, struct err *err);
MUST_CHECK bool store_verify_month(struct db *db, const char *month, verify_progress *tell, void *arg,
                                   struct verify_counts *ret, struct buf *out, struct err *err);

/* The chains and seals computed again, page by page: {"differences":[...as store_verify_json],"count","left_out","entries","events",
 * "seals","unsealed","next"}; the kinds are in store/README.md. The quota log is proved with them: its hashes, and its events replayed. */
struct audit_proof {
	const char *after;   /* next of the page before; NULL: the first page */
	int64_t witness_seq; /* a seal that somebody kept, and its hash; 0: none */
	const char *witness_hash;
};
MUST_CHECK bool store_audit_verify_json(struct db *db, const struct audit_proof *q, struct buf *out, struct err *err);

#endif

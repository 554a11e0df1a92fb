/* aggregator/store/access/audit_store.h - the audit log beside its list (store.h): reads entered, batches anchored, entries chained and sealed, chains
 * proved.
 *
 * An entry is written by the transaction that changes something, and is put into its chain afterwards: a chain for each tenant, and
 * one for the operator's entries. Who writes an entry waits for nobody. What is promised:
 *  1. from its seal on, at most audit-interval after its commit, an entry that is changed, removed or moved is found, and so is one
 *     that is slipped in between, or put beside the chains; before, only its removal and one put beside are
 *  2. whoever can rewrite every link behind it, the ends and the seals, leaves no trace in the database. Each seal's hash is in the
 *     daemon's log as well: against one of those the chain of seals, and so all of it, can be held */
#ifndef TOLLGATE_AUDIT_STORE_H
#define TOLLGATE_AUDIT_STORE_H

#include "aggregator/store/store.h"
#include "common/base/digest.h"

/* The same read by the same one, once or more. */
struct audit_read {
	const char *actor, *action, *subject;
	const char *tenant; /* whose rows they were; NULL: not of one tenant */
	int64_t first_ns, last_ns, times;
};
MUST_CHECK bool store_audit_reads(struct db *db, const struct audit_read *reads, size_t n, struct err *err);

/* Puts batches that are in no range yet into ranges, which the journal of rows has; some 10,000 at once. Until then only its own SHA-256 proves
 * a batch that was accepted. */
MUST_CHECK bool store_batches_anchor(struct db *db, int64_t *ret_batches, bool *ret_more, struct err *err);

struct audit_sealed {
	int64_t entries; /* that were put into chains */
	int64_t seal;    /* 0: there was nothing to seal, or another replica does */
	char hash[2 * SHA256_SIZE + 1];
};
/* Puts what was committed into the chains and seals their ends; at most `most` entries. */
MUST_CHECK bool store_audit_seal(struct db *db, int most, struct audit_sealed *ret, struct err *err);

/* The chains and seals computed again, page by page: {"differences":[...as store_verify_json],"count","left_out","entries","events",
 * "seals","unsealed","next"}; the kinds are in store/README.md. The quota log is proved with them: its hashes, and its events replayed. */
struct audit_proof {
	const char *after;   /* next of the page before; NULL: the first page */
	int64_t witness_seq; /* a seal that somebody kept, and its hash; 0: none */
	const char *witness_hash;
};
MUST_CHECK bool store_audit_verify_json(struct db *db, const struct audit_proof *q, struct buf *out, struct err *err);

/* An operator answers for a change of journalled rows that nobody entered into the audit log: verify takes it from then on. Writes {"entry",
 * "relation","operation","keys","at"}. ERR_MISSING: there is no such entry. ERR_CONFLICT: somebody has accepted it. */
struct journal_accept {
	int64_t entry;
	const char *actor, *reason;
};
MUST_CHECK bool store_journal_accept(struct db *db, const struct journal_accept *rq, struct buf *out, struct err *err);

#endif

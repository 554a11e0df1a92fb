/* aggregator/store/verify/audit_proof.h - between audit_verify.c (chains and seals), audit_replay.c (the quota log) and audit_decision.c (the rows
 * that follow it). */
#ifndef TOLLGATE_AUDIT_PROOF_H
#define TOLLGATE_AUDIT_PROOF_H

#include "aggregator/store/access/access.h"
#include "aggregator/store/verify/verify_ledger.h"

typedef char hash_text[2 * SHA256_SIZE + 1];

/* What is proved, in this order; and where a page of it ends. */
enum proof_phase { PROOF_LINKS, PROOF_EVENTS, PROOF_JOURNAL, PROOF_SEALS, PROOF_PHASES };
struct place {
	enum proof_phase phase;
	int64_t chain, seq;
};

struct proof {
	struct verify_node node; /* of no node: how differences are told */
	struct verify_report report;
	struct db *db;
	struct place at;
	bool more;      /* of this phase */
	hash_text hash; /* of the link or seal at hand */
	int64_t entries, events, journal, seals, unsealed;
};
void proof_tell(struct proof *p, const char *kind, const char *what, const char *expected, const char *found);

/* A page of the quota log, behind p->at.seq: the chain of its hashes, and every event replayed by the engine. */
MUST_CHECK bool proof_events(struct proof *p, struct err *err);

/* The rows of decisions, compared with the events behind `after` up to `end`, of which all hashes and outcomes are right (audit_decision.c). last: the
 * log ends there. */
MUST_CHECK bool proof_decisions(struct proof *p, int64_t after, int64_t end, bool last, struct err *err);

#endif

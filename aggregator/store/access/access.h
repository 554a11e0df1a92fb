/* aggregator/store/access/access.h - tokens, join tokens, and the audit log.
 *
 * An entry is written by the transaction that changes something, and is put into its chain afterwards: a chain for each tenant, and
 * one for the operator's entries. Writers of entries never wait for the chains. Guarantees:
 *  1. from its seal on, at most audit-interval after its commit, verification finds an entry that was changed, removed or moved, and
 *     one that was inserted between others or outside the chains; before its seal, only its removal and an entry outside the chains
 *  2. an attacker who can rewrite every later link, the ends and the seals leaves no trace in the database. Each seal's hash is also in
 *     the daemon's log: one of those is enough to check the chain of seals, and so every chain */
#ifndef TOLLGATE_ACCESS_H
#define TOLLGATE_ACCESS_H

#include "aggregator/store/store.h"
#include "common/base/digest.h"

enum role {
	ROLE_ADMIN = 1,
	ROLE_BILLING = 2,
	ROLE_TENANT_ADMIN = 4,
	ROLE_DEVELOPER = 8,
	ROLE_VIEWER = 16,
	ROLE_NODE = 32,
	ROLE_SCHEDULER = 64,
	ROLE_METER = 128,
	ROLE_LAST = ROLE_METER,
};
struct identity_row {
	int64_t token_id;
	uint32_t role;
	char name[352];  /* for the audit log: "node demo-h100 #7" */
	char node[256];  /* ROLE_NODE: the one node it speaks for */
	char tenant[64]; /* tenant roles: the one tenant it may see; else empty */
};
struct token_request {
	uint32_t role;
	const char *tenant;      /* of a tenant role; it must exist */
	const char *node;        /* of a node token; the node need not have reported yet */
	const char *sources;     /* of a meter: whose events it sends, with commas between them */
	const char *description; /* NULL: none */
	int64_t expires_ns;      /* 0: never */
};
struct token_made {
	int64_t id;
	char name[352];
	char token[72]; /* shown only here */
};
/* Makes a token (256 random bits as 64 hex digits), stores its SHA-256. */
MUST_CHECK bool store_token_create(struct db *db, const struct token_request *rq, const char *actor,
                                   struct token_made *ret, struct err *err);
/* ERR_DENIED when the token is unknown, expired or revoked. */
#define STORE_TOKEN_REFUSED "the token is not known, has expired or was revoked"
MUST_CHECK bool store_token_check(struct db *db, const char *token, struct identity_row *ret, struct err *err);
/* The same for several in one statement: each has its own outcome in who or err (ERR_NONE: it is known). */
#define TOKEN_LOOKS_MAX 64u
struct token_look {
	const char *token;
	struct identity_row who;
	struct err err;
};
void store_tokens_check(struct db *db, struct token_look *const *looks, size_t n);
const char *role_name(uint32_t role);
MUST_CHECK bool role_parse(const char *text, uint32_t *ret, struct err *err);

struct token_query {
	const char *tenant, *role, *node, *status; /* NULL: any */
	struct page page;
};
/* {"tokens":[...],"next":ID or null}; no token is in it. */
MUST_CHECK bool store_tokens_json(struct db *db, const struct token_query *q, struct buf *out, struct err *err);
/* The row of one token, as in the list. tenant: the only one whose tokens the caller may see; NULL: any. ERR_MISSING: there is
 * none of that id. */
MUST_CHECK bool store_token_json(struct db *db, int64_t id, const char *tenant, struct buf *out, struct err *err);
/* From the next check on the token is refused. tenant: the only one whose tokens the caller may revoke; NULL: any.
 * The token's row is written to out. ERR_MISSING: there is none of that id. */
MUST_CHECK bool store_token_revoke(struct db *db, int64_t id, const char *tenant, const char *actor, struct buf *out,
                                   struct err *err);

/* Join tokens: a node exchanges one for its own token, once. */
struct join_token_request {
	const char *node; /* the one name it enrols; NULL: any that has no active token */
	const char *description;
	int64_t expires_ns;
};
MUST_CHECK bool store_join_token_create(struct db *db, const struct join_token_request *rq, const char *actor,
                                        struct token_made *ret, struct err *err);
MUST_CHECK bool store_join_tokens_json(struct db *db, const char *status, const struct page *page, struct buf *out,
                                       struct err *err);
/* ERR_CONFLICT when a node has used it already. */
MUST_CHECK bool store_join_token_revoke(struct db *db, int64_t id, const char *actor, struct buf *out, struct err *err);
/* ERR_DENIED if the join token is not valid; the text says why. The join token stays usable. */
MUST_CHECK bool store_join_check(struct db *db, const char *join_token, struct err *err);
/* The exchange, all or nothing: of two at the same time one gets a token. ERR_DENIED: the join token is not valid,
 * and the text says why; or, with *ret_known, it was made for another node. ERR_CONFLICT: the name has an active
 * token. */
MUST_CHECK bool store_join(struct db *db, const char *join_token, const char *node, struct token_made *ret,
                           bool *ret_known, struct err *err);

/* Approves a node: its batches count from then on (ingest_held.c). make: the node need not have reported yet; otherwise an unknown name is
 * ERR_MISSING. *ret_changed: it was not approved before. */
MUST_CHECK bool store_node_approve(struct db *db, const char *node, const char *actor, const char *reason, bool make,
                                   bool *ret_changed, struct err *err);

/* --- audit log --- */

struct audit_query {
	const char *tenant, *actor, *action, *subject; /* NULL: any */
	int64_t from_ns, to_ns;                        /* INT64_MIN, INT64_MAX: any */
	struct page page;
};
/* {"entries":[...],"next":ID or null} */
MUST_CHECK bool store_audit_json(struct db *db, const struct audit_query *q, struct buf *out, struct err *err);

/* One kind of read by one actor, once or more often. */
struct audit_read {
	const char *actor, *action, *subject;
	const char *tenant; /* the tenant of the rows; NULL: not of one tenant */
	int64_t first_ns, last_ns, times;
};
MUST_CHECK bool store_audit_reads(struct db *db, const struct audit_read *reads, size_t n, struct err *err);

/* Puts batches without a range into ranges, which the journal of rows covers; about 10,000 at once. Until then an
 * accepted batch is covered only by its own SHA-256. */
MUST_CHECK bool store_batches_anchor(struct db *db, int64_t *ret_batches, bool *ret_more, struct err *err);

struct audit_sealed {
	int64_t entries; /* put into chains */
	int64_t seal;    /* 0: nothing to seal, or another replica seals */
	char hash[2 * SHA256_SIZE + 1];
};
/* Puts committed entries into the chains and seals their ends; at most `most` entries. */
MUST_CHECK bool store_audit_seal(struct db *db, int most, struct audit_sealed *ret, struct err *err);

/* An operator accepts a change of journalled rows that has no entry in the audit log: verify accepts it from then on. Writes {"entry",
 * "relation","operation","keys","at"}. ERR_MISSING: there is no such entry. ERR_CONFLICT: it was accepted before. */
struct journal_accept {
	int64_t entry;
	const char *actor, *reason;
};
MUST_CHECK bool store_journal_accept(struct db *db, const struct journal_accept *rq, struct buf *out, struct err *err);

#endif

/* aggregator/store/access/token.h - shared by the files about tokens. */
#ifndef TOLLGATE_TOKEN_H
#define TOLLGATE_TOKEN_H

#include "aggregator/store/access/access.h"
#include "aggregator/store/db/db.h"
#include "common/base/digest.h"

/* The name of token k, of tenant t, in the audit log: "viewer acme #7". The number tells two of a kind apart. */
#define TOKEN_NAME "k.role || coalesce(' ' || k.node, ' ' || t.name, '') || ' #' || k.id"

MUST_CHECK bool token_check_node(const char *node, struct err *err);
MUST_CHECK bool token_check_description(const char *text, struct err *err); /* NULL: none */
/*  256 bits as 64 hex digits, and their SHA-256, which is stored. */
void token_random(char ret_token[72], uint8_t ret_sha[SHA256_SIZE]);
void arg_expiry(struct db_args *a, int64_t expires_ns); /* 0: never */
/* As much of the text as fits, in whole characters. */
void token_copy_text(char *out, size_t size, const char *text);

/* Inside a transaction: the token and its audit entry. */
struct token_source {
	const char *action;        /* of the audit entry */
	const char *join_token_id; /* the join token exchanged for it; NULL: none */
	bool approves;             /* an operator named its node */
};
MUST_CHECK bool token_insert(struct db *db, const struct token_request *rq, const char *actor,
                             const struct token_source *from, struct token_made *ret, struct err *err);

#endif

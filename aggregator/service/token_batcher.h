/* aggregator/service/token_batcher.h - requests that come at the same time share one look at their tokens.
 *
 * A look counts for those that had come when it began: so a token that was revoked is refused from the next request on, as if each had
 * looked for itself. Nobody waits for company: who finds few looks under way begins one at once, for all that wait.
 *
 * What a look found is remembered for a while, for who asks the database about the token again, in the transaction that the token is
 * to allow: a memory alone opens no door. */
#ifndef TOLLGATE_TOKEN_BATCHER_H
#define TOLLGATE_TOKEN_BATCHER_H

#include "aggregator/store/access/access.h"
#include "aggregator/store/store.h"

struct token_line;
struct token_line *token_line_new(void);
void token_line_free(struct token_line *l); /* nobody waits any more */

/* As store_token_check; db is the caller's own connection. */
MUST_CHECK bool token_line_check(struct token_line *l, struct db *db, const char *token, struct identity_row *ret,
                                 struct err *err);
/* Whose token this was when it was last looked at, not long ago; false: nobody remembers. */
MUST_CHECK bool token_line_recall(struct token_line *l, const char *token, struct identity_row *ret);
/* It was refused where it had to prove itself: nobody remembers it. */
void token_line_forget(struct token_line *l, const char *token);

#endif

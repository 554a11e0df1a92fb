/* common/http/basic_auth.h - names and passwords (RFC 7617) of a web configuration, as a guard of the HTTP server.
 *
 * Rules, by number in the code:
 *  1. what was right before is known by a digest that is keyed with a secret of this process, and right again at once: a scrape
 *     every second costs no hash
 *  2. anything else takes a bcrypt hash, in a worker's thread, and as long for a name that nobody has
 *  3. hashes are counted: beyond the rate the answer is 429, and what is known (rule 1) goes on
 *  4. with other users, or another hash for one of them, nothing is known any more */
#ifndef TOLLGATE_BASIC_AUTH_H
#define TOLLGATE_BASIC_AUTH_H

#include "common/http/httpd.h"
#include "common/http/webconf.h"

#define BASIC_AUTH_BURST 10     /* hashes at once */
#define BASIC_AUTH_PER_SECOND 5 /* and then */
#define BASIC_AUTH_KNOWN 32     /* pairs */

struct basic_auth;
struct basic_auth *basic_auth_new(void); /* without users: everybody is let in */
void basic_auth_free(struct basic_auth *a);
DEFINE_OWNED(basic_auth, struct basic_auth)

/* Takes the users of a configuration; requests that are being checked are judged by the old ones. */
void basic_auth_set(struct basic_auth *a, const struct webconf *c);

/* For httpd_options.guard, with basic_auth_worker_new for its workers. */
bool basic_auth_guard(struct basic_auth *a, void *worker, const struct http_request *rq, struct http_reply *rp);
void *basic_auth_worker_new(void *app);
void basic_auth_worker_free(void *worker);

/* The pieces, for tests. Rule 1: true when the header is right and known. */
bool basic_auth_known(struct basic_auth *a, const char *authorization);
/* Rule 2. */
bool basic_auth_check(struct basic_auth *a, void *worker, const char *authorization);
/* Rule 3: whether one more hash may be made at this time. */
bool basic_auth_may_hash(struct basic_auth *a, int64_t boot_ns);

#endif

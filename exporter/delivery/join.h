/* exporter/delivery/join.h - how a node comes by its token: it shows a join token, once. */
#ifndef TOLLGATE_JOIN_H
#define TOLLGATE_JOIN_H

#include "common/http/httpc.h"

#define JOIN_PATH "/v1/join"

struct join_options {
	const char *join_token_file; /* what to show; NULL: this node does not join by itself */
	const char *token_file;      /* where the node's own token belongs */
	const char *node;
};

/* Rules, in order:
 *  1. a token file that has something in it is the node's token: nothing is done
 *  2. a token file that could not be written is found out before the join token is used up
 *  3. the token is on disk, readable for its owner only, before anybody hears that the node has joined
 * http shows the join token. ERR_RETRY: the aggregator did not answer; else it refused, and its words are in the text. */
MUST_CHECK bool join_if_needed(struct httpc *http, const struct join_options *o, bool *ret_joined, struct err *err);

#endif

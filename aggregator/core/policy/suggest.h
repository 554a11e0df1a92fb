/* aggregator/core/policy/suggest.h - a draft of a policy from observed usage. Pure: values in, text out.
 *
 * Rules, in order:
 *  1. the policy in force stays, word for word but for its comments; its rules are asked before the new ones
 *  2. a namespace or Slurm account is claimed by its name; names with a common beginning (acme-train, acme-dev) are the
 *     workspaces of one tenant, and where there are many of them, one pattern (acme-*)
 *  3. where a label of the pods of a namespace names their owner (team, tenant, ...), the label's values are tenants
 *  4. users of hosts are claimed by their group, else by name or uid; beyond a number of them the rest is one workspace
 *  5. claims are taken by the time behind them until 99 % is covered, and beyond that while one is worth a thousandth;
 *     the rest is named in a comment */
#ifndef TOLLGATE_SUGGEST_H
#define TOLLGATE_SUGGEST_H

#include "aggregator/core/policy/policy.h"
#include "common/wire/wire.h"

/* Time that holders alike in everything that a rule can see have held. */
struct suggest_use {
	const char *cluster;
	struct wire_holder holder; /* kind, ns, slurm_account, user, uid, group, labels; the rest is empty */
	bool attributed;           /* by the rules in force */
	int128 unit_ns;
};
struct suggest_node {
	const char *name, *cluster;
	bool declared;
};
struct suggest_input {
	const char *cluster;    /* the ledger's */
	int64_t from_ns, to_ns; /* range of the observed usage */
	int64_t effective_ns;   /* from when the draft counts; the start of a billing hour */
	const struct suggest_use *uses;
	size_t use_count;
	const struct suggest_node *nodes;
	size_t node_count;
	const char *current; /* the policy in force; NULL: there is none */
	size_t current_len;
};
/* A document that policy_parse takes. */
MUST_CHECK bool suggest_policy(const struct suggest_input *in, struct buf *out, struct err *err);

#endif

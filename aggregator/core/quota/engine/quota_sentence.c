/* aggregator/core/quota/engine/quota_sentence.c - a verdict in one to three sentences: the reason, the expected start, and the change that would admit it. */
#include <stdio.h>

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/quota/engine/quota_text.h"
#include "common/base/time.h"

/* ---- amounts ------------------------------------------------------------------------------------------------------------------ */

static void
gpus(struct buf *out, int64_t units)
{
	check_number(units > 0 ? units : 0, CHECK_GPUS, out);
	buf_str(out, units == UNITS_PER_GPU ? " GPU" : " GPUs");
}

/* Whole seconds, rounded up: a retry then is not early. */
static void
wait_text(struct buf *out, int64_t ns)
{
	char text[TIME_TEXT_SIZE];

	buf_str(out, duration_format((ns + NS_PER_S - 1) / NS_PER_S * NS_PER_S, text));
}

/* In the largest unit that gives a whole number. */
static void
bytes_text(struct buf *out, int64_t bytes)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;

	while (unit + 1 < ARRAY_LEN(units) && bytes > 0 && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	buf_printf(out, "%" PRId64 " %s", bytes, units[unit]);
}

static void
amount_text(struct buf *out, int64_t amount, enum check_measure m)
{
	switch (m) {
	case CHECK_GPUS: gpus(out, amount); return;
	case CHECK_BYTES: bytes_text(out, amount); return;
	case CHECK_SECONDS: wait_text(out, amount); return;
	case CHECK_COUNT:
	case CHECK_CORES:
	case CHECK_GPU_HOURS:
	case CHECK_MONEY:
	case CHECK_TOKENS: break;
	}
	check_number(amount, m, out);
	if (m == CHECK_CORES)
		buf_str(out, amount == 1000 ? " core" : " cores");
	else if (m == CHECK_GPU_HOURS)
		buf_str(out, amount == UNITS_PER_GPU * 3600 ? " GPU-hour" : " GPU-hours");
	else if (m == CHECK_MONEY)
		buf_str(out, " in money");
	else if (m == CHECK_TOKENS)
		buf_str(out, amount == 1 ? " token" : " tokens");
}

/* As a policy and an exception take it: GPUs as a whole number or a fraction, 37/56. */
static void
typed_amount(struct buf *out, int64_t amount, enum check_measure m)
{
	char text[QUANTITY_TEXT_SIZE];

	if (m == CHECK_GPUS && amount > 0 && amount % UNITS_PER_GPU != 0)
		buf_printf(out, "%s GPUs", quantity_text(amount, text));
	else
		amount_text(out, amount, m);
}

/* "3 more free GPUs", "1 more free instance of 1g.10gb"; units are of whole devices. */
static void
devices(const struct quota_namer *namer, int32_t shape, int64_t units, const char *which, struct buf *out)
{
	struct quota_shape s = namer->shape(namer->of, shape);
	int64_t count = units / s.units;
	const char *many = count == 1 ? "" : "s";

	buf_printf(out, "%" PRId64 " %s", count, which);
	if (s.kind == QUOTA_WHOLE)
		buf_printf(out, "GPU%s", many);
	else if (s.kind == QUOTA_REPLICA)
		buf_printf(out, "replica%s (%" PRId64 " are one GPU)", many, UNITS_PER_GPU / s.units);
	else
		buf_printf(out, "instance%s of %s", many, s.name);
}

static void
shape_text(const struct quota_namer *namer, int32_t shape, struct buf *out)
{
	struct quota_shape s = namer->shape(namer->of, shape);

	if (s.kind == QUOTA_WHOLE)
		buf_str(out, "whole GPUs");
	else if (s.kind == QUOTA_REPLICA)
		buf_printf(out, "replicas of %" PRId64, UNITS_PER_GPU / s.units);
	else
		buf_printf(out, "the profile %s", s.name);
}

/* ---- one change --------------------------------------------------------------------------------------------------------------- */

static bool
is_never(const struct quota_verdict *v)
{
	return v->would == QUOTA_REJECT;
}

/* Whether a rule of the policy forbids it, perhaps beside others: then it is not known whether there are too few nodes. */
static bool
has_policy_change(const struct quota_verdict *v)
{
	for (size_t i = 0; i < v->change_count; i++)
		if (v->changes[i].kind >= QUOTA_CHANGE_GUARDRAIL && v->changes[i].kind <= QUOTA_CHANGE_BORROW)
			return !quota_has_no_node(v);
	return false;
}

void
quota_change_text(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_change *c,
                  struct buf *out)
{
	switch (c->kind) {
	case QUOTA_CHANGE_REQUEST: buf_str(out, v->remedy ? v->remedy : quota_change_name(c)); return;
	case QUOTA_CHANGE_SHAPE:
		buf_str(out, "ask for ");
		shape_text(namer, v->shape, out);
		return;
	case QUOTA_CHANGE_SMALLER:
		buf_str(out, "ask for no more than ");
		devices(namer, v->shape, c->amount, "", out);
		return;
	case QUOTA_CHANGE_CAPACITY:
		buf_str(out, !is_never(v)           ? "wait until "
		             : has_policy_change(v) ? "wait or add nodes until "
		                                    : "add nodes until ");
		devices(namer, v->shape, c->amount, "more ", out);
		buf_str(out, c->amount == namer->shape(namer->of, v->shape).units ? " is free" : " are free");
		return;
	case QUOTA_CHANGE_WAIT:
		buf_str(out, "wait ");
		wait_text(out, c->amount);
		buf_str(out, ", until the back-off ends");
		return;
	case QUOTA_CHANGE_TURN: buf_str(out, "wait until that request has started"); return;
	case QUOTA_CHANGE_GUARDRAIL:
	case QUOTA_CHANGE_LIMIT:
	case QUOTA_CHANGE_TENANT_MAXIMUM:
	case QUOTA_CHANGE_CLUSTER_MAXIMUM:
	case QUOTA_CHANGE_OTHER_LIMIT:
	case QUOTA_CHANGE_BUDGET:
	case QUOTA_CHANGE_RESERVED:
	case QUOTA_CHANGE_BORROW: break;
	}
	buf_str(out, quota_change_name(c));
	if (c->shared &&
	    (c->kind == QUOTA_CHANGE_LIMIT || c->kind == QUOTA_CHANGE_RESERVED || c->kind == QUOTA_CHANGE_BORROW))
		buf_str(out, " in the shared pool");
	buf_str(out, " by ");
	typed_amount(out, c->amount, check_measure_of(c->rule, c->scope, c->budget));
}

/* ---- why ---------------------------------------------------------------------------------------------------------------------- */

/* The check that a change comes from: of its rule and scope, not kept, in its pool. */
static const struct quota_check *
check_of(const struct quota_verdict *v, const struct quota_change *c)
{
	for (size_t i = 0; i < v->check_count; i++) {
		const struct quota_check *k = &v->checks[i];

		if (k->rule == c->rule && k->scope == c->scope && k->shared == c->shared && k->budget == c->budget &&
		    !k->ok && !k->soft && !k->after && k->need - k->have == c->amount)
			return k;
	}
	return NULL;
}

/* A limit in its numbers, or the missing amount where the numbers are of another request than was made. */
static void
leaves(const struct quota_verdict *v, const char *what, const struct quota_change *c, struct buf *out)
{
	enum check_measure m = check_measure_of(c->rule, c->scope, c->budget);
	const struct quota_check *k = check_of(v, c);

	buf_printf(out, "%s ", what);
	if (k && k->headroom <= 0 && k->rule == QUOTA_RULE_BUDGET) {
		buf_str(out, "is used up");
		if (k->headroom < 0) {
			buf_str(out, ": ");
			amount_text(out, -k->headroom, m);
			buf_str(out, " more than it has are spent or promised");
		}
		if (k->requested > 0) {
			buf_str(out, ", and it asks for ");
			amount_text(out, k->requested, m);
		}
	} else if (k) {
		buf_str(out, "leaves ");
		amount_text(out, k->headroom > 0 ? k->headroom : 0, m);
		buf_str(out, ", and it asks for ");
		amount_text(out, k->requested, m);
	} else {
		buf_str(out, "is short of ");
		amount_text(out, c->amount, m);
	}
	buf_char(out, '.');
}

/* One sentence for the first thing that stands against it. */
static void
why(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_change *c, struct buf *out)
{
	static const char *const limits[] = {"The workspace's CPU limit",     "The workspace's memory limit",
	                                     "The workspace's storage limit", "The tenant's CPU limit",
	                                     "The tenant's memory limit",     "The tenant's storage limit"};

	if (c->rule != QUOTA_RULE_VALID && quota_has_no_node(v)) {
		buf_str(out, "There is no node with what it asks for that its workspace may use: its tenant owns none, "
		             "and none is shared.");
		return;
	}
	switch (c->kind) {
	case QUOTA_CHANGE_REQUEST:
		buf_printf(out, "It cannot be admitted as it is asked for%s%s.", v->fault ? ": " : "",
		           v->fault ? v->fault : "");
		break;
	case QUOTA_CHANGE_SHAPE:
		buf_str(out, "No node has what it asks for: GPUs of this model are given out as ");
		shape_text(namer, v->shape, out);
		buf_char(out, '.');
		break;
	case QUOTA_CHANGE_GUARDRAIL:
	case QUOTA_CHANGE_SMALLER: buf_str(out, "It asks for more than one workload may have."); break;
	case QUOTA_CHANGE_LIMIT: leaves(v, "The workspace's limit", c, out); break;
	case QUOTA_CHANGE_TENANT_MAXIMUM: leaves(v, "The tenant's maximum", c, out); break;
	case QUOTA_CHANGE_CLUSTER_MAXIMUM: leaves(v, "The cluster's maximum", c, out); break;
	case QUOTA_CHANGE_OTHER_LIMIT: leaves(v, limits[c->scope - QUOTA_SCOPE_CPU], c, out); break;
	case QUOTA_CHANGE_BUDGET:
		leaves(v,
		       c->scope == QUOTA_SCOPE_TENANT ? "The tenant's budget of this month"
		                                      : "The workspace's budget of this month",
		       c, out);
		break;
	case QUOTA_CHANGE_RESERVED:
		buf_str(out, "It is not preemptible, so it must fit the reservation of its workspace, and that is ");
		gpus(out, c->amount);
		buf_str(out, " too small.");
		break;
	case QUOTA_CHANGE_BORROW:
		buf_str(out, "It would borrow ");
		gpus(out, c->amount);
		buf_str(out, " more than its workspace may.");
		break;
	case QUOTA_CHANGE_CAPACITY:
		buf_str(out, "It needs ");
		devices(namer, v->shape, c->amount, "more free ", out);
		buf_char(out, '.');
		break;
	case QUOTA_CHANGE_WAIT:
		buf_str(out,
		        "GPUs that the workspace had borrowed were taken back: it may borrow this model again in ");
		wait_text(out, c->amount);
		buf_char(out, '.');
		break;
	case QUOTA_CHANGE_TURN:
		buf_str(out, "Another request has waited so long that the next GPUs are kept for it.");
		break;
	}
}

/* ---- the expected start, and the change that would admit it ----------------------------------------------------------------------------------------------- */

/* Only budgets forbid it, and it fits a full budget at the start of a month. */
static bool
is_monthly(const struct quota_verdict *v)
{
	for (size_t i = 0; i < v->change_count; i++) {
		const struct quota_check *k = check_of(v, &v->changes[i]);

		if (v->changes[i].kind != QUOTA_CHANGE_BUDGET || !k || k->requested > k->have)
			return false;
	}
	return v->change_count > 0;
}

static void
when(const struct quota_verdict *v, struct buf *out)
{
	if (v->change_count > 0 && v->changes[0].kind == QUOTA_CHANGE_REQUEST)
		return;
	if (is_never(v) && is_monthly(v))
		buf_str(out, " It cannot be admitted before the next billing month.");
	else if (is_never(v))
		buf_str(out, " As things are it can never be admitted.");
	else if (v->position > 0) {
		char at[TIME_TEXT_SIZE];

		buf_printf(out, " It is number %" PRId64 " of %" PRId64 " in the queue for %s GPUs", v->position,
		           v->queue_length, v->queue_shared ? "the shared" : "its tenant's own");
		if (quota_start_is_known(v->start))
			buf_printf(
				out,
				" and is expected to start at about %s, if what runs ends as announced (an estimate)",
				time_format(v->start_ns, at));
		buf_char(out, '.');
	}
}

/* Rounded up to a second. */
static void
unused(const struct quota_verdict *v, struct buf *out)
{
	char at[TIME_TEXT_SIZE];

	if (v->unused_until_ns > 0)
		buf_printf(out, " Nobody is evicted for it until %s: its last lease was not used.",
		           time_format((v->unused_until_ns + NS_PER_S - 1) / NS_PER_S * NS_PER_S, at));
}

static void
what_to_do(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	bool exception = false, shared = false, was_either = false;

	buf_str(out, v->start == QUOTA_START_AT ? " To start sooner" : " To be admitted");
	buf_str(out, v->others_first ? " when its turn comes: " : ": ");
	for (size_t i = 0; i < v->change_count; i++) {
		enum quota_change_kind kind = v->changes[i].kind;

		bool either = kind == QUOTA_CHANGE_RESERVED && v->or_preemptible;

		buf_str(out, i == 0 ? "" : was_either ? ", and " : i + 1 == v->change_count ? " and " : ", ");
		buf_str(out, either && v->change_count > 1 ? "either " : "");
		quota_change_text(namer, v, &v->changes[i], out);
		buf_str(out, either ? " or ask for it as preemptible" : "");
		was_either = either;
		if (kind == QUOTA_CHANGE_LIMIT || kind == QUOTA_CHANGE_RESERVED) {
			exception = true;
			shared = shared || v->changes[i].shared;
		}
	}
	buf_str(out, shared      ? "; an exception can be asked for, with --shared."
	             : exception ? "; an exception can be asked for."
	                         : ".");
}

/* The rules were not asked. */
static void
not_enforced(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	buf_str(out, "It is admitted because quotas are not enforced for its workspace; if they were, it would ");
	switch (v->would) {
	case QUOTA_ADMIT: break;
	case QUOTA_BORROW:
		buf_str(out, "borrow ");
		gpus(out, v->borrowed_units);
		break;
	case QUOTA_RECLAIM: buf_str(out, "wait until others have given GPUs back"); break;
	case QUOTA_QUEUE: buf_str(out, "wait"); break;
	case QUOTA_REJECT: buf_str(out, "be refused"); break;
	}
	buf_char(out, '.');
	if (v->change_count > 0) {
		buf_char(out, ' ');
		why(namer, v, &v->changes[0], out);
	}
}

void
quota_sentences(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	if (v->adopted) {
		buf_str(out, "It ran before it was asked for and counts from now on");
		if (v->borrowed_units > 0) {
			buf_str(out, ", ");
			gpus(out, v->borrowed_units);
			buf_str(out, " of it beyond the reservation of its workspace");
		}
		buf_str(out, "; no rule was asked.");
		return;
	}
	if (v->decision == QUOTA_ADMIT && v->would != QUOTA_ADMIT) {
		not_enforced(namer, v, out);
		return;
	}
	switch (v->would) {
	case QUOTA_ADMIT: buf_str(out, "It is within the reservation of its workspace."); return;
	case QUOTA_BORROW:
		buf_str(out, "It uses ");
		gpus(out, v->borrowed_units);
		buf_str(out, " beyond the reservation of its workspace");
		buf_str(out, v->unreserved ? ", of those that nobody reserved."
		                           : "; a workspace that reserved them may take them back.");
		return;
	case QUOTA_RECLAIM:
		if (v->not_yet)
			buf_printf(out, "%zu %s will be asked to end for it when %s.", v->victim_count,
			           v->victim_count == 1 ? "lease" : "leases",
			           v->others_first ? "its turn comes" : "the queue is looked at next");
		else
			buf_printf(out, "It waits for %zu %s to end; the GPUs that come back are kept for it.",
			           v->victim_count,
			           v->victim_count == 1 ? "lease that was asked" : "leases that were asked");
		when(v, out);
		return;
	case QUOTA_QUEUE:
	case QUOTA_REJECT:
		if (v->change_count == 0)
			buf_str(out, "It waits for its turn.");
		else
			why(namer, v, &v->changes[0], out);
		unused(v, out);
		when(v, out);
		if (v->change_count > 0)
			what_to_do(namer, v, out);
		return;
	}
}

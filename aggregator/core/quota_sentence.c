/* aggregator/core/quota_sentence.c - a verdict in one to three sentences: why, when, and what can be done. */
#include <stdio.h>

#include "aggregator/core/quota_json.h"
#include "aggregator/core/scenario_text.h"
#include "common/time.h"

static void
gpus(struct buf *out, int64_t units)
{
	scenario_number(units > 0 ? units : 0, SCENARIO_GPUS, out);
	buf_str(out, units == UNITS_PER_GPU ? " GPU" : " GPUs");
}

/* Whole seconds, rounded up: who comes back then is not early. */
static void
wait_text(struct buf *out, int64_t ns)
{
	char text[TIME_TEXT_SIZE];

	buf_str(out, duration_format((ns + NS_PER_S - 1) / NS_PER_S * NS_PER_S, text));
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

void
quota_change_text(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_change *c,
                  struct buf *out)
{
	enum scenario_measure m = scenario_change_measure(c->kind);

	if (c->kind == QUOTA_CHANGE_SHAPE) {
		buf_str(out, "ask for ");
		shape_text(namer, v->offered_shape, out);
		return;
	}
	if (c->kind == QUOTA_CHANGE_CAPACITY) {
		buf_str(out, "wait until ");
		gpus(out, c->amount);
		buf_str(out, " more are free");
		return;
	}
	if (c->kind == QUOTA_CHANGE_TURN) {
		buf_str(out, "wait until that request has started");
		return;
	}
	buf_str(out, quota_change_name(c->kind));
	if (c->kind == QUOTA_CHANGE_WAIT) {
		buf_str(out, ", in ");
		wait_text(out, c->amount);
	} else if (c->amount > 0) {
		buf_str(out, " by ");
		if (m == SCENARIO_GPUS)
			gpus(out, c->amount);
		else
			scenario_number(c->amount, m, out);
	}
}

/* The check that a change comes from: of this rule and scope, not kept, in the pool where it lacks as much. */
static const struct quota_check *
check_of(const struct quota_verdict *v, enum quota_rule rule, enum quota_scope scope, int64_t lacks)
{
	for (size_t i = 0; i < v->check_count; i++) {
		const struct quota_check *k = &v->checks[i];

		if (k->rule == rule && k->scope == scope && !k->ok && !k->after && k->need - k->have == lacks)
			return k;
	}
	return NULL;
}

static void
leaves(const struct quota_verdict *v, enum quota_scope scope, const char *what, int64_t lacks, struct buf *out)
{
	const struct quota_check *k = check_of(v, QUOTA_RULE_LIMIT, scope, lacks);

	buf_str(out, what);
	if (k) {
		buf_str(out, " leaves ");
		gpus(out, k->headroom);
		buf_str(out, ", and it asks for ");
		gpus(out, k->requested);
	} else {
		buf_str(out, " lacks ");
		gpus(out, lacks);
	}
	buf_char(out, '.');
}

/* Why it does not get what it asks for: one sentence for the first thing that stands against it. */
static void
why(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_change *c, struct buf *out)
{
	switch (c->kind) {
	case QUOTA_CHANGE_REQUEST:
		buf_str(out, "What it asks for does not exist or is above what one workload may have.");
		break;
	case QUOTA_CHANGE_SHAPE:
		buf_str(out, "No node has what it asks for: GPUs of this model are given out as ");
		shape_text(namer, v->offered_shape, out);
		buf_char(out, '.');
		break;
	case QUOTA_CHANGE_LIMIT: leaves(v, QUOTA_SCOPE_WORKSPACE, "The workspace's limit", c->amount, out); break;
	case QUOTA_CHANGE_TENANT_MAXIMUM: leaves(v, QUOTA_SCOPE_TENANT, "The tenant's maximum", c->amount, out); break;
	case QUOTA_CHANGE_CLUSTER_MAXIMUM:
		leaves(v, QUOTA_SCOPE_CLUSTER, "The cluster's maximum", c->amount, out);
		break;
	case QUOTA_CHANGE_OTHER_LIMIT: buf_str(out, "The limits of CPU, memory or storage leave too little."); break;
	case QUOTA_CHANGE_BUDGET: buf_str(out, "The budget of this month leaves too little."); break;
	case QUOTA_CHANGE_RESERVED:
		buf_str(out, "Work that cannot be preempted must be within the reservation, which lacks ");
		gpus(out, c->amount);
		buf_char(out, '.');
		break;
	case QUOTA_CHANGE_BORROW:
		buf_str(out, "It would borrow ");
		gpus(out, c->amount);
		buf_str(out, " more than its workspace may.");
		break;
	case QUOTA_CHANGE_PREEMPTIBLE: buf_str(out, "Only preemptible work may borrow, and this is not."); break;
	case QUOTA_CHANGE_CAPACITY:
		buf_str(out, "Of the GPUs that it could use ");
		gpus(out, c->amount);
		buf_str(out, " too few are free.");
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

static void
when(const struct quota_verdict *v, struct buf *out)
{
	if (v->decision == QUOTA_REJECT || v->would == QUOTA_REJECT)
		buf_str(out, " As it is it could never be admitted.");
	else if (v->position > 0)
		buf_printf(out, " It is number %" PRId64 " of %" PRId64 " in the queue for %s GPUs.", v->position,
		           v->queue_length, v->queue_shared ? "the shared" : "its tenant's own");
}

static void
what_to_do(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	bool exception = false;

	buf_str(out, " To be admitted: ");
	for (size_t i = 0; i < v->change_count; i++) {
		buf_str(out, i == 0 ? "" : i + 1 == v->change_count ? " and " : ", ");
		quota_change_text(namer, v, &v->changes[i], out);
		exception = exception || v->changes[i].kind == QUOTA_CHANGE_LIMIT ||
		            v->changes[i].kind == QUOTA_CHANGE_RESERVED;
	}
	buf_str(out, exception ? "; an exception can be asked for." : ".");
}

void
quota_sentences(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	switch (v->would) {
	case QUOTA_ADMIT: buf_str(out, "It is within the reservation of its workspace."); return;
	case QUOTA_BORROW:
		buf_str(out, "It uses ");
		gpus(out, v->borrowed_units);
		buf_str(out,
		        " beyond the reservation of its workspace; whoever they are reserved for may ask them back.");
		return;
	case QUOTA_RECLAIM:
		buf_printf(out, "It waits for %zu %s to end; what they return is kept for it.", v->victim_count,
		           v->victim_count == 1 ? "lease that was asked" : "leases that were asked");
		when(v, out);
		return;
	case QUOTA_QUEUE:
	case QUOTA_REJECT:
		if (v->change_count == 0)
			return;
		why(namer, v, &v->changes[0], out);
		when(v, out);
		what_to_do(namer, v, out);
		return;
	}
}

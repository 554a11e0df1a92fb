/* aggregator/core/metering/lost_expected.c - lost devices of workloads, computed a second time. The numbers are those of lost_expected.h. */
#include "aggregator/core/metering/lost_expected.h"

#include "common/base/time.h"
#include "common/wire/wire.h"

#define MINUTE NS_PER_MIN

const char *const lost_expected_causes[] = {[LOST_EXPECTED_NOT] = "",
                                            [LOST_EXPECTED_DOWN] = "gpu-down",
                                            [LOST_EXPECTED_SILENT] = "node-silent",
                                            [LOST_EXPECTED_XID] = "xid"};

static bool
is_programs_own(int64_t xid)
{
	static const int64_t own[] = {13, 31, 43, 45, 68, 109};

	for (size_t i = 0; i < ARRAY_LEN(own); i++)
		if (own[i] == xid)
			return true;
	return false;
}

/* Rule 1. */
static bool
goes_on(const struct lost_expected_evidence *s, const struct lost_expected_record *end)
{
	for (size_t i = 0; i < s->record_count; i++) {
		const struct lost_expected_record *r = &s->records[i];

		if (r->start_ns < s->before_ns && r->device == end->device && r->holder == end->holder &&
		    r->end_ns > end->end_ns && r->start_ns <= end->end_ns + 10 * MINUTE)
			return true;
	}
	return false;
}

/* A stay's last record, of several that end together the one of the latest stream. */
static bool
is_last(const struct lost_expected_evidence *s, const struct lost_expected_record *end)
{
	for (const struct lost_expected_record *r = s->records; r < s->records + s->record_count; r++)
		if (r != end && r->start_ns < s->before_ns && r->state == WIRE_HELD && r->device == end->device &&
		    r->holder == end->holder && r->end_ns == end->end_ns &&
		    (r->stream > end->stream || (r->stream == end->stream && r < end)))
			return false;
	return true;
}

/* The last error that counts at that end; INT64_MIN: none. */
static int64_t
error_at(const struct lost_expected_evidence *s, const struct lost_expected_record *end)
{
	int64_t at_ns = INT64_MIN;

	for (size_t i = 0; i < s->xid_count; i++) {
		const struct lost_expected_xid *x = &s->xids[i];

		if (x->gpu == end->gpu && x->at_ns < s->before_ns && !is_programs_own(x->xid) &&
		    x->at_ns >= end->end_ns - 10 * MINUTE && x->at_ns <= end->end_ns + MINUTE && x->at_ns > at_ns)
			at_ns = x->at_ns;
	}
	return at_ns;
}

/* Rules 2 to 4. */
static enum lost_expected_cause
cause_of(const struct lost_expected_evidence *s, const struct lost_expected_record *end, int64_t error_ns)
{
	bool accounted = false;

	for (size_t i = 0; i < s->record_count; i++) {
		const struct lost_expected_record *r = &s->records[i];

		if (r->gpu != end->gpu || r->start_ns >= s->before_ns)
			continue;
		if (r->state == WIRE_DOWN && r->start_ns >= end->end_ns && r->start_ns <= end->end_ns + MINUTE)
			return LOST_EXPECTED_DOWN;
		accounted = accounted || (r->end_ns > end->end_ns && r->start_ns <= end->end_ns + 10 * MINUTE);
	}
	if (!accounted && s->accounted_ns >= end->end_ns + 10 * MINUTE)
		return LOST_EXPECTED_SILENT;
	return error_ns != INT64_MIN ? LOST_EXPECTED_XID : LOST_EXPECTED_NOT;
}

void
lost_expected_stays(const struct lost_expected_evidence *s, int64_t hour_ns, lost_expected_tell *tell, void *arg)
{
	for (size_t i = 0; i < s->record_count; i++) {
		const struct lost_expected_record *r = &s->records[i];
		struct lost_expected lost = {.node = r->node,
		                             .stream = r->stream,
		                             .device = r->device,
		                             .holder = r->holder,
		                             .ended_ns = r->end_ns,
		                             .failed_gpu = r->gpu};
		int64_t error_ns;

		if (r->state != WIRE_HELD || r->start_ns >= s->before_ns || r->end_ns < hour_ns ||
		    r->end_ns >= hour_ns + NS_PER_HOUR || goes_on(s, r) || !is_last(s, r))
			continue;
		error_ns = error_at(s, r);
		lost.cause = cause_of(s, r, error_ns);
		if (lost.cause == LOST_EXPECTED_NOT)
			continue;
		if (error_ns == INT64_MIN)
			tell(arg, &lost);
		for (size_t k = 0; error_ns != INT64_MIN && k < s->xid_count; k++) {
			if (s->xids[k].gpu != r->gpu || s->xids[k].at_ns != error_ns || is_programs_own(s->xids[k].xid))
				continue;
			lost.xid = s->xids[k].xid;
			tell(arg, &lost);
		}
	}
}

void
lost_expected_others(const struct lost_expected_evidence *s, const struct lost_expected *failed,
                     lost_expected_tell *tell, void *arg)
{
	const int64_t from_ns = failed->ended_ns - 15 * MINUTE, to_ns = failed->ended_ns + 25 * MINUTE;

	for (size_t i = 0; i < s->record_count; i++) {
		const struct lost_expected_record *r = &s->records[i];
		struct lost_expected lost = *failed;
		bool last = r->holder == failed->holder && r->start_ns >= from_ns && r->start_ns < to_ns &&
		            r->start_ns < s->before_ns && r->end_ns >= failed->ended_ns - MINUTE &&
		            r->end_ns < failed->ended_ns + 10 * MINUTE;

		lost.stream = r->stream;
		for (size_t k = 0; last && k < s->record_count; k++) {
			const struct lost_expected_record *o = &s->records[k];

			if (o->device != r->device || o->holder != r->holder || o->start_ns < from_ns ||
			    o->start_ns >= to_ns || o->start_ns >= s->before_ns)
				continue;
			lost.stream = o->stream > lost.stream ? o->stream : lost.stream;
			last = o->end_ns < r->end_ns || (o->end_ns == r->end_ns && k >= i);
		}
		if (!last)
			continue;
		lost.node = r->node;
		lost.device = r->device;
		lost.ended_ns = r->end_ns;
		tell(arg, &lost);
	}
}

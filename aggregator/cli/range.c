/* aggregator/cli/range.c - the time range of a command: --since, --from, --to, months. Pure: the clock and the ledger's months are arguments.
 *
 * Days are sent as they were written: only the aggregator knows the billing zone in which they begin. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

#define DAY_LENGTH 10 /* 2026-11-01 */

static bool
check_point(const char *option, const char *text, struct err *err)
{
	char moment[TIME_TEXT_SIZE];
	int64_t ns;

	if (text == NULL)
		return true;
	if (strlen(text) == DAY_LENGTH) {
		snprintf(moment, sizeof(moment), "%sT00:00:00Z", text);
		if (time_parse(moment, &ns, NULL))
			return true;
	} else if (time_parse(text, &ns, NULL)) {
		return true;
	}
	return err_set(err, ERR_INVALID,
	               "--%s: \"%.60s\" is neither a day like 2026-11-01 nor a moment like 2026-11-01T08:00:00Z",
	               option, text);
}

bool
range_check(const struct range_options *o, struct err *err)
{
	int ways = (o->since != NULL) + (o->from != NULL || o->to != NULL) + o->this_month + o->last_month;
	int64_t age_ns;

	if (ways > 1)
		return err_set(err, ERR_INVALID,
		               "--since, --from and --to, --this-month, --last-month: only one of them can be meant");
	if (o->since != NULL && !duration_parse(o->since, &age_ns, err))
		return err_prefix(err, "--since");
	return check_point("from", o->from, err) && check_point("to", o->to, err);
}

bool
range_month(const json_t *periods, int64_t now_ns, bool previous, const json_t **ret, struct err *err)
{
	const json_t *before = NULL;
	int64_t before_ends_ns = 0;

	/* the list is in the order of time */
	for (size_t i = 0; i < json_array_size(periods); i++) {
		const json_t *p = json_array_get(periods, i);
		const char *starts = NULL, *ends = NULL;
		int64_t starts_ns, ends_ns;

		if (!json_get_str(p, "starts_at", &starts, err) || !json_get_str(p, "ends_at", &ends, err) ||
		    !time_parse(starts, &starts_ns, err) || !time_parse(ends, &ends_ns, err))
			return err_prefix(err, "/v1/periods");
		if (now_ns < starts_ns)
			break;
		if (now_ns < ends_ns) {
			*ret = !previous ? p : before_ends_ns == starts_ns ? before : NULL;
			return *ret != NULL || err_set(err, ERR_MISSING, "the ledger has nothing of last month");
		}
		before = p;
		before_ends_ns = ends_ns;
	}
	return err_set(err, ERR_MISSING, "the ledger has nothing of %s month", previous ? "last" : "this");
}

bool
range_resolve(const struct range_options *o, int64_t now_ns, const json_t *periods, struct range *ret, struct err *err)
{
	const json_t *month = NULL;
	const char *starts = NULL, *ends = NULL;
	const char *since = o->since != NULL ? o->since : o->preset;
	int64_t age_ns;

	*ret = (struct range){0};
	if (o->this_month || o->last_month) {
		if (!range_month(periods, now_ns, o->last_month, &month, err) ||
		    !json_get_str(month, "starts_at", &starts, err) || !json_get_str(month, "ends_at", &ends, err))
			return false;
		snprintf(ret->from, sizeof(ret->from), "%s", starts);
		/* of the month that is open there is nothing beyond now */
		snprintf(ret->to, sizeof(ret->to), "%s", o->last_month ? ends : "");
		return true;
	}
	if (o->from != NULL || o->to != NULL) {
		snprintf(ret->from, sizeof(ret->from), "%s", o->from != NULL ? o->from : "");
		snprintf(ret->to, sizeof(ret->to), "%s", o->to != NULL ? o->to : "");
		return true;
	}
	if (!duration_parse(since, &age_ns, err))
		return err_prefix(err, "--since");
	time_format(now_ns - age_ns, ret->from);
	return true;
}

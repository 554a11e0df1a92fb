/* aggregator/service/app.c - database connections of the daemon, by login. */
#include "aggregator/service/app.h"

static bool
open_login(const struct aggregator_options *o, const char *conninfo, const char *user, const char *purpose,
           struct db_counters *counters, struct db **ret, struct err *err)
{
	return db_new(
		&(struct db_options){
			.counters = counters,
			.conninfo = conninfo,
			.user = user,
			.application = purpose,
			.statement_timeout_ns = o->statement_timeout_ns,
			.lock_timeout_ns = o->lock_timeout_ns,
			.connect_timeout_ns = o->connect_timeout_ns,
			.work_timeout_ns = {[DB_WORK_REPORT] = o->report_timeout_ns,
	                                    [DB_WORK_ROLLUP] = o->rollup_timeout_ns,
	                                    [DB_WORK_CLOSE] = o->close_timeout_ns,
	                                    [DB_WORK_VERIFY] = o->verify_timeout_ns,
	                                    [DB_WORK_MIGRATE] = o->migrate_timeout_ns},
		},
		ret, err);
}

bool
app_db_new(const struct aggregator_options *o, const char *purpose, struct db_counters *counters, struct db **ret,
           struct err *err)
{
	return open_login(o, o->database, NULL, purpose, counters, ret, err);
}

bool
app_rollup_new(const struct aggregator_options *o, const char *purpose, struct db_counters *counters, struct db **ret,
               struct err *err)
{
	if (o->rollup_database != NULL)
		return open_login(o, o->rollup_database, NULL, purpose, counters, ret, err);
	return open_login(o, o->database, o->rollup_role, purpose, counters, ret, err);
}

bool
app_owner_new(const struct aggregator_options *o, const char *purpose, struct db **ret, struct err *err)
{
	return open_login(o, o->owner_database != NULL ? o->owner_database : o->database, NULL, purpose, NULL, ret,
	                  err);
}

struct period_thresholds
app_close_thresholds(const struct aggregator_options *o)
{
	return (struct period_thresholds){.unknown_ppm = o->close_unknown_ppm,
	                                  .unattributed_ppm = o->close_unattributed_ppm,
	                                  .grace_ns = o->period_grace_ns};
}

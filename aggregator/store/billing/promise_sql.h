/* aggregator/store/billing/promise_sql.h - promises of a month as texts, of k, a row of promises_kept(). */
#ifndef TOLLGATE_PROMISE_SQL_H
#define TOLLGATE_PROMISE_SQL_H

#define PROMISE_OWED_WAIT "trim_scale(k.owed_wait_ns / 1000000000.0)::text"
#define PROMISE_LONGEST_WAIT "trim_scale(round(k.longest_wait_ns / 1000000000.0, 3))::text"
#define PROMISE_OWED_KEPT "CASE WHEN k.owed_requests > 0 THEN k.owed_late = 0 END"
#define PROMISE_DELIVERED "trim_scale(k.delivered_millionths / 10000.0)::text"
#define PROMISE_MEASURED "trim_scale(trunc((k.reserved - k.undelivered) * 100 / k.reserved, 4))::text"
#define PROMISE_DELIVERED_KEPT "CASE WHEN k.reserved > 0 THEN (k.reserved - k.undelivered) * 1000000 >= k.promised END"

#endif

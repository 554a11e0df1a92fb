/* common/base/time.h - time is int64 nanoseconds. Durations come from the boot clock, wall time only places them.
 * The two clocks are read at the rim; everything else gets times as arguments. */
#ifndef TOLLGATE_TIME_H
#define TOLLGATE_TIME_H

#include "common/base/err.h"

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define NS_PER_MIN (60 * NS_PER_S)
#define NS_PER_HOUR (3600 * NS_PER_S)
#define NS_PER_DAY (24 * NS_PER_HOUR)
#define NS_PER_QUARTER_HOUR (15 * NS_PER_MIN)

int64_t time_wall_ns(void); /* CLOCK_REALTIME, since 1970-01-01T00:00:00Z */
int64_t time_boot_ns(void); /* CLOCK_BOOTTIME */
/* CLOCK_MONOTONIC, which stands still while the machine is suspended: for waiting, never for metering. */
int64_t time_monotonic_ns(void);

/* The first multiple of step_ns (since 1970) strictly after t_ns; step_ns > 0. */
int64_t time_next_multiple(int64_t t_ns, int64_t step_ns);

#define TIME_TEXT_SIZE 40
/* RFC 3339 in UTC with as many decimals as needed, at most nine: 2026-11-16T05:45:00Z, 2026-11-16T05:45:00.123Z. */
const char *time_format(int64_t wall_ns, char out[TIME_TEXT_SIZE]);
MUST_CHECK bool time_parse(const char *text, int64_t *ret_wall_ns, struct err *err); /* RFC 3339, any offset */

/* "90s", "5m", "1h30m", "250ms", "7d"; a bare number is refused, because its unit would be a guess. */
MUST_CHECK bool duration_parse(const char *text, int64_t *ret_ns, struct err *err);
const char *duration_format(int64_t ns, char out[TIME_TEXT_SIZE]);

#endif

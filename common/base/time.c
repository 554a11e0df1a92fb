/* common/base/time.c - clocks at the rim, and the text forms of instants and durations.
 * The calendar is computed here: gmtime and timegm know struct tm, whose users forget its offsets and ranges. */
#include "common/base/time.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t
read_clock(clockid_t id)
{
	struct timespec ts;

	ASSERT(clock_gettime(id, &ts) == 0);
	return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t
time_wall_ns(void)
{
	return read_clock(CLOCK_REALTIME);
}

int64_t
time_boot_ns(void)
{
	return read_clock(CLOCK_BOOTTIME);
}

int64_t
time_monotonic_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

/* Rounds towards minus infinity, so that instants before 1970 work too; by > 0. */
static int64_t
floor_div(int64_t a, int64_t by)
{
	return a / by - (a % by < 0);
}

int64_t
time_next_multiple(int64_t t_ns, int64_t step_ns)
{
	int128 next;

	ASSERT(step_ns > 0);
	next = ((int128)floor_div(t_ns, step_ns) + 1) * step_ns;
	/* beyond the year 2262 there is no next multiple: the end of time stands for it */
	return next < INT64_MAX ? (int64_t)next : INT64_MAX;
}

/* Days since 1970-01-01 of a date of the Gregorian calendar. Years are counted from March, so that the leap day is
 * the last of its year, in eras of 400 years, which all have the same number of days. */
static int64_t
days_of_date(int64_t year, int month, int day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	int64_t era = floor_div(y, 400);
	int64_t year_of_era = y - era * 400;
	int64_t month_from_march = (month + 9) % 12;
	int64_t day_of_year = (153 * month_from_march + 2) / 5 + day - 1;

	return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

static void
date_of_days(int64_t days, int64_t *ret_year, int *ret_month, int *ret_day)
{
	int64_t z = days + 719468;
	int64_t era = floor_div(z, 146097);
	int64_t d = z - era * 146097;
	int64_t year_of_era = (d - d / 1460 + d / 36524 - d / 146096) / 365;
	int64_t day_of_year = d - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	int64_t month_from_march = (5 * day_of_year + 2) / 153;
	int month = (int)(month_from_march < 10 ? month_from_march + 3 : month_from_march - 9);

	*ret_year = year_of_era + era * 400 + (month <= 2);
	*ret_month = month;
	*ret_day = (int)(day_of_year - (153 * month_from_march + 2) / 5 + 1);
}

const char *
time_format(int64_t wall_ns, char out[TIME_TEXT_SIZE])
{
	int64_t seconds = floor_div(wall_ns, NS_PER_S);
	int64_t nanos = wall_ns % NS_PER_S;
	int64_t days = floor_div(seconds, 86400);
	int64_t of_day = seconds - days * 86400;
	int64_t year;
	int month, day, len, decimals = 9;

	if (nanos < 0)
		nanos += NS_PER_S;
	date_of_days(days, &year, &month, &day);
	len = snprintf(out, TIME_TEXT_SIZE, "%04" PRId64 "-%02d-%02dT%02d:%02d:%02d", year, month, day,
	               (int)(of_day / 3600), (int)(of_day / 60 % 60), (int)(of_day % 60));
	ASSERT(len > 0 && len < TIME_TEXT_SIZE - 12);
	if (nanos > 0) {
		for (; nanos % 10 == 0; nanos /= 10)
			decimals--;
		len += snprintf(out + len, TIME_TEXT_SIZE - (size_t)len, ".%0*" PRId64, decimals, nanos);
	}
	out[len] = 'Z';
	out[len + 1] = '\0';
	return out;
}

/* Exactly n digits at *p, as a number; *p moves behind them. */
static bool
digits(const char **p, int n, int *ret)
{
	int value = 0;

	for (int i = 0; i < n; i++) {
		char c = (*p)[i];

		if (c < '0' || c > '9')
			return false;
		value = value * 10 + (c - '0');
	}
	*p += n;
	*ret = value;
	return true;
}

static bool
one_of(const char **p, const char *set)
{
	if (**p == '\0' || !strchr(set, **p))
		return false;
	(*p)++;
	return true;
}

static int
days_in_month(int year, int month)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

	return days[month - 1] + (month == 2 && leap);
}

/* One to nine decimals as nanoseconds. More would have to be rounded, and an instant is not ours to change. */
static bool
fraction(const char **p, int64_t *ret_nanos)
{
	int64_t nanos = 0;
	int n = 0;

	*ret_nanos = 0;
	if (!one_of(p, "."))
		return true;
	for (; **p >= '0' && **p <= '9'; (*p)++, n++) {
		if (n == 9)
			return false;
		nanos = nanos * 10 + (**p - '0');
	}
	for (int i = n; i < 9; i++)
		nanos *= 10;
	*ret_nanos = nanos;
	return n > 0;
}

static bool
offset(const char **p, int *ret_minutes)
{
	int sign, hours, minutes;

	*ret_minutes = 0;
	if (one_of(p, "Zz"))
		return true;
	sign = **p == '-' ? -1 : 1;
	if (!one_of(p, "+-") || !digits(p, 2, &hours) || !one_of(p, ":") || !digits(p, 2, &minutes))
		return false;
	*ret_minutes = sign * (hours * 60 + minutes);
	return hours <= 23 && minutes <= 59;
}

bool
time_parse(const char *text, int64_t *ret_wall_ns, struct err *err)
{
	int year, month, day, hour, minute, second, offset_min;
	const char *p = text;
	int64_t nanos;
	int128 ns;

	if (!digits(&p, 4, &year) || !one_of(&p, "-") || !digits(&p, 2, &month) || !one_of(&p, "-") ||
	    !digits(&p, 2, &day) || !one_of(&p, "Tt ") || !digits(&p, 2, &hour) || !one_of(&p, ":") ||
	    !digits(&p, 2, &minute) || !one_of(&p, ":") || !digits(&p, 2, &second) || !fraction(&p, &nanos) ||
	    !offset(&p, &offset_min) || *p != '\0')
		return err_set(err, ERR_INVALID,
		               "\"%.60s\" is not a time like 2026-11-16T05:45:00Z or 2026-11-16T05:45:00.123+01:00",
		               text);
	if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month))
		return err_set(err, ERR_INVALID, "\"%.60s\": there is no such date", text);
	if (hour > 23 || minute > 59 || second > 59)
		return err_set(err, ERR_INVALID, "\"%.60s\": there is no such time of day", text);

	ns = (int128)days_of_date(year, month, day) * NS_PER_DAY + hour * NS_PER_HOUR + minute * NS_PER_MIN +
	     second * NS_PER_S + nanos - offset_min * NS_PER_MIN;
	if (ns < INT64_MIN || ns > INT64_MAX)
		return err_set(err, ERR_INVALID, "\"%.60s\" is outside the years 1677 to 2262", text);
	*ret_wall_ns = (int64_t)ns;
	return true;
}

static const struct {
	const char *name;
	int64_t ns;
} duration_units[] = {
	{"d", NS_PER_DAY}, {"h", NS_PER_HOUR}, {"m", NS_PER_MIN}, {"s", NS_PER_S},
	{"ms", NS_PER_MS}, {"us", NS_PER_US},  {"ns", 1},
};

/* The unit at *p among those after the last one used, or -1: largest first and each once, as people write it. */
static int
duration_unit(const char **p, int after)
{
	size_t len = strspn(*p, "abcdefghijklmnopqrstuvwxyz");

	for (int i = after + 1; i < (int)ARRAY_LEN(duration_units); i++)
		if (strlen(duration_units[i].name) == len && memcmp(*p, duration_units[i].name, len) == 0) {
			*p += len;
			return i;
		}
	return -1;
}

bool
duration_parse(const char *text, int64_t *ret_ns, struct err *err)
{
	const char *p = text;
	int64_t total = 0;
	int unit = -1;

	do {
		const char *start = p;
		int64_t value = 0;

		for (; *p >= '0' && *p <= '9'; p++)
			if (__builtin_mul_overflow(value, 10, &value) ||
			    __builtin_add_overflow(value, *p - '0', &value))
				goto too_long;
		if (p > start && *p == '\0')
			return err_set(err, ERR_INVALID, "\"%.60s\" needs a unit: d, h, m, s, ms, us or ns", text);
		if (p == start || (unit = duration_unit(&p, unit)) < 0)
			return err_set(err, ERR_INVALID, "\"%.60s\" is not a duration like 90s, 5m, 1h30m, 250ms or 7d",
			               text);
		if (__builtin_mul_overflow(value, duration_units[unit].ns, &value) ||
		    __builtin_add_overflow(total, value, &total))
			goto too_long;
	} while (*p);
	*ret_ns = total;
	return true;

too_long:
	return err_set(err, ERR_INVALID, "\"%.60s\" is longer than 292 years", text);
}

const char *
duration_format(int64_t ns, char out[TIME_TEXT_SIZE])
{
	uint64_t left = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
	size_t len = 0;

	if (ns == 0)
		return memcpy(out, "0s", 3);
	if (ns < 0)
		out[len++] = '-';
	for (size_t i = 0; i < ARRAY_LEN(duration_units); i++) {
		uint64_t unit = (uint64_t)duration_units[i].ns;

		if (left < unit)
			continue;
		len += (size_t)snprintf(out + len, TIME_TEXT_SIZE - len, "%" PRIu64 "%s", left / unit,
		                        duration_units[i].name);
		left %= unit;
	}
	ASSERT(len < TIME_TEXT_SIZE);
	return out;
}

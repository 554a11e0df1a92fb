/* aggregator/store/usage/usage_write.c - a row of usage sums as a JSON object or a CSV line. */
#include "aggregator/store/usage/usage_internal.h"

#include "aggregator/core/reports/chargeback.h"
#include "aggregator/core/rating/rounding.h"
#include "common/conf/json.h"
#include "common/base/units.h"

/* unit-nanoseconds of 1e-9 GPU-hours */
#define UNIT_NS_PER_NGH (UNITS_PER_GPU * (NS_PER_HOUR / NS_PER_S))

/* A share of time to a millionth, memory to a thousandth of a GiB. */
#define RATIO_SCALE 6
#define SM_RATIO_ONE 1000000
#define GIB_SCALE 3
#define GIB_SCALED 1000

void
row_begin(struct usage_row *o)
{
	o->any = false;
	if (o->form == ROW_JSON)
		buf_char(o->out, '{');
}

void
row_end(struct usage_row *o)
{
	buf_str(o->out, o->form == ROW_JSON ? "}" : "\r\n");
}

void
row_name(struct usage_row *o, const char *name, const char *suffix)
{
	buf_printf(o->out, "%s\"%s%s\":", o->any ? "," : "", name, suffix);
	o->any = true;
}

/* Writes the text before a value. False in the head, where no value follows. */
static bool
begin_value(struct usage_row *o, const char *name, const char *suffix)
{
	if (o->form == ROW_JSON) {
		row_name(o, name, suffix);
		return true;
	}
	if (o->any)
		buf_char(o->out, ',');
	o->any = true;
	if (o->form == ROW_HEAD)
		buf_printf(o->out, "%s%s", name, suffix);
	return o->form == ROW_CSV;
}

void
row_text(struct usage_row *o, const char *name, const char *text)
{
	if (!begin_value(o, name, ""))
		return;
	if (o->form == ROW_JSON)
		json_write_string(text, o->out);
	else
		csv_text_field(o->out, text);
}

void
row_decimal(struct usage_row *o, const char *name, const char *suffix, int128 value, int scale)
{
	const char *quote = o->form == ROW_JSON ? "\"" : "";
	char text[DECIMAL_TEXT_SIZE];

	if (begin_value(o, name, suffix))
		buf_printf(o->out, "%s%s%s", quote, decimal_format(value, scale, scale, text), quote);
}

void
row_hours(struct usage_row *o, const char *name, int128 unit_ns)
{
	row_decimal(o, name[0] != '\0' ? name : "gpu", name[0] != '\0' ? "_gpu_hours" : "_hours",
	            div_round_half_even(unit_ns, UNIT_NS_PER_NGH), QUANTITY_SCALE);
}

/* Held time is rounded together, so that used + idle + unmeasured is allocated to the last digit. */
bool
row_states(struct usage_row *o, const int128 unit_ns[USAGE_STATES], struct err *err)
{
	int128 ngh[USAGE_HELD], allocated;

	if (!round_together(unit_ns, USAGE_HELD, UNIT_NS_PER_NGH, ngh, &allocated))
		return err_set(err, ERR_FATAL, "a sum of unit-nanoseconds does not fit 128 bits");
	row_decimal(o, "allocated", "_gpu_hours", allocated, QUANTITY_SCALE);
	for (size_t i = 0; i < USAGE_HELD; i++)
		row_decimal(o, usage_state_name((enum usage_state)i), "_gpu_hours", ngh[i], QUANTITY_SCALE);
	for (size_t i = USAGE_HELD; i < USAGE_STATES; i++)
		row_hours(o, usage_state_name((enum usage_state)i), unit_ns[i]);
	return true;
}

static void
write_exact(struct usage_row *o, const int128 v[USAGE_VALUES])
{
	int128 allocated = 0;

	for (size_t i = 0; i < USAGE_HELD; i++)
		allocated += v[i];
	row_decimal(o, "allocated", "_unit_ns", allocated, 0);
	for (size_t i = 0; i < USAGE_STATES; i++)
		row_decimal(o, usage_state_name((enum usage_state)i), "_unit_ns", v[i], 0);
	row_decimal(o, "over", "_unit_ns", v[USAGE_OVER], 0);
	row_decimal(o, "clock_adjust", "_unit_ns", v[USAGE_CLOCK_ADJUST], 0);
	row_decimal(o, "energy", "_mj", v[USAGE_ENERGY_MJ], 0);
	row_decimal(o, "memory", "_byte_ms", v[USAGE_MEMORY_BYTE_MS], 0);
	row_decimal(o, "sm_active", "_unit_ns", v[USAGE_SM_ACTIVE], 0);
	row_decimal(o, "sm_measured", "_unit_ns", v[USAGE_SM_MEASURED], 0);
	row_decimal(o, "peak_memory", "_bytes", v[USAGE_PEAK_MEMORY_BYTES], 0);
}

/* Over the time for which the source measured it; empty where it did not. */
static void
write_sm_activity(struct usage_row *o, const int128 v[USAGE_VALUES])
{
	if (v[USAGE_SM_MEASURED] == 0)
		row_text(o, "sm_activity", "");
	else
		row_decimal(o, "sm_activity", "",
		            div_round_half_even(v[USAGE_SM_ACTIVE] * SM_RATIO_ONE, v[USAGE_SM_MEASURED]), RATIO_SCALE);
}

bool
row_values(struct usage_row *o, const int128 v[USAGE_VALUES], bool exact, struct err *err)
{
	if (exact) {
		write_exact(o, v);
		return true;
	}
	if (!row_states(o, v, err))
		return false;
	row_hours(o, "over", v[USAGE_OVER]);
	row_hours(o, "clock_adjust", v[USAGE_CLOCK_ADJUST]);
	/* millijoules to 1e-9 kWh, byte-milliseconds to 1e-9 GiB-hours */
	row_decimal(o, "energy", "_kwh", div_round_half_even(v[USAGE_ENERGY_MJ] * 10, 36), QUANTITY_SCALE);
	row_decimal(o, "memory", "_gib_hours", div_round_half_even(v[USAGE_MEMORY_BYTE_MS] * 10000, (int128)36 << 30),
	            QUANTITY_SCALE);
	row_hours(o, "sm_active", v[USAGE_SM_ACTIVE]);
	row_hours(o, "sm_measured", v[USAGE_SM_MEASURED]);
	write_sm_activity(o, v);
	row_decimal(o, "peak_memory", "_gib",
	            div_round_half_even(v[USAGE_PEAK_MEMORY_BYTES] * GIB_SCALED, (int128)1 << 30), GIB_SCALE);
	return true;
}

void
row_range(struct usage_row *o, int64_t from_ns, int64_t to_ns)
{
	char text[TIME_TEXT_SIZE];

	row_begin(o);
	row_text(o, "from", time_format(from_ns, text));
	row_text(o, "to", time_format(to_ns, text));
}

bool
usage_read(const PGresult *r, int row, int col, size_t n, int128 *out, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		out[i] = 0;
		if (!res_null(r, row, col + (int)i) && !res_i128(r, row, col + (int)i, 0, &out[i], err))
			return false;
	}
	return true;
}

bool
usage_widen(struct db *db, int64_t *from_ns, int64_t *to_ns, struct err *err)
{
	struct db_ledger l;

	if (!db_ledger_get(db, &l, err))
		return false;
	*from_ns = hour_floor(&l, *from_ns);
	*to_ns = hour_ceil(&l, *to_ns);
	return *from_ns < *to_ns || err_set(err, ERR_INVALID, "from: must be before to");
}

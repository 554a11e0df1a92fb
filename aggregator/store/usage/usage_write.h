/* aggregator/store/usage/usage_write.h - sums of usage, from a row of a result to an object of JSON or a line of CSV. */
#ifndef TOLLGATE_USAGE_WRITE_H
#define TOLLGATE_USAGE_WRITE_H

#include "aggregator/store/db/db.h"

/* The first three are the parts of what is allocated. */
#define USAGE_STATES 7
#define USAGE_HELD 3
extern const char *const usage_states[USAGE_STATES];
/* What USAGE_SUMS has, in its order. */
enum usage_value {
	USAGE_OVER = USAGE_STATES, /* the states before it */
	USAGE_CLOCK_ADJUST,
	USAGE_ENERGY_MJ,
	USAGE_MEMORY_BYTE_MS,
	USAGE_SM_ACTIVE, /* efficiency from here on, never billed */
	USAGE_SM_MEASURED,
	USAGE_PEAK_MEMORY_BYTES,
	USAGE_VALUES
};

/* An object or a line that is being written. The head is the line of CSV that names the columns. Names are our own words. */
enum row_form { ROW_JSON, ROW_CSV, ROW_HEAD };
struct usage_row {
	struct buf *out;
	enum row_form form;
	bool any;
};
void row_begin(struct usage_row *o);
void row_end(struct usage_row *o);
void row_name(struct usage_row *o, const char *name, const char *suffix); /* of a member that the caller writes; JSON */
void row_text(struct usage_row *o, const char *name, const char *text);
void row_decimal(struct usage_row *o, const char *name, const char *suffix, int128 value, int scale);
/* name_gpu_hours, or gpu_hours for "", to nine places */
void row_hours(struct usage_row *o, const char *name, int128 unit_ns);
/* allocated and the states, in hours */
MUST_CHECK bool row_states(struct usage_row *o, const int128 unit_ns[USAGE_STATES], struct err *err);
/* All values: in hours, kWh and GiB-hours, or exact, in unit-nanoseconds, millijoules and byte-milliseconds. */
MUST_CHECK bool row_values(struct usage_row *o, const int128 v[USAGE_VALUES], bool exact, struct err *err);
/* {"from":...,"to":... */
void row_range(struct usage_row *o, int64_t from_ns, int64_t to_ns);

/* A sum over no rows is NULL in SQL, and nothing here. */
MUST_CHECK bool usage_read(const PGresult *r, int row, int col, size_t n, int128 *out, struct err *err);
/* To whole billing hours; ERR_INVALID when nothing is left. */
MUST_CHECK bool usage_widen(struct db *db, int64_t *from_ns, int64_t *to_ns, struct err *err);

#endif

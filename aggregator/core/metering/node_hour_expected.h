/* aggregator/core/metering/node_hour_expected.h - the rows that the ledger must have of a node-hour, computed from records, and the differences. Pure.
 *
 * Rules:
 *  1. an interval row is there once for every record of a batch, equal in every column, and there is no other
 *  2. the sums of an hour are kept per device, holder, sharing and method; used, unmeasured and over count where somebody
 *     holds, and what is held and neither used nor unmeasured is idle; a peak is the maximum
 *  3. the unknown time of a GPU is 5040 x its time in service less the time of its records. If that is negative, the
 *     excess is clock_adjust, beside the states. Both are net over the hour */
#ifndef TOLLGATE_NODE_HOUR_EXPECTED_H
#define TOLLGATE_NODE_HOUR_EXPECTED_H

#include "common/base/base.h"

/* A record with the ledger's ids. The first three columns find it again after another one was changed. */
enum verify_column {
	VERIFY_START,
	VERIFY_DEVICE,
	VERIFY_HOLDER, /* 0: nobody */
	VERIFY_STATE,
	VERIFY_UNITS,
	VERIFY_SHARING,
	VERIFY_METHOD,
	VERIFY_DURATION,
	VERIFY_HELD,
	VERIFY_USED_NS,
	VERIFY_UNMEASURED_NS,
	VERIFY_OVER_NS,
	VERIFY_MEMORY_BYTE_MS,
	VERIFY_ENERGY_MJ,
	VERIFY_TICKS,
	VERIFY_PEAK_MEMORY_BYTES,
	VERIFY_SM_ACTIVE_NS,
	VERIFY_SM_MEASURED_NS,
	VERIFY_COLUMNS
};
#define VERIFY_KEY_COLUMNS 3
struct verify_interval {
	int64_t v[VERIFY_COLUMNS];
};
extern const char *const verify_column_names[VERIFY_COLUMNS];

enum verify_fault { VERIFY_MISSING, VERIFY_EXTRA, VERIFY_DOUBLED, VERIFY_CHANGED };
/* expected is NULL for EXTRA, found for MISSING. */
typedef void verify_interval_fault(void *arg, enum verify_fault fault, const struct verify_interval *expected,
                                   const struct verify_interval *found);
/* Rule 1. Both arrays are sorted and used up. */
void verify_intervals(struct verify_interval *expected, size_t n, struct verify_interval *found, size_t m,
                      verify_interval_fault *tell, void *arg);

/* The seven states come first. */
enum verify_sum {
	VERIFY_USED,
	VERIFY_IDLE,
	VERIFY_UNMEASURED,
	VERIFY_UNALLOCATED,
	VERIFY_STRANDED,
	VERIFY_DOWN,
	VERIFY_UNKNOWN,
	VERIFY_OVER,
	VERIFY_CLOCK_ADJUST,
	VERIFY_ENERGY,
	VERIFY_MEMORY,
	VERIFY_SM_ACTIVE,
	VERIFY_SM_MEASURED,
	VERIFY_PEAK_MEMORY, /* the most, not the sum */
	VERIFY_SUMS
};
#define VERIFY_STATES (VERIFY_UNKNOWN + 1)
extern const char *const verify_sum_names[VERIFY_SUMS];

/* One row of an hour; device to method are its key. */
struct verify_row {
	int64_t device_id, holder_id; /* holder 0: nobody */
	int64_t sharing, method;      /* 0 and 0: time that no record covers */
	int64_t gpu_id;
	int64_t workspace_id; /* 0: nobody held */
	int128 sum[VERIFY_SUMS];
};
/* in_place(verify_rows) struct verify_rows rows = {0}; */
struct verify_rows {
	struct verify_row *at;
	size_t count, cap;
};
void verify_rows_fini(struct verify_rows *r);
void verify_rows_add(struct verify_rows *r, const struct verify_row *row);
/* Rule 2 for one record of a device of this GPU. */
void verify_rows_record(struct verify_rows *r, int64_t gpu_id, const struct verify_interval *i);
/* Rule 3: records have held this much of the GPU, whose own device is gpu_device_id. */
void verify_rows_balance(struct verify_rows *r, int64_t gpu_id, int64_t gpu_device_id, int64_t served_ns, int128 held);
/* Sorts by key; rows of one key become one. Needed before reading and comparing. */
void verify_rows_pack(struct verify_rows *r);

/* Both packed. Tells every row that one of them lacks, and CHANGED for every row that both have, equal or not. */
typedef void verify_row_fault(void *arg, enum verify_fault fault, const struct verify_row *expected,
                              const struct verify_row *found);
void verify_rows_compare(const struct verify_rows *expected, const struct verify_rows *found, verify_row_fault *tell,
                         void *arg);
/* The states less clock_adjust, of all rows of a GPU: what must be 5040 x its time in service. */
int128 verify_rows_conserved(const struct verify_rows *r, int64_t gpu_id);

#endif

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

/* A record with the ledger's ids. The first three columns identify it if another one was changed. */
enum node_hour_column {
	NODE_HOUR_START,
	NODE_HOUR_DEVICE,
	NODE_HOUR_HOLDER, /* 0: nobody */
	NODE_HOUR_STATE,
	NODE_HOUR_UNITS,
	NODE_HOUR_SHARING,
	NODE_HOUR_METHOD,
	NODE_HOUR_DURATION,
	NODE_HOUR_HELD,
	NODE_HOUR_USED_NS,
	NODE_HOUR_UNMEASURED_NS,
	NODE_HOUR_OVER_NS,
	NODE_HOUR_MEMORY_BYTE_MS,
	NODE_HOUR_ENERGY_MJ,
	NODE_HOUR_TICKS,
	NODE_HOUR_PEAK_MEMORY_BYTES,
	NODE_HOUR_SM_ACTIVE_NS,
	NODE_HOUR_SM_MEASURED_NS,
	NODE_HOUR_COLUMNS
};
#define NODE_HOUR_KEY_COLUMNS 3
struct node_hour_interval {
	int64_t v[NODE_HOUR_COLUMNS];
};
extern const char *const node_hour_column_names[NODE_HOUR_COLUMNS];

enum node_hour_fault { NODE_HOUR_MISSING, NODE_HOUR_EXTRA, NODE_HOUR_DOUBLED, NODE_HOUR_CHANGED };
/* expected is NULL for EXTRA, found for MISSING. */
typedef void node_hour_interval_fault(void *arg, enum node_hour_fault fault, const struct node_hour_interval *expected,
                                      const struct node_hour_interval *found);
/* Rule 1. Sorts both arrays and overwrites them. */
void node_hour_compare_intervals(struct node_hour_interval *expected, size_t n, struct node_hour_interval *found,
                                 size_t m, node_hour_interval_fault *tell, void *arg);

/* The seven states come first. */
enum node_hour_sum {
	NODE_HOUR_USED,
	NODE_HOUR_IDLE,
	NODE_HOUR_UNMEASURED,
	NODE_HOUR_UNALLOCATED,
	NODE_HOUR_STRANDED,
	NODE_HOUR_DOWN,
	NODE_HOUR_UNKNOWN,
	NODE_HOUR_OVER,
	NODE_HOUR_CLOCK_ADJUST,
	NODE_HOUR_ENERGY,
	NODE_HOUR_MEMORY,
	NODE_HOUR_SM_ACTIVE,
	NODE_HOUR_SM_MEASURED,
	NODE_HOUR_PEAK_MEMORY, /* the most, not the sum */
	NODE_HOUR_SUMS
};
#define NODE_HOUR_STATES (NODE_HOUR_UNKNOWN + 1)
extern const char *const node_hour_sum_names[NODE_HOUR_SUMS];

/* One row of an hour; device to method are its key. */
struct node_hour_row {
	int64_t device_id, holder_id; /* holder 0: nobody */
	int64_t sharing, method;      /* 0 and 0: time that no record covers */
	int64_t gpu_id;
	int64_t workspace_id; /* 0: nobody held */
	int128 sum[NODE_HOUR_SUMS];
};
/* in_place(node_hour_rows) struct node_hour_rows rows = {0}; */
struct node_hour_rows {
	struct node_hour_row *at;
	size_t count, cap;
};
void node_hour_rows_fini(struct node_hour_rows *r);
void node_hour_rows_add(struct node_hour_rows *r, const struct node_hour_row *row);
/* Rule 2 for one record of a device of this GPU. */
void node_hour_rows_record(struct node_hour_rows *r, int64_t gpu_id, const struct node_hour_interval *i);
/* Rule 3: records have held this much of the GPU, whose own device is gpu_device_id. */
void node_hour_rows_balance(struct node_hour_rows *r, int64_t gpu_id, int64_t gpu_device_id, int64_t served_ns,
                            int128 held);
/* Sorts by key; rows of one key become one. Needed before reading and comparing. */
void node_hour_rows_pack(struct node_hour_rows *r);

/* Both are packed. Reports every row that one of them lacks, and CHANGED for every row that both have, equal or not. */
typedef void node_hour_row_fault(void *arg, enum node_hour_fault fault, const struct node_hour_row *expected,
                                 const struct node_hour_row *found);
void node_hour_rows_compare(const struct node_hour_rows *expected, const struct node_hour_rows *found,
                            node_hour_row_fault *tell, void *arg);
/* The states less clock_adjust, of all rows of a GPU: must equal 5040 x its time in service. */
int128 node_hour_rows_conserved(const struct node_hour_rows *r, int64_t gpu_id);

#endif

/* aggregator/core/metering/ingest_sums.h - the records that a push adds to the ledger, summed by workspace, class of device and state: for counters,
 * which must not count a record twice. Pure. */
#ifndef TOLLGATE_INGEST_SUMS_H
#define TOLLGATE_INGEST_SUMS_H

#include "common/base/hash.h"
#include "common/wire/wire.h"

/* The states of BILLING 1. */
enum usage_state {
	USAGE_USED,
	USAGE_IDLE,
	USAGE_UNMEASURED,
	USAGE_UNALLOCATED,
	USAGE_STRANDED,
	USAGE_DOWN,
	USAGE_UNKNOWN, /* of records; time without any record is found when its hour is rolled up */
	USAGE_STATES
};
const char *usage_state_name(enum usage_state s);

/* A class of devices as reports name it; profile is "" for a whole GPU. */
struct device_class {
	char *cluster, *gpu_model, *profile;
};
struct device_classes {
	struct device_class *at;
	size_t count;
};
void device_classes_fini(struct device_classes *c);
/* The index of a class, which is added if it is new. */
int32_t device_classes_find(struct device_classes *c, const char *cluster, const char *gpu_model, const char *profile);

struct ingest_sum {
	int32_t workspace_id; /* 0: nobody holds */
	int32_t device_class; /* index into the classes */
	enum usage_state state;
	int128 unit_ns;
	int64_t energy_mj; /* of a held record: with USED, however its time is split */
};
struct ingest_sums {
	struct ingest_sum *at;
	size_t count, cap;
	struct device_classes classes;
	struct hash where; /* workspace, class and state -> at */
};
void ingest_sums_fini(struct ingest_sums *s);

/* A record that obeys the rules of the wire format (wire_check). */
void ingest_sums_add(struct ingest_sums *s, int32_t workspace_id, int32_t device_class, const struct wire_record *r);

#endif

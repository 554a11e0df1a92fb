/* common/base/limits.h - limits on names and counts in the input of nodes, policies and requests.
 *
 * The wire format, live state, the policy and the quota book use these same numbers, so that input accepted by one is accepted
 * by the next (tests/prop/prop_limits.c). A limit of only one of them belongs there, not here. */
#ifndef TOLLGATE_LIMITS_H
#define TOLLGATE_LIMITS_H

/* A limit as part of a message. */
#define LIMIT_TEXT(limit) LIMIT_TEXT_OF(limit)
#define LIMIT_TEXT_OF(number) #number

/* Bytes of a text. A driver writes UUIDs, models and profiles into buffers of 96. */
#define LIMIT_NODE_NAME 253 /* a host name */
#define LIMIT_GPU_UUID 128  /* of a GPU or a MIG instance */
#define LIMIT_MODEL 96
#define LIMIT_PROFILE 96
#define LIMIT_LABEL 63     /* tenants, workspaces, clusters, priority classes */
#define LIMIT_WORKLOAD 128 /* one of a lease's workloads */

/* How many. */
#define LIMIT_NODE_GPUS 1024     /* of one node: in a batch, a status, a policy, the book */
#define LIMIT_GPU_INSTANCES 56   /* MIG instances of one GPU; a book has as many kinds of devices on one */
#define LIMIT_CLASSES 100        /* priority classes */
#define LIMIT_WORKLOADS 64       /* of one lease */
#define LIMIT_BATCH_HOLDERS 4096 /* that one batch may name */
/* MIG instances of one GPU in one batch, which may have been cut several times meanwhile. */
#define LIMIT_BATCH_INSTANCES 448
/* Devices that a stream has named and of which no record counts, when a batch names more. */
#define LIMIT_STREAM_ENTRIES 8192
/* GPUs in batches of one node whose records are set aside and undecided. */
#define LIMIT_NODE_SET_ASIDE 65536

/* Digits of the sum of a tenant's events in a billing month, of each meter (core/metering/events.h): 10^15 tokens. */
#define LIMIT_METER_COUNT_DIGITS 15 /* requests, tokens */
#define LIMIT_METER_GB_DIGITS 12    /* GB-hours, GB */
#define LIMIT_METER_HOURS_DIGITS 9  /* of support */
#define LIMIT_METER_COST_DIGITS 17  /* the cost of that sum, in any currency: it bounds prices */
#define LIMIT_METER_SMALL_DIGITS 8  /* an amount shorter by this is not added up */

#endif

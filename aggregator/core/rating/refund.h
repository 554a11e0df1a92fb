/* aggregator/core/rating/refund.h - charges for devices that workloads lost because a GPU or a node failed. Pure, exact.
 *
 * Rules:
 *  1. a day of a usage line is divided among the holders of such devices that day, by the time they held. So is covered
 *     time, which costs nothing by itself
 *  2. parts are added up in full, and rounded once for each lost device and currency, half to even
 *  3. this computes amounts only: an operator decides whether a refund is made */
#ifndef TOLLGATE_REFUND_H
#define TOLLGATE_REFUND_H

#include "aggregator/core/rating/rating.h"

/* Time held on a day by a workload that later lost its device, and by all of its workspace that day, of the same kind. Texts as on the
 * lines. */
struct refund_part {
	size_t refund; /* which: below the count */
	int32_t day;
	const char *tenant, *workspace, *cluster, *gpu_model, *mig_profile, *sharing_mode, *price_version;
	int128 held, all; /* unit-nanoseconds; 0 < held <= all */
};

struct refund_charge {
	char currency[8]; /* "": neither charged nor covered */
	int scale;
	int128 charged;               /* cents */
	int128 gpu_ngh, reserved_ngh; /* reserved: of it, covered by a reservation */
};
struct refund_charges { /* in_place(refund_charges) struct refund_charges c = {0}; */
	struct refund_sum *at;
	size_t count;
};
void refund_charges_fini(struct refund_charges *c);
/* The lines of a tenant; corrections are passed over. ERR_INVALID: a part of nothing, or of more than there is. */
MUST_CHECK bool refund_add(struct refund_charges *c, const struct rated *r, const struct refund_part *parts, size_t n,
                           struct err *err);
/* The index-th currency in which the refund was charged; false: there are no more. */
bool refund_charge_at(const struct refund_charges *c, size_t refund, size_t index, struct refund_charge *ret);

#endif

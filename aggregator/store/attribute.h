/* aggregator/store/attribute.h - holders and the rules of core/attribution, over time. Callers hold DB_LOCK_POLICY. */
#ifndef TOLLGATE_STORE_ATTRIBUTE_H
#define TOLLGATE_STORE_ATTRIBUTE_H

#include "aggregator/core/attribution.h"
#include "aggregator/store/db.h"

/* Enters holder_attribution for holders that have just been made: for all of time, as the rules were and will be. */
MUST_CHECK bool attribute_new(struct db *db, const char *cluster, const struct wire_holder *const *holders,
                              const int64_t *ids, size_t n, struct err *err);

/* Asks the rules in force from effective_ns on for every holder there is, and enters what changes from then on. */
MUST_CHECK bool attribute_again(struct db *db, int64_t effective_ns, struct err *err);

#endif

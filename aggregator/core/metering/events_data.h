/* aggregator/core/metering/events_data.h - between events.c (the envelope) and events_data.c (what was used, and whose). */
#ifndef TOLLGATE_EVENTS_DATA_H
#define TOLLGATE_EVENTS_DATA_H

#include "aggregator/core/metering/events.h"

/* A text member of 1 to `most` bytes without control or direction characters; *ret stays as it was when it is absent or null and not
 * needed. False: e is refused. The prefix is for the field's name in the answer. */
MUST_CHECK bool event_text(struct event *e, const json_t *from, const char *prefix, const char *name, size_t most,
                           bool needed, const char **ret);
/* Rules 4 to 6. data may be NULL. */
MUST_CHECK bool event_data_read(struct event *e, const json_t *data, const struct event_rules *r);

#endif

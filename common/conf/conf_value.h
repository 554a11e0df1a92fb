/* common/conf/conf_value.h - one option's value: from text into the program's struct, and its range as text. Only for conf*.c. */
#ifndef TOLLGATE_CONF_VALUE_H
#define TOLLGATE_CONF_VALUE_H

#include "common/conf/conf.h"
#include "common/base/time.h"

/* Sets the field of `into`, replacing what was there. The message starts with the value, not with the option. */
MUST_CHECK bool conf_value_set(const struct conf_option *o, const char *text, void *into, struct err *err);
/* Back to what an option without default has. */
void conf_value_clear(const struct conf_option *o, void *into);
/* An INT, DURATION or BYTES as people write it. */
const char *conf_value_format(const struct conf_option *o, int64_t value, char out[TIME_TEXT_SIZE]);
bool conf_value_has_range(const struct conf_option *o);

#endif

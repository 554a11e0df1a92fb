/* aggregator/cli/commands/quota_print.h - decisions of the quota engine as text. */
#ifndef TOLLGATE_QUOTA_PRINT_H
#define TOLLGATE_QUOTA_PRINT_H

#include "aggregator/core/quota/engine/quota_text.h"

/* at: when, as text. */
void quota_print_verdict(const struct quota_namer *namer, const char *at, const struct quota_verdict *v);
/* due: of an order, when it must have left. */
void quota_print_notice(const char *at, const char *due, const struct quota_notice *n);

#endif

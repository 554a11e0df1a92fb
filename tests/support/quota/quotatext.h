/* tests/support/quota/quotatext.h - policies, nodes and events of the quota engine as the texts of a quota book. */
#ifndef TOLLGATE_TESTS_QUOTATEXT_H
#define TOLLGATE_TESTS_QUOTATEXT_H

#include "aggregator/core/quota/book/quota_book.h"

/* {"policy":{...}} and {"nodes":[...]}; positions in the book are those of the lists when it is empty before. */
void quotatext_policy(const struct quota_policy *p, struct buf *out);
void quotatext_nodes(const struct quota_world *w, struct buf *out);
/* Any event; names are those of the world. */
void quotatext_event(const struct quota_world *w, const struct quota_event *e, struct buf *out);

#endif

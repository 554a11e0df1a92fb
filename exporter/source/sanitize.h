/* exporter/source/sanitize.h - text of drivers, cgroups and directories made fit for a record: text_is_clean(). */
#ifndef TOLLGATE_SANITIZE_H
#define TOLLGATE_SANITIZE_H

#include "common/base/base.h"

/* A copy of at most max bytes, cut between characters; each character that deceives and each byte that is not UTF-8 becomes '?'. */
char *sanitized_copy(const char *s, size_t max);

#endif

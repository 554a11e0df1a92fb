/* exporter/sanitize.h - text of drivers, cgroups and directories made fit for a record: UTF-8 without control characters. */
#ifndef TOLLGATE_EXPORTER_SANITIZE_H
#define TOLLGATE_EXPORTER_SANITIZE_H

#include "common/base.h"

/* A copy of at most max bytes, cut between characters; each byte that is a control character or not UTF-8 becomes '?'. */
char *sanitized_copy(const char *s, size_t max);

#endif

/* exporter/source/sanitize.h - cleans text of drivers, cgroups and directories, so that text_is_clean() accepts it. */
#ifndef TOLLGATE_SANITIZE_H
#define TOLLGATE_SANITIZE_H

#include "common/base/base.h"

/* A copy of at most max bytes, cut between characters; each deceptive character (text_deceives) and each byte that is not UTF-8 becomes '?'. */
char *sanitized_copy(const char *s, size_t max);

#endif

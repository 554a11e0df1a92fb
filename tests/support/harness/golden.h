/* tests/support/harness/golden.h - outputs that must not change unseen: compared byte by byte with tests/golden/NAME.
 * TOLLGATE_GOLDEN=update writes the files instead; the difference is then reviewed with the commit. */
#ifndef TOLLGATE_TESTS_GOLDEN_H
#define TOLLGATE_TESTS_GOLDEN_H

#include "common/base/err.h"

/* ERR_CONFLICT with the first line that differs, or the reason why the file cannot be read. */
MUST_CHECK bool golden_check(const char *name, const char *text, size_t len, struct err *err);

#endif

/* tests/lint/analysis.h - put before every file that a static analyzer reads, never compiled into anything.
 *
 * A function that fails ends in `return err_set(...)`, which is always false. An analyzer that sees one file at a time
 * cannot know that, and would follow failed calls as if they had filled their ret_ parameters. The files that define
 * these functions are read with DEFINES_ERR or DEFINES_YAML_ERR. */
#ifndef TOLLGATE_TESTS_LINT_ANALYSIS_H
#define TOLLGATE_TESTS_LINT_ANALYSIS_H

#include "common/base/err.h"
#include "common/conf/yaml.h"

static inline bool
analysis_false(bool always_false)
{
	(void)always_false;
	return false;
}

#ifndef DEFINES_ERR
#define err_set(...) analysis_false(err_set(__VA_ARGS__))
#define err_prefix(...) analysis_false(err_prefix(__VA_ARGS__))
#define err_errno(...) analysis_false(err_errno(__VA_ARGS__))
#endif
#ifndef DEFINES_YAML_ERR
#define yaml_err(...) analysis_false(yaml_err(__VA_ARGS__))
#endif

#endif

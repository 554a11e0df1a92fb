/* hooks/agent/command.h - runs one of Slurm's commands: arguments as a list, no shell, a deadline, output line by line. */
#ifndef TOLLGATE_AGENT_COMMAND_H
#define TOLLGATE_AGENT_COMMAND_H

#include "common/base/err.h"

#define COMMAND_LINE_MAX (64u << 10)

/* Takes a line of standard output, without its end. False ends the command, with the error. */
typedef bool command_line(void *arg, const char *line, struct err *err);

/* argv[0] is an absolute path; NULL ends the list. each NULL: the output is thrown away. Errors have the command's own words: ERR_RETRY: it did not end within
 * timeout_ns, and was killed; ERR_FATAL: it cannot be started; ERR_INVALID: it ended with a failure, or `each` did not take a line. */
MUST_CHECK bool command_run(const char *const *argv, int64_t timeout_ns, command_line *each, void *arg,
                            struct err *err);

#endif

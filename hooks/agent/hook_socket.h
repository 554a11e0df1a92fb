/* hooks/agent/hook_socket.h - the unix socket that job_submit.lua asks: one line in, one line out, then the connection is closed. */
#ifndef TOLLGATE_AGENT_HOOK_SOCKET_H
#define TOLLGATE_AGENT_HOOK_SOCKET_H

#include "hooks/agent/hook_desk.h"

struct hook_socket;
/* Only root and the agent's own user are answered. A socket file that nobody listens on is
 * replaced; one that another agent listens on is an error. */
MUST_CHECK bool hook_socket_start(const char *path, struct hook_desk *desk, struct hook_socket **ret, struct err *err);
/* Removes the socket file. NULL is allowed. */
void hook_socket_stop(struct hook_socket *s);

#endif

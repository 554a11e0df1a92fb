/* hooks/agent/agent_web.h - the HTTP interface of the agent: /metrics, /healthz, /readyz. */
#ifndef TOLLGATE_AGENT_WEB_H
#define TOLLGATE_AGENT_WEB_H

#include "hooks/agent/agent.h"

struct agent_web;
MUST_CHECK bool agent_web_start(const struct agent_options *o, struct agent *agent, struct hook_desk *desk,
                                struct agent_web **ret, struct err *err);
void agent_web_stop(struct agent_web *w); /* NULL is allowed */

#endif

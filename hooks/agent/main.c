/* hooks/agent/main.c - the agent: starts its parts, and waits for the signal that ends it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "hooks/agent/agent_web.h"
#include "hooks/agent/hook_socket.h"

/* The parts, in the order in which they start; they end in the opposite one. */
struct parts {
	struct hook_desk *desk;
	struct hook_socket *socket;
	struct agent *agent;
	struct agent_web *web;
};

static bool
start(const struct agent_options *o, struct parts *p, struct err *err)
{
	p->desk = hook_desk_new((enum unattributed)o->unattributed);
	return hook_socket_start(o->socket, p->desk, &p->socket, err) && agent_start(o, p->desk, &p->agent, err) &&
	       agent_web_start(o, p->agent, p->desk, &p->web, err);
}

static void
stop(struct parts *p)
{
	agent_web_stop(p->web);
	agent_stop(p->agent);
	hook_socket_stop(p->socket);
	hook_desk_free(p->desk);
}

static bool
run(const void *options, struct err *err)
{
	const struct agent_options *o = options;
	struct parts parts = {0};
	sigset_t signals;
	int got = 0;
	bool ok;

	log_init(agent_program.name, (enum log_level)o->log_level);
	/* blocked before any thread exists, so that only sigwait() gets them */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	/* squeue then writes times as seconds */
	setenv("SLURM_TIME_FORMAT", "%s", 1);
	ok = start(o, &parts, err);
	if (ok) {
		log_event(LOG_INFO, "started", LS("socket", o->socket), LS("listen", o->listen),
		          LS("aggregator", o->aggregator_url), LS("cluster", o->cluster));
		sigwait(&signals, &got);
		log_event(LOG_INFO, "stopping", LS("signal", strsignal(got)));
	}
	stop(&parts);
	return ok;
}

static bool
check(void *options, struct err *err)
{
	return agent_options_check(options, err);
}

int
main(int argc, char **argv)
{
	struct agent_options options = {0};
	const struct conf_daemon d = {&agent_program, &options, check, run};

	return conf_main(&d, argc, argv);
}

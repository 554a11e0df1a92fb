/* hooks/agent/agent_web.c - the HTTP interface of the agent. */
#include "hooks/agent/agent_web.h"

#include "common/base/time.h"
#include "common/http/httpd.h"
#include "common/promtext/promtext.h"

#define CONNECTION_MAX 64
#define IDLE_TIMEOUT_NS (90 * NS_PER_S)
#define REQUEST_TIMEOUT_NS (10 * NS_PER_S)
#define HEAD_MAX (8u << 10)
#define STALE_TURNS 10 /* and the time that calls may take: then the loop hangs */

struct agent_web {
	struct httpd *httpd;
	struct agent *agent;
	struct hook_desk *desk;
	int64_t stale_ns, started_ns;
};

static void
family(struct prom *p, const char *name, enum prom_type type, const char *help, int64_t value, int decimals)
{
	prom_family(p, name, type, help);
	prom_begin(p);
	if (decimals > 0)
		prom_fixed(p, value, decimals);
	else
		prom_int(p, value);
}

static void
sample(struct prom *p, const char *label, const char *value, const char *second, const char *second_value,
       int64_t number)
{
	prom_begin(p);
	prom_label(p, label, value);
	if (second)
		prom_label(p, second, second_value);
	prom_int(p, number);
}

static void
handle_metrics(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct agent_web *w = app;
	enum prom_format format = prom_negotiate(http_header(rq, "Accept"));
	int64_t hooks[HOOK_VERBS][HOOK_RESULTS];
	struct agent_figures f;
	struct prom p;

	(void)worker;
	agent_figures(w->agent, &f);
	hook_desk_counts(w->desk, hooks);
	prom_init(&p, &rp->body, format);
	prom_family(&p, "tollgate_hook_requests_total", PROM_COUNTER, "Questions of job_submit.lua, by answer.");
	for (int v = 0; v < HOOK_VERBS; v++)
		for (int r = 0; r < HOOK_RESULTS; r++)
			sample(&p, "hook", hook_verb_names[v], "result", hook_result_names[r], hooks[v][r]);
	prom_family(&p, "tollgate_agent_actions_total", PROM_COUNTER, "What the agent did, by kind and result.");
	for (int k = 0; k < ACTION_KINDS; k++) {
		sample(&p, "action", action_names[k], "result", "done", f.done[k]);
		sample(&p, "action", action_names[k], "result", "failed", f.failed[k]);
	}
	family(&p, "tollgate_evictions_total", PROM_COUNTER,
	       "Jobs that were requeued because their GPUs were taken back.", f.done[ACTION_REQUEUE], 0);
	prom_family(&p, "tollgate_agent_jobs", PROM_GAUGE, "Jobs with GPUs in Slurm's queue.");
	sample(&p, "state", "all", NULL, NULL, f.jobs);
	sample(&p, "state", "marked", NULL, NULL, f.marked);
	sample(&p, "state", "held", NULL, NULL, f.waiting);
	sample(&p, "state", "running", NULL, NULL, f.running);
	prom_family(&p, "tollgate_agent_requests", PROM_GAUGE, "Requests of this Slurm in the aggregator's book.");
	sample(&p, "state", "waiting", NULL, NULL, f.requests);
	sample(&p, "state", "leased", NULL, NULL, f.leases);
	family(&p, "tollgate_agent_unleased_jobs", PROM_GAUGE, "Marked jobs that run without a lease.", f.unleased, 0);
	prom_family(&p, "tollgate_agent_up", PROM_GAUGE, "Whether the last attempt to reach it succeeded.");
	sample(&p, "peer", "slurm", NULL, NULL, f.slurm_ok);
	sample(&p, "peer", "aggregator", NULL, NULL, f.aggregator_ok);
	family(&p, "tollgate_agent_turns_total", PROM_COUNTER,
	       "Readings of the queue with all that followed from them.", f.turns, 0);
	family(&p, "tollgate_agent_turn_seconds", PROM_GAUGE, "How long the last one took.", f.turn_ns / NS_PER_US, 6);
	prom_end(&p);
	rp->content_type = prom_content_type(format);
}

/* 503 and false when the loop hangs. */
static bool
is_alive(struct agent_web *w, const struct agent_figures *f, const struct http_request *rq, struct http_reply *rp)
{
	int64_t since_ns = f->last_turn_boot_ns > 0 ? f->last_turn_boot_ns : w->started_ns;
	int64_t age_ns = time_boot_ns() - since_ns;
	char age[TIME_TEXT_SIZE], limit[TIME_TEXT_SIZE];

	if (age_ns <= w->stale_ns)
		return true;
	http_problem(rp, rq, 503, NULL, "the last turn ended %s ago, the limit is %s",
	             duration_format(age_ns / NS_PER_MS * NS_PER_MS, age), duration_format(w->stale_ns, limit));
	return false;
}

static void
answer_ok(struct http_reply *rp)
{
	rp->content_type = "text/plain; charset=utf-8";
	buf_str(&rp->body, "ok\n");
}

static void
handle_healthz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct agent_figures f;

	(void)worker;
	agent_figures(((struct agent_web *)app)->agent, &f);
	if (is_alive(app, &f, rq, rp))
		answer_ok(rp);
}

static void
handle_readyz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct agent_figures f;

	(void)worker;
	agent_figures(((struct agent_web *)app)->agent, &f);
	if (!is_alive(app, &f, rq, rp))
		return;
	if (f.turns == 0)
		http_problem(rp, rq, 503, NULL, "the queue has not been read yet");
	else if (!f.slurm_ok)
		http_problem(rp, rq, 503, NULL, "slurm: %s", f.slurm_error);
	else if (!f.aggregator_ok)
		http_problem(rp, rq, 503, NULL, "aggregator: %s", f.aggregator_error);
	else
		answer_ok(rp);
}

static void
handle_root(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	(void)rq;
	rp->content_type = "text/plain; charset=utf-8";
	buf_printf(&rp->body,
	           "tollgate-agent %s\n\n"
	           "/metrics   what was asked, done and seen\n"
	           "/healthz   whether this agent is alive\n"
	           "/readyz    whether Slurm and the aggregator answer it\n",
	           TOLLGATE_VERSION);
}

static const struct http_route routes[] = {
	{.method = "GET",
         .path = "/metrics",
         .where = HTTP_INLINE,
         .handle = handle_metrics,
         .summary = "Prometheus metrics"},
	{.method = "GET", .path = "/healthz", .where = HTTP_INLINE, .handle = handle_healthz, .summary = "liveness"},
	{.method = "GET",
         .path = "/readyz",
         .where = HTTP_INLINE,
         .handle = handle_readyz,
         .summary = "Slurm and the aggregator answer"},
	{.method = "GET", .path = "/", .where = HTTP_INLINE, .handle = handle_root, .summary = "list of paths"},
};

bool
agent_web_start(const struct agent_options *o, struct agent *agent, struct hook_desk *desk, struct agent_web **ret,
                struct err *err)
{
	struct agent_web *w = mem_alloc(sizeof(*w));
	struct httpd_options http = {.listen = o->listen,
	                             .routes = routes,
	                             .route_count = ARRAY_LEN(routes),
	                             .app = w,
	                             .queue_max = 1,
	                             .idle_timeout_ns = IDLE_TIMEOUT_NS,
	                             .request_timeout_ns = REQUEST_TIMEOUT_NS,
	                             .connection_max = CONNECTION_MAX,
	                             .head_max = HEAD_MAX};

	w->agent = agent;
	w->desk = desk;
	w->started_ns = time_boot_ns();
	w->stale_ns = STALE_TURNS * (o->poll_interval_ns + o->timeout_ns + o->slurm_timeout_ns);
	if (!httpd_start(&http, &w->httpd, err)) {
		mem_free(w);
		return false;
	}
	*ret = w;
	return true;
}

void
agent_web_stop(struct agent_web *w)
{
	if (!w)
		return;
	httpd_stop(w->httpd);
	mem_free(w);
}

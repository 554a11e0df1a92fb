/* tests/support/exporter/fastnode.c - the exporter in fast-forward. */
#include "tests/support/exporter/fastnode.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/time.h"
#include "tests/support/nvmlsim/moment.h"

static _Noreturn void
give_up(const char *what, const char *why)
{
	fprintf(stderr, "fastnode: %s: %s\n", what, why);
	abort();
}

static void
set_ns(const char *name, int64_t ns)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRId64, ns);
	setenv(name, text, 1);
}

static void
begin(struct fastnode *f, const struct fastnode_options *o)
{
	struct err err;

	simnode_show_processes(&f->sim);
	set_ns("TOLLGATE_SIM_T0_NS", FASTNODE_T0_NS);
	set_ns("TOLLGATE_SIM_WALL0_NS", o->wall0_ns);
	f->scenario = NULL;
	if (!scenario_load(f->sim.scenario, &f->scenario, &err))
		give_up(f->sim.scenario, err.text);
	f->options = *o;
	f->stepped_ns = 0;
	f->now_ns = -1;
	f->outbox = NULL;
	f->metrics = NULL;
	f->sampler = NULL;
	f->reader = NULL;
	f->last = (struct sampler_report){0};
}

void
fastnode_init(struct fastnode *f, const char *scenario_yaml, const struct fastnode_options *o)
{
	simnode_init(&f->sim, scenario_yaml);
	begin(f, o);
}

void
fastnode_init_file(struct fastnode *f, const char *scenario_path, const struct fastnode_options *o)
{
	simnode_init_file(&f->sim, scenario_path);
	begin(f, o);
}

static void
drop_exporter(struct fastnode *f)
{
	sampler_free(take(f->sampler));
	reader_free(take(f->reader));
	metrics_free(take(f->metrics));
	outbox_free(take(f->outbox));
}

void
fastnode_fini(struct fastnode *f)
{
	drop_exporter(f);
	scenario_free(take(f->scenario));
	unsetenv("TOLLGATE_SIM_WALL0_NS");
	simnode_fini(&f->sim);
}

int64_t
fastnode_wall(const struct fastnode *f, int64_t t_ns)
{
	return moment_wall_ns(f->scenario, f->options.wall0_ns, t_ns) + f->stepped_ns;
}

static void
tick(struct fastnode *f, int64_t t_ns)
{
	f->now_ns = t_ns;
	f->sim.set_time_ns(t_ns);
	sampler_tick(f->sampler, FASTNODE_T0_NS + t_ns, fastnode_wall(f, t_ns), &f->last);
}

void
fastnode_start(struct fastnode *f, int64_t t_ns)
{
	struct sampler_options o = {.node = f->options.spool.node,
	                            .version = f->options.spool.exporter_version,
	                            .sample_interval_ns = f->options.sample_ns,
	                            .interval_ns = f->options.interval_ns,
	                            .read_patience_ns = SIMNODE_PATIENCE_NS,
	                            .replicas = f->options.replicas,
	                            .process_metrics = true,
	                            .identity = {.proc_root = f->sim.proc, .pods_root = f->sim.pods}};
	struct spool *spool = NULL;
	struct err err;

	f->sim.set_time_ns(t_ns);
	if (!spool_open(&f->options.spool, fastnode_wall(f, t_ns), &spool, &err))
		give_up("the spool does not open", err.text);
	f->outbox = outbox_new(spool, &f->options.spool);
	f->metrics = metrics_new();
	f->reader = simnode_reader(&f->sim);
	f->sampler =
		sampler_new(&o, f->reader, f->outbox, NULL, f->metrics, FASTNODE_T0_NS + t_ns, fastnode_wall(f, t_ns));
	tick(f, t_ns);
}

void
fastnode_play(struct fastnode *f, int64_t t_ns)
{
	for (int64_t t = time_next_multiple(f->now_ns, f->options.sample_ns); t <= t_ns; t += f->options.sample_ns)
		tick(f, t);
}

void
fastnode_step(struct fastnode *f, int64_t by_ns)
{
	f->stepped_ns += by_ns;
}

void
fastnode_stop(struct fastnode *f)
{
	sampler_finish(f->sampler, fastnode_wall(f, f->now_ns), &f->last);
	if (f->last.storing.kind != ERR_NONE)
		give_up("the disk does not take the last batch", f->last.storing.text);
	drop_exporter(f);
}

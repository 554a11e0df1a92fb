/* tests/support/exporter/fastnode.h - the exporter in fast-forward: simulator, sampler, outbox and spool in this process, on a boot clock
 * and a wall clock that the test moves. A day of a small node takes seconds.
 *
 * What is missing of the daemon is what waits: its timer, its push thread and its web server. A kill -9 is a real one: start and play
 * in a child, and let it raise SIGKILL; the next child begins where virtual time stands. */
#ifndef TOLLGATE_TESTS_FASTNODE_H
#define TOLLGATE_TESTS_FASTNODE_H

#include "exporter/sampler.h"
#include "tests/support/nvmlsim/sim_scenario.h"
#include "tests/support/exporter/simnode.h"

/* Boot time of virtual time 0: whole steps of the kernel's 10 ms, so that starts of processes are exact. */
#define FASTNODE_T0_NS INT64_C(5000000000000)

struct fastnode_options {
	struct spool_options spool;
	int64_t sample_ns, interval_ns;
	int replicas;
	int64_t wall0_ns; /* wall time of virtual time 0 */
};

struct fastnode {
	struct simnode sim;
	struct fastnode_options options;
	struct scenario *scenario; /* its clock_steps move the wall clock */
	int64_t stepped_ns;        /* and so does fastnode_step */
	int64_t now_ns;            /* virtual time of the last tick; -1: not started */
	struct outbox *outbox;
	struct metrics *metrics;
	struct reader *reader;
	struct sampler *sampler;
	struct sampler_report last;
};

/* The simulator is loaded and its folders made: once, also for children. The scenario is a text or, of _file, in a file. */
void fastnode_init(struct fastnode *f, const char *scenario_yaml, const struct fastnode_options *o);
void fastnode_init_file(struct fastnode *f, const char *scenario_path, const struct fastnode_options *o);
void fastnode_fini(struct fastnode *f);

/* An exporter starts and makes its first tick at virtual time t. */
void fastnode_start(struct fastnode *f, int64_t t_ns);
/* Ticks at every multiple of the sample interval after the last one, up to t. */
void fastnode_play(struct fastnode *f, int64_t t_ns);
/* The wall clock jumps, without the scenario's knowing. */
void fastnode_step(struct fastnode *f, int64_t by_ns);
/* Closes the open interval, as SIGTERM does, and ends the exporter. The disk must take it. */
void fastnode_stop(struct fastnode *f);

/* Wall time at a virtual time. */
int64_t fastnode_wall(const struct fastnode *f, int64_t t_ns);

#endif

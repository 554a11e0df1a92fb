/* tests/support/day.c - a simulated day of two nodes. */
#include "tests/support/day.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/time.h"
#include "tests/support/nvmlsim/moment.h"

#define AT(h, m, s) (((h)*60 + (m)) * NS_PER_MIN + (s)*NS_PER_S)

const struct day_node day_nodes[DAY_NODES] = {
	/* in the middle of an interval; on its boundary, when its batch was just written; and for a while */
	{.name = "gn1",
         .scenario = "tests/support/day/gn1.yaml",
         .replicas = 1,
         .kills = {{AT(3, 17, 23), AT(3, 17, 43)}, {AT(11, 0, 0), AT(11, 0, 1)}, {AT(19, 44, 59), AT(19, 54, 59)}},
         .kill_count = 3},
	{.name = "gn2", .scenario = "tests/support/day/gn2.yaml", .replicas = 4},
};

static _Noreturn void
give_up(const char *what)
{
	fprintf(stderr, "day: %s\n", what);
	abort();
}

/* One life of the exporter: from its first tick to its last, at which it is killed or told to stop. */
static void
live(struct fastnode *f, int64_t from_ns, int64_t to_ns, bool killed)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		give_up("cannot fork");
	if (pid == 0) {
		f->sim.dir[0] = '\0'; /* the parent's */
		fastnode_start(f, from_ns);
		fastnode_play(f, to_ns);
		if (killed)
			raise(SIGKILL);
		fastnode_stop(f);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		give_up("the exporter's process is not there");
	if (killed ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0)
		give_up("an exporter did not end as it should");
}

/* The streams of one life: one more for each step of the clock. What is killed ends at its last whole interval. */
static size_t
expect_streams(const struct fastnode *f, int64_t from_ns, int64_t to_ns, bool killed, struct day_stream *out)
{
	size_t n = 0;
	int64_t t = from_ns;

	for (size_t i = 0; i < f->scenario->step_count; i++) {
		int64_t at_ns = f->scenario->steps[i].at_ns;

		if (at_ns <= t || at_ns > to_ns)
			continue;
		out[n++] = (struct day_stream){.from_ns = t, .to_ns = at_ns, .offset_ns = fastnode_wall(f, t) - t};
		t = at_ns;
	}
	out[n] = (struct day_stream){.from_ns = t, .to_ns = to_ns, .offset_ns = fastnode_wall(f, t) - t};
	if (killed)
		out[n].to_ns -= fastnode_wall(f, to_ns) % DAY_INTERVAL_NS;
	return out[n].to_ns > t ? n + 1 : n;
}

size_t
day_play(const struct day_node *n, const struct spool_options *spool, int64_t wall0_ns, int64_t end_ns,
         struct day_stream streams[DAY_STREAMS])
{
	struct fastnode_options o = {.spool = *spool,
	                             .sample_ns = DAY_TICK_NS,
	                             .interval_ns = DAY_INTERVAL_NS,
	                             .replicas = n->replicas,
	                             .wall0_ns = wall0_ns};
	in_place(fastnode) struct fastnode f;
	int64_t from_ns = 0;
	size_t count = 0;

	o.spool.node = n->name;
	fastnode_init_file(&f, n->scenario, &o);
	for (size_t i = 0; i < n->kill_count && n->kills[i].at_ns < end_ns; i++) {
		live(&f, from_ns, n->kills[i].at_ns, true);
		count += expect_streams(&f, from_ns, n->kills[i].at_ns, true, &streams[count]);
		from_ns = n->kills[i].back_ns;
	}
	live(&f, from_ns, end_ns, false);
	return count + expect_streams(&f, from_ns, end_ns, false, &streams[count]);
}

/* tests/support/exporter/day.c - a simulated day of two nodes. */
#include "tests/support/exporter/day.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/time.h"
#include "tests/support/nvmlsim/moment.h"

#define AT(h, m, s) (((h)*60 + (m)) * NS_PER_MIN + (s)*NS_PER_S)

const struct day_node day_nodes[DAY_NODES] = {
	/* in the middle of an interval; on its boundary, when its batch was just written; and for a while */
	{.name = "gn1",
         .scenario = "tests/support/exporter/day/gn1.yaml",
         .replicas = 1,
         .kills = {{AT(3, 17, 23), AT(3, 17, 43)}, {AT(11, 0, 0), AT(11, 0, 1)}, {AT(19, 44, 59), AT(19, 54, 59)}},
         .kill_count = 3},
	{.name = "gn2", .scenario = "tests/support/exporter/day/gn2.yaml", .replicas = 4},
};

static _Noreturn void
give_up(const char *what)
{
	fprintf(stderr, "day: %s\n", what);
	abort();
}

/* The value of a sample of the page that a scrape would get; 0: it has none. */
static int64_t
sample_of(struct fastnode *f, const char *series)
{
	struct metrics_page *page = metrics_get(f->metrics);
	owned(mem) char *line = mem_printf("\n%s ", series);
	const void *bytes;
	const char *at;
	size_t len;
	int64_t value = 0;

	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	at = memmem(bytes, len, line, strlen(line));
	if (at)
		value = strtoll(at + strlen(line), NULL, 10);
	metrics_page_release(page);
	return value;
}

/* The exporter's part of a life, in the child; what it finds goes to the parent by a pipe. */
static void
live_in_child(struct fastnode *f, struct day_life life, bool killed, int pipe_fd)
{
	f->sim.dir[0] = '\0'; /* the parent's */
	fastnode_start(f, life.from_ns);
	fastnode_play(f, life.to_ns);
	life.short_not_held = sample_of(f, "tollgate_exporter_short_processes_total{held=\"false\"}");
	if (write(pipe_fd, &life, sizeof(life)) != (ssize_t)sizeof(life))
		give_up("the pipe is closed");
	if (killed)
		raise(SIGKILL);
	fastnode_stop(f);
	_exit(0);
}

static void
live(struct fastnode *f, struct day_life *life, bool killed)
{
	int pipe_fds[2], status;
	bool told;
	pid_t pid;

	if (pipe(pipe_fds) != 0 || (pid = fork()) < 0)
		give_up("cannot fork");
	if (pid == 0)
		live_in_child(f, *life, killed, pipe_fds[1]);
	close(pipe_fds[1]);
	told = read(pipe_fds[0], life, sizeof(*life)) == (ssize_t)sizeof(*life);
	close(pipe_fds[0]);
	if (waitpid(pid, &status, 0) != pid || !told)
		give_up("an exporter ended before its time");
	if (killed ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0)
		give_up("an exporter did not end as it should");
}

/* The streams of one life: one more for each step of the clock. What is killed ends at its last whole interval. */
static size_t
expect_streams(const struct fastnode *f, const struct day_life *life, bool killed, struct day_stream *out)
{
	size_t n = 0;
	int64_t t = life->from_ns, to_ns = life->to_ns;

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

void
day_play(const struct day_node *n, const struct spool_options *spool, int64_t wall0_ns, int64_t end_ns,
         struct day_played *ret)
{
	struct fastnode_options o = {.spool = *spool,
	                             .sample_ns = DAY_TICK_NS,
	                             .interval_ns = DAY_INTERVAL_NS,
	                             .replicas = n->replicas,
	                             .wall0_ns = wall0_ns};
	in_place(fastnode) struct fastnode f;
	int64_t from_ns = 0;

	*ret = (struct day_played){0};
	o.spool.node = n->name;
	fastnode_init_file(&f, n->scenario, &o);
	for (size_t i = 0; i <= n->kill_count; i++) {
		bool killed = i < n->kill_count && n->kills[i].at_ns < end_ns;
		struct day_life *life = &ret->lives[ret->life_count++];

		*life = (struct day_life){.from_ns = from_ns, .to_ns = killed ? n->kills[i].at_ns : end_ns};
		live(&f, life, killed);
		ret->stream_count += expect_streams(&f, life, killed, &ret->streams[ret->stream_count]);
		if (!killed)
			return;
		from_ns = n->kills[i].back_ns;
	}
}

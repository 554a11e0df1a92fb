/* tests/bench/bench_render.c - a tick's page of 10,000 series, as the exporter renders and publishes it, beside memcpy of the same
 * bytes: the least that any way of writing them can take. */
#include <stdio.h>
#include <string.h>

#include "exporter/metrics/metrics_render.h"
#include "tests/support/harness/bench.h"
#include "tests/support/exporter/pagegen.h"

#define TICKS 4

struct world {
	struct pagegen *nodes[TICKS]; /* the same node, each a second later than the one before */
	size_t next;
	uint32_t pid;
	struct metrics *metrics;
	struct buf copy;
};

/* Making up the numbers of a tick is not rendering, so a few are made before, and serve in turns. */
static void
publish(void *arg)
{
	struct world *w = arg;

	metrics_publish(w->metrics, &w->nodes[w->next]->in);
	w->next = (w->next + 1) % TICKS;
}

/* A tick on which a process came or went. */
static void
publish_in_full(void *arg)
{
	struct world *w = arg;

	w->nodes[w->next]->processes[0].pid = ++w->pid;
	publish(w);
}

static void
copy(void *arg)
{
	struct world *w = arg;
	struct metrics_page *page = metrics_get(w->metrics);
	const void *bytes;
	size_t len;

	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	buf_clear(&w->copy);
	buf_add(&w->copy, bytes, len);
	bench_keep(w->copy.data);
	metrics_page_release(page);
}

/* What share of the numbers is another one a second later. */
static double
changed(struct world *w)
{
	struct buf pages[2];
	size_t lines = 0, other = 0;
	char *a, *b, *a_line, *b_line;

	for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
		struct metrics_memory memory;

		metrics_memory_init(&memory);
		buf_init(&pages[i], METRICS_MAX);
		metrics_render(&w->nodes[i]->in, &memory, &pages[i]);
		metrics_memory_fini(&memory);
	}
	a = pages[0].data;
	b = pages[1].data;
	while ((a_line = strsep(&a, "\n")) && (b_line = strsep(&b, "\n"))) {
		lines += a_line[0] != '#';
		other += strcmp(a_line, b_line) != 0;
	}
	buf_fini(&pages[0]);
	buf_fini(&pages[1]);
	return (double)other / (double)lines;
}

int
main(void)
{
	struct world w = {.metrics = metrics_new()};
	struct bench b = {.name = "render 10,000 series",
	                  .item = "series",
	                  .against = "memcpy of the same bytes",
	                  .goal = 3,
	                  .ours = publish,
	                  .theirs = copy,
	                  .arg = &w};

	buf_init(&w.copy, METRICS_MAX);
	w.nodes[0] = pagegen_new(8, 200);
	for (int i = 0; i < 3600; i++)
		pagegen_tick(w.nodes[0]);
	for (int i = 1; i < TICKS; i++) {
		w.nodes[i] = pagegen_copy(w.nodes[i - 1]);
		pagegen_tick(w.nodes[i]);
	}
	fprintf(stderr, "%.0f %% of the series change from one tick to the next\n", changed(&w) * 100);
	publish(&w);
	copy(&w);
	b.items = pagegen_series(w.copy.data, w.copy.len);
	bench_run(&b);
	b.name = "render 10,000 series in full";
	b.goal = 0;
	b.ours = publish_in_full;
	bench_run(&b);
	buf_fini(&w.copy);
	metrics_free(w.metrics);
	for (int i = TICKS - 1; i >= 0; i--)
		pagegen_free(w.nodes[i]);
	return 0;
}

/* tests/bench/bench_render.c - a tick's page of 10,000 series, as the exporter renders and publishes it, beside memcpy of the same
 * bytes: the least that any way of writing them can take. */
#include <string.h>

#include "tests/support/bench.h"
#include "tests/support/pagegen.h"

struct world {
	struct pagegen *node;
	struct metrics *metrics;
	struct buf copy;
};

static void
publish(void *arg)
{
	struct world *w = arg;

	/* what is new is the numbers; making them up is not rendering, so the last tick's serve again */
	metrics_publish(w->metrics, &w->node->in);
}

/* A tick on which a process came or went. */
static void
publish_in_full(void *arg)
{
	struct world *w = arg;

	w->node->processes[0].pid ^= 1;
	metrics_publish(w->metrics, &w->node->in);
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

int
main(void)
{
	struct world w = {.node = pagegen_new(8, 245), .metrics = metrics_new()};
	struct bench b = {.name = "render 10,000 series",
	                  .item = "series",
	                  .against = "memcpy of the same bytes",
	                  .goal = 3,
	                  .ours = publish,
	                  .theirs = copy,
	                  .arg = &w};

	buf_init(&w.copy, METRICS_MAX);
	for (int i = 0; i < 3600; i++)
		pagegen_tick(w.node);
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
	pagegen_free(w.node);
	return 0;
}

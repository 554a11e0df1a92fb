/* tests/bench/serve_page.c - the exporter's web side with a page of a given size, for bench_http.py: serve_page GPUS
 * PROCESSES PORT.
 *
 * Prints the port and the number of series, then obeys its input: each line is how many ticks to publish, and is answered with
 * the processor time of rendering and publishing them, in ns. Nothing else of the exporter runs, so that all other time of its
 * threads but the first is that of serving. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/time.h"
#include "exporter/web.h"
#include "tests/support/exporter/pagegen.h"

static size_t
series_now(struct metrics *m)
{
	struct metrics_page *page = metrics_get(m);
	const void *bytes;
	size_t len, n;

	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	n = pagegen_series(bytes, len);
	metrics_page_release(page);
	return n;
}

static int64_t
cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int64_t
publish(struct metrics *m, struct pagegen *node, long ticks)
{
	int64_t spent = 0;

	for (; ticks > 0; ticks--) {
		int64_t began;

		pagegen_tick(node);
		began = cpu_ns();
		metrics_publish(m, &node->in);
		spent += cpu_ns() - began;
	}
	return spent;
}

int
main(int argc, char **argv)
{
	struct exporter_options options = {.node = (char[]){"bench"}};
	struct metrics *metrics = metrics_new();
	struct pagegen *node;
	struct web *web = NULL;
	struct err err = {0};
	char line[64], listen[64];

	if (argc != 4) {
		fprintf(stderr, "usage: serve_page GPUS PROCESSES PORT\n");
		return 2;
	}
	snprintf(listen, sizeof(listen), "127.0.0.1:%s", argv[3]);
	options.listen = listen;
	node = pagegen_new(strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10));
	for (int i = 0; i < 3600; i++)
		pagegen_tick(node);
	metrics_publish(metrics, &node->in);
	if (!web_start(&options, metrics, NS_PER_DAY, &web, &err)) {
		fprintf(stderr, "serve_page: %s\n", err.text);
		return 1;
	}
	printf("%s %zu\n", argv[3], series_now(metrics));
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		printf("%" PRId64 "\n", publish(metrics, node, strtol(line, NULL, 10)));
		fflush(stdout);
	}
	web_stop(web);
	metrics_free(metrics);
	pagegen_free(node);
	return 0;
}

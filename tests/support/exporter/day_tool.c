/* tests/support/exporter/day_tool.c - the simulated day for tests with a real aggregator:
 *   day_tool play NODE DIR WALL0_S HOURS   plays a node of day.h into a spool, and prints what its batches say, as JSON
 *   day_tool push NODE DIR URL TOKEN_FILE  sends what is in the spool, by the exporter's own push */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/money.h"
#include "common/base/time.h"
#include "exporter/delivery/push.h"
#include "tests/support/exporter/books.h"
#include "tests/support/exporter/day.h"
#include "tests/support/exporter/spooldir.h"

#define PATIENCE_NS (300 * NS_PER_S)

static int
fail(const char *why)
{
	fprintf(stderr, "day_tool: %s\n", why);
	return 1;
}

static const struct day_node *
find_node(const char *name)
{
	for (size_t i = 0; i < DAY_NODES; i++)
		if (strcmp(day_nodes[i].name, name) == 0)
			return &day_nodes[i];
	return NULL;
}

static struct spool_options
options_of(const char *node, const char *dir)
{
	struct spooldir nowhere = {"unused"};
	struct spool_options o = spooldir_options(&nowhere);

	o.dir = dir;
	o.node = node;
	o.segment_bytes = 1 << 20;
	return o;
}

/* Numbers of 128 bits are texts in JSON. */
static void
print_number(const char *key, int128 value)
{
	char text[DECIMAL_TEXT_SIZE];

	printf("\"%s\": \"%s\", ", key, decimal_format(value, 0, 0, text));
}

static void
print_books(const struct books *b)
{
	struct book_time t = books_time(b);

	printf("{\"covered_ns\": %" PRId64 ", \"gap_ns\": %" PRId64 ", \"overlap_ns\": %" PRId64
	       ", \"batches\": %zu, \"streams\": %zu,\n\"gpus\": {",
	       t.covered_ns, t.gap_ns, t.overlap_ns, b->batch_count, b->stream_count);
	for (size_t i = 0; i < b->gpu_count; i++) {
		const struct book_sums *s = &b->gpus[i].sums;

		printf("%s\"%s\": {", i ? ",\n" : "\n", b->gpus[i].uuid);
		print_number("used", s->used);
		print_number("idle", s->idle);
		print_number("unmeasured", s->unmeasured);
		print_number("unallocated", s->unallocated);
		print_number("stranded", s->stranded);
		print_number("down", s->down);
		print_number("unknown", s->unknown);
		print_number("over", s->over);
		printf("\"energy_mj\": \"%" PRId64 "\"}", s->energy_mj);
	}
	printf("},\n\"workloads\": [");
	for (size_t i = 0; i < b->cell_count; i++) {
		const struct book_cell *c = &b->cells[i];

		printf("%s{\"gpu\": \"%s\", ", i ? ",\n" : "\n", b->gpus[c->gpu].uuid);
		print_number("allocated", c->held);
		print_number("used", c->used);
		printf("\"workload\": \"%s\"}", c->holder);
	}
	printf("]}\n");
}

/* Of a copy of the spool: reading acknowledges. */
static int
play(const struct day_node *n, const char *dir, int64_t wall0_ns, int64_t end_ns)
{
	struct spool_options o = options_of(n->name, dir);
	struct spooldir from;
	in_place(spooldir) struct spooldir copy;
	in_place(books) struct books b;
	struct day_played played;
	owned(spool) struct spool *s = NULL;
	struct err err;

	snprintf(from.path, sizeof(from.path), "%s", dir);
	day_play(n, &o, wall0_ns, end_ns, &played);
	spooldir_copy(&from, &copy);
	o.dir = copy.path;
	books_init(&b);
	if (!spool_open(&o, wall0_ns + end_ns, &s, &err) || !books_add_spool(&b, s, wall0_ns + end_ns, &err))
		return fail(err.text);
	print_books(&b);
	return 0;
}

static int
push(const char *node, const char *dir, const char *url, const char *token_file)
{
	struct spool_options o = options_of(node, dir);
	struct push_options p = {.http = {.base_url = url,
	                                  .token_file = token_file,
	                                  .user_agent = "day_tool",
	                                  .connect_timeout_ns = PATIENCE_NS,
	                                  .timeout_ns = PATIENCE_NS},
	                         .chunk_bytes = 1 << 20,
	                         .least_pause_ns = NS_PER_MS,
	                         .most_pause_ns = NS_PER_S,
	                         .refused_pause_ns = NS_PER_HOUR};
	owned(outbox) struct outbox *outbox = NULL;
	struct spool *s = NULL;
	struct push *pushing = NULL;
	struct outbox_stats stats;
	struct err err;

	log_init("day_tool", LOG_WARN);
	if (!spool_open(&o, time_wall_ns(), &s, &err))
		return fail(err.text);
	outbox = outbox_new(s, &o);
	if (!push_start(&p, outbox, &pushing, &err))
		return fail(err.text);
	push_stop(pushing, PATIENCE_NS);
	outbox_stats(outbox, &stats);
	printf("{\"unsent\": %" PRId64 ", \"refused\": %" PRId64 "}\n", stats.spool.unacked_batches,
	       stats.spool.refused_batches);
	return 0;
}

int
main(int argc, char **argv)
{
	const struct day_node *n = argc == 6 ? find_node(argv[2]) : NULL;

	if (n && strcmp(argv[1], "play") == 0)
		return play(n, argv[3], strtoll(argv[4], NULL, 10) * NS_PER_S,
		            strtoll(argv[5], NULL, 10) * NS_PER_HOUR);
	if (argc == 6 && strcmp(argv[1], "push") == 0)
		return push(argv[2], argv[3], argv[4], argv[5]);
	return fail("usage: day_tool play NODE DIR WALL0_S HOURS | day_tool push NODE DIR URL TOKEN_FILE");
}

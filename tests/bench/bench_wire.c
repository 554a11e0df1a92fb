/* tests/bench/bench_wire.c - encoding and decoding a busy node's batch, beside zlib's work on the same bytes.
 *
 * Every batch is compressed once on the node and expanded once by the aggregator. Encoding should stay in the shade of the
 * compression. An ingest at three quarters of bare COPY leaves about 0.6 us per record beside it, and inflating takes a
 * tenth of that: four times as much for decoding leaves half of it to the rest. */
#include "common/base/gz.h"
#include "common/wire/wire.h"
#include "tests/support/harness/bench.h"
#include "tests/support/wire/wiregen.h"

#include <stdio.h>
#include <stdlib.h>

#define LEVEL 6

struct world {
	struct wire_batch *batch;
	struct buf body;   /* encoded */
	struct buf packed; /* and compressed */
	struct buf scratch;
};

static void
must(bool ok, const struct err *err)
{
	if (!ok) {
		fprintf(stderr, "%s\n", err->text);
		exit(1);
	}
}

static void
encode(void *arg)
{
	struct world *w = arg;
	struct err err;

	buf_clear(&w->scratch);
	must(wire_encode(w->batch, &w->scratch, &err), &err);
	bench_keep(w->scratch.data);
}

static void
compress(void *arg)
{
	struct world *w = arg;
	struct err err;

	buf_clear(&w->scratch);
	must(gz_compress(w->body.data, w->body.len, LEVEL, &w->scratch, &err), &err);
	bench_keep(w->scratch.data);
}

static void
decode(void *arg)
{
	struct world *w = arg;
	owned(wire_batch) struct wire_batch *batch = NULL;
	struct err err;

	must(wire_decode(w->body.data, w->body.len, &batch, &err) && wire_check(batch, &err), &err);
	bench_keep(batch);
}

static void
expand(void *arg)
{
	struct world *w = arg;
	struct err err;

	buf_clear(&w->scratch);
	must(gz_expand(w->packed.data, w->packed.len, &w->scratch, &err), &err);
	bench_keep(w->scratch.data);
}

int
main(void)
{
	struct world w = {.batch = wiregen_node(1, 8, 21, 6)};
	struct err err;
	size_t records = w.batch->record_count;

	buf_init(&w.body, WIRE_MAX_BODY);
	buf_init(&w.packed, WIRE_MAX_BODY);
	buf_init(&w.scratch, WIRE_MAX_BODY);
	must(wire_encode(w.batch, &w.body, &err), &err);
	must(gz_compress(w.body.data, w.body.len, LEVEL, &w.packed, &err), &err);

	bench_run(&(struct bench){.name = "wire encode",
	                          .item = "record",
	                          .items = records,
	                          .against = "zlib-6 deflating the same bytes",
	                          .goal = 1,
	                          .ours = encode,
	                          .theirs = compress,
	                          .arg = &w});
	bench_run(&(struct bench){.name = "wire decode and check",
	                          .item = "record",
	                          .items = records,
	                          .against = "zlib inflating the same bytes",
	                          .goal = 4,
	                          .ours = decode,
	                          .theirs = expand,
	                          .arg = &w});
	wire_batch_free(w.batch);
	buf_fini(&w.body);
	buf_fini(&w.packed);
	buf_fini(&w.scratch);
	return 0;
}

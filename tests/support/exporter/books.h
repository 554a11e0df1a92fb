/* tests/support/exporter/books.h - what batches say, added up: by GPU and state, and by GPU and holder. A ledger for tests, without a database.
 *
 * Adding a batch checks it by itself: its place in its stream, and that for every GPU in it units x held_ns is 5040 x the time it covers. */
#ifndef TOLLGATE_TESTS_BOOKS_H
#define TOLLGATE_TESTS_BOOKS_H

#include "common/wire/wire.h"
#include "exporter/delivery/spool.h"

#define BOOKS_LABEL 192

/* All sums are in units x ns. */
struct book_sums {
	int128 used, idle, unmeasured, unallocated, stranded, down, unknown;
	int128 over;       /* outside the sum of the states */
	int64_t energy_mj; /* not units */
};

struct book_gpu {
	char uuid[BOOKS_LABEL];
	struct book_sums sums;
	int128 covered_ns; /* of the batches it is in */
};

struct book_cell {
	size_t gpu;
	char holder[BOOKS_LABEL]; /* "pod/NAMESPACE/NAME", "slurm/JOB/UID" or "user/UID" */
	int128 held, used, unmeasured, over;
	int64_t first_ns, last_ns; /* wall time of its first record's start and its last one's end */
};

struct book_batch {
	uint64_t epoch, seq, last_seq;
	int64_t from_ns, to_ns;
	bool loss;
	size_t record_count;
};

struct books {
	struct book_gpu *gpus;
	size_t gpu_count;
	struct book_cell *cells;
	size_t cell_count, cell_cap;
	struct book_batch *batches; /* in the order of their coming */
	size_t batch_count, batch_cap;
	size_t stream_count;
	struct books_dict *dict; /* of the stream that was added to last */
};

void books_init(struct books *b);
void books_fini(struct books *b);
/* The payload of a frame. ERR_INVALID: it does not follow the one before, or does not add up. Streams come one after the other; what came
 * before is passed over, as an aggregator does. */
MUST_CHECK bool books_add(struct books *b, const void *payload, size_t len, struct err *err);
/* All that is in a spool and not acknowledged, which is acknowledged then. */
MUST_CHECK bool books_add_spool(struct books *b, struct spool *s, int64_t wall_ns, struct err *err);

const struct book_gpu *books_gpu(const struct books *b, const char *uuid);                       /* NULL: none */
const struct book_cell *books_cell(const struct books *b, const char *uuid, const char *holder); /* NULL: none */
int128 book_states(const struct book_sums *s);                                                   /* all seven */

/* Time covered by batches of records, by loss batches, and between them, in wall time in order of epochs: a gap is a seam forward,
 * an overlap one back. covered + lost + gaps - overlaps is the last end minus the first beginning. */
struct book_time {
	int64_t covered_ns, lost_ns, gap_ns, overlap_ns;
	int64_t first_ns, last_ns;
};
struct book_time books_time(const struct books *b);

#endif

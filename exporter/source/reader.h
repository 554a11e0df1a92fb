/* exporter/source/reader.h - readings of the GPUs with a deadline, for a driver that may not answer.
 *
 * Rules, by number in the code:
 *  1. every call into a source, opening and closing it included, is made by a worker thread; the caller waits for it up to a
 *     deadline
 *  2. one worker lists the GPUs and reads one after the other. When a GPU takes half of the time that is left, the worker stays with
 *     that call and a new worker continues with the next GPU
 *  3. a GPU that was not read by the deadline is silent: its identity is known, nothing else
 *  4. a GPU with a call in progress is not called again. When the call returns, its result is discarded, because it belongs to an
 *     earlier time, its worker ends, and the next reading includes the GPU again
 *  5. a call for all GPUs (open, list, close) that does not return makes every GPU silent; no reading waits for it again before it
 *     has returned
 *  6. a source is closed by the last worker that has a call in it. At the end of the program a source with a call in progress is
 *     not closed */
#ifndef TOLLGATE_READER_H
#define TOLLGATE_READER_H

#include "exporter/source/gpu_source.h"

/* A library that failed is opened again after this. */
#define READER_PAUSE_NS INT64_C(10000000000)

typedef bool reader_open(void *arg, struct gpu_source **ret, struct err *err);

struct reader_options {
	reader_open *open; /* in a worker's thread */
	void *arg;
	/* Called in the first worker's thread when the first opening has returned, with success or not. NULL: none. */
	void (*opened)(void *arg);
};

struct reader;

/* Starts a worker, which opens the source. */
MUST_CHECK bool reader_new(const struct reader_options *o, struct reader **ret, struct err *err);
/* Closes the source. False: a call has not returned; its worker ends when it does. */
bool reader_close(struct reader *r);
void reader_free(struct reader *r); /* reader_close without its result */
DEFINE_OWNED(reader, struct reader)

/* Static facts of the source, kept while it is closed. */
struct reader_facts {
	bool opened; /* at least once; before that the rest is empty */
	bool simulated;
	char name[32], driver[GPU_TEXT], library[GPU_TEXT];
};
void reader_facts(struct reader *r, struct reader_facts *ret);

/* Waits for the first opening. False: it failed. *ret_answered is false when it has not returned. */
MUST_CHECK bool reader_wait_open(struct reader *r, int64_t patience_ns, bool *ret_answered, struct err *err);

/* Reads all GPUs, within about patience_ns. The snapshot is valid until the next call. False: the library cannot be used, and every
 * GPU ever listed is silent in the snapshot. */
MUST_CHECK bool reader_read(struct reader *r, int64_t boot_ns, int64_t patience_ns, const struct gpu_snapshot **ret,
                            struct err *err);

/* Of the last reading. */
struct reader_status {
	size_t silent;     /* GPUs */
	size_t hanging;    /* calls in progress past their deadline */
	int64_t silent_ns; /* longest time for which a GPU, or the library, has not answered; 0: all were read */
};
void reader_status(struct reader *r, int64_t boot_ns, struct reader_status *ret);

#endif

/* exporter/record/record_writer.c - files of a recording on their way to the disk. */
#include "exporter/record/record_writer.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "common/base/time.h"

struct waiting {
	char *path;
	struct buf text;
};

struct record_writer {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct waiting queue[RECORD_WAITING_MAX];
	size_t count;
	bool writing; /* without the lock */
	bool ends;    /* the thread goes when nothing waits */
	bool left;    /* nobody waits for the thread any more: it frees the rest */
	struct err trouble;
};

static void
waiting_fini(struct waiting *w)
{
	mem_free(w->path);
	buf_fini(&w->text);
}

static struct waiting
take_first(struct record_writer *w)
{
	struct waiting first = w->queue[0];

	memmove(w->queue, w->queue + 1, --w->count * sizeof(*w->queue));
	return first;
}

static void
writer_free(struct record_writer *w)
{
	for (size_t i = 0; i < w->count; i++)
		waiting_fini(&w->queue[i]);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

static void *
write_all(void *arg)
{
	struct record_writer *w = arg;
	bool left;

	pthread_mutex_lock(&w->lock);
	while (!w->ends || (w->count > 0 && !w->left)) {
		struct waiting file;
		struct err err = {0};

		if (w->count == 0) {
			pthread_cond_wait(&w->changed, &w->lock);
			continue;
		}
		file = take_first(w);
		w->writing = true;
		pthread_mutex_unlock(&w->lock);
		if (file_write_atomic(file.path, buf_text(&file.text), file.text.len, 0600, &err))
			err.kind = ERR_NONE;
		waiting_fini(&file);
		pthread_mutex_lock(&w->lock);
		w->writing = false;
		w->trouble = err;
		pthread_cond_broadcast(&w->changed);
	}
	left = w->left;
	pthread_mutex_unlock(&w->lock);
	if (left)
		writer_free(w);
	return NULL;
}

bool
record_writer_new(struct record_writer **ret, struct err *err)
{
	struct record_writer *w = mem_alloc(sizeof(*w));
	pthread_condattr_t attributes;
	pthread_t thread;
	int errnum;

	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&w->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	errnum = pthread_create(&thread, NULL, write_all, w);
	if (errnum != 0) {
		writer_free(w);
		return err_errno(err, ERR_FATAL, errnum, "record: no thread can be started");
	}
	/* its end is told by `left`, so that one whose disk hangs can be left behind */
	pthread_detach(thread);
	*ret = w;
	return true;
}

void
record_writer_put(struct record_writer *w, const char *path, struct buf *text)
{
	struct waiting file = {.path = mem_strdup(path), .text = *text};

	buf_init(text, text->max);
	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->count; i++)
		if (strcmp(w->queue[i].path, path) == 0) {
			struct waiting older = w->queue[i];

			memmove(w->queue + i, w->queue + i + 1, (--w->count - i) * sizeof(*w->queue));
			waiting_fini(&older);
		}
	if (w->count == RECORD_WAITING_MAX) {
		struct waiting lost = take_first(w);

		err_set(&w->trouble, ERR_RETRY, "record: %s was given up, the disk does not keep up", lost.path);
		waiting_fini(&lost);
	}
	w->queue[w->count++] = file;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

bool
record_writer_check(struct record_writer *w, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&w->lock);
	ok = w->trouble.kind == ERR_NONE;
	if (!ok)
		*err = w->trouble;
	pthread_mutex_unlock(&w->lock);
	return ok;
}

bool
record_writer_close(struct record_writer *w, int64_t patience_ns, struct err *err)
{
	struct timespec until;
	bool ok, late = false;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(patience_ns / NS_PER_S) + 1;
	pthread_mutex_lock(&w->lock);
	while ((w->count > 0 || w->writing) && !late)
		late = pthread_cond_timedwait(&w->changed, &w->lock, &until) != 0;
	ok = w->trouble.kind == ERR_NONE;
	if (!ok)
		*err = w->trouble;
	else if (late)
		ok = err_set(err, ERR_RETRY, "record: the disk does not answer, the end is not written");
	w->ends = w->left = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	return ok;
}

/* exporter/record/record.c - the recorder: files one after the other, and the thread that writes them. The rules are in record.h. */
#include "exporter/record/record.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/thread.h"
#include "common/base/time.h"
#include "exporter/record/record_file.h"

#define WRITE_EVERY_NS NS_PER_MIN
#define RUNS_MAX 8000u
#define EVENTS_MAX 900u

/* ---- the writing thread ---- */

struct waiting {
	char *path;
	struct buf text;
};

struct record_writer {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct waiting queue[RECORD_WAITING_MAX];
	size_t count;
	bool writing;   /* without the lock */
	bool ends;      /* the thread ends when nothing waits */
	bool abandoned; /* record_writer_close has returned: the thread frees the rest */
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
	bool abandoned;

	pthread_mutex_lock(&w->lock);
	while (!w->ends || (w->count > 0 && !w->abandoned)) {
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
	abandoned = w->abandoned;
	pthread_mutex_unlock(&w->lock);
	if (abandoned)
		writer_free(w);
	return NULL;
}

bool
record_writer_new(struct record_writer **ret, struct err *err)
{
	struct record_writer *w = mem_alloc(sizeof(*w));
	pthread_t thread;
	int errnum;

	pthread_mutex_init(&w->lock, NULL);
	condition_init(&w->changed);
	errnum = pthread_create(&thread, NULL, write_all, w);
	if (errnum != 0) {
		writer_free(w);
		return err_errno(err, ERR_FATAL, errnum, "record: cannot start a thread");
	}
	/* detached: a thread whose disk hangs is abandoned */
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

		err_set(&w->trouble, ERR_RETRY, "record: %s was dropped, the disk is too slow", lost.path);
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
	int64_t deadline_ns = time_monotonic_ns() + (patience_ns / NS_PER_S + 1) * NS_PER_S;
	bool ok, late = false;

	pthread_mutex_lock(&w->lock);
	while ((w->count > 0 || w->writing) && !late)
		late = !condition_wait_until(&w->changed, &w->lock, deadline_ns);
	ok = w->trouble.kind == ERR_NONE;
	if (!ok)
		*err = w->trouble;
	else if (late)
		ok = err_set(err, ERR_RETRY, "record: the disk does not answer, the end is not written");
	w->ends = w->abandoned = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	return ok;
}

/* ---- the recorder ---- */

struct recorder {
	char *dir, *node;
	size_t file_bytes;
	struct proc proc;
	struct record_file file;
	struct record_writer *writer;
	int number;         /* of the file; 0: none yet */
	bool full;          /* the next reading begins another file */
	int64_t written_ns; /* of the file's time */
	int64_t last_boot_ns;
};

/* Faults and hanging calls that last are written without an end: they last until the next reading at least. */
static void
write_file(struct recorder *r)
{
	owned(mem) char *path = mem_printf("%s/recording-%04d.yaml", r->dir, r->number);
	struct record_file *f = &r->file;
	size_t kept = f->event_count;
	struct buf text;

	for (size_t i = 0; i < f->gpu_count; i++) {
		struct record_event e = {.gpu = i, .until_ns = RECORD_ALIVE};

		if (f->gpus[i].down_ns >= 0) {
			e.kind = RECORD_FAULT;
			e.at_ns = f->gpus[i].down_ns;
			e.fault = f->gpus[i].fault;
			record_add_event(f, e);
		}
		if (f->gpus[i].silent_ns >= 0) {
			e.kind = RECORD_HANG;
			e.at_ns = f->gpus[i].silent_ns;
			record_add_event(f, e);
		}
	}
	buf_init(&text, RECORD_TEXT_MAX);
	record_file_text(f, &text);
	record_writer_put(r->writer, path, &text);
	f->event_count = kept;
	r->written_ns = f->now_ns;
}

static void
begin_file(struct recorder *r, const struct gpu_snapshot *s, const char *driver, const char *library, int64_t wall_ns)
{
	record_file_fini(&r->file);
	r->file = (struct record_file){.node = r->node, .boot0_ns = s->boot_ns, .wall0_ns = wall_ns, .before_ns = -1};
	snprintf(r->file.driver, sizeof(r->file.driver), "%s", driver);
	snprintf(r->file.library, sizeof(r->file.library), "%s", library);
	r->number++;
	r->full = false;
	r->written_ns = 0;
}

static bool
is_full(const struct recorder *r)
{
	const struct record_file *f = &r->file;

	return record_file_size(f) > r->file_bytes || f->run_count > RUNS_MAX || f->event_count > EVENTS_MAX;
}

static void
recorder_free(struct recorder *r)
{
	record_file_fini(&r->file);
	proc_fini(&r->proc);
	mem_free(r->dir);
	mem_free(r->node);
	mem_free(r);
}

bool
recorder_new(const struct recorder_options *o, struct recorder **ret, struct err *err)
{
	struct recorder *r;

	if (mkdir(o->dir, 0700) != 0 && errno != EEXIST)
		return err_errno(err, ERR_FATAL, errno, "record: cannot make %s", o->dir);
	r = mem_alloc(sizeof(*r));
	r->dir = mem_strdup(o->dir);
	r->node = mem_strdup(o->node);
	r->file_bytes = o->file_bytes ? o->file_bytes : RECORD_FILE_BYTES;
	r->last_boot_ns = -1;
	proc_init(&r->proc, o->proc_root);
	if (!record_writer_new(&r->writer, err)) {
		recorder_free(r);
		return false;
	}
	*ret = r;
	return true;
}

bool
recorder_take(struct recorder *r, const struct gpu_snapshot *s, const char *driver, const char *library,
              int64_t wall_ns, struct err *err)
{
	struct record_file *f = &r->file;

	if (s->boot_ns <= r->last_boot_ns)
		return true;
	if (r->number > 0 && (is_full(r) || s->count < f->gpu_count)) {
		write_file(r);
		r->full = true;
	}
	if (r->number == 0 || r->full)
		begin_file(r, s, driver, library, wall_ns);
	else
		f->before_ns = f->now_ns;
	r->last_boot_ns = s->boot_ns;
	f->now_ns = s->boot_ns - f->boot0_ns;
	for (size_t g = 0; g < s->count; g++)
		record_take_gpu(f, g, &s->gpus[g]);
	record_take_processes(f, &r->proc, s, wall_ns);
	if (f->now_ns - r->written_ns >= WRITE_EVERY_NS)
		write_file(r);
	return record_writer_check(r->writer, err);
}

bool
recorder_close(struct recorder *r, int64_t patience_ns, struct err *err)
{
	bool ok;

	if (!r)
		return true;
	if (r->number > 0)
		write_file(r);
	ok = record_writer_close(r->writer, patience_ns, err);
	recorder_free(r);
	return ok;
}

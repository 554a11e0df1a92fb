/* exporter/record/record.c - the files of a recording, one after the other. The rules are in record.h. */
#include "exporter/record/record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/time.h"
#include "exporter/record/record_file.h"
#include "exporter/record/record_writer.h"

#define WRITE_EVERY_NS NS_PER_MIN
#define RUNS_MAX 8000u
#define EVENTS_MAX 900u

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

/* What lasts is written as it stands: it lasts until the next reading at least. */
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
			memcpy(e.fault, f->gpus[i].down_kind, sizeof(e.fault));
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
		return err_errno(err, ERR_FATAL, errno, "record: %s cannot be made", o->dir);
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

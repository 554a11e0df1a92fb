/* exporter/record/record_file.c - writes one file of a recording as YAML: a scenario for the simulator. */
#include "exporter/record/record_file.h"

#include <string.h>

#include "common/base/time.h"

#define ENTRY_BYTES 256 /* of a process, a GPU or an event, about, without its lists */
#define DEFAULT_MIB 1024

void
record_file_fini(struct record_file *f)
{
	for (size_t i = 0; i < f->gpu_count; i++) {
		buf_fini(&f->gpus[i].first_layout);
		buf_fini(&f->gpus[i].layouts);
		buf_fini(&f->gpus[i].readings);
		mem_free(f->gpus[i].layout);
	}
	for (size_t i = 0; i < f->run_count; i++) {
		buf_fini(&f->runs[i].activity);
		mem_free(f->runs[i].cgroup);
		mem_free(f->runs[i].comm);
	}
	mem_free(f->gpus);
	mem_free(f->runs);
	mem_free(f->events);
	*f = (struct record_file){0};
}

size_t
record_file_size(const struct record_file *f)
{
	size_t size = ENTRY_BYTES * (f->gpu_count + f->run_count + f->event_count);

	for (size_t i = 0; i < f->gpu_count; i++)
		size += f->gpus[i].layouts.len + f->gpus[i].readings.len;
	for (size_t i = 0; i < f->run_count; i++)
		size += f->runs[i].activity.len + strlen(f->runs[i].cgroup);
	return size;
}

/* ---- text ---- */

void
record_quoted(struct buf *out, const char *text)
{
	buf_char(out, '"');
	for (const char *p = text; *p; p++) {
		if (*p == '"' || *p == '\\')
			buf_printf(out, "\\%c", *p);
		else if (*p == '\n')
			buf_str(out, "\\n");
		else if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
			buf_printf(out, "\\x%02x", (unsigned)(unsigned char)*p);
		else
			buf_char(out, *p);
	}
	buf_char(out, '"');
}

static void
add_pair(struct buf *out, const char *key, const char *text)
{
	buf_str(out, key);
	record_quoted(out, text);
	buf_char(out, '\n');
}

static void
add_time(struct buf *out, const char *key, int64_t ns)
{
	char text[TIME_TEXT_SIZE];

	buf_printf(out, "%s%s", key, duration_format(ns, text));
}

/* The scenario numbers its GPUs in the order of their indexes, which is not always the order in which they were seen. */
static size_t
number_of(const struct record_file *f, size_t gpu)
{
	size_t number = 0;

	for (size_t i = 0; i < f->gpu_count; i++)
		number += f->gpus[i].index < f->gpus[gpu].index || (f->gpus[i].index == f->gpus[gpu].index && i < gpu);
	return number;
}

/* ---- sections ---- */

static void
add_gpu(struct buf *out, const struct record_gpu *g)
{
	add_pair(out, "  - model: ", g->model);
	buf_printf(out, "    memory_mib: %" PRId64 "\n", g->memory_bytes > 0 ? g->memory_bytes >> 20 : DEFAULT_MIB);
	add_pair(out, "    uuid: ", g->uuid);
	if (g->pci[0])
		add_pair(out, "    pci: ", g->pci);
	buf_printf(out, "    gpm: %s\n    samples: %s\n    accounting: %s\n", g->gpm ? "true" : "false",
	           g->no_samples && !g->samples ? "false" : "true", g->accounting ? "true" : "false");
	if (g->first_layout.len)
		buf_printf(out, "    mig: %s\n", buf_text(&g->first_layout));
	if (g->layouts.len)
		buf_printf(out, "    repartition:\n%s", buf_text(&g->layouts));
	if (g->readings.len)
		buf_printf(out, "    readings:\n%s", buf_text(&g->readings));
}

static void
add_gpus(struct buf *out, const struct record_file *f)
{
	if (f->gpu_count)
		buf_str(out, "gpus:\n");
	for (size_t number = 0; number < f->gpu_count; number++)
		for (size_t i = 0; i < f->gpu_count; i++)
			if (number_of(f, i) == number)
				add_gpu(out, &f->gpus[i]);
}

static void
add_run(struct buf *out, const struct record_file *f, const struct record_run *run)
{
	buf_printf(out, "  - pid: %" PRIu32 "\n    gpu: %zu\n", run->pid, number_of(f, run->gpu));
	if (run->gi >= 0)
		buf_printf(out, "    instance: %d/%d\n", run->gi, run->ci);
	add_time(out, "    start: ", run->start_ns);
	if (run->end_ns != RECORD_ALIVE)
		add_time(out, "\n    end: ", run->end_ns);
	buf_printf(out, "\n    uid: %" PRId64 "\n", run->uid);
	if (run->mps)
		buf_str(out, "    mps: true\n");
	add_pair(out, "    comm: ", run->comm);
	add_pair(out, "    cgroup: ", run->cgroup);
	add_pair(out, "    activity: ", buf_text(&run->activity));
}

static void
add_event(struct buf *out, const struct record_file *f, const struct record_event *e)
{
	static const char *const faults[] = {[GPU_FAULT_LOST] = "lost",
	                                     [GPU_FAULT_RESET_REQUIRED] = "reset_required",
	                                     [GPU_FAULT_OTHER] = "unknown"};

	if (e->kind == RECORD_HANG)
		buf_str(out, "  - {name: \"*\", hang: true");
	else if (e->kind == RECORD_FAULT)
		buf_printf(out, "  - {%s: true", faults[e->fault]);
	else
		buf_printf(out, "  - {xid: %" PRIu32, e->xid);
	buf_printf(out, ", gpu: %zu", number_of(f, e->gpu));
	add_time(out, ", at: ", e->at_ns);
	if (e->kind != RECORD_XID && e->until_ns != RECORD_ALIVE)
		add_time(out, ", until: ", e->until_ns);
	buf_str(out, "}\n");
}

static void
add_events(struct buf *out, const struct record_file *f, enum record_event_kind kind, const char *title)
{
	bool any = false;

	for (size_t i = 0; i < f->event_count; i++) {
		if (f->events[i].kind != kind)
			continue;
		if (!any)
			buf_str(out, title);
		any = true;
		add_event(out, f, &f->events[i]);
	}
}

void
record_file_text(const struct record_file *f, struct buf *out)
{
	char when[TIME_TEXT_SIZE];
	bool hidden = false;

	buf_printf(out, "# Recorded by tollgate-exporter; times count from %s.\n", time_format(f->wall0_ns, when));
	add_pair(out, "name: ", f->node);
	if (f->driver[0])
		add_pair(out, "driver: ", f->driver);
	if (f->library[0])
		add_pair(out, "library: ", f->library);
	for (size_t i = 0; i < f->gpu_count; i++)
		hidden |= f->gpus[i].placements_hidden;
	if (hidden)
		buf_str(out, "driver_quirk: unprivileged\n");
	add_gpus(out, f);
	if (f->run_count)
		buf_str(out, "processes:\n");
	for (size_t i = 0; i < f->run_count; i++)
		add_run(out, f, &f->runs[i]);
	add_events(out, f, RECORD_FAULT, "faults:\n");
	add_events(out, f, RECORD_HANG, "calls:\n");
	add_events(out, f, RECORD_XID, "xids:\n");
}

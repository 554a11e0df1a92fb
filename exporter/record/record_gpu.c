/* exporter/record/record_gpu.c - readings of GPUs taken into a file of a recording. The rules are in record.h. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/record/record_file.h"

#define EVENTS_ROOM 10000u /* XIDs beyond this in one file are not kept */
#define LAYOUTS_MAX_BYTES (256u << 10)
#define PPM_PER_PERCENT 10000

/* ---- values --------------------------------------------------------------------------------------------------------- */

/* How a value of a reading is called in a scenario. An average is of the time since the reading before (rule 1). */
struct field {
	const char *name;
	size_t offset;
	int64_t divisor;
	enum { MOMENT, AVERAGE, BY_GPM } kind; /* BY_GPM: an average where the GPU has GPM, else a moment */
};
#define OF(f) offsetof(struct gpu_reading, f)
static const struct field board_fields[] = {
	{"active", OF(active_ppm), PPM_PER_PERCENT, MOMENT},
	{"memory_active", OF(memory_active_ppm), PPM_PER_PERCENT, MOMENT},
	{"power_mw", OF(power_mw), 1, MOMENT},
	{"energy_mj", OF(energy_mj), 1, MOMENT},
	{"temperature_c", OF(temperature_c), 1, MOMENT},
	{"memory_bytes", OF(memory_bytes), 1, MOMENT},
	{"memory_used_bytes", OF(memory_used_bytes), 1, MOMENT},
	{"memory_reserved_bytes", OF(board.memory_reserved_bytes), 1, MOMENT},
	{"power_limit_mw", OF(board.power_limit_mw), 1, MOMENT},
	{"memory_temperature_c", OF(board.memory_temperature_c), 1, MOMENT},
	{"graphics_clock_mhz", OF(board.graphics_clock_mhz), 1, MOMENT},
	{"sm_clock_mhz", OF(board.sm_clock_mhz), 1, MOMENT},
	{"memory_clock_mhz", OF(board.memory_clock_mhz), 1, MOMENT},
	{"video_clock_mhz", OF(board.video_clock_mhz), 1, MOMENT},
	{"throttle_reasons", OF(board.throttle_reasons), 1, MOMENT},
	{"encoder", OF(board.encoder_ppm), PPM_PER_PERCENT, MOMENT},
	{"decoder", OF(board.decoder_ppm), PPM_PER_PERCENT, MOMENT},
	{"ecc_corrected", OF(board.ecc_corrected), 1, MOMENT},
	{"ecc_uncorrected", OF(board.ecc_uncorrected), 1, MOMENT},
	{"remapped_corrected", OF(board.remapped_corrected), 1, MOMENT},
	{"remapped_uncorrected", OF(board.remapped_uncorrected), 1, MOMENT},
	{"remap_pending", OF(board.remap_pending), 1, MOMENT},
	{"remap_failed", OF(board.remap_failed), 1, MOMENT},
	{"pcie_replays", OF(board.pcie_replays), 1, MOMENT},
	{"pcie_generation", OF(board.pcie_generation), 1, MOMENT},
	{"pcie_width", OF(board.pcie_width), 1, MOMENT},
	{"nvlink_tx_bytes", OF(board.nvlink_tx_bytes), 1, MOMENT},
	{"nvlink_rx_bytes", OF(board.nvlink_rx_bytes), 1, MOMENT},
	{"pcie_tx_bytes_per_s", OF(board.pcie_tx_bytes_per_s), 1, BY_GPM},
	{"pcie_rx_bytes_per_s", OF(board.pcie_rx_bytes_per_s), 1, BY_GPM},
	{"sm_active_ppm", OF(sm_active_ppm), 1, AVERAGE},
	{"sm_occupancy_ppm", OF(sm_occupancy_ppm), 1, AVERAGE},
	{"tensor_active_ppm", OF(tensor_active_ppm), 1, AVERAGE},
	{"dram_active_ppm", OF(dram_active_ppm), 1, AVERAGE},
};
#undef OF
#define OF(f) offsetof(struct gpu_instance, f)
static const struct field instance_fields[] = {
	{"memory_bytes", OF(memory_bytes), 1, MOMENT},
	{"memory_used_bytes", OF(memory_used_bytes), 1, MOMENT},
	{"engine_active_ppm", OF(active_ppm), 1, AVERAGE},
	{"sm_active_ppm", OF(sm_active_ppm), 1, AVERAGE},
	{"sm_occupancy_ppm", OF(sm_occupancy_ppm), 1, AVERAGE},
	{"tensor_active_ppm", OF(tensor_active_ppm), 1, AVERAGE},
	{"dram_active_ppm", OF(dram_active_ppm), 1, AVERAGE},
};
#undef OF
static_assert(ARRAY_LEN(board_fields) == RECORD_BOARD_FIELDS && ARRAY_LEN(instance_fields) == RECORD_INSTANCE_FIELDS,
              "every field has a last value");

/* The values of one subject that are of a kind and have changed. A driver that does not tell a moment's value says so from the
 * beginning; averages are there from the second reading on. */
static void
add_values(struct buf *line, const struct field *fields, size_t count, const void *subject, int64_t *last,
           bool averages, bool gpm)
{
	for (size_t i = 0; i < count; i++) {
		bool average = fields[i].kind == AVERAGE || (fields[i].kind == BY_GPM && gpm);
		int64_t value;

		if (average != averages)
			continue;
		memcpy(&value, (const char *)subject + fields[i].offset, sizeof(value));
		if (value != ABSENT)
			value /= fields[i].divisor;
		if (value == last[i] || (average && value == ABSENT && last[i] == RECORD_NOT_WRITTEN))
			continue;
		last[i] = value;
		if (value == ABSENT)
			buf_printf(line, " %s=-", fields[i].name);
		else
			buf_printf(line, " %s=%" PRId64, fields[i].name, value);
	}
}

/* A line of the scenario, when there is anything to say. */
static void
add_line(struct record_gpu *g, const struct gpu_reading *r, int64_t at_ns, bool averages)
{
	in_place(buf) struct buf line = {0};
	char at[TIME_TEXT_SIZE];

	buf_init(&line, RECORD_TEXT_MAX);
	add_values(&line, board_fields, ARRAY_LEN(board_fields), r, g->last, averages, g->gpm);
	if (averages && g->gpm && r->active_ppm != ABSENT && r->sm_active_ppm != ABSENT)
		buf_printf(&line, " engine_active_ppm=%" PRId64, r->active_ppm);
	for (size_t i = 0; i < r->instance_count; i++) {
		size_t before;

		buf_printf(&line, " @%d/%d", r->instances[i].gi, r->instances[i].ci);
		before = line.len;
		add_values(&line, instance_fields, ARRAY_LEN(instance_fields), &r->instances[i], g->instances[i].last,
		           averages, g->gpm);
		if (line.len == before) {
			while (line.data[line.len - 1] != ' ')
				line.len--;
			line.data[--line.len] = '\0';
		}
	}
	if (line.len > 0)
		buf_printf(&g->readings, "      - \"%s%s\"\n", duration_format(at_ns, at), buf_text(&line));
}

/* ---- a GPU ---------------------------------------------------------------------------------------------------------- */

static void
forget(int64_t *last, size_t count)
{
	for (size_t i = 0; i < count; i++)
		last[i] = RECORD_NOT_WRITTEN;
}

void
record_add_event(struct record_file *f, struct record_event e)
{
	f->events = mem_grow(f->events, f->event_count + 1, sizeof(*f->events));
	f->events[f->event_count++] = e;
}

/* One that appears later was lost until then. */
static struct record_gpu *
know_gpu(struct record_file *f, size_t place, const struct gpu_reading *r)
{
	struct record_gpu *g;

	if (place < f->gpu_count)
		return &f->gpus[place];
	f->gpus = mem_grow(f->gpus, f->gpu_count + 1, sizeof(*f->gpus));
	g = &f->gpus[f->gpu_count++];
	*g = (struct record_gpu){
		.index = r->index, .since_ns = f->now_ns, .memory_bytes = ABSENT, .down_ns = -1, .silent_ns = -1};
	memcpy(g->uuid, r->uuid, sizeof(g->uuid));
	memcpy(g->model, r->model, sizeof(g->model));
	memcpy(g->pci, r->pci, sizeof(g->pci));
	memcpy(g->xids, r->xids, sizeof(g->xids));
	g->xid_count = r->xid_count;
	buf_init(&g->first_layout, LAYOUTS_MAX_BYTES);
	buf_init(&g->layouts, RECORD_TEXT_MAX);
	buf_init(&g->readings, RECORD_TEXT_MAX);
	forget(g->last, RECORD_BOARD_FIELDS);
	if (f->now_ns > 0)
		record_add_event(f,
		                 (struct record_event){
					 .kind = RECORD_FAULT, .gpu = place, .until_ns = f->now_ns, .fault = "lost"});
	return g;
}

static const char *
fault_of(const char *reason)
{
	if (strstr(reason, "lost") || strstr(reason, "listed"))
		return "lost";
	return strstr(reason, "reset") ? "reset_required" : "unknown";
}

/* Rule 4. */
static void
take_health(struct record_file *f, size_t place, struct record_gpu *g, const struct gpu_reading *r)
{
	const char *fault = r->down ? fault_of(r->down_reason) : "";

	if (g->down_ns >= 0 && (r->silent || strcmp(fault, g->down_kind) != 0)) {
		struct record_event e = {
			.kind = RECORD_FAULT, .gpu = place, .at_ns = g->down_ns, .until_ns = f->now_ns};

		memcpy(e.fault, g->down_kind, sizeof(e.fault));
		record_add_event(f, e);
		g->down_ns = -1;
	}
	if (g->silent_ns >= 0 && !r->silent) {
		record_add_event(f, (struct record_event){.kind = RECORD_HANG,
		                                          .gpu = place,
		                                          .at_ns = g->silent_ns,
		                                          .until_ns = f->now_ns});
		g->silent_ns = -1;
	}
	if (r->silent && g->silent_ns < 0)
		g->silent_ns = f->now_ns;
	if (r->down && !r->silent && g->down_ns < 0) {
		g->down_ns = f->now_ns;
		snprintf(g->down_kind, sizeof(g->down_kind), "%s", fault);
	}
}

/* Counted since the source was opened; one that was opened anew counts from 0. */
static void
take_xids(struct record_file *f, size_t place, struct record_gpu *g, const struct gpu_reading *r)
{
	for (size_t i = 0; i < r->xid_count; i++) {
		int64_t before = 0;

		for (size_t j = 0; j < g->xid_count; j++)
			if (g->xids[j].code == r->xids[i].code && g->xids[j].count <= r->xids[i].count)
				before = g->xids[j].count;
		for (; before < r->xids[i].count && r->xids[i].code != 0 && f->event_count < EVENTS_ROOM; before++)
			record_add_event(f, (struct record_event){.kind = RECORD_XID,
			                                          .gpu = place,
			                                          .at_ns = f->now_ns,
			                                          .xid = r->xids[i].code});
	}
	memcpy(g->xids, r->xids, sizeof(g->xids));
	g->xid_count = r->xid_count;
}

static void
describe_layout(const struct gpu_reading *r, struct buf *out)
{
	buf_str(out, r->mig ? "[" : "off");
	for (size_t i = 0; r->mig && i < r->instance_count; i++) {
		const struct gpu_instance *in = &r->instances[i];

		buf_printf(out, "%s{gi: %d, ci: %d, profile: ", i ? ", " : "", in->gi, in->ci);
		record_quoted(out, in->profile);
		buf_str(out, ", uuid: ");
		record_quoted(out, in->uuid);
		if (in->placement_start >= 0)
			buf_printf(out, ", placement: %d", in->placement_start);
		buf_char(out, '}');
	}
	if (r->mig)
		buf_char(out, ']');
}

static void
take_layout(const struct record_file *f, struct record_gpu *g, const struct gpu_reading *r)
{
	in_place(buf) struct buf text = {0};
	char at[TIME_TEXT_SIZE];

	buf_init(&text, LAYOUTS_MAX_BYTES);
	describe_layout(r, &text);
	for (size_t i = 0; i < r->instance_count; i++)
		g->placements_hidden |= r->instances[i].placement_start < 0;
	if (g->layout && strcmp(g->layout, buf_text(&text)) == 0)
		return;
	if (!g->layout)
		buf_str(&g->first_layout, buf_text(&text));
	else
		buf_printf(&g->layouts, "      - {at: %s, mig: %s}\n", duration_format(f->now_ns, at), buf_text(&text));
	mem_free(g->layout);
	g->layout = mem_strdup(buf_text(&text));
}

/* What was last written of an instance stays with its UUID. */
static void
follow_instances(struct record_gpu *g, const struct gpu_reading *r)
{
	struct record_instance next[GPU_INSTANCE_MAX];

	for (size_t i = 0; i < r->instance_count; i++) {
		next[i] = (struct record_instance){.gi = r->instances[i].gi, .ci = r->instances[i].ci};
		memcpy(next[i].uuid, r->instances[i].uuid, sizeof(next[i].uuid));
		forget(next[i].last, RECORD_INSTANCE_FIELDS);
		for (size_t j = 0; j < g->instance_count; j++)
			if (strcmp(g->instances[j].uuid, next[i].uuid) == 0)
				next[i] = g->instances[j];
	}
	memcpy(g->instances, next, r->instance_count * sizeof(*next));
	g->instance_count = r->instance_count;
}

/* The memory of a GPU that tells it to root only follows from that of its instances. */
static void
take_memory(struct record_gpu *g, const struct gpu_reading *r)
{
	const struct gpu_instance *in = r->instances;

	if (r->memory_bytes > 0)
		g->memory_bytes = r->memory_bytes;
	else if (g->memory_bytes < 0 && r->instance_count > 0 && in->memory_slices > 0 && in->memory_bytes > 0)
		g->memory_bytes = in->memory_bytes / in->memory_slices * (strstr(r->model, "A30") ? 4 : 8);
}

void
record_take_gpu(struct record_file *f, size_t place, const struct gpu_reading *r)
{
	struct record_gpu *g = know_gpu(f, place, r);

	take_health(f, place, g, r);
	if (r->silent)
		return;
	take_xids(f, place, g, r);
	if (r->down)
		return;
	g->index = r->index;
	g->gpm |= r->sm_active_ppm != ABSENT;
	for (size_t i = 0; i < r->instance_count; i++)
		g->gpm |= r->instances[i].active_ppm != ABSENT;
	g->samples |= r->process_activity;
	g->no_samples |= !r->mig && !r->process_activity;
	g->accounting |= r->accounting;
	take_memory(g, r);
	take_layout(f, g, r);
	follow_instances(g, r);
	if (f->before_ns >= 0)
		add_line(g, r, f->before_ns, true);
	add_line(g, r, f->now_ns, false);
}

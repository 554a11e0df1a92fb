/* tests/support/wire/batch_tool.c - frames from a description in JSON: batch_tool IN.json OUT
 *
 *   {"batches": [{"node": "n1", "boot_id": "00..", "epoch": 1, "seq": 1, "from_ns": 0, "to_ns": 1,
 *                 "devices": [{"id": 1, "gpu": 1, "uuid": "GPU-1", ...}],
 *                 "holders": [{"id": 1, "kind": 1, "ns": "a", ...}],
 *                 "records": [[device, holder, state, sharing, method, units, start_ns, duration_ns, held_ns,
 *                              used_ns, unmeasured_ns, over_ns, memory_byte_ms, energy_mj, ticks], ...],
 *                 "efficiency": [[peak_memory_bytes, sm_active_ns, sm_measured_ns], ...] of the records, or nothing,
 *                 "kind": 1, "last_seq": 1, "flags": 0, "break": "crc"}]}
 *
 * Nothing is checked, so that a test can make every wrong batch there is. "break" damages the frame: crc, torn (the
 * last bytes are missing), gzip (the payload is none), bomb (it expands beyond the limit), body (its end is missing),
 * version (one from the future), text (a name that is not UTF-8). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/wire/frame.h"
#include "common/base/gz.h"
#include "common/conf/json.h"
#include "common/wire/wire.h"

#define OUT_MAX (1u << 30)

static _Noreturn void
die(const char *what, const char *why)
{
	fprintf(stderr, "batch_tool: %s: %s\n", what, why);
	exit(1);
}

static int64_t
number(const json_t *obj, const char *field, int64_t preset)
{
	const json_t *v = json_object_get(obj, field);

	if (v && !json_is_integer(v))
		die(field, "is not a number");
	return v ? (int64_t)json_integer_value(v) : preset;
}

static char *
text(const json_t *obj, const char *field)
{
	const char *s = json_string_value(json_object_get(obj, field));

	return mem_strdup(s ? s : "");
}

static void
read_devices(const json_t *list, struct wire_batch *b)
{
	b->device_count = json_array_size(list);
	b->devices = mem_array(b->device_count, sizeof(*b->devices));
	for (size_t i = 0; i < b->device_count; i++) {
		const json_t *d = json_array_get(list, i);

		b->devices[i] = (struct wire_device){
			.id = (uint32_t)number(d, "id", 0),
			.gpu = (uint32_t)number(d, "gpu", number(d, "id", 0)),
			.uuid = text(d, "uuid"),
			.model = text(d, "model"),
			.profile = text(d, "profile"),
			.gi = (int32_t)number(d, "gi", -1),
			.ci = (int32_t)number(d, "ci", -1),
			.created_ns = number(d, "created_ns", 0),
			.units = number(d, "units", 5040),
			.memory_bytes = number(d, "memory_bytes", INT64_C(80) << 30),
			.index = (int32_t)number(d, "index", 0),
		};
	}
}

static void
read_holders(const json_t *list, struct wire_batch *b)
{
	b->holder_count = json_array_size(list);
	b->holders = mem_array(b->holder_count, sizeof(*b->holders));
	for (size_t i = 0; i < b->holder_count; i++) {
		const json_t *h = json_array_get(list, i);

		b->holders[i] = (struct wire_holder){
			.id = (uint32_t)number(h, "id", 0),
			.kind = (uint32_t)number(h, "kind", WIRE_POD),
			.ns = text(h, "ns"),
			.pod = text(h, "pod"),
			.pod_uid = text(h, "pod_uid"),
			.container = text(h, "container"),
			.slurm_job = text(h, "slurm_job"),
			.slurm_account = text(h, "slurm_account"),
			.user = text(h, "user"),
			.uid = number(h, "uid", -1),
			.group = text(h, "group"),
			.labels = text(h, "labels"),
		};
	}
}

static void
read_records(const json_t *list, const json_t *efficiency, struct wire_batch *b)
{
	b->record_count = json_array_size(list);
	b->records = mem_array(b->record_count, sizeof(*b->records));
	for (size_t i = 0; i < b->record_count; i++) {
		const json_t *row = json_array_get(list, i);
		const json_t *told = json_array_get(efficiency, i);
		int64_t v[15];

		if (json_array_size(row) != ARRAY_LEN(v))
			die("a record", "does not have 15 numbers");
		for (size_t k = 0; k < ARRAY_LEN(v); k++)
			v[k] = (int64_t)json_integer_value(json_array_get(row, k));
		b->records[i] = (struct wire_record){
			.device = (uint32_t)v[0],
			.holder = (uint32_t)v[1],
			.state = (uint32_t)v[2],
			.sharing = (uint32_t)v[3],
			.method = (uint32_t)v[4],
			.units = v[5],
			.start_ns = v[6],
			.duration_ns = v[7],
			.held_ns = v[8],
			.used_ns = v[9],
			.unmeasured_ns = v[10],
			.over_ns = v[11],
			.memory_byte_ms = v[12],
			.energy_mj = v[13],
			.ticks = v[14],
			.peak_memory_bytes = (int64_t)json_integer_value(json_array_get(told, 0)),
			.sm_active_ns = (int64_t)json_integer_value(json_array_get(told, 1)),
			.sm_measured_ns = (int64_t)json_integer_value(json_array_get(told, 2)),
		};
	}
}

static struct wire_batch *
read_batch(const json_t *j)
{
	struct wire_batch *b = wire_batch_new();
	const char *boot_id = json_string_value(json_object_get(j, "boot_id"));
	struct err err;

	b->version = (uint32_t)number(j, "version", WIRE_VERSION);
	b->kind = (uint32_t)number(j, "kind", WIRE_USAGE);
	b->node = text(j, "node");
	if (boot_id && !hex_decode(boot_id, b->boot_id, sizeof(b->boot_id), &err))
		die("boot_id", err.text);
	b->epoch = (uint64_t)number(j, "epoch", 1);
	b->seq = (uint64_t)number(j, "seq", 1);
	b->last_seq = (uint64_t)number(j, "last_seq", (int64_t)b->seq);
	b->flags = (uint32_t)number(j, "flags", 0);
	b->exporter_version = mem_strdup("batch_tool");
	b->from_ns = number(j, "from_ns", 0);
	b->to_ns = number(j, "to_ns", 0);
	read_devices(json_object_get(j, "devices"), b);
	read_holders(json_object_get(j, "holders"), b);
	read_records(json_object_get(j, "records"), json_object_get(j, "efficiency"), b);
	return b;
}

static void
damage_body(const char *how, struct buf *body)
{
	if (strcmp(how, "version") == 0)
		body->data[3] = WIRE_VERSION + 1;
	else if (strcmp(how, "body") == 0)
		body->len -= 1;
	else if (strcmp(how, "bomb") == 0)
		while (body->len <= WIRE_MAX_BODY)
			buf_add(body, "0123456789abcdef", 16);
}

static void
add_frame(const struct wire_batch *b, const char *how, struct buf *out)
{
	in_place(buf) struct buf body, payload;
	size_t at = out->len;
	struct err err;

	buf_init(&body, WIRE_MAX_BODY + 4096);
	buf_init(&payload, FRAME_MAX);
	if (!wire_encode(b, &body, &err))
		die("a batch", err.text);
	damage_body(how, &body);
	if (!gz_compress(body.data, body.len, 1, &payload, &err))
		die("a batch", err.text);
	if (strcmp(how, "gzip") == 0)
		payload.data[0] ^= 1;
	frame_append(out, payload.data, payload.len);
	if (strcmp(how, "crc") == 0)
		out->data[at + 4] ^= 1;
	else if (strcmp(how, "torn") == 0)
		out->len -= 3;
}

int
main(int argc, char **argv)
{
	owned(json) json_t *doc = NULL;
	in_place(buf) struct buf out;
	const json_t *list, *j;
	json_error_t why;
	struct err err;
	size_t i;

	if (argc != 3)
		die("usage", "batch_tool IN.json OUT");
	doc = json_load_file(argv[1], 0, &why);
	if (!doc)
		die(argv[1], why.text);
	list = json_object_get(doc, "batches");
	buf_init(&out, OUT_MAX);
	json_array_foreach(list, i, j)
	{
		owned(wire_batch) struct wire_batch *b = read_batch(j);
		const char *how = json_string_value(json_object_get(j, "break"));

		if (how && strcmp(how, "text") == 0)
			b->exporter_version[0] = (char)0xff;
		add_frame(b, how ? how : "", &out);
	}
	if (!buf_ok(&out, argv[2], &err) || !file_write_atomic(argv[2], buf_text(&out), out.len, 0644, &err))
		die(argv[2], err.text);
	return 0;
}

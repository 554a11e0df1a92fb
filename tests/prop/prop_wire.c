/* tests/prop/prop_wire.c - what holds for every batch, and for every string of bytes. */
#include <string.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "common/wire/wire.h"
#include "tests/support/harness/prop.h"
#include "tests/support/wire/wiregen.h"

/* ---- random valid batches ---- */

/* Text of all lengths of UTF-8, sometimes at the limit. */
static char *
draw_text(struct prop_source *s, bool may_be_empty, size_t most)
{
	static const char *const letters[] = {
		"a", "0", "-", "Z", "/", "\"", "\\", "'", "\xc3\xb8", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
	size_t count = (size_t)prop_u64(s, prop_u64(s, 20) == 20 ? most / 4 : 12);
	in_place(buf) struct buf b;

	buf_init(&b, most);
	if (!may_be_empty)
		buf_char(&b, 'x');
	for (size_t i = 0; i < count && b.len + 4 <= most; i++)
		buf_str(&b, letters[prop_index(s, ARRAY_LEN(letters))]);
	return mem_strdup(buf_text(&b));
}

static void
draw_device(struct prop_source *s, struct wire_device *d, uint32_t id)
{
	bool mig = prop_bool(s);

	d->id = id;
	d->gpu = mig ? (uint32_t)prop_u64(s, UINT32_MAX - 1) + 1 : id;
	mig = d->gpu != id;
	d->uuid = draw_text(s, false, LIMIT_GPU_UUID);
	d->model = draw_text(s, false, LIMIT_MODEL);
	d->profile = mig ? draw_text(s, false, LIMIT_PROFILE) : mem_strdup("");
	d->gi = mig ? (int32_t)prop_u64(s, INT32_MAX) : -1;
	d->ci = mig ? (int32_t)prop_i64(s, -1, INT32_MAX) : -1;
	d->created_ns = mig ? (int64_t)prop_u64(s, INT64_MAX) : 0;
	d->units = mig ? 1 + (int64_t)prop_u64(s, UNITS_PER_GPU - 1) : UNITS_PER_GPU;
	d->memory_bytes = (int64_t)prop_u64(s, INT64_MAX);
	d->index = (int32_t)prop_u64(s, INT32_MAX);
}

/* Few keys, so that one is drawn twice now and then. */
static char *
draw_labels(struct prop_source *s)
{
	static const char *const keys[] = {"a", "a-b", "a.b", "ab", "b", "x.io/a", "x.io/team", "z"};
	static const char *const values[] = {"", "v", "0", "a.b_c-D", "longer-than-the-others"};
	struct labels_set set = {0};
	size_t count = prop_index(s, 6);

	for (size_t i = 0; i < count; i++)
		ASSERT(labels_put(&set, keys[prop_index(s, ARRAY_LEN(keys))],
		                  values[prop_index(s, ARRAY_LEN(values))]));
	return labels_join(&set);
}

static void
draw_holder(struct prop_source *s, struct wire_holder *h, uint32_t id, uint32_t version)
{
	h->id = id;
	h->kind = WIRE_POD + (uint32_t)prop_index(s, 3);
	bool pod = h->kind == WIRE_POD, job = h->kind == WIRE_SLURM_JOB;
	h->ns = pod ? draw_text(s, true, WIRE_MAX_TEXT) : mem_strdup("");
	h->pod = pod ? draw_text(s, false, WIRE_MAX_TEXT) : mem_strdup("");
	h->pod_uid = pod ? draw_text(s, true, WIRE_MAX_TEXT) : mem_strdup("");
	h->container = pod ? draw_text(s, true, WIRE_MAX_TEXT) : mem_strdup("");
	h->slurm_job = job ? draw_text(s, false, WIRE_MAX_TEXT) : mem_strdup("");
	h->slurm_account = job ? draw_text(s, true, WIRE_MAX_TEXT) : mem_strdup("");
	h->user = draw_text(s, pod || job, WIRE_MAX_TEXT);
	h->uid = prop_i64(s, -1, UINT32_MAX);
	h->group = version > 1 && !pod ? draw_text(s, true, WIRE_MAX_TEXT) : mem_strdup("");
	h->labels = version > 1 && pod ? draw_labels(s) : mem_strdup("");
}

/* Inside from..to and inside one quarter-hour; shares that do not exceed the whole. */
static void
draw_record(struct prop_source *s, const struct wire_batch *b, struct wire_record *r)
{
	int64_t room;

	r->start_ns = b->from_ns + (int64_t)prop_u64(s, (uint64_t)(b->to_ns - b->from_ns - 1));
	room = NS_PER_QUARTER_HOUR - r->start_ns % NS_PER_QUARTER_HOUR;
	if (room > b->to_ns - r->start_ns)
		room = b->to_ns - r->start_ns;
	r->duration_ns = 1 + (int64_t)prop_u64(s, (uint64_t)room - 1);
	r->device = 1 + (uint32_t)prop_u64(s, UINT32_MAX - 1);
	r->state = WIRE_HELD + (uint32_t)prop_index(s, 5);
	r->sharing = WIRE_EXCLUSIVE + (uint32_t)prop_index(s, 5);
	r->units = 1 + (int64_t)prop_u64(s, UNITS_PER_GPU - 1);
	r->held_ns = (int64_t)prop_u64(s, (uint64_t)r->duration_ns);
	if (r->state == WIRE_HELD) {
		r->holder = 1 + (uint32_t)prop_u64(s, UINT32_MAX - 1);
		r->method = (uint32_t)prop_index(s, 4);
		r->unmeasured_ns = r->method == WIRE_NONE ? r->held_ns : (int64_t)prop_u64(s, (uint64_t)r->held_ns);
		if (r->method != WIRE_NONE) {
			r->used_ns = (int64_t)prop_u64(s, (uint64_t)(r->held_ns - r->unmeasured_ns));
			r->over_ns = (int64_t)prop_u64(s, (uint64_t)r->duration_ns);
		}
	}
	r->memory_byte_ms = (int64_t)prop_u64(s, INT64_MAX);
	r->energy_mj = (int64_t)prop_u64(s, (uint64_t)WIRE_MAX_ENERGY_MJ);
	r->ticks = (int64_t)prop_u64(s, (uint64_t)WIRE_MAX_TICKS);
	if (b->version >= 3 && r->state == WIRE_HELD) {
		r->sm_measured_ns = (int64_t)prop_u64(s, (uint64_t)r->held_ns);
		r->sm_active_ns = (int64_t)prop_u64(s, (uint64_t)r->sm_measured_ns);
		r->peak_memory_bytes = (int64_t)prop_u64(s, INT64_MAX);
	}
}

/* Ids that differ and leap: the step is at least 1. */
static uint32_t
next_id(struct prop_source *s, uint32_t before)
{
	return before + 1 + (uint32_t)prop_u64(s, 1 << 20);
}

static struct wire_batch *
draw_batch(struct prop_source *s)
{
	struct wire_batch *b = wire_batch_new();
	uint32_t id = 0;

	b->version = WIRE_VERSION - (uint32_t)prop_index(s, WIRE_VERSION - WIRE_OLDEST_VERSION + 1);
	b->kind = prop_u64(s, 9) == 9 ? WIRE_LOSS : WIRE_USAGE;
	b->flags = (uint32_t)prop_bool(s);
	b->node = draw_text(s, false, LIMIT_NODE_NAME);
	prop_bytes(s, b->boot_id, sizeof(b->boot_id));
	b->epoch = 1 + prop_u64(s, INT64_MAX - 1);
	b->seq = 1 + prop_u64(s, INT64_MAX - 1);
	b->last_seq = b->kind == WIRE_LOSS ? b->seq + prop_u64(s, INT64_MAX - b->seq) : b->seq;
	b->exporter_version = draw_text(s, true, WIRE_MAX_TEXT);
	b->from_ns = (int64_t)prop_u64(s, INT64_MAX - 1);
	b->to_ns = b->from_ns + 1 + (int64_t)prop_u64(s, (uint64_t)(INT64_MAX - 1 - b->from_ns));
	b->device_count = (size_t)prop_u64(s, 6);
	b->devices = mem_array(b->device_count, sizeof(*b->devices));
	for (size_t i = 0; i < b->device_count; i++)
		draw_device(s, &b->devices[i], id = next_id(s, id));
	b->holder_count = (size_t)prop_u64(s, 6);
	b->holders = mem_array(b->holder_count, sizeof(*b->holders));
	id = 0;
	for (size_t i = 0; i < b->holder_count; i++)
		draw_holder(s, &b->holders[i], id = next_id(s, id), b->version);
	b->record_count = b->kind == WIRE_LOSS ? 0 : (size_t)prop_u64(s, 40);
	b->records = mem_array(b->record_count, sizeof(*b->records));
	for (size_t i = 0; i < b->record_count; i++)
		draw_record(s, b, &b->records[i]);
	return b;
}

/* ---- the cases ---- */

struct change {
	size_t at;    /* taken modulo the length */
	uint8_t with; /* xor; 0 deletes the byte */
};

struct wire_case {
	struct wire_batch *batch;
	struct change changes[4];
	size_t change_count;
};

static void
generate(struct prop_source *s, void *c)
{
	struct wire_case *w = c;

	w->change_count = 1 + prop_index(s, ARRAY_LEN(w->changes));
	for (size_t i = 0; i < w->change_count; i++) {
		w->changes[i].at = (size_t)prop_u64(s, 1 << 16);
		w->changes[i].with = (uint8_t)prop_u64(s, 255);
	}
	w->batch = draw_batch(s);
}

static void
fini(void *c)
{
	wire_batch_free(((struct wire_case *)c)->batch);
}

static void
describe(const void *c, struct buf *out)
{
	const struct wire_case *w = c;

	buf_printf(out,
	           "version %" PRIu32 ", kind %" PRIu32 ", %zu devices, %zu holders, %zu records, from %" PRId64
	           " to %" PRId64 "; changes:",
	           w->batch->version, w->batch->kind, w->batch->device_count, w->batch->holder_count,
	           w->batch->record_count, w->batch->from_ns, w->batch->to_ns);
	for (size_t i = 0; i < w->change_count; i++)
		buf_printf(out, " %zu^%02x", w->changes[i].at, w->changes[i].with);
}

static bool
failed(struct buf *why, const char *step, const struct err *err)
{
	buf_printf(why, "%s: %s", step, err->text);
	return false;
}

/* Decodes, and encodes what came out: the same bytes must appear. */
static bool
re_encodes(const struct buf *body, const struct wire_batch *b, struct buf *why)
{
	in_place(buf) struct buf again;
	struct err err;

	buf_init(&again, WIRE_MAX_BODY);
	if (!wire_encode(b, &again, &err))
		return failed(why, "encoding what was decoded", &err);
	if (again.len == body->len && memcmp(again.data, body->data, body->len) == 0)
		return true;
	buf_printf(why, "%zu bytes decoded, %zu other bytes encoded", body->len, again.len);
	return false;
}

static bool
comes_back(const void *c, struct buf *why)
{
	const struct wire_batch *b = ((const struct wire_case *)c)->batch;
	owned(wire_batch) struct wire_batch *back = NULL;
	in_place(buf) struct buf body;
	struct err err;

	buf_init(&body, WIRE_MAX_BODY);
	if (!wire_check(b, &err))
		return failed(why, "checking the drawn batch", &err);
	if (!wire_encode(b, &body, &err) || !wire_decode(body.data, body.len, &back, &err) || !wire_check(back, &err))
		return failed(why, "there and back", &err);
	return wiregen_same(b, back, why) && re_encodes(&body, back, why);
}

static bool
packs(const void *c, struct buf *why)
{
	const struct wire_batch *b = ((const struct wire_case *)c)->batch;
	owned(wire_batch) struct wire_batch *back = NULL;
	in_place(buf) struct buf payload, again;
	struct err err;

	buf_init(&payload, FRAME_MAX);
	buf_init(&again, FRAME_MAX);
	if (!wire_pack(b, &payload, &err) || !wire_unpack(payload.data, payload.len, &back, &err) ||
	    !wire_pack(back, &again, &err))
		return failed(why, "pack and unpack", &err);
	if (payload.len != again.len || memcmp(payload.data, again.data, again.len) != 0) {
		buf_str(why, "packed twice, two payloads");
		return false;
	}
	return wiregen_same(b, back, why);
}

static void
spoil(struct buf *body, const struct wire_case *w)
{
	for (size_t i = 0; i < w->change_count && body->len > 0; i++) {
		size_t at = w->changes[i].at % body->len;

		if (w->changes[i].with)
			body->data[at] = (char)((uint8_t)body->data[at] ^ w->changes[i].with);
		else
			memmove(body->data + at, body->data + at + 1, --body->len - at);
	}
}

/* Whatever is decoded from spoiled bytes stands for exactly those bytes, and what passes the check can be packed. */
static bool
spoiled_bytes_are_harmless(const void *c, struct buf *why)
{
	const struct wire_case *w = c;
	owned(wire_batch) struct wire_batch *back = NULL;
	in_place(buf) struct buf body, payload;
	struct err err = {.kind = ERR_NONE};

	buf_init(&body, WIRE_MAX_BODY);
	buf_init(&payload, FRAME_MAX);
	if (!wire_encode(w->batch, &body, &err))
		return failed(why, "encoding the drawn batch", &err);
	spoil(&body, w);
	if (!wire_decode(body.data, body.len, &back, &err)) {
		if (err.kind == ERR_INVALID || err.kind == ERR_RETRY)
			return true;
		return failed(why, "refused with the wrong kind", &err);
	}
	if (!re_encodes(&body, back, why))
		return false;
	if (wire_check(back, &err) && !wire_pack(back, &payload, &err))
		return failed(why, "packing what was checked", &err);
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"every valid batch comes back as it was, and from no other bytes", sizeof(struct wire_case), generate,
	         comes_back, describe, fini},
		{"every valid batch packs into one payload and unpacks from it", sizeof(struct wire_case), generate,
	         packs, describe, fini},
		{"spoiled bytes are refused, or stand for exactly what is decoded from them", sizeof(struct wire_case),
	         generate, spoiled_bytes_are_harmless, describe, fini},
	};

	return prop_main("wire", tests, ARRAY_LEN(tests));
}

/* tests/unit/wire/test_wire.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/digest.h"
#include "common/wire/frame.h"
#include "common/base/gz.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "common/wire/wire.h"
#include "tests/support/harness/golden.h"
#include "tests/support/wire/wiregen.h"

static void
encode(const struct wire_batch *b, struct buf *body)
{
	struct err err;

	buf_init(body, WIRE_MAX_BODY);
	if (!wire_encode(b, body, &err))
		fail_msg("%s", err.text);
}

static void
assert_same(const struct wire_batch *a, const struct wire_batch *b)
{
	in_place(buf) struct buf why;

	buf_init(&why, 4096);
	if (!wiregen_same(a, b, &why))
		fail_msg("%s", buf_text(&why));
}

static void
assert_round_trip(const struct wire_batch *b)
{
	owned(wire_batch) struct wire_batch *back = NULL;
	in_place(buf) struct buf body, again;
	struct err err;

	encode(b, &body);
	if (!wire_decode(body.data, body.len, &back, &err) || !wire_check(back, &err))
		fail_msg("%s", err.text);
	assert_same(b, back);
	encode(back, &again);
	assert_int_equal(body.len, again.len);
	assert_memory_equal(body.data, again.data, body.len);
}

static void
a_batch_comes_back_as_it_was(void **state)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed(), *loss = wiregen_loss(WIRE_VERSION),
					    *node = wiregen_node(1, 2, 3, 4), *old = wiregen_fixed_v1();
	struct err err;

	(void)state;
	if (!wire_check(fixed, &err) || !wire_check(loss, &err) || !wire_check(node, &err) || !wire_check(old, &err))
		fail_msg("%s", err.text);
	assert_round_trip(old);
	assert_round_trip(fixed);
	assert_round_trip(loss);
	assert_round_trip(node);
}

/* 32 bytes a line, so that a difference shows where it is. */
static void
add_hex(struct buf *out, const struct buf *body)
{
	char line[2 * 32 + 1];

	for (size_t at = 0; at < body->len; at += 32) {
		size_t n = body->len - at < 32 ? body->len - at : 32;

		hex_encode((const uint8_t *)body->data + at, n, line);
		buf_str(out, line);
		buf_char(out, '\n');
	}
}

static void
assert_golden(const struct wire_batch *b, const char *name)
{
	in_place(buf) struct buf body, hex;
	struct err err;

	encode(b, &body);
	buf_init(&hex, 1 << 20);
	add_hex(&hex, &body);
	if (!golden_check(name, hex.data, hex.len, &err))
		fail_msg("%s", err.text);
}

static void
the_bytes_of_version_1_never_change(void **state)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed_v1(), *loss = wiregen_loss(1);

	(void)state;
	assert_golden(fixed, "wire_v1_usage.hex");
	assert_golden(loss, "wire_v1_loss.hex");
}

static void
the_bytes_of_version_2_never_change(void **state)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed_v2(), *loss = wiregen_loss(2);

	(void)state;
	assert_golden(fixed, "wire_v2_usage.hex");
	assert_golden(loss, "wire_v2_loss.hex");
}

static void
the_bytes_of_version_3_never_change(void **state)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed_v3(), *loss = wiregen_loss(3);

	(void)state;
	assert_golden(fixed, "wire_v3_usage.hex");
	assert_golden(loss, "wire_v3_loss.hex");
}

static void
the_bytes_of_version_4_never_change(void **state)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed(), *loss = wiregen_loss(4);

	(void)state;
	assert_golden(fixed, "wire_v4_usage.hex");
	assert_golden(loss, "wire_v4_loss.hex");
}

/* The batch of a golden file; its bytes are in `body`. */
static struct wire_batch *
read_golden(const char *path, struct buf *body)
{
	in_place(buf) struct buf hex;
	struct wire_batch *back = NULL;
	struct err err;

	buf_init(&hex, 1 << 20);
	buf_init(body, 1 << 20);
	if (!buf_read_file(&hex, path, &err))
		fail_msg("%s", err.text);
	for (const char *at = buf_text(&hex); *at; at += strcspn(at, "\n") + 1) {
		size_t n = strcspn(at, "\n") / 2;
		owned(mem) char *line = mem_strndup(at, 2 * n);
		uint8_t bytes[32];

		assert_true(n <= sizeof(bytes));
		if (!hex_decode(line, bytes, n, &err))
			fail_msg("%s", err.text);
		buf_add(body, bytes, n);
	}
	if (!wire_decode(body->data, body->len, &back, &err))
		fail_msg("%s", err.text);
	return back;
}

static void
the_stored_bytes_of_version_1_are_still_read(void **state)
{
	in_place(buf) struct buf body, again;
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed_v1(),
					    *back = read_golden("tests/golden/wire_v1_usage.hex", &body);

	(void)state;
	assert_same(fixed, back);
	assert_int_equal(back->version, 1);
	assert_string_equal(back->holders[0].labels, "");
	assert_string_equal(back->holders[1].group, "");
	/* what came in version 1 goes on in version 1 */
	encode(back, &again);
	assert_int_equal(again.len, body.len);
	assert_memory_equal(again.data, body.data, body.len);
}

static void
the_stored_bytes_of_version_2_are_still_read(void **state)
{
	in_place(buf) struct buf body;
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed_v2(),
					    *back = read_golden("tests/golden/wire_v2_usage.hex", &body);

	(void)state;
	assert_same(fixed, back);
	assert_int_equal(back->version, 2);
}

static void
the_stored_bytes_of_version_3_are_still_read(void **state)
{
	in_place(buf) struct buf body;
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed_v3(),
					    *back = read_golden("tests/golden/wire_v3_usage.hex", &body);

	(void)state;
	assert_same(fixed, back);
	assert_int_equal(back->version, 3);
}

static void
the_stored_bytes_of_version_4_are_still_read(void **state)
{
	in_place(buf) struct buf body;
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed(),
					    *back = read_golden("tests/golden/wire_v4_usage.hex", &body);

	(void)state;
	assert_same(fixed, back);
	assert_int_equal(back->version, 4);
}

/* A peak for the whole duration foretells the memory; where it cannot, or is of no use, the value comes back all the same. */
static void
memory_comes_back_whatever_the_peak_is(void **state)
{
	static const struct {
		int64_t memory, peak, duration_ns;
	} rows[] = {
		{INT64_C(45097156608) * 30000, INT64_C(45097156608), 30 * NS_PER_S},
		{INT64_C(45097156608) * 30000 - 17, INT64_C(45097156608), 30 * NS_PER_S},
		{INT64_C(1288490188800000), 1, 1},
		{INT64_C(1288490188800000), 0, 30 * NS_PER_S},
		{0, INT64_MAX, 30 * NS_PER_S},
		{INT64_MAX, INT64_MAX, 1},
		{0, INT64_MAX, NS_PER_MS},
		{INT64_MAX, INT64_MAX, NS_PER_MS},
	};
	owned(wire_batch) struct wire_batch *b = wiregen_fixed();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct wire_record *r = &b->records[1];

		r->held_ns = r->unmeasured_ns = r->sm_measured_ns = 0;
		r->memory_byte_ms = rows[i].memory;
		r->peak_memory_bytes = rows[i].peak;
		r->duration_ns = rows[i].duration_ns;
		assert_round_trip(b);
	}
}

static void
memory_beyond_64_bits_is_refused(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_fixed(), *back = NULL;
	in_place(buf) struct buf body;
	struct err err;
	char *column;

	(void)state;
	b->record_count = 1;
	b->records[0].peak_memory_bytes = INT64_MAX;
	b->records[0].duration_ns = NS_PER_MS;
	b->records[0].memory_byte_ms = 0;
	encode(b, &body);
	/* the difference is -INT64_MAX; of the other sign the sum leaves the range */
	column = memmem(body.data, body.len, "\x0a\xfd\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);
	assert_non_null(column);
	column[1] = '\xfe';
	assert_false(wire_decode(body.data, body.len, &back, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_string_equal(err.text, "record 0: memory_byte_ms leaves its 64 bits");
}

static void
what_a_version_has_no_place_for_is_refused_and_not_lost(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_fixed();
	in_place(buf) struct buf body;
	struct err err;

	(void)state;
	buf_init(&body, WIRE_MAX_BODY);
	b->version = 1;
	assert_false(wire_encode(b, &body, &err));
	assert_string_equal(err.text,
	                    "holder: labels is 'app.kubernetes.io/name=trainer,debug=,team=ml', which version "
	                    "1 has no place for");
	b->holders[0].labels[0] = '\0';
	assert_false(wire_encode(b, &body, &err));
	assert_string_equal(err.text, "holder: group is 'physics', which version 1 has no place for");
	b->version = 2;
	assert_false(wire_encode(b, &body, &err));
	assert_string_equal(err.text, "record 0: peak_memory_bytes is 45097156608, which version 2 has no place for");
	b->version = 5;
	assert_false(wire_encode(b, &body, &err));
	assert_string_equal(err.text, "version is 5, 1 to 4 can be written");
	b->version = 0;
	assert_false(wire_encode(b, &body, &err));
	assert_int_equal(body.len, 0);
}

static void
assert_whole(const struct wire_batch *b)
{
	in_place(buf) struct buf body;
	struct wire_batch *back = NULL;
	struct err err;

	encode(b, &body);
	for (size_t n = 0; n < body.len; n++) {
		/* a copy of the exact size, so that the sanitizer sees a step beyond */
		owned(mem) char *cut = mem_alloc(n ? n : 1);

		memcpy(cut, body.data, n);
		err.kind = ERR_NONE;
		if (wire_decode(cut, n, &back, &err))
			fail_msg("the first %zu of %zu bytes were accepted", n, body.len);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_null(back);
	}
	assert_false(wire_decode(NULL, 0, &back, &err));
	buf_char(&body, '\0');
	assert_false(wire_decode(body.data, body.len, &back, &err));
	assert_string_equal(err.text, "1 bytes follow the end of the batch");
}

static void
a_batch_that_ends_early_or_late_is_refused_at_every_byte(void **state)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed(), *old = wiregen_fixed_v1();

	(void)state;
	assert_whole(fixed);
	assert_whole(old);
}

static void
an_unknown_version_is_for_later_and_says_which_are_known(void **state)
{
	owned(wire_batch) struct wire_batch *loss = wiregen_loss(WIRE_VERSION);
	in_place(buf) struct buf body;
	struct wire_batch *back = NULL;
	struct err err;

	(void)state;
	encode(loss, &body);
	assert_memory_equal(body.data, "TGW\x04", 4);
	body.data[3] = 5;
	assert_false(wire_decode(body.data, body.len, &back, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	assert_string_equal(err.text, "wire version 5 is not known here; versions 1 to 4 are");
	body.data[3] = 0;
	assert_false(wire_decode(body.data, body.len, &back, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	body.data[3] = 1;
	body.data[0] = 't';
	assert_false(wire_decode(body.data, body.len, &back, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_string_equal(err.text, "not a batch: it does not begin with TGW");
}

#define TAIL 21 /* three counts of 0 and eighteen empty columns: how a batch without content ends */
#define MAX64 "\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" /* zigzag of INT64_MAX */

static void
unsound_bytes_behind_the_head_are_refused_before_memory_is_taken(void **state)
{
	static const struct {
		const char *name;
		const char *bytes;
		size_t len;
		const char *error; /* how the message ends */
	} rows[] = {
#define ROW(name, bytes, error) {name, bytes, sizeof(bytes) - 1, error}
		ROW("more devices than the cap", "\xa1\x8d\x06", "100001 devices in one batch, the limit is 100000"),
		ROW("a count of 2^64 - 1", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
	            "18446744073709551615 devices in one batch, the limit is 100000"),
		ROW("more devices than bytes",
	            "\x02"
	            "aaaaaaaaaaaaaaaaaaaaa",
	            "2 devices are announced, the 21 bytes left cannot hold them"),
		ROW("more holders than the cap", "\0\xa1\x8d\x06", "100001 holders in one batch, the limit is 100000"),
		ROW("more records than the cap", "\0\0\xc1\x9a\x0c",
	            "200001 records in one batch, the limit is 200000"),
		ROW("more records than bytes",
	            "\0\0\x02"
	            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	            "2 records are announced, the 35 bytes left cannot hold them"),
		ROW("a number of ten bytes beyond 64 bits", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
	            "device: a number of more than 64 bits"),
		ROW("a number of eleven bytes", "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
	            "device: a number of more than 64 bits"),
		ROW("a number with a needless byte", "\x80\x00", "device: a number with needless bytes"),
		ROW("a text over the limit",
	            "\x01\x01\x01\x81\x04"
	            "aaaaaaaa",
	            "device 0: byte 71: uuid: a text over the limit of 512 bytes"),
		ROW("a text beyond the end",
	            "\x01\x01\x01\x20"
	            "aaaaaaaaaa",
	            "uuid: the bytes end inside a text"),
		ROW("a NUL in a text",
	            "\x01\x01\x01\x02\0a"
	            "aaaaaaaaaa",
	            "uuid: a NUL byte in a text"),
		ROW("an id of 33 bits",
	            "\x01\x80\x80\x80\x80\x10"
	            "aaaaaaaaaaa",
	            "id: more than 32 bits"),
		ROW("a column that is longer than the bytes",
	            "\0\0\x01\x20"
	            "aaaaaaaaaaaaaaaaaaa",
	            "device: the bytes end inside the column"),
		ROW("a column with a value too many",
	            "\0\0\x01\x02\x02\x02"
	            "aaaaaaaaaaaaaaaaaaa",
	            "column device has 1 bytes more than its 1 records"),
		ROW("a column with a value too few",
	            "\0\0\x02\x01\x02\x02"
	            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	            "record 1: byte 71: device: the bytes end inside a number"),
		ROW("an empty column of a record",
	            "\0\0\x01\x00\x02"
	            "aaaaaaaaaaaaaaaaaaaa",
	            "record 0: byte 70: device: the bytes end inside a number"),
		ROW("an unsigned column that falls below 0",
	            "\0\0\x01\x01\x01"
	            "aaaaaaaaaaaaaaaaaaaa",
	            "record 0: device leaves its 32 bits"),
		ROW("an unsigned column beyond 32 bits",
	            "\0\0\x01\x05\x80\x80\x80\x80\x20"
	            "aaaaaaaaaaaaaaaa",
	            "record 0: device leaves its 32 bits"),
		ROW("a sum beyond 64 bits",
	            "\0\0\x02"
	            "\x02\0\0"
	            "\x02\0\0"
	            "\x02\0\0"
	            "\x02\0\0"
	            "\x02\0\0"
	            "\x0b" MAX64 "\x02"
	            "aaaaaaaaaaaaaaaaaaaaa",
	            "record 1: units leaves its 64 bits"),
#undef ROW
	};
	owned(wire_batch) struct wire_batch *loss = wiregen_loss(WIRE_VERSION);
	in_place(buf) struct buf head;

	(void)state;
	encode(loss, &head);
	head.len -= TAIL;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(mem) char *body = mem_alloc(head.len + rows[i].len);
		struct wire_batch *back = NULL;
		struct err err = {.kind = ERR_NONE};
		size_t text, end = strlen(rows[i].error);

		memcpy(body, head.data, head.len);
		memcpy(body + head.len, rows[i].bytes, rows[i].len);
		if (wire_decode(body, head.len + rows[i].len, &back, &err))
			fail_msg("%s: accepted", rows[i].name);
		text = strlen(err.text);
		if (text < end || strcmp(err.text + text - end, rows[i].error) != 0)
			fail_msg("%s: \"%s\" instead of \"%s\"", rows[i].name, err.text, rows[i].error);
		assert_int_equal(err.kind, ERR_INVALID);
	}
}

#define Q (15 * NS_PER_MIN)
static void
set(char **field, const char *text)
{
	mem_free(*field);
	*field = mem_strdup(text);
}
#define TEXT(field, text) set(&(field), text)

/* X(what is wrong, how the fixed batch becomes so, the refusal). Records, devices and holders of the fixed batch: wiregen.c. */
#define REFUSALS(X)                                                                                                                  \
	X("no kind", b->kind = 0, "batch: kind is 0, the least is 1")                                                                \
	X("a kind of the future", b->kind = 3, "batch: kind is 3, the most is 2")                                                    \
	X("a flag of the future", b->flags = 2, "batch: flags is 2, the most is 1")                                                  \
	X("no node", TEXT(b->node, ""), "batch: node is empty")                                                                      \
	X("a node that is NULL", (mem_free(b->node), b->node = NULL), "batch: node is NULL")                                         \
	X("a node with a newline", TEXT(b->node, "a\nb"),                                                                            \
	  "batch: node is not UTF-8 text without control or direction characters: 'a b'")                                            \
	X("a node that is not UTF-8", TEXT(b->node, "a\xff"),                                                                        \
	  "batch: node is not UTF-8 text without control or direction characters: 'a\xff'")                                          \
	X("no epoch", b->epoch = 0, "batch: epoch is 0, the least is 1")                                                             \
	X("an epoch the ledger cannot count", b->epoch = UINT64_MAX,                                                                 \
	  "batch: epoch is 18446744073709551615, the most is 9223372036854775807")                                                   \
	X("no number", (b->seq = 0, b->last_seq = 0), "batch: seq is 0, the least is 1")                                             \
	X("usage over several numbers", b->last_seq = 8, "batch: last_seq is 8, it must be 7")                                       \
	X("a loss that ends before it begins", (b->kind = WIRE_LOSS, b->record_count = 0, b->last_seq = 6),                          \
	  "batch: last_seq is 6, less than seq 7")                                                                                   \
	X("a loss with records", (b->kind = WIRE_LOSS, b->last_seq = 9),                                                             \
	  "batch: a loss batch has 8 records, it must have none")                                                                    \
	X("time before 1970", b->from_ns = -1, "batch: from_ns is -1, the least is 0")                                               \
	X("an end before the start", b->to_ns = 5, "batch: to_ns is 5, less than from_ns 1794807900000000000")                       \
	X("a device without id", b->devices[0].id = 0, "device 0: id is 0, the least is 1")                                          \
	X("one id for two devices", (b->devices[1].id = 1, b->devices[1].gpu = 1),                                                   \
	  "batch: id 1 is given to two devices")                                                                                     \
	X("a device without uuid", TEXT(b->devices[0].uuid, ""), "device 0: uuid is empty")                                          \
	X("a device without model", TEXT(b->devices[0].model, ""), "device 0: model is empty")                                       \
	X("a GPU that is an instance", b->devices[0].gi = 1, "device 0: gi is 1, it must be -1")                                     \
	X("a GPU with a compute instance", b->devices[0].ci = 0, "device 0: ci is 0, it must be -1")                                 \
	X("a GPU that weighs less", b->devices[0].units = 5039, "device 0: units is 5039, it must be 5040")                          \
	X("a GPU with a profile", TEXT(b->devices[0].profile, "1g"),                                                                 \
	  "device 0: profile is '1g', it must be empty for this kind")                                                               \
	X("a GPU with a date", b->devices[0].created_ns = 1, "device 0: created_ns is 1, it must be 0")                              \
	X("an instance without number", b->devices[2].gi = -1, "device 2: gi is -1, a MIG instance has 0 or more")                   \
	X("an instance without profile", TEXT(b->devices[2].profile, ""), "device 2: profile is empty")                              \
	X("a device that weighs nothing", b->devices[2].units = 0, "device 2: units is 0, the least is 1")                           \
	X("negative memory", b->devices[2].memory_bytes = -1, "device 2: memory_bytes is -1, the least is 0")                        \
	X("a holder without id", b->holders[0].id = 0, "holder 0: id is 0, the least is 1")                                          \
	X("one id for two holders", b->holders[2].id = 1, "batch: id 1 is given to two holders")                                     \
	X("a holder of the future", b->holders[0].kind = 4, "holder 0: kind is 4, the most is 3")                                    \
	X("a pod that is nothing", (TEXT(b->holders[0].pod, ""), TEXT(b->holders[0].pod_uid, "")),                                   \
	  "holder 0: pod and pod_uid are both empty")                                                                                \
	X("a pod with a Slurm job", TEXT(b->holders[0].slurm_job, "1"),                                                              \
	  "holder 0: slurm_job is '1', it must be empty for this kind")                                                              \
	X("a job without number", TEXT(b->holders[1].slurm_job, ""), "holder 1: slurm_job is empty")                                 \
	X("a job with a namespace", TEXT(b->holders[1].ns, "x"),                                                                     \
	  "holder 1: ns is 'x', it must be empty for this kind")                                                                     \
	X("a user without name", TEXT(b->holders[2].user, ""), "holder 2: user is empty")                                            \
	X("a user with an account", TEXT(b->holders[2].slurm_account, "x"),                                                          \
	  "holder 2: slurm_account is 'x', it must be empty for this kind")                                                          \
	X("a pod with a group", TEXT(b->holders[0].group, "x"),                                                                      \
	  "holder 0: group is 'x', it must be empty for this kind")                                                                  \
	X("a job with labels", TEXT(b->holders[1].labels, "a=b"),                                                                    \
	  "holder 1: labels is 'a=b', it must be empty for this kind")                                                               \
	X("labels out of order", TEXT(b->holders[0].labels, "b=1,a=2"),                                                              \
	  "holder 0: labels is 'b=1,a=2': it has labels that are not in the order of their keys, or one of them twice")              \
	X("a label twice", TEXT(b->holders[0].labels, "a=1,a=1"),                                                                    \
	  "holder 0: labels is 'a=1,a=1': it has labels that are not in the order of their keys, or one of them twice")              \
	X("a label without value", TEXT(b->holders[0].labels, "a"),                                                                  \
	  "holder 0: labels is 'a': it has a label without =")                                                                       \
	X("labels that are NULL", (mem_free(b->holders[0].labels), b->holders[0].labels = NULL),                                     \
	  "holder 0: labels is NULL")                                                                                                \
	X("a uid below none", b->holders[2].uid = -2, "holder 2: uid is -2, the least is -1")                                        \
	X("a record of no device", r[0].device = 0, "record 0: device is 0, the least is 1")                                         \
	X("no state", r[0].state = 0, "record 0: state is 0, the least is 1")                                                        \
	X("a state of the future", r[7].state = 6, "record 7: state is 6, the most is 5")                                            \
	X("no sharing", r[0].sharing = 0, "record 0: sharing is 0, the least is 1")                                                  \
	X("a method of the future", r[0].method = 4, "record 0: method is 4, the most is 3")                                         \
	X("a weight of nothing", r[0].units = 0, "record 0: units is 0, the least is 1")                                             \
	X("more than a GPU", r[0].units = 5041, "record 0: units is 5041, the most is 5040")                                         \
	X("no duration", r[3].duration_ns = 0, "record 3: duration_ns is 0, the least is 1")                                         \
	X("a start before the batch", r[0].start_ns--,                                                                               \
	  "record 0: start_ns is 1794807899999999999, before the batch's from_ns 1794807900000000000")                               \
	X("an end after the batch", r[4].duration_ns++,                                                                              \
	  "record 4: start_ns 1794807950000000001 + duration_ns 10000000000 is after the batch's to_ns 1794807960000000000")         \
	X("an end beyond all time", r[4].duration_ns = INT64_MAX,                                                                    \
	  "record 4: start_ns 1794807950000000001 + duration_ns 9223372036854775807 is after the batch's to_ns 1794807960000000000") \
	X("a record over a quarter-hour", (b->to_ns += 2 * Q, r[7].start_ns += Q - 1),                                               \
	  "record 7: start_ns 1794808799999999999 + duration_ns 60000000000 crosses a quarter-hour")                                 \
	X("held by nobody", r[0].holder = 0, "record 0: holder is 0 in state held")                                                  \
	X("free but held", r[2].holder = 1, "record 2: holder is 1 in state unallocated")                                            \
	X("held for longer than it lasted", r[0].held_ns = r[0].duration_ns + 1,                                                     \
	  "record 0: held_ns is 30000000001, more than duration_ns 30000000000")                                                     \
	X("used for longer than held", r[0].used_ns = r[0].held_ns + 1,                                                              \
	  "record 0: used_ns is 15000000001, more than held_ns - unmeasured_ns 15000000000")                                         \
	X("unmeasured for longer than held", r[1].unmeasured_ns = r[1].held_ns + 1,                                                  \
	  "record 1: unmeasured_ns is 15000000001, more than held_ns 15000000000")                                                   \
	X("used while unmeasured", r[1].used_ns = 13 * NS_PER_S + 1,                                                                 \
	  "record 1: used_ns is 13000000001, more than held_ns - unmeasured_ns 13000000000")                                         \
	X("over for longer than it lasted", r[0].over_ns = r[0].duration_ns + 1,                                                     \
	  "record 0: over_ns is 30000000001, more than duration_ns 30000000000")                                                     \
	X("negative use", r[0].used_ns = -1, "record 0: used_ns is -1, the least is 0")                                              \
	X("negative time unmeasured", r[0].unmeasured_ns = -1, "record 0: unmeasured_ns is -1, the least is 0")                      \
	X("negative memory of a record", r[0].memory_byte_ms = -1, "record 0: memory_byte_ms is -1, the least is 0")                 \
	X("negative energy", r[0].energy_mj = -1, "record 0: energy_mj is -1, the least is 0")                                       \
	X("energy of a counter that fell", r[0].energy_mj = INT64_C(1) << 62,                                                        \
	  "record 0: energy_mj is 4611686018427387904, the most is 1000000000000")                                                   \
	X("negative ticks", r[0].ticks = -1, "record 0: ticks is -1, the least is 0")                                                \
	X("negative peak of memory", r[0].peak_memory_bytes = -1, "record 0: peak_memory_bytes is -1, the least is 0")               \
	X("multiprocessors measured for longer than held", r[0].sm_measured_ns = r[0].held_ns + 1,                                   \
	  "record 0: sm_measured_ns is 15000000001, more than held_ns 15000000000")                                                  \
	X("multiprocessors active for longer than measured", r[1].sm_active_ns = r[1].sm_measured_ns + 1,                            \
	  "record 1: sm_active_ns is 14000000001, more than sm_measured_ns 14000000000")                                             \
	X("memory of nobody", r[2].peak_memory_bytes = 1, "record 2: peak_memory_bytes is 1, it must be 0")                          \
	X("multiprocessors measured of what is free", r[2].sm_measured_ns = 1,                                                       \
	  "record 2: sm_measured_ns is 1, more than held_ns 0")                                                                      \
	X("use of what is free", r[2].used_ns = 1, "record 2: used_ns is 1, it must be 0")                                           \
	X("unmeasured though free", r[2].unmeasured_ns = 1, "record 2: unmeasured_ns is 1, it must be 0")                            \
	X("over though free", r[2].over_ns = 1, "record 2: over_ns is 1, it must be 0")                                              \
	X("a method though free", r[2].method = WIRE_MEASURED,                                                                       \
	  "record 2: method is measured in state unallocated, it must be none")                                                      \
	X("idle though nothing was measured", r[5].unmeasured_ns--,                                                                  \
	  "record 5: unmeasured_ns is 59999999999, it must be 60000000000")                                                          \
	X("used though nothing was measured", (r[5].unmeasured_ns--, r[5].used_ns = 1),                                              \
	  "record 5: used_ns is 1, it must be 0")

static const char *
spoil(struct wire_batch *b, int which, const char **ret_error)
{
	struct wire_record *r = b->records;
	int i = 0;

#define X(name, change, error)      \
	if (i++ == which) {         \
		change;             \
		*ret_error = error; \
		return name;        \
	}
	REFUSALS(X)
#undef X
	return NULL;
}

static void
each_broken_rule_is_refused_with_the_field_the_value_and_the_limit(void **state)
{
	int i;

	(void)state;
	for (i = 0;; i++) {
		owned(wire_batch) struct wire_batch *b = wiregen_fixed();
		struct err err = {.kind = ERR_NONE};
		const char *error = NULL;
		const char *name = spoil(b, i, &error);

		if (!name)
			break;
		if (wire_check(b, &err))
			fail_msg("%s: accepted", name);
		if (strcmp(err.text, error) != 0)
			fail_msg("%s: \"%s\" instead of \"%s\"", name, err.text, error);
		assert_int_equal(err.kind, ERR_INVALID);
	}
	assert_true(i > 60);
}

static void
what_lies_at_the_edge_of_a_rule_is_accepted(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_fixed();
	struct wire_record *r = b->records;
	struct err err;

	(void)state;
	r[0].used_ns = r[0].held_ns;
	r[0].over_ns = r[0].duration_ns;
	r[1].unmeasured_ns = r[1].held_ns;
	r[0].energy_mj = WIRE_MAX_ENERGY_MJ;
	r[0].memory_byte_ms = INT64_MAX;
	r[3].held_ns = 0;
	b->to_ns += Q;
	r[7].start_ns = b->from_ns + Q - 60 * NS_PER_S; /* ends with its quarter-hour */
	b->devices[2].ci = -1;
	b->epoch = INT64_MAX;
	b->devices[0].gpu = b->devices[0].id = UINT32_MAX;
	TEXT(b->holders[0].pod_uid, "");
	if (!wire_check(b, &err))
		fail_msg("%s", err.text);
	assert_round_trip(b);
}

static void
a_text_may_have_512_bytes_and_no_more(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_fixed();
	in_place(buf) struct buf body;
	char text[514];
	struct err err;

	(void)state;
	memset(text, 'x', sizeof(text));
	text[512] = '\0';
	TEXT(b->holders[0].ns, text);
	if (!wire_check(b, &err))
		fail_msg("%s", err.text);
	assert_round_trip(b);
	text[512] = 'x';
	text[513] = '\0';
	TEXT(b->holders[0].ns, text);
	assert_false(wire_check(b, &err));
	assert_string_equal(err.text, "holder 0: ns has more than 512 bytes");
	buf_init(&body, WIRE_MAX_BODY);
	assert_false(wire_encode(b, &body, &err));
	assert_string_equal(err.text, "holder: ns has 513 bytes, the limit is 512");
	assert_int_equal(body.len, 0);
}

static void
names_of_nodes_and_devices_have_limits_of_their_own(void **state)
{
	static const struct {
		const char *name;
		size_t most;
	} rows[] = {{"batch: node", LIMIT_NODE_NAME},
	            {"device 0: uuid", LIMIT_GPU_UUID},
	            {"device 0: model", LIMIT_MODEL}};
	char text[514], expected[80];
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(wire_batch) struct wire_batch *b = wiregen_fixed();
		char **fields[] = {&b->node, &b->devices[0].uuid, &b->devices[0].model};

		memset(text, 'x', sizeof(text));
		text[rows[i].most] = '\0';
		TEXT(*fields[i], text);
		if (!wire_check(b, &err))
			fail_msg("%s", err.text);
		text[rows[i].most] = 'x';
		text[rows[i].most + 1] = '\0';
		TEXT(*fields[i], text);
		assert_false(wire_check(b, &err));
		snprintf(expected, sizeof(expected), "%s has more than %zu bytes", rows[i].name, rows[i].most);
		assert_string_equal(err.text, expected);
	}
}

static void
a_node_has_at_most_1024_gpus(void **state)
{
	owned(wire_batch) struct wire_batch *b = wire_batch_new();
	struct err err;
	char uuid[24];

	(void)state;
	b->kind = WIRE_USAGE;
	b->node = mem_strdup("n1");
	b->exporter_version = mem_strdup("");
	b->epoch = b->seq = b->last_seq = 1;
	b->devices = mem_array(LIMIT_NODE_GPUS + 1, sizeof(*b->devices));
	for (uint32_t i = 0; i <= LIMIT_NODE_GPUS; i++) {
		snprintf(uuid, sizeof(uuid), "GPU-%u", i);
		b->devices[i] = (struct wire_device){.id = i + 1,
		                                     .gpu = i + 1,
		                                     .uuid = mem_strdup(uuid),
		                                     .model = mem_strdup("H100"),
		                                     .profile = mem_strdup(""),
		                                     .gi = -1,
		                                     .ci = -1,
		                                     .units = UNITS_PER_GPU};
		b->device_count++;
		if (i < LIMIT_NODE_GPUS && !wire_check(b, &err))
			fail_msg("%s", err.text);
	}
	assert_false(wire_check(b, &err));
	assert_string_equal(err.text, "device 1024: it is GPU 1025 of its node, the most is 1024");
}

static void
labels_may_fill_their_room_and_no_more(void **state)
{
	static const char name[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"; /* 62 */
	owned(wire_batch) struct wire_batch *b = wiregen_fixed();
	in_place(buf) struct buf labels, body;
	struct err err;

	(void)state;
	buf_init(&labels, LABELS_MAX_TEXT + 1);
	for (size_t i = 0; i < LABEL_MAX_COUNT; i++) {
		for (size_t k = 0; k < LABEL_MAX_PREFIX; k++)
			buf_char(&labels, 'p');
		buf_printf(&labels, "/%s%c=%sv%s", name, (int)('a' + i), name, i + 1 < LABEL_MAX_COUNT ? "," : "");
	}
	assert_int_equal(labels.len, LABELS_MAX_TEXT);
	TEXT(b->holders[0].labels, buf_text(&labels));
	if (!wire_check(b, &err))
		fail_msg("%s", err.text);
	assert_round_trip(b);
	buf_char(&labels, 'v');
	TEXT(b->holders[0].labels, buf_text(&labels));
	buf_init(&body, WIRE_MAX_BODY);
	assert_false(wire_encode(b, &body, &err));
	assert_string_equal(err.text, "holder: labels has 6112 bytes, the limit is 6111");
	assert_false(wire_check(b, &err));
	assert_string_equal(err.text, "holder 0: labels has more than 6111 bytes");
}

static void
a_batch_that_does_not_fit_leaves_the_buffer_as_it_was(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_fixed();
	in_place(buf) struct buf out;
	struct err err;

	(void)state;
	buf_init(&out, 100);
	buf_str(&out, "kept");
	assert_false(wire_encode(b, &out, &err));
	assert_string_equal(err.text, "the batch is larger than the limit of 100 bytes");
	assert_string_equal(buf_text(&out), "kept");
	assert_true(buf_ok(&out, "", &err));
	b->records[0].used_ns = INT64_MIN;
	b->records[1].used_ns = 1;
	buf_fini(&out);
	buf_init(&out, WIRE_MAX_BODY);
	assert_false(wire_encode(b, &out, &err));
	assert_string_equal(err.text, "record 1: used_ns is 1 after -9223372036854775808, a difference beyond 64 bits");
}

static void
a_payload_is_checked_packed_and_unpacked(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_fixed(), *back = NULL;
	in_place(buf) struct buf payload, empty;
	struct wire_batch *none = NULL;
	struct err err;

	(void)state;
	buf_init(&payload, FRAME_MAX);
	buf_init(&empty, 1024);
	if (!wire_pack(b, &payload, &err) || !wire_unpack(payload.data, payload.len, &back, &err))
		fail_msg("%s", err.text);
	assert_same(b, back);
	assert_false(wire_unpack(payload.data, payload.len - 1, &none, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_false(wire_unpack("not gzip", 8, &none, &err));
	if (!gz_compress("", 0, 6, &empty, &err))
		fail_msg("%s", err.text);
	assert_false(wire_unpack(empty.data, empty.len, &none, &err));
	assert_string_equal(err.text, "not a batch: it does not begin with TGW");
	buf_clear(&payload);
	b->records[0].units = 0;
	assert_false(wire_pack(b, &payload, &err));
	assert_string_equal(err.text, "record 0: units is 0, the least is 1");
	assert_int_equal(payload.len, 0);
}

/* The figure that storage is planned with (WIRE.md): of a node on which something changes every ten seconds. The generator and zlib are
 * the same everywhere, so is the size. That of a quiet node, with one record per holder, is `make bench T=ingest`. */
static void
a_busy_node_takes_at_most_13_bytes_per_record(void **state)
{
	owned(wire_batch) struct wire_batch *b = wiregen_node(42, 8, 21, 6);
	in_place(buf) struct buf payload;
	struct err err;

	(void)state;
	assert_int_equal(b->record_count, 1008);
	buf_init(&payload, FRAME_MAX);
	if (!wire_pack(b, &payload, &err))
		fail_msg("%s", err.text);
	print_message("%zu records in %zu bytes, dictionary of %zu entries included\n", b->record_count, payload.len,
	              b->device_count + b->holder_count);
	assert_true(payload.len <= 13 * b->record_count);
}

static void
numbers_have_names(void **state)
{
	(void)state;
	assert_string_equal(wire_state_name(WIRE_HELD), "held");
	assert_string_equal(wire_state_name(WIRE_UNKNOWN), "unknown");
	assert_string_equal(wire_state_name(0), "?");
	assert_string_equal(wire_state_name(UINT32_MAX), "?");
	assert_string_equal(wire_sharing_name(WIRE_TIMESLICE), "timeslice");
	assert_string_equal(wire_sharing_name(6), "?");
	assert_string_equal(wire_method_name(WIRE_NONE), "none");
	assert_string_equal(wire_method_name(WIRE_RESERVED), "reserved");
	assert_string_equal(wire_method_name(4), "?");
	assert_string_equal(wire_holder_kind_name(WIRE_SLURM_JOB), "slurm_job");
	assert_string_equal(wire_holder_kind_name(0), "?");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_comes_back_as_it_was),
		cmocka_unit_test(the_bytes_of_version_1_never_change),
		cmocka_unit_test(the_stored_bytes_of_version_1_are_still_read),
		cmocka_unit_test(the_bytes_of_version_2_never_change),
		cmocka_unit_test(the_stored_bytes_of_version_2_are_still_read),
		cmocka_unit_test(the_bytes_of_version_3_never_change),
		cmocka_unit_test(the_stored_bytes_of_version_3_are_still_read),
		cmocka_unit_test(the_bytes_of_version_4_never_change),
		cmocka_unit_test(the_stored_bytes_of_version_4_are_still_read),
		cmocka_unit_test(memory_comes_back_whatever_the_peak_is),
		cmocka_unit_test(memory_beyond_64_bits_is_refused),
		cmocka_unit_test(what_a_version_has_no_place_for_is_refused_and_not_lost),
		cmocka_unit_test(labels_may_fill_their_room_and_no_more),
		cmocka_unit_test(a_batch_that_ends_early_or_late_is_refused_at_every_byte),
		cmocka_unit_test(an_unknown_version_is_for_later_and_says_which_are_known),
		cmocka_unit_test(unsound_bytes_behind_the_head_are_refused_before_memory_is_taken),
		cmocka_unit_test(each_broken_rule_is_refused_with_the_field_the_value_and_the_limit),
		cmocka_unit_test(what_lies_at_the_edge_of_a_rule_is_accepted),
		cmocka_unit_test(a_text_may_have_512_bytes_and_no_more),
		cmocka_unit_test(names_of_nodes_and_devices_have_limits_of_their_own),
		cmocka_unit_test(a_node_has_at_most_1024_gpus),
		cmocka_unit_test(a_batch_that_does_not_fit_leaves_the_buffer_as_it_was),
		cmocka_unit_test(a_payload_is_checked_packed_and_unpacked),
		cmocka_unit_test(a_busy_node_takes_at_most_13_bytes_per_record),
		cmocka_unit_test(numbers_have_names),
	};

	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}

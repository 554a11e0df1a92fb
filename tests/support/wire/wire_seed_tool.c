/* tests/support/wire/wire_seed_tool.c - writes the seed corpus of fuzz_wire: wire_seed_tool tests/fuzz/corpus/wire */
#include <stdio.h>

#include "common/wire/frame.h"
#include "tests/support/wire/wiregen.h"

static bool
write_seed(const char *folder, const char *name, const struct buf *bytes)
{
	owned(mem) char *path = mem_printf("%s/%s", folder, name);
	struct err err;

	if (file_write_atomic(path, bytes->data, bytes->len, 0644, &err))
		return true;
	fprintf(stderr, "%s\n", err.text);
	return false;
}

/* A batch both ways, as a body and as a payload. */
static bool
write_batch(const char *folder, const char *name, const struct wire_batch *b)
{
	owned(mem) char *packed = mem_printf("%s.gz", name);
	in_place(buf) struct buf body, payload;
	struct err err;

	buf_init(&body, WIRE_MAX_BODY);
	buf_init(&payload, FRAME_MAX);
	if (!wire_encode(b, &body, &err) || !wire_pack(b, &payload, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return false;
	}
	return write_seed(folder, name, &body) && write_seed(folder, packed, &payload);
}

int
main(int argc, char **argv)
{
	owned(wire_batch) struct wire_batch *fixed = wiregen_fixed(), *loss = wiregen_loss(WIRE_VERSION);
	owned(wire_batch) struct wire_batch *node = wiregen_node(7, 2, 2, 2), *old = wiregen_fixed_v1();
	owned(wire_batch) struct wire_batch *second = wiregen_fixed_v2(), *third = wiregen_fixed_v3();

	if (argc != 2) {
		fprintf(stderr, "usage: wire_seed_tool FOLDER\n");
		return 2;
	}
	return write_batch(argv[1], "usage", fixed) && write_batch(argv[1], "loss", loss) &&
	                       write_batch(argv[1], "node", node) && write_batch(argv[1], "usage-v1", old) &&
	                       write_batch(argv[1], "usage-v2", second) && write_batch(argv[1], "usage-v3", third)
	               ? 0
	               : 1;
}

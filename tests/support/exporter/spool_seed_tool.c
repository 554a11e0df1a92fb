/* tests/support/exporter/spool_seed_tool.c - writes the seeds of fuzz_spool: spool_seed_tool tests/fuzz/corpus/spool */
#include <stdio.h>
#include <string.h>

#include "common/wire/frame.h"
#include "exporter/delivery/spool_files.h"
#include "tests/support/exporter/spooldir.h"

static void
save(const char *dir, const char *name, const char *data, size_t len)
{
	owned(mem) char *path = mem_printf("%s/%s", dir, name);
	struct err err;

	if (!file_write_atomic(path, data, len, 0644, &err))
		fprintf(stderr, "%s\n", err.text);
}

int
main(int argc, char **argv)
{
	struct spooldir nowhere = {"unused"};
	struct spool_options o = spooldir_options(&nowhere);
	struct segment_head head = {.flags = o.flags, .epoch = 1794800000, .first_seq = 7};
	in_place(buf) struct buf file;

	if (argc != 2)
		return 2;
	memcpy(head.boot_id, o.boot_id, sizeof(head.boot_id));
	snprintf(head.node, sizeof(head.node), "%s", o.node);
	buf_init(&file, 1 << 20);
	segment_head_write(&head, &file);
	save(argv[1], "head", file.data, file.len);
	for (uint64_t seq = 7; seq < 10; seq++) {
		in_place(buf) struct buf payload;

		buf_init(&payload, FRAME_MAX);
		spooldir_batch(&o, head.epoch, seq, 4, &payload);
		frame_append(&file, payload.data, payload.len);
	}
	save(argv[1], "whole", file.data, file.len);
	save(argv[1], "torn", file.data, file.len - 5);
	file.data[file.len - 20] ^= 1;
	save(argv[1], "bad_crc", file.data, file.len);
	return 0;
}

/* tests/fuzz/replay.c - runs a fuzz target once over each file named on the command line, without libFuzzer.
 * The name is printed first, so that the last line before a crash is the input that caused it. */
#include "common/base/buf.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX (64u << 20)

int
main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		in_place(buf) struct buf input;
		struct err err;

		printf("%s\n", argv[i]);
		fflush(stdout);
		buf_init(&input, INPUT_MAX);
		if (!buf_read_file(&input, argv[i], &err)) {
			fprintf(stderr, "%s\n", err.text);
			return 1;
		}
		/* An exact copy, so that the address sanitizer sees a read of the byte behind the input. */
		uint8_t *copy = mem_alloc(input.len ? input.len : 1);
		for (size_t n = 0; n < input.len; n++)
			copy[n] = (uint8_t)input.data[n];
		LLVMFuzzerTestOneInput(copy, input.len);
		mem_free(copy);
	}
	return 0;
}

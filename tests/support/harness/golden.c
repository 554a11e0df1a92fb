/* tests/support/harness/golden.c - outputs compared with the files that say what they must be. */
#include "tests/support/harness/golden.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"

#define GOLDEN_MAX (16u << 20)

static size_t
line_end(const char *text, size_t len, size_t at)
{
	const char *end = memchr(text + at, '\n', len - at);

	return end ? (size_t)(end - text) : len;
}

static bool
first_difference(const char *path, const struct buf *want, const char *text, size_t len, struct err *err)
{
	const char *wanted = buf_text(want);
	size_t at = 0, start = 0;
	int line = 1;

	for (; at < len && at < want->len && text[at] == wanted[at]; at++) {
		if (text[at] == '\n') {
			start = at + 1;
			line++;
		}
	}
	return err_set(err, ERR_CONFLICT, "%s:%d: expected \"%.*s\", found \"%.*s\"", path, line,
	               (int)(line_end(wanted, want->len, start) - start), wanted + start,
	               (int)(line_end(text, len, start) - start), text + start);
}

bool
golden_check(const char *name, const char *text, size_t len, struct err *err)
{
	owned(mem) char *path = mem_printf("tests/golden/%s", name);
	const char *mode = getenv("TOLLGATE_GOLDEN");
	in_place(buf) struct buf want;

	buf_init(&want, GOLDEN_MAX);
	if (mode && strcmp(mode, "update") == 0)
		return file_write_atomic(path, text, len, 0644, err);
	if (!buf_read_file(&want, path, err))
		return false;
	if (want.len == len && memcmp(buf_text(&want), text, len) == 0)
		return true;
	return first_difference(path, &want, text, len, err);
}

/* tests/support/quotascript_rows.c - tables of scripts and their answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/quotascript.h"

void
quotascript_check(const struct quotascript_row *rows, size_t count)
{
	size_t wrong = 0;

	for (size_t i = 0; i < count; i++) {
		struct buf answers;
		struct err err;

		buf_init(&answers, 1 << 16);
		if (!quotascript_run(rows[i].script, &answers, NULL, &err)) {
			print_error("%s: %s\n", rows[i].name, err.text);
			wrong++;
		} else if (strcmp(buf_text(&answers), rows[i].answers) != 0) {
			print_error("%s:\n  got      %s\n  expected %s\n", rows[i].name, buf_text(&answers),
			            rows[i].answers);
			wrong++;
		}
		buf_fini(&answers);
	}
	assert_int_equal(wrong, 0);
}

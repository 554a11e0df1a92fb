/* exporter/source/sanitize.c - cleans text of drivers, cgroups and directories. */
#include "exporter/source/sanitize.h"

#include <string.h>

#include "common/base/text.h"

char *
sanitized_copy(const char *s, size_t max)
{
	size_t left = strlen(s), len = 0;
	char *copy = mem_array(1, (left < max ? left : max) + 1);

	while (left > 0) {
		uint32_t code = 0;
		size_t n = utf8_next(s, left, &code);
		bool bad = n == 0 || text_deceives(code);
		size_t put = bad ? 1 : n;

		if (len + put > max)
			break;
		if (bad)
			copy[len] = '?';
		else
			memcpy(copy + len, s, n);
		len += put;
		s += n ? n : 1;
		left -= n ? n : 1;
	}
	copy[len] = '\0';
	return copy;
}
